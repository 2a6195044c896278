// ctest: timeout=120 labels=quick,cuda
/* The conformance suite of devices: the same cases on the CPU and on every GPU there is, and across them. Memory of a
 * device is read and written through its streams alone, as a host must. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "device/device.h"
#include "device/share.h"
#include "support/limit.h"
#include "support/seed.h"

#define DEVICES_MAX 4
#define POISON 0xFF

static uint64_t seed_of_run;
static struct quire_device *devices[DEVICES_MAX];
static int device_count;

static void open_devices(void) {
  struct quire_error error = {0};
  assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CPU, 0, &devices[device_count++], NULL),
                   QUIRE_OK);
  while (device_count < DEVICES_MAX && quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, device_count - 1,
                                                         &devices[device_count], &error) == QUIRE_OK) {
    device_count++;
  }
  assert_int_equal(error.status, QUIRE_ERR_UNSUPPORTED);
  print_message("%d GPUs; the next: %s\n", device_count - 1, error.text);
}

/* A stream of a device, and a pinned slab to reach its memory through. */
struct desk {
  struct quire_device *device;
  struct quire_stream *stream;
  struct quire_memory *slab;
  uint8_t *host;
  uint64_t random;
};

enum { SLAB = 8 << 20 };

static struct desk desk_of(struct quire_device *device, enum quire_stream_mode mode) {
  struct desk desk = {.device = device, .random = seed_of_run};
  assert_int_equal(quire_device_stream(device, mode, NULL, seed_of_run, &desk.stream, NULL), QUIRE_OK);
  assert_int_equal(quire_device_host(device, SLAB, &desk.slab, NULL), QUIRE_OK);
  desk.host = quire_memory_base(desk.slab);
  return desk;
}

static void settle(struct desk *desk) {
  quire_event_sync(quire_stream_record(desk->stream));
  assert_int_equal(quire_stream_check(desk->stream, NULL), QUIRE_OK);
}

static void desk_close(struct desk *desk) {
  settle(desk);
  quire_stream_destroy(desk->stream);
  quire_memory_destroy(desk->slab);
}

static void randomise(uint64_t *random, uint8_t *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    bytes[i] = (uint8_t)(quire_splitmix64(random) >> 11);
  }
}

static struct quire_memory *memory_of(struct quire_device *device, size_t bytes) {
  struct quire_memory *memory = NULL;
  struct quire_error error = {0};
  if (quire_device_memory(device, bytes, &memory, &error) != QUIRE_OK) {
    fail_msg("%s", error.text);
  }
  return memory;
}

/* Runs a case in the modes that a device has. */
static void for_all(void (*fn)(struct desk *)) {
  for (int d = 0; d < device_count; d++) {
    for (enum quire_stream_mode mode = QUIRE_STREAM_INLINE; mode <= QUIRE_STREAM_DEFERRED; mode++) {
      if (mode == QUIRE_STREAM_INLINE && quire_device_kind_of(devices[d]) == QUIRE_DEVICE_CUDA) {
        continue;
      }
      struct desk desk = desk_of(devices[d], mode);
      fn(&desk);
      desk_close(&desk);
    }
  }
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

static void own_memory(struct desk *desk) {
  size_t sizes[] = {1, 4097, (size_t)2 << 20, ((size_t)3 << 20) + 16};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    struct quire_memory *memory = memory_of(desk->device, sizes[i]);
    assert_int_equal((uintptr_t)quire_memory_base(memory) % 4096, 0);
    assert_int_equal(quire_memory_bytes(memory), sizes[i]);
    memset(desk->host, 0, sizes[i]);
    quire_stream_copy(desk->stream, desk->host, quire_memory_base(memory), sizes[i]);
    settle(desk);
    for (size_t b = 0; b < sizes[i]; b++) {
      assert_int_equal(desk->host[b], POISON);
    }
    struct quire_memory *adopted = NULL;
    assert_int_equal(quire_device_adopt(desk->device, quire_memory_base(memory), sizes[i], &adopted, NULL), QUIRE_OK);
    assert_ptr_equal(quire_memory_base(adopted), quire_memory_base(memory));
    quire_memory_destroy(adopted); /* not the caller's bytes */
    quire_stream_fill(desk->stream, quire_memory_base(memory), 7, sizes[i]);
    settle(desk);
    quire_memory_destroy(memory);
  }
}

