/* Streams, events and memory of the CPU device: order, wake-ups, and that deferred mode makes a missing wait fail. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "device/device.h"
#include "device/device_info.h"
#include "device/peer.h"
#include "support/fail_env.h"
#include "support/limit.h"
#include "support/seed.h"

#define ROUNDS 60

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

static uint64_t seed_of_run = 1;

static struct quire_stream *stream_of(enum quire_stream_mode mode, uint64_t seed) {
  struct quire_stream *stream = NULL;
  assert_int_equal(quire_stream_create(quire_env_default(), mode, NULL, seed, &stream, NULL), QUIRE_OK);
  return stream;
}

static void sleep_ms(long ms) {
  struct timespec pause = {.tv_sec = 0, .tv_nsec = ms * 1000000};
  nanosleep(&pause, NULL);
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

static void memory_own_is_poisoned_and_aligned(void **state) {
  (void)state;
  size_t sizes[] = {1, 4095, 4096, 4097, (size_t)3 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    struct quire_memory *memory = NULL;
    assert_int_equal(quire_memory_create(quire_env_default(), sizes[i], &memory, NULL), QUIRE_OK);
    const unsigned char *base = quire_memory_base(memory);
    assert_int_equal((uintptr_t)base % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    assert_int_equal(quire_memory_bytes(memory), sizes[i]);
    for (size_t b = 0; b < sizes[i]; b++) {
      assert_int_equal(base[b], 0xFF);
    }
    quire_memory_destroy(memory);
  }
  quire_memory_destroy(NULL);
}

static void memory_adopted_is_left_alone(void **state) {
  (void)state;
  unsigned char bytes[100];
  memset(bytes, 7, sizeof bytes);
  struct quire_memory *memory = NULL;
  assert_int_equal(quire_memory_adopt(quire_env_default(), bytes, sizeof bytes, &memory, NULL), QUIRE_OK);
  assert_ptr_equal(quire_memory_base(memory), bytes);
  assert_int_equal(quire_memory_bytes(memory), sizeof bytes);
  quire_memory_destroy(memory);
  for (size_t i = 0; i < sizeof bytes; i++) {
    assert_int_equal(bytes[i], 7);
  }
}

static void memory_refusals(void **state) {
  (void)state;
  struct quire_memory *memory = NULL;
  struct quire_error error = {0};
  assert_int_equal(quire_memory_create(quire_env_default(), 0, &memory, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(error.status, QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_memory_create(quire_env_default(), SIZE_MAX, &memory, &error), QUIRE_ERR_MEMORY);
  assert_int_equal(quire_memory_create(quire_env_default(), SIZE_MAX / 2, &memory, &error), QUIRE_ERR_MEMORY);
  assert_int_equal(quire_memory_adopt(quire_env_default(), NULL, 10, &memory, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_memory_adopt(quire_env_default(), &error, 0, &memory, NULL), QUIRE_ERR_ARGUMENT);
  assert_null(memory);
}

static enum quire_status memory_life(void *context, const struct quire_env *env) {
  struct quire_memory *memory = NULL;
  struct quire_error error = {0};
  enum quire_status status = context == NULL ? quire_memory_create(env, 5000, &memory, &error)
                                             : quire_memory_adopt(env, context, 8, &memory, &error);
  assert_int_equal(error.status, status);
  assert_true((memory == NULL) == (status != QUIRE_OK));
  quire_memory_destroy(memory);
  return status;
}

static void memory_survives_refused_records(void **state) {
  (void)state;
  uint64_t bytes = 0;
  assert_int_equal(fail_env_sweep(memory_life, NULL), 2); /* the record, and the bytes */
  assert_int_equal(fail_env_sweep(memory_life, &bytes), 1);
}

/* -- streams ------------------------------------------------------------------------------------------------------ */

static enum quire_status stream_life(void *context, const struct quire_env *env) {
  struct fail_env *fail = env->context;
  struct quire_stream *stream = NULL;
  struct quire_error error = {0};
  enum quire_status status = quire_stream_create(env, *(enum quire_stream_mode *)context, NULL, 1, &stream, &error);
  assert_int_equal(error.status, status);
  if (status != QUIRE_OK) {
    assert_null(stream);
    return status;
  }
  uint64_t allocations = fail->allocations;
  unsigned char a = 1;
  unsigned char b = 2;
  for (int i = 0; i < QUIRE_STREAM_QUEUE_ITEMS / 16; i++) {
    quire_stream_copy(stream, &a, &b, 1);
  }
  quire_event_sync(quire_stream_record(stream));
  assert_int_equal(fail->allocations, allocations); /* nothing is allocated after creation */
  quire_stream_destroy(stream);
  return QUIRE_OK;
}

