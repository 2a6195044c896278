/* The host half of a view on a GPU: builds a step's tables from the plan, sends them in one copy, and enqueues.
 *
 * The CPU's view finds out while it works which page a row goes to; here that is decided before anything is enqueued,
 * by the same functions of the plan, so the device needs no answer from the host and the host none from the device
 * until the fence. Write marks are set when the work is enqueued: whoever reads one reads it in a later step, behind a
 * fence. */
#include <string.h>

#include "base/assert.h"
#include "layout/carve.h"
#include "view/cuda/view_cuda_private.h"
#include "view/view_internal.h"

#define GATHER_WIDTH 16 /* multiprocessors: the least that fill a link */

/* How much of each table a step uses. */
struct counts {
  int32_t rows[2];
  int32_t entries, pages, gathers;
  bool ragged; /* is any page to be gathered not valid to its end? */
  int32_t places[2];
  int32_t appends[2];
  int32_t commits;
};

/* A batch's arrays, as they are sent. */
struct rows_table {
  int32_t *tokens, *positions, *limits, *entries, *hidden;
};

/* Tables by place: in the slab, or the same offsets on the device. */
struct tables {
  struct rows_table rows[2];
  struct quire_view_cuda_entry *entry;
  struct quire_view_cuda_page *page;
  struct quire_view_cuda_gather_page *gather;
  struct quire_view_cuda_place *place[2];
  struct quire_view_cuda_append *append[2];
  struct quire_view_cuda_commit *commit;
  struct quire_view_cuda_part *part;
};

struct quire_view_cuda {
  struct quire_memory *memory, *slab;
  uint8_t *device_tables, *host_tables;
  struct counts counts;
  struct tables device, host;
  struct quire_kv_source *sources; /* [2][entries_max], device */
  const uint8_t **pointers;        /* [2][pointers_max], device */
  int32_t *flags;                  /* [2][rows_max], device */
  uint32_t *claims;                /* [layers], behind the flags: of the gather of a layer */
  int32_t *flags_host;             /* [2][rows_max], pinned */
  struct quire_event sent;         /* the slab may be written again */
};

static void lay_tables(struct quire_carve *carve, const struct counts *counts, int32_t parts, struct tables *tables) {
  QUIRE_ASSERT(parts > 0 && counts->entries >= 0);
  for (int draft = 0; draft < 2; draft++) {
    struct rows_table *rows = &tables->rows[draft];
    int32_t **arrays[] = {&rows->tokens, &rows->positions, &rows->limits, &rows->entries, &rows->hidden};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
      *arrays[i] = quire_carve(carve, counts->rows[draft], sizeof(int32_t));
    }
    tables->place[draft] = quire_carve(carve, counts->places[draft], sizeof *tables->place[draft]);
    tables->append[draft] = quire_carve(carve, counts->appends[draft], sizeof *tables->append[draft]);
  }
  tables->entry = quire_carve(carve, counts->entries, sizeof *tables->entry);
  tables->page = quire_carve(carve, counts->pages, sizeof *tables->page);
  tables->gather = quire_carve(carve, counts->gathers, sizeof *tables->gather);
  tables->commit = quire_carve(carve, counts->commits, sizeof *tables->commit);
  tables->part = quire_carve(carve, parts, sizeof *tables->part);
}

static int32_t gathers_max(const struct quire_view_config *config) {
  return config->mode == QUIRE_VIEW_GATHER ? config->gather_pages_max : 0;
}

static int32_t pointers_max(const struct quire_view_config *c) { return c->limits.entries_max * c->request_pages_max; }

static size_t tables_bytes_max(const struct quire_view_config *c) {
  struct counts most = {
      .rows = {c->rows_max, c->rows_max},
      .entries = c->limits.entries_max,
      .pages = pointers_max(c),
      .gathers = gathers_max(c),
      .places = {c->fresh_max, c->fresh_max},
      .appends = {c->rows_max, c->rows_max},
      .commits = c->limits.entries_max * c->local_rows,
  };
  struct tables none;
  struct quire_carve carve = {NULL, 0};
  lay_tables(&carve, &most, c->parts->count, &none);
  QUIRE_ASSERT(carve.used > 0);
  return carve.used;
}

/* Words that a step begins with as zeros: flags and claims. */
static int64_t zeroed(const struct quire_view_config *c) {
  return 2 * (int64_t)c->rows_max + c->parts->target_layers + c->parts->draft_layers;
}

