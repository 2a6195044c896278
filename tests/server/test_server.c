/* The server as its clients see it: every interface, every refusal, streams to the byte, and what happens when clients
 * leave, do not read, or a signal comes. */
// ctest: timeout=120
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/served.h"

static struct served served;

static int setup(void **state) {
  (void)state;
  served_open(&served, &(struct served_config){0});
  return 0;
}

static int teardown(void **state) {
  (void)state;
  served_check_empty(&served);
  served_close(&served);
  return 0;
}

static json_t *ask(const char *path, const char *body, int status) {
  struct reply reply;
  client_ask(served.port, body != NULL ? "POST" : "GET", path, body, &reply);
  if (reply.status != status || !reply.complete) {
    fail_msg("%s %s: %d, not %d: %s", path, body != NULL ? body : "", reply.status, status, reply.body);
  }
  json_t *root = reply_json(&reply);
  reply_free(&reply);
  return root;
}

/* --- refusals --- */

struct bad {
  const char *path, *body;
  int status;
  const char *code, *param; /* param NULL: null */
};

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static const struct bad bads[] = {
    {TEXT, "", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":", 400, "invalid_json", NULL},
    {TEXT, "[1]", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"\xff\"}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, "invalid_json", NULL},
    {TEXT, "{}", 400, "missing_required_parameter", "prompt"},
    {TEXT, "{\"prompt\":5}", 400, "invalid_type", "prompt"},
    {TEXT, "{\"prompt\":[]}", 400, "invalid_value", "prompt"},
    {TEXT, "{\"prompt\":\"\"}", 400, "invalid_value", "prompt"},
    {TEXT, "{\"prompt\":[\"a\",5]}", 400, "invalid_type", "prompt"},
    {TEXT, "{\"prompt\":[1,-1]}", 400, "invalid_value", "prompt"},
    {TEXT, "{\"prompt\":[1,4096]}", 400, "invalid_value", "prompt"},
    {TEXT, "{\"prompt\":\"a\",\"model\":\"other\"}", 404, "model_not_found", "model"},
    {TEXT, "{\"prompt\":\"a\",\"model\":7}", 400, "invalid_type", "model"},
    {TEXT, "{\"prompt\":\"a\",\"temperature\":-0.1}", 400, "invalid_value", "temperature"},
    {TEXT, "{\"prompt\":\"a\",\"temperature\":\"hot\"}", 400, "invalid_type", "temperature"},
    {TEXT, "{\"prompt\":\"a\",\"temperature\":1e400}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\",\"top_p\":1.5}", 400, "invalid_value", "top_p"},
    {TEXT, "{\"prompt\":\"a\",\"top_k\":-2}", 400, "invalid_value", "top_k"},
    {TEXT, "{\"prompt\":\"a\",\"min_p\":2}", 400, "invalid_value", "min_p"},
    {TEXT, "{\"prompt\":\"a\",\"presence_penalty\":3}", 400, "invalid_value", "presence_penalty"},
    {TEXT, "{\"prompt\":\"a\",\"repetition_penalty\":0}", 400, "invalid_value", "repetition_penalty"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":0}", 400, "invalid_value", "max_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1.5}", 400, "invalid_type", "max_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":5000}", 400, "context_length_exceeded", "max_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"min_tokens\":17}", 400, "invalid_value", "min_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"n\":0}", 400, "invalid_value", "n"},
    {TEXT, "{\"prompt\":[\"a\",\"b\"],\"n\":129}", 400, "invalid_value", "n"},
    {TEXT, "{\"prompt\":\"a\",\"best_of\":2}", 400, "unsupported_value", "best_of"},
    {TEXT, "{\"prompt\":\"a\",\"seed\":1e30}", 400, "invalid_type", "seed"},
    {TEXT, "{\"prompt\":\"a\",\"stop\":[\"\"]}", 400, "invalid_value", "stop"},
    {TEXT, "{\"prompt\":\"a\",\"stop\":{}}", 400, "invalid_type", "stop"},
    {TEXT, "{\"prompt\":\"a\",\"stop_token_ids\":[-1]}", 400, "invalid_type", "stop_token_ids"},
    {TEXT, "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", 400, "invalid_value", "logit_bias"},
    {TEXT, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":101}}", 400, "invalid_value", "logit_bias"},
    {TEXT, "{\"prompt\":\"a\",\"logprobs\":21}", 400, "invalid_value", "logprobs"},
    {TEXT, "{\"prompt\":\"a\",\"stream\":1}", 400, "invalid_type", "stream"},
    {TEXT, "{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":true}}", 400, "invalid_value", "stream_options"},
    {TEXT, "{\"prompt\":\"a\",\"lora_path\":\"x\"}", 400, "unsupported_value", "lora_path"},
    {TEXT, "{\"prompt\":\"a\",\"bootstrap_room\":5}", 400, "unsupported_value", "bootstrap_room"},
    {TEXT, "{\"prompt\":\"a\",\"temperature\":1e999}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\",\"temperature\":NaN}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\",\"temperature\":1e39}", 400, "invalid_value", "temperature"},
    {TEXT, "{\"prompt\":\"a\",\"temperature\":true}", 400, "invalid_type", "temperature"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":99999999999999999999}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":-0}", 400, "invalid_value", "max_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":\"5\"}", 400, "invalid_type", "max_tokens"},
    {TEXT, "{\"prompt\":\"\\ud800\"}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"\\udc00\\ud800\"}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\",\"x\":{\"y\":1,\"y\":2}}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\"} {}", 400, "invalid_json", NULL},
    {TEXT, "{\"prompt\":\"a\",\"model\":\"quire-sim\\u0000x\"}", 400, "invalid_value", "model"},
    {TEXT, "{\"prompt\":[[1],[]]}", 400, "invalid_value", "prompt"},
    {TEXT, "{\"prompt\":[[1],\"a\"]}", 400, "invalid_type", "prompt"},
    {TEXT, "{\"prompt\":[1,2.5]}", 400, "invalid_value", "prompt"},
    {TEXT, "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "unsupported_value", "suffix"},
    {TEXT, "{\"prompt\":\"a\",\"n\":257}", 400, "invalid_value", "n"},
    {TEXT, "{\"prompt\":\"a\",\"n\":1.5}", 400, "invalid_type", "n"},
    {TEXT, "{\"prompt\":\"a\",\"stop\":[\"a\",7]}", 400, "invalid_type", "stop"},
    {TEXT,
     "{\"prompt\":\"a\",\"stop\":[\"0\",\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\","
     "\"e\","
     "\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\",\"m\",\"n\",\"o\",\"p\",\"q\",\"r\",\"s\",\"t\",\"u\",\"v\",\"w\"]}",
     400, "invalid_value", "stop"},
    {TEXT, "{\"prompt\":\"a\",\"logit_bias\":{\"4096\":1}}", 400, "invalid_value", "logit_bias"},
    {TEXT, "{\"prompt\":\"a\",\"logit_bias\":{\"-1\":1}}", 400, "invalid_value", "logit_bias"},
    {TEXT, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":\"1\"}}", 400, "invalid_value", "logit_bias"},
    {TEXT, "{\"prompt\":\"a\",\"logit_bias\":[5]}", 400, "invalid_type", "logit_bias"},
    {TEXT, "{\"prompt\":\"a\",\"logprobs\":-1}", 400, "invalid_value", "logprobs"},
    {TEXT, "{\"prompt\":\"a\",\"logprobs\":true}", 400, "invalid_type", "logprobs"},
    {TEXT, "{\"prompt\":\"a\",\"rid\":[\"a\"]}", 400, "invalid_type", "rid"},
    {CHAT, "{" MESSAGES ",\"logprobs\":true,\"top_logprobs\":21}", 400, "invalid_value", "top_logprobs"},
    {CHAT, "{" MESSAGES ",\"logprobs\":5}", 400, "invalid_type", "logprobs"},
    {CHAT, "{" MESSAGES ",\"tool_choice\":\"required\"}", 400, "unsupported_value", "tool_choice"},
    {CHAT, "{" MESSAGES ",\"tool_choice\":{\"type\":\"function\"}}", 400, "unsupported_value", "tool_choice"},
    {CHAT, "{" MESSAGES ",\"functions\":[{\"name\":\"f\"}]}", 400, "unsupported_value", "functions"},
    {CHAT, "{" MESSAGES ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", 400, "unsupported_value",
     "response_format"},
    {CHAT, "{" MESSAGES ",\"response_format\":\"json\"}", 400, "invalid_type", "response_format"},
    {CHAT, "{" MESSAGES ",\"modalities\":[\"text\",\"audio\"]}", 400, "unsupported_value", "modalities"},
    {CHAT, "{" MESSAGES ",\"reasoning_effort\":\"hard\"}", 400, "invalid_value", "reasoning_effort"},
    {CHAT, "{" MESSAGES ",\"stream_options\":{}}", 400, "invalid_value", "stream_options"},
    {CHAT, "{" MESSAGES ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", 400, "invalid_type",
     "stream_options.include_usage"},
    {CHAT, "{\"messages\":{}}", 400, "invalid_value", "messages"},
    {CHAT, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", 400, "unsupported_value", "messages[0]"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400, "invalid_type", "messages[0]"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"prefix\":1}]}", 400, "invalid_type",
     "messages[0].prefix"},
    {CHAT,
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true},{\"role\":\"user\",\"content\":\"x\"}]"
     "}",
     400, "invalid_value", "messages[0].prefix"},
    {CHAT, "{" MESSAGES ",\"echo\":true}", 400, "unsupported_value", "echo"},
    {CHAT, "{" MESSAGES ",\"add_generation_prompt\":false}", 400, "unsupported_value", "add_generation_prompt"},
    {CHAT, "{" MESSAGES ",\"chat_template\":\"{{ x }}\"}", 400, "unsupported_value", "chat_template"},
    {CHAT, "{" MESSAGES ",\"documents\":[{}]}", 400, "unsupported_value", "documents"},
    {CHAT, "{" MESSAGES ",\"cache_salt\":1}", 400, "invalid_type", "cache_salt"},
    {TEXT, "{\"prompt\":\"a\",\"prompt_logprobs\":0}", 400, "unsupported_value", "prompt_logprobs"},
    {TEXT, "{\"prompt\":\"a\",\"allowed_token_ids\":[1]}", 400, "unsupported_value", "allowed_token_ids"},
    {TEXT, "{\"prompt\":\"a\",\"bad_words\":[\"x\"]}", 400, "unsupported_value", "bad_words"},
    {TEXT, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":5}", 400, "unsupported_value", "truncate_prompt_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"add_special_tokens\":1}", 400, "invalid_type", "add_special_tokens"},
    {"/generate", "{\"text\":\"x\",\"sampling_params\":{\"stop_regex\":\"a+\"}}", 400, "unsupported_value",
     "sampling_params.stop_regex"},
    {"/abort_request", "{\"rid\":", 400, "invalid_json", NULL},
    {"/detokenize", "[1]", 400, "invalid_json", NULL},
    {CHAT, "{}", 400, "missing_required_parameter", "messages"},
    {CHAT, "{\"messages\":[]}", 400, "invalid_value", "messages"},
    {CHAT, "{\"messages\":[5]}", 400, "invalid_type", "messages[0]"},
    {CHAT, "{\"messages\":[{\"role\":\"alien\",\"content\":\"x\"}]}", 400, "unsupported_value", "messages[0]"},
    {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", 400, "invalid_value", "messages[0]"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400, "unsupported_value",
     "messages[0].content"},
    {CHAT, "{" MESSAGES ",\"tools\":[{\"type\":\"function\"}]}", 400, "unsupported_value", "tools"},
    {CHAT, "{" MESSAGES ",\"response_format\":{\"type\":\"json_object\"}}", 400, "unsupported_value",
     "response_format"},
    {CHAT, "{" MESSAGES ",\"top_logprobs\":3}", 400, "invalid_value", "top_logprobs"},
    {CHAT, "{" MESSAGES ",\"max_completion_tokens\":0}", 400, "invalid_value", "max_completion_tokens"},
    {"/generate", "{}", 400, "missing_required_parameter", "text"},
    {"/generate", "{\"text\":\"x\",\"sampling_params\":{\"top_p\":7}}", 400, "invalid_value", "top_p"},
    {"/generate", "{\"text\":\"x\",\"sampling_params\":{\"n\":\"1\"}}", 400, "invalid_type", "sampling_params.n"},
    {"/tokenize", "{\"prompt\":5}", 400, "invalid_type", "prompt"},
    {"/detokenize", "{\"tokens\":[4096]}", 400, "invalid_value", "tokens"},
    {"/abort_request", "{}", 400, "missing_required_parameter", "rid"},
    {"/nowhere", "{}", 404, "not_found", NULL},
    {"/v1/models", "{}", 405, "method_not_allowed", NULL},
};

