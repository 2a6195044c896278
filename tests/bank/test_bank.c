/* Banks against a flat oracle: every kind of command, format, piece layout, binding and stream mode; corrupt bundles;
 * refused memory; epochs. The oracle copies row by row in a shadow of each rank's whole memory, and everything is
 * compared after every batch: pages nobody named, gaps between pages and rows behind the valid ones must be as they
 * were. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#include "bank/bank.h"
#include "base/rng.h"
#include "device/device_info.h"
#include "layout/bundle.h"
#include "support/fail_env.h"
#include "support/limit.h"
#include "support/seed.h"

#define RANKS 4
#define SLOTS 6 /* bundles in host memory */

static uint64_t seed_of_run;

enum binding { BINDING_OWN, BINDING_ARRAYS, BINDING_INTERLEAVED, BINDING_MIXED, BINDINGS };

struct memory {
  uint8_t *base;
  size_t bytes;
  uint8_t *shadow;
};

struct worker {
  struct quire_geometry geometry;
  struct quire_parts parts;
  struct quire_bundle_layout bundle;
  struct quire_hash128 fingerprint;
  struct quire_bank *bank[QUIRE_RANKS_MAX];
  struct quire_peer_map map;
  struct memory memory[QUIRE_RANKS_MAX][2]; /* bound by us, the bank's own slab */
  int64_t offset[QUIRE_RANKS_MAX][QUIRE_PARTS_MAX];
  int64_t stride[QUIRE_PARTS_MAX];
  int32_t of[QUIRE_PARTS_MAX]; /* 0: bound by us, 1: in the slab */
  uint8_t *host;
  uint8_t *host_shadow;
  int64_t host_bytes;
  uint64_t next_op;
};

static void fill_random(uint8_t *bytes, size_t count, uint64_t *random) {
  for (size_t i = 0; i < count; i++) {
    bytes[i] = (uint8_t)(quire_splitmix64(random) >> 56);
  }
}

static struct quire_parts parts_of(enum quire_kv_format format, int32_t page_tokens) {
  static const bool owns[3] = {true, false, true};
  struct quire_parts parts;
  assert_true(quire_parts_build(&parts, format, page_tokens, 3, owns, 1));
  return parts;
}

static struct quire_bank_config config_of(const struct worker *worker, int32_t rank, enum quire_stream_mode mode) {
  return (struct quire_bank_config){.geometry = worker->geometry,
                                    .rank = {rank},
                                    .parts = &worker->parts,
                                    .fingerprint = worker->fingerprint,
                                    .queue_commands = 16,
                                    .stream_mode = mode,
                                    .stream_seed = seed_of_run + (uint64_t)rank};
}

static int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

static int32_t local_pages(const struct worker *worker, int32_t rank) {
  quire_stripe_id stripe = {rank % worker->geometry.storage_ranks};
  return quire_geometry_local_pages(&worker->geometry, stripe);
}

/* Where each part goes, without asking the bank: for bound memory because we say so, for the slab from the header. */
static void lay_out(struct worker *worker, int32_t rank, enum binding binding) {
  int64_t at[2] = {0, 0};
  int64_t all = 0;
  int32_t pages = local_pages(worker, rank);
  for (int32_t i = 0; i < worker->parts.count; i++) {
    all += round_up(worker->parts.part[i].page_bytes, 16) + 16;
  }
  for (int32_t i = 0; i < worker->parts.count; i++) {
    int64_t page_bytes = worker->parts.part[i].page_bytes;
    bool slab = binding == BINDING_OWN || (binding == BINDING_MIXED && i % 2 == 1);
    worker->of[i] = slab ? 1 : 0;
    worker->offset[rank][i] = at[worker->of[i]];
    if (slab) {
      worker->stride[i] = round_up(page_bytes, QUIRE_BANK_PAGE_ALIGN);
      at[1] += worker->stride[i] * pages;
    } else if (binding == BINDING_INTERLEAVED) {
      worker->stride[i] = all;
      at[0] += round_up(page_bytes, 16) + 16;
    } else {
      worker->stride[i] = round_up(page_bytes, 16) + 32;
      at[0] += worker->stride[i] * pages + 48;
    }
  }
  worker->memory[rank][0].bytes = (size_t)(binding == BINDING_INTERLEAVED ? all * pages : at[0]);
  worker->memory[rank][1].bytes = (size_t)at[1];
}

static void rank_open(struct worker *worker, int32_t rank, enum binding binding, enum quire_stream_mode mode,
                      uint64_t *random) {
  struct quire_bank_config config = config_of(worker, rank, mode);
  lay_out(worker, rank, binding);
  assert_int_equal(quire_bank_create(quire_env_default(), &config, &worker->bank[rank], NULL), QUIRE_OK);
  struct memory *memory = worker->memory[rank];
  if (memory[0].bytes != 0) {
    memory[0].base = aligned_alloc(64, (size_t)round_up((int64_t)memory[0].bytes, 64));
  }
  bool any_slab = false;
  for (int32_t i = 0; i < worker->parts.count; i++) {
    any_slab |= worker->of[i] == 1;
    if (worker->of[i] == 0) {
      assert_int_equal(quire_bank_bind(worker->bank[rank], i, memory[0].base + worker->offset[rank][i],
                                       worker->stride[i], local_pages(worker, rank), NULL),
                       QUIRE_OK);
    }
  }
  if (any_slab) {
    assert_int_equal(quire_bank_allocate(worker->bank[rank], NULL), QUIRE_OK);
    int32_t first = worker->of[0] == 1 ? 0 : 1;
    memory[1].base = quire_bank_page(worker->bank[rank], first, (quire_local_page){0});
    assert_int_equal((uintptr_t)memory[1].base % 4096, 0);
    for (size_t i = 0; i < memory[1].bytes; i++) {
      assert_int_equal(memory[1].base[i], 0xFF);
    }
  }
  if (binding == BINDING_OWN) {
    assert_int_equal(quire_bank_bytes(&config), (int64_t)memory[1].bytes);
  }
  for (int m = 0; m < 2; m++) {
    if (memory[m].bytes != 0) {
      fill_random(memory[m].base, memory[m].bytes, random);
      memory[m].shadow = malloc(memory[m].bytes);
      memcpy(memory[m].shadow, memory[m].base, memory[m].bytes);
    }
  }
}

