/* The writing half of a view: the producer quantises its rows once; one exchange brings every fresh row, in stored
 * form, to every rank; each rank lays them out in its fresh segment and copies those it owns into their pages.
 * Rejected: writing into the owner's page from the producer's side, which needs a barrier before any rank may read the
 * chunk and makes the owner's memory writable by all. */
#include <string.h>

#include "base/assert.h"
#include "view/view_internal.h"

/* Part and piece behind each array; QUIRE_PART_NONE where the layer has none. */
static void array_part(const struct quire_view_put_job *job, int array, int32_t *part_out, int32_t *piece_out) {
  QUIRE_ASSERT(array >= 0 && array < ARRAYS);
  const struct quire_parts *parts = job->view->config.parts;
  *part_out = array == ARRAY_LATENT ? job->latent_part : job->key_part;
  *piece_out = array == ARRAY_SCALE ? 1 : 0;
  if (*part_out != QUIRE_PART_NONE && *piece_out >= parts->part[*part_out].pieces) {
    *part_out = QUIRE_PART_NONE;
  }
}

int32_t quire_view_mark_own(struct quire_view *view, const struct quire_step_entry *entry, int32_t position) {
  const struct quire_geometry *g = &view->config.geometry;
  quire_page page = quire_view_table(view, entry->request)[position / g->page_tokens];
  if (!quire_page_stored_by(g, page, (quire_rank_id){view->config.rank})) {
    return -1;
  }
  quire_local_page local = quire_page_local(g, page);
  const struct quire_peer *self = &view->links.peers->rank[view->config.rank];
  QUIRE_ASSERT(local.v < self->pages);
  quire_written_mark(&self->written[local.v], (int64_t)view->plan->epoch, position % g->page_tokens);
  return local.v;
}

/* The place of a position's row in the page that this rank stores, or NULL when it stores none. Marks the page. */
static uint8_t *own_page_row(struct quire_view *view, const struct quire_step_entry *entry, int32_t position,
                             int32_t part, int32_t piece) {
  int32_t local = quire_view_mark_own(view, entry, position);
  if (local < 0) {
    return NULL;
  }
  const struct quire_piece *p = &view->config.parts->part[part].piece[piece];
  uint8_t *base = quire_peer_page(&view->links.peers->rank[view->config.rank], part, local);
  QUIRE_ASSERT(base != NULL);
  return base + p->offset + (int64_t)(position % view->config.geometry.page_tokens) * p->row_bytes;
}

/* For debugging: a row with two pieces is hashed after each, the last time with both. */
static void wrote(struct quire_view *view, const struct quire_step_entry *entry, int32_t position, int32_t part) {
  QUIRE_ASSERT(position >= 0);
  if (view->hashes != NULL) {
    const struct quire_geometry *g = &view->config.geometry;
    quire_page page = quire_view_table(view, entry->request)[position / g->page_tokens];
    quire_view_debug_wrote(view, part, quire_page_local(g, page), position % g->page_tokens);
  }
}

/* Copies the row of a position from the exchange (source row `row` of `block`, NULL: zeros) to the fresh segment and to
 * the page, if it is ours. */
static void place_row(const struct quire_view_put_job *job, int32_t e, int32_t position, const uint8_t *block,
                      int32_t row) {
  QUIRE_ASSERT(position >= 0 &&
               position < job->view->config.request_pages_max * job->view->config.geometry.page_tokens);
  struct quire_view *view = job->view;
  const struct quire_step_entry *entry = quire_view_entry(view, e);
  for (int array = 0; array < ARRAYS; array++) {
    int32_t part, piece;
    array_part(job, array, &part, &piece);
    if (part == QUIRE_PART_NONE) {
      continue;
    }
    int32_t bytes = view->row_bytes[array];
    int64_t at = view->fresh_row[e] + position - entry->begin;
    uint8_t *fresh = view->fresh + view->fresh_offset[array] + at * bytes;
    if (block != NULL) {
      memcpy(fresh, block + view->array_offset[array] + (int64_t)row * bytes, (size_t)bytes);
    } else {
      memset(fresh, 0, (size_t)bytes);
    }
    uint8_t *own = own_page_row(view, entry, position, part, piece);
    if (own != NULL) {
      memcpy(own, fresh, (size_t)bytes);
      wrote(view, entry, position, part);
    }
  }
}