static void bad_input(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
    const struct bad *bad = &bads[i];
    json_t *root = ask(bad->path, bad->body, bad->status);
    const char *code = json_string_value(json_at(root, "error.code")),
               *param = json_string_value(json_at(root, "error.param"));
    bool right = code != NULL && strcmp(code, bad->code) == 0 &&
                 (bad->param == NULL ? param == NULL : param != NULL && strstr(param, bad->param) != NULL);
    if (!right || strlen(json_text_at(root, "error.message")) < 10 || strlen(json_text_at(root, "error.type")) < 5) {
      fail_msg("%s: code %s, param %s", bad->body, code, param);
    }
    json_decref(root);
  }
}

/* What looks odd and is right: floats that are integers, unknown fields, words that ask for nothing. */
static void odd_input(void **state) {
  (void)state;
  static const char *const good[] = {
      "{\"prompt\":\"a\",\"max_tokens\":2.0,\"n\":1.0,\"seed\":-0,\"temperature\":-0.0,\"user\":null,\"metadata\":{"
      "\"a\":[]}}",
      "{\"prompt\":\"\\ud83d\\ude00 "
      "\\u0000\",\"max_tokens\":2,\"stop\":[],\"logit_bias\":{},\"tools\":[],\"suffix\":\"\"}",
      "{\"prompt\":\"a\",\"max_tokens\":2,\"stream\":false,\"stream_options\":null,\"response_format\":{\"type\":"
      "\"text\"}}",
      " \r\n\t{\"max_tokens\":2e0,\"prompt\":[1],\"modalities\":[\"text\"],\"tool_choice\":\"none\"}",
  };
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    json_t *root = ask(TEXT, good[i], 200);
    assert_true(json_int_at(root, "usage.completion_tokens") <= 2);
    json_decref(root);
  }
  json_decref(
      ask(CHAT, "{" MESSAGES ",\"max_tokens\":1,\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\"}", 200));
  /* nesting that no stack survives is no valid JSON */
  enum { DEEP = 200000 };
  char *deep = malloc(DEEP + 32);
  assert_non_null(deep);
  int head = sprintf(deep, "{\"prompt\":\"a\",\"x\":");
  memset(deep + head, '[', DEEP);
  deep[head + DEEP] = '\0';
  json_t *root = ask(TEXT, deep, 400);
  assert_string_equal(json_text_at(root, "error.code"), "invalid_json");
  assert_non_null(strstr(json_text_at(root, "error.message"), "depth"));
  json_decref(root);
  free(deep);
}

