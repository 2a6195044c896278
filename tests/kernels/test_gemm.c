/* The matrix product against the flat oracle: every pair of types, odd shapes, every table, teams of 1 to 3. */
#include "kernel_main.h"

struct product {
  struct test_weight weight;
  struct quire_gemm gemm;
  void *x;
  float *x_wide; /* [m][k] */
  float *want;   /* [m][n] */
  void *y;
  void *packed;     /* the weight again, where it can be packed */
  uint8_t *scratch; /* of teams of up to TEST_THREADS_MAX, GUARD bytes behind it */
  int64_t scratch_bytes;
};

#define GUARD 64

static void product_make(struct product *p, enum quire_dtype x_dtype, enum quire_dtype w_dtype, int32_t m, int32_t n,
                         int32_t k) {
  int64_t x_ld = k + test_between(&rng, 0, 3);
  p->weight = test_weight_make(&rng, w_dtype, n, k, 0.1f);
  p->packed = NULL;
  p->x = test_alloc(((int64_t)(m > 0 ? m - 1 : 0) * x_ld + k) * oracle_bytes(x_dtype));
  p->x_wide = test_alloc((int64_t)m * k * 4);
  p->want = test_alloc((int64_t)m * n * 4);
  for (int64_t r = 0; r < m; r++) {
    for (int64_t i = 0; i < k; i++) {
      float v = test_normal(&rng);
      if (x_dtype == QUIRE_DTYPE_BF16) {
        ((uint16_t *)p->x)[r * x_ld + i] = quire_bf16_round(v);
      } else {
        ((float *)p->x)[r * x_ld + i] = v;
      }
      p->x_wide[r * k + i] = oracle_element(p->x, x_dtype, r * x_ld + i);
    }
    for (int64_t c = 0; c < n; c++) {
      p->want[r * n + c] = oracle_product(p->x_wide + r * k, x_dtype == QUIRE_DTYPE_BF16, &p->weight.w, c);
    }
  }
  p->gemm = (struct quire_gemm){
      .x = p->x, .w = p->weight.w, .x_dtype = x_dtype, .m = m, .x_ld = x_ld, .y_ld = n + test_between(&rng, 0, 3)};
  p->y = test_alloc((int64_t)(m > 0 ? m : 1) * p->gemm.y_ld * 4);
  p->gemm.y = p->y;
  p->scratch_bytes = quire_gemm_scratch_bytes(m, k, TEST_THREADS_MAX);
  p->scratch = test_alloc(p->scratch_bytes + GUARD);
}

static void product_free(struct product *p) {
  test_weight_free(&p->weight);
  free(p->x);
  free(p->x_wide);
  free(p->want);
  free(p->y);
  free(p->packed);
  free(p->scratch);
}

/* Runs it on one team, with scratch of any alignment or none, and compares; columns beyond n and bytes behind the
 * scratch must stay poison. */
static void product_run(struct product *p, const struct quire_kernels *kernels, int threads) {
  struct quire_gemm *g = &p->gemm;
  int32_t n = g->w.n;
  g->y_dtype = test_between(&rng, 0, 1) ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32;
  memset(p->y, 0xff, (size_t)((int64_t)g->m * g->y_ld * 4));
  int64_t unaligned = test_between(&rng, 0, GUARD - 1);
  memset(p->scratch, 0xff, (size_t)(p->scratch_bytes + GUARD));
  bool with = g->w.layout == QUIRE_WEIGHT_PACKED || test_between(&rng, 0, 3) > 0;
  g->scratch = with ? p->scratch + unaligned : NULL;
  kernels->gemm(world.stream[threads], *g);
  for (int64_t i = unaligned; i < GUARD; i++) {
    assert_int_equal(p->scratch[p->scratch_bytes + i], 0xff);
  }
  for (int64_t r = 0; r < g->m; r++) {
    if (g->y_dtype == QUIRE_DTYPE_F32) {
      const float *y = (const float *)p->y + r * g->y_ld;
      test_check_rows(kernels->name, y, p->want + r * n, n);
      for (int64_t c = n; c < g->y_ld; c++) {
        assert_int_equal(quire_bits_of(y[c]), 0xffffffffu);
      }
    } else {
      test_check_bf16(kernels->name, (const uint16_t *)p->y + r * g->y_ld, p->want + r * n, n);
    }
  }
}

