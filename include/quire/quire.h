/* libquire's public interface: one KV cache, shared page by page by the ranks of a worker.
 *
 *   kv_status.h   what calls answer; digests                       the rules that all of it follows stand there
 *   kv_layout.h   which bytes a page has, and who stores it        a table, pure
 *   kv_cache.h    match, reserve, seal, release, evict             the brain: ids only
 *   kv_bank.h     bind memory, execute commands, acknowledge       the hands: one a rank
 *
 * An engine takes the halves it needs: a scheduler process the cache, each rank's process a bank on the memory it has.
 * examples/embed.c is a whole worker in a page; bindings/python is the same interface in Python. Threads: as each
 * header says; quire_version any. */
#ifndef QUIRE_QUIRE_H
#define QUIRE_QUIRE_H

#include "quire/kv_bank.h"
#include "quire/kv_cache.h"
#include "quire/kv_layout.h"
#include "quire/kv_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_VERSION "0.1.0"

/* The version the library was built as, "0.1.0". */
QUIRE_API const char *quire_version(void);

#ifdef __cplusplus
}
#endif
#endif
