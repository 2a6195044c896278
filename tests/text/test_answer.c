/* Streaming text: stop strings and reasoning against slow versions that see the whole text at once, under every kind of
 * cut; and whole answers from random tokens that spell the same text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/env.h"
#include "base/rng.h"
#include "support/fail_env.h"
#include "support/seed.h"
#include "text/answer.h"
#include "text/think_split.h"

#define TEXT_MAX 1024

static uint64_t rng;

static size_t below(size_t bound) { return (size_t)quire_splitmix64_below(&rng, bound); }

/* ---- the slow versions ---- */

/* Returns where text is cut by its first complete stop; *stop_out is which. */
static size_t slow_stop(const char *text, size_t bytes, const struct quire_stop_text *stops, size_t count,
                        int32_t *stop_out) {
  *stop_out = QUIRE_STOP_NONE;
  for (size_t end = 1; end <= bytes; end++) {
    size_t longest = 0;
    for (size_t i = 0; i < count; i++) {
      if (stops[i].bytes <= end && stops[i].bytes > longest &&
          memcmp(text + end - stops[i].bytes, stops[i].text, stops[i].bytes) == 0) {
        longest = stops[i].bytes;
        *stop_out = (int32_t)i;
      }
    }
    if (longest > 0) {
      return end - longest;
    }
  }
  return bytes;
}

struct parts {
  char reasoning[TEXT_MAX + 64];
  size_t reasoning_bytes;
  char content[TEXT_MAX + 64];
  size_t content_bytes;
};

static void slow_split(const char *text, size_t bytes, bool inside, struct parts *parts) {
  memset(parts, 0, sizeof *parts);
  if (bytes >= 7 && memcmp(text, "<think>", 7) == 0) {
    text += 7;
    bytes -= 7;
    inside = true;
  }
  size_t close = inside ? 0 : bytes + 1;
  while (close + 8 <= bytes && memcmp(text + close, "</think>", 8) != 0) {
    close++;
  }
  if (inside) {
    const bool closed = close + 8 <= bytes;
    parts->reasoning_bytes = closed ? close : bytes;
    memcpy(parts->reasoning, text, parts->reasoning_bytes);
    text += parts->reasoning_bytes + (closed ? 8 : 0);
    bytes -= parts->reasoning_bytes + (closed ? 8 : 0);
  }
  memcpy(parts->content, text, bytes);
  parts->content_bytes = bytes;
}

static void check_parts(const struct parts *found, const struct parts *wanted, const char *text) {
  if (found->reasoning_bytes != wanted->reasoning_bytes || found->content_bytes != wanted->content_bytes ||
      memcmp(found->reasoning, wanted->reasoning, wanted->reasoning_bytes) != 0 ||
      memcmp(found->content, wanted->content, wanted->content_bytes) != 0) {
    fail_msg("%s\ngave reasoning \"%.*s\" content \"%.*s\"\nnot \"%.*s\" and \"%.*s\"", text,
             (int)found->reasoning_bytes, found->reasoning, (int)found->content_bytes, found->content,
             (int)wanted->reasoning_bytes, wanted->reasoning, (int)wanted->content_bytes, wanted->content);
  }
}

/* ---- stop strings ---- */

static struct quire_stop_match *match_of(const struct quire_stop_text *stops, size_t count) {
  struct quire_stop_match *match = NULL;
  assert_int_equal(quire_stop_match_create(quire_env_default(), stops, count, &match, NULL), QUIRE_OK);
  return match;
}

/* Pushes text in random cuts; returns the bytes passed on. */
static size_t run_stops(struct quire_stop_match *match, const char *text, size_t bytes, char *out, int32_t *stop_out) {
  const size_t piece_max = 1 + below(10);
  size_t used = 0, at = 0;
  *stop_out = QUIRE_STOP_NONE;
  while (at < bytes && *stop_out == QUIRE_STOP_NONE) {
    size_t piece = below(piece_max + 1);
    piece = piece < bytes - at ? piece : bytes - at;
    assert_true(used + quire_stop_match_push_bytes_max(match, piece) <= 2 * TEXT_MAX);
    used += quire_stop_match_push(match, text + at, piece, out + used, stop_out);
    at += piece;
  }
  if (*stop_out == QUIRE_STOP_NONE) {
    used += quire_stop_match_end(match, out + used);
  }
  return used;
}

