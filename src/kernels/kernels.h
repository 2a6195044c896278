/* The operations of the forward pass, on one device, in one written arithmetic (docs/arithmetic.md).
 *
 * A launcher enqueues its operation on a stream with its arguments by value; every pointer in them is device memory
 * that stays valid and untouched until the operation has run. Shapes are row-major; "ld" is the distance between rows
 * in elements. A launcher does not fail: what it cannot do is refused before by the predicate of its table.
 *
 * Numerics (design D6): a row does not feel its batch; the result does not depend on the number of rows, of threads,
 * nor on the ISA path. The tables `portable` and `avx512` are equal in bytes; tests compare them with ==. bf16 values
 * are uint16_t, e4m3 values uint8_t. Operations run with FTZ and DAZ set on every member of the team and restore the
 * control word after; code outside that computes in the same arithmetic calls quire_kernels_enter itself. Operations
 * use some 200 KiB of stack, nothing is allocated, and scratch may have any alignment. m = 0 is legal everywhere.
 *
 * Threads: as quire_stream. The table is constant. */
#ifndef QUIRE_KERNELS_KERNELS_H
#define QUIRE_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "layout/kv_source.h"
#include "layout/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_TOPK_MAX 2048
#define QUIRE_EXPERTS_MAX 512
#define QUIRE_EXPERTS_PER_TOKEN_MAX 16
#define QUIRE_FP8_BLOCK 128

enum quire_dtype { QUIRE_DTYPE_F32, QUIRE_DTYPE_BF16, QUIRE_DTYPE_FP8 };

enum quire_weight_layout { QUIRE_WEIGHT_ROWS, QUIRE_WEIGHT_PACKED /* by pack_weight, for bf16 x alone */ };

/* A weight matrix W [n, k], row-major unless packed, y = W x. fp8: W[o,i] = e4m3(data[o,i]) * scale[o/128, i/128]. */
struct quire_weight {
  const void *data;
  const float *scale; /* [ceil(n/128), scale_ld], fp8 only */
  enum quire_dtype dtype;
  enum quire_weight_layout layout;
  int32_t n;
  int32_t k;
  int64_t ld;       /* elements, >= k */
  int32_t scale_ld; /* >= ceil(k/128) */
};

/* y[m,n] = x[m,k] W^T. x is f32 or bf16, y f32 or bf16 (rounded once at the end, RNE).
 * bf16 x with bf16 or fp8 W: the bf16 dot. Either of them f32: the other widened exactly to f32, the f32 dot. fp8 in
 * both cases block by block (arithmetic.md 3). */
struct quire_gemm {
  const void *x;
  void *y;
  struct quire_weight w;
  enum quire_dtype x_dtype;
  enum quire_dtype y_dtype;
  int32_t m;
  int64_t x_ld;
  int64_t y_ld;
  uint8_t *scratch; /* quire_gemm_scratch_bytes, or NULL: the same bytes, slower where rows are many; packed: needed */
};

/* y = gain * x / sqrt(mean(x^2) + eps), f32 statistics; y f32 or bf16 (arithmetic.md 5). */
struct quire_rmsnorm {
  const float *x;
  const float *gain; /* [n] */
  void *y;
  enum quire_dtype y_dtype;
  int32_t m, n;
  int64_t x_ld, y_ld;
  float eps;
};

/* y = (x - mean) / sqrt(var + eps) * gain + bias, biased variance, f32 (arithmetic.md 5). */
struct quire_layernorm {
  const float *x;
  const float *gain;
  const float *bias;
  float *y;
  int32_t m, n;
  int64_t x_ld, y_ld;
  float eps;
};

enum quire_rope_layout { QUIRE_ROPE_INTERLEAVED, QUIRE_ROPE_HALF };

/* Rotates (arithmetic.md 6) 64 consecutive values in place for each of `heads` vectors of each row:
 * x + row * x_ld + head * head_ld. table is quire_rope_table's. */
struct quire_rope {
  float *x;
  const float *table;       /* [positions][32][2] cos, sin */
  const int32_t *positions; /* [m] */
  enum quire_rope_layout layout;
  int32_t m, heads;
  int64_t x_ld, head_ld;
};

/* x <- H x / sqrt(128) (arithmetic.md 9), H the Hadamard matrix of 128 in Sylvester order, in place for each of `heads`
 * vectors of 128 values of each row: x + row * x_ld + head * head_ld. */
struct quire_hadamard {
  float *x;
  int32_t m, heads;
  int64_t x_ld, head_ld;
};

