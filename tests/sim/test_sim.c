// ctest: timeout=120
/* The engine over the simulator, from fixed seeds: every law at every tick, every token (support/sim_life.h). The table
 * of states is walked: every way it has is taken, and none other. QUIRE_TEST_SEED begins elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/seed.h"
#include "support/sim_engine.h"
#include "support/sim_life.h"

#define LIVES 40
#define TICKS 6000

static uint32_t ways[QUIRE_SCHED_STATES];

static void add(struct sim_life_result *sum, const struct sim_life_result *one) {
  sum->requests += one->requests;
  sum->tokens += one->tokens;
  sum->preempted += one->preempted;
  sum->cancelled += one->cancelled;
  sum->failed += one->failed;
  sum->cached += one->cached;
  for (int i = 0; i < QUIRE_SCHED_STATES; i++) {
    ways[i] |= one->ways[i];
  }
}

static void lives(const char *name, bool faults, bool tight) {
  uint64_t seed = test_seed(name);
  struct sim_life_result sum = {0}, one;
  for (int i = 0; i < LIVES; i++) {
    struct sim_life_options options = {quire_splitmix64(&seed), TICKS, faults, tight};
    sim_life_run(&options, &one);
    add(&sum, &one);
  }
  printf("%s: %lld requests, %lld tokens drawn, %lld cached, %lld preempted, %lld cancelled, %lld failed\n", name,
         (long long)sum.requests, (long long)sum.tokens, (long long)sum.cached, (long long)sum.preempted,
         (long long)sum.cancelled, (long long)sum.failed);
  assert_true(sum.requests > LIVES && sum.tokens > 0 && sum.cached > 0 && sum.preempted > 0 && sum.cancelled > 0);
}

static void without_faults(void **unused) {
  (void)unused;
  lives("without_faults", false, false);
}

static void with_faults(void **unused) {
  (void)unused;
  lives("with_faults", true, false);
}

/* A pool of 1.1 times the largest request: somebody draws in every window of 1,000 ticks. */
static void in_a_tight_pool(void **unused) {
  (void)unused;
  lives("in_a_tight_pool", false, true);
}

static void a_seed_is_a_life(void **unused) {
  (void)unused;
  for (uint64_t seed = 1; seed <= 3; seed++) {
    struct sim_life_options options = {seed, 800, true, false};
    struct sim_life_result first, second;
    sim_life_run(&options, &first);
    sim_life_run(&options, &second);
    assert_true(quire_hash128_equal(first.digest, second.digest));
    options.seed += 100;
    sim_life_run(&options, &second);
    assert_false(quire_hash128_equal(first.digest, second.digest));
  }
}

static void every_way_is_taken(void **unused) {
  (void)unused;
  for (int from = 0; from < QUIRE_SCHED_STATES; from++) {
    for (int to = 0; to < QUIRE_SCHED_STATES; to++) {
      bool can = quire_sched_can((enum quire_sched_state)from, (enum quire_sched_state)to);
      if (can != ((ways[from] >> to & 1) != 0)) {
        fail_msg("%s to %s", quire_sched_state_name((enum quire_sched_state)from),
                 quire_sched_state_name((enum quire_sched_state)to));
      }
    }
  }
}

