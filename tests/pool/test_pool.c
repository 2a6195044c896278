/* The pool against a flat model: arrays of pages and tables, every sum recounted, the choice of stripes written down a
 * second time. A stand-in for the tree evicts any page without users; operations in flight end at random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "pool/pool.h"
#include "support/fail_env.h"
#include "support/seed.h"

#define PAGES 45
#define TABLES 6
#define TABLE_PAGES 14

struct model_page {
  int state;
  int32_t refs, pins;
  bool cached, lost;
  bool poisoning; /* one of the pins is the retired hook's */
};

struct model_table {
  bool open;
  int32_t count, own;
  int32_t pages[TABLE_PAGES];
  int32_t shadows[TABLE_PAGES];
};

struct model {
  struct quire_pool *pool;
  struct quire_geometry geometry;
  int32_t spread_max;
  bool poison;
  int32_t evicted;
  bool held[PAGES]; /* what the hook said of cached pages */
  struct model_page pages[PAGES];
  struct model_table tables[TABLES];
};

static bool evictable(const struct model_page *page) { return page->cached && page->refs == 0 && page->pins == 0; }

/* What the model thinks happens when a page leaves use, or when a pin of a page out of use goes. */
static void model_retire(struct model_page *page, bool poison, bool told) {
  page->state = QUIRE_PAGE_QUARANTINED;
  if (page->pins == 0 && poison && !told) {
    page->pins = 1;
    page->poisoning = true;
  }
  if (page->pins == 0) {
    memset(page, 0, sizeof *page);
  }
}

static void on_evict(void *context, quire_stripe_id stripe) {
  struct model *m = context;
  int32_t victim = -1;
  for (int32_t p = 0; p < PAGES; p++) {
    if (evictable(&m->pages[p]) && (victim < 0 || quire_page_owner(&m->geometry, (quire_page){p}).v == stripe.v)) {
      victim = p;
    }
  }
  assert_true(victim >= 0);
  m->evicted++;
  m->pages[victim].cached = false;
  quire_pool_uncache(m->pool, (quire_page){victim}); /* on_retired updates the model */
  if (!m->poison) {
    model_retire(&m->pages[victim], false, false);
  }
}

static void on_held(void *context, quire_page page, bool held) {
  struct model *m = context;
  assert_true(quire_pool_page_cached(m->pool, page));
  assert_int_not_equal(m->held[page.v], held);
  m->held[page.v] = held;
}

static void on_retired(void *context, quire_page page) {
  struct model *m = context;
  quire_pool_pin(m->pool, page);
  m->pages[page.v].state = QUIRE_PAGE_QUARANTINED;
  m->pages[page.v].pins = 1;
  m->pages[page.v].poisoning = true;
}

static void compare(struct model *m) {
  struct quire_error why;
  if (!quire_pool_check(m->pool, &why)) {
    fail_msg("%s", why.text);
  }
  struct quire_pool_counts sums[QUIRE_RANKS_MAX] = {0};
  for (int32_t p = 0; p < PAGES; p++) {
    const struct model_page *page = &m->pages[p];
    struct quire_pool_counts *sum = &sums[p % m->geometry.storage_ranks];
    sum->total++;
    sum->free += page->state == QUIRE_PAGE_FREE;
    sum->filling += page->state == QUIRE_PAGE_FILLING;
    sum->sealed += page->state == QUIRE_PAGE_SEALED;
    sum->quarantined += page->state == QUIRE_PAGE_QUARANTINED;
    sum->cached += page->cached;
    sum->evictable += evictable(page);
    sum->lost += page->lost && page->state == QUIRE_PAGE_QUARANTINED;
    sum->refs += page->refs;
    sum->pins += page->pins;
    m->held[p] = m->held[p] && page->cached;
    assert_int_equal(m->held[p], page->cached && (page->refs > 0 || page->pins > 0));
    assert_int_equal(quire_pool_page_state(m->pool, (quire_page){p}), page->state);
    assert_int_equal(quire_pool_page_refs(m->pool, (quire_page){p}), page->refs);
    assert_int_equal(quire_pool_page_cached(m->pool, (quire_page){p}), page->cached);
  }
  int64_t available = 0;
  int32_t lost = 0;
  for (int32_t s = 0; s < m->geometry.storage_ranks; s++) {
    struct quire_pool_counts counts;
    quire_pool_stripe_count(m->pool, (quire_stripe_id){s}, &counts);
    assert_memory_equal(&counts, &sums[s], sizeof counts);
    available += sums[s].free + sums[s].evictable;
    lost += sums[s].lost;
  }
  assert_true(quire_pool_available(m->pool) == available);
  assert_int_equal(quire_pool_healthy(m->pool), lost <= 2);
  for (int32_t t = 0; t < TABLES; t++) {
    const struct model_table *table = &m->tables[t];
    if (table->open) {
      int32_t count;
      const quire_page *pages = quire_pool_table_pages(m->pool, (quire_table_id){t}, &count);
      assert_int_equal(count, table->count);
      for (int32_t i = 0; i < count; i++) {
        assert_int_equal(pages[i].v, table->pages[i]);
        assert_int_equal(quire_pool_table_shadow_at(m->pool, (quire_table_id){t}, i).v, table->shadows[i]);
      }
    }
  }
}

