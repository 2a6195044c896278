/* A barrier among a fixed number of threads that can be poisoned: when one of them fails, none waits for ever.
 *
 * All threads that take part in one meeting get the same answer from it: QUIRE_OK if all arrived before the abort,
 * QUIRE_ERR_ABORTED otherwise. After an abort every wait answers QUIRE_ERR_ABORTED at once, until quire_barrier_reset.
 * What a thread wrote before a meeting that answered QUIRE_OK is seen by all after it.
 *
 * Waiting threads sleep; they spin first only where cores are plenty (futex.h). Memory: one block of env. Threads:
 * wait by the parties, one call at a time each; abort by anyone; reset and destroy by one thread while no thread is
 * inside wait. */
#ifndef QUIRE_BASE_BARRIER_H
#define QUIRE_BASE_BARRIER_H

#include <stdbool.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_BARRIER_PARTIES_MAX 1024

struct quire_barrier;

/* parties 1 to QUIRE_BARRIER_PARTIES_MAX. */
enum quire_status quire_barrier_create(const struct quire_env *env, int parties, struct quire_barrier **barrier_out,
                                       struct quire_error *error_out);
void quire_barrier_destroy(struct quire_barrier *barrier);

/* Waits for all parties: QUIRE_OK or QUIRE_ERR_ABORTED. */
enum quire_status quire_barrier_wait(struct quire_barrier *barrier);
/* Poisons the barrier; idempotent. */
void quire_barrier_abort(struct quire_barrier *barrier);
bool quire_barrier_aborted(const struct quire_barrier *barrier);
/* As new. */
void quire_barrier_reset(struct quire_barrier *barrier);

#ifdef __cplusplus
}
#endif
#endif
