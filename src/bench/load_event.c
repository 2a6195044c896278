#include "bench/load_event.h"

#include <string.h>

/* The first byte of the value of a key, whose quotes are part of it; NULL: there is no such key. */
static const char *value_of(const char *json, size_t bytes, const char *key) {
  const size_t length = strlen(key);
  const char *end = json + bytes;
  for (const char *at = json; at < end; at++) {
    at = memmem(at, (size_t)(end - at), key, length);
    if (at == NULL) {
      return NULL;
    }
    const char *value = at + length;
    while (value < end && *value == ' ') {
      value++;
    }
    if (value < end && *value == ':') { /* else it is a value that looks like the key */
      for (value++; value < end && *value == ' '; value++) {
      }
      return value < end ? value : NULL;
    }
  }
  return NULL;
}

static bool has_text(const char *json, size_t bytes, const char *key) {
  const char *value = value_of(json, bytes, key);
  return value != NULL && json + bytes - value >= 2 && value[0] == '"' && value[1] != '"';
}

static int32_t number_of(const char *json, size_t bytes, const char *key) {
  const char *value = value_of(json, bytes, key);
  int32_t number = -1;
  for (; value != NULL && value < json + bytes && *value >= '0' && *value <= '9' && number < 100000000; value++) {
    number = (number < 0 ? 0 : number) * 10 + (*value - '0');
  }
  return number;
}

struct load_event load_event_read(const char *json, size_t bytes) {
  static const char *const texts[] = {"\"content\"", "\"text\"", "\"reasoning_content\"", "\"reasoning\""};
  struct load_event event = {.object = bytes >= 2 && json[0] == '{' && json[bytes - 1] == '}',
                             .prompt_tokens = -1,
                             .completion_tokens = -1,
                             .cached_tokens = -1};
  for (size_t i = 0; i < sizeof texts / sizeof *texts && !event.text; i++) {
    event.text = has_text(json, bytes, texts[i]);
  }
  event.error = bytes > 9 && (memcmp(json, "{\"error\":", 9) == 0 || memcmp(json, "{\"error\" ", 9) == 0);
  event.completion_tokens = number_of(json, bytes, "\"completion_tokens\"");
  event.usage = event.completion_tokens >= 0;
  if (event.usage) {
    event.prompt_tokens = number_of(json, bytes, "\"prompt_tokens\"");
    event.cached_tokens = number_of(json, bytes, "\"cached_tokens\"");
  }
  return event;
}
