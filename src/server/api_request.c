#include "server/api_request.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "server/json_write.h"

enum { SHOW_BYTES = 48 };
/* What jansson keeps, with what malloc takes around it: for a value of a list; for a text beside its letters, half
 * of it a quote; for a list with its first table; for an object with its own; for a pair. */
enum { VALUE_BYTES = 48, QUOTE_BYTES = 24, LIST_BYTES = 128, OBJECT_BYTES = 224, PAIR_BYTES = 80 };

/* One reading: the object at hand, where it stands, and the first failure. */
struct reading {
  const struct quire_env *env;
  const struct quire_api_rules *rules;
  struct quire_api_request *request;
  struct quire_api_fault *fault;
  const json_t *object;
  const char *prefix; /* "sampling_params." or "" */
  bool failed;
};

bool quire_api_fail(struct quire_api_fault *fault, int status, const char *code, const char *param, const char *format,
                    ...) {
  va_list args;
  fault->status = status;
  fault->type = status == 401   ? "authentication_error"
                : status == 404 ? "not_found_error"
                : status == 429 ? "rate_limit_error"
                : status == 503 ? "unavailable_error"
                : status >= 500 ? "server_error"
                                : "invalid_request_error";
  fault->code = code;
  snprintf(fault->param, sizeof fault->param, "%s", param != NULL ? param : "");
  va_start(args, format);
  vsnprintf(fault->message, sizeof fault->message, format, args);
  va_end(args);
  return false;
}

void quire_api_fault_write(const struct quire_api_fault *fault, struct quire_strbuf *out) {
  quire_strbuf_add_text(out, "{\"error\":{\"message\":");
  quire_json_write_string(out, fault->message);
  quire_strbuf_add_text(out, ",\"type\":");
  quire_json_write_string(out, fault->type);
  quire_strbuf_add_text(out, ",\"param\":");
  quire_json_write_string(out, fault->param[0] != '\0' ? fault->param : NULL);
  quire_strbuf_add_text(out, ",\"code\":");
  quire_json_write_string(out, fault->code);
  quire_strbuf_add_text(out, "}}");
}

