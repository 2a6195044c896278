/* Router and experts against flat oracles: a token at a time, an expert at a time. */
#include <math.h>

#include "kernel_main.h"

/* --- router --- */

/* The best unmarked entry, ties to the lower index. */
static int best_of(const float *c, const int *taken, int n) {
  int best = -1;
  for (int i = 0; i < n; i++) {
    if (!taken[i] && (best < 0 || c[i] > c[best])) {
      best = i;
    }
  }
  return best;
}

static void oracle_route(const struct quire_route *op, int64_t row, int32_t *ids, float *weights) {
  float g[64];
  float c[64];
  int taken[64] = {0};
  int width = op->experts / op->groups;
  for (int i = 0; i < op->experts; i++) {
    g[i] = 1.0f / (1.0f + quire_exp(-op->logits[row * op->experts + i]));
    c[i] = g[i] + op->bias[i];
    c[i] = c[i] != c[i] ? -INFINITY : c[i];
  }
  if (op->groups > 1) {
    float score[64];
    int kept[64] = {0};
    for (int group = 0; group < op->groups; group++) {
      int out[64] = {0};
      int first = best_of(c + group * width, out, width);
      out[first] = 1;
      int second = best_of(c + group * width, out, width);
      score[group] = second < 0 ? c[group * width + first] : c[group * width + first] + c[group * width + second];
    }
    for (int i = 0; i < op->groups_kept; i++) {
      kept[best_of(score, kept, op->groups)] = 1;
    }
    for (int i = 0; i < op->experts; i++) {
      c[i] = kept[i / width] ? c[i] : -INFINITY;
    }
  }
  for (int i = 0; i < op->k; i++) {
    taken[best_of(c, taken, op->experts)] = 1;
  }
  int count = 0;
  float total = 0.0f;
  for (int i = 0; i < op->experts; i++) {
    if (taken[i]) {
      ids[count++] = i;
      total = total + g[i];
    }
  }
  for (int i = 0; i < op->k; i++) {
    weights[i] = (op->normalise ? g[ids[i]] / (total + 1e-20f) : g[ids[i]]) * op->scaling;
  }
}

static void test_route(void **state) {
  static const int32_t shapes[][4] = {{16, 4, 2, 4}, {16, 1, 1, 4}, {64, 8, 4, 8}, {8, 8, 3, 2}, {5, 1, 1, 5}};
  (void)state;
  for (int i = 0; i < 100; i++) {
    const int32_t *shape = shapes[i % 5];
    int32_t m = test_between(&rng, 0, 40);
    float *logits = test_alloc((int64_t)m * shape[0] * 4);
    float bias[64];
    int32_t *ids = test_alloc((int64_t)m * shape[3] * 4);
    float *weights = test_alloc((int64_t)m * shape[3] * 4);
    test_fill(&rng, logits, (int64_t)m * shape[0], 2.0f);
    test_fill(&rng, bias, shape[0], 0.1f);
    for (int64_t j = 0; j < (int64_t)m * shape[0] && i % 4 == 0; j++) {
      logits[j] = (float)test_between(&rng, -1, 1); /* ties */
      bias[j % shape[0]] = 0.0f;
    }
    if (m > 3 && i % 7 == 0) {
      logits[shape[0] + 1] = NAN;
    }
    struct quire_route op = {.logits = logits,
                             .bias = bias,
                             .ids_out = ids,
                             .weights_out = weights,
                             .m = m,
                             .experts = shape[0],
                             .groups = shape[1],
                             .groups_kept = shape[2],
                             .k = shape[3],
                             .normalise = i % 3 != 0,
                             .scaling = 2.5f};
    world.kernels[i % world.kernel_count]->route(world.stream[i % 3], op);
    for (int64_t r = 0; r < m; r++) {
      int32_t want_ids[16];
      float want[16];
      oracle_route(&op, r, want_ids, want);
      assert_memory_equal(ids + r * op.k, want_ids, (size_t)op.k * 4);
      test_check_rows("route", weights + r * op.k, want, op.k);
    }
    free(logits);
    free(ids);
    free(weights);
  }
}

/* --- experts --- */

struct expert {
  struct test_weight gate, up, down;
};

