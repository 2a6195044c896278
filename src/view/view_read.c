/* The reading half of a view: where each row of the prefix lies, the gather that brings it near one layer ahead, and
 * the two verbs that read.
 *
 * Gather scratch of one layer (two of them, by the layer's parity):
 *
 *   | latent pages [gather_pages_max] | index key pages [gather_pages_max] |      same page layout as the owners' */
#include <string.h>

#include "base/assert.h"
#include "view/view_internal.h"

const uint8_t *quire_view_page(const struct quire_view *view, int32_t part, quire_page page) {
  const struct quire_peer *owner = &view->links.peers->rank[quire_view_reads_from(view, page)];
  const uint8_t *base = quire_peer_page(owner, part, quire_page_local(&view->config.geometry, page).v);
  QUIRE_ASSERT(base != NULL);
  return base;
}

static bool plan_runs_draft(const struct quire_view *view) {
  QUIRE_ASSERT(view->plan != NULL);
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    if ((quire_view_entry(view, e)->flags & QUIRE_ENTRY_DRAFT_FULL) != 0) {
      return true;
    }
  }
  return false;
}

enum quire_part_model quire_view_flat_model(const struct quire_view *view, int32_t flat, int32_t *layer_out) {
  int32_t targets = view->config.parts->target_layers;
  *layer_out = flat < targets ? flat : flat - targets;
  QUIRE_ASSERT(*layer_out >= 0);
  return flat < targets ? QUIRE_PART_TARGET : QUIRE_PART_DRAFT;
}

static int32_t flat_layer(const struct quire_view *view, enum quire_part_model model, int32_t layer) {
  return model == QUIRE_PART_TARGET ? layer : view->config.parts->target_layers + layer;
}

uint8_t *quire_view_gather_page(const struct quire_view *view, int32_t flat, enum quire_part_kind kind, int32_t index) {
  QUIRE_ASSERT(flat >= 0 && index >= 0 && index < view->config.gather_pages_max);
  const struct quire_view_config *c = &view->config;
  int64_t latent = (int64_t)c->parts->page_tokens * view->row_bytes[ARRAY_LATENT];
  int64_t key = (int64_t)c->parts->page_tokens * (view->row_bytes[ARRAY_KEY] + view->row_bytes[ARRAY_SCALE]);
  uint8_t *base = view->gather[flat & 1];
  return kind == QUIRE_PART_LATENT ? base + index * latent : base + c->gather_pages_max * latent + index * key;
}

struct gather_job {
  struct quire_view *view;
  int32_t flat;
};

/* Bytes of a part's prefix from which its copy goes past the caches. */
#define GATHER_PAST_CACHES_BYTES ((int64_t)8 << 20)

/* Copies the first rows of a page that is not full. */
static void gather_rows(const struct quire_part *part, const uint8_t *from, uint8_t *to, int32_t rows) {
  QUIRE_ASSERT(from != NULL && to != NULL && rows >= 0);
  for (int32_t i = 0; i < part->pieces; i++) {
    const struct quire_piece *piece = &part->piece[i];
    memcpy(to + piece->offset, from + piece->offset, (size_t)rows * (size_t)piece->row_bytes);
  }
}

/* Copies the prefix of one entry: a part of its pages. */
static void gather_entry(const struct gather_job *job, const struct quire_step_entry *entry, int32_t part_index,
                         int32_t first) {
  const struct quire_view *view = job->view;
  const struct quire_part *part = &view->config.parts->part[part_index];
  const quire_page *table = quire_view_table(view, entry->request);
  int32_t full = entry->prefix_end / view->config.geometry.page_tokens;
  int32_t rest = entry->prefix_end % view->config.geometry.page_tokens;
  bool far = (int64_t)entry->prefix_end * part->row_bytes >= GATHER_PAST_CACHES_BYTES;
  QUIRE_ASSERT(first >= 0);
  for (int32_t p = 0; p < full; p++) {
    const uint8_t *from = quire_view_page(view, part_index, table[p]);
    uint8_t *to = quire_view_gather_page(view, job->flat, part->kind, first + p);
    if (far) {
      const uint8_t *next = p + 1 < full ? quire_view_page(view, part_index, table[p + 1]) : NULL;
      quire_copy_past_caches(to, from, (size_t)part->page_bytes, next);
    } else {
      memcpy(to, from, (size_t)part->page_bytes);
    }
  }
  if (rest > 0) {
    gather_rows(part, quire_view_page(view, part_index, table[full]),
                quire_view_gather_page(view, job->flat, part->kind, first + full), rest);
  }
}

