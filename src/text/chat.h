/* Chat templates, in C: messages to the token ids that a model was trained to answer.
 *
 *   {system, "Be brief."}, {user, "Hi"}   -> deepseek_v32, thinking off ->
 *   <｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>
 *
 * A prompt is a row of marks (tokens of the template, by id) and of plain text between them. Plain text, whoever wrote
 * it, is encoded literally: a user who types "<｜Assistant｜>" or "</think>" sends those letters, never the token. So
 * the ids are those of the published template for every conversation whose texts spell no token, and safe for the rest.
 *
 * | format       | models                          | thinking | earlier reasoning                                 |
 * |--------------|---------------------------------|----------|---------------------------------------------------|
 * | deepseek_v32 | DeepSeek-V3.2, quire-mini       | off      | dropped before the last user message              |
 * | glm5         | GLM-5                           | on       | the same; reasoning and content are stripped      |
 * | glm5.1       | GLM-5.1                         | on       | the same; only content is stripped                |
 * | glm5.2       | GLM-5.2                         | on       | the same; an effort line; <think></think> if none |
 *
 * Sources: encoding/encoding_dsv32.py of DeepSeek-V3.2; chat_template.jinja of GLM-5, GLM-5.1 and GLM-5.2. Three things
 * are ours: role developer is a second name of system (in DeepSeek's own encoder it belongs to search agents);
 * a DeepSeek conversation that does not end with a user's turn is refused, since its template would ask for no answer;
 * and where DeepSeek's encoder refuses an answer without reasoning after the last user message in thinking mode, we
 * write an empty one. Tools are refused by the caller: no format here has a role for them yet.
 *
 * Memory: a chat belongs to the caller and keeps pointers to env and the tokenizer; encode takes scratch from env and
 * gives it back. Threads: constant after open; any number of threads may encode with one. */
#ifndef QUIRE_TEXT_CHAT_H
#define QUIRE_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_CHAT_STOPS_MAX 4
#define QUIRE_CHAT_MARKS_MAX 12

enum quire_chat_format {
  QUIRE_CHAT_DEEPSEEK_V32,
  QUIRE_CHAT_GLM5,
  QUIRE_CHAT_GLM51,
  QUIRE_CHAT_GLM52,
  QUIRE_CHAT_FORMATS,
};

enum quire_chat_role { QUIRE_CHAT_SYSTEM, QUIRE_CHAT_USER, QUIRE_CHAT_ASSISTANT };

/* Any bytes; both texts may be NULL when their bytes are 0. */
struct quire_chat_message {
  enum quire_chat_role role;
  const char *content;
  size_t content_bytes;
  const char *reasoning; /* of an assistant; NULL: none is known */
  size_t reasoning_bytes;
};

enum quire_chat_switch { QUIRE_CHAT_DEFAULT, QUIRE_CHAT_OFF, QUIRE_CHAT_ON };
enum quire_chat_effort { QUIRE_CHAT_EFFORT_MAX, QUIRE_CHAT_EFFORT_HIGH }; /* only glm5.2 knows them */

struct quire_chat_request {
  const struct quire_chat_message *messages; /* [count] */
  size_t count;
  enum quire_chat_switch thinking; /* DEFAULT: the table above */
  enum quire_chat_effort effort;
  bool keep_reasoning; /* GLM's clear_thinking = false; DeepSeek's template has no place for it */
  bool continue_final; /* the last message, an assistant's, is left open and the answer goes on from its end */
};

struct quire_chat_result {
  size_t tokens;
  bool thinking; /* the prompt opened a reasoning block: the answer begins inside it */
};

struct quire_chat;

/* "deepseek_v32", "glm5", ... */
const char *quire_chat_format_name(enum quire_chat_format format);
/* The format of that name; false: there is none. */
bool quire_chat_format_parse(const char *name, enum quire_chat_format *format_out);
/* system, developer, user, assistant; false for every other name. */
bool quire_chat_role_parse(const char *name, enum quire_chat_role *role_out);

/* The format a model folder asks for: model_type of config.json, and for glm_moe_dsa what chat_template.jinja (or
 * chat_template of tokenizer_config.json) says of reasoning; without a template glm_moe_dsa is taken for glm5.2 if its
 * layers share indexers and for glm5 otherwise. QUIRE_ERR_NOT_FOUND, _IO, _CORRUPT: of config.json;
 * QUIRE_ERR_UNSUPPORTED: another model_type; QUIRE_ERR_MEMORY. */
enum quire_status quire_chat_detect(const struct quire_env *env, const char *dir, enum quire_chat_format *format_out,
                                    struct quire_error *error_out);

/* QUIRE_ERR_UNSUPPORTED: the tokenizer lacks a token of the format, which is named; QUIRE_ERR_MEMORY. */
enum quire_status quire_chat_create(const struct quire_env *env, enum quire_chat_format format,
                                    const struct quire_tokenizer *tokenizer, struct quire_chat **chat_out,
                                    struct quire_error *error_out);
/* detect and create. */
enum quire_status quire_chat_open(const struct quire_env *env, const char *dir, const struct quire_tokenizer *tokenizer,
                                  struct quire_chat **chat_out, struct quire_error *error_out);
/* NULL is allowed. */
void quire_chat_close(struct quire_chat *chat);

enum quire_chat_format quire_chat_format_of(const struct quire_chat *chat);
/* Ids that end an answer: [*count_out], QUIRE_CHAT_STOPS_MAX at most. */
const int32_t *quire_chat_stops(const struct quire_chat *chat, size_t *count_out);

/* The ids of a conversation and the opening of its answer. result_out->tokens is their number; the first `capacity` of
 * them are stored in tokens_out ([capacity], may be NULL when capacity is 0). QUIRE_ERR_REQUEST: no messages, a last
 * message that leaves nothing to answer, a text too long or one that a split's pattern gave up on; QUIRE_ERR_MEMORY.
 * After a failure *result_out is untouched, and what tokens_out holds means nothing. */
enum quire_status quire_chat_encode(const struct quire_chat *chat, const struct quire_chat_request *request,
                                    int32_t *tokens_out, size_t capacity, struct quire_chat_result *result_out,
                                    struct quire_error *error_out);
/* The same as text, marks spelled, added to text_out: for people and for tests. It must never be encoded, since a
 * user's letters cannot be told from marks in it. */
enum quire_status quire_chat_render(const struct quire_chat *chat, const struct quire_chat_request *request,
                                    struct quire_strbuf *text_out, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
