/* Every change of a page goes through account(-1), change, account(+1): what a page adds to the sums of its stripe is
 * written once, and quire_pool_check adds the same up from nothing. */
#include "pool/pool.h"

#include <stddef.h>
#include <string.h>

#include "base/assert.h"
#include "base/bitmap.h"
#include "layout/carve.h"

#define TABLES_MAX 65536
#define TABLE_PAGES_MAX (1 << 22)

enum page_flags {
  PAGE_CACHED = 1,
  PAGE_LOST = 2,
  PAGE_TOLD = 4, /* the retired hook has seen this page since it left use */
};

struct page {
  uint8_t state; /* enum quire_page_state */
  uint8_t flags;
  uint16_t reserved;
  int32_t refs;
  int32_t pins;
};

struct stripe {
  int32_t *free_pages; /* stack of the ids of free pages */
  struct quire_pool_counts counts;
};

struct table {
  bool open;
  int32_t count;
  int32_t own;                    /* pages appended by extend */
  int32_t chain[QUIRE_RANKS_MAX]; /* pages of the table by stripe */
  quire_page *pages;
  quire_page *shadows;
};

struct quire_pool {
  const struct quire_env *env;
  size_t bytes;
  struct quire_pool_config config;
  struct quire_pool_hooks hooks;
  int32_t stripe_count;
  struct stripe stripes[QUIRE_RANKS_MAX];
  struct page *pages;
  struct table *tables;
  uint64_t *open_tables; /* a bit a table */
  int32_t *scratch;      /* [pages], of quire_pool_check */
};

/* Pages an allocation takes from each stripe, and what its chain then has there. */
struct plan {
  int32_t need[QUIRE_RANKS_MAX];
  int32_t chain[QUIRE_RANKS_MAX];
  bool free_only; /* nothing is evicted */
};

/* --- creation --- */

static const char *config_fault(const struct quire_pool_config *config) {
  QUIRE_ASSERT(config != NULL);
  if (!quire_geometry_valid(&config->geometry)) {
    return "the geometry is not valid";
  }
  if (config->tables < 1 || config->tables > TABLES_MAX) {
    return "page tables must be 1 to 65,536";
  }
  if (config->table_pages < 1 || config->table_pages > TABLE_PAGES_MAX) {
    return "pages a table must be 1 to 4,194,304";
  }
  if (config->chain_spread_max < 0 || config->lost_max < 0) {
    return "limits must not be negative";
  }
  return NULL;
}

static struct quire_pool *carve_pool(const struct quire_pool_config *config, struct quire_carve *carve) {
  QUIRE_ASSERT(config_fault(config) == NULL);
  struct quire_pool *pool = quire_carve(carve, 1, sizeof *pool);
  struct page *pages = quire_carve(carve, config->geometry.pages, sizeof *pages);
  int32_t *free_pages = quire_carve(carve, config->geometry.pages, sizeof *free_pages);
  int32_t *scratch = quire_carve(carve, config->geometry.pages, sizeof *scratch);
  struct table *tables = quire_carve(carve, config->tables, sizeof *tables);
  uint64_t *open_tables = quire_carve(carve, (int64_t)quire_bitmap_words(config->tables), sizeof *open_tables);
  int64_t entries = (int64_t)config->tables * config->table_pages;
  quire_page *table_pages = quire_carve(carve, entries, sizeof *table_pages);
  quire_page *table_shadows = quire_carve(carve, entries, sizeof *table_shadows);
  if (pool == NULL) {
    return NULL;
  }
  pool->pages = pages;
  pool->scratch = scratch;
  pool->tables = tables;
  pool->open_tables = open_tables;
  pool->stripe_count = config->geometry.storage_ranks;
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    pool->stripes[s].free_pages = free_pages;
    free_pages += quire_geometry_local_pages(&config->geometry, (quire_stripe_id){s});
  }
  for (int32_t t = 0; t < config->tables; t++) {
    tables[t].pages = table_pages + (int64_t)t * config->table_pages;
    tables[t].shadows = table_shadows + (int64_t)t * config->table_pages;
  }
  return pool;
}

