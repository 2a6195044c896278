/* The scratch that select asks for covers every batch within the bounds it was asked for: fewer rows, shorter limits,
 * of which one launch takes more at a time. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/cuda/cuda_select.h"

enum { TOPK = 2048, MULTIPROCESSORS = 132 };

static int64_t bytes_of(int32_t heads, int32_t rows, int32_t limit) {
  return quire_cuda_select_scratch_bytes(heads, TOPK, rows, limit, MULTIPROCESSORS);
}

/* Every batch whose rows and limit are of these lists and within the bounds. */
static void expect_covers(int32_t heads, int32_t rows_max, int32_t limit_max) {
  static const int32_t rows[] = {0, 1, 2, 3, 4, 5, 63, 64, 65, 109, 226, 499, 500, 1019, 1023, 1024, 1025, 1032, 4096};
  static const int32_t limits[] = {0,     1,     64,    191,    192,    193,    2049,   36672,  36864,  37056,
                                   37440, 65536, 76224, 131072, 168384, 262144, 377280, 598464, 739776, 1048576};
  int64_t has = bytes_of(heads, rows_max, limit_max);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (size_t j = 0; j < sizeof limits / sizeof limits[0]; j++) {
      int32_t m = rows[i] < rows_max ? rows[i] : rows_max, limit = limits[j] < limit_max ? limits[j] : limit_max;
      int64_t needs = bytes_of(heads, m, limit);
      if (needs > has) {
        fail_msg("%d heads: %lld bytes for %d rows and limits of %d, but %lld for %d and %d", heads, (long long)has,
                 rows_max, limit_max, (long long)needs, m, limit);
      }
    }
  }
}

static void scratch_covers_smaller_batches(void **state) {
  (void)state;
  static const int32_t heads[] = {1, 16, 32, 33, 64}, bounds[] = {1, 64, 500, 1024, 4096};
  for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++) {
    for (size_t b = 0; b < sizeof bounds / sizeof bounds[0]; b++) {
      for (int32_t limit = 64; limit <= 1 << 20; limit *= 4) {
        expect_covers(heads[h], bounds[b], limit);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(scratch_covers_smaller_batches)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
