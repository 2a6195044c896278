/* Answers of a reader that has failed are fallbacks within the bounds asked for, so that a caller may compute with them
 * until it looks at the status.
 *
 * Rejected: a schema table that fills structs by offset. Half of our keys have rules that tables do not say (this or
 * that key, a value that depends on another), and the questions in a row read like the table would. */
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/file.h"

/* jansson quotes the place of an error; what it quotes may hold control characters, and messages are one line. */
static void one_line(char *text) {
  for (; *text; text++) {
    if ((unsigned char)*text < 0x20 || *text == 0x7f) {
      *text = ' ';
    }
  }
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

enum quire_status quire_json_parse(const void *bytes, size_t count, const char *where, json_t **root_out,
                                   struct quire_error *error_out) {
  QUIRE_ASSERT(where && root_out && (bytes || count == 0));
  json_error_t error = {0};
  json_t *root = json_loadb(count ? bytes : "", count, JSON_REJECT_DUPLICATES, &error);
  if (!root) {
    if (json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0') {
      return quire_error_set(error_out, QUIRE_ERR_MEMORY, where, "no memory for its %zu bytes of JSON", count);
    }
    one_line(error.text);
    return quire_error_set(error_out, QUIRE_ERR_CORRUPT, where,
                           "is not valid JSON: line %d column %d: %s; restore the file", error.line, error.column,
                           error.text);
  }
  if (!json_is_object(root)) {
    json_decref(root);
    return quire_error_set(error_out, QUIRE_ERR_CORRUPT, where, "must hold a JSON object at its top; restore the file");
  }
  *root_out = root;
  return QUIRE_OK;
}

enum quire_status quire_json_load(const struct quire_env *env, const char *path, size_t bytes_max, json_t **root_out,
                                  struct quire_error *error_out) {
  QUIRE_ASSERT(env && path && root_out);
  struct quire_file_text text;
  enum quire_status status = quire_file_read(env, path, bytes_max, &text, error_out);
  if (status) {
    return status;
  }
  status = quire_json_parse(text.data, text.bytes, base_name(path), root_out, error_out);
  quire_file_text_free(env, &text);
  return status;
}

struct quire_json_reader quire_json_reader(const json_t *object, const char *where, struct quire_error *error) {
  QUIRE_ASSERT(json_is_object(object) && where);
  return (struct quire_json_reader){.object = object, .where = where, .error = error, .status = QUIRE_OK};
}

const json_t *quire_json_get(const struct quire_json_reader *reader, const char *key) {
  const json_t *value = json_object_get(reader->object, key);
  return json_is_null(value) ? NULL : value;
}

void quire_json_fail(struct quire_json_reader *reader, enum quire_status status, const char *key, const char *format,
                     ...) {
  QUIRE_ASSERT(status != QUIRE_OK);
  if (reader->status) {
    return;
  }
  char where[QUIRE_WHERE_BYTES];
  char text[QUIRE_TEXT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(where, sizeof where, "%s: %s", reader->where, key);
  one_line(where);
  one_line(text);
  reader->status = quire_error_set(reader->error, status, where, "%s", text);
}

/* The beginning of a text, as far as there is room. */
struct beginning {
  char *out;
  size_t room, bytes; /* of out; of the whole text so far */
};

/* json_dumpb would leave out a piece that does not fit, and with it most of a long string. */
static int keep_beginning(const char *piece, size_t bytes, void *context) {
  struct beginning *b = context;
  const size_t left = b->bytes < b->room ? b->room - b->bytes : 0, kept = bytes < left ? bytes : left;
  if (kept > 0) {
    memcpy(b->out + b->bytes, piece, kept);
  }
  b->bytes += bytes;
  return 0;
}

const char *quire_json_show(const json_t *value, char *out, size_t size) {
  QUIRE_ASSERT(out && size > 8);
  if (!value) {
    snprintf(out, size, "nothing");
    return out;
  }
  if (json_is_object(value)) {
    snprintf(out, size, "{...}");
    return out;
  }
  /* ASCII, so that a cut never splits a character */
  struct beginning b = {.out = out, .room = size - 1};
  if (json_dump_callback(value, keep_beginning, &b, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9))) {
    snprintf(out, size, "something"); /* no memory, or nested too deeply */
    return out;
  }
  if (b.bytes > b.room) {
    b.bytes = b.room;
    memcpy(out + size - 4, "...", 3);
  }
  out[b.bytes] = '\0';
  return out;
}

/* The value of a key for a getter: NULL after a failure, or when it is absent (which fails a reader that needs it). */
static const json_t *value_of(struct quire_json_reader *reader, const char *key, bool needed) {
  if (reader->status) {
    return NULL;
  }
  const json_t *value = quire_json_get(reader, key);
  if (!value && needed) {
    quire_json_fail(reader, QUIRE_ERR_CORRUPT, key, "is missing; restore the file, or add the key");
  }
  return value;
}

static void fail_type(struct quire_json_reader *reader, const char *key, const json_t *value, const char *wanted) {
  char shown[QUIRE_JSON_SHOW_BYTES];
  quire_json_fail(reader, QUIRE_ERR_CORRUPT, key, "must be %s, not %s", wanted,
                  quire_json_show(value, shown, sizeof shown));
}

static int64_t integer(struct quire_json_reader *reader, const char *key, int64_t min, int64_t max, int64_t fallback) {
  const json_t *value = json_object_get(reader->object, key);
  if (json_is_integer(value) && json_integer_value(value) >= min && json_integer_value(value) <= max) {
    return json_integer_value(value);
  }
  char wanted[96];
  if (min == max) {
    snprintf(wanted, sizeof wanted, "%lld", (long long)min);
  } else {
    snprintf(wanted, sizeof wanted, "an integer from %lld to %lld", (long long)min, (long long)max);
  }
  fail_type(reader, key, value, wanted);
  return fallback;
}

int64_t quire_json_need_int(struct quire_json_reader *reader, const char *key, int64_t min, int64_t max) {
  QUIRE_ASSERT(min <= max);
  return value_of(reader, key, true) ? integer(reader, key, min, max, min) : min;
}

int64_t quire_json_int(struct quire_json_reader *reader, const char *key, int64_t min, int64_t max, int64_t fallback) {
  QUIRE_ASSERT(min <= max);
  return value_of(reader, key, false) ? integer(reader, key, min, max, fallback) : fallback;
}

static double number(struct quire_json_reader *reader, const char *key, double min, double max, double fallback) {
  const json_t *value = json_object_get(reader->object, key);
  double found = json_number_value(value);
  if (json_is_number(value) && found >= min && found <= max) {
    return found;
  }
  char wanted[96];
  snprintf(wanted, sizeof wanted, "a number from %g to %g", min, max);
  fail_type(reader, key, value, wanted);
  return fallback;
}

double quire_json_need_number(struct quire_json_reader *reader, const char *key, double min, double max) {
  QUIRE_ASSERT(min <= max);
  return value_of(reader, key, true) ? number(reader, key, min, max, min) : min;
}

double quire_json_number(struct quire_json_reader *reader, const char *key, double min, double max, double fallback) {
  QUIRE_ASSERT(min <= max);
  return value_of(reader, key, false) ? number(reader, key, min, max, fallback) : fallback;
}

static bool boolean(struct quire_json_reader *reader, const char *key, bool needed, bool fallback) {
  const json_t *value = value_of(reader, key, needed);
  if (value && !json_is_boolean(value)) {
    fail_type(reader, key, value, "true or false");
    return fallback;
  }
  return value ? json_is_true(value) : fallback;
}

bool quire_json_need_bool(struct quire_json_reader *reader, const char *key) {
  return boolean(reader, key, true, false);
}

bool quire_json_bool(struct quire_json_reader *reader, const char *key, bool fallback) {
  return boolean(reader, key, false, fallback);
}

static const char *string(struct quire_json_reader *reader, const char *key, bool needed, const char *fallback) {
  const json_t *value = value_of(reader, key, needed);
  if (value && !json_is_string(value)) {
    fail_type(reader, key, value, "a string");
    return fallback;
  }
  return value ? json_string_value(value) : fallback;
}

const char *quire_json_need_string(struct quire_json_reader *reader, const char *key) {
  return string(reader, key, true, "");
}

const char *quire_json_string(struct quire_json_reader *reader, const char *key, const char *fallback) {
  return string(reader, key, false, fallback);
}

static const json_t *container(struct quire_json_reader *reader, const char *key, bool needed, json_type type) {
  const json_t *value = value_of(reader, key, needed);
  if (value && json_typeof(value) != type) {
    fail_type(reader, key, value, type == JSON_ARRAY ? "an array" : "an object");
    return NULL;
  }
  return value;
}

const json_t *quire_json_need_array(struct quire_json_reader *reader, const char *key) {
  return container(reader, key, true, JSON_ARRAY);
}

const json_t *quire_json_array(struct quire_json_reader *reader, const char *key) {
  return container(reader, key, false, JSON_ARRAY);
}

const json_t *quire_json_need_object(struct quire_json_reader *reader, const char *key) {
  return container(reader, key, true, JSON_OBJECT);
}

const json_t *quire_json_object(struct quire_json_reader *reader, const char *key) {
  return container(reader, key, false, JSON_OBJECT);
}

static bool listed(const char *const *list, const char *key) {
  for (; list && *list; list++) {
    if (strcmp(*list, key) == 0) {
      return true;
    }
  }
  return false;
}

void quire_json_refuse_unknown(struct quire_json_reader *reader, const char *const *known, const char *const *ignored) {
  if (reader->status) {
    return;
  }
  /* jansson's iterators take a mutable object although they only read it */
  json_t *object = (json_t *)(uintptr_t)reader->object;
  for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
    const char *key = json_object_iter_key(at);
    if (!listed(known, key) && !listed(ignored, key)) {
      quire_json_fail(reader, QUIRE_ERR_UNSUPPORTED, key,
                      "is not a key this version knows, and it could change the result; "
                      "remove it if it has no influence on inference");
      return;
    }
  }
}