static void test_stop_cuts(void **state) {
  (void)state;
  static char text[TEXT_MAX], out[2 * TEXT_MAX], words[8][40];
  int ended = 0;
  for (int round = 0; round < 20000; round++) {
    struct quire_stop_text stops[8];
    const size_t count = below(5), bytes = below(200);
    const size_t letters = 2 + below(3); /* few letters: borders everywhere */
    for (size_t i = 0; i < count; i++) {
      stops[i] = (struct quire_stop_text){words[i], 1 + below(8)};
      for (size_t j = 0; j < stops[i].bytes; j++) {
        words[i][j] = (char)('a' + below(letters));
      }
    }
    for (size_t j = 0; j < bytes; j++) {
      text[j] = (char)('a' + below(letters));
    }
    int32_t wanted_stop, stop;
    const size_t wanted = slow_stop(text, bytes, stops, count, &wanted_stop);
    struct quire_stop_match *match = match_of(stops, count);
    const size_t used = run_stops(match, text, bytes, out, &stop);
    quire_stop_match_destroy(match);
    assert_int_equal(used, wanted);
    assert_memory_equal(out, text, wanted);
    if (wanted_stop >= 0) { /* equal stops have the same text, whichever is named */
      assert_true(stop >= 0 && stops[stop].bytes == stops[wanted_stop].bytes);
      assert_memory_equal(stops[stop].text, stops[wanted_stop].text, stops[stop].bytes);
      ended++;
    } else {
      assert_int_equal(stop, QUIRE_STOP_NONE);
    }
  }
  assert_true(ended > 2000);
}

/* Nothing is held back longer than it must be. */
static void test_stop_holds_little(void **state) {
  (void)state;
  const struct quire_stop_text stops[] = {{"\nUser:", 6}, {"END", 3}};
  struct quire_stop_match *match = match_of(stops, 2);
  char out[64];
  int32_t stop;
  assert_int_equal(quire_stop_match_push(match, "Yes.\nUs", 7, out, &stop), 4);
  assert_int_equal(quire_stop_match_push(match, "e", 1, out, &stop), 0);
  assert_int_equal(quire_stop_match_push(match, "d", 1, out, &stop), 5);
  assert_memory_equal(out, "\nUsed", 5);
  assert_int_equal(quire_stop_match_push(match, "EN", 2, out, &stop), 0);
  assert_int_equal(quire_stop_match_push(match, "END more", 8, out, &stop), 2);
  assert_memory_equal(out, "EN", 2);
  assert_int_equal(stop, 1);
  quire_stop_match_destroy(match);
}

static void test_stop_bounds(void **state) {
  (void)state;
  static char long_text[QUIRE_STOP_BYTES_MAX + 1];
  struct quire_stop_text many[QUIRE_STOPS_MAX + 1];
  struct quire_stop_match *match = NULL;
  struct quire_error error;
  memset(long_text, 'x', sizeof long_text);
  for (size_t i = 0; i <= QUIRE_STOPS_MAX; i++) {
    many[i] = (struct quire_stop_text){long_text, QUIRE_STOP_BYTES_MAX};
  }
  assert_int_equal(quire_stop_match_create(quire_env_default(), many, QUIRE_STOPS_MAX + 1, &match, &error),
                   QUIRE_ERR_REQUEST);
  assert_int_equal(quire_stop_match_create(quire_env_default(), many, QUIRE_STOPS_MAX, &match, &error), QUIRE_OK);
  quire_stop_match_destroy(match);
  match = NULL;
  many[1].bytes = QUIRE_STOP_BYTES_MAX + 1;
  assert_int_equal(quire_stop_match_create(quire_env_default(), many, 2, &match, &error), QUIRE_ERR_REQUEST);
  many[1].bytes = 0;
  assert_int_equal(quire_stop_match_create(quire_env_default(), many, 2, &match, &error), QUIRE_ERR_REQUEST);
  assert_non_null(strstr(error.text, "string 1"));
  assert_null(match);
}