static int status_of_bytes(const char *bytes, struct reply *reply) {
  int fd = client_connect(served.port);
  assert_int_equal(send(fd, bytes, strlen(bytes), MSG_NOSIGNAL), (ssize_t)strlen(bytes));
  client_receive(fd, reply);
  close(fd);
  return reply->status;
}

/* HTTP that is refused gets the same shape of error; HTTP that is rare works. */
static void http_forms(void **state) {
  (void)state;
  struct reply reply;
  static const struct {
    const char *bytes;
    int status;
    const char *code; /* NULL: no error */
  } forms[] = {
      {"OPTIONS " TEXT " HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed"},
      {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 404, "not_found"},
      {"GET " TEXT " HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed"},
      {"get /livez HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed"},
      {"GET http://other:1/v1/models?x=y HTTP/1.1\r\nHost: a\r\n\r\n", 200, NULL},
      {"GET /v1/models/quire%2Dsim HTTP/1.1\r\nHost: a\r\n\r\n", 200, NULL},
      {"GET /v1/models/quire%2 HTTP/1.1\r\nHost: a\r\n\r\n", 404, "model_not_found"},
      {"GET /livez HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400, "bad_http"},
      {"GET /livez HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n", 400, "bad_http"},
      {"POST " TEXT " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, "bad_http"},
      {"POST " TEXT " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_http"},
      {"POST " TEXT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n", 400, "bad_http"},
      {"POST " TEXT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "bad_http"},
      {"POST " TEXT " HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n", 413, "body_too_large"},
      {"POST " TEXT
       " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n11 ;a=\"b\"\r\n{\"prompt\":\"a\",\"ma\r\n"
       "E;x\r\nx_tokens\":1}  \r\n0;y\r\nT: r\r\n\r\n",
       200, NULL},
      {"POST " TEXT " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", 413,
       "body_too_large"},
  };
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    if (status_of_bytes(forms[i].bytes, &reply) != forms[i].status) {
      fail_msg("%s: %d: %s", forms[i].bytes, reply.status, reply.body);
    }
    json_t *root = reply_json(&reply);
    const char *code = json_string_value(json_at(root, "error.code"));
    assert_true((code == NULL) == (forms[i].code == NULL) && (code == NULL || strcmp(code, forms[i].code) == 0));
    json_decref(root);
    reply_free(&reply);
  }
  assert_int_equal(status_of_bytes("HEAD /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", &reply), 200);
  assert_int_equal(reply.bytes, 0);
  reply_free(&reply);
}

static void long_prompts(void **state) {
  (void)state;
  enum { BYTES = 300000 };
  char *body = malloc(BYTES + 64);
  assert_non_null(body);
  int head = sprintf(body, "{\"max_tokens\":1,\"prompt\":\"");
  memset(body + head, 'z', BYTES);
  memcpy(body + head + BYTES, "\"}", 3);
  json_t *root = ask(TEXT, body, 400);
  assert_string_equal(json_text_at(root, "error.code"), "context_length_exceeded");
  json_decref(root);
  /* a large body that fits goes through a text thread */
  for (int i = 0; i < 9000; i++) {
    body[head + i] = "a b c d e "[i % 10];
  }
  memcpy(body + head + 3000, "\",\"user\":\"", 10);
  memcpy(body + head + 9000, "\"}", 3);
  root = ask(TEXT, body, 200);
  assert_true(json_int_at(root, "usage.prompt_tokens") > 1000);
  json_decref(root);
  free(body);
}

/* --- answers --- */

static void completion(void **state) {
  (void)state;
  json_t *root = ask(TEXT,
                     "{\"model\":\"quire-sim\",\"prompt\":\"Once upon\",\"max_tokens\":8,\"seed\":5,\"ignore_eos\":"
                     "true,\"unknown\":1,\"logprobs\":null,\"stop\":null,\"best_of\":1}",
                     200);
  assert_string_equal(json_text_at(root, "object"), "text_completion");
  assert_string_equal(json_text_at(root, "model"), "quire-sim");
  assert_memory_equal(json_text_at(root, "id"), "cmpl-", 5);
  assert_string_equal(json_text_at(root, "choices.0.finish_reason"), "length");
  assert_int_equal(json_int_at(root, "usage.completion_tokens"), 8);
  assert_int_equal(json_int_at(root, "usage.total_tokens"), json_int_at(root, "usage.prompt_tokens") + 8);
  assert_true(json_int_at(root, "created") > 1600000000);
  json_decref(root);
}

static void completion_cached(void **state) {
  (void)state;
  char body[4096];
  int bytes = sprintf(body, "{\"max_tokens\":2,\"prompt\":[");
  for (int i = 0; i < 300; i++) {
    bytes += sprintf(body + bytes, "%s%d", i > 0 ? "," : "", 100 + i * 7 % 3000);
  }
  sprintf(body + bytes, "]}");
  json_t *first = ask(TEXT, body, 200), *second = ask(TEXT, body, 200);
  assert_int_equal(json_int_at(first, "usage.prompt_tokens"), 300);
  assert_int_equal(json_int_at(first, "usage.prompt_tokens_details.cached_tokens"), 0);
  assert_int_equal(json_int_at(second, "usage.prompt_tokens_details.cached_tokens"), 256);
  assert_int_equal(json_int_at(second, "usage.prompt_tokens_details.cached_tokens_by_place.device"), 256);
  json_decref(first);
  json_decref(second);
  json_decref(ask("/flush_cache", "{}", 200));
}

/* What was computed under one salt is found under no other, whichever name the salt has. */
static void salted(void **state) {
  (void)state;
  static const struct {
    const char *salt;
    int64_t cached;
  } turns[] = {
      {"\"cache_salt\":\"a\"", 0}, {"\"cache_salt\":\"b\"", 0},  {"\"cache_salt\":null", 0},
      {"\"extra_key\":\"a\"", 64}, {"\"cache_salt\":\"b\"", 64}, {"\"extra_key\":\"c\"", 0},
      {"\"cache_salt\":null", 64},
  };
  for (size_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
    char body[1024];
    int bytes = sprintf(body, "{\"max_tokens\":1,%s,\"prompt\":[", turns[i].salt);
    for (int k = 0; k < 100; k++) {
      bytes += sprintf(body + bytes, "%s%d", k > 0 ? "," : "", 200 + k * 11 % 3000);
    }
    sprintf(body + bytes, "]}");
    json_t *root = ask(TEXT, body, 200);
    assert_int_equal(json_int_at(root, "usage.prompt_tokens_details.cached_tokens"), turns[i].cached);
    json_decref(root);
  }
  char *body = malloc(1 << 17);
  assert_non_null(body);
  memset(body, 'x', 1 << 17);
  int head = sprintf(body, "{\"prompt\":\"a\",\"cache_salt\":\"");
  body[head] = 'x';
  memcpy(body + (1 << 17) - 3, "\"}", 3);
  json_decref(ask(TEXT, body, 400));
  free(body);
}

/* Choice i of n is the answer to seed + i alone; prompts of a list come in their order. */
static void many_choices(void **state) {
  (void)state;
  json_t *many = ask(
      TEXT, "{\"prompt\":[\"Once upon\",\"The sea\"],\"n\":3,\"max_tokens\":9,\"seed\":40,\"ignore_eos\":true}", 200);
  assert_int_equal(json_array_size(json_at(many, "choices")), 6);
  for (int i = 0; i < 6; i++) {
    char body[256], path[64];
    sprintf(body, "{\"prompt\":\"%s\",\"max_tokens\":9,\"seed\":%d,\"ignore_eos\":true}",
            i < 3 ? "Once upon" : "The sea", 40 + i % 3);
    json_t *one = ask(TEXT, body, 200);
    sprintf(path, "choices.%d.text", i);
    assert_string_equal(json_text_at(many, path), json_text_at(one, "choices.0.text"));
    sprintf(path, "choices.%d.index", i);
    assert_int_equal(json_int_at(many, path), i);
    json_decref(one);
  }
  assert_int_equal(json_int_at(many, "usage.completion_tokens"), 54);
  json_decref(many);
}

/* A stop string cuts the text in front of it, wherever tokens end; a stop token is not part of it. */
static void stops(void **state) {
  (void)state;
  json_t *whole = ask(
      TEXT, "{\"prompt\":\"Once\",\"max_tokens\":60,\"seed\":3,\"ignore_eos\":true,\"skip_special_tokens\":true}", 200);
  const char *text = json_text_at(whole, "choices.0.text");
  size_t begin = 20;
  while (((unsigned char)text[begin] & 0x80) != 0 || ((unsigned char)text[begin + 1] & 0x80) != 0 ||
         ((unsigned char)text[begin + 2] & 0x80) != 0) {
    begin++;
  }
  char stop[4] = {text[begin], text[begin + 1], text[begin + 2], 0}, escaped[32];
  int used = 0;
  for (int i = 0; i < 3; i++) {
    used += sprintf(escaped + used, "\\u%04x", (unsigned char)stop[i]);
  }
  char body[512];
  sprintf(body, "{\"prompt\":\"Once\",\"max_tokens\":60,\"seed\":3,\"ignore_eos\":true,\"stop\":[\"%s\"]}", escaped);
  json_t *cut = ask(TEXT, body, 200);
  const char *first = strstr(text, stop);
  assert_string_equal(json_text_at(cut, "choices.0.finish_reason"), "stop");
  assert_string_equal(json_text_at(cut, "choices.0.matched_stop"), stop);
  assert_int_equal(strlen(json_text_at(cut, "choices.0.text")), (size_t)(first - text));
  assert_memory_equal(json_text_at(cut, "choices.0.text"), text, (size_t)(first - text));
  json_decref(cut);
  json_decref(whole);
  json_t *ids =
      ask("/generate", "{\"text\":\"Once\",\"sampling_params\":{\"max_new_tokens\":12,\"seed\":3,\"ignore_eos\":true}}",
          200);
  int64_t fifth = json_int_at(ids, "output_ids.4");
  sprintf(body,
          "{\"text\":\"Once\",\"sampling_params\":{\"max_new_tokens\":12,\"seed\":3,\"ignore_eos\":true,\"stop_token_"
          "ids\":[%lld]}}",
          (long long)fifth);
  cut = ask("/generate", body, 200);
  assert_string_equal(json_text_at(cut, "meta_info.finish_reason.type"), "stop");
  assert_int_equal(json_int_at(cut, "meta_info.finish_reason.matched"), fifth);
  assert_true(json_int_at(cut, "meta_info.completion_tokens") <= 5);
  json_decref(cut);
  json_decref(ids);
}

static void logprobs(void **state) {
  (void)state;
  json_t *chat = ask(
      CHAT, "{" MESSAGES ",\"max_tokens\":5,\"seed\":1,\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":2}", 200);
  assert_int_equal(json_array_size(json_at(chat, "choices.0.logprobs.content")), 5);
  assert_true(json_is_number(json_at(chat, "choices.0.logprobs.content.4.logprob")));
  assert_true(json_is_string(json_at(chat, "choices.0.logprobs.content.4.token")));
  assert_true(json_is_array(json_at(chat, "choices.0.logprobs.content.4.bytes")));
  assert_true(json_is_array(json_at(chat, "choices.0.logprobs.content.4.top_logprobs")));
  json_decref(chat);
  json_t *text = ask(
      TEXT,
      "{\"prompt\":\"Once upon a time\",\"max_tokens\":3,\"seed\":1,\"ignore_eos\":true,\"logprobs\":1,\"echo\":true}",
      200);
  int64_t prompt = json_int_at(text, "usage.prompt_tokens");
  assert_int_equal(json_array_size(json_at(text, "choices.0.logprobs.tokens")), (size_t)prompt + 3);
  assert_int_equal(json_array_size(json_at(text, "choices.0.logprobs.token_logprobs")), (size_t)prompt + 3);
  assert_int_equal(json_array_size(json_at(text, "choices.0.logprobs.top_logprobs")), (size_t)prompt + 3);
  assert_int_equal(json_array_size(json_at(text, "choices.0.logprobs.text_offset")), (size_t)prompt + 3);
  assert_true(json_is_null(json_at(text, "choices.0.logprobs.token_logprobs.0")));
  assert_int_equal(json_int_at(text, "choices.0.logprobs.text_offset.0"), 0);
  assert_memory_equal(json_text_at(text, "choices.0.text"), "Once upon a time", 16);
  for (size_t i = 1; i < (size_t)prompt + 3; i++) { /* the token itself is among them */
    const json_t *tops = json_array_get(json_at(text, "choices.0.logprobs.top_logprobs"), i);
    const json_t *token = json_array_get(json_at(text, "choices.0.logprobs.tokens"), i);
    assert_non_null(json_object_get(tops, json_string_value(token)));
    assert_true(json_object_size(tops) <= 2);
  }
  json_decref(text);
  json_t *generate =
      ask("/generate",
          "{\"text\":\"Once upon\",\"return_logprob\":true,\"logprob_start_len\":0,\"top_logprobs_num\":1,"
          "\"sampling_params\":{\"max_new_tokens\":4,\"ignore_eos\":true}}",
          200);
  assert_int_equal(json_array_size(json_at(generate, "meta_info.output_token_logprobs")), 4);
  assert_int_equal((int64_t)json_array_size(json_at(generate, "meta_info.input_token_logprobs")),
                   json_int_at(generate, "meta_info.prompt_tokens"));
  assert_int_equal(json_int_at(generate, "meta_info.output_token_logprobs.2.1"), json_int_at(generate, "output_ids.2"));
  json_decref(generate);
}

static void echo_alone(void **state) {
  (void)state;
  json_t *root = ask(TEXT, "{\"prompt\":\"Once upon\",\"max_tokens\":0,\"echo\":true}", 200);
  assert_string_equal(json_text_at(root, "choices.0.text"), "Once upon");
  assert_int_equal(json_int_at(root, "usage.completion_tokens"), 0);
  json_decref(root);
}

/* --- streams --- */

/* The events of a stream: each "data: JSON" and an empty line, the last one [DONE]. Returns their number. */
static int events_of(const struct reply *reply, json_t **events_out, int max) {
  int count = 0;
  const char *at = reply->body;
  for (;;) {
    const char *end = strstr(at, "\n\n");
    assert_non_null(end);
    assert_memory_equal(at, "data: ", 6);
    assert_null(memchr(at, '\n', (size_t)(end - at)));
    if (end - at == 12 && memcmp(at, "data: [DONE]", 12) == 0) {
      assert_string_equal(end, "\n\n");
      return count;
    }
    assert_true(count < max);
    events_out[count] = json_loadb(at + 6, (size_t)(end - at) - 6, 0, NULL);
    assert_non_null(events_out[count]);
    count++;
    at = end + 2;
  }
}

static int stream(const char *path, const char *body, json_t **events_out, int max) {
  struct reply reply;
  client_ask(served.port, "POST", path, body, &reply);
  assert_int_equal(reply.status, 200);
  assert_true(reply.complete);
  assert_non_null(strstr(reply.head, "Content-Type: text/event-stream"));
  assert_non_null(strstr(reply.head, "Cache-Control: no-cache"));
  int count = events_of(&reply, events_out, max);
  reply_free(&reply);
  return count;
}

enum { EVENTS_MAX = 300 };

static void free_events(json_t **events, int count) {
  for (int i = 0; i < count; i++) {
    json_decref(events[i]);
  }
}

static void chat_stream(void **state) {
  (void)state;
  json_t *events[EVENTS_MAX];
  char joined[8192] = "";
  int count = stream(CHAT, "{" MESSAGES ",\"max_tokens\":30,\"seed\":9,\"ignore_eos\":true,\"stream\":true}", events,
                     EVENTS_MAX);
  json_t *whole = ask(CHAT, "{" MESSAGES ",\"max_tokens\":30,\"seed\":9,\"ignore_eos\":true}", 200);
  for (int i = 0; i < count; i++) {
    assert_string_equal(json_text_at(events[i], "object"), "chat.completion.chunk");
    assert_string_equal(json_text_at(events[i], "id"), json_text_at(events[0], "id"));
    assert_string_equal(json_text_at(events[i], "system_fingerprint"), json_text_at(whole, "system_fingerprint"));
    assert_int_equal(json_array_size(json_at(events[i], "choices")), 1);
    assert_null(json_at(events[i], "usage"));
    assert_true(i == count - 1 || json_is_null(json_at(events[i], "choices.0.finish_reason")));
    if (i > 0 && i < count - 1) {
      strcat(joined, json_text_at(events[i], "choices.0.delta.content"));
    }
  }
  assert_string_equal(json_text_at(events[0], "choices.0.delta.role"), "assistant");
  assert_string_equal(json_text_at(events[0], "choices.0.delta.content"), "");
  assert_int_equal(json_object_size(json_at(events[count - 1], "choices.0.delta")), 0);
  assert_string_equal(json_text_at(events[count - 1], "choices.0.finish_reason"), "length");
  assert_string_equal(joined, json_text_at(whole, "choices.0.message.content"));
  free_events(events, count);
  json_decref(whole);
}

static void usage_in_stream(void **state) {
  (void)state;
  json_t *events[EVENTS_MAX];
  int count = stream(TEXT,
                     "{\"prompt\":\"Once\",\"max_tokens\":6,\"ignore_eos\":true,\"stream\":true,\"stream_options\":{"
                     "\"include_usage\":true}}",
                     events, EVENTS_MAX);
  for (int i = 0; i < count - 1; i++) {
    assert_true(json_is_null(json_at(events[i], "usage")));
    assert_int_equal(json_array_size(json_at(events[i], "choices")), 1);
  }
  assert_int_equal(json_array_size(json_at(events[count - 1], "choices")), 0);
  assert_string_equal(json_text_at(events[count - 1], "system_fingerprint"), "sim");
  assert_int_equal(json_int_at(events[count - 1], "usage.completion_tokens"), 6);
  free_events(events, count);
  count = stream(TEXT,
                 "{\"prompt\":\"Once\",\"max_tokens\":6,\"ignore_eos\":true,\"stream\":true,\"stream_options\":{"
                 "\"include_usage\":true,"
                 "\"continuous_usage_stats\":true}}",
                 events, EVENTS_MAX);
  int64_t before = 0;
  for (int i = 0; i < count; i++) {
    assert_true(json_int_at(events[i], "usage.completion_tokens") >= before);
    before = json_int_at(events[i], "usage.completion_tokens");
  }
  assert_int_equal(before, 6);
  free_events(events, count);
}

/* Choices of a stream are told apart by index; joined they are the whole answer's. Log-probabilities come one a
 * token. */
static void stream_of_choices(void **state) {
  (void)state;
  json_t *events[EVENTS_MAX];
  char joined[3][4096] = {"", "", ""};
  int tokens[3] = {0};
  int count = stream(TEXT,
                     "{\"prompt\":\"Once\",\"n\":3,\"seed\":8,\"max_tokens\":20,\"ignore_eos\":true,\"stream\":true,"
                     "\"logprobs\":0,\"echo\":true}",
                     events, EVENTS_MAX);
  json_t *whole =
      ask(TEXT,
          "{\"prompt\":\"Once\",\"n\":3,\"seed\":8,\"max_tokens\":20,\"ignore_eos\":true,\"logprobs\":0,\"echo\":true}",
          200);
  for (int i = 0; i < count; i++) {
    int64_t index = json_int_at(events[i], "choices.0.index");
    strcat(joined[index], json_text_at(events[i], "choices.0.text"));
    tokens[index] += (int)json_array_size(json_at(events[i], "choices.0.logprobs.tokens"));
  }
  for (int i = 0; i < 3; i++) {
    char path[64];
    sprintf(path, "choices.%d.text", i);
    assert_string_equal(joined[i], json_text_at(whole, path));
    sprintf(path, "choices.%d.logprobs.tokens", i);
    assert_int_equal(tokens[i], (int)json_array_size(json_at(whole, path)));
  }
  free_events(events, count);
  json_decref(whole);
}

static void generate_stream(void **state) {
  (void)state;
  json_t *events[EVENTS_MAX];
  const char *body = "{\"text\":\"Once\",\"rid\":\"my-id\",\"stream\":true,\"sampling_params\":{\"max_new_tokens\":9,"
                     "\"seed\":2,\"ignore_eos\":true}}";
  int count = stream("/generate", body, events, EVENTS_MAX);
  assert_true(count >= 1);
  for (int i = 1; i < count; i++) {
    const char *before = json_text_at(events[i - 1], "text"), *now = json_text_at(events[i], "text");
    assert_memory_equal(now, before, strlen(before));
  }
  assert_string_equal(json_text_at(events[count - 1], "meta_info.id"), "my-id");
  assert_int_equal(json_int_at(events[count - 1], "meta_info.completion_tokens"), 9);
  assert_string_equal(json_text_at(events[count - 1], "meta_info.finish_reason.type"), "length");
  free_events(events, count);
}

/* --- the rest of the interface --- */

static void descriptions(void **state) {
  (void)state;
  static const char *const paths[] = {
      "/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/loads?include=core",
      "/version",    "/debug/check",    "/health",      "/livez",           "/readyz"};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    json_decref(ask(paths[i], NULL, 200));
  }
  json_t *models = ask("/v1/models", NULL, 200);
  assert_string_equal(json_text_at(models, "data.0.id"), "quire-sim");
  assert_string_equal(json_text_at(models, "data.0.owned_by"), "quire");
  assert_int_equal(json_int_at(models, "data.0.max_model_len"), 4096);
  json_decref(models);
  json_t *tokens = ask("/tokenize", "{\"prompt\":\"Once upon a time\"}", 200);
  char body[256] = "{\"tokens\":";
  char *list = json_dumps(json_at(tokens, "tokens"), JSON_COMPACT);
  assert_int_equal(json_int_at(tokens, "count"), (int64_t)json_array_size(json_at(tokens, "tokens")));
  strcat(strcat(body, list), "}");
  json_t *back = ask("/detokenize", body, 200);
  assert_string_equal(json_text_at(back, "prompt"), "Once upon a time");
  json_decref(back);
  json_decref(tokens);
  free(list);
  struct reply reply;
  client_ask(served.port, "GET", "/metrics", NULL, &reply);
  assert_int_equal(reply.status, 200);
  assert_non_null(strstr(reply.body, "\nquire_time_to_first_token_seconds_bucket{le=\"+Inf\"} "));
  assert_null(strstr(reply.body, "sglang:"));
  reply_free(&reply);
  client_ask(served.port, "DELETE", "/v1/models", NULL, &reply);
  assert_int_equal(reply.status, 405);
  assert_non_null(strstr(reply.head, "Allow: GET\r\n"));
  reply_free(&reply);
}

/* Sections of /v1/loads: those that are asked for, all without a word; what there is not is refused. */
static void loads(void **state) {
  (void)state;
  static const struct {
    const char *query;
    bool memory, disagg, queues;
  } good[] = {
      {"", true, true, true},
      {"?include=", true, true, true},
      {"?include=all", true, true, true},
      {"?include=core", false, false, false},
      {"?include=core,disagg,queues,memory", true, true, true},
      {"?include=spec%2C%20queues&format=json", false, false, true},
      {"?x=include=memory&include=memory,+lora", true, false, false},
      {"?include=memory&include=disagg", false, true, false},
  };
  static const char *const bad[] = {"?include=core,cores", "?include=,core", "?include=Core", "?include=%ff",
                                    "?include=core;memory"};
  char path[512];
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    snprintf(path, sizeof path, "/v1/loads%s", good[i].query);
    json_t *root = ask(path, NULL, 200);
    assert_int_equal(json_int_at(root, "loads.0.dp_rank"), 0);
    assert_true(json_int_at(root, "loads.0.max_total_num_tokens") > 0);
    assert_int_equal(json_at(root, "loads.0.memory") != NULL, good[i].memory);
    assert_int_equal(json_at(root, "loads.0.disaggregation") != NULL, good[i].disagg);
    assert_int_equal(json_at(root, "loads.0.queues") != NULL, good[i].queues);
    json_decref(root);
  }
  json_t *all = ask("/v1/loads", NULL, 200);
  assert_true(json_real_value(json_at(all, "loads.0.memory.weight_gb")) == 2.5);
  assert_true(json_real_value(json_at(all, "loads.0.memory.kv_cache_gb")) == 0.75);
  assert_int_equal(json_int_at(all, "loads.0.memory.token_capacity"), json_int_at(all, "loads.0.max_total_num_tokens"));
  assert_int_equal(json_int_at(all, "loads.0.queues.waiting"), 0);
  assert_string_equal(json_text_at(all, "loads.0.disaggregation.mode"), "null");
  json_decref(all);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    snprintf(path, sizeof path, "/v1/loads%s", bad[i]);
    json_t *root = ask(path, NULL, 400);
    assert_string_equal(json_text_at(root, "error.param"), "include");
    json_decref(root);
  }
  snprintf(path, sizeof path, "/v1/loads?include=core%0300d", 0);
  json_decref(ask(path, NULL, 400));
}

