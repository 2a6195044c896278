/* Memory of one process mapped by another: the child owns it, the parent reads, writes, and outlives the child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device/device.h"
#include "device/device_info.h"
#include "device/share.h"
#include "support/gpu.h"
#include "support/limit.h"
#include "support/seed.h"

enum { BYTES = (3 << 20) + 4096 };

static uint64_t seed_of_run;
static int link_to_child;

struct end {
  struct quire_device *device;
  struct quire_stream *stream;
  struct quire_memory *slab;
  uint8_t *host;
};

static bool open_end(struct end *end, int32_t index) {
  const struct quire_env *env = quire_env_default();
  return quire_device_open(env, QUIRE_DEVICE_CUDA, index, &end->device, NULL) == QUIRE_OK &&
         quire_device_stream(end->device, QUIRE_STREAM_THREAD, NULL, 0, &end->stream, NULL) == QUIRE_OK &&
         quire_device_host(end->device, BYTES, &end->slab, NULL) == QUIRE_OK &&
         (end->host = quire_memory_base(end->slab)) != NULL;
}

static void close_end(struct end *end) {
  quire_stream_destroy(end->stream);
  quire_memory_destroy(end->slab);
  quire_device_close(end->device);
}

static void copy_now(struct end *end, void *target, const void *source) {
  quire_stream_copy(end->stream, target, source, BYTES);
  quire_event_sync(quire_stream_record(end->stream));
}

static void fill_pattern(uint8_t *bytes, uint64_t seed) {
  for (size_t i = 0; i < BYTES; i++) {
    bytes[i] = (uint8_t)(quire_splitmix64(&seed) >> 17);
  }
}

static bool tell(int link) { return write(link, "x", 1) == 1; }

static bool hear(int link) {
  char byte;
  return read(link, &byte, 1) == 1;
}

/* The owner's side; the exit code says where it failed. */
static int child_main(int link) {
  struct end end;
  struct quire_memory *memory = NULL;
  uint8_t *want = malloc(BYTES);
  if (want == NULL || !open_end(&end, 0) || quire_device_memory(end.device, BYTES, &memory, NULL) != QUIRE_OK) {
    return 1;
  }
  fill_pattern(end.host, seed_of_run);
  copy_now(&end, quire_memory_base(memory), end.host);
  if (quire_memory_send(memory, link, NULL) != QUIRE_OK || !hear(link)) {
    return 2;
  }
  copy_now(&end, end.host, quire_memory_base(memory)); /* what the parent wrote */
  fill_pattern(want, seed_of_run + 1);
  int code = memcmp(end.host, want, BYTES) == 0 ? 0 : 3;
  quire_memory_destroy(memory); /* before the parent has done with it */
  close_end(&end);
  free(want);
  return tell(link) ? code : 4;
}

static void another_process_reads_and_writes_in_place(void **state) {
  (void)state;
  struct quire_cuda_info info;
  struct end end;
  struct quire_memory *memory = NULL;
  struct quire_error error = {0};
  assert_true(quire_cuda_describe(&info));
  assert_true(open_end(&end, info.devices > 1 ? 1 : 0));
  if (quire_memory_receive(end.device, link_to_child, &memory, &error) != QUIRE_OK) {
    fail_msg("%s", error.text);
  }
  assert_int_equal(quire_memory_bytes(memory), BYTES);
  uint8_t *want = malloc(BYTES);
  assert_non_null(want);
  fill_pattern(want, seed_of_run);
  copy_now(&end, end.host, quire_memory_base(memory));
  assert_memory_equal(end.host, want, BYTES);
  fill_pattern(end.host, seed_of_run + 1);
  copy_now(&end, quire_memory_base(memory), end.host);
  assert_true(tell(link_to_child) && hear(link_to_child));
  fill_pattern(want, seed_of_run + 1);
  memset(end.host, 0, BYTES);
  copy_now(&end, end.host, quire_memory_base(memory)); /* the owner has gone, the bytes have not */
  assert_memory_equal(end.host, want, BYTES);
  free(want);
  quire_memory_destroy(memory);
  close_end(&end);
}

int main(void) {
  int ends[2];
  seed_of_run = test_seed("test_share");
  test_limit(50);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
    return 1;
  }
  pid_t child = fork(); /* before the first call to the driver, which does not survive it */
  if (child == 0) {
    close(ends[0]);
    struct quire_cuda_info info;
    _exit(hear(ends[1]) && quire_cuda_describe(&info) ? child_main(ends[1]) : 0);
  }
  close(ends[1]);
  link_to_child = ends[0];
  test_needs_gpus(1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(another_process_reads_and_writes_in_place)};
  int failed = child < 0 || !tell(link_to_child) ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
  int status = 0;
  close(link_to_child);
  return failed != 0 || waitpid(child, &status, 0) != child || status != 0;
}
