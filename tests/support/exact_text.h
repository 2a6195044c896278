/* Text a reader would write, as tokens of the model of the tree. Everything that goes wrong fails the test. Threads:
 * any. */
#ifndef QUIRE_TESTS_EXACT_TEXT_H
#define QUIRE_TESTS_EXACT_TEXT_H

#include <stdint.h>

/* The first tokens of the held-out text of models/quire-mini; at most 4,000. */
void exact_text_tokens(int32_t count, int32_t *tokens_out);

#endif
