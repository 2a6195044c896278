/* A bank's memory and its queue. What commands do is in bank_command.c.
 *
 * The queue is one ring of jobs with three counters, polled <= completed <= submitted: a job is a command until the
 * stream has run it and an acknowledgement after. The owner writes the outer two, the stream the middle one, so neither
 * needs a lock, and a bank that is not polled fills up and says so instead of growing. */
#include "bank/bank.h"

#include <string.h>

#include "bank/bank_private.h"
#include "base/assert.h"

static_assert(QUIRE_BANK_QUEUE_MAX < QUIRE_STREAM_QUEUE_ITEMS, "submit must not block in the stream");
static_assert(QUIRE_RANKS_MAX <= QUIRE_PEERS_MAX, "a map has room for every rank");

/* -- shape -------------------------------------------------------------------------------------------------------- */

static int32_t local_pages_of(const struct quire_bank_config *config) {
  QUIRE_ASSERT(config->rank.v >= 0 && config->geometry.storage_ranks > 0);
  quire_stripe_id stripe = {config->rank.v % config->geometry.storage_ranks};
  return quire_geometry_local_pages(&config->geometry, stripe);
}

static int64_t slab_stride(const struct quire_part *part) {
  return ((int64_t)part->page_bytes + QUIRE_BANK_PAGE_ALIGN - 1) / QUIRE_BANK_PAGE_ALIGN * QUIRE_BANK_PAGE_ALIGN;
}

/* Why a config cannot be; NULL when it can. */
static const char *config_fault(const struct quire_bank_config *config) {
  if (config == NULL || config->parts == NULL || !quire_geometry_valid(&config->geometry)) {
    return "geometry or parts table missing or not valid";
  }
  if (config->rank.v < 0 || config->rank.v >= config->geometry.ranks || config->geometry.ranks > QUIRE_PEERS_MAX) {
    return "the rank is not one of the geometry's";
  }
  if (config->parts->count < 1 || config->parts->count > QUIRE_PARTS_MAX) {
    return "the parts table is empty or too long";
  }
  if (config->parts->page_tokens != config->geometry.page_tokens) {
    return "parts table and geometry disagree about the tokens of a page";
  }
  return NULL;
}

/* Bytes of own memory for the parts that bound[] does not name; -1 when they do not fit 63 bits. */
static int64_t slab_bytes(const struct quire_parts *parts, int32_t local_pages, const bool *bound) {
  QUIRE_ASSERT(parts->count > 0 && local_pages >= 0);
  int64_t total = 0;
  for (int32_t i = 0; i < parts->count; i++) {
    int64_t bytes = 0;
    if (bound != NULL && bound[i]) {
      continue;
    }
    if (__builtin_mul_overflow(slab_stride(&parts->part[i]), (int64_t)local_pages, &bytes) ||
        __builtin_add_overflow(total, bytes, &total)) {
      return -1;
    }
  }
  return total;
}

int64_t quire_bank_bytes(const struct quire_bank_config *config) {
  return config_fault(config) != NULL ? -1 : slab_bytes(config->parts, local_pages_of(config), NULL);
}

/* -- life --------------------------------------------------------------------------------------------------------- */

static void bank_free(struct quire_bank *bank) {
  QUIRE_ASSERT(bank->env != NULL);
  const struct quire_env *env = bank->env;
  quire_stream_destroy(bank->stream);
  quire_memory_destroy(bank->slab);
  if (bank->written != NULL) {
    quire_env_free(env, bank->written, (size_t)bank->local_pages + 1, sizeof *bank->written);
  }
  if (bank->jobs != NULL) {
    quire_env_free(env, bank->jobs, (size_t)bank->config.queue_commands, sizeof *bank->jobs);
  }
  quire_env_free(env, bank, 1, sizeof *bank);
}

