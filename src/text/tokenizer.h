/* Byte-level BPE as Hugging Face's tokenizer.json describes it: text of any bytes to token ids, and back.
 *
 *   bytes -> added tokens cut out -> pre-tokenizer's splits -> pieces -> BPE by rank -> ids
 *
 * Ids are those of Hugging Face's `tokenizers` for every valid UTF-8 text (tests/text holds vectors of it). What has
 * no counterpart there is defined here: bytes that are not UTF-8 form pieces of their own, one for each run, and come
 * back byte for byte.
 *
 * Read from a folder: tokenizer.json, and tokenizer_config.json if there is one (bos_token, eos_token, pad_token,
 * add_bos_token, add_eos_token). Anything in them that is not implemented (normalizers, byte fallback, dropout, lstrip,
 * other pre-tokenizers, ...) is refused by its name; nothing is approximated.
 *
 * Memory: the tokenizer belongs to the caller, close releases it; encode takes scratch from env and gives it back.
 * Threads: constant after open; any number of threads may encode and decode with one tokenizer. A stream belongs to
 * one thread at a time. */
#ifndef QUIRE_TEXT_TOKENIZER_H
#define QUIRE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_TOKEN_NONE (-1)
/* Tokens that QUIRE_ENCODE_ADD_SPECIAL can add at either end. Text of n bytes never has more than n + 2 * this tokens.
 */
#define QUIRE_TOKENIZER_ADDED_MAX 8
#define QUIRE_TOKENIZER_TEXT_BYTES_MAX ((size_t)1 << 30)

enum quire_encode_flags {
  QUIRE_ENCODE_ADD_SPECIAL = 1, /* add bos/eos as tokenizer_config.json or the post-processor says */
  QUIRE_ENCODE_LITERAL = 2,     /* added tokens in the text are plain text: for what a user typed */
};

enum quire_decode_flags {
  QUIRE_DECODE_SKIP_SPECIAL = 1, /* tokens flagged special have no text */
  QUIRE_DECODE_REPLACE = 2,      /* each maximal invalid part becomes U+FFFD, so that the text is UTF-8 */
};

struct quire_tokenizer;

/* Special tokens; QUIRE_TOKEN_NONE where the files name none. */
struct quire_tokenizer_special {
  int32_t bos;
  int32_t eos;
  int32_t pad;
};

/* Decodes token by token; bytes of a character that is not complete yet are held back. A value. */
struct quire_text_stream {
  uint8_t held[4];
  int32_t held_bytes;
  uint32_t flags;
};

/* Opens dir/tokenizer.json. QUIRE_ERR_NOT_FOUND, _IO, _CORRUPT (not what the format demands), _UNSUPPORTED (a feature,
 * named), _MEMORY. */
enum quire_status quire_tokenizer_open(const struct quire_env *env, const char *dir,
                                       struct quire_tokenizer **tokenizer_out, struct quire_error *error_out);
/* The bytes of the two files; config may be NULL. */
struct quire_tokenizer_files {
  const char *json;
  size_t json_bytes;
  const char *config;
  size_t config_bytes;
};

/* The same from memory; the bytes are not kept. */
enum quire_status quire_tokenizer_parse(const struct quire_env *env, struct quire_tokenizer_files files,
                                        struct quire_tokenizer **tokenizer_out, struct quire_error *error_out);
/* NULL is allowed. */
void quire_tokenizer_close(struct quire_tokenizer *tokenizer);

/* Text to encode, and where the ids go. */
struct quire_encode {
  const char *text; /* any bytes; may be NULL when bytes is 0 */
  size_t bytes;     /* at most QUIRE_TOKENIZER_TEXT_BYTES_MAX */
  uint32_t flags;   /* of enum quire_encode_flags */
  int32_t *tokens;  /* [capacity]; may be NULL when capacity is 0 */
  size_t capacity;
};

/* *count_out is the number of tokens of the text; the first `capacity` of them are stored. O(n log n) in the longest
 * piece, O(n) in the text. QUIRE_ERR_ARGUMENT: too long; QUIRE_ERR_REQUEST: a split's pattern gave up on this text;
 * QUIRE_ERR_MEMORY. After a failure *count_out is untouched, and what tokens holds means nothing. */
enum quire_status quire_tokenizer_encode(const struct quire_tokenizer *tokenizer, struct quire_encode encode,
                                         size_t *count_out, struct quire_error *error_out);

/* Text of count tokens: returns its bytes, of which the first `capacity` are stored. Ids without a text (a model's
 * vocabulary may be padded) add nothing. */
size_t quire_tokenizer_decode(const struct quire_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                              uint32_t flags, char *text_out, size_t capacity);

struct quire_text_stream quire_text_stream_begin(uint32_t flags);
/* Adds a token and returns the bytes written: complete characters only. text_out has room for
 * quire_tokenizer_push_bytes_max(). */
size_t quire_text_stream_push(const struct quire_tokenizer *tokenizer, struct quire_text_stream *stream, int32_t token,
                              char *text_out);
/* Writes what is held back (at most 3 bytes, or 9 when replaced) and returns its bytes. */
size_t quire_text_stream_end(struct quire_text_stream *stream, char *text_out);
size_t quire_tokenizer_push_bytes_max(const struct quire_tokenizer *tokenizer);

/* The bytes of a token, not terminated; NULL and 0 for an id without a text. Lives as long as the tokenizer. */
const char *quire_tokenizer_token(const struct quire_tokenizer *tokenizer, int32_t token, size_t *bytes_out);
/* Id of an added token, or else of a vocabulary entry, with exactly these bytes; QUIRE_TOKEN_NONE: there is none. */
int32_t quire_tokenizer_find(const struct quire_tokenizer *tokenizer, const char *text, size_t bytes);
bool quire_tokenizer_is_special(const struct quire_tokenizer *tokenizer, int32_t token);
struct quire_tokenizer_special quire_tokenizer_special(const struct quire_tokenizer *tokenizer);
/* Highest id with a text + 1. */
int32_t quire_tokenizer_vocab(const struct quire_tokenizer *tokenizer);

#ifdef __cplusplus
}
#endif
#endif
