/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_tiny: writes the tiny model of tests/support/tiny_model.h as a Hugging Face folder.
 */
#include "support/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: make_tiny DIR [options]\n"
    "\n"
    "Writes a random DeepSeek-V3.2 or GLM-5 with the real head sizes and 16 small experts into DIR.\n"
    "\n"
    "  --glm [PATTERN]       a GLM-5; with a pattern as FFSFSS, layers marked S have no indexer\n"
    "  --dtype f32|bf16|fp8  how matrices are stored (f32)\n"
    "  --seed N              seed of the weights (1)\n"
    "  --layers N            decoder layers, the first of them dense (4)\n"
    "  --heads N             attention heads, a power of two (8)\n"
    "  --topk N              index_topk in config.json (128)\n"
    "  --shards N            safetensors files (3)\n"
    "  --no-mtp              leave out the multi-token prediction layer\n"
    "  --mtp-copies          give that layer its copies of embedding and head\n";

static bool parse_int(const char *text, int *value_out) {
  char *end;
  const long value = strtol(text, &end, 10);

  *value_out = (int)value;
  return end != text && *end == '\0' && value >= 0 && value <= 1 << 24;
}

static bool parse_dtype(const char *text, enum quire_tiny_dtype *dtype_out) {
  static const char *const names[] = {"f32", "bf16", "fp8"};

  for (int i = 0; i < 3; i++)
    if (strcmp(text, names[i]) == 0) {
      *dtype_out = (enum quire_tiny_dtype)i;
      return true;
    }
  return false;
}

static bool parse_seed(const char *text, uint64_t *seed_out) {
  char *end;

  *seed_out = strtoull(text, &end, 0);
  return end != text && *end == '\0';
}

/* An option with a value; false if there is no such option or the value is no good. */
static bool parse_pair(const char *name, const char *value, struct quire_tiny_options *options) {
  if (strcmp(name, "--dtype") == 0)
    return parse_dtype(value, &options->dtype);
  if (strcmp(name, "--seed") == 0)
    return parse_seed(value, &options->seed);
  if (strcmp(name, "--layers") == 0)
    return parse_int(value, &options->layers);
  if (strcmp(name, "--heads") == 0)
    return parse_int(value, &options->heads);
  if (strcmp(name, "--topk") == 0)
    return parse_int(value, &options->index_topk);
  if (strcmp(name, "--shards") == 0)
    return parse_int(value, &options->shards);
  return false;
}

int main(int argc, char **argv) {
  struct quire_tiny_options options = quire_tiny_defaults();
  char text[QUIRE_TINY_ERROR_BYTES];

  if (argc < 2 || argv[1][0] == '-') {
    fputs(usage, stderr);
    return 2;
  }
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], "--no-mtp") == 0) {
      options.mtp = false;
    } else if (strcmp(argv[i], "--mtp-copies") == 0) {
      options.mtp_copies = true;
    } else if (strcmp(argv[i], "--glm") == 0) {
      options.family = QUIRE_TINY_GLM_MOE_DSA;
      options.indexers = i + 1 < argc && argv[i + 1][0] == 'F' ? argv[++i] : NULL;
      options.layers = options.indexers ? (int)strlen(options.indexers) : options.layers;
    } else if (i + 1 < argc && parse_pair(argv[i], argv[i + 1], &options)) {
      i++;
    } else {
      fprintf(stderr, "make_tiny: bad option %s\n%s", argv[i], usage);
      return 2;
    }
  }
  if (!quire_tiny_write(argv[1], &options, text)) {
    fprintf(stderr, "make_tiny: %s\n", text);
    return 1;
  }
  return 0;
}
