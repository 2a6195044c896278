// ctest: timeout=600 labels=slow
/* The model of the tree against what its training program computed from the same shards (reference.json with latents in
 * bf16, reference_fp8.json in fp8): logits, argmax and draft argmax of 64 positions behind cached pages, and 32 greedy
 * tokens. The two programs round differently and the model has discrete choices (experts, lists), so single logits may
 * be far apart; medians and shares are not, and a different argmax has to be a near tie. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/exact_run.h"

#define TOP 5
#define ROWS 64
#define GREEDY 32
/* Logits have a standard deviation of 5.2. */
#define MEDIAN 0.05    /* of |ours - reference| over the reference's five largest of each row */
#define NEAR_TIE 0.25  /* between the two candidates where an argmax or a greedy token differs */
#define DIFFERENT 0.05 /* share of rows whose argmax may differ at all */
#define COLUMNS 4096
#define RECORDED_MAX 256

struct prompt {
  const char *name;
  int32_t *tokens;
  int32_t count, first;
  int32_t top_id[ROWS][TOP], draft[ROWS], greedy[GREEDY];
  float top_logit[ROWS][TOP];
};

/* Logits as they are shown: target rows, then draft rows; or the last row a token was drawn from. */
static struct shown {
  float (*row[2])[COLUMNS];
  int32_t count[2];
} shown;

static void show(void *context, const struct quire_tap_value *value) {
  (void)context;
  if (value->point != QUIRE_TAP_LOGITS) {
    return;
  }
  int which = value->layer;
  assert_in_range(which, 0, 1);
  assert_int_equal(value->columns, COLUMNS);
  assert_true(shown.count[which] + value->rows <= RECORDED_MAX);
  memcpy(shown.row[which] + shown.count[which], value->data, (size_t)value->rows * sizeof shown.row[0][0]);
  shown.count[which] += value->rows;
}

static int32_t whole(const json_t *array, size_t i) {
  const json_t *value = json_array_get(array, i);
  assert_true(json_is_integer(value));
  return (int32_t)json_integer_value(value);
}

static struct prompt read_prompt(const json_t *object) {
  const json_t *ids = json_object_get(object, "ids"), *top = json_object_get(object, "top_ids");
  const json_t *logits = json_object_get(object, "top_logits"), *draft = json_object_get(object, "draft_argmax");
  const json_t *greedy = json_object_get(object, "greedy");
  struct prompt p = {.name = json_string_value(json_object_get(object, "name")),
                     .count = (int32_t)json_array_size(ids),
                     .first = (int32_t)json_integer_value(json_object_get(object, "first"))};
  assert_true(p.name != NULL && p.count - p.first == ROWS && json_array_size(top) == ROWS);
  assert_true(json_array_size(draft) == ROWS - 1 && json_array_size(greedy) == GREEDY);
  p.tokens = calloc((size_t)p.count, sizeof *p.tokens);
  assert_non_null(p.tokens);
  for (int32_t i = 0; i < p.count; i++) {
    p.tokens[i] = whole(ids, (size_t)i);
  }
  for (size_t i = 0; i < ROWS; i++) {
    for (size_t k = 0; k < TOP; k++) {
      p.top_id[i][k] = whole(json_array_get(top, i), k);
      p.top_logit[i][k] = (float)json_number_value(json_array_get(json_array_get(logits, i), k));
    }
    p.draft[i] = i + 1 < ROWS ? whole(draft, i) : -1;
  }
  for (size_t i = 0; i < GREEDY; i++) {
    p.greedy[i] = whole(greedy, i);
  }
  return p;
}

struct figures {
  double difference[3 * ROWS * TOP];
  int32_t differences;
  int32_t rows, rows_different, drafts, drafts_different;
  double widest; /* gap between two candidates of a row whose argmax differs */
};

static int32_t argmax(const float *logits) {
  int32_t best = 0;
  for (int32_t i = 1; i < COLUMNS; i++) {
    best = logits[i] > logits[best] ? i : best;
  }
  return best;
}

/* A near tie: how far our winner is in front of the reference's, by our own logits. */
static void expect_near(const char *what, int32_t position, const float *logits, int32_t wanted,
                        struct figures *figures) {
  int32_t got = argmax(logits);
  double gap = (double)(logits[got] - logits[wanted]);
  figures->widest = gap > figures->widest ? gap : figures->widest;
  if (!(gap <= NEAR_TIE)) {
    fail_msg("%s of position %d is %d, not %d: %.3f in front", what, position, got, wanted, gap);
  }
}

/* Position p.first + i is row p.first + i - hit of what was shown. */
static void compare_rows(const struct prompt *p, int32_t hit, const struct quire_step_row *rows,
                         struct figures *figures) {
  assert_int_equal(shown.count[0], p->count - hit);
  for (int32_t i = 0; i < ROWS; i++) {
    const float *logits = shown.row[0][p->first + i - hit];
    assert_int_equal(rows[p->first + i].argmax, argmax(logits));
    for (int k = 0; k < TOP; k++) {
      figures->difference[figures->differences++] = fabs((double)(logits[p->top_id[i][k]] - p->top_logit[i][k]));
    }
    figures->rows++;
    if (argmax(logits) != p->top_id[i][0]) {
      figures->rows_different++;
      expect_near("argmax", p->first + i, logits, p->top_id[i][0], figures);
    }
  }
  /* the reference's draft row i stands at our slot i + 1; slot 0 holds none, and is not shown */
  int32_t skipped = shown.count[0] - shown.count[1];
  assert_in_range(skipped, 0, 1);
  for (int32_t i = 0; i + 1 < ROWS; i++) {
    const float *logits = shown.row[1][p->first + i + 1 - hit - skipped];
    assert_int_equal(rows[p->first + i + 1].draft_argmax, argmax(logits));
    figures->drafts++;
    if (argmax(logits) != p->draft[i]) {
      figures->drafts_different++;
      expect_near("draft argmax", p->first + i, logits, p->draft[i], figures);
    }
  }
}

