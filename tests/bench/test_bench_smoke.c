// ctest: timeout=240 labels=quick
/* Every bench runs in its smallest size, prints its ceiling, and leaves a table and a plot behind. The figures are not
 * looked at: they belong to a quiet machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/tiny_model.h"

#define OUTPUT_BYTES (1 << 18)

static char model_dir[64], out_dir[64];
static char output[OUTPUT_BYTES];

static int bench(const char *arguments) {
  char command[1024];
  snprintf(command, sizeof command, "QUIRE_TINY=true '%s/bin/quire' bench %s --repeats 1 --out '%s' 2>&1 </dev/null",
           QUIRE_BINARY_DIR, arguments, out_dir);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t bytes = fread(output, 1, sizeof output - 1, pipe);
  output[bytes] = '\0';
  int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect_file(const char *name, const char *ending, const char *begins) {
  char path[256], start[64] = {0};
  snprintf(path, sizeof path, "%s/%s.%s", out_dir, name, ending);
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    fail_msg("%s is missing", path);
    return;
  }
  assert_true(fread(start, 1, sizeof start - 1, file) > strlen(begins));
  assert_memory_equal(start, begins, strlen(begins));
  fclose(file);
}

/* name, options, what its output must name */
static const struct {
  const char *name, *options, *ceiling;
} rows[] = {
    {"gemm", "--only 'q_a 128x256 bf16 M=1 t=1'", "of cold read"},
    {"gemm", "--only 'q_a 128x256 bf16 M=64 t=1'", "of dot peak"},
    {"topk", "", "x the time of max pass"},
    {"sample", "", "x the time of read"},
    {"attention", "--only t=1", "of dot peak"},
    {"indexer", "", "of dot peak"},
    {"layer", "", "of sum of ceilings"},
    {"view", "--model %M --trace %O/gather.json", "of copy past the caches"},
    {"view", "", "of own pages"},
    {"prefill", "--model %M", "of products"},
    {"prefill", "--model %M --ranks 2", "x the time of replicated"},
    {"decode", "--model %M --decode-tokens 4", "of weight read"},
    {"decode", "--model %M --decode-tokens 4 --ranks 2", "of the weight read; of a read of both: replicated"},
    {"capacity", "--model %M --budget 48M", "of twice one rank's"},
    {"tree", "", "of compare"},
    {"ttft", "--model %M", "chunks more than alone"},
    {"http", "--model %M", "of bare epoll loop"},
    {"controller", "", "of copy of records"},
};

static void expand(const char *text, char *out) {
  for (; *text != '\0'; text++) {
    if (*text == '%' && (text[1] == 'M' || text[1] == 'O')) {
      out += sprintf(out, "%s", text[1] == 'M' ? model_dir : out_dir);
      text++;
    } else {
      *out++ = *text;
    }
  }
  *out = '\0';
}

static void each_bench_prints_its_ceiling(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char options[256], arguments[320];
    expand(rows[i].options, options);
    snprintf(arguments, sizeof arguments, "%s %s", rows[i].name, options);
    int code = bench(arguments);
    if (code != 0 || strstr(output, rows[i].ceiling) == NULL) {
      fail_msg("quire bench %s: code %d, should name \"%s\":\n%s", arguments, code, rows[i].ceiling, output);
    }
    expect_file(rows[i].name, "csv", "bench,case,side,repeat,value,unit\n");
    expect_file(rows[i].name, "svg", "<svg xmlns");
  }
  expect_file("gather", "json", "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
}

static void a_missed_bar_is_an_error_only_when_asked(void **state) {
  (void)state;
  assert_int_equal(bench("capacity --strict"), 0); /* a table without bars */
  assert_int_equal(bench("topk"), 0);
  bool missed = strstr(output, "SHORT") != NULL;
  assert_int_equal(missed, strstr(output, "bars are not met") != NULL);
}

static void refusals(void **state) {
  (void)state;
  static const struct {
    const char *arguments, *names;
  } refused[] = {
      {"flight", "none"},
      {"prefill", "--model"},
      {"topk --repeats 0", "repeats"},
      {"topk --debug-shared-kv", "debugging"},
      {"view --poison", "debugging"},
      {"topk --only nothing", "no case of bench topk has \"nothing\" in its name"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    int code = bench(refused[i].arguments);
    if (code != 2 || (i > 0 && strstr(output, refused[i].names) == NULL)) {
      fail_msg("quire bench %s: code %d: %s", refused[i].arguments, code, output);
    }
  }
}

/* Else they take a core from what is measured after the yardstick. libgomp says how long they spin. */
static void threads_of_the_yardstick_sleep(void **state) {
  (void)state;
  assert_int_equal(setenv("OMP_DISPLAY_ENV", "verbose", 1), 0);
  assert_int_equal(unsetenv("OMP_WAIT_POLICY"), 0);
  assert_int_equal(bench("gemm --only 'q_a 128x256 bf16 M=64 t=1'"), 0);
  if (strstr(output, "GOMP_SPINCOUNT") == NULL) {
    print_message("not tested: no oneDNN whose threads are libgomp's\n");
  } else {
    assert_non_null(strstr(output, "GOMP_SPINCOUNT = '0'"));
  }
  assert_int_equal(unsetenv("OMP_DISPLAY_ENV"), 0);
}

/* A build that checks itself measures its checks; --tiny, as above, only sees that a bench runs. */
static void a_build_that_checks_itself_is_refused(void **state) {
  (void)state;
#if defined(QUIRE_DEBUG_ASSERTS) || defined(QUIRE_EXPENSIVE_ASSERTS) || defined(QUIRE_SANITIZED)
  const char *names = "debugging assertions or sanitizers";
#else
  const char *names = "no case of bench topk has \"nothing\" in its name";
#endif
  assert_int_equal(bench("topk --only nothing --no-tiny"), 2);
  assert_non_null(strstr(output, names));
}

static int setup(void **state) {
  (void)state;
  snprintf(model_dir, sizeof model_dir, "/tmp/quire-bench-XXXXXX");
  snprintf(out_dir, sizeof out_dir, "/tmp/quire-bench-XXXXXX");
  if (mkdtemp(model_dir) == NULL || mkdtemp(out_dir) == NULL) {
    return 1;
  }
  struct quire_tiny_options options = quire_tiny_defaults();
  options.dtype = QUIRE_TINY_FP8;
  options.layers = 2;
  char error[QUIRE_TINY_ERROR_BYTES];
  return quire_tiny_write(model_dir, &options, error) ? 0 : 1;
}

static int teardown(void **state) {
  (void)state;
  char command[300];
  snprintf(command, sizeof command, "rm -rf '%s' '%s'", model_dir, out_dir);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_bench_prints_its_ceiling),
      cmocka_unit_test(a_missed_bar_is_an_error_only_when_asked),
      cmocka_unit_test(refusals),
      cmocka_unit_test(threads_of_the_yardstick_sleep),
      cmocka_unit_test(a_build_that_checks_itself_is_refused),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
