/* Encoding and decoding with a loaded tokenizer.
 *
 * A piece is merged in one of two ways with the same outcome, "the lowest rank first, the leftmost among equals": short
 * ones by scanning the ranks of neighbours again and again, which beats everything while they fit a cache line or two;
 * long ones with a heap over a linked list, since a text without spaces can be one piece of a megabyte.
 *
 * Words repeat, so a long text keeps what its words became in a small table that forgets on collision.
 *
 * Regular expressions see one piece of the splits before them at a time, as they do in Hugging Face's library: a
 * look-ahead at the end of a piece sees the end of the text. */
#include "text/tokenizer_private.h"

#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/utf8.h"

#define SHORT_PIECE 48
#define WORD_BYTES_MAX 16
#define WORD_TOKENS_MAX 4
#define WORD_SLOTS 4096
#define WORDS_FROM_BYTES 4096 /* of text; below it the table costs more than it saves */
#define JIT_STACK_START ((size_t)32 << 10)
#define JIT_STACK_MAX ((size_t)16 << 20)

/* A candidate of the heap: valid while its two symbols are still what they were. */
struct candidate {
  uint64_t order; /* rank << 32 | position */
  int32_t left;
  int32_t right;
};

struct symbol {
  int32_t id;
  int32_t previous; /* -1: first */
  int32_t next;     /* -1: last */
};

/* A word and its tokens; count 0: the slot is free. */
struct word {
  uint64_t text[WORD_BYTES_MAX / 8]; /* zero padded */
  int32_t ids[WORD_TOKENS_MAX];
  uint32_t bytes;
  uint32_t count;
};

struct encoder {
  const struct quire_tokenizer *tokenizer;
  int32_t *tokens;
  size_t capacity;
  size_t count;
  uint32_t flags;
  pcre2_match_data *match;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
  struct word *words; /* [WORD_SLOTS], or NULL */
  /* scratch of long pieces, grown to the longest so far */
  struct symbol *symbols;
  struct candidate *heap;
  size_t scratch_bytes; /* of text they are made for */
  size_t heap_count;
  struct quire_error *error;
  enum quire_status status;
};

static bool fail(struct encoder *e, enum quire_status status, const char *text) {
  QUIRE_ASSERT(status != QUIRE_OK && text != NULL);
  e->status = quire_error_set(e->error, status, "tokenizer", "%s", text);
  return false;
}

static void emit(struct encoder *e, int32_t id) {
  QUIRE_DEBUG(id >= 0 && id < e->tokenizer->vocab);
  if (e->count < e->capacity) {
    e->tokens[e->count] = id;
  }
  e->count++;
}

int32_t quire_tokenizer_map_find(const struct quire_tokenizer *tokenizer, const void *bytes, size_t count) {
  QUIRE_ASSERT(bytes != NULL && (tokenizer->map_slots & (tokenizer->map_slots - 1)) == 0);
  uint32_t slot = (uint32_t)quire_hash128(bytes, count, 0).low & (tokenizer->map_slots - 1);
  for (; tokenizer->map[slot] != QUIRE_TOKEN_NONE; slot = (slot + 1) & (tokenizer->map_slots - 1)) {
    const struct quire_token_text *token = &tokenizer->tokens[tokenizer->map[slot]];
    if (token->bytes == count && memcmp(tokenizer->blob + token->offset, bytes, count) == 0) {
      return tokenizer->map[slot];
    }
  }
  return QUIRE_TOKEN_NONE;
}

/* ---- merging ---- */

/* Returns the number of ids. */
static size_t merge_short(const struct encoder *e, const uint8_t *text, size_t bytes, int32_t ids[SHORT_PIECE]) {
  struct quire_merge merges[SHORT_PIECE]; /* of symbol i with i + 1 */
  size_t count = bytes;
  QUIRE_DEBUG(bytes > 0 && bytes <= SHORT_PIECE);
  for (size_t i = 0; i < count; i++) {
    ids[i] = e->tokenizer->byte_ids[text[i]];
  }
  for (size_t i = 0; i + 1 < count; i++) {
    merges[i] = quire_merge_find(e->tokenizer, ids[i], ids[i + 1]);
  }
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; i++) {
      best = merges[i].rank < merges[best].rank ? i : best;
    }
    if (merges[best].rank == QUIRE_TOKENIZER_RANK_NONE) {
      break;
    }
    ids[best] = merges[best].id;
    count--;
    memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof ids[0]);
    memmove(merges + best, merges + best + 1, (count - best - 1) * sizeof merges[0]);
    if (best + 1 < count) {
      merges[best] = quire_merge_find(e->tokenizer, ids[best], ids[best + 1]);
    }
    if (best > 0) {
      merges[best - 1] = quire_merge_find(e->tokenizer, ids[best - 1], ids[best]);
    }
  }
  return count;
}

