/* The prefix tree: matching chains of 2,048 pages in a tree of a million, whose pages lie in memory in random order, so
 * that every page is a few cache misses.
 *
 *   matched, hashed    quire_radix_match_keys: a chain whose keys are known, as of a request that waits
 *   match and hash     quire_radix_match
 *   xxh3               the hash alone, of the same tokens
 *   compare            memcmp of the same pages' tokens, the places known beforehand: what verifying costs at least
 *   chase              one load a page that depends on the load before it: what a walk from node to node would cost
 *
 * The latency of single matches is measured call by call, in turn with hash and compare; its bar is for the 99th of a
 * hundred. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "bench/bench_list.h"
#include "radix/radix.h"

#define CHAIN_PAGES 2048
#define CHAINS 512
#define TINY_CHAINS 4
#define LATENCIES 2000
#define CALLS 32
#define HASHED_BAR 20.0 /* million pages a second */
#define P99_BAR 150.0   /* microseconds */

struct tree {
  const struct bench *bench;
  struct quire_radix *radix;
  int32_t chains, pages;
  int calls;          /* of one measurement */
  int32_t *tokens;    /* [chains, CHAIN_PAGES, page tokens] */
  uint64_t *all_keys; /* [chains, CHAIN_PAGES] */
  quire_page *ids;    /* [chains, CHAIN_PAGES], a random permutation */
  int32_t *copy;      /* [pages, page tokens], by id: what the tree compares with */
  int32_t *next;      /* [pages]: by id, the id after it in its chain */
  struct quire_hash_key hash_key;
  int32_t turn;     /* chain of the present call */
  int32_t *request; /* [CHAIN_PAGES, page tokens]: its tokens, as a request has them */
  uint64_t *keys;   /* [CHAIN_PAGES]: and its keys */
  uint64_t sum;     /* of what sides computed, so that none is left out */
};

typedef void (*side_fn)(struct tree *tree, int32_t chain);

struct side {
  struct tree *tree;
  side_fn work;
};

static struct quire_radix_chain chain_of(const struct tree *tree, int32_t chain) {
  return (struct quire_radix_chain){
      .root = {1, 2}, .tokens = tree->tokens + (int64_t)chain * CHAIN_PAGES * QUIRE_PAGE_TOKENS, .pages = CHAIN_PAGES};
}

/* The chain of the present call. */
static struct quire_radix_chain request_of(const struct tree *tree) {
  return (struct quire_radix_chain){.root = {1, 2}, .tokens = tree->request, .pages = CHAIN_PAGES};
}

/* --- sides --- */

static void match_hashed(struct tree *tree, int32_t chain) {
  const struct quire_radix_chain request = request_of(tree);
  (void)chain;
  tree->sum += (uint64_t)quire_radix_match_keys(tree->radix, &request, tree->keys, NULL);
}

static void match_and_hash(struct tree *tree, int32_t chain) {
  const struct quire_radix_chain request = request_of(tree);
  (void)chain;
  tree->sum += (uint64_t)quire_radix_match(tree->radix, &request, NULL);
}

static void hash_alone(struct tree *tree, int32_t chain) {
  (void)chain;
  for (int32_t p = 0; p < CHAIN_PAGES; p++) {
    tree->sum += quire_hash64(tree->request + (int64_t)p * QUIRE_PAGE_TOKENS, QUIRE_PAGE_TOKENS * sizeof(int32_t),
                              &tree->hash_key);
  }
}

static void compare_alone(struct tree *tree, int32_t chain) {
  const quire_page *ids = tree->ids + (int64_t)chain * CHAIN_PAGES;
  for (int32_t p = 0; p < CHAIN_PAGES; p++) {
    tree->sum += memcmp(tree->request + (int64_t)p * QUIRE_PAGE_TOKENS,
                        tree->copy + (int64_t)ids[p].v * QUIRE_PAGE_TOKENS, QUIRE_PAGE_TOKENS * sizeof(int32_t)) == 0;
  }
}

static void chase(struct tree *tree, int32_t chain) {
  int32_t at = tree->ids[(int64_t)chain * CHAIN_PAGES].v;
  for (int32_t p = 1; p < CHAIN_PAGES; p++) {
    at = tree->next[at];
  }
  tree->sum += (uint64_t)at;
}

/* One call, on a chain that has not been looked at for a while, whose tokens and keys a request has just brought: they
 * are in the caches, the tree is not. */
