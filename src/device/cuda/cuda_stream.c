/* Streams and events of a GPU.
 *
 * A stream is one of the runtime's, an event a place in a ring of the runtime's events: record number n uses place
 * n mod EVENTS, so that nothing is made after creation. Whoever still holds a point whose place has been used again
 * waits for the later one, which cannot be reached before the earlier.
 *
 * Host functions take their arguments from a ring of slots; the driver calls them in stream order on a thread of its
 * own. A slot is free again when its function has returned, which `finished` counts; a full ring blocks the caller.
 *
 * Deferred mode: before each item a kernel that sleeps for a drawn time, or none, and poison in the destination of a
 * copy.
 *
 * Errors. A failing device fails every later call; the stream keeps the first error, does nothing more, and events of
 * it count as reached, so that nobody waits for ever. */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/rng.h"
#include "device/cuda/cuda_private.h"
#include "device/device_info.h"

#define EVENTS QUIRE_STREAM_QUEUE_ITEMS
#define POISON 0xFF
#define DELAY_NS_MAX 200000u
#define SPIN_CORES_MIN 4
#define FUNCTION_WAIT_US 100

struct host_call {
  quire_stream_fn fn;
  struct cuda_stream *stream;
  _Alignas(16) unsigned char args[QUIRE_STREAM_ARGS_BYTES_MAX];
};

struct cuda_stream {
  struct quire_stream front;
  enum quire_stream_mode mode;
  int32_t device;
  cudaStream_t native;
  cudaEvent_t event[EVENTS];
  uint64_t recorded;          /* points so far; the owner's */
  struct host_call *calls;    /* [QUIRE_STREAM_QUEUE_ITEMS] */
  uint64_t called;            /* host functions enqueued; the owner's */
  _Atomic uint64_t started;   /* by the driver's thread */
  _Atomic uint64_t finished;  /* and returned */
  _Atomic cudaError_t failed; /* the first error, cudaSuccess before */
  void *digest_scratch;
  uint64_t random;
};

static const struct quire_stream_ops cuda_stream_ops;

static struct cuda_stream *cuda_of(struct quire_stream *front) {
  QUIRE_ASSERT(front->ops == &cuda_stream_ops);
  return (struct cuda_stream *)front;
}

/* Keeps the first error; true while there is none. */
static bool fine(struct cuda_stream *stream, cudaError_t error) {
  if (error != cudaSuccess) {
    cudaError_t none = cudaSuccess;
    (void)atomic_compare_exchange_strong(&stream->failed, &none, error);
  }
  return atomic_load_explicit(&stream->failed, memory_order_relaxed) == cudaSuccess;
}

/* Makes the device current; false once it has failed. What the runtime remembers of other calls of this thread is taken
 * from it, or the next launch would be blamed for it (launchers ask for the last error). */
static bool enter(struct cuda_stream *stream) {
  bool entered = fine(stream, cudaSuccess) && fine(stream, cudaSetDevice(stream->device));
  (void)cudaGetLastError();
  return entered;
}

/* Has what was asked about ended? What has failed has. */
static bool ended(struct cuda_stream *stream, cudaError_t answer) {
  return !fine(stream, answer == cudaErrorNotReady ? cudaSuccess : answer) || answer != cudaErrorNotReady;
}

/* What deferred mode puts before an item that writes bytes at target (NULL: none known). */
static void defer(struct cuda_stream *stream, void *target, size_t bytes) {
  QUIRE_ASSERT(stream->native != NULL);
  if (stream->mode != QUIRE_STREAM_DEFERRED) {
    return;
  }
  if (target != NULL && bytes != 0) {
    (void)fine(stream, cudaMemsetAsync(target, POISON, bytes, stream->native));
  }
  uint64_t draw = quire_splitmix64(&stream->random);
  if ((draw & 1) != 0) {
    (void)fine(stream, quire_cuda_delay((uint32_t)((draw >> 8) % DELAY_NS_MAX), stream->native));
  }
}

