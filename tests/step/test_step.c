// ctest: timeout=120
/* Plans executed by threads: several requests in one plan do not feel each other, ranks without rows take part, a plan
 * that must not run ends on every rank without a hang, and nothing is allocated while plans run. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/futex.h"
#include "support/children.h"
#include "support/exact_step.h"
#include "support/fail_env.h"

static struct exact_model model;
static int32_t prompts[EXACT_SLOTS][512];

static int open_model(void **unused) {
  (void)unused;
  exact_model_small(&model, QUIRE_TINY_BF16);
  for (int i = 0; i < EXACT_SLOTS; i++) {
    quire_tiny_tokens((uint64_t)(31 + i), 512, prompts[i]);
  }
  return 0;
}

static int close_model(void **unused) {
  (void)unused;
  exact_model_close(&model);
  return 0;
}

static struct exact_cell worker(int32_t ranks, enum quire_view_mode view) {
  struct exact_cell cell = exact_cell_defaults(&model, prompts[0], 512);
  cell.ranks = ranks;
  cell.sharing = ranks > 1 && view != QUIRE_VIEW_LOCAL ? QUIRE_SHARING_SHARED : QUIRE_SHARING_REPLICATED;
  cell.view = view;
  cell.mtp = true;
  cell.kv = QUIRE_KV_FP8;
  return cell;
}

static const struct quire_bias bias[] = {{9, 2.0f}, {10, -4.0f}, {9, 1.0f}};

/* What the slots ask of sampling: nothing alike. */
static const struct quire_sampling samplings[EXACT_SLOTS] = {
    {.temperature = 0.8f, .top_p = 1, .repetition_penalty = 1.3f, .seed = 3, .logprobs = true},
    {.temperature = 1.1f, .top_p = 0.9f, .min_p = 0.01f, .bias = bias, .bias_count = 3, .seed = 4, .top_logprobs = 7},
    {.frequency_penalty = 0.7f, .presence_penalty = -0.3f, .bias = bias, .bias_count = 1, .top_logprobs = 2},
};

static void open_step(struct exact_step *step, const struct quire_env *env, const struct exact_cell *cell) {
  exact_step_open(step, env, cell);
  for (int i = 0; i < EXACT_SLOTS; i++) {
    step->slot[i].tokens = prompts[i];
    step->slot[i].sampling = samplings[i];
    step->slot[i].prompt_end = 40 + 50 * i;
  }
}

/* What a step says of an entry: the token, its log-probability, the likeliest. */
struct said {
  struct quire_step_result result;
  struct quire_top top[QUIRE_TOP_LOGPROBS_MAX];
};

static struct said said_of(const struct exact_step *step, struct quire_step_ack *ack, int32_t e) {
  const struct quire_step_limits *limits = &step->config.limits;
  const struct quire_step_sampling *record =
      quire_step_entry_sampling(step->plan, limits, quire_step_plan_entries(step->plan) + e);
  struct said said = {.result = quire_step_ack_results(ack)[e]};
  assert_non_null(record);
  memcpy(said.top, quire_step_ack_tops(ack, limits) + record->top_first,
         (size_t)record->top_count * sizeof said.top[0]);
  assert_int_equal(said.result.nonfinite, 0);
  assert_in_range(said.result.token, 0, step->config.model->vocab - 1);
  assert_true(record->top_count == 0 || said.top[record->top_count - 1].token >= 0);
  return said;
}

static struct said one_said(struct exact_step *step, struct quire_step_entry entry) {
  return said_of(step, exact_step_one(step, &entry), 0);
}

static void expect_rows_equal(const struct exact_step *a, const struct exact_step *b, int32_t slot, int32_t end) {
  uint8_t one[4096], two[4096];
  for (int32_t part = 0; part < a->parts.count; part++) {
    for (int32_t position = 0; position < end; position++) {
      exact_step_row(a, slot, part, position, one);
      exact_step_row(b, slot, part, position, two);
      if (memcmp(one, two, (size_t)a->parts.part[part].row_bytes) != 0) {
        fail_msg("slot %d part %d position %d differs", slot, part, position);
      }
    }
  }
}