int64_t quire_pool_bytes(const struct quire_pool_config *config) {
  if (config_fault(config) != NULL) {
    return 0;
  }
  struct quire_carve carve = {NULL, 0};
  carve_pool(config, &carve);
  QUIRE_ASSERT(carve.used > 0 && carve.used <= INT64_MAX);
  return (int64_t)carve.used;
}

enum quire_status quire_pool_create(const struct quire_env *env, const struct quire_pool_config *config,
                                    const struct quire_pool_hooks *hooks, struct quire_pool **pool_out,
                                    struct quire_error *error_out) {
  const char *fault = config_fault(config);
  if (fault != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "pool", "%s", fault);
  }
  size_t bytes = (size_t)quire_pool_bytes(config);
  struct quire_carve carve = {quire_env_zalloc(env, 1, bytes), 0};
  if (carve.base == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "pool", "no memory for %zu bytes of page states", bytes);
  }
  struct quire_pool *pool = carve_pool(config, &carve);
  QUIRE_ASSERT(carve.used == bytes);
  pool->env = env;
  pool->bytes = bytes;
  pool->config = *config;
  if (hooks != NULL) {
    pool->hooks = *hooks;
  }
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    struct stripe *stripe = &pool->stripes[s];
    stripe->counts.total = quire_geometry_local_pages(&config->geometry, (quire_stripe_id){s});
    stripe->counts.free = stripe->counts.total;
    for (int32_t i = 0; i < stripe->counts.total; i++) { /* lowest page on top */
      quire_local_page local = {stripe->counts.total - 1 - i};
      stripe->free_pages[i] = quire_page_of_local(&config->geometry, (quire_stripe_id){s}, local).v;
    }
  }
  *pool_out = pool;
  return QUIRE_OK;
}

void quire_pool_destroy(struct quire_pool *pool) {
  if (pool != NULL) {
    quire_env_free(pool->env, pool, 1, pool->bytes);
  }
}

/* --- one page --- */

static int32_t stripe_of(const struct quire_pool *pool, quire_page page) {
  return quire_page_owner(&pool->config.geometry, page).v;
}

static struct page *page_of(const struct quire_pool *pool, quire_page page) {
  QUIRE_ASSERT(page.v >= 0 && page.v < pool->config.geometry.pages);
  return &pool->pages[page.v];
}

static bool in_use(const struct page *page) { return page->refs > 0 || page->pins > 0; }

/* The sum that a page of a state belongs to. */
static int32_t *state_sum(struct quire_pool_counts *counts, uint8_t state) {
  QUIRE_DEBUG(state <= QUIRE_PAGE_QUARANTINED);
  static const uint8_t offsets[] = {
      [QUIRE_PAGE_FREE] = offsetof(struct quire_pool_counts, free),
      [QUIRE_PAGE_FILLING] = offsetof(struct quire_pool_counts, filling),
      [QUIRE_PAGE_SEALED] = offsetof(struct quire_pool_counts, sealed),
      [QUIRE_PAGE_QUARANTINED] = offsetof(struct quire_pool_counts, quarantined),
  };
  return (int32_t *)(void *)((uint8_t *)counts + offsets[state]);
}

static void account(struct quire_pool_counts *counts, const struct page *page, int32_t sign) {
  QUIRE_DEBUG(sign == 1 || sign == -1);
  *state_sum(counts, page->state) += sign;
  counts->refs += sign * page->refs;
  counts->pins += sign * page->pins;
  if (page->flags != 0) {
    bool cached = (page->flags & PAGE_CACHED) != 0;
    counts->cached += cached ? sign : 0;
    counts->evictable += cached && !in_use(page) ? sign : 0;
    counts->lost += page->state == QUIRE_PAGE_QUARANTINED && (page->flags & PAGE_LOST) != 0 ? sign : 0;
  }
}