enum quire_status quire_bank_create(const struct quire_env *env, const struct quire_bank_config *config,
                                    struct quire_bank **bank_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && bank_out != NULL);
  const char *fault = config_fault(config);
  if (fault != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "%s", fault);
  }
  if (config->queue_commands < 1 || config->queue_commands > QUIRE_BANK_QUEUE_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "the queue must have 1 to %d commands, not %d",
                           QUIRE_BANK_QUEUE_MAX, (int)config->queue_commands);
  }
  struct quire_bank *bank = quire_env_zalloc(env, 1, sizeof *bank);
  if (bank == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bank", "no memory for the record of a bank");
  }
  bank->env = env;
  bank->config = *config;
  bank->parts = *config->parts;
  bank->config.parts = &bank->parts;
  bank->local_pages = local_pages_of(config);
  quire_bundle_layout_of(&bank->parts, &bank->bundle);
  /* one cell more than pages: a stripe may have none, and an allocation of 0 bytes is no allocation */
  bank->written = quire_env_zalloc(env, (size_t)bank->local_pages + 1, sizeof *bank->written);
  bank->jobs = quire_env_zalloc(env, (size_t)config->queue_commands, sizeof *bank->jobs);
  if (bank->written == NULL || bank->jobs == NULL) {
    bank_free(bank);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bank", "no memory for epochs and queue");
  }
  for (int32_t i = 0; i < bank->local_pages; i++) {
    bank->written[i] = QUIRE_WRITTEN_NEVER;
  }
  enum quire_status status =
      quire_stream_create(env, config->stream_mode, NULL, config->stream_seed, &bank->stream, error_out);
  if (status != QUIRE_OK) {
    bank_free(bank);
    return status;
  }
  *bank_out = bank;
  return QUIRE_OK;
}