/* What each slot does in each of the mixed steps: rows of prefill, or decode. */
struct move {
  int32_t prefill;
  bool decode;
};

static const struct move moves[][EXACT_SLOTS] = {
    {{100, false}, {0, false}, {30, false}}, {{0, true}, {130, false}, {70, false}},
    {{0, true}, {70, false}, {0, true}},     {{0, true}, {0, true}, {0, true}},
    {{0, true}, {0, true}, {0, true}},
};
#define MOVES (int)(sizeof moves / sizeof moves[0])

/* Three requests in one plan: prefill beside decode, all with draft layers, in one exchange. */
static void a_plan_of_many_equals_plans_of_one(int32_t ranks, enum quire_view_mode view, enum quire_split split,
                                               const char *executor) {
  struct exact_cell many = worker(ranks, view), one = worker(1, QUIRE_VIEW_LOCAL);
  many.split = split;
  many.executor = executor;
  many.threads = 2;
  struct exact_step mixed, single;
  open_step(&mixed, quire_env_default(), &many);
  open_step(&single, quire_env_default(), &one);
  for (int m = 0; m < MOVES; m++) {
    exact_step_begin(&mixed);
    struct said said[EXACT_SLOTS];
    int32_t entries = 0;
    for (int32_t s = 0; s < EXACT_SLOTS; s++) {
      const struct move *move = &moves[m][s];
      if (move->prefill == 0 && !move->decode) {
        continue;
      }
      struct quire_step_entry entry = move->decode ? exact_step_decode(&single, s, 1, QUIRE_ENTRY_SAMPLE)
                                                   : exact_step_prefill(&single, s, move->prefill, QUIRE_ENTRY_SAMPLE);
      said[entries++] = one_said(&single, entry);
      entry = move->decode ? exact_step_decode(&mixed, s, 1, QUIRE_ENTRY_SAMPLE)
                           : exact_step_prefill(&mixed, s, move->prefill, QUIRE_ENTRY_SAMPLE);
      exact_step_add(&mixed, &entry);
    }
    struct quire_step_ack *ack = exact_step_run(&mixed);
    assert_int_equal(ack->status, QUIRE_OK);
    for (int32_t e = 0; e < entries; e++) {
      struct said got = said_of(&mixed, ack, e);
      assert_memory_equal(&got, &said[e], sizeof got);
    }
  }
  for (int32_t s = 0; s < EXACT_SLOTS; s++) {
    assert_int_equal(mixed.slot[s].paged, single.slot[s].paged);
    expect_rows_equal(&mixed, &single, s, single.slot[s].paged);
  }
  exact_step_close(&mixed);
  exact_step_close(&single);
}

static void many_by_peer(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(3, QUIRE_VIEW_PEER, QUIRE_SPLIT_ZIGZAG, "threads");
}

static void many_in_processes(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(3, QUIRE_VIEW_GATHER, QUIRE_SPLIT_ZIGZAG, "proc");
}

static void many_by_gather(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(4, QUIRE_VIEW_GATHER, QUIRE_SPLIT_INTERLEAVE, "threads");
}

static void many_replicated(void **unused) {
  (void)unused;
  a_plan_of_many_equals_plans_of_one(2, QUIRE_VIEW_LOCAL, QUIRE_SPLIT_ZIGZAG, "threads");
}

/* Two tokens far above all others, X by less than what penalties take for one occurrence: X is drawn until the list
 * holds it, then Y. So each of these draws tells whether exactly the right tokens were counted. */
enum { TOKEN_X = 5, TOKEN_Y = 7, PROMPT_END = 40, X_AT = 101 };

