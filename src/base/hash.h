/* Two hashes: XXH3, of 128 bits, fast, for chains, digests and tables inside one trust domain; SHA-256 (libcrypto)
 * where tenants or machines share, since XXH3 gives no protection against someone who looks for collisions.
 *
 * Digests of the same bytes are the same however they were cut into quire_hash128_add calls, and equal to the
 * one-shot function. Memory: streams live in the caller's struct; only SHA-256's holds memory (libcrypto's own).
 * Threads: one thread a stream at a time. */
#ifndef QUIRE_BASE_HASH_H
#define QUIRE_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A 128-bit digest; as bytes it is written low half first, each half little-endian. */
struct quire_hash128 {
  uint64_t low;
  uint64_t high;
};

struct quire_sha256 {
  uint8_t byte[32];
};

/* State of a streaming XXH3-128; opaque, by value where the caller likes. */
struct quire_hash128_stream {
  __attribute__((aligned(64))) uint8_t state[576];
};

struct quire_sha256_stream {
  void *context;
};

/* XXH3-128 with seed of bytes bytes (may be 0, then data may be NULL). */
struct quire_hash128 quire_hash128(const void *data, size_t bytes, uint64_t seed);

/* The constants XXH3 mixes in, for who computes it elsewhere than on this processor. */
#define QUIRE_HASH128_SECRET_BYTES 192
const uint8_t *quire_hash128_secret(void);

/* A key of the hash below, made from a seed; whoever does not know it cannot aim at collisions in a table. */
#define QUIRE_HASH_KEY_BYTES 192
struct quire_hash_key {
  __attribute__((aligned(64))) uint8_t byte[QUIRE_HASH_KEY_BYTES];
};
void quire_hash_key_make(struct quire_hash_key *key_out, uint64_t seed);
/* XXH3-64 under a key made once: for tables in memory, where a page's tokens are hashed by the million. */
uint64_t quire_hash64(const void *data, size_t bytes, const struct quire_hash_key *key);

void quire_hash128_begin(struct quire_hash128_stream *stream, uint64_t seed);
void quire_hash128_add(struct quire_hash128_stream *stream, const void *data, size_t bytes);
/* The digest of what was added so far; the stream may go on. */
struct quire_hash128 quire_hash128_end(const struct quire_hash128_stream *stream);

static inline bool quire_hash128_equal(struct quire_hash128 a, struct quire_hash128 b) {
  return a.low == b.low && a.high == b.high;
}

/* SHA-256 in one call. QUIRE_ERR_MEMORY when libcrypto has none. */
enum quire_status quire_sha256(const void *data, size_t bytes, struct quire_sha256 *digest_out);

/* QUIRE_ERR_MEMORY leaves nothing to end. After QUIRE_OK every path calls quire_sha256_end once. */
enum quire_status quire_sha256_begin(struct quire_sha256_stream *stream);
void quire_sha256_add(struct quire_sha256_stream *stream, const void *data, size_t bytes);
/* Writes the digest (digest_out may be NULL) and frees the stream's context. */
void quire_sha256_end(struct quire_sha256_stream *stream, struct quire_sha256 *digest_out);

#ifdef __cplusplus
}
#endif
#endif
