/* Lines of the log as JSON: what is a number, what is a text, and that each is one object. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/env.h"
#include "server/json_write.h"
#include "server/log_write.h"

static void expect(const char *line, const char *wanted) {
  struct quire_strbuf out;
  quire_strbuf_init(&out, quire_env_default());
  quire_log_write_json(&out, "T", "info", line);
  const char *prefix = "{\"ts\":\"T\",\"level\":\"info\",";
  assert_memory_equal(quire_strbuf_text(&out), prefix, strlen(prefix));
  assert_string_equal(quire_strbuf_text(&out) + strlen(prefix), wanted);
  json_t *root = json_loadb(out.data, out.bytes, 0, NULL);
  assert_non_null(root);
  json_decref(root);
  quire_strbuf_fini(&out);
}

static void test_lines(void **state) {
  (void)state;
  expect("ready", "\"msg\":\"ready\"}\n");
  expect("worker is ready ranks=2 share=0.5 name=\"a b\"",
         "\"msg\":\"worker is ready\",\"ranks\":2,\"share\":0.5,\"name\":\"a b\"}\n");
  expect("", "\"msg\":\"\"}\n");
  expect("a=1 words between b=-2", "\"msg\":\"\",\"a\":1,\"b\":-2}\n");
}

/* A client chooses its id: it must neither break a line nor lose digits. */
static void test_numbers(void **state) {
  (void)state;
  static const char *const texts[] = {
      "007", "-007", "5.", ".5", "-.5", "1e5", "-", "1-2", "+1", "0x10", "", "1.2.3", "--1", "-0.", "1234567890123456"};
  static const char *const numbers[] = {"0", "-0", "10", "0.07", "-12.50", "123456789012345"};
  char line[64], wanted[64];
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    snprintf(line, sizeof line, "done id=%s", texts[i]);
    snprintf(wanted, sizeof wanted, "\"msg\":\"done\",\"id\":\"%s\"}\n", texts[i]);
    expect(line, wanted);
  }
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    snprintf(line, sizeof line, "done id=%s", numbers[i]);
    snprintf(wanted, sizeof wanted, "\"msg\":\"done\",\"id\":%s}\n", numbers[i]);
    expect(line, wanted);
  }
}

/* Only what JSON lacks is replaced. */
static void test_large_numbers(void **state) {
  (void)state;
  static const struct {
    double value;
    const char *text;
  } cases[] = {{1e305, "1e+305"}, {-1.5e308, "-1.5e+308"}, {1e308 * 10, "9999"}, {-1e308 * 10, "-9999"}};
  struct quire_strbuf out;
  quire_strbuf_init(&out, quire_env_default());
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    quire_strbuf_clear(&out);
    quire_json_write_number(&out, cases[i].value);
    assert_string_equal(quire_strbuf_text(&out), cases[i].text);
  }
  quire_strbuf_fini(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_numbers),
                                     cmocka_unit_test(test_large_numbers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
