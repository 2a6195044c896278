/* Random numbers that are functions: the same key and counter give the same bits on every machine, in every thread, in
 * any order; for tests, jitter and hash mixing. Sampling has a generator of its own (kernels/number.h), secrets come
 * from env->random.
 *
 * splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
 *
 * Pure, inline, no memory. Threads: values. */
#ifndef QUIRE_BASE_RNG_H
#define QUIRE_BASE_RNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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
