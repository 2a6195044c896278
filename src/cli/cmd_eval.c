/* quire eval: what a model remembers and predicts, through the same engine that serves it.
 *
 *   MODEL/eval/heldout.txt    text the model was not trained on: loss in nats a token, draft agreement
 *   MODEL/eval/filler.txt     text that the cases are cut from
 *   MODEL/eval/recall.jsonl   {"id": "2k4k-007", "distance_tokens", "answer", "prompt": [TEXT or [offset, bytes], ...]}
 *
 * A case is right when the greedy answer up to the line's end, trimmed, is `answer`. Two controls break the cache on
 * purpose before the question is asked; recall has to break with it:
 *   mispaired   every page's latents with another page's index keys
 *   replaced    pages of another prompt */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"

#define EVAL_FILE_BYTES_MAX ((size_t)64 << 20)
#define EVAL_ANSWER_TOKENS 16
#define EVAL_GROUPS_MAX 16
#define EVAL_QUESTION_TOKENS 40 /* the last tokens of a case: kept out of the pages a control breaks */
#define EVAL_PAGE_SHIFT 7       /* pages between latents and index keys in the first control */

struct eval_options {
  const char *folder;
  int64_t cases, windows, window_tokens;
  bool controls, recall, loss;
};

#define AT(field) offsetof(struct eval_options, field)

static const struct quire_option eval_rows[] = {
    {.name = "eval-folder",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(folder),
     .metavar = "DIR",
     .help = "folder with heldout.txt, filler.txt and recall.jsonl; MODEL/eval when not given"},
    {.name = "cases",
     .type = QUIRE_OPTION_INT,
     .offset = AT(cases),
     .default_text = "0",
     .min = 0,
     .max = 1000000,
     .help = "cases of each distance at most; 0 is all"},
    {.name = "windows",
     .type = QUIRE_OPTION_INT,
     .offset = AT(windows),
     .default_text = "0",
     .min = 0,
     .max = 1000000,
     .help = "windows of held-out text at most; 0 is all"},
    {.name = "window-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(window_tokens),
     .default_text = "2048",
     .min = 2,
     .max = 1 << 20,
     .help = "tokens of a window"},
    {.name = "loss",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(loss),
     .default_text = "true",
     .help = "measure held-out loss and draft agreement"},
    {.name = "recall",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(recall),
     .default_text = "true",
     .help = "measure recall by distance"},
    {.name = "controls",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(controls),
     .default_text = "true",
     .help = "measure recall of the first group with a broken cache"},
};

struct group {
  char name[32];
  int32_t right, cases;
};

struct recall_case {
  char group[32];
  char *answer;
  struct cli_tokens tokens;
};

struct eval {
  const struct cli_worker *worker;
  const struct eval_options *options;
  struct cli_model model;
  struct quire_engine_config config;
  struct quire_engine *engine;
  struct quire_file_text filler, heldout;
  struct recall_case *cases;
  int32_t case_count;
};

static enum quire_status read_text(const struct eval *eval, const char *name, struct quire_file_text *text_out,
                                   struct quire_error *error_out) {
  char path[4096];
  if (eval->options->folder != NULL) {
    snprintf(path, sizeof path, "%s/%s", eval->options->folder, name);
  } else {
    snprintf(path, sizeof path, "%s/eval/%s", eval->worker->model, name);
  }
  return quire_file_read(quire_env_default(), path, EVAL_FILE_BYTES_MAX, text_out, error_out);
}