/* The only writer of a page's record. The page is of this stripe: whoever has several things to do with a page divides
 * for it once. */
static inline void change_in(struct quire_pool *pool, int32_t stripe, quire_page id, struct page to) {
  struct page *page = page_of(pool, id);
  struct quire_pool_counts *counts = &pool->stripes[stripe].counts;
  bool held_before = (page->flags & PAGE_CACHED) != 0 && in_use(page);
  QUIRE_ASSERT(to.refs >= 0 && to.pins >= 0);
  account(counts, page, -1);
  *page = to;
  account(counts, page, +1);
  bool held = (to.flags & PAGE_CACHED) != 0 && in_use(&to);
  if (held != held_before && (to.flags & PAGE_CACHED) != 0 && pool->hooks.held != NULL) {
    pool->hooks.held(pool->hooks.context, id, held);
  }
}

static void change(struct quire_pool *pool, quire_page id, struct page to) {
  change_in(pool, stripe_of(pool, id), id, to);
}

static void make_free(struct quire_pool *pool, int32_t in, quire_page id) {
  struct stripe *stripe = &pool->stripes[in];
  QUIRE_DEBUG(in >= 0 && in < pool->stripe_count && stripe_of(pool, id) == in);
  stripe->free_pages[stripe->counts.free] = id.v;
  change_in(pool, in, id, (struct page){.state = QUIRE_PAGE_FREE});
}

/* A quarantined page without pins is free, unless the hook pins it once more. */
static void settle(struct quire_pool *pool, quire_page id) {
  struct page *page = page_of(pool, id);
  QUIRE_ASSERT(page->state == QUIRE_PAGE_QUARANTINED && page->refs == 0 && page->pins == 0);
  if (pool->hooks.retired != NULL && (page->flags & PAGE_TOLD) == 0) {
    page->flags |= PAGE_TOLD;
    pool->hooks.retired(pool->hooks.context, id);
    if (page->pins > 0) {
      return;
    }
  }
  make_free(pool, stripe_of(pool, id), id);
}

static void retire(struct quire_pool *pool, quire_page id) {
  struct page to = *page_of(pool, id);
  QUIRE_ASSERT(to.refs == 0 && (to.flags & PAGE_CACHED) == 0);
  QUIRE_ASSERT(to.state == QUIRE_PAGE_FILLING || to.state == QUIRE_PAGE_SEALED);
  to.state = QUIRE_PAGE_QUARANTINED;
  change(pool, id, to);
  if (to.pins == 0) {
    settle(pool, id);
  }
}

static void ref(struct quire_pool *pool, quire_page id) {
  struct page to = *page_of(pool, id);
  QUIRE_ASSERT(to.state == QUIRE_PAGE_SEALED);
  to.refs++;
  change(pool, id, to);
}

static void unref(struct quire_pool *pool, int32_t stripe, quire_page id) {
  struct page to = *page_of(pool, id);
  QUIRE_ASSERT(to.refs > 0);
  if (to.refs == 1 && to.pins == 0 && to.flags == 0 && pool->hooks.retired == NULL) {
    make_free(pool, stripe, id); /* retired and settled in one */
    return;
  }
  to.refs--;
  change_in(pool, stripe, id, to);
  if (to.refs == 0 && (to.flags & PAGE_CACHED) == 0) {
    retire(pool, id);
  }
}

void quire_pool_cache(struct quire_pool *pool, quire_page page) {
  struct page to = *page_of(pool, page);
  QUIRE_ASSERT(to.state == QUIRE_PAGE_SEALED && (to.flags & PAGE_CACHED) == 0);
  to.flags |= PAGE_CACHED;
  change(pool, page, to);
}

void quire_pool_uncache(struct quire_pool *pool, quire_page page) {
  struct page to = *page_of(pool, page);
  QUIRE_ASSERT(to.state == QUIRE_PAGE_SEALED && (to.flags & PAGE_CACHED) != 0);
  to.flags &= (uint8_t)~PAGE_CACHED;
  change(pool, page, to);
  if (to.refs == 0) {
    retire(pool, page);
  }
}

