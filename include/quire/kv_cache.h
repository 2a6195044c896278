/* The cache: which request holds which pages, what can be matched, who is evicted. The brain of one worker; it has no
 * memory of KV, no thread and no clock. It answers calls and emits commands, which the caller hands to banks
 * (kv_bank.h) or executes itself.
 *
 *   reserve --> [ matched | reserved .............. ]  pages by request page (position / page_tokens)
 *                 sealed     ^ seal: rows are written, whole pages enter the tree and can be matched
 *      <-- reset  (preemption: sealed pages stay cached; refill is a hit)
 *      <-- release
 *
 * A step of an engine that embeds the cache:
 *
 *   1. reserve (or grow, when the answer has become longer than what was reserved)
 *   2. pages, tokens: compute positions [tokens, prompt length) and write their rows into the pages, each on the ranks
 *      that store it
 *   3. when all rows of all parts are in place: seal
 *   4. release, when the answer is complete
 *   5. commands -> banks -> complete, as long as there are any
 *
 * Two requests that computed the same page keep their own; the tree keeps the first. A page that a command names is not
 * handed out before every rank of the command has answered. reset, release and drop are for pages that no step in
 * flight reads or writes any more.
 *
 * Threads: one owner at a time. Memory: all at creation, quire_kv_cache_bytes; nothing later. */
#ifndef QUIRE_KV_CACHE_H
#define QUIRE_KV_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "quire/kv_layout.h"
#include "quire/kv_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_KV_SALT_BYTES_MAX 64

enum quire_kv_chain { QUIRE_KV_CHAIN_XXH3 = 1, QUIRE_KV_CHAIN_SHA256 = 2 };

struct quire_kv_cache;

struct quire_kv_cache_options {
  size_t size;
  int32_t requests_max;      /* open at once, 1 to 65,536; 0: 64 */
  int32_t request_pages_max; /* 1 to 4,194,304; 0: as many as the layout has, or that */
  int32_t chain_kind;        /* enum quire_kv_chain; 0: XXH3. SHA-256 where tenants or machines share stored pages */
  int32_t chain_spread_max;  /* pages by which the ranks' shares of one request may differ; 0: 8 */
  int32_t lost_pages_max; /* lost pages (see quire_kv_cache_complete) with which the cache still calls itself healthy */
  int32_t poison;         /* 1: a page that leaves use is poisoned by command before it is free (debugging) */
  const void *tenant_salt;   /* pages of different salts are never matched with each other */
  int32_t tenant_salt_bytes; /* 0 to QUIRE_KV_SALT_BYTES_MAX */
  int32_t reserved;
  const struct quire_kv_allocator *allocator; /* NULL: libc's */
};

/* An open request of one cache; never 0. Its low 16 bits are a number below requests_max that no other open request of
 * the cache has: an index for arrays of the caller's. */
typedef struct {
  uint64_t v;
} quire_kv_request;

struct quire_kv_reserve {
  size_t size;
  const int32_t *tokens;  /* the prompt; after a preemption with everything generated so far */
  int32_t tokens_count;   /* at least 1 */
  int32_t reserve_tokens; /* headroom for tokens to come, at least 0 */
  int32_t no_match;       /* 1: take nothing from the tree */
  int32_t reserved;
};

/* An order to ranks. Plain data of 64 bytes, the same in every process.
 *
 *   kind     executed by               reads                  writes                 digest in the ack
 *   COPY     ranks that store target   page, at its sender    target                 of the target's parts
 *   POISON   ranks that store page     -                      page: 0xFF, a NaN      -
 *   DIGEST   ranks that store page     page                   -                      of the page's parts
 *   PACK     the page's sender         page                   host memory            of the page's parts
 *   UNPACK   ranks that store page     host memory            page                   of the page's parts
 *
 * The digest is the XXH3-128 of the XXH3-128s of the parts' valid rows. The cache emits POISON only; the others are for
 * the caller to make. */
enum quire_kv_command_kind {
  QUIRE_KV_COPY = 1,
  QUIRE_KV_POISON = 2,
  QUIRE_KV_DIGEST = 3,
  QUIRE_KV_PACK = 4,
  QUIRE_KV_UNPACK = 5,
};

