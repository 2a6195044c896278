/* The glue of pool and tree. The pool says what happens to a page (held, retired, to be evicted) through its hooks; the
 * calls of the engine become table and tree operations. A request's place in the tree is the page of its last sealed
 * position: its own, or its shadow where the tree had another page of that content first. */
#include "cache/cache.h"

#include <string.h>

#include "base/assert.h"
#include "layout/carve.h"
#include "pool/pool.h"
#include "radix/radix.h"

struct request {
  uint32_t serial; /* 0: not open */
  int32_t tokens;  /* positions below need no computing */
  int32_t sealed;  /* request pages below are sealed: matched or committed */
  uint32_t flush;  /* flushes of the cache when the request was filled */
  struct quire_hash128 root;
  bool no_match;
  bool detached; /* its pages in the tree were dropped: puts no more into it */
};

/* The one command a page can have: a queued or posted POISON. */
struct open_command {
  uint32_t serial;  /* of the page's last command; high half of its op */
  uint32_t pending; /* ranks that have not answered */
  bool queued;
  bool failed;
};

struct quire_cache {
  const struct quire_env *env;
  size_t bytes;
  struct quire_geometry geometry;
  struct quire_hash128 root;
  struct quire_hash128 fingerprint;
  enum quire_chain_kind chain_kind;
  int64_t bundle_bytes;
  int32_t requests_max;
  int32_t request_pages_max;
  struct quire_pool *pool;
  struct quire_radix *radix;
  struct request *requests;      /* by table of the pool */
  quire_page *matched;           /* [request_pages_max] pages of the tree, scratch of one call */
  struct open_command *commands; /* by page */
  int32_t *queue;                /* [pages], ring of pages whose command nobody has taken */
  int32_t queue_first;
  int32_t queue_count;
  uint32_t serial;
  uint32_t flush;
  int64_t fill_tokens, hit_tokens, inserted_pages, duplicate_pages, evicted_pages, refusals;
};

/* --- what the pool asks --- */

static void on_evict(void *context, quire_stripe_id stripe) {
  struct quire_cache *cache = context;
  quire_page page = quire_radix_evict(cache->radix, stripe);
  QUIRE_ASSERT(page.v != QUIRE_PAGE_NONE);
  cache->evicted_pages++;
  quire_pool_uncache(cache->pool, page);
}

static void on_held(void *context, quire_page page, bool held) {
  struct quire_cache *cache = context;
  quire_radix_hold(cache->radix, page, held);
}

/* The page may not be handed out before every rank has poisoned it: the command is a pin. */
static void on_retired(void *context, quire_page page) {
  struct quire_cache *cache = context;
  struct open_command *command = &cache->commands[page.v];
  QUIRE_ASSERT(!command->queued && command->pending == 0 && cache->queue_count < cache->geometry.pages);
  quire_pool_pin(cache->pool, page);
  command->serial++;
  command->queued = true;
  command->failed = false;
  cache->queue[(cache->queue_first + cache->queue_count++) % cache->geometry.pages] = page.v;
}

static void on_removed(void *context, quire_page page) {
  struct quire_cache *cache = context;
  QUIRE_ASSERT(!quire_radix_contains(cache->radix, page)); /* or its room could be handed out while it is found */
  quire_pool_uncache(cache->pool, page);
}

/* --- creation --- */

static const char *config_fault(const struct quire_cache_config *config) {
  QUIRE_ASSERT(config != NULL);
  if (config->parts == NULL || config->parts->page_tokens != config->geometry.page_tokens) {
    return "parts table and geometry differ in tokens a page";
  }
  if (config->tenant_salt_bytes < 0 || config->tenant_salt_bytes > QUIRE_CHAIN_SALT_MAX ||
      (config->tenant_salt_bytes > 0 && config->tenant_salt == NULL)) {
    return "the tenant salt must have 0 to 64 bytes";
  }
  if ((int)config->chain_kind != 0 && config->chain_kind != QUIRE_CHAIN_XXH3 &&
      config->chain_kind != QUIRE_CHAIN_SHA256) {
    return "unknown chain hash";
  }
  return NULL;
}

