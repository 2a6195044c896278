/* The inside of a view, shared by the files of this folder.
 *
 *   view.c        memory, batches, fence
 *   view_put.c    quantise, exchange, owner copy, commits, write marks
 *   view_read.c   sources, gather, select, attend
 *   view_debug.c  comparison of everything read with what owners wrote
 *   cuda/         what of these runs on a GPU
 *
 * Exchange slot of a rank (two of them, used in turn):
 *
 *   | latent rows [rows_max] | index keys, piece 0 [rows_max] | index keys, piece 1 [rows_max] |
 *
 * Fresh segment: the same three arrays with fresh_max rows; entry e's rows start at fresh_row[e].
 * Local segment: for each request slot and part, its pieces as rings of local_rows rows; position q is ring row
 * q mod local_rows. */
#ifndef QUIRE_VIEW_VIEW_INTERNAL_H
#define QUIRE_VIEW_VIEW_INTERNAL_H

#include "base/assert.h"
#include "kernels/kernels_cuda.h"
#include "view/view.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One of the three arrays of an exchange slot or of the fresh segment. */
enum { ARRAY_LATENT, ARRAY_KEY, ARRAY_SCALE, ARRAYS };

struct quire_view_rows {
  struct quire_view_batch batch;
  int32_t *tokens, *positions, *limits, *entries, *hidden; /* [rows_max] each */
  int32_t prefill_puts;                                    /* the first rows: those that are exchanged */
  int32_t *nonfinite;                                      /* [rows_max] */
  struct quire_view_batch device;                          /* the batch, in memory of the device */
  int32_t *flags;                                          /* [rows_max] nonfinite in memory of the device */
};

/* What one put works with. */
struct quire_view_put_job {
  struct quire_view *view;
  struct quire_view_rows *rows;
  const struct quire_block *blocks; /* [ranks] exchange slots; NULL: no fresh rows in this step */
  uint8_t *slot;                    /* the rank's own */
  int32_t latent_part, key_part;    /* key_part may be QUIRE_PART_NONE */
  bool draft;
};

/* The part of a view that depends on where it works. */
struct quire_view_backend {
  /* device memory beside quire_view.memory */
  int64_t (*bytes)(const struct quire_view_config *config);
  enum quire_status (*open)(struct quire_view *view, struct quire_error *error_out);
  void (*close)(struct quire_view *view);
  /* the plan is placed and the batches are built: tables, commits, no row is non-finite yet */
  void (*begin)(struct quire_view *view);
  void (*put)(const struct quire_view_put_job *job);
  /* copies the prefixes of a flat layer into its scratch, on the copy stream */
  void (*gather)(struct quire_view *view, int32_t flat);
  /* sources of all entries for one part, in memory of the device */
  const struct quire_kv_source *(*sources)(struct quire_view *view, int32_t flat, int32_t part);
  /* every rank has fenced: waits until the host may look at the step's results */
  enum quire_status (*end)(struct quire_view *view, struct quire_error *error_out);
};

extern const struct quire_view_backend quire_view_cpu_backend;
extern const struct quire_view_backend quire_view_cuda_backend;

struct quire_view {
  struct quire_view_config config;
  const struct quire_view_backend *backend;
  struct quire_view_cuda *cuda; /* of the CUDA backend */
  struct quire_view_links links;
  struct quire_stream *stream, *copy_stream;
  const struct quire_env *env;
  struct quire_memory *memory; /* exchange, fresh, local, gather, scratch */
  uint8_t *exchange[2];
  uint8_t *fresh;
  uint8_t *local;
  uint8_t *gather[2];
  uint8_t *select_scratch, *attend_scratch;
  int32_t *indices, *counts;

  int32_t row_bytes[ARRAYS];    /* of the two kinds' pieces; index pieces may be absent (0) */
  int64_t array_offset[ARRAYS]; /* in an exchange slot */
  int64_t fresh_offset[ARRAYS]; /* in the fresh segment */
  int64_t *part_offset;         /* [parts] of a request's ring */
  int64_t request_bytes;        /* local segment of one request */
  int32_t slot;                 /* exchange slot to be written next */

  quire_page *tables; /* [requests_max][request_pages_max] page tables */

  const struct quire_step_plan *plan; /* of the running step */
  int32_t *fresh_row;                 /* [entries_max] first row in the fresh segment; prefill entries */
  int32_t *gather_page;               /* [entries_max] first page in the gather scratch, or -1 */
  int32_t fresh_rows;
  struct quire_view_rows target, draft;
  const uint8_t **pointers;        /* [2][pointers_max] page addresses of sources, latent and index key */
  struct quire_kv_source *sources; /* [2][entries_max], latent and index key */
  int32_t pointers_max;
  struct quire_event gathered[2]; /* by layer parity */
  uint64_t fenced;                /* epoch of the last step that ended with a fence */

