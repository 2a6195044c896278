/* config.json and generation_config.json from anywhere: what is accepted keeps the promises the forward pass builds on.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ignore_log(void *context, enum quire_log_level level, const char *line) {
  (void)context;
  (void)level;
  QUIRE_ASSERT(!strchr(line, '\n'));
}

static void check_eos(const int32_t *eos, int32_t count, int32_t vocab) {
  QUIRE_ASSERT(count >= 0 && count <= QUIRE_MODEL_EOS_MAX);
  for (int32_t i = 0; i < count; i++) {
    QUIRE_ASSERT(eos[i] >= 0 && eos[i] < vocab);
  }
}

static void check_config(const struct quire_model_config *c) {
  QUIRE_ASSERT(c->hidden > 0 && c->layers >= 1 && c->layers <= QUIRE_MODEL_LAYERS_MAX && c->heads >= 1);
  QUIRE_ASSERT(c->kv_rank == QUIRE_LATENT_DIM && c->rope_dim == QUIRE_ROPE_DIM && c->index_dim == QUIRE_INDEX_DIM);
  QUIRE_ASSERT(c->qk_dim == c->nope_dim + c->rope_dim && c->index_topk >= 1 && c->index_topk <= QUIRE_TOPK_MAX);
  QUIRE_ASSERT(c->experts <= QUIRE_EXPERTS_MAX && c->experts_per_token <= QUIRE_EXPERTS_PER_TOKEN_MAX);
  QUIRE_ASSERT(c->experts % c->groups == 0 && c->groups_kept <= c->groups);
  QUIRE_ASSERT(c->experts_per_token <= c->groups_kept * (c->experts / c->groups));
  QUIRE_ASSERT(c->softmax_scale > 0 && c->norm_eps > 0 && c->rope.theta > 0 && c->rope.factor >= 1);
  QUIRE_ASSERT(c->mtp_layers == 0 || c->mtp_layers == 1);
  QUIRE_ASSERT(c->moe[c->layers] && c->owns_indexer[0] && c->target_parameters > 0);
  QUIRE_ASSERT(c->bos < c->vocab && c->pad < c->vocab);
  check_eos(c->eos, c->eos_count, c->vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct quire_env env = *quire_env_default();
  struct quire_model_config config = {.vocab = 1000};
  struct quire_generation_config generation;
  struct quire_error error = {0};
  env.log = ignore_log;
  if (quire_model_config_parse((const char *)data, size, &config, &error) == QUIRE_OK) {
    check_config(&config);
  } else {
    QUIRE_ASSERT(error.status && error.text[0] && !strchr(error.text, '\n') && config.vocab == 1000);
  }
  if (quire_generation_config_parse(&env, (const char *)data, size, &config, &generation, &error) == QUIRE_OK) {
    QUIRE_ASSERT(generation.temperature >= 0 && generation.top_p > 0 && generation.top_p <= 1 &&
                 generation.top_k >= 0 && generation.min_p >= 0 && generation.min_p <= 1 &&
                 generation.repetition_penalty > 0);
    check_eos(generation.eos, generation.eos_count, config.vocab);
  }
  return 0;
}