static struct quire_pool_config pool_config_of(const struct quire_cache_config *config) {
  QUIRE_ASSERT(config != NULL);
  return (struct quire_pool_config){
      .geometry = config->geometry,
      .tables = config->requests_max,
      .table_pages = config->request_pages_max,
      .chain_spread_max = config->chain_spread_max == 0 ? QUIRE_CHAIN_SPREAD_MAX : config->chain_spread_max,
      .lost_max = config->lost_pages_max,
  };
}

static struct quire_cache *carve_cache(const struct quire_cache_config *config, struct quire_carve *carve) {
  QUIRE_ASSERT(config->requests_max > 0 && config->request_pages_max > 0);
  struct quire_cache *cache = quire_carve(carve, 1, sizeof *cache);
  struct request *requests = quire_carve(carve, config->requests_max, sizeof *requests);
  quire_page *matched = quire_carve(carve, config->request_pages_max, sizeof *matched);
  struct open_command *commands = quire_carve(carve, config->geometry.pages, sizeof *commands);
  int32_t *queue = quire_carve(carve, config->geometry.pages, sizeof *queue);
  if (cache != NULL) {
    cache->requests = requests;
    cache->matched = matched;
    cache->commands = commands;
    cache->queue = queue;
  }
  return cache;
}

static size_t own_bytes(const struct quire_cache_config *config) {
  struct quire_carve carve = {NULL, 0};
  carve_cache(config, &carve);
  QUIRE_ASSERT(carve.used > 0);
  return carve.used;
}

int64_t quire_cache_bytes(const struct quire_cache_config *config) {
  QUIRE_ASSERT(config != NULL);
  struct quire_pool_config pool_config = pool_config_of(config);
  int64_t pool_bytes = quire_pool_bytes(&pool_config);
  if (config_fault(config) != NULL || pool_bytes == 0) {
    return 0;
  }
  return (int64_t)own_bytes(config) + pool_bytes + quire_radix_bytes(&config->geometry);
}

static enum quire_status create_parts(struct quire_cache *cache, const struct quire_cache_config *config,
                                      struct quire_error *error_out) {
  QUIRE_ASSERT(cache->pool == NULL && cache->radix == NULL);
  struct quire_pool_config pool_config = pool_config_of(config);
  struct quire_pool_hooks hooks = {
      .context = cache,
      .evict = on_evict,
      .held = on_held,
      .retired = config->poison ? on_retired : NULL,
  };
  cache->chain_kind = (int)config->chain_kind == 0 ? QUIRE_CHAIN_XXH3 : config->chain_kind;
  cache->fingerprint = config->fingerprint;
  enum quire_status status = quire_chain_root(cache->chain_kind, config->fingerprint, config->tenant_salt,
                                              config->tenant_salt_bytes, &cache->root);
  if (status != QUIRE_OK) {
    return quire_error_set(error_out, status, "cache", "no root for the chains' hash");
  }
  status = quire_pool_create(cache->env, &pool_config, &hooks, &cache->pool, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  return quire_radix_create(cache->env, &config->geometry, &cache->radix, error_out);
}

enum quire_status quire_cache_create(const struct quire_env *env, const struct quire_cache_config *config,
                                     struct quire_cache **cache_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env != NULL && config != NULL && cache_out != NULL);
  const char *fault = config_fault(config);
  if (fault != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "cache", "%s", fault);
  }
  if (quire_cache_bytes(config) == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "cache",
                           "geometry, requests or pages a request are out of bounds");
  }
  size_t bytes = own_bytes(config);
  struct quire_carve carve = {quire_env_zalloc(env, 1, bytes), 0};
  if (carve.base == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "cache", "no memory for %zu bytes of requests", bytes);
  }
  struct quire_cache *cache = carve_cache(config, &carve);
  cache->env = env;
  cache->bytes = bytes;
  cache->geometry = config->geometry;
  cache->bundle_bytes = quire_parts_bundle_bytes(config->parts);
  cache->requests_max = config->requests_max;
  cache->request_pages_max = config->request_pages_max;
  enum quire_status status = create_parts(cache, config, error_out);
  if (status != QUIRE_OK) {
    quire_cache_destroy(cache);
    return status;
  }
  *cache_out = cache;
  return QUIRE_OK;
}

