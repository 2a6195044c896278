/* The step plan: what all ranks do in one step, in the same order (design, section 4).
 *
 * The controller writes it, every rank executes it; it is flat, plain data in one block of memory without pointers, so
 * that it can be handed to a thread or sent to another process. Which rank works on which row is not listed: it follows
 * from (split, ranks, entry) by the functions of split.h and the two below, which every rank evaluates for itself.
 *
 *   | header | entries | samplings | tokens | lists | pages | biases |       counts in the header, room by the limits
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
 * How an entry draws is a record of its own, struct quire_step_sampling. Each rank keeps, for each request slot, the
 * record of the last entry that drew, and an entry that draws without one draws as that one did: who draws in the same
 * way at every position, without lists and places of its own in plan and ack (quire_step_draws_plainly), sends it once,
 * when it begins or resumes. What a draw is a function of is all in the plan
 * but for one thing that would not fit into it, the token list behind the penalties: each rank keeps, for each request
 * slot, how often each token occurs in the list, and plans append to the list as they append to page tables:
 *
 *   list of the draw for position p = tokens of positions [0, p), those before prompt_end being prompt
 *                                   = what the slot has counted, [.., list_end), and the entry's own [list_end, p)
 *
 * Sending counts instead would send as many numbers as the list has different tokens, with every row: a long prompt has
 * tens of thousands. Sent once and appended to, it is one token a step. Counts are integers, so it does not matter in
 * which pieces they came; a request that begins, resumes or arrives from elsewhere sends its list anew
 * (QUIRE_SAMPLING_LIST_RESET), so nothing of a rank outlives or travels. Rows that speculate count tokens that are not
 * in the list yet: they are taken from the entry, and the slot never has to forget one.
 *
 * Pure; compiles for host and device. */
#ifndef QUIRE_LAYOUT_STEP_PLAN_H
#define QUIRE_LAYOUT_STEP_PLAN_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "layout/ids.h"
#include "layout/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_split { QUIRE_SPLIT_ZIGZAG, QUIRE_SPLIT_INTERLEAVE };
enum quire_entry_kind { QUIRE_ENTRY_PREFILL, QUIRE_ENTRY_DECODE };

enum quire_entry_flags {
  QUIRE_ENTRY_SAMPLE = 1,     /* draw the token that follows position end - 1, by the sampling record, or without one
                                 by that of the request's last entry that drew */
  QUIRE_ENTRY_SCORE = 2,      /* keep log-probability of the next token and argmax of every row; with a sampling record
                                 that has row_top_count, the likeliest tokens too (evaluation, prompt
                                 log-probabilities) */
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
  int32_t next_token;   /* of position end where it is known (a later chunk's), else -1; scored, not computed */
  int32_t sampling;     /* samplings[sampling], or -1 */
};

enum quire_sampling_flags {
  QUIRE_SAMPLING_LIST_RESET = 1, /* the slot forgets what it counted */
  QUIRE_SAMPLING_LOGPROB = 2,    /* keep the log-probability of the drawn token */
};

/* How one entry draws: struct quire_sampling (sampling.h) without pointers, and where its lists lie. */
struct quire_step_sampling {
  uint64_t seed;
  float temperature;
  float top_p;
  float min_p;
  int32_t top_k; /* 0: off */
  float presence_penalty;
  float frequency_penalty;
  float repetition_penalty; /* > 0; 1: off */
  int32_t prompt_end;       /* positions before are prompt, those from here on answer */
  int32_t flags;            /* enum quire_sampling_flags */
  int32_t list_begin,
      list_end; /* lists[list_first + i] is the token of position list_begin + i, counted in this step */
  int32_t list_first;
  int32_t bias_first, bias_count;       /* biases[bias_first + i], added to logits; -infinity forbids */
  int32_t top_first, top_count;         /* likeliest tokens beside the drawn one, at this index of the ack's tops */
  int32_t row_top_first, row_top_count; /* the same of each scored row, row_top_count for each */
};

