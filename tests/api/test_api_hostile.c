// ctest: timeout=120
/* Every exported function, called at random with whatever a caller of honest types can pass: handles that are live,
 * destroyed, of another kind, NULL or wild; structs whose size is right, older, newer, zero or impossible, with fields
 * of random bytes among the good ones; numbers at the borders of their types; memory that overlaps; an allocator that
 * refuses. Memory that is passed is there as far as the caller says it is, and nothing else is promised. What must
 * hold after each call: the answer is a status, a failure left all outputs as they were and said why, a result did not
 * pass the size it was given; and at the end the books of the caches balance and nothing is left of what was allocated.
 * Sanitizers see the rest. check_symbols.py compares the table of calls with the map of exports.
 *
 * QUIRE_TEST_SEED replays a walk (seed.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "fail_env.h"
#include "quire/quire.h"
#include "seed.h"

#define HANDLES 24
#define REQUESTS 8
#define TOKENS 256
#define ARENA_BYTES (1 << 20)
#define STRUCT_BYTES 256
#define LIVES 300

/* All that calls write to, in one place, so that one comparison tells whether a failure left it alone. */
struct outputs {
  uint64_t result[STRUCT_BYTES / 8];
  void *handle;
  void *address;
  struct quire_kv_command commands[4];
  struct quire_kv_ack acks[4];
  quire_kv_page pages[8];
  quire_kv_request request;
  struct quire_kv_hash hash;
  int64_t bytes;
  int32_t number;
  int32_t spare;
};

enum kind { NONE, LAYOUT, CACHE, BANK };

/* A handle, live or destroyed, and what was known of its object. */
struct held {
  void *handle;
  enum kind kind;
  void *layout; /* of a bank */
  int32_t rank;
};

struct hostile {
  uint64_t rng;
  struct held held[HANDLES];
  struct {
    quire_kv_request request;
    void *cache;
  } requests[REQUESTS];
  int32_t tokens[TOKENS];
  _Alignas(64) uint8_t arena[ARENA_BYTES]; /* for memory that is bound, and host memory */
  uint64_t given[QUIRE_KV_SIZE_MAX / 8 + 1];
  struct outputs out;
  struct quire_error error;
  struct fail_env fail;
  struct quire_kv_allocator allocator;
  int64_t ok;
};

/* --- what is passed --- */

static int32_t below(struct hostile *h, int32_t n) { return (int32_t)quire_splitmix64_below(&h->rng, (uint64_t)n); }

static bool odd(struct hostile *h) { return below(h, 8) == 0; }

/* Mostly below limit, sometimes at a border. */
static int32_t number(struct hostile *h, int32_t limit) {
  static const int32_t borders[] = {-1,    0,       1,    INT32_MIN, INT32_MIN + 1, INT32_MAX, INT32_MAX - 1,
                                    65537, 1 << 24, -4096};
  int32_t border = below(h, 10), usual = below(h, limit + 1);
  return odd(h) ? borders[border] : usual;
}

static int64_t wide_number(struct hostile *h) {
  static const int64_t borders[] = {-1, 0, 1, INT64_MIN, INT64_MIN + 16, INT64_MAX, INT64_MAX - 4095, -4096};
  return borders[below(h, 8)];
}

/* A handle, mostly of that kind; the first slot from a random one. */
static struct held *held(struct hostile *h, enum kind kind) {
  int32_t first = below(h, HANDLES);
  for (int32_t i = 0; i < HANDLES && !odd(h); i++) {
    struct held *one = &h->held[(first + i) % HANDLES];
    if (one->kind == kind) {
      return one;
    }
  }
  return &h->held[first];
}

static void *handle(struct hostile *h, enum kind kind) {
  void *good = held(h, kind)->handle;
  switch (below(h, 40)) {
  case 0:
    return NULL;
  case 1:
    return h->out.result;
  case 2:
    return (void *)((uintptr_t)good + 1);
  case 3:
    return (void *)(UINTPTR_MAX - 7);
  default:
    return good;
  }
}

