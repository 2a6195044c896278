/* Sampling against an oracle that sorts, and its distribution against the softmax. */
#include <math.h>

#include "kernel_oracle.h"

static struct test_world world;
static struct test_random rng;

static double gumbel(uint64_t seed, int32_t position, int32_t id) {
  uint32_t c[4] = {(uint32_t)id / 4, (uint32_t)position, 0, 0x51756972u};
  quire_philox_block(c, (uint32_t)seed, (uint32_t)(seed >> 32));
  return -quire_log(-quire_log(((double)c[id % 4] + 0.5) * 0x1p-32));
}

struct ranked {
  float z;
  int32_t id;
};

static int by_rank(const void *a, const void *b) {
  const struct ranked *x = a;
  const struct ranked *y = b;
  if (x->z != y->z) {
    return x->z > y->z ? -1 : 1;
  }
  return x->id - y->id;
}

static uint64_t weight_of(float z, float zmax) { return (uint64_t)(quire_exp(z - zmax) * 0x1p40f); }

/* Ids of the sorted list that stay. */
static int32_t oracle_kept(const struct ranked *list, int32_t vocab, const struct quire_sampling *s) {
  int32_t kept = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
  uint64_t total = 0;
  uint64_t before = 0;
  if (!(s->top_p < 1.0f)) {
    return kept;
  }
  for (int32_t i = 0; i < kept; i++) {
    total += weight_of(list[i].z, list[0].z);
  }
  uint64_t target = (uint64_t)((double)s->top_p * (double)total);
  for (int32_t i = 0; i < kept; i++) {
    if (i > 0 && before >= target) {
      return i;
    }
    before += weight_of(list[i].z, list[0].z);
  }
  return kept;
}

static int32_t oracle_draw(const float *logits, int32_t vocab, const struct quire_sampling *s, int32_t position) {
  struct ranked *list = test_alloc(vocab * (int64_t)sizeof *list);
  for (int32_t id = 0; id < vocab; id++) {
    float z = s->temperature > 0.0f ? logits[id] / s->temperature : logits[id];
    list[id] = (struct ranked){z == z ? z : -INFINITY, id};
  }
  qsort(list, (size_t)vocab, sizeof *list, by_rank);
  int32_t token = list[0].z == -INFINITY ? 0 : list[0].id;
  if (s->temperature > 0.0f && list[0].z > -INFINITY) {
    int32_t kept = oracle_kept(list, vocab, s);
    double best = -INFINITY;
    for (int32_t i = 0; i < kept; i++) {
      double value = (double)list[i].z + gumbel(s->seed, position, list[i].id);
      if (value > best || (value == best && list[i].id < token)) {
        best = value;
        token = list[i].id;
      }
    }
  }
  free(list);
  return token;
}

static float oracle_logprob(const float *logits, int32_t vocab, int32_t token) {
  float max = -INFINITY;
  float *e = test_alloc(vocab * 4);
  for (int32_t i = 0; i < vocab; i++) {
    max = logits[i] > max ? logits[i] : max;
  }
  for (int32_t i = 0; i < vocab; i++) {
    e[i] = quire_exp((logits[i] == logits[i] ? logits[i] : -INFINITY) - max);
  }
  float lse = (float)((double)max + quire_log((double)oracle_sum(e, vocab)));
  free(e);
  return max > -INFINITY ? logits[token] - lse : -INFINITY;
}

static void logits_make(float *logits, int32_t vocab, int kind) {
  test_fill(&rng, logits, vocab, kind % 2 ? 1.0f : 4.0f);
  for (int32_t i = 0; i < vocab && kind % 5 == 0; i++) {
    logits[i] = (float)test_between(&rng, -2, 2); /* ties */
  }
  if (kind % 7 == 0) {
    logits[test_between(&rng, 0, vocab - 1)] = NAN;
    logits[test_between(&rng, 0, vocab - 1)] = -INFINITY;
  }
}

static void test_draw(void **state) {
  static const int32_t vocabs[] = {1, 2, 15, 16, 100, 512, 1003};
  static const float temperatures[] = {0.0f, 1.0f, 0.6f, 2.0f, 1e-3f};
  (void)state;
  for (int i = 0; i < 300; i++) {
    int32_t vocab = vocabs[i % 7];
    int32_t m = test_between(&rng, 0, 5);
    int64_t ld = vocab + test_between(&rng, 0, 3);
    float *logits = test_poisoned((int64_t)(m + 1) * ld * 4);
    struct quire_sampling sampling[5];
    int32_t positions[5];
    int32_t tokens[5];
    float logprobs[5];
    for (int64_t r = 0; r < m; r++) {
      logits_make(logits + r * ld, vocab, i);
      positions[r] = test_between(&rng, 0, 1 << 20);
      sampling[r] = (struct quire_sampling){
          .temperature = temperatures[test_between(&rng, 0, 4)],
          .top_p = test_between(&rng, 0, 2) ? (float)test_between(&rng, 0, 100) * 0.01f : 1.0f,
          .top_k = test_between(&rng, 0, 2) ? test_between(&rng, 1, 2 * vocab) : 0,
          .seed = test_next(&rng),
      };
    }
    int threads = i % 3 + 1;
    uint8_t *scratch = test_poisoned(quire_sample_scratch_bytes(vocab, threads));
    struct quire_sample op = {.logits = logits,
                              .sampling = sampling,
                              .positions = positions,
                              .tokens_out = tokens,
                              .logprobs_out = i % 4 ? logprobs : NULL,
                              .scratch = scratch,
                              .m = m,
                              .vocab = vocab,
                              .logits_ld = ld};
    world.kernels[i % world.kernel_count]->sample(world.stream[threads - 1], op);
    for (int64_t r = 0; r < m; r++) {
      assert_int_equal(tokens[r], oracle_draw(logits + r * ld, vocab, &sampling[r], positions[r]));
      float want = oracle_logprob(logits + r * ld, vocab, tokens[r]);
      assert_true(i % 4 == 0 || logits[r * ld + tokens[r]] != logits[r * ld + tokens[r]] ||
                  test_same(logprobs[r], want));
    }
    free(logits);
    free(scratch);
  }
}

