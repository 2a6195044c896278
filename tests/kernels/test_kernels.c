/* The tables: how they are found, that every thread runs flushed, and one digest over everything they compute, which
 * every compiler, table and team must give. */
#include <xmmintrin.h>

#include "kernel_oracle.h"

static struct test_world world;

/* Change with every change of docs/arithmetic.md, and with nothing else. The second is of the options: keys through
 * the Hadamard transform, any scales. */
#define DIGEST 0x8ec3b3b40e2eed08ull
#define DIGEST_OPTIONS 0xf19b604d5b7501e6ull

static void test_find(void **state) {
  const struct quire_kernels *kernels = NULL;
  struct quire_error error;
  (void)state;
  assert_int_equal(quire_kernels_find("auto", &kernels, &error), QUIRE_OK);
  assert_true(quire_kernels_can(kernels, NULL));
  for (int i = 0; quire_kernels_at(i) != NULL; i++) {
    const struct quire_kernels *at = quire_kernels_at(i);
    const char *why = NULL;
    assert_int_equal(at->size, sizeof *at);
    if (quire_kernels_can(at, &why)) {
      assert_null(why);
      assert_int_equal(quire_kernels_find(at->name, &kernels, &error), QUIRE_OK);
      assert_ptr_equal(kernels, at);
    } else {
      assert_non_null(why);
      assert_int_equal(quire_kernels_find(at->name, &kernels, &error), QUIRE_ERR_UNSUPPORTED);
      assert_non_null(strstr(error.text, why));
    }
  }
  assert_null(quire_kernels_at(-1));
  kernels = NULL;
  assert_int_equal(quire_kernels_find("sse9", &kernels, &error), QUIRE_ERR_ARGUMENT);
  assert_non_null(strstr(error.text, "sse9"));
  assert_null(kernels);
  assert_int_equal(quire_kernels_find("sse9", &kernels, NULL), QUIRE_ERR_ARGUMENT);
}

/* A product whose only term is subnormal is zero on every member, and the caller's control word comes back. */
static void test_flushed(void **state) {
  enum { M = 128, N = 256, K = 512 }; /* enough work for a team */
  (void)state;
  float *x = test_alloc(M * K * 4);
  float *w = test_alloc(N * K * 4);
  float *y = test_alloc(M * N * 4);
  struct quire_gemm op = {.x = x,
                          .y = y,
                          .w = {.data = w, .dtype = QUIRE_DTYPE_F32, .n = N, .k = K, .ld = K},
                          .x_dtype = QUIRE_DTYPE_F32,
                          .y_dtype = QUIRE_DTYPE_F32,
                          .m = M,
                          .x_ld = K,
                          .y_ld = N};
  uint32_t plain = _mm_getcsr() & ~0x803fu; /* no flushing, no sticky flags */
  for (int i = 0; i < M; i++) {
    x[i * K] = 0x1p-100f;
    x[i * K + 1] = 0x1p-130f;
  }
  for (int i = 0; i < N; i++) {
    w[i * K] = 0x1p-40f;      /* product subnormal */
    w[i * K + 1] = 0x1p+100f; /* operand subnormal */
  }
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    for (int threads = 0; threads < TEST_THREADS_MAX; threads++) {
      _mm_setcsr(plain);
      memset(y, 0xff, M * N * 4);
      world.kernels[kernels]->gemm(world.stream[threads], op);
      assert_int_equal(_mm_getcsr() & ~0x3fu, plain);
      for (int i = 0; i < M * N; i++) {
        assert_true(y[i] == 0.0f);
      }
    }
  }
  uint32_t former = quire_kernels_enter();
  assert_int_equal(_mm_getcsr() & 0x8040u, 0x8040u);
  quire_kernels_leave(former);
  assert_int_equal(_mm_getcsr() & 0x8040u, 0);
  free(x);
  free(w);
  free(y);
}

/* --- the digest --- */

