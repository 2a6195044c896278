/* What the library takes from its surroundings: memory, time, random numbers and a place for its log lines.
 *
 * Every object that allocates, measures time or logs is given one at creation and keeps the pointer; the caller owns
 * the struct and keeps it alive longer than the objects. Nothing else in the library calls malloc, clock_gettime or
 * writes to a stream, so a test can refuse the n-th allocation, turn the clock by hand and read the log.
 *
 * Threads: the functions behind the pointers must be callable from any thread. */
#ifndef QUIRE_BASE_ENV_H
#define QUIRE_BASE_ENV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum quire_log_level { QUIRE_LOG_ERROR, QUIRE_LOG_WARN, QUIRE_LOG_INFO, QUIRE_LOG_DEBUG };

struct quire_env {
  void *context;
  /* size bytes (> 0) aligned to align (a power of two >= 8), not zeroed; NULL when there is no memory */
  void *(*alloc)(void *context, size_t size, size_t align);
  /* gives back what alloc returned, with the same size; NULL is allowed */
  void (*dealloc)(void *context, void *memory, size_t size);
  /* monotonic nanoseconds */
  uint64_t (*now_ns)(void *context);
  /* 64 random bits for salts and incarnations; never for anything a result depends on */
  uint64_t (*random)(void *context);
  /* one line without its newline */
  void (*log)(void *context, enum quire_log_level level, const char *line);
};

/* libc's aligned_alloc and free, CLOCK_MONOTONIC, getrandom, and stderr for warnings and errors. */
const struct quire_env *quire_env_default(void);

/* env->alloc with a 64-byte alignment, zeroed; NULL when there is no memory or count * size overflows. */
void *quire_env_zalloc(const struct quire_env *env, size_t count, size_t size);
/* Gives back what quire_env_zalloc returned for the same count and size. */
void quire_env_free(const struct quire_env *env, void *memory, size_t count, size_t size);

/* Formats one log line into env->log. */
void quire_env_log(const struct quire_env *env, enum quire_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
