// ctest: timeout=60
/* What goes wrong on a GPU, and what must not go wrong with it: an error that somebody else met before is nobody's
 * launch, a stream that has failed harms no other, creation that fails in the middle gives back what it took, a stream
 * with work under way ends it. And sizes beyond 32 bits. */
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/hash.h"
#include "device/device.h"
#include "support/fail_env.h"
#include "support/gpu.h"
#include "support/limit.h"

enum { BYTES = 1 << 16 };

static struct quire_device *device;

struct desk {
  struct quire_stream *stream;
  struct quire_memory *memory, *slab;
  uint8_t *base, *host;
};

static struct desk desk_of(size_t bytes) {
  struct desk desk;
  assert_int_equal(quire_device_stream(device, QUIRE_STREAM_THREAD, NULL, 0, &desk.stream, NULL), QUIRE_OK);
  assert_int_equal(quire_device_memory(device, bytes, &desk.memory, NULL), QUIRE_OK);
  assert_int_equal(quire_device_host(device, 2 * BYTES, &desk.slab, NULL), QUIRE_OK);
  desk.base = quire_memory_base(desk.memory);
  desk.host = quire_memory_base(desk.slab);
  return desk;
}

static void desk_close(struct desk *desk) {
  quire_stream_destroy(desk->stream);
  quire_memory_destroy(desk->memory);
  quire_memory_destroy(desk->slab);
}

/* A kernel, a copy and a host function: all that can be enqueued still works. */
static void expect_works(struct desk *desk, uint8_t value) {
  struct quire_error error = {0};
  struct quire_copy *list = (struct quire_copy *)(void *)(desk->host + BYTES);
  memset(desk->host, value, BYTES);
  list[0] = (struct quire_copy){desk->base, desk->host, BYTES};
  quire_stream_copy_list(desk->stream, list, 1, BYTES, 0);
  quire_event_sync(quire_stream_record(desk->stream));
  if (quire_stream_check(desk->stream, &error) != QUIRE_OK) {
    fail_msg("%s", error.text);
  }
  memset(desk->host, 0, BYTES);
  quire_stream_copy(desk->stream, desk->host, desk->base, BYTES);
  quire_event_sync(quire_stream_record(desk->stream));
  for (size_t i = 0; i < BYTES; i++) {
    assert_int_equal(desk->host[i], value);
  }
}

struct sleeper {
  atomic_int *done;
};

static void sleep_then_say(void *args, struct quire_team *team) {
  (void)team;
  struct timespec pause = {.tv_sec = 0, .tv_nsec = 30000000};
  (void)nanosleep(&pause, NULL);
  atomic_store(((struct sleeper *)args)->done, 1);
}

static void asking_for_an_event_is_no_error(void **state) {
  (void)state;
  struct desk busy = desk_of(BYTES), other = desk_of(BYTES);
  atomic_int done = 0;
  struct sleeper sleeper = {&done};
  quire_stream_launch(busy.stream, sleep_then_say, &sleeper, sizeof sleeper);
  struct quire_event event = quire_stream_record(busy.stream);
  assert_false(quire_event_done(event));
  expect_works(&other, 11);
  assert_int_equal(quire_stream_check(busy.stream, NULL), QUIRE_OK); /* while it is at work */
  expect_works(&other, 12);
  quire_event_sync(event);
  assert_int_equal(done, 1);
  desk_close(&busy);
  desk_close(&other);
}

static void errors_of_before_are_not_a_launchs(void **state) {
  (void)state;
  struct desk desk = desk_of(BYTES);
  void *nothing = NULL;
  assert_int_not_equal(cudaMalloc(&nothing, (size_t)1 << 50), cudaSuccess);
  quire_stream_copy_digest(desk.stream, desk.base, desk.host, 1000, (uint64_t *)(void *)(desk.base + 2048));
  expect_works(&desk, 21); /* whose own first call would clear it */
  assert_int_not_equal(cudaSetDevice(4711), cudaSuccess);
  expect_works(&desk, 22);
  desk_close(&desk);
}

