// ctest: timeout=150
/* Views on GPUs: the same bytes however a sequence is spread. Two requests are prefilled in chunks and decoded with
 * commits, over one rank, and over two ranks (on two GPUs where there are two, else on one) with gather and with peer,
 * with streams that run at once and streams with delays and poison, exchanged by peer and by NCCL. Compared by position
 * with one rank: stored rows of every part, selected lists, attention outputs and their log-sum-exp. Stored rows are
 * also compared with the CPU's. Pages start as NaN, and those that nobody wrote must stay so. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/rng.h"
#include "device/device_info.h"
#include "kernels/kernels_cuda.h"
#include "layout/split.h"
#include "support/fail_env.h"
#include "support/gpu.h"
#include "support/limit.h"
#include "support/seed.h"
#include "view/view.h"

enum {
  RANKS = 2,
  PAGE = 64,
  POOL = 40,
  REQUESTS = 2,
  REQUEST_PAGES = 10,
  LENGTH_MAX = REQUEST_PAGES * PAGE,
  ROWS_MAX = 400,
  FRESH_MAX = 400,
  TARGET_LAYERS = 2,
  LAYERS = TARGET_LAYERS + 1,
  TOPK = 64,
  HEADS = 64,
  INDEX_HEADS = 32,
  PARTS = 2 * LAYERS,
  GPUS_MAX = 2,
};

static const struct quire_step_limits limits = {.entries_max = 4, .tokens_max = 512, .pages_max = 32};
/* request order is not page order, and owners do not alternate */
static const quire_page tables[REQUESTS][REQUEST_PAGES] = {
    {{3}, {6}, {1}, {8}, {7}, {22}, {11}, {13}, {4}, {10}},
    {{20}, {31}, {33}, {2}, {9}, {0}, {16}, {17}, {18}, {30}},
};

/* From page to page, so that pages lie beyond 2 and 4 GiB. */
#define FAR ((int64_t)160 << 20)

static uint64_t seed_of_run;
static int32_t gpus;
static bool small; /* QUIRE_TEST_SMALL: under a sanitizer, which is slow, and beside others that take device memory */

/* How a run is made. */
struct way {
  const char *name;
  const char *collective;
  enum quire_device_kind device;
  enum quire_kv_format format;
  enum quire_view_mode mode;
  enum quire_stream_mode streams;
  int32_t ranks;
  int32_t chunk;
  int64_t far; /* bytes from page to page, the parts of a page side by side; 0: an array of pages for each part */
};

/* What a run gives, by position. */
struct outcome {
  uint8_t *stored[REQUESTS][PARTS]; /* [LENGTH_MAX] rows, pieces joined */
  int32_t *lists;                   /* [REQUESTS][LAYERS][LENGTH_MAX][TOPK] */
  struct quire_hash128 *out;        /* [REQUESTS][LAYERS][LENGTH_MAX] of the outputs of all heads */
  float *lse;                       /* [REQUESTS][LAYERS][LENGTH_MAX][HEADS] */
};

struct rank {
  struct run *run;
  int32_t index;
  struct quire_device *device;
  struct quire_stream *stream, *copy_stream;
  struct quire_memory *pages, *inputs, *slab;
  struct quire_peer_part parts[PARTS];
  int64_t written[POOL];
  struct quire_view *view;
  enum quire_status status;
  struct quire_error error;
};

struct run {
  struct way way;
  struct quire_geometry geometry;
  struct quire_parts parts;
  const struct quire_kernels *kernels;
  struct quire_collective *collective;
  struct quire_peer_map peers;
  struct rank rank[RANKS];
  struct quire_view *views[RANKS];
  struct quire_step_plan *plan;
  uint64_t epoch;
  int32_t length[REQUESTS], paged[REQUESTS], home[REQUESTS];
  struct outcome outcome;
};

/* The inputs of one verb of one row, and where its results go; the same layout in the slab and on the device. */
struct inputs {
  float *latent, *key; /* [ROWS_MAX][576], [ROWS_MAX][128] */
  float *q, *w;        /* [ROWS_MAX][INDEX_HEADS][128], [ROWS_MAX][INDEX_HEADS] */
  uint16_t *q_latent, *q_rope, *out;
  float *lse;
  int32_t *lists;
};

static size_t lay_inputs(uint8_t *base, struct inputs *inputs) {
  size_t at = 0;
  struct {
    void **slot;
    size_t bytes;
  } const list[] = {
      {(void **)&inputs->latent, sizeof(float) * ROWS_MAX * QUIRE_KV_DIM},
      {(void **)&inputs->key, sizeof(float) * ROWS_MAX * QUIRE_INDEX_DIM},
      {(void **)&inputs->q, sizeof(float) * ROWS_MAX * INDEX_HEADS * QUIRE_INDEX_DIM},
      {(void **)&inputs->w, sizeof(float) * ROWS_MAX * INDEX_HEADS},
      {(void **)&inputs->q_latent, sizeof(uint16_t) * ROWS_MAX * HEADS * QUIRE_LATENT_DIM},
      {(void **)&inputs->q_rope, sizeof(uint16_t) * ROWS_MAX * HEADS * QUIRE_ROPE_DIM},
      {(void **)&inputs->out, sizeof(uint16_t) * ROWS_MAX * HEADS * QUIRE_LATENT_DIM},
      {(void **)&inputs->lse, sizeof(float) * ROWS_MAX * HEADS},
      {(void **)&inputs->lists, sizeof(int32_t) * ROWS_MAX * TOPK},
  };
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    *list[i].slot = base + at;
    at += (list[i].bytes + 255) / 256 * 256;
  }
  return at;
}

