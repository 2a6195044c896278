// ctest: timeout=180 labels=quick
/* The load client against a scripted server (sse_server.py): every way an answer can end is told apart, what is counted
 * is what was sent, and the files are there. And against quire's own server. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#define OUTPUT_BYTES (1 << 16)

static char dir[64];
static char output[OUTPUT_BYTES];
static int port;
static int server_input;
static pid_t server;

static int bench(const char *mode, const char *options) {
  char command[1024];
  snprintf(command, sizeof command, "'%s/bin/quire' bench serve http://127.0.0.1:%d/%s --out '%s' %s 2>&1 </dev/null",
           QUIRE_BINARY_DIR, port, mode, dir, options);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  const size_t bytes = fread(output, 1, sizeof output - 1, pipe);
  output[bytes] = '\0';
  const int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static char *read_file(const char *name) {
  static char text[1 << 20];
  char path[128];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *file = fopen(path, "r");
  if (!file) {
    fail_msg("%s is missing: %s", path, output);
  }
  const size_t bytes = fread(text, 1, sizeof text - 1, file);
  text[bytes] = '\0';
  fclose(file);
  return text;
}

/* The first number of a line of summary.csv, or the column'th. */
static double figure(const char *name, int column) {
  char start[64];
  snprintf(start, sizeof start, "\n%s,", name);
  const char *at = strstr(read_file("summary.csv"), start);
  if (!at) {
    fail_msg("no %s in summary.csv", name);
  }
  at += strlen(start);
  for (int i = 0; i < column; i++) {
    at = strchr(at, ',') + 1;
  }
  return strtod(at, NULL);
}

static void expect(const char *name, int column, double value) {
  const double found = figure(name, column);
  if (found != value) {
    fail_msg("%s is %g, not %g: %s", name, found, value, output);
  }
}

/* What the server saw. */
static json_t *seen(void) {
  char command[128];
  static char text[1 << 20];
  snprintf(command, sizeof command,
           "python3 -c \"import urllib.request as u;print(u.urlopen('http://127.0.0.1:%d/seen').read().decode())\"",
           port);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  const size_t bytes = fread(text, 1, sizeof text - 1, pipe);
  assert_int_equal(pclose(pipe), 0);
  json_t *root = json_loadb(text, bytes, 0, NULL);
  assert_non_null(root);
  return root;
}

static json_int_t seen_int(const char *key) {
  json_t *root = seen();
  const json_int_t value = json_integer_value(json_object_get(root, key));
  json_decref(root);
  return value;
}

