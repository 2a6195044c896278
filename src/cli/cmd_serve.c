/* quire serve: a model behind HTTP until a signal. The loop has a thread of its own, so that health is answered while
 * the model loads. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/thread.h"
#include "base/wall.h"
#include "cli/cli.h"
#include "engine/worker.h"
#include "quire/quire.h"
#include "server/log_write.h"
#include "server/server.h"
#include "text/chat.h"

#define MB(bytes) ((double)(bytes)*1e-6)
#define SERVE_RING_EVENTS 64
/* Beside connections: files of the model, threads' wakes, the loop. */
#define SERVE_OTHER_DESCRIPTORS 128
/* For the rest of the process, when its server has ended by itself, and when it was told twice. */
#define SERVE_END_SECONDS 5
#define SERVE_END_SECONDS_TWICE 1

static const char *const log_formats[] = {"text", "json", NULL};
static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};

struct serve_options {
  int64_t running, queue, yield_margin;
  int log_format, log_level;
  bool print_config;
};

#define AT(field) offsetof(struct serve_options, field)

static const struct quire_option serve_rows[] = {
    {.name = "max-running",
     .type = QUIRE_OPTION_INT,
     .offset = AT(running),
     .default_text = "16",
     .min = 1,
     .max = 4096,
     .help = "requests that compute at once"},
    {.name = "queue",
     .type = QUIRE_OPTION_INT,
     .offset = AT(queue),
     .default_text = "256",
     .min = 1,
     .max = 1 << 16,
     .help = "requests that wait; one more gets 429"},
    {.name = "priority-preemption",
     .type = QUIRE_OPTION_INT,
     .offset = AT(yield_margin),
     .default_text = "0",
     .min = 0,
     .max = 1 << 30,
     .help =
         "a request that cannot enter takes the place of those that compute with a priority lower by so much, which "
         "go on later; 0: of nobody"},
    {.name = "log-format",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(log_format),
     .values = log_formats,
     .help = "lines of the log on standard error"},
    {.name = "log-level",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(log_level),
     .default_text = "info",
     .values = log_levels,
     .help = "what is logged: errors, warnings too, what happens, everything"},
    {.name = "print-config",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(print_config),
     .help = "print every option, its value and where it came from, as YAML, and end",
     .deed = true},
};

struct serving {
  struct cli_worker worker;
  struct serve_options serve;
  struct quire_server_options http;
  struct quire_env env;
  struct cli_model model;
  struct quire_engine_config config;
  struct quire_engine *engine;
  struct quire_worker *controller;
  struct quire_chat *chat;
  char chat_refused[QUIRE_TEXT_BYTES];
  char numerics[QUIRE_NUMERICS_BYTES];
  int32_t eos[QUIRE_MODEL_EOS_MAX + QUIRE_CHAT_STOPS_MAX];
  struct quire_server_model served;
  struct quire_server *server;
  struct quire_loop_watch *signals;
  int signal_fd, signal_count;
  pthread_t loop;
};

/* --- log --- */

static void on_log(void *context, enum quire_log_level level, const char *line) {
  const struct serving *serving = context;
  if ((int)level > serving->serve.log_level) {
    return;
  }
  char time[QUIRE_WALL_ISO_BYTES];
  struct quire_strbuf out;
  quire_strbuf_init(&out, quire_env_default());
  quire_wall_iso(quire_wall_ms(), time);
  if (serving->serve.log_format == 1) {
    quire_log_write_json(&out, time, log_levels[level], line);
  } else {
    quire_strbuf_addf(&out, "%s %-5s %s\n", time, log_levels[level], line);
  }
  fputs(quire_strbuf_text(&out), stderr);
  quire_strbuf_fini(&out);
}

/* --- signals --- */

/* The first drains, the second ends. A hang-up reads the key file again, where there is one. */
static void on_signal(void *context) {
  struct serving *serving = context;
  struct signalfd_siginfo info;
  if (read(serving->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) {
    return;
  }
  if (info.ssi_signo == SIGHUP && serving->http.api_key_file != NULL) {
    quire_server_reload_keys(serving->server);
    return;
  }
  serving->signal_count++;
  quire_env_log(&serving->env, QUIRE_LOG_INFO, "signal number=%d count=%d", (int)info.ssi_signo, serving->signal_count);
  if (serving->signal_count == 1) {
    quire_server_drain(serving->server);
  } else if (serving->signal_count == 2) {
    quire_server_stop(serving->server);
  }
}

/* Before any thread is made, since threads inherit what is blocked. */
static sigset_t block_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  return set;
}

