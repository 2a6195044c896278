#include "support/exact_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Fails the test with the library's own words. */
static void expect_ok(enum quire_status status, const struct quire_error *error) {
  if (status != QUIRE_OK) {
    fail_msg("%s: %s: %s", quire_status_name(status), error->where, error->text);
  }
}

void exact_model_open(struct exact_model *model, const char *dir) {
  struct quire_error error = {0};
  memset(model, 0, sizeof *model);
  snprintf(model->dir, sizeof model->dir, "%s", dir);
  expect_ok(quire_model_config_load(quire_env_default(), dir, &model->config, &error), &error);
  expect_ok(quire_safetensors_open(quire_env_default(), dir, &model->tensors, &error), &error);
}

void exact_model_tiny(struct exact_model *model, const struct quire_tiny_options *options) {
  const char *parent = getenv("TMPDIR");
  char dir[256], text[QUIRE_TINY_ERROR_BYTES];
  snprintf(dir, sizeof dir, "%s/quire-test-XXXXXX", parent != NULL ? parent : "/tmp");
  assert_non_null(mkdtemp(dir));
  if (!quire_tiny_write(dir, options, text)) {
    fail_msg("%s", text);
  }
  exact_model_open(model, dir);
  model->temporary = true;
}

static void remove_folder(const struct exact_model *model, int shards_max) {
  static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                      "tokenizer_config.json", "model.safetensors.index.json"};
  char path[512];
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", model->dir, names[i]);
    unlink(path);
  }
  for (int of = 1; of <= shards_max; of++) {
    for (int i = 1; i <= of; i++) {
      snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", model->dir, i, of);
      unlink(path);
    }
  }
  rmdir(model->dir);
}

void exact_model_small(struct exact_model *model, enum quire_tiny_dtype dtype) {
  struct quire_tiny_options options = quire_tiny_defaults();
  options.layers = 2;
  options.heads = 4;
  options.dtype = dtype;
  exact_model_tiny(model, &options);
}

void exact_model_close(struct exact_model *model) {
  for (int i = 0; i < 8; i++) {
    quire_model_weights_close(model->weights[i / 4][i / 2 % 2][i % 2]);
  }
  quire_safetensors_close(model->tensors);
  if (model->temporary) {
    remove_folder(model, QUIRE_TINY_SHARDS_MAX);
  }
  memset(model, 0, sizeof *model);
}

const struct quire_model_weights *exact_model_weights(struct exact_model *model, enum quire_dtype compute, bool mtp,
                                                      const struct quire_kernels *pack) {
  const struct quire_model_weights **weights = &model->weights[compute == QUIRE_DTYPE_F32][mtp][pack != NULL];
  if (*weights == NULL) {
    struct quire_error error = {0};
    struct quire_weights_args args = {
        .config = &model->config,
        .tensors = model->tensors,
        .compute = compute,
        .pack = pack,
        .mtp = mtp ? QUIRE_MTP_ON : QUIRE_MTP_OFF,
    };
    expect_ok(quire_model_weights_open(quire_env_default(), &args, weights, &error), &error);
  }
  return *weights;
}
