/* Sparse attention against a flat oracle, every format and type; poison in every row that is not selected; and against
 * f64 for sense. */
#include <math.h>

#include "kernel_main.h"

#define ROWS_MAX 24
#define SOURCES_MAX 3

struct attention {
  struct quire_attend op;
  struct test_source source[SOURCES_MAX];
  struct quire_kv_source sources[SOURCES_MAX];
  int32_t source_of[ROWS_MAX];
  int32_t limit[ROWS_MAX];
  int32_t counts[ROWS_MAX];
  int32_t *indices;
  void *q_latent;
  void *q_rope;
  float *want; /* [m][heads][512] */
  float *want_lse;
  void *out;
  float *lse;
};

struct shape {
  enum quire_kv_format format;
  enum quire_dtype q_dtype;
  int32_t rows;
  int32_t sources;
  int32_t length;
  int32_t heads;
  int32_t topk;
  int32_t first;
  bool whole; /* lists are all that a row sees */
  bool any_scale;
  float scale; /* of the softmax; 0: a model's */
};

static bool is_bf16(const struct quire_attend *op) {
  return op->q_dtype == QUIRE_DTYPE_BF16 && op->format != QUIRE_KV_F32;
}

/* Random latent and rope of one position through the quantiser. */
static void row_fill(struct test_source *s, const struct shape *shape, int32_t position) {
  float latent[512];
  float rope[64];
  test_fill(&rng, latent, 512, 1.0f);
  test_fill(&rng, rope, 64, 1.0f);
  uint8_t *out = test_source_at(s, 0, position);
  uint8_t row[2304];
  world.kernels[0]->quantise_latent(world.stream[0], (struct quire_quantise_latent){.latent = latent,
                                                                                    .rope = rope,
                                                                                    .out = row,
                                                                                    .format = shape->format,
                                                                                    .any_scale = shape->any_scale,
                                                                                    .m = 1,
                                                                                    .latent_ld = 512,
                                                                                    .rope_ld = 64});
  memcpy(out, row, (size_t)s->part.row_bytes);
}

/* A stored row as f32, as a bf16 or f32 dot reads it. */
static void row_read(const struct test_source *s, enum quire_kv_format format, bool bf16, int32_t position,
                     float *row) {
  const uint8_t *stored = test_source_at(s, 0, position);
  for (int d = 0; d < 576; d++) {
    if (format == QUIRE_KV_F32) {
      memcpy(&row[d], stored + d * 4, 4);
    } else if (format == QUIRE_KV_BF16 || d >= 512) {
      uint16_t half;
      memcpy(&half, stored + (format == QUIRE_KV_BF16 ? d * 2 : 528 + (d - 512) * 2), 2);
      row[d] = quire_bf16_widen(half);
    } else {
      float s_block;
      memcpy(&s_block, stored + 512 + d / 128 * 4, 4);
      row[d] = quire_e4m3_widen(stored[d]) * s_block;
      float rounded = quire_bf16_widen(quire_bf16_round(row[d]));
      bool exact = (quire_bits_of(s_block) & 0x7fffff) == 0 && s_block >= 0x1p-22f; /* powers of two */
      assert_true(rounded == row[d] || !exact);
      row[d] = bf16 ? rounded : row[d];
    }
  }
}

/* One head of one row, steps 1 to 5. */
static void oracle_head(struct attention *a, int64_t row, int64_t head) {
  const struct quire_attend *op = &a->op;
  int64_t n = a->counts[row];
  int64_t index = row * op->heads + head;
  float *out = a->want + index * 512;
  float q[576];
  float max = -INFINITY;
  memset(out, 0, 512 * 4);
  a->want_lse[index] = -INFINITY;
  if (n == 0) {
    return;
  }
  float *rows = test_alloc((n + 1) * 576 * 4);
  float *e = test_alloc((n + 1) * 4);
  for (int d = 0; d < 576; d++) {
    q[d] = d < 512 ? oracle_element(op->q_latent, op->q_dtype, index * 512 + d)
                   : oracle_element(op->q_rope, op->q_dtype, index * 64 + d - 512);
  }
  for (int64_t j = 0; j < n; j++) {
    row_read(&a->source[a->source_of[row]], op->format, is_bf16(op), a->indices[row * op->topk + j], rows + j * 576);
    e[j] = op->scale * oracle_dot(q, rows + j * 576, 576, is_bf16(op));
    max = e[j] > max ? e[j] : max;
  }
  for (int64_t j = 0; j < n; j++) {
    e[j] = quire_exp(e[j] - max);
  }
  float sum = oracle_sum(e, n);
  for (int64_t j = 0; j < n && is_bf16(op); j++) {
    e[j] = quire_bf16_widen(quire_bf16_round(e[j]));
  }
  for (int d = 0; d < 512; d++) {
    float o = 0.0f;
    for (int64_t j = 0; j < n; j += is_bf16(op) ? 2 : 1) {
      if (is_bf16(op)) {
        o = __builtin_fmaf(e[j + 1], rows[(j + 1) * 576 + d], o); /* zeros behind the last */
      }
      o = __builtin_fmaf(e[j], rows[j * 576 + d], o);
    }
    out[d] = o / sum;
  }
  a->want_lse[index] = (float)((double)max + quire_log((double)sum));
  free(rows);
  free(e);
}

