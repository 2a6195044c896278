/* Formats, functions and tables: check values of the published models, and exhaustive comparisons where the domain
 * allows. */
#include <math.h>

#include "kernel_oracle.h"

/* Nearest of the 256 codes, ties to the even one, by looking at them all. */
static uint8_t e4m3_by_search(float x) {
  uint8_t best = 0;
  double best_error = INFINITY;
  double magnitude = fabs((double)x);
  magnitude = magnitude > 448.0 ? 448.0 : magnitude;
  for (int code = 0; code < 0x7f; code++) {
    double value = (code >> 3) == 0 ? code * 0x1p-9 : ldexp(1.0 + (code & 7) / 8.0, (code >> 3) - 7);
    double error = fabs(value - magnitude);
    if (error < best_error || (error == best_error && code % 2 == 0)) {
      best = (uint8_t)code;
      best_error = error;
    }
  }
  return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

static void test_e4m3(void **state) {
  static const struct {
    float value;
    uint8_t code;
  } samples[] = {{1.0f, 0x38},      {1.0625f, 0x38}, {1.1875f, 0x3a},  {17.0f, 0x58},     {19.0f, 0x5a},
                 {-3.3f, 0xc5},     {0x1p-9f, 0x01}, {0x1p-10f, 0x00}, {0x1.8p-9f, 0x02}, {460.0f, 0x7e},
                 {-INFINITY, 0xfe}, {-0.0f, 0x80},   {1e-30f, 0x00},   {NAN, 0x7f}};
  (void)state;
  for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
    assert_int_equal(quire_e4m3_of(samples[i].value), samples[i].code);
  }
  for (int code = 0; code < 256; code++) {
    float value = quire_f32_of_e4m3((uint8_t)code);
    if ((code & 0x7f) == 0x7f) {
      assert_true(value != value);
      continue;
    }
    int exponent = code >> 3 & 15;
    double want = exponent == 0 ? (code & 7) * 0x1p-9 : ldexp(1.0 + (code & 7) / 8.0, exponent - 7);
    assert_true((double)value == (code & 0x80 ? -want : want));
    assert_int_equal(quire_e4m3_of(value), code);
  }
  for (uint64_t bits = 0; bits < 0x7f800000u; bits += 4099) { /* every exponent, odd bits */
    float x = quire_float_of((uint32_t)bits);
    assert_int_equal(quire_e4m3_round(x), e4m3_by_search(x));
    assert_int_equal(quire_e4m3_round(-x), e4m3_by_search(-x));
  }
}

static void test_bf16(void **state) {
  (void)state;
  assert_int_equal(quire_bf16_of(1.0f), 0x3f80);
  assert_int_equal(quire_bf16_of(quire_float_of(0x3f808000u)), 0x3f80); /* tie to even */
  assert_int_equal(quire_bf16_of(quire_float_of(0x3f818000u)), 0x3f82);
  assert_int_equal(quire_bf16_of(quire_float_of(0x7f7fffffu)), 0x7f80); /* rounds up to infinity */
  assert_int_equal(quire_bf16_of(quire_float_of(0x80000001u)), 0x8000); /* subnormal */
  assert_int_equal(quire_bf16_of(quire_float_of(0x7f800001u)), 0x7fc0);
  for (uint32_t half = 0; half < 0x10000u; half++) {
    uint32_t magnitude = half & 0x7fff;
    if (magnitude <= 0x7f80 && magnitude >= 0x80) {
      assert_int_equal(quire_bf16_of(quire_f32_of_bf16((uint16_t)half)), half);
    }
  }
}

static void test_scale(void **state) {
  static const struct {
    float amax;
    float scale;
  } samples[] = {{0.0f, 0x1p-22f}, {1e-4f, 0x1p-22f},  {1.0f, 0x1p-8f}, {3.5f, 0x1p-7f},
                 {7.0f, 0x1p-6f},  {7.0001f, 0x1p-5f}, {448.0f, 1.0f}};
  (void)state;
  for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
    assert_true(quire_scale_of(samples[i].amax) == samples[i].scale);
    assert_true(quire_scale_of(samples[i].amax) * quire_scale_inverse(samples[i].amax) == 1.0f);
  }
  for (int e = -9; e < 100; e++) { /* 7 * 2^e divides by 448 to a power of two exactly: no step too far */
    assert_true(quire_scale_of(ldexpf(7.0f, e)) == ldexpf(1.0f, e - 6));
  }
}