void quire_pool_pin(struct quire_pool *pool, quire_page page) {
  struct page to = *page_of(pool, page);
  QUIRE_ASSERT(to.state != QUIRE_PAGE_FREE);
  to.pins++;
  change(pool, page, to);
}

void quire_pool_unpin(struct quire_pool *pool, quire_page page) {
  struct page to = *page_of(pool, page);
  QUIRE_ASSERT(to.pins > 0);
  to.pins--;
  if (to.pins == 0) {
    to.flags &= (uint8_t)~PAGE_LOST;
  }
  change(pool, page, to);
  if (to.pins == 0 && to.state == QUIRE_PAGE_QUARANTINED) {
    settle(pool, page);
  }
}

void quire_pool_lose(struct quire_pool *pool, quire_page page) {
  struct page to = *page_of(pool, page);
  QUIRE_ASSERT(to.pins > 0);
  to.flags |= PAGE_LOST;
  change(pool, page, to);
}

enum quire_page_state quire_pool_page_state(const struct quire_pool *pool, quire_page page) {
  return (enum quire_page_state)page_of(pool, page)->state;
}

bool quire_pool_page_cached(const struct quire_pool *pool, quire_page page) {
  return (page_of(pool, page)->flags & PAGE_CACHED) != 0;
}

int32_t quire_pool_page_refs(const struct quire_pool *pool, quire_page page) { return page_of(pool, page)->refs; }

/* --- the choice of stripes --- */

static int32_t evictable_of(const struct quire_pool *pool, int32_t stripe) {
  return pool->hooks.evict == NULL ? 0 : pool->stripes[stripe].counts.evictable;
}

static int32_t room_of(const struct quire_pool *pool, const struct plan *plan, int32_t stripe) {
  QUIRE_DEBUG(stripe >= 0 && stripe < pool->stripe_count);
  int32_t evictable = plan->free_only ? 0 : evictable_of(pool, stripe);
  return pool->stripes[stripe].counts.free + evictable - plan->need[stripe];
}

static int32_t spread_of(const struct quire_pool *pool, const struct plan *plan) {
  int32_t least = plan->chain[0];
  int32_t most = plan->chain[0];
  QUIRE_DEBUG(least >= 0);
  for (int32_t s = 1; s < pool->stripe_count; s++) {
    least = plan->chain[s] < least ? plan->chain[s] : least;
    most = plan->chain[s] > most ? plan->chain[s] : most;
  }
  return most - least;
}

/* Most free pages, then most evictable ones, then fewest of this chain, then the first in turn from `preferred`. */
static int32_t richest_stripe(const struct quire_pool *pool, const struct plan *plan, int32_t preferred) {
  QUIRE_DEBUG(preferred >= 0 && preferred < pool->stripe_count);
  int32_t best = -1;
  int32_t best_free = 0;
  int32_t best_room = 0;
  for (int32_t i = 0; i < pool->stripe_count; i++) {
    int32_t s = (preferred + i) % pool->stripe_count;
    int32_t room = room_of(pool, plan, s);
    int32_t free_left = pool->stripes[s].counts.free - plan->need[s];
    free_left = free_left < 0 ? 0 : free_left;
    if (room <= 0) {
      continue;
    }
    bool better = best < 0 || free_left > best_free || (free_left == best_free && room > best_room) ||
                  (free_left == best_free && room == best_room && plan->chain[s] < plan->chain[best]);
    if (better) {
      best = s;
      best_free = free_left;
      best_room = room;
    }
  }
  return best;
}

