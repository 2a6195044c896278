/* The options of sampling, and their way into struct quire_sampling. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define AT(field) offsetof(struct cli_sampling, field)

const struct quire_option cli_sampling_rows[] = {
    {.name = "temperature",
     .short_name = 't',
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(temperature),
     .default_text = "-1",
     .min = -1,
     .max = QUIRE_TEMPERATURE_MAX,
     .help = "0 is greedy; -1 is the model's own"},
    {.name = "top-p",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(top_p),
     .default_text = "-1",
     .min = -1,
     .max = 1,
     .help = "keep the likeliest tokens that hold this share; 1 is off, -1 the model's own"},
    {.name = "top-k",
     .type = QUIRE_OPTION_INT,
     .offset = AT(top_k),
     .default_text = "-1",
     .min = -1,
     .max = QUIRE_TOP_K_MAX,
     .help = "keep this many of the likeliest tokens; 0 is off, -1 the model's own"},
    {.name = "min-p",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(min_p),
     .default_text = "-1",
     .min = -1,
     .max = 1,
     .help = "keep tokens at least this share as likely as the likeliest; 0 is off, -1 the model's own"},
    {.name = "presence-penalty",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(presence_penalty),
     .default_text = "0",
     .min = -QUIRE_PENALTY_MAX,
     .max = QUIRE_PENALTY_MAX,
     .help = "taken from the logit of every token the answer has already"},
    {.name = "frequency-penalty",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(frequency_penalty),
     .default_text = "0",
     .min = -QUIRE_PENALTY_MAX,
     .max = QUIRE_PENALTY_MAX,
     .help = "the same, once for each time the answer has it"},
    {.name = "repetition-penalty",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(repetition_penalty),
     .default_text = "-1",
     .min = -1,
     .max = QUIRE_REPETITION_MAX,
     .help = "divides positive logits of tokens of prompt and answer, multiplies others; 1 is off, -1 the model's own"},
    {.name = "logit-bias",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(logit_bias),
     .metavar = "ID:VALUE,...",
     .help = "added to the logits of these tokens, -100 to 100"},
    {.name = "seed",
     .type = QUIRE_OPTION_INT,
     .offset = AT(seed),
     .default_text = "0",
     .min = 0,
     .max = 9.0e15,
     .help = "same seed, same answer, whatever the ranks"},
    {.name = "min-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(min_tokens),
     .default_text = "0",
     .min = 0,
     .max = 1 << 20,
     .help = "before so many tokens no end-of-text or stop token is drawn"},
    {.name = "stop-ids",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(stop_ids),
     .metavar = "ID,...",
     .help = "tokens that end the answer, beside the model's own"},
    {.name = "ignore-eos",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(ignore_eos),
     .help = "go on after the end-of-text token"},
    {.name = "logprobs",
     .type = QUIRE_OPTION_INT,
     .offset = AT(logprobs),
     .default_text = "-1",
     .min = -1,
     .max = QUIRE_TOP_LOGPROBS_MAX,
     .help = "print each token's log-probability beside so many of the likeliest; -1 prints none"},
};

const int cli_sampling_row_count = (int)(sizeof cli_sampling_rows / sizeof cli_sampling_rows[0]);

/* Reads an integer up to one of the characters of `ends` or the end; NULL: it is none. */
static const char *read_id(const char *at, const char *ends, int32_t *id_out) {
  char *end;
  long id = strtol(at, &end, 10);
  if (end == at || id < 0 || id > INT32_MAX || (*end != '\0' && strchr(ends, *end) == NULL)) {
    return NULL;
  }
  *id_out = (int32_t)id;
  return end;
}

static enum quire_status read_bias(struct cli_sampling *sampling, struct quire_error *error_out) {
  const char *at = sampling->logit_bias;
  sampling->bias_count = 0;
  while (at != NULL && *at != '\0') {
    struct quire_bias *bias = &sampling->bias[sampling->bias_count];
    char *end = NULL;
    if (sampling->bias_count == QUIRE_BIAS_MAX) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--logit-bias", "has more than %d entries", QUIRE_BIAS_MAX);
    }
    at = read_id(at, ":", &bias->token);
    if (at != NULL && *at == ':') {
      bias->value = strtof(at + 1, &end);
    }
    if (end == NULL || end == at + 1 || (*end != ',' && *end != '\0')) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--logit-bias",
                             "is not a list of ID:VALUE with commas between: %.100s", sampling->logit_bias);
    }
    sampling->bias_count++;
    at = *end == ',' ? end + 1 : end;
  }
  return QUIRE_OK;
}

static enum quire_status read_stops(struct cli_sampling *sampling, const struct cli_model *model,
                                    struct quire_error *error_out) {
  const char *at = sampling->stop_ids;
  sampling->stop_count = 0;
  for (int32_t i = 0; !sampling->ignore_eos && i < model->generation.eos_count; i++) {
    sampling->stops[sampling->stop_count++] = model->generation.eos[i];
  }
  while (at != NULL && *at != '\0') {
    int32_t *id = &sampling->stops[sampling->stop_count];
    if (sampling->stop_count == QUIRE_ENGINE_STOPS_MAX) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--stop-ids", "there are more than %d",
                             QUIRE_ENGINE_STOPS_MAX);
    }
    at = read_id(at, ",", id);
    if (at == NULL || *id >= model->config.vocab) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--stop-ids",
                             "is not a list of ids below %d with commas between: %.100s", model->config.vocab,
                             sampling->stop_ids);
    }
    sampling->stop_count++;
    at += *at == ',';
  }
  return QUIRE_OK;
}

struct quire_sampling cli_model_sampling(const struct cli_model *model) {
  struct quire_sampling sampling = quire_sampling_default();
  sampling.temperature = model->generation.temperature;
  sampling.top_p = model->generation.top_p;
  sampling.top_k = model->generation.top_k;
  sampling.min_p = model->generation.min_p;
  sampling.repetition_penalty = model->generation.repetition_penalty;
  return sampling;
}

enum quire_status cli_sampling_read(struct cli_sampling *sampling, const struct cli_model *model,
                                    struct quire_sampling *sampling_out, struct quire_error *error_out) {
  struct quire_sampling s = cli_model_sampling(model);
  enum quire_status status = read_bias(sampling, error_out);
  status = status != QUIRE_OK ? status : read_stops(sampling, model, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  s.temperature = sampling->temperature < 0 ? s.temperature : (float)sampling->temperature;
  s.top_p = sampling->top_p < 0 ? s.top_p : (float)sampling->top_p;
  s.top_k = sampling->top_k < 0 ? s.top_k : (int32_t)sampling->top_k;
  s.min_p = sampling->min_p < 0 ? s.min_p : (float)sampling->min_p;
  s.repetition_penalty = sampling->repetition_penalty < 0 ? s.repetition_penalty : (float)sampling->repetition_penalty;
  s.presence_penalty = (float)sampling->presence_penalty;
  s.frequency_penalty = (float)sampling->frequency_penalty;
  s.seed = (uint64_t)sampling->seed;
  s.bias = sampling->bias;
  s.bias_count = sampling->bias_count;
  s.logprobs = sampling->logprobs >= 0;
  s.top_logprobs = sampling->logprobs > 0 ? (int32_t)sampling->logprobs : 0;
  status = quire_sampling_check(&s, model->config.vocab, error_out);
  if (status == QUIRE_OK) {
    *sampling_out = s;
  }
  return status;
}
