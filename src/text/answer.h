/* The text of one answer, token by token: what a stream sends and when it ends.
 *
 *   token -> bytes -> whole characters -> stop strings -> reasoning | content
 *
 * The joined deltas are the same however the text fell into tokens. A stop string counts wherever it appears, in
 * reasoning too. Invalid UTF-8 becomes U+FFFD, so every delta is valid UTF-8 (if the stop strings are).
 *
 * Memory: create reserves all, from env; push and end allocate nothing. Keeps pointers to env and the tokenizer.
 * Threads: one owner. */
#ifndef QUIRE_TEXT_ANSWER_H
#define QUIRE_TEXT_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "text/stop_match.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_answer_config {
  const struct quire_tokenizer *tokenizer;
  const struct quire_stop_text *stops; /* [stop_count]; may be NULL when it is 0 */
  size_t stop_count;
  bool split;        /* tell reasoning from content; otherwise all is content */
  bool thinking;     /* with split: the prompt opened a reasoning block */
  bool show_special; /* tokens flagged special keep their text; the markers of reasoning are seen either way */
  bool keep_stop;    /* the stop string that ended the answer is part of it */
};

/* New text; the pointers live until the next call on the answer. Reasoning comes before content. */
struct quire_answer_delta {
  const char *reasoning;
  size_t reasoning_bytes;
  const char *content;
  size_t content_bytes;
  int32_t stop; /* index of the stop string that ended the answer, or QUIRE_STOP_NONE */
};

struct quire_answer;

/* QUIRE_ERR_REQUEST: stops out of bounds (stop_match.h); QUIRE_ERR_MEMORY. */
enum quire_status quire_answer_create(const struct quire_env *env, const struct quire_answer_config *config,
                                      struct quire_answer **answer_out, struct quire_error *error_out);
/* NULL is allowed. */
void quire_answer_destroy(struct quire_answer *answer);

/* A token of the answer. After a stop string has ended it, only destroy is allowed: the delta is then the last one. */
struct quire_answer_delta quire_answer_push(struct quire_answer *answer, int32_t token);
/* The answer ended for another reason (a stop token, which is not pushed; its length; cancelled): what was held
 * back. */
struct quire_answer_delta quire_answer_end(struct quire_answer *answer);

#ifdef __cplusplus
}
#endif
#endif
