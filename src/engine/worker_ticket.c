/* What other threads than the controller call. */
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "engine/worker_private.h"
#include "layout/carve.h"

static int32_t index_of(const struct quire_worker *worker, const struct ticket *ticket) {
  return (int32_t)(ticket - worker->tickets);
}

struct ticket *quire_worker_ticket(const struct quire_worker *worker, quire_ticket ticket) {
  int64_t index = (int64_t)(ticket.v & UINT32_MAX) - 1;
  if (index < 0 || index >= worker->config.tickets_max) {
    return NULL;
  }
  struct ticket *t = &worker->tickets[index];
  uint64_t state = quire_ticket_state(t);
  return (state & TICKET_OPEN) != 0 && quire_ticket_generation(state) == (uint32_t)(ticket.v >> 32) ? t : NULL;
}

static void give_back(struct quire_worker *worker, struct ticket *t) {
  quire_env_free(worker->env, t->block, 1, t->block_bytes);
  t->block = NULL;
  __atomic_store_n(&t->state, quire_ticket_state(t) >> 32 << 32, __ATOMIC_RELEASE);
  pthread_mutex_lock(&worker->mutex);
  worker->free_tickets[worker->free_count++] = index_of(worker, t);
  pthread_mutex_unlock(&worker->mutex);
}

void quire_worker_ticket_bits(struct quire_worker *worker, struct ticket *t, uint32_t set, uint32_t clear) {
  uint64_t before = quire_ticket_state(t), after;
  do {
    after = (before | set) & ~(uint64_t)clear;
  } while (!__atomic_compare_exchange_n(&t->state, &before, after, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  uint32_t bits = (uint32_t)after & ~(uint32_t)TICKET_CANCELLED;
  if (before != after && bits == (TICKET_OPEN | TICKET_CLOSED | TICKET_ENDED)) {
    give_back(worker, t);
  }
}

/* Whatever is in the queue wakes the controller, so a wake needs no place beside others. */
void quire_worker_tell(struct quire_worker *worker, enum message_kind kind, const struct ticket *t) {
  struct message message = {.kind = (int32_t)kind, .ticket = -1};
  if (kind == MESSAGE_WAKE && quire_queue_count(worker->messages) > 0) {
    return;
  }
  if (t != NULL) {
    message.ticket = index_of(worker, t);
    message.generation = quire_ticket_generation(quire_ticket_state(t));
  }
  enum quire_status status = quire_queue_try_push(worker->messages, &message);
  QUIRE_ASSERT(status == QUIRE_OK || kind == MESSAGE_WAKE);
}

/* --- submit --- */

/* The ticket's copy of everything a request points to. */
static void copy_request(struct quire_carve *carve, const struct quire_engine_request *from, int32_t ring,
                         struct ticket *t) {
  const struct quire_sampling *sampling = &from->sampling;
  int32_t rows = sampling->prompt_logprobs ? from->count : 0;
  int32_t *tokens = quire_carve(carve, from->count, sizeof *tokens);
  int32_t *stops = quire_carve(carve, from->stop_count, sizeof *stops);
  struct quire_bias *bias = quire_carve(carve, sampling->bias_count, sizeof *bias);
  uint8_t *salt = quire_carve(carve, from->salt_bytes, 1);
  struct quire_step_row *kept = quire_carve(carve, rows, sizeof *kept);
  struct quire_top *row_tops = quire_carve(carve, (int64_t)rows * sampling->prompt_top_logprobs, sizeof *row_tops);
  struct quire_top *tops = quire_carve(carve, (int64_t)ring * sampling->top_logprobs, sizeof *tops);
  if (carve->base == NULL) {
    return;
  }
  t->request = *from;
  t->request.tokens = memcpy(tokens, from->tokens, (size_t)from->count * sizeof *tokens);
  if (from->stop_count > 0) {
    memcpy(stops, from->stops, (size_t)from->stop_count * sizeof *stops);
  }
  if (sampling->bias_count > 0) {
    memcpy(bias, sampling->bias, (size_t)sampling->bias_count * sizeof *bias);
  }
  if (from->salt_bytes > 0) {
    memcpy(salt, from->salt, (size_t)from->salt_bytes);
  }
  t->request.stops = stops;
  t->request.sampling.bias = bias;
  t->request.salt = salt;
  t->request.rows = rows > 0 ? kept : NULL;
  t->request.row_tops = rows > 0 && sampling->prompt_top_logprobs > 0 ? row_tops : NULL;
  t->tops = tops;
}

static struct ticket *take_ticket(struct quire_worker *worker) {
  struct ticket *t = NULL;
  int32_t most = worker->engine->running_max + worker->engine->config.queue_max;
  pthread_mutex_lock(&worker->mutex);
  if (worker->free_count > 0 && __atomic_load_n(&worker->inside, __ATOMIC_RELAXED) < most) {
    t = &worker->tickets[worker->free_tickets[--worker->free_count]];
    __atomic_add_fetch(&worker->inside, 1, __ATOMIC_RELAXED);
  } else {
    worker->stats.rejected++;
  }
  pthread_mutex_unlock(&worker->mutex);
  return t;
}

static void untake_ticket(struct quire_worker *worker, struct ticket *t) {
  __atomic_sub_fetch(&worker->inside, 1, __ATOMIC_RELAXED);
  pthread_mutex_lock(&worker->mutex);
  worker->free_tickets[worker->free_count++] = index_of(worker, t);
  pthread_mutex_unlock(&worker->mutex);
}

enum quire_status quire_worker_submit(struct quire_worker *worker, const struct quire_engine_request *request,
                                      quire_ticket *ticket_out, struct quire_error *error_out) {
  if (request->hold || request->rows != NULL || request->row_tops != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "request",
                           "a ticket holds nothing and keeps its rows itself");
  }
  bool failed = __atomic_load_n(&worker->failed, __ATOMIC_ACQUIRE);
  if (failed || __atomic_load_n(&worker->draining, __ATOMIC_ACQUIRE)) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "worker", "takes no more requests: %s",
                           failed ? "a rank has failed" : "it is going down");
  }
  enum quire_status status = quire_engine_check_request(worker->engine, request, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct ticket *t = take_ticket(worker);
  if (t == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_AGAIN, "worker",
                           "as many requests are inside as it takes; try again "
                           "later");
  }
  struct quire_carve carve = {NULL, 0};
  copy_request(&carve, request, worker->config.ring_events, t);
  size_t bytes = carve.used;
  carve = (struct quire_carve){quire_env_zalloc(worker->env, 1, bytes), 0};
  if (carve.base == NULL) {
    untake_ticket(worker, t);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "worker", "no memory for a request of %d tokens",
                           request->count);
  }
  uint64_t generation = quire_ticket_generation(quire_ticket_state(t)) + UINT64_C(1);
  memset((uint8_t *)t + sizeof t->state, 0, sizeof *t - sizeof t->state); /* others may look at the state */
  t->block = carve.base;
  t->block_bytes = bytes;
  carve.used = 0;
  copy_request(&carve, request, worker->config.ring_events, t);
  t->request.tag = (generation & UINT32_MAX) << 32 | (uint32_t)(index_of(worker, t) + 1);
  __atomic_store_n(&t->state, generation << 32 | TICKET_OPEN, __ATOMIC_RELEASE);
  *ticket_out = (quire_ticket){t->request.tag};
  quire_worker_tell(worker, MESSAGE_SUBMIT, t);
  return QUIRE_OK;
}

