/* The bank: the hands of one rank. It knows where the rank's pages lie and executes commands on them (kv_cache.h has
 * their table).
 *
 *     caller --submit--> | command | command | .. |  --> own pages, other ranks' pages, host memory
 *            <---poll--- | ack     | ack     | .. |      (one at a time, in order of submission)
 *
 * Memory is the caller's, part by part (bind: page `local` of a part lies at base + local * page_stride), or the bank's
 * (allocate: for the parts that were not bound; it starts as NaN). Bound memory is never freed, and written by commands
 * only. The caller keeps it, host memory too, until the bank is destroyed. Memory of different ranks must not overlap,
 * nor host memory what a bank has.
 *
 * Commands of different banks are not ordered among each other: who needs that waits for the ack.
 *
 * Order of use: create and bind or allocate one bank a rank; connect all of a worker; submit and poll; destroy. When
 * one bank of a worker is destroyed the others finish what they were given and then refuse commands (QUIRE_ERR_STATE)
 * until they are connected anew. A bank used alone, for a rank of its own process, is a worker of one rank.
 *
 * A page at rest in host memory is one extent of rest_bytes: parts, digests and a trailer that names its fingerprint,
 * chain, request page and valid tokens. UNPACK compares all of them, then every digest, before the first byte of the
 * page is written; if anything differs the ack says QUIRE_ERR_MISMATCH or QUIRE_ERR_CORRUPT and the page is as it was.
 *
 * Threads: one owner at a time for each bank; connect and destroy while no other thread uses a bank of the worker.
 * quire_kv_bank_page may be called from any thread. Nothing is allocated after allocate and connect. */
#ifndef QUIRE_KV_BANK_H
#define QUIRE_KV_BANK_H

#include <stddef.h>
#include <stdint.h>

#include "quire/kv_cache.h"
#include "quire/kv_layout.h"
#include "quire/kv_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_KV_QUEUE_MAX 128
#define QUIRE_KV_BIND_ALIGN 16 /* of bases and strides */

enum quire_kv_execution {
  QUIRE_KV_BY_THREAD = 0, /* commands run on a thread of the bank's */
  QUIRE_KV_BY_CALLER = 1, /* commands run inside submit */
};

struct quire_kv_bank;

struct quire_kv_bank_options {
  size_t size;
  int32_t rank;           /* 0 .. ranks - 1 */
  int32_t queue_commands; /* submitted and not yet polled, 1 to QUIRE_KV_QUEUE_MAX; 0: 64 */
  int32_t execution;      /* enum quire_kv_execution */
  int32_t reserved;
  const struct quire_kv_allocator *allocator; /* NULL: libc's */
};

/* Why a command failed, beside its ack. */
struct quire_kv_fault {
  size_t size;
  uint64_t op;
  int32_t part; /* index of the part that is to blame; -1: none */
  int32_t reserved;
};

/* A bank without memory. QUIRE_ERR_ARGUMENT, QUIRE_ERR_MEMORY (or no thread), QUIRE_ERR_AGAIN (no handle left). */
QUIRE_API enum quire_status quire_kv_bank_create(struct quire_kv_layout *layout,
                                                 const struct quire_kv_bank_options *options,
                                                 struct quire_kv_bank **bank_out, struct quire_error *error_out);
/* Waits for what was submitted to it and to the banks connected with it. NULL is QUIRE_OK. QUIRE_ERR_STATE: destroyed
 * before. */
QUIRE_API enum quire_status quire_kv_bank_destroy(struct quire_kv_bank *bank);

/* The caller's memory for one part. page_stride >= the part's page_bytes; pages >= the rank's local pages. Parts may be
 * interleaved (one stride, each page of one between the pages of another) but not overlap each other or host memory.
 * QUIRE_ERR_ARGUMENT; QUIRE_ERR_STATE: the part has memory. */
QUIRE_API enum quire_status quire_kv_bank_bind(struct quire_kv_bank *bank, int32_t part, void *base,
                                               int64_t page_stride, int32_t pages, struct quire_error *error_out);
/* Memory of the bank's own for all parts that have none, touched at once. QUIRE_ERR_MEMORY: the allocator refuses, or,
 * without an allocator of the caller's and from 64 MiB on, it is more than the system says is available now, its limit
 * for the process's group included; the bank is as before, and fewer pages or memory bound by the caller may do.
 * QUIRE_ERR_STATE: all have memory. */
QUIRE_API enum quire_status quire_kv_bank_allocate(struct quire_kv_bank *bank, struct quire_error *error_out);
/* The worker's host memory, at a multiple of 8; the caller's. Again replaces the former. QUIRE_ERR_ARGUMENT: it
 * overlaps memory of the bank, among others. QUIRE_ERR_STATE: commands are open. */
QUIRE_API enum quire_status quire_kv_bank_host(struct quire_kv_bank *bank, void *base, int64_t bytes,
                                               struct quire_error *error_out);
/* Makes the banks of a worker, banks[r] being rank r's, known to each other. QUIRE_ERR_ARGUMENT when ranks or layouts
 * do not fit, or memory of two overlaps; QUIRE_ERR_STATE when a part has no memory, a command is open or a bank is
 * connected already. */
QUIRE_API enum quire_status quire_kv_bank_connect(struct quire_kv_bank *const *banks, int32_t ranks,
                                                  struct quire_error *error_out);

/* First byte of a page of a part in this rank's memory. QUIRE_ERR_ARGUMENT: the rank does not store the page, or a
 * number is outside. QUIRE_ERR_STATE: the part has no memory. */
QUIRE_API enum quire_status quire_kv_bank_page(struct quire_kv_bank *bank, int32_t part, quire_kv_page page,
                                               void **address_out);

/* Queues a command whose mask names this rank; it is checked before it is queued. QUIRE_ERR_ARGUMENT (the text names
 * the fault), QUIRE_ERR_STATE (not connected, or no host memory for it), QUIRE_ERR_AGAIN (queue full: poll). */
QUIRE_API enum quire_status quire_kv_bank_submit(struct quire_kv_bank *bank, const struct quire_kv_command *command,
                                                 struct quire_error *error_out);
/* Acks in order of submission, at most acks_max; *count_out of them. Never waits. */
QUIRE_API enum quire_status quire_kv_bank_poll(struct quire_kv_bank *bank, struct quire_kv_ack *acks_out,
                                               int32_t acks_max, int32_t *count_out);
/* The last polled command that failed; *why_out (may be NULL) says why. QUIRE_ERR_NOT_FOUND: none has. */
QUIRE_API enum quire_status quire_kv_bank_fault(struct quire_kv_bank *bank, struct quire_kv_fault *fault_out,
                                                struct quire_error *why_out);
/* Blocks until everything submitted has executed, ready to be polled. */
QUIRE_API enum quire_status quire_kv_bank_drain(struct quire_kv_bank *bank);

#ifdef __cplusplus
}
#endif
#endif
