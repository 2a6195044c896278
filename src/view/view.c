#include "view/view.h"

#include <string.h>

#include "base/assert.h"
#include "layout/split.h"
#include "view/view_internal.h"

bool quire_view_can(enum quire_view_mode mode, const struct quire_geometry *geometry, const char **why_out) {
  QUIRE_ASSERT(geometry != NULL && geometry->storage_ranks >= 1);
  const char *why = NULL;
  if (mode == QUIRE_VIEW_LOCAL && geometry->storage_ranks > 1) {
    why =
        "local reads a rank's own pages, which are not all of a shared cache; choose gather or peer, or replicated KV";
  } else if (mode != QUIRE_VIEW_LOCAL && geometry->ranks > 1 && geometry->storage_ranks == 1) {
    why = "gather and peer read other ranks' pages, and in a replicated cache each rank has all of them; choose local";
  }
  if (why != NULL && why_out != NULL) {
    *why_out = why;
  }
  return why == NULL;
}

static int64_t align64(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }

static bool on_gpu(const struct quire_view_config *config) {
  return config->device != NULL && quire_device_kind_of(config->device) == QUIRE_DEVICE_CUDA;
}

/* Bytes a row of the three arrays; every layer of a kind has the same rows. */
static void row_bytes(const struct quire_parts *parts, int32_t out[ARRAYS]) {
  QUIRE_ASSERT(parts->count > 0 && parts->count <= QUIRE_PARTS_MAX);
  memset(out, 0, sizeof(int32_t) * ARRAYS);
  for (int32_t i = 0; i < parts->count; i++) {
    const struct quire_part *part = &parts->part[i];
    if (part->kind == QUIRE_PART_LATENT) {
      out[ARRAY_LATENT] = part->piece[0].row_bytes;
    } else {
      out[ARRAY_KEY] = part->piece[0].row_bytes;
      out[ARRAY_SCALE] = part->pieces > 1 ? part->piece[1].row_bytes : 0;
    }
  }
}

static int64_t arrays_bytes(const int32_t bytes[ARRAYS], int32_t rows, int64_t offsets_out[ARRAYS]) {
  QUIRE_ASSERT(rows >= 0);
  int64_t total = 0;
  for (int i = 0; i < ARRAYS; i++) {
    offsets_out[i] = total;
    total += align64((int64_t)rows * bytes[i]);
  }
  return total;
}

static int64_t request_local_bytes(const struct quire_view_config *config) {
  QUIRE_ASSERT(config->local_rows >= 0);
  int64_t total = 0;
  for (int32_t i = 0; i < config->parts->count; i++) {
    total += align64((int64_t)config->parts->part[i].row_bytes * config->local_rows);
  }
  return total;
}

static int64_t gather_page_bytes(const struct quire_parts *parts) {
  QUIRE_ASSERT(parts->page_tokens > 0);
  int32_t bytes[ARRAYS];
  row_bytes(parts, bytes);
  return (int64_t)parts->page_tokens * (bytes[ARRAY_LATENT] + bytes[ARRAY_KEY] + bytes[ARRAY_SCALE]);
}

struct quire_kernels_cuda_shape quire_view_cuda_shape(const struct quire_view_config *config) {
  QUIRE_ASSERT(config->parts != NULL);
  return (struct quire_kernels_cuda_shape){
      .format = config->parts->format,
      .heads = config->heads,
      .index_heads = config->index_heads,
      .topk = config->topk,
      .rows = config->rows_max,
      .limit_max = config->request_pages_max * config->geometry.page_tokens,
  };
}

static int64_t select_scratch_bytes(const struct quire_view_config *config) {
  QUIRE_ASSERT(config->request_pages_max > 0 && config->geometry.page_tokens > 0);
  if (on_gpu(config)) {
    struct quire_kernels_cuda_shape shape = quire_view_cuda_shape(config);
    return align64(quire_cuda_select_scratch(config->device, &shape));
  }
  int32_t limit_max = config->request_pages_max * config->geometry.page_tokens;
  return align64(quire_select_scratch_bytes(config->index_heads, config->topk, limit_max, config->threads));
}

