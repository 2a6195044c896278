/* The scheduler as what it is, a function: what it owes in each snapshot, and on random ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sched/sched.h"
#include "support/seed.h"

#define RUNNING 64
#define CHUNK 512

struct scene {
  struct quire_sched_running running[RUNNING];
  struct quire_sched_waiting waiting[2 * QUIRE_SCHED_CANDIDATES];
  int32_t victims[RUNNING], admits[2 * QUIRE_SCHED_CANDIDATES];
  struct quire_sched_run runs[RUNNING];
  struct quire_sched_limits limits;
  struct quire_sched_snapshot snapshot;
  struct quire_sched_decision decision;
};

static void scene_init(struct scene *s) {
  memset(s, 0, sizeof *s);
  s->limits = (struct quire_sched_limits){
      .running_max = RUNNING,
      .prefills_max = 32,
      .chunk_tokens = CHUNK,
      .page_tokens = 64,
      .follow_ticks_max = 100,
      .bypass_max = 3,
  };
  s->snapshot = (struct quire_sched_snapshot){.running = s->running, .waiting = s->waiting, .pages_available = 1000};
  s->decision = (struct quire_sched_decision){.victims = s->victims, .admits = s->admits, .runs = s->runs};
}

static struct quire_sched_running *run(struct scene *s, enum quire_sched_state state, int32_t left) {
  struct quire_sched_running *r = &s->running[s->snapshot.running_count++];
  *r = (struct quire_sched_running){
      .order = (uint64_t)s->snapshot.running_count, .state = (uint8_t)state, .left = left, .pages = 4};
  return r;
}

static struct quire_sched_waiting *wait_for(struct scene *s, int32_t left, int32_t pages) {
  struct quire_sched_waiting *w = &s->waiting[s->snapshot.waiting_count++];
  *w = (struct quire_sched_waiting){
      .order = (uint64_t)(100 + s->snapshot.waiting_count), .left = left, .pages = pages, .follow_ticks = -1};
  return w;
}

static void admit(struct scene *s) { quire_sched_admit(&s->limits, &s->snapshot, &s->decision); }

static void decide(struct scene *s) { quire_sched_run(&s->limits, &s->snapshot, &s->decision); }

static int32_t rows_of(const struct scene *s, int32_t index) {
  for (int32_t i = 0; i < s->decision.run_count; i++) {
    if (s->runs[i].index == index) {
      return s->runs[i].rows;
    }
  }
  return -1;
}

/* --- rows --- */

static void everybody_decodes(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  for (int i = 0; i < 10; i++) {
    run(&s, i == 3 ? QUIRE_SCHED_DRAIN : QUIRE_SCHED_DECODE, 0);
  }
  run(&s, QUIRE_SCHED_HELD, 0);
  s.running[5].flags = QUIRE_SCHED_PAUSED;
  s.running[6].flags = QUIRE_SCHED_NEEDS_PAGE; /* and got none */
  decide(&s);
  assert_int_equal(s.decision.run_count, 8);
  assert_int_equal(rows_of(&s, 3), 0);
  assert_int_equal(rows_of(&s, 4), 1);
  assert_int_equal(rows_of(&s, 5), -1);
  assert_int_equal(rows_of(&s, 6), -1);
  assert_int_equal(rows_of(&s, 10), -1);
}

static void a_prompt_alone_gets_the_chunk(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  run(&s, QUIRE_SCHED_PREFILL, 8000);
  decide(&s);
  assert_int_equal(rows_of(&s, 0), CHUNK);
  s.running[0].left = 100;
  decide(&s);
  assert_int_equal(rows_of(&s, 0), 100);
}

/* The bound of the first token: a short prompt beside a long one is done in its first step, and that step has no more
 * than half a chunk of others' rows. */
static void a_short_prompt_does_not_wait(void **unused) {
  (void)unused;
  for (int32_t left = 1; left <= CHUNK / 2; left++) {
    struct scene s;
    scene_init(&s);
    run(&s, QUIRE_SCHED_PREFILL, 8000);
    run(&s, QUIRE_SCHED_PREFILL, 7000);
    run(&s, QUIRE_SCHED_PREFILL, left);
    decide(&s);
    int32_t others = rows_of(&s, 0) + (rows_of(&s, 1) > 0 ? rows_of(&s, 1) : 0);
    assert_int_equal(rows_of(&s, 2), left);
    assert_in_range(others, 1, CHUNK / 2);
  }
}

