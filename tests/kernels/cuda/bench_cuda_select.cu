/* Timings of select and put_rows on a GPU, each beside its limit.
 *
 *   prefill   operations: 2 * heads * 128 a pair of a row and a position it sees, top-k included in the time
 *   decode    bytes: 132 a key of each request, against a kernel that only reads, over the same pages, in the same run
 *   put_rows  bytes read and written, against the same
 *
 * Median of the runs by CUDA events, between which the device never waits for the host. Keys and queries are normal,
 * quantised; "zeros": three of four scores are 0. Prints a table. Arguments: a file for JSON lines ("" for none), and
 * what the names of the cases must hold. */
#include <cuda_runtime.h>

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_check.h"
#include "kernels/cuda/cuda_put_rows.h"
#include "kernels/cuda/cuda_select.h"
#include "kernels/number.h"
#include "support/gpu.h"

#define PAGE 8448
#define HEADS_MAX 64
#define TOPK 2048
#define RUNS_MAX 32

static int multiprocessors;
static FILE *json;
static const char *only = ""; /* cases whose name holds this */

/* --- data --- */

__device__ static uint32_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (uint32_t)(x >> 32);
}

__device__ static float normal(uint64_t seed) {
  uint32_t a = mixed(seed * 2 + 1);
  uint32_t b = mixed(seed * 2 + 2);
  int32_t sum = (int32_t)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - 131070;
  return (float)sum * (1.0f / 37837.0f);
}

__global__ static void fill_normal(float *x, int64_t count, uint64_t seed, float scale) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
    x[i] = normal(seed + (uint64_t)i) * scale;
  }
}

/* Pages of keys, scale 2^-7, as of values of about 1. */
__global__ static void fill_pages(uint8_t *pages, int64_t count, uint64_t seed, bool zeros) {
  int64_t page = blockIdx.x;
  for (int i = threadIdx.x; i < 64 * 128; i += blockDim.x) {
    float x = normal(seed + (uint64_t)(page * 8192 + i)) * 128.0f;
    bool opposed = zeros && (mixed(seed ^ (uint64_t)(page * 64 + i / 128)) & 3) != 0;
    pages[page * PAGE + i] = quire_e4m3_round(opposed ? -fabsf(x) : x);
  }
  for (int i = threadIdx.x; i < 64; i += blockDim.x) {
    *(float *)(pages + page * PAGE + 8192 + i * 4) = 0x1p-7f;
  }
}

__global__ static void make_positive(float *x, int64_t count) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
    x[i] = fabsf(x[i]);
  }
}

/* Reads everything and keeps nothing. */
__global__ static void read_all(const uint4 *x, int64_t count, uint32_t *never) {
  uint32_t fold = 0;
  int64_t stride = (int64_t)gridDim.x * blockDim.x;
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 a = __ldcs(x + i), b = __ldcs(x + i + stride), c = __ldcs(x + i + 2 * stride), d = __ldcs(x + i + 3 * stride);
    fold ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (fold == 0x12345678 && never != NULL) {
    *never = fold;
  }
}

template <typename T> static T *device_array(int64_t count) {
  T *memory = NULL;
  CHECK(cudaMalloc(&memory, (size_t)count * sizeof(T)));
  return memory;
}

