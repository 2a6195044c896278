/* Arrays indexed by page id, a table of open addressing from path hashes to page ids, and one heap a stripe. The tokens
 * of every page are kept, so that a hash only ever proposes.
 *
 * Matching waits for memory, so it is built to look at one place a page. What a match compares with lies in one row:
 * key, parent, tokens. Which row, a line of 16 hints says for 16 pages of a chain at once: the line is found by the key
 * of the first of them, and each page has its place in it, where the newest page with that place stands. Blocks of
 * pages go through three stages together,
 *
 *     hash, ask for the line  |  read hints, ask for the rows  |  compare
 *         block b + 2         |          block b + 1           |  block b
 *
 * and what a stage asked for has arrived when the next one needs it. A page that its hint does not lead to (a branch
 * has taken the place) is looked up in the table. */
#include "radix/radix.h"

#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "layout/carve.h"

#define NOWHERE (-1)
#define BLOCK 16 /* pages */
#define LINE_BYTES 64
#define HINTS 16 /* of a line */

/* A line of memory: who leaves the tree or enters it looks at the lines of the page and of the one above. */
struct node {
  _Alignas(
      LINE_BYTES) uint64_t used; /* time of last use, of its own and of the pages that have left from below it: while
                                         there are others below, they are what counts */
  uint64_t key;                  /* hash of root and all tokens down to this page */
  struct quire_hash128 root;
  int32_t parent;
  int32_t first_child;
  int32_t next, prev; /* brothers; those directly below a root are in no list */
  uint32_t place;     /* of its hint */
  bool in_tree;
  bool held;
};

struct slot {
  uint32_t tag; /* high half of the key, of which the low bits say where it begins to be looked for */
  int32_t page; /* NOWHERE: empty */
};

/* What a match compares with; constant while the page is in the tree. */
struct row {
  uint64_t key; /* as in the node, as the other two */
  int32_t parent;
  uint32_t place;
  int32_t tokens[];
};

/* The time stands beside the page: the order is found without a look at the nodes. */
struct leaf {
  uint64_t used;
  int32_t page;
};

/* Of four branches: half the levels of one of two, and a level's four are a line or two of memory. */
#define HEAP_WAYS 4

struct heap {
  struct leaf *leaves;
  int32_t count;
};

struct quire_radix {
  const struct quire_env *env;
  size_t bytes;
  struct quire_geometry geometry;
  uint64_t seed; /* from env->random: nobody can aim at the table's collisions */
  struct quire_hash_key hash_key;
  uint64_t clock;
  int32_t count;
  uint64_t slot_mask;
  uint64_t line_mask;
  size_t row_bytes;
  struct slot *slots;
  int32_t *hints; /* [lines, HINTS] pages of the tree, or NOWHERE */
  struct node *nodes;
  uint8_t *rows; /* [pages] struct row */
  int32_t
      *heap_at; /* [pages] place in the heap of its stripe, or NOWHERE; apart from the nodes, since who moves in a heap
                       moves past many pages of which nothing else is wanted */
  struct heap heaps[QUIRE_RANKS_MAX];
};

/* --- creation --- */

static uint64_t slot_count(int32_t pages) {
  QUIRE_ASSERT(pages > 0);
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)pages) {
    slots *= 2;
  }
  return slots;
}

/* One line in use of 16 or more: of two that fall on the same place the newer takes the older one's hints, and its
 * pages must be looked up. A page of KV is thousands of times as large as its share of them. */
static uint64_t line_count(int32_t pages) {
  QUIRE_ASSERT(pages > 0);
  uint64_t lines = 2;
  while (lines < (uint64_t)pages) {
    lines *= 2;
  }
  return lines;
}

static size_t row_bytes_of(const struct quire_geometry *geometry) {
  QUIRE_ASSERT(geometry->page_tokens > 0 && geometry->page_tokens <= QUIRE_PAGE_TOKENS_MAX);
  const size_t align = sizeof(uint64_t);
  return (sizeof(struct row) + (size_t)geometry->page_tokens * sizeof(int32_t) + align - 1) / align * align;
}

