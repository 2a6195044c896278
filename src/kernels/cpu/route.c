/* The router: which experts a token goes to, and with what weights (arithmetic.md 11). */
#include "base/assert.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/run.h"
#include "kernels/number.h"

#define NONE (-quire_float_of(QUIRE_INF_BITS))

/* Marks the `keep` best of n scores in kept, ties to the lower index; scores of -inf lose to all others and are taken
 * last. */
static void best_mark(const float *scores, int32_t n, int32_t keep, bool *kept) {
  for (int32_t i = 0; i < n; i++) {
    kept[i] = false;
  }
  for (int32_t round = 0; round < keep; round++) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
      if (!kept[i] && (best < 0 || scores[i] > scores[best])) {
        best = i;
      }
    }
    QUIRE_ASSERT(best >= 0);
    kept[best] = true;
  }
}

/* Sum of the two largest, larger first. */
static float group_score(const float *choice, int32_t n) {
  QUIRE_ASSERT(n > 0);
  float first = NONE;
  float second = NONE;
  for (int32_t i = 0; i < n; i++) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return n == 1 ? first : first + second;
}

/* Experts outside the groups that are kept fall to -inf. */
static void groups_mask(const struct quire_route *op, float *choice) {
  QUIRE_ASSERT(op->groups >= 1 && op->experts % op->groups == 0);
  float scores[QUIRE_EXPERTS_MAX];
  bool kept[QUIRE_EXPERTS_MAX];
  int32_t width = op->experts / op->groups;
  for (int32_t g = 0; g < op->groups; g++) {
    scores[g] = group_score(choice + g * width, width);
  }
  best_mark(scores, op->groups, op->groups_kept, kept);
  for (int32_t i = 0; i < op->experts; i++) {
    choice[i] = kept[i / width] ? choice[i] : NONE;
  }
}

static void route_row(const struct quire_route *op, int64_t row) {
  const float *logits = op->logits + row * op->experts;
  int32_t *ids = op->ids_out + row * op->k;
  float *weights = op->weights_out + row * op->k;
  float gate[QUIRE_EXPERTS_MAX];
  float choice[QUIRE_EXPERTS_MAX];
  bool kept[QUIRE_EXPERTS_MAX];
  QUIRE_ASSERT(op->experts > 0);
  for (int32_t i = 0; i < op->experts; i++) {
    gate[i] = quire_sigmoid(logits[i]);
    float c = gate[i] + op->bias[i];
    choice[i] = c == c ? c : NONE;
  }
  if (op->groups > 1) {
    groups_mask(op, choice);
  }
  best_mark(choice, op->experts, op->k, kept);
  int32_t count = 0;
  float total = 0.0f;
  for (int32_t i = 0; i < op->experts; i++) {
    if (kept[i]) {
      ids[count] = i;
      weights[count++] = gate[i];
      total = total + gate[i];
    }
  }
  for (int32_t j = 0; j < count; j++) {
    float r = op->normalise ? weights[j] / (total + 1e-20f) : weights[j];
    weights[j] = r * op->scaling;
  }
}

static void route_share(void *context, int member, int threads) {
  const struct quire_route *op = context;
  int64_t begin, end;
  QUIRE_ASSERT(op->experts <= QUIRE_EXPERTS_MAX && op->k <= QUIRE_EXPERTS_PER_TOKEN_MAX && op->k <= op->experts);
  QUIRE_ASSERT(op->groups >= 1 && op->experts % op->groups == 0 && op->groups_kept <= op->groups);
  quire_team_share(op->m, 1, member, threads, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    route_row(op, row);
  }
}

QUIRE_CPU_LAUNCHER(route, route_share, (int64_t)op->m * op->experts * 8)
