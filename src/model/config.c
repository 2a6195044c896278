/* config.json of both families. Read section by section; a section leaves its failure in the reader and the next one
 * does nothing then, so that the first fault in this order is the one reported.
 *
 * Keys whose absence would let an implementation's own default decide about the arithmetic (n_group, norm_topk_prob,
 * routed_scaling_factor, ...) are required, although transformers has defaults for them. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"

#define CONFIG_NAME "config.json"
#define GENERATION_NAME "generation_config.json"
#define PATH_BYTES 4096
#define DIM_MAX (1 << 20)
#define DIM_STEP 64 /* sums of products are cut into whole vectors of this many */

static const char *const known_keys[] = {"model_type",
                                         "hidden_size",
                                         "vocab_size",
                                         "num_hidden_layers",
                                         "max_position_embeddings",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "q_lora_rank",
                                         "kv_lora_rank",
                                         "qk_nope_head_dim",
                                         "qk_rope_head_dim",
                                         "qk_head_dim",
                                         "v_head_dim",
                                         "rope_interleave",
                                         "rope_theta",
                                         "rope_scaling",
                                         "rope_parameters",
                                         "index_n_heads",
                                         "index_head_dim",
                                         "index_topk",
                                         "indexer_rope_interleave",
                                         "index_topk_freq",
                                         "index_topk_pattern",
                                         "index_skip_topk_offset",
                                         "indexer_types",
                                         "layer_types",
                                         "index_share_for_mtp_iteration",
                                         "first_k_dense_replace",
                                         "mlp_layer_types",
                                         "moe_layer_freq",
                                         "intermediate_size",
                                         "moe_intermediate_size",
                                         "n_routed_experts",
                                         "n_shared_experts",
                                         "num_experts_per_tok",
                                         "n_group",
                                         "topk_group",
                                         "norm_topk_prob",
                                         "routed_scaling_factor",
                                         "scoring_func",
                                         "topk_method",
                                         "moe_router_dtype",
                                         "hidden_act",
                                         "attention_bias",
                                         "mlp_bias",
                                         "tie_word_embeddings",
                                         "rms_norm_eps",
                                         "num_nextn_predict_layers",
                                         "bos_token_id",
                                         "eos_token_id",
                                         "pad_token_id",
                                         "quantization_config",
                                         NULL};

/* No influence on inference. head_dim holds other numbers than its name says in some files and is never used. */
static const char *const ignored_keys[] = {"architectures",
                                           "auto_map",
                                           "torch_dtype",
                                           "dtype",
                                           "transformers_version",
                                           "initializer_range",
                                           "use_cache",
                                           "attention_dropout",
                                           "hidden_dropout",
                                           "head_dim",
                                           "ep_size",
                                           "pretraining_tp",
                                           "aux_loss_alpha",
                                           "seq_aux",
                                           "router_aux_loss_coef",
                                           "output_router_logits",
                                           "_name_or_path",
                                           "name_or_path",
                                           "_commit_hash",
                                           "return_dict",
                                           "return_dict_in_generate",
                                           "output_attentions",
                                           "output_hidden_states",
                                           "output_scores",
                                           "is_decoder",
                                           "is_encoder_decoder",
                                           "add_cross_attention",
                                           "cross_attention_hidden_size",
                                           "chunk_size_feed_forward",
                                           "id2label",
                                           "label2id",
                                           "problem_type",
                                           "finetuning_task",
                                           "task_specific_params",
                                           "tokenizer_class",
                                           "prefix",
                                           "use_bfloat16",
                                           "torchscript",
                                           "tf_legacy_loss",
                                           "pruned_heads",
                                           "sep_token_id",
                                           "decoder_start_token_id",
                                           "_attn_implementation",
                                           "_attn_implementation_autoset",
                                           "_experts_implementation",
                                           "unsloth_version",
                                           "unsloth_fixed",
                                           "model_name",
                                           NULL};

const char *quire_family_name(enum quire_family family) {
  return family == QUIRE_FAMILY_GLM_MOE_DSA ? "glm_moe_dsa" : "deepseek_v32";
}

float quire_model_latent_norm_eps(const struct quire_model_config *config) {
  QUIRE_ASSERT(config && config->norm_eps > 0);
  return config->norm_eps;
}

struct quire_model_options quire_model_options_default(void) {
  return (struct quire_model_options){
      .compute = QUIRE_DTYPE_BF16, .latent_norm_eps = 1e-6f, .hadamard = false, .scale_pow2 = true};
}

