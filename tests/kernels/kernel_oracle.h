/* What the tests of the kernels share: slow flat oracles written from docs/arithmetic.md, random data, sources of rows,
 * and a world of teams and streams in which a launcher runs with 1, 2 and 3 threads and through every table.
 *
 * Oracles are written for the eye, one statement a step of the document. Run them between quire_kernels_enter and
 * quire_kernels_leave. Single thread. */
#ifndef QUIRE_TESTS_KERNEL_ORACLE_H
#define QUIRE_TESTS_KERNEL_ORACLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/team.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "kernels/number.h"
#include "seed.h"

#define TEST_THREADS_MAX 3

/* DeepSeek-V3.2's rope, as its config.json has it. */
static const struct quire_rope_config test_rope_v32 = {.theta = 10000.0f,
                                                       .yarn = true,
                                                       .factor = 40.0f,
                                                       .original_positions = 4096,
                                                       .beta_fast = 32.0f,
                                                       .beta_slow = 1.0f,
                                                       .attention_factor = 1.0f};

/* --- random data --- */

struct test_random {
  uint64_t state;
};

static inline uint64_t test_next(struct test_random *r) {
  uint64_t z = (r->state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/* In [low, high]. */
static inline int32_t test_between(struct test_random *r, int32_t low, int32_t high) {
  return low + (int32_t)(test_next(r) % (uint64_t)(high - low + 1));
}

/* Roughly normal, of deviation 1. */
static inline float test_normal(struct test_random *r) {
  uint64_t x = test_next(r);
  int64_t sum = (int64_t)(x & 0xffff) + (int64_t)(x >> 16 & 0xffff) + (int64_t)(x >> 32 & 0xffff) + (int64_t)(x >> 48);
  return (float)(sum - 131070) * (1.0f / 37837.0f);
}

static inline void test_fill(struct test_random *r, float *x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; i++) {
    x[i] = test_normal(r) * scale;
  }
}

/* Zeroed bytes that end where the allocation ends, so that a sanitizer sees a read too far. */
static inline void *test_alloc(int64_t bytes) {
  void *memory = calloc(1, bytes > 0 ? (size_t)bytes : 1);
  assert_non_null(memory);
  return memory;
}

static inline void *test_poisoned(int64_t bytes) {
  void *memory = test_alloc(bytes);
  memset(memory, 0xff, (size_t)bytes);
  return memory;
}

/* Equal as numbers; a NaN equals a NaN. */
static inline int test_same(float a, float b) { return quire_bits_of(a) == quire_bits_of(b) || (a != a && b != b); }

static inline void test_check_rows(const char *what, const float *got, const float *want, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (!test_same(got[i], want[i])) {
      fail_msg("%s: value %lld is %a, the oracle says %a", what, (long long)i, (double)got[i], (double)want[i]);
    }
  }
}

static inline void test_check_bf16(const char *what, const uint16_t *got, const float *want, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (got[i] != quire_bf16_round(want[i]) && want[i] == want[i]) {
      fail_msg("%s: value %lld is %04x, the oracle says %04x", what, (long long)i, got[i], quire_bf16_round(want[i]));
    }
  }
}

/* --- the arithmetic --- */

static inline float oracle_fold(float *l) {
  for (int h = 8; h > 0; h /= 2) {
    for (int i = 0; i < h; i++) {
      l[i] = l[i] + l[i + h];
    }
  }
  return l[0];
}

static inline float oracle_at(const float *x, int64_t i, int64_t n) { return i < n ? x[i] : 0.0f; }

/* Lanes of the bf16 or f32 dot go on over a and b. */
static inline void oracle_lanes(const float *a, const float *b, int64_t n, int bf16, float *l) {
  int64_t step = bf16 ? 32 : 16;
  for (int64_t s = 0; s < n; s += step) {
    for (int i = 0; i < 16; i++) {
      if (bf16) {
        int64_t odd = s + 2 * i + 1;
        int64_t even = s + 2 * i;
        l[i] = __builtin_fmaf(oracle_at(a, odd, n), oracle_at(b, odd, n), l[i]);
        l[i] = __builtin_fmaf(oracle_at(a, even, n), oracle_at(b, even, n), l[i]);
      } else {
        l[i] = __builtin_fmaf(oracle_at(a, s + i, n), oracle_at(b, s + i, n), l[i]);
      }
    }
  }
}

static inline float oracle_dot(const float *a, const float *b, int64_t n, int bf16) {
  float l[16] = {0};
  oracle_lanes(a, b, n, bf16, l);
  return oracle_fold(l);
}

/* Sum in 16 lanes. */
static inline float oracle_sum(const float *x, int64_t n) {
  float l[16] = {0};
  for (int64_t s = 0; s < n; s += 16) {
    for (int i = 0; i < 16; i++) {
      l[i] = l[i] + oracle_at(x, s + i, n);
    }
  }
  return oracle_fold(l);
}

static inline int64_t oracle_bytes(enum quire_dtype dtype) {
  return dtype == QUIRE_DTYPE_F32 ? 4 : dtype == QUIRE_DTYPE_BF16 ? 2 : 1;
}

