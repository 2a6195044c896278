#include <string.h>

#include "base/assert.h"
#include "engine/engine_private.h"

static const struct engine_request *watched_of(const struct quire_engine *engine) {
  const struct engine_request *r = quire_engine_find(engine, engine->watched);
  return r != NULL && r->state != QUIRE_SCHED_WAITING ? r : NULL;
}

bool quire_engine_watch(struct quire_engine *engine, uint64_t id) {
  bool found = quire_engine_find(engine, id) != NULL;
  engine->watched = found ? id : engine->watched;
  return found;
}

int32_t quire_engine_tokens(const struct quire_engine *engine) {
  const struct engine_request *r = watched_of(engine);
  return r == NULL ? 0 : r->paged;
}

/* A page of a part at the rank that sends it. */
static uint8_t *page_at_sender(const struct quire_engine *engine, int32_t part, quire_page page) {
  int32_t rank = quire_page_sender(&engine->geometry, page).v;
  struct quire_bank *bank = quire_step_bank(engine->executor, rank);
  uint8_t *base = quire_bank_page(bank, part, quire_page_local(&engine->geometry, page));
  QUIRE_ASSERT(base != NULL);
  return base;
}

enum quire_status quire_engine_read(const struct quire_engine *engine, int32_t part, int32_t begin, int32_t end,
                                    uint8_t *rows_out, struct quire_error *error_out) {
  if (part < 0 || part >= engine->parts.count || begin < 0 || end < begin || end > quire_engine_tokens(engine)) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "read",
                           "part %d, positions %d to %d: there are %d parts and %d rows", part, begin, end,
                           engine->parts.count, quire_engine_tokens(engine));
  }
  if (begin == end) {
    return QUIRE_OK;
  }
  const quire_page *table = quire_cache_request_pages(engine->cache, watched_of(engine)->handle, NULL);
  const struct quire_part *p = &engine->parts.part[part];
  uint8_t *out = rows_out;
  for (int32_t position = begin; position < end; position++) {
    const uint8_t *page = page_at_sender(engine, part, table[position / engine->geometry.page_tokens]);
    int64_t row = position % engine->geometry.page_tokens;
    for (int32_t i = 0; i < p->pieces; i++) {
      memcpy(out, page + p->piece[i].offset + row * p->piece[i].row_bytes, (size_t)p->piece[i].row_bytes);
      out += p->piece[i].row_bytes;
    }
  }
  return QUIRE_OK;
}

int32_t quire_engine_rank_pages(const struct quire_engine *engine, int32_t rank) {
  const struct engine_request *r = watched_of(engine);
  if (r == NULL) {
    return 0;
  }
  int32_t pages = 0, stored = 0;
  const quire_page *table = quire_cache_request_pages(engine->cache, r->handle, &pages);
  int32_t used = quire_geometry_pages_of(&engine->geometry, r->paged);
  for (int32_t i = 0; i < used && i < pages; i++) {
    stored += quire_page_stored_by(&engine->geometry, table[i], (quire_rank_id){rank}) ? 1 : 0;
  }
  return stored;
}

/* Opens the cached pages of a prompt; returns their number, 0 when nothing is cached (then no handle stays open). */
static int32_t open_cached(struct quire_engine *engine, const int32_t *tokens, int32_t count,
                           quire_cache_request *handle_out, const quire_page **table_out) {
  struct quire_cache_fill fill = {.tokens = tokens, .tokens_count = count};
  if (quire_engine_begin(engine, &fill, handle_out, NULL) != QUIRE_OK) {
    return 0;
  }
  int32_t pages = 0;
  *table_out = quire_cache_request_pages(engine->cache, *handle_out, &pages);
  int32_t cached = quire_cache_request_tokens(engine->cache, *handle_out) / engine->geometry.page_tokens;
  if (cached == 0) {
    quire_cache_request_release(engine->cache, *handle_out);
  }
  return cached;
}

/* Copies one part of a page over another's, on every rank that stores the target. */
static void overwrite(struct quire_engine *engine, int32_t part, quire_page target, const uint8_t *bytes) {
  for (int32_t r = 0; r < engine->geometry.ranks; r++) {
    if (quire_page_stored_by(&engine->geometry, target, (quire_rank_id){r})) {
      struct quire_bank *bank = quire_step_bank(engine->executor, r);
      memcpy(quire_bank_page(bank, part, quire_page_local(&engine->geometry, target)), bytes,
             (size_t)engine->parts.part[part].page_bytes);
    }
  }
}

/* Rotates one part's pages by shift, through a copy of them all. */
static void rotate_part(struct quire_engine *engine, int32_t part, const quire_page *table, int32_t pages,
                        int32_t shift, uint8_t *copy) {
  int64_t bytes = engine->parts.part[part].page_bytes;
  for (int32_t p = 0; p < pages; p++) {
    memcpy(copy + p * bytes, page_at_sender(engine, part, table[p]), (size_t)bytes);
  }
  for (int32_t p = 0; p < pages; p++) {
    overwrite(engine, part, table[p], copy + (p + shift) % pages * bytes);
  }
}

