#include "layout/parts.h"

#include <stddef.h>

#include "base/assert.h"
#include "layout/geometry.h"

static void latent_part(struct quire_part *part, enum quire_kv_format format, int32_t page_tokens) {
  QUIRE_ASSERT(format >= QUIRE_KV_F32 && format <= QUIRE_KV_FP8 && page_tokens > 0);
  static const int32_t row_bytes[] = {
      [QUIRE_KV_F32] = QUIRE_KV_DIM * 4,
      [QUIRE_KV_BF16] = QUIRE_KV_DIM * 2,
      [QUIRE_KV_FP8] = QUIRE_LATENT_DIM + QUIRE_LATENT_DIM / QUIRE_LATENT_BLOCK * 4 + QUIRE_ROPE_DIM * 2,
  };
  part->kind = QUIRE_PART_LATENT;
  part->row_bytes = row_bytes[format];
  part->page_bytes = page_tokens * part->row_bytes;
  part->pieces = 1;
  part->piece[0] = (struct quire_piece){0, part->row_bytes};
}

/* Keys first, then scales: the scan of a page streams over both. */
static void index_part(struct quire_part *part, enum quire_kv_format format, int32_t page_tokens) {
  QUIRE_ASSERT(format >= QUIRE_KV_F32 && format <= QUIRE_KV_FP8 && page_tokens > 0);
  int32_t key_bytes = format == QUIRE_KV_F32 ? QUIRE_INDEX_DIM * 4 : QUIRE_INDEX_DIM;
  int32_t scale_bytes = format == QUIRE_KV_F32 ? 0 : 4;
  part->kind = QUIRE_PART_INDEX_KEY;
  part->row_bytes = key_bytes + scale_bytes;
  part->page_bytes = page_tokens * part->row_bytes;
  part->pieces = scale_bytes == 0 ? 1 : 2;
  part->piece[0] = (struct quire_piece){0, key_bytes};
  if (scale_bytes != 0) {
    part->piece[1] = (struct quire_piece){page_tokens * key_bytes, scale_bytes};
  }
}

bool quire_parts_build(struct quire_parts *parts_out, enum quire_kv_format format, int32_t page_tokens,
                       int32_t target_layers, const bool *owns_indexer, int32_t draft_layers) {
  bool known = format == QUIRE_KV_F32 || format == QUIRE_KV_BF16 || format == QUIRE_KV_FP8;
  if (!known || page_tokens < 1 || page_tokens > QUIRE_PAGE_TOKENS_MAX || target_layers < 1 ||
      target_layers > QUIRE_PARTS_MAX || draft_layers < 0 || draft_layers > 1) {
    return false;
  }
  int32_t needed = target_layers + 2 * draft_layers;
  for (int32_t layer = 0; layer < target_layers; layer++) {
    needed += owns_indexer == NULL || owns_indexer[layer];
  }
  if (needed > QUIRE_PARTS_MAX) {
    return false;
  }
  struct quire_parts parts = {
      .page_tokens = page_tokens, .format = format, .target_layers = target_layers, .draft_layers = draft_layers};
  for (int32_t i = 0; i < target_layers + draft_layers; i++) {
    bool draft = i >= target_layers;
    enum quire_part_model model = draft ? QUIRE_PART_DRAFT : QUIRE_PART_TARGET;
    int32_t layer = draft ? i - target_layers : i;
    struct quire_part *part = &parts.part[parts.count++];
    part->model = model;
    part->layer = layer;
    latent_part(part, format, page_tokens);
    if (draft || owns_indexer == NULL || owns_indexer[layer]) {
      part = &parts.part[parts.count++];
      part->model = model;
      part->layer = layer;
      index_part(part, format, page_tokens);
    }
  }
  QUIRE_ASSERT(parts.count == needed);
  *parts_out = parts;
  return true;
}

int32_t quire_parts_find(const struct quire_parts *parts, enum quire_part_model model, enum quire_part_kind kind,
                         int32_t layer) {
  QUIRE_ASSERT(parts != NULL && parts->count <= QUIRE_PARTS_MAX);
  for (int32_t i = 0; i < parts->count; i++) {
    const struct quire_part *part = &parts->part[i];
    if (part->model == model && part->kind == kind && part->layer == layer) {
      return i;
    }
  }
  return QUIRE_PART_NONE;
}

int64_t quire_parts_bundle_bytes(const struct quire_parts *parts) {
  QUIRE_ASSERT(parts != NULL && parts->count <= QUIRE_PARTS_MAX);
  int64_t bytes = 0;
  for (int32_t i = 0; i < parts->count; i++) {
    bytes += parts->part[i].page_bytes;
  }
  return bytes;
}

const char *quire_kv_format_name(enum quire_kv_format format) {
  switch (format) {
  case QUIRE_KV_F32:
    return "f32";
  case QUIRE_KV_BF16:
    return "bf16";
  case QUIRE_KV_FP8:
    return "fp8";
  }
  return "unknown";
}
