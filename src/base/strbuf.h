/* A string that grows: text is added at its end, and the outcome is asked once, at the end.
 *
 * When memory runs out the buffer keeps what it had and remembers the failure; later additions do nothing, so a writer
 * of a hundred lines checks quire_strbuf_failed once. Memory: env's, freed by fini. Threads: one owner. */
#ifndef QUIRE_BASE_STRBUF_H
#define QUIRE_BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_strbuf {
  const struct quire_env *env;
  char *data;
  size_t bytes; /* without the NUL */
  size_t capacity;
  bool failed;
};

/* Empty; allocates nothing yet. */
void quire_strbuf_init(struct quire_strbuf *buffer, const struct quire_env *env);
void quire_strbuf_fini(struct quire_strbuf *buffer);

void quire_strbuf_add(struct quire_strbuf *buffer, const void *bytes, size_t count);
void quire_strbuf_add_text(struct quire_strbuf *buffer, const char *text);
void quire_strbuf_add_char(struct quire_strbuf *buffer, char c);
void quire_strbuf_addf(struct quire_strbuf *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Empty again, keeping the memory and forgetting a failure. */
void quire_strbuf_clear(struct quire_strbuf *buffer);
/* The text, NUL-terminated, owned by the buffer until the next call on it; "" when empty. */
const char *quire_strbuf_text(const struct quire_strbuf *buffer);
bool quire_strbuf_failed(const struct quire_strbuf *buffer);

#ifdef __cplusplus
}
#endif
#endif