int32_t quire_engine_mispair(struct quire_engine *engine, const int32_t *tokens, int32_t count, int32_t shift) {
  quire_cache_request handle;
  const quire_page *table = NULL;
  int32_t pages = open_cached(engine, tokens, count, &handle, &table);
  if (pages == 0) {
    return 0;
  }
  size_t page_bytes = 0;
  for (int32_t i = 0; i < engine->parts.count; i++) {
    size_t bytes = (size_t)engine->parts.part[i].page_bytes;
    page_bytes = bytes > page_bytes ? bytes : page_bytes;
  }
  uint8_t *copy = quire_env_zalloc(engine->env, (size_t)pages, page_bytes);
  for (int32_t part = 0; copy != NULL && part < engine->parts.count; part++) {
    if (engine->parts.part[part].kind == QUIRE_PART_INDEX_KEY) {
      rotate_part(engine, part, table, pages, shift, copy);
    }
  }
  quire_env_free(engine->env, copy, (size_t)pages, page_bytes);
  quire_cache_request_release(engine->cache, handle);
  return copy != NULL ? pages : 0;
}

int32_t quire_engine_replace(struct quire_engine *engine, const int32_t *tokens, int32_t count, const int32_t *others,
                             int32_t others_count) {
  quire_cache_request handle, other;
  const quire_page *table = NULL, *from = NULL;
  int32_t pages = open_cached(engine, tokens, count, &handle, &table);
  int32_t other_pages = open_cached(engine, others, others_count, &other, &from);
  int32_t both = pages < other_pages ? pages : other_pages;
  for (int32_t part = 0; part < engine->parts.count; part++) {
    for (int32_t p = 0; p < both; p++) {
      overwrite(engine, part, table[p], page_at_sender(engine, part, from[p]));
    }
  }
  if (pages > 0) {
    quire_cache_request_release(engine->cache, handle);
  }
  if (other_pages > 0) {
    quire_cache_request_release(engine->cache, other);
  }
  return both;
}

/* A request's counts against each other, and against the lists it must be in. */
static const char *request_fault(const struct quire_engine *engine, const struct engine_request *r) {
  int32_t page = engine->geometry.page_tokens;
  bool runs = r->state != QUIRE_SCHED_FREE && r->state != QUIRE_SCHED_WAITING;
  if (runs != (r->run >= 0)) {
    return "a request that has pages is not among the running, or one that has none is";
  }
  if (r->state == QUIRE_SCHED_FREE) {
    return r->home >= 0 ? "a slot that is free decodes somewhere" : NULL;
  }
  if (r->prompt > r->count || r->count > r->end_max || r->computed > r->count || r->paged > r->computed ||
      r->computed - r->paged > 1) {
    return "a request's tokens are miscounted";
  }
  if (!runs) {
    return r->computed != 0 || r->home >= 0 ? "a request that waits has rows or a home" : NULL;
  }
  const struct quire_sched_running *shown = &engine->shown[r->run];
  bool needs_page = r->state == QUIRE_SCHED_DECODE && r->computed >= r->pages * page;
  if (engine->requests + engine->running[r->run] != r || shown->state != r->state || shown->pages != r->pages ||
      ((shown->flags & QUIRE_SCHED_NEEDS_PAGE) != 0) != needs_page ||
      (r->state == QUIRE_SCHED_PREFILL && shown->computed != r->computed)) {
    return "the scheduler sees another request than there is";
  }
  if (r->quiet_end > 0 && (r->state != QUIRE_SCHED_DECODE || !r->told || r->count != r->computed + 1)) {
    return "a request is taken for quiet that is not";
  }
  if (r->announced > r->pages || r->computed > r->pages * page) {
    return "a request has rows without pages";
  }
  if (r->sealed != r->paged / page) {
    return "a whole page is not sealed, or one that is not whole is";
  }
  return r->state == QUIRE_SCHED_PREFILL && r->home >= 0 ? "a prompt has a home" : NULL;
}

static const char *queue_fault(const struct quire_engine *engine, const struct engine_queue *queue, int32_t *total) {
  const struct engine_request *before = NULL;
  int32_t count = 0;
  for (int32_t at = queue->first; at != ENGINE_NONE && count <= queue->count; at = engine->requests[at].next) {
    const struct engine_request *r = &engine->requests[at];
    if (r->state != QUIRE_SCHED_WAITING ||
        (before != NULL && !quire_sched_before(before->priority, before->order, r->priority, r->order))) {
      return "a queue is out of order";
    }
    before = r;
    count++;
  }
  *total += count;
  return count == queue->count ? NULL : "a queue is miscounted";
}

