/* The cache call by call: named cases, each a promise of cache.h or a fault that other caches had. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "layout/fingerprint.h"
#include "support/fail_env.h"

#define T 4 /* tokens a page */

static struct quire_parts parts;

static struct quire_cache_config config_of(int32_t ranks, int32_t storage_ranks, int32_t pages, int32_t requests) {
  assert_true(quire_parts_build(&parts, QUIRE_KV_BF16, T, 1, NULL, 0));
  struct quire_cache_config config = {
      .geometry = {T, ranks, storage_ranks, pages},
      .parts = &parts,
      .fingerprint = {1, 2},
      .requests_max = requests,
      .request_pages_max = 16,
      .lost_pages_max = 1,
  };
  return config;
}

static struct quire_cache *create(const struct quire_cache_config *config) {
  struct quire_cache *cache = NULL;
  struct quire_error error;
  if (quire_cache_create(quire_env_default(), config, &cache, &error) != QUIRE_OK) {
    fail_msg("%s", error.text);
  }
  return cache;
}

/* Tokens base, base + 1, ... */
static const int32_t *prompt(int32_t base) {
  static int32_t tokens[8][256];
  static int next;
  int32_t *row = tokens[next++ % 8];
  for (int32_t i = 0; i < 256; i++) {
    row[i] = base + i;
  }
  return row;
}

static quire_cache_request begin(struct quire_cache *cache, const int32_t *tokens, int32_t count, int32_t reserve) {
  struct quire_cache_fill fill = {tokens, count, reserve, false, 0, NULL};
  quire_cache_request request = {-1, 0};
  struct quire_error error;
  if (quire_cache_request_begin(cache, &fill, &request, &error) != QUIRE_OK) {
    fail_msg("%s", error.text);
  }
  return request;
}

static void commit(struct quire_cache *cache, quire_cache_request request, int32_t written, const int32_t *tokens) {
  struct quire_error error;
  if (quire_cache_request_commit(cache, request, written, tokens, &error) != QUIRE_OK) {
    fail_msg("%s", error.text);
  }
}

static void check(const struct quire_cache *cache) {
  struct quire_error why;
  if (!quire_cache_check(cache, &why)) {
    fail_msg("%s: %s", why.where, why.text);
  }
}

static struct quire_cache_stats stats_of(const struct quire_cache *cache) {
  struct quire_cache_stats stats;
  check(cache);
  quire_cache_stats(cache, &stats);
  assert_int_equal(stats.free + stats.filling + stats.sealed + stats.quarantined, stats.pages);
  return stats;
}

static void ack_all(struct quire_cache *cache, enum quire_status status) {
  struct quire_command command;
  while (quire_cache_commands(cache, &command, 1) == 1) {
    for (int32_t r = 0; r < 32; r++) {
      if ((command.ranks >> r & 1) != 0) {
        struct quire_ack ack = {.op = command.op, .status = status, .rank = {r}};
        assert_int_equal(quire_cache_ack(cache, &ack, NULL), QUIRE_OK);
      }
    }
  }
}

/* A prompt of any length: the second time, all whole pages hit but never the last token; the tail page is not kept. */
static void second_time_is_a_hit(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 40, 4);
  struct quire_cache *cache = create(&config);
  for (int32_t length = 1; length <= 3 * T; length++) {
    const int32_t *tokens = prompt(1000 * length);
    quire_cache_request request = begin(cache, tokens, length, 0);
    assert_int_equal(quire_cache_request_tokens(cache, request), 0);
    assert_int_equal(quire_cache_match(cache, tokens, length), 0); /* filling pages can not be matched */
    commit(cache, request, length, tokens);
    quire_cache_request_release(cache, request);
    int32_t hit = (length - 1) / T;
    assert_int_equal(quire_cache_match(cache, tokens, length), hit);
    request = begin(cache, tokens, length, 0);
    assert_int_equal(quire_cache_request_tokens(cache, request), hit * T);
    quire_cache_request_release(cache, request);
    assert_int_equal(stats_of(cache).sealed, length / T);
    assert_int_equal(quire_cache_flush(cache), length / T);
    assert_int_equal(stats_of(cache).free, 40);
  }
  assert_int_equal(quire_cache_match(cache, prompt(0), 0), 0);
  quire_cache_destroy(cache);
}