/* Packs the weight of a product, with poison behind the bytes it may write. */
static void product_pack(struct product *p, const struct quire_kernels *kernels, struct quire_weight *packed_out) {
  int64_t bytes = quire_weight_packed_bytes(&p->weight.w);
  free(p->packed);
  p->packed = aligned_alloc(64, (size_t)bytes + 64);
  assert_non_null(p->packed);
  memset(p->packed, 0xff, (size_t)bytes + 64);
  kernels->pack_weight(&p->weight.w, p->packed, packed_out);
  assert_int_equal(packed_out->layout, QUIRE_WEIGHT_PACKED);
  for (int64_t i = 0; i < 64; i++) {
    assert_int_equal(((const uint8_t *)p->packed)[bytes + i], 0xff);
  }
}

/* Through every table and team, and with packed weights where a table has them. */
static void product_check(struct product *p) {
  for (int index = 0; index < world.kernel_count; index++) {
    const struct quire_kernels *kernels = world.kernels[index];
    struct quire_weight packed;
    bool both =
        kernels->pack_weight != NULL && p->gemm.x_dtype == QUIRE_DTYPE_BF16 && quire_weight_can_pack(&p->weight.w);
    if (both) {
      product_pack(p, kernels, &packed);
    }
    for (int threads = 0; threads < TEST_THREADS_MAX; threads++) {
      p->gemm.w = p->weight.w;
      product_run(p, kernels, threads);
      if (both) {
        p->gemm.w = packed;
        product_run(p, kernels, threads);
      }
    }
  }
  p->gemm.w = p->weight.w;
}

static void check_shape(int32_t m, int32_t n, int32_t k) {
  for (int x = 0; x < 2; x++) {
    for (int w = 0; w < 3; w++) {
      struct product p;
      product_make(&p, x == 0 ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16, (enum quire_dtype)w, m, n, k);
      product_check(&p);
      product_free(&p);
    }
  }
}

static void test_shapes(void **state) {
  static const int32_t shapes[][3] = {
      {0, 16, 32},   {1, 1, 1},     {1, 16, 128},  {5, 33, 31},   {4, 64, 64},  {7, 130, 129}, {65, 17, 160},
      {3, 15, 1024}, {2, 40, 1100}, {130, 48, 32}, {9, 16, 2048}, {6, 200, 16}, {12, 20, 512}, {37, 75, 101},
      {67, 50, 250}, {70, 40, 500}, {64, 64, 256}, {1, 48, 192},  {2, 50, 320}, {4, 33, 1088}, {3, 32, 64}};
  (void)state;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    check_shape(shapes[i][0], shapes[i][1], shapes[i][2]);
  }
}

/* Enough work for a team, along columns and along rows. */
static void test_team(void **state) {
  (void)state;
  check_shape(70, 520, 256);
  check_shape(3, 1040, 2048);
  check_shape(300, 17, 1700);
  check_shape(300, 15, 1900); /* fewer columns than a tile: shares of rows, shares of nothing */
  check_shape(3, 15, 139904);
  check_shape(131, 83, 2112); /* blocks of several n-tiles and chunks, all with ends */
  check_shape(66, 48, 4096);  /* rows that share sets of a cache */
}

/* Packed operands: blocks of rows, of panels, groups, units and steps, whole and with ends. */
static void test_packed(void **state) {
  (void)state;
  check_shape(128, 256, 1024);
  check_shape(131, 275, 1071);
  check_shape(300, 257, 1100);
}

/* Weights packed at load: few rows and many, short k and long, ends of panels and of groups, blocks of rows. */
static void test_prepacked(void **state) {
  (void)state;
  struct quire_weight odd = {.dtype = QUIRE_DTYPE_BF16, .n = 32, .k = 48, .ld = 48};
  assert_false(quire_weight_can_pack(&odd));
  odd.dtype = QUIRE_DTYPE_FP8;
  odd.k = 160;
  assert_false(quire_weight_can_pack(&odd));
  odd.k = 128;
  assert_true(quire_weight_can_pack(&odd));
  odd.layout = QUIRE_WEIGHT_PACKED;
  assert_false(quire_weight_can_pack(&odd));
  static const int32_t rows[] = {1, 2, 3, 4, 5, 8, 9, 17, 33, 64, 95};
  static const int32_t depths[] = {32, 64, 96, 128, 160, 192, 256, 288, 384, 512, 640, 1024};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    for (size_t j = 0; j < sizeof depths / sizeof depths[0]; j++) {
      check_shape(rows[i], test_between(&rng, 1, 140), depths[j]);
    }
  }
  check_shape(1, 300, 1536);
  check_shape(1, 70, 4096); /* a row that is read where it is, or packed */
  check_shape(1, 270, 8320);
  check_shape(2, 1000, 2048); /* enough work for a team */
  check_shape(257, 260, 128);
  check_shape(300, 140, 256);
  check_shape(300, 257, 1152);
  check_shape(515, 70, 640);
}