/* The prompt of a case: texts and cuts of the filler, joined. NULL when it is not well formed. */
static char *join_prompt(const struct eval *eval, const json_t *pieces) {
  size_t total = 0;
  for (size_t i = 0; i < json_array_size(pieces); i++) {
    const json_t *piece = json_array_get(pieces, i);
    json_int_t bytes =
        json_is_string(piece) ? (json_int_t)json_string_length(piece) : json_integer_value(json_array_get(piece, 1));
    if (bytes < 0 || (size_t)bytes > EVAL_FILE_BYTES_MAX) {
      return NULL;
    }
    total += (size_t)bytes;
  }
  char *text = json_array_size(pieces) > 0 && total < EVAL_FILE_BYTES_MAX ? malloc(total + 1) : NULL;
  size_t at = 0;
  for (size_t i = 0; text != NULL && i < json_array_size(pieces); i++) {
    const json_t *piece = json_array_get(pieces, i);
    if (json_is_string(piece)) {
      memcpy(text + at, json_string_value(piece), json_string_length(piece));
      at += json_string_length(piece);
      continue;
    }
    json_int_t from = json_integer_value(json_array_get(piece, 0)),
               bytes = json_integer_value(json_array_get(piece, 1));
    if (from < 0 || (size_t)from > eval->filler.bytes || (size_t)bytes > eval->filler.bytes - (size_t)from) {
      free(text);
      return NULL;
    }
    memcpy(text + at, eval->filler.data + from, (size_t)bytes);
    at += (size_t)bytes;
  }
  if (text != NULL) {
    text[at] = '\0';
  }
  return text;
}

static int32_t cases_of_group(const struct eval *eval, const char *group) {
  int32_t count = 0;
  for (int32_t i = 0; i < eval->case_count; i++) {
    count += strcmp(eval->cases[i].group, group) == 0 ? 1 : 0;
  }
  return count;
}

/* Adds the case of one line, unless its group has enough. */
static enum quire_status add_case(struct eval *eval, const json_t *line, int32_t number,
                                  struct quire_error *error_out) {
  const char *id = json_string_value(json_object_get(line, "id"));
  const char *answer = json_string_value(json_object_get(line, "answer"));
  char *prompt = join_prompt(eval, json_object_get(line, "prompt"));
  if (id == NULL || answer == NULL || prompt == NULL) {
    free(prompt);
    return quire_error_set(error_out, QUIRE_ERR_CORRUPT, "recall.jsonl",
                           "line %d needs \"id\", \"answer\" and \"prompt\" (texts and [offset, bytes] of filler.txt)",
                           number);
  }
  struct recall_case *one = &eval->cases[eval->case_count];
  *one = (struct recall_case){0};
  snprintf(one->group, sizeof one->group, "%.*s", (int)strcspn(id, "-"), id);
  enum quire_status status = QUIRE_OK;
  if (eval->options->cases == 0 || cases_of_group(eval, one->group) < eval->options->cases) {
    one->answer = strdup(answer);
    status = one->answer == NULL ? quire_error_set(error_out, QUIRE_ERR_MEMORY, "recall.jsonl", "no memory for a case")
                                 : cli_encode(&eval->model, prompt, strlen(prompt), &one->tokens, error_out);
    if (status == QUIRE_OK) {
      eval->case_count++;
    } else {
      free(one->answer);
    }
  }
  free(prompt);
  return status;
}

