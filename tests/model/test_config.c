/* config.json and generation_config.json: the released model's numbers, and every way a file may be wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/env.h"
#include "model/config.h"
#include "model/support.h"
#include "support/fail_env.h"

/* The released DeepSeek-V3.2's config.json, as far as it has keys. */
static const char released[] =
    "{\"architectures\":[\"DeepseekV32ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
    "\"bos_token_id\":0,\"eos_token_id\":1,\"ep_size\":1,\"first_k_dense_replace\":3,\"hidden_act\":\"silu\","
    "\"hidden_size\":7168,\"index_head_dim\":128,\"index_n_heads\":64,\"index_topk\":2048,\"initializer_range\":0.02,"
    "\"intermediate_size\":18432,\"kv_lora_rank\":512,\"max_position_embeddings\":163840,"
    "\"model_type\":\"deepseek_v32\",\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":8,"
    "\"n_routed_experts\":256,\"n_shared_experts\":1,\"norm_topk_prob\":true,\"num_attention_heads\":128,"
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"num_key_value_heads\":128,\"num_nextn_predict_layers\":1,"
    "\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"quantization_config\":"
    "{\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\",\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\","
    "\"weight_block_size\":[128,128]},\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,"
    "\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096,"
    "\"type\":\"yarn\"},\"rope_theta\":10000,\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\","
    "\"tie_word_embeddings\":false,\"topk_group\":4,\"topk_method\":\"noaux_tc\",\"torch_dtype\":\"bfloat16\","
    "\"transformers_version\":\"4.44.2\",\"use_cache\":true,\"v_head_dim\":128,\"vocab_size\":129280}";

static json_t *released_tree(void) {
  json_error_t error;
  json_t *root = json_loads(released, JSON_REJECT_DUPLICATES, &error);
  assert_non_null(root);
  return root;
}

static enum quire_status parse(const json_t *root, struct quire_model_config *config, struct quire_error *error) {
  char *text = json_dumps(root, 0);
  assert_non_null(text);
  enum quire_status status = quire_model_config_parse(text, strlen(text), config, error);
  free(text);
  return status;
}

static void test_released(void **state) {
  (void)state;
  struct quire_model_config c;
  struct quire_error error = {0};
  assert_int_equal(quire_model_config_parse(released, strlen(released), &c, &error), QUIRE_OK);
  assert_int_equal(c.family, QUIRE_FAMILY_DEEPSEEK_V32);
  assert_int_equal(c.hidden, 7168);
  assert_int_equal(c.vocab, 129280);
  assert_int_equal(c.layers, 61);
  assert_int_equal(c.positions, 163840);
  assert_int_equal(c.heads, 128);
  assert_int_equal(c.q_rank, 1536);
  assert_int_equal(c.qk_dim, 192);
  assert_int_equal(c.value_dim, 128);
  assert_int_equal(c.index_heads, 64);
  assert_int_equal(c.index_topk, 2048);
  assert_int_equal(c.index_rope_layout, QUIRE_ROPE_HALF);
  assert_int_equal(c.rope_layout, QUIRE_ROPE_INTERLEAVED);
  assert_float_equal(c.index_weight_scale, 0.0110485435, 1e-9);
  assert_float_equal(c.softmax_scale, 0.1352337789, 1e-8);
  assert_true(c.rope.yarn);
  assert_float_equal(c.rope.theta, 10000, 0);
  assert_float_equal(c.rope.factor, 40, 0);
  assert_float_equal(c.rope.attention_factor, 1, 0);
  assert_int_equal(c.rope.original_positions, 4096);
  for (int i = 0; i <= 61; i++) {
    assert_int_equal(c.moe[i], i >= 3);
    assert_true(c.owns_indexer[i]);
  }
  assert_int_equal(c.shared_width, 2048);
  assert_int_equal(c.groups, 8);
  assert_int_equal(c.groups_kept, 4);
  assert_int_equal(c.mtp_layers, 1);
  assert_int_equal(c.bos, 0);
  assert_int_equal(c.pad, -1);
  assert_int_equal(c.eos_count, 1);
  assert_int_equal(c.eos[0], 1);
  assert_true(c.norm_eps == 1e-6f && c.index_norm_eps == 1e-6f);
  /* the published counts */
  assert_int_equal(c.target_parameters, 671877944064);
  assert_int_equal(c.draft_parameters, 11624027648);
  assert_true(c.active_parameters > 37400000000 && c.active_parameters < 37700000000);
}

