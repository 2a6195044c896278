/* select on a GPU. The scores it computes against two oracles written from arithmetic.md 9 and 13: bit for bit against
 * the arithmetic of the family, and within a bound against f64. The lists against a sort of those scores, exactly; and
 * the same lists and scores for every way to tile the rows, split the keys and cut the batch.
 * ctest: timeout=300 */
#include <cuda.h>

#include "cuda_case.h"

#define SOURCES_MAX 8
#define ROWS_MAX 1100 /* more than one launch takes where rows are few a source */

enum flavour { PLAIN, TIES, PLATEAU, EQUAL, RISING, FALLING, BROKEN, FLAVOURS };

static struct test_random rng;
static bool small; /* QUIRE_TEST_SMALL: under a sanitizer, which is slow */

struct shape {
  enum flavour flavour;
  bool any_scale;
  int32_t rows;
  int32_t sources;
  int32_t length; /* longest source */
  int32_t heads;
  int32_t topk;
  int32_t first;
  int32_t page_tokens;
  int32_t checked; /* rows whose scores the oracles check; the rest is checked through the lists alone */
  bool paged;      /* all keys are in pages; else the last, from anywhere on, in a ring */
};

struct selection {
  struct shape shape;
  struct cuda_keys keys[SOURCES_MAX];
  struct quire_part part;
  int32_t source_of[ROWS_MAX];
  int32_t limit[ROWS_MAX];
  int32_t limit_max;
  float *q, *w;     /* host */
  uint8_t *q_codes; /* [rows][heads][128], by the oracle */
  float *q_scales;
  float *scores; /* host, from the device */
  void *device_sources, *device_source_of, *device_limit, *device_q, *device_w;
};

static void key_make(const struct shape *shape, int32_t position, float *key) {
  static float shared[4][128];
  test_fill(&rng, key, 128, 1.0f);
  if (shape->flavour == TIES) {
    if (position < 4) {
      memcpy(shared[position], key, sizeof shared[0]);
    }
    memcpy(key, shared[position < 4 ? position : test_between(&rng, 0, 3)], sizeof shared[0]);
  }
  for (int i = 0; i < 128; i++) {
    if (shape->flavour == EQUAL) {
      key[i] = 0.5f;
    } else if (shape->flavour == PLATEAU) { /* three of four opposed to every query: a score of 0 */
      key[i] = (position * 2654435761u >> 16) % 4 != 0 ? -1.0f : key[i];
    } else if (shape->flavour == RISING) {
      key[i] = 0.01f * (float)(position + 1);
    } else if (shape->flavour == FALLING) {
      key[i] = 0.01f * (float)(shape->length - position);
    }
  }
}

static void keys_make(struct selection *s, struct cuda_keys *k, int32_t length) {
  const struct shape *shape = &s->shape;
  k->length = length;
  k->codes = test_poisoned((int64_t)length * 128);
  k->scales = test_poisoned((int64_t)length * 4);
  for (int32_t position = shape->first; position < length; position++) {
    float key[128];
    key_make(shape, position, key);
    k->scales[position] = oracle_quantise(key, 128, shape->any_scale, k->codes + (int64_t)position * 128);
    if (shape->flavour == BROKEN && position % 13 == 0) { /* scores beyond f32 */
      k->scales[position] = 0x1.8p127f;
    }
    if (shape->flavour == BROKEN && position % 7 == 0) {
      k->scales[position] = quire_float_of(0x7fc00000u);
    }
    if (shape->flavour == BROKEN && position % 11 == 0) {
      k->codes[(int64_t)position * 128 + 77] = 0x7f;
    }
  }
  int32_t prefix = shape->paged ? length : test_between(&rng, 0, length);
  cuda_keys_spread(&rng, k, &s->part, shape->page_tokens, prefix, shape->first);
}

