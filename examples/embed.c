/* A whole worker that embeds libquire, with a toy in the place of a model: two ranks whose memory the program allocated
 * itself, one cache shared page by page between them, no engine. It shows, and checks, that
 *
 *   - rows written into a request's pages are found by the next request with the same beginning;
 *   - a page packed into host memory comes back with the same digest as another page, and one whose bytes were damaged
 *     does not come back at all;
 *   - pages are evicted when others need them, and poisoned by command before that.
 *
 * Build: cc -std=c17 embed.c $(pkg-config --cflags --libs quire). It prints what happens and ends with 0 if all holds.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire/quire.h"

#define RANKS 2
#define PAGE_TOKENS 16
#define PAGES 24
#define LAYERS 2
#define PROMPT 70
#define SHARED 64 /* tokens that the first two prompts have in common */
#define TOP_K 8
#define LATENT 576
#define INDEX_DIM 128

struct worker {
  struct quire_kv_layout *layout;
  struct quire_kv_cache *cache;
  struct quire_kv_bank *bank[RANKS];
  uint8_t *memory[RANKS]; /* page after page, the parts of a page side by side */
  uint8_t *host;
  struct quire_kv_layout_info info;
  struct quire_kv_part part[2 * LAYERS];
  int64_t part_offset[2 * LAYERS]; /* in a page */
  uint64_t op;
};

/* Everything that can go wrong here is the program's fault, so it ends with the library's own words. */
static void must(enum quire_status status, const struct quire_error *error, const char *what) {
  if (status != QUIRE_OK) {
    fprintf(stderr, "embed: %s: %s (%s)\n", what, quire_kv_status_name(status), error != NULL ? error->text : "");
    exit(1);
  }
}

static void check(bool holds, const char *what) {
  if (!holds) {
    fprintf(stderr, "embed: it does not hold that %s\n", what);
    exit(1);
  }
}

/* --- memory --- */

static void make_layout(struct worker *w) {
  struct quire_error error;
  struct quire_kv_layout_options options = {
      .size = sizeof options,
      .format = QUIRE_KV_ROW_F32, /* the toy computes in floats */
      .page_tokens = PAGE_TOKENS,
      .target_layers = LAYERS,
      .ranks = RANKS,
      .pages = PAGES,
      .numerics_id = "embed-toy-1",
  };
  must(quire_kv_digest("a hash for a model", 18, &options.model), NULL, "digest");
  must(quire_kv_layout_create(&options, &w->layout, &error), &error, "layout");
  w->info.size = sizeof w->info;
  must(quire_kv_layout_info(w->layout, &w->info), NULL, "info");
  check(w->info.parts == 2 * LAYERS, "every layer has latents and index keys");
  int64_t offset = 0;
  for (int32_t i = 0; i < w->info.parts; i++) {
    w->part[i].size = sizeof w->part[i];
    must(quire_kv_layout_part(w->layout, i, &w->part[i]), NULL, "part");
    w->part_offset[i] = offset;
    offset += w->part[i].page_bytes;
  }
  printf("layout: %d parts, %lld bytes a page, %lld at rest, fingerprint %016llx%016llx\n", w->info.parts,
         (long long)w->info.page_bytes, (long long)w->info.rest_bytes, (unsigned long long)w->info.fingerprint.high,
         (unsigned long long)w->info.fingerprint.low);
}

static void make_bank(struct worker *w, int32_t rank) {
  struct quire_error error;
  struct quire_kv_bank_options options = {.size = sizeof options, .rank = rank};
  int32_t local_pages = 0;
  must(quire_kv_layout_local_pages(w->layout, rank, &local_pages), NULL, "local pages");
  must(quire_kv_bank_create(w->layout, &options, &w->bank[rank], &error), &error, "bank");
  w->memory[rank] = aligned_alloc(64, (size_t)(local_pages * w->info.page_bytes));
  check(w->memory[rank] != NULL, "there is memory");
  for (int32_t i = 0; i < w->info.parts; i++) {
    must(quire_kv_bank_bind(w->bank[rank], i, w->memory[rank] + w->part_offset[i], w->info.page_bytes, local_pages,
                            &error),
         &error, "bind");
  }
  printf("rank %d: %d pages of its own\n", rank, local_pages);
}

