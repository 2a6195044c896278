/* Streams of the CPU device: an in-order queue with a thread of its own, or none at all.
 *
 *      enqueue --> | item | item | ...          | --> worker thread, one item at a time
 *                  executed                enqueued       (monotonic counters; the ring index is counter mod length)
 *
 * An inline stream has no queue: its items run in the call, on the caller's thread and the stream's team, so `executed`
 * equals `enqueued` whenever the call has returned. An event is a value of `executed` that has to be reached.
 *
 * Wake-ups. The queue is guarded by one mutex: the worker decides to sleep and the producer to signal under it. An
 * event may also be waited on by threads the stream does not know; they count themselves in `waiters` before they look
 * at `executed`, and who advances `executed` looks at `waiters` after: both sides sequentially consistent, so one of
 * the two sees the other and no wake-up is lost.
 *
 * Deferred mode makes a missing wait visible. A copy that may not have run yet must not look as if it had: its
 * destination is poisoned. When? Not in general at enqueue, for an item enqueued earlier may still read that memory.
 * But when nothing is pending at enqueue, the copy could run that instant, so whoever reads the destination without
 * waiting is wrong already: then it is poisoned in the call, and the failure needs no luck. Otherwise it is poisoned
 * when the worker reaches it, before the delay. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/thread.h"
#include "device/device.h"
#include "device/device_info.h"
#include "device/device_private.h"

#define POISON 0xFF
#define DIGEST_CHUNK_BYTES ((size_t)64 << 10) /* stays in the second-level cache between copy and digest */
#define SPIN_CORES_MIN 4
#define SPIN_LOOPS 400
#define DELAY_NS_MAX 400000u

enum item_kind { ITEM_LAUNCH, ITEM_COPY, ITEM_FILL, ITEM_DIGEST, ITEM_LIST, ITEM_WAIT };

struct item_copy {
  void *target;
  const void *source;
  size_t bytes;
  uint64_t *digest_out;
  int value;
};

struct item_list {
  const struct quire_copy *list;
  int32_t count;
};

struct item_launch {
  quire_stream_fn fn;
  _Alignas(16) unsigned char args[QUIRE_STREAM_ARGS_BYTES_MAX];
};

struct item {
  enum item_kind kind;
  union { /* enqueue copies the member its kind uses */
    struct item_launch launch;
    struct item_copy copy;
    struct item_list list;
    struct quire_event event;
  } u;
};

struct cpu_stream {
  struct quire_stream front;
  enum quire_stream_mode mode;
  struct quire_team *team;
  struct item *ring; /* [QUIRE_STREAM_QUEUE_ITEMS], NULL for inline */
  uint64_t enqueued; /* written by the enqueueing thread, under the mutex where there is a worker */
  _Atomic uint64_t executed;
  atomic_int waiters;
  bool stopping;         /* under the mutex */
  uint64_t random;       /* worker's, deferred mode */
  pthread_mutex_t mutex; /* rank: leaf, nothing is called under it */
  pthread_cond_t work;   /* worker sleeps: nothing enqueued */
  pthread_cond_t moved;  /* everybody else sleeps: executed has to advance */
  pthread_t thread;
};

static const struct quire_stream_ops cpu_stream_ops;

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/* Half of the items are not delayed, so that orders of both kinds occur. */
static void delay(struct cpu_stream *stream) {
  QUIRE_ASSERT(stream->mode == QUIRE_STREAM_DEFERRED);
  uint64_t draw = quire_splitmix64(&stream->random);
  if ((draw & 1) != 0) {
    struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)((draw >> 8) % DELAY_NS_MAX)};
    (void)nanosleep(&pause, NULL);
  }
}

/* Piece by piece, so that the digest reads what the copy has just brought into the cache. */
static void copy_with_digest(const struct item_copy *copy) {
  QUIRE_ASSERT(copy->digest_out != NULL);
  struct quire_hash128_stream hash;
  quire_hash128_begin(&hash, 0);
  size_t done = 0;
  while (done < copy->bytes) {
    size_t bytes = copy->bytes - done;
    if (bytes > DIGEST_CHUNK_BYTES) {
      bytes = DIGEST_CHUNK_BYTES;
    }
    const unsigned char *source = (const unsigned char *)copy->source + done;
    memcpy((unsigned char *)copy->target + done, source, bytes);
    quire_hash128_add(&hash, source, bytes);
    done += bytes;
  }
  struct quire_hash128 digest = quire_hash128_end(&hash);
  copy->digest_out[0] = digest.low;
  copy->digest_out[1] = digest.high;
}