static struct quire_radix *carve_radix(const struct quire_geometry *geometry, struct quire_carve *carve) {
  QUIRE_ASSERT(quire_geometry_valid(geometry));
  struct quire_radix *radix = quire_carve(carve, 1, sizeof *radix);
  struct slot *slots = quire_carve(carve, (int64_t)slot_count(geometry->pages), sizeof *slots);
  int32_t *hints = quire_carve(carve, (int64_t)line_count(geometry->pages) * HINTS, sizeof *hints);
  struct node *nodes = quire_carve(carve, geometry->pages, sizeof *nodes);
  uint8_t *rows = quire_carve(carve, geometry->pages, row_bytes_of(geometry));
  struct leaf *leaves = quire_carve(carve, geometry->pages, sizeof *leaves);
  int32_t *heap_at = quire_carve(carve, geometry->pages, sizeof *heap_at);
  if (radix == NULL) {
    return NULL;
  }
  radix->slots = slots;
  radix->hints = hints;
  radix->nodes = nodes;
  radix->rows = rows;
  radix->heap_at = heap_at;
  for (int32_t s = 0; s < geometry->storage_ranks; s++) {
    radix->heaps[s].leaves = leaves;
    leaves += quire_geometry_local_pages(geometry, (quire_stripe_id){s});
  }
  return radix;
}

int64_t quire_radix_bytes(const struct quire_geometry *geometry) {
  if (!quire_geometry_valid(geometry)) {
    return 0;
  }
  struct quire_carve carve = {NULL, 0};
  carve_radix(geometry, &carve);
  QUIRE_ASSERT(carve.used > 0 && carve.used <= INT64_MAX);
  return (int64_t)carve.used;
}

enum quire_status quire_radix_create(const struct quire_env *env, const struct quire_geometry *geometry,
                                     struct quire_radix **radix_out, struct quire_error *error_out) {
  size_t bytes = (size_t)quire_radix_bytes(geometry);
  if (bytes == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "prefix tree", "the geometry is not valid");
  }
  struct quire_carve carve = {quire_env_zalloc(env, 1, bytes), 0};
  if (carve.base == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "prefix tree", "no memory for %zu bytes of nodes", bytes);
  }
  struct quire_radix *radix = carve_radix(geometry, &carve);
  QUIRE_ASSERT(carve.used == bytes);
  radix->env = env;
  radix->bytes = bytes;
  radix->geometry = *geometry;
  radix->seed = env->random(env->context);
  quire_hash_key_make(&radix->hash_key, radix->seed);
  radix->slot_mask = slot_count(geometry->pages) - 1;
  radix->line_mask = line_count(geometry->pages) - 1;
  radix->row_bytes = row_bytes_of(geometry);
  for (uint64_t i = 0; i <= radix->slot_mask; i++) {
    radix->slots[i].page = NOWHERE;
  }
  for (uint64_t i = 0; i < (radix->line_mask + 1) * HINTS; i++) {
    radix->hints[i] = NOWHERE;
  }
  for (int32_t i = 0; i < geometry->pages; i++) {
    radix->heap_at[i] = NOWHERE;
  }
  *radix_out = radix;
  return QUIRE_OK;
}

void quire_radix_destroy(struct quire_radix *radix) {
  if (radix != NULL) {
    quire_env_free(radix->env, radix, 1, radix->bytes);
  }
}

static struct node *node_of(const struct quire_radix *radix, quire_page page) {
  QUIRE_ASSERT(page.v >= 0 && page.v < radix->geometry.pages);
  return &radix->nodes[page.v];
}

/* A page that the caller says is in the tree. */
static struct node *member(const struct quire_radix *radix, quire_page page) {
  struct node *node = node_of(radix, page);
  QUIRE_ASSERT(node->in_tree);
  return node;
}

/* --- heaps: oldest leaf on top --- */

static struct heap *heap_of(struct quire_radix *radix, int32_t page) {
  return &radix->heaps[quire_page_owner(&radix->geometry, (quire_page){page}).v];
}

static bool older(struct leaf a, struct leaf b) { return a.used < b.used || (a.used == b.used && a.page < b.page); }

static void heap_put(struct quire_radix *radix, struct heap *heap, int32_t at, struct leaf leaf) {
  QUIRE_DEBUG(at >= 0 && at < heap->count);
  heap->leaves[at] = leaf;
  radix->heap_at[leaf.page] = at;
}

static void heap_up(struct quire_radix *radix, struct heap *heap, int32_t at, struct leaf leaf) {
  QUIRE_DEBUG(at >= 0 && at < heap->count);
  while (at > 0 && older(leaf, heap->leaves[(at - 1) / HEAP_WAYS])) {
    heap_put(radix, heap, at, heap->leaves[(at - 1) / HEAP_WAYS]);
    at = (at - 1) / HEAP_WAYS;
  }
  heap_put(radix, heap, at, leaf);
}