static void gather_run(void *args, struct quire_team *team) {
  (void)team;
  const struct gather_job *job = args;
  const struct quire_view *view = job->view;
  QUIRE_ASSERT(job->flat >= 0 && view->plan != NULL);
  int32_t layer;
  enum quire_part_model model = quire_view_flat_model(view, job->flat, &layer);
  uint64_t begin = quire_trace_begin(view->config.trace);
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    if (view->gather_page[e] < 0) {
      continue;
    }
    for (int kind = QUIRE_PART_LATENT; kind <= QUIRE_PART_INDEX_KEY; kind++) {
      int32_t part = quire_parts_find(view->config.parts, model, (enum quire_part_kind)kind, layer);
      if (part != QUIRE_PART_NONE) {
        gather_entry(job, quire_view_entry(view, e), part, view->gather_page[e]);
      }
    }
  }
  quire_trace_end(view->config.trace, begin,
                  (struct quire_trace_span){QUIRE_TRACE_GATHER, view->config.rank, job->flat});
}

void quire_view_gather_rows(struct quire_view *view, int32_t flat) {
  struct gather_job job = {view, flat};
  QUIRE_ASSERT(view->copy_stream != NULL);
  quire_stream_launch(view->copy_stream, gather_run, &job, sizeof job);
}

void quire_view_gather(struct quire_view *view, int32_t flat) {
  QUIRE_ASSERT(flat >= 0 && view->plan != NULL);
  if (view->config.mode != QUIRE_VIEW_GATHER) {
    return;
  }
  int32_t layers = view->config.parts->target_layers;
  layers += plan_runs_draft(view) ? view->config.parts->draft_layers : 0;
  if (flat >= layers || view->fresh_rows == 0) {
    return;
  }
  /* The scratch of this parity was read by the layer before the last; its attend is behind this point. */
  quire_stream_wait(view->copy_stream, quire_stream_record(view->stream));
  view->backend->gather(view, flat);
  view->gathered[flat & 1] = quire_stream_record(view->copy_stream);
}

/* Fills in the fresh segment of an entry's source. */
static void fresh_source(const struct quire_view *view, int32_t e, int32_t part, struct quire_kv_source *source) {
  QUIRE_ASSERT(part >= 0 && part < view->config.parts->count);
  const struct quire_step_entry *entry = quire_view_entry(view, e);
  const struct quire_part *p = &view->config.parts->part[part];
  source->end = entry->end;
  if (entry->kind == QUIRE_ENTRY_DECODE) {
    source->fresh_first = entry->prefix_end % view->config.local_rows;
    source->fresh_capacity = view->config.local_rows;
    for (int32_t i = 0; i < p->pieces; i++) {
      source->fresh[i] = quire_view_local_row(view, entry->request, part, i, 0);
    }
    return;
  }
  int array = p->kind == QUIRE_PART_LATENT ? ARRAY_LATENT : ARRAY_KEY;
  source->fresh_first = 0;
  source->fresh_capacity = entry->end - entry->begin;
  for (int32_t i = 0; i < p->pieces; i++) {
    source->fresh[i] =
        view->fresh + view->fresh_offset[array + i] + (int64_t)view->fresh_row[e] * view->row_bytes[array + i];
  }
}

