/* quire replay: a published trace of requests through the real pool and tree, one request at a time, as fast as they
 * go, without a model. A request is matched, reserved, committed and released, as the engine would do it; what it finds
 * in the tree is its hit. Answers the hit rate of tokens for one cache size or for a row of them, of which the last is
 * large enough for the whole trace: the most that any order of eviction could reach.
 *
 * Rates count input tokens, in whole pages and at most length - 1 of a request, as serving does. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/option.h"
#include "bench/bench_plot.h"
#include "bench/trace_file.h"
#include "cache/cache.h"
#include "cli/cli.h"

#define SIZES_MAX 8

static const int64_t sizes[] = {100000, 300000, 1000000, 3000000, 10000000, 30000000};

struct replay_options {
  const char *out;
  bool verify;
};

struct outcome {
  int64_t capacity; /* tokens */
  int64_t hit_tokens, evicted, inserted;
  int64_t refused; /* requests longer than the cache */
  double seconds;  /* of the requests */
  double create_seconds;
};

struct replay {
  struct cli_worker worker;
  struct replay_options options;
  const struct quire_env *env;
  struct trace_file trace;
  int32_t *tokens;   /* [trace.longest] */
  int64_t unbounded; /* pages that hold the whole trace */
  struct outcome outcomes[SIZES_MAX];
  int count;
};

#define AT(field) offsetof(struct replay_options, field)

static const struct quire_option rows[] = {
    {.name = "out",
     .short_name = 'o',
     .type = QUIRE_OPTION_STRING,
     .offset = AT(out),
     .metavar = "DIR",
     .help = "folder for replay.csv and replay.svg, hit rates over cache sizes"},
    {.name = "verify",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(verify),
     .help = "recompute the cache's laws after each run"},
};

/* --- one run --- */

static enum quire_status open_cache(const struct replay *r, int64_t pages, struct quire_cache **cache_out,
                                    struct quire_error *error_out) {
  struct quire_parts parts;
  const bool built = quire_parts_build(&parts, QUIRE_KV_FP8, QUIRE_PAGE_TOKENS, 1, NULL, 0);
  QUIRE_ASSERT(built);
  const int32_t ranks = (int32_t)r->worker.ranks;
  struct quire_cache_config config = {
      .geometry = {.page_tokens = QUIRE_PAGE_TOKENS, .ranks = ranks, .storage_ranks = ranks, .pages = (int32_t)pages},
      .parts = &parts,
      .requests_max = 1,
      .request_pages_max = r->trace.longest / QUIRE_PAGE_TOKENS + 1,
  };
  return quire_cache_create(r->env, &config, cache_out, error_out);
}

static enum quire_status run_request(struct replay *r, struct quire_cache *cache, const struct trace_request *request,
                                     struct outcome *outcome, struct quire_error *error_out) {
  quire_cache_request handle;
  trace_file_tokens(&r->trace, request, r->tokens);
  struct quire_cache_fill fill = {.tokens = r->tokens, .tokens_count = request->input};
  enum quire_status status = quire_cache_request_begin(cache, &fill, &handle, error_out);
  if (status == QUIRE_ERR_REQUEST) { /* longer than the whole cache: computed without it */
    outcome->refused++;
    return QUIRE_OK;
  }
  if (status == QUIRE_OK) {
    outcome->hit_tokens += quire_cache_request_tokens(cache, handle);
    status = quire_cache_request_commit(cache, handle, request->input, r->tokens, error_out);
    quire_cache_request_release(cache, handle);
  }
  return status;
}