static void item_poison(const struct item *item) {
  QUIRE_ASSERT(item->kind != ITEM_LIST || item->u.list.count > 0);
  for (int32_t i = 0; item->kind == ITEM_LIST && i < item->u.list.count; i++) {
    memset(item->u.list.list[i].target, POISON, item->u.list.list[i].bytes);
  }
  if (item->kind == ITEM_COPY || item->kind == ITEM_FILL || item->kind == ITEM_DIGEST) {
    if (item->u.copy.bytes != 0) {
      memset(item->u.copy.target, POISON, item->u.copy.bytes);
    }
    if (item->kind == ITEM_DIGEST) {
      memset(item->u.copy.digest_out, POISON, 2 * sizeof(uint64_t));
    }
  }
}

static void item_run(struct item *item, struct quire_team *team) {
  QUIRE_ASSERT(item != NULL);
  const struct item_copy *copy = &item->u.copy;
  switch (item->kind) {
  case ITEM_LAUNCH:
    item->u.launch.fn(item->u.launch.args, team);
    break;
  case ITEM_COPY:
    if (copy->bytes != 0) {
      memcpy(copy->target, copy->source, copy->bytes);
    }
    break;
  case ITEM_FILL:
    if (copy->bytes != 0) {
      memset(copy->target, copy->value, copy->bytes);
    }
    break;
  case ITEM_DIGEST:
    copy_with_digest(copy);
    break;
  case ITEM_LIST:
    for (int32_t i = 0; i < item->u.list.count; i++) {
      const struct quire_copy *one = &item->u.list.list[i];
      memcpy(one->target, one->source, one->bytes);
    }
    break;
  case ITEM_WAIT:
    quire_event_sync(item->u.event);
    break;
  }
}

static void stream_lock(struct cpu_stream *stream) {
  int failed = pthread_mutex_lock(&stream->mutex);
  QUIRE_ASSERT(failed == 0);
}

static void stream_unlock(struct cpu_stream *stream) {
  int failed = pthread_mutex_unlock(&stream->mutex);
  QUIRE_ASSERT(failed == 0);
}

/* One item more has run. The lock keeps a waiter from falling asleep between its look and our signal. */
static void advance(struct cpu_stream *stream) {
  atomic_fetch_add(&stream->executed, 1);
  if (atomic_load(&stream->waiters) != 0) {
    stream_lock(stream);
    (void)pthread_cond_broadcast(&stream->moved);
    stream_unlock(stream);
  }
}

static void *worker_main(void *context) {
  struct cpu_stream *stream = context;
  QUIRE_ASSERT(stream->ring != NULL);
  uint64_t next = 0;
  for (;;) {
    stream_lock(stream);
    while (stream->enqueued == next && !stream->stopping) {
      (void)pthread_cond_wait(&stream->work, &stream->mutex);
    }
    bool end = stream->enqueued == next;
    stream_unlock(stream);
    if (end) {
      return NULL;
    }
    struct item *item = &stream->ring[next % QUIRE_STREAM_QUEUE_ITEMS];
    if (stream->mode == QUIRE_STREAM_DEFERRED) {
      item_poison(item);
      delay(stream);
    }
    item_run(item, NULL);
    next++;
    advance(stream);
  }
}

/* Sleeps until `executed` has reached sequence. */
static void reach(struct cpu_stream *stream, uint64_t sequence) {
  int spins = quire_device_cores() >= SPIN_CORES_MIN ? SPIN_LOOPS : 0;
  for (int i = 0; i < spins; i++) {
    if (atomic_load_explicit(&stream->executed, memory_order_acquire) >= sequence) {
      return;
    }
    relax();
  }
  stream_lock(stream);
  atomic_fetch_add(&stream->waiters, 1);
  while (atomic_load(&stream->executed) < sequence) {
    (void)pthread_cond_wait(&stream->moved, &stream->mutex);
  }
  int waited = atomic_fetch_sub(&stream->waiters, 1);
  QUIRE_ASSERT(waited > 0);
  if (stream->stopping) {
    (void)pthread_cond_broadcast(&stream->moved); /* destroy waits for the last of us */
  }
  stream_unlock(stream);
}

/* Where the next item goes; waits while the queue is full. */
static struct item *slot_begin(struct cpu_stream *stream) {
  QUIRE_ASSERT(stream != NULL && stream->ring != NULL);
  if (stream->enqueued >= QUIRE_STREAM_QUEUE_ITEMS) {
    uint64_t sequence = stream->enqueued - QUIRE_STREAM_QUEUE_ITEMS + 1;
    if (atomic_load_explicit(&stream->executed, memory_order_acquire) < sequence) {
      reach(stream, sequence);
    }
  }
  return &stream->ring[stream->enqueued % QUIRE_STREAM_QUEUE_ITEMS];
}

