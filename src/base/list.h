/* A doubly linked ring of nodes that live inside the caller's structs.
 *
 *     struct quire_list waiting;            the head: a node of its own, in no element
 *     struct request { int id; struct quire_list node; };
 *
 *     for (struct quire_list *n = waiting.next; n != &waiting; n = n->next) {
 *       struct request *request = QUIRE_LIST_OF(n, struct request, node);
 *
 * A node that is in no list points at itself once it was initialised or removed, so removing twice does no harm.
 * No memory, nothing fails. Threads: as any memory. */
#ifndef QUIRE_BASE_LIST_H
#define QUIRE_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct quire_list {
  struct quire_list *next;
  struct quire_list *prev;
};

/* The struct of which a node is the given member. */
#define QUIRE_LIST_OF(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void quire_list_init(struct quire_list *head) {
  head->next = head;
  head->prev = head;
}

static inline bool quire_list_empty(const struct quire_list *head) { return head->next == head; }

/* Puts node, which must be in no list, before `place`; before the head is the end of the list. */
static inline void quire_list_insert_before(struct quire_list *place, struct quire_list *node) {
  node->next = place;
  node->prev = place->prev;
  place->prev->next = node;
  place->prev = node;
}

static inline void quire_list_push_front(struct quire_list *head, struct quire_list *node) {
  quire_list_insert_before(head->next, node);
}

static inline void quire_list_push_back(struct quire_list *head, struct quire_list *node) {
  quire_list_insert_before(head, node);
}

static inline void quire_list_remove(struct quire_list *node) {
  node->prev->next = node->next;
  node->next->prev = node->prev;
  quire_list_init(node);
}

/* Takes the first node out; NULL when the list is empty. */
static inline struct quire_list *quire_list_pop_front(struct quire_list *head) {
  struct quire_list *node = head->next;
  if (node == head) {
    return NULL;
  }
  quire_list_remove(node);
  return node;
}

/* Moves all nodes of `from` to the end of `to`. */
static inline void quire_list_splice_back(struct quire_list *to, struct quire_list *from) {
  if (quire_list_empty(from)) {
    return;
  }
  from->next->prev = to->prev;
  to->prev->next = from->next;
  from->prev->next = to;
  to->prev = from->prev;
  quire_list_init(from);
}

/* Walks the list and checks that every link is mutual; returns the number of nodes, -1 when a link is broken or there
 * are more than `max`. */
static inline long quire_list_check(const struct quire_list *head, long max) {
  long count = 0;
  for (const struct quire_list *node = head; node->next != head; node = node->next) {
    if (count == max || node->next->prev != node) {
      return -1;
    }
    count++;
  }
  return head->prev->next == head ? count : -1;
}

#ifdef __cplusplus
}
#endif
#endif
