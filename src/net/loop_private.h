/* What the sockets of this folder see of the loop. */
#ifndef QUIRE_NET_LOOP_PRIVATE_H
#define QUIRE_NET_LOOP_PRIVATE_H

#include <event2/event.h>
#include <event2/event_struct.h>
#include <sys/time.h>

#include "net/loop.h"

#ifdef __cplusplus
extern "C" {
#endif

struct event_base *quire_loop_base(struct quire_loop *loop);
struct timeval quire_loop_timeval(uint64_t ns);

#ifdef __cplusplus
}
#endif
#endif