/* y = e of x, elementwise: rounds f32 rows to bf16, or copies them as f32. */
struct quire_convert {
  const float *x;
  void *y;
  enum quire_dtype y_dtype;
  int32_t m, n;
  int64_t x_ld, y_ld;
};

/* x += y, elementwise, f32. */
struct quire_add {
  float *x;
  const float *y;
  int32_t m, n;
  int64_t x_ld, y_ld;
};

/* x[i] = f32 of table row tokens[i]. */
struct quire_embed {
  struct quire_weight table; /* f32 or bf16, [vocab, n] */
  const int32_t *tokens;
  float *x;
  int32_t m;
  int64_t x_ld;
};

/* y = silu(gate) * up, f32 inputs; y f32 or bf16 (arithmetic.md 7). */
struct quire_silu_mul {
  const float *gate;
  const float *up;
  void *y;
  enum quire_dtype y_dtype;
  int32_t m, n;
  int64_t gate_ld, up_ld, y_ld;
};

/* Rows to their stored form (arithmetic.md 8, parts.h): the producer's quantisation, once. any_scale: the scale of a
 * block is amax / 448 itself, not the power of two above it (arithmetic.md 2).
 * latent [m, 512] normed and rope [m, 64] rotated, f32; out piece 0, row i at out + i * row_bytes. */
struct quire_quantise_latent {
  const float *latent;
  const float *rope;
  uint8_t *out;
  enum quire_kv_format format;
  bool any_scale; /* format fp8 */
  int32_t m;
  int64_t latent_ld, rope_ld;
};

/* Index keys [m, 128] f32 after norm and rope; keys at keys_out + i*128 (f32 format: i*512), scales_out[i] (unused in
 * format f32). */
struct quire_quantise_index {
  const float *key;
  uint8_t *keys_out;
  float *scales_out;
  enum quire_kv_format format;
  bool any_scale; /* formats bf16 and fp8 */
  int32_t m;
  int64_t key_ld;
};

/* A batch of rows that read the cache: row i reads sources[source_of[i]], positions [0, limit[i]).
 * The arrays are device memory. A row with limit 0 is empty: no rows, out 0, lse -inf. */
struct quire_rows {
  const struct quire_kv_source *sources;
  const int32_t *source_of; /* [m] */
  const int32_t *limit;     /* [m] */
  int32_t m;
  int32_t first; /* sources start at this position: 0, or 1 in draft layers, whose slot 0 holds no row */
};

/* Indexer (arithmetic.md 9): score[t,s] = s_k[s] * sum_h w[t,h] * relu(q[t,h] . k[s]) over s in [first, limit), then
 * the min(topk, limit - first) largest, ties to the lower position (-0 = +0, NaN = -inf), ascending. Rows that see no
 * more than topk positions take them all without scoring. q arrives unquantised; with a quantised format it is
 * quantised per head by the rule of the keys, and its scale goes into w.
 * indices_out [m, topk] int32, padded with -1; counts_out [m]. */
struct quire_select {
  struct quire_rows rows;
  struct quire_part part; /* the index key part */
  const float *q;         /* [m, heads, 128], rotated */
  const float *w;         /* [m, heads], as the projection gives it */
  int32_t *indices_out;
  int32_t *counts_out;
  uint8_t *scratch; /* quire_select_scratch_bytes */
  enum quire_kv_format format;
  bool any_scale; /* how q is quantised: as the keys were */
  int32_t heads;
  int32_t topk;
  int32_t limit_max;   /* >= every limit */
  int32_t source_rows; /* rows of one source that usually stand together; 0: not known. Only speed depends on it */
};

/* Sparse MLA in absorbed form over the selected rows, ascending (arithmetic.md 10):
 * a = scale * (q_latent . c_s + q_rope . k_s); p = exp(a - max); out = sum p c_s / sum p. lse is the natural
 * log-sum-exp of a. q_latent, q_rope bf16 or f32 (q_dtype); out bf16 or f32 (out_dtype). Rows are read the same way
 * whatever rule their scales were made by. */
struct quire_attend {
  struct quire_rows rows;
  struct quire_part part; /* the latent part */
  const void *q_latent;   /* [m, heads, 512] */
  const void *q_rope;     /* [m, heads, 64] */
  const int32_t *indices; /* [m, topk] */
  const int32_t *counts;  /* [m] */
  void *out;              /* [m, heads, 512] */
  float *lse;             /* [m, heads] */
  uint8_t *scratch;       /* quire_attend_scratch_bytes */
  enum quire_kv_format format;
  enum quire_dtype q_dtype;
  enum quire_dtype out_dtype;
  int32_t heads;
  int32_t topk;
  float scale;
};