static const struct quire_sampling decisive[EXACT_SLOTS] = {
    {.frequency_penalty = 2,
     .presence_penalty = 2,
     .bias = (struct quire_bias[]){{TOKEN_X, 100}, {TOKEN_Y, 98}},
     .bias_count = 2},
    {.presence_penalty = 2,
     .frequency_penalty = 2,
     .temperature = 0.01f,
     .top_p = 1,
     .seed = 5,
     .top_logprobs = 5,
     .bias = (struct quire_bias[]){{TOKEN_Y, 98}, {TOKEN_X, 100}},
     .bias_count = 2},
    {.repetition_penalty = 1.001f, /* so that the prompt is in the list, too */
     .frequency_penalty = 2,
     .presence_penalty = 2,
     .bias = (struct quire_bias[]){{TOKEN_X, 100}, {TOKEN_Y, 98}},
     .bias_count = 2,
     .temperature = 0.02f,
     .top_p = 0.9f,
     .seed = 6,
     .top_logprobs = 20,
     .logprobs = true},
};

/* Runs the draws behind positions 100 and 101 four ways: row by row; with the row of 101 as a draft; all in one
 * prefill; each but the first after the request was given up and began again. */
static void draws_of(struct exact_step *step, int32_t s, struct said by_row[2]) {
  struct quire_step_entry entry = exact_step_prefill(step, s, 100, 0);
  exact_step_one(step, &entry);
  by_row[0] = one_said(step, exact_step_decode(step, s, 1, QUIRE_ENTRY_SAMPLE));
  by_row[1] = one_said(step, exact_step_decode(step, s, 1, QUIRE_ENTRY_SAMPLE));
  exact_step_restart(step, s);
  entry = exact_step_prefill(step, s, 60, 0);
  exact_step_one(step, &entry);
  entry = exact_step_prefill(step, s, 40, 0);
  exact_step_one(step, &entry);
  struct said drafted = one_said(step, exact_step_decode(step, s, 2, QUIRE_ENTRY_SAMPLE));
  assert_int_equal(step->slot[s].listed, X_AT); /* the draft is not in the list */
  assert_memory_equal(&by_row[1], &drafted, sizeof drafted);
  exact_step_restart(step, s);
  struct said again = one_said(step, exact_step_prefill(step, s, X_AT, QUIRE_ENTRY_SAMPLE));
  assert_memory_equal(&by_row[0], &again, sizeof again);
  exact_step_restart(step, s);
  again = one_said(step, exact_step_prefill(step, s, X_AT + 1, QUIRE_ENTRY_SAMPLE));
  assert_memory_equal(&by_row[1], &again, sizeof again);
}

static void a_draw_has_no_history(void **unused) {
  (void)unused;
  static const struct {
    int32_t ranks;
    enum quire_view_mode view;
    const char *executor;
  } rows[] = {{1, QUIRE_VIEW_LOCAL, "threads"}, {3, QUIRE_VIEW_PEER, "threads"}, {2, QUIRE_VIEW_GATHER, "proc"}};
  static struct said wanted[EXACT_SLOTS][2], got[2];
  static int32_t tokens[512];
  for (int32_t i = 0; i < 512; i++) {
    tokens[i] = prompts[0][i] == TOKEN_X || prompts[0][i] == TOKEN_Y ? 9 : prompts[0][i];
  }
  tokens[X_AT] = TOKEN_X;
  tokens[PROMPT_END - 1] = TOKEN_X; /* in the prompt it counts for nobody but the repetition penalty */
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct exact_cell cell = worker(rows[i].ranks, rows[i].view);
    cell.executor = rows[i].executor;
    struct exact_step step;
    open_step(&step, quire_env_default(), &cell);
    for (int32_t s = 0; s < EXACT_SLOTS; s++) {
      step.slot[s].sampling = decisive[s];
      step.slot[s].prompt_end = PROMPT_END;
      step.slot[s].tokens = tokens;
      draws_of(&step, s, got);
      assert_true(got[0].result.token == TOKEN_X && got[1].result.token == TOKEN_Y);
      if (i == 0) {
        memcpy(wanted[s], got, sizeof got);
      }
      assert_memory_equal(got, wanted[s], sizeof got);
    }
    exact_step_close(&step);
  }
}

