/* The tokenizer against ids made by Hugging Face's library (data/make_vectors.py), against a slow merge oracle, and
 * against files that are wrong in one place each. A seed may be given as the first argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/env.h"
#include "support/fail_env.h"
#include "support/tiny_model.h"
#include "text/tokenizer.h"

#define DATA QUIRE_SOURCE_DIR "/tests/text/data/"
#define TEXT_MAX 4096

static uint64_t seed = 20240317;

static uint64_t random_bits(uint64_t *state) {
  uint64_t x = (*state += 0x9e3779b97f4a7c15u);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static json_t *load_data(const char *name, const char *suffix) {
  char path[512];
  json_error_t error;
  snprintf(path, sizeof path, DATA "%s.%s.json", name, suffix);
  json_t *root = json_load_file(path, JSON_ALLOW_NUL, &error);
  if (!root) {
    fail_msg("%s: %s", path, error.text);
  }
  return root;
}

static enum quire_status parse(const struct quire_env *env, const json_t *root, const char *config,
                               struct quire_tokenizer **tokenizer_out, struct quire_error *error) {
  char *text = json_dumps(root, JSON_COMPACT);
  assert_non_null(text);
  struct quire_tokenizer_files files = {text, strlen(text), config, config ? strlen(config) : 0};
  enum quire_status status = quire_tokenizer_parse(env, files, tokenizer_out, error);
  free(text);
  return status;
}

static struct quire_tokenizer *open_data(const char *name, const char *config) {
  json_t *root = load_data(name, "tokenizer");
  struct quire_tokenizer *tokenizer = NULL;
  struct quire_error error = {0};
  if (parse(quire_env_default(), root, config, &tokenizer, &error)) {
    fail_msg("%s: %s: %s", name, error.where, error.text);
  }
  json_decref(root);
  return tokenizer;
}

static size_t encode(const struct quire_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags,
                     int32_t *tokens, size_t capacity) {
  struct quire_error error = {0};
  size_t count = 0;
  struct quire_encode args = {text, bytes, flags, tokens, capacity};
  if (quire_tokenizer_encode(tokenizer, args, &count, &error)) {
    fail_msg("encode: %s: %s", error.where, error.text);
  }
  return count;
}

static void check_ids(const struct quire_tokenizer *tokenizer, const json_t *vector, const char *key, uint32_t flags) {
  static int32_t tokens[TEXT_MAX];
  const json_t *text = json_object_get(vector, "text"), *ids = json_object_get(vector, key);
  size_t count = encode(tokenizer, json_string_value(text), json_string_length(text), flags, tokens, TEXT_MAX);
  bool equal = count == json_array_size(ids);
  for (size_t i = 0; equal && i < count; i++) {
    equal = tokens[i] == json_integer_value(json_array_get(ids, i));
  }
  if (!equal) {
    for (size_t i = 0; i < count; i++) {
      print_error("%d ", tokens[i]);
    }
    char *wanted = json_dumps(vector, JSON_COMPACT);
    fail_msg("is not %s of %s", key, wanted);
  }
  if (!flags) { /* and back to the same bytes */
    static char back[TEXT_MAX];
    size_t bytes = quire_tokenizer_decode(tokenizer, tokens, count, 0, back, sizeof back);
    assert_int_equal(bytes, json_string_length(text));
    assert_memory_equal(back, json_string_value(text), bytes);
  }
}

static void test_vectors(void **state) {
  (void)state;
  static const char *const names[] = {"deepseek", "glm", "plain"};
  for (size_t n = 0; n < 3; n++) {
    struct quire_tokenizer *tokenizer = open_data(names[n], NULL);
    json_t *vectors = load_data(names[n], "vectors");
    assert_true(json_array_size(vectors) > 150);
    for (size_t i = 0; i < json_array_size(vectors); i++) {
      check_ids(tokenizer, json_array_get(vectors, i), "ids", 0);
      check_ids(tokenizer, json_array_get(vectors, i), "added", QUIRE_ENCODE_ADD_SPECIAL);
    }
    json_decref(vectors);
    quire_tokenizer_close(tokenizer);
  }
}

