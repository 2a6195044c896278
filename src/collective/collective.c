/* The front of the collectives: finds an implementation by name, checks what all of them need checked, forwards. */
#include "collective/collective.h"

#include <string.h>

#include "base/assert.h"
#include "collective/collective_private.h"

static const struct quire_collective_ops *const implementations[] = {
    &quire_collective_local_ops, &quire_collective_peer_ops, &quire_collective_nccl_ops};

#define IMPLEMENTATIONS ((int)(sizeof implementations / sizeof implementations[0]))

const struct quire_collective_ops *quire_collective_ops_at(int index) {
  return index < 0 || index >= IMPLEMENTATIONS ? NULL : implementations[index];
}

enum quire_status quire_collective_create(const struct quire_env *env, const char *name,
                                          const struct quire_collective_config *config,
                                          struct quire_collective **collective_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && name != NULL && config != NULL && collective_out != NULL);
  if (config->ranks < 1 || config->ranks > QUIRE_COLLECTIVE_RANKS_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "collective", "ranks must be 1 to %d, not %d",
                           QUIRE_COLLECTIVE_RANKS_MAX, (int)config->ranks);
  }
  for (int i = 0; i < IMPLEMENTATIONS; i++) {
    const struct quire_collective_ops *ops = implementations[i];
    if (strcmp(ops->name, name) == 0) {
      QUIRE_ASSERT(ops->size == sizeof *ops && ops->version == QUIRE_COLLECTIVE_VERSION);
      return ops->create(env, config, collective_out, error_out);
    }
  }
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "collective", "there is no implementation named %.64s",
                         name);
}

static void check_rank(const struct quire_collective *collective, int32_t rank) {
  QUIRE_ASSERT(collective != NULL && rank >= 0 && rank < collective->ranks);
}

void quire_collective_destroy(struct quire_collective *collective) {
  if (collective != NULL) {
    collective->ops->destroy(collective);
  }
}

int32_t quire_collective_ranks(const struct quire_collective *collective) {
  QUIRE_ASSERT(collective != NULL);
  return collective->ranks;
}

const char *quire_collective_name(const struct quire_collective *collective) {
  QUIRE_ASSERT(collective != NULL);
  return collective->ops->name;
}

bool quire_collective_stream_ordered(const struct quire_collective *collective) {
  QUIRE_ASSERT(collective != NULL);
  return collective->ops->stream_ordered;
}

void quire_collective_attach(struct quire_collective *collective, int32_t rank, struct quire_stream *stream) {
  check_rank(collective, rank);
  collective->ops->attach(collective, rank, stream);
}

enum quire_status quire_collective_fence(struct quire_collective *collective, int32_t rank) {
  check_rank(collective, rank);
  return collective->ops->fence(collective, rank);
}

enum quire_status quire_collective_exchange(struct quire_collective *collective, int32_t rank, const void *mine,
                                            size_t bytes, const struct quire_block **blocks_out) {
  check_rank(collective, rank);
  QUIRE_ASSERT(blocks_out != NULL && (bytes == 0 || mine != NULL));
  return collective->ops->exchange(collective, rank, mine, bytes, blocks_out);
}

enum quire_status quire_collective_max_i32(struct quire_collective *collective, int32_t rank, int32_t value,
                                           int32_t *max_out) {
  check_rank(collective, rank);
  QUIRE_ASSERT(max_out != NULL);
  return collective->ops->max_i32(collective, rank, value, max_out);
}

void quire_collective_abort(struct quire_collective *collective, int32_t rank) {
  check_rank(collective, rank);
  collective->ops->abort(collective, rank);
}

bool quire_collective_aborted(const struct quire_collective *collective, int32_t *rank_out) {
  QUIRE_ASSERT(collective != NULL);
  return collective->ops->aborted(collective, rank_out);
}

enum quire_status quire_collective_reset(struct quire_collective *collective) {
  QUIRE_ASSERT(collective != NULL);
  return collective->ops->reset(collective);
}