static void test_random_shapes(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) {
    check_shape(test_between(&rng, 1, 20), test_between(&rng, 1, 90), test_between(&rng, 1, 300));
  }
}

/* A row alone is the row in a batch. */
static void test_batch(void **state) {
  (void)state;
  for (int w = 0; w < 3; w++) {
    struct product p;
    product_make(&p, QUIRE_DTYPE_BF16, (enum quire_dtype)w, 70, 50, 384);
    for (int kernels = 0; kernels < world.kernel_count; kernels++) {
      struct quire_gemm whole = p.gemm;
      float *y = test_alloc(70 * 50 * 4);
      float alone[50];
      whole.y = y;
      whole.y_ld = 50;
      whole.y_dtype = QUIRE_DTYPE_F32;
      world.kernels[kernels]->gemm(world.stream[1], whole);
      for (int64_t r = 0; r < 70; r++) {
        struct quire_gemm one = whole;
        one.x = (const uint16_t *)whole.x + r * whole.x_ld;
        one.y = alone;
        one.m = 1;
        world.kernels[kernels]->gemm(world.stream[0], one);
        assert_memory_equal(alone, y + r * 50, sizeof alone);
      }
      free(y);
    }
    product_free(&p);
  }
}

/* Subnormal operands and products count as zeros of their sign; infinities and NaN stay what they are. */
static void test_specials(void **state) {
  static const uint16_t values[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x8080, 0x1f80, 0x3f80,
                                    0xbf80, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x2080, 0xa0ff, 0x4040};
  (void)state;
  struct product p;
  product_make(&p, QUIRE_DTYPE_BF16, QUIRE_DTYPE_BF16, 16, 16, 64);
  for (int round = 0; round < 200; round++) {
    int first = round % 2 == 0 ? 16 : 10; /* every other round without infinities and NaN */
    for (int64_t r = 0; r < 16; r++) {
      for (int64_t i = 0; i < 64; i++) {
        uint16_t a = test_between(&rng, 0, 3) == 0 ? values[test_between(&rng, 0, first - 1)] : 0;
        uint16_t b = values[test_between(&rng, 0, first - 1)];
        ((uint16_t *)p.x)[r * p.gemm.x_ld + i] = a;
        ((uint16_t *)p.weight.data)[r * p.weight.w.ld + i] = b;
        p.x_wide[r * 64 + i] = quire_bf16_widen(a);
      }
    }
    for (int64_t r = 0; r < 16; r++) {
      for (int64_t c = 0; c < 16; c++) {
        p.want[r * 16 + c] = oracle_product(p.x_wide + r * 64, 1, &p.weight.w, c);
      }
    }
    product_check(&p);
  }
  product_free(&p);
}

/* Near the sum in f64. */
static void test_accuracy(void **state) {
  (void)state;
  struct product p;
  product_make(&p, QUIRE_DTYPE_F32, QUIRE_DTYPE_F32, 8, 32, 2000);
  for (int64_t r = 0; r < 8; r++) {
    for (int64_t c = 0; c < 32; c++) {
      double exact = 0;
      double size = 0;
      for (int64_t i = 0; i < 2000; i++) {
        double term = (double)p.x_wide[r * 2000 + i] * ((const float *)p.weight.data)[c * p.weight.w.ld + i];
        exact += term;
        size += term < 0 ? -term : term;
      }
      double error = exact - (double)p.want[r * 32 + c];
      assert_true((error < 0 ? -error : error) < size * 1e-6);
    }
  }
  product_check(&p);
  product_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shapes),    cmocka_unit_test(test_team),          cmocka_unit_test(test_packed),
      cmocka_unit_test(test_prepacked), cmocka_unit_test(test_random_shapes), cmocka_unit_test(test_batch),
      cmocka_unit_test(test_specials),  cmocka_unit_test(test_accuracy),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
