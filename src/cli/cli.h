/* What the commands of the program share: options that describe a worker, opening a model, running one request, and how
 * faults and progress are shown. Commands answer an exit code: 0, 2 for bad input, 1 for everything else. */
#ifndef QUIRE_CLI_CLI_H
#define QUIRE_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/option.h"
#include "engine/engine.h"
#include "model/safetensors.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CLI_EXIT_OK 0
#define CLI_EXIT_FAILURE 1
#define CLI_EXIT_USAGE 2

enum { CLI_VIEW_AUTO, CLI_VIEW_GATHER, CLI_VIEW_PEER, CLI_VIEW_LOCAL };
enum { CLI_KV_AUTO, CLI_KV_SHARED, CLI_KV_REPLICATED };
enum { CLI_MTP_AUTO, CLI_MTP_ON, CLI_MTP_OFF };
enum { CLI_WEIGHTS_AUTO, CLI_WEIGHTS_PACKED, CLI_WEIGHTS_MAPPED };
enum { CLI_COMPUTE_BF16, CLI_COMPUTE_F32 };
enum { CLI_SCALES_POW2, CLI_SCALES_ANY };

/* Filled from the option table `cli_worker_rows`. */
struct cli_worker {
  const char *model;
  const char *config; /* YAML file */
  int64_t ranks, chunk_tokens, threads_per_rank, ctx_tokens, cache_tokens;
  int split, view, kv, kv_format, kv_scales, compute, mtp, weights;
  const char *isa, *executor;
  double latent_norm_eps;
  bool hadamard;
  bool poison;
  bool debug_shared_kv;
  int fault;
  int64_t fault_step;
  bool help;
};

extern const struct quire_option cli_worker_rows[];
extern const int cli_worker_row_count;

/* Reads argv (without program and command), QUIRE_* and --config. Prints help and answers false with *exit_out set when
 * the command should end. */
struct cli_command_line {
  const char *usage;
  const struct quire_option *rows; /* of the command itself; may be NULL */
  int row_count;
  void *target;
};
bool cli_read(struct cli_command_line command, int argc, char **argv, struct cli_worker *worker,
              struct quire_options **options_out, int *exit_out);

/* The same for a command with groups of options of other modules; those of the worker come behind. */
#define CLI_GROUPS_MAX 4
struct cli_command_groups {
  const char *usage;
  const struct quire_option_group *groups;
  int count; /* below CLI_GROUPS_MAX */
};
bool cli_read_groups(struct cli_command_groups command, int argc, char **argv, struct cli_worker *worker,
                     struct quire_options **options_out, int *exit_out);

/* What --help writes in this process: text for a terminal, the part of a manual page between its name and its end, or
 * words for the shell's completion. Commands know their options only while they run. */
enum cli_help { CLI_HELP_TEXT, CLI_HELP_MAN, CLI_HELP_WORDS };
void cli_help_as(enum cli_help form);

/* A command of the program. */
struct cli_command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
  const char *const *subjects; /* first arguments with options of their own, NULL at the end; NULL: it has none */
  /* names its first argument may have, by index, NULL behind the last; NULL: it takes options only */
  const char *(*first_name)(int index, const char **about_out);
};

/* `quire man`: the program's manual page, or with a command's name that command's. */
int cli_man(const struct cli_command *commands, int count, int argc, char **argv);
/* `quire completions`: a function for bash or, where it is named, for zsh or fish. */
int cli_completions(const struct cli_command *commands, int count, int argc, char **argv);

/* A model opened for use. */
struct cli_model {
  struct quire_model_config config;
  struct quire_model_options options;
  struct quire_generation_config generation;
  struct quire_safetensors *tensors;
  const struct quire_model_weights *weights;
  struct quire_tokenizer *tokenizer;
};

/* Opens everything in worker->model, with a progress bar on a terminal. */
enum quire_status cli_model_open(const struct cli_worker *worker, struct cli_model *model_out,
                                 struct quire_error *error_out);
void cli_model_close(struct cli_model *model);

