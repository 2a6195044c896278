/* A driver's library without a driver: as much of one as the CUDA runtime asks before it counts devices. Version and
 * result of the start come from the environment. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuGetExportTable(const void **table, const void *id);
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found);
EXPORT int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags);

static int number_of(const char *name) {
  const char *text = getenv(name);
  return text != NULL ? atoi(text) : 0;
}

int cuDriverGetVersion(int *version) {
  *version = number_of("FAKE_VERSION");
  return 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return number_of("FAKE_INIT");
}

int cuDeviceGetCount(int *count) {
  *count = 0;
  return 0;
}

int cuGetExportTable(const void **table, const void *id) {
  (void)id;
  *table = NULL;
  return 1;
}

static int fails(void) { return 999; }

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found) {
  struct {
    const char *name;
    void (*function)(void);
  } const known[] = {
      {"cuDriverGetVersion", (void (*)(void))cuDriverGetVersion},
      {"cuInit", (void (*)(void))cuInit},
      {"cuDeviceGetCount", (void (*)(void))cuDeviceGetCount},
      {"cuGetProcAddress", (void (*)(void))cuGetProcAddress_v2},
      {"", (void (*)(void))fails}, /* all others */
  };
  size_t i = 0;
  (void)version;
  (void)flags;
  while (known[i].name[0] != '\0' && strcmp(known[i].name, name) != 0) {
    i++;
  }
  memcpy(function, &known[i].function, sizeof *function);
  if (found != NULL) {
    *found = 0;
  }
  return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
