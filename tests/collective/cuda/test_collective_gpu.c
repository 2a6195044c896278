// ctest: timeout=120
/* Collectives of GPUs: what streams write before an exchange is what the others' streams read after it, while no host
 * waits for a device; buffers are used again as the interface allows; and an abort ends all ranks alike. Rank r has GPU
 * r mod the number of GPUs; NCCL wants one each. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "collective/collective.h"
#include "device/device_info.h"
#include "support/gpu.h"
#include "support/limit.h"
#include "support/seed.h"

enum { RANKS = 2, OPS = 120, BLOCK_MAX = 40000, ABORT_AT = 37, REFUSED = 9 /* cudaErrorInvalidConfiguration */ };

static uint64_t seed_of_run;
static int32_t gpus;
static int32_t ops; /* of OPS: fewer under a sanitizer, which is slow */

struct group {
  const char *name;
  enum quire_stream_mode mode;
  bool aborts;
  bool fails; /* rank 1's stream does, in the middle of an operation */
  struct quire_collective *collective;
  struct quire_device *device[RANKS];
};

struct member {
  struct group *group;
  int32_t rank;
  int32_t faults, completed;
  struct quire_stream *stream;
  struct quire_memory *memory, *slab; /* two blocks on the device; staged and received bytes of every operation */
};

static uint64_t draw(int32_t rank, int32_t op) {
  return quire_mix64(seed_of_run + (uint64_t)rank * 1000003u + (uint64_t)op * 7919u);
}

static size_t bytes_of(int32_t rank, int32_t op) { return (size_t)(draw(rank, op) >> 13) % (BLOCK_MAX + 1); }

static uint8_t byte_of(int32_t rank, int32_t op, size_t i) { return (uint8_t)(draw(rank, op) + i * 31); }

static uint8_t *slab_of(struct member *member, int32_t op, int32_t which) {
  return (uint8_t *)quire_memory_base(member->slab) + ((size_t)op * (RANKS + 1) + (size_t)which) * BLOCK_MAX;
}

static enum quire_status run_op(struct member *member, int32_t op, int32_t *exchanges) {
  struct quire_collective *collective = member->group->collective;
  if (draw(-1, op) % 5 == 0) {
    return quire_collective_fence(collective, member->rank);
  }
  if (draw(-1, op) % 5 == 1) {
    int32_t max = -1;
    enum quire_status status = quire_collective_max_i32(collective, member->rank, member->rank * 3 + op, &max);
    member->faults += status == QUIRE_OK && max != (RANKS - 1) * 3 + op;
    return status;
  }
  uint8_t *mine = (uint8_t *)quire_memory_base(member->memory) + (size_t)(*exchanges % 2) * BLOCK_MAX;
  const struct quire_block *blocks = NULL;
  size_t bytes = bytes_of(member->rank, op);
  quire_stream_copy(member->stream, mine, slab_of(member, op, RANKS), bytes);
  enum quire_status status = quire_collective_exchange(collective, member->rank, mine, bytes, &blocks);
  for (int32_t r = 0; r < RANKS && status == QUIRE_OK; r++) {
    member->faults += blocks[r].bytes != bytes_of(r, op);
    quire_stream_copy(member->stream, slab_of(member, op, r), blocks[r].base, blocks[r].bytes);
  }
  *exchanges += status == QUIRE_OK;
  return status;
}

static void *rank_main(void *context) {
  struct member *member = context;
  struct group *group = member->group;
  int32_t exchanges = 0;
  quire_collective_attach(group->collective, member->rank, member->stream);
  for (int32_t op = 0; op < ops; op++) {
    if (group->aborts && op == ABORT_AT && member->rank == 1) {
      quire_collective_abort(group->collective, 1);
    }
    if (group->fails && op == ABORT_AT && member->rank == 1) {
      quire_stream_fail(member->stream, REFUSED);
    }
    enum quire_status status = run_op(member, op, &exchanges);
    if (status != QUIRE_OK) {
      member->faults += status != QUIRE_ERR_ABORTED || !(group->aborts || group->fails);
      break;
    }
    member->completed++;
  }
  if (!group->fails) { /* else only the end of the group ends what waits */
    quire_event_sync(quire_stream_record(member->stream));
  }
  return NULL;
}

static int32_t wrong_bytes(struct member *member) {
  int32_t wrong = 0;
  for (int32_t op = 0; op < member->completed; op++) {
    for (int32_t r = 0; r < RANKS && draw(-1, op) % 5 > 1; r++) {
      const uint8_t *got = slab_of(member, op, r);
      for (size_t i = 0; i < bytes_of(r, op); i++) {
        wrong += got[i] != byte_of(r, op, i);
      }
    }
  }
  return wrong;
}

static void open_member(struct group *group, struct member *member, int32_t rank) {
  *member = (struct member){.group = group, .rank = rank};
  struct quire_device *device = group->device[rank];
  assert_int_equal(quire_device_stream(device, group->mode, NULL, seed_of_run + (uint64_t)rank, &member->stream, NULL),
                   QUIRE_OK);
  assert_int_equal(quire_device_memory(device, 2 * BLOCK_MAX, &member->memory, NULL), QUIRE_OK);
  assert_int_equal(quire_device_host(device, (size_t)OPS * (RANKS + 1) * BLOCK_MAX, &member->slab, NULL), QUIRE_OK);
  for (int32_t op = 0; op < ops; op++) {
    uint8_t *staged = slab_of(member, op, RANKS);
    for (size_t i = 0; i < bytes_of(rank, op); i++) {
      staged[i] = byte_of(rank, op, i);
    }
  }
}

