/* What the host half (view_cuda.c) hands to the kernels (view_kernels.cu): plain structs by value, and the tables of a
 * step.
 *
 * A step's tables are laid out in a pinned slab and copied to the device in one go when the step begins:
 *
 *   | batch arrays, target and draft | entries | prefix pages | gather pages | places | appends | commits | parts |
 *
 * Everything a kernel needs to find a row is in them, so between begin and fence the host writes nothing. */
#ifndef QUIRE_VIEW_CUDA_VIEW_CUDA_PRIVATE_H
#define QUIRE_VIEW_CUDA_VIEW_CUDA_PRIVATE_H

#include <stdint.h>

#include "device/peer.h"
#include "layout/kv_source.h"
#include "layout/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_VIEW_CUDA_ARRAYS 3 /* latent rows, index keys, their scales */

/* One entry of the plan, as its sources need it. */
struct quire_view_cuda_entry {
  int32_t prefix_end, end;
  int32_t fresh_first, fresh_capacity;
  int32_t fresh_row; /* prefill: first row in the fresh segment; decode: -1 */
  int32_t request;
  int32_t pointer_first; /* of the prefix's pages in the pointer table */
  int32_t pointer_count;
};

/* One page of an entry's prefix. */
struct quire_view_cuda_page {
  int32_t page;   /* id */
  int32_t gather; /* in the scratch, or -1: read where it is */
};

/* One page to be gathered. */
struct quire_view_cuda_gather_page {
  int32_t local; /* page of its owner */
  int16_t owner;
  int16_t rows; /* that are valid */
};

/* Where a fresh row comes from and goes to. */
struct quire_view_cuda_place {
  int32_t rank;  /* whose block, or -1: zeros */
  int32_t row;   /* in it */
  int32_t local; /* own page, or -1 */
  int32_t slot;
};

/* A decode row into the local segment. */
struct quire_view_cuda_append {
  int32_t row; /* in the own slot */
  int32_t request;
  int32_t ring;
  int32_t zero;
};

/* A row of another rank's local segment into an own page. */
struct quire_view_cuda_commit {
  const uint8_t *segment; /* the request's, at its home */
  int32_t ring;
  int32_t local;
  int32_t slot;
  int32_t zero;
};

/* A part of this rank: its pages, and its rings in a request's local segment. */
struct quire_view_cuda_part {
  uint8_t *base;
  int64_t page_stride;
  int64_t segment[QUIRE_PART_PIECES_MAX]; /* offsets of the rings */
  int32_t offset[QUIRE_PART_PIECES_MAX];  /* of the pieces in a page */
  int32_t row_bytes[QUIRE_PART_PIECES_MAX];
  int32_t pieces;
  int32_t zero;
};

/* Where every rank keeps the pages of one part. */
struct quire_view_cuda_pages {
  const uint8_t *base[QUIRE_PEERS_MAX];
  int64_t stride[QUIRE_PEERS_MAX];
  int32_t storage_ranks;
  int32_t own; /* rank whose pages are read here if it stores them */
};

struct quire_view_cuda_sources {
  struct quire_view_cuda_pages pages;
  const struct quire_view_cuda_entry *entry;
  const struct quire_view_cuda_page *prefix;
  struct quire_kv_source *sources_out;
  const uint8_t **pointers_out;
  const uint8_t *gather; /* scratch of the kind, pages of gather_bytes */
  int64_t gather_bytes;
  const uint8_t *fresh[QUIRE_PART_PIECES_MAX];
  const uint8_t *local; /* segment of request 0 */
  int64_t request_bytes;
  int64_t ring[QUIRE_PART_PIECES_MAX];
  int32_t row_bytes[QUIRE_PART_PIECES_MAX];
  int32_t page_tokens;
  int32_t entries, pointers;
};

/* Where a rank keeps the pages of one part. */
struct quire_view_cuda_origin {
  const uint8_t *base;
  int64_t stride;
};

/* Gathers the pages of a list: for each, the rows of up to three arrays. What every piece needs comes first and lies
 * close together: a kernel's arguments are cold when it begins. */
struct quire_view_cuda_gather {
  const struct quire_view_cuda_gather_page *list;
  uint8_t *target[2];                        /* scratch of a kind: pages as the owners' */
  uint32_t page_bytes[2];                    /* of a kind, its arrays one behind the other; 0: not in this layer */
  int32_t row_bytes[QUIRE_VIEW_CUDA_ARRAYS]; /* 0: no such array */
  int32_t scale_offset;                      /* of the third array in a page; the others begin theirs */
  int32_t page_tokens;
  int32_t count;
  int32_t width;    /* multiprocessors */
  uint32_t *claims; /* a zero of this gather alone, if no page is ragged and all multiples of 16; or NULL */
  bool ragged;      /* is any page not valid to its end? */
  struct quire_view_cuda_origin origin[2][QUIRE_PEERS_MAX]; /* latent, index key */
};

struct quire_view_cuda_put {
  const uint8_t *block[QUIRE_PEERS_MAX];
  const struct quire_view_cuda_place *place;
  const struct quire_view_cuda_append *append;
  uint8_t *fresh[QUIRE_VIEW_CUDA_ARRAYS];
  uint8_t *page[QUIRE_VIEW_CUDA_ARRAYS]; /* own pages of the array's part, at the array's offset; NULL: no such array */
  int64_t page_stride[QUIRE_VIEW_CUDA_ARRAYS];
  int64_t array_offset[QUIRE_VIEW_CUDA_ARRAYS]; /* in a block */
  uint8_t *ring[QUIRE_VIEW_CUDA_ARRAYS];        /* of request 0 */
  const uint8_t *own;                           /* slot */
  int64_t request_bytes;
  int32_t row_bytes[QUIRE_VIEW_CUDA_ARRAYS];
  int32_t places, appends;
};

struct quire_view_cuda_commits {
  const struct quire_view_cuda_commit *commit;
  const struct quire_view_cuda_part *part;
  int32_t commits, parts;
};

/* Loads the kernels of the four launches to the current device, so that no step does; 0, or the runtime's error. */
int quire_view_cuda_load(void);

/* Launches on a cudaStream_t of the current device; 0, or the runtime's error. */
int quire_view_cuda_sources(const struct quire_view_cuda_sources *args, void *stream);
int quire_view_cuda_gather(const struct quire_view_cuda_gather *args, void *stream);
int quire_view_cuda_put(const struct quire_view_cuda_put *args, void *stream);
int quire_view_cuda_commits(const struct quire_view_cuda_commits *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
