#include "support/exact_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout/split.h"

#define POOL_PAGES 29 /* prime: any stride is a permutation */
#define POOL_STRIDE 11
#define TOKENS_MAX 520

void exact_step_open(struct exact_step *step, const struct quire_env *env, const struct exact_cell *cell) {
  struct quire_error error = {0};
  struct quire_engine_config engine = exact_engine_config(cell, 512, 512);
  memset(step, 0, sizeof *step);
  step->split = cell->split;
  assert_true(quire_engine_parts(&engine, &step->parts));
  int32_t chunk = cell->chunk > 0 ? cell->chunk : 512;
  struct quire_split_chunk longest = {cell->split, cell->ranks, 0, chunk};
  step->config = (struct quire_step_config){
      .geometry = {QUIRE_PAGE_TOKENS, cell->ranks, cell->sharing == QUIRE_SHARING_SHARED ? cell->ranks : 1, POOL_PAGES},
      .parts = &step->parts,
      .fingerprint = quire_engine_fingerprint(&engine),
      .view = cell->view,
      .kernels = engine.kernels,
      .model = engine.model,
      .weights = engine.weights,
      .options = engine.options,
      .limits = {.entries_max = EXACT_SLOTS,
                 .tokens_max = TOKENS_MAX,
                 .pages_max = EXACT_SLOTS * EXACT_SLOT_PAGES,
                 .lists_max = EXACT_SLOTS * TOKENS_MAX,
                 .biases_max = EXACT_SLOTS * QUIRE_BIAS_MAX,
                 .tops_max = TOKENS_MAX * QUIRE_TOP_LOGPROBS_MAX},
      .requests_max = EXACT_SLOTS,
      .request_pages_max = EXACT_SLOT_PAGES,
      .rows_max = quire_split_count_max(&longest) + 2 * EXACT_SLOTS,
      .fresh_max = chunk,
      .local_rows = 2,
      .gather_pages_max = cell->view == QUIRE_VIEW_GATHER ? EXACT_SLOTS * EXACT_SLOT_PAGES : 0,
      .logits_max = 2,
      .threads_per_rank = cell->threads,
      .copy_mode = cell->copy_mode,
      .copy_seed = cell->copy_seed,
  };
  if (quire_step_create(env, cell->executor, &step->config, &step->executor, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
  step->plan = calloc(1, (size_t)quire_step_plan_bytes(&step->config.limits));
  assert_non_null(step->plan);
  for (int32_t s = 0; s < EXACT_SLOTS; s++) {
    step->slot[s].tokens = cell->tokens;
    step->slot[s].carry_rank = -1;
    step->slot[s].listed = -1;
    for (int32_t p = 0; p < EXACT_SLOT_PAGES; p++) {
      step->slot[s].table[p].v = (s * EXACT_SLOT_PAGES + p + 1) * POOL_STRIDE % POOL_PAGES;
    }
  }
}

void exact_step_close(struct exact_step *step) {
  quire_step_destroy(step->executor);
  free(step->plan);
  memset(step, 0, sizeof *step);
}

void exact_step_restart(struct exact_step *step, int32_t slot) {
  struct exact_slot *s = &step->slot[slot];
  s->computed = s->paged = s->announced = 0;
  s->carry_rank = s->listed = -1;
}

void exact_step_begin(struct exact_step *step) {
  quire_step_plan_reset(step->plan, ++step->epoch, step->config.geometry.ranks, step->split);
}

static struct quire_step_entry make_entry(const struct exact_step *step, int32_t slot, int32_t count, int32_t flags) {
  const struct exact_slot *s = &step->slot[slot];
  int32_t pages = (s->computed + count + QUIRE_PAGE_TOKENS - 1) / QUIRE_PAGE_TOKENS;
  struct quire_step_entry entry = {
      .request = slot,
      .flags = flags,
      .begin = s->computed,
      .end = s->computed + count,
      .prefix_end = s->paged,
      .home = -1,
      .carry_rank = -1,
      .recompute_rank = -1,
      .commit_rank = -1,
      .append_begin = s->announced,
      .append_count = pages - s->announced,
      .next_token = QUIRE_TOKEN_ABSENT,
  };
  if (step->parts.draft_layers > 0 && entry.begin > 0 && count > 0) {
    entry.carry_rank = s->carry_rank;
    entry.recompute_rank = s->carry_rank >= 0 ? -1 : 0;
  }
  return entry;
}

struct quire_step_entry exact_step_prefill(const struct exact_step *step, int32_t slot, int32_t count, int32_t flags) {
  struct quire_step_entry entry = make_entry(step, slot, count, flags);
  entry.kind = QUIRE_ENTRY_PREFILL;
  return entry;
}

struct quire_step_entry exact_step_decode(const struct exact_step *step, int32_t slot, int32_t count, int32_t flags) {
  const struct exact_slot *s = &step->slot[slot];
  struct quire_step_entry entry = make_entry(step, slot, count, flags);
  entry.kind = QUIRE_ENTRY_DECODE;
  entry.home = s->carry_rank;
  if (s->computed > s->paged) {
    entry.commit_rank = entry.home;
    entry.commit_begin = s->paged;
    entry.commit_end = s->computed;
  }
  return entry;
}

void exact_step_add(struct exact_step *step, const struct quire_step_entry *entry) {
  struct exact_slot *s = &step->slot[entry->request];
  struct quire_step_draw draw = {
      .sampling = &s->sampling, .tokens = s->tokens, .prompt_end = s->prompt_end, .listed = s->listed};
  const quire_page *pages = s->table + entry->append_begin;
  assert_true(entry->end > entry->begin
                  ? quire_step_plan_add_drawn(step->plan, &step->config.limits, entry, pages, &draw)
                  : quire_step_plan_add(step->plan, &step->config.limits, entry, NULL, pages));
  s->listed = draw.listed;
}

struct quire_step_ack *exact_step_run(struct exact_step *step) {
  struct quire_error error = {0};
  if (quire_step_post(step->executor, step->plan, &error) != QUIRE_OK) {
    fail_msg("%s: %s", error.where, error.text);
  }
  struct quire_step_ack *ack = quire_step_wait(step->executor);
  for (int32_t e = 0; ack->status == QUIRE_OK && e < step->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_step_plan_entries(step->plan) + e;
    struct exact_slot *s = &step->slot[entry->request];
    s->announced += entry->append_count;
    s->computed = entry->end;
    s->paged = entry->kind == QUIRE_ENTRY_PREFILL ? entry->end : entry->begin;
    if (entry->end > entry->begin) {
      s->carry_rank = quire_step_entry_producer(step->plan, entry, entry->end - 1);
    }
  }
  return ack;
}

struct quire_step_ack *exact_step_one(struct exact_step *step, const struct quire_step_entry *entry) {
  exact_step_begin(step);
  exact_step_add(step, entry);
  struct quire_step_ack *ack = exact_step_run(step);
  if (ack->status != QUIRE_OK) {
    fail_msg("rank %d: %s: %s", ack->rank, ack->error.where, ack->error.text);
  }
  return ack;
}

struct quire_bank *exact_step_bank(const struct exact_step *step, quire_page page) {
  return quire_step_bank(step->executor, quire_page_sender(&step->config.geometry, page).v);
}

void exact_step_row(const struct exact_step *step, int32_t slot, int32_t part, int32_t position, uint8_t *row_out) {
  quire_page page = step->slot[slot].table[position / QUIRE_PAGE_TOKENS];
  const uint8_t *base =
      quire_bank_page(exact_step_bank(step, page), part, quire_page_local(&step->config.geometry, page));
  const struct quire_part *p = &step->parts.part[part];
  assert_non_null(base);
  for (int32_t i = 0; i < p->pieces; i++) {
    memcpy(row_out, base + p->piece[i].offset + position % QUIRE_PAGE_TOKENS * (int64_t)p->piece[i].row_bytes,
           (size_t)p->piece[i].row_bytes);
    row_out += p->piece[i].row_bytes;
  }
}
