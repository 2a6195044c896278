/* A line of the log as a JSON object: the words before the first "key=value" are its message, the pairs are members.
 *
 *     worker ready ranks=2 name="a b" took_ms=1.5
 *     {"ts":"2026-01-31T12:00:00.000Z","level":"info","msg":"worker ready","ranks":2,"name":"a b","took_ms":1.5}
 *
 * A value is a number where it is written as JSON writes one, with 15 digits at most; any other is a string, so that an
 * id of a client's (007, 1e5, 30 digits) stays what it is. Threads: as the buffer. */
#ifndef QUIRE_SERVER_LOG_WRITE_H
#define QUIRE_SERVER_LOG_WRITE_H

#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends the object and a newline, valid UTF-8 whatever the line holds. time and level are written as they are. */
void quire_log_write_json(struct quire_strbuf *out, const char *time, const char *level, const char *line);

#ifdef __cplusplus
}
#endif
#endif
