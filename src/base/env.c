#include "base/env.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

#include "base/assert.h"

#define ENV_ALIGN 64
#define ENV_LARGE_PAGE ((size_t)2 << 20)
#define ENV_LARGE_FROM (4 * ENV_LARGE_PAGE)
#define ENV_LINE_BYTES 1024

/* Large blocks are tables and pages that are read anywhere: they ask for large pages, without which every other read
 * of the prefix tree waits for an address as well. Where the kernel has none to give nothing changes. */
static void *default_alloc(void *context, size_t size, size_t align) {
  (void)context;
  QUIRE_ASSERT(size > 0);
  QUIRE_ASSERT(align >= sizeof(void *) && (align & (align - 1)) == 0);
  void *memory = NULL;
  const bool large = size >= ENV_LARGE_FROM;
  if (posix_memalign(&memory, large && align < ENV_LARGE_PAGE ? ENV_LARGE_PAGE : align, size) != 0) {
    return NULL;
  }
  if (large) {
    madvise(memory, size / ENV_LARGE_PAGE * ENV_LARGE_PAGE, MADV_HUGEPAGE);
  }
  return memory;
}

static void default_dealloc(void *context, void *memory, size_t size) {
  (void)context;
  (void)size;
  free(memory);
}

static uint64_t default_now_ns(void *context) {
  (void)context;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t default_random(void *context) {
  (void)context;
  uint64_t value = 0;
  ssize_t got;
  do {
    got = getrandom(&value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  /* the kernel answers requests of up to 256 bytes whole; a salt that is not random must not be used */
  QUIRE_ASSERT(got == (ssize_t)sizeof value);
  return value;
}

static void default_log(void *context, enum quire_log_level level, const char *line) {
  (void)context;
  if (level <= QUIRE_LOG_WARN) {
    fprintf(stderr, "quire: %s: %s\n", level == QUIRE_LOG_ERROR ? "error" : "warning", line);
  }
}

const struct quire_env *quire_env_default(void) {
  static const struct quire_env env = {
      .alloc = default_alloc,
      .dealloc = default_dealloc,
      .now_ns = default_now_ns,
      .random = default_random,
      .log = default_log,
  };
  return &env;
}

void *quire_env_zalloc(const struct quire_env *env, size_t count, size_t size) {
  size_t bytes;
  QUIRE_ASSERT(env);
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX) {
    return NULL;
  }
  /* count 0 answers a block all the same, so that NULL always means no memory */
  bytes = bytes ? bytes : 1;
  void *memory = env->alloc(env->context, bytes, ENV_ALIGN);
  return memory ? memset(memory, 0, bytes) : NULL;
}

void quire_env_free(const struct quire_env *env, void *memory, size_t count, size_t size) {
  size_t bytes = count * size;
  env->dealloc(env->context, memory, bytes ? bytes : 1);
}

void quire_env_log(const struct quire_env *env, enum quire_log_level level, const char *format, ...) {
  char line[ENV_LINE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  /* one call is one line, whatever a name or a path in it holds */
  for (char *c = line; *c; c++) {
    *c = (unsigned char)*c < ' ' || *c == 127 ? ' ' : *c;
  }
  env->log(env->context, level, line);
}
