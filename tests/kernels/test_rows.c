/* Norms, rotation, elementwise operations and quantisers against flat oracles: odd widths, empty batches, teams,
 * poison. */
#include <math.h>

#include "kernel_main.h"

/* A matrix with a random distance between rows; what lies between is poison. */
struct matrix {
  float *x;
  int64_t ld;
};

static struct matrix matrix_make(int32_t m, int32_t n, float scale) {
  struct matrix a = {.ld = n + test_between(&rng, 0, 3)};
  a.x = test_poisoned((m > 0 ? m : 1) * a.ld * 4);
  for (int64_t r = 0; r < m; r++) {
    test_fill(&rng, a.x + r * a.ld, n, scale);
  }
  return a;
}

static const struct quire_kernels *kernels_any(void) {
  return world.kernels[test_between(&rng, 0, world.kernel_count - 1)];
}

static struct quire_stream *stream_any(void) { return world.stream[test_between(&rng, 0, TEST_THREADS_MAX - 1)]; }

static const int32_t widths[] = {1, 7, 16, 31, 32, 100, 128, 255, 256, 257, 512, 576, 1000};

#define WIDTHS ((int)(sizeof widths / sizeof widths[0]))

/* n outputs of m rows at y against want, as f32 or bf16. */
static void output_check(struct matrix y, enum quire_dtype dtype, const float *want, int32_t m, int32_t n) {
  for (int64_t r = 0; r < m; r++) {
    if (dtype == QUIRE_DTYPE_BF16) {
      const uint16_t *row = (const uint16_t *)(const void *)y.x + r * y.ld;
      test_check_bf16("bf16 output", row, want + r * n, n);
      for (int64_t c = n; c < y.ld; c++) {
        assert_int_equal(row[c], 0xffff);
      }
    } else {
      test_check_rows("f32 output", y.x + r * y.ld, want + r * n, n);
    }
  }
}

static void test_rmsnorm(void **state) {
  (void)state;
  for (int i = 0; i < 60; i++) {
    int32_t m = test_between(&rng, 0, 6) * (i % 5 == 0 ? 20 : 1);
    int32_t n = widths[i % WIDTHS];
    struct matrix x = matrix_make(m, n, 3.0f);
    struct matrix gain = matrix_make(1, n, 1.0f);
    struct matrix y = matrix_make(m, n, 1.0f);
    float *want = test_alloc((int64_t)m * n * 4);
    float eps = i % 2 ? 1e-6f : 1e-5f;
    enum quire_dtype dtype = i % 3 == 0 ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32;
    memset(y.x, 0xff, (size_t)((m > 0 ? m : 1) * y.ld * 4));
    for (int64_t r = 0; r < m; r++) {
      const float *row = x.x + r * x.ld;
      float scale = 1.0f / sqrtf(oracle_dot(row, row, n, 0) / (float)n + eps);
      double squares = 0;
      for (int64_t c = 0; c < n; c++) {
        want[r * n + c] = (row[c] * scale) * gain.x[c];
        squares += (double)row[c] * row[c];
      }
      assert_true(fabs(scale * sqrt(squares / n + (double)eps) - 1.0) < 1e-5);
    }
    kernels_any()->rmsnorm(stream_any(), (struct quire_rmsnorm){.x = x.x,
                                                                .gain = gain.x,
                                                                .y = y.x,
                                                                .y_dtype = dtype,
                                                                .m = m,
                                                                .n = n,
                                                                .x_ld = x.ld,
                                                                .y_ld = y.ld,
                                                                .eps = eps});
    output_check(y, dtype, want, m, n);
    free(x.x);
    free(gain.x);
    free(y.x);
    free(want);
  }
}

static void test_layernorm(void **state) {
  (void)state;
  for (int i = 0; i < 40; i++) {
    int32_t m = test_between(&rng, 0, 5);
    int32_t n = widths[i % WIDTHS];
    struct matrix x = matrix_make(m, n, 3.0f);
    struct matrix gain = matrix_make(2, n, 1.0f);
    struct matrix y = matrix_make(m, n, 1.0f);
    float *want = test_alloc((int64_t)m * n * 4);
    float *d = test_alloc((int64_t)n * 4);
    for (int64_t r = 0; r < m; r++) {
      const float *row = x.x + r * x.ld;
      float mean = oracle_sum(row, n) / (float)n;
      for (int64_t c = 0; c < n; c++) {
        d[c] = row[c] - mean;
      }
      float scale = 1.0f / sqrtf(oracle_dot(d, d, n, 0) / (float)n + 1e-6f);
      for (int64_t c = 0; c < n; c++) {
        want[r * n + c] = fmaf(d[c] * scale, gain.x[c], gain.x[gain.ld + c]);
      }
    }
    kernels_any()->layernorm(stream_any(), (struct quire_layernorm){.x = x.x,
                                                                    .gain = gain.x,
                                                                    .bias = gain.x + gain.ld,
                                                                    .y = y.x,
                                                                    .m = m,
                                                                    .n = n,
                                                                    .x_ld = x.ld,
                                                                    .y_ld = y.ld,
                                                                    .eps = 1e-6f});
    output_check(y, QUIRE_DTYPE_F32, want, m, n);
    free(x.x);
    free(gain.x);
    free(y.x);
    free(want);
    free(d);
  }
}