/* Both names for going on from the last message. */
static void an_answer_goes_on(void **state) {
  (void)state;
#define OPENED                                                                                                         \
  "{\"temperature\":0,\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"Who?\"},"                        \
  "{\"role\":\"assistant\",\"content\":\"The old king\""
  json_t *prefix = ask(CHAT, OPENED ",\"prefix\":true}]}", 200);
  json_t *final = ask(CHAT, OPENED "}],\"continue_final_message\":true}", 200);
  json_t *closed = ask(CHAT, OPENED "},{\"role\":\"user\",\"content\":\"\"}]}", 200);
#undef OPENED
  int64_t tokens = json_int_at(prefix, "usage.prompt_tokens");
  assert_int_equal(tokens, json_int_at(final, "usage.prompt_tokens"));
  assert_true(tokens < json_int_at(closed, "usage.prompt_tokens"));
  json_decref(prefix);
  json_decref(final);
  json_decref(closed);
}

struct asked {
  const char *method, *path, *fields, *body;
  int status;
};

/* The X-Request-Id of the answer to a request that says `line` behind its other fields. */
static void id_of_answer(int port, const struct asked *asked, const char *line, char id_out[256]) {
  struct reply reply;
  char fields[512];
  snprintf(fields, sizeof fields, "%s%s\r\n", asked->fields, line);
  int fd = client_connect(port);
  client_send(fd, asked->method, asked->path, fields, asked->body);
  client_receive(fd, &reply);
  const char *found = strstr(reply.head, "\r\nX-Request-Id: ");
  if (reply.status != asked->status || found == NULL || sscanf(found + 16, "%255[^\r]", id_out) != 1 ||
      strstr(found + 16, "X-Request-Id") != NULL) {
    fail_msg("%s %s: %s", asked->method, asked->path, reply.head);
  }
  reply_free(&reply);
  close(fd);
}

