/* What the server says about itself: models, settings, loads, metrics. */
#include <stdio.h>
#include <string.h>

#include "base/wall.h"
#include "engine/engine.h"
#include "server/json_write.h"
#include "server/server_private.h"

static const char *owner(const struct quire_server *server) {
  static const char *const names[] = {"quire", "sglang", "vllm"};
  return names[server->options->compat];
}

void quire_info_model_card(struct quire_server *server, struct quire_strbuf *out) {
  quire_strbuf_add_text(out, "{\"id\":");
  quire_json_write_string(out, quire_server_model_name(server));
  quire_strbuf_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"%s\",\"root\":",
                    (long long)server->started_seconds, owner(server));
  quire_json_write_string(out, server->model->path);
  quire_strbuf_addf(out, ",\"parent\":null,\"max_model_len\":%d}", server->model->ctx_tokens);
}

void quire_info_models(struct quire_server *server, struct quire_strbuf *out) {
  quire_strbuf_add_text(out, "{\"object\":\"list\",\"data\":[");
  quire_info_model_card(server, out);
  quire_strbuf_add_text(out, "]}");
}

void quire_info_model(struct quire_server *server, struct quire_strbuf *out) {
  const struct quire_server_model *model = server->model;
  quire_strbuf_add_text(out, "{\"model_path\":");
  quire_json_write_string(out, model->path);
  quire_strbuf_add_text(out, ",\"tokenizer_path\":");
  quire_json_write_string(out, model->path);
  quire_strbuf_add_text(out, ",\"served_model_name\":");
  quire_json_write_string(out, quire_server_model_name(server));
  quire_strbuf_add_text(out, ",\"model_type\":");
  quire_json_write_string(out, model->family);
  quire_strbuf_add_text(out, ",\"chat_template\":");
  quire_json_write_string(out, model->chat != NULL ? quire_chat_format_name(quire_chat_format_of(model->chat)) : NULL);
  quire_strbuf_addf(out, ",\"is_generation\":true,\"context_length\":%d,\"vocab_size\":%d}", model->ctx_tokens,
                    model->vocab);
}

void quire_info_version(struct quire_server *server, struct quire_strbuf *out) {
  quire_strbuf_add_text(out, "{\"version\":");
  quire_json_write_string(out, server->model->version);
  quire_strbuf_add_char(out, '}');
}

void quire_info_server(struct quire_server *server, struct quire_strbuf *out) {
  const struct quire_server_model *model = server->model;
  struct quire_worker_stats stats;
  quire_worker_stats(model->worker, &stats);
  quire_strbuf_add_text(out, "{\"model_path\":");
  quire_json_write_string(out, model->path);
  quire_strbuf_add_text(out, ",\"served_model_name\":");
  quire_json_write_string(out, quire_server_model_name(server));
  quire_strbuf_add_text(out, ",\"version\":");
  quire_json_write_string(out, server->model->version);
  quire_strbuf_addf(out,
                    ",\"tp_size\":1,\"dp_size\":1,\"pp_size\":1,\"cp_size\":%d,\"disaggregation_mode\":\"null\","
                    "\"context_length\":%d,\"max_total_num_tokens\":%d,\"max_total_tokens\":%d,"
                    "\"max_running_requests\":%d,\"max_queued_requests\":%d,\"page_size\":%d,",
                    model->ranks, model->ctx_tokens, model->cache_tokens, model->cache_tokens, model->running_max,
                    model->queue_max, model->page_tokens);
  quire_strbuf_addf(out, "\"view\":\"%s\",\"kv_format\":\"%s\",\"numerics\":\"%s\",", model->view, model->kv_format,
                    model->numerics);
  quire_strbuf_addf(out,
                    "\"internal_states\":[{\"avg_spec_accept_length\":1.0,\"num_running_reqs\":%d,"
                    "\"num_waiting_reqs\":%d}]}",
                    stats.engine.prefilling + stats.engine.decoding + stats.engine.draining, stats.engine.waiting);
}

/* One picture of what /metrics and /v1/loads show. */
struct picture {
  struct quire_worker_stats worker;
  struct quire_http_stats http;
  int64_t running, waiting, used_tokens, total_tokens;
  double silence; /* of the worker, in seconds */
  int32_t page_tokens;
  char config[96]; /* labels of cache_config_info */
  double usage, hit_rate;
};

