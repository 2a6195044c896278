/* What a call of libquire answers, and the few types that all of its objects share.
 *
 * Every function answers an enum quire_status (the three that answer a name or a number cannot fail). QUIRE_OK is 0.
 * On failure outputs are untouched and the object is as before, unless a function says otherwise. Bad input of honest
 * type is always a status: NULL, numbers out of bounds, ids of another object, an object destroyed before.
 *
 * Option and result structs begin with their size, which the caller sets: `struct quire_kv_reserve r = {.size = sizeof
 * r}`. A struct of an older header is shorter: what it lacks has its default, which is always the zero. One of a newer
 * header is longer: an option struct is refused (QUIRE_ERR_ARGUMENT) unless what this library does not know is zero, a
 * result struct gets zeros there. A size is a multiple of 8, from 8 to QUIRE_KV_SIZE_MAX; fields named `reserved` are
 * 0.
 *
 * Handles (struct quire_kv_layout, _cache, _bank) point into a table of the library that is never freed, not to the
 * object: one that was destroyed, is of another kind or never was a handle is recognised without reading through it, in
 * every build. A place of the table is used again only after all others, QUIRE_KV_HANDLES_MAX, had their turn.
 *
 * Names. Everything public is quire_kv_ something (and quire_version), everything else in the library is hidden. */
#ifndef QUIRE_KV_STATUS_H
#define QUIRE_KV_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

/* Grows when a function or a field is added; a change that breaks callers changes the library's soname instead. */
#define QUIRE_KV_ABI 1
#define QUIRE_KV_HANDLES_MAX 1024 /* live objects of a process, of all kinds */
#define QUIRE_KV_SIZE_MAX 4096    /* bytes of any struct that begins with its size */

/* the library's own sources have the same two definitions in a header of theirs; src/api compares them */
#ifndef QUIRE_STATUS_DEFINED
#define QUIRE_STATUS_DEFINED

#define QUIRE_WHERE_BYTES 64
#define QUIRE_TEXT_BYTES 512

/* Grouped by what is damaged, 16 values a group. */
enum quire_status {
  QUIRE_OK = 0,
  /* the call: nothing is damaged */
  QUIRE_ERR_ARGUMENT = 1,    /* a value is out of bounds or contradicts another */
  QUIRE_ERR_STATE = 2,       /* the object does not allow the call now, or was destroyed */
  QUIRE_ERR_UNSUPPORTED = 3, /* what was asked for does not work together */
  QUIRE_ERR_AGAIN = 4,       /* no room at the moment; try again later */
  QUIRE_ERR_NOT_FOUND = 5,   /* no such request: released, or of another cache */
  /* the request: it fails, the others go on */
  QUIRE_ERR_REQUEST = 16,   /* too long, empty or otherwise impossible to serve */
  QUIRE_ERR_NONFINITE = 17, /* a NaN or an infinity was about to enter the cache */
  QUIRE_ERR_CANCELLED = 18,
  /* a peer */
  QUIRE_ERR_PEER = 32,
  QUIRE_ERR_MISMATCH = 33, /* fingerprints, versions or digests differ */
  /* a rank */
  QUIRE_ERR_ABORTED = 48,
  QUIRE_ERR_RANK = 49,
  /* the node */
  QUIRE_ERR_MEMORY = 64,
  QUIRE_ERR_IO = 65,
  QUIRE_ERR_CORRUPT = 66, /* bytes, or a structure, that are not what they must be */
};

/* Why a call failed. Filled once, by whoever found the fault; untouched by calls that succeed. */
struct quire_error {
  enum quire_status status;
  char where[QUIRE_WHERE_BYTES]; /* the object, "bank", "request", "handle", ... */
  char text[QUIRE_TEXT_BYTES];   /* one line: what is wrong and the way out */
};

#endif /* QUIRE_STATUS_DEFINED */

/* A page of the worker's logical space, 0 .. pages - 1. Who stores it follows from the number (quire_kv_layout_place).
 */
typedef struct {
  int32_t v;
} quire_kv_page;

#define QUIRE_KV_PAGE_NONE (-1)

/* XXH3-128; as bytes it is written low half first, each half little-endian. */
struct quire_kv_hash {
  uint64_t low;
  uint64_t high;
};

/* Where an object's own records come from (never KV memory). Copied at creation; what is behind the pointers must stay
 * as long as the object. NULL in the options: libc's. */
struct quire_kv_allocator {
  size_t size;
  void *context;
  /* size bytes (> 0) at a multiple of align (a power of two, 8 to 64); NULL when there is no memory */
  void *(*alloc)(void *context, size_t size, size_t align);
  /* gives back what alloc returned, with the same size */
  void (*dealloc)(void *context, void *memory, size_t size);
};

/* The QUIRE_KV_ABI the library was built with. At least that of the header the caller was compiled with, or functions
 * may be missing. */
QUIRE_API int32_t quire_kv_abi(void);

/* "ok", "argument", "memory", ...; "unknown" for any other number. Never NULL. */
QUIRE_API const char *quire_kv_status_name(enum quire_status status);

/* The digest used everywhere in the library, of bytes bytes (0: data may be NULL): for model identities and to compare
 * pages. QUIRE_ERR_ARGUMENT. */
QUIRE_API enum quire_status quire_kv_digest(const void *data, size_t bytes, struct quire_kv_hash *digest_out);

#ifdef __cplusplus
}
#endif
#endif