static void slot_end(struct cpu_stream *stream, const struct item *item) {
  QUIRE_ASSERT(item == &stream->ring[stream->enqueued % QUIRE_STREAM_QUEUE_ITEMS]);
  if (stream->mode == QUIRE_STREAM_DEFERRED && atomic_load(&stream->executed) == stream->enqueued) {
    item_poison(item);
  }
  stream_lock(stream);
  stream->enqueued++;
  (void)pthread_cond_signal(&stream->work);
  stream_unlock(stream);
}

/* Anything but a launch, whose arguments are large. */
static void enqueue(struct cpu_stream *stream, struct item *what) {
  QUIRE_ASSERT(what->kind != ITEM_LAUNCH);
  if (stream->mode == QUIRE_STREAM_INLINE) {
    item_run(what, stream->team);
    stream->enqueued++;
    advance(stream);
    return;
  }
  struct item *item = slot_begin(stream);
  item->kind = what->kind;
  switch (what->kind) {
  case ITEM_LIST:
    item->u.list = what->u.list;
    break;
  case ITEM_WAIT:
    item->u.event = what->u.event;
    break;
  default:
    item->u.copy = what->u.copy;
    break;
  }
  slot_end(stream, item);
}

/* -- the interface ---------------------------------------------------------------------------------------------- */

/* Locks and worker of a stream that has a queue; false leaves nothing behind. */
static bool worker_start(struct cpu_stream *stream) {
  QUIRE_ASSERT(stream->ring != NULL && stream->mode != QUIRE_STREAM_INLINE);
  if (pthread_cond_init(&stream->work, NULL) != 0) {
    return false;
  }
  if (!quire_thread_start(&stream->thread, worker_main, stream)) {
    (void)pthread_cond_destroy(&stream->work);
    return false;
  }
  (void)pthread_setname_np(stream->thread, "quire-stream");
  return true;
}

enum quire_status quire_stream_create(const struct quire_env *env, enum quire_stream_mode mode, struct quire_team *team,
                                      uint64_t seed, struct quire_stream **stream_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && stream_out != NULL);
  if (mode != QUIRE_STREAM_INLINE && mode != QUIRE_STREAM_THREAD && mode != QUIRE_STREAM_DEFERRED) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "stream", "mode %d is not one of the three", (int)mode);
  }
  struct cpu_stream *stream = quire_env_zalloc(env, 1, sizeof *stream);
  if (stream == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "stream", "no memory for its record");
  }
  stream->front = (struct quire_stream){&cpu_stream_ops, env, mode == QUIRE_STREAM_INLINE};
  stream->mode = mode;
  stream->team = team;
  stream->random = seed;
  if (mode != QUIRE_STREAM_INLINE) {
    stream->ring = quire_env_zalloc(env, QUIRE_STREAM_QUEUE_ITEMS, sizeof *stream->ring);
    if (stream->ring == NULL) {
      goto free_stream;
    }
  }
  if (pthread_mutex_init(&stream->mutex, NULL) != 0) {
    goto free_ring;
  }
  if (pthread_cond_init(&stream->moved, NULL) != 0) {
    goto destroy_mutex;
  }
  if (mode != QUIRE_STREAM_INLINE && !worker_start(stream)) {
    goto destroy_moved;
  }
  *stream_out = &stream->front;
  return QUIRE_OK;

destroy_moved:
  (void)pthread_cond_destroy(&stream->moved);
destroy_mutex:
  (void)pthread_mutex_destroy(&stream->mutex);
free_ring:
  quire_env_free(env, stream->ring, QUIRE_STREAM_QUEUE_ITEMS, sizeof *stream->ring);
free_stream:
  quire_env_free(env, stream, 1, sizeof *stream);
  return quire_error_set(error_out, QUIRE_ERR_MEMORY, "stream",
                         "no memory for its queue, or no thread to run it; see ulimit -u and -v");
}

static struct cpu_stream *cpu_of(struct quire_stream *stream) {
  QUIRE_ASSERT(stream->ops == &cpu_stream_ops);
  return (struct cpu_stream *)stream;
}