static int64_t attend_scratch_bytes(const struct quire_view_config *config) {
  QUIRE_ASSERT(config->rows_max > 0);
  if (on_gpu(config)) {
    struct quire_kernels_cuda_shape shape = quire_view_cuda_shape(config);
    return align64(quire_cuda_attend_scratch(&shape));
  }
  return align64(quire_attend_scratch_bytes(config->heads, config->topk, config->threads));
}

struct quire_view_memory quire_view_bytes(const struct quire_view_config *config) {
  QUIRE_ASSERT(config->rows_max > 0 && config->fresh_max >= 0 && config->requests_max > 0);
  int32_t bytes[ARRAYS];
  int64_t offsets[ARRAYS];
  row_bytes(config->parts, bytes);
  struct quire_view_memory memory = {0};
  if (config->geometry.ranks > 1) {
    memory.exchange = 2 * arrays_bytes(bytes, config->rows_max, offsets);
  } else {
    memory.exchange = arrays_bytes(bytes, config->rows_max, offsets);
  }
  memory.exchange += arrays_bytes(bytes, config->fresh_max, offsets);
  memory.local = request_local_bytes(config) * config->requests_max;
  if (config->mode == QUIRE_VIEW_GATHER) {
    memory.gather = 2 * align64(gather_page_bytes(config->parts) * config->gather_pages_max);
  }
  memory.scratch = align64((int64_t)config->rows_max * config->topk * (int64_t)sizeof(int32_t)) +
                   align64((int64_t)config->rows_max * (int64_t)sizeof(int32_t)) + select_scratch_bytes(config) +
                   attend_scratch_bytes(config);
  memory.tables = on_gpu(config) ? quire_view_cuda_backend.bytes(config) : quire_view_cpu_backend.bytes(config);
  return memory;
}

/* Cuts the device memory into its regions. */
static void carve(struct quire_view *view, const struct quire_view_memory *memory) {
  const struct quire_view_config *config = &view->config;
  uint8_t *at = quire_memory_base(view->memory);
  int64_t slot = arrays_bytes(view->row_bytes, config->rows_max, view->array_offset);
  int64_t fresh = arrays_bytes(view->row_bytes, config->fresh_max, view->fresh_offset);
  view->exchange[0] = at;
  view->exchange[1] = config->geometry.ranks > 1 ? at + slot : at;
  at += config->geometry.ranks > 1 ? 2 * slot : slot;
  view->fresh = at;
  at += fresh;
  QUIRE_ASSERT(at == (uint8_t *)quire_memory_base(view->memory) + memory->exchange);
  view->local = at;
  at += memory->local;
  view->gather[0] = memory->gather > 0 ? at : NULL;
  view->gather[1] = memory->gather > 0 ? at + memory->gather / 2 : NULL;
  at += memory->gather;
  view->indices = (int32_t *)at;
  at += align64((int64_t)config->rows_max * config->topk * (int64_t)sizeof(int32_t));
  view->counts = (int32_t *)at;
  at += align64((int64_t)config->rows_max * (int64_t)sizeof(int32_t));
  view->select_scratch = at;
  at += select_scratch_bytes(config);
  view->attend_scratch = at;
}

/* The host-side tables, one allocation each; the order of the list is the order of release. */
struct table {
  void **pointer;
  size_t count, size;
};

#define VIEW_TABLES 19