  uint64_t *hashes; /* debug: [parts][local pages][page_tokens] of the rows this rank stores; else NULL */
  struct quire_error debug_error;
  int32_t fault;         /* QUIRE_STEP_FAULT_* of the running step */
  quire_page fault_page; /* that this rank's foreign write went to, or QUIRE_PAGE_NONE */
};

/* Memory of the request's page table. */
static inline quire_page *quire_view_table(const struct quire_view *view, int32_t request) {
  return view->tables + (int64_t)request * view->config.request_pages_max;
}

static inline const struct quire_step_entry *quire_view_entry(const struct quire_view *view, int32_t entry) {
  return quire_step_plan_entries(view->plan) + entry;
}

/* What a view of a GPU asks of its kernels. */
struct quire_kernels_cuda_shape quire_view_cuda_shape(const struct quire_view_config *config);

/* Rows of a prefix page that are written: all of them, but for the last page. */
static inline int32_t quire_view_valid_rows(const struct quire_view *view, const struct quire_step_entry *entry,
                                            int32_t page) {
  int32_t rows = entry->prefix_end - page * view->config.geometry.page_tokens;
  QUIRE_ASSERT(rows > 0);
  return rows < view->config.geometry.page_tokens ? rows : view->config.geometry.page_tokens;
}

/* Ring row `row` of a piece of a part of a request in the local segment. */
uint8_t *quire_view_local_row(const struct quire_view *view, int32_t request, int32_t part, int32_t piece, int32_t row);

/* The rank whose memory this view reads a page from: its own when stored here, else the page's sender. */
int32_t quire_view_reads_from(const struct quire_view *view, quire_page page);

/* Address of a page of a part at that rank. */
const uint8_t *quire_view_page(const struct quire_view *view, int32_t part, quire_page page);

/* The CPU's backend, by file: view_put.c and view_read.c. */
void quire_view_pull_commits(struct quire_view *view);
void quire_view_place_rows(const struct quire_view_put_job *job);
void quire_view_gather_rows(struct quire_view *view, int32_t flat);
const struct quire_kv_source *quire_view_build_sources(struct quire_view *view, int32_t flat, int32_t part);

/* Marks the page of a position as written in this epoch, if this rank stores it; its local page, else -1. */
int32_t quire_view_mark_own(struct quire_view *view, const struct quire_step_entry *entry, int32_t position);

/* Scratch address of page `index` of one kind. */
uint8_t *quire_view_gather_page(const struct quire_view *view, int32_t flat, enum quire_part_kind kind, int32_t index);

/* Layers in the order they attend: target layers, then draft layers. */
enum quire_part_model quire_view_flat_model(const struct quire_view *view, int32_t flat, int32_t *layer_out);

/* Enqueues the gather of a flat layer on the copy stream, if the mode and the plan ask for it. */
void quire_view_gather(struct quire_view *view, int32_t flat);

/* view_debug.c. What a report of a violation names: rank, page and the owner it reads from, part, layer, row of the
 * page. */
#define QUIRE_VIEW_WHERE_BYTES 120
void quire_view_where(const struct quire_view *view, int32_t part, quire_page page, int32_t row,
                      char text_out[QUIRE_VIEW_WHERE_BYTES]);
/* Number of hashes to reserve, 0 when off. */
int64_t quire_view_debug_hashes(const struct quire_view_config *config);
/* A row of an own page has just been written. */
void quire_view_debug_wrote(struct quire_view *view, int32_t part, quire_local_page local, int32_t row);
/* Own pages of the plan's prefixes against their hashes. */
enum quire_status quire_view_debug_begin(struct quire_view *view, struct quire_error *error_out);
/* Prefix pages as kernels will read them against the owners'. Faults are kept for quire_view_debug_end. */
void quire_view_debug_sources(struct quire_view *view, int32_t part, const struct quire_kv_source *sources);
enum quire_status quire_view_debug_end(const struct quire_view *view, struct quire_error *error_out);
bool quire_view_debug_faulty(const struct quire_view *view, enum quire_view_fault fault);
/* A step begins; one behind a fault may read what that left. */
void quire_view_debug_watch(struct quire_view *view);
/* The two faults that act here. */
void quire_view_debug_swap(struct quire_view *view, const uint8_t **pages, int32_t count);
void quire_view_debug_foreign_write(struct quire_view *view);

#ifdef __cplusplus
}
#endif
#endif
