/* The weights of the tiny model, value by value in every stored and compute type, and checkpoints that lack a tensor,
 * have one too many, or one of another shape or type. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/env.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "support/fail_env.h"
#include "support/tiny_model.h"

// ctest: timeout=120

#define TENSORS_MAX 1024

struct model {
  char dir[64];
  struct quire_tiny_options options;
  struct quire_model_config config;
  struct quire_safetensors *tensors;
};

static struct quire_tiny_options small(enum quire_tiny_dtype dtype) {
  struct quire_tiny_options options = quire_tiny_defaults();
  options.dtype = dtype;
  options.layers = 2;
  options.heads = 4;
  return options;
}

/* A GLM: heads of 192 + 256 rows, scales that are no powers of two, and a layer without an indexer. */
static struct quire_tiny_options small_glm(enum quire_tiny_dtype dtype) {
  struct quire_tiny_options options = small(dtype);
  options.family = QUIRE_TINY_GLM_MOE_DSA;
  options.indexers = "FS";
  return options;
}

static struct model make_model(struct quire_tiny_options options) {
  struct model model = {.dir = "/tmp/quire-weights-XXXXXX", .options = options};
  struct quire_error error = {0};
  char text[QUIRE_TINY_ERROR_BYTES];
  assert_non_null(mkdtemp(model.dir));
  if (!quire_tiny_write(model.dir, &options, text)) {
    fail_msg("%s", text);
  }
  const struct quire_env *env = quire_env_default();
  if (quire_model_config_load(env, model.dir, &model.config, &error) ||
      quire_safetensors_open(env, model.dir, &model.tensors, &error)) {
    fail_msg("%s: %s", error.where, error.text);
  }
  return model;
}

static void free_model(struct model *model) {
  quire_safetensors_close(model->tensors);
  DIR *dir = opendir(model->dir);
  assert_non_null(dir);
  for (struct dirent *entry; (entry = readdir(dir));) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", model->dir, entry->d_name);
    unlink(path);
  }
  closedir(dir);
  assert_int_equal(rmdir(model->dir), 0);
}

static struct quire_weights_args args_of(const struct model *model, enum quire_dtype compute) {
  return (struct quire_weights_args){
      .config = &model->config, .tensors = model->tensors, .compute = compute, .mtp = QUIRE_MTP_AUTO};
}

static const struct quire_model_weights *open_weights(struct quire_weights_args args) {
  const struct quire_model_weights *weights = NULL;
  struct quire_error error = {0};
  if (quire_model_weights_open(quire_env_default(), &args, &weights, &error)) {
    fail_msg("%s: %s", error.where, error.text);
  }
  return weights;
}

/* ---- values ---- */

/* What a tensor's values are after they were stored: rounded, or quantised and back. Freed by the caller. */
static float *stored_values(const struct model *model, const char *name, int *rows_out, int *columns_out) {
  static struct quire_tiny_tensor list[TENSORS_MAX];
  int count = quire_tiny_list(&model->options, TENSORS_MAX, list), at = 0;
  while (at < count && strcmp(list[at].name, name) != 0) {
    at++;
  }
  assert_true(at < count);
  const int rows = list[at].rows, columns = list[at].columns;
  const size_t size = (size_t)rows * (size_t)columns;
  float *values = malloc(size * sizeof *values), *scales = malloc(size * sizeof *scales);
  uint8_t *codes = malloc(size);
  assert_true(values && scales && codes);
  quire_tiny_fill(model->options.seed, &list[at], values);
  const enum quire_tensor_type type = quire_safetensors_find(model->tensors, name)->type;
  if (type == QUIRE_TENSOR_F8_E4M3) {
    quire_tiny_quantise(model->options.family, &list[at], values, codes, scales);
  }
  for (size_t i = 0; i < size; i++) {
    const size_t block = i / (size_t)columns / 128 * (size_t)((columns + 127) / 128) + i % (size_t)columns / 128;
    if (type == QUIRE_TENSOR_F8_E4M3) {
      values[i] = quire_tiny_e4m3_value(codes[i]) * scales[block];
    } else if (type == QUIRE_TENSOR_BF16) {
      values[i] = quire_f32_of_bf16(quire_tiny_bf16(values[i]));
    }
  }
  free(codes);
  free(scales);
  *rows_out = rows;
  *columns_out = columns;
  return values;
}

static float weight_value(const struct quire_weight *w, int64_t row, int64_t column) {
  const int64_t at = row * w->ld + column;
  switch (w->dtype) {
  case QUIRE_DTYPE_F32:
    return ((const float *)w->data)[at];
  case QUIRE_DTYPE_BF16:
    return quire_f32_of_bf16(((const uint16_t *)w->data)[at]);
  case QUIRE_DTYPE_FP8:
    break;
  }
  return quire_f32_of_e4m3(((const uint8_t *)w->data)[at]) * w->scale[row / 128 * w->scale_ld + column / 128];
}

