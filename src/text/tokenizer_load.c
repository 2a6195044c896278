/* Reading tokenizer.json and tokenizer_config.json into a tokenizer.
 *
 * The file describes a pipeline of which we implement what byte-level BPE models use; everything else in it is refused
 * by name. Vocabulary entries are spelled in the byte alphabet (each byte is a printable character of its own); here
 * they become the bytes they stand for, and so do the merges, so that nothing is translated while encoding. */
#include "text/tokenizer_private.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/json.h"

#define FILE_NAME "tokenizer.json"
#define CONFIG_NAME "tokenizer_config.json"
#define FILE_BYTES_MAX ((size_t)256 << 20)
#define CONFIG_BYTES_MAX ((size_t)16 << 20)
#define PATTERN_BYTES_MAX 4096
#define SPELLED_BYTES_MAX 4096
#define PATH_BYTES 4096
#define ADDED_MAX 65536
/* The pre-tokenizer that ByteLevel brings along when use_regex is true. */
#define BYTE_LEVEL_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct loader {
  struct quire_tokenizer *tokenizer;
  const json_t *vocab;
  struct quire_error *error;
  bool byte_level; /* the pre-tokenizer's last step has been seen */
};

static enum quire_status refuse(struct loader *l, const char *where, const char *what) {
  QUIRE_ASSERT(where != NULL && what != NULL);
  char full[QUIRE_WHERE_BYTES];
  snprintf(full, sizeof full, FILE_NAME ": %s", where);
  return quire_error_set(l->error, QUIRE_ERR_UNSUPPORTED, full, "%s", what);
}

static enum quire_status corrupt(struct loader *l, const char *where, const char *what, const json_t *value) {
  QUIRE_ASSERT(where != NULL && what != NULL);
  char full[QUIRE_WHERE_BYTES], shown[QUIRE_JSON_SHOW_BYTES];
  snprintf(full, sizeof full, FILE_NAME ": %s", where);
  return quire_error_set(l->error, QUIRE_ERR_CORRUPT, full, "%s (%s); restore the file", what,
                         quire_json_show(value, shown, sizeof shown));
}

static enum quire_status no_memory(struct loader *l) {
  return quire_error_set(l->error, QUIRE_ERR_MEMORY, FILE_NAME, "no memory for the tokenizer");
}

/* ---- memory of PCRE2: its free does not know sizes, so each block carries its own ---- */

#define BLOCK_HEADER ((size_t)64)

static void *regex_alloc(size_t size, void *context) {
  const struct quire_env *env = context;
  QUIRE_ASSERT(env != NULL);
  if (size > SIZE_MAX - BLOCK_HEADER) {
    return NULL;
  }
  uint8_t *block = env->alloc(env->context, size + BLOCK_HEADER, 64);
  if (!block) {
    return NULL;
  }
  memcpy(block, &size, sizeof size);
  return block + BLOCK_HEADER;
}

static void regex_free(void *memory, void *context) {
  const struct quire_env *env = context;
  QUIRE_ASSERT(env != NULL);
  if (memory) {
    uint8_t *block = (uint8_t *)memory - BLOCK_HEADER;
    size_t size;
    memcpy(&size, block, sizeof size);
    env->dealloc(env->context, block, size + BLOCK_HEADER);
  }
}

/* ---- pre-tokenizer ---- */

/* Hugging Face's engine gives \s the White_Space property, which lacks U+180E that PCRE2's \s has; it reads && in a
 * class as an intersection, which PCRE2 does not. Writes the pattern in PCRE2's words. */
static enum quire_status translate(struct loader *l, const char *pattern, char *out, size_t size) {
  size_t used = 0;
  for (const char *p = pattern; *p; p++) {
    if (used + 20 > size) {
      return refuse(l, "pre_tokenizer", "a pattern is longer than 4 KB; this version has no room for it");
    }
    if (p[0] == '&' && p[1] == '&') {
      return refuse(l, "pre_tokenizer", "a pattern has && (intersection of classes), which is not implemented");
    }
    if (p[0] == '\\' && (p[1] == 's' || p[1] == 'S')) {
      used += (size_t)snprintf(out + used, size - used, "\\%c{White_Space}", p[1] == 's' ? 'p' : 'P');
      p++;
    } else if (p[0] == '\\' && p[1]) {
      out[used++] = *p++;
      out[used++] = *p;
    } else {
      out[used++] = *p;
    }
  }
  out[used] = '\0';
  QUIRE_ASSERT(used < size);
  return QUIRE_OK;
}