/* All texts in one, an added token after each: long enough for the table of words, whose outcome must be the same. */
static void test_long_text(void **state) {
  (void)state;
  struct quire_tokenizer *tokenizer = open_data("deepseek", NULL);
  json_t *vectors = load_data("deepseek", "vectors");
  char *text = malloc(1 << 20);
  int32_t *wanted = malloc(1 << 22), *found = malloc(1 << 22);
  assert_true(text && wanted && found);
  size_t bytes = 0, count = 0;
  for (int round = 0; round < 3; round++) {
    for (size_t i = 0; i < json_array_size(vectors); i++) {
      const json_t *vector = json_array_get(vectors, i), *ids = json_object_get(vector, "ids");
      const json_t *part = json_object_get(vector, "text");
      memcpy(text + bytes, json_string_value(part), json_string_length(part));
      bytes += json_string_length(part);
      memcpy(text + bytes, "<|end|>", 7);
      bytes += 7;
      for (size_t j = 0; j < json_array_size(ids); j++) {
        wanted[count++] = (int32_t)json_integer_value(json_array_get(ids, j));
      }
      wanted[count++] = 1;
    }
  }
  assert_true(bytes > 16384);
  assert_int_equal(encode(tokenizer, text, bytes, 0, found, 1 << 20), count);
  assert_memory_equal(found, wanted, count * sizeof *found);
  free(found);
  free(wanted);
  free(text);
  json_decref(vectors);
  quire_tokenizer_close(tokenizer);
}

/* ---- merges ---- */

/* The obvious way: find the best pair, join it, again; texts are compared as they are spelled. Letters only. */
static size_t slow_merge(const json_t *ranks, const json_t *vocab, const char *text, int32_t *tokens) {
  int start[257]; /* symbol i is the text from start[i] to start[i + 1] */
  size_t count = strlen(text);
  char pair[600];
  assert_true(count < 256);
  for (size_t i = 0; i <= count; i++) {
    start[i] = (int)i;
  }
  for (;;) {
    json_int_t best = INT64_MAX;
    size_t at = 0;
    for (size_t i = 0; i + 1 < count; i++) {
      snprintf(pair, sizeof pair, "%.*s %.*s", start[i + 1] - start[i], text + start[i], start[i + 2] - start[i + 1],
               text + start[i + 1]);
      const json_t *rank = json_object_get(ranks, pair);
      if (rank && json_integer_value(rank) < best) {
        best = json_integer_value(rank);
        at = i;
      }
    }
    if (best == INT64_MAX) {
      break;
    }
    memmove(start + at + 1, start + at + 2, (count - at - 1) * sizeof *start);
    count--;
  }
  for (size_t i = 0; i < count; i++) {
    snprintf(pair, sizeof pair, "%.*s", start[i + 1] - start[i], text + start[i]);
    tokens[i] = (int32_t)json_integer_value(json_object_get(vocab, pair));
  }
  return count;
}

static void test_merges_match_oracle(void **state) {
  (void)state;
  json_t *root = load_data("deepseek", "tokenizer"), *ranks = json_object();
  const json_t *model = json_object_get(root, "model");
  const json_t *merges = json_object_get(model, "merges"), *vocab = json_object_get(model, "vocab");
  for (size_t i = 0; i < json_array_size(merges); i++) {
    json_object_set_new(ranks, json_string_value(json_array_get(merges, i)), json_integer((json_int_t)i));
  }
  struct quire_tokenizer *tokenizer = open_data("deepseek", NULL);
  static const char letters[] = "eeeetttaaooiinnsshhrrdlu";
  uint64_t random = seed;
  for (int round = 0; round < 300; round++) {
    char text[256];
    int32_t wanted[256], found[256];
    size_t bytes = 1 + random_bits(&random) % (round % 3 ? 100 : 250); /* around the border of short and long */
    for (size_t i = 0; i < bytes; i++) {
      text[i] = letters[random_bits(&random) % (sizeof letters - 1)];
    }
    text[bytes] = '\0';
    size_t count = slow_merge(ranks, vocab, text, wanted);
    assert_int_equal(encode(tokenizer, text, bytes, 0, found, 256), count);
    assert_memory_equal(found, wanted, count * sizeof *found);
  }
  quire_tokenizer_close(tokenizer);
  json_decref(ranks);
  json_decref(root);
}

/* ---- bytes ---- */

/* Random text that is mostly not UTF-8: pieces of characters, lone continuation bytes, overlong forms. */
static size_t random_bytes(uint64_t *random, char *out, size_t max) {
  static const char *const parts[] = {"a",           "The",          " \n",          "\xff",     "\xc3",
                                      "\xc3\xa9",    "\xe9\x9b",     "\xe9\x9b\xaa", "\x80",     "\xf0\x9f\x98\x80",
                                      "\xf0\x9f",    "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80",
                                      "\xe0\x80",    "12",           "<|end|>",      "<|",       "\xf5",
                                      "\xe2\x96\x81"};
  size_t bytes = 0, count = random_bits(random) % 40;
  for (size_t i = 0; i < count; i++) {
    char byte = (char)random_bits(random);
    const char *part = parts[random_bits(random) % (sizeof parts / sizeof *parts)];
    size_t length = strlen(part);
    if (random_bits(random) % 4 == 0) {
      part = &byte;
      length = 1;
    }
    if (bytes + length <= max) {
      memcpy(out + bytes, part, length);
      bytes += length;
    }
  }
  return bytes;
}

