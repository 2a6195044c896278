// ctest: timeout=120
/* Stored formats against goldens, layer by layer: each layer starts from the golden's own residual and attends the
 * golden's own list, so that one code on the other side of a rounding boundary is not carried on. What is stored, what
 * is attended, and what leaves the layer; then the same layers in bf16. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_golden.h"
#include "support/exact_run.h"

/* Share of a file's codes, and of its 8-bit codes, that may differ, by one step: values at a rounding boundary. A bf16
 * code near zero may be some steps away, as long as its value is within this much of the row's largest: it is a
 * difference of large f32 terms, and its steps are finer than their last bits. */
#define NEAR_ZERO 0x1p-22
#define CODES_DIFFERENT 1e-4
/* With the rows and lists of the golden only f32 sums are left. */
#define TOLERANCE 2e-5
#define COSINE 1e-4

static struct golden golden;
static struct exact_model model;
static struct recorder recorder;
static int32_t *prompt;
static bool golden_rows_stored; /* store the golden's rows instead of our own */

struct golden_case {
  const char *file;
  enum quire_kv_format kv;
};

static const struct golden_array *find(int32_t layer, const char *name) {
  char prefix[32];
  return golden_find(&golden, golden_layer(layer, model.config.layers, prefix), name);
}

static const struct golden_array *get(int32_t layer, const char *name) {
  char prefix[32];
  return golden_get(&golden, golden_layer(layer, model.config.layers, prefix), name);
}

/* Value of a stored latent element in the golden. */
static float latent_value(const struct golden_array *codes, const struct golden_array *scales, int32_t row, int32_t c) {
  int64_t at = (int64_t)row * codes->columns + c;
  return scales == NULL ? codes->f[at]
                        : quire_f32_of_e4m3((uint8_t)codes->i[at]) *
                              scales->f[(int64_t)row * scales->columns + c / QUIRE_LATENT_BLOCK];
}

static void put_golden_rows(const struct quire_tap_value *value) {
  float *data = value->data;
  const struct golden_array *latent = get(value->layer, "latent_codes"), *scales = find(value->layer, "latent_scales");
  const struct golden_array *rope = get(value->layer, "rope_codes"), *index = get(value->layer, "index_codes");
  const struct golden_array *index_scales = get(value->layer, "index_scales");
  for (int32_t row = 0; row < golden.length; row++) {
    for (int32_t c = 0; c < value->columns; c++) {
      if (value->point == QUIRE_TAP_LATENT) {
        data[(int64_t)row * value->columns + c] = latent_value(latent, scales, row, c);
      } else if (value->point == QUIRE_TAP_ROPE_KEY) {
        data[(int64_t)row * QUIRE_KV_DIM + c] = rope->f[(int64_t)row * value->columns + c];
      } else {
        data[(int64_t)row * value->columns + c] =
            quire_f32_of_e4m3((uint8_t)index->i[(int64_t)row * value->columns + c]) * index_scales->f[row];
      }
    }
  }
}

/* Lists of the golden; a draft row of the golden sees rows, ours sees slots. */
static void put_golden_lists(const struct quire_tap_value *value, bool draft) {
  const struct golden_array *topk = get(value->layer, "topk");
  int32_t *data = value->data;
  for (int32_t row = 0; row < golden.length; row++) {
    for (int32_t k = 0; k < value->columns; k++) {
      int32_t position = topk->i[(int64_t)row * topk->columns + k];
      data[(int64_t)row * value->columns + k] = position < 0 ? -1 : position + (draft ? 1 : 0);
    }
  }
}

static void before(void *context, const struct quire_tap_value *value) {
  (void)context;
  bool draft = value->layer == model.config.layers;
  if (value->point == QUIRE_TAP_LAYER_INPUT) {
    const struct golden_array *input = get(value->layer, "input");
    assert_int_equal(input->rows, golden.length);
    memcpy(value->data, input->f, (size_t)golden.length * (size_t)input->columns * sizeof(float));
  } else if (value->point == QUIRE_TAP_SELECTED) {
    put_golden_lists(value, draft);
  } else if (golden_rows_stored && (value->point == QUIRE_TAP_LATENT || value->point == QUIRE_TAP_ROPE_KEY ||
                                    value->point == QUIRE_TAP_INDEX_K)) {
    put_golden_rows(value);
  }
}