/* Draws over many positions follow the softmax: chi-squared of 9 classes. */
static void test_distribution(void **state) {
  enum { VOCAB = 9, DRAWS = 20000 };
  (void)state;
  float logits[VOCAB];
  double p[VOCAB];
  double sum = 0;
  int64_t seen[VOCAB] = {0};
  int32_t token;
  uint8_t *scratch = test_alloc(quire_sample_scratch_bytes(VOCAB, 1));
  struct quire_sampling sampling = {.temperature = 0.8f, .top_p = 1.0f, .seed = 12345};
  test_fill(&rng, logits, VOCAB, 0.8f);
  for (int i = 0; i < VOCAB; i++) {
    p[i] = exp((double)logits[i] / 0.8);
    sum += p[i];
  }
  for (int32_t position = 0; position < DRAWS; position++) {
    world.kernels[0]->sample(world.stream[0], (struct quire_sample){.logits = logits,
                                                                    .sampling = &sampling,
                                                                    .positions = &position,
                                                                    .tokens_out = &token,
                                                                    .scratch = scratch,
                                                                    .m = 1,
                                                                    .vocab = VOCAB,
                                                                    .logits_ld = VOCAB});
    seen[token]++;
  }
  double chi = 0;
  for (int i = 0; i < VOCAB; i++) {
    double want = p[i] / sum * DRAWS;
    chi += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
  }
  assert_true(chi < 27.0); /* 8 degrees of freedom: 1 in 1,000 */
  free(scratch);
}

static void test_nothing(void **state) {
  (void)state;
  float logits[20];
  int32_t token = -5;
  int32_t position = 3;
  float logprob = 0;
  for (int i = 0; i < 20; i++) {
    logits[i] = i % 2 ? NAN : -INFINITY;
  }
  uint8_t *scratch = test_alloc(quire_sample_scratch_bytes(20, 1));
  for (int i = 0; i < 2; i++) {
    struct quire_sampling sampling = {.temperature = (float)i, .top_p = 0.5f, .top_k = 3};
    struct quire_sample op = {.logits = logits,
                              .sampling = &sampling,
                              .positions = &position,
                              .tokens_out = &token,
                              .logprobs_out = &logprob,
                              .scratch = scratch,
                              .m = 1,
                              .vocab = 20,
                              .logits_ld = 20};
    world.kernels[0]->sample(world.stream[0], op);
    assert_int_equal(token, 0);
    assert_true(logprob == -INFINITY);
  }
  free(scratch);
}

static void test_score(void **state) {
  (void)state;
  for (int i = 0; i < 40; i++) {
    int32_t vocab = test_between(&rng, 1, 300);
    float *logits = test_alloc(6 * (int64_t)vocab * 4);
    int32_t targets[6];
    int32_t argmax[6];
    float logprobs[6];
    for (int r = 0; r < 6; r++) {
      logits_make(logits + (int64_t)r * vocab, vocab, i % 7 ? i : 1);
      targets[r] = test_between(&rng, -1, vocab - 1);
    }
    struct quire_score op = {.logits = logits,
                             .targets = targets,
                             .logprobs_out = logprobs,
                             .argmax_out = argmax,
                             .m = 6,
                             .vocab = vocab,
                             .logits_ld = vocab};
    world.kernels[i % world.kernel_count]->score(world.stream[i % 3], op);
    for (int r = 0; r < 6; r++) {
      const struct quire_sampling greedy = {.temperature = 0.0f, .top_p = 1.0f};
      const float *row = logits + (int64_t)r * vocab;
      float want = targets[r] < 0 ? 0.0f : oracle_logprob(row, vocab, targets[r]);
      assert_true(test_same(logprobs[r], want));
      assert_int_equal(argmax[r], oracle_draw(row, vocab, &greedy, 0));
    }
    free(logits);
  }
}

static int set_up(void **state) {
  (void)state;
  rng.state = test_seed("test_sample");
  test_world_open(&world);
  quire_kernels_enter();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  test_world_close(&world);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_draw),
      cmocka_unit_test(test_distribution),
      cmocka_unit_test(test_nothing),
      cmocka_unit_test(test_score),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
