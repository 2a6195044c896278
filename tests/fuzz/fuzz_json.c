// fuzz: runs=800000
/* The JSON reader: any bytes, and on what parses every kind of question about every key. An answer is the value that is
 * there, or the fallback, and fails exactly where the value is another kind or out of bounds. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a question about an integer and a number must say. */
static void check_values(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  const json_int_t whole = json_integer_value(value);
  const double real = json_number_value(value);
  const bool none = !value || json_is_null(value);
  const bool good_int = json_is_integer(value) && whole >= -10 && whole <= 10;
  const bool good_number = json_is_number(value) && real >= -10 && real <= 10;
  struct quire_error error = {0};
  struct quire_json_reader r = quire_json_reader(object, "fuzz", &error);
  QUIRE_ASSERT(quire_json_int(&r, key, -10, 10, -5) == (good_int ? whole : -5));
  QUIRE_ASSERT((r.status == QUIRE_OK) == (good_int || none));
  r = quire_json_reader(object, "fuzz", &error);
  const double number = quire_json_number(&r, key, -10, 10, -5), wanted = good_number ? real : -5;
  QUIRE_ASSERT(memcmp(&number, &wanted, sizeof number) == 0 && (r.status == QUIRE_OK) == (good_number || none));
  r = quire_json_reader(object, "fuzz", &error);
  const char *text = quire_json_string(&r, key, "none");
  QUIRE_ASSERT(strcmp(text, json_is_string(value) ? json_string_value(value) : "none") == 0);
  QUIRE_ASSERT((r.status == QUIRE_OK) == (json_is_string(value) || none));
  r = quire_json_reader(object, "fuzz", &error);
  QUIRE_ASSERT(quire_json_bool(&r, key, true) == !json_is_false(value));
  QUIRE_ASSERT((r.status == QUIRE_OK) == (json_is_boolean(value) || none));
}

/* What a message shows of a value is its beginning. */
static void check_shown(const json_t *value) {
  char shown[QUIRE_JSON_SHOW_BYTES];
  memset(shown, '\n', sizeof shown);
  quire_json_show(value, shown, sizeof shown);
  const char *end = memchr(shown, '\0', sizeof shown);
  QUIRE_ASSERT(end);
  char *whole = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
  if (whole && !json_is_object(value)) {
    const bool cut = strlen(whole) >= sizeof shown;
    QUIRE_ASSERT(cut ? end == shown + sizeof shown - 1 && memcmp(end - 3, "...", 3) == 0 : strcmp(shown, whole) == 0);
    QUIRE_ASSERT(memcmp(shown, whole, (size_t)(end - shown) - (cut ? 3 : 0)) == 0);
  }
  free(whole);
}

static void ask(const json_t *object, const char *key) {
  struct quire_error error = {0};
  for (int question = 0; question < 12; question++) {
    struct quire_json_reader r = quire_json_reader(object, "fuzz", &error);
    int64_t integer = -5;
    double number = -5;
    switch (question) {
    case 0:
      integer = quire_json_int(&r, key, -10, 10, -5);
      break;
    case 1:
      integer = quire_json_need_int(&r, key, -10, 10);
      break;
    case 2:
      number = quire_json_number(&r, key, -10, 10, -5);
      break;
    case 3:
      number = quire_json_need_number(&r, key, -10, 10);
      break;
    case 4:
      quire_json_bool(&r, key, true);
      break;
    case 5:
      quire_json_need_bool(&r, key);
      break;
    case 6:
      QUIRE_ASSERT(quire_json_string(&r, key, ""));
      break;
    case 7:
      QUIRE_ASSERT(quire_json_need_string(&r, key));
      break;
    case 8:
      QUIRE_ASSERT(!quire_json_array(&r, key) || r.status == QUIRE_OK);
      break;
    case 9:
      QUIRE_ASSERT(quire_json_need_array(&r, key) || r.status != QUIRE_OK);
      break;
    case 10:
      QUIRE_ASSERT(!quire_json_object(&r, key) || r.status == QUIRE_OK);
      break;
    default:
      quire_json_refuse_unknown(&r, (const char *const[]){"a", NULL}, NULL);
      break;
    }
    QUIRE_ASSERT(integer >= -10 && integer <= 10 && number >= -10 && number <= 10);
    QUIRE_ASSERT(r.status == QUIRE_OK || (error.text[0] && !strchr(error.text, '\n') && !strchr(error.where, '\n')));
  }
  check_values(object, key);
  check_shown(json_object_get(object, key));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  json_t *root = NULL;
  struct quire_error error = {0};
  if (quire_json_parse(data, size, "fuzz", &root, &error)) {
    QUIRE_ASSERT(error.status && error.text[0] && !strchr(error.text, '\n') && !root);
    return 0;
  }
  const char *key;
  json_t *value;
  int keys = 0;
  json_object_foreach(root, key, value) {
    if (keys++ < 64) {
      ask(root, key);
    }
  }
  ask(root, "no such key");
  json_decref(root);
  return 0;
}