void quire_cache_destroy(struct quire_cache *cache) {
  if (cache != NULL) {
    QUIRE_ASSERT(cache->env != NULL);
    quire_radix_destroy(cache->radix);
    quire_pool_destroy(cache->pool);
    quire_env_free(cache->env, cache, 1, cache->bytes);
  }
}

/* --- helpers of requests --- */

static struct request *request_of(const struct quire_cache *cache, quire_cache_request handle) {
  QUIRE_ASSERT(handle.slot >= 0 && handle.slot < cache->requests_max);
  struct request *request = &cache->requests[handle.slot];
  QUIRE_ASSERT(handle.serial != 0 && request->serial == handle.serial);
  return request;
}

static quire_table_id table_of(quire_cache_request handle) { return (quire_table_id){handle.slot}; }

static int32_t pages_for(const struct quire_cache *cache, int64_t tokens) {
  QUIRE_ASSERT(tokens >= 0);
  int64_t pages = (tokens + cache->geometry.page_tokens - 1) / cache->geometry.page_tokens;
  return pages > INT32_MAX ? INT32_MAX : (int32_t)pages;
}

/* Most pages a request can ever have. */
static int32_t pages_most(const struct quire_cache *cache) {
  return cache->geometry.pages < cache->request_pages_max ? cache->geometry.pages : cache->request_pages_max;
}

/* The tree's page for the last of `count` sealed pages of a table, QUIRE_PAGE_NONE for count 0. */
static quire_page tree_page(const struct quire_cache *cache, quire_table_id table, int32_t count) {
  QUIRE_ASSERT(count >= 0);
  if (count == 0) {
    return (quire_page){QUIRE_PAGE_NONE};
  }
  quire_page shadow = quire_pool_table_shadow_at(cache->pool, table, count - 1);
  return shadow.v != QUIRE_PAGE_NONE ? shadow : quire_pool_table_pages(cache->pool, table, NULL)[count - 1];
}

/* May the request put pages into the tree, or take some from it? Not when what it built on has left the tree. A request
 * holds its pages, so that none can have left it and come back. */
static bool attached(const struct quire_cache *cache, const struct request *request, quire_table_id table) {
  QUIRE_DEBUG(request->sealed >= 0);
  quire_page page = tree_page(cache, table, request->sealed);
  return !request->detached && request->flush == cache->flush &&
         (page.v == QUIRE_PAGE_NONE || quire_radix_contains(cache->radix, page));
}

static void touch(struct quire_cache *cache, const struct request *request, quire_table_id table) {
  QUIRE_ASSERT(request->sealed >= 0 && request->sealed <= cache->request_pages_max);
  if (request->sealed > 0 && attached(cache, request, table)) {
    quire_radix_touch(cache->radix, tree_page(cache, table, request->sealed));
  }
}

static int32_t match_limit(const struct quire_cache *cache, int32_t tokens_count) {
  QUIRE_ASSERT(tokens_count >= 1);
  int32_t pages = (tokens_count - 1) / cache->geometry.page_tokens;
  return pages < cache->request_pages_max ? pages : cache->request_pages_max;
}

enum quire_status quire_cache_salted(const struct quire_cache *cache, const void *salt, int32_t salt_bytes,
                                     struct quire_hash128 *root_out, struct quire_error *error_out) {
  QUIRE_ASSERT(cache != NULL && root_out != NULL);
  if (salt_bytes < 0 || salt_bytes > QUIRE_CHAIN_SALT_MAX || (salt_bytes > 0 && salt == NULL)) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "cache", "a tenant's salt must have 0 to %d bytes, not %d",
                           QUIRE_CHAIN_SALT_MAX, salt_bytes);
  }
  if (salt_bytes == 0) {
    *root_out = cache->root;
    return QUIRE_OK;
  }
  enum quire_status status = quire_chain_root(cache->chain_kind, cache->fingerprint, salt, salt_bytes, root_out);
  return status == QUIRE_OK ? status : quire_error_set(error_out, status, "cache", "no root for the tenant's chains");
}

int32_t quire_cache_match_below(const struct quire_cache *cache, struct quire_hash128 root, const int32_t *tokens,
                                int32_t count) {
  QUIRE_ASSERT(cache != NULL && (count < 1 || tokens != NULL));
  if (count < 1) {
    return 0;
  }
  struct quire_radix_chain chain = {root, tokens, match_limit(cache, count)};
  return quire_radix_match(cache->radix, &chain, NULL);
}

