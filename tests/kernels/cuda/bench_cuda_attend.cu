/* Timings of attend on a GPU, each beside its limits.
 *
 *   operations   2 * heads * 1,088 for each pair of a row and an entry of its list: 576 for the score, 512 for the
 *                value
 *   bytes        a stored row for each entry and each group of 64 heads: what comes out of the second-level cache
 *
 * prefill: 4,096 rows of one request, rows of bf16; decode: two rows a request, requests of 32,768 positions each, fp8.
 * Lists of 2,048 positions, one of each of 2,048 equal parts, ascending ("rising", as select gives them) or mixed
 * ("random"). Pages of 64 rows in order. Median of the runs by CUDA events; queries and rows are normal. Prints a
 * table. Arguments: a file for JSON lines ("" for none), and what the names of the cases must hold. */
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_check.h"
#include "kernels/cuda/cuda_attend.h"
#include "support/gpu.h"

#define PAGE_TOKENS 64
#define TOPK 2048
#define RUNS 15
#define WARM_UP_MS 60
#define DECODE_ROWS 2 /* of a request */
#define DECODE_POSITIONS 32768

static FILE *json;
static const char *only = ""; /* cases whose name holds this */

/* --- data --- */

__device__ static uint32_t mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return (uint32_t)(x ^ x >> 33);
}

__device__ static float normal(uint64_t i) {
  float u = ((float)mixed(2 * i) + 0.5f) * 0x1p-32f, v = ((float)mixed(2 * i + 1) + 0.5f) * 0x1p-32f;
  return sqrtf(-2 * logf(u)) * cospif(2 * v);
}

__global__ static void fill_bf16(__nv_bfloat16 *x, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
    x[i] = __float2bfloat16(normal((uint64_t)i + seed));
  }
}

__global__ static void fill_fp8(uint8_t *rows, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
    int d = (int)(i % QUIRE_KV_DIM);
    uint8_t *row = rows + i / QUIRE_KV_DIM * 656;
    float x = normal((uint64_t)i + seed);
    if (d >= QUIRE_LATENT_DIM) {
      ((__nv_bfloat16 *)(row + QUIRE_LATENT_DIM + 16))[d - QUIRE_LATENT_DIM] = __float2bfloat16(x);
      continue;
    }
    row[d] = __nv_cvt_float_to_fp8(x * 64, __NV_SATFINITE, __NV_E4M3);
    if (d % QUIRE_LATENT_BLOCK == 0) {
      ((float *)(row + QUIRE_LATENT_DIM))[d / QUIRE_LATENT_BLOCK] = mixed((uint64_t)i) % 2 ? 0x1p-6f : 0x1p-7f;
    }
  }
}

__global__ static void fill_lists(int32_t *lists, int64_t count, int32_t positions, bool mix) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
    int64_t row = i / TOPK, entry = i % TOPK;
    int64_t part = mix ? (entry * 1217 + row * 977) % TOPK : entry; /* 1217 is odd: every part once */
    int64_t from = part * positions / TOPK, to = (part + 1) * positions / TOPK;
    lists[i] = (int32_t)(from + mixed((uint64_t)(row * TOPK + part)) % (uint64_t)(to - from));
  }
}

/* --- a case --- */

struct shape {
  const char *name;
  enum quire_kv_format format;
  int32_t rows, sources, positions, heads;
  bool mix;
  bool spread; /* few rows over more of the device */
};

template <class T> static T *allocate(int64_t count) {
  T *memory = NULL;
  CHECK(cudaMalloc((void **)&memory, (size_t)count * sizeof(T)));
  return memory;
}

template <class T> static T *filled(int64_t count, T (*value)(int64_t, const struct shape *), const struct shape *s) {
  T *host = (T *)malloc((size_t)count * sizeof(T)), *memory = allocate<T>(count);
  for (int64_t i = 0; i < count; i++) {
    host[i] = value(i, s);
  }
  CHECK(cudaMemcpy(memory, host, (size_t)count * sizeof(T), cudaMemcpyHostToDevice));
  free(host);
  return memory;
}

static uint8_t *pool;             /* rows of all sources */
static const uint8_t **page_list; /* on the device */

static int32_t row_bytes(const struct shape *s) { return s->format == QUIRE_KV_FP8 ? 656 : 1152; }
static const uint8_t *page_of(int64_t i, const struct shape *s) { return pool + i * PAGE_TOKENS * row_bytes(s); }
static int32_t source_of(int64_t i, const struct shape *s) { return (int32_t)(i * s->sources / s->rows); }
static int32_t limit_of(int64_t i, const struct shape *s) { return (void)i, s->positions; }
static int32_t count_of(int64_t i, const struct shape *s) { return (void)i, (void)s, TOPK; }
static struct quire_kv_source source_at(int64_t i, const struct shape *s) {
  struct quire_kv_source source = {};
  source.pages = page_list + i * (s->positions / PAGE_TOKENS);
  source.page_tokens = PAGE_TOKENS;
  source.prefix_end = source.end = s->positions;
  return source;
}

