/* How a step reads and writes KV: verbs, never a pointer (design D5). One view a rank.
 *
 *   begin       page-table appends and commits of the plan, the rank's batch of rows, the first gather
 *   put_rows    quantise the rank's fresh rows once, exchange them in stored form (prefill) or append them to the local
 *               segment (decode), copy what this rank owns into its pages
 *   select      index scores over prefix and fresh rows -> the best positions of each row
 *   attend      sparse MLA over those
 *   fence       end of the step: everybody has written
 *
 * A row is read from three kinds of place, and the kernels cannot tell which (layout/kv_source.h):
 *
 *   mode      prefix of a prefill row            prefix of a decode row     fresh rows
 *   local     the rank's own pages               own pages                  exchange / local segment
 *   peer      the owners' pages, in place        owners' pages              exchange / local segment
 *   gather    scratch, copied one layer ahead    owners' pages              exchange / local segment
 *             by a stream of its own
 *
 * local needs replicated KV (or one rank), gather and peer are for shared KV. All give the same bytes.
 *
 * Write marks (device/peer.h): a page carries the epoch of its last write and the first row written in it. A prefix row
 * that was written in an epoch without a fence behind it is an error (QUIRE_ERR_RANK), never read.
 *
 * On a GPU (config.device) the same holds; what the host needs to know it knows from the plan, so it marks pages when
 * it enqueues, and nothing is read back before the fence. --debug-shared-kv and faults are the CPU's alone and refused
 * there.
 *
 * Memory: all of it is reserved at creation (quire_view_bytes counts the device memory; host tables come on top).
 * Threads: the rank's thread, except that other ranks read the local segment, the exchange buffers and the marks
 * between fences. Errors: QUIRE_ERR_ABORTED when another rank poisoned the epoch; the step's results are void then. */
#ifndef QUIRE_VIEW_VIEW_H
#define QUIRE_VIEW_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/trace.h"
#include "collective/collective.h"
#include "device/device.h"
#include "device/peer.h"
#include "kernels/kernels.h"
#include "layout/geometry.h"
#include "layout/parts.h"
#include "layout/step_ack.h"
#include "layout/step_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_view_mode { QUIRE_VIEW_LOCAL, QUIRE_VIEW_GATHER, QUIRE_VIEW_PEER };

/* Faults that --debug-shared-kv has to find within one step; in every build, so that anyone can see it work. */
enum quire_view_fault {
  QUIRE_VIEW_FAULT_NONE,
  QUIRE_VIEW_FAULT_SKIP_FENCE,    /* nobody fences the step */
  QUIRE_VIEW_FAULT_FOREIGN_WRITE, /* ranks write into a page they do not own */
  QUIRE_VIEW_FAULT_SWAP_PAGES,    /* a view reads two pages in each other's place */
};

struct quire_view;

struct quire_view_config {
  struct quire_geometry geometry;
  const struct quire_parts *parts;
  enum quire_view_mode mode;
  int32_t rank;
  struct quire_step_limits limits; /* of the plans it will be given */
  int32_t requests_max;            /* request slots of the worker */
  int32_t request_pages_max;       /* pages of the longest request */
  int32_t rows_max;                /* rows of one rank in one step, read-only ones included */
  int32_t fresh_max;               /* rows written by all prefill entries of a step */
  int32_t local_rows;              /* ring of the local segment: 2 * (drafts + 1) rows a request */
  int32_t gather_pages_max;        /* prefix pages of all prefill entries of a step; gather only */
  int32_t topk;                    /* of the indexer */
  int32_t heads, index_heads;      /* for scratch */
  struct quire_device *device;     /* where the view and its kernels work; NULL: the CPU */
  bool any_scale;                  /* scales of stored rows need not be powers of two (arithmetic.md 2) */
  int threads;                     /* of the rank's team */
  bool debug;                      /* compare everything that is read with what owners wrote (view_debug.c) */
  enum quire_view_fault fault;     /* put in at the step of fault_epoch; quire_view_fault says what became of it */
  uint64_t fault_epoch;
  struct quire_trace *trace; /* gather jobs and waits for them; NULL: off */
};

/* What a rank's view is connected to; all of it outlives the view. */
struct quire_view_links {
  const struct quire_kernels *kernels;
  struct quire_collective *collective;
  const struct quire_peer_map *peers; /* where every rank keeps every part; complete before the first step */
  struct quire_view *const *views;    /* [ranks]; filled by the executor before the first step */
};

/* Bytes a view reserves, by purpose, for the memory plan. */
struct quire_view_memory {
  int64_t exchange; /* two slots of the rank's own rows, and the fresh rows of all ranks */
  int64_t local;    /* local segment */
  int64_t gather;   /* gather scratch, two layers */
  int64_t scratch;  /* selection lists, kernel scratch */
  int64_t tables;   /* of a step, on a GPU; the CPU's are the host's */
};

/* Can the mode work with this sharing of pages? why_out (may be NULL) gets the reason when not. The support table and
 * create ask this. */
bool quire_view_can(enum quire_view_mode mode, const struct quire_geometry *geometry, const char **why_out);

/* Of a config that create takes. */
struct quire_view_memory quire_view_bytes(const struct quire_view_config *config);

