#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/metrics.h"
#include "support/fail_env.h"

enum { REQUESTS_OK, REQUESTS_FAILED, PAGES_FREE, METRICS };

static const struct quire_metric table[METRICS] = {
    [REQUESTS_OK] = {"quire_requests_total", QUIRE_METRIC_COUNTER, "Requests that ended", "outcome=\"ok\""},
    [REQUESTS_FAILED] = {"quire_requests_total", QUIRE_METRIC_COUNTER, "Requests that ended", "outcome=\"failed\""},
    [PAGES_FREE] = {"quire_pages_free", QUIRE_METRIC_GAUGE, "Pages on free lists", NULL},
};

static void *add_many(void *argument) {
  for (int i = 0; i < 10000; i++) {
    quire_metrics_add(argument, REQUESTS_OK, 2);
    quire_metrics_add(argument, PAGES_FREE, i % 2 ? 1 : -1);
  }
  return NULL;
}

static void counts_and_writes(void **state) {
  (void)state;
  struct fail_env fail;
  fail_env_init(&fail);
  struct quire_metrics *metrics = NULL;
  assert_int_equal(quire_metrics_create(&fail.env, table, METRICS, &metrics, NULL), QUIRE_OK);
  assert_int_equal(quire_metrics_count(metrics), METRICS);
  assert_ptr_equal(quire_metrics_at(metrics, PAGES_FREE), &table[PAGES_FREE]);
  quire_metrics_set(metrics, PAGES_FREE, -5);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, add_many, metrics), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
  }
  assert_int_equal(quire_metrics_get(metrics, REQUESTS_OK), 80000);
  assert_int_equal(quire_metrics_get(metrics, REQUESTS_FAILED), 0);
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fail.env);
  quire_metrics_write(metrics, &buffer);
  assert_string_equal(quire_strbuf_text(&buffer), "# HELP quire_requests_total Requests that ended\n"
                                                  "# TYPE quire_requests_total counter\n"
                                                  "quire_requests_total{outcome=\"ok\"} 80000\n"
                                                  "quire_requests_total{outcome=\"failed\"} 0\n"
                                                  "# HELP quire_pages_free Pages on free lists\n"
                                                  "# TYPE quire_pages_free gauge\n"
                                                  "quire_pages_free -5\n");
  quire_strbuf_fini(&buffer);
  quire_metrics_destroy(metrics);
  quire_metrics_destroy(NULL);
  fail_env_fini(&fail);
}

static void expect_bad(const struct quire_metric *rows, int count, const char *text) {
  struct quire_metrics *metrics = NULL;
  struct quire_error error;
  assert_int_equal(quire_metrics_create(quire_env_default(), rows, count, &metrics, &error), QUIRE_ERR_ARGUMENT);
  assert_string_equal(error.text, text);
  assert_null(metrics);
}

static void bad_tables(void **state) {
  (void)state;
  const struct quire_metric gauge = table[PAGES_FREE], counter = table[REQUESTS_OK];
  struct quire_metric other = counter;
  other.help = "else";
  other.labels = NULL;
  expect_bad((struct quire_metric[]){{"9a", QUIRE_METRIC_GAUGE, "", NULL}}, 1,
             "row 0: the name must be [a-z_][a-z0-9_]*");
  expect_bad((struct quire_metric[]){{"a-b", QUIRE_METRIC_GAUGE, "", NULL}}, 1,
             "row 0: the name must be [a-z_][a-z0-9_]*");
  expect_bad((struct quire_metric[]){{"a", QUIRE_METRIC_GAUGE, NULL, NULL}}, 1, "row 0: the help must be one line");
  expect_bad((struct quire_metric[]){{"a", QUIRE_METRIC_COUNTER, "", NULL}}, 1,
             "row 0: a counter, and only a counter, ends in _total");
  expect_bad((struct quire_metric[]){{"a_total", QUIRE_METRIC_GAUGE, "", NULL}}, 1,
             "row 0: a counter, and only a counter, ends in _total");
  expect_bad((struct quire_metric[]){gauge, gauge}, 2, "row 1: it is there twice");
  expect_bad((struct quire_metric[]){counter, gauge, other}, 3, "row 2: rows of one name must stand together");
  expect_bad((struct quire_metric[]){counter, other}, 2, "row 1: rows of one name must share kind and help");
  expect_bad(NULL, -1, "the table must have 0 to 4096 rows, not -1");
}

static enum quire_status life(void *context, const struct quire_env *env) {
  (void)context;
  struct quire_metrics *metrics = NULL;
  enum quire_status status = quire_metrics_create(env, table, METRICS, &metrics, NULL);
  quire_metrics_destroy(metrics);
  return status;
}

static void out_of_memory(void **state) {
  (void)state;
  assert_int_equal(fail_env_sweep(life, NULL), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_and_writes),
      cmocka_unit_test(bad_tables),
      cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
