/* The gather of a view over two GPUs against the driver's peer copy and NCCL's all-gather of the same bytes, in the
 * same run.
 *
 * Rank 0 reads the prefix of one request whose pages lie scattered over both GPUs; what is timed is one layer (latents
 * and index keys in fp8), the bytes counted are those that come from the other GPU. One way: gather and peer copy take
 * turns, once behind other work of the same stream, as in a step, so that no host's delay is timed, and once on a
 * stream that was idle. Both ways: rank 1 gathers rank 0's pages at the same moment, as all ranks of a worker do and as
 * an all-gather does; the slower of the two counts. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/device_info.h"
#include "kernels/kernels_cuda.h"
#include "support/gpu.h"
#include "support/gpu_bench.h"
#include "view/view_internal.h"

enum { RANKS = 2, PAGE = 64, RUNS = 15, PAGES_MAX = 1 << 14, LAYERS = 2, NCCL_UINT8 = 1 };

#define FILL_BYTES ((size_t)400 << 20)

struct rank {
  struct quire_device *device;
  struct quire_stream *stream, *copy_stream;
  struct quire_memory *pages;
  struct quire_peer_part parts[2 * LAYERS];
  int64_t *written;
  struct quire_view *view;
};

struct rig {
  struct quire_geometry geometry;
  struct quire_parts parts;
  struct quire_peer_map peers;
  struct rank rank[RANKS];
  struct quire_view *views[RANKS];
  struct quire_collective *collective;
  struct quire_step_plan *plan;
  struct quire_step_limits limits;
};

static void open_rank(struct rig *rig, int32_t r) {
  struct rank *rank = &rig->rank[r];
  const struct quire_env *env = quire_env_default();
  size_t local = PAGES_MAX / RANKS, bytes = 0;
  bench_check(quire_device_open(env, QUIRE_DEVICE_CUDA, r, &rank->device, NULL) == QUIRE_OK &&
                  quire_device_stream(rank->device, QUIRE_STREAM_THREAD, NULL, 0, &rank->stream, NULL) == QUIRE_OK &&
                  quire_device_stream(rank->device, QUIRE_STREAM_THREAD, NULL, 0, &rank->copy_stream, NULL) == QUIRE_OK,
              "opening a GPU");
  for (int32_t p = 0; p < rig->parts.count; p++) {
    bytes += local * (size_t)rig->parts.part[p].page_bytes;
  }
  bench_check(quire_device_memory(rank->device, bytes, &rank->pages, NULL) == QUIRE_OK, "memory");
  bench_random_device(rank->stream, quire_memory_base(rank->pages), bytes);
  uint8_t *at = quire_memory_base(rank->pages);
  for (int32_t p = 0; p < rig->parts.count; p++) {
    rank->parts[p] = (struct quire_peer_part){at, rig->parts.part[p].page_bytes, (int32_t)local};
    at += local * (size_t)rig->parts.part[p].page_bytes;
  }
  rank->written = calloc(local, sizeof *rank->written); /* written before all steps */
  bench_check(rank->written != NULL, "memory");
  rig->peers.rank[r] = (struct quire_peer){rank->parts, rank->written, rig->parts.count, (int32_t)local};
}

static void open_view(struct rig *rig, int32_t r) {
  struct rank *rank = &rig->rank[r];
  struct quire_view_config config = {
      .geometry = rig->geometry,
      .parts = &rig->parts,
      .mode = QUIRE_VIEW_GATHER,
      .rank = r,
      .limits = rig->limits,
      .requests_max = 1,
      .request_pages_max = PAGES_MAX,
      .rows_max = PAGE,
      .fresh_max = PAGE,
      .local_rows = 2,
      .gather_pages_max = PAGES_MAX,
      .topk = 64,
      .heads = 64,
      .index_heads = 32,
      .device = rank->device,
      .threads = 1,
  };
  struct quire_view_links links = {quire_kernels_cuda(), rig->collective, &rig->peers, rig->views};
  bench_check(quire_view_create(quire_env_default(), &config, &links, &rank->view, NULL) == QUIRE_OK, "a view");
  rig->views[r] = rank->view;
  quire_view_start(rank->view, rank->stream, rank->copy_stream);
}

