/* Ranks are threads of one process, or processes that share its memory: everything is addressable, so a collective is a
 * meeting, and a rank brings to it what its stream has done. */
#include "base/assert.h"
#include "collective/meeting_private.h"

struct local {
  struct quire_collective front;
  const struct quire_env *env;
  struct quire_meeting meeting;
};

static struct local *local_of(struct quire_collective *collective) {
  QUIRE_ASSERT(collective->ops == &quire_collective_local_ops);
  return (struct local *)collective;
}

static enum quire_status local_create(const struct quire_env *env, const struct quire_collective_config *config,
                                      struct quire_collective **collective_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && config->ranks >= 1 && collective_out != NULL);
  struct local *local = quire_env_zalloc(env, 1, sizeof *local);
  if (local == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "collective", "no memory for a group of %d ranks",
                           (int)config->ranks);
  }
  enum quire_status status = quire_meeting_open(env, config->ranks, &local->meeting, error_out);
  if (status != QUIRE_OK) {
    quire_env_free(env, local, 1, sizeof *local);
    return status;
  }
  local->front = (struct quire_collective){.ops = &quire_collective_local_ops, .ranks = config->ranks};
  local->env = env;
  *collective_out = &local->front;
  return QUIRE_OK;
}

static void local_destroy(struct quire_collective *collective) {
  QUIRE_ASSERT(collective != NULL);
  struct local *local = local_of(collective);
  quire_meeting_close(&local->meeting);
  quire_env_free(local->env, local, 1, sizeof *local);
}

static void local_attach(struct quire_collective *collective, int32_t rank, struct quire_stream *stream) {
  local_of(collective)->meeting.member[rank].stream = stream;
}

/* What the rank brings: everything on its stream has run. */
static struct quire_meeting_cell cell_of(struct local *local, int32_t rank, enum quire_operation operation,
                                         int32_t value) {
  QUIRE_ASSERT(rank >= 0 && rank < local->front.ranks);
  struct quire_stream *stream = local->meeting.member[rank].stream;
  if (stream != NULL) {
    quire_event_sync(quire_stream_record(stream));
  }
  return (struct quire_meeting_cell){.operation = operation, .value = value};
}

static enum quire_status local_fence(struct quire_collective *collective, int32_t rank) {
  struct local *local = local_of(collective);
  return quire_meeting_join(&local->meeting, rank, cell_of(local, rank, QUIRE_OPERATION_FENCE, 0), NULL);
}

static enum quire_status local_exchange(struct quire_collective *collective, int32_t rank, const void *mine,
                                        size_t bytes, const struct quire_block **blocks_out) {
  QUIRE_ASSERT(blocks_out != NULL && (mine != NULL || bytes == 0));
  struct local *local = local_of(collective);
  struct quire_block block = {mine, bytes};
  return quire_meeting_exchange(&local->meeting, rank, cell_of(local, rank, QUIRE_OPERATION_EXCHANGE, 0), block,
                                blocks_out, NULL);
}

static enum quire_status local_max_i32(struct quire_collective *collective, int32_t rank, int32_t value,
                                       int32_t *max_out) {
  QUIRE_ASSERT(max_out != NULL);
  struct local *local = local_of(collective);
  const struct quire_meeting_cell *cells = NULL;
  enum quire_status status =
      quire_meeting_join(&local->meeting, rank, cell_of(local, rank, QUIRE_OPERATION_MAX, value), &cells);
  if (status == QUIRE_OK) {
    *max_out = quire_meeting_max(&local->meeting, cells);
  }
  return status;
}

static void local_abort(struct quire_collective *collective, int32_t rank) {
  quire_meeting_abort(&local_of(collective)->meeting, rank);
}

static bool local_aborted(const struct quire_collective *collective, int32_t *rank_out) {
  return quire_meeting_aborted(&((const struct local *)collective)->meeting, rank_out);
}

static enum quire_status local_reset(struct quire_collective *collective) {
  return quire_meeting_reset(&local_of(collective)->meeting);
}

const struct quire_collective_ops quire_collective_local_ops = {
    .size = sizeof(struct quire_collective_ops),
    .version = QUIRE_COLLECTIVE_VERSION,
    .name = "local",
    .stream_ordered = false,
    .create = local_create,
    .destroy = local_destroy,
    .attach = local_attach,
    .fence = local_fence,
    .exchange = local_exchange,
    .max_i32 = local_max_i32,
    .abort = local_abort,
    .aborted = local_aborted,
    .reset = local_reset,
};
