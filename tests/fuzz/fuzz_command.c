// fuzz: runs=80000
/* Commands of the public interface to the banks of a worker, and host memory that anybody may have written. The first
 * byte is the layout; then steps: a command whose fields are mostly good, one of 64 bytes as they come, or bytes for
 * host memory. Each rank refuses a command with a reason or answers it once; what was packed unpacks; a page whose
 * UNPACK fails is as it was. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "quire/quire.h"

#define RANKS_MAX 3
#define PAGES 6
#define PARTS_MAX 4
#define EXTENTS 4
#define STEPS_MAX 64
#define PAGE_BYTES_MAX 16384

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct worker {
  struct quire_kv_layout *layout;
  struct quire_kv_layout_info info;
  struct quire_kv_bank *banks[RANKS_MAX];
  uint8_t *host;
  size_t host_bytes;
};

struct input {
  const uint8_t *data;
  size_t left;
};

static uint8_t next(struct input *in) {
  if (in->left == 0) {
    return 0;
  }
  in->left--;
  return *in->data++;
}

static void next_bytes(struct input *in, void *out, size_t bytes) {
  memset(out, 0, bytes);
  for (size_t i = 0; i < bytes && in->left > 0; i++) {
    ((uint8_t *)out)[i] = next(in);
  }
}

static void open_worker(struct worker *w, uint8_t how) {
  const struct quire_kv_layout_options options = {.size = sizeof options,
                                                  .format = QUIRE_KV_ROW_FP8,
                                                  .page_tokens = 1 + how % 4,
                                                  .target_layers = 1,
                                                  .draft_layers = how >> 2 & 1,
                                                  .ranks = 1 + (how >> 3) % RANKS_MAX,
                                                  .replicated = how >> 7,
                                                  .pages = PAGES,
                                                  .numerics_id = "fuzz"};
  QUIRE_ASSERT(quire_kv_layout_create(&options, &w->layout, NULL) == QUIRE_OK);
  w->info.size = sizeof w->info;
  QUIRE_ASSERT(quire_kv_layout_info(w->layout, &w->info) == QUIRE_OK && w->info.parts <= PARTS_MAX);
  w->host_bytes = EXTENTS * (size_t)w->info.rest_bytes;
  w->host = aligned_alloc(4096, w->host_bytes);
  QUIRE_ASSERT(w->host);
  memset(w->host, 0, w->host_bytes);
  for (int32_t r = 0; r < w->info.ranks; r++) {
    const struct quire_kv_bank_options bank = {.size = sizeof bank, .rank = r, .execution = QUIRE_KV_BY_CALLER};
    QUIRE_ASSERT(quire_kv_bank_create(w->layout, &bank, &w->banks[r], NULL) == QUIRE_OK);
    QUIRE_ASSERT(quire_kv_bank_allocate(w->banks[r], NULL) == QUIRE_OK);
    QUIRE_ASSERT(quire_kv_bank_host(w->banks[r], w->host, (int64_t)w->host_bytes, NULL) == QUIRE_OK);
  }
  QUIRE_ASSERT(quire_kv_bank_connect(w->banks, w->info.ranks, NULL) == QUIRE_OK);
}

static void close_worker(struct worker *w) {
  for (int32_t r = 0; r < w->info.ranks; r++) {
    QUIRE_ASSERT(quire_kv_bank_destroy(w->banks[r]) == QUIRE_OK);
  }
  QUIRE_ASSERT(quire_kv_layout_destroy(w->layout) == QUIRE_OK);
  free(w->host);
}

/* All parts of a page of a rank, one behind the other; 0 bytes: it does not store the page. */
static size_t read_page(const struct worker *w, int32_t rank, quire_kv_page page, uint8_t *out) {
  size_t bytes = 0;
  for (int32_t i = 0; i < w->info.parts; i++) {
    struct quire_kv_part part = {.size = sizeof part};
    void *address = NULL;
    QUIRE_ASSERT(quire_kv_layout_part(w->layout, i, &part) == QUIRE_OK);
    if (quire_kv_bank_page(w->banks[rank], i, page, &address) != QUIRE_OK) {
      return 0;
    }
    QUIRE_ASSERT(bytes + (size_t)part.page_bytes <= PAGE_BYTES_MAX);
    memcpy(out + bytes, address, (size_t)part.page_bytes);
    bytes += (size_t)part.page_bytes;
  }
  return bytes;
}

