/* config.json of GLM-5, 5.1 and 5.2: the released numbers, which layers own an indexer however the file says it, and
 * what such a file may not say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/config.h"
#include "model/support.h"

/* GLM-5's config.json, as far as it has keys; mlp_layer_types is added by glm_tree. */
static const char glm_5[] =
    "{\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
    "\"dtype\":\"bfloat16\",\"eos_token_id\":[154820,154827,154829],\"ep_size\":1,\"first_k_dense_replace\":3,"
    "\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":6144,\"index_head_dim\":128,\"index_n_heads\":32,"
    "\"index_topk\":2048,\"indexer_rope_interleave\":true,\"initializer_range\":0.02,\"intermediate_size\":12288,"
    "\"kv_lora_rank\":512,\"max_position_embeddings\":202752,\"model_type\":\"glm_moe_dsa\","
    "\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":1,\"n_routed_experts\":256,\"n_shared_experts\":1,"
    "\"norm_topk_prob\":true,\"num_attention_heads\":64,\"num_experts_per_tok\":8,\"num_hidden_layers\":78,"
    "\"num_key_value_heads\":64,\"num_nextn_predict_layers\":1,\"pad_token_id\":154820,\"pretraining_tp\":1,"
    "\"q_lora_rank\":2048,\"qk_head_dim\":256,\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-05,"
    "\"rope_interleave\":true,\"rope_parameters\":{\"rope_theta\":1000000,\"rope_type\":\"default\"},"
    "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"tie_word_embeddings\":false,\"topk_group\":1,"
    "\"topk_method\":\"noaux_tc\",\"transformers_version\":\"5.0.2\",\"use_cache\":true,\"v_head_dim\":256,"
    "\"vocab_size\":154880}";

#define LAYERS 78

static json_t *glm_tree(void) {
  json_error_t error;
  json_t *root = json_loads(glm_5, JSON_REJECT_DUPLICATES, &error), *kinds = json_array();
  assert_non_null(root);
  for (int i = 0; i < LAYERS; i++) {
    json_array_append_new(kinds, json_string(i < 3 ? "dense" : "sparse"));
  }
  json_object_set_new(root, "mlp_layer_types", kinds);
  return root;
}

static bool is_full(int layer) { return layer < 3 || (layer >= 6 && (layer - 2) % 4 == 0); }

static json_t *released_kinds(void) {
  json_t *kinds = json_array();
  for (int i = 0; i < LAYERS; i++) {
    json_array_append_new(kinds, json_string(is_full(i) ? "full" : "shared"));
  }
  return kinds;
}

/* What GLM-5.2 has that GLM-5 has not. */
static json_t *glm_52_tree(void) {
  json_t *root = glm_tree();
  json_object_set_new(root, "head_dim", json_integer(192));
  json_object_set_new(root, "max_position_embeddings", json_integer(1048576));
  json_object_set_new(root, "moe_router_dtype", json_string("float32"));
  json_object_set_new(root, "index_topk_freq", json_integer(4));
  json_object_set_new(root, "index_skip_topk_offset", json_integer(3));
  json_object_set_new(root, "index_topk_pattern", json_null());
  json_object_set_new(root, "index_share_for_mtp_iteration", json_true());
  json_object_set_new(root, "indexer_types", released_kinds());
  json_object_set_new(json_object_get(root, "rope_parameters"), "rope_theta", json_integer(8000000));
  return root;
}

/* The tree is freed. */
static enum quire_status parse(json_t *root, struct quire_model_config *config, struct quire_error *error) {
  char *text = json_dumps(root, 0);
  assert_non_null(text);
  enum quire_status status = quire_model_config_parse(text, strlen(text), config, error);
  free(text);
  json_decref(root);
  return status;
}

