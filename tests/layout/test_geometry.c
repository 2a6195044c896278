#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layout/geometry.h"

/* Ownership by page modulo, as published for shared caches of 4 ranks and pages of 64 tokens: the slot a token is
 * written to on its owner. */
static void local_slots_of_four_ranks(void **state) {
  (void)state;
  static const struct {
    int64_t slot;
    int32_t owner;
    int64_t local_slot;
  } rows[] = {{0, 0, 0}, {63, 0, 63}, {64, 1, 0}, {65, 1, 1}, {128, 2, 0}, {197, 3, 5}, {512, 0, 128}};
  struct quire_geometry g = {64, 4, 4, 32};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    quire_page page = {(int32_t)(rows[i].slot / 64)};
    assert_int_equal(quire_page_owner(&g, page).v, rows[i].owner);
    assert_true((int64_t)quire_page_local(&g, page).v * 64 + rows[i].slot % 64 == rows[i].local_slot);
  }
}

/* The same seen from a mapping that puts each rank's pages in a row: owner * pages_a_rank + local. */
static void rank_major_pages(void **state) {
  (void)state;
  static const int32_t answers[] = {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11};
  static const int32_t slots_of_two[] = {0, 1, 16, 17, 32, 33, 48, 49, 2, 3, 18, 19, 34, 35, 50, 51};
  struct quire_geometry g = {4, 4, 4, 12};
  for (int32_t p = 0; p < 12; p++) {
    quire_page page = {p};
    assert_int_equal(quire_page_owner(&g, page).v * 3 + quire_page_local(&g, page).v, answers[p]);
  }
  for (int32_t slot = 0; slot < 16; slot++) {
    quire_page page = {slot / 2};
    int32_t mapped = quire_page_owner(&g, page).v * 8 + quire_page_local(&g, page).v;
    assert_int_equal(mapped * 2 + slot % 2, slots_of_two[slot]);
  }
}

static void padding_passes_through(void **state) {
  (void)state;
  struct quire_geometry g = {64, 8, 8, 100};
  quire_page none = {QUIRE_PAGE_NONE};
  assert_int_equal(quire_page_owner(&g, none).v, QUIRE_PAGE_NONE);
  assert_int_equal(quire_page_local(&g, none).v, QUIRE_PAGE_NONE);
  assert_int_equal(quire_page_sender(&g, none).v, QUIRE_PAGE_NONE);
  for (int32_t r = 0; r < 8; r++) {
    quire_rank_id rank = {r};
    assert_false(quire_page_stored_by(&g, none, rank));
  }
}

/* Every page has its owners, one sender among them, and a place inside its stripe, for all geometries and page counts
 * that are no multiple of the ranks. */
static void every_page_has_its_place(void **state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= QUIRE_RANKS_MAX; ranks++) {
    for (int32_t storage = 1; storage <= ranks; storage++) {
      for (int32_t pages = 1; pages < 40; pages += 3) {
        struct quire_geometry g = {64, ranks, storage, pages};
        assert_int_equal(quire_geometry_valid(&g), ranks % storage == 0);
        if (ranks % storage != 0) {
          continue;
        }
        int32_t in_stripe[QUIRE_RANKS_MAX] = {0};
        for (int32_t p = 0; p < pages; p++) {
          quire_page page = {p};
          quire_stripe_id stripe = quire_page_owner(&g, page);
          int32_t storing = 0;
          int32_t lowest = -1;
          for (int32_t r = ranks - 1; r >= 0; r--) {
            quire_rank_id rank = {r};
            if (quire_page_stored_by(&g, page, rank)) {
              storing++;
              lowest = r;
            }
          }
          assert_int_equal(storing, ranks / storage);
          assert_int_equal(lowest, quire_page_sender(&g, page).v);
          assert_int_equal(quire_page_local(&g, page).v, in_stripe[stripe.v]++);
          assert_int_equal(quire_page_of_local(&g, stripe, quire_page_local(&g, page)).v, p);
        }
        for (int32_t s = 0; s < storage; s++) {
          quire_stripe_id stripe = {s};
          assert_int_equal(quire_geometry_local_pages(&g, stripe), in_stripe[s]);
        }
      }
    }
  }
}

static void geometries_refused(void **state) {
  (void)state;
  static const struct quire_geometry rows[] = {{0, 1, 1, 1},   {257, 1, 1, 1},  {64, 0, 1, 1},  {64, 17, 1, 1},
                                               {64, 4, 0, 1},  {64, 4, 3, 1},   {64, 2, 4, 1},  {64, 4, 4, 0},
                                               {-64, 4, 4, 8}, {64, -4, -4, 8}, {64, 4, -4, 8}, {64, 4, 4, -8}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_false(quire_geometry_valid(&rows[i]));
  }
}

static void positions_to_request_pages(void **state) {
  (void)state;
  struct quire_geometry g = {64, 4, 4, 32};
  static const int32_t rows[][2] = {{0, 0}, {63, 0}, {64, 1}, {127, 1}, {128, 2}, {1 << 20, 1 << 14}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    quire_position position = {rows[i][0]};
    assert_int_equal(quire_position_page(&g, position).v, rows[i][1]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(local_slots_of_four_ranks), cmocka_unit_test(rank_major_pages),
      cmocka_unit_test(padding_passes_through),    cmocka_unit_test(every_page_has_its_place),
      cmocka_unit_test(geometries_refused),        cmocka_unit_test(positions_to_request_pages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
