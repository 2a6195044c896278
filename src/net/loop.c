#include "net/loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "net/loop_private.h"

struct quire_loop {
  const struct quire_env *env;
  struct event_base *base;
  int stop_fd; /* an eventfd: written by quire_loop_stop, never read, so that a stop stays */
  struct event stop;
  int watches;
};

struct quire_loop_watch {
  struct quire_loop *loop;
  quire_loop_call *call;
  void *context;
  struct event event;
};

static void on_stop(evutil_socket_t fd, short what, void *context) {
  (void)fd;
  (void)what;
  struct quire_loop *loop = context;
  QUIRE_ASSERT(loop->base != NULL);
  event_base_loopbreak(loop->base);
}

static struct event_base *create_base(void) {
  struct event_config *config = event_config_new();
  if (config == NULL) {
    return NULL;
  }
  event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
  struct event_base *base = event_base_new_with_config(config);
  event_config_free(config);
  return base;
}

enum quire_status quire_loop_create(const struct quire_env *env, struct quire_loop **loop_out,
                                    struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL);
  struct quire_loop *loop = quire_env_zalloc(env, 1, sizeof *loop);
  if (loop == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "loop", "no memory for the event loop");
  }
  loop->env = env;
  loop->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  loop->base = loop->stop_fd >= 0 ? create_base() : NULL;
  if (loop->base == NULL) {
    quire_loop_destroy(loop);
    return quire_error_set(error_out, QUIRE_ERR_IO, "loop",
                           "the system has no descriptor for an event loop (ulimit -n)");
  }
  event_assign(&loop->stop, loop->base, loop->stop_fd, EV_READ | EV_PERSIST, on_stop, loop);
  event_add(&loop->stop, NULL);
  *loop_out = loop;
  return QUIRE_OK;
}

void quire_loop_destroy(struct quire_loop *loop) {
  if (loop == NULL) {
    return;
  }
  QUIRE_ASSERT(loop->watches == 0);
  if (loop->base != NULL) {
    event_del(&loop->stop);
    event_base_free(loop->base);
  }
  if (loop->stop_fd >= 0) {
    close(loop->stop_fd);
  }
  quire_env_free(loop->env, loop, 1, sizeof *loop);
}

/* Writing to a client that left raises SIGPIPE; a library sets no handlers, but may keep its own thread from being hit.
 * One that waits when the loop ends is taken, so that the caller's mask comes back as it was. */
static int dispatch(struct event_base *base) {
  sigset_t pipe, before;
  QUIRE_ASSERT(base != NULL);
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  int result = event_base_dispatch(base);
  if (!sigismember(&before, SIGPIPE)) {
    struct timespec now = {0, 0};
    sigtimedwait(&pipe, NULL, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return result;
}

enum quire_status quire_loop_run(struct quire_loop *loop, struct quire_error *error_out) {
  QUIRE_ASSERT(loop->base != NULL);
  if (dispatch(loop->base) < 0) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "loop", "waiting for events failed");
  }
  uint64_t count;
  ssize_t got = read(loop->stop_fd, &count, sizeof count);
  QUIRE_ASSERT(got == (ssize_t)sizeof count);
  return QUIRE_OK;
}

void quire_loop_stop(struct quire_loop *loop) {
  uint64_t one = 1;
  ssize_t wrote = write(loop->stop_fd, &one, sizeof one);
  QUIRE_ASSERT(wrote == (ssize_t)sizeof one);
}

static void on_event(evutil_socket_t fd, short what, void *context) {
  (void)fd;
  (void)what;
  struct quire_loop_watch *watch = context;
  QUIRE_ASSERT(watch->call != NULL);
  watch->call(watch->context);
}

static enum quire_status add_watch(struct quire_loop *loop, int fd, quire_loop_call *call, void *context,
                                   struct quire_loop_watch **watch_out) {
  QUIRE_ASSERT(call != NULL);
  struct quire_loop_watch *watch = quire_env_zalloc(loop->env, 1, sizeof *watch);
  if (watch == NULL) {
    return QUIRE_ERR_MEMORY;
  }
  watch->loop = loop;
  watch->call = call;
  watch->context = context;
  event_assign(&watch->event, loop->base, fd, fd >= 0 ? EV_READ | EV_PERSIST : 0, on_event, watch);
  loop->watches++;
  *watch_out = watch;
  return QUIRE_OK;
}

enum quire_status quire_loop_watch_fd(struct quire_loop *loop, int fd, quire_loop_call *call, void *context,
                                      struct quire_loop_watch **watch_out) {
  QUIRE_ASSERT(fd >= 0);
  enum quire_status status = add_watch(loop, fd, call, context, watch_out);
  if (status == QUIRE_OK) {
    event_add(&(*watch_out)->event, NULL);
  }
  return status;
}

enum quire_status quire_loop_timer(struct quire_loop *loop, quire_loop_call *call, void *context,
                                   struct quire_loop_watch **watch_out) {
  QUIRE_ASSERT(loop != NULL);
  return add_watch(loop, -1, call, context, watch_out);
}

struct timeval quire_loop_timeval(uint64_t ns) {
  QUIRE_ASSERT(ns < UINT64_MAX / 2);
  return (struct timeval){(time_t)(ns / 1000000000), (suseconds_t)(ns % 1000000000 / 1000)};
}

void quire_loop_timer_start(struct quire_loop_watch *timer, uint64_t delay_ns) {
  QUIRE_ASSERT(event_get_fd(&timer->event) < 0);
  struct timeval delay = quire_loop_timeval(delay_ns);
  event_add(&timer->event, &delay);
}

void quire_loop_watch_end(struct quire_loop_watch *watch) {
  if (watch == NULL) {
    return;
  }
  QUIRE_ASSERT(watch->loop->watches > 0);
  event_del(&watch->event);
  watch->loop->watches--;
  quire_env_free(watch->loop->env, watch, 1, sizeof *watch);
}

struct event_base *quire_loop_base(struct quire_loop *loop) {
  QUIRE_ASSERT(loop->base != NULL);
  return loop->base;
}
