#include "base/thread.h"

#include <sys/resource.h>

bool quire_thread_start(pthread_t *thread_out, void *(*main)(void *context), void *context) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) {
    return false;
  }
  bool started = pthread_attr_setstacksize(&attributes, QUIRE_THREAD_STACK_BYTES) == 0 &&
                 pthread_create(thread_out, &attributes, main, context) == 0;
  pthread_attr_destroy(&attributes);
  return started;
}

/* The kernel looks at the limit when the stack grows, so it counts from now on. */
bool quire_thread_first_stack(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_STACK, &limit) != 0) {
    return false;
  }
  if (limit.rlim_cur >= QUIRE_THREAD_STACK_BYTES) { /* RLIM_INFINITY is the largest number */
    return true;
  }
  limit.rlim_cur = QUIRE_THREAD_STACK_BYTES;
  return setrlimit(RLIMIT_STACK, &limit) == 0;
}