static void named_keys(struct quire_server_options *options) { options->api_key = "secret"; }

/* Whatever the answer is: a client's name for its request comes back, and one that cannot is replaced. */
static void request_id_comes_back(void **state) {
  (void)state;
#define KEY "x-api-key: secret\r\n"
  static const struct asked asks[] = {
      {"POST", TEXT, KEY, "{\"prompt\":\"a\",\"max_tokens\":1}", 200},
      {"POST", TEXT, KEY, "{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":true}", 200},
      {"POST", TEXT, KEY, "{\"prompt\":", 400},
      {"POST", "/tokenize", KEY, "{\"prompt\":\"a\"}", 200},
      {"POST", TEXT, KEY "Content-Length: 999999999999\r\n", NULL, 413},
      {"POST", TEXT, "", "{}", 401},
      {"GET", "/v1/models", KEY, NULL, 200},
      {"GET", "/nowhere", KEY, NULL, 404},
      {"GET", TEXT, KEY, NULL, 405},
      {"GET", "/health_generate", "", NULL, 200},
      {"GET", "/metrics", KEY, NULL, 200},
  };
#undef KEY
  struct served other;
  served_open(&other, &(struct served_config){.change = named_keys});
  char line[256], first[256], second[256], longest[129];
  memset(longest, 'i', sizeof longest);
  for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
    snprintf(line, sizeof line, "x-request-ID:  abc-%zu~ ", i);
    id_of_answer(other.port, &asks[i], line, first);
    snprintf(line, sizeof line, "abc-%zu~", i);
    assert_string_equal(first, line);
    id_of_answer(other.port, &asks[i], "X-Request-Id: a b", first);
    snprintf(line, sizeof line, "X-Request-Id: %.129s", longest);
    id_of_answer(other.port, &asks[i], line, second);
    assert_true(strlen(first) >= 32 && strlen(second) >= 32 && strlen(second) < 64);
    assert_string_not_equal(first, second);
    snprintf(line, sizeof line, "X-Request-Id: %.128s", longest);
    id_of_answer(other.port, &asks[i], line, first);
    assert_int_equal(strlen(first), 128);
  }
  served_close(&other);
  served_open(&other, &(struct served_config){.loading = true});
  id_of_answer(other.port, &(struct asked){"POST", TEXT, "", "{}", 503}, "X-Request-Id: early", first);
  assert_string_equal(first, "early");
  served_close(&other);
}