static struct worker *worker_open(struct quire_geometry geometry, enum quire_kv_format format, enum binding binding,
                                  enum quire_stream_mode mode, uint64_t *random) {
  struct worker *worker = calloc(1, sizeof *worker);
  worker->geometry = geometry;
  worker->parts = parts_of(format, geometry.page_tokens);
  worker->fingerprint = (struct quire_hash128){quire_splitmix64(random), quire_splitmix64(random)};
  quire_bundle_layout_of(&worker->parts, &worker->bundle);
  for (int32_t r = 0; r < geometry.ranks; r++) {
    rank_open(worker, r, binding, mode, random);
  }
  assert_int_equal(quire_bank_connect(worker->bank, geometry.ranks, &worker->map, NULL), QUIRE_OK);
  worker->host_bytes = SLOTS * worker->bundle.bytes;
  worker->host = aligned_alloc(4096, (size_t)worker->host_bytes);
  worker->host_shadow = malloc((size_t)worker->host_bytes);
  fill_random(worker->host, (size_t)worker->host_bytes, random);
  memcpy(worker->host_shadow, worker->host, (size_t)worker->host_bytes);
  for (int32_t r = 0; r < geometry.ranks; r++) {
    assert_int_equal(quire_bank_host(worker->bank[r], worker->host, worker->host_bytes, NULL), QUIRE_OK);
  }
  return worker;
}

static void worker_close(struct worker *worker) {
  for (int32_t r = 0; r < worker->geometry.ranks; r++) {
    quire_bank_drain(worker->bank[r]);
  }
  for (int32_t r = 0; r < worker->geometry.ranks; r++) {
    quire_bank_destroy(worker->bank[r]);
    free(worker->memory[r][0].base);
    free(worker->memory[r][0].shadow);
    free(worker->memory[r][1].shadow);
  }
  free(worker->host);
  free(worker->host_shadow);
  free(worker);
}

/* -- the oracle --------------------------------------------------------------------------------------------------- */

static uint8_t *shadow_page(const struct worker *worker, int32_t rank, int32_t part, quire_page page) {
  int64_t local = page.v / worker->geometry.storage_ranks;
  return worker->memory[rank][worker->of[part]].shadow + worker->offset[rank][part] + local * worker->stride[part];
}

static bool stores(const struct worker *worker, int32_t rank, quire_page page) {
  return rank % worker->geometry.storage_ranks == page.v % worker->geometry.storage_ranks;
}

static struct quire_hash128 oracle_digest(const struct worker *worker, int32_t rank, quire_page page, int32_t rows) {
  struct quire_hash128 digests[QUIRE_PARTS_MAX];
  for (int32_t i = 0; i < worker->parts.count; i++) {
    const struct quire_part *part = &worker->parts.part[i];
    uint8_t *flat = malloc((size_t)part->page_bytes);
    size_t used = 0;
    for (int32_t p = 0; p < part->pieces; p++) {
      for (int32_t row = 0; row < rows; row++) {
        memcpy(flat + used, shadow_page(worker, rank, i, page) + part->piece[p].offset + row * part->piece[p].row_bytes,
               (size_t)part->piece[p].row_bytes);
        used += (size_t)part->piece[p].row_bytes;
      }
    }
    digests[i] = quire_hash128(flat, used, 0);
    free(flat);
  }
  return quire_hash128(digests, (size_t)worker->parts.count * sizeof digests[0], 0);
}

static void oracle_rows(const struct quire_part *part, uint8_t *target, const uint8_t *source, int32_t rows) {
  for (int32_t p = 0; p < part->pieces; p++) {
    for (int32_t row = 0; row < rows; row++) {
      int64_t at = part->piece[p].offset + (int64_t)row * part->piece[p].row_bytes;
      for (int32_t b = 0; b < part->piece[p].row_bytes; b++) {
        target[at + b] = source[at + b];
      }
    }
  }
}

/* What the command does to the shadow of one rank; returns the digest its ack must carry. */
static struct quire_hash128 oracle_run(struct worker *worker, int32_t rank, const struct quire_command *command) {
  struct quire_hash128 none = {0, 0};
  int32_t sender = command->page.v % worker->geometry.storage_ranks;
  uint8_t *bundle = worker->host_shadow + command->host_offset;
  quire_page result = command->kind == QUIRE_COMMAND_COPY_PAGE ? command->target : command->page;
  for (int32_t i = 0; i < worker->parts.count; i++) {
    const struct quire_part *part = &worker->parts.part[i];
    uint8_t *in_bundle = bundle + worker->bundle.part_offset[i];
    if (command->kind == QUIRE_COMMAND_COPY_PAGE) {
      int32_t from = stores(worker, rank, command->page) ? rank : sender;
      oracle_rows(part, shadow_page(worker, rank, i, command->target), shadow_page(worker, from, i, command->page),
                  command->valid_tokens);
    } else if (command->kind == QUIRE_COMMAND_POISON) {
      memset(shadow_page(worker, rank, i, command->page), 0xFF, (size_t)part->page_bytes);
    } else if (command->kind == QUIRE_COMMAND_PACK) {
      oracle_rows(part, in_bundle, shadow_page(worker, rank, i, command->page), command->valid_tokens);
    } else if (command->kind == QUIRE_COMMAND_UNPACK) {
      oracle_rows(part, shadow_page(worker, rank, i, command->page), in_bundle, command->valid_tokens);
    }
  }
  if (command->kind == QUIRE_COMMAND_PACK) {
    struct quire_bundle_info info = {.fingerprint = worker->fingerprint,
                                     .chain = command->chain,
                                     .request_page = command->request_page,
                                     .valid_tokens = command->valid_tokens};
    quire_bundle_seal(&worker->parts, &worker->bundle, &info, bundle);
  }
  return command->kind == QUIRE_COMMAND_POISON ? none : oracle_digest(worker, rank, result, command->valid_tokens);
}

static void compare_all(const struct worker *worker) {
  for (int32_t r = 0; r < worker->geometry.ranks; r++) {
    for (int m = 0; m < 2; m++) {
      const struct memory *memory = &worker->memory[r][m];
      assert_true(memory->bytes == 0 || memcmp(memory->base, memory->shadow, memory->bytes) == 0);
    }
  }
  assert_true(memcmp(worker->host, worker->host_shadow, (size_t)worker->host_bytes) == 0);
}

/* -- commands ----------------------------------------------------------------------------------------------------- */