/* Characters by the definition: the length of one at p, or 0; slow and separate from the library's. */
static size_t character(const uint8_t *p, size_t left) {
  uint32_t value = p[0];
  size_t length = value < 0x80 ? 1 : value >> 5 == 6 ? 2 : value >> 4 == 14 ? 3 : value >> 3 == 30 ? 4 : 0;
  if (length == 0 || length > left) {
    return 0;
  }
  value = length == 1 ? value : value & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if (p[i] >> 6 != 2) {
      return 0;
    }
    value = value << 6 | (p[i] & 0x3f);
  }
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  bool valid = value >= least[length] && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
  return valid ? length : 0;
}

/* Beginnings of characters, a bit each, by their length less one: those of every character there is. */
static uint64_t begun[3][1 << 18];

static uint32_t joined(const uint8_t *p, size_t count) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; i++) {
    value = value << 8 | p[i];
  }
  return value;
}

static void note_beginnings(void) {
  for (uint32_t value = 0x80; value <= 0x10ffff; value++) {
    size_t length = value < 0x800 ? 2 : value < 0x10000 ? 3 : 4;
    uint8_t whole[4];
    for (size_t i = 0; i < length; i++) {
      whole[i] = (uint8_t)(0x80 | (value >> 6 * (length - 1 - i) & 0x3f));
    }
    whole[0] = (uint8_t)((0xf00 >> length & 0xff) | value >> 6 * (length - 1));
    for (size_t count = 1; count < length && character(whole, length) == length; count++) {
      uint32_t key = joined(whole, count);
      begun[count - 1][key / 64] |= (uint64_t)1 << key % 64;
    }
  }
}

/* True if some continuation makes a character of the first count bytes. */
static bool begins_character(const uint8_t *p, size_t count) {
  uint32_t key = joined(p, count);
  return begun[count - 1][key / 64] >> key % 64 & 1;
}

static size_t slow_replace(const uint8_t *text, size_t bytes, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < bytes;) {
    size_t length = character(text + i, bytes - i);
    if (length == 0) {
      memcpy(out + count, "\xef\xbf\xbd", 3);
      count += 3;
      size_t part = 1;
      while (part < 3 && i + part < bytes && begins_character(text + i, part + 1)) {
        part++;
      }
      i += begins_character(text + i, 1) ? part : 1;
      continue;
    }
    memcpy(out + count, text + i, length);
    count += length;
    i += length;
  }
  return count;
}

static size_t stream_all(const struct quire_tokenizer *tokenizer, const int32_t *tokens, size_t count, uint32_t flags,
                         char *out) {
  struct quire_text_stream stream = quire_text_stream_begin(flags);
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    size_t before = bytes;
    bytes += quire_text_stream_push(tokenizer, &stream, tokens[i], out + bytes);
    if (flags & QUIRE_DECODE_REPLACE) { /* what is out is whole characters at any time */
      for (size_t at = before; at < bytes;) {
        size_t length = character((const uint8_t *)out + at, bytes - at);
        assert_true(length > 0);
        at += length;
      }
    }
  }
  return bytes + quire_text_stream_end(&stream, out + bytes);
}

static void test_any_bytes_come_back(void **state) {
  (void)state;
  static const char *const names[] = {"deepseek", "glm", "plain"};
  static char back[65536], streamed[65536], wanted[65536];
  uint64_t random = seed;
  note_beginnings();
  for (size_t n = 0; n < 3; n++) {
    struct quire_tokenizer *tokenizer = open_data(names[n], NULL);
    for (int round = 0; round < 400; round++) {
      char text[512];
      int32_t tokens[600];
      size_t bytes = random_bytes(&random, text, sizeof text);
      uint32_t flags = round % 2 ? QUIRE_ENCODE_LITERAL : 0;
      size_t count = encode(tokenizer, text, bytes, flags, tokens, 600);
      assert_true(count <= bytes);
      assert_int_equal(quire_tokenizer_decode(tokenizer, tokens, count, 0, back, sizeof back), bytes);
      assert_memory_equal(back, text, bytes);
      assert_int_equal(stream_all(tokenizer, tokens, count, 0, streamed), bytes);
      assert_memory_equal(streamed, text, bytes);
      size_t length = slow_replace((const uint8_t *)text, bytes, wanted);
      assert_int_equal(quire_tokenizer_decode(tokenizer, tokens, count, QUIRE_DECODE_REPLACE, back, sizeof back),
                       length);
      assert_memory_equal(back, wanted, length);
      assert_int_equal(stream_all(tokenizer, tokens, count, QUIRE_DECODE_REPLACE, streamed), length);
      assert_memory_equal(streamed, wanted, length);
    }
    quire_tokenizer_close(tokenizer);
  }
}

