#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/env.h"
#include "base/status.h"
#include "support/fail_env.h"

static void names_and_damage(void **state) {
  (void)state;
  static const struct {
    enum quire_status status;
    const char *name;
    enum quire_damage damage;
  } rows[] = {
      {QUIRE_OK, "ok", QUIRE_DAMAGE_NONE},
      {QUIRE_ERR_ARGUMENT, "argument", QUIRE_DAMAGE_CALL},
      {QUIRE_ERR_STATE, "state", QUIRE_DAMAGE_CALL},
      {QUIRE_ERR_UNSUPPORTED, "unsupported", QUIRE_DAMAGE_CALL},
      {QUIRE_ERR_AGAIN, "again", QUIRE_DAMAGE_CALL},
      {QUIRE_ERR_NOT_FOUND, "not found", QUIRE_DAMAGE_CALL},
      {QUIRE_ERR_REQUEST, "request", QUIRE_DAMAGE_REQUEST},
      {QUIRE_ERR_NONFINITE, "nonfinite", QUIRE_DAMAGE_REQUEST},
      {QUIRE_ERR_CANCELLED, "cancelled", QUIRE_DAMAGE_REQUEST},
      {QUIRE_ERR_PEER, "peer", QUIRE_DAMAGE_PEER},
      {QUIRE_ERR_MISMATCH, "mismatch", QUIRE_DAMAGE_PEER},
      {QUIRE_ERR_ABORTED, "aborted", QUIRE_DAMAGE_RANK},
      {QUIRE_ERR_RANK, "rank", QUIRE_DAMAGE_RANK},
      {QUIRE_ERR_MEMORY, "memory", QUIRE_DAMAGE_NODE},
      {QUIRE_ERR_IO, "io", QUIRE_DAMAGE_NODE},
      {QUIRE_ERR_CORRUPT, "corrupt", QUIRE_DAMAGE_NODE},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_string_equal(quire_status_name(rows[i].status), rows[i].name);
    assert_int_equal(quire_status_damage(rows[i].status), rows[i].damage);
  }
  assert_string_equal(quire_status_name((enum quire_status)999), "unknown");
  assert_string_equal(quire_status_name((enum quire_status) - 1), "unknown");
  assert_int_equal(quire_status_damage((enum quire_status)999), QUIRE_DAMAGE_NODE);
}

static void error_is_one_line_and_bounded(void **state) {
  (void)state;
  struct quire_error error;
  char long_text[4096];
  memset(long_text, 'x', sizeof long_text - 1);
  long_text[sizeof long_text - 1] = 0;
  assert_int_equal(quire_error_set(&error, QUIRE_ERR_IO, "a\nb", "line\r\n%s", long_text), QUIRE_ERR_IO);
  assert_int_equal(error.status, QUIRE_ERR_IO);
  assert_string_equal(error.where, "a b");
  assert_int_equal(strlen(error.text), QUIRE_TEXT_BYTES - 1);
  assert_memory_equal(error.text, "line  xx", 8);
  quire_error_set(&error, QUIRE_ERR_IO, NULL, "%d", 3);
  assert_string_equal(error.where, "");
  assert_string_equal(error.text, "3");
  assert_int_equal(quire_error_set(NULL, QUIRE_ERR_PEER, "x", "y"), QUIRE_ERR_PEER);
}

static void default_environment(void **state) {
  (void)state;
  const struct quire_env *env = quire_env_default();
  for (size_t align = 8; align <= 65536; align *= 2) {
    char *memory = env->alloc(env->context, 3, align);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % align, 0);
    memory[2] = 1;
    env->dealloc(env->context, memory, 3);
  }
  env->dealloc(env->context, NULL, 0);
  uint64_t before = env->now_ns(env->context);
  assert_true(env->now_ns(env->context) >= before);
  assert_true(env->random(env->context) != env->random(env->context));
  quire_env_log(env, QUIRE_LOG_INFO, "%s", "not shown");
}

static void zalloc_zeroes_and_refuses_overflow(void **state) {
  (void)state;
  struct fail_env fail;
  fail_env_init(&fail);
  uint8_t *memory = quire_env_zalloc(&fail.env, 100, 3);
  assert_int_equal((uintptr_t)memory % 64, 0);
  for (int i = 0; i < 300; i++) {
    assert_int_equal(memory[i], 0);
  }
  quire_env_free(&fail.env, memory, 100, 3);
  memory = quire_env_zalloc(&fail.env, 0, 8);
  assert_non_null(memory);
  quire_env_free(&fail.env, memory, 0, 8);
  assert_null(quire_env_zalloc(&fail.env, SIZE_MAX / 2, 3));
  assert_null(quire_env_zalloc(&fail.env, SIZE_MAX / 4, 4));
  assert_int_equal(fail.allocations, 2);
  fail.fail_at = 2;
  assert_null(quire_env_zalloc(&fail.env, 1, 1));
  assert_int_equal(fail.refused, 1);
  fail_env_fini(&fail);
}

static void log_is_one_line(void **state) {
  (void)state;
  struct fail_env fail;
  fail_env_init(&fail);
  quire_env_log(&fail.env, QUIRE_LOG_WARN, "page %d\nof %s", 7, "x");
  quire_env_log(&fail.env, QUIRE_LOG_ERROR, "two");
  assert_string_equal(fail.log, "warn: page 7 of x\nerror: two\n");
  assert_int_equal(fail.log_lines[QUIRE_LOG_WARN], 1);
  for (int i = 0; i < 1000; i++) {
    quire_env_log(&fail.env, QUIRE_LOG_INFO, "filling the log to its end and past it");
  }
  assert_true(fail.log_bytes < sizeof fail.log);
  fail_env_fini(&fail);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_and_damage),    cmocka_unit_test(error_is_one_line_and_bounded),
      cmocka_unit_test(default_environment), cmocka_unit_test(zalloc_zeroes_and_refuses_overflow),
      cmocka_unit_test(log_is_one_line),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