/* The first fault of a reading stands. */
static void wrong(struct reading *r, const char *code, const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void wrong(struct reading *r, const char *code, const char *key, const char *format, ...) {
  if (r->failed) {
    return;
  }
  char param[sizeof r->fault->param], text[sizeof r->fault->message];
  va_list args;
  snprintf(param, sizeof param, "%s%s", r->prefix, key);
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  r->failed = true;
  quire_api_fail(r->fault, 400, code, param, "%s", text);
}

static void wrong_type(struct reading *r, const char *key, const json_t *value, const char *wanted) {
  char shown[SHOW_BYTES];
  wrong(r, "invalid_type", key, "%s%s must be %s, not %s", r->prefix, key, wanted,
        quire_json_show(value, shown, sizeof shown));
}

static void no_memory(struct reading *r) {
  if (!r->failed) {
    r->failed = true;
    quire_api_fail(r->fault, 503, "no_memory", NULL, "the server has no memory for this request");
  }
}

/* NULL where the key is absent or null. */
static const json_t *get(const struct reading *r, const char *key) {
  const json_t *value = json_object_get(r->object, key);
  return value == NULL || json_is_null(value) ? NULL : value;
}

static bool read_int(struct reading *r, const char *key, int64_t min, int64_t max, int64_t *out) {
  const json_t *value = get(r, key);
  if (value == NULL || r->failed) {
    return false;
  }
  int64_t number;
  if (json_is_integer(value)) {
    number = json_integer_value(value);
  } else if (json_is_real(value) && json_real_value(value) > -9e15 && json_real_value(value) < 9e15 &&
             (double)(int64_t)json_real_value(value) == json_real_value(value)) {
    number = (int64_t)json_real_value(value); /* 16.0, as some clients write it */
  } else {
    wrong_type(r, key, value, "an integer");
    return false;
  }
  if (number < min || number > max) {
    wrong(r, "invalid_value", key, "%s%s must be %lld to %lld, not %lld", r->prefix, key, (long long)min,
          (long long)max, (long long)number);
    return false;
  }
  *out = number;
  return true;
}

static void read_int32(struct reading *r, const char *key, int32_t min, int32_t max, int32_t *out) {
  int64_t number;
  if (read_int(r, key, min, max, &number)) {
    *out = (int32_t)number;
  }
}

static void read_float(struct reading *r, const char *key, float *out) {
  const json_t *value = get(r, key);
  if (value == NULL || r->failed) {
    return;
  }
  if (!json_is_number(value)) {
    wrong_type(r, key, value, "a number");
    return;
  }
  *out = (float)json_number_value(value);
}

static void read_bool(struct reading *r, const char *key, bool *out) {
  const json_t *value = get(r, key);
  if (value == NULL || r->failed) {
    return;
  }
  if (!json_is_boolean(value)) {
    wrong_type(r, key, value, "true or false");
    return;
  }
  *out = json_is_true(value);
}

static const char *read_string(struct reading *r, const char *key) {
  const json_t *value = get(r, key);
  if (value == NULL || r->failed) {
    return NULL;
  }
  if (!json_is_string(value)) {
    wrong_type(r, key, value, "a string");
    return NULL;
  }
  if (strlen(json_string_value(value)) != json_string_length(value)) {
    wrong(r, "invalid_value", key, "%s%s holds a NUL", r->prefix, key);
    return NULL;
  }
  return json_string_value(value);
}

static const json_t *read_object(struct reading *r, const char *key) {
  const json_t *value = get(r, key);
  if (value != NULL && !json_is_object(value)) {
    wrong_type(r, key, value, "an object");
    return NULL;
  }
  return r->failed ? NULL : value;
}

/* Fields that mean another answer than ours. false, empty and "none" ask for nothing. */
static void refuse_fields(struct reading *r, const char *const *keys, const char *what) {
  for (int i = 0; keys[i] != NULL; i++) {
    const json_t *value = get(r, keys[i]);
    bool nothing = value == NULL || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
                   (json_is_object(value) && json_object_size(value) == 0) ||
                   (json_is_string(value) && json_string_length(value) == 0);
    if (!nothing) {
      wrong(r, "unsupported_value", keys[i], "%s%s: %s", r->prefix, keys[i], what);
    }
  }
}

/* Tools that may not be called say nothing; a call that must be made cannot. */
static void refuse_tools(struct reading *r) {
  const char *choice = json_string_value(json_object_get(r->object, "tool_choice"));
  const json_t *tools = get(r, "tools");
  if (tools != NULL && !(json_is_array(tools) && json_array_size(tools) == 0) &&
      (choice == NULL || strcmp(choice, "none") != 0)) {
    wrong(r, "unsupported_value", "tools",
          "tools: calls of tools are not supported; leave tools out, or say \"tool_choice\": \"none\"");
  }
  const json_t *wanted = get(r, "tool_choice");
  if (wanted != NULL && (choice == NULL || (strcmp(choice, "none") != 0 && strcmp(choice, "auto") != 0))) {
    wrong(r, "unsupported_value", "tool_choice", "tool_choice: only \"none\" and \"auto\" are supported");
  }
}

static void refuse_unsupported(struct reading *r) {
  static const char *const grammar[] = {
      "guided_json", "guided_regex",   "guided_choice", "guided_grammar",     "json_schema", "regex",
      "ebnf",        "structural_tag", "grammar",       "structured_outputs", NULL};
  static const char *const inputs[] = {"image_data",   "audio_data",    "video_data", "audio",
                                       "input_embeds", "prompt_embeds", NULL};
  static const char *const middle[] = {"suffix", NULL}, *const adapters[] = {"lora_path", NULL};
  static const char *const handoff[] = {"bootstrap_host", "bootstrap_port", "bootstrap_room", "kv_transfer_params",
                                        NULL};
  static const char *const prompts[] = {"truncate_prompt_tokens", "chat_template", "documents", NULL};
  static const char *const draws[] = {
      "allowed_token_ids", "bad_words", "logits_processors", "custom_logit_processor", "stop_regex",
      "session_params",    NULL};
  static const char *const extra[] = {"return_hidden_states",
                                      "use_beam_search",
                                      "logprob_token_ids",
                                      "token_ids_logprob",
                                      "functions",
                                      "prompt_logprobs",
                                      "return_token_ids",
                                      "return_tokens_as_token_ids",
                                      NULL};
  refuse_fields(r, grammar, "answers bound by a grammar are not supported");
  refuse_fields(r, inputs, "only text and tokens are taken as input");
  refuse_fields(r, middle, "text is continued, not filled in before a suffix");
  refuse_fields(r, adapters, "adapters are not supported; the model is served as it is");
  refuse_fields(r, handoff, "this server takes no part in a hand-off");
  refuse_fields(r, prompts, "a prompt is what is sent, in the model's own template");
  refuse_fields(r, draws, "tokens are not drawn, or answers ended, in this way");
  refuse_fields(r, extra, "is not supported");
  const json_t *format = read_object(r, "response_format");
  const char *type = format != NULL ? json_string_value(json_object_get(format, "type")) : NULL;
  if (format != NULL && (type == NULL || strcmp(type, "text") != 0)) {
    wrong(r, "unsupported_value", "response_format",
          "response_format: only {\"type\": \"text\"} is supported; for JSON, ask for it in the prompt and check the "
          "answer");
  }
  const json_t *modes = get(r, "modalities");
  if (json_array_size(modes) > 1 || (modes != NULL && !json_is_array(modes)) ||
      (json_array_size(modes) == 1 && (!json_is_string(json_array_get(modes, 0)) ||
                                       strcmp(json_string_value(json_array_get(modes, 0)), "text") != 0))) {
    wrong(r, "unsupported_value", "modalities", "modalities: only [\"text\"] is supported");
  }
  refuse_tools(r);
}

/* Pages are found only by requests of the same salt: vLLM's name for it, or SGLang's. */
static void read_salt(struct reading *r) {
  const char *salt = read_string(r, "cache_salt"), *key = read_string(r, "extra_key");
  const char *name = salt != NULL ? "cache_salt" : "extra_key";
  salt = salt != NULL ? salt : key;
  if (salt != NULL && strlen(salt) > QUIRE_CHAIN_SALT_MAX) {
    wrong(r, "invalid_value", name, "%s has more than %d bytes", name, QUIRE_CHAIN_SALT_MAX);
  }
  r->request->salt = salt;
}

/* [{"103": -5}] as OpenAI has it: an object of ids to numbers. */
static void read_bias(struct reading *r) {
  const json_t *object = read_object(r, "logit_bias");
  struct quire_api_request *request = r->request;
  if (object == NULL) {
    return;
  }
  if (json_object_size(object) > QUIRE_BIAS_MAX) {
    wrong(r, "invalid_value", "logit_bias", "logit_bias has %zu tokens; at most %d are taken", json_object_size(object),
          QUIRE_BIAS_MAX);
    return;
  }
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    int64_t id = 0;
    size_t digits = strspn(key, "0123456789");
    for (size_t i = 0; i < digits && i < 10; i++) {
      id = id * 10 + (key[i] - '0');
    }
    if (digits == 0 || digits > 10 || key[digits] != '\0' || id >= r->rules->vocab || !json_is_number(value)) {
      char shown[SHOW_BYTES];
      wrong(r, "invalid_value", "logit_bias", "logit_bias must be token ids below %d with numbers, not \"%.20s\": %s",
            r->rules->vocab, key, quire_json_show(value, shown, sizeof shown));
      return;
    }
    request->bias[request->sampling.bias_count++] = (struct quire_bias){(int32_t)id, (float)json_number_value(value)};
  }
}

