#include "layout/command.h"

#include <stddef.h>

#include "base/assert.h"
#include "layout/bundle.h"

uint32_t quire_command_storing_ranks(const struct quire_geometry *geometry, quire_page page) {
  QUIRE_ASSERT(geometry->ranks >= 1 && geometry->ranks <= QUIRE_RANKS_MAX);
  uint32_t ranks = 0;
  for (int32_t rank = 0; rank < geometry->ranks; rank++) {
    quire_rank_id id = {rank};
    ranks |= (uint32_t)quire_page_stored_by(geometry, page, id) << rank;
  }
  return ranks;
}

struct quire_hash128 quire_command_digest(const struct quire_hash128 *part_digests, int32_t part_count) {
  QUIRE_ASSERT(part_count >= 1);
  return quire_hash128(part_digests, (size_t)part_count * sizeof *part_digests, 0);
}

static bool page_in_bounds(const struct quire_geometry *geometry, quire_page page) {
  return page.v >= 0 && page.v < geometry->pages;
}

static uint32_t ranks_of_kind(const struct quire_geometry *geometry, const struct quire_command *command) {
  QUIRE_ASSERT(quire_geometry_valid(geometry));
  switch (command->kind) {
  case QUIRE_COMMAND_COPY_PAGE:
    return quire_command_storing_ranks(geometry, command->target);
  case QUIRE_COMMAND_PACK:
    return 1u << quire_page_sender(geometry, command->page).v;
  default:
    return quire_command_storing_ranks(geometry, command->page);
  }
}

bool quire_command_check(const struct quire_geometry *geometry, const struct quire_command *command,
                         const char **why_out) {
  QUIRE_ASSERT(geometry != NULL && command != NULL);
  bool copy = command->kind == QUIRE_COMMAND_COPY_PAGE;
  bool host = command->kind == QUIRE_COMMAND_PACK || command->kind == QUIRE_COMMAND_UNPACK;
  const char *why = NULL;
  if (command->kind < QUIRE_COMMAND_COPY_PAGE || command->kind > QUIRE_COMMAND_UNPACK) {
    why = "unknown kind";
  } else if (!page_in_bounds(geometry, command->page)) {
    why = "page out of bounds";
  } else if (copy && (!page_in_bounds(geometry, command->target) || command->target.v == command->page.v)) {
    why = "target out of bounds or the page itself";
  } else if (!copy && command->target.v != QUIRE_PAGE_NONE) {
    why = "a target where none belongs";
  } else if (command->ranks != ranks_of_kind(geometry, command)) {
    why = "not the ranks that store the page";
  } else if (command->valid_tokens < 1 || command->valid_tokens > geometry->page_tokens) {
    why = "valid tokens out of bounds";
  } else if (host ? command->host_offset < 0 || command->host_offset % QUIRE_BUNDLE_ALIGN != 0
                  : command->host_offset != 0) {
    why = "host offset out of bounds or not aligned";
  } else if (host && command->request_page.v < 0) {
    why = "request page out of bounds";
  }
  if (why != NULL && why_out != NULL) {
    *why_out = why;
  }
  return why == NULL;
}

const char *quire_command_kind_name(int32_t kind) {
  static const char *const names[] = {"unknown", "copy page", "poison", "digest", "pack", "unpack"};
  return names[kind >= QUIRE_COMMAND_COPY_PAGE && kind <= QUIRE_COMMAND_UNPACK ? kind : 0];
}
