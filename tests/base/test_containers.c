/* Bitmap, list, arena and string buffer against flat, slow versions of themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/bitmap.h"
#include "base/list.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "support/fail_env.h"
#include "support/seed.h"

#define BITS_MAX 300
#define NODES 40

static int64_t flat_next(const bool *bits, int64_t count, int64_t from, bool value) {
  for (int64_t i = from; i < count; i++) {
    if (bits[i] == value) {
      return i;
    }
  }
  return -1;
}

static int64_t flat_zeros(const bool *bits, int64_t count, int64_t from, int64_t length) {
  for (int64_t i = from; i + length <= count; i++) {
    int64_t one = flat_next(bits, i + length, i, true);
    if (one < 0) {
      return i;
    }
  }
  return -1;
}

static void check_bitmap(const uint64_t *words, const bool *flat, int64_t bits, uint64_t *rng) {
  int64_t ones = 0;
  for (int64_t i = 0; i < bits; i++) {
    assert_int_equal(quire_bitmap_test(words, i), flat[i]);
    ones += flat[i];
  }
  assert_int_equal(quire_bitmap_count(words, bits), ones);
  for (int64_t from = 0; from <= bits; from++) {
    assert_int_equal(quire_bitmap_next_one(words, bits, from), flat_next(flat, bits, from, true));
    assert_int_equal(quire_bitmap_next_zero(words, bits, from), flat_next(flat, bits, from, false));
  }
  for (int i = 0; i < 5; i++) {
    int64_t from = (int64_t)quire_splitmix64_below(rng, (uint64_t)bits + 1);
    int64_t length = 1 + (int64_t)quire_splitmix64_below(rng, 70);
    assert_int_equal(quire_bitmap_next_zeros(words, bits, from, length), flat_zeros(flat, bits, from, length));
  }
}

static void bitmap_equals_flat(void **state) {
  (void)state;
  uint64_t rng = test_seed("bitmap_equals_flat");
  for (int round = 0; round < 200; round++) {
    uint64_t words[(BITS_MAX + 63) / 64];
    bool flat[BITS_MAX];
    int64_t bits = 1 + (int64_t)quire_splitmix64_below(&rng, BITS_MAX);
    bool start = quire_splitmix64(&rng) & 1;
    memset(words, 0xA5, sizeof words); /* bits past the end hold rubbish until fill; searches must not see them */
    quire_bitmap_fill(words, bits, start);
    for (int64_t i = 0; i < bits; i++) {
      flat[i] = start;
    }
    uint64_t changes = quire_splitmix64_below(&rng, 2 * (uint64_t)bits);
    for (uint64_t i = 0; i < changes; i++) {
      int64_t bit = (int64_t)quire_splitmix64_below(&rng, (uint64_t)bits);
      switch (quire_splitmix64_below(&rng, 3)) {
      case 0:
        quire_bitmap_set(words, bit);
        flat[bit] = true;
        break;
      case 1:
        quire_bitmap_clear(words, bit);
        flat[bit] = false;
        break;
      default:
        assert_int_equal(quire_bitmap_tick(words, bit), !flat[bit]);
        flat[bit] = true;
      }
    }
    check_bitmap(words, flat, bits, &rng);
  }
  assert_int_equal(quire_bitmap_words(0), 0);
  assert_int_equal(quire_bitmap_words(64), 1);
  assert_int_equal(quire_bitmap_words(65), 2);
}

struct element {
  int id;
  struct quire_list node;
};

struct flat_list {
  int ids[NODES];
  int count;
};

static void flat_insert(struct flat_list *list, int at, int id) {
  memmove(&list->ids[at + 1], &list->ids[at], (size_t)(list->count - at) * sizeof(int));
  list->ids[at] = id;
  list->count++;
}

static void flat_remove(struct flat_list *list, int id) {
  int at = 0;
  while (list->ids[at] != id) {
    at++;
  }
  memmove(&list->ids[at], &list->ids[at + 1], (size_t)(list->count - at - 1) * sizeof(int));
  list->count--;
}

