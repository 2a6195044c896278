/* The JSON reader: any bytes, and on what parses every kind of question about every key. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const json_t *object, const char *key) {
  struct quire_error error = {0};
  char shown[QUIRE_JSON_SHOW_BYTES];
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
  quire_json_show(json_object_get(object, key), shown, sizeof shown);
  QUIRE_ASSERT(strlen(shown) < sizeof shown && !strchr(shown, '\n'));
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
