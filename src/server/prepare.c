/* Bodies to tokens: what a text thread does for a request, or the loop's own for a short one. */
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "server/json_write.h"
#include "server/server_private.h"

/* What went wrong in a library call, as the client is told. */
static bool fail_status(struct quire_api_fault *fault, enum quire_status status, const struct quire_error *error) {
  enum quire_damage damage = quire_status_damage(status);
  bool client = damage == QUIRE_DAMAGE_CALL || damage == QUIRE_DAMAGE_REQUEST;
  return quire_api_fail(fault,
                        client                       ? 400
                        : status == QUIRE_ERR_MEMORY ? 503
                                                     : 500,
                        client ? "invalid_value" : "server_error", NULL, "%s: %s", error->where, error->text);
}

static bool encode_text(const struct quire_server_model *model, const struct quire_env *env, uint32_t flags,
                        struct quire_api_prompt *prompt, struct quire_api_fault *fault) {
  struct quire_error error = {0};
  if (prompt->bytes / quire_tokenizer_push_bytes_max(model->tokenizer) > (size_t)model->ctx_tokens) {
    return quire_api_fail(fault, 400, "context_length_exceeded", NULL,
                          "a prompt of %zu bytes is longer than the %d tokens this server takes", prompt->bytes,
                          model->ctx_tokens);
  }
  size_t capacity = prompt->bytes + 2 * QUIRE_TOKENIZER_ADDED_MAX, count = 0;
  int32_t *tokens = quire_env_zalloc(env, capacity, sizeof *tokens);
  if (tokens == NULL) {
    return quire_api_fail(fault, 503, "no_memory", NULL, "the server has no memory for this request");
  }
  struct quire_encode encode = {prompt->text, prompt->bytes, flags, tokens, capacity};
  enum quire_status status = quire_tokenizer_encode(model->tokenizer, encode, &count, &error);
  if (status == QUIRE_OK && count > 0) {
    prompt->tokens = quire_env_zalloc(env, count, sizeof *tokens);
    prompt->count = prompt->tokens != NULL ? (int32_t)count : 0;
    if (prompt->tokens != NULL) {
      memcpy(prompt->tokens, tokens, count * sizeof *tokens);
    } else {
      status = quire_error_set(&error, QUIRE_ERR_MEMORY, "prompt", "no memory for %zu tokens", count);
    }
  }
  quire_env_free(env, tokens, capacity, sizeof *tokens);
  return status == QUIRE_OK || fail_status(fault, status, &error);
}

/* The conversation as the one prompt of the request. */
static bool encode_chat(const struct quire_server_model *model, struct quire_api_request *request,
                        struct quire_chat_result *result_out, struct quire_api_fault *fault) {
  struct quire_error error = {0};
  const struct quire_chat_request chat = {
      .messages = request->messages,
      .count = (size_t)request->message_count,
      .thinking = request->thinking,
      .effort = request->effort,
      .keep_reasoning = request->keep_reasoning,
      .continue_final = request->continue_final,
  };
  if (model->chat == NULL) {
    return quire_api_fail(fault, 400, "unsupported_value", "messages",
                          "the model has no chat template known here; use /v1/completions");
  }
  request->prompts = quire_env_zalloc(request->env, 1, sizeof *request->prompts);
  if (request->prompts == NULL) {
    return quire_api_fail(fault, 503, "no_memory", NULL, "the server has no memory for this request");
  }
  request->prompt_count = 1;
  enum quire_status status = quire_chat_encode(model->chat, &chat, NULL, 0, result_out, &error);
  if (status == QUIRE_OK && result_out->tokens > (size_t)model->ctx_tokens) {
    return quire_api_fail(fault, 400, "context_length_exceeded", "messages",
                          "the conversation has %zu tokens; this server takes %d, prompt and answer together",
                          result_out->tokens, model->ctx_tokens);
  }
  if (status == QUIRE_OK) {
    struct quire_api_prompt *prompt = request->prompts;
    prompt->tokens = quire_env_zalloc(request->env, result_out->tokens, sizeof *prompt->tokens);
    if (prompt->tokens == NULL) {
      return quire_api_fail(fault, 503, "no_memory", NULL, "the server has no memory for this request");
    }
    prompt->count = (int32_t)result_out->tokens;
    status = quire_chat_encode(model->chat, &chat, prompt->tokens, result_out->tokens, result_out, &error);
  }
  return status == QUIRE_OK || fail_status(fault, status, &error);
}

