#include "server/server.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/thread.h"
#include "base/wall.h"
#include "server/server_private.h"

#define TICK_NS ((uint64_t)50 * 1000 * 1000)
/* In which those whom the end cuts off may read that it did. */
#define LAST_WORDS_SECONDS 1.0

uint64_t quire_server_now(const struct quire_server *server) { return server->env->now_ns(server->env->context); }

const char *quire_server_model_name(const struct quire_server *server) {
  return server->options->served_name != NULL ? server->options->served_name : server->model->name;
}

int quire_server_port(const struct quire_server *server) { return quire_http_server_port(server->http); }

struct quire_loop *quire_server_loop(struct quire_server *server) {
  return server->loop;
}

static void wake(struct quire_server *server) {
  uint64_t one = 1;
  ssize_t wrote = write(server->wake_fd, &one, sizeof one);
  QUIRE_ASSERT(wrote == (ssize_t)sizeof one);
}

#define UNAVAILABLE(text) "{\"error\":{\"code\":503,\"message\":\"" text "\",\"type\":\"unavailable_error\"}}"

const char *quire_server_illness(const struct quire_server *server) {
  switch (server->state) {
  case SERVER_LOADING:
    return UNAVAILABLE("Loading model");
  case SERVER_READY:
    break;
  case SERVER_LEAVING:
  case SERVER_DEAF:
  case SERVER_CUT:
  default:
    return UNAVAILABLE("Shutting down");
  }
  if (quire_worker_failed(server->model->worker)) {
    return UNAVAILABLE("A rank has failed; restart the server");
  }
  bool silent = (double)quire_worker_silence_ns(server->model->worker) * 1e-9 > server->options->health_seconds;
  return silent ? UNAVAILABLE("The worker has not moved for longer than --health-seconds") : NULL;
}

/* --- text threads --- */

static void *text_main(void *context) {
  struct quire_server *server = context;
  struct server_job job;
  while (quire_queue_pop(server->jobs, &job) == QUIRE_OK) {
    job.work(job.context);
    /* there is room: as many jobs as either queue holds are under way at most */
    enum quire_status status = quire_queue_push(server->jobs_done, &job);
    QUIRE_ASSERT(status == QUIRE_OK);
    wake(server);
  }
  return NULL;
}

bool quire_server_post(struct quire_server *server, struct server_job job) {
  if (server->jobs_open == SERVER_JOBS_MAX) {
    return false;
  }
  enum quire_status status = quire_queue_try_push(server->jobs, &job);
  QUIRE_ASSERT(status == QUIRE_OK);
  server->jobs_open++;
  return true;
}

bool quire_server_hold(struct quire_server *server, size_t bytes, struct quire_api_fault *fault) {
  size_t most = (size_t)server->options->bodies_bytes;
  QUIRE_ASSERT(server->held_bytes <= most);
  if (bytes > most) {
    return quire_api_fail(fault, 413, "body_too_large", NULL,
                          "the request needs %zu bytes of memory, above the %zu of --max-bodies", bytes, most);
  }
  if (bytes > most - server->held_bytes) {
    return quire_api_fail(fault, 503, "too_many_bytes", NULL, "the server holds too many large requests at the moment");
  }
  server->held_bytes += bytes;
  return true;
}

static void stop_threads(struct quire_server *server) {
  if (server->jobs != NULL) {
    quire_queue_close(server->jobs);
  }
  for (int i = 0; i < server->thread_count; i++) {
    pthread_join(server->threads[i], NULL);
  }
  server->thread_count = 0;
}

static enum quire_status start_threads(struct quire_server *server, struct quire_error *error_out) {
  enum quire_status status =
      quire_queue_create(server->env, sizeof(struct server_job), SERVER_JOBS_MAX, &server->jobs, error_out);
  if (status == QUIRE_OK) {
    status = quire_queue_create(server->env, sizeof(struct server_job), SERVER_JOBS_MAX, &server->jobs_done, error_out);
  }
  for (int i = 0; i < server->options->text_threads && status == QUIRE_OK; i++) {
    if (!quire_thread_start(&server->threads[i], text_main, server)) {
      return quire_error_set(error_out, QUIRE_ERR_MEMORY, "--text-threads", "the system has no thread to give");
    }
    server->thread_count++;
  }
  return status;
}