static void add_stop(struct reading *r, const json_t *value) {
  struct quire_api_request *request = r->request;
  if (!json_is_string(value)) {
    wrong_type(r, "stop", value, "a string, or a list of strings");
  } else if (json_string_length(value) == 0 || json_string_length(value) > QUIRE_STOP_BYTES_MAX) {
    wrong(r, "invalid_value", "stop", "%sstop: a stop string has 1 to %d bytes", r->prefix, QUIRE_STOP_BYTES_MAX);
  } else if (request->stop_count == QUIRE_STOPS_MAX) {
    wrong(r, "invalid_value", "stop", "%sstop: at most %d strings are taken", r->prefix, QUIRE_STOPS_MAX);
  } else {
    request->stops[request->stop_count++] =
        (struct quire_stop_text){json_string_value(value), json_string_length(value)};
  }
}

static void read_stops(struct reading *r) {
  const json_t *stop = get(r, "stop"), *ids = get(r, "stop_token_ids");
  struct quire_api_request *request = r->request;
  if (json_is_array(stop)) {
    for (size_t i = 0; i < json_array_size(stop) && !r->failed; i++) {
      add_stop(r, json_array_get(stop, i));
    }
  } else if (stop != NULL) {
    add_stop(r, stop);
  }
  if (ids != NULL && !json_is_array(ids)) {
    wrong_type(r, "stop_token_ids", ids, "a list of token ids");
  }
  /* room for the model's own */
  size_t count = json_array_size(ids), most = QUIRE_ENGINE_STOPS_MAX / 2;
  if (count > most) {
    wrong(r, "invalid_value", "stop_token_ids", "%sstop_token_ids: at most %zu are taken", r->prefix, most);
  }
  for (size_t i = 0; i < count && !r->failed; i++) {
    const json_t *id = json_array_get(ids, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->rules->vocab) {
      wrong_type(r, "stop_token_ids", id, "a list of token ids of the model");
      return;
    }
    request->stop_ids[request->stop_id_count++] = (int32_t)json_integer_value(id);
  }
}