static enum quire_status watch_signals(struct serving *serving, sigset_t set, struct quire_error *error_out) {
  serving->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (serving->signal_fd < 0 || quire_loop_watch_fd(quire_server_loop(serving->server), serving->signal_fd, on_signal,
                                                    serving, &serving->signals) != QUIRE_OK) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "serve", "the system has no descriptor left for signals");
  }
  return QUIRE_OK;
}

static void on_alarm(int number) {
  static const char text[] =
      "quire serve: a step, or the loading of the model, does not end; the process ends without it\n";
  (void)number;
  ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
  (void)ignored;
  _exit(CLI_EXIT_OK);
}

/* The server has ended and its clients have their answers: neither a rank that hangs nor a model that still loads may
 * keep the process. Ranks that are processes end with it. */
static void limit_the_end(const struct serving *serving) {
  struct sigaction action = {.sa_handler = on_alarm};
  sigemptyset(&action.sa_mask);
  sigaction(SIGALRM, &action, NULL);
  alarm(serving->signal_count > 1 ? SERVE_END_SECONDS_TWICE : SERVE_END_SECONDS);
}

static void *loop_main(void *context) {
  struct serving *serving = context;
  struct quire_error error = {0};
  if (quire_server_run(serving->server, &error) != QUIRE_OK) {
    quire_env_log(&serving->env, QUIRE_LOG_ERROR, "%s: %s", error.where, error.text);
  }
  limit_the_end(serving);
  return NULL;
}

/* --- the model --- */