void quire_bank_destroy(struct quire_bank *bank) {
  if (bank != NULL) {
    bank_free(bank);
  }
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

/* Bytes that repeat: `pages` times `bytes`, each stride behind the last. */
struct extent {
  uintptr_t base, stride, bytes;
  int32_t pages;
};

static struct extent extent_of_part(const struct quire_bank *bank, int32_t part) {
  const struct quire_peer_part *at = &bank->part[part];
  QUIRE_ASSERT(bank->bound[part]);
  return (struct extent){(uintptr_t)at->base, (uintptr_t)at->page_stride, (uintptr_t)bank->parts.part[part].page_bytes,
                         at->pages};
}

static struct extent extent_of_host(const void *base, int64_t bytes) {
  return (struct extent){(uintptr_t)base, (uintptr_t)bytes, (uintptr_t)bytes, base == NULL ? 0 : 1};
}

static uintptr_t extent_end(const struct extent *e) {
  return e->pages == 0 ? e->base : e->base + (uintptr_t)(e->pages - 1) * e->stride + e->bytes;
}

/* May two extents live where they are? Yes when they are disjoint, or when they share one stride and their pages take
 * different places in it (an engine that keeps all layers of a page together). One page alone has any stride. */
static bool apart(const struct extent *a, const struct extent *b) {
  QUIRE_ASSERT(a->pages >= 0 && b->pages >= 0);
  if (a->pages == 0 || b->pages == 0 || extent_end(a) <= b->base || extent_end(b) <= a->base) {
    return true;
  }
  if (a->stride != b->stride && a->pages > 1 && b->pages > 1) {
    return false;
  }
  uintptr_t stride = a->pages > 1 ? a->stride : b->stride;
  uintptr_t distance =
      b->base >= a->base ? (b->base - a->base) % stride : (stride - (a->base - b->base) % stride) % stride;
  return distance >= a->bytes && distance + b->bytes <= stride;
}

/* The first bound part of the bank that is not apart from an extent; -1: none. */
static int32_t part_in_the_way(const struct quire_bank *bank, const struct extent *e) {
  QUIRE_ASSERT(e != NULL && bank->parts.count <= QUIRE_PARTS_MAX);
  for (int32_t i = 0; i < bank->parts.count; i++) {
    struct extent other = bank->bound[i] ? extent_of_part(bank, i) : (struct extent){0};
    if (!apart(e, &other)) {
      return i;
    }
  }
  return -1;
}

/* Why memory cannot be bound to a part; NULL when it can. */
static const char *bind_fault(const struct quire_bank *bank, int32_t part, void *base, int64_t page_stride,
                              int32_t pages) {
  QUIRE_ASSERT(part >= 0 && part < bank->parts.count);
  int64_t bytes = 0;
  uintptr_t end = 0;
  if (base == NULL || (uintptr_t)base % QUIRE_BANK_BIND_ALIGN != 0 || page_stride % QUIRE_BANK_BIND_ALIGN != 0) {
    return "base and stride must be multiples of 16 bytes";
  }
  if (page_stride < bank->parts.part[part].page_bytes) {
    return "the stride is less than a page";
  }
  if (pages < bank->local_pages) {
    return "fewer pages than the geometry gives this rank";
  }
  if (__builtin_mul_overflow(page_stride, (int64_t)pages, &bytes) ||
      __builtin_add_overflow((uintptr_t)base, (uintptr_t)bytes, &end)) {
    return "the memory would pass the end of the address space";
  }
  struct extent wanted = {(uintptr_t)base, (uintptr_t)page_stride, (uintptr_t)bank->parts.part[part].page_bytes,
                          bank->local_pages};
  struct extent host = extent_of_host(bank->host, bank->host_bytes);
  if (part_in_the_way(bank, &wanted) >= 0 || !apart(&wanted, &host)) {
    return "the memory overlaps that of another part, or host memory";
  }
  return NULL;
}

enum quire_status quire_bank_bind(struct quire_bank *bank, int32_t part, void *base, int64_t page_stride, int32_t pages,
                                  struct quire_error *error_out) {
  QUIRE_ASSERT(bank != NULL);
  if (part < 0 || part >= bank->parts.count) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "part %d is not one of the table's %d", (int)part,
                           (int)bank->parts.count);
  }
  if (bank->bound[part]) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "part %d has memory already", (int)part);
  }
  const char *fault = bind_fault(bank, part, base, page_stride, pages);
  if (fault != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "part %d: %s", (int)part, fault);
  }
  bank->part[part] = (struct quire_peer_part){.base = base, .page_stride = page_stride, .pages = bank->local_pages};
  bank->bound[part] = true;
  for (int32_t i = 0; i < bank->local_pages; i++) {
    quire_written_mark(&bank->written[i], 0, 0);
  }
  return QUIRE_OK;
}

static bool all_bound(const struct quire_bank *bank) {
  QUIRE_ASSERT(bank->parts.count > 0);
  for (int32_t i = 0; i < bank->parts.count; i++) {
    if (!bank->bound[i]) {
      return false;
    }
  }
  return true;
}

enum quire_status quire_bank_allocate(struct quire_bank *bank, struct quire_error *error_out) {
  QUIRE_ASSERT(bank != NULL);
  if (all_bound(bank)) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "every part has memory already");
  }
  int64_t bytes = slab_bytes(&bank->parts, bank->local_pages, bank->bound);
  if (bytes < 0) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bank", "%d pages do not fit any memory",
                           (int)bank->local_pages);
  }
  size_t reserved = bytes == 0 ? QUIRE_BANK_PAGE_ALIGN : (size_t)bytes;
  enum quire_status status = quire_memory_create(bank->env, reserved, &bank->slab, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  uint8_t *base = quire_memory_base(bank->slab);
  for (int32_t i = 0; i < bank->parts.count; i++) {
    if (!bank->bound[i]) {
      int64_t stride = slab_stride(&bank->parts.part[i]);
      bank->part[i] = (struct quire_peer_part){.base = base, .page_stride = stride, .pages = bank->local_pages};
      bank->bound[i] = true;
      base += stride * bank->local_pages;
    }
  }
  QUIRE_ASSERT(base == (uint8_t *)quire_memory_base(bank->slab) + bytes);
  return QUIRE_OK;
}

