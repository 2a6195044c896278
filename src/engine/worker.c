/* Creation, and the controller thread: messages in, ticks, events out. */
#include "engine/worker.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/thread.h"
#include "engine/worker_private.h"
#include "layout/carve.h"

#define WORKER_TICKETS_MAX (1 << 20)
#define WORKER_RING_MAX (1 << 16)
/* While requests are inside that cannot run: how long the controller sleeps before it looks again. */
#define WORKER_WAIT_NS 1000000
/* While nobody is inside. */
#define WORKER_IDLE_NS 100000000
/* How often the picture for others is renewed without being asked for. */
#define WORKER_STATS_NS 50000000
/* Events taken out of the engine at a time. */
#define WORKER_BATCH 64

/* --- creation --- */

static int32_t power_of_two(int32_t least) {
  int32_t size = 4;
  while (size < least) {
    size *= 2;
  }
  return size;
}

static size_t carve_worker(struct quire_worker *worker) {
  struct quire_carve carve = {worker->block, 0};
  int64_t tickets = worker->config.tickets_max;
  worker->tickets = quire_carve(&carve, tickets, sizeof *worker->tickets);
  worker->events = quire_carve(&carve, tickets * worker->config.ring_events, sizeof *worker->events);
  worker->news = quire_carve(&carve, worker->news_size, sizeof *worker->news);
  worker->pending = quire_carve(&carve, tickets, sizeof *worker->pending);
  worker->stalled = quire_carve(&carve, tickets, sizeof *worker->stalled);
  worker->free_tickets = quire_carve(&carve, tickets, sizeof *worker->free_tickets);
  return carve.used;
}

static struct quire_worker sized(const struct quire_worker_config *config) {
  struct quire_worker worker = {.config = *config, .engine = config->engine, .fd = -1};
  worker.config.ring_events = power_of_two(config->ring_events);
  worker.news_size = (uint32_t)power_of_two(config->tickets_max);
  return worker;
}

/* Messages a ticket can have on their way: submit, cancel, resume. */
static int queue_capacity(const struct quire_worker_config *config) { return 4 * config->tickets_max + 16; }

int64_t quire_worker_bytes(const struct quire_worker_config *config) {
  struct quire_worker worker = sized(config);
  return (int64_t)(carve_worker(&worker) + sizeof worker) +
         (int64_t)queue_capacity(config) * (int64_t)sizeof(struct message);
}

static void *controller_main(void *context);

static enum quire_status start(struct quire_worker *worker, struct quire_error *error_out) {
  worker->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (worker->fd < 0) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "worker", "no eventfd; see ulimit -n");
  }
  enum quire_status status = quire_queue_create(worker->env, sizeof(struct message), queue_capacity(&worker->config),
                                                &worker->messages, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  worker->block_bytes = carve_worker(worker);
  worker->block = quire_env_zalloc(worker->env, 1, worker->block_bytes);
  if (worker->block == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "worker", "no memory for %zu bytes of tickets",
                           worker->block_bytes);
  }
  carve_worker(worker);
  for (int32_t i = 0; i < worker->config.tickets_max; i++) {
    worker->free_tickets[worker->free_count++] = worker->config.tickets_max - 1 - i;
  }
  worker->armed = true;
  worker->beat_ns = worker->env->now_ns(worker->env->context);
  worker->started = quire_thread_start(&worker->thread, controller_main, worker);
  return worker->started ? QUIRE_OK
                         : quire_error_set(error_out, QUIRE_ERR_MEMORY, "worker",
                                           "cannot start the controller's thread; see ulimit -u and -v");
}

enum quire_status quire_worker_create(const struct quire_env *env, const struct quire_worker_config *config,
                                      struct quire_worker **worker_out, struct quire_error *error_out) {
  if (config->engine == NULL || config->tickets_max < 1 || config->tickets_max > WORKER_TICKETS_MAX ||
      config->ring_events < 4 || config->ring_events > WORKER_RING_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "worker",
                           "%d tickets (1 to %d) with rings of %d events (4 to %d)", config->tickets_max,
                           WORKER_TICKETS_MAX, config->ring_events, WORKER_RING_MAX);
  }
  struct quire_worker *worker = quire_env_zalloc(env, 1, sizeof *worker);
  if (worker == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "worker", "no memory for the worker");
  }
  *worker = sized(config);
  worker->env = env;
  pthread_mutex_init(&worker->mutex, NULL);
  pthread_cond_init(&worker->checked, NULL);
  enum quire_status status = start(worker, error_out);
  if (status != QUIRE_OK) {
    quire_worker_destroy(worker);
    return status;
  }
  *worker_out = worker;
  return QUIRE_OK;
}