static enum quire_status add_split(struct loader *l, const char *pattern, bool literal) {
  QUIRE_ASSERT(l->tokenizer->split_count <= QUIRE_TOKENIZER_SPLITS_MAX);
  struct quire_tokenizer *t = l->tokenizer;
  char translated[PATTERN_BYTES_MAX];
  if (t->split_count == QUIRE_TOKENIZER_SPLITS_MAX) {
    return refuse(l, "pre_tokenizer", "has more than 8 splits; this version has no room for them");
  }
  if (!literal) {
    enum quire_status status = translate(l, pattern, translated, sizeof translated);
    if (status) {
      return status;
    }
    pattern = translated;
  } else if (!*pattern) {
    return refuse(l, "pre_tokenizer", "an empty pattern splits nothing; remove the step");
  }
  pcre2_compile_context *context = pcre2_compile_context_create(t->general);
  if (!context) {
    return no_memory(l);
  }
  int code;
  PCRE2_SIZE offset;
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (literal ? PCRE2_LITERAL : 0);
  if (literal) {
    options &= ~(uint32_t)(PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
  }
  pcre2_code *split = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &offset, context);
  pcre2_compile_context_free(context);
  if (!split) {
    char text[192], message[128] = "";
    if (code == PCRE2_ERROR_HEAP_FAILED) {
      return no_memory(l);
    }
    pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
    snprintf(text, sizeof text, "a pattern is not valid at %zu: %s", (size_t)offset, message);
    return refuse(l, "pre_tokenizer", text);
  }
  t->splits[t->split_count++] = split;
  if (t->jit) {
    pcre2_jit_compile(split, PCRE2_JIT_COMPLETE); /* without it the interpreter runs, slower and equal */
  }
  return QUIRE_OK;
}

static enum quire_status load_split(struct loader *l, const json_t *step) {
  QUIRE_ASSERT(step != NULL);
  static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
  struct quire_json_reader r = quire_json_reader(step, FILE_NAME ": Split", l->error);
  quire_json_refuse_unknown(&r, known, NULL);
  const char *behavior = quire_json_need_string(&r, "behavior");
  bool invert = quire_json_bool(&r, "invert", false);
  const json_t *pattern = quire_json_need_object(&r, "pattern");
  if (r.status) {
    return r.status;
  }
  if (strcmp(behavior, "Isolated") != 0 || invert) {
    return refuse(l, "Split", "only behavior Isolated without invert is implemented");
  }
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *text = json_string_value(json_object_get(pattern, "String"));
  if ((regex != NULL) == (text != NULL)) {
    return corrupt(l, "Split", "pattern must hold a Regex or a String", pattern);
  }
  return add_split(l, regex ? regex : text, text != NULL);
}

static enum quire_status load_byte_level(struct loader *l, const json_t *step) {
  QUIRE_ASSERT(step != NULL);
  static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
  struct quire_json_reader r = quire_json_reader(step, FILE_NAME ": ByteLevel", l->error);
  quire_json_refuse_unknown(&r, known, NULL);
  bool prefix = quire_json_bool(&r, "add_prefix_space", true);
  bool regex = quire_json_bool(&r, "use_regex", true);
  if (r.status) {
    return r.status;
  }
  if (prefix) {
    return refuse(l, "ByteLevel", "add_prefix_space true is not implemented; only false is");
  }
  l->byte_level = true;
  return regex ? add_split(l, BYTE_LEVEL_PATTERN, false) : QUIRE_OK;
}

static enum quire_status load_pre_tokenizer(struct loader *l, const json_t *step, int depth) {
  QUIRE_ASSERT(depth >= 0);
  struct quire_json_reader r = quire_json_reader(step, FILE_NAME ": pre_tokenizer", l->error);
  const char *type = quire_json_need_string(&r, "type");
  if (r.status) {
    return r.status;
  }
  if (l->byte_level) {
    return refuse(l, "pre_tokenizer", "a step after ByteLevel is not implemented; ByteLevel must be the last");
  }
  if (strcmp(type, "Split") == 0) {
    return load_split(l, step);
  }
  if (strcmp(type, "ByteLevel") == 0) {
    return load_byte_level(l, step);
  }
  if (strcmp(type, "Sequence") != 0 || depth > 2) {
    char text[QUIRE_TEXT_BYTES / 2];
    snprintf(text, sizeof text, "type %.64s is not implemented here; Sequence, Split and ByteLevel are", type);
    return refuse(l, "pre_tokenizer", text);
  }
  const json_t *steps = quire_json_need_array(&r, "pretokenizers");
  for (size_t i = 0; i < json_array_size(steps) && !r.status; i++) {
    const json_t *inner = json_array_get(steps, i);
    if (!json_is_object(inner)) {
      return corrupt(l, "pre_tokenizer", "a step must be an object", inner);
    }
    r.status = load_pre_tokenizer(l, inner, depth + 1);
  }
  return r.status;
}

/* ---- vocabulary ---- */

