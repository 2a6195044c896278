/* Ranks are GPUs, and NCCL moves the bytes: each gets the others' blocks in a receive buffer of its own. For ranks that
 * do not reach each other's memory, and as the yardstick of those that do.
 *
 * The library is opened by name when a group is made; its functions are declared here as its public header has them
 * (version 2.18 and later), so that neither building nor starting needs it. Hosts meet first, as in `peer`: sizes are
 * agreed there, and an abort that comes before the meeting leaves nothing enqueued anywhere.
 *
 *     receive buffer of a rank, SLOTS in turn:  | rank 0's block | rank 1's | ... |   each exchange_bytes_max,
 *                                                                                     256-aligned
 *
 * A buffer is read until the rank's own next exchange but one, and NCCL writes into it in the order of the rank's
 * stream.
 *
 * A rank that fails behind the meeting leaves the others' streams in a kernel that waits for it. Only NCCL can end
 * that: the group is broken, cannot be reset, and its destruction aborts what is under way instead of waiting for
 * it. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "collective/meeting_private.h"

#define SLOTS 3
#define ALIGN 256
#define NCCL_SUCCESS 0
#define NCCL_UINT8 1

struct nccl_library {
  void *handle;
  int (*version)(int *version_out);
  int (*init_all)(void **comms, int count, const int *devices);
  int (*destroy)(void *comm);
  int (*abort)(void *comm);
  int (*all_gather)(const void *send, void *receive, size_t count, int type, void *comm, void *stream);
  int (*send)(const void *send, size_t count, int type, int peer, void *comm, void *stream);
  int (*receive)(void *receive, size_t count, int type, int peer, void *comm, void *stream);
  int (*group_start)(void);
  int (*group_end)(void);
  const char *(*error_text)(int result);
};

struct nccl {
  struct quire_collective front;
  const struct quire_env *env;
  struct quire_meeting meeting;
  struct nccl_library library;
  void *comm[QUIRE_COLLECTIVE_RANKS_MAX];
  struct quire_memory *buffer[QUIRE_COLLECTIVE_RANKS_MAX];
  struct quire_block block[QUIRE_COLLECTIVE_RANKS_MAX][SLOTS][QUIRE_COLLECTIVE_RANKS_MAX]; /* shown to a rank */
  size_t stride;
  struct quire_collective_config config;
  atomic_bool broken; /* a rank failed behind the meeting */
};

static struct nccl *nccl_of(struct quire_collective *collective) {
  QUIRE_ASSERT(collective->ops == &quire_collective_nccl_ops);
  return (struct nccl *)collective;
}

static enum quire_status open_library(struct nccl_library *library, struct quire_error *error_out) {
  QUIRE_ASSERT(library->handle == NULL);
  struct {
    const char *name;
    void *slot;
  } const wanted[] = {
      {"ncclGetVersion", &library->version},   {"ncclCommInitAll", &library->init_all},
      {"ncclCommDestroy", &library->destroy},  {"ncclCommAbort", &library->abort},
      {"ncclAllGather", &library->all_gather}, {"ncclSend", &library->send},
      {"ncclRecv", &library->receive},         {"ncclGroupStart", &library->group_start},
      {"ncclGroupEnd", &library->group_end},   {"ncclGetErrorString", &library->error_text},
  };
  library->handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library->handle == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "nccl", "libnccl.so.2 cannot be opened: %s", dlerror());
  }
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    void *function = dlsym(library->handle, wanted[i].name);
    if (function == NULL) {
      return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "nccl", "libnccl.so.2 has no %s", wanted[i].name);
    }
    memcpy(wanted[i].slot, &function, sizeof function); /* the slot is a pointer to a function */
  }
  return QUIRE_OK;
}

bool quire_nccl_describe(struct quire_nccl_info *info_out) {
  struct nccl_library library = {0};
  struct quire_error error = {0};
  int version = 0;
  QUIRE_ASSERT(info_out != NULL);
  memset(info_out, 0, sizeof *info_out);
  if (open_library(&library, &error) != QUIRE_OK) {
    (void)snprintf(info_out->why, sizeof info_out->why, "%.199s", error.text);
  } else if (library.version(&version) != NCCL_SUCCESS || version <= 0) {
    (void)snprintf(info_out->why, sizeof info_out->why, "libnccl.so.2 does not say its version");
  } else {
    info_out->version = (int32_t)version;
  }
  if (library.handle != NULL) {
    (void)dlclose(library.handle);
  }
  return info_out->version != 0;
}

static void nccl_destroy(struct quire_collective *collective) {
  struct nccl *nccl = nccl_of(collective);
  QUIRE_ASSERT(nccl->config.ranks == collective->ranks);
  for (int32_t r = 0; r < collective->ranks; r++) {
    if (nccl->comm[r] != NULL) {
      (void)(atomic_load(&nccl->broken) ? nccl->library.abort : nccl->library.destroy)(nccl->comm[r]);
    }
    quire_memory_destroy(nccl->buffer[r]);
  }
  if (nccl->library.handle != NULL) {
    (void)dlclose(nccl->library.handle);
  }
  quire_meeting_close(&nccl->meeting);
  quire_env_free(nccl->env, nccl, 1, sizeof *nccl);
}