static void rows_make(struct selection *s) {
  const struct shape *shape = &s->shape;
  int64_t values = (int64_t)shape->rows * shape->heads;
  for (int32_t r = 0; r < shape->rows; r++) {
    s->source_of[r] = shape->sources * r / shape->rows;
    int32_t end = s->keys[s->source_of[r]].length;
    s->limit[r] = r % 3 == 0 ? end : test_between(&rng, 0, end);
    s->limit_max = s->limit[r] > s->limit_max ? s->limit[r] : s->limit_max;
  }
  s->q = test_alloc(values * 128 * 4);
  s->w = test_alloc(values * 4);
  s->q_codes = test_alloc(values * 128);
  s->q_scales = test_alloc(values * 4);
  test_fill(&rng, s->q, values * 128, 1.0f);
  test_fill(&rng, s->w, values, 0.1f);
  bool positive = shape->flavour == PLATEAU || shape->flavour == RISING || shape->flavour == FALLING;
  for (int64_t i = 0; i < values * 128 && positive; i++) {
    s->q[i] = s->q[i] < 0 ? -s->q[i] : s->q[i];
  }
  for (int64_t i = 0; i < values && positive; i++) {
    s->w[i] = s->w[i] < 0 ? -s->w[i] : s->w[i];
  }
  for (int64_t i = 0; i < values; i++) {
    s->q_scales[i] = oracle_quantise(s->q + i * 128, 128, shape->any_scale, s->q_codes + i * 128);
  }
}

static void selection_make(struct selection *s, const struct shape *shape) {
  struct quire_kv_source sources[SOURCES_MAX];
  memset(s, 0, sizeof *s);
  s->shape = *shape;
  s->part = test_part(QUIRE_PART_INDEX_KEY, QUIRE_KV_FP8, shape->page_tokens);
  for (int32_t i = 0; i < shape->sources; i++) {
    keys_make(s, &s->keys[i], i == 0 ? shape->length : test_between(&rng, 1, shape->length));
    sources[i] = s->keys[i].source;
  }
  rows_make(s);
  s->device_sources = cuda_copy_of(sources, shape->sources * (int64_t)sizeof *sources);
  s->device_source_of = cuda_copy_of(s->source_of, shape->rows * 4);
  s->device_limit = cuda_copy_of(s->limit, shape->rows * 4);
  s->device_q = cuda_copy_of(s->q, (int64_t)shape->rows * shape->heads * 128 * 4);
  s->device_w = cuda_copy_of(s->w, (int64_t)shape->rows * shape->heads * 4);
}

static void selection_free(struct selection *s) {
  for (int32_t i = 0; i < s->shape.sources; i++) {
    cuda_keys_free(&s->keys[i]);
  }
  CHECK(cudaFree(s->device_sources));
  CHECK(cudaFree(s->device_source_of));
  CHECK(cudaFree(s->device_limit));
  CHECK(cudaFree(s->device_q));
  CHECK(cudaFree(s->device_w));
  free(s->q);
  free(s->w);
  free(s->q_codes);
  free(s->q_scales);
  free(s->scores);
}

/* How it is run. */
struct way {
  int32_t source_rows;
  int32_t pieces;
  int32_t batch;  /* rows of a launch */
  bool no_stream; /* as where the driver makes no tensor maps */
};

/* Device arrays of all rows: indices and counts, or scores. */
struct outputs {
  int32_t *indices, *counts;
  float *scores;
};

