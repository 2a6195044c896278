/* Resolving a checkpoint. One loader walks the layers and asks for each tensor by its name in the hub's spelling; what
 * the checkpoint has beyond that is a fault too, since a tensor nobody reads (a bias, say) is an arithmetic nobody
 * does.
 *
 * kv_b is dequantised before it is split: its 128-row blocks of scales straddle the border between keys and values and,
 * in models whose heads are no multiple of 128 rows, the heads themselves. */
#include "model/weights.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/hash.h"
#include "kernels/number.h"

#define NAME_BYTES 192
#define SHAPE_BYTES 96
#define CONFIG_TEXT_BYTES 1024
#define SAMPLE_BYTES ((size_t)4096)
#define BLOCK_ALIGN ((size_t)64)

/* A copy's memory: this header, then the bytes. */
struct block {
  _Alignas(64) struct block *next;
  size_t bytes; /* with the header */
};

/* Packed matrices lie side by side in pieces, in huge pages where the system gives them. */
#define PIECE_BYTES ((size_t)8 << 20)
#define PIECE_ALIGN ((size_t)2 << 20)

struct piece {
  struct piece *next;
  uint8_t *data;
  size_t bytes, used;
};

struct loaded {
  struct quire_model_weights weights; /* first: what the caller holds is a pointer to it */
  const struct quire_env *env;
  struct block *blocks;
  struct piece *pieces;
};

struct loader {
  struct loaded *loaded;
  const struct quire_weights_args *args;
  const struct quire_model_config *config;
  uint8_t *used; /* [tensors] */
  bool mtp;
  uint64_t done, total;
  char prefix[NAME_BYTES / 2]; /* of the layer being read */
  struct quire_error *error;
  enum quire_status status; /* the first failure; later questions do nothing */
};

/* How a matrix may be stored and what becomes of it. */
enum use {
  USE_GEMM,      /* f32, bf16 or fp8; f32 is rounded to bf16 when the compute type is bf16 */
  USE_AS_STORED, /* f32 or bf16, never converted */
};

