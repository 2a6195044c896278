/* The cache. A request's number carries its cache (16 bits that no other cache alive has, and that come again only
 * after all others had their turn) and its serial, and the last serial of each slot is kept here, so that a number that
 * was released or is another cache's is recognised before the cache, which trusts its callers, sees it.
 *
 *     63        32 31        16 15      0
 *     |  serial   |   cache    |  slot  |
 */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "api/api_private.h"
#include "base/assert.h"
#include "cache/cache.h"
#include "device/device_info.h"

#define REQUESTS_DEFAULT 64
#define REQUESTS_MAX 65536
#define REQUEST_PAGES_MAX 4194304
#define NUMBERS (UINT16_MAX + 1)

static_assert(sizeof(struct quire_kv_command) == sizeof(struct quire_command), "commands are passed as they are");
static_assert(offsetof(struct quire_kv_command, kind) == offsetof(struct quire_command, kind) &&
                  offsetof(struct quire_kv_command, ranks) == offsetof(struct quire_command, ranks) &&
                  offsetof(struct quire_kv_command, page) == offsetof(struct quire_command, page) &&
                  offsetof(struct quire_kv_command, target) == offsetof(struct quire_command, target) &&
                  offsetof(struct quire_kv_command, request_page) == offsetof(struct quire_command, request_page) &&
                  offsetof(struct quire_kv_command, valid_tokens) == offsetof(struct quire_command, valid_tokens) &&
                  offsetof(struct quire_kv_command, host_offset) == offsetof(struct quire_command, host_offset) &&
                  offsetof(struct quire_kv_command, chain) == offsetof(struct quire_command, chain),
              "fields of commands");
static_assert(sizeof(struct quire_kv_ack) == sizeof(struct quire_ack) &&
                  offsetof(struct quire_kv_ack, status) == offsetof(struct quire_ack, status) &&
                  offsetof(struct quire_kv_ack, rank) == offsetof(struct quire_ack, rank) &&
                  offsetof(struct quire_kv_ack, digest) == offsetof(struct quire_ack, digest),
              "acks are passed as they are");
static_assert((int)QUIRE_KV_COPY == QUIRE_COMMAND_COPY_PAGE && (int)QUIRE_KV_POISON == QUIRE_COMMAND_POISON &&
                  (int)QUIRE_KV_DIGEST == QUIRE_COMMAND_DIGEST && (int)QUIRE_KV_PACK == QUIRE_COMMAND_PACK &&
                  (int)QUIRE_KV_UNPACK == QUIRE_COMMAND_UNPACK,
              "kinds of commands");
static_assert((int)QUIRE_KV_CHAIN_XXH3 == QUIRE_CHAIN_XXH3 && (int)QUIRE_KV_CHAIN_SHA256 == QUIRE_CHAIN_SHA256,
              "kinds of chains");
static_assert(QUIRE_KV_SALT_BYTES_MAX == QUIRE_CHAIN_SALT_MAX, "bytes of a salt");
static_assert(sizeof(quire_kv_page) == sizeof(quire_page), "pages");
static_assert(sizeof(struct quire_kv_cache_options) == 56 && sizeof(struct quire_kv_reserve) == 32, "ABI 1");
static_assert(sizeof(struct quire_kv_cache_stats) == 152 && sizeof(struct quire_kv_allocator) == 32, "ABI 1");

struct cache_object {
  struct quire_env env; /* the cache keeps a pointer to it */
  struct quire_geometry geometry;
  enum quire_chain_kind chain_kind;
  int32_t requests_max;
  uint16_t number; /* of this cache */
  struct quire_cache *cache;
  uint32_t *serials; /* [requests_max], 0 where no request is open */
};

static _Atomic uint32_t number_turn;
static _Atomic bool number_taken[NUMBERS];

static_assert(NUMBERS > QUIRE_KV_HANDLES_MAX, "no number is looked for in vain");

/* For a cache that has a handle already, of which there are fewer than numbers. */
static uint16_t take_number(void) {
  for (;;) {
    uint16_t number = (uint16_t)atomic_fetch_add_explicit(&number_turn, 1, memory_order_relaxed);
    if (!atomic_exchange_explicit(&number_taken[number], true, memory_order_relaxed)) {
      return number;
    }
  }
}

