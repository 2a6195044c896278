// fuzz: runs=150000
/* config.json and generation_config.json from anywhere: what is accepted keeps the promises the forward pass builds on,
 * and is the same with its keys in another order and its numbers written another way. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

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

static void check_generation(const struct quire_generation_config *g, int32_t vocab) {
  QUIRE_ASSERT(g->temperature >= 0 && g->top_p > 0 && g->top_p <= 1 && g->top_k >= 0 && g->min_p >= 0 &&
               g->min_p <= 1 && g->repetition_penalty > 0);
  check_eos(g->eos, g->eos_count, vocab);
}

static char *rewrite(const uint8_t *data, size_t size) {
  json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
  QUIRE_ASSERT(root);
  char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
  QUIRE_ASSERT(text);
  json_decref(root);
  return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct quire_env env = *quire_env_default();
  struct quire_model_config config, again;
  struct quire_generation_config generation, generation_again;
  struct quire_error error = {0};
  memset(&config, 0, sizeof config); /* padding too: what is read twice is compared as bytes */
  memset(&again, 0, sizeof again);
  memset(&generation, 0, sizeof generation);
  memset(&generation_again, 0, sizeof generation_again);
  config.vocab = 1000;
  env.log = ignore_log;
  if (quire_model_config_parse((const char *)data, size, &config, &error) == QUIRE_OK) {
    char *text = rewrite(data, size);
    check_config(&config);
    QUIRE_ASSERT(quire_model_config_parse(text, strlen(text), &again, NULL) == QUIRE_OK);
    QUIRE_ASSERT(memcmp(&config, &again, sizeof config) == 0);
    free(text);
  } else {
    QUIRE_ASSERT(error.status && error.text[0] && !strchr(error.text, '\n') && config.vocab == 1000);
  }
  if (quire_generation_config_parse(&env, (const char *)data, size, &config, &generation, &error) == QUIRE_OK) {
    char *text = rewrite(data, size);
    check_generation(&generation, config.vocab);
    QUIRE_ASSERT(quire_generation_config_parse(&env, text, strlen(text), &config, &generation_again, NULL) == QUIRE_OK);
    QUIRE_ASSERT(memcmp(&generation, &generation_again, sizeof generation) == 0);
    free(text);
  } else {
    QUIRE_ASSERT(error.status && error.text[0]);
  }
  return 0;
}