/* -- inputs: functions of (request, layer, position) -------------------------------------------------------------- */

static float value_of(uint64_t *state) {
  return (float)((int32_t)(quire_splitmix64(state) >> 40) - (1 << 23)) / (float)(1 << 22);
}

static uint16_t bf16_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static uint64_t state_of(int32_t request, int32_t layer, int32_t position, uint64_t what) {
  return quire_mix64(seed_of_run + (uint64_t)request * 1000003 + (uint64_t)layer * 7919 + (uint64_t)position * 31 +
                     what * 97);
}

static void fill_row(const struct inputs *in, int32_t i, int32_t request, int32_t layer, int32_t position) {
  uint64_t state = state_of(request, layer, position, 1);
  for (int32_t c = 0; c < QUIRE_KV_DIM; c++) {
    in->latent[i * QUIRE_KV_DIM + c] = value_of(&state);
  }
  for (int32_t c = 0; c < QUIRE_INDEX_DIM; c++) {
    in->key[i * QUIRE_INDEX_DIM + c] = value_of(&state);
  }
  for (int32_t c = 0; c < INDEX_HEADS * QUIRE_INDEX_DIM; c++) {
    in->q[i * INDEX_HEADS * QUIRE_INDEX_DIM + c] = value_of(&state);
  }
  for (int32_t h = 0; h < INDEX_HEADS; h++) {
    in->w[i * INDEX_HEADS + h] = value_of(&state);
  }
  for (int32_t c = 0; c < HEADS * QUIRE_LATENT_DIM; c++) {
    in->q_latent[i * HEADS * QUIRE_LATENT_DIM + c] = bf16_of(value_of(&state));
  }
  for (int32_t c = 0; c < HEADS * QUIRE_ROPE_DIM; c++) {
    in->q_rope[i * HEADS * QUIRE_ROPE_DIM + c] = bf16_of(value_of(&state));
  }
}

/* -- one layer of one rank ---------------------------------------------------------------------------------------- */

static size_t outcome_row(int32_t request, int32_t layer, int32_t position) {
  return ((size_t)request * LAYERS + (size_t)layer) * LENGTH_MAX + (size_t)position;
}

static void keep_rows(struct rank *rank, const struct quire_view_batch *batch, int32_t layer,
                      const struct inputs *host) {
  struct outcome *o = &rank->run->outcome;
  const struct quire_step_entry *entries = quire_step_plan_entries(rank->run->plan);
  for (int32_t i = 0; i < batch->m; i++) {
    size_t row = outcome_row(entries[batch->entries[i]].request, layer, batch->limits[i] - 1);
    memcpy(o->lists + row * TOPK, host->lists + (size_t)i * TOPK, TOPK * sizeof(int32_t));
    o->out[row] = quire_hash128(host->out + (size_t)i * HEADS * QUIRE_LATENT_DIM,
                                (size_t)HEADS * QUIRE_LATENT_DIM * sizeof(uint16_t), 0);
    memcpy(o->lse + row * HEADS, host->lse + (size_t)i * HEADS, HEADS * sizeof(float));
  }
}

static enum quire_status run_layer(struct rank *rank, int32_t flat) {
  bool draft = flat >= TARGET_LAYERS;
  struct quire_view *view = rank->view;
  enum quire_part_model model = draft ? QUIRE_PART_DRAFT : QUIRE_PART_TARGET;
  const struct quire_view_batch *batch = draft ? quire_view_draft_batch(view) : quire_view_target_batch(view);
  const struct quire_step_entry *entries = quire_step_plan_entries(rank->run->plan);
  struct inputs host, device;
  size_t bytes = lay_inputs(quire_memory_base(rank->slab), &host);
  (void)lay_inputs(quire_memory_base(rank->inputs), &device);
  int32_t layer = draft ? 0 : flat;
  for (int32_t i = 0; i < batch->m; i++) {
    fill_row(&host, i, entries[batch->entries[i]].request, flat, batch->limits[i] - 1);
  }
  memset(host.out, 0xFF, bytes - (size_t)((uint8_t *)host.out - (uint8_t *)quire_memory_base(rank->slab)));
  quire_stream_copy(rank->stream, quire_memory_base(rank->inputs), quire_memory_base(rank->slab), bytes);
  struct quire_view_put put = {model,      layer,        device.latent, device.latent + QUIRE_LATENT_DIM,
                               device.key, QUIRE_KV_DIM, QUIRE_KV_DIM,  QUIRE_INDEX_DIM};
  enum quire_status status = quire_view_put_rows(view, &put, &rank->error);
  if (status != QUIRE_OK || rank->run->way.device == QUIRE_DEVICE_CPU) {
    return status; /* the CPU is asked for its stored rows alone */
  }
  quire_view_select(view, model, layer, device.q, device.w);
  struct quire_view_attend attend = {model,      layer,      device.q_latent,  device.q_rope,
                                     device.out, device.lse, QUIRE_DTYPE_BF16, 0.0721687824f};
  quire_view_attend(view, &attend);
  quire_stream_copy(rank->stream, device.lists, quire_view_indices(view), (size_t)batch->m * TOPK * sizeof(int32_t));
  size_t from = (size_t)((uint8_t *)device.out - (uint8_t *)quire_memory_base(rank->inputs));
  quire_stream_copy(rank->stream, (uint8_t *)quire_memory_base(rank->slab) + from,
                    (uint8_t *)quire_memory_base(rank->inputs) + from, bytes - from);
  quire_event_sync(quire_stream_record(rank->stream)); /* the slab is used again by the next layer */
  keep_rows(rank, batch, flat, &host);
  return QUIRE_OK;
}

