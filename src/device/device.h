/* Memory, streams, events and copies of one device (design D16). The CPU device behaves like a GPU: launchers take
 * their arguments by value, a stream is an in-order queue, an event a point in one.
 *
 * Streams of the CPU device come in three modes:
 *   inline    work runs on the calling thread at enqueue, with the stream's team
 *   thread    work runs on a thread of the stream's own, in order (gather's copies use one)
 *   deferred  like thread, plus seeded random delays before each item, and poison in the destination of a copy or
 *             fill that has not run yet, so that a missing wait fails on a machine without a GPU (tests). The poison
 *             comes at enqueue if nothing is pending (the copy could run that instant), else when the stream reaches
 *             the item: what an earlier item still reads is left alone
 *
 * Memory is the device's own (quire_memory_create) or adopted (quire_memory_adopt: the caller's bytes, never freed).
 *
 * Threads: one thread enqueues to a stream at a time; events may be waited on from any stream or thread.
 * Errors: creation answers a status; enqueueing cannot fail, except by being a bug of ours (assert). Nothing is
 * allocated after creation: queues have a fixed length and enqueueing blocks while one is full. */
#ifndef QUIRE_DEVICE_DEVICE_H
#define QUIRE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/team.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_STREAM_ARGS_BYTES_MAX 512
#define QUIRE_STREAM_QUEUE_ITEMS 256

struct quire_memory;
struct quire_stream;

enum quire_stream_mode { QUIRE_STREAM_INLINE, QUIRE_STREAM_THREAD, QUIRE_STREAM_DEFERRED };

/* A point in a stream: reached once `sequence` items of it have run. A value, good as long as the stream lives. */
struct quire_event {
  struct quire_stream *stream; /* NULL: always reached */
  uint64_t sequence;
};

/* Work of a kernel: its arguments, copied at enqueue, and the team to run on. */
typedef void (*quire_stream_fn)(void *args, struct quire_team *team);

/* bytes of device memory, page aligned and touched, filled with poison (0xFF: NaN in every format we store).
 * Fails with QUIRE_ERR_MEMORY. */
enum quire_status quire_memory_create(const struct quire_env *env, size_t bytes, struct quire_memory **memory_out,
                                      struct quire_error *error_out);
/* The caller's bytes as device memory; the caller keeps them alive and frees them after destroy. */
enum quire_status quire_memory_adopt(const struct quire_env *env, void *base, size_t bytes,
                                     struct quire_memory **memory_out, struct quire_error *error_out);
void quire_memory_destroy(struct quire_memory *memory);
void *quire_memory_base(const struct quire_memory *memory);
size_t quire_memory_bytes(const struct quire_memory *memory);

/* team may be NULL; it is used by inline streams only. seed is used by deferred streams only. */
enum quire_status quire_stream_create(const struct quire_env *env, enum quire_stream_mode mode, struct quire_team *team,
                                      uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out);
/* Waits for everything enqueued, then destroys. */
void quire_stream_destroy(struct quire_stream *stream);

/* True if an item has run when its enqueue returns. Host code that reads what kernels wrote, or rewrites their tables,
 * needs that or a quire_event_sync. */
bool quire_stream_is_inline(const struct quire_stream *stream);

/* Enqueues fn with a copy of args (args_bytes <= QUIRE_STREAM_ARGS_BYTES_MAX). */
void quire_stream_launch(struct quire_stream *stream, quire_stream_fn fn, const void *args, size_t args_bytes);
/* Enqueues a copy; ranges must not overlap. */
void quire_stream_copy(struct quire_stream *stream, void *target, const void *source, size_t bytes);
/* Enqueues a fill with one byte value (0xFF poisons). */
void quire_stream_fill(struct quire_stream *stream, void *target, int value, size_t bytes);
/* Enqueues a copy that also writes the XXH3-128 of the bytes, low half first, to digest_out[0..1] (device memory). */
void quire_stream_copy_digest(struct quire_stream *stream, void *target, const void *source, size_t bytes,
                              uint64_t *digest_out);

/* Copies at once, on the calling thread, past the caches: for more bytes than they keep until they are read, since a
 * line that is written whole need not be fetched first. Ranges must not overlap; any alignment. */
void quire_copy_past_caches(void *target, const void *source, size_t bytes);

/* The point after everything enqueued so far. */
struct quire_event quire_stream_record(struct quire_stream *stream);
/* Later items of stream run after the event is reached. */
void quire_stream_wait(struct quire_stream *stream, struct quire_event event);
bool quire_event_done(struct quire_event event);
/* Blocks the calling thread until the event is reached. */
void quire_event_sync(struct quire_event event);

#ifdef __cplusplus
}
#endif
#endif
