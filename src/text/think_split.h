/* Reasoning and content of an answer, told apart while it streams.
 *
 *   "<think>why</think>because"  ->  reasoning "why", content "because"
 *
 * An answer that begins inside a reasoning block (its prompt opened one) is reasoning up to "</think>"; a "<think>" at
 * its very start is dropped, since models repeat it. Another answer is content, unless it starts with "<think>".
 * Nothing else is taken away: no white space, no later marker. What is held back is at most the start of one marker,
 * and the outcome does not depend on how the text was cut into pushes.
 *
 * Plain values. Threads: one owner. */
#ifndef QUIRE_TEXT_THINK_SPLIT_H
#define QUIRE_TEXT_THINK_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_THINK_OPEN "<think>"
#define QUIRE_THINK_CLOSE "</think>"
/* A push may write this many bytes more than it was given, to each of its outputs. */
#define QUIRE_THINK_HELD_MAX 8

enum quire_think_state { QUIRE_THINK_START, QUIRE_THINK_REASONING, QUIRE_THINK_CONTENT };

struct quire_think_split {
  enum quire_think_state state;
  bool inside;   /* the prompt opened the block */
  uint32_t held; /* bytes of the marker in question that have been seen */
};

/* Where text goes; both have room for bytes + QUIRE_THINK_HELD_MAX. Of one push, reasoning comes before content. */
struct quire_think_text {
  char *reasoning;
  size_t reasoning_bytes;
  char *content;
  size_t content_bytes;
};

struct quire_think_split quire_think_split_begin(bool inside);
/* Sets both lengths of out. */
void quire_think_split_push(struct quire_think_split *split, const char *text, size_t bytes,
                            struct quire_think_text *out);
/* The answer ended: gives what is held back (QUIRE_THINK_HELD_MAX bytes at most). */
void quire_think_split_end(struct quire_think_split *split, struct quire_think_text *out);

#ifdef __cplusplus
}
#endif
#endif