static void pages_come_in_turn_over_the_stripes(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(4, 4, 40, 4);
  struct quire_cache *cache = create(&config);
  int32_t count;
  quire_cache_request request = begin(cache, prompt(0), 10 * T, 0);
  const quire_page *pages = quire_cache_request_pages(cache, request, &count);
  assert_int_equal(count, 10);
  for (int32_t i = 1; i < count; i++) {
    assert_int_equal(pages[i].v % 4, (pages[i - 1].v + 1) % 4);
  }
  quire_cache_destroy(cache);
}

/* Two of the same prompt at once: each keeps its own pages, one copy goes into the tree, the other dies with its
 * request, and what the loser computes behind its duplicates is kept. */
static void duplicates_lose(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 40, 4);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  quire_cache_request a = begin(cache, tokens, 2 * T + 1, 2 * T);
  quire_cache_request b = begin(cache, tokens, 2 * T + 1, 2 * T);
  quire_page before[4];
  memcpy(before, quire_cache_request_pages(cache, b, NULL), sizeof before);
  commit(cache, a, 2 * T, tokens);
  commit(cache, b, 2 * T, tokens);
  struct quire_cache_stats stats = stats_of(cache);
  assert_int_equal(stats.duplicate_pages, 2);
  assert_int_equal(stats.inserted_pages, 2);
  assert_int_equal(stats.refs, 5 + 5 + 2);
  assert_memory_equal(before, quire_cache_request_pages(cache, b, NULL), sizeof before);
  commit(cache, b, 3 * T + 2, tokens);
  quire_cache_request_release(cache, a);
  assert_int_equal(stats_of(cache).evictable, 0); /* b holds the tree's copies too, as its third page hangs there */
  assert_int_equal(quire_cache_evict(cache, 100), 0);
  quire_cache_request_release(cache, b);
  stats = stats_of(cache);
  assert_int_equal(stats.cached, 3);
  assert_int_equal(stats.evictable, 3);
  assert_int_equal(stats.free, 37);
  assert_int_equal(quire_cache_match(cache, tokens, 3 * T + 1), 3);
  quire_cache_destroy(cache);
}

/* The tree's copies can be evicted once the loser lets them go, with what it hung below them. */
static void duplicates_are_let_go(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 40, 4);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  quire_cache_request a = begin(cache, tokens, 2 * T + 1, 2 * T);
  quire_cache_request b = begin(cache, tokens, 2 * T + 1, 2 * T);
  commit(cache, a, 2 * T, tokens);
  assert_int_equal(quire_cache_request_let_go(cache, a), 0);
  commit(cache, b, 3 * T, tokens);
  quire_cache_request_release(cache, a);
  assert_int_equal(stats_of(cache).evictable, 0);
  assert_int_equal(quire_cache_request_let_go(cache, b), 2);
  assert_int_equal(stats_of(cache).evictable, 2);
  assert_int_equal(quire_cache_match(cache, tokens, 3 * T + 1), 2);
  assert_int_equal(quire_cache_request_let_go(cache, b), 0);
  assert_int_equal(quire_cache_evict(cache, 100), 2);
  commit(cache, b, 4 * T, tokens);
  quire_cache_request_release(cache, b);
  assert_int_equal(stats_of(cache).free, 40);
  quire_cache_destroy(cache);
}