static void a_failed_stream_harms_no_other(void **state) {
  (void)state;
  struct desk failed = desk_of(BYTES), other = desk_of(BYTES);
  struct quire_error error = {0};
  quire_stream_fail(failed.stream, (int)cudaErrorInvalidConfiguration);
  assert_null(quire_stream_native(failed.stream));
  assert_int_equal(quire_stream_check(failed.stream, &error), QUIRE_ERR_RANK);
  assert_true(strlen(error.text) > 8);
  struct quire_event event = quire_stream_record(failed.stream);
  quire_stream_wait(other.stream, event); /* counts as reached: nobody waits for ever */
  assert_true(quire_event_done(event));
  quire_event_sync(event);
  expect_works(&other, 31);
  desk_close(&failed);
  desk_close(&other);
}

static void a_stream_ends_its_work(void **state) {
  (void)state;
  struct desk desk = desk_of(BYTES);
  atomic_int done = 0;
  struct sleeper sleeper = {&done};
  memset(desk.host, 0, BYTES);
  quire_stream_launch(desk.stream, sleep_then_say, &sleeper, sizeof sleeper);
  quire_stream_fill(desk.stream, desk.base, 41, BYTES);
  quire_stream_copy(desk.stream, desk.host, desk.base, BYTES);
  quire_stream_destroy(desk.stream);
  assert_int_equal(done, 1);
  assert_int_equal(desk.host[BYTES - 1], 41);
  quire_memory_destroy(desk.memory);
  quire_memory_destroy(desk.slab);
}

/* -- creation ----------------------------------------------------------------------------------------------------- */

/* Opens, makes one of everything, destroys in the order of making. */
static enum quire_status one_life(void *context, const struct quire_env *env) {
  struct quire_device *own = NULL;
  struct quire_memory *memory = NULL, *slab = NULL, *adopted = NULL;
  struct quire_stream *stream = NULL;
  struct quire_error error = {0};
  (void)context;
  enum quire_status status = quire_device_open(env, QUIRE_DEVICE_CUDA, 0, &own, &error);
  if (status == QUIRE_OK) {
    status = quire_device_memory(own, BYTES, &memory, &error);
  }
  if (status == QUIRE_OK) {
    status = quire_device_host(own, BYTES, &slab, &error);
  }
  if (status == QUIRE_OK) {
    status = quire_device_adopt(own, quire_memory_base(memory), BYTES, &adopted, &error);
  }
  if (status == QUIRE_OK) {
    status = quire_device_stream(own, QUIRE_STREAM_THREAD, NULL, 0, &stream, &error);
  }
  assert_true(status == error.status && (status == QUIRE_OK) == (error.text[0] == '\0'));
  quire_stream_destroy(stream);
  quire_memory_destroy(adopted);
  quire_memory_destroy(slab);
  quire_memory_destroy(memory);
  quire_device_close(own);
  return status;
}

static void creation_gives_back_what_it_took(void **state) {
  (void)state;
  size_t before = 0, after = 0, total = 0;
  assert_true(fail_env_sweep(one_life, NULL) >= 6);
  assert_int_equal(cudaMemGetInfo(&before, &total), cudaSuccess);
  (void)fail_env_sweep(one_life, NULL);
  assert_int_equal(cudaMemGetInfo(&after, &total), cudaSuccess);
  if (getenv("QUIRE_TEST_SMALL") == NULL) { /* set where others use the device at the same time */
    assert_int_equal(before, after);
  }
}

static void sizes_that_cannot_be(void **state) {
  (void)state;
  const struct {
    size_t bytes;
    enum quire_status want;
  } cases[] = {{0, QUIRE_ERR_ARGUMENT},
               {SIZE_MAX, QUIRE_ERR_ARGUMENT},
               {SIZE_MAX / 2 + 1, QUIRE_ERR_ARGUMENT},
               {(size_t)1 << 50, QUIRE_ERR_MEMORY}};
  struct desk desk = desk_of(BYTES);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct quire_memory *memory = NULL;
    struct quire_error error = {0};
    assert_int_equal(quire_device_memory(device, cases[i].bytes, &memory, &error), cases[i].want);
    assert_int_equal(error.status, cases[i].want);
    assert_int_equal(quire_device_host(device, cases[i].bytes, &memory, &error), cases[i].want);
    assert_int_equal(error.status, cases[i].want);
    if (cases[i].want == QUIRE_ERR_ARGUMENT) {
      assert_int_equal(quire_device_adopt(device, desk.base, cases[i].bytes, &memory, &error), cases[i].want);
      assert_int_equal(error.status, cases[i].want);
    }
    assert_null(memory);
    expect_works(&desk, (uint8_t)(51 + i));
  }
  desk_close(&desk);
}