static void fail(struct loader *l, enum quire_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct loader *l, enum quire_status status, const char *format, ...) {
  QUIRE_ASSERT(status != QUIRE_OK);
  if (l->status) {
    return;
  }
  char text[QUIRE_TEXT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  l->status = quire_error_set(l->error, status, "weights", "%s", text);
}

/* ---- memory ---- */

/* bytes that live as long as the weights, aligned to 64; NULL after a failure. */
static void *copy_alloc(struct loader *l, size_t bytes) {
  QUIRE_ASSERT(bytes > 0);
  if (l->status) {
    return NULL;
  }
  const struct quire_env *env = l->loaded->env;
  size_t size = sizeof(struct block) + bytes;
  struct block *block = size > bytes ? env->alloc(env->context, size, BLOCK_ALIGN) : NULL;
  if (!block) {
    fail(l, QUIRE_ERR_MEMORY, "no memory for a copy of %zu bytes", bytes);
    return NULL;
  }
  block->next = l->loaded->blocks;
  block->bytes = size;
  l->loaded->blocks = block;
  l->loaded->weights.copied_bytes += bytes;
  return block + 1;
}

/* Gives a copy back that nothing refers to any more. */
static void copy_free(struct loader *l, const void *copy) {
  const struct quire_env *env = l->loaded->env;
  struct block **at = &l->loaded->blocks;
  while (*at + 1 != copy) {
    at = &(*at)->next;
  }
  struct block *block = *at;
  QUIRE_ASSERT(l->loaded->weights.copied_bytes >= block->bytes - sizeof *block);
  *at = block->next;
  l->loaded->weights.copied_bytes -= block->bytes - sizeof *block;
  env->dealloc(env->context, block, block->bytes);
}

/* bytes for a packed matrix, aligned to 64; NULL after a failure. */
static void *piece_alloc(struct loader *l, size_t bytes) {
  struct loaded *loaded = l->loaded;
  const struct quire_env *env = loaded->env;
  struct piece *piece = loaded->pieces;
  const size_t size = (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
  if (l->status) {
    return NULL;
  }
  if (!piece || piece->bytes - piece->used < size) {
    const size_t want = size > PIECE_BYTES ? (size + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN : PIECE_BYTES;
    piece = quire_env_zalloc(env, 1, sizeof *piece);
    uint8_t *data = piece ? env->alloc(env->context, want, PIECE_ALIGN) : NULL;
    if (!data) {
      quire_env_free(env, piece, 1, sizeof *piece);
      fail(l, QUIRE_ERR_MEMORY, "no memory for packed matrices, %zu bytes; --weights mapped does without", want);
      return NULL;
    }
    (void)madvise(data, want, MADV_HUGEPAGE); /* a wish */
    *piece = (struct piece){loaded->pieces, data, want, 0};
    loaded->pieces = piece;
  }
  void *at = piece->data + piece->used;
  piece->used += size;
  QUIRE_ASSERT(piece->used <= piece->bytes);
  loaded->weights.packed_bytes += size;
  return at;
}

static bool can_pack(const struct loader *l, const struct quire_weight *weight) {
  return !l->status && l->args->pack && quire_weight_can_pack(weight);
}

/* ---- tensors ---- */

static const struct quire_tensor *find(const struct loader *l, const char *suffix) {
  QUIRE_ASSERT(suffix != NULL && suffix[0] != '\0');
  char name[NAME_BYTES];
  snprintf(name, sizeof name, "%s%s", l->prefix, suffix);
  return quire_safetensors_find(l->args->tensors, name);
}

/* A tensor that has to be there, now counted as used; NULL after a failure. */
static const struct quire_tensor *need(struct loader *l, const char *suffix) {
  if (l->status) {
    return NULL;
  }
  const struct quire_tensor *tensor = find(l, suffix);
  if (!tensor) {
    fail(l, QUIRE_ERR_CORRUPT,
         "tensor %s%s is missing; the checkpoint is incomplete or config.json belongs to another one", l->prefix,
         suffix);
    return NULL;
  }
  l->used[tensor - quire_safetensors_at(l->args->tensors, 0)] = 1;
  l->done += tensor->bytes;
  if (l->args->progress) {
    QUIRE_ASSERT(l->done <= l->total);
    l->args->progress(l->args->progress_context, l->done, l->total);
  }
  return tensor;
}

static const char *shape_text(char out[SHAPE_BYTES], int32_t rank, const int64_t *shape) {
  QUIRE_ASSERT(rank >= 0 && rank <= QUIRE_TENSOR_RANK_MAX);
  int used = snprintf(out, SHAPE_BYTES, "[");
  for (int32_t i = 0; i < rank; i++) {
    used += snprintf(out + used, SHAPE_BYTES - (size_t)used, "%s%" PRId64, i ? ", " : "", shape[i]);
  }
  snprintf(out + used, SHAPE_BYTES - (size_t)used, "]");
  return out;
}

/* Fails unless the tensor is [n, k], or [n] when k is 0. */
static bool check_shape(struct loader *l, const struct quire_tensor *tensor, int64_t n, int64_t k) {
  QUIRE_ASSERT(n > 0 && k >= 0);
  const int64_t wanted[2] = {n, k};
  const int32_t rank = k > 0 ? 2 : 1;
  if (tensor->rank == rank && tensor->shape[0] == n && (k == 0 || tensor->shape[1] == k)) {
    return true;
  }
  char found_text[SHAPE_BYTES], wanted_text[SHAPE_BYTES];
  fail(l, QUIRE_ERR_CORRUPT, "tensor %.160s has shape %s, but config.json says %s; they belong to different models",
       tensor->name, shape_text(found_text, tensor->rank, tensor->shape), shape_text(wanted_text, rank, wanted));
  return false;
}

static void fail_type(struct loader *l, const struct quire_tensor *tensor, const char *wanted) {
  fail(l, QUIRE_ERR_CORRUPT, "tensor %.160s has type %s, where only %s can be used; convert the checkpoint",
       tensor->name, quire_tensor_type_name(tensor->type), wanted);
}

/* The tensor's bytes where they are, or a copy when the file misaligns them. */
static const void *in_place(struct loader *l, const struct quire_tensor *tensor) {
  const size_t align = (size_t)quire_tensor_type_bytes(tensor->type);
  QUIRE_ASSERT(align > 0);
  if ((uintptr_t)tensor->data % align == 0) {
    l->loaded->weights.mapped_bytes += tensor->bytes;
    return tensor->data;
  }
  void *copy = copy_alloc(l, tensor->bytes);
  return copy ? memcpy(copy, tensor->data, tensor->bytes) : NULL;
}

static float stored_value(const struct quire_tensor *tensor, int64_t index) {
  const uint8_t *at = (const uint8_t *)tensor->data + index * quire_tensor_type_bytes(tensor->type);
  float value;
  uint16_t half;
  if (tensor->type == QUIRE_TENSOR_F32) {
    memcpy(&value, at, sizeof value);
    return value;
  }
  if (tensor->type == QUIRE_TENSOR_BF16) {
    memcpy(&half, at, sizeof half);
    return quire_bf16_widen(half);
  }
  QUIRE_ASSERT(tensor->type == QUIRE_TENSOR_F8_E4M3);
  return quire_e4m3_widen(*at);
}

/* A vector as f32. */
static const float *vector(struct loader *l, const char *suffix, int32_t n) {
  QUIRE_ASSERT(n > 0);
  const struct quire_tensor *tensor = need(l, suffix);
  if (!tensor || !check_shape(l, tensor, n, 0)) {
    return NULL;
  }
  if (tensor->type != QUIRE_TENSOR_F32 && tensor->type != QUIRE_TENSOR_BF16) {
    fail_type(l, tensor, "F32 or BF16");
    return NULL;
  }
  float *copy = copy_alloc(l, (size_t)n * sizeof *copy);
  for (int32_t i = 0; copy && i < n; i++) {
    copy[i] = stored_value(tensor, i);
    if (!(copy[i] - copy[i] == 0)) {
      fail(l, QUIRE_ERR_CORRUPT, "tensor %.160s holds a value that is not finite, at %d; restore the checkpoint",
           tensor->name, i);
      return NULL;
    }
  }
  return copy;
}

static int64_t blocks_of(int64_t n) { return (n + QUIRE_FP8_BLOCK - 1) / QUIRE_FP8_BLOCK; }

/* The scales of an fp8 matrix: the sibling `suffix`_scale_inv. NULL when there is none, or after a failure. */
static const struct quire_tensor *scales(struct loader *l, const char *suffix, int32_t n, int32_t k) {
  QUIRE_ASSERT(n > 0 && k > 0);
  char scale_suffix[NAME_BYTES / 2];
  snprintf(scale_suffix, sizeof scale_suffix, "%s_scale_inv", suffix);
  if (l->status || !find(l, scale_suffix)) {
    return NULL;
  }
  const struct quire_tensor *scale = need(l, scale_suffix);
  if (!check_shape(l, scale, blocks_of(n), blocks_of(k))) {
    return NULL;
  }
  if (scale->type != QUIRE_TENSOR_F32) {
    fail_type(l, scale, "F32");
    return NULL;
  }
  for (int32_t i = 0; i < blocks_of(n) * blocks_of(k); i++) {
    float value = stored_value(scale, i);
    if (!(value > 0 && value - value == 0)) {
      fail(l, QUIRE_ERR_CORRUPT,
           "tensor %.160s holds a scale that is not positive and finite, at %d; restore the checkpoint", scale->name,
           i);
      return NULL;
    }
  }
  return scale;
}

static const uint16_t *rounded_copy(struct loader *l, const struct quire_tensor *tensor, int64_t count) {
  QUIRE_ASSERT(count > 0);
  uint16_t *copy = copy_alloc(l, (size_t)count * sizeof *copy);
  for (int64_t i = 0; copy && i < count; i++) {
    copy[i] = quire_bf16_round(stored_value(tensor, i));
  }
  quire_safetensors_done(l->args->tensors, tensor);
  return copy;
}

/* A matrix's two tensors, checked against each other. */
struct stored {
  const struct quire_tensor *data;
  const struct quire_tensor *scale; /* fp8 only */
};

static struct stored stored_matrix(struct loader *l, const char *suffix, int32_t n, int32_t k) {
  QUIRE_ASSERT(n > 0 && k > 0);
  struct stored stored = {need(l, suffix), NULL};
  if (!stored.data || !check_shape(l, stored.data, n, k)) {
    return (struct stored){NULL, NULL};
  }
  stored.scale = scales(l, suffix, n, k);
  const bool fp8 = stored.data->type == QUIRE_TENSOR_F8_E4M3;
  if (!fp8 && stored.data->type != QUIRE_TENSOR_F32 && stored.data->type != QUIRE_TENSOR_BF16) {
    fail_type(l, stored.data, "F32, BF16 or F8_E4M3");
  } else if (!l->status && fp8 != (stored.scale != NULL)) {
    fail(l, QUIRE_ERR_CORRUPT, "tensor %.160s is %s, but %s a sibling weight_scale_inv; restore the checkpoint",
         stored.data->name, quire_tensor_type_name(stored.data->type), fp8 ? "lacks" : "has");
  }
  return l->status ? (struct stored){NULL, NULL} : stored;
}

/* A matrix that was resolved, packed where it can be; what it was packed from is given back. */
static struct quire_weight packed(struct loader *l, const struct quire_tensor *tensor, struct quire_weight rows) {
  QUIRE_ASSERT(rows.data != NULL || l->status != QUIRE_OK);
  struct quire_weight weight = rows;
  if (!can_pack(l, &rows)) {
    return rows;
  }
  void *data = piece_alloc(l, (size_t)quire_weight_packed_bytes(&rows));
  if (!data) {
    return rows;
  }
  l->args->pack->pack_weight(&rows, data, &weight);
  if (rows.data == tensor->data) {
    l->loaded->weights.mapped_bytes -= tensor->bytes;
  } else {
    copy_free(l, rows.data);
  }
  quire_safetensors_done(l->args->tensors, tensor);
  return weight;
}

static struct quire_weight matrix(struct loader *l, const char *suffix, int32_t n, int32_t k, enum use use) {
  QUIRE_ASSERT(n > 0 && k > 0);
  struct quire_weight weight = {.n = n, .k = k, .ld = k};
  struct stored stored = stored_matrix(l, suffix, n, k);
  if (!stored.data) {
    return weight;
  }
  if (stored.scale) {
    if (use == USE_AS_STORED) {
      fail_type(l, stored.data, "F32 or BF16");
    }
    weight.dtype = QUIRE_DTYPE_FP8;
    weight.data = in_place(l, stored.data);
    weight.scale = in_place(l, stored.scale);
    weight.scale_ld = (int32_t)blocks_of(k);
    return use == USE_GEMM ? packed(l, stored.data, weight) : weight;
  }
  const bool round = stored.data->type == QUIRE_TENSOR_F32 && use == USE_GEMM && l->args->compute == QUIRE_DTYPE_BF16;
  weight.dtype = stored.data->type == QUIRE_TENSOR_F32 && !round ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16;
  weight.data = round ? (const void *)rounded_copy(l, stored.data, (int64_t)n * k) : in_place(l, stored.data);
  return use == USE_GEMM ? packed(l, stored.data, weight) : weight;
}

/* ---- kv_b ---- */

/* W[row, column .. column + 511] of a matrix of 512 columns, as f32. */
static void dequantised_row(struct stored stored, int64_t row, float out[QUIRE_LATENT_DIM]) {
  QUIRE_ASSERT(stored.data != NULL && row >= 0);
  for (int64_t i = 0; i < QUIRE_LATENT_DIM; i++) {
    out[i] = stored_value(stored.data, row * QUIRE_LATENT_DIM + i);
    if (stored.scale) {
      const int64_t block = row / QUIRE_FP8_BLOCK * blocks_of(QUIRE_LATENT_DIM) + i / QUIRE_FP8_BLOCK;
      out[i] *= stored_value(stored.scale, block);
    }
  }
}

static void store_value(const struct quire_weight *weight, int64_t index, float value) {
  QUIRE_ASSERT(index >= 0);
  if (weight->dtype == QUIRE_DTYPE_F32) {
    ((float *)(uintptr_t)weight->data)[index] = value;
  } else {
    ((uint16_t *)(uintptr_t)weight->data)[index] = quire_bf16_round(value);
  }
}

static struct quire_head_weights head_weights(struct loader *l, enum quire_dtype dtype, int32_t n, int32_t k) {
  QUIRE_ASSERT(n > 0 && k > 0);
  struct quire_head_weights heads = {
      .first = {.dtype = dtype, .n = n, .k = k, .ld = k},
      .stride = (int64_t)n * k,
  };
  const size_t element = dtype == QUIRE_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
  heads.first.data = copy_alloc(l, (size_t)(heads.stride * l->config->heads) * element);
  return heads;
}

/* The same matrices, packed one behind another where they can be. */
static void pack_heads(struct loader *l, struct quire_head_weights *heads) {
  const struct quire_weight first = heads->first;
  if (!can_pack(l, &first)) {
    return;
  }
  const int64_t bytes = quire_weight_packed_bytes(&first);
  QUIRE_ASSERT(bytes > 0 && bytes % (int64_t)sizeof(uint16_t) == 0);
  uint8_t *data = piece_alloc(l, (size_t)(bytes * l->config->heads));
  if (!data) {
    return;
  }
  struct quire_weight weight;
  for (int32_t head = l->config->heads - 1; head >= 0; head--) {
    const struct quire_weight rows = quire_head_weight(heads, head);
    l->args->pack->pack_weight(&rows, data + head * bytes, &weight);
  }
  heads->first = weight; /* of head 0, the last */
  heads->stride = bytes / (int64_t)sizeof(uint16_t);
  copy_free(l, first.data);
}

/* Rows of a head: nope of W_UK, then value of W_UV; W_UK is transposed, so that a row of it is summed over nope. */
static void split_kv_b(struct loader *l, struct quire_layer_weights *layer) {
  QUIRE_ASSERT(l->config->kv_rank == QUIRE_LATENT_DIM);
  const struct quire_model_config *c = l->config;
  const int32_t rows = c->nope_dim + c->value_dim;
  struct stored stored = stored_matrix(l, "self_attn.kv_b_proj.weight", c->heads * rows, QUIRE_LATENT_DIM);
  if (!stored.data) {
    return;
  }
  /* scales that are no powers of two make an fp8 value wider than bf16 */
  const bool wide = stored.data->type != QUIRE_TENSOR_BF16 && l->args->compute == QUIRE_DTYPE_F32;
  const enum quire_dtype dtype = wide ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16;
  layer->w_uk = head_weights(l, dtype, QUIRE_LATENT_DIM, c->nope_dim);
  layer->w_uv = head_weights(l, dtype, c->value_dim, QUIRE_LATENT_DIM);
  if (l->status) {
    return;
  }
  float row[QUIRE_LATENT_DIM];
  for (int32_t head = 0; head < c->heads; head++) {
    for (int32_t i = 0; i < rows; i++) {
      dequantised_row(stored, (int64_t)head * rows + i, row);
      const bool key = i < c->nope_dim;
      const struct quire_head_weights *to = key ? &layer->w_uk : &layer->w_uv;
      const int64_t first = head * to->stride + (key ? i : (int64_t)(i - c->nope_dim) * QUIRE_LATENT_DIM);
      const int64_t step = key ? c->nope_dim : 1;
      for (int64_t j = 0; j < QUIRE_LATENT_DIM; j++) {
        store_value(&to->first, first + j * step, row[j]);
      }
    }
  }
  pack_heads(l, &layer->w_uk);
  pack_heads(l, &layer->w_uv);
  quire_safetensors_done(l->args->tensors, stored.data);
}

struct quire_weight quire_head_weight(const struct quire_head_weights *weights, int32_t head) {
  QUIRE_ASSERT(weights && head >= 0 && weights->first.dtype != QUIRE_DTYPE_FP8);
  struct quire_weight weight = weights->first;
  const int64_t element = weight.dtype == QUIRE_DTYPE_F32 ? 4 : 2;
  weight.data = (const uint8_t *)weight.data + head * weights->stride * element;
  return weight;
}

/* ---- layers ---- */

static struct quire_expert mlp(struct loader *l, const char *prefix, int32_t width) {
  QUIRE_ASSERT(width > 0);
  const int32_t hidden = l->config->hidden;
  char suffix[NAME_BYTES / 2];
  struct quire_expert expert;
  snprintf(suffix, sizeof suffix, "%sgate_proj.weight", prefix);
  expert.gate = matrix(l, suffix, width, hidden, USE_GEMM);
  snprintf(suffix, sizeof suffix, "%sup_proj.weight", prefix);
  expert.up = matrix(l, suffix, width, hidden, USE_GEMM);
  snprintf(suffix, sizeof suffix, "%sdown_proj.weight", prefix);
  expert.down = matrix(l, suffix, hidden, width, USE_GEMM);
  return expert;
}

static void load_moe(struct loader *l, struct quire_layer_weights *layer) {
  const struct quire_model_config *c = l->config;
  QUIRE_ASSERT(c->experts > 0 && c->experts_per_token <= c->experts);
  static const char *const fused[] = {"mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj.weight",
                                      "mlp.experts.down_proj", "mlp.experts.down_proj.weight"};
  for (size_t i = 0; i < sizeof fused / sizeof fused[0]; i++) {
    if (!l->status && find(l, fused[i])) {
      fail(l, QUIRE_ERR_UNSUPPORTED,
           "tensor %s%s holds all experts in one; save the checkpoint with one tensor an expert "
           "(mlp.experts.J.gate_proj)",
           l->prefix, fused[i]);
    }
  }
  layer->router = matrix(l, "mlp.gate.weight", c->experts, c->hidden, USE_AS_STORED);
  layer->router_bias = vector(l, "mlp.gate.e_score_correction_bias", c->experts);
  struct quire_expert *experts = copy_alloc(l, (size_t)c->experts * sizeof *experts);
  for (int32_t j = 0; j < c->experts && experts && !l->status; j++) {
    char prefix[48];
    snprintf(prefix, sizeof prefix, "mlp.experts.%d.", j);
    experts[j] = mlp(l, prefix, c->expert_width);
  }
  layer->experts = experts;
  if (c->shared_width > 0) {
    layer->shared = mlp(l, "mlp.shared_experts.", c->shared_width);
  }
}

static void load_index(struct loader *l, struct quire_index_weights *index) {
  const struct quire_model_config *c = l->config;
  QUIRE_ASSERT(c->index_heads > 0);
  index->wq_b = matrix(l, "self_attn.indexer.wq_b.weight", c->index_heads * c->index_dim, c->q_rank, USE_GEMM);
  index->wk = matrix(l, "self_attn.indexer.wk.weight", c->index_dim, c->hidden, USE_GEMM);
  index->weights = matrix(l, "self_attn.indexer.weights_proj.weight", c->index_heads, c->hidden, USE_AS_STORED);
  index->k_norm_gain = vector(l, "self_attn.indexer.k_norm.weight", c->index_dim);
  index->k_norm_bias = vector(l, "self_attn.indexer.k_norm.bias", c->index_dim);
}

static void load_layer(struct loader *l, int32_t number, struct quire_layer_weights *layer) {
  QUIRE_ASSERT(number >= 0 && number <= l->config->layers);
  const struct quire_model_config *c = l->config;
  snprintf(l->prefix, sizeof l->prefix, "model.layers.%d.", number);
  layer->input_norm = vector(l, "input_layernorm.weight", c->hidden);
  layer->post_norm = vector(l, "post_attention_layernorm.weight", c->hidden);
  layer->q_a = matrix(l, "self_attn.q_a_proj.weight", c->q_rank, c->hidden, USE_GEMM);
  layer->q_a_norm = vector(l, "self_attn.q_a_layernorm.weight", c->q_rank);
  layer->q_b = matrix(l, "self_attn.q_b_proj.weight", c->heads * c->qk_dim, c->q_rank, USE_GEMM);
  layer->kv_a = matrix(l, "self_attn.kv_a_proj_with_mqa.weight", c->kv_rank + c->rope_dim, c->hidden, USE_GEMM);
  layer->kv_a_norm = vector(l, "self_attn.kv_a_layernorm.weight", c->kv_rank);
  split_kv_b(l, layer);
  layer->o = matrix(l, "self_attn.o_proj.weight", c->hidden, c->heads * c->value_dim, USE_GEMM);
  layer->owns_indexer = c->owns_indexer[number];
  if (layer->owns_indexer) {
    load_index(l, &layer->index);
  }
  layer->moe = c->moe[number];
  if (layer->moe) {
    load_moe(l, layer);
  } else {
    layer->mlp = mlp(l, "mlp.", c->dense_width);
  }
}

static void load_mtp(struct loader *l) {
  QUIRE_ASSERT(l->config->mtp_layers > 0);
  const struct quire_model_config *c = l->config;
  struct quire_model_weights *weights = &l->loaded->weights;
  struct quire_mtp_weights *mtp = &weights->mtp;
  load_layer(l, c->layers, &mtp->layer);
  mtp->e_norm = vector(l, "enorm.weight", c->hidden);
  mtp->h_norm = vector(l, "hnorm.weight", c->hidden);
  mtp->proj = matrix(l, "eh_proj.weight", c->hidden, 2 * c->hidden, USE_GEMM);
  mtp->head_norm = vector(l, "shared_head.norm.weight", c->hidden);
  mtp->embed = find(l, "embed_tokens.weight") ? matrix(l, "embed_tokens.weight", c->vocab, c->hidden, USE_AS_STORED)
                                              : weights->embed;
  mtp->head = find(l, "shared_head.head.weight") ? matrix(l, "shared_head.head.weight", c->vocab, c->hidden, USE_GEMM)
                                                 : weights->head;
  weights->has_mtp = true;
}

static void load_all(struct loader *l) {
  const struct quire_model_config *c = l->config;
  QUIRE_ASSERT(c->layers > 0 && c->layers <= QUIRE_MODEL_LAYERS_MAX);
  struct quire_model_weights *weights = &l->loaded->weights;
  l->prefix[0] = '\0';
  weights->embed = matrix(l, "model.embed_tokens.weight", c->vocab, c->hidden, USE_AS_STORED);
  weights->final_norm = vector(l, "model.norm.weight", c->hidden);
  weights->head = matrix(l, "lm_head.weight", c->vocab, c->hidden, USE_GEMM);
  const size_t bytes = (size_t)c->layers * sizeof(struct quire_layer_weights);
  struct quire_layer_weights *layers = copy_alloc(l, bytes);
  if (layers) {
    memset(layers, 0, bytes);
  }
  weights->layers = c->layers;
  weights->layer = layers;
  for (int32_t i = 0; i < c->layers && layers && !l->status; i++) {
    load_layer(l, i, &layers[i]);
  }
  if (l->mtp && !l->status) {
    load_mtp(l);
  }
}

/* ---- the whole ---- */

/* A tensor that may be in a checkpoint without being read: tables some exporters add, and a draft layer that is off. */
static bool may_be_unused(const struct loader *l, const char *name) {
  QUIRE_ASSERT(name != NULL);
  static const char table[] = ".rotary_emb.inv_freq";
  char draft[48];
  const size_t length = strlen(name);
  const size_t draft_length = (size_t)snprintf(draft, sizeof draft, "model.layers.%d.", l->config->layers);
  return (length >= sizeof table - 1 && strcmp(name + length - (sizeof table - 1), table) == 0) ||
         (!l->mtp && strncmp(name, draft, draft_length) == 0);
}

static void check_unused(struct loader *l) {
  QUIRE_ASSERT(l->used != NULL);
  for (int32_t i = 0; i < quire_safetensors_count(l->args->tensors) && !l->status; i++) {
    const char *name = quire_safetensors_at(l->args->tensors, i)->name;
    if (!l->used[i] && !may_be_unused(l, name)) {
      fail(l, QUIRE_ERR_CORRUPT,
           "tensor %.160s has no place in this model; the checkpoint holds another arithmetic than config.json says",
           name);
    }
  }
}

static void choose_mtp(struct loader *l) {
  QUIRE_ASSERT(l->config->mtp_layers >= 0 && l->config->mtp_layers <= 1);
  snprintf(l->prefix, sizeof l->prefix, "model.layers.%d.", l->config->layers);
  const bool there = find(l, "eh_proj.weight") != NULL;
  if (l->args->mtp == QUIRE_MTP_ON && l->config->mtp_layers == 0) {
    fail(l, QUIRE_ERR_ARGUMENT, "the model has no draft layer (num_nextn_predict_layers is 0); set mtp to off or auto");
  } else if (l->args->mtp == QUIRE_MTP_ON && !there) {
    fail(l, QUIRE_ERR_ARGUMENT,
         "the checkpoint lacks the draft layer (%seh_proj.weight); set mtp to off or auto, or use the full checkpoint",
         l->prefix);
  }
  l->mtp = l->args->mtp != QUIRE_MTP_OFF && l->config->mtp_layers == 1 && there;
  if (l->args->mtp == QUIRE_MTP_AUTO && l->config->mtp_layers == 1 && !there) {
    quire_env_log(l->loaded->env, QUIRE_LOG_WARN,
                  "weights: config.json names a draft layer, but the checkpoint lacks it; there will be no drafts");
  }
}

enum quire_status quire_model_weights_open(const struct quire_env *env, const struct quire_weights_args *args,
                                           const struct quire_model_weights **weights_out,
                                           struct quire_error *error_out) {
  QUIRE_ASSERT(env && args && args->config && args->tensors && weights_out);
  QUIRE_ASSERT(args->compute == QUIRE_DTYPE_F32 || args->compute == QUIRE_DTYPE_BF16);
  QUIRE_ASSERT(!args->pack || (args->pack->pack_weight && args->compute == QUIRE_DTYPE_BF16));
  const int32_t count = quire_safetensors_count(args->tensors);
  struct loader l = {.args = args, .config = args->config, .error = error_out};
  l.loaded = quire_env_zalloc(env, 1, sizeof *l.loaded);
  l.used = quire_env_zalloc(env, (size_t)count + 1, sizeof *l.used);
  if (!l.loaded || !l.used) {
    quire_env_free(env, l.used, (size_t)count + 1, sizeof *l.used);
    quire_env_free(env, l.loaded, 1, sizeof *l.loaded);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "weights", "no memory for the table of weights");
  }
  l.loaded->env = env;
  l.loaded->weights.packed_for = args->pack;
  const uint32_t control = quire_kernels_enter();
  choose_mtp(&l);
  for (int32_t i = 0; i < count; i++) {
    const struct quire_tensor *tensor = quire_safetensors_at(args->tensors, i);
    l.total += may_be_unused(&l, tensor->name) ? 0 : tensor->bytes;
  }
  if (!l.status) {
    load_all(&l);
  }
  check_unused(&l);
  quire_kernels_leave(control);
  quire_env_free(env, l.used, (size_t)count + 1, sizeof *l.used);
  if (l.status) {
    quire_model_weights_close(&l.loaded->weights);
    return l.status;
  }
  quire_model_identity(args->config, args->tensors, l.loaded->weights.identity);
  *weights_out = &l.loaded->weights;
  return QUIRE_OK;
}

void quire_model_weights_close(const struct quire_model_weights *weights) {
  if (!weights) {
    return;
  }
  struct loaded *loaded = (struct loaded *)(uintptr_t)weights;
  QUIRE_ASSERT(loaded->env != NULL);
  const struct quire_env *env = loaded->env;
  for (struct block *block = loaded->blocks; block;) {
    struct block *next = block->next;
    env->dealloc(env->context, block, block->bytes);
    block = next;
  }
  for (struct piece *piece = loaded->pieces; piece;) {
    struct piece *next = piece->next;
    env->dealloc(env->context, piece->data, piece->bytes);
    quire_env_free(env, piece, 1, sizeof *piece);
    piece = next;
  }
  quire_env_free(env, loaded, 1, sizeof *loaded);
}

/* ---- identity ---- */

/* The fields that shape the arithmetic, as text: padding of a struct has no defined bytes. */
static struct quire_hash128 config_hash(const struct quire_model_config *c) {
  char text[CONFIG_TEXT_BYTES];
  int used =
      snprintf(text, sizeof text,
               "family=%d hidden=%d vocab=%d layers=%d heads=%d q=%d kv=%d nope=%d rope=%d value=%d scale=%a "
               "theta=%a yarn=%d factor=%a original=%d fast=%a slow=%a attention=%a layout=%d index=%d,%d,%d,%a,%d "
               "dense=%d experts=%d,%d,%d,%d groups=%d,%d normalise=%d routed=%a mtp=%d eps=%a,%a layers=",
               (int)c->family, c->hidden, c->vocab, c->layers, c->heads, c->q_rank, c->kv_rank, c->nope_dim,
               c->rope_dim, c->value_dim, (double)c->softmax_scale, (double)c->rope.theta, c->rope.yarn,
               (double)c->rope.factor, c->rope.original_positions, (double)c->rope.beta_fast, (double)c->rope.beta_slow,
               (double)c->rope.attention_factor, (int)c->rope_layout, c->index_heads, c->index_dim, c->index_topk,
               (double)c->index_weight_scale, (int)c->index_rope_layout, c->dense_width, c->experts,
               c->experts_per_token, c->expert_width, c->shared_width, c->groups, c->groups_kept, c->normalise,
               (double)c->routed_scaling, c->mtp_layers, (double)c->norm_eps, (double)c->index_norm_eps);
  QUIRE_ASSERT(used > 0 && used + c->layers < (int)sizeof text);
  for (int32_t i = 0; i < c->layers; i++) {
    text[used++] = (char)('0' + c->moe[i] + 2 * c->owns_indexer[i]);
  }
  return quire_hash128(text, (size_t)used, 0);
}

static struct quire_hash128 tensor_hash(const struct quire_tensor *tensor) {
  QUIRE_ASSERT(tensor->data != NULL || tensor->bytes == 0);
  struct quire_hash128_stream stream;
  const uint8_t *data = tensor->data;
  quire_hash128_begin(&stream, 0);
  quire_hash128_add(&stream, tensor->name, strlen(tensor->name) + 1);
  quire_hash128_add(&stream, quire_tensor_type_name(tensor->type), strlen(quire_tensor_type_name(tensor->type)) + 1);
  quire_hash128_add(&stream, tensor->shape, sizeof tensor->shape);
  if (tensor->bytes <= 2 * SAMPLE_BYTES) {
    quire_hash128_add(&stream, data, tensor->bytes);
  } else {
    quire_hash128_add(&stream, data, SAMPLE_BYTES);
    quire_hash128_add(&stream, data + tensor->bytes - SAMPLE_BYTES, SAMPLE_BYTES);
  }
  return quire_hash128_end(&stream);
}

void quire_model_identity(const struct quire_model_config *config, const struct quire_safetensors *tensors,
                          uint64_t digest_out[2]) {
  QUIRE_ASSERT(config && tensors && digest_out);
  /* digests of tensors are added up, so that neither their order nor the files they lie in matter */
  struct quire_hash128 parts[2] = {config_hash(config), {0, 0}};
  quire_safetensors_sparse(tensors, true);
  for (int32_t i = 0; i < quire_safetensors_count(tensors); i++) {
    const struct quire_tensor *tensor = quire_safetensors_at(tensors, i);
    struct quire_hash128 hash = tensor_hash(tensor);
    quire_safetensors_done(tensors, tensor); /* of one that was copied these pages would stay */
    parts[1].low += hash.low;
    parts[1].high += hash.high;
  }
  quire_safetensors_sparse(tensors, false);
  struct quire_hash128 identity = quire_hash128(parts, sizeof parts, 0);
  digest_out[0] = identity.low;
  digest_out[1] = identity.high;
}