static void test_stream_holds_back(void **state) {
  (void)state;
  struct quire_tokenizer *tokenizer = open_data("plain", NULL);
  struct quire_text_stream stream = quire_text_stream_begin(0);
  static const char smile[] = "\xf0\x9f\x98\x80";
  char out[256];
  assert_true(quire_tokenizer_push_bytes_max(tokenizer) <= sizeof out);
  for (int i = 0; i < 4; i++) {
    int32_t token = quire_tokenizer_find(tokenizer, smile + i, 1);
    assert_int_equal(quire_text_stream_push(tokenizer, &stream, token, out), i < 3 ? 0 : 4);
  }
  assert_memory_equal(out, smile, 4);
  assert_int_equal(quire_text_stream_push(tokenizer, &stream, 1000000, out), 0); /* ids of padding have no text */
  assert_int_equal(quire_text_stream_push(tokenizer, &stream, -1, out), 0);
  assert_int_equal(quire_text_stream_push(tokenizer, &stream, quire_tokenizer_find(tokenizer, smile, 1), out), 0);
  assert_int_equal(quire_text_stream_end(&stream, out), 1);
  assert_int_equal(quire_text_stream_end(&stream, out), 0);
  quire_tokenizer_close(tokenizer);
}

/* ---- special tokens ---- */

static void test_special_tokens(void **state) {
  (void)state;
  static const char config[] = "{\"bos_token\":\"<|begin|>\",\"eos_token\":{\"content\":\"<|end|>\",\"lstrip\":false},"
                               "\"pad_token\":\"<|pad|>\",\"add_bos_token\":true,\"add_eos_token\":false,\"x\":[1]}";
  struct quire_tokenizer *tokenizer = open_data("glm", config);
  struct quire_tokenizer_special special = quire_tokenizer_special(tokenizer);
  int32_t tokens[64];
  char text[64];
  size_t bytes;
  assert_int_equal(special.bos, 0);
  assert_int_equal(special.eos, 1);
  assert_int_equal(special.pad, quire_tokenizer_find(tokenizer, "<|pad|>", 7));
  assert_true(special.pad > 1);
  assert_true(quire_tokenizer_is_special(tokenizer, special.pad));
  int32_t user = quire_tokenizer_find(tokenizer, "<|User|>", 8);
  assert_true(user > 0 && !quire_tokenizer_is_special(tokenizer, user));
  assert_string_equal(quire_tokenizer_token(tokenizer, user, &bytes) ? "found" : "", "found");
  assert_int_equal(bytes, 8);
  assert_null(quire_tokenizer_token(tokenizer, quire_tokenizer_vocab(tokenizer), &bytes));
  assert_int_equal(quire_tokenizer_find(tokenizer, "no such token", 13), QUIRE_TOKEN_NONE);
  /* the config stands above the template, which would add the end as well */
  assert_int_equal(encode(tokenizer, "a", 1, QUIRE_ENCODE_ADD_SPECIAL, tokens, 64), 2);
  assert_int_equal(tokens[0], 0);
  /* what a user typed stays text */
  static const char typed[] = "<|end|><|User|>Hello";
  size_t count = encode(tokenizer, typed, strlen(typed), QUIRE_ENCODE_LITERAL, tokens, 64);
  for (size_t i = 0; i < count; i++) {
    assert_int_not_equal(tokens[i], 1);
    assert_int_not_equal(tokens[i], user);
  }
  assert_int_equal(encode(tokenizer, typed, strlen(typed), 0, tokens, 64), 3);
  assert_int_equal(quire_tokenizer_decode(tokenizer, tokens, 3, QUIRE_DECODE_SKIP_SPECIAL, text, sizeof text), 13);
  assert_memory_equal(text, "<|User|>Hello", 13);
  /* more than there is room for is counted */
  assert_int_equal(encode(tokenizer, typed, strlen(typed), 0, tokens, 1), 3);
  assert_int_equal(quire_tokenizer_decode(tokenizer, tokens, 1, 0, text, 3), 7);
  quire_tokenizer_close(tokenizer);
}

/* ---- refusals ---- */