/* Writes the stripe of each page to come behind the table's last entry. There is room for all of them. */
static void plan_stripes(const struct quire_pool *pool, const struct table *table, int32_t count, struct plan *plan) {
  memcpy(plan->chain, table->chain, sizeof plan->chain);
  int32_t last = table->count == 0 ? pool->stripe_count - 1 : stripe_of(pool, table->pages[table->count - 1]);
  for (int32_t i = 0; i < count; i++) {
    int32_t stripe = last + 1 == pool->stripe_count ? 0 : last + 1;
    bool branch = table->own == 0 && i == 0;
    if (branch || room_of(pool, plan, stripe) <= 0 || spread_of(pool, plan) > pool->config.chain_spread_max) {
      stripe = richest_stripe(pool, plan, stripe);
    }
    QUIRE_ASSERT(stripe >= 0);
    plan->need[stripe]++;
    plan->chain[stripe]++;
    table->pages[table->count + i].v = stripe;
    last = stripe;
  }
}

static int64_t free_pages(const struct quire_pool *pool) {
  int64_t pages = 0;
  QUIRE_DEBUG(pool->stripe_count > 0);
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    pages += pool->stripes[s].counts.free;
  }
  return pages;
}

/* Pages of a stripe that are free or will be without anybody's further doing. */
static int32_t coming_of(const struct quire_pool_counts *counts) {
  return counts->free + counts->quarantined - counts->lost;
}

/* Evicts until every stripe has, or will have, what the plan takes. */
static void make_room(struct quire_pool *pool, const struct plan *plan) {
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    const struct quire_pool_counts *counts = &pool->stripes[s].counts;
    while (coming_of(counts) < plan->need[s]) {
      QUIRE_ASSERT(counts->evictable > 0);
      int64_t before = quire_pool_available(pool);
      pool->hooks.evict(pool->hooks.context, (quire_stripe_id){s});
      QUIRE_ASSERT(quire_pool_available(pool) >= before - 1);
    }
  }
}

int64_t quire_pool_available(const struct quire_pool *pool) {
  int64_t available = 0;
  QUIRE_DEBUG(pool != NULL && pool->stripe_count > 0);
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    available += pool->stripes[s].counts.free + evictable_of(pool, s);
  }
  return available;
}

int32_t quire_pool_coming(const struct quire_pool *pool) {
  int32_t coming = 0;
  QUIRE_DEBUG(pool != NULL && pool->stripe_count > 0);
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    coming += pool->stripes[s].counts.quarantined - pool->stripes[s].counts.lost;
  }
  return coming;
}

/* --- page tables --- */

static struct table *table_of(const struct quire_pool *pool, quire_table_id id) {
  QUIRE_ASSERT(id.v >= 0 && id.v < pool->config.tables && pool->tables[id.v].open);
  return &pool->tables[id.v];
}

enum quire_status quire_pool_table_open(struct quire_pool *pool, quire_table_id *table_out) {
  int32_t t = (int32_t)quire_bitmap_next_zero(pool->open_tables, pool->config.tables, 0);
  if (t < 0) {
    return QUIRE_ERR_AGAIN;
  }
  QUIRE_ASSERT(!pool->tables[t].open && pool->tables[t].count == 0 && pool->tables[t].own == 0);
  pool->tables[t].open = true;
  quire_bitmap_set(pool->open_tables, t);
  table_out->v = t;
  return QUIRE_OK;
}

static void append(const struct quire_pool *pool, struct table *table, int32_t stripe, quire_page page) {
  QUIRE_ASSERT(table->count < pool->config.table_pages);
  table->shadows[table->count].v = QUIRE_PAGE_NONE;
  table->pages[table->count++] = page;
  table->chain[stripe]++;
}

void quire_pool_table_share(struct quire_pool *pool, quire_table_id id, quire_page page) {
  struct table *table = table_of(pool, id);
  QUIRE_ASSERT(table->own == 0);
  ref(pool, page);
  append(pool, table, stripe_of(pool, page), page);
}