static enum quire_status read_cases(struct eval *eval, struct quire_error *error_out) {
  struct quire_file_text text = {0};
  enum quire_status status = read_text(eval, "filler.txt", &eval->filler, error_out);
  if (status == QUIRE_OK) {
    status = read_text(eval, "recall.jsonl", &text, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  int32_t lines = 1;
  for (size_t i = 0; i < text.bytes; i++) {
    lines += text.data[i] == '\n' ? 1 : 0;
  }
  eval->cases = calloc((size_t)lines, sizeof *eval->cases);
  if (eval->cases == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "recall.jsonl", "no memory for %d cases", lines);
  }
  int32_t number = 0;
  for (char *at = text.data; status == QUIRE_OK && *at != '\0';) {
    size_t bytes = strcspn(at, "\n");
    json_t *line = json_loadb(at, bytes, 0, NULL);
    number++;
    if (bytes > 0) {
      status = add_case(eval, line, number, error_out);
    }
    json_decref(line);
    at += bytes + (at[bytes] == '\n' ? 1 : 0);
  }
  quire_file_text_free(quire_env_default(), &text);
  return status;
}

/* Greedy answer to a prompt; right when it is the expected one. */
static enum quire_status ask(struct eval *eval, const struct recall_case *one, bool *right_out,
                             struct quire_error *error_out) {
  struct cli_answer answer = {
      .prompt = &one->tokens,
      .new_max = EVAL_ANSWER_TOKENS,
      .sampling = {.temperature = 0, .top_p = 1},
      .stop = "\n",
  };
  enum quire_status status = cli_answer_run(&eval->model, eval->engine, &answer, error_out);
  if (status == QUIRE_OK) {
    const char *text = answer.text + strspn(answer.text, " ");
    size_t length = strlen(text);
    while (length > 0 && text[length - 1] == ' ') {
      length--;
    }
    *right_out = length == strlen(one->answer) && memcmp(text, one->answer, length) == 0;
  }
  quire_engine_finish(eval->engine);
  cli_answer_free(&answer);
  return status;
}

/* Fills the cache with the whole pages in front of a case's question; *count_out is what covers them. */
static enum quire_status cache_context(struct eval *eval, const struct recall_case *one, int32_t *count_out,
                                       struct quire_error *error_out) {
  int32_t cut = (one->tokens.count - EVAL_QUESTION_TOKENS) / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
  struct cli_tokens context = {one->tokens.id, cut + 1, 0};
  struct cli_answer answer = {.prompt = &context, .new_max = 0};
  *count_out = context.count;
  enum quire_status status = cli_answer_run(&eval->model, eval->engine, &answer, error_out);
  quire_engine_finish(eval->engine);
  cli_answer_free(&answer);
  return status;
}

enum control { CONTROL_NONE, CONTROL_MISPAIRED, CONTROL_REPLACED };

/* Asks one case, after breaking its cached pages as the control says. */
static enum quire_status ask_control(struct eval *eval, int32_t index, enum control control, bool *right_out,
                                     struct quire_error *error_out) {
  const struct recall_case *one = &eval->cases[index];
  const struct recall_case *other = &eval->cases[index > 0 ? index - 1 : eval->case_count - 1];
  int32_t count = 0, other_count = 0, changed = 0;
  enum quire_status status = cache_context(eval, one, &count, error_out);
  if (status == QUIRE_OK && control == CONTROL_REPLACED) {
    status = cache_context(eval, other, &other_count, error_out);
  }
  if (status == QUIRE_OK) {
    changed = control == CONTROL_MISPAIRED
                  ? quire_engine_mispair(eval->engine, one->tokens.id, count, EVAL_PAGE_SHIFT)
                  : quire_engine_replace(eval->engine, one->tokens.id, count, other->tokens.id, other_count);
  }
  if (status == QUIRE_OK && changed == 0) {
    status = quire_error_set(error_out, QUIRE_ERR_STATE, "control", "no page of case %d is cached", index);
  }
  if (status == QUIRE_OK) {
    status = ask(eval, one, right_out, error_out);
  }
  quire_cache_flush(quire_engine_cache(eval->engine));
  return status;
}

static struct group *find_group(struct group *groups, int32_t *count, const char *name) {
  for (int32_t i = 0; i < *count; i++) {
    if (strcmp(groups[i].name, name) == 0) {
      return &groups[i];
    }
  }
  if (*count == EVAL_GROUPS_MAX) {
    return NULL;
  }
  struct group *group = &groups[(*count)++];
  memset(group, 0, sizeof *group);
  memcpy(group->name, name, strlen(name) + 1);
  return group;
}

static enum quire_status measure_recall(struct eval *eval, struct quire_error *error_out) {
  struct group groups[EVAL_GROUPS_MAX];
  int32_t count = 0;
  uint64_t started = cli_now_ns();
  enum quire_status status = QUIRE_OK;
  for (int32_t i = 0; status == QUIRE_OK && i < eval->case_count; i++) {
    struct group *group = find_group(groups, &count, eval->cases[i].group);
    bool right = false;
    status = ask(eval, &eval->cases[i], &right, error_out);
    if (group == NULL) {
      return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "recall.jsonl", "has more than %d groups of cases",
                             EVAL_GROUPS_MAX);
    }
    group->cases++;
    group->right += right ? 1 : 0;
    cli_progress("recall", i + 1, eval->case_count, "cases", started);
  }
  for (int32_t i = 0; status == QUIRE_OK && i < count; i++) {
    printf("recall %-8s          %5.1f %%  (%d of %d)\n", groups[i].name,
           100.0 * groups[i].right / (groups[i].cases > 0 ? groups[i].cases : 1), groups[i].right, groups[i].cases);
  }
  return status;
}

