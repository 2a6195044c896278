/* The table of a GPU's operations: the launchers of this folder with a stream of ours in front of them. */
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "base/assert.h"
#include "kernels/cuda/cuda_attend.h"
#include "kernels/cuda/cuda_finite.h"
#include "kernels/cuda/cuda_put_rows.h"
#include "kernels/cuda/cuda_select.h"
#include "kernels/kernels_cuda.h"
#include "layout/carve.h"

#define ROWS_FEW_MAX 4 /* rows of a source at most that select takes for few */
#define BLANK_TOKENS 64

static int32_t processors_of(int32_t device) {
  int processors = 0;
  (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  QUIRE_ASSERT(processors > 0);
  return processors;
}

static void launched(struct quire_stream *stream, enum quire_status status) {
  if (status != QUIRE_OK) {
    cudaError_t error = cudaGetLastError();
    quire_stream_fail(stream, (int)(error == cudaSuccess ? cudaErrorLaunchFailure : error));
  }
}

static void put_rows(struct quire_stream *stream, struct quire_cuda_put_rows put) {
  void *native = quire_stream_native(stream);
  if (native != NULL && put.m > 0) {
    launched(stream, quire_cuda_put_rows(native, &put));
  }
}

static void cuda_quantise_latent(struct quire_stream *stream, struct quire_quantise_latent args) {
  put_rows(stream, (struct quire_cuda_put_rows){
                       .latent = args.latent,
                       .rope = args.rope,
                       .latent_ld = args.latent_ld,
                       .rope_ld = args.rope_ld,
                       .latent_out = args.out,
                       .m = args.m,
                       .format = args.format,
                       .any_scale = args.any_scale,
                   });
}

static void cuda_quantise_index(struct quire_stream *stream, struct quire_quantise_index args) {
  put_rows(stream, (struct quire_cuda_put_rows){
                       .key = args.key,
                       .key_ld = args.key_ld,
                       .keys_out = args.keys_out,
                       .scales_out = args.scales_out,
                       .m = args.m,
                       .format = args.format,
                       .any_scale = args.any_scale,
                   });
}

static void cuda_select(struct quire_stream *stream, struct quire_select args) {
  void *native = quire_stream_native(stream);
  int device = 0;
  if (native != NULL && args.rows.m > 0) {
    (void)cudaGetDevice(&device); /* quire_stream_native has made it the stream's */
    struct quire_cuda_select select = {
        .op = args, .maps = quire_cuda_select_maps(NULL), .multiprocessors = processors_of(device)};
    launched(stream, quire_cuda_select(native, &select));
  }
}

static void cuda_attend(struct quire_stream *stream, struct quire_attend args) {
  void *native = quire_stream_native(stream);
  if (native != NULL && args.rows.m > 0) {
    launched(stream, quire_cuda_attend(native, &args));
  }
}

static void cuda_finite(struct quire_stream *stream, struct quire_finite args) {
  void *native = quire_stream_native(stream);
  if (native != NULL && args.m > 0) {
    launched(stream, quire_cuda_finite(native, &args));
  }
}

static void no_gemm(struct quire_stream *stream, struct quire_gemm args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_rmsnorm(struct quire_stream *stream, struct quire_rmsnorm args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_layernorm(struct quire_stream *stream, struct quire_layernorm args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_rope(struct quire_stream *stream, struct quire_rope args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_hadamard(struct quire_stream *stream, struct quire_hadamard args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_convert(struct quire_stream *stream, struct quire_convert args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_add(struct quire_stream *stream, struct quire_add args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_embed(struct quire_stream *stream, struct quire_embed args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_silu_mul(struct quire_stream *stream, struct quire_silu_mul args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_route(struct quire_stream *stream, struct quire_route args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_moe(struct quire_stream *stream, struct quire_moe args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_count(struct quire_stream *stream, struct quire_count args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_sample(struct quire_stream *stream, struct quire_sample args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static void no_score(struct quire_stream *stream, struct quire_score args) {
  (void)args;
  QUIRE_ASSERT(stream == NULL && !"this operation is not on the GPU yet");
}

static const struct quire_kernels table = {
    .size = sizeof(struct quire_kernels),
    .version = 1,
    .name = "sm90",
    .gemm = no_gemm,
    .rmsnorm = no_rmsnorm,
    .layernorm = no_layernorm,
    .rope = no_rope,
    .hadamard = no_hadamard,
    .convert = no_convert,
    .add = no_add,
    .embed = no_embed,
    .silu_mul = no_silu_mul,
    .quantise_latent = cuda_quantise_latent,
    .quantise_index = cuda_quantise_index,
    .select = cuda_select,
    .attend = cuda_attend,
    .route = no_route,
    .moe = no_moe,
    .count = no_count,
    .sample = no_sample,
    .score = no_score,
    .finite = cuda_finite,
};

const struct quire_kernels *quire_kernels_cuda(void) { return &table; }

/* -- loading ------------------------------------------------------------------------------------------------------ */

/* One row's arrays, of zeros: a source without rows, an empty list. */
struct blank {
  struct quire_kv_source *source;
  int32_t *source_of, *limit, *indices, *counts;
  float *x, *lse; /* x: queries of all heads, and rows of a layer */
  uint8_t *q_latent, *q_rope, *out;
};

static size_t lay_blank(const struct quire_kernels_cuda_load *load, uint8_t *base, struct blank *blank) {
  struct quire_carve carve = {base, 0};
  QUIRE_ASSERT(load->shape.heads > 0 && load->shape.index_heads > 0);
  blank->source = quire_carve(&carve, 1, sizeof *blank->source);
  blank->source_of = quire_carve(&carve, 1, sizeof(int32_t));
  blank->limit = quire_carve(&carve, 1, sizeof(int32_t));
  blank->counts = quire_carve(&carve, 1, sizeof(int32_t));
  blank->indices = quire_carve(&carve, load->shape.topk, sizeof(int32_t));
  blank->x = quire_carve(&carve, load->shape.index_heads, QUIRE_KV_DIM * sizeof(float));
  blank->lse = quire_carve(&carve, load->shape.heads, sizeof(float));
  blank->q_latent = quire_carve(&carve, load->shape.heads, QUIRE_LATENT_DIM * sizeof(uint16_t));
  blank->q_rope = quire_carve(&carve, load->shape.heads, QUIRE_ROPE_DIM * sizeof(uint16_t));
  blank->out = quire_carve(&carve, load->shape.heads, QUIRE_LATENT_DIM * sizeof(float));
  return carve.used;
}

static struct quire_select select_of(const struct quire_kernels_cuda_load *load, const struct blank *blank,
                                     const struct quire_parts *parts) {
  QUIRE_ASSERT(load->shape.topk > 0);
  return (struct quire_select){
      .rows = {blank->source, blank->source_of, blank->limit, 1, 0},
      .part = parts->part[quire_parts_find(parts, QUIRE_PART_TARGET, QUIRE_PART_INDEX_KEY, 0)],
      .q = blank->x,
      .w = blank->x,
      .indices_out = blank->indices,
      .counts_out = blank->counts,
      .scratch = load->select_scratch,
      .format = load->shape.format,
      .heads = load->shape.index_heads,
      .topk = load->shape.topk,
      .limit_max = BLANK_TOKENS,
  };
}

static struct quire_attend attend_of(const struct quire_kernels_cuda_load *load, const struct blank *blank,
                                     const struct quire_parts *parts) {
  QUIRE_ASSERT(load->shape.topk > 0);
  return (struct quire_attend){
      .rows = {blank->source, blank->source_of, blank->limit, 1, 0},
      .part = parts->part[quire_parts_find(parts, QUIRE_PART_TARGET, QUIRE_PART_LATENT, 0)],
      .q_latent = blank->q_latent,
      .q_rope = blank->q_rope,
      .indices = blank->indices,
      .counts = blank->counts,
      .out = blank->out,
      .lse = blank->lse,
      .format = load->shape.format,
      .q_dtype = QUIRE_DTYPE_BF16,
      .out_dtype = QUIRE_DTYPE_F32,
      .heads = load->shape.heads,
      .topk = load->shape.topk,
      .scale = 1.0f,
  };
}

/* Every kernel that rows of this format take: select has one for each number of rows a source that is few, attend one
 * with scratch and one without. */
static void run_blank(struct quire_stream *stream, const struct quire_kernels_cuda_load *load,
                      const struct blank *blank, const struct quire_parts *parts) {
  struct quire_select select = select_of(load, blank, parts);
  struct quire_quantise_latent latent = {.latent = blank->x,
                                         .rope = blank->x,
                                         .out = blank->out,
                                         .format = load->shape.format,
                                         .m = 1,
                                         .latent_ld = QUIRE_KV_DIM,
                                         .rope_ld = QUIRE_KV_DIM};
  table.quantise_latent(stream, latent);
  table.finite(stream, (struct quire_finite){blank->x, blank->counts, 1, QUIRE_KV_DIM, QUIRE_KV_DIM});
  for (; select.source_rows <= ROWS_FEW_MAX; select.source_rows++) {
    table.select(stream, select);
  }
  struct quire_attend attend = attend_of(load, blank, parts);
  table.attend(stream, attend);
  attend.scratch = load->attend_scratch;
  table.attend(stream, attend);
}

/* The numbers that their predicates look at. */
bool quire_kernels_cuda_can(const struct quire_kernels_cuda_shape *shape, const char **why_out) {
  QUIRE_ASSERT(shape != NULL);
  struct quire_parts parts;
  if (!quire_parts_build(&parts, shape->format, BLANK_TOKENS, 1, NULL, 0)) {
    if (why_out != NULL) {
      *why_out = "rows of an unknown format";
    }
    return false;
  }
  const struct quire_select select = {
      .rows = {.m = shape->rows},
      .part = parts.part[quire_parts_find(&parts, QUIRE_PART_TARGET, QUIRE_PART_INDEX_KEY, 0)],
      .format = shape->format,
      .heads = shape->index_heads,
      .topk = shape->topk,
      .limit_max = shape->limit_max,
  };
  const struct quire_attend attend = {
      .rows = {.m = shape->rows},
      .part = parts.part[quire_parts_find(&parts, QUIRE_PART_TARGET, QUIRE_PART_LATENT, 0)],
      .format = shape->format,
      .q_dtype = QUIRE_DTYPE_BF16,
      .out_dtype = QUIRE_DTYPE_BF16,
      .heads = shape->heads,
      .topk = shape->topk,
  };
  return quire_cuda_select_can(&select, why_out) && quire_cuda_attend_can(&attend, why_out);
}

enum quire_status quire_kernels_cuda_load(const struct quire_kernels_cuda_load *load, struct quire_error *error_out) {
  struct blank blank;
  struct quire_parts parts;
  struct quire_memory *memory = NULL;
  struct quire_stream *stream = NULL;
  const char *why = NULL;
  if (!quire_kernels_cuda_can(&load->shape, &why)) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "cuda", "%s", why);
  }
  size_t bytes = lay_blank(load, NULL, &blank);
  bool built = quire_parts_build(&parts, load->shape.format, BLANK_TOKENS, 1, NULL, 0);
  QUIRE_ASSERT(built && quire_device_kind_of(load->device) == QUIRE_DEVICE_CUDA);
  enum quire_status status = quire_device_memory(load->device, bytes, &memory, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = quire_device_stream(load->device, QUIRE_STREAM_THREAD, NULL, 0, &stream, error_out);
  if (status == QUIRE_OK) {
    (void)lay_blank(load, quire_memory_base(memory), &blank);
    quire_stream_fill(stream, quire_memory_base(memory), 0, bytes);
    run_blank(stream, load, &blank, &parts);
    quire_event_sync(quire_stream_record(stream));
    status = quire_stream_check(stream, error_out);
  }
  quire_stream_destroy(stream);
  quire_memory_destroy(memory);
  return status;
}

bool quire_cuda_select_streams(const char **why_out) { return quire_cuda_select_maps(why_out) != NULL; }

int64_t quire_cuda_select_scratch(const struct quire_device *device, const struct quire_kernels_cuda_shape *shape) {
  QUIRE_ASSERT(quire_device_kind_of(device) == QUIRE_DEVICE_CUDA);
  if (!quire_kernels_cuda_can(shape, NULL)) {
    return 0;
  }
  int32_t processors = processors_of(quire_device_index(device));
  return quire_cuda_select_scratch_bytes(shape->index_heads, shape->topk, shape->rows, shape->limit_max, processors);
}

int64_t quire_cuda_attend_scratch(const struct quire_kernels_cuda_shape *shape) {
  QUIRE_ASSERT(shape != NULL);
  return quire_kernels_cuda_can(shape, NULL) ? quire_cuda_attend_scratch_bytes(shape->heads, shape->rows) : 0;
}