/* A request, mostly with the cache that it is of. */
static quire_kv_request request(struct hostile *h, struct quire_kv_cache **cache_out) {
  int32_t at = below(h, REQUESTS);
  quire_kv_request one = h->requests[at].request;
  uint64_t bit = (uint64_t)below(h, 64);
  void *other = handle(h, CACHE);
  *cache_out = odd(h) ? other : h->requests[at].cache;
  one.v ^= odd(h) ? (uint64_t)1 << bit : 0;
  return one;
}

static struct quire_error *error(struct hostile *h) { return odd(h) ? NULL : &h->error; }

/* A size for a struct of `bytes`, for which there is room for h->given or h->out.result. */
static size_t some_size(struct hostile *h, size_t bytes, size_t room) {
  static const size_t never[] = {0, 1, 7, 9, SIZE_MAX, SIZE_MAX - 7, QUIRE_KV_SIZE_MAX + 8, (size_t)1 << 32};
  int32_t kind = below(h, 16), pick = below(h, 8);
  if (kind == 0) {
    return never[pick];
  }
  if (kind == 1) {
    return 8 + 8 * (size_t)below(h, (int32_t)(bytes / 8));
  }
  return kind == 2 ? bytes + 8 * (size_t)below(h, (int32_t)((room - bytes) / 8)) : bytes;
}

/* The options as the caller would have them in memory: with any size, something behind it that is not zero, a field
 * that is random. NULL at times. pointers: bytes of the fields that hold pointers, which no caller of honest types
 * fills at random. */
static const void *options(struct hostile *h, const void *good, size_t bytes, size_t pointers_from,
                           size_t pointers_to) {
  size_t size = some_size(h, bytes, sizeof h->given);
  memset(h->given, 0, sizeof h->given);
  memcpy(h->given, good, bytes);
  h->given[0] = size;
  int32_t field = 2 + below(h, (int32_t)(bytes / 4) - 2), value = number(h, 4);
  size_t at = (size_t)field * 4;
  if (below(h, 4) == 0 && (at < pointers_from || at >= pointers_to)) {
    memcpy((uint8_t *)h->given + at, &value, sizeof value);
  }
  if (odd(h) && size > bytes && size <= sizeof h->given) {
    h->given[size / 8 - 1] = 1;
  }
  return odd(h) && odd(h) ? NULL : h->given;
}

/* Where a result goes; NULL at times. */
static void *result(struct hostile *h, size_t bytes) {
  h->out.result[0] = some_size(h, bytes, STRUCT_BYTES);
  return odd(h) && odd(h) ? NULL : h->out.result;
}

/* A count with the array of TOKENS that it is of, or no array. */
static const int32_t *token_array(struct hostile *h, int32_t *count_out) {
  int32_t count = number(h, 40), from = below(h, 3);
  *count_out = count > TOKENS - 3 ? TOKENS - 3 : count;
  return odd(h) && odd(h) ? NULL : h->tokens + from;
}

/* --- the calls: enough is random in each that most of them fail in many ways, and succeed often enough --- */

/* A new object takes the place of another, which is destroyed if it is not yet. */
static void keep(struct hostile *h, enum quire_status status, struct held fresh) {
  if (status == QUIRE_OK) {
    struct held *place = &h->held[below(h, HANDLES)];
    if (quire_kv_cache_destroy(place->handle) != QUIRE_OK && quire_kv_bank_destroy(place->handle) != QUIRE_OK) {
      (void)quire_kv_layout_destroy(place->handle);
    }
    *place = fresh;
    place->handle = h->out.handle;
  }
}

static enum quire_status call_kv_abi(struct hostile *h) {
  (void)h;
  return quire_kv_abi() == QUIRE_KV_ABI ? QUIRE_OK : QUIRE_ERR_CORRUPT;
}

static enum quire_status call_version(struct hostile *h) {
  (void)h;
  return strcmp(quire_version(), QUIRE_VERSION) == 0 ? QUIRE_OK : QUIRE_ERR_CORRUPT;
}

