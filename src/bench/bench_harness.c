#include "bench/bench_harness.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"

#define CALLS_MAX (1 << 24)

uint64_t bench_now_ns(void) {
  const struct quire_env *env = quire_env_default();
  return env->now_ns(env->context);
}

uint64_t bench_thread_ns(const struct bench *bench) {
  if (bench->options.clock == BENCH_CLOCK_CPU) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  }
  return bench_now_ns();
}

static uint64_t clock_ns(const struct bench *bench, const struct bench_case *c) {
  return c->threads == 1 ? bench_thread_ns(bench) : bench_now_ns();
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_median(const double *values, int count) {
  double sorted[BENCH_REPEATS_MAX];
  QUIRE_ASSERT(count > 0 && count <= BENCH_REPEATS_MAX);
  memcpy(sorted, values, (size_t)count * sizeof *sorted);
  qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
  return count % 2 != 0 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

bool bench_wanted(const struct bench *bench, const char *name) {
  return bench->options.only == NULL || strstr(name, bench->options.only) != NULL;
}

/* The team of the case is awake at the beginning, as it is in a step. */
static uint64_t time_calls(const struct bench *bench, const struct bench_case *c, const struct bench_side *side,
                           int64_t calls) {
  quire_team_rouse(bench->team[c->threads]);
  uint64_t started = clock_ns(bench, c);
  for (int64_t i = 0; i < calls; i++) {
    side->work(side->context);
  }
  uint64_t spent = clock_ns(bench, c) - started;
  return spent > 0 ? spent : 1;
}

/* Calls that fill a slice; they also warm the side up. The fastest of three tries counts: on a busy machine one try may
 * have waited longer than it worked. */
static int64_t count_calls(const struct bench *bench, const struct bench_case *c, const struct bench_side *side) {
  int64_t slice = bench->options.slice_us * 1000, calls = 1;
  if (side->work == NULL || slice == 0) {
    return 1;
  }
  time_calls(bench, c, side, 1);
  while (calls < CALLS_MAX) {
    uint64_t spent = UINT64_MAX;
    for (int i = 0; i < 3 && spent > (uint64_t)slice / 2; i++) {
      uint64_t once = time_calls(bench, c, side, calls);
      spent = once < spent ? once : spent;
    }
    if (spent >= (uint64_t)slice / 2) {
      int64_t wanted = calls * slice / (int64_t)spent;
      return wanted > 1 ? wanted : 1;
    }
    calls *= 2;
  }
  return calls;
}

/* One measurement of one side: units a second. */
static enum quire_status measure_side(const struct bench *bench, const struct bench_case *c, int s, int64_t calls,
                                      double *rate_out, struct quire_error *error_out) {
  const struct bench_side *side = &c->side[s];
  uint64_t ns = 0;
  if (side->work != NULL) {
    ns = time_calls(bench, c, side, calls);
  } else {
    enum quire_status status = side->run(side->context, &ns, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    calls = 1;
  }
  *rate_out = side->units * (double)calls * 1e9 / (double)(ns > 0 ? ns : 1);
  return QUIRE_OK;
}

static void keep_record(struct bench *bench, const struct bench_record *record) {
  bool ok = record->bar == 0 || (record->at_most ? record->value <= record->bar : record->value >= record->bar);
  bench->shorts += ok ? 0 : 1;
  if (bench->records < BENCH_RECORDS_MAX) {
    bench->record[bench->records++] = *record;
  }
  if (record->bar != 0) {
    printf(" (bar %s %.4g: %s)", record->at_most ? "<=" : ">=", record->bar, ok ? "ok" : "SHORT");
  }
}

static void show_bars(struct bench *bench, const struct bench_case *c, const struct bench_result *result) {
  for (int b = 0; b < c->bars; b++) {
    const struct bench_bar *bar = &c->bar[b];
    struct bench_record record = {.value = result->ratio[b], .bar = bar->ratio, .at_most = bar->times};
    const char *against = c->side[bar->against].name, *subject = bar->subject > 0 ? c->side[bar->subject].name : "";
    snprintf(record.name, sizeof record.name, "%s%s%s / %s", c->name, bar->subject > 0 ? " " : "", subject, against);
    printf("%s %s%s%.3f %s %s", b > 0 ? ";" : "", subject, bar->subject > 0 ? " " : "", result->ratio[b],
           bar->times ? "x the time of" : "of", against);
    keep_record(bench, &record);
  }
}

enum quire_status bench_measure(struct bench *bench, const struct bench_case *c, struct bench_result *result_out,
                                struct quire_error *error_out) {
  static double rates[BENCH_SIDES_MAX][BENCH_REPEATS_MAX];
  int repeats = (int)bench->options.repeats;
  int64_t calls[BENCH_SIDES_MAX];
  if (!bench_wanted(bench, c->name)) {
    return QUIRE_OK;
  }
  for (int s = 0; s < c->sides; s++) {
    calls[s] = count_calls(bench, c, &c->side[s]);
  }
  for (int r = 0; r < repeats; r++) {
    for (int s = 0; s < c->sides; s++) {
      enum quire_status status = measure_side(bench, c, s, calls[s], &rates[s][r], error_out);
      if (status != QUIRE_OK) {
        return status;
      }
      if (bench->csv != NULL) {
        fprintf(bench->csv, "%s,\"%s\",\"%s\",%d,%.6g,%s\n", bench->entry->name, c->name, c->side[s].name, r,
                rates[s][r] / c->scale, c->unit);
      }
    }
  }
  struct bench_result result = {0};
  bench->shown++;
  printf("%-40s", c->name);
  for (int s = 0; s < c->sides; s++) {
    result.rate[s] = bench_median(rates[s], repeats);
    printf(" %s %.4g", c->side[s].name, result.rate[s] / c->scale);
  }
  printf(" %s;", c->unit);
  for (int b = 0; b < c->bars; b++) {
    double ratio[BENCH_REPEATS_MAX];
    for (int r = 0; r < repeats; r++) {
      double subject = rates[c->bar[b].subject][r], against = rates[c->bar[b].against][r];
      ratio[r] = c->bar[b].times ? against / subject : subject / against;
    }
    result.ratio[b] = bench_median(ratio, repeats);
  }
  show_bars(bench, c, &result);
  printf("\n");
  fflush(stdout);
  if (result_out != NULL) {
    *result_out = result;
  }
  return QUIRE_OK;
}

void bench_figure(struct bench *bench, const struct bench_figure *figure) {
  struct bench_record record = {.value = figure->value, .bar = figure->bar, .at_most = figure->at_most};
  snprintf(record.name, sizeof record.name, "%s", figure->name);
  bench->shown++;
  if (bench->csv != NULL) {
    fprintf(bench->csv, "%s,\"%s\",\"%s\",0,%.9g,\n", bench->entry->name, figure->name, figure->what, figure->value);
  }
  printf("%-40s %.4f %s", figure->name, figure->value, figure->what);
  keep_record(bench, &record);
  printf("\n");
  fflush(stdout);
}