struct digest {
  uint64_t state;
  struct test_random rng;
  const struct quire_kernels *kernels;
  struct quire_stream *stream;
  int threads;
  bool options;
};

static void digest_add(struct digest *d, const void *data, int64_t bytes) {
  const uint8_t *p = data;
  for (int64_t i = 0; i < bytes; i++) { /* FNV-1a */
    d->state = (d->state ^ p[i]) * 0x100000001b3ull;
  }
}

static void digest_products(struct digest *d) {
  for (int i = 0; i < 6; i++) {
    enum { M = 9, N = 70, K = 300 };
    struct test_weight w = test_weight_make(&d->rng, (enum quire_dtype)(i / 2), N, K, 0.3f);
    float x[M * K];
    float y[M * N];
    test_fill(&d->rng, x, M * K, 1.0f);
    for (int j = 0; j < M * K && i % 2; j++) {
      uint16_t half = quire_bf16_round(x[j]);
      memcpy((uint16_t *)(void *)x + j, &half, 2);
    }
    d->kernels->gemm(d->stream, (struct quire_gemm){.x = x,
                                                    .y = y,
                                                    .w = w.w,
                                                    .x_dtype = i % 2 ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32,
                                                    .y_dtype = QUIRE_DTYPE_F32,
                                                    .m = M,
                                                    .x_ld = K,
                                                    .y_ld = N});
    digest_add(d, y, sizeof y);
    test_weight_free(&w);
  }
}

static void digest_rows(struct digest *d) {
  enum { M = 7, N = 192 };
  float x[M * N], y[M * N], gain[N], table[50 * 64];
  int32_t positions[M];
  quire_rope_table(&test_rope_v32, 50, table);
  digest_add(d, table, sizeof table);
  test_fill(&d->rng, x, M * N, 2.0f);
  test_fill(&d->rng, gain, N, 1.0f);
  for (int i = 0; i < M; i++) {
    positions[i] = test_between(&d->rng, 0, 49);
  }
  d->kernels->rmsnorm(d->stream, (struct quire_rmsnorm){.x = x,
                                                        .gain = gain,
                                                        .y = y,
                                                        .y_dtype = QUIRE_DTYPE_F32,
                                                        .m = M,
                                                        .n = N,
                                                        .x_ld = N,
                                                        .y_ld = N,
                                                        .eps = 1e-6f});
  digest_add(d, y, sizeof y);
  d->kernels->layernorm(
      d->stream, (struct quire_layernorm){
                     .x = y, .gain = gain, .bias = gain, .y = y, .m = M, .n = N, .x_ld = N, .y_ld = N, .eps = 1e-6f});
  digest_add(d, y, sizeof y);
  for (int layout = 0; layout < 2; layout++) {
    d->kernels->rope(d->stream, (struct quire_rope){.x = y,
                                                    .table = table,
                                                    .positions = positions,
                                                    .layout = (enum quire_rope_layout)layout,
                                                    .m = M,
                                                    .heads = 3,
                                                    .x_ld = N,
                                                    .head_ld = 64});
    digest_add(d, y, sizeof y);
  }
  d->kernels->silu_mul(
      d->stream,
      (struct quire_silu_mul){
          .gate = x, .up = y, .y = y, .y_dtype = QUIRE_DTYPE_F32, .m = M, .n = N, .gate_ld = N, .up_ld = N, .y_ld = N});
  digest_add(d, y, sizeof y);
  d->kernels->add(d->stream, (struct quire_add){.x = x, .y = y, .m = M, .n = N, .x_ld = N, .y_ld = N});
  d->kernels->convert(
      d->stream,
      (struct quire_convert){.x = x, .y = y, .y_dtype = QUIRE_DTYPE_BF16, .m = M, .n = N, .x_ld = N, .y_ld = N});
  digest_add(d, y, M * N * 2);
}

#define CACHE_LENGTH 300

