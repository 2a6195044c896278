/* The fingerprint: what two workers, or a worker and a store, must agree on before a byte of KV may pass between them
 * (design D3). It covers the parts table with its page size and KV format, the numerics id and the identity of the
 * model; one field changed gives another fingerprint, hence zero hits.
 *
 * Pure. Threads: any. Nothing fails. */
#ifndef QUIRE_LAYOUT_FINGERPRINT_H
#define QUIRE_LAYOUT_FINGERPRINT_H

#include "base/hash.h"
#include "layout/parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* numerics_id is a string such as "cpu-1-bf16"; model the digest of config, tensor headers and sampled weights that
 * whoever loaded the model computed. */
struct quire_hash128 quire_fingerprint(const struct quire_parts *parts, const char *numerics_id,
                                       struct quire_hash128 model);

/* Digest as 32 lower-case hex digits of its bytes (low half first) and a terminating 0. */
#define QUIRE_FINGERPRINT_TEXT_BYTES 33
void quire_fingerprint_text(struct quire_hash128 digest, char text_out[QUIRE_FINGERPRINT_TEXT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
