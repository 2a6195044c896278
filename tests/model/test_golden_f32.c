// ctest: timeout=120
/* The forward pass in f32, nothing rounded, against what transformers computes (tests/goldens): every layer, the head
 * and the draft layer, the lists of selected positions, and what is stored; both families; f32, bf16 and fp8 weights;
 * a prompt shorter than the top-k and one longer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_golden.h"
#include "support/exact_run.h"

/* Share of the largest magnitude. Two f32 programs are within 5e-6 of each other here. */
#define TOLERANCE 2e-5
/* A swap at the border of the top-k is no fault when the two scores are this close. */
#define TIE 1e-5

/* 1 - cos of a layer's output in the arithmetic that serves. */
#define COSINE 1e-4

struct golden_case {
  const char *file;
  enum quire_tiny_dtype weights;
  int topk;
  enum quire_tiny_family family;
  const char *indexers;  /* of a GLM */
  float latent_norm_eps; /* 0: 1e-6 */
};

static struct golden golden;
static struct exact_model model;
static struct recorder recorder;
static int32_t *prompt; /* the golden's tokens, and one more: slot L of the draft layer consumes it */

static void open_case(const struct golden_case *c) {
  const bool glm = c->family == QUIRE_TINY_GLM_MOE_DSA;
  struct quire_tiny_options options = glm ? quire_tiny_glm() : quire_tiny_defaults();
  options.indexers = c->indexers;
  options.dtype = c->weights;
  options.index_topk = c->topk;
  golden_open(&golden, c->file);
  exact_model_tiny(&model, &options);
  recorder_init(&recorder);
  const struct golden_array *next = golden_get(&golden, "mtp", "tokens");
  prompt = calloc((size_t)golden.length + 1, sizeof *prompt);
  assert_non_null(prompt);
  memcpy(prompt, golden.tokens, (size_t)golden.length * sizeof *prompt);
  prompt[golden.length] = next->i[golden.length - 1];
}

static void close_case(void) {
  free(prompt);
  recorder_free(&recorder);
  exact_model_close(&model);
  golden_close(&golden);
}

static struct exact_cell f32_cell(const struct golden_case *c) {
  struct exact_cell cell = exact_cell_defaults(&model, prompt, golden.length + 1);
  cell.compute = QUIRE_DTYPE_F32;
  cell.kv = QUIRE_KV_F32;
  cell.mtp = true;
  cell.latent_norm_eps = c->latent_norm_eps;
  return cell;
}

static void expect_close(const char *what, int32_t layer, const struct golden_rows *rows) {
  double difference = golden_difference(rows);
  if (!(difference <= TOLERANCE)) {
    fail_msg("%s of layer %d differs by %.3g of the largest magnitude", what, layer, difference);
  }
}

/* A recorded value against a golden tensor that holds all rows or those of golden.rows. Row i of the draft batch is
 * slot i + 1, which is the golden's row i. */
static void compare(enum quire_tap_point point, int32_t layer, const char *name, int32_t first_column) {
  char prefix[32];
  const struct golden_array *g = golden_get(&golden, golden_layer(layer, model.config.layers, prefix), name);
  const struct recorded *r = recorder_get(&recorder, point, layer);
  bool all = g->rows == golden.length;
  struct golden_rows rows = {
      .a = r->f,
      .a_columns = r->columns,
      .index = all ? NULL : golden.rows,
      .b = g->f + first_column,
      .b_columns = g->columns,
      .count = all ? golden.length : golden.row_count,
      .columns = r->columns,
  };
  assert_true(r->rows >= golden.length && first_column + r->columns <= g->columns);
  expect_close(name, layer, &rows);
}

/* A layer without an indexer attends the lists of the nearest layer below that has one. */
static void compare_shared_lists(int32_t layer) {
  int32_t below = layer;
  while (!model.config.owns_indexer[below]) {
    below--;
  }
  static const enum quire_tap_point points[] = {QUIRE_TAP_SELECTED, QUIRE_TAP_COUNTS};
  for (int i = 0; i < 2; i++) {
    const struct recorded *have = recorder_get(&recorder, points[i], layer);
    const struct recorded *want = recorder_get(&recorder, points[i], below);
    assert_true(have->rows == want->rows && have->columns == want->columns);
    assert_memory_equal(have->i, want->i, (size_t)have->rows * (size_t)have->columns * sizeof *have->i);
  }
}

