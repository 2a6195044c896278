// fuzz: runs=16000
/* The text of an answer, token by token, against its slow definition: the whole text, searched for stops and split
 * where it should be. The first byte holds the options, the second the tokenizer and how the text falls into tokens;
 * then stops, each ended by NUL, as many as the third says; the rest is the text. Each delta is UTF-8. The parts alone,
 * stops and splitter, are given the same text cut anywhere. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"
#include "base/utf8.h"
#include "support/known_tokenizer.h"
#include "text/answer.h"
#include "text/think_split.h"

#define TEXT_MAX 512
#define STOPS_MAX 4
#define OUT_MAX (3 * TEXT_MAX + QUIRE_STOP_BYTES_MAX)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct text {
  char data[OUT_MAX];
  size_t bytes;
};

struct told {
  struct text reasoning, content;
  int32_t stop;
};

struct fuzz {
  struct quire_answer_config config;
  struct quire_stop_text stops[STOPS_MAX];
  const char *text;
  size_t bytes;
  uint32_t seed;
  bool utf8_stops;
};

static bool is_utf8(const char *text, size_t bytes) {
  const uint8_t *at = (const uint8_t *)text, *end = at + bytes;
  while (at < end && quire_utf8_valid(at, end) > 0) {
    at += quire_utf8_valid(at, end);
  }
  return at == end;
}

static void add(struct text *to, const char *text, size_t bytes) {
  QUIRE_ASSERT(bytes <= sizeof to->data - to->bytes);
  if (bytes > 0) {
    memcpy(to->data + to->bytes, text, bytes);
    to->bytes += bytes;
  }
}

static size_t below(struct fuzz *f, size_t n) {
  f->seed = f->seed * 1664525u + 1013904223u;
  return (f->seed >> 8) % n;
}

/* --- the slow definition --- */

/* Cuts text at the stop that ends first, the longest of those that end there. */
static int32_t cut_at_stop(const struct fuzz *f, struct text *text) {
  int32_t found = QUIRE_STOP_NONE;
  for (size_t end = 1; end <= text->bytes && found == QUIRE_STOP_NONE; end++) {
    size_t longest = 0;
    for (size_t i = 0; i < f->config.stop_count; i++) {
      const struct quire_stop_text *stop = &f->stops[i];
      if (stop->bytes > longest && stop->bytes <= end &&
          memcmp(text->data + end - stop->bytes, stop->text, stop->bytes) == 0) {
        longest = stop->bytes;
        found = (int32_t)i;
      }
    }
    if (found != QUIRE_STOP_NONE) {
      text->bytes = f->config.keep_stop ? end : end - longest;
    }
  }
  return found;
}

static void split_at_marker(const struct fuzz *f, const struct text *text, struct told *told) {
  const size_t open = strlen(QUIRE_THINK_OPEN), close = strlen(QUIRE_THINK_CLOSE);
  const bool opens = text->bytes >= open && memcmp(text->data, QUIRE_THINK_OPEN, open) == 0;
  const char *rest = text->data + (opens ? open : 0);
  size_t left = text->bytes - (opens ? open : 0);
  if (f->config.thinking || opens) {
    const char *end = memmem(rest, left, QUIRE_THINK_CLOSE, close);
    const size_t inside = end ? (size_t)(end - rest) : left;
    add(&told->reasoning, rest, inside);
    rest += inside + (end ? close : 0);
    left -= inside + (end ? close : 0);
  }
  add(&told->content, rest, left);
}

