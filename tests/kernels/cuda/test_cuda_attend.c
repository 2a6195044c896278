/* attend on a GPU against the softmax in f64, within a bound for each head of each row; and the same bits for every way
 * to cut the batch and to lay out the rows (pages in any order, own or fresh). Rows that are not selected, pages nobody
 * owns and outputs before the run are NaN.
 * ctest: timeout=300 */
#include <math.h>

#include "cuda_case.h"
#include "kernels/cuda/cuda_attend.h"

#define ROWS_MAX 48
#define SOURCES_MAX 4

/* Of a head's 512 values, against the f64 result. A probability is rounded to bf16, off by up to 2^-8 and alike for all
 * values of its row, which may be the only one of weight; results are rounded to bf16 where asked, off by up to 2^-8 at
 * random, 2^-8 / sqrt(3) of their norm. Sums are f32. lse is off as its scores are, which add up 576 products in
 * 36 steps: by 36 * 2^-24 of what the products come to without their signs. */
#define OUT_BOUND 6.2e-3
#define LSE_BOUND 2e-6

static struct test_random rng;
static bool small; /* QUIRE_TEST_SMALL: under a sanitizer, which is slow */

struct shape {
  enum quire_kv_format format;
  bool any_scale;
  int32_t rows;
  int32_t sources;
  int32_t length;
  int32_t heads;
  int32_t topk;
  int32_t first;
  int32_t page_tokens;
  bool full;       /* lists as long as can be */
  bool holes;      /* with -1 among the entries */
  float magnitude; /* of queries; 0: 0.5 */
  int32_t checked; /* heads the oracle checks of each row; 0: all */
};

struct attention {
  struct shape shape;
  struct quire_part part;
  uint8_t *stored[SOURCES_MAX]; /* host [length][row_bytes], poison where nothing selects */
  float *decoded[SOURCES_MAX];  /* [length][576] */
  int32_t source_of[ROWS_MAX], limit[ROWS_MAX], counts[ROWS_MAX];
  int32_t *indices;
  uint16_t *q_latent, *q_rope;
  float *out;    /* of the run that was checked, widened */
  uint8_t *bits; /* its bytes */
  float *lse;
};

/* Device copies of a source's rows: the first `prefix` in pages, the rest in a ring. */
struct layout {
  struct quire_kv_source source[SOURCES_MAX];
  void *pool[SOURCES_MAX], *ring[SOURCES_MAX], *pages[SOURCES_MAX];
};

static int64_t out_bytes(enum quire_dtype type) { return type == QUIRE_DTYPE_BF16 ? 2 : 4; }

static void row_make(struct attention *a, int32_t source, int32_t position, const struct quire_kernels *kernels,
                     struct quire_stream *stream) {
  uint8_t *to = a->stored[source] + (int64_t)position * a->part.row_bytes;
  float *decoded = a->decoded[source] + (int64_t)position * 576;
  float latent[512], rope[64];
  test_fill(&rng, latent, 512, position % 7 == 3 ? 1e-3f : 1.0f);
  test_fill(&rng, rope, 64, 1.0f);
  latent[position % 512] = 0.0f;
  kernels->quantise_latent(stream, (struct quire_quantise_latent){.latent = latent,
                                                                  .rope = rope,
                                                                  .out = to,
                                                                  .format = a->shape.format,
                                                                  .any_scale = a->shape.any_scale,
                                                                  .m = 1,
                                                                  .latent_ld = 512,
                                                                  .rope_ld = 64});
  for (int d = 0; d < 576; d++) {
    uint16_t half;
    if (a->shape.format == QUIRE_KV_FP8 && d < 512) {
      float scale;
      memcpy(&scale, to + 512 + d / 128 * 4, 4);
      decoded[d] = quire_bf16_widen(quire_bf16_round(quire_e4m3_widen(to[d]) * scale));
      continue;
    }
    memcpy(&half, to + (a->shape.format == QUIRE_KV_BF16 ? d * 2 : 528 + (d - 512) * 2), 2);
    decoded[d] = quire_bf16_widen(half);
  }
}