static void assemble_run(void *args, struct quire_team *team) {
  (void)team;
  const struct quire_view_put_job *job = args;
  struct quire_view *view = job->view;
  QUIRE_ASSERT(view->plan->ranks <= QUIRE_RANKS_MAX);
  int32_t next[QUIRE_RANKS_MAX] = {0};
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    if (entry->kind != QUIRE_ENTRY_PREFILL) {
      continue;
    }
    for (int32_t position = entry->begin; position < entry->end; position++) {
      int32_t rank = job->draft ? quire_step_entry_draft_producer(view->plan, entry, position)
                                : quire_step_entry_producer(view->plan, entry, position);
      if (rank < 0) {
        place_row(job, e, position, NULL, 0);
      } else {
        place_row(job, e, position, job->blocks[rank].base, next[rank]++);
      }
    }
  }
}

/* Decode rows stay at home until a later step commits them. */
static void append_run(void *args, struct quire_team *team) {
  (void)team;
  const struct quire_view_put_job *job = args;
  struct quire_view *view = job->view;
  QUIRE_ASSERT(job->rows->prefill_puts <= job->rows->batch.puts);
  for (int32_t i = job->rows->prefill_puts; i < job->rows->batch.puts; i++) {
    const struct quire_step_entry *entry = quire_view_entry(view, job->rows->entries[i]);
    int32_t position = job->rows->limits[i] - 1;
    for (int array = 0; array < ARRAYS; array++) {
      int32_t part, piece;
      array_part(job, array, &part, &piece);
      if (part != QUIRE_PART_NONE) {
        int32_t bytes = view->row_bytes[array];
        memcpy(quire_view_local_row(view, entry->request, part, piece, position % view->config.local_rows),
               job->slot + view->array_offset[array] + (int64_t)i * bytes, (size_t)bytes);
      }
    }
  }
}

static void check_finite(struct quire_view *view, struct quire_view_rows *rows, const struct quire_view_put *put) {
  QUIRE_ASSERT(put->latent != NULL && put->rope != NULL);
  struct quire_finite check = {put->latent, rows->flags, rows->batch.puts, QUIRE_LATENT_DIM, put->latent_ld};
  view->links.kernels->finite(view->stream, check);
  check.x = put->rope;
  check.n = QUIRE_ROPE_DIM;
  check.x_ld = put->rope_ld;
  view->links.kernels->finite(view->stream, check);
  if (put->key != NULL) {
    check.x = put->key;
    check.n = QUIRE_INDEX_DIM;
    check.x_ld = put->key_ld;
    view->links.kernels->finite(view->stream, check);
  }
}

void quire_view_check_finite(struct quire_view *view, enum quire_part_model model, const float *x, int32_t n) {
  struct quire_view_rows *rows = model == QUIRE_PART_DRAFT ? &view->draft : &view->target;
  QUIRE_ASSERT(x != NULL && n > 0 && rows->flags != NULL);
  view->links.kernels->finite(view->stream, (struct quire_finite){x, rows->flags, rows->batch.m, n, n});
}