/* A second request on a filling chain takes the pages that the first has sealed meanwhile. */
static void rematch_between_chunks(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 40, 4);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  quire_cache_request a = begin(cache, tokens, 4 * T, 0);
  commit(cache, a, T, tokens);
  quire_cache_request b = begin(cache, tokens, 4 * T, T);
  assert_int_equal(quire_cache_request_tokens(cache, b), T);
  assert_int_equal(quire_cache_request_rematch(cache, b, tokens, 4 * T), 0);
  commit(cache, a, 3 * T, tokens);
  int32_t free_before = stats_of(cache).free;
  assert_int_equal(quire_cache_request_rematch(cache, b, tokens, 4 * T), 2 * T);
  assert_int_equal(stats_of(cache).free, free_before + 2);
  assert_int_equal(quire_cache_request_tokens(cache, b), 3 * T);
  assert_memory_equal(quire_cache_request_pages(cache, a, NULL), quire_cache_request_pages(cache, b, NULL),
                      3 * sizeof(quire_page));
  commit(cache, a, 4 * T, tokens);
  /* the last token is computed even if its page is there; and in the middle of a page nothing is taken */
  assert_int_equal(quire_cache_request_rematch(cache, b, tokens, 4 * T), 0);
  commit(cache, b, 3 * T + 1, tokens);
  assert_int_equal(quire_cache_request_rematch(cache, b, tokens, 4 * T), 0);
  commit(cache, b, 4 * T, tokens);
  assert_int_equal(stats_of(cache).duplicate_pages, 1);
  /* no more pages than were reserved, however long the tokens are said to be */
  quire_cache_request c = begin(cache, tokens, 1, T);
  assert_int_equal(quire_cache_request_rematch(cache, c, tokens, 4 * T + 1), 2 * T);
  quire_cache_request_release(cache, a);
  quire_cache_request_release(cache, b);
  quire_cache_request_release(cache, c);
  assert_int_equal(stats_of(cache).cached, 4);
  quire_cache_destroy(cache);
}

static void no_match_when_not_wanted(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(1, 1, 40, 4);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  quire_cache_request a = begin(cache, tokens, 3 * T, 0);
  commit(cache, a, 3 * T, tokens);
  struct quire_cache_fill fill = {tokens, 3 * T, 0, true, 0, NULL};
  quire_cache_request b;
  assert_int_equal(quire_cache_request_begin(cache, &fill, &b, NULL), QUIRE_OK);
  assert_int_equal(quire_cache_request_tokens(cache, b), 0);
  assert_int_equal(quire_cache_request_rematch(cache, b, tokens, 3 * T), 0);
  commit(cache, b, 3 * T, tokens);
  assert_int_equal(stats_of(cache).duplicate_pages, 3);
  quire_cache_destroy(cache);
}

/* A prompt whose later log-probabilities are wanted takes whole pages up to there and none after. */
static void a_match_stops_where_it_is_told(void **state) {
  (void)state;
  static const struct {
    int32_t match_max, matched;
  } rows[] = {{0, 2 * T}, {1, 0}, {T - 1, 0}, {T, T}, {2 * T - 1, T}, {2 * T, 2 * T}, {3 * T, 2 * T}, {9 * T, 2 * T}};
  struct quire_cache_config config = config_of(1, 1, 40, 4);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  quire_cache_request a = begin(cache, tokens, 3 * T, 0);
  commit(cache, a, 3 * T, tokens);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct quire_cache_fill fill = {tokens, 3 * T, 0, false, rows[i].match_max, NULL};
    quire_cache_request b;
    assert_int_equal(quire_cache_request_begin(cache, &fill, &b, NULL), QUIRE_OK);
    assert_int_equal(quire_cache_request_tokens(cache, b), rows[i].matched);
    assert_int_equal(quire_cache_request_rematch(cache, b, tokens, 3 * T), 0);
    quire_cache_request_release(cache, b);
  }
  quire_cache_destroy(cache);
}