static void open_rig(struct rig *rig) {
  memset(rig, 0, sizeof *rig);
  rig->geometry = (struct quire_geometry){PAGE, RANKS, RANKS, PAGES_MAX};
  rig->limits = (struct quire_step_limits){.entries_max = 1, .tokens_max = 2 * PAGE, .pages_max = PAGES_MAX};
  rig->peers.ranks = RANKS;
  struct quire_collective_config config = {.ranks = RANKS};
  bench_check(quire_parts_build(&rig->parts, QUIRE_KV_FP8, PAGE, LAYERS, NULL, 0), "parts");
  bench_check(quire_collective_create(quire_env_default(), "peer", &config, &rig->collective, NULL) == QUIRE_OK,
              "a collective");
  for (int32_t r = 0; r < RANKS; r++) {
    open_rank(rig, r);
  }
  for (int32_t r = 0; r < RANKS; r++) {
    open_view(rig, r);
  }
  rig->plan = calloc(1, (size_t)quire_step_plan_bytes(&rig->limits));
  bench_check(rig->plan != NULL, "memory");
}

/* A step whose prefix is `pages` pages in a drawn order, half of them each rank's. */
static void begin_step(struct rig *rig, int32_t pages) {
  static quire_page table[PAGES_MAX];
  static uint64_t epoch;
  int32_t tokens[PAGE + 1] = {0};
  uint64_t random = 11;
  for (int32_t i = 0; i < PAGES_MAX; i++) {
    int32_t j = (int32_t)quire_splitmix64_below(&random, (uint64_t)i + 1);
    table[i] = table[j];
    table[j] = (quire_page){i};
  }
  struct quire_step_entry entry = {
      .kind = QUIRE_ENTRY_PREFILL,
      .begin = pages * PAGE,
      .end = pages * PAGE + 1,
      .prefix_end = pages * PAGE,
      .home = -1,
      .carry_rank = 0,
      .recompute_rank = -1,
      .commit_rank = -1,
      .append_count = pages + 1,
      .next_token = -1,
      .sampling = -1,
  };
  quire_step_plan_reset(rig->plan, ++epoch, RANKS, QUIRE_SPLIT_ZIGZAG);
  bench_check(quire_step_plan_add(rig->plan, &rig->limits, &entry, tokens, table), "a plan");
  for (int32_t r = 0; r < RANKS; r++) {
    /* as if the step before had been fenced */
    memset(rig->rank[r].written, 0, PAGES_MAX / RANKS * sizeof *rig->rank[r].written);
  }
  for (int32_t r = 0; r < RANKS; r++) {
    struct quire_error error = {0};
    if (quire_view_begin(rig->rank[r].view, rig->plan, &error) != QUIRE_OK) {
      fprintf(stderr, "%s\n", error.text);
      bench_check(false, "a step");
    }
    quire_event_sync(quire_stream_record(rig->rank[r].stream));
    quire_event_sync(quire_stream_record(rig->rank[r].copy_stream));
  }
}

/* Of the second layer: a step gathers each once, and has begun with the first. */
static void gather_once(void *context) {
  struct rank *rank = context;
  rank->view->backend->gather(rank->view, LAYERS - 1);
}

/* Bytes that come from the other GPU. */
static double remote_bytes(const struct rig *rig, int32_t r, int32_t pages) {
  const quire_page *table = quire_view_table(rig->rank[r].view, 0);
  int64_t page = quire_parts_bundle_bytes(&rig->parts) / LAYERS, bytes = 0;
  for (int32_t i = 0; i < pages; i++) {
    bytes += table[i].v % RANKS != r ? page : 0;
  }
  return (double)bytes;
}

/* -- both ways ---------------------------------------------------------------------------------------------------- */

