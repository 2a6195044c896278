/* The prefix tree against a flat model: a list of pages, each with all tokens from its root on, searched from end to
 * end. Included by two tests, one of which makes every hash collide. The vocabulary is two tokens and a page has two,
 * so that chains meet and part all the time. */
#ifndef QUIRE_TESTS_RADIX_MODEL_H
#define QUIRE_TESTS_RADIX_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "radix/radix.h"
#include "support/fail_env.h"

#define PAGE_TOKENS 2
#define DEPTH_MAX 10
#define PAGES 61
#define ROOTS 3

struct entry {
  bool in_tree;
  int32_t root;
  int32_t parent;
  int32_t depth; /* pages from the root, itself included */
  int32_t tokens[DEPTH_MAX * PAGE_TOKENS];
  uint64_t used;
  int32_t users; /* of this page or below */
};

struct model {
  struct quire_radix *radix;
  struct quire_geometry geometry;
  uint64_t clock;
  int32_t removed; /* calls of on_removed */
  struct entry entries[PAGES];
};

static struct quire_hash128 root_of(int32_t root) {
  struct quire_hash128 digest = {7, (uint64_t)root};
  return digest;
}

static int32_t find_entry(const struct model *m, int32_t root, const int32_t *tokens, int32_t depth) {
  for (int32_t p = 0; p < PAGES; p++) {
    const struct entry *e = &m->entries[p];
    if (e->in_tree && e->root == root && e->depth == depth &&
        memcmp(e->tokens, tokens, (size_t)depth * PAGE_TOKENS * sizeof *tokens) == 0) {
      return p;
    }
  }
  return QUIRE_PAGE_NONE;
}

static bool is_leaf(const struct model *m, int32_t page) {
  for (int32_t p = 0; p < PAGES; p++) {
    if (m->entries[p].in_tree && m->entries[p].parent == page) {
      return false;
    }
  }
  return true;
}

/* The leaf without users that was used longest ago; of one stripe, or of all with -1. */
static int32_t oldest_leaf(const struct model *m, int32_t stripe) {
  int32_t oldest = QUIRE_PAGE_NONE;
  for (int32_t p = 0; p < PAGES; p++) {
    const struct entry *e = &m->entries[p];
    bool wanted =
        e->in_tree && e->users == 0 && is_leaf(m, p) && (stripe < 0 || p % m->geometry.storage_ranks == stripe);
    if (wanted && (oldest < 0 || e->used < m->entries[oldest].used)) {
      oldest = p;
    }
  }
  return oldest;
}

static void random_tokens(uint64_t *rng, int32_t tokens_out[DEPTH_MAX * PAGE_TOKENS]) {
  for (int32_t i = 0; i < DEPTH_MAX * PAGE_TOKENS; i++) {
    tokens_out[i] = (int32_t)quire_splitmix64_below(rng, 2);
  }
}

static void touch_entry(struct model *m, int32_t page) {
  m->clock++;
  for (int32_t p = page; p != QUIRE_PAGE_NONE; p = m->entries[p].parent) {
    m->entries[p].used = m->clock;
  }
}

static void match_step(struct model *m, uint64_t *rng) {
  int32_t tokens[DEPTH_MAX * PAGE_TOKENS];
  int32_t root = (int32_t)quire_splitmix64_below(rng, ROOTS);
  random_tokens(rng, tokens);
  int32_t pages = (int32_t)quire_splitmix64_below(rng, DEPTH_MAX + 1);
  struct quire_radix_chain chain = {root_of(root), tokens, pages};
  quire_page found[DEPTH_MAX];
  int32_t matched = quire_radix_match(m->radix, &chain, found);
  assert_int_equal(matched, quire_radix_match(m->radix, &chain, NULL));
  uint64_t keys[DEPTH_MAX];
  quire_page by_keys[DEPTH_MAX];
  quire_radix_keys(m->radix, &chain, keys);
  assert_int_equal(matched, quire_radix_match_keys(m->radix, &chain, keys, by_keys));
  assert_memory_equal(by_keys, found, (size_t)matched * sizeof *found);
  for (int32_t depth = 1; depth <= matched; depth++) {
    assert_int_equal(found[depth - 1].v, find_entry(m, root, tokens, depth));
  }
  assert_true(matched == pages || find_entry(m, root, tokens, matched + 1) == QUIRE_PAGE_NONE);
  for (int32_t from = 1; from <= matched; from++) { /* starting in the middle finds the same */
    struct quire_radix_chain rest = {root_of(root), tokens + from * PAGE_TOKENS, pages - from};
    quire_page again[DEPTH_MAX];
    assert_int_equal(quire_radix_match_below(m->radix, found[from - 1], &rest, again), matched - from);
    assert_memory_equal(again, found + from, (size_t)(matched - from) * sizeof *again);
  }
  if (matched > 0 && quire_splitmix64_below(rng, 2) == 0) {
    quire_radix_touch(m->radix, found[matched - 1]);
    touch_entry(m, found[matched - 1].v);
  }
}