static void take_picture(struct quire_server *server, struct picture *p) {
  memset(p, 0, sizeof *p);
  quire_http_server_stats(server->http, &p->http);
  if (server->model == NULL) {
    return;
  }
  quire_worker_stats(server->model->worker, &p->worker);
  p->silence = (double)quire_worker_silence_ns(server->model->worker) * 1e-9;
  const struct quire_engine_stats *engine = &p->worker.engine;
  p->running = engine->prefilling + engine->decoding + engine->draining;
  p->waiting = engine->waiting;
  p->total_tokens = server->model->cache_tokens;
  p->page_tokens = server->model->page_tokens;
  snprintf(p->config, sizeof p->config,
           server->options->metrics_compat == QUIRE_COMPAT_VLLM ? "block_size=\"%d\",num_gpu_blocks=\"%d\""
                                                                : "page_size=\"%d\",num_pages=\"%d\"",
           p->page_tokens, p->worker.cache.pages);
  p->used_tokens =
      (int64_t)(p->worker.cache.pages - p->worker.cache.free - p->worker.cache.cached) * server->model->page_tokens;
  p->usage = p->total_tokens > 0 ? (double)p->used_tokens / (double)p->total_tokens : 0;
  p->hit_rate = engine->prompt_tokens > 0 ? (double)engine->cached_tokens / (double)engine->prompt_tokens : 0;
}

/* Sections of /v1/loads as SGLang has them: "core" always comes; there are no drafts and no adapters here to tell
 * of. */
enum { LOADS_MEMORY = 1, LOADS_DISAGG = 2, LOADS_QUEUES = 4, LOADS_ALL = 7 };

static const struct {
  const char *name;
  unsigned sections;
} loads_sections[] = {
    {"core", 0},        {"memory", LOADS_MEMORY}, {"spec", 0},
    {"lora", 0},        {"disagg", LOADS_DISAGG}, {"queues", LOADS_QUEUES},
    {"all", LOADS_ALL},
};

bool quire_info_loads_sections(const char *include, unsigned *sections_out, struct quire_api_fault *fault) {
  struct quire_http_slice list = {include, strlen(include)}, word;
  unsigned sections = list.bytes == 0 ? LOADS_ALL : 0;
  while (quire_http_next_word(&list, &word)) {
    size_t i = 0, count = sizeof loads_sections / sizeof loads_sections[0];
    while (i < count && !quire_http_equal(word, loads_sections[i].name)) {
      i++;
    }
    if (i == count) {
      return quire_api_fail(fault, 400, "invalid_value", "include",
                            "\"%.*s\" is no section; there are core, memory, spec, lora, disagg, queues and all",
                            (int)(word.bytes < 80 ? word.bytes : 80), word.data);
    }
    sections |= loads_sections[i].sections;
  }
  *sections_out = sections;
  return true;
}

static void write_loads_sections(const struct quire_server *server, const struct picture *p, unsigned sections,
                                 struct quire_strbuf *out) {
  const double gb = (double)(1 << 30);
  if (sections & LOADS_MEMORY) {
    quire_strbuf_addf(
        out, ",\"memory\":{\"weight_gb\":%.6f,\"kv_cache_gb\":%.6f,\"graph_gb\":0,\"token_capacity\":%lld}",
        (double)server->model->weight_bytes / gb, (double)server->model->kv_bytes / gb, (long long)p->total_tokens);
  }
  if (sections & LOADS_DISAGG) {
    quire_strbuf_add_text(out, ",\"disaggregation\":{\"mode\":\"null\",\"prefill_prealloc_queue_reqs\":0,"
                               "\"prefill_inflight_queue_reqs\":0,\"decode_prealloc_queue_reqs\":0,"
                               "\"decode_transfer_queue_reqs\":0,\"decode_retracted_queue_reqs\":0,"
                               "\"kv_transfer_speed_gb_s\":0,\"kv_transfer_latency_ms\":0}");
  }
  if (sections & LOADS_QUEUES) {
    quire_strbuf_addf(out, ",\"queues\":{\"waiting\":%lld,\"grammar\":0,\"paused\":0,\"retracted\":%lld}",
                      (long long)p->waiting, (long long)p->worker.engine.preempted);
  }
}