/* --- the loop's turns --- */

static void on_worker(void *context) { quire_calls_pump(context); }

/* The model has come: from now on requests are served. */
static void take_model(struct quire_server *server) {
  const struct quire_server_model *model = atomic_load(&server->offered);
  if (model == NULL || server->model != NULL) {
    return;
  }
  server->model = model;
  enum quire_status status =
      quire_loop_watch_fd(server->loop, quire_worker_fd(model->worker), on_worker, server, &server->worker_watch);
  if (status != QUIRE_OK) {
    quire_env_log(server->env, QUIRE_LOG_ERROR, "no memory to watch the worker; the server stays unready");
    return;
  }
  if (server->state == SERVER_LOADING) {
    server->state = SERVER_READY;
    server->state_ns = quire_server_now(server);
  }
}

static void begin_drain(struct quire_server *server) {
  if (!atomic_load(&server->drain_asked) || server->state >= SERVER_LEAVING) {
    return;
  }
  server->state = SERVER_LEAVING;
  server->state_ns = quire_server_now(server);
  quire_env_log(server->env, QUIRE_LOG_INFO, "draining open=%d", server->call_count);
  quire_http_server_drain(server->http, true);
}

/* Whoever still waits is told why. */
static void cut_off(struct quire_server *server) {
  struct quire_api_fault fault = {0};
  server->state = SERVER_CUT;
  server->state_ns = quire_server_now(server);
  quire_api_fail(&fault, 503, "shutting_down", NULL, "the server is shutting down");
  quire_calls_cut(server, &fault);
  quire_text_jobs_cut(server, &fault);
}

static void on_wake(void *context) {
  struct quire_server *server = context;
  uint64_t count;
  ssize_t got = read(server->wake_fd, &count, sizeof count);
  QUIRE_ASSERT(got == (ssize_t)sizeof count);
  struct server_job job;
  while (quire_queue_try_pop(server->jobs_done, &job) == QUIRE_OK) {
    server->jobs_open--;
    job.done(job.context);
  }
  take_model(server);
  begin_drain(server);
  if (atomic_load(&server->stop_asked)) {
    cut_off(server);
    quire_loop_stop(server->loop);
  }
}

/* Steps of leaving: unready, deaf, empty or late; who was late gets the rest of an answer written. */
static void tick_drain(struct quire_server *server, uint64_t now) {
  double seconds = (double)(now - server->state_ns) * 1e-9;
  if (server->state == SERVER_LEAVING && (seconds >= server->options->drain_delay_seconds || server->model == NULL)) {
    server->state = SERVER_DEAF;
    server->state_ns = now;
    quire_http_server_drain(server->http, false);
    return;
  }
  if (server->state < SERVER_DEAF) {
    return;
  }
  struct quire_http_stats http;
  quire_http_server_stats(server->http, &http);
  if (http.connections == 0 || (server->state == SERVER_CUT && seconds >= LAST_WORDS_SECONDS)) {
    quire_loop_stop(server->loop);
  } else if (server->state == SERVER_DEAF && seconds >= server->options->shutdown_seconds) {
    if (http.exchanges > 0) {
      quire_env_log(server->env, QUIRE_LOG_WARN, "shutdown cuts off requests open=%d", http.exchanges);
    }
    cut_off(server);
  }
}

static void on_tick(void *context) {
  struct quire_server *server = context;
  uint64_t now = quire_server_now(server);
  quire_calls_tick(server, now);
  tick_drain(server, now);
  if (now - server->throughput_ns >= 1000000000) {
    int64_t drawn = server->numbers.drawn_tokens;
    server->throughput = (double)(drawn - server->throughput_tokens) / ((double)(now - server->throughput_ns) * 1e-9);
    server->throughput_tokens = drawn;
    server->throughput_ns = now;
  }
  quire_loop_timer_start(server->tick, TICK_NS);
}

/* --- life --- */

static uint64_t in_ns(double seconds) { return (uint64_t)(seconds * 1e9); }