static void heap_down(struct quire_radix *radix, struct heap *heap, int32_t at, struct leaf leaf) {
  QUIRE_DEBUG(at >= 0 && at < heap->count);
  for (int32_t first = HEAP_WAYS * at + 1; first < heap->count; first = HEAP_WAYS * at + 1) {
    int32_t end = heap->count - first < HEAP_WAYS ? heap->count : first + HEAP_WAYS, oldest = first;
    for (int32_t child = first + 1; child < end; child++) {
      oldest = older(heap->leaves[child], heap->leaves[oldest]) ? child : oldest;
    }
    if (!older(heap->leaves[oldest], leaf)) {
      break;
    }
    heap_put(radix, heap, at, heap->leaves[oldest]);
    at = oldest;
  }
  heap_put(radix, heap, at, leaf);
}

static void heap_remove(struct quire_radix *radix, int32_t page) {
  struct heap *heap = heap_of(radix, page);
  int32_t at = radix->heap_at[page];
  QUIRE_ASSERT(at >= 0 && at < heap->count && heap->leaves[at].page == page);
  struct leaf last = heap->leaves[--heap->count];
  radix->heap_at[page] = NOWHERE;
  if (last.page != page) {
    heap_up(radix, heap, at, last);
    heap_down(radix, heap, radix->heap_at[last.page], last);
  }
}

static bool evictable(const struct node *node) { return node->in_tree && !node->held && node->first_child == NOWHERE; }

/* Puts a page into its heap or takes it out, as it should be. */
static void settle(struct quire_radix *radix, int32_t page) {
  QUIRE_DEBUG(page >= 0 && page < radix->geometry.pages);
  struct node *node = &radix->nodes[page];
  bool listed = radix->heap_at[page] != NOWHERE;
  if (evictable(node) == listed) {
    return;
  }
  if (listed) {
    heap_remove(radix, page);
    return;
  }
  struct heap *heap = heap_of(radix, page);
  heap->count++;
  heap_up(radix, heap, heap->count - 1, (struct leaf){node->used, page});
}

/* --- the table --- */

static uint64_t root_key(const struct quire_radix *radix, struct quire_hash128 root) {
  return quire_mix64(root.low ^ radix->seed) ^ root.high;
}

static uint64_t page_key(const struct quire_radix *radix, uint64_t above, const int32_t *tokens) {
  QUIRE_ASSERT(tokens != NULL);
  size_t bytes = (size_t)radix->geometry.page_tokens * sizeof *tokens;
  return quire_mix64(quire_mix64(above) ^ quire_hash64(tokens, bytes, &radix->hash_key));
}

static struct row *row_of(const struct quire_radix *radix, int32_t page) {
  return (struct row *)(void *)(radix->rows + (size_t)page * radix->row_bytes);
}

/* The place of the hint of a page below one whose place is `above`; first: it is below a root. */
static uint32_t place_below(const struct quire_radix *radix, bool first, uint32_t above, uint64_t key) {
  return first || above % HINTS == HINTS - 1 ? (uint32_t)(key >> 8 & radix->line_mask) * HINTS : above + 1;
}

static bool is_page(const struct quire_radix *radix, struct quire_hash128 root, int32_t parent, uint64_t key,
                    const int32_t *tokens, int32_t page) {
  QUIRE_DEBUG(page >= 0 && page < radix->geometry.pages);
  const struct row *row = row_of(radix, page);
  return row->key == key && row->parent == parent &&
         (parent != NOWHERE || quire_hash128_equal(radix->nodes[page].root, root)) &&
         memcmp(row->tokens, tokens, (size_t)radix->geometry.page_tokens * sizeof *tokens) == 0;
}

static uint32_t tag_of(uint64_t key) { return (uint32_t)(key >> 32); }

/* The page below parent (or root) with these tokens, NOWHERE if there is none. */
static int32_t find(const struct quire_radix *radix, struct quire_hash128 root, int32_t parent, uint64_t key,
                    const int32_t *tokens) {
  QUIRE_DEBUG(parent == NOWHERE || (parent >= 0 && parent < radix->geometry.pages));
  for (uint64_t i = tag_of(key) & radix->slot_mask; radix->slots[i].page != NOWHERE; i = (i + 1) & radix->slot_mask) {
    const struct slot slot = radix->slots[i];
    if (slot.tag == tag_of(key) && is_page(radix, root, parent, key, tokens, slot.page)) {
      return slot.page;
    }
  }
  return NOWHERE;
}

