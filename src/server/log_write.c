#include "server/log_write.h"

#include <stdbool.h>
#include <string.h>

#include "base/assert.h"
#include "server/json_write.h"

#define NUMBER_DIGITS_MAX 15 /* which a double holds */

static size_t digits_at(const char *text, size_t bytes) {
  size_t count = 0;
  while (count < bytes && text[count] >= '0' && text[count] <= '9') {
    count++;
  }
  return count;
}

/* "-12", "0.50"; no "007", ".5", "5." */
static bool is_number(const char *text, size_t bytes) {
  size_t at = bytes > 0 && text[0] == '-';
  size_t whole = digits_at(text + at, bytes - at), part = 0;
  if (whole == 0 || (whole > 1 && text[at] == '0')) {
    return false;
  }
  at += whole;
  if (at < bytes && text[at] == '.') {
    part = digits_at(text + at + 1, bytes - at - 1);
    at += part > 0 ? part + 1 : 0;
  }
  return at == bytes && whole + part <= NUMBER_DIGITS_MAX;
}

/* "key=value" as a member; the value may be quoted. */
static void add_field(struct quire_strbuf *out, const char *word, size_t bytes) {
  const char *equals = memchr(word, '=', bytes);
  QUIRE_ASSERT(equals != NULL);
  const size_t key = (size_t)(equals - word), left = bytes - key - 1;
  const char *value = equals + 1;
  quire_strbuf_add_char(out, ',');
  quire_json_write_bytes(out, word, key);
  quire_strbuf_add_char(out, ':');
  if (is_number(value, left)) {
    quire_strbuf_add(out, value, left);
  } else {
    const bool quoted = left >= 2 && value[0] == '"' && value[left - 1] == '"';
    quire_json_write_bytes(out, quoted ? value + 1 : value, quoted ? left - 2 : left);
  }
}

/* Bytes of the next word; blanks between quotes belong to it. */
static size_t word_bytes(const char *text) {
  size_t bytes = 0;
  bool quoted = false;
  for (; text[bytes] != '\0' && (quoted || text[bytes] != ' '); bytes++) {
    quoted = text[bytes] == '"' ? !quoted : quoted;
  }
  return bytes;
}

void quire_log_write_json(struct quire_strbuf *out, const char *time, const char *level, const char *line) {
  size_t message = 0;
  QUIRE_ASSERT(out && time && level && line);
  quire_strbuf_addf(out, "{\"ts\":\"%s\",\"level\":\"%s\",\"msg\":", time, level);
  for (const char *at = line; *at != '\0'; at += strspn(at, " ")) {
    const size_t bytes = word_bytes(at);
    if (memchr(at, '=', bytes) != NULL) {
      break;
    }
    at += bytes;
    message = (size_t)(at - line);
  }
  quire_json_write_bytes(out, line, message);
  for (const char *at = line + message + strspn(line + message, " "); *at != '\0'; at += strspn(at, " ")) {
    const size_t bytes = word_bytes(at);
    if (memchr(at, '=', bytes) != NULL) {
      add_field(out, at, bytes);
    }
    at += bytes;
  }
  quire_strbuf_add_text(out, "}\n");
}
