/* Ownership: one pure function of the page id (design, law 1). Allocator, kernels, views, hand-off, tiers and events
 * call these functions; nobody re-derives them.
 *
 *   owner(page)  = page mod storage_ranks        stripe s = all pages whose owner is s
 *   local(page)  = page / storage_ranks
 *   rank r stores page p  iff  r mod storage_ranks = owner(p); the lowest such rank sends it and backs it up
 *
 *   shared:     storage_ranks = ranks, one rank stores a page
 *   replicated: storage_ranks = 1, every rank stores every page
 *
 * Pure; compiles for host and device. */
#ifndef QUIRE_LAYOUT_GEOMETRY_H
#define QUIRE_LAYOUT_GEOMETRY_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/ids.h"

#if defined(__CUDACC__)
#define QUIRE_HOST_DEVICE __host__ __device__
#else
#define QUIRE_HOST_DEVICE
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_PAGE_TOKENS 64
#define QUIRE_PAGE_TOKENS_MAX 256

struct quire_geometry {
  int32_t page_tokens;   /* slots a page, 1 to QUIRE_PAGE_TOKENS_MAX; 64 outside tests */
  int32_t ranks;         /* 1 to QUIRE_RANKS_MAX */
  int32_t storage_ranks; /* ranks (shared) or 1 (replicated); divides ranks */
  int32_t pages;         /* logical pages of the worker, any number; page ids are 0 .. pages - 1 */
};

static_assert(sizeof(struct quire_geometry) == 16, "geometry of 16 bytes");
static_assert(offsetof(struct quire_geometry, ranks) == 4, "ranks at 4");
static_assert(offsetof(struct quire_geometry, storage_ranks) == 8, "storage ranks at 8");
static_assert(offsetof(struct quire_geometry, pages) == 12, "pages at 12");

/* True for a geometry the functions below accept. */
bool quire_geometry_valid(const struct quire_geometry *geometry);

static inline QUIRE_HOST_DEVICE quire_stripe_id quire_page_owner(const struct quire_geometry *g, quire_page page) {
  quire_stripe_id stripe = {page.v < 0 ? page.v : page.v % g->storage_ranks};
  return stripe;
}

static inline QUIRE_HOST_DEVICE quire_local_page quire_page_local(const struct quire_geometry *g, quire_page page) {
  quire_local_page local = {page.v < 0 ? page.v : page.v / g->storage_ranks};
  return local;
}

static inline QUIRE_HOST_DEVICE bool quire_page_stored_by(const struct quire_geometry *g, quire_page page,
                                                          quire_rank_id rank) {
  return page.v >= 0 && rank.v % g->storage_ranks == page.v % g->storage_ranks;
}

/* The rank that sends the page and backs it up: the lowest that stores it. */
static inline QUIRE_HOST_DEVICE quire_rank_id quire_page_sender(const struct quire_geometry *g, quire_page page) {
  quire_rank_id rank = {page.v < 0 ? page.v : page.v % g->storage_ranks};
  return rank;
}

/* The page a stripe keeps at a local page: inverse of owner and local. */
static inline QUIRE_HOST_DEVICE quire_page quire_page_of_local(const struct quire_geometry *g, quire_stripe_id stripe,
                                                               quire_local_page local) {
  quire_page page = {local.v * g->storage_ranks + stripe.v};
  return page;
}

static inline QUIRE_HOST_DEVICE quire_request_page quire_position_page(const struct quire_geometry *g,
                                                                       quire_position position) {
  quire_request_page page = {position.v / g->page_tokens};
  return page;
}

/* Pages that hold so many tokens. */
static inline QUIRE_HOST_DEVICE int32_t quire_geometry_pages_of(const struct quire_geometry *g, int32_t tokens) {
  return tokens / g->page_tokens + (tokens % g->page_tokens != 0 ? 1 : 0);
}

/* Number of local pages of a stripe: pages are dealt in turn, so stripes differ by at most one. */
int32_t quire_geometry_local_pages(const struct quire_geometry *geometry, quire_stripe_id stripe);

#ifdef __cplusplus
}
#endif
#endif