static void list_make(struct attention *a, int32_t row) {
  const struct shape *s = &a->shape;
  int32_t visible = a->limit[row] > s->first ? a->limit[row] - s->first : 0;
  int32_t count = visible < s->topk ? visible : s->topk;
  int32_t position = s->first;
  int32_t *list = a->indices + (int64_t)row * s->topk;
  count = s->full || count == 0 ? count : test_between(&rng, 0, count);
  for (int32_t i = 0; i < s->topk; i++) {
    list[i] = -1;
    if (i < count) {
      int32_t slack = visible - (position - s->first) - (count - i);
      position += test_between(&rng, 0, slack < 3 ? slack : 3);
      list[i] = position++;
    }
    if (s->holes && test_between(&rng, 0, 4) == 0) {
      list[i] = -1;
    }
  }
  a->counts[row] = count;
}

static void attention_make(struct attention *a, const struct shape *shape) {
  struct test_world world;
  memset(a, 0, sizeof *a);
  test_world_open(&world);
  a->shape = *shape;
  a->part = test_part(QUIRE_PART_LATENT, shape->format, shape->page_tokens);
  a->indices = test_alloc((int64_t)shape->rows * shape->topk * 4);
  for (int32_t i = 0; i < shape->sources; i++) {
    a->stored[i] = test_poisoned((int64_t)shape->length * a->part.row_bytes);
    a->decoded[i] = test_poisoned((int64_t)shape->length * 576 * 4);
  }
  for (int32_t r = 0; r < shape->rows; r++) {
    a->source_of[r] = shape->sources * r / shape->rows;
    a->limit[r] = shape->full ? shape->length : test_between(&rng, 0, shape->length);
    list_make(a, r);
    for (int32_t i = 0; i < a->counts[r]; i++) {
      int32_t position = a->indices[(int64_t)r * shape->topk + i];
      if (position >= 0 && isnan(a->decoded[a->source_of[r]][(int64_t)position * 576])) {
        row_make(a, a->source_of[r], position, world.kernels[0], world.stream[0]);
      }
    }
  }
  int64_t heads = (int64_t)shape->rows * shape->heads;
  a->q_latent = test_alloc(heads * 512 * 2);
  a->q_rope = test_alloc(heads * 64 * 2);
  for (int64_t i = 0; i < heads * 576; i++) {
    uint16_t *to = i < heads * 512 ? &a->q_latent[i] : &a->q_rope[i - heads * 512];
    *to = quire_bf16_round(test_normal(&rng) * (shape->magnitude > 0 ? shape->magnitude : 0.5f));
  }
  test_world_close(&world);
}

static void attention_free(struct attention *a) {
  for (int32_t i = 0; i < a->shape.sources; i++) {
    free(a->stored[i]);
    free(a->decoded[i]);
  }
  free(a->indices);
  free(a->q_latent);
  free(a->q_rope);
}

