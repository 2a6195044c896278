/* Templates and streams of answers, told apart by the first byte.
 *
 *   'a'    an answer: flags, a cut size, then text. Cut or whole, stops and splitter must give the same.
 *   other  a conversation: the byte's bits are the options, then messages ended by NUL, whose first byte has role and
 *          reasoning. Ids must decode to the rendered text and hold no more marks than the same roles with plain
 *          texts. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"
#include "text/chat.h"
#include "text/stop_match.h"
#include "text/think_split.h"

#define MESSAGES_MAX 8
#define TEXT_MAX 4096
#define TOKENS_MAX (4 * TEXT_MAX)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct streamed {
  char reasoning[2 * TEXT_MAX];
  char content[2 * TEXT_MAX];
  size_t reasoning_bytes, content_bytes;
  int32_t stop;
};

static void split(struct quire_think_split *state, const char *text, size_t bytes, bool end, struct streamed *out) {
  struct quire_think_text parts = {.reasoning = out->reasoning + out->reasoning_bytes,
                                   .content = out->content + out->content_bytes};
  if (end) {
    quire_think_split_end(state, &parts);
  } else {
    quire_think_split_push(state, text, bytes, &parts);
  }
  out->reasoning_bytes += parts.reasoning_bytes;
  out->content_bytes += parts.content_bytes;
}

static void stream(const char *text, size_t bytes, size_t piece, bool inside, struct streamed *out) {
  static const struct quire_stop_text stops[] = {{"\n\n\n", 3}, {"</think>END", 11}, {"aab", 3}, {"ab", 2}};
  static char certain[2 * TEXT_MAX];
  struct quire_stop_match *match = NULL;
  struct quire_think_split state = quire_think_split_begin(inside);
  QUIRE_ASSERT(quire_stop_match_create(quire_env_default(), stops, 4, &match, NULL) == QUIRE_OK);
  out->reasoning_bytes = out->content_bytes = 0;
  out->stop = QUIRE_STOP_NONE;
  for (size_t at = 0; at < bytes && out->stop == QUIRE_STOP_NONE; at += piece) {
    const size_t take = piece < bytes - at ? piece : bytes - at;
    split(&state, certain, quire_stop_match_push(match, text + at, take, certain, &out->stop), false, out);
  }
  if (out->stop == QUIRE_STOP_NONE) {
    split(&state, certain, quire_stop_match_end(match, certain), false, out);
  }
  split(&state, NULL, 0, true, out);
  quire_stop_match_destroy(match);
}

static void fuzz_answer(const uint8_t *data, size_t size) {
  static struct streamed whole, cut;
  if (size < 2 || size - 2 > TEXT_MAX) {
    return;
  }
  const char *text = (const char *)data + 2;
  stream(text, size - 2, size, data[0] & 1, &whole);
  stream(text, size - 2, 1 + data[1] % 16, data[0] & 1, &cut);
  QUIRE_ASSERT(whole.stop == cut.stop);
  QUIRE_ASSERT(whole.reasoning_bytes == cut.reasoning_bytes && whole.content_bytes == cut.content_bytes);
  QUIRE_ASSERT(memcmp(whole.reasoning, cut.reasoning, cut.reasoning_bytes) == 0);
  QUIRE_ASSERT(memcmp(whole.content, cut.content, cut.content_bytes) == 0);
}

static const struct quire_chat *mini_chat(const struct quire_tokenizer **tokenizer_out) {
  static struct quire_tokenizer *tokenizer;
  static struct quire_chat *chat;
  static const char dir[] = QUIRE_SOURCE_DIR "/models/quire-mini";
  if (!chat) {
    QUIRE_ASSERT(quire_tokenizer_open(quire_env_default(), dir, &tokenizer, NULL) == QUIRE_OK);
    QUIRE_ASSERT(quire_chat_open(quire_env_default(), dir, tokenizer, &chat, NULL) == QUIRE_OK);
  }
  *tokenizer_out = tokenizer;
  return chat;
}

static size_t marks(const struct quire_tokenizer *tokenizer, const int32_t *tokens, size_t count) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    found += quire_tokenizer_is_special(tokenizer, tokens[i]);
  }
  return found;
}

static void fuzz_chat(const uint8_t *data, size_t size) {
  static int32_t tokens[TOKENS_MAX];
  static char back[TOKENS_MAX];
  const struct quire_tokenizer *tokenizer;
  const struct quire_chat *chat = mini_chat(&tokenizer);
  struct quire_chat_message messages[MESSAGES_MAX], plain[MESSAGES_MAX];
  struct quire_chat_request request = {.messages = messages,
                                       .thinking = (enum quire_chat_switch)(data[0] % 3),
                                       .keep_reasoning = data[0] & 4,
                                       .continue_final = data[0] & 8};
  const char *at = (const char *)data + 1, *end = (const char *)data + size;
  while (at < end && request.count < MESSAGES_MAX) {
    const char *stop = memchr(at + 1, '\0', (size_t)(end - at - 1));
    stop = stop ? stop : end;
    const size_t bytes = (size_t)(stop - at - 1), half = *at & 4 ? bytes / 2 : 0;
    messages[request.count] = (struct quire_chat_message){(enum quire_chat_role)((uint8_t)*at % 3), at + 1 + half,
                                                          bytes - half, *at & 4 ? at + 1 : NULL, half};
    plain[request.count] = messages[request.count];
    plain[request.count].content_bytes = plain[request.count].reasoning_bytes = 0;
    request.count++;
    at = stop + 1;
  }
  struct quire_chat_result result, model;
  struct quire_error error = {0};
  if (quire_chat_encode(chat, &request, tokens, TOKENS_MAX, &result, &error)) {
    QUIRE_ASSERT(error.status == QUIRE_ERR_REQUEST && error.text[0]);
    return;
  }
  QUIRE_ASSERT(result.tokens <= TOKENS_MAX);
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  QUIRE_ASSERT(quire_chat_render(chat, &request, &text, NULL) == QUIRE_OK);
  const size_t bytes = quire_tokenizer_decode(tokenizer, tokens, result.tokens, 0, back, sizeof back);
  QUIRE_ASSERT(bytes == text.bytes && memcmp(back, quire_strbuf_text(&text), bytes) == 0);
  quire_strbuf_fini(&text);
  const size_t found = marks(tokenizer, tokens, result.tokens);
  request.messages = plain;
  QUIRE_ASSERT(quire_chat_encode(chat, &request, tokens, TOKENS_MAX, &model, NULL) == QUIRE_OK);
  QUIRE_ASSERT(found == marks(tokenizer, tokens, model.tokens));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 0 && data[0] == 'a') {
    fuzz_answer(data + 1, size - 1);
  } else if (size > 0 && size <= TEXT_MAX) {
    fuzz_chat(data, size);
  }
  return 0;
}
