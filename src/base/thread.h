/* Starting a thread with a stack of a known size, whatever the shell's limit: kernels keep some 360 KiB of tiles there.
 *
 * Threads: any. */
#ifndef QUIRE_BASE_THREAD_H
#define QUIRE_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_THREAD_STACK_BYTES ((size_t)2 << 20)

/* False when the system has no thread to give (see ulimit -u). */
bool quire_thread_start(pthread_t *thread_out, void *(*main)(void *context), void *context);

/* As much stack for the process's first thread, which has what the shell allows, where kernels run on that one. False
 * when the system allows less (see ulimit -Hs). */
bool quire_thread_first_stack(void);

#ifdef __cplusplus
}
#endif
#endif
