/* Request bodies of the OpenAI and SGLang interfaces: JSON of any bytes to one checked struct, or to the error that the
 * client gets.
 *
 *   {"model": "m", "messages": [...], "max_tokens": 9, "stop": "\n"}    /v1/chat/completions
 *   {"model": "m", "prompt": "once" | ["a", "b"] | [1, 2] | [[1], [2]]}  /v1/completions
 *   {"text": "once", "sampling_params": {"max_new_tokens": 9}}           /generate
 *
 * Unknown fields are ignored, since clients add new ones; fields that would change what is computed and that quire does
 * not have (tools, response_format, LoRA, images, hand-off) are refused by name. null counts as absent.
 *
 * Memory: request_out owns a JSON tree (malloc's) and arrays of env; quire_api_request_fini frees them, and may be
 * called after a failure. Threads: no shared state. */
#ifndef QUIRE_SERVER_API_REQUEST_H
#define QUIRE_SERVER_API_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/strbuf.h"
#include "engine/request.h"
#include "text/chat.h"
#include "text/stop_match.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_API_SEQUENCES_MAX 256 /* prompts times choices of one request */
#define QUIRE_API_MESSAGES_MAX 16384
#define QUIRE_API_ID_BYTES_MAX 128

enum quire_api_kind { QUIRE_API_CHAT, QUIRE_API_COMPLETION, QUIRE_API_GENERATE };

/* What a client is told: {"error": {"message", "type", "param", "code"}} with an HTTP status. */
struct quire_api_fault {
  int status;
  const char *type; /* "invalid_request_error", ... */
  const char *code; /* "invalid_value", ...; NULL: null */
  char param[96];   /* empty: null */
  char message[512];
};

/* Fills *fault and returns false. */
bool quire_api_fail(struct quire_api_fault *fault, int status, const char *code, const char *param, const char *format,
                    ...) __attribute__((format(printf, 5, 6)));
/* Adds the fault as a JSON object, braces included. */
void quire_api_fault_write(const struct quire_api_fault *fault, struct quire_strbuf *out);

/* Text or tokens. */
struct quire_api_prompt {
  const char *text; /* NULL: tokens */
  size_t bytes;
  int32_t *tokens;
  int32_t count;
};

/* What the served model allows and assumes. */
struct quire_api_rules {
  int32_t vocab;
  int32_t ctx_tokens;
  struct quire_sampling defaults; /* of generation_config.json */
};

struct quire_api_request {
  enum quire_api_kind kind;
  const struct quire_env *env;
  json_t *root;
  const char *model; /* NULL: not said */
  const char *id;    /* rid; NULL: not said */
  const char *salt;  /* of the pages it may find and leave; NULL: none */

  struct quire_chat_message *messages; /* chat */
  int32_t message_count;
  struct quire_strbuf joined; /* texts of messages that came in parts */
  enum quire_chat_switch thinking;
  enum quire_chat_effort effort;
  bool keep_reasoning, continue_final, split_reasoning;

  struct quire_api_prompt *prompts; /* the others */
  int32_t prompt_count;
  bool batch; /* generate: answer with an array */

  int32_t n;
  int32_t max_tokens; /* -1: up to the context's end */
  int32_t min_tokens;
  struct quire_sampling sampling; /* bias lies in bias[] */
  struct quire_bias bias[QUIRE_BIAS_MAX];
  bool seed_given;
  struct quire_stop_text stops[QUIRE_STOPS_MAX];
  int32_t stop_count;
  int32_t stop_ids[QUIRE_ENGINE_STOPS_MAX];
  int32_t stop_id_count;
  bool ignore_eos, keep_stop, skip_special;
  bool add_special; /* to prompts that are text, as the tokenizer says */
  bool logprobs;    /* of drawn tokens; of the prompt's in sampling.prompt_logprobs */
  bool echo, stream, include_usage, usage_always;
  int32_t priority;
};

/* What to read: bytes that need not live on. */
struct quire_api_body {
  enum quire_api_kind kind;
  const char *data;
  size_t bytes;
};

/* Bytes a body and its parsed tree take in memory at most, at a glance: every value follows a comma, a bracket or a
 * brace. Text that holds such counts for more than it is. What the parser needs for a moment is not in it. */
size_t quire_api_body_cost(const char *data, size_t bytes);

/* The object that a body is, the caller's to json_decref; NULL with *fault_out. */
json_t *quire_api_parse_object(const char *data, size_t bytes, struct quire_api_fault *fault_out);

/* False with *fault_out. */
bool quire_api_request_parse(const struct quire_env *env, const struct quire_api_rules *rules,
                             struct quire_api_body body, struct quire_api_request *request_out,
                             struct quire_api_fault *fault_out);
void quire_api_request_fini(struct quire_api_request *request);

#ifdef __cplusplus
}
#endif
#endif