static void cpu_destroy(struct quire_stream *front) {
  struct cpu_stream *stream = cpu_of(front);
  const struct quire_env *env = front->env;
  stream_lock(stream);
  QUIRE_ASSERT(!stream->stopping);
  stream->stopping = true;
  if (stream->mode != QUIRE_STREAM_INLINE) {
    (void)pthread_cond_signal(&stream->work);
    stream_unlock(stream);
    (void)pthread_join(stream->thread, NULL);
    (void)pthread_cond_destroy(&stream->work);
    quire_env_free(env, stream->ring, QUIRE_STREAM_QUEUE_ITEMS, sizeof *stream->ring);
    stream_lock(stream);
  }
  /* everything has run, but who slept until then may not have left the mutex yet */
  while (atomic_load(&stream->waiters) != 0) {
    (void)pthread_cond_wait(&stream->moved, &stream->mutex);
  }
  stream_unlock(stream);
  (void)pthread_cond_destroy(&stream->moved);
  (void)pthread_mutex_destroy(&stream->mutex);
  quire_env_free(env, stream, 1, sizeof *stream);
}

static void *cpu_native(struct quire_stream *front) {
  (void)front;
  return NULL;
}

static enum quire_status cpu_check(struct quire_stream *front, struct quire_error *error_out) {
  (void)front;
  (void)error_out;
  return QUIRE_OK;
}

/* Nothing is launched into a stream without a native one. */
static void cpu_fail(struct quire_stream *front, int error) { QUIRE_ASSERT(front == NULL && error == 0); }

static void cpu_launch(struct quire_stream *front, quire_stream_fn fn, const void *args, size_t args_bytes) {
  QUIRE_ASSERT(fn != NULL && (args != NULL || args_bytes == 0));
  struct cpu_stream *stream = cpu_of(front);
  if (stream->mode == QUIRE_STREAM_INLINE) {
    struct item_launch launch;
    if (args_bytes != 0) {
      memcpy(launch.args, args, args_bytes);
    }
    fn(launch.args, stream->team);
    stream->enqueued++;
    advance(stream);
    return;
  }
  struct item *item = slot_begin(stream);
  item->kind = ITEM_LAUNCH;
  item->u.launch.fn = fn;
  if (args_bytes != 0) {
    memcpy(item->u.launch.args, args, args_bytes);
  }
  slot_end(stream, item);
}

static void cpu_copy(struct quire_stream *front, void *target, const void *source, size_t bytes) {
  struct item_copy copy = {.target = target, .source = source, .bytes = bytes};
  enqueue(cpu_of(front), &(struct item){.kind = ITEM_COPY, .u.copy = copy});
}

static void cpu_fill(struct quire_stream *front, void *target, int value, size_t bytes) {
  struct item_copy copy = {.target = target, .value = value, .bytes = bytes};
  enqueue(cpu_of(front), &(struct item){.kind = ITEM_FILL, .u.copy = copy});
}

static void cpu_copy_digest(struct quire_stream *front, void *target, const void *source, size_t bytes,
                            uint64_t *digest_out) {
  struct item_copy copy = {.target = target, .source = source, .bytes = bytes, .digest_out = digest_out};
  enqueue(cpu_of(front), &(struct item){.kind = ITEM_DIGEST, .u.copy = copy});
}

static void cpu_copy_list(struct quire_stream *front, const struct quire_copy *list, int32_t count, uint32_t bytes_max,
                          int32_t width) {
  (void)bytes_max;
  (void)width;
  QUIRE_ASSERT(list != NULL && count > 0);
  for (int32_t i = 0; i < count; i++) {
    QUIRE_EXPENSIVE(list[i].bytes <= bytes_max);
  }
  enqueue(cpu_of(front), &(struct item){.kind = ITEM_LIST, .u.list = {list, count}});
}

static struct quire_event cpu_record(struct quire_stream *front) {
  return (struct quire_event){.stream = front, .sequence = cpu_of(front)->enqueued};
}

static void cpu_wait(struct quire_stream *front, struct quire_event event) {
  struct cpu_stream *stream = cpu_of(front);
  if (event.stream == front) {
    QUIRE_ASSERT(event.sequence <= stream->enqueued); /* a queue is in order already */
    return;
  }
  enqueue(stream, &(struct item){.kind = ITEM_WAIT, .u.event = event});
}

static bool cpu_event_done(struct quire_event event) {
  return atomic_load_explicit(&cpu_of(event.stream)->executed, memory_order_acquire) >= event.sequence;
}

static void cpu_event_sync(struct quire_event event) { reach(cpu_of(event.stream), event.sequence); }

static const struct quire_stream_ops cpu_stream_ops = {
    .destroy = cpu_destroy,
    .native = cpu_native,
    .check = cpu_check,
    .fail = cpu_fail,
    .launch = cpu_launch,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .copy_digest = cpu_copy_digest,
    .copy_list = cpu_copy_list,
    .record = cpu_record,
    .wait = cpu_wait,
    .event_done = cpu_event_done,
    .event_sync = cpu_event_sync,
};
