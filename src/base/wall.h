/* The time of the calendar, for what is shown to people and clients; nothing measures with it, nothing depends on it.
 * Threads: any. */
#ifndef QUIRE_BASE_WALL_H
#define QUIRE_BASE_WALL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_WALL_HTTP_BYTES 30
#define QUIRE_WALL_ISO_BYTES 25

/* Milliseconds since 1970, UTC. */
int64_t quire_wall_ms(void);
/* "Sun, 06 Nov 1994 08:49:37 GMT", as HTTP's Date has it. */
void quire_wall_http(int64_t ms, char out[QUIRE_WALL_HTTP_BYTES]);
/* "1994-11-06T08:49:37.123Z" */
void quire_wall_iso(int64_t ms, char out[QUIRE_WALL_ISO_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
