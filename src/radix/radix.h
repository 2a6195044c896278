/* The prefix tree: token chains to page ids, in units of whole pages, and the order in which pages may be evicted. It
 * knows neither memory nor requests.
 *
 *        root A (a digest: model, arithmetic, tenant)          root B
 *          |
 *        [page 7: tokens 0..63]
 *          |            \
 *        [page 3]      [page 12]       children are found by hash of (path, tokens) and verified by token
 *          |
 *        [page 9]                      a leaf, in the eviction heap of its page's stripe unless it is held
 *
 * A node is one page. Edges of several pages, as radix trees have them, were rejected: splitting one while an operation
 * works on it is where other caches lost locks; and a page needs a place in the order, tokens and a stripe of its own
 * anyway. Roots are namespaces: nothing is ever found under another root. A hash never decides alone: parent and tokens
 * are compared.
 *
 * Eviction takes the least recently used leaf that is not held, by stripe. Held (quire_radix_hold) means that somebody
 * uses the page; who holds a page holds all above it, so whatever is not held can be reached by taking leaves. Times
 * are a counter that the owner's calls advance: no clock. Ties go to the lower page id.
 *
 * Memory: one block at creation, with room for every page id; nothing is allocated afterwards, so insert can not fail.
 * Threads: one owner. Errors: none after creation; misuse asserts. */
#ifndef QUIRE_RADIX_RADIX_H
#define QUIRE_RADIX_RADIX_H

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

struct quire_radix;

/* Whole pages of a request: tokens [pages * page_tokens] under a root. */
struct quire_radix_chain {
  struct quire_hash128 root;
  const int32_t *tokens;
  int32_t pages;
};

/* Called for each page that leaves the tree, children before parents; the page is no longer in the tree. */
typedef void (*quire_radix_removed_fn)(void *context, quire_page page);

/* Bytes quire_radix_create takes; 0 for a geometry that is not valid. */
int64_t quire_radix_bytes(const struct quire_geometry *geometry);
/* QUIRE_ERR_ARGUMENT, QUIRE_ERR_MEMORY. */
enum quire_status quire_radix_create(const struct quire_env *env, const struct quire_geometry *geometry,
                                     struct quire_radix **radix_out, struct quire_error *error_out);
void quire_radix_destroy(struct quire_radix *radix);

/* The longest chain of whole pages in the tree: writes their ids to pages_out[chain->pages] (may be NULL) and returns
 * their number. Changes nothing, not even the order. */
int32_t quire_radix_match(const struct quire_radix *radix, const struct quire_radix_chain *chain,
                          quire_page *pages_out);
/* As match, but starts below page `parent`, which is in the tree: chain holds what follows it. */
int32_t quire_radix_match_below(const struct quire_radix *radix, quire_page parent,
                                const struct quire_radix_chain *chain, quire_page *pages_out);

/* A chain's keys, keys_out[chain->pages]: what match makes of its tokens before it looks anything up. They hold as long
 * as the tree lives, whatever is in it, so that a chain that is matched again and again is hashed once. */
void quire_radix_keys(const struct quire_radix *radix, const struct quire_radix_chain *chain, uint64_t *keys_out);
/* As match, with the chain's keys. */
int32_t quire_radix_match_keys(const struct quire_radix *radix, const struct quire_radix_chain *chain,
                               const uint64_t *keys, quire_page *pages_out);

/* A page is the most recently used, and so is all above it: a page is as recently used as it or anything that is or was
 * below it. */
void quire_radix_touch(struct quire_radix *radix, quire_page page);

/* Adds `page` with the page_tokens tokens at `tokens` below `parent` (QUIRE_PAGE_NONE: below root), not held and
 * never used: whoever adds a chain touches its last page once. If that content is there already the tree stays as it
 * is: returns the page it has, else `page`. */
quire_page quire_radix_insert(struct quire_radix *radix, struct quire_hash128 root, quire_page parent, quire_page page,
                              const int32_t *tokens);
/* Inserts a chain's pages below `parent`, one below the other: pages[chain->pages]; there_out[chain->pages] is what
 * quire_radix_insert answers for each, and what the next one hangs below. */
void quire_radix_insert_chain(struct quire_radix *radix, quire_page parent, const struct quire_radix_chain *chain,
                              const quire_page *pages, quire_page *there_out);

/* A page in the tree is in use, or no longer. Held pages are not evicted. */
void quire_radix_hold(struct quire_radix *radix, quire_page page, bool held);
bool quire_radix_held(const struct quire_radix *radix, quire_page page);

/* Takes out the leaf to be evicted first: of this stripe if it has one, else of any. QUIRE_PAGE_NONE when every leaf is
 * held. */
quire_page quire_radix_evict(struct quire_radix *radix, quire_stripe_id stripe);
/* As evict, of all stripes the least recently used. */
quire_page quire_radix_evict_any(struct quire_radix *radix);

/* Takes a page and everything below it out, held or not; returns the number of pages. */
int32_t quire_radix_drop(struct quire_radix *radix, quire_page page, quire_radix_removed_fn removed, void *context);
/* Empties the tree, held pages included; returns the number of pages. */
int32_t quire_radix_flush(struct quire_radix *radix, quire_radix_removed_fn removed, void *context);

bool quire_radix_contains(const struct quire_radix *radix, quire_page page);
/* The page above, QUIRE_PAGE_NONE for one below a root. The page is in the tree. */
quire_page quire_radix_parent(const struct quire_radix *radix, quire_page page);
/* Pages in the tree. */
int32_t quire_radix_count(const struct quire_radix *radix);

/* Recomputes the structure: every page reachable once, found by its hash, leaves not held in their heap and no others,
 * held pages under held pages. False with the first fault in why_out (may be
 * NULL). */
bool quire_radix_check(const struct quire_radix *radix, struct quire_error *why_out);
/* Digest of content, users and times of use; brothers may have come in any order. */
struct quire_hash128 quire_radix_digest(const struct quire_radix *radix);

#ifdef __cplusplus
}
#endif
#endif