static void list_tables(struct quire_view *view, struct table tables[VIEW_TABLES]) {
  const struct quire_view_config *c = &view->config;
  size_t rows = (size_t)c->rows_max;
  struct table list[VIEW_TABLES] = {
      {(void **)&view->part_offset, (size_t)c->parts->count, sizeof(int64_t)},
      {(void **)&view->tables, (size_t)c->requests_max * (size_t)c->request_pages_max, sizeof(quire_page)},
      {(void **)&view->fresh_row, (size_t)c->limits.entries_max, sizeof(int32_t)},
      {(void **)&view->gather_page, (size_t)c->limits.entries_max, sizeof(int32_t)},
      {(void **)&view->pointers, 2 * (size_t)view->pointers_max, sizeof(uint8_t *)},
      {(void **)&view->sources, (size_t)c->limits.entries_max * 2, sizeof(struct quire_kv_source)},
  };
  list[6] = (struct table){(void **)&view->hashes, (size_t)quire_view_debug_hashes(c), sizeof(uint64_t)};
  size_t n = 7;
  struct quire_view_rows *both[2] = {&view->target, &view->draft};
  for (int i = 0; i < 2; i++) {
    int32_t **arrays[] = {&both[i]->tokens,  &both[i]->positions, &both[i]->limits,
                          &both[i]->entries, &both[i]->hidden,    &both[i]->nonfinite};
    for (size_t a = 0; a < sizeof arrays / sizeof arrays[0]; a++) {
      list[n++] = (struct table){(void **)arrays[a], rows, sizeof(int32_t)};
    }
  }
  QUIRE_ASSERT(n == VIEW_TABLES);
  memcpy(tables, list, sizeof list);
}

static bool create_tables(struct quire_view *view) {
  struct table tables[VIEW_TABLES];
  list_tables(view, tables);
  for (int i = 0; i < VIEW_TABLES; i++) {
    if (tables[i].count == 0) {
      continue;
    }
    *tables[i].pointer = quire_env_zalloc(view->env, tables[i].count, tables[i].size);
    if (*tables[i].pointer == NULL) {
      return false;
    }
  }
  int64_t offset = 0;
  for (int32_t i = 0; i < view->config.parts->count; i++) {
    view->part_offset[i] = offset;
    offset += align64((int64_t)view->config.parts->part[i].row_bytes * view->config.local_rows);
  }
  view->request_bytes = offset;
  QUIRE_ASSERT(offset > 0);
  return true;
}

/* -- the CPU's backend: tables are where they are built, and what is enqueued has run ---------------------------- */

static enum quire_status cpu_open(struct quire_view *view, struct quire_error *error_out) {
  QUIRE_ASSERT(view->target.nonfinite != NULL && view->draft.nonfinite != NULL);
  (void)error_out;
  view->target.flags = view->target.nonfinite;
  view->draft.flags = view->draft.nonfinite;
  return QUIRE_OK;
}

static int64_t cpu_bytes(const struct quire_view_config *config) {
  QUIRE_ASSERT(config != NULL);
  return 0;
}

static void cpu_close(struct quire_view *view) { QUIRE_ASSERT(view->cuda == NULL); }

static void cpu_begin(struct quire_view *view) {
  QUIRE_ASSERT(view->plan != NULL && view->links.peers != NULL);
  quire_view_pull_commits(view);
  view->target.device = view->target.batch;
  view->draft.device = view->draft.batch;
  memset(view->target.nonfinite, 0, (size_t)view->target.batch.m * sizeof(int32_t));
  memset(view->draft.nonfinite, 0, (size_t)view->draft.batch.m * sizeof(int32_t));
}

static enum quire_status cpu_end(struct quire_view *view, struct quire_error *error_out) {
  return quire_stream_check(view->stream, error_out);
}

const struct quire_view_backend quire_view_cpu_backend = {
    .bytes = cpu_bytes,
    .open = cpu_open,
    .close = cpu_close,
    .begin = cpu_begin,
    .put = quire_view_place_rows,
    .gather = quire_view_gather_rows,
    .sources = quire_view_build_sources,
    .end = cpu_end,
};

/* What a GPU does not do; NULL: nothing that is asked for. */
static const char *gpu_fault(const struct quire_view_config *c) {
  QUIRE_ASSERT(on_gpu(c));
  const char *why = NULL;
  struct quire_kernels_cuda_shape shape = quire_view_cuda_shape(c);
  if (c->debug || c->fault != QUIRE_VIEW_FAULT_NONE) {
    return "--debug-shared-kv and --debug-fault work on the CPU only, and this rank is a GPU";
  }
  if (c->mode == QUIRE_VIEW_GATHER && c->geometry.page_tokens % 4 != 0) {
    return "gather on a GPU lays pages side by side at multiples of 16 bytes: they need a multiple of 4 tokens";
  }
  (void)quire_kernels_cuda_can(&shape, &why);
  return why;
}

