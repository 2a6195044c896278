#include "radix_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/seed.h"

static void random_lives(void **state) {
  (void)state;
  uint64_t seed = test_seed("random_lives");
  static const int32_t ranks[] = {1, 2, 4, 16};
  for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
    random_life(quire_splitmix64(&seed), ranks[i], 5000);
  }
}

/* The digest is of the state, not of the way to it. */
static void digest_of_the_same_state(void **state) {
  (void)state;
  struct quire_geometry g = {2, 1, 1, 8};
  static const int32_t tokens[][2] = {{1, 2}, {3, 4}, {5, 6}};
  struct quire_radix *radix[2];
  for (int i = 0; i < 2; i++) {
    assert_int_equal(quire_radix_create(quire_env_default(), &g, &radix[i], NULL), QUIRE_OK);
    quire_page none = {QUIRE_PAGE_NONE};
    quire_page top = {0};
    quire_radix_insert(radix[i], root_of(0), none, top, tokens[0]);
    for (int k = 0; k < 2; k++) {
      int brother = i == 0 ? k : 1 - k;
      quire_radix_insert(radix[i], root_of(0), top, (quire_page){1 + brother}, tokens[1 + brother]);
    }
  }
  assert_true(quire_hash128_equal(quire_radix_digest(radix[0]), quire_radix_digest(radix[1])));
  quire_radix_hold(radix[1], (quire_page){0}, true);
  assert_false(quire_hash128_equal(quire_radix_digest(radix[0]), quire_radix_digest(radix[1])));
  quire_radix_destroy(radix[0]);
  quire_radix_destroy(radix[1]);
}

/* What is used again outlives what is not, and a prefix outlives what hangs below it. */
static void least_recently_used_first(void **state) {
  (void)state;
  struct quire_geometry g = {1, 1, 1, 8};
  struct quire_radix *radix;
  assert_int_equal(quire_radix_create(quire_env_default(), &g, &radix, NULL), QUIRE_OK);
  quire_page none = {QUIRE_PAGE_NONE};
  for (int32_t p = 0; p < 3; p++) { /* chains 0 - 3, 1 - 4, 2 - 5 */
    int32_t below = 9;
    quire_radix_insert(radix, root_of(0), none, (quire_page){p}, &p);
    quire_radix_insert(radix, root_of(0), (quire_page){p}, (quire_page){3 + p}, &below);
  }
  quire_radix_touch(radix, (quire_page){3});
  quire_radix_hold(radix, (quire_page){1}, true);
  static const int32_t order[] = {4, 5, 2, 3, 0, QUIRE_PAGE_NONE};
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    assert_int_equal(quire_radix_evict_any(radix).v, order[i]);
  }
  quire_radix_hold(radix, (quire_page){1}, false);
  assert_int_equal(quire_radix_evict(radix, (quire_stripe_id){0}).v, 1);
  assert_int_equal(quire_radix_count(radix), 0);
  quire_radix_destroy(radix);
}

static enum quire_status create_and_destroy(void *context, const struct quire_env *env) {
  (void)context;
  struct quire_geometry g = {4, 2, 2, 10};
  struct quire_radix *radix = NULL;
  enum quire_status status = quire_radix_create(env, &g, &radix, NULL);
  if (status == QUIRE_OK) {
    assert_true(quire_radix_check(radix, NULL));
    quire_radix_destroy(radix);
  }
  return status;
}

static void creation_refused(void **state) {
  (void)state;
  struct quire_geometry bad = {64, 4, 3, 8};
  struct quire_radix *radix = NULL;
  assert_int_equal(quire_radix_create(quire_env_default(), &bad, &radix, NULL), QUIRE_ERR_ARGUMENT);
  assert_true(quire_radix_bytes(&bad) == 0);
  assert_null(radix);
  quire_radix_destroy(NULL);
  assert_int_equal(fail_env_sweep(create_and_destroy, NULL), 1);
}

/* Chains that part from what is in the tree at every place: stages of a match work on blocks of pages, so all borders
 * of blocks are among them. */