struct quire_step_plan {
  uint64_t epoch; /* number of the step, from 1 */
  int32_t entry_count;
  int32_t token_count;
  int32_t page_count;
  int32_t ranks;
  int32_t split; /* enum quire_split */
  int32_t sampling_count;
  int32_t list_count;
  int32_t bias_count;
  int32_t top_count; /* of the ack */
  int32_t reserved;
};

struct quire_step_limits {
  int32_t entries_max; /* and sampling records */
  int32_t tokens_max;
  int32_t pages_max;
  int32_t lists_max;  /* tokens appended to lists; the longest request's, or it could never draw with penalties */
  int32_t biases_max; /* of all entries */
  int32_t tops_max;   /* likeliest tokens in the ack */
};

/* Where an entry that is still to be filled lies in its plan. */
struct quire_step_room {
  struct quire_step_entry *entry;
  int32_t *tokens;
  quire_page *pages;
  int32_t token_first, append_first; /* what the entry has to say of them */
};

static_assert(sizeof(struct quire_step_entry) == 72, "step entry of 72 bytes");
static_assert(offsetof(struct quire_step_entry, begin) == 12, "begin at 12");
static_assert(offsetof(struct quire_step_entry, home) == 24, "home at 24");
static_assert(offsetof(struct quire_step_entry, commit_rank) == 36, "commit rank at 36");
static_assert(offsetof(struct quire_step_entry, token_first) == 48, "token first at 48");
static_assert(offsetof(struct quire_step_entry, append_first) == 60, "append first at 60");
static_assert(offsetof(struct quire_step_entry, next_token) == 64, "next token at 64");
static_assert(offsetof(struct quire_step_entry, sampling) == 68, "sampling at 68");
static_assert(sizeof(struct quire_step_sampling) == 80, "step sampling of 80 bytes");
static_assert(offsetof(struct quire_step_sampling, temperature) == 8, "temperature at 8");
static_assert(offsetof(struct quire_step_sampling, presence_penalty) == 24, "presence penalty at 24");
static_assert(offsetof(struct quire_step_sampling, prompt_end) == 36, "prompt end at 36");
static_assert(offsetof(struct quire_step_sampling, list_first) == 52, "list first at 52");
static_assert(offsetof(struct quire_step_sampling, bias_first) == 56, "bias first at 56");
static_assert(offsetof(struct quire_step_sampling, top_first) == 64, "top first at 64");
static_assert(offsetof(struct quire_step_sampling, row_top_first) == 72, "row top first at 72");
static_assert(sizeof(struct quire_step_plan) == 48, "step plan of 48 bytes");
static_assert(offsetof(struct quire_step_plan, entry_count) == 8, "entry count at 8");
static_assert(offsetof(struct quire_step_plan, ranks) == 20, "ranks at 20");
static_assert(offsetof(struct quire_step_plan, split) == 24, "split at 24");
static_assert(offsetof(struct quire_step_plan, sampling_count) == 28, "sampling count at 28");
static_assert(offsetof(struct quire_step_plan, top_count) == 40, "top count at 40");
static_assert(offsetof(struct quire_step_plan, reserved) == 44, "reserved at 44");
static_assert(sizeof(struct quire_step_limits) == 24, "step limits of 24 bytes");
static_assert(sizeof(struct quire_step_room) == 3 * sizeof(void *) + 8, "step room of three places and two indices");

/* Bytes of a plan block with room for the limits. */
int64_t quire_step_plan_bytes(const struct quire_step_limits *limits);

/* Empties a plan. */
void quire_step_plan_reset(struct quire_step_plan *plan, uint64_t epoch, int32_t ranks, enum quire_split split);

/* Appends one entry with its tokens (positions max(begin - 1, 0) .. end - 1) and appended pages; fills token_first and
 * append_first; the entry has no sampling record. False, and nothing changed, when a limit would be passed. */
bool quire_step_plan_add(struct quire_step_plan *plan, const struct quire_step_limits *limits,
                         const struct quire_step_entry *entry, const int32_t *tokens, const quire_page *pages);

