/* --debug-shared-kv: every row a view reads is compared with what its owner wrote, in every layer of every step, and
 * three faults can be put in to show that this finds them. Off, it costs a test of a pointer a verb.
 *
 *   what is checked                                      where            what it finds
 *   each prefix row in its owner's page hashes to what   begin            a write by a rank that does not own the page,
 *     the owner put there                                                 a page given to two requests
 *   each prefix page as the view reads it is equal to    select, attend   a wrong page, a gather that came too early or
 *     its owner's page                                                    too late
 *   write marks against the last fence (view.c, always)  begin            a fence that was left out
 *
 * An owner keeps one hash for each row and part it stores, taken right behind its own write. A hash of 0 says that a
 * row was put there by someone who answers for it otherwise (a bank's UNPACK checks digests). */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "view/view_internal.h"

static int64_t row_index(const struct quire_view *view, int32_t part, int32_t local, int32_t row) {
  QUIRE_ASSERT(local >= 0 && row >= 0 && row < view->config.geometry.page_tokens);
  int64_t pages = view->links.peers->rank[view->config.rank].pages;
  return ((int64_t)part * pages + local) * view->config.geometry.page_tokens + row;
}

/* Hash of a row in a page, pieces joined; never 0. */
static uint64_t hash_row(const struct quire_part *part, const uint8_t *page, int32_t row) {
  QUIRE_ASSERT(page != NULL && row >= 0);
  uint64_t hash = 0;
  for (int32_t i = 0; i < part->pieces; i++) {
    const struct quire_piece *piece = &part->piece[i];
    hash = quire_hash128(page + piece->offset + (int64_t)row * piece->row_bytes, (size_t)piece->row_bytes, hash).low;
  }
  return hash != 0 ? hash : 1;
}

int64_t quire_view_debug_hashes(const struct quire_view_config *config) {
  QUIRE_ASSERT(config->geometry.storage_ranks >= 1);
  quire_stripe_id stripe = {config->rank % config->geometry.storage_ranks};
  return config->debug ? (int64_t)config->parts->count * quire_geometry_local_pages(&config->geometry, stripe) *
                             config->geometry.page_tokens
                       : 0;
}

void quire_view_debug_wrote(struct quire_view *view, int32_t part, quire_local_page local, int32_t row) {
  QUIRE_ASSERT(view->hashes == NULL || row < view->config.parts->page_tokens);
  if (view->hashes != NULL) {
    const uint8_t *page = quire_peer_page(&view->links.peers->rank[view->config.rank], part, local.v);
    view->hashes[row_index(view, part, local.v, row)] = hash_row(&view->config.parts->part[part], page, row);
  }
}

void quire_view_where(const struct quire_view *view, int32_t part, quire_page page, int32_t row,
                      char text_out[QUIRE_VIEW_WHERE_BYTES]) {
  QUIRE_ASSERT(part >= 0 && part < view->config.parts->count);
  const struct quire_part *p = &view->config.parts->part[part];
  int length = snprintf(text_out, QUIRE_VIEW_WHERE_BYTES, "rank %d, page %d (owner %d), %s %s layer %d, row %d",
                        view->config.rank, page.v, quire_view_reads_from(view, page),
                        p->model == QUIRE_PART_TARGET ? "target" : "draft",
                        p->kind == QUIRE_PART_LATENT ? "latent" : "index key", p->layer, row);
  QUIRE_ASSERT(length > 0 && length < QUIRE_VIEW_WHERE_BYTES);
}

static void describe(struct quire_view *view, const char *what, int32_t part, quire_page page, int32_t row) {
  QUIRE_ASSERT(what != NULL);
  if (view->debug_error.status == QUIRE_OK) {
    char where[QUIRE_VIEW_WHERE_BYTES];
    quire_view_where(view, part, page, row, where);
    quire_error_set(&view->debug_error, QUIRE_ERR_RANK, "shared kv", "%s: %s", what, where);
  }
}

/* One page this rank stores: every row as the hash says, or newly known. */
static void check_own_page(struct quire_view *view, quire_page page, int32_t rows) {
  QUIRE_ASSERT(view->hashes != NULL && rows >= 0 && rows <= view->config.geometry.page_tokens);
  int32_t local = quire_page_local(&view->config.geometry, page).v;
  for (int32_t part = 0; part < view->config.parts->count; part++) {
    const uint8_t *base = quire_peer_page(&view->links.peers->rank[view->config.rank], part, local);
    for (int32_t row = 0; row < rows; row++) {
      uint64_t *known = &view->hashes[row_index(view, part, local, row)];
      uint64_t now = hash_row(&view->config.parts->part[part], base, row);
      if (*known != 0 && *known != now) {
        describe(view, "a row is not what its owner wrote", part, page, row);
      }
      *known = now;
    }
  }
}

enum quire_status quire_view_debug_begin(struct quire_view *view, struct quire_error *error_out) {
  QUIRE_ASSERT(view->plan != NULL);
  if (view->hashes == NULL) {
    return QUIRE_OK;
  }
  memset(&view->debug_error, 0, sizeof view->debug_error);
  const struct quire_geometry *g = &view->config.geometry;
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    const quire_page *table = quire_view_table(view, entry->request);
    for (int32_t p = 0; p * g->page_tokens < entry->prefix_end; p++) {
      if (quire_page_stored_by(g, table[p], (quire_rank_id){view->config.rank})) {
        check_own_page(view, table[p], quire_view_valid_rows(view, entry, p));
      }
    }
  }
  if (error_out != NULL && view->debug_error.status != QUIRE_OK) {
    *error_out = view->debug_error;
  }
  return view->debug_error.status;
}