struct both {
  struct rig *rig;
  int32_t pages;
  void (*enqueue)(struct both *both);
  cudaEvent_t begin[RANKS], end[RANKS];
  cudaStream_t stream[RANKS];
  int (*all_gather)(const void *, void *, size_t, int, void *, void *);
  int (*group_start)(void), (*group_end)(void);
  void *comm[RANKS];
  void *receive[RANKS];
  size_t bytes;
};

static void both_gather(struct both *both) {
  for (int32_t r = 0; r < RANKS; r++) {
    gather_once(&both->rig->rank[r]);
  }
}

static void both_nccl(struct both *both) {
  bench_check(both->group_start() == 0, "NCCL");
  for (int32_t r = 0; r < RANKS; r++) {
    bench_check(both->all_gather(quire_memory_base(both->rig->rank[r].pages), both->receive[r], both->bytes, NCCL_UINT8,
                                 both->comm[r], both->stream[r]) == 0,
                "NCCL");
  }
  bench_check(both->group_end() == 0, "NCCL");
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Median of the slower GPU's time. */
static double both_us(struct both *both, void (*enqueue)(struct both *)) {
  double us[RUNS];
  for (int i = -3; i < RUNS; i++) {
    double slowest = 0;
    begin_step(both->rig, both->pages);
    for (int32_t r = 0; r < RANKS; r++) {
      both->stream[r] = quire_stream_native(both->rig->rank[r].copy_stream);
      /* keeps the device busy until everything is enqueued, so that no host's delay is timed */
      bench_check(cudaMemsetAsync(both->receive[r], i, FILL_BYTES, both->stream[r]) == cudaSuccess, "a fill");
      bench_check(cudaEventRecord(both->begin[r], both->stream[r]) == cudaSuccess, "recording");
    }
    enqueue(both);
    for (int32_t r = 0; r < RANKS; r++) {
      (void)quire_stream_native(both->rig->rank[r].copy_stream);
      bench_check(cudaEventRecord(both->end[r], both->stream[r]) == cudaSuccess, "recording");
    }
    for (int32_t r = 0; r < RANKS; r++) {
      float ms = 0;
      bench_check(cudaEventSynchronize(both->end[r]) == cudaSuccess, "running");
      bench_check(cudaEventElapsedTime(&ms, both->begin[r], both->end[r]) == cudaSuccess, "reading events");
      slowest = (double)ms * 1e3 > slowest ? (double)ms * 1e3 : slowest;
    }
    us[i < 0 ? 0 : i] = slowest;
  }
  qsort(us, RUNS, sizeof us[0], by_value);
  return us[RUNS / 2];
}

static void open_both(struct both *both, struct rig *rig, size_t bytes_max) {
  int devices[RANKS] = {0, 1};
  memset(both, 0, sizeof *both);
  both->rig = rig;
  for (int32_t r = 0; r < RANKS; r++) {
    (void)quire_stream_native(rig->rank[r].copy_stream);
    bench_check(cudaEventCreate(&both->begin[r]) == cudaSuccess && cudaEventCreate(&both->end[r]) == cudaSuccess &&
                    cudaMalloc(&both->receive[r], bytes_max * RANKS) == cudaSuccess,
                "making events");
  }
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    printf("NCCL is left out: %s\n", dlerror());
    return;
  }
  int (*init_all)(void **, int, const int *) = NULL;
  *(void **)&init_all = dlsym(library, "ncclCommInitAll");
  *(void **)&both->all_gather = dlsym(library, "ncclAllGather");
  *(void **)&both->group_start = dlsym(library, "ncclGroupStart");
  *(void **)&both->group_end = dlsym(library, "ncclGroupEnd");
  bench_check(init_all != NULL && both->all_gather != NULL && both->group_start != NULL && both->group_end != NULL &&
                  init_all(both->comm, RANKS, devices) == 0,
              "NCCL");
}

struct peer_job {
  struct rig *rig;
  void *target;
  size_t bytes;
};

static void run_peer(void *context) {
  const struct peer_job *job = context;
  bench_check(cudaMemcpyPeerAsync(job->target, 0, quire_memory_base(job->rig->rank[1].pages), 1, job->bytes,
                                  quire_stream_native(job->rig->rank[0].copy_stream)) == cudaSuccess,
              "a peer copy");
}

