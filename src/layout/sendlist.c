#include "layout/sendlist.h"

#include <stddef.h>

#include "base/assert.h"

quire_request_page quire_sendlist_next(const struct quire_sendlist *list) {
  int32_t page_tokens = list->geometry->page_tokens;
  QUIRE_ASSERT(list->tokens >= 0 && list->first.v >= 0);
  int32_t whole = list->tokens / page_tokens;
  int32_t end = list->final && list->tokens % page_tokens != 0 ? whole + 1 : whole;
  quire_request_page next = {end > list->first.v ? end : list->first.v};
  return next;
}

int32_t quire_sendlist_rank(const struct quire_sendlist *list, quire_rank_id rank, struct quire_send *sends_out) {
  int32_t page_tokens = list->geometry->page_tokens;
  int32_t end = quire_sendlist_next(list).v;
  int32_t count = 0;
  for (int32_t i = list->first.v; i < end; i++) {
    QUIRE_ASSERT(list->pages[i].v >= 0 && list->pages[i].v < list->geometry->pages);
    if (quire_page_sender(list->geometry, list->pages[i]).v != rank.v) {
      continue;
    }
    if (sends_out != NULL) {
      int32_t left = list->tokens - i * page_tokens;
      struct quire_send send = {{i}, list->pages[i], left < page_tokens ? left : page_tokens};
      sends_out[count] = send;
    }
    count++;
  }
  return count;
}