/* Every value; converted says that an f32 matrix may have become bf16. */
static void check_matrix(const struct model *model, enum quire_dtype compute, const char *name,
                         const struct quire_weight *w, bool converted) {
  int rows, columns;
  float *values = stored_values(model, name, &rows, &columns);
  const struct quire_tensor *tensor = quire_safetensors_find(model->tensors, name);
  const bool round = converted && tensor->type == QUIRE_TENSOR_F32 && compute == QUIRE_DTYPE_BF16;
  assert_int_equal(w->n, rows);
  assert_int_equal(w->k, columns);
  assert_int_equal(w->ld, columns);
  assert_int_equal(w->dtype, tensor->type == QUIRE_TENSOR_F8_E4M3         ? QUIRE_DTYPE_FP8
                             : tensor->type == QUIRE_TENSOR_BF16 || round ? QUIRE_DTYPE_BF16
                                                                          : QUIRE_DTYPE_F32);
  if (!round && (uintptr_t)tensor->data % 4 == 0) {
    assert_ptr_equal(w->data, tensor->data); /* in place */
  }
  for (int row = 0; row < rows; row++) {
    for (int column = 0; column < columns; column++) {
      const float value = values[(size_t)row * (size_t)columns + (size_t)column];
      const float wanted = round ? quire_f32_of_bf16(quire_bf16_of(value)) : value;
      if (weight_value(w, row, column) != wanted) {
        fail_msg("%s[%d, %d]", name, row, column);
      }
    }
  }
  free(values);
}

static void check_vector(const struct model *model, const char *name, const float *vector) {
  int rows, columns;
  float *values = stored_values(model, name, &rows, &columns);
  assert_memory_equal(vector, values, (size_t)columns * sizeof *vector);
  free(values);
}

static void check_kv_b(const struct model *model, enum quire_dtype compute, const char *name,
                       const struct quire_layer_weights *layer) {
  int rows, columns;
  float *values = stored_values(model, name, &rows, &columns);
  const int nope = model->config.nope_dim, value_dim = model->config.value_dim;
  const bool wide =
      quire_safetensors_find(model->tensors, name)->type != QUIRE_TENSOR_BF16 && compute == QUIRE_DTYPE_F32;
  for (int head = 0; head < model->config.heads; head++) {
    const struct quire_weight uk = quire_head_weight(&layer->w_uk, head);
    const struct quire_weight uv = quire_head_weight(&layer->w_uv, head);
    assert_int_equal(uk.dtype, wide ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16);
    assert_int_equal(uk.n, 512);
    assert_int_equal(uk.k, nope);
    assert_int_equal(uv.n, value_dim);
    assert_int_equal(uv.k, 512);
    for (int row = 0; row < nope + value_dim; row++) {
      for (int column = 0; column < 512; column++) {
        float wanted = values[((size_t)head * (size_t)(nope + value_dim) + (size_t)row) * 512 + (size_t)column];
        wanted = wide ? wanted : quire_f32_of_bf16(quire_bf16_of(wanted));
        const float found = row < nope ? weight_value(&uk, column, row) : weight_value(&uv, row - nope, column);
        if (found != wanted) {
          fail_msg("%s head %d row %d column %d", name, head, row, column);
        }
      }
    }
  }
  free(values);
}

/* All tensors of a layer whose names begin with prefix. */
static void check_layer(const struct model *m, enum quire_dtype compute, int number,
                        const struct quire_layer_weights *layer) {
  char name[160];
#define NAME(suffix) (snprintf(name, sizeof name, "model.layers.%d." suffix, number), name)
  check_vector(m, NAME("input_layernorm.weight"), layer->input_norm);
  check_vector(m, NAME("post_attention_layernorm.weight"), layer->post_norm);
  check_matrix(m, compute, NAME("self_attn.q_a_proj.weight"), &layer->q_a, true);
  check_vector(m, NAME("self_attn.q_a_layernorm.weight"), layer->q_a_norm);
  check_matrix(m, compute, NAME("self_attn.q_b_proj.weight"), &layer->q_b, true);
  check_matrix(m, compute, NAME("self_attn.kv_a_proj_with_mqa.weight"), &layer->kv_a, true);
  check_vector(m, NAME("self_attn.kv_a_layernorm.weight"), layer->kv_a_norm);
  check_kv_b(m, compute, NAME("self_attn.kv_b_proj.weight"), layer);
  check_matrix(m, compute, NAME("self_attn.o_proj.weight"), &layer->o, true);
  assert_int_equal(layer->owns_indexer, m->config.owns_indexer[number]);
  if (layer->owns_indexer) {
    check_matrix(m, compute, NAME("self_attn.indexer.wq_b.weight"), &layer->index.wq_b, true);
    check_matrix(m, compute, NAME("self_attn.indexer.wk.weight"), &layer->index.wk, true);
    check_matrix(m, compute, NAME("self_attn.indexer.weights_proj.weight"), &layer->index.weights, false);
    check_vector(m, NAME("self_attn.indexer.k_norm.weight"), layer->index.k_norm_gain);
    check_vector(m, NAME("self_attn.indexer.k_norm.bias"), layer->index.k_norm_bias);
  } else {
    static const struct quire_index_weights none;
    assert_memory_equal(&layer->index, &none, sizeof none);
  }
  assert_int_equal(layer->moe, number > 0);
  if (number == 0) {
    check_matrix(m, compute, NAME("mlp.gate_proj.weight"), &layer->mlp.gate, true);
    check_matrix(m, compute, NAME("mlp.up_proj.weight"), &layer->mlp.up, true);
    check_matrix(m, compute, NAME("mlp.down_proj.weight"), &layer->mlp.down, true);
    return;
  }
  check_matrix(m, compute, NAME("mlp.gate.weight"), &layer->router, false);
  check_vector(m, NAME("mlp.gate.e_score_correction_bias"), layer->router_bias);
  for (int j = 0; j < QUIRE_TINY_EXPERTS; j += 5) {
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", number, j);
    check_matrix(m, compute, name, &layer->experts[j].gate, true);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up_proj.weight", number, j);
    check_matrix(m, compute, name, &layer->experts[j].up, true);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.down_proj.weight", number, j);
    check_matrix(m, compute, name, &layer->experts[j].down, true);
  }
  check_matrix(m, compute, NAME("mlp.shared_experts.down_proj.weight"), &layer->shared.down, true);
#undef NAME
}

