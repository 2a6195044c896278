/* The CPU as a device: what device.h makes without one, under the names of one. */
#include "base/assert.h"
#include "device/device_private.h"

static enum quire_status cpu_open(const struct quire_env *env, int32_t index, struct quire_device **device_out,
                                  struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL);
  if (index != 0) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "device", "there is one CPU, number 0, not %d",
                           (int)index);
  }
  struct quire_device *device = quire_env_zalloc(env, 1, sizeof *device);
  if (device == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "device", "no memory for its record");
  }
  *device = (struct quire_device){&quire_device_cpu_ops, env, 0};
  *device_out = device;
  return QUIRE_OK;
}

static void cpu_close(struct quire_device *device) { quire_env_free(device->env, device, 1, sizeof *device); }

static bool cpu_reaches(const struct quire_device *device, const struct quire_device *other) {
  return device->ops == other->ops;
}

static enum quire_status cpu_memory(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                                    struct quire_error *error_out) {
  return quire_memory_create(device->env, bytes, memory_out, error_out);
}

static enum quire_status cpu_adopt(struct quire_device *device, void *base, size_t bytes,
                                   struct quire_memory **memory_out, struct quire_error *error_out) {
  return quire_memory_adopt(device->env, base, bytes, memory_out, error_out);
}

static enum quire_status cpu_import(struct quire_device *device, const struct quire_share *share,
                                    struct quire_memory **memory_out, struct quire_error *error_out) {
  (void)memory_out;
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "device memory", "CPU %d cannot map %llu bytes of a GPU",
                         (int)device->index, (unsigned long long)share->bytes);
}

static enum quire_status cpu_stream(struct quire_device *device, enum quire_stream_mode mode, struct quire_team *team,
                                    uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out) {
  return quire_stream_create(device->env, mode, team, seed, stream_out, error_out);
}

const struct quire_device_ops quire_device_cpu_ops = {
    .kind = QUIRE_DEVICE_CPU,
    .open = cpu_open,
    .close = cpu_close,
    .reaches = cpu_reaches,
    .memory = cpu_memory,
    .adopt = cpu_adopt,
    .host = cpu_memory,
    .import = cpu_import,
    .stream = cpu_stream,
};
