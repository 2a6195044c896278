/* Who may ask for what: keys, routes, and the answers that take no worker. */
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/file.h"
#include "server/json_write.h"
#include "server/server_private.h"

#define KEY_FILE_BYTES_MAX ((size_t)1 << 20)

typedef void route_call(struct quire_server *server, struct quire_http_exchange *exchange,
                        const struct quire_http_head *head);

struct route {
  const char *method;
  const char *path;
  bool open; /* without a key */
  route_call *call;
};

/* --- answers --- */

void quire_server_answer(struct quire_server *server, struct quire_http_exchange *exchange, int status,
                         const char *type, struct quire_strbuf *body) {
  struct quire_http_answer answer = {
      .status = status,
      .type = type,
      .fields = status == 503 || status == 429 ? "Retry-After: 1\r\n"
                : status == 401                ? "WWW-Authenticate: Bearer\r\n"
                                               : NULL,
      .body = quire_strbuf_text(body),
      .bytes = body->bytes,
  };
  server->numbers.answered[status / 100]++;
  if (quire_strbuf_failed(body)) {
    quire_http_abort(exchange);
  } else {
    quire_http_answer(exchange, &answer);
  }
}

void quire_server_answer_fault(struct quire_server *server, struct quire_http_exchange *exchange,
                               const struct quire_api_fault *fault) {
  struct quire_strbuf body;
  quire_strbuf_init(&body, server->env);
  quire_api_fault_write(fault, &body);
  quire_server_answer(server, exchange, fault->status, "application/json", &body);
  quire_strbuf_fini(&body);
}

static void answer_text(struct quire_server *server, struct quire_http_exchange *exchange, int status,
                        const char *json) {
  struct quire_http_answer answer = {
      .status = status,
      .type = "application/json",
      .fields = status == 503 ? "Retry-After: 1\r\n" : NULL,
      .body = json,
      .bytes = strlen(json),
  };
  server->numbers.answered[status / 100]++;
  quire_http_answer(exchange, &answer);
}

/* One that writes a body from what the server knows. */
static void answer_info(struct quire_server *server, struct quire_http_exchange *exchange,
                        void (*write)(struct quire_server *server, struct quire_strbuf *out), const char *type) {
  struct quire_strbuf body;
  quire_strbuf_init(&body, server->env);
  write(server, &body);
  quire_server_answer(server, exchange, 200, type, &body);
  quire_strbuf_fini(&body);
}

/* --- health --- */

static void on_live(struct quire_server *server, struct quire_http_exchange *exchange,
                    const struct quire_http_head *head) {
  (void)head;
  answer_text(server, exchange, 200, "{\"status\":\"ok\"}");
}

static void on_ready(struct quire_server *server, struct quire_http_exchange *exchange,
                     const struct quire_http_head *head) {
  (void)head;
  const char *why = quire_server_illness(server);
  answer_text(server, exchange, why != NULL ? 503 : 200, why != NULL ? why : "{\"status\":\"ok\"}");
}

/* One token through queue, ranks and rings. */
static void on_health_generate(struct quire_server *server, struct quire_http_exchange *exchange,
                               const struct quire_http_head *head) {
  if (quire_server_illness(server) != NULL || server->probe != NULL) {
    on_ready(server, exchange, head);
  } else {
    quire_call_probe(server, exchange);
  }
}

/* --- what describes the server --- */

#define MODELS_PATH "/v1/models"

