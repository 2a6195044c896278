/* The indexer inside the cpu kernels (arithmetic.md 9).
 *
 * Keys are the lanes: 64 of them are decoded and transposed once (the stage), then scored against every head of every
 * query row of a tile; a dot product is one lane's chain, so nothing is ever folded. What an instruction set adds is
 * the layout of the stage and the scoring of it. The next stage is made while one is scored: for a row alone with few
 * heads it is as much work, of other parts of a core.
 *
 * Internal to the cpu kernels. Call with FTZ and DAZ set. */
#ifndef QUIRE_KERNELS_CPU_SELECT_H
#define QUIRE_KERNELS_CPU_SELECT_H

#include "kernels/kernels.h"

#define QUIRE_SELECT_KEYS 64                                     /* keys of a stage */
#define QUIRE_SELECT_STAGE (QUIRE_SELECT_KEYS * QUIRE_INDEX_DIM) /* floats, or half used by pairs of bf16 */

/* 64 stored keys one behind another. */
struct quire_select_keys {
  const uint8_t *rows; /* of 128 codes, or 128 floats */
  bool quantised;
};

/* One query row against a stage, and the stage of other keys. */
struct quire_select_score {
  const float *q; /* heads stages of 128 floats */
  const float *w; /* [heads] */
  const float *stage;
  int32_t heads;
  bool quantised;
  int32_t ask_lines;             /* lines of keys to ask for meanwhile, from `ask` on; 0: none */
  const uint8_t *ask;            /* they are loaded into a stage to come */
  struct quire_select_keys next; /* to be staged beside it; no rows: none */
  float *next_stage;
};

struct quire_select_isa {
  bool wide; /* lists of topk.h */
  void (*stage_keys)(struct quire_select_keys keys, float *stage);
  /* One quantised head of a query, 128 codes, into 128 floats (or half of them). */
  void (*stage_query)(const uint8_t *codes, float *stage);
  /* scores_out[64] = sum over heads of w * relu(q . k); then or meanwhile stage_keys(next, next_stage). */
  void (*score)(const struct quire_select_score *score, float *scores_out);
};

extern const struct quire_select_isa quire_select_isa_portable;
extern const struct quire_select_isa quire_select_isa_avx512;

void quire_select_portable(struct quire_stream *stream, struct quire_select select);
void quire_select_avx512(struct quire_stream *stream, struct quire_select select);

#endif