/* Published values: V3.2 frequencies, position 7, x_j = sin(0.1 j). */
static void test_rope_values(void **state) {
  static const struct {
    int j;
    float interleaved;
    float half;
  } samples[] = {{0, -0.0655892f, 0.0383510f},   {1, 0.0752646f, -0.0844933f},   {2, 0.3555538f, -0.3215390f},
                 {3, -0.0195756f, -0.2240668f},  {24, 0.5515993f, 0.6755736f},   {25, 0.7142532f, 0.5985444f},
                 {32, -0.0522592f, -0.0440084f}, {33, -0.1598756f, -0.1664671f}, {63, 0.0168120f, 0.0168149f}};
  (void)state;
  float table[8 * 64];
  float x[2][64];
  int32_t position = 7;
  quire_rope_table(&test_rope_v32, 8, table);
  for (int layout = 0; layout < 2; layout++) {
    for (int j = 0; j < 64; j++) {
      x[layout][j] = (float)sin(0.1 * j);
    }
    world.kernels[0]->rope(world.stream[0], (struct quire_rope){.x = x[layout],
                                                                .table = table,
                                                                .positions = &position,
                                                                .layout = (enum quire_rope_layout)layout,
                                                                .m = 1,
                                                                .heads = 1,
                                                                .x_ld = 64,
                                                                .head_ld = 64});
  }
  for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
    assert_true(fabsf(x[0][samples[i].j] - samples[i].interleaved) < 1.5e-7f);
    assert_true(fabsf(x[1][samples[i].j] - samples[i].half) < 1.5e-7f);
  }
}

static void test_rope(void **state) {
  const struct quire_rope_config config = {.theta = 1e6f, .attention_factor = 1.0f};
  (void)state;
  float *table = test_alloc(100 * 64 * 4);
  quire_rope_table(&config, 100, table);
  for (int i = 0; i < 30; i++) {
    int32_t m = test_between(&rng, 0, 7);
    int32_t heads = test_between(&rng, 1, 5);
    int64_t head_ld = 64 + test_between(&rng, 0, 70);
    enum quire_rope_layout layout = i % 2 ? QUIRE_ROPE_HALF : QUIRE_ROPE_INTERLEAVED;
    struct matrix x = matrix_make(m, (int32_t)(heads * head_ld), 1.0f);
    float *want = test_alloc((m > 0 ? m : 1) * x.ld * 4);
    int32_t positions[8];
    memcpy(want, x.x, (size_t)((m > 0 ? m : 1) * x.ld * 4));
    for (int64_t r = 0; r < m; r++) {
      positions[r] = test_between(&rng, 0, 99);
      for (int64_t h = 0; h < heads; h++) {
        float *v = want + r * x.ld + h * head_ld;
        for (int p = 0; p < 32; p++) {
          float *a = layout == QUIRE_ROPE_HALF ? v + p : v + 2 * p;
          float *b = layout == QUIRE_ROPE_HALF ? v + p + 32 : v + 2 * p + 1;
          float c = table[(positions[r] * 32 + p) * 2];
          float s = table[(positions[r] * 32 + p) * 2 + 1];
          float was_a = *a;
          *a = fmaf(was_a, c, -(*b * s));
          *b = fmaf(was_a, s, *b * c);
        }
      }
    }
    kernels_any()->rope(stream_any(), (struct quire_rope){.x = x.x,
                                                          .table = table,
                                                          .positions = positions,
                                                          .layout = layout,
                                                          .m = m,
                                                          .heads = heads,
                                                          .x_ld = x.ld,
                                                          .head_ld = head_ld});
    test_check_rows("rope", x.x, want, m * x.ld);
    free(x.x);
    free(want);
  }
  free(table);
}