void quire_worker_destroy(struct quire_worker *worker) {
  if (worker == NULL) {
    return;
  }
  if (worker->started) {
    __atomic_store_n(&worker->stopping, true, __ATOMIC_RELEASE);
    quire_worker_drain(worker);
    pthread_join(worker->thread, NULL);
  }
  for (int32_t i = 0; worker->block != NULL && i < worker->config.tickets_max; i++) {
    quire_env_free(worker->env, worker->tickets[i].block, 1, worker->tickets[i].block_bytes);
  }
  if (worker->fd >= 0) {
    close(worker->fd);
  }
  if (worker->messages != NULL) {
    quire_queue_destroy(worker->messages);
  }
  quire_env_free(worker->env, worker->block, 1, worker->block_bytes);
  pthread_cond_destroy(&worker->checked);
  pthread_mutex_destroy(&worker->mutex);
  quire_env_free(worker->env, worker, 1, sizeof *worker);
}

/* --- events to tickets --- */

static uint64_t now_of(const struct quire_worker *worker) { return worker->env->now_ns(worker->env->context); }

static uint32_t ring_used(const struct ticket *t) { return t->pushed - __atomic_load_n(&t->freed, __ATOMIC_SEQ_CST); }

static void list(struct quire_worker *worker, struct ticket *t) {
  uint64_t before = __atomic_fetch_or(&t->state, TICKET_LISTED, __ATOMIC_ACQ_REL);
  if ((before & TICKET_LISTED) != 0) {
    return;
  }
  uint32_t at = worker->news_pushed;
  QUIRE_ASSERT(at - __atomic_load_n(&worker->news_taken, __ATOMIC_ACQUIRE) < worker->news_size);
  uint64_t name = before >> 32 << 32 | (uint32_t)(t - worker->tickets + 1);
  worker->news[at & (worker->news_size - 1)] = name;
  __atomic_store_n(&worker->news_pushed, at + 1, __ATOMIC_SEQ_CST);
}

static void ring_bell(struct quire_worker *worker) {
  if (worker->news_pushed != __atomic_load_n(&worker->news_taken, __ATOMIC_SEQ_CST) &&
      __atomic_exchange_n(&worker->armed, false, __ATOMIC_SEQ_CST)) {
    (void)eventfd_write(worker->fd, 1); /* cannot fail: the counter is far from its end */
  }
}

/* A ring always has room for the end: a request whose ring has no more than that pauses. */
static void push(struct quire_worker *worker, struct ticket *t, struct quire_engine_event event) {
  if ((quire_ticket_state(t) & TICKET_CLOSED) != 0) {
    return;
  }
  uint32_t ring = (uint32_t)worker->config.ring_events, at = t->pushed & (ring - 1);
  QUIRE_ASSERT(ring_used(t) < ring);
  if (event.top_count > 0) {
    struct quire_top *tops = t->tops + (int64_t)at * event.top_count;
    memcpy(tops, event.tops, (size_t)event.top_count * sizeof *tops);
    event.tops = tops;
  }
  worker->events[(t - worker->tickets) * (int64_t)ring + at] = event;
  __atomic_store_n(&t->pushed, t->pushed + 1, __ATOMIC_RELEASE);
  list(worker, t);
}

static void stall(struct quire_worker *worker, struct ticket *t) {
  t->stalled_ns = now_of(worker);
  quire_engine_pause(worker->engine, t->id, true);
  worker->stalled[worker->stalled_count++] = (int32_t)(t - worker->tickets);
  __atomic_store_n(&t->waits, true, __ATOMIC_SEQ_CST);
  /* the reader may have made room before it could see that somebody waits */
  if (ring_used(t) <= (uint32_t)worker->config.ring_events / 2 &&
      __atomic_exchange_n(&t->waits, false, __ATOMIC_SEQ_CST)) {
    quire_worker_tell(worker, MESSAGE_RESUME, t);
  }
}

static void unstall(struct quire_worker *worker, struct ticket *t) {
  for (int32_t i = 0; i < worker->stalled_count; i++) {
    if (worker->stalled[i] == (int32_t)(t - worker->tickets)) {
      worker->stalled[i] = worker->stalled[--worker->stalled_count];
      t->stalled_ns = 0;
      quire_engine_pause(worker->engine, t->id, false);
      return;
    }
  }
}

