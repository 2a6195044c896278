/* A forked process per rank. Everything the ranks touch (pages, exchange slots, local segments, collective, plan, acks)
 * is allocated from shared mappings before the fork, so it has one address in all processes; each process makes its
 * own streams and threads after the fork. The plan is copied into the shared block: it has to be plain data.
 *
 *     controller   copy plan, posted++  ------------------------------>  finished == ranks
 *     rank r           | waits on posted  | quire_rank_step | finished++ |
 *
 * In a step the controller looks every QUIRE_STEP_WATCH_NS whether a rank has died, between steps when asked; then it
 * poisons the collective, so that no rank waits for the dead one, and names it in the ack. Ranks that have not answered
 * QUIRE_STEP_GRACE_NS later, or not ended so long after destroy began, are stopped or hang: they are killed. Ranks die
 * with their controller (PR_SET_PDEATHSIG). */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/env_shared.h"
#include "base/futex.h"
#include "base/thread.h"
#include "step/step_private.h"

/* waitpid's word on a child that the system took itself, as it does where SIGCHLD is ignored. */
#define HOW_UNKNOWN (-1)
#define END_LOOK_NS 1000000

/* What controller and ranks say to each other; in shared memory. */
struct proc_board {
  _Alignas(64) struct quire_futex posted;   /* number of plans handed out */
  _Alignas(64) struct quire_futex finished; /* answers in all, plan after plan */
  struct quire_futex ready;                 /* ranks that have started */
  uint32_t stopping;
  uint32_t done[QUIRE_RANKS_MAX]; /* plans each rank has answered */
  enum quire_status start_status[QUIRE_RANKS_MAX];
  struct quire_error start_error[QUIRE_RANKS_MAX];
};

struct proc_executor {
  struct quire_step_executor front;
  const struct quire_env *env; /* the caller's */
  struct quire_env shared;
  struct quire_step_group group;
  struct proc_board *board;
  struct quire_step_plan *work; /* in shared memory */
  int64_t work_bytes;
  pid_t pid[QUIRE_RANKS_MAX]; /* 0: never started, or seen to have ended */
  const struct quire_step_plan *plan;
  bool failed;
};

static void raise_word(struct quire_futex *futex) {
  __atomic_add_fetch(&futex->word, 1, __ATOMIC_ACQ_REL);
  quire_futex_wake_all(futex);
}

/* The life of a rank process; ends with _exit, since the parent's buffers and handlers are not its to run. */
static void rank_process(struct proc_executor *x, int32_t r, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(1);
  }
  struct proc_board *board = x->board;
  struct quire_error *error = &board->start_error[r];
  quire_futex_declare(-quire_futex_declared()); /* what was at work in the parent stayed there */
  int at_work = quire_step_group_threads(&x->group);
  board->start_status[r] = quire_thread_first_stack()
                               ? quire_rank_start(x->group.ranks[r], error)
                               : quire_error_set(error, QUIRE_ERR_MEMORY, "rank",
                                                 "a process of a rank needs a stack of %zu KiB; raise ulimit -Hs, or "
                                                 "let ranks be threads",
                                                 QUIRE_THREAD_STACK_BYTES >> 10);
  bool good = board->start_status[r] == QUIRE_OK;
  raise_word(&board->ready);
  uint32_t seen = 0;
  quire_kernels_enter();
  while (good) {
    quire_futex_wait(&board->posted, seen, x->group.config.geometry.ranks + 1);
    if (__atomic_load_n(&board->stopping, __ATOMIC_ACQUIRE) != 0) {
      break;
    }
    seen++;
    quire_futex_declare(at_work);
    quire_rank_step(x->group.ranks[r], x->work);
    quire_futex_declare(-at_work);
    __atomic_store_n(&board->done[r], seen, __ATOMIC_RELEASE);
    raise_word(&board->finished);
  }
  quire_rank_stop(x->group.ranks[r]);
  _exit(0);
}

/* Rank that has ended since it was last asked for, or -1; *how_out is waitpid's. */
static int32_t find_dead(struct proc_executor *x, int *how_out) {
  for (int32_t r = 0; r < x->group.config.geometry.ranks; r++) {
    pid_t ended = x->pid[r] > 0 ? waitpid(x->pid[r], how_out, WNOHANG) : 0;
    if (ended < 0 && errno == ECHILD) {
      *how_out = HOW_UNKNOWN;
    }
    if (ended != 0) {
      QUIRE_ASSERT(ended == x->pid[r] || errno == ECHILD);
      x->pid[r] = 0;
      return r;
    }
  }
  return -1;
}

