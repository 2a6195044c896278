#include "layout/bundle.h"

#include <string.h>

#include "base/assert.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats at rest are written as they lie in memory");

static int64_t align_up(int64_t bytes, int64_t align) { return (bytes + align - 1) / align * align; }

static int64_t seal_offset(const struct quire_bundle_layout *layout) {
  return layout->trailer_bytes - (int64_t)sizeof(struct quire_hash128);
}

void quire_bundle_layout_of(const struct quire_parts *parts, struct quire_bundle_layout *layout_out) {
  QUIRE_ASSERT(parts->count >= 1 && parts->count <= QUIRE_PARTS_MAX);
  struct quire_bundle_layout layout = {.part_count = parts->count, .page_tokens = parts->page_tokens};
  int64_t offset = 0;
  for (int32_t i = 0; i < parts->count; i++) {
    layout.part_offset[i] = offset;
    offset = align_up(offset + parts->part[i].page_bytes, QUIRE_BUNDLE_PART_ALIGN);
  }
  layout.trailer_offset = offset;
  layout.trailer_bytes =
      (int64_t)sizeof(struct quire_bundle_head) + (parts->count + 1) * (int64_t)sizeof(struct quire_hash128);
  layout.bytes = align_up(offset + layout.trailer_bytes, QUIRE_BUNDLE_ALIGN);
  *layout_out = layout;
}

struct quire_hash128 quire_bundle_part_digest(const struct quire_part *part, const uint8_t *page,
                                              int32_t valid_tokens) {
  QUIRE_ASSERT(valid_tokens >= 1 && (int64_t)valid_tokens * part->row_bytes <= part->page_bytes);
  if (valid_tokens * part->row_bytes == part->page_bytes || part->pieces == 1) {
    return quire_hash128(page, (size_t)valid_tokens * (size_t)part->row_bytes, 0);
  }
  struct quire_hash128_stream stream;
  quire_hash128_begin(&stream, 0);
  for (int32_t i = 0; i < part->pieces; i++) {
    quire_hash128_add(&stream, page + part->piece[i].offset, (size_t)valid_tokens * (size_t)part->piece[i].row_bytes);
  }
  return quire_hash128_end(&stream);
}

void quire_bundle_trailer_encode(const struct quire_bundle_layout *layout, const struct quire_bundle_info *info,
                                 const struct quire_hash128 *digests, uint8_t *trailer_out) {
  QUIRE_ASSERT(info->valid_tokens >= 1 && info->valid_tokens <= layout->page_tokens && info->request_page.v >= 0);
  struct quire_bundle_head head = {
      .version = QUIRE_BUNDLE_VERSION,
      .part_count = (uint32_t)layout->part_count,
      .fingerprint = info->fingerprint,
      .chain = info->chain,
      .request_page = info->request_page.v,
      .valid_tokens = info->valid_tokens,
      .page_tokens = (uint32_t)layout->page_tokens,
  };
  memcpy(head.magic, QUIRE_BUNDLE_MAGIC, sizeof head.magic);
  memset(trailer_out, 0, (size_t)(layout->bytes - layout->trailer_offset));
  memcpy(trailer_out, &head, sizeof head);
  memcpy(trailer_out + sizeof head, digests, (size_t)layout->part_count * sizeof *digests);
  struct quire_hash128 seal = quire_hash128(trailer_out, (size_t)seal_offset(layout), 0);
  memcpy(trailer_out + seal_offset(layout), &seal, sizeof seal);
}