struct case_ {
  const char *key;   /* "a/b": key b of object a */
  const char *value; /* JSON; NULL: removed */
  enum quire_status status;
  const char *says; /* in the text, beside the key in where */
};

static void change(json_t *root, const struct case_ *c) {
  json_error_t error;
  const char *slash = strchr(c->key, '/'), *key = slash ? slash + 1 : c->key;
  if (slash) {
    char outer[64];
    snprintf(outer, sizeof outer, "%.*s", (int)(slash - c->key), c->key);
    root = json_object_get(root, outer);
    assert_non_null(root);
  }
  if (c->value) {
    json_t *value = json_loads(c->value, JSON_DECODE_ANY, &error);
    assert_non_null(value);
    json_object_set_new(root, key, value);
  } else {
    assert_int_equal(json_object_del(root, key), 0);
  }
}

static const struct case_ refused[] = {
    {"model_type", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"model_type", "\"llama\"", QUIRE_ERR_UNSUPPORTED, "llama"},
    {"model_type", "\"glm5_next\"", QUIRE_ERR_UNSUPPORTED, "glm_moe_dsa are"},
    {"model_type", "7", QUIRE_ERR_CORRUPT, "7"},
    {"sliding_window", "4096", QUIRE_ERR_UNSUPPORTED, "not a key"},
    {"hidden_size", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"hidden_size", "7169", QUIRE_ERR_UNSUPPORTED, "7169"},
    {"hidden_size", "-64", QUIRE_ERR_CORRUPT, "-64"},
    {"hidden_size", "7168.0", QUIRE_ERR_CORRUPT, "7168.0"},
    {"hidden_size", "99999999999999999999", QUIRE_ERR_CORRUPT, "config.json"},
    {"num_hidden_layers", "0", QUIRE_ERR_CORRUPT, "1 to 126"},
    {"num_hidden_layers", "127", QUIRE_ERR_CORRUPT, "1 to 126"},
    {"num_attention_heads", "\"128\"", QUIRE_ERR_CORRUPT, "\"128\""},
    {"num_key_value_heads", "8", QUIRE_ERR_UNSUPPORTED, "128"},
    {"q_lora_rank", "null", QUIRE_ERR_CORRUPT, "missing"},
    {"kv_lora_rank", "256", QUIRE_ERR_UNSUPPORTED, "512"},
    {"qk_rope_head_dim", "128", QUIRE_ERR_UNSUPPORTED, "64"},
    {"qk_nope_head_dim", "100", QUIRE_ERR_UNSUPPORTED, "100"},
    {"qk_head_dim", "256", QUIRE_ERR_CORRUPT, "192"},
    {"layer_types", "[\"indexed_attention\",\"linear_attention\"]", QUIRE_ERR_UNSUPPORTED, "entry 1"},
    {"index_head_dim", "64", QUIRE_ERR_UNSUPPORTED, "128"},
    {"index_topk", "2112", QUIRE_ERR_UNSUPPORTED, "2048"},
    {"index_topk", "100", QUIRE_ERR_UNSUPPORTED, "multiples of 64"},
    {"index_topk", "0", QUIRE_ERR_CORRUPT, "0"},
    {"index_topk_freq", "4", QUIRE_ERR_UNSUPPORTED, "1"},
    {"index_topk_pattern", "\"FSFS\"", QUIRE_ERR_UNSUPPORTED, "share"},
    {"indexer_types", "[\"full\",\"shared\"]", QUIRE_ERR_UNSUPPORTED, "share"},
    {"index_share_for_mtp_iteration", "true", QUIRE_ERR_UNSUPPORTED, "false"},
    {"attention_bias", "true", QUIRE_ERR_UNSUPPORTED, "false"},
    {"mlp_bias", "true", QUIRE_ERR_UNSUPPORTED, "false"},
    {"tie_word_embeddings", "true", QUIRE_ERR_UNSUPPORTED, "false"},
    {"hidden_act", "\"gelu\"", QUIRE_ERR_UNSUPPORTED, "silu"},
    {"scoring_func", "\"softmax\"", QUIRE_ERR_UNSUPPORTED, "sigmoid"},
    {"topk_method", "\"greedy\"", QUIRE_ERR_UNSUPPORTED, "noaux_tc"},
    {"moe_router_dtype", "\"bfloat16\"", QUIRE_ERR_UNSUPPORTED, "float32"},
    {"moe_layer_freq", "2", QUIRE_ERR_UNSUPPORTED, "1"},
    {"n_group", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"n_group", "7", QUIRE_ERR_CORRUPT, "256"},
    {"n_group", "256", QUIRE_ERR_CORRUPT, "one expert"},
    {"topk_group", "9", QUIRE_ERR_CORRUPT, "n_group"},
    {"n_routed_experts", "1024", QUIRE_ERR_CORRUPT, "512"},
    {"num_experts_per_tok", "17", QUIRE_ERR_CORRUPT, "16"},
    {"norm_topk_prob", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"norm_topk_prob", "1", QUIRE_ERR_CORRUPT, "true or false"},
    {"routed_scaling_factor", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"first_k_dense_replace", "62", QUIRE_ERR_CORRUPT, "61"},
    {"mlp_layer_types", "[\"dense\"]", QUIRE_ERR_CORRUPT, "61"},
    {"num_nextn_predict_layers", "2", QUIRE_ERR_UNSUPPORTED, "0 and 1"},
    {"rms_norm_eps", "0", QUIRE_ERR_CORRUPT, "0"},
    {"rope_theta", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"rope_theta", "1", QUIRE_ERR_CORRUPT, "rope_theta"},
    {"rope_theta", "1.00000001", QUIRE_ERR_CORRUPT, "rope_theta"}, /* 1 in f32 */
    {"rope_parameters", "{\"rope_theta\":10000}", QUIRE_ERR_CORRUPT, "rope_parameters"},
    {"rope_scaling", "3", QUIRE_ERR_CORRUPT, "object"},
    {"rope_scaling/type", "\"linear\"", QUIRE_ERR_UNSUPPORTED, "linear"},
    {"rope_scaling/rope_theta", "20000", QUIRE_ERR_CORRUPT, "rope_theta"},
    {"rope_scaling/factor", "20", QUIRE_ERR_CORRUPT, "163840"},
    {"rope_scaling/factor", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"rope_scaling/mscale", NULL, QUIRE_ERR_UNSUPPORTED, "write both"},
    {"rope_scaling/mscale_all_dim", NULL, QUIRE_ERR_UNSUPPORTED, "write both"},
    {"rope_scaling/beta_fast", "0.5", QUIRE_ERR_CORRUPT, "beta_slow"},
    {"rope_scaling/truncate", "false", QUIRE_ERR_UNSUPPORTED, "true"},
    {"rope_scaling/low_freq_factor", "1", QUIRE_ERR_UNSUPPORTED, "not a key"},
    {"eos_token_id", "129280", QUIRE_ERR_CORRUPT, "129280"},
    {"eos_token_id", "[1,\"2\"]", QUIRE_ERR_CORRUPT, "2"},
    {"eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", QUIRE_ERR_UNSUPPORTED, "16"},
    {"bos_token_id", "-2", QUIRE_ERR_CORRUPT, "-2"},
    {"quantization_config/quant_method", "\"gptq\"", QUIRE_ERR_UNSUPPORTED, "fp8"},
    {"quantization_config/fmt", "\"e5m2\"", QUIRE_ERR_UNSUPPORTED, "e4m3"},
    {"quantization_config/scale_fmt", "\"e8m0\"", QUIRE_ERR_UNSUPPORTED, "ue8m0"},
    {"quantization_config/activation_scheme", "\"static\"", QUIRE_ERR_UNSUPPORTED, "dynamic"},
    {"quantization_config/weight_block_size", "[64,64]", QUIRE_ERR_UNSUPPORTED, "128"},
    {"quantization_config/weight_block_size", NULL, QUIRE_ERR_CORRUPT, "missing"},
    {"quantization_config/bits", "4", QUIRE_ERR_UNSUPPORTED, "not a key"},
};