/* The butterflies as arithmetic.md 9 lists them. */
static void oracle_hadamard(float *x) {
  for (int stride = 1; stride < 128; stride *= 2) {
    for (int i = 0; i < 128; i++) {
      if ((i & stride) == 0) {
        float a = x[i] + x[i + stride];
        float b = x[i] - x[i + stride];
        x[i] = a;
        x[i + stride] = b;
      }
    }
  }
  for (int i = 0; i < 128; i++) {
    x[i] = x[i] * (float)(1.0 / sqrt(128.0));
  }
}

/* Published values: v_j = sin(0.1 j). */
static void test_hadamard_values(void **state) {
  static const struct {
    int j;
    float value;
  } samples[] = {{0, 0.013761f}, {1, -0.010291f}, {2, -0.020635f}, {64, -0.012026f}, {127, -0.000182f}};
  (void)state;
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    float x[128];
    for (int j = 0; j < 128; j++) {
      x[j] = (float)sin(0.1 * j);
    }
    world.kernels[kernels]->hadamard(world.stream[0], (struct quire_hadamard){x, 1, 1, 128, 128});
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
      assert_true(fabsf(x[samples[i].j] - samples[i].value) < 6e-7f);
    }
  }
}

/* Entry (i, j) of the matrix is -1 to the number of bits i and j share. */
static void check_matrix(const float *x, const float *y) {
  for (int i = 0; i < 128; i++) {
    double sum = 0;
    for (int j = 0; j < 128; j++) {
      sum += __builtin_parity((unsigned)(i & j)) ? -(double)x[j] : (double)x[j];
    }
    assert_true(fabs(sum / sqrt(128.0) - (double)y[i]) < 1e-5);
  }
}

static void test_hadamard(void **state) {
  (void)state;
  for (int i = 0; i < 30; i++) {
    int32_t m = test_between(&rng, 0, 7) * (i % 5 == 0 ? 20 : 1); /* enough for a team */
    int32_t heads = test_between(&rng, 1, 5);
    int64_t head_ld = 128 + (i % 2 ? test_between(&rng, 0, 70) : 0);
    struct matrix x = matrix_make(m, (int32_t)(heads * head_ld), 1.0f);
    int64_t bytes = (m > 0 ? m : 1) * x.ld * 4;
    float *want = test_alloc(bytes);
    if (m > 0 && i % 4 == 0) { /* sums below the smallest normal are zero */
      for (int d = 0; d < 128; d++) {
        x.x[d] = (d % 3 == 0 ? 1.0f : -1.25f) * 0x1p-126f;
      }
    }
    memcpy(want, x.x, (size_t)bytes);
    for (int64_t r = 0; r < m; r++) {
      for (int64_t h = 0; h < heads; h++) {
        oracle_hadamard(want + r * x.ld + h * head_ld);
        check_matrix(x.x + r * x.ld + h * head_ld, want + r * x.ld + h * head_ld);
      }
    }
    kernels_any()->hadamard(
        stream_any(), (struct quire_hadamard){.x = x.x, .m = m, .heads = heads, .x_ld = x.ld, .head_ld = head_ld});
    test_check_rows("hadamard", x.x, want, m * x.ld);
    free(x.x);
    free(want);
  }
}

static void test_elementwise(void **state) {
  (void)state;
  for (int i = 0; i < 60; i++) {
    int32_t m = test_between(&rng, 0, 5) * (i % 7 == 0 ? 30 : 1);
    int32_t n = widths[i % WIDTHS];
    struct matrix a = matrix_make(m, n, 5.0f);
    struct matrix b = matrix_make(m, n, 5.0f);
    struct matrix y = matrix_make(m, n, 1.0f);
    float *want = test_alloc((int64_t)m * n * 4);
    enum quire_dtype dtype = i % 2 ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32;
    memset(y.x, 0xff, (size_t)((m > 0 ? m : 1) * y.ld * 4));
    for (int64_t j = 0; j < (int64_t)m * n; j++) {
      float g = a.x[j / n * a.ld + j % n];
      want[j] = g / (1.0f + quire_exp(-g)) * b.x[j / n * b.ld + j % n];
    }
    kernels_any()->silu_mul(stream_any(), (struct quire_silu_mul){.gate = a.x,
                                                                  .up = b.x,
                                                                  .y = y.x,
                                                                  .y_dtype = dtype,
                                                                  .m = m,
                                                                  .n = n,
                                                                  .gate_ld = a.ld,
                                                                  .up_ld = b.ld,
                                                                  .y_ld = y.ld});
    output_check(y, dtype, want, m, n);
    for (int64_t j = 0; j < (int64_t)m * n; j++) {
      want[j] = a.x[j / n * a.ld + j % n];
    }
    memset(y.x, 0xff, (size_t)((m > 0 ? m : 1) * y.ld * 4));
    kernels_any()->convert(
        stream_any(),
        (struct quire_convert){.x = a.x, .y = y.x, .y_dtype = dtype, .m = m, .n = n, .x_ld = a.ld, .y_ld = y.ld});
    output_check(y, dtype, want, m, n);
    for (int64_t j = 0; j < (int64_t)m * n; j++) {
      want[j] = want[j] + b.x[j / n * b.ld + j % n];
    }
    kernels_any()->add(stream_any(),
                       (struct quire_add){.x = a.x, .y = b.x, .m = m, .n = n, .x_ld = a.ld, .y_ld = b.ld});
    output_check(a, QUIRE_DTYPE_F32, want, m, n);
    free(a.x);
    free(b.x);
    free(y.x);
    free(want);
  }
}