static int hex(char c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The character at *at of a part of a target, decoded where it is coded; *at is behind it then. */
static char next_character(struct quire_http_slice part, size_t *at) {
  size_t i = *at;
  bool coded = part.data[i] == '%' && part.bytes - i > 2 && hex(part.data[i + 1]) >= 0 && hex(part.data[i + 2]) >= 0;
  *at += coded ? 3 : 1;
  return coded ? (char)(16 * hex(part.data[i + 1]) + hex(part.data[i + 2])) : part.data[i];
}

/* Whether a part of a path, percent signs and all, is the text. */
static bool path_is(struct quire_http_slice part, const char *text) {
  size_t i = 0;
  for (; i < part.bytes && *text != '\0'; text++) {
    if (next_character(part, &i) != *text) {
      return false;
    }
  }
  return i == part.bytes && *text == '\0';
}

/* The value that a query gives a name, decoded and cut to size - 1 bytes; of several the last, without one "". */
static void query_value(struct quire_http_slice query, const char *name, char *out, size_t size) {
  size_t name_bytes = strlen(name);
  out[0] = '\0';
  for (size_t at = 0; at < query.bytes;) {
    const char *begin = query.data + at, *stop = memchr(begin, '&', query.bytes - at);
    size_t bytes = stop != NULL ? (size_t)(stop - begin) : query.bytes - at, used = 0;
    at += bytes + 1;
    if (bytes <= name_bytes || begin[name_bytes] != '=' || memcmp(begin, name, name_bytes) != 0) {
      continue;
    }
    struct quire_http_slice value = {begin + name_bytes + 1, bytes - name_bytes - 1};
    for (size_t i = 0; i < value.bytes && used < size - 1; used++) {
      bool blank = value.data[i] == '+';
      char c = next_character(value, &i);
      out[used] = blank ? ' ' : c;
    }
    out[used] = '\0';
  }
}

/* The list, or behind a slash one model by its name. */
static void on_models(struct quire_server *server, struct quire_http_exchange *exchange,
                      const struct quire_http_head *head) {
  size_t list = sizeof MODELS_PATH - 1;
  if (head->path.bytes <= list + 1) {
    answer_info(server, exchange, quire_info_models, "application/json");
    return;
  }
  struct quire_http_slice name = {head->path.data + list + 1, head->path.bytes - list - 1};
  if (path_is(name, quire_server_model_name(server))) {
    answer_info(server, exchange, quire_info_model_card, "application/json");
    return;
  }
  struct quire_api_fault fault = {0};
  quire_api_fail(&fault, 404, "model_not_found", "model", "the model \"%.*s\" does not exist; \"%s\" does",
                 (int)(name.bytes < 80 ? name.bytes : 80), name.data, quire_server_model_name(server));
  quire_server_answer_fault(server, exchange, &fault);
}

static void on_model_info(struct quire_server *server, struct quire_http_exchange *exchange,
                          const struct quire_http_head *head) {
  (void)head;
  answer_info(server, exchange, quire_info_model, "application/json");
}

static void on_server_info(struct quire_server *server, struct quire_http_exchange *exchange,
                           const struct quire_http_head *head) {
  (void)head;
  answer_info(server, exchange, quire_info_server, "application/json");
}

static void on_loads(struct quire_server *server, struct quire_http_exchange *exchange,
                     const struct quire_http_head *head) {
  char include[256];
  unsigned sections;
  struct quire_api_fault fault = {0};
  query_value(head->query, "include", include, sizeof include);
  if (!quire_info_loads_sections(include, &sections, &fault)) {
    quire_server_answer_fault(server, exchange, &fault);
    return;
  }
  struct quire_strbuf body;
  quire_strbuf_init(&body, server->env);
  quire_info_loads(server, sections, &body);
  quire_server_answer(server, exchange, 200, "application/json", &body);
  quire_strbuf_fini(&body);
}

static void on_version(struct quire_server *server, struct quire_http_exchange *exchange,
                       const struct quire_http_head *head) {
  (void)head;
  answer_info(server, exchange, quire_info_version, "application/json");
}

static void on_metrics(struct quire_server *server, struct quire_http_exchange *exchange,
                       const struct quire_http_head *head) {
  (void)head;
  answer_info(server, exchange, quire_server_metrics, "text/plain; version=0.0.4; charset=utf-8");
}

/* --- requests for text --- */

static void on_chat(struct quire_server *server, struct quire_http_exchange *exchange,
                    const struct quire_http_head *head) {
  (void)head;
  quire_call_begin(server, exchange, QUIRE_API_CHAT);
}

static void on_completion(struct quire_server *server, struct quire_http_exchange *exchange,
                          const struct quire_http_head *head) {
  (void)head;
  quire_call_begin(server, exchange, QUIRE_API_COMPLETION);
}

static void on_generate(struct quire_server *server, struct quire_http_exchange *exchange,
                        const struct quire_http_head *head) {
  (void)head;
  quire_call_begin(server, exchange, QUIRE_API_GENERATE);
}

/* --- work that a text thread does: from a body to a body --- */

struct text_job {
  struct quire_server *server;
  bool (*work)(struct quire_server *server, struct quire_http_slice body, struct quire_strbuf *out,
               struct quire_api_fault *fault);
  struct quire_http_exchange *exchange; /* NULL: the client has left */
  struct quire_list node;
  struct quire_strbuf body, out;
  size_t held; /* of server->held_bytes */
  struct quire_api_fault fault;
  bool good;
};

static void text_job_work(void *context) {
  struct text_job *job = context;
  struct quire_http_slice body = {quire_strbuf_text(&job->body), job->body.bytes};
  job->good = job->work(job->server, body, &job->out, &job->fault);
}

static void text_job_done(void *context) {
  struct text_job *job = context;
  struct quire_server *server = job->server;
  if (job->exchange != NULL && job->good) {
    quire_server_answer(server, job->exchange, 200, "application/json", &job->out);
  } else if (job->exchange != NULL) {
    quire_server_answer_fault(server, job->exchange, &job->fault);
  }
  quire_list_remove(&job->node);
  server->held_bytes -= job->held;
  quire_strbuf_fini(&job->body);
  quire_strbuf_fini(&job->out);
  quire_env_free(server->env, job, 1, sizeof *job);
}

static void start_text_job(struct quire_server *server, struct quire_http_exchange *exchange,
                           bool (*work)(struct quire_server *server, struct quire_http_slice body,
                                        struct quire_strbuf *out, struct quire_api_fault *fault)) {
  size_t bytes = quire_api_body_cost(quire_http_body(exchange).data, quire_http_body(exchange).bytes);
  struct text_job *job = NULL;
  struct quire_api_fault fault = {0};
  if (quire_server_hold(server, bytes, &fault) && (job = quire_env_zalloc(server->env, 1, sizeof *job)) == NULL) {
    server->held_bytes -= bytes;
    quire_api_fail(&fault, 503, "no_memory", NULL, "the server has no memory for this request");
  }
  if (job == NULL) {
    quire_server_answer_fault(server, exchange, &fault);
    return;
  }
  job->server = server;
  job->work = work;
  job->held = bytes;
  job->exchange = exchange;
  quire_strbuf_init(&job->body, server->env);
  quire_strbuf_init(&job->out, server->env);
  quire_list_push_back(&server->text_jobs, &job->node);
  quire_http_take_body(exchange, &job->body);
  if (!quire_server_post(server, (struct server_job){text_job_work, text_job_done, job})) {
    quire_api_fail(&job->fault, 429, "queue_full", NULL, "the server's queue is full; try again later");
    text_job_done(job);
  }
}

static void text_job_gone(struct quire_server *server, const struct quire_http_exchange *exchange) {
  for (struct quire_list *node = server->text_jobs.next; node != &server->text_jobs; node = node->next) {
    struct text_job *job = QUIRE_LIST_OF(node, struct text_job, node);
    job->exchange = job->exchange == exchange ? NULL : job->exchange;
  }
}

void quire_text_jobs_cut(struct quire_server *server, const struct quire_api_fault *fault) {
  for (struct quire_list *node = server->text_jobs.next; node != &server->text_jobs; node = node->next) {
    struct text_job *job = QUIRE_LIST_OF(node, struct text_job, node);
    if (job->exchange != NULL) {
      quire_server_answer_fault(server, job->exchange, fault);
      job->exchange = NULL;
    }
  }
}

void quire_text_jobs_destroy(struct quire_server *server) {
  while (!quire_list_empty(&server->text_jobs)) {
    struct text_job *job = QUIRE_LIST_OF(server->text_jobs.next, struct text_job, node);
    job->exchange = NULL;
    text_job_done(job);
  }
}

static void on_tokenize(struct quire_server *server, struct quire_http_exchange *exchange,
                        const struct quire_http_head *head) {
  (void)head;
  start_text_job(server, exchange, quire_text_tokenize);
}

static void on_detokenize(struct quire_server *server, struct quire_http_exchange *exchange,
                          const struct quire_http_head *head) {
  (void)head;
  start_text_job(server, exchange, quire_text_detokenize);
}

/* The laws are checked by the controller between two plans, which may take a while. */
static bool check_laws(struct quire_server *server, struct quire_http_slice body, struct quire_strbuf *out,
                       struct quire_api_fault *fault) {
  (void)body;
  struct quire_error why = {0};
  if (!quire_worker_check(server->model->worker, &why)) {
    return quire_api_fail(fault, 500, "law_broken", NULL, "%s: %s", why.where, why.text);
  }
  quire_strbuf_add_text(out, "{\"status\":\"ok\",\"laws\":\"hold\"}");
  return true;
}

static void on_check(struct quire_server *server, struct quire_http_exchange *exchange,
                     const struct quire_http_head *head) {
  (void)head;
  start_text_job(server, exchange, check_laws);
}

/* --- administration --- */

static void on_flush(struct quire_server *server, struct quire_http_exchange *exchange,
                     const struct quire_http_head *head) {
  (void)head;
  quire_worker_flush(server->model->worker);
  answer_text(server, exchange, 200, "{\"success\":true,\"message\":\"cache flushed\"}");
}

static void on_abort(struct quire_server *server, struct quire_http_exchange *exchange,
                     const struct quire_http_head *head) {
  (void)head;
  struct quire_http_slice body = quire_http_body(exchange);
  struct quire_api_fault fault = {0};
  json_t *root = NULL;
  if (body.bytes > SERVER_INLINE_BYTES) { /* it is read here, on the loop's thread */
    quire_api_fail(&fault, 413, "body_too_large", NULL, "the body has more than %d bytes", SERVER_INLINE_BYTES);
  } else {
    root = quire_api_parse_object(body.data, body.bytes, &fault);
  }
  if (root == NULL) {
    quire_server_answer_fault(server, exchange, &fault);
    return;
  }
  const char *id = json_string_value(json_object_get(root, "rid"));
  bool all = json_is_true(json_object_get(root, "abort_all"));
  int aborted = 0;
  if ((id == NULL || id[0] == '\0') && !all) { /* an empty name would be that of every request without one */
    quire_api_fail(&fault, 400, "missing_required_parameter", "rid",
                   "the body must be {\"rid\": \"...\"} or "
                   "{\"abort_all\": true}");
    json_decref(root);
    quire_server_answer_fault(server, exchange, &fault);
    return;
  }
  for (struct quire_list *node = server->calls.next; node != &server->calls; node = node->next) {
    struct call *call = QUIRE_LIST_OF(node, struct call, node);
    bool named = id != NULL && (strcmp(call->id, id) == 0 || strcmp(call->request_id, id) == 0 ||
                                (!call->working && call->request.id != NULL && strcmp(call->request.id, id) == 0));
    if (all || named) {
      quire_call_abort(call);
      aborted++;
    }
  }
  json_decref(root);
  char text[64];
  snprintf(text, sizeof text, "{\"success\":true,\"aborted\":%d}", aborted);
  answer_text(server, exchange, 200, text);
}

static const struct route routes[] = {
    {"GET", "/livez", true, on_live},
    {"GET", "/readyz", true, on_ready},
    {"GET", "/health", true, on_ready},
    {"GET", "/health_generate", true, on_health_generate},
    {"POST", "/v1/chat/completions", false, on_chat},
    {"POST", "/v1/completions", false, on_completion},
    {"POST", "/generate", false, on_generate},
    {"GET", MODELS_PATH, false, on_models},
    {"GET", "/model_info", false, on_model_info},
    {"GET", "/get_model_info", false, on_model_info},
    {"GET", "/server_info", false, on_server_info},
    {"GET", "/get_server_info", false, on_server_info},
    {"GET", "/v1/loads", false, on_loads},
    {"GET", "/metrics", false, on_metrics},
    {"POST", "/tokenize", false, on_tokenize},
    {"POST", "/v1/tokenize", false, on_tokenize},
    {"POST", "/detokenize", false, on_detokenize},
    {"POST", "/v1/detokenize", false, on_detokenize},
    {"POST", "/flush_cache", false, on_flush},
    {"GET", "/flush_cache", false, on_flush},
    {"POST", "/abort_request", false, on_abort},
    {"GET", "/debug/check", false, on_check},
    {"GET", "/version", false, on_version},
};

/* --- keys --- */

static bool add_key(struct quire_server *server, const char *key, size_t bytes, struct quire_error *error_out) {
  if (bytes == 0) {
    quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--api-key", "is empty");
    return false;
  }
  if (server->key_count == SERVER_KEYS_MAX) {
    quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--api-key-file", "has more than %d keys", SERVER_KEYS_MAX);
    return false;
  }
  if (quire_sha256(key, bytes, &server->keys[server->key_count]) != QUIRE_OK) {
    quire_error_set(error_out, QUIRE_ERR_MEMORY, "--api-key-file", "no memory for a digest");
    return false;
  }
  server->key_count++;
  return true;
}

/* A key a line; blanks around it, empty lines and lines that begin with # do not count. */
static bool add_file(struct quire_server *server, struct quire_error *error_out) {
  struct quire_file_text file;
  if (quire_file_read(server->env, server->options->api_key_file, KEY_FILE_BYTES_MAX, &file, error_out) != QUIRE_OK) {
    return false;
  }
  bool good = true;
  for (char *at = file.data, *end = file.data + file.bytes; at < end && good;) {
    char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline != NULL ? newline : end;
    char *last = stop;
    while (at < last && (*at == ' ' || *at == '\t')) {
      at++;
    }
    while (last > at && (last[-1] == ' ' || last[-1] == '\t' || last[-1] == '\r')) {
      last--;
    }
    good = last == at || *at == '#' || add_key(server, at, (size_t)(last - at), error_out);
    at = stop + 1;
  }
  OPENSSL_cleanse(file.data, file.bytes);
  quire_file_text_free(server->env, &file);
  if (good && server->key_count == 0) {
    quire_error_set(error_out, QUIRE_ERR_ARGUMENT, server->options->api_key_file, "holds no key");
    return false;
  }
  return good;
}

bool quire_server_read_keys(struct quire_server *server, struct quire_error *error_out) {
  struct quire_sha256 *before = server->keys;
  int before_count = server->key_count;
  server->keys = quire_env_zalloc(server->env, SERVER_KEYS_MAX, sizeof *server->keys);
  server->key_count = 0;
  bool good = server->keys != NULL;
  if (!good) {
    quire_error_set(error_out, QUIRE_ERR_MEMORY, "server", "no memory for keys");
  }
  const char *key = server->options->api_key;
  good = good && (key == NULL || add_key(server, key, strlen(key), error_out)) &&
         (server->options->api_key_file == NULL || add_file(server, error_out));
  struct quire_sha256 *dropped = good ? before : server->keys;
  if (!good && before != NULL) {
    server->keys = before;
    server->key_count = before_count;
  } else if (!good) {
    server->keys = NULL;
  }
  quire_env_free(server->env, dropped, SERVER_KEYS_MAX, sizeof *server->keys);
  return good;
}

void quire_server_reload_keys(struct quire_server *server) {
  struct quire_error error = {0};
  if (quire_server_read_keys(server, &error)) {
    quire_env_log(server->env, QUIRE_LOG_INFO, "keys read again count=%d", server->key_count);
  } else {
    quire_env_log(server->env, QUIRE_LOG_ERROR, "keys stay as they were: %s: %s", error.where, error.text);
  }
}

/* The digests are compared, all of them and in constant time, so that time says nothing about a key. */
static bool has_key(const struct quire_server *server, const struct quire_http_head *head) {
  struct quire_http_slice value;
  struct quire_sha256 digest;
  if (server->key_count == 0) {
    return true;
  }
  bool bearer = quire_http_field(head, "authorization", &value) &&
                quire_http_is((struct quire_http_slice){value.data, value.bytes < 7 ? value.bytes : 7}, "bearer ");
  if (bearer) {
    value.data += 7;
    value.bytes -= 7;
  } else if (!quire_http_field(head, "x-api-key", &value)) { /* another scheme is a proxy's */
    return false;
  }
  if (quire_sha256(value.data, value.bytes, &digest) != QUIRE_OK) {
    return false;
  }
  int found = 0;
  for (int i = 0; i < server->key_count; i++) {
    found |= CRYPTO_memcmp(digest.byte, server->keys[i].byte, sizeof digest.byte) == 0;
  }
  return found != 0;
}

/* --- the handler --- */

/* Looks a request up. Without a route of its method *allow_out names the methods of its path, or is empty. */
static const struct route *find_route(const struct quire_server *server, const struct quire_http_head *head,
                                      char *allow_out, size_t size) {
  bool version = server->options->compat != QUIRE_COMPAT_SGLANG;
  struct quire_http_slice path = head->path;
  bool one_model = path.bytes > sizeof MODELS_PATH && memcmp(path.data, MODELS_PATH "/", sizeof MODELS_PATH) == 0;
  allow_out[0] = '\0';
  for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
    const struct route *route = &routes[i];
    bool same = quire_http_equal(path, route->path) || (one_model && route->call == on_models);
    if (!same || (route->call == on_version && !version)) {
      continue;
    }
    bool get = strcmp(route->method, "GET") == 0;
    if (quire_http_equal(head->method, route->method) || (get && quire_http_equal(head->method, "HEAD"))) {
      return route;
    }
    size_t used = strlen(allow_out);
    snprintf(allow_out + used, size - used, "%s%s", used > 0 ? ", " : "", route->method);
  }
  return NULL;
}

