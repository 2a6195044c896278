/* quire run: raw prompts, one after another, through one worker; common prefixes come from the tree. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"

#define PROMPT_BYTES_MAX ((size_t)256 << 20)

struct run_options {
  const char *prompt, *prompt_file, *prompts, *stop;
  int64_t new_tokens;
  bool verify, quiet;
};

#define AT(field) offsetof(struct run_options, field)

static const struct quire_option run_rows[] = {
    {.name = "prompt",
     .short_name = 'p',
     .type = QUIRE_OPTION_STRING,
     .offset = AT(prompt),
     .metavar = "TEXT",
     .help = "the prompt"},
    {.name = "prompt-file",
     .short_name = 'f',
     .type = QUIRE_OPTION_STRING,
     .offset = AT(prompt_file),
     .metavar = "FILE",
     .help = "file whose bytes are the prompt"},
    {.name = "prompts",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(prompts),
     .metavar = "FILE",
     .help = "several prompts: one a line, or in a .jsonl file an object {\"prompt\": TEXT} a line"},
    {.name = "new-tokens",
     .short_name = 'n',
     .type = QUIRE_OPTION_INT,
     .offset = AT(new_tokens),
     .default_text = "128",
     .min = 0,
     .max = 1 << 20,
     .help = "tokens to answer at most"},
    {.name = "stop",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(stop),
     .metavar = "TEXT",
     .help = "end the answer before this text; \\n is a line break"},
    {.name = "verify",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(verify),
     .help = "run everything again on one rank and compare tokens and stored KV bytes"},
    {.name = "quiet",
     .short_name = 'q',
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(quiet),
     .help = "print the answers only"},
};

struct prompt_list {
  struct cli_tokens *tokens;
  int32_t count, capacity;
};

/* What all passes share. */
struct run_context {
  const struct cli_model *model;
  const struct run_options *run;
  const struct prompt_list *list;
  struct cli_sampling *options;
  struct quire_sampling sampling; /* what the options come to */
};

/* Log-probabilities of one answer, for printing behind it. */
struct token_line {
  struct quire_top drawn;
  int32_t top_count;
  struct quire_top top[QUIRE_TOP_LOGPROBS_MAX];
};

struct token_lines {
  struct token_line *line;
  int32_t count, capacity;
  bool lost; /* no memory for all of them */
};

/* What a pass over all prompts gives; two passes are compared by --verify. */
struct pass_result {
  struct quire_hash128 *kv; /* [prompts] */
  struct cli_tokens *drawn; /* [prompts] */
  int64_t prompt_tokens, hit_tokens, new_tokens;
  int32_t decode_steps;
  uint64_t prefill_ns, decode_ns;
  int32_t rank_pages[QUIRE_RANKS_MAX]; /* of the last request */
  int32_t pages;
  struct quire_engine_stats stats;
};

static enum quire_status add_prompt(const struct cli_model *model, struct prompt_list *list, const char *text,
                                    size_t bytes, struct quire_error *error_out) {
  if (list->count == list->capacity) {
    int32_t capacity = list->capacity > 0 ? 2 * list->capacity : 16;
    void *grown = realloc(list->tokens, (size_t)capacity * sizeof *list->tokens);
    if (grown == NULL) {
      return quire_error_set(error_out, QUIRE_ERR_MEMORY, "prompts", "no memory for %d prompts", capacity);
    }
    list->tokens = grown;
    list->capacity = capacity;
  }
  enum quire_status status = cli_encode(model, text, bytes, &list->tokens[list->count], error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  list->count++;
  if (list->tokens[list->count - 1].count == 0) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt", "number %d is empty; give at least one character",
                           list->count);
  }
  return QUIRE_OK;
}

static enum quire_status add_json_line(const struct cli_model *model, struct prompt_list *list, const char *line,
                                       size_t bytes, int32_t number, struct quire_error *error_out) {
  json_t *root = json_loadb(line, bytes, JSON_ALLOW_NUL, NULL);
  json_t *prompt = json_object_get(root, "prompt");
  enum quire_status status;
  if (!json_is_string(prompt)) {
    status = quire_error_set(error_out, QUIRE_ERR_CORRUPT, "--prompts",
                             "line %d is not an object with a \"prompt\" text", number);
  } else {
    status = add_prompt(model, list, json_string_value(prompt), json_string_length(prompt), error_out);
  }
  json_decref(root);
  return status;
}

