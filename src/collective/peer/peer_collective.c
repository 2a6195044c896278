/* Ranks are threads whose memory the others reach in place, as GPUs of one process do: an exchange moves no byte, and
 * no rank waits for its device.
 *
 *     rank 0   .. work ..  record e0 | meet: e0, block 0 |  wait e1  .. reads block 1 in place ..
 *     rank 1   .. work ..  record e1 | meet: e1, block 1 |  wait e0  .. reads block 0 in place ..
 *
 * The host meets (it must anyway, to learn the others' addresses and sizes), each stream then waits for the others'
 * events: devices stay busy while hosts run ahead. A rank without a stream waits for the events itself. */
#include "base/assert.h"
#include "collective/meeting_private.h"

struct peer {
  struct quire_collective front;
  const struct quire_env *env;
  struct quire_meeting meeting;
};

static struct peer *peer_of(struct quire_collective *collective) {
  QUIRE_ASSERT(collective->ops == &quire_collective_peer_ops);
  return (struct peer *)collective;
}

static enum quire_status peer_create(const struct quire_env *env, const struct quire_collective_config *config,
                                     struct quire_collective **collective_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && config->ranks >= 1 && collective_out != NULL);
  for (int32_t i = 0; i < config->ranks * config->ranks; i++) {
    int32_t reader = i / config->ranks, owner = i % config->ranks;
    if (config->device[reader] != NULL && config->device[owner] != NULL &&
        !quire_device_reaches(config->device[reader], config->device[owner])) {
      return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "collective",
                             "the device of rank %d does not reach the memory of rank %d's; choose nccl", (int)reader,
                             (int)owner);
    }
  }
  struct peer *peer = quire_env_zalloc(env, 1, sizeof *peer);
  if (peer == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "collective", "no memory for a group of %d ranks",
                           (int)config->ranks);
  }
  enum quire_status status = quire_meeting_open(env, config->ranks, &peer->meeting, error_out);
  if (status != QUIRE_OK) {
    quire_env_free(env, peer, 1, sizeof *peer);
    return status;
  }
  peer->front = (struct quire_collective){.ops = &quire_collective_peer_ops, .ranks = config->ranks};
  peer->env = env;
  *collective_out = &peer->front;
  return QUIRE_OK;
}

static void peer_destroy(struct quire_collective *collective) {
  QUIRE_ASSERT(collective != NULL);
  struct peer *peer = peer_of(collective);
  quire_meeting_close(&peer->meeting);
  quire_env_free(peer->env, peer, 1, sizeof *peer);
}

static void peer_attach(struct quire_collective *collective, int32_t rank, struct quire_stream *stream) {
  peer_of(collective)->meeting.member[rank].stream = stream;
}

static struct quire_meeting_cell cell_of(struct peer *peer, int32_t rank, enum quire_operation operation,
                                         int32_t value) {
  QUIRE_ASSERT(rank >= 0 && rank < peer->front.ranks);
  struct quire_stream *stream = peer->meeting.member[rank].stream;
  struct quire_meeting_cell cell = {.operation = operation, .value = value};
  if (stream != NULL) {
    cell.event = quire_stream_record(stream);
  }
  return cell;
}

/* What the rank enqueues from now on runs after what all others had enqueued. */
static void follow(struct peer *peer, int32_t rank, const struct quire_meeting_cell *cells) {
  QUIRE_ASSERT(cells != NULL && rank >= 0 && rank < peer->front.ranks);
  struct quire_stream *stream = peer->meeting.member[rank].stream;
  for (int32_t r = 0; r < peer->front.ranks; r++) {
    if (r != rank && stream != NULL) {
      quire_stream_wait(stream, cells[r].event);
    } else if (r != rank) {
      quire_event_sync(cells[r].event);
    }
  }
}

static enum quire_status peer_fence(struct quire_collective *collective, int32_t rank) {
  struct peer *peer = peer_of(collective);
  const struct quire_meeting_cell *cells = NULL;
  enum quire_status status =
      quire_meeting_join(&peer->meeting, rank, cell_of(peer, rank, QUIRE_OPERATION_FENCE, 0), &cells);
  if (status == QUIRE_OK) {
    follow(peer, rank, cells);
  }
  return status;
}

static enum quire_status peer_exchange(struct quire_collective *collective, int32_t rank, const void *mine,
                                       size_t bytes, const struct quire_block **blocks_out) {
  QUIRE_ASSERT(blocks_out != NULL && (mine != NULL || bytes == 0));
  struct peer *peer = peer_of(collective);
  const struct quire_meeting_cell *cells = NULL;
  struct quire_block block = {mine, bytes};
  enum quire_status status = quire_meeting_exchange(
      &peer->meeting, rank, cell_of(peer, rank, QUIRE_OPERATION_EXCHANGE, 0), block, blocks_out, &cells);
  if (status == QUIRE_OK) {
    follow(peer, rank, cells);
  }
  return status;
}

static enum quire_status peer_max_i32(struct quire_collective *collective, int32_t rank, int32_t value,
                                      int32_t *max_out) {
  QUIRE_ASSERT(max_out != NULL);
  struct peer *peer = peer_of(collective);
  const struct quire_meeting_cell *cells = NULL;
  enum quire_status status =
      quire_meeting_join(&peer->meeting, rank, cell_of(peer, rank, QUIRE_OPERATION_MAX, value), &cells);
  if (status == QUIRE_OK) {
    follow(peer, rank, cells);
    *max_out = quire_meeting_max(&peer->meeting, cells);
  }
  return status;
}

static void peer_abort(struct quire_collective *collective, int32_t rank) {
  quire_meeting_abort(&peer_of(collective)->meeting, rank);
}

static bool peer_aborted(const struct quire_collective *collective, int32_t *rank_out) {
  return quire_meeting_aborted(&((const struct peer *)collective)->meeting, rank_out);
}

static enum quire_status peer_reset(struct quire_collective *collective) {
  return quire_meeting_reset(&peer_of(collective)->meeting);
}

const struct quire_collective_ops quire_collective_peer_ops = {
    .size = sizeof(struct quire_collective_ops),
    .version = QUIRE_COLLECTIVE_VERSION,
    .name = "peer",
    .stream_ordered = true,
    .create = peer_create,
    .destroy = peer_destroy,
    .attach = peer_attach,
    .fence = peer_fence,
    .exchange = peer_exchange,
    .max_i32 = peer_max_i32,
    .abort = peer_abort,
    .aborted = peer_aborted,
    .reset = peer_reset,
};
