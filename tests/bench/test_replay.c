// ctest: timeout=120 labels=quick
/* quire replay against a slow model of a least recently used tree: on a small trace of our own, on random ones, and on
 * the published ones where QUIRE_TEST_TRACES (or the first argument) names their folder. And what it says of traces
 * that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/rng.h"
#include "support/seed.h"

#define PAGE 64
#define BLOCK 512
#define BLOCK_PAGES (BLOCK / PAGE)
#define REQUESTS_MAX 400
#define BLOCKS_MAX 64
#define IDS_MAX 8192

static char dir[64];
static const char *traces_dir;

struct request {
  int input, blocks;
  int ids[BLOCKS_MAX];
};

static struct request requests[REQUESTS_MAX];
static int request_count;

/* --- running --- */

static int run(const char *arguments, char *output, size_t size) {
  char command[1024];
  snprintf(command, sizeof command, "'%s/bin/quire' replay %s 2>&1 </dev/null", QUIRE_BINARY_DIR, arguments);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  const size_t bytes = fread(output, 1, size - 1, pipe);
  output[bytes] = '\0';
  const int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct row {
  long long capacity, ranks, requests, input, hit, inserted, evicted, refused;
  double percent;
};

/* Replays a trace and reads its CSV; returns the number of rows. */
static int replay(const char *path, const char *options, struct row *out, int max) {
  static char output[1 << 16];
  char arguments[512], csv[256], line[512];
  snprintf(arguments, sizeof arguments, "'%s' --verify --out '%s' %s", path, dir, options);
  if (run(arguments, output, sizeof output) != 0) {
    fail_msg("quire replay %s: %s", arguments, output);
  }
  snprintf(csv, sizeof csv, "%s/replay.csv", dir);
  FILE *file = fopen(csv, "r");
  assert_non_null(file);
  int count = 0;
  assert_non_null(fgets(line, sizeof line, file));
  while (count < max && fgets(line, sizeof line, file)) {
    struct row *row = &out[count++];
    assert_int_equal(sscanf(line, "%lld,%lld,%lld,%lld,%lld,%lf,%lld,%lld,%lld", &row->capacity, &row->ranks,
                            &row->requests, &row->input, &row->hit, &row->percent, &row->inserted, &row->evicted,
                            &row->refused),
                     9);
  }
  fclose(file);
  return count;
}

/* --- the slow model --- */

struct page {
  bool in_tree, held;
  int children, parent; /* -1: none */
  long long used;
};

static struct page pages[IDS_MAX * BLOCK_PAGES];

static int page_of(const struct request *request, int index) {
  return request->ids[index / BLOCK_PAGES] * BLOCK_PAGES + index % BLOCK_PAGES;
}

static void evict_oldest(struct row *row) {
  int oldest = -1;
  for (int p = 0; p < IDS_MAX * BLOCK_PAGES; p++) {
    if (pages[p].in_tree && !pages[p].held && pages[p].children == 0 &&
        (oldest < 0 || pages[p].used < pages[oldest].used)) {
      oldest = p;
    }
  }
  assert_true(oldest >= 0);
  pages[oldest].in_tree = false;
  if (pages[oldest].parent >= 0) {
    pages[pages[oldest].parent].children--;
  }
  row->evicted++;
}

static void model_request(const struct request *request, long long capacity, long long *cached, long long clock,
                          struct row *row) {
  const int whole = request->input / PAGE, limit = (request->input - 1) / PAGE;
  const int needed = (request->input + PAGE - 1) / PAGE;
  int matched = 0;
  if (needed > capacity) {
    row->refused++;
    return;
  }
  while (matched < limit && pages[page_of(request, matched)].in_tree) {
    pages[page_of(request, matched++)].held = true;
  }
  for (; capacity - *cached < needed - matched; (*cached)--) {
    evict_oldest(row);
  }
  row->hit += (long long)matched * PAGE;
  for (int i = 0; i < whole; i++) {
    struct page *page = &pages[page_of(request, i)];
    if (!page->in_tree) {
      *page = (struct page){.in_tree = true, .parent = i > 0 ? page_of(request, i - 1) : -1};
      if (i > 0) {
        pages[page->parent].children++;
      }
      row->inserted++;
      ++*cached;
    }
    page->held = false;
    page->used = clock;
  }
}

static struct row model(long long capacity) {
  struct row row = {0};
  long long cached = 0;
  memset(pages, 0, sizeof pages);
  for (int i = 0; i < request_count; i++) {
    model_request(&requests[i], capacity, &cached, i + 1, &row);
    row.input += requests[i].input;
  }
  return row;
}

static void read_trace(const char *path) {
  FILE *file = fopen(path, "r");
  char line[4096];
  assert_non_null(file);
  for (request_count = 0; fgets(line, sizeof line, file);) {
    json_t *root = json_loads(line, 0, NULL);
    assert_non_null(root);
    struct request *request = &requests[request_count++];
    assert_true(request_count <= REQUESTS_MAX);
    request->input = (int)json_integer_value(json_object_get(root, "input_length"));
    const json_t *ids = json_object_get(root, "hash_ids");
    request->blocks = (int)json_array_size(ids);
    for (int b = 0; b < request->blocks; b++) {
      request->ids[b] = (int)json_integer_value(json_array_get(ids, (size_t)b));
    }
    json_decref(root);
  }
  fclose(file);
}

static void compare(const struct row *found, const struct row *wanted) {
  if (found->hit != wanted->hit || found->evicted != wanted->evicted || found->inserted != wanted->inserted ||
      found->refused != wanted->refused || found->input != wanted->input || found->requests != request_count) {
    fail_msg("%lld tokens: hit %lld evicted %lld inserted %lld refused %lld, not %lld %lld %lld %lld", found->capacity,
             found->hit, found->evicted, found->inserted, found->refused, wanted->hit, wanted->evicted,
             wanted->inserted, wanted->refused);
  }
}

static void check_trace(const char *path, const int *capacities, int count) {
  struct row found[8];
  read_trace(path);
  const int rows = replay(path, "", found, 8);
  const struct row most = model(INT64_MAX);
  compare(&found[rows - 1], &most);
  assert_int_equal(found[rows - 1].evicted, 0);
  for (int i = 0; i < count; i++) {
    char option[64];
    snprintf(option, sizeof option, "--cache-tokens %d", capacities[i]);
    assert_int_equal(replay(path, option, found, 8), 1);
    const struct row wanted = model(capacities[i] / PAGE);
    compare(&found[0], &wanted);
  }
  /* shared by ranks, all of it is still found */
  const int shared = replay(path, "--ranks 4", found, 8);
  assert_int_equal(found[shared - 1].hit, most.hit);
}

static void test_small_trace(void **state) {
  (void)state;
  const int capacities[] = {640, 4096, 4160, 8000, 16384, 40000};
  check_trace(QUIRE_SOURCE_DIR "/tests/bench/data/small_trace.jsonl", capacities, 6);
  struct row found[8];
  const int rows = replay(QUIRE_SOURCE_DIR "/tests/bench/data/small_trace.jsonl", "", found, 8);
  assert_int_equal(found[rows - 1].requests, 80);
  assert_int_equal(found[rows - 1].hit, 106944);
}

/* Conversations that go on, blocks all share, repeats; lengths around pages and blocks. */
static void write_random(const char *path, uint64_t *rng) {
  static struct request made[REQUESTS_MAX];
  static const int edges[] = {1, 63, 64, 65, 511, 512, 513, 576};
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  int next = 1;
  for (int i = 0; i < 120; i++) {
    struct request *request = &made[i];
    *request = (struct request){.blocks = 0};
    if (i > 0 && quire_splitmix64_below(rng, 3) > 0) {
      *request = made[quire_splitmix64_below(rng, (uint64_t)i)];
      request->blocks = request->input / BLOCK; /* what is whole stays; a tail becomes another block */
      request->input = request->blocks * BLOCK;
    }
    request->input += quire_splitmix64_below(rng, 2) ? edges[quire_splitmix64_below(rng, 8)]
                                                     : (int)quire_splitmix64_below(rng, 2500) + 1;
    const int blocks = (request->input + BLOCK - 1) / BLOCK;
    assert_true(blocks <= BLOCKS_MAX);
    while (request->blocks < blocks) {
      request->ids[request->blocks] = request->blocks == 0 && quire_splitmix64_below(rng, 2) ? 0 : next++;
      request->blocks++;
    }
    if (request->blocks * BLOCK > 24 * BLOCK) { /* not too long: start again */
      *request = (struct request){.input = 64, .blocks = 1, .ids = {next++}};
    }
    fprintf(file, "{\"hash_ids\":[");
    for (int b = 0; b < request->blocks; b++) {
      fprintf(file, "%s%d", b > 0 ? "," : "", request->ids[b]);
    }
    fprintf(file, "], \"output_length\": 1, \"input_length\": %d, \"timestamp\": %d}\n", request->input, i);
  }
  assert_true(next < IDS_MAX);
  fclose(file);
}

static void test_random_traces(void **state) {
  (void)state;
  uint64_t rng = test_seed("test_replay");
  char path[128];
  snprintf(path, sizeof path, "%s/trace.jsonl", dir);
  for (int round = 0; round < 4; round++) {
    write_random(path, &rng);
    const int capacities[] = {64 + (int)quire_splitmix64_below(&rng, 4000), 12000, 20000};
    check_trace(path, capacities, 3);
  }
  unlink(path);
}

static void test_bad_traces(void **state) {
  (void)state;
  static const struct {
    const char *text, *names;
  } cases[] = {
      {"", "no request"},
      {"x\n", "line 1"},
      {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}\n[]\n", "line 2"},
      {"{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1]}\n", "512"},
      {"{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": [1]}\n", "512"},
      {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}\n", "lacks"},
      {"{\"timestamp\": 0, \"timestamp\": 5, \"output_length\": 1, \"hash_ids\": [1]}\n", "twice"},
      {"{\"timestamp\": 0, \"input_length\": 99999999999999999999, \"output_length\": 1, \"hash_ids\": [1]}\n",
       "bounds"},
      {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [-1]}\n", "bounds"},
      {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1}\n", "end"},
      {"{\"timestamp\": 0, \"input_length\": 05, \"output_length\": 1, \"hash_ids\": [1]}\n", "bounds"},
      {"{\"timestamp\": 0, \"user\": 5}\n", "none of"},
  };
  static char output[1 << 16];
  char path[128], arguments[256];
  snprintf(path, sizeof path, "%s/bad.jsonl", dir);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(cases[i].text, file);
    fclose(file);
    snprintf(arguments, sizeof arguments, "'%s'", path);
    assert_int_equal(run(arguments, output, sizeof output), 2);
    if (!strstr(output, cases[i].names)) {
      fail_msg("%s does not say %s: %s", cases[i].text, cases[i].names, output);
    }
  }
  unlink(path);
  assert_int_equal(run("/nonexistent/trace", output, sizeof output), 2);
  assert_int_equal(run("", output, sizeof output), 2);
  assert_non_null(strstr(output, "name a trace"));
  snprintf(arguments, sizeof arguments, "'%s/tests/bench/data/small_trace.jsonl' --cache-tokens 10", QUIRE_SOURCE_DIR);
  assert_int_equal(run(arguments, output, sizeof output), 2);
}