template <typename T> static T *device_copy(const T *host, int64_t count) {
  T *memory = device_array<T>(count);
  CHECK(cudaMemcpy(memory, host, (size_t)count * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

/* --- timing --- */

typedef void (*work_fn)(void *context);

/* Keeps the device busy while the host enqueues what is timed. */
__global__ static void hold(int64_t cycles) {
  int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

static double median_us(work_fn work, void *context, int runs) {
  float times[RUNS_MAX];
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  work(context);
  work(context);
  for (int i = 0; i < runs; i++) {
    hold<<<1, 1>>>(200000);
    CHECK(cudaEventRecord(begin));
    work(context);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&times[i], begin, end));
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::sort(times, times + runs);
  return times[runs / 2] * 1e3;
}

static void report(const char *name, double us, const char *unit, double rate, const char *limit, double ratio) {
  printf("%-44s %10.1f us %9.1f %-6s %5.2f of %s\n", name, us, rate, unit, ratio, limit);
  if (json != NULL) {
    fprintf(json, "{\"case\":\"%s\",\"us\":%.2f,\"rate\":%.2f,\"unit\":\"%s\",\"limit\":\"%s\",\"ratio\":%.4f}\n", name,
            us, rate, unit, limit, ratio);
  }
}

/* --- select --- */

struct select_case {
  struct quire_cuda_select select;
  uint8_t *pool;
  int64_t pool_bytes;
  int launches; /* of equal batches of rows, each later in the sequence */
};

static void select_work(void *context) {
  struct select_case *c = (struct select_case *)context;
  struct quire_cuda_select select = c->select;
  for (int i = 0; i < c->launches; i++) {
    if (quire_cuda_select(NULL, &select) != QUIRE_OK) {
      printf("launch refused: %s\n", cudaGetErrorString(cudaGetLastError()));
      exit(1);
    }
    select.op.rows.source_of += select.op.rows.m;
    select.op.rows.limit += select.op.rows.m;
  }
}

static void read_work(void *context) {
  struct select_case *c = (struct select_case *)context;
  read_all<<<(uint32_t)multiprocessors * 4, 512>>>((const uint4 *)c->pool, c->pool_bytes / 16, NULL);
}

struct shape {
  int heads;
  int requests;
  int length; /* positions of a request */
  int rows;   /* of a request, its last ones */
  int batch;  /* rows of a launch */
  int source_rows;
  bool zeros;
  bool no_stream; /* as where the driver makes no tensor maps */
};

static void case_make(struct select_case *c, const struct shape *shape) {
  int pages = shape->length / 64;
  int m = shape->requests * shape->rows;
  const uint8_t **host_pages = new const uint8_t *[(size_t)pages * shape->requests];
  struct quire_kv_source *sources = new struct quire_kv_source[(size_t)shape->requests];
  int32_t *source_of = new int32_t[(size_t)m];
  int32_t *limit = new int32_t[(size_t)m];
  memset(c, 0, sizeof *c);
  c->pool_bytes = (int64_t)pages * shape->requests * PAGE;
  c->pool = device_array<uint8_t>(c->pool_bytes);
  fill_pages<<<(uint32_t)(pages * shape->requests), 256>>>(c->pool, pages * shape->requests, 7, shape->zeros);
  for (int i = 0; i < pages * shape->requests; i++) { /* pages of a request in no order */
    host_pages[i] = c->pool + (int64_t)(i / pages * pages + (int)((i % pages * 40503ll) % pages)) * PAGE;
  }
  const uint8_t **device_pages = device_copy(host_pages, (int64_t)pages * shape->requests);
  for (int r = 0; r < shape->requests; r++) {
    struct quire_kv_source source = {
        device_pages + (int64_t)r * pages, {NULL, NULL}, 64, shape->length, 0, 0, shape->length};
    sources[r] = source;
    for (int i = 0; i < shape->rows; i++) {
      source_of[r * shape->rows + i] = r;
      limit[r * shape->rows + i] = shape->length - shape->rows + i + 1;
    }
  }
  struct quire_select *op = &c->select.op;
  op->rows.sources = device_copy(sources, shape->requests);
  op->rows.source_of = device_copy(source_of, m);
  op->rows.limit = device_copy(limit, m);
  op->rows.m = shape->batch;
  op->part.kind = QUIRE_PART_INDEX_KEY;
  op->part.piece[0].row_bytes = 128;
  op->part.piece[1].offset = 8192;
  op->part.piece[1].row_bytes = 4;
  op->format = QUIRE_KV_FP8;
  op->heads = shape->heads;
  op->topk = TOPK;
  op->limit_max = shape->length;
  float *q = device_array<float>((int64_t)shape->batch * shape->heads * 128);
  float *w = device_array<float>((int64_t)shape->batch * shape->heads);
  fill_normal<<<1024, 256>>>(q, (int64_t)shape->batch * shape->heads * 128, 99, 1.0f);
  fill_normal<<<1024, 256>>>(w, (int64_t)shape->batch * shape->heads, 12345, 0.1f);
  if (shape->zeros) {
    make_positive<<<1024, 256>>>(q, (int64_t)shape->batch * shape->heads * 128);
    make_positive<<<1024, 256>>>(w, (int64_t)shape->batch * shape->heads);
  }
  op->q = q;
  op->w = w;
  op->indices_out = device_array<int32_t>((int64_t)shape->batch * TOPK);
  op->counts_out = device_array<int32_t>(shape->batch);
  op->scratch = device_array<uint8_t>(
      quire_cuda_select_scratch_bytes(shape->heads, TOPK, shape->batch, shape->length, multiprocessors));
  c->select.multiprocessors = multiprocessors;
  c->select.maps = shape->no_stream ? NULL : quire_cuda_select_maps(NULL);
  op->source_rows = shape->source_rows;
  c->launches = m / shape->batch;
  CHECK(cudaDeviceSynchronize());
  delete[] host_pages;
  delete[] sources;
  delete[] source_of;
  delete[] limit;
}

static void case_free(struct select_case *c) {
  struct quire_kv_source source;
  CHECK(cudaMemcpy(&source, c->select.op.rows.sources, sizeof source, cudaMemcpyDeviceToHost));
  CHECK(cudaFree((void *)source.pages));
  CHECK(cudaFree(c->pool));
  CHECK(cudaFree((void *)c->select.op.rows.sources));
  CHECK(cudaFree((void *)c->select.op.rows.source_of));
  CHECK(cudaFree((void *)c->select.op.rows.limit));
  CHECK(cudaFree((void *)c->select.op.q));
  CHECK(cudaFree((void *)c->select.op.w));
  CHECK(cudaFree(c->select.op.indices_out));
  CHECK(cudaFree(c->select.op.counts_out));
  CHECK(cudaFree(c->select.op.scratch));
}

/* fp8 operations of the data sheet, 1,979 TF; nothing dense reaches it, the library's product 1,292 (docs). */
static void time_prefill(const struct shape *shape, int runs) {
  struct select_case c;
  char name[96];
  snprintf(name, sizeof name, "prefill %dK, %d heads, last %d rows%s", shape->length / 1024, shape->heads, shape->rows,
           shape->zeros ? ", zeros" : "");
  if (strstr(name, only) == NULL) {
    return;
  }
  case_make(&c, shape);
  double us = median_us(select_work, &c, runs);
  double first = shape->length - shape->rows + 1;
  double pairs = (double)shape->requests * shape->rows * (first + shape->length) / 2;
  double tf = pairs * 2 * shape->heads * 128 / us * 1e-6;
  report(name, us, "TF", tf, "1979 TF", tf / 1979);
  case_free(&c);
}

static void time_decode(const struct shape *shape, int runs) {
  struct select_case c;
  char name[96];
  snprintf(name, sizeof name, "decode %dK, %d heads, batch %d x %d rows%s%s", shape->length / 1024, shape->heads,
           shape->requests, shape->rows, shape->zeros ? ", zeros" : "", shape->no_stream ? ", no tensor maps" : "");
  if (strstr(name, only) == NULL) {
    return;
  }
  case_make(&c, shape);
  double read_us = median_us(read_work, &c, runs);
  double us = median_us(select_work, &c, runs);
  double bytes = (double)shape->requests * shape->length * 132;
  char limit[64];
  snprintf(limit, sizeof limit, "%.0f GB/s read", bytes / read_us * 1e-3);
  report(name, us, "GB/s", bytes / us * 1e-3, limit, read_us / us);
  case_free(&c);
}

/* --- put_rows --- */

static void put_work(void *context) { quire_cuda_put_rows(NULL, (const struct quire_cuda_put_rows *)context); }

static void time_put_rows(enum quire_kv_format format, int m) {
  char name[64];
  snprintf(name, sizeof name, "put_rows %s, %d rows into pages", format == QUIRE_KV_BF16 ? "bf16" : "fp8", m);
  if (strstr(name, only) == NULL) {
    return;
  }
  struct quire_cuda_put_rows put = {};
  int row_bytes = format == QUIRE_KV_BF16 ? 1152 : 656;
  float *x = device_array<float>((int64_t)m * 704);
  fill_normal<<<1024, 256>>>(x, (int64_t)m * 704, 5, 1.0f);
  put.latent = x;
  put.rope = x + 512;
  put.key = x + 576;
  put.latent_ld = put.rope_ld = put.key_ld = 704;
  put.m = m;
  put.format = format;
  put.page_tokens = 64;
  uint8_t *pages = device_array<uint8_t>((int64_t)m * (row_bytes + 132));
  struct quire_cuda_row_target *targets = new struct quire_cuda_row_target[(size_t)m];
  for (int i = 0; i < m; i++) {
    int page = (int)((i / 64 * 40503ll) % (m / 64));
    targets[i].latent_page = pages + (int64_t)page * 64 * row_bytes;
    targets[i].key_page = pages + (int64_t)m * row_bytes + (int64_t)page * PAGE;
    targets[i].slot = i % 64;
  }
  put.targets = device_copy(targets, m);
  delete[] targets;
  double us = median_us(put_work, &put, 20);
  double bytes = (double)m * (704 * 4 + row_bytes + 132 + sizeof(struct quire_cuda_row_target));
  report(name, us, "GB/s", bytes / us * 1e-3, "4800 GB/s", bytes / us * 1e-3 / 4800);
  CHECK(cudaFree(x));
  CHECK(cudaFree(pages));
  CHECK(cudaFree((void *)put.targets));
}

int main(int argc, char **argv) {
  struct cudaDeviceProp properties;
  test_needs_gpus(1);
  json = argc > 1 && argv[1][0] != '\0' ? fopen(argv[1], "w") : NULL;
  only = argc > 2 ? argv[2] : "";
  CHECK(cudaGetDeviceProperties(&properties, 0));
  multiprocessors = properties.multiProcessorCount;
  static const struct shape prefill[] = {
      {64, 1, 131072, 4096, 4096, 8, false, false}, {64, 1, 131072, 8192, 8192, 8, false, false},
      {64, 1, 32768, 8192, 8192, 8, false, false},  {64, 1, 131072, 4096, 4096, 8, true, false},
      {32, 1, 131072, 8192, 8192, 8, false, false}, {32, 1, 131072, 8192, 8192, 8, true, false},
  };
  for (const struct shape &shape : prefill) {
    time_prefill(&shape, 5);
  }
  static const struct shape whole = {64, 1, 131072, 131072, 8192, 8, false, false};
  time_prefill(&whole, 2);
  static const struct shape decode[] = {
      {64, 64, 131072, 1, 64, 1, false, false},  {64, 64, 131072, 2, 128, 2, false, false},
      {64, 128, 131072, 1, 128, 1, false, false}, {32, 64, 131072, 1, 64, 1, false, false},
      {32, 64, 131072, 2, 128, 2, false, false},  {32, 64, 131072, 4, 256, 4, false, false},
      {64, 128, 32768, 1, 128, 1, false, false},  {64, 8, 131072, 2, 16, 2, false, false},
      {64, 1, 131072, 1, 1, 1, false, false},     {64, 64, 131072, 2, 128, 2, true, false},
      {64, 64, 131072, 1, 64, 1, false, true},    {64, 64, 131072, 2, 128, 2, false, true},
      {64, 1, 131072, 1, 1, 1, false, true},
  };
  for (const struct shape &shape : decode) {
    time_decode(&shape, 11);
  }
  time_put_rows(QUIRE_KV_FP8, 8192);
  time_put_rows(QUIRE_KV_BF16, 8192);
  time_put_rows(QUIRE_KV_FP8, 131072);
  if (json != NULL) {
    fclose(json);
  }
  return 0;
}
