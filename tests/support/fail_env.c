#include "support/fail_env.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Kept beside the blocks, not in front of them, so that a sanitizer still sees both ends of what the code asked for. */
struct fail_env_block {
  struct fail_env_block *next;
  void *memory;
  size_t size;
  uint64_t number;
};

static struct fail_env_block **bucket_of(struct fail_env *fail, const void *memory) {
  return &fail->blocks[((uintptr_t)memory >> 4) * 0x9E3779B97F4A7C15ull >> 54];
}

static bool is_refused(struct fail_env *fail, uint64_t number) {
  return number == fail->fail_at || number >= fail->fail_from;
}

static void *fail_alloc(void *context, size_t size, size_t align) {
  struct fail_env *fail = context;
  pthread_mutex_lock(&fail->lock);
  uint64_t number = fail->allocations++;
  bool refused = is_refused(fail, number);
  fail->refused += refused;
  pthread_mutex_unlock(&fail->lock);
  if (refused) {
    return NULL;
  }
  void *memory = NULL;
  struct fail_env_block *block = malloc(sizeof *block);
  bool sane = size > 0 && align >= sizeof(void *) && (align & (align - 1)) == 0;
  if (!sane || !block || posix_memalign(&memory, align, size) != 0) {
    fprintf(stderr, "fail_env: cannot allocate %zu bytes aligned to %zu\n", size, align);
    abort();
  }
  memset(memory, 0xA5, size);
  *block = (struct fail_env_block){.memory = memory, .size = size, .number = number};
  pthread_mutex_lock(&fail->lock);
  struct fail_env_block **bucket = bucket_of(fail, memory);
  block->next = *bucket;
  *bucket = block;
  fail->live_blocks++;
  fail->live_bytes += size;
  if (fail->live_bytes > fail->peak_bytes) {
    fail->peak_bytes = fail->live_bytes;
  }
  pthread_mutex_unlock(&fail->lock);
  return memory;
}

static void fail_dealloc(void *context, void *memory, size_t size) {
  struct fail_env *fail = context;
  if (!memory) {
    return;
  }
  pthread_mutex_lock(&fail->lock);
  struct fail_env_block **at = bucket_of(fail, memory);
  while (*at && (*at)->memory != memory) {
    at = &(*at)->next;
  }
  struct fail_env_block *block = *at;
  if (!block || block->size != size) {
    fprintf(stderr, "fail_env: dealloc of %p with size %zu; %s %zu\n", memory, size,
            block ? "it was allocated with size" : "it is not live, size", block ? block->size : 0);
    abort();
  }
  *at = block->next;
  fail->live_blocks--;
  fail->live_bytes -= size;
  pthread_mutex_unlock(&fail->lock);
  memset(memory, 0xDD, size);
  free(memory);
  free(block);
}

static uint64_t fail_now_ns(void *context) {
  struct fail_env *fail = context;
  if (fail->clock_by_hand) {
    return __atomic_load_n(&fail->clock_ns, __ATOMIC_RELAXED);
  }
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t fail_random(void *context) {
  struct fail_env *fail = context;
  uint64_t z = __atomic_add_fetch(&fail->random_state, 0x9E3779B97F4A7C15ull, __ATOMIC_RELAXED);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

static void fail_log(void *context, enum quire_log_level level, const char *line) {
  static const char *const names[] = {"error", "warn", "info", "debug"};
  struct fail_env *fail = context;
  pthread_mutex_lock(&fail->lock);
  fail->log_lines[level]++;
  size_t room = sizeof fail->log - fail->log_bytes;
  int wrote = snprintf(fail->log + fail->log_bytes, room, "%s: %s\n", names[level], line);
  if (wrote > 0) {
    fail->log_bytes += (size_t)wrote < room ? (size_t)wrote : room - 1;
  }
  pthread_mutex_unlock(&fail->lock);
}

void fail_env_init(struct fail_env *fail) {
  memset(fail, 0, sizeof *fail);
  fail->env = (struct quire_env){
      .context = fail,
      .alloc = fail_alloc,
      .dealloc = fail_dealloc,
      .now_ns = fail_now_ns,
      .random = fail_random,
      .log = fail_log,
  };
  fail->fail_at = FAIL_ENV_NEVER;
  fail->fail_from = FAIL_ENV_NEVER;
  pthread_mutex_init(&fail->lock, NULL);
}

void fail_env_check_no_leak(struct fail_env *fail) {
  if (fail->live_blocks == 0) {
    return;
  }
  int named = 0;
  for (int i = 0; i < FAIL_ENV_BUCKETS; i++) {
    for (struct fail_env_block *block = fail->blocks[i]; block && named < 8; block = block->next, named++) {
      print_error("leak: allocation %" PRIu64 ", %zu bytes\n", block->number, block->size);
    }
  }
  fail_msg("%" PRIu64 " blocks, %" PRIu64 " bytes are still live", fail->live_blocks, fail->live_bytes);
}

void fail_env_fini(struct fail_env *fail) {
  fail_env_check_no_leak(fail);
  pthread_mutex_destroy(&fail->lock);
}

static void sweep_once(struct fail_env *fail, fail_env_body body, void *context, uint64_t number) {
  enum quire_status status = body(context, &fail->env);
  if (status != QUIRE_OK && status != QUIRE_ERR_MEMORY) {
    fail_msg("allocation %" PRIu64 " refused: status %s", number, quire_status_name(status));
  }
  if (fail->live_blocks) {
    print_error("allocation %" PRIu64 " refused\n", number);
  }
  fail_env_check_no_leak(fail);
}

uint64_t fail_env_sweep(fail_env_body body, void *context) {
  struct fail_env fail;
  fail_env_init(&fail);
  assert_int_equal(body(context, &fail.env), QUIRE_OK);
  fail_env_check_no_leak(&fail);
  uint64_t count = fail.allocations;
  for (uint64_t i = 0; i < count; i++) {
    fail.allocations = 0;
    fail.fail_at = i;
    sweep_once(&fail, body, context, i);
    fail.allocations = 0;
    fail.fail_at = FAIL_ENV_NEVER;
    fail.fail_from = i;
    sweep_once(&fail, body, context, i);
    fail.fail_from = FAIL_ENV_NEVER;
  }
  fail_env_fini(&fail);
  return count;
}