/* One rank's answer; QUIRE_ERR_ARGUMENT where it took no command. */
static struct quire_kv_ack ask(const struct worker *w, int32_t rank, const struct quire_kv_command *command) {
  static uint8_t before[PAGE_BYTES_MAX], after[PAGE_BYTES_MAX];
  struct quire_kv_ack acks[2] = {{.status = QUIRE_ERR_ARGUMENT}};
  struct quire_error error = {0};
  int32_t count = 0;
  const size_t bytes = read_page(w, rank, command->page, before);
  const enum quire_status status = quire_kv_bank_submit(w->banks[rank], command, &error);
  QUIRE_ASSERT(status == QUIRE_OK || (status == QUIRE_ERR_ARGUMENT && error.text[0]));
  QUIRE_ASSERT(quire_kv_bank_drain(w->banks[rank]) == QUIRE_OK);
  QUIRE_ASSERT(quire_kv_bank_poll(w->banks[rank], acks, 2, &count) == QUIRE_OK && count == (status == QUIRE_OK));
  if (status == QUIRE_OK) {
    QUIRE_ASSERT(acks[0].op == command->op && acks[0].epoch == command->epoch && acks[0].rank == rank);
    QUIRE_ASSERT((command->ranks >> rank & 1) == 1);
  }
  const bool writes = command->kind == QUIRE_KV_UNPACK || command->kind == QUIRE_KV_POISON;
  if (!writes || acks[0].status != QUIRE_OK) {
    QUIRE_ASSERT(read_page(w, rank, command->page, after) == bytes && memcmp(before, after, bytes) == 0);
  }
  return acks[0];
}

/* What a PACK has just written, unpacked where it came from. */
static void unpack_again(const struct worker *w, struct quire_kv_command command, struct quire_kv_hash digest) {
  struct quire_kv_place place = {.size = sizeof place};
  QUIRE_ASSERT(quire_kv_layout_place(w->layout, command.page, &place) == QUIRE_OK);
  command.kind = QUIRE_KV_UNPACK;
  command.ranks = place.ranks;
  for (int32_t r = 0; r < w->info.ranks; r++) {
    if (place.ranks >> r & 1) {
      const struct quire_kv_ack ack = ask(w, r, &command);
      QUIRE_ASSERT(ack.status == QUIRE_OK && memcmp(&ack.digest, &digest, sizeof digest) == 0);
    }
  }
}

static void execute(const struct worker *w, const struct quire_kv_command *command) {
  for (int32_t r = 0; r < w->info.ranks; r++) {
    const struct quire_kv_ack ack = ask(w, r, command);
    if (command->kind == QUIRE_KV_PACK && ack.status == QUIRE_OK) {
      unpack_again(w, *command, ack.digest);
    }
  }
}

/* Fields within bounds, mostly; the ranks as the kind has them, unless the kind's byte says otherwise. */
static struct quire_kv_command some_command(const struct worker *w, struct input *in) {
  const uint8_t kind = next(in), pages = next(in), rows = next(in), extent = next(in);
  struct quire_kv_command command = {.op = rows, .epoch = extent, .kind = kind % 6, .page = {pages % 7}};
  struct quire_kv_place place = {.size = sizeof place};
  const bool copy = command.kind == QUIRE_KV_COPY;
  const bool host = command.kind == QUIRE_KV_PACK || command.kind == QUIRE_KV_UNPACK;
  command.target.v = copy || kind & 64 ? pages / 8 % 7 : QUIRE_KV_PAGE_NONE;
  command.valid_tokens = rows % 6;
  command.request_page = host || kind & 64 ? rows / 8 - 1 : 0;
  command.host_offset = host ? extent % 5 * w->info.rest_bytes + (extent & 128 ? 4096 : 0) : extent == 255;
  command.chain.low = host ? extent : 0;
  if (quire_kv_layout_place(w->layout, copy ? command.target : command.page, &place) == QUIRE_OK) {
    command.ranks = command.kind == QUIRE_KV_PACK ? 1u << place.sender : place.ranks;
  }
  command.ranks ^= kind & 128 ? pages : 0;
  return command;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input in = {data, size};
  struct worker w = {0};
  open_worker(&w, next(&in));
  for (int i = 0; i < STEPS_MAX && in.left > 0; i++) {
    struct quire_kv_command command;
    uint16_t at;
    switch (next(&in) % 4) {
    case 0:
      next_bytes(&in, &command, sizeof command);
      execute(&w, &command);
      break;
    case 1:
      next_bytes(&in, &at, sizeof at);
      w.host[at % w.host_bytes] ^= next(&in);
      break;
    default:
      command = some_command(&w, &in);
      execute(&w, &command);
    }
  }
  close_worker(&w);
  return 0;
}
