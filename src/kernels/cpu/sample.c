/* Sampling, and the log-probabilities of evaluation (arithmetic.md 12). A row is one member's.
 *
 * What top-k and top-p leave is a threshold on the pair (key of z, id), found by radix search from the top digit down:
 * top-k counts entries, top-p adds their integer weights. Neither sorts. Drawing then walks over what is left; an id
 * whose z is so far below the best value so far that no noise can lift it there is passed over without drawing. */
#include "base/assert.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"

#define DIGITS 2048
#define GUMBEL_MAX 23.0 /* -log(-log(1 - 2^-33)) is 22.87 */

struct row {
  const float *logits;
  int32_t vocab;
  float *z;      /* scratch: logit / temperature, NaN to -inf */
  float *weight; /* scratch: exp(z - zmax) */
  uint32_t *key; /* scratch: quire_score_key(z) */
};

/* Ids up to and including last_id among those with the threshold's key stay, and all with a larger key. */
struct cut {
  uint32_t key;
  int32_t last_id;
};

static const uint32_t digit_shift[] = {21, 10, 0};
static const uint32_t digit_mask[] = {2047, 2047, 1023};

static float least(void) { return -quire_float_of(QUIRE_INF_BITS); }

/* Largest of n values, NaN passed over; -inf when there is none. */
static float largest_of(const float *x, int32_t n) {
  quire_f8 best = f8_all(least());
  int32_t whole = n & ~7;
  for (int32_t i = 0; i < whole; i += 8) {
    best = f8_max(best, f8_load(x + i));
  }
  float max = least();
  for (int i = 0; i < 8; i++) {
    max = best[i] > max ? best[i] : max;
  }
  for (int32_t i = whole; i < n; i++) {
    max = x[i] > max ? x[i] : max;
  }
  return max;
}

/* First id with the value max; 0 when there is none above -inf. */
static int32_t first_of(const float *x, int32_t n, float max) {
  for (int32_t i = 0; i < n && max > least(); i++) {
    if (x[i] == max) {
      return i;
    }
  }
  return 0;
}

QUIRE_INLINE quire_f8 without_nan(quire_f8 x) { return f8_choose(x == x, x, f8_all(least())); }

/* log of the sum of e^x. */
static float log_sum_exp(const float *x, int32_t n, float max) {
  struct quire_lanes sum = lanes_zero();
  for (int32_t i = 0; i < n; i += LANES) {
    struct quire_lanes v = lanes_load(x + i, n - i);
    quire_f8 low = f8_exp(without_nan(v.low) - max);
    quire_f8 high = f8_exp(without_nan(v.high) - max);
    if (n - i < LANES) { /* lanes past the end are zero, not e^0 */
      for (int32_t j = n - i; j < LANES; j++) {
        if (j < 8) {
          low[j] = 0.0f;
        } else {
          high[j - 8] = 0.0f;
        }
      }
    }
    sum.low = sum.low + low;
    sum.high = sum.high + high;
  }
  return (float)((double)max + quire_log((double)lanes_fold(sum)));
}

static float log_probability(const float *logits, int32_t vocab, int32_t token) {
  float max = largest_of(logits, vocab);
  if (!(max > least()) || logits[token] != logits[token]) {
    return least();
  }
  return logits[token] - log_sum_exp(logits, vocab, max);
}

static bool stays(const struct row *r, struct cut cut, int32_t id) {
  return r->key[id] > cut.key || (r->key[id] == cut.key && id <= cut.last_id);
}

/* What an id adds to a search: 1 for top-k, its integer weight for top-p. */
static uint64_t mass(const struct row *r, bool weighted, int32_t id) {
  return weighted ? (uint64_t)(r->weight[id] * 0x1p40f) : 1;
}

/* The cut of what stays under `within` at which the mass, summed by (larger z, lower id), reaches `target` (>= 1, at
 * most the whole mass). */
static struct cut cut_search(const struct row *r, struct cut within, bool weighted, uint64_t target) {
  uint32_t prefix = 0;
  uint32_t mask = 0;
  uint64_t before = 0; /* mass of larger keys */
  for (int pass = 0; pass < 3; pass++) {
    uint64_t histogram[DIGITS];
    memset(histogram, 0, sizeof histogram);
    for (int32_t id = 0; id < r->vocab; id++) {
      if ((r->key[id] & mask) == prefix && stays(r, within, id)) {
        histogram[(r->key[id] >> digit_shift[pass]) & digit_mask[pass]] += mass(r, weighted, id);
      }
    }
    uint32_t digit = digit_mask[pass];
    while (before + histogram[digit] < target) {
      before += histogram[digit];
      QUIRE_ASSERT(digit > 0);
      digit--;
    }
    prefix |= digit << digit_shift[pass];
    mask |= digit_mask[pass] << digit_shift[pass];
  }
  struct cut cut = {prefix, -1};
  for (int32_t id = 0; id < r->vocab && before < target; id++) {
    if (r->key[id] == prefix && stays(r, within, id)) {
      before += mass(r, weighted, id);
      cut.last_id = id;
    }
  }
  return cut;
}

