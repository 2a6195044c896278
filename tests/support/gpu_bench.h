/* What timings on GPUs share. A bench ends its program when something fails: a figure of it would mean nothing. */
#ifndef QUIRE_SUPPORT_GPU_BENCH_H
#define QUIRE_SUPPORT_GPU_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the program with a line unless it holds. */
void bench_check(bool holds, const char *what);

/* Microseconds of what fn enqueues on stream: median of `runs` by device events, after two that do not count. */
double bench_us(struct quire_stream *stream, void (*fn)(void *context), void *context, int runs);

/* The same for `count` jobs (at most 4) that take turns, each once a run. */
struct bench_job {
  void (*fn)(void *context);
  void *context;
};
void bench_turns_us(struct quire_stream *stream, const struct bench_job *jobs, int count, int runs, double *us_out);

/* One figure, as tools/gpu-suite reads it:  bench|NAME|VALUE|UNIT|CEILING|RATIO|BAR|verdict. ceiling and bar 0:
 * none. */
void bench_line(const char *name, double value, const char *unit, double ceiling, double bar);

/* Random bytes, since zeros are faster; the second through pinned memory to a device. */
void bench_random(uint8_t *bytes, size_t count);
void bench_random_device(struct quire_stream *stream, uint8_t *bytes, size_t count);

#ifdef __cplusplus
}
#endif
#endif