/* Microseconds on rank 0's copy stream; busy: behind a fill. */
static double once_us(struct both *both, void (*enqueue)(void *), void *context, bool busy) {
  float ms = 0;
  begin_step(both->rig, both->pages);
  cudaStream_t stream = quire_stream_native(both->rig->rank[0].copy_stream);
  bench_check(!busy || cudaMemsetAsync(both->receive[0], 1, FILL_BYTES, stream) == cudaSuccess, "a fill");
  bench_check(cudaEventRecord(both->begin[0], stream) == cudaSuccess, "recording");
  enqueue(context);
  bench_check(cudaEventRecord(both->end[0], stream) == cudaSuccess, "recording");
  bench_check(cudaEventSynchronize(both->end[0]) == cudaSuccess, "running");
  bench_check(cudaEventElapsedTime(&ms, both->begin[0], both->end[0]) == cudaSuccess, "reading events");
  return (double)ms * 1e3;
}

static void bench_one_way(struct both *both, double bytes, const char *size, bool busy) {
  struct rank *rank = &both->rig->rank[0];
  struct peer_job peer = {both->rig, both->receive[0], (size_t)bytes};
  double copy_us[RUNS], gather_us[RUNS];
  char name[80];
  for (int i = -2; i < RUNS; i++) {
    copy_us[i < 0 ? 0 : i] = once_us(both, run_peer, &peer, busy);
    gather_us[i < 0 ? 0 : i] = once_us(both, gather_once, rank, busy);
  }
  bench_check(quire_stream_check(rank->copy_stream, NULL) == QUIRE_OK, "the stream");
  qsort(copy_us, RUNS, sizeof copy_us[0], by_value);
  qsort(gather_us, RUNS, sizeof gather_us[0], by_value);
  double copy = bytes / copy_us[RUNS / 2] * 1e-3, gather = bytes / gather_us[RUNS / 2] * 1e-3;
  const char *how = busy ? "" : ", idle before";
  (void)snprintf(name, sizeof name, "cudaMemcpyPeer, %s%s", size, how);
  bench_line(name, copy, "GB/s", 0, 0);
  (void)snprintf(name, sizeof name, "view gather, one way, %s, 16 SMs%s", size, how);
  bench_line(name, gather, "GB/s", copy, bytes > 8e6 ? 0.95 : 0);
}

static void bench_size(struct both *both, int32_t pages, const char *size, double nccl_bar) {
  char name[80];
  both->pages = pages;
  begin_step(both->rig, pages);
  double bytes = remote_bytes(both->rig, 0, pages);
  bench_one_way(both, bytes, size, true);
  bench_one_way(both, bytes, size, false);
  double both_way = both_us(both, both_gather);
  if (both->all_gather != NULL) {
    both->bytes = (size_t)bytes;
    double nccl = both_us(both, both_nccl);
    (void)snprintf(name, sizeof name, "NCCL all-gather, %s a rank", size);
    bench_line(name, bytes / nccl * 1e-3, "GB/s", 0, 0);
    (void)snprintf(name, sizeof name, "view gather, both ways, %s, 16 SMs", size);
    bench_line(name, bytes / both_way * 1e-3, "GB/s", bytes / nccl * 1e-3, nccl_bar);
  }
}

int main(void) {
  static struct rig rig;
  struct both both;
  test_needs_gpus(RANKS);
  setenv("NCCL_NVLS_ENABLE", "0", 1); /* no multicast */
  open_rig(&rig);
  open_both(&both, &rig, (size_t)420 << 20);
  /* a page is 50,432 bytes, and every second comes from the other GPU */
  bench_size(&both, 42, "1 MB", 2.0);
  bench_size(&both, 317, "8 MB", 1.3);
  bench_size(&both, 2538, "64 MB", 1.3);
  bench_size(&both, 15000, "378 MB", 1.3);
  return 0;
}
