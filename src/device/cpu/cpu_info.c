/* What the machine offers: feature bits by instruction, the rest from the kernel's text files.
 *
 * A container sees the machine's processors and memory in /proc but may use less; so the quota and the limit of its
 * control group count as well (version 2 files, then version 1). */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/device_info.h"

#define FILE_BYTES 4096
#define NODES_MAX 64
#define CHECKED_BYTES ((size_t)64 << 20) /* below, nobody asks the system how much it has */

/* The beginning of a small file as a string; false when it cannot be read. */
static bool read_text(const char *path, char text_out[FILE_BYTES]) {
  QUIRE_ASSERT(path != NULL);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  size_t used = 0;
  while (used < FILE_BYTES - 1) {
    ssize_t got = read(file, text_out + used, FILE_BYTES - 1 - used);
    if (got <= 0) {
      break;
    }
    used += (size_t)got;
  }
  (void)close(file);
  text_out[used] = '\0';
  return used > 0;
}

/* A whole number at the start of text; -1 for anything else ("max"). */
static int64_t number_of(const char *text) {
  QUIRE_ASSERT(text != NULL);
  char *end = NULL;
  long long value = strtoll(text, &end, 10);
  return end == text || value < 0 ? -1 : (int64_t)value;
}

static int64_t file_number(const char *path) {
  char text[FILE_BYTES];
  return read_text(path, text) ? number_of(text) : -1;
}

/* Bytes of a line "key:   123 kB" of /proc/meminfo; 0 when there is none. */
static int64_t meminfo_bytes(const char *text, const char *key) {
  QUIRE_ASSERT(key[strlen(key) - 1] == ':'); /* or a longer key would be found first */
  const char *line = strstr(text, key);
  int64_t kibibytes = line == NULL ? -1 : number_of(line + strlen(key));
  return kibibytes < 0 ? 0 : kibibytes * 1024;
}

static int32_t quota_cores(void) {
  char text[FILE_BYTES];
  int64_t quota = -1;
  int64_t period = -1;
  if (read_text("/sys/fs/cgroup/cpu.max", text)) {
    const char *space = strchr(text, ' ');
    quota = number_of(text);
    period = space == NULL ? -1 : number_of(space);
  } else {
    quota = file_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    period = file_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  }
  if (quota <= 0 || period <= 0) {
    return INT32_MAX;
  }
  int64_t cores = (quota + period - 1) / period;
  return cores > INT32_MAX ? INT32_MAX : (int32_t)cores;
}

/* The affinity mask may be larger than cpu_set_t on big machines: grown until the kernel accepts its size. */
static int32_t affinity_cores(void) {
  for (int processors = CPU_SETSIZE; processors <= 1 << 16; processors *= 2) {
    cpu_set_t *set = CPU_ALLOC((size_t)processors);
    if (set == NULL) {
      return 0;
    }
    size_t bytes = CPU_ALLOC_SIZE((size_t)processors);
    int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) {
      return count;
    }
  }
  return 0;
}

static int32_t count_cores(void) {
  int32_t cores = affinity_cores();
  if (cores <= 0) {
    cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  }
  int32_t quota = quota_cores();
  if (quota < cores) {
    cores = quota;
  }
  return cores < 1 ? 1 : cores;
}

static int32_t count_nodes(void) {
  int32_t nodes = 0;
  for (int i = 0; i < NODES_MAX; i++) {
    char path[64];
    int bytes = snprintf(path, sizeof path, "/sys/devices/system/node/node%d", i);
    QUIRE_ASSERT(bytes > 0 && (size_t)bytes < sizeof path);
    nodes += access(path, F_OK) == 0 ? 1 : 0;
  }
  return nodes < 1 ? 1 : nodes;
}

/* Of `limit` bytes `used` are taken. */
static void limit_memory(struct quire_device_info *info, int64_t limit, int64_t used) {
  if (limit > 0 && limit < info->memory_bytes) {
    info->memory_bytes = limit;
    int64_t left = used < 0 || used > limit ? 0 : limit - used;
    if (left < info->available_bytes) {
      info->available_bytes = left;
    }
  }
}

/* Address space, which is what ulimit -v counts. */
static void limit_process(struct quire_device_info *info) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < (rlim_t)info->memory_bytes) {
    int64_t pages = file_number("/proc/self/statm");
    limit_memory(info, (int64_t)limit.rlim_cur, pages < 0 ? -1 : pages * (int64_t)sysconf(_SC_PAGESIZE));
  }
}