enum quire_status quire_pool_table_extend(struct quire_pool *pool, quire_table_id id, int32_t count) {
  struct table *table = table_of(pool, id);
  QUIRE_ASSERT(count >= 0);
  if (count > pool->config.table_pages - table->count) {
    return QUIRE_ERR_ARGUMENT;
  }
  if (count > quire_pool_available(pool)) {
    return QUIRE_ERR_AGAIN;
  }
  /* Where evicted pages come back late, those that are free now must do if they are enough: else a request that was
   * told to try again would evict others each time. */
  struct plan plan = {.free_only = pool->hooks.retired != NULL && count <= free_pages(pool)};
  plan_stripes(pool, table, count, &plan);
  make_room(pool, &plan);
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    if (pool->stripes[s].counts.free < plan.need[s]) {
      return QUIRE_ERR_AGAIN;
    }
  }
  for (int32_t i = 0; i < count; i++) {
    int32_t in = table->pages[table->count].v;
    const struct stripe *stripe = &pool->stripes[in];
    quire_page page = {stripe->free_pages[stripe->counts.free - 1]};
    QUIRE_ASSERT(page_of(pool, page)->state == QUIRE_PAGE_FREE);
    change_in(pool, in, page, (struct page){.state = QUIRE_PAGE_FILLING, .refs = 1});
    append(pool, table, in, page);
    table->own++;
  }
  return QUIRE_OK;
}

void quire_pool_table_seal(struct quire_pool *pool, quire_table_id id, int32_t index) {
  struct table *table = table_of(pool, id);
  QUIRE_ASSERT(index >= 0 && index < table->count);
  struct page to = *page_of(pool, table->pages[index]);
  QUIRE_ASSERT(to.state == QUIRE_PAGE_FILLING && to.refs == 1);
  to.state = QUIRE_PAGE_SEALED;
  change(pool, table->pages[index], to);
}

void quire_pool_table_replace(struct quire_pool *pool, quire_table_id id, int32_t index, quire_page page) {
  struct table *table = table_of(pool, id);
  QUIRE_ASSERT(index >= 0 && index < table->count && table->shadows[index].v == QUIRE_PAGE_NONE);
  quire_page old = table->pages[index];
  QUIRE_ASSERT(page_of(pool, old)->state == QUIRE_PAGE_FILLING);
  ref(pool, page);
  table->pages[index] = page;
  int32_t old_stripe = stripe_of(pool, old);
  table->chain[stripe_of(pool, page)]++;
  table->chain[old_stripe]--;
  unref(pool, old_stripe, old);
}

void quire_pool_table_shadow(struct quire_pool *pool, quire_table_id id, int32_t index, quire_page page) {
  struct table *table = table_of(pool, id);
  QUIRE_ASSERT(index >= 0 && index < table->count && table->shadows[index].v == QUIRE_PAGE_NONE);
  QUIRE_ASSERT(page.v != table->pages[index].v);
  ref(pool, page);
  table->shadows[index] = page;
}

int32_t quire_pool_table_unshadow(struct quire_pool *pool, quire_table_id id) {
  struct table *table = table_of(pool, id);
  int32_t shadows = 0;
  for (int32_t i = table->count - 1; i >= 0; i--) {
    quire_page shadow = table->shadows[i];
    if (shadow.v != QUIRE_PAGE_NONE) {
      table->shadows[i].v = QUIRE_PAGE_NONE;
      unref(pool, stripe_of(pool, shadow), shadow);
      shadows++;
    }
  }
  QUIRE_ASSERT(shadows <= table->count);
  return shadows;
}

/* From the end, so that what hangs below a page lets go before it does. */
void quire_pool_table_truncate(struct quire_pool *pool, quire_table_id id, int32_t index) {
  struct table *table = table_of(pool, id);
  QUIRE_ASSERT(index >= 0 && index <= table->count);
  while (table->count > index) {
    int32_t last = --table->count;
    quire_page page = table->pages[last];
    quire_page shadow = table->shadows[last];
    int32_t stripe = stripe_of(pool, page);
    table->chain[stripe]--;
    if (shadow.v != QUIRE_PAGE_NONE) {
      table->shadows[last].v = QUIRE_PAGE_NONE;
      unref(pool, stripe_of(pool, shadow), shadow);
    }
    unref(pool, stripe, page);
  }
  /* An emptied table begins a chain anew; one cut in the middle is no longer at a branch. */
  table->own = table->count == 0 ? 0 : table->own;
}

