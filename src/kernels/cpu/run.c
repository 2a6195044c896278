#include "kernels/cpu/run.h"

#include "base/assert.h"
#include "kernels/kernels.h"

struct flushed_run {
  quire_team_fn fn;
  void *context;
};

static void run_flushed(void *context, int member, int threads) {
  const struct flushed_run *run = context;
  QUIRE_ASSERT(run->fn != NULL && member < threads);
  uint32_t control = quire_kernels_enter();
  run->fn(run->context, member, threads);
  quire_kernels_leave(control);
}

void quire_cpu_run(struct quire_team *team, quire_team_fn fn, void *context) {
  QUIRE_ASSERT(fn != NULL);
  struct flushed_run run = {.fn = fn, .context = context};
  quire_team_run(team, run_flushed, &run);
}