/* Makes room for one entry with so many tokens and appended pages, all of which the caller fills in. False, and nothing
 * changed, when a limit would be passed. */
bool quire_step_plan_extend(struct quire_step_plan *plan, const struct quire_step_limits *limits, int32_t token_count,
                            int32_t page_count, struct quire_step_room *room_out);

/* Neither penalties nor biases nor likeliest tokens. */
bool quire_step_draws_plainly(const struct quire_sampling *sampling);

/* How an entry draws, as its owner knows it. */
struct quire_step_draw {
  const struct quire_sampling *sampling; /* checked (quire_sampling_check) */
  const int32_t *tokens;                 /* of the request, positions 0 to the entry's end - 1 */
  int32_t prompt_end;                    /* tokens of the prompt */
  const int32_t *bans; /* [ban_count] ids that cannot be drawn here: stops of an answer still too short */
  int32_t ban_count;
  int32_t listed; /* in and out, kept by the owner: position up to which the ranks have this request's list; -1 when
                     it begins or resumes */
};

/* As quire_step_plan_add, with a sampling record: for every entry of a request that computes rows. Without penalties no
 * list is kept and `listed` stays. With them as much of the list goes along as fits; if an entry that draws
 * needs more it is refused like any that does not fit, and has its turn in a later step (a plan's first always has). */
bool quire_step_plan_add_drawn(struct quire_step_plan *plan, const struct quire_step_limits *limits,
                               const struct quire_step_entry *entry, const quire_page *pages,
                               struct quire_step_draw *draw);

/* Rows that stay. A reset empties a plan and leaves what its block holds. A request that decodes on and on therefore
 * needs no new entry for every step: when the step's answer is there its entry is moved on where it lies, and the next
 * plan takes it over, if it stands at the same place and its two tokens do. */
struct quire_step_kept {
  struct quire_step_entry *entries; /* of the plan's block, those of the step before included */
  int32_t *tokens;
};
static_assert(sizeof(struct quire_step_kept) == 2 * sizeof(void *), "two places");

struct quire_step_kept quire_step_plan_kept(struct quire_step_plan *plan, const struct quire_step_limits *limits);
/* Entry `index` becomes that of the next step. It decodes one row, commits the row before and appends no page, and drew
 * `token`, the next step's row, in the way it goes on drawing. Between a step and the reset of its plan. */
static inline void quire_step_kept_advance(const struct quire_step_kept *kept, int32_t index, int32_t token) {
  struct quire_step_entry *entry = &kept->entries[index];
  QUIRE_DEBUG(entry->kind == QUIRE_ENTRY_DECODE && entry->end == entry->begin + 1);
  int32_t *tokens = kept->tokens + entry->token_first;
  tokens[0] = tokens[1];
  tokens[1] = token;
  entry->begin++;
  entry->end++;
  entry->prefix_end++;
  entry->commit_begin++;
  entry->commit_end++;
}
/* Takes the next entry over, whose token_first is the plan's token_count. */
static inline void quire_step_plan_keep(struct quire_step_plan *plan) {
  plan->entry_count++;
  plan->token_count += 2;
}

const struct quire_step_entry *quire_step_plan_entries(const struct quire_step_plan *plan);
/* The entry's record; NULL without one. */
const struct quire_step_sampling *quire_step_entry_sampling(const struct quire_step_plan *plan,
                                                            const struct quire_step_limits *limits,
                                                            const struct quire_step_entry *entry);
bool quire_step_sampling_penalises(const struct quire_step_sampling *sampling);
/* Tokens that the record appends to the request's list, and its biases. */
const int32_t *quire_step_sampling_list(const struct quire_step_plan *plan, const struct quire_step_limits *limits,
                                        const struct quire_step_sampling *sampling);
const struct quire_bias *quire_step_sampling_biases(const struct quire_step_plan *plan,
                                                    const struct quire_step_limits *limits,
                                                    const struct quire_step_sampling *sampling);
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