static enum quire_status run_size(struct replay *r, int64_t pages, struct outcome *outcome_out,
                                  struct quire_error *error_out) {
  struct quire_cache *cache = NULL;
  struct outcome outcome = {.capacity = pages * QUIRE_PAGE_TOKENS};
  const uint64_t started = cli_now_ns();
  enum quire_status status = open_cache(r, pages, &cache, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  const uint64_t created = cli_now_ns();
  for (int64_t i = 0; status == QUIRE_OK && i < r->trace.count; i++) {
    status = run_request(r, cache, &r->trace.requests[i], &outcome, error_out);
  }
  outcome.seconds = (double)(cli_now_ns() - created) * 1e-9;
  outcome.create_seconds = (double)(created - started) * 1e-9;
  struct quire_cache_stats stats;
  quire_cache_stats(cache, &stats);
  outcome.evicted = stats.evicted_pages;
  outcome.inserted = stats.inserted_pages;
  if (status == QUIRE_OK && r->options.verify && !quire_cache_check(cache, error_out)) {
    status = QUIRE_ERR_STATE;
  }
  quire_cache_destroy(cache);
  *outcome_out = outcome;
  return status;
}

/* --- what is shown --- */

static double percent(const struct replay *r, const struct outcome *outcome) {
  return 100.0 * (double)outcome->hit_tokens / (double)r->trace.input_tokens;
}

static void print_outcome(const struct replay *r, const struct outcome *outcome) {
  char size[16];
  const bool all = outcome->capacity == r->unbounded * QUIRE_PAGE_TOKENS;
  printf("%-10s %10lld %13lld %9.4f %11lld %11lld %8lld %9.3f %9.3f\n",
         all ? "unbounded" : bench_plot_number((double)outcome->capacity, size),
         (long long)outcome->capacity / QUIRE_PAGE_TOKENS, (long long)outcome->hit_tokens, percent(r, outcome),
         (long long)outcome->inserted, (long long)outcome->evicted, (long long)outcome->refused,
         outcome->create_seconds, outcome->seconds);
  fflush(stdout);
}

static enum quire_status open_out(const struct replay *r, const char *name, FILE **file_out,
                                  struct quire_error *error_out) {
  char path[4096];
  const int length = snprintf(path, sizeof path, "%s/%s", r->options.out, name);
  *file_out = length < (int)sizeof path ? fopen(path, "w") : NULL;
  return *file_out ? QUIRE_OK
                   : quire_error_set(error_out, QUIRE_ERR_IO, "--out", "cannot write %s in %s: %s", name,
                                     r->options.out, strerror(errno));
}

static enum quire_status close_out(const struct replay *r, FILE *file, struct quire_error *error_out) {
  const bool bad = ferror(file) != 0;
  return fclose(file) == 0 && !bad ? QUIRE_OK
                                   : quire_error_set(error_out, QUIRE_ERR_IO, "--out",
                                                     "cannot write all of %s; is the disk full?", r->options.out);
}

static enum quire_status write_csv(const struct replay *r, struct quire_error *error_out) {
  FILE *file = NULL;
  enum quire_status status = open_out(r, "replay.csv", &file, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  fprintf(file, "capacity_tokens,ranks,requests,input_tokens,hit_tokens,hit_percent,inserted_pages,evicted_pages,"
                "refused_requests,create_seconds,replay_seconds\n");
  for (int i = 0; i < r->count; i++) {
    const struct outcome *o = &r->outcomes[i];
    fprintf(file, "%lld,%lld,%lld,%lld,%lld,%.6f,%lld,%lld,%lld,%.6f,%.6f\n", (long long)o->capacity,
            (long long)r->worker.ranks, (long long)r->trace.count, (long long)r->trace.input_tokens,
            (long long)o->hit_tokens, percent(r, o), (long long)o->inserted, (long long)o->evicted,
            (long long)o->refused, o->create_seconds, o->seconds);
  }
  return close_out(r, file, error_out);
}

static enum quire_status write_plot(const struct replay *r, struct quire_error *error_out) {
  double x[SIZES_MAX], y[SIZES_MAX], most[SIZES_MAX];
  FILE *file = NULL;
  enum quire_status status = open_out(r, "replay.svg", &file, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  for (int i = 0; i < r->count; i++) {
    x[i] = (double)r->outcomes[i].capacity;
    y[i] = percent(r, &r->outcomes[i]);
    most[i] = percent(r, &r->outcomes[r->count - 1]);
  }
  const struct bench_series series[] = {{.name = "least recently used", .x = x, .y = y, .count = r->count},
                                        {.name = "unbounded", .x = x, .y = most, .count = r->count, .dashed = true}};
  const struct bench_plot plot = {.title = "quire replay: prompt tokens found in the cache",
                                  .x_label = "tokens the cache holds",
                                  .y_label = "percent of input tokens",
                                  .log_x = true,
                                  .series = series,
                                  .series_count = r->count > 1 ? 2 : 1};
  bench_plot_write(file, &plot);
  return close_out(r, file, error_out);
}

/* --- all runs --- */

/* Pages that hold every block of the trace and the tail of the longest request; ids are hashes of prefixes, so an id is
 * in the tree once. Each stripe gets its share of them. */
static int64_t unbounded_pages(const struct replay *r) {
  const int64_t block_pages = TRACE_BLOCK_TOKENS / QUIRE_PAGE_TOKENS;
  return r->trace.distinct * block_pages + r->trace.longest / QUIRE_PAGE_TOKENS + r->worker.ranks;
}

static enum quire_status run_all(struct replay *r, struct quire_error *error_out) {
  int64_t pages[SIZES_MAX];
  int count = 0;
  r->unbounded = unbounded_pages(r);
  if (r->worker.cache_tokens > 0) {
    pages[count++] = r->worker.cache_tokens / QUIRE_PAGE_TOKENS;
  } else {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      if (sizes[i] / QUIRE_PAGE_TOKENS < r->unbounded) {
        pages[count++] = sizes[i] / QUIRE_PAGE_TOKENS;
      }
    }
    pages[count++] = r->unbounded;
  }
  if (pages[0] < r->worker.ranks || r->unbounded > INT32_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--cache-tokens",
                           "must hold a page of %d tokens for each rank, and fewer than 2^31 pages", QUIRE_PAGE_TOKENS);
  }
  r->tokens = quire_env_zalloc(r->env, (size_t)r->trace.longest, sizeof *r->tokens);
  if (r->tokens == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "replay", "no memory for a request of %d tokens",
                           r->trace.longest);
  }
  printf("%lld requests, %lld input tokens, %lld blocks of %d, %d of them distinct; longest %d\n",
         (long long)r->trace.count, (long long)r->trace.input_tokens, (long long)r->trace.id_count, TRACE_BLOCK_TOKENS,
         r->trace.distinct, r->trace.longest);
  printf("%-10s %10s %13s %9s %11s %11s %8s %9s %9s\n", "tokens", "pages", "hit tokens", "hit %", "inserted", "evicted",
         "too long", "create s", "replay s");
  enum quire_status status = QUIRE_OK;
  for (; status == QUIRE_OK && r->count < count; r->count += status == QUIRE_OK) {
    status = run_size(r, pages[r->count], &r->outcomes[r->count], error_out);
    if (status == QUIRE_OK) {
      print_outcome(r, &r->outcomes[r->count]);
    }
  }
  return status;
}

