/* The forward pass of one rank (docs/arithmetic.md gives its order of operations; the architecture is that of
 * DeepSeek-V3.2: MLA with a sparse-attention indexer, mixture of experts, one draft (MTP) layer).
 *
 * The model calls the verbs of a view and never sees KV memory, a pool or a request: it works on batches of rows, each
 * with a token, a RoPE position and whatever the view lets it see.
 *
 *   tokens -> embed -> [ norm, q / kv / index projections, put_rows, select, attend, o ; norm, MLP or MoE ] x layers
 *          -> final norm -> hidden   (compute type: the one point where h is rounded)
 *   draft rows: u = W_eh [ norm(embed(token)) ; norm(hidden of the position before) ] -> their KV rows
 *
 * Memory: buffers for rows_max rows, reserved at creation (quire_forward_bytes). Threads: the rank's. Weights are
 * shared by all ranks and only read. Errors: only what a view's put_rows answers. */
#ifndef QUIRE_MODEL_FORWARD_H
#define QUIRE_MODEL_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/trace.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/weights.h"
#include "view/view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a tap may be shown; layer counts target layers, then the draft layer. */
enum quire_tap_point {
  QUIRE_TAP_LAYER_INPUT,  /* f32 [m, hidden] residual before the layer; may be overwritten */
  QUIRE_TAP_INDEX_Q,      /* f32 [m, index_heads * 128] as they are quantised: rotated, then the Hadamard option */
  QUIRE_TAP_INDEX_K,      /* f32 [m, 128] the same */
  QUIRE_TAP_INDEX_W,      /* f32 [m, index_heads] unscaled */
  QUIRE_TAP_LATENT,       /* f32 [m, 512] normed */
  QUIRE_TAP_ROPE_KEY,     /* f32 [m, 64] rotated, rows 576 apart */
  QUIRE_TAP_SELECTED,     /* i32 [m, topk]; may be overwritten, counts with it */
  QUIRE_TAP_COUNTS,       /* i32 [m] */
  QUIRE_TAP_ATTENTION,    /* compute type [m, heads * value] before o_proj */
  QUIRE_TAP_LAYER_OUTPUT, /* f32 [m, hidden] residual after the layer */
  QUIRE_TAP_HIDDEN,       /* compute type [m, hidden] after the final norm */
  QUIRE_TAP_DRAFT_INPUT,  /* f32 [m, hidden] u of the draft rows */
  QUIRE_TAP_DRAFT_HIDDEN, /* compute type [m, hidden] after the draft head's norm */
  QUIRE_TAP_LOGITS,       /* f32 [rows, vocab] */
};

struct quire_tap_value {
  enum quire_tap_point point;
  int32_t layer;
  void *data;
  enum quire_dtype dtype; /* of floating data */
  int32_t rows, columns;
  const struct quire_view_batch *batch; /* whose rows they are; NULL for logits */
};

/* Comparison with other implementations: called on the rank's thread with the stream idle. */
struct quire_tap {
  void (*call)(void *context, const struct quire_tap_value *value);
  void *context;
};

struct quire_forward;

struct quire_forward_config {
  const struct quire_model_config *model;
  const struct quire_model_weights *weights;
  struct quire_model_options options;
  int32_t rows_max;     /* of a rank in a step */
  int32_t requests_max; /* carried hidden states */
  int32_t logits_max;   /* rows of logits at a time */
  int threads;
  int32_t rank;              /* for the trace */
  struct quire_trace *trace; /* of layers; NULL: off */
};

struct quire_forward_links {
  const struct quire_kernels *kernels;
  const float *rope; /* quire_rope_table for every position that can occur */
};

int64_t quire_forward_bytes(const struct quire_forward_config *config);

enum quire_status quire_forward_create(const struct quire_env *env, const struct quire_forward_config *config,
                                       const struct quire_forward_links *links, struct quire_forward **forward_out,
                                       struct quire_error *error_out);
void quire_forward_destroy(struct quire_forward *forward);
/* The rank's compute stream, before the first run. */
void quire_forward_start(struct quire_forward *forward, struct quire_stream *stream);

/* tap may be NULL; it stays until changed. */
void quire_forward_tap(struct quire_forward *forward, const struct quire_tap *tap);

/* Runs the target layers over the view's target batch, then puts the draft rows of its draft batch if the model has a
 * draft layer; with draft_full the whole draft layer runs over them. Every rank of the worker calls it in every step,
 * rows or not. */
enum quire_status quire_forward_run(struct quire_forward *forward, struct quire_view *view, bool draft_full,
                                    struct quire_error *error_out);

/* Keeps the hidden state of a row of the target batch in a carry slot (0 .. requests_max - 1). */
void quire_forward_carry(struct quire_forward *forward, int32_t row, int32_t slot);

/* Logits of count (<= logits_max) rows of the last run: f32 [count, vocab], valid until the next call. rows may be any
 * rows of the target batch (draft false) or, after a run with draft_full, of the draft batch. */
const float *quire_forward_logits(struct quire_forward *forward, const int32_t *rows, int32_t count, bool draft);

#ifdef __cplusplus
}
#endif
#endif