static inline float oracle_element(const void *x, enum quire_dtype dtype, int64_t i) {
  if (dtype == QUIRE_DTYPE_F32) {
    return ((const float *)x)[i];
  }
  return dtype == QUIRE_DTYPE_BF16 ? quire_bf16_widen(((const uint16_t *)x)[i])
                                   : quire_e4m3_widen(((const uint8_t *)x)[i]);
}

/* One output of a product: x row of k values, W row `column`. */
static inline float oracle_product(const float *x, int x_bf16, const struct quire_weight *w, int64_t column) {
  int bf16 = x_bf16 && w->dtype != QUIRE_DTYPE_F32;
  float *row = test_alloc(w->k * 4);
  float l[16] = {0};
  for (int64_t i = 0; i < w->k; i++) {
    row[i] = oracle_element(w->data, w->dtype, column * w->ld + i);
  }
  if (w->dtype == QUIRE_DTYPE_FP8) {
    for (int64_t block = 0; block < w->k; block += 128) {
      float d[16] = {0};
      int64_t n = w->k - block < 128 ? w->k - block : 128;
      oracle_lanes(x + block, row + block, n, bf16, d);
      for (int i = 0; i < 16; i++) {
        l[i] = __builtin_fmaf(w->scale[column / 128 * w->scale_ld + block / 128], d[i], l[i]);
      }
    }
  } else {
    oracle_lanes(x, row, w->k, bf16, l);
  }
  free(row);
  return oracle_fold(l);
}

static inline float oracle_scale(float amax) {
  uint32_t bits = quire_bits_of((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f));
  uint32_t exponent = bits >> 23;
  if ((bits & 0x7fffff) != 0) {
    exponent++;
  }
  return quire_float_of(exponent << 23);
}

/* A block of n values to codes, by a power of two or by any scale; returns it. */
static inline float oracle_quantise(const float *x, int n, bool any_scale, uint8_t *codes) {
  float amax = 0.0f;
  for (int i = 0; i < n; i++) {
    float magnitude = x[i] < 0 ? -x[i] : x[i];
    amax = magnitude > amax ? magnitude : amax;
  }
  float s = any_scale ? (amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f) : oracle_scale(amax);
  for (int i = 0; i < n; i++) {
    codes[i] = quire_e4m3_round(x[i] / s);
  }
  return s;
}

/* --- weights --- */

struct test_weight {
  struct quire_weight w;
  void *data;
  float *scale;
};

static inline struct test_weight test_weight_make(struct test_random *r, enum quire_dtype dtype, int32_t n, int32_t k,
                                                  float size) {
  struct test_weight t = {.w = {.dtype = dtype, .n = n, .k = k, .ld = k + test_between(r, 0, 3)}};
  int64_t count = (int64_t)(n - 1) * t.w.ld + k;
  t.w.scale_ld = (k + 127) / 128 + test_between(r, 0, 1);
  t.data = test_alloc(count * oracle_bytes(dtype));
  t.scale = test_alloc((int64_t)((n + 127) / 128) * t.w.scale_ld * 4);
  for (int64_t i = 0; i < count; i++) {
    float x = test_normal(r) * size;
    if (dtype == QUIRE_DTYPE_F32) {
      ((float *)t.data)[i] = x;
    } else if (dtype == QUIRE_DTYPE_BF16) {
      ((uint16_t *)t.data)[i] = quire_bf16_round(x);
    } else {
      ((uint8_t *)t.data)[i] = quire_e4m3_round(x * 50.0f);
    }
  }
  for (int64_t i = 0; i < (int64_t)((n + 127) / 128) * t.w.scale_ld; i++) {
    t.scale[i] = (1.0f + (float)test_between(r, 0, 1000) * 0.001f) * 0.02f;
  }
  t.w.data = t.data;
  t.w.scale = t.scale;
  return t;
}

static inline void test_weight_free(struct test_weight *t) {
  free(t->data);
  free(t->scale);
}

/* --- sources of rows --- */

#define TEST_PAGES_MAX 512

struct test_source {
  struct quire_kv_source source;
  struct quire_part part;
  const uint8_t *pages[TEST_PAGES_MAX];
  uint8_t *fresh[QUIRE_PART_PIECES_MAX];
  int32_t page_count;
};

static inline struct quire_part test_part(enum quire_part_kind kind, enum quire_kv_format format, int32_t page_tokens) {
  static const int32_t latent_bytes[] = {2304, 1152, 656};
  struct quire_part part = {.kind = kind, .pieces = 1};
  if (kind == QUIRE_PART_LATENT) {
    part.row_bytes = latent_bytes[format];
    part.piece[0].row_bytes = part.row_bytes;
  } else if (format == QUIRE_KV_F32) {
    part.row_bytes = 512;
    part.piece[0].row_bytes = 512;
  } else {
    part.row_bytes = 132;
    part.pieces = 2;
    part.piece[0].row_bytes = 128;
    part.piece[1].offset = 128 * page_tokens;
    part.piece[1].row_bytes = 4;
  }
  part.page_bytes = part.row_bytes * page_tokens;
  return part;
}

