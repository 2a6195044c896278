// ctest: timeout=120
/* The public interface from outside, where a caller may pass anything of honest type: every function with NULL, numbers
 * out of bounds, sizes that cannot be, handles of other kinds, handles destroyed before, requests of another cache or
 * released; and every answer is a status. Then what must work: structs older and newer than the library, every
 * allocation refused once, banks whose peers go, and a long random walk over all calls with good and bad arguments
 * mixed, after which the cache's books must still balance. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "fail_env.h"
#include "quire/quire.h"
#include "seed.h"

#define PAGE_TOKENS 4
#define PAGES 10
#define RANKS 2
#define TOKENS (PAGE_TOKENS * PAGES)

/* -- a worker ------------------------------------------------------------------------------------------------------ */

struct world {
  struct quire_kv_layout *layout, *gone_layout;
  struct quire_kv_cache *cache, *other, *gone_cache;
  struct quire_kv_bank *bank[RANKS], *loose, *gone_bank;
  quire_kv_request request, released, foreign;
  int32_t tokens[TOKENS];
  uint8_t *host;
};

static struct quire_kv_layout_options layout_options(void) {
  return (struct quire_kv_layout_options){
      .size = sizeof(struct quire_kv_layout_options),
      .format = QUIRE_KV_ROW_FP8,
      .page_tokens = PAGE_TOKENS,
      .target_layers = 2,
      .draft_layers = 1,
      .ranks = RANKS,
      .pages = PAGES,
      .numerics_id = "test",
  };
}

static struct quire_kv_reserve reserve_of(const int32_t *tokens, int32_t count, int32_t headroom) {
  return (struct quire_kv_reserve){
      .size = sizeof(struct quire_kv_reserve), .tokens = tokens, .tokens_count = count, .reserve_tokens = headroom};
}

static struct quire_kv_layout *make_layout(void) {
  struct quire_kv_layout_options options = layout_options();
  struct quire_kv_layout *layout = NULL;
  assert_int_equal(quire_kv_layout_create(&options, &layout, NULL), QUIRE_OK);
  return layout;
}

static struct quire_kv_cache *make_cache(struct quire_kv_layout *layout, int32_t poison) {
  struct quire_kv_cache_options options = {.size = sizeof options, .requests_max = 3, .poison = poison};
  struct quire_kv_cache *cache = NULL;
  assert_int_equal(quire_kv_cache_create(layout, &options, &cache, NULL), QUIRE_OK);
  return cache;
}

static struct quire_kv_bank *make_bank(struct quire_kv_layout *layout, int32_t rank, int32_t execution) {
  struct quire_kv_bank_options options = {
      .size = sizeof options, .rank = rank, .queue_commands = 3, .execution = execution};
  struct quire_kv_bank *bank = NULL;
  assert_int_equal(quire_kv_bank_create(layout, &options, &bank, NULL), QUIRE_OK);
  return bank;
}

static void world_init(struct world *w, int32_t execution) {
  *w = (struct world){.layout = make_layout(), .gone_layout = make_layout()};
  struct quire_kv_layout_info info = {.size = sizeof info};
  assert_int_equal(quire_kv_layout_info(w->layout, &info), QUIRE_OK);
  w->cache = make_cache(w->layout, 1);
  w->other = make_cache(w->layout, 0);
  w->gone_cache = make_cache(w->layout, 0);
  w->host = test_malloc((size_t)info.rest_bytes * 2);
  for (int32_t rank = 0; rank < RANKS; rank++) {
    w->bank[rank] = make_bank(w->layout, rank, execution);
    assert_int_equal(quire_kv_bank_allocate(w->bank[rank], NULL), QUIRE_OK);
    assert_int_equal(quire_kv_bank_host(w->bank[rank], w->host, info.rest_bytes * 2, NULL), QUIRE_OK);
  }
  assert_int_equal(quire_kv_bank_connect(w->bank, RANKS, NULL), QUIRE_OK);
  w->loose = make_bank(w->layout, 1, execution);
  w->gone_bank = make_bank(w->layout, 0, execution);
  for (int32_t i = 0; i < TOKENS; i++) {
    w->tokens[i] = 100 + i;
  }
  struct quire_kv_reserve reserve = reserve_of(w->tokens, 10, 0);
  assert_int_equal(quire_kv_cache_reserve(w->cache, &reserve, &w->released, NULL), QUIRE_OK);
  assert_int_equal(quire_kv_cache_release(w->cache, w->released), QUIRE_OK);
  assert_int_equal(quire_kv_cache_reserve(w->cache, &reserve, &w->request, NULL), QUIRE_OK);
  assert_int_equal(quire_kv_cache_reserve(w->other, &reserve, &w->foreign, NULL), QUIRE_OK);
  assert_int_equal(quire_kv_layout_destroy(w->gone_layout), QUIRE_OK);
  assert_int_equal(quire_kv_cache_destroy(w->gone_cache), QUIRE_OK);
  assert_int_equal(quire_kv_bank_destroy(w->gone_bank), QUIRE_OK);
}

static void world_fini(struct world *w) {
  struct quire_error error;
  assert_int_equal(quire_kv_cache_check(w->cache, &error), QUIRE_OK);
  assert_int_equal(quire_kv_layout_destroy(w->layout), QUIRE_OK); /* before what was made from it */
  assert_int_equal(quire_kv_cache_destroy(w->cache), QUIRE_OK);
  assert_int_equal(quire_kv_cache_destroy(w->other), QUIRE_OK);
  for (int32_t rank = 0; rank < RANKS; rank++) {
    assert_int_equal(quire_kv_bank_destroy(w->bank[rank]), QUIRE_OK);
  }
  assert_int_equal(quire_kv_bank_destroy(w->loose), QUIRE_OK);
  test_free(w->host);
}

static struct quire_kv_command command_of(int32_t kind, uint32_t ranks, int32_t page) {
  return (struct quire_kv_command){.op = 7,
                                   .kind = kind,
                                   .ranks = ranks,
                                   .page = {page},
                                   .target = {QUIRE_KV_PAGE_NONE},
                                   .valid_tokens = PAGE_TOKENS};
}

/* -- every function with every kind of bad handle ------------------------------------------------------------------ */

/* Calls each function that takes this kind of handle, everything else about the call being right, and expects one
 * status from all. Outputs hold a mark that must stay. */
#define MARK 0x5A5A5A5A