struct mixture {
  struct quire_moe op;
  struct expert experts[9]; /* the last is shared */
  struct quire_expert list[8];
  void *x;
  float *x_wide;
  int32_t *ids;
  float *weights;
  float *former; /* residual before */
  float *want;
  float *residual;
};

static void expert_make(struct expert *e, enum quire_dtype dtype, int32_t hidden, int32_t width) {
  e->gate = test_weight_make(&rng, dtype, width, hidden, 0.2f);
  e->up = test_weight_make(&rng, dtype, width, hidden, 0.2f);
  e->down = test_weight_make(&rng, dtype, hidden, width, 0.2f);
}

static struct quire_expert expert_of(const struct expert *e) {
  return (struct quire_expert){.gate = e->gate.w, .up = e->up.w, .down = e->down.w};
}

static void oracle_expert(const struct mixture *p, const struct expert *e, const float *x, float *y) {
  int32_t width = e->gate.w.n;
  int bf16 = p->op.x_dtype == QUIRE_DTYPE_BF16;
  float *h = test_alloc((int64_t)width * 4);
  for (int32_t i = 0; i < width; i++) {
    float g = oracle_product(x, bf16, &e->gate.w, i);
    h[i] = g / (1.0f + quire_exp(-g)) * oracle_product(x, bf16, &e->up.w, i);
    h[i] = bf16 ? quire_bf16_widen(quire_bf16_round(h[i])) : h[i];
  }
  for (int32_t i = 0; i < p->op.hidden; i++) {
    y[i] = oracle_product(h, bf16, &e->down.w, i);
  }
  free(h);
}

static void oracle_moe(struct mixture *p, int64_t token) {
  const struct quire_moe *op = &p->op;
  float *y = test_alloc((int64_t)op->hidden * 4);
  float *t = test_alloc((int64_t)op->hidden * 4);
  const float *x = p->x_wide + token * op->hidden;
  for (int32_t j = 0; j < op->k; j++) {
    oracle_expert(p, &p->experts[p->ids[token * op->k + j]], x, y);
    for (int32_t i = 0; i < op->hidden; i++) {
      float weighted = p->weights[token * op->k + j] * y[i];
      t[i] = j == 0 ? weighted : t[i] + weighted;
    }
  }
  if (op->shared_width > 0) {
    oracle_expert(p, &p->experts[8], x, y);
    for (int32_t i = 0; i < op->hidden; i++) {
      t[i] = op->k > 0 ? t[i] + y[i] : y[i];
    }
  }
  for (int32_t i = 0; i < op->hidden; i++) {
    int64_t at = token * op->residual_ld + i;
    p->want[at] = p->former[at] + t[i];
  }
  free(y);
  free(t);
}

/* 0: random */
static struct { int32_t hidden, width; } sizes;