static void compare_lists(int32_t layer) {
  char prefix[32];
  bool draft = layer == model.config.layers;
  const char *from = golden_layer(layer, model.config.layers, prefix);
  const struct golden_array *topk = golden_get(&golden, from, "topk"), *gap = golden_get(&golden, from, "topk_gap");
  const struct recorded *selected = recorder_get(&recorder, QUIRE_TAP_SELECTED, layer);
  const struct recorded *counts = recorder_get(&recorder, QUIRE_TAP_COUNTS, layer);
  bool all = topk->rows == golden.length;
  for (int32_t i = 0; i < topk->rows; i++) {
    int32_t row = all ? i : golden.rows[i], missing = 0;
    const int32_t *want = topk->i + (int64_t)i * topk->columns, *have = selected->i + (int64_t)row * selected->columns;
    int32_t count = row + 1 < topk->columns ? row + 1 : topk->columns;
    assert_int_equal(counts->i[row], count);
    for (int32_t k = 0, h = 0; k < count; k++) {
      int32_t position = want[k] + (draft ? 1 : 0);
      while (h < count && have[h] < position) {
        h++;
      }
      missing += h == count || have[h] != position;
    }
    if (missing > 0 && !(missing == 1 && gap->f[row] < (float)TIE)) {
      fail_msg("layer %d row %d: %d of %d selected positions differ (gap %g)", layer, row, missing, count,
               (double)gap->f[row]);
    }
  }
}

/* What is stored of a part is what the taps showed, in f32. */
static void compare_stored(const struct exact_result *result, const struct quire_parts *parts) {
  for (int32_t i = 0; i < result->parts; i++) {
    const struct quire_part *part = &parts->part[i];
    bool draft = part->model == QUIRE_PART_DRAFT, latent = part->kind == QUIRE_PART_LATENT;
    int32_t layer = draft ? model.config.layers : part->layer;
    const struct recorded *a = recorder_get(&recorder, latent ? QUIRE_TAP_LATENT : QUIRE_TAP_INDEX_K, layer);
    const float *stored = (const float *)(const void *)result->rows[i];
    int32_t columns = part->row_bytes / 4;
    for (int32_t position = draft ? 1 : 0; position < result->count; position++) {
      int32_t row = position - (draft ? 1 : 0);
      assert_memory_equal(stored + (int64_t)position * columns, a->f + (int64_t)row * a->columns,
                          (size_t)a->columns * sizeof(float));
      if (latent) {
        const struct recorded *rope = recorder_get(&recorder, QUIRE_TAP_ROPE_KEY, layer);
        assert_memory_equal(stored + (int64_t)position * columns + a->columns, rope->f + (int64_t)row * rope->columns,
                            (size_t)rope->columns * sizeof(float));
      }
    }
    for (int32_t c = 0; draft && c < columns; c++) {
      assert_true(stored[c] == 0.0f);
    }
  }
}

static void compare_layers(void) {
  for (int32_t layer = 0; layer <= model.config.layers; layer++) {
    char prefix[32];
    compare(QUIRE_TAP_LAYER_OUTPUT, layer, "hidden", 0);
    const bool owns = model.config.owns_indexer[layer];
    (owns ? compare_lists : compare_shared_lists)(layer);
    if (golden_find(&golden, golden_layer(layer, model.config.layers, prefix), "latent") != NULL) {
      compare(QUIRE_TAP_LATENT, layer, "latent", 0);
      compare(QUIRE_TAP_ROPE_KEY, layer, "latent", QUIRE_LATENT_DIM);
      if (owns) {
        compare(QUIRE_TAP_INDEX_K, layer, "index_key", 0);
      }
    }
  }
  compare(QUIRE_TAP_DRAFT_INPUT, model.config.layers, "input", 0);
  compare(QUIRE_TAP_DRAFT_HIDDEN, model.config.layers, "g", 0);
}