enum { CTX_TOKENS = 1 << 15, LONG_CTX_TOKENS = 1 << 20 };

/* Whoever does not read holds no memory: its tokens are not drawn. Then it reads, and gets all of them. */
static void slow_reader(void **state) {
  (void)state;
  struct served other;
  struct quire_worker_stats before, after;
  served_open_narrow(&other, CTX_TOKENS, NULL);
  int fd = client_connect(other.port), small = 64 << 10;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  client_send(fd, "POST", TEXT, NULL,
              "{\"prompt\":\"a\",\"max_tokens\":20000,\"ignore_eos\":true,\"stream\":true,"
              "\"stream_options\":{\"include_usage\":true}}");
  client_wait_ms(600);
  quire_worker_stats(other.worker, &before);
  client_wait_ms(300);
  quire_worker_stats(other.worker, &after);
  assert_int_equal(before.engine.drawn_tokens, after.engine.drawn_tokens);
  assert_true(after.engine.drawn_tokens > 100 && after.engine.drawn_tokens < 20000);
  struct reply reply;
  client_receive(fd, &reply);
  assert_true(reply.complete);
  assert_non_null(strstr(reply.body, "\"completion_tokens\":20000,"));
  reply_free(&reply);
  close(fd);
  served_check_empty(&other);
  served_close(&other);
}

