#include "server/json_write.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

#include "base/utf8.h"

static void write_control(struct quire_strbuf *out, uint8_t c) {
  static const char digits[] = "0123456789abcdef";
  const char *shorts = "\"\\\b\f\n\r\t", *letters = "\"\\bfnrt";
  const char *found = c != 0 ? strchr(shorts, c) : NULL;
  if (found != NULL) {
    char pair[2] = {'\\', letters[found - shorts]};
    quire_strbuf_add(out, pair, 2);
  } else {
    char code[6] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
    quire_strbuf_add(out, code, 6);
  }
}

void quire_json_write_escaped(struct quire_strbuf *out, const char *text, size_t bytes) {
  const uint8_t *at = (const uint8_t *)text;
  size_t plain = 0, i = 0;
  while (i < bytes) {
    uint8_t c = at[i];
    size_t step = quire_utf8_valid(at + i, at + bytes);
    if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f && step > 0) {
      i += step;
      continue;
    }
    if (i > plain) {
      quire_strbuf_add(out, text + plain, i - plain);
    }
    if (step == 0) {
      quire_strbuf_add(out, "\xEF\xBF\xBD", 3);
    } else {
      write_control(out, c);
    }
    plain = ++i;
  }
  if (bytes > plain) {
    quire_strbuf_add(out, text + plain, bytes - plain);
  }
}

void quire_json_write_bytes(struct quire_strbuf *out, const char *text, size_t bytes) {
  quire_strbuf_add_char(out, '"');
  quire_json_write_escaped(out, text, bytes);
  quire_strbuf_add_char(out, '"');
}

void quire_json_write_string(struct quire_strbuf *out, const char *text) {
  if (text == NULL) {
    quire_strbuf_add(out, "null", 4);
  } else {
    quire_json_write_bytes(out, text, strlen(text));
  }
}

void quire_json_write_number(struct quire_strbuf *out, double value) {
  double bounded = value != value ? -9999.0 : value > DBL_MAX ? 9999.0 : value < -DBL_MAX ? -9999.0 : value;
  quire_strbuf_addf(out, "%.9g", bounded);
}

void quire_json_write_int(struct quire_strbuf *out, long long value) {
  char digits[24];
  size_t at = sizeof digits;
  unsigned long long rest = value < 0 ? 0ull - (unsigned long long)value : (unsigned long long)value;
  do {
    digits[--at] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest > 0);
  if (value < 0) {
    digits[--at] = '-';
  }
  quire_strbuf_add(out, digits + at, sizeof digits - at);
}
