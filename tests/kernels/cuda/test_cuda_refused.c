/* What the kernels of a GPU do not take is refused before anything is enqueued, each limit by the numbers on both sides
 * of it. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda_attend.h"
#include "kernels/cuda/cuda_select.h"
#include "kernels/kernels_cuda.h"

static const struct quire_kernels_cuda_shape good = {QUIRE_KV_FP8, 128, 64, 2048, 4096, 131072};

static void expect(struct quire_kernels_cuda_shape shape, const char *word) {
  const char *why = NULL;
  assert_int_equal(quire_kernels_cuda_can(&shape, &why), word == NULL);
  assert_int_equal(quire_kernels_cuda_can(&shape, NULL), word == NULL);
  if (word == NULL ? why != NULL : why == NULL || strstr(why, word) == NULL) {
    fail_msg("\"%s\" is not \"%s\"", why == NULL ? "" : why, word == NULL ? "" : word);
  }
}

static void shapes(void **state) {
  (void)state;
  struct quire_kernels_cuda_shape s = good;
  expect(s, NULL);
  s.format = QUIRE_KV_BF16;
  expect(s, NULL);
  s.format = QUIRE_KV_F32;
  expect(s, "f32");
  s.format = (enum quire_kv_format)77;
  expect(s, "unknown format");
  static const int32_t index_heads[] = {0, 1, 64, 65, -3, INT32_MAX}, topk[] = {0, 1, 2048, 2049, -1, INT32_MAX};
  for (int i = 0; i < 6; i++) {
    s = good;
    s.index_heads = index_heads[i];
    expect(s, i == 1 || i == 2 ? NULL : "64 index heads");
    s = good;
    s.topk = topk[i];
    expect(s, i == 1 || i == 2 ? NULL : "top-k of 1 to 2,048");
  }
  static const int32_t limits[] = {0, INT32_MAX - (1 << 15), INT32_MAX - (1 << 15) + 1, INT32_MAX, -1};
  for (int i = 0; i < 5; i++) {
    s = good;
    s.limit_max = limits[i];
    expect(s, i < 2 ? NULL : "positions");
  }
}

/* Rows times groups of 64 heads are numbered in 32 bits. */
static void rows_and_heads(void **state) {
  (void)state;
  static const struct {
    int32_t heads, rows;
    const char *word;
  } cases[] = {
      {1, INT32_MAX, NULL},
      {64, INT32_MAX, NULL},
      {65, INT32_MAX, "groups of 64"},
      {65, INT32_MAX / 2, NULL},
      {INT32_MAX, 1, "head at least"},
      {0, 1, "head at least"},
      {-1, 1, "head at least"},
      {130, 1 << 20, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct quire_kernels_cuda_shape s = good;
    s.heads = cases[i].heads;
    s.rows = cases[i].rows;
    expect(s, cases[i].word);
  }
}

/* Types, and places of rows in a page: of what view and model give, only these are not in the shape. */
static void types_of_attend(void **state) {
  (void)state;
  const struct quire_attend op = {
      .part = {.row_bytes = 656}, .format = QUIRE_KV_FP8, .q_dtype = QUIRE_DTYPE_BF16, .heads = 64};
  struct quire_attend a = op;
  const char *why = NULL;
  a.out_dtype = QUIRE_DTYPE_BF16;
  assert_true(quire_cuda_attend_can(&a, &why));
  assert_null(why);
  a.out_dtype = QUIRE_DTYPE_FP8;
  assert_false(quire_cuda_attend_can(&a, &why));
  assert_non_null(why);
  a = op;
  a.out_dtype = QUIRE_DTYPE_F32;
  assert_true(quire_cuda_attend_can(&a, NULL));
  a.q_dtype = QUIRE_DTYPE_F32;
  assert_false(quire_cuda_attend_can(&a, NULL));
  a = op;
  a.part.row_bytes = 660;
  assert_false(quire_cuda_attend_can(&a, NULL));
  a = op;
  a.part.piece[0].offset = 8;
  assert_false(quire_cuda_attend_can(&a, NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shapes),
      cmocka_unit_test(rows_and_heads),
      cmocka_unit_test(types_of_attend),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
