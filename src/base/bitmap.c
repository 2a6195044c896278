#include "base/bitmap.h"

#include <string.h>

#include "base/assert.h"

void quire_bitmap_fill(uint64_t *words, int64_t bits, bool value) {
  QUIRE_ASSERT(bits >= 0);
  size_t count = quire_bitmap_words(bits);
  memset(words, value ? 0xFF : 0, count * sizeof *words);
  if (value && bits % 64) {
    words[count - 1] = ((uint64_t)1 << (bits % 64)) - 1;
  }
}

/* The word with the bits at and past the end cleared. */
static uint64_t word_within(const uint64_t *words, int64_t bits, int64_t index) {
  int64_t left = bits - index * 64;
  return left >= 64 ? words[index] : words[index] & (((uint64_t)1 << left) - 1);
}

int64_t quire_bitmap_count(const uint64_t *words, int64_t bits) {
  int64_t count = 0;
  for (int64_t i = 0; i * 64 < bits; i++) {
    count += __builtin_popcountll(word_within(words, bits, i));
  }
  return count;
}

/* flip: all ones to look for a zero, 0 to look for a one */
static int64_t next(const uint64_t *words, int64_t bits, int64_t from, uint64_t flip) {
  QUIRE_ASSERT(from >= 0);
  if (from >= bits) {
    return -1;
  }
  int64_t index = from / 64;
  uint64_t word = (words[index] ^ flip) & (~(uint64_t)0 << (from % 64));
  while (word == 0) {
    index++;
    if (index * 64 >= bits) {
      return -1;
    }
    word = words[index] ^ flip;
  }
  int64_t bit = index * 64 + __builtin_ctzll(word);
  return bit < bits ? bit : -1;
}

int64_t quire_bitmap_next_one(const uint64_t *words, int64_t bits, int64_t from) { return next(words, bits, from, 0); }

int64_t quire_bitmap_next_zero(const uint64_t *words, int64_t bits, int64_t from) {
  return next(words, bits, from, ~(uint64_t)0);
}

int64_t quire_bitmap_next_zeros(const uint64_t *words, int64_t bits, int64_t from, int64_t length) {
  QUIRE_ASSERT(length > 0);
  int64_t first = quire_bitmap_next_zero(words, bits, from);
  while (first >= 0 && first + length <= bits) {
    int64_t one = quire_bitmap_next_one(words, bits, first);
    if (one < 0 || one - first >= length) {
      return first;
    }
    first = quire_bitmap_next_zero(words, bits, one);
  }
  return -1;
}
