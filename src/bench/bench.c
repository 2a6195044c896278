/* quire bench: the list of benches, their options, and running one or all. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_serve.h"
#include "device/device_info.h"

static const struct bench_entry entries[] = {
    {"gemm", "matrix product at the shapes of quire-mini and DeepSeek-V3.2 against oneDNN and a cold read", false,
     bench_gemm},
    {"topk", "2,048 best of 128K scores against a maximum pass", false, bench_topk},
    {"sample", "drawing a token from a row of logits against reading it", false, bench_sample},
    {"attention", "sparse attention of DeepSeek-V3.2 and GLM-5 against the dot product from registers", false,
     bench_attention},
    {"indexer", "scores and top-k of both models over a long context", false, bench_indexer},
    {"layer", "one layer of DeepSeek-V3.2 and of GLM-5.2 with 8 experts against the sum of its parts", false,
     bench_layer},
    {"view", "gather against a copy, peer against reading in place, overlap", false, bench_view},
    {"prefill", "tokens a second of --model, shared and replicated", true, bench_prefill},
    {"decode", "the same of decode", true, bench_decode},
    {"capacity", "tokens a memory budget holds, for 1 to 8 ranks; with --model, met in a run", false, bench_capacity},
    {"ttft", "first token of a short request beside a long prefill, in chunks of that prefill", true, bench_ttft},
    {"controller", "a tick of the controller with 256 and 1,024 requests that decode; a page of the pool", false,
     bench_controller},
    {"tree", "chains of 2,048 pages in a tree of a million, against hash, compare and pointer chase", false,
     bench_tree},
    {"http", "/livez and streams of a stub model, with the tokenizer of --model, against a bare epoll loop", false,
     bench_http},
};

#define ENTRIES ((int)(sizeof entries / sizeof entries[0]))

const struct bench_entry *bench_entry_at(int index) { return index >= 0 && index < ENTRIES ? &entries[index] : NULL; }

#define AT(field) offsetof(struct bench_options, field)

static const char *const clock_names[] = {"wall", "cpu", NULL};

static const struct quire_option option_rows[] = {
    {.name = "repeats",
     .type = QUIRE_OPTION_INT,
     .offset = AT(repeats),
     .default_text = "9",
     .min = 1,
     .max = BENCH_REPEATS_MAX,
     .help = "interleaved repeats; the median counts, and 7 are the least to rely on"},
    {.name = "slice-us",
     .type = QUIRE_OPTION_INT,
     .offset = AT(slice_us),
     .default_text = "5000",
     .min = 0,
     .max = 10000000,
     .help = "microseconds of one measurement of a kernel; 0 is one call"},
    {.name = "clock",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(clock),
     .values = clock_names,
     .help = "clock of cases with one thread: wall, or the thread's processor time, for a machine others use too"},
    {.name = "only",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(only),
     .metavar = "TEXT",
     .help = "only cases with this in their name"},
    {.name = "out",
     .short_name = 'o',
     .type = QUIRE_OPTION_STRING,
     .offset = AT(out),
     .metavar = "DIR",
     .help = "folder for NAME.csv, every repeat, and NAME.svg, a plot of every bar"},
    {.name = "trace",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(trace),
     .metavar = "FILE",
     .help = "Chrome trace of gather jobs and layers (bench view, with --model)"},
    {.name = "strict", .type = QUIRE_OPTION_FLAG, .offset = AT(strict), .help = "exit 1 when a figure misses its bar"},
    {.name = "tiny",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(tiny),
     .help = "smallest sizes, to see that a bench runs; the figures mean nothing"},
    {.name = "tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(tokens),
     .default_text = "8192",
     .min = 64,
     .max = 1 << 20,
     .help = "prompt tokens (prefill, decode, view)"},
    {.name = "decode-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(decode_tokens),
     .default_text = "64",
     .min = 2,
     .max = 1 << 16,
     .help = "tokens to draw (decode, view)"},
    {.name = "context-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(context_tokens),
     .default_text = "32768",
     .min = 4096,
     .max = 1 << 20,
     .help = "rows in the cache (attention, indexer, layer, view)"},
    {.name = "budget",
     .type = QUIRE_OPTION_BYTES,
     .offset = AT(budget_bytes),
     .default_text = "256M",
     .min = 1 << 20,
     .max = 0x1p53,
     .help = "bytes a rank may reserve in the run of bench capacity"},
};

const char *cli_bench_name(int index, const char **about_out) {
  static const char *const others[][2] = {
      {"serve", "load for a server, over HTTP: quire bench serve URL"},
      {"all", "all but serve, one after another"},
      {NULL, NULL},
  };
  QUIRE_ASSERT(index >= 0 && index < ENTRIES + 3);
  const struct bench_entry *entry = bench_entry_at(index);
  *about_out = entry != NULL ? entry->about : others[index - ENTRIES][1];
  return entry != NULL ? entry->name : others[index - ENTRIES][0];
}

static void list(void) {
  const char *name, *about;
  printf("usage: quire bench NAME [options]\n\n");
  for (int i = 0; (name = cli_bench_name(i, &about)) != NULL; i++) {
    const struct bench_entry *entry = bench_entry_at(i);
    printf("  %-10s %s%s\n", name, about, entry != NULL && entry->needs_model ? " (needs --model)" : "");
  }
  printf("\nquire bench NAME --help lists the options.\n");
}

/* --- */

