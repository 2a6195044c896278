/* Which choice a ticket belongs to: a table of open addresses, at most half full. */
#include "base/assert.h"
#include "base/rng.h"
#include "server/server_private.h"

bool quire_tickets_create(struct quire_server *server) {
  int32_t count = 1024;
  struct ticket_slot *slots = quire_env_zalloc(server->env, (size_t)count, sizeof *slots);
  if (slots == NULL) {
    return false;
  }
  server->slots = slots;
  server->slot_count = count;
  return true;
}

static int32_t place_of(const struct quire_server *server, uint64_t ticket) {
  return (int32_t)(quire_mix64(ticket) & (uint64_t)(server->slot_count - 1));
}

/* The slot that holds the ticket, or the free one where it would be. */
static int32_t slot_of(const struct quire_server *server, uint64_t ticket) {
  int32_t at = place_of(server, ticket);
  while (server->slots[at].ticket != 0 && server->slots[at].ticket != ticket) {
    at = (at + 1) & (server->slot_count - 1);
  }
  return at;
}

bool quire_tickets_reserve(struct quire_server *server, int32_t more) {
  if (2 * (server->tickets + more) <= server->slot_count) {
    return true;
  }
  struct ticket_slot *old = server->slots;
  int32_t old_count = server->slot_count, count = old_count;
  while (2 * (server->tickets + more) > count) {
    count *= 2;
  }
  struct ticket_slot *slots = quire_env_zalloc(server->env, (size_t)count, sizeof *slots);
  if (slots == NULL) {
    return false;
  }
  server->slots = slots;
  server->slot_count = count;
  for (int32_t i = 0; i < old_count; i++) {
    if (old[i].ticket != 0) {
      server->slots[slot_of(server, old[i].ticket)] = old[i];
    }
  }
  quire_env_free(server->env, old, (size_t)old_count, sizeof *old);
  return true;
}

void quire_tickets_put(struct quire_server *server, quire_ticket ticket, struct choice *choice) {
  QUIRE_ASSERT(ticket.v != 0 && 2 * (server->tickets + 1) <= server->slot_count);
  int32_t at = slot_of(server, ticket.v);
  QUIRE_ASSERT(server->slots[at].ticket == 0);
  server->slots[at] = (struct ticket_slot){ticket.v, choice};
  server->tickets++;
}

struct choice *quire_tickets_find(const struct quire_server *server, quire_ticket ticket) {
  struct ticket_slot slot = server->slots[slot_of(server, ticket.v)];
  return slot.ticket != 0 ? slot.choice : NULL;
}

void quire_tickets_remove(struct quire_server *server, quire_ticket ticket) {
  int32_t hole = slot_of(server, ticket.v), mask = server->slot_count - 1;
  QUIRE_ASSERT(server->slots[hole].ticket == ticket.v);
  /* what stands behind moves up, unless it would come to lie before its own place */
  for (int32_t at = (hole + 1) & mask; server->slots[at].ticket != 0; at = (at + 1) & mask) {
    int32_t home = place_of(server, server->slots[at].ticket);
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      server->slots[hole] = server->slots[at];
      hole = at;
    }
  }
  server->slots[hole] = (struct ticket_slot){0};
  server->tickets--;
}