enum quire_status quire_model_options_check(const struct quire_model_options *options, struct quire_error *error_out) {
  QUIRE_ASSERT(options);
  if (options->compute != QUIRE_DTYPE_BF16 && options->compute != QUIRE_DTYPE_F32) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "compute", "must be bf16 or f32");
  }
  if (!(options->latent_norm_eps > 0 && options->latent_norm_eps <= 1e-2f)) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "latent-norm-eps", "must be above 0 and at most 0.01, not %g",
                           (double)options->latent_norm_eps);
  }
  return QUIRE_OK;
}

const char *quire_model_numerics(const struct quire_model_options *options, const char *device_family,
                                 char out[QUIRE_NUMERICS_BYTES]) {
  QUIRE_ASSERT(options && device_family && out && strlen(device_family) < 16);
  snprintf(out, QUIRE_NUMERICS_BYTES, "%s-%d-%s-leps%g-%s-%s", device_family, QUIRE_NUMERICS_REVISION,
           options->compute == QUIRE_DTYPE_F32 ? "f32" : "bf16", (double)options->latent_norm_eps,
           options->hadamard ? "had" : "nohad", options->scale_pow2 ? "pow2" : "anyscale");
  return out;
}

/* ---- questions with one answer ---- */

/* A number that this version takes in one value only. */
static int32_t only_int(struct quire_json_reader *r, const char *key, int64_t value, bool needed) {
  QUIRE_ASSERT(r != NULL && key != NULL);
  int64_t found =
      needed ? quire_json_need_int(r, key, INT32_MIN, INT32_MAX) : quire_json_int(r, key, INT32_MIN, INT32_MAX, value);
  if (!r->status && found != value) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, key, "%lld is not supported; only %lld is", (long long)found,
                    (long long)value);
  }
  return (int32_t)value;
}

static void only_string(struct quire_json_reader *r, const char *key, const char *value) {
  QUIRE_ASSERT(key != NULL && value != NULL);
  const char *found = quire_json_string(r, key, value);
  if (!r->status && strcmp(found, value) != 0) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, key, "\"%.64s\" is not supported; only \"%s\" is", found, value);
  }
}

static void only_bool(struct quire_json_reader *r, const char *key, bool value) {
  if (quire_json_bool(r, key, value) != value) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, key, "%s is not supported; only %s is", value ? "false" : "true",
                    value ? "true" : "false");
  }
}

/* A dimension that is summed over: a multiple of DIM_STEP. */
static int32_t dimension(struct quire_json_reader *r, const char *key) {
  int64_t found = quire_json_need_int(r, key, 1, DIM_MAX);
  QUIRE_ASSERT(r->status != QUIRE_OK || (found >= 1 && found <= DIM_MAX));
  if (!r->status && found % DIM_STEP != 0) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, key, "%lld is not supported; only multiples of %d are", (long long)found,
                    DIM_STEP);
  }
  return (int32_t)found;
}

/* ---- sections ---- */

static void read_family(struct quire_json_reader *r, struct quire_model_config *c) {
  const char *type = quire_json_need_string(r, "model_type");
  if (r->status) {
    return;
  }
  const bool glm = strcmp(type, "glm_moe_dsa") == 0;
  if (!glm && strcmp(type, "deepseek_v32") != 0) {
    quire_json_fail(
        r, QUIRE_ERR_UNSUPPORTED, "model_type",
        "\"%.64s\" is not a model with sparse attention that is known here; deepseek_v32 and glm_moe_dsa are", type);
  }
  c->family = glm ? QUIRE_FAMILY_GLM_MOE_DSA : QUIRE_FAMILY_DEEPSEEK_V32;
}

static void read_attention(struct quire_json_reader *r, struct quire_model_config *c) {
  c->hidden = dimension(r, "hidden_size");
  c->vocab = (int32_t)quire_json_need_int(r, "vocab_size", 1, 1 << 22);
  c->layers = (int32_t)quire_json_need_int(r, "num_hidden_layers", 1, QUIRE_MODEL_LAYERS_MAX);
  c->positions = (int32_t)quire_json_need_int(r, "max_position_embeddings", 1, 1 << 24);
  c->heads = (int32_t)quire_json_need_int(r, "num_attention_heads", 1, QUIRE_MODEL_HEADS_MAX);
  c->q_rank = dimension(r, "q_lora_rank");
  c->kv_rank = only_int(r, "kv_lora_rank", QUIRE_LATENT_DIM, true);
  c->nope_dim = dimension(r, "qk_nope_head_dim");
  c->rope_dim = only_int(r, "qk_rope_head_dim", QUIRE_ROPE_DIM, true);
  c->value_dim = dimension(r, "v_head_dim");
  c->qk_dim = c->nope_dim + c->rope_dim;
  QUIRE_ASSERT(r->status != QUIRE_OK || (c->heads > 0 && c->heads <= QUIRE_MODEL_HEADS_MAX));
  if (!r->status && quire_json_int(r, "qk_head_dim", 0, INT32_MAX, c->qk_dim) != c->qk_dim && !r->status) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "qk_head_dim",
                    "is not qk_nope_head_dim + qk_rope_head_dim = %d; correct one of the three", c->qk_dim);
  }
  if (!r->status && quire_json_int(r, "num_key_value_heads", 0, INT32_MAX, c->heads) != c->heads && !r->status) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "num_key_value_heads",
                    "must equal num_attention_heads (%d): the latent is shared, not the heads", c->heads);
  }
  only_bool(r, "attention_bias", false);
  only_bool(r, "tie_word_embeddings", false);
  c->norm_eps = (float)quire_json_need_number(r, "rms_norm_eps", 1e-12, 1e-2);
  c->index_norm_eps = 1e-6f;
  if (c->family == QUIRE_FAMILY_GLM_MOE_DSA) {
    only_bool(r, "rope_interleave", true);
  }
  c->rope_layout = quire_json_bool(r, "rope_interleave", true) ? QUIRE_ROPE_INTERLEAVED : QUIRE_ROPE_HALF;
}