static void table_add(struct quire_radix *radix, int32_t page) {
  const struct node *node = &radix->nodes[page];
  QUIRE_ASSERT(node->in_tree && radix->count <= radix->geometry.pages);
  uint64_t i = tag_of(node->key) & radix->slot_mask;
  while (radix->slots[i].page != NOWHERE) {
    i = (i + 1) & radix->slot_mask;
  }
  radix->slots[i] = (struct slot){tag_of(node->key), page};
  radix->hints[node->place] = page;
}

/* Closes the gap by moving back every later entry of the run that the gap would hide. */
static void table_remove(struct quire_radix *radix, int32_t page) {
  uint64_t mask = radix->slot_mask;
  const struct node *node = &radix->nodes[page];
  uint64_t gap = tag_of(node->key) & mask;
  if (radix->hints[node->place] == page) {
    radix->hints[node->place] = NOWHERE;
  }
  while (radix->slots[gap].page != page) {
    QUIRE_ASSERT(radix->slots[gap].page != NOWHERE);
    gap = (gap + 1) & mask;
  }
  for (uint64_t i = (gap + 1) & mask; radix->slots[i].page != NOWHERE; i = (i + 1) & mask) {
    uint64_t home = radix->slots[i].tag & mask;
    if (((i - home) & mask) >= ((i - gap) & mask)) {
      radix->slots[gap] = radix->slots[i];
      gap = i;
    }
  }
  radix->slots[gap].page = NOWHERE;
}

/* --- matching and growing --- */

/* A match on its way. What is known of BLOCK pages lies in the rings' place b mod 3. */
struct walk {
  const struct quire_radix *radix;
  const struct quire_radix_chain *chain;
  const uint64_t *keys; /* of the chain; NULL: hash */
  uint64_t key;         /* of the last page hashed */
  uint32_t place;       /* and the place of its hint */
  bool first;           /* no page has been hashed, and the chain begins at a root */
  uint64_t key_ring[3][BLOCK];
  uint32_t place_ring[3][BLOCK];
  int32_t page_ring[3][BLOCK]; /* that the hints say */
};

static const int32_t *chain_tokens(const struct walk *walk, int32_t page) {
  return walk->chain->tokens + (int64_t)page * walk->radix->geometry.page_tokens;
}

static int32_t block_end(const struct walk *walk, int32_t block) {
  return (block + 1) * BLOCK < walk->chain->pages ? (block + 1) * BLOCK : walk->chain->pages;
}

static void hash_block(struct walk *walk, int32_t block) {
  QUIRE_ASSERT(block >= 0);
  const struct quire_radix *radix = walk->radix;
  for (int32_t p = block * BLOCK; p < block_end(walk, block); p++) {
    walk->key = walk->keys != NULL ? walk->keys[p] : page_key(radix, walk->key, chain_tokens(walk, p));
    walk->place = place_below(radix, walk->first, walk->place, walk->key);
    walk->first = false;
    walk->key_ring[block % 3][p % BLOCK] = walk->key;
    walk->place_ring[block % 3][p % BLOCK] = walk->place;
    if (walk->place % HINTS == 0) {
      __builtin_prefetch(&radix->hints[walk->place]);
    }
  }
}

static void propose_block(struct walk *walk, int32_t block) {
  QUIRE_ASSERT(block >= 0);
  const struct quire_radix *radix = walk->radix;
  for (int32_t p = block * BLOCK; p < block_end(walk, block); p++) {
    const int32_t page = radix->hints[walk->place_ring[block % 3][p % BLOCK]];
    const uint8_t *row = (const uint8_t *)row_of(radix, page == NOWHERE ? 0 : page);
    walk->page_ring[block % 3][p % BLOCK] = page;
    for (size_t at = 0; at < radix->row_bytes; at += LINE_BYTES) {
      __builtin_prefetch(row + at);
    }
  }
}