static void all_layout_calls(struct world *w, struct quire_kv_layout *handle, enum quire_status wanted) {
  struct quire_kv_layout_info info = {.size = sizeof info};
  struct quire_kv_part part = {.size = sizeof part};
  struct quire_kv_place place = {.size = sizeof place};
  struct quire_kv_cache_options cache_options = {.size = sizeof cache_options};
  struct quire_kv_bank_options bank_options = {.size = sizeof bank_options};
  struct quire_kv_cache *cache = w->cache;
  struct quire_kv_bank *bank = w->loose;
  struct quire_error error = {.status = QUIRE_OK};
  int64_t bytes = MARK;
  int32_t number = MARK;
  assert_int_equal(quire_kv_layout_info(handle, &info), wanted);
  assert_int_equal(quire_kv_layout_part(handle, 0, &part), wanted);
  assert_int_equal(quire_kv_layout_place(handle, (quire_kv_page){0}, &place), wanted);
  assert_int_equal(quire_kv_layout_local_pages(handle, 0, &number), wanted);
  assert_int_equal(quire_kv_cache_bytes(handle, &cache_options, &bytes, &error), wanted);
  assert_int_equal(error.status, wanted);
  error.status = QUIRE_OK;
  assert_int_equal(quire_kv_cache_create(handle, &cache_options, &cache, &error), wanted);
  assert_int_equal(error.status, wanted);
  assert_int_equal(quire_kv_bank_create(handle, &bank_options, &bank, &error), wanted);
  assert_true(cache == w->cache && bank == w->loose && number == MARK && bytes == MARK && info.pages == 0);
  assert_true(part.page_bytes == 0 && place.ranks == 0 && error.text[0] != 0);
}

static void all_cache_calls(struct world *w, struct quire_kv_cache *handle, enum quire_status wanted) {
  struct quire_kv_reserve reserve = reserve_of(w->tokens, 5, 0);
  struct quire_kv_command command = {.op = MARK};
  struct quire_kv_ack ack = {.op = 1};
  struct quire_kv_cache_stats stats = {.size = sizeof stats};
  struct quire_kv_hash hash = {MARK, 0};
  struct quire_error error;
  quire_kv_request request = {MARK};
  quire_kv_page page = {MARK};
  int32_t number = MARK;
  assert_int_equal(quire_kv_cache_match(handle, w->tokens, 5, &number), wanted);
  assert_int_equal(quire_kv_cache_reserve(handle, &reserve, &request, &error), wanted);
  assert_int_equal(quire_kv_cache_refill(handle, w->request, &reserve, &error), wanted);
  assert_int_equal(quire_kv_cache_grow(handle, w->request, 20, &error), wanted);
  assert_int_equal(quire_kv_cache_rematch(handle, w->request, w->tokens, 5, &number), wanted);
  assert_int_equal(quire_kv_cache_pages(handle, w->request, &page, 1, &number), wanted);
  assert_int_equal(quire_kv_cache_tokens(handle, w->request, &number), wanted);
  assert_int_equal(quire_kv_cache_seal(handle, w->request, w->tokens, 5, &error), wanted);
  assert_int_equal(quire_kv_cache_reset(handle, w->request), wanted);
  assert_int_equal(quire_kv_cache_release(handle, w->request), wanted);
  assert_int_equal(quire_kv_cache_evict(handle, 1, &number), wanted);
  assert_int_equal(quire_kv_cache_drop(handle, (quire_kv_page){0}, &number), wanted);
  assert_int_equal(quire_kv_cache_flush(handle, &number), wanted);
  assert_int_equal(quire_kv_cache_chain(handle, w->tokens, 5, &hash), wanted);
  assert_int_equal(quire_kv_cache_commands(handle, &command, 1, &number), wanted);
  assert_int_equal(quire_kv_cache_complete(handle, &ack, &error), wanted);
  assert_int_equal(quire_kv_cache_stats(handle, &stats), wanted);
  assert_int_equal(quire_kv_cache_check(handle, &error), wanted);
  assert_true(number == MARK && request.v == MARK && page.v == MARK && hash.low == MARK && command.op == MARK);
  assert_true(stats.pages == 0);
}

static void all_bank_calls(struct world *w, struct quire_kv_bank *handle, enum quire_status wanted) {
  struct quire_kv_bank *banks[RANKS] = {handle, w->bank[1]};
  struct quire_kv_command command = command_of(QUIRE_KV_DIGEST, 1, 0);
  struct quire_kv_ack ack = {.op = MARK};
  struct quire_kv_fault fault = {.size = sizeof fault, .op = MARK};
  struct quire_error error;
  void *address = w;
  int32_t number = MARK;
  assert_int_equal(quire_kv_bank_bind(handle, 0, w->host, 4096, PAGES, &error), wanted);
  assert_int_equal(quire_kv_bank_allocate(handle, &error), wanted);
  assert_int_equal(quire_kv_bank_host(handle, w->host, 4096, &error), wanted);
  assert_int_equal(quire_kv_bank_connect(banks, RANKS, &error), wanted);
  assert_int_equal(quire_kv_bank_page(handle, 0, (quire_kv_page){0}, &address), wanted);
  assert_int_equal(quire_kv_bank_submit(handle, &command, &error), wanted);
  assert_int_equal(quire_kv_bank_poll(handle, &ack, 1, &number), wanted);
  assert_int_equal(quire_kv_bank_fault(handle, &fault, &error), wanted);
  assert_int_equal(quire_kv_bank_drain(handle), wanted);
  assert_true(address == w && number == MARK && ack.op == MARK && fault.op == MARK);
}

static void test_bad_handles(void **state) {
  struct world w;
  uint64_t mine[8] = {0};
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  all_layout_calls(&w, NULL, QUIRE_ERR_ARGUMENT);
  all_cache_calls(&w, NULL, QUIRE_ERR_ARGUMENT);
  all_bank_calls(&w, NULL, QUIRE_ERR_ARGUMENT);
  all_layout_calls(&w, w.gone_layout, QUIRE_ERR_STATE);
  all_cache_calls(&w, w.gone_cache, QUIRE_ERR_STATE);
  all_bank_calls(&w, w.gone_bank, QUIRE_ERR_STATE);
  all_layout_calls(&w, (void *)w.cache, QUIRE_ERR_ARGUMENT);
  all_cache_calls(&w, (void *)w.bank[0], QUIRE_ERR_ARGUMENT);
  all_bank_calls(&w, (void *)w.layout, QUIRE_ERR_ARGUMENT);
  uintptr_t wild[] = {1, (uintptr_t)mine, UINTPTR_MAX, (uintptr_t)w.cache + 1, (uintptr_t)w.cache - 1, 4096};
  for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) { /* not even read through */
    all_layout_calls(&w, (void *)wild[i], QUIRE_ERR_ARGUMENT);
    all_cache_calls(&w, (void *)wild[i], QUIRE_ERR_ARGUMENT);
    all_bank_calls(&w, (void *)wild[i], QUIRE_ERR_ARGUMENT);
    assert_int_equal(quire_kv_cache_destroy((void *)wild[i]), QUIRE_ERR_ARGUMENT);
  }
  assert_int_equal(quire_kv_layout_destroy(NULL), QUIRE_OK);
  assert_int_equal(quire_kv_cache_destroy(NULL), QUIRE_OK);
  assert_int_equal(quire_kv_bank_destroy(NULL), QUIRE_OK);
  assert_int_equal(quire_kv_layout_destroy(w.gone_layout), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_cache_destroy(w.gone_cache), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_bank_destroy(w.gone_bank), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_layout_destroy((void *)w.cache), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_destroy((void *)w.layout), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_destroy((void *)w.cache), QUIRE_ERR_ARGUMENT);
  world_fini(&w);
}

/* -- good handles, other arguments bad ----------------------------------------------------------------------------- */