/* YaRN's numbers, from rope_scaling or rope_parameters; returns mscale_all_dim. */
static float read_yarn(struct quire_json_reader *r, const struct quire_model_config *c,
                       struct quire_rope_config *rope) {
  QUIRE_ASSERT(c->positions > 0);
  rope->yarn = true;
  rope->factor = (float)quire_json_need_number(r, "factor", 1, 1e6);
  rope->original_positions = (int32_t)quire_json_need_int(r, "original_max_position_embeddings", 1, 1 << 24);
  rope->beta_fast = (float)quire_json_number(r, "beta_fast", 1e-3, 1e6, 32);
  rope->beta_slow = (float)quire_json_number(r, "beta_slow", 1e-3, 1e6, 1);
  only_bool(r, "truncate", true);
  const bool has_mscale = quire_json_get(r, "mscale"), has_all = quire_json_get(r, "mscale_all_dim");
  const double mscale = quire_json_number(r, "mscale", 0, 100, 1);
  const double all = quire_json_number(r, "mscale_all_dim", 0, 100, 0);
  if (r->status) {
    return 0;
  }
  if (has_mscale != has_all) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, has_mscale ? "mscale_all_dim" : "mscale",
                    "is missing while the other of mscale and mscale_all_dim is there, which engines read differently; "
                    "write both");
  }
  if ((double)rope->factor * rope->original_positions < c->positions) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "factor",
                    "times original_max_position_embeddings is less than max_position_embeddings (%d); correct one",
                    c->positions);
  }
  if (rope->beta_fast < rope->beta_slow) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "beta_fast", "is less than beta_slow; correct one of the two");
  }
  double factor = 1;
  if (mscale != all) { /* with equal ones the quotient is 1, whatever the logarithm */
    double log_factor = log((double)rope->factor);
    factor = (0.1 * mscale * log_factor + 1) / (0.1 * all * log_factor + 1);
  }
  rope->attention_factor = (float)quire_json_number(r, "attention_factor", 1e-3, 1e3, factor);
  return (float)all;
}

static void read_rope(struct quire_json_reader *r, struct quire_model_config *c) {
  static const char *const known[] = {
      "rope_theta", "rope_type", "type",   "factor",         "original_max_position_embeddings",
      "beta_fast",  "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
      "truncate",   NULL};
  const json_t *parameters = quire_json_object(r, "rope_parameters");
  const json_t *scaling = quire_json_object(r, "rope_scaling");
  double theta = quire_json_number(r, "rope_theta", 1, 1e12, 0);
  if (!r->status && parameters && scaling) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "rope_scaling", "says what rope_parameters says already; remove one");
  }
  if (r->status) {
    return;
  }
  struct quire_rope_config rope = {.factor = 1, .original_positions = c->positions, .attention_factor = 1};
  QUIRE_ASSERT(c->positions > 0 && c->qk_dim > 0);
  float mscale_all_dim = 0;
  if (parameters || scaling) {
    struct quire_json_reader inner =
        quire_json_reader(parameters ? parameters : scaling,
                          parameters ? CONFIG_NAME ": rope_parameters" : CONFIG_NAME ": rope_scaling", r->error);
    quire_json_refuse_unknown(&inner, known, NULL);
    const char *type = quire_json_string(&inner, "rope_type", quire_json_string(&inner, "type", "default"));
    const double inner_theta = quire_json_number(&inner, "rope_theta", 1, 1e12, theta);
    if (!inner.status && theta > 0 && inner_theta != theta) {
      quire_json_fail(&inner, QUIRE_ERR_CORRUPT, "rope_theta", "is not the rope_theta beside it; remove one");
    }
    theta = inner_theta;
    if (!inner.status && strcmp(type, "yarn") == 0) {
      mscale_all_dim = read_yarn(&inner, c, &rope);
    } else if (!inner.status && strcmp(type, "default") != 0) {
      quire_json_fail(&inner, QUIRE_ERR_UNSUPPORTED, "rope_type",
                      "\"%.64s\" is not supported; only \"default\" and \"yarn\" are", type);
    }
    r->status = inner.status;
  }
  if (!r->status && theta <= 0) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "rope_theta", "is missing; restore the file, or add the key");
  } else if (!r->status && (float)theta <= 1.0f) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "rope_theta", "is 1, so that all pairs would turn alike; restore the file");
  }
  if (r->status) {
    return;
  }
  rope.theta = (float)theta;
  c->rope = rope;
  c->softmax_scale = quire_softmax_scale(c->qk_dim, rope.yarn, rope.factor, mscale_all_dim);
}

