#include "base/thread.h"

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
