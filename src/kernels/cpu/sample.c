/* Sampling, and the log-probabilities of evaluation (arithmetic.md 12). A row is one member's.
 *
 *   logits --penalties, bias--> y --temperature--> z, with the largest of every block of 128
 *     greedy   the largest y
 *     else     draw over z; blocks that noise cannot lift to the best so far, or that are cut, are passed over
 *
 * What top-k and top-p leave is a threshold on the pair (z, id). Nothing is sorted: passes that add up what lies above
 * some z (entries for top-k, integer masses for top-p) halve the range until it holds few ids, and a radix search over
 * those ends it. Blocks below the range are not read. */
#include "kernels/cpu/sample.h"

#include <float.h>

#include "base/assert.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/sample_passes.h"
#include "kernels/cpu/topk.h"

#define DIGITS 2048
#define LIST_ENOUGH 1024 /* ids that are listed rather than narrowed further */
#define NARROW_MAX 32    /* halvings: more only where ties are many */
#define WEIGHTLESS 28.0f /* e^-28 * 2^40 is 0.76: further from the largest z there is no mass */

struct row {
  const struct quire_sample_passes *passes;
  const struct quire_draw *draw;
  const float *logits;
  int32_t vocab;
  struct quire_sample_z z;
  float *weight; /* scratch: exp(z - zmax), in blocks as z */
  /* scratch: a list of ids, ascending, and of their keys */
  int32_t *id;
  uint32_t *key; /* quire_score_key(z) */
  int32_t count;
};

static const uint32_t digit_shift[] = {21, 10, 0};
static const uint32_t digit_mask[] = {2047, 2047, 1023};
static float least(void) { return -quire_float_of(QUIRE_INF_BITS); }

static bool finite(float x) { return (quire_bits_of(x) & QUIRE_INF_BITS) < QUIRE_INF_BITS; }

/* log of the sum of e^x, of a row with a finite largest value. */
static float log_sum_exp(const struct quire_sample_passes *passes, const float *x, int32_t n, float max) {
  return (float)((double)max + quire_log((double)passes->exp_sum(x, n, max)));
}

/* Log-probability of a logit beside the row's log-sum-exp; an infinite one has all there is. */
static float log_probability(float logit, float max, float lse) {
  if (logit != logit || !(max > least())) {
    return least();
  }
  return finite(max) ? logit - lse : logit == max ? 0.0f : least();
}

/* Values of tops become log-probabilities. */
static void finish_tops(struct quire_top *tops, int32_t count, float max, float lse) {
  QUIRE_ASSERT(count >= 0);
  for (int32_t i = 0; i < count && tops[i].token >= 0; i++) {
    tops[i].logprob = log_probability(tops[i].logprob, max, lse);
  }
}

/* --- penalties and bias --- */

/* count: of the answer; seen: in prompt or answer. */
static float penalised(const struct quire_draw *draw, float y, int32_t count, bool seen) {
  if (seen) {
    y = y > 0.0f ? y / draw->repetition_penalty : y * draw->repetition_penalty;
  }
  if (count > 0) {
    float share = draw->frequency_penalty * (float)count;
    y = y - share;
    y = y - draw->presence_penalty;
  }
  return y;
}

static float penalise_id(const struct row *r, int32_t id, int32_t extra) {
  QUIRE_DEBUG(id >= 0 && id < r->vocab);
  uint16_t known = r->draw->counts[id];
  int32_t count = (known & QUIRE_COUNT_MAX) + extra;
  count = count < (int32_t)QUIRE_COUNT_MAX ? count : (int32_t)QUIRE_COUNT_MAX;
  return penalised(r->draw, r->logits[id], count, count > 0 || (known & QUIRE_COUNT_PROMPT) != 0);
}

