/* The numbers of the cache, each its own type: mixing a page with a position does not compile.
 *
 *   position      index of a token in its request, from 0
 *   request page  position / page_tokens: what prefill and decode agree on
 *   page          a page of the worker-wide logical space; who stores it follows from the number alone (geometry.h)
 *   stripe        all pages of one owner
 *   local page    where a rank keeps a page it stores
 *   slot          page * page_tokens + offset: one token's place in the logical space
 *
 * Pure; compiles for host and device. Thread rule: values. */
#ifndef QUIRE_LAYOUT_IDS_H
#define QUIRE_LAYOUT_IDS_H

#include <stdint.h>

typedef struct {
  int32_t v;
} quire_position;
typedef struct {
  int32_t v;
} quire_request_page;
typedef struct {
  int32_t v;
} quire_page;
typedef struct {
  int32_t v;
} quire_local_page;
typedef struct {
  int64_t v;
} quire_slot;
typedef struct {
  int32_t v;
} quire_stripe_id;
typedef struct {
  int32_t v;
} quire_rank_id;

/* No page: padding passes through every translation unchanged. */
#define QUIRE_PAGE_NONE (-1)
#define QUIRE_RANKS_MAX 16

#endif