static enum quire_status open_streams(struct bench *bench, struct quire_error *error_out) {
  const struct quire_env *env = quire_env_default();
  bench->threads_max = quire_device_cores() < BENCH_THREADS_MAX ? 1 : BENCH_THREADS_MAX;
  enum quire_status status = QUIRE_OK;
  for (int t = 1; status == QUIRE_OK && t <= bench->threads_max; t++) {
    if (t > 1) { /* one thread needs no team */
      status = quire_team_create(env, t, &bench->team[t], error_out);
    }
    if (status == QUIRE_OK) {
      status = quire_stream_create(env, QUIRE_STREAM_INLINE, bench->team[t], 0, &bench->stream[t], error_out);
    }
  }
  return status;
}

static void close_bench(struct bench *bench) {
  for (int t = 1; t <= BENCH_THREADS_MAX; t++) {
    if (bench->stream[t] != NULL) {
      quire_stream_destroy(bench->stream[t]);
    }
    quire_team_destroy(bench->team[t]);
  }
  if (bench->model.weights != NULL) {
    cli_model_close(&bench->model);
  }
}

/* Figures of a build or a run that checks itself mean nothing. */
static enum quire_status refuse_debugging(const struct bench *bench, struct quire_error *error_out) {
  const char *what = NULL;
#if defined(QUIRE_DEBUG_ASSERTS) || defined(QUIRE_EXPENSIVE_ASSERTS) || defined(QUIRE_SANITIZED)
  what = bench->options.tiny ? NULL : "this build has debugging assertions or sanitizers";
#endif
  if (bench->worker.poison || bench->worker.debug_shared_kv || bench->worker.fault != 0) {
    what = "--poison and --debug-* are debugging switches";
  }
  return what == NULL
             ? QUIRE_OK
             : quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "bench", "%s: figures with them mean nothing", what);
}

static enum quire_status open_bench(struct bench *bench, struct quire_error *error_out) {
  enum quire_status status = refuse_debugging(bench, error_out);
  if (status == QUIRE_OK) {
    status = quire_kernels_find(bench->worker.isa, &bench->kernels, error_out);
  }
  if (status == QUIRE_OK) {
    status = open_streams(bench, error_out);
  }
  if (bench->options.tiny) {
    bench->options.slice_us = 0;
  }
  return status;
}

static enum quire_status run_entry(struct bench *bench, const struct bench_entry *entry,
                                   struct quire_error *error_out) {
  bench->entry = entry;
  if (entry->needs_model && bench->worker.model == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--model", "is missing: bench %s needs the folder of a model",
                           entry->name);
  }
  struct quire_device_info info;
  quire_device_describe(&info);
  printf("# %s: %s\n# %s, %d cores; kernels %s; %d repeats, %s clock\n", entry->name, entry->about, info.name,
         info.cores, bench->kernels->name, (int)bench->options.repeats, clock_names[bench->options.clock]);
  enum quire_status status = bench_report_open(bench, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = entry->run(bench, error_out);
  enum quire_status reported = bench_report_close(bench, status == QUIRE_OK ? error_out : NULL);
  return status != QUIRE_OK ? status : reported;
}

static enum quire_status run_named(struct bench *bench, const char *name, struct quire_error *error_out) {
  bool all = strcmp(name, "all") == 0;
  enum quire_status status = QUIRE_OK;
  for (int i = 0; status == QUIRE_OK && i < ENTRIES; i++) {
    if (all && entries[i].needs_model && bench->worker.model == NULL) {
      printf("# %s: left out, it needs --model\n", entries[i].name);
    } else if (all || strcmp(name, entries[i].name) == 0) {
      status = run_entry(bench, &entries[i], error_out);
    }
  }
  if (status == QUIRE_OK && bench->options.only != NULL && bench->shown == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--only",
                           "no case of bench %s has \"%s\" in its name; without --only all are shown", name,
                           bench->options.only);
  }
  return status;
}

static bool is_bench(const char *wanted) {
  const char *name, *about;
  bool found = false;
  for (int i = 0; (name = cli_bench_name(i, &about)) != NULL; i++) {
    found = found || strcmp(wanted, name) == 0;
  }
  return found;
}

static int refuse_name(void) {
  const char *name, *about;
  fprintf(stderr, "quire: bench: name one of");
  for (int i = 0; (name = cli_bench_name(i, &about)) != NULL; i++) {
    fprintf(stderr, " %s%s", name, i <= ENTRIES ? "," : "");
  }
  fprintf(stderr, "; quire bench list describes them\n");
  return CLI_EXIT_USAGE;
}

int cli_bench(int argc, char **argv) {
  static struct bench bench;
  bool help =
      argc > 0 && (strcmp(argv[0], "list") == 0 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0);
  if (help) {
    list();
    return CLI_EXIT_OK;
  }
  if (argc > 0 && strcmp(argv[0], "serve") == 0) {
    return bench_serve(argc - 1, argv + 1);
  }
  if (argc < 1 || !is_bench(argv[0])) {
    return refuse_name();
  }
  struct quire_options *table = NULL;
  int exit_code = CLI_EXIT_OK;
  char usage[BENCH_NAME_BYTES];
  snprintf(usage, sizeof usage, "quire bench %s [options]", argv[0]);
  struct cli_command_line line = {usage, option_rows, (int)(sizeof option_rows / sizeof option_rows[0]),
                                  &bench.options};
  if (!cli_read(line, argc - 1, argv + 1, &bench.worker, &table, &exit_code)) {
    return exit_code;
  }
  struct quire_error error = {0};
  enum quire_status status = open_bench(&bench, &error);
  if (status == QUIRE_OK) {
    status = run_named(&bench, argv[0], &error);
  }
  close_bench(&bench);
  quire_options_destroy(table);
  if (status != QUIRE_OK) {
    return cli_fail(&error);
  }
  if (bench.shorts > 0) {
    printf("# %d of the bars are not met\n", bench.shorts);
  }
  return bench.shorts > 0 && bench.options.strict ? CLI_EXIT_FAILURE : CLI_EXIT_OK;
}