/* The byte alphabet: printable characters of Latin-1 stand for their own byte, U+0100 on for the others in order. */
static bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Bytes a spelled token stands for, at most as many as it is spelled with; -1 if a character is not of the alphabet. */
static int spelled_bytes(const char *spelled, size_t count, char *out) {
  QUIRE_ASSERT(spelled != NULL && count > 0);
  const uint8_t *p = (const uint8_t *)spelled, *end = p + count;
  int bytes = 0;
  while (p < end) {
    int character = *p++;
    if (character >= 0x80) {
      if (character > 0xc5 || p == end) {
        return -1;
      }
      character = (character & 0x1f) << 6 | (*p++ & 0x3f);
    }
    int other = character - 256; /* 0 to 32, 127 to 160 and 173, in this order */
    if (character < 256 && stands_for_itself(character)) {
      out[bytes++] = (char)character;
    } else if (other >= 0 && other <= 67) {
      out[bytes++] = (char)(other <= 32 ? other : other <= 66 ? other - 33 + 127 : 173);
    } else {
      return -1;
    }
  }
  return bytes;
}

static const char *const added_keys[] = {"id",     "content",    "single_word", "lstrip",
                                         "rstrip", "normalized", "special",     NULL};

/* Checks ids and sizes of the vocabulary and of added tokens, and reserves for them. */
static enum quire_status reserve_tokens(struct loader *l, const json_t *added) {
  struct quire_tokenizer *t = l->tokenizer;
  QUIRE_ASSERT(t->tokens == NULL && t->blob == NULL && t->map == NULL);
  json_int_t last = -1;
  size_t blob_bytes = 0;
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)l->vocab, key, value) {
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= QUIRE_TOKENIZER_IDS_MAX) {
      return corrupt(l, "model.vocab", "an id is not an integer from 0 to 4194303", value);
    }
    last = id > last ? id : last;
    blob_bytes += strlen(key);
  }
  for (size_t i = 0; i < json_array_size(added); i++) {
    const json_t *token = json_array_get(added, i);
    if (!json_is_object(token)) {
      return corrupt(l, "added_tokens", "an entry must be an object", token);
    }
    struct quire_json_reader r = quire_json_reader(token, FILE_NAME ": added_tokens", l->error);
    quire_json_refuse_unknown(&r, added_keys, NULL);
    json_int_t id = quire_json_need_int(&r, "id", 0, QUIRE_TOKENIZER_IDS_MAX - 1);
    const char *content = quire_json_need_string(&r, "content");
    if (r.status) {
      return r.status;
    }
    last = id > last ? id : last;
    blob_bytes += strlen(content);
  }
  if (json_object_size(l->vocab) == 0 || blob_bytes > UINT32_MAX / 2) {
    return corrupt(l, "model.vocab", "holds nothing, or more than 2 GB of text", l->vocab);
  }
  t->vocab = (int32_t)last + 1;
  t->blob_bytes = blob_bytes;
  t->map_slots = 2;
  while (t->map_slots < 2 * json_object_size(l->vocab)) {
    t->map_slots *= 2;
  }
  t->tokens = quire_env_zalloc(t->env, (size_t)t->vocab, sizeof *t->tokens);
  t->blob = quire_env_zalloc(t->env, blob_bytes, 1);
  t->map = quire_env_zalloc(t->env, t->map_slots, sizeof *t->map);
  if (!t->tokens || !t->blob || !t->map) {
    return no_memory(l);
  }
  memset(t->map, 0xff, t->map_slots * sizeof *t->map);
  return QUIRE_OK;
}

/* Fills the vocabulary; *used_out is what it took of the blob. */
static enum quire_status load_vocab(struct loader *l, uint32_t *used_out) {
  struct quire_tokenizer *t = l->tokenizer;
  uint32_t used = 0;
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)l->vocab, key, value) {
    size_t spelled = strlen(key);
    int32_t id = (int32_t)json_integer_value(value);
    if (spelled == 0 || spelled > SPELLED_BYTES_MAX || t->tokens[id].kind) {
      return corrupt(l, "model.vocab", "an entry is empty, longer than 4 KB, or has an id that another one has", value);
    }
    int bytes = spelled_bytes(key, spelled, t->blob + used);
    if (bytes < 0) { /* not of the alphabet: such entries stand for their own text, and no merge makes them */
      memcpy(t->blob + used, key, spelled);
    }
    t->tokens[id] =
        (struct quire_token_text){used, bytes < 0 ? (uint32_t)spelled : (uint32_t)bytes, QUIRE_TOKEN_PRESENT};
    if (bytes >= 0) {
      uint32_t slot = (uint32_t)quire_hash128(t->blob + used, (size_t)bytes, 0).low & (t->map_slots - 1);
      while (t->map[slot] != QUIRE_TOKEN_NONE) {
        slot = (slot + 1) & (t->map_slots - 1);
      }
      t->map[slot] = id;
    }
    used += t->tokens[id].bytes;
    QUIRE_ASSERT(used <= t->blob_bytes);
  }
  for (int byte = 0; byte < 256; byte++) {
    char text = (char)byte, what[64];
    t->byte_ids[byte] = quire_tokenizer_map_find(t, &text, 1);
    if (t->byte_ids[byte] == QUIRE_TOKEN_NONE) {
      snprintf(what, sizeof what, "has no entry for byte 0x%02x; byte-level BPE needs all 256", byte);
      return refuse(l, "model.vocab", what);
    }
  }
  *used_out = used;
  return QUIRE_OK;
}