/* The ticket's last event; what the engine knew of it is gone. */
static void end(struct quire_worker *worker, struct ticket *t, struct quire_engine_event event) {
  unstall(worker, t);
  t->id = 0;
  push(worker, t, event);
  __atomic_sub_fetch(&worker->inside, 1, __ATOMIC_RELEASE);
  quire_worker_ticket_bits(worker, t, TICKET_ENDED, 0);
}

static void fail(struct quire_worker *worker, struct ticket *t) {
  end(worker, t,
      (struct quire_engine_event){
          .tag = t->request.tag, .kind = QUIRE_EVENT_FAILED, .token = QUIRE_TOKEN_ABSENT, .status = t->error.status});
}

static void pass_event(struct quire_worker *worker, const struct quire_engine_event *event) {
  struct ticket *t = quire_worker_ticket(worker, (quire_ticket){event->tag});
  QUIRE_ASSERT(t != NULL && t->id == event->id);
  if (event->kind == QUIRE_EVENT_TOKEN) {
    push(worker, t, *event);
    if (ring_used(t) + 1 >= (uint32_t)worker->config.ring_events) {
      stall(worker, t);
    }
    return;
  }
  if (event->kind == QUIRE_EVENT_FAILED && t->error.status == QUIRE_OK) {
    t->error = *quire_engine_error(worker->engine, event->id);
  }
  end(worker, t, *event);
}

static void pass_events(struct quire_worker *worker) {
  struct quire_engine_event events[WORKER_BATCH];
  int32_t count;
  do {
    count = quire_engine_poll(worker->engine, events, WORKER_BATCH);
    for (int32_t i = 0; i < count; i++) {
      pass_event(worker, &events[i]);
    }
  } while (count == WORKER_BATCH);
  ring_bell(worker);
}

/* --- messages --- */

static void handle(struct quire_worker *worker, const struct message *message) {
  struct ticket *t = message->ticket >= 0 ? &worker->tickets[message->ticket] : NULL;
  uint64_t state = t != NULL ? quire_ticket_state(t) : 0;
  if ((state & TICKET_OPEN) == 0 || quire_ticket_generation(state) != message->generation ||
      (state & TICKET_ENDED) != 0) {
    return; /* a wake, or it ended before the message came */
  }
  if (message->kind == MESSAGE_SUBMIT) {
    int32_t at = (worker->pending_first + worker->pending_count++) % worker->config.tickets_max;
    worker->pending[at] = message->ticket;
  } else if (message->kind == MESSAGE_CANCEL && t->id != 0) {
    quire_engine_cancel(worker->engine, t->id);
  } else if (message->kind == MESSAGE_RESUME) {
    unstall(worker, t);
  }
}

static void read_messages(struct quire_worker *worker) {
  struct message message;
  while (quire_queue_try_pop(worker->messages, &message) == QUIRE_OK) {
    handle(worker, &message);
  }
}

/* Those that wait for a place in the engine's queue, in order; cancelled ones end here. */
static void submit_pending(struct quire_worker *worker) {
  while (worker->pending_count > 0) {
    struct ticket *t = &worker->tickets[worker->pending[worker->pending_first]];
    enum quire_status status = QUIRE_OK;
    if ((quire_ticket_state(t) & TICKET_CANCELLED) != 0) {
      status = quire_error_set(&t->error, QUIRE_ERR_CANCELLED, "request", "cancelled");
    } else {
      status = quire_engine_submit(worker->engine, &t->request, &t->id, &t->error);
      if (status == QUIRE_ERR_AGAIN) {
        t->error.status = QUIRE_OK;
        return;
      }
    }
    worker->pending_first = (worker->pending_first + 1) % worker->config.tickets_max;
    worker->pending_count--;
    if (status != QUIRE_OK) {
      fail(worker, t);
    } else if ((quire_ticket_state(t) & TICKET_CANCELLED) != 0) {
      quire_engine_cancel(worker->engine, t->id); /* its message may have come before */
    }
  }
}

static void end_stalled(struct quire_worker *worker) {
  uint64_t now = worker->stalled_count > 0 && worker->config.stall_ns > 0 ? now_of(worker) : 0;
  for (int32_t i = 0; now > 0 && i < worker->stalled_count; i++) {
    struct ticket *t = &worker->tickets[worker->stalled[i]];
    if (t->id != 0 && t->error.status == QUIRE_OK && now - t->stalled_ns > worker->config.stall_ns) {
      quire_error_set(&t->error, QUIRE_ERR_CANCELLED, "request",
                      "its reader left %d events unread for %.1f s; read faster", worker->config.ring_events - 1,
                      (double)worker->config.stall_ns * 1e-9);
      quire_engine_cancel(worker->engine, t->id);
    }
  }
}

