#include "sched/sched.h"

#include <stddef.h>

#include "base/assert.h"

/* --- states --- */

#define TO(state) (1u << QUIRE_SCHED_##state)

static const uint32_t ways[QUIRE_SCHED_STATES] = {
    [QUIRE_SCHED_FREE] = TO(WAITING),
    [QUIRE_SCHED_WAITING] = TO(PREFILL) | TO(FREE),
    [QUIRE_SCHED_PREFILL] = TO(DECODE) | TO(HELD) | TO(WAITING) | TO(FREE),
    [QUIRE_SCHED_DECODE] = TO(DRAIN) | TO(HELD) | TO(WAITING) | TO(FREE),
    [QUIRE_SCHED_DRAIN] = TO(HELD) | TO(FREE),
    [QUIRE_SCHED_HELD] = TO(FREE),
};

bool quire_sched_can(enum quire_sched_state from, enum quire_sched_state to) {
  QUIRE_ASSERT((int)from >= 0 && from < QUIRE_SCHED_STATES && (int)to >= 0 && to < QUIRE_SCHED_STATES);
  return (ways[from] >> to & 1) != 0;
}

const char *quire_sched_state_name(enum quire_sched_state state) {
  static const char *const names[QUIRE_SCHED_STATES] = {"free", "waiting", "prefill", "decode", "drain", "held"};
  QUIRE_ASSERT((int)state >= 0 && state < QUIRE_SCHED_STATES);
  return names[state];
}

/* --- who gives way, who enters --- */

static bool before(const struct quire_sched_running *a, const struct quire_sched_running *b) {
  return quire_sched_before(a->priority, a->order, b->priority, b->order);
}

static bool paused(const struct quire_sched_running *r) { return (r->flags & QUIRE_SCHED_PAUSED) != 0; }

/* Does a give way before b? */
static bool gives_way_before(const struct quire_sched_running *a, const struct quire_sched_running *b) {
  return paused(a) != paused(b) ? paused(a) : before(b, a);
}

static bool can_give_way(const struct quire_sched_running *r) {
  return r->state == QUIRE_SCHED_PREFILL || r->state == QUIRE_SCHED_DECODE;
}

/* The next to give way after the one that did last (NULL: nobody did), or -1 when only the first in order is left. */
static int32_t next_victim(const struct quire_sched_snapshot *s, const struct quire_sched_running *last) {
  QUIRE_DEBUG(last == NULL || (last >= s->running && last < s->running + s->running_count));
  int32_t victim = -1, first = -1;
  for (int32_t i = 0; i < s->running_count; i++) {
    const struct quire_sched_running *r = &s->running[i];
    if (!can_give_way(r) || (last != NULL && !gives_way_before(last, r))) {
      continue;
    }
    if (!paused(r) && (first < 0 || before(r, &s->running[first]))) {
      first = i;
    }
    if (victim < 0 || gives_way_before(r, &s->running[victim])) {
      victim = i;
    }
  }
  return victim == first ? -1 : victim;
}

static int32_t pages_wanted(const struct quire_sched_snapshot *s) {
  QUIRE_ASSERT(s->running_count >= 0);
  int32_t wanted = 0;
  for (int32_t i = 0; i < s->running_count; i++) {
    wanted += s->running[i].flags == QUIRE_SCHED_NEEDS_PAGE;
  }
  return wanted;
}

static void choose_victims(const struct quire_sched_snapshot *s, struct quire_sched_decision *out) {
  int64_t have = (int64_t)s->pages_available + s->pages_coming;
  if (have >= s->running_count && !s->squeezed) {
    return; /* a page for each of them */
  }
  int64_t wanted = pages_wanted(s);
  bool short_of_pages = wanted > have || (s->squeezed && wanted > 0 && s->pages_coming == 0);
  for (const struct quire_sched_running *last = NULL; short_of_pages;) {
    int32_t victim = next_victim(s, last);
    if (victim < 0) {
      break;
    }
    last = &s->running[victim];
    QUIRE_ASSERT(out->victim_count < s->running_count);
    out->victims[out->victim_count++] = victim;
    have += last->pages;
    wanted -= last->flags == QUIRE_SCHED_NEEDS_PAGE;
    short_of_pages = wanted > have;
  }
}

