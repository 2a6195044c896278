/* A bundle at rest: all parts of one page as one extent, in host memory, in the store and on the wire (design D8).
 *
 *   offset 0                                                         trailer_offset        bytes (multiple of 4,096)
 *   | part 0 |pad| part 1 |pad| ... | last part |pad| head | digest of part 0 .. | seal | zero ... |
 *              256                                256
 *
 * Each part lies in table order at a multiple of 256, as it lies in its page on the device: piece 0, then piece 1.
 * Trailer: 64 bytes of head, a 16-byte XXH3-128 for each part, and the seal, the XXH3-128 of all trailer bytes before
 * it. The digest of a part covers its valid rows only (rows of piece 0, then rows of piece 1), so that a tail page has
 * one digest whatever lies behind its rows. Those rows, and all padding, are zero at rest.
 *
 * All numbers are little-endian. A bundle is complete or it does not exist: whoever reads one checks it
 * (quire_bundle_check) before a byte of it reaches a page.
 *
 * Pure; the caller owns all memory. Threads: any. */
#ifndef QUIRE_LAYOUT_BUNDLE_H
#define QUIRE_LAYOUT_BUNDLE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "layout/ids.h"
#include "layout/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_BUNDLE_MAGIC "quirebnd"
#define QUIRE_BUNDLE_VERSION 1
#define QUIRE_BUNDLE_PART_ALIGN 256
#define QUIRE_BUNDLE_ALIGN 4096

/* The trailer's first bytes, as they lie at rest. */
struct quire_bundle_head {
  uint8_t magic[8]; /* QUIRE_BUNDLE_MAGIC without its 0 */
  uint32_t version;
  uint32_t part_count;
  struct quire_hash128 fingerprint;
  struct quire_hash128 chain; /* name of the page's content (chain.h) */
  int32_t request_page;
  int32_t valid_tokens; /* 1 to page_tokens */
  uint32_t page_tokens;
  uint32_t reserved; /* 0 */
};

static_assert(sizeof(struct quire_hash128) == 16, "digest of 16 bytes");
static_assert(offsetof(struct quire_hash128, low) == 0, "low half first");
static_assert(offsetof(struct quire_hash128, high) == 8, "high half second");
static_assert(sizeof(struct quire_bundle_head) == 64, "trailer head of 64 bytes");
static_assert(offsetof(struct quire_bundle_head, version) == 8, "version at 8");
static_assert(offsetof(struct quire_bundle_head, part_count) == 12, "part count at 12");
static_assert(offsetof(struct quire_bundle_head, fingerprint) == 16, "fingerprint at 16");
static_assert(offsetof(struct quire_bundle_head, chain) == 32, "chain hash at 32");
static_assert(offsetof(struct quire_bundle_head, request_page) == 48, "request page at 48");
static_assert(offsetof(struct quire_bundle_head, valid_tokens) == 52, "valid tokens at 52");
static_assert(offsetof(struct quire_bundle_head, page_tokens) == 56, "page tokens at 56");
static_assert(offsetof(struct quire_bundle_head, reserved) == 60, "reserved at 60");

/* Where things lie in a bundle of one parts table. A value. */
struct quire_bundle_layout {
  int32_t part_count;
  int32_t page_tokens;
  int64_t part_offset[QUIRE_PARTS_MAX];
  int64_t trailer_offset;
  int64_t trailer_bytes; /* head, digests and seal, without the padding after it */
  int64_t bytes;         /* the whole bundle */
};

/* What a trailer says beside its digests. */
struct quire_bundle_info {
  struct quire_hash128 fingerprint;
  struct quire_hash128 chain;
  quire_request_page request_page;
  int32_t valid_tokens;
};

void quire_bundle_layout_of(const struct quire_parts *parts, struct quire_bundle_layout *layout_out);

/* XXH3-128 of the first valid_tokens rows of each piece of one part, in order; page is the part's first byte, on the
 * device or in a bundle. */
struct quire_hash128 quire_bundle_part_digest(const struct quire_part *part, const uint8_t *page, int32_t valid_tokens);

/* Writes the trailer and the zeros behind it, layout->bytes - layout->trailer_offset bytes at trailer_out;
 * digests[part_count] are those of the parts. */
void quire_bundle_trailer_encode(const struct quire_bundle_layout *layout, const struct quire_bundle_info *info,
                                 const struct quire_hash128 *digests, uint8_t *trailer_out);

/* Reads trailer_bytes bytes at trailer. digests_out[part_count] may be NULL. QUIRE_ERR_CORRUPT: it is not a trailer, is
 * of another version, its seal is wrong or a field is out of bounds; QUIRE_ERR_MISMATCH: it is sound, but of another
 * parts table. On failure outputs are untouched. */
enum quire_status quire_bundle_trailer_decode(const struct quire_bundle_layout *layout, const uint8_t *trailer,
                                              struct quire_bundle_info *info_out, struct quire_hash128 *digests_out,
                                              struct quire_error *error_out);

/* Finishes a bundle whose parts' valid rows lie at their offsets: zeroes everything else and writes the trailer. */
void quire_bundle_seal(const struct quire_parts *parts, const struct quire_bundle_layout *layout,
                       const struct quire_bundle_info *info, uint8_t *bundle);

/* Everything a reader must know: trailer sound, fields equal to *expected, digest of every part right.
 * QUIRE_ERR_CORRUPT or QUIRE_ERR_MISMATCH otherwise. */
enum quire_status quire_bundle_check(const struct quire_parts *parts, const struct quire_bundle_layout *layout,
                                     const struct quire_bundle_info *expected, const uint8_t *bundle,
                                     struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