/* A cache of 300 positions through the quantisers. */
static void digest_store(struct digest *d, enum quire_kv_format format, struct test_source *keys,
                         struct test_source *latents) {
  test_source_make(&d->rng, keys, test_part(QUIRE_PART_INDEX_KEY, format, 64), 64, CACHE_LENGTH, 200);
  test_source_make(&d->rng, latents, test_part(QUIRE_PART_LATENT, format, 64), 64, CACHE_LENGTH, 200);
  for (int32_t p = 0; p < CACHE_LENGTH; p++) {
    float row[576];
    uint8_t stored[2304];
    test_fill(&d->rng, row, 576, 1.0f);
    d->kernels->quantise_latent(d->stream, (struct quire_quantise_latent){.latent = row,
                                                                          .rope = row + 512,
                                                                          .out = stored,
                                                                          .format = format,
                                                                          .any_scale = d->options,
                                                                          .m = 1,
                                                                          .latent_ld = 512,
                                                                          .rope_ld = 64});
    memcpy(test_source_at(latents, 0, p), stored, (size_t)latents->part.row_bytes);
    digest_add(d, stored, latents->part.row_bytes);
    if (d->options) {
      d->kernels->hadamard(d->stream, (struct quire_hadamard){row, 1, 1, 128, 128});
    }
    d->kernels->quantise_index(d->stream, (struct quire_quantise_index){.key = row,
                                                                        .keys_out = test_source_at(keys, 0, p),
                                                                        .scales_out = (float *)(void *)row,
                                                                        .format = format,
                                                                        .any_scale = d->options,
                                                                        .m = 1,
                                                                        .key_ld = 128});
    if (format != QUIRE_KV_F32) {
      memcpy(test_source_at(keys, 1, p), row, 4);
    }
    digest_add(d, test_source_at(keys, 0, p), keys->part.piece[0].row_bytes);
  }
}

/* Selection and attention over it, with 6 heads each. */
static void digest_cache(struct digest *d, enum quire_kv_format format, enum quire_dtype q_dtype) {
  enum { LENGTH = CACHE_LENGTH, M = 6, HEADS = 6, TOPK = 40 };
  struct test_source keys, latents;
  digest_store(d, format, &keys, &latents);
  float q[M * HEADS * 576], w[M * HEADS], out[M * HEADS * 512], lse[M * HEADS];
  int32_t source_of[M] = {0}, limit[M] = {300, 299, 41, 40, 7, 250}, indices[M * TOPK], counts[M];
  test_fill(&d->rng, q, M * HEADS * 576, 0.5f);
  test_fill(&d->rng, w, M * HEADS, 0.3f);
  uint8_t *scratch = test_alloc(quire_select_scratch_bytes(HEADS, TOPK, LENGTH, d->threads) +
                                quire_attend_scratch_bytes(HEADS, TOPK, d->threads));
  d->kernels->select(d->stream, (struct quire_select){
                                    .rows = {.sources = &keys.source, .source_of = source_of, .limit = limit, .m = M},
                                    .part = keys.part,
                                    .q = q,
                                    .w = w,
                                    .indices_out = indices,
                                    .counts_out = counts,
                                    .scratch = scratch,
                                    .format = format,
                                    .any_scale = d->options,
                                    .heads = HEADS,
                                    .topk = TOPK,
                                    .limit_max = LENGTH});
  digest_add(d, indices, sizeof indices);
  for (int i = 0; i < M * HEADS * 576 && q_dtype == QUIRE_DTYPE_BF16; i++) {
    uint16_t half = quire_bf16_round(q[i]);
    memcpy((uint16_t *)(void *)q + i, &half, 2);
  }
  d->kernels->attend(
      d->stream,
      (struct quire_attend){.rows = {.sources = &latents.source, .source_of = source_of, .limit = limit, .m = M},
                            .part = latents.part,
                            .q_latent = q,
                            .q_rope = (uint8_t *)q + M * HEADS * 512 * oracle_bytes(q_dtype),
                            .indices = indices,
                            .counts = counts,
                            .out = out,
                            .lse = lse,
                            .scratch = scratch,
                            .format = format,
                            .q_dtype = q_dtype,
                            .out_dtype = QUIRE_DTYPE_F32,
                            .heads = HEADS,
                            .topk = TOPK,
                            .scale = 0.07f});
  digest_add(d, out, sizeof out);
  digest_add(d, lse, sizeof lse);
  free(scratch);
  test_source_free(&keys);
  test_source_free(&latents);
}

