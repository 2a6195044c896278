// ctest: sources=src/bench/load_response.c,src/bench/load_event.c
// fuzz: runs=500000
/* What a server answers to the load client. The first byte says how the rest is cut; cut or whole, tokens, counts,
 * outcome and note are the same. What else holds, on the same bytes as an event: looking for keys finds what a parser
 * finds. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "base/env.h"
#include "bench/load_event.h"
#include "bench/load_response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct answer {
  enum load_outcome outcome;
  int32_t tokens, tokens_max; /* 0: any number */
  bool keep;
  int status;
  int32_t prompt, completion, cached;
  char note[LOAD_NOTE_BYTES];
};

static bool on_token(void *context) {
  struct answer *answer = context;
  answer->tokens++;
  return answer->tokens != answer->tokens_max;
}

/* Bytes of the next read: all, one, or the seed's choice. */
static size_t next_cut(uint32_t *seed, size_t left) {
  *seed = *seed * 1664525u + 1013904223u;
  const size_t cut = *seed >> 31 ? 1 + (*seed >> 24) % 64 : 1 + (*seed >> 24) % 3;
  return cut < left ? cut : left;
}

static struct answer read_answer(const char *bytes, size_t size, uint8_t how, bool whole) {
  struct answer answer = {.tokens_max = how % 8 == 7 ? 2 : 0};
  struct load_response response;
  uint32_t seed = how;
  size_t at = 0;
  load_response_init(&response, quire_env_default());
  load_response_begin(&response, on_token, &answer);
  while (at < size && answer.outcome == LOAD_WAITING) {
    const size_t cut = whole ? size - at : how / 8 == 0 ? 1 : next_cut(&seed, size - at);
    answer.outcome = load_response_feed(&response, bytes + at, cut);
    at += cut;
  }
  answer.keep = response.keep && at == size; /* what comes behind an answer costs the connection when it comes */
  if (answer.outcome == LOAD_WAITING) {
    answer.outcome = load_response_lost(&response, "gone");
    answer.keep = response.keep;
  }
  QUIRE_ASSERT(!response.no_memory && answer.outcome > LOAD_WAITING && answer.outcome < LOAD_OUTCOMES);
  QUIRE_ASSERT(response.status == 0 || (response.status >= 100 && response.status <= 999));
  answer.status = response.status;
  answer.prompt = response.prompt_tokens;
  answer.completion = response.completion_tokens;
  answer.cached = response.cached_tokens;
  memcpy(answer.note, response.note, strlen(response.note));
  load_response_fini(&response);
  return answer;
}

static void check_answer(const struct answer *a) {
  const bool http = a->outcome == LOAD_HTTP_429 || a->outcome == LOAD_HTTP_4XX || a->outcome == LOAD_HTTP_5XX;
  QUIRE_ASSERT(http ? a->status >= 400 : a->outcome != LOAD_OK || a->status == 200);
  QUIRE_ASSERT((a->outcome == LOAD_CUT) == (a->tokens_max > 0 && a->tokens == a->tokens_max));
  QUIRE_ASSERT(a->outcome == LOAD_OK || a->outcome == LOAD_CUT || http || a->note[0] != '\0' ||
               a->outcome == LOAD_TRUNCATED || a->outcome == LOAD_PROTOCOL);
  QUIRE_ASSERT(!a->keep || http || a->outcome == LOAD_OK || a->outcome == LOAD_STREAM_ERROR);
  QUIRE_ASSERT(a->completion >= 0 || (a->prompt < 0 && a->cached < 0));
}

/* The first value that a key has, in the order of the text; NULL: the tree has none. */
static const json_t *first_of(const json_t *node, const char *key) {
  const json_t *found = NULL;
  if (json_is_object(node)) {
    json_t *object = (json_t *)(uintptr_t)node;
    for (void *at = json_object_iter(object); at && !found; at = json_object_iter_next(object, at)) {
      const json_t *value = json_object_iter_value(at);
      found = strcmp(json_object_iter_key(at), key) == 0 ? value : first_of(value, key);
    }
  }
  for (size_t i = 0; i < json_array_size(node) && !found; i++) {
    found = first_of(json_array_get(node, i), key);
  }
  return found;
}

static void check_number(const json_t *root, const char *key, int32_t number) {
  const json_t *value = first_of(root, key);
  if (json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= 100000000) {
    QUIRE_ASSERT(number == json_integer_value(value));
  } else if (!json_is_number(value)) {
    QUIRE_ASSERT(number == -1);
  }
}

/* As servers write it: no escapes in keys, blanks the only white space. */
static void check_event(const char *bytes, size_t size) {
  static const char *const keys[] = {"content", "text", "reasoning_content", "reasoning"};
  const struct load_event event = load_event_read(bytes, size);
  json_t *root = memchr(bytes, '\\', size) ? NULL : json_loadb(bytes, size, JSON_REJECT_DUPLICATES, NULL);
  bool plain = json_is_object(root) && event.object, text = false;
  for (size_t i = 0; i < size; i++) {
    plain = plain && (uint8_t)bytes[i] >= ' ';
  }
  if (plain) {
    for (int i = 0; i < 4; i++) {
      text = text || json_string_length(first_of(root, keys[i])) > 0;
    }
    QUIRE_ASSERT(event.text == text);
    check_number(root, "completion_tokens", event.completion_tokens);
    if (event.usage) {
      check_number(root, "prompt_tokens", event.prompt_tokens);
      check_number(root, "cached_tokens", event.cached_tokens);
    }
    QUIRE_ASSERT(!event.error || json_object_get(root, "error"));
  }
  json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) {
    return 0;
  }
  const char *bytes = (const char *)data + 1;
  const struct answer whole = read_answer(bytes, size - 1, data[0], true);
  const struct answer cut = read_answer(bytes, size - 1, data[0], false);
  check_answer(&whole);
  QUIRE_ASSERT(whole.outcome == cut.outcome && whole.tokens == cut.tokens && whole.keep == cut.keep);
  QUIRE_ASSERT(whole.status == cut.status && whole.prompt == cut.prompt && whole.completion == cut.completion);
  QUIRE_ASSERT(whole.cached == cut.cached && strcmp(whole.note, cut.note) == 0);
  check_event(bytes, size - 1);
  return 0;
}