/* Equal to the end, or up to a near tie. */
static int32_t compare_greedy(struct quire_engine *engine, const struct prompt *p, struct figures *figures) {
  struct quire_engine_request request = {
      .tokens = p->tokens, .count = p->count, .new_max = GREEDY, .sampling = {.top_p = 1.0f}};
  struct quire_error error = {0};
  struct quire_engine_event event = {0};
  int32_t drawn = 0;
  assert_int_equal(quire_engine_start(engine, &request, NULL, &error), QUIRE_OK);
  while (drawn < GREEDY) {
    shown.count[0] = shown.count[1] = 0;
    assert_int_equal(quire_engine_step(engine, &event, &error), QUIRE_OK);
    if (event.kind == QUIRE_EVENT_TOKEN) {
      if (event.token != p->greedy[drawn]) {
        expect_near("greedy token", p->count + drawn, shown.row[0][shown.count[0] - 1], p->greedy[drawn], figures);
        break;
      }
      drawn++;
    }
  }
  quire_engine_finish(engine);
  return drawn;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void check_figures(const char *file, struct figures *figures) {
  qsort(figures->difference, (size_t)figures->differences, sizeof figures->difference[0], by_size);
  double median = figures->difference[figures->differences / 2];
  printf(
      "%s: logits differ by %.4f in the median, %.4f at most; argmax differs in %d of %d rows, draft argmax in %d of "
      "%d; widest near tie %.3f\n",
      file, median, figures->difference[figures->differences - 1], figures->rows_different, figures->rows,
      figures->drafts_different, figures->drafts, figures->widest);
  assert_true(median <= MEDIAN);
  assert_true(figures->rows_different <= DIFFERENT * figures->rows);
  assert_true(figures->drafts_different <= DIFFERENT * figures->drafts);
}

/* Whole pages before the first compared row are read in first, so that what is compared reads cached pages. */
static void compare_prompt(struct exact_model *mini, enum quire_kv_format kv, const struct prompt *p,
                           struct figures *figures) {
  struct exact_cell cell = exact_cell_defaults(mini, p->tokens, p->first + 1);
  cell.kv = kv;
  cell.mtp = true;
  cell.threads = 2;
  cell.chunk = 512;
  struct quire_engine *engine = exact_engine_open(&cell, p->count + GREEDY, 2 * (p->count + GREEDY));
  struct quire_engine_request request = exact_request(&cell);
  struct quire_step_row *rows = calloc((size_t)p->count, sizeof *rows);
  assert_non_null(rows);
  exact_engine_run(engine, &request, NULL);
  struct quire_tap tap = {.call = show};
  struct exact_result result = {0};
  assert_true(quire_engine_tap(engine, 0, &tap));
  shown.count[0] = shown.count[1] = 0;
  request.count = p->count;
  request.flags = QUIRE_ENTRY_SCORE | QUIRE_ENTRY_DRAFT_FULL;
  request.rows = rows;
  exact_engine_run(engine, &request, &result);
  assert_int_equal(result.hit, p->first / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS);
  compare_rows(p, result.hit, rows, figures);
  int32_t equal = compare_greedy(engine, p, figures);
  printf("  %s: %d tokens, %d of %d greedy tokens equal%s\n", p->name, p->count, equal, GREEDY,
         equal < GREEDY ? ", then a near tie" : "");
  exact_result_free(&result);
  free(rows);
  quire_engine_destroy(engine);
}

static void compare_file(const char *name, enum quire_kv_format kv) {
  const char *dir = QUIRE_SOURCE_DIR "/models/quire-mini";
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  json_error_t fault;
  json_t *root = json_load_file(path, 0, &fault), *object;
  if (root == NULL) {
    fail_msg("%s:%d: %s", path, fault.line, fault.text);
  }
  struct exact_model mini;
  exact_model_open(&mini, dir);
  assert_int_equal(mini.config.vocab, COLUMNS);
  struct figures *figures = calloc(1, sizeof *figures);
  for (int i = 0; i < 2; i++) {
    shown.row[i] = calloc(RECORDED_MAX, sizeof shown.row[0][0]);
    assert_non_null(shown.row[i]);
  }
  size_t i;
  assert_non_null(figures);
  assert_int_equal(json_array_size(root), 3);
  json_array_foreach(root, i, object) {
    assert_string_equal(json_string_value(json_object_get(object, "kv")), quire_kv_format_name(kv));
    struct prompt p = read_prompt(object);
    compare_prompt(&mini, kv, &p, figures);
    free(p.tokens);
  }
  check_figures(name, figures);
  free(shown.row[0]);
  free(shown.row[1]);
  free(figures);
  exact_model_close(&mini);
  json_decref(root);
}

static void latents_in_bf16(void **unused) {
  (void)unused;
  compare_file("reference.json", QUIRE_KV_BF16);
}

static void latents_in_fp8(void **unused) {
  (void)unused;
  compare_file("reference_fp8.json", QUIRE_KV_FP8);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(latents_in_bf16), cmocka_unit_test(latents_in_fp8)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
