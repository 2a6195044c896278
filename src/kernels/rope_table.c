/* The tables a model needs once, at load, on the host (arithmetic.md 4 and 6): rotations and the softmax scale. */
#include "base/assert.h"
#include "kernels/kernels.h"
#include "kernels/number.h"

#define PAIRS (QUIRE_ROPE_DIM / 2)
#define ROUND_MAGIC 0x1.8p52 /* adding and subtracting it rounds to an integer */

/* pi / 2 in three pieces. */
#define HALF_PI_1 0x1.921fb54442d18p+0
#define HALF_PI_2 0x1.1a62633145c07p-54
#define HALF_PI_3 (-0x1.f1976b7ed8fbcp-110)
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define TWO_PI 0x1.921fb54442d18p+2
#define LOG2E 0x1.71547652b82fep+0

static double nearest(double x) { return (x + ROUND_MAGIC) - ROUND_MAGIC; }

/* e^x for |x| < 700. */
static double exp64(double x) {
  QUIRE_ASSERT(x > -700.0 && x < 700.0);
  double n = nearest(x * LOG2E);
  double r = QUIRE_FMA_F64(n, -QUIRE_LN2_LOW, QUIRE_FMA_F64(n, -QUIRE_LN2_HIGH, x));
  static const double series[] = {1.0 / 6227020800.0,
                                  1.0 / 479001600.0,
                                  1.0 / 39916800.0,
                                  1.0 / 3628800.0,
                                  1.0 / 362880.0,
                                  1.0 / 40320.0,
                                  1.0 / 5040.0,
                                  1.0 / 720.0,
                                  1.0 / 120.0,
                                  1.0 / 24.0,
                                  1.0 / 6.0,
                                  0.5,
                                  1.0,
                                  1.0};
  double p = series[0];
  for (int i = 1; i < 14; i++) {
    p = QUIRE_FMA_F64(p, r, series[i]);
  }
  return quire_double_of(quire_bits64_of(p) + ((uint64_t)(int64_t)n << 52));
}

/* Cosine and sine of 0 <= x < 2^24. */
static void sine_cosine(double x, double *cosine_out, double *sine_out) {
  QUIRE_ASSERT(x >= 0.0 && x < 0x1p24);
  static const double sine_series[] = {
      1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
      1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  static const double cosine_series[] = {-1.0 / 6402373705728000.0,
                                         1.0 / 20922789888000.0,
                                         -1.0 / 87178291200.0,
                                         1.0 / 479001600.0,
                                         -1.0 / 3628800.0,
                                         1.0 / 40320.0,
                                         -1.0 / 720.0,
                                         1.0 / 24.0,
                                         -0.5};
  double n = nearest(x * TWO_OVER_PI);
  double r = QUIRE_FMA_F64(n, -HALF_PI_1, x);
  r = QUIRE_FMA_F64(n, -HALF_PI_2, r);
  r = QUIRE_FMA_F64(n, -HALF_PI_3, r);
  double z = r * r;
  double s = sine_series[0];
  for (int i = 1; i < 8; i++) {
    s = QUIRE_FMA_F64(s, z, sine_series[i]);
  }
  s = QUIRE_FMA_F64(s * z, r, r);
  double c = cosine_series[0];
  for (int i = 1; i < 9; i++) {
    c = QUIRE_FMA_F64(c, z, cosine_series[i]);
  }
  c = QUIRE_FMA_F64(c, z, 1.0);
  switch ((int64_t)n & 3) {
  case 0:
    *cosine_out = c;
    *sine_out = s;
    break;
  case 1:
    *cosine_out = -s;
    *sine_out = c;
    break;
  case 2:
    *cosine_out = -c;
    *sine_out = -s;
    break;
  default:
    *cosine_out = s;
    *sine_out = -c;
    break;
  }
}

/* Index of the frequency that turns `turns` times over the original context. */
static double yarn_index(const struct quire_rope_config *config, double turns) {
  QUIRE_ASSERT(turns > 0 && config->original_positions > 0);
  double original = config->original_positions;
  return QUIRE_ROPE_DIM * quire_log(original / (TWO_PI * turns)) / (2.0 * quire_log(config->theta));
}

static double floor64(double x) {
  double n = nearest(x);
  return n > x ? n - 1.0 : n;
}

static double ceil64(double x) {
  double n = nearest(x);
  return n < x ? n + 1.0 : n;
}

static void frequencies(const struct quire_rope_config *config, float *freq_out) {
  QUIRE_ASSERT(config->theta >= 1 && (!config->yarn || config->factor >= 1));
  double log_theta = quire_log(config->theta);
  double low = 0.0;
  double high = 0.0;
  if (config->yarn) {
    low = floor64(yarn_index(config, config->beta_fast));
    high = ceil64(yarn_index(config, config->beta_slow));
    low = low > 0.0 ? low : 0.0;
    high = high < QUIRE_ROPE_DIM - 1 ? high : QUIRE_ROPE_DIM - 1;
    high = low == high ? high + 0.001 : high;
  }
  for (int i = 0; i < PAIRS; i++) {
    double f = exp64(-(2.0 * i / QUIRE_ROPE_DIM) * log_theta);
    if (config->yarn) {
      double rho = (i - low) / (high - low);
      rho = rho < 0.0 ? 0.0 : rho > 1.0 ? 1.0 : rho;
      f = f * (1.0 - rho) + f / config->factor * rho;
    }
    freq_out[i] = (float)f;
  }
}

void quire_rope_table(const struct quire_rope_config *config, int32_t positions, float *table_out) {
  float freq[PAIRS];
  QUIRE_ASSERT(config != NULL && table_out != NULL && positions >= 0 && positions <= 1 << 24);
  QUIRE_ASSERT(config->theta > 1.0f && (!config->yarn || config->factor > 0.0f));
  frequencies(config, freq);
  for (int64_t position = 0; position < positions; position++) {
    float *row = table_out + position * PAIRS * 2;
    for (int i = 0; i < PAIRS; i++) {
      double cosine;
      double sine;
      float angle = (float)position * freq[i];
      sine_cosine(angle, &cosine, &sine);
      row[2 * i] = (float)(cosine * config->attention_factor);
      row[2 * i + 1] = (float)(sine * config->attention_factor);
    }
  }
}

float quire_softmax_scale(int32_t qk_dim, bool yarn, float factor, float mscale_all_dim) {
  double m = 1.0;
  QUIRE_ASSERT(qk_dim > 0);
  if (yarn && factor > 1.0f) {
    m = 0.1 * mscale_all_dim * quire_log(factor) + 1.0;
  }
  return (float)(m * m / QUIRE_SQRT_F64(qk_dim));
}