void quire_info_loads(struct quire_server *server, unsigned sections, struct quire_strbuf *out) {
  struct picture p;
  take_picture(server, &p);
  quire_strbuf_addf(out, "{\"timestamp\":%lld,\"dp_rank_count\":1,\"loads\":[{\"dp_rank\":0,",
                    (long long)(quire_wall_ms() / 1000));
  quire_strbuf_addf(out,
                    "\"num_running_reqs\":%lld,\"num_waiting_reqs\":%lld,\"num_waiting_uncached_tokens\":%d,"
                    "\"num_total_reqs\":%lld,\"num_used_tokens\":%lld,\"max_total_num_tokens\":%lld,",
                    (long long)p.running, (long long)p.waiting, p.worker.engine.waiting_tokens,
                    (long long)(p.running + p.waiting), (long long)p.used_tokens, (long long)p.total_tokens);
  quire_strbuf_addf(out,
                    "\"token_usage\":%.6f,\"gen_throughput\":%.3f,\"cache_hit_rate\":%.6f,\"utilization\":%.6f,"
                    "\"max_running_requests\":%d,\"disagg_mode\":\"null\"",
                    p.usage, server->throughput, p.hit_rate,
                    server->model->running_max > 0 ? (double)p.running / server->model->running_max : 0,
                    server->model->running_max);
  write_loads_sections(server, &p, sections, out);
  quire_strbuf_add_text(out, "}]}");
}

/* --- metrics --- */

static const double ttft_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                     1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double itl_bounds[] = {0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                    0.4,   0.5,   0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
static const double span_bounds[] = {0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,
                                     20,  30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

void quire_numbers_init(struct server_numbers *numbers) {
  memset(numbers, 0, sizeof *numbers);
  numbers->ttft = (struct server_histogram){.bounds = ttft_bounds, .count = sizeof ttft_bounds / sizeof *ttft_bounds};
  numbers->itl = (struct server_histogram){.bounds = itl_bounds, .count = sizeof itl_bounds / sizeof *itl_bounds};
  struct server_histogram *spans[] = {&numbers->e2e, &numbers->queue, &numbers->prefill, &numbers->decode};
  for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
    *spans[i] = (struct server_histogram){.bounds = span_bounds, .count = sizeof span_bounds / sizeof *span_bounds};
  }
}

void quire_histogram_add(struct server_histogram *histogram, double value) {
  int i = 0;
  while (i < histogram->count && value > histogram->bounds[i]) {
    i++;
  }
  histogram->below[i]++;
  histogram->sum += value;
}

/* Where a family of names puts its prefix and labels. */
struct dialect {
  const char *prefix; /* "quire_", "sglang:", "vllm:" */
  const char *labels; /* without braces, maybe empty */
};

static void write_header(struct quire_strbuf *out, const struct dialect *dialect, const char *name, const char *type,
                         const char *help) {
  quire_strbuf_addf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", dialect->prefix, name, help, dialect->prefix, name, type);
}

static void write_value(struct quire_strbuf *out, const struct dialect *dialect, const char *name, const char *label,
                        double value) {
  bool both = dialect->labels[0] != '\0' && label[0] != '\0', any = dialect->labels[0] != '\0' || label[0] != '\0';
  quire_strbuf_addf(out, "%s%s%s%s%s%s%s %.15g\n", dialect->prefix, name, any ? "{" : "", dialect->labels,
                    both ? "," : "", label, any ? "}" : "", value);
}

static void write_histogram(struct quire_strbuf *out, const struct dialect *dialect, const char *name,
                            const struct server_histogram *histogram, const char *help) {
  char full[96], label[48];
  int64_t total = 0;
  write_header(out, dialect, name, "histogram", help);
  snprintf(full, sizeof full, "%s_bucket", name);
  for (int i = 0; i <= histogram->count; i++) {
    total += histogram->below[i];
    if (i < histogram->count) {
      snprintf(label, sizeof label, "le=\"%g\"", histogram->bounds[i]);
    } else {
      snprintf(label, sizeof label, "le=\"+Inf\"");
    }
    write_value(out, dialect, full, label, (double)total);
  }
  snprintf(full, sizeof full, "%s_sum", name);
  write_value(out, dialect, full, "", histogram->sum);
  snprintf(full, sizeof full, "%s_count", name);
  write_value(out, dialect, full, "", (double)total);
}

/* One number under one name; label may be empty. Rows of one name stand together. */
struct metric_row {
  const char *name, *label, *type, *help;
  double value;
};

static void write_rows(struct quire_strbuf *out, const struct dialect *dialect, const struct metric_row *rows,
                       size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || strcmp(rows[i].name, rows[i - 1].name) != 0) {
      write_header(out, dialect, rows[i].name, rows[i].type, rows[i].help);
    }
    write_value(out, dialect, rows[i].name, rows[i].label, rows[i].value);
  }
}

