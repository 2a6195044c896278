/* The indexer: scores and top-k against a flat oracle that scores everything and sorts; sources of all shapes, poison
 * wherever nothing may be read. */
#include "kernel_main.h"

#define ROWS_MAX 40
#define SOURCES_MAX 4

struct selection {
  struct quire_select op;
  struct test_source source[SOURCES_MAX];
  struct quire_kv_source sources[SOURCES_MAX];
  int32_t source_of[ROWS_MAX];
  int32_t limit[ROWS_MAX];
  float *q;
  float *w;
  int32_t *want; /* [m][topk] */
  int32_t want_count[ROWS_MAX];
  int32_t *indices;
  int32_t counts[ROWS_MAX];
};

enum flavour { PLAIN, TIES, PLATEAU, EQUAL, RISING, BROKEN, FLAVOURS };

/* A key by the flavour of its source. */
static void key_make(enum flavour flavour, int32_t position, float *key) {
  static float shared[4][128];
  test_fill(&rng, key, 128, 1.0f);
  if (flavour == TIES) { /* one of four keys */
    int which = test_between(&rng, 0, 3);
    if (position < 4) {
      memcpy(shared[position], key, sizeof shared[0]);
    }
    memcpy(key, shared[position < 4 ? position : which], sizeof shared[0]);
  } else if (flavour == EQUAL) {
    for (int i = 0; i < 128; i++) {
      key[i] = 0.5f;
    }
  } else if (flavour == PLATEAU) { /* mostly opposed to every query: dots below zero */
    for (int i = 0; i < 128; i++) {
      key[i] = test_between(&rng, 0, 9) == 0 ? key[i] : -1.0f;
    }
  } else if (flavour == RISING) { /* each better than the last: the worst case of a threshold */
    for (int i = 0; i < 128; i++) {
      key[i] = 0.01f * (float)(position + 1);
    }
  }
}

struct shape {
  enum quire_kv_format format;
  bool any_scale;
  enum flavour flavour;
  int32_t rows; /* of queries */
  int32_t sources;
  int32_t length; /* longest source */
  int32_t heads;
  int32_t topk;
  int32_t first;
  int32_t page_tokens;
};

static void source_fill(struct test_source *s, const struct shape *shape) {
  for (int32_t position = shape->first; position < s->source.end; position++) {
    float key[128];
    uint8_t codes[128];
    key_make(shape->flavour, position, key);
    if (shape->format == QUIRE_KV_F32) {
      if (shape->flavour == BROKEN && position % 7 == 0) {
        key[5] = quire_float_of(0x7fc00000u);
      }
      memcpy(test_source_at(s, 0, position), key, sizeof key);
      continue;
    }
    float scale = oracle_quantise(key, 128, shape->any_scale, codes);
    if (shape->flavour == BROKEN && position % 7 == 0) {
      scale = quire_float_of(0x7fc00000u);
    }
    memcpy(test_source_at(s, 0, position), codes, sizeof codes);
    memcpy(test_source_at(s, 1, position), &scale, sizeof scale);
  }
}

/* One position for one row; codes and scales are those of the row's heads. */
static float oracle_score(const struct selection *s, int64_t row, int32_t position, const uint8_t *codes,
                          const float *scales) {
  const struct quire_select *op = &s->op;
  const struct test_source *source = &s->source[s->source_of[row]];
  float k[128];
  float scale = 1.0f;
  float acc = 0.0f;
  if (op->format == QUIRE_KV_F32) {
    memcpy(k, test_source_at(source, 0, position), sizeof k);
  } else {
    memcpy(&scale, test_source_at(source, 1, position), sizeof scale);
    for (int i = 0; i < 128; i++) {
      k[i] = quire_e4m3_widen(test_source_at(source, 0, position)[i]);
    }
  }
  for (int64_t h = 0; h < op->heads; h++) {
    const float *q = op->q + (row * op->heads + h) * 128;
    const uint8_t *c = codes + h * 128;
    float w = op->w[row * op->heads + h];
    float a = 0.0f;
    if (op->format == QUIRE_KV_F32) {
      for (int i = 0; i < 128; i++) {
        a = __builtin_fmaf(q[i], k[i], a);
      }
    } else {
      w = w * scales[h];
      for (int i = 0; i < 64; i++) {
        a = __builtin_fmaf(quire_e4m3_widen(c[2 * i + 1]), k[2 * i + 1], a);
        a = __builtin_fmaf(quire_e4m3_widen(c[2 * i]), k[2 * i], a);
      }
    }
    acc = __builtin_fmaf(w, 0.0f > a ? 0.0f : a, acc);
  }
  return scale * acc;
}