/* Source i with its first `prefix` rows in pages in a random order, a page's distance apart more than it is long. */
static void layout_make(const struct attention *a, int32_t i, int32_t prefix, struct layout *l) {
  int32_t tokens = a->shape.page_tokens, count = (prefix + tokens - 1) / tokens, fresh = a->shape.length - prefix;
  int32_t capacity = fresh > 0 ? fresh + test_between(&rng, 0, 5) : 0;
  int64_t stride = a->part.page_bytes + 16 * test_between(&rng, 1, 9), bytes = a->part.row_bytes;
  int32_t *order = test_alloc((count + 1) * 4);
  uint8_t *pool = test_poisoned(stride * (count + 1)), *ring = test_poisoned(capacity * bytes);
  const uint8_t **pages = test_alloc((count + 1) * (int64_t)sizeof *pages);
  struct quire_kv_source *s = &l->source[i];
  l->pool[i] = cuda_poisoned(stride * (count + 1));
  for (int32_t p = 0; p < count; p++) {
    int32_t j = test_between(&rng, 0, p);
    order[p] = order[j];
    order[j] = p;
  }
  *s = (struct quire_kv_source){.page_tokens = tokens, .prefix_end = prefix, .end = a->shape.length};
  s->fresh_capacity = capacity;
  s->fresh_first = capacity > 0 ? test_between(&rng, 0, capacity - 1) : 0;
  for (int32_t position = 0; position < a->shape.length; position++) {
    uint8_t *to = position < prefix ? pool + order[position / tokens] * stride + position % tokens * bytes
                                    : ring + (s->fresh_first + position - prefix) % capacity * bytes;
    memcpy(to, a->stored[i] + position * bytes, (size_t)bytes);
  }
  for (int32_t p = 0; p < count; p++) {
    pages[p] = (uint8_t *)l->pool[i] + order[p] * stride;
  }
  CHECK(cudaMemcpy(l->pool[i], pool, (size_t)(stride * (count + 1)), cudaMemcpyHostToDevice));
  l->ring[i] = cuda_copy_of(ring, capacity * bytes);
  l->pages[i] = cuda_copy_of(pages, (count + 1) * (int64_t)sizeof *pages);
  s->pages = l->pages[i];
  s->fresh[0] = l->ring[i];
  free(order);
  free(pool);
  free(ring);
  free(pages);
}

static void layout_free(struct layout *l, int32_t sources) {
  for (int32_t i = 0; i < sources; i++) {
    CHECK(cudaFree(l->pool[i]));
    CHECK(cudaFree(l->ring[i]));
    CHECK(cudaFree(l->pages[i]));
  }
}

/* How the rows are cut, and whether launches have scratch, so that few are spread over the device. */
struct way {
  int32_t piece;
  bool spread;
};

/* In one of the layouts; bytes of out and lse, to be freed. */
static void attention_run(const struct attention *a, const struct layout *l, enum quire_dtype type, struct way way,
                          uint8_t **out, float **lse) {
  int32_t piece = way.piece;
  const struct shape *s = &a->shape;
  int64_t row_out = (int64_t)s->heads * 512 * out_bytes(type);
  void *sources = cuda_copy_of(l->source, s->sources * (int64_t)sizeof *l->source);
  int32_t *of = cuda_copy_of(a->source_of, s->rows * 4), *limit = cuda_copy_of(a->limit, s->rows * 4);
  int32_t *indices = cuda_copy_of(a->indices, (int64_t)s->rows * s->topk * 4);
  int32_t *counts = cuda_copy_of(a->counts, s->rows * 4);
  uint16_t *q_latent = cuda_copy_of(a->q_latent, (int64_t)s->rows * s->heads * 512 * 2);
  uint16_t *q_rope = cuda_copy_of(a->q_rope, (int64_t)s->rows * s->heads * 64 * 2);
  uint8_t *device_out = cuda_poisoned(s->rows * row_out + 4096);
  float *device_lse = cuda_poisoned((int64_t)s->rows * s->heads * 4);
  int64_t scratch_bytes = quire_cuda_attend_scratch_bytes(s->heads, piece);
  uint8_t *scratch = cuda_poisoned(scratch_bytes + 4096);
  for (int32_t row = 0; row < s->rows; row += piece) {
    struct quire_attend op = {.part = a->part, .format = s->format, .q_dtype = QUIRE_DTYPE_BF16, .out_dtype = type};
    op.rows = (struct quire_rows){.sources = sources, .source_of = of + row, .limit = limit + row, .first = s->first};
    op.rows.m = s->rows - row < piece ? s->rows - row : piece;
    op.q_latent = q_latent + (int64_t)row * s->heads * 512;
    op.q_rope = q_rope + (int64_t)row * s->heads * 64;
    op.indices = indices + (int64_t)row * s->topk;
    op.counts = counts + row;
    op.out = device_out + row * row_out;
    op.lse = device_lse + (int64_t)row * s->heads;
    op.scratch = way.spread ? scratch : NULL;
    op.heads = s->heads;
    op.topk = s->topk;
    op.scale = 0.1352337789f;
    assert_true(quire_cuda_attend_can(&op, NULL));
    assert_int_equal(quire_cuda_attend(NULL, &op), QUIRE_OK);
  }
  CHECK(cudaDeviceSynchronize());
  *out = cuda_host_of(device_out, s->rows * row_out);
  *lse = cuda_host_of(device_lse, (int64_t)s->rows * s->heads * 4);
  uint8_t *behind = cuda_host_of(device_out + s->rows * row_out, 4096);
  uint8_t *behind_scratch = cuda_host_of(scratch + scratch_bytes, 4096);
  for (int i = 0; i < 4096; i++) {
    assert_true(behind[i] == 0xff && behind_scratch[i] == 0xff);
  }
  void *all[] = {sources, of, limit, indices, counts, q_latent, q_rope, device_out, device_lse, scratch};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    CHECK(cudaFree(all[i]));
  }
  free(behind);
  free(behind_scratch);
}