/* Prompt and headroom are reserved together: two prompts that fit one at a time can not block each other. */
static void all_or_nothing(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 10, 4);
  struct quire_cache *cache = create(&config);
  quire_cache_request a = begin(cache, prompt(0), 4 * T, 2 * T);
  struct quire_cache_fill fill = {prompt(1000), 4 * T, T, false, 0, NULL};
  quire_cache_request b = {-7, 7};
  struct quire_error error;
  struct quire_hash128 before = quire_cache_digest(cache);
  assert_int_equal(quire_cache_request_begin(cache, &fill, &b, &error), QUIRE_ERR_AGAIN);
  assert_true(b.slot == -7 && b.serial == 7);
  assert_true(quire_hash128_equal(before, quire_cache_digest(cache)));
  assert_int_equal(quire_cache_request_grow(cache, a, 11 * T, &error), QUIRE_ERR_REQUEST);
  assert_int_equal(quire_cache_request_grow(cache, a, 10 * T, &error), QUIRE_OK);
  fill.tokens_count = 1;
  fill.reserve_tokens = 0;
  assert_int_equal(quire_cache_request_begin(cache, &fill, &b, &error), QUIRE_ERR_AGAIN);
  assert_int_equal(stats_of(cache).refusals, 2);
  quire_cache_request_release(cache, a);
  b = begin(cache, prompt(1000), 4 * T, T);
  assert_int_equal(stats_of(cache).filling, 5);
  quire_cache_destroy(cache);
}

static void what_can_never_fit(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 10, 1);
  struct quire_cache *cache = create(&config);
  static const struct {
    int32_t count, reserve;
    enum quire_status status;
  } rows[] = {{10 * T, 1, QUIRE_ERR_REQUEST},
              {1, 10 * T, QUIRE_ERR_REQUEST},
              {10 * T + 1, 0, QUIRE_ERR_REQUEST},
              {1, INT32_MAX, QUIRE_ERR_REQUEST},
              {0, 1, QUIRE_ERR_ARGUMENT},
              {1, -1, QUIRE_ERR_ARGUMENT},
              {INT32_MAX, INT32_MAX, QUIRE_ERR_REQUEST},
              {10 * T - 1, 1, QUIRE_OK},
              {1, 0, QUIRE_ERR_AGAIN}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct quire_cache_fill fill = {prompt(0), rows[i].count, rows[i].reserve, false, 0, NULL};
    struct quire_error error = {0};
    quire_cache_request request;
    struct quire_hash128 before = quire_cache_digest(cache);
    assert_int_equal(quire_cache_request_begin(cache, &fill, &request, &error), rows[i].status);
    if (rows[i].status == QUIRE_ERR_REQUEST) {
      assert_non_null(strstr(error.text, "a request can have 40 tokens"));
    }
    assert_int_equal(quire_hash128_equal(before, quire_cache_digest(cache)), rows[i].status != QUIRE_OK);
  }
  quire_cache_destroy(cache);
}

/* Preemption at any point: sealed pages stay, everything else is free, the resumed request hits, and nothing is held
 * twice or freed while the tree has it. */
static void preemption_and_resume(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 20, 2);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  for (int32_t written = 0; written <= 4 * T; written++) {
    quire_cache_request request = begin(cache, tokens, 4 * T, T);
    commit(cache, request, written, tokens);
    quire_cache_request_reset(cache, request);
    struct quire_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.sealed, written / T);
    assert_int_equal(stats.evictable, written / T);
    assert_int_equal(stats.filling, 0);
    assert_int_equal(stats.requests, 1);
    assert_int_equal(quire_cache_request_tokens(cache, request), 0);
    struct quire_cache_fill fill = {tokens, written + 1, T, false, 0, NULL};
    assert_int_equal(quire_cache_request_fill(cache, request, &fill, NULL), QUIRE_OK);
    assert_int_equal(quire_cache_request_tokens(cache, request), written / T * T);
    assert_int_equal(quire_cache_request_fill(cache, request, &fill, NULL), QUIRE_ERR_STATE);
    quire_cache_request_release(cache, request);
    assert_int_equal(stats_of(cache).requests, 0);
    quire_cache_flush(cache);
    assert_int_equal(stats_of(cache).free, 20);
  }
  quire_cache_destroy(cache);
}

