#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "layout/kv_source.h"
#include "layout/parts.h"

static void row_bytes_of_the_formats(void **state) {
  (void)state;
  static const struct {
    enum quire_kv_format format;
    const char *name;
    int32_t latent, index, pieces;
  } rows[] = {
      {QUIRE_KV_F32, "f32", 2304, 512, 1}, {QUIRE_KV_BF16, "bf16", 1152, 132, 2}, {QUIRE_KV_FP8, "fp8", 656, 132, 2}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct quire_parts parts;
    assert_true(quire_parts_build(&parts, rows[i].format, 64, 3, NULL, 1));
    assert_int_equal(parts.count, 8);
    assert_string_equal(quire_kv_format_name(rows[i].format), rows[i].name);
    for (int32_t p = 0; p < parts.count; p++) {
      const struct quire_part *part = &parts.part[p];
      int32_t bytes = part->kind == QUIRE_PART_LATENT ? rows[i].latent : rows[i].index;
      assert_int_equal(part->row_bytes, bytes);
      assert_int_equal(part->page_bytes, 64 * bytes);
      assert_int_equal(part->pieces, part->kind == QUIRE_PART_LATENT ? 1 : rows[i].pieces);
      int32_t joined = 0;
      for (int32_t piece = 0; piece < part->pieces; piece++) {
        assert_int_equal(part->piece[piece].offset, 64 * joined);
        joined += part->piece[piece].row_bytes;
      }
      assert_int_equal(joined, part->row_bytes);
    }
    assert_true(quire_parts_bundle_bytes(&parts) == 4 * 64 * (int64_t)(rows[i].latent + rows[i].index));
  }
  assert_string_equal(quire_kv_format_name((enum quire_kv_format)9), "unknown");
}

static void order_and_search(void **state) {
  (void)state;
  static const bool owns[] = {true, false, true};
  struct quire_parts parts;
  assert_true(quire_parts_build(&parts, QUIRE_KV_BF16, 64, 3, owns, 1));
  static const struct {
    enum quire_part_model model;
    enum quire_part_kind kind;
    int32_t layer;
  } rows[] = {
      {QUIRE_PART_TARGET, QUIRE_PART_LATENT, 0},    {QUIRE_PART_TARGET, QUIRE_PART_INDEX_KEY, 0},
      {QUIRE_PART_TARGET, QUIRE_PART_LATENT, 1},    {QUIRE_PART_TARGET, QUIRE_PART_LATENT, 2},
      {QUIRE_PART_TARGET, QUIRE_PART_INDEX_KEY, 2}, {QUIRE_PART_DRAFT, QUIRE_PART_LATENT, 0},
      {QUIRE_PART_DRAFT, QUIRE_PART_INDEX_KEY, 0},
  };
  assert_int_equal(parts.count, sizeof rows / sizeof *rows);
  for (int32_t i = 0; i < parts.count; i++) {
    assert_int_equal(parts.part[i].model, rows[i].model);
    assert_int_equal(parts.part[i].kind, rows[i].kind);
    assert_int_equal(parts.part[i].layer, rows[i].layer);
    assert_int_equal(quire_parts_find(&parts, rows[i].model, rows[i].kind, rows[i].layer), i);
  }
  assert_int_equal(quire_parts_find(&parts, QUIRE_PART_TARGET, QUIRE_PART_INDEX_KEY, 1), QUIRE_PART_NONE);
  assert_int_equal(quire_parts_find(&parts, QUIRE_PART_DRAFT, QUIRE_PART_LATENT, 1), QUIRE_PART_NONE);
}

/* DeepSeek-V3.2 has 61 layers, with the draft layer 62: 124 parts. */
static void tables_that_do_not_fit(void **state) {
  (void)state;
  struct quire_parts parts;
  memset(&parts, 7, sizeof parts);
  struct quire_parts before = parts;
  assert_false(quire_parts_build(&parts, QUIRE_KV_FP8, 64, 129, NULL, 0));
  assert_false(quire_parts_build(&parts, QUIRE_KV_FP8, 64, 128, NULL, 1));
  assert_false(quire_parts_build(&parts, QUIRE_KV_FP8, 64, 0, NULL, 0));
  assert_false(quire_parts_build(&parts, QUIRE_KV_FP8, 64, 4, NULL, 2));
  assert_false(quire_parts_build(&parts, QUIRE_KV_FP8, 0, 4, NULL, 0));
  assert_false(quire_parts_build(&parts, QUIRE_KV_FP8, 257, 4, NULL, 0));
  assert_false(quire_parts_build(&parts, (enum quire_kv_format)3, 64, 4, NULL, 0));
  assert_memory_equal(&parts, &before, sizeof parts);
  assert_true(quire_parts_build(&parts, QUIRE_KV_FP8, 64, 61, NULL, 1));
  assert_int_equal(parts.count, 124);
  assert_true(quire_parts_build(&parts, QUIRE_KV_FP8, 64, 128, NULL, 0));
}

/* A source reads each position from its page, then from the ring, for every piece. */
static void rows_of_a_source(void **state) {
  (void)state;
  struct quire_parts parts;
  assert_true(quire_parts_build(&parts, QUIRE_KV_BF16, 4, 1, NULL, 0));
  const struct quire_part *part = &parts.part[1];
  static uint8_t pages[3][4 * 132];
  static uint8_t keys[5][128];
  static uint8_t scales[5][4];
  const uint8_t *table[] = {pages[2], pages[0], pages[1]};
  struct quire_kv_source source = {table, {keys[0], scales[0]}, 4, 10, 3, 5, 15};
  for (int32_t position = 0; position < 10; position++) {
    const uint8_t *page = table[position / 4];
    assert_ptr_equal(quire_kv_source_row(&source, part, 0, position), page + position % 4 * 128);
    assert_ptr_equal(quire_kv_source_row(&source, part, 1, position), page + 4 * 128 + position % 4 * 4);
  }
  for (int32_t position = 10; position < 15; position++) {
    assert_ptr_equal(quire_kv_source_row(&source, part, 0, position), keys[(3 + position - 10) % 5]);
    assert_ptr_equal(quire_kv_source_row(&source, part, 1, position), scales[(3 + position - 10) % 5]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(row_bytes_of_the_formats),
      cmocka_unit_test(order_and_search),
      cmocka_unit_test(tables_that_do_not_fit),
      cmocka_unit_test(rows_of_a_source),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