/* What an admission may still take. */
struct room {
  int32_t slots, prefills, longs;
  int64_t pages;
  bool blocked; /* somebody in front waits for pages */
};

static struct room room_of(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *s) {
  QUIRE_ASSERT(s->running_count <= limits->running_max);
  struct room room = {
      .slots = limits->running_max,
      .prefills = limits->prefills_max,
      .longs = QUIRE_SCHED_LONG_MAX,
      .pages = s->pages_available,
  };
  for (int32_t i = 0; i < s->running_count; i++) {
    const struct quire_sched_running *r = &s->running[i];
    room.slots--;
    room.prefills -= r->state == QUIRE_SCHED_PREFILL;
    room.longs -= r->state == QUIRE_SCHED_PREFILL && r->left > quire_sched_short_max(limits);
    room.pages -= r->state == QUIRE_SCHED_DECODE && !paused(r); /* each will want a page before long */
  }
  return room;
}

static bool follows(const struct quire_sched_limits *limits, const struct quire_sched_waiting *w) {
  return w->follow_ticks >= 0 && w->follow_ticks < limits->follow_ticks_max;
}

/* Of those that stand still the last in order, or -1. */
static int32_t last_paused(const struct quire_sched_snapshot *s) {
  QUIRE_ASSERT(s->running_count >= 0);
  int32_t last = -1;
  for (int32_t i = 0; i < s->running_count; i++) {
    const struct quire_sched_running *r = &s->running[i];
    if (paused(r) && can_give_way(r) && (last < 0 || before(&s->running[last], r))) {
      last = i;
    }
  }
  return last;
}

static void choose_admits(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *s,
                          struct quire_sched_decision *out) {
  struct room room = room_of(limits, s);
  room.blocked = room.slots <= 0 && s->waiting_count > 0;
  QUIRE_ASSERT(out->admit_count == 0);
  for (int32_t i = 0; i < s->waiting_count && room.slots > 0 && room.prefills > 0; i++) {
    const struct quire_sched_waiting *w = &s->waiting[i];
    bool is_long = w->left > quire_sched_short_max(limits);
    if (follows(limits, w) || (is_long && (room.longs <= 0 || room.blocked))) {
      continue;
    }
    if (w->refused || w->pages > room.pages) {
      if (w->bypassed >= limits->bypass_max) {
        break;
      }
      room.blocked = true;
      continue;
    }
    out->admits[out->admit_count++] = i;
    room.slots--;
    room.prefills--;
    room.longs -= is_long;
    room.pages -= w->pages;
  }
  int32_t idle = room.blocked && out->admit_count == 0 && s->pages_coming == 0 ? last_paused(s) : -1;
  if (idle >= 0) { /* what it holds is of use to others */
    out->victims[out->victim_count++] = idle;
  }
}

static bool yields(const struct quire_sched_limits *limits, const struct quire_sched_running *r,
                   const struct quire_sched_waiting *w) {
  return can_give_way(r) && (int64_t)w->priority - r->priority >= limits->yield_margin;
}

/* Of those that yield to w the next to go after the last that did (NULL: nobody did), or -1. */
static int32_t next_yielding(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *s,
                             const struct quire_sched_waiting *w, const struct quire_sched_running *last) {
  QUIRE_DEBUG(last == NULL || (last >= s->running && last < s->running + s->running_count));
  int32_t next = -1;
  for (int32_t i = 0; i < s->running_count; i++) {
    const struct quire_sched_running *r = &s->running[i];
    if (yields(limits, r, w) && (last == NULL || gives_way_before(last, r)) &&
        (next < 0 || gives_way_before(r, &s->running[next]))) {
      next = i;
    }
  }
  return next;
}