static void test_values(void **state) {
  (void)state;
  static const enum quire_dtype computes[] = {QUIRE_DTYPE_F32, QUIRE_DTYPE_BF16};
  for (int kind = 0; kind < 6; kind++) {
    const enum quire_tiny_dtype dtype = (enum quire_tiny_dtype)(kind % 3);
    struct model model = make_model(kind < 3 ? small(dtype) : small_glm(dtype));
    for (int c = 0; c < 2; c++) {
      const struct quire_model_weights *w = open_weights(args_of(&model, computes[c]));
      check_matrix(&model, computes[c], "model.embed_tokens.weight", &w->embed, false);
      check_vector(&model, "model.norm.weight", w->final_norm);
      check_matrix(&model, computes[c], "lm_head.weight", &w->head, true);
      assert_int_equal(w->layers, 2);
      for (int layer = 0; layer < 2; layer++) {
        check_layer(&model, computes[c], layer, &w->layer[layer]);
      }
      assert_true(w->has_mtp);
      check_layer(&model, computes[c], 2, &w->mtp.layer);
      check_vector(&model, "model.layers.2.enorm.weight", w->mtp.e_norm);
      check_vector(&model, "model.layers.2.hnorm.weight", w->mtp.h_norm);
      check_vector(&model, "model.layers.2.shared_head.norm.weight", w->mtp.head_norm);
      check_matrix(&model, computes[c], "model.layers.2.eh_proj.weight", &w->mtp.proj, true);
      assert_ptr_equal(w->mtp.embed.data, w->embed.data); /* no copies in this checkpoint */
      assert_ptr_equal(w->mtp.head.data, w->head.data);
      assert_true(w->mapped_bytes > 0 && w->mapped_bytes <= quire_safetensors_bytes(model.tensors));
      assert_true(w->copied_bytes > 0);
      quire_model_weights_close(w);
    }
    free_model(&model);
  }
  quire_model_weights_close(NULL);
}

/* ---- packed ---- */

/* What packing adds: a weight is the mapped one laid out, or that one itself. Returns whether it is packed. */
static bool check_packed(const struct quire_kernels *kernels, const struct quire_weight *mapped,
                         const struct quire_weight *packed) {
  if (!quire_weight_can_pack(mapped)) {
    assert_int_equal(packed->layout, QUIRE_WEIGHT_ROWS);
    return false;
  }
  const size_t bytes = (size_t)quire_weight_packed_bytes(mapped);
  void *data = aligned_alloc(64, bytes);
  struct quire_weight wanted;
  assert_non_null(data);
  kernels->pack_weight(mapped, data, &wanted);
  assert_int_equal(packed->layout, QUIRE_WEIGHT_PACKED);
  assert_int_equal(packed->dtype, mapped->dtype);
  assert_int_equal(packed->n, mapped->n);
  assert_int_equal(packed->k, mapped->k);
  assert_ptr_equal(packed->scale, mapped->scale);
  assert_memory_equal(packed->data, wanted.data, bytes);
  free(data);
  return true;
}

static int check_packed_layer(const struct quire_kernels *kernels, const struct model *model,
                              const struct quire_layer_weights *mapped, const struct quire_layer_weights *packed) {
  int count = check_packed(kernels, &mapped->q_a, &packed->q_a) + check_packed(kernels, &mapped->q_b, &packed->q_b) +
              check_packed(kernels, &mapped->kv_a, &packed->kv_a) + check_packed(kernels, &mapped->o, &packed->o);
  for (int head = 0; head < model->config.heads; head++) {
    const struct quire_weight from[2] = {quire_head_weight(&mapped->w_uk, head),
                                         quire_head_weight(&mapped->w_uv, head)};
    const struct quire_weight to[2] = {quire_head_weight(&packed->w_uk, head), quire_head_weight(&packed->w_uv, head)};
    count += check_packed(kernels, &from[0], &to[0]) + check_packed(kernels, &from[1], &to[1]);
  }
  if (mapped->owns_indexer) {
    count += check_packed(kernels, &mapped->index.wq_b, &packed->index.wq_b);
    assert_ptr_equal(mapped->index.weights.data, packed->index.weights.data); /* used as stored */
  }
  for (int j = 0; mapped->moe && j < QUIRE_TINY_EXPERTS; j++) {
    count += check_packed(kernels, &mapped->experts[j].gate, &packed->experts[j].gate) +
             check_packed(kernels, &mapped->experts[j].up, &packed->experts[j].up) +
             check_packed(kernels, &mapped->experts[j].down, &packed->experts[j].down);
  }
  return count;
}

