/* What a request may ask of sampling: every field at, inside and past its bounds, and the text that names it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/sampling.h"

#define VOCAB 100

#define AT(field) offsetof(struct quire_sampling, field)

/* Values of a number: accepted ones, then refused ones. */
static const struct {
  const char *name;
  size_t offset;
  float good[4], bad[5];
} numbers[] = {
    {"temperature", AT(temperature), {0, 1, 1e-20f, 100}, {-1e-9f, 100.5f, -INFINITY, INFINITY, NAN}},
    {"top_p", AT(top_p), {0, 0.5f, 1e-9f, 1}, {-0.1f, 1.0001f, -INFINITY, INFINITY, NAN}},
    {"min_p", AT(min_p), {0, 0.5f, 1e-9f, 1}, {-0.1f, 1.0001f, -INFINITY, INFINITY, NAN}},
    {"presence_penalty", AT(presence_penalty), {0, -2, 0.3f, 2}, {-2.01f, 2.01f, -INFINITY, INFINITY, NAN}},
    {"frequency_penalty", AT(frequency_penalty), {0, -2, 0.3f, 2}, {-2.01f, 2.01f, -INFINITY, INFINITY, NAN}},
    {"repetition_penalty", AT(repetition_penalty), {0, 1, 1e-6f, 10}, {-1, 10.1f, -INFINITY, INFINITY, NAN}},
};

static const struct {
  const char *name;
  size_t offset;
  int32_t good[3], bad[3];
} counts[] = {
    {"top_k", AT(top_k), {-1, 0, 1 << 24}, {-2, (1 << 24) + 1, INT32_MIN}},
    {"top_logprobs", AT(top_logprobs), {0, 1, 20}, {-1, 21, INT32_MAX}},
    {"prompt_top_logprobs", AT(prompt_top_logprobs), {0, 1, 20}, {-1, 21, INT32_MIN}},
    {"prompt_logprobs_start", AT(prompt_logprobs_start), {0, 1, INT32_MAX}, {-1, -2, INT32_MIN}},
    {"logit_bias", AT(bias_count), {0, 1, 300}, {-1, 301, INT32_MAX}},
};

static struct quire_bias biases[QUIRE_BIAS_MAX];

static void expect(const struct quire_sampling *sampling, const char *refused) {
  struct quire_error error = {0};
  enum quire_status status = quire_sampling_check(sampling, VOCAB, &error);
  assert_int_equal(status, refused != NULL ? QUIRE_ERR_ARGUMENT : QUIRE_OK);
  assert_string_equal(error.where, refused != NULL ? refused : "");
  assert_true(refused == NULL || strlen(error.text) > 10);
  assert_int_equal(quire_sampling_check(sampling, VOCAB, NULL), status);
}

static void every_bound(void **state) {
  (void)state;
  struct quire_sampling sampling = quire_sampling_default();
  sampling.bias = biases;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    for (int j = 0; j < 9; j++) {
      struct quire_sampling s = sampling;
      memcpy((char *)&s + numbers[i].offset, j < 4 ? &numbers[i].good[j] : &numbers[i].bad[j - 4], sizeof(float));
      expect(&s, j < 4 ? NULL : numbers[i].name);
    }
  }
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    for (int j = 0; j < 6; j++) {
      struct quire_sampling s = sampling;
      memcpy((char *)&s + counts[i].offset, j < 3 ? &counts[i].good[j] : &counts[i].bad[j - 3], sizeof(int32_t));
      expect(&s, j < 3 ? NULL : counts[i].name);
    }
  }
}

static void every_bias(void **state) {
  (void)state;
  static const struct {
    struct quire_bias bias;
    bool good;
  } rows[] = {{{0, 100}, true},        {{VOCAB - 1, -100}, true}, {{5, 0}, true},         {{-1, 0}, false},
              {{VOCAB, 0}, false},     {{5, 100.01f}, false},     {{5, -101}, false},     {{5, NAN}, false},
              {{5, -INFINITY}, false}, {{5, INFINITY}, false},    {{INT32_MAX, 1}, false}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct quire_bias list[] = {{3, 1.5f}, rows[i].bias, {3, -1.5f}};
    struct quire_sampling s = {.bias = list, .bias_count = 3};
    expect(&s, rows[i].good ? NULL : "logit_bias");
    s.bias_count = 1; /* what lies behind the count is not looked at */
    expect(&s, NULL);
  }
}

/* Zeroed and default structs are legal; neither looks back. */
static void plain_values(void **state) {
  (void)state;
  struct quire_sampling zero = {0}, one = quire_sampling_default();
  expect(&zero, NULL);
  expect(&one, NULL);
  assert_true(one.temperature == 1 && one.top_p == 1 && one.repetition_penalty == 1 && one.top_k == 0 &&
              one.min_p == 0 && one.bias_count == 0 && !one.prompt_logprobs && one.top_logprobs == 0);
  assert_false(quire_sampling_penalises(&zero));
  assert_false(quire_sampling_penalises(&one));
  one.presence_penalty = -0.1f;
  assert_true(quire_sampling_penalises(&one));
  one = (struct quire_sampling){.frequency_penalty = 0.1f};
  assert_true(quire_sampling_penalises(&one));
  one = (struct quire_sampling){.repetition_penalty = 1.1f};
  assert_true(quire_sampling_penalises(&one));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_bound),
      cmocka_unit_test(every_bias),
      cmocka_unit_test(plain_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