/* What all three interfaces share, under the same names. */
static void read_sampling(struct reading *r) {
  struct quire_sampling *sampling = &r->request->sampling;
  int64_t seed = 0;
  read_float(r, "temperature", &sampling->temperature);
  read_float(r, "top_p", &sampling->top_p);
  read_float(r, "min_p", &sampling->min_p);
  read_int32(r, "top_k", -1, QUIRE_TOP_K_MAX, &sampling->top_k);
  read_float(r, "presence_penalty", &sampling->presence_penalty);
  read_float(r, "frequency_penalty", &sampling->frequency_penalty);
  read_float(r, "repetition_penalty", &sampling->repetition_penalty);
  if (get(r, "repetition_penalty") != NULL && sampling->repetition_penalty <= 0) {
    wrong(r, "invalid_value", "repetition_penalty", "%srepetition_penalty must be above 0", r->prefix);
  }
  if (read_int(r, "seed", INT64_MIN, INT64_MAX, &seed) || read_int(r, "sampling_seed", INT64_MIN, INT64_MAX, &seed)) {
    sampling->seed = (uint64_t)seed;
    r->request->seed_given = true;
  }
  read_int32(r, "n", 1, QUIRE_API_SEQUENCES_MAX, &r->request->n);
  read_bool(r, "ignore_eos", &r->request->ignore_eos);
  read_bool(r, "skip_special_tokens", &r->request->skip_special);
  read_bool(r, "include_stop_str_in_output", &r->request->keep_stop);
  read_bool(r, "no_stop_trim", &r->request->keep_stop);
  read_bias(r);
  read_stops(r);
}

static void check_sampling(struct reading *r) {
  struct quire_error error = {0};
  struct quire_sampling *sampling = &r->request->sampling;
  sampling->bias = sampling->bias_count > 0 ? r->request->bias : NULL;
  if (!r->failed && quire_sampling_check(sampling, r->rules->vocab, &error) != QUIRE_OK) {
    wrong(r, "invalid_value", error.where, "%s%s: %s", r->prefix, error.where, error.text);
  }
}

static void read_stream(struct reading *r) {
  const json_t *options = read_object(r, "stream_options");
  read_bool(r, "stream", &r->request->stream);
  if (options == NULL) {
    return;
  }
  if (!r->request->stream) {
    wrong(r, "invalid_value", "stream_options", "stream_options: only with \"stream\": true");
    return;
  }
  struct reading inner = *r;
  inner.object = options;
  inner.prefix = "stream_options.";
  read_bool(&inner, "include_usage", &r->request->include_usage);
  read_bool(&inner, "continuous_usage_stats", &r->request->usage_always);
  r->failed = inner.failed;
}

/* best_of beside n choices is another search; equal to them it says nothing. */
static void read_best_of(struct reading *r) {
  int32_t best_of = r->request->n;
  read_int32(r, "best_of", 1, QUIRE_API_SEQUENCES_MAX, &best_of);
  if (best_of != r->request->n) {
    wrong(r, "unsupported_value", "best_of", "best_of: only the value of n is supported");
  }
}

/* --- prompts --- */

static bool reserve_prompts(struct reading *r, size_t count, const char *key) {
  if (count == 0 || count > QUIRE_API_SEQUENCES_MAX) {
    wrong(r, "invalid_value", key, "%s must be 1 to %d prompts, not %zu", key, QUIRE_API_SEQUENCES_MAX, count);
    return false;
  }
  r->request->prompts = quire_env_zalloc(r->env, count, sizeof *r->request->prompts);
  if (r->request->prompts == NULL) {
    no_memory(r);
    return false;
  }
  r->request->prompt_count = (int32_t)count;
  return true;
}

