/* Stores that go to memory without reading the line they fill. What is read is asked for AHEAD of it, across the end of
 * one copy into the next: pages lie anywhere, and each would otherwise begin with waiting for memory (64 rows of 1,152
 * bytes at a time come at 0.78 of the rate of one long copy, so at all of it). */
#include <immintrin.h>
#include <string.h>

#include "base/assert.h"
#include "device/device.h"

#define WIDTH 32
#define LINE 64
#define AHEAD 8192

void quire_copy_past_caches(void *target, const void *source, size_t bytes, const void *next) {
  uint8_t *to = target;
  const uint8_t *from = source, *after = next != NULL ? next : from;
  size_t head = (LINE - ((uintptr_t)to & (LINE - 1))) & (LINE - 1);
  head = head < bytes ? head : bytes;
  QUIRE_ASSERT(to + bytes <= from || from + bytes <= to);
  memcpy(to, from, head);
  size_t at = head;
  for (; at + LINE <= bytes; at += LINE) {
    size_t ahead = at + AHEAD;
    _mm_prefetch((const char *)(ahead < bytes ? from + ahead : after + (ahead - bytes)), _MM_HINT_T0);
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + WIDTH));
    _mm256_stream_si256((__m256i *)(void *)(to + at), low);
    _mm256_stream_si256((__m256i *)(void *)(to + at + WIDTH), high);
  }
  memcpy(to + at, from + at, bytes - at);
  if (next == NULL) {
    _mm_sfence(); /* such stores are not ordered with those that announce them */
  }
}
