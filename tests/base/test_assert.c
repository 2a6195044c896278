/* Assertions end the process where they must and cost nothing where they are off; and the environment the other tests
 * lean on counts what it should. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/assert.h"
#include "support/fail_env.h"

/* Runs fn in a child; answers the signal that ended it, 0 when it returned, and what it wrote to stderr. */
static int signal_of(void (*fn)(void), char *text_out, size_t text_bytes) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGABRT, SIG_DFL); /* a sanitizer's or cmocka's handler would hide it */
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    fn();
    _exit(0);
  }
  close(ends[1]);
  ssize_t got = 0, more;
  while ((more = read(ends[0], text_out + got, text_bytes - 1 - (size_t)got)) > 0) {
    got += more;
  }
  text_out[got] = 0;
  close(ends[0]);
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static int evaluated;

static void holds(void) {
  QUIRE_ASSERT(1 + 1 == 2);
  QUIRE_DEBUG(1 + 1 == 2);
  QUIRE_EXPENSIVE(1 + 1 == 2);
}

static void fails(void) { QUIRE_ASSERT(evaluated == 7); }

static void debug_fails(void) { QUIRE_DEBUG(++evaluated == 7); }

static void expensive_fails(void) { QUIRE_EXPENSIVE(++evaluated == 7); }

static void three_levels(void **state) {
  (void)state;
  char text[1024];
  assert_int_equal(signal_of(holds, text, sizeof text), 0);
  assert_int_equal(signal_of(fails, text, sizeof text), SIGABRT);
  assert_non_null(strstr(text, "test_assert.c:"));
  assert_non_null(strstr(text, ": assertion failed: evaluated == 7\n"));
#ifdef QUIRE_DEBUG_ASSERTS
  assert_int_equal(signal_of(debug_fails, text, sizeof text), SIGABRT);
#else
  debug_fails();
  assert_int_equal(evaluated, 0);
#endif
#ifdef QUIRE_EXPENSIVE_ASSERTS
  assert_int_equal(signal_of(expensive_fails, text, sizeof text), SIGABRT);
#else
  expensive_fails();
  assert_int_equal(evaluated, 0);
#endif
}

static void rewind_past_end(void) {
  struct quire_arena arena = {0};
  quire_arena_rewind(&arena, 1);
}

static void wrong_size(void) {
  struct fail_env fail;
  fail_env_init(&fail);
  void *memory = fail.env.alloc(&fail, 10, 8);
  fail.env.dealloc(&fail, memory, 11);
}

static void freed_twice(void) {
  struct fail_env fail;
  fail_env_init(&fail);
  void *memory = fail.env.alloc(&fail, 10, 8);
  fail.env.dealloc(&fail, memory, 10);
  fail.env.dealloc(&fail, memory, 10);
}

static void misuse_is_caught(void **state) {
  (void)state;
  char text[1024];
  assert_int_equal(signal_of(rewind_past_end, text, sizeof text), SIGABRT);
  assert_int_equal(signal_of(wrong_size, text, sizeof text), SIGABRT);
  assert_non_null(strstr(text, "it was allocated with size 10"));
  assert_int_equal(signal_of(freed_twice, text, sizeof text), SIGABRT);
}

static void fail_env_counts(void **state) {
  (void)state;
  struct fail_env fail;
  fail_env_init(&fail);
  const struct quire_env *env = &fail.env;
  uint8_t *a = env->alloc(env->context, 10, 8);
  uint8_t *b = env->alloc(env->context, 20, 4096);
  assert_int_equal(a[9], 0xA5);
  assert_int_equal((uintptr_t)b % 4096, 0);
  assert_int_equal(fail.live_blocks, 2);
  assert_int_equal(fail.live_bytes, 30);
  fail.fail_at = 3;
  void *c = env->alloc(env->context, 1, 8);
  assert_non_null(c);
  assert_null(env->alloc(env->context, 1, 8));
  void *d = env->alloc(env->context, 1, 8);
  assert_non_null(d);
  fail.fail_from = 5;
  assert_null(env->alloc(env->context, 1, 8));
  assert_null(env->alloc(env->context, 1, 8));
  assert_int_equal(fail.allocations, 7);
  assert_int_equal(fail.refused, 3);
  env->dealloc(env->context, a, 10);
  env->dealloc(env->context, b, 20);
  env->dealloc(env->context, c, 1);
  env->dealloc(env->context, d, 1);
  env->dealloc(env->context, NULL, 0);
  assert_int_equal(fail.live_blocks, 0);
  assert_int_equal(fail.peak_bytes, 32);
  fail.clock_by_hand = true;
  fail.clock_ns = 42;
  assert_int_equal(env->now_ns(env->context), 42);
  uint64_t first = env->random(env->context);
  fail.random_state = 0;
  assert_true(env->random(env->context) == first);
  fail_env_fini(&fail);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(three_levels),
      cmocka_unit_test(misuse_is_caught),
      cmocka_unit_test(fail_env_counts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