static void make_worker(struct worker *w) {
  struct quire_error error;
  make_layout(w);
  for (int32_t rank = 0; rank < RANKS; rank++) {
    make_bank(w, rank);
  }
  must(quire_kv_bank_connect(w->bank, RANKS, &error), &error, "connect");
  w->host = aligned_alloc(4096, (size_t)w->info.rest_bytes);
  check(w->host != NULL, "there is memory");
  for (int32_t rank = 0; rank < RANKS; rank++) {
    must(quire_kv_bank_host(w->bank[rank], w->host, w->info.rest_bytes, &error), &error, "host");
  }
  struct quire_kv_cache_options options = {.size = sizeof options, .requests_max = 8, .poison = 1};
  must(quire_kv_cache_create(w->layout, &options, &w->cache, &error), &error, "cache");
}

static void end_worker(struct worker *w) {
  must(quire_kv_cache_destroy(w->cache), NULL, "destroy");
  for (int32_t rank = 0; rank < RANKS; rank++) {
    must(quire_kv_bank_destroy(w->bank[rank]), NULL, "destroy");
    free(w->memory[rank]);
  }
  must(quire_kv_layout_destroy(w->layout), NULL, "destroy");
  free(w->host);
}

/* --- commands: to the banks, and what they answer --- */

/* Runs one command on all its ranks. Returns the first status that is not QUIRE_OK; the digest is the last rank's. */
static enum quire_status run(struct worker *w, const struct quire_kv_command *command, bool complete,
                             struct quire_kv_hash *digest_out) {
  struct quire_error error;
  enum quire_status result = QUIRE_OK;
  for (int32_t rank = 0; rank < RANKS; rank++) {
    struct quire_kv_ack ack;
    int32_t count = 0;
    if ((command->ranks >> rank & 1) == 0) {
      continue;
    }
    must(quire_kv_bank_submit(w->bank[rank], command, &error), &error, "submit");
    must(quire_kv_bank_drain(w->bank[rank]), NULL, "drain"); /* an engine would do other things and poll later */
    must(quire_kv_bank_poll(w->bank[rank], &ack, 1, &count), NULL, "poll");
    check(count == 1 && ack.op == command->op, "a command is acknowledged once");
    result = result == QUIRE_OK ? (enum quire_status)ack.status : result;
    *digest_out = ack.digest;
    if (complete) {
      must(quire_kv_cache_complete(w->cache, &ack, &error), &error, "complete");
    }
  }
  return result;
}

/* What the cache wants done: here, poisoning the pages that left use. */
static int32_t run_commands(struct worker *w) {
  int32_t total = 0;
  for (int32_t count = 1; count > 0; total += count) {
    struct quire_kv_command command;
    struct quire_kv_hash digest;
    must(quire_kv_cache_commands(w->cache, &command, 1, &count), NULL, "commands");
    if (count == 1) {
      must(run(w, &command, true, &digest), NULL, "poison");
    }
  }
  return total;
}

/* A command of the program's own, about one page. */
static struct quire_kv_command order(struct worker *w, int32_t kind, quire_kv_page page) {
  struct quire_kv_place place = {.size = sizeof place};
  must(quire_kv_layout_place(w->layout, page, &place), NULL, "place");
  return (struct quire_kv_command){
      .op = ++w->op,
      .kind = kind,
      .ranks = kind == QUIRE_KV_PACK ? 1u << place.sender : place.ranks,
      .page = page,
      .target = {QUIRE_KV_PAGE_NONE},
      .valid_tokens = PAGE_TOKENS,
  };
}

/* --- the toy: a row is a hash of its token, its position, its layer and its column --- */

static float toy(int32_t token, int32_t position, int32_t part, int32_t column) {
  uint64_t x = (uint64_t)(uint32_t)token << 32 ^ (uint64_t)(uint32_t)(position * 8 + part) << 12 ^ (uint64_t)column;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return (float)(int32_t)(x >> 40) / (float)(1 << 24) - 0.5f;
}

/* Where a row lies: the rank that stores the page, the part's place in it, the row. */
static float *row_of(const struct worker *w, const quire_kv_page *pages, int32_t part, int32_t position) {
  struct quire_kv_place place = {.size = sizeof place};
  must(quire_kv_layout_place(w->layout, pages[position / PAGE_TOKENS], &place), NULL, "place");
  uint8_t *page = w->memory[place.sender] + w->part_offset[part] + place.local * w->info.page_bytes;
  return (float *)(page + w->part[part].piece_offset[0] + (position % PAGE_TOKENS) * w->part[part].piece_row_bytes[0]);
}

