/* JSON that is written: text escaped into a buffer, one line, valid UTF-8 whatever comes in.
 * Threads: as the buffer. */
#ifndef QUIRE_SERVER_JSON_WRITE_H
#define QUIRE_SERVER_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Escapes without quotes around it; bytes that are not UTF-8 become U+FFFD. */
void quire_json_write_escaped(struct quire_strbuf *out, const char *text, size_t bytes);
/* A string with its quotes; NULL is null. */
void quire_json_write_string(struct quire_strbuf *out, const char *text);
void quire_json_write_bytes(struct quire_strbuf *out, const char *text, size_t bytes);
/* A number with nine digits; JSON has no infinities and no NaN: they become 9999 and -9999. */
void quire_json_write_number(struct quire_strbuf *out, double value);
void quire_json_write_int(struct quire_strbuf *out, long long value);

#ifdef __cplusplus
}
#endif
#endif
