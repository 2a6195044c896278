/* Memory, streams, events and copies of one device (design D16). The CPU device behaves like a GPU: launchers take
 * their arguments by value, a stream is an in-order queue, an event a point in one.
 *
 * A device is the CPU or one GPU (quire_device_open). What quire_memory_create, quire_memory_adopt and
 * quire_stream_create make belongs to the CPU; the functions of a device make the same on it. Everything else works on
 * memory and streams of any device.
 *
 *     quire_device_open -> quire_device_memory   the device's own memory; every GPU of the process that can reach it
 *                                                reads and writes it in place, at the same address
 *                       -> quire_device_host     host memory that the device reads and writes in place (pinned slabs)
 *                       -> quire_device_stream
 *
 * A stream of a GPU runs by itself: modes thread (as it is) and deferred (delays and poison on the device); inline is
 * refused. Host functions (quire_stream_launch) run in order with its copies and kernels, on a thread of the driver's;
 * kernels are launched into quire_stream_native. A GPU that fails ends no process: its streams do nothing more and
 * quire_stream_check says why.
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

struct quire_device;
struct quire_memory;
struct quire_stream;

enum quire_device_kind { QUIRE_DEVICE_CPU, QUIRE_DEVICE_CUDA };

enum quire_stream_mode { QUIRE_STREAM_INLINE, QUIRE_STREAM_THREAD, QUIRE_STREAM_DEFERRED };

/* A point in a stream: reached once `sequence` items of it have run. A value, good as long as the stream lives. (A
 * GPU's stream counts its points, not its items, and remembers QUIRE_STREAM_QUEUE_ITEMS of them: an older one counts as
 * reached only when a later one in its place is.) */
struct quire_event {
  struct quire_stream *stream; /* NULL: always reached */
  uint64_t sequence;
};

/* One copy of a list. */
struct quire_copy {
  void *target;
  const void *source;
  uint64_t bytes;
};

/* Work of a kernel: its arguments, copied at enqueue, and the team to run on. */
typedef void (*quire_stream_fn)(void *args, struct quire_team *team);

/* The device of a kind; index counts GPUs from 0 and is 0 for the CPU. QUIRE_ERR_UNSUPPORTED says why there is none. */
enum quire_status quire_device_open(const struct quire_env *env, enum quire_device_kind kind, int32_t index,
                                    struct quire_device **device_out, struct quire_error *error_out);
/* After everything made on it has been destroyed; NULL is allowed. */
void quire_device_close(struct quire_device *device);
enum quire_device_kind quire_device_kind_of(const struct quire_device *device);
int32_t quire_device_index(const struct quire_device *device);
/* Can kernels on device read and write memory of other in place? */
bool quire_device_reaches(const struct quire_device *device, const struct quire_device *other);

/* As quire_memory_create, quire_memory_adopt and quire_stream_create, on a device. Memory of a GPU is aligned to 2
 * MiB. */
enum quire_status quire_device_memory(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                                      struct quire_error *error_out);
enum quire_status quire_device_adopt(struct quire_device *device, void *base, size_t bytes,
                                     struct quire_memory **memory_out, struct quire_error *error_out);
/* Host memory, page aligned and poisoned, that the device's copies and kernels use at full speed; any other device's
 * too. */
enum quire_status quire_device_host(struct quire_device *device, size_t bytes, struct quire_memory **memory_out,
                                    struct quire_error *error_out);
enum quire_status quire_device_stream(struct quire_device *device, enum quire_stream_mode mode, struct quire_team *team,
                                      uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out);

/* bytes of device memory, page aligned and touched, filled with poison (0xFF: NaN in every format we store).
 * Fails with QUIRE_ERR_MEMORY. */
enum quire_status quire_memory_create(const struct quire_env *env, size_t bytes, struct quire_memory **memory_out,
                                      struct quire_error *error_out);
/* The caller's bytes as device memory; the caller keeps them alive and frees them after destroy. */
enum quire_status quire_memory_adopt(const struct quire_env *env, void *base, size_t bytes,
                                     struct quire_memory **memory_out, struct quire_error *error_out);
/* Waits for its own device alone: what other devices' streams do with the memory must have ended. NULL is allowed. */
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

/* The stream of a GPU as its runtime knows it (cudaStream_t), with its device made current on the calling thread, so
 * that a kernel can be launched into it; NULL for a stream of the CPU, or of a GPU that has failed. */
void *quire_stream_native(struct quire_stream *stream);
/* QUIRE_OK, or QUIRE_ERR_RANK once the device has failed: what was enqueued since has not run. May be late by what is
 * still running. */
enum quire_status quire_stream_check(struct quire_stream *stream, struct quire_error *error_out);

/* A launch into quire_stream_native was refused: the stream fails, with the runtime's error. */
void quire_stream_fail(struct quire_stream *stream, int error);

/* Enqueues fn with a copy of args (args_bytes <= QUIRE_STREAM_ARGS_BYTES_MAX). */
void quire_stream_launch(struct quire_stream *stream, quire_stream_fn fn, const void *args, size_t args_bytes);
/* Enqueues a copy; ranges must not overlap. */
void quire_stream_copy(struct quire_stream *stream, void *target, const void *source, size_t bytes);
/* Enqueues a fill with one byte value (0xFF poisons). */
void quire_stream_fill(struct quire_stream *stream, void *target, int value, size_t bytes);
/* Enqueues a copy that also writes the XXH3-128 of the bytes, low half first, to digest_out[0..1] (device memory). */
void quire_stream_copy_digest(struct quire_stream *stream, void *target, const void *source, size_t bytes,
                              uint64_t *digest_out);

/* Enqueues `count` copies in no order among each other. The list is memory that the device can read (on a GPU: its own,
 * a peer's, or pinned) and stays untouched until they have run; bytes_max >= every copy's. Sources and targets may lie
 * on any device, or in pinned host memory; multiples of 16 are fast. width: multiprocessors to use at most, 0 for the
 * implementation's choice; the CPU has none to spare and ignores it. */
void quire_stream_copy_list(struct quire_stream *stream, const struct quire_copy *list, int32_t count,
                            uint32_t bytes_max, int32_t width);

/* Copies at once, on the calling thread, past the caches: for more bytes than they keep until they are read, since a
 * line that is written whole need not be fetched first. Ranges must not overlap; any alignment. next: the source of the
 * copy that follows, whose first bytes are asked for while the last ones of this are copied (never read: it may end
 * before them); NULL: the last of a series. Other threads may read the targets when that one has returned. */
void quire_copy_past_caches(void *target, const void *source, size_t bytes, const void *next);

/* The point after everything enqueued so far. */
struct quire_event quire_stream_record(struct quire_stream *stream);
/* Later items of stream run after the event is reached. A GPU's stream waits for a stream of the CPU in a host
 * function, and the driver may run those of one GPU one at a time: the CPU's stream must not wait for a host function
 * of that GPU. */
void quire_stream_wait(struct quire_stream *stream, struct quire_event event);
bool quire_event_done(struct quire_event event);
/* Blocks the calling thread until the event is reached. */
void quire_event_sync(struct quire_event event);

#ifdef __cplusplus
}
#endif
#endif