static struct quire_command command_of(struct worker *worker, enum quire_command_kind kind, int32_t page,
                                       int32_t target, int32_t rows, int64_t slot) {
  bool host = kind == QUIRE_COMMAND_PACK || kind == QUIRE_COMMAND_UNPACK;
  struct quire_command command = {
      .op = ++worker->next_op,
      .epoch = worker->next_op * 3,
      .kind = kind,
      .page = {page},
      .target = {kind == QUIRE_COMMAND_COPY_PAGE ? target : QUIRE_PAGE_NONE},
      .request_page = {host ? page + 1 : 0},
      .valid_tokens = kind == QUIRE_COMMAND_POISON ? worker->geometry.page_tokens : rows,
      .host_offset = host ? slot * worker->bundle.bytes : 0,
  };
  if (host) {
    command.chain = (struct quire_hash128){(uint64_t)slot * 77 + 1, (uint64_t)page};
  }
  command.ranks =
      quire_command_storing_ranks(&worker->geometry, kind == QUIRE_COMMAND_COPY_PAGE ? command.target : command.page);
  if (kind == QUIRE_COMMAND_PACK) {
    command.ranks = 1u << quire_page_sender(&worker->geometry, command.page).v;
  }
  return command;
}

static void submit_to_all(struct worker *worker, const struct quire_command *command) {
  for (int32_t r = 0; r < worker->geometry.ranks; r++) {
    if ((command->ranks >> r & 1) != 0) {
      assert_int_equal(quire_bank_submit(worker->bank[r], command, NULL), QUIRE_OK);
    }
  }
}

static struct quire_ack next_ack(struct worker *worker, int32_t rank) {
  struct quire_ack ack;
  while (quire_bank_poll(worker->bank[rank], &ack, 1) == 0) {
    sched_yield();
  }
  return ack;
}

/* Runs a command on all its ranks, which must refuse it with status; the last fault. */
static struct quire_bank_fault run_refused(struct worker *worker, const struct quire_command *command,
                                           enum quire_status status) {
  struct quire_bank_fault fault = {0};
  submit_to_all(worker, command);
  for (int32_t r = 0; r < worker->geometry.ranks; r++) {
    if ((command->ranks >> r & 1) != 0) {
      struct quire_ack ack = next_ack(worker, r);
      assert_int_equal(ack.op, command->op);
      assert_int_equal(ack.status, status);
      assert_true(ack.digest.low == 0 && ack.digest.high == 0);
      assert_true(quire_bank_last_fault(worker->bank[r], &fault));
      assert_int_equal(fault.op, command->op);
      assert_int_equal(fault.error.status, status);
    }
  }
  compare_all(worker);
  return fault;
}

/* Submits a batch, runs the oracle over it, then takes and checks all acks in order. */
static void run_batch(struct worker *worker, const struct quire_command *commands, int32_t count) {
  struct quire_hash128 digests[16][QUIRE_RANKS_MAX];
  for (int32_t c = 0; c < count; c++) {
    submit_to_all(worker, &commands[c]);
    for (int32_t r = 0; r < worker->geometry.ranks; r++) {
      if ((commands[c].ranks >> r & 1) != 0) {
        digests[c][r] = oracle_run(worker, r, &commands[c]);
      }
    }
  }
  for (int32_t c = 0; c < count; c++) {
    for (int32_t r = 0; r < worker->geometry.ranks; r++) {
      if ((commands[c].ranks >> r & 1) != 0) {
        struct quire_ack ack = next_ack(worker, r);
        assert_int_equal(ack.op, commands[c].op);
        assert_int_equal(ack.epoch, commands[c].epoch);
        assert_int_equal(ack.status, QUIRE_OK);
        assert_int_equal(ack.rank.v, r);
        assert_true(quire_hash128_equal(ack.digest, digests[c][r]));
      }
    }
  }
  for (int32_t r = 0; r < worker->geometry.ranks; r++) {
    assert_int_equal(quire_bank_open_commands(worker->bank[r]), 0);
  }
  compare_all(worker);
}

/* -- random commands ---------------------------------------------------------------------------------------------- */

struct packed {
  bool full;
  struct quire_command pack;
};

/* Commands of one batch name different pages and slots: between banks nothing is ordered. */
static int32_t draw_batch(struct worker *worker, struct packed *slots, struct quire_command *commands,
                          uint64_t *random) {
  bool page_used[64] = {false};
  bool slot_used[SLOTS] = {false};
  int32_t count = 0;
  for (int tries = 0; tries < 8; tries++) {
    enum quire_command_kind kind = (enum quire_command_kind)(1 + quire_splitmix64_below(random, 5));
    int32_t page = (int32_t)quire_splitmix64_below(random, (uint64_t)worker->geometry.pages);
    int32_t target = (int32_t)quire_splitmix64_below(random, (uint64_t)worker->geometry.pages);
    int32_t rows = worker->geometry.page_tokens;
    int64_t slot = (int64_t)quire_splitmix64_below(random, SLOTS);
    bool copies = kind == QUIRE_COMMAND_COPY_PAGE;
    bool host = kind == QUIRE_COMMAND_PACK || kind == QUIRE_COMMAND_UNPACK;
    if (quire_splitmix64_below(random, 3) != 0) {
      rows = 1 + (int32_t)quire_splitmix64_below(random, (uint64_t)rows);
    }
    if (page_used[page] || (copies && (target == page || page_used[target])) || (host && slot_used[slot]) ||
        (kind == QUIRE_COMMAND_UNPACK && !slots[slot].full)) {
      continue;
    }
    page_used[page] = true;
    page_used[target] |= copies;
    slot_used[slot] |= host;
    commands[count] = command_of(worker, kind, page, target, rows, slot);
    if (kind == QUIRE_COMMAND_PACK) {
      slots[slot] = (struct packed){.full = true, .pack = commands[count]};
    } else if (kind == QUIRE_COMMAND_UNPACK) {
      commands[count].valid_tokens = slots[slot].pack.valid_tokens;
      commands[count].chain = slots[slot].pack.chain;
      commands[count].request_page = slots[slot].pack.request_page;
    }
    count++;
  }
  return count;
}

/* Under replication all ranks must hold the same bytes of a page, as they do in life: each gets rank 0's. */
static void even_out(struct worker *worker) {
  if (worker->geometry.storage_ranks == worker->geometry.ranks) {
    return;
  }
  for (int32_t r = 1; r < worker->geometry.ranks; r++) {
    for (int m = 0; m < 2; m++) {
      if (worker->memory[0][m].bytes != 0) {
        memcpy(worker->memory[r][m].base, worker->memory[0][m].base, worker->memory[0][m].bytes);
        memcpy(worker->memory[r][m].shadow, worker->memory[0][m].shadow, worker->memory[0][m].bytes);
      }
    }
  }
}