static enum quire_status start(struct nccl *nccl, struct quire_error *error_out) {
  QUIRE_ASSERT(nccl->config.ranks > 0 && nccl->config.ranks <= QUIRE_COLLECTIVE_RANKS_MAX && nccl->stride > 0);
  int devices[QUIRE_COLLECTIVE_RANKS_MAX];
  const struct quire_collective_config *config = &nccl->config;
  enum quire_status status = open_library(&nccl->library, error_out);
  for (int32_t r = 0; r < config->ranks && status == QUIRE_OK; r++) {
    devices[r] = (int)quire_device_index(config->device[r]);
    status = quire_device_memory(config->device[r], nccl->stride * (size_t)config->ranks * SLOTS, &nccl->buffer[r],
                                 error_out);
  }
  if (status == QUIRE_OK) {
    int result = nccl->library.init_all(nccl->comm, (int)config->ranks, devices);
    if (result != NCCL_SUCCESS) {
      status = quire_error_set(error_out, QUIRE_ERR_RANK, "nccl", "%d ranks cannot be joined: %s", (int)config->ranks,
                               nccl->library.error_text(result));
    }
  }
  return status;
}

static enum quire_status nccl_create(const struct quire_env *env, const struct quire_collective_config *config,
                                     struct quire_collective **collective_out, struct quire_error *error_out) {
  QUIRE_ASSERT(config->ranks > 0 && config->ranks <= QUIRE_COLLECTIVE_RANKS_MAX);
  for (int32_t r = 0; r < config->ranks; r++) {
    if (config->device[r] == NULL || quire_device_kind_of(config->device[r]) != QUIRE_DEVICE_CUDA) {
      return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "nccl", "rank %d is not a GPU", (int)r);
    }
  }
  if (config->exchange_bytes_max > SIZE_MAX / (2 * QUIRE_COLLECTIVE_RANKS_MAX * SLOTS)) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "nccl", "blocks of %zu bytes are too large",
                           config->exchange_bytes_max);
  }
  struct nccl *nccl = quire_env_zalloc(env, 1, sizeof *nccl);
  if (nccl == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "nccl", "no memory for a group of %d ranks",
                           (int)config->ranks);
  }
  enum quire_status status = quire_meeting_open(env, config->ranks, &nccl->meeting, error_out);
  if (status != QUIRE_OK) {
    quire_env_free(env, nccl, 1, sizeof *nccl);
    return status;
  }
  nccl->front = (struct quire_collective){.ops = &quire_collective_nccl_ops, .ranks = config->ranks};
  nccl->env = env;
  nccl->config = *config;
  nccl->stride =
      (config->exchange_bytes_max + ALIGN - 1) / ALIGN * ALIGN + ALIGN; /* order_streams uses the last bytes */
  status = start(nccl, error_out);
  if (status != QUIRE_OK) {
    nccl_destroy(&nccl->front);
    return status;
  }
  *collective_out = &nccl->front;
  return QUIRE_OK;
}

static void nccl_attach(struct quire_collective *collective, int32_t rank, struct quire_stream *stream) {
  nccl_of(collective)->meeting.member[rank].stream = stream;
}

/* Enqueues the movement of all blocks into `receive`, [ranks] of stride bytes. */
static int gather(struct nccl *nccl, int32_t rank, const struct quire_block *blocks, uint8_t *receive, void *stream) {
  const struct nccl_library *library = &nccl->library;
  void *comm = nccl->comm[rank];
  size_t mine = blocks[rank].bytes;
  QUIRE_ASSERT(mine <= nccl->stride && nccl->comm[rank] != NULL);
  int result = library->group_start();
  for (int32_t r = 0; r < nccl->front.ranks && result == NCCL_SUCCESS; r++) {
    if (mine != 0) {
      result = library->send(blocks[rank].base, mine, NCCL_UINT8, (int)r, comm, stream);
    }
    if (blocks[r].bytes != 0 && result == NCCL_SUCCESS) {
      result = library->receive(receive + (size_t)r * nccl->stride, blocks[r].bytes, NCCL_UINT8, (int)r, comm, stream);
    }
  }
  int ended = library->group_end();
  return result != NCCL_SUCCESS ? result : ended;
}

/* A device that fails is the rank's fault: the others are woken. */
static enum quire_status give_up(struct nccl *nccl, int32_t rank, const char *why) {
  QUIRE_ASSERT(why != NULL);
  quire_env_log(nccl->env, QUIRE_LOG_ERROR, "nccl: rank %d: %s", (int)rank, why);
  atomic_store(&nccl->broken, true);
  quire_meeting_abort(&nccl->meeting, rank);
  return QUIRE_ERR_ABORTED;
}

