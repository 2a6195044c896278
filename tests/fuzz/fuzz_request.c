/* Bodies of the three interfaces: any bytes to a checked request or to a fault that a client can read. A body whose
 * keys stand in another order is the same request. No body takes more memory than its cost says. */
// ctest: timeout=120
// fuzz: runs=70000
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "server/api_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_request(const struct quire_api_request *request) {
  QUIRE_ASSERT(request->n >= 1 && request->prompt_count * request->n <= QUIRE_API_SEQUENCES_MAX);
  QUIRE_ASSERT(request->max_tokens >= -1 && request->min_tokens >= 0);
  QUIRE_ASSERT(request->stop_count <= QUIRE_STOPS_MAX && request->stop_id_count <= QUIRE_ENGINE_STOPS_MAX);
  QUIRE_ASSERT(isfinite(request->sampling.temperature) && request->sampling.top_p <= 1);
  QUIRE_ASSERT(request->sampling.top_logprobs <= QUIRE_TOP_LOGPROBS_MAX);
  QUIRE_ASSERT((request->kind == QUIRE_API_CHAT) == (request->message_count > 0));
  QUIRE_ASSERT((request->kind == QUIRE_API_CHAT) == (request->prompt_count == 0));
  size_t bytes = 0;
  for (int32_t i = 0; i < request->message_count; i++) {
    bytes += request->messages[i].content_bytes > 0 ? (size_t)(uint8_t)request->messages[i].content[0] : 0;
    bytes += request->messages[i].reasoning_bytes > 0 ? (size_t)(uint8_t)request->messages[i].reasoning[0] : 0;
  }
  for (int32_t i = 0; i < request->prompt_count; i++) {
    const struct quire_api_prompt *prompt = &request->prompts[i];
    QUIRE_ASSERT((prompt->text != NULL) != (prompt->tokens != NULL));
    for (int32_t k = 0; k < prompt->count; k++) {
      QUIRE_ASSERT(prompt->tokens[k] >= 0 && prompt->tokens[k] < 100);
    }
  }
  QUIRE_ASSERT(bytes < SIZE_MAX);
}

/* What jansson holds, with what malloc takes around it. */
#define HEADER 16
#define SLACK 512 /* of a tree, however short the text */
static size_t held;

static size_t taken(size_t bytes) { return bytes <= 24 ? 32 : (bytes + 8 + 15) / 16 * 16; }

static void *count_alloc(size_t bytes) {
  uint8_t *memory = malloc(bytes + HEADER);
  QUIRE_ASSERT(memory);
  memcpy(memory, &bytes, sizeof bytes);
  held += taken(bytes);
  return memory + HEADER;
}

static void count_free(void *memory) {
  if (memory) {
    size_t bytes;
    memcpy(&bytes, (uint8_t *)memory - HEADER, sizeof bytes);
    held -= taken(bytes);
    free((uint8_t *)memory - HEADER);
  }
}

static void check_cost(const char *data, size_t size) {
  struct quire_api_fault fault = {0};
  QUIRE_ASSERT(held == 0);
  json_t *root = quire_api_parse_object(data, size, &fault);
  QUIRE_ASSERT(size + held <= quire_api_body_cost(data, size) + SLACK);
  json_decref(root);
  QUIRE_ASSERT(held == 0);
}

static void same_text(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  QUIRE_ASSERT(a_bytes == b_bytes && (a_bytes == 0 || memcmp(a, b, a_bytes) == 0));
}

static void same_request(const struct quire_api_request *a, const struct quire_api_request *b) {
  QUIRE_ASSERT(a->n == b->n && a->max_tokens == b->max_tokens && a->min_tokens == b->min_tokens);
  QUIRE_ASSERT(a->message_count == b->message_count && a->prompt_count == b->prompt_count && a->batch == b->batch);
  QUIRE_ASSERT(a->stop_count == b->stop_count && a->stop_id_count == b->stop_id_count && a->thinking == b->thinking);
  QUIRE_ASSERT(a->stream == b->stream && a->echo == b->echo && a->logprobs == b->logprobs && a->effort == b->effort);
  QUIRE_ASSERT(a->sampling.bias_count == b->sampling.bias_count && a->sampling.seed == b->sampling.seed);
  for (int32_t i = 0; i < a->message_count; i++) {
    QUIRE_ASSERT(a->messages[i].role == b->messages[i].role);
    same_text(a->messages[i].content, a->messages[i].content_bytes, b->messages[i].content,
              b->messages[i].content_bytes);
    same_text(a->messages[i].reasoning, a->messages[i].reasoning_bytes, b->messages[i].reasoning,
              b->messages[i].reasoning_bytes);
  }
  for (int32_t i = 0; i < a->prompt_count; i++) {
    same_text(a->prompts[i].text, a->prompts[i].bytes, b->prompts[i].text, b->prompts[i].bytes);
    QUIRE_ASSERT(a->prompts[i].count == b->prompts[i].count);
  }
  for (int32_t i = 0; i < a->stop_count; i++) {
    same_text(a->stops[i].text, a->stops[i].bytes, b->stops[i].text, b->stops[i].bytes);
  }
}

static void check_again(const struct quire_api_rules *rules, const struct quire_api_request *request) {
  static struct quire_api_request again;
  struct quire_api_fault fault = {0};
  char *text = json_dumps(request->root, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
  QUIRE_ASSERT(text);
  struct quire_api_body body = {request->kind, text, strlen(text)};
  QUIRE_ASSERT(quire_api_request_parse(quire_env_default(), rules, body, &again, &fault));
  same_request(request, &again);
  quire_api_request_fini(&again);
  count_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct quire_api_request request;
  json_set_alloc_funcs(count_alloc, count_free);
  check_cost((const char *)data, size);
  struct quire_api_rules rules = {100, 50, quire_sampling_default()};
  for (int kind = QUIRE_API_CHAT; kind <= QUIRE_API_GENERATE; kind++) {
    struct quire_api_fault fault = {0};
    struct quire_api_body body = {(enum quire_api_kind)kind, (const char *)data, size};
    if (quire_api_request_parse(quire_env_default(), &rules, body, &request, &fault)) {
      check_request(&request);
      check_again(&rules, &request);
    } else {
      struct quire_strbuf text;
      QUIRE_ASSERT(fault.status >= 400 && fault.status <= 503 && fault.message[0] != '\0' && fault.type != NULL);
      quire_strbuf_init(&text, quire_env_default());
      quire_api_fault_write(&fault, &text);
      json_t *root = json_loadb(text.data, text.bytes, 0, NULL);
      QUIRE_ASSERT(root != NULL);
      json_decref(root);
      quire_strbuf_fini(&text);
    }
    quire_api_request_fini(&request);
  }
  return 0;
}
