/* Every metric, ours and those of other engines: it is there, is declared as what it is, and moves under a load. */
// ctest: timeout=60
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/served.h"

enum { CTX_TOKENS = 1 << 20 };

struct metric {
  const char *name, *type;
  bool moves; /* is above 0 after a load, and was not before it */
};

static const struct metric own_metrics[] = {
    {"ready", "gauge", false},
    {"worker_silence_seconds", "gauge", false},
    {"requests_running", "gauge", false},
    {"requests_waiting", "gauge", false},
    {"requests_open", "gauge", false},
    {"requests_total", "counter", true},
    {"disconnects_total", "counter", true},
    {"rejected_total", "counter", true},
    {"preempted_total", "counter", false},
    {"prompt_tokens_total", "counter", true},
    {"cached_tokens_total", "counter", true},
    {"drawn_tokens_total", "counter", true},
    {"prefill_rows_total", "counter", true},
    {"decode_rows_total", "counter", true},
    {"steps_total", "counter", true},
    {"pages", "gauge", false},
    {"evicted_pages_total", "counter", false},
    {"http_connections", "gauge", false},
    {"http_unread_bytes", "gauge", false},
    {"http_responses_total", "counter", true},
    {"time_to_first_token_seconds", "histogram", true},
    {"inter_token_seconds", "histogram", true},
    {"request_seconds", "histogram", true},
    {"queue_seconds", "histogram", true},
    {"prefill_seconds", "histogram", true},
    {"decode_seconds", "histogram", true},
    {0},
};

static const struct metric sglang_metrics[] = {
    {"num_running_reqs", "gauge", false},
    {"num_queue_reqs", "gauge", false},
    {"token_usage", "gauge", false},
    {"num_used_tokens", "gauge", false},
    {"max_total_num_tokens", "gauge", false},
    {"cache_hit_rate", "gauge", true},
    {"gen_throughput", "gauge", false},
    {"prompt_tokens_total", "counter", true},
    {"generation_tokens_total", "counter", true},
    {"cached_tokens_total", "counter", true},
    {"realtime_tokens_total", "counter", true},
    {"evicted_tokens_total", "counter", false},
    {"num_requests_total", "counter", true},
    {"num_aborted_requests_total", "counter", true},
    {"num_retracted_reqs", "gauge", false},
    {"cache_config_info", "gauge", false},
    {"time_to_first_token_seconds", "histogram", true},
    {"inter_token_latency_seconds", "histogram", true},
    {"e2e_request_latency_seconds", "histogram", true},
    {"queue_time_seconds", "histogram", true},
    {0},
};

static const struct metric vllm_metrics[] = {
    {"num_requests_running", "gauge", false},
    {"num_requests_waiting", "gauge", false},
    {"kv_cache_usage_perc", "gauge", false},
    {"prefix_cache_queries_total", "counter", true},
    {"prefix_cache_hits_total", "counter", true},
    {"prompt_tokens_total", "counter", true},
    {"generation_tokens_total", "counter", true},
    {"prompt_tokens_by_source_total", "counter", true},
    {"request_success_total", "counter", true},
    {"num_preemptions_total", "counter", false},
    {"admission_rejections_total", "counter", true},
    {"cache_config_info", "gauge", false},
    {"time_to_first_token_seconds", "histogram", true},
    {"inter_token_latency_seconds", "histogram", true},
    {"e2e_request_latency_seconds", "histogram", true},
    {"request_queue_time_seconds", "histogram", true},
    {"request_prefill_time_seconds", "histogram", true},
    {"request_decode_time_seconds", "histogram", true},
    {0},
};

