/* The hands of one rank: its KV memory, and the commands of the brain executed on it.
 *
 *     controller --submit--> | command | command | .. |  --> the bank's stream --> own pages, peers' pages, host memory
 *                <---poll--- | ack     | ack     | .. |      (one command at a time, in order)
 *
 * Memory. Every part of the parts table is an array of pages, page `local` at base + local * page_stride. It is either
 * the caller's (quire_bank_bind: an engine that embeds quire, device memory of a tensor library) or the bank's own slab
 * (quire_bank_allocate), in which all parts lie one behind the other:
 *
 *     | part 0: page 0 | page 1 | ... | part 1: page 0 | ...          pages contiguous, each at a multiple of 64 bytes
 *
 * Own memory starts as poison (0xFF, NaN in every format). Bound memory is never freed and never poisoned unless a
 * command says so. Host memory, where PACK writes and UNPACK reads, belongs to the caller.
 *
 * Order of use: create, bind or allocate, connect (all banks of the worker at once), then submit and poll; at the end
 * drain all banks, then destroy all.
 *
 * Commands (layout/command.h) are checked in submit, before anything is queued. They execute in the order of
 * submission, each wholly before the next; different banks' commands are not ordered among each other: who needs that
 * waits for the acknowledgement. COPY_PAGE reads its source from this rank's own memory if the rank stores that page,
 * else from the page's sender. UNPACK checks magic, version, fingerprint, fields and all digests before the first byte
 * of the page is written; where anything differs the page is as it was. Rows behind valid_tokens are neither read nor
 * written. PACK makes the bundle's old trailer invalid first and writes the new one last.
 *
 * Threads: one owner (the controller) for everything except the functions of pages and epochs, which any thread may
 * call once the banks are connected. Nothing is allocated after connect; submit never blocks: a full queue is
 * QUIRE_ERR_AGAIN. */
#ifndef QUIRE_BANK_BANK_H
#define QUIRE_BANK_BANK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/status.h"
#include "device/device.h"
#include "device/peer.h"
#include "layout/command.h"
#include "layout/geometry.h"
#include "layout/ids.h"
#include "layout/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_BANK_QUEUE_MAX 128 /* commands; below the length of a stream's queue, so that submit cannot block */
#define QUIRE_BANK_PAGE_ALIGN 64 /* of pages in own memory */
#define QUIRE_BANK_BIND_ALIGN 16 /* of bases and strides of bound memory */

struct quire_bank;

struct quire_bank_config {
  struct quire_geometry geometry;
  quire_rank_id rank;
  const struct quire_parts *parts; /* copied */
  struct quire_hash128 fingerprint;
  int32_t queue_commands;             /* 1 to QUIRE_BANK_QUEUE_MAX: submitted and not yet polled */
  enum quire_stream_mode stream_mode; /* of the bank's stream; QUIRE_STREAM_THREAD outside tests and simulators */
  uint64_t stream_seed;               /* deferred mode */
  /* called after each acknowledgement is ready to poll, on the thread that executed; NULL: none. Must not call back */
  void (*notify)(void *context);
  void *notify_context;
};

/* Why a command failed: beside the ack, for logs and for who has to know which part was bad. */
struct quire_bank_fault {
  uint64_t op;
  int32_t part; /* index in the parts table, QUIRE_PART_NONE where none is to blame */
  struct quire_error error;
};

/* Bytes of the slab quire_bank_allocate would make for all parts; -1 for a config that is not valid. */
int64_t quire_bank_bytes(const struct quire_bank_config *config);

/* A bank without memory. QUIRE_ERR_ARGUMENT, QUIRE_ERR_MEMORY. */
enum quire_status quire_bank_create(const struct quire_env *env, const struct quire_bank_config *config,
                                    struct quire_bank **bank_out, struct quire_error *error_out);
/* Waits for what was submitted. No other bank may still read this one's pages. NULL is allowed. */
void quire_bank_destroy(struct quire_bank *bank);

/* The caller's memory for one part. page_stride >= the part's page bytes; pages >= the rank's local pages (those behind
 * are not touched). The pages of different parts may be interleaved (one stride) but not overlap, nor host memory.
 * QUIRE_ERR_ARGUMENT; QUIRE_ERR_STATE when the part has memory. */
enum quire_status quire_bank_bind(struct quire_bank *bank, int32_t part, void *base, int64_t page_stride, int32_t pages,
                                  struct quire_error *error_out);
/* Own memory for all parts that have none. Touched by the calling thread: a rank calls it from its own, where the node
 * has several memory controllers. QUIRE_ERR_MEMORY, QUIRE_ERR_STATE (all have memory). */
enum quire_status quire_bank_allocate(struct quire_bank *bank, struct quire_error *error_out);
/* Host memory of the worker, at a multiple of 8. Again replaces the former; not while a command is open (then
 * QUIRE_ERR_STATE), and not over memory of the bank's parts (QUIRE_ERR_ARGUMENT). */
enum quire_status quire_bank_host(struct quire_bank *bank, void *base, int64_t bytes, struct quire_error *error_out);

/* Makes the banks of a worker, banks[r] being rank r's, known to each other; all parts must have memory. map_out (may
 * be NULL) is for views. QUIRE_ERR_ARGUMENT when ranks, geometry, parts or fingerprints do not fit or memory of two
 * overlaps, QUIRE_ERR_STATE
 * when a part has no memory; then no bank is changed. */
enum quire_status quire_bank_connect(struct quire_bank *const *banks, int32_t ranks, struct quire_peer_map *map_out,
                                     struct quire_error *error_out);

/* This rank's pages and epochs, for views of any rank. Valid as long as the bank. */
struct quire_peer quire_bank_peer(const struct quire_bank *bank);
const struct quire_parts *quire_bank_parts(const struct quire_bank *bank);
int32_t quire_bank_local_pages(const struct quire_bank *bank);
/* First byte of a local page of a part; NULL when a number is outside or the part has no memory. */
uint8_t *quire_bank_page(const struct quire_bank *bank, int32_t part, quire_local_page local);

/* The rank has written, or is about to write, rows from first_row on of a local page in this epoch (device/peer.h). */
enum quire_status quire_bank_mark_written(struct quire_bank *bank, quire_local_page local, int64_t epoch,
                                          int32_t first_row);
/* May rows [0, rows) of a local page be read in a step of this epoch? False for a page outside. COPY_PAGE and UNPACK
 * mark their page as written before all steps, POISON as never written; own memory starts as never written, bound
 * memory as written before all steps. */
bool quire_bank_readable(const struct quire_bank *bank, quire_local_page local, int64_t epoch, int32_t rows);

/* Queues a command whose mask names this rank. QUIRE_ERR_ARGUMENT (nothing queued; the text names the fault),
 * QUIRE_ERR_STATE (not connected, or no host memory for it), QUIRE_ERR_AGAIN (queue full). */
enum quire_status quire_bank_submit(struct quire_bank *bank, const struct quire_command *command,
                                    struct quire_error *error_out);
/* Acknowledgements in order of submission, at most acks_max; returns their number. */
int32_t quire_bank_poll(struct quire_bank *bank, struct quire_ack *acks_out, int32_t acks_max);
/* What was wrong with the last polled command that failed; false when none has. */
bool quire_bank_last_fault(const struct quire_bank *bank, struct quire_bank_fault *fault_out);
/* Commands submitted and not yet polled. */
int32_t quire_bank_open_commands(const struct quire_bank *bank);
/* Blocks until everything submitted has executed. For shutdown and tests. */
void quire_bank_drain(struct quire_bank *bank);

#ifdef __cplusplus
}
#endif
#endif
