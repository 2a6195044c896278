#include "base/hash.h"

#include <openssl/evp.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/assert.h"

_Static_assert(sizeof(((struct quire_hash128_stream *)0)->state) == sizeof(XXH3_state_t), "state holds xxHash's");
_Static_assert(_Alignof(struct quire_hash128_stream) >= _Alignof(XXH3_state_t), "aligned as xxHash wants it");

static struct quire_hash128 digest_of(XXH128_hash_t hash) {
  return (struct quire_hash128){.low = hash.low64, .high = hash.high64};
}

struct quire_hash128 quire_hash128(const void *data, size_t bytes, uint64_t seed) {
  QUIRE_ASSERT(data || bytes == 0);
  return digest_of(XXH3_128bits_withSeed(bytes ? data : "", bytes, seed));
}

_Static_assert(sizeof XXH3_kSecret == QUIRE_HASH128_SECRET_BYTES, "the default secret of XXH3");

const uint8_t *quire_hash128_secret(void) { return XXH3_kSecret; }

void quire_hash_key_make(struct quire_hash_key *key_out, uint64_t seed) {
  _Static_assert(QUIRE_HASH_KEY_BYTES == XXH3_SECRET_DEFAULT_SIZE, "a key is a whole secret of xxHash's");
  QUIRE_ASSERT(key_out);
  XXH3_generateSecret_fromSeed(key_out->byte, seed);
}

uint64_t quire_hash64(const void *data, size_t bytes, const struct quire_hash_key *key) {
  QUIRE_ASSERT(key && (data || bytes == 0));
  return XXH3_64bits_withSecret(bytes ? data : "", bytes, key->byte, sizeof key->byte);
}

static XXH3_state_t *state_of(struct quire_hash128_stream *stream) { return (XXH3_state_t *)(void *)stream->state; }

void quire_hash128_begin(struct quire_hash128_stream *stream, uint64_t seed) {
  /* reset reads the old state's seed to see whether it must derive a new secret, so there must be one to read */
  XXH3_INITSTATE(state_of(stream));
  XXH3_128bits_reset_withSeed(state_of(stream), seed);
}

void quire_hash128_add(struct quire_hash128_stream *stream, const void *data, size_t bytes) {
  QUIRE_ASSERT(data || bytes == 0);
  if (bytes) {
    XXH3_128bits_update(state_of(stream), data, bytes);
  }
}

struct quire_hash128 quire_hash128_end(const struct quire_hash128_stream *stream) {
  return digest_of(XXH3_128bits_digest((const XXH3_state_t *)(const void *)stream->state));
}

enum quire_status quire_sha256(const void *data, size_t bytes, struct quire_sha256 *digest_out) {
  QUIRE_ASSERT(data || bytes == 0);
  int done = EVP_Digest(bytes ? data : "", bytes, digest_out->byte, NULL, EVP_sha256(), NULL);
  return done == 1 ? QUIRE_OK : QUIRE_ERR_MEMORY;
}

enum quire_status quire_sha256_begin(struct quire_sha256_stream *stream) {
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  if (!context || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
    EVP_MD_CTX_free(context);
    return QUIRE_ERR_MEMORY;
  }
  stream->context = context;
  return QUIRE_OK;
}

void quire_sha256_add(struct quire_sha256_stream *stream, const void *data, size_t bytes) {
  /* only an unset context can fail here */
  int done = EVP_DigestUpdate(stream->context, data, bytes);
  QUIRE_ASSERT(done == 1);
}

void quire_sha256_end(struct quire_sha256_stream *stream, struct quire_sha256 *digest_out) {
  struct quire_sha256 digest;
  int done = EVP_DigestFinal_ex(stream->context, digest.byte, NULL);
  QUIRE_ASSERT(done == 1);
  EVP_MD_CTX_free(stream->context);
  stream->context = NULL;
  if (digest_out) {
    *digest_out = digest;
  }
}
