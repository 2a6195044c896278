#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "layout/bundle.h"
#include "support/seed.h"

struct fixture {
  struct quire_parts parts;
  struct quire_bundle_layout layout;
  struct quire_bundle_info info;
  uint8_t *bundle;
};

/* A bundle full of random bytes, its rows as they would come from a page, before it is sealed. */
static struct fixture make(enum quire_kv_format format, int32_t page_tokens, int32_t valid, uint64_t seed) {
  struct fixture f = {.info = {{11, 12}, {13, 14}, {7}, valid}};
  assert_true(quire_parts_build(&f.parts, format, page_tokens, 2, NULL, 1));
  quire_bundle_layout_of(&f.parts, &f.layout);
  f.bundle = malloc((size_t)f.layout.bytes);
  assert_non_null(f.bundle);
  for (int64_t i = 0; i < f.layout.bytes; i++) {
    f.bundle[i] = (uint8_t)quire_splitmix64(&seed);
  }
  return f;
}

static void layout_of_the_formats(void **state) {
  (void)state;
  static const enum quire_kv_format formats[] = {QUIRE_KV_F32, QUIRE_KV_BF16, QUIRE_KV_FP8};
  static const int32_t tokens[] = {1, 3, 4, 64, 256};
  for (size_t f = 0; f < 3; f++) {
    for (size_t t = 0; t < 5; t++) {
      struct quire_parts parts;
      struct quire_bundle_layout layout;
      assert_true(quire_parts_build(&parts, formats[f], tokens[t], 5, NULL, 1));
      quire_bundle_layout_of(&parts, &layout);
      int64_t at = 0;
      for (int32_t i = 0; i < parts.count; i++) {
        assert_true(layout.part_offset[i] >= at && layout.part_offset[i] < at + 256);
        assert_true(layout.part_offset[i] % 256 == 0);
        at = layout.part_offset[i] + parts.part[i].page_bytes;
      }
      assert_true(layout.trailer_offset >= at && layout.trailer_offset < at + 256 && layout.trailer_offset % 256 == 0);
      assert_true(layout.trailer_bytes == 64 + 16 * (parts.count + 1));
      at = layout.trailer_offset + layout.trailer_bytes;
      assert_true(layout.bytes >= at && layout.bytes < at + 4096 && layout.bytes % 4096 == 0);
    }
  }
}

/* A format at rest must never change: where each field lies, and the seal of a known bundle. */
static void pinned_bytes(void **state) {
  (void)state;
  struct fixture f = make(QUIRE_KV_BF16, 64, 64, 1);
  for (int64_t i = 0; i < f.layout.bytes; i++) {
    f.bundle[i] = (uint8_t)(i * 7 + i / 256);
  }
  quire_bundle_seal(&f.parts, &f.layout, &f.info, f.bundle);
  const uint8_t *trailer = f.bundle + f.layout.trailer_offset;
  static const uint8_t head[64] = {'q', 'u', 'i', 'r', 'e', 'b', 'n', 'd', 1,  0, 0, 0, 6, 0, 0, 0,
                                   11,  0,   0,   0,   0,   0,   0,   0,   12, 0, 0, 0, 0, 0, 0, 0,
                                   13,  0,   0,   0,   0,   0,   0,   0,   14, 0, 0, 0, 0, 0, 0, 0,
                                   7,   0,   0,   0,   64,  0,   0,   0,   64, 0, 0, 0, 0, 0, 0, 0};
  assert_memory_equal(trailer, head, sizeof head);
  assert_true(f.layout.trailer_offset == 246528 && f.layout.bytes == 249856);
  uint64_t seal;
  memcpy(&seal, trailer + 64 + 6 * 16, sizeof seal);
  assert_true(seal == 0x654e11e6167bd550ull);
  free(f.bundle);
}