enum quire_status quire_bank_host(struct quire_bank *bank, void *base, int64_t bytes, struct quire_error *error_out) {
  QUIRE_ASSERT(bank != NULL);
  if (quire_bank_open_commands(bank) != 0) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "host memory cannot change under %d open commands",
                           (int)quire_bank_open_commands(bank));
  }
  if (base == NULL || (uintptr_t)base % 8 != 0 || bytes <= 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "host memory of %lld bytes at %p", (long long)bytes,
                           base);
  }
  uintptr_t end = 0;
  if (__builtin_add_overflow((uintptr_t)base, (uintptr_t)bytes, &end)) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank",
                           "%lld bytes of host memory pass the end of the address space", (long long)bytes);
  }
  struct extent wanted = extent_of_host(base, bytes);
  int32_t part = part_in_the_way(bank, &wanted);
  if (part >= 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "host memory overlaps that of part %d", (int)part);
  }
  bank->host = base;
  bank->host_bytes = bytes;
  return QUIRE_OK;
}

/* -- the worker's banks ------------------------------------------------------------------------------------------- */

static bool same_parts(const struct quire_parts *a, const struct quire_parts *b) {
  QUIRE_ASSERT(a->count > 0 && b->count > 0);
  bool same = a->count == b->count && a->page_tokens == b->page_tokens && a->format == b->format;
  for (int32_t i = 0; same && i < a->count; i++) {
    const struct quire_part *x = &a->part[i];
    const struct quire_part *y = &b->part[i];
    same = x->model == y->model && x->kind == y->kind && x->layer == y->layer && x->page_bytes == y->page_bytes &&
           x->pieces == y->pieces;
    for (int32_t p = 0; same && p < x->pieces; p++) {
      same = x->piece[p].offset == y->piece[p].offset && x->piece[p].row_bytes == y->piece[p].row_bytes;
    }
  }
  return same;
}

static bool same_geometry(const struct quire_geometry *a, const struct quire_geometry *b) {
  return a->page_tokens == b->page_tokens && a->ranks == b->ranks && a->storage_ranks == b->storage_ranks &&
         a->pages == b->pages;
}

/* From the first byte of a bank to behind its last, gaps included. */
static struct extent extent_of_bank(const struct quire_bank *bank) {
  uintptr_t begin = UINTPTR_MAX, end = 0;
  for (int32_t i = 0; i < bank->parts.count; i++) {
    struct extent e = extent_of_part(bank, i);
    begin = e.base < begin ? e.base : begin;
    end = extent_end(&e) > end ? extent_end(&e) : end;
  }
  QUIRE_ASSERT(begin <= end);
  return (struct extent){begin, end - begin, end - begin, bank->local_pages == 0 || begin == end ? 0 : 1};
}

/* A copy between ranks reads one's memory and writes the other's, so no page of theirs may share a byte. */
static enum quire_status memory_check(struct quire_bank *const *banks, int32_t ranks, struct quire_error *error_out) {
  QUIRE_ASSERT(ranks > 0 && ranks <= QUIRE_PEERS_MAX);
  for (int32_t r = 1; r < ranks; r++) {
    for (int32_t s = 0; s < r; s++) {
      struct extent one = extent_of_bank(banks[r]), other = extent_of_bank(banks[s]);
      if (apart(&one, &other)) {
        continue;
      }
      for (int32_t i = 0; i < banks[r]->parts.count; i++) {
        struct extent e = extent_of_part(banks[r], i);
        int32_t j = part_in_the_way(banks[s], &e);
        if (j >= 0) {
          return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank",
                                 "the memory of part %d of rank %d overlaps that of part %d of rank %d", (int)i, (int)r,
                                 (int)j, (int)s);
        }
      }
    }
  }
  return QUIRE_OK;
}