static void test_null_and_numbers_layout(void **state) {
  struct world w;
  int32_t number = MARK;
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  assert_int_equal(quire_kv_layout_info(w.layout, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_layout_part(w.layout, 0, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_layout_place(w.layout, (quire_kv_page){0}, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_layout_local_pages(w.layout, 0, NULL), QUIRE_ERR_ARGUMENT);
  const int32_t outside[] = {-1, PAGES, INT32_MIN, INT32_MAX};
  for (size_t i = 0; i < 4; i++) {
    struct quire_kv_part part = {.size = sizeof part};
    struct quire_kv_place place = {.size = sizeof place};
    assert_int_equal(quire_kv_layout_part(w.layout, outside[i], &part), QUIRE_ERR_ARGUMENT);
    assert_int_equal(quire_kv_layout_place(w.layout, (quire_kv_page){outside[i]}, &place), QUIRE_ERR_ARGUMENT);
    assert_int_equal(quire_kv_layout_local_pages(w.layout, outside[i], &number), QUIRE_ERR_ARGUMENT);
  }
  struct quire_kv_hash hash = {MARK, 0};
  assert_int_equal(quire_kv_digest(NULL, 1, &hash), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_digest("", SIZE_MAX, &hash), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_digest("", 0, NULL), QUIRE_ERR_ARGUMENT);
  assert_true(hash.low == MARK && number == MARK);
  assert_int_equal(quire_kv_digest(NULL, 0, &hash), QUIRE_OK);
  world_fini(&w);
}

static void test_layout_options(void **state) {
  struct quire_kv_layout_options good = layout_options();
  struct quire_kv_layout *layout = NULL;
  static char long_name[QUIRE_KV_NUMERICS_BYTES_MAX + 2];
  (void)state;
  memset(long_name, 'x', sizeof long_name - 1);
  assert_int_equal(quire_kv_layout_create(NULL, &layout, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_layout_create(&good, NULL, NULL), QUIRE_ERR_ARGUMENT);
  const struct {
    size_t offset;
    int32_t value;
  } bad[] = {
      {offsetof(struct quire_kv_layout_options, format), 0},
      {offsetof(struct quire_kv_layout_options, format), 4},
      {offsetof(struct quire_kv_layout_options, page_tokens), -1},
      {offsetof(struct quire_kv_layout_options, page_tokens), INT32_MAX},
      {offsetof(struct quire_kv_layout_options, target_layers), 0},
      {offsetof(struct quire_kv_layout_options, target_layers), INT32_MIN},
      {offsetof(struct quire_kv_layout_options, target_layers), 128}, /* with the draft two parts too many */
      {offsetof(struct quire_kv_layout_options, target_layers), INT32_MAX},
      {offsetof(struct quire_kv_layout_options, draft_layers), -1},
      {offsetof(struct quire_kv_layout_options, draft_layers), 2},
      {offsetof(struct quire_kv_layout_options, ranks), -1},
      {offsetof(struct quire_kv_layout_options, ranks), 17},
      {offsetof(struct quire_kv_layout_options, replicated), 2},
      {offsetof(struct quire_kv_layout_options, replicated), -1},
      {offsetof(struct quire_kv_layout_options, pages), 0},
      {offsetof(struct quire_kv_layout_options, pages), -5},
      {offsetof(struct quire_kv_layout_options, pages), QUIRE_KV_PAGES_MAX + 1},
      {offsetof(struct quire_kv_layout_options, pages), INT32_MAX},
      {offsetof(struct quire_kv_layout_options, reserved), 1},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct quire_kv_layout_options options = good;
    struct quire_error error = {.status = QUIRE_OK};
    memcpy((uint8_t *)&options + bad[i].offset, &bad[i].value, sizeof bad[i].value);
    assert_int_equal(quire_kv_layout_create(&options, &layout, &error), QUIRE_ERR_ARGUMENT);
    assert_true(error.status == QUIRE_ERR_ARGUMENT && error.text[0] != 0 && layout == NULL);
  }
  const char *const names[] = {NULL, "", long_name};
  for (size_t i = 0; i < 3; i++) {
    struct quire_kv_layout_options options = good;
    options.numerics_id = names[i];
    assert_int_equal(quire_kv_layout_create(&options, &layout, NULL), QUIRE_ERR_ARGUMENT);
  }
}

static void test_null_and_numbers_cache(void **state) {
  struct world w;
  quire_kv_page pages[PAGES];
  struct quire_kv_command commands[PAGES];
  struct quire_kv_hash hash;
  int32_t number = MARK;
  quire_kv_request request = {MARK};
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  struct quire_kv_reserve reserve = reserve_of(w.tokens, 10, 0);
  assert_int_equal(quire_kv_cache_match(w.cache, NULL, 1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_match(w.cache, w.tokens, -1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_match(w.cache, w.tokens, 1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_reserve(w.cache, NULL, &request, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_reserve(w.cache, &reserve, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_refill(w.cache, w.request, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_refill(w.cache, w.request, &reserve, NULL), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_cache_grow(w.cache, w.request, -1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_grow(w.cache, w.request, INT32_MAX, NULL), QUIRE_ERR_REQUEST);
  assert_int_equal(quire_kv_cache_rematch(w.cache, w.request, NULL, 1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_rematch(w.cache, w.request, w.tokens, -1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_rematch(w.cache, w.request, w.tokens, 1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_pages(w.cache, w.request, NULL, 1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_pages(w.cache, w.request, pages, -1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_pages(w.cache, w.request, pages, PAGES, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_tokens(w.cache, w.request, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_seal(w.cache, w.request, NULL, 1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_seal(w.cache, w.request, w.tokens, -1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_seal(w.cache, w.request, w.tokens, INT32_MAX, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_evict(w.cache, -1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_drop(w.cache, (quire_kv_page){-1}, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_drop(w.cache, (quire_kv_page){INT32_MAX}, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_chain(w.cache, NULL, 1, &hash), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_chain(w.cache, w.tokens, 0, &hash), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_chain(w.cache, w.tokens, 1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_commands(w.cache, NULL, 1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_commands(w.cache, commands, -1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_commands(w.cache, commands, 1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_complete(w.cache, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_stats(w.cache, NULL), QUIRE_ERR_ARGUMENT);
  assert_true(number == MARK && request.v == MARK);
  assert_int_equal(quire_kv_cache_check(w.cache, NULL), QUIRE_OK);
  assert_int_equal(quire_kv_cache_flush(w.cache, NULL), QUIRE_OK);
  assert_int_equal(quire_kv_cache_evict(w.cache, INT32_MAX, NULL), QUIRE_OK);
  world_fini(&w);
}

static void test_cache_options(void **state) {
  struct quire_kv_layout *layout = make_layout();
  struct quire_kv_cache_options good = {.size = sizeof good};
  struct quire_kv_cache *cache = NULL;
  struct quire_kv_allocator half = {.size = sizeof half};
  int64_t bytes = MARK;
  (void)state;
  assert_int_equal(quire_kv_cache_create(layout, NULL, &cache, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_create(layout, &good, NULL, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_bytes(layout, NULL, &bytes, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_cache_bytes(layout, &good, NULL, NULL), QUIRE_ERR_ARGUMENT);
  const struct quire_kv_cache_options bad[] = {
      {.requests_max = -1},
      {.requests_max = 65537},
      {.requests_max = INT32_MIN},
      {.request_pages_max = -1},
      {.request_pages_max = INT32_MAX},
      {.chain_kind = 3},
      {.chain_kind = -1},
      {.chain_spread_max = -1},
      {.lost_pages_max = -1},
      {.poison = 2},
      {.reserved = 1},
      {.tenant_salt_bytes = 1},
      {.tenant_salt = "x", .tenant_salt_bytes = -1},
      {.tenant_salt = "x", .tenant_salt_bytes = 65},
      {.allocator = &half},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct quire_kv_cache_options options = bad[i];
    struct quire_error error = {.status = QUIRE_OK};
    options.size = sizeof options;
    assert_int_equal(quire_kv_cache_create(layout, &options, &cache, &error), QUIRE_ERR_ARGUMENT);
    assert_true(error.status == QUIRE_ERR_ARGUMENT && error.text[0] != 0);
    assert_int_equal(quire_kv_cache_bytes(layout, &options, &bytes, NULL), QUIRE_ERR_ARGUMENT);
  }
  assert_true(cache == NULL && bytes == MARK);
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
}

static void test_bad_reservations(void **state) {
  struct world w;
  quire_kv_request request = {MARK};
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  const struct {
    struct quire_kv_reserve reserve;
    enum quire_status wanted;
  } cases[] = {
      {{.tokens = NULL, .tokens_count = 5}, QUIRE_ERR_ARGUMENT},
      {{.tokens = w.tokens, .tokens_count = 0}, QUIRE_ERR_ARGUMENT},
      {{.tokens = w.tokens, .tokens_count = -1}, QUIRE_ERR_ARGUMENT},
      {{.tokens = w.tokens, .tokens_count = 1, .reserve_tokens = -1}, QUIRE_ERR_ARGUMENT},
      {{.tokens = w.tokens, .tokens_count = 1, .no_match = 2}, QUIRE_ERR_ARGUMENT},
      {{.tokens = w.tokens, .tokens_count = 1, .reserved = -1}, QUIRE_ERR_ARGUMENT},
      {{.tokens = w.tokens, .tokens_count = 1, .reserve_tokens = INT32_MAX}, QUIRE_ERR_REQUEST},
      {{.tokens = w.tokens, .tokens_count = TOKENS, .reserve_tokens = 1}, QUIRE_ERR_REQUEST},
      {{.tokens = w.tokens, .tokens_count = TOKENS}, QUIRE_ERR_AGAIN},
  };
  assert_int_equal(quire_kv_cache_reset(w.cache, w.request), QUIRE_OK);
  struct quire_kv_reserve first = reserve_of(w.tokens, 5, 0);
  assert_int_equal(quire_kv_cache_refill(w.cache, w.request, &first, NULL), QUIRE_OK);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct quire_kv_reserve reserve = cases[i].reserve;
    struct quire_error error = {.status = QUIRE_OK};
    reserve.size = sizeof reserve;
    assert_int_equal(quire_kv_cache_reserve(w.cache, &reserve, &request, &error), cases[i].wanted);
    assert_true(error.status == cases[i].wanted && request.v == MARK);
  }
  world_fini(&w);
}

/* However many caches came and went: two that are alive never take each other's requests for their own. */
static void test_requests_of_many_caches(void **state) {
  struct quire_kv_layout *layout = make_layout();
  struct quire_kv_cache *old = make_cache(layout, 0);
  const int32_t tokens[] = {1, 2, 3};
  struct quire_kv_reserve reserve = reserve_of(tokens, 3, 0);
  quire_kv_request first, other;
  (void)state;
  assert_int_equal(quire_kv_cache_reserve(old, &reserve, &first, NULL), QUIRE_OK);
  for (int32_t i = 0; i < 65540; i++) {
    struct quire_kv_cache *fresh = make_cache(layout, 0);
    assert_int_equal(quire_kv_cache_reserve(fresh, &reserve, &other, NULL), QUIRE_OK);
    assert_int_equal(quire_kv_cache_reset(fresh, first), QUIRE_ERR_NOT_FOUND);
    assert_int_equal(quire_kv_cache_reset(old, other), QUIRE_ERR_NOT_FOUND);
    assert_int_equal(quire_kv_cache_destroy(fresh), QUIRE_OK);
  }
  assert_int_equal(quire_kv_cache_destroy(old), QUIRE_OK);
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
}

static void no_request(struct world *w, quire_kv_request request) {
  struct quire_kv_reserve reserve = reserve_of(w->tokens, 5, 0);
  quire_kv_page page;
  int32_t number;
  assert_int_equal(quire_kv_cache_refill(w->cache, request, &reserve, NULL), QUIRE_ERR_NOT_FOUND);
  assert_int_equal(quire_kv_cache_grow(w->cache, request, 20, NULL), QUIRE_ERR_NOT_FOUND);
  assert_int_equal(quire_kv_cache_rematch(w->cache, request, w->tokens, 5, &number), QUIRE_ERR_NOT_FOUND);
  assert_int_equal(quire_kv_cache_pages(w->cache, request, &page, 1, &number), QUIRE_ERR_NOT_FOUND);
  assert_int_equal(quire_kv_cache_tokens(w->cache, request, &number), QUIRE_ERR_NOT_FOUND);
  assert_int_equal(quire_kv_cache_seal(w->cache, request, w->tokens, 5, NULL), QUIRE_ERR_NOT_FOUND);
  assert_int_equal(quire_kv_cache_reset(w->cache, request), QUIRE_ERR_NOT_FOUND);
  assert_int_equal(quire_kv_cache_release(w->cache, request), QUIRE_ERR_NOT_FOUND);
}

static void test_foreign_and_released_requests(void **state) {
  struct world w;
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  no_request(&w, w.released);
  no_request(&w, w.foreign);
  no_request(&w, (quire_kv_request){0});
  no_request(&w, (quire_kv_request){UINT64_MAX});
  for (int bit = 0; bit < 64; bit++) { /* nothing close to a good number is good */
    no_request(&w, (quire_kv_request){w.request.v ^ (uint64_t)1 << bit});
  }
  assert_int_equal(quire_kv_cache_release(w.cache, w.request), QUIRE_OK);
  no_request(&w, w.request);
  no_request(&w, (quire_kv_request){w.request.v & UINT32_MAX}); /* the serial of a slot that is not in use */
  assert_int_equal(quire_kv_cache_release(w.other, w.foreign), QUIRE_OK);
  world_fini(&w);
}

static void test_null_and_numbers_bank(void **state) {
  struct world w;
  struct quire_kv_ack acks[4];
  struct quire_error error;
  void *address = NULL;
  int32_t number = MARK;
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  struct quire_kv_bank_options options = {.size = sizeof options};
  struct quire_kv_bank *bank = NULL;
  assert_int_equal(quire_kv_bank_create(w.layout, NULL, &bank, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_create(w.layout, &options, NULL, NULL), QUIRE_ERR_ARGUMENT);
  const int32_t fields[][2] = {{8, RANKS}, {8, -1}, {12, -1}, {12, 129}, {16, 2}, {16, -1}, {20, 1}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    struct quire_kv_bank_options bad = options;
    memcpy((uint8_t *)&bad + fields[i][0], &fields[i][1], sizeof(int32_t));
    assert_int_equal(quire_kv_bank_create(w.layout, &bad, &bank, &error), QUIRE_ERR_ARGUMENT);
  }
  assert_int_equal(quire_kv_bank_bind(w.loose, -1, w.host, 4096, PAGES, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.loose, INT32_MAX, w.host, 4096, PAGES, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.loose, 0, NULL, 4096, PAGES, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.loose, 0, w.host, -4096, PAGES, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.loose, 0, w.host, INT64_MIN, PAGES, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.loose, 0, w.host, INT64_MAX - 15, PAGES, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.loose, 0, w.host, 4096, -1, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.loose, 0, w.host + 8, 4096, PAGES, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_bind(w.bank[0], 0, w.host, 4096, PAGES, &error), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_bank_allocate(w.bank[0], &error), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_bank_host(w.loose, NULL, 4096, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_host(w.loose, w.host, 0, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_host(w.loose, w.host, INT64_MIN, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_host(w.loose, w.host + 1, 4096, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_connect(NULL, RANKS, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_connect(w.bank, 0, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_connect(w.bank, -1, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_connect(w.bank, INT32_MAX, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_connect(w.bank, RANKS, &error), QUIRE_ERR_STATE); /* they are already */
  assert_int_equal(quire_kv_bank_connect(&w.loose, 1, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_page(w.loose, 0, (quire_kv_page){1}, &address), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_bank_page(w.bank[0], 0, (quire_kv_page){0}, NULL), QUIRE_ERR_ARGUMENT);
  const int32_t places[][2] = {{-1, 0}, {6, 0}, {INT32_MAX, 0}, {0, 1}, {0, -1}, {0, -2}, {0, PAGES}, {0, INT32_MIN}};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    assert_int_equal(quire_kv_bank_page(w.bank[0], places[i][0], (quire_kv_page){places[i][1]}, &address),
                     QUIRE_ERR_ARGUMENT);
  }
  assert_int_equal(quire_kv_bank_submit(w.bank[0], NULL, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_poll(w.bank[0], NULL, 1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_poll(w.bank[0], acks, -1, &number), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_poll(w.bank[0], acks, 1, NULL), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_fault(w.bank[0], NULL, &error), QUIRE_ERR_NOT_FOUND);
  assert_true(number == MARK && address == NULL && bank == NULL);
  world_fini(&w);
}

static void test_bad_commands(void **state) {
  struct world w;
  struct quire_error error;
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  const struct quire_kv_command good = command_of(QUIRE_KV_DIGEST, 1, 2);
  const struct {
    size_t offset;
    int32_t value;
  } bad[] = {
      {offsetof(struct quire_kv_command, kind), 0},         {offsetof(struct quire_kv_command, kind), 6},
      {offsetof(struct quire_kv_command, kind), -1},        {offsetof(struct quire_kv_command, ranks), 0},
      {offsetof(struct quire_kv_command, ranks), 2},        {offsetof(struct quire_kv_command, ranks), -1},
      {offsetof(struct quire_kv_command, page), -1},        {offsetof(struct quire_kv_command, page), PAGES},
      {offsetof(struct quire_kv_command, page), 1},         {offsetof(struct quire_kv_command, page), INT32_MIN},
      {offsetof(struct quire_kv_command, target), 1},       {offsetof(struct quire_kv_command, valid_tokens), 0},
      {offsetof(struct quire_kv_command, valid_tokens), 5}, {offsetof(struct quire_kv_command, host_offset), 4096},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct quire_kv_command command = good;
    memcpy((uint8_t *)&command + bad[i].offset, &bad[i].value, sizeof bad[i].value);
    assert_int_equal(quire_kv_bank_submit(w.bank[0], &command, &error), QUIRE_ERR_ARGUMENT);
  }
  const int64_t offsets[] = {-4096, 1, 1 << 20, INT64_MAX - 4095, INT64_MIN};
  for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
    struct quire_kv_command command = good;
    command.kind = QUIRE_KV_UNPACK;
    command.host_offset = offsets[i];
    assert_int_equal(quire_kv_bank_submit(w.bank[0], &command, &error), QUIRE_ERR_ARGUMENT);
  }
  struct quire_kv_command copy = command_of(QUIRE_KV_COPY, 1, 2);
  copy.target.v = 2;
  assert_int_equal(quire_kv_bank_submit(w.bank[0], &copy, &error), QUIRE_ERR_ARGUMENT);
  copy.target.v = INT32_MAX;
  assert_int_equal(quire_kv_bank_submit(w.bank[0], &copy, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_kv_bank_submit(w.loose, &good, &error), QUIRE_ERR_STATE);
  for (int32_t i = 0; i < 3; i++) {
    assert_int_equal(quire_kv_bank_submit(w.bank[0], &good, &error), QUIRE_OK);
  }
  assert_int_equal(quire_kv_bank_submit(w.bank[0], &good, &error), QUIRE_ERR_AGAIN);
  assert_int_equal(quire_kv_bank_host(w.bank[0], w.host, 4096, &error), QUIRE_ERR_STATE);
  assert_int_equal(quire_kv_bank_drain(w.bank[0]), QUIRE_OK);
  struct quire_kv_ack acks[4];
  int32_t count = 0;
  assert_int_equal(quire_kv_bank_poll(w.bank[0], acks, 4, &count), QUIRE_OK);
  assert_int_equal(count, 3);
  world_fini(&w);
}

static void test_acks(void **state) {
  struct world w;
  struct quire_kv_command command;
  struct quire_kv_cache_stats stats = {.size = sizeof stats};
  int32_t count = 0;
  (void)state;
  world_init(&w, QUIRE_KV_BY_CALLER);
  for (;;) { /* what the release in world_init left */
    assert_int_equal(quire_kv_cache_commands(w.cache, &command, 1, &count), QUIRE_OK);
    if (count == 0) {
      break;
    }
    struct quire_kv_ack ack = {.op = command.op, .status = QUIRE_OK};
    for (ack.rank = -1; ack.rank <= RANKS; ack.rank++) {
      bool asked = ack.rank >= 0 && ack.rank < RANKS && (command.ranks >> ack.rank & 1) != 0;
      assert_int_equal(quire_kv_cache_complete(w.cache, &ack, NULL), asked ? QUIRE_OK : QUIRE_ERR_STATE);
      assert_int_equal(quire_kv_cache_complete(w.cache, &ack, NULL), QUIRE_ERR_STATE);
    }
  }
  const uint64_t ops[] = {0, UINT64_MAX, command.op + 1, command.op + ((uint64_t)1 << 32), PAGES, INT32_MAX};
  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
    struct quire_kv_ack ack = {.op = ops[i], .rank = INT32_MIN};
    assert_int_equal(quire_kv_cache_complete(w.cache, &ack, NULL), QUIRE_ERR_STATE);
  }
  assert_int_equal(quire_kv_cache_release(w.cache, w.request), QUIRE_OK);
  assert_int_equal(quire_kv_cache_commands(w.cache, &command, 1, &count), QUIRE_OK);
  struct quire_kv_ack bad = {.op = command.op, .status = -12345, .rank = command.ranks == 1 ? 0 : 1};
  assert_int_equal(quire_kv_cache_complete(w.cache, &bad, NULL), QUIRE_OK); /* any status but 0 is a loss */
  assert_int_equal(quire_kv_cache_stats(w.cache, &stats), QUIRE_OK);
  assert_true(stats.lost == 1 && stats.healthy == 0);
  world_fini(&w);
}

/* -- sizes --------------------------------------------------------------------------------------------------------- */

struct long_options {
  struct quire_kv_cache_options known;
  uint64_t later[2];
};

struct long_stats {
  struct quire_kv_cache_stats known;
  uint64_t later[2];
};

static void test_sizes(void **state) {
  struct quire_kv_layout *layout = make_layout();
  struct quire_kv_cache *cache = NULL;
  struct long_options options = {.known = {.size = sizeof options}};
  (void)state;
  options.later[1] = 1; /* an option this library does not have */
  assert_int_equal(quire_kv_cache_create(layout, &options.known, &cache, NULL), QUIRE_ERR_ARGUMENT);
  options.later[1] = 0;
  assert_int_equal(quire_kv_cache_create(layout, &options.known, &cache, NULL), QUIRE_OK);
  const size_t wrong[] = {0, 1, 7, 9, 12, sizeof options - 4, QUIRE_KV_SIZE_MAX + 8, SIZE_MAX, SIZE_MAX - 7};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct quire_kv_cache *none = NULL;
    struct long_stats stats = {.known = {.size = wrong[i], .pages = MARK}};
    options.known.size = wrong[i];
    assert_int_equal(quire_kv_cache_create(layout, &options.known, &none, NULL), QUIRE_ERR_ARGUMENT);
    assert_int_equal(quire_kv_cache_stats(cache, &stats.known), QUIRE_ERR_ARGUMENT);
    assert_true(none == NULL && stats.known.pages == MARK && stats.known.size == wrong[i]);
  }
  struct long_stats stats = {.known = {.size = sizeof stats}, .later = {MARK, MARK}};
  assert_int_equal(quire_kv_cache_stats(cache, &stats.known), QUIRE_OK);
  assert_true(stats.known.pages == PAGES && stats.later[0] == 0 && stats.later[1] == 0);
  stats.known = (struct quire_kv_cache_stats){.size = 24, .filling = MARK};
  assert_int_equal(quire_kv_cache_stats(cache, &stats.known), QUIRE_OK);
  assert_true(stats.known.free == PAGES && stats.known.filling == MARK && stats.known.size == 24);
  assert_int_equal(quire_kv_cache_destroy(cache), QUIRE_OK);

  /* an option struct of any older version: all that is missing has its default, no pointer is ever read in halves */
  for (size_t size = 8; size <= sizeof options.known; size += 8) {
    options.known =
        (struct quire_kv_cache_options){.size = size, .requests_max = 2, .tenant_salt = "salt", .tenant_salt_bytes = 4};
    enum quire_status wanted = QUIRE_OK;
    assert_int_equal(quire_kv_cache_create(layout, &options.known, &cache, NULL), wanted);
    assert_int_equal(quire_kv_cache_destroy(cache), QUIRE_OK);
  }
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
}

/* -- life ---------------------------------------------------------------------------------------------------------- */

static void test_handles_run_out(void **state) {
  static struct quire_kv_layout *layouts[QUIRE_KV_HANDLES_MAX + 1];
  struct quire_kv_layout_options options = layout_options();
  int32_t made = 0;
  (void)state;
  enum quire_status status = QUIRE_OK;
  while (status == QUIRE_OK && made <= QUIRE_KV_HANDLES_MAX) {
    status = quire_kv_layout_create(&options, &layouts[made], NULL);
    made += status == QUIRE_OK;
  }
  assert_int_equal(status, QUIRE_ERR_AGAIN);
  assert_int_equal(made, QUIRE_KV_HANDLES_MAX);
  assert_int_equal(quire_kv_layout_destroy(layouts[500]), QUIRE_OK);
  assert_int_equal(quire_kv_layout_create(&options, &layouts[500], NULL), QUIRE_OK);
  for (int32_t i = 0; i < made; i++) {
    assert_int_equal(quire_kv_layout_destroy(layouts[i]), QUIRE_OK);
  }
  struct quire_kv_layout *old = make_layout();
  assert_int_equal(quire_kv_layout_destroy(old), QUIRE_OK);
  for (int32_t i = 1; i < QUIRE_KV_HANDLES_MAX; i++) { /* a stale handle stays one for a full turn */
    struct quire_kv_layout *fresh = make_layout();
    assert_int_equal(quire_kv_layout_destroy(old), QUIRE_ERR_STATE);
    assert_int_equal(quire_kv_layout_destroy(fresh), QUIRE_OK);
  }
}

static enum quire_status cache_life(void *context, const struct quire_env *env) {
  struct quire_kv_allocator allocator = {
      .size = sizeof allocator, .context = env->context, .alloc = env->alloc, .dealloc = env->dealloc};
  struct quire_kv_cache_options options = {.size = sizeof options, .allocator = &allocator};
  struct quire_kv_cache *cache = NULL;
  enum quire_status status = quire_kv_cache_create(context, &options, &cache, NULL);
  return status != QUIRE_OK ? status : quire_kv_cache_destroy(cache);
}

static enum quire_status bank_life(void *context, const struct quire_env *env) {
  struct quire_kv_allocator allocator = {
      .size = sizeof allocator, .context = env->context, .alloc = env->alloc, .dealloc = env->dealloc};
  struct quire_kv_bank_options options = {.size = sizeof options, .allocator = &allocator};
  struct quire_kv_bank *bank = NULL;
  enum quire_status status = quire_kv_bank_create(context, &options, &bank, NULL);
  if (status != QUIRE_OK) {
    return status;
  }
  status = quire_kv_bank_allocate(bank, NULL);
  enum quire_status end = quire_kv_bank_destroy(bank);
  return status != QUIRE_OK ? status : end;
}

static void test_allocations_refused(void **state) {
  struct quire_kv_layout *layout = make_layout();
  (void)state;
  assert_true(fail_env_sweep(cache_life, layout) >= 4);
  assert_true(fail_env_sweep(bank_life, layout) >= 4);
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
}

static void test_cache_bytes(void **state) {
  struct quire_kv_layout *layout = make_layout();
  struct fail_env fail;
  (void)state;
  fail_env_init(&fail);
  struct quire_kv_allocator allocator = {
      .size = sizeof allocator, .context = fail.env.context, .alloc = fail.env.alloc, .dealloc = fail.env.dealloc};
  struct quire_kv_cache_options options = {.size = sizeof options, .requests_max = 7, .allocator = &allocator};
  struct quire_kv_cache *cache = NULL;
  int64_t bytes = 0;
  assert_int_equal(quire_kv_cache_bytes(layout, &options, &bytes, NULL), QUIRE_OK);
  assert_int_equal(fail.allocations, 0);
  assert_int_equal(quire_kv_cache_create(layout, &options, &cache, NULL), QUIRE_OK);
  assert_int_equal(fail.live_bytes, bytes);
  assert_int_equal(quire_kv_cache_destroy(cache), QUIRE_OK);
  fail_env_fini(&fail);
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
}

/* Limits that are each allowed and together ask for terabytes: a status before the first byte is touched. */
static void test_caches_that_do_not_fit(void **state) {
  struct quire_kv_layout *layout = make_layout();
  const struct quire_kv_cache_options huge[] = {
      {.size = sizeof huge[0], .requests_max = 65536, .request_pages_max = 4194304},
      {.size = sizeof huge[0],
       .requests_max = 65536,
       .request_pages_max = 4194304,
       .chain_kind = QUIRE_KV_CHAIN_SHA256},
      {.size = sizeof huge[0], .requests_max = 40000, .request_pages_max = 4000000, .poison = 1},
  };
  (void)state;
  for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
    struct quire_error error = {.status = QUIRE_OK};
    struct quire_kv_cache *cache = NULL;
    int64_t bytes = 0;
    assert_int_equal(quire_kv_cache_bytes(layout, &huge[i], &bytes, NULL), QUIRE_OK);
    assert_true(bytes > (int64_t)1 << 40);
    assert_int_equal(quire_kv_cache_create(layout, &huge[i], &cache, &error), QUIRE_ERR_MEMORY);
    assert_non_null(strstr(error.text, "fewer pages or requests"));
    assert_string_equal(error.where, "cache");
    assert_null(cache);
  }
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
}

static void test_peers_that_go(void **state) {
  (void)state;
  for (int32_t first = 0; first < RANKS; first++) {
    struct world w;
    world_init(&w, QUIRE_KV_BY_THREAD);
    struct quire_kv_bank *stays = w.bank[1 - first];
    struct quire_kv_command copy = command_of(QUIRE_KV_COPY, 1u << (1 - first), first); /* reads the one that goes */
    copy.target.v = 1 - first;
    for (int32_t i = 0; i < 3; i++) {
      assert_int_equal(quire_kv_bank_submit(stays, &copy, NULL), QUIRE_OK);
    }
    assert_int_equal(quire_kv_bank_destroy(w.bank[first]), QUIRE_OK); /* waits for them */
    struct quire_kv_ack acks[4];
    int32_t count = 0;
    assert_int_equal(quire_kv_bank_poll(stays, acks, 4, &count), QUIRE_OK);
    assert_int_equal(count, 3);
    for (int32_t i = 0; i < count; i++) {
      assert_int_equal(acks[i].status, QUIRE_OK);
    }
    assert_int_equal(quire_kv_bank_submit(stays, &copy, NULL), QUIRE_ERR_STATE);
    w.bank[first] = make_bank(w.layout, first, QUIRE_KV_BY_THREAD);
    assert_int_equal(quire_kv_bank_connect(w.bank, RANKS, NULL), QUIRE_ERR_STATE); /* no memory yet */
    assert_int_equal(quire_kv_bank_allocate(w.bank[first], NULL), QUIRE_OK);
    assert_int_equal(quire_kv_bank_connect(w.bank, RANKS, NULL), QUIRE_OK);
    assert_int_equal(quire_kv_bank_submit(stays, &copy, NULL), QUIRE_OK);
    world_fini(&w);
  }
}

static void test_banks_that_do_not_fit(void **state) {
  struct quire_kv_layout_options options = layout_options();
  struct quire_kv_layout *layout = make_layout(), *larger = NULL, *another = NULL;
  (void)state;
  options.pages++;
  assert_int_equal(quire_kv_layout_create(&options, &larger, NULL), QUIRE_OK);
  options.pages--;
  options.model.high = 1;
  assert_int_equal(quire_kv_layout_create(&options, &another, NULL), QUIRE_OK);
  struct quire_kv_bank *zero = make_bank(layout, 0, QUIRE_KV_BY_CALLER);
  struct quire_kv_bank *ones[] = {zero, make_bank(larger, 1, QUIRE_KV_BY_CALLER),
                                  make_bank(another, 1, QUIRE_KV_BY_CALLER), make_bank(layout, 1, QUIRE_KV_BY_CALLER)};
  for (int32_t i = 0; i < 4; i++) {
    struct quire_kv_bank *banks[] = {zero, ones[i]};
    assert_int_equal(quire_kv_bank_allocate(ones[i], NULL), QUIRE_OK);
    assert_int_equal(quire_kv_bank_connect(banks, RANKS, NULL), i < 3 ? QUIRE_ERR_ARGUMENT : QUIRE_OK);
  }
  for (int32_t i = 0; i < 4; i++) {
    assert_int_equal(quire_kv_bank_destroy(ones[i]), QUIRE_OK);
  }
  assert_int_equal(quire_kv_layout_destroy(layout), QUIRE_OK);
  assert_int_equal(quire_kv_layout_destroy(larger), QUIRE_OK);
  assert_int_equal(quire_kv_layout_destroy(another), QUIRE_OK);
}

/* Objects of several threads' own, made and destroyed at the same time in the one table. Counts what went wrong. */
static void *handle_thread(void *context) {
  struct quire_kv_layout_options options = layout_options();
  intptr_t wrong = 0;
  options.pages = (int32_t)(intptr_t)context;
  for (int32_t i = 0; i < 2000; i++) {
    struct quire_kv_layout *layout = NULL;
    struct quire_kv_layout_info info = {.size = sizeof info};
    wrong += quire_kv_layout_create(&options, &layout, NULL) != QUIRE_OK;
    wrong += quire_kv_layout_info(layout, &info) != QUIRE_OK || info.pages != options.pages;
    wrong += quire_kv_layout_destroy(layout) != QUIRE_OK;
  }
  return (void *)wrong;
}

static void test_handles_of_threads(void **state) {
  pthread_t threads[4];
  (void)state;
  for (intptr_t i = 0; i < 4; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, handle_thread, (void *)(i + 1)), 0);
  }
  for (int32_t i = 0; i < 4; i++) {
    void *wrong = NULL;
    assert_int_equal(pthread_join(threads[i], &wrong), 0);
    assert_null(wrong);
  }
}

static void test_names(void **state) {
  (void)state;
  assert_string_equal(quire_version(), QUIRE_VERSION);
  assert_int_equal(quire_kv_abi(), QUIRE_KV_ABI);
  for (int32_t i = -3; i < 100; i++) {
    assert_non_null(quire_kv_status_name((enum quire_status)i));
  }
  assert_string_equal(quire_kv_status_name(QUIRE_ERR_NOT_FOUND), "not found");
}

/* -- a random walk ------------------------------------------------------------------------------------------------- */

struct walk {
  struct world w;
  uint64_t rng;
  quire_kv_request requests[4]; /* open, released and foreign ones */
};

static int32_t below(struct walk *k, int32_t n) { return (int32_t)quire_splitmix64_below(&k->rng, (uint64_t)n); }

/* Mostly something that could be meant, sometimes not. */
static int32_t some_number(struct walk *k, int32_t limit) {
  static const int32_t odd[] = {-1, INT32_MIN, INT32_MAX, 0, 1 << 24};
  return below(k, 8) == 0 ? odd[below(k, 5)] : below(k, limit + 2);
}

static quire_kv_request *some_request(struct walk *k) { return &k->requests[below(k, 4)]; }

static void walk_request(struct walk *k) {
  struct quire_kv_cache *cache = below(k, 5) == 0 ? k->w.other : k->w.cache;
  quire_kv_request *request = some_request(k);
  int32_t prompt = some_number(k, TOKENS / 2); /* one draw a statement: all compilers walk the same way */
  struct quire_kv_reserve reserve = reserve_of(k->w.tokens, prompt, below(k, 6));
  quire_kv_page pages[PAGES];
  int32_t number;
  reserve.tokens += below(k, 2); /* two families of prompts */
  reserve.tokens_count = reserve.tokens_count > TOKENS - 1 ? TOKENS - 1 : reserve.tokens_count;
  int32_t count = some_number(k, TOKENS / 2);
  int32_t sealed = count > TOKENS - 1 ? TOKENS - 1 : count;
  switch (below(k, 9)) {
  case 0:
  case 1:
    (void)quire_kv_cache_release(k->w.cache, *request); /* one that is forgotten stays open */
    (void)quire_kv_cache_release(k->w.other, *request);
    (void)quire_kv_cache_reserve(cache, &reserve, request, NULL);
    break;
  case 2:
    (void)quire_kv_cache_refill(cache, *request, &reserve, NULL);
    break;
  case 3:
    (void)quire_kv_cache_grow(cache, *request, count, NULL);
    break;
  case 4:
    (void)quire_kv_cache_rematch(cache, *request, reserve.tokens, sealed, &number);
    break;
  case 5:
    (void)quire_kv_cache_pages(cache, *request, pages, PAGES, &number);
    break;
  case 6:
    (void)quire_kv_cache_seal(cache, *request, reserve.tokens, sealed, NULL);
    break;
  case 7:
    (void)quire_kv_cache_reset(cache, *request);
    break;
  default:
    (void)quire_kv_cache_release(cache, *request);
    break;
  }
}

static void walk_command(struct walk *k) {
  struct quire_kv_bank *bank = below(k, 6) == 0 ? k->w.loose : k->w.bank[below(k, RANKS)];
  int32_t kind = some_number(k, 6);
  uint32_t ranks = (uint32_t)some_number(k, 3);
  struct quire_kv_command command = command_of(kind, ranks, some_number(k, PAGES));
  command.valid_tokens = some_number(k, PAGE_TOKENS);
  if (command.kind == QUIRE_KV_COPY) {
    command.target.v = some_number(k, PAGES);
  }
  command.host_offset = command.kind >= QUIRE_KV_PACK ? (int64_t)some_number(k, 8) * 4096 : 0;
  (void)quire_kv_bank_submit(bank, &command, NULL);
}

static void walk_answer(struct walk *k) {
  struct quire_kv_command command;
  int32_t count = 0;
  if (quire_kv_cache_commands(k->w.cache, &command, below(k, 4) > 0, &count) == QUIRE_OK && count == 1) {
    for (int32_t rank = 0; rank < RANKS; rank++) {
      struct quire_kv_ack wrong = {.rank = below(k, 2) == 0 ? -1 : RANKS};
      wrong.op = command.op + (uint64_t)below(k, 2);
      struct quire_kv_ack ack = {.op = command.op, .rank = rank};
      ack.status = below(k, 400) == 0 ? QUIRE_ERR_CORRUPT : QUIRE_OK;
      (void)quire_kv_cache_complete(k->w.cache, &wrong, NULL);
      (void)quire_kv_cache_complete(k->w.cache, &ack, NULL);
    }
  }
  struct quire_kv_ack acks[4];
  struct quire_kv_bank *bank = k->w.bank[below(k, RANKS)];
  (void)quire_kv_bank_poll(bank, acks, below(k, 5), &count);
}

static void walk_tree(struct walk *k) {
  struct quire_kv_cache *cache = below(k, 4) == 0 ? k->w.other : k->w.cache;
  int32_t left = 0;
  switch (below(k, 12)) {
  case 0:
    (void)quire_kv_cache_flush(cache, &left);
    break;
  case 1:
  case 2:
    (void)quire_kv_cache_drop(cache, (quire_kv_page){some_number(k, PAGES)}, &left);
    break;
  default:
    (void)quire_kv_cache_evict(cache, some_number(k, 2) % 3, &left);
    break;
  }
}

static int64_t walk_worker(struct walk *k) {
  struct quire_error error;
  memset(k->requests, 0, sizeof k->requests);
  world_init(&k->w, QUIRE_KV_BY_CALLER); /* commands of two banks about one page need an order, and these have none */
  k->requests[0] = k->w.request;
  k->requests[1] = k->w.released;
  k->requests[2] = k->w.foreign;
  for (int32_t step = 0; step < 4000; step++) {
    int32_t what = below(k, 16);
    if (what < 9) {
      walk_request(k);
    } else if (what < 11) {
      walk_command(k);
    } else if (what < 15) {
      walk_answer(k);
    } else {
      walk_tree(k);
    }
    if (step % 16 == 0) {
      assert_int_equal(quire_kv_cache_check(k->w.cache, &error), QUIRE_OK);
      assert_int_equal(quire_kv_cache_check(k->w.other, &error), QUIRE_OK);
    }
  }
  struct quire_kv_cache_stats stats = {.size = sizeof stats};
  assert_int_equal(quire_kv_cache_stats(k->w.cache, &stats), QUIRE_OK);
  assert_int_equal(stats.free + stats.filling + stats.sealed + stats.quarantined, PAGES);
  world_fini(&k->w);
  return stats.inserted_pages;
}

/* Many workers, since one whose commands are answered wrongly now and then loses its pages. */
static void test_random_walk(void **state) {
  struct walk k = {.rng = test_seed("test_random_walk")};
  int64_t inserted = 0;
  (void)state;
  for (int32_t worker = 0; worker < 40; worker++) {
    inserted += walk_worker(&k);
  }
  print_message("%lld pages entered a tree\n", (long long)inserted);
  assert_true(inserted > 300); /* the walk goes somewhere */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_handles),
      cmocka_unit_test(test_null_and_numbers_layout),
      cmocka_unit_test(test_layout_options),
      cmocka_unit_test(test_null_and_numbers_cache),
      cmocka_unit_test(test_cache_options),
      cmocka_unit_test(test_bad_reservations),
      cmocka_unit_test(test_foreign_and_released_requests),
      cmocka_unit_test(test_requests_of_many_caches),
      cmocka_unit_test(test_null_and_numbers_bank),
      cmocka_unit_test(test_bad_commands),
      cmocka_unit_test(test_acks),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_handles_run_out),
      cmocka_unit_test(test_allocations_refused),
      cmocka_unit_test(test_cache_bytes),
      cmocka_unit_test(test_caches_that_do_not_fit),
      cmocka_unit_test(test_peers_that_go),
      cmocka_unit_test(test_banks_that_do_not_fit),
      cmocka_unit_test(test_handles_of_threads),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_random_walk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
