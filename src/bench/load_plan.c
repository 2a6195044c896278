/* Requests as a function of the seed: lengths, prefixes, arrivals, and their texts.
 *
 * Completions and generate send token ids, so that lengths are exact without a tokenizer; chat sends words, of which
 * most are one token, and the server says how many they were. Lengths like ShareGPT's are log-normal with the means
 * that benchmarks report of it (some 220 tokens in, 200 out), cut at 1,024; the conversations themselves are not
 * ours. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "bench/load.h"

#define LENGTH_MIN 4
#define SHAREGPT_MAX 1024
#define TOKEN_FIRST 16 /* below it are marks of most vocabularies */

static const char *const words[] = {
    "the",   "of",   "and",   "to",    "in",   "that", "was",  "he",   "it",    "his",   "is",   "with",  "as",
    "had",   "for",  "you",   "not",   "be",   "at",   "on",   "her",  "which", "all",   "but",  "have",  "they",
    "from",  "this", "him",   "she",   "said", "were", "by",   "one",  "so",    "there", "an",   "or",    "if",
    "no",    "when", "would", "who",   "what", "them", "been", "will", "then",  "more",  "some", "time",  "out",
    "about", "very", "upon",  "could", "now",  "into", "up",   "any",  "than",  "how",   "man",  "before"};

const char *load_outcome_name(enum load_outcome outcome) {
  static const char *const names[LOAD_OUTCOMES] = {"waiting",  "ok",        "cut",          "connect",
                                                   "reset",    "truncated", "protocol",     "http_4xx",
                                                   "http_429", "http_5xx",  "stream_error", "timeout"};
  QUIRE_ASSERT((int)outcome >= 0 && outcome < LOAD_OUTCOMES);
  return names[outcome];
}

/* http://host:port/base */
static enum quire_status read_url(struct load_run *run, const char *url, struct quire_error *error_out) {
  static const char scheme[] = "http://";
  const char *fault = NULL;
  if (url == NULL || strncmp(url, scheme, sizeof scheme - 1) != 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bench serve", "name a server: http://HOST:PORT");
  }
  const char *host = url + sizeof scheme - 1;
  const char *path = host + strcspn(host, "/");
  const bool v6 = host[0] == '[';
  const char *host_end = v6 ? host + strcspn(host, "]") : host + strcspn(host, ":/");
  const char *colon = v6 && *host_end == ']' ? host_end + 1 : host_end;
  host += v6;
  const size_t host_bytes = (size_t)(host_end - host), base_bytes = strlen(path);
  const size_t port_bytes = *colon == ':' && colon < path ? (size_t)(path - colon - 1) : 0;
  fault = host_bytes == 0 || host_bytes >= sizeof run->host ? "its host is missing or too long" : fault;
  fault = port_bytes >= sizeof run->port ? "its port is too long" : fault;
  fault = base_bytes >= sizeof run->base ? "its path is too long" : fault;
  if (fault) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bench serve", "%.200s: %s", url, fault);
  }
  memcpy(run->host, host, host_bytes);
  memcpy(run->port, port_bytes > 0 ? colon + 1 : "80", port_bytes > 0 ? port_bytes : 2);
  memcpy(run->base, path, base_bytes);
  for (size_t end = base_bytes; end > 0 && run->base[end - 1] == '/'; end--) {
    run->base[end - 1] = '\0';
  }
  return QUIRE_OK;
}

static double uniform(uint64_t *rng) { return ((double)(quire_splitmix64(rng) >> 11) + 0.5) * 0x1p-53; }

static double normal(uint64_t *rng) {
  const double radius = sqrt(-2 * log(uniform(rng)));
  return radius * cos(2 * 3.14159265358979323846 * uniform(rng));
}

static int32_t clamp(double value, int64_t low, int64_t high) {
  const double bounded = value < (double)low ? (double)low : value > (double)high ? (double)high : value;
  return (int32_t)bounded;
}

static void set_lengths(const struct load_options *options, struct load_request *request, uint64_t *rng) {
  if (options->lengths == LOAD_SHAREGPT) {
    request->input = clamp(exp(log(120) + 1.1 * normal(rng)), LENGTH_MIN, SHAREGPT_MAX);
    request->output = clamp(exp(log(130) + 0.95 * normal(rng)), LENGTH_MIN, SHAREGPT_MAX);
    return;
  }
  const double low = options->range_ratio;
  request->input = clamp((double)options->input_tokens * (low + (1 - low) * uniform(rng)), 1, options->input_tokens);
  request->output = clamp((double)options->output_tokens * (low + (1 - low) * uniform(rng)), 1, options->output_tokens);
}