static void write_own(struct quire_server *server, const struct picture *p, struct quire_strbuf *out) {
  const struct server_numbers *n = &server->numbers;
  const struct quire_engine_stats *e = &p->worker.engine;
  const struct quire_cache_stats *c = &p->worker.cache;
  const struct dialect own = {"quire_", ""};
  const struct metric_row rows[] = {
      {"ready", "", "gauge", "1 while new requests are welcome", quire_server_illness(server) == NULL},
      {"worker_silence_seconds", "", "gauge", "since the worker last came by; /health looks at it", p->silence},
      {"requests_running", "", "gauge", "requests that compute", (double)p->running},
      {"requests_waiting", "", "gauge", "requests in the queue", (double)p->waiting},
      {"requests_open", "", "gauge", "HTTP requests for text not answered yet", server->call_count},
      {"requests_total", "end=\"stop\"", "counter", "sequences by how they ended", (double)n->finished[0]},
      {"requests_total", "end=\"length\"", "counter", "sequences by how they ended", (double)n->finished[1]},
      {"requests_total", "end=\"abort\"", "counter", "sequences by how they ended", (double)n->finished[2]},
      {"requests_total", "end=\"error\"", "counter", "sequences by how they ended", (double)n->finished[3]},
      {"disconnects_total", "", "counter", "clients that left before their answer's end", (double)n->disconnects},
      {"rejected_total", "", "counter", "requests refused because a queue was full", (double)n->rejected},
      {"preempted_total", "", "counter", "requests that gave their pages to others", (double)e->preempted},
      {"prompt_tokens_total", "", "counter", "prompt tokens of answered requests", (double)n->prompt_tokens},
      {"cached_tokens_total", "place=\"device\"", "counter", "prompt tokens found in a cache",
       (double)n->cached_tokens},
      {"drawn_tokens_total", "", "counter", "tokens of answers", (double)n->drawn_tokens},
      {"prefill_rows_total", "", "counter", "rows computed for prompts", (double)e->prefill_tokens},
      {"decode_rows_total", "", "counter", "rows computed for answers", (double)e->decode_tokens},
      {"steps_total", "", "counter", "step plans that ran", (double)e->steps},
      {"pages", "state=\"all\"", "gauge", "pages of the cache by state", (double)c->pages},
      {"pages", "state=\"free\"", "gauge", "pages of the cache by state", (double)c->free},
      {"pages", "state=\"cached\"", "gauge", "pages of the cache by state", (double)c->cached},
      {"pages", "state=\"quarantined\"", "gauge", "pages of the cache by state", (double)c->quarantined},
      {"evicted_pages_total", "", "counter", "cached pages that made room", (double)c->evicted_pages},
      {"http_connections", "", "gauge", "open connections", p->http.connections},
      {"http_connections_total", "", "counter", "accepted connections", (double)p->http.accepted},
      {"http_turned_away_total", "", "counter", "connections above the limit", (double)p->http.over_limit},
      {"http_responses_total", "code=\"2xx\"", "counter", "answers by status", (double)n->answered[2]},
      {"http_responses_total", "code=\"4xx\"", "counter", "answers by status", (double)n->answered[4]},
      {"http_responses_total", "code=\"5xx\"", "counter", "answers by status", (double)n->answered[5]},
      {"http_timeouts_total", "", "counter", "requests that came in too slowly", (double)p->http.timeouts},
      {"http_slow_readers_total", "", "counter", "clients cut off because they did not read",
       (double)p->http.slow_readers},
      {"http_unread_bytes", "", "gauge", "bytes of answers that wait for their readers", (double)p->http.unread},
      {"http_bytes_total", "way=\"in\"", "counter", "bytes of HTTP", (double)p->http.bytes_in},
      {"http_bytes_total", "way=\"out\"", "counter", "bytes of HTTP", (double)p->http.bytes_out},
  };
  write_rows(out, &own, rows, sizeof rows / sizeof rows[0]);
  write_histogram(out, &own, "time_to_first_token_seconds", &n->ttft, "from arrival to the first token");
  write_histogram(out, &own, "inter_token_seconds", &n->itl, "between two tokens of a sequence");
  write_histogram(out, &own, "request_seconds", &n->e2e, "from arrival to the answer's last byte");
  write_histogram(out, &own, "queue_seconds", &n->queue, "from arrival to the first page");
  write_histogram(out, &own, "prefill_seconds", &n->prefill, "from the first page to the first token");
  write_histogram(out, &own, "decode_seconds", &n->decode, "from the first token to the last");
}