/* Numbers that no view is made of; NULL: none of these is. */
static const char *config_fault(const struct quire_view_config *c) {
  QUIRE_ASSERT(c != NULL);
  const char *why = NULL;
  if (!quire_geometry_valid(&c->geometry) || c->rank < 0 || c->rank >= c->geometry.ranks) {
    why = "the geometry is none, or the rank none of its";
  } else if (!quire_view_can(c->mode, &c->geometry, &why)) {
    return why;
  } else if (c->rows_max < 1 || c->fresh_max < 0 || c->requests_max < 1 || c->local_rows < 2 ||
             c->gather_pages_max < 0) {
    why = "rows and requests of a step, and 2 rows of the local segment, are the least";
  } else if (c->request_pages_max < 1 || c->request_pages_max > INT32_MAX / c->geometry.page_tokens ||
             c->limits.entries_max < 1 || c->limits.entries_max > INT32_MAX / 2 / c->request_pages_max) {
    why = "a request's positions and the pages of all entries are 1 to 2^31";
  } else if (c->heads < 1 || c->index_heads < 1 || c->topk < 1 || c->topk > QUIRE_TOPK_MAX) {
    why = "heads are one at least, and the top-k is 1 to 2,048";
  } else if (on_gpu(c)) {
    why = gpu_fault(c);
  }
  return why;
}

static enum quire_status create_memory(struct quire_view *view, size_t bytes, struct quire_error *error_out) {
  QUIRE_ASSERT(view->memory == NULL && bytes > 0);
  const struct quire_view_config *config = &view->config;
  view->backend = on_gpu(config) ? &quire_view_cuda_backend : &quire_view_cpu_backend;
  return config->device == NULL ? quire_memory_create(view->env, bytes, &view->memory, error_out)
                                : quire_device_memory(config->device, bytes, &view->memory, error_out);
}

enum quire_status quire_view_create(const struct quire_env *env, const struct quire_view_config *config,
                                    const struct quire_view_links *links, struct quire_view **view_out,
                                    struct quire_error *error_out) {
  const char *refusal = config_fault(config);
  if (refusal != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "view", "%s", refusal);
  }
  struct quire_view *view = quire_env_zalloc(env, 1, sizeof *view);
  if (view == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "view", "no memory for the view of rank %d", config->rank);
  }
  view->env = env;
  view->config = *config;
  view->links = *links;
  view->fault_page = (quire_page){QUIRE_PAGE_NONE};
  view->pointers_max = config->limits.entries_max * config->request_pages_max;
  row_bytes(config->parts, view->row_bytes);
  struct quire_view_memory memory = quire_view_bytes(config);
  size_t total = (size_t)(memory.exchange + memory.local + memory.gather + memory.scratch);
  enum quire_status status = create_memory(view, total, error_out);
  if (status == QUIRE_OK && !create_tables(view)) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "view", "no memory for the tables of rank %d", config->rank);
  }
  if (status != QUIRE_OK) {
    quire_view_destroy(view);
    return status;
  }
  carve(view, &memory);
  status = view->backend->open(view, error_out);
  if (status != QUIRE_OK) {
    quire_view_destroy(view);
    return status;
  }
  *view_out = view;
  return QUIRE_OK;
}

void quire_view_destroy(struct quire_view *view) {
  if (view == NULL) {
    return;
  }
  struct table tables[VIEW_TABLES];
  QUIRE_ASSERT(view->env != NULL);
  if (view->backend != NULL) {
    view->backend->close(view);
  }
  list_tables(view, tables);
  for (int i = 0; i < VIEW_TABLES; i++) {
    quire_env_free(view->env, *tables[i].pointer, tables[i].count, tables[i].size);
  }
  quire_memory_destroy(view->memory);
  quire_env_free(view->env, view, 1, sizeof *view);
}

