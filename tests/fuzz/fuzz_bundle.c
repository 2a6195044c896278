// fuzz: runs=400000
/* Trailers of bundles as a disk or a peer could hand them over: decoded or refused, and what is decoded encodes to the
 * same bytes. A bundle that is sealed here, of the same bytes, is good, and with one bit of it changed it is not. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "layout/bundle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAGE_TOKENS 4

static uint32_t number_at(const uint8_t *data, size_t size, size_t at) {
  uint32_t number = 0;
  if (at < size) {
    memcpy(&number, data + at, size - at < sizeof number ? size - at : sizeof number);
  }
  return number;
}

/* Whether a byte of the bundle means something: neither padding nor a row behind the valid ones. */
static bool counts(const struct quire_parts *parts, const struct quire_bundle_layout *layout, int64_t at,
                   int32_t valid) {
  if (at >= layout->trailer_offset) {
    return at < layout->trailer_offset + layout->trailer_bytes;
  }
  for (int32_t i = 0; i < parts->count; i++) {
    for (int32_t p = 0; p < parts->part[i].pieces; p++) {
      const int64_t begin = layout->part_offset[i] + parts->part[i].piece[p].offset;
      if (at >= begin && at < begin + (int64_t)valid * parts->part[i].piece[p].row_bytes) {
        return true;
      }
    }
  }
  return false;
}

static void check_sealed(enum quire_kv_format format, const uint8_t *data, size_t size) {
  struct quire_parts parts;
  struct quire_bundle_layout layout;
  struct quire_error error = {0};
  QUIRE_ASSERT(quire_parts_build(&parts, format, PAGE_TOKENS, 1, NULL, 1));
  quire_bundle_layout_of(&parts, &layout);
  uint8_t *bundle = calloc(1, (size_t)layout.bytes);
  QUIRE_ASSERT(bundle);
  struct quire_bundle_info info = {.fingerprint = quire_hash128(data, size, 1),
                                   .chain = quire_hash128(data, size, 2),
                                   .request_page = {(int32_t)(number_at(data, size, 0) >> 1)},
                                   .valid_tokens = 1 + (int32_t)(number_at(data, size, 4) % PAGE_TOKENS)};
  memcpy(bundle, data, size < (size_t)layout.trailer_offset ? size : (size_t)layout.trailer_offset);
  quire_bundle_seal(&parts, &layout, &info, bundle);
  QUIRE_ASSERT(quire_bundle_check(&parts, &layout, &info, bundle, &error) == QUIRE_OK);
  const int64_t at = number_at(data, size, 8) % layout.bytes;
  bundle[at] ^= (uint8_t)(1u << (number_at(data, size, 12) % 8));
  const bool good = quire_bundle_check(&parts, &layout, &info, bundle, &error) == QUIRE_OK;
  QUIRE_ASSERT(good == !counts(&parts, &layout, at, info.valid_tokens) && (good || error.text[0]));
  free(bundle);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct quire_parts parts;
  struct quire_bundle_layout layout;
  if (size < 1 || !quire_parts_build(&parts, (enum quire_kv_format)(data[0] % 3), 64, 2, NULL, data[0] >> 7)) {
    return 0;
  }
  quire_bundle_layout_of(&parts, &layout);
  size_t bytes = (size_t)layout.trailer_bytes;
  uint8_t *trailer = calloc(1, bytes), *again = calloc(1, (size_t)(layout.bytes - layout.trailer_offset));
  struct quire_hash128 *digests = calloc((size_t)parts.count, sizeof *digests);
  QUIRE_ASSERT(trailer != NULL && again != NULL && digests != NULL);
  memcpy(trailer, data + 1, size - 1 < bytes ? size - 1 : bytes);
  struct quire_bundle_info info;
  struct quire_error error = {0};
  if (quire_bundle_trailer_decode(&layout, trailer, &info, digests, &error) == QUIRE_OK) {
    quire_bundle_trailer_encode(&layout, &info, digests, again);
    QUIRE_ASSERT(memcmp(trailer, again, bytes) == 0);
  } else {
    QUIRE_ASSERT(error.text[0] != '\0');
  }
  free(digests);
  free(again);
  free(trailer);
  check_sealed((enum quire_kv_format)(data[0] % 3), data + 1, size - 1);
  return 0;
}