static struct cache_object *object_of(const struct quire_kv_cache *handle, enum quire_status *status_out,
                                      struct quire_error *error_out) {
  return quire_api_handle_get(handle, QUIRE_API_CACHE, status_out, error_out);
}

static enum quire_status argument(struct quire_error *error_out, const char *text) {
  return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "cache", "%s", text);
}

/* --- creation --- */

static enum quire_status config_of(struct quire_cache_config *config_out, struct quire_env *env_out,
                                   const struct quire_api_layout *layout, const struct quire_kv_cache_options *options,
                                   struct quire_error *error_out) {
  struct quire_kv_cache_options o;
  enum quire_status status = quire_api_options_read(&o, sizeof o, options, "struct quire_kv_cache_options", error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  if (o.requests_max < 0 || o.requests_max > REQUESTS_MAX) {
    return argument(error_out, "requests_max must be 1 to 65,536, or 0 for 64");
  }
  if (o.request_pages_max < 0 || o.request_pages_max > REQUEST_PAGES_MAX) {
    return argument(error_out, "request_pages_max must be 1 to 4,194,304, or 0 for the pages of the layout");
  }
  if (o.chain_kind < 0 || o.chain_kind > QUIRE_KV_CHAIN_SHA256 || o.poison < 0 || o.poison > 1 || o.reserved != 0) {
    return argument(error_out, "chain_kind must be 0 to 2, poison 0 or 1, reserved 0");
  }
  int32_t pages = layout->geometry.pages < REQUEST_PAGES_MAX ? layout->geometry.pages : REQUEST_PAGES_MAX;
  *config_out = (struct quire_cache_config){
      .geometry = layout->geometry,
      .parts = &layout->parts,
      .fingerprint = layout->fingerprint,
      .chain_kind = o.chain_kind == 0 ? QUIRE_CHAIN_XXH3 : (enum quire_chain_kind)o.chain_kind,
      .tenant_salt = o.tenant_salt,
      .tenant_salt_bytes = o.tenant_salt_bytes,
      .requests_max = o.requests_max == 0 ? REQUESTS_DEFAULT : o.requests_max,
      .request_pages_max = o.request_pages_max == 0 ? pages : o.request_pages_max,
      .chain_spread_max = o.chain_spread_max,
      .lost_pages_max = o.lost_pages_max,
      .poison = o.poison == 1,
  };
  if (quire_cache_bytes(config_out) <= 0) {
    return argument(error_out, "chain_spread_max, lost_pages_max or the tenant salt are out of bounds");
  }
  return quire_api_env(env_out, o.allocator, error_out);
}

static int64_t bytes_of(const struct quire_cache_config *config) {
  return quire_cache_bytes(config) + (int64_t)sizeof(struct cache_object) +
         config->requests_max * (int64_t)sizeof(uint32_t);
}

enum quire_status quire_kv_cache_bytes(struct quire_kv_layout *layout, const struct quire_kv_cache_options *options,
                                       int64_t *bytes_out, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_cache_config config;
  struct quire_env env;
  const struct quire_api_layout *l = quire_api_layout_get(layout, &status, error_out);
  if (l == NULL) {
    return status;
  }
  if (bytes_out == NULL) {
    return argument(error_out, "bytes_out is NULL");
  }
  status = config_of(&config, &env, l, options, error_out);
  if (status == QUIRE_OK) {
    *bytes_out = bytes_of(&config);
  }
  return status;
}

static void object_free(struct cache_object *object) {
  struct quire_env env = object->env;
  if (object->cache != NULL) {
    quire_cache_destroy(object->cache);
  }
  if (object->serials != NULL) {
    quire_env_free(&env, object->serials, (size_t)object->requests_max, sizeof *object->serials);
  }
  quire_env_free(&env, object, 1, sizeof *object);
}

static enum quire_status object_fill(struct cache_object *object, const struct quire_cache_config *config,
                                     struct quire_error *error_out) {
  object->geometry = config->geometry;
  object->chain_kind = config->chain_kind;
  object->requests_max = config->requests_max;
  object->serials = quire_env_zalloc(&object->env, (size_t)config->requests_max, sizeof *object->serials);
  if (object->serials == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "cache", "no memory for %d requests",
                           (int)config->requests_max);
  }
  return quire_cache_create(&object->env, config, &object->cache, error_out);
}