/* Of tokens, each of which has its text if it is no special one, is shown, or is a marker. */
static void define(const struct fuzz *f, int32_t *tokens, size_t count, struct told *told) {
  static struct text text;
  const struct quire_tokenizer *t = f->config.tokenizer;
  const int32_t markers[] = {quire_tokenizer_find(t, QUIRE_THINK_OPEN, strlen(QUIRE_THINK_OPEN)),
                             quire_tokenizer_find(t, QUIRE_THINK_CLOSE, strlen(QUIRE_THINK_CLOSE))};
  size_t shown = 0;
  for (size_t i = 0; i < count; i++) {
    const bool marker = f->config.split && (tokens[i] == markers[0] || tokens[i] == markers[1]);
    if (f->config.show_special || marker || !quire_tokenizer_is_special(t, tokens[i])) {
      tokens[shown++] = tokens[i];
    }
  }
  told->reasoning.bytes = told->content.bytes = 0;
  text.bytes = quire_tokenizer_decode(t, tokens, shown, QUIRE_DECODE_REPLACE, text.data, sizeof text.data);
  QUIRE_ASSERT(text.bytes <= sizeof text.data);
  told->stop = cut_at_stop(f, &text);
  if (f->config.split) {
    split_at_marker(f, &text, told);
  } else {
    add(&told->content, text.data, text.bytes);
  }
}

/* --- the answer --- */

static void take(const struct fuzz *f, struct quire_answer_delta delta, struct told *told) {
  QUIRE_ASSERT(!f->utf8_stops ||
               (is_utf8(delta.reasoning, delta.reasoning_bytes) && is_utf8(delta.content, delta.content_bytes)));
  QUIRE_ASSERT(delta.reasoning_bytes == 0 || told->content.bytes == 0); /* reasoning comes first */
  add(&told->reasoning, delta.reasoning, delta.reasoning_bytes);
  add(&told->content, delta.content, delta.content_bytes);
  told->stop = delta.stop;
}

static void answer(const struct fuzz *f, const int32_t *tokens, size_t count, struct told *told) {
  struct quire_answer *answer = NULL;
  told->reasoning.bytes = told->content.bytes = 0;
  told->stop = QUIRE_STOP_NONE;
  QUIRE_ASSERT(quire_answer_create(quire_env_default(), &f->config, &answer, NULL) == QUIRE_OK);
  for (size_t i = 0; i < count && told->stop == QUIRE_STOP_NONE; i++) {
    take(f, quire_answer_push(answer, tokens[i]), told);
  }
  if (told->stop == QUIRE_STOP_NONE) {
    take(f, quire_answer_end(answer), told);
  }
  quire_answer_destroy(answer);
}

static size_t byte_tokens(const struct fuzz *f, int32_t *tokens) {
  for (size_t i = 0; i < f->bytes; i++) {
    tokens[i] = quire_tokenizer_find(f->config.tokenizer, f->text + i, 1);
    QUIRE_ASSERT(tokens[i] != QUIRE_TOKEN_NONE);
  }
  return f->bytes;
}

/* Pieces of the text, each in its own tokens; how: 0 one piece, 1 a token a byte, 2 pieces at random. */
static size_t tokens_of(struct fuzz *f, int how, uint32_t flags, int32_t *tokens) {
  size_t count = 0;
  if (how == 1) {
    return byte_tokens(f, tokens);
  }
  for (size_t at = 0, took = 0, length; at < f->bytes; at += length, count += took) {
    const size_t left = f->bytes - at, random = 1 + below(f, 24);
    length = how == 0 || random > left ? left : random;
    const struct quire_encode piece = {f->text + at, length, flags, tokens + count, TEXT_MAX - count};
    QUIRE_ASSERT(quire_tokenizer_encode(f->config.tokenizer, piece, &took, NULL) == QUIRE_OK);
    QUIRE_ASSERT(took <= length);
  }
  return count;
}

static void same(const struct told *a, const struct told *b) {
  QUIRE_ASSERT(a->stop == b->stop && a->reasoning.bytes == b->reasoning.bytes && a->content.bytes == b->content.bytes);
  QUIRE_ASSERT(memcmp(a->reasoning.data, b->reasoning.data, a->reasoning.bytes) == 0);
  QUIRE_ASSERT(memcmp(a->content.data, b->content.data, a->content.bytes) == 0);
}

static void fuzz_tokens(struct fuzz *f) {
  static int32_t tokens[TEXT_MAX];
  static struct told first, told, wanted;
  for (int how = 0; how < 4; how++) { /* the last as a model would write marks, which are tokens of their own */
    const size_t count = tokens_of(f, how % 3, how < 3 ? QUIRE_ENCODE_LITERAL : 0, tokens);
    struct told *into = how == 0 ? &first : &told;
    answer(f, tokens, count, into);
    define(f, tokens, count, &wanted);
    same(into, &wanted);
    if (how < 3) {
      same(into, &first);
    }
  }
}