/* Is an entry that stays in the plan what it would be if it were written for the request's next step? */
static bool stands_right(const struct quire_engine *engine, const struct engine_request *r, int32_t index) {
  const struct quire_step_entry *e = &engine->kept.entries[index];
  bool drafts = engine->parts.draft_layers > 0;
  struct quire_step_entry right = {
      .request = r->handle.slot,
      .kind = QUIRE_ENTRY_DECODE,
      .flags = QUIRE_ENTRY_SAMPLE,
      .begin = r->computed,
      .end = r->computed + 1,
      .prefix_end = r->paged,
      .home = r->home,
      .carry_rank = drafts ? r->home : -1,
      .recompute_rank = -1,
      .commit_rank = r->home,
      .commit_begin = r->paged,
      .commit_end = r->computed,
      .token_first = engine->planned[index].token_first,
      .append_begin = r->announced,
      .next_token = QUIRE_TOKEN_ABSENT,
      .sampling = -1,
  };
  return r->run >= 0 && r->told && r->carry_rank == r->home && r->count == r->computed + 1 &&
         r->paged == r->computed - 1 && r->computed < r->announced * engine->geometry.page_tokens &&
         memcmp(e, &right, sizeof right) == 0 &&
         memcmp(engine->kept.tokens + e->token_first, r->tokens + r->paged, 2 * sizeof *r->tokens) == 0;
}

static const char *planned_fault(const struct quire_engine *engine) {
  for (int32_t i = 0; i < engine->running_max; i++) {
    const struct engine_planned *planned = &engine->planned[i];
    if (planned->token_first >= 0 &&
        (i >= engine->planned_count || !stands_right(engine, &engine->requests[planned->slot], i))) {
      return "an entry stays in the plan that is not its request's next";
    }
  }
  return NULL;
}

static const char *engine_fault(const struct quire_engine *engine) {
  int32_t states[QUIRE_SCHED_STATES] = {0}, homes[QUIRE_RANKS_MAX] = {0}, waiting = 0;
  const char *why = NULL;
  for (int32_t i = 0; why == NULL && i < engine->slots; i++) {
    const struct engine_request *r = &engine->requests[i];
    states[r->state]++;
    homes[r->home >= 0 ? r->home : 0] += r->home >= 0;
    why = request_fault(engine, r);
  }
  why = why != NULL ? why : queue_fault(engine, &engine->short_queue, &waiting);
  why = why != NULL ? why : queue_fault(engine, &engine->long_queue, &waiting);
  why = why != NULL ? why : planned_fault(engine);
  if (why != NULL) {
    return why;
  }
  struct quire_cache_stats cache;
  quire_cache_stats(engine->cache, &cache);
  if (memcmp(states, engine->states, sizeof states) != 0 || waiting != states[QUIRE_SCHED_WAITING] ||
      memcmp(homes, engine->homes, (size_t)engine->geometry.ranks * sizeof *homes) != 0 ||
      cache.requests != engine->running_count) {
    return "requests, queues, homes and page tables do not add up";
  }
  return NULL;
}

bool quire_engine_check_laws(const struct quire_engine *engine, struct quire_error *why_out) {
  const char *why = engine_fault(engine);
  if (why != NULL) {
    quire_error_set(why_out, QUIRE_ERR_STATE, "engine", "%s", why);
    return false;
  }
  return quire_cache_check(engine->cache, why_out);
}

/* What each fault acts on. */
static const char *fault_needs(enum quire_view_fault fault) {
  QUIRE_ASSERT(fault != QUIRE_VIEW_FAULT_NONE);
  return fault == QUIRE_VIEW_FAULT_SWAP_PAGES      ? "a request with two pages behind it"
         : fault == QUIRE_VIEW_FAULT_FOREIGN_WRITE ? "a page behind a request, and a rank that shares the cache with "
                                                     "its owner"
                                                   : "a fence";
}

enum quire_status quire_engine_judge_fault(const struct quire_engine_config *config,
                                           const struct quire_engine_stats *stats, struct quire_error *error_out) {
  QUIRE_ASSERT(stats->steps >= 0);
  static const char where[] = "--debug-fault";
  const unsigned long long step = config->fault_epoch;
  /* skipped fences are found by the write marks, which are always on */
  bool looked_for = config->debug_shared_kv || config->fault == QUIRE_VIEW_FAULT_SKIP_FENCE;
  if (config->fault == QUIRE_VIEW_FAULT_NONE) {
    return QUIRE_OK;
  }
  if ((stats->fault & QUIRE_STEP_FAULT_PLACED) == 0 && (uint64_t)stats->steps < config->fault_epoch) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, where,
                           "not placed: there was no step %llu, the last was %lld; choose another (--debug-fault-step)",
                           step, (long long)stats->steps);
  }
  if ((stats->fault & QUIRE_STEP_FAULT_PLACED) == 0) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, where,
                           "not placed: nothing to act on at step %llu; it takes %s (--debug-fault-step)", step,
                           fault_needs(config->fault));
  }
  if ((stats->fault & QUIRE_STEP_FAULT_READ) == 0) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, where,
                           "placed at step %llu, and nobody could find it: no step right behind read what it touched; "
                           "choose one before a request's last (--debug-fault-step)",
                           step);
  }
  if (!looked_for) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, where,
                           "placed at step %llu and not looked for, which takes --debug-shared-kv", step);
  }
  return quire_error_set(error_out, QUIRE_ERR_RANK, where, "placed at step %llu and not found", step);
}