static void stream_creation_survives_refused_memory(void **state) {
  (void)state;
  for (int mode = QUIRE_STREAM_INLINE; mode <= QUIRE_STREAM_DEFERRED; mode++) {
    enum quire_stream_mode context = (enum quire_stream_mode)mode;
    (void)fail_env_sweep(stream_life, &context);
  }
  struct quire_stream *stream = NULL;
  assert_int_equal(quire_stream_create(quire_env_default(), (enum quire_stream_mode)9, NULL, 0, &stream, NULL),
                   QUIRE_ERR_ARGUMENT);
  quire_stream_destroy(NULL);
}

struct append_args {
  int *list;
  int *count;
  int value;
};

static void append(void *args, struct quire_team *team) {
  (void)team;
  struct append_args *a = args;
  a->list[(*a->count)++] = a->value;
}

static void stream_runs_in_order(enum quire_stream_mode mode, int items) {
  struct quire_stream *stream = stream_of(mode, seed_of_run);
  int *list = calloc((size_t)items, sizeof *list);
  int count = 0;
  for (int i = 0; i < items; i++) {
    struct append_args args = {.list = list, .count = &count, .value = i};
    quire_stream_launch(stream, append, &args, sizeof args);
    args.value = -1; /* the stream keeps its own copy */
  }
  struct quire_event event = quire_stream_record(stream);
  assert_int_equal(event.sequence, items);
  quire_event_sync(event);
  assert_true(quire_event_done(event));
  assert_int_equal(count, items);
  for (int i = 0; i < items; i++) {
    assert_int_equal(list[i], i);
  }
  quire_stream_destroy(stream);
  free(list);
}

/* More items than the queue holds: enqueueing has to wait and to be woken. */
static void order_inline(void **state) {
  (void)state;
  stream_runs_in_order(QUIRE_STREAM_INLINE, 5000);
}
static void order_thread(void **state) {
  (void)state;
  stream_runs_in_order(QUIRE_STREAM_THREAD, 20000);
}
static void order_deferred(void **state) {
  (void)state;
  stream_runs_in_order(QUIRE_STREAM_DEFERRED, 2 * QUIRE_STREAM_QUEUE_ITEMS + 17);
}

struct wide_args {
  unsigned char bytes[QUIRE_STREAM_ARGS_BYTES_MAX];
};
struct wide_out {
  uint64_t sum;
};
static struct wide_out wide_result;

static void wide(void *args, struct quire_team *team) {
  (void)team;
  const struct wide_args *a = args;
  for (size_t i = 0; i < sizeof a->bytes; i++) {
    wide_result.sum += a->bytes[i] * (i + 1);
  }
}

static void widest_arguments_and_none(void **state) {
  (void)state;
  for (int mode = QUIRE_STREAM_INLINE; mode <= QUIRE_STREAM_DEFERRED; mode++) {
    struct quire_stream *stream = stream_of((enum quire_stream_mode)mode, 3);
    struct wide_args args;
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof args.bytes; i++) {
      args.bytes[i] = (unsigned char)(i * 37);
      sum += args.bytes[i] * (i + 1);
    }
    wide_result.sum = 0;
    quire_stream_launch(stream, wide, &args, sizeof args);
    quire_stream_destroy(stream); /* waits for what was enqueued */
    assert_int_equal(wide_result.sum, sum);
  }
}

static void copies_match_the_oracle(void **state) {
  (void)state;
  enum { BYTES = 300000 };
  unsigned char *source = malloc(BYTES);
  unsigned char *target = malloc(BYTES);
  unsigned char *oracle = malloc(BYTES);
  uint64_t random = seed_of_run;
  for (int mode = QUIRE_STREAM_INLINE; mode <= QUIRE_STREAM_DEFERRED; mode++) {
    struct quire_stream *stream = stream_of((enum quire_stream_mode)mode, seed_of_run);
    for (int i = 0; i < BYTES; i++) {
      source[i] = (unsigned char)quire_splitmix64(&random);
    }
    memset(target, 0x11, BYTES);
    memset(oracle, 0x11, BYTES);
    uint64_t digest[ROUNDS][2];
    struct quire_hash128 expected[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
      size_t bytes = i % 7 == 0 ? 0 : (size_t)quire_splitmix64_below(&random, i % 3 == 0 ? BYTES : 300);
      size_t from = (size_t)quire_splitmix64_below(&random, BYTES - bytes + 1);
      size_t to = (size_t)quire_splitmix64_below(&random, BYTES - bytes + 1);
      expected[i] = quire_hash128(source + from, bytes, 0);
      if (i % 4 == 3) {
        quire_stream_fill(stream, target + to, i, bytes);
        memset(oracle + to, i, bytes);
      } else if (i % 2 == 0) {
        quire_stream_copy_digest(stream, target + to, source + from, bytes, digest[i]);
        memcpy(oracle + to, source + from, bytes);
      } else {
        quire_stream_copy(stream, target + to, source + from, bytes);
        memcpy(oracle + to, source + from, bytes);
      }
    }
    quire_event_sync(quire_stream_record(stream));
    assert_memory_equal(target, oracle, BYTES);
    for (int i = 0; i < ROUNDS; i += 2) {
      assert_true(digest[i][0] == expected[i].low && digest[i][1] == expected[i].high);
    }
    quire_stream_destroy(stream);
  }
  free(source);
  free(target);
  free(oracle);
}