/* --- from any thread --- */

/* The generation is part of what is compared, so a cancel that comes late meets nobody else. */
static bool cancel(struct quire_worker *worker, struct ticket *t, uint64_t state) {
  uint32_t generation = quire_ticket_generation(state);
  do {
    if ((state & TICKET_OPEN) == 0 || (state & (TICKET_ENDED | TICKET_CANCELLED)) != 0 ||
        quire_ticket_generation(state) != generation) {
      return false;
    }
  } while (!__atomic_compare_exchange_n(&t->state, &state, state | TICKET_CANCELLED, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE));
  struct message message = {MESSAGE_CANCEL, index_of(worker, t), generation};
  enum quire_status status = quire_queue_try_push(worker->messages, &message);
  QUIRE_ASSERT(status == QUIRE_OK);
  return true;
}

void quire_worker_cancel(struct quire_worker *worker, quire_ticket ticket) {
  struct ticket *t = quire_worker_ticket(worker, ticket);
  if (t != NULL) {
    cancel(worker, t, (ticket.v >> 32 << 32) | (quire_ticket_state(t) & UINT32_MAX));
  }
}

int32_t quire_worker_cancel_all(struct quire_worker *worker) {
  int32_t count = 0;
  for (int32_t i = 0; i < worker->config.tickets_max; i++) {
    struct ticket *t = &worker->tickets[i];
    count += cancel(worker, t, quire_ticket_state(t));
  }
  return count;
}

void quire_worker_flush(struct quire_worker *worker) {
  pthread_mutex_lock(&worker->mutex);
  worker->flush_wanted = true;
  pthread_mutex_unlock(&worker->mutex);
  quire_worker_tell(worker, MESSAGE_WAKE, NULL);
}

void quire_worker_drain(struct quire_worker *worker) {
  __atomic_store_n(&worker->draining, true, __ATOMIC_RELEASE);
  quire_worker_tell(worker, MESSAGE_WAKE, NULL);
}

bool quire_worker_idle(const struct quire_worker *worker) {
  return __atomic_load_n(&worker->inside, __ATOMIC_ACQUIRE) == 0;
}

uint64_t quire_worker_silence_ns(const struct quire_worker *worker) {
  uint64_t beat = __atomic_load_n(&worker->beat_ns, __ATOMIC_ACQUIRE);
  uint64_t now = worker->env->now_ns(worker->env->context);
  return now > beat ? now - beat : 0;
}

bool quire_worker_failed(const struct quire_worker *worker) {
  return __atomic_load_n(&worker->failed, __ATOMIC_ACQUIRE);
}