static void test_packed(void **state) {
  (void)state;
  const struct quire_kernels *kernels = NULL;
  if (quire_kernels_find("avx512", &kernels, NULL) != QUIRE_OK) {
    print_message("skipped: this machine has no kernels with packed weights\n");
    skip();
  }
  for (int kind = 0; kind < 3; kind++) {
    struct model model = make_model(small((enum quire_tiny_dtype)kind));
    struct quire_weights_args args = args_of(&model, QUIRE_DTYPE_BF16);
    const struct quire_model_weights *mapped = open_weights(args);
    args.pack = kernels;
    const struct quire_model_weights *packed = open_weights(args);
    int count = 0;
    for (int layer = 0; layer < mapped->layers; layer++) {
      count += check_packed_layer(kernels, &model, &mapped->layer[layer], &packed->layer[layer]);
    }
    count += check_packed_layer(kernels, &model, &mapped->mtp.layer, &packed->mtp.layer);
    assert_true(count > 0);
    assert_ptr_equal(mapped->embed.data, packed->embed.data);
    assert_memory_equal(mapped->identity, packed->identity, sizeof mapped->identity);
    assert_int_equal(mapped->packed_bytes, 0);
    assert_true(packed->packed_bytes > 0);
    assert_true(packed->mapped_bytes + packed->copied_bytes < mapped->mapped_bytes + mapped->copied_bytes);
    quire_model_weights_close(packed);
    quire_model_weights_close(mapped);
    free_model(&model);
  }
}

/* Bytes of the model's files that this process holds in its page tables. */
static size_t resident_bytes(const struct model *model) {
  FILE *maps = fopen("/proc/self/smaps", "r");
  assert_non_null(maps);
  char line[512];
  bool ours = false;
  size_t begin, end, kib = 0, found = 0;
  while (fgets(line, sizeof line, maps)) {
    if (sscanf(line, "%zx-%zx ", &begin, &end) == 2) { /* a mapping, its path last */
      ours = strstr(line, model->dir) != NULL;
    } else if (ours && sscanf(line, "Rss: %zu kB", &kib) == 1) {
      found += kib << 10;
    }
  }
  fclose(maps);
  return found;
}

/* What was copied, rounded or packed does not stay resident a second time. */
static void test_resident(void **state) {
  (void)state;
  const struct quire_kernels *kernels = NULL;
  bool can = quire_kernels_find("auto", &kernels, NULL) == QUIRE_OK && kernels->pack_weight != NULL;
  for (int kind = 0; kind < 3; kind++) {
    for (int pack = 0; pack <= can; pack++) {
      struct model model = make_model(small((enum quire_tiny_dtype)kind));
      struct quire_weights_args args = args_of(&model, QUIRE_DTYPE_BF16);
      args.pack = pack ? kernels : NULL;
      const struct quire_model_weights *w = open_weights(args);
      const size_t bytes = quire_safetensors_bytes(model.tensors), resident = resident_bytes(&model);
      if (resident > bytes / 8) {
        fail_msg("type %d, packed %d: %zu of %zu bytes stay resident", kind, pack, resident, bytes);
      }
      quire_model_weights_close(w);
      free_model(&model);
    }
  }
}

/* ---- the draft layer ---- */

static void test_mtp_modes(void **state) {
  (void)state;
  struct quire_error error = {0};
  const struct quire_model_weights *w = NULL;
  struct quire_tiny_options options = small(QUIRE_TINY_BF16);
  options.mtp_copies = true;
  struct model model = make_model(options);
  struct quire_weights_args args = args_of(&model, QUIRE_DTYPE_BF16);
  w = open_weights(args);
  assert_true(w->has_mtp);
  assert_ptr_equal(w->mtp.embed.data,
                   quire_safetensors_find(model.tensors, "model.layers.2.embed_tokens.weight")->data);
  assert_ptr_equal(w->mtp.head.data,
                   quire_safetensors_find(model.tensors, "model.layers.2.shared_head.head.weight")->data);
  const size_t with_mtp = w->mapped_bytes;
  quire_model_weights_close(w);
  args.mtp = QUIRE_MTP_OFF;
  w = open_weights(args);
  assert_false(w->has_mtp);
  assert_true(w->mapped_bytes < with_mtp);
  quire_model_weights_close(w);
  /* the config says there is none, the tensors are there: as transformers would save it */
  model.config.mtp_layers = 0;
  args.mtp = QUIRE_MTP_AUTO;
  w = open_weights(args);
  assert_false(w->has_mtp);
  quire_model_weights_close(w);
  args.mtp = QUIRE_MTP_ON;
  assert_int_equal(quire_model_weights_open(quire_env_default(), &args, &w, &error), QUIRE_ERR_ARGUMENT);
  assert_non_null(strstr(error.text, "num_nextn_predict_layers"));
  free_model(&model);

  options.mtp = options.mtp_copies = false;
  model = make_model(options);
  model.config.mtp_layers = 1; /* the config promises what the checkpoint has not */
  args = args_of(&model, QUIRE_DTYPE_BF16);
  struct fail_env env;
  fail_env_init(&env);
  assert_int_equal(quire_model_weights_open(&env.env, &args, &w, &error), QUIRE_OK);
  assert_false(w->has_mtp);
  assert_int_equal(env.log_lines[QUIRE_LOG_WARN], 1);
  quire_model_weights_close(w);
  fail_env_fini(&env);
  args.mtp = QUIRE_MTP_ON;
  assert_int_equal(quire_model_weights_open(quire_env_default(), &args, &w, &error), QUIRE_ERR_ARGUMENT);
  assert_non_null(strstr(error.text, "eh_proj"));
  free_model(&model);
}