static void check_list(const struct quire_list *head, const struct flat_list *flat) {
  assert_int_equal(quire_list_check(head, NODES), flat->count);
  assert_int_equal(quire_list_empty(head), flat->count == 0);
  int i = 0;
  for (struct quire_list *node = head->next; node != head; node = node->next) {
    assert_int_equal(QUIRE_LIST_OF(node, struct element, node)->id, flat->ids[i++]);
  }
}

static void list_step(struct quire_list *heads, struct flat_list *flat, struct element *elements, int *home,
                      uint64_t *rng) {
  int id = (int)quire_splitmix64_below(rng, NODES);
  int which = (int)quire_splitmix64_below(rng, 2);
  uint64_t action = quire_splitmix64_below(rng, 12);
  if (action == 0) {
    for (int i = 0; i < flat[1 - which].count; i++) {
      home[flat[1 - which].ids[i]] = which;
      flat[which].ids[flat[which].count++] = flat[1 - which].ids[i];
    }
    flat[1 - which].count = 0;
    quire_list_splice_back(&heads[which], &heads[1 - which]);
  } else if (action == 1) {
    struct quire_list *node = quire_list_pop_front(&heads[which]);
    assert_int_equal(node != NULL, flat[which].count > 0);
    if (node) {
      int popped = QUIRE_LIST_OF(node, struct element, node)->id;
      assert_int_equal(popped, flat[which].ids[0]);
      flat_remove(&flat[which], popped);
      home[popped] = -1;
    }
  } else if (home[id] >= 0) {
    flat_remove(&flat[home[id]], id);
    quire_list_remove(&elements[id].node);
    quire_list_remove(&elements[id].node); /* twice does no harm */
    home[id] = -1;
  } else if (action < 7) {
    quire_list_push_back(&heads[which], &elements[id].node);
    flat_insert(&flat[which], flat[which].count, id);
    home[id] = which;
  } else {
    quire_list_push_front(&heads[which], &elements[id].node);
    flat_insert(&flat[which], 0, id);
    home[id] = which;
  }
}

static void list_equals_flat(void **state) {
  (void)state;
  uint64_t rng = test_seed("list_equals_flat");
  struct quire_list heads[2];
  struct flat_list flat[2] = {0};
  struct element elements[NODES];
  int home[NODES];
  quire_list_init(&heads[0]);
  quire_list_init(&heads[1]);
  for (int i = 0; i < NODES; i++) {
    elements[i].id = i;
    quire_list_init(&elements[i].node);
    home[i] = -1;
  }
  for (int i = 0; i < 20000; i++) {
    list_step(heads, flat, elements, home, &rng);
    check_list(&heads[0], &flat[0]);
    check_list(&heads[1], &flat[1]);
  }
}

static void list_check_finds_damage(void **state) {
  (void)state;
  struct quire_list head, a, b;
  quire_list_init(&head);
  quire_list_push_back(&head, &a);
  quire_list_push_back(&head, &b);
  assert_int_equal(quire_list_check(&head, 2), 2);
  assert_int_equal(quire_list_check(&head, 1), -1);
  a.prev = &b;
  assert_int_equal(quire_list_check(&head, 2), -1);
  a.prev = &head;
  head.prev = &a;
  assert_int_equal(quire_list_check(&head, 2), -1);
}

