/* Ranks are threads of one process, but for the first: its steps run on the thread that waits for them, which has
 * nothing else to do. So a plan of one rank is handed to nobody, and waking a thread costs a plan nothing but where a
 * second rank takes part.
 *
 *     the caller   post: posted++    wait: quire_rank_step of rank 0, then until all others have finished
 *     rank r > 0       | waits on posted | quire_rank_step | finished++ |
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
  struct rank_thread threads[QUIRE_RANKS_MAX]; /* from 1 on */
  int32_t threads_started;
  const struct quire_step_plan *plan; /* in flight; the caller's but for a posted rank, which reads it */
  bool failed;                        /* a step failed: the ranks' state is void */

  uint32_t stopping;
  _Alignas(64) struct quire_futex posted;   /* number of plans handed out, and one more at the end */
  _Alignas(64) struct quire_futex finished; /* answers of the threads in all, plan after plan */
};

static void raise_word(struct quire_futex *futex) {
  __atomic_add_fetch(&futex->word, 1, __ATOMIC_ACQ_REL);
  quire_futex_wake_all(futex);
}

static void *rank_main(void *context) {
  struct rank_thread *self = context;
  struct threads_executor *x = self->executor;
  uint32_t control = quire_kernels_enter();
  for (uint32_t seen = 0;; seen++) {
    quire_futex_wait(&x->posted, seen, quire_step_group_threads(&x->group));
    if (__atomic_load_n(&x->stopping, __ATOMIC_ACQUIRE) != 0) {
      break;
    }
    quire_rank_step(self->rank, x->plan);
    raise_word(&x->finished);
  }
  quire_kernels_leave(control);
  return NULL;
}

static enum quire_status start_threads(struct threads_executor *x, struct quire_error *error_out) {
  if (!quire_thread_first_stack()) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "a rank needs a stack of %zu KiB; raise ulimit -Hs",
                           QUIRE_THREAD_STACK_BYTES >> 10);
  }
  for (int32_t r = 0; r < x->group.config.geometry.ranks; r++) {
    x->threads[r].executor = x;
    x->threads[r].rank = x->group.ranks[r];
    enum quire_status status = quire_rank_start(x->group.ranks[r], error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    if (r == 0) {
      continue;
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
  __atomic_store_n(&x->stopping, 1, __ATOMIC_RELEASE);
  if (x->plan != NULL) { /* posted, and never waited for: rank 0 does not come */
    quire_collective_abort(x->group.collective, 0);
    quire_futex_declare(-quire_step_group_threads(&x->group));
  }
  raise_word(&x->posted);
  for (int32_t r = 1; r <= x->threads_started; r++) {
    pthread_join(x->threads[r].thread, NULL);
  }
  for (int32_t r = 0; r < x->group.config.geometry.ranks; r++) {
    if (x->group.ranks[r] != NULL) {
      quire_rank_stop(x->group.ranks[r]);
    }
  }
  quire_step_group_fini(&x->group);
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
  raise_word(&x->posted);
  return QUIRE_OK;
}

/* The first rank's part, then the answers of the others. */
static struct quire_step_ack *threads_wait(struct quire_step_executor *executor) {
  struct threads_executor *x = (struct threads_executor *)executor;
  QUIRE_ASSERT(x->plan != NULL);
  int32_t threads = quire_step_group_threads(&x->group);
  uint32_t control = quire_kernels_enter();
  quire_rank_step(x->group.ranks[0], x->plan);
  quire_kernels_leave(control);
  uint32_t all = __atomic_load_n(&x->posted.word, __ATOMIC_RELAXED) * (uint32_t)x->threads_started;
  for (uint32_t seen; (seen = __atomic_load_n(&x->finished.word, __ATOMIC_ACQUIRE)) != all;) {
    quire_futex_wait(&x->finished, seen, threads);
  }
  quire_futex_declare(-threads);
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
