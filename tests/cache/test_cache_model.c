/* The cache against a flat model under a random load: requests begin, compute, are preempted, resume, end; pages are
 * evicted, dropped, flushed, poisoned. The model knows what was written into every page and which chains are in the
 * tree, as plain lists. After every step all laws are recomputed (quire_cache_check) and
 *   - a page table entry that was published is still what it was
 *   - every page a request may read holds exactly the tokens of that request down from its root
 *   - the tree has what the model has, less what the cache says it evicted, and nothing that is held is missing
 *   - what was refused changed nothing */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cache/cache.h"
#include "support/fail_env.h"
#include "support/seed.h"

#define T 3 /* tokens a page */
#define PAGES 37
#define REQUESTS 5
#define REQUEST_PAGES 12
#define TOKENS_MAX (T * REQUEST_PAGES)
#define CHAINS_MAX 4096

struct model_request {
  bool live, empty; /* empty: reset, holds nothing */
  bool no_match;
  bool attached; /* may put pages into the tree */
  quire_cache_request handle;
  int32_t tokens[TOKENS_MAX];
  int32_t prompt;
  int32_t written;
  int32_t pages;
  quire_page table[REQUEST_PAGES];
};

/* What a page holds: tokens from the root to its end. */
struct content {
  int32_t tokens[TOKENS_MAX];
  int32_t count; /* 0: nothing that may be read */
};

struct model {
  struct quire_cache *cache;
  struct quire_geometry geometry;
  bool poison;
  uint64_t rng;
  struct model_request requests[REQUESTS];
  struct content contents[PAGES];
  struct content chains[CHAINS_MAX]; /* whole pages in the tree, each with its path */
  quire_page chain_page[CHAINS_MAX];
  int32_t chain_count;
  bool removal_expected; /* this step drops or flushes */
  struct quire_command open[PAGES];
  uint32_t answered[PAGES];
  int32_t open_count;
  int64_t evicted;
};

static int32_t below(struct model *m, int32_t bound) {
  return (int32_t)quire_splitmix64_below(&m->rng, (uint64_t)bound);
}

static void random_prompt(struct model *m, int32_t tokens_out[TOKENS_MAX]) {
  int32_t same = below(m, TOKENS_MAX); /* a common beginning, then two tokens at random */
  for (int32_t i = 0; i < TOKENS_MAX; i++) {
    tokens_out[i] = i < same ? i % 7 : below(m, 2);
  }
}

static bool is_prefix(const struct content *c, const int32_t *tokens, int32_t count) {
  return c->count <= count && memcmp(c->tokens, tokens, (size_t)c->count * sizeof *tokens) == 0;
}

static int32_t find_chain(const struct model *m, const int32_t *tokens, int32_t count) {
  for (int32_t i = 0; i < m->chain_count; i++) {
    if (m->chains[i].count == count && is_prefix(&m->chains[i], tokens, count)) {
      return i;
    }
  }
  return -1;
}

static int32_t model_match(const struct model *m, const int32_t *tokens, int32_t count) {
  int32_t pages = 0;
  while ((pages + 1) * T < count && find_chain(m, tokens, (pages + 1) * T) >= 0) {
    pages++;
  }
  return pages;
}

/* Takes the chains out of the model that left the tree, and sees to it that they could. */
static void sync_evictions(struct model *m) {
  struct quire_cache_stats stats;
  quire_cache_stats(m->cache, &stats);
  int32_t missing = 0;
  for (int32_t i = 0; i < m->chain_count;) {
    struct content *c = &m->chains[i];
    int32_t with_next[TOKENS_MAX + 1];
    memcpy(with_next, c->tokens, (size_t)c->count * sizeof *with_next);
    with_next[c->count] = 99;
    if (quire_cache_match(m->cache, with_next, c->count + 1) * T == c->count) {
      i++;
      continue;
    }
    for (int32_t r = 0; r < REQUESTS && !m->removal_expected; r++) {
      const struct model_request *request = &m->requests[r];
      bool held =
          request->live && !request->empty && request->attached && is_prefix(c, request->tokens, request->written);
      assert_false(held);
    }
    missing++;
    m->chain_count--;
    *c = m->chains[m->chain_count];
    m->chain_page[i] = m->chain_page[m->chain_count];
  }
  assert_true(m->removal_expected || missing == stats.evicted_pages - m->evicted);
  assert_int_equal(stats.cached, m->chain_count);
  m->evicted = stats.evicted_pages;
}

