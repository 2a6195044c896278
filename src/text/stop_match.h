/* Stop strings in a stream of text: passes on what can no longer be part of one, holds back the rest.
 *
 *   stops {"\nUser:"}, pushes "Yes.", "\nUs", "er: no"  ->  "Yes.", "", "" and matched
 *
 * The first stop to be complete ends the stream; among those that end at the same byte, the longest. That does not
 * depend on how the text was cut into pushes. What follows a match is never looked at.
 *
 * Memory: create reserves all, from env; texts of stops are copied. Threads: one owner. */
#ifndef QUIRE_TEXT_STOP_MATCH_H
#define QUIRE_TEXT_STOP_MATCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_STOPS_MAX 32
#define QUIRE_STOP_BYTES_MAX 1024
#define QUIRE_STOP_NONE (-1)

struct quire_stop_text {
  const char *text; /* any bytes but none at all */
  size_t bytes;
};

struct quire_stop_match;

/* QUIRE_ERR_REQUEST: more than QUIRE_STOPS_MAX, an empty one or one above QUIRE_STOP_BYTES_MAX; QUIRE_ERR_MEMORY.
 * No stops at all are legal and never match. */
enum quire_status quire_stop_match_create(const struct quire_env *env, const struct quire_stop_text *stops,
                                          size_t count, struct quire_stop_match **match_out,
                                          struct quire_error *error_out);
/* NULL is allowed. */
void quire_stop_match_destroy(struct quire_stop_match *match);

/* Most that one push of `bytes` writes: bytes plus what was held back. */
size_t quire_stop_match_push_bytes_max(const struct quire_stop_match *match, size_t bytes);
/* Adds text; writes what is certain to text_out (room for push_bytes_max) and returns its bytes. *stop_out is the index
 * of the stop that is now complete, or QUIRE_STOP_NONE. A match writes the text in front of the stop, without it. After
 * a match only destroy is allowed. */
size_t quire_stop_match_push(struct quire_stop_match *match, const char *text, size_t bytes, char *text_out,
                             int32_t *stop_out);
/* The stream ended: writes what is held back (less than QUIRE_STOP_BYTES_MAX) and returns its bytes. */
size_t quire_stop_match_end(struct quire_stop_match *match, char *text_out);

#ifdef __cplusplus
}
#endif
#endif
