/* How a bench measures: a subject beside its ceiling, in turn, in the same run.
 *
 * A case has up to four sides: side 0 is the subject, the others are ceilings (what the machine can do at best) or
 * yardsticks (another library at the same work). Each repeat measures every side once, one right after the other, so
 * that a noisy machine disturbs all of them; what counts is the median over the repeats of the *ratio* of neighbours.
 * Rates are printed beside it, as medians, for orientation.
 *
 *     repeat 0: subject ceiling yardstick | repeat 1: subject ceiling yardstick | ...
 *
 * A side is either `work`, called again and again until a slice of time is full, or `run`, which measures itself.
 * A bar says what a ratio should be; a figure that misses its bar is printed as SHORT, never hidden. Every repeat goes
 * to NAME.csv, every bar to NAME.svg, when --out names a folder.
 *
 * Memory: sides and their contexts are the caller's, for the time of the call. Threads: the caller's one. */
#ifndef QUIRE_BENCH_BENCH_HARNESS_H
#define QUIRE_BENCH_BENCH_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/cli.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BENCH_REPEATS_MAX 101
#define BENCH_SIDES_MAX 4
#define BENCH_BARS_MAX 6
#define BENCH_NAME_BYTES 96
#define BENCH_THREADS_MAX 2

enum bench_clock { BENCH_CLOCK_WALL, BENCH_CLOCK_CPU };

/* Filled from the option table of `quire bench`. */
struct bench_options {
  int64_t repeats, slice_us;
  int clock; /* enum bench_clock */
  const char *out;
  const char *only; /* text a case's name must contain; NULL: all */
  const char *trace;
  bool tiny, strict;
  int64_t tokens, decode_tokens, context_tokens, budget_bytes;
};

struct bench;

struct bench_entry {
  const char *name;
  const char *about;
  bool needs_model;
  enum quire_status (*run)(struct bench *bench, struct quire_error *error_out);
};

/* Benches by number, NULL past the end. */
const struct bench_entry *bench_entry_at(int index);

/* One bar of the plot. */
struct bench_record {
  char name[BENCH_NAME_BYTES];
  double value, bar;
  bool at_most;
};

#define BENCH_RECORDS_MAX 512

struct bench {
  struct cli_worker worker;
  struct bench_options options;
  const struct bench_entry *entry; /* the one that runs */
  const struct quire_kernels *kernels;
  struct quire_team *team[BENCH_THREADS_MAX + 1];     /* by number of threads; of one: NULL */
  struct quire_stream *stream[BENCH_THREADS_MAX + 1]; /* inline */
  int threads_max;                                    /* 1 on a machine with one core */
  struct cli_model model;                             /* open where weights is not NULL: see bench_engine.h */
  FILE *csv;                                          /* NULL: not wanted */
  struct bench_record record[BENCH_RECORDS_MAX];
  int records, shorts;
  int shown; /* cases and figures */
};

struct bench_side {
  const char *name;
  void (*work)(void *context);
  enum quire_status (*run)(void *context, uint64_t *ns_out, struct quire_error *error_out);
  void *context;
  double units; /* of work in one call */
};

/* rate(subject) / rate(against) should be at least `ratio`; with `times` the subject may take at most `ratio` times as
 * long as `against` for its units. ratio 0: shown, no bar. */
struct bench_bar {
  int against;
  double ratio;
  bool times;
  int subject;
};

struct bench_case {
  const char *name;
  const char *unit; /* "Gop/s" */
  double scale;     /* units a second in one of these */
  int threads;      /* 1: --clock may be the thread's own */
  int sides, bars;
  struct bench_side side[BENCH_SIDES_MAX];
  struct bench_bar bar[BENCH_BARS_MAX];
};

struct bench_result {
  double rate[BENCH_SIDES_MAX]; /* median, units a second */
  double ratio[BENCH_BARS_MAX]; /* median of neighbours */
};

/* False for a case that --only leaves out. */
bool bench_wanted(const struct bench *bench, const char *name);
/* Measures and prints one case; result_out may be NULL. Errors are those of a side's run. */
enum quire_status bench_measure(struct bench *bench, const struct bench_case *c, struct bench_result *result_out,
                                struct quire_error *error_out);

/* A figure that is no ratio of rates: prints it with its bar (0: none), keeps it for the plot. */
struct bench_figure {
  const char *name;
  const char *what; /* "of the plan" */
  double value, bar;
  bool at_most;
};
void bench_figure(struct bench *bench, const struct bench_figure *figure);

/* The clock of sides that measure themselves. */
uint64_t bench_now_ns(void);
/* That of work on the calling thread alone: with --clock cpu its processor time, which leaves out what others of a busy
 * machine took. */
uint64_t bench_thread_ns(const struct bench *bench);
double bench_median(const double *values, int count);

/* NAME.csv and NAME.svg in --out; open makes the folder. */
enum quire_status bench_report_open(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_report_close(struct bench *bench, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