static void oracle_select(struct selection *s, int64_t row) {
  const struct quire_select *op = &s->op;
  int32_t visible = s->limit[row] - op->rows.first;
  int32_t n = visible > 0 ? visible : 0;
  float *scores = test_alloc((int64_t)n * 4);
  uint8_t *codes = test_alloc(op->heads * 128);
  float *scales = test_alloc(op->heads * 4);
  for (int64_t h = 0; h < op->heads; h++) {
    scales[h] = oracle_quantise(op->q + (row * op->heads + h) * 128, 128, op->any_scale, codes + h * 128);
  }
  for (int32_t i = 0; i < n; i++) {
    scores[i] = n > op->topk ? oracle_score(s, row, op->rows.first + i, codes, scales) : 0.0f;
  }
  s->want_count[row] = oracle_topk(scores, n, op->rows.first, op->topk, s->want + row * op->topk);
  free(scores);
  free(codes);
  free(scales);
}

static void selection_make(struct selection *s, struct shape shape) {
  memset(s, 0, sizeof *s);
  struct quire_part part = test_part(QUIRE_PART_INDEX_KEY, shape.format, shape.page_tokens);
  for (int32_t i = 0; i < shape.sources; i++) {
    int32_t length = i == 0 ? shape.length : test_between(&rng, 1, shape.length);
    test_source_make(&rng, &s->source[i], part, shape.page_tokens, length, test_between(&rng, 0, length));
    source_fill(&s->source[i], &shape);
    s->sources[i] = s->source[i].source;
  }
  int32_t longest = 0;
  for (int32_t r = 0; r < shape.rows; r++) {
    s->source_of[r] = shape.sources * r / shape.rows;
    s->limit[r] = test_between(&rng, 0, s->sources[s->source_of[r]].end);
    if (r % 3 == 0) {
      s->limit[r] = s->sources[s->source_of[r]].end;
    }
    longest = s->limit[r] > longest ? s->limit[r] : longest;
  }
  int64_t values = (int64_t)shape.rows * shape.heads;
  s->q = test_alloc(values * 128 * 4);
  s->w = test_alloc(values * 4);
  s->want = test_alloc((int64_t)shape.rows * shape.topk * 4);
  s->indices = test_poisoned((int64_t)shape.rows * shape.topk * 4);
  test_fill(&rng, s->q, values * 128, 1.0f);
  test_fill(&rng, s->w, values, 0.1f);
  for (int64_t i = 0; i < values * 128 && (shape.flavour == PLATEAU || shape.flavour == RISING); i++) {
    s->q[i] = s->q[i] < 0 ? -s->q[i] : s->q[i];
  }
  for (int64_t i = 0; i < values && shape.flavour == RISING; i++) {
    s->w[i] = s->w[i] < 0 ? -s->w[i] : s->w[i];
  }
  s->op = (struct quire_select){
      .rows =
          {.sources = s->sources, .source_of = s->source_of, .limit = s->limit, .m = shape.rows, .first = shape.first},
      .part = part,
      .q = s->q,
      .w = s->w,
      .indices_out = s->indices,
      .counts_out = s->counts,
      .format = shape.format,
      .any_scale = shape.any_scale,
      .heads = shape.heads,
      .topk = shape.topk,
      .limit_max = longest,
  };
  for (int32_t r = 0; r < shape.rows; r++) {
    oracle_select(s, r);
  }
}

static void selection_free(struct selection *s, int32_t sources) {
  for (int32_t i = 0; i < sources; i++) {
    test_source_free(&s->source[i]);
  }
  free(s->q);
  free(s->w);
  free(s->want);
  free(s->indices);
}

static void selection_run(struct selection *s, const struct quire_kernels *kernels, int threads) {
  int64_t bytes = quire_select_scratch_bytes(s->op.heads, s->op.topk, s->op.limit_max, threads);
  s->op.scratch = test_poisoned(bytes);
  memset(s->counts, 0xff, sizeof s->counts);
  memset(s->indices, 0xff, (size_t)((int64_t)s->op.rows.m * s->op.topk * 4));
  for (int64_t i = 0; i < (int64_t)s->op.rows.m * s->op.topk; i++) {
    s->indices[i] = 12345678;
  }
  kernels->select(world.stream[threads - 1], s->op);
  free(s->op.scratch);
}

