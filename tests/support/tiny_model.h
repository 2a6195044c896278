/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiny models: a random DeepSeek-V3.2 and a random GLM-5, with the real head sizes, small in every other dimension,
 * made from a seed.
 *
 * Nothing of it is stored in the tree. Each weight is a function of (seed, tensor name, element index), computed in
 * integers and one exact or correctly rounded float multiply, so that C here and Python in tools/golden get the same
 * bits on every machine: no log, no cos, no libm. Only what a reference implementation computed from it is stored,
 * in tests/goldens.
 *
 *     x(seed, name, i)  = mix(mix(seed ^ fnv1a64(name)) + i * 0x9e3779b97f4a7c15)           64 bits; mix of splitmix64
 *     matrices, biases  = (sum of the four 16-bit fields of x - 2 * 65535) * step           Irwin-Hall, n = 4
 *     norm weights      = ((x >> 41) + 2^22) * 2^-23                                        uniform in [0.5, 1.5)
 *     tokens            = 3 + ((x >> 32) * 505 >> 32)                                       ids 3..507, no special id
 *
 * The sum has standard deviation 2^16 / sqrt(3); step = std * sqrt(3) / 2^16 as a float (quire_tiny_step).
 *
 * The files are those of a Hugging Face folder: config.json, generation_config.json, tokenizer.json,
 * tokenizer_config.json, model.safetensors.index.json and model-0000i-of-0000N.safetensors with hub tensor names.
 *
 * Needs libc only (and its mkdir). No global state: any thread may call, different directories at a time. Memory lives
 * only inside a call. Test support: not a part of libquire, and it knows none of its types.
 */
#ifndef QUIRE_TESTS_TINY_MODEL_H
#define QUIRE_TESTS_TINY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fixed dimensions. Head sizes are the real ones; index heads and top-k are the least that GPU kernels take. */
enum {
  QUIRE_TINY_VOCAB = 512,
  QUIRE_TINY_HIDDEN = 256,
  QUIRE_TINY_Q_RANK = 128,
  QUIRE_TINY_KV_RANK = 512,
  QUIRE_TINY_NOPE = 128, /* of DeepSeek-V3.2 */
  QUIRE_TINY_VALUE = 128,
  QUIRE_TINY_GLM_NOPE = 192,
  QUIRE_TINY_GLM_VALUE = 256,
  QUIRE_TINY_ROPE = 64,
  QUIRE_TINY_INDEX_HEADS = 32,
  QUIRE_TINY_INDEX_DIM = 128,
  QUIRE_TINY_INDEX_TOPK = 128,
  QUIRE_TINY_DENSE_WIDTH = 512,
  QUIRE_TINY_EXPERT_WIDTH = 128,
  QUIRE_TINY_EXPERTS = 16,
  QUIRE_TINY_LAYERS_MAX = 64,
  QUIRE_TINY_HEADS_MAX = 128,
  QUIRE_TINY_SHARDS_MAX = 16,
  QUIRE_TINY_NAME_BYTES = 96,
  QUIRE_TINY_ERROR_BYTES = 256
};

/* What else the family decides: experts in 4 groups or one, YaRN or plain RoPE, rms_norm_eps 1e-6 or 1e-5, the
 * tokenizer, and the scales of FP8: powers of two, or any float. */
enum quire_tiny_family { QUIRE_TINY_DEEPSEEK_V32, QUIRE_TINY_GLM_MOE_DSA };

/* How matrices are stored. Which other tensors keep which type is the table of quire_tiny_kind. */
enum quire_tiny_dtype {
  QUIRE_TINY_F32 = 0,
  QUIRE_TINY_BF16 = 1, /* round to nearest even of the F32 values */
  QUIRE_TINY_FP8 = 2   /* F8_E4M3 with F32 `weight_scale_inv` per 128x128 block; the rest as in BF16 */
};

/*
 * What a tensor is: decides its distribution and its stored type.
 *
 *     kind      values                    F32   BF16   FP8
 *     LINEAR    normal, 1/sqrt(columns)   F32   BF16   F8_E4M3 + scales
 *     PLAIN     normal, 1/sqrt(columns)   F32   BF16   BF16         lm_head, router, weights_proj, eh_proj
 *     EMBED     normal, 1                 F32   BF16   BF16
 *     NORM      uniform 0.5 .. 1.5        F32   BF16   BF16
 *     KEY_NORM  uniform 0.5 .. 1.5        F32   BF16   F32          indexer.k_norm.weight
 *     KEY_BIAS  normal, 0.1               F32   BF16   F32          indexer.k_norm.bias
 *     SCORE     normal, 0.05              F32   F32    F32          gate.e_score_correction_bias
 */