static enum quire_status call_kv_status_name(struct hostile *h) {
  return quire_kv_status_name((enum quire_status)number(h, 100)) != NULL ? QUIRE_OK : QUIRE_ERR_CORRUPT;
}

static enum quire_status call_kv_digest(struct hostile *h) {
  size_t bytes = odd(h) ? SIZE_MAX - (size_t)below(h, 2) : (size_t)below(h, 300);
  return quire_kv_digest(odd(h) ? NULL : h->arena, bytes, odd(h) ? NULL : &h->out.hash);
}

static enum quire_status call_kv_layout_create(struct hostile *h) {
  static const uint8_t owns[256] = {1, 0, 1};
  struct quire_kv_layout_options good = {
      .size = sizeof good, .format = 1 + below(h, 3), .page_tokens = 1 + below(h, 4), .target_layers = 1 + below(h, 3)};
  good.draft_layers = below(h, 2);
  good.owns_indexer = below(h, 2) == 0 ? owns : NULL;
  good.ranks = below(h, 2) == 0 ? 1 : 1 + below(h, 3);
  good.replicated = odd(h);
  good.pages = 1 + below(h, 16);
  good.numerics_id = odd(h) && odd(h) ? NULL : "hostile";
  const struct quire_kv_layout_options *given =
      options(h, &good, sizeof good, offsetof(struct quire_kv_layout_options, owns_indexer),
              offsetof(struct quire_kv_layout_options, numerics_id) + sizeof(void *));
  if (given != NULL && h->given[0] >= 48 && ((const struct quire_kv_layout_options *)given)->pages > 65536) {
    ((struct quire_kv_layout_options *)h->given)->pages = QUIRE_KV_PAGES_MAX + 1; /* valid ones need much memory */
  }
  enum quire_status status =
      quire_kv_layout_create(given, odd(h) ? NULL : (struct quire_kv_layout **)&h->out.handle, error(h));
  keep(h, status, (struct held){.kind = LAYOUT});
  return status;
}

static enum quire_status call_kv_layout_destroy(struct hostile *h) {
  void *one = handle(h, LAYOUT);
  return quire_kv_layout_destroy(one);
}

static enum quire_status call_kv_layout_info(struct hostile *h) {
  return quire_kv_layout_info(handle(h, LAYOUT), result(h, sizeof(struct quire_kv_layout_info)));
}

static enum quire_status call_kv_layout_part(struct hostile *h) {
  int32_t index = number(h, 8);
  return quire_kv_layout_part(handle(h, LAYOUT), index, result(h, sizeof(struct quire_kv_part)));
}

static enum quire_status call_kv_layout_place(struct hostile *h) {
  quire_kv_page page = {number(h, 16)};
  return quire_kv_layout_place(handle(h, LAYOUT), page, result(h, sizeof(struct quire_kv_place)));
}

static enum quire_status call_kv_layout_local_pages(struct hostile *h) {
  int32_t rank = number(h, 3);
  return quire_kv_layout_local_pages(handle(h, LAYOUT), rank, odd(h) ? NULL : &h->out.number);
}

static const struct quire_kv_cache_options *cache_options(struct hostile *h) {
  struct quire_kv_cache_options good = {.size = sizeof good, .requests_max = below(h, 4), .chain_kind = below(h, 3)};
  good.request_pages_max = below(h, 20);
  good.poison = below(h, 2);
  good.tenant_salt = odd(h) ? NULL : "salt";
  good.tenant_salt_bytes = below(h, 5);
  good.allocator = below(h, 3) == 0 ? NULL : &h->allocator;
  const void *given = options(h, &good, sizeof good, offsetof(struct quire_kv_cache_options, tenant_salt),
                              offsetof(struct quire_kv_cache_options, tenant_salt) + 12);
  struct quire_kv_cache_options *o = (struct quire_kv_cache_options *)h->given;
  o->allocator = good.allocator;                                                          /* not half a pointer */
  o->request_pages_max = o->request_pages_max > 65536 ? INT32_MAX : o->request_pages_max; /* as with pages */
  return given;
}