/* What stays on the device beside the tables. */
static size_t lay_device(const struct quire_view_config *c, uint8_t *base, struct quire_view_cuda *cuda) {
  QUIRE_ASSERT(c->rows_max > 0 && cuda != NULL);
  struct quire_carve carve = {base, 0};
  cuda->device_tables = quire_carve(&carve, 1, tables_bytes_max(c));
  cuda->sources = quire_carve(&carve, 2 * (int64_t)c->limits.entries_max, sizeof *cuda->sources);
  cuda->pointers = quire_carve(&carve, 2 * (int64_t)pointers_max(c), sizeof *cuda->pointers);
  cuda->flags = quire_carve(&carve, zeroed(c), sizeof *cuda->flags);
  cuda->claims = (uint32_t *)cuda->flags + 2 * (int64_t)c->rows_max;
  return carve.used;
}

static int64_t cuda_bytes(const struct quire_view_config *config) {
  struct quire_view_cuda none;
  return (int64_t)lay_device(config, NULL, &none);
}

static size_t lay_slab(struct quire_view *view, uint8_t *base) {
  QUIRE_ASSERT(view->cuda != NULL);
  struct quire_carve carve = {base, 0};
  view->cuda->host_tables = quire_carve(&carve, 1, tables_bytes_max(&view->config));
  view->cuda->flags_host = quire_carve(&carve, 2 * (int64_t)view->config.rows_max, sizeof(int32_t));
  return carve.used;
}

static void cuda_close(struct quire_view *view) {
  struct quire_view_cuda *cuda = view->cuda;
  QUIRE_ASSERT(view->backend == &quire_view_cuda_backend);
  if (cuda != NULL) {
    quire_memory_destroy(cuda->memory);
    quire_memory_destroy(cuda->slab);
    quire_env_free(view->env, cuda, 1, sizeof *cuda);
    view->cuda = NULL;
  }
}

/* All kernels of a step, so that its first one allocates nothing. */
static enum quire_status load_kernels(const struct quire_view *view, struct quire_error *error_out) {
  const struct quire_view_config *c = &view->config;
  struct quire_kernels_cuda_load load = {c->device, view->select_scratch, view->attend_scratch,
                                         quire_view_cuda_shape(c)};
  const char *slower = NULL;
  enum quire_status status = quire_kernels_cuda_load(&load, error_out);            /* makes the device current */
  if (status == QUIRE_OK && c->rank == 0 && !quire_cuda_select_streams(&slower)) { /* it is so on all ranks */
    quire_env_log(view->env, QUIRE_LOG_WARN, "select scores the rows of decode as those of prefill, slower: %s",
                  slower);
  }
  if (status == QUIRE_OK && quire_view_cuda_load() != 0) {
    status = quire_error_set(error_out, QUIRE_ERR_RANK, "view", "GPU %d does not load the kernels of views",
                             (int)quire_device_index(c->device));
  }
  return status;
}

static enum quire_status cuda_open(struct quire_view *view, struct quire_error *error_out) {
  QUIRE_ASSERT(view->cuda == NULL);
  struct quire_device *device = view->config.device;
  view->cuda = quire_env_zalloc(view->env, 1, sizeof *view->cuda);
  if (view->cuda == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "view", "no memory for the view of rank %d", view->config.rank);
  }
  size_t bytes = lay_device(&view->config, NULL, view->cuda);
  enum quire_status status = quire_device_memory(device, bytes, &view->cuda->memory, error_out);
  if (status == QUIRE_OK) {
    status = quire_device_host(device, lay_slab(view, NULL), &view->cuda->slab, error_out);
  }
  if (status == QUIRE_OK) { /* else quire_view_destroy closes */
    (void)lay_device(&view->config, quire_memory_base(view->cuda->memory), view->cuda);
    (void)lay_slab(view, quire_memory_base(view->cuda->slab));
    view->target.flags = view->cuda->flags;
    view->draft.flags = view->cuda->flags + view->config.rows_max;
    status = load_kernels(view, error_out);
  }
  return status;
}

/* Of a launch into the native stream, which is not there once a stream has failed: then nothing is launched, for NULL
 * would be the runtime's default stream. */
static void launched(struct quire_stream *stream, int error) {
  if (error != 0) {
    quire_stream_fail(stream, error);
  }
}