enum quire_status load_plan(const struct quire_env *env, const struct load_options *options, struct load_run *run_out,
                            struct quire_error *error_out) {
  struct load_run run = {.env = env, .options = options, .count = options->requests};
  QUIRE_ASSERT(env && options && run_out);
  enum quire_status status = read_url(&run, options->url, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  if (options->rate == 0 && options->concurrency == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--concurrency",
                           "must be at least 1 without --rate: nothing else ends the queue of requests");
  }
  run.requests = quire_env_zalloc(env, (size_t)run.count, sizeof *run.requests);
  run.slices = quire_env_zalloc(env, LOAD_SLICES_MAX, sizeof *run.slices);
  /* of their own each, so that the same texts may be sent at other times or cut elsewhere */
  uint64_t rng = quire_mix64((uint64_t)options->seed), times = quire_mix64(rng), cuts = quire_mix64(times);
  double at = 0;
  for (int64_t i = 0; run.requests && i < run.count; i++) {
    struct load_request *request = &run.requests[i];
    set_lengths(options, request, &rng);
    request->seed = quire_splitmix64(&rng);
    request->prefix = options->prefixes > 0 ? (int32_t)(quire_mix64(request->seed) % (uint64_t)options->prefixes) : -1;
    request->cut = -1;
    if (uniform(&cuts) < options->disconnect) {
      request->cut = (int32_t)quire_splitmix64_below(&cuts, (uint64_t)request->output + 1);
    }
    at += options->rate > 0 ? -log(uniform(&times)) / options->rate : 0;
    request->at_ns = (uint64_t)(at * 1e9);
    request->prompt_tokens = request->completion_tokens = request->cached_tokens = -1;
    run.itl_max += request->output;
  }
  run.itl_ms = run.requests ? quire_env_zalloc(env, (size_t)run.itl_max, sizeof *run.itl_ms) : NULL;
  if (!run.requests || !run.slices || !run.itl_ms) {
    load_free(&run);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench serve", "no memory for %lld requests",
                           (long long)run.count);
  }
  *run_out = run;
  return QUIRE_OK;
}

void load_free(struct load_run *run) {
  quire_env_free(run->env, run->requests, (size_t)run->count, sizeof *run->requests);
  quire_env_free(run->env, run->slices, LOAD_SLICES_MAX, sizeof *run->slices);
  quire_env_free(run->env, run->itl_ms, (size_t)run->itl_max, sizeof *run->itl_ms);
  run->requests = NULL;
  run->slices = NULL;
  run->itl_ms = NULL;
}

/* count ids or words of one seed; *first says whether a separator is due. */
static void add_tokens(const struct load_run *run, struct quire_strbuf *body, uint64_t seed, int64_t count,
                       bool *first) {
  const bool text = run->options->endpoint == LOAD_CHAT;
  for (int64_t i = 0; i < count; i++) {
    const uint64_t random = quire_splitmix64(&seed);
    if (!*first) {
      quire_strbuf_add_char(body, text ? ' ' : ',');
    }
    *first = false;
    if (text) {
      quire_strbuf_add_text(body, words[random % (sizeof words / sizeof *words)]);
    } else {
      quire_strbuf_addf(body, "%" PRIu64, TOKEN_FIRST + random % (uint64_t)(run->options->vocab - TOKEN_FIRST));
    }
  }
}

static void add_prompt(const struct load_run *run, const struct load_request *request, struct quire_strbuf *body) {
  bool first = true;
  if (request->prefix >= 0) {
    const uint64_t seed = quire_mix64((uint64_t)run->options->seed ^ (0x7072656669780000u + (uint64_t)request->prefix));
    add_tokens(run, body, seed, run->options->prefix_tokens, &first);
  }
  add_tokens(run, body, request->seed, request->input, &first);
}

void load_body(const struct load_run *run, const struct load_request *request, struct quire_strbuf *body) {
  const struct load_options *options = run->options;
  const char *ignore_eos = options->stop_at_eos ? "false" : "true";
  QUIRE_ASSERT(run && request && body);
  switch (options->endpoint) {
  case LOAD_CHAT:
    quire_strbuf_addf(body, "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"", run->model);
    add_prompt(run, request, body);
    quire_strbuf_addf(body, "\"}],\"max_completion_tokens\":%d,", request->output);
    break;
  case LOAD_COMPLETIONS:
    quire_strbuf_addf(body, "{\"model\":\"%s\",\"prompt\":[", run->model);
    add_prompt(run, request, body);
    quire_strbuf_addf(body, "],\"max_tokens\":%d,", request->output);
    break;
  default:
    quire_strbuf_add_text(body, "{\"input_ids\":[");
    add_prompt(run, request, body);
    quire_strbuf_addf(body, "],\"sampling_params\":{\"max_new_tokens\":%d,\"temperature\":%g,\"ignore_eos\":%s},",
                      request->output, options->temperature, ignore_eos);
  }
  if (options->endpoint != LOAD_GENERATE) {
    quire_strbuf_addf(body, "\"temperature\":%g,\"ignore_eos\":%s,\"stream_options\":{\"include_usage\":true},",
                      options->temperature, ignore_eos);
  }
  quire_strbuf_add_text(body, "\"stream\":true}");
}
