#include "known_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "base/env.h"

const struct quire_tokenizer *known_tokenizer(int index) {
  static struct quire_tokenizer *tokenizers[KNOWN_TOKENIZERS];
  static const char *const names[KNOWN_TOKENIZERS] = {"deepseek", "glm", "plain"};
  static char text[1 << 16];
  QUIRE_ASSERT(index >= 0 && index < KNOWN_TOKENIZERS);
  if (!tokenizers[index]) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/text/data/%s.tokenizer.json", QUIRE_SOURCE_DIR, names[index]);
    FILE *file = fopen(path, "rb");
    QUIRE_ASSERT(file);
    const size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    const struct quire_tokenizer_files files = {text, bytes, NULL, 0};
    QUIRE_ASSERT(quire_tokenizer_parse(quire_env_default(), files, &tokenizers[index], NULL) == QUIRE_OK);
  }
  return tokenizers[index];
}

struct quire_tokenizer *marked_tokenizer(void) {
  static const char *const marks[] = {"[gMASK]",       "<sop>",           "<|endoftext|>", "<|system|>",  "<|user|>",
                                      "<|assistant|>", "<|observation|>", "<tool_call>",   "</tool_call>"};
  struct quire_tokenizer *tokenizer = NULL;
  json_t *root = json_load_file(QUIRE_SOURCE_DIR "/tests/text/data/glm.tokenizer.json", JSON_ALLOW_NUL, NULL);
  QUIRE_ASSERT(root);
  json_t *added = json_object_get(root, "added_tokens");
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
    json_array_append_new(added,
                          json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", (int)(500 + i), "content", marks[i],
                                    "special", i < 7, "lstrip", 0, "rstrip", 0, "single_word", 0, "normalized", 0));
  }
  char *text = json_dumps(root, JSON_COMPACT);
  const struct quire_tokenizer_files files = {text, strlen(text), NULL, 0};
  QUIRE_ASSERT(quire_tokenizer_parse(quire_env_default(), files, &tokenizer, NULL) == QUIRE_OK);
  free(text);
  json_decref(root);
  return tokenizer;
}