static void *run_rank(void *context) {
  struct rank *rank = context;
  struct run *run = rank->run;
  uint32_t control = quire_kernels_enter();
  enum quire_status status = quire_view_begin(rank->view, run->plan, &rank->error);
  for (int32_t flat = 0; flat < LAYERS && status == QUIRE_OK; flat++) {
    status = run_layer(rank, flat);
  }
  if (status == QUIRE_OK) {
    status = quire_view_fence(rank->view, &rank->error);
  } else {
    quire_collective_abort(run->collective, rank->index);
  }
  for (int32_t i = 0; i < quire_view_target_batch(rank->view)->m && status == QUIRE_OK; i++) {
    status = quire_view_nonfinite(rank->view, QUIRE_PART_TARGET)[i] != 0 ? QUIRE_ERR_NONFINITE : QUIRE_OK;
  }
  rank->status = status;
  quire_kernels_leave(control);
  return NULL;
}

/* -- steps -------------------------------------------------------------------------------------------------------- */

static struct quire_step_entry entry_of(const struct run *run, int32_t request, int32_t end) {
  int32_t begin = run->length[request], announced = (begin + PAGE - 1) / PAGE, pages = (end + PAGE - 1) / PAGE;
  return (struct quire_step_entry){
      .request = request,
      .kind = QUIRE_ENTRY_PREFILL,
      .flags = QUIRE_ENTRY_DRAFT_FULL, /* the draft layer selects and attends too */
      .begin = begin,
      .end = end,
      .prefix_end = begin,
      .home = -1,
      .carry_rank = begin > 0 ? 0 : -1,
      .recompute_rank = -1,
      .commit_rank = -1,
      .append_begin = announced,
      .append_count = pages - announced,
      .next_token = -1,
      .sampling = -1,
  };
}

static void add_entry(struct run *run, const struct quire_step_entry *entry) {
  int32_t tokens[LENGTH_MAX];
  for (int32_t i = 0; i < LENGTH_MAX; i++) {
    tokens[i] = i;
  }
  int32_t first = entry->begin > 0 ? entry->begin - 1 : 0;
  assert_true(
      quire_step_plan_add(run->plan, &limits, entry, tokens + first, tables[entry->request] + entry->append_begin));
}

/* Prefills requests up to these lengths. */
static void prefill_entries(struct run *run, const int32_t ends[REQUESTS]) {
  for (int32_t r = 0; r < REQUESTS; r++) {
    if (ends[r] > run->length[r]) {
      struct quire_step_entry entry = entry_of(run, r, ends[r]);
      add_entry(run, &entry);
      run->length[r] = run->paged[r] = ends[r];
    }
  }
}

static void decode_entries(struct run *run) {
  for (int32_t r = 0; r < REQUESTS; r++) {
    struct quire_step_entry entry = entry_of(run, r, run->length[r] + 1);
    run->home[r] = r % run->way.ranks;
    entry.kind = QUIRE_ENTRY_DECODE;
    entry.prefix_end = run->paged[r];
    entry.home = run->home[r];
    entry.carry_rank = run->home[r];
    if (run->paged[r] < run->length[r]) {
      entry.commit_rank = run->home[r];
      entry.commit_begin = run->paged[r];
      entry.commit_end = run->length[r];
      run->paged[r] = run->length[r];
    }
    add_entry(run, &entry);
    run->length[r]++;
  }
}

static void run_step(struct run *run) {
  pthread_t threads[RANKS];
  for (int32_t r = 0; r < run->way.ranks; r++) {
    assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &run->rank[r]), 0);
  }
  for (int32_t r = 0; r < run->way.ranks; r++) {
    pthread_join(threads[r], NULL);
  }
  for (int32_t r = 0; r < run->way.ranks; r++) {
    if (run->rank[r].status != QUIRE_OK) {
      fail_msg("%s: step %llu, rank %d: %s (%d)", run->way.name, (unsigned long long)run->epoch, r,
               run->rank[r].error.text, (int)run->rank[r].status);
    }
  }
}

/* -- a run -------------------------------------------------------------------------------------------------------- */

