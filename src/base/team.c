/* A run is published by raising `run`; each member that sees a new number does its share and takes itself off
 * `pending`; the last one changes `done` to the number of the run, on which the owner sleeps. */
#include "base/team.h"

#include <stdbool.h>

#include "base/assert.h"
#include "base/futex.h"
#include "base/thread.h"

struct member {
  struct quire_team *team;
  int index;
  pthread_t thread;
};

struct quire_team {
  const struct quire_env *env;
  int threads;
  int started;      /* members with a thread, in member[1 .. started] */
  bool running;     /* owner only: a run inside a run is a bug */
  quire_team_fn fn; /* of the present run; NULL: leave */
  void *context;
  _Alignas(64) uint32_t run;
  _Alignas(64) uint32_t pending;
  _Alignas(64) uint32_t done;
  struct member member[QUIRE_TEAM_THREADS_MAX];
};

static void *member_main(void *argument) {
  struct member *self = argument;
  struct quire_team *team = self->team;
  uint32_t seen = 0;
  for (;;) {
    quire_futex_wait(&team->run, seen, team->threads);
    seen++;
    quire_team_fn fn = team->fn;
    if (!fn) {
      return NULL;
    }
    fn(team->context, self->index, team->threads);
    if (__atomic_sub_fetch(&team->pending, 1, __ATOMIC_ACQ_REL) == 0) {
      __atomic_store_n(&team->done, seen, __ATOMIC_RELEASE);
      quire_futex_wake_all(&team->done);
    }
  }
}

static void publish(struct quire_team *team, quire_team_fn fn, void *context) {
  team->fn = fn;
  team->context = context;
  __atomic_store_n(&team->pending, (uint32_t)team->started, __ATOMIC_RELAXED);
  __atomic_add_fetch(&team->run, 1, __ATOMIC_RELEASE);
  quire_futex_wake_all(&team->run);
}

enum quire_status quire_team_create(const struct quire_env *env, int threads, struct quire_team **team_out,
                                    struct quire_error *error_out) {
  if (threads < 1 || threads > QUIRE_TEAM_THREADS_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "team", "threads must be 1 to %d, not %d",
                           QUIRE_TEAM_THREADS_MAX, threads);
  }
  struct quire_team *team = quire_env_zalloc(env, 1, sizeof *team);
  if (!team) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "team", "no memory for %zu bytes", sizeof *team);
  }
  team->env = env;
  team->threads = threads;
  for (int i = 1; i < threads; i++) {
    team->member[i] = (struct member){.team = team, .index = i};
    if (!quire_thread_start(&team->member[i].thread, member_main, &team->member[i])) {
      quire_team_destroy(team);
      return quire_error_set(error_out, QUIRE_ERR_MEMORY, "team", "cannot start thread %d of %d; see ulimit -u and -v",
                             i + 1, threads);
    }
    team->started = i;
  }
  *team_out = team;
  return QUIRE_OK;
}

void quire_team_destroy(struct quire_team *team) {
  if (!team) {
    return;
  }
  QUIRE_ASSERT(!team->running);
  publish(team, NULL, NULL);
  for (int i = 1; i <= team->started; i++) {
    pthread_join(team->member[i].thread, NULL);
  }
  quire_env_free(team->env, team, 1, sizeof *team);
}

int quire_team_threads(const struct quire_team *team) { return team ? team->threads : 1; }

void quire_team_run(struct quire_team *team, quire_team_fn fn, void *context) {
  QUIRE_ASSERT(fn);
  if (!team || team->threads == 1) {
    fn(context, 0, 1);
    return;
  }
  QUIRE_ASSERT(!team->running);
  team->running = true;
  publish(team, fn, context);
  uint32_t before = team->run - 1;
  fn(context, 0, team->threads);
  quire_futex_wait(&team->done, before, team->threads);
  team->running = false;
}

void quire_team_share(int64_t count, int64_t grain, int member, int threads, int64_t *begin_out, int64_t *end_out) {
  QUIRE_ASSERT(count >= 0 && grain > 0 && threads > 0);
  QUIRE_ASSERT(member >= 0 && member < threads);
  int64_t units = count / grain + (count % grain != 0);
  int64_t each = units / threads;
  int64_t longer = units % threads; /* the first `longer` members take one unit more */
  int64_t first = each * member + (member < longer ? member : longer);
  int64_t last = first + each + (member < longer);
  int64_t begin = first * grain;
  int64_t end = last * grain;
  *begin_out = begin < count ? begin : count;
  *end_out = end < count ? end : count;
}
