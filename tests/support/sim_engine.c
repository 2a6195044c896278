#include "support/sim_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

void sim_engine_defaults(struct sim_engine *s) {
  struct quire_error error = {0};
  *s = (struct sim_engine){.sim = {.seed = 1, .verify = true}};
  quire_sim_model(SIM_VOCAB, 1 << 20, &s->model, &s->weights);
  s->config = (struct quire_engine_config){
      .options = quire_model_options_default(),
      .executor = "sim",
      .ranks = 2,
      .split = QUIRE_SPLIT_ZIGZAG,
      .sharing = QUIRE_SHARING_SHARED,
      .view = QUIRE_VIEW_PEER,
      .kv_format = QUIRE_KV_BF16,
      .chunk_tokens = 128,
      .ctx_tokens = 1024,
      .cache_tokens = 4096,
      .running_max = 16,
      .queue_max = 64,
      .threads_per_rank = 1,
      .poison = true,
  };
  if (quire_kernels_find("auto", &s->config.kernels, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
}

void sim_engine_open(struct sim_engine *s) {
  struct quire_error error = {0};
  s->config.model = &s->model;
  s->config.weights = &s->weights;
  s->config.sim = &s->sim;
  if (quire_engine_create(quire_env_default(), &s->config, &s->engine, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
}

void sim_engine_close(struct sim_engine *s) {
  quire_engine_destroy(s->engine);
  s->engine = NULL;
}

void sim_answer(const int32_t *tokens, int32_t count, uint64_t seed, int32_t new_max, int32_t *out) {
  uint64_t state = QUIRE_SIM_START;
  for (int32_t i = 0; i < count; i++) {
    state = quire_sim_state(state, tokens[i]);
  }
  for (int32_t i = 0; i < new_max; i++) {
    out[i] = quire_sim_token(state, seed, count + i, SIM_VOCAB);
    state = quire_sim_state(state, out[i]);
  }
}

void sim_prompt(uint64_t family, int32_t shared, uint64_t own, int32_t count, int32_t *out) {
  for (int32_t i = 0; i < count; i++) {
    out[i] = (int32_t)(quire_mix64((i < shared ? family << 32 : own << 20 | 1) + (uint64_t)i) % SIM_VOCAB);
  }
}
