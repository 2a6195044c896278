/* A bump arena: one allocation at the start, slices of it by adding to an offset, all given back at once.
 *
 *     base                    used                high water      bytes
 *     | taken | taken | taken |       free       |   untouched    |
 *
 * For scratch of a step and for everything with one common life. Slices are not zeroed. Under AddressSanitizer what is
 * not taken is poisoned. Memory: one block of env, freed by fini. Threads: one owner. */
#ifndef QUIRE_BASE_ARENA_H
#define QUIRE_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_arena {
  const struct quire_env *env;
  uint8_t *base;
  size_t bytes;
  size_t used;
  size_t high_water; /* largest `used` since init */
};

/* bytes may be 0: then every take fails. QUIRE_ERR_MEMORY leaves *arena empty, and fini of it is allowed. */
enum quire_status quire_arena_init(struct quire_arena *arena, const struct quire_env *env, size_t bytes,
                                   struct quire_error *error_out);
void quire_arena_fini(struct quire_arena *arena);

/* size bytes (may be 0) aligned to align, a power of two up to 4,096; NULL when the arena is full. */
void *quire_arena_take(struct quire_arena *arena, size_t size, size_t align);

/* What is taken after the mark is given back by quire_arena_rewind to it. Marks nest. */
static inline size_t quire_arena_mark(const struct quire_arena *arena) { return arena->used; }
void quire_arena_rewind(struct quire_arena *arena, size_t mark);

/* Bytes a slice of `size` needs in the worst case, for sizing an arena: size rounded up, plus the alignment. */
static inline size_t quire_arena_slice_bytes(size_t size, size_t align) { return size + align - 1; }

#ifdef __cplusplus
}
#endif
#endif