static void read_tokens(struct reading *r, const char *key, const json_t *list, struct quire_api_prompt *prompt) {
  size_t count = json_array_size(list);
  if (count == 0) {
    wrong(r, "invalid_value", key, "%s: a prompt has at least one token", key);
    return;
  }
  if (count > (size_t)r->rules->ctx_tokens) {
    wrong(r, "context_length_exceeded", key, "%s has %zu tokens; this server takes %d, prompt and answer together", key,
          count, r->rules->ctx_tokens);
    return;
  }
  prompt->tokens = quire_env_zalloc(r->env, count, sizeof *prompt->tokens);
  if (prompt->tokens == NULL) {
    no_memory(r);
    return;
  }
  prompt->count = (int32_t)count;
  for (size_t i = 0; i < count; i++) {
    const json_t *id = json_array_get(list, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->rules->vocab) {
      char shown[SHOW_BYTES];
      wrong(r, "invalid_value", key, "%s must hold token ids 0 to %d, not %s", key, r->rules->vocab - 1,
            quire_json_show(id, shown, sizeof shown));
      return;
    }
    prompt->tokens[i] = (int32_t)json_integer_value(id);
  }
}

static void read_text(const json_t *text, struct quire_api_prompt *prompt) {
  prompt->text = json_string_value(text);
  prompt->bytes = json_string_length(text);
}

/* A string, tokens, or a list of either. */
static void read_prompts(struct reading *r, const char *key, const json_t *value) {
  const json_t *first = json_array_get(value, 0);
  if (json_is_string(value) || json_is_integer(first)) {
    if (!reserve_prompts(r, 1, key)) {
      return;
    }
    if (json_is_string(value)) {
      read_text(value, r->request->prompts);
    } else {
      read_tokens(r, key, value, r->request->prompts);
    }
    return;
  }
  if (!json_is_array(value) || (first != NULL && !json_is_string(first) && !json_is_array(first))) {
    wrong_type(r, key, value, "a string, a list of strings, a list of token ids or a list of such lists");
    return;
  }
  r->request->batch = true;
  if (!reserve_prompts(r, json_array_size(value), key)) {
    return;
  }
  for (int32_t i = 0; i < r->request->prompt_count && !r->failed; i++) {
    const json_t *item = json_array_get(value, (size_t)i);
    if (json_typeof(item) != json_typeof(first)) {
      wrong_type(r, key, value, "strings only, or lists of token ids only");
    } else if (json_is_string(item)) {
      read_text(item, &r->request->prompts[i]);
    } else {
      read_tokens(r, key, item, &r->request->prompts[i]);
    }
  }
}

/* --- chat --- */

/* Where joined texts go, as offsets, since the buffer moves while it grows. */
struct joined_text {
  size_t at, bytes;
};

static void join_parts(struct reading *r, const json_t *parts, const char *key, struct joined_text *joined) {
  struct quire_strbuf *out = &r->request->joined;
  joined->at = out->bytes;
  for (size_t i = 0; i < json_array_size(parts); i++) {
    const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
    const char *type = json_string_value(json_object_get(part, "type"));
    if (type == NULL || (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0) || !json_is_string(text)) {
      wrong(r, "unsupported_value", key, "%s[%zu]: only parts of {\"type\": \"text\", \"text\": \"...\"} are taken",
            key, i);
      return;
    }
    quire_strbuf_add(out, json_string_value(text), json_string_length(text));
  }
  joined->bytes = out->bytes - joined->at;
  if (quire_strbuf_failed(out)) {
    no_memory(r);
  }
}

static void read_message(struct reading *r, size_t index, struct quire_chat_message *message,
                         struct joined_text *joined) {
  const json_t *object = json_array_get(get(r, "messages"), index);
  char key[64];
  snprintf(key, sizeof key, "messages[%zu]", index);
  const char *role = json_string_value(json_object_get(object, "role"));
  if (!json_is_object(object) || role == NULL) {
    wrong(r, "invalid_type", key, "%s must be an object with \"role\" and \"content\"", key);
    return;
  }
  if (!quire_chat_role_parse(role, &message->role)) {
    wrong(r, "unsupported_value", key, "%s.role must be system, developer, user or assistant, not \"%.20s\"", key,
          role);
    return;
  }
  const json_t *calls = json_object_get(object, "tool_calls");
  if (json_array_size(calls) > 0) {
    wrong(r, "unsupported_value", key, "%s.tool_calls: calls of tools are not supported", key);
    return;
  }
  const json_t *content = json_object_get(object, "content"), *reasoning = json_object_get(object, "reasoning_content");
  reasoning = json_is_string(reasoning) ? reasoning : json_object_get(object, "reasoning");
  if (json_is_string(reasoning)) {
    message->reasoning = json_string_value(reasoning);
    message->reasoning_bytes = json_string_length(reasoning);
  }
  if (json_is_string(content)) {
    message->content = json_string_value(content);
    message->content_bytes = json_string_length(content);
  } else if (json_is_array(content)) {
    snprintf(key, sizeof key, "messages[%zu].content", index);
    join_parts(r, content, key, joined);
  } else if (content != NULL && !json_is_null(content)) {
    wrong(r, "invalid_type", key, "%s.content must be a string or a list of parts", key);
  } else if (message->role != QUIRE_CHAT_ASSISTANT) {
    wrong(r, "invalid_value", key, "%s.content is missing", key);
  }
}