/* --- its parts --- */

static void split_push(struct quire_think_split *split, const char *text, size_t bytes, bool end, struct told *told) {
  char reasoning[TEXT_MAX + QUIRE_THINK_HELD_MAX], content[TEXT_MAX + QUIRE_THINK_HELD_MAX];
  struct quire_think_text parts = {.reasoning = reasoning, .content = content};
  if (end) {
    quire_think_split_end(split, &parts);
  } else {
    quire_think_split_push(split, text, bytes, &parts);
  }
  QUIRE_ASSERT(parts.reasoning_bytes + parts.content_bytes <= bytes + QUIRE_THINK_HELD_MAX);
  add(&told->reasoning, reasoning, parts.reasoning_bytes);
  add(&told->content, content, parts.content_bytes);
}

/* Any bytes, cut anywhere. */
static void fuzz_parts(struct fuzz *f) {
  static struct told told, wanted;
  static struct text text;
  char certain[TEXT_MAX + QUIRE_STOP_BYTES_MAX];
  struct quire_stop_match *match = NULL;
  struct quire_think_split split = quire_think_split_begin(f->config.thinking);
  memset(&told, 0, sizeof told);
  memset(&wanted, 0, sizeof wanted);
  told.stop = QUIRE_STOP_NONE;
  f->config.keep_stop = false;
  QUIRE_ASSERT(quire_stop_match_create(quire_env_default(), f->stops, f->config.stop_count, &match, NULL) == QUIRE_OK);
  for (size_t at = 0, cut; at < f->bytes && told.stop == QUIRE_STOP_NONE; at += cut) {
    cut = below(f, 40);
    cut = cut < f->bytes - at ? cut : f->bytes - at;
    const size_t room = quire_stop_match_push_bytes_max(match, cut);
    const size_t bytes = quire_stop_match_push(match, f->text + at, cut, certain, &told.stop);
    QUIRE_ASSERT(bytes <= room);
    split_push(&split, certain, bytes, false, &told);
  }
  if (told.stop == QUIRE_STOP_NONE) {
    split_push(&split, certain, quire_stop_match_end(match, certain), false, &told);
  }
  split_push(&split, NULL, 0, true, &told);
  quire_stop_match_destroy(match);
  text.bytes = 0;
  add(&text, f->text, f->bytes);
  wanted.stop = cut_at_stop(f, &text);
  split_at_marker(f, &text, &wanted);
  same(&told, &wanted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 3) {
    return 0;
  }
  struct fuzz f = {.text = (const char *)data + 3, .bytes = size - 3, .seed = data[1], .utf8_stops = true};
  f.config = (struct quire_answer_config){.tokenizer = known_tokenizer(data[1] % KNOWN_TOKENIZERS),
                                          .stops = f.stops,
                                          .split = data[0] & 1,
                                          .thinking = data[0] & 2,
                                          .show_special = data[0] & 4,
                                          .keep_stop = data[0] & 8};
  bool good = true;
  while (f.config.stop_count < data[2] % (STOPS_MAX + 1u) && f.bytes > 0) {
    const char *end = memchr(f.text, '\0', f.bytes);
    const size_t bytes = end ? (size_t)(end - f.text) : f.bytes;
    f.stops[f.config.stop_count++] = (struct quire_stop_text){f.text, bytes};
    f.utf8_stops = f.utf8_stops && is_utf8(f.text, bytes);
    good = good && bytes > 0 && bytes <= QUIRE_STOP_BYTES_MAX;
    f.text += bytes + (end != NULL);
    f.bytes -= bytes + (end != NULL);
  }
  f.bytes = f.bytes < TEXT_MAX ? f.bytes : TEXT_MAX;
  if (good) {
    fuzz_tokens(&f);
    fuzz_parts(&f);
  } else {
    struct quire_answer *none = NULL;
    QUIRE_ASSERT(quire_answer_create(quire_env_default(), &f.config, &none, NULL) == QUIRE_ERR_REQUEST && !none);
  }
  return 0;
}
