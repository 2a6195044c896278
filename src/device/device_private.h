/* What the implementations of a device share with the front (device.c): each object begins with its part of it. Only
 * files of this folder include this. Memory and threads as device.h says. */
#ifndef QUIRE_DEVICE_DEVICE_PRIVATE_H
#define QUIRE_DEVICE_DEVICE_PRIVATE_H

#include "device/device.h"
#include "device/share.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_device_ops;
struct quire_memory_ops;
struct quire_stream_ops;

struct quire_device {
  const struct quire_device_ops *ops;
  const struct quire_env *env;
  int32_t index;
};

struct quire_memory {
  const struct quire_memory_ops *ops;
  const struct quire_env *env;
  void *base;
  size_t bytes; /* as asked for */
};

struct quire_stream {
  const struct quire_stream_ops *ops;
  const struct quire_env *env;
  bool is_inline;
};

/* One kind of device. Slots are never NULL where open can succeed. */
struct quire_device_ops {
  enum quire_device_kind kind;
  enum quire_status (*open)(const struct quire_env *env, int32_t index, struct quire_device **device_out,
                            struct quire_error *error_out);
  void (*close)(struct quire_device *device);
  bool (*reaches)(const struct quire_device *device, const struct quire_device *other);
  enum quire_status (*memory)(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                              struct quire_error *error_out);
  enum quire_status (*adopt)(struct quire_device *device, void *base, size_t bytes, struct quire_memory **memory_out,
                             struct quire_error *error_out);
  enum quire_status (*host)(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                            struct quire_error *error_out);
  enum quire_status (*import)(struct quire_device *device, const struct quire_share *share,
                              struct quire_memory **memory_out, struct quire_error *error_out);
  enum quire_status (*stream)(struct quire_device *device, enum quire_stream_mode mode, struct quire_team *team,
                              uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out);
};

struct quire_memory_ops {
  void (*destroy)(struct quire_memory *memory);
  enum quire_status (*share)(const struct quire_memory *memory, struct quire_share *share_out,
                             struct quire_error *error_out);
};

struct quire_stream_ops {
  void (*destroy)(struct quire_stream *stream);
  void *(*native)(struct quire_stream *stream);
  enum quire_status (*check)(struct quire_stream *stream, struct quire_error *error_out);
  void (*fail)(struct quire_stream *stream, int error);
  void (*launch)(struct quire_stream *stream, quire_stream_fn fn, const void *args, size_t args_bytes);
  void (*copy)(struct quire_stream *stream, void *target, const void *source, size_t bytes);
  void (*fill)(struct quire_stream *stream, void *target, int value, size_t bytes);
  void (*copy_digest)(struct quire_stream *stream, void *target, const void *source, size_t bytes,
                      uint64_t *digest_out);
  void (*copy_list)(struct quire_stream *stream, const struct quire_copy *list, int32_t count, uint32_t bytes_max,
                    int32_t width);
  struct quire_event (*record)(struct quire_stream *stream);
  void (*wait)(struct quire_stream *stream, struct quire_event event);
  bool (*event_done)(struct quire_event event);
  void (*event_sync)(struct quire_event event);
};

extern const struct quire_device_ops quire_device_cpu_ops;
extern const struct quire_device_ops quire_device_cuda_ops;

/* memory.share of what cannot be mapped by another process. */
enum quire_status quire_memory_not_shareable(const struct quire_memory *memory, struct quire_share *share_out,
                                             struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