static enum quire_status measure_control(struct eval *eval, enum control control, const char *name,
                                         struct quire_error *error_out) {
  int32_t right = 0, cases = 0, total = cases_of_group(eval, eval->cases[0].group);
  uint64_t started = cli_now_ns();
  enum quire_status status = QUIRE_OK;
  for (int32_t i = 0; status == QUIRE_OK && i < eval->case_count; i++) {
    if (strcmp(eval->cases[i].group, eval->cases[0].group) != 0) {
      continue;
    }
    bool one = false;
    status = ask_control(eval, i, control, &one, error_out);
    right += one ? 1 : 0;
    cases++;
    cli_progress(name, cases, total, "cases", started);
  }
  if (status == QUIRE_OK) {
    printf("control %-18s %5.1f %%  (%d of %d, group %s)\n", name, 100.0 * right / (cases > 0 ? cases : 1), right,
           cases, eval->cases[0].group);
  }
  return status;
}

struct loss_sums {
  double loss;
  int64_t scored, agreed, drafted;
};

static void add_rows(struct loss_sums *sums, const struct quire_step_row *rows, int32_t count, bool draft) {
  for (int32_t i = 0; i + 1 < count; i++) {
    sums->loss -= (double)rows[i].logprob;
    sums->scored++;
    if (draft && i >= 1) {
      sums->drafted++;
      sums->agreed += rows[i].draft_argmax == rows[i].argmax ? 1 : 0;
    }
  }
}

static enum quire_status score_window(struct eval *eval, const int32_t *tokens, int32_t count,
                                      struct quire_step_row *rows, struct quire_error *error_out) {
  struct quire_engine_request request = {
      .tokens = tokens,
      .count = count,
      .no_match = true,
      .flags = QUIRE_ENTRY_SCORE | (eval->model.weights->has_mtp ? QUIRE_ENTRY_DRAFT_FULL : 0),
      .rows = rows,
  };
  struct quire_engine_event event = {0};
  enum quire_status status = quire_engine_start(eval->engine, &request, NULL, error_out);
  while (status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE) {
    status = quire_engine_step(eval->engine, &event, error_out);
  }
  quire_engine_finish(eval->engine);
  return status;
}