static void encode_short(struct encoder *e, const uint8_t *text, size_t bytes) {
  QUIRE_ASSERT(bytes > 0 && bytes <= SHORT_PIECE);
  struct word word = {.bytes = (uint32_t)bytes}, *slot = NULL;
  int32_t ids[SHORT_PIECE];
  if (e->words && bytes <= WORD_BYTES_MAX) {
    memcpy(word.text, text, bytes);
    const uint64_t hash = (word.text[0] ^ (word.text[1] * 0xd6e8feb86659fd93u)) * 0x9e3779b97f4a7c15u;
    slot = &e->words[hash >> 40 & (WORD_SLOTS - 1)];
    if (slot->count > 0 && slot->bytes == word.bytes && memcmp(slot->text, word.text, sizeof word.text) == 0) {
      for (uint32_t i = 0; i < slot->count; i++) {
        emit(e, slot->ids[i]);
      }
      return;
    }
  }
  const size_t count = merge_short(e, text, bytes, ids);
  for (size_t i = 0; i < count; i++) {
    emit(e, ids[i]);
  }
  if (slot && count <= WORD_TOKENS_MAX) {
    memcpy(word.ids, ids, count * sizeof *ids);
    word.count = (uint32_t)count;
    *slot = word;
  }
}

static void heap_push(struct encoder *e, struct candidate candidate) {
  QUIRE_ASSERT(e->heap_count < 3 * e->scratch_bytes);
  size_t at = e->heap_count++;
  while (at > 0 && e->heap[(at - 1) / 2].order > candidate.order) {
    e->heap[at] = e->heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  e->heap[at] = candidate;
}

static struct candidate heap_pop(struct encoder *e) {
  QUIRE_ASSERT(e->heap_count > 0);
  struct candidate top = e->heap[0];
  struct candidate last = e->heap[--e->heap_count];
  size_t at = 0;
  for (size_t child = 1; child < e->heap_count; child = 2 * at + 1) {
    if (child + 1 < e->heap_count && e->heap[child + 1].order < e->heap[child].order) {
      child++;
    }
    if (e->heap[child].order >= last.order) {
      break;
    }
    e->heap[at] = e->heap[child];
    at = child;
  }
  e->heap[at] = last;
  return top;
}

/* Offers the pair of a symbol and its next one, if they merge. */
static void offer(struct encoder *e, int32_t at) {
  if (at < 0 || e->symbols[at].next < 0) {
    return;
  }
  const struct symbol *left = &e->symbols[at];
  QUIRE_ASSERT(left->id >= 0 && left->id < e->tokenizer->vocab);
  int32_t right = e->symbols[left->next].id;
  uint32_t rank = quire_merge_find(e->tokenizer, left->id, right).rank;
  if (rank != QUIRE_TOKENIZER_RANK_NONE) {
    heap_push(e, (struct candidate){(uint64_t)rank << 32 | (uint32_t)at, left->id, right});
  }
}

static void scratch_free(struct encoder *e) {
  QUIRE_ASSERT((e->symbols == NULL && e->heap == NULL) || e->scratch_bytes > 0);
  const struct quire_env *env = e->tokenizer->env;
  quire_env_free(env, e->symbols, e->scratch_bytes, sizeof *e->symbols);
  quire_env_free(env, e->heap, 3 * e->scratch_bytes, sizeof *e->heap);
  e->symbols = NULL;
  e->heap = NULL;
  e->scratch_bytes = 0;
}

/* A piece of n bytes starts with n - 1 candidates, and each of at most n - 1 merges adds two. */
static bool scratch_reserve(struct encoder *e, size_t bytes) {
  QUIRE_ASSERT(bytes > 0);
  if (bytes <= e->scratch_bytes) {
    return true;
  }
  scratch_free(e);
  e->scratch_bytes = bytes;
  e->symbols = quire_env_zalloc(e->tokenizer->env, bytes, sizeof *e->symbols);
  e->heap = quire_env_zalloc(e->tokenizer->env, 3 * bytes, sizeof *e->heap);
  return (e->symbols && e->heap) || fail(e, QUIRE_ERR_MEMORY, "no memory to tokenise a long word; send a shorter text");
}

static bool merge_long(struct encoder *e, const uint8_t *text, size_t bytes) {
  QUIRE_DEBUG(bytes > 1 && bytes <= INT32_MAX);
  if (!scratch_reserve(e, bytes)) {
    return false;
  }
  int32_t count = (int32_t)bytes;
  for (int32_t i = 0; i < count; i++) {
    e->symbols[i] = (struct symbol){e->tokenizer->byte_ids[text[i]], i - 1, i + 1 < count ? i + 1 : -1};
  }
  e->heap_count = 0;
  for (int32_t i = 0; i + 1 < count; i++) {
    offer(e, i);
  }
  while (e->heap_count > 0) {
    struct candidate best = heap_pop(e);
    int32_t at = (int32_t)(uint32_t)best.order;
    struct symbol *left = &e->symbols[at];
    if (left->id != best.left || left->next < 0 || e->symbols[left->next].id != best.right) {
      continue; /* one of the two has been merged since */
    }
    struct symbol *right = &e->symbols[left->next];
    left->id = quire_merge_find(e->tokenizer, best.left, best.right).id;
    left->next = right->next;
    if (right->next >= 0) {
      e->symbols[right->next].previous = at;
    }
    right->id = QUIRE_TOKEN_NONE; /* dead: no candidate at its position is valid any more */
    right->next = -1;
    offer(e, left->previous);
    offer(e, at);
  }
  for (int32_t i = 0; i >= 0; i = e->symbols[i].next) {
    emit(e, e->symbols[i].id);
  }
  return true;
}

static bool encode_piece(struct encoder *e, const uint8_t *text, size_t bytes) {
  QUIRE_ASSERT(text != NULL && bytes > 0);
  const struct quire_tokenizer *tokenizer = e->tokenizer;
  if (tokenizer->ignore_merges) {
    int32_t id = quire_tokenizer_map_find(tokenizer, text, bytes);
    /* text that must stay text does not become an added token that happens to be in the vocabulary as well */
    if (id != QUIRE_TOKEN_NONE &&
        !((e->flags & QUIRE_ENCODE_LITERAL) && (tokenizer->tokens[id].kind & QUIRE_TOKEN_ADDED))) {
      emit(e, id);
      return true;
    }
  }
  if (bytes <= SHORT_PIECE) {
    encode_short(e, text, bytes);
    return true;
  }
  return merge_long(e, text, bytes);
}

/* ---- cutting ---- */

static bool split(struct encoder *e, int32_t level, const uint8_t *text, size_t bytes) {
  QUIRE_ASSERT(level >= 0 && level <= e->tokenizer->split_count);
  const struct quire_tokenizer *tokenizer = e->tokenizer;
  if (level == tokenizer->split_count) {
    return encode_piece(e, text, bytes);
  }
  size_t at = 0;
  while (at < bytes) {
    int found = pcre2_match(tokenizer->splits[level], text, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, e->match,
                            e->context);
    if (found == PCRE2_ERROR_NOMATCH) {
      break;
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match);
    size_t begin = range[0], end = range[1]; /* copied: the next level uses the same match data */
    if (found < 0 || begin < at || end <= begin) {
      return found == PCRE2_ERROR_NOMEMORY
                 ? fail(e, QUIRE_ERR_MEMORY, "no memory to match a pre-tokenizer's pattern; send a shorter text")
                 : fail(e, QUIRE_ERR_REQUEST, "a pre-tokenizer's pattern gave up on this text; send it in parts");
    }
    if ((begin > at && !split(e, level + 1, text + at, begin - at)) ||
        !split(e, level + 1, text + begin, end - begin)) {
      return false;
    }
    at = end;
  }
  return at == bytes || split(e, level + 1, text + at, bytes - at);
}

/* Text without added tokens: well-formed runs go through the splits, each run of other bytes is a piece. */
static bool encode_plain(struct encoder *e, const uint8_t *text, size_t bytes) {
  QUIRE_ASSERT(text != NULL || bytes == 0);
  const uint8_t *end = text + bytes;
  while (text < end) {
    const uint8_t *at = text;
    size_t length = quire_utf8_valid(at, end);
    const bool valid = length > 0;
    do {
      at += valid ? length : 1;
      length = at < end ? quire_utf8_valid(at, end) : 0;
    } while (at < end && (length > 0) == valid);
    if (!(valid ? split(e, 0, text, (size_t)(at - text)) : encode_piece(e, text, (size_t)(at - text)))) {
      return false;
    }
    text = at;
  }
  return true;
}

/* The longest added token that text begins with, QUIRE_TOKEN_NONE if there is none. The candidates are the range of the
 * sorted list that shares the bytes seen so far; it narrows with each byte. */
static int32_t match_added(const struct quire_tokenizer *tokenizer, const struct quire_added_tokens *added,
                           const uint8_t *text, size_t bytes) {
  QUIRE_ASSERT(text != NULL && bytes > 0);
  int32_t low = 0, high = added->count, best = QUIRE_TOKEN_NONE;
  for (size_t depth = 0; low < high; depth++) {
    const struct quire_token_text *first = &tokenizer->tokens[added->ids[low]];
    if (first->bytes == depth) {
      best = added->ids[low++];
    }
    if (depth == bytes) {
      break;
    }
    int32_t bounds[2];
    for (int side = 0; side < 2; side++) { /* first with a byte >= text[depth], then first with a larger one */
      int32_t from = low, to = high;
      while (from < to) {
        int32_t middle = from + (to - from) / 2;
        uint8_t byte = (uint8_t)tokenizer->blob[tokenizer->tokens[added->ids[middle]].offset + depth];
        if (byte < text[depth] + side) {
          from = middle + 1;
        } else {
          to = middle;
        }
      }
      bounds[side] = from;
    }
    low = bounds[0];
    high = bounds[1];
  }
  return best;
}

static bool cut_added(struct encoder *e, int pass, const uint8_t *text, size_t bytes) {
  QUIRE_ASSERT(pass >= 0 && pass <= 2);
  if (pass == 2 || (e->flags & QUIRE_ENCODE_LITERAL)) {
    return encode_plain(e, text, bytes);
  }
  const struct quire_added_tokens *added = &e->tokenizer->added[pass];
  size_t begin = 0, at = 0;
  while (at < bytes && added->count > 0) {
    int32_t id = added->first[text[at] >> 6] >> (text[at] & 63) & 1
                     ? match_added(e->tokenizer, added, text + at, bytes - at)
                     : QUIRE_TOKEN_NONE;
    if (id == QUIRE_TOKEN_NONE) {
      at++;
      continue;
    }
    if (at > begin && !cut_added(e, pass + 1, text + begin, at - begin)) {
      return false;
    }
    emit(e, id);
    at += e->tokenizer->tokens[id].bytes;
    begin = at;
  }
  return begin == bytes || cut_added(e, pass + 1, text + begin, bytes - begin);
}

static bool encoder_begin(struct encoder *e, size_t bytes) {
  QUIRE_ASSERT(e->match == NULL && e->words == NULL);
  pcre2_general_context *general = e->tokenizer->general;
  e->match = pcre2_match_data_create(1, general);
  e->context = pcre2_match_context_create(general);
  e->stack = e->tokenizer->jit ? pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, general) : NULL;
  if (!e->match || !e->context || (e->tokenizer->jit && !e->stack)) {
    return fail(e, QUIRE_ERR_MEMORY, "no memory to tokenise");
  }
  if (e->stack) {
    pcre2_jit_stack_assign(e->context, NULL, e->stack);
  }
  if (bytes >= WORDS_FROM_BYTES) { /* without memory for it the work is done word by word */
    e->words = quire_env_zalloc(e->tokenizer->env, WORD_SLOTS, sizeof *e->words);
  }
  return true;
}