void quire_view_start(struct quire_view *view, struct quire_stream *stream, struct quire_stream *copy_stream) {
  QUIRE_ASSERT(stream != NULL && quire_stream_is_inline(stream) == !on_gpu(&view->config));
  QUIRE_ASSERT((view->config.mode != QUIRE_VIEW_GATHER || copy_stream != NULL));
  view->stream = stream;
  view->copy_stream = copy_stream;
}

uint8_t *quire_view_local_row(const struct quire_view *view, int32_t request, int32_t part, int32_t piece,
                              int32_t row) {
  QUIRE_DEBUG(request >= 0 && request < view->config.requests_max);
  const struct quire_part *p = &view->config.parts->part[part];
  uint8_t *base = view->local + (int64_t)request * view->request_bytes + view->part_offset[part];
  if (piece > 0) {
    base += (int64_t)p->piece[0].row_bytes * view->config.local_rows;
  }
  return base + (int64_t)row * p->piece[piece].row_bytes;
}

/* False: the batch has no room for it. */
static bool add_row(struct quire_view *view, struct quire_view_rows *rows, int32_t entry, int32_t position,
                    int32_t token) {
  int32_t i = rows->batch.m;
  QUIRE_ASSERT(i >= 0 && i <= view->config.rows_max);
  if (i == view->config.rows_max) {
    return false;
  }
  rows->batch.m++;
  rows->batch.sources += i == 0 || rows->entries[i - 1] != entry;
  rows->entries[i] = entry;
  rows->positions[i] = position;
  rows->limits[i] = position + 1;
  rows->tokens[i] = token;
  if (position + 1 > rows->batch.limit_max) {
    rows->batch.limit_max = position + 1;
  }
  return true;
}

static void close_batch(struct quire_view_rows *rows, bool draft) {
  QUIRE_ASSERT(rows->prefill_puts <= rows->batch.puts && rows->batch.puts <= rows->batch.m);
  rows->batch.tokens = rows->tokens;
  rows->batch.positions = rows->positions;
  rows->batch.limits = rows->limits;
  rows->batch.entries = rows->entries;
  rows->batch.hidden = draft ? rows->hidden : NULL;
}

static int32_t plan_token(const struct quire_view *view, int32_t entry, int32_t position) {
  return quire_step_entry_token(view->plan, &view->config.limits, quire_view_entry(view, entry), position);
}

/* Target rows of one kind of entry that this rank computes. False: too many. */
static bool add_target_rows(struct quire_view *view, enum quire_entry_kind kind) {
  QUIRE_ASSERT(view->plan != NULL);
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    if (entry->kind != (int32_t)kind) {
      continue;
    }
    for (int32_t position = entry->begin; position < entry->end; position++) {
      if (quire_step_entry_producer(view->plan, entry, position) == view->config.rank &&
          !add_row(view, &view->target, e, position, plan_token(view, e, position))) {
        return false;
      }
    }
  }
  return true;
}

static bool build_target(struct quire_view *view) {
  struct quire_view_rows *rows = &view->target;
  memset(&rows->batch, 0, sizeof rows->batch);
  bool fits = add_target_rows(view, QUIRE_ENTRY_PREFILL);
  rows->prefill_puts = rows->batch.m;
  fits = fits && add_target_rows(view, QUIRE_ENTRY_DECODE);
  rows->batch.puts = rows->batch.m;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    if (entry->recompute_rank == view->config.rank && entry->begin > 0 && entry->end > entry->begin) {
      fits = fits && add_row(view, rows, e, entry->begin - 1, plan_token(view, e, entry->begin - 1));
    }
  }
  close_batch(rows, false);
  QUIRE_ASSERT(rows->prefill_puts <= rows->batch.puts && rows->batch.puts <= rows->batch.m);
  return fits;
}

