/* What a model is, from its config.json: the numbers that shape its arithmetic, checked.
 *
 * Every key is either understood, known to have no influence on inference, or refused by name: a key we do not know
 * could change the arithmetic. The same for values (scoring_func other than sigmoid, ...), and for two keys that say
 * different things. model_type deepseek_v32 and glm_moe_dsa are served. What they differ in (layout of the indexer's
 * RoPE, layers that share an indexer, eps) is in fields of struct quire_model_config: the forward pass reads those and
 * never the family.
 *
 * Plain values without pointers. Threads: pure functions. */
#ifndef QUIRE_MODEL_CONFIG_H
#define QUIRE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_MODEL_LAYERS_MAX 126 /* target layers: with one draft layer they fit QUIRE_PARTS_MAX */
#define QUIRE_MODEL_HEADS_MAX 256
#define QUIRE_MODEL_EOS_MAX 16
#define QUIRE_CONFIG_BYTES_MAX ((size_t)4 << 20)
#define QUIRE_NUMERICS_BYTES 64
#define QUIRE_NUMERICS_REVISION 1 /* of docs/arithmetic.md; any change of bits raises it */

enum quire_family { QUIRE_FAMILY_DEEPSEEK_V32, QUIRE_FAMILY_GLM_MOE_DSA };

/* Conventions in which engines disagree; each changes bits, so each is part of the numerics id. */
struct quire_model_options {
  enum quire_dtype compute; /* QUIRE_DTYPE_BF16, or _F32 for comparison with other implementations */
  float latent_norm_eps;    /* of q_a and kv_a norms: see quire_model_latent_norm_eps */
  bool hadamard;            /* Hadamard transform of index queries and keys before they are quantised */
  bool scale_pow2;          /* scales of stored rows are powers of two; false: amax / 448 itself */
};

struct quire_model_config {
  enum quire_family family;

  int32_t hidden, vocab, layers;
  int32_t positions; /* longest sequence the model's RoPE is meant for */

  /* attention */
  int32_t heads;
  int32_t q_rank, kv_rank;                       /* kv_rank is 512 */
  int32_t nope_dim, rope_dim, qk_dim, value_dim; /* rope_dim is 64, qk_dim = nope_dim + rope_dim */
  float softmax_scale;
  struct quire_rope_config rope;
  enum quire_rope_layout rope_layout;

  /* indexer */
  int32_t index_heads, index_dim, index_topk; /* index_dim is 128, index_topk a multiple of 64 up to 2048 */
  float index_weight_scale; /* index_heads^-1/2 * index_dim^-1/2; positive, so a selection does without it */
  enum quire_rope_layout index_rope_layout;
  bool owns_indexer[QUIRE_MODEL_LAYERS_MAX + 1]; /* false: attends the list of the nearest layer below that owns one */
  bool drafts_share_list; /* chained drafts attend the list of the first: it decides drafts, never what is stored */

  /* feed forward; the draft layer, if there is one, is layer number `layers` */
  bool moe[QUIRE_MODEL_LAYERS_MAX + 1];
  int32_t dense_width;
  int32_t experts, experts_per_token, expert_width;
  int32_t shared_width; /* all shared experts as one: n_shared_experts * expert_width; 0: none */
  int32_t groups, groups_kept;
  bool normalise; /* weights of the chosen experts sum to 1 before scaling */
  float routed_scaling;

  int32_t mtp_layers; /* 0 or 1 */

  float norm_eps;       /* input, post-attention, final, and the draft layer's norms */
  float index_norm_eps; /* LayerNorm of the index key */

  /* QUIRE_MODEL_EOS_MAX at most; -1: none */
  int32_t bos, pad;
  int32_t eos[QUIRE_MODEL_EOS_MAX];
  int32_t eos_count;

  /* Parameters, without scales of fp8 and without the draft layer's copies of embedding and head. */
  int64_t target_parameters, draft_parameters;
  int64_t active_parameters; /* of the target, used for one token */
};

/* Defaults of sampling, from generation_config.json. */
struct quire_generation_config {
  float temperature;        /* 0: greedy (do_sample false) */
  float top_p;              /* 1: off */
  int32_t top_k;            /* 0: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 1: off */
  int32_t eos[QUIRE_MODEL_EOS_MAX];
  int32_t eos_count;
};

/* "deepseek_v32", "glm_moe_dsa". */
const char *quire_family_name(enum quire_family family);

/* The latent norms' eps that engines serve the model with (vLLM, SGLang): its rms_norm_eps, 1e-6 for DeepSeek-V3.2 and
 * 1e-5 for GLM-5. transformers has 1e-6 for every model. */
float quire_model_latent_norm_eps(const struct quire_model_config *config);

/* bf16, latent norms 1e-6, no Hadamard, powers of two. */
struct quire_model_options quire_model_options_default(void);
/* QUIRE_ERR_ARGUMENT for options out of bounds. */
enum quire_status quire_model_options_check(const struct quire_model_options *options, struct quire_error *error_out);
/* Name of the arithmetic, "cpu-1-bf16-leps1e-06-nohad-pow2". device_family is "cpu" or "sm90". Returns out. */
const char *quire_model_numerics(const struct quire_model_options *options, const char *device_family,
                                 char out[QUIRE_NUMERICS_BYTES]);

/* Reads dir/config.json. QUIRE_ERR_NOT_FOUND, _IO, _CORRUPT (not JSON, a key missing, of a wrong type, out of bounds,
 * or contradicting another), _UNSUPPORTED (a value or key that means another arithmetic), _MEMORY. */
enum quire_status quire_model_config_load(const struct quire_env *env, const char *dir,
                                          struct quire_model_config *config_out, struct quire_error *error_out);
enum quire_status quire_model_config_parse(const char *json, size_t bytes, struct quire_model_config *config_out,
                                           struct quire_error *error_out);

/* Reads dir/generation_config.json; without that file: temperature 1, everything off, eos of config. A key that names
 * another kind of sampling is ignored with one warning in the log. */
enum quire_status quire_generation_config_load(const struct quire_env *env, const char *dir,
                                               const struct quire_model_config *config,
                                               struct quire_generation_config *generation_out,
                                               struct quire_error *error_out);
enum quire_status quire_generation_config_parse(const struct quire_env *env, const char *json, size_t bytes,
                                                const struct quire_model_config *config,
                                                struct quire_generation_config *generation_out,
                                                struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