static void read_messages(struct reading *r) {
  const json_t *list = get(r, "messages");
  struct quire_api_request *request = r->request;
  size_t count = json_array_size(list);
  if (!json_is_array(list) || count == 0 || count > QUIRE_API_MESSAGES_MAX) {
    wrong(r, list == NULL ? "missing_required_parameter" : "invalid_value", "messages",
          "messages must be a list of 1 to %d messages", QUIRE_API_MESSAGES_MAX);
    return;
  }
  struct joined_text *joined = quire_env_zalloc(r->env, count, sizeof *joined);
  request->messages = quire_env_zalloc(r->env, count, sizeof *request->messages);
  if (request->messages == NULL || joined == NULL) {
    no_memory(r);
  } else {
    request->message_count = (int32_t)count;
    for (size_t i = 0; i < count && !r->failed; i++) {
      read_message(r, i, &request->messages[i], &joined[i]);
    }
    for (size_t i = 0; i < count && !r->failed; i++) {
      if (request->messages[i].content == NULL) {
        request->messages[i].content = quire_strbuf_text(&request->joined) + joined[i].at;
        request->messages[i].content_bytes = joined[i].bytes;
      }
    }
  }
  quire_env_free(r->env, joined, count, sizeof *joined);
}

/* DeepSeek's name for going on from the last message, which bears it. */
static void read_prefix(struct reading *r) {
  const json_t *list = get(r, "messages");
  for (size_t i = 0; i < json_array_size(list) && !r->failed; i++) {
    const json_t *prefix = json_object_get(json_array_get(list, i), "prefix");
    char key[64];
    snprintf(key, sizeof key, "messages[%zu].prefix", i);
    if (prefix != NULL && !json_is_null(prefix) && !json_is_boolean(prefix)) {
      wrong(r, "invalid_type", key, "%s must be true or false", key);
    } else if (json_is_true(prefix) && i + 1 < json_array_size(list)) {
      wrong(r, "invalid_value", key, "%s: only the last message is gone on from", key);
    } else if (json_is_true(prefix)) {
      r->request->continue_final = true;
    }
  }
}

/* The names by which clients switch thinking: templates' own, DeepSeek's API, OpenAI's effort. */
static void read_thinking(struct reading *r) {
  struct quire_api_request *request = r->request;
  const json_t *kwargs = read_object(r, "chat_template_kwargs"), *api = read_object(r, "thinking");
  const char *effort = read_string(r, "reasoning_effort");
  static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", NULL};
  int known = 0;
  while (effort != NULL && efforts[known] != NULL && strcmp(effort, efforts[known]) != 0) {
    known++;
  }
  if (efforts[known] == NULL) {
    wrong(r, "invalid_value", "reasoning_effort",
          "reasoning_effort must be none, minimal, low, medium, high, xhigh or max, not \"%.20s\"", effort);
  } else if (effort != NULL) {
    request->thinking = strcmp(effort, "none") == 0 ? QUIRE_CHAT_OFF : QUIRE_CHAT_ON;
    request->effort = strcmp(effort, "high") == 0 ? QUIRE_CHAT_EFFORT_HIGH : QUIRE_CHAT_EFFORT_MAX;
  }
  const char *type = json_string_value(json_object_get(api, "type"));
  if (type != NULL) {
    request->thinking = strcmp(type, "enabled") == 0 ? QUIRE_CHAT_ON : QUIRE_CHAT_OFF;
  }
  if (kwargs != NULL) {
    struct reading inner = *r;
    bool on = false, clear = true;
    inner.object = kwargs;
    inner.prefix = "chat_template_kwargs.";
    read_bool(&inner, "thinking", &on);
    read_bool(&inner, "enable_thinking", &on);
    if (get(&inner, "thinking") != NULL || get(&inner, "enable_thinking") != NULL) {
      request->thinking = on ? QUIRE_CHAT_ON : QUIRE_CHAT_OFF;
    }
    read_bool(&inner, "clear_thinking", &clear);
    read_bool(&inner, "drop_thinking", &clear);
    request->keep_reasoning = !clear;
    r->failed = inner.failed;
  }
  read_bool(r, "separate_reasoning", &request->split_reasoning);
  read_bool(r, "continue_final_message", &request->continue_final);
  read_prefix(r);
  bool opens = true, echo = false;
  read_bool(r, "add_generation_prompt", &opens);
  if (!opens && !request->continue_final) {
    wrong(r, "unsupported_value", "add_generation_prompt",
          "add_generation_prompt: false is supported with \"continue_final_message\": true alone");
  }
  read_bool(r, "echo", &echo);
  if (echo) {
    wrong(r, "unsupported_value", "echo", "echo: a conversation is not repeated; use /v1/completions");
  }
}