/* z, weights and keys of a row; returns zmax. */
static float row_scale(const struct row *r, float temperature) {
  for (int32_t id = 0; id < r->vocab; id++) {
    float z = r->logits[id] / temperature;
    r->z[id] = z == z ? z : least();
    r->key[id] = quire_score_key(r->z[id]);
  }
  return largest_of(r->z, r->vocab);
}

static struct cut row_cut(const struct row *r, const struct quire_sampling *sampling, float zmax) {
  struct cut cut = {0, 0}; /* every key is larger */
  if (sampling->top_k > 0 && sampling->top_k < r->vocab) {
    cut = cut_search(r, cut, false, (uint64_t)sampling->top_k);
  }
  if (sampling->top_p < 1.0f) {
    uint64_t total = 0;
    for (int32_t id = 0; id < r->vocab; id++) {
      r->weight[id] = quire_exp(r->z[id] - zmax);
      total += stays(r, cut, id) ? mass(r, true, id) : 0;
    }
    double share = (double)(sampling->top_p > 0.0f ? sampling->top_p : 0.0f) * (double)total;
    uint64_t target = (uint64_t)share;
    cut = cut_search(r, cut, true, target > 0 ? target : 1);
  }
  return cut;
}

static double noisy(const struct row *r, uint64_t seed, int32_t position, int32_t id) {
  double u = ((double)quire_philox(seed, position, id) + 0.5) * 0x1p-32;
  return (double)r->z[id] - quire_log(-quire_log(u));
}

static int32_t row_draw(const struct row *r, const struct quire_sampling *sampling, int32_t position) {
  float zmax = row_scale(r, sampling->temperature);
  if (!(zmax > least())) {
    return 0;
  }
  int32_t token = first_of(r->z, r->vocab, zmax); /* never cut */
  if (zmax == -least()) {
    return token;
  }
  struct cut cut = row_cut(r, sampling, zmax);
  double best = noisy(r, sampling->seed, position, token);
  for (int32_t id = 0; id < r->vocab; id++) {
    if ((double)r->z[id] + GUMBEL_MAX < best || !stays(r, cut, id)) {
      continue;
    }
    double value = noisy(r, sampling->seed, position, id);
    if (value > best || (value == best && id < token)) {
      best = value;
      token = id;
    }
  }
  return token;
}

static int64_t row_bytes(int32_t vocab) { return 3 * quire_cpu_padded((int64_t)vocab * 4); }

int64_t quire_sample_scratch_bytes(int32_t vocab, int threads) {
  QUIRE_ASSERT(vocab > 0 && threads > 0);
  return row_bytes(vocab) * threads + 63; /* the caller's bytes need not be aligned */
}

static void sample_share(void *context, int member, int threads) {
  const struct quire_sample *op = context;
  uintptr_t base = ((uintptr_t)op->scratch + 63) & ~(uintptr_t)63;
  uint8_t *scratch = (uint8_t *)base + row_bytes(op->vocab) * member;
  int64_t array = quire_cpu_padded((int64_t)op->vocab * 4);
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const struct quire_sampling *sampling = &op->sampling[i];
    struct row r = {
        .logits = op->logits + i * op->logits_ld,
        .vocab = op->vocab,
        .z = (float *)scratch,
        .weight = (float *)(scratch + array),
        .key = (uint32_t *)(scratch + 2 * array),
    };
    int32_t token = sampling->temperature > 0.0f ? row_draw(&r, sampling, op->positions[i])
                                                 : first_of(r.logits, r.vocab, largest_of(r.logits, r.vocab));
    op->tokens_out[i] = token;
    if (op->logprobs_out != NULL) {
      op->logprobs_out[i] = log_probability(r.logits, r.vocab, token);
    }
  }
}

QUIRE_CPU_LAUNCHER(sample, sample_share, (int64_t)op->m * op->vocab * 8)

static void score_share(void *context, int member, int threads) {
  const struct quire_score *op = context;
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const float *logits = op->logits + i * op->logits_ld;
    int32_t target = op->targets[i];
    QUIRE_ASSERT(target >= -1 && target < op->vocab);
    op->argmax_out[i] = first_of(logits, op->vocab, largest_of(logits, op->vocab));
    op->logprobs_out[i] = target < 0 ? 0.0f : log_probability(logits, op->vocab, target);
  }
}

QUIRE_CPU_LAUNCHER(score, score_share, (int64_t)op->m * op->vocab * 8)