static struct quire_model_config good(json_t *root) {
  struct quire_model_config config;
  struct quire_error error = {0};
  if (parse(root, &config, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
  return config;
}

static void test_glm_5(void **state) {
  (void)state;
  struct quire_model_config c = good(glm_tree());
  assert_int_equal(c.family, QUIRE_FAMILY_GLM_MOE_DSA);
  assert_string_equal(quire_family_name(c.family), "glm_moe_dsa");
  assert_int_equal(c.hidden, 6144);
  assert_int_equal(c.vocab, 154880);
  assert_int_equal(c.layers, LAYERS);
  assert_int_equal(c.positions, 202752);
  assert_int_equal(c.heads, 64);
  assert_int_equal(c.q_rank, 2048);
  assert_int_equal(c.nope_dim, 192);
  assert_int_equal(c.qk_dim, 256); /* and not head_dim */
  assert_int_equal(c.value_dim, 256);
  assert_int_equal(c.index_heads, 32);
  assert_int_equal(c.index_topk, 2048);
  assert_int_equal(c.index_rope_layout, QUIRE_ROPE_INTERLEAVED);
  assert_int_equal(c.rope_layout, QUIRE_ROPE_INTERLEAVED);
  assert_float_equal(c.index_weight_scale, 0.015625, 0);
  assert_float_equal(c.softmax_scale, 0.0625, 0);
  assert_false(c.rope.yarn);
  assert_float_equal(c.rope.theta, 1e6, 0);
  assert_float_equal(c.rope.attention_factor, 1, 0);
  assert_true(c.norm_eps == 1e-5f && c.index_norm_eps == 1e-6f);
  assert_true(quire_model_latent_norm_eps(&c) == 1e-5f);
  assert_int_equal(c.groups, 1);
  assert_int_equal(c.groups_kept, 1);
  assert_int_equal(c.bos, -1);
  assert_int_equal(c.pad, 154820);
  assert_int_equal(c.eos_count, 3);
  assert_int_equal(c.eos[1], 154827);
  assert_int_equal(c.mtp_layers, 1);
  assert_false(c.drafts_share_list);
  for (int i = 0; i <= LAYERS; i++) {
    assert_int_equal(c.moe[i], i >= 3);
    assert_true(c.owns_indexer[i]);
  }
  assert_true(c.target_parameters > 743900000000 && c.target_parameters < 743920000000); /* published: 744 B */
}

static void test_glm_52(void **state) {
  (void)state;
  struct quire_model_config c = good(glm_52_tree());
  int full = 0;
  for (int i = 0; i < LAYERS; i++) {
    assert_int_equal(c.owns_indexer[i], is_full(i));
    full += c.owns_indexer[i];
  }
  assert_int_equal(full, 21);
  assert_true(c.owns_indexer[LAYERS]);
  assert_true(c.drafts_share_list);
  assert_float_equal(c.rope.theta, 8e6, 0);
  assert_int_equal(c.positions, 1048576);
  /* the published headers add up to this, biases of the routers included */
  assert_int_equal(c.target_parameters + c.draft_parameters, 753329940480);
  assert_true(c.active_parameters > 40290000000 && c.active_parameters < 40310000000); /* published: 40.30 B */
}

static json_t *shared_by(json_t *types, json_t *pattern, json_t *freq, json_t *offset) {
  json_t *root = glm_tree();
  if (types) {
    json_object_set_new(root, "indexer_types", types);
  }
  if (pattern) {
    json_object_set_new(root, "index_topk_pattern", pattern);
  }
  if (freq) {
    json_object_set_new(root, "index_topk_freq", freq);
  }
  if (offset) {
    json_object_set_new(root, "index_skip_topk_offset", offset);
  }
  return root;
}

static json_t *pattern_text(void) {
  char text[LAYERS + 1] = {0};
  for (int i = 0; i < LAYERS; i++) {
    text[i] = is_full(i) ? 'F' : 'S';
  }
  return json_string(text);
}

/* The same layers, said in every way there is; and two schedules by hand. */
static void test_shared_layers(void **state) {
  (void)state;
  json_t *letters = json_array();
  for (int i = 0; i < LAYERS; i++) {
    json_array_append_new(letters, json_string(is_full(i) ? "F" : "S"));
  }
  json_t *same[] = {
      shared_by(released_kinds(), NULL, NULL, NULL),
      shared_by(NULL, pattern_text(), NULL, NULL),
      shared_by(NULL, letters, NULL, NULL),
      shared_by(NULL, NULL, json_integer(4), json_integer(3)),
      shared_by(released_kinds(), pattern_text(), json_integer(4), json_integer(3)),
      shared_by(released_kinds(), NULL, NULL, json_integer(9)), /* an offset alone says nothing */
  };
  for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
    struct quire_model_config c = good(same[k]);
    for (int i = 0; i <= LAYERS; i++) {
      assert_int_equal(c.owns_indexer[i], i == LAYERS || is_full(i));
    }
  }
  struct quire_model_config c = good(shared_by(NULL, NULL, json_integer(3), NULL)); /* offset 2 */
  for (int i = 0; i < LAYERS; i++) {
    assert_int_equal(c.owns_indexer[i], i < 2 || (i - 1) % 3 == 0);
  }
  c = good(shared_by(NULL, NULL, json_integer(0), json_integer(7))); /* 0 is read as 1 */
  for (int i = 0; i < LAYERS; i++) {
    assert_true(c.owns_indexer[i]);
  }
}

static json_t *kinds_with(int entry, const char *kind) {
  json_t *kinds = released_kinds();
  json_array_set_new(kinds, (size_t)entry, json_string(kind));
  return kinds;
}

static void expect_refused(json_t *root, enum quire_status status, const char *key, const char *says) {
  struct quire_model_config config, before;
  struct quire_error error = {0};
  memset(&config, 0x5a, sizeof config);
  before = config;
  enum quire_status found = parse(root, &config, &error);
  if (found != status || !strstr(error.where, key) || !strstr(error.text, says)) {
    fail_msg("%s: status %d, %s: %s", key, found, error.where, error.text);
  }
  assert_memory_equal(&config, &before, sizeof config);
}

static void test_shared_layers_refused(void **state) {
  (void)state;
  expect_refused(shared_by(kinds_with(5, "half"), NULL, NULL, NULL), QUIRE_ERR_UNSUPPORTED, "indexer_types", "entry 5");
  expect_refused(shared_by(kinds_with(0, "shared"), NULL, NULL, NULL), QUIRE_ERR_CORRUPT, "indexer_types", "layer 0");
  expect_refused(shared_by(json_pack("[s,s]", "full", "shared"), NULL, NULL, NULL), QUIRE_ERR_CORRUPT, "indexer_types",
                 "2 entries for 78");
  expect_refused(shared_by(json_integer(3), NULL, NULL, NULL), QUIRE_ERR_CORRUPT, "indexer_types", "list");
  expect_refused(shared_by(NULL, json_string("FSX"), NULL, NULL), QUIRE_ERR_CORRUPT, "index_topk_pattern", "3 entries");
  expect_refused(shared_by(NULL, NULL, json_integer(4), json_integer(0)), QUIRE_ERR_CORRUPT, "index_topk_freq",
                 "layer 0");
  expect_refused(shared_by(NULL, NULL, json_integer(-1), NULL), QUIRE_ERR_CORRUPT, "index_topk_freq", "-1");
  expect_refused(shared_by(NULL, NULL, json_string("4"), NULL), QUIRE_ERR_CORRUPT, "index_topk_freq", "4");
  /* engines do not all read the same key, so two that disagree are two models */
  expect_refused(shared_by(kinds_with(7, "full"), NULL, json_integer(4), json_integer(3)), QUIRE_ERR_CORRUPT,
                 "index_topk_freq", "indexer_types at layer 7");
  expect_refused(shared_by(released_kinds(), NULL, json_integer(4), NULL), QUIRE_ERR_CORRUPT, "index_topk_freq",
                 "indexer_types at layer 2");
  expect_refused(shared_by(kinds_with(9, "full"), pattern_text(), NULL, NULL), QUIRE_ERR_CORRUPT, "index_topk_pattern",
                 "indexer_types at layer 9");
  expect_refused(shared_by(NULL, pattern_text(), json_integer(2), json_integer(3)), QUIRE_ERR_CORRUPT,
                 "index_topk_freq", "index_topk_pattern at layer 4");
}

static const struct changed {
  const char *key, *value; /* JSON; NULL: removed */
  enum quire_status status;
  const char *says;
} changes[] = {
    {"indexer_rope_interleave", "false", QUIRE_ERR_UNSUPPORTED, "only true"},
    {"rope_interleave", "false", QUIRE_ERR_UNSUPPORTED, "only true"},
    {"qk_head_dim", "192", QUIRE_ERR_CORRUPT, "256"},
    {"moe_router_dtype", "\"bfloat16\"", QUIRE_ERR_UNSUPPORTED, "float32"},
    {"n_group", "7", QUIRE_ERR_CORRUPT, "256"},
    {"sliding_window", "128", QUIRE_ERR_UNSUPPORTED, "not a key"},
    {"rope_parameters", "{\"rope_theta\":1000000,\"rope_type\":\"linear\"}", QUIRE_ERR_UNSUPPORTED, "linear"},
    {"rope_parameters", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"rope_theta", "8000000", QUIRE_ERR_CORRUPT, "rope_theta"},
    {"eos_token_id", "[154820,154880]", QUIRE_ERR_CORRUPT, "154880"},
    {"layer_types", "[\"sliding_attention\"]", QUIRE_ERR_UNSUPPORTED, "entry 0"},
    {"index_share_for_mtp_iteration", "1", QUIRE_ERR_CORRUPT, "true or false"},
    {"head_dim", "7", QUIRE_OK, ""},
    {"qk_head_dim", NULL, QUIRE_OK, ""},
    {"indexer_rope_interleave", NULL, QUIRE_OK, ""},
    {"rope_interleave", NULL, QUIRE_OK, ""},
    {"mlp_layer_types", NULL, QUIRE_OK, ""},
    {"first_k_dense_replace", NULL, QUIRE_OK, ""},
    {"bos_token_id", "0", QUIRE_OK, ""},
    {"eos_token_id", "154820", QUIRE_OK, ""},
    {"layer_types", "[\"indexed_attention\",\"deepseek_sparse_attention\"]", QUIRE_OK, ""},
    {"quantization_config",
     "{\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\",\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
     "\"modules_to_not_convert\":[\"lm_head\",\"model.layers.0.self_attn.indexers_proj\"]}",
     QUIRE_OK, ""},
};

static void test_changes(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    json_t *root = glm_tree();
    if (changes[i].value) {
      json_error_t error;
      json_t *value = json_loads(changes[i].value, JSON_DECODE_ANY, &error);
      assert_non_null(value);
      json_object_set_new(root, changes[i].key, value);
    } else {
      assert_int_equal(json_object_del(root, changes[i].key), 0);
    }
    if (changes[i].status == QUIRE_OK) {
      struct quire_model_config c = good(root);
      assert_int_equal(c.index_rope_layout, QUIRE_ROPE_INTERLEAVED);
      assert_int_equal(c.rope_layout, QUIRE_ROPE_INTERLEAVED);
    } else {
      const char *key = strncmp(changes[i].key, "rope_", 5) == 0 ? "rope_" : changes[i].key;
      expect_refused(root, changes[i].status, key, changes[i].says);
    }
  }
}

