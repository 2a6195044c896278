/* An environment whose memory is shared with processes forked later: what is allocated before a fork lies at the same
 * address in parent and child, and is the same memory.
 *
 * Each block is a mapping of its own, so it is meant for a few hundred long-lived objects, not for small change. A
 * block is given back in the process that frees it only. Threads: any. */
#ifndef QUIRE_BASE_ENV_SHARED_H
#define QUIRE_BASE_ENV_SHARED_H

#include "base/env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory from shared mappings; clock, random numbers and log of parent, which must outlive the result. */
struct quire_env quire_env_shared(const struct quire_env *parent);

#ifdef __cplusplus
}
#endif
#endif
