/* The 2,048 best of 128K scores, fed in the portions in which the indexer feeds them, beside the plainest pass over the
 * same buffer: its maximum. */
#include <string.h>

#include "bench/bench_list.h"
#include "bench/bench_machine.h"
#include "kernels/cpu/topk.h"

#define SCORES (128 << 10)
#define PORTION 64

struct topk_side {
  const struct bench_isa *isa;
  struct quire_topk top;
  const float *scores;
  int32_t count;
};

static void topk_work(void *context) {
  struct topk_side *s = context;
  s->top.count = 0;
  s->top.threshold = 0;
  for (int32_t at = 0; at < s->count; at += PORTION) {
    quire_topk_push(&s->top, s->scores + at, at, PORTION);
  }
  quire_topk_cut(&s->top);
}

static void largest_work(void *context) {
  const struct topk_side *s = context;
  volatile float keep = s->isa->largest(s->scores, (size_t)s->count);
  (void)keep;
}

enum pattern { RANDOM, ZEROS, EQUAL, RISING, FALLING };

static void fill(float *scores, int32_t count, enum pattern pattern) {
  bench_fill_f32(scores, (size_t)count, 7);
  for (int32_t i = 0; i < count; i++) {
    if (pattern == ZEROS && i % 4 != 1) {
      scores[i] = 0;
    } else if (pattern == EQUAL) {
      scores[i] = 1;
    } else if (pattern == RISING) {
      scores[i] = (float)i;
    } else if (pattern == FALLING) {
      scores[i] = (float)-i;
    }
  }
}

static enum quire_status measure(struct bench *bench, struct topk_side *side, float *scores,
                                 struct quire_error *error_out) {
  static const struct {
    const char *name;
    enum pattern pattern;
    double bar;
  } rows[] = {{"topk 2048 random", RANDOM, 15},
              {"topk 2048 75 % zeros", ZEROS, 30},
              {"topk 2048 all equal", EQUAL, 30},
              {"topk 2048 rising", RISING, 30},
              {"topk 2048 falling", FALLING, 30}};
  enum quire_status status = QUIRE_OK;
  for (size_t i = 0; status == QUIRE_OK && i < sizeof rows / sizeof rows[0]; i++) {
    fill(scores, side->count, rows[i].pattern);
    struct bench_case c = {
        .name = rows[i].name,
        .unit = "Gscores/s",
        .scale = 1e9,
        .threads = 1,
        .sides = 2,
        .bars = 1,
        .side = {{"quire", topk_work, NULL, side, side->count}, {"max pass", largest_work, NULL, side, side->count}},
        .bar = {{1, rows[i].bar, true, 0}},
    };
    status = bench_measure(bench, &c, NULL, error_out);
  }
  return status;
}

enum quire_status bench_topk(struct bench *bench, struct quire_error *error_out) {
  int32_t capacity = quire_topk_capacity(QUIRE_TOPK_MAX);
  size_t key_bytes = (size_t)capacity * sizeof(uint32_t), position_bytes = (size_t)capacity * sizeof(int32_t);
  float *scores = bench_alloc(SCORES * sizeof(float));
  struct topk_side side = {
      .isa = bench_isa_of(bench->kernels->name),
      .top = {.key = bench_alloc(key_bytes), .position = bench_alloc(position_bytes), .capacity = capacity},
      .scores = scores,
      .count = bench->options.tiny ? 4096 : SCORES,
  };
  side.top.k = QUIRE_TOPK_MAX;
  side.top.wide = strcmp(bench->kernels->name, "avx512") == 0;
  enum quire_status status = QUIRE_OK;
  if (scores == NULL || side.top.key == NULL || side.top.position == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "topk", "no memory for its lists");
  } else {
    status = measure(bench, &side, scores, error_out);
  }
  bench_free(side.top.key, key_bytes);
  bench_free(side.top.position, position_bytes);
  bench_free(scores, SCORES * sizeof(float));
  return status;
}