/* -- deferred mode ------------------------------------------------------------------------------------------------ */

struct gate {
  atomic_int open;
  atomic_int entered;
};

static void wait_for_gate(void *args, struct quire_team *team) {
  (void)team;
  struct gate *gate = *(struct gate **)args;
  atomic_store(&gate->entered, 1);
  while (atomic_load(&gate->open) == 0) {
    sleep_ms(1);
  }
}

struct read_args {
  const unsigned char *from;
  unsigned char *to;
};

static void read_byte(void *args, struct quire_team *team) {
  (void)team;
  struct read_args *a = args;
  *a->to = *a->from;
}

/* The consumer that forgets to wait sees poison, at every seed; the one that waits sees the copy. */
static void deferred_missing_wait_is_seen(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct quire_stream *copies = stream_of(QUIRE_STREAM_DEFERRED, seed);
    struct quire_stream *other = stream_of(QUIRE_STREAM_THREAD, 0);
    struct gate gate = {0};
    struct gate *pointer = &gate;
    unsigned char source[64];
    unsigned char target[64];
    memset(source, 5, sizeof source);
    memset(target, 3, sizeof target);
    quire_stream_launch(other, wait_for_gate, &pointer, sizeof pointer);
    /* the copy hangs behind another stream, as gather's does behind the fence */
    quire_stream_copy(copies, target, source, sizeof target);
    struct quire_event first = quire_stream_record(copies);
    quire_event_sync(first);
    assert_int_equal(target[0], 5);
    quire_stream_wait(copies, quire_stream_record(other));
    quire_stream_copy(copies, target, source, sizeof target);
    struct quire_event second = quire_stream_record(copies);
    assert_false(quire_event_done(second));
    atomic_store(&gate.open, 1);
    quire_event_sync(second);
    for (size_t i = 0; i < sizeof target; i++) {
      assert_int_equal(target[i], 5);
    }
    quire_stream_destroy(copies);
    quire_stream_destroy(other);
  }
}

/* Copy into memory that nobody waits for: what the caller sees at once is poison or the copy, never the old bytes. */
static void deferred_hides_old_bytes(void **state) {
  (void)state;
#ifdef __SANITIZE_THREAD__
  skip(); /* reads without waiting, on purpose */
#endif
  int poison = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    struct quire_stream *stream = stream_of(QUIRE_STREAM_DEFERRED, seed_of_run + seed);
    unsigned char source = 5;
    volatile unsigned char target = 3;
    quire_stream_copy(stream, (void *)&target, &source, 1);
    quire_event_sync((struct quire_event){.stream = NULL});
    unsigned char seen = target;
    assert_int_not_equal(seen, 3);
    poison += seen == 0xFF;
    quire_stream_destroy(stream);
    assert_int_equal(target, 5);
  }
  assert_true(poison > 0); /* 40 copies, half of them delayed */
}

/* A reader enqueued before the copy must see the old bytes, however long it waits in the queue. */
static void deferred_spares_earlier_readers(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 30; seed++) {
    struct quire_stream *stream = stream_of(QUIRE_STREAM_DEFERRED, seed_of_run + seed);
    struct gate gate = {0};
    struct gate *pointer = &gate;
    unsigned char target[3] = {1, 2, 3};
    unsigned char source[3] = {4, 5, 6};
    unsigned char seen = 0;
    uint64_t digest[2] = {0, 0};
    quire_stream_launch(stream, wait_for_gate, &pointer, sizeof pointer);
    quire_stream_launch(stream, read_byte, &(struct read_args){.from = &target[1], .to = &seen},
                        sizeof(struct read_args));
    quire_stream_copy_digest(stream, target, source, sizeof target, digest);
    while (atomic_load(&gate.entered) == 0) {
      sleep_ms(1);
    }
    assert_int_equal(target[1], 2);
    assert_int_equal(digest[0], 0);
    atomic_store(&gate.open, 1);
    quire_stream_destroy(stream);
    assert_int_equal(seen, 2);
    assert_memory_equal(target, source, sizeof target);
  }
}

