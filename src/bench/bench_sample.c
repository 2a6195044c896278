/* Drawing one token from each of 8 rows of logits, with the vocabularies of DeepSeek-V3.2 and GLM-5, beside a plain
 * read of the same rows. "peaked" rows are as trained models make them: most logits in a bell some 18 below the
 * largest; "flat" ones are the bell alone, where nothing can be passed over. */
#include "bench/bench_list.h"
#include "bench/bench_machine.h"

#define ROWS 8
#define VOCAB_MAX 151552
#define LISTED 2000 /* different tokens in a request's list */

struct sample_side {
  const struct bench *bench;
  const struct bench_isa *isa;
  struct quire_sample op;
  struct quire_draw draws[ROWS];
  int32_t tokens[ROWS];
  float logprobs[ROWS];
  struct quire_top tops[ROWS][QUIRE_TOP_LOGPROBS_MAX];
};

static void sample_work(void *context) {
  struct sample_side *s = context;
  s->bench->kernels->sample(s->bench->stream[1], s->op);
}

static void read_work(void *context) {
  const struct sample_side *s = context;
  s->isa->read(s->op.logits, (size_t)ROWS * (size_t)s->op.vocab * sizeof(float));
}

/* Sums of uniforms for a bell of deviation 2; every 4,000th id stands out. */
static void fill(float *logits, int32_t vocab, bool peaked) {
  size_t count = (size_t)ROWS * (size_t)vocab;
  float *noise = logits + count;
  bench_fill_f32(logits, count, 11);
  for (int i = 0; i < 3; i++) {
    bench_fill_f32(noise, count, (uint64_t)(12 + i));
    for (size_t j = 0; j < count; j++) {
      logits[j] += noise[j];
    }
  }
  for (size_t j = 0; peaked && j < count; j += 4001) {
    logits[j] += 9.0f + 9.0f * (float)(j / 4001 % 7) / 7.0f;
  }
}

struct sample_case {
  const char *name;
  bool peaked, listed;
  struct quire_draw draw;
  double bar; /* times the read */
};

#define PLAIN .top_p = 1, .repetition_penalty = 1

static const struct sample_case rows[] = {
    {"greedy", true, false, {PLAIN}, 2},
    {"greedy logprob", true, false, {PLAIN, .logprob = true}, 8},
    {"greedy 20 logprobs", true, false, {PLAIN, .logprob = true, .top_count = 20}, 10},
    {"temperature", true, false, {PLAIN, .temperature = 0.8f}, 18},
    {"temperature flat", false, false, {PLAIN, .temperature = 1}, 18},
    {"top-p", true, false, {.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1}, 12},
    {"top-p flat", false, false, {.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1}, 70},
    {"top-k top-p", true, false, {.temperature = 1, .top_p = 0.95f, .top_k = 50, .repetition_penalty = 1}, 8},
    {"min-p", true, false, {PLAIN, .temperature = 1, .min_p = 0.05f}, 4},
    {"penalties top-p",
     true,
     true,
     {.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1.1f, .presence_penalty = 0.5f},
     25},
};

static enum quire_status measure(struct bench *bench, struct sample_side *side, float *logits, uint16_t *counts,
                                 struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  for (size_t i = 0; status == QUIRE_OK && i < sizeof rows / sizeof rows[0]; i++) {
    char name[BENCH_NAME_BYTES];
    snprintf(name, sizeof name, "sample %d %s", side->op.vocab, rows[i].name);
    if (!bench_wanted(bench, name)) {
      continue;
    }
    fill(logits, side->op.vocab, rows[i].peaked);
    for (int r = 0; r < ROWS; r++) {
      side->draws[r] = rows[i].draw;
      side->draws[r].position = r;
      side->draws[r].tops_out = side->tops[r];
      side->draws[r].counts = rows[i].listed ? counts : NULL;
    }
    struct bench_case c = {
        .name = name,
        .unit = "rows/s",
        .scale = 1,
        .threads = 1,
        .sides = 2,
        .bars = 1,
        .side = {{"quire", sample_work, NULL, side, ROWS}, {"read", read_work, NULL, side, ROWS}},
        .bar = {{1, rows[i].bar, true, 0}},
    };
    status = bench_measure(bench, &c, NULL, error_out);
  }
  return status;
}

enum quire_status bench_sample(struct bench *bench, struct quire_error *error_out) {
  static const int32_t vocabs[] = {129280, 151552};
  size_t logits_bytes = (size_t)2 * ROWS * VOCAB_MAX * sizeof(float), counts_bytes = VOCAB_MAX * sizeof(uint16_t);
  size_t scratch_bytes = (size_t)quire_sample_scratch_bytes(VOCAB_MAX, 1);
  float *logits = bench_alloc(logits_bytes);
  uint16_t *counts = bench_alloc(counts_bytes);
  uint8_t *scratch = bench_alloc(scratch_bytes);
  struct sample_side side = {.bench = bench, .isa = bench_isa_of(bench->kernels->name)};
  enum quire_status status = QUIRE_OK;
  if (logits == NULL || counts == NULL || scratch == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "sample", "no memory for the logits");
  }
  for (size_t i = 0; status == QUIRE_OK && i < LISTED; i++) {
    counts[i * 61] = (uint16_t)(1 + i % 3);
  }
  for (size_t v = 0; status == QUIRE_OK && v < sizeof vocabs / sizeof vocabs[0]; v++) {
    int32_t vocab = bench->options.tiny ? vocabs[v] / 101 / 128 * 128 : vocabs[v];
    side.op = (struct quire_sample){.logits = logits,
                                    .draws = side.draws,
                                    .tokens_out = side.tokens,
                                    .logprobs_out = side.logprobs,
                                    .scratch = scratch,
                                    .m = ROWS,
                                    .vocab = vocab,
                                    .logits_ld = vocab};
    status = measure(bench, &side, logits, counts, error_out);
  }
  bench_free(scratch, scratch_bytes);
  bench_free(counts, counts_bytes);
  bench_free(logits, logits_bytes);
  return status;
}