static void penalise(const struct row *r, float *y) {
  const struct quire_draw *draw = r->draw;
  QUIRE_ASSERT(draw->counts != NULL && draw->extra_count >= 0);
  for (int32_t at = 0; at < r->vocab; at += 32) {
    int32_t end = at + 32 < r->vocab ? at + 32 : r->vocab;
    uint32_t any = 0;
    for (int32_t id = at; id < end; id++) {
      any |= draw->counts[id];
    }
    for (int32_t id = at; any != 0 && id < end; id++) {
      if (draw->counts[id] != 0) {
        y[id] = penalise_id(r, id, 0);
      }
    }
  }
  for (int32_t i = 0; i < draw->extra_count; i++) {
    int32_t times = 0;
    for (int32_t j = 0; j < draw->extra_count; j++) {
      times += draw->extra[j] == draw->extra[i];
    }
    y[draw->extra[i]] = penalise_id(r, draw->extra[i], times);
  }
}

/* The row as it is drawn from: logits themselves where nothing changes them. */
static const float *adjusted(const struct row *r) {
  const struct quire_draw *draw = r->draw;
  if (draw->counts == NULL && draw->bias_count == 0) {
    return r->logits;
  }
  float *y = r->z.z;
  memcpy(y, r->logits, (size_t)r->vocab * sizeof *y);
  if (draw->counts != NULL) {
    penalise(r, y);
  }
  for (int32_t i = 0; i < draw->bias_count; i++) {
    QUIRE_ASSERT(draw->bias[i].token >= 0 && draw->bias[i].token < r->vocab);
    y[draw->bias[i].token] = y[draw->bias[i].token] + draw->bias[i].value;
  }
  return y;
}

/* --- cuts --- */

/* Where the kept ids end in the order (larger z, lower id): a search narrows z to [low, high), `above` belonging to
 * what lies at high and more, until what is between is few enough to be listed. */
struct search {
  const float *weight; /* NULL: entries count 1 each (top-k) */
  uint64_t target;     /* of the kept ids together: >= 1, at most that of z >= low */
  float low, high;
  struct quire_sample_above at_low; /* what lies at low and more */
  uint64_t above;
};

/* The cut: all with a larger z stay, and those with this z up to an id. dropped: how many with this z go. */
struct cut {
  float z;
  int32_t last, dropped;
};

static uint64_t mass_of(const struct search *s, int32_t id) {
  return s->weight != NULL ? quire_sample_mass(s->weight[id]) : 1;
}

static void search_narrow(const struct row *r, struct search *s) {
  QUIRE_ASSERT(s->target > 0);
  struct quire_sample_above high = {0, 0};
  bool bounded = false;
  s->high = -least();
  for (int i = 0; i < NARROW_MAX && s->at_low.count - high.count > LIST_ENOUGH; i++) {
    float to = bounded ? s->high : r->z.max, middle = s->low + (to - s->low) * 0.5f;
    if (!(middle > s->low && middle < to)) {
      break;
    }
    struct quire_sample_above at = r->passes->above(&r->z, s->weight, middle);
    if ((s->weight != NULL ? at.mass : (uint64_t)at.count) >= s->target) {
      s->low = middle;
      s->at_low = at;
    } else {
      s->high = middle;
      high = at;
      bounded = true;
    }
  }
  s->above = s->weight != NULL ? high.mass : (uint64_t)high.count;
}

/* The key of the list at which the mass, from the largest down, reaches the target; *before: mass of larger ones. */
static uint32_t search_key(const struct row *r, const struct search *s, uint64_t *before) {
  uint32_t prefix = 0;
  uint32_t mask = 0;
  for (int pass = 0; pass < 3; pass++) {
    uint64_t histogram[DIGITS];
    memset(histogram, 0, sizeof histogram);
    for (int32_t i = 0; i < r->count; i++) {
      if ((r->key[i] & mask) == prefix) {
        histogram[(r->key[i] >> digit_shift[pass]) & digit_mask[pass]] += mass_of(s, r->id[i]);
      }
    }
    uint32_t digit = digit_mask[pass];
    while (*before + histogram[digit] < s->target) {
      *before += histogram[digit];
      QUIRE_ASSERT(digit > 0);
      digit--;
    }
    prefix |= digit << digit_shift[pass];
    mask |= digit_mask[pass] << digit_shift[pass];
  }
  return prefix;
}