static void write_rows(const struct worker *w, const quire_kv_page *pages, const int32_t *tokens, int32_t begin,
                       int32_t end) {
  for (int32_t position = begin; position < end; position++) {
    for (int32_t part = 0; part < w->info.parts; part++) {
      float *row = row_of(w, pages, part, position);
      for (int32_t i = 0; i < (w->part[part].kind == QUIRE_KV_LATENT ? LATENT : INDEX_DIM); i++) {
        row[i] = toy(tokens[position], position, part, i);
      }
    }
  }
}

/* Sparse attention in small: the query's best TOP_K positions by index key, then a weighted sum of their latents, of
 * which the sum of all columns is returned. */
static double attend(const struct worker *w, const quire_kv_page *pages, int32_t end, int32_t query) {
  double scores[PROMPT];
  double total = 0.0;
  double sum = 0.0;
  for (int32_t position = 0; position < end; position++) {
    const float *key = row_of(w, pages, 1, position);
    scores[position] = 0.0;
    for (int32_t i = 0; i < INDEX_DIM; i++) {
      scores[position] += (double)key[i] * (double)toy(query, 0, 7, i);
    }
  }
  for (int32_t k = 0; k < TOP_K && k < end; k++) {
    int32_t best = 0;
    for (int32_t position = 1; position < end; position++) {
      best = scores[position] > scores[best] ? position : best;
    }
    double weight = scores[best] * scores[best];
    const float *latent = row_of(w, pages, 0, best);
    for (int32_t i = 0; i < LATENT; i++) {
      sum += weight * (double)latent[i];
    }
    total += weight;
    scores[best] = -1e9;
  }
  return sum / total;
}

/* --- what happens --- */

struct served {
  quire_kv_request request;
  quire_kv_page pages[PAGES];
  int32_t count;
  int32_t found; /* tokens that were there */
};

/* Reserves, computes what is not there, seals. */
static void serve(struct worker *w, const int32_t *tokens, int32_t length, bool no_match, struct served *served) {
  struct quire_error error;
  struct quire_kv_reserve reserve = {
      .size = sizeof reserve, .tokens = tokens, .tokens_count = length, .no_match = no_match};
  enum quire_status status = quire_kv_cache_reserve(w->cache, &reserve, &served->request, &error);
  if (status == QUIRE_ERR_AGAIN && run_commands(w) > 0) { /* pages were evicted; now they are poisoned and free */
    status = quire_kv_cache_reserve(w->cache, &reserve, &served->request, &error);
  }
  must(status, &error, "reserve");
  must(quire_kv_cache_pages(w->cache, served->request, served->pages, PAGES, &served->count), NULL, "pages");
  must(quire_kv_cache_tokens(w->cache, served->request, &served->found), NULL, "tokens");
  write_rows(w, served->pages, tokens, served->found, length);
  must(quire_kv_cache_seal(w->cache, served->request, tokens, length, &error), &error, "seal");
}

static void prompt(int32_t *tokens, int32_t length, int32_t seed) {
  for (int32_t i = 0; i < length; i++) {
    tokens[i] = (seed * 7919 + i * 31 + i * i) % 32000;
  }
}