static void random_commands_for(struct quire_geometry geometry, enum quire_kv_format format, enum binding binding,
                                enum quire_stream_mode mode, int batches) {
  uint64_t random = seed_of_run + (uint64_t)format * 17 + (uint64_t)binding * 5 + (uint64_t)mode;
  struct worker *worker = worker_open(geometry, format, binding, mode, &random);
  struct packed slots[SLOTS] = {{0}};
  even_out(worker);
  for (int b = 0; b < batches; b++) {
    struct quire_command commands[8];
    int32_t count = draw_batch(worker, slots, commands, &random);
    run_batch(worker, commands, count);
  }
  worker_close(worker);
}

static void random_commands(void **state) {
  (void)state;
  struct quire_geometry geometries[] = {
      {.page_tokens = 4, .ranks = RANKS, .storage_ranks = RANKS, .pages = 19},
      {.page_tokens = 4, .ranks = 2, .storage_ranks = 1, .pages = 7},
      {.page_tokens = 16, .ranks = 3, .storage_ranks = 3, .pages = 8},
      {.page_tokens = 4, .ranks = 1, .storage_ranks = 1, .pages = 5},
  };
  for (size_t g = 0; g < sizeof geometries / sizeof geometries[0]; g++) {
    for (int format = QUIRE_KV_F32; format <= QUIRE_KV_FP8; format++) {
      for (int binding = 0; binding < BINDINGS; binding++) {
        enum quire_stream_mode mode = (enum quire_stream_mode)((g + (size_t)format + (size_t)binding) % 3);
        random_commands_for(geometries[g], (enum quire_kv_format)format, (enum binding)binding, mode, 25);
      }
    }
  }
}

/* The real page, once for each format. */
static void random_commands_of_whole_pages(void **state) {
  (void)state;
  struct quire_geometry geometry = {.page_tokens = 64, .ranks = 2, .storage_ranks = 2, .pages = 6};
  for (int format = QUIRE_KV_F32; format <= QUIRE_KV_FP8; format++) {
    random_commands_for(geometry, (enum quire_kv_format)format, BINDING_OWN, QUIRE_STREAM_THREAD, 12);
  }
}

/* -- bundles ------------------------------------------------------------------------------------------------------ */

static struct worker *bundle_worker(int32_t rows, struct quire_command *unpack_out, uint64_t *random) {
  struct quire_geometry geometry = {.page_tokens = 4, .ranks = 2, .storage_ranks = 2, .pages = 6};
  struct worker *worker = worker_open(geometry, QUIRE_KV_FP8, BINDING_ARRAYS, QUIRE_STREAM_INLINE, random);
  struct quire_command pack = command_of(worker, QUIRE_COMMAND_PACK, 1, 0, rows, 2);
  run_batch(worker, &pack, 1);
  *unpack_out = command_of(worker, QUIRE_COMMAND_UNPACK, 4, 0, rows, 2); /* another rank's page */
  unpack_out->chain = pack.chain;
  unpack_out->request_page = pack.request_page;
  return worker;
}

static void flip(struct worker *worker, int64_t offset, uint8_t bits) {
  worker->host[offset] ^= bits;
  worker->host_shadow[offset] ^= bits;
}

/* Every byte of the trailer flipped: refused, and nothing is written. */
static void corrupt_trailers_are_refused(void **state) {
  (void)state;
  uint64_t random = seed_of_run;
  struct quire_command unpack;
  struct worker *worker = bundle_worker(3, &unpack, &random);
  int64_t trailer = unpack.host_offset + worker->bundle.trailer_offset;
  for (int64_t i = 0; i < worker->bundle.trailer_bytes; i++) {
    flip(worker, trailer + i, (uint8_t)(1u << (i % 8)));
    unpack.op++;
    bool count_field = (i >= 12 && i < 16) || (i >= 56 && i < 60); /* part count, page tokens: another table's */
    (void)run_refused(worker, &unpack, count_field ? QUIRE_ERR_MISMATCH : QUIRE_ERR_CORRUPT);
    flip(worker, trailer + i, (uint8_t)(1u << (i % 8)));
  }
  unpack.op++;
  run_batch(worker, &unpack, 1); /* whole again: accepted */
  worker_close(worker);
}

/* A flipped byte of any part's valid rows: refused, the fault names the part. Behind the rows nothing counts. */
static void corrupt_parts_are_named(void **state) {
  (void)state;
  uint64_t random = seed_of_run;
  struct quire_command unpack;
  struct worker *worker = bundle_worker(3, &unpack, &random);
  for (int32_t i = 0; i < worker->parts.count; i++) {
    const struct quire_part *part = &worker->parts.part[i];
    for (int32_t p = 0; p < part->pieces; p++) {
      int64_t begin = unpack.host_offset + worker->bundle.part_offset[i] + part->piece[p].offset;
      int64_t end = begin + 3 * part->piece[p].row_bytes;
      int64_t places[] = {begin, end - 1, begin + (int64_t)quire_splitmix64_below(&random, (uint64_t)(end - begin))};
      for (size_t k = 0; k < 3; k++) {
        flip(worker, places[k], 0x10);
        unpack.op++;
        struct quire_bank_fault fault = run_refused(worker, &unpack, QUIRE_ERR_CORRUPT);
        assert_int_equal(fault.part, i);
        flip(worker, places[k], 0x10);
      }
      flip(worker, end, 0x10); /* first byte of a row that is not valid */
      unpack.op++;
      run_batch(worker, &unpack, 1);
      flip(worker, end, 0x10);
    }
  }
  worker_close(worker);
}

/* A sound bundle, but not the one the command names. */
static void foreign_bundles_are_refused(void **state) {
  (void)state;
  uint64_t random = seed_of_run;
  struct quire_command unpack;
  struct worker *worker = bundle_worker(3, &unpack, &random);
  struct quire_command wrong = unpack;
  wrong.chain.low ^= 1;
  assert_int_equal(run_refused(worker, &wrong, QUIRE_ERR_MISMATCH).part, QUIRE_PART_NONE);
  wrong = unpack;
  wrong.chain.high ^= 1;
  (void)run_refused(worker, &wrong, QUIRE_ERR_MISMATCH);
  wrong = unpack;
  wrong.request_page.v++;
  (void)run_refused(worker, &wrong, QUIRE_ERR_MISMATCH);
  wrong = unpack;
  wrong.valid_tokens = 2;
  (void)run_refused(worker, &wrong, QUIRE_ERR_MISMATCH);
  wrong = unpack;
  wrong.host_offset = 0; /* random bytes */
  (void)run_refused(worker, &wrong, QUIRE_ERR_CORRUPT);
  struct quire_bundle_info info = {.fingerprint = {worker->fingerprint.low, worker->fingerprint.high + 1},
                                   .chain = unpack.chain,
                                   .request_page = unpack.request_page,
                                   .valid_tokens = 3};
  quire_bundle_seal(&worker->parts, &worker->bundle, &info, worker->host + unpack.host_offset);
  quire_bundle_seal(&worker->parts, &worker->bundle, &info, worker->host_shadow + unpack.host_offset);
  unpack.op++;
  (void)run_refused(worker, &unpack, QUIRE_ERR_MISMATCH);
  worker_close(worker);
}