/* rows positions, of which the first prefix lie in pages; everything else in the pages, and before and behind in the
 * ring, is poison. */
static inline void test_source_make(struct test_random *r, struct test_source *t, struct quire_part part,
                                    int32_t page_tokens, int32_t rows, int32_t prefix) {
  int32_t fresh = rows - prefix;
  int32_t capacity = fresh > 0 ? fresh + test_between(r, 0, 5) : 0;
  t->part = part;
  t->page_count = (prefix + page_tokens - 1) / page_tokens;
  assert_true(t->page_count <= TEST_PAGES_MAX);
  for (int32_t i = 0; i < t->page_count; i++) {
    t->pages[i] = test_poisoned(part.page_bytes);
  }
  for (int32_t piece = 0; piece < QUIRE_PART_PIECES_MAX; piece++) {
    t->fresh[piece] = test_poisoned((int64_t)capacity * part.piece[piece].row_bytes);
    t->source.fresh[piece] = t->fresh[piece];
  }
  t->source.pages = t->pages;
  t->source.page_tokens = page_tokens;
  t->source.prefix_end = prefix;
  t->source.fresh_first = capacity > 0 ? test_between(r, 0, capacity - 1) : 0;
  t->source.fresh_capacity = capacity;
  t->source.end = rows;
}

/* Where a row lies: written out once more, not with quire_kv_source_row. */
static inline uint8_t *test_source_at(const struct test_source *t, int32_t piece, int32_t position) {
  const struct quire_kv_source *s = &t->source;
  int64_t bytes = t->part.piece[piece].row_bytes;
  if (position < s->prefix_end) {
    return (uint8_t *)t->pages[position / s->page_tokens] + t->part.piece[piece].offset +
           position % s->page_tokens * bytes;
  }
  return t->fresh[piece] + (s->fresh_first + position - s->prefix_end) % s->fresh_capacity * bytes;
}

static inline void test_source_free(struct test_source *t) {
  for (int32_t i = 0; i < t->page_count; i++) {
    free((void *)t->pages[i]);
  }
  for (int32_t piece = 0; piece < QUIRE_PART_PIECES_MAX; piece++) {
    free(t->fresh[piece]);
  }
}

/* --- top-k --- */

struct oracle_scored {
  float score;
  int32_t position;
};

/* Larger first, NaN counting as -inf, ties to the lower position. */
static inline int oracle_by_rank(const void *a, const void *b) {
  const struct oracle_scored *x = a;
  const struct oracle_scored *y = b;
  if (x->score != y->score) {
    return x->score > y->score ? -1 : 1;
  }
  return x->position - y->position;
}

static inline int oracle_by_position(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* The topk best of positions first .. first + n - 1 with these scores, rising, then -1; returns how many there are. */
static inline int32_t oracle_topk(const float *scores, int32_t n, int32_t first, int32_t topk, int32_t *want_out) {
  int32_t count = n < topk ? n : topk;
  struct oracle_scored *all = test_alloc((int64_t)n * (int64_t)sizeof *all);
  for (int32_t i = 0; i < n; i++) {
    all[i].position = first + i;
    all[i].score = scores[i] != scores[i] ? -quire_float_of(0x7f800000u) : scores[i];
  }
  qsort(all, (size_t)n, sizeof *all, oracle_by_rank);
  for (int32_t i = 0; i < topk; i++) {
    want_out[i] = i < count ? all[i].position : -1;
  }
  qsort(want_out, (size_t)count, sizeof *want_out, oracle_by_position);
  free(all);
  return count;
}

/* --- the world --- */

struct test_world {
  struct quire_team *team[TEST_THREADS_MAX];
  struct quire_stream *stream[TEST_THREADS_MAX]; /* with 1, 2, 3 threads */
  const struct quire_kernels *kernels[2];        /* those this machine can run */
  int kernel_count;
};

static inline void test_world_open(struct test_world *world) {
  world->kernel_count = 0;
  for (int i = 0; quire_kernels_at(i) != NULL; i++) {
    const char *why = NULL;
    assert_true(i < 2);
    if (quire_kernels_can(quire_kernels_at(i), &why)) {
      world->kernels[world->kernel_count++] = quire_kernels_at(i);
    } else {
      print_message("not tested: kernels %s: %s\n", quire_kernels_at(i)->name, why);
    }
  }
  assert_true(world->kernel_count > 0);
  for (int i = 0; i < TEST_THREADS_MAX; i++) {
    struct quire_error error;
    assert_int_equal(quire_team_create(quire_env_default(), i + 1, &world->team[i], &error), QUIRE_OK);
    assert_int_equal(
        quire_stream_create(quire_env_default(), QUIRE_STREAM_INLINE, world->team[i], 0, &world->stream[i], &error),
        QUIRE_OK);
  }
}

static inline void test_world_close(struct test_world *world) {
  for (int i = 0; i < TEST_THREADS_MAX; i++) {
    quire_stream_destroy(world->stream[i]);
    quire_team_destroy(world->team[i]);
  }
}

#endif