static enum quire_status add_lines(const struct cli_model *model, struct prompt_list *list, const char *path,
                                   struct quire_error *error_out) {
  struct quire_file_text text = {0};
  enum quire_status status = quire_file_read(quire_env_default(), path, PROMPT_BYTES_MAX, &text, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  size_t length = strlen(path);
  bool json = length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
  int32_t number = 0;
  for (size_t at = 0; status == QUIRE_OK && at < text.bytes;) {
    number++;
    const char *end = memchr(text.data + at, '\n', text.bytes - at);
    size_t bytes = end != NULL ? (size_t)(end - text.data) - at : text.bytes - at;
    if (bytes > 0) {
      status = json ? add_json_line(model, list, text.data + at, bytes, number, error_out)
                    : add_prompt(model, list, text.data + at, bytes, error_out);
    }
    at += bytes + 1;
  }
  quire_file_text_free(quire_env_default(), &text);
  if (status == QUIRE_OK && list->count == 0) {
    status = quire_error_set(error_out, QUIRE_ERR_REQUEST, "--prompts", "%s holds no prompt", path);
  }
  return status;
}

static enum quire_status read_prompts(const struct cli_model *model, const struct run_options *run,
                                      struct prompt_list *list, struct quire_error *error_out) {
  int given = (run->prompt != NULL) + (run->prompt_file != NULL) + (run->prompts != NULL);
  if (given != 1) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "prompt",
                           "give one of -p TEXT, --prompt-file F, --prompts F");
  }
  if (run->prompts != NULL) {
    return add_lines(model, list, run->prompts, error_out);
  }
  if (run->prompt != NULL) {
    return add_prompt(model, list, run->prompt, strlen(run->prompt), error_out);
  }
  struct quire_file_text text = {0};
  enum quire_status status = quire_file_read(quire_env_default(), run->prompt_file, PROMPT_BYTES_MAX, &text, error_out);
  if (status == QUIRE_OK) {
    status = add_prompt(model, list, text.data, text.bytes, error_out);
    quire_file_text_free(quire_env_default(), &text);
  }
  return status;
}

static void print_text(void *context, const char *text, size_t bytes) {
  (void)context;
  fwrite(text, 1, bytes, stdout);
  fflush(stdout);
}

/* Of an answer that fails in the middle: what follows on the terminal begins a line of its own. */
static void end_line(const struct cli_answer *answer) {
  if (answer->shown > 0 && answer->text[answer->shown - 1] != '\n') {
    print_text(NULL, "\n", 1);
  }
}

static void keep_token(void *context, const struct quire_engine_event *event) {
  struct token_lines *lines = context;
  if (lines->count == lines->capacity) {
    int32_t capacity = lines->capacity > 0 ? 2 * lines->capacity : 64;
    void *grown = realloc(lines->line, (size_t)capacity * sizeof *lines->line);
    if (grown == NULL) {
      lines->lost = true;
      return;
    }
    lines->line = grown;
    lines->capacity = capacity;
  }
  struct token_line *line = &lines->line[lines->count++];
  line->drawn = (struct quire_top){event->token, event->logprob};
  line->top_count = event->top_count;
  for (int32_t i = 0; i < event->top_count; i++) {
    line->top[i] = event->tops[i];
  }
}

/* "id log p "text"", bytes that are no plain text as \xNN. */
static void print_top(const struct cli_model *model, struct quire_top top) {
  size_t bytes = 0;
  const char *text = quire_tokenizer_token(model->tokenizer, top.token, &bytes);
  printf("%7d %9.4f \"", top.token, (double)top.logprob);
  for (size_t i = 0; i < bytes; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c < 0x20 || c == 0x7f || c == '"' || c == '\\') {
      printf("\\x%02x", c);
    } else {
      putchar(c);
    }
  }
  putchar('"');
}

static void print_tokens(const struct cli_model *model, struct token_lines *lines) {
  for (int32_t i = 0; i < lines->count; i++) {
    print_top(model, lines->line[i].drawn);
    for (int32_t j = 0; j < lines->line[i].top_count && lines->line[i].top[j].token >= 0; j++) {
      fputs("  |", stdout);
      print_top(model, lines->line[i].top[j]);
    }
    putchar('\n');
  }
  if (lines->lost) {
    fputs("no memory for the rest of the log-probabilities\n", stdout);
  }
  fflush(stdout);
}

