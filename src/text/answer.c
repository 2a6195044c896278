#include "text/answer.h"

#include <string.h>

#include "base/assert.h"
#include "text/think_split.h"

struct quire_answer {
  const struct quire_env *env;
  const struct quire_tokenizer *tokenizer;
  struct quire_text_stream stream;
  struct quire_stop_match *stops;
  struct quire_think_split think;
  int32_t markers[2]; /* tokens spelled <think> and </think>, or QUIRE_TOKEN_NONE */
  bool split;
  bool keep_stop;
  bool done;
  struct quire_stop_text *stop_texts; /* [stop_count] into stop_bytes; only with keep_stop */
  size_t stop_count;
  char *memory; /* four buffers of buffer_bytes each, then the stop texts */
  size_t memory_bytes;
  size_t buffer_bytes;
};

enum buffer { DECODED, CERTAIN, REASONING, CONTENT, BUFFERS };

static char *buffer(const struct quire_answer *answer, enum buffer which) {
  return answer->memory + (size_t)which * answer->buffer_bytes;
}

/* Copies the stops' texts behind the buffers. */
static void keep_texts(struct quire_answer *answer, const struct quire_answer_config *config) {
  QUIRE_ASSERT(answer->stop_count <= config->stop_count && (answer->stop_texts != NULL || answer->stop_count == 0));
  char *text = buffer(answer, BUFFERS);
  for (size_t i = 0; i < answer->stop_count; i++) {
    memcpy(text, config->stops[i].text, config->stops[i].bytes);
    answer->stop_texts[i] = (struct quire_stop_text){text, config->stops[i].bytes};
    text += config->stops[i].bytes;
  }
}

static bool reserve(struct quire_answer *answer, const struct quire_answer_config *config) {
  QUIRE_ASSERT(config->tokenizer != NULL);
  size_t longest = 0, texts = 0;
  for (size_t i = 0; i < config->stop_count; i++) {
    longest = config->stops[i].bytes > longest ? config->stops[i].bytes : longest;
    texts += config->stops[i].bytes;
  }
  answer->buffer_bytes = quire_tokenizer_push_bytes_max(config->tokenizer) + 2 * longest + 2 * QUIRE_THINK_HELD_MAX;
  answer->stop_count = config->keep_stop ? config->stop_count : 0;
  answer->memory_bytes = BUFFERS * answer->buffer_bytes + (config->keep_stop ? texts : 0);
  answer->memory = quire_env_zalloc(answer->env, answer->memory_bytes, 1);
  if (answer->stop_count > 0) {
    answer->stop_texts = quire_env_zalloc(answer->env, answer->stop_count, sizeof *answer->stop_texts);
  }
  return answer->memory && (answer->stop_texts || answer->stop_count == 0);
}

enum quire_status quire_answer_create(const struct quire_env *env, const struct quire_answer_config *config,
                                      struct quire_answer **answer_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && config && config->tokenizer && answer_out);
  struct quire_answer *answer = quire_env_zalloc(env, 1, sizeof *answer);
  if (!answer) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "answer", "no memory for an answer's text");
  }
  answer->env = env;
  answer->tokenizer = config->tokenizer;
  answer->stream =
      quire_text_stream_begin(QUIRE_DECODE_REPLACE | (config->show_special ? 0u : QUIRE_DECODE_SKIP_SPECIAL));
  answer->think = quire_think_split_begin(config->thinking);
  answer->markers[0] = quire_tokenizer_find(config->tokenizer, QUIRE_THINK_OPEN, strlen(QUIRE_THINK_OPEN));
  answer->markers[1] = quire_tokenizer_find(config->tokenizer, QUIRE_THINK_CLOSE, strlen(QUIRE_THINK_CLOSE));
  answer->split = config->split;
  answer->keep_stop = config->keep_stop;
  enum quire_status status = quire_stop_match_create(env, config->stops, config->stop_count, &answer->stops, error_out);
  if (!status && !reserve(answer, config)) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "answer", "no memory for an answer's text");
  }
  if (status) {
    quire_answer_destroy(answer);
    return status;
  }
  keep_texts(answer, config);
  *answer_out = answer;
  return QUIRE_OK;
}

