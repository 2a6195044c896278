/* The cache: which request holds which pages, what may be matched, who is evicted. The brain over one pool and one
 * tree; it has no device, no thread and no clock, answers calls and emits commands (command.h). The engine turns the
 * ranks' acknowledgements into the calls below; the cache learns nothing by itself.
 *
 * A request's life:
 *
 *   open --fill--> [ matched | reserved, filling .................. ]   page table, by request page
 *                    sealed    ^ commit seals whole pages and puts them into the tree
 *        <--reset-- (preemption: sealed pages stay cached, a later fill is a hit)
 *        --close--> handle gone
 *
 *   request_begin = open + fill, request_release = close.
 *
 * Reservations (D1): fill reserves prompt and headroom together, all or nothing, so two half-prefilled prompts can not
 * wait for each other; grow takes more when decode gets there. A refusal, QUIRE_ERR_AGAIN, changes nothing that can be
 * seen; with `poison` on it may have begun to evict cached pages: once all commands are acknowledged they are free, and
 * enough for the same request.
 *
 * Duplicates: two requests that computed the same page keep their own, since a published page table entry never
 * changes; the tree keeps the one that was sealed first, the other is freed when its request ends.
 *
 * Law 5: a page named by a command that is not yet acknowledged by all its ranks is not handed out. Release, reset and
 * drop are for pages that no step in flight reads or writes any more: the engine calls them at plan borders.
 *
 * A second pool, for host memory, will stand beside the first one; the tree stays one.
 *
 * Memory: three blocks at creation (quire_cache_bytes in all), nothing later. Threads: one owner.
 * Errors: as each call says; on failure nothing was changed. */
#ifndef QUIRE_CACHE_CACHE_H
#define QUIRE_CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/status.h"
#include "layout/chain.h"
#include "layout/command.h"
#include "layout/geometry.h"
#include "layout/ids.h"
#include "layout/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_cache;

struct quire_cache_config {
  struct quire_geometry geometry;
  const struct quire_parts *parts;  /* read at creation only */
  struct quire_hash128 fingerprint; /* fingerprint.h */
  enum quire_chain_kind chain_kind; /* 0: QUIRE_CHAIN_XXH3 */
  const void *tenant_salt;          /* read at creation only; NULL with 0 bytes: none */
  int32_t tenant_salt_bytes;
  int32_t requests_max;
  int32_t request_pages_max; /* pages a request may have: its longest length, rounded up */
  int32_t chain_spread_max;  /* 0: QUIRE_CHAIN_SPREAD_MAX of pool.h */
  int32_t lost_pages_max;
  bool poison; /* freed pages are poisoned by command before they are free again (debugging) */
};

/* A request. Using a handle that was released is a bug of the caller's, and asserts. */
typedef struct {
  int32_t slot;    /* 0 .. requests_max - 1, free for the engine to index its own arrays */
  uint32_t serial; /* never 0 in a live handle */
} quire_cache_request;

struct quire_cache_fill {
  const int32_t *tokens;            /* the prompt; after a preemption with everything generated so far */
  int32_t tokens_count;             /* at least 1 */
  int32_t reserve_tokens;           /* headroom for tokens to come, at least 0 */
  bool no_match;                    /* take nothing from the tree (a prompt whose log-probabilities are wanted) */
  int32_t match_max;                /* > 0: take at most so many tokens from it, and none by rematch */
  const struct quire_hash128 *root; /* of the request's chains, by quire_cache_salted; NULL: the cache's own */
};

struct quire_cache_stats {
  int32_t pages; /* free + filling + sealed + quarantined */
  int32_t free, filling, sealed, quarantined;
  int32_t cached, evictable, lost;
  int64_t refs; /* pages held by requests, counted once a request */
  int64_t pins; /* commands not yet acknowledged */
  int32_t requests;
  bool healthy; /* not more than lost_pages_max pages are lost */
  /* since creation */
  int64_t fill_tokens;     /* prompt tokens of successful fills */
  int64_t hit_tokens;      /* of these, found in the tree (rematches included) */
  int64_t inserted_pages;  /* put into the tree */
  int64_t duplicate_pages; /* sealed, but the tree had them */
  int64_t evicted_pages;
  int64_t refusals; /* QUIRE_ERR_AGAIN answers of fill and grow */
};

/* Bytes quire_cache_create takes; 0 for a configuration it would refuse. */
int64_t quire_cache_bytes(const struct quire_cache_config *config);
/* QUIRE_ERR_ARGUMENT, QUIRE_ERR_MEMORY. */
enum quire_status quire_cache_create(const struct quire_env *env, const struct quire_cache_config *config,
                                     struct quire_cache **cache_out, struct quire_error *error_out);
/* Requests still open are forgotten. */
void quire_cache_destroy(struct quire_cache *cache);

/* --- requests --- */

/* The root of a tenant's chains: what one tenant puts into the tree no other finds. 0 to QUIRE_CHAIN_SALT_MAX bytes;
 * none: the cache's own root. QUIRE_ERR_ARGUMENT. */
enum quire_status quire_cache_salted(const struct quire_cache *cache, const void *salt, int32_t salt_bytes,
                                     struct quire_hash128 *root_out, struct quire_error *error_out);
/* Number of whole pages of the prompt in the tree, at most (count - 1) / page_tokens: the last token is always
 * computed. Changes nothing. */
int32_t quire_cache_match(const struct quire_cache *cache, const int32_t *tokens, int32_t count);
/* As match, below another root. */
int32_t quire_cache_match_below(const struct quire_cache *cache, struct quire_hash128 root, const int32_t *tokens,
                                int32_t count);