static int32_t match_from(struct walk *walk, int32_t parent, quire_page *pages_out) {
  const struct quire_radix *radix = walk->radix;
  const struct quire_hash128 root = walk->chain->root;
  const int32_t blocks = (walk->chain->pages + BLOCK - 1) / BLOCK;
  QUIRE_ASSERT(parent == NOWHERE || radix->nodes[parent].in_tree);
  for (int32_t b = -2; b < blocks; b++) {
    if (b + 2 < blocks) {
      hash_block(walk, b + 2);
    }
    if (b + 1 >= 0 && b + 1 < blocks) {
      propose_block(walk, b + 1);
    }
    for (int32_t p = b * BLOCK; b >= 0 && p < block_end(walk, b); p++) {
      const uint64_t key = walk->key_ring[b % 3][p % BLOCK];
      const int32_t page = walk->page_ring[b % 3][p % BLOCK];
      const int32_t *tokens = chain_tokens(walk, p);
      const bool led = page != NOWHERE && is_page(radix, root, parent, key, tokens, page);
      parent = led ? page : find(radix, root, parent, key, tokens);
      if (parent == NOWHERE) {
        return p;
      }
      if (pages_out != NULL) {
        pages_out[p].v = parent;
      }
    }
  }
  return walk->chain->pages;
}

int32_t quire_radix_match(const struct quire_radix *radix, const struct quire_radix_chain *chain,
                          quire_page *pages_out) {
  QUIRE_ASSERT(chain->pages >= 0);
  struct walk walk = {.radix = radix, .chain = chain, .key = root_key(radix, chain->root), .first = true};
  return match_from(&walk, NOWHERE, pages_out);
}

int32_t quire_radix_match_below(const struct quire_radix *radix, quire_page parent,
                                const struct quire_radix_chain *chain, quire_page *pages_out) {
  QUIRE_ASSERT(chain->pages >= 0 && member(radix, parent)->in_tree);
  const struct node *above = &radix->nodes[parent.v];
  struct walk walk = {.radix = radix, .chain = chain, .key = above->key, .place = above->place};
  return match_from(&walk, parent.v, pages_out);
}

void quire_radix_keys(const struct quire_radix *radix, const struct quire_radix_chain *chain, uint64_t *keys_out) {
  QUIRE_ASSERT(chain->pages >= 0);
  uint64_t key = root_key(radix, chain->root);
  for (int32_t p = 0; p < chain->pages; p++) {
    key = page_key(radix, key, chain->tokens + (int64_t)p * radix->geometry.page_tokens);
    keys_out[p] = key;
  }
}

int32_t quire_radix_match_keys(const struct quire_radix *radix, const struct quire_radix_chain *chain,
                               const uint64_t *keys, quire_page *pages_out) {
  QUIRE_ASSERT(chain->pages >= 0 && (keys != NULL || chain->pages == 0));
  struct walk walk = {.radix = radix, .chain = chain, .keys = keys, .first = true};
  return match_from(&walk, NOWHERE, pages_out);
}

void quire_radix_touch(struct quire_radix *radix, quire_page page) {
  struct node *node = member(radix, page);
  node->used = ++radix->clock;
  int32_t at = radix->heap_at[page.v];
  if (at != NOWHERE) {
    struct heap *heap = heap_of(radix, page.v);
    QUIRE_ASSERT(heap->leaves[at].page == page.v);
    heap_down(radix, heap, at, (struct leaf){node->used, page.v});
  }
}

/* The page above is no leaf any more. */
static void link_below(struct quire_radix *radix, int32_t parent, int32_t page) {
  QUIRE_ASSERT(parent != page && radix->nodes[parent].in_tree);
  struct node *node = &radix->nodes[page], *above = &radix->nodes[parent];
  node->next = above->first_child;
  if (node->next != NOWHERE) {
    radix->nodes[node->next].prev = page;
  }
  above->first_child = page;
  settle(radix, parent);
}

/* As quire_radix_insert, its key known. */
static quire_page insert_keyed(struct quire_radix *radix, struct quire_hash128 root, int32_t parent, quire_page page,
                               const int32_t *tokens, uint64_t key) {
  struct node *node = node_of(radix, page);
  QUIRE_ASSERT(!node->in_tree);
  int32_t there = find(radix, root, parent, key, tokens);
  if (there != NOWHERE) {
    return (quire_page){there};
  }
  *node = (struct node){
      .key = key,
      .root = root,
      .parent = parent,
      .first_child = NOWHERE,
      .next = NOWHERE,
      .prev = NOWHERE,
      .place = place_below(radix, parent == NOWHERE, parent == NOWHERE ? 0 : radix->nodes[parent].place, key),
      .in_tree = true,
  };
  if (parent != NOWHERE) {
    link_below(radix, parent, page.v);
  }
  struct row *row = row_of(radix, page.v);
  row->key = key;
  row->parent = parent;
  row->place = node->place;
  memcpy(row->tokens, tokens, (size_t)radix->geometry.page_tokens * sizeof *tokens);
  table_add(radix, page.v);
  radix->count++;
  settle(radix, page.v);
  return page;
}