void quire_pool_table_close(struct quire_pool *pool, quire_table_id id) {
  quire_pool_table_truncate(pool, id, 0);
  QUIRE_DEBUG(table_of(pool, id)->count == 0 && table_of(pool, id)->own == 0);
  table_of(pool, id)->open = false;
  quire_bitmap_clear(pool->open_tables, id.v);
}

const quire_page *quire_pool_table_pages(const struct quire_pool *pool, quire_table_id id, int32_t *count_out) {
  const struct table *table = table_of(pool, id);
  QUIRE_DEBUG(table->count >= 0 && table->count <= pool->config.table_pages);
  if (count_out != NULL) {
    *count_out = table->count;
  }
  return table->pages;
}

quire_page quire_pool_table_shadow_at(const struct quire_pool *pool, quire_table_id id, int32_t index) {
  const struct table *table = table_of(pool, id);
  QUIRE_ASSERT(index >= 0 && index < table->count);
  return table->shadows[index];
}

/* --- sums and checks --- */

static void add_counts(struct quire_pool_counts *to, const struct quire_pool_counts *more) {
  QUIRE_ASSERT(to != more);
  to->total += more->total;
  to->free += more->free;
  to->filling += more->filling;
  to->sealed += more->sealed;
  to->quarantined += more->quarantined;
  to->cached += more->cached;
  to->evictable += more->evictable;
  to->lost += more->lost;
  to->refs += more->refs;
  to->pins += more->pins;
}

void quire_pool_count(const struct quire_pool *pool, struct quire_pool_counts *counts_out) {
  QUIRE_ASSERT(pool != NULL && counts_out != NULL);
  struct quire_pool_counts counts = {0};
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    add_counts(&counts, &pool->stripes[s].counts);
  }
  *counts_out = counts;
}

void quire_pool_stripe_count(const struct quire_pool *pool, quire_stripe_id stripe,
                             struct quire_pool_counts *counts_out) {
  QUIRE_ASSERT(stripe.v >= 0 && stripe.v < pool->stripe_count);
  *counts_out = pool->stripes[stripe.v].counts;
}

bool quire_pool_healthy(const struct quire_pool *pool) {
  struct quire_pool_counts counts;
  quire_pool_count(pool, &counts);
  QUIRE_ASSERT(counts.total == pool->config.geometry.pages);
  return counts.lost <= pool->config.lost_max;
}

static bool fault(struct quire_error *why_out, const char *text, int32_t number) {
  QUIRE_ASSERT(text != NULL);
  quire_error_set(why_out, QUIRE_ERR_STATE, "pool", "%s (%d)", text, number);
  return false;
}

static bool check_pages(const struct quire_pool *pool, struct quire_error *why_out) {
  QUIRE_ASSERT(pool->stripe_count <= QUIRE_RANKS_MAX);
  struct quire_pool_counts sums[QUIRE_RANKS_MAX] = {0};
  for (int32_t i = 0; i < pool->config.geometry.pages; i++) {
    const struct page *page = &pool->pages[i];
    struct quire_pool_counts *sum = &sums[stripe_of(pool, (quire_page){i})];
    bool cached = (page->flags & PAGE_CACHED) != 0;
    sum->total++;
    account(sum, page, 1);
    if (page->state == QUIRE_PAGE_FREE && (in_use(page) || page->flags != 0)) {
      return fault(why_out, "a free page has users or marks", i);
    }
    if (page->state == QUIRE_PAGE_FILLING && (page->refs != 1 || cached)) {
      return fault(why_out, "a filling page is not private to one request", i);
    }
    if (page->state == QUIRE_PAGE_SEALED && page->refs == 0 && !cached) {
      return fault(why_out, "a sealed page belongs to nobody", i);
    }
    if (page->state == QUIRE_PAGE_QUARANTINED && (page->refs != 0 || cached || page->pins == 0)) {
      return fault(why_out, "a quarantined page is referred to, cached, or waits for nothing", i);
    }
    if ((page->flags & PAGE_LOST) != 0 && page->pins == 0) {
      return fault(why_out, "a lost page without a pin", i);
    }
  }
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    const struct quire_pool_counts *counts = &pool->stripes[s].counts;
    if (memcmp(&sums[s], counts, sizeof *counts) != 0) {
      return fault(why_out, "the sums of a stripe are not those of its pages", s);
    }
    if (counts->free + counts->filling + counts->sealed + counts->quarantined != counts->total) {
      return fault(why_out, "the states of a stripe do not add up", s);
    }
  }
  return true;
}

