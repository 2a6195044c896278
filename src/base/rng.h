/* Random numbers that are functions: the same key and counter give the same bits on every machine, in every thread, in
 * any order. Sampling keys Philox by (seed, position), so no sampler state exists (design D7).
 *
 * Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
 * splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014); for tests, jitter
 * and hash mixing. Neither is for secrets: those come from env->random.
 *
 * Pure, inline, no memory. Threads: values. */
#ifndef QUIRE_BASE_RNG_H
#define QUIRE_BASE_RNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct quire_philox {
  uint32_t v[4];
};

/* Ten rounds. key = {low word, high word}; counter = {low's low word, low's high word, high's low, high's high}. */
static inline struct quire_philox quire_philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
  uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0;
    uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u; /* golden ratio */
    k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
  }
  struct quire_philox block = {{c0, c1, c2, c3}};
  return block;
}

/* A word as a float in the open interval (0, 1): (top 23 bits + 1/2) * 2^-23, exact, so that a logarithm of it is
 * finite. */
static inline float quire_rng_open01(uint32_t word) { return ((float)(word >> 9) + 0.5f) * 0x1p-23f; }

/* A bijection of 64 bits that mixes well. */
static inline uint64_t quire_mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/* The next 64 bits of a sequence whose whole state is *state. */
static inline uint64_t quire_splitmix64(uint64_t *state) {
  *state += 0x9E3779B97F4A7C15ull;
  return quire_mix64(*state);
}

/* Uniform in [0, bound), bound > 0; the bias is below bound / 2^64. */
static inline uint64_t quire_splitmix64_below(uint64_t *state, uint64_t bound) {
  return (uint64_t)(((unsigned __int128)quire_splitmix64(state) * bound) >> 64);
}

#ifdef __cplusplus
}
#endif
#endif
