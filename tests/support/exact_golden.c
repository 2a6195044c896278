#include "support/exact_golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void *take(size_t count, size_t size) {
  void *memory = calloc(count > 0 ? count : 1, size);
  assert_non_null(memory);
  return memory;
}

static void widen(const struct quire_tensor *tensor, struct golden_array *array) {
  size_t n = (size_t)array->rows * (size_t)array->columns;
  const uint8_t *data = tensor->data;
  if (tensor->type == QUIRE_TENSOR_F32) {
    array->f = take(n, sizeof(float));
    memcpy(array->f, data, n * sizeof(float));
  } else if (tensor->type == QUIRE_TENSOR_BF16) {
    array->f = take(n, sizeof(float));
    array->bits = take(n, sizeof(uint16_t));
    memcpy(array->bits, data, n * sizeof(uint16_t));
    for (size_t i = 0; i < n; i++) {
      array->f[i] = quire_f32_of_bf16(array->bits[i]);
    }
  } else {
    array->i = take(n, sizeof(int32_t));
    for (size_t i = 0; i < n; i++) {
      int64_t wide = 0;
      if (tensor->type == QUIRE_TENSOR_I64) {
        memcpy(&wide, data + i * 8, 8);
      } else if (tensor->type == QUIRE_TENSOR_I32) {
        int32_t narrow;
        memcpy(&narrow, data + i * 4, 4);
        wide = narrow;
      } else {
        assert_int_equal(tensor->type, QUIRE_TENSOR_U8);
        wide = data[i];
      }
      array->i[i] = (int32_t)wide;
    }
  }
}

