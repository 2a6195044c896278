#include "base/arena.h"

#include "base/assert.h"

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#define ARENA_ALIGN_MAX 4096

enum quire_status quire_arena_init(struct quire_arena *arena, const struct quire_env *env, size_t bytes,
                                   struct quire_error *error_out) {
  *arena = (struct quire_arena){.env = env};
  if (bytes == 0) {
    return QUIRE_OK;
  }
  uint8_t *base = env->alloc(env->context, bytes, ARENA_ALIGN_MAX);
  if (!base) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "arena", "no memory for %zu bytes", bytes);
  }
  arena->base = base;
  arena->bytes = bytes;
  ASAN_POISON_MEMORY_REGION(base, bytes);
  return QUIRE_OK;
}

void quire_arena_fini(struct quire_arena *arena) {
  if (arena->base) {
    ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->bytes);
    arena->env->dealloc(arena->env->context, arena->base, arena->bytes);
  }
  *arena = (struct quire_arena){.env = arena->env};
}

void *quire_arena_take(struct quire_arena *arena, size_t size, size_t align) {
  QUIRE_ASSERT(align > 0 && align <= ARENA_ALIGN_MAX && (align & (align - 1)) == 0);
  QUIRE_ASSERT(arena->used <= arena->bytes);
  size_t begin = (arena->used + align - 1) & ~(align - 1);
  if (!arena->base || begin > arena->bytes || size > arena->bytes - begin) {
    return NULL;
  }
  arena->used = begin + size;
  arena->high_water = arena->used > arena->high_water ? arena->used : arena->high_water;
  ASAN_UNPOISON_MEMORY_REGION(arena->base + begin, size);
  return arena->base + begin;
}

void quire_arena_rewind(struct quire_arena *arena, size_t mark) {
  QUIRE_ASSERT(mark <= arena->used);
  if (arena->base) {
    ASAN_POISON_MEMORY_REGION(arena->base + mark, arena->bytes - mark);
  }
  arena->used = mark;
}
