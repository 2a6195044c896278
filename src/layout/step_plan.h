/* The step plan: what all ranks do in one step, in the same order (design, section 4).
 *
 * The controller writes it, every rank executes it; it is flat, plain data in one block of memory without pointers, so
 * that it can be handed to a thread or sent to another process. Which rank works on which row is not listed: it follows
 * from (split, ranks, entry) by the functions of split.h and the two below, which every rank evaluates for itself.
 *
 *   | header | entries [entry_count] | tokens [token_count] | pages [page_count] |
 *
 * An entry is one request's part in the step: positions [begin, end) are written.
 *   prefill  the rows are split over all ranks; their stored form is exchanged; owners copy their rows at once
 *   decode   the rows stay in the local segment of `home` until a later step commits them
 *   commit   begin = end: nothing is computed, only [commit_begin, commit_end) is pulled by its owners
 *
 * Slot i of a draft part takes the hidden state of position i - 1 and token i (docs/design.md, "Draft rows"), so an
 * entry also needs the hidden state of position begin - 1: `carry_rank` kept it in an earlier step, or `recompute_rank`
 * runs that position once more, read only. Both are -1 when begin is 0 or there is no draft part.
 *
 * Pure; compiles for host and device. */
#ifndef QUIRE_LAYOUT_STEP_PLAN_H
#define QUIRE_LAYOUT_STEP_PLAN_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/ids.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_split { QUIRE_SPLIT_ZIGZAG, QUIRE_SPLIT_INTERLEAVE };
enum quire_entry_kind { QUIRE_ENTRY_PREFILL, QUIRE_ENTRY_DECODE };

enum quire_entry_flags {
  QUIRE_ENTRY_SAMPLE = 1,     /* draw the token that follows position end - 1 */
  QUIRE_ENTRY_SCORE = 2,      /* keep log-probability of the next token and argmax of every row (evaluation) */
  QUIRE_ENTRY_DRAFT_FULL = 4, /* run the whole draft layer for every row and keep its argmax (evaluation) */
};

struct quire_step_entry {
  int32_t request;        /* slot of the request in the worker, 0 .. requests_max - 1 */
  int32_t kind;           /* enum quire_entry_kind */
  int32_t flags;          /* enum quire_entry_flags */
  int32_t begin, end;     /* positions written */
  int32_t prefix_end;     /* positions [0, prefix_end) are read from pages; prefill: begin */
  int32_t home;           /* decode: the rank whose local segment holds [prefix_end, end); prefill: -1 */
  int32_t carry_rank;     /* holds the hidden state of begin - 1, or -1 */
  int32_t recompute_rank; /* runs row begin - 1 again, or -1 */
  int32_t commit_rank;    /* whose local segment holds the rows to commit, or -1 */
  int32_t commit_begin, commit_end;
  int32_t token_first;  /* tokens[token_first + i] is the token of position max(begin - 1, 0) + i, up to end - 1 */
  int32_t append_begin; /* request page of the first page appended to the request's page table in this step */
  int32_t append_count;
  int32_t append_first; /* pages[append_first + i] */
  float temperature;
  float top_p;
  int32_t top_k;
  int32_t next_token; /* of position end where it is known (a later chunk's), else -1; scored, not computed */
  uint64_t seed;
};

struct quire_step_plan {
  uint64_t epoch; /* number of the step, from 1 */
  int32_t entry_count;
  int32_t token_count;
  int32_t page_count;
  int32_t ranks;
  int32_t split; /* enum quire_split */
  int32_t reserved;
};

struct quire_step_limits {
  int32_t entries_max;
  int32_t tokens_max;
  int32_t pages_max;
};

static_assert(sizeof(struct quire_step_entry) == 88, "step entry of 88 bytes");
static_assert(offsetof(struct quire_step_entry, begin) == 12, "begin at 12");
static_assert(offsetof(struct quire_step_entry, home) == 24, "home at 24");
static_assert(offsetof(struct quire_step_entry, commit_rank) == 36, "commit rank at 36");
static_assert(offsetof(struct quire_step_entry, token_first) == 48, "token first at 48");
static_assert(offsetof(struct quire_step_entry, append_first) == 60, "append first at 60");
static_assert(offsetof(struct quire_step_entry, temperature) == 64, "temperature at 64");
static_assert(offsetof(struct quire_step_entry, next_token) == 76, "next token at 76");
static_assert(offsetof(struct quire_step_entry, seed) == 80, "seed at 80");
static_assert(sizeof(struct quire_step_plan) == 32, "step plan of 32 bytes");
static_assert(offsetof(struct quire_step_plan, entry_count) == 8, "entry count at 8");
static_assert(offsetof(struct quire_step_plan, ranks) == 20, "ranks at 20");
static_assert(offsetof(struct quire_step_plan, split) == 24, "split at 24");
static_assert(offsetof(struct quire_step_plan, reserved) == 28, "reserved at 28");
static_assert(sizeof(struct quire_step_limits) == 12, "step limits of 12 bytes");

/* Bytes of a plan block with room for the limits. */
int64_t quire_step_plan_bytes(const struct quire_step_limits *limits);

/* Empties a plan. */
void quire_step_plan_reset(struct quire_step_plan *plan, uint64_t epoch, int32_t ranks, enum quire_split split);

/* Appends one entry with its tokens (positions max(begin - 1, 0) .. end - 1) and appended pages; fills token_first and
 * append_first. False, and nothing changed, when a limit would be passed. */
bool quire_step_plan_add(struct quire_step_plan *plan, const struct quire_step_limits *limits,
                         const struct quire_step_entry *entry, const int32_t *tokens, const quire_page *pages);

const struct quire_step_entry *quire_step_plan_entries(const struct quire_step_plan *plan);
const int32_t *quire_step_plan_tokens(const struct quire_step_plan *plan, const struct quire_step_limits *limits);
const quire_page *quire_step_plan_pages(const struct quire_step_plan *plan, const struct quire_step_limits *limits);

/* Token of a position of an entry, in [max(begin - 1, 0), end). */
int32_t quire_step_entry_token(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                               const struct quire_step_entry *entry, int32_t position);

/* The rank that computes a position of an entry, in [begin, end). */
int32_t quire_step_entry_producer(const struct quire_step_plan *plan, const struct quire_step_entry *entry,
                                  int32_t position);

/* The rank that produces the draft slot of a position in [begin, end): the one that has the hidden state of the
 * position before. Slot 0 holds no row: -1. */
int32_t quire_step_entry_draft_producer(const struct quire_step_plan *plan, const struct quire_step_entry *entry,
                                        int32_t position);

/* The plan's arithmetic of itself: every index in bounds, kinds and flags known, ranks in range. why_out names the
 * first fault. Ranks of another process check a plan before they run it. */
bool quire_step_plan_check(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                           const char **why_out);

#ifdef __cplusplus
}
#endif
#endif