static void add_answer(struct pass_result *result, const struct quire_engine *engine, const struct cli_answer *answer,
                       int32_t ranks) {
  result->prompt_tokens += answer->prompt->count;
  result->hit_tokens += answer->hit;
  result->new_tokens += answer->drawn.count;
  result->decode_steps += answer->decode_steps;
  result->prefill_ns += answer->prefill_ns;
  result->decode_ns += answer->decode_ns;
  result->pages = (quire_engine_tokens(engine) + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS;
  for (int32_t r = 0; r < ranks; r++) {
    result->rank_pages[r] = quire_engine_rank_pages(engine, r);
  }
}

/* Runs every prompt through a worker of this configuration. */
static enum quire_status run_pass(const struct run_context *context, const struct quire_engine_config *config,
                                  bool show, struct pass_result *result, struct quire_error *error_out) {
  const struct run_options *run = context->run;
  const struct prompt_list *list = context->list;
  struct quire_engine *engine = NULL;
  enum quire_status status = quire_engine_create(quire_env_default(), config, &engine, error_out);
  for (int32_t i = 0; status == QUIRE_OK && i < list->count; i++) {
    struct token_lines lines = {0};
    struct cli_answer answer = {
        .prompt = &list->tokens[i],
        .new_max = (int32_t)run->new_tokens,
        .new_min = (int32_t)context->options->min_tokens,
        .sampling = context->sampling,
        .stops = context->options->stops,
        .stop_count = context->options->stop_count,
        .stop = run->stop,
        .progress = show && !run->quiet,
        .on_text = show ? print_text : NULL,
        .on_token = show && context->sampling.logprobs ? keep_token : NULL,
        .context = &lines,
    };
    status = cli_answer_run(context->model, engine, &answer, error_out);
    if (status == QUIRE_OK) {
      status = cli_kv_digest(engine, &result->kv[i], error_out);
      add_answer(result, engine, &answer, config->ranks);
      result->drawn[i] = answer.drawn;
      answer.drawn = (struct cli_tokens){0};
      if (show) {
        print_text(NULL, "\n", 1);
        print_tokens(context->model, &lines);
      }
    } else if (show) {
      end_line(&answer);
    }
    free(lines.line);
    quire_engine_finish(engine);
    cli_answer_free(&answer);
  }
  if (status == QUIRE_OK) {
    quire_engine_stats(engine, &result->stats);
  }
  quire_engine_destroy(engine);
  return status;
}

static bool passes_equal(const struct pass_result *a, const struct pass_result *b, int32_t prompts) {
  for (int32_t i = 0; i < prompts; i++) {
    if (!quire_hash128_equal(a->kv[i], b->kv[i]) || a->drawn[i].count != b->drawn[i].count ||
        memcmp(a->drawn[i].id, b->drawn[i].id, (size_t)a->drawn[i].count * sizeof(int32_t)) != 0) {
      return false;
    }
  }
  return true;
}

static double rate(int64_t count, uint64_t ns) { return ns > 0 ? (double)count * 1e9 / (double)ns : 0; }

static void print_summary(const struct quire_engine_config *config, const struct pass_result *result) {
  static const char *const views[] = {"local", "gather", "peer"};
  struct quire_engine_memory memory;
  struct quire_error error;
  if (quire_engine_plan(config, &memory, &error) != QUIRE_OK) {
    return;
  }
  bool shared = config->sharing == QUIRE_SHARING_SHARED && config->ranks > 1;
  int64_t prefilled = result->prompt_tokens - result->hit_tokens;
  fprintf(stderr, "\n  ranks                     %d (%s, view %s, kernels %s)\n", config->ranks,
          config->ranks == 1 ? "whole cache on one rank"
          : shared           ? "one shared cache"
                             : "a copy of the cache on each",
          views[config->view], config->kernels->name);
  fprintf(stderr, "  tokens prefilled          %lld (and %lld found in the cache)\n", (long long)prefilled,
          (long long)result->hit_tokens);
  fprintf(stderr, "  prefill                   %.0f tokens/s\n", rate(prefilled, result->prefill_ns));
  if (result->decode_steps > 0) {
    fprintf(stderr, "  decode                    %.1f tokens/s\n", rate(result->decode_steps, result->decode_ns));
  }
  int64_t all = result->pages * memory.bundle_bytes;
  fprintf(stderr, "  KV of the last request    %.2f MB in %d pages; a replicated cache needs that on each rank\n",
          (double)all * 1e-6, result->pages);
  for (int32_t r = 0; r < config->ranks; r++) {
    fprintf(stderr, "    on rank %-2d              %.2f MB (%.0f %%)\n", r,
            (double)(result->rank_pages[r] * memory.bundle_bytes) * 1e-6,
            result->pages > 0 ? 100.0 * result->rank_pages[r] / result->pages : 0);
  }
}

static enum quire_status create_result(struct pass_result *result, int32_t prompts, struct quire_error *error_out) {
  *result = (struct pass_result){0};
  result->kv = calloc((size_t)prompts, sizeof *result->kv);
  result->drawn = calloc((size_t)prompts, sizeof *result->drawn);
  if (result->kv == NULL || result->drawn == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "run", "no memory for %d results", prompts);
  }
  return QUIRE_OK;
}