struct quire_kv_command {
  uint64_t op;    /* names the command; comes back in the ack */
  uint64_t epoch; /* the caller's, for instance a step; comes back in the ack */
  int32_t kind;   /* enum quire_kv_command_kind */
  uint32_t ranks; /* bit r: rank r executes and acknowledges; exactly those of the table above */
  quire_kv_page page;
  quire_kv_page target;       /* COPY, else QUIRE_KV_PAGE_NONE */
  int32_t request_page;       /* PACK, UNPACK: position / page_tokens of the page's first token */
  int32_t valid_tokens;       /* rows that count, 1 to page_tokens */
  int64_t host_offset;        /* PACK, UNPACK: into host memory, a multiple of 4,096; else 0 */
  struct quire_kv_hash chain; /* PACK, UNPACK: name of the content, quire_kv_cache_chain */
};

struct quire_kv_ack {
  uint64_t op;
  uint64_t epoch;
  int32_t status; /* enum quire_status */
  int32_t rank;
  struct quire_kv_hash digest; /* zero where the kind has none */
};

/* Pages: free + filling + sealed + quarantined = pages. Cached (in the tree) and evictable (cached, held by nobody) are
 * among the sealed, lost among the quarantined. */
struct quire_kv_cache_stats {
  size_t size;
  int64_t pages, free, filling, sealed, quarantined;
  int64_t cached, evictable, lost;
  int64_t refs; /* pages held by requests, counted once a request; of one it computed twice, the tree's copy as well */
  int64_t pins; /* commands that are not complete */
  int64_t requests;
  int64_t healthy; /* 1: not more than lost_pages_max pages are lost */
  /* since creation */
  int64_t fill_tokens;     /* prompt tokens reserved for */
  int64_t hit_tokens;      /* of these, found in the tree */
  int64_t inserted_pages;  /* put into the tree */
  int64_t duplicate_pages; /* sealed, but the tree had them */
  int64_t evicted_pages;
  int64_t refusals; /* QUIRE_ERR_AGAIN of reserve, refill and grow */
};

/* Bytes quire_kv_cache_create would take from its allocator. QUIRE_ERR_ARGUMENT. */
QUIRE_API enum quire_status quire_kv_cache_bytes(struct quire_kv_layout *layout,
                                                 const struct quire_kv_cache_options *options, int64_t *bytes_out,
                                                 struct quire_error *error_out);
/* QUIRE_ERR_ARGUMENT (the text names what), QUIRE_ERR_AGAIN (no handle left). QUIRE_ERR_MEMORY: the allocator refuses,
 * or, without one of the caller's, it is more than the system says is available now: every request has a table of
 * request_pages_max entries, so the two limits multiply. */
QUIRE_API enum quire_status quire_kv_cache_create(struct quire_kv_layout *layout,
                                                  const struct quire_kv_cache_options *options,
                                                  struct quire_kv_cache **cache_out, struct quire_error *error_out);
/* Open requests end. NULL is QUIRE_OK. QUIRE_ERR_STATE: destroyed before. */
QUIRE_API enum quire_status quire_kv_cache_destroy(struct quire_kv_cache *cache);

/* --- requests. QUIRE_ERR_NOT_FOUND where the request was released, or is of another cache --- */

/* Number of whole pages of tokens[count] in the tree, at most (count - 1) / page_tokens: the last token is always
 * computed. Changes nothing. */
QUIRE_API enum quire_status quire_kv_cache_match(struct quire_kv_cache *cache, const int32_t *tokens, int32_t count,
                                                 int32_t *pages_out);
/* Opens a request with pages for prompt and headroom: those of the longest match, and fresh ones for the rest, all or
 * nothing. Evicts what it must. QUIRE_ERR_AGAIN: not enough pages or requests now; with `poison` it may have begun to
 * evict, and those pages are free when their commands are complete: execute them, then call again. QUIRE_ERR_REQUEST:
 * it can never fit; the text says what would. */
QUIRE_API enum quire_status quire_kv_cache_reserve(struct quire_kv_cache *cache, const struct quire_kv_reserve *reserve,
                                                   quire_kv_request *request_out, struct quire_error *error_out);
/* As reserve, for a request that was reset. QUIRE_ERR_STATE: it has pages. */
QUIRE_API enum quire_status quire_kv_cache_refill(struct quire_kv_cache *cache, quire_kv_request request,
                                                  const struct quire_kv_reserve *reserve,
                                                  struct quire_error *error_out);
/* Positions [0, tokens) get pages, what is missing is appended, all or nothing. QUIRE_ERR_AGAIN: not now, as in
 * reserve. QUIRE_ERR_REQUEST: longer than a request can be. */