/* One token on eight ranks: seven have no rows, in prefill, in decode and in a step that only commits. */
static void empty_ranks_take_part(void **unused) {
  (void)unused;
  struct exact_cell eight = worker(8, QUIRE_VIEW_PEER), one = worker(1, QUIRE_VIEW_LOCAL);
  struct exact_step step, single;
  open_step(&step, quire_env_default(), &eight);
  open_step(&single, quire_env_default(), &one);
  struct exact_step *both[2] = {&step, &single};
  int32_t tokens[2];
  for (int i = 0; i < 2; i++) {
    struct quire_step_entry entry = exact_step_prefill(both[i], 0, 1, 0);
    exact_step_one(both[i], &entry);
    entry = exact_step_decode(both[i], 0, 1, QUIRE_ENTRY_SAMPLE);
    tokens[i] = quire_step_ack_results(exact_step_one(both[i], &entry))[0].token;
    entry = exact_step_decode(both[i], 0, 0, 0);
    exact_step_one(both[i], &entry);
    assert_int_equal(both[i]->slot[0].paged, 2);
    /* a plan without entries is legal, too */
    exact_step_begin(both[i]);
    assert_int_equal(exact_step_run(both[i])->status, QUIRE_OK);
  }
  assert_int_equal(tokens[0], tokens[1]);
  expect_rows_equal(&step, &single, 0, 2);
  exact_step_close(&step);
  exact_step_close(&single);
}

static void expect_worker_is_over(struct exact_step *step) {
  struct quire_error error = {0};
  exact_step_begin(step);
  assert_int_equal(quire_step_post(step->executor, step->plan, &error), QUIRE_ERR_STATE);
  assert_int_equal(error.status, QUIRE_ERR_STATE);
}

/* One rank of replicated KV has a page that is still being written in this epoch: it alone fails, the others end the
 * step as aborted, the controller hears the reason, and the executor takes no further plan. */
static void one_failing_rank_ends_the_step(void **unused) {
  (void)unused;
  for (int i = 0; i < 6; i++) {
    int32_t bad = i / 2;
    struct exact_cell cell = worker(3, QUIRE_VIEW_LOCAL);
    cell.executor = i % 2 == 0 ? "threads" : "proc";
    struct exact_step step;
    open_step(&step, quire_env_default(), &cell);
    struct quire_step_entry entry = exact_step_prefill(&step, 0, 100, 0);
    exact_step_one(&step, &entry);
    quire_page page = step.slot[0].table[0];
    assert_int_equal(quire_bank_mark_written(quire_step_bank(step.executor, bad),
                                             quire_page_local(&step.config.geometry, page), (int64_t)step.epoch + 1, 5),
                     QUIRE_OK);
    exact_step_begin(&step);
    entry = exact_step_prefill(&step, 0, 50, QUIRE_ENTRY_SAMPLE);
    exact_step_add(&step, &entry);
    struct quire_step_ack *ack = exact_step_run(&step);
    assert_int_equal(ack->status, QUIRE_ERR_RANK);
    assert_int_equal(ack->rank, bad);
    char named[128];
    snprintf(named, sizeof named,
             "rank %d, page %d (owner %d), target index key layer 0, row 5 (request 0, request page 0)", bad, page.v,
             bad);
    if (strstr(ack->error.text, named) == NULL) {
      fail_msg("\"%s\" does not say \"%s\"", ack->error.text, named);
    }
    assert_int_equal(quire_step_ack_results(ack)[0].token, QUIRE_TOKEN_ABSENT);
    expect_worker_is_over(&step);
    exact_step_close(&step);
  }
}

/* The same while gather's copies are on their way in a slow stream: the step ends, and nothing is used after it is
 * gone. */