/* D1 once more: in turn, unless at a branch, spread too far or nothing there; then by free, evictable, chain, turn. */
static void expected_stripes(const struct model *m, const struct model_table *table, int32_t count,
                             int32_t stripes_out[TABLE_PAGES]) {
  int32_t ranks = m->geometry.storage_ranks;
  int32_t chain[QUIRE_RANKS_MAX] = {0}, free[QUIRE_RANKS_MAX] = {0}, spare[QUIRE_RANKS_MAX] = {0};
  for (int32_t p = 0; p < PAGES; p++) {
    free[p % ranks] += m->pages[p].state == QUIRE_PAGE_FREE;
    spare[p % ranks] += evictable(&m->pages[p]);
  }
  for (int32_t i = 0; i < table->count; i++) {
    chain[table->pages[i] % ranks]++;
  }
  int32_t all_free = 0;
  for (int32_t s = 0; s < ranks; s++) {
    all_free += free[s];
  }
  if (m->poison && count <= all_free) { /* evicted pages come late: not while free ones do */
    memset(spare, 0, sizeof spare);
  }
  int32_t last = table->count == 0 ? ranks - 1 : table->pages[table->count - 1] % ranks;
  for (int32_t i = 0; i < count; i++) {
    int32_t turn = (last + 1) % ranks;
    int32_t least = INT32_MAX, most = 0;
    for (int32_t s = 0; s < ranks; s++) {
      least = chain[s] < least ? chain[s] : least;
      most = chain[s] > most ? chain[s] : most;
    }
    int32_t pick = turn;
    if ((table->own == 0 && i == 0) || free[turn] + spare[turn] == 0 || most - least > m->spread_max) {
      int64_t best = -1;
      for (int32_t k = 0; k < ranks; k++) {
        int32_t s = (turn + k) % ranks;
        int64_t score = ((int64_t)free[s] * 1000 + spare[s]) * 1000 + 999 - chain[s];
        if (free[s] + spare[s] > 0 && score > best) {
          best = score;
          pick = s;
        }
      }
    }
    stripes_out[i] = pick;
    chain[pick]++;
    free[pick] > 0 ? free[pick]-- : spare[pick]--;
    last = pick;
  }
}

static void do_extend(struct model *m, int32_t t, int32_t count) {
  struct model_table *table = &m->tables[t];
  int64_t room = quire_pool_available(m->pool);
  int32_t stripes[TABLE_PAGES];
  bool fits = count <= TABLE_PAGES - table->count;
  if (fits && count <= room) {
    expected_stripes(m, table, count, stripes);
  }
  int32_t free_before[PAGES];
  for (int32_t p = 0; p < PAGES; p++) {
    free_before[p] = m->pages[p].state == QUIRE_PAGE_FREE;
  }
  m->evicted = 0;
  struct quire_hash128 before = quire_pool_digest(m->pool);
  enum quire_status status = quire_pool_table_extend(m->pool, (quire_table_id){t}, count);
  if (!fits || count > room) {
    assert_int_equal(status, fits ? QUIRE_ERR_AGAIN : QUIRE_ERR_ARGUMENT);
    assert_true(quire_hash128_equal(before, quire_pool_digest(m->pool)));
    return;
  }
  if (status == QUIRE_ERR_AGAIN) { /* counts on pages that wait for their last operation */
    int32_t coming = 0;
    for (int32_t p = 0; p < PAGES; p++) {
      coming += m->pages[p].state == QUIRE_PAGE_QUARANTINED && !m->pages[p].lost;
    }
    assert_true(coming > 0);
    assert_true(m->evicted > 0 || quire_hash128_equal(before, quire_pool_digest(m->pool)));
    return;
  }
  assert_int_equal(status, QUIRE_OK);
  const quire_page *pages = quire_pool_table_pages(m->pool, (quire_table_id){t}, NULL);
  for (int32_t i = 0; i < count; i++) {
    int32_t page = pages[table->count].v;
    assert_int_equal(page % m->geometry.storage_ranks, stripes[i]);
    assert_int_equal(m->pages[page].state, QUIRE_PAGE_FREE);
    assert_true(!m->poison || free_before[page]);
    m->pages[page] = (struct model_page){.state = QUIRE_PAGE_FILLING, .refs = 1};
    table->shadows[table->count] = QUIRE_PAGE_NONE;
    table->pages[table->count++] = page;
    table->own++;
  }
}