static void test_good_answers(void **state) {
  (void)state;
  static const struct {
    const char *mode, *endpoint;
    int prompt, cached;
  } cases[] = {
      {"ok", "chat", 30, 3},    {"ok", "completions", 30, 3},        {"ok", "generate", 30, 0},
      {"plain", "chat", 30, 3}, {"forgetful", "completions", 30, 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char options[256];
    snprintf(options, sizeof options,
             "-n 30 --concurrency 5 --input-tokens 20 --output-tokens 7 --prefixes 2 --prefix-tokens 10 --endpoint %s "
             "--strict",
             cases[i].endpoint);
    if (bench(cases[i].mode, options) != 0) {
      fail_msg("%s: %s", cases[i].mode, output);
    }
    expect("outcome_ok", 0, 30);
    expect("ttft_ms", 0, 30);
    expect("itl_ms", 0, 30 * 6);
    expect("e2e_ms", 0, 30);
    expect("output_tokens", 0, 30 * 7);
    expect("input_tokens", 0, 30 * cases[i].prompt);
    expect("cached_tokens", 0, 30 * cases[i].cached);
    assert_true(figure("running_max", 0) <= 5);
    assert_true(figure("e2e_ms", 1) >= figure("ttft_ms", 1));
    assert_true(figure("ttft_ms", 2) <= figure("ttft_ms", 5) && figure("ttft_ms", 5) <= figure("ttft_ms", 6));
  }
}

static void test_bad_answers(void **state) {
  (void)state;
  static const struct {
    const char *mode, *outcome, *note;
  } cases[] = {
      {"busy", "http_429", "queue is full"},
      {"wrong", "http_4xx", "no such thing"},
      {"broken", "http_5xx", ""},
      {"error", "stream_error", "rank 1 failed"},
      {"truncated", "truncated", ""},
      {"reset", "reset", "closed"},
      {"badchunk", "protocol", "hexadecimal"},
      {"nohttp", "protocol", "no HTTP"},
      {"noevents", "protocol", "no event stream"},
      {"hang", "timeout", "--timeout-s"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char name[64];
    assert_int_equal(
        bench(cases[i].mode, "-n 6 --warmup 0 --concurrency 3 --endpoint completions --timeout-s 1 --strict"), 1);
    snprintf(name, sizeof name, "outcome_%s", cases[i].outcome);
    expect(name, 0, 6);
    expect("outcome_ok", 0, 0);
    if (!strstr(output, cases[i].note)) {
      fail_msg("%s does not say %s: %s", cases[i].mode, cases[i].note, output);
    }
  }
  assert_int_equal(bench("broken", "-n 6"), 2); /* its warm-up fails first */
  assert_non_null(strstr(output, "warm up"));
}

/* The plan is the seed's: the same requests again, others with another seed; times are as random as asked for. */
static void test_arrivals(void **state) {
  (void)state;
  static char first[1 << 20];
  const char *options =
      "-n 300 --rate 400 --concurrency 0 --warmup 0 --range-ratio 0.2 --output-tokens 3 --input-tokens "
      "40 --endpoint completions --seed 5";
  assert_int_equal(bench("ok", options), 0);
  expect("outcome_ok", 0, 300);
  expect("late_ms", 0, 300);
  assert_true(figure("seconds", 1) > 0.45); /* 300 at 400 a second */
  int planned[2][300], lines = 0;
  double last = 0;
  strcpy(first, read_file("requests.csv"));
  for (const char *line = strchr(first, '\n'); line && line[1]; line = strchr(line + 1, '\n'), lines++) {
    double at;
    assert_true(lines < 300);
    assert_int_equal(sscanf(line, "\n%*d,%*[a-z_],%*d,%lf,%*f,%*f,%*f,%d", &at, &planned[0][lines]), 2);
    assert_true(at >= last && planned[0][lines] >= 8 && planned[0][lines] <= 40);
    last = at;
  }
  assert_int_equal(lines, 300);
  assert_true(last > 450 && last < 1200);
  for (int seed = 5; seed <= 6; seed++) {
    char again[256];
    snprintf(again, sizeof again,
             "-n 300 --warmup 0 --range-ratio 0.2 --output-tokens 3 --input-tokens 40 --seed %d "
             "--endpoint completions",
             seed);
    assert_int_equal(bench("ok", again), 0);
    lines = 0;
    for (const char *line = strchr(read_file("requests.csv"), '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
      assert_int_equal(sscanf(line, "\n%*d,%*[a-z_],%*d,%*f,%*f,%*f,%*f,%d", &planned[1][lines++]), 1);
    }
    assert_int_equal(memcmp(planned[0], planned[1], sizeof planned[0]) == 0, seed == 5);
  }
}

static void test_disconnects(void **state) {
  (void)state;
  assert_int_equal(bench("slow", "-n 120 --concurrency 30 --disconnect 0.5 --output-tokens 6 --strict"), 0);
  const double cut = figure("outcome_cut", 0);
  assert_true(cut > 30 && cut < 90);
  expect("outcome_ok", 0, 120 - cut);
  for (int i = 0; i < 50 && seen_int("running") > 0; i++) {
    usleep(100000);
  }
  assert_int_equal(seen_int("running"), 0);
}

static void test_what_is_sent(void **state) {
  (void)state;
  const json_int_t connections = seen_int("connections"), requests = seen_int("requests");
  assert_int_equal(bench("ok", "-n 20 --concurrency 1 --warmup 0 --endpoint completions --api-key secret --vocab 20 "
                               "--input-tokens 9 --output-tokens 4 --temperature 0.5 --seed 3"),
                   0);
  json_t *root = seen();
  const json_t *body = json_array_get(json_object_get(root, "bodies"), 0);
  assert_int_equal(json_integer_value(json_object_get(root, "requests")), requests + 20);
  /* one for the requests, one for the model's name, and those of seen() itself */
  assert_true(json_integer_value(json_object_get(root, "connections")) <= connections + 5);
  assert_string_equal(json_string_value(json_object_get(root, "key")), "Bearer secret");
  assert_string_equal(json_string_value(json_object_get(body, "model")), "a \"model\"");
  assert_int_equal(json_integer_value(json_object_get(body, "max_tokens")), 4);
  assert_true(json_is_true(json_object_get(body, "stream")) && json_is_true(json_object_get(body, "ignore_eos")));
  assert_true(json_is_true(json_object_get(json_object_get(body, "stream_options"), "include_usage")));
  const json_t *prompt = json_object_get(body, "prompt");
  assert_int_equal(json_array_size(prompt), 9);
  for (size_t i = 0; i < 9; i++) {
    const json_int_t id = json_integer_value(json_array_get(prompt, i));
    assert_true(id >= 16 && id < 20);
  }
  json_decref(root);
  const char *page = read_file("report.html");
  assert_memory_equal(page, "<!doctype html>", 15);
  assert_true(strstr(page, "<svg") && strstr(page, "a \\&quot;model\\&quot;") && !strstr(page, "<script"));
}

/* quire's server on a free port; its output stays open, so that it never writes to a reader that is gone. */
static pid_t start_quire(FILE **says_out, int *port_out) {
  int out[2];
  char line[512];
  assert_int_equal(pipe(out), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    close(out[0]);
    execl(QUIRE_BINARY_DIR "/bin/quire", "quire", "serve", "--model", QUIRE_SOURCE_DIR "/models/quire-mini", "--port",
          "0", "--ctx-tokens", "512", "--max-running", "8", (char *)NULL);
    _exit(127);
  }
  close(out[1]);
  *says_out = fdopen(out[0], "r");
  assert_non_null(*says_out);
  *port_out = 0;
  while (*port_out == 0 && fgets(line, sizeof line, *says_out)) {
    const char *at = strstr(line, "http://127.0.0.1:");
    *port_out = at ? atoi(at + strlen("http://127.0.0.1:")) : 0;
  }
  assert_true(*port_out > 0);
  return child;
}

static void test_quire_serve(void **state) {
  (void)state;
  static const char *const endpoints[] = {"completions", "generate", "chat"};
  const int scripted = port;
  FILE *says = NULL;
  int status = 0;
  const pid_t child = start_quire(&says, &port);
  for (int i = 0; i < 3; i++) {
    char options[256];
    snprintf(options, sizeof options,
             "-n 12 --concurrency 6 --input-tokens 10 --output-tokens 5 --prefixes 1 --prefix-tokens 140 --strict "
             "--endpoint %s",
             endpoints[i]);
    if (bench("", options) != 0) {
      fail_msg("%s: %s", endpoints[i], output);
    }
    expect("outcome_ok", 0, 12);
    expect("output_tokens", 0, 12 * 5);
    if (i < 2) {
      expect("input_tokens", 0, 12 * 150);
    }
    assert_true(figure("cached_tokens", 0) > 0 && figure("cached_tokens", 0) < figure("input_tokens", 0));
  }
  assert_int_equal(bench("", "-n 30 --concurrency 10 --disconnect 0.5 --input-tokens 20 --output-tokens 6 --strict"),
                   0);
  assert_true(figure("outcome_cut", 0) > 5);
  assert_int_equal(bench("", "-n 5 --warmup 0 --endpoint completions --input-tokens 600"), 0);
  expect("outcome_http_4xx", 0, 5); /* longer than a request may be */
  port = scripted;
  assert_int_equal(kill(child, SIGTERM), 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  fclose(says);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_refusals(void **state) {
  (void)state;
  char command[512];
  static const struct {
    const char *arguments, *names;
  } cases[] = {
      {"", "http://HOST:PORT"},
      {"https://localhost", "http://HOST:PORT"},
      {"http://", "host"},
      {"http://localhost:123456789", "port"},
      {"http://127.0.0.1:1 --rate 0 --concurrency 0", "--concurrency"},
      {"http://127.0.0.1:1 --requests 0", "requests"},
      {"http://127.0.0.1:1", "does not answer"},
      {"http://127.0.0.1:1 --served-model m -n 3", "warm up failed: connect"},
      {"http://no-such-host.invalid:80", "no-such-host.invalid"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    snprintf(command, sizeof command, "'%s/bin/quire' bench serve %s 2>&1 </dev/null", QUIRE_BINARY_DIR,
             cases[i].arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
    assert_int_equal(WEXITSTATUS(pclose(pipe)), 2);
    if (!strstr(output, cases[i].names)) {
      fail_msg("%s does not say %s: %s", cases[i].arguments, cases[i].names, output);
    }
  }
}

/* --- */

static int setup(void **state) {
  (void)state;
  int in[2], out[2];
  snprintf(dir, sizeof dir, "/tmp/quire-serve-XXXXXX");
  if (!mkdtemp(dir) || pipe(in) != 0 || pipe(out) != 0) {
    return -1;
  }
  server = fork();
  if (server == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    close(in[1]);
    close(out[0]);
    execlp("python3", "python3", "-B", QUIRE_SOURCE_DIR "/tests/bench/sse_server.py", (char *)NULL);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  server_input = in[1];
  FILE *says = fdopen(out[0], "r");
  const int got = says ? fscanf(says, "%d", &port) : 0;
  if (says) {
    fclose(says);
  }
  return got == 1 ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  static const char *const names[] = {"requests.csv", "summary.csv", "report.html"};
  char path[128];
  close(server_input);
  waitpid(server, NULL, 0);
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    unlink(path);
  }
  return rmdir(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_answers), cmocka_unit_test(test_bad_answers),  cmocka_unit_test(test_arrivals),
      cmocka_unit_test(test_disconnects),  cmocka_unit_test(test_what_is_sent), cmocka_unit_test(test_quire_serve),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