/* Sources of all entries for one part; addresses of prefix pages go to the kind's half of the pointer table. */
const struct quire_kv_source *quire_view_build_sources(struct quire_view *view, int32_t flat, int32_t part) {
  const struct quire_parts *parts = view->config.parts;
  enum quire_part_kind kind = parts->part[part].kind;
  int32_t page_tokens = view->config.geometry.page_tokens;
  struct quire_kv_source *sources = view->sources + (int64_t)kind * view->config.limits.entries_max;
  const uint8_t **pointers = view->pointers + (int64_t)kind * view->pointers_max;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    const quire_page *table = quire_view_table(view, entry->request);
    int32_t pages = quire_geometry_pages_of(&view->config.geometry, entry->prefix_end);
    for (int32_t p = 0; p < pages; p++) {
      pointers[p] = view->gather_page[e] >= 0 ? quire_view_gather_page(view, flat, kind, view->gather_page[e] + p)
                                              : quire_view_page(view, part, table[p]);
    }
    quire_view_debug_swap(view, pointers, pages);
    memset(&sources[e], 0, sizeof sources[e]);
    sources[e].pages = pointers;
    sources[e].page_tokens = page_tokens;
    sources[e].prefix_end = entry->prefix_end;
    fresh_source(view, e, part, &sources[e]);
    pointers += pages;
  }
  QUIRE_ASSERT(pointers <= view->pointers + ((int64_t)kind + 1) * view->pointers_max);
  quire_view_debug_sources(view, part, sources);
  return sources;
}

static struct quire_rows batch_rows(struct quire_view *view, enum quire_part_model model, int32_t flat, int32_t part) {
  QUIRE_ASSERT(flat >= 0 && part >= 0);
  struct quire_view_rows *rows = model == QUIRE_PART_TARGET ? &view->target : &view->draft;
  if (view->config.mode == QUIRE_VIEW_GATHER && view->fresh_rows > 0) {
    uint64_t begin = quire_trace_begin(view->config.trace);
    quire_stream_wait(view->stream, view->gathered[flat & 1]);
    quire_trace_end(view->config.trace, begin, (struct quire_trace_span){QUIRE_TRACE_WAIT, view->config.rank, flat});
  }
  const struct quire_kv_source *sources = view->backend->sources(view, flat, part);
  struct quire_rows batch = {
      .sources = sources,
      .source_of = rows->device.entries,
      .limit = rows->device.limits,
      .m = rows->batch.m,
      .first = model == QUIRE_PART_DRAFT ? 1 : 0,
  };
  return batch;
}

void quire_view_select(struct quire_view *view, enum quire_part_model model, int32_t layer, const float *q,
                       const float *w) {
  const struct quire_parts *parts = view->config.parts;
  int32_t part = quire_parts_find(parts, model, QUIRE_PART_INDEX_KEY, layer);
  QUIRE_ASSERT(part != QUIRE_PART_NONE);
  const struct quire_view_rows *rows = model == QUIRE_PART_TARGET ? &view->target : &view->draft;
  struct quire_select select = {
      .rows = batch_rows(view, model, flat_layer(view, model, layer), part),
      .part = parts->part[part],
      .q = q,
      .w = w,
      .indices_out = view->indices,
      .counts_out = view->counts,
      .scratch = view->select_scratch,
      .format = parts->format,
      .any_scale = view->config.any_scale,
      .heads = view->config.index_heads,
      .topk = view->config.topk,
      .limit_max = rows->batch.limit_max,
      .source_rows = rows->batch.sources > 0 ? (rows->batch.m + rows->batch.sources - 1) / rows->batch.sources : 0,
  };
  view->links.kernels->select(view->stream, select);
}

void quire_view_attend(struct quire_view *view, const struct quire_view_attend *attend) {
  const struct quire_parts *parts = view->config.parts;
  int32_t part = quire_parts_find(parts, attend->model, QUIRE_PART_LATENT, attend->layer);
  QUIRE_ASSERT(part != QUIRE_PART_NONE);
  struct quire_attend args = {
      .rows = batch_rows(view, attend->model, flat_layer(view, attend->model, attend->layer), part),
      .part = parts->part[part],
      .q_latent = attend->q_latent,
      .q_rope = attend->q_rope,
      .indices = view->indices,
      .counts = view->counts,
      .out = attend->out,
      .lse = attend->lse,
      .scratch = view->attend_scratch,
      .format = parts->format,
      .q_dtype = attend->dtype,
      .out_dtype = attend->dtype,
      .heads = view->config.heads,
      .topk = view->config.topk,
      .scale = attend->scale,
  };
  view->links.kernels->attend(view->stream, args);
}