/* Row of the target batch that holds a position of an entry; the hidden state of a draft row comes from there. */
static int32_t target_row(const struct quire_view *view, int32_t e, int32_t position, int32_t from) {
  const struct quire_view_rows *rows = &view->target;
  for (int32_t k = 0; k < rows->batch.m; k++) {
    int32_t i = from + k < rows->batch.m ? from + k : from + k - rows->batch.m;
    if (rows->entries[i] == e && rows->positions[i] == position) {
      return i;
    }
  }
  QUIRE_ASSERT(!"a draft row without its hidden state");
  return -1;
}

/* Draft rows: slot s takes the hidden state of position s - 1 and token s, with RoPE position s - 1.
 * False: too many. */
static bool add_draft_rows(struct quire_view *view, enum quire_entry_kind kind) {
  QUIRE_ASSERT(view->config.parts->draft_layers > 0);
  struct quire_view_rows *rows = &view->draft;
  int32_t from = 0;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    if (entry->kind != (int32_t)kind) {
      continue;
    }
    for (int32_t slot = entry->begin; slot < entry->end; slot++) {
      if (quire_step_entry_draft_producer(view->plan, entry, slot) != view->config.rank) {
        continue;
      }
      int32_t i = rows->batch.m;
      if (!add_row(view, rows, e, slot, plan_token(view, e, slot))) {
        return false;
      }
      rows->positions[i] = slot - 1;
      if (slot == entry->begin && entry->carry_rank >= 0) {
        rows->hidden[i] = -entry->request - 1;
      } else {
        rows->hidden[i] = target_row(view, e, slot - 1, from);
        from = rows->hidden[i];
      }
    }
  }
  return true;
}

static bool build_draft(struct quire_view *view) {
  struct quire_view_rows *rows = &view->draft;
  bool fits = true;
  memset(&rows->batch, 0, sizeof rows->batch);
  rows->prefill_puts = 0;
  if (view->config.parts->draft_layers > 0) {
    fits = add_draft_rows(view, QUIRE_ENTRY_PREFILL);
    rows->prefill_puts = rows->batch.m;
    fits = fits && add_draft_rows(view, QUIRE_ENTRY_DECODE);
  }
  rows->batch.puts = rows->batch.m;
  close_batch(rows, true);
  QUIRE_ASSERT(rows->prefill_puts <= rows->batch.puts && rows->batch.puts == rows->batch.m);
  return fits;
}

/* What the plan's own check cannot know: the bounds of this worker. */
static const char *entry_fault(const struct quire_view *view, const struct quire_step_entry *entry) {
  QUIRE_ASSERT(view->plan != NULL);
  const struct quire_view_config *c = &view->config;
  const quire_page *pages = quire_step_plan_pages(view->plan, &c->limits);
  if (entry->request >= c->requests_max || entry->append_begin + entry->append_count > c->request_pages_max ||
      entry->end > c->request_pages_max * c->geometry.page_tokens) {
    return "an entry's request or pages are beyond this worker";
  }
  for (int32_t i = 0; i < entry->append_count; i++) {
    if (pages[entry->append_first + i].v < 0 || pages[entry->append_first + i].v >= c->geometry.pages) {
      return "an appended page is none of the worker's";
    }
  }
  if (entry->end - entry->prefix_end > c->local_rows && entry->kind == QUIRE_ENTRY_DECODE) {
    return "a decode entry has more rows than the local segment";
  }
  if (entry->commit_end - entry->commit_begin > c->local_rows) {
    return "a commit has more rows than the local segment";
  }
  bool drafts = c->parts->draft_layers > 0 && entry->begin > 0 && entry->end > entry->begin;
  if (drafts && entry->carry_rank < 0 && entry->recompute_rank < 0) {
    return "nobody has the hidden state that the first draft row needs";
  }
  return NULL;
}

