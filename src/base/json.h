/* Strict reading of JSON files: model configuration, tokenizers, safetensors headers.
 *
 * Parsing is jansson's; this adds what every reader of ours wants: a bound on the file, duplicate keys refused, and one
 * line that names the file, the key, the value found and what would be accepted.
 *
 *   struct quire_json_reader r = quire_json_reader(root, "config.json", &error);
 *   int64_t layers = quire_json_need_int(&r, "num_hidden_layers", 1, 127);
 *   double eps = quire_json_number(&r, "rms_norm_eps", 0, 1, 1e-6);
 *   if (r.status) { return r.status; }
 *
 * A reader keeps its first failure and answers every later question with the fallback, so that a long list of
 * questions needs one check at its end. A key whose value is null counts as absent.
 *
 * Memory: the tree is jansson's and comes from malloc, since jansson's allocator is one per process and not ours to
 * set; release it with json_decref. File bytes come from env and are given back before a call returns.
 * Where jansson itself runs out of memory in the middle of a token it calls the text invalid, and so do we.
 * Threads: no shared state; a tree may be read by several threads. */
#ifndef QUIRE_BASE_JSON_H
#define QUIRE_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A text's part that goes into a message: quoted values are cut to this. */
#define QUIRE_JSON_SHOW_BYTES 80

struct quire_json_reader {
  const json_t *object;
  const char *where; /* "config.json", or "config.json: rope_scaling" for an object inside; outlives the reader */
  struct quire_error *error;
  enum quire_status status; /* QUIRE_OK, or of the first failure */
};

/* Reads and parses a whole file whose root must be an object. QUIRE_ERR_NOT_FOUND: no such file; QUIRE_ERR_IO;
 * QUIRE_ERR_ARGUMENT: larger than bytes_max; QUIRE_ERR_CORRUPT: not JSON, a duplicate key; QUIRE_ERR_MEMORY. */
enum quire_status quire_json_load(const struct quire_env *env, const char *path, size_t bytes_max, json_t **root_out,
                                  struct quire_error *error_out);
/* The same of bytes in memory; where names them in messages. */
enum quire_status quire_json_parse(const void *bytes, size_t count, const char *where, json_t **root_out,
                                   struct quire_error *error_out);

/* object must be a JSON object. */
struct quire_json_reader quire_json_reader(const json_t *object, const char *where, struct quire_error *error);
/* The value of a key; NULL where it is absent or null. Never fails. */
const json_t *quire_json_get(const struct quire_json_reader *reader, const char *key);
/* Fails the reader, unless it failed already: `where: key` and the formatted line. */
void quire_json_fail(struct quire_json_reader *reader, enum quire_status status, const char *key, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));

/* An integer within [min, max]; need_ fails when the key is absent, the other answers fallback. */
int64_t quire_json_need_int(struct quire_json_reader *reader, const char *key, int64_t min, int64_t max);
int64_t quire_json_int(struct quire_json_reader *reader, const char *key, int64_t min, int64_t max, int64_t fallback);
/* A number, written as integer or real, within [min, max]. */
double quire_json_need_number(struct quire_json_reader *reader, const char *key, double min, double max);
double quire_json_number(struct quire_json_reader *reader, const char *key, double min, double max, double fallback);
bool quire_json_need_bool(struct quire_json_reader *reader, const char *key);
bool quire_json_bool(struct quire_json_reader *reader, const char *key, bool fallback);
/* A string; the pointer lives as long as the tree. */
const char *quire_json_need_string(struct quire_json_reader *reader, const char *key);
const char *quire_json_string(struct quire_json_reader *reader, const char *key, const char *fallback);
/* An array or an object; NULL when absent (without need_) or after a failure. */
const json_t *quire_json_need_array(struct quire_json_reader *reader, const char *key);
const json_t *quire_json_array(struct quire_json_reader *reader, const char *key);
const json_t *quire_json_need_object(struct quire_json_reader *reader, const char *key);
const json_t *quire_json_object(struct quire_json_reader *reader, const char *key);

/* Fails with QUIRE_ERR_UNSUPPORTED at the first key, in file order, that is in none of the two NULL-terminated lists
 * (the second may be NULL). */
void quire_json_refuse_unknown(struct quire_json_reader *reader, const char *const *known, const char *const *ignored);

/* Writes a value for a message, cut to size - 1 bytes: 3, "relu", [1, 2], {...}. Returns out. */
const char *quire_json_show(const json_t *value, char *out, size_t size);

#ifdef __cplusplus
}
#endif
#endif
