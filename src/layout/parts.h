/* The parts table: every kind of bytes a page has (design D2). Pool sizes, views, hand-off, store, digests and
 * `quire info` iterate over it; a payload nobody lists does not exist, one that is listed is moved everywhere.
 *
 * A part is {target, draft} x {latent, index key} x layer. Its page is one or two pieces, each an array of rows:
 *
 *   latent page     | row 0 | row 1 | ... | row 63 |                        one piece
 *   index key page  | key 0 ... key 63 | scale 0 ... scale 63 |             two pieces (one in format f32)
 *
 * A row travels as its pieces joined. Bytes a row:
 *
 *   format   latent                                      index key
 *   f32      576 x f32                       = 2,304     128 x f32             = 512
 *   bf16     576 x bf16                      = 1,152     128 x e4m3 + f32      = 132
 *   fp8      512 x e4m3 + 4 x f32 + 64 x bf16 =  656     128 x e4m3 + f32      = 132
 *
 * Pure; compiles for host and device. The table is a value without pointers. */
#ifndef QUIRE_LAYOUT_PARTS_H
#define QUIRE_LAYOUT_PARTS_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_PARTS_MAX 256
#define QUIRE_PART_PIECES_MAX 2
#define QUIRE_PART_NONE (-1)

#define QUIRE_LATENT_DIM 512
#define QUIRE_ROPE_DIM 64
#define QUIRE_KV_DIM 576
#define QUIRE_INDEX_DIM 128
#define QUIRE_LATENT_BLOCK 128

enum quire_kv_format { QUIRE_KV_F32, QUIRE_KV_BF16, QUIRE_KV_FP8 };
enum quire_part_model { QUIRE_PART_TARGET, QUIRE_PART_DRAFT };
enum quire_part_kind { QUIRE_PART_LATENT, QUIRE_PART_INDEX_KEY };

struct quire_piece {
  int32_t offset;    /* from the page's first byte */
  int32_t row_bytes; /* row i lies at offset + i * row_bytes */
};

struct quire_part {
  enum quire_part_model model;
  enum quire_part_kind kind;
  int32_t layer; /* of its model, from 0 */
  int32_t row_bytes;
  int32_t page_bytes; /* page_tokens * row_bytes */
  int32_t pieces;
  struct quire_piece piece[QUIRE_PART_PIECES_MAX];
};

struct quire_parts {
  int32_t count;
  int32_t page_tokens;
  enum quire_kv_format format;
  int32_t target_layers;
  int32_t draft_layers; /* 0 without MTP, else 1 */
  struct quire_part part[QUIRE_PARTS_MAX];
};

static_assert(sizeof(struct quire_piece) == 8, "piece of 8 bytes");
static_assert(offsetof(struct quire_piece, row_bytes) == 4, "row bytes at 4");
static_assert(sizeof(struct quire_part) == 40, "part of 40 bytes");
static_assert(offsetof(struct quire_part, kind) == 4, "kind at 4");
static_assert(offsetof(struct quire_part, layer) == 8, "layer at 8");
static_assert(offsetof(struct quire_part, row_bytes) == 12, "row bytes at 12");
static_assert(offsetof(struct quire_part, page_bytes) == 16, "page bytes at 16");
static_assert(offsetof(struct quire_part, pieces) == 20, "pieces at 20");
static_assert(offsetof(struct quire_part, piece) == 24, "piece at 24");
static_assert(sizeof(struct quire_parts) == 10260, "parts of 10260 bytes");
static_assert(offsetof(struct quire_parts, page_tokens) == 4, "page tokens at 4");
static_assert(offsetof(struct quire_parts, format) == 8, "format at 8");
static_assert(offsetof(struct quire_parts, target_layers) == 12, "target layers at 12");
static_assert(offsetof(struct quire_parts, draft_layers) == 16, "draft layers at 16");
static_assert(offsetof(struct quire_parts, part) == 20, "part at 20");

/* Builds the table in its canonical order: target layers ascending (latent, then index key where the layer owns an
 * indexer), then draft layers. owns_indexer[layer] is false for a layer that reuses the list of a layer below it
 * (NULL: every layer owns one). Returns false when the layers do not fit QUIRE_PARTS_MAX or a number is not sane. */
bool quire_parts_build(struct quire_parts *parts_out, enum quire_kv_format format, int32_t page_tokens,
                       int32_t target_layers, const bool *owns_indexer, int32_t draft_layers);

/* Index of a part in the table, QUIRE_PART_NONE where it has none. */
int32_t quire_parts_find(const struct quire_parts *parts, enum quire_part_model model, enum quire_part_kind kind,
                         int32_t layer);

/* Bytes of all parts of a page on the device, without padding. */
int64_t quire_parts_bundle_bytes(const struct quire_parts *parts);

const char *quire_kv_format_name(enum quire_kv_format format);

#ifdef __cplusplus
}
#endif
#endif
