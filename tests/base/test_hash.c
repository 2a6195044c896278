#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "support/seed.h"

/* From the XXH3 specification: the digests of the empty string. */
static void xxh3_known_answers(void **state) {
  (void)state;
  struct quire_hash128 empty = quire_hash128(NULL, 0, 0);
  assert_true(empty.low == 0x6001C324468D497Full);
  assert_true(empty.high == 0x99AA06D3014798D8ull);
  assert_true(quire_hash128_equal(empty, quire_hash128("", 0, 0)));
  assert_false(quire_hash128_equal(empty, quire_hash128("", 0, 1)));
}

/* The keyed hash is XXH3-64, which for long inputs is the low half of XXH3-128 with the key's seed. */
static void keyed_hash(void **state) {
  (void)state;
  uint64_t rng = test_seed("keyed_hash");
  static uint8_t data[3000];
  for (size_t i = 0; i < sizeof data; i++) {
    data[i] = (uint8_t)quire_splitmix64(&rng);
  }
  for (int round = 0; round < 300; round++) {
    const uint64_t seed = quire_splitmix64(&rng);
    const size_t bytes = 241 + (size_t)quire_splitmix64_below(&rng, sizeof data - 240);
    struct quire_hash_key key, other;
    quire_hash_key_make(&key, seed);
    quire_hash_key_make(&other, seed + 1);
    const uint64_t hash = quire_hash64(data, bytes, &key);
    assert_true(hash == quire_hash128(data, bytes, seed).low);
    assert_true(hash != quire_hash64(data, bytes, &other) && hash != quire_hash64(data, bytes - 1, &key));
  }
  struct quire_hash_key key;
  quire_hash_key_make(&key, 1);
  assert_true(quire_hash64(NULL, 0, &key) == quire_hash64(data, 0, &key));
}

/* However the bytes are cut, with whatever seed, streaming equals the one call; a stream may go on after its end. */
static void streams_equal_one_call(void **state) {
  (void)state;
  uint64_t rng = test_seed("streams_equal_one_call");
  static uint8_t data[5000];
  for (size_t i = 0; i < sizeof data; i++) {
    data[i] = (uint8_t)quire_splitmix64(&rng);
  }
  struct quire_hash128_stream stream;
  memset(&stream, 0xA5, sizeof stream);
  for (int round = 0; round < 500; round++) {
    uint64_t seed = round % 3 ? quire_splitmix64(&rng) : 0;
    size_t bytes = quire_splitmix64_below(&rng, round % 2 ? sizeof data : 300);
    quire_hash128_begin(&stream, seed);
    for (size_t at = 0; at < bytes;) {
      size_t piece = 1 + quire_splitmix64_below(&rng, bytes - at);
      quire_hash128_add(&stream, data + at, piece);
      at += piece;
      if (round % 5 == 0) {
        assert_true(quire_hash128_equal(quire_hash128_end(&stream), quire_hash128(data, at, seed)));
      }
    }
    quire_hash128_add(&stream, NULL, 0);
    assert_true(quire_hash128_equal(quire_hash128_end(&stream), quire_hash128(data, bytes, seed)));
  }
}

static int nibble(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* FIPS 180-4 examples. */
static void sha256_known_answers(void **state) {
  (void)state;
  static const struct {
    const char *text;
    const char *hex;
  } rows[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct quire_sha256 once, pieces;
    assert_int_equal(quire_sha256(rows[i].text, strlen(rows[i].text), &once), QUIRE_OK);
    struct quire_sha256_stream stream;
    assert_int_equal(quire_sha256_begin(&stream), QUIRE_OK);
    for (const char *c = rows[i].text; *c; c++) {
      quire_sha256_add(&stream, c, 1);
    }
    quire_sha256_end(&stream, &pieces);
    for (int j = 0; j < 32; j++) {
      assert_int_equal(once.byte[j], nibble(rows[i].hex[2 * j]) * 16 + nibble(rows[i].hex[2 * j + 1]));
    }
    assert_memory_equal(once.byte, pieces.byte, sizeof once.byte);
  }
  struct quire_sha256_stream given_up;
  assert_int_equal(quire_sha256_begin(&given_up), QUIRE_OK);
  quire_sha256_end(&given_up, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(xxh3_known_answers),
      cmocka_unit_test(keyed_hash),
      cmocka_unit_test(streams_equal_one_call),
      cmocka_unit_test(sha256_known_answers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