static struct quire_http_config http_config(struct quire_server *server) {
  const struct quire_server_options *options = server->options;
  struct quire_http_config config = {
      .host = options->host,
      .port = (int)options->port,
      .limits = quire_http_limits_default(),
      .handler = quire_server_handler(server),
  };
  config.limits.connections = (int)options->connections;
  config.limits.head_bytes = (size_t)options->head_bytes;
  config.limits.body_bytes = (size_t)options->body_bytes;
  config.limits.bodies_bytes = (size_t)options->bodies_bytes;
  config.limits.out_bytes = SERVER_OUT_BYTES;
  config.limits.head_ns = in_ns(options->head_seconds);
  config.limits.body_ns = in_ns(options->body_seconds);
  config.limits.idle_ns = in_ns(options->idle_seconds);
  config.limits.write_ns = in_ns(options->write_seconds);
  return config;
}

static enum quire_status open_server(struct quire_server *server, struct quire_error *error_out) {
  server->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (server->wake_fd < 0) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "server", "the system has no descriptor left (ulimit -n)");
  }
  if (!quire_server_read_keys(server, error_out)) {
    return error_out->status;
  }
  if (!quire_tickets_create(server)) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "server", "no memory for its tables");
  }
  enum quire_status status = quire_loop_create(server->env, &server->loop, error_out);
  if (status == QUIRE_OK &&
      (quire_loop_watch_fd(server->loop, server->wake_fd, on_wake, server, &server->wake_watch) != QUIRE_OK ||
       quire_loop_timer(server->loop, on_tick, server, &server->tick) != QUIRE_OK)) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "server", "no memory for its timers");
  }
  if (status == QUIRE_OK) {
    struct quire_http_config config = http_config(server);
    status = quire_http_server_create(server->env, server->loop, &config, &server->http, error_out);
  }
  if (status == QUIRE_OK) {
    status = start_threads(server, error_out);
  }
  return status;
}

enum quire_status quire_server_create(const struct quire_env *env, const struct quire_server_options *options,
                                      struct quire_server **server_out, struct quire_error *error_out) {
  struct quire_error error = {0};
  struct quire_server *server = quire_env_zalloc(env, 1, sizeof *server);
  if (server == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "server", "no memory for it");
  }
  server->env = env;
  server->options = options;
  server->wake_fd = -1;
  server->started_seconds = quire_wall_ms() / 1000;
  server->throughput_ns = server->state_ns = quire_server_now(server);
  quire_numbers_init(&server->numbers);
  quire_numbers_init(&server->probe_numbers);
  quire_list_init(&server->calls);
  quire_list_init(&server->dirty);
  quire_list_init(&server->text_jobs);
  enum quire_status status = open_server(server, &error);
  if (status != QUIRE_OK) {
    quire_server_destroy(server);
    return quire_error_set(error_out, status, error.where, "%s", error.text);
  }
  quire_loop_timer_start(server->tick, TICK_NS);
  *server_out = server;
  return QUIRE_OK;
}

void quire_server_destroy(struct quire_server *server) {
  if (server == NULL) {
    return;
  }
  const struct quire_env *env = server->env;
  stop_threads(server);
  quire_calls_destroy(server);
  quire_text_jobs_destroy(server);
  quire_http_server_destroy(server->http);
  quire_loop_watch_end(server->worker_watch);
  quire_loop_watch_end(server->wake_watch);
  quire_loop_watch_end(server->tick);
  quire_loop_destroy(server->loop);
  quire_queue_destroy(server->jobs);
  quire_queue_destroy(server->jobs_done);
  quire_env_free(env, server->keys, SERVER_KEYS_MAX, sizeof *server->keys);
  quire_env_free(env, server->slots, (size_t)server->slot_count, sizeof *server->slots);
  if (server->wake_fd >= 0) {
    close(server->wake_fd);
  }
  quire_env_free(env, server, 1, sizeof *server);
}

enum quire_status quire_server_run(struct quire_server *server, struct quire_error *error_out) {
  return quire_loop_run(server->loop, error_out);
}

void quire_server_attach(struct quire_server *server, const struct quire_server_model *model) {
  QUIRE_ASSERT(model->worker != NULL && model->tokenizer != NULL && model->ctx_tokens > 0);
  const struct quire_server_model *before = atomic_exchange(&server->offered, model);
  QUIRE_ASSERT(before == NULL);
  wake(server);
}

void quire_server_drain(struct quire_server *server) {
  atomic_store(&server->drain_asked, true);
  wake(server);
}

void quire_server_stop(struct quire_server *server) {
  atomic_store(&server->stop_asked, true);
  wake(server);
}