static void test_embed(void **state) {
  (void)state;
  for (int i = 0; i < 12; i++) {
    int32_t m = test_between(&rng, 0, 9);
    int32_t n = widths[i];
    struct test_weight table = test_weight_make(&rng, i % 2 ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32, 30, n, 1.0f);
    struct matrix x = matrix_make(m, n, 1.0f);
    int32_t tokens[9];
    for (int32_t r = 0; r < m; r++) {
      tokens[r] = test_between(&rng, 0, 29);
    }
    kernels_any()->embed(stream_any(),
                         (struct quire_embed){.table = table.w, .tokens = tokens, .x = x.x, .m = m, .x_ld = x.ld});
    for (int64_t r = 0; r < m; r++) {
      for (int64_t c = 0; c < n; c++) {
        assert_true(x.x[r * x.ld + c] == oracle_element(table.data, table.w.dtype, tokens[r] * table.w.ld + c));
      }
    }
    test_weight_free(&table);
    free(x.x);
  }
}

static void test_finite(void **state) {
  (void)state;
  for (int i = 0; i < 30; i++) {
    struct matrix x = matrix_make(6, 77, 1e30f);
    int32_t flags[6] = {0, 0, 0, 0, 1, 0};
    int32_t bad = test_between(&rng, 0, 3);
    static const float unstorable[] = {NAN, INFINITY, -INFINITY, 0x1p127f, -0x1.8p127f};
    x.x[((bad + 1) % 6) * x.ld] = 0x1.fffffep126f; /* the largest that can be stored */
    x.x[bad * x.ld + test_between(&rng, 0, 76)] = unstorable[i % 5];
    kernels_any()->finite(stream_any(),
                          (struct quire_finite){.x = x.x, .flags_out = flags, .m = 6, .n = 77, .x_ld = x.ld});
    for (int r = 0; r < 6; r++) {
      assert_int_equal(flags[r], r == bad || r == 4);
    }
    free(x.x);
  }
}

static void test_quantise_latent(void **state) {
  static const int32_t row_bytes[] = {2304, 1152, 656};
  (void)state;
  for (int i = 0; i < 30; i++) {
    int32_t m = test_between(&rng, 0, 70);
    enum quire_kv_format format = (enum quire_kv_format)(i % 3);
    bool any_scale = i % 2 == 1;
    struct matrix latent = matrix_make(m, 512, i % 4 == 0 ? 1e-5f : i % 4 == 1 ? 1e3f : 1.0f);
    struct matrix rope = matrix_make(m, 64, 1.0f);
    uint8_t *out = test_poisoned((int64_t)m * row_bytes[format]);
    kernels_any()->quantise_latent(stream_any(), (struct quire_quantise_latent){.latent = latent.x,
                                                                                .rope = rope.x,
                                                                                .out = out,
                                                                                .format = format,
                                                                                .any_scale = any_scale,
                                                                                .m = m,
                                                                                .latent_ld = latent.ld,
                                                                                .rope_ld = rope.ld});
    for (int64_t r = 0; r < m; r++) {
      const float *v = latent.x + r * latent.ld;
      const float *k = rope.x + r * rope.ld;
      const uint8_t *row = out + r * row_bytes[format];
      uint8_t want[2304];
      if (format == QUIRE_KV_F32) {
        memcpy(want, v, 2048);
        memcpy(want + 2048, k, 256);
      } else {
        uint16_t *wide = (uint16_t *)(void *)want;
        for (int d = 0; d < 512 && format == QUIRE_KV_BF16; d++) {
          wide[d] = quire_bf16_round(v[d]);
        }
        for (int block = 0; block < 4 && format == QUIRE_KV_FP8; block++) {
          float s = oracle_quantise(v + block * 128, 128, any_scale, want + block * 128);
          memcpy(want + 512 + block * 4, &s, 4);
        }
        for (int d = 0; d < 64; d++) {
          wide[(row_bytes[format] - 128) / 2 + d] = quire_bf16_round(k[d]);
        }
      }
      assert_memory_equal(row, want, (size_t)row_bytes[format]);
    }
    free(latent.x);
    free(rope.x);
    free(out);
  }
}

