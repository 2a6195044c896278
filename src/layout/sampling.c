#include "layout/sampling.h"

#include "base/assert.h"

struct quire_sampling quire_sampling_default(void) {
  return (struct quire_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

bool quire_sampling_penalises(const struct quire_sampling *sampling) {
  return sampling->presence_penalty != 0.0f || sampling->frequency_penalty != 0.0f ||
         (sampling->repetition_penalty != 0.0f && sampling->repetition_penalty != 1.0f);
}

struct number_bound {
  const char *name;
  float value, min, max;
};

struct count_bound {
  const char *name, *what;
  int32_t value, min, max;
};

static enum quire_status check_numbers(const struct quire_sampling *s, struct quire_error *error_out) {
  QUIRE_ASSERT(s != NULL);
  const struct number_bound bounds[] = {
      {"temperature", s->temperature, 0.0f, QUIRE_TEMPERATURE_MAX},
      {"top_p", s->top_p, 0.0f, 1.0f},
      {"min_p", s->min_p, 0.0f, 1.0f},
      {"presence_penalty", s->presence_penalty, -QUIRE_PENALTY_MAX, QUIRE_PENALTY_MAX},
      {"frequency_penalty", s->frequency_penalty, -QUIRE_PENALTY_MAX, QUIRE_PENALTY_MAX},
      {"repetition_penalty", s->repetition_penalty, 0.0f, QUIRE_REPETITION_MAX},
  };
  for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
    const struct number_bound *b = &bounds[i];
    if (!(b->value >= b->min && b->value <= b->max)) { /* a NaN is neither */
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, b->name, "must be a number from %g to %g, not %g",
                             (double)b->min, (double)b->max, (double)b->value);
    }
  }
  return QUIRE_OK;
}

static enum quire_status check_counts(const struct quire_sampling *s, struct quire_error *error_out) {
  QUIRE_ASSERT(s != NULL);
  const struct count_bound bounds[] = {
      {"top_k", "", s->top_k, -1, QUIRE_TOP_K_MAX},
      {"top_logprobs", "", s->top_logprobs, 0, QUIRE_TOP_LOGPROBS_MAX},
      {"prompt_top_logprobs", "", s->prompt_top_logprobs, 0, QUIRE_TOP_LOGPROBS_MAX},
      {"prompt_logprobs_start", "", s->prompt_logprobs_start, 0, INT32_MAX},
      {"logit_bias", "the number of entries ", s->bias_count, 0, QUIRE_BIAS_MAX},
  };
  for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
    const struct count_bound *b = &bounds[i];
    if (b->value < b->min || b->value > b->max) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, b->name, "%smust be %d to %d, not %d", b->what, b->min,
                             b->max, b->value);
    }
  }
  return QUIRE_OK;
}

enum quire_status quire_sampling_check(const struct quire_sampling *sampling, int32_t vocab,
                                       struct quire_error *error_out) {
  QUIRE_ASSERT(vocab > 0);
  enum quire_status status = check_numbers(sampling, error_out);
  if (status == QUIRE_OK) {
    status = check_counts(sampling, error_out);
  }
  for (int32_t i = 0; status == QUIRE_OK && i < sampling->bias_count; i++) {
    struct quire_bias bias = sampling->bias[i];
    if (bias.token < 0 || bias.token >= vocab) {
      status = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "logit_bias", "token %d is outside the vocabulary of %d",
                               bias.token, vocab);
    } else if (!(bias.value >= -QUIRE_BIAS_LIMIT && bias.value <= QUIRE_BIAS_LIMIT)) {
      status = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "logit_bias",
                               "the bias of token %d must be from -100 to 100, not %g", bias.token, (double)bias.value);
    }
  }
  return status;
}
