/* quire bench serve URL: the command around the load client (load.h). It speaks what SGLang, vLLM and OpenAI's servers
 * speak, so that it measures any of them alike. */
#include <stddef.h>
#include <string.h>

#include <jansson.h>

#include "bench/bench_serve.h"
#include "bench/load.h"
#include "cli/cli.h"

#define AT(field) offsetof(struct load_options, field)

static const char *const endpoint_names[] = {"chat", "completions", "generate", NULL};
static const char *const length_names[] = {"random", "sharegpt", NULL};

static const struct quire_option rows[] = {
    {.name = "endpoint",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(endpoint),
     .values = endpoint_names,
     .help = "/v1/chat/completions with words, /v1/completions with token ids, or SGLang's /generate with token ids"},
    {.name = "requests",
     .short_name = 'n',
     .type = QUIRE_OPTION_INT,
     .offset = AT(requests),
     .default_text = "100",
     .min = 1,
     .max = 10000000,
     .help = "requests to send"},
    {.name = "rate",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(rate),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .help = "requests a second, sent at random (Poisson) times; 0 sends the next when one ends"},
    {.name = "concurrency",
     .type = QUIRE_OPTION_INT,
     .offset = AT(concurrency),
     .default_text = "16",
     .min = 0,
     .max = 100000,
     .help = "most requests in flight; with --rate 0 is no bound"},
    {.name = "lengths",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(lengths),
     .values = length_names,
     .help = "random: uniform up to --input-tokens and --output-tokens; sharegpt: log-normal, with ShareGPT's means"},
    {.name = "input-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(input_tokens),
     .default_text = "512",
     .min = 1,
     .max = 1 << 24,
     .help = "of a prompt, its shared prefix not counted"},
    {.name = "output-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(output_tokens),
     .default_text = "64",
     .min = 1,
     .max = 1 << 20,
     .help = "of an answer"},
    {.name = "range-ratio",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(range_ratio),
     .default_text = "1",
     .min = 0,
     .max = 1,
     .help = "shortest random length, as a share of the longest"},
    {.name = "prefixes",
     .type = QUIRE_OPTION_INT,
     .offset = AT(prefixes),
     .default_text = "0",
     .min = 0,
     .max = 1 << 20,
     .help = "different prefixes, one of which begins each prompt"},
    {.name = "prefix-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(prefix_tokens),
     .default_text = "1024",
     .min = 1,
     .max = 1 << 20,
     .help = "of a shared prefix"},
    {.name = "vocab",
     .type = QUIRE_OPTION_INT,
     .offset = AT(vocab),
     .default_text = "4096",
     .min = 17,
     .max = 1 << 24,
     .help = "token ids to draw from are 16 up to this"},
    {.name = "temperature",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(temperature),
     .default_text = "0",
     .min = 0,
     .max = 100,
     .help = "of sampling"},
    {.name = "stop-at-eos",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(stop_at_eos),
     .help = "let an answer end early; else ignore_eos is asked for"},
    {.name = "disconnect",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(disconnect),
     .default_text = "0",
     .min = 0,
     .max = 1,
     .help = "share of requests whose connection we close at a random place"},
    {.name = "warmup",
     .type = QUIRE_OPTION_INT,
     .offset = AT(warmup),
     .default_text = "1",
     .min = 0,
     .max = 100000,
     .help = "requests sent one by one beforehand, not counted"},
    {.name = "seed",
     .type = QUIRE_OPTION_INT,
     .offset = AT(seed),
     .default_text = "1",
     .min = 0,
     .max = 0x1p53,
     .help = "of lengths, texts, times and disconnects"},
    {.name = "timeout-s",
     .type = QUIRE_OPTION_INT,
     .offset = AT(timeout_s),
     .default_text = "600",
     .min = 1,
     .max = 86400,
     .help = "seconds a request may take"},
    {.name = "served-model",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(model),
     .metavar = "NAME",
     .help = "model to name; by default the first of /v1/models"},
    {.name = "api-key",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(api_key),
     .metavar = "KEY",
     .help = "sent as a bearer token"},
    {.name = "strict",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(strict),
     .help = "exit 1 when a request did not end well"},
    {.name = "out",
     .short_name = 'o',
     .type = QUIRE_OPTION_STRING,
     .offset = AT(out),
     .metavar = "DIR",
     .help = "folder for requests.csv, summary.csv and report.html"},
};

