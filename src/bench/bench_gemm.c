/* The matrix product at the shapes of a layer. Weights are taken in turn from a pool larger than the caches, as a model
 * with many layers does, x and y stay.
 *
 *   M = 1         the bytes of the weights over a read of the same bytes, one matrix after another, as products come;
 *                 with two threads beside the bandwidth of both, which read pieces so large that handing them out does
 *                 not count
 *   M = 64, 256   oneDNN with weights packed beforehand into its own layout; without oneDNN the dot product from
 *                 registers is the only ceiling
 *
 * quire's weights are packed at load (--weights packed), where the kernels have that layout; beside them, without a
 * bar, the same product with weights as a checkpoint has them (--weights mapped). */
#include <stdio.h>
#include <string.h>

#include "bench/bench_dnnl.h"
#include "bench/bench_list.h"
#include "bench/bench_machine.h"
#include "bench/bench_shapes.h"

#define POOL_BYTES ((size_t)128 << 20)
#define TINY_POOL_BYTES ((size_t)1 << 20)
#define WIDE_PIECE ((size_t)8 << 20)
#define ROWS_MAX 256

struct pools {
  size_t bytes; /* of each pool */
  uint8_t *bf16, *fp8;
  uint16_t *x;
  float *y, *scale;
  uint8_t *scratch;
  size_t x_bytes, y_bytes, scale_bytes, scratch_bytes;
};

struct side {
  const struct quire_kernels *kernels;
  struct quire_stream *stream;
  struct quire_gemm gemm;
  const uint8_t *pool;
  size_t weight_bytes;
  int64_t copies, next;
  struct bench_dnnl_product *product;
};

static void ours(void *context) {
  struct side *s = context;
  s->gemm.w.data = s->pool + (size_t)s->next * s->weight_bytes;
  s->next = (s->next + 1) % s->copies;
  s->kernels->gemm(s->stream, s->gemm);
}

static void theirs(void *context) {
  struct side *s = context;
  bench_dnnl_product_run(s->product, s->gemm.x, NULL, s->gemm.y);
}

/* The same product with its weights as rows. */
static struct side as_rows(const struct side *side) {
  struct side rows = *side;
  rows.gemm.w.layout = QUIRE_WEIGHT_ROWS;
  return rows;
}

/* The last side of a case, where it is not the subject itself. */
static void add_rows(struct bench_case *c, struct side *rows, double units) {
  c->side[c->sides++] = (struct bench_side){"mapped", ours, NULL, rows, units};
  c->bar[c->bars++] = (struct bench_bar){c->sides - 1, 0, false, 0};
}

static void close_pools(struct pools *p) {
  bench_free(p->bf16, p->bytes);
  bench_free(p->fp8, p->bytes);
  bench_free(p->x, p->x_bytes);
  bench_free(p->y, p->y_bytes);
  bench_free(p->scale, p->scale_bytes);
  bench_free(p->scratch, p->scratch_bytes);
}

static enum quire_status open_pools(const struct bench *bench, const struct bench_shape *shapes, int count,
                                    struct pools *p, struct quire_error *error_out) {
  size_t largest = 0, n_max = 0, k_max = 0;
  for (int i = 0; i < count; i++) {
    size_t n = (size_t)shapes[i].n, k = (size_t)shapes[i].k;
    largest = n * k * 2 > largest ? n * k * 2 : largest;
    n_max = n > n_max ? n : n_max;
    k_max = k > k_max ? k : k_max;
  }
  p->bytes = bench->options.tiny ? TINY_POOL_BYTES : POOL_BYTES;
  p->bytes = p->bytes > largest ? p->bytes : largest;
  p->x_bytes = ROWS_MAX * k_max * sizeof(uint16_t);
  p->y_bytes = ROWS_MAX * n_max * sizeof(float);
  p->scale_bytes = (n_max / QUIRE_FP8_BLOCK + 1) * (k_max / QUIRE_FP8_BLOCK + 1) * sizeof(float);
  p->bf16 = bench_alloc(p->bytes);
  p->fp8 = bench_alloc(p->bytes);
  p->x = bench_alloc(p->x_bytes);
  p->y = bench_alloc(p->y_bytes);
  p->scale = bench_alloc(p->scale_bytes);
  p->scratch_bytes = (size_t)quire_gemm_scratch_bytes(ROWS_MAX, (int32_t)k_max, BENCH_THREADS_MAX);
  p->scratch = bench_alloc(p->scratch_bytes);
  if (p->bf16 == NULL || p->fp8 == NULL || p->x == NULL || p->y == NULL || p->scale == NULL || p->scratch == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "gemm", "no memory for its weights");
  }
  bench_fill_bf16((uint16_t *)(void *)p->bf16, p->bytes / 2, 1);
  bench_fill_e4m3(p->fp8, p->bytes, 2);
  bench_fill_bf16(p->x, p->x_bytes / 2, 3);
  for (size_t i = 0; i < p->scale_bytes / sizeof(float); i++) {
    p->scale[i] = 0x1p-4f;
  }
  return QUIRE_OK;
}