static void open_case(const struct golden_case *c) {
  struct quire_tiny_options options = quire_tiny_defaults();
  options.index_topk = 64;
  golden_open(&golden, c->file);
  exact_model_tiny(&model, &options);
  const struct golden_array *next = golden_get(&golden, "mtp", "tokens");
  prompt = calloc((size_t)golden.length + 1, sizeof *prompt);
  assert_non_null(prompt);
  memcpy(prompt, golden.tokens, (size_t)golden.length * sizeof *prompt);
  prompt[golden.length] = next->i[golden.length - 1];
}

static void close_case(void) {
  free(prompt);
  exact_model_close(&model);
  golden_close(&golden);
}

static void run(const struct golden_case *c, enum quire_dtype compute, bool rows, struct exact_result *result) {
  struct exact_cell cell = exact_cell_defaults(&model, prompt, golden.length + 1);
  cell.compute = compute;
  cell.kv = c->kv;
  cell.mtp = true;
  golden_rows_stored = rows;
  recorder_init(&recorder);
  recorder.before = before;
  struct quire_engine *engine = exact_engine_open(&cell, cell.length, cell.length + 64);
  quire_engine_tap(engine, 0, &recorder.tap);
  struct quire_engine_request request = exact_request(&cell);
  request.flags = QUIRE_ENTRY_DRAFT_FULL;
  exact_engine_run(engine, &request, result);
  quire_engine_destroy(engine);
}

/* --- codes --- */

struct tally {
  int64_t codes, different;
};

/* Place of an e4m3 or bf16 code on the number line. */
static int32_t rank_of(int32_t code, int32_t sign) { return (code & sign) != 0 ? -(code & ~sign) : code; }