/* What a list of kinds says of layer i: 'F' it owns an indexer, 'S' it shares one, 0 neither. */
static char index_kind(const json_t *list, size_t i) {
  QUIRE_ASSERT(list != NULL);
  const char *text = json_is_array(list) ? json_string_value(json_array_get(list, i)) : json_string_value(list) + i;
  if (!text) {
    return 0;
  }
  if (json_is_array(list)) {
    bool full = strcmp(text, "full") == 0 || strcmp(text, "F") == 0;
    return full ? 'F' : strcmp(text, "shared") == 0 || strcmp(text, "S") == 0 ? 'S' : 0;
  }
  return *text == 'F' || *text == 'S' ? *text : 0;
}

/* indexer_types or index_topk_pattern; answers whether the key is there. */
static bool read_index_list(struct quire_json_reader *r, const char *key, int32_t layers, bool *owns_out) {
  QUIRE_ASSERT(layers <= QUIRE_MODEL_LAYERS_MAX);
  const json_t *list = quire_json_get(r, key);
  if (r->status || !list) {
    return false;
  }
  if (!json_is_array(list) && !json_is_string(list)) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, key, "must be a list with an entry for each layer");
    return false;
  }
  size_t count = json_is_array(list) ? json_array_size(list) : json_string_length(list);
  if (count != (size_t)layers) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, key, "has %zu entries for %d layers; correct one", count, layers);
    return false;
  }
  for (int32_t i = 0; i < layers; i++) {
    char kind = index_kind(list, (size_t)i);
    if (kind == 0) {
      quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, key, "entry %d is neither \"full\" nor \"shared\"", i);
      return false;
    }
    owns_out[i] = kind == 'F';
  }
  return true;
}

/* Every freq-th layer from the offset on owns an indexer, and all below the offset; answers whether freq is there. */
static bool read_index_schedule(struct quire_json_reader *r, int32_t layers, bool *owns_out) {
  QUIRE_ASSERT(layers <= QUIRE_MODEL_LAYERS_MAX);
  int64_t freq = quire_json_int(r, "index_topk_freq", 0, INT32_MAX, 1);
  int64_t offset = quire_json_int(r, "index_skip_topk_offset", 0, INT32_MAX, 2);
  for (int32_t i = 0; i < layers; i++) {
    int64_t above = i - offset + 1;
    owns_out[i] = (above > 0 ? above : 0) % (freq > 1 ? freq : 1) == 0;
  }
  return !r->status && quire_json_get(r, "index_topk_freq");
}

/* Which layers own an indexer: indexer_types, else index_topk_pattern, else the schedule. What is there besides must
 * agree, since engines do not read the same one. */
static void read_index_layers(struct quire_json_reader *r, struct quire_model_config *c) {
  QUIRE_ASSERT(c->layers <= QUIRE_MODEL_LAYERS_MAX);
  static const char *const keys[] = {"indexer_types", "index_topk_pattern", "index_topk_freq"};
  bool owns[3][QUIRE_MODEL_LAYERS_MAX], there[3];
  there[0] = read_index_list(r, keys[0], c->layers, owns[0]);
  there[1] = read_index_list(r, keys[1], c->layers, owns[1]);
  there[2] = read_index_schedule(r, c->layers, owns[2]);
  const int from = there[0] ? 0 : there[1] ? 1 : 2;
  for (int32_t i = 0; i < c->layers && !r->status; i++) {
    c->owns_indexer[i] = owns[from][i];
    for (int other = from + 1; other < 3; other++) {
      if (there[other] && owns[other][i] != owns[from][i]) {
        quire_json_fail(r, QUIRE_ERR_CORRUPT, keys[other], "contradicts %s at layer %d; correct one", keys[from], i);
      }
    }
  }
  if (!r->status && !c->owns_indexer[0]) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, keys[from], "has layer 0 share the list of a layer below it; there is none");
  }
  c->owns_indexer[c->layers] = true; /* the draft layer always does */
}