/* Sum of a family's samples (histograms: of its counts); fails unless it is declared once, as what it is. */
static double family(const char *text, const char *prefix, const struct metric *metric) {
  char declared[160], sample[128];
  snprintf(declared, sizeof declared, "# TYPE %s%s %s\n", prefix, metric->name, metric->type);
  const char *type = strstr(text, declared);
  if (type == NULL || strstr(type + 1, declared) != NULL) {
    fail_msg("%s is not there, or twice", declared);
  }
  int bytes = snprintf(sample, sizeof sample, "\n%s%s%s", prefix, metric->name, *metric->type == 'h' ? "_count" : "");
  double sum = 0;
  int found = 0;
  for (const char *at = text; (at = strstr(at, sample)) != NULL; at++) {
    if (at[bytes] == ' ' || at[bytes] == '{') {
      const char *end = strchr(at + 1, '\n');
      while (*end != ' ') {
        end--;
      }
      sum += strtod(end, NULL);
      found++;
    }
  }
  assert_true(found > 0);
  return sum;
}

static void load_all(const struct served *other) {
  struct reply reply;
  char body[2048];
  int bytes = sprintf(body, "{\"max_tokens\":3,\"ignore_eos\":true,\"prompt\":[");
  for (int i = 0; i < 150; i++) {
    bytes += sprintf(body + bytes, "%s%d", i > 0 ? "," : "", 3 + i);
  }
  strcpy(body + bytes, "]}");
  for (int i = 0; i < 2; i++) { /* the second finds the first's pages */
    client_ask(other->port, "POST", "/v1/completions", body, &reply);
    assert_int_equal(reply.status, 200);
    reply_free(&reply);
  }
  int fds[4];
  for (int i = 0; i < 4; i++) {
    fds[i] = client_connect(other->port);
    client_send(fds[i], "POST", "/v1/completions", NULL,
                "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true}");
    client_wait_ms(20);
  }
  client_ask(other->port, "POST", "/v1/completions", body, &reply);
  assert_int_equal(reply.status, 429);
  reply_free(&reply);
  for (int i = 0; i < 4; i++) {
    close(fds[i]);
  }
}

static void sglang_names(struct quire_server_options *options) { options->metrics_compat = QUIRE_COMPAT_SGLANG; }
static void vllm_names(struct quire_server_options *options) { options->metrics_compat = QUIRE_COMPAT_VLLM; }

static void check_metrics(const struct metric *metrics, const char *prefix,
                          void (*change)(struct quire_server_options *)) {
  struct served other;
  struct reply before, after;
  served_open(&other, &(struct served_config){.running_max = 2,
                                              .queue_max = 2,
                                              .ctx_tokens = CTX_TOKENS,
                                              .cache_tokens = 3 * CTX_TOKENS,
                                              .change = change});
  client_ask(other.port, "GET", "/metrics", NULL, &before);
  load_all(&other);
  served_check_empty(&other);
  client_wait_ms(50);
  client_ask(other.port, "GET", "/metrics", NULL, &after);
  for (int i = 0; metrics[i].name != NULL; i++) {
    double first = family(before.body, prefix, &metrics[i]), second = family(after.body, prefix, &metrics[i]);
    bool counts = strcmp(metrics[i].type, "gauge") != 0;
    if ((counts && second < first) || (metrics[i].moves && second <= first)) {
      fail_msg("%s%s went from %g to %g", prefix, metrics[i].name, first, second);
    }
  }
  /* every sequence that had a ticket ended in one way: two whole, four whose clients left */
  assert_non_null(strstr(after.body, "\nquire_requests_total{end=\"length\"} 2\n"));
  assert_non_null(strstr(after.body, "\nquire_requests_total{end=\"abort\"} 4\n"));
  assert_non_null(strstr(after.body, "\nquire_requests_total{end=\"error\"} 0\n"));
  reply_free(&before);
  reply_free(&after);
  served_close(&other);
}

static void own(void **state) {
  (void)state;
  check_metrics(own_metrics, "quire_", NULL);
}

static void sglang(void **state) {
  (void)state;
  check_metrics(sglang_metrics, "sglang:", sglang_names);
}

static void vllm(void **state) {
  (void)state;
  check_metrics(vllm_metrics, "vllm:", vllm_names);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(own),
      cmocka_unit_test(sglang),
      cmocka_unit_test(vllm),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
