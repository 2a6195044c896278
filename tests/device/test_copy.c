/* Copies past the caches: every alignment of both sides, every small length, and nothing outside the target; a series
 * of pages whose copies ask for each other's, to the end of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "device/device.h"

#define ROOM 1024

static void every_alignment_and_length(void **state) {
  (void)state;
  static uint8_t from[ROOM], to[ROOM];
  for (int i = 0; i < ROOM; i++) {
    from[i] = (uint8_t)(i * 37 + 11);
  }
  for (size_t shift = 0; shift < 70; shift++) {
    for (size_t bytes = 0; bytes < 300; bytes++) {
      size_t source = (shift * 13 + bytes) % 67;
      memset(to, 0xa5, sizeof to);
      quire_copy_past_caches(to + shift, from + source, bytes, bytes % 3 == 0 ? from : NULL);
      assert_memory_equal(to + shift, from + source, bytes);
      for (size_t i = 0; i < shift; i++) {
        assert_int_equal(to[i], 0xa5);
      }
      for (size_t i = shift + bytes; i < shift + bytes + 80; i++) {
        assert_int_equal(to[i], 0xa5);
      }
    }
  }
}

static void a_series_ends_where_memory_does(void **state) {
  (void)state;
  enum { PAGES = 5, BYTES = 8448, SPAN = 12 << 12 };
  uint8_t *from = mmap(NULL, SPAN + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static uint8_t to[PAGES * BYTES];
  assert_true(from != MAP_FAILED);
  assert_int_equal(mprotect(from + SPAN, 4096, PROT_NONE), 0);
  uint8_t *last = from + SPAN - PAGES * BYTES;
  for (int i = 0; i < PAGES * BYTES; i++) {
    last[i] = (uint8_t)(i * 37 + i / BYTES);
  }
  for (int p = 0; p < PAGES; p++) { /* the last page first, so that one before it is asked for behind the end */
    int source = (p + PAGES - 1) % PAGES, next = (p + PAGES) % PAGES;
    quire_copy_past_caches(to + p * BYTES, last + source * BYTES, BYTES, p + 1 < PAGES ? last + next * BYTES : NULL);
  }
  for (int p = 0; p < PAGES; p++) {
    assert_memory_equal(to + p * BYTES, last + (p + PAGES - 1) % PAGES * BYTES, BYTES);
  }
  assert_int_equal(munmap(from, SPAN + 4096), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_alignment_and_length),
                                     cmocka_unit_test(a_series_ends_where_memory_does)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