/* One head of one row in f64, and what its roundings are measured by. */
struct oracle {
  int32_t n; /* rows it attends */
  double out[512], lse;
  double out_size; /* the square of the output's norm, or the sum of its terms' squares where they cancel */
  double lse_size; /* mean, by probability, of what its scores' terms come to without their signs; at least 1 */
};

static struct oracle oracle_head(const struct attention *a, int32_t row, int32_t head) {
  const double scale = (double)0.1352337789f;
  struct oracle o = {.lse_size = 0};
  int64_t at = (int64_t)row * a->shape.heads + head;
  double *score = test_alloc((a->shape.topk + 1) * 8), *size = test_alloc((a->shape.topk + 1) * 8);
  double max = -INFINITY, sum = 0, norm = 0, terms = 0;
  const float **v = test_alloc((a->shape.topk + 1) * (int64_t)sizeof *v);
  for (int32_t i = 0; i < a->counts[row]; i++) {
    int32_t position = a->indices[(int64_t)row * a->shape.topk + i];
    if (position < 0) {
      continue;
    }
    v[o.n] = a->decoded[a->source_of[row]] + (int64_t)position * 576;
    for (int d = 0; d < 576; d++) {
      uint16_t q = d < 512 ? a->q_latent[at * 512 + d] : a->q_rope[at * 64 + d - 512];
      double term = scale * (double)quire_bf16_widen(q) * (double)v[o.n][d];
      score[o.n] += term;
      size[o.n] += fabs(term);
    }
    max = fmax(max, score[o.n]);
    o.n++;
  }
  for (int32_t i = 0; i < o.n; i++) {
    double p = exp(score[i] - max);
    sum += p;
    o.lse_size += p * size[i];
    for (int d = 0; d < 512; d++) {
      o.out[d] += p * (double)v[i][d];
      terms += p * (double)v[i][d] * p * (double)v[i][d];
    }
  }
  for (int d = 0; d < 512 && o.n > 0; d++) {
    o.out[d] /= sum;
    norm += o.out[d] * o.out[d];
  }
  o.out_size = fmax(norm, terms / (sum * sum));
  o.lse_size = fmax(1, o.lse_size / sum);
  o.lse = max + log(sum);
  free(score);
  free(size);
  free(v);
  return o;
}

static double worst_out, worst_lse; /* of all cases, over their bounds */

