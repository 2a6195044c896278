/* Line plots as SVG that need nothing else: in a file of their own, or inside an HTML page.
 *
 *      y |        ___---
 *        |  __---'            series are drawn in turn, each in its colour, named at the right
 *        |_'___________ x
 *
 * Memory: the caller's. Threads: any. Errors: those of the stream, which the caller looks at. */
#ifndef QUIRE_BENCH_BENCH_PLOT_H
#define QUIRE_BENCH_BENCH_PLOT_H

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bench_series {
  const char *name;
  const double *x, *y; /* [count], x ascending; with log_x above 0 */
  int count;
  bool dashed;
  bool steps; /* hold y until the next x, as distributions do */
};

struct bench_plot {
  const char *title, *x_label, *y_label;
  bool log_x;
  double y_max; /* 0: what the series need */
  const struct bench_series *series;
  int series_count;
};

/* One <svg> element. */
void bench_plot_write(FILE *file, const struct bench_plot *plot);
/* Text with what XML wants escaped. */
void bench_plot_text(FILE *file, const char *text);
/* 12.5K, 3M, 0.004: at most 4 digits. */
const char *bench_plot_number(double value, char out[16]);

#ifdef __cplusplus
}
#endif
#endif