/* Prompt and answer have to fit; an answer without a bound of its own gets what is left. */
static bool check_lengths(struct call *call, const struct quire_server_model *model) {
  struct quire_api_request *request = &call->request;
  const char *param = request->kind == QUIRE_API_CHAT       ? "messages"
                      : request->kind == QUIRE_API_GENERATE ? "text"
                                                            : "prompt";
  int32_t longest = 0;
  for (int32_t i = 0; i < request->prompt_count; i++) {
    longest = request->prompts[i].count > longest ? request->prompts[i].count : longest;
    if (request->prompts[i].count == 0) {
      return quire_api_fail(&call->fault, 400, "invalid_value", param, "%s: a prompt has at least one token", param);
    }
  }
  int32_t room = model->ctx_tokens - longest;
  if (room < (request->max_tokens == 0 ? 0 : 1)) {
    return quire_api_fail(&call->fault, 400, "context_length_exceeded", param,
                          "the prompt has %d tokens; this server takes %d, prompt and answer together", longest,
                          model->ctx_tokens);
  }
  call->max_tokens = request->max_tokens >= 0 ? request->max_tokens : room;
  if (call->max_tokens > room) {
    return quire_api_fail(&call->fault, 400, "context_length_exceeded", "max_tokens",
                          "the prompt has %d tokens and %d are asked for; this server takes %d together, so ask for %d "
                          "at most",
                          longest, call->max_tokens, model->ctx_tokens, room);
  }
  return true;
}

static bool check_model(struct call *call) {
  const char *asked = call->request.model, *served = quire_server_model_name(call->server);
  if (asked == NULL || strcmp(asked, served) == 0 || strcmp(asked, "default") == 0) {
    return true;
  }
  return quire_api_fail(&call->fault, 404, "model_not_found", "model",
                        "the model \"%.80s\" does not exist; \"%s\" does", asked, served);
}

static bool prepare(struct call *call) {
  const struct quire_server_model *model = call->server->model;
  struct quire_api_request *request = &call->request;
  struct quire_api_rules rules = {model->vocab, model->ctx_tokens, model->defaults};
  struct quire_api_body body = {call->kind, quire_strbuf_text(&call->body), call->body.bytes};
  if (!quire_api_request_parse(call->server->env, &rules, body, request, &call->fault) || !check_model(call)) {
    return false;
  }
  if (call->kind == QUIRE_API_CHAT) {
    struct quire_chat_result result;
    if (!encode_chat(model, request, &result, &call->fault)) {
      return false;
    }
    call->thinking = result.thinking;
  }
  for (int32_t i = 0; i < request->prompt_count; i++) {
    if (request->prompts[i].text != NULL &&
        !encode_text(model, call->server->env, request->add_special ? QUIRE_ENCODE_ADD_SPECIAL : 0,
                     &request->prompts[i], &call->fault)) {
      return false;
    }
  }
  return check_lengths(call, model);
}

void quire_call_prepare(struct call *call) {
  QUIRE_ASSERT(!call->prepared);
  call->prepared = prepare(call);
  quire_strbuf_fini(&call->body);
  quire_strbuf_init(&call->body, call->server->env);
}

/* --- tokenize, detokenize --- */

static void write_tokens(struct quire_strbuf *out, const int32_t *tokens, int32_t count) {
  quire_strbuf_add_char(out, '[');
  for (int32_t i = 0; i < count; i++) {
    quire_strbuf_add(out, ",", i > 0 ? 1 : 0);
    quire_json_write_int(out, tokens[i]);
  }
  quire_strbuf_add_char(out, ']');
}

static bool tokenize_chat(struct quire_server *server, struct quire_http_slice body, struct quire_strbuf *out,
                          struct quire_api_fault *fault) {
  const struct quire_server_model *model = server->model;
  struct quire_api_rules rules = {model->vocab, model->ctx_tokens, model->defaults};
  struct quire_api_request request;
  struct quire_chat_result result;
  struct quire_api_body read = {QUIRE_API_CHAT, body.data, body.bytes};
  bool good = quire_api_request_parse(server->env, &rules, read, &request, fault) &&
              encode_chat(model, &request, &result, fault);
  if (good) {
    write_tokens(out, request.prompts[0].tokens, request.prompts[0].count);
    quire_strbuf_addf(out, ",\"count\":%d", request.prompts[0].count);
  }
  quire_api_request_fini(&request);
  return good;
}

