// ctest: timeout=120 labels=quick
/* Same bytes from every compiler and instruction set: digests of stored rows, tokens and log-probabilities, written
 * down once (gcc, avx512) and expected of every build and of every set of kernels that the machine has. One line for
 * each arithmetic: how matrices are stored, compute type, KV format.
 *
 * Whoever changes the arithmetic on purpose raises QUIRE_NUMERICS_REVISION, writes docs/arithmetic.md anew, and takes
 * the new table from QUIRE_TEST_PRINT=1. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/hash.h"
#include "support/exact_run.h"

#define LENGTH 200 /* more than top-k, and a page that is not full */
#define NEW 5

enum weights { BF16, FP8, GLM, WEIGHTS };
static const char *const weights_names[WEIGHTS] = {"BF16", "FP8", "GLM"};

struct digest_case {
  enum weights weights;
  enum quire_dtype compute;
  enum quire_kv_format kv;
  struct quire_hash128 digest;
};

static const struct digest_case cases[] = {
    {BF16, QUIRE_DTYPE_BF16, QUIRE_KV_F32, {0x894d87c8c8d16edbu, 0xec893d55514ca55cu}},
    {BF16, QUIRE_DTYPE_BF16, QUIRE_KV_BF16, {0x2909af4767f6e1b5u, 0xf4893912296dba07u}},
    {BF16, QUIRE_DTYPE_BF16, QUIRE_KV_FP8, {0x9ba761625f53eac6u, 0x280e889d7e1a0810u}},
    {BF16, QUIRE_DTYPE_F32, QUIRE_KV_F32, {0x0b916a3d175f2d0cu, 0x9619a0c30e4ec466u}},
    {BF16, QUIRE_DTYPE_F32, QUIRE_KV_BF16, {0x9b3b1d4964377e91u, 0x13554d91737ffe95u}},
    {BF16, QUIRE_DTYPE_F32, QUIRE_KV_FP8, {0x7149c1dbc653af82u, 0x08af38485d2c4874u}},
    {FP8, QUIRE_DTYPE_BF16, QUIRE_KV_F32, {0xd3027a113147cc1eu, 0xe9247e844dd76197u}},
    {FP8, QUIRE_DTYPE_BF16, QUIRE_KV_BF16, {0xcf533097c39d9bc6u, 0x48f770a78e9238c1u}},
    {FP8, QUIRE_DTYPE_BF16, QUIRE_KV_FP8, {0x7b53f78648af3805u, 0xe63974751be88ea2u}},
    {FP8, QUIRE_DTYPE_F32, QUIRE_KV_F32, {0x8dc852e93ee758a4u, 0x621cb0081da47ec9u}},
    {FP8, QUIRE_DTYPE_F32, QUIRE_KV_BF16, {0x87e0e219768e1ab1u, 0xdde2e328e4eded96u}},
    {FP8, QUIRE_DTYPE_F32, QUIRE_KV_FP8, {0x70cf2616844f77eeu, 0xb8917eab21424b27u}},
    {GLM, QUIRE_DTYPE_BF16, QUIRE_KV_BF16, {0x343716fb392734dau, 0xcef2eed9b908ab75u}},
    {GLM, QUIRE_DTYPE_BF16, QUIRE_KV_FP8, {0x6f7fca39e8c74fcbu, 0x992cb234cfe46114u}},
    {GLM, QUIRE_DTYPE_F32, QUIRE_KV_F32, {0x77045442657f7863u, 0xc788b46345e4f519u}},
};
#define CASES (sizeof cases / sizeof cases[0])
/* Sanitizers make this thirty times slower and no other bytes: there, three cases are enough. */
#ifdef __SANITIZE_ADDRESS__
#define STRIDE 7
#else
#define STRIDE 1
#endif

static struct exact_model models[WEIGHTS];
static int32_t tokens[LENGTH];

static int open_models(void **unused) {
  (void)unused;
  for (int i = 0; i < WEIGHTS; i++) {
    struct quire_tiny_options options = i == GLM ? quire_tiny_glm() : quire_tiny_defaults();
    options.layers = i == GLM ? 3 : 2;
    options.heads = 4;
    options.dtype = i == BF16 ? QUIRE_TINY_BF16 : QUIRE_TINY_FP8;
    options.indexers = i == GLM ? "FSF" : NULL;
    exact_model_tiny(&models[i], &options);
  }
  quire_tiny_tokens(29, LENGTH, tokens);
  return 0;
}

static int close_models(void **unused) {
  (void)unused;
  for (int i = 0; i < WEIGHTS; i++) {
    exact_model_close(&models[i]);
  }
  return 0;
}

static struct quire_hash128 digest_of(const struct digest_case *c, const char *isa, bool mapped) {
  struct exact_cell cell = exact_cell_defaults(&models[c->weights], tokens, LENGTH);
  cell.compute = c->compute;
  cell.kv = c->kv;
  cell.mtp = true;
  cell.isa = isa;
  cell.mapped = mapped;
  cell.new_max = NEW;
  struct exact_result result = {0};
  exact_cell_run(&cell, &result);
  assert_int_equal(result.drawn, NEW);
  assert_int_equal(result.count, LENGTH + NEW - 1);
  struct quire_hash128_stream stream;
  quire_hash128_begin(&stream, 0);
  for (int32_t i = 0; i < result.parts; i++) {
    quire_hash128_add(&stream, result.rows[i], (size_t)result.count * (size_t)result.row_bytes[i]);
  }
  quire_hash128_add(&stream, result.token, NEW * sizeof result.token[0]);
  quire_hash128_add(&stream, result.logprob, NEW * sizeof result.logprob[0]);
  exact_result_free(&result);
  return quire_hash128_end(&stream);
}

static void print_case(const struct digest_case *c, struct quire_hash128 digest) {
  static const char *const formats[] = {"F32", "BF16", "FP8"};
  printf("    {%s, QUIRE_DTYPE_%s, QUIRE_KV_%s, {0x%016" PRIx64 "u, 0x%016" PRIx64 "u}},\n", weights_names[c->weights],
         c->compute == QUIRE_DTYPE_F32 ? "F32" : "BF16", formats[c->kv], digest.low, digest.high);
}

static void expect_digests(const char *isa, bool mapped) {
  int different = 0;
  for (size_t i = 0; i < CASES; i += STRIDE) {
    struct quire_hash128 digest = digest_of(&cases[i], isa, mapped);
    bool equal = quire_hash128_equal(digest, cases[i].digest);
    different += equal ? 0 : 1;
    if (!equal || getenv("QUIRE_TEST_PRINT") != NULL) {
      print_case(&cases[i], digest);
    }
  }
  if (different > 0) {
    fail_msg("%d of %zu digests differ with kernels %s; the lines above are what they are", different, CASES, isa);
  }
}

static void portable(void **unused) {
  (void)unused;
  expect_digests("portable", true);
}

static void expect_avx512(bool mapped) {
  const struct quire_kernels *kernels = NULL;
  if (quire_kernels_find("avx512", &kernels, NULL) != QUIRE_OK) {
    printf("skipped: this machine has no avx512\n");
    skip();
  }
  expect_digests("avx512", mapped);
}

static void avx512(void **unused) {
  (void)unused;
  expect_avx512(false);
}

static void avx512_mapped(void **unused) {
  (void)unused;
  expect_avx512(true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(portable), cmocka_unit_test(avx512),
                                     cmocka_unit_test(avx512_mapped)};
  return cmocka_run_group_tests(tests, open_models, close_models);
}