static void insert_step(struct model *m, uint64_t *rng) {
  int32_t tokens[DEPTH_MAX * PAGE_TOKENS];
  int32_t root = (int32_t)quire_splitmix64_below(rng, ROOTS);
  random_tokens(rng, tokens);
  int32_t above = QUIRE_PAGE_NONE;
  int32_t depth = 1;
  for (; depth <= DEPTH_MAX && quire_splitmix64_below(rng, 5) != 0; depth++) {
    int32_t page = find_entry(m, root, tokens, depth);
    if (page == QUIRE_PAGE_NONE) {
      break;
    }
    above = page;
  }
  int32_t fresh = (int32_t)quire_splitmix64_below(rng, PAGES);
  if (depth > DEPTH_MAX || m->entries[fresh].in_tree) {
    return;
  }
  int32_t there = find_entry(m, root, tokens, depth);
  quire_page got = quire_radix_insert(m->radix, root_of(root), (quire_page){above}, (quire_page){fresh},
                                      tokens + (depth - 1) * PAGE_TOKENS);
  if (there != QUIRE_PAGE_NONE) {
    assert_int_equal(got.v, there);
    return;
  }
  assert_int_equal(got.v, fresh);
  struct entry *e = &m->entries[fresh];
  *e = (struct entry){.in_tree = true, .root = root, .parent = above, .depth = depth};
  memcpy(e->tokens, tokens, (size_t)depth * PAGE_TOKENS * sizeof *tokens);
}

/* Somebody begins to use a page and all above it, or ends. */
static void user_step(struct model *m, uint64_t *rng) {
  int32_t page = (int32_t)quire_splitmix64_below(rng, PAGES);
  if (!m->entries[page].in_tree) {
    return;
  }
  int32_t below = 0; /* users that are users of a child */
  for (int32_t p = 0; p < PAGES; p++) {
    below += m->entries[p].in_tree && m->entries[p].parent == page ? m->entries[p].users : 0;
  }
  bool begins = m->entries[page].users == below || quire_splitmix64_below(rng, 4) == 0;
  int32_t path[DEPTH_MAX];
  int32_t count = 0;
  for (int32_t p = page; p != QUIRE_PAGE_NONE; p = m->entries[p].parent) {
    path[count++] = p;
  }
  for (int32_t i = 0; i < count; i++) {
    int32_t p = path[begins ? count - 1 - i : i];
    m->entries[p].users += begins ? 1 : -1;
    if (m->entries[p].users == (begins ? 1 : 0)) {
      quire_radix_hold(m->radix, (quire_page){p}, begins);
    }
  }
}

static void evict_step(struct model *m, uint64_t *rng) {
  int32_t stripe = (int32_t)quire_splitmix64_below(rng, (uint64_t)m->geometry.storage_ranks + 1) - 1;
  int32_t wanted = oldest_leaf(m, stripe);
  if (wanted == QUIRE_PAGE_NONE) {
    wanted = oldest_leaf(m, -1);
  }
  quire_page got =
      stripe < 0 ? quire_radix_evict_any(m->radix) : quire_radix_evict(m->radix, (quire_stripe_id){stripe});
  assert_int_equal(got.v, wanted);
  if (wanted != QUIRE_PAGE_NONE) {
    m->entries[wanted].in_tree = false;
  }
}

