// ctest: timeout=120 labels=quick
/* The options of the arithmetic (docs/arithmetic.md 2 and 9) through whole engines: each choice is as exact as the
 * default, reaches the stored bytes, and has a fingerprint of its own. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_run.h"

#define LENGTH 220 /* more than top-k */
#define NEW 3

static struct exact_model model;
static int32_t tokens[LENGTH];

struct choice {
  bool hadamard, any_scale;
  enum quire_kv_format kv;
  enum quire_dtype compute;
};

static const struct choice choices[] = {
    {true, false, QUIRE_KV_BF16, QUIRE_DTYPE_BF16},
    {false, true, QUIRE_KV_FP8, QUIRE_DTYPE_BF16},
    {true, true, QUIRE_KV_FP8, QUIRE_DTYPE_F32},
};
#define CHOICES (int)(sizeof choices / sizeof choices[0])

static struct exact_cell choice_cell(struct choice choice) {
  struct exact_cell cell = exact_cell_defaults(&model, tokens, LENGTH);
  cell.hadamard = choice.hadamard;
  cell.any_scale = choice.any_scale;
  cell.kv = choice.kv;
  cell.compute = choice.compute;
  cell.mtp = true;
  cell.new_max = NEW;
  return cell;
}

static void expect_equal(const struct exact_cell *cell, const struct exact_result *reference) {
  struct exact_result got = {0};
  char what[EXACT_TEXT_BYTES], text[EXACT_TEXT_BYTES];
  exact_cell_run(cell, &got);
  if (!exact_results_equal(reference, &got, text)) {
    exact_cell_text(cell, what);
    fail_msg("%s: %s", what, text);
  }
  exact_result_free(&got);
}

static void each_choice_is_exact(void **unused) {
  (void)unused;
  for (int i = 0; i < CHOICES; i++) {
    struct exact_cell cell = choice_cell(choices[i]);
    struct exact_result reference = {0};
    cell.isa = "portable";
    exact_cell_run(&cell, &reference);
    cell.isa = "auto";
    cell.ranks = 3;
    cell.sharing = QUIRE_SHARING_SHARED;
    cell.view = QUIRE_VIEW_PEER;
    cell.chunk = 100;
    cell.debug = true;
    cell.source = EXACT_PARTIAL;
    expect_equal(&cell, &reference);
    cell.view = QUIRE_VIEW_GATHER;
    cell.split = QUIRE_SPLIT_INTERLEAVE;
    cell.chunk = 64;
    cell.threads = 2;
    cell.executor = "proc";
    cell.warm = true;
    expect_equal(&cell, &reference);
    exact_result_free(&reference);
  }
}

static int32_t find_part(const struct exact_cell *cell, enum quire_part_kind kind) {
  struct quire_engine_config config = exact_engine_config(cell, LENGTH, LENGTH);
  struct quire_parts parts;
  assert_true(quire_engine_parts(&config, &parts));
  return quire_parts_find(&parts, QUIRE_PART_TARGET, kind, 0);
}

/* Among `count` scales at `offset` of each row, those that are no powers of two. */
static int32_t odd_scales(const struct exact_result *result, int32_t part, int32_t offset, int32_t count) {
  int32_t odd = 0;
  for (int32_t i = 0; i < result->count * count; i++) {
    uint32_t bits;
    memcpy(&bits, result->rows[part] + (int64_t)(i / count) * result->row_bytes[part] + offset + i % count * 4, 4);
    assert_true(bits >> 23 > 0 && bits >> 23 < 255);
    odd += (bits & 0x7fffff) != 0;
  }
  return odd;
}

static void scales_are_what_was_asked_for(void **unused) {
  (void)unused;
  for (int any = 0; any < 2; any++) {
    struct exact_cell cell = choice_cell((struct choice){false, any, QUIRE_KV_FP8, QUIRE_DTYPE_BF16});
    struct exact_result result = {0};
    exact_cell_run(&cell, &result);
    int32_t keys = odd_scales(&result, find_part(&cell, QUIRE_PART_INDEX_KEY), QUIRE_INDEX_DIM, 1);
    int32_t latents = odd_scales(&result, find_part(&cell, QUIRE_PART_LATENT), QUIRE_LATENT_DIM, 4);
    assert_true(any ? keys > result.count / 2 && latents > 2 * result.count : keys == 0 && latents == 0);
    exact_result_free(&result);
  }
}

/* Without quantisation the transform changes keys as its matrix does, and no score but for rounding. */
static void the_transform_keeps_scores(void **unused) {
  (void)unused;
  struct exact_cell plain = choice_cell((struct choice){false, false, QUIRE_KV_F32, QUIRE_DTYPE_F32}), turned = plain;
  struct exact_result a = {0}, b = {0};
  turned.hadamard = true;
  exact_cell_run(&plain, &a);
  exact_cell_run(&turned, &b);
  int32_t part = find_part(&plain, QUIRE_PART_INDEX_KEY);
  for (int32_t position = 0; position < LENGTH; position++) {
    const float *x = (const float *)(const void *)a.rows[part] + (int64_t)position * QUIRE_INDEX_DIM;
    const float *y = (const float *)(const void *)b.rows[part] + (int64_t)position * QUIRE_INDEX_DIM;
    for (int i = 0; i < QUIRE_INDEX_DIM; i++) {
      double sum = 0;
      for (int j = 0; j < QUIRE_INDEX_DIM; j++) {
        sum += __builtin_parity((unsigned)(i & j)) ? -(double)x[j] : (double)x[j];
      }
      assert_true(fabs(sum / sqrt(QUIRE_INDEX_DIM) - (double)y[i]) < 1e-5);
    }
  }
  assert_int_equal(a.drawn, b.drawn);
  for (int32_t i = 0; i < a.drawn; i++) {
    assert_int_equal(a.token[i], b.token[i]);
    assert_true(fabsf(a.logprob[i] - b.logprob[i]) < 1e-3f);
  }
  exact_result_free(&a);
  exact_result_free(&b);
}

static void numerics_have_their_own_fingerprints(void **unused) {
  (void)unused;
  struct quire_hash128 seen[4];
  for (int i = 0; i < 4; i++) {
    struct exact_cell cell = choice_cell((struct choice){(i & 1) != 0, (i & 2) != 0, QUIRE_KV_BF16, QUIRE_DTYPE_BF16});
    struct quire_engine_config config = exact_engine_config(&cell, LENGTH, LENGTH);
    seen[i] = quire_engine_fingerprint(&config);
    for (int j = 0; j < i; j++) {
      assert_memory_not_equal(&seen[i], &seen[j], sizeof seen[i]);
    }
  }
}

static int set_up(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_BF16);
  quire_tiny_tokens(23, LENGTH, tokens);
  return 0;
}

static int tear_down(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_choice_is_exact),
      cmocka_unit_test(scales_are_what_was_asked_for),
      cmocka_unit_test(the_transform_keeps_scores),
      cmocka_unit_test(numerics_have_their_own_fingerprints),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