static void oracle_check(const struct attention *a, enum quire_dtype type, const uint8_t *out, const float *lse) {
  const struct shape *s = &a->shape;
  for (int64_t i = 0; i < (int64_t)s->rows * s->heads; i++) {
    int32_t row = (int32_t)(i / s->heads), head = (int32_t)(i % s->heads);
    double off = 0;
    if (s->checked > 0 && (head * 7 + row) % s->heads >= s->checked) {
      continue;
    }
    const struct oracle want = oracle_head(a, row, head);
    for (int64_t d = 0; d < 512; d++) {
      double got = type == QUIRE_DTYPE_BF16
                       ? (double)quire_bf16_widen(((const uint16_t *)(const void *)out)[i * 512 + d])
                       : (double)((const float *)(const void *)out)[i * 512 + d];
      off += (got - want.out[d]) * (got - want.out[d]);
      assert_true(want.n > 0 || got == 0);
    }
    if (want.n == 0) {
      assert_true(lse[i] == -INFINITY);
      continue;
    }
    double out_part = sqrt(off / want.out_size) / OUT_BOUND;
    double lse_part = fabs((double)lse[i] - want.lse) / (LSE_BOUND * want.lse_size);
    if (!(out_part <= 1) || !(lse_part <= 1)) {
      fail_msg("row %d head %d of %d entries: out off by %g, lse %g for %g", row, head, want.n, out_part * OUT_BOUND,
               (double)lse[i], want.lse);
    }
    worst_out = fmax(worst_out, out_part);
    worst_lse = fmax(worst_lse, lse_part);
  }
}

static uint64_t digest_of(uint64_t digest, const void *bytes, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    digest = (digest ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
  }
  return digest;
}

/* Checks a shape; the digest of its bits. */
static uint64_t check_shape(const struct shape *shape) {
  struct attention a;
  uint64_t digest = 0xcbf29ce484222325ull;
  attention_make(&a, shape);
  for (int t = 0; t < 2; t++) {
    enum quire_dtype type = t == 0 ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32;
    int64_t heads = (int64_t)shape->rows * shape->heads, bytes = heads * 512 * out_bytes(type);
    const struct way ways[] = {{shape->rows, false}, {3, true}, {1, false}, {1, true}, {16, true}};
    uint8_t *first = NULL;
    float *first_lse = NULL;
    for (int run = 0; run < (small ? 2 : 5); run++) { /* another layout and another cut each time */
      struct layout l = {0};
      uint8_t *out;
      float *lse;
      for (int32_t i = 0; i < shape->sources; i++) {
        layout_make(&a, i, run == 0 ? shape->length : test_between(&rng, 0, shape->length), &l);
      }
      attention_run(&a, &l, type, ways[run], &out, &lse);
      layout_free(&l, shape->sources);
      if (run == 0) {
        first = out;
        first_lse = lse;
        oracle_check(&a, type, out, lse);
        digest = digest_of(digest_of(digest, out, bytes), lse, heads * 4);
        continue;
      }
      assert_memory_equal(out, first, bytes);
      assert_memory_equal(lse, first_lse, heads * 4);
      free(out);
      free(lse);
    }
    free(first);
    free(first_lse);
  }
  attention_free(&a);
  return digest;
}

static void test_formats(void **state) {
  (void)state;
  for (int i = small ? 9 : 0; i < 12; i++) {
    check_shape(&(struct shape){.format = i % 3 == 0 ? QUIRE_KV_BF16 : QUIRE_KV_FP8,
                                .any_scale = i % 3 == 2,
                                .rows = 9,
                                .sources = 2,
                                .length = 300,
                                .heads = i % 2 == 0 ? 64 : 128,
                                .topk = 256,
                                .page_tokens = 64,
                                .full = i / 3 % 2 == 0,
                                .holes = i >= 6,
                                .checked = 8});
  }
}

/* Every length around the edges of tiles and pairs, one row each. */
static void test_edges(void **state) {
  (void)state;
  const int32_t lengths[] = {1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 191, 192, 193, 255, 256, 257, 384, 385};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i += small ? 4 : 1) {
    for (int format = QUIRE_KV_BF16; format <= QUIRE_KV_FP8; format++) {
      check_shape(&(struct shape){.format = (enum quire_kv_format)format,
                                  .rows = 1,
                                  .sources = 1,
                                  .length = lengths[i] + (int32_t)i % 3,
                                  .heads = i % 2 == 0 ? 128 : 64,
                                  .topk = lengths[i],
                                  .page_tokens = 64,
                                  .full = true,
                                  .checked = 6});
    }
  }
}