/* A released model is served as engines serve it; compared with transformers, by choice. */
static void test_numerics(void **state) {
  (void)state;
  struct quire_model_config c = good(glm_52_tree());
  struct quire_model_options options = quire_model_options_default();
  char text[QUIRE_NUMERICS_BYTES];
  assert_string_equal(quire_model_numerics(&options, "cpu", text), "cpu-1-bf16-leps1e-06-nohad-pow2");
  options.latent_norm_eps = quire_model_latent_norm_eps(&c);
  assert_string_equal(quire_model_numerics(&options, "cpu", text), "cpu-1-bf16-leps1e-05-nohad-pow2");
  struct quire_support_query query = {.config = &c,
                                      .options = options,
                                      .geometry = {.page_tokens = 64, .ranks = 4, .storage_ranks = 4},
                                      .view = QUIRE_VIEW_GATHER,
                                      .ctx_tokens = 1 << 20,
                                      .cache_tokens = 1 << 20,
                                      .chunk_tokens = 512,
                                      .threads_per_rank = 1};
  struct quire_error error = {0};
  assert_int_equal(quire_support_check(&query, &error), QUIRE_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_glm_5),         cmocka_unit_test(test_glm_52),
      cmocka_unit_test(test_shared_layers), cmocka_unit_test(test_shared_layers_refused),
      cmocka_unit_test(test_changes),       cmocka_unit_test(test_numerics),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
