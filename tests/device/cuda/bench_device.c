/* Rates of a GPU's copies against the ceilings of the same run: pages between the device and pinned host memory against
 * DMA, pages and rows from a peer against the driver's peer copy and against reads in order. Median of 21 by device
 * events, what a peer gives by its ceiling in turns; random bytes, pages drawn from a pool many times the second-level
 * cache. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "device/device.h"
#include "device/device_info.h"
#include "support/gpu.h"
#include "support/gpu_bench.h"

#define PAGE_FP8 41984 /* 64 rows of 656 bytes */
#define PAGE_KEY 8448
#define ROW_FP8 656
#define RUNS 21
#define POOL_BYTES ((size_t)1 << 30)

struct place {
  struct quire_device *device;
  struct quire_stream *stream;
  struct quire_memory *memory, *lists;
  uint8_t *base;
};

struct list_job {
  struct quire_stream *stream;
  struct quire_memory *memory; /* of the list */
  const struct quire_copy *list;
  int32_t count, width;
  uint32_t bytes;
};

static void run_list(void *context) {
  const struct list_job *job = context;
  quire_stream_copy_list(job->stream, job->list, job->count, job->bytes, job->width);
}

struct plain_job {
  struct quire_stream *stream;
  void *target;
  const void *source;
  size_t bytes;
};

static void run_plain(void *context) {
  const struct plain_job *job = context;
  quire_stream_copy(job->stream, job->target, job->source, job->bytes);
}

static struct place place_of(int32_t index) {
  struct place place = {0};
  bench_check(quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, index, &place.device, NULL) == QUIRE_OK &&
                  quire_device_stream(place.device, QUIRE_STREAM_THREAD, NULL, 0, &place.stream, NULL) == QUIRE_OK &&
                  quire_device_memory(place.device, POOL_BYTES, &place.memory, NULL) == QUIRE_OK &&
                  quire_device_host(place.device, (size_t)8 << 20, &place.lists, NULL) == QUIRE_OK,
              "opening a GPU");
  place.base = quire_memory_base(place.memory);
  return place;
}

/* `count` copies of `bytes`; the sources are places of the pool in a drawn order, the targets one behind the other, or
 * the other way round. The list is the caller's to destroy, as `memory`. */