int32_t quire_cache_match(const struct quire_cache *cache, const int32_t *tokens, int32_t count) {
  return quire_cache_match_below(cache, cache->root, tokens, count);
}

/* --- a request's life --- */

static enum quire_status fill_fault(const struct quire_cache *cache, const struct quire_cache_fill *fill,
                                    struct quire_error *error_out) {
  QUIRE_ASSERT(cache != NULL && fill != NULL);
  if (fill->tokens == NULL || fill->tokens_count < 1 || fill->reserve_tokens < 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "request", "%d prompt tokens and %d reserved",
                           fill->tokens_count, fill->reserve_tokens);
  }
  int64_t tokens = (int64_t)fill->tokens_count + fill->reserve_tokens;
  if (pages_for(cache, tokens) > pages_most(cache)) {
    return quire_error_set(
        error_out, QUIRE_ERR_REQUEST, "request",
        "%d prompt tokens with %d reserved for the answer do not fit: a request can have %lld tokens "
        "here (%d in the cache, %d by the longest length allowed); shorten the prompt or the answer",
        fill->tokens_count, fill->reserve_tokens, (long long)pages_most(cache) * cache->geometry.page_tokens,
        cache->geometry.pages, cache->request_pages_max);
  }
  return QUIRE_OK;
}

static enum quire_status refuse(struct quire_cache *cache, int32_t pages, struct quire_error *error_out) {
  QUIRE_ASSERT(pages >= 0);
  cache->refusals++;
  return quire_error_set(error_out, QUIRE_ERR_AGAIN, "request", "%d pages wanted, %lld are free or can be evicted now",
                         pages, (long long)quire_pool_available(cache->pool));
}

/* Fills an open, empty table and records the request. */
static enum quire_status fill_table(struct quire_cache *cache, quire_table_id table,
                                    const struct quire_cache_fill *fill, struct quire_error *error_out) {
  int32_t pages = pages_for(cache, (int64_t)fill->tokens_count + fill->reserve_tokens);
  struct quire_hash128 root = fill->root != NULL ? *fill->root : cache->root;
  int32_t limit = fill->no_match ? 0 : match_limit(cache, fill->tokens_count);
  if (fill->match_max > 0 && fill->match_max / cache->geometry.page_tokens < limit) {
    limit = fill->match_max / cache->geometry.page_tokens;
  }
  struct quire_radix_chain chain = {root, fill->tokens, limit};
  int32_t matched = quire_radix_match(cache->radix, &chain, cache->matched);
  QUIRE_ASSERT(matched <= pages);
  for (int32_t i = 0; i < matched; i++) {
    quire_pool_table_share(cache->pool, table, cache->matched[i]);
  }
  if (quire_pool_table_extend(cache->pool, table, pages - matched) != QUIRE_OK) {
    quire_pool_table_truncate(cache->pool, table, 0);
    return refuse(cache, pages - matched, error_out);
  }
  struct request *request = &cache->requests[table.v];
  *request = (struct request){
      .serial = request->serial,
      .tokens = matched * cache->geometry.page_tokens,
      .sealed = matched,
      .flush = cache->flush,
      .root = root,
      .no_match = fill->no_match || fill->match_max > 0,
  };
  touch(cache, request, table);
  cache->fill_tokens += fill->tokens_count;
  cache->hit_tokens += request->tokens;
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return QUIRE_OK;
}