static enum quire_status connect_check(struct quire_bank *const *banks, int32_t ranks, struct quire_error *error_out) {
  QUIRE_ASSERT(ranks >= 1 && ranks <= QUIRE_PEERS_MAX);
  for (int32_t r = 0; r < ranks; r++) {
    const struct quire_bank *bank = banks[r];
    if (bank == NULL || bank->config.rank.v != r || bank->config.geometry.ranks != ranks) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "place %d of %d is not held by its rank's bank",
                             (int)r, (int)ranks);
    }
    if (!same_geometry(&bank->config.geometry, &banks[0]->config.geometry) ||
        !same_parts(&bank->parts, &banks[0]->parts) ||
        !quire_hash128_equal(bank->config.fingerprint, banks[0]->config.fingerprint)) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank",
                             "ranks 0 and %d differ in geometry, parts or fingerprint", (int)r);
    }
    if (!all_bound(bank)) {
      return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "rank %d has parts without memory", (int)r);
    }
    if (quire_bank_open_commands(bank) != 0) {
      return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "rank %d has open commands", (int)r);
    }
  }
  return memory_check(banks, ranks, error_out);
}

enum quire_status quire_bank_connect(struct quire_bank *const *banks, int32_t ranks, struct quire_peer_map *map_out,
                                     struct quire_error *error_out) {
  if (banks == NULL || ranks < 1 || ranks > QUIRE_PEERS_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "ranks must be 1 to %d, not %d", QUIRE_PEERS_MAX,
                           (int)ranks);
  }
  enum quire_status status = connect_check(banks, ranks, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct quire_peer_map map = {.ranks = ranks};
  for (int32_t r = 0; r < ranks; r++) {
    map.rank[r] = quire_bank_peer(banks[r]);
    QUIRE_ASSERT(map.rank[r].parts == banks[r]->parts.count);
  }
  for (int32_t r = 0; r < ranks; r++) {
    banks[r]->map = map;
    banks[r]->connected = true;
  }
  if (map_out != NULL) {
    *map_out = map;
  }
  return QUIRE_OK;
}

/* -- pages and epochs --------------------------------------------------------------------------------------------- */

struct quire_peer quire_bank_peer(const struct quire_bank *bank) {
  QUIRE_ASSERT(bank != NULL);
  return (struct quire_peer){
      .part = bank->part, .written = bank->written, .parts = bank->parts.count, .pages = bank->local_pages};
}

const struct quire_parts *quire_bank_parts(const struct quire_bank *bank) {
  QUIRE_ASSERT(bank != NULL);
  return &bank->parts;
}

int32_t quire_bank_local_pages(const struct quire_bank *bank) {
  QUIRE_ASSERT(bank != NULL);
  return bank->local_pages;
}

uint8_t *quire_bank_page(const struct quire_bank *bank, int32_t part, quire_local_page local) {
  struct quire_peer peer = quire_bank_peer(bank);
  return quire_peer_page(&peer, part, local.v);
}

enum quire_status quire_bank_mark_written(struct quire_bank *bank, quire_local_page local, int64_t epoch,
                                          int32_t first_row) {
  QUIRE_ASSERT(bank != NULL);
  if (local.v < 0 || local.v >= bank->local_pages || epoch < 0 || epoch > QUIRE_WRITTEN_EPOCH_MAX || first_row < 0 ||
      first_row >= bank->parts.page_tokens) {
    return QUIRE_ERR_ARGUMENT;
  }
  quire_written_mark(&bank->written[local.v], epoch, first_row);
  return QUIRE_OK;
}

bool quire_bank_readable(const struct quire_bank *bank, quire_local_page local, int64_t epoch, int32_t rows) {
  QUIRE_ASSERT(bank != NULL);
  if (local.v < 0 || local.v >= bank->local_pages || rows > bank->parts.page_tokens) {
    return false;
  }
  return quire_written_readable(&bank->written[local.v], epoch, rows);
}