/* QUIRE_ERR_UNSUPPORTED with the reason when the mode cannot, numbers make no sense, or are beyond what the kernels of
 * a GPU take (kernels_cuda.h: 64 index heads, rows of bf16 or fp8; gather there takes pages of a multiple of 4 tokens).
 * QUIRE_ERR_MEMORY, QUIRE_ERR_RANK. */
enum quire_status quire_view_create(const struct quire_env *env, const struct quire_view_config *config,
                                    const struct quire_view_links *links, struct quire_view **view_out,
                                    struct quire_error *error_out);
void quire_view_destroy(struct quire_view *view);
/* The rank's streams, before its first step: compute and gather's copies (NULL in other modes). On the CPU compute must
 * be inline: tables are rewritten between launches. On a GPU they are streams of config.device; a step's tables go
 * there in one copy at its begin, and until its fence no host waits for them. */
void quire_view_start(struct quire_view *view, struct quire_stream *stream, struct quire_stream *copy_stream);

/* The rows a rank works on in one step, in this order: prefill rows (by entry, then position), decode rows, read-only
 * rows (which recompute a hidden state and put nothing). Arrays live until the next begin. */
struct quire_view_batch {
  int32_t m;                /* rows */
  int32_t puts;             /* the first `puts` rows are written to the cache */
  int32_t limit_max;        /* largest limit */
  int32_t sources;          /* runs of neighbouring rows of one entry */
  const int32_t *tokens;    /* [m] */
  const int32_t *positions; /* [m] RoPE position; draft rows: slot - 1 */
  const int32_t *limits;    /* [m] positions the row may see: [first, limit) */
  const int32_t *entries;   /* [m] entry of the plan */
  const int32_t *hidden;    /* draft rows: >= 0 row of the target batch, < 0 carry of request -hidden - 1. Else NULL */
};

/* Starts a step on this rank. QUIRE_ERR_RANK when the plan does not fit this worker (rows of this rank beyond rows_max
 * among them), or when the prefix is not fenced (names rank and page). Nothing has been enqueued then. */
enum quire_status quire_view_begin(struct quire_view *view, const struct quire_step_plan *plan,
                                   struct quire_error *error_out);
/* Both valid from begin to fence. The draft batch is empty without a draft part. */
const struct quire_view_batch *quire_view_target_batch(const struct quire_view *view);
const struct quire_view_batch *quire_view_draft_batch(const struct quire_view *view);
/* The same with arrays that the view's device reads; on the CPU the very same. */
const struct quire_view_batch *quire_view_device_batch(const struct quire_view *view, enum quire_part_model model);

/* Fresh rows of a layer, f32, in batch order ([puts] rows). key is NULL for a layer without an indexer. */
struct quire_view_put {
  enum quire_part_model model;
  int32_t layer;
  const float *latent; /* [puts, 512], normed */
  const float *rope;   /* [puts, 64], rotated */
  const float *key;    /* [puts, 128], normed and rotated */
  int64_t latent_ld, rope_ld, key_ld;
};
enum quire_status quire_view_put_rows(struct quire_view *view, const struct quire_view_put *put,
                                      struct quire_error *error_out);

/* Scores and selects for every row of the batch of `model`; the lists stay in the view for attend, also of later layers
 * that share them. q [m, index_heads, 128] f32 rotated, w [m, index_heads] f32. */
void quire_view_select(struct quire_view *view, enum quire_part_model model, int32_t layer, const float *q,
                       const float *w);

struct quire_view_attend {
  enum quire_part_model model;
  int32_t layer;
  const void *q_latent;   /* [m, heads, 512] */
  const void *q_rope;     /* [m, heads, 64] */
  void *out;              /* [m, heads, 512] */
  float *lse;             /* [m, heads] */
  enum quire_dtype dtype; /* of q and out */
  float scale;
};
void quire_view_attend(struct quire_view *view, const struct quire_view_attend *attend);

/* The lists of the last select, in device memory: indices [m, topk] ascending padded with -1, counts [m]. */
const int32_t *quire_view_indices(const struct quire_view *view);
const int32_t *quire_view_counts(const struct quire_view *view);

/* Other values a row's result depends on, f32 [m, n]: what holds one that is not finite is reported like KV that is
 * not. */
void quire_view_check_finite(struct quire_view *view, enum quire_part_model model, const float *x, int32_t n);

/* 1 for each row of the batch that was not finite in this step, [m] of the target batch or of the draft; on a GPU known
 * after the fence. */
const int32_t *quire_view_nonfinite(const struct quire_view *view, enum quire_part_model model);

/* Ends the step: waits for the rank's own copies, then for every rank. QUIRE_ERR_ABORTED, or QUIRE_ERR_RANK when
 * debugging found a fault. */
enum quire_status quire_view_fence(struct quire_view *view, struct quire_error *error_out);
/* QUIRE_STEP_FAULT_* of this step so far. */
int32_t quire_view_fault(const struct quire_view *view);
/* Waits for all that the rank has enqueued, and for no other rank: the end of a step that failed. After it nothing of
 * the view reads the plan, nor reads or writes a page. */
void quire_view_quiesce(struct quire_view *view);

#ifdef __cplusplus
}
#endif
#endif