static void round_trip_of_every_length(void **state) {
  (void)state;
  for (int format = QUIRE_KV_F32; format <= QUIRE_KV_FP8; format++) {
    for (int32_t valid = 1; valid <= 64; valid += 7) {
      struct fixture f = make((enum quire_kv_format)format, 64, valid, (uint64_t)valid);
      quire_bundle_seal(&f.parts, &f.layout, &f.info, f.bundle);
      assert_int_equal(quire_bundle_check(&f.parts, &f.layout, &f.info, f.bundle, NULL), QUIRE_OK);
      struct quire_bundle_info info;
      struct quire_hash128 digests[QUIRE_PARTS_MAX];
      assert_int_equal(quire_bundle_trailer_decode(&f.layout, f.bundle + f.layout.trailer_offset, &info, digests, NULL),
                       QUIRE_OK);
      assert_memory_equal(&info, &f.info, sizeof info);
      /* rows of the pieces, one after the other, hashed as one text */
      for (int32_t i = 0; i < f.parts.count; i++) {
        const struct quire_part *part = &f.parts.part[i];
        uint8_t *text = malloc((size_t)part->page_bytes);
        size_t bytes = 0;
        for (int32_t piece = 0; piece < part->pieces; piece++) {
          size_t rows = (size_t)valid * (size_t)part->piece[piece].row_bytes;
          memcpy(text + bytes, f.bundle + f.layout.part_offset[i] + part->piece[piece].offset, rows);
          bytes += rows;
        }
        assert_true(quire_hash128_equal(digests[i], quire_hash128(text, bytes, 0)));
        free(text);
      }
      free(f.bundle);
    }
  }
}

/* Two pages with the same rows and different bytes behind them are the same bundle. */
static void bytes_behind_a_tail_do_not_count(void **state) {
  (void)state;
  struct fixture a = make(QUIRE_KV_FP8, 16, 5, 1);
  struct fixture b = make(QUIRE_KV_FP8, 16, 5, 2);
  for (int32_t i = 0; i < a.parts.count; i++) {
    for (int32_t piece = 0; piece < a.parts.part[i].pieces; piece++) {
      const struct quire_piece *p = &a.parts.part[i].piece[piece];
      int64_t at = a.layout.part_offset[i] + p->offset;
      memcpy(b.bundle + at, a.bundle + at, 5 * (size_t)p->row_bytes);
    }
  }
  quire_bundle_seal(&a.parts, &a.layout, &a.info, a.bundle);
  quire_bundle_seal(&b.parts, &b.layout, &b.info, b.bundle);
  assert_memory_equal(a.bundle, b.bundle, (size_t)a.layout.bytes);
  free(a.bundle);
  free(b.bundle);
}

/* A flipped bit anywhere in rows, head, digests or seal is seen; one in padding is not. */
static void every_flipped_byte_is_seen(void **state) {
  (void)state;
  struct fixture f = make(QUIRE_KV_BF16, 4, 3, 5);
  quire_bundle_seal(&f.parts, &f.layout, &f.info, f.bundle);
  int64_t seen = 0;
  for (int64_t at = 0; at < f.layout.bytes; at++) {
    f.bundle[at] ^= 0x10;
    struct quire_error error = {0};
    enum quire_status status = quire_bundle_check(&f.parts, &f.layout, &f.info, f.bundle, &error);
    assert_true(status == QUIRE_OK || status == QUIRE_ERR_CORRUPT || status == QUIRE_ERR_MISMATCH);
    assert_int_equal(error.status, status);
    seen += status != QUIRE_OK;
    f.bundle[at] ^= 0x10;
  }
  int64_t covered = f.layout.trailer_bytes;
  for (int32_t i = 0; i < f.parts.count; i++) {
    covered += 3 * f.parts.part[i].row_bytes;
  }
  assert_true(seen == covered);
  free(f.bundle);
}