/* First of `rows` rows of a piece in which two pages differ, or -1. */
static int32_t first_different_row(const struct quire_piece *piece, const uint8_t *a, const uint8_t *b, int32_t rows) {
  QUIRE_ASSERT(a != NULL && b != NULL);
  size_t bytes = (size_t)piece->row_bytes;
  for (int32_t row = 0; row < rows; row++) {
    size_t at = (size_t)piece->offset + (size_t)row * bytes;
    if (memcmp(a + at, b + at, bytes) != 0) {
      return row;
    }
  }
  return -1;
}

void quire_view_debug_sources(struct quire_view *view, int32_t part, const struct quire_kv_source *sources) {
  QUIRE_ASSERT(sources != NULL && part >= 0 && part < view->config.parts->count);
  const struct quire_part *p = &view->config.parts->part[part];
  for (int32_t e = 0; view->hashes != NULL && e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    const quire_page *table = quire_view_table(view, entry->request);
    for (int32_t i = 0; i * view->config.geometry.page_tokens < entry->prefix_end; i++) {
      const uint8_t *owner = quire_view_page(view, part, table[i]);
      for (int32_t k = 0; k < p->pieces; k++) {
        int32_t row =
            first_different_row(&p->piece[k], owner, sources[e].pages[i], quire_view_valid_rows(view, entry, i));
        if (row >= 0) {
          describe(view, "the view differs from the owner's page", part, table[i], row);
        }
      }
    }
  }
}

enum quire_status quire_view_debug_end(const struct quire_view *view, struct quire_error *error_out) {
  QUIRE_ASSERT(view != NULL);
  if (view->hashes != NULL && view->debug_error.status != QUIRE_OK && error_out != NULL) {
    *error_out = view->debug_error;
  }
  return view->hashes != NULL ? view->debug_error.status : QUIRE_OK;
}

bool quire_view_debug_faulty(const struct quire_view *view, enum quire_view_fault fault) {
  return view->config.fault == fault && view->plan->epoch == view->config.fault_epoch;
}

/* Whether a fault of the step before left its trace in a page: what it wrote there, or a write without a fence. */
static bool page_is_touched(const struct quire_view *view, quire_page page) {
  QUIRE_ASSERT(page.v >= 0);
  if (view->config.fault == QUIRE_VIEW_FAULT_FOREIGN_WRITE) {
    return page.v == view->fault_page.v;
  }
  const int64_t *marks = view->links.peers->rank[quire_view_reads_from(view, page)].written;
  int64_t mark = __atomic_load_n(&marks[quire_page_local(&view->config.geometry, page).v], __ATOMIC_ACQUIRE);
  return view->config.fault == QUIRE_VIEW_FAULT_SKIP_FENCE && mark >= 0 &&
         (uint64_t)(mark >> QUIRE_WRITTEN_ROW_BITS) == view->config.fault_epoch;
}

void quire_view_debug_watch(struct quire_view *view) {
  QUIRE_ASSERT(view->plan != NULL);
  view->fault = 0;
  if (view->config.fault == QUIRE_VIEW_FAULT_NONE || view->plan->epoch != view->config.fault_epoch + 1) {
    return;
  }
  for (int32_t e = 0; e < view->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    const quire_page *table = quire_view_table(view, entry->request);
    for (int32_t p = 0; p * view->config.geometry.page_tokens < entry->prefix_end; p++) {
      view->fault |= page_is_touched(view, table[p]) ? QUIRE_STEP_FAULT_READ : 0;
    }
  }
}

int32_t quire_view_fault(const struct quire_view *view) { return view->fault; }

void quire_view_debug_swap(struct quire_view *view, const uint8_t **pages, int32_t count) {
  QUIRE_ASSERT(count >= 0);
  if (quire_view_debug_faulty(view, QUIRE_VIEW_FAULT_SWAP_PAGES) && count >= 2) {
    view->fault |= QUIRE_STEP_FAULT_PLACED | QUIRE_STEP_FAULT_READ;
    const uint8_t *first = pages[0];
    pages[0] = pages[1];
    pages[1] = first;
  }
}

/* Of each page one rank is the stranger, the next behind its owner's: two that flip the same bit would undo each
 * other. */
void quire_view_debug_foreign_write(struct quire_view *view) {
  const struct quire_geometry *g = &view->config.geometry;
  for (int32_t e = 0; quire_view_debug_faulty(view, QUIRE_VIEW_FAULT_FOREIGN_WRITE) && e < view->plan->entry_count;
       e++) {
    const struct quire_step_entry *entry = quire_view_entry(view, e);
    for (int32_t position = 0; position < entry->prefix_end; position += g->page_tokens) {
      quire_page page = quire_view_table(view, entry->request)[position / g->page_tokens];
      QUIRE_ASSERT(page.v >= 0);
      int32_t owner = quire_page_sender(g, page).v;
      if (g->storage_ranks > 1 && view->config.rank == (owner + 1) % g->storage_ranks) {
        *quire_peer_page(&view->links.peers->rank[owner], 0, quire_page_local(g, page).v) ^= 1;
        view->fault |= QUIRE_STEP_FAULT_PLACED;
        view->fault_page = page;
        return;
      }
    }
  }
}