static void test_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    struct quire_model_config config, before;
    struct quire_error error = {0};
    const char *slash = strchr(refused[i].key, '/'), *key = slash ? slash + 1 : refused[i].key;
    json_t *root = released_tree();
    memset(&config, 0x5a, sizeof config);
    before = config;
    enum quire_status status;
    if (refused[i].value && strlen(refused[i].value) == 20 && refused[i].value[0] == '9') {
      static const char huge[] = "{\"hidden_size\":99999999999999999999}"; /* jansson cannot hold it: text only */
      status = quire_model_config_parse(huge, strlen(huge), &config, &error);
      key = "config.json";
    } else {
      change(root, &refused[i]);
      status = parse(root, &config, &error);
    }
    bool named = strstr(error.where, key) || strstr(error.text, key) || strlen(error.where) == QUIRE_WHERE_BYTES - 1;
    if (status != refused[i].status || error.status != status || !named ||
        !(strstr(error.text, refused[i].says) || strstr(error.where, refused[i].says))) {
      fail_msg("%s = %s: status %d, %s: %s", refused[i].key, refused[i].value, status, error.where, error.text);
    }
    assert_null(strchr(error.text, '\n'));
    assert_memory_equal(&config, &before, sizeof config); /* outputs are untouched */
    json_decref(root);
  }
}