enum quire_status quire_kv_cache_create(struct quire_kv_layout *layout, const struct quire_kv_cache_options *options,
                                        struct quire_kv_cache **cache_out, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_cache_config config;
  struct quire_env env;
  const struct quire_api_layout *l = quire_api_layout_get(layout, &status, error_out);
  if (l == NULL) {
    return status;
  }
  if (cache_out == NULL) {
    return argument(error_out, "cache_out is NULL");
  }
  status = config_of(&config, &env, l, options, error_out);
  if (status == QUIRE_OK) {
    status = quire_device_check_available(&env, (size_t)bytes_of(&config), "cache", error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  struct cache_object *object = quire_env_zalloc(&env, 1, sizeof *object);
  if (object == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "cache", "no memory for its record");
  }
  object->env = env;
  status = object_fill(object, &config, error_out);
  void *handle = status == QUIRE_OK ? quire_api_handle_reserve() : NULL;
  if (handle == NULL) {
    object_free(object);
    return status != QUIRE_OK ? status
                              : quire_error_set(error_out, QUIRE_ERR_AGAIN, "cache", "all %d handles are in use",
                                                QUIRE_KV_HANDLES_MAX);
  }
  object->number = take_number();
  quire_api_handle_set(handle, QUIRE_API_CACHE, object);
  *cache_out = handle;
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_destroy(struct quire_kv_cache *cache) {
  enum quire_status status = QUIRE_OK;
  struct cache_object *object = cache == NULL ? NULL : quire_api_handle_take(cache, QUIRE_API_CACHE, &status);
  if (object != NULL) {
    atomic_store_explicit(&number_taken[object->number], false, memory_order_relaxed);
    object_free(object);
    quire_api_handle_free(cache);
  }
  return status;
}

/* --- requests --- */

/* A cache and one of its open requests. */
struct found {
  struct cache_object *object;
  quire_cache_request request;
};

/* Without an object where there is no such request; then *status_out says why. */
static struct found find(struct quire_kv_cache *handle, quire_kv_request request, enum quire_status *status_out,
                         struct quire_error *error_out) {
  struct found found = {.object = object_of(handle, status_out, error_out)};
  if (found.object == NULL) {
    return found;
  }
  found.request.slot = (int32_t)(request.v & 0xFFFF);
  found.request.serial = (uint32_t)(request.v >> 32);
  bool ours = (uint16_t)(request.v >> 16) == found.object->number && found.request.slot < found.object->requests_max;
  if (!ours || found.request.serial == 0 || found.object->serials[found.request.slot] != found.request.serial) {
    *status_out = quire_error_set(error_out, QUIRE_ERR_NOT_FOUND, "request", "%s",
                                  ours ? "it was released" : "it is not one of this cache");
    found.object = NULL;
  }
  return found;
}

static enum quire_status fill_of(struct quire_cache_fill *fill_out, const struct quire_kv_reserve *reserve,
                                 struct quire_error *error_out) {
  struct quire_kv_reserve r;
  enum quire_status status = quire_api_options_read(&r, sizeof r, reserve, "struct quire_kv_reserve", error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  if (r.no_match < 0 || r.no_match > 1 || r.reserved != 0) {
    return argument(error_out, "no_match must be 0 or 1, reserved 0");
  }
  *fill_out = (struct quire_cache_fill){
      .tokens = r.tokens,
      .tokens_count = r.tokens_count,
      .reserve_tokens = r.reserve_tokens,
      .no_match = r.no_match == 1,
  };
  return QUIRE_OK;
}

static bool tokens_valid(const int32_t *tokens, int32_t count) { return count >= 0 && (tokens != NULL || count == 0); }

enum quire_status quire_kv_cache_match(struct quire_kv_cache *cache, const int32_t *tokens, int32_t count,
                                       int32_t *pages_out) {
  enum quire_status status = QUIRE_OK;
  struct cache_object *object = object_of(cache, &status, NULL);
  if (object == NULL) {
    return status;
  }
  if (!tokens_valid(tokens, count) || pages_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  *pages_out = quire_cache_match(object->cache, tokens, count);
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_reserve(struct quire_kv_cache *cache, const struct quire_kv_reserve *reserve,
                                         quire_kv_request *request_out, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_cache_fill fill;
  quire_cache_request request;
  struct cache_object *object = object_of(cache, &status, error_out);
  if (object == NULL) {
    return status;
  }
  if (request_out == NULL) {
    return argument(error_out, "request_out is NULL");
  }
  status = fill_of(&fill, reserve, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = quire_cache_request_begin(object->cache, &fill, &request, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  QUIRE_ASSERT(request.slot >= 0 && request.slot < object->requests_max && request.serial != 0);
  object->serials[request.slot] = request.serial;
  request_out->v = (uint64_t)request.serial << 32 | (uint64_t)object->number << 16 | (uint64_t)request.slot;
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_refill(struct quire_kv_cache *cache, quire_kv_request request,
                                        const struct quire_kv_reserve *reserve, struct quire_error *error_out) {
  struct quire_cache_fill fill;
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, error_out);
  if (found.object == NULL) {
    return status;
  }
  status = fill_of(&fill, reserve, error_out);
  return status != QUIRE_OK ? status : quire_cache_request_fill(found.object->cache, found.request, &fill, error_out);
}

enum quire_status quire_kv_cache_grow(struct quire_kv_cache *cache, quire_kv_request request, int32_t tokens,
                                      struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, error_out);
  if (found.object == NULL) {
    return status;
  }
  if (tokens < 0) {
    return argument(error_out, "tokens must not be negative");
  }
  return quire_cache_request_grow(found.object->cache, found.request, tokens, error_out);
}

enum quire_status quire_kv_cache_rematch(struct quire_kv_cache *cache, quire_kv_request request, const int32_t *tokens,
                                         int32_t count, int32_t *won_out) {
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, NULL);
  if (found.object == NULL) {
    return status;
  }
  if (!tokens_valid(tokens, count) || won_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  *won_out = quire_cache_request_rematch(found.object->cache, found.request, tokens, count);
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_pages(struct quire_kv_cache *cache, quire_kv_request request, quire_kv_page *pages_out,
                                       int32_t pages_max, int32_t *count_out) {
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, NULL);
  if (found.object == NULL) {
    return status;
  }
  if (pages_max < 0 || (pages_out == NULL && pages_max > 0) || count_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  int32_t count = 0;
  const quire_page *pages = quire_cache_request_pages(found.object->cache, found.request, &count);
  for (int32_t i = 0; i < count && i < pages_max; i++) {
    pages_out[i].v = pages[i].v;
  }
  *count_out = count;
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_tokens(struct quire_kv_cache *cache, quire_kv_request request, int32_t *tokens_out) {
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, NULL);
  if (found.object == NULL) {
    return status;
  }
  if (tokens_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  *tokens_out = quire_cache_request_tokens(found.object->cache, found.request);
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_seal(struct quire_kv_cache *cache, quire_kv_request request, const int32_t *tokens,
                                      int32_t count, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, error_out);
  if (found.object == NULL) {
    return status;
  }
  if (!tokens_valid(tokens, count)) {
    return argument(error_out, "tokens is NULL, or their number negative");
  }
  return quire_cache_request_commit(found.object->cache, found.request, count, tokens, error_out);
}

enum quire_status quire_kv_cache_reset(struct quire_kv_cache *cache, quire_kv_request request) {
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, NULL);
  if (found.object != NULL) {
    quire_cache_request_reset(found.object->cache, found.request);
  }
  return status;
}

enum quire_status quire_kv_cache_release(struct quire_kv_cache *cache, quire_kv_request request) {
  enum quire_status status = QUIRE_OK;
  struct found found = find(cache, request, &status, NULL);
  if (found.object != NULL) {
    quire_cache_request_release(found.object->cache, found.request);
    found.object->serials[found.request.slot] = 0;
  }
  return status;
}

/* --- the tree --- */

enum quire_status quire_kv_cache_evict(struct quire_kv_cache *cache, int32_t pages, int32_t *evicted_out) {
  enum quire_status status = QUIRE_OK;
  struct cache_object *object = object_of(cache, &status, NULL);
  if (object == NULL) {
    return status;
  }
  if (pages < 0) {
    return QUIRE_ERR_ARGUMENT;
  }
  int32_t evicted = quire_cache_evict(object->cache, pages);
  if (evicted_out != NULL) {
    *evicted_out = evicted;
  }
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_drop(struct quire_kv_cache *cache, quire_kv_page page, int32_t *left_out) {
  enum quire_status status = QUIRE_OK;
  struct cache_object *object = object_of(cache, &status, NULL);
  if (object == NULL) {
    return status;
  }
  if (page.v < 0 || page.v >= object->geometry.pages) {
    return QUIRE_ERR_ARGUMENT;
  }
  int32_t left = quire_cache_drop_page(object->cache, (quire_page){page.v});
  if (left_out != NULL) {
    *left_out = left;
  }
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_flush(struct quire_kv_cache *cache, int32_t *left_out) {
  enum quire_status status = QUIRE_OK;
  struct cache_object *object = object_of(cache, &status, NULL);
  if (object == NULL) {
    return status;
  }
  int32_t left = quire_cache_flush(object->cache);
  if (left_out != NULL) {
    *left_out = left;
  }
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_chain(struct quire_kv_cache *cache, const int32_t *tokens, int32_t count,
                                       struct quire_kv_hash *chain_out) {
  enum quire_status status = QUIRE_OK;
  struct cache_object *object = object_of(cache, &status, NULL);
  if (object == NULL) {
    return status;
  }
  if (tokens == NULL || count < 1 || chain_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  struct quire_hash128 chain = quire_cache_root(object->cache);
  for (int32_t at = 0; at < count && status == QUIRE_OK;) {
    int32_t n = count - at < object->geometry.page_tokens ? count - at : object->geometry.page_tokens;
    status = quire_chain_next(object->chain_kind, chain, tokens + at, n, &chain);
    at += n;
  }
  if (status == QUIRE_OK) {
    *chain_out = quire_api_hash_out(chain);
  }
  return status;
}

/* --- commands --- */

enum quire_status quire_kv_cache_commands(struct quire_kv_cache *cache, struct quire_kv_command *commands_out,
                                          int32_t commands_max, int32_t *count_out) {
  enum quire_status status = QUIRE_OK;
  struct cache_object *object = object_of(cache, &status, NULL);
  if (object == NULL) {
    return status;
  }
  if (commands_max < 0 || (commands_out == NULL && commands_max > 0) || count_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  int32_t count = 0;
  struct quire_command command;
  while (count < commands_max && quire_cache_commands(object->cache, &command, 1) == 1) {
    memcpy(&commands_out[count++], &command, sizeof command);
  }
  *count_out = count;
  return QUIRE_OK;
}

enum quire_status quire_kv_cache_complete(struct quire_kv_cache *cache, const struct quire_kv_ack *ack,
                                          struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_ack inner;
  struct cache_object *object = object_of(cache, &status, error_out);
  if (object == NULL) {
    return status;
  }
  if (ack == NULL) {
    return argument(error_out, "ack is NULL");
  }
  memcpy(&inner, ack, sizeof inner);
  return quire_cache_ack(object->cache, &inner, error_out);
}

/* --- insight --- */

enum quire_status quire_kv_cache_stats(struct quire_kv_cache *cache, struct quire_kv_cache_stats *stats_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_cache_stats from;
  struct cache_object *object = object_of(cache, &status, NULL);
  if (object == NULL) {
    return status;
  }
  quire_cache_stats(object->cache, &from);
  struct quire_kv_cache_stats stats = {
      .size = sizeof stats,
      .pages = from.pages,
      .free = from.free,
      .filling = from.filling,
      .sealed = from.sealed,
      .quarantined = from.quarantined,
      .cached = from.cached,
      .evictable = from.evictable,
      .lost = from.lost,
      .refs = from.refs,
      .pins = from.pins,
      .requests = from.requests,
      .healthy = from.healthy,
      .fill_tokens = from.fill_tokens,
      .hit_tokens = from.hit_tokens,
      .inserted_pages = from.inserted_pages,
      .duplicate_pages = from.duplicate_pages,
      .evicted_pages = from.evicted_pages,
      .refusals = from.refusals,
  };
  return quire_api_result_write(stats_out, &stats, sizeof stats);
}

enum quire_status quire_kv_cache_check(struct quire_kv_cache *cache, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_error why = {0};
  struct cache_object *object = object_of(cache, &status, error_out);
  if (object == NULL) {
    return status;
  }
  if (quire_cache_check(object->cache, &why)) {
    return QUIRE_OK;
  }
  return quire_error_set(error_out, QUIRE_ERR_CORRUPT, why.where, "%s", why.text);
}