static void insert_merge(struct quire_tokenizer *t, struct quire_merge merge) {
  QUIRE_ASSERT(t->merge_slots > 0 && (t->merge_slots & (t->merge_slots - 1)) == 0);
  uint32_t slot = quire_merge_slot(t, merge.pair);
  while (t->merges[slot].rank != QUIRE_TOKENIZER_RANK_NONE && t->merges[slot].pair != merge.pair) {
    slot = (slot + 1) & (t->merge_slots - 1);
  }
  t->merges[slot] = merge; /* of a pair listed twice the later rank counts, as in Hugging Face's library */
}

/* The two halves of a merge: "a b" or ["a", "b"]. */
static bool merge_halves(const json_t *merge, const char *half_out[2], size_t bytes_out[2]) {
  QUIRE_ASSERT(half_out != NULL && bytes_out != NULL);
  const char *text = json_string_value(merge);
  if (text) {
    const char *space = strchr(text, ' ');
    if (!space || strchr(space + 1, ' ')) {
      return false;
    }
    half_out[0] = text;
    bytes_out[0] = (size_t)(space - text);
    half_out[1] = space + 1;
    bytes_out[1] = strlen(space + 1);
  } else {
    for (size_t i = 0; i < 2; i++) {
      half_out[i] = json_string_value(json_array_get(merge, i));
      bytes_out[i] = half_out[i] ? strlen(half_out[i]) : 0;
    }
  }
  return bytes_out[0] > 0 && bytes_out[1] > 0 && bytes_out[0] + bytes_out[1] <= SPELLED_BYTES_MAX &&
         (text || json_array_size(merge) == 2);
}

static enum quire_status load_merges(struct loader *l, const json_t *merges) {
  struct quire_tokenizer *t = l->tokenizer;
  QUIRE_ASSERT(t->merges == NULL);
  size_t count = json_array_size(merges);
  if (count > QUIRE_TOKENIZER_IDS_MAX) {
    return refuse(l, "model.merges", "has more than 4194304 entries; this version has no room for them");
  }
  t->merge_slots = 2;
  while (t->merge_slots < 2 * count) {
    t->merge_slots *= 2;
  }
  t->merges = quire_env_zalloc(t->env, t->merge_slots, sizeof *t->merges);
  if (!t->merges) {
    return no_memory(l);
  }
  for (uint32_t i = 0; i < t->merge_slots; i++) {
    t->merges[i].rank = QUIRE_TOKENIZER_RANK_NONE;
  }
  for (size_t i = 0; i < count; i++) {
    const json_t *merge = json_array_get(merges, i);
    const char *half[2];
    size_t bytes[2];
    char joined[SPELLED_BYTES_MAX];
    if (!merge_halves(merge, half, bytes)) {
      return corrupt(l, "model.merges", "an entry is not two texts", merge);
    }
    int left = spelled_bytes(half[0], bytes[0], joined);
    int right = left < 0 ? -1 : spelled_bytes(half[1], bytes[1], joined + left);
    if (right < 0) {
      return corrupt(l, "model.merges", "an entry is not spelled in the byte alphabet", merge);
    }
    int32_t a = quire_tokenizer_map_find(t, joined, (size_t)left);
    int32_t b = quire_tokenizer_map_find(t, joined + left, (size_t)right);
    int32_t both = quire_tokenizer_map_find(t, joined, (size_t)left + (size_t)right);
    if (a == QUIRE_TOKEN_NONE || b == QUIRE_TOKEN_NONE || both == QUIRE_TOKEN_NONE) {
      return corrupt(l, "model.merges", "an entry's halves or their union are not in the vocabulary", merge);
    }
    insert_merge(t, (struct quire_merge){quire_merge_pair(a, b), (uint32_t)i, both});
  }
  return QUIRE_OK;
}

