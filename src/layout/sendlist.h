/* The send list: which pages a prefill rank sends after a chunk (laws 1 and 4).
 *
 * Each page is sent by one rank, the lowest that stores it, and once: whole pages as soon as they are complete, the
 * tail at the end as its one physical page with its valid length. Pages are named by request page, which is what both
 * sides agree on; their ids on the two sides have nothing to do with each other. The list follows from the page ids
 * alone, never from their order or from ranges of ids.
 *
 *   request page   0 ... first-1 | first ...                      | floor(tokens/64) |
 *                  not wanted    | whole pages not yet sent        | tail, if final   |
 *
 * Pure. Threads: any. Nothing fails. */
#ifndef QUIRE_LAYOUT_SENDLIST_H
#define QUIRE_LAYOUT_SENDLIST_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/geometry.h"
#include "layout/ids.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_send {
  quire_request_page request_page;
  quire_page page;
  int32_t valid_tokens; /* page_tokens, or less for the tail */
};

struct quire_sendlist {
  const struct quire_geometry *geometry;
  const quire_page *pages;  /* page table of the request, by request page */
  quire_request_page first; /* the first page not sent before; what the receiver has cached lies below it */
  int32_t tokens;           /* positions [0, tokens) are complete */
  bool final;               /* no more tokens follow: the tail page goes too */
};

/* First request page the next list starts at, when this one has been sent. */
quire_request_page quire_sendlist_next(const struct quire_sendlist *list);

/* Number of pages rank sends, ascending by request page, written to sends_out (room for next - first of them; may be
 * NULL to count). */
int32_t quire_sendlist_rank(const struct quire_sendlist *list, quire_rank_id rank, struct quire_send *sends_out);

#ifdef __cplusplus
}
#endif
#endif
