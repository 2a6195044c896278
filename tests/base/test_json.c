/* What messages show of values, beside what the readers' own tests see of the rest (test_config.c, fuzz_json.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"

static void expect_shown(const char *json, const char *wanted) {
  char shown[24];
  json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
  memset(shown, '#', sizeof shown);
  assert_string_equal(quire_json_show(value, shown, sizeof shown), wanted);
  json_decref(value);
}

static void test_show(void **state) {
  (void)state;
  expect_shown("3", "3");
  expect_shown("-0.125", "-0.125");
  expect_shown("[1, \"a\", null]", "[1, \"a\", null]");
  expect_shown("{\"a\": 1}", "{...}");
  expect_shown("\"caf\xC3\xA9\"", "\"caf\\u00E9\"");
  expect_shown("\"abcdefghijklmnopqrstu\"", "\"abcdefghijklmnopqrstu\"");
  expect_shown("\"abcdefghijklmnopqrstuv\"", "\"abcdefghijklmnopqrs...");
  expect_shown("\"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\"", "\"abcdefghijklmnopqrs...");
  expect_shown("[1, \"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrs\", 2]", "[1, \"abcdefghijklmno...");
  char shown[24];
  assert_string_equal(quire_json_show(NULL, shown, sizeof shown), "nothing");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_show)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