static void the_first_in_order_never_starves(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  run(&s, QUIRE_SCHED_PREFILL, 8000);
  for (int i = 0; i < 31; i++) {
    run(&s, QUIRE_SCHED_PREFILL, 250);
  }
  decide(&s);
  assert_int_equal(rows_of(&s, 0), CHUNK / 2);
  s.running[31].priority = 1; /* unless somebody is more important */
  s.running[31].left = 8000;
  decide(&s);
  assert_int_equal(rows_of(&s, 31), CHUNK / 2);
}

static void prefixes_fit_the_gather(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  s.limits.prefix_pages_max = 10;
  run(&s, QUIRE_SCHED_PREFILL, 8000)->computed = 640;
  run(&s, QUIRE_SCHED_PREFILL, 20)->computed = 64;
  run(&s, QUIRE_SCHED_PREFILL, 30);
  decide(&s);
  assert_true(rows_of(&s, 0) > 0);
  assert_int_equal(rows_of(&s, 1), -1);
  assert_int_equal(rows_of(&s, 2), 30);
}

/* On any snapshot: within the budget, nobody twice, no more than is left, someone when there is someone. */
static void rows_add_up(void **unused) {
  (void)unused;
  uint64_t seed = test_seed("rows_add_up");
  for (int round = 0; round < 20000; round++) {
    struct scene s;
    scene_init(&s);
    s.limits.chunk_tokens = 1 + (int32_t)quire_splitmix64_below(&seed, 600);
    int32_t count = (int32_t)quire_splitmix64_below(&seed, 33), could = 0, total = 0;
    for (int32_t i = 0; i < count; i++) {
      struct quire_sched_running *r =
          run(&s, QUIRE_SCHED_PREFILL, 1 + (int32_t)quire_splitmix64_below(&seed, i % 3 == 0 ? 3000 : 100));
      r->computed = (int32_t)quire_splitmix64_below(&seed, 500);
      r->priority = (int32_t)quire_splitmix64_below(&seed, 2);
      r->order = quire_splitmix64(&seed);
      r->flags = quire_splitmix64_below(&seed, 8) == 0 ? QUIRE_SCHED_PAUSED : 0;
      could += r->flags == 0;
    }
    decide(&s);
    bool seen[RUNNING] = {false};
    for (int32_t i = 0; i < s.decision.run_count; i++) {
      const struct quire_sched_run *one = &s.runs[i];
      const struct quire_sched_running *r = &s.running[one->index];
      assert_false(seen[one->index]);
      seen[one->index] = true;
      assert_int_equal(r->flags, 0);
      assert_in_range(one->rows, 1, r->left);
      total += one->rows;
    }
    assert_true(total <= s.limits.chunk_tokens);
    assert_int_equal(s.decision.run_count > 0, could > 0);
  }
}

/* --- admission --- */

static void they_enter_in_order(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  wait_for(&s, 100, 3);
  wait_for(&s, 100, 3);
  wait_for(&s, 100, 990);
  wait_for(&s, 100, 5);
  admit(&s);
  assert_int_equal(s.decision.admit_count, 3);
  assert_int_equal(s.admits[0], 0);
  assert_int_equal(s.admits[1], 1);
  assert_int_equal(s.admits[2], 2);
}

static void a_page_is_kept_for_each_that_decodes(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  for (int i = 0; i < 10; i++) {
    run(&s, QUIRE_SCHED_DECODE, 0);
  }
  wait_for(&s, 100, 991);
  admit(&s);
  assert_int_equal(s.decision.admit_count, 0);
  s.waiting[0].pages = 990;
  admit(&s);
  assert_int_equal(s.decision.admit_count, 1);
}

/* Short ones pass one that waits for pages, but not for ever. */
static void short_ones_pass_a_few_times(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  wait_for(&s, 8000, 1200);
  wait_for(&s, 100, 3);
  wait_for(&s, 7000, 3); /* a long one does not pass */
  admit(&s);
  assert_int_equal(s.decision.admit_count, 1);
  assert_int_equal(s.admits[0], 1);
  s.waiting[0].bypassed = 3;
  admit(&s);
  assert_int_equal(s.decision.admit_count, 0);
}

static void long_ones_compute_few_at_a_time(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  for (int i = 0; i < QUIRE_SCHED_LONG_MAX - 1; i++) {
    run(&s, QUIRE_SCHED_PREFILL, 8000);
  }
  for (int i = 0; i < 6; i++) {
    wait_for(&s, 8000, 10);
  }
  wait_for(&s, 100, 3);
  admit(&s);
  assert_int_equal(s.decision.admit_count, 2);
  assert_int_equal(s.admits[0], 0);
  assert_int_equal(s.admits[1], 6);
}