static void give_back(struct room *room, const struct quire_sched_running *r) {
  QUIRE_DEBUG(r->pages >= 0);
  room->slots++;
  room->pages += r->pages + (r->state == QUIRE_SCHED_DECODE && !paused(r));
}

static bool has_room(const struct room *room, const struct quire_sched_waiting *w) {
  return room->slots > 0 && w->pages <= room->pages;
}

/* Who gives way to the first that waits and matters more, all or nobody. */
static void choose_yielding(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *s,
                            struct quire_sched_decision *out) {
  int32_t first = 0;
  while (first < s->waiting_count && follows(limits, &s->waiting[first])) {
    first++;
  }
  if (limits->yield_margin == 0 || s->pages_coming > 0 || first == s->waiting_count) {
    return;
  }
  const struct quire_sched_waiting *w = &s->waiting[first];
  struct room room = room_of(limits, s);
  if (room.prefills <= 0 || (w->left > quire_sched_short_max(limits) && room.longs <= 0)) {
    return;
  }
  struct room most = room;
  for (int32_t i = 0; i < s->running_count; i++) {
    if (yields(limits, &s->running[i], w)) {
      give_back(&most, &s->running[i]);
    }
  }
  bool enough = has_room(&room, w) && !w->refused;
  for (const struct quire_sched_running *last = NULL; !enough && has_room(&most, w);) {
    int32_t victim = next_yielding(limits, s, w, last);
    if (victim < 0) { /* it was refused, and nobody yields */
      break;
    }
    last = &s->running[victim];
    QUIRE_ASSERT(out->victim_count < s->running_count);
    out->victims[out->victim_count++] = victim;
    give_back(&room, last);
    enough = has_room(&room, w);
  }
}

void quire_sched_admit(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *snapshot,
                       struct quire_sched_decision *decision_out) {
  QUIRE_ASSERT(limits->prefills_max >= 1 && limits->prefills_max <= QUIRE_SCHED_PREFILLS_MAX);
  QUIRE_ASSERT(snapshot->waiting_count <= 2 * QUIRE_SCHED_CANDIDATES);
  decision_out->victim_count = 0;
  decision_out->admit_count = 0;
  QUIRE_ASSERT(limits->yield_margin >= 0);
  choose_victims(snapshot, decision_out);
  if (decision_out->victim_count == 0) {
    choose_yielding(limits, snapshot, decision_out);
  }
  if (decision_out->victim_count == 0) {
    choose_admits(limits, snapshot, decision_out);
  }
}

/* --- who computes --- */

/* The prefills of a step: the first in order in front, then by rows left. */
struct prefills {
  const struct quire_sched_running *running;
  int32_t index[QUIRE_SCHED_PREFILLS_MAX];
  int32_t rows[QUIRE_SCHED_PREFILLS_MAX];
  int32_t count;
};

static bool shorter(const struct quire_sched_running *a, const struct quire_sched_running *b) {
  QUIRE_DEBUG(a != b);
  if (a->priority != b->priority) {
    return a->priority > b->priority;
  }
  return a->left != b->left ? a->left < b->left : a->order < b->order;
}

static void add_prefill(struct prefills *p, int32_t index) {
  QUIRE_ASSERT(p->count < QUIRE_SCHED_PREFILLS_MAX);
  int32_t first = p->count == 0 ? -1 : p->index[0];
  int32_t moving = index;
  if (first >= 0 && before(&p->running[index], &p->running[first])) {
    p->index[0] = index;
    moving = first;
  }
  int32_t at = p->count++;
  for (; at > 1 && shorter(&p->running[moving], &p->running[p->index[at - 1]]); at--) {
    p->index[at] = p->index[at - 1];
  }
  if (at > 0 || first < 0) {
    p->index[at] = moving;
  }
}