/* -- beyond 32 bits ----------------------------------------------------------------------------------------------- */

#define FAR ((size_t)4 << 30)

/* A digest of more than 4 GiB, a copy list whose places are as far apart, fills and copies of as many bytes. */
static void sizes_beyond_32_bits(void **state) {
  (void)state;
  enum { PATTERNS = 9, TAIL = 1234 };
  const size_t bytes = FAR + TAIL, step = bytes / PATTERNS;
  if (getenv("QUIRE_TEST_SMALL") != NULL) {
    skip();
  }
  struct desk from = desk_of(bytes), to = desk_of(bytes + 4096);
  uint8_t *want = malloc(bytes);
  assert_non_null(want);
  for (size_t i = 0; i < PATTERNS; i++) {
    size_t count = i + 1 < PATTERNS ? step : bytes - i * step;
    quire_stream_fill(from.stream, from.base + i * step, (int)(i * 29 + 3), count);
    memset(want + i * step, (int)(i * 29 + 3), count);
  }
  uint64_t *digest = (uint64_t *)(void *)(to.base + bytes / 4096 * 4096 + 2048);
  quire_stream_copy_digest(from.stream, to.base, from.base, bytes, digest);
  quire_stream_copy(from.stream, from.host, digest, 2 * sizeof *digest);
  quire_stream_copy(from.stream, from.host + 64, to.base + bytes - 64, 64);
  quire_event_sync(quire_stream_record(from.stream));
  struct quire_hash128 hash = quire_hash128(want, bytes, 0);
  uint64_t got[2];
  memcpy(got, from.host, sizeof got);
  assert_true(got[0] == hash.low && got[1] == hash.high);
  assert_memory_equal(from.host + 64, want + bytes - 64, 64);
  free(want);
  struct quire_copy *list = (struct quire_copy *)(void *)(from.host + BYTES);
  list[0] = (struct quire_copy){to.base + FAR - 8192, from.base + FAR - 4096, 4096 + 512};
  list[1] = (struct quire_copy){to.base, from.base + FAR, 512};
  quire_stream_fill(from.stream, to.base, 0, bytes);
  quire_stream_copy_list(from.stream, list, 2, 4096 + 512, 0);
  quire_stream_copy(from.stream, from.host, to.base + FAR - 8192, 4096 + 512);
  quire_stream_copy(from.stream, from.host + 8192, to.base, 512);
  quire_event_sync(quire_stream_record(from.stream));
  assert_int_equal(quire_stream_check(from.stream, NULL), QUIRE_OK);
  for (size_t i = 0; i < 4096 + 512; i++) {
    assert_int_equal(from.host[i], 8 * 29 + 3);
  }
  assert_int_equal(from.host[8192 + 511], 8 * 29 + 3);
  desk_close(&from);
  desk_close(&to);
}

int main(void) {
  test_needs_gpus(1);
  test_limit(50);
  if (quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, 0, &device, NULL) != QUIRE_OK) {
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(asking_for_an_event_is_no_error),
      cmocka_unit_test(errors_of_before_are_not_a_launchs),
      cmocka_unit_test(a_failed_stream_harms_no_other),
      cmocka_unit_test(a_stream_ends_its_work),
      cmocka_unit_test(creation_gives_back_what_it_took),
      cmocka_unit_test(sizes_that_cannot_be),
      cmocka_unit_test(sizes_beyond_32_bits),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  quire_device_close(device);
  return failed;
}
