/* The weights of a model: every tensor found, its shape checked, ready to be handed to a kernel.
 *
 * Matrices stay in the mapped files: f32, bf16, or fp8 with its sibling `weight_scale_inv` (whose presence alone makes
 * a matrix fp8). Copies are made only of
 *   - vectors (gains, biases), to f32
 *   - kv_b, dequantised and split per head into W_UK transposed and W_UV (blocks of scales straddle the heads)
 *   - f32 matrices when the compute type is bf16: rounded once, RNE. Not the embedding, the router and the indexer's
 *     weights_proj, which are used as stored, with f32 activations
 *   - data that its file misaligns
 *
 * Or they are packed (args.pack): laid out once for the products of a table of kernels, which are then faster with the
 * same results, in memory of their own; the pages of the file they came from are given back, so that one copy stays
 * resident. What a table has no layout for (f32, an odd k) and what is used as stored stays mapped.
 *
 * One object serves all ranks of a process and of those it forks: it is read only, and its pages are shared.
 *
 * Memory: the object refers to the safetensors, which must outlive it; copies belong to it. Threads: constant after
 * open. */
#ifndef QUIRE_MODEL_WEIGHTS_H
#define QUIRE_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_mtp_mode { QUIRE_MTP_AUTO, QUIRE_MTP_ON, QUIRE_MTP_OFF };

/* One matrix for each head, at equal distances. */
struct quire_head_weights {
  struct quire_weight first; /* of head 0 */
  int64_t stride;            /* elements from a head to the next */
};

struct quire_index_weights {
  struct quire_weight wq_b;    /* [index_heads * 128, q_rank] */
  struct quire_weight wk;      /* [128, hidden] */
  struct quire_weight weights; /* [index_heads, hidden], as stored: f32 activations */
  const float *k_norm_gain;    /* [128] */
  const float *k_norm_bias;    /* [128] */
};

struct quire_layer_weights {
  const float *input_norm; /* [hidden] */
  const float *post_norm;  /* [hidden] */

  struct quire_weight q_a;        /* [q_rank, hidden] */
  const float *q_a_norm;          /* [q_rank] */
  struct quire_weight q_b;        /* [heads * (nope | rope), q_rank] */
  struct quire_weight kv_a;       /* [512 | 64, hidden] */
  const float *kv_a_norm;         /* [512] */
  struct quire_head_weights w_uk; /* each [512, nope]: q_latent = W_UK q_nope */
  struct quire_head_weights w_uv; /* each [value, 512]: o = W_UV o_latent */
  struct quire_weight o;          /* [hidden, heads * value] */

  bool owns_indexer; /* false: index is zero */
  struct quire_index_weights index;

  bool moe;
  struct quire_expert mlp;            /* dense: gate, up [width, hidden], down [hidden, width] */
  struct quire_weight router;         /* [experts, hidden], as stored: f32 activations */
  const float *router_bias;           /* [experts] */
  const struct quire_expert *experts; /* [experts] */
  struct quire_expert shared;         /* gate.n = 0: none */
};

/* The draft layer; embed and head are the main ones where the checkpoint has no copies. */
struct quire_mtp_weights {
  const float *e_norm;      /* [hidden] of the embedding half */
  const float *h_norm;      /* [hidden] of the hidden half */
  struct quire_weight proj; /* [hidden, embedding | hidden] */
  const float *head_norm;   /* [hidden] */
  struct quire_weight embed;
  struct quire_weight head;
  struct quire_layer_weights layer;
};

struct quire_model_weights {
  struct quire_weight embed; /* [vocab, hidden], f32 or bf16 as stored */
  const float *final_norm;   /* [hidden] */
  struct quire_weight head;  /* [vocab, hidden] */
  int32_t layers;
  const struct quire_layer_weights *layer; /* [layers] */
  bool has_mtp;
  struct quire_mtp_weights mtp;

  size_t mapped_bytes; /* used in place */
  size_t copied_bytes; /* memory of the copies */
  size_t packed_bytes; /* memory of packed matrices, not among the copies */
  const struct quire_kernels
      *packed_for;      /* the only kernels that read packed matrices; NULL: any do, nothing is packed */
  uint64_t identity[2]; /* XXH3-128, low half first: see quire_model_identity */
};

/* done and total: bytes of tensors resolved so far and in all. Called on the loading thread, done rising. */
typedef void (*quire_weights_progress)(void *context, uint64_t done, uint64_t total);

struct quire_weights_args {
  const struct quire_model_config *config;
  const struct quire_safetensors *tensors;
  enum quire_dtype compute; /* QUIRE_DTYPE_F32 or _BF16 */
  /* Whose layout matrices get; NULL: none. Has pack_weight; compute is bf16. */
  const struct quire_kernels *pack;
  enum quire_mtp_mode mtp; /* AUTO: the draft layer if config and checkpoint have one; a warning if only config has */
  quire_weights_progress progress; /* NULL: none */
  void *progress_context;
};

/* QUIRE_ERR_CORRUPT: a tensor is missing, of another shape or type (both are in the text), or one no layer uses;
 * QUIRE_ERR_UNSUPPORTED: fused experts; QUIRE_ERR_ARGUMENT: mtp ON without a draft layer; QUIRE_ERR_MEMORY. */
enum quire_status quire_model_weights_open(const struct quire_env *env, const struct quire_weights_args *args,
                                           const struct quire_model_weights **weights_out,
                                           struct quire_error *error_out);
/* NULL is allowed. */
void quire_model_weights_close(const struct quire_model_weights *weights);

/* Head h's matrix. */
struct quire_weight quire_head_weight(const struct quire_head_weights *weights, int32_t head);

/* Identity of a model (design D3): XXH3-128 over the config fields that matter, and for each tensor its name, type,
 * shape, and its first and last 4 KiB. Does not depend on how tensors are spread over files. digest_out[0] is the low
 * half. */
void quire_model_identity(const struct quire_model_config *config, const struct quire_safetensors *tensors,
                          uint64_t digest_out[2]);

#ifdef __cplusplus
}
#endif
#endif