/* Values that carry no layer in their golden name. */
static void compare_top(enum quire_tap_point point, int32_t layer, const char *prefix, const char *name) {
  const struct golden_array *g = golden_get(&golden, prefix, name);
  const struct recorded *r = recorder_get(&recorder, point, layer);
  struct golden_rows rows = {r->f, r->columns, golden.rows, g->f, g->columns, golden.row_count, g->columns};
  assert_true(r->rows >= golden.length && r->columns == g->columns);
  expect_close(name, layer, &rows);
}

static void run_recorded(const struct exact_cell *cell, struct exact_result *result,
                         void (*check)(const struct exact_result *, const struct quire_parts *)) {
  struct quire_engine *engine = exact_engine_open(cell, cell->length, cell->length + 64);
  quire_engine_tap(engine, 0, &recorder.tap);
  struct quire_engine_request request = exact_request(cell);
  request.flags = QUIRE_ENTRY_SCORE | QUIRE_ENTRY_DRAFT_FULL;
  struct quire_step_row *rows = calloc((size_t)cell->length, sizeof *rows);
  assert_non_null(rows);
  request.rows = rows;
  exact_engine_run(engine, &request, result);
  check(result, quire_engine_parts_of(engine));
  /* the rows the engine hands out are those of the recorded logits */
  const struct recorded *logits = recorder_get(&recorder, QUIRE_TAP_LOGITS, 0);
  for (int32_t i = 0; i < cell->length; i++) {
    const float *l = logits->f + (int64_t)i * logits->columns;
    for (int32_t c = 0; c < logits->columns; c++) {
      assert_true(l[rows[i].argmax] >= l[c]);
    }
  }
  free(rows);
  quire_engine_destroy(engine);
}

static void equals_golden(void **state) {
  open_case(*state);
  struct exact_cell cell = f32_cell(*state);
  struct exact_result result = {0};
  run_recorded(&cell, &result, compare_stored);
  compare_layers();
  compare_top(QUIRE_TAP_HIDDEN, model.config.layers, "", "final.hidden");
  compare_top(QUIRE_TAP_LOGITS, 0, "", "logits");
  compare_top(QUIRE_TAP_LOGITS, 1, "mtp", "logits");
  exact_result_free(&result);
  close_case();
}

static void nothing(const struct exact_result *result, const struct quire_parts *parts) {
  (void)result;
  (void)parts;
}

/* With a top-k that nothing reaches the indexer has no influence. */
static void equals_dense_attention(void **state) {
  open_case(*state);
  struct exact_cell cell = f32_cell(*state);
  struct exact_result result = {0};
  run_recorded(&cell, &result, nothing);
  compare_top(QUIRE_TAP_LOGITS, 0, "", "dense.logits");
  exact_result_free(&result);
  close_case();
}

/* The arithmetic that serves, as far as no choice of experts hangs on a rounding: layer 0, which has none. */
static void bf16_points_the_same_way(void **state) {
  open_case(*state);
  struct exact_cell cell = f32_cell(*state);
  struct exact_result result = {0};
  cell.compute = QUIRE_DTYPE_BF16;
  cell.kv = QUIRE_KV_BF16;
  run_recorded(&cell, &result, nothing);
  const struct golden_array *g = golden_get(&golden, "layer.0", "hidden");
  const struct recorded *r = recorder_get(&recorder, QUIRE_TAP_LAYER_OUTPUT, 0);
  struct golden_rows rows = {r->f, r->columns, golden.rows, g->f, g->columns, golden.row_count, g->columns};
  double cosine = golden_cosine(&rows);
  if (!(cosine <= COSINE)) {
    fail_msg("1 - cos is %.3g", cosine);
  }
  exact_result_free(&result);
  close_case();
}

#define EPS_TAPS 4