static void model_unref(struct model *m, int32_t page, bool poison_told) {
  struct model_page *p = &m->pages[page];
  p->refs--;
  if (p->refs == 0 && !p->cached && p->state != QUIRE_PAGE_QUARANTINED) {
    model_retire(p, false, poison_told);
  }
}

/* The pool's call comes after the model's: with poison on, on_retired has put its pin on what the model just freed. */
static void do_truncate(struct model *m, int32_t t, int32_t index, bool close) {
  struct model_table *table = &m->tables[t];
  int32_t freed[2 * TABLE_PAGES];
  int32_t count = 0;
  while (table->count > index) {
    int32_t last = --table->count;
    if (table->shadows[last] != QUIRE_PAGE_NONE) {
      freed[count++] = table->shadows[last];
    }
    freed[count++] = table->pages[last];
  }
  table->own = table->count == 0 ? 0 : table->own;
  for (int32_t i = 0; i < count; i++) {
    model_unref(m, freed[i], false);
  }
  if (close) {
    table->open = false;
    quire_pool_table_close(m->pool, (quire_table_id){t});
  } else {
    quire_pool_table_truncate(m->pool, (quire_table_id){t}, index);
  }
}

static int32_t pick_page(const struct model *m, uint64_t *rng, bool (*wanted)(const struct model_page *)) {
  int32_t from = (int32_t)quire_splitmix64_below(rng, PAGES);
  for (int32_t i = 0; i < PAGES; i++) {
    if (wanted(&m->pages[(from + i) % PAGES])) {
      return (from + i) % PAGES;
    }
  }
  return -1;
}

static bool is_sealed(const struct model_page *page) { return page->state == QUIRE_PAGE_SEALED; }
static bool is_sealed_uncached(const struct model_page *page) {
  return page->state == QUIRE_PAGE_SEALED && !page->cached;
}
static bool is_cached(const struct model_page *page) { return page->cached; }
static bool is_not_free(const struct model_page *page) { return page->state != QUIRE_PAGE_FREE; }
static bool is_pinned(const struct model_page *page) { return page->pins > 0; }

static void table_step(struct model *m, uint64_t *rng, uint64_t what) {
  int32_t t = (int32_t)quire_splitmix64_below(rng, TABLES);
  struct model_table *table = &m->tables[t];
  quire_table_id id = {t};
  if (!table->open) {
    int32_t lowest = 0;
    while (m->tables[lowest].open) {
      lowest++;
    }
    assert_int_equal(quire_pool_table_open(m->pool, &id), QUIRE_OK);
    assert_int_equal(id.v, lowest);
    m->tables[lowest].open = true;
    return;
  }
  int32_t index = table->count == 0 ? -1 : (int32_t)quire_splitmix64_below(rng, (uint64_t)table->count);
  int32_t state = index < 0 ? -1 : m->pages[table->pages[index]].state;
  int32_t sealed = pick_page(m, rng, is_sealed);
  if (what < 35) {
    do_extend(m, t, (int32_t)quire_splitmix64_below(rng, 7));
  } else if (what < 45 && table->own == 0 && table->count < TABLE_PAGES && sealed >= 0) {
    quire_pool_table_share(m->pool, id, (quire_page){sealed});
    m->pages[sealed].refs++;
    table->shadows[table->count] = QUIRE_PAGE_NONE;
    table->pages[table->count++] = sealed;
  } else if (what < 75 && state == QUIRE_PAGE_FILLING) {
    quire_pool_table_seal(m->pool, id, index);
    m->pages[table->pages[index]].state = QUIRE_PAGE_SEALED;
  } else if (what < 80 && state == QUIRE_PAGE_FILLING && sealed >= 0 && table->shadows[index] == QUIRE_PAGE_NONE) {
    int32_t old = table->pages[index];
    m->pages[sealed].refs++;
    table->pages[index] = sealed;
    model_unref(m, old, false);
    quire_pool_table_replace(m->pool, id, index, (quire_page){sealed});
  } else if (what < 85 && index >= 0 && sealed >= 0 && sealed != table->pages[index] &&
             table->shadows[index] == QUIRE_PAGE_NONE) {
    quire_pool_table_shadow(m->pool, id, index, (quire_page){sealed});
    m->pages[sealed].refs++;
    table->shadows[index] = sealed;
  } else if (what < 90 && index >= 0) {
    do_truncate(m, t, index, false);
  } else if (what < 100) {
    do_truncate(m, t, 0, true);
  }
}

