/* A team of threads that work on one kernel together: fork, each takes its share, join.
 *
 * A rank has one team; member 0 is the thread that calls quire_team_run, the others wait between runs: they spin for
 * some 20 us (futex.h), then sleep. To hand work to one that spins takes a tenth of a microsecond; one that sleeps is
 * woken, but not waited for: the caller does its share. With one thread a run is a plain call. A kernel splits its
 * *outputs* among members, never a sum, so the size of a team can not change a bit. Memory: created with env, destroyed
 * by the creator. Threads: one run at a time, from the thread that owns the team. */
#ifndef QUIRE_BASE_TEAM_H
#define QUIRE_BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_TEAM_THREADS_MAX 64

struct quire_team;

/* Work of one member: member in [0, threads). */
typedef void (*quire_team_fn)(void *context, int member, int threads);

enum quire_status quire_team_create(const struct quire_env *env, int threads, struct quire_team **team_out,
                                    struct quire_error *error_out);
void quire_team_destroy(struct quire_team *team);
/* Number of threads; 1 for NULL, which everywhere stands for "the calling thread alone". */
int quire_team_threads(const struct quire_team *team);
/* Calls fn once for each member and returns when all have returned. Calls may run one after another on one thread: fn
 * must not wait for other members. */
void quire_team_run(struct quire_team *team, quire_team_fn fn, void *context);
/* Whether nobody sleeps, so that small work is worth sharing; false for NULL. A guess: it may change at once. */
bool quire_team_awake(const struct quire_team *team);
/* Wakes the members, where they may spin, as work is about to come. */
void quire_team_rouse(struct quire_team *team);

/* The half-open share [*begin_out, *end_out) of count items for one member: contiguous, sizes differ by at most one
 * unit of grain items. */
void quire_team_share(int64_t count, int64_t grain, int member, int threads, int64_t *begin_out, int64_t *end_out);

#ifdef __cplusplus
}
#endif
#endif