/* NaN behind the valid rows of a page does not get into its bundle, nor zeros out of a bundle into a page. */
static void tails_stay_where_they_are(void **state) {
  (void)state;
  uint64_t random = seed_of_run;
  struct quire_geometry geometry = {.page_tokens = 4, .ranks = 1, .storage_ranks = 1, .pages = 4};
  for (int format = QUIRE_KV_F32; format <= QUIRE_KV_FP8; format++) {
    struct worker *worker =
        worker_open(geometry, (enum quire_kv_format)format, BINDING_INTERLEAVED, QUIRE_STREAM_THREAD, &random);
    for (int32_t rows = 1; rows <= 4; rows++) {
      struct quire_command commands[4];
      commands[0] = command_of(worker, QUIRE_COMMAND_POISON, 2, 0, 4, 0);
      commands[1] = command_of(worker, QUIRE_COMMAND_COPY_PAGE, 0, 2, rows, 0);
      commands[2] = command_of(worker, QUIRE_COMMAND_PACK, 2, 0, rows, rows);
      commands[3] = command_of(worker, QUIRE_COMMAND_UNPACK, 1, 0, rows, rows);
      commands[3].chain = commands[2].chain;
      commands[3].request_page = commands[2].request_page;
      run_batch(worker, commands, 4); /* one bank: in order */
      for (int32_t i = 0; i < worker->parts.count; i++) {
        const struct quire_part *part = &worker->parts.part[i];
        const uint8_t *page = quire_bank_page(worker->bank[0], i, (quire_local_page){2});
        const uint8_t *rest = worker->host + commands[2].host_offset + worker->bundle.part_offset[i];
        for (int32_t p = 0; p < part->pieces; p++) {
          for (int32_t b = rows * part->piece[p].row_bytes; b < 4 * part->piece[p].row_bytes; b++) {
            assert_int_equal(page[part->piece[p].offset + b], 0xFF);
            assert_int_equal(rest[part->piece[p].offset + b], 0);
          }
        }
      }
    }
    worker_close(worker);
  }
}

/* -- the queue ---------------------------------------------------------------------------------------------------- */

struct gate {
  atomic_int open;
  atomic_int notes;
};

static void note_and_wait(void *context) {
  struct gate *gate = context;
  atomic_fetch_add(&gate->notes, 1);
  while (atomic_load(&gate->open) == 0) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
}

static void full_queue_says_again(void **state) {
  (void)state;
  struct quire_geometry geometry = {.page_tokens = 4, .ranks = 1, .storage_ranks = 1, .pages = 40};
  struct worker worker = {.geometry = geometry, .parts = parts_of(QUIRE_KV_BF16, 4)};
  struct gate gate = {0};
  for (int32_t length = 1; length <= QUIRE_BANK_QUEUE_MAX; length += length == 1 ? 8 : 40) {
    struct quire_bank_config config = config_of(&worker, 0, QUIRE_STREAM_THREAD);
    config.queue_commands = length;
    config.notify = note_and_wait;
    config.notify_context = &gate;
    atomic_store(&gate.open, 0);
    atomic_store(&gate.notes, 0);
    struct quire_bank *bank = NULL;
    struct quire_error error = {0};
    assert_int_equal(quire_bank_create(quire_env_default(), &config, &bank, NULL), QUIRE_OK);
    assert_int_equal(quire_bank_allocate(bank, NULL), QUIRE_OK);
    assert_int_equal(quire_bank_connect(&bank, 1, NULL, NULL), QUIRE_OK);
    for (int32_t i = 0; i < length; i++) {
      struct quire_command command = command_of(&worker, QUIRE_COMMAND_POISON, i % 40, 0, 4, 0);
      assert_int_equal(quire_bank_submit(bank, &command, NULL), QUIRE_OK);
    }
    struct quire_command more = command_of(&worker, QUIRE_COMMAND_POISON, 0, 0, 4, 0);
    assert_int_equal(quire_bank_submit(bank, &more, &error), QUIRE_ERR_AGAIN);
    assert_int_equal(error.status, QUIRE_ERR_AGAIN);
    assert_int_equal(quire_bank_open_commands(bank), length);
    assert_int_equal(quire_bank_host(bank, &gate, 8, NULL), QUIRE_ERR_STATE);
    assert_int_equal(quire_bank_connect(&bank, 1, NULL, NULL), QUIRE_ERR_STATE);
    atomic_store(&gate.open, 1);
    quire_bank_drain(bank);
    assert_int_equal(atomic_load(&gate.notes), length);
    struct quire_ack acks[QUIRE_BANK_QUEUE_MAX + 1];
    assert_int_equal(quire_bank_poll(bank, acks, 0), 0);
    assert_int_equal(quire_bank_poll(bank, acks, 1), 1);
    assert_int_equal(quire_bank_submit(bank, &more, NULL), QUIRE_OK);
    quire_bank_drain(bank);
    assert_int_equal(quire_bank_poll(bank, acks + 1, QUIRE_BANK_QUEUE_MAX), length);
    for (int32_t i = 1; i < length; i++) {
      assert_int_equal(acks[i].op, acks[0].op + (uint64_t)i);
    }
    assert_int_equal(acks[length].op, more.op);
    struct quire_bank_fault fault;
    assert_false(quire_bank_last_fault(bank, &fault));
    quire_bank_destroy(bank);
  }
}

