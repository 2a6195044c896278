#include "base/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"

/* About 20 microseconds: a kernel of the small model is over by then, a sleep and a wake cost as much. */
#define FUTEX_SPINS 1000

/* The only mutable variables of the library that belong to no object: how crowded this process is concerns all of it.
 */
static int declared_threads;
static int usable_cores;

static int cores(void) {
  int known = __atomic_load_n(&usable_cores, __ATOMIC_RELAXED);
  if (known == 0) {
    cpu_set_t set;
    known = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    __atomic_store_n(&usable_cores, known, __ATOMIC_RELAXED);
  }
  return known;
}

int quire_futex_declared(void) { return __atomic_load_n(&declared_threads, __ATOMIC_RELAXED); }

bool quire_futex_may_spin(int parties) {
  int declared = quire_futex_declared();
  return (declared > parties ? declared : parties) <= cores();
}

static uint32_t word_of(const struct quire_futex *futex) { return __atomic_load_n(&futex->word, __ATOMIC_ACQUIRE); }

/* Counted before the last look at the word, as wake_all looks at the count after the word was changed: both by
 * operations that read and write the count, so one of the two sees the other. EAGAIN and EINTR lead back to the
 * caller. */
static void sleep_while(struct quire_futex *futex, uint32_t expected, const struct timespec *timeout) {
  __atomic_add_fetch(&futex->sleepers, 1, __ATOMIC_ACQ_REL);
  if (word_of(futex) == expected) {
    syscall(SYS_futex, &futex->word, FUTEX_WAIT, expected, timeout, NULL, 0);
  }
  __atomic_sub_fetch(&futex->sleepers, 1, __ATOMIC_ACQ_REL);
}

void quire_futex_wait(struct quire_futex *futex, uint32_t expected, int parties) {
  int spins = quire_futex_may_spin(parties) ? FUTEX_SPINS : 0;
  for (int i = 0; i < spins; i++) {
    if (word_of(futex) != expected) {
      return;
    }
    __builtin_ia32_pause();
  }
  while (word_of(futex) == expected) {
    sleep_while(futex, expected, NULL);
  }
}

void quire_futex_wait_within(struct quire_futex *futex, uint32_t expected, uint64_t timeout_ns) {
  struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
  if (word_of(futex) == expected) {
    sleep_while(futex, expected, &timeout);
  }
}

void quire_futex_wake_all(struct quire_futex *futex) {
  if (__atomic_fetch_add(&futex->sleepers, 0, __ATOMIC_ACQ_REL) != 0) {
    syscall(SYS_futex, &futex->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
  }
}

void quire_futex_declare(int count) {
  int before = __atomic_fetch_add(&declared_threads, count, __ATOMIC_RELAXED);
  QUIRE_ASSERT(before + count >= 0);
}