static void every_depth(void **state) {
  (void)state;
  enum { CHAIN = 43, TOKENS = 5 };
  struct quire_geometry g = {TOKENS, 2, 2, CHAIN + 7};
  struct quire_radix *radix;
  int32_t tokens[CHAIN * TOKENS];
  quire_page found[CHAIN], in_tree[CHAIN];
  uint64_t keys[CHAIN];
  assert_int_equal(quire_radix_create(quire_env_default(), &g, &radix, NULL), QUIRE_OK);
  for (int32_t i = 0; i < CHAIN * TOKENS; i++) {
    tokens[i] = i % 3;
  }
  for (int32_t p = 0; p < CHAIN; p++) {
    in_tree[p].v = (p * 11 + 3) % (CHAIN + 7);
    quire_page above = {p > 0 ? in_tree[p - 1].v : QUIRE_PAGE_NONE};
    assert_int_equal(quire_radix_insert(radix, root_of(0), above, in_tree[p], tokens + p * TOKENS).v, in_tree[p].v);
  }
  for (int32_t part = 0; part <= CHAIN; part++) {
    for (int32_t pages = 0; pages <= CHAIN; pages++) {
      struct quire_radix_chain chain = {root_of(0), tokens, pages};
      const int32_t wanted = part < pages ? part : pages;
      if (part < CHAIN) {
        tokens[part * TOKENS + TOKENS - 1] += 7;
      }
      memset(found, 0x55, sizeof found);
      assert_int_equal(quire_radix_match(radix, &chain, found), wanted);
      assert_memory_equal(found, in_tree, (size_t)wanted * sizeof *found);
      quire_radix_keys(radix, &chain, keys);
      assert_int_equal(quire_radix_match_keys(radix, &chain, keys, NULL), wanted);
      for (int32_t from = 1; from <= wanted; from += 5) {
        struct quire_radix_chain rest = {root_of(0), tokens + from * TOKENS, pages - from};
        assert_int_equal(quire_radix_match_below(radix, in_tree[from - 1], &rest, found), wanted - from);
      }
      if (part < CHAIN) {
        tokens[part * TOKENS + TOKENS - 1] -= 7;
      }
    }
  }
  assert_true(quire_radix_check(radix, NULL));
  quire_radix_destroy(radix);
}

/* Not a benchmark, but a figure to notice a blunder by: a chain of 16,384 pages of 64 tokens, matched as a whole. */
static void long_chain(void **state) {
  (void)state;
  enum { CHAIN = 16384 };
  struct quire_geometry g = {64, 8, 8, CHAIN};
  struct quire_radix *radix;
  int32_t *tokens = malloc((size_t)CHAIN * 64 * sizeof *tokens);
  quire_page *found = malloc((size_t)CHAIN * sizeof *found);
  assert_non_null(tokens);
  assert_non_null(found);
  assert_int_equal(quire_radix_create(quire_env_default(), &g, &radix, NULL), QUIRE_OK);
  quire_page above = {QUIRE_PAGE_NONE};
  for (int32_t p = 0; p < CHAIN; p++) {
    for (int32_t i = 0; i < 64; i++) {
      tokens[p * 64 + i] = p * 31 + i;
    }
    quire_page page = {CHAIN - 1 - p};
    assert_int_equal(quire_radix_insert(radix, root_of(0), above, page, tokens + (ptrdiff_t)p * 64).v, page.v);
    above = page;
  }
  struct quire_radix_chain chain = {root_of(0), tokens, CHAIN};
  struct timespec t0, t1;
  clock_gettime(CLOCK_MONOTONIC, &t0);
  for (int round = 0; round < 8; round++) {
    assert_int_equal(quire_radix_match(radix, &chain, found), CHAIN);
  }
  clock_gettime(CLOCK_MONOTONIC, &t1);
  double seconds = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
  printf("match: %.1f million pages a second, hashing included\n", 8.0 * CHAIN / seconds * 1e-6);
  tokens[5000 * 64 + 63]++;
  assert_int_equal(quire_radix_match(radix, &chain, found), 5000);
  assert_true(quire_radix_check(radix, NULL));
  assert_int_equal(quire_radix_drop(radix, (quire_page){CHAIN - 1}, NULL, NULL), CHAIN);
  quire_radix_destroy(radix);
  free(found);
  free(tokens);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_lives),     cmocka_unit_test(digest_of_the_same_state),
      cmocka_unit_test(creation_refused), cmocka_unit_test(least_recently_used_first),
      cmocka_unit_test(long_chain),       cmocka_unit_test(every_depth),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