static void memory_is_poisoned_and_adopted_memory_left_alone(void **state) {
  (void)state;
  for_all(own_memory);
}

static void refusals(void **state) {
  (void)state;
  struct quire_error error = {0};
  struct quire_device *none = NULL;
  assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CPU, 1, &none, &error), QUIRE_ERR_UNSUPPORTED);
  assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, -1, &none, &error), QUIRE_ERR_UNSUPPORTED);
  assert_true(strlen(error.text) > 8);
  assert_null(none);
  quire_device_close(NULL);
  for (int d = 0; d < device_count; d++) {
    struct quire_memory *memory = NULL;
    assert_int_equal(quire_device_memory(devices[d], 0, &memory, &error), QUIRE_ERR_ARGUMENT);
    assert_int_equal(quire_device_adopt(devices[d], NULL, 8, &memory, &error), QUIRE_ERR_ARGUMENT);
    assert_int_equal(quire_device_memory(devices[d], (size_t)1 << 50, &memory, &error), QUIRE_ERR_MEMORY);
    assert_null(memory);
    assert_int_equal(quire_device_index(devices[d]), d == 0 ? 0 : d - 1);
    if (quire_device_kind_of(devices[d]) == QUIRE_DEVICE_CUDA) {
      struct quire_stream *stream = NULL;
      assert_int_equal(quire_device_stream(devices[d], QUIRE_STREAM_INLINE, NULL, 0, &stream, &error),
                       QUIRE_ERR_ARGUMENT);
    }
  }
}

/* -- order -------------------------------------------------------------------------------------------------------- */

struct note {
  int32_t *list;
  atomic_int *length;
  int32_t value;
};

static void append(void *args, struct quire_team *team) {
  (void)team;
  struct note *note = args;
  note->list[atomic_fetch_add(note->length, 1)] = note->value;
}

static void order(struct desk *desk) {
  enum { ITEMS = 3 * QUIRE_STREAM_QUEUE_ITEMS };
  static int32_t list[ITEMS];
  atomic_int length = 0;
  for (int32_t i = 0; i < ITEMS; i++) {
    struct note note = {list, &length, i};
    quire_stream_launch(desk->stream, append, &note, sizeof note);
  }
  settle(desk);
  assert_int_equal(length, ITEMS);
  for (int32_t i = 0; i < ITEMS; i++) {
    assert_int_equal(list[i], i);
  }
}

static void host_functions_run_in_order(void **state) {
  (void)state;
  for_all(order);
}

/* -- copies ------------------------------------------------------------------------------------------------------- */

static void copies(struct desk *desk) {
  enum { AREA = 1 << 20, ROUNDS = 40 };
  struct quire_memory *memory = memory_of(desk->device, AREA);
  uint8_t *oracle = malloc(AREA), *base = quire_memory_base(memory);
  assert_non_null(oracle);
  memset(oracle, POISON, AREA);
  for (int round = 0; round < ROUNDS; round++) {
    size_t bytes = (size_t)quire_splitmix64_below(&desk->random, round % 2 ? 300 : 60000);
    size_t at = (size_t)quire_splitmix64_below(&desk->random, AREA / 2 - bytes);
    size_t from = AREA / 2 + (size_t)quire_splitmix64_below(&desk->random, AREA / 2 - bytes);
    randomise(&desk->random, desk->host + at, bytes);
    memcpy(oracle + at, desk->host + at, bytes);
    quire_stream_copy(desk->stream, base + at, desk->host + at, bytes);
    if (round % 3 == 0) {
      memset(oracle + from, round, bytes);
      quire_stream_fill(desk->stream, base + from, round, bytes);
    } else {
      memcpy(oracle + from, oracle + at, bytes);
      quire_stream_copy(desk->stream, base + from, base + at, bytes);
    }
    settle(desk);
  }
  quire_stream_copy(desk->stream, desk->host, base, AREA);
  settle(desk);
  assert_memory_equal(desk->host, oracle, AREA);
  free(oracle);
  quire_memory_destroy(memory);
}

