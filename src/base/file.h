/* Whole files: mapped read only, or read into memory up to a limit.
 *
 * Errors name the file and the system's reason: QUIRE_ERR_NOT_FOUND when there is none, QUIRE_ERR_IO for everything
 * else the system says (a directory, no permission), QUIRE_ERR_ARGUMENT for a file above the limit. A file that shrinks
 * while it is mapped ends in SIGBUS; weights are not edited in place. Threads: any; a mapping may be read by all. */
#ifndef QUIRE_BASE_FILE_H
#define QUIRE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pages of a file; data is never NULL after success, bytes may be 0. */
struct quire_mapping {
  const uint8_t *data;
  size_t bytes;
};

/* Maps a regular file read only; the file descriptor is closed again. Owned by the caller until quire_file_unmap. */
enum quire_status quire_file_map(const char *path, struct quire_mapping *mapping_out, struct quire_error *error_out);
void quire_file_unmap(struct quire_mapping *mapping);
/* A hint: reads will be few and scattered (true), or as usual. */
void quire_file_sparse(const struct quire_mapping *mapping, bool sparse);
/* A hint: [data, data + bytes) of a mapping will hardly be read again, its pages need not stay resident. */
void quire_file_done(const void *data, size_t bytes);

/* A file's bytes followed by one NUL that is not counted. */
struct quire_file_text {
  char *data;
  size_t bytes;
};

/* Reads a file of at most limit bytes; freed with quire_file_text_free and the same env. */
enum quire_status quire_file_read(const struct quire_env *env, const char *path, size_t limit,
                                  struct quire_file_text *text_out, struct quire_error *error_out);
void quire_file_text_free(const struct quire_env *env, struct quire_file_text *text);

/* Writes a file whole or not at all: to a temporary name beside it, synced, then renamed over path. */
enum quire_status quire_file_write(const char *path, const void *data, size_t bytes, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