/* Open and fill in one. On failure there is no handle.
 * QUIRE_ERR_AGAIN: no page table or not enough pages now. QUIRE_ERR_REQUEST: it can never fit; the text says how many
 * tokens were asked for and how many there could be. QUIRE_ERR_ARGUMENT: a count out of bounds. */
enum quire_status quire_cache_request_begin(struct quire_cache *cache, const struct quire_cache_fill *fill,
                                            quire_cache_request *request_out, struct quire_error *error_out);
/* Fills a request that was reset. Errors as begin; the request stays empty. */
enum quire_status quire_cache_request_fill(struct quire_cache *cache, quire_cache_request request,
                                           const struct quire_cache_fill *fill, struct quire_error *error_out);
/* Gives all pages back for a while (preemption): sealed ones stay cached, the tail and what was not sealed is free. */
void quire_cache_request_reset(struct quire_cache *cache, quire_cache_request request);
/* As reset, and the handle ends. */
void quire_cache_request_release(struct quire_cache *cache, quire_cache_request request);

/* Positions below this need no computing: matched by fill, or committed. */
int32_t quire_cache_request_tokens(const struct quire_cache *cache, quire_cache_request request);
/* Page table by request page, *count_out entries. Valid until reset or release; an entry changes only by rematch, and
 * only one no position of which was written. */
const quire_page *quire_cache_request_pages(const struct quire_cache *cache, quire_cache_request request,
                                            int32_t *count_out);
/* Makes sure that positions [0, tokens) have pages. Appends what is missing, all or nothing. QUIRE_ERR_AGAIN: not now,
 * somebody must be preempted; QUIRE_ERR_REQUEST: longer than a request can be. */
enum quire_status quire_cache_request_grow(struct quire_cache *cache, quire_cache_request request, int32_t tokens,
                                           struct quire_error *error_out);
/* Lets the tree's copies go of pages the request has twice, so that they can be evicted; what it put into the tree
 * behind them leaves the tree, and it puts no more into it. Returns how many copies it held. For a request that cannot
 * grow: with a copy of each page it would need twice the pages it may have. */
int32_t quire_cache_request_let_go(struct quire_cache *cache, quire_cache_request request);
/* Looks again whether the tree has pages that follow the committed ones, as another request may just have filled them,
 * and takes them in the place of reserved pages. For borders between chunks: nothing at or behind
 * quire_cache_request_tokens may have been written, which must be a page border (else nothing is done). tokens[count]
 * is the whole prompt. Returns the number of tokens won. */
int32_t quire_cache_request_rematch(struct quire_cache *cache, quire_cache_request request, const int32_t *tokens,
                                    int32_t count);
/* Rows [0, tokens_written) of every part are in their pages, acknowledged by every rank; tokens are those of positions
 * [0, tokens_written). Whole pages become sealed and enter the tree. Never goes back. QUIRE_ERR_ARGUMENT when it would,
 * or when there are no pages for so many. */
enum quire_status quire_cache_request_commit(struct quire_cache *cache, quire_cache_request request,
                                             int32_t tokens_written, const int32_t *tokens,
                                             struct quire_error *error_out);

/* --- the tree --- */

/* Evicts up to `pages` cached pages, least recently used first; returns how many. */
int32_t quire_cache_evict(struct quire_cache *cache, int32_t pages);
/* The page's content is gone or in doubt: it and everything below it leave the tree; requests that hold it go on, but
 * put no further pages into the tree. Returns the number of pages that left. */
int32_t quire_cache_drop_page(struct quire_cache *cache, quire_page page);
/* Detaches everything cached at once; pages in use are freed when their last request ends, and requests that run put
 * no further pages into the tree. Returns the number of pages that left. */
int32_t quire_cache_flush(struct quire_cache *cache);

/* --- commands --- */

/* Takes up to max commands out of the queue. The queue has room for one command a page and can not overflow. */
int32_t quire_cache_commands(struct quire_cache *cache, struct quire_command *commands_out, int32_t max);
/* One rank's answer. A page is free again after the last rank's. An answer other than QUIRE_OK makes the page lost: it
 * stays quarantined. QUIRE_ERR_STATE: no such command is open for this rank (a second answer, or none of ours). */
enum quire_status quire_cache_ack(struct quire_cache *cache, const struct quire_ack *ack,
                                  struct quire_error *error_out);

/* --- insight --- */

void quire_cache_stats(const struct quire_cache *cache, struct quire_cache_stats *stats_out);
/* Pages a fill or grow could have now: free or evictable. */
int32_t quire_cache_available(const struct quire_cache *cache);
/* Pages on their way to be free, by commands not yet acknowledged. */
int32_t quire_cache_coming(const struct quire_cache *cache);
/* Not more pages than lost_pages_max are lost. */
bool quire_cache_healthy(const struct quire_cache *cache);
/* Root of the chains in this cache, for names of pages at rest. */
struct quire_hash128 quire_cache_root(const struct quire_cache *cache);
/* Bytes of all parts of one page. */
int64_t quire_cache_bundle_bytes(const struct quire_cache *cache);
/* Laws 1 to 3 recomputed from pool, tree and requests. False with the first fault in why_out (may be NULL). */
bool quire_cache_check(const struct quire_cache *cache, struct quire_error *why_out);
/* Digest of everything that can be seen, counters since creation left out. */
struct quire_hash128 quire_cache_digest(const struct quire_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
