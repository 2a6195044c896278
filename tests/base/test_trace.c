/* The trace: what is kept, what the ring forgets, writers side by side, and the text it writes. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/trace.h"
#include "support/fail_env.h"

#define THREADS 4
#define EACH 1000

static uint64_t now;

static uint64_t hand_clock(void *context) {
  (void)context;
  return now;
}

static struct quire_env clock_env(void) {
  struct quire_env env = *quire_env_default();
  env.now_ns = hand_clock;
  return env;
}

static void off_is_a_null_pointer(void **state) {
  (void)state;
  assert_int_equal(quire_trace_begin(NULL), 0);
  quire_trace_end(NULL, 0, (struct quire_trace_span){QUIRE_TRACE_LAYER, 0, 0});
  quire_trace_destroy(NULL);
}

static void the_ring_forgets_the_oldest(void **state) {
  (void)state;
  struct quire_env env = clock_env();
  struct quire_trace *trace = NULL;
  assert_int_equal(quire_trace_create(&env, 3, &trace, NULL), QUIRE_OK);
  assert_int_equal(quire_trace_count(trace), 0);
  for (int32_t i = 0; i < 5; i++) {
    now = (uint64_t)i * 10;
    uint64_t begin = quire_trace_begin(trace);
    now += 4;
    quire_trace_end(trace, begin, (struct quire_trace_span){QUIRE_TRACE_GATHER, 1, i});
    assert_int_equal(quire_trace_count(trace), i < 3 ? i + 1 : 3);
  }
  for (int32_t i = 0; i < 3; i++) {
    struct quire_trace_event e = quire_trace_at(trace, (size_t)i);
    assert_int_equal(e.span.layer, i + 2);
    assert_int_equal(e.span.kind, QUIRE_TRACE_GATHER);
    assert_int_equal(e.span.rank, 1);
    assert_int_equal(e.begin_ns, (i + 2) * 10);
    assert_int_equal(e.end_ns, (i + 2) * 10 + 4);
  }
  quire_trace_reset(trace);
  assert_int_equal(quire_trace_count(trace), 0);
  quire_trace_destroy(trace);
}

static void *write_spans(void *context) {
  struct quire_trace *trace = context;
  for (int32_t i = 0; i < EACH; i++) {
    quire_trace_end(trace, quire_trace_begin(trace), (struct quire_trace_span){QUIRE_TRACE_LAYER, 0, i});
  }
  return NULL;
}

static void writers_take_cells_of_their_own(void **state) {
  (void)state;
  struct quire_trace *trace = NULL;
  assert_int_equal(quire_trace_create(quire_env_default(), THREADS * EACH, &trace, NULL), QUIRE_OK);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, write_spans, trace), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  int seen[EACH] = {0};
  assert_int_equal(quire_trace_count(trace), THREADS * EACH);
  for (size_t i = 0; i < THREADS * EACH; i++) {
    struct quire_trace_event e = quire_trace_at(trace, i);
    assert_true(e.end_ns >= e.begin_ns);
    seen[e.span.layer]++;
  }
  for (int i = 0; i < EACH; i++) {
    assert_int_equal(seen[i], THREADS);
  }
  quire_trace_destroy(trace);
}

static void the_text(void **state) {
  (void)state;
  struct quire_env env = clock_env();
  struct quire_trace *trace = NULL;
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  assert_int_equal(quire_trace_create(&env, 8, &trace, NULL), QUIRE_OK);
  now = 5000;
  uint64_t begin = quire_trace_begin(trace);
  now = 6500;
  quire_trace_end(trace, begin, (struct quire_trace_span){QUIRE_TRACE_GATHER, 0, 3});
  now = 9000;
  quire_trace_end(trace, begin, (struct quire_trace_span){QUIRE_TRACE_LAYER, 1, 2});
  quire_trace_write(trace, &text);
  assert_string_equal(quire_strbuf_text(&text),
                      "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
                      "{\"name\":\"gather 3\",\"cat\":\"gather\",\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":0.000,"
                      "\"dur\":1.500},\n"
                      "{\"name\":\"layer 2\",\"cat\":\"layer\",\"ph\":\"X\",\"pid\":1,\"tid\":0,\"ts\":0.000,"
                      "\"dur\":4.000}\n]}\n");
  quire_strbuf_fini(&text);
  quire_trace_destroy(trace);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  (void)context;
  struct quire_trace *trace = NULL;
  enum quire_status status = quire_trace_create(env, 16, &trace, NULL);
  quire_trace_destroy(trace);
  return status;
}

static void memory_that_runs_out(void **state) {
  (void)state;
  fail_env_sweep(life, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(off_is_a_null_pointer),
      cmocka_unit_test(the_ring_forgets_the_oldest),
      cmocka_unit_test(writers_take_cells_of_their_own),
      cmocka_unit_test(the_text),
      cmocka_unit_test(memory_that_runs_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