/* One field other than expected: no hit. */
static void another_content_is_refused(void **state) {
  (void)state;
  struct fixture f = make(QUIRE_KV_BF16, 4, 4, 6);
  quire_bundle_seal(&f.parts, &f.layout, &f.info, f.bundle);
  for (int i = 0; i < 4; i++) {
    struct quire_bundle_info expected = f.info;
    expected.fingerprint.high += i == 0;
    expected.chain.low += i == 1;
    expected.request_page.v += i == 2;
    expected.valid_tokens -= i == 3;
    assert_int_equal(quire_bundle_check(&f.parts, &f.layout, &expected, f.bundle, NULL), QUIRE_ERR_MISMATCH);
  }
  struct quire_parts wider;
  struct quire_bundle_layout layout;
  assert_true(quire_parts_build(&wider, QUIRE_KV_BF16, 4, 3, NULL, 1));
  quire_bundle_layout_of(&wider, &layout);
  struct quire_bundle_info info = f.info;
  struct quire_error error;
  assert_int_equal(quire_bundle_trailer_decode(&layout, f.bundle + f.layout.trailer_offset, &info, NULL, &error),
                   QUIRE_ERR_MISMATCH);
  free(f.bundle);
}

/* A trailer whose seal is right but whose fields are not: a writer with a bug, not a torn write. */
static void sealed_nonsense_is_refused(void **state) {
  (void)state;
  struct fixture f = make(QUIRE_KV_BF16, 4, 4, 7);
  quire_bundle_seal(&f.parts, &f.layout, &f.info, f.bundle);
  uint8_t *trailer = f.bundle + f.layout.trailer_offset;
  static const struct {
    size_t offset;
    int32_t value;
  } rows[] = {{8, 2}, {12, 5}, {12, -1}, {48, -1}, {52, 0}, {52, 5}, {52, -4}, {56, 64}, {60, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    uint8_t copy[4096];
    memcpy(copy, trailer, (size_t)(f.layout.bytes - f.layout.trailer_offset));
    memcpy(copy + rows[i].offset, &rows[i].value, 4);
    struct quire_hash128 seal = quire_hash128(copy, (size_t)f.layout.trailer_bytes - 16, 0);
    memcpy(copy + f.layout.trailer_bytes - 16, &seal, 16);
    struct quire_bundle_info info = f.info;
    assert_int_not_equal(quire_bundle_trailer_decode(&f.layout, copy, &info, NULL, NULL), QUIRE_OK);
    assert_memory_equal(&info, &f.info, sizeof info);
  }
  free(f.bundle);
}

static void random_trailers_never_pass(void **state) {
  (void)state;
  uint64_t rng = test_seed("random_trailers_never_pass");
  struct fixture f = make(QUIRE_KV_FP8, 4, 4, 8);
  quire_bundle_seal(&f.parts, &f.layout, &f.info, f.bundle);
  uint8_t *trailer = f.bundle + f.layout.trailer_offset;
  for (int round = 0; round < 20000; round++) {
    uint8_t copy[4096];
    memcpy(copy, trailer, (size_t)(f.layout.bytes - f.layout.trailer_offset));
    uint64_t flips = 1 + quire_splitmix64_below(&rng, 4);
    for (uint64_t i = 0; i < flips; i++) {
      copy[quire_splitmix64_below(&rng, (uint64_t)f.layout.trailer_bytes)] = (uint8_t)quire_splitmix64(&rng);
    }
    bool same = memcmp(copy, trailer, (size_t)f.layout.trailer_bytes) == 0;
    struct quire_bundle_info info;
    enum quire_status status = quire_bundle_trailer_decode(&f.layout, copy, &info, NULL, NULL);
    assert_int_equal(status == QUIRE_OK, same);
  }
  free(f.bundle);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layout_of_the_formats),      cmocka_unit_test(pinned_bytes),
      cmocka_unit_test(round_trip_of_every_length), cmocka_unit_test(bytes_behind_a_tail_do_not_count),
      cmocka_unit_test(every_flipped_byte_is_seen), cmocka_unit_test(another_content_is_refused),
      cmocka_unit_test(sealed_nonsense_is_refused), cmocka_unit_test(random_trailers_never_pass),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