static void selection_check(struct selection *s, const char *name) {
  for (int64_t r = 0; r < s->op.rows.m; r++) {
    if (s->counts[r] != s->want_count[r]) {
      fail_msg("%s: row %d has %d rows, the oracle %d", name, (int)r, s->counts[r], s->want_count[r]);
    }
    for (int32_t i = 0; i < s->op.topk; i++) {
      if (s->indices[r * s->op.topk + i] != s->want[r * s->op.topk + i]) {
        fail_msg("%s: row %d, entry %d is %d, the oracle says %d", name, (int)r, i, s->indices[r * s->op.topk + i],
                 s->want[r * s->op.topk + i]);
      }
    }
  }
}

static void check_shape(struct shape shape) {
  struct selection s;
  selection_make(&s, shape);
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    for (int threads = 1; threads <= TEST_THREADS_MAX; threads++) {
      selection_run(&s, world.kernels[kernels], threads);
      selection_check(&s, world.kernels[kernels]->name);
    }
  }
  selection_free(&s, shape.sources);
}

/* Formats, and bf16 and fp8 with any scale. */
static void test_flavours(void **state) {
  (void)state;
  for (int format = 0; format < 5; format++) {
    for (int flavour = 0; flavour < FLAVOURS; flavour++) {
      check_shape((struct shape){.format = (enum quire_kv_format)(format < 3 ? format : format - 2),
                                 .any_scale = format >= 3,
                                 .flavour = (enum flavour)flavour,
                                 .rows = 5,
                                 .sources = 2,
                                 .length = 700,
                                 .heads = 8,
                                 .topk = 64,
                                 .page_tokens = 64});
    }
  }
}

static void test_random_shapes(void **state) {
  (void)state;
  static const int32_t heads[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 31, 33}, page_tokens[] = {1, 3, 16, 48, 64, 64, 100};
  for (int i = 0; i < 60; i++) {
    int32_t rows = test_between(&rng, 1, i % 4 == 0 ? ROWS_MAX : 10);
    check_shape((struct shape){
        .format = (enum quire_kv_format)test_between(&rng, 0, 2),
        .any_scale = test_between(&rng, 0, 2) == 0,
        .flavour = (enum flavour)test_between(&rng, 0, FLAVOURS - 1),
        .rows = rows,
        .sources = test_between(&rng, 1, rows < SOURCES_MAX ? rows : SOURCES_MAX),
        .length = test_between(&rng, 2, i % 2 == 0 ? 130 : 400),
        .heads = heads[test_between(&rng, 0, (int32_t)(sizeof heads / sizeof heads[0]) - 1)],
        .topk = test_between(&rng, 1, 130),
        .first = test_between(&rng, 0, 1),
        .page_tokens = page_tokens[test_between(&rng, 0, (int32_t)(sizeof page_tokens / sizeof page_tokens[0]) - 1)],
    });
  }
}

/* Enough positions to cut the list of candidates many times, with the most newcomers there can be. */
static void test_long(void **state) {
  (void)state;
  check_shape((struct shape){.format = QUIRE_KV_FP8,
                             .flavour = RISING,
                             .rows = 2,
                             .sources = 1,
                             .length = 6000,
                             .heads = 1,
                             .topk = 100,
                             .page_tokens = 64});
  check_shape((struct shape){.format = QUIRE_KV_F32,
                             .flavour = RISING,
                             .rows = 1,
                             .sources = 1,
                             .length = 5000,
                             .heads = 1,
                             .topk = 7,
                             .page_tokens = 64});
  check_shape((struct shape){.format = QUIRE_KV_BF16,
                             .flavour = PLAIN,
                             .rows = 9,
                             .sources = 1,
                             .length = 5000,
                             .heads = 2,
                             .topk = 2048,
                             .page_tokens = 64});
  check_shape((struct shape){.format = QUIRE_KV_BF16,
                             .flavour = EQUAL,
                             .rows = 1,
                             .sources = 1,
                             .length = 4000,
                             .heads = 3,
                             .topk = 2048,
                             .first = 1,
                             .page_tokens = 64});
}