static void check_request(struct model *m, struct model_request *request) {
  int32_t count;
  const quire_page *pages = quire_cache_request_pages(m->cache, request->handle, &count);
  assert_int_equal(count, request->pages);
  assert_memory_equal(pages, request->table, (size_t)count * sizeof *pages);
  assert_int_equal(quire_cache_request_tokens(m->cache, request->handle), request->written);
  for (int32_t i = 0; i < request->pages; i++) {
    const struct content *c = &m->contents[pages[i].v];
    int32_t end = (i + 1) * T < request->written ? (i + 1) * T : request->written;
    if (i * T < request->written) {
      assert_true(c->count == end && is_prefix(c, request->tokens, end));
    }
    for (int32_t k = 0; k < m->open_count; k++) {
      assert_int_not_equal(m->open[k].page.v, pages[i].v);
    }
  }
}

static void compare(struct model *m) {
  struct quire_error why;
  if (!quire_cache_check(m->cache, &why)) {
    fail_msg("%s: %s", why.where, why.text);
  }
  sync_evictions(m);
  for (int32_t i = 0; i < m->chain_count; i++) {
    const struct content *c = &m->contents[m->chain_page[i].v];
    assert_true(c->count == m->chains[i].count && is_prefix(c, m->chains[i].tokens, c->count));
  }
  struct quire_cache_stats stats;
  quire_cache_stats(m->cache, &stats);
  assert_int_equal(stats.free + stats.filling + stats.sealed + stats.quarantined, PAGES);
  int32_t filling = 0;
  int32_t live = 0;
  for (int32_t r = 0; r < REQUESTS; r++) {
    struct model_request *request = &m->requests[r];
    live += request->live;
    if (request->live) {
      check_request(m, request);
      filling += request->pages - request->written / T;
    }
  }
  assert_int_equal(stats.filling, filling);
  assert_int_equal(stats.requests, live);
  assert_true(stats.healthy);
}

static int64_t available(const struct model *m) {
  struct quire_cache_stats stats;
  quire_cache_stats(m->cache, &stats);
  return stats.free + stats.evictable;
}

/* The model's view of what fill did. */
static void filled(struct model *m, struct model_request *request, int32_t matched, int32_t pages) {
  int32_t count;
  const quire_page *table = quire_cache_request_pages(m->cache, request->handle, &count);
  assert_int_equal(count, pages);
  request->empty = false;
  request->attached = true;
  request->written = matched * T;
  request->pages = pages;
  memcpy(request->table, table, (size_t)pages * sizeof *table);
  for (int32_t i = 0; i < pages; i++) {
    if (i < matched) {
      int32_t chain = find_chain(m, request->tokens, (i + 1) * T);
      assert_int_equal(table[i].v, m->chain_page[chain].v);
    } else {
      m->contents[table[i].v].count = 0;
    }
  }
}

static void begin_step(struct model *m, struct model_request *request) {
  bool resume = request->live;
  if (!resume) {
    random_prompt(m, request->tokens);
    request->prompt = 1 + below(m, TOKENS_MAX);
    request->no_match = below(m, 8) == 0;
  }
  struct quire_cache_fill fill = {
      request->tokens, request->prompt, below(m, TOKENS_MAX - request->prompt + 1), request->no_match, 0, NULL};
  int32_t pages = (fill.tokens_count + fill.reserve_tokens + T - 1) / T;
  int32_t matched = fill.no_match ? 0 : model_match(m, fill.tokens, fill.tokens_count);
  assert_int_equal(quire_cache_match(m->cache, fill.tokens, fill.tokens_count),
                   model_match(m, fill.tokens, fill.tokens_count));
  int64_t room = available(m);
  struct quire_hash128 before = quire_cache_digest(m->cache);
  enum quire_status status = resume ? quire_cache_request_fill(m->cache, request->handle, &fill, NULL)
                                    : quire_cache_request_begin(m->cache, &fill, &request->handle, NULL);
  if (status == QUIRE_OK) {
    assert_true(request->handle.slot >= 0 && request->handle.slot < REQUESTS);
    request->live = true;
    assert_true(pages - matched <= room);
    filled(m, request, matched, pages);
    return;
  }
  assert_int_equal(status, QUIRE_ERR_AGAIN);
  /* pages it matched, were they evictable, can not make room for it */
  assert_true(m->poison || pages - matched > room - matched);
  assert_true(m->poison || quire_hash128_equal(before, quire_cache_digest(m->cache)));
}

static void commit_step(struct model *m, struct model_request *request) {
  int32_t room = request->pages * T - request->written;
  int32_t more = below(m, room + 1);
  int32_t written = request->written + more;
  request->prompt = written > request->prompt ? written : request->prompt; /* decoded tokens */
  for (int32_t i = request->written; i < written; i++) {
    struct content *c = &m->contents[request->table[i / T].v];
    memcpy(c->tokens, request->tokens, (size_t)(i + 1) * sizeof *c->tokens);
    c->count = i + 1;
  }
  int32_t sealed = request->written / T;
  request->written = written;
  assert_int_equal(quire_cache_request_commit(m->cache, request->handle, written, request->tokens, NULL), QUIRE_OK);
  for (int32_t i = sealed; i < written / T && request->attached; i++) {
    if (find_chain(m, request->tokens, (i + 1) * T) < 0) {
      assert_true(m->chain_count < CHAINS_MAX);
      struct content *c = &m->chains[m->chain_count];
      memcpy(c->tokens, request->tokens, (size_t)((i + 1) * T) * sizeof *c->tokens);
      c->count = (i + 1) * T;
      m->chain_page[m->chain_count++] = request->table[i];
    }
  }
}