/* Children come before their parents. */
static void on_removed(void *context, quire_page page) {
  struct model *m = context;
  assert_true(m->entries[page.v].in_tree);
  assert_true(is_leaf(m, page.v));
  assert_false(quire_radix_contains(m->radix, page));
  m->entries[page.v].in_tree = false;
  m->removed++;
}

static bool is_below(const struct model *m, int32_t page, int32_t top) {
  int32_t p = page;
  while (p != top && p != QUIRE_PAGE_NONE) {
    p = m->entries[p].parent;
  }
  return p == top;
}

static void drop_step(struct model *m, uint64_t *rng) {
  int32_t top = (int32_t)quire_splitmix64_below(rng, PAGES);
  if (!m->entries[top].in_tree) {
    return;
  }
  bool falls[PAGES];
  int32_t count = 0;
  for (int32_t p = 0; p < PAGES; p++) {
    falls[p] = m->entries[p].in_tree && is_below(m, p, top);
    count += falls[p];
  }
  /* users of what falls no longer use what is above it */
  int32_t lost_users = m->entries[top].users;
  int32_t above = m->entries[top].parent;
  m->removed = 0;
  assert_int_equal(quire_radix_drop(m->radix, (quire_page){top}, on_removed, m), count);
  assert_int_equal(m->removed, count);
  for (int32_t p = 0; p < PAGES; p++) {
    assert_true(!falls[p] || !m->entries[p].in_tree);
  }
  for (int32_t p = above; lost_users > 0 && p != QUIRE_PAGE_NONE; p = m->entries[p].parent) {
    m->entries[p].users -= lost_users;
    if (m->entries[p].users == 0) {
      quire_radix_hold(m->radix, (quire_page){p}, false);
    }
  }
}

static void flush_step(struct model *m) {
  int32_t count = quire_radix_count(m->radix);
  m->removed = 0;
  assert_int_equal(quire_radix_flush(m->radix, on_removed, m), count);
  assert_int_equal(m->removed, count);
}

static void compare(const struct model *m) {
  struct quire_error why;
  if (!quire_radix_check(m->radix, &why)) {
    fail_msg("%s", why.text);
  }
  int32_t count = 0;
  for (int32_t p = 0; p < PAGES; p++) {
    const struct entry *e = &m->entries[p];
    quire_page page = {p};
    count += e->in_tree;
    assert_int_equal(quire_radix_contains(m->radix, page), e->in_tree);
    if (e->in_tree) {
      assert_int_equal(quire_radix_parent(m->radix, page).v, e->parent);
      assert_int_equal(quire_radix_held(m->radix, page), e->users > 0);
    }
  }
  assert_int_equal(quire_radix_count(m->radix), count);
}

static void random_life(uint64_t rng, int32_t storage_ranks, int32_t steps) {
  struct fail_env env;
  fail_env_init(&env);
  struct model m = {.geometry = {PAGE_TOKENS, storage_ranks, storage_ranks, PAGES}};
  assert_int_equal(quire_radix_create(&env.env, &m.geometry, &m.radix, NULL), QUIRE_OK);
  assert_true((int64_t)env.live_bytes == quire_radix_bytes(&m.geometry));
  for (int32_t step = 0; step < steps; step++) {
    uint64_t what = quire_splitmix64_below(&rng, 1000);
    if (what < 450) {
      insert_step(&m, &rng);
    } else if (what < 700) {
      match_step(&m, &rng);
    } else if (what < 850) {
      user_step(&m, &rng);
    } else if (what < 970) {
      evict_step(&m, &rng);
    } else if (what < 998) {
      drop_step(&m, &rng);
    } else {
      flush_step(&m);
      assert_true(quire_hash128_equal(quire_radix_digest(m.radix), quire_hash128(NULL, 0, 0)));
    }
    compare(&m);
    assert_true(env.allocations == 1); /* nothing is allocated after creation */
  }
  quire_radix_destroy(m.radix);
  fail_env_fini(&env);
}

#endif