static bool any_left(const struct proc_executor *x) {
  for (int32_t r = 0; r < QUIRE_RANKS_MAX; r++) {
    if (x->pid[r] > 0) {
      return true;
    }
  }
  return false;
}

/* For those that have not ended by `until`, a time of the environment's; SIGKILL ends a stopped process, too. */
static void kill_after(const struct proc_executor *x, uint64_t until) {
  if (x->env->now_ns(x->env->context) < until) {
    return;
  }
  for (int32_t r = 0; r < QUIRE_RANKS_MAX; r++) {
    if (x->pid[r] > 0) {
      kill(x->pid[r], SIGKILL);
    }
  }
}

static uint64_t grace_from_now(const struct proc_executor *x) {
  return x->env->now_ns(x->env->context) + QUIRE_STEP_GRACE_NS;
}

static void describe_death(struct quire_error *error, int32_t rank, int how) {
  if (how == HOW_UNKNOWN) {
    quire_error_set(error, QUIRE_ERR_RANK, "rank",
                    "the process of rank %d ended, how is not known as SIGCHLD is ignored; start the worker anew",
                    rank);
  } else if (WIFSIGNALED(how)) {
    quire_error_set(error, QUIRE_ERR_RANK, "rank",
                    "the process of rank %d was ended by signal %d; start the worker anew", rank, WTERMSIG(how));
  } else {
    quire_error_set(error, QUIRE_ERR_RANK, "rank", "the process of rank %d ended with code %d; start the worker anew",
                    rank, WEXITSTATUS(how));
  }
}

static enum quire_status start_processes(struct proc_executor *x, struct quire_error *error_out) {
  int32_t ranks = x->group.config.geometry.ranks;
  pid_t parent = getpid();
  for (int32_t r = 0; r < ranks; r++) {
    pid_t pid = fork();
    if (pid < 0) {
      return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "cannot fork rank %d: %s", r, strerror(errno));
    }
    if (pid == 0) {
      rank_process(x, r, parent);
    }
    x->pid[r] = pid;
  }
  for (;;) {
    uint32_t ready = __atomic_load_n(&x->board->ready.word, __ATOMIC_ACQUIRE);
    if (ready >= (uint32_t)ranks) {
      break;
    }
    quire_futex_wait_within(&x->board->ready, ready, QUIRE_STEP_WATCH_NS);
    int how = 0;
    int32_t dead = find_dead(x, &how);
    if (dead >= 0) {
      struct quire_error error;
      describe_death(&error, dead, how);
      return quire_error_set(error_out, error.status, error.where, "%s", error.text);
    }
  }
  for (int32_t r = 0; r < ranks; r++) {
    if (x->board->start_status[r] != QUIRE_OK) {
      const struct quire_error *error = &x->board->start_error[r];
      return quire_error_set(error_out, error->status, error->where, "%s", error->text);
    }
  }
  return QUIRE_OK;
}

static void proc_destroy(struct quire_step_executor *executor) {
  struct proc_executor *x = (struct proc_executor *)executor;
  if (x->board != NULL) {
    __atomic_store_n(&x->board->stopping, 1, __ATOMIC_RELEASE);
    raise_word(&x->board->posted);
  }
  if (x->group.collective != NULL) {
    quire_collective_abort(x->group.collective, 0);
  }
  uint64_t until = grace_from_now(x);
  while (any_left(x)) {
    int how = 0;
    if (find_dead(x, &how) < 0) {
      kill_after(x, until);
      quire_futex_wait_within(&x->board->finished, __atomic_load_n(&x->board->finished.word, __ATOMIC_ACQUIRE),
                              END_LOOK_NS);
    }
  }
  quire_step_group_fini(&x->group);
  quire_env_free(&x->shared, x->board, 1, sizeof *x->board);
  quire_env_free(&x->shared, x->work, 1, (size_t)x->work_bytes);
  quire_env_free(x->env, x, 1, sizeof *x);
}

static enum quire_status proc_create(const struct quire_env *env, const struct quire_step_config *config,
                                     struct quire_step_executor **executor_out, struct quire_error *error_out) {
  struct proc_executor *x = quire_env_zalloc(env, 1, sizeof *x);
  if (x == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "no memory for the executor");
  }
  x->front.ops = &quire_step_proc_ops;
  x->env = env;
  x->shared = quire_env_shared(env);
  x->work_bytes = quire_step_plan_bytes(&config->limits);
  x->board = quire_env_zalloc(&x->shared, 1, sizeof *x->board);
  x->work = quire_env_zalloc(&x->shared, 1, (size_t)x->work_bytes);
  enum quire_status status = QUIRE_OK;
  if (x->board == NULL || x->work == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "no shared memory for the step plan");
  }
  if (status == QUIRE_OK) {
    status = quire_step_group_init(&x->group, &x->shared, config, error_out);
  }
  if (status == QUIRE_OK) {
    status = start_processes(x, error_out);
  }
  if (status != QUIRE_OK) {
    proc_destroy(&x->front);
    return status;
  }
  *executor_out = &x->front;
  return QUIRE_OK;
}

