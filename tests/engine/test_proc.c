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
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
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

/* The children of this process, in the order they were made. */
static int children(pid_t *pids, int max) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
  FILE *file = fopen(path, "r");
  int count = 0, pid;
  while (file != NULL && count < max && fscanf(file, "%d", &pid) == 1) {
    pids[count++] = pid;
  }
  if (file != NULL) {
    fclose(file);
  }
  return count;
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

static void a_dead_rank_ends_the_worker(void **unused) {
  (void)unused;
  uint64_t seed = test_seed("proc");
  for (int i = 0; i < DEATHS; i++) {
    struct exact_cell cell = proc_cell(EXACT_NEW_MAX);
    struct quire_engine *engine = exact_engine_open(&cell, PROMPT + EXACT_NEW_MAX + 1, 1000);
    pid_t pids[8];
    assert_int_equal(children(pids, 8), 3);
    pid_t killer = kill_later(pids[quire_splitmix64_below(&seed, 3)], (useconds_t)quire_splitmix64_below(&seed, 60000));
    struct quire_engine_request request = exact_request(&cell);
    struct quire_error error = {0};
    enum quire_status status = QUIRE_OK;
    for (int turn = 0; status == QUIRE_OK && turn < 1000; turn++) {
      struct quire_engine_event event = {0};
      status = quire_engine_start(engine, &request, NULL, &error);
      while (status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE) {
        status = quire_engine_step(engine, &event, &error);
      }
      quire_engine_finish(engine);
    }
    assert_int_equal(status, QUIRE_ERR_RANK);
    assert_non_null(strstr(error.text, "signal 9"));
    assert_int_equal(quire_engine_start(engine, &request, NULL, &error), QUIRE_ERR_RANK);
    quire_engine_destroy(engine);
    assert_int_equal(waitpid(killer, NULL, 0), killer);
  }
}

static void nobody_is_left_behind(void **unused) {
  (void)unused;
  struct exact_cell cell = proc_cell(2);
  struct exact_result result = {0};
  exact_cell_run(&cell, &result);
  exact_result_free(&result);
  pid_t pids[8];
  assert_int_equal(children(pids, 8), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dead_rank_ends_the_worker),
      cmocka_unit_test(nobody_is_left_behind),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