static void digest_experts(struct digest *d) {
  enum { M = 10, HIDDEN = 96, WIDTH = 80, EXPERTS = 8, K = 3 };
  struct test_weight weights[EXPERTS + 1][3];
  struct quire_expert experts[EXPERTS + 1];
  float logits[M * EXPERTS], bias[EXPERTS], x[M * HIDDEN], residual[M * HIDDEN], chosen[M * K];
  int32_t ids[M * K];
  for (int e = 0; e <= EXPERTS; e++) {
    weights[e][0] = test_weight_make(&d->rng, QUIRE_DTYPE_FP8, WIDTH, HIDDEN, 0.3f);
    weights[e][1] = test_weight_make(&d->rng, QUIRE_DTYPE_FP8, WIDTH, HIDDEN, 0.3f);
    weights[e][2] = test_weight_make(&d->rng, QUIRE_DTYPE_BF16, HIDDEN, WIDTH, 0.3f);
    experts[e] = (struct quire_expert){weights[e][0].w, weights[e][1].w, weights[e][2].w};
  }
  test_fill(&d->rng, logits, M * EXPERTS, 1.0f);
  test_fill(&d->rng, bias, EXPERTS, 0.1f);
  test_fill(&d->rng, x, M * HIDDEN, 1.0f);
  test_fill(&d->rng, residual, M * HIDDEN, 1.0f);
  d->kernels->route(d->stream, (struct quire_route){.logits = logits,
                                                    .bias = bias,
                                                    .ids_out = ids,
                                                    .weights_out = chosen,
                                                    .m = M,
                                                    .experts = EXPERTS,
                                                    .groups = 4,
                                                    .groups_kept = 2,
                                                    .k = K,
                                                    .normalise = true,
                                                    .scaling = 2.5f});
  digest_add(d, ids, sizeof ids);
  digest_add(d, chosen, sizeof chosen);
  uint8_t *scratch = test_alloc(quire_moe_scratch_bytes(
      &(struct quire_moe){
          .m = M, .hidden = HIDDEN, .expert_width = WIDTH, .shared_width = WIDTH, .expert_count = EXPERTS, .k = K},
      d->threads));
  for (int type = 0; type < 2; type++) {
    for (int i = 0; i < M * HIDDEN && type == 1; i++) {
      uint16_t half = quire_bf16_round(x[i]);
      memcpy((uint16_t *)(void *)x + i, &half, 2);
    }
    d->kernels->moe(d->stream, (struct quire_moe){.x = x,
                                                  .x_dtype = type ? QUIRE_DTYPE_BF16 : QUIRE_DTYPE_F32,
                                                  .experts = experts,
                                                  .shared = experts[EXPERTS],
                                                  .ids = ids,
                                                  .weights = chosen,
                                                  .residual = residual,
                                                  .scratch = scratch,
                                                  .m = M,
                                                  .hidden = HIDDEN,
                                                  .expert_width = WIDTH,
                                                  .shared_width = WIDTH,
                                                  .expert_count = EXPERTS,
                                                  .k = K,
                                                  .x_ld = HIDDEN,
                                                  .residual_ld = HIDDEN});
    digest_add(d, residual, sizeof residual);
  }
  free(scratch);
  for (int e = 0; e <= EXPERTS; e++) {
    for (int i = 0; i < 3; i++) {
      test_weight_free(&weights[e][i]);
    }
  }
}