static void test_quantise_index(void **state) {
  (void)state;
  for (int i = 0; i < 30; i++) {
    int32_t m = test_between(&rng, 0, 40);
    enum quire_kv_format format = (enum quire_kv_format)(i % 3);
    bool any_scale = i % 2 == 1;
    struct matrix key = matrix_make(m, 128, i % 4 == 0 ? 1e-6f : i % 4 == 1 ? 1e3f : 1.0f);
    uint8_t *keys = test_poisoned((int64_t)m * 512);
    float *scales = test_poisoned((int64_t)(m + 1) * 4);
    if (m > 0 && i % 5 == 0) {
      memset(key.x, 0, 512); /* a key of zeros has the least scale */
    }
    kernels_any()->quantise_index(stream_any(), (struct quire_quantise_index){.key = key.x,
                                                                              .keys_out = keys,
                                                                              .scales_out = scales,
                                                                              .format = format,
                                                                              .any_scale = any_scale,
                                                                              .m = m,
                                                                              .key_ld = key.ld});
    for (int64_t r = 0; r < m; r++) {
      uint8_t want[128];
      if (format == QUIRE_KV_F32) {
        assert_memory_equal(keys + r * 512, key.x + r * key.ld, 512);
        continue;
      }
      float s = oracle_quantise(key.x + r * key.ld, 128, any_scale, want);
      assert_memory_equal(keys + r * 128, want, 128);
      assert_true(scales[r] == s);
      for (int d = 0; d < 128; d++) { /* within half a step: a sixteenth of the value, or half the subnormal step */
        float v = key.x[r * key.ld + d];
        assert_true(fabsf(quire_e4m3_widen(want[d]) * s - v) <=
                    fmaxf(fabsf(v) / 16.0f, s * 0x1p-10f) * (any_scale ? 1.0f + 0x1p-20f : 1.0f));
      }
    }
    assert_int_equal(quire_bits_of(scales[m]), 0xffffffffu);
    free(key.x);
    free(keys);
    free(scales);
  }
}

/* Any scale: amax itself becomes 448, a block of small values gets the least scale. */
static void test_any_scale_values(void **state) {
  (void)state;
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    float key[2][128] = {{3.0f, -1.5f, 0.0f, -0.0f}, {1e-6f}}, scales[2];
    uint8_t codes[2][128];
    world.kernels[kernels]->quantise_index(world.stream[0], (struct quire_quantise_index){.key = key[0],
                                                                                          .keys_out = codes[0],
                                                                                          .scales_out = scales,
                                                                                          .format = QUIRE_KV_FP8,
                                                                                          .any_scale = true,
                                                                                          .m = 2,
                                                                                          .key_ld = 128});
    assert_true(scales[0] == 3.0f * (1.0f / 448.0f) && scales[1] == 1e-4f * (1.0f / 448.0f));
    assert_int_equal(codes[0][0], 0x7e); /* 448 */
    assert_int_equal(codes[0][1], 0xf6); /* -224 */
    assert_int_equal(codes[0][2], 0x00);
    assert_int_equal(codes[0][3], 0x80);
    assert_int_equal(codes[1][0], 0x49); /* 4.48, rounds to 4.5 */
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rmsnorm),  cmocka_unit_test(test_layernorm),       cmocka_unit_test(test_rope_values),
      cmocka_unit_test(test_rope),     cmocka_unit_test(test_elementwise),     cmocka_unit_test(test_embed),
      cmocka_unit_test(test_finite),   cmocka_unit_test(test_quantise_latent), cmocka_unit_test(test_quantise_index),
      cmocka_unit_test(test_hadamard), cmocka_unit_test(test_hadamard_values), cmocka_unit_test(test_any_scale_values),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