static enum quire_status check_model(struct loader *l, const json_t *model) {
  QUIRE_ASSERT(json_is_object(model));
  static const char *const known[] = {"type",
                                      "dropout",
                                      "unk_token",
                                      "continuing_subword_prefix",
                                      "end_of_word_suffix",
                                      "fuse_unk",
                                      "byte_fallback",
                                      "ignore_merges",
                                      "vocab",
                                      "merges",
                                      NULL};
  struct quire_json_reader r = quire_json_reader(model, FILE_NAME ": model", l->error);
  quire_json_refuse_unknown(&r, known, NULL);
  const char *type = quire_json_string(&r, "type", "BPE");
  l->tokenizer->ignore_merges = quire_json_bool(&r, "ignore_merges", false);
  bool fallback = quire_json_bool(&r, "byte_fallback", false);
  const char *prefix = quire_json_string(&r, "continuing_subword_prefix", "");
  const char *suffix = quire_json_string(&r, "end_of_word_suffix", "");
  double dropout = quire_json_number(&r, "dropout", 0, 1, 0);
  l->vocab = quire_json_need_object(&r, "vocab");
  quire_json_need_array(&r, "merges");
  if (r.status) {
    return r.status;
  }
  if (strcmp(type, "BPE") != 0) {
    return refuse(l, "model.type", "only BPE is implemented");
  }
  if (fallback) {
    return refuse(l, "model.byte_fallback", "true is not implemented; a byte-level vocabulary does not need it");
  }
  if (*prefix || *suffix) {
    return refuse(l, "model", "continuing_subword_prefix and end_of_word_suffix are not implemented; only empty ones");
  }
  if (dropout > 0) {
    return refuse(l, "model.dropout", "above 0 makes tokens random; set it to null");
  }
  return QUIRE_OK;
}

/* ---- added tokens ---- */