enum quire_status quire_cache_request_begin(struct quire_cache *cache, const struct quire_cache_fill *fill,
                                            quire_cache_request *request_out, struct quire_error *error_out) {
  QUIRE_ASSERT(request_out != NULL);
  enum quire_status status = fill_fault(cache, fill, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  quire_table_id table;
  if (quire_pool_table_open(cache->pool, &table) != QUIRE_OK) {
    cache->refusals++;
    return quire_error_set(error_out, QUIRE_ERR_AGAIN, "request", "all %d requests are in use", cache->requests_max);
  }
  status = fill_table(cache, table, fill, error_out);
  if (status != QUIRE_OK) {
    quire_pool_table_close(cache->pool, table);
    return status;
  }
  cache->serial += cache->serial == UINT32_MAX ? 2 : 1; /* 0 is no serial */
  cache->requests[table.v].serial = cache->serial;
  *request_out = (quire_cache_request){table.v, cache->serial};
  return QUIRE_OK;
}

enum quire_status quire_cache_request_fill(struct quire_cache *cache, quire_cache_request handle,
                                           const struct quire_cache_fill *fill, struct quire_error *error_out) {
  QUIRE_ASSERT(fill != NULL);
  request_of(cache, handle);
  int32_t count;
  quire_pool_table_pages(cache->pool, table_of(handle), &count);
  if (count != 0) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "request", "it has pages; reset it first");
  }
  enum quire_status status = fill_fault(cache, fill, error_out);
  return status != QUIRE_OK ? status : fill_table(cache, table_of(handle), fill, error_out);
}

void quire_cache_request_reset(struct quire_cache *cache, quire_cache_request handle) {
  struct request *request = request_of(cache, handle);
  touch(cache, request, table_of(handle));
  quire_pool_table_truncate(cache->pool, table_of(handle), 0);
  *request = (struct request){.serial = handle.serial};
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
}

void quire_cache_request_release(struct quire_cache *cache, quire_cache_request handle) {
  quire_cache_request_reset(cache, handle);
  QUIRE_ASSERT(request_of(cache, handle)->sealed == 0);
  quire_pool_table_close(cache->pool, table_of(handle));
  request_of(cache, handle)->serial = 0;
}

int32_t quire_cache_request_tokens(const struct quire_cache *cache, quire_cache_request handle) {
  return request_of(cache, handle)->tokens;
}

const quire_page *quire_cache_request_pages(const struct quire_cache *cache, quire_cache_request handle,
                                            int32_t *count_out) {
  request_of(cache, handle);
  return quire_pool_table_pages(cache->pool, table_of(handle), count_out);
}

enum quire_status quire_cache_request_grow(struct quire_cache *cache, quire_cache_request handle, int32_t tokens,
                                           struct quire_error *error_out) {
  QUIRE_ASSERT(tokens >= 0);
  request_of(cache, handle);
  int32_t count;
  quire_pool_table_pages(cache->pool, table_of(handle), &count);
  int32_t pages = pages_for(cache, tokens);
  if (pages > pages_most(cache)) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "request",
                           "it has grown to %d tokens, a request can have %lld here", tokens,
                           (long long)pages_most(cache) * cache->geometry.page_tokens);
  }
  if (pages <= count) {
    return QUIRE_OK;
  }
  if (quire_pool_table_extend(cache->pool, table_of(handle), pages - count) != QUIRE_OK) {
    return refuse(cache, pages - count, error_out);
  }
  return QUIRE_OK;
}

int32_t quire_cache_request_let_go(struct quire_cache *cache, quire_cache_request handle) {
  struct request *request = request_of(cache, handle);
  quire_table_id table = table_of(handle);
  bool below = false;
  for (int32_t i = 0; i < request->sealed; i++) {
    bool twice = quire_pool_table_shadow_at(cache->pool, table, i).v != QUIRE_PAGE_NONE;
    if (below && !twice) { /* nobody may hold a page of the tree without those above it */
      quire_cache_drop_page(cache, quire_pool_table_pages(cache->pool, table, NULL)[i]);
      break;
    }
    below = below || twice;
  }
  request->detached = request->detached || below;
  int32_t copies = quire_pool_table_unshadow(cache->pool, table);
  QUIRE_ASSERT((copies > 0) == below);
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return copies;
}