static void a_follower_waits_within_bounds(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  wait_for(&s, 100, 3)->follow_ticks = 99;
  admit(&s);
  assert_int_equal(s.decision.admit_count, 0);
  s.waiting[0].follow_ticks = 100;
  admit(&s);
  assert_int_equal(s.decision.admit_count, 1);
}

/* --- preemption --- */

static void the_last_in_order_gives_way(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  for (int i = 0; i < 6; i++) {
    run(&s, i == 4 ? QUIRE_SCHED_PREFILL : QUIRE_SCHED_DECODE, 0);
  }
  run(&s, QUIRE_SCHED_HELD, 0);
  s.running[0].flags = QUIRE_SCHED_NEEDS_PAGE;
  s.running[1].flags = QUIRE_SCHED_NEEDS_PAGE;
  s.running[1].priority = -1;
  s.snapshot.pages_available = 1;
  wait_for(&s, 10, 0);
  admit(&s);
  assert_int_equal(s.decision.victim_count, 1); /* which wanted a page itself */
  assert_int_equal(s.victims[0], 1);
  assert_int_equal(s.decision.admit_count, 0);
  s.running[2].flags = QUIRE_SCHED_PAUSED;
  admit(&s);
  assert_int_equal(s.victims[0], 2);
}

/* Somebody waits, for pages or for a place: who stands still with them gives way, and nobody else. */
static void who_stands_still_gives_way(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  for (int i = 0; i < 5; i++) {
    run(&s, QUIRE_SCHED_DECODE, 0);
  }
  s.snapshot.pages_available = 6;
  wait_for(&s, 10, 8);
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0);
  s.running[1].flags = QUIRE_SCHED_PAUSED;
  s.running[2].flags = QUIRE_SCHED_PAUSED;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 1);
  assert_int_equal(s.victims[0], 2);
  s.waiting[0].pages = 3; /* it can enter: nobody has to go */
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0);
  assert_int_equal(s.decision.admit_count, 1);
  s.limits.running_max = 5;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 1);
  assert_int_equal(s.decision.admit_count, 0);
}

/* Full of places or of pages: who matters more by the margin takes them from the last in order, from as few as will do,
 * and from nobody when all of them would not do. */
static void who_matters_more_takes_the_place(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  for (int i = 0; i < 5; i++) {
    run(&s,
        i == 3   ? QUIRE_SCHED_HELD
        : i == 4 ? QUIRE_SCHED_PREFILL
                 : QUIRE_SCHED_DECODE,
        0)
        ->priority = i == 2 ? 3 : 1;
  }
  s.limits.running_max = 5;
  wait_for(&s, 10, 8)->priority = 3;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0); /* not unless it is asked for */
  s.limits.yield_margin = 3;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0); /* nor for less than the margin */
  s.limits.yield_margin = 2;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 1);
  assert_int_equal(s.decision.admit_count, 0);
  assert_int_equal(s.victims[0], 4);
  s.limits.running_max = 6; /* places enough, pages not: 3 left over are for those that decode */
  s.snapshot.pages_available = 4;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 2);
  assert_int_equal(s.victims[0], 4);
  assert_int_equal(s.victims[1], 1);
  s.waiting[0].pages = 11;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 3);
  s.waiting[0].pages = 16; /* more than all of them have */
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0);
  s.waiting[0].pages = 1;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0);
  assert_int_equal(s.decision.admit_count, 1);
  s.waiting[0].refused = true; /* the cache said no to as few: somebody has to go */
  admit(&s);
  assert_int_equal(s.decision.victim_count, 1);
  s.snapshot.pages_coming = 1;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0);
  s.snapshot.pages_coming = 0;
  s.waiting[0].follow_ticks = 0; /* it waits for another anyway */
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0);
}

/* As many as can run, and somebody who needs almost all they have, or more: each is chosen once and in order, and
 * choosing does not take the square of a square of them (a second for the lot: it takes some 10 ms). */