static enum quire_status answer(struct nccl *nccl, int32_t rank, int result) {
  return result == NCCL_SUCCESS ? QUIRE_OK : give_up(nccl, rank, nccl->library.error_text(result));
}

static const char stream_failed[] = "its stream has failed";

static enum quire_status nccl_exchange(struct quire_collective *collective, int32_t rank, const void *mine,
                                       size_t bytes, const struct quire_block **blocks_out) {
  struct nccl *nccl = nccl_of(collective);
  struct quire_meeting_member *member = &nccl->meeting.member[rank];
  const struct quire_block *offered = NULL;
  int slot = (int)(member->exchanges % SLOTS);
  QUIRE_ASSERT(member->stream != NULL && bytes <= nccl->config.exchange_bytes_max);
  struct quire_meeting_cell cell = {.operation = QUIRE_OPERATION_EXCHANGE};
  enum quire_status status =
      quire_meeting_exchange(&nccl->meeting, rank, cell, (struct quire_block){mine, bytes}, &offered, NULL);
  if (status != QUIRE_OK) {
    return status;
  }
  uint8_t *receive =
      (uint8_t *)quire_memory_base(nccl->buffer[rank]) + (size_t)slot * nccl->stride * (size_t)collective->ranks;
  void *stream = quire_stream_native(member->stream);
  status = stream == NULL ? give_up(nccl, rank, stream_failed)
                          : answer(nccl, rank, gather(nccl, rank, offered, receive, stream));
  if (status == QUIRE_OK) {
    struct quire_block *shown = nccl->block[rank][slot];
    for (int32_t r = 0; r < collective->ranks; r++) {
      size_t has = offered[r].bytes;
      shown[r] = (struct quire_block){has == 0 ? NULL : receive + (size_t)r * nccl->stride, has};
    }
    *blocks_out = shown;
  }
  return status;
}

/* Hosts meet, then a byte from everyone to everyone holds back each stream until all have come this far. */
static enum quire_status order_streams(struct nccl *nccl, int32_t rank) {
  const struct nccl_library *library = &nccl->library;
  QUIRE_ASSERT(nccl->meeting.member[rank].stream != NULL);
  void *stream = quire_stream_native(nccl->meeting.member[rank].stream);
  if (stream == NULL) {
    return give_up(nccl, rank, stream_failed);
  }
  uint8_t *scratch = (uint8_t *)quire_memory_base(nccl->buffer[rank]) +
                     nccl->stride * (size_t)nccl->front.ranks * SLOTS - ALIGN; /* behind every block */
  return answer(nccl, rank, library->all_gather(scratch + ALIGN - 1, scratch, 1, NCCL_UINT8, nccl->comm[rank], stream));
}

static enum quire_status nccl_fence(struct quire_collective *collective, int32_t rank) {
  struct nccl *nccl = nccl_of(collective);
  struct quire_meeting_cell cell = {.operation = QUIRE_OPERATION_FENCE};
  enum quire_status status = quire_meeting_join(&nccl->meeting, rank, cell, NULL);
  return status == QUIRE_OK ? order_streams(nccl, rank) : status;
}

static enum quire_status nccl_max_i32(struct quire_collective *collective, int32_t rank, int32_t value,
                                      int32_t *max_out) {
  QUIRE_ASSERT(max_out != NULL);
  struct nccl *nccl = nccl_of(collective);
  const struct quire_meeting_cell *cells = NULL;
  struct quire_meeting_cell cell = {.operation = QUIRE_OPERATION_MAX, .value = value};
  enum quire_status status = quire_meeting_join(&nccl->meeting, rank, cell, &cells);
  if (status == QUIRE_OK) {
    int32_t max = quire_meeting_max(&nccl->meeting, cells);
    status = order_streams(nccl, rank);
    if (status == QUIRE_OK) {
      *max_out = max;
    }
  }
  return status;
}

static void nccl_abort(struct quire_collective *collective, int32_t rank) {
  quire_meeting_abort(&nccl_of(collective)->meeting, rank);
}

static bool nccl_aborted(const struct quire_collective *collective, int32_t *rank_out) {
  return quire_meeting_aborted(&((const struct nccl *)collective)->meeting, rank_out);
}

static enum quire_status nccl_reset(struct quire_collective *collective) {
  struct nccl *nccl = nccl_of(collective);
  return atomic_load(&nccl->broken) ? QUIRE_ERR_STATE : quire_meeting_reset(&nccl->meeting);
}

const struct quire_collective_ops quire_collective_nccl_ops = {
    .size = sizeof(struct quire_collective_ops),
    .version = QUIRE_COLLECTIVE_VERSION,
    .name = "nccl",
    .stream_ordered = true,
    .create = nccl_create,
    .destroy = nccl_destroy,
    .attach = nccl_attach,
    .fence = nccl_fence,
    .exchange = nccl_exchange,
    .max_i32 = nccl_max_i32,
    .abort = nccl_abort,
    .aborted = nccl_aborted,
    .reset = nccl_reset,
};