int32_t quire_cache_request_rematch(struct quire_cache *cache, quire_cache_request handle, const int32_t *tokens,
                                    int32_t count) {
  struct request *request = request_of(cache, handle);
  quire_table_id table = table_of(handle);
  int32_t page_tokens = cache->geometry.page_tokens;
  int32_t reserved;
  quire_pool_table_pages(cache->pool, table, &reserved);
  int32_t limit = count < 1 ? 0 : match_limit(cache, count);
  limit = limit < reserved ? limit : reserved;
  if (request->no_match || request->tokens != request->sealed * page_tokens || limit <= request->sealed ||
      !attached(cache, request, table)) {
    return 0;
  }
  quire_page above = tree_page(cache, table, request->sealed);
  struct quire_radix_chain chain = {request->root, tokens + request->tokens, limit - request->sealed};
  int32_t won = above.v == QUIRE_PAGE_NONE ? quire_radix_match(cache->radix, &chain, cache->matched)
                                           : quire_radix_match_below(cache->radix, above, &chain, cache->matched);
  for (int32_t i = 0; i < won; i++) {
    quire_pool_table_replace(cache->pool, table, request->sealed + i, cache->matched[i]);
  }
  if (won > 0) {
    request->sealed += won;
    request->tokens += won * page_tokens;
    cache->hit_tokens += (int64_t)won * page_tokens;
    touch(cache, request, table);
  }
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return won * page_tokens;
}

/* Puts the pages that were just sealed, the table's from `request->sealed` to `whole`, into the tree. */
static void insert_sealed(struct quire_cache *cache, const struct request *request, quire_table_id table, int32_t whole,
                          const int32_t *tokens) {
  QUIRE_ASSERT(tokens != NULL && request->sealed < whole && !request->detached);
  const quire_page *pages = quire_pool_table_pages(cache->pool, table, NULL);
  quire_page above = tree_page(cache, table, request->sealed);
  struct quire_radix_chain chain = {request->root, tokens + (int64_t)request->sealed * cache->geometry.page_tokens,
                                    whole - request->sealed};
  quire_radix_insert_chain(cache->radix, above, &chain, pages + request->sealed, cache->matched);
  for (int32_t i = request->sealed; i < whole; i++) {
    quire_page there = cache->matched[i - request->sealed];
    if (there.v == pages[i].v) {
      quire_pool_cache(cache->pool, pages[i]);
      cache->inserted_pages++;
    } else { /* holding the tree's page too keeps what this request will hang below it reachable */
      quire_pool_table_shadow(cache->pool, table, i, there);
      cache->duplicate_pages++;
    }
  }
}

enum quire_status quire_cache_request_commit(struct quire_cache *cache, quire_cache_request handle,
                                             int32_t tokens_written, const int32_t *tokens,
                                             struct quire_error *error_out) {
  struct request *request = request_of(cache, handle);
  quire_table_id table = table_of(handle);
  int32_t page_tokens = cache->geometry.page_tokens;
  int32_t count;
  quire_pool_table_pages(cache->pool, table, &count);
  if (tokens_written < request->tokens || pages_for(cache, tokens_written) > count) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "request",
                           "%d tokens said to be written; %d were before, and there are %d pages", tokens_written,
                           request->tokens, count);
  }
  request->detached = !attached(cache, request, table);
  request->tokens = tokens_written;
  int32_t whole = tokens_written / page_tokens;
  if (request->sealed < whole) {
    for (int32_t i = request->sealed; i < whole; i++) {
      quire_pool_table_seal(cache->pool, table, i);
    }
    if (!request->detached) {
      insert_sealed(cache, request, table, whole, tokens);
    }
    request->sealed = whole;
    touch(cache, request, table);
  }
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return QUIRE_OK;
}

/* --- the tree --- */

int32_t quire_cache_evict(struct quire_cache *cache, int32_t pages) {
  int32_t evicted = 0;
  while (evicted < pages) {
    quire_page page = quire_radix_evict_any(cache->radix);
    if (page.v == QUIRE_PAGE_NONE) {
      break;
    }
    quire_pool_uncache(cache->pool, page);
    evicted++;
  }
  cache->evicted_pages += evicted;
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return evicted;
}

int32_t quire_cache_drop_page(struct quire_cache *cache, quire_page page) {
  if (!quire_radix_contains(cache->radix, page)) {
    return 0;
  }
  int32_t dropped = quire_radix_drop(cache->radix, page, on_removed, cache);
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return dropped;
}

int32_t quire_cache_flush(struct quire_cache *cache) {
  cache->flush++;
  int32_t dropped = quire_radix_flush(cache->radix, on_removed, cache);
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return dropped;
}

/* --- commands --- */