static void describe_memory(struct quire_device_info *info) {
  QUIRE_ASSERT(info != NULL);
  char text[FILE_BYTES];
  if (read_text("/proc/meminfo", text)) {
    info->memory_bytes = meminfo_bytes(text, "MemTotal:");
    info->available_bytes = meminfo_bytes(text, "MemAvailable:");
  }
  int64_t limit = file_number("/sys/fs/cgroup/memory.max");
  int64_t used = file_number("/sys/fs/cgroup/memory.current");
  if (limit < 0) {
    limit = file_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    used = file_number("/sys/fs/cgroup/memory/memory.usage_in_bytes");
  }
  limit_memory(info, limit, used);
  limit_process(info);
}

static void describe_name(struct quire_device_info *info) {
  QUIRE_ASSERT(info != NULL);
  char text[FILE_BYTES];
  const char *key = "model name";
  const char *line = read_text("/proc/cpuinfo", text) ? strstr(text, key) : NULL;
  const char *colon = line == NULL ? NULL : strchr(line, ':');
  if (colon == NULL) {
    return;
  }
  colon += strspn(colon, ": \t");
  size_t length = strcspn(colon, "\n");
  if (length >= sizeof info->name) {
    length = sizeof info->name - 1;
  }
  memcpy(info->name, colon, length);
  info->name[length] = '\0';
}

static void add_word(struct quire_device_info *info, bool has, const char *word) {
  QUIRE_ASSERT(word != NULL);
  size_t used = strlen(info->isa);
  if (has && used + strlen(word) + 2 <= sizeof info->isa) {
    (void)snprintf(info->isa + used, sizeof info->isa - used, "%s%s", used == 0 ? "" : " ", word);
  }
}

static void describe_isa(struct quire_device_info *info) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  add_word(info, __builtin_cpu_supports("sse4.2"), "sse4.2");
  add_word(info, __builtin_cpu_supports("avx2"), "avx2");
  add_word(info, __builtin_cpu_supports("fma"), "fma");
  add_word(info, __builtin_cpu_supports("avx512f"), "avx512f");
  add_word(info, __builtin_cpu_supports("avx512bw"), "avx512bw");
  add_word(info, __builtin_cpu_supports("avx512vl"), "avx512vl");
  add_word(info, __builtin_cpu_supports("avx512dq"), "avx512dq");
  add_word(info, __builtin_cpu_supports("avx512vbmi"), "avx512vbmi");
  add_word(info, __builtin_cpu_supports("avx512vnni"), "avx512vnni");
  add_word(info, __builtin_cpu_supports("avx512bf16"), "avx512bf16");
#elif defined(__aarch64__)
  add_word(info, true, "neon");
#endif
}

void quire_device_describe(struct quire_device_info *info_out) {
  QUIRE_ASSERT(info_out != NULL);
  memset(info_out, 0, sizeof *info_out);
  describe_name(info_out);
  describe_isa(info_out);
  describe_memory(info_out);
  info_out->cores = count_cores();
  info_out->cores_online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  info_out->numa_nodes = count_nodes();
  info_out->page_bytes = (int64_t)sysconf(_SC_PAGESIZE);
}

int32_t quire_device_cores(void) {
  static _Atomic int32_t known; /* two threads may both learn it: they store the same number */
  int32_t cores = atomic_load_explicit(&known, memory_order_relaxed);
  if (cores == 0) {
    cores = count_cores();
    QUIRE_ASSERT(cores >= 1);
    atomic_store_explicit(&known, cores, memory_order_relaxed);
  }
  return cores;
}

enum quire_status quire_device_check_available(const struct quire_env *env, size_t bytes, const char *where,
                                               struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && bytes > 0);
  if (bytes < CHECKED_BYTES || env->alloc != quire_env_default()->alloc) {
    return QUIRE_OK;
  }
  struct quire_device_info info;
  quire_device_describe(&info);
  if (info.available_bytes <= 0 || bytes <= (size_t)info.available_bytes) {
    return QUIRE_OK;
  }
  return quire_error_set(
      error_out, QUIRE_ERR_MEMORY, where,
      "%zu bytes are more than the %lld that are available now; give the cache fewer pages or requests", bytes,
      (long long)info.available_bytes);
}