static bool check_free_lists(const struct quire_pool *pool, struct quire_error *why_out) {
  QUIRE_ASSERT(pool->scratch != NULL);
  memset(pool->scratch, 0, (size_t)pool->config.geometry.pages * sizeof *pool->scratch);
  for (int32_t s = 0; s < pool->stripe_count; s++) {
    for (int32_t i = 0; i < pool->stripes[s].counts.free; i++) {
      quire_page page = {pool->stripes[s].free_pages[i]};
      if (page.v < 0 || page.v >= pool->config.geometry.pages || stripe_of(pool, page) != s ||
          pool->pages[page.v].state != QUIRE_PAGE_FREE || pool->scratch[page.v]++ != 0) {
        return fault(why_out, "a free list holds what it should not", page.v);
      }
    }
  }
  return true;
}

static bool check_tables(const struct quire_pool *pool, struct quire_error *why_out) {
  QUIRE_ASSERT(pool->scratch != NULL);
  memset(pool->scratch, 0, (size_t)pool->config.geometry.pages * sizeof *pool->scratch);
  for (int32_t t = 0; t < pool->config.tables; t++) {
    const struct table *table = &pool->tables[t];
    int32_t chain[QUIRE_RANKS_MAX] = {0};
    if (table->open != quire_bitmap_test(pool->open_tables, t)) {
      return fault(why_out, "a page table is open and not, or not and open", t);
    }
    if (!table->open && table->count != 0) {
      return fault(why_out, "a closed page table has pages", t);
    }
    for (int32_t i = 0; i < table->count; i++) {
      chain[stripe_of(pool, table->pages[i])]++;
      pool->scratch[table->pages[i].v]++;
      if (table->shadows[i].v != QUIRE_PAGE_NONE) {
        pool->scratch[table->shadows[i].v]++;
      }
    }
    if (memcmp(chain, table->chain, sizeof chain) != 0) {
      return fault(why_out, "the stripes of a page table are miscounted", t);
    }
  }
  for (int32_t i = 0; i < pool->config.geometry.pages; i++) {
    if (pool->scratch[i] != pool->pages[i].refs) {
      return fault(why_out, "references of a page are not the tables that hold it", i);
    }
  }
  return true;
}

bool quire_pool_check(const struct quire_pool *pool, struct quire_error *why_out) {
  return check_pages(pool, why_out) && check_free_lists(pool, why_out) && check_tables(pool, why_out);
}

struct quire_hash128 quire_pool_digest(const struct quire_pool *pool) {
  QUIRE_ASSERT(pool != NULL && pool->config.tables > 0);
  struct quire_hash128_stream stream;
  quire_hash128_begin(&stream, 0);
  quire_hash128_add(&stream, pool->pages, (size_t)pool->config.geometry.pages * sizeof *pool->pages);
  for (int32_t t = 0; t < pool->config.tables; t++) {
    const struct table *table = &pool->tables[t];
    int32_t head[3] = {table->open, table->count, table->own};
    quire_hash128_add(&stream, head, sizeof head);
    quire_hash128_add(&stream, table->pages, (size_t)table->count * sizeof *table->pages);
    quire_hash128_add(&stream, table->shadows, (size_t)table->count * sizeof *table->shadows);
  }
  return quire_hash128_end(&stream);
}