static void failure_with_copies_in_flight(void **unused) {
  (void)unused;
  struct exact_cell cell = worker(3, QUIRE_VIEW_GATHER);
  cell.copy_mode = QUIRE_STREAM_DEFERRED;
  for (uint64_t seed = 0; seed < 6; seed++) {
    cell.copy_seed = seed;
    struct exact_step step;
    open_step(&step, quire_env_default(), &cell);
    struct quire_step_entry entry = exact_step_prefill(&step, 0, 200, 0);
    exact_step_one(&step, &entry);
    /* a plan with an entry that asks for an unknown flag is refused by every rank before anything runs */
    exact_step_begin(&step);
    entry = exact_step_prefill(&step, 0, 100, seed % 2 == 0 ? 1 << 20 : 0);
    if (seed % 2 != 0) {
      quire_page page = step.slot[0].table[2];
      assert_int_equal(quire_bank_mark_written(exact_step_bank(&step, page),
                                               quire_page_local(&step.config.geometry, page), (int64_t)step.epoch, 0),
                       QUIRE_OK);
    }
    exact_step_add(&step, &entry);
    struct quire_step_ack *ack = exact_step_run(&step);
    assert_int_equal(ack->status, QUIRE_ERR_RANK);
    expect_worker_is_over(&step);
    exact_step_close(&step);
  }
}

/* Everything is reserved at creation. */
static void nothing_is_allocated_in_a_step(void **unused) {
  (void)unused;
  static const enum quire_view_mode views[] = {QUIRE_VIEW_LOCAL, QUIRE_VIEW_GATHER, QUIRE_VIEW_PEER};
  for (int v = 0; v < 3; v++) {
    struct fail_env fail;
    fail_env_init(&fail);
    struct exact_cell cell = worker(2, views[v]);
    cell.threads = 2;
    struct exact_step step;
    open_step(&step, &fail.env, &cell);
    uint64_t before = fail.allocations;
    fail.fail_from = 0;
    struct quire_step_entry entry = exact_step_prefill(&step, 0, 150, QUIRE_ENTRY_SCORE | QUIRE_ENTRY_DRAFT_FULL);
    exact_step_one(&step, &entry);
    for (int i = 0; i < 3; i++) {
      entry = exact_step_prefill(&step, 0, 1 + i * 20, QUIRE_ENTRY_SAMPLE);
      exact_step_one(&step, &entry);
      entry = exact_step_decode(&step, 0, 1, QUIRE_ENTRY_SAMPLE);
      exact_step_one(&step, &entry);
      entry = exact_step_decode(&step, 0, 0, 0);
      exact_step_one(&step, &entry);
    }
    assert_int_equal(fail.allocations, before);
    fail.fail_from = FAIL_ENV_NEVER;
    exact_step_close(&step);
    fail_env_fini(&fail);
  }
}

static void an_executor_in_use_refuses_plans(void **unused) {
  (void)unused;
  struct exact_cell cell = worker(2, QUIRE_VIEW_PEER);
  struct exact_step step;
  struct quire_error error = {0};
  open_step(&step, quire_env_default(), &cell);
  exact_step_begin(&step);
  struct quire_step_entry entry = exact_step_prefill(&step, 0, 10, 0);
  exact_step_add(&step, &entry);
  assert_int_equal(quire_step_post(step.executor, step.plan, &error), QUIRE_OK);
  assert_int_equal(quire_step_post(step.executor, step.plan, &error), QUIRE_ERR_STATE);
  assert_int_equal(quire_step_wait(step.executor)->status, QUIRE_OK);
  exact_step_close(&step);
}