/* The option reaches both latent norms, and nothing that does not come after one. */
static void latent_norm_eps_is_of_the_latents(void **state) {
  static const enum quire_tap_point taps[EPS_TAPS] = {QUIRE_TAP_LATENT, QUIRE_TAP_INDEX_Q, QUIRE_TAP_ROPE_KEY,
                                                      QUIRE_TAP_INDEX_K};
  float *first[EPS_TAPS];
  open_case(*state);
  struct exact_cell cell = f32_cell(*state);
  for (int run = 0; run < 2; run++) {
    struct exact_result result = {0};
    cell.latent_norm_eps = run == 0 ? 1e-6f : 1e-5f;
    run_recorded(&cell, &result, nothing);
    exact_result_free(&result);
    for (int i = 0; i < EPS_TAPS; i++) {
      const struct recorded *r = recorder_get(&recorder, taps[i], 0);
      const size_t count = (size_t)r->rows * (size_t)r->columns;
      double squares[2] = {0, 0};
      if (run == 0) {
        first[i] = malloc(count * sizeof(float));
        assert_non_null(first[i]);
        memcpy(first[i], r->f, count * sizeof(float));
        continue;
      }
      for (size_t k = 0; k < count; k++) {
        squares[0] += (double)first[i][k] * (double)first[i][k];
        squares[1] += (double)r->f[k] * (double)r->f[k];
      }
      if (i < 2) { /* a mean square near 1 grows by 9e-6 */
        assert_true(squares[0] > squares[1] * (1 + 1e-6) && squares[0] < squares[1] * (1 + 1e-4));
      } else {
        assert_memory_equal(first[i], r->f, count * sizeof(float));
      }
      free(first[i]);
    }
    recorder_free(&recorder);
    recorder_init(&recorder);
  }
  close_case();
}

#define V32 QUIRE_TINY_DEEPSEEK_V32
#define GLM QUIRE_TINY_GLM_MOE_DSA

int main(void) {
  static const char shared[] = "FFSFSS";
  static struct golden_case f32_100 = {"tiny_f32_100", QUIRE_TINY_F32, 128, V32, NULL, 0};
  static struct golden_case f32_400 = {"tiny_f32_400", QUIRE_TINY_F32, 128, V32, NULL, 0};
  static struct golden_case bf16_200 = {"tiny_bf16w_200", QUIRE_TINY_BF16, 128, V32, NULL, 0};
  static struct golden_case fp8_400 = {"tiny_fp8w_400", QUIRE_TINY_FP8, 128, V32, NULL, 0};
  static struct golden_case dense = {"tiny_f32_400", QUIRE_TINY_F32, 2048, V32, NULL, 0};
  static struct golden_case glm_f32_100 = {"glm_f32_100", QUIRE_TINY_F32, 128, GLM, shared, 0};
  static struct golden_case glm_f32_400 = {"glm_f32_400", QUIRE_TINY_F32, 128, GLM, shared, 0};
  static struct golden_case glm_fp8_400 = {"glm_fp8w_400", QUIRE_TINY_FP8, 128, GLM, shared, 1e-5f};
  static struct golden_case glm_full_200 = {"glm_full_bf16w_200", QUIRE_TINY_BF16, 128, GLM, NULL, 0};
  static struct golden_case glm_dense = {"glm_f32_400", QUIRE_TINY_F32, 2048, GLM, shared, 0};
  const struct CMUnitTest tests[] = {
      {"f32 weights, 100 tokens", equals_golden, NULL, NULL, &f32_100},
      {"f32 weights, 400 tokens", equals_golden, NULL, NULL, &f32_400},
      {"bf16 weights, 200 tokens", equals_golden, NULL, NULL, &bf16_200},
      {"fp8 weights, 400 tokens", equals_golden, NULL, NULL, &fp8_400},
      {"top-k 2048, 400 tokens", equals_dense_attention, NULL, NULL, &dense},
      {"GLM: f32 weights, 100 tokens", equals_golden, NULL, NULL, &glm_f32_100},
      {"GLM: f32 weights, 400 tokens", equals_golden, NULL, NULL, &glm_f32_400},
      {"GLM: fp8 weights, 400 tokens", equals_golden, NULL, NULL, &glm_fp8_400},
      {"GLM, no shared lists: bf16 weights, 200 tokens", equals_golden, NULL, NULL, &glm_full_200},
      {"GLM: top-k 2048, 400 tokens", equals_dense_attention, NULL, NULL, &glm_dense},
      {"GLM: compute bf16, 100 tokens", bf16_points_the_same_way, NULL, NULL, &glm_f32_100},
      {"GLM: eps of the latent norms", latent_norm_eps_is_of_the_latents, NULL, NULL, &glm_f32_100},
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