static int compare_tokens(const struct quire_tokenizer *t, int32_t a, int32_t b) {
  QUIRE_ASSERT(a >= 0 && a < t->vocab && b >= 0 && b < t->vocab);
  const struct quire_token_text *x = &t->tokens[a], *y = &t->tokens[b];
  uint32_t common = x->bytes < y->bytes ? x->bytes : y->bytes;
  int order = memcmp(t->blob + x->offset, t->blob + y->offset, common);
  return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Where a token is, or belongs, in the sorted list; true if one of the same text is there. */
static bool added_place(const struct quire_tokenizer *t, const struct quire_added_tokens *added, int32_t id,
                        int32_t *place_out) {
  QUIRE_ASSERT(added->count >= 0 && added->count <= added->capacity);
  int32_t low = 0, high = added->count;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (compare_tokens(t, added->ids[middle], id) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  *place_out = low;
  return low < added->count && compare_tokens(t, added->ids[low], id) == 0;
}

static void insert_added(struct quire_tokenizer *t, struct quire_added_tokens *added, int32_t id, int32_t place) {
  QUIRE_ASSERT(added->count < added->capacity && place <= added->count);
  memmove(added->ids + place + 1, added->ids + place, (size_t)(added->count - place) * sizeof *added->ids);
  added->ids[place] = id;
  added->count++;
  uint8_t first = (uint8_t)t->blob[t->tokens[id].offset];
  added->first[first >> 6] |= (uint64_t)1 << (first & 63);
}

static enum quire_status load_added_token(struct loader *l, const json_t *token, uint32_t *used) {
  struct quire_tokenizer *t = l->tokenizer;
  struct quire_json_reader r = quire_json_reader(token, FILE_NAME ": added_tokens", l->error);
  int32_t id = (int32_t)quire_json_need_int(&r, "id", 0, QUIRE_TOKENIZER_IDS_MAX - 1);
  const char *content = quire_json_need_string(&r, "content");
  static const char *const strips[] = {"lstrip", "rstrip", "single_word"};
  for (size_t i = 0; i < sizeof strips / sizeof strips[0]; i++) {
    if (quire_json_bool(&r, strips[i], false)) {
      quire_json_fail(&r, QUIRE_ERR_UNSUPPORTED, strips[i], "true is not implemented (token %.64s); only false is",
                      content);
    }
  }
  bool special = quire_json_bool(&r, "special", false);
  bool normalized = quire_json_bool(&r, "normalized", !special);
  if (r.status) {
    return r.status;
  }
  const json_t *spelled = json_object_get(l->vocab, content);
  bool taken = spelled ? json_integer_value(spelled) != id : t->tokens[id].kind != 0;
  if (!*content || taken || (t->tokens[id].kind & QUIRE_TOKEN_ADDED)) {
    return corrupt(l, "added_tokens", "an entry has no text, or its id or text belongs to another one",
                   json_object_get(token, "content"));
  }
  size_t bytes = strlen(content);
  QUIRE_ASSERT(*used + bytes <= t->blob_bytes);
  memcpy(t->blob + *used, content, bytes);
  t->tokens[id] = (struct quire_token_text){
      *used, (uint32_t)bytes, QUIRE_TOKEN_PRESENT | QUIRE_TOKEN_ADDED | (special ? QUIRE_TOKEN_SPECIAL : 0u)};
  *used += (uint32_t)bytes;
  int32_t place[2];
  if (added_place(t, &t->added[0], id, &place[0]) || added_place(t, &t->added[1], id, &place[1])) {
    return corrupt(l, "added_tokens", "a text is listed twice", json_object_get(token, "content"));
  }
  insert_added(t, &t->added[normalized], id, place[normalized]);
  return QUIRE_OK;
}

static enum quire_status load_added(struct loader *l, const json_t *added, uint32_t used) {
  struct quire_tokenizer *t = l->tokenizer;
  QUIRE_ASSERT(used <= t->blob_bytes);
  size_t count = json_array_size(added);
  if (count > ADDED_MAX) {
    return refuse(l, "added_tokens", "has more than 65536 entries; this version has no room for them");
  }
  for (int pass = 0; pass < 2 && count > 0; pass++) {
    t->added[pass].capacity = (int32_t)count;
    t->added[pass].ids = quire_env_zalloc(t->env, count, sizeof *t->added[pass].ids);
    if (!t->added[pass].ids) {
      return no_memory(l);
    }
  }
  enum quire_status status = QUIRE_OK;
  for (size_t i = 0; i < count && !status; i++) {
    status = load_added_token(l, json_array_get(added, i), &used);
  }
  for (int32_t id = 0; id < t->vocab && !status; id++) {
    int32_t bytes = (int32_t)t->tokens[id].bytes;
    t->token_bytes_max = bytes > t->token_bytes_max ? bytes : t->token_bytes_max;
  }
  return status;
}

/* ---- normalizer, decoder, post-processor ---- */

static enum quire_status check_normalizer(struct loader *l, const json_t *normalizer, int depth) {
  QUIRE_ASSERT(depth >= 0);
  const char *type = json_string_value(json_object_get(normalizer, "type"));
  const json_t *steps = json_object_get(normalizer, "normalizers");
  char text[QUIRE_TEXT_BYTES / 2];
  if (!type || strcmp(type, "Sequence") != 0 || !json_is_array(steps) || depth > 2) {
    snprintf(text, sizeof text, "type %.64s is not implemented; only null or an empty Sequence is", type ? type : "?");
    return refuse(l, "normalizer", text);
  }
  enum quire_status status = QUIRE_OK;
  for (size_t i = 0; i < json_array_size(steps) && !status; i++) {
    status = check_normalizer(l, json_array_get(steps, i), depth + 1);
  }
  return status;
}

/* Adds the ids of one special token of a template. */
static enum quire_status add_template_token(struct loader *l, const json_t *tokens, const char *name, int32_t *ids,
                                            int32_t *count) {
  QUIRE_ASSERT(ids != NULL && count != NULL);
  const struct quire_tokenizer *t = l->tokenizer;
  const json_t *list = json_object_get(json_object_get(tokens, name), "ids");
  if (json_array_size(list) == 0) {
    return corrupt(l, "post_processor", "a template names a token without ids", tokens);
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *id = json_array_get(list, i);
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value >= t->vocab || !t->tokens[value].kind) {
      return corrupt(l, "post_processor", "a template's id is not in the vocabulary", id);
    }
    if (*count == QUIRE_TOKENIZER_ADDED_MAX) {
      return refuse(l, "post_processor", "a template adds more than 8 tokens at one end; this version has no room");
    }
    ids[(*count)++] = (int32_t)value;
  }
  return QUIRE_OK;
}

static enum quire_status load_template(struct loader *l, const json_t *processor) {
  QUIRE_ASSERT(json_is_object(processor));
  struct quire_tokenizer *t = l->tokenizer;
  struct quire_json_reader r = quire_json_reader(processor, FILE_NAME ": post_processor", l->error);
  const json_t *single = quire_json_need_array(&r, "single");
  const json_t *tokens = quire_json_object(&r, "special_tokens");
  bool seen = false;
  for (size_t i = 0; i < json_array_size(single) && !r.status; i++) {
    const json_t *item = json_array_get(single, i);
    const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    if (name) {
      r.status =
          add_template_token(l, tokens, name, seen ? t->suffix : t->prefix, seen ? &t->suffix_count : &t->prefix_count);
    } else if (json_object_get(item, "Sequence") && !seen) {
      seen = true;
    } else {
      return corrupt(l, "post_processor", "a template is not special tokens around one Sequence", item);
    }
  }
  if (!r.status && !seen) {
    return corrupt(l, "post_processor", "a template has no Sequence", single);
  }
  return r.status;
}

static enum quire_status load_post_processor(struct loader *l, const json_t *processor, int depth) {
  QUIRE_ASSERT(depth >= 0);
  struct quire_json_reader r = quire_json_reader(processor, FILE_NAME ": post_processor", l->error);
  const char *type = quire_json_need_string(&r, "type");
  if (r.status || strcmp(type, "ByteLevel") == 0) { /* ByteLevel only moves offsets, which we do not report */
    return r.status;
  }
  if (strcmp(type, "TemplateProcessing") == 0 && l->tokenizer->prefix_count + l->tokenizer->suffix_count == 0) {
    return load_template(l, processor);
  }
  if (strcmp(type, "Sequence") != 0 || depth > 2) {
    char text[QUIRE_TEXT_BYTES / 2];
    snprintf(text, sizeof text,
             "type %.64s is not implemented here; ByteLevel, one TemplateProcessing and Sequence are", type);
    return refuse(l, "post_processor", text);
  }
  const json_t *steps = quire_json_need_array(&r, "processors");
  for (size_t i = 0; i < json_array_size(steps) && !r.status; i++) {
    const json_t *inner = json_array_get(steps, i);
    if (!json_is_object(inner)) {
      return corrupt(l, "post_processor", "a step must be an object", inner);
    }
    r.status = load_post_processor(l, inner, depth + 1);
  }
  return r.status;
}

/* ---- tokenizer_config.json ---- */

/* Id of the token a key names, as a text or as {"content": text}; QUIRE_TOKEN_NONE when the key is absent. */
static int32_t named_token(struct loader *l, struct quire_json_reader *r, const char *key) {
  QUIRE_ASSERT(key != NULL);
  const json_t *value = quire_json_get(r, key);
  const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
  if (!value || r->status) {
    return QUIRE_TOKEN_NONE;
  }
  int32_t id = text ? quire_tokenizer_find(l->tokenizer, text, strlen(text)) : QUIRE_TOKEN_NONE;
  if (id == QUIRE_TOKEN_NONE) {
    char shown[QUIRE_JSON_SHOW_BYTES];
    quire_json_fail(r, QUIRE_ERR_CORRUPT, key, "names %s, which is no token of " FILE_NAME "; correct one of the two",
                    quire_json_show(value, shown, sizeof shown));
  }
  return id;
}

/* add_bos_token and add_eos_token, where they are present, stand above what the post-processor's template says. */
static void add_by_config(struct quire_json_reader *r, const char *key, const char *token_key, int32_t token,
                          int32_t *ids, int32_t *count) {
  QUIRE_ASSERT(token >= 0 || token == QUIRE_TOKEN_NONE);
  if (!quire_json_get(r, key)) {
    return;
  }
  bool add = quire_json_bool(r, key, false);
  if (add && token == QUIRE_TOKEN_NONE) {
    quire_json_fail(r, QUIRE_ERR_CORRUPT, key, "is true, but %s is missing; name the token", token_key);
    return;
  }
  *count = add ? 1 : 0;
  ids[0] = token;
}

static enum quire_status load_config(struct loader *l, const json_t *config) {
  struct quire_tokenizer *t = l->tokenizer;
  QUIRE_ASSERT(t->tokens != NULL);
  struct quire_json_reader r = quire_json_reader(config, CONFIG_NAME, l->error);
  t->special.bos = named_token(l, &r, "bos_token");
  t->special.eos = named_token(l, &r, "eos_token");
  t->special.pad = named_token(l, &r, "pad_token");
  if (quire_json_bool(&r, "add_prefix_space", false)) {
    quire_json_fail(&r, QUIRE_ERR_UNSUPPORTED, "add_prefix_space", "true is not implemented; only false is");
  }
  add_by_config(&r, "add_bos_token", "bos_token", t->special.bos, t->prefix, &t->prefix_count);
  add_by_config(&r, "add_eos_token", "eos_token", t->special.eos, t->suffix, &t->suffix_count);
  return r.status;
}

/* ---- the whole ---- */

static enum quire_status load_steps(struct loader *l, struct quire_json_reader *r) {
  QUIRE_ASSERT(!l->byte_level);
  const json_t *pre = quire_json_need_object(r, "pre_tokenizer");
  const json_t *decoder = quire_json_need_object(r, "decoder");
  const json_t *normalizer = quire_json_get(r, "normalizer");
  if (r->status) {
    return r->status;
  }
  if (quire_json_get(r, "truncation") || quire_json_get(r, "padding")) {
    return refuse(l, "truncation", "truncation and padding are not implemented; set both to null");
  }
  const char *type = json_string_value(json_object_get(decoder, "type"));
  if (!type || strcmp(type, "ByteLevel") != 0) {
    return refuse(l, "decoder", "only type ByteLevel is implemented");
  }
  enum quire_status status = normalizer ? check_normalizer(l, normalizer, 0) : QUIRE_OK;
  if (!status) {
    status = load_pre_tokenizer(l, pre, 0);
  }
  if (!status && !l->byte_level) {
    return refuse(l, "pre_tokenizer", "has no ByteLevel step; only byte-level BPE is implemented");
  }
  return status;
}

static enum quire_status load(struct loader *l, const json_t *root, const json_t *config) {
  QUIRE_ASSERT(l->tokenizer != NULL);
  static const char *const known[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                      "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
  struct quire_json_reader r = quire_json_reader(root, FILE_NAME, l->error);
  quire_json_refuse_unknown(&r, known, NULL);
  const json_t *model = quire_json_need_object(&r, "model");
  const json_t *added = quire_json_array(&r, "added_tokens");
  const json_t *processor = quire_json_object(&r, "post_processor");
  uint32_t used = 0;
  enum quire_status status = r.status ? r.status : check_model(l, model);
  status = status ? status : load_steps(l, &r);
  status = status ? status : reserve_tokens(l, added);
  status = status ? status : load_vocab(l, &used);
  status = status ? status : load_merges(l, json_object_get(model, "merges"));
  status = status ? status : load_added(l, added, used);
  status = status || !processor ? status : load_post_processor(l, processor, 0);
  return status || !config ? status : load_config(l, config);
}

static enum quire_status build(const struct quire_env *env, const json_t *root, const json_t *config,
                               struct quire_tokenizer **tokenizer_out, struct quire_error *error_out) {
  QUIRE_ASSERT(tokenizer_out != NULL);
  struct quire_tokenizer *t = quire_env_zalloc(env, 1, sizeof *t);
  struct loader loader = {.tokenizer = t, .error = error_out};
  if (!t) {
    return no_memory(&loader);
  }
  t->env = env;
  t->special = (struct quire_tokenizer_special){QUIRE_TOKEN_NONE, QUIRE_TOKEN_NONE, QUIRE_TOKEN_NONE};
  uint32_t jit = 0;
  t->jit = pcre2_config(PCRE2_CONFIG_JIT, &jit) == 0 && jit;
  t->general = pcre2_general_context_create(regex_alloc, regex_free, (void *)(uintptr_t)env);
  enum quire_status status = t->general ? load(&loader, root, config) : no_memory(&loader);
  if (status) {
    quire_tokenizer_close(t);
    return status;
  }
  *tokenizer_out = t;
  return QUIRE_OK;
}

enum quire_status quire_tokenizer_parse(const struct quire_env *env, struct quire_tokenizer_files files,
                                        struct quire_tokenizer **tokenizer_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && files.json && tokenizer_out);
  json_t *root = NULL, *config_root = NULL;
  enum quire_status status = quire_json_parse(files.json, files.json_bytes, FILE_NAME, &root, error_out);
  if (!status && files.config) {
    status = quire_json_parse(files.config, files.config_bytes, CONFIG_NAME, &config_root, error_out);
  }
  if (!status) {
    status = build(env, root, config_root, tokenizer_out, error_out);
  }
  json_decref(root);
  json_decref(config_root);
  return status;
}

enum quire_status quire_tokenizer_open(const struct quire_env *env, const char *dir,
                                       struct quire_tokenizer **tokenizer_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && dir && tokenizer_out);
  char path[PATH_BYTES];
  json_t *root = NULL, *config = NULL;
  if ((size_t)snprintf(path, sizeof path, "%s/" CONFIG_NAME, dir) >= sizeof path) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, FILE_NAME, "the folder's path is too long; move the model");
  }
  enum quire_status status = quire_json_load(env, path, CONFIG_BYTES_MAX, &config, error_out);
  if (status == QUIRE_OK || status == QUIRE_ERR_NOT_FOUND) { /* the file is optional */
    snprintf(path, sizeof path, "%s/" FILE_NAME, dir);
    status = quire_json_load(env, path, FILE_BYTES_MAX, &root, error_out);
  }
  if (!status) {
    status = build(env, root, config, tokenizer_out, error_out);
  }
  json_decref(root);
  json_decref(config);
  return status;
}

void quire_tokenizer_close(struct quire_tokenizer *tokenizer) {
  if (!tokenizer) {
    return;
  }
  const struct quire_env *env = tokenizer->env;
  QUIRE_ASSERT(tokenizer->split_count >= 0 && tokenizer->split_count <= QUIRE_TOKENIZER_SPLITS_MAX);
  for (int32_t i = 0; i < tokenizer->split_count; i++) {
    pcre2_code_free(tokenizer->splits[i]);
  }
  pcre2_general_context_free(tokenizer->general);
  for (int pass = 0; pass < 2; pass++) {
    quire_env_free(env, tokenizer->added[pass].ids, (size_t)tokenizer->added[pass].capacity, sizeof(int32_t));
  }
  quire_env_free(env, tokenizer->merges, tokenizer->merge_slots, sizeof *tokenizer->merges);
  quire_env_free(env, tokenizer->map, tokenizer->map_slots, sizeof *tokenizer->map);
  quire_env_free(env, tokenizer->blob, tokenizer->blob_bytes, 1);
  quire_env_free(env, tokenizer->tokens, (size_t)tokenizer->vocab, sizeof *tokenizer->tokens);
  quire_env_free(env, tokenizer, 1, sizeof *tokenizer);
}