/* Enough work for a team: rows dealt, then keys split. */
static void test_team(void **state) {
  (void)state;
  check_shape((struct shape){.format = QUIRE_KV_FP8,
                             .flavour = PLAIN,
                             .rows = 20,
                             .sources = 2,
                             .length = 700,
                             .heads = 16,
                             .topk = 50,
                             .page_tokens = 64});
  check_shape((struct shape){.format = QUIRE_KV_FP8,
                             .flavour = TIES,
                             .rows = 3,
                             .sources = 2,
                             .length = 3000,
                             .heads = 16,
                             .topk = 300,
                             .page_tokens = 64});
  check_shape((struct shape){.format = QUIRE_KV_F32,
                             .flavour = PLATEAU,
                             .rows = 2,
                             .sources = 1,
                             .length = 2500,
                             .heads = 32,
                             .topk = 128,
                             .first = 1,
                             .page_tokens = 64});
}

/* Nothing to do, and rows that see nothing. */
static void test_empty(void **state) {
  (void)state;
  struct selection s;
  struct shape shape = {.format = QUIRE_KV_FP8,
                        .flavour = PLAIN,
                        .rows = 4,
                        .sources = 1,
                        .length = 200,
                        .heads = 4,
                        .topk = 16,
                        .first = 1,
                        .page_tokens = 64};
  selection_make(&s, shape);
  s.limit[0] = 0;
  s.limit[1] = 1;
  s.limit[2] = 17;
  for (int r = 0; r < 4; r++) {
    oracle_select(&s, r);
  }
  assert_int_equal(s.want_count[0], 0);
  assert_int_equal(s.want_count[1], 0);
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    selection_run(&s, world.kernels[kernels], 2);
    selection_check(&s, world.kernels[kernels]->name);
    struct quire_select none = s.op;
    none.rows.m = 0;
    world.kernels[kernels]->select(world.stream[0], none);
  }
  selection_free(&s, 1);
}

/* Pages behind the last limit are not looked at: there are none. */
static void test_absent(void **state) {
  (void)state;
  struct selection s;
  struct shape shape = {.format = QUIRE_KV_BF16,
                        .flavour = PLAIN,
                        .rows = 6,
                        .sources = 1,
                        .length = 640,
                        .heads = 4,
                        .topk = 20,
                        .page_tokens = 64};
  selection_make(&s, shape);
  for (int r = 0; r < 6; r++) {
    s.limit[r] = test_between(&rng, 0, 128);
    oracle_select(&s, r);
  }
  const uint8_t *pages[10];
  for (int i = 0; i < 10; i++) {
    pages[i] = i < 2 ? s.source[0].pages[i] : NULL;
  }
  if (s.sources[0].prefix_end >= 128) { /* else the fresh rows begin within the limit */
    s.sources[0].pages = pages;
  }
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    for (int threads = 1; threads <= TEST_THREADS_MAX; threads++) {
      selection_run(&s, world.kernels[kernels], threads);
      selection_check(&s, world.kernels[kernels]->name);
    }
  }
  selection_free(&s, 1);
}

/* A row alone selects what it selects in a batch. */
static void test_batch(void **state) {
  (void)state;
  struct selection s;
  struct shape shape = {.format = QUIRE_KV_FP8,
                        .flavour = PLAIN,
                        .rows = 30,
                        .sources = 3,
                        .length = 300,
                        .heads = 5,
                        .topk = 33,
                        .page_tokens = 64};
  selection_make(&s, shape);
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    uint8_t *scratch = test_poisoned(quire_select_scratch_bytes(5, 33, 300, 2));
    for (int64_t r = 0; r < 30; r++) {
      int32_t indices[33];
      int32_t count;
      struct quire_select one = s.op;
      one.rows.source_of += r;
      one.rows.limit += r;
      one.rows.m = 1;
      one.q += r * 5 * 128;
      one.w += r * 5;
      one.indices_out = indices;
      one.counts_out = &count;
      one.scratch = scratch;
      world.kernels[kernels]->select(world.stream[1], one);
      assert_int_equal(count, s.want_count[r]);
      assert_memory_equal(indices, s.want + r * 33, sizeof indices);
    }
    free(scratch);
  }
  selection_free(&s, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flavours), cmocka_unit_test(test_team),  cmocka_unit_test(test_random_shapes),
      cmocka_unit_test(test_long),     cmocka_unit_test(test_empty), cmocka_unit_test(test_absent),
      cmocka_unit_test(test_batch),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