static void eviction_takes_the_oldest_leaves(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 12, 2);
  struct quire_cache *cache = create(&config);
  for (int32_t i = 0; i < 3; i++) {
    quire_cache_request request = begin(cache, prompt(1000 * i), 4 * T, 0);
    commit(cache, request, 4 * T, prompt(1000 * i));
    quire_cache_request_release(cache, request);
  }
  assert_int_equal(stats_of(cache).evictable, 12);
  /* wants one page, of the stripe after its last: prompt 1000 is the oldest, but its last page is of the other stripe,
   * so that two go */
  quire_cache_request reuse = begin(cache, prompt(0), 4 * T + 1, 0);
  assert_int_equal(quire_cache_request_tokens(cache, reuse), 4 * T);
  assert_int_equal(stats_of(cache).evicted_pages, 2);
  assert_int_equal(quire_cache_match(cache, prompt(1000), 4 * T + 1), 2);
  assert_int_equal(quire_cache_match(cache, prompt(2000), 4 * T + 1), 4);
  quire_cache_request_release(cache, reuse);
  assert_int_equal(quire_cache_evict(cache, 3), 3);
  assert_int_equal(quire_cache_match(cache, prompt(1000), 4 * T + 1), 0);
  assert_int_equal(quire_cache_match(cache, prompt(2000), 4 * T + 1), 3);
  assert_int_equal(quire_cache_match(cache, prompt(0), 4 * T + 1), 4);
  assert_int_equal(quire_cache_evict(cache, 100), 7);
  assert_int_equal(stats_of(cache).evicted_pages, 12);
  assert_int_equal(stats_of(cache).free, 12);
  quire_cache_destroy(cache);
}

/* A lost page takes what hangs below it out of the tree; requests that stand on it go on, but add nothing to the tree.
 */
static void a_dropped_page_loses_its_subtree(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 40, 4);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  quire_cache_request a = begin(cache, tokens, 6 * T, 2 * T);
  commit(cache, a, 5 * T, tokens);
  quire_cache_request b = begin(cache, tokens, 2 * T + 1, 0);
  quire_page second = quire_cache_request_pages(cache, a, NULL)[1];
  assert_int_equal(quire_cache_drop_page(cache, second), 4);
  assert_int_equal(quire_cache_drop_page(cache, second), 0);
  assert_int_equal(quire_cache_match(cache, tokens, 6 * T), 1);
  commit(cache, a, 6 * T, tokens);
  assert_int_equal(quire_cache_match(cache, tokens, 6 * T + 1), 1);
  assert_int_equal(quire_cache_request_rematch(cache, b, tokens, 6 * T), 0);
  struct quire_cache_stats stats = stats_of(cache);
  assert_int_equal(stats.cached, 1);
  assert_int_equal(stats.sealed, 6);
  quire_cache_request c = begin(cache, tokens, 6 * T, 0); /* the content comes again from somebody else */
  commit(cache, c, 6 * T, tokens);
  assert_int_equal(quire_cache_match(cache, tokens, 6 * T + 1), 6);
  commit(cache, a, 7 * T, tokens);
  assert_int_equal(quire_cache_match(cache, tokens, 7 * T + 1), 6);
  quire_cache_request_release(cache, a);
  quire_cache_request_release(cache, b);
  quire_cache_request_release(cache, c);
  stats = stats_of(cache);
  assert_int_equal(stats.sealed, 6);
  assert_int_equal(stats.free, 34);
  quire_cache_destroy(cache);
}