static enum quire_status call_kv_cache_bytes(struct hostile *h) {
  return quire_kv_cache_bytes(handle(h, LAYOUT), cache_options(h), odd(h) ? NULL : &h->out.bytes, error(h));
}

static enum quire_status call_kv_cache_create(struct hostile *h) {
  enum quire_status status = quire_kv_cache_create(handle(h, LAYOUT), cache_options(h),
                                                   odd(h) ? NULL : (struct quire_kv_cache **)&h->out.handle, error(h));
  keep(h, status, (struct held){.kind = CACHE});
  return status;
}

static enum quire_status call_kv_cache_destroy(struct hostile *h) {
  void *one = handle(h, CACHE);
  return quire_kv_cache_destroy(one);
}

static enum quire_status call_kv_cache_match(struct hostile *h) {
  int32_t count = 0;
  const int32_t *tokens = token_array(h, &count);
  return quire_kv_cache_match(handle(h, CACHE), tokens, count, odd(h) ? NULL : &h->out.number);
}

static const struct quire_kv_reserve *reserve(struct hostile *h) {
  struct quire_kv_reserve good = {.size = sizeof good, .reserve_tokens = number(h, 8), .no_match = odd(h)};
  good.tokens = token_array(h, &good.tokens_count);
  int32_t count = good.tokens_count;
  const void *given = options(h, &good, sizeof good, 8, 20);
  if (h->given[0] < 24) {
    return given; /* no count */
  }
  ((struct quire_kv_reserve *)h->given)->tokens_count = count;
  return given;
}

static enum quire_status call_kv_cache_reserve(struct hostile *h) {
  void *cache = handle(h, CACHE);
  enum quire_status status = quire_kv_cache_reserve(cache, reserve(h), odd(h) ? NULL : &h->out.request, error(h));
  if (status == QUIRE_OK) {
    int32_t at = below(h, REQUESTS);
    (void)quire_kv_cache_release(h->requests[at].cache, h->requests[at].request);
    h->requests[at].request = h->out.request;
    h->requests[at].cache = cache;
  }
  return status;
}

static enum quire_status call_kv_cache_refill(struct hostile *h) {
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  return quire_kv_cache_refill(cache, one, reserve(h), error(h));
}

static enum quire_status call_kv_cache_grow(struct hostile *h) {
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  int32_t tokens = number(h, 60);
  return quire_kv_cache_grow(cache, one, tokens, error(h));
}

