/* Dimensions of the models whose shapes are measured, as data: the benches need no files of theirs. */
#ifndef QUIRE_BENCH_BENCH_SHAPES_H
#define QUIRE_BENCH_BENCH_SHAPES_H

#include <stdint.h>

#include "model/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum bench_model { BENCH_MODEL_MINI, BENCH_MODEL_DEEPSEEK_V32, BENCH_MODEL_GLM_52, BENCH_MODELS };

/* "quire-mini", "DeepSeek-V3.2", "GLM-5.2". */
const char *bench_model_name(enum bench_model model);
/* A configuration with the model's numbers, as config.json would give them; parameters are not counted. */
void bench_model_config(enum bench_model model, struct quire_model_config *config_out);

/* A matrix [n, k] of a layer. */
struct bench_shape {
  const char *name;
  int32_t n, k;
};

#define BENCH_SHAPES_MAX 16

/* The matrices of a layer, in the order they are used; returns their number. */
int bench_model_shapes(enum bench_model model, struct bench_shape shapes_out[BENCH_SHAPES_MAX]);

#ifdef __cplusplus
}
#endif
#endif