static uint64_t timed(struct tree *tree, side_fn side) {
  tree->turn = (int32_t)((tree->turn * 5 + 3) % tree->chains); /* an order that no prefetcher learns */
  const struct quire_radix_chain chain = chain_of(tree, tree->turn);
  memcpy(tree->request, chain.tokens, (size_t)CHAIN_PAGES * QUIRE_PAGE_TOKENS * sizeof *tree->request);
  memcpy(tree->keys, tree->all_keys + (int64_t)tree->turn * CHAIN_PAGES, CHAIN_PAGES * sizeof *tree->keys);
  const uint64_t started = bench_thread_ns(tree->bench);
  side(tree, tree->turn);
  return bench_thread_ns(tree->bench) - started;
}

static enum quire_status run_side(void *context, uint64_t *ns_out, struct quire_error *error_out) {
  const struct side *side = context;
  (void)error_out;
  *ns_out = 0;
  for (int i = 0; i < side->tree->calls; i++) {
    *ns_out += timed(side->tree, side->work);
  }
  return QUIRE_OK;
}

/* --- the tree --- */

static void shuffle(quire_page *ids, int32_t count) {
  uint64_t rng = 7;
  for (int32_t i = 0; i < count; i++) {
    ids[i].v = i;
  }
  for (int32_t i = count - 1; i > 0; i--) {
    const int32_t j = (int32_t)quire_splitmix64_below(&rng, (uint64_t)i + 1);
    const quire_page kept = ids[i];
    ids[i] = ids[j];
    ids[j] = kept;
  }
}

static void fill(struct tree *tree) {
  for (int32_t c = 0; c < tree->chains; c++) {
    const struct quire_radix_chain chain = chain_of(tree, c);
    const quire_page *ids = tree->ids + (int64_t)c * CHAIN_PAGES;
    quire_page above = {QUIRE_PAGE_NONE};
    for (int32_t p = 0; p < CHAIN_PAGES; p++) {
      const int32_t *tokens = chain.tokens + (int64_t)p * QUIRE_PAGE_TOKENS;
      above = quire_radix_insert(tree->radix, chain.root, above, ids[p], tokens);
      memcpy(tree->copy + (int64_t)ids[p].v * QUIRE_PAGE_TOKENS, tokens, QUIRE_PAGE_TOKENS * sizeof *tokens);
      tree->next[ids[p].v] = ids[(p + 1) % CHAIN_PAGES].v;
    }
    quire_radix_keys(tree->radix, &chain, tree->all_keys + (int64_t)c * CHAIN_PAGES);
  }
}

static void *reserve(size_t count, size_t size) { return quire_env_zalloc(quire_env_default(), count, size); }

static void release(void *memory, size_t count, size_t size) {
  quire_env_free(quire_env_default(), memory, count, size);
}

static void close_tree(struct tree *tree) {
  const size_t pages = (size_t)tree->pages, chain_tokens = (size_t)CHAIN_PAGES * QUIRE_PAGE_TOKENS;
  quire_radix_destroy(tree->radix);
  release(tree->tokens, pages * QUIRE_PAGE_TOKENS, sizeof *tree->tokens);
  release(tree->copy, pages * QUIRE_PAGE_TOKENS, sizeof *tree->copy);
  release(tree->all_keys, pages, sizeof *tree->all_keys);
  release(tree->ids, pages, sizeof *tree->ids);
  release(tree->next, pages, sizeof *tree->next);
  release(tree->request, chain_tokens, sizeof *tree->request);
  release(tree->keys, CHAIN_PAGES, sizeof *tree->keys);
}

static enum quire_status open_tree(struct tree *tree, bool tiny, struct quire_error *error_out) {
  tree->chains = tiny ? TINY_CHAINS : CHAINS;
  tree->calls = tiny ? 8 : CALLS;
  tree->pages = tree->chains * CHAIN_PAGES;
  const size_t pages = (size_t)tree->pages, chain_tokens = (size_t)CHAIN_PAGES * QUIRE_PAGE_TOKENS;
  const struct quire_geometry geometry = {
      .page_tokens = QUIRE_PAGE_TOKENS, .ranks = 4, .storage_ranks = 4, .pages = tree->pages};
  tree->tokens = reserve(pages * QUIRE_PAGE_TOKENS, sizeof *tree->tokens);
  tree->copy = reserve(pages * QUIRE_PAGE_TOKENS, sizeof *tree->copy);
  tree->all_keys = reserve(pages, sizeof *tree->all_keys);
  tree->ids = reserve(pages, sizeof *tree->ids);
  tree->next = reserve(pages, sizeof *tree->next);
  tree->request = reserve(chain_tokens, sizeof *tree->request);
  tree->keys = reserve(CHAIN_PAGES, sizeof *tree->keys);
  if (!tree->tokens || !tree->copy || !tree->all_keys || !tree->ids || !tree->next || !tree->request || !tree->keys) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench tree", "no memory for %d pages", tree->pages);
  }
  for (size_t i = 0; i < pages * QUIRE_PAGE_TOKENS; i++) {
    tree->tokens[i] = (int32_t)(quire_mix64(i) >> 47); /* a vocabulary of 128K */
  }
  quire_hash_key_make(&tree->hash_key, 1);
  shuffle(tree->ids, tree->pages);
  const enum quire_status status = quire_radix_create(quire_env_default(), &geometry, &tree->radix, error_out);
  if (status == QUIRE_OK) {
    fill(tree);
  }
  return status;
}

