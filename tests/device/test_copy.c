/* Copies past the caches: every alignment of both sides, every small length, and nothing outside the target. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
      quire_copy_past_caches(to + shift, from + source, bytes);
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_alignment_and_length)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
