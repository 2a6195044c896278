/* A copy and the XXH3-128 of its bytes, the same digest as base/hash.h's (seed 0).
 *
 * Of more than 240 bytes the hash is a chain over blocks of 1,024: eight sums over a block's 16 stripes of 64, added to
 * the state, then a scramble of the state. The sums do not depend on the state, so all blocks are summed at once, while
 * they are copied, a warp each; one warp then walks the chain over 64 bytes a block:
 *
 *     copy_sum_kernel    block b -> target, sums[b][8]       all multiprocessors
 *     chain_kernel       state = scramble(state + sums[b])   8 lanes, b ascending
 *
 * The scratch holds the sums of ROUND_BLOCKS; a longer copy takes several rounds. Shorter inputs have their own rules,
 * one thread does them. The algorithm is published with xxHash; the constants are asked of it
 * (quire_hash128_secret). */
#include <cuda_runtime.h>

#include "base/hash.h"
#include "device/cuda/cuda_private.h"

#define BLOCK_BYTES 1024
#define STRIPE_BYTES 64
#define LANES 8
#define SHORT_BYTES 240
#define STATE_BYTES 64
#define ROUND_BLOCKS 16368 /* sums of them and the state: below QUIRE_CUDA_DIGEST_BYTES */
#define THREADS 256
#define GRID_MAX 64

static_assert(STATE_BYTES + (size_t)ROUND_BLOCKS * 64 <= QUIRE_CUDA_DIGEST_BYTES, "sums fit the scratch");

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME64_2 0xC2B2AE3D27D4EB4Full
#define PRIME64_3 0x165667B19E3779F9ull
#define PRIME64_4 0x85EBCA77C2B2AE63ull
#define PRIME64_5 0x27D4EB2F165667C5ull
#define MIX_1 0x165667919E3779F9ull
#define MIX_2 0x9FB21C651E98DF25ull

/* By value to every kernel: 192 bytes of arguments are cheaper than a symbol a device. */
struct secret {
  uint64_t word[QUIRE_HASH128_SECRET_BYTES / 8];
};

struct half {
  uint64_t low, high;
};

static __device__ uint64_t read64(const uint8_t *p) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; i--) {
    value = value << 8 | p[i];
  }
  return value;
}