static enum quire_status create_worker(struct serving *serving, struct quire_error *error_out) {
  enum quire_status status =
      cli_engine_config(&serving->worker, &serving->model, cli_open_context(&serving->worker, &serving->model),
                        &serving->config, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  serving->config.running_max = (int32_t)serving->serve.running;
  serving->config.queue_max = (int32_t)serving->serve.queue;
  serving->config.yield_margin = (int32_t)serving->serve.yield_margin;
  status = quire_engine_create(&serving->env, &serving->config, &serving->engine, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  const struct quire_worker_config config = {
      .engine = serving->engine,
      /* beside those that compute and wait: those whose last tokens are still being read */
      .tickets_max = 2 * (int32_t)(serving->serve.running + serving->serve.queue),
      .ring_events = SERVE_RING_EVENTS,
      .stall_ns = (uint64_t)(2e9 * serving->http.write_seconds),
  };
  return quire_worker_create(&serving->env, &config, &serving->controller, error_out);
}

/* Tokens that end an answer: the model's, and those of its template. */
static int32_t gather_eos(struct serving *serving) {
  int32_t count = 0;
  size_t stops = 0;
  for (int32_t i = 0; i < serving->model.generation.eos_count; i++) {
    serving->eos[count++] = serving->model.generation.eos[i];
  }
  const int32_t *ids = serving->chat != NULL ? quire_chat_stops(serving->chat, &stops) : NULL;
  for (size_t i = 0; i < stops; i++) {
    bool known = false;
    for (int32_t k = 0; k < count; k++) {
      known = known || serving->eos[k] == ids[i];
    }
    if (!known) {
      serving->eos[count++] = ids[i];
    }
  }
  return count;
}

static const char *base_name(const char *path) {
  size_t bytes = strlen(path);
  while (bytes > 1 && path[bytes - 1] == '/') {
    bytes--;
  }
  size_t at = bytes;
  while (at > 0 && path[at - 1] != '/') {
    at--;
  }
  return path + at;
}

static const char *view_name(enum quire_view_mode mode) {
  return mode == QUIRE_VIEW_LOCAL ? "local" : mode == QUIRE_VIEW_PEER ? "peer" : "gather";
}

static void describe(struct serving *serving) {
  const struct quire_engine_config *config = &serving->config;
  const struct quire_model_weights *weights = serving->model.weights;
  struct quire_engine_memory memory = {0};
  quire_engine_plan(config, &memory, NULL);
  serving->served = (struct quire_server_model){
      .name = base_name(serving->worker.model),
      .path = serving->worker.model,
      .family = quire_family_name(serving->model.config.family),
      .version = quire_version(),
      .view = view_name(config->view),
      .kv_format = quire_kv_format_name(config->kv_format),
      .numerics = quire_model_numerics(&serving->model.options, "cpu", serving->numerics),
      .worker = serving->controller,
      .tokenizer = serving->model.tokenizer,
      .chat = serving->chat,
      .eos = serving->eos,
      .eos_count = gather_eos(serving),
      .vocab = serving->model.config.vocab,
      .ctx_tokens = config->ctx_tokens,
      .cache_tokens = config->cache_tokens,
      .page_tokens = QUIRE_PAGE_TOKENS,
      .ranks = config->ranks,
      .running_max = config->running_max,
      .queue_max = config->queue_max,
      .weight_bytes = (int64_t)(weights->mapped_bytes + weights->packed_bytes + weights->copied_bytes),
      .kv_bytes = config->ranks * memory.rank.pages,
      .defaults = cli_model_sampling(&serving->model),
  };
}

static enum quire_status open_model(struct serving *serving, struct quire_error *error_out) {
  enum quire_status status = cli_model_open(&serving->worker, &serving->model, error_out);
  if (status == QUIRE_OK) {
    status = create_worker(serving, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  struct quire_error refused = {0};
  if (quire_chat_open(&serving->env, serving->worker.model, serving->model.tokenizer, &serving->chat, &refused) !=
      QUIRE_OK) {
    snprintf(serving->chat_refused, sizeof serving->chat_refused, "%s", refused.text);
  }
  describe(serving);
  return QUIRE_OK;
}

/* --- summary --- */

static void print_memory(const struct serving *serving) {
  const struct quire_engine_config *config = &serving->config;
  struct quire_engine_memory memory;
  if (quire_engine_plan(config, &memory, NULL) != QUIRE_OK) {
    return;
  }
  const struct quire_step_memory *rank = &memory.rank;
  printf("  cache      %d tokens in %d pages of %d, %lld bytes a token (%s)\n", config->cache_tokens, memory.pages,
         QUIRE_PAGE_TOKENS, (long long)(memory.bundle_bytes / QUIRE_PAGE_TOKENS), serving->served.kv_format);
  printf(
      "  memory     a rank: %.1f MB pages, %.1f exchange, %.1f local, %.1f gather, %.1f selection, %.1f activations\n",
      MB(rank->pages), MB(rank->view.exchange), MB(rank->view.local), MB(rank->view.gather), MB(rank->view.scratch),
      MB(rank->forward));
  printf("             the worker: %.1f MB requests, %.1f page states and tree, %.1f RoPE; %.1f MB in all\n",
         MB(memory.controller), MB(memory.brain), MB(memory.rope), MB(quire_engine_memory_total(config, &memory)));
  printf("             weights: %.1f MB mapped, %.1f MB packed, %.1f MB copied\n",
         MB(serving->model.weights->mapped_bytes), MB(serving->model.weights->packed_bytes),
         MB(serving->model.weights->copied_bytes));
}

static void print_refused(const struct serving *serving) {
  static const enum quire_view_mode modes[] = {QUIRE_VIEW_LOCAL, QUIRE_VIEW_GATHER, QUIRE_VIEW_PEER};
  const struct quire_engine_config *config = &serving->config;
  struct quire_geometry geometry = {QUIRE_PAGE_TOKENS, config->ranks,
                                    config->sharing == QUIRE_SHARING_SHARED ? config->ranks : 1, 1};
  const char *title = "refused  ";
  for (int i = 0; i < 3; i++) {
    const char *why = NULL;
    if (!quire_view_can(modes[i], &geometry, &why)) {
      printf("  %s  view %s: %s\n", title, view_name(modes[i]), why);
      title = "         ";
    }
  }
  if (serving->chat == NULL) {
    printf("  %s  chat: %s\n", title, serving->chat_refused);
  }
}

static void print_summary(const struct serving *serving) {
  const struct quire_model_config *model = &serving->model.config;
  const struct quire_engine_config *config = &serving->config;
  const struct quire_server_options *http = &serving->http;
  printf("quire %s serves %s at http://%s:%d\n", quire_version(),
         http->served_name != NULL ? http->served_name : serving->served.name, http->host,
         quire_server_port(serving->server));
  printf("  model      %s, %d layers, %.1f M parameters, %s; chat %s\n", serving->served.family, model->layers,
         (double)model->target_parameters * 1e-6, serving->model.weights->has_mtp ? "draft layer" : "no draft layer",
         serving->chat != NULL ? quire_chat_format_name(quire_chat_format_of(serving->chat)) : "refused");
  printf("  ranks      %d (%s), split %s, KV %s, view %s, kernels %s, numerics %s\n", config->ranks, config->executor,
         config->split == QUIRE_SPLIT_ZIGZAG ? "zigzag" : "interleave",
         config->sharing == QUIRE_SHARING_SHARED ? "shared" : "replicated", serving->served.view, config->kernels->name,
         serving->numerics);
  printf("  requests   %d tokens each, %d at once, %d wait\n", config->ctx_tokens, config->running_max,
         config->queue_max);
  print_memory(serving);
  print_refused(serving);
  bool keys = http->api_key != NULL || http->api_key_file != NULL;
  printf("  access     %s\n",
         keys ? "with a key, but for health" : "no key: everyone who reaches this address may use it");
  fflush(stdout);
}

/* --- life --- */

/* Descriptors for every connection, as far as the system lets this process have them. */
static void raise_descriptors(const struct serving *serving) {
  struct rlimit limit;
  rlim_t wanted = (rlim_t)serving->http.connections + SERVE_OTHER_DESCRIPTORS;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) {
    return;
  }
  limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted) {
    quire_env_log(&serving->env, QUIRE_LOG_WARN, "fewer descriptors than connections limit=%llu connections=%lld",
                  (unsigned long long)limit.rlim_cur, (long long)serving->http.connections);
  }
}

static enum quire_status start_server(struct serving *serving, struct quire_error *error_out) {
  sigset_t set = block_signals();
  raise_descriptors(serving);
  enum quire_status status = quire_server_create(&serving->env, &serving->http, &serving->server, error_out);
  if (status == QUIRE_OK) {
    status = watch_signals(serving, set, error_out);
  }
  if (status == QUIRE_OK && !quire_thread_start(&serving->loop, loop_main, serving)) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "serve", "the system has no thread to give");
  }
  return status;
}