static void open_rank(struct run *run, int32_t r) {
  struct rank *rank = &run->rank[r];
  const struct quire_env *env = quire_env_default();
  bool cuda = run->way.device == QUIRE_DEVICE_CUDA;
  struct inputs none;
  size_t inputs = lay_inputs(NULL, &none), bytes = 0, offset[PARTS];
  rank->run = run;
  rank->index = r;
  memset(rank->written, 0xFF, sizeof rank->written);
  assert_int_equal(quire_device_open(env, run->way.device, cuda ? r % gpus : 0, &rank->device, NULL), QUIRE_OK);
  enum quire_stream_mode mode = cuda ? run->way.streams : QUIRE_STREAM_INLINE;
  assert_int_equal(quire_device_stream(rank->device, mode, NULL, 3, &rank->stream, NULL), QUIRE_OK);
  assert_int_equal(
      quire_device_stream(rank->device, cuda ? mode : QUIRE_STREAM_THREAD, NULL, 5, &rank->copy_stream, NULL),
      QUIRE_OK);
  for (int32_t p = 0; p < run->parts.count; p++) {
    offset[p] = bytes / (run->way.far > 0 ? POOL : 1);
    bytes += (size_t)POOL * (size_t)run->parts.part[p].page_bytes;
  }
  size_t pages = run->way.far > 0 ? (size_t)POOL * (size_t)run->way.far : bytes;
  assert_int_equal(quire_device_memory(rank->device, pages, &rank->pages, NULL), QUIRE_OK);
  assert_int_equal(quire_device_memory(rank->device, inputs, &rank->inputs, NULL), QUIRE_OK);
  assert_int_equal(quire_device_host(rank->device, inputs > bytes ? inputs : bytes, &rank->slab, NULL), QUIRE_OK);
  for (int32_t p = 0; p < run->parts.count; p++) {
    int64_t stride = run->way.far > 0 ? run->way.far : run->parts.part[p].page_bytes;
    rank->parts[p] = (struct quire_peer_part){(uint8_t *)quire_memory_base(rank->pages) + offset[p], stride, POOL};
  }
  run->peers.rank[r] = (struct quire_peer){rank->parts, rank->written, run->parts.count, POOL};
}

static struct quire_view_config config_of(const struct run *run, int32_t r) {
  return (struct quire_view_config){
      .geometry = run->geometry,
      .parts = &run->parts,
      .mode = run->way.mode,
      .rank = r,
      .limits = limits,
      .requests_max = REQUESTS,
      .request_pages_max = REQUEST_PAGES,
      .rows_max = ROWS_MAX,
      .fresh_max = FRESH_MAX,
      .local_rows = 2,
      .gather_pages_max = REQUESTS * REQUEST_PAGES,
      .topk = TOPK,
      .heads = HEADS,
      .index_heads = INDEX_HEADS,
      .device = run->way.device == QUIRE_DEVICE_CUDA ? run->rank[r].device : NULL,
      .threads = 1,
  };
}

static void open_view(struct run *run, int32_t r) {
  struct rank *rank = &run->rank[r];
  struct quire_view_config config = config_of(run, r);
  struct quire_view_links links = {run->kernels, run->collective, &run->peers, run->views};
  struct quire_error error = {0};
  if (quire_view_create(quire_env_default(), &config, &links, &rank->view, &error) != QUIRE_OK) {
    fail_msg("%s: %s", run->way.name, error.text);
  }
  run->views[r] = rank->view;
  quire_view_start(rank->view, rank->stream, run->way.mode == QUIRE_VIEW_GATHER ? rank->copy_stream : NULL);
  quire_collective_attach(run->collective, r, rank->stream);
}

static void open_run(struct run *run, struct way way) {
  memset(run, 0, sizeof *run);
  run->way = way;
  run->geometry = (struct quire_geometry){PAGE, way.ranks, way.ranks, POOL};
  assert_true(quire_parts_build(&run->parts, way.format, PAGE, TARGET_LAYERS, NULL, 1));
  assert_int_equal(run->parts.count, PARTS);
  run->kernels = quire_kernels_cuda();
  if (way.device == QUIRE_DEVICE_CPU) {
    assert_int_equal(quire_kernels_find("auto", &run->kernels, NULL), QUIRE_OK);
  }
  run->peers.ranks = way.ranks;
  struct quire_collective_config config = {.ranks = way.ranks, .exchange_bytes_max = (size_t)ROWS_MAX * 1500};
  for (int32_t r = 0; r < way.ranks; r++) {
    open_rank(run, r);
    config.device[r] = run->rank[r].device;
  }
  struct quire_error error = {0};
  if (quire_collective_create(quire_env_default(), way.collective, &config, &run->collective, &error) != QUIRE_OK) {
    fail_msg("%s: %s", way.name, error.text);
  }
  for (int32_t r = 0; r < way.ranks; r++) {
    open_view(run, r);
  }
  run->plan = calloc(1, (size_t)quire_step_plan_bytes(&limits));
  for (int32_t request = 0; request < REQUESTS; request++) {
    for (int32_t p = 0; p < PARTS; p++) {
      run->outcome.stored[request][p] = malloc((size_t)LENGTH_MAX * (size_t)run->parts.part[p].row_bytes);
      assert_non_null(run->outcome.stored[request][p]);
    }
  }
  size_t rows = (size_t)REQUESTS * LAYERS * LENGTH_MAX;
  run->outcome.lists = calloc(rows * TOPK, sizeof(int32_t));
  run->outcome.out = calloc(rows, sizeof(struct quire_hash128));
  run->outcome.lse = calloc(rows * HEADS, sizeof(float));
  assert_true(run->plan != NULL && run->outcome.lists != NULL && run->outcome.out != NULL && run->outcome.lse != NULL);
}

