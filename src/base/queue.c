#include "base/queue.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"

struct quire_queue {
  const struct quire_env *env;
  size_t item_bytes;
  int capacity;
  pthread_mutex_t lock; /* guards all below */
  pthread_cond_t filled;
  pthread_cond_t drained;
  int head; /* slot of the oldest item */
  int count;
  bool closed;
  uint8_t items[];
};

static size_t queue_bytes(size_t item_bytes, int capacity) {
  size_t bytes;
  if (__builtin_mul_overflow(item_bytes, (size_t)capacity, &bytes) ||
      __builtin_add_overflow(bytes, sizeof(struct quire_queue), &bytes)) {
    return SIZE_MAX;
  }
  return bytes;
}

enum quire_status quire_queue_create(const struct quire_env *env, size_t item_bytes, int capacity,
                                     struct quire_queue **queue_out, struct quire_error *error_out) {
  if (item_bytes == 0 || capacity < 1 || capacity > QUIRE_QUEUE_CAPACITY_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "queue", "capacity must be 1 to %d items of at least a byte",
                           QUIRE_QUEUE_CAPACITY_MAX);
  }
  size_t bytes = queue_bytes(item_bytes, capacity);
  struct quire_queue *queue = quire_env_zalloc(env, 1, bytes);
  if (!queue) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "queue", "no memory for %zu bytes", bytes);
  }
  queue->env = env;
  queue->item_bytes = item_bytes;
  queue->capacity = capacity;
  /* none of these can fail on Linux with these attributes; a time-out must not move with the wall clock */
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&queue->lock, NULL);
  pthread_cond_init(&queue->filled, &attributes);
  pthread_cond_init(&queue->drained, &attributes);
  pthread_condattr_destroy(&attributes);
  *queue_out = queue;
  return QUIRE_OK;
}

void quire_queue_destroy(struct quire_queue *queue) {
  if (!queue) {
    return;
  }
  pthread_cond_destroy(&queue->drained);
  pthread_cond_destroy(&queue->filled);
  pthread_mutex_destroy(&queue->lock);
  quire_env_free(queue->env, queue, 1, queue_bytes(queue->item_bytes, queue->capacity));
}

static uint8_t *slot_at(struct quire_queue *queue, int index) {
  int slot = queue->head + index;
  slot -= slot >= queue->capacity ? queue->capacity : 0;
  return queue->items + (size_t)slot * queue->item_bytes;
}

static enum quire_status push_locked(struct quire_queue *queue, const void *item) {
  if (queue->closed) {
    return QUIRE_ERR_STATE;
  }
  if (queue->count == queue->capacity) {
    return QUIRE_ERR_AGAIN;
  }
  memcpy(slot_at(queue, queue->count), item, queue->item_bytes);
  queue->count++;
  pthread_cond_signal(&queue->filled);
  return QUIRE_OK;
}

static enum quire_status pop_locked(struct quire_queue *queue, void *item_out) {
  if (queue->count == 0) {
    return queue->closed ? QUIRE_ERR_STATE : QUIRE_ERR_AGAIN;
  }
  memcpy(item_out, slot_at(queue, 0), queue->item_bytes);
  queue->head = queue->head + 1 == queue->capacity ? 0 : queue->head + 1;
  queue->count--;
  QUIRE_DEBUG(queue->count >= 0);
  pthread_cond_signal(&queue->drained);
  return QUIRE_OK;
}

enum quire_status quire_queue_push(struct quire_queue *queue, const void *item) {
  pthread_mutex_lock(&queue->lock);
  enum quire_status status;
  while ((status = push_locked(queue, item)) == QUIRE_ERR_AGAIN) {
    pthread_cond_wait(&queue->drained, &queue->lock);
  }
  pthread_mutex_unlock(&queue->lock);
  return status;
}

enum quire_status quire_queue_try_push(struct quire_queue *queue, const void *item) {
  pthread_mutex_lock(&queue->lock);
  enum quire_status status = push_locked(queue, item);
  pthread_mutex_unlock(&queue->lock);
  return status;
}

enum quire_status quire_queue_pop(struct quire_queue *queue, void *item_out) {
  pthread_mutex_lock(&queue->lock);
  enum quire_status status;
  while ((status = pop_locked(queue, item_out)) == QUIRE_ERR_AGAIN) {
    pthread_cond_wait(&queue->filled, &queue->lock);
  }
  pthread_mutex_unlock(&queue->lock);
  return status;
}

enum quire_status quire_queue_try_pop(struct quire_queue *queue, void *item_out) {
  pthread_mutex_lock(&queue->lock);
  enum quire_status status = pop_locked(queue, item_out);
  pthread_mutex_unlock(&queue->lock);
  return status;
}

/* Real time, not env's clock: a sleeping thread cannot watch a clock that a test turns by hand. */
static struct timespec deadline_after(uint64_t timeout_ns) {
  struct timespec deadline;
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  uint64_t ns = (uint64_t)deadline.tv_nsec + timeout_ns % 1000000000u;
  deadline.tv_sec += (time_t)(timeout_ns / 1000000000u + ns / 1000000000u);
  deadline.tv_nsec = (long)(ns % 1000000000u);
  return deadline;
}

enum quire_status quire_queue_pop_within(struct quire_queue *queue, void *item_out, uint64_t timeout_ns) {
  struct timespec deadline = deadline_after(timeout_ns);
  pthread_mutex_lock(&queue->lock);
  enum quire_status status;
  bool late = false;
  while ((status = pop_locked(queue, item_out)) == QUIRE_ERR_AGAIN && !late) {
    late = pthread_cond_timedwait(&queue->filled, &queue->lock, &deadline) != 0;
  }
  pthread_mutex_unlock(&queue->lock);
  return status;
}

void quire_queue_close(struct quire_queue *queue) {
  pthread_mutex_lock(&queue->lock);
  queue->closed = true;
  pthread_cond_broadcast(&queue->filled);
  pthread_cond_broadcast(&queue->drained);
  pthread_mutex_unlock(&queue->lock);
}

int quire_queue_count(struct quire_queue *queue) {
  pthread_mutex_lock(&queue->lock);
  int count = queue->count;
  pthread_mutex_unlock(&queue->lock);
  return count;
}

int quire_queue_capacity(const struct quire_queue *queue) { return queue->capacity; }