/* Keys of a block's pages below `above`; where they will be looked for, and written, is on its way when they are. */
static void expect_block(const struct quire_radix *radix, uint64_t above, const int32_t *tokens,
                         const quire_page *pages, int32_t count, uint64_t *keys_out) {
  QUIRE_ASSERT(count > 0 && count <= BLOCK);
  for (int32_t i = 0; i < count; i++) {
    const uint8_t *row = (const uint8_t *)row_of(radix, pages[i].v);
    __builtin_prefetch(node_of(radix, pages[i]), 1);
    for (size_t at = 0; at < radix->row_bytes; at += LINE_BYTES) {
      __builtin_prefetch(row + at, 1);
    }
    above = page_key(radix, above, tokens + (int64_t)i * radix->geometry.page_tokens);
    keys_out[i] = above;
    __builtin_prefetch(&radix->slots[tag_of(above) & radix->slot_mask], 1);
  }
}

void quire_radix_insert_chain(struct quire_radix *radix, quire_page parent, const struct quire_radix_chain *chain,
                              const quire_page *pages, quire_page *there_out) {
  QUIRE_ASSERT(chain != NULL && chain->pages >= 0 && (chain->pages == 0 || there_out != NULL));
  const int32_t page_tokens = radix->geometry.page_tokens;
  int32_t above = parent.v == QUIRE_PAGE_NONE ? NOWHERE : parent.v;
  uint64_t key = above == NOWHERE ? root_key(radix, chain->root) : member(radix, parent)->key;
  for (int32_t done = 0; done < chain->pages; done += BLOCK) {
    const int32_t count = chain->pages - done < BLOCK ? chain->pages - done : BLOCK;
    const int32_t *tokens = chain->tokens + (int64_t)done * page_tokens;
    uint64_t keys[BLOCK];
    expect_block(radix, key, tokens, pages + done, count, keys);
    for (int32_t i = 0; i < count; i++) {
      there_out[done + i] =
          insert_keyed(radix, chain->root, above, pages[done + i], tokens + (int64_t)i * page_tokens, keys[i]);
      above = there_out[done + i].v;
    }
    key = keys[count - 1];
  }
}

quire_page quire_radix_insert(struct quire_radix *radix, struct quire_hash128 root, quire_page parent, quire_page page,
                              const int32_t *tokens) {
  struct quire_radix_chain chain = {root, tokens, 1};
  quire_page there;
  QUIRE_ASSERT(tokens != NULL);
  quire_radix_insert_chain(radix, parent, &chain, &page, &there);
  return there;
}

void quire_radix_hold(struct quire_radix *radix, quire_page page, bool held) {
  member(radix, page)->held = held;
  settle(radix, page.v);
}

bool quire_radix_held(const struct quire_radix *radix, quire_page page) { return member(radix, page)->held; }

/* --- shrinking --- */

static void remove_leaf(struct quire_radix *radix, int32_t page) {
  struct node *node = &radix->nodes[page];
  QUIRE_ASSERT(node->in_tree && node->first_child == NOWHERE);
  __builtin_prefetch(&radix->slots[tag_of(node->key) & radix->slot_mask], 1); /* all at once, not one after another */
  __builtin_prefetch(&radix->hints[node->place], 1);
  if (node->parent != NOWHERE) {
    __builtin_prefetch(&radix->nodes[node->parent], 1);
  }
  table_remove(radix, page);
  node->in_tree = false;
  settle(radix, page);
  radix->count--;
  if (node->next != NOWHERE) {
    radix->nodes[node->next].prev = node->prev;
  }
  if (node->prev != NOWHERE) {
    radix->nodes[node->prev].next = node->next;
  }
  if (node->parent != NOWHERE) {
    struct node *above = &radix->nodes[node->parent];
    if (above->first_child == page) {
      above->first_child = node->next;
    }
    above->used = node->used > above->used ? node->used : above->used;
    settle(radix, node->parent);
  }
}