/* Router (arithmetic.md 11): logits f32 [m, experts] -> ids ascending [m, k] and weights [m, k] (model rules: sigmoid,
 * bias for choice only, n_group / topk_group with the sum of the two best, ties to the lower id). */
struct quire_route {
  const float *logits;
  const float *bias; /* [experts] */
  int32_t *ids_out;
  float *weights_out;
  int32_t m, experts, groups, groups_kept, k;
  bool normalise;
  float scaling;
};

struct quire_expert {
  struct quire_weight gate, up, down;
};

/* Routed experts and the shared one (arithmetic.md 11): residual[i] += sum over rising expert id of weight * E(x[i]),
 * the shared expert last. ids of a token rise strictly. x bf16 or f32 as the compute type. */
struct quire_moe {
  const void *x; /* [m, hidden] */
  enum quire_dtype x_dtype;
  const struct quire_expert *experts; /* [experts], device memory */
  struct quire_expert shared;         /* gate.n = 0: none */
  const int32_t *ids;                 /* [m, k], rising */
  const float *weights;               /* [m, k] */
  float *residual;                    /* [m, hidden], added to */
  uint8_t *scratch;                   /* quire_moe_scratch_bytes */
  int32_t m, hidden, expert_width, shared_width, expert_count, k;
  int64_t x_ld, residual_ld;
};

/* How often tokens occur in a request's list (step_plan.h), a u16 for each id of the vocabulary. */
#define QUIRE_COUNT_PROMPT 0x8000u /* it occurs in the prompt */
#define QUIRE_COUNT_MAX 0x7fffu    /* times in the answer; more count as many */

/* Adds the tokens of positions [begin, end) to one request's counts; those before prompt_end are prompt. */
struct quire_count_job {
  uint16_t *counts;      /* [vocab] */
  const int32_t *tokens; /* [end - begin] */
  int32_t begin, end, prompt_end;
  bool reset; /* the counts are cleared first */
};

struct quire_count {
  const struct quire_count_job *jobs; /* [m], each with counts of its own */
  int32_t m, vocab;
};

/* How one row draws: struct quire_sampling lowered. Pointers are device memory. */
struct quire_draw {
  uint64_t seed;
  int32_t position; /* of the token to be drawn */
  float temperature;
  float top_p;
  float min_p;
  int32_t top_k; /* 0: off */
  float presence_penalty;
  float frequency_penalty;
  float repetition_penalty;      /* > 0 */
  const uint16_t *counts;        /* [vocab], quire_count's; NULL: no penalties */
  const int32_t *extra;          /* [extra_count] tokens of the answer that counts does not know yet (drafts) */
  const struct quire_bias *bias; /* [bias_count] */
  struct quire_top *tops_out;    /* [top_count] likeliest tokens of the full softmax, likeliest first; then {-1, 0} */
  int32_t extra_count, bias_count, top_count;
  bool logprob; /* keep the log-probability of the drawn token */
};

/* token = argmax(log p + Gumbel(seed, position)) over what penalties, bias, temperature, top-k, top-p and min-p leave
 * (arithmetic.md 12). */
struct quire_sample {
  const float *logits;            /* [m, vocab] */
  const struct quire_draw *draws; /* [m] */
  int32_t *tokens_out;            /* [m] */
  float *logprobs_out; /* [m] of the drawn token under the full softmax of logits; 0 where it is not wanted */
  uint8_t *scratch;    /* quire_sample_scratch_bytes */
  int32_t m, vocab;
  int64_t logits_ld;
};

/* Evaluation and prompt log-probabilities (arithmetic.md 12): log softmax of a given token, the argmax (ties to the
 * lower id) and the likeliest tokens of each row. */
struct quire_score {
  const float *logits;         /* [m, vocab] */
  const int32_t *targets;      /* [m]; -1: no target, logprob 0 */
  float *logprobs_out;         /* [m] */
  int32_t *argmax_out;         /* [m] */
  const int32_t *top_counts;   /* [m]; NULL: none wanted */
  struct quire_top **tops_out; /* [m], each [top_counts[i]]: as of quire_draw */
  int32_t m, vocab;
  int64_t logits_ld;
};

/* Sets flags_out[i] to 1 if row i holds a value that cannot be stored: NaN, infinite, or 2^127 and more, which no
 * rounding here answers for. Never clears one. */