/* Rows [row, row + m) by one launch. */
static void launch(const struct selection *s, struct way way, int32_t row, int32_t m, struct outputs to) {
  const struct shape *shape = &s->shape;
  int64_t bytes = quire_cuda_select_scratch_bytes(shape->heads, shape->topk, m, s->limit_max, way.pieces);
  void *scratch = cuda_poisoned(bytes);
  int64_t values = (int64_t)row * shape->heads;
  struct quire_cuda_select select = {
      .op = {.rows = {.sources = s->device_sources,
                      .source_of = (const int32_t *)s->device_source_of + row,
                      .limit = (const int32_t *)s->device_limit + row,
                      .m = m,
                      .first = shape->first},
             .part = s->part,
             .q = (const float *)s->device_q + values * 128,
             .w = (const float *)s->device_w + values,
             .indices_out = to.indices + (int64_t)row * shape->topk,
             .counts_out = to.counts + row,
             .scratch = scratch,
             .format = QUIRE_KV_FP8,
             .any_scale = shape->any_scale,
             .heads = shape->heads,
             .topk = shape->topk,
             .limit_max = s->limit_max,
             .source_rows = way.source_rows},
      .maps = way.no_stream ? NULL : quire_cuda_select_maps(NULL),
      .multiprocessors = way.pieces,
      .scores_out = to.scores != NULL ? to.scores + (int64_t)row * s->limit_max : NULL,
      .scores_ld = s->limit_max,
  };
  assert_int_equal(quire_cuda_select(NULL, &select), QUIRE_OK);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(scratch));
}

static bool row_scores(const struct selection *s, int32_t row) {
  return s->limit[row] - s->shape.first > s->shape.topk;
}

/* The scores of all rows that score, from the device; checked to be the same bits whichever way. */
static void scores_take(struct selection *s, struct way way) {
  int64_t count = (int64_t)s->shape.rows * s->limit_max;
  float *device = cuda_poisoned(count * 4);
  for (int32_t row = 0; row < s->shape.rows; row += way.batch) {
    launch(s, way, row, s->shape.rows - row < way.batch ? s->shape.rows - row : way.batch,
           (struct outputs){.scores = device});
  }
  float *scores = cuda_host_of(device, count * 4);
  CHECK(cudaFree(device));
  if (s->scores == NULL) {
    s->scores = scores;
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    if (quire_bits_of(scores[i]) != quire_bits_of(s->scores[i])) {
      fail_msg("score %lld of row %lld is %a, tiled by %d in %d pieces and batches of %d %a",
               (long long)(i % s->limit_max), (long long)(i / s->limit_max), (double)s->scores[i], way.source_rows,
               way.pieces, way.batch, (double)scores[i]);
    }
  }
  free(scores);
}

/* The list of a row by sorting the device's scores; returns its length. */
static int32_t oracle_list(const struct selection *s, int32_t row, int32_t *want) {
  const struct shape *shape = &s->shape;
  int32_t visible = s->limit[row] - shape->first;
  int32_t n = visible > 0 ? visible : 0;
  float *scores = test_alloc((int64_t)n * 4); /* zeros */
  if (row_scores(s, row)) {
    memcpy(scores, s->scores + (int64_t)row * s->limit_max + shape->first, (size_t)n * 4);
  }
  int32_t count = oracle_topk(scores, n, shape->first, shape->topk, want);
  free(scores);
  return count;
}

static void lists_check(const struct selection *s, struct way way, const int32_t *want, const int32_t *want_count) {
  const struct shape *shape = &s->shape;
  int64_t entries = (int64_t)shape->rows * shape->topk;
  int32_t *device = cuda_poisoned(entries * 4);
  int32_t *device_counts = cuda_poisoned(shape->rows * 4);
  CHECK(cudaMemset(device, 0x5a, (size_t)entries * 4));
  for (int32_t row = 0; row < shape->rows; row += way.batch) {
    launch(s, way, row, shape->rows - row < way.batch ? shape->rows - row : way.batch,
           (struct outputs){.indices = device, .counts = device_counts});
  }
  int32_t *got = cuda_host_of(device, entries * 4);
  int32_t *counts = cuda_host_of(device_counts, shape->rows * 4);
  for (int64_t i = 0; i < entries; i++) {
    if (got[i] != want[i] || counts[i / shape->topk] != want_count[i / shape->topk]) {
      fail_msg("flavour %d, row %lld of %d (limit %d), entry %lld of %d is %d, the oracle says %d; tiled by %d in %d "
               "pieces and batches of %d",
               (int)shape->flavour, (long long)(i / shape->topk), counts[i / shape->topk], s->limit[i / shape->topk],
               (long long)(i % shape->topk), want_count[i / shape->topk], got[i], want[i], way.source_rows, way.pieces,
               way.batch);
    }
  }
  free(got);
  free(counts);
  CHECK(cudaFree(device));
  CHECK(cudaFree(device_counts));
}