struct refusal {
  const char *name;
  const char *path;  /* keys and indices, separated by slashes */
  const char *value; /* JSON; NULL: the key is removed */
  enum quire_status status;
  const char *says; /* in where or text */
};

static const struct refusal refusals[] = {
    {"unknown key", "surprise", "1", QUIRE_ERR_UNSUPPORTED, "surprise"},
    {"no model", "model", NULL, QUIRE_ERR_CORRUPT, "model"},
    {"truncation", "truncation", "{\"max_length\":4}", QUIRE_ERR_UNSUPPORTED, "truncation"},
    {"nfc", "normalizer", "{\"type\":\"NFC\"}", QUIRE_ERR_UNSUPPORTED, "NFC"},
    {"nfc in a sequence", "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
     QUIRE_ERR_UNSUPPORTED, "NFC"},
    {"no pre-tokenizer", "pre_tokenizer", "null", QUIRE_ERR_CORRUPT, "pre_tokenizer"},
    {"metaspace", "pre_tokenizer", "{\"type\":\"Metaspace\"}", QUIRE_ERR_UNSUPPORTED, "Metaspace"},
    {"not byte level", "pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", QUIRE_ERR_UNSUPPORTED,
     "ByteLevel"},
    {"merged behavior", "pre_tokenizer/pretokenizers/0/behavior", "\"MergedWithNext\"", QUIRE_ERR_UNSUPPORTED,
     "Isolated"},
    {"inverted split", "pre_tokenizer/pretokenizers/0/invert", "true", QUIRE_ERR_UNSUPPORTED, "invert"},
    {"bad pattern", "pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[a\"", QUIRE_ERR_UNSUPPORTED, "pattern"},
    {"intersection", "pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[a&&b]\"", QUIRE_ERR_UNSUPPORTED, "&&"},
    {"no pattern", "pre_tokenizer/pretokenizers/0/pattern", "{}", QUIRE_ERR_CORRUPT, "Regex"},
    {"prefix space", "pre_tokenizer/pretokenizers/3/add_prefix_space", "true", QUIRE_ERR_UNSUPPORTED, "prefix"},
    {"after byte level", "pre_tokenizer/pretokenizers/0", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}",
     QUIRE_ERR_UNSUPPORTED, "last"},
    {"decoder", "decoder", "{\"type\":\"Metaspace\"}", QUIRE_ERR_UNSUPPORTED, "decoder"},
    {"roberta", "post_processor", "{\"type\":\"RobertaProcessing\"}", QUIRE_ERR_UNSUPPORTED, "RobertaProcessing"},
    {"template id", "post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"a\"}}],\"special_tokens\":{\"a\":{"
     "\"ids\":[99999]}}}",
     QUIRE_ERR_CORRUPT, "vocabulary"},
    {"unigram", "model/type", "\"Unigram\"", QUIRE_ERR_UNSUPPORTED, "BPE"},
    {"byte fallback", "model/byte_fallback", "true", QUIRE_ERR_UNSUPPORTED, "byte_fallback"},
    {"dropout", "model/dropout", "0.1", QUIRE_ERR_UNSUPPORTED, "dropout"},
    {"prefix", "model/continuing_subword_prefix", "\"##\"", QUIRE_ERR_UNSUPPORTED, "continuing_subword_prefix"},
    {"unknown model key", "model/speed", "2", QUIRE_ERR_UNSUPPORTED, "speed"},
    {"negative id", "model/vocab/a", "-1", QUIRE_ERR_CORRUPT, "vocab"},
    {"huge id", "model/vocab/a", "99999999", QUIRE_ERR_CORRUPT, "vocab"},
    {"id of another", "model/vocab/a", "5", QUIRE_ERR_CORRUPT, "vocab"},
    {"text as id", "model/vocab/a", "\"5\"", QUIRE_ERR_CORRUPT, "vocab"},
    {"missing byte", "model/vocab/a", NULL, QUIRE_ERR_UNSUPPORTED, "0x61"},
    {"merge of one", "model/merges/0", "\"the\"", QUIRE_ERR_CORRUPT, "merges"},
    {"merge of three", "model/merges/0", "[\"t\",\"h\",\"e\"]", QUIRE_ERR_CORRUPT, "merges"},
    {"merge of numbers", "model/merges/0", "[1,2]", QUIRE_ERR_CORRUPT, "merges"},
    {"merge without union", "model/merges/0", "\"q z\"", QUIRE_ERR_CORRUPT, "q z"},
    {"merge not spelled", "model/merges/0", "\"t \\u0416\"", QUIRE_ERR_CORRUPT, "alphabet"},
    {"lstrip", "added_tokens/2/lstrip", "true", QUIRE_ERR_UNSUPPORTED, "lstrip"},
    {"single word", "added_tokens/2/single_word", "true", QUIRE_ERR_UNSUPPORTED, "single_word"},
    {"empty token", "added_tokens/2/content", "\"\"", QUIRE_ERR_CORRUPT, "added_tokens"},
    {"twice the text", "added_tokens/2/content", "\"<think>\"", QUIRE_ERR_CORRUPT, "added_tokens"},
    {"id of a word", "added_tokens/2/id", "40", QUIRE_ERR_CORRUPT, "added_tokens"},
    {"token without id", "added_tokens/2/id", NULL, QUIRE_ERR_CORRUPT, "id"},
    {"token is no object", "added_tokens/2", "3", QUIRE_ERR_CORRUPT, "added_tokens"},
};

