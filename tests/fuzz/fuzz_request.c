/* Bodies of the three interfaces: any bytes to a checked request or to a fault that a client can read. */
// ctest: timeout=120
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct quire_api_request request;
  struct quire_api_rules rules = {100, 50, quire_sampling_default()};
  for (int kind = QUIRE_API_CHAT; kind <= QUIRE_API_GENERATE; kind++) {
    struct quire_api_fault fault = {0};
    struct quire_api_body body = {(enum quire_api_kind)kind, (const char *)data, size};
    if (quire_api_request_parse(quire_env_default(), &rules, body, &request, &fault)) {
      check_request(&request);
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
