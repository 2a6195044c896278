#include "kernels/cpu/topk.h"

#include <stdbool.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/number.h"

#define DIGIT_BITS 11
#define DIGITS (1u << DIGIT_BITS)
#define PUSH_MAX 64

/* Radix search from the top digit down: 11, 11 and 10 bits. */
uint32_t quire_topk_kth(const uint32_t *key, int32_t count, int32_t k, int32_t *ties_out) {
  static const uint32_t shifts[] = {21, 10, 0};
  static const uint32_t bits[] = {11, 11, 10};
  uint32_t prefix = 0;
  uint32_t mask = 0;
  int32_t left = k;
  for (int pass = 0; pass < 3; pass++) {
    uint32_t histogram[DIGITS];
    uint32_t digits = 1u << bits[pass];
    memset(histogram, 0, sizeof histogram);
    for (int32_t i = 0; i < count; i++) {
      if ((key[i] & mask) == prefix) {
        histogram[(key[i] >> shifts[pass]) & (digits - 1)]++;
      }
    }
    uint32_t digit = digits - 1;
    while ((int32_t)histogram[digit] < left) {
      left -= (int32_t)histogram[digit];
      QUIRE_ASSERT(digit > 0);
      digit--;
    }
    prefix |= digit << shifts[pass];
    mask |= (digits - 1) << shifts[pass];
  }
  *ties_out = left;
  return prefix;
}

void quire_topk_cut(struct quire_topk *top) {
  int32_t ties;
  if (top->count <= top->k) {
    return;
  }
  if (top->wide) {
    quire_topk_cut_avx512(top);
    return;
  }
  uint32_t kth = quire_topk_kth(top->key, top->count, top->k, &ties);
  int32_t kept = 0;
  for (int32_t i = 0; i < top->count; i++) {
    uint32_t key = top->key[i];
    bool tie = key == kth && ties > 0;
    ties -= tie;
    top->key[kept] = key;
    top->position[kept] = top->position[i];
    kept += key > kth || tie;
  }
  QUIRE_ASSERT(kept == top->k);
  top->count = kept;
  top->threshold = kth;
}

void quire_topk_push(struct quire_topk *top, const float *scores, int32_t position, int32_t count) {
  QUIRE_ASSERT(count <= PUSH_MAX);
  if (top->count + PUSH_MAX > top->capacity) {
    quire_topk_cut(top);
  }
  QUIRE_ASSERT(top->count + PUSH_MAX <= top->capacity);
  if (top->wide) {
    quire_topk_push_avx512(top, scores, position, count);
    return;
  }
  uint32_t keys[PUSH_MAX];
  uint32_t any = 0;
  for (int32_t i = 0; i < count; i++) {
    keys[i] = quire_score_key(scores[i]);
    any |= keys[i] > top->threshold;
  }
  if (any == 0) {
    return;
  }
  int32_t kept = top->count;
  for (int32_t i = 0; i < count; i++) {
    top->key[kept] = keys[i];
    top->position[kept] = position + i;
    kept += keys[i] > top->threshold;
  }
  top->count = kept;
}

void quire_topk_merge(struct quire_topk *top, const struct quire_topk *other) {
  QUIRE_ASSERT(top->k == other->k && top != other);
  for (int32_t i = 0; i < other->count; i++) {
    if (other->key[i] <= top->threshold) {
      continue;
    }
    if (top->count == top->capacity) {
      quire_topk_cut(top);
      i--; /* against the new threshold */
      continue;
    }
    top->key[top->count] = other->key[i];
    top->position[top->count] = other->position[i];
    top->count++;
  }
}