/* Sets or removes one place of a tree. */
static void change(json_t *root, const char *path, const char *value) {
  json_error_t error;
  json_t *new = value ? json_loads(value, JSON_DECODE_ANY, &error) : NULL;
  for (;;) {
    char key[128];
    const char *slash = strchr(path, '/');
    snprintf(key, sizeof key, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
    if (!slash) {
      if (json_is_array(root)) {
        assert_int_equal(json_array_set_new(root, (size_t)atoi(key), new), 0);
      } else if (value) {
        assert_int_equal(json_object_set_new(root, key, new), 0);
      } else {
        assert_int_equal(json_object_del(root, key), 0);
      }
      return;
    }
    root = json_is_array(root) ? json_array_get(root, (size_t)atoi(key)) : json_object_get(root, key);
    assert_non_null(root);
    path = slash + 1;
  }
}

static void check_error(const char *name, enum quire_status status, const struct quire_error *error,
                        enum quire_status wanted, const char *says) {
  if (status != wanted || error->status != wanted || (!strstr(error->text, says) && !strstr(error->where, says))) {
    fail_msg("%s: status %d, %s: %s", name, status, error->where, error->text);
  }
  assert_null(strchr(error->text, '\n'));
}

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    struct fail_env env;
    struct quire_error error = {0};
    struct quire_tokenizer *tokenizer = NULL;
    json_t *root = load_data("deepseek", "tokenizer");
    change(root, refusals[i].path, refusals[i].value);
    fail_env_init(&env);
    enum quire_status status = parse(&env.env, root, NULL, &tokenizer, &error);
    check_error(refusals[i].name, status, &error, refusals[i].status, refusals[i].says);
    assert_null(tokenizer);
    fail_env_fini(&env);
    json_decref(root);
  }
}

static void test_refused_configs(void **state) {
  (void)state;
  static const struct {
    const char *config;
    enum quire_status status;
    const char *says;
  } cases[] = {
      {"{\"bos_token\":\"<nothing>\"}", QUIRE_ERR_CORRUPT, "bos_token"},
      {"{\"bos_token\":7}", QUIRE_ERR_CORRUPT, "bos_token"},
      {"{\"add_bos_token\":true}", QUIRE_ERR_CORRUPT, "add_bos_token"},
      {"{\"add_bos_token\":3}", QUIRE_ERR_CORRUPT, "add_bos_token"},
      {"{\"add_prefix_space\":true}", QUIRE_ERR_UNSUPPORTED, "add_prefix_space"},
      {"{\"a\":1,\"a\":2}", QUIRE_ERR_CORRUPT, "tokenizer_config.json"},
      {"[]", QUIRE_ERR_CORRUPT, "tokenizer_config.json"},
  };
  json_t *root = load_data("deepseek", "tokenizer");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct quire_error error = {0};
    struct quire_tokenizer *tokenizer = NULL;
    enum quire_status status = parse(quire_env_default(), root, cases[i].config, &tokenizer, &error);
    check_error(cases[i].config, status, &error, cases[i].status, cases[i].says);
  }
  json_decref(root);
}

static void test_accepted_variants(void **state) {
  (void)state;
  static const struct refusal accepted[] = {
      {"empty normalizers", "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[]}", QUIRE_OK, ""},
      {"literal split", "pre_tokenizer/pretokenizers/0/pattern", "{\"String\":\".*\"}", QUIRE_OK, ""},
      {"byte level after", "post_processor", "{\"type\":\"ByteLevel\",\"trim_offsets\":false}", QUIRE_OK, ""},
      {"sequence after", "post_processor", "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}]}",
       QUIRE_OK, ""},
      {"pair merge", "model/merges/0", "[\"t\",\"h\"]", QUIRE_OK, ""},
  };
  for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
    struct quire_error error = {0};
    struct quire_tokenizer *tokenizer = NULL;
    json_t *root = load_data("deepseek", "tokenizer");
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), "th", json_integer(5000));
    change(root, accepted[i].path, accepted[i].value);
    if (parse(quire_env_default(), root, NULL, &tokenizer, &error)) {
      fail_msg("%s: %s: %s", accepted[i].name, error.where, error.text);
    }
    if (i == 1) { /* ".*" is two characters, not a pattern */
      int32_t tokens[16];
      assert_int_equal(encode(tokenizer, "a.*b", 4, 0, tokens, 16), 4);
    }
    quire_tokenizer_close(tokenizer);
    json_decref(root);
  }
}