QUIRE_API enum quire_status quire_kv_cache_grow(struct quire_kv_cache *cache, quire_kv_request request, int32_t tokens,
                                                struct quire_error *error_out);
/* Looks again whether the tree has pages that follow the sealed ones, and takes them in the place of reserved pages.
 * For borders between chunks: nothing at or behind quire_kv_cache_tokens may have been written. tokens[count] is the
 * whole prompt. *won_out is the number of tokens won. */
QUIRE_API enum quire_status quire_kv_cache_rematch(struct quire_kv_cache *cache, quire_kv_request request,
                                                   const int32_t *tokens, int32_t count, int32_t *won_out);
/* The request's pages by request page. Writes the first pages_max to pages_out (NULL with 0: none) and the number there
 * is to *count_out. An entry changes only by rematch, reset and refill. */
QUIRE_API enum quire_status quire_kv_cache_pages(struct quire_kv_cache *cache, quire_kv_request request,
                                                 quire_kv_page *pages_out, int32_t pages_max, int32_t *count_out);
/* Positions below *tokens_out need no computing: matched or sealed. */
QUIRE_API enum quire_status quire_kv_cache_tokens(struct quire_kv_cache *cache, quire_kv_request request,
                                                  int32_t *tokens_out);
/* The rows of positions [0, count) of every part are in their pages, on every rank that stores them; tokens[count] are
 * the tokens of these positions. Whole pages are sealed and enter the tree. count never goes back.
 * QUIRE_ERR_ARGUMENT when it would, or when there are no pages for so many. */
QUIRE_API enum quire_status quire_kv_cache_seal(struct quire_kv_cache *cache, quire_kv_request request,
                                                const int32_t *tokens, int32_t count, struct quire_error *error_out);
/* Gives all pages back and keeps the request: sealed pages stay cached, the others are free. */
QUIRE_API enum quire_status quire_kv_cache_reset(struct quire_kv_cache *cache, quire_kv_request request);
/* As reset, and the request ends. Again: QUIRE_ERR_NOT_FOUND. */
QUIRE_API enum quire_status quire_kv_cache_release(struct quire_kv_cache *cache, quire_kv_request request);

/* --- the tree. The out parameter is the number of pages that left it, and may be NULL --- */

/* Evicts up to `pages` cached pages that nobody holds, least recently used first. */
QUIRE_API enum quire_status quire_kv_cache_evict(struct quire_kv_cache *cache, int32_t pages, int32_t *evicted_out);
/* The content of a page is gone or in doubt: it leaves the tree with everything below it. Requests that hold it go on,
 * but put no further pages into the tree. */
QUIRE_API enum quire_status quire_kv_cache_drop(struct quire_kv_cache *cache, quire_kv_page page, int32_t *left_out);
/* Everything leaves the tree; pages in use are free when their last request ends. */
QUIRE_API enum quire_status quire_kv_cache_flush(struct quire_kv_cache *cache, int32_t *left_out);
/* The name of the page that ends with position count - 1 of tokens[count]: what it contains and all before it. Never
 * names a rank or a page number. count >= 1. QUIRE_ERR_MEMORY with SHA-256 only. */
QUIRE_API enum quire_status quire_kv_cache_chain(struct quire_kv_cache *cache, const int32_t *tokens, int32_t count,
                                                 struct quire_kv_hash *chain_out);

/* --- commands --- */

/* Takes up to commands_max commands out of the queue, *count_out of them. There is at most one a page. */
QUIRE_API enum quire_status quire_kv_cache_commands(struct quire_kv_cache *cache, struct quire_kv_command *commands_out,
                                                    int32_t commands_max, int32_t *count_out);
/* One rank's answer to a command. After the last rank's the page is free. An answer that is not QUIRE_OK makes the page
 * lost: what it holds, and whether something still writes it, is not known, so it stays out of use. QUIRE_ERR_STATE: no
 * such command is open for this rank (answered before, or never asked). */
QUIRE_API enum quire_status quire_kv_cache_complete(struct quire_kv_cache *cache, const struct quire_kv_ack *ack,
                                                    struct quire_error *error_out);

/* --- insight --- */

QUIRE_API enum quire_status quire_kv_cache_stats(struct quire_kv_cache *cache, struct quire_kv_cache_stats *stats_out);
/* Recomputes every count and every link of the tree and compares. QUIRE_ERR_CORRUPT with the first fault: a bug, or
 * memory that somebody else wrote. Walks everything. */
QUIRE_API enum quire_status quire_kv_cache_check(struct quire_kv_cache *cache, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
