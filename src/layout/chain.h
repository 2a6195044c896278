/* The chain hash: the name of a page's content. It chains over tokens page by page,
 *
 *   root   = H(kind, fingerprint, tenant salt)
 *   page j = H(page j - 1 or root, tokens of page j)
 *
 * so that two pages have one name only if model, arithmetic, KV format, tenant and all tokens up to their end agree.
 * Nothing in it names a rank: a page stored by 4 ranks loads on 8. A tail page is hashed over its valid tokens; a
 * length is part of what is hashed, so it never has the name of a whole page.
 *
 * H is XXH3-128 inside one trust domain, SHA-256 cut to its first 16 bytes where tenants or machines share pages: XXH3
 * does not resist someone who looks for collisions. Tokens are hashed as 32-bit little-endian numbers.
 *
 * Pure, but SHA-256 takes libcrypto's memory and may answer QUIRE_ERR_MEMORY; XXH3 never fails. Threads: any. */
#ifndef QUIRE_LAYOUT_CHAIN_H
#define QUIRE_LAYOUT_CHAIN_H

#include <stdint.h>

#include "base/hash.h"
#include "layout/geometry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_chain_kind { QUIRE_CHAIN_XXH3 = 1, QUIRE_CHAIN_SHA256 = 2 };

/* Bytes of a tenant's salt. */
#define QUIRE_CHAIN_SALT_MAX 64

/* The root of all chains of one tenant; salt may be NULL with 0 bytes. QUIRE_ERR_ARGUMENT for an unknown kind or too
 * long a salt. */
enum quire_status quire_chain_root(enum quire_chain_kind kind, struct quire_hash128 fingerprint, const void *salt,
                                   int32_t salt_bytes, struct quire_hash128 *root_out);

/* The name of the page that follows prev and holds n tokens, 1 to QUIRE_PAGE_TOKENS_MAX. */
enum quire_status quire_chain_next(enum quire_chain_kind kind, struct quire_hash128 prev, const int32_t *tokens,
                                   int32_t n, struct quire_hash128 *next_out);

const char *quire_chain_kind_name(enum quire_chain_kind kind);

#ifdef __cplusplus
}
#endif
#endif