/* The rows of a part that a rank stores, from its pages in the slab. */
static void take_part(struct run *run, int32_t r, int32_t p, const uint8_t *base) {
  const struct quire_part *part = &run->parts.part[p];
  for (int32_t request = 0; request < REQUESTS; request++) {
    for (int32_t position = 0; position < LENGTH_MAX; position++) {
      quire_page page = tables[request][position / PAGE];
      if (!quire_page_stored_by(&run->geometry, page, (quire_rank_id){r})) {
        continue;
      }
      uint8_t *row = run->outcome.stored[request][p] + (size_t)position * (size_t)part->row_bytes;
      const uint8_t *at = base + (int64_t)quire_page_local(&run->geometry, page).v * part->page_bytes;
      for (int32_t k = 0; k < part->pieces; k++) {
        const struct quire_piece *piece = &part->piece[k];
        memcpy(row, at + piece->offset + (int64_t)(position % PAGE) * piece->row_bytes, (size_t)piece->row_bytes);
        row += piece->row_bytes;
      }
    }
  }
}

/* Brings a rank's pages to the slab, by a stream that works, and takes what it stores. */
static void take_stored(struct run *run, int32_t r, struct quire_stream *stream) {
  struct rank *rank = &run->rank[r];
  uint8_t *slab = quire_memory_base(rank->slab), *at = slab;
  for (int32_t p = 0; p < PARTS; p++) {
    size_t bytes = (size_t)run->parts.part[p].page_bytes;
    for (int32_t i = 0; i < POOL; i++, at += bytes) {
      quire_stream_copy(stream, at, rank->parts[p].base + i * rank->parts[p].page_stride, bytes);
    }
  }
  quire_event_sync(quire_stream_record(stream));
  at = slab;
  for (int32_t p = 0; p < PARTS; p++) {
    take_part(run, r, p, at);
    at += (size_t)POOL * (size_t)run->parts.part[p].page_bytes;
  }
}

static void close_run(struct run *run) {
  for (int32_t r = 0; r < run->way.ranks; r++) {
    quire_view_destroy(run->rank[r].view);
  }
  quire_collective_destroy(run->collective);
  for (int32_t r = 0; r < run->way.ranks; r++) {
    struct rank *rank = &run->rank[r];
    quire_stream_destroy(rank->copy_stream);
    quire_stream_destroy(rank->stream);
    quire_memory_destroy(rank->pages);
    quire_memory_destroy(rank->inputs);
    quire_memory_destroy(rank->slab);
    quire_device_close(rank->device);
  }
  free(run->plan);
}

static void free_outcome(struct outcome *outcome) {
  for (int32_t request = 0; request < REQUESTS; request++) {
    for (int32_t p = 0; p < PARTS; p++) {
      free(outcome->stored[request][p]);
    }
  }
  free(outcome->lists);
  free(outcome->out);
  free(outcome->lse);
}

static void step_of(struct run *run, const int32_t *ends) {
  quire_step_plan_reset(run->plan, ++run->epoch, run->way.ranks, QUIRE_SPLIT_ZIGZAG);
  if (ends != NULL) {
    prefill_entries(run, ends);
  } else {
    decode_entries(run);
  }
  run_step(run);
}

/* Of all GPUs of the run. */
static size_t free_bytes(void) {
  size_t sum = 0;
  for (int32_t i = 0; i < gpus; i++) {
    size_t left = 0, total = 0;
    assert_int_equal(cudaSetDevice(i), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&left, &total), cudaSuccess);
    sum += left;
  }
  return sum;
}

/* Prefill in chunks that begin and end within pages, five decode steps over a page border, and the last commit. */
static struct outcome run_way(struct way way) {
  const int32_t lengths[REQUESTS] = {small ? 190 : 446, small ? 70 : 190};
  static struct run run;
  open_run(&run, way);
  size_t reserved = way.device == QUIRE_DEVICE_CUDA ? free_bytes() : 0;
  for (int32_t done = 0; done < lengths[0];) {
    done += way.chunk;
    int32_t ends[REQUESTS];
    for (int32_t r = 0; r < REQUESTS; r++) {
      ends[r] = done < lengths[r] ? done : lengths[r];
    }
    step_of(&run, ends);
  }
  for (int i = 0; i < 5; i++) {
    step_of(&run, NULL);
  }
  if (way.device == QUIRE_DEVICE_CUDA && strcmp(way.collective, "nccl") != 0 && !small) {
    assert_int_equal(free_bytes(), reserved);
  }
  for (int32_t r = 0; r < way.ranks; r++) {
    take_stored(&run, r, run.rank[r].stream);
  }
  close_run(&run);
  return run.outcome;
}

