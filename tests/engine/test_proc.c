// ctest: timeout=120
/* Ranks as processes: a rank that dies, at any moment, ends the worker with a message that names it, in bounded time;
 * the engine answers QUIRE_ERR_RANK from then on and can be destroyed. (That the bytes are those of threads is shown by
 * the exactness matrix, where the executor is a factor.) */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/children.h"
#include "support/exact_run.h"
#include "support/seed.h"

#define PROMPT 300
#define DEATHS 12

static struct exact_model model;
static int32_t tokens[PROMPT];

static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_FP8);
  quire_tiny_tokens(43, PROMPT, tokens);
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

static struct exact_cell proc_cell(int32_t new_max) {
  struct exact_cell cell = exact_cell_defaults(&model, tokens, PROMPT);
  cell.ranks = 3;
  cell.sharing = QUIRE_SHARING_SHARED;
  cell.view = QUIRE_VIEW_PEER;
  cell.chunk = 50;
  cell.mtp = true;
  cell.new_max = new_max;
  cell.executor = "proc";
  return cell;
}

/* Sends the signal from another process after a while, so that it hits a rank inside a step as well as between two. */
static pid_t kill_later(pid_t victim, useconds_t delay) {
  pid_t killer = fork();
  if (killer == 0) {
    usleep(delay);
    kill(victim, SIGKILL);
    _exit(0);
  }
  return killer;
}

/* Answers the request until a step fails; the status it failed with. */
static enum quire_status run_until_failure(struct quire_engine *engine, const struct exact_cell *cell,
                                           struct quire_error *error) {
  struct quire_engine_request request = exact_request(cell);
  enum quire_status status = QUIRE_OK;
  for (int turn = 0; status == QUIRE_OK && turn < 1000; turn++) {
    struct quire_engine_event event = {0};
    status = quire_engine_start(engine, &request, NULL, error);
    while (status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE) {
      status = quire_engine_step(engine, &event, error);
    }
    quire_engine_finish(engine);
  }
  return status;
}

static void a_dead_rank_ends_the_worker(void **unused) {
  (void)unused;
  uint64_t seed = test_seed("proc");
  for (int i = 0; i < DEATHS; i++) {
    struct exact_cell cell = proc_cell(EXACT_NEW_MAX);
    struct quire_engine *engine = exact_engine_open(&cell, PROMPT + EXACT_NEW_MAX + 1, 1000);
    pid_t pids[8];
    assert_int_equal(test_children(pids, 8), 3);
    pid_t killer = kill_later(pids[quire_splitmix64_below(&seed, 3)], (useconds_t)quire_splitmix64_below(&seed, 60000));
    struct quire_engine_request request = exact_request(&cell);
    struct quire_error error = {0};
    assert_int_equal(run_until_failure(engine, &cell, &error), QUIRE_ERR_RANK);
    assert_non_null(strstr(error.text, "signal 9"));
    assert_int_equal(quire_engine_start(engine, &request, NULL, &error), QUIRE_ERR_RANK);
    quire_engine_destroy(engine);
    assert_int_equal(waitpid(killer, NULL, 0), killer);
  }
}

struct proc_engine {
  struct exact_cell cell;
  struct quire_engine *engine;
  struct quire_error error;
  pid_t pids[8];
};

/* An engine of three ranks, and their processes. */
static void proc_engine_open(struct proc_engine *p) {
  *p = (struct proc_engine){.cell = proc_cell(EXACT_NEW_MAX)};
  p->engine = exact_engine_open(&p->cell, PROMPT + EXACT_NEW_MAX + 1, 1000);
  assert_int_equal(test_children(p->pids, 8), 3);
}

static void proc_engine_close(struct proc_engine *p) {
  quire_engine_destroy(p->engine);
  assert_int_equal(test_children(p->pids, 8), 0);
}

/* A stopped process neither answers nor ends by itself; with another one dead, and when the engine goes. */
static void stopped_ranks_do_not_hold_it_up(void **unused) {
  (void)unused;
  for (int dead = 0; dead < 2; dead++) {
    struct proc_engine p;
    proc_engine_open(&p);
    assert_int_equal(kill(p.pids[0], SIGSTOP), 0);
    if (dead) {
      pid_t killer = kill_later(p.pids[1], 20000);
      assert_int_equal(run_until_failure(p.engine, &p.cell, &p.error), QUIRE_ERR_RANK);
      assert_non_null(strstr(p.error.text, "rank 1 was ended by signal 9"));
      assert_int_equal(waitpid(killer, NULL, 0), killer);
    }
    proc_engine_close(&p);
  }
}

/* Where SIGCHLD is ignored, as a parent may have left it, children vanish without a word. */
static void a_death_nobody_reports(void **unused) {
  (void)unused;
  void (*before)(int) = signal(SIGCHLD, SIG_IGN);
  assert_true(before != SIG_ERR);
  struct proc_engine p;
  proc_engine_open(&p);
  assert_int_equal(kill(p.pids[1], SIGKILL), 0);
  assert_int_equal(run_until_failure(p.engine, &p.cell, &p.error), QUIRE_ERR_RANK);
  assert_non_null(strstr(p.error.text, "the process of rank 1 ended, how is not known"));
  proc_engine_close(&p);
  assert_true(signal(SIGCHLD, before) != SIG_ERR);
}

/* Kernels keep tiles on the stack, and the first thread of a process has what the shell allows. */
static void a_small_stack(void **unused) {
  (void)unused;
  struct rlimit before, small;
  assert_int_equal(getrlimit(RLIMIT_STACK, &before), 0);
  small = before;
  small.rlim_cur = 128 << 10;
  assert_int_equal(setrlimit(RLIMIT_STACK, &small), 0);
  struct exact_cell cell = proc_cell(2);
  struct exact_result result = {0};
  exact_cell_run(&cell, &result);
  assert_int_equal(result.drawn, 2);
  exact_result_free(&result);
  assert_int_equal(setrlimit(RLIMIT_STACK, &before), 0);
}

static void nobody_is_left_behind(void **unused) {
  (void)unused;
  struct exact_cell cell = proc_cell(2);
  struct exact_result result = {0};
  exact_cell_run(&cell, &result);
  exact_result_free(&result);
  pid_t pids[8];
  assert_int_equal(test_children(pids, 8), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dead_rank_ends_the_worker), cmocka_unit_test(stopped_ranks_do_not_hold_it_up),
      cmocka_unit_test(a_death_nobody_reports),      cmocka_unit_test(a_small_stack),
      cmocka_unit_test(nobody_is_left_behind),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