static void read_chat(struct reading *r) {
  struct quire_api_request *request = r->request;
  read_messages(r);
  read_thinking(r);
  read_stream(r);
  read_best_of(r);
  read_int32(r, "max_tokens", 1, INT32_MAX, &request->max_tokens);
  read_int32(r, "max_completion_tokens", 1, INT32_MAX, &request->max_tokens);
  read_int32(r, "min_tokens", 0, INT32_MAX, &request->min_tokens);
  read_bool(r, "logprobs", &request->logprobs);
  read_int32(r, "top_logprobs", 0, QUIRE_TOP_LOGPROBS_MAX, &request->sampling.top_logprobs);
  if (request->sampling.top_logprobs > 0 && !request->logprobs) {
    wrong(r, "invalid_value", "top_logprobs", "top_logprobs: only with \"logprobs\": true");
  }
}

static void read_completion(struct reading *r) {
  struct quire_api_request *request = r->request;
  const json_t *prompt = get(r, "prompt"), *logprobs = get(r, "logprobs");
  if (prompt == NULL) {
    wrong(r, "missing_required_parameter", "prompt", "prompt is missing");
    return;
  }
  read_prompts(r, "prompt", prompt);
  read_stream(r);
  read_best_of(r);
  read_bool(r, "echo", &request->echo);
  read_bool(r, "add_special_tokens", &request->add_special);
  request->max_tokens = 16;
  read_int32(r, "max_tokens", request->echo ? 0 : 1, INT32_MAX, &request->max_tokens);
  read_int32(r, "min_tokens", 0, INT32_MAX, &request->min_tokens);
  if (logprobs != NULL && !json_is_false(logprobs)) {
    read_int32(r, "logprobs", 0, QUIRE_TOP_LOGPROBS_MAX, &request->sampling.top_logprobs);
    request->logprobs = true;
    request->sampling.prompt_logprobs = request->echo;
    request->sampling.prompt_top_logprobs = request->echo ? request->sampling.top_logprobs : 0;
  }
}

static void read_generate(struct reading *r) {
  struct quire_api_request *request = r->request;
  const json_t *text = get(r, "text"), *ids = get(r, "input_ids");
  if ((text == NULL) == (ids == NULL)) {
    wrong(r, "missing_required_parameter", "text", "one of text and input_ids is needed");
    return;
  }
  read_prompts(r, text != NULL ? "text" : "input_ids", text != NULL ? text : ids);
  read_bool(r, "stream", &request->stream);
  read_bool(r, "return_logprob", &request->logprobs);
  int32_t top = 0, start = -1;
  read_int32(r, "top_logprobs_num", 0, QUIRE_TOP_LOGPROBS_MAX, &top);
  read_int32(r, "logprob_start_len", -1, INT32_MAX, &start);
  request->sampling.top_logprobs = request->logprobs ? top : 0;
  if (request->logprobs && start >= 0) {
    request->sampling.prompt_logprobs = true;
    request->sampling.prompt_top_logprobs = top;
    request->sampling.prompt_logprobs_start = start;
  }
  request->max_tokens = 128;
  const json_t *params = read_object(r, "sampling_params");
  if (params != NULL && !r->failed) {
    struct reading inner = *r;
    inner.object = params;
    inner.prefix = "sampling_params.";
    refuse_unsupported(&inner);
    read_sampling(&inner);
    read_int32(&inner, "max_new_tokens", 0, INT32_MAX, &request->max_tokens);
    read_int32(&inner, "min_new_tokens", 0, INT32_MAX, &request->min_tokens);
    check_sampling(&inner);
    r->failed = inner.failed;
  }
}