/* Whoever waits spins only while the declared threads have a core each, so a worker without a step must not count. */
static void only_a_running_step_is_declared(void **unused) {
  (void)unused;
  struct exact_cell cell = worker(2, QUIRE_VIEW_PEER);
  cell.threads = 3;
  struct exact_step idle, step;
  open_step(&idle, quire_env_default(), &cell);
  cell.threads = 2;
  open_step(&step, quire_env_default(), &cell);
  assert_int_equal(quire_futex_declared(), 0);
  exact_step_begin(&step);
  struct quire_step_entry entry = exact_step_prefill(&step, 0, 10, 0);
  exact_step_add(&step, &entry);
  assert_int_equal(quire_step_post(step.executor, step.plan, NULL), QUIRE_OK);
  assert_int_equal(quire_futex_declared(), 4);
  assert_int_equal(quire_step_wait(step.executor)->status, QUIRE_OK);
  assert_int_equal(quire_futex_declared(), 0);
  exact_step_begin(&step);
  entry = exact_step_prefill(&step, 0, 100, 0);
  exact_step_add(&step, &entry);
  assert_int_equal(quire_step_post(step.executor, step.plan, NULL), QUIRE_OK);
  usleep(20000);           /* long enough for the second rank to stand in the exchange */
  exact_step_close(&step); /* posted, and never waited for */
  exact_step_close(&idle);
  assert_int_equal(quire_futex_declared(), 0);
}

/* What a rank process declares, told by itself: the handler it was forked with writes it to a shared page. */
static volatile int *declared_there;

static void tell_declared(int signal_number) {
  (void)signal_number;
  *declared_there = quire_futex_declared();
}

/* Asks until the answer is `wanted`, for at most five seconds. */
static int ask_declared(pid_t pid, int wanted) {
  for (int turn = 0; turn < 5000; turn++) {
    *declared_there = -1;
    assert_int_equal(kill(pid, SIGUSR1), 0);
    for (int wait = 0; wait < 100 && *declared_there == -1; wait++) {
      usleep(100);
    }
    if (*declared_there == wanted) {
      break;
    }
  }
  return *declared_there;
}

/* The same in processes: each rank declares the worker's threads while it has a plan, and nothing of what the
 * controller had declared when it forked. A rank that stands still keeps the other one in its step. */
static void a_process_declares_its_own_steps(void **unused) {
  (void)unused;
  void (*before)(int) = signal(SIGUSR1, tell_declared);
  declared_there = mmap(NULL, sizeof *declared_there, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(declared_there != MAP_FAILED && before != SIG_ERR);
  struct exact_cell cell = worker(2, QUIRE_VIEW_PEER);
  cell.threads = 2;
  cell.executor = "proc";
  struct exact_step step;
  pid_t pids[4];
  quire_futex_declare(7);
  open_step(&step, quire_env_default(), &cell);
  quire_futex_declare(-7);
  assert_int_equal(test_children(pids, 4), 2);
  assert_int_equal(ask_declared(pids[0], 0), 0);
  assert_int_equal(kill(pids[1], SIGSTOP), 0);
  exact_step_begin(&step);
  struct quire_step_entry entry = exact_step_prefill(&step, 0, 10, 0);
  exact_step_add(&step, &entry);
  assert_int_equal(quire_step_post(step.executor, step.plan, NULL), QUIRE_OK);
  assert_int_equal(quire_futex_declared(), 0);
  assert_int_equal(ask_declared(pids[0], 4), 4);
  assert_int_equal(kill(pids[1], SIGCONT), 0);
  assert_int_equal(quire_step_wait(step.executor)->status, QUIRE_OK);
  assert_int_equal(ask_declared(pids[0], 0), 0);
  assert_int_equal(ask_declared(pids[1], 0), 0);
  exact_step_close(&step);
  assert_int_equal(munmap((void *)declared_there, sizeof *declared_there), 0);
  assert_true(signal(SIGUSR1, before) != SIG_ERR);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_by_peer),
      cmocka_unit_test(many_by_gather),
      cmocka_unit_test(many_in_processes),
      cmocka_unit_test(many_replicated),
      cmocka_unit_test(a_draw_has_no_history),
      cmocka_unit_test(empty_ranks_take_part),
      cmocka_unit_test(one_failing_rank_ends_the_step),
      cmocka_unit_test(failure_with_copies_in_flight),
      cmocka_unit_test(nothing_is_allocated_in_a_step),
      cmocka_unit_test(an_executor_in_use_refuses_plans),
      cmocka_unit_test(only_a_running_step_is_declared),
      cmocka_unit_test(a_process_declares_its_own_steps),
  };
  return cmocka_run_group_tests(tests, open_model, close_model);
}
