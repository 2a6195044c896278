/* An event loop: one thread that waits for sockets, other descriptors and timers (libevent's, over epoll).
 *
 * Memory: the loop and its watches come from env; libevent's own from malloc, since its allocator is one per process.
 * Threads: everything from the thread that runs the loop, or while no thread does; quire_loop_stop from any. */
#ifndef QUIRE_NET_LOOP_H
#define QUIRE_NET_LOOP_H

#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_loop;
struct quire_loop_watch;

typedef void quire_loop_call(void *context);

/* QUIRE_ERR_MEMORY, QUIRE_ERR_IO (no descriptors left). */
enum quire_status quire_loop_create(const struct quire_env *env, struct quire_loop **loop_out,
                                    struct quire_error *error_out);
/* Everything that was made on the loop must have been destroyed; NULL is allowed. */
void quire_loop_destroy(struct quire_loop *loop);
/* Runs until quire_loop_stop; a stop that came first is not lost. QUIRE_ERR_IO when the system's wait fails. */
enum quire_status quire_loop_run(struct quire_loop *loop, struct quire_error *error_out);
/* Any thread, and safe in a signal handler. */
void quire_loop_stop(struct quire_loop *loop);

/* Calls whenever fd is readable; the descriptor stays the caller's and is not read. QUIRE_ERR_MEMORY. */
enum quire_status quire_loop_watch_fd(struct quire_loop *loop, int fd, quire_loop_call *call, void *context,
                                      struct quire_loop_watch **watch_out);
/* A timer, not running yet. QUIRE_ERR_MEMORY. */
enum quire_status quire_loop_timer(struct quire_loop *loop, quire_loop_call *call, void *context,
                                   struct quire_loop_watch **watch_out);
/* Calls once after delay_ns; a running timer begins anew. */
void quire_loop_timer_start(struct quire_loop_watch *timer, uint64_t delay_ns);
/* Ends a watch or a timer; allowed inside its own call. NULL is allowed. */
void quire_loop_watch_end(struct quire_loop_watch *watch);

#ifdef __cplusplus
}
#endif
#endif