static struct list_job list_of(struct place *place, uint8_t *target, const uint8_t *source, int32_t count,
                               uint32_t bytes, bool scatter_targets) {
  struct quire_memory *device_list = NULL;
  struct quire_copy *list = quire_memory_base(place->lists);
  int32_t places = (int32_t)(POOL_BYTES / bytes);
  int32_t *order = malloc((size_t)places * sizeof *order);
  uint64_t random = 17;
  bench_check(order != NULL, "memory");
  for (int32_t i = 0; i < places; i++) {
    int32_t j = (int32_t)quire_splitmix64_below(&random, (uint64_t)i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  for (int32_t i = 0; i < count; i++) {
    size_t near = (size_t)i * bytes, far = (size_t)order[i] * bytes;
    list[i] =
        (struct quire_copy){target + (scatter_targets ? far : near), source + (scatter_targets ? near : far), bytes};
  }
  free(order);
  bench_check(quire_device_memory(place->device, (size_t)count * sizeof *list, &device_list, NULL) == QUIRE_OK,
              "memory");
  quire_stream_copy(place->stream, quire_memory_base(device_list), list, (size_t)count * sizeof *list);
  quire_event_sync(quire_stream_record(place->stream));
  return (struct list_job){place->stream, device_list, quire_memory_base(device_list), count, 0, bytes};
}

static double bytes_of(const struct list_job *job) { return (double)job->count * job->bytes; }

static double rate_of_list(struct list_job job) {
  job.width = 16;
  double us = bench_us(job.stream, run_list, &job, RUNS);
  quire_memory_destroy(job.memory);
  return bytes_of(&job) / us * 1e-3;
}

static double rate_of_copy(struct place *place, void *target, const void *source, size_t bytes) {
  struct plain_job job = {place->stream, target, source, bytes};
  return (double)bytes / bench_us(place->stream, run_plain, &job, RUNS) * 1e-3;
}

static void host_pages(struct place *place) {
  struct quire_memory *slab = NULL;
  int32_t pages = 4000, keys = 8000;
  size_t bytes = (size_t)pages * PAGE_FP8;
  bench_check(quire_device_host(place->device, POOL_BYTES, &slab, NULL) == QUIRE_OK, "pinned memory");
  uint8_t *host = quire_memory_base(slab);
  bench_random(host, POOL_BYTES);
  double up = rate_of_copy(place, place->base, host, bytes), down = rate_of_copy(place, host, place->base, bytes);
  bench_line("host to device, DMA", up, "GB/s", 0, 0);
  bench_line("device to host, DMA", down, "GB/s", 0, 0);
  struct list_job job = list_of(place, place->base, host, pages, PAGE_FP8, true);
  bench_line("host to device, pages of 41984, 16 SMs", rate_of_list(job), "GB/s", up, 0.9);
  job = list_of(place, place->base, host, keys, PAGE_KEY, true);
  bench_line("host to device, pages of 8448, 16 SMs", rate_of_list(job), "GB/s", up, 0.9);
  job = list_of(place, host, place->base, pages, PAGE_FP8, false);
  bench_line("device to host, pages of 41984, 16 SMs", rate_of_list(job), "GB/s", down, 0.9);
  job = list_of(place, host, place->base, keys, PAGE_KEY, false);
  bench_line("device to host, pages of 8448, 16 SMs", rate_of_list(job), "GB/s", down, 0.9);
  quire_memory_destroy(slab);
}

struct peer_job {
  struct place *to, *from;
  size_t bytes;
};

static void run_peer(void *context) {
  const struct peer_job *job = context;
  bench_check(cudaMemcpyPeerAsync(job->to->base, quire_device_index(job->to->device), job->from->base,
                                  quire_device_index(job->from->device), job->bytes,
                                  quire_stream_native(job->to->stream)) == cudaSuccess,
              "a peer copy");
}

static void peer_pages(struct place *to, struct place *from, int32_t count) {
  size_t bytes = (size_t)count * PAGE_FP8;
  struct peer_job peer = {to, from, bytes};
  struct plain_job plain = {to->stream, to->base, from->base, bytes};
  struct list_job pages = list_of(to, to->base, from->base, count, PAGE_FP8, false);
  struct bench_job turns[] = {{run_peer, &peer}, {run_plain, &plain}, {run_list, &pages}};
  double us[3];
  char name[64];
  pages.width = 16;
  bench_turns_us(to->stream, turns, 3, RUNS, us);
  quire_memory_destroy(pages.memory);
  double copy = (double)bytes / us[0] * 1e-3, megabytes = (double)bytes * 1e-6;
  (void)snprintf(name, sizeof name, "cudaMemcpyPeer, %.0f MB", megabytes);
  bench_line(name, copy, "GB/s", 0, 0);
  (void)snprintf(name, sizeof name, "cudaMemcpyAsync from a peer, %.0f MB", megabytes);
  bench_line(name, (double)bytes / us[1] * 1e-3, "GB/s", 0, 0);
  (void)snprintf(name, sizeof name, "pages of a peer, %.0f MB, 16 SMs", megabytes);
  bench_line(name, (double)bytes / us[2] * 1e-3, "GB/s", copy, count > 100 ? 0.95 : 0);
}

static void peer_rows(struct place *to, struct place *from, int32_t width) {
  struct list_job whole = list_of(to, to->base, from->base, 64, 1 << 20, false);
  struct list_job rows = list_of(to, to->base, from->base, 100000, ROW_FP8, false);
  struct bench_job turns[] = {{run_list, &whole}, {run_list, &rows}};
  double us[2];
  char name[64];
  whole.width = rows.width = width;
  bench_turns_us(to->stream, turns, 2, RUNS, us);
  quire_memory_destroy(whole.memory);
  quire_memory_destroy(rows.memory);
  double read = bytes_of(&whole) / us[0] * 1e-3;
  (void)snprintf(name, sizeof name, "peer read in order, %d SMs", width);
  bench_line(name, read, "GB/s", 0, 0);
  (void)snprintf(name, sizeof name, "rows of 656 of a peer, %d SMs", width);
  bench_line(name, bytes_of(&rows) / us[1] * 1e-3, "GB/s", read, width == 64 ? 0.9 : 0);
}

int main(void) {
  struct quire_cuda_info info;
  test_needs_gpus(1);
  (void)quire_cuda_describe(&info);
  struct place first = place_of(0);
  bench_random_device(first.stream, first.base, POOL_BYTES);
  host_pages(&first);
  if (info.devices > 1) {
    struct place second = place_of(1);
    bench_random_device(second.stream, second.base, POOL_BYTES);
    peer_pages(&first, &second, 25);
    peer_pages(&first, &second, 1600);
    peer_pages(&first, &second, 9600);
    peer_rows(&first, &second, 16);
    peer_rows(&first, &second, 32);
    peer_rows(&first, &second, 64);
  }
  return 0;
}