static void mixture_make(struct mixture *p, enum quire_dtype x_dtype, enum quire_dtype w_dtype, int32_t m, int32_t k,
                         int32_t shared_width) {
  int32_t hidden = 16 * test_between(&rng, 2, 12);
  int32_t width = test_between(&rng, 1, 9) * 16 + (test_between(&rng, 0, 3) == 0 ? 5 : 0);
  hidden = sizes.hidden > 0 ? sizes.hidden : hidden;
  width = sizes.width > 0 ? sizes.width : width;
  memset(p, 0, sizeof *p);
  p->op = (struct quire_moe){.x_dtype = x_dtype,
                             .experts = p->list,
                             .m = m,
                             .hidden = hidden,
                             .expert_width = width,
                             .shared_width = shared_width,
                             .expert_count = 8,
                             .k = k,
                             .x_ld = hidden + test_between(&rng, 0, 2),
                             .residual_ld = hidden + test_between(&rng, 0, 2)};
  for (int i = 0; i < 8; i++) {
    expert_make(&p->experts[i], w_dtype, hidden, width);
    p->list[i] = expert_of(&p->experts[i]);
  }
  if (shared_width > 0) {
    expert_make(&p->experts[8], w_dtype, hidden, shared_width);
    p->op.shared = expert_of(&p->experts[8]);
  }
  p->x = test_alloc((int64_t)(m + 1) * p->op.x_ld * 4);
  p->x_wide = test_alloc((int64_t)(m + 1) * hidden * 4);
  p->ids = test_alloc((int64_t)(m + 1) * k * 4);
  p->weights = test_alloc((int64_t)(m + 1) * k * 4);
  p->former = test_poisoned((int64_t)(m + 1) * p->op.residual_ld * 4);
  p->want = test_poisoned((int64_t)(m + 1) * p->op.residual_ld * 4);
  p->residual = test_alloc((int64_t)(m + 1) * p->op.residual_ld * 4);
  for (int64_t r = 0; r < m; r++) {
    for (int64_t i = 0; i < hidden; i++) {
      float v = test_normal(&rng);
      if (x_dtype == QUIRE_DTYPE_BF16) {
        ((uint16_t *)p->x)[r * p->op.x_ld + i] = quire_bf16_round(v);
      } else {
        ((float *)p->x)[r * p->op.x_ld + i] = v;
      }
      p->x_wide[r * hidden + i] = oracle_element(p->x, x_dtype, r * p->op.x_ld + i);
    }
    test_fill(&rng, p->former + r * p->op.residual_ld, hidden, 1.0f);
    for (int32_t id = 0, j = 0; j < k; id++) { /* k of 8, rising */
      if (test_between(&rng, 0, 7 - id) < k - j) {
        p->ids[r * k + j++] = id;
      }
    }
    test_fill(&rng, p->weights + r * k, k, 0.5f);
  }
  p->op.x = p->x;
  p->op.ids = p->ids;
  p->op.weights = p->weights;
  p->op.residual = p->residual;
  for (int64_t r = 0; r < m; r++) {
    oracle_moe(p, r);
  }
}

static void mixture_free(struct mixture *p) {
  for (int i = 0; i < 9; i++) {
    test_weight_free(&p->experts[i].gate);
    test_weight_free(&p->experts[i].up);
    test_weight_free(&p->experts[i].down);
  }
  free(p->x);
  free(p->x_wide);
  free(p->ids);
  free(p->weights);
  free(p->former);
  free(p->want);
  free(p->residual);
}

static void mixture_run(struct mixture *p, const struct quire_kernels *kernels, int threads) {
  struct quire_moe *op = &p->op;
  int64_t bytes = quire_moe_scratch_bytes(op, threads);
  op->scratch = test_poisoned(bytes + 1);
  memcpy(p->residual, p->former, (size_t)((int64_t)op->m * op->residual_ld * 4));
  kernels->moe(world.stream[threads - 1], *op);
  test_check_rows(kernels->name, p->residual, p->want, (int64_t)op->m * op->residual_ld);
  assert_int_equal(op->scratch[bytes], 0xff);
  free(op->scratch);
}

/* Packs a weight where it can be; returns what to free. */
static void *weight_pack(const struct quire_kernels *kernels, struct quire_weight *weight) {
  const struct quire_weight rows = *weight;
  if (!quire_weight_can_pack(&rows)) {
    return NULL;
  }
  void *data = aligned_alloc(64, (size_t)quire_weight_packed_bytes(&rows));
  assert_non_null(data);
  kernels->pack_weight(&rows, data, weight);
  return data;
}

/* Packs some of each expert's matrices (1 gate, 2 up, 4 down), runs, and puts them back. */
static void mixture_run_packed(struct mixture *p, const struct quire_kernels *kernels, int threads, int which) {
  void *packed[27] = {NULL};
  for (int i = 0; i < 9; i++) {
    struct quire_expert *e = i < 8 ? &p->list[i] : &p->op.shared;
    if (e->gate.n > 0) {
      packed[3 * i] = which & 1 ? weight_pack(kernels, &e->gate) : NULL;
      packed[3 * i + 1] = which & 2 ? weight_pack(kernels, &e->up) : NULL;
      packed[3 * i + 2] = which & 4 ? weight_pack(kernels, &e->down) : NULL;
    }
  }
  mixture_run(p, kernels, threads);
  for (int i = 0; i < 9; i++) {
    if (i < 8 || p->op.shared_width > 0) {
      *(i < 8 ? &p->list[i] : &p->op.shared) = expert_of(&p->experts[i]);
    }
  }
  for (int i = 0; i < 27; i++) {
    free(packed[i]);
  }
}