/* -- events ------------------------------------------------------------------------------------------------------- */

/* A token passed around streams: each hop waits for the one before, so a lost wake-up hangs (the alarm ends it) and a
 * wait that does not wait breaks the count. */
static void events_chain_streams(void **state) {
  (void)state;
  enum { STREAMS = 5, HOPS = 4000 };
  struct quire_stream *streams[STREAMS];
  for (int i = 0; i < STREAMS; i++) {
    streams[i] = stream_of(i == 0 ? QUIRE_STREAM_INLINE : QUIRE_STREAM_THREAD, 0);
  }
  int *list = calloc(HOPS, sizeof *list);
  int count = 0;
  uint64_t random = seed_of_run;
  struct quire_event last = {0};
  for (int i = 0; i < HOPS; i++) {
    struct quire_stream *stream =
        streams[quire_splitmix64_below(&random, i % 50 == 0 ? STREAMS : STREAMS - 1) + (i % 50 == 0 ? 0 : 1)];
    quire_stream_wait(stream, last);
    quire_stream_launch(stream, append, &(struct append_args){.list = list, .count = &count, .value = i},
                        sizeof(struct append_args));
    last = quire_stream_record(stream);
  }
  quire_event_sync(last);
  assert_int_equal(count, HOPS);
  for (int i = 0; i < HOPS; i++) {
    assert_int_equal(list[i], i);
  }
  for (int i = 0; i < STREAMS; i++) {
    quire_stream_destroy(streams[i]);
  }
  free(list);
}

struct waiter {
  struct quire_event event;
  const atomic_int *flag;
  int seen;
};

static void *waiter_main(void *context) {
  struct waiter *waiter = context;
  quire_event_sync(waiter->event);
  waiter->seen = atomic_load(waiter->flag);
  return NULL;
}

static void set_flag(void *args, struct quire_team *team) {
  (void)team;
  atomic_store(*(atomic_int **)args, 1);
}

/* Many foreign threads sleep on one event; all wake, none before its time; the stream may be destroyed right after. */
static void events_wake_every_thread(void **state) {
  (void)state;
  enum { WAITERS = 6 };
  for (int round = 0; round < 150; round++) {
    struct quire_stream *stream =
        stream_of(round % 2 == 0 ? QUIRE_STREAM_THREAD : QUIRE_STREAM_DEFERRED, (uint64_t)round);
    struct gate gate = {0};
    struct gate *pointer = &gate;
    atomic_int flag = 0;
    atomic_int *flag_pointer = &flag;
    quire_stream_launch(stream, wait_for_gate, &pointer, sizeof pointer);
    quire_stream_launch(stream, set_flag, &flag_pointer, sizeof flag_pointer);
    struct waiter waiters[WAITERS];
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
      waiters[i] = (struct waiter){.event = quire_stream_record(stream), .flag = &flag, .seen = -1};
      assert_int_equal(pthread_create(&threads[i], NULL, waiter_main, &waiters[i]), 0);
    }
    atomic_store(&gate.open, 1);
    for (int i = 0; i < WAITERS; i++) {
      assert_int_equal(pthread_join(threads[i], NULL), 0);
      assert_int_equal(waiters[i].seen, 1);
    }
    quire_stream_destroy(stream);
  }
}

static void team_member(void *context, int member, int threads) {
  atomic_fetch_add((atomic_int *)context, member + threads);
}

static void with_team(void *args, struct quire_team *team) { quire_team_run(team, team_member, *(atomic_int **)args); }

static void inline_streams_use_their_team(void **state) {
  (void)state;
  struct quire_team *team = NULL;
  assert_int_equal(quire_team_create(quire_env_default(), 3, &team, NULL), QUIRE_OK);
  struct quire_stream *stream = NULL;
  assert_int_equal(quire_stream_create(quire_env_default(), QUIRE_STREAM_INLINE, team, 0, &stream, NULL), QUIRE_OK);
  atomic_int sum = 0;
  atomic_int *pointer = &sum;
  quire_stream_launch(stream, with_team, &pointer, sizeof pointer);
  assert_int_equal(atomic_load(&sum), 0 + 1 + 2 + 3 * 3);
  quire_stream_destroy(stream);
  quire_team_destroy(team);
}

/* -- what the machine offers, peers -------------------------------------------------------------------------------- */

