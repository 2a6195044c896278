/* The table of a GPU's operations: the launchers of this folder with a stream of ours in front of them. */
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "base/assert.h"
#include "kernels/cuda/cuda_attend.h"
#include "kernels/cuda/cuda_finite.h"
#include "kernels/cuda/cuda_put_rows.h"
#include "kernels/cuda/cuda_select.h"
#include "kernels/kernels_cuda.h"

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
    struct quire_cuda_select select = {.op = args, .multiprocessors = processors_of(device)};
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

int64_t quire_cuda_select_scratch(const struct quire_device *device, int32_t heads, int32_t topk, int32_t rows,
                                  int32_t limit_max) {
  QUIRE_ASSERT(quire_device_kind_of(device) == QUIRE_DEVICE_CUDA);
  return quire_cuda_select_scratch_bytes(heads, topk, rows, limit_max, processors_of(quire_device_index(device)));
}