/* ---- files, memory, time ---- */

static void test_open_folder(void **state) {
  (void)state;
  struct quire_error error = {0};
  struct quire_tokenizer *tokenizer = NULL;
  char dir[] = "/tmp/quire-tokenizer-XXXXXX", path[256];
  assert_non_null(mkdtemp(dir));
  assert_int_equal(quire_tokenizer_open(quire_env_default(), dir, &tokenizer, &error), QUIRE_ERR_NOT_FOUND);
  json_t *root = load_data("plain", "tokenizer");
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  assert_int_equal(json_dump_file(root, path, 0), 0);
  json_decref(root);
  assert_int_equal(quire_tokenizer_open(quire_env_default(), dir, &tokenizer, &error), QUIRE_OK);
  assert_int_equal(quire_tokenizer_special(tokenizer).bos, QUIRE_TOKEN_NONE);
  quire_tokenizer_close(tokenizer);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("{\"bos_token\":\"<|begin|>\"}", file);
  fclose(file);
  assert_int_equal(quire_tokenizer_open(quire_env_default(), dir, &tokenizer, &error), QUIRE_OK);
  assert_int_equal(quire_tokenizer_special(tokenizer).bos, 0);
  quire_tokenizer_close(tokenizer);
  remove(path);
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  remove(path);
  remove(dir);
}

static void remove_folder(const char *dir) {
  static const char *const names[] = {
      "config.json",           "generation_config.json",       "tokenizer.json",
      "tokenizer_config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors"};
  char path[256];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    remove(path);
  }
  assert_int_equal(remove(dir), 0);
}

/* The tokenizer of the tiny model: every id has a text, and a chat prompt's markers are single tokens. */
static void test_tiny_model(void **state) {
  (void)state;
  static const char prompt[] =
      "<\xef\xbd\x9c"
      "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c><\xef\xbd\x9cUser\xef\xbd\x9c>in the "
      "<\xef\xbd\x9c"
      "Assistant\xef\xbd\x9c></think>";
  char dir[] = "/tmp/quire-tokenizer-XXXXXX", text[QUIRE_TINY_ERROR_BYTES];
  struct quire_tiny_options options = quire_tiny_defaults();
  struct quire_tokenizer *tokenizer = NULL;
  struct quire_error error = {0};
  int32_t tokens[64];
  options.layers = options.heads = options.shards = 1;
  options.mtp = false;
  assert_non_null(mkdtemp(dir));
  assert_true(quire_tiny_write(dir, &options, text));
  if (quire_tokenizer_open(quire_env_default(), dir, &tokenizer, &error)) {
    fail_msg("%s: %s", error.where, error.text);
  }
  assert_int_equal(quire_tokenizer_vocab(tokenizer), QUIRE_TINY_VOCAB);
  for (int32_t id = 0; id < QUIRE_TINY_VOCAB; id++) {
    size_t bytes;
    assert_non_null(quire_tokenizer_token(tokenizer, id, &bytes));
    assert_true(bytes > 0);
  }
  assert_int_equal(quire_tokenizer_special(tokenizer).bos, 0);
  assert_int_equal(quire_tokenizer_special(tokenizer).eos, 1);
  assert_int_equal(quire_tokenizer_special(tokenizer).pad, 2);
  size_t count = encode(tokenizer, prompt, sizeof prompt - 1, QUIRE_ENCODE_ADD_SPECIAL, tokens, 64);
  assert_true(count >= 6); /* add_bos_token is false: the prompt has its own */
  assert_int_equal(tokens[0], 0);
  assert_int_equal(tokens[1], 508);
  assert_int_equal(tokens[count - 2], 509);
  assert_int_equal(tokens[count - 1], 511);
  quire_tokenizer_close(tokenizer);
  remove_folder(dir);
}