static void cuda_destroy(struct quire_stream *front) {
  struct cuda_stream *stream = cuda_of(front);
  (void)cudaSetDevice(stream->device);
  if (stream->native != NULL) {
    (void)cudaStreamSynchronize(stream->native);
    (void)cudaStreamDestroy(stream->native);
  }
  while (atomic_load(&stream->finished) != atomic_load(&stream->started)) {
    (void)usleep(
        FUNCTION_WAIT_US); /* a device that has failed is not waited for, but the function at work has our slot */
  }
  for (int i = 0; i < EVENTS; i++) {
    if (stream->event[i] != NULL) {
      (void)cudaEventDestroy(stream->event[i]);
    }
  }
  if (stream->digest_scratch != NULL) {
    (void)cudaFree(stream->digest_scratch);
  }
  if (stream->calls != NULL) {
    quire_env_free(front->env, stream->calls, QUIRE_STREAM_QUEUE_ITEMS, sizeof *stream->calls);
  }
  quire_env_free(front->env, stream, 1, sizeof *stream);
}

static void *cuda_native(struct quire_stream *front) {
  struct cuda_stream *stream = cuda_of(front);
  if (!enter(stream)) {
    return NULL;
  }
  defer(stream, NULL, 0);
  return stream->native;
}

static enum quire_status cuda_check(struct quire_stream *front, struct quire_error *error_out) {
  struct cuda_stream *stream = cuda_of(front);
  if (enter(stream)) {
    (void)ended(stream, cudaStreamQuery(stream->native));
  }
  cudaError_t error = atomic_load(&stream->failed);
  return error == cudaSuccess ? QUIRE_OK : quire_cuda_fault(error, "a stream has failed", error_out);
}

static void cuda_fail(struct quire_stream *front, int error) {
  QUIRE_ASSERT(error != 0);
  (void)fine(cuda_of(front), (cudaError_t)error);
}

static void CUDART_CB run_call(void *context) {
  struct host_call *call = context;
  QUIRE_ASSERT(call->fn != NULL);
  (void)atomic_fetch_add(&call->stream->started, 1);
  call->fn(call->args, NULL);
  (void)atomic_fetch_add(&call->stream->finished, 1);
}

static void cuda_launch(struct quire_stream *front, quire_stream_fn fn, const void *args, size_t args_bytes) {
  struct cuda_stream *stream = cuda_of(front);
  if (!enter(stream)) {
    return;
  }
  while (stream->called - atomic_load(&stream->finished) >= QUIRE_STREAM_QUEUE_ITEMS) {
    if (!fine(stream, cudaStreamSynchronize(stream->native))) {
      return;
    }
  }
  struct host_call *call = &stream->calls[stream->called % QUIRE_STREAM_QUEUE_ITEMS];
  QUIRE_ASSERT(args_bytes <= sizeof call->args);
  call->fn = fn;
  call->stream = stream;
  if (args_bytes != 0) {
    memcpy(call->args, args, args_bytes);
  }
  defer(stream, NULL, 0);
  if (fine(stream, cudaLaunchHostFunc(stream->native, run_call, call))) {
    stream->called++;
  }
}

static void cuda_copy(struct quire_stream *front, void *target, const void *source, size_t bytes) {
  struct cuda_stream *stream = cuda_of(front);
  if (bytes != 0 && enter(stream)) {
    defer(stream, target, bytes);
    (void)fine(stream, cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream->native));
  }
}

static void cuda_fill(struct quire_stream *front, void *target, int value, size_t bytes) {
  struct cuda_stream *stream = cuda_of(front);
  if (bytes != 0 && enter(stream)) {
    defer(stream, target, bytes);
    (void)fine(stream, cudaMemsetAsync(target, value, bytes, stream->native));
  }
}

static void cuda_copy_digest(struct quire_stream *front, void *target, const void *source, size_t bytes,
                             uint64_t *digest_out) {
  struct cuda_stream *stream = cuda_of(front);
  if (enter(stream)) {
    defer(stream, target, bytes);
    (void)fine(stream,
               quire_cuda_copy_digest(target, source, bytes, digest_out, stream->digest_scratch, stream->native));
  }
}

static void cuda_copy_list(struct quire_stream *front, const struct quire_copy *list, int32_t count, uint32_t bytes_max,
                           int32_t width) {
  struct cuda_stream *stream = cuda_of(front);
  if (enter(stream)) {
    defer(stream, NULL, 0);
    (void)fine(stream, quire_cuda_copy_list(list, count, bytes_max, width, stream->native));
  }
}

static struct quire_event cuda_record(struct quire_stream *front) {
  struct cuda_stream *stream = cuda_of(front);
  if (enter(stream)) {
    (void)fine(stream, cudaEventRecord(stream->event[(stream->recorded + 1) % EVENTS], stream->native));
    stream->recorded++;
  }
  return (struct quire_event){.stream = front, .sequence = stream->recorded};
}