static const char *plan_fault(const struct quire_view *view) {
  QUIRE_ASSERT(view->plan != NULL);
  const char *why = NULL;
  int64_t fresh = 0, prefix_pages = 0;
  for (int32_t e = 0; why == NULL && e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    why = entry_fault(view, entry);
    if (entry->kind == QUIRE_ENTRY_PREFILL) {
      fresh += entry->end - entry->begin;
      prefix_pages += quire_geometry_pages_of(&view->config.geometry, entry->prefix_end);
    }
  }
  if (why == NULL && view->config.mode == QUIRE_VIEW_GATHER && prefix_pages > view->config.gather_pages_max) {
    why = "the prefixes of prefill have more pages than gather has scratch for";
  }
  if (why == NULL && (fresh > view->config.fresh_max || view->plan->ranks != view->config.geometry.ranks ||
                      view->plan->epoch <= view->fenced)) {
    why = "more rows than this worker computes in a step, other ranks, or an epoch that has passed";
  }
  return why;
}

/* Page-table appends, places in the fresh segment and in the gather scratch. */
static void place_entries(struct quire_view *view) {
  const quire_page *pages = quire_step_plan_pages(view->plan, &view->config.limits);
  int32_t fresh = 0, gather = 0;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    quire_page *table = quire_view_table(view, entry->request);
    for (int32_t i = 0; i < entry->append_count; i++) {
      table[entry->append_begin + i] = pages[entry->append_first + i];
    }
    view->fresh_row[e] = -1;
    view->gather_page[e] = -1;
    if (entry->kind == QUIRE_ENTRY_PREFILL) {
      view->fresh_row[e] = fresh;
      fresh += entry->end - entry->begin;
      if (view->config.mode == QUIRE_VIEW_GATHER) {
        view->gather_page[e] = gather;
        gather += quire_geometry_pages_of(&view->config.geometry, entry->prefix_end);
      }
    }
  }
  view->fresh_rows = fresh;
  QUIRE_ASSERT(fresh <= view->config.fresh_max && gather <= view->config.gather_pages_max);
}

int32_t quire_view_reads_from(const struct quire_view *view, quire_page page) {
  const struct quire_geometry *g = &view->config.geometry;
  QUIRE_ASSERT(page.v >= 0 && page.v < g->pages);
  bool own = quire_page_stored_by(g, page, (quire_rank_id){view->config.rank});
  return own ? view->config.rank : quire_page_sender(g, page).v;
}

/* A mark is of a page in all its parts: a step writes all layers of a row. So the first read of a row without a fence
 * behind it is that of the first target layer: its index keys, or its latents where it has none. */
static enum quire_status refuse_unfenced(const struct quire_view *view, const struct quire_step_entry *entry,
                                         int32_t request_page, int64_t mark, struct quire_error *error_out) {
  quire_page page = quire_view_table(view, entry->request)[request_page];
  int32_t part = quire_parts_find(view->config.parts, QUIRE_PART_TARGET, QUIRE_PART_INDEX_KEY, 0);
  if (part == QUIRE_PART_NONE) {
    part = quire_parts_find(view->config.parts, QUIRE_PART_TARGET, QUIRE_PART_LATENT, 0);
  }
  QUIRE_ASSERT(part != QUIRE_PART_NONE && quire_view_valid_rows(view, entry, request_page) > 0);
  char where[QUIRE_VIEW_WHERE_BYTES];
  quire_view_where(view, part, page, mark < 0 ? 0 : (int32_t)(mark & ((1 << QUIRE_WRITTEN_ROW_BITS) - 1)), where);
  return quire_error_set(error_out, QUIRE_ERR_RANK, "view",
                         "a row that is to be read was written in epoch %lld without a fence behind it (the last was "
                         "that of epoch %llu): %s (request %d, request page %d)",
                         (long long)(mark < 0 ? mark : mark >> QUIRE_WRITTEN_ROW_BITS),
                         (unsigned long long)view->fenced, where, entry->request, request_page);
}

