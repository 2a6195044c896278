#include "bench/bench_shapes.h"

#include <string.h>

#include "layout/parts.h"

/* One row a model; where a field is 0 the models agree. */
static const struct facts {
  const char *name;
  int32_t hidden, vocab, layers, positions;
  int32_t heads, q_rank, nope, value;
  int32_t index_heads, index_topk;
  int32_t dense_layers, dense_width, experts, per_token, width, groups, groups_kept;
  int32_t indexer_every, indexer_offset; /* layer i owns one iff max(i - offset + 1, 0) mod every = 0 */
  float theta, factor;                   /* factor 0: no YaRN */
  float eps;
} facts[BENCH_MODELS] = {
    {"quire-mini", 256, 4096, 8, 16384, 4, 128, 128, 128, 8, 128, 1, 1024, 8, 3, 128, 4, 2, 1, 2, 1e4f, 4, 1e-6f},
    {"DeepSeek-V3.2", 7168, 129280, 61,   163840, 128, 1536, 128, 128,  64, 2048, 3,
     18432,           256,  8,      2048, 8,      4,   1,    2,   1e4f, 40, 1e-6f},
    {"GLM-5.2", 6144, 154880, 78,   1048576, 64, 2048, 192, 256,  32, 2048, 3,
     12288,     256,  8,      2048, 1,       1,  4,    3,   8e6f, 0,  1e-5f},
};

const char *bench_model_name(enum bench_model model) { return facts[model].name; }

void bench_model_config(enum bench_model model, struct quire_model_config *config_out) {
  const struct facts *f = &facts[model];
  struct quire_model_config c = {
      .hidden = f->hidden,
      .vocab = f->vocab,
      .layers = f->layers,
      .positions = f->positions,
      .heads = f->heads,
      .q_rank = f->q_rank,
      .kv_rank = QUIRE_LATENT_DIM,
      .nope_dim = f->nope,
      .rope_dim = QUIRE_ROPE_DIM,
      .qk_dim = f->nope + QUIRE_ROPE_DIM,
      .value_dim = f->value,
      .rope = {.theta = f->theta,
               .yarn = f->factor > 0,
               .factor = f->factor > 0 ? f->factor : 1,
               .original_positions = 4096,
               .beta_fast = 32,
               .beta_slow = 1,
               .attention_factor = 1},
      .rope_layout = QUIRE_ROPE_INTERLEAVED,
      .index_heads = f->index_heads,
      .index_dim = QUIRE_INDEX_DIM,
      .index_topk = f->index_topk,
      .index_rope_layout = model == BENCH_MODEL_GLM_52 ? QUIRE_ROPE_INTERLEAVED : QUIRE_ROPE_HALF,
      .dense_width = f->dense_width,
      .experts = f->experts,
      .experts_per_token = f->per_token,
      .expert_width = f->width,
      .shared_width = f->width,
      .groups = f->groups,
      .groups_kept = f->groups_kept,
      .normalise = true,
      .routed_scaling = 2.5f,
      .mtp_layers = 1,
      .norm_eps = f->eps,
      .index_norm_eps = 1e-6f,
      .bos = -1,
      .pad = -1,
  };
  c.softmax_scale = quire_softmax_scale(c.qk_dim, c.rope.yarn, c.rope.factor, 1);
  float root = f->index_heads == 64 ? 8.0f : f->index_heads == 32 ? 5.65685425f : 2.82842712f;
  c.index_weight_scale = 1.0f / (root * 11.3137085f);
  for (int32_t i = 0; i <= f->layers; i++) {
    int32_t step = i - f->indexer_offset + 1;
    c.owns_indexer[i] = i == f->layers || (step > 0 ? step : 0) % f->indexer_every == 0;
    c.moe[i] = i >= f->dense_layers;
  }
  *config_out = c;
}

int bench_model_shapes(enum bench_model model, struct bench_shape out[BENCH_SHAPES_MAX]) {
  const struct facts *f = &facts[model];
  const struct bench_shape all[] = {
      {"q_a", f->q_rank, f->hidden},         {"q_b", f->heads * (f->nope + QUIRE_ROPE_DIM), f->q_rank},
      {"kv_a", QUIRE_KV_DIM, f->hidden},     {"wq_b", f->index_heads * QUIRE_INDEX_DIM, f->q_rank},
      {"w_uk", QUIRE_LATENT_DIM, f->nope},   {"w_uv", f->value, QUIRE_LATENT_DIM},
      {"o", f->hidden, f->heads * f->value}, {"gate", f->width, f->hidden},
      {"down", f->hidden, f->width},
  };
  memcpy(out, all, sizeof all);
  return (int)(sizeof all / sizeof all[0]);
}
