#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "layout/command.h"
#include "layout/sendlist.h"
#include "support/seed.h"

#define PAGES_MAX 64

/* Pages 8 .. 15 of a request at request pages 20 .. 27, rank 2 of 4: local pages 2 and 3 go, for request pages 22, 26.
 */
static void published_example(void **state) {
  (void)state;
  struct quire_geometry g = {64, 4, 4, 32};
  quire_page pages[28];
  for (int32_t i = 0; i < 28; i++) {
    pages[i].v = i < 20 ? 0 : i - 12;
  }
  struct quire_sendlist list = {&g, pages, {20}, 28 * 64, false};
  struct quire_send sends[8];
  quire_rank_id rank = {2};
  assert_int_equal(quire_sendlist_rank(&list, rank, sends), 2);
  assert_int_equal(sends[0].request_page.v, 22);
  assert_int_equal(sends[1].request_page.v, 26);
  assert_int_equal(quire_page_local(&g, sends[0].page).v, 2);
  assert_int_equal(quire_page_local(&g, sends[1].page).v, 3);
  assert_int_equal(quire_sendlist_next(&list).v, 28);
}

/* 129 tokens are two whole pages and a tail of one; without more to come the tail goes, once, from its owner. */
static void a_tail_goes_at_the_end(void **state) {
  (void)state;
  struct quire_geometry g = {64, 2, 2, 8};
  quire_page pages[] = {{4}, {6}, {7}};
  struct quire_send sends[3];
  struct quire_sendlist list = {&g, pages, {0}, 129, false};
  quire_rank_id even = {0};
  quire_rank_id odd = {1};
  assert_int_equal(quire_sendlist_rank(&list, even, sends), 2);
  assert_int_equal(quire_sendlist_rank(&list, odd, sends), 0);
  list.first = quire_sendlist_next(&list);
  assert_int_equal(list.first.v, 2);
  list.final = true;
  assert_int_equal(quire_sendlist_rank(&list, even, sends), 0);
  assert_int_equal(quire_sendlist_rank(&list, odd, sends), 1);
  assert_int_equal(sends[0].request_page.v, 2);
  assert_int_equal(sends[0].page.v, 7);
  assert_int_equal(sends[0].valid_tokens, 1);
  list.first = quire_sendlist_next(&list);
  assert_int_equal(quire_sendlist_rank(&list, odd, sends), 0);
}

/* Any page ids, any cut into chunks, any geometry, any prefix the receiver has: each request page goes once, complete,
 * from the lowest rank that stores it. */
static void each_page_once(void **state) {
  (void)state;
  uint64_t rng = test_seed("each_page_once");
  static const int32_t geometries[][2] = {{1, 1}, {2, 2}, {2, 1}, {3, 3}, {4, 4}, {4, 2}, {4, 1}, {8, 8}, {16, 16}};
  for (int round = 0; round < 4000; round++) {
    const int32_t *row = geometries[quire_splitmix64_below(&rng, sizeof geometries / sizeof *geometries)];
    struct quire_geometry g = {16, row[0], row[1], 1000};
    quire_page pages[PAGES_MAX];
    for (int32_t i = 0; i < PAGES_MAX; i++) {
      pages[i].v = (int32_t)quire_splitmix64_below(&rng, 1000);
    }
    int32_t total = 1 + (int32_t)quire_splitmix64_below(&rng, PAGES_MAX * 16 - 1);
    int32_t prefix = (int32_t)quire_splitmix64_below(&rng, (uint64_t)total / 16 + 1);
    int32_t sent[PAGES_MAX] = {0};
    struct quire_sendlist list = {&g, pages, {prefix}, prefix * 16, false};
    while (!list.final) {
      list.tokens += (int32_t)quire_splitmix64_below(&rng, 100);
      if (list.tokens >= total) {
        list.tokens = total;
        list.final = true;
      }
      for (int32_t r = 0; r < g.ranks; r++) {
        struct quire_send sends[PAGES_MAX];
        quire_rank_id rank = {r};
        int32_t count = quire_sendlist_rank(&list, rank, sends);
        assert_int_equal(count, quire_sendlist_rank(&list, rank, NULL));
        for (int32_t i = 0; i < count; i++) {
          int32_t at = sends[i].request_page.v;
          assert_int_equal(sends[i].page.v, pages[at].v);
          assert_int_equal(r, pages[at].v % g.storage_ranks);
          assert_int_equal(sends[i].valid_tokens, total - at * 16 < 16 ? total - at * 16 : 16);
          assert_true((at + 1) * 16 <= list.tokens || list.final);
          assert_true(i == 0 || sends[i - 1].request_page.v < at);
          sent[at]++;
        }
      }
      list.first = quire_sendlist_next(&list);
    }
    for (int32_t i = 0; i < PAGES_MAX; i++) {
      assert_int_equal(sent[i], i >= prefix && i * 16 < total);
    }
  }
}

static void commands_are_checked(void **state) {
  (void)state;
  struct quire_geometry shared = {64, 4, 4, 32};
  struct quire_geometry replicated = {64, 4, 1, 32};
  struct quire_geometry pairs = {64, 4, 2, 32};
  quire_page six = {6};
  assert_int_equal(quire_command_storing_ranks(&shared, six), 1u << 2);
  assert_int_equal(quire_command_storing_ranks(&replicated, six), 15);
  assert_int_equal(quire_command_storing_ranks(&pairs, six), 5);
  struct quire_command poison = {
      .op = 1, .kind = QUIRE_COMMAND_POISON, .ranks = 4, .page = {6}, .target = {QUIRE_PAGE_NONE}, .valid_tokens = 64};
  struct quire_command copy = poison;
  copy.kind = QUIRE_COMMAND_COPY_PAGE;
  copy.target.v = 9;
  copy.ranks = 2;
  struct quire_command pack = poison;
  pack.kind = QUIRE_COMMAND_PACK;
  pack.host_offset = 8192;
  const char *why = "";
  assert_true(quire_command_check(&shared, &poison, &why));
  assert_true(quire_command_check(&shared, &copy, &why));
  assert_true(quire_command_check(&shared, &pack, &why));
  pack.ranks = 1;
  assert_true(quire_command_check(&replicated, &pack, &why)); /* one rank backs up for all */
  pack.ranks = 15;
  assert_false(quire_command_check(&replicated, &pack, &why));
  pack.kind = QUIRE_COMMAND_UNPACK;
  assert_true(quire_command_check(&replicated, &pack, NULL));
  struct quire_command bad[11] = {poison, poison, poison, poison, poison, poison, poison, copy, copy, pack, pack};
  bad[0].kind = 0;
  bad[1].kind = 6;
  bad[2].page.v = 32;
  bad[3].page.v = -1;
  bad[4].target.v = 1;
  bad[5].ranks = 5;
  bad[6].valid_tokens = 65;
  bad[7].target = bad[7].page;
  bad[8].target.v = 32;
  bad[9].host_offset = 100;
  bad[10].request_page.v = -1;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    why = NULL;
    assert_false(quire_command_check(i < 9 ? &shared : &replicated, &bad[i], &why));
    assert_non_null(why);
  }
  assert_string_equal(quire_command_kind_name(QUIRE_COMMAND_UNPACK), "unpack");
  assert_string_equal(quire_command_kind_name(99), "unknown");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_example),
      cmocka_unit_test(a_tail_goes_at_the_end),
      cmocka_unit_test(each_page_once),
      cmocka_unit_test(commands_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