static void read_common(struct reading *r) {
  struct quire_api_request *request = r->request;
  request->model = read_string(r, "model");
  request->id = read_string(r, "rid");
  if (request->id != NULL && strlen(request->id) > QUIRE_API_ID_BYTES_MAX) {
    wrong(r, "invalid_value", "rid", "rid has more than %d bytes", QUIRE_API_ID_BYTES_MAX);
  }
  read_int32(r, "priority", INT32_MIN, INT32_MAX, &request->priority);
  read_salt(r);
  refuse_unsupported(r);
  if (request->kind != QUIRE_API_GENERATE) {
    read_sampling(r);
  }
  if (request->kind == QUIRE_API_CHAT) {
    read_chat(r);
  } else if (request->kind == QUIRE_API_COMPLETION) {
    read_completion(r);
  } else {
    read_generate(r);
  }
  request->sampling.logprobs = request->logprobs;
  check_sampling(r);
  if (request->min_tokens > request->max_tokens && request->max_tokens >= 0) {
    wrong(r, "invalid_value", "min_tokens", "min_tokens is above the most tokens asked for, %d", request->max_tokens);
  }
  if (!r->failed && request->prompt_count * request->n > QUIRE_API_SEQUENCES_MAX) {
    wrong(r, "invalid_value", "n", "n times the number of prompts is above %d", QUIRE_API_SEQUENCES_MAX);
  }
}

json_t *quire_api_parse_object(const char *data, size_t bytes, struct quire_api_fault *fault_out) {
  json_error_t error;
  json_t *root = json_loadb(data, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  if (root == NULL) {
    quire_api_fail(fault_out, 400, "invalid_json", NULL, "the body is no valid JSON: %s, at byte %d", error.text,
                   error.position);
  } else if (!json_is_object(root)) {
    json_decref(root);
    root = NULL;
    quire_api_fail(fault_out, 400, "invalid_json", NULL, "the body must be a JSON object");
  }
  return root;
}

bool quire_api_request_parse(const struct quire_env *env, const struct quire_api_rules *rules,
                             struct quire_api_body body, struct quire_api_request *request_out,
                             struct quire_api_fault *fault_out) {
  memset(request_out, 0, sizeof *request_out);
  request_out->kind = body.kind;
  request_out->env = env;
  request_out->n = 1;
  request_out->max_tokens = -1;
  request_out->skip_special = true;
  request_out->add_special = true;
  request_out->split_reasoning = true;
  request_out->sampling = rules->defaults;
  quire_strbuf_init(&request_out->joined, env);
  request_out->root = quire_api_parse_object(body.data, body.bytes, fault_out);
  if (request_out->root == NULL) {
    return false;
  }
  struct reading r = {env, rules, request_out, fault_out, request_out->root, "", false};
  read_common(&r);
  return !r.failed;
}

size_t quire_api_body_cost(const char *data, size_t bytes) {
  size_t values = 0, quotes = 0, lists = 0, objects = 0, pairs = 0;
  for (size_t i = 0; i < bytes; i++) {
    values += data[i] == ',';
    quotes += data[i] == '"';
    lists += data[i] == '[';
    objects += data[i] == '{';
    pairs += data[i] == ':';
  }
  return 2 * bytes + values * VALUE_BYTES + quotes * QUOTE_BYTES + lists * LIST_BYTES + objects * OBJECT_BYTES +
         pairs * PAIR_BYTES;
}

void quire_api_request_fini(struct quire_api_request *request) {
  const struct quire_env *env = request->env;
  if (env == NULL) {
    return;
  }
  for (int32_t i = 0; i < request->prompt_count; i++) {
    quire_env_free(env, request->prompts[i].tokens, (size_t)request->prompts[i].count, sizeof(int32_t));
  }
  quire_env_free(env, request->prompts, (size_t)request->prompt_count, sizeof *request->prompts);
  quire_env_free(env, request->messages, (size_t)request->message_count, sizeof *request->messages);
  quire_strbuf_fini(&request->joined);
  json_decref(request->root);
  memset(request, 0, sizeof *request);
}
