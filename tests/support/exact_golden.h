/* Golden files (tests/goldens/README.md), and a recorder of what a forward pass shows, to hold against them.
 *
 * Arrays live until golden_close or recorder_free. Everything that goes wrong fails the test. Threads: the recorder is
 * written by the rank's thread while a step runs, and read between steps. */
#ifndef QUIRE_TESTS_EXACT_GOLDEN_H
#define QUIRE_TESTS_EXACT_GOLDEN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define GOLDEN_ARRAYS_MAX 256
#define RECORDER_VALUES_MAX 128

/* A tensor of a golden file, widened to what tests compute with; vectors have columns 1. */
struct golden_array {
  int32_t rows, columns;
  float *f;       /* F32 and BF16 */
  int32_t *i;     /* I32, I64 (in range) and U8 */
  uint16_t *bits; /* BF16 as stored */
};

struct golden {
  struct quire_safetensors *file;
  int32_t *tokens; /* [length] */
  int32_t length;
  int32_t *rows; /* [row_count] positions of what is stored in part */
  int32_t row_count;
  struct golden_array arrays[GOLDEN_ARRAYS_MAX];
  int array_count;
};

/* name is a file of tests/goldens without its ending. */
void golden_open(struct golden *golden, const char *name);
void golden_close(struct golden *golden);
/* The tensor `prefix.name`; NULL when the file has none. */
const struct golden_array *golden_find(struct golden *golden, const char *prefix, const char *name);
/* The same, but it must be there. */
const struct golden_array *golden_get(struct golden *golden, const char *prefix, const char *name);
/* "layer.N", or "mtp" for the layer behind the last. */
const char *golden_layer(int32_t layer, int32_t layers, char out[32]);

/* What one tap showed in one step: values [rows, columns], widened to f32. */
struct recorded {
  enum quire_tap_point point;
  int32_t layer;
  int32_t rows, columns;
  float *f;
  int32_t *i; /* SELECTED and COUNTS */
};

struct recorder {
  struct quire_tap tap; /* for quire_engine_tap */
  struct recorded values[RECORDER_VALUES_MAX];
  int count;
  /* called before a value is recorded; may overwrite it. NULL: nothing */
  void (*before)(void *context, const struct quire_tap_value *value);
  void *context;
};

void recorder_init(struct recorder *recorder);
void recorder_free(struct recorder *recorder);
/* Later logits of a step are added to the earlier ones; every other point must be shown once. */
const struct recorded *recorder_get(const struct recorder *recorder, enum quire_tap_point point, int32_t layer);

/* Largest |a - b| over rows, as a share of the largest |b|; rows of `a` are named by index, those of `b` come in order.
 */
struct golden_rows {
  const float *a;
  int32_t a_columns;
  const int32_t *index; /* [count]; NULL: 0, 1, .. */
  const float *b;
  int32_t b_columns;
  int32_t count;
  int32_t columns; /* compared */
};
double golden_difference(const struct golden_rows *rows);
/* Largest 1 - cos over rows. */
double golden_cosine(const struct golden_rows *rows);

#endif
