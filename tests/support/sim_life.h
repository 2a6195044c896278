/* A life of an engine over the executor "sim": requests of all kinds come, are cancelled, paused, stopped, late, held,
 * fail; every law is checked at every tick, every token against what the request alone would draw. All of it follows
 * from one seed.
 *
 * Everything that goes wrong fails the test, which names the seed. Threads: one. */
#ifndef QUIRE_TESTS_SIM_LIFE_H
#define QUIRE_TESTS_SIM_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "sched/sched.h"

struct sim_life_options {
  uint64_t seed;
  int32_t ticks;
  bool faults; /* rows that are not finite, commands that are late or fail */
  bool tight;  /* a pool of 1.1 times the largest request */
};

struct sim_life_result {
  struct quire_hash128 digest; /* of all events in order */
  int64_t requests, tokens, preempted, cancelled, failed, cached;
  uint32_t ways[QUIRE_SCHED_STATES]; /* bits of the states entered from each */
};

void sim_life_run(const struct sim_life_options *options, struct sim_life_result *result_out);

#endif