/* --- the arithmetic of a tensor core (arithmetic.md 13) --- */

/* |x| = significand * 2^(exponent - 3). */
static int e4m3_exponent(uint8_t x) { return (x >> 3 & 15) != 0 ? (x >> 3 & 15) - 7 : -6; }
static int64_t e4m3_significand(uint8_t x) { return (x & 7) + ((x >> 3 & 15) != 0 ? 8 : 0); }

/* The integer part of value * 2^shift, towards zero. */
static int64_t shifted(int64_t value, int shift) {
  int64_t magnitude = value < 0 ? -value : value;
  magnitude = shift >= 0 ? magnitude << shift : shift < -62 ? 0 : magnitude >> -shift;
  return value < 0 ? -magnitude : magnitude;
}

/* integer * 2^exponent, cut off behind 13 bits of the mantissa. */
static float cut13(int64_t integer, int exponent) {
  int64_t magnitude = integer < 0 ? -integer : integer;
  while (magnitude >= 1 << 14) {
    magnitude >>= 1;
    exponent++;
  }
  float value = (float)magnitude * quire_float_of((uint32_t)(exponent + 127) << 23);
  return integer < 0 ? -value : value;
}

/* sum + a . b over 32 values. */
static float oracle_step(float sum, const uint8_t *a, const uint8_t *b) {
  int largest = -1000;
  int sum_exponent = (int)(quire_bits_of(sum) >> 23 & 255) - 127;
  int64_t sum_significand = (quire_bits_of(sum) & 0x7fffff) | 0x800000;
  if (sum != 0.0f) {
    largest = sum_exponent;
  }
  for (int i = 0; i < 32; i++) {
    int exponent = e4m3_exponent(a[i]) + e4m3_exponent(b[i]);
    if (e4m3_significand(a[i]) * e4m3_significand(b[i]) != 0 && exponent > largest) {
      largest = exponent;
    }
  }
  if (largest == -1000) {
    return 0.0f;
  }
  int64_t total =
      sum != 0.0f ? shifted(sum < 0 ? -sum_significand : sum_significand, sum_exponent - 23 - largest + 13) : 0;
  for (int i = 0; i < 32; i++) {
    int64_t product = e4m3_significand(a[i]) * e4m3_significand(b[i]);
    int exponent = e4m3_exponent(a[i]) + e4m3_exponent(b[i]) - 6;
    total += shifted(((a[i] ^ b[i]) & 0x80) != 0 ? -product : product, exponent - largest + 13);
  }
  return cut13(total, largest - 13);
}

static float oracle_products(const uint8_t *a, const uint8_t *b) {
  float sum = 0.0f;
  for (int i = 0; i < 128; i++) {
    if ((a[i] & 0x7f) == 0x7f || (b[i] & 0x7f) == 0x7f) {
      return quire_float_of(0x7fc00000u);
    }
  }
  for (int i = 0; i < 128; i += 32) {
    sum = oracle_step(sum, a + i, b + i);
  }
  return sum;
}

static double magnitude_of(double x) { return x < 0 ? -x : x; }

/* In f64, and the largest of the terms and of the sums after 32, 64, 96, 128 of them. */
static double exact_products(const uint8_t *a, const uint8_t *b, double *largest_out) {
  double sum = 0.0;
  double largest = 0.0;
  for (int i = 0; i < 128; i++) {
    double product = (double)quire_e4m3_widen(a[i]) * (double)quire_e4m3_widen(b[i]);
    sum += product;
    largest = magnitude_of(product) > largest ? magnitude_of(product) : largest;
    largest = i % 32 == 31 && magnitude_of(sum) > largest ? magnitude_of(sum) : largest;
  }
  *largest_out = largest;
  return sum;
}

/* One score: bit for bit, and against f64 within the bound of 33 terms cut off four times at 2^-13 of the largest, four
 * results cut off at 2^-13 of themselves, and f32 sums. */