static void grow_step(struct model *m, struct model_request *request) {
  int32_t tokens = below(m, TOKENS_MAX + 2 * T);
  int32_t pages = (tokens + T - 1) / T;
  struct quire_hash128 before = quire_cache_digest(m->cache);
  int64_t room = available(m);
  enum quire_status status = quire_cache_request_grow(m->cache, request->handle, tokens, NULL);
  if (pages > REQUEST_PAGES) {
    assert_int_equal(status, QUIRE_ERR_REQUEST);
  } else if (pages - request->pages > room) {
    assert_int_equal(status, QUIRE_ERR_AGAIN);
    assert_true(quire_hash128_equal(before, quire_cache_digest(m->cache)));
  } else if (status == QUIRE_OK && pages > request->pages) {
    const quire_page *table = quire_cache_request_pages(m->cache, request->handle, NULL);
    for (int32_t i = request->pages; i < pages; i++) {
      request->table[i] = table[i];
      m->contents[table[i].v].count = 0;
    }
    request->pages = pages;
  } else {
    assert_true(status == QUIRE_OK || (m->poison && status == QUIRE_ERR_AGAIN));
  }
}

static void rematch_step(struct model *m, struct model_request *request) {
  int32_t matched = model_match(m, request->tokens, request->prompt);
  matched = matched < request->pages ? matched : request->pages;
  bool may = !request->no_match && request->attached && request->written % T == 0;
  int32_t wanted = may && matched * T > request->written ? matched * T - request->written : 0;
  int32_t got = quire_cache_request_rematch(m->cache, request->handle, request->tokens, request->prompt);
  assert_int_equal(got, wanted);
  for (int32_t i = request->written / T; i < (request->written + got) / T; i++) {
    m->contents[request->table[i].v].count = 0;
    request->table[i] = m->chain_page[find_chain(m, request->tokens, (i + 1) * T)];
  }
  request->written += got;
}

static void end_step(struct model *m, struct model_request *request, bool reset) {
  request->pages = 0;
  request->written = 0;
  request->empty = true;
  if (reset) {
    quire_cache_request_reset(m->cache, request->handle);
  } else {
    quire_cache_request_release(m->cache, request->handle);
    request->live = false;
  }
}

/* A request is attached no longer when a page it holds, or the tree's copy of it, left the tree. */
static void detach(struct model *m, const struct content *top) {
  for (int32_t r = 0; r < REQUESTS; r++) {
    struct model_request *request = &m->requests[r];
    if (request->live && !request->empty && is_prefix(top, request->tokens, request->written / T * T)) {
      request->attached = false;
    }
  }
}

static void drop_step(struct model *m) {
  if (m->chain_count == 0) {
    return;
  }
  int32_t chain = below(m, m->chain_count);
  struct content top = m->chains[chain];
  int32_t count = 0;
  for (int32_t i = 0; i < m->chain_count; i++) {
    count += m->chains[i].count >= top.count && is_prefix(&top, m->chains[i].tokens, m->chains[i].count);
  }
  detach(m, &top);
  m->removal_expected = true;
  assert_int_equal(quire_cache_drop_page(m->cache, m->chain_page[chain]), count);
}

static void flush_step(struct model *m) {
  for (int32_t r = 0; r < REQUESTS; r++) {
    m->requests[r].attached = false;
  }
  m->removal_expected = true;
  assert_int_equal(quire_cache_flush(m->cache), m->chain_count);
}

/* Ranks take commands and answer in any order. */
static void command_step(struct model *m) {
  struct quire_command command;
  if (below(m, 2) == 0 && quire_cache_commands(m->cache, &command, 1) == 1) {
    assert_true(m->poison && quire_command_check(&m->geometry, &command, NULL));
    m->answered[m->open_count] = 0;
    m->open[m->open_count++] = command;
  } else if (m->open_count > 0) {
    int32_t i = below(m, m->open_count);
    int32_t rank = below(m, m->geometry.ranks);
    struct quire_ack ack = {.op = m->open[i].op, .rank = {rank}};
    uint32_t bit = 1u << rank;
    bool due = (m->open[i].ranks & bit) != 0 && (m->answered[i] & bit) == 0;
    assert_int_equal(quire_cache_ack(m->cache, &ack, NULL), due ? QUIRE_OK : QUIRE_ERR_STATE);
    m->answered[i] |= due ? bit : 0;
    if (m->answered[i] == m->open[i].ranks) {
      m->open_count--;
      m->open[i] = m->open[m->open_count];
      m->answered[i] = m->answered[m->open_count];
    }
  }
}

