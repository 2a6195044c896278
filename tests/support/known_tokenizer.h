/* The tokenizers of tests/text/data. */
#ifndef QUIRE_TESTS_KNOWN_TOKENIZER_H
#define QUIRE_TESTS_KNOWN_TOKENIZER_H

#include "text/tokenizer.h"

#define KNOWN_TOKENIZERS 3

/* deepseek, glm, plain; opened once and never closed. */
const struct quire_tokenizer *known_tokenizer(int index);
/* glm with the marks of GLM's chat templates beside it; the caller's. */
struct quire_tokenizer *marked_tokenizer(void);

#endif
