/* Sleeping on a word of memory, for barriers, teams and ranks that are processes; everything else uses queue.h.
 *
 * A waiter first spins, but only while there is a core for every thread that the process has declared at work, and for
 * every thread that takes part: on a crowded machine a spinning thread takes the core from the one it waits for. Who
 * goes to sleep counts itself beside the word before it looks a last time, and who changed the word looks at the count
 * after: so to wake those who spin takes no system call, which would cost more than the hand-over itself.
 * Words may lie in memory that processes share; a process that dies asleep stays counted, and costs calls that wake
 * nobody. Threads: any. Nothing fails. */
#ifndef QUIRE_BASE_FUTEX_H
#define QUIRE_BASE_FUTEX_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All zero is a futex that nobody waits on. The word is its users', by atomic operations. */
struct quire_futex {
  uint32_t word;
  uint32_t sleepers;
};

/* Returns once the word differs from expected (acquire). parties: threads that take part, this one included. */
void quire_futex_wait(struct quire_futex *futex, uint32_t expected, int parties);
/* Returns when the word differs from expected, after timeout_ns, or sooner: the caller looks again. */
void quire_futex_wait_within(struct quire_futex *futex, uint32_t expected, uint64_t timeout_ns);
/* Wakes all who sleep; call after changing the word. */
void quire_futex_wake_all(struct quire_futex *futex);
/* Whether a waiter among that many parties would spin now. */
bool quire_futex_may_spin(int parties);
/* Declares (count > 0) or takes back (< 0) threads that have a job now: an executor all threads of its ranks, teams
 * included, while they run a step. Whoever sleeps between jobs is not declared, or nobody else would ever spin. */
void quire_futex_declare(int count);
/* Threads that are declared now, by this process. */
int quire_futex_declared(void);

#ifdef __cplusplus
}
#endif
#endif