static void short_write(struct quire_server_options *options) { options->write_seconds = 0.5; }

static void dead_reader(void **state) {
  (void)state;
  struct served other;
  served_open_narrow(&other, CTX_TOKENS, short_write);
  int fd = client_connect(other.port);
  client_send(fd, "POST", TEXT, NULL, "{\"prompt\":\"a\",\"max_tokens\":30000,\"ignore_eos\":true,\"stream\":true}");
  client_wait_ms(1500);
  served_check_empty(&other);
  close(fd);
  served_close(&other);
}

static void queue_full_and_disconnect(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  int fds[4];
  served_open_full(&other, LONG_CTX_TOKENS, fds);
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":1}", &reply);
  assert_int_equal(reply.status, 429);
  assert_non_null(strstr(reply.head, "Retry-After: "));
  reply_free(&reply);
  for (int i = 0; i < 4; i++) {
    close(fds[i]);
  }
  served_check_empty(&other);
  client_ask(other.port, "POST", TEXT, "{\"prompt\":\"a\",\"max_tokens\":1}", &reply);
  assert_int_equal(reply.status, 200);
  reply_free(&reply);
  served_close(&other);
}

static void small_bodies(struct quire_server_options *options) { options->bodies_bytes = 16 << 20; }

/* What waits for a text thread is held in memory, too. */
static void many_bodies(void **state) {
  (void)state;
  enum { CLIENTS = 6, PROMPTS = 64, PROMPT_BYTES = 60000 };
  struct served other;
  struct reply reply;
  served_open(&other, &(struct served_config){.change = small_bodies});
  size_t size = PROMPTS * (PROMPT_BYTES + 3) + 32, used = 0;
  char *body = malloc(size);
  assert_non_null(body);
  used += (size_t)snprintf(body, size, "{\"prompt\":[");
  for (unsigned i = 0; i < PROMPTS; i++) {
    used += (size_t)snprintf(body + used, size - used, "%s\"", i > 0 ? "," : "");
    for (unsigned k = 0; k < PROMPT_BYTES; k++) {
      body[used++] = (char)('a' + (k * k * 7 + k / 3) % 26); /* one word, which takes long */
    }
    body[used++] = '"';
  }
  snprintf(body + used, size - used, "]}");
  int fds[CLIENTS], good = 0, refused = 0;
  for (int i = 0; i < CLIENTS; i++) {
    fds[i] = client_connect(other.port);
    client_send(fds[i], "POST", "/tokenize", NULL, body);
  }
  for (int i = 0; i < CLIENTS; i++) {
    client_receive(fds[i], &reply);
    good += reply.status == 200 ? 1 : 0;
    refused += reply.status == 503 && strstr(reply.head, "Retry-After: ") != NULL ? 1 : 0;
    reply_free(&reply);
    close(fds[i]);
  }
  assert_true(good >= 2 && refused >= 1 && good + refused == CLIENTS);
  client_ask(other.port, "POST", "/tokenize", "{\"prompt\":\"a\"}", &reply); /* none is held any more */
  assert_int_equal(reply.status, 200);
  reply_free(&reply);
  free(body);
  served_close(&other);
}

static void little_memory(struct quire_server_options *options) { options->bodies_bytes = 1 << 20; }

/* What a request takes beside its body is counted: the tree of many small values, a prompt for each choice, an answer
 * that grows until it is whole. Afterwards nothing is held any more. */