static void a_crowd_gives_way_in_order(void **unused) {
  (void)unused;
  enum { CROWD = 4096, ROUNDS = 8 };
  struct scene s;
  scene_init(&s);
  struct quire_sched_running *running = calloc(CROWD, sizeof *running);
  int32_t *victims = calloc(CROWD, sizeof *victims);
  assert_true(running != NULL && victims != NULL);
  for (int32_t i = 0; i < CROWD; i++) { /* orders 1 to CROWD, each once */
    running[i] = (struct quire_sched_running){
        .order = (uint64_t)(i * 1597 % CROWD) + 1, .state = QUIRE_SCHED_DECODE, .pages = 4};
  }
  s.snapshot.running = running;
  s.snapshot.running_count = CROWD;
  s.snapshot.pages_available = 0;
  s.decision.victims = victims;
  s.limits.running_max = CROWD;
  s.limits.yield_margin = 1;
  struct quire_sched_waiting *w = wait_for(&s, 10, 4 * (CROWD - 96));
  w->priority = 1;
  clock_t begin = clock();
  for (int32_t round = 0; round < ROUNDS; round++) {
    w->pages = 4 * (CROWD - 96);
    admit(&s);
    assert_in_range(s.decision.victim_count, CROWD - 96, CROWD);
    for (int32_t i = 0; i < s.decision.victim_count; i++) {
      assert_int_equal(running[victims[i]].order, CROWD - i);
    }
    w->pages = 4 * CROWD + 1;
    admit(&s);
    assert_int_equal(s.decision.victim_count, 0);
  }
  assert_true(clock() - begin < (clock_t)(ROUNDS * CLOCKS_PER_SEC));
  free(victims);
  free(running);
}

static void nobody_gives_way_for_pages_that_come(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  run(&s, QUIRE_SCHED_DECODE, 0);
  run(&s, QUIRE_SCHED_DECODE, 0)->flags = QUIRE_SCHED_NEEDS_PAGE;
  s.snapshot.pages_available = 0;
  s.snapshot.pages_coming = 1;
  s.snapshot.squeezed = true;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 0);
  s.snapshot.pages_coming = 0;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 1);
}

/* However little there is, the first in order stays. */
static void the_first_in_order_is_never_preempted(void **unused) {
  (void)unused;
  struct scene s;
  scene_init(&s);
  for (int i = 0; i < 20; i++) {
    struct quire_sched_running *r = run(&s, QUIRE_SCHED_DECODE, 0);
    r->flags = QUIRE_SCHED_NEEDS_PAGE;
    r->pages = 0;
    r->priority = i == 7;
  }
  s.snapshot.pages_available = 0;
  admit(&s);
  assert_int_equal(s.decision.victim_count, 19);
  for (int32_t i = 0; i < 19; i++) {
    assert_int_not_equal(s.victims[i], 7);
  }
  assert_int_equal(s.victims[0], 19);
  assert_int_equal(s.victims[18], 0);
}

static void states_have_names_and_ends(void **unused) {
  (void)unused;
  for (int state = 0; state < QUIRE_SCHED_STATES; state++) {
    assert_true(strlen(quire_sched_state_name((enum quire_sched_state)state)) > 0);
    assert_false(quire_sched_can((enum quire_sched_state)state, (enum quire_sched_state)state));
    assert_true(state == QUIRE_SCHED_FREE || quire_sched_can((enum quire_sched_state)state, QUIRE_SCHED_FREE));
  }
  assert_false(quire_sched_can(QUIRE_SCHED_DRAIN, QUIRE_SCHED_WAITING));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everybody_decodes),
      cmocka_unit_test(a_prompt_alone_gets_the_chunk),
      cmocka_unit_test(a_short_prompt_does_not_wait),
      cmocka_unit_test(the_first_in_order_never_starves),
      cmocka_unit_test(prefixes_fit_the_gather),
      cmocka_unit_test(rows_add_up),
      cmocka_unit_test(they_enter_in_order),
      cmocka_unit_test(a_page_is_kept_for_each_that_decodes),
      cmocka_unit_test(short_ones_pass_a_few_times),
      cmocka_unit_test(long_ones_compute_few_at_a_time),
      cmocka_unit_test(a_follower_waits_within_bounds),
      cmocka_unit_test(the_last_in_order_gives_way),
      cmocka_unit_test(who_stands_still_gives_way),
      cmocka_unit_test(who_matters_more_takes_the_place),
      cmocka_unit_test(a_crowd_gives_way_in_order),
      cmocka_unit_test(nobody_gives_way_for_pages_that_come),
      cmocka_unit_test(the_first_in_order_is_never_preempted),
      cmocka_unit_test(states_have_names_and_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
