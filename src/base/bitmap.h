/* A set of small numbers as bits in 64-bit words: bit i is bit (i mod 64) of word i / 64.
 *
 * The caller owns the words (quire_bitmap_words(bits) of them) and passes the number of bits where a search needs its
 * end; bits past the end are kept zero by quire_bitmap_fill and never read. Nothing fails; an index out of range is a
 * bug of the caller's. Threads: as any memory. */
#ifndef QUIRE_BASE_BITMAP_H
#define QUIRE_BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline size_t quire_bitmap_words(int64_t bits) { return ((size_t)bits + 63) / 64; }

static inline bool quire_bitmap_test(const uint64_t *words, int64_t bit) { return (words[bit >> 6] >> (bit & 63)) & 1; }

static inline void quire_bitmap_set(uint64_t *words, int64_t bit) { words[bit >> 6] |= (uint64_t)1 << (bit & 63); }

static inline void quire_bitmap_clear(uint64_t *words, int64_t bit) { words[bit >> 6] &= ~((uint64_t)1 << (bit & 63)); }

/* Sets the bit; true if it was clear before. */
static inline bool quire_bitmap_tick(uint64_t *words, int64_t bit) {
  bool fresh = !quire_bitmap_test(words, bit);
  quire_bitmap_set(words, bit);
  return fresh;
}

/* All bits to value. */
void quire_bitmap_fill(uint64_t *words, int64_t bits, bool value);
/* Number of ones. */
int64_t quire_bitmap_count(const uint64_t *words, int64_t bits);
/* Lowest one, or zero, at or above `from`; -1 if there is none. */
int64_t quire_bitmap_next_one(const uint64_t *words, int64_t bits, int64_t from);
int64_t quire_bitmap_next_zero(const uint64_t *words, int64_t bits, int64_t from);
/* First bit of the lowest run of `length` zeros at or above `from`; -1 if there is none. */
int64_t quire_bitmap_next_zeros(const uint64_t *words, int64_t bits, int64_t from, int64_t length);

#ifdef __cplusplus
}
#endif
#endif
