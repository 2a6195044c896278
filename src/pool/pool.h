/* The pool: states of pages, free lists of stripes, references, pins and page tables. It knows ids only, never memory,
 * tokens or a tree (design, laws 2 and 5, decision D1).
 *
 *                    extend                    seal
 *     free ------------------------> filling --------> sealed <--------- uncached, but still referred to
 *      ^                                |                | ^
 *      |  no pin left, not lost         | close          | | cache / uncache, share / close
 *      +---- quarantined <--------------+----------------+ +--- cached (in the tree), refs >= 0; evictable at refs 0
 *
 *   reference   a request's page table holds the page (or, as a shadow, the tree's copy of a page it has twice).
 *               refs of a page = number of tables that hold it
 *   pin         an operation in flight reads or writes the page. It outlives references: a page that leaves use with
 *               pins is quarantined until the last pin is gone
 *   lost        a pin whose operation will never be seen to end. Such pages stay quarantined; more than lost_max of
 *               them make the worker unhealthy
 *   stripe      all pages of one owner (geometry.h); a page never changes its stripe
 *
 * Which stripe a new page comes from (D1). The stripe after that of the request's last page is a preference. At a
 * branch of the tree (the request's first own page), when the pages of its chain are spread over the stripes with a
 * difference of more than chain_spread_max, or when the preferred stripe has nothing to give, it is the stripe with
 * most free pages; ties go to most evictable pages, then to fewest pages of this chain, then in turn. With a retired
 * hook, by which evicted pages come back late, nothing is evicted while enough pages are free. Nothing depends on the
 * order, since everything derives from the page id. A strict rotation was rejected: prompts that branch after
 * the same page then all want the same stripe, and pages of the others lie idle (tests/pool shows the figures).
 *
 * Memory: one block, taken from env at creation, given back by destroy; nothing is allocated in between.
 * Threads: one owner. Errors: input gets a status; a call that breaks a page's life is a bug of ours and asserts. */
#ifndef QUIRE_POOL_POOL_H
#define QUIRE_POOL_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/status.h"
#include "layout/geometry.h"
#include "layout/ids.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_CHAIN_SPREAD_MAX 8

enum quire_page_state { QUIRE_PAGE_FREE, QUIRE_PAGE_FILLING, QUIRE_PAGE_SEALED, QUIRE_PAGE_QUARANTINED };

/* A page table: the pages of one request, by request page. */
typedef struct {
  int32_t v;
} quire_table_id;

/* What the pool asks of its owner. Any may be NULL. */
struct quire_pool_hooks {
  void *context;
  /* Takes exactly one evictable page out of the tree by quire_pool_uncache, preferably one of this stripe. Called only
   * while the stripe has evictable pages. NULL: nothing is ever evicted. */
  void (*evict)(void *context, quire_stripe_id stripe);
  /* A cached page got its first reference, or lost its last. */
  void (*held)(void *context, quire_page page, bool held);
  /* A page left use and has no pins: the last moment to pin it for an operation of its own (poison) before it is free.
   */
  void (*retired)(void *context, quire_page page);
};

struct quire_pool_config {
  struct quire_geometry geometry;
  int32_t tables;           /* page tables, at least 1 */
  int32_t table_pages;      /* pages a table can hold, at least 1 */
  int32_t chain_spread_max; /* pages; QUIRE_CHAIN_SPREAD_MAX unless tests want another */
  int32_t lost_max;         /* lost pages that still count as healthy */
};

/* Pages of one stripe, or of all. free + filling + sealed + quarantined = total; evictable and cached are among the
 * sealed, lost among the quarantined. */
struct quire_pool_counts {
  int32_t total, free, filling, sealed, quarantined;
  int32_t cached, evictable, lost;
  int64_t refs; /* held by page tables and their shadows */
  int64_t pins; /* held by operations in flight */
};

struct quire_pool;

/* Bytes quire_pool_create takes. */
int64_t quire_pool_bytes(const struct quire_pool_config *config);
/* hooks are copied and may be NULL. QUIRE_ERR_ARGUMENT, QUIRE_ERR_MEMORY. */
enum quire_status quire_pool_create(const struct quire_env *env, const struct quire_pool_config *config,
                                    const struct quire_pool_hooks *hooks, struct quire_pool **pool_out,
                                    struct quire_error *error_out);
void quire_pool_destroy(struct quire_pool *pool);