static void copies_and_fills_match_the_oracle(void **state) {
  (void)state;
  for_all(copies);
}

/* Copies bytes from the host's slab, at an offset, to the device and back; both digests are the CPU's. */
static void expect_digest(struct desk *desk, struct quire_memory *memory, size_t bytes, size_t skew) {
  enum { DIGESTS = 64, BACK = SLAB / 2 };
  uint8_t *base = (uint8_t *)quire_memory_base(memory) + DIGESTS + skew;
  uint64_t *digests = quire_memory_base(memory);
  uint8_t *source = desk->host + DIGESTS + skew, *back = desk->host + BACK + skew;
  randomise(&desk->random, source, bytes);
  quire_stream_copy_digest(desk->stream, base, source, bytes, &digests[0]);
  quire_stream_copy_digest(desk->stream, back, base, bytes, &digests[2]);
  quire_stream_copy(desk->stream, desk->host, digests, 4 * sizeof(uint64_t));
  settle(desk);
  struct quire_hash128 want = quire_hash128(source, bytes, 0);
  uint64_t got[4];
  memcpy(got, desk->host, sizeof got);
  if (got[0] != want.low || got[1] != want.high || got[2] != want.low || got[3] != want.high) {
    fail_msg("%zu bytes at +%zu: digest %016llx%016llx and %016llx%016llx, not %016llx%016llx", bytes, skew,
             (unsigned long long)got[1], (unsigned long long)got[0], (unsigned long long)got[3],
             (unsigned long long)got[2], (unsigned long long)want.high, (unsigned long long)want.low);
  }
  assert_memory_equal(back, source, bytes);
}

static void digests(struct desk *desk) {
  struct quire_memory *memory = memory_of(desk->device, SLAB / 2);
  for (size_t bytes = 0; bytes <= 520; bytes += bytes > 260 ? 13 : 1) {
    expect_digest(desk, memory, bytes, 0);
  }
  size_t sizes[] = {1023, 1024, 1025, 1088, 2047, 2048, 2049, 8448, 41984, 65536, 73728, 1 << 20, (3 << 20) + 77};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    expect_digest(desk, memory, sizes[i], 0);
    expect_digest(desk, memory, sizes[i] - 1, 1 + i % 15);
  }
  quire_memory_destroy(memory);
}

static void digests_are_the_same_everywhere(void **state) {
  (void)state;
  for_all(digests);
}

/* More bytes than a GPU sums in one round. */
static void digest_of_many_bytes(void **state) {
  (void)state;
  enum { BYTES = (35 << 20) + 1234 };
  for (int d = 1; d < device_count; d++) {
    struct desk desk = desk_of(devices[d], QUIRE_STREAM_THREAD);
    struct quire_memory *slab = NULL, *memory = memory_of(devices[d], BYTES + 16);
    assert_int_equal(quire_device_host(devices[d], BYTES, &slab, NULL), QUIRE_OK);
    uint8_t *host = quire_memory_base(slab);
    randomise(&desk.random, host, BYTES);
    quire_stream_copy_digest(desk.stream, (uint8_t *)quire_memory_base(memory) + 16, host, BYTES,
                             quire_memory_base(memory));
    quire_stream_copy(desk.stream, desk.host, quire_memory_base(memory), 16);
    settle(&desk);
    struct quire_hash128 want = quire_hash128(host, BYTES, 0);
    uint64_t got[2];
    memcpy(got, desk.host, sizeof got);
    assert_true(got[0] == want.low && got[1] == want.high);
    quire_memory_destroy(slab);
    quire_memory_destroy(memory);
    desk_close(&desk);
  }
}

/* -- lists -------------------------------------------------------------------------------------------------------- */

/* count copies of up to bytes_max each, from places in `from` to places in `to` that do not overlap; what lies between
 * them stays as it was. aligned: all multiples of 16. */