/* A flush detaches at once, frees what is in use when its user ends, and nobody puts old content back. */
static void flush_under_load(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 40, 4);
  struct quire_cache *cache = create(&config);
  const int32_t *tokens = prompt(0);
  quire_cache_request a = begin(cache, tokens, 6 * T, 0);
  quire_cache_request fresh = begin(cache, prompt(5000), 2 * T, 0); /* nothing of it is in the tree yet */
  commit(cache, a, 3 * T, tokens);
  assert_int_equal(quire_cache_flush(cache), 3);
  assert_int_equal(quire_cache_match(cache, tokens, 6 * T), 0);
  struct quire_cache_stats stats = stats_of(cache);
  assert_int_equal(stats.sealed, 3);
  assert_int_equal(stats.cached, 0);
  commit(cache, a, 6 * T, tokens);
  commit(cache, fresh, 2 * T, prompt(5000));
  assert_int_equal(stats_of(cache).cached, 0);
  quire_cache_request after = begin(cache, tokens, 2 * T, 0);
  commit(cache, after, 2 * T, tokens);
  assert_int_equal(stats_of(cache).cached, 2);
  assert_int_equal(quire_cache_request_rematch(cache, a, tokens, 7 * T), 0);
  quire_cache_request_release(cache, a);
  quire_cache_request_release(cache, fresh);
  quire_cache_request_release(cache, after);
  stats = stats_of(cache);
  assert_int_equal(stats.sealed, 2);
  assert_int_equal(stats.free, 38);
  /* preemption ends the old life: what is filled after the flush counts again */
  quire_cache_request again = begin(cache, prompt(7000), T, 0);
  quire_cache_flush(cache);
  quire_cache_request_reset(cache, again);
  struct quire_cache_fill fill = {prompt(7000), T, 0, false, 0, NULL};
  assert_int_equal(quire_cache_request_fill(cache, again, &fill, NULL), QUIRE_OK);
  commit(cache, again, T, prompt(7000));
  assert_int_equal(stats_of(cache).cached, 1);
  quire_cache_destroy(cache);
}

/* With poison on, a freed page comes back only after every rank that stores it has said so; the command is well formed.
 */
static void poison_before_reuse(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(4, 2, 4, 2);
  config.poison = true;
  struct quire_cache *cache = create(&config);
  quire_cache_request a = begin(cache, prompt(0), 4 * T, 0);
  commit(cache, a, 2 * T, prompt(0));
  quire_cache_request_release(cache, a);
  struct quire_cache_stats stats = stats_of(cache);
  assert_int_equal(stats.quarantined, 2);
  assert_int_equal(stats.pins, 2);
  assert_int_equal(stats.evictable, 2);
  struct quire_command commands[5];
  assert_int_equal(quire_cache_commands(cache, commands, 5), 2);
  for (int32_t i = 0; i < 2; i++) {
    assert_true(quire_command_check(&config.geometry, &commands[i], NULL));
    assert_int_equal(commands[i].kind, QUIRE_COMMAND_POISON);
    assert_int_equal(commands[i].ranks, 5u << commands[i].page.v % 2);
  }
  struct quire_cache_fill fill = {prompt(1000), 3 * T, 0, false, 0, NULL};
  quire_cache_request b;
  struct quire_hash128 before = quire_cache_digest(cache);
  assert_int_equal(quire_cache_request_begin(cache, &fill, &b, NULL), QUIRE_ERR_AGAIN); /* 2 evictable, 3 wanted */
  assert_true(quire_hash128_equal(before, quire_cache_digest(cache)));
  struct quire_error error;
  for (int32_t i = 0; i < 2; i++) {
    int32_t first = commands[i].page.v % 2;
    struct quire_ack ack = {.op = commands[i].op, .rank = {first}};
    struct quire_ack stranger = {.op = commands[i].op, .rank = {first ^ 1}};
    assert_int_equal(quire_cache_ack(cache, &ack, NULL), QUIRE_OK);
    assert_int_equal(stats_of(cache).quarantined, 2 - i);
    assert_int_equal(quire_cache_ack(cache, &ack, &error), QUIRE_ERR_STATE); /* twice */
    assert_int_equal(quire_cache_ack(cache, &stranger, &error), QUIRE_ERR_STATE);
    ack.rank.v = first + 2;
    assert_int_equal(quire_cache_ack(cache, &ack, NULL), QUIRE_OK);
    assert_int_equal(stats_of(cache).free, 1 + i);
    assert_int_equal(quire_cache_ack(cache, &ack, &error), QUIRE_ERR_STATE); /* the command has ended */
  }
  /* two are free; for the third both that are cached are evicted, the tail and then the page of the stripe in turn */
  assert_int_equal(quire_cache_request_begin(cache, &fill, &b, NULL), QUIRE_ERR_AGAIN);
  stats = stats_of(cache);
  assert_int_equal(stats.quarantined, 2);
  assert_int_equal(stats.evictable, 0);
  ack_all(cache, QUIRE_OK);
  assert_int_equal(quire_cache_request_begin(cache, &fill, &b, NULL), QUIRE_OK);
  /* an answer to an earlier command of the same page is not one to the present one */
  quire_cache_request_release(cache, b);
  struct quire_command again[4];
  assert_int_equal(quire_cache_commands(cache, again, 4), 3);
  for (int32_t i = 0; i < 2; i++) {
    struct quire_ack late = {.op = commands[i].op, .rank = {commands[i].page.v % 2}};
    assert_int_equal(quire_cache_ack(cache, &late, &error), QUIRE_ERR_STATE);
  }
  struct quire_ack wild[] = {{.op = 77}, {.op = UINT64_MAX}, {.op = 1, .rank = {-1}}, {.op = 1, .rank = {99}}};
  for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
    assert_int_equal(quire_cache_ack(cache, &wild[i], &error), QUIRE_ERR_STATE);
  }
  quire_cache_destroy(cache);
}