static void info_is_sane(void **state) {
  (void)state;
  struct quire_device_info info;
  memset(&info, 0x55, sizeof info);
  quire_device_describe(&info);
  assert_true(info.cores >= 1 && info.cores <= info.cores_online);
  assert_true(info.numa_nodes >= 1);
  assert_true(info.memory_bytes > 0 && info.available_bytes >= 0 && info.available_bytes <= info.memory_bytes);
  assert_int_equal(info.page_bytes, sysconf(_SC_PAGESIZE));
  assert_int_equal(info.cores, quire_device_cores());
  assert_true(strlen(info.name) < sizeof info.name && strlen(info.isa) < sizeof info.isa);
}

/* What ulimit -v takes away is not available: said to users, and asked before something large is reserved. */
static void address_space_counts(void **state) {
  (void)state;
  struct rlimit before, less;
  struct quire_device_info info;
  assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
  quire_device_describe(&info);
  less = before;
  less.rlim_cur = (rlim_t)info.memory_bytes / 2;
  if (setrlimit(RLIMIT_AS, &less) != 0) {
    skip();
  }
  quire_device_describe(&info);
  assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
  assert_int_equal(info.memory_bytes, less.rlim_cur);
  assert_true(info.available_bytes < info.memory_bytes);
}

static void peer_pages_and_epochs(void **state) {
  (void)state;
  uint8_t bytes[100];
  struct quire_peer_part part[2] = {{.base = bytes, .page_stride = 10, .pages = 3}, {0}};
  int64_t written[3] = {QUIRE_WRITTEN_NEVER, QUIRE_WRITTEN_NEVER, QUIRE_WRITTEN_NEVER};
  struct quire_peer peer = {.part = part, .written = written, .parts = 2, .pages = 3};
  assert_ptr_equal(quire_peer_page(&peer, 0, 0), bytes);
  assert_ptr_equal(quire_peer_page(&peer, 0, 2), bytes + 20);
  assert_null(quire_peer_page(&peer, 0, 3));
  assert_null(quire_peer_page(&peer, 0, -1));
  assert_null(quire_peer_page(&peer, 1, 0));
  assert_null(quire_peer_page(&peer, 2, 0));
  assert_null(quire_peer_page(&peer, -1, 0));

  int64_t *cell = &written[1];
  assert_false(quire_written_readable(cell, 5, 1)); /* never written */
  assert_true(quire_written_readable(cell, 5, 0));
  quire_written_mark(cell, 5, 36); /* a chunk begins in the middle of the page */
  assert_true(quire_written_readable(cell, 5, 36));
  assert_false(quire_written_readable(cell, 5, 37));
  assert_true(quire_written_readable(cell, 6, 64));
  assert_false(quire_written_readable(cell, 4, 1));
  quire_written_mark(cell, 5, 40);
  assert_false(quire_written_readable(cell, 5, 37)); /* the lowest row of the epoch stays */
  quire_written_mark(cell, 5, 2);
  assert_true(quire_written_readable(cell, 5, 2));
  assert_false(quire_written_readable(cell, 5, 3));
  quire_written_mark(cell, 6, 64);
  assert_true(quire_written_readable(cell, 6, 64));
  quire_written_mark(cell, 0, 0); /* loaded anew, before all steps */
  assert_true(quire_written_readable(cell, 1, 64));
  quire_written_mark(cell, QUIRE_WRITTEN_EPOCH_MAX, 65535);
  assert_true(quire_written_readable(cell, QUIRE_WRITTEN_EPOCH_MAX, 65535));
}

int main(void) {
  seed_of_run = test_seed("test_stream");
  test_limit(120);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_own_is_poisoned_and_aligned),
      cmocka_unit_test(memory_adopted_is_left_alone),
      cmocka_unit_test(memory_refusals),
      cmocka_unit_test(memory_survives_refused_records),
      cmocka_unit_test(stream_creation_survives_refused_memory),
      cmocka_unit_test(order_inline),
      cmocka_unit_test(order_thread),
      cmocka_unit_test(order_deferred),
      cmocka_unit_test(widest_arguments_and_none),
      cmocka_unit_test(copies_match_the_oracle),
      cmocka_unit_test(deferred_missing_wait_is_seen),
      cmocka_unit_test(deferred_hides_old_bytes),
      cmocka_unit_test(deferred_spares_earlier_readers),
      cmocka_unit_test(events_chain_streams),
      cmocka_unit_test(events_wake_every_thread),
      cmocka_unit_test(inline_streams_use_their_team),
      cmocka_unit_test(info_is_sane),
      cmocka_unit_test(address_space_counts),
      cmocka_unit_test(peer_pages_and_epochs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
