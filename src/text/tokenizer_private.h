/* Inside of a tokenizer, shared by tokenizer_load.c (which fills it) and tokenizer.c (which only reads it).
 *
 * Ids index `tokens`; the map finds an id by the bytes it stands for; the merge table finds the outcome of a pair. Both
 * are open addressing with linear probing, at most half full, and never change after load. */
#ifndef QUIRE_TEXT_TOKENIZER_PRIVATE_H
#define QUIRE_TEXT_TOKENIZER_PRIVATE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/assert.h"
#include "text/tokenizer.h"

#define QUIRE_TOKENIZER_SPLITS_MAX 8
#define QUIRE_TOKENIZER_IDS_MAX (1 << 22)
#define QUIRE_TOKENIZER_RANK_NONE UINT32_MAX

enum quire_token_kind {
  QUIRE_TOKEN_PRESENT = 1,
  QUIRE_TOKEN_ADDED = 2,
  QUIRE_TOKEN_SPECIAL = 4,
};

struct quire_token_text {
  uint32_t offset; /* into blob */
  uint32_t bytes;
  uint32_t kind; /* of enum quire_token_kind; 0: no text */
};

struct quire_merge {
  uint64_t pair; /* left << 32 | right */
  uint32_t rank; /* QUIRE_TOKENIZER_RANK_NONE: the slot is free */
  int32_t id;    /* of the pair joined */
};

/* Added tokens of one pass, sorted by text: those with `normalized` false are cut out of the whole text first, the
 * others out of what is left. */
struct quire_added_tokens {
  int32_t *ids; /* [capacity] */
  int32_t capacity;
  int32_t count;
  uint64_t first[4]; /* bit set of first bytes */
};

struct quire_tokenizer {
  const struct quire_env *env;
  struct quire_token_text *tokens; /* [vocab] */
  int32_t vocab;
  int32_t token_bytes_max;
  char *blob;
  size_t blob_bytes;
  int32_t *map; /* [map_slots] ids, QUIRE_TOKEN_NONE where free */
  uint32_t map_slots;
  struct quire_merge *merges; /* [merge_slots] */
  uint32_t merge_slots;
  int32_t byte_ids[256];
  bool ignore_merges;
  bool jit; /* splits run as machine code, which needs a stack of its own */
  struct quire_added_tokens added[2];
  pcre2_general_context *general;
  pcre2_code *splits[QUIRE_TOKENIZER_SPLITS_MAX];
  int32_t split_count;
  int32_t prefix[QUIRE_TOKENIZER_ADDED_MAX];
  int32_t suffix[QUIRE_TOKENIZER_ADDED_MAX];
  int32_t prefix_count;
  int32_t suffix_count;
  struct quire_tokenizer_special special;
};

/* The id whose vocabulary bytes are these; QUIRE_TOKEN_NONE. */
int32_t quire_tokenizer_map_find(const struct quire_tokenizer *tokenizer, const void *bytes, size_t count);

static inline uint64_t quire_merge_pair(int32_t left, int32_t right) {
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline uint32_t quire_merge_slot(const struct quire_tokenizer *tokenizer, uint64_t pair) {
  return (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32) & (tokenizer->merge_slots - 1);
}

/* The merge of two ids; one with rank QUIRE_TOKENIZER_RANK_NONE when they do not merge. */
static inline struct quire_merge quire_merge_find(const struct quire_tokenizer *tokenizer, int32_t left,
                                                  int32_t right) {
  uint64_t pair = quire_merge_pair(left, right);
  uint32_t slot = quire_merge_slot(tokenizer, pair);
  QUIRE_DEBUG(slot < tokenizer->merge_slots);
  while (tokenizer->merges[slot].rank != QUIRE_TOKENIZER_RANK_NONE && tokenizer->merges[slot].pair != pair) {
    slot = (slot + 1) & (tokenizer->merge_slots - 1);
  }
  return tokenizer->merges[slot];
}

#endif