static double ulps(float got, double want) {
  int exponent;
  frexp(want, &exponent);
  return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}

static void test_exp(void **state) {
  (void)state;
  double worst = 0;
  assert_true(quire_exp(0.0f) == 1.0f);
  assert_true(quire_exp(-87.5f) == 0.0f && quire_exp(-INFINITY) == 0.0f);
  assert_true(quire_exp(89.0f) == INFINITY && quire_exp(INFINITY) == INFINITY);
  assert_true(quire_exp(NAN) != quire_exp(NAN));
  for (float x = -87.0f; x <= 88.0f; x += 0.0009765625f) {
    double error = ulps(quire_exp(x), exp((double)x));
    worst = error > worst ? error : worst;
  }
  for (float x = 1.0f; x > 1e-9f; x *= 0.99f) {
    assert_true(ulps(quire_exp(-x), exp(-(double)x)) < 1.5);
  }
  assert_true(worst < 1.5);
}

static void test_log(void **state) {
  (void)state;
  assert_true(quire_log(1.0) == 0.0);
  assert_true(quire_log(0.0) == -INFINITY);
  for (double x = 1e-30; x < 1e30; x *= 1.000731) {
    double want = log(x);
    assert_true(fabs(quire_log(x) - want) <= fabs(want) * 8e-16 + 1e-17);
  }
  for (double d = 1e-12; d < 0.3; d *= 1.01) {
    assert_true(fabs(quire_log(1.0 + d) - log(1.0 + d)) <= log(1.0 + d) * 8e-16);
    assert_true(fabs(quire_log(1.0 - d) - log(1.0 - d)) <= -log(1.0 - d) * 8e-16);
  }
}

static void test_activations(void **state) {
  (void)state;
  assert_true(quire_sigmoid(0.0f) == 0.5f && quire_silu(0.0f) == 0.0f);
  assert_true(quire_sigmoid(-200.0f) == 0.0f && quire_sigmoid(200.0f) == 1.0f);
  assert_true(quire_silu(-200.0f) == 0.0f && quire_silu(200.0f) == 200.0f);
  for (float x = -80.0f; x < 80.0f; x += 0.01f) {
    double want = 1.0 / (1.0 + exp(-(double)x));
    assert_true(fabs((double)quire_sigmoid(x) - want) <= want * 4e-7);
    assert_true(fabs((double)quire_silu(x) - x * want) <= fabs(x * want) * 5e-7 + 1e-37);
  }
}

static void test_score_key(void **state) {
  static const float rising[] = {-INFINITY, -1e30f, -1.0f, -1e-30f, 0.0f, 1e-30f, 1.0f, INFINITY};
  (void)state;
  for (size_t i = 1; i < sizeof rising / sizeof rising[0]; i++) {
    assert_true(quire_score_key(rising[i - 1]) < quire_score_key(rising[i]));
  }
  assert_int_equal(quire_score_key(-0.0f), quire_score_key(0.0f));
  assert_int_equal(quire_score_key(NAN), quire_score_key(-INFINITY));
  assert_int_equal(quire_score_key(-NAN), quire_score_key(-INFINITY));
  assert_true(quire_score_key(-INFINITY) > 0);
}