static void commands_that_cannot_be(void **state) {
  (void)state;
  uint64_t random = seed_of_run;
  struct quire_geometry geometry = {.page_tokens = 4, .ranks = 2, .storage_ranks = 2, .pages = 7};
  struct worker *worker = worker_open(geometry, QUIRE_KV_BF16, BINDING_OWN, QUIRE_STREAM_INLINE, &random);
  struct quire_command good = command_of(worker, QUIRE_COMMAND_DIGEST, 2, 0, 4, 0);
  struct quire_command copy = command_of(worker, QUIRE_COMMAND_COPY_PAGE, 2, 4, 4, 0);
  struct quire_command pack = command_of(worker, QUIRE_COMMAND_PACK, 2, 0, 4, 1);
  struct quire_command bad[16];
  int count = 0;
  bad[count] = good, bad[count++].kind = 0;
  bad[count] = good, bad[count++].kind = 77;
  bad[count] = good, bad[count++].page.v = 7;
  bad[count] = good, bad[count++].page.v = -1;
  bad[count] = good, bad[count++].valid_tokens = 0;
  bad[count] = good, bad[count++].valid_tokens = 5;
  bad[count] = good, bad[count++].ranks = 3;
  bad[count++] = command_of(worker, QUIRE_COMMAND_DIGEST, 3, 0, 4, 0); /* sound, but for rank 1 */
  bad[count] = copy, bad[count++].target.v = 7;
  bad[count] = copy, bad[count++].target.v = 2;
  bad[count] = pack, bad[count++].host_offset = -4096;
  bad[count] = pack, bad[count++].host_offset += 64;
  bad[count] = pack, bad[count++].host_offset = worker->host_bytes;
  bad[count] = pack, bad[count++].host_offset = worker->host_bytes - worker->bundle.bytes + 4096;
  bad[count] = pack, bad[count++].host_offset = INT64_MAX / 4096 * 4096;
  for (int i = 0; i < count; i++) {
    struct quire_error error = {0};
    assert_int_equal(quire_bank_submit(worker->bank[0], &bad[i], &error), QUIRE_ERR_ARGUMENT);
    assert_int_equal(error.status, QUIRE_ERR_ARGUMENT);
    assert_int_equal(quire_bank_open_commands(worker->bank[0]), 0);
  }
  pack.host_offset = worker->host_bytes - worker->bundle.bytes; /* the last place is one */
  run_batch(worker, &pack, 1);
  compare_all(worker);
  worker_close(worker);
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

static void bindings_that_cannot_be(void **state) {
  (void)state;
  struct worker worker = {.geometry = {.page_tokens = 4, .ranks = 2, .storage_ranks = 2, .pages = 7},
                          .parts = parts_of(QUIRE_KV_BF16, 4)};
  struct quire_bank_config config = config_of(&worker, 0, QUIRE_STREAM_INLINE);
  struct quire_bank *bank = NULL;
  assert_int_equal(quire_bank_create(quire_env_default(), &config, &bank, NULL), QUIRE_OK);
  static _Alignas(64) uint8_t bytes[1 << 20];
  int64_t latent = worker.parts.part[0].page_bytes;
  int64_t index = worker.parts.part[1].page_bytes;
  assert_int_equal(quire_bank_local_pages(bank), 4);
  assert_int_equal(quire_bank_bind(bank, -1, bytes, latent, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, worker.parts.count, bytes, latent, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 0, NULL, latent, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 0, bytes + 8, latent, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 0, bytes, latent - 16, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 0, bytes, latent + 4, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 0, bytes, latent, 3, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 0, bytes, INT64_MAX / 16 * 16, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_null(quire_bank_page(bank, 0, (quire_local_page){0}));
  assert_int_equal(quire_bank_connect(&bank, 1, NULL, NULL), QUIRE_ERR_ARGUMENT); /* a geometry of two ranks */

  int64_t stride = round_up(latent + index + 64, 16);
  assert_int_equal(quire_bank_bind(bank, 0, bytes + 4096, stride, 4, NULL), QUIRE_OK);
  assert_int_equal(quire_bank_bind(bank, 0, bytes + 4096, stride, 4, NULL), QUIRE_ERR_STATE);
  int64_t room = round_up(latent, 16);
  assert_int_equal(quire_bank_bind(bank, 1, bytes + 4096, stride, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 1, bytes + 4096 + room - 16, stride, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 1, bytes + 4096 + stride - 16, stride, 4, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_bind(bank, 1, bytes + 4096 + room, stride + 16, 4, NULL), QUIRE_ERR_ARGUMENT);
  /* one place earlier in the same stride: between the pages of part 0 as well */
  assert_int_equal(quire_bank_bind(bank, 1, bytes + 4096 + room - stride, stride, 4, NULL), QUIRE_OK);
  assert_ptr_equal(quire_bank_page(bank, 0, (quire_local_page){3}), bytes + 4096 + 3 * stride);
  assert_null(quire_bank_page(bank, 0, (quire_local_page){4}));
  assert_null(quire_bank_page(bank, 0, (quire_local_page){-1}));
  assert_null(quire_bank_page(bank, 2, (quire_local_page){0}));
  struct quire_command command = command_of(&worker, QUIRE_COMMAND_DIGEST, 2, 0, 4, 0);
  assert_int_equal(quire_bank_submit(bank, &command, NULL), QUIRE_ERR_STATE); /* not connected */
  assert_int_equal(quire_bank_host(bank, NULL, 4096, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_host(bank, bytes + 1, 4096, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_host(bank, bytes, 0, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_allocate(bank, NULL), QUIRE_OK); /* the rest */
  assert_int_equal(quire_bank_allocate(bank, NULL), QUIRE_ERR_STATE);
  quire_bank_destroy(bank);
  quire_bank_destroy(NULL);
}

/* An address sanitizer ends the process where the system refuses addresses. */
#if defined(__SANITIZE_ADDRESS__)
#define LIMITS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LIMITS 1
#endif
#endif
#ifndef LIMITS
#define LIMITS 3
#endif

/* More than the machine has: a status, though the kernel would grant the addresses and kill whoever touches them. Then
 * less than that, but above the process's own limit (ulimit -v), and so little that nobody asks before. */
static void memory_that_cannot_be_had(void **state) {
  (void)state;
  struct quire_device_info info;
  quire_device_describe(&info);
  struct worker worker = {.geometry = {.page_tokens = 4, .ranks = 1, .storage_ranks = 1, .pages = 1},
                          .parts = parts_of(QUIRE_KV_BF16, 4)};
  struct quire_bank_config config = config_of(&worker, 0, QUIRE_STREAM_INLINE);
  int64_t page = quire_bank_bytes(&config),
          wanted[3] = {info.available_bytes + info.available_bytes / 4, 512 << 20, 60 << 20};
  assert_true(page > 0 && info.available_bytes > 0);
  const rlim_t limits[3] = {RLIM_INFINITY, 256 << 20, 64 << 20};
  struct rlimit old, low;
  assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
  low = old;
  for (int i = 0; i < LIMITS; i++) {
    struct quire_error error = {0};
    struct quire_bank *bank = NULL;
    config.geometry.pages = (int32_t)(wanted[i] / page + 1);
    assert_int_equal(quire_bank_create(quire_env_default(), &config, &bank, NULL), QUIRE_OK);
    low.rlim_cur = limits[i];
    assert_true(i == 0 || setrlimit(RLIMIT_AS, &low) == 0);
    enum quire_status status = quire_bank_allocate(bank, &error);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(status, QUIRE_ERR_MEMORY);
    assert_non_null(strstr(error.text, i < 2 ? "available now; give the cache fewer pages" : "the system refuses"));
    assert_null(quire_bank_page(bank, 0, (quire_local_page){0})); /* as before */
    quire_bank_destroy(bank);
  }
}

static void banks_that_do_not_fit(void **state) {
  (void)state;
  struct worker worker = {.geometry = {.page_tokens = 4, .ranks = 2, .storage_ranks = 2, .pages = 7},
                          .parts = parts_of(QUIRE_KV_BF16, 4)};
  struct quire_parts other_parts = parts_of(QUIRE_KV_FP8, 4);
  struct quire_bank_config config[5];
  struct quire_bank *bank[5];
  for (int i = 0; i < 5; i++) {
    config[i] = config_of(&worker, i == 0 ? 0 : 1, QUIRE_STREAM_INLINE);
  }
  config[2].geometry.pages = 8;
  config[3].fingerprint.low = 1;
  config[4].parts = &other_parts;
  for (int i = 0; i < 5; i++) {
    assert_int_equal(quire_bank_create(quire_env_default(), &config[i], &bank[i], NULL), QUIRE_OK);
  }
  struct quire_bank *pair[2] = {bank[0], bank[1]};
  assert_int_equal(quire_bank_connect(pair, 2, NULL, NULL), QUIRE_ERR_STATE); /* without memory */
  for (int i = 0; i < 5; i++) {
    assert_int_equal(quire_bank_allocate(bank[i], NULL), QUIRE_OK);
  }
  assert_int_equal(quire_bank_connect(NULL, 2, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_connect(pair, 0, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_connect(pair, 17, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_connect((struct quire_bank *[]){bank[1], bank[0]}, 2, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_connect((struct quire_bank *[]){bank[0], NULL}, 2, NULL, NULL), QUIRE_ERR_ARGUMENT);
  for (int i = 2; i < 5; i++) {
    pair[1] = bank[i];
    assert_int_equal(quire_bank_connect(pair, 2, NULL, NULL), QUIRE_ERR_ARGUMENT);
  }
  pair[1] = bank[1];
  assert_int_equal(quire_bank_connect(pair, 2, NULL, NULL), QUIRE_OK);
  struct quire_command pack = command_of(&worker, QUIRE_COMMAND_PACK, 2, 0, 4, 0);
  assert_int_equal(quire_bank_submit(bank[0], &pack, NULL), QUIRE_ERR_STATE); /* no host memory */
  for (int i = 0; i < 5; i++) {
    quire_bank_destroy(bank[i]);
  }
}

static void configs_that_cannot_be(void **state) {
  (void)state;
  struct worker worker = {.geometry = {.page_tokens = 4, .ranks = 2, .storage_ranks = 2, .pages = 7},
                          .parts = parts_of(QUIRE_KV_BF16, 4)};
  struct quire_bank_config bad[8];
  for (int i = 0; i < 8; i++) {
    bad[i] = config_of(&worker, 0, QUIRE_STREAM_INLINE);
  }
  bad[0].rank.v = 2;
  bad[1].rank.v = -1;
  bad[2].parts = NULL;
  bad[3].geometry.page_tokens = 64;
  bad[4].queue_commands = 0;
  bad[5].queue_commands = QUIRE_BANK_QUEUE_MAX + 1;
  bad[6].stream_mode = (enum quire_stream_mode)12;
  bad[7].geometry.storage_ranks = 0;
  for (int i = 0; i < 8; i++) {
    struct quire_bank *bank = NULL;
    struct quire_error error = {0};
    assert_int_equal(quire_bank_create(quire_env_default(), &bad[i], &bank, &error), QUIRE_ERR_ARGUMENT);
    assert_int_equal(error.status, QUIRE_ERR_ARGUMENT);
    assert_null(bank);
    assert_true(i >= 4 && i <= 6 ? quire_bank_bytes(&bad[i]) > 0 : quire_bank_bytes(&bad[i]) == -1);
  }
}

/* More ranks than pages: a rank may have no page at all, and still takes part. */
static void a_rank_without_pages(void **state) {
  (void)state;
  struct quire_geometry geometry = {.page_tokens = 4, .ranks = 3, .storage_ranks = 3, .pages = 2};
  struct worker worker = {.geometry = geometry, .parts = parts_of(QUIRE_KV_F32, 4)};
  struct quire_bank *bank[3];
  for (int32_t r = 0; r < 3; r++) {
    struct quire_bank_config config = config_of(&worker, r, QUIRE_STREAM_INLINE);
    assert_int_equal(quire_bank_create(quire_env_default(), &config, &bank[r], NULL), QUIRE_OK);
    assert_int_equal(quire_bank_allocate(bank[r], NULL), QUIRE_OK);
  }
  assert_int_equal(quire_bank_local_pages(bank[2]), 0);
  assert_null(quire_bank_page(bank[2], 0, (quire_local_page){0}));
  assert_int_equal(quire_bank_connect(bank, 3, NULL, NULL), QUIRE_OK);
  struct quire_command command = command_of(&worker, QUIRE_COMMAND_COPY_PAGE, 0, 1, 4, 0);
  struct quire_ack ack;
  assert_int_equal(quire_bank_submit(bank[1], &command, NULL), QUIRE_OK);
  assert_int_equal(quire_bank_poll(bank[1], &ack, 1), 1);
  assert_int_equal(ack.status, QUIRE_OK);
  assert_int_equal(quire_bank_submit(bank[2], &command, NULL), QUIRE_ERR_ARGUMENT);
  for (int32_t r = 0; r < 3; r++) {
    quire_bank_destroy(bank[r]);
  }
}

static enum quire_status bank_life(void *context, const struct quire_env *env) {
  struct worker *worker = context;
  struct fail_env *fail = env->context;
  struct quire_bank_config config = config_of(worker, 0, QUIRE_STREAM_THREAD);
  struct quire_bank *bank = NULL;
  struct quire_error error = {0};
  enum quire_status status = quire_bank_create(env, &config, &bank, &error);
  assert_int_equal(error.status, status);
  if (status != QUIRE_OK) {
    assert_null(bank);
    return status;
  }
  status = quire_bank_allocate(bank, &error);
  assert_int_equal(error.status, status);
  if (status != QUIRE_OK) { /* as before: without memory, which a caller may still bind */
    assert_null(quire_bank_page(bank, 0, (quire_local_page){0}));
    assert_int_equal(quire_bank_connect(&bank, 1, NULL, NULL), QUIRE_ERR_STATE);
  } else {
    uint64_t allocations = fail->allocations;
    struct quire_command command = command_of(worker, QUIRE_COMMAND_POISON, 3, 0, 4, 0);
    assert_int_equal(quire_bank_connect(&bank, 1, NULL, NULL), QUIRE_OK);
    assert_int_equal(quire_bank_submit(bank, &command, NULL), QUIRE_OK);
    quire_bank_drain(bank);
    assert_int_equal(fail->allocations, allocations); /* nothing after the start */
  }
  quire_bank_destroy(bank);
  return status;
}

static void refused_memory_leaves_nothing(void **state) {
  (void)state;
  struct worker worker = {.geometry = {.page_tokens = 4, .ranks = 1, .storage_ranks = 1, .pages = 7},
                          .parts = parts_of(QUIRE_KV_BF16, 4)};
  assert_true(fail_env_sweep(bank_life, &worker) >= 5);
}

/* -- pages and epochs --------------------------------------------------------------------------------------------- */

static void epochs_of_pages(void **state) {
  (void)state;
  uint64_t random = seed_of_run;
  struct quire_geometry geometry = {.page_tokens = 4, .ranks = 2, .storage_ranks = 2, .pages = 6};
  struct worker *worker = worker_open(geometry, QUIRE_KV_BF16, BINDING_OWN, QUIRE_STREAM_INLINE, &random);
  struct quire_bank *bank = worker->bank[0];
  quire_local_page one = {1};
  assert_false(quire_bank_readable(bank, one, 1, 1)); /* own memory: never written */
  assert_true(quire_bank_readable(bank, one, 1, 0));
  assert_int_equal(quire_bank_mark_written(bank, one, 3, 2), QUIRE_OK);
  assert_true(quire_bank_readable(bank, one, 3, 2));
  assert_false(quire_bank_readable(bank, one, 3, 3));
  assert_true(quire_bank_readable(bank, one, 4, 4));
  assert_false(quire_bank_readable(bank, one, 4, 5));
  assert_false(quire_bank_readable(bank, (quire_local_page){3}, 4, 1));
  assert_int_equal(quire_bank_mark_written(bank, (quire_local_page){3}, 3, 0), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_mark_written(bank, (quire_local_page){-1}, 3, 0), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_mark_written(bank, one, -1, 0), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_bank_mark_written(bank, one, 3, 4), QUIRE_ERR_ARGUMENT);
  assert_true(quire_written_readable(&worker->map.rank[0].written[1], 4, 4)); /* what a view sees of it */

  struct quire_command commands[3];
  commands[0] = command_of(worker, QUIRE_COMMAND_COPY_PAGE, 3, 4, 4, 0); /* rank 1's page to local page 2 */
  assert_false(quire_bank_readable(bank, (quire_local_page){2}, 1, 4));
  run_batch(worker, commands, 1);
  assert_true(quire_bank_readable(bank, (quire_local_page){2}, 1, 4));
  commands[0] = command_of(worker, QUIRE_COMMAND_PACK, 4, 0, 4, 0);
  commands[1] = command_of(worker, QUIRE_COMMAND_POISON, 4, 0, 4, 0);
  run_batch(worker, commands, 2);
  assert_false(quire_bank_readable(bank, (quire_local_page){2}, 9, 1));
  commands[2] = command_of(worker, QUIRE_COMMAND_UNPACK, 4, 0, 4, 0);
  commands[2].chain = commands[0].chain;
  commands[2].request_page = commands[0].request_page;
  run_batch(worker, &commands[2], 1);
  assert_true(quire_bank_readable(bank, (quire_local_page){2}, 1, 4));
  worker_close(worker);
  worker = worker_open(geometry, QUIRE_KV_BF16, BINDING_ARRAYS, QUIRE_STREAM_INLINE, &random);
  assert_true(quire_bank_readable(worker->bank[0], one, 1, 4)); /* bound memory is what its owner wrote */
  worker_close(worker);
}

static void maps_lead_to_pages(void **state) {
  (void)state;
  uint64_t random = seed_of_run;
  struct quire_geometry geometry = {.page_tokens = 4, .ranks = RANKS, .storage_ranks = RANKS, .pages = 18};
  struct worker *worker = worker_open(geometry, QUIRE_KV_FP8, BINDING_MIXED, QUIRE_STREAM_INLINE, &random);
  assert_int_equal(worker->map.ranks, RANKS);
  for (int32_t r = 0; r < RANKS; r++) {
    assert_int_equal(worker->map.rank[r].parts, worker->parts.count);
    for (int32_t i = 0; i < worker->parts.count; i++) {
      for (int32_t local = 0; local < local_pages(worker, r); local++) {
        uint8_t *expected = worker->memory[r][worker->of[i]].base + worker->offset[r][i] + local * worker->stride[i];
        assert_ptr_equal(quire_peer_page(&worker->map.rank[r], i, local), expected);
        assert_ptr_equal(quire_bank_page(worker->bank[r], i, (quire_local_page){local}), expected);
      }
      assert_null(quire_peer_page(&worker->map.rank[r], i, local_pages(worker, r)));
    }
  }
  assert_int_equal(quire_bank_parts(worker->bank[0])->count, worker->parts.count);
  worker_close(worker);
}

int main(void) {
  seed_of_run = test_seed("test_bank");
  test_limit(240);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_commands),
      cmocka_unit_test(random_commands_of_whole_pages),
      cmocka_unit_test(corrupt_trailers_are_refused),
      cmocka_unit_test(corrupt_parts_are_named),
      cmocka_unit_test(foreign_bundles_are_refused),
      cmocka_unit_test(tails_stay_where_they_are),
      cmocka_unit_test(full_queue_says_again),
      cmocka_unit_test(commands_that_cannot_be),
      cmocka_unit_test(bindings_that_cannot_be),
      cmocka_unit_test(memory_that_cannot_be_had),
      cmocka_unit_test(banks_that_do_not_fit),
      cmocka_unit_test(configs_that_cannot_be),
      cmocka_unit_test(a_rank_without_pages),
      cmocka_unit_test(refused_memory_leaves_nothing),
      cmocka_unit_test(epochs_of_pages),
      cmocka_unit_test(maps_lead_to_pages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
