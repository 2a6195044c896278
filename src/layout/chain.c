#include "layout/chain.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats at rest are written as they lie in memory");

#define ROOT_LABEL "quire chain 1"

static enum quire_status chain_hash(enum quire_chain_kind kind, const void *data, size_t bytes,
                                    struct quire_hash128 *digest_out) {
  QUIRE_ASSERT(digest_out != NULL && (data != NULL || bytes == 0));
  if (kind == QUIRE_CHAIN_XXH3) {
    *digest_out = quire_hash128(data, bytes, 0);
    return QUIRE_OK;
  }
  struct quire_sha256 sha;
  enum quire_status status = quire_sha256(data, bytes, &sha);
  if (status == QUIRE_OK) {
    memcpy(digest_out, sha.byte, sizeof *digest_out);
  }
  return status;
}

enum quire_status quire_chain_root(enum quire_chain_kind kind, struct quire_hash128 fingerprint, const void *salt,
                                   int32_t salt_bytes, struct quire_hash128 *root_out) {
  QUIRE_ASSERT(root_out != NULL);
  if ((kind != QUIRE_CHAIN_XXH3 && kind != QUIRE_CHAIN_SHA256) || salt_bytes < 0 || salt_bytes > QUIRE_CHAIN_SALT_MAX ||
      (salt_bytes > 0 && salt == NULL)) {
    return QUIRE_ERR_ARGUMENT;
  }
  struct {
    char label[16]; /* its first bytes differ from any link's, which begin with a digest of the same length */
    uint32_t kind;
    uint32_t salt_bytes;
    struct quire_hash128 fingerprint;
    uint8_t salt[QUIRE_CHAIN_SALT_MAX];
  } message = {.label = ROOT_LABEL, .kind = kind, .salt_bytes = (uint32_t)salt_bytes, .fingerprint = fingerprint};
  static_assert(sizeof message == 40 + QUIRE_CHAIN_SALT_MAX, "no padding in what is hashed");
  if (salt_bytes > 0) {
    memcpy(message.salt, salt, (size_t)salt_bytes);
  }
  return chain_hash(kind, &message, sizeof message, root_out);
}

enum quire_status quire_chain_next(enum quire_chain_kind kind, struct quire_hash128 prev, const int32_t *tokens,
                                   int32_t n, struct quire_hash128 *next_out) {
  QUIRE_ASSERT(n >= 1 && n <= QUIRE_PAGE_TOKENS_MAX);
  struct {
    struct quire_hash128 prev;
    int32_t tokens[QUIRE_PAGE_TOKENS_MAX];
  } message;
  message.prev = prev;
  memcpy(message.tokens, tokens, (size_t)n * sizeof *tokens);
  return chain_hash(kind, &message, sizeof prev + (size_t)n * sizeof *tokens, next_out);
}

const char *quire_chain_kind_name(enum quire_chain_kind kind) {
  switch (kind) {
  case QUIRE_CHAIN_XXH3:
    return "xxh3";
  case QUIRE_CHAIN_SHA256:
    return "sha256";
  }
  return "unknown";
}