static void encoder_end(struct encoder *e) {
  QUIRE_ASSERT(e->tokenizer != NULL);
  pcre2_match_data_free(e->match);
  pcre2_match_context_free(e->context);
  pcre2_jit_stack_free(e->stack);
  quire_env_free(e->tokenizer->env, e->words, WORD_SLOTS, sizeof *e->words);
  scratch_free(e);
}

enum quire_status quire_tokenizer_encode(const struct quire_tokenizer *tokenizer, struct quire_encode encode,
                                         size_t *count_out, struct quire_error *error_out) {
  QUIRE_ASSERT(tokenizer && count_out && (encode.text || encode.bytes == 0) && (encode.tokens || encode.capacity == 0));
  if (encode.bytes > QUIRE_TOKENIZER_TEXT_BYTES_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "tokenizer", "a text has at most %zu bytes, not %zu",
                           QUIRE_TOKENIZER_TEXT_BYTES_MAX, encode.bytes);
  }
  struct encoder e = {
      .tokenizer = tokenizer,
      .tokens = encode.tokens,
      .capacity = encode.capacity,
      .flags = encode.flags,
      .error = error_out,
  };
  const bool add = encode.flags & QUIRE_ENCODE_ADD_SPECIAL;
  for (int32_t i = 0; add && i < tokenizer->prefix_count; i++) {
    emit(&e, tokenizer->prefix[i]);
  }
  if (encode.bytes > 0 && encoder_begin(&e, encode.bytes)) {
    cut_added(&e, 0, (const uint8_t *)encode.text, encode.bytes);
  }
  for (int32_t i = 0; add && i < tokenizer->suffix_count; i++) {
    emit(&e, tokenizer->suffix[i]);
  }
  encoder_end(&e);
  if (e.status == QUIRE_OK) {
    *count_out = e.count;
  }
  return e.status;
}