/* With poison on, one round of commands is enough: a refused request fits as soon as all are acknowledged. */
static void one_refusal_is_enough(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(8, 8, 48, 8);
  config.poison = true;
  struct quire_cache *cache = create(&config);
  for (int32_t i = 0; i < 40; i++) {
    const int32_t *tokens = prompt(1000 * i);
    int32_t pages = 1 + i * 7 % 15;
    struct quire_cache_fill fill = {tokens, pages * T, i % 3 == 0 ? T : 0, false, 0, NULL};
    quire_cache_request request;
    enum quire_status status = quire_cache_request_begin(cache, &fill, &request, NULL);
    if (status == QUIRE_ERR_AGAIN) {
      ack_all(cache, QUIRE_OK);
      status = quire_cache_request_begin(cache, &fill, &request, NULL);
    }
    assert_int_equal(status, QUIRE_OK);
    commit(cache, request, pages * T, tokens);
    quire_cache_request_release(cache, request);
  }
  assert_true(stats_of(cache).refusals > 0);
  quire_cache_destroy(cache);
}

/* A command that failed leaves its page in quarantine for good; more than allowed make the worker unhealthy. */
static void failed_commands_lose_pages(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(1, 1, 8, 2);
  config.poison = true;
  struct quire_cache *cache = create(&config);
  for (int32_t i = 0; i < 3; i++) {
    quire_cache_request a = begin(cache, prompt(0), T, 0);
    quire_cache_request_release(cache, a);
    ack_all(cache, QUIRE_ERR_RANK);
    struct quire_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.lost, i + 1);
    assert_int_equal(stats.free, 7 - i);
    assert_int_equal(stats.healthy, i < 1);
  }
  quire_cache_destroy(cache);
}

/* Another tenant, fingerprint or hash has another root; within one cache chains can not meet. */
static void roots_differ(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(1, 1, 8, 2);
  struct quire_hash128 roots[4];
  for (int i = 0; i < 4; i++) {
    struct quire_cache_config other = config;
    other.fingerprint.low += i == 1;
    other.tenant_salt = "x";
    other.tenant_salt_bytes = i == 2;
    other.chain_kind = i == 3 ? QUIRE_CHAIN_SHA256 : QUIRE_CHAIN_XXH3;
    struct quire_cache *cache = create(&other);
    roots[i] = quire_cache_root(cache);
    assert_true(quire_cache_bundle_bytes(cache) == T * (1152 + 132));
    quire_cache_destroy(cache);
    for (int j = 0; j < i; j++) {
      assert_false(quire_hash128_equal(roots[i], roots[j]));
    }
  }
}

