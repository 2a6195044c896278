/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiny models as files. The list of tensors is built first, then the records that go to the files (a matrix in FP8
 * is two: codes and scales), dealt to shards by bytes; a shard is written tensor by tensor, so that the largest tensor
 * bounds the memory. JSON is printed, not built: what is written here is small and has one shape.
 *
 * Rejected: storing the weights (75 MB), a standard normal generator (log and cos differ in their last bit between
 * libraries, and the two languages would drift apart).
 */
#include "tiny_model.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
  BLOCK = 128, /* side of an FP8 scale block */
  PATH_BYTES = 4096,
  FIRST_BYTE_ID = 3,  /* token id of byte 0; 0, 1, 2 are begin, end, pad */
  FIRST_CHAT_ID = 508 /* the four chat tokens end the vocabulary */
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Values */

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t stream_key(uint64_t seed, const char *name) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

  for (const char *c = name; *c; c++)
    hash = (hash ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
  return mix(seed ^ hash);
}

static uint64_t stream_bits(uint64_t key, uint64_t index) { return mix(key + index * UINT64_C(0x9e3779b97f4a7c15)); }

uint64_t quire_tiny_bits(uint64_t seed, const char *name, uint64_t index) {
  return stream_bits(stream_key(seed, name), index);
}

static uint32_t bits_of(float value) {
  uint32_t bits;

  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;

  memcpy(&value, &bits, sizeof value);
  return value;
}

static float power_of_two(int exponent) {
  assert(exponent >= -126 && exponent <= 127);
  return float_of((uint32_t)(exponent + 127) << 23);
}

static bool is_power_of_two(int value) { return value > 0 && (value & (value - 1)) == 0; }

static bool is_uniform(enum quire_tiny_kind kind) { return kind == QUIRE_TINY_NORM || kind == QUIRE_TINY_KEY_NORM; }

float quire_tiny_step(const struct quire_tiny_tensor *tensor) {
  const float sqrt_3 = 0x1.bb67aep+0f;
  const float sqrt_3_over_2 = 0x1.3988e2p+0f;
  const float tenth = 0x1.62b958p-3f; /* 0.1 * sqrt(3) */
  const float half_a_tenth = 0x1.62b958p-4f;
  int log = 0;

  switch (tensor->kind) {
  case QUIRE_TINY_EMBED:
    return sqrt_3 * power_of_two(-16);
  case QUIRE_TINY_KEY_BIAS:
    return tenth * power_of_two(-16);
  case QUIRE_TINY_SCORE:
    return half_a_tenth * power_of_two(-16);
  case QUIRE_TINY_LINEAR:
  case QUIRE_TINY_PLAIN:
    assert(is_power_of_two(tensor->columns));
    while (1 << log < tensor->columns)
      log++;
    return (log % 2 ? sqrt_3_over_2 : sqrt_3) * power_of_two(-16 - log / 2);
  case QUIRE_TINY_NORM:
  case QUIRE_TINY_KEY_NORM:
    break;
  }
  assert(is_uniform(tensor->kind));
  return 0.0f; /* norm weights are uniform and have no step */
}

/* The MTP layer's copies of embedding and head hold the values of what they copy. */
static const char *stream_name(const struct quire_tiny_tensor *tensor) {
  if (tensor->kind == QUIRE_TINY_EMBED)
    return "model.embed_tokens.weight";
  return strstr(tensor->name, ".shared_head.head.weight") ? "lm_head.weight" : tensor->name;
}

void quire_tiny_fill(uint64_t seed, const struct quire_tiny_tensor *tensor, float *values_out) {
  const uint64_t key = stream_key(seed, stream_name(tensor));
  const size_t count = (size_t)tensor->rows * (size_t)tensor->columns;

  assert(tensor->rows > 0 && tensor->columns > 0);
  if (is_uniform(tensor->kind)) {
    for (size_t i = 0; i < count; i++)
      values_out[i] = (float)((stream_bits(key, i) >> 41) + (1u << 22)) * 0x1p-23f;
    return;
  }

  const float step = quire_tiny_step(tensor);

  for (size_t i = 0; i < count; i++) {
    const uint64_t x = stream_bits(key, i);
    const int32_t sum = (int32_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48)) - 2 * 65535;

    values_out[i] = (float)sum * step; /* |sum| < 2^17: exact, then one rounding */
  }
}