static void write_sglang(struct quire_server *server, const struct picture *p, const char *labels,
                         struct quire_strbuf *out) {
  const struct server_numbers *n = &server->numbers;
  const struct dialect dialect = {"sglang:", labels};
  const struct metric_row rows[] = {
      {"num_running_reqs", "", "gauge", "requests that compute", (double)p->running},
      {"num_queue_reqs", "", "gauge", "requests in the queue", (double)p->waiting},
      {"token_usage", "", "gauge", "share of the cache in use", p->usage},
      {"num_used_tokens", "", "gauge", "tokens of the cache in use", (double)p->used_tokens},
      {"max_total_num_tokens", "", "gauge", "tokens the cache holds", (double)p->total_tokens},
      {"cache_hit_rate", "", "gauge", "share of prompt tokens found in the cache", p->hit_rate},
      {"gen_throughput", "", "gauge", "tokens a second", server->throughput},
      {"prompt_tokens_total", "", "counter", "prompt tokens", (double)n->prompt_tokens},
      {"generation_tokens_total", "", "counter", "tokens of answers", (double)n->drawn_tokens},
      {"cached_tokens_total", "cache_source=\"device\"", "counter", "prompt tokens found in the cache",
       (double)n->cached_tokens},
      {"num_requests_total", "", "counter", "requests",
       (double)(n->finished[0] + n->finished[1] + n->finished[2] + n->finished[3])},
      {"num_aborted_requests_total", "", "counter", "requests that were aborted", (double)n->finished[2]},
      {"num_retracted_reqs", "", "gauge", "requests preempted so far", (double)p->worker.engine.preempted},
      {"realtime_tokens_total", "mode=\"prefill_compute\"", "counter", "tokens by what was done",
       (double)p->worker.engine.prefill_tokens},
      {"realtime_tokens_total", "mode=\"prefill_cache\"", "counter", "tokens by what was done",
       (double)p->worker.engine.cached_tokens},
      {"realtime_tokens_total", "mode=\"decode\"", "counter", "tokens by what was done",
       (double)p->worker.engine.drawn_tokens},
      {"evicted_tokens_total", "", "counter", "tokens of cached pages that made room",
       (double)p->worker.cache.evicted_pages * p->page_tokens},
      {"cache_config_info", p->config, "gauge", "the cache as it was made", 1},
  };
  write_rows(out, &dialect, rows, sizeof rows / sizeof rows[0]);
  write_histogram(out, &dialect, "time_to_first_token_seconds", &n->ttft, "from arrival to the first token");
  write_histogram(out, &dialect, "inter_token_latency_seconds", &n->itl, "between two tokens of a sequence");
  write_histogram(out, &dialect, "e2e_request_latency_seconds", &n->e2e, "from arrival to the answer's last byte");
  write_histogram(out, &dialect, "queue_time_seconds", &n->queue, "from arrival to the first page");
}