static void score_check(const struct selection *s, int32_t row, int32_t position) {
  const struct shape *shape = &s->shape;
  const struct cuda_keys *k = &s->keys[s->source_of[row]];
  float got = s->scores[(int64_t)row * s->limit_max + position];
  float lane[4] = {0};
  double exact = 0.0;
  double bound = 0.0;
  for (int64_t h = 0; h < shape->heads; h++) {
    const uint8_t *q = s->q_codes + ((int64_t)row * shape->heads + h) * 128;
    const uint8_t *key = k->codes + (int64_t)position * 128;
    float w = s->w[(int64_t)row * shape->heads + h] * s->q_scales[(int64_t)row * shape->heads + h];
    float product = oracle_products(q, key);
    double largest;
    double exact_product = exact_products(q, key, &largest);
    lane[h % 8 / 2] = __builtin_fmaf(w, 0.0f > product ? 0.0f : product, lane[h % 8 / 2]);
    exact += (double)w * (0.0 > exact_product ? 0.0 : exact_product);
    bound += magnitude_of((double)w) * largest * (137 * 0x1p-13 + 64 * 0x1p-24);
  }
  float want = k->scales[position] * ((lane[0] + lane[1]) + (lane[2] + lane[3]));
  exact *= (double)k->scales[position];
  bound *= (double)k->scales[position];
  if (!test_same(got, want) && !(got == 0.0f && want == 0.0f)) {
    fail_msg("row %d, position %d: score %a, the oracle says %a", row, position, (double)got, (double)want);
  }
  bool finite = magnitude_of((double)want) <= 0x1.fffffep127;
  if (finite && !(magnitude_of((double)got - exact) <= bound)) {
    fail_msg("row %d, position %d: score %a, in f64 %a, bound %a", row, position, (double)got, exact, bound);
  }
}

static void scores_check(const struct selection *s, int32_t row) {
  for (int32_t position = s->shape.first; position < s->limit[row]; position++) {
    score_check(s, row, position);
  }
}

static void selection_check(struct selection *s) {
  static const struct way ways[] = {{4, 132, 1 << 20, false}, {1, 132, 1 << 20, false}, {2, 7, 5, false},
                                    {8, 1, 1 << 20, false},   {3, 31, 3, false},        {1, 1, 1 << 20, false},
                                    {1, 132, 1 << 20, true},  {2, 9, 4, true}};
  const struct shape *shape = &s->shape;
  int32_t *want = test_alloc((int64_t)shape->rows * shape->topk * 4);
  int32_t want_count[ROWS_MAX];
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    scores_take(s, ways[i]);
  }
  for (int32_t row = 0; row < shape->rows; row++) {
    want_count[row] = oracle_list(s, row, want + (int64_t)row * shape->topk);
    if (row < shape->checked && row_scores(s, row)) {
      scores_check(s, row);
    }
  }
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    lists_check(s, ways[i], want, want_count);
  }
  free(want);
}

static void check_shape(const struct shape *shape) {
  struct selection s;
  selection_make(&s, shape);
  selection_check(&s);
  selection_free(&s);
}

static void test_flavours(void **state) {
  (void)state;
  for (int flavour = 0; flavour < (small ? TIES + 1 : FLAVOURS); flavour++) {
    for (int heads = 32; heads <= 64; heads *= 2) {
      check_shape(&(struct shape){.flavour = (enum flavour)flavour,
                                  .rows = 13,
                                  .sources = 3,
                                  .length = small ? 700 : 1500,
                                  .heads = heads,
                                  .topk = 256,
                                  .page_tokens = 64,
                                  .checked = 1});
    }
  }
}