/* ---- checkpoints made in memory ---- */

struct entry {
  char name[128];
  const char *type;
  int rank;
  int64_t shape[4];
  const void *data;
  size_t bytes;
};

struct checkpoint {
  struct entry entries[TENSORS_MAX];
  int count;
  int pad; /* spaces that move the data */
  uint8_t *bytes;
  size_t size;
};

static struct checkpoint *copy_of(const struct model *model) {
  struct checkpoint *c = calloc(1, sizeof *c);
  assert_non_null(c);
  c->count = quire_safetensors_count(model->tensors);
  assert_true(c->count + 1 < TENSORS_MAX);
  for (int i = 0; i < c->count; i++) {
    const struct quire_tensor *t = quire_safetensors_at(model->tensors, i);
    struct entry *e = &c->entries[i];
    snprintf(e->name, sizeof e->name, "%s", t->name);
    e->type = quire_tensor_type_name(t->type);
    e->rank = t->rank;
    memcpy(e->shape, t->shape, sizeof e->shape);
    e->data = t->data;
    e->bytes = t->bytes;
  }
  return c;
}

static struct entry *entry_of(struct checkpoint *c, const char *name) {
  for (int i = 0; i < c->count; i++) {
    if (strcmp(c->entries[i].name, name) == 0) {
      return &c->entries[i];
    }
  }
  fail_msg("no tensor %s", name);
  return NULL;
}

