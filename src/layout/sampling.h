/* How a request wants its tokens drawn, and the values it may ask for.
 *
 * A zeroed struct is the plainest of all: greedy, nothing penalised, no log-probabilities. quire_sampling_default() is
 * what an API means by a request that names none of the fields.
 *
 * The token is a function of (logits, token list, these values, position) and of nothing else (design D7); the order of
 * the operations is docs/arithmetic.md 12: penalties, bias, temperature, top-k, top-p, min-p, draw.
 *
 * Log-probabilities are those of the model itself: the full softmax of its logits, before penalties, bias, temperature
 * and every cut (what OpenAI and vLLM report; SGLang divides by the temperature first unless told otherwise). A token
 * that a bias forced can therefore have a very small one.
 *
 * Pure; lists belong to the caller. */
#ifndef QUIRE_LAYOUT_SAMPLING_H
#define QUIRE_LAYOUT_SAMPLING_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_BIAS_MAX 300          /* entries of a request's bias list; OpenAI's limit */
#define QUIRE_BIAS_LIMIT 100.0f     /* |value| of one */
#define QUIRE_TOP_LOGPROBS_MAX 20   /* alternatives a token */
#define QUIRE_TEMPERATURE_MIN 1e-5f /* below: greedy */
#define QUIRE_TEMPERATURE_MAX 100.0f
#define QUIRE_PENALTY_MAX 2.0f /* |presence|, |frequency| */
#define QUIRE_REPETITION_MAX 10.0f
#define QUIRE_TOP_K_MAX (1 << 24)

/* A constant added to the logit of one id. -infinity forbids the id; requests may ask for +-100 at most. */
struct quire_bias {
  int32_t token;
  float value;
};

/* The bias that forbids: -infinity. */
static inline float quire_bias_forbids(void) {
  uint32_t bits = 0xff800000u;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* One of the likeliest tokens of a row; token -1 where there is none. */
struct quire_top {
  int32_t token;
  float logprob; /* natural logarithm */
};

static_assert(sizeof(struct quire_bias) == 8, "bias of 8 bytes");
static_assert(offsetof(struct quire_bias, value) == 4, "value at 4");
static_assert(sizeof(struct quire_top) == 8, "top of 8 bytes");
static_assert(offsetof(struct quire_top, logprob) == 4, "logprob at 4");

/* In [] the values that may be asked for, then the value an API takes by default. */
struct quire_sampling {
  float temperature; /* [0, 100] 1. Below QUIRE_TEMPERATURE_MIN: greedy, ties to the lower id, no other cut counts */
  float top_p;       /* [0, 1] 1: off. Likeliest tokens that together hold this share; 0: the likeliest one alone */
  float min_p;       /* [0, 1] 0: off. Tokens at least this share as likely as the likeliest */
  int32_t top_k;     /* [-1, 2^24] -1 and 0: off. So many likeliest tokens, ties to the lower id */
  float presence_penalty;   /* [-2, 2] 0: off. Taken from the logit of every token drawn before */
  float frequency_penalty;  /* [-2, 2] 0: off. Taken once for each time it was drawn */
  float repetition_penalty; /* (0, 10] 1: off (so is 0 here; a front end refuses a 0 that was asked for). Divides the
                               logit of every token of prompt and answer where it is positive, else multiplies it */
  bool logprobs;            /* false. Report the log-probability of each drawn token; costs a pass over the row */
  int32_t top_logprobs;     /* [0, 20] 0. So many likeliest tokens reported beside each drawn one, likeliest first */
  uint64_t seed;            /* any; a front end draws one where none is given, and adds i for choice i of n */
  const struct quire_bias *bias; /* [bias_count] each token in the vocabulary, each value in [-100, 100]; an id given
                                    twice gets both */
  int32_t bias_count;            /* [0, 300] 0 */
  bool prompt_logprobs;          /* false. Report the log-probability of each prompt token but the first */
  int32_t prompt_top_logprobs;   /* [0, 20] 0. So many likeliest tokens in the place of each of them */
  int32_t prompt_logprobs_start; /* [0, ...] 0. Only of positions from this one on: what lies before may come from the
                                    cache */
};

/* temperature 1, top_p 1, repetition_penalty 1, all else 0. */
struct quire_sampling quire_sampling_default(void);

/* QUIRE_ERR_ARGUMENT with the field's name in error_out->where (logit_bias for the list) when a value is not one of
 * those above; vocab bounds the ids. */
enum quire_status quire_sampling_check(const struct quire_sampling *sampling, int32_t vocab,
                                       struct quire_error *error_out);

/* Does the draw depend on the tokens before it? */
bool quire_sampling_penalises(const struct quire_sampling *sampling);

#ifdef __cplusplus
}
#endif
#endif