quire_page quire_radix_evict(struct quire_radix *radix, quire_stripe_id stripe) {
  QUIRE_ASSERT(stripe.v >= 0 && stripe.v < radix->geometry.storage_ranks);
  const struct heap *heap = &radix->heaps[stripe.v];
  if (heap->count == 0) {
    return quire_radix_evict_any(radix);
  }
  quire_page page = {heap->leaves[0].page};
  remove_leaf(radix, page.v);
  if (heap->count > 0) { /* the next to go has not been looked at for long */
    __builtin_prefetch(&radix->nodes[heap->leaves[0].page], 1);
  }
  return page;
}

quire_page quire_radix_evict_any(struct quire_radix *radix) {
  QUIRE_ASSERT(radix != NULL && radix->count >= 0);
  struct leaf oldest = {UINT64_MAX, NOWHERE};
  for (int32_t s = 0; s < radix->geometry.storage_ranks; s++) {
    const struct heap *heap = &radix->heaps[s];
    if (heap->count > 0 && (oldest.page == NOWHERE || older(heap->leaves[0], oldest))) {
      oldest = heap->leaves[0];
    }
  }
  if (oldest.page != NOWHERE) {
    remove_leaf(radix, oldest.page);
  }
  return (quire_page){oldest.page == NOWHERE ? QUIRE_PAGE_NONE : oldest.page};
}

int32_t quire_radix_drop(struct quire_radix *radix, quire_page page, quire_radix_removed_fn removed, void *context) {
  QUIRE_ASSERT(member(radix, page)->in_tree);
  int32_t dropped = 0;
  int32_t at = page.v;
  for (bool last = false; !last;) {
    while (radix->nodes[at].first_child != NOWHERE) {
      at = radix->nodes[at].first_child;
    }
    int32_t above = radix->nodes[at].parent;
    last = at == page.v;
    remove_leaf(radix, at);
    dropped++;
    if (removed != NULL) {
      removed(context, (quire_page){at});
    }
    at = above;
  }
  return dropped;
}

int32_t quire_radix_flush(struct quire_radix *radix, quire_radix_removed_fn removed, void *context) {
  int32_t dropped = 0;
  for (int32_t page = 0; page < radix->geometry.pages && radix->count > 0; page++) {
    if (radix->nodes[page].in_tree && radix->nodes[page].parent == NOWHERE) {
      dropped += quire_radix_drop(radix, (quire_page){page}, removed, context);
    }
  }
  QUIRE_ASSERT(radix->count == 0);
  return dropped;
}

/* --- insight --- */

bool quire_radix_contains(const struct quire_radix *radix, quire_page page) { return node_of(radix, page)->in_tree; }

quire_page quire_radix_parent(const struct quire_radix *radix, quire_page page) {
  int32_t parent = member(radix, page)->parent;
  QUIRE_ASSERT(parent == NOWHERE || radix->nodes[parent].in_tree);
  return (quire_page){parent == NOWHERE ? QUIRE_PAGE_NONE : parent};
}

int32_t quire_radix_count(const struct quire_radix *radix) { return radix->count; }

static bool fault(struct quire_error *why_out, const char *text, int32_t page) {
  QUIRE_ASSERT(text != NULL);
  quire_error_set(why_out, QUIRE_ERR_STATE, "prefix tree", "%s (page %d)", text, page);
  return false;
}

static bool check_node(const struct quire_radix *radix, int32_t page, struct quire_error *why_out) {
  QUIRE_ASSERT(radix->nodes[page].in_tree);
  const struct node *node = &radix->nodes[page];
  const struct row *row = row_of(radix, page);
  uint64_t above_key = root_key(radix, node->root);
  if (node->parent != NOWHERE) {
    const struct node *above = &radix->nodes[node->parent];
    if (!above->in_tree || !quire_hash128_equal(node->root, above->root)) {
      return fault(why_out, "the parent is not in the tree, or of another root", page);
    }
    if (node->held && !above->held) {
      return fault(why_out, "held below one that is not", page);
    }
    above_key = above->key;
  }
  if (row->parent != node->parent || row->key != node->key || row->place != node->place ||
      row->key != page_key(radix, above_key, row->tokens) ||
      find(radix, node->root, node->parent, row->key, row->tokens) != page) {
    return fault(why_out, "not found under its own tokens", page);
  }
  for (int32_t child = node->first_child, prev = NOWHERE; child != NOWHERE; child = radix->nodes[child].next) {
    if (radix->nodes[child].parent != page || radix->nodes[child].prev != prev || !radix->nodes[child].in_tree) {
      return fault(why_out, "a child that is none", page);
    }
    prev = child;
  }
  return true;
}