/* The figures that anybody should get from the published files. */
static void test_published_traces(void **state) {
  (void)state;
  static const struct {
    const char *name, *unbounded;
    double least, most; /* percent at 3M tokens */
  } cases[] = {{"conversation_trace.jsonl", "37.3593", 13.0, 14.5}, {"synthetic_trace.jsonl", "65.1141", 30.5, 32.0}};
  if (!traces_dir) {
    print_message("skipped: QUIRE_TEST_TRACES does not name the folder of the published traces\n");
    skip();
  }
  for (size_t i = 0; i < 2; i++) {
    char path[512], percent[16];
    struct row found[8];
    snprintf(path, sizeof path, "%s/%s", traces_dir, cases[i].name);
    const int rows = replay(path, "", found, 8);
    snprintf(percent, sizeof percent, "%.4f", found[rows - 1].percent);
    assert_string_equal(percent, cases[i].unbounded);
    for (int r = 0; r < rows; r++) {
      assert_true(found[r].hit <= found[rows - 1].hit);
      if (found[r].capacity == 3000000) {
        print_message("%s: %.4f %% unbounded, %.4f %% at 3M tokens\n", cases[i].name, found[rows - 1].percent,
                      found[r].percent);
        assert_true(found[r].percent > cases[i].least && found[r].percent < cases[i].most);
      }
    }
  }
}

static int setup(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/quire-replay-XXXXXX");
  return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  char path[128];
  static const char *const names[] = {"replay.csv", "replay.svg"};
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    unlink(path);
  }
  return rmdir(dir);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small_trace),
      cmocka_unit_test(test_random_traces),
      cmocka_unit_test(test_bad_traces),
      cmocka_unit_test(test_published_traces),
  };
  traces_dir = argc > 1 ? argv[1] : getenv("QUIRE_TEST_TRACES");
  return cmocka_run_group_tests(tests, setup, teardown);
}