static void list_make(struct attention *a, struct shape shape, int32_t row) {
  int32_t visible = a->limit[row] - shape.first;
  int32_t count = visible < shape.topk ? visible : shape.topk;
  int32_t *list = a->indices + (int64_t)row * shape.topk;
  count = count < 0 ? 0 : count;
  if (!shape.whole && count > 0) {
    count = test_between(&rng, 0, count);
  }
  int32_t position = shape.first;
  for (int32_t i = 0; i < shape.topk; i++) {
    list[i] = -1;
    if (i < count) {
      int32_t slack = visible - (position - shape.first) - (count - i);
      position += shape.whole ? 0 : test_between(&rng, 0, slack < 3 ? slack : 3);
      list[i] = position++;
    }
  }
  a->counts[row] = count;
}

static void attention_make(struct attention *a, struct shape shape) {
  memset(a, 0, sizeof *a);
  struct quire_part part = test_part(QUIRE_PART_LATENT, shape.format, 64);
  int64_t values = (int64_t)shape.rows * shape.heads;
  a->indices = test_alloc((int64_t)shape.rows * shape.topk * 4);
  for (int32_t i = 0; i < shape.sources; i++) {
    test_source_make(&rng, &a->source[i], part, 64, shape.length, test_between(&rng, 0, shape.length));
    a->sources[i] = a->source[i].source;
  }
  for (int32_t r = 0; r < shape.rows; r++) {
    a->source_of[r] = shape.sources * r / shape.rows;
    a->limit[r] =
        shape.whole && r % 3 != 2 ? (shape.length * (r + 1) / shape.rows) : test_between(&rng, 0, shape.length);
    list_make(a, shape, r);
    for (int32_t i = 0; i < a->counts[r]; i++) { /* only what is selected is not poison */
      row_fill(&a->source[a->source_of[r]], &shape, a->indices[(int64_t)r * shape.topk + i]);
    }
  }
  int64_t bytes = oracle_bytes(shape.q_dtype);
  a->q_latent = test_alloc(values * 512 * bytes);
  a->q_rope = test_alloc(values * 64 * bytes);
  for (int64_t i = 0; i < values * 576; i++) {
    float x = test_normal(&rng) * 0.5f;
    void *to = i < values * 512 ? a->q_latent : a->q_rope;
    int64_t at = i < values * 512 ? i : i - values * 512;
    if (shape.q_dtype == QUIRE_DTYPE_BF16) {
      ((uint16_t *)to)[at] = quire_bf16_round(x);
    } else {
      ((float *)to)[at] = x;
    }
  }
  a->want = test_alloc(values * 512 * 4);
  a->want_lse = test_alloc(values * 4);
  a->out = test_alloc(values * 512 * 4);
  a->lse = test_alloc(values * 4);
  a->op = (struct quire_attend){
      .rows =
          {.sources = a->sources, .source_of = a->source_of, .limit = a->limit, .m = shape.rows, .first = shape.first},
      .part = part,
      .q_latent = a->q_latent,
      .q_rope = a->q_rope,
      .indices = a->indices,
      .counts = a->counts,
      .out = a->out,
      .lse = a->lse,
      .format = shape.format,
      .q_dtype = shape.q_dtype,
      .heads = shape.heads,
      .topk = shape.topk,
      .scale = shape.scale > 0.0f ? shape.scale : 0.1352337789f,
  };
  for (int64_t r = 0; r < shape.rows; r++) {
    for (int64_t h = 0; h < shape.heads; h++) {
      oracle_head(a, r, h);
    }
  }
}

static void attention_free(struct attention *a, int32_t sources) {
  for (int32_t i = 0; i < sources; i++) {
    test_source_free(&a->source[i]);
  }
  free(a->indices);
  free(a->q_latent);
  free(a->q_rope);
  free(a->want);
  free(a->want_lse);
  free(a->out);
  free(a->lse);
}