/* -- tables of a step ------------------------------------------------------------------------------------------- */

static struct counts count_step(const struct quire_view *view) {
  QUIRE_ASSERT(view->plan != NULL);
  struct counts counts = {
      .rows = {view->target.batch.m, view->draft.batch.m},
      .entries = view->plan->entry_count,
      .places = {view->fresh_rows, view->config.parts->draft_layers > 0 ? view->fresh_rows : 0},
      .appends = {view->target.batch.puts - view->target.prefill_puts,
                  view->draft.batch.puts - view->draft.prefill_puts},
  };
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    int32_t pages = quire_geometry_pages_of(&view->config.geometry, entry->prefix_end);
    counts.pages += pages;
    counts.gathers += view->gather_page[e] >= 0 ? pages : 0;   /* at most: own pages fall away */
    counts.commits += entry->commit_end - entry->commit_begin; /* at most: those of others' pages fall away */
  }
  return counts;
}

static void fill_rows(const struct quire_view_rows *rows, struct rows_table *table) {
  QUIRE_ASSERT(rows->batch.m >= 0);
  size_t bytes = (size_t)rows->batch.m * sizeof(int32_t);
  if (bytes != 0) {
    memcpy(table->tokens, rows->tokens, bytes);
    memcpy(table->positions, rows->positions, bytes);
    memcpy(table->limits, rows->limits, bytes);
    memcpy(table->entries, rows->entries, bytes);
    memcpy(table->hidden, rows->hidden, bytes);
  }
}

static bool is_own(const struct quire_view *view, quire_page page) {
  return quire_page_stored_by(&view->config.geometry, page, (quire_rank_id){view->config.rank});
}

/* Own pages are read in place: only what others store is gathered. */
static void fill_entries(struct quire_view *view, struct tables *tables, struct counts *counts) {
  const struct quire_view_config *c = &view->config;
  int32_t page = 0, gather = 0;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    const quire_page *table = quire_view_table(view, entry->request);
    int32_t pages = quire_geometry_pages_of(&c->geometry, entry->prefix_end);
    bool decode = entry->kind == QUIRE_ENTRY_DECODE;
    tables->entry[e] = (struct quire_view_cuda_entry){
        .prefix_end = entry->prefix_end,
        .end = entry->end,
        .fresh_first = decode ? entry->prefix_end % c->local_rows : 0,
        .fresh_capacity = decode ? c->local_rows : entry->end - entry->begin,
        .fresh_row = decode ? -1 : view->fresh_row[e],
        .request = entry->request,
        .pointer_first = page,
        .pointer_count = pages,
    };
    for (int32_t p = 0; p < pages; p++) {
      int32_t to = view->gather_page[e] >= 0 && !is_own(view, table[p]) ? gather++ : -1;
      tables->page[page++] = (struct quire_view_cuda_page){table[p].v, to};
      if (to >= 0) {
        int32_t local = quire_page_local(&c->geometry, table[p]).v, rows = quire_view_valid_rows(view, entry, p);
        int32_t owner = quire_view_reads_from(view, table[p]);
        tables->gather[to] = (struct quire_view_cuda_gather_page){local, (int16_t)owner, (int16_t)rows};
        counts->ragged |= rows < c->geometry.page_tokens;
      }
    }
  }
  counts->gathers = gather;
  QUIRE_ASSERT(page == counts->pages && gather <= counts->pages);
}

/* Fresh rows by position: the n-th of a rank's that it produces is the n-th of its block. Marks own pages. */
static void fill_places(struct quire_view *view, bool draft, struct quire_view_cuda_place *places) {
  int32_t next[QUIRE_RANKS_MAX] = {0}, n = 0;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    for (int32_t position = entry->begin; entry->kind == QUIRE_ENTRY_PREFILL && position < entry->end; position++) {
      int32_t rank = draft ? quire_step_entry_draft_producer(view->plan, entry, position)
                           : quire_step_entry_producer(view->plan, entry, position);
      places[n++] = (struct quire_view_cuda_place){
          .rank = rank,
          .row = rank < 0 ? 0 : next[rank]++,
          .local = quire_view_mark_own(view, entry, position),
          .slot = position % view->config.geometry.page_tokens,
      };
    }
  }
  QUIRE_ASSERT(n == view->fresh_rows);
}