static struct quire_attend case_make(const struct shape *s) {
  struct quire_attend op = {};
  int64_t heads = (int64_t)s->rows * s->heads, rows = (int64_t)s->sources * s->positions;
  __nv_bfloat16 *latent = allocate<__nv_bfloat16>(heads * QUIRE_LATENT_DIM);
  __nv_bfloat16 *rope = allocate<__nv_bfloat16>(heads * QUIRE_ROPE_DIM);
  int32_t *lists = allocate<int32_t>((int64_t)s->rows * TOPK);
  pool = allocate<uint8_t>(rows * row_bytes(s));
  fill_bf16<<<2048, 256>>>(latent, heads * QUIRE_LATENT_DIM, 1);
  fill_bf16<<<2048, 256>>>(rope, heads * QUIRE_ROPE_DIM, 2ull << 40);
  fill_lists<<<2048, 256>>>(lists, (int64_t)s->rows * TOPK, s->positions, s->mix);
  if (s->format == QUIRE_KV_FP8) {
    fill_fp8<<<4096, 256>>>(pool, rows * QUIRE_KV_DIM, 1ull << 40);
  } else {
    fill_bf16<<<4096, 256>>>((__nv_bfloat16 *)pool, rows * QUIRE_KV_DIM, 1ull << 40);
  }
  CHECK(cudaGetLastError());
  page_list = filled(rows / PAGE_TOKENS, page_of, s);
  op.rows.sources = filled(s->sources, source_at, s);
  op.rows.source_of = filled(s->rows, source_of, s);
  op.rows.limit = filled(s->rows, limit_of, s);
  op.rows.m = s->rows;
  op.part.kind = QUIRE_PART_LATENT;
  op.part.row_bytes = op.part.piece[0].row_bytes = row_bytes(s);
  op.part.page_bytes = PAGE_TOKENS * row_bytes(s);
  op.part.pieces = 1;
  op.q_latent = latent;
  op.q_rope = rope;
  op.indices = lists;
  op.counts = filled(s->rows, count_of, s);
  op.out = allocate<__nv_bfloat16>(heads * QUIRE_LATENT_DIM);
  op.lse = allocate<float>(heads);
  op.format = s->format;
  op.q_dtype = op.out_dtype = QUIRE_DTYPE_BF16;
  op.heads = s->heads;
  op.topk = TOPK;
  op.scale = 1.0f / 24;
  if (s->spread) {
    op.scratch = allocate<uint8_t>(quire_cuda_attend_scratch_bytes(s->heads, s->rows));
  }
  return op;
}

static void case_free(const struct quire_attend *op) {
  const void *all[] = {op->rows.sources, op->rows.source_of, op->rows.limit, op->q_latent, op->q_rope,
                       op->indices,      op->counts,         op->out,        op->lse,      pool,
                       page_list,        op->scratch};
  for (const void *memory : all) {
    CHECK(cudaFree((void *)memory));
  }
}

static void case_run(const struct shape *s) {
  if (strstr(s->name, only) == NULL) {
    return;
  }
  struct quire_attend op = case_make(s);
  float ms[RUNS], warm = 0;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int run = 0; run < RUNS;) {
    float one;
    CHECK(cudaEventRecord(begin));
    if (quire_cuda_attend(NULL, &op) != QUIRE_OK) {
      printf("%s: not launched\n", s->name);
      exit(1);
    }
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&one, begin, end));
    ms[run] = one;
    run += warm >= WARM_UP_MS; /* before that the clock may still rise */
    warm += one;
  }
  std::sort(ms, ms + RUNS);
  double entries = (double)s->rows * TOPK, median = (double)ms[RUNS / 2];
  double tflops = 2 * entries * s->heads * 1088 / median / 1e9;
  double bytes = entries * row_bytes(s) * ((s->heads + 63) / 64) / median / 1e6;
  printf("%-44s %10.1f us %9.1f %-6s %5.2f of 989 TF, the datasheet's; gathers %.0f GB/s\n", s->name, median * 1e3,
         tflops, "TF", tflops / 989, bytes);
  if (json != NULL) {
    fprintf(json, "{\"name\": \"%s\", \"us\": %.2f, \"tflops\": %.1f, \"gathered_gbs\": %.0f}\n", s->name, median * 1e3,
            tflops, bytes);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  case_free(&op);
}

int main(int argc, char **argv) {
  test_needs_gpus(1);
  json = argc > 1 && argv[1][0] != 0 ? fopen(argv[1], "w") : NULL;
  only = argc > 2 ? argv[2] : "";
  for (int heads = 128; heads >= 64; heads -= 64) {
    for (int positions = 32768; positions <= 131072; positions *= 4) {
      for (int mix = 0; mix < 2; mix++) {
        char name[64];
        snprintf(name, sizeof name, "attend prefill bf16 h%d %dK %s", heads, positions / 1024,
                 mix ? "random" : "rising");
        struct shape s = {name, QUIRE_KV_BF16, 4096, 1, positions, heads, mix == 1, false};
        case_run(&s);
      }
    }
    static const int batches[] = {1, 2, 4, 8, 64, 128};
    for (int batch : batches) {
      for (int way = batch < 64 ? 0 : 1; way < 2; way++) {
        char name[64];
        snprintf(name, sizeof name, "attend decode fp8 h%d batch %d%s", heads, batch, way ? "" : " without scratch");
        struct shape s = {name, QUIRE_KV_FP8, batch * DECODE_ROWS, batch, DECODE_POSITIONS, heads, true, way == 1};
        case_run(&s);
      }
    }
    for (int way = 0; way < 2; way++) {
      char name[64];
      snprintf(name, sizeof name, "attend decode bf16 h%d batch 2%s", heads, way ? "" : " without scratch");
      struct shape s = {name, QUIRE_KV_BF16, 2 * DECODE_ROWS, 2, DECODE_POSITIONS, heads, true, way == 1};
      case_run(&s);
    }
  }
  if (json != NULL) {
    fclose(json);
  }
  return 0;
}