static void answer_no_route(struct quire_server *server, struct quire_http_exchange *exchange,
                            const struct quire_http_head *head, const char *allow) {
  struct quire_api_fault fault = {0};
  struct quire_strbuf body;
  char fields[96];
  int path = (int)(head->path.bytes < 100 ? head->path.bytes : 100);
  if (allow[0] != '\0') {
    quire_api_fail(&fault, 405, "method_not_allowed", NULL, "%.*s is not for this method; it takes %s", path,
                   head->path.data, allow);
  } else {
    quire_api_fail(&fault, 404, "not_found", NULL, "there is no %.*s here", path, head->path.data);
  }
  snprintf(fields, sizeof fields, "%s%s%s", allow[0] != '\0' ? "Allow: " : "", allow, allow[0] != '\0' ? "\r\n" : "");
  quire_strbuf_init(&body, server->env);
  quire_api_fault_write(&fault, &body);
  server->numbers.answered[4]++;
  quire_http_answer(exchange, &(struct quire_http_answer){fault.status, "application/json", fields,
                                                          quire_strbuf_text(&body), body.bytes});
  quire_strbuf_fini(&body);
}

static bool on_begin(void *context, struct quire_http_exchange *exchange, const struct quire_http_head *head) {
  struct quire_server *server = context;
  struct quire_api_fault fault = {0};
  char allow[64];
  const struct route *route = find_route(server, head, allow, sizeof allow);
  if ((route == NULL || !route->open) && !has_key(server, head)) {
    quire_api_fail(&fault, 401, "invalid_api_key", NULL,
                   "a key of this server is needed: Authorization: Bearer KEY, or x-api-key: KEY");
    quire_server_answer_fault(server, exchange, &fault);
    return false;
  }
  if (route == NULL) {
    answer_no_route(server, exchange, head, allow);
    return false;
  }
  bool serves = server->state == SERVER_READY || server->state == SERVER_LEAVING;
  if (!route->open && route->call != on_metrics && !serves) {
    quire_api_fail(&fault, 503, "unavailable", NULL, "%s",
                   server->state == SERVER_LOADING ? "the model is still loading" : "the server is shutting down");
    quire_server_answer_fault(server, exchange, &fault);
    return false;
  }
  return true;
}