int32_t quire_cache_commands(struct quire_cache *cache, struct quire_command *commands_out, int32_t max) {
  int32_t taken = 0;
  for (; taken < max && cache->queue_count > 0; taken++) {
    quire_page page = {cache->queue[cache->queue_first]};
    struct open_command *open = &cache->commands[page.v];
    QUIRE_ASSERT(open->queued && open->pending == 0);
    open->queued = false;
    open->pending = quire_command_storing_ranks(&cache->geometry, page);
    commands_out[taken] = (struct quire_command){
        .op = (uint64_t)open->serial << 32 | (uint32_t)page.v,
        .kind = QUIRE_COMMAND_POISON,
        .ranks = open->pending,
        .page = page,
        .target = {QUIRE_PAGE_NONE},
        .valid_tokens = cache->geometry.page_tokens,
    };
    QUIRE_DEBUG(quire_command_check(&cache->geometry, &commands_out[taken], NULL));
    cache->queue_first = (cache->queue_first + 1) % cache->geometry.pages;
    cache->queue_count--;
  }
  return taken;
}

enum quire_status quire_cache_ack(struct quire_cache *cache, const struct quire_ack *ack,
                                  struct quire_error *error_out) {
  uint64_t page = ack->op & UINT32_MAX;
  bool known = page < (uint64_t)cache->geometry.pages && ack->rank.v >= 0 && ack->rank.v < cache->geometry.ranks;
  struct open_command *open = known ? &cache->commands[page] : NULL;
  if (open == NULL || open->serial != ack->op >> 32 || (open->pending >> ack->rank.v & 1) == 0) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "cache", "rank %d answers operation %#llx, which is not open",
                           ack->rank.v, (unsigned long long)ack->op);
  }
  quire_page id = {(int32_t)page};
  open->pending &= ~(1u << ack->rank.v);
  if (ack->status != QUIRE_OK) {
    open->failed = true;
    quire_pool_lose(cache->pool, id);
  }
  if (open->pending == 0 && !open->failed) {
    quire_pool_unpin(cache->pool, id);
  }
  QUIRE_EXPENSIVE(quire_cache_check(cache, NULL));
  return QUIRE_OK;
}

/* --- insight --- */

void quire_cache_stats(const struct quire_cache *cache, struct quire_cache_stats *stats_out) {
  struct quire_pool_counts counts;
  quire_pool_count(cache->pool, &counts);
  QUIRE_ASSERT(counts.free + counts.filling + counts.sealed + counts.quarantined == counts.total);
  int32_t requests = 0;
  for (int32_t i = 0; i < cache->requests_max; i++) {
    requests += cache->requests[i].serial != 0;
  }
  *stats_out = (struct quire_cache_stats){
      .pages = counts.total,
      .free = counts.free,
      .filling = counts.filling,
      .sealed = counts.sealed,
      .quarantined = counts.quarantined,
      .cached = counts.cached,
      .evictable = counts.evictable,
      .lost = counts.lost,
      .refs = counts.refs,
      .pins = counts.pins,
      .requests = requests,
      .healthy = quire_pool_healthy(cache->pool),
      .fill_tokens = cache->fill_tokens,
      .hit_tokens = cache->hit_tokens,
      .inserted_pages = cache->inserted_pages,
      .duplicate_pages = cache->duplicate_pages,
      .evicted_pages = cache->evicted_pages,
      .refusals = cache->refusals,
  };
}

bool quire_cache_healthy(const struct quire_cache *cache) { return quire_pool_healthy(cache->pool); }

int32_t quire_cache_available(const struct quire_cache *cache) { return (int32_t)quire_pool_available(cache->pool); }

int32_t quire_cache_coming(const struct quire_cache *cache) { return quire_pool_coming(cache->pool); }

struct quire_hash128 quire_cache_root(const struct quire_cache *cache) {
  return cache->root;
}

int64_t quire_cache_bundle_bytes(const struct quire_cache *cache) { return cache->bundle_bytes; }

static bool fault(struct quire_error *why_out, const char *text, int32_t number) {
  QUIRE_ASSERT(text != NULL);
  quire_error_set(why_out, QUIRE_ERR_STATE, "cache", "%s (%d)", text, number);
  return false;
}

