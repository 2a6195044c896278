/* What the files of the public interface share: handles, structs that begin with their size, conversions. The interface
 * adds no state but handles and the numbers of open requests; it turns whatever a caller can pass into either a call
 * that the object's own contract allows, or a status. Only files of this folder include this.
 *
 * Memory: objects come from the caller's allocator. Threads: handles may be looked up from any; the rest as the public
 * headers say. */
#ifndef QUIRE_API_API_PRIVATE_H
#define QUIRE_API_API_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/status.h"
#include "layout/geometry.h"
#include "layout/parts.h"
#include "quire/quire.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- handles: a table of the process, never freed --- */

enum quire_api_kind { QUIRE_API_NONE, QUIRE_API_BUSY, QUIRE_API_LAYOUT, QUIRE_API_CACHE, QUIRE_API_BANK };

/* A place for an object to come; NULL when all are taken. Nobody finds it before quire_api_handle_set. */
void *quire_api_handle_reserve(void);
void quire_api_handle_set(void *handle, enum quire_api_kind kind, void *object);
/* The object behind a handle; NULL with *status_out when it is NULL, foreign or of another kind (QUIRE_ERR_ARGUMENT),
 * or destroyed (QUIRE_ERR_STATE). Never reads through a handle that is not in the table. */
void *quire_api_handle_get(const void *handle, enum quire_api_kind kind, enum quire_status *status_out,
                           struct quire_error *error_out);
/* As get; from now on nobody else finds the object, which the caller destroys before quire_api_handle_free. */
void *quire_api_handle_take(void *handle, enum quire_api_kind kind, enum quire_status *status_out);
void quire_api_handle_free(void *handle);

/* --- structs that begin with their size --- */

/* Reads an option struct of any age into *known_out of known_bytes. QUIRE_ERR_ARGUMENT for NULL, a size that none of
 * the versions can have, or an unknown field that is not zero. name is for the text. */
enum quire_status quire_api_options_read(void *known_out, size_t known_bytes, const void *given, const char *name,
                                         struct quire_error *error_out);
/* Writes as much of a result as the caller's struct has room for. QUIRE_ERR_ARGUMENT as above; then nothing is written.
 */
enum quire_status quire_api_result_write(void *given, const void *known, size_t known_bytes);

/* --- environment --- */

/* The library's environment with a caller's allocator (NULL: libc's); logs nothing. */
enum quire_status quire_api_env(struct quire_env *env_out, const struct quire_kv_allocator *allocator,
                                struct quire_error *error_out);

/* --- layout, as caches and banks see it --- */

struct quire_api_layout {
  struct quire_geometry geometry;
  struct quire_parts parts;
  struct quire_hash128 fingerprint;
  int64_t rest_bytes;
};

const struct quire_api_layout *quire_api_layout_get(const struct quire_kv_layout *handle, enum quire_status *status_out,
                                                    struct quire_error *error_out);

static inline struct quire_hash128 quire_api_hash_in(struct quire_kv_hash hash) {
  struct quire_hash128 inner = {hash.low, hash.high};
  return inner;
}

static inline struct quire_kv_hash quire_api_hash_out(struct quire_hash128 hash) {
  struct quire_kv_hash outer = {hash.low, hash.high};
  return outer;
}

#ifdef __cplusplus
}
#endif
#endif