static enum quire_status measure_loss(struct eval *eval, struct quire_error *error_out) {
  struct cli_tokens tokens = {0};
  enum quire_status status = cli_encode(&eval->model, eval->heldout.data, eval->heldout.bytes, &tokens, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  int32_t window = (int32_t)eval->options->window_tokens, windows = (tokens.count + window - 1) / window;
  if (eval->options->windows > 0 && eval->options->windows < windows) {
    windows = (int32_t)eval->options->windows;
  }
  struct quire_step_row *rows = calloc((size_t)window, sizeof *rows);
  if (rows == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "loss", "no memory for a window of %d tokens", window);
  }
  struct loss_sums sums = {0};
  uint64_t started = cli_now_ns();
  for (int32_t w = 0; status == QUIRE_OK && w < windows; w++) {
    int32_t left = tokens.count - w * window, count = left < window ? left : window;
    if (count >= QUIRE_PAGE_TOKENS) {
      status = score_window(eval, tokens.id + w * window, count, rows, error_out);
      add_rows(&sums, rows, count, eval->model.weights->has_mtp);
    }
    cli_progress("loss", w + 1, windows, "windows", started);
  }
  free(rows);
  cli_tokens_free(&tokens);
  if (status == QUIRE_OK && sums.scored > 0) {
    printf("held-out loss            %.4f nats a token (%lld tokens, windows of %d)\n", sums.loss / (double)sums.scored,
           (long long)sums.scored, window);
    if (sums.drafted > 0) {
      printf("draft agreement          %5.1f %%  (%lld positions)\n",
             100.0 * (double)sums.agreed / (double)sums.drafted, (long long)sums.drafted);
    }
  }
  return status;
}

/* Everything that has to be read before the engine can be sized. */
static enum quire_status open_eval(struct eval *eval, struct quire_error *error_out) {
  enum quire_status status = cli_model_open(eval->worker, &eval->model, error_out);
  int64_t longest = eval->options->window_tokens;
  if (status == QUIRE_OK && eval->options->loss) {
    status = read_text(eval, "heldout.txt", &eval->heldout, error_out);
  }
  if (status == QUIRE_OK && (eval->options->recall || eval->options->controls)) {
    status = read_cases(eval, error_out);
  }
  for (int32_t i = 0; i < eval->case_count; i++) {
    int64_t tokens = eval->cases[i].tokens.count + EVAL_ANSWER_TOKENS;
    longest = tokens > longest ? tokens : longest;
  }
  if (status == QUIRE_OK) {
    status = cli_engine_config(eval->worker, &eval->model, longest, &eval->config, error_out);
  }
  if (status == QUIRE_OK) {
    status = quire_engine_create(quire_env_default(), &eval->config, &eval->engine, error_out);
  }
  return status;
}

static void close_eval(struct eval *eval) {
  quire_engine_destroy(eval->engine);
  for (int32_t i = 0; i < eval->case_count; i++) {
    free(eval->cases[i].answer);
    cli_tokens_free(&eval->cases[i].tokens);
  }
  free(eval->cases);
  quire_file_text_free(quire_env_default(), &eval->filler);
  quire_file_text_free(quire_env_default(), &eval->heldout);
  cli_model_close(&eval->model);
}

int cli_eval(int argc, char **argv) {
  struct cli_worker worker = {0};
  struct eval_options options = {0};
  struct quire_options *table = NULL;
  int exit_code = CLI_EXIT_OK;
  struct cli_command_line line = {"quire eval --model DIR [--cases N] [--windows N] [worker options]", eval_rows,
                                  (int)(sizeof eval_rows / sizeof eval_rows[0]), &options};
  if (!cli_read(line, argc, argv, &worker, &table, &exit_code)) {
    return exit_code;
  }
  struct eval eval = {.worker = &worker, .options = &options};
  struct quire_error error = {0};
  setvbuf(stdout, NULL, _IOLBF, 0); /* each figure shows when it is measured, in a file too: the whole takes minutes */
  enum quire_status status = open_eval(&eval, &error);
  if (status == QUIRE_OK && options.loss) {
    status = measure_loss(&eval, &error);
  }
  if (status == QUIRE_OK && options.recall) {
    status = measure_recall(&eval, &error);
  }
  if (status == QUIRE_OK && options.controls && eval.case_count > 1) {
    status = measure_control(&eval, CONTROL_MISPAIRED, "mispaired", &error);
    if (status == QUIRE_OK) {
      status = measure_control(&eval, CONTROL_REPLACED, "replaced", &error);
    }
  }
  close_eval(&eval);
  quire_options_destroy(table);
  return status == QUIRE_OK ? CLI_EXIT_OK : cli_fail(&error);
}