void quire_worker_stats(struct quire_worker *worker, struct quire_worker_stats *stats_out) {
  pthread_mutex_lock(&worker->mutex);
  *stats_out = worker->stats;
  stats_out->tickets = worker->config.tickets_max - worker->free_count;
  worker->stats_wanted = true;
  pthread_mutex_unlock(&worker->mutex);
  stats_out->draining = __atomic_load_n(&worker->draining, __ATOMIC_ACQUIRE);
  stats_out->failed = __atomic_load_n(&worker->failed, __ATOMIC_ACQUIRE);
}

bool quire_worker_check(struct quire_worker *worker, struct quire_error *why_out) {
  pthread_mutex_lock(&worker->mutex);
  worker->check_wanted = true;
  pthread_mutex_unlock(&worker->mutex);
  quire_worker_tell(worker, MESSAGE_WAKE, NULL);
  pthread_mutex_lock(&worker->mutex);
  while (worker->check_wanted) {
    pthread_cond_wait(&worker->checked, &worker->mutex);
  }
  bool answer = worker->check_answer;
  if (!answer && why_out != NULL) {
    *why_out = worker->check_why;
  }
  pthread_mutex_unlock(&worker->mutex);
  return answer;
}

/* --- the reading thread --- */

int quire_worker_fd(const struct quire_worker *worker) { return worker->fd; }

static bool next_news(struct quire_worker *worker, quire_ticket *ticket_out) {
  uint32_t taken = worker->news_taken;
  if (taken == __atomic_load_n(&worker->news_pushed, __ATOMIC_SEQ_CST)) {
    return false;
  }
  ticket_out->v = worker->news[taken & (worker->news_size - 1)];
  __atomic_store_n(&worker->news_taken, taken + 1, __ATOMIC_RELEASE);
  return true;
}

int32_t quire_worker_ready(struct quire_worker *worker, quire_ticket *tickets_out, int32_t max) {
  eventfd_t ignored;
  int32_t count = 0;
  (void)eventfd_read(worker->fd, &ignored); /* nothing there is an answer too */
  while (count < max) {
    quire_ticket ticket;
    if (!next_news(worker, &ticket)) {
      /* from here on the controller rings; what it put in before is seen once more */
      __atomic_store_n(&worker->armed, true, __ATOMIC_SEQ_CST);
      if (!next_news(worker, &ticket)) {
        break;
      }
    }
    struct ticket *t = quire_worker_ticket(worker, ticket);
    QUIRE_ASSERT(t != NULL); /* being listed kept it */
    if ((quire_ticket_state(t) & TICKET_CLOSED) != 0) {
      quire_worker_ticket_bits(worker, t, 0, TICKET_LISTED);
    } else {
      tickets_out[count++] = ticket;
    }
  }
  /* only now may they be listed again: otherwise one would be in this answer twice, and its reader, who may close it at
   * the first, would take from it at the second */
  for (int32_t i = 0; i < count; i++) {
    quire_worker_ticket_bits(worker, quire_worker_ticket(worker, tickets_out[i]), 0, TICKET_LISTED);
  }
  return count;
}

int32_t quire_worker_take(struct quire_worker *worker, quire_ticket ticket, struct quire_engine_event *events_out,
                          int32_t max) {
  struct ticket *t = quire_worker_ticket(worker, ticket);
  QUIRE_ASSERT(t != NULL);
  uint32_t ring = (uint32_t)worker->config.ring_events;
  const struct quire_engine_event *events = worker->events + (int64_t)index_of(worker, t) * (int64_t)ring;
  __atomic_store_n(&t->freed, t->taken, __ATOMIC_SEQ_CST);
  uint32_t pushed = __atomic_load_n(&t->pushed, __ATOMIC_ACQUIRE);
  if (pushed - t->taken <= ring / 2 && __atomic_exchange_n(&t->waits, false, __ATOMIC_SEQ_CST)) {
    quire_worker_tell(worker, MESSAGE_RESUME, t);
  }
  int32_t count = 0;
  while (count < max && t->taken != pushed) {
    events_out[count++] = events[t->taken++ & (ring - 1)];
  }
  return count;
}

const struct quire_error *quire_worker_error(const struct quire_worker *worker, quire_ticket ticket) {
  const struct ticket *t = quire_worker_ticket(worker, ticket);
  return t == NULL || t->error.status == QUIRE_OK ? NULL : &t->error;
}

const struct quire_step_row *quire_worker_rows(const struct quire_worker *worker, quire_ticket ticket,
                                               const struct quire_top **tops_out) {
  const struct ticket *t = quire_worker_ticket(worker, ticket);
  QUIRE_ASSERT(t != NULL);
  *tops_out = t->request.row_tops;
  return t->request.rows;
}

void quire_worker_close(struct quire_worker *worker, quire_ticket ticket) {
  struct ticket *t = quire_worker_ticket(worker, ticket);
  if (t == NULL || (quire_ticket_state(t) & TICKET_CLOSED) != 0) {
    return;
  }
  quire_worker_cancel(worker, ticket);
  quire_worker_ticket_bits(worker, t, TICKET_CLOSED, 0);
}