static void test_accepted(void **state) {
  (void)state;
  static const struct case_ accepted[] = {
      {"num_nextn_predict_layers", NULL, QUIRE_OK, ""},
      {"num_nextn_predict_layers", "0", QUIRE_OK, ""},
      {"num_key_value_heads", NULL, QUIRE_OK, ""},
      {"quantization_config", NULL, QUIRE_OK, ""},
      {"quantization_config", "null", QUIRE_OK, ""},
      {"quantization_config/scale_fmt", NULL, QUIRE_OK, ""},
      {"quantization_config/modules_to_not_convert", "[\"lm_head\"]", QUIRE_OK, ""},
      {"qk_head_dim", "192", QUIRE_OK, ""},
      {"layer_types", "[\"indexed_attention\"]", QUIRE_OK, ""},
      {"head_dim", "64", QUIRE_OK, ""},
      {"index_topk_freq", "1", QUIRE_OK, ""},
      {"index_topk_pattern", "null", QUIRE_OK, ""},
      {"indexer_types", "[\"full\"]", QUIRE_OK, ""},
      {"indexer_rope_interleave", "false", QUIRE_OK, ""},
      {"eos_token_id", "[1,5,7]", QUIRE_OK, ""},
      {"eos_token_id", NULL, QUIRE_OK, ""},
      {"pad_token_id", "2", QUIRE_OK, ""},
      {"rope_theta", "10000.0", QUIRE_OK, ""},
      {"rope_scaling/rope_theta", "10000", QUIRE_OK, ""},
      {"rope_scaling/rope_type", "\"yarn\"", QUIRE_OK, ""},
      {"n_shared_experts", "0", QUIRE_OK, ""},
      {"dtype", "\"bfloat16\"", QUIRE_OK, ""},
  };
  for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
    struct quire_model_config config;
    struct quire_error error = {0};
    json_t *root = released_tree();
    change(root, &accepted[i]);
    if (parse(root, &config, &error)) {
      fail_msg("%s = %s: %s: %s", accepted[i].key, accepted[i].value, error.where, error.text);
    }
    json_decref(root);
  }
}