static struct quire_safetensors *build(struct checkpoint *c) {
  size_t data_bytes = 0, used = 8, capacity = 8 + (size_t)c->count * 320 + 64;
  for (int i = 0; i < c->count; i++) {
    data_bytes += c->entries[i].bytes;
  }
  c->bytes = malloc(capacity + data_bytes);
  assert_non_null(c->bytes);
  char *text = (char *)c->bytes;
  size_t offset = 0;
  for (int i = 0; i < c->count; i++) {
    const struct entry *e = &c->entries[i];
    used += (size_t)sprintf(text + used, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", e->name, e->type);
    for (int d = 0; d < e->rank; d++) {
      used += (size_t)sprintf(text + used, "%s%lld", d ? "," : "", (long long)e->shape[d]);
    }
    used += (size_t)sprintf(text + used, "],\"data_offsets\":[%zu,%zu]}", offset, offset + e->bytes);
    offset += e->bytes;
  }
  text[used++] = '}';
  while (used % 64 != (size_t)c->pad) {
    text[used++] = ' ';
  }
  assert_true(used <= capacity);
  for (int i = 0; i < 8; i++) {
    c->bytes[i] = (uint8_t)((used - 8) >> (8 * i));
  }
  for (int i = 0; i < c->count; i++) {
    memcpy(c->bytes + used, c->entries[i].data, c->entries[i].bytes);
    used += c->entries[i].bytes;
  }
  c->size = used;
  struct quire_safetensors *tensors = NULL;
  struct quire_error error = {0};
  if (quire_safetensors_adopt(quire_env_default(), c->bytes, c->size, &tensors, &error)) {
    fail_msg("%s: %s", error.where, error.text);
  }
  return tensors;
}

static void free_checkpoint(struct checkpoint *c, struct quire_safetensors *tensors) {
  quire_safetensors_close(tensors);
  free(c->bytes);
  free(c);
}

#define L1 "model.layers.1."

enum edit { DROP, TRANSPOSE, FILL, FLATTEN, RETYPE, RENAME };

static const struct refused_checkpoint {
  enum edit edit;
  const char *name;
  const char *argument;
  enum quire_status status;
  const char *says[3];
} refused_checkpoints[] = {
    {DROP, "lm_head.weight", NULL, QUIRE_ERR_CORRUPT, {"lm_head.weight", "missing", "config.json"}},
    {DROP, "model.norm.weight", NULL, QUIRE_ERR_CORRUPT, {"model.norm.weight", "missing"}},
    {DROP, L1 "self_attn.kv_b_proj.weight", NULL, QUIRE_ERR_CORRUPT, {"kv_b_proj", "missing"}},
    {DROP, L1 "self_attn.indexer.k_norm.bias", NULL, QUIRE_ERR_CORRUPT, {"k_norm.bias", "missing"}},
    {DROP, L1 "mlp.experts.7.up_proj.weight", NULL, QUIRE_ERR_CORRUPT, {L1 "mlp.experts.7.up_proj.weight", "missing"}},
    {DROP, L1 "mlp.gate.e_score_correction_bias", NULL, QUIRE_ERR_CORRUPT, {"e_score_correction_bias", "missing"}},
    {DROP, "model.layers.2.enorm.weight", NULL, QUIRE_ERR_CORRUPT, {"enorm", "missing"}},
    {DROP,
     L1 "self_attn.q_a_proj.weight_scale_inv",
     NULL,
     QUIRE_ERR_CORRUPT,
     {"q_a_proj", "lacks", "weight_scale_inv"}},
    {TRANSPOSE, L1 "self_attn.q_b_proj.weight", NULL, QUIRE_ERR_CORRUPT, {"q_b_proj", "[128, 768]", "[768, 128]"}},
    {TRANSPOSE, "model.embed_tokens.weight", NULL, QUIRE_ERR_CORRUPT, {"embed_tokens", "[256, 512]", "[512, 256]"}},
    {TRANSPOSE, L1 "self_attn.q_b_proj.weight_scale_inv", NULL, QUIRE_ERR_CORRUPT, {"scale_inv", "[1, 6]", "[6, 1]"}},
    {FLATTEN, L1 "mlp.gate.weight", NULL, QUIRE_ERR_CORRUPT, {"mlp.gate.weight", "[4096]", "[16, 256]"}},
    {RETYPE, L1 "mlp.shared_experts.up_proj.weight", "I8", QUIRE_ERR_CORRUPT, {"up_proj", "I8", "F8_E4M3"}},
    {RETYPE, L1 "self_attn.q_a_proj.weight_scale_inv", "I32", QUIRE_ERR_CORRUPT, {"scale_inv", "I32", "F32"}},
    {RENAME, L1 "self_attn.o_proj.weight_scale_inv", L1 "self_attn.o_proj.bias", QUIRE_ERR_CORRUPT, {"o_proj"}},
    {RENAME,
     L1 "mlp.experts.0.gate_proj.weight",
     L1 "mlp.experts.gate_up_proj",
     QUIRE_ERR_UNSUPPORTED,
     {"gate_up_proj", "one tensor an expert"}},
    {RENAME, L1 "mlp.experts.0.down_proj.weight", L1 "mlp.experts.down_proj", QUIRE_ERR_UNSUPPORTED, {"down_proj"}},
    {FILL, L1 "self_attn.q_a_proj.weight_scale_inv", "0", QUIRE_ERR_CORRUPT, {"scale_inv", "not positive", "at 0"}},
    {FILL, L1 "self_attn.o_proj.weight_scale_inv", "255", QUIRE_ERR_CORRUPT, {"scale_inv", "not positive"}},
    {FILL, L1 "self_attn.kv_a_layernorm.weight", "255", QUIRE_ERR_CORRUPT, {"kv_a_layernorm", "not finite"}},
    {FILL, L1 "mlp.gate.e_score_correction_bias", "255", QUIRE_ERR_CORRUPT, {"e_score", "not finite"}},
};

static uint8_t fill_bytes[4096];

static void apply(struct checkpoint *c, const struct refused_checkpoint *edit) {
  struct entry *e = entry_of(c, edit->name);
  const int64_t first = e->shape[0];
  switch (edit->edit) {
  case DROP:
    *e = c->entries[--c->count];
    break;
  case TRANSPOSE:
    e->shape[0] = e->shape[1];
    e->shape[1] = first;
    break;
  case FILL: /* every byte; 255 makes NaN of any type */
    memset(fill_bytes, atoi(edit->argument), sizeof fill_bytes);
    assert_true(e->bytes <= sizeof fill_bytes);
    e->data = fill_bytes;
    break;
  case FLATTEN:
    e->shape[0] *= e->shape[1];
    e->rank = 1;
    break;
  case RETYPE:
    e->type = edit->argument;
    break;
  case RENAME:
    snprintf(e->name, sizeof e->name, "%s", edit->argument);
    break;
  }
}

static void test_refused_checkpoints(void **state) {
  (void)state;
  struct model model = make_model(small(QUIRE_TINY_FP8));
  for (size_t i = 0; i < sizeof refused_checkpoints / sizeof *refused_checkpoints; i++) {
    struct checkpoint *c = copy_of(&model);
    apply(c, &refused_checkpoints[i]);
    struct quire_safetensors *tensors = build(c);
    struct fail_env env;
    const struct quire_model_weights *w = NULL;
    struct quire_error error = {0};
    struct quire_weights_args args = args_of(&model, QUIRE_DTYPE_BF16);
    args.tensors = tensors;
    fail_env_init(&env);
    enum quire_status status = quire_model_weights_open(&env.env, &args, &w, &error);
    assert_null(w);
    for (int s = 0; s < 3; s++) {
      if (status != refused_checkpoints[i].status ||
          (refused_checkpoints[i].says[s] && !strstr(error.text, refused_checkpoints[i].says[s]))) {
        fail_msg("case %zu, %s: status %d: %s", i, refused_checkpoints[i].name, status, error.text);
      }
    }
    fail_env_fini(&env);
    free_checkpoint(c, tensors);
  }
  free_model(&model);
}

/* A layer that shares a list has no indexer, and one that does not has all of it. */
static void test_shared_indexer(void **state) {
  (void)state;
  struct model model = make_model(small_glm(QUIRE_TINY_BF16));
  struct quire_model_config all = model.config, none = model.config;
  const struct quire_model_weights *w = NULL;
  struct quire_error error = {0};
  struct quire_weights_args args = args_of(&model, QUIRE_DTYPE_BF16);
  args.config = &all;
  all.owns_indexer[1] = true;
  assert_int_equal(quire_model_weights_open(quire_env_default(), &args, &w, &error), QUIRE_ERR_CORRUPT);
  assert_non_null(strstr(error.text, L1 "self_attn.indexer.wq_b.weight is missing"));
  args.config = &none;
  none.owns_indexer[0] = false;
  assert_int_equal(quire_model_weights_open(quire_env_default(), &args, &w, &error), QUIRE_ERR_CORRUPT);
  assert_non_null(strstr(error.text, "model.layers.0.self_attn.indexer."));
  assert_non_null(strstr(error.text, "no place"));
  uint64_t base[2], other[2];
  quire_model_identity(&model.config, model.tensors, base);
  quire_model_identity(&all, model.tensors, other);
  assert_memory_not_equal(base, other, sizeof base);
  free_model(&model);
}

static enum quire_status open_extra(const struct model *model, const char *name, struct quire_error *error) {
  static const float one = 1;
  struct checkpoint *c = copy_of(model);
  struct entry *e = &c->entries[c->count++];
  *e = (struct entry){.type = "F32", .rank = 1, .shape = {1, 1, 1, 1}, .data = &one, .bytes = sizeof one};
  snprintf(e->name, sizeof e->name, "%s", name);
  struct quire_safetensors *tensors = build(c);
  const struct quire_model_weights *w = NULL;
  struct quire_weights_args args = args_of(model, QUIRE_DTYPE_BF16);
  args.tensors = tensors;
  enum quire_status status = quire_model_weights_open(quire_env_default(), &args, &w, error);
  quire_model_weights_close(w);
  free_checkpoint(c, tensors);
  return status;
}

static void test_extra_tensors(void **state) {
  (void)state;
  struct quire_error error = {0};
  struct model model = make_model(small(QUIRE_TINY_BF16));
  assert_int_equal(open_extra(&model, L1 "self_attn.q_a_proj.bias", &error), QUIRE_ERR_CORRUPT);
  assert_non_null(strstr(error.text, "q_a_proj.bias"));
  assert_int_equal(open_extra(&model, "model.layers.3.enorm.weight", &error), QUIRE_ERR_CORRUPT);
  assert_int_equal(open_extra(&model, L1 "self_attn.q_a_proj.weight_scale_inv", &error), QUIRE_ERR_CORRUPT);
  assert_int_equal(open_extra(&model, L1 "self_attn.rotary_emb.inv_freq", &error), QUIRE_OK);
  free_model(&model);
}

/* Data that no type's alignment fits is copied, and is the same data. */
static void test_misaligned(void **state) {
  (void)state;
  struct model model = make_model(small(QUIRE_TINY_F32));
  for (int pad = 1; pad < 4; pad++) {
    struct checkpoint *c = copy_of(&model);
    c->pad = pad;
    struct model moved = model;
    moved.tensors = build(c);
    const struct quire_model_weights *w = open_weights(args_of(&moved, QUIRE_DTYPE_F32));
    assert_int_equal((uintptr_t)w->embed.data % 4, 0);
    check_matrix(&moved, QUIRE_DTYPE_F32, "model.embed_tokens.weight", &w->embed, false);
    check_layer(&moved, QUIRE_DTYPE_F32, 1, &w->layer[1]);
    assert_int_equal(w->mapped_bytes, 0);
    quire_model_weights_close(w);
    free_checkpoint(c, moved.tensors);
  }
  free_model(&model);
}

/* Heads of 192 + 64 rows: blocks of 128 rows lie across the border of keys and values. */
static void test_blocks_across_heads(void **state) {
  (void)state;
  static uint8_t zeros[2 << 20];
  static float ones[8];
  for (int i = 0; i < 8; i++) {
    ones[i] = 1.0f;
  }
  struct model model = make_model(small(QUIRE_TINY_FP8));
  struct checkpoint *c = copy_of(&model);
  model.config.nope_dim = 192;
  model.config.value_dim = 64;
  model.config.qk_dim = 256;
  for (int layer = 0; layer <= 2; layer++) {
    static const struct {
      const char *suffix;
      int64_t n, k;
      size_t element;
    } changed[] = {{"q_b_proj.weight", 1024, 128, 1},
                   {"q_b_proj.weight_scale_inv", 8, 1, 4},
                   {"o_proj.weight", 256, 256, 1},
                   {"o_proj.weight_scale_inv", 2, 2, 4}};
    for (size_t i = 0; i < 4; i++) {
      char name[128];
      snprintf(name, sizeof name, "model.layers.%d.self_attn.%s", layer, changed[i].suffix);
      struct entry *e = entry_of(c, name);
      e->shape[0] = changed[i].n;
      e->shape[1] = changed[i].k;
      e->bytes = (size_t)(changed[i].n * changed[i].k) * changed[i].element;
      e->data = changed[i].element == 4 ? (const void *)ones : zeros;
      assert_true(e->bytes <= (changed[i].element == 4 ? sizeof ones : sizeof zeros));
    }
  }
  struct model changed = model;
  changed.tensors = build(c);
  const struct quire_model_weights *w = open_weights(args_of(&changed, QUIRE_DTYPE_BF16));
  check_kv_b(&changed, QUIRE_DTYPE_BF16, "model.layers.0.self_attn.kv_b_proj.weight", &w->layer[0]);
  check_kv_b(&changed, QUIRE_DTYPE_BF16, "model.layers.2.self_attn.kv_b_proj.weight", &w->mtp.layer);
  quire_model_weights_close(w);
  free_checkpoint(c, changed.tensors);
  free_model(&model);
}

/* ---- identity, progress, memory ---- */

static void test_identity(void **state) {
  (void)state;
  uint64_t base[2], other[2];
  struct quire_tiny_options options = small(QUIRE_TINY_BF16);
  struct model model = make_model(options);
  quire_model_identity(&model.config, model.tensors, base);
  const struct quire_model_weights *w = open_weights(args_of(&model, QUIRE_DTYPE_BF16));
  assert_memory_equal(w->identity, base, sizeof base);
  quire_model_weights_close(w);

  options.shards = 1; /* the same tensors in one file */
  struct model single = make_model(options);
  quire_model_identity(&single.config, single.tensors, other);
  assert_memory_equal(base, other, sizeof base);
  single.config.index_topk = 64;
  quire_model_identity(&single.config, single.tensors, other);
  assert_memory_not_equal(base, other, sizeof base);
  free_model(&single);

  options.seed = 2;
  single = make_model(options);
  quire_model_identity(&single.config, single.tensors, other);
  assert_memory_not_equal(base, other, sizeof base);
  free_model(&single);

  struct checkpoint *c = copy_of(&model); /* one bit in one tensor */
  struct entry *e = entry_of(c, L1 "mlp.experts.3.up_proj.weight");
  uint8_t *changed = malloc(e->bytes);
  assert_non_null(changed);
  memcpy(changed, e->data, e->bytes);
  changed[e->bytes - 1] ^= 1;
  e->data = changed;
  struct quire_safetensors *tensors = build(c);
  quire_model_identity(&model.config, tensors, other);
  assert_memory_not_equal(base, other, sizeof base);
  free_checkpoint(c, tensors);
  free(changed);
  free_model(&model);
}

struct progress {
  uint64_t done, total;
  int calls;
};

static void note_progress(void *context, uint64_t done, uint64_t total) {
  struct progress *p = context;
  assert_true(done > p->done && done <= total);
  assert_true(p->calls == 0 || total == p->total);
  *p = (struct progress){done, total, p->calls + 1};
}

static void test_progress(void **state) {
  (void)state;
  struct model model = make_model(small(QUIRE_TINY_BF16));
  for (int mtp = QUIRE_MTP_AUTO; mtp <= QUIRE_MTP_OFF; mtp++) {
    struct progress progress = {0};
    struct quire_weights_args args = args_of(&model, QUIRE_DTYPE_BF16);
    args.mtp = (enum quire_mtp_mode)mtp;
    args.progress = note_progress;
    args.progress_context = &progress;
    quire_model_weights_close(open_weights(args));
    assert_true(progress.calls > 50);
    assert_int_equal(progress.done, progress.total);
  }
  free_model(&model);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  const struct quire_model_weights *w = NULL;
  struct quire_error error = {0};
  struct quire_weights_args args = args_of(context, QUIRE_DTYPE_BF16);
  const struct quire_kernels *kernels = NULL;
  bool can = quire_kernels_find("auto", &kernels, NULL) == QUIRE_OK && kernels->pack_weight != NULL;
  args.pack = can ? kernels : NULL;
  enum quire_status status = quire_model_weights_open(env, &args, &w, &error);
  assert_true(status ? w == NULL : w != NULL);
  quire_model_weights_close(w);
  return status;
}

static void test_every_allocation_refused(void **state) {
  (void)state;
  struct quire_tiny_options options = small(QUIRE_TINY_BF16);
  options.layers = 1;
  options.heads = 1;
  struct model model = make_model(options);
  assert_true(fail_env_sweep(life, &model) > 20);
  free_model(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_packed),
      cmocka_unit_test(test_resident),
      cmocka_unit_test(test_mtp_modes),
      cmocka_unit_test(test_refused_checkpoints),
      cmocka_unit_test(test_shared_indexer),
      cmocka_unit_test(test_extra_tensors),
      cmocka_unit_test(test_misaligned),
      cmocka_unit_test(test_blocks_across_heads),
      cmocka_unit_test(test_identity),
      cmocka_unit_test(test_progress),
      cmocka_unit_test(test_every_allocation_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
