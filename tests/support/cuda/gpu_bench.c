#include "support/gpu_bench.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"

#define TURNS_MAX 4
#define RUNS_MAX 101
#define BLOCK_BYTES ((size_t)16 << 20)

void bench_check(bool holds, const char *what) {
  cudaError_t error = cudaPeekAtLastError();
  if (!holds || error != cudaSuccess) {
    fprintf(stderr, "bench: %s has failed (%s)\n", what, cudaGetErrorString(error));
    exit(1);
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* What was enqueued between two events, in microseconds. */
static double once_us(cudaEvent_t begin, cudaEvent_t end, cudaStream_t native, const struct bench_job *job) {
  float ms = 0;
  bench_check(cudaEventRecord(begin, native) == cudaSuccess, "recording");
  job->fn(job->context);
  bench_check(cudaEventRecord(end, native) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess, "running");
  bench_check(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess, "reading events");
  return (double)ms * 1e3;
}

void bench_turns_us(struct quire_stream *stream, const struct bench_job *jobs, int count, int runs, double *us_out) {
  double us[TURNS_MAX][RUNS_MAX];
  cudaEvent_t begin, end;
  cudaStream_t native = quire_stream_native(stream);
  bench_check(count > 0 && count <= TURNS_MAX && runs > 0 && runs <= RUNS_MAX && native != NULL, "timing");
  bench_check(cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess, "making events");
  for (int i = -2; i < runs; i++) {
    for (int j = 0; j < count; j++) {
      us[j][i < 0 ? 0 : i] = once_us(begin, end, native, &jobs[j]);
    }
  }
  bench_check(quire_stream_check(stream, NULL) == QUIRE_OK, "the stream");
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  for (int j = 0; j < count; j++) {
    qsort(us[j], (size_t)runs, sizeof us[j][0], by_value);
    us_out[j] = us[j][runs / 2];
  }
}

double bench_us(struct quire_stream *stream, void (*fn)(void *context), void *context, int runs) {
  struct bench_job job = {fn, context};
  double us;
  bench_turns_us(stream, &job, 1, runs, &us);
  return us;
}

void bench_line(const char *name, double value, const char *unit, double ceiling, double bar) {
  printf("bench|%s|%.4g|%s|", name, value, unit);
  if (ceiling > 0) {
    printf("%.4g|%.3f|", ceiling, value / ceiling);
  } else {
    printf("-|-|");
  }
  if (ceiling > 0 && bar > 0) {
    printf("%.3g|%s\n", bar, value >= bar * ceiling ? "ok" : "short");
  } else {
    printf("-|-\n");
  }
  (void)fflush(stdout);
}

void bench_random(uint8_t *bytes, size_t count) {
  static uint64_t random = 88172645463325252u;
  uint64_t *words = (uint64_t *)(void *)bytes;
  for (size_t i = 0; i < count / sizeof *words; i++) {
    words[i] = quire_splitmix64(&random);
  }
}

void bench_random_device(struct quire_stream *stream, uint8_t *bytes, size_t count) {
  void *block = NULL;
  bench_check(cudaHostAlloc(&block, BLOCK_BYTES, cudaHostAllocPortable) == cudaSuccess, "pinned memory");
  for (size_t at = 0; at < count; at += BLOCK_BYTES) {
    size_t now = count - at < BLOCK_BYTES ? count - at : BLOCK_BYTES;
    bench_random(block, now);
    quire_stream_copy(stream, bytes + at, block, now);
    quire_event_sync(quire_stream_record(stream));
  }
  (void)cudaFreeHost(block);
}
