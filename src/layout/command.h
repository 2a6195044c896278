/* What the brain asks of the hands, and what they answer (design, section 4). The cache emits commands; the engine puts
 * them where the ranks' banks find them; each rank of the command's mask executes it on its own memory and answers with
 * one acknowledgement. A page named by an open command is not used for anything else before the last one is in.
 *
 *   kind       executed by                reads                   writes                 digest in the ack
 *   COPY_PAGE  ranks that store target    page, at its sender     target                 of the target's parts
 *   POISON     ranks that store page      -                       page: 0xFF, NaN in every format
 *   DIGEST     ranks that store page      page                    -                      of the page's parts
 *   PACK       the page's sender          page                    bundle at host_offset  of the page's parts
 *   UNPACK     ranks that store page      bundle at host_offset   page                   of the page's parts
 *
 * The digest of a page is the XXH3-128 of its parts' digests in table order (quire_command_digest). host_offset counts
 * from the start of the worker's host memory and is a multiple of 4,096. COPY_PAGE copies the first valid_tokens rows
 * of each part; the target need not belong to the same stripe.
 *
 * Plain data of fixed size, the same in every process. Threads: values. */
#ifndef QUIRE_LAYOUT_COMMAND_H
#define QUIRE_LAYOUT_COMMAND_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "layout/geometry.h"
#include "layout/ids.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_command_kind {
  QUIRE_COMMAND_COPY_PAGE = 1,
  QUIRE_COMMAND_POISON = 2,
  QUIRE_COMMAND_DIGEST = 3,
  QUIRE_COMMAND_PACK = 4,
  QUIRE_COMMAND_UNPACK = 5,
};

struct quire_command {
  uint64_t op;    /* names the command among the open ones of a worker */
  uint64_t epoch; /* step the command belongs to; 0 until the engine puts it into one */
  int32_t kind;   /* enum quire_command_kind */
  uint32_t ranks; /* bit r: rank r executes and acknowledges */
  quire_page page;
  quire_page target;               /* COPY_PAGE, else QUIRE_PAGE_NONE */
  quire_request_page request_page; /* PACK, UNPACK: for the trailer */
  int32_t valid_tokens;            /* 1 to page_tokens; POISON: page_tokens */
  int64_t host_offset;             /* PACK, UNPACK, else 0 */
  struct quire_hash128 chain;      /* PACK, UNPACK: name of the content (chain.h) */
};

struct quire_ack {
  uint64_t op;
  uint64_t epoch;
  int32_t status; /* enum quire_status */
  quire_rank_id rank;
  struct quire_hash128 digest; /* zero where the kind has none */
};

static_assert(sizeof(struct quire_command) == 64, "command of 64 bytes");
static_assert(offsetof(struct quire_command, kind) == 16, "kind at 16");
static_assert(offsetof(struct quire_command, page) == 24, "page at 24");
static_assert(offsetof(struct quire_command, host_offset) == 40, "host offset at 40");
static_assert(offsetof(struct quire_command, chain) == 48, "chain at 48");
static_assert(sizeof(struct quire_ack) == 40, "ack of 40 bytes");
static_assert(offsetof(struct quire_ack, status) == 16, "status at 16");
static_assert(offsetof(struct quire_ack, digest) == 24, "digest at 24");

/* Ranks that store a page, as a mask. */
uint32_t quire_command_storing_ranks(const struct quire_geometry *geometry, quire_page page);

/* The digest of a page from the digests of its parts. */
struct quire_hash128 quire_command_digest(const struct quire_hash128 *part_digests, int32_t part_count);

/* True for a command a bank may execute: kind known, ranks exactly those of the table above, pages, valid tokens and
 * offset in bounds. why_out (may be NULL) names the first fault. Banks check before they touch anything. */
bool quire_command_check(const struct quire_geometry *geometry, const struct quire_command *command,
                         const char **why_out);

const char *quire_command_kind_name(int32_t kind);

#ifdef __cplusplus
}
#endif
#endif