/* Adds the tokens of one text; their number, or -1. */
static int32_t tokenize_text(struct quire_server *server, const json_t *text, bool special, struct quire_strbuf *out,
                             struct quire_api_fault *fault) {
  if (!json_is_string(text)) {
    quire_api_fail(fault, 400, "invalid_type", "prompt", "prompt must be a string or a list of strings");
    return -1;
  }
  struct quire_api_prompt prompt = {.text = json_string_value(text), .bytes = json_string_length(text)};
  if (!encode_text(server->model, server->env, special ? QUIRE_ENCODE_ADD_SPECIAL : 0, &prompt, fault)) {
    return -1;
  }
  write_tokens(out, prompt.tokens, prompt.count);
  quire_env_free(server->env, prompt.tokens, (size_t)prompt.count, sizeof *prompt.tokens);
  return prompt.count;
}

static bool tokenize_prompts(struct quire_server *server, const json_t *prompt, bool special, struct quire_strbuf *out,
                             struct quire_api_fault *fault) {
  if (!json_is_array(prompt)) {
    int32_t count = tokenize_text(server, prompt, special, out, fault);
    quire_strbuf_addf(out, ",\"count\":%d", count);
    return count >= 0;
  }
  struct quire_strbuf counts;
  quire_strbuf_init(&counts, server->env);
  quire_strbuf_add_char(out, '[');
  int32_t count = 0;
  for (size_t i = 0; i < json_array_size(prompt) && count >= 0; i++) {
    quire_strbuf_add(out, ",", i > 0 ? 1 : 0);
    count = tokenize_text(server, json_array_get(prompt, i), special, out, fault);
    quire_strbuf_addf(&counts, "%s%d", i > 0 ? "," : "", count);
  }
  quire_strbuf_addf(out, "],\"count\":[%s]", quire_strbuf_text(&counts));
  quire_strbuf_fini(&counts);
  return count >= 0;
}

bool quire_text_tokenize(struct quire_server *server, struct quire_http_slice body, struct quire_strbuf *out,
                         struct quire_api_fault *fault) {
  json_t *root = quire_api_parse_object(body.data, body.bytes, fault);
  if (root == NULL) {
    return false;
  }
  const json_t *special = json_object_get(root, "add_special_tokens");
  quire_strbuf_add_text(out, "{\"tokens\":");
  bool good = json_object_get(root, "messages") != NULL
                  ? tokenize_chat(server, body, out, fault)
                  : tokenize_prompts(server, json_object_get(root, "prompt"), !json_is_false(special), out, fault);
  quire_strbuf_addf(out, ",\"max_model_len\":%d}", server->model->ctx_tokens);
  json_decref(root);
  return good;
}

bool quire_text_detokenize(struct quire_server *server, struct quire_http_slice body, struct quire_strbuf *out,
                           struct quire_api_fault *fault) {
  json_t *root = quire_api_parse_object(body.data, body.bytes, fault);
  if (root == NULL) {
    return false;
  }
  const json_t *list = json_object_get(root, "tokens");
  uint32_t flags =
      QUIRE_DECODE_REPLACE |
      (json_is_true(json_object_get(root, "skip_special_tokens")) ? (uint32_t)QUIRE_DECODE_SKIP_SPECIAL : 0u);
  struct quire_text_stream stream = quire_text_stream_begin(flags);
  size_t room = quire_tokenizer_push_bytes_max(server->model->tokenizer) + 16;
  char *piece = quire_env_zalloc(server->env, 1, room);
  struct quire_strbuf text;
  quire_strbuf_init(&text, server->env);
  bool good = json_is_array(list) && piece != NULL;
  for (size_t i = 0; i < json_array_size(list) && good; i++) {
    const json_t *id = json_array_get(list, i);
    good = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < server->model->vocab;
    if (good) {
      size_t bytes = quire_text_stream_push(server->model->tokenizer, &stream, (int32_t)json_integer_value(id), piece);
      quire_strbuf_add(&text, piece, bytes);
    }
  }
  if (good) {
    quire_strbuf_add(&text, piece, quire_text_stream_end(&stream, piece));
    quire_strbuf_add_text(out, "{\"prompt\":");
    quire_json_write_bytes(out, quire_strbuf_text(&text), text.bytes);
    quire_strbuf_add_text(out, ",\"text\":");
    quire_json_write_bytes(out, quire_strbuf_text(&text), text.bytes);
    quire_strbuf_add_char(out, '}');
  } else {
    quire_api_fail(fault, 400, "invalid_value", "tokens", "tokens must be a list of token ids 0 to %d",
                   server->model->vocab - 1);
  }
  quire_env_free(server->env, piece, 1, room);
  quire_strbuf_fini(&text);
  json_decref(root);
  return good;
}