static void test_random_shapes(void **state) {
  (void)state;
  for (int i = 0; i < (small ? 2 : 30); i++) {
    int32_t rows = test_between(&rng, 1, i % 4 == 0 ? 64 : 10);
    check_shape(&(struct shape){.flavour = (enum flavour)test_between(&rng, 0, FLAVOURS - 1),
                                .any_scale = test_between(&rng, 0, 2) == 0,
                                .rows = rows,
                                .sources = test_between(&rng, 1, rows < SOURCES_MAX ? rows : SOURCES_MAX),
                                .length = test_between(&rng, 2, 1500),
                                .heads = test_between(&rng, 1, 64),
                                .topk = test_between(&rng, 1, 400),
                                .first = test_between(&rng, 0, 1),
                                .page_tokens = i % 3 == 0 ? 16 : 64,
                                .checked = 1});
  }
}

/* Lists that are cut many times, and bitmaps of more than one window. */
static void test_long(void **state) {
  (void)state;
  for (int flavour = 0; flavour < (small ? 1 : FLAVOURS); flavour++) {
    check_shape(&(struct shape){.flavour = (enum flavour)flavour,
                                .rows = small ? 2 : 6,
                                .sources = 2,
                                .length = small              ? 20000
                                          : flavour == PLAIN ? 150000
                                                             : 50000 + test_between(&rng, 0, 3000),
                                .heads = flavour == PLAIN ? 64 : 3,
                                .topk = 2048,
                                .page_tokens = 64});
  }
}

/* Lengths around a page, a unit of keys and a line of units; the last page whole, cut, or in the ring. */
static void test_edges(void **state) {
  (void)state;
  static const int32_t lengths[] = {65, 64, 1, 2, 63, 127, 128, 129, 191, 192, 193, 255, 256, 257, 767, 768, 769};
  for (int i = 0; i < (small ? 2 : (int)(sizeof lengths / sizeof *lengths)) * 2; i++) {
    int32_t length = lengths[i / 2];
    check_shape(&(struct shape){.rows = 4,
                                .sources = 2,
                                .length = length,
                                .heads = i / 2 % 2 == 0 ? 64 : 32,
                                .topk = test_between(&rng, 1, length < 60 ? length : 60),
                                .first = length > 1 ? test_between(&rng, 0, 1) : 0,
                                .page_tokens = 64,
                                .checked = 1,
                                .paged = i % 2 == 0});
  }
}

/* --- a page across a border of the layers in which tensor maps describe all memory (select_stream.cuh) --- */

#define LAYER_BYTES (1ull << 37)

static void *driver_of(const char *name) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  assert_int_equal(found, cudaDriverEntryPointSuccess);
  return function;
}

#define DRIVER(name) ((__typeof__(&name))driver_of(#name))

/* Device memory of `half` bytes on either side of a border, which any range of a layer's bytes has. */
struct straddling {
  CUdeviceptr range, border;
  size_t half;
  CUmemGenericAllocationHandle handle;
};

static size_t range_bytes(const struct straddling *m) { return LAYER_BYTES + 2 * m->half; }

static void straddling_make(struct straddling *m) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  assert_int_equal(DRIVER(cuMemGetAllocationGranularity)(&m->half, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                   CUDA_SUCCESS);
  assert_int_equal(DRIVER(cuMemAddressReserve)(&m->range, range_bytes(m), 0, 0, 0), CUDA_SUCCESS);
  m->border = (m->range + m->half + LAYER_BYTES - 1) / LAYER_BYTES * LAYER_BYTES;
  assert_int_equal(DRIVER(cuMemCreate)(&m->handle, 2 * m->half, &properties, 0), CUDA_SUCCESS);
  assert_int_equal(DRIVER(cuMemMap)(m->border - m->half, 2 * m->half, 0, m->handle, 0), CUDA_SUCCESS);
  assert_int_equal(DRIVER(cuMemSetAccess)(m->border - m->half, 2 * m->half, &access, 1), CUDA_SUCCESS);
}

static void straddling_free(const struct straddling *m) {
  CHECK(cudaDeviceSynchronize());
  assert_int_equal(DRIVER(cuMemUnmap)(m->border - m->half, 2 * m->half), CUDA_SUCCESS);
  assert_int_equal(DRIVER(cuMemRelease)(m->handle), CUDA_SUCCESS);
  assert_int_equal(DRIVER(cuMemAddressFree)(m->range, range_bytes(m)), CUDA_SUCCESS);
}