/* The two spellings of RoPE's numbers give the same config; without YaRN there is no mscale. */
static void test_rope_spellings(void **state) {
  (void)state;
  struct quire_model_config old_style, new_style, plain;
  struct quire_error error = {0};
  json_t *root = released_tree();
  assert_int_equal(parse(root, &old_style, &error), QUIRE_OK);
  json_t *rope = json_incref(json_object_get(root, "rope_scaling"));
  json_object_set_new(rope, "rope_theta", json_real(10000));
  json_object_set_new(rope, "rope_type", json_string("yarn"));
  json_object_del(rope, "type");
  json_object_set_new(root, "rope_parameters", rope);
  json_object_del(root, "rope_scaling");
  json_object_del(root, "rope_theta");
  assert_int_equal(parse(root, &new_style, &error), QUIRE_OK);
  assert_memory_equal(&old_style.rope, &new_style.rope, sizeof old_style.rope);
  assert_true(old_style.softmax_scale == new_style.softmax_scale);

  json_object_set_new(root, "rope_parameters", json_pack("{s:s,s:i}", "rope_type", "default", "rope_theta", 1000000));
  assert_int_equal(parse(root, &plain, &error), QUIRE_OK);
  assert_false(plain.rope.yarn);
  assert_float_equal(plain.rope.theta, 1e6, 0);
  assert_float_equal(plain.rope.attention_factor, 1, 0);
  assert_float_equal(plain.softmax_scale, 0.0721687836, 1e-8);

  /* without mscale keys cos and sin are scaled, and the softmax is not */
  json_object_set_new(root, "rope_parameters",
                      json_pack("{s:s,s:i,s:i,s:i}", "rope_type", "yarn", "rope_theta", 10000, "factor", 40,
                                "original_max_position_embeddings", 4096));
  assert_int_equal(parse(root, &plain, &error), QUIRE_OK);
  assert_float_equal(plain.rope.attention_factor, 1.3688879454, 1e-6);
  assert_float_equal(plain.softmax_scale, 0.0721687836, 1e-8);
  json_decref(root);
}

static void test_layer_types(void **state) {
  (void)state;
  struct quire_model_config config;
  struct quire_error error = {0};
  json_t *root = released_tree(), *kinds = json_array();
  for (int i = 0; i < 61; i++) {
    json_array_append_new(kinds, json_string(i < 3 ? "dense" : "sparse"));
  }
  json_object_set(root, "mlp_layer_types", kinds);
  assert_int_equal(parse(root, &config, &error), QUIRE_OK);
  json_array_set_new(kinds, 5, json_string("dense"));
  assert_int_equal(parse(root, &config, &error), QUIRE_ERR_CORRUPT);
  assert_non_null(strstr(error.text, "first_k_dense_replace"));
  json_object_del(root, "first_k_dense_replace");
  assert_int_equal(parse(root, &config, &error), QUIRE_OK);
  assert_false(config.moe[5]);
  assert_true(config.moe[6] && config.moe[61]);
  json_array_set_new(kinds, 7, json_string("linear"));
  assert_int_equal(parse(root, &config, &error), QUIRE_ERR_UNSUPPORTED);
  json_decref(kinds);
  json_decref(root);
}

static void test_not_json(void **state) {
  (void)state;
  static const char *const texts[] = {
      "", "{", "[]", "null", "{\"a\":1,\"a\":1}", "{} x", "\xff", "{\"model_type\":\"a\nb\"}"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    struct quire_model_config config;
    struct quire_error error = {0};
    assert_int_equal(quire_model_config_parse(texts[i], strlen(texts[i]), &config, &error), QUIRE_ERR_CORRUPT);
    assert_non_null(strstr(error.where, "config.json"));
    assert_null(strchr(error.text, '\n'));
  }
}

static long json_allocations_left;

static void *limited_malloc(size_t size) { return json_allocations_left-- > 0 ? malloc(size) : NULL; }

