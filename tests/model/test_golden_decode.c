// ctest: timeout=60
/* Decode, step by step, against transformers' own cache: a prefill of 390 tokens, then ten single rows whose keys lie
 * in the local segment of their home until the next step commits them. One rank and three. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/exact_golden.h"
#include "support/exact_step.h"

#define PREFILL 390
#define STEPS 10
#define TOLERANCE 2e-5

static void steps_equal_golden(bool glm, int32_t ranks, enum quire_view_mode view) {
  struct golden golden;
  struct exact_model model;
  struct quire_tiny_options options = glm ? quire_tiny_glm() : quire_tiny_defaults();
  golden_open(&golden, glm ? "glm_f32_400" : "tiny_f32_400");
  exact_model_tiny(&model, &options);
  struct exact_cell cell = exact_cell_defaults(&model, golden.tokens, golden.length);
  cell.compute = QUIRE_DTYPE_F32;
  cell.kv = QUIRE_KV_F32;
  cell.mtp = true;
  cell.ranks = ranks;
  cell.view = view;
  cell.sharing = ranks > 1 ? QUIRE_SHARING_SHARED : QUIRE_SHARING_REPLICATED;
  struct exact_step step;
  exact_step_open(&step, quire_env_default(), &cell);
  struct quire_step_entry entry = exact_step_prefill(&step, 0, PREFILL, 0);
  exact_step_one(&step, &entry);
  const struct golden_array *logits = golden_get(&golden, "decode", "logits");
  for (int32_t i = 0; i < STEPS; i++) {
    struct recorder recorder;
    recorder_init(&recorder);
    entry = exact_step_decode(&step, 0, 1, QUIRE_ENTRY_SAMPLE);
    quire_step_tap(step.executor, entry.home, &recorder.tap);
    exact_step_one(&step, &entry);
    quire_step_tap(step.executor, entry.home, NULL);
    const struct recorded *r = recorder_get(&recorder, QUIRE_TAP_LOGITS, 0);
    struct golden_rows rows = {r->f, r->columns, NULL, logits->f + (int64_t)i * logits->columns, logits->columns,
                               1,    r->columns};
    double difference = golden_difference(&rows);
    if (!(difference <= TOLERANCE)) {
      fail_msg("logits of position %d differ by %.3g of the largest magnitude", PREFILL + i, difference);
    }
    recorder_free(&recorder);
  }
  exact_step_close(&step);
  exact_model_close(&model);
  golden_close(&golden);
}

static void one_rank(void **unused) {
  (void)unused;
  steps_equal_golden(false, 1, QUIRE_VIEW_LOCAL);
}

static void three_ranks(void **unused) {
  (void)unused;
  steps_equal_golden(false, 3, QUIRE_VIEW_PEER);
}

static void glm_one_rank(void **unused) {
  (void)unused;
  steps_equal_golden(true, 1, QUIRE_VIEW_LOCAL);
}

static void glm_three_ranks(void **unused) {
  (void)unused;
  steps_equal_golden(true, 3, QUIRE_VIEW_GATHER);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_rank), cmocka_unit_test(three_ranks),
                                     cmocka_unit_test(glm_one_rank), cmocka_unit_test(glm_three_ranks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