/* ---- decoding ---- */

const char *quire_tokenizer_token(const struct quire_tokenizer *tokenizer, int32_t token, size_t *bytes_out) {
  QUIRE_ASSERT(tokenizer && bytes_out);
  if (token < 0 || token >= tokenizer->vocab || !tokenizer->tokens[token].kind) {
    *bytes_out = 0;
    return NULL;
  }
  *bytes_out = tokenizer->tokens[token].bytes;
  return tokenizer->blob + tokenizer->tokens[token].offset;
}

/* Where decoded bytes go: counted all, stored while there is room. */
struct sink {
  char *out;
  size_t capacity;
  size_t count;
};

static void sink_add(struct sink *sink, const void *bytes, size_t count) {
  QUIRE_ASSERT(bytes != NULL || count == 0);
  if (sink->count < sink->capacity) {
    size_t room = sink->capacity - sink->count;
    memcpy(sink->out + sink->count, bytes, count < room ? count : room);
  }
  sink->count += count;
}

/* Can these bytes (1 to 3 of them, not well-formed) still become a character? */
static bool incomplete(const uint8_t *bytes, size_t count) {
  QUIRE_ASSERT(count >= 1 && count <= 4);
  /* the completion nearest to every bound: the first continuation of the class the lead and second byte allow */
  uint8_t whole[4] = {bytes[0], 0x80, 0x80, 0x80};
  if (count == 1) {
    whole[1] = bytes[0] == 0xe0 ? 0xa0 : bytes[0] == 0xf0 ? 0x90 : 0x80;
  }
  memcpy(whole, bytes, count);
  size_t length = quire_utf8_valid(whole, whole + sizeof whole);
  return length > count;
}