struct product {
  enum bench_model model;
  struct bench_shape shape;
  enum quire_dtype dtype;
  int32_t m;
  int threads;
};

static struct side make_side(const struct bench *bench, const struct pools *p, const struct product *product) {
  int64_t n = product->shape.n, k = product->shape.k;
  bool fp8 = product->dtype == QUIRE_DTYPE_FP8;
  struct side side = {
      .kernels = bench->kernels,
      .stream = bench->stream[product->threads],
      .gemm = {.x = p->x, .y = p->y, .x_dtype = QUIRE_DTYPE_BF16, .y_dtype = QUIRE_DTYPE_F32, .m = product->m},
      .pool = fp8 ? p->fp8 : p->bf16,
      .weight_bytes = (size_t)(n * k * (fp8 ? 1 : 2)),
  };
  side.gemm.w = (struct quire_weight){
      .scale = fp8 ? p->scale : NULL,
      .dtype = product->dtype,
      .n = product->shape.n,
      .k = product->shape.k,
      .ld = k,
      .scale_ld = fp8 ? (int32_t)((k + QUIRE_FP8_BLOCK - 1) / QUIRE_FP8_BLOCK) : 0,
  };
  if (bench->kernels->pack_weight != NULL && quire_weight_can_pack(&side.gemm.w)) {
    side.gemm.w.layout = QUIRE_WEIGHT_PACKED; /* of random weights any layout is one */
  }
  side.gemm.scratch = p->scratch;
  side.gemm.x_ld = k;
  side.gemm.y_ld = n;
  side.copies = (int64_t)(p->bytes / side.weight_bytes);
  return side;
}

/* Reads the pool of a side, `piece` bytes a turn. */
static struct bench_read read_of(const struct bench *bench, const struct product *product, const struct side *side,
                                 size_t piece) {
  size_t pool_bytes = (size_t)side->copies * side->weight_bytes;
  piece = (piece < pool_bytes ? piece : pool_bytes) & ~(size_t)511;
  int64_t pieces = (int64_t)(pool_bytes / piece);
  return (struct bench_read){
      bench_isa_of(bench->kernels->name), bench->team[product->threads], side->pool, piece, pieces, pieces / 2};
}

/* One row: bytes against a read of the same bytes. */
static enum quire_status measure_row(struct bench *bench, const struct product *product, struct side *side,
                                     const char *name, struct quire_error *error_out) {
  struct bench_read read = read_of(bench, product, side, side->weight_bytes);
  struct bench_read wide = read_of(bench, product, side, WIDE_PIECE);
  struct bench_case c = {
      .name = name,
      .unit = "GB/s",
      .scale = 1e9,
      .threads = product->threads,
      .sides = 2,
      .bars = 1,
      .side = {{"quire", ours, NULL, side, (double)side->weight_bytes},
               {"cold read", bench_read_work, NULL, &read, (double)read.piece_bytes}},
      .bar = {{1, product->dtype == QUIRE_DTYPE_FP8 ? 0.85 : 0.9, false, 0}},
  };
  if (product->threads > 1 && side->weight_bytes < WIDE_PIECE) {
    c.side[c.sides++] = (struct bench_side){"bandwidth", bench_read_work, NULL, &wide, (double)wide.piece_bytes};
    c.bar[c.bars++] = (struct bench_bar){c.sides - 1, 0, false, 0};
  }
  struct side mapped = as_rows(side);
  if (side->gemm.w.layout == QUIRE_WEIGHT_PACKED) {
    add_rows(&c, &mapped, (double)side->weight_bytes);
  }
  return bench_measure(bench, &c, NULL, error_out);
}