/* With weights as they are, and packed where a table has a layout: all, and some, as of a checkpoint that stores the
 * matrices of an expert in several types. */
static void mixture_check(struct mixture *p, const struct quire_kernels *kernels, int threads) {
  static const int which[] = {7, 2, 5};
  mixture_run(p, kernels, threads);
  for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
    if (kernels->pack_weight != NULL && p->op.x_dtype == QUIRE_DTYPE_BF16) {
      mixture_run_packed(p, kernels, threads, which[i]);
    }
  }
}

/* Packed experts: short k and long, ends of panels, more rows than a block, a row alone that is packed. */
static void test_packed(void **state) {
  static const int32_t shapes[][4] = {{128, 128, 5, 3}, {256, 128, 40, 2}, {384, 288, 300, 1}, {128, 80, 9, 4},
                                      {640, 48, 3, 4},  {544, 384, 1, 4},  {4224, 64, 1, 2}};
  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    for (int dtype = QUIRE_DTYPE_BF16; dtype <= QUIRE_DTYPE_FP8; dtype++) {
      struct mixture p;
      sizes.hidden = shapes[i][0];
      sizes.width = shapes[i][1];
      mixture_make(&p, QUIRE_DTYPE_BF16, (enum quire_dtype)dtype, shapes[i][2], shapes[i][3], 128);
      sizes.hidden = sizes.width = 0;
      for (int kernels = 0; kernels < world.kernel_count; kernels++) {
        for (int threads = 1; threads <= TEST_THREADS_MAX; threads++) {
          mixture_check(&p, world.kernels[kernels], threads);
        }
      }
      mixture_free(&p);
    }
  }
}

static void test_experts(void **state) {
  (void)state;
  for (int i = 0; i < 36; i++) {
    struct mixture p;
    int32_t k = i % 9 == 8 ? 0 : test_between(&rng, 1, 4);
    mixture_make(&p, i % 2 ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16, (enum quire_dtype)(i % 3),
                 i % 6 == 5 ? 0 : test_between(&rng, 1, 12), k, k == 0 || i % 4 ? 48 : 0);
    for (int kernels = 0; kernels < world.kernel_count; kernels++) {
      for (int threads = 1; threads <= TEST_THREADS_MAX; threads++) {
        mixture_check(&p, world.kernels[kernels], threads);
      }
    }
    mixture_free(&p);
  }
}

/* Enough work for a team. */
static void test_team(void **state) {
  (void)state;
  struct mixture p;
  do { /* the width is random */
    mixture_make(&p, QUIRE_DTYPE_BF16, QUIRE_DTYPE_FP8, 48, 4, 128);
    for (int kernels = 0; kernels < world.kernel_count; kernels++) {
      for (int threads = 1; threads <= TEST_THREADS_MAX; threads++) {
        mixture_check(&p, world.kernels[kernels], threads);
      }
    }
    mixture_free(&p);
  } while (p.op.hidden * p.op.expert_width < 10000);
}

/* A token alone, wherever it is in the batch. */
static void test_batch(void **state) {
  (void)state;
  struct mixture p;
  mixture_make(&p, QUIRE_DTYPE_BF16, QUIRE_DTYPE_FP8, 20, 3, 64);
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    uint8_t *scratch = test_poisoned(quire_moe_scratch_bytes(&p.op, 2));
    for (int64_t r = 0; r < 20; r++) {
      struct quire_moe one = p.op;
      float *residual = test_alloc((int64_t)p.op.hidden * 4);
      memcpy(residual, p.former + r * p.op.residual_ld, (size_t)p.op.hidden * 4);
      one.x = (const uint16_t *)p.x + r * p.op.x_ld;
      one.ids += r * 3;
      one.weights += r * 3;
      one.residual = residual;
      one.m = 1;
      one.scratch = scratch;
      world.kernels[kernels]->moe(world.stream[1], one);
      assert_memory_equal(residual, p.want + r * p.op.residual_ld, (size_t)p.op.hidden * 4);
      free(residual);
    }
    free(scratch);
  }
  mixture_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_route), cmocka_unit_test(test_experts), cmocka_unit_test(test_packed),
      cmocka_unit_test(test_team),  cmocka_unit_test(test_batch),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