enum quire_status quire_bundle_trailer_decode(const struct quire_bundle_layout *layout, const uint8_t *trailer,
                                              struct quire_bundle_info *info_out, struct quire_hash128 *digests_out,
                                              struct quire_error *error_out) {
  QUIRE_ASSERT(layout != NULL && trailer != NULL && info_out != NULL);
  struct quire_bundle_head head;
  memcpy(&head, trailer, sizeof head);
  if (memcmp(head.magic, QUIRE_BUNDLE_MAGIC, sizeof head.magic) != 0) {
    return quire_error_set(error_out, QUIRE_ERR_CORRUPT, "bundle", "no trailer where one should be");
  }
  if (head.version != QUIRE_BUNDLE_VERSION) {
    return quire_error_set(error_out, QUIRE_ERR_CORRUPT, "bundle", "version %u, this build reads %d", head.version,
                           QUIRE_BUNDLE_VERSION);
  }
  /* The seal's place follows from the part count, so a bundle of another table shows before its seal can be looked at.
   */
  if (head.part_count != (uint32_t)layout->part_count || head.page_tokens != (uint32_t)layout->page_tokens) {
    return quire_error_set(error_out, QUIRE_ERR_MISMATCH, "bundle", "%u parts of %u tokens, expected %d of %d",
                           head.part_count, head.page_tokens, layout->part_count, layout->page_tokens);
  }
  struct quire_hash128 seal;
  memcpy(&seal, trailer + seal_offset(layout), sizeof seal);
  if (!quire_hash128_equal(seal, quire_hash128(trailer, (size_t)seal_offset(layout), 0))) {
    return quire_error_set(error_out, QUIRE_ERR_CORRUPT, "bundle", "the trailer's digest is wrong");
  }
  if (head.request_page < 0 || head.valid_tokens < 1 || head.valid_tokens > layout->page_tokens || head.reserved != 0) {
    return quire_error_set(error_out, QUIRE_ERR_CORRUPT, "bundle", "request page %d with %d tokens", head.request_page,
                           head.valid_tokens);
  }
  *info_out = (struct quire_bundle_info){
      .fingerprint = head.fingerprint,
      .chain = head.chain,
      .request_page = {head.request_page},
      .valid_tokens = head.valid_tokens,
  };
  if (digests_out != NULL) {
    memcpy(digests_out, trailer + sizeof head, (size_t)layout->part_count * sizeof *digests_out);
  }
  return QUIRE_OK;
}

/* Zeroes what lies in the part behind the valid rows of its pieces, and the padding up to the next part. */
static void clear_rest(const struct quire_part *part, int32_t valid_tokens, uint8_t *page, int64_t room) {
  QUIRE_ASSERT(valid_tokens >= 0 && room >= part->page_bytes);
  int64_t begin = 0;
  for (int32_t i = 0; i < part->pieces; i++) {
    begin = part->piece[i].offset + (int64_t)valid_tokens * part->piece[i].row_bytes;
    int64_t end = i + 1 < part->pieces ? part->piece[i + 1].offset : room;
    memset(page + begin, 0, (size_t)(end - begin));
  }
}

void quire_bundle_seal(const struct quire_parts *parts, const struct quire_bundle_layout *layout,
                       const struct quire_bundle_info *info, uint8_t *bundle) {
  QUIRE_ASSERT(parts->count == layout->part_count);
  struct quire_hash128 digests[QUIRE_PARTS_MAX];
  for (int32_t i = 0; i < parts->count; i++) {
    uint8_t *page = bundle + layout->part_offset[i];
    int64_t next = i + 1 < parts->count ? layout->part_offset[i + 1] : layout->trailer_offset;
    digests[i] = quire_bundle_part_digest(&parts->part[i], page, info->valid_tokens);
    clear_rest(&parts->part[i], info->valid_tokens, page, next - layout->part_offset[i]);
  }
  quire_bundle_trailer_encode(layout, info, digests, bundle + layout->trailer_offset);
}

enum quire_status quire_bundle_check(const struct quire_parts *parts, const struct quire_bundle_layout *layout,
                                     const struct quire_bundle_info *expected, const uint8_t *bundle,
                                     struct quire_error *error_out) {
  QUIRE_ASSERT(parts->count == layout->part_count);
  struct quire_bundle_info info;
  struct quire_hash128 digests[QUIRE_PARTS_MAX];
  enum quire_status status =
      quire_bundle_trailer_decode(layout, bundle + layout->trailer_offset, &info, digests, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  if (!quire_hash128_equal(info.fingerprint, expected->fingerprint)) {
    return quire_error_set(error_out, QUIRE_ERR_MISMATCH, "bundle", "it was written with another fingerprint");
  }
  if (!quire_hash128_equal(info.chain, expected->chain) || info.request_page.v != expected->request_page.v ||
      info.valid_tokens != expected->valid_tokens) {
    return quire_error_set(error_out, QUIRE_ERR_MISMATCH, "bundle",
                           "it holds request page %d with %d tokens of another chain, wanted page %d with %d",
                           info.request_page.v, info.valid_tokens, expected->request_page.v, expected->valid_tokens);
  }
  for (int32_t i = 0; i < parts->count; i++) {
    struct quire_hash128 digest =
        quire_bundle_part_digest(&parts->part[i], bundle + layout->part_offset[i], info.valid_tokens);
    if (!quire_hash128_equal(digest, digests[i])) {
      return quire_error_set(error_out, QUIRE_ERR_CORRUPT, "bundle", "the digest of part %d is wrong", i);
    }
  }
  return QUIRE_OK;
}