static void fill_appends(const struct quire_view *view, const struct quire_view_rows *rows,
                         struct quire_view_cuda_append *appends) {
  QUIRE_ASSERT(rows->prefill_puts <= rows->batch.puts);
  for (int32_t i = rows->prefill_puts; i < rows->batch.puts; i++) {
    const struct quire_step_entry *entry = quire_view_entry(view, rows->entries[i]);
    appends[i - rows->prefill_puts] = (struct quire_view_cuda_append){
        .row = i, .request = entry->request, .ring = (rows->limits[i] - 1) % view->config.local_rows};
  }
}

/* The number of commits that concern pages of this rank. */
static int32_t fill_commits(struct quire_view *view, struct quire_view_cuda_commit *commits) {
  QUIRE_ASSERT(view->plan != NULL && commits != NULL);
  int32_t n = 0;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    for (int32_t position = entry->commit_begin; position < entry->commit_end; position++) {
      const struct quire_view *home = view->links.views[entry->commit_rank];
      int32_t local = quire_view_mark_own(view, entry, position);
      if (local >= 0) {
        commits[n++] = (struct quire_view_cuda_commit){
            .segment = home->local + entry->request * home->request_bytes,
            .ring = position % view->config.local_rows,
            .local = local,
            .slot = position % view->config.geometry.page_tokens,
        };
      }
    }
  }
  return n;
}

static void fill_parts(const struct quire_view *view, struct quire_view_cuda_part *parts) {
  QUIRE_ASSERT(view->links.peers != NULL);
  const struct quire_peer *self = &view->links.peers->rank[view->config.rank];
  for (int32_t i = 0; i < view->config.parts->count; i++) {
    const struct quire_part *part = &view->config.parts->part[i];
    struct quire_view_cuda_part *p = &parts[i];
    *p = (struct quire_view_cuda_part){
        .base = self->part[i].base, .page_stride = self->part[i].page_stride, .pieces = part->pieces};
    for (int32_t k = 0; k < part->pieces; k++) {
      p->segment[k] = view->part_offset[i] + (k > 0 ? (int64_t)part->piece[0].row_bytes * view->config.local_rows : 0);
      p->offset[k] = part->piece[k].offset;
      p->row_bytes[k] = part->piece[k].row_bytes;
    }
  }
}

static void set_device_batch(struct quire_view_rows *rows, const struct rows_table *table) {
  QUIRE_ASSERT(rows->batch.m == 0 || table->tokens != NULL);
  rows->device = rows->batch;
  rows->device.tokens = table->tokens;
  rows->device.positions = table->positions;
  rows->device.limits = table->limits;
  rows->device.entries = table->entries;
  rows->device.hidden = rows->batch.hidden == NULL ? NULL : table->hidden;
}

static void cuda_begin(struct quire_view *view) {
  struct quire_view_cuda *cuda = view->cuda;
  int32_t parts = view->config.parts->count;
  quire_event_sync(cuda->sent);
  cuda->counts = count_step(view);
  struct quire_carve host = {cuda->host_tables, 0}, device = {cuda->device_tables, 0};
  lay_tables(&host, &cuda->counts, parts, &cuda->host);
  lay_tables(&device, &cuda->counts, parts, &cuda->device);
  QUIRE_ASSERT(host.used <= tables_bytes_max(&view->config));
  fill_rows(&view->target, &cuda->host.rows[0]);
  fill_rows(&view->draft, &cuda->host.rows[1]);
  fill_entries(view, &cuda->host, &cuda->counts);
  cuda->counts.commits = fill_commits(view, cuda->host.commit);
  fill_places(view, false, cuda->host.place[0]);
  if (cuda->counts.places[1] > 0) {
    fill_places(view, true, cuda->host.place[1]);
  }
  fill_appends(view, &view->target, cuda->host.append[0]);
  fill_appends(view, &view->draft, cuda->host.append[1]);
  fill_parts(view, cuda->host.part);
  set_device_batch(&view->target, &cuda->device.rows[0]);
  set_device_batch(&view->draft, &cuda->device.rows[1]);
  QUIRE_ASSERT(host.used == device.used);
  quire_stream_copy(view->stream, cuda->device_tables, cuda->host_tables, host.used);
  cuda->sent = quire_stream_record(view->stream);
  quire_stream_fill(view->stream, cuda->flags, 0, (size_t)zeroed(&view->config) * sizeof(int32_t));
  struct quire_view_cuda_commits commits = {cuda->device.commit, cuda->device.part, cuda->counts.commits, parts};
  void *native = quire_stream_native(view->stream);
  if (native != NULL) {
    launched(view->stream, quire_view_cuda_commits(&commits, native));
  }
}