static void free_result(struct pass_result *result, int32_t prompts) {
  for (int32_t i = 0; result->drawn != NULL && i < prompts; i++) {
    cli_tokens_free(&result->drawn[i]);
  }
  free(result->drawn);
  free(result->kv);
}

/* The same prompts on one rank: are tokens and stored bytes the same? */
static enum quire_status verify(const struct run_context *context, const struct quire_engine_config *config,
                                const struct pass_result *result, bool *equal_out, struct quire_error *error_out) {
  int32_t prompts = context->list->count;
  struct quire_engine_config one = *config;
  one.ranks = 1;
  one.sharing = QUIRE_SHARING_SHARED;
  one.view = QUIRE_VIEW_LOCAL;
  struct pass_result again;
  enum quire_status status = create_result(&again, prompts, error_out);
  if (status == QUIRE_OK) {
    status = run_pass(context, &one, false, &again, error_out);
  }
  if (status == QUIRE_OK) {
    *equal_out = passes_equal(result, &again, prompts);
  }
  free_result(&again, prompts);
  return status;
}

static int64_t longest_request(const struct prompt_list *list, int64_t new_tokens) {
  int64_t longest = 0;
  for (int32_t i = 0; i < list->count; i++) {
    int64_t tokens = list->tokens[i].count + new_tokens;
    longest = tokens > longest ? tokens : longest;
  }
  return longest;
}

static int run_all(const struct cli_worker *worker, const struct run_options *run, struct cli_sampling *sampling) {
  struct quire_error error = {0};
  struct cli_model model = {0};
  struct prompt_list list = {0};
  struct pass_result result = {0};
  struct run_context context = {.model = &model, .run = run, .list = &list, .options = sampling};
  struct quire_engine_config config;
  bool equal = true;
  enum quire_status status = cli_model_open(worker, &model, &error);
  if (status == QUIRE_OK) {
    status = cli_sampling_read(sampling, &model, &context.sampling, &error);
  }
  if (status == QUIRE_OK) {
    status = read_prompts(&model, run, &list, &error);
  }
  if (status == QUIRE_OK) {
    status = cli_engine_config(worker, &model, longest_request(&list, run->new_tokens), &config, &error);
  }
  if (status == QUIRE_OK) {
    status = create_result(&result, list.count, &error);
  }
  if (status == QUIRE_OK) {
    status = run_pass(&context, &config, true, &result, &error);
  }
  if (status == QUIRE_OK) {
    status = quire_engine_judge_fault(&config, &result.stats, &error);
  }
  if (status == QUIRE_OK && run->verify) {
    status = verify(&context, &config, &result, &equal, &error);
  }
  if (status == QUIRE_OK && !run->quiet) {
    print_summary(&config, &result);
  }
  if (status == QUIRE_OK && run->verify) {
    fprintf(stderr, "  same tokens and same KV bytes as one rank: %s\n", equal ? "yes" : "NO");
  }
  free_result(&result, list.count);
  for (int32_t i = 0; i < list.count; i++) {
    cli_tokens_free(&list.tokens[i]);
  }
  free(list.tokens);
  cli_model_close(&model);
  if (status != QUIRE_OK) {
    return cli_fail(&error);
  }
  return equal ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

/* Replaces each \n of the stop text by a line break. */
static char *stop_text(const char *text) {
  char *stop = strdup(text);
  for (char *at = stop; at != NULL && (at = strstr(at, "\\n")) != NULL; at++) {
    *at = '\n';
    memmove(at + 1, at + 2, strlen(at + 2) + 1);
  }
  return stop;
}

int cli_run(int argc, char **argv) {
  struct cli_worker worker = {0};
  struct run_options run = {0};
  struct cli_sampling sampling = {0};
  struct quire_options *options = NULL;
  int exit_code = CLI_EXIT_OK;
  struct quire_option_group groups[] = {
      {"Options of this command:", run_rows, (int)(sizeof run_rows / sizeof run_rows[0]), &run},
      {"Sampling:", cli_sampling_rows, cli_sampling_row_count, &sampling},
  };
  struct cli_command_groups line = {"quire run --model DIR [--ranks R] ... -p TEXT | --prompt-file F | --prompts F",
                                    groups, 2};
  if (!cli_read_groups(line, argc, argv, &worker, &options, &exit_code)) {
    return exit_code;
  }
  char *stop = run.stop != NULL ? stop_text(run.stop) : NULL;
  if (run.stop != NULL && stop == NULL) {
    struct quire_error error;
    quire_error_set(&error, QUIRE_ERR_MEMORY, "--stop", "no memory for its text");
    exit_code = cli_fail(&error);
  } else {
    run.stop = stop;
    exit_code = run_all(&worker, &run, &sampling);
  }
  free(stop);
  quire_options_destroy(options);
  return exit_code;
}