/* Every prefix row must have been written before a fence that is behind us. */
static enum quire_status check_marks(const struct quire_view *view, struct quire_error *error_out) {
  QUIRE_ASSERT(view->fenced < view->plan->epoch);
  const struct quire_geometry *g = &view->config.geometry;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    const quire_page *table = quire_view_table(view, entry->request);
    for (int32_t p = 0; p * g->page_tokens < entry->prefix_end; p++) {
      int32_t rows = quire_view_valid_rows(view, entry, p);
      const struct quire_peer *owner = &view->links.peers->rank[quire_view_reads_from(view, table[p])];
      int32_t local = quire_page_local(g, table[p]).v;
      QUIRE_ASSERT(local < owner->pages);
      int64_t mark = __atomic_load_n(&owner->written[local], __ATOMIC_ACQUIRE);
      int64_t written = mark >> QUIRE_WRITTEN_ROW_BITS;
      bool unfenced = written > (int64_t)view->fenced && written != (int64_t)view->plan->epoch;
      if (unfenced || !quire_written_readable(&mark, (int64_t)view->plan->epoch, rows)) {
        return refuse_unfenced(view, entry, p, mark, error_out);
      }
    }
  }
  return QUIRE_OK;
}

enum quire_status quire_view_begin(struct quire_view *view, const struct quire_step_plan *plan,
                                   struct quire_error *error_out) {
  QUIRE_ASSERT(view != NULL && plan != NULL);
  const char *why = NULL;
  if (!quire_step_plan_check(plan, &view->config.limits, &why)) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "step plan", "%s", why);
  }
  view->plan = plan;
  why = plan_fault(view);
  if (why != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "step plan", "%s", why);
  }
  place_entries(view);
  quire_view_debug_watch(view);
  enum quire_status status = check_marks(view, error_out);
  if (status == QUIRE_OK) {
    status = quire_view_debug_begin(view, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  if (!build_target(view) || !build_draft(view)) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "step plan",
                           "more rows of rank %d than its view has room for, %d", view->config.rank,
                           view->config.rows_max);
  }
  view->backend->begin(view);
  quire_view_gather(view, 0);
  return QUIRE_OK;
}

const struct quire_view_batch *quire_view_target_batch(const struct quire_view *view) { return &view->target.batch; }

const struct quire_view_batch *quire_view_draft_batch(const struct quire_view *view) { return &view->draft.batch; }

const struct quire_view_batch *quire_view_device_batch(const struct quire_view *view, enum quire_part_model model) {
  return model == QUIRE_PART_TARGET ? &view->target.device : &view->draft.device;
}

const int32_t *quire_view_indices(const struct quire_view *view) { return view->indices; }

const int32_t *quire_view_counts(const struct quire_view *view) { return view->counts; }

const int32_t *quire_view_nonfinite(const struct quire_view *view, enum quire_part_model model) {
  return model == QUIRE_PART_TARGET ? view->target.nonfinite : view->draft.nonfinite;
}

static void end_copies(struct quire_view *view) {
  if (view->copy_stream != NULL) {
    quire_event_sync(quire_stream_record(view->copy_stream));
  }
}

void quire_view_quiesce(struct quire_view *view) {
  QUIRE_ASSERT(view->stream != NULL);
  end_copies(view);
  quire_event_sync(quire_stream_record(view->stream));
}

enum quire_status quire_view_fence(struct quire_view *view, struct quire_error *error_out) {
  QUIRE_ASSERT(view->plan != NULL && view->links.collective != NULL);
  end_copies(view);
  enum quire_status status = quire_view_debug_end(view, error_out);
  quire_view_debug_foreign_write(view);
  if (status == QUIRE_OK && quire_view_debug_faulty(view, QUIRE_VIEW_FAULT_SKIP_FENCE)) {
    view->fault |= QUIRE_STEP_FAULT_PLACED;
    return QUIRE_OK;
  }
  if (status != QUIRE_OK) {
    return status;
  }
  status = quire_collective_fence(view->links.collective, view->config.rank);
  if (status != QUIRE_OK) {
    return quire_error_set(error_out, status, "fence", "another rank gave up the step");
  }
  view->fenced = view->plan->epoch;
  return view->backend->end(view, error_out);
}