static void page_step(struct model *m, uint64_t *rng, uint64_t what) {
  int32_t page;
  if (what < 40 && (page = pick_page(m, rng, is_sealed_uncached)) >= 0) {
    quire_pool_cache(m->pool, (quire_page){page});
    m->pages[page].cached = true;
  } else if (what < 55 && (page = pick_page(m, rng, is_cached)) >= 0) {
    struct model_page *p = &m->pages[page];
    p->cached = false;
    if (p->refs == 0) {
      model_retire(p, false, false);
    }
    quire_pool_uncache(m->pool, (quire_page){page});
  } else if (what < 65 && (page = pick_page(m, rng, is_not_free)) >= 0 && m->pages[page].pins < 3) {
    quire_pool_pin(m->pool, (quire_page){page});
    m->pages[page].pins++;
  } else if (what < 68 && (page = pick_page(m, rng, is_pinned)) >= 0) {
    quire_pool_lose(m->pool, (quire_page){page});
    m->pages[page].lost = true;
  } else if ((page = pick_page(m, rng, is_pinned)) >= 0) {
    struct model_page *p = &m->pages[page];
    p->pins--;
    p->lost = p->lost && p->pins > 0;
    bool settles = p->pins == 0 && p->state == QUIRE_PAGE_QUARANTINED;
    bool told = p->poisoning;
    if (settles) {
      model_retire(p, false, told);
    }
    quire_pool_unpin(m->pool, (quire_page){page});
  }
}

static void random_life(uint64_t seed, int32_t storage_ranks, int32_t spread_max, bool poison) {
  struct fail_env env;
  fail_env_init(&env);
  struct model m = {.geometry = {64, storage_ranks, storage_ranks, PAGES}, .spread_max = spread_max, .poison = poison};
  struct quire_pool_config config = {m.geometry, TABLES, TABLE_PAGES, spread_max, 2};
  struct quire_pool_hooks hooks = {&m, on_evict, on_held, poison ? on_retired : NULL};
  assert_int_equal(quire_pool_create(&env.env, &config, &hooks, &m.pool, NULL), QUIRE_OK);
  assert_true((int64_t)env.live_bytes == quire_pool_bytes(&config));
  for (int32_t step = 0; step < 4000; step++) {
    uint64_t what = quire_splitmix64_below(&seed, 100);
    if (quire_splitmix64_below(&seed, 3) != 0) {
      table_step(&m, &seed, what);
    } else {
      page_step(&m, &seed, what);
    }
    compare(&m);
  }
  /* everything given back: the pool is as new */
  for (int32_t t = 0; t < TABLES; t++) {
    if (m.tables[t].open) {
      do_truncate(&m, t, 0, true);
    }
  }
  for (int32_t page; (page = pick_page(&m, &seed, is_cached)) >= 0;) {
    page_step(&m, &seed, 50);
  }
  while (pick_page(&m, &seed, is_pinned) >= 0) {
    page_step(&m, &seed, 99);
  }
  compare(&m);
  struct quire_pool_counts counts;
  quire_pool_count(m.pool, &counts);
  assert_int_equal(counts.free, PAGES);
  quire_pool_destroy(m.pool);
  fail_env_fini(&env);
}