static void attention_check(struct attention *a, const struct quire_kernels *kernels, int threads) {
  struct quire_attend op = a->op;
  int64_t values = (int64_t)op.rows.m * op.heads;
  op.scratch = test_poisoned(quire_attend_scratch_bytes(op.heads, op.topk, threads));
  for (int out = 0; out < 2; out++) {
    op.out_dtype = out == 0 ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16;
    memset(a->out, 0xff, (size_t)(values * 512 * 4));
    memset(a->lse, 0xff, (size_t)(values * 4));
    kernels->attend(world.stream[threads - 1], op);
    test_check_rows("lse", a->lse, a->want_lse, values);
    if (out == 0) {
      test_check_rows(kernels->name, a->out, a->want, values * 512);
    } else {
      test_check_bf16(kernels->name, a->out, a->want, values * 512);
    }
  }
  free(op.scratch);
}

static void check_shape(struct shape shape) {
  struct attention a;
  attention_make(&a, shape);
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    for (int threads = 1; threads <= TEST_THREADS_MAX; threads++) {
      attention_check(&a, world.kernels[kernels], threads);
    }
  }
  attention_free(&a, shape.sources);
}

/* Formats, and fp8 with any scale. */
static void test_types(void **state) {
  (void)state;
  for (int format = 0; format < 4; format++) {
    for (int q = 0; q < 2; q++) {
      for (int whole = 0; whole < 2; whole++) {
        check_shape((struct shape){.format = (enum quire_kv_format)(format < 3 ? format : QUIRE_KV_FP8),
                                   .any_scale = format == 3,
                                   .q_dtype = q == 0 ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16,
                                   .rows = 7,
                                   .sources = 2,
                                   .length = 150,
                                   .heads = 9,
                                   .topk = 128,
                                   .whole = whole == 1});
      }
    }
  }
}

static void test_random_shapes(void **state) {
  (void)state;
  for (int i = 0; i < 30; i++) {
    int32_t rows = test_between(&rng, 1, i % 5 == 0 ? ROWS_MAX : 6);
    check_shape((struct shape){
        .format = (enum quire_kv_format)test_between(&rng, 0, 2),
        .q_dtype = test_between(&rng, 0, 1) ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16,
        .rows = rows,
        .sources = test_between(&rng, 1, rows < SOURCES_MAX ? rows : SOURCES_MAX),
        .length = test_between(&rng, 1, 100),
        .heads = test_between(&rng, 1, 20),
        .topk = test_between(&rng, 1, 80),
        .first = test_between(&rng, 0, 1),
        .whole = test_between(&rng, 0, 1) == 1,
        .any_scale = test_between(&rng, 0, 2) == 0,
    });
  }
}

/* Exponentials from 0 to 1, most of them below the smallest that is not zero; lists that end within a block of rows and
 * within a pair. */
static void test_steep(void **state) {
  (void)state;
  const float scales[] = {0.5f, 1.5f, 40.0f};
  for (int i = 0; i < 6; i++) {
    check_shape((struct shape){.format = (enum quire_kv_format)test_between(&rng, 0, 2),
                               .q_dtype = i % 2 == 0 ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16,
                               .rows = 3,
                               .sources = 1,
                               .length = 560,
                               .heads = 9,
                               .topk = test_between(&rng, 257, 530),
                               .whole = i >= 3,
                               .scale = scales[i % 3]});
  }
}

/* Enough work for a team: heads split, then rows dealt. */
static void test_team(void **state) {
  (void)state;
  check_shape((struct shape){.format = QUIRE_KV_FP8,
                             .q_dtype = QUIRE_DTYPE_BF16,
                             .rows = 2,
                             .sources = 1,
                             .length = 1300,
                             .heads = 33,
                             .topk = 1200,
                             .whole = true});
  check_shape((struct shape){.format = QUIRE_KV_BF16,
                             .q_dtype = QUIRE_DTYPE_BF16,
                             .rows = 14,
                             .sources = 2,
                             .length = 170,
                             .heads = 16,
                             .topk = 160,
                             .whole = true});
}