/* What others asked the controller for. The lock is held for words only: laws take long, and others must not wait. */
static void serve(struct quire_worker *worker, uint64_t *shown_ns, bool always) {
  uint64_t now = now_of(worker);
  __atomic_store_n(&worker->beat_ns, now, __ATOMIC_RELEASE);
  pthread_mutex_lock(&worker->mutex);
  bool flush = worker->flush_wanted, check = worker->check_wanted;
  bool show = always || worker->stats_wanted || now - *shown_ns > WORKER_STATS_NS;
  worker->flush_wanted = false;
  worker->stats_wanted = false;
  pthread_mutex_unlock(&worker->mutex);
  if (!flush && !check && !show) {
    return;
  }
  struct quire_error why = {0};
  struct quire_worker_stats stats = {.tick_ns = worker->tick_ns};
  if (flush) {
    quire_engine_flush(worker->engine);
  }
  bool answer = check && quire_engine_check_laws(worker->engine, &why);
  quire_engine_stats(worker->engine, &stats.engine);
  quire_cache_stats(worker->engine->cache, &stats.cache);
  *shown_ns = now;
  pthread_mutex_lock(&worker->mutex);
  stats.rejected = worker->stats.rejected;
  worker->stats = stats;
  if (check) {
    worker->check_answer = answer;
    worker->check_why = why;
    worker->check_wanted = false;
    pthread_cond_broadcast(&worker->checked);
  }
  pthread_mutex_unlock(&worker->mutex);
}

/* --- the thread --- */

/* One tick. False: nothing could run. */
static bool tick(struct quire_worker *worker) {
  int64_t steps = worker->engine->stats.steps;
  uint64_t begin = now_of(worker);
  enum quire_status status = quire_engine_tick(worker->engine, begin, NULL);
  if (status != QUIRE_OK && worker->engine->failed) {
    __atomic_store_n(&worker->failed, true, __ATOMIC_RELEASE);
  }
  pass_events(worker);
  bool ran = worker->engine->stats.steps != steps;
  worker->tick_ns = ran ? now_of(worker) - begin : worker->tick_ns;
  return ran;
}

/* Looks after the ranks while none of them runs a step. */
static void watch_ranks(struct quire_worker *worker) {
  if (!quire_engine_alive(worker->engine)) {
    __atomic_store_n(&worker->failed, true, __ATOMIC_RELEASE);
    pass_events(worker);
  }
}

static void sleep_until_told(struct quire_worker *worker, uint64_t ns) {
  struct message message;
  if (quire_queue_pop_within(worker->messages, &message, ns) == QUIRE_OK) {
    handle(worker, &message);
  }
}

/* The engine is left without requests of the tickets. */
static void end_all(struct quire_worker *worker) {
  for (int32_t i = 0; i < worker->config.tickets_max; i++) {
    if (worker->tickets[i].id != 0) {
      quire_engine_cancel(worker->engine, worker->tickets[i].id);
    }
  }
  if (quire_engine_active(worker->engine) > 0 && !worker->engine->failed) {
    tick(worker);
  }
}

static void *controller_main(void *context) {
  struct quire_worker *worker = context;
  uint64_t shown_ns = 0;
  bool idle = false;
  while (!__atomic_load_n(&worker->stopping, __ATOMIC_ACQUIRE)) {
    read_messages(worker);
    submit_pending(worker);
    end_stalled(worker);
    serve(worker, &shown_ns, idle);
    if (quire_engine_active(worker->engine) > 0) {
      bool ran = tick(worker);
      idle = false;
      if (!ran && quire_engine_active(worker->engine) > 0) {
        watch_ranks(worker);
        sleep_until_told(worker, WORKER_WAIT_NS);
      }
      continue;
    }
    ring_bell(worker);
    if (!idle) {
      idle = true; /* once more round, so that the picture shows the end */
      continue;
    }
    if (quire_cache_coming(worker->engine->cache) > 0) {
      tick(worker); /* pages that are poisoned come home, also when no request follows */
    }
    watch_ranks(worker);
    sleep_until_told(worker, WORKER_IDLE_NS);
  }
  end_all(worker);
  return NULL;
}
