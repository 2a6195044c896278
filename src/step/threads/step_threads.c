/* A thread per rank in one process. The controller hands a plan over by raising `posted`; each rank runs it and raises
 * `finished`. One mutex and two conditions: they are taken twice a step, and a sleeping rank costs the others nothing.
 */
#include "base/assert.h"
#include "base/futex.h"
#include "base/thread.h"
#include "step/step_private.h"

struct rank_thread {
  struct threads_executor *executor;
  struct quire_rank *rank;
  pthread_t thread;
};

struct threads_executor {
  struct quire_step_executor front;
  const struct quire_env *env;
  struct quire_step_group group;
  struct rank_thread threads[QUIRE_RANKS_MAX];
  int32_t threads_started;
  const struct quire_step_plan *plan; /* in flight; the controller's */

  pthread_mutex_t mutex;
  pthread_cond_t posted_changed, finished_changed;
  const struct quire_step_plan *work; /* guarded by mutex, like all below */
  uint64_t posted;                    /* number of plans handed out */
  int32_t finished;                   /* ranks that are done with the last */
  bool stopping;
  bool failed; /* a step failed: the ranks' state is void */
};

static void *rank_main(void *context) {
  struct rank_thread *self = context;
  struct threads_executor *x = self->executor;
  uint32_t control = quire_kernels_enter();
  uint64_t seen = 0;
  pthread_mutex_lock(&x->mutex);
  for (;;) {
    while (x->posted == seen && !x->stopping) {
      pthread_cond_wait(&x->posted_changed, &x->mutex);
    }
    if (x->posted == seen) {
      break;
    }
    seen = x->posted;
    const struct quire_step_plan *plan = x->work;
    pthread_mutex_unlock(&x->mutex);
    quire_rank_step(self->rank, plan);
    pthread_mutex_lock(&x->mutex);
    x->finished++;
    pthread_cond_signal(&x->finished_changed);
  }
  pthread_mutex_unlock(&x->mutex);
  quire_kernels_leave(control);
  return NULL;
}

static enum quire_status start_threads(struct threads_executor *x, struct quire_error *error_out) {
  for (int32_t r = 0; r < x->group.config.geometry.ranks; r++) {
    x->threads[r].executor = x;
    x->threads[r].rank = x->group.ranks[r];
    enum quire_status status = quire_rank_start(x->group.ranks[r], error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    if (!quire_thread_start(&x->threads[r].thread, rank_main, &x->threads[r])) {
      return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step",
                             "cannot start the thread of rank %d; see ulimit -u and -v", r);
    }
    x->threads_started++;
  }
  return QUIRE_OK;
}

static void threads_destroy(struct quire_step_executor *executor) {
  struct threads_executor *x = (struct threads_executor *)executor;
  pthread_mutex_lock(&x->mutex);
  x->stopping = true;
  pthread_cond_broadcast(&x->posted_changed);
  pthread_mutex_unlock(&x->mutex);
  for (int32_t r = 0; r < x->threads_started; r++) {
    pthread_join(x->threads[r].thread, NULL);
  }
  if (x->plan != NULL) {
    quire_futex_declare(-quire_step_group_threads(&x->group)); /* posted, and never waited for */
  }
  for (int32_t r = 0; r < x->group.config.geometry.ranks; r++) {
    if (x->group.ranks[r] != NULL) {
      quire_rank_stop(x->group.ranks[r]);
    }
  }
  quire_step_group_fini(&x->group);
  pthread_cond_destroy(&x->finished_changed);
  pthread_cond_destroy(&x->posted_changed);
  pthread_mutex_destroy(&x->mutex);
  quire_env_free(x->env, x, 1, sizeof *x);
}

static enum quire_status threads_create(const struct quire_env *env, const struct quire_step_config *config,
                                        struct quire_step_executor **executor_out, struct quire_error *error_out) {
  struct threads_executor *x = quire_env_zalloc(env, 1, sizeof *x);
  if (x == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "no memory for the executor");
  }
  x->front.ops = &quire_step_threads_ops;
  x->env = env;
  pthread_mutex_init(&x->mutex, NULL);
  pthread_cond_init(&x->posted_changed, NULL);
  pthread_cond_init(&x->finished_changed, NULL);
  enum quire_status status = quire_step_group_init(&x->group, env, config, error_out);
  if (status == QUIRE_OK) {
    status = start_threads(x, error_out);
  }
  if (status != QUIRE_OK) {
    threads_destroy(&x->front);
    return status;
  }
  *executor_out = &x->front;
  return QUIRE_OK;
}

static enum quire_status threads_post(struct quire_step_executor *executor, const struct quire_step_plan *plan,
                                      struct quire_error *error_out) {
  struct threads_executor *x = (struct threads_executor *)executor;
  if (x->plan != NULL || x->failed) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "step", "%s",
                           x->failed ? "a step failed; the worker must be created anew" : "a plan is in flight");
  }
  x->plan = plan;
  quire_futex_declare(quire_step_group_threads(&x->group));
  pthread_mutex_lock(&x->mutex);
  x->work = plan;
  x->finished = 0;
  x->posted++;
  pthread_cond_broadcast(&x->posted_changed);
  pthread_mutex_unlock(&x->mutex);
  return QUIRE_OK;
}

static struct quire_step_ack *threads_wait(struct quire_step_executor *executor) {
  struct threads_executor *x = (struct threads_executor *)executor;
  QUIRE_ASSERT(x->plan != NULL);
  pthread_mutex_lock(&x->mutex);
  while (x->finished < x->group.config.geometry.ranks) {
    pthread_cond_wait(&x->finished_changed, &x->mutex);
  }
  pthread_mutex_unlock(&x->mutex);
  quire_futex_declare(-quire_step_group_threads(&x->group));
  struct quire_step_ack *ack = quire_step_group_merge(&x->group, x->plan);
  x->failed = ack->status != QUIRE_OK;
  x->plan = NULL;
  return ack;
}

/* A thread that dies takes the process with it. */
static bool threads_alive(struct quire_step_executor *executor, struct quire_error *why_out) {
  const struct threads_executor *x = (struct threads_executor *)executor;
  QUIRE_ASSERT(x->plan == NULL);
  (void)why_out;
  return true;
}

static struct quire_bank *threads_bank(struct quire_step_executor *executor, int32_t rank) {
  struct threads_executor *x = (struct threads_executor *)executor;
  QUIRE_ASSERT(rank >= 0 && rank < x->group.config.geometry.ranks);
  return x->group.banks[rank];
}

static bool threads_tap(struct quire_step_executor *executor, int32_t rank, const struct quire_tap *tap) {
  struct threads_executor *x = (struct threads_executor *)executor;
  QUIRE_ASSERT(x->plan == NULL && rank >= 0 && rank < x->group.config.geometry.ranks);
  quire_forward_tap(x->group.ranks[rank]->forward, tap);
  return true;
}

const struct quire_step_ops quire_step_threads_ops = {
    .size = sizeof(struct quire_step_ops),
    .version = QUIRE_STEP_OPS_VERSION,
    .name = "threads",
    .bytes = quire_rank_bytes,
    .create = threads_create,
    .destroy = threads_destroy,
    .post = threads_post,
    .wait = threads_wait,
    .alive = threads_alive,
    .submit = quire_step_bank_submit,
    .poll = quire_step_bank_poll,
    .open_commands = quire_step_bank_open_commands,
    .drain = quire_step_bank_drain,
    .bank = threads_bank,
    .tap = threads_tap,
};
