// fuzz: runs=3000000
/* Sampling parameters of any bits: what passes lies within the bounds that the kernels count on, and what lies within
 * them passes. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "layout/sampling.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define VOCAB 1000
#define BIASES 4

static bool within(const struct quire_sampling *s) {
  bool good = s->temperature >= 0 && s->temperature <= 100 && s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 &&
              s->min_p <= 1 && s->top_k >= -1 && s->top_k <= QUIRE_TOP_K_MAX;
  good = good && s->presence_penalty >= -2 && s->presence_penalty <= 2 && s->frequency_penalty >= -2 &&
         s->frequency_penalty <= 2 && s->repetition_penalty >= 0 && s->repetition_penalty <= 10;
  good = good && s->top_logprobs >= 0 && s->top_logprobs <= QUIRE_TOP_LOGPROBS_MAX && s->prompt_top_logprobs >= 0 &&
         s->prompt_top_logprobs <= QUIRE_TOP_LOGPROBS_MAX && s->prompt_logprobs_start >= 0 && s->bias_count >= 0;
  for (int32_t i = 0; good && i < s->bias_count; i++) {
    good = s->bias[i].token >= 0 && s->bias[i].token < VOCAB && s->bias[i].value >= -100 && s->bias[i].value <= 100;
  }
  return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct {
    float temperature, top_p, min_p, presence, frequency, repetition;
    int32_t top_k, top, prompt_top, start, bias_count;
    struct quire_bias bias[BIASES];
  } in = {0};
  memcpy(&in, data, size < sizeof in ? size : sizeof in);
  struct quire_sampling s = {
      .temperature = in.temperature,
      .top_p = in.top_p,
      .min_p = in.min_p,
      .top_k = in.top_k,
      .presence_penalty = in.presence,
      .frequency_penalty = in.frequency,
      .repetition_penalty = in.repetition,
      .top_logprobs = in.top,
      .prompt_top_logprobs = in.prompt_top,
      .prompt_logprobs_start = in.start,
      .bias = in.bias,
      .bias_count = in.bias_count > BIASES ? BIASES : in.bias_count,
  };
  struct quire_error error = {0};
  enum quire_status status = quire_sampling_check(&s, VOCAB, &error);
  QUIRE_ASSERT((status == QUIRE_OK) == within(&s));
  if (status != QUIRE_OK) {
    QUIRE_ASSERT(status == QUIRE_ERR_ARGUMENT && error.where[0] != '\0' && error.text[0] != '\0');
  }
  return 0;
}