static uint16_t read16(const uint8_t *bytes) {
  uint16_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

static void count(struct tally *tally, int32_t have, int32_t want, int32_t sign) {
  int32_t step = rank_of(have, sign) - rank_of(want, sign);
  tally->codes++;
  tally->different += step != 0;
  if (step < -1 || step > 1) {
    fail_msg("code %#x, expected %#x: more than one step", have, want);
  }
}

/* A row of bf16 codes, ours as bytes. */
static void count_bf16(struct tally *tally, const uint8_t *have, const uint16_t *want, int32_t n) {
  float largest = 0.0f;
  for (int32_t c = 0; c < n; c++) {
    largest = fmaxf(largest, fabsf(quire_f32_of_bf16(want[c])));
  }
  for (int32_t c = 0; c < n; c++) {
    uint16_t code = read16(have + 2 * c);
    float away = fabsf(quire_f32_of_bf16(code) - quire_f32_of_bf16(want[c]));
    if (away <= (float)NEAR_ZERO * largest) {
      tally->codes++;
      tally->different += code != want[c];
    } else {
      count(tally, code, want[c], 0x8000);
    }
  }
}

static float read_float(const uint8_t *bytes) {
  float value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

static const uint8_t *stored_row(const struct exact_result *result, int32_t part, int32_t row, bool draft) {
  return result->rows[part] + (int64_t)(row + (draft ? 1 : 0)) * result->row_bytes[part];
}

static void count_latent(const struct exact_result *result, int32_t part, int32_t layer, struct tally tallies[2]) {
  const struct golden_array *codes = get(layer, "latent_codes"), *scales = find(layer, "latent_scales");
  const struct golden_array *rope = get(layer, "rope_codes");
  bool draft = layer == model.config.layers;
  for (int32_t row = 0; row < golden.length; row++) {
    const uint8_t *bytes = stored_row(result, part, row, draft);
    if (scales == NULL) {
      count_bf16(&tallies[1], bytes, codes->bits + (int64_t)row * codes->columns, QUIRE_LATENT_DIM);
    }
    for (int32_t c = 0; scales != NULL && c < QUIRE_LATENT_DIM; c++) {
      count(&tallies[0], bytes[c], codes->i[(int64_t)row * codes->columns + c], 0x80);
    }
    for (int32_t b = 0; scales != NULL && b < scales->columns; b++) {
      assert_true(read_float(bytes + QUIRE_LATENT_DIM + 4 * b) == scales->f[(int64_t)row * scales->columns + b]);
    }
    const uint8_t *keys = scales == NULL ? bytes + 2 * QUIRE_LATENT_DIM : bytes + QUIRE_LATENT_DIM + 16;
    count_bf16(&tallies[1], keys, rope->bits + (int64_t)row * rope->columns, QUIRE_ROPE_DIM);
  }
}

static void count_index(const struct exact_result *result, int32_t part, int32_t layer, struct tally *tally) {
  const struct golden_array *codes = get(layer, "index_codes"), *scales = get(layer, "index_scales");
  for (int32_t row = 0; row < golden.length; row++) {
    const uint8_t *bytes = stored_row(result, part, row, layer == model.config.layers);
    for (int32_t c = 0; c < QUIRE_INDEX_DIM; c++) {
      count(tally, bytes[c], codes->i[(int64_t)row * codes->columns + c], 0x80);
    }
    assert_true(read_float(bytes + QUIRE_INDEX_DIM) == scales->f[row]);
  }
}

static void codes_equal_golden(void **state) {
  const struct golden_case *c = *state;
  struct exact_result result = {0};
  struct tally tallies[2] = {{0, 0}, {0, 0}};
  open_case(c);
  run(c, QUIRE_DTYPE_F32, false, &result);
  for (int32_t layer = 0; layer <= model.config.layers; layer++) {
    count_latent(&result, 2 * layer, layer, tallies);
    count_index(&result, 2 * layer + 1, layer, &tallies[0]);
  }
  for (int i = 0; i < 2; i++) {
    printf("%s: %lld of %lld codes of %d bits are a step away\n", c->file, (long long)tallies[i].different,
           (long long)tallies[i].codes, 8 << i);
  }
  int64_t codes = tallies[0].codes + tallies[1].codes, different = tallies[0].different + tallies[1].different;
  assert_int_equal(codes, (int64_t)golden.length * (model.config.layers + 1) *
                              (QUIRE_LATENT_DIM + QUIRE_ROPE_DIM + QUIRE_INDEX_DIM));
  assert_true((double)tallies[0].different <= CODES_DIFFERENT * (double)tallies[0].codes);
  assert_true((double)different <= CODES_DIFFERENT * (double)codes);
  exact_result_free(&result);
  recorder_free(&recorder);
  close_case();
}

/* --- values --- */

static struct golden_rows rows_of(enum quire_tap_point point, int32_t layer, const char *name) {
  const struct golden_array *g = get(layer, name);
  const struct recorded *r = recorder_get(&recorder, point, layer);
  assert_int_equal(g->rows, golden.row_count);
  assert_int_equal(r->columns, g->columns);
  return (struct golden_rows){r->f, r->columns, golden.rows, g->f, g->columns, golden.row_count, g->columns};
}

static void attention_equals_golden(void **state) {
  struct exact_result result = {0};
  open_case(*state);
  run(*state, QUIRE_DTYPE_F32, true, &result);
  for (int32_t layer = 0; layer <= model.config.layers; layer++) {
    struct golden_rows attention = rows_of(QUIRE_TAP_ATTENTION, layer, "attention");
    struct golden_rows hidden = rows_of(QUIRE_TAP_LAYER_OUTPUT, layer, "hidden");
    double a = golden_difference(&attention), h = golden_difference(&hidden);
    if (!(a <= TOLERANCE && h <= TOLERANCE)) {
      fail_msg("layer %d: attention differs by %.3g, hidden by %.3g of the largest magnitude", layer, a, h);
    }
  }
  exact_result_free(&result);
  recorder_free(&recorder);
  close_case();
}

/* The arithmetic that serves: GEMM inputs and probabilities in bf16. */
static void bf16_points_the_same_way(void **state) {
  struct exact_result result = {0};
  open_case(*state);
  run(*state, QUIRE_DTYPE_BF16, true, &result);
  for (int32_t layer = 0; layer <= model.config.layers; layer++) {
    struct golden_rows attention = rows_of(QUIRE_TAP_ATTENTION, layer, "attention");
    struct golden_rows hidden = rows_of(QUIRE_TAP_LAYER_OUTPUT, layer, "hidden");
    double a = golden_cosine(&attention), h = golden_cosine(&hidden);
    if (!(a <= COSINE && h <= COSINE)) {
      fail_msg("layer %d: 1 - cos is %.3g for attention, %.3g for hidden", layer, a, h);
    }
  }
  exact_result_free(&result);
  recorder_free(&recorder);
  close_case();
}

int main(void) {
  static struct golden_case bf16 = {"tiny_kv_bf16_136", QUIRE_KV_BF16};
  static struct golden_case fp8 = {"tiny_kv_fp8_136", QUIRE_KV_FP8};
  const struct CMUnitTest tests[] = {
      {"bf16: codes", codes_equal_golden, NULL, NULL, &bf16},
      {"fp8: codes", codes_equal_golden, NULL, NULL, &fp8},
      {"bf16: attention and hidden", attention_equals_golden, NULL, NULL, &bf16},
      {"fp8: attention and hidden", attention_equals_golden, NULL, NULL, &fp8},
      {"bf16: compute bf16", bf16_points_the_same_way, NULL, NULL, &bf16},
      {"fp8: compute bf16", bf16_points_the_same_way, NULL, NULL, &fp8},
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