/* A name as the inside of a JSON string. */
static enum quire_status set_model(struct load_run *run, const char *name, struct quire_error *error_out) {
  json_t *value = json_string(name);
  char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
  const size_t bytes = text ? strlen(text) : 0;
  enum quire_status status = QUIRE_OK;
  if (bytes < 2 || bytes - 2 >= sizeof run->model) {
    status = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--served-model", "is no text, or too long a one");
  } else {
    memcpy(run->model, text + 1, bytes - 2);
    run->model[bytes - 2] = '\0';
  }
  json_free_t release = NULL;
  json_get_alloc_funcs(NULL, &release);
  release(text);
  json_decref(value);
  return status;
}

static enum quire_status find_model(struct load_run *run, struct quire_error *error_out) {
  struct quire_strbuf body;
  int http = 0;
  if (run->options->model) {
    return set_model(run, run->options->model, error_out);
  }
  quire_strbuf_init(&body, run->env);
  enum quire_status status = load_get(run, "/v1/models", &body, &http, error_out);
  json_t *root = status == QUIRE_OK ? json_loadb(quire_strbuf_text(&body), body.bytes, 0, NULL) : NULL;
  const char *name = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
  if (status == QUIRE_OK && (http != 200 || name == NULL)) {
    status = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--served-model",
                             "is missing, and GET /v1/models names none (status %d)", http);
  }
  status = status != QUIRE_OK ? status : set_model(run, name, error_out);
  json_decref(root);
  quire_strbuf_fini(&body);
  return status;
}

/* Requests of another seed, one by one; the first that fails ends it, since the rest would as well. */
static enum quire_status warm_up(const struct load_run *run, struct quire_error *error_out) {
  struct load_options options = *run->options;
  struct load_run warm;
  if (options.warmup == 0) {
    return QUIRE_OK;
  }
  options.requests = options.warmup;
  options.concurrency = 1;
  options.rate = 0;
  options.disconnect = 0;
  options.seed++;
  enum quire_status status = load_plan(run->env, &options, &warm, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  memcpy(warm.model, run->model, sizeof warm.model);
  status = load_send(&warm, error_out);
  for (int64_t i = 0; status == QUIRE_OK && i < warm.count; i++) {
    const enum load_outcome outcome = warm.requests[i].outcome;
    if (outcome != LOAD_OK) {
      status = quire_error_set(error_out, QUIRE_ERR_IO, "bench serve", "a request to warm up failed: %s (status %d) %s",
                               load_outcome_name(outcome), warm.requests[i].status, warm.notes[outcome]);
    }
  }
  load_free(&warm);
  return status;
}

static enum quire_status run_load(struct load_run *run, bool *well_out, struct quire_error *error_out) {
  struct load_summary summary;
  enum quire_status status = find_model(run, error_out);
  status = status != QUIRE_OK ? status : warm_up(run, error_out);
  status = status != QUIRE_OK ? status : load_send(run, error_out);
  status = status != QUIRE_OK ? status : load_summarise(run, &summary, error_out);
  if (status == QUIRE_OK) {
    load_print(run, &summary);
    *well_out = summary.outcomes[LOAD_OK] + summary.outcomes[LOAD_CUT] == run->count;
  }
  return status != QUIRE_OK || run->options->out == NULL ? status : load_write(run, &summary, error_out);
}

int bench_serve(int argc, char **argv) {
  struct load_options options = {0};
  struct cli_worker worker = {0};
  struct quire_options *table = NULL;
  struct load_run run;
  struct quire_error error = {0};
  int exit_code = CLI_EXIT_OK;
  bool well = true;
  const bool named = argc > 0 && argv[0][0] != '-';
  struct cli_command_line line = {"quire bench serve URL [options]", rows, (int)(sizeof rows / sizeof *rows), &options};
  if (!cli_read(line, argc - named, argv + named, &worker, &table, &exit_code)) {
    return exit_code;
  }
  options.url = named ? argv[0] : NULL;
  enum quire_status status = load_plan(quire_env_default(), &options, &run, &error);
  if (status == QUIRE_OK) {
    status = run_load(&run, &well, &error);
    load_free(&run);
  }
  quire_options_destroy(table);
  if (status != QUIRE_OK) {
    return cli_fail(&error);
  }
  return well || !options.strict ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