/* Moves the pages so that the one at `place` begins `before` bytes before the border. */
static void keys_move(const struct cuda_keys *k, const struct straddling *m, int64_t place, int64_t before) {
  int32_t count = k->length / k->source.page_tokens;
  const uint8_t **pages = cuda_host_of(k->pages, count * (int64_t)sizeof *pages);
  int64_t last = 0;
  for (int32_t i = 0; i < count; i++) {
    last = pages[i] - k->pool > last ? pages[i] - k->pool : last;
  }
  int64_t stride = last / (count - 1);
  uint8_t *to = (uint8_t *)(uintptr_t)m->border - before - place * stride;
  CHECK(cudaMemset((void *)(uintptr_t)(m->border - m->half), 0xff, 2 * m->half));
  CHECK(cudaMemcpy(to, k->pool, (size_t)(count * stride), cudaMemcpyDeviceToDevice));
  CHECK(cudaMemset(k->pool, 0xff, (size_t)(count * stride)));
  for (int32_t i = 0; i < count; i++) {
    pages[i] = to + (pages[i] - k->pool);
  }
  CHECK(cudaMemcpy(k->pages, pages, (size_t)count * sizeof *pages, cudaMemcpyHostToDevice));
  free(pages);
}

static void test_border(void **state) {
  (void)state;
  struct straddling memory = {0};
  CHECK(cudaFree(NULL)); /* makes the context */
  straddling_make(&memory);
  for (int i = 0; i < (small ? 1 : 6); i++) {
    int32_t before = i == 1 ? 1 : i == 2 ? 511 : i == 3 ? 8 * test_between(&rng, 1, 63) : test_between(&rng, 1, 511);
    struct selection s;
    selection_make(&s, &(struct shape){.rows = 3,
                                       .sources = 1,
                                       .length = 640,
                                       .heads = i % 2 == 0 ? 64 : 32,
                                       .topk = 100,
                                       .page_tokens = 64,
                                       .checked = 1,
                                       .paged = true});
    keys_move(&s.keys[0], &memory, test_between(&rng, 0, 9), before * 16);
    selection_check(&s);
    selection_free(&s);
  }
  straddling_free(&memory);
}

/* More rows than a launch takes. */
static void test_many(void **state) {
  (void)state;
  check_shape(&(struct shape){.flavour = TIES,
                              .rows = small ? 20 : ROWS_MAX,
                              .sources = SOURCES_MAX,
                              .length = 500,
                              .heads = test_between(&rng, 33, 64),
                              .topk = 60,
                              .page_tokens = 64,
                              .checked = 1});
}

static void test_empty(void **state) {
  (void)state;
  check_shape(&(struct shape){.rows = 5, .sources = 5, .length = 3, .heads = 64, .topk = 2048, .page_tokens = 64});
  struct quire_cuda_select none = {.op = {.heads = 64, .topk = 2048, .format = QUIRE_KV_FP8}, .multiprocessors = 132};
  none.op.part.kind = QUIRE_PART_INDEX_KEY;
  assert_int_equal(quire_cuda_select(NULL, &none), QUIRE_OK);
}

static int setup(void **state) {
  (void)state;
  rng.state = test_seed("cuda_select");
  small = getenv("QUIRE_TEST_SMALL") != NULL;
  assert_non_null(quire_cuda_select_maps(NULL)); /* else all ways are those without */
  return 0;
}

/* An argument: the tests to run, as a pattern. */
int main(int argc, char **argv) {
  cuda_case_device();
  if (argc > 1) {
    cmocka_set_test_filter(argv[1]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flavours), cmocka_unit_test(test_random_shapes), cmocka_unit_test(test_long),
      cmocka_unit_test(test_many),     cmocka_unit_test(test_edges),         cmocka_unit_test(test_border),
      cmocka_unit_test(test_empty),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