static void expect_same_stored(const struct way *way, const struct outcome *a, const struct outcome *b) {
  struct quire_parts parts;
  assert_true(quire_parts_build(&parts, way->format, PAGE, TARGET_LAYERS, NULL, 1));
  for (int32_t request = 0; request < REQUESTS; request++) {
    for (int32_t p = 0; p < PARTS; p++) {
      size_t bytes = (size_t)parts.part[p].row_bytes;
      for (int32_t position = 0; position < LENGTH_MAX; position++) {
        if (memcmp(a->stored[request][p] + (size_t)position * bytes, b->stored[request][p] + (size_t)position * bytes,
                   bytes) != 0) {
          fail_msg("%s: request %d, part %d: the stored row of position %d differs", way->name, request, p, position);
        }
      }
    }
  }
}

static void expect_same(const struct way *way, const struct outcome *a, const struct outcome *b) {
  expect_same_stored(way, a, b);
  for (int32_t request = 0; request < REQUESTS; request++) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
      for (int32_t position = 0; position < LENGTH_MAX; position++) {
        size_t row = outcome_row(request, layer, position);
        bool list = memcmp(a->lists + row * TOPK, b->lists + row * TOPK, TOPK * sizeof(int32_t)) == 0;
        bool lse = memcmp(a->lse + row * HEADS, b->lse + row * HEADS, HEADS * sizeof(float)) == 0;
        if (!list || !lse || !quire_hash128_equal(a->out[row], b->out[row])) {
          fail_msg("%s: request %d, layer %d, position %d differs in its %s", way->name, request, layer, position,
                   !list  ? "list"
                   : !lse ? "log-sum-exp"
                          : "output");
        }
      }
    }
  }
}

/* Something was computed, and it is not poison. */
static void expect_sense(const struct outcome *o) {
  int32_t lists = 0;
  for (int32_t position = 0; position < (small ? 180 : 440); position++) {
    size_t row = outcome_row(0, 1, position);
    for (int32_t h = 0; h < HEADS; h++) {
      assert_true(o->lse[row * HEADS + (size_t)h] > -1000.0f && o->lse[row * HEADS + (size_t)h] < 1000.0f);
    }
    lists += o->lists[row * TOPK + TOPK - 1] > TOPK;
  }
  assert_true(lists > (small ? 80 : 300)); /* rows behind the first 64 choose */
}

static void all_ways(enum quire_kv_format format) {
  const struct way cpu = {"cpu", "local", QUIRE_DEVICE_CPU, format, QUIRE_VIEW_PEER, QUIRE_STREAM_INLINE, 2, 200, 0};
  const enum quire_device_kind gpu = QUIRE_DEVICE_CUDA;
  const struct way one = {"one rank", "peer", gpu, format, QUIRE_VIEW_LOCAL, QUIRE_STREAM_THREAD, 1, 200, 0};
  const struct way ways[] = {
      {"one rank, chunks of 77", "peer", gpu, format, QUIRE_VIEW_LOCAL, QUIRE_STREAM_DEFERRED, 1, 77, 0},
      {"peer, deferred, chunks of 100", "peer", gpu, format, QUIRE_VIEW_PEER, QUIRE_STREAM_DEFERRED, 2, 100, 0},
      {"peer", "peer", gpu, format, QUIRE_VIEW_PEER, QUIRE_STREAM_THREAD, 2, 200, 0},
      {"gather, deferred, chunks of 77", "peer", gpu, format, QUIRE_VIEW_GATHER, QUIRE_STREAM_DEFERRED, 2, 77, 0},
      {"gather", "peer", gpu, format, QUIRE_VIEW_GATHER, QUIRE_STREAM_THREAD, 2, 200, 0},
      {"one rank, pages 160 MiB apart", "peer", gpu, format, QUIRE_VIEW_LOCAL, QUIRE_STREAM_THREAD, 1, 200, FAR},
      {"gather, nccl", "nccl", gpu, format, QUIRE_VIEW_GATHER, QUIRE_STREAM_THREAD, 2, 150, 0},
      {"gather, pages 320 MiB apart", "peer", gpu, format, QUIRE_VIEW_GATHER, QUIRE_STREAM_THREAD, 2, 200, 2 * FAR},
  };
  struct outcome want = run_way(one);
  expect_sense(&want);
  struct outcome host = run_way(cpu);
  expect_same_stored(&cpu, &want, &host);
  free_outcome(&host);
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    if (small && (i % 2 == 0 || ways[i].far > 0)) { /* leaves peer and gather, with delays */
      continue;
    }
    if ((small || gpus < RANKS) && strcmp(ways[i].collective, "nccl") == 0) {
      print_message("%s: left out, NCCL needs a GPU a rank, and no sanitizer\n", ways[i].name);
      continue;
    }
    struct outcome got = run_way(ways[i]);
    expect_same(&ways[i], &want, &got);
    free_outcome(&got);
  }
  free_outcome(&want);
}