/* A page goes to host memory and comes back as another page; then its bytes at rest are damaged. */
static void to_rest_and_back(struct worker *w, const int32_t *tokens, const struct served *from) {
  struct quire_kv_hash before, after, packed, ignored;
  struct served to;
  serve(w, tokens, SHARED, true, &to); /* pages of its own, although the tree has these tokens */
  check(to.found == 0 && to.pages[1].v != from->pages[1].v, "no_match takes nothing from the tree");

  struct quire_kv_command pack = order(w, QUIRE_KV_PACK, from->pages[1]);
  pack.request_page = 1;
  must(quire_kv_cache_chain(w->cache, tokens, 2 * PAGE_TOKENS, &pack.chain), NULL, "chain");
  must(run(w, &pack, false, &packed), NULL, "pack");

  struct quire_kv_command poison = order(w, QUIRE_KV_POISON, to.pages[1]);
  must(run(w, &poison, false, &ignored), NULL, "poison");
  struct quire_kv_command unpack = order(w, QUIRE_KV_UNPACK, to.pages[1]);
  unpack.request_page = pack.request_page;
  unpack.chain = pack.chain;
  must(run(w, &unpack, false, &ignored), NULL, "unpack");
  struct quire_kv_command digest = order(w, QUIRE_KV_DIGEST, to.pages[1]);
  must(run(w, &digest, false, &after), NULL, "digest");
  check(after.low == packed.low && after.high == packed.high, "a page comes back as it went");
  printf("page %d packed, unpacked as page %d: digest %016llx both\n", from->pages[1].v, to.pages[1].v,
         (unsigned long long)after.low);

  w->host[100] ^= 1;
  unpack.op = ++w->op;
  enum quire_status status = run(w, &unpack, false, &ignored);
  check(status == QUIRE_ERR_CORRUPT, "damaged bytes are refused");
  struct quire_kv_fault fault = {.size = sizeof fault};
  struct quire_error why;
  int32_t bank = 0;
  for (; bank < RANKS && (unpack.ranks >> bank & 1) == 0; bank++) {
  }
  must(quire_kv_bank_fault(w->bank[bank], &fault, &why), NULL, "fault");
  digest.op = ++w->op;
  must(run(w, &digest, false, &before), NULL, "digest");
  check(before.low == after.low && before.high == after.high, "a refused page is not touched");
  printf("one bit of it changed at rest: %s, part %d: %s\n", quire_kv_status_name(status), fault.part, why.text);
  must(quire_kv_cache_release(w->cache, to.request), NULL, "release");
}

static void print_stats(struct worker *w, const char *when) {
  struct quire_kv_cache_stats s = {.size = sizeof s};
  struct quire_error error;
  must(quire_kv_cache_check(w->cache, &error), &error, "check");
  must(quire_kv_cache_stats(w->cache, &s), NULL, "stats");
  check(s.free + s.filling + s.sealed + s.quarantined == s.pages, "pages add up");
  printf("%s: %lld pages: %lld free, %lld sealed, %lld cached; %lld of %lld tokens found, %lld pages evicted\n", when,
         (long long)s.pages, (long long)s.free, (long long)s.sealed, (long long)s.cached, (long long)s.hit_tokens,
         (long long)s.fill_tokens, (long long)s.evicted_pages);
}

int main(void) {
  struct worker w = {0};
  struct served first, second, other;
  int32_t a[PROMPT], b[PROMPT], c[PROMPT];
  int32_t matched = 0;
  make_worker(&w);

  prompt(a, PROMPT, 1);
  serve(&w, a, PROMPT, false, &first);
  double value = attend(&w, first.pages, SHARED, 42);
  printf("first request: %d pages, %d tokens found, attention %.9f\n", first.count, first.found, value);

  memcpy(b, a, sizeof b);
  prompt(b + SHARED, PROMPT - SHARED, 2);
  serve(&w, b, PROMPT, false, &second);
  check(second.found == SHARED && second.pages[0].v == first.pages[0].v, "the common beginning is found");
  check(attend(&w, second.pages, SHARED, 42) == value, "what is found is what was computed");
  printf("second request: %d pages, %d tokens found, attention the same\n", second.count, second.found);

  to_rest_and_back(&w, a, &first);
  must(quire_kv_cache_release(w.cache, first.request), NULL, "release");
  must(quire_kv_cache_release(w.cache, second.request), NULL, "release");
  check(quire_kv_cache_release(w.cache, second.request) == QUIRE_ERR_NOT_FOUND, "a request is released once");
  printf("released: %d pages poisoned\n", run_commands(&w));
  print_stats(&w, "at rest");

  for (int32_t seed = 3; seed < 9; seed++) { /* more than there is room for */
    prompt(c, PROMPT, seed);
    serve(&w, c, PROMPT, false, &other);
    must(quire_kv_cache_release(w.cache, other.request), NULL, "release");
    run_commands(&w);
  }
  must(quire_kv_cache_match(w.cache, a, PROMPT, &matched), NULL, "match");
  check(matched == 0, "the oldest pages went first");
  must(quire_kv_cache_match(w.cache, c, PROMPT, &matched), NULL, "match");
  check(matched == PROMPT / PAGE_TOKENS, "the newest are there");
  print_stats(&w, "after six others");
  end_worker(&w);
  printf("done\n");
  return 0;
}