/* The JSON library without memory fails, in its words or ours, and loses nothing. */
static void test_json_without_memory(void **state) {
  (void)state;
  enum quire_status status = QUIRE_ERR_MEMORY;
  long limit = 0;
  json_set_alloc_funcs(limited_malloc, free);
  for (; status != QUIRE_OK && limit < 100000; limit++) {
    struct quire_model_config config;
    struct quire_error error = {0};
    json_allocations_left = limit;
    status = quire_model_config_parse(released, strlen(released), &config, &error);
    if (status != QUIRE_OK && status != QUIRE_ERR_MEMORY && status != QUIRE_ERR_CORRUPT) {
      fail_msg("allocation %ld: status %d, %s: %s", limit, status, error.where, error.text);
    }
  }
  json_set_alloc_funcs(malloc, free);
  assert_int_equal(status, QUIRE_OK);
  assert_true(limit > 100);
}

/* ---- generation_config.json ---- */

static void test_generation(void **state) {
  (void)state;
  struct fail_env env;
  struct quire_model_config config;
  struct quire_generation_config g;
  struct quire_error error = {0};
  fail_env_init(&env);
  assert_int_equal(quire_model_config_parse(released, strlen(released), &config, &error), QUIRE_OK);
#define GENERATION(text) quire_generation_config_parse(&env.env, text, strlen(text), &config, &g, &error)
  assert_int_equal(GENERATION("{}"), QUIRE_OK);
  assert_true(g.temperature == 1 && g.top_p == 1 && g.top_k == 0 && g.eos_count == 1 && g.eos[0] == 1);
  assert_true(g.min_p == 0 && g.repetition_penalty == 1);
  assert_int_equal(
      GENERATION("{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":-1,\"eos_token_id\":[1,3],\"do_sample\":true}"),
      QUIRE_OK);
  assert_true(g.temperature == 0.6f && g.top_p == 0.95f && g.top_k == 0 && g.eos_count == 2 && g.eos[1] == 3);
  assert_int_equal(GENERATION("{\"do_sample\":false,\"temperature\":0.6,\"top_k\":50}"), QUIRE_OK);
  assert_true(g.temperature == 0 && g.top_k == 50);
  assert_int_equal(env.log_lines[QUIRE_LOG_WARN], 0);
  assert_int_equal(GENERATION("{\"repetition_penalty\":1.1,\"min_p\":0.05}"), QUIRE_OK);
  assert_true(g.repetition_penalty == 1.1f && g.min_p == 0.05f);
  assert_int_equal(GENERATION("{\"repetition_penalty\":0}"), QUIRE_ERR_CORRUPT);
  assert_int_equal(GENERATION("{\"min_p\":1.5}"), QUIRE_ERR_CORRUPT);
  assert_int_equal(env.log_lines[QUIRE_LOG_WARN], 0);
  assert_int_equal(GENERATION("{\"typical_p\":0.9}"), QUIRE_OK);
  assert_int_equal(env.log_lines[QUIRE_LOG_WARN], 1);
  assert_non_null(strstr(env.log, "typical_p"));
  assert_int_equal(GENERATION("{\"top_p\":0}"), QUIRE_ERR_CORRUPT);
  assert_int_equal(GENERATION("{\"temperature\":-1}"), QUIRE_ERR_CORRUPT);
  assert_int_equal(GENERATION("{\"eos_token_id\":\"x\"}"), QUIRE_ERR_CORRUPT);
  assert_int_equal(GENERATION("[]"), QUIRE_ERR_CORRUPT);
#undef GENERATION
  assert_int_equal(quire_generation_config_load(&env.env, "/nonexistent", &config, &g, &error), QUIRE_OK);
  assert_int_equal(quire_model_config_load(&env.env, "/nonexistent", &config, &error), QUIRE_ERR_NOT_FOUND);
  fail_env_fini(&env);
}

/* ---- options and the support table ---- */