static void test_random_shapes(void **state) {
  (void)state;
  for (int i = 0; i < (small ? 4 : 24); i++) {
    int32_t rows = test_between(&rng, 1, small ? 5 : ROWS_MAX), length = test_between(&rng, 1, 400);
    check_shape(&(struct shape){.format = i % 2 == 0 ? QUIRE_KV_BF16 : QUIRE_KV_FP8,
                                .any_scale = i % 4 == 3,
                                .rows = rows,
                                .sources = test_between(&rng, 1, rows < SOURCES_MAX ? rows : SOURCES_MAX),
                                .length = length,
                                .heads = i % 3 == 0 ? 128 : test_between(&rng, 1, 130),
                                .topk = test_between(&rng, 1, 400),
                                .first = test_between(&rng, 0, 1),
                                .page_tokens = i % 5 == 0 ? test_between(&rng, 1, 100) : 64,
                                .holes = i % 6 == 5,
                                .magnitude = i % 7 == 6 ? 8.0f : 0,
                                .checked = 3});
  }
}

/* More rows than the device has blocks, long lists. */
static void test_long(void **state) {
  (void)state;
  for (int format = QUIRE_KV_BF16; format <= QUIRE_KV_FP8; format++) {
    for (int heads = 64; heads <= 128; heads += 64) {
      check_shape(&(struct shape){.format = (enum quire_kv_format)format,
                                  .rows = small ? 3 : ROWS_MAX,
                                  .sources = 3,
                                  .length = 2500,
                                  .heads = heads == 64 ? 192 : 128,
                                  .topk = 2048,
                                  .page_tokens = 64,
                                  .checked = 2});
    }
  }
}

static void test_empty(void **state) {
  (void)state;
  for (int format = QUIRE_KV_BF16; format <= QUIRE_KV_FP8; format++) {
    check_shape(&(struct shape){.format = (enum quire_kv_format)format,
                                .rows = 7,
                                .sources = 1,
                                .length = 1,
                                .heads = 128,
                                .topk = 8,
                                .first = 1,
                                .page_tokens = 64});
  }
  struct quire_attend none = {.format = QUIRE_KV_BF16, .q_dtype = QUIRE_DTYPE_BF16, .heads = 64, .topk = 64};
  assert_int_equal(quire_cuda_attend(NULL, &none), QUIRE_OK);
}

/* The same data whatever the seed: what several machines and views have to agree on. */
static void test_digest(void **state) {
  (void)state;
  if (small) {
    skip();
  }
  uint64_t seed = rng.state;
  for (int format = QUIRE_KV_BF16; format <= QUIRE_KV_FP8; format++) {
    rng.state = 20;
    uint64_t digest = check_shape(&(struct shape){.format = (enum quire_kv_format)format,
                                                  .rows = 20,
                                                  .sources = 2,
                                                  .length = 1500,
                                                  .heads = 128,
                                                  .topk = 1024,
                                                  .page_tokens = 64,
                                                  .checked = 2});
    printf("digest of %s: %016llx\n", quire_kv_format_name((enum quire_kv_format)format), (unsigned long long)digest);
  }
  rng.state = seed;
}

static int setup(void **state) {
  (void)state;
  rng.state = test_seed("cuda_attend");
  small = getenv("QUIRE_TEST_SMALL") != NULL;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  printf("largest errors, of their bounds: out %.2f, lse %.2f\n", worst_out, worst_lse);
  return 0;
}

/* An argument: the tests to run, as a pattern. */
int main(int argc, char **argv) {
  cuda_case_device();
  if (argc > 1) {
    cmocka_set_test_filter(argv[1]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_formats), cmocka_unit_test(test_edges), cmocka_unit_test(test_random_shapes),
      cmocka_unit_test(test_long),    cmocka_unit_test(test_empty), cmocka_unit_test(test_digest),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