static bool check_page(const struct quire_cache *cache, quire_page page, struct quire_error *why_out) {
  QUIRE_ASSERT(page.v >= 0 && page.v < cache->geometry.pages);
  const struct open_command *open = &cache->commands[page.v];
  bool cached = quire_pool_page_cached(cache->pool, page);
  if (cached != quire_radix_contains(cache->radix, page)) {
    return fault(why_out, "tree and pool disagree whether a page is cached", page.v);
  }
  if (cached && quire_pool_page_state(cache->pool, page) != QUIRE_PAGE_SEALED) {
    return fault(why_out, "a page that is not complete can be matched", page.v);
  }
  if (cached && quire_radix_held(cache->radix, page) != (quire_pool_page_refs(cache->pool, page) > 0)) {
    return fault(why_out, "tree and pool disagree whether a page is held", page.v);
  }
  if ((open->queued || open->pending != 0) && quire_pool_page_state(cache->pool, page) != QUIRE_PAGE_QUARANTINED) {
    return fault(why_out, "a page with an open command is in use", page.v);
  }
  return true;
}

static bool check_request(const struct quire_cache *cache, int32_t slot, struct quire_error *why_out) {
  QUIRE_ASSERT(slot >= 0 && slot < cache->requests_max);
  const struct request *request = &cache->requests[slot];
  quire_table_id table = {slot};
  int32_t count;
  const quire_page *pages = quire_pool_table_pages(cache->pool, table, &count);
  if (request->sealed > count || request->tokens / cache->geometry.page_tokens != request->sealed ||
      pages_for(cache, request->tokens) > count) {
    return fault(why_out, "a request has more tokens than pages, or than it sealed", slot);
  }
  bool in_tree = attached(cache, request, table);
  for (int32_t i = 0; i < count; i++) {
    enum quire_page_state state = quire_pool_page_state(cache->pool, pages[i]);
    if (state != (i < request->sealed ? QUIRE_PAGE_SEALED : QUIRE_PAGE_FILLING)) {
      return fault(why_out, "a page of a request is sealed too early or too late", pages[i].v);
    }
    quire_page page = i < request->sealed ? tree_page(cache, table, i + 1) : pages[i];
    if (in_tree && i < request->sealed &&
        (!quire_radix_contains(cache->radix, page) ||
         quire_radix_parent(cache->radix, page).v != tree_page(cache, table, i).v)) {
      return fault(why_out, "the pages of a request are no path of the tree", page.v);
    }
  }
  return true;
}

bool quire_cache_check(const struct quire_cache *cache, struct quire_error *why_out) {
  QUIRE_ASSERT(cache != NULL);
  if (!quire_pool_check(cache->pool, why_out) || !quire_radix_check(cache->radix, why_out)) {
    return false;
  }
  int32_t queued = 0;
  for (int32_t page = 0; page < cache->geometry.pages; page++) {
    queued += cache->commands[page].queued;
    if (!check_page(cache, (quire_page){page}, why_out)) {
      return false;
    }
  }
  if (queued != cache->queue_count) {
    return fault(why_out, "commands queued and pages that wait for one differ", queued);
  }
  for (int32_t slot = 0; slot < cache->requests_max; slot++) {
    if (cache->requests[slot].serial != 0 && !check_request(cache, slot, why_out)) {
      return false;
    }
  }
  return true;
}

struct quire_hash128 quire_cache_digest(const struct quire_cache *cache) {
  QUIRE_ASSERT(cache != NULL);
  struct quire_hash128_stream stream;
  struct quire_hash128 parts[2] = {quire_pool_digest(cache->pool), quire_radix_digest(cache->radix)};
  quire_hash128_begin(&stream, 0);
  quire_hash128_add(&stream, parts, sizeof parts);
  for (int32_t i = 0; i < cache->requests_max; i++) {
    const struct request *request = &cache->requests[i];
    int64_t record[] = {request->serial,   request->tokens,   request->sealed,
                        request->no_match, request->detached, request->serial == 0 || request->flush == cache->flush};
    quire_hash128_add(&stream, record, sizeof record);
  }
  for (int32_t page = 0; page < cache->geometry.pages; page++) {
    const struct open_command *open = &cache->commands[page];
    int64_t record[] = {open->queued, open->pending, open->failed};
    quire_hash128_add(&stream, record, sizeof record);
  }
  return quire_hash128_end(&stream);
}
