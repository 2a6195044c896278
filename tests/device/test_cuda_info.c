// ctest: labels=quick,cuda
/* Whether there is CUDA or not, the answer is whole: either devices with their facts, or the reason why there are
 * none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_info.h"

static void says_what_there_is_or_why_not(void **state) {
  (void)state;
  struct quire_cuda_info info;
  memset(&info, 0x5A, sizeof info);
  bool usable = quire_cuda_describe(&info);
  assert_int_equal(usable, info.devices > 0);
  assert_true(memchr(info.name, '\0', sizeof info.name) != NULL && memchr(info.why, '\0', sizeof info.why) != NULL);
  if (usable) {
    assert_string_equal(info.why, "");
    assert_true(info.name[0] != '\0' && info.processors > 0 && info.memory_bytes > 0);
    assert_true(info.driver >= 12000 && info.runtime >= 12000);
  } else {
    assert_true(strlen(info.why) > 8);
    print_message("no CUDA: %s\n", info.why);
  }
}

static void says_the_same_twice(void **state) {
  (void)state;
  struct quire_cuda_info first, second;
  assert_int_equal(quire_cuda_describe(&first), quire_cuda_describe(&second));
  assert_memory_equal(&first, &second, sizeof first);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(says_what_there_is_or_why_not),
      cmocka_unit_test(says_the_same_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