static void fp8_rows_are_the_same_bytes(void **state) {
  (void)state;
  all_ways(QUIRE_KV_FP8);
}

static void bf16_rows_are_the_same_bytes(void **state) {
  (void)state;
  if (small) {
    skip();
  }
  all_ways(QUIRE_KV_BF16);
}

/* -- streams that fail, steps that do ----------------------------------------------------------------------------- */

/* Launches behind a failure reach no stream at all: what is stored stays, and the device works on. */
static void a_failed_stream_writes_nothing_more(void **state) {
  (void)state;
  static struct run run;
  const int32_t first[REQUESTS] = {200, 100}, second[REQUESTS] = {330, 170};
  open_run(&run, (struct way){"one rank", "peer", QUIRE_DEVICE_CUDA, QUIRE_KV_FP8, QUIRE_VIEW_LOCAL,
                              QUIRE_STREAM_THREAD, 1, 200, 0});
  struct rank *rank = &run.rank[0];
  step_of(&run, first);
  for (int i = 0; i < 3; i++) { /* from the second on with a commit, all alike */
    step_of(&run, NULL);
  }
  quire_stream_fill(rank->copy_stream, quire_memory_base(rank->pages), 0xFF, quire_memory_bytes(rank->pages));
  take_stored(&run, 0, rank->copy_stream);
  struct outcome before = run.outcome;
  for (int32_t request = 0; request < REQUESTS; request++) {
    for (int32_t p = 0; p < PARTS; p++) {
      run.outcome.stored[request][p] = malloc((size_t)LENGTH_MAX * (size_t)run.parts.part[p].row_bytes);
      assert_non_null(run.outcome.stored[request][p]);
    }
  }
  quire_stream_fail(rank->stream, (int)cudaErrorInvalidConfiguration);
  quire_step_plan_reset(run.plan, ++run.epoch, 1, QUIRE_SPLIT_ZIGZAG);
  decode_entries(&run); /* with a commit */
  (void)run_rank(rank);
  assert_int_equal(rank->status, QUIRE_ERR_RANK);
  quire_step_plan_reset(run.plan, ++run.epoch, 1, QUIRE_SPLIT_ZIGZAG);
  prefill_entries(&run, second);
  (void)run_rank(rank);
  assert_int_equal(rank->status, QUIRE_ERR_RANK);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  take_stored(&run, 0, rank->copy_stream);
  assert_int_equal(quire_stream_check(rank->copy_stream, NULL), QUIRE_OK);
  for (int32_t request = 0; request < REQUESTS; request++) {
    for (int32_t p = 0; p < PARTS; p++) {
      size_t bytes = (size_t)LENGTH_MAX * (size_t)run.parts.part[p].row_bytes;
      assert_memory_equal(run.outcome.stored[request][p], before.stored[request][p], bytes);
      free(before.stored[request][p]);
    }
  }
  close_run(&run);
  free_outcome(&run.outcome);
}

/* What no kernel takes is refused when the view is made, with the reason; its bytes may be asked for all the same. */
static void what_no_kernel_takes_is_refused(void **state) {
  (void)state;
  static struct run run;
  struct quire_parts f32, five;
  open_run(&run, (struct way){"one rank", "peer", QUIRE_DEVICE_CUDA, QUIRE_KV_FP8, QUIRE_VIEW_LOCAL,
                              QUIRE_STREAM_THREAD, 1, 200, 0});
  struct quire_view_links links = {run.kernels, run.collective, &run.peers, run.views};
  assert_true(quire_parts_build(&f32, QUIRE_KV_F32, PAGE, TARGET_LAYERS, NULL, 1));
  assert_true(quire_parts_build(&five, QUIRE_KV_FP8, 5, TARGET_LAYERS, NULL, 1));
  static const char *const words[] = {"f32", "64 index heads", "positions", "4 tokens"};
  for (int what = 0; what < 4; what++) {
    struct quire_view *view = NULL;
    struct quire_error error = {0};
    struct quire_view_config config = config_of(&run, 0);
    config.parts = what == 0 ? &f32 : what == 3 ? &five : config.parts;
    config.index_heads = what == 1 ? 65 : config.index_heads;
    config.request_pages_max = what == 2 ? INT32_MAX / PAGE : config.request_pages_max;
    config.limits.entries_max = what == 2 ? 1 : config.limits.entries_max;
    config.mode = what == 3 ? QUIRE_VIEW_GATHER : config.mode;
    config.geometry.page_tokens = what == 3 ? 5 : config.geometry.page_tokens;
    assert_true(quire_view_bytes(&config).scratch > 0);
    assert_int_equal(quire_view_create(quire_env_default(), &config, &links, &view, &error), QUIRE_ERR_UNSUPPORTED);
    if (view != NULL || strstr(error.text, words[what]) == NULL) {
      fail_msg("\"%s\" does not say \"%s\"", error.text, words[what]);
    }
  }
  close_run(&run);
  free_outcome(&run.outcome);
}