static void random_lives(void **state) {
  (void)state;
  uint64_t seed = test_seed("random_lives");
  static const int32_t rows[][2] = {{1, 8}, {2, 0}, {4, 1}, {4, 8}, {8, 2}, {16, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    random_life(quire_splitmix64(&seed), rows[i][0], rows[i][1], false);
    random_life(quire_splitmix64(&seed), rows[i][0], rows[i][1], true);
  }
}

struct held_log {
  int32_t calls;
  int32_t page;
  bool held;
};

static void log_held(void *context, quire_page page, bool held) {
  struct held_log *log = context;
  log->calls++;
  log->page = page.v;
  log->held = held;
}

/* First and last user of a cached page are told, whether they refer to it or pin it. */
static void first_and_last_user(void **state) {
  (void)state;
  struct held_log log = {0};
  struct quire_pool_config config = {{64, 1, 1, 4}, 2, 4, 8, 0};
  struct quire_pool_hooks hooks = {&log, NULL, log_held, NULL};
  struct quire_pool *pool;
  assert_int_equal(quire_pool_create(quire_env_default(), &config, &hooks, &pool, NULL), QUIRE_OK);
  quire_table_id a, b;
  assert_int_equal(quire_pool_table_open(pool, &a), QUIRE_OK);
  assert_int_equal(quire_pool_table_open(pool, &b), QUIRE_OK);
  assert_int_equal(quire_pool_table_open(pool, &a), QUIRE_ERR_AGAIN);
  assert_int_equal(quire_pool_table_extend(pool, a, 1), QUIRE_OK);
  quire_page page = quire_pool_table_pages(pool, a, NULL)[0];
  quire_pool_table_seal(pool, a, 0);
  assert_int_equal(log.calls, 0);
  quire_pool_cache(pool, page);
  assert_true(log.calls == 1 && log.held && log.page == page.v);
  quire_pool_table_share(pool, b, page);
  quire_pool_table_close(pool, a);
  assert_int_equal(log.calls, 1);
  quire_pool_pin(pool, page);
  quire_pool_table_close(pool, b);
  assert_int_equal(log.calls, 1);
  quire_pool_unpin(pool, page);
  assert_true(log.calls == 2 && !log.held);
  quire_pool_pin(pool, page);
  assert_true(log.calls == 3 && log.held);
  quire_pool_unpin(pool, page);
  quire_pool_uncache(pool, page);
  assert_int_equal(log.calls, 4);
  assert_true(quire_pool_check(pool, NULL));
  quire_pool_destroy(pool);
}

static void configurations_refused(void **state) {
  (void)state;
  static const struct quire_pool_config rows[] = {
      {{64, 4, 3, 8}, 1, 1, 8, 0},       {{64, 4, 4, 0}, 1, 1, 8, 0},  {{64, 4, 4, 8}, 0, 1, 8, 0},
      {{64, 4, 4, 8}, 65537, 1, 8, 0},   {{64, 4, 4, 8}, 1, 0, 8, 0},  {{64, 4, 4, 8}, 1, 1, -1, 0},
      {{64, 4, 4, 8}, 1, 4194305, 8, 0}, {{64, 4, 4, 8}, 1, 1, 8, -1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct quire_pool *pool = NULL;
    struct quire_error error = {0};
    assert_int_equal(quire_pool_create(quire_env_default(), &rows[i], NULL, &pool, &error), QUIRE_ERR_ARGUMENT);
    assert_null(pool);
    assert_true(error.text[0] != 0);
    assert_true(quire_pool_bytes(&rows[i]) == 0);
  }
}

static enum quire_status create_and_destroy(void *context, const struct quire_env *env) {
  (void)context;
  struct quire_pool_config config = {{64, 4, 4, 10}, 2, 4, 8, 0};
  struct quire_pool *pool = NULL;
  enum quire_status status = quire_pool_create(env, &config, NULL, &pool, NULL);
  if (status == QUIRE_OK) {
    assert_true(quire_pool_check(pool, NULL));
    quire_pool_destroy(pool);
  }
  return status;
}

static void no_memory(void **state) {
  (void)state;
  assert_int_equal(fail_env_sweep(create_and_destroy, NULL), 1);
  quire_pool_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_lives),
      cmocka_unit_test(first_and_last_user),
      cmocka_unit_test(configurations_refused),
      cmocka_unit_test(no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
