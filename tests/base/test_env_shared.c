/* Memory of the shared environment: what is allocated before a fork is one memory afterwards, in both directions, and
 * each block is a mapping of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/env_shared.h"

static int exit_code_of(pid_t child) {
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* The child sees what the parent wrote before, at the same address; the parent sees what the child wrote. Memory of the
 * ordinary environment shows that it is the mapping and not the fork that does it. */
static void writes_cross_a_fork(void **state) {
  (void)state;
  struct quire_env env = quire_env_shared(quire_env_default());
  size_t bytes = 100000;
  uint8_t *shared = env.alloc(env.context, bytes, 64);
  uint8_t *own = quire_env_zalloc(quire_env_default(), 1, 64);
  assert_non_null(shared);
  assert_non_null(own);
  memset(shared, 0x11, bytes);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    bool seen = shared[0] == 0x11 && shared[bytes - 1] == 0x11;
    shared[0] = 0x22;
    shared[bytes - 1] = 0x33;
    own[0] = 0x44;
    _exit(seen ? 0 : 1);
  }
  assert_int_equal(exit_code_of(child), 0);
  assert_int_equal(shared[0], 0x22);
  assert_int_equal(shared[bytes - 1], 0x33);
  assert_int_equal(shared[1], 0x11);
  assert_int_equal(own[0], 0);
  env.dealloc(env.context, shared, bytes);
  quire_env_free(quire_env_default(), own, 1, 64);
}

/* Back and forth while both run: a child answers each number with the next. */
static void a_word_is_seen_while_both_run(void **state) {
  (void)state;
  struct quire_env env = quire_env_shared(quire_env_default());
  int *word = quire_env_zalloc(&env, 2, sizeof *word);
  assert_non_null(word);
  assert_int_equal(word[0], 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    for (int turn = 1; turn <= 100; turn++) {
      while (__atomic_load_n(&word[0], __ATOMIC_ACQUIRE) != turn) {
        usleep(10);
      }
      __atomic_store_n(&word[1], turn, __ATOMIC_RELEASE);
    }
    _exit(0);
  }
  for (int turn = 1; turn <= 100; turn++) {
    __atomic_store_n(&word[0], turn, __ATOMIC_RELEASE);
    while (__atomic_load_n(&word[1], __ATOMIC_ACQUIRE) != turn) {
      usleep(10);
    }
  }
  assert_int_equal(exit_code_of(child), 0);
  quire_env_free(&env, word, 2, sizeof *word);
}

/* What a child gives back is gone in the child only. */
static void a_block_is_freed_in_one_process(void **state) {
  (void)state;
  struct quire_env env = quire_env_shared(quire_env_default());
  int *word = quire_env_zalloc(&env, 1, sizeof *word);
  assert_non_null(word);
  *word = 5;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    quire_env_free(&env, word, 1, sizeof *word);
    _exit(0);
  }
  assert_int_equal(exit_code_of(child), 0);
  assert_int_equal(*word, 5);
  quire_env_free(&env, word, 1, sizeof *word);
}

static void alignment_zeros_and_refusals(void **state) {
  (void)state;
  struct quire_env env = quire_env_shared(quire_env_default());
  assert_ptr_equal(env.now_ns, quire_env_default()->now_ns);
  assert_ptr_equal(env.log, quire_env_default()->log);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t align = 8; align <= page; align *= 2) {
    uint8_t *memory = env.alloc(env.context, page + 1, align);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % align, 0);
    assert_int_equal(memory[0] | memory[page], 0);
    memset(memory, 1, page + 1);
    env.dealloc(env.context, memory, page + 1);
  }
  assert_null(env.alloc(env.context, SIZE_MAX, 64));
  assert_null(env.alloc(env.context, (size_t)1 << 62, 64));
  env.dealloc(env.context, NULL, 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(writes_cross_a_fork),
      cmocka_unit_test(a_word_is_seen_while_both_run),
      cmocka_unit_test(a_block_is_freed_in_one_process),
      cmocka_unit_test(alignment_zeros_and_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