static void arena_slices(void **state) {
  (void)state;
  struct fail_env fail;
  fail_env_init(&fail);
  struct quire_arena arena;
  assert_int_equal(quire_arena_init(&arena, &fail.env, 1000, NULL), QUIRE_OK);
  uint8_t *a = quire_arena_take(&arena, 10, 1);
  uint8_t *b = quire_arena_take(&arena, 10, 64);
  assert_ptr_equal(b, a + 64);
  memset(a, 1, 10);
  memset(b, 2, 10);
  size_t mark = quire_arena_mark(&arena);
  assert_non_null(quire_arena_take(&arena, 900, 8));
  assert_int_equal(arena.used, 80 + 900);
  assert_null(quire_arena_take(&arena, 21, 1));
  assert_null(quire_arena_take(&arena, SIZE_MAX, 1));
  assert_null(quire_arena_take(&arena, 1, 4096));
  assert_non_null(quire_arena_take(&arena, 20, 1));
  assert_non_null(quire_arena_take(&arena, 0, 1));
  assert_int_equal(arena.used, 1000);
  quire_arena_rewind(&arena, mark);
  assert_int_equal(arena.used, mark);
  assert_int_equal(arena.high_water, 1000);
  assert_int_equal(a[9], 1);
  assert_int_equal(b[9], 2);
  quire_arena_fini(&arena);
  quire_arena_fini(&arena);
  assert_null(quire_arena_take(&arena, 1, 1));
  assert_int_equal(quire_arena_init(&arena, &fail.env, 0, NULL), QUIRE_OK);
  assert_null(quire_arena_take(&arena, 1, 1));
  quire_arena_fini(&arena);
  fail.fail_at = fail.allocations;
  struct quire_error error;
  assert_int_equal(quire_arena_init(&arena, &fail.env, 10, &error), QUIRE_ERR_MEMORY);
  assert_int_equal(error.status, QUIRE_ERR_MEMORY);
  quire_arena_fini(&arena);
  fail_env_fini(&fail);
}

static void strbuf_equals_flat(void **state) {
  (void)state;
  struct fail_env fail;
  fail_env_init(&fail);
  uint64_t rng = test_seed("strbuf_equals_flat");
  static char flat[1 << 16];
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fail.env);
  assert_string_equal(quire_strbuf_text(&buffer), "");
  size_t bytes = 0;
  while (bytes < 40000) {
    int number = (int)quire_splitmix64_below(&rng, 1000000);
    int width = (int)quire_splitmix64_below(&rng, 600);
    quire_strbuf_addf(&buffer, "%*d;", width, number);
    quire_strbuf_add_text(&buffer, "page");
    quire_strbuf_add_char(&buffer, '\t');
    quire_strbuf_add(&buffer, NULL, 0);
    bytes += (size_t)sprintf(flat + bytes, "%*d;page\t", width, number);
    assert_int_equal(buffer.bytes, bytes);
  }
  assert_string_equal(quire_strbuf_text(&buffer), flat);
  quire_strbuf_clear(&buffer);
  assert_string_equal(quire_strbuf_text(&buffer), "");
  quire_strbuf_add_text(&buffer, "again");
  assert_string_equal(quire_strbuf_text(&buffer), "again");
  quire_strbuf_fini(&buffer);
  fail_env_fini(&fail);
}

static void strbuf_remembers_failure(void **state) {
  (void)state;
  struct fail_env fail;
  fail_env_init(&fail);
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fail.env);
  quire_strbuf_addf(&buffer, "%0100d", 1);
  fail.fail_from = fail.allocations;
  quire_strbuf_addf(&buffer, "%01000d", 1);
  assert_true(quire_strbuf_failed(&buffer));
  assert_int_equal(strlen(quire_strbuf_text(&buffer)), 100);
  fail.fail_from = FAIL_ENV_NEVER;
  quire_strbuf_add_text(&buffer, "x");
  assert_int_equal(strlen(quire_strbuf_text(&buffer)), 100);
  quire_strbuf_clear(&buffer);
  assert_false(quire_strbuf_failed(&buffer));
  quire_strbuf_fini(&buffer);
  fail_env_fini(&fail);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bitmap_equals_flat),      cmocka_unit_test(list_equals_flat),
      cmocka_unit_test(list_check_finds_damage), cmocka_unit_test(arena_slices),
      cmocka_unit_test(strbuf_equals_flat),      cmocka_unit_test(strbuf_remembers_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