struct quire_finite {
  const float *x;
  int32_t *flags_out; /* [m] */
  int32_t m, n;
  int64_t x_ld;
};

struct quire_kernels {
  uint32_t size;
  uint32_t version;
  const char *name; /* "portable", "avx512" */
  void (*gemm)(struct quire_stream *, struct quire_gemm);
  void (*rmsnorm)(struct quire_stream *, struct quire_rmsnorm);
  void (*layernorm)(struct quire_stream *, struct quire_layernorm);
  void (*rope)(struct quire_stream *, struct quire_rope);
  void (*hadamard)(struct quire_stream *, struct quire_hadamard);
  void (*convert)(struct quire_stream *, struct quire_convert);
  void (*add)(struct quire_stream *, struct quire_add);
  void (*embed)(struct quire_stream *, struct quire_embed);
  void (*silu_mul)(struct quire_stream *, struct quire_silu_mul);
  void (*quantise_latent)(struct quire_stream *, struct quire_quantise_latent);
  void (*quantise_index)(struct quire_stream *, struct quire_quantise_index);
  void (*select)(struct quire_stream *, struct quire_select);
  void (*attend)(struct quire_stream *, struct quire_attend);
  void (*route)(struct quire_stream *, struct quire_route);
  void (*moe)(struct quire_stream *, struct quire_moe);
  void (*count)(struct quire_stream *, struct quire_count);
  void (*sample)(struct quire_stream *, struct quire_sample);
  void (*score)(struct quire_stream *, struct quire_score);
  void (*finite)(struct quire_stream *, struct quire_finite);
  /* Lays a weight out for this table: the same outputs, faster. On the calling thread. packed_out refers to data
   * (quire_weight_packed_bytes, aligned to 64) and to rows' scales. May be NULL. */
  void (*pack_weight)(const struct quire_weight *rows, void *data, struct quire_weight *packed_out);
};

/* Tables by name, best first; NULL past the end. */
const struct quire_kernels *quire_kernels_at(int index);
/* Can this machine run the table? why_out (may be NULL) says what it lacks. */
bool quire_kernels_can(const struct quire_kernels *kernels, const char **why_out);
/* "auto" or a name; QUIRE_ERR_UNSUPPORTED names what the machine lacks. */
enum quire_status quire_kernels_find(const char *name, const struct quire_kernels **kernels_out,
                                     struct quire_error *error_out);

/* Sets FTZ and DAZ on the calling thread, returning the former control word for quire_kernels_leave. */
uint32_t quire_kernels_enter(void);
void quire_kernels_leave(uint32_t control);

/* Whether a weight has a packed layout (bf16 with k a multiple of 32, fp8 of 128), and its bytes there. */
bool quire_weight_can_pack(const struct quire_weight *rows);
int64_t quire_weight_packed_bytes(const struct quire_weight *rows);
/* Scratch of the operations for m rows and a team of `threads`. */
int64_t quire_gemm_scratch_bytes(int32_t m, int32_t k, int threads);
int64_t quire_select_scratch_bytes(int32_t heads, int32_t topk, int32_t limit_max, int threads);
int64_t quire_attend_scratch_bytes(int32_t heads, int32_t topk, int threads);
/* Reads m, hidden, the widths, expert_count and k of shape. */
int64_t quire_moe_scratch_bytes(const struct quire_moe *shape, int threads);
int64_t quire_sample_scratch_bytes(int32_t vocab, int threads);

struct quire_rope_config {
  float theta;
  bool yarn;
  float factor;
  int32_t original_positions;
  float beta_fast, beta_slow;
  float attention_factor; /* multiplies cos and sin; 1 when mscale = mscale_all_dim */
};

/* Fills table_out [positions][32][2] with cos and sin of position * freq_i in f32 angles (docs/arithmetic.md). Host
 * side, at load. */
void quire_rope_table(const struct quire_rope_config *config, int32_t positions, float *table_out);

/* Softmax scale (dn+dr)^-1/2 * m^2, m = 0.1 * mscale_all_dim * ln(factor) + 1 with YaRN and factor > 1. */
float quire_softmax_scale(int32_t qk_dim, bool yarn, float factor, float mscale_all_dim);

/* The exact conversions everybody shares. Inline in number.h; these are their names for tests and bindings. */
uint16_t quire_bf16_of(float x);
float quire_f32_of_bf16(uint16_t x);
uint8_t quire_e4m3_of(float x);
float quire_f32_of_e4m3(uint8_t x);

#ifdef __cplusplus
}
#endif
#endif