/* The pre-tokenizer of GLM, as the tiny model's folder has it, with ids from another implementation. */
static void test_tiny_glm(void **state) {
  (void)state;
  char dir[] = "/tmp/quire-tokenizer-XXXXXX", text[QUIRE_TINY_ERROR_BYTES];
  struct quire_tiny_options options = quire_tiny_glm();
  struct quire_tokenizer *tokenizer = NULL;
  struct quire_error error = {0};
  options.layers = options.heads = options.shards = 1;
  options.indexers = NULL;
  options.mtp = false;
  assert_non_null(mkdtemp(dir));
  assert_true(quire_tiny_write(dir, &options, text));
  if (quire_tokenizer_open(quire_env_default(), dir, &tokenizer, &error)) {
    fail_msg("%s: %s", error.where, error.text);
  }
  assert_int_equal(quire_tokenizer_vocab(tokenizer), QUIRE_TINY_VOCAB);
  assert_int_equal(quire_tokenizer_special(tokenizer).bos, QUIRE_TOKEN_NONE);
  assert_int_equal(quire_tokenizer_special(tokenizer).eos, 1);
  json_t *vectors = load_data("tiny_glm", "vectors");
  assert_true(json_array_size(vectors) > 100);
  for (size_t i = 0; i < json_array_size(vectors); i++) {
    check_ids(tokenizer, json_array_get(vectors, i), "ids", 0);
    check_ids(tokenizer, json_array_get(vectors, i), "added", QUIRE_ENCODE_ADD_SPECIAL);
  }
  json_decref(vectors);
  quire_tokenizer_close(tokenizer);
  remove_folder(dir);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  struct quire_tokenizer *tokenizer = NULL;
  struct quire_error error = {0};
  int32_t tokens[128];
  size_t count = 0;
  enum quire_status status = parse(env, context, NULL, &tokenizer, &error);
  if (status) {
    assert_null(tokenizer);
    return status;
  }
  static const char text[] = "The snow 123 <think>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
  struct quire_encode args = {text, sizeof text - 1, 0, tokens, 128};
  status = quire_tokenizer_encode(tokenizer, args, &count, &error);
  assert_true(status ? count == 0 : count > 5);
  static char word[8192]; /* long enough for every kind of scratch */
  memset(word, 'e', sizeof word);
  args = (struct quire_encode){word, sizeof word, 0, NULL, 0};
  status = status ? status : quire_tokenizer_encode(tokenizer, args, &count, &error);
  quire_tokenizer_close(tokenizer);
  return status;
}

static void test_every_allocation_refused(void **state) {
  (void)state;
  json_t *root = load_data("glm", "tokenizer");
  assert_true(fail_env_sweep(life, root) > 8);
  json_decref(root);
}

/* Texts a megabyte long, chosen to hurt: one piece, one run, every character a piece. */
static void test_megabyte(void **state) {
  (void)state;
  static const char *const units[] = {"a",    " ",   "\n",    "=",   "the snow fell ", "\xe9\x9b\xaa", "9",
                                      "\xff", "<|a", "x y\t", "\xc3"};
  const size_t bytes = 1 << 20;
  char *text = malloc(bytes);
  struct quire_tokenizer *tokenizer = open_data("deepseek", NULL);
  const struct quire_env *env = quire_env_default();
  assert_non_null(text);
  for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
    size_t length = strlen(units[u]);
    for (size_t i = 0; i < bytes; i++) {
      text[i] = units[u][i % length];
    }
    uint64_t start = env->now_ns(env->context);
    size_t count = encode(tokenizer, text, bytes, 0, NULL, 0);
    uint64_t taken = env->now_ns(env->context) - start;
    print_message("%zu tokens of \"%s\"... in %.1f ms\n", count, units[u][0] > ' ' ? units[u] : "?",
                  (double)taken * 1e-6);
    assert_true(taken < 10000000000u); /* quadratic would be minutes */
  }
  quire_tokenizer_close(tokenizer);
  free(text);
}

int main(int argc, char **argv) {
  if (argc > 1) {
    seed = strtoull(argv[1], NULL, 0);
  }
  printf("seed %llu\n", (unsigned long long)seed);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_vectors),
      cmocka_unit_test(test_long_text),
      cmocka_unit_test(test_merges_match_oracle),
      cmocka_unit_test(test_any_bytes_come_back),
      cmocka_unit_test(test_stream_holds_back),
      cmocka_unit_test(test_special_tokens),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_refused_configs),
      cmocka_unit_test(test_accepted_variants),
      cmocka_unit_test(test_open_folder),
      cmocka_unit_test(test_tiny_model),
      cmocka_unit_test(test_tiny_glm),
      cmocka_unit_test(test_every_allocation_refused),
      cmocka_unit_test(test_megabyte),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