static enum quire_status proc_post(struct quire_step_executor *executor, const struct quire_step_plan *plan,
                                   struct quire_error *error_out) {
  struct proc_executor *x = (struct proc_executor *)executor;
  if (x->plan != NULL || x->failed) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "step", "%s",
                           x->failed ? "a step failed; the worker must be created anew" : "a plan is in flight");
  }
  x->plan = plan;
  memcpy(x->work, plan, (size_t)x->work_bytes);
  raise_word(&x->board->posted);
  return QUIRE_OK;
}

/* A rank is done with a plan when it has answered or ended; *error_out gets the first death. */
static bool all_done(struct proc_executor *x, struct quire_error *error_out) {
  uint32_t posted = __atomic_load_n(&x->board->posted.word, __ATOMIC_ACQUIRE);
  int how = 0;
  for (int32_t dead = find_dead(x, &how); dead >= 0; dead = find_dead(x, &how)) {
    if (error_out->status == QUIRE_OK) {
      describe_death(error_out, dead, how);
    }
    quire_collective_abort(x->group.collective, dead);
  }
  for (int32_t r = 0; r < x->group.config.geometry.ranks; r++) {
    if (x->pid[r] > 0 && __atomic_load_n(&x->board->done[r], __ATOMIC_ACQUIRE) != posted) {
      return false;
    }
  }
  return true;
}

static struct quire_step_ack *proc_wait(struct quire_step_executor *executor) {
  struct proc_executor *x = (struct proc_executor *)executor;
  QUIRE_ASSERT(x->plan != NULL);
  struct quire_error death = {0};
  uint32_t finished = __atomic_load_n(&x->board->finished.word, __ATOMIC_ACQUIRE);
  uint64_t until = 0; /* when ranks that do not answer are killed; 0: no rank has died */
  while (!all_done(x, &death)) {
    if (until != 0) {
      kill_after(x, until);
    } else if (death.status != QUIRE_OK) {
      until = grace_from_now(x);
    }
    quire_futex_wait_within(&x->board->finished, finished, QUIRE_STEP_WATCH_NS);
    finished = __atomic_load_n(&x->board->finished.word, __ATOMIC_ACQUIRE);
  }
  struct quire_step_ack *ack = x->group.merged;
  if (death.status == QUIRE_OK) {
    ack = quire_step_group_merge(&x->group, x->plan);
  } else {
    quire_step_ack_reset(ack, x->plan, &x->group.config.limits, 0);
    ack->status = death.status;
    ack->error = death;
  }
  x->failed = ack->status != QUIRE_OK;
  x->plan = NULL;
  return ack;
}

static bool proc_alive(struct quire_step_executor *executor, struct quire_error *why_out) {
  struct proc_executor *x = (struct proc_executor *)executor;
  QUIRE_ASSERT(x->plan == NULL);
  int how = 0;
  int32_t dead = find_dead(x, &how);
  if (dead < 0) {
    return true;
  }
  describe_death(why_out, dead, how);
  quire_collective_abort(x->group.collective, dead);
  x->failed = true;
  return false;
}

static struct quire_bank *proc_bank(struct quire_step_executor *executor, int32_t rank) {
  struct proc_executor *x = (struct proc_executor *)executor;
  QUIRE_ASSERT(rank >= 0 && rank < x->group.config.geometry.ranks);
  return x->group.banks[rank];
}

static bool proc_tap(struct quire_step_executor *executor, int32_t rank, const struct quire_tap *tap) {
  (void)executor;
  (void)rank;
  (void)tap;
  return false;
}

const struct quire_step_ops quire_step_proc_ops = {
    .size = sizeof(struct quire_step_ops),
    .version = QUIRE_STEP_OPS_VERSION,
    .name = "proc",
    .bytes = quire_rank_bytes,
    .create = proc_create,
    .destroy = proc_destroy,
    .post = proc_post,
    .wait = proc_wait,
    .alive = proc_alive,
    .submit = quire_step_bank_submit,
    .poll = quire_step_bank_poll,
    .open_commands = quire_step_bank_open_commands,
    .drain = quire_step_bank_drain,
    .bank = proc_bank,
    .tap = proc_tap,
};