/* What requests need, for the function below, where none is known yet: whatever --ctx-tokens says; without it 16,384,
 * or as many as the model has positions. */
int64_t cli_open_context(const struct cli_worker *worker, const struct cli_model *model);
/* Engine configuration of a worker; ctx_tokens is what requests need where the user left it open. */
enum quire_status cli_engine_config(const struct cli_worker *worker, const struct cli_model *model, int64_t ctx_tokens,
                                    struct quire_engine_config *config_out, struct quire_error *error_out);

/* Filled from the option table `cli_sampling_rows`, then by cli_sampling_read. */
struct cli_sampling {
  double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  int64_t top_k, seed, min_tokens, logprobs;
  const char *logit_bias, *stop_ids;
  bool ignore_eos;

  struct quire_bias bias[QUIRE_BIAS_MAX];
  int32_t bias_count;
  int32_t stops[QUIRE_ENGINE_STOPS_MAX]; /* the model's, unless ignore_eos, then stop_ids */
  int32_t stop_count;
};

extern const struct quire_option cli_sampling_rows[];
extern const int cli_sampling_row_count;

/* What the model's generation_config.json says, everything else off. */
struct quire_sampling cli_model_sampling(const struct cli_model *model);
/* What was asked, the model's own where nothing was. Points into *sampling. QUIRE_ERR_ARGUMENT. */
enum quire_status cli_sampling_read(struct cli_sampling *sampling, const struct cli_model *model,
                                    struct quire_sampling *sampling_out, struct quire_error *error_out);

/* Text to tokens; *tokens_out is freed with cli_tokens_free. */
struct cli_tokens {
  int32_t *id;
  int32_t count;
  size_t capacity;
};
enum quire_status cli_encode(const struct cli_model *model, const char *text, size_t bytes,
                             struct cli_tokens *tokens_out, struct quire_error *error_out);
void cli_tokens_free(struct cli_tokens *tokens);

/* One request from start to DONE. Fields up to `on_text` are input. */
struct cli_answer {
  const struct cli_tokens *prompt;
  int32_t new_max;
  int32_t new_min; /* before so many tokens no stop token is drawn */
  struct quire_sampling sampling;
  const int32_t *stops; /* tokens that end the answer; NULL: the model's own, or with ignore_eos none */
  int32_t stop_count;
  bool ignore_eos;
  bool no_match;
  const char *stop;                                               /* text that ends the answer, NULL: none */
  bool progress;                                                  /* show a bar while prefilling, on a terminal */
  void (*on_text)(void *context, const char *text, size_t bytes); /* NULL: none */
  void (*on_token)(void *context, const struct quire_engine_event *event); /* NULL: none */
  void *context;

  struct cli_tokens drawn;
  char *text; /* of the answer, without the stop */
  size_t text_bytes;
  size_t shown; /* bytes given to on_text so far */
  int32_t hit;  /* prompt tokens found in the cache */
  uint64_t prefill_ns, decode_ns;
  int32_t decode_steps;
};
/* The request is at DONE, its rows readable, until quire_engine_finish. Free with cli_answer_free whatever it answers.
 */
enum quire_status cli_answer_run(const struct cli_model *model, struct quire_engine *engine, struct cli_answer *answer,
                                 struct quire_error *error_out);
void cli_answer_free(struct cli_answer *answer);

/* Digest of the stored rows of every part of the running request, in request order. */
enum quire_status cli_kv_digest(const struct quire_engine *engine, struct quire_hash128 *digest_out,
                                struct quire_error *error_out);

/* "quire: where: text" on stderr, on a line of its own; answers the exit code. */
int cli_fail(const struct quire_error *error);
/* Bar on stderr if that is a terminal; done = total ends the line. unit: "tokens", "MB". */
void cli_progress(const char *what, double done, double total, const char *unit, uint64_t started_ns);
uint64_t cli_now_ns(void);

int cli_run(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_bench(int argc, char **argv);
const char *cli_bench_name(int index, const char **about_out);
int cli_replay(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
