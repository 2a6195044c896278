/* Sampling against an oracle that sorts, and its distribution against the softmax. */
#include <math.h>

#include "kernel_main.h"

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

/* How many of the sorted list top-k and top-p leave. */
static int32_t oracle_kept(const struct ranked *list, int32_t vocab, const struct quire_draw *d) {
  int32_t kept = d->top_k > 0 && d->top_k < vocab ? d->top_k : vocab;
  uint64_t total = 0;
  uint64_t before = 0;
  if (!(d->top_p < 1.0f)) {
    return kept;
  }
  for (int32_t i = 0; i < kept; i++) {
    total += weight_of(list[i].z, list[0].z);
  }
  uint64_t target = (uint64_t)((double)d->top_p * (double)total);
  for (int32_t i = 0; i < kept; i++) {
    if (i > 0 && before >= target) {
      return i;
    }
    before += weight_of(list[i].z, list[0].z);
  }
  return kept;
}

/* A request's token list, and the logits of a row with its penalties and biases. */
struct list {
  int32_t token[64];
  int32_t count, prompt_end, counted; /* counted: what quire_count has; the rest are extra */
};

static float oracle_adjusted(float y, int32_t id, const struct list *list, const struct quire_draw *d) {
  int32_t times = 0;
  bool seen = false;
  for (int32_t i = 0; d->counts != NULL && i < list->count; i++) {
    if (list->token[i] == id) {
      seen = true;
      times += i >= list->prompt_end;
    }
  }
  if (seen) {
    y = y > 0.0f ? y / d->repetition_penalty : y * d->repetition_penalty;
  }
  if (times > 0) {
    float share = d->frequency_penalty * (float)times;
    y -= share;
    y -= d->presence_penalty;
  }
  for (int32_t i = 0; i < d->bias_count; i++) {
    y += d->bias[i].token == id ? d->bias[i].value : 0.0f;
  }
  return y;
}