/* The class of layers' cache, as newer files say it. */
static void check_layer_classes(struct quire_json_reader *r) {
  QUIRE_ASSERT(r != NULL);
  const json_t *classes = quire_json_array(r, "layer_types");
  for (size_t i = 0; i < json_array_size(classes); i++) {
    const char *name = json_string_value(json_array_get(classes, i));
    if (!name || (strcmp(name, "indexed_attention") != 0 && strcmp(name, "deepseek_sparse_attention") != 0)) {
      quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "layer_types",
                      "entry %zu is not supported; only \"indexed_attention\" is", i);
    }
  }
}

/* deepseek_v32: every layer owns an indexer. */
static void refuse_shared_index(struct quire_json_reader *r, struct quire_model_config *c) {
  QUIRE_ASSERT(r->status != QUIRE_OK || (c->layers > 0 && c->layers <= QUIRE_MODEL_LAYERS_MAX));
  only_int(r, "index_topk_freq", 1, false);
  only_bool(r, "index_share_for_mtp_iteration", false);
  if (!r->status && quire_json_get(r, "index_topk_pattern")) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "index_topk_pattern",
                    "layers that share an indexer belong to glm_moe_dsa; only null is supported");
  }
  const json_t *kinds = quire_json_array(r, "indexer_types");
  for (size_t i = 0; i < json_array_size(kinds); i++) {
    const char *kind = json_string_value(json_array_get(kinds, i));
    if (!kind || strcmp(kind, "full") != 0) {
      quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "indexer_types",
                      "layers that share an indexer belong to glm_moe_dsa; only \"full\" is supported");
    }
  }
  for (int32_t i = 0; i <= c->layers && !r->status; i++) {
    c->owns_indexer[i] = true;
  }
}

static void read_indexer(struct quire_json_reader *r, struct quire_model_config *c) {
  const bool glm = c->family == QUIRE_FAMILY_GLM_MOE_DSA;
  c->index_heads = (int32_t)quire_json_need_int(r, "index_n_heads", 1, 128);
  c->index_dim = only_int(r, "index_head_dim", QUIRE_INDEX_DIM, true);
  c->index_topk = (int32_t)quire_json_need_int(r, "index_topk", 1, INT32_MAX);
  if (!r->status && (c->index_topk > QUIRE_TOPK_MAX || c->index_topk % DIM_STEP != 0)) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "index_topk", "%d is not supported; only multiples of %d up to %d are",
                    c->index_topk, DIM_STEP, QUIRE_TOPK_MAX);
  }
  if (glm) { /* where the key is absent engines differ; the model was trained with pairs */
    only_bool(r, "indexer_rope_interleave", true);
  }
  c->index_rope_layout = quire_json_bool(r, "indexer_rope_interleave", glm) ? QUIRE_ROPE_INTERLEAVED : QUIRE_ROPE_HALF;
  c->index_weight_scale = (float)(1.0 / sqrt((double)c->index_heads * QUIRE_INDEX_DIM));
  QUIRE_ASSERT(r->status != QUIRE_OK || c->index_heads > 0);
  check_layer_classes(r);
  if (glm && !r->status) {
    read_index_layers(r, c);
    c->drafts_share_list = quire_json_bool(r, "index_share_for_mtp_iteration", false);
  } else {
    refuse_shared_index(r, c);
  }
}

/* Which layers are mixtures: the first first_k_dense_replace are not; mlp_layer_types says it layer by layer. */
static void read_layer_types(struct quire_json_reader *r, struct quire_model_config *c) {
  QUIRE_ASSERT(r->status != QUIRE_OK || (c->layers > 0 && c->layers <= QUIRE_MODEL_LAYERS_MAX));
  const json_t *kinds = quire_json_array(r, "mlp_layer_types");
  int64_t dense = kinds ? quire_json_int(r, "first_k_dense_replace", 0, c->layers, -1)
                        : quire_json_need_int(r, "first_k_dense_replace", 0, c->layers);
  only_int(r, "moe_layer_freq", 1, false);
  if (!r->status && kinds && json_array_size(kinds) != (size_t)c->layers) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "mlp_layer_types", "has %zu entries for %d layers; correct one",
                    json_array_size(kinds), c->layers);
  }
  for (int32_t i = 0; i < c->layers && !r->status; i++) {
    const char *kind = json_string_value(json_array_get(kinds, (size_t)i));
    c->moe[i] = kinds ? kind && strcmp(kind, "sparse") == 0 : i >= dense;
    if (kinds && (!kind || (!c->moe[i] && strcmp(kind, "dense") != 0))) {
      quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "mlp_layer_types", "entry %d is neither \"dense\" nor \"sparse\"", i);
    } else if (dense >= 0 && c->moe[i] != (i >= dense)) {
      quire_json_fail(r, QUIRE_ERR_CORRUPT, "mlp_layer_types",
                      "entry %d contradicts first_k_dense_replace; correct one", i);
    }
  }
  if (!r->status) {
    c->moe[c->layers] = true; /* the draft layer always is */
  }
}