/* Rows a request gets out of a budget: all it needs, or as much as ends at a page border, or what there is. */
static int32_t share_of(const struct quire_sched_limits *limits, const struct quire_sched_running *r, int32_t budget,
                        bool align) {
  QUIRE_DEBUG(budget > 0 && r->left > 0);
  if (r->left <= budget) {
    return r->left;
  }
  int32_t behind = (r->computed + budget) % limits->page_tokens;
  return align && behind < budget ? budget - behind : budget;
}

/* Rows for all prefills but the first in order, out of what that one left. `ends`: somebody's prefill ends in this
 * step, which rows that end nobody's may then fill to the half only; `open_rows` are those of the first. Returns what
 * is left over, 0 when somebody waits for the step's end. */
static int32_t share_rest(const struct quire_sched_limits *limits, struct prefills *p, bool ends, int32_t open_rows) {
  QUIRE_ASSERT(p->rows[0] > 0 && p->rows[0] <= limits->chunk_tokens);
  int32_t half = limits->chunk_tokens / 2;
  int32_t left = limits->chunk_tokens - p->rows[0];
  for (int32_t i = 1; i < p->count; i++) {
    const struct quire_sched_running *r = &p->running[p->index[i]];
    int32_t budget = left;
    if (r->left > left && ends) {
      budget = half - open_rows < left ? half - open_rows : left;
    }
    p->rows[i] = budget > 0 ? share_of(limits, r, budget, true) : 0;
    left -= p->rows[i];
    ends = ends || r->left == p->rows[i];
    open_rows += r->left == p->rows[i] ? 0 : p->rows[i];
  }
  return ends ? 0 : left;
}

static void share_rows(const struct quire_sched_limits *limits, struct prefills *p) {
  QUIRE_ASSERT(p->count > 0 && p->count <= QUIRE_SCHED_PREFILLS_MAX);
  const struct quire_sched_running *head = &p->running[p->index[0]];
  if (p->count == 1) {
    p->rows[0] = share_of(limits, head, limits->chunk_tokens, false);
    return;
  }
  p->rows[0] = share_of(limits, head, limits->chunk_tokens - limits->chunk_tokens / 2, true);
  bool ends = p->rows[0] == head->left;
  int32_t over = share_rest(limits, p, ends, ends ? 0 : p->rows[0]);
  p->rows[0] = share_of(limits, head, p->rows[0] + over, true);
}

void quire_sched_run(const struct quire_sched_limits *limits, const struct quire_sched_snapshot *snapshot,
                     struct quire_sched_decision *decision_out) {
  QUIRE_ASSERT(limits->chunk_tokens >= 1 && limits->page_tokens >= 1);
  struct prefills prefills;
  prefills.running = snapshot->running;
  prefills.count = 0;
  struct quire_sched_run *runs = decision_out->runs;
  int32_t count = 0;
  for (int32_t i = 0; i < snapshot->running_count; i++) {
    const struct quire_sched_running *r = &snapshot->running[i];
    if (r->state == QUIRE_SCHED_DECODE && r->flags == 0) {
      runs[count++] = (struct quire_sched_run){i, 1};
    } else if (r->state == QUIRE_SCHED_PREFILL && !paused(r)) {
      add_prefill(&prefills, i);
    } else if (r->state == QUIRE_SCHED_DRAIN) {
      runs[count++] = (struct quire_sched_run){i, 0};
    }
  }
  if (prefills.count > 0) {
    share_rows(limits, &prefills);
  }
  int64_t prefix_pages = 0;
  for (int32_t i = 0; i < prefills.count; i++) {
    const struct quire_sched_running *r = &snapshot->running[prefills.index[i]];
    int64_t pages = (r->computed + limits->page_tokens - 1) / limits->page_tokens;
    bool fits = limits->prefix_pages_max == 0 || prefix_pages + pages <= limits->prefix_pages_max;
    if (prefills.rows[i] > 0 && fits) {
      prefix_pages += pages;
      runs[count++] = (struct quire_sched_run){prefills.index[i], prefills.rows[i]};
    }
  }
  QUIRE_ASSERT(count <= snapshot->running_count);
  decision_out->run_count = count;
}
