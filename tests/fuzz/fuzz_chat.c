// fuzz: runs=50000
/* Templates. The first byte's bits are the options, then messages ended by NUL, whose first byte has role and
 * reasoning. Ids must decode to the rendered text and hold no more marks than the same roles with plain texts. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"
#include "support/known_tokenizer.h"
#include "text/chat.h"

#define MESSAGES_MAX 8
#define TEXT_MAX 4096
#define TOKENS_MAX (4 * TEXT_MAX)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* quire-mini's, or one of GLM's formats. */
static const struct quire_chat *known_chat(int format, const struct quire_tokenizer **tokenizer_out) {
  static struct quire_tokenizer *tokenizers[QUIRE_CHAT_FORMATS];
  static struct quire_chat *chats[QUIRE_CHAT_FORMATS];
  const struct quire_env *env = quire_env_default();
  if (!chats[format] && format == QUIRE_CHAT_DEEPSEEK_V32) {
    static const char dir[] = QUIRE_SOURCE_DIR "/models/quire-mini";
    QUIRE_ASSERT(quire_tokenizer_open(env, dir, &tokenizers[format], NULL) == QUIRE_OK);
    QUIRE_ASSERT(quire_chat_open(env, dir, tokenizers[format], &chats[format], NULL) == QUIRE_OK);
  } else if (!chats[format]) {
    tokenizers[format] = marked_tokenizer();
    QUIRE_ASSERT(quire_chat_create(env, (enum quire_chat_format)format, tokenizers[format], &chats[format], NULL) ==
                 QUIRE_OK);
  }
  *tokenizer_out = tokenizers[format];
  return chats[format];
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
  const struct quire_chat *chat = known_chat((data[0] >> 4) % QUIRE_CHAT_FORMATS, &tokenizer);
  struct quire_chat_message messages[MESSAGES_MAX], plain[MESSAGES_MAX];
  struct quire_chat_request request = {.messages = messages,
                                       .thinking = (enum quire_chat_switch)(data[0] % 3),
                                       .effort = (enum quire_chat_effort)(data[0] >> 7),
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
  QUIRE_ASSERT(quire_chat_encode(chat, &request, NULL, 0, &model, NULL) == QUIRE_OK);
  QUIRE_ASSERT(model.tokens == result.tokens && model.thinking == result.thinking); /* counted the same */
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
  if (size > 0 && size <= TEXT_MAX) {
    fuzz_chat(data, size);
  }
  return 0;
}
