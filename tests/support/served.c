#include "support/served.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MINI QUIRE_SOURCE_DIR "/models/quire-mini"

static void *run_server(void *context) {
  struct served *served = context;
  quire_server_run(served->server, NULL);
  return NULL;
}

static void open_options(struct served *served, const struct served_config *config) {
  struct quire_error error = {0};
  struct quire_option_group group = {"server", quire_server_rows, quire_server_row_count, &served->options};
  assert_int_equal(quire_options_create(quire_env_default(), &group, 1, &served->table, &error), QUIRE_OK);
  served->options.port = 0;
  served->options.drain_delay_seconds = 0;
  if (config->change != NULL) {
    config->change(&served->options);
  }
}

static void open_engine(struct served *served, const struct served_config *config) {
  struct quire_error error = {0};
  served->sim.fail_epoch = config->fail_epoch;
  served->sim.hang = &served->hang;
  served->sim.dead = &served->dead;
  int32_t ctx = config->ctx_tokens > 0 ? config->ctx_tokens : 4096;
  quire_sim_model(quire_tokenizer_vocab(served->tokenizer), 1 << 22, &served->config, &served->weights);
  struct quire_engine_config engine = {
      .model = &served->config,
      .weights = &served->weights,
      .options = quire_model_options_default(),
      .executor = "sim",
      .sim = &served->sim,
      .ranks = 2,
      .view = QUIRE_VIEW_PEER,
      .kv_format = QUIRE_KV_BF16,
      .chunk_tokens = 512,
      .threads_per_rank = 1,
      .ctx_tokens = ctx,
      .cache_tokens = config->cache_tokens > 0 ? config->cache_tokens : 4 * ctx,
      .running_max = config->running_max > 0 ? config->running_max : 16,
      .queue_max = config->queue_max > 0 ? config->queue_max : 64,
  };
  assert_int_equal(quire_kernels_find("auto", &engine.kernels, &error), QUIRE_OK);
  if (quire_engine_create(quire_env_default(), &engine, &served->engine, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
  struct quire_worker_config worker = {
      .engine = served->engine,
      .tickets_max = 2 * (engine.running_max + engine.queue_max),
      .ring_events = config->ring_events > 0 ? config->ring_events : 64,
      .stall_ns = 0,
  };
  assert_int_equal(quire_worker_create(quire_env_default(), &worker, &served->worker, &error), QUIRE_OK);
  served->model = (struct quire_server_model){
      .name = "quire-sim",
      .path = MINI,
      .family = "deepseek_v32",
      .version = "test",
      .view = "peer",
      .kv_format = "bf16",
      .numerics = "sim",
      .worker = served->worker,
      .tokenizer = served->tokenizer,
      .chat = served->chat,
      .eos = &served->eos,
      .eos_count = 1,
      .vocab = quire_tokenizer_vocab(served->tokenizer),
      .ctx_tokens = ctx,
      .cache_tokens = engine.cache_tokens,
      .page_tokens = QUIRE_PAGE_TOKENS,
      .ranks = engine.ranks,
      .running_max = engine.running_max,
      .queue_max = engine.queue_max,
      .weight_bytes = (int64_t)5 << 29,
      .kv_bytes = (int64_t)3 << 28,
      .defaults = quire_sampling_default(),
  };
}

void served_attach(struct served *served) {
  struct reply reply;
  quire_server_attach(served->server, &served->model);
  for (int i = 0; i < 500; i++) {
    client_ask(served->port, "GET", "/readyz", NULL, &reply);
    int status = reply.status;
    reply_free(&reply);
    if (status == 200) {
      return;
    }
    nanosleep(&(struct timespec){0, 10000000}, NULL);
  }
  fail_msg("the server does not become ready");
}

void served_open(struct served *served, const struct served_config *config) {
  struct quire_error error = {0};
  memset(served, 0, sizeof *served);
  open_options(served, config);
  assert_int_equal(quire_tokenizer_open(quire_env_default(), MINI, &served->tokenizer, &error), QUIRE_OK);
  assert_int_equal(quire_chat_open(quire_env_default(), MINI, served->tokenizer, &served->chat, &error), QUIRE_OK);
  served->eos = quire_tokenizer_special(served->tokenizer).eos;
  open_engine(served, config);
  const struct quire_env *env = config->env != NULL ? config->env : quire_env_default();
  if (quire_server_create(env, &served->options, &served->server, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
  served->port = quire_server_port(served->server);
  assert_int_equal(pthread_create(&served->thread, NULL, run_server, served), 0);
  if (!config->loading) {
    served_attach(served);
  }
}

void served_open_narrow(struct served *served, int32_t ctx_tokens, void (*change)(struct quire_server_options *)) {
  served_open(served, &(struct served_config){.running_max = 2,
                                              .queue_max = 2,
                                              .ctx_tokens = ctx_tokens,
                                              .cache_tokens = 3 * ctx_tokens,
                                              .change = change});
}

void served_open_full(struct served *served, int32_t ctx_tokens, int fds_out[4]) {
  served_open_narrow(served, ctx_tokens, NULL);
  for (int i = 0; i < 4; i++) {
    fds_out[i] = client_connect(served->port);
    client_send(fds_out[i], "POST", "/v1/completions", NULL,
                "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true}");
    client_wait_ms(20);
  }
}

void served_check_empty(struct served *served) {
  struct quire_worker_stats stats;
  struct quire_error why = {0};
  for (int i = 0; i < 1000; i++) {
    quire_worker_stats(served->worker, &stats);
    if (quire_worker_idle(served->worker) && stats.tickets == 0 && stats.cache.requests == 0) {
      break;
    }
    nanosleep(&(struct timespec){0, 10000000}, NULL);
  }
  assert_true(quire_worker_idle(served->worker));
  if (!quire_worker_check(served->worker, &why)) {
    fail_msg("%s: %s", why.where, why.text);
  }
  assert_int_equal(stats.tickets, 0);
  assert_int_equal(stats.cache.requests, 0);
  assert_int_equal(stats.cache.pins, 0);
  assert_int_equal(stats.cache.refs, 0);
  assert_int_equal(stats.cache.quarantined, 0);
  assert_int_equal(stats.cache.free + stats.cache.cached, stats.cache.pages);
}

void served_join(struct served *served) {
  pthread_join(served->thread, NULL);
  served->over = true;
}

void served_close(struct served *served) {
  if (!served->over) {
    quire_server_stop(served->server);
    served_join(served);
  }
  quire_server_destroy(served->server);
  quire_worker_destroy(served->worker);
  quire_engine_destroy(served->engine);
  quire_chat_close(served->chat);
  quire_tokenizer_close(served->tokenizer);
  quire_options_destroy(served->table);
}

/* --- client --- */

int client_connect(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

static void send_all(int fd, const char *data, size_t bytes) {
  while (bytes > 0) {
    ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent <= 0) {
      return; /* refused already: the answer says why */
    }
    data += sent;
    bytes -= (size_t)sent;
  }
}

void client_send(int fd, const char *method, const char *path, const char *fields, const char *body) {
  char head[2048];
  int bytes =
      snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: test\r\n%s", method, path, fields != NULL ? fields : "");
  if (body != NULL) {
    bytes += snprintf(head + bytes, sizeof head - (size_t)bytes, "Content-Length: %zu\r\n", strlen(body));
  }
  bytes += snprintf(head + bytes, sizeof head - (size_t)bytes, "\r\n");
  assert_true((size_t)bytes < sizeof head);
  send_all(fd, head, (size_t)bytes);
  if (body != NULL) {
    send_all(fd, body, strlen(body));
  }
}

/* What was read and not used yet. */
struct reader {
  int fd;
  char *data;
  size_t at, bytes, capacity;
};

static bool read_more(struct reader *r) {
  struct pollfd wait = {.fd = r->fd, .events = POLLIN};
  if (r->bytes + 65536 > r->capacity) {
    r->capacity = 2 * r->capacity + 131072;
    r->data = realloc(r->data, r->capacity);
    assert_non_null(r->data);
  }
  if (poll(&wait, 1, 20000) <= 0) {
    return false;
  }
  ssize_t got = recv(r->fd, r->data + r->bytes, r->capacity - r->bytes - 1, 0);
  r->bytes += got > 0 ? (size_t)got : 0;
  r->data[r->bytes] = '\0';
  return got > 0;
}

/* Bytes up to and with the end of a line behind `at`; 0: the connection ended. */
static size_t line_bytes(struct reader *r) {
  for (;;) {
    const char *end = r->data != NULL ? memmem(r->data + r->at, r->bytes - r->at, "\r\n", 2) : NULL;
    if (end != NULL) {
      return (size_t)(end - (r->data + r->at)) + 2;
    }
    if (!read_more(r)) {
      return 0;
    }
  }
}

static bool want(struct reader *r, size_t bytes) {
  while (r->bytes - r->at < bytes) {
    if (!read_more(r)) {
      return false;
    }
  }
  return true;
}

static void add_body(struct reply *reply, const char *data, size_t bytes) {
  reply->body = realloc(reply->body, reply->bytes + bytes + 1);
  assert_non_null(reply->body);
  memcpy(reply->body + reply->bytes, data, bytes);
  reply->bytes += bytes;
  reply->body[reply->bytes] = '\0';
}

static void read_chunks(struct reader *r, struct reply *reply) {
  for (;;) {
    size_t line = line_bytes(r);
    if (line == 0) {
      return;
    }
    size_t bytes = strtoul(r->data + r->at, NULL, 16);
    r->at += line;
    if (!want(r, bytes + 2)) {
      add_body(reply, r->data + r->at, r->bytes - r->at < bytes ? r->bytes - r->at : bytes);
      return;
    }
    add_body(reply, r->data + r->at, bytes);
    r->at += bytes + 2;
    if (bytes == 0) {
      reply->complete = true;
      return;
    }
  }
}

void client_receive(int fd, struct reply *reply_out) {
  struct reader r = {.fd = fd};
  memset(reply_out, 0, sizeof *reply_out);
  add_body(reply_out, "", 0);
  size_t head = 0, line;
  while ((line = line_bytes(&r)) > 0) {
    assert_true(head + line < sizeof reply_out->head);
    memcpy(reply_out->head + head, r.data + r.at, line);
    head += line;
    r.at += line;
    if (line == 2) {
      break;
    }
  }
  sscanf(reply_out->head, "HTTP/1.1 %d", &reply_out->status);
  const char *length = strcasestr(reply_out->head, "\r\nContent-Length: ");
  if (line > 0 && length != NULL) {
    size_t bytes = strtoul(length + 18, NULL, 10);
    reply_out->complete = want(&r, bytes);
    add_body(reply_out, r.data + r.at, r.bytes - r.at < bytes ? r.bytes - r.at : bytes);
  } else if (line > 0) {
    read_chunks(&r, reply_out);
  }
  free(r.data);
}

void client_ask(int port, const char *method, const char *path, const char *body, struct reply *reply_out) {
  int fd = client_connect(port);
  client_send(fd, method, path, NULL, body);
  client_receive(fd, reply_out);
  close(fd);
}

void reply_free(struct reply *reply) {
  free(reply->body);
  reply->body = NULL;
}

int served_status(const struct served *served, const char *method, const char *path, const char *fields) {
  struct reply reply;
  int fd = client_connect(served->port);
  client_send(fd, method, path, fields, strcmp(method, "POST") == 0 ? "{}" : NULL);
  client_receive(fd, &reply);
  int status = reply.status;
  reply_free(&reply);
  close(fd);
  return status;
}

void client_wait_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* --- answers that are JSON --- */

json_t *reply_json(const struct reply *reply) {
  json_error_t error;
  json_t *root = json_loadb(reply->body, reply->bytes, JSON_ALLOW_NUL, &error);
  if (root == NULL) {
    fail_msg("no JSON (%s): %s", error.text, reply->body);
  }
  return root;
}

const json_t *json_at(const json_t *value, const char *path) {
  char text[128];
  snprintf(text, sizeof text, "%s", path);
  for (char *save = NULL, *word = strtok_r(text, ".", &save); word != NULL; word = strtok_r(NULL, ".", &save)) {
    value = json_is_array(value) ? json_array_get(value, (size_t)atoi(word)) : json_object_get(value, word);
  }
  return value;
}

const char *json_text_at(const json_t *value, const char *path) {
  const char *text = json_string_value(json_at(value, path));
  if (text == NULL) {
    fail_msg("no text at %s", path);
  }
  return text;
}

int64_t json_int_at(const json_t *value, const char *path) {
  if (!json_is_integer(json_at(value, path))) {
    fail_msg("no integer at %s", path);
  }
  return json_integer_value(json_at(value, path));
}
