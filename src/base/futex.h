/* Sleeping on a word of memory, for barriers, teams and ranks that are processes; everything else uses queue.h.
 *
 * A waiter first spins, but only while there is a core for every thread that the process has declared at work, and for
 * every thread that takes part: on a crowded machine a spinning thread takes the core from the one it waits for.
 * Words may lie in memory that processes share. Threads: any. Nothing fails. */
#ifndef QUIRE_BASE_FUTEX_H
#define QUIRE_BASE_FUTEX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns once *word differs from expected (acquire). parties: threads that take part, this one included. */
void quire_futex_wait(const uint32_t *word, uint32_t expected, int parties);
/* Returns when *word differs from expected, after timeout_ns, or sooner: the caller looks again. */
void quire_futex_wait_within(const uint32_t *word, uint32_t expected, uint64_t timeout_ns);
/* Wakes all who wait on word; call after changing it. */
void quire_futex_wake_all(const uint32_t *word);
/* Declares (count > 0) or takes back (< 0) threads that have a job now: an executor all threads of its ranks, teams
 * included, while they run a step. Whoever sleeps between jobs is not declared, or nobody else would ever spin. */
void quire_futex_declare(int count);
/* Threads that are declared now, by this process. */
int quire_futex_declared(void);

#ifdef __cplusplus
}
#endif
#endif