void quire_tiny_tokens(uint64_t seed, int count, int32_t *tokens_out) {
  const uint64_t key = stream_key(seed, "tokens");

  assert(count >= 0);
  for (int i = 0; i < count; i++) {
    const uint64_t x = stream_bits(key, (uint64_t)i);

    tokens_out[i] = FIRST_BYTE_ID + (int32_t)((x >> 32) * (FIRST_CHAT_ID - FIRST_BYTE_ID) >> 32);
  }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Small floats */

uint16_t quire_tiny_bf16(float value) {
  const uint32_t bits = bits_of(value);

  assert((bits & 0x7f800000) != 0x7f800000);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint8_t quire_tiny_e4m3(float value) {
  const uint8_t sign = (uint8_t)(bits_of(value) >> 24 & 0x80);
  const uint32_t magnitude = bits_of(value) & 0x7fffffff;
  uint32_t code;

  if (magnitude > 0x7f800000)
    return sign | 0x7f;
  if (magnitude >= 0x43e00000) /* 448 */
    return sign | 0x7e;
  if (magnitude >= 0x3c800000) /* 2^-6, the least normal: keep three bits of the fraction, move the bias to 7 */
    code = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  else /* 2^14 has neighbours 2^-9 apart, as subnormal codes have: the addition rounds to one of them */
    code = bits_of(float_of(magnitude) + 0x1p14f) - bits_of(0x1p14f);
  assert(code <= 0x7e);
  return sign | (uint8_t)code;
}

float quire_tiny_e4m3_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float sign = code & 0x80 ? -1.0f : 1.0f;

  if (magnitude == 0x7f)
    return float_of(0x7fc00000);
  if (magnitude < 8)
    return sign * (float)magnitude * 0x1p-9f;
  return sign * float_of((magnitude << 20) + ((uint32_t)(127 - 7) << 23));
}

float quire_tiny_scale(float amax) {
  const uint32_t bits = bits_of(amax < 1e-4f ? 1e-4f : amax);
  const int exponent = (int)(bits >> 23) - 127;
  const bool above = (bits & 0x7fffff) > 0x600000; /* 448 = 1.75 * 2^8, and 0x600000 is the fraction .75 */

  assert(amax >= 0.0f && amax < 0x1p127f);
  return power_of_two(exponent - 8 + above);
}

static int blocks(int length) { return (length + BLOCK - 1) / BLOCK; }

static int least(int a, int b) { return a < b ? a : b; }

void quire_tiny_quantise(enum quire_tiny_family family, const struct quire_tiny_tensor *tensor, const float *values,
                         uint8_t *codes_out, float *scales_out) {
  const int rows = tensor->rows, columns = tensor->columns;

  assert(rows > 0 && columns > 0);
  for (int block = 0; block < blocks(rows) * blocks(columns); block++) {
    const int row_0 = block / blocks(columns) * BLOCK, row_1 = least(row_0 + BLOCK, rows);
    const int column_0 = block % blocks(columns) * BLOCK, column_1 = least(column_0 + BLOCK, columns);
    float amax = 0.0f;

    for (int row = row_0; row < row_1; row++)
      for (int column = column_0; column < column_1; column++) {
        const float value = values[(size_t)row * (size_t)columns + (size_t)column];
        const float magnitude = value < 0.0f ? -value : value;

        amax = magnitude > amax ? magnitude : amax;
      }
    scales_out[block] =
        family == QUIRE_TINY_GLM_MOE_DSA ? (amax < 1e-4f ? 1e-4f : amax) / 448.0f : quire_tiny_scale(amax);
    for (int row = row_0; row < row_1; row++)
      for (int column = column_0; column < column_1; column++) {
        const size_t at = (size_t)row * (size_t)columns + (size_t)column;

        codes_out[at] = quire_tiny_e4m3(values[at] / scales_out[block]); /* exact for a power of two */
      }
  }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* The list of tensors */

struct list {
  struct quire_tiny_tensor *tensors;
  int capacity;
  int count;
};

static void add(struct list *list, const char *prefix, const char *suffix, int rows, int columns,
                enum quire_tiny_kind kind) {
  if (list->count < list->capacity) {
    struct quire_tiny_tensor *tensor = &list->tensors[list->count];
    const int length = snprintf(tensor->name, sizeof tensor->name, "%s%s", prefix, suffix);

    assert(length > 0 && length < (int)sizeof tensor->name);
    (void)length;
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->kind = kind;
  }
  list->count++;
}

static bool is_glm(const struct quire_tiny_options *options) { return options->family == QUIRE_TINY_GLM_MOE_DSA; }

static int nope_dim(const struct quire_tiny_options *options) {
  return is_glm(options) ? QUIRE_TINY_GLM_NOPE : QUIRE_TINY_NOPE;
}

static int value_dim(const struct quire_tiny_options *options) {
  return is_glm(options) ? QUIRE_TINY_GLM_VALUE : QUIRE_TINY_VALUE;
}

/* The MTP layer, number `layers`, always has one. */
static bool has_indexer(const struct quire_tiny_options *options, int layer) {
  return !options->indexers || layer >= options->layers || options->indexers[layer] == 'F';
}

static void add_attention(struct list *list, const char *layer, const struct quire_tiny_options *options) {
  const int heads = options->heads;
  char prefix[QUIRE_TINY_NAME_BYTES];

  snprintf(prefix, sizeof prefix, "%sself_attn.", layer);
  add(list, prefix, "q_a_proj.weight", QUIRE_TINY_Q_RANK, QUIRE_TINY_HIDDEN, QUIRE_TINY_LINEAR);
  add(list, prefix, "q_a_layernorm.weight", 1, QUIRE_TINY_Q_RANK, QUIRE_TINY_NORM);
  add(list, prefix, "q_b_proj.weight", heads * (nope_dim(options) + QUIRE_TINY_ROPE), QUIRE_TINY_Q_RANK,
      QUIRE_TINY_LINEAR);
  add(list, prefix, "kv_a_proj_with_mqa.weight", QUIRE_TINY_KV_RANK + QUIRE_TINY_ROPE, QUIRE_TINY_HIDDEN,
      QUIRE_TINY_LINEAR);
  add(list, prefix, "kv_a_layernorm.weight", 1, QUIRE_TINY_KV_RANK, QUIRE_TINY_NORM);
  add(list, prefix, "kv_b_proj.weight", heads * (nope_dim(options) + value_dim(options)), QUIRE_TINY_KV_RANK,
      QUIRE_TINY_LINEAR);
  add(list, prefix, "o_proj.weight", QUIRE_TINY_HIDDEN, heads * value_dim(options), QUIRE_TINY_LINEAR);
}

static void add_indexer(struct list *list, const char *layer) {
  char prefix[QUIRE_TINY_NAME_BYTES];

  snprintf(prefix, sizeof prefix, "%sself_attn.indexer.", layer);
  add(list, prefix, "wq_b.weight", QUIRE_TINY_INDEX_HEADS * QUIRE_TINY_INDEX_DIM, QUIRE_TINY_Q_RANK, QUIRE_TINY_LINEAR);
  add(list, prefix, "wk.weight", QUIRE_TINY_INDEX_DIM, QUIRE_TINY_HIDDEN, QUIRE_TINY_LINEAR);
  add(list, prefix, "k_norm.weight", 1, QUIRE_TINY_INDEX_DIM, QUIRE_TINY_KEY_NORM);
  add(list, prefix, "k_norm.bias", 1, QUIRE_TINY_INDEX_DIM, QUIRE_TINY_KEY_BIAS);
  add(list, prefix, "weights_proj.weight", QUIRE_TINY_INDEX_HEADS, QUIRE_TINY_HIDDEN, QUIRE_TINY_PLAIN);
}

static void add_mlp(struct list *list, const char *prefix, int width) {
  add(list, prefix, "gate_proj.weight", width, QUIRE_TINY_HIDDEN, QUIRE_TINY_LINEAR);
  add(list, prefix, "up_proj.weight", width, QUIRE_TINY_HIDDEN, QUIRE_TINY_LINEAR);
  add(list, prefix, "down_proj.weight", QUIRE_TINY_HIDDEN, width, QUIRE_TINY_LINEAR);
}

static void add_experts(struct list *list, const char *layer) {
  char prefix[QUIRE_TINY_NAME_BYTES];

  add(list, layer, "mlp.gate.weight", QUIRE_TINY_EXPERTS, QUIRE_TINY_HIDDEN, QUIRE_TINY_PLAIN);
  add(list, layer, "mlp.gate.e_score_correction_bias", 1, QUIRE_TINY_EXPERTS, QUIRE_TINY_SCORE);
  for (int expert = 0; expert < QUIRE_TINY_EXPERTS; expert++) {
    snprintf(prefix, sizeof prefix, "%smlp.experts.%d.", layer, expert);
    add_mlp(list, prefix, QUIRE_TINY_EXPERT_WIDTH);
  }
  snprintf(prefix, sizeof prefix, "%smlp.shared_experts.", layer);
  add_mlp(list, prefix, QUIRE_TINY_EXPERT_WIDTH);
}

static void add_layer(struct list *list, int number, const struct quire_tiny_options *options) {
  char layer[32], prefix[QUIRE_TINY_NAME_BYTES];

  snprintf(layer, sizeof layer, "model.layers.%d.", number);
  add(list, layer, "input_layernorm.weight", 1, QUIRE_TINY_HIDDEN, QUIRE_TINY_NORM);
  add_attention(list, layer, options);
  if (has_indexer(options, number))
    add_indexer(list, layer);
  add(list, layer, "post_attention_layernorm.weight", 1, QUIRE_TINY_HIDDEN, QUIRE_TINY_NORM);
  if (number == 0) {
    snprintf(prefix, sizeof prefix, "%smlp.", layer);
    add_mlp(list, prefix, QUIRE_TINY_DENSE_WIDTH);
  } else {
    add_experts(list, layer);
  }
}

static void add_mtp(struct list *list, const struct quire_tiny_options *options) {
  char layer[32];

  snprintf(layer, sizeof layer, "model.layers.%d.", options->layers);
  add(list, layer, "enorm.weight", 1, QUIRE_TINY_HIDDEN, QUIRE_TINY_NORM);
  add(list, layer, "hnorm.weight", 1, QUIRE_TINY_HIDDEN, QUIRE_TINY_NORM);
  add(list, layer, "eh_proj.weight", QUIRE_TINY_HIDDEN, 2 * QUIRE_TINY_HIDDEN, QUIRE_TINY_PLAIN);
  add_layer(list, options->layers, options);
  add(list, layer, "shared_head.norm.weight", 1, QUIRE_TINY_HIDDEN, QUIRE_TINY_NORM);
  if (options->mtp_copies) {
    add(list, layer, "embed_tokens.weight", QUIRE_TINY_VOCAB, QUIRE_TINY_HIDDEN, QUIRE_TINY_EMBED);
    add(list, layer, "shared_head.head.weight", QUIRE_TINY_VOCAB, QUIRE_TINY_HIDDEN, QUIRE_TINY_PLAIN);
  }
}

int quire_tiny_list(const struct quire_tiny_options *options, int capacity, struct quire_tiny_tensor *tensors_out) {
  struct list list = {.tensors = tensors_out, .capacity = capacity, .count = 0};

  assert(capacity == 0 || tensors_out != NULL);
  add(&list, "", "model.embed_tokens.weight", QUIRE_TINY_VOCAB, QUIRE_TINY_HIDDEN, QUIRE_TINY_EMBED);
  for (int layer = 0; layer < options->layers; layer++)
    add_layer(&list, layer, options);
  add(&list, "", "model.norm.weight", 1, QUIRE_TINY_HIDDEN, QUIRE_TINY_NORM);
  add(&list, "", "lm_head.weight", QUIRE_TINY_VOCAB, QUIRE_TINY_HIDDEN, QUIRE_TINY_PLAIN);
  if (options->mtp)
    add_mtp(&list, options);
  return list.count;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Records and shards */

enum stored { STORED_F32, STORED_BF16, STORED_F8 };

static const char *const stored_name[] = {"F32", "BF16", "F8_E4M3"};
static const size_t stored_bytes[] = {4, 2, 1};

/* An entry of a safetensors file: a tensor, or the scales of one. */
struct record {
  const struct quire_tiny_tensor *tensor;
  bool scales;
  enum stored stored;
  size_t bytes;
  int shard;
};

struct writer {
  const char *directory;
  const struct quire_tiny_options *options;
  struct quire_tiny_tensor *tensors;
  struct record *records;
  int count; /* of records */
  size_t bytes;
  float *values; /* room for the largest tensor */
  float *scales;
  uint8_t *codes; /* the stored form, four bytes an element at most */
  char *text_out;
};

static enum stored stored_as(enum quire_tiny_kind kind, enum quire_tiny_dtype dtype) {
  const bool key = kind == QUIRE_TINY_KEY_NORM || kind == QUIRE_TINY_KEY_BIAS;

  if (dtype == QUIRE_TINY_F32 || kind == QUIRE_TINY_SCORE || (key && dtype == QUIRE_TINY_FP8))
    return STORED_F32;
  return kind == QUIRE_TINY_LINEAR && dtype == QUIRE_TINY_FP8 ? STORED_F8 : STORED_BF16;
}

static void add_record(struct writer *writer, const struct quire_tiny_tensor *tensor, bool scales) {
  struct record *record = &writer->records[writer->count++];
  const size_t elements = scales ? (size_t)blocks(tensor->rows) * (size_t)blocks(tensor->columns)
                                 : (size_t)tensor->rows * (size_t)tensor->columns;

  record->tensor = tensor;
  record->scales = scales;
  record->stored = scales ? STORED_F32 : stored_as(tensor->kind, writer->options->dtype);
  record->bytes = elements * stored_bytes[record->stored];
  writer->bytes += record->bytes;
}

/* Shards are ranges of the record list with about equal bytes; a matrix and its scales may well be parted. */
static void deal_shards(struct writer *writer) {
  const int shards = writer->options->shards;
  size_t before = 0;

  for (int i = 0; i < writer->count; i++) {
    struct record *record = &writer->records[i];

    record->shard = (int)((before + record->bytes / 2) * (size_t)shards / writer->bytes);
    before += record->bytes;
  }
}

static void record_name(const struct record *record, char name_out[QUIRE_TINY_NAME_BYTES + 16]) {
  snprintf(name_out, QUIRE_TINY_NAME_BYTES + 16, "%s%s", record->tensor->name, record->scales ? "_scale_inv" : "");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Files */

__attribute__((format(printf, 2, 3))) static bool fail(struct writer *writer, const char *format, ...) {
  va_list arguments;

  va_start(arguments, format);
  vsnprintf(writer->text_out, QUIRE_TINY_ERROR_BYTES, format, arguments);
  va_end(arguments);
  return false;
}

static FILE *open_file(struct writer *writer, const char *name) {
  char path[PATH_BYTES];
  const int length = snprintf(path, sizeof path, "%s/%s", writer->directory, name);
  FILE *file = length > 0 && length < (int)sizeof path ? fopen(path, "wb") : NULL;

  if (!file)
    fail(writer, "cannot write %s: %s", name, length < (int)sizeof path ? strerror(errno) : "path too long");
  return file;
}

static bool close_file(struct writer *writer, FILE *file, const char *name) {
  const bool bad = ferror(file) != 0;

  if (fclose(file) != 0 || bad)
    return fail(writer, "cannot write %s: %s", name, strerror(errno));
  return true;
}

static bool write_text(struct writer *writer, const char *name, const char *text) {
  FILE *file = open_file(writer, name);

  if (!file)
    return false;
  fputs(text, file);
  return close_file(writer, file, name);
}

static void shard_name(int shard, int shards, char name_out[64]) {
  snprintf(name_out, 64, "model-%05d-of-%05d.safetensors", shard + 1, shards);
}

static bool write_index(struct writer *writer) {
  static const char name[] = "model.safetensors.index.json";
  FILE *file = open_file(writer, name);
  char entry[QUIRE_TINY_NAME_BYTES + 16], shard[64];

  if (!file)
    return false;
  fprintf(file, "{\n  \"metadata\": {\"total_size\": %zu},\n  \"weight_map\": {", writer->bytes);
  for (int i = 0; i < writer->count; i++) {
    record_name(&writer->records[i], entry);
    shard_name(writer->records[i].shard, writer->options->shards, shard);
    fprintf(file, "%s\n    \"%s\": \"%s\"", i ? "," : "", entry, shard);
  }
  fprintf(file, "\n  }\n}\n");
  return close_file(writer, file, name);
}

/* Header of a shard in `text_out`; returns its length. A NULL text asks for the length. */
static size_t shard_header(const struct writer *writer, int shard, char *text_out, size_t bytes) {
  size_t length = 0, offset = 0;
  char entry[QUIRE_TINY_NAME_BYTES + 16], shape[32];

#define PRINT(...)                                                                                                     \
  (length += (size_t)snprintf(text_out ? text_out + length : NULL, text_out ? bytes - length : 0, __VA_ARGS__))
  PRINT("{\"__metadata__\":{\"format\":\"pt\"}");
  for (int i = 0; i < writer->count; i++) {
    const struct record *record = &writer->records[i];
    const struct quire_tiny_tensor *tensor = record->tensor;

    if (record->shard != shard)
      continue;
    if (record->scales)
      snprintf(shape, sizeof shape, "%d,%d", blocks(tensor->rows), blocks(tensor->columns));
    else if (tensor->rows == 1)
      snprintf(shape, sizeof shape, "%d", tensor->columns);
    else
      snprintf(shape, sizeof shape, "%d,%d", tensor->rows, tensor->columns);
    record_name(record, entry);
    PRINT(",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", entry, stored_name[record->stored],
          shape, offset, offset + record->bytes);
    offset += record->bytes;
  }
  PRINT("}");
  while (length % 8) /* data begins at a multiple of eight; the format allows trailing spaces */
    PRINT(" ");
#undef PRINT
  return length;
}

static void put_le32(uint8_t *bytes_out, uint32_t value) {
  for (int i = 0; i < 4; i++)
    bytes_out[i] = (uint8_t)(value >> (8 * i));
}

/* Leaves the stored bytes of a record in writer->codes. */
static void store_record(struct writer *writer, const struct record *record) {
  const struct quire_tiny_tensor *tensor = record->tensor;
  const size_t elements = (size_t)tensor->rows * (size_t)tensor->columns;

  quire_tiny_fill(writer->options->seed, tensor, writer->values);
  if (record->scales || record->stored == STORED_F8)
    quire_tiny_quantise(writer->options->family, tensor, writer->values, writer->codes, writer->scales);
  if (record->stored == STORED_F8)
    return;
  if (record->stored == STORED_BF16) {
    for (size_t i = 0; i < elements; i++) {
      const uint16_t half = quire_tiny_bf16(writer->values[i]);

      writer->codes[2 * i] = (uint8_t)half;
      writer->codes[2 * i + 1] = (uint8_t)(half >> 8);
    }
    return;
  }

  const float *values = record->scales ? writer->scales : writer->values;

  for (size_t i = 0; i < record->bytes / 4; i++)
    put_le32(writer->codes + 4 * i, bits_of(values[i]));
}

static bool write_shard(struct writer *writer, int shard) {
  const size_t length = shard_header(writer, shard, NULL, 0);
  char *header = malloc(length + 1);
  uint8_t prefix[8] = {0};
  char name[64];

  if (!header)
    return fail(writer, "out of memory");
  shard_header(writer, shard, header, length + 1);
  shard_name(shard, writer->options->shards, name);

  FILE *file = open_file(writer, name);

  if (file) {
    put_le32(prefix, (uint32_t)length);
    fwrite(prefix, 1, sizeof prefix, file);
    fwrite(header, 1, length, file);
    for (int i = 0; i < writer->count; i++)
      if (writer->records[i].shard == shard) {
        store_record(writer, &writer->records[i]);
        fwrite(writer->codes, 1, writer->records[i].bytes, file);
      }
  }
  free(header);
  return file && close_file(writer, file, name);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* config.json and its like, in the form of the released models */

/* With rope_theta and rope_scaling, no rope_parameters. */
static void write_deepseek_keys(FILE *file) {
  fputs("{\n  \"architectures\": [\"DeepseekV32ForCausalLM\"],\n  \"model_type\": \"deepseek_v32\",\n"
        "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n  \"bos_token_id\": 0,\n"
        "  \"eos_token_id\": 1,\n  \"pad_token_id\": 2,\n  \"ep_size\": 1,\n  \"first_k_dense_replace\": 1,\n"
        "  \"hidden_act\": \"silu\",\n  \"initializer_range\": 0.02,\n  \"kv_lora_rank\": 512,\n"
        "  \"max_position_embeddings\": 163840,\n  \"moe_layer_freq\": 1,\n  \"n_group\": 4,\n"
        "  \"topk_group\": 2,\n  \"n_shared_experts\": 1,\n  \"norm_topk_prob\": true,\n"
        "  \"num_experts_per_tok\": 4,\n  \"q_lora_rank\": 128,\n  \"qk_nope_head_dim\": 128,\n"
        "  \"qk_rope_head_dim\": 64,\n  \"v_head_dim\": 128,\n  \"rms_norm_eps\": 1e-06,\n"
        "  \"rope_theta\": 10000,\n  \"rope_scaling\": {\n    \"type\": \"yarn\",\n    \"factor\": 40,\n"
        "    \"original_max_position_embeddings\": 4096,\n    \"beta_fast\": 32,\n    \"beta_slow\": 1,\n"
        "    \"mscale\": 1.0,\n    \"mscale_all_dim\": 1.0\n  },\n  \"routed_scaling_factor\": 2.5,\n"
        "  \"scoring_func\": \"sigmoid\",\n  \"topk_method\": \"noaux_tc\",\n"
        "  \"tie_word_embeddings\": false,\n  \"use_cache\": true,\n",
        file);
}

/* head_dim is what it is in the released file: of no use. */
static void write_glm_keys(FILE *file, const struct quire_tiny_options *options) {
  fputs("{\n  \"architectures\": [\"GlmMoeDsaForCausalLM\"],\n  \"model_type\": \"glm_moe_dsa\",\n"
        "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n  \"eos_token_id\": [1],\n"
        "  \"pad_token_id\": 2,\n  \"ep_size\": 1,\n  \"first_k_dense_replace\": 1,\n  \"head_dim\": 192,\n"
        "  \"hidden_act\": \"silu\",\n  \"index_topk_pattern\": null,\n  \"indexer_rope_interleave\": true,\n"
        "  \"initializer_range\": 0.02,\n  \"kv_lora_rank\": 512,\n  \"max_position_embeddings\": 4096,\n"
        "  \"moe_layer_freq\": 1,\n  \"moe_router_dtype\": \"float32\",\n  \"n_group\": 1,\n  \"topk_group\": 1,\n"
        "  \"n_shared_experts\": 1,\n  \"norm_topk_prob\": true,\n  \"num_experts_per_tok\": 4,\n"
        "  \"q_lora_rank\": 128,\n  \"qk_head_dim\": 256,\n  \"qk_nope_head_dim\": 192,\n"
        "  \"qk_rope_head_dim\": 64,\n  \"v_head_dim\": 256,\n  \"rms_norm_eps\": 1e-05,\n"
        "  \"rope_interleave\": true,\n  \"routed_scaling_factor\": 2.5,\n  \"scoring_func\": \"sigmoid\",\n"
        "  \"topk_method\": \"noaux_tc\",\n  \"tie_word_embeddings\": false,\n  \"use_cache\": true,\n",
        file);
  fprintf(file, "  \"rope_parameters\": {\"rope_theta\": %d, \"rope_type\": \"default\"},\n  \"mlp_layer_types\": [",
          options->indexers ? 8000000 : 1000000);
  for (int layer = 0; layer < options->layers; layer++)
    fprintf(file, "%s\"%s\"", layer ? ", " : "", layer ? "sparse" : "dense");
  fputs("],\n", file);
  if (!options->indexers)
    return;
  fputs("  \"index_share_for_mtp_iteration\": true,\n  \"indexer_types\": [", file);
  for (int layer = 0; layer < options->layers; layer++)
    fprintf(file, "%s\"%s\"", layer ? ", " : "", has_indexer(options, layer) ? "full" : "shared");
  fputs("],\n", file);
}

static bool write_config(struct writer *writer) {
  static const char name[] = "config.json";
  const struct quire_tiny_options *options = writer->options;
  FILE *file = open_file(writer, name);

  if (!file)
    return false;
  if (is_glm(options))
    write_glm_keys(file, options);
  else
    write_deepseek_keys(file);
  fprintf(file, "  \"hidden_size\": %d,\n  \"vocab_size\": %d,\n  \"intermediate_size\": %d,\n", QUIRE_TINY_HIDDEN,
          QUIRE_TINY_VOCAB, QUIRE_TINY_DENSE_WIDTH);
  fprintf(file, "  \"moe_intermediate_size\": %d,\n  \"n_routed_experts\": %d,\n", QUIRE_TINY_EXPERT_WIDTH,
          QUIRE_TINY_EXPERTS);
  fprintf(file, "  \"index_n_heads\": %d,\n  \"index_head_dim\": %d,\n  \"index_topk\": %d,\n", QUIRE_TINY_INDEX_HEADS,
          QUIRE_TINY_INDEX_DIM, options->index_topk);
  fprintf(file, "  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n", options->heads, options->heads);
  fprintf(file, "  \"num_hidden_layers\": %d,\n  \"num_nextn_predict_layers\": %d,\n", options->layers,
          options->mtp ? 1 : 0);
  if (options->dtype == QUIRE_TINY_FP8)
    fputs("  \"quantization_config\": {\n    \"quant_method\": \"fp8\",\n    \"fmt\": \"e4m3\",\n"
          "    \"activation_scheme\": \"dynamic\",\n",
          file);
  if (options->dtype == QUIRE_TINY_FP8)
    fprintf(file, "    %s,\n    \"weight_block_size\": [128, 128]\n  },\n",
            is_glm(options) ? "\"modules_to_not_convert\": [\"lm_head\", \"model.layers.0.self_attn.indexers_proj\"]"
                            : "\"scale_fmt\": \"ue8m0\"");
  fprintf(file, "  \"torch_dtype\": \"%s\"\n}\n", options->dtype == QUIRE_TINY_F32 ? "float32" : "bfloat16");
  return close_file(writer, file, name);
}

static bool write_generation_config(struct writer *writer) {
  return write_text(writer, "generation_config.json",
                    is_glm(writer->options)
                        ? "{\n  \"eos_token_id\": [1],\n  \"pad_token_id\": 2,\n  \"do_sample\": true,\n"
                          "  \"temperature\": 1.0,\n  \"top_p\": 0.95\n}\n"
                        : "{\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 1,\n  \"pad_token_id\": 2,\n"
                          "  \"do_sample\": true,\n  \"temperature\": 1.0,\n  \"top_p\": 0.95\n}\n");
}

/* ---------------------------------------------------------------------------------------------------------------- */
/*
 * tokenizer.json: byte-level BPE with the pre-tokenizer of the released models and a full vocabulary of 512, so that
 * every id the model can emit has a text.
 *
 *     0..2 begin, end, pad | 3..258 bytes | 259..507 merged pairs | 508..511 user, assistant, think, end of think
 */

#define SPACE "\xc4\xa0" /* U+0120, the character of byte 0x20 */

static const int special_id[] = {0, 1, 2, 508, 509, 510, 511};

/* By family; begin, end, pad first. */
static const char *const special_text[2][7] = {
    {"<\xef\xbd\x9c"
     "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
     "<\xef\xbd\x9c\xe2\x96\x81pad\xe2\x96\x81\xef\xbd\x9c>", "<\xef\xbd\x9cUser\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "Assistant\xef\xbd\x9c>",
     "<think>", "</think>"},
    {"[gMASK]", "<|endoftext|>", "[MASK]", "<|user|>", "<|assistant|>", "<think>", "</think>"},
};

/* Merges: a space before each letter, pairs of the commonest letters, then these. */
static const char frequent[] = "etaoinshrdlucm";
static const char *const later_merges[][2] = {
    {"th", "e"},       {"in", "g"},       {"an", "d"},       {"er", "s"},      {"io", "n"},      {"at", "e"},
    {"re", "s"},       {SPACE "t", "he"}, {SPACE "a", "nd"}, {SPACE "i", "n"}, {SPACE "o", "f"}, {SPACE "t", "o"},
    {SPACE "c", "on"}, {SPACE "s", "t"},  {"at", "ion"},     {"g", "h"},       {"v", "e"},       {"b", "e"},
    {"w", "h"},        {"f", "or"},       {"k", "e"},        {"p", "er"},      {"y", "ou"},      {"q", "u"},
    {"a", "y"},        {"o", "w"},        {"1", "0"},
};

enum {
  FREQUENT = sizeof frequent - 1,
  MERGES = 26 + FREQUENT * FREQUENT + sizeof later_merges / sizeof later_merges[0],
  MERGE_BYTES = 16
};

static_assert(FIRST_BYTE_ID + 256 + MERGES == FIRST_CHAT_ID, "the vocabulary is full");

/* The two parts of a merge, in the characters of the byte-level alphabet. */
static void merge_parts(int merge, char left_out[MERGE_BYTES], char right_out[MERGE_BYTES]) {
  const int pair = merge - 26;
  const int later = pair - FREQUENT * FREQUENT;

  assert(merge >= 0 && merge < MERGES);
  if (merge < 26) {
    snprintf(left_out, MERGE_BYTES, "%s", SPACE);
    snprintf(right_out, MERGE_BYTES, "%c", 'a' + merge);
  } else if (later < 0) {
    snprintf(left_out, MERGE_BYTES, "%c", frequent[pair / FREQUENT]);
    snprintf(right_out, MERGE_BYTES, "%c", frequent[pair % FREQUENT]);
  } else {
    snprintf(left_out, MERGE_BYTES, "%s", later_merges[later][0]);
    snprintf(right_out, MERGE_BYTES, "%s", later_merges[later][1]);
  }
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, other bytes for U+0100 on, in order. UTF-8, JSON-escaped. */
static void byte_text(int byte, char text_out[8]) {
  int character = byte, others = 0;

  for (int b = 0; b <= byte; b++) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

    if (!printable)
      others++;
    if (!printable && b == byte)
      character = 256 + others - 1;
  }
  if (character == '"' || character == '\\')
    snprintf(text_out, 8, "\\%c", character);
  else if (character < 128)
    snprintf(text_out, 8, "%c", character);
  else
    snprintf(text_out, 8, "%c%c", 0xc0 | character >> 6, 0x80 | (character & 0x3f));
}

static void write_vocabulary(FILE *file, const char *const *special) {
  char text[8], left[MERGE_BYTES], right[MERGE_BYTES];

  for (int i = 0; i < 3; i++)
    fprintf(file, "      \"%s\": %d,\n", special[i], special_id[i]);
  for (int byte = 0; byte < 256; byte++) {
    byte_text(byte, text);
    fprintf(file, "      \"%s\": %d,\n", text, FIRST_BYTE_ID + byte);
  }
  for (int merge = 0; merge < MERGES; merge++) {
    merge_parts(merge, left, right);
    fprintf(file, "      \"%s%s\": %d,\n", left, right, FIRST_BYTE_ID + 256 + merge);
  }
  for (int i = 3; i < 7; i++)
    fprintf(file, "      \"%s\": %d%s\n", special[i], special_id[i], i < 6 ? "," : "");
}

/* Splits in the order in which they are made; each is the regular expression as JSON text. */
static void write_splits(FILE *file, bool glm) {
  static const char isolated[] = "\"}, \"behavior\": \"Isolated\", \"invert\": false}";
  static const char split[] = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"";

  if (glm) {
    fprintf(file,
            "    %s(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
            "?[^\\\\s\\\\p{L}\\\\p{N}]+"
            "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+%s,\n",
            split, isolated);
    return;
  }
  fprintf(file, "    %s\\\\p{N}{1,3}%s,\n", split, isolated);
  fprintf(file, "    %s[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+%s,\n", split,
          isolated);
  fprintf(file,
          "    %s[!\\\"#$%%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"
          "[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|"
          "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+%s,\n",
          split, isolated);
}

static bool write_tokenizer(struct writer *writer) {
  static const char name[] = "tokenizer.json";
  const char *const *special = special_text[is_glm(writer->options)];
  FILE *file = open_file(writer, name);
  char left[MERGE_BYTES], right[MERGE_BYTES];

  if (!file)
    return false;
  fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [\n", file);
  for (int i = 0; i < 7; i++)
    fprintf(file,
            "    {\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
            "\"rstrip\": false, \"normalized\": %s, \"special\": %s}%s\n",
            special_id[i], special[i], i < 5 ? "false" : "true", i < 3 ? "true" : "false", i < 6 ? "," : "");
  fputs("  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n", file);
  write_splits(file, is_glm(writer->options));
  fputs("    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}\n"
        "  ]},\n  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, "
        "\"use_regex\": true},\n"
        "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
        "\"use_regex\": true},\n"
        "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null, \"fuse_unk\": false, "
        "\"byte_fallback\": false,\n    \"vocab\": {\n",
        file);
  write_vocabulary(file, special);
  fputs("    },\n    \"merges\": [\n", file);
  for (int merge = 0; merge < MERGES; merge++) {
    merge_parts(merge, left, right);
    fprintf(file, "      \"%s %s\"%s\n", left, right, merge < MERGES - 1 ? "," : "");
  }
  fputs("    ]\n  }\n}\n", file);
  return close_file(writer, file, name);
}

/* GLM has no token that begins a text. */
static bool write_tokenizer_config(struct writer *writer) {
  static const char name[] = "tokenizer_config.json";
  const char *const *special = special_text[is_glm(writer->options)];
  FILE *file = open_file(writer, name);

  if (!file)
    return false;
  fputs("{\n  \"add_bos_token\": false,\n  \"add_eos_token\": false,\n", file);
  if (!is_glm(writer->options))
    fprintf(file, "  \"bos_token\": \"%s\",\n", special[0]);
  fprintf(file, "  \"eos_token\": \"%s\",\n  \"pad_token\": \"%s\",\n", special[1], special[2]);
  fputs("  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": 131072,\n"
        "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
        file);
  return close_file(writer, file, name);
}

/* ---------------------------------------------------------------------------------------------------------------- */

struct quire_tiny_options quire_tiny_defaults(void) {
  return (struct quire_tiny_options){
      .seed = 1,
      .dtype = QUIRE_TINY_F32,
      .layers = 4,
      .heads = 8,
      .index_topk = QUIRE_TINY_INDEX_TOPK,
      .shards = 3,
      .mtp = true,
      .mtp_copies = false,
  };
}

struct quire_tiny_options quire_tiny_glm(void) {
  struct quire_tiny_options options = quire_tiny_defaults();

  options.family = QUIRE_TINY_GLM_MOE_DSA;
  options.layers = 6;
  options.indexers = "FFSFSS";
  return options;
}

static bool bad_indexers(const struct quire_tiny_options *options) {
  const char *kinds = options->indexers;

  return kinds && (!is_glm(options) || strlen(kinds) != (size_t)options->layers || kinds[0] != 'F' ||
                   strspn(kinds, "FS") != strlen(kinds));
}

static const char *bad_option(const struct quire_tiny_options *options) {
  if (options->dtype < QUIRE_TINY_F32 || options->dtype > QUIRE_TINY_FP8)
    return "dtype is not f32, bf16 or fp8";
  if (options->layers < 1 || options->layers > QUIRE_TINY_LAYERS_MAX)
    return "layers is not within 1..64";
  if (bad_indexers(options))
    return "indexers is not an F or S for each layer of a GLM, F for the first";
  if (!is_power_of_two(options->heads) || options->heads > QUIRE_TINY_HEADS_MAX)
    return "heads is not a power of two within 1..128";
  if (options->index_topk < 1)
    return "index_topk is below 1";
  if (options->shards < 1 || options->shards > QUIRE_TINY_SHARDS_MAX)
    return "shards is not within 1..16";
  return NULL;
}

static bool prepare(struct writer *writer) {
  const int tensors = quire_tiny_list(writer->options, 0, NULL);
  size_t elements = 0, scales = 0;

  writer->tensors = calloc((size_t)tensors, sizeof *writer->tensors);
  writer->records = calloc(2 * (size_t)tensors, sizeof *writer->records);
  if (!writer->tensors || !writer->records)
    return fail(writer, "out of memory");
  quire_tiny_list(writer->options, tensors, writer->tensors);
  for (int i = 0; i < tensors; i++) {
    const struct quire_tiny_tensor *tensor = &writer->tensors[i];
    const size_t size = (size_t)tensor->rows * (size_t)tensor->columns;
    const size_t tiles = (size_t)blocks(tensor->rows) * (size_t)blocks(tensor->columns);

    elements = size > elements ? size : elements;
    scales = tiles > scales ? tiles : scales;
    add_record(writer, tensor, false);
    if (stored_as(tensor->kind, writer->options->dtype) == STORED_F8)
      add_record(writer, tensor, true);
  }
  deal_shards(writer);
  writer->values = malloc(elements * sizeof *writer->values);
  writer->scales = malloc(scales * sizeof *writer->scales);
  writer->codes = malloc(elements * 4);
  if (!writer->values || !writer->scales || !writer->codes)
    return fail(writer, "out of memory");
  return true;
}

static bool write_folder(struct writer *writer) {
  if (!write_config(writer) || !write_generation_config(writer) || !write_tokenizer(writer) ||
      !write_tokenizer_config(writer) || !write_index(writer))
    return false;
  for (int shard = 0; shard < writer->options->shards; shard++)
    if (!write_shard(writer, shard))
      return false;
  return true;
}

bool quire_tiny_write(const char *directory, const struct quire_tiny_options *options,
                      char text_out[QUIRE_TINY_ERROR_BYTES]) {
  struct writer writer = {.directory = directory, .options = options, .text_out = text_out};
  const char *bad = bad_option(options);
  bool written = false;

  text_out[0] = '\0';
  if (bad)
    return fail(&writer, "%s", bad);
  if (mkdir(directory, 0777) != 0 && errno != EEXIST)
    return fail(&writer, "cannot make %.128s: %s", directory, strerror(errno));
  if (prepare(&writer))
    written = write_folder(&writer);
  free(writer.codes);
  free(writer.scales);
  free(writer.values);
  free(writer.records);
  free(writer.tensors);
  return written;
}