static void run_group(struct group *group) {
  struct member members[RANKS];
  struct quire_collective_config config = {.ranks = RANKS, .exchange_bytes_max = BLOCK_MAX};
  struct quire_error error = {0};
  pthread_t threads[RANKS];
  for (int32_t r = 0; r < RANKS; r++) {
    assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, r % gpus, &group->device[r], NULL),
                     QUIRE_OK);
    config.device[r] = group->device[r];
    open_member(group, &members[r], r);
  }
  if (quire_collective_create(quire_env_default(), group->name, &config, &group->collective, &error) != QUIRE_OK) {
    fail_msg("%s: %s", group->name, error.text);
  }
  assert_true(quire_collective_stream_ordered(group->collective));
  for (int32_t r = 0; r < RANKS; r++) {
    assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &members[r]), 0);
  }
  for (int32_t r = 0; r < RANKS; r++) {
    assert_int_equal(pthread_join(threads[r], NULL), 0);
  }
  for (int32_t r = 0; r < RANKS && group->fails; r++) {
    int32_t completed = members[r].completed;
    assert_int_equal(members[r].faults, 0);
    assert_true(completed == ABORT_AT || (r == 0 && completed == ABORT_AT + 1));
    assert_int_equal(quire_collective_reset(group->collective), QUIRE_ERR_STATE);
  }
  for (int32_t r = 0; r < RANKS && !group->fails; r++) {
    assert_int_equal(members[r].faults, 0);
    assert_int_equal(members[r].completed, group->aborts ? ABORT_AT : ops);
    assert_int_equal(wrong_bytes(&members[r]), 0);
    assert_int_equal(quire_stream_check(members[r].stream, NULL), QUIRE_OK);
  }
  quire_collective_destroy(group->collective);
  for (int32_t r = 0; r < RANKS; r++) {
    quire_stream_destroy(members[r].stream);
    quire_memory_destroy(members[r].memory);
    quire_memory_destroy(members[r].slab);
    quire_device_close(group->device[r]);
  }
}

static void peer_exchanges_in_stream_order(void **state) {
  (void)state;
  run_group(&(struct group){.name = "peer", .mode = QUIRE_STREAM_THREAD});
  run_group(&(struct group){.name = "peer", .mode = QUIRE_STREAM_DEFERRED});
}

static void peer_aborts_alike(void **state) {
  (void)state;
  run_group(&(struct group){.name = "peer", .mode = QUIRE_STREAM_DEFERRED, .aborts = true});
}

static void nccl_exchanges_in_stream_order(void **state) {
  (void)state;
  if (gpus < RANKS || getenv("QUIRE_TEST_SMALL") != NULL) {
    /* a sanitizer runs one kernel at a time, and NCCL's wait for each other */
    print_message("skipped: NCCL needs %d GPUs, and no sanitizer\n", RANKS);
    skip();
  }
  run_group(&(struct group){.name = "nccl", .mode = QUIRE_STREAM_THREAD});
  run_group(&(struct group){.name = "nccl", .mode = QUIRE_STREAM_DEFERRED});
  run_group(&(struct group){.name = "nccl", .mode = QUIRE_STREAM_THREAD, .aborts = true});
  run_group(&(struct group){.name = "nccl", .mode = QUIRE_STREAM_THREAD, .fails = true});
}

/* What cannot be is refused when the group is made. */
static void groups_that_cannot_be(void **state) {
  (void)state;
  struct quire_collective_config config = {.ranks = RANKS, .exchange_bytes_max = SIZE_MAX - 100};
  struct quire_collective *collective = NULL;
  struct quire_error error = {0};
  for (int32_t r = 0; r < RANKS; r++) {
    assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, r % gpus, &config.device[r], NULL),
                     QUIRE_OK);
  }
  assert_int_equal(quire_collective_create(quire_env_default(), "nccl", &config, &collective, &error),
                   QUIRE_ERR_ARGUMENT);
  quire_device_close(config.device[1]);
  assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CPU, 0, &config.device[1], NULL), QUIRE_OK);
  assert_int_equal(quire_collective_create(quire_env_default(), "peer", &config, &collective, &error),
                   QUIRE_ERR_UNSUPPORTED);
  assert_non_null(strstr(error.text, "choose"));
  assert_int_equal(quire_collective_create(quire_env_default(), "nccl", &config, &collective, &error),
                   QUIRE_ERR_UNSUPPORTED);
  assert_null(collective);
  for (int32_t r = 0; r < RANKS; r++) {
    quire_device_close(config.device[r]);
  }
}

int main(void) {
  struct quire_cuda_info info;
  test_needs_gpus(1);
  (void)quire_cuda_describe(&info);
  gpus = info.devices < RANKS ? info.devices : RANKS;
  ops = getenv("QUIRE_TEST_SMALL") != NULL ? ABORT_AT + 3 : OPS;
  seed_of_run = test_seed("test_collective_gpu");
  setenv("NCCL_NVLS_ENABLE", "0", 1); /* no multicast */
  test_limit(110);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(peer_exchanges_in_stream_order),
      cmocka_unit_test(peer_aborts_alike),
      cmocka_unit_test(nccl_exchanges_in_stream_order),
      cmocka_unit_test(groups_that_cannot_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