/* Many rows: operations against registers, and oneDNN for bf16. */
static enum quire_status measure_rows(struct bench *bench, const struct product *product, struct side *side,
                                      const char *name, struct quire_error *error_out) {
  int64_t n = product->shape.n, k = product->shape.k;
  double operations = 2.0 * product->m * (double)n * (double)k;
  struct bench_peak peak = bench_peak_of(bench_isa_of(bench->kernels->name), bench->team[product->threads]);
  struct bench_case c = {
      .name = name,
      .unit = "Gop/s",
      .scale = 1e9,
      .threads = product->threads,
      .sides = 2,
      .bars = 1,
      .side = {{"quire", ours, NULL, side, operations},
               {"dot peak", bench_peak_work, NULL, &peak, bench_peak_operations(&peak)}},
      .bar = {{1, 0, false, 0}},
  };
  if (product->dtype == QUIRE_DTYPE_BF16 && bench_dnnl_available(NULL)) {
    struct bench_dnnl_shape shape = {product->m, n, k, k, 1, k, n, true};
    bench_dnnl_threads(product->threads);
    side->product = bench_dnnl_product_create(&shape, side->pool, (int64_t)side->weight_bytes, side->copies);
  }
  if (side->product != NULL) {
    c.side[c.sides++] = (struct bench_side){"oneDNN", theirs, NULL, side, operations};
    c.bar[c.bars++] = (struct bench_bar){2, 0.9, false, 0};
  }
  struct side mapped = as_rows(side);
  if (side->gemm.w.layout == QUIRE_WEIGHT_PACKED) {
    add_rows(&c, &mapped, operations);
  }
  enum quire_status status = bench_measure(bench, &c, NULL, error_out);
  bench_dnnl_product_destroy(side->product);
  side->product = NULL;
  return status;
}

static enum quire_status measure_product(struct bench *bench, const struct pools *p, const struct product *product,
                                         struct quire_error *error_out) {
  char name[BENCH_NAME_BYTES];
  static const char *const short_names[BENCH_MODELS] = {"mini", "V3.2", "GLM"};
  snprintf(name, sizeof name, "%s %s %dx%d %s M=%d t=%d", short_names[product->model], product->shape.name,
           product->shape.n, product->shape.k, product->dtype == QUIRE_DTYPE_FP8 ? "fp8" : "bf16", product->m,
           product->threads);
  if (!bench_wanted(bench, name)) {
    return QUIRE_OK;
  }
  struct side side = make_side(bench, p, product);
  return product->m == 1 ? measure_row(bench, product, &side, name, error_out)
                         : measure_rows(bench, product, &side, name, error_out);
}

static enum quire_status measure_shape(struct bench *bench, const struct pools *p, struct product product,
                                       struct quire_error *error_out) {
  static const int32_t rows[] = {1, 64, 256};
  enum quire_status status = QUIRE_OK;
  for (int dtype = QUIRE_DTYPE_BF16; dtype <= QUIRE_DTYPE_FP8; dtype++) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
      for (int threads = 1; status == QUIRE_OK && threads <= bench->threads_max; threads++) {
        product.dtype = (enum quire_dtype)dtype;
        product.m = rows[i];
        product.threads = threads;
        status = measure_product(bench, p, &product, error_out);
      }
    }
  }
  return status;
}

enum quire_status bench_gemm(struct bench *bench, struct quire_error *error_out) {
  const char *why = NULL;
  if (!bench_dnnl_available(&why)) {
    printf("no yardstick: %s\n", why);
  } else {
    printf("yardstick oneDNN %s, weights packed beforehand\n", bench_dnnl_version());
  }
  enum quire_status status = QUIRE_OK;
  int models = bench->options.tiny ? 1 : 2; /* quire-mini, DeepSeek-V3.2 */
  for (int model = 0; status == QUIRE_OK && model < models; model++) {
    struct bench_shape shapes[BENCH_SHAPES_MAX];
    struct pools pools = {0};
    int count = bench_model_shapes((enum bench_model)model, shapes);
    status = open_pools(bench, shapes, count, &pools, error_out);
    for (int i = 0; status == QUIRE_OK && i < count; i++) {
      struct product product = {.model = (enum bench_model)model, .shape = shapes[i]};
      status = measure_shape(bench, &pools, product, error_out);
    }
    close_pools(&pools);
  }
  return status;
}
