/* The layout: which bytes a page has, and who stores it. Everything else is made from one.
 *
 *   page     page_tokens slots of every part, named by a number in the worker's logical space
 *   part     one kind of bytes: {target, draft} x {latent, index key} x layer. Its page is one or two pieces, each an
 *            array of rows: row i of a piece lies at offset + i * row_bytes
 *
 *              latent     | row 0 | row 1 | ... |                      one piece
 *              index key  | key 0, key 1 .. | scale 0, scale 1 .. |    two pieces (one in format f32)
 *
 *   bundle   all parts of a page; present as a whole or not at all
 *   rank     one memory. owner(page) = page mod storage ranks, local(page) = page / storage ranks; rank r stores a page
 *            if r mod storage ranks = owner; the lowest such rank sends it. Shared: storage ranks = ranks, each page
 *            lies on one rank. Replicated: storage ranks = 1, each page lies on all
 *
 *   page      0   1   2   3   4   5  ...       2 ranks, shared
 *   rank      0   1   0   1   0   1
 *   local     0   0   1   1   2   2
 *
 * Bytes a row: f32 2,304 latent and 512 index key; bf16 1,152 and 132; fp8 656 and 132.
 *
 * A layout does not change. Caches and banks copy what they need: it may be destroyed before them.
 * Threads: any, several at once; destroy when nobody else uses it. */
#ifndef QUIRE_KV_LAYOUT_H
#define QUIRE_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "quire/kv_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_KV_RANKS_MAX 16
#define QUIRE_KV_PARTS_MAX 256
#define QUIRE_KV_PAGE_TOKENS_MAX 256
#define QUIRE_KV_PAGES_MAX (1 << 24)
#define QUIRE_KV_NUMERICS_BYTES_MAX 128

enum quire_kv_row_format { QUIRE_KV_ROW_F32 = 1, QUIRE_KV_ROW_BF16 = 2, QUIRE_KV_ROW_FP8 = 3 };
enum quire_kv_model { QUIRE_KV_TARGET = 0, QUIRE_KV_DRAFT = 1 };
enum quire_kv_kind { QUIRE_KV_LATENT = 0, QUIRE_KV_INDEX_KEY = 1 };

struct quire_kv_layout;

struct quire_kv_layout_options {
  size_t size;
  int32_t format;        /* enum quire_kv_row_format */
  int32_t page_tokens;   /* 1 to QUIRE_KV_PAGE_TOKENS_MAX; 0: 64 */
  int32_t target_layers; /* at least 1; latent, index key and draft parts together at most QUIRE_KV_PARTS_MAX */
  int32_t draft_layers;  /* 0, or 1 with a draft (MTP) layer */
  /* [target_layers] of 0 and 1: 0 for a layer that uses the selection of one below it. NULL: every layer has its own */
  const uint8_t *owns_indexer;
  int32_t ranks;      /* 1 to QUIRE_KV_RANKS_MAX; 0: 1 */
  int32_t replicated; /* 0: pages are shared; 1: every rank stores every page */
  int32_t pages;      /* of the worker, all ranks together: 1 to QUIRE_KV_PAGES_MAX */
  int32_t reserved;
  /* Name of the arithmetic that makes the rows, 1 to QUIRE_KV_NUMERICS_BYTES_MAX bytes: pages of one are never taken
   * for those of another. An engine with kernels of its own chooses its own, and a new one when a bit changes. */
  const char *numerics_id;
  struct quire_kv_hash model; /* identity of the weights, for instance quire_kv_digest of what names them */
};

struct quire_kv_layout_info {
  size_t size;
  int32_t format, page_tokens, target_layers, draft_layers;
  int32_t ranks, storage_ranks, pages, parts;
  int64_t page_bytes; /* of all parts of a page */
  int64_t rest_bytes; /* of a page packed into host memory: a multiple of 4,096 */
  /* what two workers, or a worker and a store, must agree on: parts table, numerics_id and model */
  struct quire_kv_hash fingerprint;
};

struct quire_kv_part {
  size_t size;
  int32_t model; /* enum quire_kv_model */
  int32_t kind;  /* enum quire_kv_kind */
  int32_t layer; /* of its model, from 0 */
  int32_t pieces;
  int32_t row_bytes;  /* of all pieces */
  int32_t page_bytes; /* page_tokens * row_bytes */
  int32_t piece_offset[2];
  int32_t piece_row_bytes[2];
};

struct quire_kv_place {
  size_t size;
  int32_t owner;  /* the stripe: page mod storage ranks */
  int32_t local;  /* where each rank that stores it keeps it */
  int32_t sender; /* the lowest rank that stores it */
  uint32_t ranks; /* bit r: rank r stores it */
};

/* QUIRE_ERR_ARGUMENT (the text names the field), QUIRE_ERR_MEMORY, QUIRE_ERR_AGAIN (no handle left). */
QUIRE_API enum quire_status quire_kv_layout_create(const struct quire_kv_layout_options *options,
                                                   struct quire_kv_layout **layout_out, struct quire_error *error_out);
/* NULL is QUIRE_OK. QUIRE_ERR_STATE: destroyed before. */
QUIRE_API enum quire_status quire_kv_layout_destroy(struct quire_kv_layout *layout);

QUIRE_API enum quire_status quire_kv_layout_info(struct quire_kv_layout *layout, struct quire_kv_layout_info *info_out);
/* The part at index, 0 .. parts - 1. The order is that of the parts at rest: target layers ascending, latent before
 * index key, then the draft layer. */
QUIRE_API enum quire_status quire_kv_layout_part(struct quire_kv_layout *layout, int32_t index,
                                                 struct quire_kv_part *part_out);
/* Ownership, a pure function of the page. QUIRE_ERR_ARGUMENT for a page outside. */
QUIRE_API enum quire_status quire_kv_layout_place(struct quire_kv_layout *layout, quire_kv_page page,
                                                  struct quire_kv_place *place_out);
/* Number of pages a rank stores: what memory bound to its bank must have room for. May be 0. */
QUIRE_API enum quire_status quire_kv_layout_local_pages(struct quire_kv_layout *layout, int32_t rank,
                                                        int32_t *pages_out);

#ifdef __cplusplus
}
#endif
#endif
