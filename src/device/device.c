/* The front of the devices: finds an implementation, checks what all of them need checked, forwards. */
#include "device/device.h"

#include "base/assert.h"
#include "device/device_private.h"

static const struct quire_device_ops *const implementations[] = {&quire_device_cpu_ops, &quire_device_cuda_ops};

#define IMPLEMENTATIONS ((int)(sizeof implementations / sizeof implementations[0]))

enum quire_status quire_device_open(const struct quire_env *env, enum quire_device_kind kind, int32_t index,
                                    struct quire_device **device_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && device_out != NULL);
  for (int i = 0; i < IMPLEMENTATIONS; i++) {
    if (implementations[i]->kind == kind) {
      return implementations[i]->open(env, index, device_out, error_out);
    }
  }
  return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "device", "there is no kind %d", (int)kind);
}

void quire_device_close(struct quire_device *device) {
  if (device != NULL) {
    device->ops->close(device);
  }
}

enum quire_device_kind quire_device_kind_of(const struct quire_device *device) {
  QUIRE_ASSERT(device != NULL);
  return device->ops->kind;
}

int32_t quire_device_index(const struct quire_device *device) {
  QUIRE_ASSERT(device != NULL);
  return device->index;
}

bool quire_device_reaches(const struct quire_device *device, const struct quire_device *other) {
  QUIRE_ASSERT(device != NULL && other != NULL);
  return device->ops == other->ops && (device->index == other->index || device->ops->reaches(device, other));
}

enum quire_status quire_device_memory(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                                      struct quire_error *error_out) {
  QUIRE_ASSERT(device != NULL && memory_out != NULL);
  return device->ops->memory(device, bytes, memory_out, error_out);
}

enum quire_status quire_device_adopt(struct quire_device *device, void *base, size_t bytes,
                                     struct quire_memory **memory_out, struct quire_error *error_out) {
  QUIRE_ASSERT(device != NULL && memory_out != NULL);
  return device->ops->adopt(device, base, bytes, memory_out, error_out);
}

enum quire_status quire_device_host(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                                    struct quire_error *error_out) {
  QUIRE_ASSERT(device != NULL && memory_out != NULL);
  return device->ops->host(device, bytes, memory_out, error_out);
}

enum quire_status quire_device_stream(struct quire_device *device, enum quire_stream_mode mode, struct quire_team *team,
                                      uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out) {
  QUIRE_ASSERT(device != NULL && stream_out != NULL);
  return device->ops->stream(device, mode, team, seed, stream_out, error_out);
}

/* -- memory ------------------------------------------------------------------------------------------------------ */

void quire_memory_destroy(struct quire_memory *memory) {
  if (memory != NULL) {
    memory->ops->destroy(memory);
  }
}

void *quire_memory_base(const struct quire_memory *memory) {
  QUIRE_ASSERT(memory != NULL);
  return memory->base;
}

size_t quire_memory_bytes(const struct quire_memory *memory) {
  QUIRE_ASSERT(memory != NULL);
  return memory->bytes;
}

enum quire_status quire_memory_not_shareable(const struct quire_memory *memory, struct quire_share *share_out,
                                             struct quire_error *error_out) {
  QUIRE_ASSERT(memory != NULL && share_out != NULL);
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "device memory",
                         "another process cannot map these %zu bytes: they are host memory, or the caller's own",
                         memory->bytes);
}

/* -- streams ----------------------------------------------------------------------------------------------------- */

void quire_stream_destroy(struct quire_stream *stream) {
  if (stream != NULL) {
    stream->ops->destroy(stream);
  }
}

bool quire_stream_is_inline(const struct quire_stream *stream) {
  QUIRE_ASSERT(stream != NULL);
  return stream->is_inline;
}

void *quire_stream_native(struct quire_stream *stream) {
  QUIRE_ASSERT(stream != NULL);
  return stream->ops->native(stream);
}

enum quire_status quire_stream_check(struct quire_stream *stream, struct quire_error *error_out) {
  QUIRE_ASSERT(stream != NULL);
  return stream->ops->check(stream, error_out);
}

void quire_stream_fail(struct quire_stream *stream, int error) {
  QUIRE_ASSERT(stream != NULL && error != 0);
  stream->ops->fail(stream, error);
}

static bool overlap(const void *a, const void *b, size_t bytes) {
  uintptr_t x = (uintptr_t)a;
  uintptr_t y = (uintptr_t)b;
  return x < y ? y - x < bytes : x - y < bytes;
}

void quire_stream_launch(struct quire_stream *stream, quire_stream_fn fn, const void *args, size_t args_bytes) {
  QUIRE_ASSERT(stream != NULL && fn != NULL && args_bytes <= QUIRE_STREAM_ARGS_BYTES_MAX);
  stream->ops->launch(stream, fn, args, args_bytes);
}

void quire_stream_copy(struct quire_stream *stream, void *target, const void *source, size_t bytes) {
  QUIRE_ASSERT(stream != NULL && (bytes == 0 || target != NULL) && !overlap(target, source, bytes));
  stream->ops->copy(stream, target, source, bytes);
}

void quire_stream_fill(struct quire_stream *stream, void *target, int value, size_t bytes) {
  QUIRE_ASSERT(stream != NULL && (bytes == 0 || target != NULL));
  stream->ops->fill(stream, target, value, bytes);
}

void quire_stream_copy_digest(struct quire_stream *stream, void *target, const void *source, size_t bytes,
                              uint64_t *digest_out) {
  QUIRE_ASSERT(stream != NULL && (bytes == 0 || target != NULL));
  QUIRE_ASSERT(digest_out != NULL && !overlap(target, source, bytes));
  stream->ops->copy_digest(stream, target, source, bytes, digest_out);
}

void quire_stream_copy_list(struct quire_stream *stream, const struct quire_copy *list, int32_t count,
                            uint32_t bytes_max, int32_t width) {
  QUIRE_ASSERT(stream != NULL && count >= 0 && (count == 0 || list != NULL) && width >= 0);
  if (count != 0 && bytes_max != 0) {
    stream->ops->copy_list(stream, list, count, bytes_max, width);
  }
}

struct quire_event quire_stream_record(struct quire_stream *stream) {
  QUIRE_ASSERT(stream != NULL);
  return stream->ops->record(stream);
}

void quire_stream_wait(struct quire_stream *stream, struct quire_event event) {
  QUIRE_ASSERT(stream != NULL);
  stream->ops->wait(stream, event);
}

bool quire_event_done(struct quire_event event) { return event.stream == NULL || event.stream->ops->event_done(event); }

void quire_event_sync(struct quire_event event) {
  if (!quire_event_done(event)) {
    event.stream->ops->event_sync(event);
  }
}
