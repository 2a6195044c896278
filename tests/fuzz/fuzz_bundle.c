/* Trailers of bundles as a disk or a peer could hand them over: decoded or refused, and what is decoded encodes to the
 * same bytes. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "layout/bundle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
  return 0;
}