enum quire_tiny_kind {
  QUIRE_TINY_LINEAR,
  QUIRE_TINY_PLAIN,
  QUIRE_TINY_EMBED,
  QUIRE_TINY_NORM,
  QUIRE_TINY_KEY_NORM,
  QUIRE_TINY_KEY_BIAS,
  QUIRE_TINY_SCORE
};

/* One tensor of the model. Vectors have rows = 1 here and are one-dimensional in the file. */
struct quire_tiny_tensor {
  char name[QUIRE_TINY_NAME_BYTES];
  int rows;
  int columns;
  enum quire_tiny_kind kind;
};

struct quire_tiny_options {
  uint64_t seed;
  enum quire_tiny_family family;
  enum quire_tiny_dtype dtype;
  /* GLM-5.2 and later: a letter for each layer, 'F' with an indexer and 'S' without; such a model has rope_theta 8e6.
   * NULL: every layer has one, as in GLM-5 with rope_theta 1e6. */
  const char *indexers;
  int layers;      /* 1 .. LAYERS_MAX; layer 0 is dense, all others are mixtures of experts */
  int heads;       /* a power of two, 1 .. HEADS_MAX */
  int index_topk;  /* >= 1; written to config.json only, the weights do not depend on it */
  int shards;      /* 1 .. SHARDS_MAX safetensors files; with large tensors some are empty */
  bool mtp;        /* the multi-token prediction layer, model.layers.{layers} */
  bool mtp_copies; /* its copies of embedding and head, as the real checkpoint has them (optional to a reader) */
};

/* Seed 1, F32, 4 layers, 8 heads, top-k 128, 3 shards, MTP layer without copies: what tests/goldens were made from. */
struct quire_tiny_options quire_tiny_defaults(void);
/* The GLM of tests/goldens: the same with 6 layers, of which 0, 1 and 3 have an indexer. */
struct quire_tiny_options quire_tiny_glm(void);

/*
 * Writes the whole folder; the directory is made if it is missing (its parent has to exist), files are overwritten.
 * False, with the reason in text_out, if an option is out of bounds, memory runs out or a file cannot be written;
 * files may then be left incomplete.
 */
bool quire_tiny_write(const char *directory, const struct quire_tiny_options *options,
                      char text_out[QUIRE_TINY_ERROR_BYTES]);

/*
 * Lists the tensors of the model in file order, without the scales of FP8. Returns their number; at most `capacity`
 * are stored in tensors_out, so that (0, NULL) asks for the number. Options have to be in bounds.
 */
int quire_tiny_list(const struct quire_tiny_options *options, int capacity, struct quire_tiny_tensor *tensors_out);

/* The values of one tensor before any rounding to a stored type: rows * columns floats, row-major. */
void quire_tiny_fill(uint64_t seed, const struct quire_tiny_tensor *tensor, float *values_out);

/*
 * The F8_E4M3 form of a matrix: rows * columns codes, and ceil(rows/128) * ceil(columns/128) scales, row-major.
 * value = code * scale; the scale is that of quire_tiny_scale over the block's largest absolute value, or in a GLM
 * max(that, 1e-4) / 448.
 */
void quire_tiny_quantise(enum quire_tiny_family family, const struct quire_tiny_tensor *tensor, const float *values,
                         uint8_t *codes_out, float *scales_out);

/* Token ids of a test prompt: `count` ids in 3 .. 507. A longer list begins with the shorter one. */
void quire_tiny_tokens(uint64_t seed, int count, int32_t *tokens_out);

/* The generator itself: 64 bits for an element of a named stream. */
uint64_t quire_tiny_bits(uint64_t seed, const char *name, uint64_t index);

/* Float step between neighbouring Irwin-Hall sums; 0 for uniform kinds. LINEAR and PLAIN need 2^n columns. */
float quire_tiny_step(const struct quire_tiny_tensor *tensor);

/* Nearest bfloat16 of a finite float, ties to even, as its upper 16 bits. */
uint16_t quire_tiny_bf16(float value);

/* Nearest e4m3fn code, ties to even, saturating at 448; NaN gives 0x7f or 0xff. */
uint8_t quire_tiny_e4m3(float value);

/* Value of an e4m3fn code; 0x7f and 0xff give NaN. */
float quire_tiny_e4m3_value(uint8_t code);

/* Least power of two s with max(amax, 1e-4) <= 448 * s, that is 2^ceil(log2(max(amax, 1e-4) / 448)), from the bits. */
float quire_tiny_scale(float amax);

#ifdef __cplusplus
}
#endif

#endif