void quire_answer_destroy(struct quire_answer *answer) {
  if (!answer) {
    return;
  }
  const struct quire_env *env = answer->env;
  QUIRE_ASSERT(env != NULL);
  quire_stop_match_destroy(answer->stops);
  quire_env_free(env, answer->memory, answer->memory_bytes, 1);
  quire_env_free(env, answer->stop_texts, answer->stop_count, sizeof *answer->stop_texts);
  quire_env_free(env, answer, 1, sizeof *answer);
}

/* Splits bytes of the CERTAIN buffer; last: nothing follows. */
static struct quire_answer_delta split_text(struct quire_answer *answer, size_t bytes, bool last, int32_t stop) {
  struct quire_answer_delta delta = {
      .content = buffer(answer, CERTAIN), .content_bytes = bytes, .reasoning = buffer(answer, REASONING), .stop = stop};
  if (!answer->split) {
    return delta;
  }
  struct quire_think_text text = {.reasoning = buffer(answer, REASONING), .content = buffer(answer, CONTENT)};
  QUIRE_ASSERT(bytes + 2 * QUIRE_THINK_HELD_MAX <= answer->buffer_bytes);
  quire_think_split_push(&answer->think, buffer(answer, CERTAIN), bytes, &text);
  delta.reasoning_bytes = text.reasoning_bytes;
  delta.content_bytes = text.content_bytes;
  if (last) { /* joined behind what has just been written */
    struct quire_think_text rest = {.reasoning = text.reasoning + text.reasoning_bytes,
                                    .content = text.content + text.content_bytes};
    quire_think_split_end(&answer->think, &rest);
    delta.reasoning_bytes += rest.reasoning_bytes;
    delta.content_bytes += rest.content_bytes;
  }
  delta.content = text.content;
  return delta;
}

/* Passes bytes of the DECODED buffer on; ended: no token follows. */
static struct quire_answer_delta pass_on(struct quire_answer *answer, size_t bytes, bool ended) {
  int32_t stop = QUIRE_STOP_NONE;
  char *certain = buffer(answer, CERTAIN);
  QUIRE_ASSERT(quire_stop_match_push_bytes_max(answer->stops, bytes) <= answer->buffer_bytes);
  size_t out = quire_stop_match_push(answer->stops, buffer(answer, DECODED), bytes, certain, &stop);
  if (stop == QUIRE_STOP_NONE && ended) {
    out += quire_stop_match_end(answer->stops, certain + out);
  }
  if (stop != QUIRE_STOP_NONE && answer->keep_stop) {
    memcpy(certain + out, answer->stop_texts[stop].text, answer->stop_texts[stop].bytes);
    out += answer->stop_texts[stop].bytes;
  }
  answer->done = ended || stop != QUIRE_STOP_NONE;
  return split_text(answer, out, answer->done, stop);
}

struct quire_answer_delta quire_answer_push(struct quire_answer *answer, int32_t token) {
  QUIRE_ASSERT(answer && !answer->done);
  const uint32_t flags = answer->stream.flags;
  if (answer->split && (token == answer->markers[0] || token == answer->markers[1])) {
    answer->stream.flags &= ~(uint32_t)QUIRE_DECODE_SKIP_SPECIAL; /* a marker has its text even if it is special */
  }
  const size_t bytes = quire_text_stream_push(answer->tokenizer, &answer->stream, token, buffer(answer, DECODED));
  answer->stream.flags = flags;
  return pass_on(answer, bytes, false);
}

struct quire_answer_delta quire_answer_end(struct quire_answer *answer) {
  QUIRE_ASSERT(answer && !answer->done);
  return pass_on(answer, quire_text_stream_end(&answer->stream, buffer(answer, DECODED)), true);
}