static enum quire_status call_kv_cache_rematch(struct hostile *h) {
  int32_t count = 0;
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  const int32_t *tokens = token_array(h, &count);
  return quire_kv_cache_rematch(cache, one, tokens, count, odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_cache_pages(struct hostile *h) {
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  int32_t most = number(h, 8);
  most = most > 8 ? 8 : most;
  return quire_kv_cache_pages(cache, one, odd(h) ? NULL : h->out.pages, most, odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_cache_tokens(struct hostile *h) {
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  return quire_kv_cache_tokens(cache, one, odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_cache_seal(struct hostile *h) {
  int32_t count = 0;
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  const int32_t *tokens = token_array(h, &count);
  return quire_kv_cache_seal(cache, one, tokens, count, error(h));
}

static enum quire_status call_kv_cache_reset(struct hostile *h) {
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  return quire_kv_cache_reset(cache, one);
}

static enum quire_status call_kv_cache_release(struct hostile *h) {
  struct quire_kv_cache *cache = NULL;
  quire_kv_request one = request(h, &cache);
  return quire_kv_cache_release(cache, one);
}

static enum quire_status call_kv_cache_evict(struct hostile *h) {
  int32_t pages = number(h, 3);
  return quire_kv_cache_evict(handle(h, CACHE), pages, odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_cache_drop(struct hostile *h) {
  quire_kv_page page = {number(h, 16)};
  return quire_kv_cache_drop(handle(h, CACHE), page, odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_cache_flush(struct hostile *h) {
  void *one = handle(h, CACHE);
  return quire_kv_cache_flush(one, odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_cache_chain(struct hostile *h) {
  int32_t count = 0;
  const int32_t *tokens = token_array(h, &count);
  return quire_kv_cache_chain(handle(h, CACHE), tokens, count, odd(h) ? NULL : &h->out.hash);
}

static enum quire_status call_kv_cache_commands(struct hostile *h) {
  int32_t most = number(h, 4);
  most = most > 4 ? 4 : most;
  return quire_kv_cache_commands(handle(h, CACHE), odd(h) ? NULL : h->out.commands, most,
                                 odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_cache_complete(struct hostile *h) {
  struct quire_kv_ack ack = {.op = h->out.commands[below(h, 4)].op, .rank = number(h, 2)};
  ack.op += odd(h) ? quire_splitmix64(&h->rng) : 0;
  ack.status = odd(h) && odd(h) ? number(h, 70) : QUIRE_OK;
  return quire_kv_cache_complete(handle(h, CACHE), odd(h) ? NULL : &ack, error(h));
}

static enum quire_status call_kv_cache_stats(struct hostile *h) {
  return quire_kv_cache_stats(handle(h, CACHE), result(h, sizeof(struct quire_kv_cache_stats)));
}

static enum quire_status call_kv_cache_check(struct hostile *h) {
  return quire_kv_cache_check(handle(h, CACHE), error(h));
}

static enum quire_status call_kv_bank_create(struct hostile *h) {
  struct quire_kv_bank_options good = {.size = sizeof good, .rank = below(h, 3), .queue_commands = below(h, 4)};
  good.execution = odd(h) ? QUIRE_KV_BY_THREAD : QUIRE_KV_BY_CALLER;
  good.allocator = below(h, 3) == 0 ? NULL : &h->allocator;
  const void *given = options(h, &good, sizeof good, offsetof(struct quire_kv_bank_options, allocator), sizeof good);
  void *layout = handle(h, LAYOUT);
  enum quire_status status =
      quire_kv_bank_create(layout, given, odd(h) ? NULL : (struct quire_kv_bank **)&h->out.handle, error(h));
  keep(h, status,
       (struct held){.kind = BANK, .layout = layout, .rank = h->given[0] > 8 ? ((const int32_t *)h->given)[2] : 0});
  return status;
}

static enum quire_status call_kv_bank_destroy(struct hostile *h) {
  void *one = handle(h, BANK);
  return quire_kv_bank_destroy(one);
}

/* Memory of the arena that is there, or numbers that cannot be of any memory. */
static enum quire_status call_kv_bank_bind(struct hostile *h) {
  int64_t stride = 16 * (int64_t)(1 + below(h, 640)); /* up to 10 KiB; 16 pages at most */
  int64_t at = 16 * (int64_t)below(h, (ARENA_BYTES - 17 * 10240) / 16);
  int32_t part = number(h, 8), pages = 16, shift = below(h, 16);
  void *base = odd(h) ? NULL : h->arena + at;
  if (odd(h)) { /* no such memory: each of these is refused, whatever the part */
    stride = wide_number(h);
    stride = stride == 0 || stride == 1 ? 8 : stride;
    pages = stride == INT64_MAX - 4095 ? 3 : pages;
  } else if (odd(h)) {
    base = h->arena + at + shift;
  } else if (odd(h)) {
    stride = (int64_t)1 << (58 + below(h, 5)); /* times 32: past the end */
    pages = 32;
  }
  return quire_kv_bank_bind(handle(h, BANK), part, base, stride, pages, error(h));
}

static enum quire_status call_kv_bank_allocate(struct hostile *h) {
  return quire_kv_bank_allocate(handle(h, BANK), error(h));
}

static enum quire_status call_kv_bank_host(struct hostile *h) {
  int64_t at = 8 * (int64_t)below(h, ARENA_BYTES / 16), bytes = 1 + below(h, ARENA_BYTES / 2 - 1);
  if (odd(h)) {
    bytes = wide_number(h);
    bytes =
        bytes == INT64_MAX || bytes == INT64_MAX - 4095 ? -bytes : bytes; /* a lie about memory that nobody can see */
  }
  return quire_kv_bank_host(handle(h, BANK), odd(h) ? NULL : h->arena + at, bytes, error(h));
}

static enum quire_status call_kv_bank_connect(struct hostile *h) {
  struct quire_kv_bank *banks[QUIRE_KV_RANKS_MAX];
  void *layout = held(h, BANK)->layout;
  for (int32_t i = 0; i < QUIRE_KV_RANKS_MAX; i++) {
    banks[i] = handle(h, BANK);
    for (int32_t k = 0; k < HANDLES && !odd(h); k++) {
      if (h->held[k].layout == layout && h->held[k].kind == BANK && h->held[k].rank == i) {
        banks[i] = h->held[k].handle;
      }
    }
  }
  int32_t ranks = below(h, 2) == 0 ? 1 : number(h, 3);
  ranks = ranks > QUIRE_KV_RANKS_MAX ? QUIRE_KV_RANKS_MAX + 1 : ranks;
  return quire_kv_bank_connect(odd(h) && odd(h) ? NULL : banks, ranks, error(h));
}

static enum quire_status call_kv_bank_page(struct hostile *h) {
  int32_t part = number(h, 6);
  quire_kv_page page = {number(h, 16)};
  return quire_kv_bank_page(handle(h, BANK), part, page, odd(h) ? NULL : &h->out.address);
}

static enum quire_status call_kv_bank_submit(struct hostile *h) {
  struct quire_kv_command c = {.op = quire_splitmix64(&h->rng), .kind = number(h, 5), .page = {number(h, 10)}};
  c.ranks = below(h, 2) == 0 ? 1 : (uint32_t)number(h, 3);
  c.target.v = c.kind == QUIRE_KV_COPY ? number(h, 10) : QUIRE_KV_PAGE_NONE;
  c.valid_tokens = below(h, 2) == 0 ? 1 : number(h, 4);
  c.request_page = odd(h) ? number(h, 3) : 0;
  if (c.kind == QUIRE_KV_PACK || c.kind == QUIRE_KV_UNPACK) {
    c.host_offset = odd(h) ? wide_number(h) : (int64_t)below(h, 4) * 4096;
  }
  return quire_kv_bank_submit(handle(h, BANK), odd(h) ? NULL : &c, error(h));
}

static enum quire_status call_kv_bank_poll(struct hostile *h) {
  int32_t most = number(h, 4);
  most = most > 4 ? 4 : most;
  return quire_kv_bank_poll(handle(h, BANK), odd(h) ? NULL : h->out.acks, most, odd(h) ? NULL : &h->out.number);
}

static enum quire_status call_kv_bank_fault(struct hostile *h) {
  struct quire_error why;
  return quire_kv_bank_fault(handle(h, BANK), result(h, sizeof(struct quire_kv_fault)), odd(h) ? NULL : &why);
}

static enum quire_status call_kv_bank_drain(struct hostile *h) { return quire_kv_bank_drain(handle(h, BANK)); }

/* CALL(x) is quire_x, and its row of the table, RARE one that ends much; check_symbols.py reads these. */
#define CALL(name)                                                                                                     \
  { "quire_" #name, call_##name, false }
#define RARE(name)                                                                                                     \
  { "quire_" #name, call_##name, true }

static const struct {
  const char *name;
  enum quire_status (*run)(struct hostile *h);
  bool rare;
} calls[] = {
    CALL(version),           CALL(kv_abi),
    CALL(kv_status_name),    CALL(kv_digest),
    RARE(kv_layout_create),  RARE(kv_layout_destroy),
    CALL(kv_layout_info),    CALL(kv_layout_part),
    CALL(kv_layout_place),   CALL(kv_layout_local_pages),
    CALL(kv_cache_bytes),    RARE(kv_cache_create),
    RARE(kv_cache_destroy),  CALL(kv_cache_match),
    CALL(kv_cache_reserve),  CALL(kv_cache_refill),
    CALL(kv_cache_grow),     CALL(kv_cache_rematch),
    CALL(kv_cache_pages),    CALL(kv_cache_tokens),
    CALL(kv_cache_seal),     CALL(kv_cache_reset),
    CALL(kv_cache_release),  CALL(kv_cache_evict),
    CALL(kv_cache_drop),     RARE(kv_cache_flush),
    CALL(kv_cache_chain),    CALL(kv_cache_commands),
    CALL(kv_cache_complete), CALL(kv_cache_stats),
    CALL(kv_cache_check),    RARE(kv_bank_create),
    RARE(kv_bank_destroy),   CALL(kv_bank_bind),
    CALL(kv_bank_allocate),  CALL(kv_bank_host),
    CALL(kv_bank_connect),   CALL(kv_bank_page),
    CALL(kv_bank_submit),    CALL(kv_bank_poll),
    CALL(kv_bank_fault),     CALL(kv_bank_drain),
};
#define CALLS (int32_t)(sizeof calls / sizeof calls[0])

/* --- the walk --- */

static void one_call(struct hostile *h, int32_t c) {
  static struct outputs before;
  h->fail.fail_at = odd(h) ? h->fail.allocations + (uint64_t)below(h, 6) : FAIL_ENV_NEVER;
  h->error = (struct quire_error){.status = QUIRE_OK};
  memset(h->out.result, 0x5A, sizeof h->out.result);
  before = h->out;
  enum quire_status status = calls[c].run(h);
  assert_string_not_equal(quire_kv_status_name(status), "unknown");
  assert_true(status != QUIRE_ERR_CORRUPT); /* never our own structures */
  size_t size = (size_t)h->out.result[0];
  before.result[0] = size; /* set within the call */
  if (status != QUIRE_OK) {
    assert_memory_equal(&before, &h->out, sizeof before);
    if (h->error.status != QUIRE_OK) {
      assert_int_equal(h->error.status, status);
      assert_true(h->error.text[0] != 0 && memchr(h->error.text, 0, sizeof h->error.text) != NULL);
    }
    return;
  }
  h->ok++;
  assert_int_equal(h->error.status, QUIRE_OK);
  size_t words = size <= STRUCT_BYTES ? size / 8 : 1; /* 0x5A5A..: no result was asked for */
  assert_memory_equal(&before.result[words], &h->out.result[words], sizeof before.result - words * 8);
}

static void hostile_init(struct hostile *h, uint64_t seed) {
  memset(h, 0, sizeof *h);
  h->rng = seed;
  for (int32_t i = 0; i < TOKENS; i++) {
    h->tokens[i] = below(h, 2); /* so that prompts have common beginnings */
  }
  fail_env_init(&h->fail);
  h->allocator = (struct quire_kv_allocator){.size = sizeof h->allocator,
                                             .context = h->fail.env.context,
                                             .alloc = h->fail.env.alloc,
                                             .dealloc = h->fail.env.dealloc};
}

static void hostile_fini(struct hostile *h) {
  for (int32_t i = 0; i < HANDLES; i++) {
    if (quire_kv_cache_check(h->held[i].handle, NULL) == QUIRE_OK) {
      assert_int_equal(quire_kv_cache_destroy(h->held[i].handle), QUIRE_OK);
      assert_int_equal(quire_kv_cache_destroy(h->held[i].handle), QUIRE_ERR_STATE);
    } else if (quire_kv_bank_destroy(h->held[i].handle) != QUIRE_OK) {
      (void)quire_kv_layout_destroy(h->held[i].handle);
    }
  }
  fail_env_fini(&h->fail);
}

static void test_every_call(void **state) {
  static struct hostile h;
  static int64_t good[sizeof calls / sizeof calls[0]];
  uint64_t seed = test_seed("test_every_call");
  (void)state;
  for (int32_t life = 0; life < LIVES; life++) {
    hostile_init(&h, quire_splitmix64(&seed));
    for (int32_t step = 0; step < 6000; step++) {
      int32_t c = below(&h, CALLS);
      if (calls[c].rare && step > 100 && below(&h, 48) != 0) {
        continue;
      }
      int64_t before = h.ok;
      one_call(&h, c);
      good[c] += h.ok - before;
    }
    hostile_fini(&h);
  }
  for (int32_t c = 0; c < CALLS; c++) {
    print_message("%-28s %lld good\n", calls[c].name, (long long)good[c]);
    assert_true(good[c] > 0); /* the walk goes everywhere */
  }
}

/* --- memory --- */

#define ROOM (1 << 16)

static struct quire_kv_bank *bank_of(struct quire_kv_layout *layout, int32_t rank) {
  struct quire_kv_bank_options options = {.size = sizeof options, .rank = rank, .execution = QUIRE_KV_BY_CALLER};
  struct quire_kv_bank *bank = NULL;
  assert_int_equal(quire_kv_bank_create(layout, &options, &bank, NULL), QUIRE_OK);
  return bank;
}

/* Copies would read what they write; such memory is refused where it is first seen. */
static void test_memory_that_overlaps(void **state) {
  static _Alignas(64) uint8_t room[ROOM];
  struct quire_kv_layout_options options = {.size = sizeof options,
                                            .format = QUIRE_KV_ROW_FP8,
                                            .page_tokens = 1,
                                            .target_layers = 1,
                                            .ranks = 2,
                                            .pages = 6,
                                            .numerics_id = "test"};
  struct quire_kv_layout *layout = NULL;
  struct quire_error why;
  (void)state;
  assert_int_equal(quire_kv_layout_create(&options, &layout, NULL), QUIRE_OK);
  struct quire_kv_bank *banks[] = {bank_of(layout, 0), bank_of(layout, 1)};
  /* a latent of 656 bytes and a key of 132, in strides of 2,048: both ranks' pages in turn, 1,024 apart */
  assert_int_equal(quire_kv_bank_bind(banks[0], 0, room, 2048, 3, &why), QUIRE_OK);
  assert_int_equal(quire_kv_bank_bind(banks[0], 1, room + 640, 2048, 3, &why), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(banks[0], 1, room + 656, INT64_C(1) << 62, 3, &why), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_host(banks[0], room + 4096 + 648, 4096, &why), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_host(banks[0], room + 656, 1392, &why), QUIRE_OK); /* between two pages */
  assert_int_equal(quire_kv_bank_bind(banks[0], 1, room + 656, 2048, 3, &why), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_host(banks[0], room + 3 * 2048, ROOM - 3 * 2048, &why), QUIRE_OK);
  assert_int_equal(quire_kv_bank_bind(banks[0], 1, room + 656, 2048, 3, &why), QUIRE_OK);
  assert_int_equal(quire_kv_bank_bind(banks[1], 0, room + 1024, 2048, 3, &why), QUIRE_OK);
  assert_int_equal(quire_kv_bank_bind(banks[1], 1, room + 768, 2048, 3, &why), QUIRE_OK); /* the key of rank 0 */
  assert_int_equal(quire_kv_bank_connect(banks, 2, &why), QUIRE_ERR_ARGUMENT);
  assert_non_null(strstr(why.text, "overlaps"));
  assert_int_equal(quire_kv_bank_destroy(banks[1]), QUIRE_OK);
  banks[1] = bank_of(layout, 1);
  assert_int_equal(quire_kv_bank_bind(banks[1], 0, room + 1024, 2048, 3, &why), QUIRE_OK);
  assert_int_equal(quire_kv_bank_bind(banks[1], 1, room + 1680, 2048, 3, &why), QUIRE_OK);
  assert_int_equal(quire_kv_bank_connect(banks, 2, &why), QUIRE_OK);
  for (int32_t r = 0; r < 2; r++) {
    assert_int_equal(quire_kv_bank_destroy(banks[r]), QUIRE_OK);
  }
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_that_overlaps),
      cmocka_unit_test(test_every_call),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