static void read_experts(struct quire_json_reader *r, struct quire_model_config *c) {
  c->dense_width = dimension(r, "intermediate_size");
  c->expert_width = dimension(r, "moe_intermediate_size");
  c->experts = (int32_t)quire_json_need_int(r, "n_routed_experts", 1, QUIRE_EXPERTS_MAX);
  c->experts_per_token = (int32_t)quire_json_need_int(r, "num_experts_per_tok", 1, QUIRE_EXPERTS_PER_TOKEN_MAX);
  int64_t shared = quire_json_need_int(r, "n_shared_experts", 0, 64);
  c->shared_width = (int32_t)(shared * c->expert_width);
  c->groups = (int32_t)quire_json_need_int(r, "n_group", 1, QUIRE_EXPERTS_MAX);
  c->groups_kept = (int32_t)quire_json_need_int(r, "topk_group", 1, QUIRE_EXPERTS_MAX);
  c->normalise = quire_json_need_bool(r, "norm_topk_prob");
  c->routed_scaling = (float)quire_json_need_number(r, "routed_scaling_factor", 1e-6, 1e6);
  only_string(r, "scoring_func", "sigmoid");
  only_string(r, "topk_method", "noaux_tc");
  only_string(r, "moe_router_dtype", "float32");
  only_string(r, "hidden_act", "silu");
  only_bool(r, "mlp_bias", false);
  if (r->status) {
    return;
  }
  if (c->experts % c->groups != 0) {
    QUIRE_ASSERT(c->groups > 0);
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "n_group", "%d does not divide n_routed_experts (%d); correct one", c->groups,
                    c->experts);
  } else if (c->groups > 1 && c->experts / c->groups < 2) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "n_group", "%d leaves groups of one expert; a group is judged by two",
                    c->groups);
  } else if (c->groups_kept > c->groups) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "topk_group", "%d is more than n_group (%d); correct one", c->groups_kept,
                    c->groups);
  } else if (c->experts_per_token > c->groups_kept * (c->experts / c->groups)) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, "num_experts_per_tok",
                    "%d is more than the experts of the groups kept (%d); correct one", c->experts_per_token,
                    c->groups_kept * (c->experts / c->groups));
  }
}

/* eos_token_id: a number, or a list of numbers. */
static void read_eos(struct quire_json_reader *r, int32_t vocab, int32_t *eos, int32_t *count_out) {
  QUIRE_ASSERT(eos != NULL && count_out != NULL);
  const json_t *value = quire_json_get(r, "eos_token_id");
  size_t count = json_is_array(value) ? json_array_size(value) : value ? 1 : 0;
  if (count > QUIRE_MODEL_EOS_MAX) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "eos_token_id", "has %zu ids; at most %d are supported", count,
                    QUIRE_MODEL_EOS_MAX);
  }
  for (size_t i = 0; i < count && !r->status; i++) {
    const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab) {
      char shown[QUIRE_JSON_SHOW_BYTES];
      quire_json_fail(r, QUIRE_ERR_CORRUPT, "eos_token_id", "%s is not an id below vocab_size (%d); correct it",
                      quire_json_show(id, shown, sizeof shown), vocab);
      return;
    }
    eos[i] = (int32_t)json_integer_value(id);
  }
  if (!r->status) {
    *count_out = (int32_t)count;
  }
}

static void read_tokens(struct quire_json_reader *r, struct quire_model_config *c) {
  QUIRE_ASSERT(r->status != QUIRE_OK || c->vocab > 0);
  c->bos = (int32_t)quire_json_int(r, "bos_token_id", 0, c->vocab - 1, -1);
  c->pad = (int32_t)quire_json_int(r, "pad_token_id", -1, c->vocab - 1, -1);
  read_eos(r, c->vocab, c->eos, &c->eos_count);
  c->mtp_layers = (int32_t)quire_json_int(r, "num_nextn_predict_layers", 0, 64, 0);
  if (!r->status && c->mtp_layers > 1) {
    quire_json_fail(r, QUIRE_ERR_UNSUPPORTED, "num_nextn_predict_layers", "%d is not supported; only 0 and 1 are",
                    c->mtp_layers);
  }
}

