/* An engine over the executor "sim", and what its requests must answer: the token chain of each computed by itself.
 *
 * Everything that goes wrong fails the test. Threads: one. */
#ifndef QUIRE_TESTS_SIM_ENGINE_H
#define QUIRE_TESTS_SIM_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "step/sim/sim.h"

#define SIM_VOCAB 1000

struct sim_engine {
  struct quire_model_config model;
  struct quire_model_weights weights;
  struct quire_sim_config sim;
  struct quire_engine_config config;
  struct quire_engine *engine;
};

/* Fills the configuration: two ranks, shared pages, chunk 128, poison, verify. The caller changes what it wants and
 * opens. */
void sim_engine_defaults(struct sim_engine *s);
void sim_engine_open(struct sim_engine *s);
void sim_engine_close(struct sim_engine *s);

/* The tokens of an answer, drawn by the request alone: [new_max]; state runs over `tokens` first. */
void sim_answer(const int32_t *tokens, int32_t count, uint64_t seed, int32_t new_max, int32_t *out);
/* A prompt: the first `shared` tokens are those of a family, the others its own. */
void sim_prompt(uint64_t family, int32_t shared, uint64_t own, int32_t count, int32_t *out);

#endif