static void write_vllm(struct quire_server *server, const struct picture *p, const char *labels,
                       struct quire_strbuf *out) {
  const struct server_numbers *n = &server->numbers;
  const struct dialect dialect = {"vllm:", labels};
  const struct metric_row rows[] = {
      {"num_requests_running", "", "gauge", "requests that compute", (double)p->running},
      {"num_requests_waiting", "", "gauge", "requests in the queue", (double)p->waiting},
      {"kv_cache_usage_perc", "", "gauge", "share of the cache in use", p->usage},
      {"prefix_cache_queries_total", "", "counter", "prompt tokens looked up", (double)p->worker.engine.prompt_tokens},
      {"prefix_cache_hits_total", "", "counter", "prompt tokens found", (double)p->worker.engine.cached_tokens},
      {"prompt_tokens_total", "", "counter", "prompt tokens", (double)n->prompt_tokens},
      {"generation_tokens_total", "", "counter", "tokens of answers", (double)n->drawn_tokens},
      {"request_success_total", "finished_reason=\"stop\"", "counter", "requests by how they ended",
       (double)n->finished[0]},
      {"request_success_total", "finished_reason=\"length\"", "counter", "requests by how they ended",
       (double)n->finished[1]},
      {"request_success_total", "finished_reason=\"abort\"", "counter", "requests by how they ended",
       (double)n->finished[2]},
      {"num_preemptions_total", "", "counter", "requests preempted", (double)p->worker.engine.preempted},
      {"admission_rejections_total", "", "counter", "requests refused because a queue was full", (double)n->rejected},
      {"prompt_tokens_by_source_total", "source=\"local_compute\"", "counter", "prompt tokens by where they came from",
       (double)(n->prompt_tokens - n->cached_tokens)},
      {"prompt_tokens_by_source_total", "source=\"local_cache_hit\"", "counter",
       "prompt tokens by where they came from", (double)n->cached_tokens},
      {"cache_config_info", p->config, "gauge", "the cache as it was made", 1},
  };
  write_rows(out, &dialect, rows, sizeof rows / sizeof rows[0]);
  write_histogram(out, &dialect, "time_to_first_token_seconds", &n->ttft, "from arrival to the first token");
  write_histogram(out, &dialect, "inter_token_latency_seconds", &n->itl, "between two tokens of a sequence");
  write_histogram(out, &dialect, "e2e_request_latency_seconds", &n->e2e, "from arrival to the answer's last byte");
  write_histogram(out, &dialect, "request_queue_time_seconds", &n->queue, "from arrival to the first page");
  write_histogram(out, &dialect, "request_prefill_time_seconds", &n->prefill, "from the first page to the first token");
  write_histogram(out, &dialect, "request_decode_time_seconds", &n->decode, "from the first token to the last");
}

/* A label's value: quotes, backslashes and line ends escaped. */
static void write_label(struct quire_strbuf *out, const char *name, const char *value) {
  quire_strbuf_addf(out, "%s=\"", name);
  for (const char *at = value; *at != '\0'; at++) {
    if (*at == '"' || *at == '\\') {
      quire_strbuf_add_char(out, '\\');
    }
    if (*at == '\n') {
      quire_strbuf_add_text(out, "\\n");
    } else {
      quire_strbuf_add_char(out, *at);
    }
  }
  quire_strbuf_add_char(out, '"');
}

void quire_server_metrics(struct quire_server *server, struct quire_strbuf *out) {
  struct picture p;
  struct quire_strbuf labels;
  take_picture(server, &p);
  quire_strbuf_init(&labels, server->env);
  write_label(&labels, "model_name", server->model != NULL ? quire_server_model_name(server) : "");
  write_own(server, &p, out);
  if (server->options->metrics_compat == QUIRE_COMPAT_SGLANG) {
    quire_strbuf_add_text(&labels, ",engine_type=\"unified\",tp_rank=\"0\",pp_rank=\"0\",moe_ep_rank=\"0\"");
    write_sglang(server, &p, quire_strbuf_text(&labels), out);
  } else if (server->options->metrics_compat == QUIRE_COMPAT_VLLM) {
    quire_strbuf_add_text(&labels, ",engine=\"0\"");
    write_vllm(server, &p, quire_strbuf_text(&labels), out);
  }
  quire_strbuf_fini(&labels);
}