/* Says only how the file was made: whether a matrix is fp8 is decided by its scales. But blocks of another size or
 * another kind of numbers would be another arithmetic. */
static void read_quantisation(struct quire_json_reader *r) {
  QUIRE_ASSERT(r != NULL);
  static const char *const known[] = {"quant_method",      "fmt",       "activation_scheme",
                                      "weight_block_size", "scale_fmt", NULL};
  static const char *const ignored[] = {"modules_to_not_convert", "ignored_layers", "ignore", NULL};
  const json_t *object = quire_json_object(r, "quantization_config");
  if (!object) {
    return;
  }
  struct quire_json_reader inner = quire_json_reader(object, CONFIG_NAME ": quantization_config", r->error);
  quire_json_refuse_unknown(&inner, known, ignored);
  only_string(&inner, "quant_method", "fp8");
  only_string(&inner, "fmt", "e4m3");
  only_string(&inner, "activation_scheme", "dynamic");
  only_string(&inner, "scale_fmt", "ue8m0");
  const json_t *block = quire_json_need_array(&inner, "weight_block_size");
  if (!inner.status &&
      (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != QUIRE_FP8_BLOCK ||
       json_integer_value(json_array_get(block, 1)) != QUIRE_FP8_BLOCK)) {
    quire_json_fail(&inner, QUIRE_ERR_UNSUPPORTED, "weight_block_size", "only [%d, %d] is supported", QUIRE_FP8_BLOCK,
                    QUIRE_FP8_BLOCK);
  }
  r->status = inner.status;
}

static void count_parameters(struct quire_model_config *c) {
  QUIRE_ASSERT(c->layers >= 1 && c->layers <= QUIRE_MODEL_LAYERS_MAX && c->hidden > 0);
  const int64_t h = c->hidden, heads = c->heads;
  const int64_t attention = 2 * h + h * c->q_rank + c->q_rank + c->q_rank * heads * c->qk_dim +
                            h * (c->kv_rank + c->rope_dim) + c->kv_rank +
                            heads * (c->nope_dim + c->value_dim) * c->kv_rank + h * heads * c->value_dim;
  const int64_t indexer =
      (int64_t)c->index_heads * c->index_dim * c->q_rank + c->index_dim * h + 2 * c->index_dim + c->index_heads * h;
  const int64_t expert = 3 * h * c->expert_width;
  const int64_t common = (h + 1) * c->experts + 3 * h * c->shared_width; /* of a mixture, used by every token */
  c->target_parameters = 2 * h * c->vocab + h;
  c->active_parameters = h * c->vocab + h;
  for (int32_t i = 0; i < c->layers; i++) {
    const int64_t always =
        attention + (c->owns_indexer[i] ? indexer : 0) + (c->moe[i] ? common : 3 * h * c->dense_width);
    c->target_parameters += always + (c->moe[i] ? c->experts * expert : 0);
    c->active_parameters += always + (c->moe[i] ? c->experts_per_token * expert : 0);
  }
  c->draft_parameters = c->mtp_layers * (attention + indexer + common + c->experts * expert + 3 * h + 2 * h * h);
}

static enum quire_status read_config(const json_t *root, struct quire_model_config *config_out,
                                     struct quire_error *error_out) {
  struct quire_json_reader reader = quire_json_reader(root, CONFIG_NAME, error_out);
  struct quire_model_config config = {0};
  read_family(&reader, &config);
  quire_json_refuse_unknown(&reader, known_keys, ignored_keys);
  read_attention(&reader, &config);
  read_rope(&reader, &config);
  read_indexer(&reader, &config);
  read_layer_types(&reader, &config);
  read_experts(&reader, &config);
  read_tokens(&reader, &config);
  read_quantisation(&reader);
  if (reader.status) {
    return reader.status;
  }
  count_parameters(&config);
  QUIRE_ASSERT(config.layers > 0 && config.vocab > 0 && config.hidden > 0);
  *config_out = config;
  return QUIRE_OK;
}

enum quire_status quire_model_config_parse(const char *json, size_t bytes, struct quire_model_config *config_out,
                                           struct quire_error *error_out) {
  QUIRE_ASSERT((json || bytes == 0) && config_out);
  json_t *root = NULL;
  enum quire_status status = quire_json_parse(json, bytes, CONFIG_NAME, &root, error_out);
  status = status ? status : read_config(root, config_out, error_out);
  json_decref(root);
  return status;
}

