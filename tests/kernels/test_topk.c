/* The lists of the k best, with and without AVX-512, against a sort: random scores, few different ones, all equal, both
 * ways sorted, special values, few among many; pushed in portions, merged in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/topk.h"
#include "kernels/kernels.h"
#include "kernels/number.h"

#define COUNT_MAX 30000

struct ranked {
  uint32_t key;
  int32_t position;
};

static int by_rank(const void *a, const void *b) {
  const struct ranked *x = a, *y = b;
  return x->key != y->key ? (x->key < y->key) - (x->key > y->key)
                          : (x->position > y->position) - (x->position < y->position);
}

static int by_position(const void *a, const void *b) {
  const struct ranked *x = a, *y = b;
  return (x->position > y->position) - (x->position < y->position);
}

static uint64_t state = 88172645463325252u;

static uint32_t noise(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 16);
}

enum { RANDOM, FEW, EQUAL, RISING, FALLING, SPECIAL, RARE, LOW, PATTERNS };

static float score(int pattern, int32_t i) {
  static const uint32_t special[] = {0,           0x80000000u, 0x7f800000u, 0xff800000u,
                                     0x7fc00000u, 0xffc00001u, 1,           0x3f800000u};
  switch (pattern) {
  case RANDOM:
    return quire_float_of(noise() & 0xbfffffffu);
  case FEW:
    return (float)(noise() % 5) - 2.0f;
  case EQUAL:
    return 1.5f;
  case RISING:
    return (float)i;
  case FALLING:
    return (float)-i;
  case RARE: /* a few that may be better, of all kinds, among those that are not */
    return noise() % 24 != 0  ? (float)-i
           : noise() % 2 != 0 ? (float)(noise() % 7)
                              : quire_float_of(special[noise() % 8]);
  case LOW: /* numbers among what is least */
    return noise() % 24 != 0 ? quire_float_of(special[3 + noise() % 3]) : quire_float_of(noise() & 0xbfffffffu);
  default:
    return quire_float_of(special[noise() % 8]);
  }
}

static struct quire_topk open_list(int32_t k, bool wide) {
  int32_t capacity = quire_topk_capacity(k);
  struct quire_topk top = {
      .key = malloc((size_t)capacity * sizeof(uint32_t)),
      .position = malloc((size_t)capacity * sizeof(int32_t)),
      .capacity = capacity,
      .k = k,
      .wide = wide,
  };
  assert_non_null(top.key);
  assert_non_null(top.position);
  return top;
}

static void close_list(struct quire_topk *top) {
  free(top->key);
  free(top->position);
}

static void push_all(struct quire_topk *top, const float *scores, int32_t begin, int32_t end) {
  for (int32_t at = begin; at < end;) {
    int32_t count = noise() % 4 == 0 ? 1 + (int32_t)(noise() % 64) : 64;
    count = count < end - at ? count : end - at;
    quire_topk_push(top, scores + at, at, count);
    at += count;
  }
}

static void check(const float *scores, int32_t count, int32_t k, bool wide, int pieces) {
  static struct ranked all[COUNT_MAX];
  struct quire_topk top = open_list(k, wide);
  push_all(&top, scores, 0, count / pieces);
  for (int piece = 1; piece < pieces; piece++) {
    struct quire_topk other = open_list(k, wide);
    push_all(&other, scores, count * piece / pieces, count * (piece + 1) / pieces);
    quire_topk_cut(&other);
    quire_topk_merge(&top, &other);
    close_list(&other);
  }
  quire_topk_cut(&top);
  for (int32_t i = 0; i < count; i++) {
    all[i] = (struct ranked){quire_score_key(scores[i]), i};
  }
  qsort(all, (size_t)count, sizeof all[0], by_rank);
  int32_t kept = count < k ? count : k;
  qsort(all, (size_t)kept, sizeof all[0], by_position);
  assert_int_equal(top.count, kept);
  for (int32_t i = 0; i < kept; i++) {
    assert_int_equal(top.position[i], all[i].position);
    assert_int_equal(top.key[i], all[i].key);
  }
  close_list(&top);
}

static bool machine_is_wide(void) {
  const struct quire_kernels *kernels = NULL;
  return quire_kernels_find("avx512", &kernels, NULL) == QUIRE_OK;
}

static void against_a_sort(void **unused) {
  (void)unused;
  static float scores[COUNT_MAX];
  static const int32_t counts[] = {1, 63, 64, 700, 9000, COUNT_MAX}, ks[] = {1, 64, 100, 2048};
  uint32_t control = quire_kernels_enter();
  for (int i = 0; i < PATTERNS * 6 * 4; i++) {
    int32_t count = counts[i / PATTERNS % 6], k = ks[i / PATTERNS / 6];
    for (int32_t at = 0; at < count; at++) {
      scores[at] = score(i % PATTERNS, at);
    }
    for (int pieces = 1; pieces <= 3; pieces += 2) {
      check(scores, count, k, false, pieces);
      if (machine_is_wide()) {
        check(scores, count, k, true, pieces);
      }
    }
  }
  quire_kernels_leave(control);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(against_a_sort)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