/* -- commands ----------------------------------------------------------------------------------------------------- */

struct run_args {
  struct quire_bank *bank;
  uint64_t number;
};

static struct bank_job *job_at(struct quire_bank *bank, uint64_t number) {
  return &bank->jobs[number % (uint64_t)bank->config.queue_commands];
}

/* The queue's step from command to acknowledgement, on the stream. */
static void run_job(void *args, struct quire_team *team) {
  const struct run_args *run = args;
  struct quire_bank *bank = run->bank;
  (void)team;
  quire_bank_execute(bank, job_at(bank, run->number));
  uint64_t before = atomic_fetch_add_explicit(&bank->completed, 1, memory_order_release);
  QUIRE_ASSERT(before == run->number);
  if (bank->config.notify != NULL) {
    bank->config.notify(bank->config.notify_context);
  }
}

static enum quire_status command_check(const struct quire_bank *bank, const struct quire_command *command,
                                       struct quire_error *error_out) {
  QUIRE_ASSERT(command != NULL);
  const char *why = "";
  if (!quire_command_check(&bank->config.geometry, command, &why)) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "command refused: %s", why);
  }
  if ((command->ranks >> bank->config.rank.v & 1) == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "command is not for rank %d",
                           (int)bank->config.rank.v);
  }
  if (command->kind == QUIRE_COMMAND_PACK || command->kind == QUIRE_COMMAND_UNPACK) {
    if (bank->host == NULL) {
      return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "there is no host memory to pack to or unpack from");
    }
    if (command->host_offset < 0 || command->host_offset > bank->host_bytes - bank->bundle.bytes) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "host offset %lld lies outside of host memory",
                             (long long)command->host_offset);
    }
  }
  return QUIRE_OK;
}

enum quire_status quire_bank_submit(struct quire_bank *bank, const struct quire_command *command,
                                    struct quire_error *error_out) {
  QUIRE_ASSERT(bank != NULL && command != NULL);
  if (!bank->connected) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "not connected yet");
  }
  enum quire_status status = command_check(bank, command, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  if (quire_bank_open_commands(bank) == bank->config.queue_commands) {
    return quire_error_set(error_out, QUIRE_ERR_AGAIN, "bank", "%d commands are open; poll first",
                           (int)bank->config.queue_commands);
  }
  struct run_args run = {.bank = bank, .number = bank->submitted};
  job_at(bank, run.number)->command = *command;
  bank->submitted++;
  quire_stream_launch(bank->stream, run_job, &run, sizeof run);
  return QUIRE_OK;
}

int32_t quire_bank_poll(struct quire_bank *bank, struct quire_ack *acks_out, int32_t acks_max) {
  QUIRE_ASSERT(bank != NULL && (acks_max == 0 || acks_out != NULL));
  uint64_t completed = atomic_load_explicit(&bank->completed, memory_order_acquire);
  int32_t count = 0;
  while (count < acks_max && bank->polled < completed) {
    const struct bank_job *job = job_at(bank, bank->polled);
    acks_out[count++] = job->ack;
    if (job->ack.status != QUIRE_OK) {
      bank->faulted = true;
      bank->last_fault = job->fault;
    }
    bank->polled++;
  }
  return count;
}

bool quire_bank_last_fault(const struct quire_bank *bank, struct quire_bank_fault *fault_out) {
  QUIRE_ASSERT(bank != NULL && fault_out != NULL);
  if (bank->faulted) {
    *fault_out = bank->last_fault;
  }
  return bank->faulted;
}

int32_t quire_bank_open_commands(const struct quire_bank *bank) {
  QUIRE_ASSERT(bank != NULL && bank->submitted >= bank->polled);
  return (int32_t)(bank->submitted - bank->polled);
}

void quire_bank_drain(struct quire_bank *bank) {
  QUIRE_ASSERT(bank != NULL);
  quire_event_sync(quire_stream_record(bank->stream));
}
