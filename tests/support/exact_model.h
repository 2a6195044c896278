/* A model opened for tests that run whole engines: the tiny one, written to a temporary folder, or one of the tree.
 *
 * Weights are opened once for each (compute type, draft layer or not) that is asked for. Everything fails the test on
 * the spot. Threads: one. */
#ifndef QUIRE_TESTS_EXACT_MODEL_H
#define QUIRE_TESTS_EXACT_MODEL_H

#include <stdbool.h>

#include "model/config.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "support/tiny_model.h"

struct exact_model {
  char dir[256];
  bool temporary; /* removed by close */
  struct quire_model_config config;
  struct quire_safetensors *tensors;
  const struct quire_model_weights *weights[2][2][2]; /* [compute is f32][draft layer][packed] */
};

void exact_model_open(struct exact_model *model, const char *dir);
/* Writes a tiny model first. */
void exact_model_tiny(struct exact_model *model, const struct quire_tiny_options *options);
/* Two layers and four heads: enough for everything but arithmetic. */
void exact_model_small(struct exact_model *model, enum quire_tiny_dtype dtype);
void exact_model_close(struct exact_model *model);

/* pack: as in struct quire_weights_args. */
const struct quire_model_weights *exact_model_weights(struct exact_model *model, enum quire_dtype compute, bool mtp,
                                                      const struct quire_kernels *pack);

#endif