static void memory_is_counted(void **state) {
  (void)state;
  enum { VALUES = 100000, TOKENS = 3000 };
  struct served other;
  struct reply reply;
  served_open_narrow(&other, LONG_CTX_TOKENS, little_memory);
  char *body = malloc(2 * VALUES + 128);
  assert_non_null(body);
  for (int kind = 0; kind < 3; kind++) {
    size_t used = (size_t)sprintf(body, kind == 1 ? "{\"n\":200,\"prompt\":[1" : "{\"prompt\":\"a\",\"x\":[1");
    for (int i = 1; i < (kind == 0 ? VALUES : kind == 1 ? TOKENS : 1); i++) {
      memcpy(body + used, ",1", 2);
      used += 2;
    }
    strcpy(body + used, kind == 2 ? "],\"max_tokens\":1000000,\"ignore_eos\":true,\"logprobs\":5}" : "]}");
    client_ask(other.port, "POST", TEXT, body, &reply);
    json_t *root = reply_json(&reply);
    const char *wanted = kind == 2 ? "too_many_bytes" : "body_too_large";
    if (reply.status != (kind == 2 ? 503 : 413) || strcmp(json_text_at(root, "error.code"), wanted) != 0) {
      fail_msg("case %d: %d: %s", kind, reply.status, reply.body);
    }
    assert_true(kind != 2 || strstr(reply.head, "Retry-After: ") != NULL);
    json_decref(root);
    reply_free(&reply);
  }
  served_check_empty(&other);
  /* a stream keeps nothing: as many tokens as were too many for a whole answer */
  client_ask(other.port, "POST", TEXT,
             "{\"prompt\":\"a\",\"max_tokens\":20000,\"ignore_eos\":true,\"logprobs\":5,\"stream\":true}", &reply);
  assert_int_equal(reply.status, 200);
  assert_true(reply.complete && strstr(reply.body, "error") == NULL && reply.bytes > 1 << 20);
  reply_free(&reply);
  free(body);
  served_close(&other);
}

static void abort_request(void **state) {
  (void)state;
  struct served other;
  struct reply reply;
  served_open_narrow(&other, LONG_CTX_TOKENS, NULL);
  int one = client_connect(other.port), two = client_connect(other.port);
  client_send(one, "POST", "/generate", NULL,
              "{\"text\":\"a\",\"rid\":\"r1\",\"sampling_params\":{\"max_new_tokens\":1000000,\"ignore_eos\":true}}");
  client_send(two, "POST", TEXT, "X-Request-Id: r2\r\n",
              "{\"prompt\":\"a\",\"max_tokens\":1000000,\"ignore_eos\":true}");
  client_wait_ms(50);
  client_ask(other.port, "POST", "/abort_request", "{\"rid\":\"\"}", &reply); /* not: all that have no name */
  assert_int_equal(reply.status, 400);
  reply_free(&reply);
  client_ask(other.port, "POST", "/abort_request", "{\"rid\":\"r1\"}", &reply);
  assert_non_null(strstr(reply.body, "\"aborted\":1"));
  reply_free(&reply);
  client_receive(one, &reply);
  assert_int_equal(reply.status, 200);
  assert_non_null(strstr(reply.body, "\"finish_reason\":{\"type\":\"abort\""));
  reply_free(&reply);
  char large[8192]; /* read on the loop's thread, so small ones only */
  snprintf(large, sizeof large, "{\"abort_all\":true,\"x\":\"%06000d\"}", 0);
  client_ask(other.port, "POST", "/abort_request", large, &reply);
  assert_int_equal(reply.status, 413);
  reply_free(&reply);
  client_ask(other.port, "POST", "/abort_request", "{\"abort_all\":true}", &reply);
  reply_free(&reply);
  client_receive(two, &reply);
  assert_non_null(strstr(reply.body, "\"finish_reason\":\"abort\""));
  reply_free(&reply);
  close(one);
  close(two);
  served_check_empty(&other);
  served_close(&other);
}

static void with_keys(struct quire_server_options *options) {
  options->api_key = "secret";
  options->compat = QUIRE_COMPAT_SGLANG;
  options->metrics_compat = QUIRE_COMPAT_SGLANG;
  options->served_name = "named \"so\"";
}

static void keys(void **state) {
  (void)state;
  struct served other;
  served_open(&other, &(struct served_config){.change = with_keys});
  static const char *const closed[] = {"/v1/models",   "/metrics", "/server_info", "/v1/loads",
                                       "/debug/check", "/nowhere", "/version"};
  for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
    assert_int_equal(served_status(&other, "GET", closed[i], NULL), 401);
    assert_int_equal(served_status(&other, "GET", closed[i], "Authorization: Bearer secret2\r\n"), 401);
    assert_int_equal(served_status(&other, "GET", closed[i], "Authorization: Basic secret\r\n"), 401);
  }
  assert_int_equal(served_status(&other, "POST", TEXT, NULL), 401);
  assert_int_equal(served_status(&other, "POST", TEXT, "x-api-key: secret\r\n"), 400);
  assert_int_equal(served_status(&other, "GET", "/v1/models", "Authorization: Basic x\r\nx-api-key: secret\r\n"), 200);
  assert_int_equal(served_status(&other, "GET", "/v1/models", "Authorization: Bearer x\r\nx-api-key: secret\r\n"), 401);
  assert_int_equal(served_status(&other, "GET", "/v1/models", "Authorization: Bearer secret\r\n"), 200);
  assert_int_equal(served_status(&other, "GET", "/version", "Authorization: Bearer secret\r\n"), 404);
  assert_int_equal(served_status(&other, "GET", "/health", NULL), 200);
  assert_int_equal(served_status(&other, "GET", "/livez", NULL), 200);
  struct reply reply;
  int fd = client_connect(other.port);
  client_send(fd, "GET", "/metrics", "x-api-key: secret\r\n", NULL);
  client_receive(fd, &reply);
  assert_non_null(strstr(reply.body, "sglang:token_usage{model_name=\"named \\\"so\\\"\",engine_type="));
  reply_free(&reply);
  client_send(fd, "GET", "/v1/models", "x-api-key: secret\r\n", NULL);
  client_receive(fd, &reply);
  assert_non_null(strstr(reply.body, "\"owned_by\":\"sglang\""));
  assert_non_null(strstr(reply.body, "\"id\":\"named \\\"so\\\"\""));
  reply_free(&reply);
  close(fd);
  served_close(&other);
}

int main(int argc, char **argv) {
  cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_input),
      cmocka_unit_test(odd_input),
      cmocka_unit_test(http_forms),
      cmocka_unit_test(long_prompts),
      cmocka_unit_test(completion),
      cmocka_unit_test(completion_cached),
      cmocka_unit_test(salted),
      cmocka_unit_test(many_choices),
      cmocka_unit_test(stops),
      cmocka_unit_test(logprobs),
      cmocka_unit_test(echo_alone),
      cmocka_unit_test(chat_stream),
      cmocka_unit_test(usage_in_stream),
      cmocka_unit_test(stream_of_choices),
      cmocka_unit_test(generate_stream),
      cmocka_unit_test(descriptions),
      cmocka_unit_test(loads),
      cmocka_unit_test(an_answer_goes_on),
      cmocka_unit_test(request_id_comes_back),
      cmocka_unit_test(slow_reader),
      cmocka_unit_test(dead_reader),
      cmocka_unit_test(queue_full_and_disconnect),
      cmocka_unit_test(many_bodies),
      cmocka_unit_test(memory_is_counted),
      cmocka_unit_test(abort_request),
      cmocka_unit_test(keys),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