static void digest_tokens(struct digest *d) {
  enum { M = 12, VOCAB = 400, TOPS = 5 };
  static const struct quire_bias bias[] = {{17, 2.5f}, {39, -3.0f}};
  static const int32_t list[] = {3, 3, 3, 17, 250, 251, 17};
  float logits[M * VOCAB], logprobs[M];
  struct quire_draw draws[M];
  struct quire_top tops[M][TOPS];
  int32_t tokens[M];
  uint16_t counts[VOCAB];
  test_fill(&d->rng, logits, M * VOCAB, 2.0f);
  struct quire_count_job job = {counts, list, 0, 7, 4, true};
  d->kernels->count(d->stream, (struct quire_count){&job, 1, VOCAB});
  for (int i = 0; i < M; i++) {
    draws[i] = (struct quire_draw){.temperature = 0.3f * (float)i,
                                   .top_p = i % 2 ? 0.9f : 1.0f,
                                   .min_p = i % 4 ? 0.0f : 0.05f,
                                   .top_k = i % 3 ? 50 : 0,
                                   .presence_penalty = 0.25f,
                                   .frequency_penalty = 0.5f,
                                   .repetition_penalty = 1.25f,
                                   .counts = i % 5 ? counts : NULL,
                                   .extra = list,
                                   .extra_count = i % 5 == 1 ? 2 : 0,
                                   .bias = bias,
                                   .bias_count = i % 3,
                                   .tops_out = tops[i],
                                   .top_count = TOPS,
                                   .logprob = true,
                                   .position = i,
                                   .seed = (uint64_t)i * 77};
  }
  uint8_t *scratch = test_alloc(quire_sample_scratch_bytes(VOCAB, d->threads));
  d->kernels->sample(d->stream, (struct quire_sample){.logits = logits,
                                                      .draws = draws,
                                                      .tokens_out = tokens,
                                                      .logprobs_out = logprobs,
                                                      .scratch = scratch,
                                                      .m = M,
                                                      .vocab = VOCAB,
                                                      .logits_ld = VOCAB});
  digest_add(d, counts, sizeof counts);
  digest_add(d, tokens, sizeof tokens);
  digest_add(d, logprobs, sizeof logprobs);
  digest_add(d, tops, sizeof tops);
  free(scratch);
}

static void digest_caches(struct digest *d) {
  for (int format = 0; format < 3; format++) {
    digest_cache(d, (enum quire_kv_format)format, QUIRE_DTYPE_F32);
    digest_cache(d, (enum quire_kv_format)format, QUIRE_DTYPE_BF16);
  }
}

static void digest_check(const struct digest *d, uint64_t want) {
  if (d->state != want) {
    fail_msg("%s with %d threads gives 0x%016llxull", d->kernels->name, d->threads, (unsigned long long)d->state);
  }
}

static void test_digest(void **state) {
  (void)state;
  for (int kernels = 0; kernels < world.kernel_count; kernels++) {
    for (int threads = 1; threads <= TEST_THREADS_MAX; threads++) {
      struct digest d = {.state = 0xcbf29ce484222325ull,
                         .kernels = world.kernels[kernels],
                         .stream = world.stream[threads - 1],
                         .threads = threads};
      d.rng.state = 20251130;
      digest_products(&d);
      digest_rows(&d);
      digest_caches(&d);
      digest_experts(&d);
      digest_tokens(&d);
      digest_check(&d, DIGEST);
      d.state = 0xcbf29ce484222325ull;
      d.rng.state = 20251130;
      d.options = true;
      digest_caches(&d);
      digest_check(&d, DIGEST_OPTIONS);
    }
  }
}

static int set_up(void **state) {
  (void)state;
  test_world_open(&world);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  test_world_close(&world);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_find),
      cmocka_unit_test(test_flushed),
      cmocka_unit_test(test_digest),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