/* --- latency --- */

static int compare_times(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void latency(struct bench *bench, struct tree *tree) {
  static double times[3][LATENCIES];
  static const side_fn works[] = {match_and_hash, hash_alone, compare_alone};
  const int calls = bench->options.tiny ? 8 : LATENCIES;
  if (!bench_wanted(bench, "match latency")) {
    return;
  }
  for (int i = 0; i < calls; i++) {
    for (int s = 0; s < 3; s++) {
      times[s][i] = (double)timed(tree, works[s]) * 1e-3;
    }
  }
  for (int s = 0; s < 3; s++) {
    qsort(times[s], (size_t)calls, sizeof times[s][0], compare_times);
  }
  const int p50 = calls / 2, p99 = calls * 99 / 100;
  const struct bench_figure figures[] = {
      {"match latency, median", "us for 2,048 pages, hashing included", times[0][p50], 0, true},
      {"match latency, p99", "us", times[0][p99], P99_BAR, true},
      {"hash alone, p99", "us", times[1][p99], 0, true},
      {"compare alone, p99", "us", times[2][p99], 0, true},
      {"match latency, median", "of hash + compare", times[0][p50] / (times[1][p50] + times[2][p50]), 0, true},
  };
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
    bench_figure(bench, &figures[i]);
  }
}

static enum quire_status rates(struct bench *bench, struct tree *tree, struct quire_error *error_out) {
  struct side hashed_side = {tree, match_hashed}, whole_side = {tree, match_and_hash}, hash_side = {tree, hash_alone},
              compare_side = {tree, compare_alone}, chase_side = {tree, chase};
  const double units = (double)CHAIN_PAGES * tree->calls;
  struct bench_case hashed = {.name = "match of 2,048 pages, hashed",
                              .unit = "Mpages/s",
                              .scale = 1e6,
                              .threads = 1,
                              .sides = 3,
                              .bars = 2,
                              .side = {{"tree", NULL, run_side, &hashed_side, units},
                                       {"compare", NULL, run_side, &compare_side, units},
                                       {"chase", NULL, run_side, &chase_side, units}},
                              .bar = {{.against = 1}, {.against = 2}}};
  struct bench_case whole = {.name = "match of 2,048 pages, with hashing",
                             .unit = "Mpages/s",
                             .scale = 1e6,
                             .threads = 1,
                             .sides = 3,
                             .bars = 2,
                             .side = {{"tree", NULL, run_side, &whole_side, units},
                                      {"xxh3", NULL, run_side, &hash_side, units},
                                      {"compare", NULL, run_side, &compare_side, units}},
                             .bar = {{.against = 1}, {.against = 2}}};
  struct bench_result result = {0};
  enum quire_status status = bench_measure(bench, &hashed, &result, error_out);
  if (status == QUIRE_OK && bench_wanted(bench, hashed.name)) {
    const struct bench_figure figure = {"tree, once hashed", "million pages a second", result.rate[0] * 1e-6,
                                        HASHED_BAR, false};
    bench_figure(bench, &figure);
  }
  return status == QUIRE_OK ? bench_measure(bench, &whole, NULL, error_out) : status;
}

enum quire_status bench_tree(struct bench *bench, struct quire_error *error_out) {
  struct tree tree = {.bench = bench};
  enum quire_status status = open_tree(&tree, bench->options.tiny, error_out);
  if (status == QUIRE_OK) {
    printf("%d chains of %d pages, %lld MB of tree\n", tree.chains, CHAIN_PAGES,
           (long long)quire_radix_bytes(&(struct quire_geometry){
               .page_tokens = QUIRE_PAGE_TOKENS, .ranks = 4, .storage_ranks = 4, .pages = tree.pages}) >>
               20);
    status = rates(bench, &tree, error_out);
  }
  if (status == QUIRE_OK) {
    latency(bench, &tree);
  }
  close_tree(&tree);
  return status;
}
