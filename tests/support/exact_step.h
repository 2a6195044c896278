/* A step executor without a cache: the test is the controller, it names the pages and writes the plans.
 *
 * Each request slot s has its own page table; page ids are scattered over the pool by a fixed permutation, so that
 * request order is never page order. Everything that goes wrong in the helpers fails the test. Threads: one. */
#ifndef QUIRE_TESTS_EXACT_STEP_H
#define QUIRE_TESTS_EXACT_STEP_H

#include "step/step.h"
#include "support/exact_run.h"

#define EXACT_SLOTS 3
#define EXACT_SLOT_PAGES 8

struct exact_slot {
  const int32_t *tokens;
  int32_t computed, paged, announced;
  int32_t carry_rank;
  struct quire_sampling sampling; /* greedy until the test says otherwise */
  int32_t prompt_end;             /* tokens before count as prompt */
  int32_t listed;                 /* position up to which the ranks have the slot's token list, or -1 */
  quire_page table[EXACT_SLOT_PAGES];
};

struct exact_step {
  struct quire_parts parts;
  struct quire_step_config config;
  struct quire_step_executor *executor;
  struct quire_step_plan *plan;
  enum quire_split split;
  uint64_t epoch;
  struct exact_slot slot[EXACT_SLOTS];
};

/* Configuration of the cell's worker: 3 requests of at most 8 pages, cell->chunk fresh rows a step (0: 512). */
void exact_step_open(struct exact_step *step, const struct quire_env *env, const struct exact_cell *cell);
void exact_step_close(struct exact_step *step);

/* The slot's request begins again from nothing, as after a preemption, in the same pages. */
void exact_step_restart(struct exact_step *step, int32_t slot);

/* Begins an empty plan of the next epoch. */
void exact_step_begin(struct exact_step *step);
/* The next `count` positions of a slot: split over all ranks, or one decode row at the slot's home. What is computed
 * and not in pages is committed. flags as of the entry. */
struct quire_step_entry exact_step_prefill(const struct exact_step *step, int32_t slot, int32_t count, int32_t flags);
struct quire_step_entry exact_step_decode(const struct exact_step *step, int32_t slot, int32_t count, int32_t flags);
/* Adds an entry to the plan, with the slot's tokens, sampling and not yet announced pages. */
void exact_step_add(struct exact_step *step, const struct quire_step_entry *entry);
/* Posts the plan and waits; on QUIRE_OK the slots are where the entries said. */
struct quire_step_ack *exact_step_run(struct exact_step *step);
/* begin, one entry, run; must succeed. */
struct quire_step_ack *exact_step_one(struct exact_step *step, const struct quire_step_entry *entry);

/* Stored row of a position of a slot, pieces joined, at the page's sender. */
void exact_step_row(const struct exact_step *step, int32_t slot, int32_t part, int32_t position, uint8_t *row_out);
struct quire_bank *exact_step_bank(const struct exact_step *step, quire_page page);

#endif
