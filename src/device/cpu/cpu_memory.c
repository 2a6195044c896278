/* Memory of the CPU device: whole virtual pages of the environment's, touched at creation.
 *
 * Touching settles the question of whether the bytes exist at start-up, and places them on the NUMA node of the thread
 * that creates them, which is why a rank creates its own. The touch is the poison: 0xFF is a NaN in f32, bf16 and e4m3,
 * so a row that is read before it was written shows. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/device_info.h"
#include "device/device_private.h"

#define POISON 0xFF
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

struct cpu_memory {
  struct quire_memory front;
  size_t mapped; /* whole virtual pages; 0: adopted */
};

static void cpu_memory_destroy(struct quire_memory *front) {
  struct cpu_memory *memory = (struct cpu_memory *)front;
  QUIRE_ASSERT(memory->mapped == 0 || front->base != NULL);
  const struct quire_env *env = front->env;
  if (memory->mapped != 0) {
    env->dealloc(env->context, front->base, memory->mapped);
  }
  quire_env_free(env, memory, 1, sizeof *memory);
}

static const struct quire_memory_ops cpu_memory_ops = {
    .destroy = cpu_memory_destroy,
    .share = quire_memory_not_shareable,
};

enum quire_status quire_memory_create(const struct quire_env *env, size_t bytes, struct quire_memory **memory_out,
                                      struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && memory_out != NULL);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (bytes == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "device memory", "a size of 0 bytes was asked for");
  }
  enum quire_status status = quire_device_check_available(env, bytes, "device memory", error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct cpu_memory *memory = quire_env_zalloc(env, 1, sizeof *memory);
  if (memory == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "device memory", "no memory for its record");
  }
  size_t mapped = bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
  void *base = mapped == 0 ? NULL : env->alloc(env->context, mapped, page);
  if (base == NULL) {
    quire_env_free(env, memory, 1, sizeof *memory);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "device memory",
                           "the system refuses %zu bytes; give the cache fewer pages or lift the limit", bytes);
  }
  if (mapped >= HUGE_PAGE_BYTES) {
    (void)madvise(base, mapped, MADV_HUGEPAGE); /* a wish: top-k reads rows all over the slab */
  }
  memset(base, POISON, mapped);
  *memory = (struct cpu_memory){.front = {&cpu_memory_ops, env, base, bytes}, .mapped = mapped};
  *memory_out = &memory->front;
  return QUIRE_OK;
}

enum quire_status quire_memory_adopt(const struct quire_env *env, void *base, size_t bytes,
                                     struct quire_memory **memory_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && memory_out != NULL);
  if (base == NULL || bytes == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "device memory", "nothing to adopt: %zu bytes at %p", bytes,
                           base);
  }
  struct cpu_memory *memory = quire_env_zalloc(env, 1, sizeof *memory);
  if (memory == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "device memory", "no memory for its record");
  }
  *memory = (struct cpu_memory){.front = {&cpu_memory_ops, env, base, bytes}, .mapped = 0};
  *memory_out = &memory->front;
  return QUIRE_OK;
}