static void test_numerics(void **state) {
  (void)state;
  struct quire_model_options options = quire_model_options_default();
  struct quire_error error = {0};
  char text[QUIRE_NUMERICS_BYTES];
  assert_int_equal(quire_model_options_check(&options, &error), QUIRE_OK);
  assert_string_equal(quire_model_numerics(&options, "cpu", text), "cpu-1-bf16-leps1e-06-nohad-pow2");
  options.compute = QUIRE_DTYPE_F32;
  options.latent_norm_eps = 1e-5f;
  assert_string_equal(quire_model_numerics(&options, "cpu", text), "cpu-1-f32-leps1e-05-nohad-pow2");
  options.hadamard = true;
  assert_string_equal(quire_model_numerics(&options, "cpu", text), "cpu-1-f32-leps1e-05-had-pow2");
  options.scale_pow2 = false;
  assert_string_equal(quire_model_numerics(&options, "cpu", text), "cpu-1-f32-leps1e-05-had-anyscale");
  assert_int_equal(quire_model_options_check(&options, &error), QUIRE_OK);
  options.latent_norm_eps = 0;
  assert_int_equal(quire_model_options_check(&options, &error), QUIRE_ERR_ARGUMENT);
  options = quire_model_options_default();
  options.compute = QUIRE_DTYPE_FP8;
  assert_int_equal(quire_model_options_check(&options, &error), QUIRE_ERR_ARGUMENT);
}

static struct quire_support_query good_query(const struct quire_model_config *config) {
  return (struct quire_support_query){.config = config,
                                      .options = quire_model_options_default(),
                                      .geometry = {.page_tokens = 64, .ranks = 4, .storage_ranks = 4},
                                      .view = QUIRE_VIEW_PEER,
                                      .ctx_tokens = 8192,
                                      .cache_tokens = 8192,
                                      .chunk_tokens = 512,
                                      .threads_per_rank = 1};
}

/* Makes the query one that the rule must refuse; false for a rule that has no case here yet. */
static bool spoil(const char *rule, struct quire_support_query *q) {
  if (strcmp(rule, "ranks") == 0) {
    q->geometry.ranks = q->geometry.storage_ranks = 32;
  } else if (strcmp(rule, "mixed-storage") == 0) {
    q->geometry.storage_ranks = 2;
  } else if (strcmp(rule, "view") == 0) {
    q->view = QUIRE_VIEW_LOCAL;
  } else if (strcmp(rule, "no-context") == 0) {
    q->ctx_tokens = 0;
  } else if (strcmp(rule, "long-context") == 0) {
    q->ctx_tokens = 163841;
  } else if (strcmp(rule, "cache") == 0) {
    q->cache_tokens = q->ctx_tokens - 1;
  } else if (strcmp(rule, "chunk") == 0) {
    q->chunk_tokens = 0;
  } else if (strcmp(rule, "threads") == 0) {
    q->threads_per_rank = 65;
  } else {
    return false;
  }
  return true;
}

static void test_support(void **state) {
  (void)state;
  struct quire_model_config config;
  struct quire_error error = {0};
  assert_int_equal(quire_model_config_parse(released, strlen(released), &config, &error), QUIRE_OK);
  struct quire_support_query q = good_query(&config);
  assert_int_equal(quire_support_check(&q, &error), QUIRE_OK);
  int rules = 0;
  for (const struct quire_support_rule *rule; (rule = quire_support_rule_at(rules)); rules++) {
    q = good_query(&config);
    if (!spoil(rule->name, &q)) {
      fail_msg("rule %s has no case here", rule->name);
    }
    assert_int_equal(quire_support_check(&q, &error), rule->status);
    assert_string_equal(error.text, rule->text);
    assert_string_equal(error.where, rule->where);
  }
  assert_true(rules >= 8);
  q = good_query(&config);
  q.geometry.storage_ranks = 1; /* peer for replicated KV */
  assert_int_equal(quire_support_check(&q, &error), QUIRE_ERR_UNSUPPORTED);
  q.view = QUIRE_VIEW_LOCAL;
  assert_int_equal(quire_support_check(&q, &error), QUIRE_OK);
  q.options.latent_norm_eps = -1;
  assert_int_equal(quire_support_check(&q, &error), QUIRE_ERR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_released),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_accepted),
      cmocka_unit_test(test_rope_spellings),
      cmocka_unit_test(test_layer_types),
      cmocka_unit_test(test_not_json),
      cmocka_unit_test(test_json_without_memory),
      cmocka_unit_test(test_generation),
      cmocka_unit_test(test_numerics),
      cmocka_unit_test(test_support),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