static void commits_refused(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(1, 1, 8, 2);
  struct quire_cache *cache = create(&config);
  quire_cache_request a = begin(cache, prompt(0), 2 * T, 0);
  commit(cache, a, T + 2, prompt(0));
  struct quire_hash128 before = quire_cache_digest(cache);
  assert_int_equal(quire_cache_request_commit(cache, a, T + 1, prompt(0), NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_cache_request_commit(cache, a, 2 * T + 1, prompt(0), NULL), QUIRE_ERR_ARGUMENT);
  assert_true(quire_hash128_equal(before, quire_cache_digest(cache)));
  commit(cache, a, T + 2, prompt(0));
  commit(cache, a, 2 * T, prompt(0));
  quire_cache_destroy(cache);
}

static void configurations_refused(void **state) {
  (void)state;
  for (int i = 0; i < 8; i++) {
    struct quire_cache_config config = config_of(4, 4, 8, 2);
    config.geometry.storage_ranks = i == 0 ? 3 : 4;
    config.geometry.page_tokens = i == 1 ? 2 * T : T;
    config.parts = i == 2 ? NULL : &parts;
    config.requests_max = i == 3 ? 0 : 2;
    config.request_pages_max = i == 4 ? 0 : 2;
    config.tenant_salt_bytes = i == 5 ? 1 : 0;
    config.chain_kind = (enum quire_chain_kind)(i == 6 ? 9 : 0);
    config.lost_pages_max = i == 7 ? -1 : 0;
    struct quire_cache *cache = NULL;
    struct quire_error error = {0};
    assert_int_equal(quire_cache_create(quire_env_default(), &config, &cache, &error), QUIRE_ERR_ARGUMENT);
    assert_true(error.text[0] != 0);
    assert_null(cache);
    assert_true(quire_cache_bytes(&config) == 0);
  }
}

static enum quire_status whole_life(void *context, const struct quire_env *env) {
  const struct quire_cache_config *config = context;
  struct quire_cache *cache = NULL;
  enum quire_status status = quire_cache_create(env, config, &cache, NULL);
  if (status != QUIRE_OK) {
    assert_null(cache);
    return status;
  }
  quire_cache_request a = begin(cache, prompt(0), 2 * T, 0);
  commit(cache, a, 2 * T, prompt(0));
  check(cache);
  quire_cache_destroy(cache);
  return QUIRE_OK;
}

static void memory_is_taken_at_creation_only(void **state) {
  (void)state;
  struct quire_cache_config config = config_of(2, 2, 8, 2);
  assert_int_equal(fail_env_sweep(whole_life, &config), 3);
  struct fail_env env;
  fail_env_init(&env);
  struct quire_cache *cache = NULL;
  assert_int_equal(quire_cache_create(&env.env, &config, &cache, NULL), QUIRE_OK);
  assert_true((int64_t)env.live_bytes == quire_cache_bytes(&config));
  quire_cache_destroy(cache);
  quire_cache_destroy(NULL);
  fail_env_fini(&env);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(second_time_is_a_hit),
      cmocka_unit_test(pages_come_in_turn_over_the_stripes),
      cmocka_unit_test(duplicates_lose),
      cmocka_unit_test(duplicates_are_let_go),
      cmocka_unit_test(rematch_between_chunks),
      cmocka_unit_test(no_match_when_not_wanted),
      cmocka_unit_test(a_match_stops_where_it_is_told),
      cmocka_unit_test(all_or_nothing),
      cmocka_unit_test(what_can_never_fit),
      cmocka_unit_test(preemption_and_resume),
      cmocka_unit_test(eviction_takes_the_oldest_leaves),
      cmocka_unit_test(a_dropped_page_loses_its_subtree),
      cmocka_unit_test(flush_under_load),
      cmocka_unit_test(poison_before_reuse),
      cmocka_unit_test(one_refusal_is_enough),
      cmocka_unit_test(failed_commands_lose_pages),
      cmocka_unit_test(roots_differ),
      cmocka_unit_test(commits_refused),
      cmocka_unit_test(configurations_refused),
      cmocka_unit_test(memory_is_taken_at_creation_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