static void expect_list(struct desk *desk, int32_t count, uint32_t bytes_max, bool aligned, int32_t width) {
  size_t pitch = ((size_t)bytes_max + 31) / 16 * 16, area = pitch * (size_t)count;
  assert_true(area * 2 + (size_t)count * sizeof(struct quire_copy) <= SLAB);
  struct quire_memory *source = memory_of(desk->device, area), *target = memory_of(desk->device, area);
  uint8_t *bytes = desk->host, *oracle = malloc(area);
  struct quire_copy *list = (struct quire_copy *)(void *)(desk->host + 2 * area);
  assert_non_null(oracle);
  randomise(&desk->random, bytes, area);
  memset(oracle, POISON, area);
  quire_stream_copy(desk->stream, quire_memory_base(source), bytes, area);
  for (int32_t i = 0; i < count; i++) {
    int32_t place = (int32_t)((i * 7919u) % (uint32_t)count); /* 7919 is prime: a permutation */
    uint32_t size = (uint32_t)quire_splitmix64_below(&desk->random, bytes_max + 1);
    size_t skew = aligned ? 0 : (size_t)quire_splitmix64_below(&desk->random, 9);
    size = aligned ? size / 16 * 16 : size;
    size = i == 0 ? bytes_max : size;
    size_t from = (size_t)i * pitch + skew, to = (size_t)place * pitch + (aligned ? 0 : 8 - skew);
    list[i] = (struct quire_copy){(uint8_t *)quire_memory_base(target) + to,
                                  (const uint8_t *)quire_memory_base(source) + from, size};
    memcpy(oracle + to, bytes + from, size);
  }
  quire_stream_copy_list(desk->stream, list, count, bytes_max, width);
  quire_stream_copy(desk->stream, desk->host + area, quire_memory_base(target), area);
  settle(desk);
  assert_memory_equal(desk->host + area, oracle, area);
  free(oracle);
  quire_memory_destroy(source);
  quire_memory_destroy(target);
}

/* The bound may be far above what there is to copy. */
static void expect_loose_list(struct desk *desk, uint32_t bytes_max) {
  enum { BYTES = 5392 };
  struct quire_memory *memory = memory_of(desk->device, 2 * BYTES);
  struct quire_copy *list = (struct quire_copy *)(void *)(desk->host + 4 * BYTES);
  randomise(&desk->random, desk->host, 2 * BYTES);
  quire_stream_copy(desk->stream, quire_memory_base(memory), desk->host, 2 * BYTES);
  list[0] = (struct quire_copy){(uint8_t *)quire_memory_base(memory) + BYTES, quire_memory_base(memory), BYTES};
  quire_stream_copy_list(desk->stream, list, 1, bytes_max, 0);
  quire_stream_copy(desk->stream, desk->host + 2 * BYTES, quire_memory_base(memory), 2 * BYTES);
  settle(desk);
  assert_memory_equal(desk->host + 2 * BYTES, desk->host, BYTES);
  assert_memory_equal(desk->host + 3 * BYTES, desk->host, BYTES);
  quire_memory_destroy(memory);
}

static void lists(struct desk *desk) {
  quire_stream_copy_list(desk->stream, NULL, 0, 100, 0);
  expect_list(desk, 1, 16, true, 0);
  expect_list(desk, 1, 1 << 20, true, 3);
  expect_list(desk, 37, 41984, true, 16);
  expect_list(desk, 37, 41984, false, 1);
  expect_list(desk, 101, 8448, true, 5);
  expect_list(desk, 1009, 656, true, 0);
  expect_list(desk, 1009, 656, false, 2);
  expect_list(desk, 509, 2064, true, 0); /* at the border between small and large */
  expect_list(desk, 509, 2048, true, 0);
  expect_list(desk, 300, 5, false, 0);
  expect_loose_list(desk, (uint32_t)1 << 31);
  expect_loose_list(desk, UINT32_MAX);
}

static void lists_of_copies_match_the_oracle(void **state) {
  (void)state;
  for_all(lists);
}

/* -- events and other devices ------------------------------------------------------------------------------------- */

/* A value goes round all devices and streams, each waiting for the one before; deferred streams make a missing wait
 * seen. */
