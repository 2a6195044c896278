/* Where every rank keeps every part: the peer mapping of a worker, and the epochs that say what may be read.
 *
 *   map.rank[r].part[p]   base + local * page_stride = the page's first byte        local in [0, pages)
 *   map.rank[r].written   one cell a local page: the epoch of its last write and the first row that epoch wrote
 *
 * In one process all ranks' memory is addressable, so a peer's page is an address; with several processes or devices
 * the bases are whatever their memory was mapped to. The bank of a rank owns the arrays (quire_bank_peer); a map is a
 * value of pointers to them, and whoever makes one keeps the banks alive.
 *
 * Epochs. A step has an epoch, an int64 from 1 up; it is open until the step's fence. A rank that writes rows of a page
 * it stores marks the page. Whoever reads rows [0, rows) of a page in epoch e must find them written before e: either
 * the page's last write is older, or it is of e itself and begins at or behind `rows` (a chunk or a commit that starts
 * in the middle of a page). A page never written since it was poisoned may not be read at all.
 *
 * Threads: a cell is marked by one thread at a time (the rank that stores the page, or its bank while nobody steps on
 * the page) and may be tested by any. */
#ifndef QUIRE_DEVICE_PEER_H
#define QUIRE_DEVICE_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_PEERS_MAX 16

/* A part as bound by one rank. */
struct quire_peer_part {
  uint8_t *base;
  int64_t page_stride; /* bytes, >= the part's page bytes; of a GPU like base a multiple of 16 */
  int32_t pages;       /* 0: not bound */
};

struct quire_peer {
  const struct quire_peer_part *part; /* [parts] */
  int64_t *written;                   /* [pages] cells, see below */
  int32_t parts;
  int32_t pages;
};

struct quire_peer_map {
  int32_t ranks;
  struct quire_peer rank[QUIRE_PEERS_MAX];
};

/* First byte of a rank's local page of a part; NULL when any number is outside or the part is not bound. */
static inline uint8_t *quire_peer_page(const struct quire_peer *peer, int32_t part, int32_t local) {
  if (part < 0 || part >= peer->parts || local < 0 || local >= peer->part[part].pages) {
    return NULL;
  }
  return peer->part[part].base + (int64_t)local * peer->part[part].page_stride;
}

#define QUIRE_WRITTEN_NEVER ((int64_t)-1)
#define QUIRE_WRITTEN_ROW_BITS 16
#define QUIRE_WRITTEN_EPOCH_MAX ((int64_t)1 << 46)

/* Marks rows from first_row (< 65,536) on as written in epoch (0: before all steps). Within one epoch the lowest first
 * row stays. */
static inline void quire_written_mark(int64_t *cell, int64_t epoch, int32_t first_row) {
  QUIRE_ASSERT(epoch >= 0 && first_row >= 0 && first_row >> QUIRE_WRITTEN_ROW_BITS == 0);
  int64_t now = __atomic_load_n(cell, __ATOMIC_RELAXED);
  int64_t next = (epoch << QUIRE_WRITTEN_ROW_BITS) | (int64_t)first_row;
  if (now >= 0 && now >> QUIRE_WRITTEN_ROW_BITS == epoch && now < next) {
    next = now;
  }
  __atomic_store_n(cell, next, __ATOMIC_RELEASE);
}

/* May rows [0, rows) be read in a step of this epoch? rows 0: always. */
static inline bool quire_written_readable(const int64_t *cell, int64_t epoch, int32_t rows) {
  QUIRE_ASSERT(epoch >= 0);
  int64_t now = __atomic_load_n(cell, __ATOMIC_ACQUIRE);
  if (rows <= 0) {
    return true;
  }
  if (now < 0) {
    return false;
  }
  int64_t last = now >> QUIRE_WRITTEN_ROW_BITS;
  int32_t first_row = (int32_t)(now & (((int64_t)1 << QUIRE_WRITTEN_ROW_BITS) - 1));
  return last < epoch || (last == epoch && first_row >= rows);
}

#ifdef __cplusplus
}
#endif
#endif