static int32_t oracle_draw(const float *logits, int32_t vocab, const struct list *tokens, const struct quire_draw *d) {
  struct ranked *list = test_alloc(vocab * (int64_t)sizeof *list);
  bool greedy = !(d->temperature >= 1e-5f);
  for (int32_t id = 0; id < vocab; id++) {
    float z = oracle_adjusted(logits[id], id, tokens, d);
    z = greedy ? z : z * (1.0f / d->temperature);
    list[id] = (struct ranked){z == z ? z : -INFINITY, id};
  }
  qsort(list, (size_t)vocab, sizeof *list, by_rank);
  int32_t token = list[0].z == -INFINITY ? 0 : list[0].id;
  if (!greedy && list[0].z > -INFINITY && list[0].z < INFINITY) {
    int32_t kept = oracle_kept(list, vocab, d);
    float floor = d->min_p > 0.0f ? (float)((double)list[0].z + quire_log((double)d->min_p)) : -INFINITY;
    double best = -INFINITY;
    for (int32_t i = 0; i < kept; i++) {
      double value = (double)list[i].z + gumbel(d->seed, d->position, list[i].id);
      if (list[i].z >= floor && (value > best || (value == best && list[i].id < token))) {
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
  return max > -INFINITY && logits[token] == logits[token] ? logits[token] - lse : -INFINITY;
}

/* The k likeliest, by sorting all. */
static void oracle_tops(const float *logits, int32_t vocab, int32_t k, struct quire_top *top) {
  struct ranked *list = test_alloc(vocab * (int64_t)sizeof *list);
  for (int32_t id = 0; id < vocab; id++) {
    list[id] = (struct ranked){logits[id] == logits[id] ? logits[id] : -INFINITY, id};
  }
  qsort(list, (size_t)vocab, sizeof *list, by_rank);
  for (int32_t i = 0; i < k; i++) {
    bool none = i >= vocab || list[i].z == -INFINITY;
    top[i] =
        none ? (struct quire_top){-1, 0.0f} : (struct quire_top){list[i].id, oracle_logprob(logits, vocab, list[i].id)};
  }
  free(list);
}

static void expect_tops(const float *logits, int32_t vocab, int32_t k, const struct quire_top *got) {
  struct quire_top want[QUIRE_TOP_LOGPROBS_MAX];
  oracle_tops(logits, vocab, k, want);
  for (int32_t i = 0; i < k; i++) {
    if (got[i].token != want[i].token || !test_same(got[i].logprob, want[i].logprob)) {
      fail_msg("top %d of %d: %d %a, expected %d %a", i, k, got[i].token, (double)got[i].logprob, want[i].token,
               (double)want[i].logprob);
    }
  }
}

/* Rows as models make them, and as they do not: flat, with ties, peaked, without numbers. */
static void logits_make(float *logits, int32_t vocab, int kind) {
  static const float spreads[] = {1.0f, 4.0f, 0.1f, 12.0f};
  test_fill(&rng, logits, vocab, spreads[kind % 4]);
  for (int32_t i = 0; i < vocab && kind % 5 == 0; i++) {
    logits[i] = (float)test_between(&rng, -2, 2); /* ties */
  }
  for (int32_t i = 0; i < 20 && kind % 3 == 0; i++) {
    logits[test_between(&rng, 0, vocab - 1)] += 10.0f; /* some stand out */
  }
  if (kind % 7 == 0) {
    logits[test_between(&rng, 0, vocab - 1)] = NAN;
    logits[test_between(&rng, 0, vocab - 1)] = -INFINITY;
  }
}

static float sometimes(float value) { return test_between(&rng, 0, 1) ? value : 0.0f; }

#define ROWS_MAX 5
#define BIASES 4

/* One operation with everything random; what belongs to a row lies at its index. */
struct batch {
  int32_t m, vocab, threads;
  int64_t ld;
  float *logits;
  uint16_t *counts; /* [m][vocab] */
  struct list list[ROWS_MAX];
  struct quire_draw draw[ROWS_MAX];
  struct quire_bias bias[ROWS_MAX][BIASES];
  struct quire_top top[ROWS_MAX][QUIRE_TOP_LOGPROBS_MAX];
  int32_t token[ROWS_MAX];
  float logprob[ROWS_MAX];
};

/* A list of few different tokens, so that they repeat, counted in pieces. */
static void list_make(struct batch *b, int32_t row, const struct quire_kernels *kernels) {
  struct list *list = &b->list[row];
  uint16_t *counts = b->counts + (int64_t)row * b->vocab;
  list->count = test_between(&rng, 0, 64);
  list->prompt_end = test_between(&rng, 0, list->count);
  int32_t extra = list->count - list->prompt_end;
  list->counted = list->count - test_between(&rng, 0, extra < 3 ? extra : 3);
  for (int32_t i = 0; i < list->count; i++) {
    list->token[i] = test_between(&rng, 0, b->vocab < 12 ? b->vocab - 1 : 11) * (b->vocab > 1000 ? 80 : 1);
  }
  int32_t middle = test_between(&rng, 0, list->counted);
  struct quire_count_job jobs[2] = {{counts, list->token, 0, middle, list->prompt_end, true},
                                    {counts, list->token + middle, middle, list->counted, list->prompt_end, false}};
  kernels->count(world.stream[0], (struct quire_count){&jobs[0], 1, b->vocab});
  kernels->count(world.stream[1], (struct quire_count){&jobs[1], 1, b->vocab});
}

static void row_make(struct batch *b, int32_t row, const struct quire_kernels *kernels, int kind) {
  static const float temperatures[] = {0.0f, 1.0f, 0.6f, 2.0f, 1e-3f, 1e-6f, 30.0f};
  logits_make(b->logits + row * b->ld, b->vocab, kind);
  list_make(b, row, kernels);
  bool penalised = test_between(&rng, 0, 1);
  b->draw[row] = (struct quire_draw){
      .seed = test_next(&rng),
      .position = test_between(&rng, 0, 1 << 20),
      .temperature = temperatures[test_between(&rng, 0, 6)],
      .top_p = test_between(&rng, 0, 2) ? (float)test_between(&rng, 0, 100) * 0.01f : 1.0f,
      .min_p = sometimes((float)test_between(&rng, 0, 100) * 0.01f),
      .top_k = test_between(&rng, 0, 2) ? test_between(&rng, 1, 2 * b->vocab) : 0,
      .presence_penalty = sometimes((float)test_between(&rng, -20, 20) * 0.1f),
      .frequency_penalty = sometimes((float)test_between(&rng, -20, 20) * 0.1f),
      .repetition_penalty = test_between(&rng, 0, 1) ? (float)test_between(&rng, 1, 40) * 0.05f : 1.0f,
      .counts = penalised ? b->counts + (int64_t)row * b->vocab : NULL,
      .extra = b->list[row].token + b->list[row].counted,
      .extra_count = penalised ? b->list[row].count - b->list[row].counted : 0,
      .bias = b->bias[row],
      .bias_count = test_between(&rng, 0, BIASES),
      .tops_out = b->top[row],
      .top_count = test_between(&rng, 0, 1) ? test_between(&rng, 0, QUIRE_TOP_LOGPROBS_MAX) : 0,
      .logprob = test_between(&rng, 0, 3) > 0,
  };
  for (int i = 0; i < BIASES; i++) {
    float value = test_between(&rng, 0, 3) ? (float)test_between(&rng, -100, 100) * 0.1f : quire_bias_forbids();
    b->bias[row][i] = (struct quire_bias){test_between(&rng, 0, b->vocab - 1), value};
  }
}

static void batch_check(const struct batch *b) {
  for (int32_t r = 0; r < b->m; r++) {
    const float *row = b->logits + r * b->ld;
    assert_int_equal(b->token[r], oracle_draw(row, b->vocab, &b->list[r], &b->draw[r]));
    float want = b->draw[r].logprob ? oracle_logprob(row, b->vocab, b->token[r]) : 0.0f;
    assert_true(test_same(b->logprob[r], want));
    expect_tops(row, b->vocab, b->draw[r].top_count, b->top[r]);
  }
}

static void test_draw(void **state) {
  static const int32_t vocabs[] = {1, 2, 15, 16, 100, 512, 1003, 127, 128, 129};
  (void)state;
  for (int i = 0; i < 1200; i++) {
    const struct quire_kernels *kernels = world.kernels[i % world.kernel_count];
    struct batch b = {.m = test_between(&rng, 0, ROWS_MAX), .vocab = vocabs[i % 10], .threads = i % 3 + 1};
    b.vocab = i % 200 == 77 ? 20011 : b.vocab;
    b.ld = b.vocab + test_between(&rng, 0, 3);
    b.logits = test_poisoned((int64_t)(b.m + 1) * b.ld * 4);
    b.counts = test_poisoned((int64_t)(b.m + 1) * b.vocab * 2);
    for (int32_t r = 0; r < b.m; r++) {
      row_make(&b, r, kernels, test_between(&rng, 0, 419));
    }
    uint8_t *scratch = test_poisoned(quire_sample_scratch_bytes(b.vocab, b.threads));
    kernels->sample(world.stream[b.threads - 1], (struct quire_sample){.logits = b.logits,
                                                                       .draws = b.draw,
                                                                       .tokens_out = b.token,
                                                                       .logprobs_out = b.logprob,
                                                                       .scratch = scratch,
                                                                       .m = b.m,
                                                                       .vocab = b.vocab,
                                                                       .logits_ld = b.ld});
    batch_check(&b);
    free(b.logits);
    free(b.counts);
    free(scratch);
  }
}

/* Draws once from one row. */
static int32_t draw_one(const struct quire_kernels *kernels, const float *logits, int32_t vocab,
                        const struct quire_draw *draw, float *logprob_out) {
  int32_t token = -5;
  uint8_t *scratch = test_poisoned(quire_sample_scratch_bytes(vocab, 1));
  kernels->sample(world.stream[0], (struct quire_sample){.logits = logits,
                                                         .draws = draw,
                                                         .tokens_out = &token,
                                                         .logprobs_out = logprob_out,
                                                         .scratch = scratch,
                                                         .m = 1,
                                                         .vocab = vocab,
                                                         .logits_ld = vocab});
  free(scratch);
  return token;
}

/* Draws over many positions follow the distribution that penalties, bias and cuts leave: chi-squared over the ids that
 * can be drawn, and nothing else is ever drawn. In doubles, with the library's functions. */
struct shares {
  const char *name;
  struct quire_draw draw;
  int freedom;  /* ids that stay, less one */
  double limit; /* chi-squared of that many degrees, 1 in 10,000 */
};

#define SHARES_VOCAB 9
#define SHARES_DRAWS 20000

/* Probabilities over a row sorted by falling logits, from the text of the parameters. */
static void shares_of(const float *logits, const uint16_t *counts, const struct quire_draw *d, double *p) {
  double y[SHARES_VOCAB], sum = 0, above = 0;
  for (int i = 0; i < SHARES_VOCAB; i++) {
    y[i] = (double)logits[i];
    if (counts[i] != 0) {
      y[i] = y[i] > 0 ? y[i] / (double)d->repetition_penalty : y[i] * (double)d->repetition_penalty;
      y[i] -= (double)d->frequency_penalty * (counts[i] & QUIRE_COUNT_MAX);
      y[i] -= (counts[i] & QUIRE_COUNT_MAX) ? (double)d->presence_penalty : 0;
    }
    for (int j = 0; j < d->bias_count; j++) {
      y[i] += d->bias[j].token == i ? (double)d->bias[j].value : 0;
    }
    p[i] = exp(y[i] / (double)d->temperature);
  }
  double largest = 0, kept[SHARES_VOCAB] = {0};
  for (int i = 0; i < SHARES_VOCAB; i++) {
    int better = 0;
    for (int j = 0; j < SHARES_VOCAB; j++) {
      better += p[j] > p[i];
    }
    p[i] = d->top_k > 0 && better >= d->top_k ? 0 : p[i];
    largest = p[i] > largest ? p[i] : largest;
  }
  for (int i = 0; i < SHARES_VOCAB; i++) {
    sum += p[i];
  }
  for (int i = 0; i < SHARES_VOCAB; i++) {
    above = 0;
    for (int j = 0; j < SHARES_VOCAB; j++) {
      above += p[j] > p[i] ? p[j] / sum : 0;
    }
    kept[i] = above < (double)d->top_p && p[i] >= (double)d->min_p * largest ? p[i] : 0;
  }
  sum = 0;
  for (int i = 0; i < SHARES_VOCAB; i++) {
    sum += kept[i];
  }
  for (int i = 0; i < SHARES_VOCAB; i++) {
    p[i] = kept[i] / sum;
  }
}

static void test_distribution(void **state) {
  static const float logits[SHARES_VOCAB] = {0.9f, -0.4f, 1.7f, 0.3f, -1.2f, 1.1f, -0.1f, 0.6f, 1.4f};
  static const uint16_t counts[SHARES_VOCAB] = {0, 3, 1, QUIRE_COUNT_PROMPT, QUIRE_COUNT_PROMPT | 2, 0, 0, 1, 0};
  static const struct quire_bias bias[] = {{4, 2.5f}, {8, -1.0f}, {0, -INFINITY}, {4, 0.5f}};
#define PLAIN .temperature = 1, .top_p = 1, .repetition_penalty = 1
#define LISTED .repetition_penalty = 1.3f, .presence_penalty = 0.4f, .frequency_penalty = 0.3f, .counts = counts
  static const struct shares rows[] = {
      {"plain", {PLAIN}, 8, 31.8},
      {"hot", {.temperature = 2.5f, .top_p = 1, .repetition_penalty = 1}, 8, 31.8},
      {"cold", {.temperature = 0.5f, .top_p = 1, .repetition_penalty = 1}, 8, 31.8},
      {"top-k", {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = 4}, 3, 21.1},
      {"top-p", {.temperature = 1, .top_p = 0.7f, .repetition_penalty = 1}, 3, 21.1},
      {"min-p", {PLAIN, .min_p = 0.3f}, 4, 23.5},
      {"penalties", {.temperature = 1, .top_p = 1, LISTED}, 8, 31.8},
      {"bias", {PLAIN, .bias = bias, .bias_count = 4}, 7, 29.9},
      {"all",
       {.temperature = 1.2f, .top_p = 0.8f, .top_k = 6, .min_p = 0.2f, .bias = bias, .bias_count = 2, LISTED},
       4,
       23.5},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    double p[SHARES_VOCAB], chi = 0;
    int64_t seen[SHARES_VOCAB] = {0};
    int possible = 0;
    shares_of(logits, rows[i].draw.counts != NULL ? counts : (const uint16_t[SHARES_VOCAB]){0}, &rows[i].draw, p);
    for (int32_t position = 0; position < SHARES_DRAWS; position++) {
      struct quire_draw draw = rows[i].draw;
      float logprob;
      draw.position = position;
      draw.seed = 12345;
      seen[draw_one(world.kernels[0], logits, SHARES_VOCAB, &draw, &logprob)]++;
    }
    for (int j = 0; j < SHARES_VOCAB; j++) {
      double want = p[j] * SHARES_DRAWS;
      assert_true(want > 0 || seen[j] == 0);
      possible += want > 0;
      chi += want > 0 ? ((double)seen[j] - want) * ((double)seen[j] - want) / want : 0;
    }
    if (possible != rows[i].freedom + 1 || chi > rows[i].limit) {
      fail_msg("%s: %d ids, chi-squared %.1f", rows[i].name, possible, chi);
    }
  }
}

/* Two requests that differ in the seed alone, or in the position alone, draw independently. */
static void test_independence(void **state) {
  enum { VOCAB = 64, DRAWS = 4000 };
  static const float flat[VOCAB];
  (void)state;
  int same_seed = 0, same_position = 0;
  for (int32_t i = 0; i < DRAWS; i++) {
    struct quire_draw a = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .position = i, .seed = 1};
    struct quire_draw b = a, c = a;
    float logprob;
    b.seed = 2;
    c.position = i + 1;
    int32_t token = draw_one(world.kernels[0], flat, VOCAB, &a, &logprob);
    same_seed += token == draw_one(world.kernels[0], flat, VOCAB, &b, &logprob);
    same_position += token == draw_one(world.kernels[0], flat, VOCAB, &c, &logprob);
  }
  assert_in_range(same_seed, 25, 105); /* 62.5 expected, sigma 7.8 */
  assert_in_range(same_position, 25, 105);
}

/* Rows at the edge: what is drawn, whatever the noise. */
static void test_edges(void **state) {
  enum { VOCAB = 300 };
  static const struct quire_bias wanted = {211, 100.0f}, unwanted = {7, -100.0f}, banned = {7, -INFINITY};
  static float only[VOCAB], tied[VOCAB], peaked[VOCAB], low[VOCAB];
  static uint16_t counts[VOCAB] = {[7] = 9, [8] = QUIRE_COUNT_MAX};
  (void)state;
  for (int i = 0; i < VOCAB; i++) {
    only[i] = i == 137 ? -3.0f : -INFINITY;
    tied[i] = i % 100 == 50 ? 2.0f : 1.0f;
    peaked[i] = i == 7 ? 5.0f : i == 8 ? 4.5f : 0.0f;
    low[i] = i == 7 ? -1.0f : -60.0f;
  }
  static const struct {
    const float *logits;
    struct quire_draw draw;
    int32_t token;
  } rows[] = {
      {only, {PLAIN}, 137},
      {only, {PLAIN, .top_k = 5}, 137},
      {only, {.temperature = 2, .top_p = 0.5f, .min_p = 0.5f, .repetition_penalty = 1}, 137},
      {tied, {.temperature = 0, .top_p = 1, .repetition_penalty = 1}, 50},
      {tied, {.temperature = 9e-6f, .top_p = 1, .repetition_penalty = 1}, 50},
      {tied, {PLAIN, .top_k = 1}, 50},
      {tied, {.temperature = 3, .top_p = 0, .repetition_penalty = 1}, 50},
      {peaked, {PLAIN, .min_p = 1}, 7},
      {peaked, {PLAIN, .bias = &wanted, .bias_count = 1}, 211},
      {peaked, {.temperature = 0, .repetition_penalty = 1, .bias = &unwanted, .bias_count = 1}, 8},
      {peaked, {.temperature = 0, .repetition_penalty = 1, .bias = &banned, .bias_count = 1}, 8},
      {low, {.temperature = 1e-5f, .top_p = 1, .repetition_penalty = 1}, 7},
      /* 5 - 9 * 0.2 = 3.2 and 4.5 - 0.2 * 32767: the third one is as good as 0 */
      {peaked, {.temperature = 0, .repetition_penalty = 1, .frequency_penalty = 0.2f, .counts = counts}, 7},
      {peaked, {.temperature = 0, .repetition_penalty = 1, .frequency_penalty = 0.6f, .counts = counts}, 0},
      {peaked, {.temperature = 0, .repetition_penalty = 1, .presence_penalty = 0.6f, .counts = counts}, 7},
      {peaked, {.temperature = 0, .repetition_penalty = 1, .presence_penalty = -2.0f, .counts = counts}, 7},
      {low, {.temperature = 0, .repetition_penalty = 2.0f, .counts = counts}, 7}, /* -1 becomes -2, not -0.5 */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (int k = 0; k < world.kernel_count; k++) {
      for (int32_t position = 0; position < 50; position++) {
        struct quire_draw draw = rows[i].draw;
        float logprob;
        draw.position = position;
        int32_t token = draw_one(world.kernels[k], rows[i].logits, VOCAB, &draw, &logprob);
        if (token != rows[i].token) {
          fail_msg("row %zu draws %d, expected %d", i, token, rows[i].token);
        }
      }
    }
  }
}

/* Nothing to draw from, and an infinite logit. */
static void test_nothing(void **state) {
  (void)state;
  float logits[20];
  float logprob = 0;
  struct quire_top top[3];
  for (int i = 0; i < 20; i++) {
    logits[i] = i % 2 ? NAN : -INFINITY;
  }
  for (int i = 0; i < 2; i++) {
    struct quire_draw draw = {.temperature = (float)i,
                              .top_p = 0.5f,
                              .top_k = 3,
                              .repetition_penalty = 1,
                              .logprob = true,
                              .tops_out = top,
                              .top_count = 3};
    assert_int_equal(draw_one(world.kernels[i], logits, 20, &draw, &logprob), 0);
    assert_true(logprob == -INFINITY && top[0].token == -1 && top[2].token == -1);
  }
  logits[3] = logits[5] = INFINITY;
  logits[4] = 1;
  for (int i = 0; i < 2; i++) {
    struct quire_draw draw = {
        .temperature = (float)i, .top_p = 1, .repetition_penalty = 1, .logprob = true, .tops_out = top, .top_count = 3};
    assert_int_equal(draw_one(world.kernels[0], logits, 20, &draw, &logprob), 3);
    assert_true(logprob == 0 && top[0].token == 3 && top[1].token == 5 && top[2].token == 4 &&
                top[2].logprob == -INFINITY);
  }
}

/* Counts stop at their largest value and keep the mark of the prompt. */
static void test_count(void **state) {
  (void)state;
  int32_t *tokens = test_alloc(40000 * 4);
  uint16_t counts[4];
  for (int i = 0; i < 40000; i++) {
    tokens[i] = i % 8 == 0 ? 2 : 1;
  }
  memset(counts, 0xA5, sizeof counts);
  struct quire_count_job job = {counts, tokens, 0, 40000, 5, true};
  world.kernels[0]->count(world.stream[0], (struct quire_count){&job, 1, 4});
  assert_true(counts[0] == 0 && counts[3] == 0 && counts[2] == (QUIRE_COUNT_PROMPT | 4999));
  assert_int_equal(counts[1], QUIRE_COUNT_PROMPT | QUIRE_COUNT_MAX);
  free(tokens);
}

static void test_score(void **state) {
  (void)state;
  for (int i = 0; i < 40; i++) {
    int32_t vocab = test_between(&rng, 1, 300);
    float *logits = test_alloc(6 * (int64_t)vocab * 4);
    int32_t targets[6], argmax[6], top_counts[6];
    float logprobs[6];
    struct quire_top top[6][QUIRE_TOP_LOGPROBS_MAX], *tops[6];
    for (int r = 0; r < 6; r++) {
      logits_make(logits + (int64_t)r * vocab, vocab, i % 7 ? i : 1);
      targets[r] = test_between(&rng, -1, vocab - 1);
      top_counts[r] = test_between(&rng, 0, QUIRE_TOP_LOGPROBS_MAX);
      tops[r] = top[r];
    }
    struct quire_score op = {.logits = logits,
                             .targets = targets,
                             .logprobs_out = logprobs,
                             .argmax_out = argmax,
                             .top_counts = i % 3 ? top_counts : NULL,
                             .tops_out = i % 3 ? tops : NULL,
                             .m = 6,
                             .vocab = vocab,
                             .logits_ld = vocab};
    world.kernels[i % world.kernel_count]->score(world.stream[i % 3], op);
    for (int r = 0; r < 6; r++) {
      const struct quire_draw greedy = {.repetition_penalty = 1};
      const struct list none = {.count = 0};
      const float *row = logits + (int64_t)r * vocab;
      float want = targets[r] < 0 ? 0.0f : oracle_logprob(row, vocab, targets[r]);
      assert_true(test_same(logprobs[r], want));
      assert_int_equal(argmax[r], oracle_draw(row, vocab, &none, &greedy));
      expect_tops(row, vocab, i % 3 ? top_counts[r] : 0, top[r]);
    }
    free(logits);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_draw),  cmocka_unit_test(test_distribution), cmocka_unit_test(test_independence),
      cmocka_unit_test(test_edges), cmocka_unit_test(test_nothing),      cmocka_unit_test(test_count),
      cmocka_unit_test(test_score),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