/* within: only ids that this cut leaves. */
static struct cut search_cut(struct row *r, struct search *s, struct cut within) {
  QUIRE_ASSERT(s->target > 0 || s->weight != NULL);
  search_narrow(r, s);
  r->count = r->passes->gather(&r->z, s->low, s->high, r->id);
  int32_t kept = 0;
  for (int32_t i = 0; i < r->count; i++) {
    if (r->z.z[r->id[i]] > within.z || r->id[i] <= within.last) {
      r->key[kept] = quire_score_key(r->z.z[r->id[i]]);
      r->id[kept++] = r->id[i];
    }
  }
  r->count = kept;
  uint64_t before = s->above;
  uint32_t key = search_key(r, s, &before);
  struct cut cut = {0, -1, 0};
  for (int32_t i = 0; i < r->count; i++) {
    if (r->key[i] == key) {
      cut.z = r->z.z[r->id[i]];
      if (before < s->target) {
        before += mass_of(s, r->id[i]);
        cut.last = r->id[i];
      } else {
        cut.dropped++;
      }
    }
  }
  return cut;
}

/* A z that at least k ids reach: the k-th largest of the blocks' maxima, or one that all but -inf reach. */
static float reached_by(struct row *r, int32_t k) {
  QUIRE_ASSERT(k > 0);
  if (k > r->z.blocks) {
    return r->passes->above(&r->z, NULL, r->z.max - WEIGHTLESS).count >= k ? r->z.max - WEIGHTLESS : -FLT_MAX;
  }
  int32_t ties;
  for (int32_t b = 0; b < r->z.blocks; b++) {
    r->key[b] = quire_score_key(r->z.block_max[b]);
  }
  uint32_t key = quire_topk_kth(r->key, r->z.blocks, k, &ties);
  float z = quire_float_of((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
  return z > least() ? z : -FLT_MAX;
}

static struct cut top_k_cut(struct row *r, struct cut cut) {
  QUIRE_ASSERT(r->draw->top_k > 0);
  struct search search = {.target = (uint64_t)r->draw->top_k, .low = reached_by(r, r->draw->top_k)};
  search.at_low = r->passes->above(&r->z, NULL, search.low);
  if (search.at_low.count < r->draw->top_k) {
    return cut; /* -inf is never drawn */
  }
  return search_cut(r, &search, cut);
}

static struct cut top_p_cut(struct row *r, struct cut cut) {
  QUIRE_ASSERT(r->draw->top_p < 1.0f && cut.dropped >= 0);
  float from = r->z.max - WEIGHTLESS;
  from = cut.z > from ? cut.z : from;
  struct search search = {.weight = r->weight, .low = from, .at_low = r->passes->weigh(&r->z, from, r->weight)};
  uint64_t total = search.at_low.mass;
  if (cut.dropped > 0) {
    total -= (uint64_t)cut.dropped * quire_sample_mass(quire_exp(cut.z - r->z.max));
  }
  search.target = (uint64_t)((double)r->draw->top_p * (double)total);
  search.target = search.target > 0 ? search.target : 1;
  return search_cut(r, &search, cut);
}

/* --- the draw --- */

static int32_t first_largest(const struct quire_sample_z *row) {
  QUIRE_ASSERT(row->block_max != NULL);
  int32_t b = 0;
  while (row->block_max[b] != row->max) {
    b++;
  }
  int32_t id = b * QUIRE_SAMPLE_BLOCK;
  while (row->z[id] != row->max) {
    id++;
  }
  return id;
}

static int32_t row_draw(struct row *r) {
  const struct quire_draw *draw = r->draw;
  const float *y = adjusted(r);
  int32_t token = 0;
  if (!(draw->temperature >= QUIRE_TEMPERATURE_MIN)) {
    r->passes->largest(y, r->vocab, &token);
    return token;
  }
  r->passes->scale(y, r->vocab, 1.0f / draw->temperature, &r->z);
  if (!(r->z.max > least())) {
    return 0;
  }
  token = first_largest(&r->z); /* never cut */
  if (!finite(r->z.max)) {
    return token;
  }
  struct quire_sample_best best = {.seed = draw->seed, .position = draw->position, .floor = least(), .last = r->vocab};
  quire_sample_take(&best, quire_sample_noisy(r->z.max, quire_philox(draw->seed, draw->position, token)), token);
  if (draw->min_p > 0.0f) {
    best.floor = (float)((double)r->z.max + quire_log((double)draw->min_p));
  }
  struct cut cut = {least(), r->vocab, 0};
  if (draw->top_k > 0 && draw->top_k < r->vocab) {
    cut = top_k_cut(r, cut);
  }
  if (draw->top_p < 1.0f) {
    cut = top_p_cut(r, cut);
  }
  if (cut.z >= best.floor) {
    best.floor = cut.z;
    best.last = cut.last;
  }
  r->passes->draw(&r->z, &best);
  QUIRE_ASSERT(best.token >= 0 && best.token < r->vocab);
  return best.token;
}

static float row_logprob(const struct row *r, int32_t token) {
  QUIRE_ASSERT(token >= 0 && token < r->vocab);
  const struct quire_draw *draw = r->draw;
  int32_t first;
  if (!draw->logprob && draw->top_count == 0) {
    return 0.0f;
  }
  float max = r->passes->largest(r->logits, r->vocab, &first);
  float lse = finite(max) ? log_sum_exp(r->passes, r->logits, r->vocab, max) : max;
  r->passes->top(r->logits, r->vocab, draw->top_count, draw->tops_out);
  finish_tops(draw->tops_out, draw->top_count, max, lse);
  return draw->logprob ? log_probability(r->logits[token], max, lse) : 0.0f;
}

/* --- launchers --- */

/* Scratch of one member: z and weights in whole blocks, maxima, the list. */
static int64_t blocks_of(int32_t vocab) { return (vocab + QUIRE_SAMPLE_BLOCK - 1) / QUIRE_SAMPLE_BLOCK; }

static int64_t row_bytes(int32_t vocab) {
  return 2 * quire_cpu_padded(blocks_of(vocab) * QUIRE_SAMPLE_BLOCK * 4) + quire_cpu_padded(blocks_of(vocab) * 4) +
         2 * quire_cpu_padded((int64_t)vocab * 4);
}

int64_t quire_sample_scratch_bytes(int32_t vocab, int threads) {
  QUIRE_ASSERT(vocab > 0 && threads > 0);
  return row_bytes(vocab) * threads + 63; /* the caller's bytes need not be aligned */
}

struct sample_args {
  struct quire_sample op;
  const struct quire_sample_passes *passes;
};

static struct row row_of(const struct sample_args *args, int64_t i, uint8_t *scratch) {
  QUIRE_ASSERT(i >= 0 && i < args->op.m && scratch != NULL);
  int32_t vocab = args->op.vocab;
  int64_t padded = quire_cpu_padded(blocks_of(vocab) * QUIRE_SAMPLE_BLOCK * 4);
  uint8_t *maxima = scratch + 2 * padded;
  uint8_t *list = maxima + quire_cpu_padded(blocks_of(vocab) * 4);
  return (struct row){
      .passes = args->passes,
      .draw = &args->op.draws[i],
      .logits = args->op.logits + i * args->op.logits_ld,
      .vocab = vocab,
      .z = {.z = (float *)scratch, .block_max = (float *)maxima},
      .weight = (float *)(scratch + padded),
      .id = (int32_t *)list,
      .key = (uint32_t *)(list + quire_cpu_padded((int64_t)vocab * 4)),
  };
}

static void sample_share(void *context, int member, int threads) {
  const struct sample_args *args = context;
  QUIRE_ASSERT(args->op.vocab > 0 && args->op.tokens_out != NULL && args->op.logprobs_out != NULL);
  uintptr_t base = ((uintptr_t)args->op.scratch + 63) & ~(uintptr_t)63;
  uint8_t *scratch = (uint8_t *)base + row_bytes(args->op.vocab) * member;
  int64_t begin, end;
  quire_team_share(args->op.m, 1, member, threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    struct row r = row_of(args, i, scratch);
    int32_t token = row_draw(&r);
    args->op.tokens_out[i] = token;
    args->op.logprobs_out[i] = row_logprob(&r, token);
  }
}

static void sample_run(void *args, struct quire_team *team) {
  const struct sample_args *a = args;
  QUIRE_ASSERT(a->op.m >= 0 && a->op.vocab > 0);
  quire_cpu_run(quire_cpu_team(team, (int64_t)a->op.m * a->op.vocab * 8), sample_share, args);
}

static void sample_launch(struct quire_stream *stream, struct quire_sample op,
                          const struct quire_sample_passes *passes) {
  QUIRE_ASSERT(op.m >= 0 && op.vocab > 0);
  struct sample_args args = {op, passes};
  if (op.m > 0) {
    quire_stream_launch(stream, sample_run, &args, sizeof args);
  }
}

void quire_sample_portable(struct quire_stream *stream, struct quire_sample op) {
  sample_launch(stream, op, &quire_sample_passes_avx2);
}

void quire_sample_avx512(struct quire_stream *stream, struct quire_sample op) {
  sample_launch(stream, op, &quire_sample_passes_avx512);
}

struct score_args {
  struct quire_score op;
  const struct quire_sample_passes *passes;
};

static void score_share(void *context, int member, int threads) {
  const struct score_args *args = context;
  const struct quire_score *op = &args->op;
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const float *logits = op->logits + i * op->logits_ld;
    int32_t target = op->targets[i], tops = op->top_counts != NULL ? op->top_counts[i] : 0;
    QUIRE_ASSERT(target >= -1 && target < op->vocab);
    float max = args->passes->largest(logits, op->vocab, &op->argmax_out[i]), lse = max;
    if (finite(max) && (target >= 0 || tops > 0)) {
      lse = log_sum_exp(args->passes, logits, op->vocab, max);
    }
    op->logprobs_out[i] = target < 0 ? 0.0f : log_probability(logits[target], max, lse);
    if (tops > 0) {
      args->passes->top(logits, op->vocab, tops, op->tops_out[i]);
      finish_tops(op->tops_out[i], tops, max, lse);
    }
  }
}

static void score_run(void *args, struct quire_team *team) {
  const struct score_args *a = args;
  QUIRE_ASSERT(a->op.m >= 0 && a->op.vocab > 0);
  quire_cpu_run(quire_cpu_team(team, (int64_t)a->op.m * a->op.vocab * 8), score_share, args);
}

static void score_launch(struct quire_stream *stream, struct quire_score op, const struct quire_sample_passes *passes) {
  QUIRE_ASSERT(op.m >= 0 && op.vocab > 0);
  struct score_args args = {op, passes};
  if (op.m > 0) {
    quire_stream_launch(stream, score_run, &args, sizeof args);
  }
}

void quire_score_portable(struct quire_stream *stream, struct quire_score op) {
  score_launch(stream, op, &quire_sample_passes_avx2);
}

void quire_score_avx512(struct quire_stream *stream, struct quire_score op) {
  score_launch(stream, op, &quire_sample_passes_avx512);
}

static void count_share(void *context, int member, int threads) {
  const struct quire_count *op = context;
  int64_t begin, end;
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const struct quire_count_job *job = &op->jobs[i];
    if (job->reset) {
      memset(job->counts, 0, (size_t)op->vocab * sizeof *job->counts);
    }
    for (int32_t p = job->begin; p < job->end; p++) {
      int32_t token = job->tokens[p - job->begin];
      QUIRE_ASSERT(token >= 0 && token < op->vocab);
      uint16_t *count = &job->counts[token];
      if (p < job->prompt_end) {
        *count |= QUIRE_COUNT_PROMPT;
      } else if ((*count & QUIRE_COUNT_MAX) < QUIRE_COUNT_MAX) {
        *count = (uint16_t)(*count + 1);
      }
    }
  }
}

QUIRE_CPU_LAUNCHER(count, count_share, (int64_t)op->m * 1024)
