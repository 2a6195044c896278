#include "base/env_shared.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"

static size_t mapped_bytes(size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (size + page - 1) / page * page;
}

static void *shared_alloc(void *context, size_t size, size_t align) {
  (void)context;
  size_t bytes = mapped_bytes(size);
  QUIRE_ASSERT(align <= (size_t)sysconf(_SC_PAGESIZE));
  if (bytes < size) {
    return NULL;
  }
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static void shared_dealloc(void *context, void *memory, size_t size) {
  (void)context;
  if (memory != NULL) {
    int failed = munmap(memory, mapped_bytes(size));
    QUIRE_ASSERT(failed == 0);
  }
}

struct quire_env quire_env_shared(const struct quire_env *parent) {
  struct quire_env env = *parent;
  env.alloc = shared_alloc;
  env.dealloc = shared_dealloc;
  return env;
}