/* ---- reasoning ---- */

static void run_split(const char *text, size_t bytes, bool inside, size_t piece_max, struct parts *parts) {
  struct quire_think_split split = quire_think_split_begin(inside);
  memset(parts, 0, sizeof *parts);
  for (size_t at = 0; at <= bytes;) {
    size_t piece = below(piece_max + 1);
    piece = piece < bytes - at ? piece : bytes - at;
    const bool last = at == bytes;
    struct quire_think_text out = {.reasoning = parts->reasoning + parts->reasoning_bytes,
                                   .content = parts->content + parts->content_bytes};
    if (last) {
      quire_think_split_end(&split, &out);
    } else {
      quire_think_split_push(&split, text + at, piece, &out);
      assert_true(out.reasoning_bytes + out.content_bytes <= piece + QUIRE_THINK_HELD_MAX);
    }
    parts->reasoning_bytes += out.reasoning_bytes;
    parts->content_bytes += out.content_bytes;
    at += last ? 1 : piece;
  }
}

static void test_split_known(void **state) {
  (void)state;
  static const struct {
    const char *text;
    bool inside;
    const char *reasoning, *content;
  } cases[] = {
      {"why</think>because", true, "why", "because"},
      {"<think>why</think>because", true, "why", "because"},
      {"<think>why</think>because", false, "why", "because"},
      {"because", false, "", "because"},
      {"x<think>y</think>z", false, "", "x<think>y</think>z"},
      {"\n<think>y", false, "", "\n<think>y"},
      {"never closed </thin", true, "never closed </thin", ""},
      {"</think></think>", true, "", "</think>"},
      {"<</th</think><think>", true, "<</th", "<think>"},
      {"<think>a<think>b</think>", false, "a<think>b", ""},
      {"<thin", false, "", "<thin"},
      {"<thin", true, "<thin", ""},
      {"<", true, "<", ""},
      {"</think>x", true, "", "x"},
      {"", true, "", ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (size_t piece = 1; piece < 30; piece++) {
      static struct parts found, wanted;
      memset(&wanted, 0, sizeof wanted);
      wanted.reasoning_bytes = strlen(cases[i].reasoning);
      wanted.content_bytes = strlen(cases[i].content);
      memcpy(wanted.reasoning, cases[i].reasoning, wanted.reasoning_bytes);
      memcpy(wanted.content, cases[i].content, wanted.content_bytes);
      run_split(cases[i].text, strlen(cases[i].text), cases[i].inside, piece, &found);
      check_parts(&found, &wanted, cases[i].text);
      slow_split(cases[i].text, strlen(cases[i].text), cases[i].inside, &found);
      check_parts(&found, &wanted, cases[i].text);
    }
  }
}

static size_t random_text(char *text, size_t pieces) {
  static const char *const parts[] = {"<",   "</",      "think>",       "<think>", "</think>", "th", "ink", "a",
                                      " ok", "</thinx", "\xe6\xbc\xa2", "é",       "<<",       ">",  "\n",  "😀"};
  size_t bytes = 0;
  for (size_t i = below(pieces); i > 0; i--) {
    const char *part = parts[below(sizeof parts / sizeof *parts)];
    memcpy(text + bytes, part, strlen(part));
    bytes += strlen(part);
  }
  text[bytes] = '\0';
  return bytes;
}

static void test_split_cuts(void **state) {
  (void)state;
  static struct parts found, wanted;
  static char text[TEXT_MAX];
  for (int round = 0; round < 20000; round++) {
    const size_t bytes = random_text(text, 30);
    const bool inside = below(2);
    slow_split(text, bytes, inside, &wanted);
    run_split(text, bytes, inside, 1 + below(12), &found);
    check_parts(&found, &wanted, text);
  }
}

/* ---- whole answers ---- */

/* Any tokens of the vocabulary that spell the text, one after another. */
static size_t random_tokens(const struct quire_tokenizer *tokenizer, const char *text, size_t bytes, int32_t *tokens) {
  size_t count = 0;
  for (size_t at = 0; at < bytes;) {
    int32_t fits[64];
    size_t length = 0, found = 0;
    for (size_t take = 1; take <= 16 && at + take <= bytes; take++) {
      const int32_t id = quire_tokenizer_find(tokenizer, text + at, take);
      if (id != QUIRE_TOKEN_NONE) {
        fits[found++] = id;
      }
    }
    assert_true(found > 0);
    tokens[count] = fits[below(found)];
    quire_tokenizer_token(tokenizer, tokens[count++], &length);
    at += length;
  }
  return count;
}

static bool valid_utf8(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes;) {
    const uint8_t first = (uint8_t)text[i];
    const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (i + length > bytes || (first >= 0x80 && first < 0xc2)) {
      return false;
    }
    for (size_t j = 1; j < length; j++) {
      if (((uint8_t)text[i + j] & 0xc0) != 0x80) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

static void add_delta(struct parts *parts, const struct quire_answer_delta *delta) {
  assert_true(valid_utf8(delta->reasoning, delta->reasoning_bytes));
  assert_true(valid_utf8(delta->content, delta->content_bytes));
  assert_true(parts->content_bytes == 0 || delta->reasoning_bytes == 0);
  memcpy(parts->reasoning + parts->reasoning_bytes, delta->reasoning, delta->reasoning_bytes);
  memcpy(parts->content + parts->content_bytes, delta->content, delta->content_bytes);
  parts->reasoning_bytes += delta->reasoning_bytes;
  parts->content_bytes += delta->content_bytes;
}

static int32_t run_answer(const struct quire_answer_config *config, const int32_t *tokens, size_t count,
                          struct parts *parts) {
  struct quire_answer *answer = NULL;
  assert_int_equal(quire_answer_create(quire_env_default(), config, &answer, NULL), QUIRE_OK);
  memset(parts, 0, sizeof *parts);
  int32_t stop = QUIRE_STOP_NONE;
  for (size_t i = 0; i <= count && stop == QUIRE_STOP_NONE; i++) {
    struct quire_answer_delta delta = i < count ? quire_answer_push(answer, tokens[i]) : quire_answer_end(answer);
    add_delta(parts, &delta);
    stop = delta.stop;
  }
  quire_answer_destroy(answer);
  return stop;
}

static struct quire_tokenizer *open_mini(void) {
  struct quire_tokenizer *tokenizer = NULL;
  assert_int_equal(quire_tokenizer_open(quire_env_default(), QUIRE_SOURCE_DIR "/models/quire-mini", &tokenizer, NULL),
                   QUIRE_OK);
  return tokenizer;
}

static void test_any_tokens(void **state) {
  (void)state;
  static char text[TEXT_MAX];
  static int32_t tokens[TEXT_MAX];
  static struct parts found, wanted;
  static const struct quire_stop_text stops[] = {{"ok</th", 7}, {"a\n", 2}, {"漢é", 5}, {"thth", 4}};
  struct quire_tokenizer *tokenizer = open_mini();
  int ended = 0;
  for (int round = 0; round < 3000; round++) {
    const size_t bytes = random_text(text, 24);
    const struct quire_answer_config config = {.tokenizer = tokenizer,
                                               .stops = stops,
                                               .stop_count = below(5),
                                               .split = below(4) > 0,
                                               .thinking = below(2),
                                               .show_special = true,
                                               .keep_stop = below(2)};
    int32_t wanted_stop;
    size_t cut = slow_stop(text, bytes, stops, config.stop_count, &wanted_stop);
    cut += wanted_stop >= 0 && config.keep_stop ? stops[wanted_stop].bytes : 0;
    if (config.split) {
      slow_split(text, cut, config.thinking, &wanted);
    } else {
      memset(&wanted, 0, sizeof wanted);
      memcpy(wanted.content, text, cut);
      wanted.content_bytes = cut;
    }
    for (int again = 0; again < 3; again++) {
      const size_t count = random_tokens(tokenizer, text, bytes, tokens);
      assert_int_equal(run_answer(&config, tokens, count, &found), wanted_stop);
      check_parts(&found, &wanted, text);
    }
    ended += wanted_stop >= 0;
  }
  assert_true(ended > 100);
  quire_tokenizer_close(tokenizer);
}

/* quire-mini's markers are special tokens: split they are seen, otherwise they are skipped like every special token. */
static void test_special_markers(void **state) {
  (void)state;
  static struct parts parts;
  struct quire_tokenizer *tokenizer = open_mini();
  int32_t tokens[16];
  size_t count = 0;
  const char text[] = "<think>why</think>so<｜User｜>";
  struct quire_encode encode = {text, sizeof text - 1, 0, tokens, 16};
  assert_int_equal(quire_tokenizer_encode(tokenizer, encode, &count, NULL), QUIRE_OK);
  struct quire_answer_config config = {.tokenizer = tokenizer, .split = true};
  run_answer(&config, tokens, count, &parts);
  assert_string_equal(parts.reasoning, "why");
  assert_string_equal(parts.content, "so");
  config.split = false;
  run_answer(&config, tokens, count, &parts);
  assert_string_equal(parts.content, "whyso");
  config.show_special = true;
  run_answer(&config, tokens, count, &parts);
  assert_string_equal(parts.content, text);
  quire_tokenizer_close(tokenizer);
}

/* Half a character at the end, and one that breaks off in the middle. */
static void test_broken_characters(void **state) {
  (void)state;
  static struct parts parts;
  struct quire_tokenizer *tokenizer = open_mini();
  const char bytes[] = "\xe6\xbc!\xf0\x9f\x98";
  int32_t tokens[8];
  for (size_t i = 0; i < 6; i++) {
    tokens[i] = quire_tokenizer_find(tokenizer, bytes + i, 1);
    assert_true(tokens[i] >= 0);
  }
  struct quire_answer_config config = {.tokenizer = tokenizer};
  run_answer(&config, tokens, 6, &parts);
  assert_string_equal(parts.content, "\xef\xbf\xbd!\xef\xbf\xbd");
  quire_tokenizer_close(tokenizer);
}

static enum quire_status life(void *tokenizer, const struct quire_env *env) {
  const struct quire_stop_text stops[] = {{"ab", 2}, {"c", 1}};
  struct quire_answer_config config = {
      .tokenizer = tokenizer, .stops = stops, .stop_count = 2, .split = true, .keep_stop = true};
  struct quire_answer *answer = NULL;
  const enum quire_status status = quire_answer_create(env, &config, &answer, NULL);
  if (!status) {
    quire_answer_push(answer, quire_tokenizer_find(tokenizer, "x", 1));
    quire_answer_end(answer);
    quire_answer_destroy(answer);
  }
  return status;
}

static void test_no_memory(void **state) {
  (void)state;
  struct quire_tokenizer *tokenizer = open_mini();
  assert_int_equal(fail_env_sweep(life, tokenizer), 4); /* and push and end allocate nothing */
  quire_tokenizer_close(tokenizer);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stop_cuts),       cmocka_unit_test(test_stop_holds_little),
      cmocka_unit_test(test_stop_bounds),     cmocka_unit_test(test_split_known),
      cmocka_unit_test(test_split_cuts),      cmocka_unit_test(test_any_tokens),
      cmocka_unit_test(test_special_markers), cmocka_unit_test(test_broken_characters),
      cmocka_unit_test(test_no_memory),
  };
  rng = test_seed("test_answer");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
