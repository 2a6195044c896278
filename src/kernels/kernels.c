/* The tables of the cpu family and what chooses among them. */
#include "kernels/kernels.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/select.h"
#include "kernels/number.h"

#define KERNELS_VERSION 1
#define MXCSR_FTZ_DAZ 0x8040u

static const struct quire_kernels avx512_kernels = {
    .size = sizeof(struct quire_kernels),
    .version = KERNELS_VERSION,
    .name = "avx512",
    .gemm = quire_gemm_avx512,
    .rmsnorm = quire_rmsnorm_cpu,
    .layernorm = quire_layernorm_cpu,
    .rope = quire_rope_cpu,
    .hadamard = quire_hadamard_cpu,
    .convert = quire_convert_cpu,
    .add = quire_add_cpu,
    .embed = quire_embed_cpu,
    .silu_mul = quire_silu_mul_cpu,
    .quantise_latent = quire_quantise_latent_cpu,
    .quantise_index = quire_quantise_index_cpu,
    .select = quire_select_avx512,
    .attend = quire_attend_avx512,
    .route = quire_route_cpu,
    .moe = quire_moe_avx512,
    .count = quire_count_cpu,
    .sample = quire_sample_avx512,
    .score = quire_score_avx512,
    .finite = quire_finite_cpu,
    .pack_weight = quire_weight_pack_avx512,
};

static const struct quire_kernels portable_kernels = {
    .size = sizeof(struct quire_kernels),
    .version = KERNELS_VERSION,
    .name = "portable",
    .gemm = quire_gemm_portable,
    .rmsnorm = quire_rmsnorm_cpu,
    .layernorm = quire_layernorm_cpu,
    .rope = quire_rope_cpu,
    .hadamard = quire_hadamard_cpu,
    .convert = quire_convert_cpu,
    .add = quire_add_cpu,
    .embed = quire_embed_cpu,
    .silu_mul = quire_silu_mul_cpu,
    .quantise_latent = quire_quantise_latent_cpu,
    .quantise_index = quire_quantise_index_cpu,
    .select = quire_select_portable,
    .attend = quire_attend_portable,
    .route = quire_route_cpu,
    .moe = quire_moe_portable,
    .count = quire_count_cpu,
    .sample = quire_sample_portable,
    .score = quire_score_portable,
    .finite = quire_finite_cpu,
};

static const struct quire_kernels *const tables[] = {&avx512_kernels, &portable_kernels};

#define TABLE_COUNT ((int)(sizeof tables / sizeof tables[0]))

/* Which register files the system saves (XCR0). Only called where CPUID says OSXSAVE. */
static uint64_t saved_state(void) {
  uint32_t low;
  uint32_t high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

#define LEAF1_ECX_FMA (1u << 12)
#define LEAF1_ECX_OSXSAVE (1u << 27)
#define LEAF1_ECX_AVX (1u << 28)
#define LEAF1_ECX_F16C (1u << 29)
#define LEAF7_EBX_AVX2 (1u << 5)
#define LEAF7_EBX_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define LEAF7_1_EAX_BF16 (1u << 5)
#define XCR0_AVX 0x06u
#define XCR0_AVX512 0xe6u

static bool portable_can(const char **why_out) {
  QUIRE_ASSERT(why_out != NULL);
  const uint32_t need = LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C;
  uint32_t a, b, c, d;
  *why_out = "the processor or the system lacks AVX2, FMA or F16C (x86-64-v3)";
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need || (saved_state() & XCR0_AVX) != XCR0_AVX) {
    return false;
  }
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & LEAF7_EBX_AVX2) != 0;
}

static bool avx512_can(const char **why_out) {
  uint32_t a, b, c, d;
  if (!portable_can(why_out)) {
    return false;
  }
  *why_out = "the processor lacks AVX-512 F, BW, DQ or VL";
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & LEAF7_EBX_AVX512) != LEAF7_EBX_AVX512) {
    return false;
  }
  *why_out = "the processor lacks AVX512_BF16";
  if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & LEAF7_1_EAX_BF16) == 0) {
    return false;
  }
  *why_out = "the system does not save the AVX-512 registers (XCR0)";
  return (saved_state() & XCR0_AVX512) == XCR0_AVX512;
}

const struct quire_kernels *quire_kernels_at(int index) {
  return index >= 0 && index < TABLE_COUNT ? tables[index] : NULL;
}

bool quire_kernels_can(const struct quire_kernels *kernels, const char **why_out) {
  QUIRE_ASSERT(kernels != NULL);
  const char *why = NULL;
  bool can = kernels == &avx512_kernels ? avx512_can(&why) : portable_can(&why);
  if (why_out != NULL) {
    *why_out = can ? NULL : why;
  }
  return can;
}

enum quire_status quire_kernels_find(const char *name, const struct quire_kernels **kernels_out,
                                     struct quire_error *error_out) {
  QUIRE_ASSERT(name != NULL && kernels_out != NULL);
  bool any = strcmp(name, "auto") == 0;
  const char *why = NULL;
  for (int i = 0; i < TABLE_COUNT; i++) {
    if (!any && strcmp(name, tables[i]->name) != 0) {
      continue;
    }
    if (quire_kernels_can(tables[i], &why)) {
      *kernels_out = tables[i];
      return QUIRE_OK;
    }
    if (!any) {
      break;
    }
  }
  if (why == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "kernels",
                           "there are no kernels named %s: use auto, avx512 or portable", name);
  }
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "kernels", "%s: %s", name, why);
}

uint32_t quire_kernels_enter(void) {
  uint32_t control = _mm_getcsr();
  _mm_setcsr(control | MXCSR_FTZ_DAZ);
  return control;
}

void quire_kernels_leave(uint32_t control) { _mm_setcsr(control); }

uint16_t quire_bf16_of(float x) { return quire_bf16_round(x); }

float quire_f32_of_bf16(uint16_t x) { return quire_bf16_widen(x); }

uint8_t quire_e4m3_of(float x) { return quire_e4m3_round(x); }

float quire_f32_of_e4m3(uint8_t x) { return quire_e4m3_widen(x); }