static enum quire_status write_all(const struct replay *r, struct quire_error *error_out) {
  if (r->options.out == NULL) {
    return QUIRE_OK;
  }
  if (mkdir(r->options.out, 0777) != 0 && errno != EEXIST) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "--out", "cannot make the folder %s: %s", r->options.out,
                           strerror(errno));
  }
  const enum quire_status status = write_csv(r, error_out);
  return status != QUIRE_OK ? status : write_plot(r, error_out);
}

int cli_replay(int argc, char **argv) {
  struct replay r = {.env = quire_env_default()};
  struct quire_options *table = NULL;
  struct quire_error error = {0};
  int exit_code = CLI_EXIT_OK;
  const bool named = argc > 0 && argv[0][0] != '-';
  struct cli_command_line line = {"quire replay TRACE [options]", rows, (int)(sizeof rows / sizeof *rows), &r.options};
  if (!cli_read(line, argc - named, argv + named, &r.worker, &table, &exit_code)) {
    return exit_code;
  }
  enum quire_status status = QUIRE_OK;
  if (!named) {
    status = quire_error_set(&error, QUIRE_ERR_ARGUMENT, "replay", "name a trace file: quire replay TRACE");
  }
  const uint64_t started = cli_now_ns();
  status = status != QUIRE_OK ? status : trace_file_open(r.env, argv[0], &r.trace, &error);
  if (status == QUIRE_OK) {
    printf("%s read in %.3f s\n", argv[0], (double)(cli_now_ns() - started) * 1e-9);
    status = run_all(&r, &error);
    status = status != QUIRE_OK ? status : write_all(&r, &error);
    quire_env_free(r.env, r.tokens, (size_t)r.trace.longest, sizeof *r.tokens);
    trace_file_close(&r.trace);
  }
  quire_options_destroy(table);
  return status == QUIRE_OK ? CLI_EXIT_OK : cli_fail(&error);
}