static void step(struct model *m) {
  struct model_request *request = &m->requests[below(m, REQUESTS)];
  int32_t what = below(m, 1000);
  m->removal_expected = false;
  for (int32_t i = 0; m->poison && i < 6; i++) {
    command_step(m);
  }
  if (!request->live || request->empty) {
    if (request->live && what < 100) {
      end_step(m, request, false);
    } else {
      begin_step(m, request);
    }
  } else if (what < 450) {
    commit_step(m, request);
  } else if (what < 600) {
    grow_step(m, request);
  } else if (what < 700) {
    rematch_step(m, request);
  } else if (what < 800) {
    end_step(m, request, true);
  } else if (what < 950) {
    end_step(m, request, false);
  } else if (what < 980) {
    quire_cache_evict(m->cache, below(m, 6));
  } else if (what < 996) {
    drop_step(m);
  } else {
    flush_step(m);
  }
  compare(m);
}

static void settle(struct model *m) {
  struct quire_command command;
  do {
    for (int32_t i = 0; i < m->open_count; i++) {
      for (int32_t r = 0; r < m->geometry.ranks; r++) {
        struct quire_ack ack = {.op = m->open[i].op, .rank = {r}};
        if (((m->open[i].ranks & ~m->answered[i]) >> r & 1) != 0) {
          assert_int_equal(quire_cache_ack(m->cache, &ack, NULL), QUIRE_OK);
        }
      }
    }
    m->open_count = 0;
    while (quire_cache_commands(m->cache, &command, 1) == 1) {
      m->answered[m->open_count] = 0;
      m->open[m->open_count++] = command;
    }
  } while (m->open_count > 0);
}

static void random_life(uint64_t seed, int32_t ranks, int32_t storage_ranks, bool poison, int32_t steps) {
  static struct model model;
  static struct quire_parts parts;
  struct fail_env env;
  fail_env_init(&env);
  memset(&model, 0, sizeof model);
  struct model *m = &model;
  m->rng = seed;
  m->poison = poison;
  m->geometry = (struct quire_geometry){T, ranks, storage_ranks, PAGES};
  assert_true(quire_parts_build(&parts, QUIRE_KV_FP8, T, 1, NULL, 1));
  struct quire_cache_config config = {
      .geometry = m->geometry,
      .parts = &parts,
      .requests_max = REQUESTS,
      .request_pages_max = REQUEST_PAGES,
      .chain_spread_max = 1 + below(m, 4),
      .poison = poison,
  };
  assert_int_equal(quire_cache_create(&env.env, &config, &m->cache, NULL), QUIRE_OK);
  for (int32_t i = 0; i < steps; i++) {
    step(m);
  }
  assert_true(env.allocations == 3);
  /* everybody leaves: all counters return to where they began */
  for (int32_t r = 0; r < REQUESTS; r++) {
    if (m->requests[r].live) {
      end_step(m, &m->requests[r], false);
    }
  }
  flush_step(m);
  settle(m);
  struct quire_cache_stats stats;
  quire_cache_stats(m->cache, &stats);
  assert_int_equal(stats.free, PAGES);
  assert_true(stats.refs == 0 && stats.pins == 0 && stats.cached == 0);
  assert_true(quire_cache_check(m->cache, NULL));
  printf("%2d ranks, %2d stripes, poison %d: %lld of %lld tokens hit, %lld pages kept, %lld duplicates, %lld evicted, "
         "%lld refusals\n",
         ranks, storage_ranks, poison, (long long)stats.hit_tokens, (long long)stats.fill_tokens,
         (long long)stats.inserted_pages, (long long)stats.duplicate_pages, (long long)stats.evicted_pages,
         (long long)stats.refusals);
  assert_true(stats.hit_tokens > 0 && stats.duplicate_pages > 0 && stats.evicted_pages > 0 && stats.refusals > 0);
  quire_cache_destroy(m->cache);
  fail_env_fini(&env);
}

static void random_lives(void **state) {
  (void)state;
  uint64_t seed = test_seed("random_lives");
  static const int32_t rows[][2] = {{1, 1}, {2, 2}, {4, 4}, {4, 1}, {4, 2}, {8, 8}, {16, 16}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    random_life(quire_splitmix64(&seed), rows[i][0], rows[i][1], false, 6000);
    random_life(quire_splitmix64(&seed), rows[i][0], rows[i][1], true, 6000);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_lives)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
