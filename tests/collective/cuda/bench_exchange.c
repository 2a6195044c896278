/* What a small exchange among two GPUs costs: each rank offers a block, and copies the other's after the exchange, as a
 * view does with fresh rows. Peer (events, blocks in place) beside NCCL (a copy into a receive buffer, from which the
 * same copy is made). Time an exchange, hosts and devices together, over many in a row. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "collective/collective.h"
#include "support/gpu.h"
#include "support/gpu_bench.h"

enum { RANKS = 2, ROUNDS = 400, BLOCK_MAX = 1 << 20 };

struct group {
  struct quire_collective *collective;
  size_t bytes;
};

struct member {
  struct group *group;
  int32_t rank;
  struct quire_device *device;
  struct quire_stream *stream;
  struct quire_memory *memory; /* two blocks, and a place for the other's */
};

static void *exchange_all(void *context) {
  struct member *member = context;
  struct group *group = member->group;
  uint8_t *base = quire_memory_base(member->memory);
  for (int i = 0; i < ROUNDS; i++) {
    const struct quire_block *blocks = NULL;
    bench_check(quire_collective_exchange(group->collective, member->rank, base + (size_t)(i % 2) * BLOCK_MAX,
                                          group->bytes, &blocks) == QUIRE_OK,
                "an exchange");
    quire_stream_copy(member->stream, base + (size_t)2 * BLOCK_MAX, blocks[1 - member->rank].base, group->bytes);
  }
  quire_event_sync(quire_stream_record(member->stream));
  bench_check(quire_stream_check(member->stream, NULL) == QUIRE_OK, "a stream");
  return NULL;
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static double time_group(struct member members[RANKS]) {
  pthread_t threads[RANKS];
  double begin = now_us();
  for (int32_t r = 0; r < RANKS; r++) {
    bench_check(pthread_create(&threads[r], NULL, exchange_all, &members[r]) == 0, "a thread");
  }
  for (int32_t r = 0; r < RANKS; r++) {
    pthread_join(threads[r], NULL);
  }
  return (now_us() - begin) / ROUNDS;
}

static void bench_group(const char *name, struct member members[RANKS]) {
  static const size_t sizes[] = {1 << 10, 64 << 10, 1 << 20};
  struct group group = {NULL, 0};
  struct quire_collective_config config = {.ranks = RANKS, .exchange_bytes_max = BLOCK_MAX};
  struct quire_error error = {0};
  for (int32_t r = 0; r < RANKS; r++) {
    config.device[r] = members[r].device;
    members[r].group = &group;
  }
  if (quire_collective_create(quire_env_default(), name, &config, &group.collective, &error) != QUIRE_OK) {
    printf("%s is left out: %s\n", name, error.text);
    return;
  }
  for (int32_t r = 0; r < RANKS; r++) {
    quire_collective_attach(group.collective, r, members[r].stream);
  }
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    char what[64];
    group.bytes = sizes[i];
    (void)time_group(members); /* warms up */
    double best = time_group(members);
    for (int k = 0; k < 4; k++) {
      double us = time_group(members);
      best = us < best ? us : best;
    }
    (void)snprintf(what, sizeof what, "exchange by %s, %zu KiB a rank", name, sizes[i] >> 10);
    bench_line(what, best, "us", 0, 0);
  }
  quire_collective_destroy(group.collective);
}

int main(void) {
  static struct member members[RANKS];
  const struct quire_env *env = quire_env_default();
  test_needs_gpus(RANKS);
  setenv("NCCL_NVLS_ENABLE", "0", 1); /* no multicast */
  for (int32_t r = 0; r < RANKS; r++) {
    struct member *member = &members[r];
    member->rank = r;
    bench_check(quire_device_open(env, QUIRE_DEVICE_CUDA, r, &member->device, NULL) == QUIRE_OK &&
                    quire_device_stream(member->device, QUIRE_STREAM_THREAD, NULL, 0, &member->stream, NULL) ==
                        QUIRE_OK &&
                    quire_device_memory(member->device, (size_t)3 * BLOCK_MAX, &member->memory, NULL) == QUIRE_OK,
                "opening a GPU");
  }
  bench_group("peer", members);
  bench_group("nccl", members);
  return 0;
}