/* What a view takes of the device is what it says, but for whole granules. */
static void bytes_are_all_counted(void **state) {
  (void)state;
  static struct run run;
  const size_t granule = (size_t)2 << 20;
  struct quire_view *view = NULL, *views[RANKS] = {NULL};
  open_run(&run, (struct way){"one rank", "peer", QUIRE_DEVICE_CUDA, QUIRE_KV_FP8, QUIRE_VIEW_LOCAL,
                              QUIRE_STREAM_THREAD, 1, 200, 0});
  struct quire_view_config config = config_of(&run, 0);
  config.limits.entries_max = 512; /* tables of 12 MB */
  config.request_pages_max = 1000;
  struct quire_view_links links = {run.kernels, run.collective, &run.peers, views};
  struct quire_view_memory says = quire_view_bytes(&config);
  size_t sum = (size_t)(says.exchange + says.local + says.gather + says.scratch + says.tables), before = free_bytes();
  assert_int_equal(quire_view_create(quire_env_default(), &config, &links, &view, NULL), QUIRE_OK);
  size_t took = before - free_bytes();
  if (!small && (took < sum || took >= sum + 2 * granule)) {
    fail_msg("%zu bytes are gone, %zu were said", took, sum);
  }
  quire_view_destroy(view);
  close_run(&run);
  free_outcome(&run.outcome);
}

static enum quire_status create_one(void *context, const struct quire_env *env) {
  const struct run *run = context;
  struct quire_view *view = NULL;
  struct quire_error error = {0};
  struct quire_view_config config = config_of(run, 0);
  struct quire_view *views[RANKS] = {NULL};
  struct quire_view_links links = {run->kernels, run->collective, &run->peers, views};
  enum quire_status status = quire_device_open(env, QUIRE_DEVICE_CUDA, 0, &config.device, &error);
  if (status == QUIRE_OK) {
    status = quire_view_create(env, &config, &links, &view, &error);
    assert_true((view != NULL) == (status == QUIRE_OK) && error.status == status);
    quire_view_destroy(view);
    quire_device_close(config.device);
  }
  return status;
}

/* Creation that is refused any of its allocations gives back the others; the device's too, and while it loads
 * kernels. */
static void every_allocation_may_fail(void **state) {
  (void)state;
  static struct run run;
  if (small) {
    skip(); /* a load of all kernels each */
  }
  open_run(&run, (struct way){"one rank", "peer", QUIRE_DEVICE_CUDA, QUIRE_KV_FP8, QUIRE_VIEW_LOCAL,
                              QUIRE_STREAM_THREAD, 1, 200, 0});
  size_t before = free_bytes();
  assert_true(fail_env_sweep(create_one, &run) > 15);
  assert_int_equal(free_bytes(), before);
  close_run(&run);
  free_outcome(&run.outcome);
}

static void sleep_then_say(void *args, struct quire_team *team) {
  (void)team;
  struct timespec pause = {.tv_sec = 0, .tv_nsec = 30000000};
  (void)nanosleep(&pause, NULL);
  atomic_store(*(atomic_int **)args, 1);
}

/* A step that is given up leaves nothing under way: its pages may be another's at once. */
static void quiesce_waits_for_all(void **state) {
  (void)state;
  static struct run run;
  const int32_t ends[REQUESTS] = {200, 100};
  atomic_int done = 0, *told = &done;
  open_run(&run, (struct way){"one rank", "peer", QUIRE_DEVICE_CUDA, QUIRE_KV_FP8, QUIRE_VIEW_LOCAL,
                              QUIRE_STREAM_THREAD, 1, 200, 0});
  struct rank *rank = &run.rank[0];
  quire_step_plan_reset(run.plan, ++run.epoch, 1, QUIRE_SPLIT_ZIGZAG);
  prefill_entries(&run, ends);
  assert_int_equal(quire_view_begin(rank->view, run.plan, NULL), QUIRE_OK);
  assert_int_equal(run_layer(rank, 0), QUIRE_OK);
  quire_stream_launch(rank->stream, sleep_then_say, &told, sizeof told);
  quire_view_quiesce(rank->view);
  assert_int_equal(done, 1);
  close_run(&run);
  free_outcome(&run.outcome);
}

int main(void) {
  struct quire_cuda_info info;
  test_needs_gpus(1);
  (void)quire_cuda_describe(&info);
  gpus = info.devices < GPUS_MAX ? info.devices : GPUS_MAX;
  seed_of_run = test_seed("test_view_gpu");
  setenv("NCCL_NVLS_ENABLE", "0", 1); /* no multicast */
  small = getenv("QUIRE_TEST_SMALL") != NULL;
  test_limit(140);
  print_message("ranks on %d GPU%s\n", gpus, gpus > 1 ? "s" : "");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fp8_rows_are_the_same_bytes),
      cmocka_unit_test(bf16_rows_are_the_same_bytes),
      cmocka_unit_test(a_failed_stream_writes_nothing_more),
      cmocka_unit_test(what_no_kernel_takes_is_refused),
      cmocka_unit_test(bytes_are_all_counted),
      cmocka_unit_test(every_allocation_may_fail),
      cmocka_unit_test(quiesce_waits_for_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
