/* UTF-8 (RFC 3629), looked at a character at a time.
 *
 * Threads: any; nothing is kept. */
#ifndef QUIRE_BASE_UTF8_H
#define QUIRE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Length of the well-formed sequence at p (1 to 4 bytes), or 0. end > p. */
static inline size_t quire_utf8_valid(const uint8_t *p, const uint8_t *end) {
  QUIRE_DEBUG(p < end);
  size_t room = (size_t)(end - p);
  uint8_t a = p[0];
  if (a < 0x80) {
    return 1;
  }
  if (a < 0xc2 || a > 0xf4) {
    return 0;
  }
  size_t length = a < 0xe0 ? 2 : a < 0xf0 ? 3 : 4;
  if (room < length) {
    return 0;
  }
  /* the second byte is narrower after four leads: no overlong forms, no surrogates, nothing above U+10FFFF */
  uint8_t low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
  uint8_t high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
  if (p[1] < low || p[1] > high) {
    return 0;
  }
  for (size_t i = 2; i < length; i++) {
    if ((p[i] & 0xc0) != 0x80) {
      return 0;
    }
  }
  return length;
}

#ifdef __cplusplus
}
#endif
#endif
