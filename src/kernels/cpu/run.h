/* How the cpu kernels run: each member of the team with FTZ and DAZ set. Internal to the cpu kernels. */
#ifndef QUIRE_KERNELS_CPU_RUN_H
#define QUIRE_KERNELS_CPU_RUN_H

#include <stddef.h>
#include <stdint.h>

#include "base/team.h"

/* Elements, about a nanosecond each, below which sharing costs more than it brings: where somebody has to be woken, and
 * where all are awake. How many multiply-adds weigh as one of them. */
#define QUIRE_CPU_WORK_MIN 32768
#define QUIRE_CPU_WORK_AWAKE 1024
#define QUIRE_CPU_MACS 256

/* quire_team_run with the control word of arithmetic.md 1 on every member, restored after. */
void quire_cpu_run(struct quire_team *team, quire_team_fn fn, void *context);

/* The team for that much work, in elements: none where the caller alone is as fast. */
static inline struct quire_team *quire_cpu_team(struct quire_team *team, int64_t work) {
  return work < (quire_team_awake(team) ? QUIRE_CPU_WORK_AWAKE : QUIRE_CPU_WORK_MIN) ? NULL : team;
}

/* Bytes rounded up to a cache line: scratch is carved in these. */
static inline int64_t quire_cpu_padded(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }

/* Defines quire_<name>_cpu, the launcher of an operation over rows: `share` is its quire_team_fn with the operation as
 * context, `work` an expression over `op`, the operation. */
#define QUIRE_CPU_LAUNCHER(name, share, work)                                                                          \
  static void name##_run(void *args, struct quire_team *team) {                                                        \
    const struct quire_##name *op = args;                                                                              \
    quire_cpu_run(quire_cpu_team(team, (work)), share, args);                                                          \
  }                                                                                                                    \
  void quire_##name##_cpu(struct quire_stream *stream, struct quire_##name operation) {                                \
    QUIRE_ASSERT(operation.m >= 0);                                                                                    \
    if (operation.m > 0) {                                                                                             \
      quire_stream_launch(stream, name##_run, &operation, sizeof operation);                                           \
    }                                                                                                                  \
  }

#endif
