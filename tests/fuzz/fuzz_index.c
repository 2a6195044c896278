// fuzz: runs=15000
/* A model.safetensors.index.json from anywhere, in a folder with two good shards: it is refused in one line, or the two
 * shards are what it lists. The shards hold tensors "a", "b" and "c", "d" (see the corpus). */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/env.h"
#include "model/safetensors.h"

#define FIRST "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/quire-fuzz-index-XXXXXX";

static const char *path_of(const char *name) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void write_file(const char *name, const void *bytes, size_t size) {
  FILE *file = fopen(path_of(name), "wb");
  QUIRE_ASSERT(file);
  size_t written = fwrite(bytes, 1, size, file);
  int failed = fclose(file);
  QUIRE_ASSERT(written == size && failed == 0);
}

static void write_shard(const char *name, const char *one, const char *two) {
  uint8_t bytes[256] = {0};
  int header = snprintf((char *)bytes + 8, sizeof bytes - 8,
                        "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                        "\"%s\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[8,12]}}",
                        one, two);
  bytes[0] = (uint8_t)header;
  write_file(name, bytes, 8 + (size_t)header + 12);
}

static void remove_folder(void) {
  unlink(path_of(FIRST));
  unlink(path_of(SECOND));
  unlink(path_of(INDEX));
  rmdir(folder);
}

static void make_folder(void) {
  static bool made;
  if (!made) {
    char *path = mkdtemp(folder);
    QUIRE_ASSERT(path);
    write_shard(FIRST, "a", "b");
    write_shard(SECOND, "c", "d");
    atexit(remove_folder);
    made = true;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct quire_safetensors *tensors = NULL;
  struct quire_error error = {0};
  make_folder();
  write_file(INDEX, data, size);
  if (quire_safetensors_open(quire_env_default(), folder, &tensors, &error)) {
    QUIRE_ASSERT(error.status && error.text[0] && !strchr(error.text, '\n') && !strchr(error.where, '\n') && !tensors);
    return 0;
  }
  int32_t count = quire_safetensors_count(tensors);
  QUIRE_ASSERT(count == 0 || count == 2 || count == 4);
  QUIRE_ASSERT(!quire_safetensors_find(tensors, "a") == !quire_safetensors_find(tensors, "b"));
  QUIRE_ASSERT(!quire_safetensors_find(tensors, "c") == !quire_safetensors_find(tensors, "d"));
  for (int32_t i = 0; i < count; i++) {
    const struct quire_tensor *tensor = quire_safetensors_at(tensors, i);
    QUIRE_ASSERT(quire_safetensors_find(tensors, tensor->name) == tensor && strlen(tensor->name) == 1);
  }
  quire_safetensors_close(tensors);
  return 0;
}