/* Known answers of the authors' library, then that seed, position and id all matter. */
static void test_philox(void **state) {
  static const uint32_t known[3][10] = {
      {0, 0, 0, 0, 0, 0, 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
      {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
      {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u, 0xd16cfe09u, 0x94fdccebu,
       0x5001e420u, 0x24126ea1u}};
  (void)state;
  for (int i = 0; i < 3; i++) {
    uint32_t c[4];
    memcpy(c, known[i], sizeof c);
    quire_philox_block(c, known[i][4], known[i][5]);
    assert_memory_equal(c, known[i] + 6, sizeof c);
  }
  int64_t buckets[16] = {0};
  for (int32_t id = 0; id < 160000; id++) {
    buckets[quire_philox(7, 3, id) >> 28]++;
  }
  for (int i = 0; i < 16; i++) {
    assert_true(buckets[i] > 9600 && buckets[i] < 10400);
  }
  int bits = 0;
  for (int i = 0; i < 1000; i++) {
    bits += __builtin_popcount(quire_philox((uint64_t)i, 1, 5) ^ quire_philox((uint64_t)i, 2, 5));
    bits += __builtin_popcount(quire_philox((uint64_t)i, 1, 5) ^ quire_philox((uint64_t)i ^ 1ull << 63, 1, 5));
  }
  assert_true(bits > 31000 && bits < 33000);
}

static void test_softmax_scale(void **state) {
  (void)state;
  assert_true(fabsf(quire_softmax_scale(192, true, 40.0f, 1.0f) - 0.1352337789f) < 1e-8f);
  assert_true(quire_softmax_scale(256, false, 1.0f, 0.0f) == 0.0625f);
  assert_true(fabsf(quire_softmax_scale(192, false, 40.0f, 1.0f) - 0.0721687836f) < 1e-8f);
  assert_true(quire_softmax_scale(192, true, 1.0f, 1.0f) == quire_softmax_scale(192, false, 1.0f, 1.0f));
}

/* Frequencies show at position 1: the angle is the frequency. */
static void test_frequencies(void **state) {
  static const double v32[32] = {
      1,      .749894209,    .562341325,    .421696503,    .316227766,    .237137371,    .177827941,    .133352143,
      .1,     .0749894209,   .0562341325,   .0390069266,   .0268793601,   .0183781462,   .0124479559,   .00833450895,
      .0055,  .00356199749,  .0022493653,   .00137051364,  7.90569415e-4, 4.14990398e-4, 1.77827941e-4, 3.33380358e-5,
      2.5e-5, 1.87473552e-5, 1.40585331e-5, 1.05424126e-5, 7.90569415e-6, 5.92843426e-6, 4.44569853e-6, 3.33380358e-6};
  static const struct {
    float theta;
    int i;
    double freq;
  } plain[] = {{1e6f, 1, .649382}, {1e6f, 8, .0316228}, {1e6f, 16, 1e-3},       {1e6f, 31, 1.53993e-6},
               {8e6f, 1, .608525}, {8e6f, 8, .018803},  {8e6f, 16, 3.53553e-4}, {8e6f, 31, 2.05415e-7}};
  (void)state;
  float table[2][32][2];
  quire_rope_table(&test_rope_v32, 2, &table[0][0][0]);
  for (int i = 0; i < 32; i++) {
    assert_true(table[0][i][0] == 1.0f && table[0][i][1] == 0.0f);
    assert_true(fabs(table[1][i][1] - sin(v32[i])) < 1e-9 + 6e-8 * sin(v32[i]));
    assert_true(fabs(table[1][i][0] - cos(v32[i])) < 1e-7);
  }
  for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
    struct quire_rope_config config = {.theta = plain[i].theta, .attention_factor = 1.0f};
    quire_rope_table(&config, 2, &table[0][0][0]);
    assert_true(fabs(table[1][plain[i].i][1] / sin(plain[i].freq) - 1.0) < 3e-6);
  }
}

/* The table is the cosine of the f32 angle, rounded once. */
static void test_table(void **state) {
  (void)state;
  struct quire_rope_config config = {.theta = 8e6f, .attention_factor = 1.0f};
  int32_t positions = 300000;
  float *table = test_alloc((int64_t)positions * 64 * 4);
  quire_rope_table(&config, positions, table);
  for (int32_t position = 0; position < positions; position += 37) {
    for (int i = 0; i < 32; i++) {
      float freq = (float)pow(8e6, -2.0 * i / 64.0);
      float angle = (float)position * freq;
      float cosine = table[((int64_t)position * 32 + i) * 2];
      float sine = table[((int64_t)position * 32 + i) * 2 + 1];
      /* pow may differ from ours by an ulp of the frequency: 2^-24 of the angle; else half an ulp of the result */
      assert_true(fabs(cosine - cos((double)angle)) <= 0x1p-24 + 0x1p-24 * angle);
      assert_true(fabs(sine - sin((double)angle)) <= 0x1p-24 + 0x1p-24 * angle);
    }
  }
  free(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_e4m3),        cmocka_unit_test(test_bf16),   cmocka_unit_test(test_scale),
      cmocka_unit_test(test_exp),         cmocka_unit_test(test_log),    cmocka_unit_test(test_activations),
      cmocka_unit_test(test_score_key),   cmocka_unit_test(test_philox), cmocka_unit_test(test_softmax_scale),
      cmocka_unit_test(test_frequencies), cmocka_unit_test(test_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
