/* A run is published by raising `run`. Each member then takes its share by compare and swap of its own word, does it
 * and says so there; the owner, done with its own, takes what nobody has taken yet and waits for the rest. So a
 * hand-over between threads that spin moves two lines of cache, one there with the number of the run and what it stands
 * for, one back, and one that sleeps is waited for no longer than its share takes the owner.
 *
 *      share of a member    2 r      free in run r
 *                           2 r + 1  taken
 *                           2 r + 2  done: free in run r + 1
 *
 * A member that wakes late may see a number that has passed. It reads the job only after its swap: a share it has taken
 * keeps the owner in that run. */
#include "base/team.h"

#include <stdbool.h>

#include "base/assert.h"
#include "base/futex.h"
#include "base/thread.h"

struct member {
  _Alignas(64) struct quire_futex share;
  struct quire_team *team;
  int index;
  pthread_t thread;
};

struct quire_team {
  const struct quire_env *env;
  int threads;
  int started;                         /* members with a thread, in member[1 .. started] */
  bool running;                        /* owner only: a run inside a run is a bug */
  _Alignas(64) struct quire_futex run; /* word: runs published */
  quire_team_fn fn;                    /* of the last of them; NULL: leave */
  void *context;
  struct member member[QUIRE_TEAM_THREADS_MAX];
};

static uint32_t word_of(const struct quire_futex *futex) { return __atomic_load_n(&futex->word, __ATOMIC_ACQUIRE); }

/* Whether the share of a member in run `run` is now the caller's. */
static bool share_take(struct member *member, uint32_t run) {
  uint32_t free = 2 * run;
  return __atomic_compare_exchange_n(&member->share.word, &free, 2 * run + 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE);
}

static void share_done(struct member *member, uint32_t run) {
  __atomic_store_n(&member->share.word, 2 * run + 2, __ATOMIC_RELEASE);
}

static void *member_main(void *argument) {
  struct member *self = argument;
  struct quire_team *team = self->team;
  uint32_t seen = 0;
  for (;;) {
    quire_futex_wait(&team->run, seen, team->threads);
    seen = word_of(&team->run);
    if (!share_take(self, seen - 1)) {
      continue; /* the owner was faster */
    }
    quire_team_fn fn = team->fn;
    if (fn) {
      fn(team->context, self->index, team->threads);
    }
    share_done(self, seen - 1);
    quire_futex_wake_all(&self->share);
    if (!fn) {
      return NULL;
    }
  }
}

static uint32_t publish(struct quire_team *team, quire_team_fn fn, void *context) {
  team->fn = fn;
  team->context = context;
  uint32_t run = __atomic_fetch_add(&team->run.word, 1, __ATOMIC_RELEASE);
  quire_futex_wake_all(&team->run);
  return run;
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
  publish(team, NULL, NULL); /* every member takes its share of leaving */
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
  uint32_t run = publish(team, fn, context);
  fn(context, 0, team->threads);
  for (int i = 1; i < team->threads; i++) {
    struct member *member = &team->member[i];
    if (share_take(member, run)) {
      fn(context, i, team->threads);
      share_done(member, run);
    }
  }
  for (int i = 1; i < team->threads; i++) {
    while (word_of(&team->member[i].share) == 2 * run + 1) {
      quire_futex_wait(&team->member[i].share, 2 * run + 1, team->threads);
    }
  }
  team->running = false;
}

bool quire_team_awake(const struct quire_team *team) {
  return team && __atomic_load_n(&team->run.sleepers, __ATOMIC_RELAXED) == 0;
}

static void nothing(void *context, int member, int threads) { (void)context, (void)member, (void)threads; }

void quire_team_rouse(struct quire_team *team) {
  if (team && !quire_team_awake(team) && quire_futex_may_spin(team->threads)) {
    quire_team_run(team, nothing, NULL);
  }
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