/* Bytes of the maximal part of an ill-formed sequence that U+FFFD stands for: as many as could still have become a
 * character, at least one. */
static size_t invalid_part(const uint8_t *bytes, size_t count) {
  QUIRE_ASSERT(count >= 1);
  size_t part = 1;
  while (part < count && part < 3 && incomplete(bytes, part + 1)) {
    part++;
  }
  return incomplete(bytes, 1) ? part : 1;
}

static void sink_invalid(struct sink *sink, const uint8_t *bytes, size_t count, uint32_t flags) {
  QUIRE_ASSERT(count >= 1);
  if (flags & QUIRE_DECODE_REPLACE) {
    sink_add(sink, "\xef\xbf\xbd", 3);
  } else {
    sink_add(sink, bytes, count);
  }
}

/* Passes text on character by character, the stream's held bytes in front of it. */
static void stream_add(struct quire_text_stream *stream, struct sink *sink, const uint8_t *text, size_t bytes) {
  while (stream->held_bytes > 0 && bytes > 0) {
    stream->held[stream->held_bytes++] = *text++;
    bytes--;
    size_t held = (size_t)stream->held_bytes;
    if (quire_utf8_valid(stream->held, stream->held + held) == held) {
      sink_add(sink, stream->held, held);
      stream->held_bytes = 0;
    } else if (held == sizeof stream->held || !incomplete(stream->held, held)) {
      /* what was held ends here; the byte just taken is given back, since it may begin something itself */
      QUIRE_ASSERT(invalid_part(stream->held, held) == held - 1);
      sink_invalid(sink, stream->held, held - 1, stream->flags);
      stream->held_bytes = 0;
      text--;
      bytes++;
    }
  }
  const uint8_t *end = text + bytes, *begin = text;
  while (text < end) {
    size_t length = quire_utf8_valid(text, end);
    if (length > 0) {
      text += length;
      continue;
    }
    sink_add(sink, begin, (size_t)(text - begin));
    size_t left = (size_t)(end - text);
    if (left < 4 && incomplete(text, left)) {
      memcpy(stream->held, text, left);
      stream->held_bytes = (int32_t)left;
      return;
    }
    size_t part = invalid_part(text, left);
    sink_invalid(sink, text, part, stream->flags);
    text += part;
    begin = text;
  }
  sink_add(sink, begin, (size_t)(end - begin));
}