static void on_request(void *context, struct quire_http_exchange *exchange, const struct quire_http_head *head) {
  struct quire_server *server = context;
  char allow[64];
  const struct route *route = find_route(server, head, allow, sizeof allow);
  QUIRE_ASSERT(route != NULL);
  route->call(server, exchange, head);
}

static void on_gone(void *context, struct quire_http_exchange *exchange) {
  struct quire_server *server = context;
  struct call *call = quire_http_user(exchange);
  if (call != NULL) {
    quire_call_gone(call);
  } else {
    text_job_gone(server, exchange);
  }
}

static void on_room(void *context, struct quire_http_exchange *exchange) {
  (void)context;
  struct call *call = quire_http_user(exchange);
  if (call != NULL) {
    quire_call_room(call);
  }
}

static void on_refuse(void *context, int status, const char *why, struct quire_strbuf *body) {
  struct quire_server *server = context;
  struct quire_api_fault fault = {0};
  server->numbers.answered[status / 100]++;
  quire_api_fail(&fault, status,
                 status == 413   ? "body_too_large"
                 : status == 408 ? "timeout"
                                 : "bad_http",
                 NULL, "%s", why);
  quire_api_fault_write(&fault, body);
}

struct quire_http_handler quire_server_handler(struct quire_server *server) {
  return (struct quire_http_handler){server, on_begin, on_request, on_gone, on_room, on_refuse};
}