const struct golden_array *golden_find(struct golden *golden, const char *prefix, const char *name) {
  char full[128];
  snprintf(full, sizeof full, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", name);
  const struct quire_tensor *tensor = quire_safetensors_find(golden->file, full);
  if (tensor == NULL) {
    return NULL;
  }
  assert_true(golden->array_count < GOLDEN_ARRAYS_MAX);
  struct golden_array *array = &golden->arrays[golden->array_count++];
  array->rows = tensor->rank > 0 ? (int32_t)tensor->shape[0] : 1;
  array->columns = tensor->rank > 1 ? (int32_t)tensor->shape[1] : 1;
  widen(tensor, array);
  return array;
}

const struct golden_array *golden_get(struct golden *golden, const char *prefix, const char *name) {
  const struct golden_array *array = golden_find(golden, prefix, name);
  if (array == NULL) {
    fail_msg("the golden file has no %s.%s", prefix, name);
  }
  return array;
}

void golden_open(struct golden *golden, const char *name) {
  char path[512];
  struct quire_error error = {0};
  memset(golden, 0, sizeof *golden);
  snprintf(path, sizeof path, "%s/tests/goldens/%s.safetensors", QUIRE_SOURCE_DIR, name);
  if (quire_safetensors_open(quire_env_default(), path, &golden->file, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
  const struct golden_array *tokens = golden_get(golden, "", "tokens"), *rows = golden_get(golden, "", "rows");
  golden->tokens = tokens->i;
  golden->length = tokens->rows;
  golden->rows = rows->i;
  golden->row_count = rows->rows;
}

void golden_close(struct golden *golden) {
  for (int i = 0; i < golden->array_count; i++) {
    free(golden->arrays[i].f);
    free(golden->arrays[i].i);
    free(golden->arrays[i].bits);
  }
  quire_safetensors_close(golden->file);
  memset(golden, 0, sizeof *golden);
}

const char *golden_layer(int32_t layer, int32_t layers, char out[32]) {
  if (layer == layers) {
    snprintf(out, 32, "mtp");
  } else {
    snprintf(out, 32, "layer.%d", layer);
  }
  return out;
}

/* A value's rows as they lie in memory. */
static int64_t row_distance(const struct quire_tap_value *value) {
  return value->point == QUIRE_TAP_ROPE_KEY ? QUIRE_KV_DIM : value->columns;
}

static struct recorded *slot_for(struct recorder *recorder, const struct quire_tap_value *value) {
  for (int i = 0; i < recorder->count; i++) {
    struct recorded *r = &recorder->values[i];
    if (r->point == value->point && r->layer == value->layer) {
      assert_int_equal(value->point, QUIRE_TAP_LOGITS);
      return r;
    }
  }
  assert_true(recorder->count < RECORDER_VALUES_MAX);
  struct recorded *r = &recorder->values[recorder->count++];
  *r = (struct recorded){.point = value->point, .layer = value->layer, .columns = value->columns};
  return r;
}

static void record(void *context, const struct quire_tap_value *value) {
  struct recorder *recorder = context;
  if (recorder->before != NULL) {
    recorder->before(recorder->context, value);
  }
  struct recorded *r = slot_for(recorder, value);
  size_t columns = (size_t)r->columns, first = (size_t)r->rows * columns;
  r->rows += value->rows;
  size_t n = (size_t)r->rows * columns;
  if (value->point == QUIRE_TAP_SELECTED || value->point == QUIRE_TAP_COUNTS) {
    r->i = take(n, sizeof(int32_t));
    memcpy(r->i, value->data, n * sizeof(int32_t));
    return;
  }
  r->f = realloc(r->f, (n > 0 ? n : 1) * sizeof(float));
  assert_non_null(r->f);
  for (int32_t row = 0; row < value->rows; row++) {
    for (size_t c = 0; c < columns; c++) {
      size_t at = (size_t)(row * row_distance(value)) + c;
      r->f[first + (size_t)row * columns + c] = value->dtype == QUIRE_DTYPE_F32
                                                    ? ((const float *)value->data)[at]
                                                    : quire_f32_of_bf16(((const uint16_t *)value->data)[at]);
    }
  }
}

void recorder_init(struct recorder *recorder) {
  memset(recorder, 0, sizeof *recorder);
  recorder->tap.call = record;
  recorder->tap.context = recorder;
}

void recorder_free(struct recorder *recorder) {
  for (int i = 0; i < recorder->count; i++) {
    free(recorder->values[i].f);
    free(recorder->values[i].i);
  }
  recorder->count = 0;
}

const struct recorded *recorder_get(const struct recorder *recorder, enum quire_tap_point point, int32_t layer) {
  for (int i = 0; i < recorder->count; i++) {
    if (recorder->values[i].point == point && recorder->values[i].layer == layer) {
      return &recorder->values[i];
    }
  }
  fail_msg("tap %d of layer %d was not shown", point, layer);
  return NULL;
}

static const float *row_of_a(const struct golden_rows *rows, int32_t i) {
  return rows->a + (int64_t)(rows->index != NULL ? rows->index[i] : i) * rows->a_columns;
}

double golden_difference(const struct golden_rows *rows) {
  double largest = 0.0, difference = 0.0;
  for (int32_t i = 0; i < rows->count; i++) {
    const float *a = row_of_a(rows, i), *b = rows->b + (int64_t)i * rows->b_columns;
    for (int32_t c = 0; c < rows->columns; c++) {
      double d = fabs((double)a[c] - (double)b[c]);
      difference = d > difference || isnan(d) ? d : difference;
      largest = fabs((double)b[c]) > largest ? fabs((double)b[c]) : largest;
    }
  }
  return difference / largest;
}

double golden_cosine(const struct golden_rows *rows) {
  double worst = 0.0;
  for (int32_t i = 0; i < rows->count; i++) {
    const float *a = row_of_a(rows, i), *b = rows->b + (int64_t)i * rows->b_columns;
    double ab = 0.0, aa = 0.0, bb = 0.0;
    for (int32_t c = 0; c < rows->columns; c++) {
      ab += (double)a[c] * (double)b[c];
      aa += (double)a[c] * (double)a[c];
      bb += (double)b[c] * (double)b[c];
    }
    double away = 1.0 - ab / sqrt(aa * bb);
    worst = away > worst || isnan(away) ? away : worst;
  }
  return worst;
}