/* --- page tables --- */

/* An empty page table. QUIRE_ERR_AGAIN when all are in use. */
enum quire_status quire_pool_table_open(struct quire_pool *pool, quire_table_id *table_out);
/* Appends a sealed page, which gets one reference more. The table has no page of its own yet, and room. */
void quire_pool_table_share(struct quire_pool *pool, quire_table_id table, quire_page page);
/* Appends `count` fresh pages in state filling, evicting what their stripes lack. All or nothing: QUIRE_ERR_AGAIN when
 * there are fewer than count free and evictable pages, and nothing was changed; QUIRE_ERR_AGAIN also when pages had to
 * be evicted whose retired hook pinned them: they are on their way and count at the next attempt. QUIRE_ERR_ARGUMENT
 * when the table has no room for them. */
enum quire_status quire_pool_table_extend(struct quire_pool *pool, quire_table_id table, int32_t count);
/* The page at index is complete: filling becomes sealed. */
void quire_pool_table_seal(struct quire_pool *pool, quire_table_id table, int32_t index);
/* Puts a sealed page in the place of one still filling, which no one has written; that one is retired. */
void quire_pool_table_replace(struct quire_pool *pool, quire_table_id table, int32_t index, quire_page page);
/* The tree has another page of the content at index: holds that one too, so that what hangs below it stays reachable.
 * One shadow an index. */
void quire_pool_table_shadow(struct quire_pool *pool, quire_table_id table, int32_t index, quire_page page);
/* Gives all shadows of a table back, the last first; returns how many there were. */
int32_t quire_pool_table_unshadow(struct quire_pool *pool, quire_table_id table);
/* Gives back the pages from index on, with their shadows: references drop; a page nobody refers to and that is not
 * cached is retired. */
void quire_pool_table_truncate(struct quire_pool *pool, quire_table_id table, int32_t index);
/* Truncates at 0 and closes the table. */
void quire_pool_table_close(struct quire_pool *pool, quire_table_id table);
/* The pages by request page, *count_out of them; valid until the table is closed. Entries never move; one changes only
 * by quire_pool_table_replace. */
const quire_page *quire_pool_table_pages(const struct quire_pool *pool, quire_table_id table, int32_t *count_out);
/* The shadow at index, QUIRE_PAGE_NONE where there is none. */
quire_page quire_pool_table_shadow_at(const struct quire_pool *pool, quire_table_id table, int32_t index);

/* --- pages --- */

/* A sealed page enters the tree, or leaves it; one that leaves it without references is retired. */
void quire_pool_cache(struct quire_pool *pool, quire_page page);
void quire_pool_uncache(struct quire_pool *pool, quire_page page);
/* An operation in flight begins, or has been seen to end. Only pages that are not free. */
void quire_pool_pin(struct quire_pool *pool, quire_page page);
void quire_pool_unpin(struct quire_pool *pool, quire_page page);
/* The operation that pins the page will not be seen to end: as soon as the page is quarantined it counts as lost. A
 * late quire_pool_unpin of its last pin still brings it back. */
void quire_pool_lose(struct quire_pool *pool, quire_page page);

enum quire_page_state quire_pool_page_state(const struct quire_pool *pool, quire_page page);
bool quire_pool_page_cached(const struct quire_pool *pool, quire_page page);
int32_t quire_pool_page_refs(const struct quire_pool *pool, quire_page page);

/* --- sums --- */

/* Pages a table_extend could have now, over all stripes. */
int64_t quire_pool_available(const struct quire_pool *pool);
/* Pages that are quarantined and not lost: they will be free without anybody's further doing. */
int32_t quire_pool_coming(const struct quire_pool *pool);
void quire_pool_count(const struct quire_pool *pool, struct quire_pool_counts *counts_out);
void quire_pool_stripe_count(const struct quire_pool *pool, quire_stripe_id stripe,
                             struct quire_pool_counts *counts_out);
/* Not more than lost_max pages are lost. */
bool quire_pool_healthy(const struct quire_pool *pool);

/* Recomputes every sum from the pages and tables and compares (law 2). False with the first difference in why_out,
 * which may be NULL. Walks everything. */
bool quire_pool_check(const struct quire_pool *pool, struct quire_error *why_out);
/* Digest of the whole state but the order inside free lists: equal for pools that will behave alike up to page ids. */
struct quire_hash128 quire_pool_digest(const struct quire_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