/* Walks one subtree by its links; returns its size, or -1 when there are more than limit pages. */
static int32_t subtree_size(const struct quire_radix *radix, int32_t top, int32_t limit) {
  QUIRE_ASSERT(radix->nodes[top].parent == NOWHERE);
  int32_t size = 0;
  int32_t at = top;
  while (at != NOWHERE) {
    if (++size > limit) {
      return -1;
    }
    if (radix->nodes[at].first_child != NOWHERE) {
      at = radix->nodes[at].first_child;
      continue;
    }
    while (at != top && radix->nodes[at].next == NOWHERE) {
      at = radix->nodes[at].parent;
    }
    at = at == top ? NOWHERE : radix->nodes[at].next;
  }
  return size;
}

static bool check_heaps(const struct quire_radix *radix, struct quire_error *why_out) {
  QUIRE_ASSERT(radix->geometry.storage_ranks <= QUIRE_RANKS_MAX);
  for (int32_t s = 0; s < radix->geometry.storage_ranks; s++) {
    const struct heap *heap = &radix->heaps[s];
    for (int32_t i = 0; i < heap->count; i++) {
      int32_t page = heap->leaves[i].page;
      if (quire_page_owner(&radix->geometry, (quire_page){page}).v != s || radix->heap_at[page] != i ||
          !evictable(&radix->nodes[page])) {
        return fault(why_out, "in a heap where it should not be", page);
      }
      if (heap->leaves[i].used != radix->nodes[page].used || radix->nodes[page].used > radix->clock) {
        return fault(why_out, "a leaf stands in its heap with another time than its own", page);
      }
      if (i > 0 && older(heap->leaves[i], heap->leaves[(i - 1) / HEAP_WAYS])) {
        return fault(why_out, "a heap out of order", page);
      }
    }
  }
  return true;
}

static bool check_hints(const struct quire_radix *radix, struct quire_error *why_out) {
  QUIRE_ASSERT(radix->hints != NULL);
  for (uint64_t i = 0; i < (radix->line_mask + 1) * HINTS; i++) {
    const int32_t page = radix->hints[i];
    if (page != NOWHERE && (!radix->nodes[page].in_tree || radix->nodes[page].place != i)) {
      return fault(why_out, "a hint leads to a page that has left, or has another place", page);
    }
  }
  return true;
}

bool quire_radix_check(const struct quire_radix *radix, struct quire_error *why_out) {
  QUIRE_ASSERT(radix != NULL && radix->count >= 0 && radix->count <= radix->geometry.pages);
  int32_t members = 0;
  int32_t reached = 0;
  for (int32_t page = 0; page < radix->geometry.pages; page++) {
    const struct node *node = &radix->nodes[page];
    if (evictable(node) != (radix->heap_at[page] != NOWHERE)) {
      return fault(why_out, "a leaf is missing in its heap, or a page that is none is in it", page);
    }
    if (!node->in_tree) {
      continue;
    }
    members++;
    if (!check_node(radix, page, why_out)) {
      return false;
    }
    if (node->parent == NOWHERE) {
      int32_t size = subtree_size(radix, page, radix->count - reached);
      if (size < 0) {
        return fault(why_out, "more pages below than there are", page);
      }
      reached += size;
    }
  }
  if (!check_hints(radix, why_out)) {
    return false;
  }
  if (members != radix->count || reached != radix->count) {
    return fault(why_out, "pages counted, members and reached differ", members);
  }
  return check_heaps(radix, why_out);
}

struct quire_hash128 quire_radix_digest(const struct quire_radix *radix) {
  QUIRE_ASSERT(radix != NULL);
  struct quire_hash128_stream stream;
  quire_hash128_begin(&stream, 0);
  for (int32_t page = 0; page < radix->geometry.pages; page++) {
    const struct node *node = &radix->nodes[page];
    if (!node->in_tree) {
      continue;
    }
    int64_t head[4] = {page, node->parent, node->held, (int64_t)node->used};
    quire_hash128_add(&stream, head, sizeof head);
    quire_hash128_add(&stream, &node->root, sizeof node->root);
    quire_hash128_add(&stream, row_of(radix, page)->tokens, (size_t)radix->geometry.page_tokens * sizeof(int32_t));
  }
  return quire_hash128_end(&stream);
}