static void quantise(struct quire_view *view, const struct quire_view_rows *rows, const struct quire_view_put *put,
                     uint8_t *slot) {
  QUIRE_ASSERT(slot != NULL);
  enum quire_kv_format format = view->config.parts->format;
  struct quire_quantise_latent latent = {
      .latent = put->latent,
      .rope = put->rope,
      .out = slot + view->array_offset[ARRAY_LATENT],
      .format = format,
      .any_scale = view->config.any_scale,
      .m = rows->batch.puts,
      .latent_ld = put->latent_ld,
      .rope_ld = put->rope_ld,
  };
  view->links.kernels->quantise_latent(view->stream, latent);
  if (put->key != NULL) {
    struct quire_quantise_index key = {
        .key = put->key,
        .keys_out = slot + view->array_offset[ARRAY_KEY],
        .scales_out = (float *)(void *)(slot + view->array_offset[ARRAY_SCALE]),
        .format = format,
        .any_scale = view->config.any_scale,
        .m = rows->batch.puts,
        .key_ld = put->key_ld,
    };
    view->links.kernels->quantise_index(view->stream, key);
  }
}

enum quire_status quire_view_put_rows(struct quire_view *view, const struct quire_view_put *put,
                                      struct quire_error *error_out) {
  const struct quire_parts *parts = view->config.parts;
  bool draft = put->model == QUIRE_PART_DRAFT;
  struct quire_view_rows *rows = draft ? &view->draft : &view->target;
  struct quire_view_put_job job = {
      .view = view,
      .rows = rows,
      .slot = view->exchange[view->slot],
      .latent_part = quire_parts_find(parts, put->model, QUIRE_PART_LATENT, put->layer),
      .key_part = quire_parts_find(parts, put->model, QUIRE_PART_INDEX_KEY, put->layer),
      .draft = draft,
  };
  QUIRE_ASSERT(job.latent_part != QUIRE_PART_NONE && (job.key_part != QUIRE_PART_NONE) == (put->key != NULL));
  struct quire_block own;
  quire_view_gather(view, (draft ? parts->target_layers : 0) + put->layer + 1);
  check_finite(view, rows, put);
  quantise(view, rows, put, job.slot);
  if (view->fresh_rows > 0) {
    /* a layer without an indexer sends no index keys */
    int64_t bytes = job.key_part == QUIRE_PART_NONE ? view->array_offset[ARRAY_KEY]
                                                    : view->array_offset[ARRAY_SCALE] +
                                                          (int64_t)view->config.rows_max * view->row_bytes[ARRAY_SCALE];
    own = (struct quire_block){job.slot, (size_t)bytes};
    job.blocks = &own;
    if (view->config.geometry.ranks > 1) {
      enum quire_status status =
          quire_collective_exchange(view->links.collective, view->config.rank, own.base, own.bytes, &job.blocks);
      if (status != QUIRE_OK) {
        return quire_error_set(error_out, status, "exchange", "another rank gave up the step");
      }
      view->slot ^= 1;
    }
  }
  view->backend->put(&job);
  return QUIRE_OK;
}

/* Blocks may lie on the caller's stack: the stream is inline. */
void quire_view_place_rows(const struct quire_view_put_job *job) {
  struct quire_stream *stream = job->view->stream;
  QUIRE_ASSERT(quire_stream_is_inline(stream));
  if (job->blocks != NULL) {
    quire_stream_launch(stream, assemble_run, job, sizeof *job);
  }
  quire_stream_launch(stream, append_run, job, sizeof *job);
}

void quire_view_pull_commits(struct quire_view *view) {
  QUIRE_ASSERT(view->plan != NULL);
  const struct quire_parts *parts = view->config.parts;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    for (int32_t position = entry->commit_begin; position < entry->commit_end; position++) {
      const struct quire_view *home = view->links.views[entry->commit_rank];
      for (int32_t part = 0; part < parts->count; part++) {
        for (int32_t piece = 0; piece < parts->part[part].pieces; piece++) {
          uint8_t *own = own_page_row(view, entry, position, part, piece);
          if (own != NULL) {
            const uint8_t *row =
                quire_view_local_row(home, entry->request, part, piece, position % view->config.local_rows);
            memcpy(own, row, (size_t)parts->part[part].piece[piece].row_bytes);
            wrote(view, entry, position, part);
          }
        }
      }
    }
  }
}
