/* One word tells a meeting's fate to all at once: bit 0 is the poison, the rest counts meetings. The last to arrive
 * tries to go from (n, clean) to (n + 1, clean) and the aborter from (n, clean) to (n, poisoned), both by compare and
 * swap, so exactly one of them decides and every party reads the same outcome. */
#include "base/barrier.h"

#include <stdint.h>

#include "base/assert.h"
#include "base/futex.h"

#define BARRIER_POISON 1u
#define BARRIER_MEETING 2u

struct quire_barrier {
  const struct quire_env *env;
  int parties;
  _Alignas(64) struct quire_futex meeting; /* its word tells */
  _Alignas(64) uint32_t arrived;           /* in the present meeting */
  uint32_t inside;                         /* threads within wait, for the rules of reset and destroy */
};

enum quire_status quire_barrier_create(const struct quire_env *env, int parties, struct quire_barrier **barrier_out,
                                       struct quire_error *error_out) {
  if (parties < 1 || parties > QUIRE_BARRIER_PARTIES_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "barrier", "parties must be 1 to %d, not %d",
                           QUIRE_BARRIER_PARTIES_MAX, parties);
  }
  struct quire_barrier *barrier = quire_env_zalloc(env, 1, sizeof *barrier);
  if (!barrier) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "barrier", "no memory for %zu bytes", sizeof *barrier);
  }
  barrier->env = env;
  barrier->parties = parties;
  *barrier_out = barrier;
  return QUIRE_OK;
}

void quire_barrier_destroy(struct quire_barrier *barrier) {
  if (!barrier) {
    return;
  }
  /* a party that was a process and died inside stays counted; the barrier is poisoned then */
  QUIRE_ASSERT(__atomic_load_n(&barrier->inside, __ATOMIC_ACQUIRE) == 0 || quire_barrier_aborted(barrier));
  quire_env_free(barrier->env, barrier, 1, sizeof *barrier);
}

static enum quire_status wait_inside(struct quire_barrier *barrier) {
  uint32_t mine = __atomic_load_n(&barrier->meeting.word, __ATOMIC_ACQUIRE);
  if (mine & BARRIER_POISON) {
    return QUIRE_ERR_ABORTED;
  }
  uint32_t arrived = __atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL);
  QUIRE_ASSERT(arrived <= (uint32_t)barrier->parties);
  if (arrived == (uint32_t)barrier->parties) {
    /* before the swap: whoever sees the next meeting must count from 0 */
    __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
    uint32_t expected = mine;
    if (!__atomic_compare_exchange_n(&barrier->meeting.word, &expected, mine + BARRIER_MEETING, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
      return QUIRE_ERR_ABORTED;
    }
    quire_futex_wake_all(&barrier->meeting);
    return QUIRE_OK;
  }
  quire_futex_wait(&barrier->meeting, mine, barrier->parties);
  uint32_t now = __atomic_load_n(&barrier->meeting.word, __ATOMIC_ACQUIRE);
  /* the count moved on: the meeting was complete, even if it was poisoned since */
  return (now & ~BARRIER_POISON) == mine ? QUIRE_ERR_ABORTED : QUIRE_OK;
}

enum quire_status quire_barrier_wait(struct quire_barrier *barrier) {
  __atomic_add_fetch(&barrier->inside, 1, __ATOMIC_ACQ_REL);
  enum quire_status status = wait_inside(barrier);
  __atomic_sub_fetch(&barrier->inside, 1, __ATOMIC_ACQ_REL);
  return status;
}

void quire_barrier_abort(struct quire_barrier *barrier) {
  __atomic_or_fetch(&barrier->meeting.word, BARRIER_POISON, __ATOMIC_ACQ_REL);
  quire_futex_wake_all(&barrier->meeting);
}

bool quire_barrier_aborted(const struct quire_barrier *barrier) {
  return __atomic_load_n(&barrier->meeting.word, __ATOMIC_ACQUIRE) & BARRIER_POISON;
}

void quire_barrier_reset(struct quire_barrier *barrier) {
  QUIRE_ASSERT(__atomic_load_n(&barrier->inside, __ATOMIC_ACQUIRE) == 0);
  __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
  __atomic_and_fetch(&barrier->meeting.word, ~BARRIER_POISON, __ATOMIC_RELEASE);
}
