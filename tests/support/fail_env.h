/* An environment for tests: counts allocations, refuses the n-th, notices leaks and wrong sizes, keeps the log, and has
 * a clock that the test may turn by hand.
 *
 *     struct fail_env fail;
 *     fail_env_init(&fail);
 *     ... quire_thing_create(&fail.env, ...) ...
 *     fail_env_fini(&fail);                       fails the test if a block is still live
 *
 * or, for a whole life cycle with every allocation refused once:
 *
 *     static enum quire_status body(void *context, const struct quire_env *env) {
 *       struct quire_thing *thing = NULL;
 *       enum quire_status status = quire_thing_create(env, &thing, NULL);
 *       if (status != QUIRE_OK) {
 *         return status;                          the object must have cleaned up behind itself
 *       }
 *       quire_thing_destroy(thing);
 *       return QUIRE_OK;
 *     }
 *     fail_env_sweep(body, NULL);
 *
 * New memory is filled with 0xA5 and freed memory with 0xDD. All functions behind env may be called from any thread. */
#ifndef QUIRE_TESTS_FAIL_ENV_H
#define QUIRE_TESTS_FAIL_ENV_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#define FAIL_ENV_NEVER UINT64_MAX
#define FAIL_ENV_BUCKETS 1024
#define FAIL_ENV_LOG_BYTES 8192

struct fail_env_block;

struct fail_env {
  struct quire_env env; /* what the code under test gets: &fail.env */

  /* the test may set these between calls */
  uint64_t fail_at;   /* refuse the allocation with this number (from 0, see allocations); FAIL_ENV_NEVER */
  uint64_t fail_from; /* refuse this one and all later ones */
  bool clock_by_hand; /* now_ns answers clock_ns instead of the real time */
  uint64_t clock_ns;
  uint64_t random_state; /* random() is splitmix64 from here */

  /* the test may read these while no other thread uses env */
  uint64_t allocations; /* asked for since init, the refused included */
  uint64_t refused;
  uint64_t live_blocks;
  uint64_t live_bytes;
  uint64_t peak_bytes;
  uint64_t log_lines[4];        /* by enum quire_log_level */
  char log[FAIL_ENV_LOG_BYTES]; /* what was logged, "warn: text\n"; cut at the end when full */
  size_t log_bytes;

  pthread_mutex_t lock;
  struct fail_env_block *blocks[FAIL_ENV_BUCKETS];
};

void fail_env_init(struct fail_env *fail);
/* Fails the test when blocks are live; it names the number and size of some. */
void fail_env_fini(struct fail_env *fail);
/* Fails the test when blocks are live; env stays usable. */
void fail_env_check_no_leak(struct fail_env *fail);

/* One life cycle of an object. Returns the first failing status; whatever it made is gone when it returns. */
typedef enum quire_status (*fail_env_body)(void *context, const struct quire_env *env);

/* Runs body once with nothing refused (it must return QUIRE_OK), then once for each allocation with that one refused
 * and once with it and all later ones refused: body must then return QUIRE_ERR_MEMORY, or QUIRE_OK where the object
 * can do without. After each run nothing may be live. Returns the number of allocations of the first run. */
uint64_t fail_env_sweep(fail_env_body body, void *context);

#endif