/* A request stands still with its pages, and others need them: it gives way, and they come to their ends. */
static void who_stands_still_gives_way(void **unused) {
  (void)unused;
  uint64_t seed = test_seed("who_stands_still_gives_way");
  for (int round = 0; round < 400; round++) {
    struct sim_engine s;
    sim_engine_defaults(&s);
    int32_t count = 1 + (int32_t)quire_splitmix64_below(&seed, 600), tokens[600];
    int32_t pages = (count + 4 + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS + 5;
    static const int32_t chunks[] = {64, 100, 512, 700};
    s.config.ranks = 1 << quire_splitmix64_below(&seed, 3);
    s.config.view = s.config.ranks == 1 ? QUIRE_VIEW_LOCAL : QUIRE_VIEW_PEER;
    s.config.chunk_tokens = chunks[quire_splitmix64_below(&seed, 4)];
    s.config.ctx_tokens = count + 4 > 152 ? count + 4 : 152;
    s.config.cache_tokens = pages * QUIRE_PAGE_TOKENS;
    s.config.running_max = 8;
    s.config.queue_max = 8;
    s.config.headroom_tokens = 1;
    s.config.poison = quire_splitmix64_below(&seed, 2) == 0;
    sim_engine_open(&s);
    uint64_t first = 0, other = 0;
    sim_prompt(1, 600, 1, count, tokens);
    struct quire_engine_request request = {.tokens = tokens, .count = count, .new_max = 4, .hold = true};
    if (quire_splitmix64_below(&seed, 2) == 0) {
      assert_int_equal(quire_engine_start(s.engine, &request, NULL, NULL), QUIRE_OK);
      struct quire_engine_event event = {0};
      assert_int_equal(quire_engine_step(s.engine, &event, NULL), QUIRE_OK);
      quire_engine_finish(s.engine);
    }
    assert_int_equal(quire_engine_submit(s.engine, &request, &first, NULL), QUIRE_OK);
    for (uint64_t i = quire_splitmix64_below(&seed, 4) + 1; i > 0; i--) {
      assert_int_equal(quire_engine_tick(s.engine, 0, NULL), QUIRE_OK);
    }
    quire_engine_pause(s.engine, first, true);
    for (uint64_t i = 0; i < 7; i++) {
      sim_prompt(1, i % 2 == 0 ? 60 : 0, i, 62, tokens);
      request = (struct quire_engine_request){.tokens = tokens, .count = 62, .new_max = 5, .priority = 1};
      assert_int_equal(quire_engine_submit(s.engine, &request, &other, NULL), QUIRE_OK);
    }
    int32_t done = 0;
    struct quire_engine_event event;
    for (int32_t tick = 0; done < 7; tick++) {
      assert_int_equal(quire_engine_tick(s.engine, 0, NULL), QUIRE_OK);
      assert_true(quire_engine_check_laws(s.engine, NULL));
      while (quire_engine_poll(s.engine, &event, 1) == 1) {
        done += event.id != first && event.kind == QUIRE_EVENT_DONE;
      }
      if (tick == 2000) {
        fail_msg("round %d: %d tokens, chunk %d, %d ranks: nobody gives way", round, count, s.config.chunk_tokens,
                 s.config.ranks);
      }
    }
    sim_engine_close(&s);
  }
}

/* Tokens of the first request into drawn_out[200]; the second comes after 50 ticks. Returns the ticks it took. */
static int32_t run_two(const struct quire_engine_config *config, bool both, int32_t *drawn_out) {
  struct sim_engine s;
  sim_engine_defaults(&s);
  s.config.ctx_tokens = 400;
  s.config.cache_tokens = 4096;
  s.config.running_max = config->running_max;
  s.config.yield_margin = config->yield_margin;
  s.config.queue_max = 2;
  sim_engine_open(&s);
  int32_t tokens[150], count = 0, second_took = -1;
  uint64_t ids[2] = {0, 0};
  sim_prompt(1, 0, 1, 150, tokens);
  struct quire_engine_request request = {.tokens = tokens, .count = 150, .new_max = 200, .sampling = {.seed = 5}};
  assert_int_equal(quire_engine_submit(s.engine, &request, &ids[0], NULL), QUIRE_OK);
  struct quire_engine_event event = {0};
  for (int32_t tick = 0; count < 200 || (both && second_took < 0); tick++) {
    assert_true(tick < 2000);
    if (both && tick == 50) {
      sim_prompt(1, 0, 2, 70, tokens);
      request = (struct quire_engine_request){.tokens = tokens, .count = 70, .new_max = 5, .priority = 10};
      assert_int_equal(quire_engine_submit(s.engine, &request, &ids[1], NULL), QUIRE_OK);
    }
    assert_int_equal(quire_engine_tick(s.engine, 0, NULL), QUIRE_OK);
    assert_true(quire_engine_check_laws(s.engine, NULL));
    while (quire_engine_poll(s.engine, &event, 1) == 1) {
      if (event.id == ids[0] && event.kind == QUIRE_EVENT_TOKEN) {
        drawn_out[count++] = event.token;
      }
      second_took = event.id == ids[1] && event.kind == QUIRE_EVENT_DONE ? tick - 50 : second_took;
    }
  }
  sim_engine_close(&s);
  return second_took;
}

/* One place, and somebody in it: who matters more by the margin comes to its end at once, and the other draws what it
 * draws alone. */
static void who_matters_more_does_not_wait(void **unused) {
  (void)unused;
  int32_t alone[200], drawn[200];
  run_two(&(struct quire_engine_config){.running_max = 1, .yield_margin = 10}, false, alone);
  for (int32_t margin = 9; margin <= 11; margin++) {
    struct quire_engine_config config = {.running_max = 1, .yield_margin = margin};
    int32_t took = run_two(&config, true, drawn);
    assert_int_equal(took < 20, margin <= 10);
    assert_memory_equal(drawn, alone, sizeof drawn);
  }
}

/* A prompt that is cached is computed once more, for its log-probabilities, in a pool that cannot hold it twice. */
static void a_prompt_is_there_twice(void **unused) {
  (void)unused;
  enum { PROMPT = 13 * QUIRE_PAGE_TOKENS };
  static int32_t tokens[PROMPT];
  sim_prompt(1, 0, 1, PROMPT, tokens);
  for (int variant = 0; variant < 4; variant++) {
    struct sim_engine s;
    sim_engine_defaults(&s);
    s.config.ranks = variant % 2 == 0 ? 1 : 2;
    s.config.view = s.config.ranks == 1 ? QUIRE_VIEW_LOCAL : QUIRE_VIEW_PEER;
    s.config.poison = variant >= 2;
    s.config.ctx_tokens = PROMPT + 300;
    s.config.cache_tokens = 24 * QUIRE_PAGE_TOKENS;
    sim_engine_open(&s);
    for (int i = 0; i < 2; i++) {
      struct quire_engine_request request = {
          .tokens = tokens, .count = PROMPT, .new_max = i == 0 ? 1 : 300, .no_match = i == 1};
      struct quire_engine_event event = {0};
      uint64_t id;
      assert_int_equal(quire_engine_submit(s.engine, &request, &id, NULL), QUIRE_OK);
      for (int tick = 0; tick < 1000 && event.kind != QUIRE_EVENT_DONE; tick++) {
        assert_int_equal(quire_engine_tick(s.engine, 0, NULL), QUIRE_OK);
        assert_true(quire_engine_check_laws(s.engine, NULL));
        while (quire_engine_poll(s.engine, &event, 1) == 1) {
          assert_int_not_equal(event.kind, QUIRE_EVENT_FAILED);
        }
      }
      assert_int_equal(event.kind, QUIRE_EVENT_DONE);
    }
    sim_engine_close(&s);
  }
}

/* One step in twenty has a row that is not finite: no answer of 400 tokens comes to its end, wherever in a page it
 * is. */
static void a_row_that_is_not_finite_ends_its_request(void **unused) {
  (void)unused;
  uint64_t seed = test_seed("a_row_that_is_not_finite_ends_its_request");
  for (int round = 0; round < 20; round++) {
    struct sim_engine s;
    sim_engine_defaults(&s);
    s.sim.seed = quire_splitmix64(&seed);
    s.sim.nonfinite_per_million = 50000;
    sim_engine_open(&s);
    int32_t tokens[10];
    uint64_t id;
    sim_prompt(1, 0, 1, 10, tokens);
    struct quire_engine_request request = {.tokens = tokens, .count = 10, .new_max = 400};
    struct quire_engine_event event = {0};
    assert_int_equal(quire_engine_submit(s.engine, &request, &id, NULL), QUIRE_OK);
    for (int tick = 0; tick < 500 && event.kind != QUIRE_EVENT_DONE && event.kind != QUIRE_EVENT_FAILED; tick++) {
      assert_int_equal(quire_engine_tick(s.engine, 0, NULL), QUIRE_OK);
      assert_true(quire_engine_check_laws(s.engine, NULL));
      while (quire_engine_poll(s.engine, &event, 1) == 1) {
      }
    }
    assert_int_equal(event.kind, QUIRE_EVENT_FAILED);
    assert_int_equal(event.status, QUIRE_ERR_NONFINITE);
    sim_engine_close(&s);
  }
}

/* A step fails in the middle of everybody's answers: each hears of it once, nothing of the plan stays, and the laws
 * hold for the one that is held still. */
static void a_step_that_fails_ends_all(void **unused) {
  (void)unused;
  enum { REQUESTS = 6 };
  for (uint64_t epoch = 2; epoch < 100; epoch += 3) {
    struct sim_engine s;
    sim_engine_defaults(&s);
    s.sim.fail_epoch = epoch;
    sim_engine_open(&s);
    int32_t tokens[80], ends[REQUESTS] = {0}, failed = 0;
    uint64_t ids[REQUESTS];
    for (int32_t i = 0; i < REQUESTS; i++) {
      sim_prompt(1, 64, (uint64_t)i, 80, tokens);
      struct quire_engine_request request = {.tokens = tokens, .count = 70 + i, .tag = (uint64_t)i, .hold = i == 0};
      request.new_max = i == 0 ? 3 : 200;
      assert_int_equal(quire_engine_submit(s.engine, &request, &ids[i], NULL), QUIRE_OK);
    }
    enum quire_status status = QUIRE_OK;
    for (int tick = 0; tick < 200 && status == QUIRE_OK; tick++) {
      quire_engine_pause(s.engine, ids[1], tick % 9 > 5);
      status = quire_engine_tick(s.engine, 0, NULL);
      assert_true(quire_engine_check_laws(s.engine, NULL));
      struct quire_engine_event event;
      while (quire_engine_poll(s.engine, &event, 1) == 1) {
        assert_int_equal(ends[event.tag], 0);
        ends[event.tag] = event.kind == QUIRE_EVENT_DONE || event.kind == QUIRE_EVENT_FAILED;
        failed += event.kind == QUIRE_EVENT_FAILED && event.status == QUIRE_ERR_RANK;
      }
    }
    assert_int_equal(status, QUIRE_ERR_RANK);
    bool held = quire_engine_cancel(s.engine, ids[0]);
    assert_int_equal(failed, REQUESTS - held);
    assert_true(quire_engine_check_laws(s.engine, NULL));
    assert_int_equal(quire_engine_tick(s.engine, 0, NULL), QUIRE_ERR_RANK);
    assert_int_equal(quire_engine_active(s.engine), 0);
    sim_engine_close(&s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_faults),
      cmocka_unit_test(with_faults),
      cmocka_unit_test(in_a_tight_pool),
      cmocka_unit_test(a_seed_is_a_life),
      cmocka_unit_test(every_way_is_taken),
      cmocka_unit_test(who_stands_still_gives_way),
      cmocka_unit_test(a_prompt_is_there_twice),
      cmocka_unit_test(who_matters_more_does_not_wait),
      cmocka_unit_test(a_row_that_is_not_finite_ends_its_request),
      cmocka_unit_test(a_step_that_fails_ends_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