static __device__ uint32_t read32(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static __device__ uint64_t swap64(uint64_t x) {
  return (uint64_t)__byte_perm((uint32_t)x, 0, 0x0123) << 32 | __byte_perm((uint32_t)(x >> 32), 0, 0x0123);
}

static __device__ uint64_t fold(uint64_t a, uint64_t b) { return a * b ^ __umul64hi(a, b); }

static __device__ uint64_t avalanche(uint64_t x) {
  x = (x ^ x >> 37) * MIX_1;
  return x ^ x >> 32;
}

static __device__ uint64_t avalanche64(uint64_t x) {
  x = (x ^ x >> 33) * PRIME64_2;
  x = (x ^ x >> 29) * PRIME64_3;
  return x ^ x >> 32;
}

/* -- up to 240 bytes
 * ------------------------------------------------------------------------------------------------ */

static __device__ struct half hash_1_to_3(const uint8_t *in, uint32_t bytes, const uint8_t *s) {
  uint32_t low = (uint32_t)in[0] << 16 | (uint32_t)in[bytes >> 1] << 24 | in[bytes - 1] | bytes << 8;
  uint32_t swapped = __byte_perm(low, 0, 0x0123);
  uint32_t high = swapped << 13 | swapped >> 19;
  return {avalanche64(low ^ (uint64_t)(read32(s) ^ read32(s + 4))),
          avalanche64(high ^ (uint64_t)(read32(s + 8) ^ read32(s + 12)))};
}

static __device__ struct half hash_4_to_8(const uint8_t *in, uint32_t bytes, const uint8_t *s) {
  uint64_t keyed = (read32(in) + ((uint64_t)read32(in + bytes - 4) << 32)) ^ read64(s + 16) ^ read64(s + 24);
  uint64_t factor = PRIME64_1 + ((uint64_t)bytes << 2);
  uint64_t low = keyed * factor, high = __umul64hi(keyed, factor);
  high += low << 1;
  low ^= high >> 3;
  low = (low ^ low >> 35) * MIX_2;
  return {low ^ low >> 28, avalanche(high)};
}

static __device__ struct half hash_9_to_16(const uint8_t *in, uint32_t bytes, const uint8_t *s) {
  uint64_t first = read64(in), last = read64(in + bytes - 8);
  uint64_t x = first ^ last ^ read64(s + 32) ^ read64(s + 40);
  uint64_t low = x * PRIME64_1, high = __umul64hi(x, PRIME64_1);
  low += (uint64_t)(bytes - 1) << 54;
  last ^= read64(s + 48) ^ read64(s + 56);
  high += last + (uint64_t)(uint32_t)last * (PRIME32_2 - 1);
  low ^= swap64(high);
  return {avalanche(low * PRIME64_2), avalanche(__umul64hi(low, PRIME64_2) + high * PRIME64_2)};
}

static __device__ void mix_32(struct half *state, const uint8_t *a, const uint8_t *b, const uint8_t *s) {
  state->low += fold(read64(a) ^ read64(s), read64(a + 8) ^ read64(s + 8));
  state->low ^= read64(b) + read64(b + 8);
  state->high += fold(read64(b) ^ read64(s + 16), read64(b + 8) ^ read64(s + 24));
  state->high ^= read64(a) + read64(a + 8);
}

static __device__ struct half close_mixed(const struct half &state, uint64_t bytes) {
  return {avalanche(state.low + state.high),
          0 - avalanche(state.low * PRIME64_1 + state.high * PRIME64_4 + bytes * PRIME64_2)};
}

static __device__ struct half hash_17_to_240(const uint8_t *in, uint32_t bytes, const uint8_t *s) {
  struct half state = {bytes * PRIME64_1, 0};
  if (bytes <= 128) {
    for (int i = (int)(bytes - 1) / 32; i >= 0; i--) {
      mix_32(&state, in + 16 * i, in + bytes - 16 * (i + 1), s + 32 * i);
    }
    return close_mixed(state, bytes);
  }
  for (uint32_t i = 0; i < 128; i += 32) {
    mix_32(&state, in + i, in + i + 16, s + i);
  }
  state.low = avalanche(state.low);
  state.high = avalanche(state.high);
  for (uint32_t i = 128; i + 32 <= bytes; i += 32) {
    mix_32(&state, in + i, in + i + 16, s + 3 + i - 128);
  }
  mix_32(&state, in + bytes - 16, in + bytes - 32, s + 103);
  return close_mixed(state, bytes);
}

static __global__ void short_kernel(uint8_t *target, const uint8_t *source, uint32_t bytes, uint64_t *digest_out,
                                    struct secret secret) {
  const uint8_t *s = (const uint8_t *)secret.word;
  struct half digest = {avalanche64(read64(s + 64) ^ read64(s + 72)), avalanche64(read64(s + 80) ^ read64(s + 88))};
  for (uint32_t i = 0; i < bytes; i++) {
    target[i] = source[i];
  }
  if (bytes > 16) {
    digest = hash_17_to_240(source, bytes, s);
  } else if (bytes > 8) {
    digest = hash_9_to_16(source, bytes, s);
  } else if (bytes > 3) {
    digest = hash_4_to_8(source, bytes, s);
  } else if (bytes > 0) {
    digest = hash_1_to_3(source, bytes, s);
  }
  digest_out[0] = digest.low;
  digest_out[1] = digest.high;
}

/* -- more
 * ----------------------------------------------------------------------------------------------------------- */

/* What two neighbouring lanes gain from 16 bytes of a stripe: each the product of its own keyed halves and the other's
 * bytes. */
static __device__ __forceinline__ void gain(uint64_t even, uint64_t odd, uint64_t key_even, uint64_t key_odd,
                                            uint64_t *sum) {
  uint64_t a = even ^ key_even, b = odd ^ key_odd;
  sum[0] += (a & 0xFFFFFFFFu) * (a >> 32) + odd;
  sum[1] += (b & 0xFFFFFFFFu) * (b >> 32) + even;
}

static __device__ __forceinline__ bool aligned(const void *a, const void *b) {
  return (((uint64_t)a | (uint64_t)b) & 15) == 0;
}

/* Copies blocks and what is behind the last of them, and sums the blocks. The 16-byte chunk c of a block is in stripe
 * c / 4 and feeds lanes 2 (c mod 4) and the next. */
static __global__ void __launch_bounds__(THREADS)
    copy_sum_kernel(uint8_t *target, const uint8_t *source, int64_t blocks, int64_t tail, uint64_t *sums,
                    struct secret secret) {
  int lane = (int)threadIdx.x % 32;
  int64_t warps = (int64_t)gridDim.x * (THREADS / 32);
  uint64_t key[4];
  for (int i = 0; i < 2; i++) {
    int chunk = i * 32 + lane, word = chunk / 4 + chunk % 4 * 2;
    key[2 * i] = secret.word[word];
    key[2 * i + 1] = secret.word[word + 1];
  }
  bool fast = aligned(target, source);
  for (int64_t b = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; b < blocks; b += warps) {
    uint64_t sum[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
      int64_t at = b * BLOCK_BYTES + (i * 32 + lane) * 16;
      ulonglong2 value;
      if (fast) {
        value = *(const ulonglong2 *)(source + at);
        *(ulonglong2 *)(target + at) = value;
      } else {
        value = make_ulonglong2(read64(source + at), read64(source + at + 8));
        for (int k = 0; k < 8; k++) {
          target[at + k] = (uint8_t)(value.x >> (8 * k));
          target[at + 8 + k] = (uint8_t)(value.y >> (8 * k));
        }
      }
      gain(value.x, value.y, key[2 * i], key[2 * i + 1], sum);
    }
    for (int offset = 4; offset < 32; offset *= 2) {
      sum[0] += __shfl_xor_sync(0xFFFFFFFFu, sum[0], offset);
      sum[1] += __shfl_xor_sync(0xFFFFFFFFu, sum[1], offset);
    }
    if (lane < 4) {
      sums[b * LANES + 2 * lane] = sum[0];
      sums[b * LANES + 2 * lane + 1] = sum[1];
    }
  }
  if (blockIdx.x == 0) {
    for (int64_t i = threadIdx.x; i < tail; i += THREADS) {
      target[blocks * BLOCK_BYTES + i] = source[blocks * BLOCK_BYTES + i];
    }
  }
}

/* One lane's gain from a whole stripe whose keys begin at byte `key` of the secret. */
static __device__ uint64_t stripe_gain(const uint8_t *stripe, const uint8_t *key, int lane) {
  uint64_t value = read64(stripe + 8 * lane), keyed = value ^ read64(key + 8 * lane);
  return (keyed & 0xFFFFFFFFu) * (keyed >> 32) + read64(stripe + 8 * (lane ^ 1));
}

/* end: the input's end in this round's source, or NULL when more rounds follow; bytes: of the whole input. */
struct chain_end {
  const uint8_t *tail; /* behind the last whole block that was summed */
  const uint8_t *end;
  uint64_t bytes;
  uint64_t *digest_out;
};

static __device__ uint64_t merge(const uint64_t *state, const uint8_t *key, uint64_t start) {
  for (int i = 0; i < 4; i++) {
    start += fold(state[2 * i] ^ read64(key + 16 * i), state[2 * i + 1] ^ read64(key + 16 * i + 8));
  }
  return avalanche(start);
}

static __global__ void chain_kernel(uint64_t *state, const uint64_t *sums, int64_t blocks, bool first,
                                    struct chain_end end, struct secret secret) {
  const uint64_t start[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                 PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
  const uint8_t *s = (const uint8_t *)secret.word;
  int lane = (int)threadIdx.x;
  uint64_t mine = first ? start[lane] : state[lane];
  uint64_t scramble = secret.word[(QUIRE_HASH128_SECRET_BYTES - STRIPE_BYTES) / 8 + lane];
  for (int64_t b = 0; b < blocks; b++) {
    mine += sums[b * LANES + lane];
    mine = (mine ^ mine >> 47 ^ scramble) * PRIME32_1;
  }
  if (end.end != NULL) {
    int stripes = (int)((end.end - 1 - end.tail) / STRIPE_BYTES);
    for (int i = 0; i < stripes; i++) {
      mine += stripe_gain(end.tail + i * STRIPE_BYTES, s + 8 * i, lane);
    }
    mine += stripe_gain(end.end - STRIPE_BYTES, s + QUIRE_HASH128_SECRET_BYTES - STRIPE_BYTES - 7, lane);
  }
  state[lane] = mine;
  __syncwarp(0xFF);
  if (end.end != NULL && lane == 0) {
    end.digest_out[0] = merge(state, s + 11, end.bytes * PRIME64_1);
    end.digest_out[1] = merge(state, s + QUIRE_HASH128_SECRET_BYTES - STRIPE_BYTES - 11, ~(end.bytes * PRIME64_2));
  }
}

cudaError_t quire_cuda_load_digests(void) {
  struct cudaFuncAttributes attributes;
  const void *const kernels[] = {(const void *)short_kernel, (const void *)copy_sum_kernel, (const void *)chain_kernel};
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && error == cudaSuccess; i++) {
    error = cudaFuncGetAttributes(&attributes, kernels[i]);
  }
  return error;
}

cudaError_t quire_cuda_copy_digest(void *target_, const void *source_, size_t bytes, uint64_t *digest_out,
                                   void *scratch, cudaStream_t stream) {
  uint8_t *target = (uint8_t *)target_;
  const uint8_t *source = (const uint8_t *)source_;
  struct secret secret;
  memcpy(secret.word, quire_hash128_secret(), sizeof secret.word);
  if (bytes <= SHORT_BYTES) {
    short_kernel<<<1, 1, 0, stream>>>(target, source, (uint32_t)bytes, digest_out, secret);
    return cudaGetLastError();
  }
  uint64_t *state = (uint64_t *)scratch, *sums = state + STATE_BYTES / 8;
  int64_t blocks = (int64_t)(bytes - 1) / BLOCK_BYTES;
  for (int64_t done = 0;;) {
    int64_t now = blocks - done < ROUND_BLOCKS ? blocks - done : ROUND_BLOCKS;
    bool last = done + now == blocks;
    const uint8_t *from = source + done * BLOCK_BYTES;
    struct chain_end end = {from + now * BLOCK_BYTES, last ? source + bytes : NULL, bytes, digest_out};
    int64_t grid = (now + THREADS / 32 - 1) / (THREADS / 32);
    copy_sum_kernel<<<(unsigned)(grid < 1 ? 1 : grid < GRID_MAX ? grid : GRID_MAX), THREADS, 0, stream>>>(
        target + done * BLOCK_BYTES, from, now, last ? (int64_t)bytes - blocks * BLOCK_BYTES : 0, sums, secret);
    chain_kernel<<<1, LANES, 0, stream>>>(state, sums, now, done == 0, end, secret);
    done += now;
    if (last) {
      return cudaGetLastError();
    }
  }
}