enum quire_status quire_model_config_load(const struct quire_env *env, const char *dir,
                                          struct quire_model_config *config_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && dir && config_out);
  char path[PATH_BYTES];
  json_t *root = NULL;
  if ((size_t)snprintf(path, sizeof path, "%s/" CONFIG_NAME, dir) >= sizeof path) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, CONFIG_NAME, "the folder's path is too long; move the model");
  }
  enum quire_status status = quire_json_load(env, path, QUIRE_CONFIG_BYTES_MAX, &root, error_out);
  status = status ? status : read_config(root, config_out, error_out);
  json_decref(root);
  return status;
}

/* ---- generation_config.json ---- */

static struct quire_generation_config generation_default(const struct quire_model_config *config) {
  QUIRE_ASSERT(config->eos_count >= 0 && config->eos_count <= QUIRE_MODEL_EOS_MAX);
  struct quire_generation_config generation = {
      .temperature = 1, .top_p = 1, .repetition_penalty = 1, .eos_count = config->eos_count};
  memcpy(generation.eos, config->eos, sizeof generation.eos);
  return generation;
}

/* Sampling we do not have is worth a line: the model's makers meant it, and requests will not get it. */
static void warn_unknown(const struct quire_env *env, const json_t *root) {
  QUIRE_ASSERT(env != NULL && root != NULL);
  static const char *const known[] = {"temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "repetition_penalty",
                                      "do_sample",
                                      "eos_token_id",
                                      "bos_token_id",
                                      "pad_token_id",
                                      "transformers_version",
                                      "_from_model_config",
                                      "max_length",
                                      "max_new_tokens",
                                      "use_cache",
                                      "trust_remote_code",
                                      NULL};
  struct quire_error error = {0};
  struct quire_json_reader reader = quire_json_reader(root, GENERATION_NAME, &error);
  quire_json_refuse_unknown(&reader, known, NULL);
  if (reader.status) {
    quire_env_log(env, QUIRE_LOG_WARN, "%s is ignored: no such way of sampling here", error.where);
  }
}

static enum quire_status read_generation(const struct quire_env *env, const json_t *root,
                                         const struct quire_model_config *config,
                                         struct quire_generation_config *generation_out,
                                         struct quire_error *error_out) {
  QUIRE_ASSERT(config->vocab > 0);
  struct quire_json_reader reader = quire_json_reader(root, GENERATION_NAME, error_out);
  struct quire_generation_config generation = generation_default(config);
  generation.temperature = (float)quire_json_number(&reader, "temperature", 0, 100, 1);
  generation.top_p = (float)quire_json_number(&reader, "top_p", 1e-6, 1, 1);
  int64_t top_k = quire_json_int(&reader, "top_k", -1, INT32_MAX, 0);
  generation.top_k = top_k < 0 ? 0 : (int32_t)top_k; /* both spell "off" */
  generation.min_p = (float)quire_json_number(&reader, "min_p", 0, 1, 0);
  generation.repetition_penalty = (float)quire_json_number(&reader, "repetition_penalty", 1e-6, 10, 1);
  if (!quire_json_bool(&reader, "do_sample", true)) {
    generation.temperature = 0;
  }
  if (quire_json_get(&reader, "eos_token_id")) {
    read_eos(&reader, config->vocab, generation.eos, &generation.eos_count);
  }
  if (reader.status) {
    return reader.status;
  }
  warn_unknown(env, root);
  *generation_out = generation;
  return QUIRE_OK;
}

enum quire_status quire_generation_config_parse(const struct quire_env *env, const char *json, size_t bytes,
                                                const struct quire_model_config *config,
                                                struct quire_generation_config *generation_out,
                                                struct quire_error *error_out) {
  QUIRE_ASSERT(env && (json || bytes == 0) && config && generation_out);
  json_t *root = NULL;
  enum quire_status status = quire_json_parse(json, bytes, GENERATION_NAME, &root, error_out);
  status = status ? status : read_generation(env, root, config, generation_out, error_out);
  json_decref(root);
  return status;
}

enum quire_status quire_generation_config_load(const struct quire_env *env, const char *dir,
                                               const struct quire_model_config *config,
                                               struct quire_generation_config *generation_out,
                                               struct quire_error *error_out) {
  QUIRE_ASSERT(env && dir && config && generation_out);
  char path[PATH_BYTES];
  json_t *root = NULL;
  if ((size_t)snprintf(path, sizeof path, "%s/" GENERATION_NAME, dir) >= sizeof path) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, GENERATION_NAME,
                           "the folder's path is too long; move the model");
  }
  enum quire_status status = quire_json_load(env, path, QUIRE_CONFIG_BYTES_MAX, &root, error_out);
  if (status == QUIRE_ERR_NOT_FOUND) {
    *generation_out = generation_default(config);
    return QUIRE_OK;
  }
  status = status ? status : read_generation(env, root, config, generation_out, error_out);
  json_decref(root);
  return status;
}