static void stream_end(struct quire_text_stream *stream, struct sink *sink) {
  QUIRE_ASSERT(stream->held_bytes >= 0 && stream->held_bytes <= (int32_t)sizeof stream->held);
  if (stream->held_bytes > 0) {
    sink_invalid(sink, stream->held, (size_t)stream->held_bytes, stream->flags);
    stream->held_bytes = 0;
  }
}

static void stream_token(const struct quire_tokenizer *tokenizer, struct quire_text_stream *stream, int32_t token,
                         struct sink *sink) {
  QUIRE_ASSERT(stream->held_bytes >= 0 && stream->held_bytes <= (int32_t)sizeof stream->held);
  size_t bytes;
  const char *text = quire_tokenizer_token(tokenizer, token, &bytes);
  if (text && !((stream->flags & QUIRE_DECODE_SKIP_SPECIAL) && quire_tokenizer_is_special(tokenizer, token))) {
    stream_add(stream, sink, (const uint8_t *)text, bytes);
  }
}

size_t quire_tokenizer_decode(const struct quire_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                              uint32_t flags, char *text_out, size_t capacity) {
  QUIRE_ASSERT(tokenizer && (tokens || count == 0) && (text_out || capacity == 0));
  struct quire_text_stream stream = quire_text_stream_begin(flags);
  struct sink sink = {text_out, capacity, 0};
  for (size_t i = 0; i < count; i++) {
    stream_token(tokenizer, &stream, tokens[i], &sink);
  }
  stream_end(&stream, &sink);
  return sink.count;
}

struct quire_text_stream quire_text_stream_begin(uint32_t flags) {
  return (struct quire_text_stream){.flags = flags};
}

size_t quire_text_stream_push(const struct quire_tokenizer *tokenizer, struct quire_text_stream *stream, int32_t token,
                              char *text_out) {
  QUIRE_ASSERT(tokenizer && stream && text_out && stream->held_bytes < 4);
  struct sink sink = {text_out, quire_tokenizer_push_bytes_max(tokenizer), 0};
  stream_token(tokenizer, stream, token, &sink);
  QUIRE_ASSERT(sink.count <= sink.capacity);
  return sink.count;
}

size_t quire_text_stream_end(struct quire_text_stream *stream, char *text_out) {
  QUIRE_ASSERT(stream && text_out && stream->held_bytes < 4);
  struct sink sink = {text_out, 9, 0};
  stream_end(stream, &sink);
  return sink.count;
}

size_t quire_tokenizer_push_bytes_max(const struct quire_tokenizer *tokenizer) {
  return 3 * ((size_t)tokenizer->token_bytes_max + 3); /* each byte may become U+FFFD */
}

/* ---- questions ---- */

int32_t quire_tokenizer_find(const struct quire_tokenizer *tokenizer, const char *text, size_t bytes) {
  QUIRE_ASSERT(tokenizer && (text || bytes == 0));
  for (int pass = 0; pass < 2 && bytes > 0; pass++) {
    int32_t id = match_added(tokenizer, &tokenizer->added[pass], (const uint8_t *)text, bytes);
    if (id != QUIRE_TOKEN_NONE && tokenizer->tokens[id].bytes == bytes) {
      return id;
    }
  }
  return bytes > 0 ? quire_tokenizer_map_find(tokenizer, text, bytes) : QUIRE_TOKEN_NONE;
}

bool quire_tokenizer_is_special(const struct quire_tokenizer *tokenizer, int32_t token) {
  QUIRE_ASSERT(tokenizer);
  return token >= 0 && token < tokenizer->vocab && (tokenizer->tokens[token].kind & QUIRE_TOKEN_SPECIAL);
}

struct quire_tokenizer_special quire_tokenizer_special(const struct quire_tokenizer *tokenizer) {
  QUIRE_ASSERT(tokenizer);
  return tokenizer->special;
}

int32_t quire_tokenizer_vocab(const struct quire_tokenizer *tokenizer) {
  QUIRE_ASSERT(tokenizer);
  return tokenizer->vocab;
}