static int serve(struct serving *serving) {
  struct quire_error error = {0};
  enum quire_status status = start_server(serving, &error);
  bool running = status == QUIRE_OK;
  if (running) {
    status = open_model(serving, &error);
    if (status == QUIRE_OK) {
      print_summary(serving);
      quire_server_attach(serving->server, &serving->served);
    } else {
      quire_server_stop(serving->server);
    }
    pthread_join(serving->loop, NULL);
  }
  quire_loop_watch_end(serving->signals);
  quire_server_destroy(serving->server);
  if (serving->signal_fd >= 0) {
    close(serving->signal_fd);
  }
  quire_worker_destroy(serving->controller);
  quire_engine_destroy(serving->engine);
  quire_chat_close(serving->chat);
  cli_model_close(&serving->model);
  return status == QUIRE_OK ? CLI_EXIT_OK : cli_fail(&error);
}

static void print_config(const struct quire_options *options) {
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  quire_options_write_dump(options, &text);
  fputs(quire_strbuf_text(&text), stdout);
  quire_strbuf_fini(&text);
}

int cli_serve(int argc, char **argv) {
  static struct serving serving;
  struct quire_options *options = NULL;
  int exit_code = CLI_EXIT_OK;
  const struct quire_option_group groups[] = {
      {"Options of this command:", serve_rows, (int)(sizeof serve_rows / sizeof serve_rows[0]), &serving.serve},
      {"Server:", quire_server_rows, quire_server_row_count, &serving.http},
  };
  struct cli_command_groups line = {"quire serve --model DIR [--ranks R] [--port P] [--config FILE.yaml] ...", groups,
                                    2};
  if (!cli_read_groups(line, argc, argv, &serving.worker, &options, &exit_code)) {
    return exit_code;
  }
  serving.signal_fd = -1;
  serving.env = *quire_env_default();
  serving.env.context = &serving;
  serving.env.log = on_log;
  if (serving.serve.print_config) {
    print_config(options);
  } else {
    exit_code = serve(&serving);
  }
  quire_options_destroy(options);
  return exit_code;
}