/* -- verbs ------------------------------------------------------------------------------------------------------ */

static struct quire_view_cuda_pages pages_of(const struct quire_view *view, int32_t part) {
  struct quire_view_cuda_pages pages = {.storage_ranks = view->config.geometry.storage_ranks, .own = view->config.rank};
  for (int32_t r = 0; r < view->config.geometry.ranks; r++) {
    const struct quire_peer_part *bound = &view->links.peers->rank[r].part[part];
    QUIRE_ASSERT(bound->base != NULL && (((uint64_t)(uintptr_t)bound->base | (uint64_t)bound->page_stride) & 15) == 0);
    pages.base[r] = bound->base;
    pages.stride[r] = bound->page_stride;
  }
  return pages;
}

static const struct quire_kv_source *cuda_sources(struct quire_view *view, int32_t flat, int32_t part) {
  QUIRE_ASSERT(flat >= 0 && part >= 0 && part < view->config.parts->count);
  const struct quire_view_config *c = &view->config;
  struct quire_view_cuda *cuda = view->cuda;
  const struct quire_part *p = &c->parts->part[part];
  int array = p->kind == QUIRE_PART_LATENT ? ARRAY_LATENT : ARRAY_KEY;
  struct quire_view_cuda_sources args = {
      .pages = pages_of(view, part),
      .entry = cuda->device.entry,
      .prefix = cuda->device.page,
      .sources_out = cuda->sources + (int64_t)p->kind * c->limits.entries_max,
      .pointers_out = cuda->pointers + (int64_t)p->kind * view->pointers_max,
      .gather = view->gather[0] != NULL ? quire_view_gather_page(view, flat, p->kind, 0) : NULL,
      .gather_bytes = p->page_bytes,
      .local = view->local,
      .request_bytes = view->request_bytes,
      .page_tokens = c->geometry.page_tokens,
      .entries = cuda->counts.entries,
      .pointers = cuda->counts.pages,
  };
  for (int32_t i = 0; i < p->pieces; i++) {
    args.fresh[i] = view->fresh + view->fresh_offset[array + i];
    args.row_bytes[i] = p->piece[i].row_bytes;
    args.ring[i] = view->part_offset[part] + (i > 0 ? (int64_t)p->piece[0].row_bytes * c->local_rows : 0);
  }
  void *native = quire_stream_native(view->stream);
  if (native != NULL) {
    launched(view->stream, quire_view_cuda_sources(&args, native));
  }
  return args.sources_out;
}

/* Fills in what a gather needs of one part. Are all addresses and sizes multiples of 16? */
static bool gather_part(const struct quire_view *view, int32_t flat, int32_t part,
                        struct quire_view_cuda_gather *args) {
  const struct quire_part *p = &view->config.parts->part[part];
  int array = p->kind == QUIRE_PART_LATENT ? ARRAY_LATENT : ARRAY_KEY;
  struct quire_view_cuda_pages pages = pages_of(view, part);
  args->target[p->kind] = quire_view_gather_page(view, flat, p->kind, 0);
  args->page_bytes[p->kind] = (uint32_t)p->page_bytes;
  uint64_t bits = (uint64_t)(uintptr_t)args->target[p->kind] | (uint64_t)p->page_bytes;
  for (int32_t r = 0; r < view->config.geometry.ranks; r++) {
    args->origin[p->kind][r] = (struct quire_view_cuda_origin){pages.base[r], pages.stride[r]};
    bits |= (uint64_t)(uintptr_t)pages.base[r] | (uint64_t)pages.stride[r];
  }
  for (int32_t i = 0; i < p->pieces; i++) {
    args->row_bytes[array + i] = p->piece[i].row_bytes;
    QUIRE_ASSERT(p->piece[i].offset + args->page_tokens * p->piece[i].row_bytes ==
                 (i + 1 < p->pieces ? p->piece[i + 1].offset : p->page_bytes));
  }
  if (array + p->pieces > ARRAY_SCALE) {
    args->scale_offset = p->piece[1].offset;
  }
  return (bits & 15) == 0;
}