/* Another device's point that a driver's thread waits for: the CPU's. */
static void wait_on_host(void *args, struct quire_team *team) {
  (void)team;
  quire_event_sync(*(struct quire_event *)args);
}

static void cuda_wait(struct quire_stream *front, struct quire_event event) {
  struct cuda_stream *stream = cuda_of(front);
  QUIRE_ASSERT(event.stream != front || event.sequence <= stream->recorded); /* a stream is in order already */
  if (event.stream == NULL || event.stream == front || !enter(stream)) {
    return;
  }
  if (event.stream->ops != front->ops) {
    cuda_launch(front, wait_on_host, &event, sizeof event);
    return;
  }
  struct cuda_stream *other = cuda_of(event.stream);
  if (event.sequence != 0) {
    (void)fine(stream, cudaStreamWaitEvent(stream->native, other->event[event.sequence % EVENTS], 0));
  }
}

static bool cuda_event_done(struct quire_event event) {
  struct cuda_stream *stream = cuda_of(event.stream);
  return event.sequence == 0 || !fine(stream, cudaSuccess) ||
         ended(stream, cudaEventQuery(stream->event[event.sequence % EVENTS]));
}

static void cuda_event_sync(struct quire_event event) {
  struct cuda_stream *stream = cuda_of(event.stream);
  QUIRE_ASSERT(event.sequence > 0);
  (void)fine(stream, cudaEventSynchronize(stream->event[event.sequence % EVENTS]));
}

static const struct quire_stream_ops cuda_stream_ops = {
    .destroy = cuda_destroy,
    .native = cuda_native,
    .check = cuda_check,
    .fail = cuda_fail,
    .launch = cuda_launch,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .copy_digest = cuda_copy_digest,
    .copy_list = cuda_copy_list,
    .record = cuda_record,
    .wait = cuda_wait,
    .event_done = cuda_event_done,
    .event_sync = cuda_event_sync,
};

static cudaError_t create_native(struct cuda_stream *stream) {
  QUIRE_ASSERT(stream->native == NULL && stream->digest_scratch == NULL);
  /* waiting sleeps where threads are more than cores (collective.h) */
  unsigned flags = cudaEventDisableTiming | (quire_device_cores() < SPIN_CORES_MIN ? cudaEventBlockingSync : 0);
  cudaError_t error = cudaSetDevice(stream->device);
  error = error == cudaSuccess ? cudaStreamCreateWithFlags(&stream->native, cudaStreamNonBlocking) : error;
  for (int i = 0; i < EVENTS && error == cudaSuccess; i++) {
    error = cudaEventCreateWithFlags(&stream->event[i], flags);
  }
  error = error == cudaSuccess ? quire_cuda_load_copies() : error;
  error = error == cudaSuccess ? quire_cuda_load_digests() : error;
  return error == cudaSuccess ? cudaMalloc(&stream->digest_scratch, QUIRE_CUDA_DIGEST_BYTES) : error;
}

enum quire_status quire_cuda_stream(struct quire_device *device, enum quire_stream_mode mode, struct quire_team *team,
                                    uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out) {
  (void)team;
  QUIRE_ASSERT(device->ops == &quire_device_cuda_ops);
  if (mode != QUIRE_STREAM_THREAD && mode != QUIRE_STREAM_DEFERRED) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "stream", "a GPU runs by itself: mode %d is not for it",
                           (int)mode);
  }
  struct cuda_stream *stream = quire_env_zalloc(device->env, 1, sizeof *stream);
  if (stream == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "stream", "no memory for its record");
  }
  stream->front = (struct quire_stream){&cuda_stream_ops, device->env, false};
  stream->mode = mode;
  stream->device = device->index;
  stream->random = seed;
  stream->calls = quire_env_zalloc(device->env, QUIRE_STREAM_QUEUE_ITEMS, sizeof *stream->calls);
  if (stream->calls == NULL) {
    cuda_destroy(&stream->front);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "stream", "no memory for its queue");
  }
  cudaError_t error = create_native(stream);
  if (error != cudaSuccess) {
    cuda_destroy(&stream->front);
    return quire_cuda_fault(error, "a stream cannot be made", error_out);
  }
  *stream_out = &stream->front;
  return QUIRE_OK;
}
