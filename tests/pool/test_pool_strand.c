/* Prompts that branch behind the same prefix, until nothing fits any more: how many pages did get used? A strict
 * rotation, in which page j of a chain must come from the stripe after that of page j - 1, strands what the other
 * stripes have; the pool's rule uses everything. Both are run over the same loads, and the figures are printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/rng.h"
#include "pool/pool.h"
#include "support/seed.h"

#define STRIPES 8
#define PAGES 4096
#define TABLES 4096

struct load {
  const char *name;
  int32_t prefixes;                  /* shared prompts, taken in turn */
  int32_t prefix_pages;              /* length of each */
  int32_t branch_least, branch_most; /* pages of a request behind it */
};

static const struct load loads[] = {
    {"one system prompt, answers of 1 page", 1, 1, 1, 1},   {"one system prompt, 1 to 3 pages", 1, 5, 1, 3},
    {"one long document, 1 to 2 pages", 1, 1023, 1, 2},     {"3 prompts of 16 pages, 1 to 4 pages", 3, 16, 1, 4},
    {"16 prompts of 8 pages, 1 to 12 pages", 16, 8, 1, 12}, {"no shared prompt, 1 page", 0, 0, 1, 1},
};

static int32_t branch_length(const struct load *load, uint64_t *rng) {
  return load->branch_least +
         (int32_t)quire_splitmix64_below(rng, (uint64_t)(load->branch_most - load->branch_least + 1));
}

/* Pages used when the next request first does not fit, chains strictly in turn; a new root takes the fullest stripe. */
static int32_t strict_rotation(const struct load *load, uint64_t rng) {
  int32_t free[STRIPES];
  int32_t last_of[16] = {0};
  int32_t used = 0;
  for (int32_t s = 0; s < STRIPES; s++) {
    free[s] = PAGES / STRIPES;
  }
  for (int32_t r = -load->prefixes;; r++) {
    int32_t length = r < 0 ? load->prefix_pages : branch_length(load, &rng);
    int32_t best = 0;
    for (int32_t s = 1; s < STRIPES; s++) {
      best = free[s] > free[best] ? s : best;
    }
    int32_t first = r < 0 || load->prefixes == 0 ? best : (last_of[r % load->prefixes] + 1) % STRIPES;
    int32_t need[STRIPES] = {0};
    for (int32_t i = 0; i < length; i++) {
      need[(first + i) % STRIPES]++;
    }
    for (int32_t s = 0; s < STRIPES; s++) {
      if (need[s] > free[s]) {
        return used;
      }
    }
    for (int32_t s = 0; s < STRIPES; s++) {
      free[s] -= need[s];
    }
    used += length;
    if (r < 0) {
      last_of[r + load->prefixes] = (first + length - 1) % STRIPES;
    }
  }
}

/* The same load on the pool; the prefixes are sealed, and each request shares one. */
static int32_t pool_rule(const struct load *load, uint64_t rng) {
  struct quire_pool_config config = {{64, STRIPES, STRIPES, PAGES}, TABLES, 1100, QUIRE_CHAIN_SPREAD_MAX, 0};
  struct quire_pool *pool;
  quire_table_id prefix[16];
  assert_int_equal(quire_pool_create(quire_env_default(), &config, NULL, &pool, NULL), QUIRE_OK);
  for (int32_t p = 0; p < load->prefixes; p++) {
    assert_int_equal(quire_pool_table_open(pool, &prefix[p]), QUIRE_OK);
    assert_int_equal(quire_pool_table_extend(pool, prefix[p], load->prefix_pages), QUIRE_OK);
    for (int32_t i = 0; i < load->prefix_pages; i++) {
      quire_pool_table_seal(pool, prefix[p], i);
    }
  }
  enum quire_status status = QUIRE_OK;
  for (int32_t r = 0; status == QUIRE_OK; r++) {
    quire_table_id table;
    status = quire_pool_table_open(pool, &table);
    if (status != QUIRE_OK) {
      break;
    }
    if (load->prefixes > 0) {
      const quire_page *pages = quire_pool_table_pages(pool, prefix[r % load->prefixes], NULL);
      for (int32_t i = 0; i < load->prefix_pages; i++) {
        quire_pool_table_share(pool, table, pages[i]);
      }
    }
    status = quire_pool_table_extend(pool, table, branch_length(load, &rng));
  }
  struct quire_pool_counts counts;
  quire_pool_count(pool, &counts);
  int32_t least = counts.total, most = 0;
  for (int32_t s = 0; s < STRIPES; s++) {
    struct quire_pool_counts stripe;
    quire_pool_stripe_count(pool, (quire_stripe_id){s}, &stripe);
    least = stripe.free < least ? stripe.free : least;
    most = stripe.free > most ? stripe.free : most;
  }
  assert_true(most - least <= 1 + load->branch_most); /* and no stripe is worn more than the others */
  assert_true(quire_pool_check(pool, NULL));
  quire_pool_destroy(pool);
  return counts.total - counts.free;
}

static void nothing_is_stranded(void **state) {
  (void)state;
  uint64_t seed = test_seed("nothing_is_stranded");
  int32_t stranded_loads = 0;
  for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
    int32_t strict = strict_rotation(&loads[i], seed);
    int32_t ours = pool_rule(&loads[i], seed);
    printf("usable pages: strict rotation %5.1f %%, pool %5.1f %%   %s\n", 100.0 * strict / PAGES, 100.0 * ours / PAGES,
           loads[i].name);
    assert_true(ours * 100 >= PAGES * 99);
    stranded_loads += strict * 100 < PAGES * 90;
  }
  assert_true(stranded_loads > 0); /* the loads are such that a rotation does strand pages */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_stranded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