static void cuda_gather(struct quire_view *view, int32_t flat) {
  QUIRE_ASSERT(flat >= 0 && view->copy_stream != NULL);
  const struct quire_parts *parts = view->config.parts;
  struct quire_view_cuda_gather args = {
      .list = view->cuda->device.gather,
      .page_tokens = parts->page_tokens,
      .count = view->cuda->counts.gathers,
      .width = GATHER_WIDTH,
      .ragged = view->cuda->counts.ragged,
      .claims = view->cuda->counts.ragged ? NULL : view->cuda->claims + flat,
  };
  int32_t layer;
  enum quire_part_model model = quire_view_flat_model(view, flat, &layer);
  for (int kind = QUIRE_PART_LATENT; kind <= QUIRE_PART_INDEX_KEY; kind++) {
    int32_t part = quire_parts_find(parts, model, (enum quire_part_kind)kind, layer);
    if (part != QUIRE_PART_NONE && !gather_part(view, flat, part, &args)) {
      args.claims = NULL;
    }
  }
  void *native = quire_stream_native(view->copy_stream);
  if (native != NULL) {
    launched(view->copy_stream, quire_view_cuda_gather(&args, native));
  }
}

/* Fills in the arrays of one part that a put writes. */
static void put_part(const struct quire_view *view, int32_t part, struct quire_view_cuda_put *args) {
  QUIRE_ASSERT(part >= 0 && part < view->config.parts->count);
  const struct quire_part *p = &view->config.parts->part[part];
  const struct quire_peer_part *own = &view->links.peers->rank[view->config.rank].part[part];
  for (int32_t i = 0; i < p->pieces; i++) {
    int array = (p->kind == QUIRE_PART_LATENT ? ARRAY_LATENT : ARRAY_KEY) + i;
    args->page[array] = own->base + p->piece[i].offset;
    args->page_stride[array] = own->page_stride;
    args->fresh[array] = view->fresh + view->fresh_offset[array];
    args->array_offset[array] = view->array_offset[array];
    args->row_bytes[array] = p->piece[i].row_bytes;
    args->ring[array] =
        view->local + view->part_offset[part] + (i > 0 ? (int64_t)p->piece[0].row_bytes * view->config.local_rows : 0);
  }
}

static void cuda_put(const struct quire_view_put_job *job) {
  struct quire_view *view = job->view;
  const struct quire_view_cuda *cuda = view->cuda;
  QUIRE_ASSERT(cuda->counts.places[job->draft] >= 0);
  struct quire_view_cuda_put args = {
      .place = cuda->device.place[job->draft],
      .append = cuda->device.append[job->draft],
      .own = job->slot,
      .request_bytes = view->request_bytes,
      .places = job->blocks == NULL ? 0 : cuda->counts.places[job->draft],
      .appends = cuda->counts.appends[job->draft],
  };
  for (int32_t r = 0; r < view->config.geometry.ranks && job->blocks != NULL; r++) {
    args.block[r] = job->blocks[r].base;
  }
  put_part(view, job->latent_part, &args);
  if (job->key_part != QUIRE_PART_NONE) {
    put_part(view, job->key_part, &args);
  }
  void *native = quire_stream_native(view->stream);
  if (native != NULL) {
    launched(view->stream, quire_view_cuda_put(&args, native));
  }
}

static enum quire_status cuda_end(struct quire_view *view, struct quire_error *error_out) {
  QUIRE_ASSERT(view->target.nonfinite != NULL && view->draft.nonfinite != NULL);
  struct quire_view_cuda *cuda = view->cuda;
  size_t bytes = 2 * (size_t)view->config.rows_max * sizeof(int32_t);
  quire_stream_copy(view->stream, cuda->flags_host, cuda->flags, bytes);
  quire_event_sync(quire_stream_record(view->stream));
  memcpy(view->target.nonfinite, cuda->flags_host, bytes / 2);
  memcpy(view->draft.nonfinite, cuda->flags_host + view->config.rows_max, bytes / 2);
  if (view->copy_stream != NULL && quire_stream_check(view->copy_stream, error_out) != QUIRE_OK) {
    return QUIRE_ERR_RANK;
  }
  return quire_stream_check(view->stream, error_out);
}

const struct quire_view_backend quire_view_cuda_backend = {
    .bytes = cuda_bytes,
    .open = cuda_open,
    .close = cuda_close,
    .begin = cuda_begin,
    .put = cuda_put,
    .gather = cuda_gather,
    .sources = cuda_sources,
    .end = cuda_end,
};
