#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "layout/chain.h"
#include "layout/fingerprint.h"

static struct quire_hash128 root_of(enum quire_chain_kind kind, const char *salt) {
  struct quire_hash128 fingerprint = {1, 2};
  struct quire_hash128 root;
  assert_int_equal(quire_chain_root(kind, fingerprint, salt, (int32_t)strlen(salt), &root), QUIRE_OK);
  return root;
}

static struct quire_hash128 next_of(enum quire_chain_kind kind, struct quire_hash128 prev, const int32_t *tokens,
                                    int32_t n) {
  struct quire_hash128 next;
  assert_int_equal(quire_chain_next(kind, prev, tokens, n, &next), QUIRE_OK);
  return next;
}

/* Names at rest must never change: pinned. */
static void pinned_names(void **state) {
  (void)state;
  static const struct {
    enum quire_chain_kind kind;
    const char *root, *page, *tail;
  } rows[] = {
      {QUIRE_CHAIN_XXH3, "848b0cc016c12d373f4e5200df2d3c91", "ad581888f237ce1cc1939b3c3a9c95e6",
       "1dce163426b57759067f1b7b57d85f3f"},
      {QUIRE_CHAIN_SHA256, "61384811d6d6e29e627a22986d919622", "e97f56631dfb172b327917224e571ddb",
       "0d775c3d3c91be0a18f0b110efc6a4d5"},
  };
  int32_t tokens[64];
  for (int32_t i = 0; i < 64; i++) {
    tokens[i] = i * 1000;
  }
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[QUIRE_FINGERPRINT_TEXT_BYTES];
    struct quire_hash128 root = root_of(rows[i].kind, "tenant");
    quire_fingerprint_text(root, text);
    assert_string_equal(text, rows[i].root);
    struct quire_hash128 page = next_of(rows[i].kind, root, tokens, 64);
    quire_fingerprint_text(page, text);
    assert_string_equal(text, rows[i].page);
    quire_fingerprint_text(next_of(rows[i].kind, page, tokens, 3), text);
    assert_string_equal(text, rows[i].tail);
  }
}

static void everything_counts(void **state) {
  (void)state;
  for (int kind = QUIRE_CHAIN_XXH3; kind <= QUIRE_CHAIN_SHA256; kind++) {
    enum quire_chain_kind k = (enum quire_chain_kind)kind;
    int32_t tokens[64] = {0};
    struct quire_hash128 seen[256];
    int32_t count = 0;
    struct quire_hash128 root = root_of(k, "");
    seen[count++] = root;
    seen[count++] = root_of(k, "a");
    seen[count++] = root_of(k, "b");
    for (int32_t n = 1; n <= 64; n++) { /* a tail of zeros is another page than a longer tail of zeros */
      seen[count++] = next_of(k, root, tokens, n);
    }
    for (int32_t i = 0; i < 64; i++) {
      tokens[i] = 1;
      seen[count++] = next_of(k, root, tokens, 64);
      tokens[i] = 0;
    }
    seen[count++] = next_of(k, seen[1], tokens, 64);
    seen[count++] = next_of(k, next_of(k, root, tokens, 64), tokens, 64);
    for (int32_t i = 0; i < count; i++) {
      for (int32_t j = 0; j < i; j++) {
        assert_false(quire_hash128_equal(seen[i], seen[j]));
      }
    }
  }
}

static void roots_refused(void **state) {
  (void)state;
  struct quire_hash128 fingerprint = {1, 2};
  struct quire_hash128 root = {3, 4};
  char salt[QUIRE_CHAIN_SALT_MAX + 1] = {0};
  assert_int_equal(quire_chain_root((enum quire_chain_kind)0, fingerprint, NULL, 0, &root), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_chain_root(QUIRE_CHAIN_XXH3, fingerprint, salt, sizeof salt, &root), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_chain_root(QUIRE_CHAIN_XXH3, fingerprint, NULL, 1, &root), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_chain_root(QUIRE_CHAIN_XXH3, fingerprint, salt, -1, &root), QUIRE_ERR_ARGUMENT);
  assert_true(root.low == 3 && root.high == 4);
  assert_int_equal(quire_chain_root(QUIRE_CHAIN_XXH3, fingerprint, salt, QUIRE_CHAIN_SALT_MAX, &root), QUIRE_OK);
  assert_string_equal(quire_chain_kind_name(QUIRE_CHAIN_XXH3), "xxh3");
  assert_string_equal(quire_chain_kind_name(QUIRE_CHAIN_SHA256), "sha256");
  assert_string_equal(quire_chain_kind_name((enum quire_chain_kind)7), "unknown");
}

static void fingerprint_pinned_and_sensitive(void **state) {
  (void)state;
  static const bool owns[] = {true, false, true};
  struct quire_hash128 model = {5, 6};
  struct quire_hash128 other_model = {5, 7};
  struct quire_parts parts;
  struct quire_hash128 seen[8];
  char text[QUIRE_FINGERPRINT_TEXT_BYTES];
  assert_true(quire_parts_build(&parts, QUIRE_KV_BF16, 64, 3, NULL, 1));
  seen[0] = quire_fingerprint(&parts, "cpu-1-bf16", model);
  quire_fingerprint_text(seen[0], text);
  assert_string_equal(text, "64b54cd5300936bc11d48da17969210a");
  assert_true(quire_hash128_equal(seen[0], quire_fingerprint(&parts, "cpu-1-bf16", model)));
  seen[1] = quire_fingerprint(&parts, "cpu-1-bf16", other_model);
  seen[2] = quire_fingerprint(&parts, "cpu-2-bf16", model);
  static const struct {
    enum quire_kv_format format;
    int32_t page_tokens, layers, draft;
    const bool *owns;
  } rows[] = {{QUIRE_KV_FP8, 64, 3, 1, NULL},
              {QUIRE_KV_BF16, 32, 3, 1, NULL},
              {QUIRE_KV_BF16, 64, 4, 1, NULL},
              {QUIRE_KV_BF16, 64, 3, 0, NULL},
              {QUIRE_KV_BF16, 64, 3, 1, owns}};
  for (int32_t i = 0; i < 5; i++) {
    assert_true(
        quire_parts_build(&parts, rows[i].format, rows[i].page_tokens, rows[i].layers, rows[i].owns, rows[i].draft));
    seen[3 + i] = quire_fingerprint(&parts, "cpu-1-bf16", model);
  }
  for (int32_t i = 0; i < 8; i++) {
    for (int32_t j = 0; j < i; j++) {
      assert_false(quire_hash128_equal(seen[i], seen[j]));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pinned_names),
      cmocka_unit_test(everything_counts),
      cmocka_unit_test(roots_refused),
      cmocka_unit_test(fingerprint_pinned_and_sensitive),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