static void events_chain_devices(void **state) {
  (void)state;
  enum { ROUNDS = 30, BYTES = 4096 };
  for (int d = 1; d < device_count || d == 1; d++) {
    struct desk first = desk_of(devices[0], QUIRE_STREAM_DEFERRED);
    struct desk second = desk_of(devices[d < device_count ? d : 0], QUIRE_STREAM_DEFERRED);
    struct quire_memory *memory = memory_of(second.device, BYTES);
    for (int round = 0; round < ROUNDS; round++) {
      uint8_t *staged = second.host, *back = second.host + BYTES, *there = second.host + 2 * BYTES;
      randomise(&first.random, first.host, BYTES);
      quire_stream_copy(first.stream, staged, first.host, BYTES);
      quire_stream_wait(second.stream, quire_stream_record(first.stream));
      quire_stream_copy(second.stream, quire_memory_base(memory), staged, BYTES);
      quire_stream_copy(second.stream, back, quire_memory_base(memory), BYTES);
      quire_stream_wait(first.stream, quire_stream_record(second.stream));
      quire_stream_copy(first.stream, there, back, BYTES);
      struct quire_event end = quire_stream_record(first.stream);
      quire_event_sync(end);
      assert_true(quire_event_done(end));
      assert_memory_equal(there, first.host, BYTES);
    }
    quire_memory_destroy(memory);
    desk_close(&first);
    desk_close(&second);
  }
}

/* Every GPU's kernels read and write every other's memory at the same address. */
static void peers_are_reached_in_place(void **state) {
  (void)state;
  enum { BYTES = 1 << 20 };
  for (int a = 1; a < device_count; a++) {
    for (int b = 1; b < device_count; b++) {
      struct desk desk = desk_of(devices[a], QUIRE_STREAM_THREAD);
      struct quire_memory *memory = memory_of(devices[b], BYTES);
      struct quire_copy *list = (struct quire_copy *)(void *)(desk.host + 2 * BYTES);
      assert_true(quire_device_reaches(devices[a], devices[b]));
      assert_false(quire_device_reaches(devices[0], devices[b]));
      randomise(&desk.random, desk.host, BYTES);
      list[0] = (struct quire_copy){quire_memory_base(memory), desk.host, BYTES};
      list[1] = (struct quire_copy){desk.host + BYTES, quire_memory_base(memory), BYTES};
      quire_stream_copy_list(desk.stream, list, 1, BYTES, 0);
      quire_stream_copy_list(desk.stream, list + 1, 1, BYTES, 0);
      settle(&desk);
      assert_memory_equal(desk.host + BYTES, desk.host, BYTES);
      quire_memory_destroy(memory);
      desk_close(&desk);
    }
  }
}

/* What cannot travel, and what is no message. */
static void sharing_refuses(void **state) {
  (void)state;
  struct quire_error error = {0};
  struct quire_memory *memory = memory_of(devices[0], 4096), *received = NULL;
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  assert_int_equal(quire_memory_send(memory, ends[0], &error), QUIRE_ERR_UNSUPPORTED);
  uint8_t noise[96];
  for (int d = 0; d < device_count; d++) {
    randomise(&seed_of_run, noise, sizeof noise);
    assert_int_equal(write(ends[0], noise, sizeof noise), (ssize_t)sizeof noise);
    assert_int_equal(quire_memory_receive(devices[d], ends[1], &received, &error), QUIRE_ERR_PEER);
  }
  assert_int_equal(write(ends[0], noise, 40), 40);
  close(ends[0]);
  assert_int_equal(quire_memory_receive(devices[0], ends[1], &received, &error), QUIRE_ERR_PEER);
  assert_int_equal(quire_memory_receive(devices[0], ends[1], &received, &error), QUIRE_ERR_PEER);
  assert_null(received);
  close(ends[1]);
  quire_memory_destroy(memory);
}

int main(void) {
  seed_of_run = test_seed("test_device");
  test_limit(110);
  open_devices();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refusals),
      cmocka_unit_test(memory_is_poisoned_and_adopted_memory_left_alone),
      cmocka_unit_test(host_functions_run_in_order),
      cmocka_unit_test(copies_and_fills_match_the_oracle),
      cmocka_unit_test(digests_are_the_same_everywhere),
      cmocka_unit_test(digest_of_many_bytes),
      cmocka_unit_test(lists_of_copies_match_the_oracle),
      cmocka_unit_test(events_chain_devices),
      cmocka_unit_test(peers_are_reached_in_place),
      cmocka_unit_test(sharing_refuses),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  for (int d = 0; d < device_count; d++) {
    quire_device_close(devices[d]);
  }
  return failed;
}