/* Nothing selected: zeros and -inf; no rows: nothing at all. */
static void test_empty(void **state) {
  (void)state;
  struct attention a;
  struct shape shape = {.format = QUIRE_KV_BF16,
                        .q_dtype = QUIRE_DTYPE_BF16,
                        .rows = 3,
                        .sources = 1,
                        .length = 10,
                        .heads = 2,
                        .topk = 8,
                        .first = 1,
                        .whole = true};
  attention_make(&a, shape);
  a.counts[1] = 0;
  for (int h = 0; h < 2; h++) {
    oracle_head(&a, 1, h);
    assert_true(a.want_lse[2 + h] == -INFINITY);
  }
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    struct quire_attend none = a.op;
    attention_check(&a, world.kernels[kernels], 3);
    none.rows.m = 0;
    world.kernels[kernels]->attend(world.stream[2], none);
  }
  attention_free(&a, 1);
}

/* Every code under scales that are powers of two, at both ends of the rule's and beyond, and under one that is not,
 * each the only row of a list: its decoded values come out as they are. */
static void test_codes(void **state) {
  (void)state;
  const float scales[] = {0x1p-22f, 0x1p119f, 1.0f, 0x1p-21f, 0x1p7f, 0x1p-23f, 0x1p-40f, 0x1.8p3f};
  enum { COUNT = sizeof scales / sizeof scales[0] };
  struct attention a;
  struct shape shape = {.format = QUIRE_KV_FP8,
                        .q_dtype = QUIRE_DTYPE_BF16,
                        .rows = COUNT,
                        .sources = 1,
                        .length = COUNT,
                        .heads = 1,
                        .topk = 1};
  attention_make(&a, shape);
  memset(a.q_latent, 0, COUNT * 512 * 2);
  memset(a.q_rope, 0, COUNT * 64 * 2);
  for (int32_t r = 0; r < COUNT; r++) {
    row_fill(&a.source[0], &shape, r);
    uint8_t *stored = test_source_at(&a.source[0], 0, r);
    for (int i = 0; i < 512; i++) { /* each block another half of the codes; no NaN */
      int code = (i + r) & 0xff;
      stored[i] = (uint8_t)((code & 0x7f) == 0x7f ? code - 1 : code);
    }
    for (int block = 0; block < 4; block++) {
      memcpy(stored + 512 + block * 4, &scales[(r + block) % COUNT], 4);
    }
    a.limit[r] = COUNT;
    a.counts[r] = 1;
    a.indices[r] = r;
    oracle_head(&a, r, 0);
  }
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    attention_check(&a, world.kernels[kernels], 1);
  }
  uint8_t *nan = test_source_at(&a.source[0], 0, 1); /* all of its scales are of the rule */
  nan[77] = 0xff;
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    a.op.scratch = test_poisoned(quire_attend_scratch_bytes(1, 1, 1));
    a.op.out_dtype = QUIRE_DTYPE_F32;
    world.kernels[kernels]->attend(world.stream[0], a.op);
    assert_true(isnan(((float *)a.out)[512 + 77]));
    free(a.op.scratch);
  }
  attention_free(&a, 1);
}

/* The plain softmax in f64, near. */
static void test_accuracy(void **state) {
  (void)state;
  struct attention a;
  struct shape shape = {.format = QUIRE_KV_F32,
                        .q_dtype = QUIRE_DTYPE_F32,
                        .rows = 2,
                        .sources = 1,
                        .length = 200,
                        .heads = 3,
                        .topk = 200,
                        .whole = true};
  attention_make(&a, shape);
  for (int64_t i = 0; i < 6; i++) {
    int64_t row = i / 3;
    double *out = test_alloc(512 * 8);
    double sum = 0;
    float kv[576];
    for (int32_t j = 0; j < a.counts[row]; j++) {
      double dot = 0;
      row_read(&a.source[0], QUIRE_KV_F32, false, a.indices[row * 200 + j], kv);
      for (int d = 0; d < 576; d++) {
        dot += (double)kv[d] * (d < 512 ? ((float *)a.q_latent)[i * 512 + d] : ((float *)a.q_rope)[i * 64 + d - 512]);
      }
      double p = exp(dot * (double)a.op.scale);
      sum += p;
      for (int d = 0; d < 512; d++) {
        out[d] += p * (double)kv[d];
      }
    }
    for (int d = 0; d < 512 && sum > 0; d++) {
      assert_true(fabs(out[d] / sum - (double)a.want[i * 512 + d]) < 1e-5);
    }
    assert_true(sum == 0 || fabs(log(sum) - (double)a.want_lse[i]) < 1e-5);
    free(out);
  }
  attention_free(&a, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_types), cmocka_unit_test(test_random_shapes), cmocka_unit_test(test_team),
      cmocka_unit_test(test_steep), cmocka_unit_test(test_empty),         cmocka_unit_test(test_accuracy),
      cmocka_unit_test(test_codes),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
