/* A GPU that fails for good, by a copy to an address that is none: everybody who waits goes on, everything says why,
 * nothing more is taken, and all of it can still be destroyed, a host function at work included. One case a process:
 * the device does not come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"
#include "support/gpu.h"
#include "support/limit.h"

enum { BYTES = 4096, SKIPPED = 77 };

static void sleep_then_say(void *args, struct quire_team *team) {
  (void)team;
  struct timespec pause = {.tv_sec = 0, .tv_nsec = 400000000};
  (void)nanosleep(&pause, NULL);
  atomic_store(*(atomic_int **)args, 2);
}

static void begin_then_sleep(void *args, struct quire_team *team) {
  atomic_store(*(atomic_int **)args, 1);
  sleep_then_say(args, team);
}

static void expect_failed(struct quire_stream *stream) {
  struct quire_error error = {0};
  assert_int_equal(quire_stream_check(stream, &error), QUIRE_ERR_RANK);
  assert_non_null(strstr(error.text, "a stream has failed: "));
  assert_null(quire_stream_native(stream));
}

static void a_dead_device_can_be_left(void **state) {
  (void)state;
  struct quire_device *device = NULL;
  struct quire_stream *failing = NULL, *busy = NULL, *late = NULL;
  struct quire_memory *memory = NULL, *slab = NULL, *more = NULL;
  struct quire_error error = {0};
  atomic_int done = 0, *told = &done;
  assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, 0, &device, NULL), QUIRE_OK);
  assert_int_equal(quire_device_stream(device, QUIRE_STREAM_THREAD, NULL, 0, &failing, NULL), QUIRE_OK);
  assert_int_equal(quire_device_stream(device, QUIRE_STREAM_THREAD, NULL, 0, &busy, NULL), QUIRE_OK);
  assert_int_equal(quire_device_memory(device, BYTES, &memory, NULL), QUIRE_OK);
  assert_int_equal(quire_device_host(device, BYTES, &slab, NULL), QUIRE_OK);
  quire_stream_launch(busy, begin_then_sleep, &told, sizeof told);
  while (atomic_load(&done) == 0) {
    usleep(1000);
  }
  struct quire_copy *list = quire_memory_base(slab);
  list[0] = (struct quire_copy){(void *)(uintptr_t)BYTES, quire_memory_base(memory), 1024};
  quire_stream_copy_list(failing, list, 1, 1024, 0);
  struct quire_event event = quire_stream_record(failing);
  quire_event_sync(event);
  assert_true(quire_event_done(event));
  expect_failed(failing);
  assert_int_equal(quire_stream_check(busy, NULL), QUIRE_ERR_RANK);
  for (int i = 0; i < 2 * QUIRE_STREAM_QUEUE_ITEMS; i++) { /* no queue fills up */
    quire_stream_launch(failing, sleep_then_say, &told, sizeof told);
    quire_stream_fill(failing, quire_memory_base(memory), 0, BYTES);
    quire_stream_wait(failing, quire_stream_record(busy));
  }
  assert_int_not_equal(quire_device_memory(device, BYTES, &more, &error), QUIRE_OK);
  assert_true(error.status != QUIRE_OK && more == NULL);
  assert_int_not_equal(quire_device_host(device, BYTES, &more, &error), QUIRE_OK);
  assert_int_not_equal(quire_device_stream(device, QUIRE_STREAM_THREAD, NULL, 0, &late, &error), QUIRE_OK);
  assert_true(late == NULL && more == NULL);
  quire_stream_destroy(busy);
  assert_int_equal(done, 2); /* the function at work has returned: its slot is gone */
  quire_stream_destroy(failing);
  quire_memory_destroy(slab);
  quire_memory_destroy(memory);
  quire_device_close(device);
}

int main(void) {
  test_needs_gpus(1);
  if (getenv("QUIRE_TEST_SMALL") != NULL) {
    printf("skipped: a sanitizer reports what is done here on purpose\n");
    return SKIPPED;
  }
  test_limit(50);
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_dead_device_can_be_left)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
