// ctest: timeout=60
/* Two views of one shared cache, driven by hand: which rows a rank gets, where the rows of a step land and when, the
 * ring of the local segment and its commits, and pages that must not be read yet. Pages of 4 tokens, nothing quantised,
 * and every row's values say where it belongs. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bank/bank.h"
#include "layout/split.h"
#include "support/fail_env.h"
#include "view/view.h"

#define RANKS 2
#define PAGE 4
#define POOL 16
#define TOKENS 40
#define ROWS_MAX 20
#define TOPK 64

static const struct quire_step_limits limits = {.entries_max = 2, .tokens_max = 64, .pages_max = 16};
/* request order is not page order, and owners do not alternate */
static const quire_page table[] = {{3}, {6}, {1}, {8}, {7}, {2}, {11}, {13}, {4}, {10}};

struct pair {
  struct quire_geometry geometry;
  struct quire_parts parts;
  const struct quire_kernels *kernels;
  struct quire_collective *collective;
  struct quire_bank *banks[RANKS];
  struct quire_peer_map peers;
  struct quire_view *views[RANKS];
  struct quire_stream *streams[RANKS];
  struct quire_step_plan *plan;
  uint64_t epoch;
  enum quire_status status[RANKS];
  struct quire_error error[RANKS];
  int32_t tokens[TOKENS];
};

static struct quire_view_config view_config(const struct pair *pair, int32_t rank) {
  return (struct quire_view_config){
      .geometry = pair->geometry,
      .parts = &pair->parts,
      .mode = QUIRE_VIEW_PEER,
      .rank = rank,
      .limits = limits,
      .requests_max = 2,
      .request_pages_max = 10,
      .rows_max = ROWS_MAX,
      .fresh_max = 32,
      .local_rows = 2,
      .topk = TOPK,
      .heads = 1,
      .index_heads = 1,
      .threads = 1,
  };
}

static void open_pair(struct pair *pair) {
  const struct quire_env *env = quire_env_default();
  memset(pair, 0, sizeof *pair);
  pair->geometry = (struct quire_geometry){PAGE, RANKS, RANKS, POOL};
  assert_true(quire_parts_build(&pair->parts, QUIRE_KV_F32, PAGE, 1, NULL, 1));
  assert_int_equal(quire_kernels_find("auto", &pair->kernels, NULL), QUIRE_OK);
  struct quire_collective_config config = {.ranks = RANKS};
  assert_int_equal(quire_collective_create(env, "local", &config, &pair->collective, NULL), QUIRE_OK);
  for (int32_t r = 0; r < RANKS; r++) {
    struct quire_bank_config bank = {
        .geometry = pair->geometry,
        .rank = {r},
        .parts = &pair->parts,
        .queue_commands = 4,
        .stream_mode = QUIRE_STREAM_INLINE,
    };
    assert_int_equal(quire_bank_create(env, &bank, &pair->banks[r], NULL), QUIRE_OK);
    assert_int_equal(quire_bank_allocate(pair->banks[r], NULL), QUIRE_OK);
  }
  assert_int_equal(quire_bank_connect(pair->banks, RANKS, &pair->peers, NULL), QUIRE_OK);
  for (int32_t r = 0; r < RANKS; r++) {
    struct quire_view_config view = view_config(pair, r);
    struct quire_view_links links = {
        .kernels = pair->kernels,
        .collective = pair->collective,
        .peers = &pair->peers,
        .views = pair->views,
    };
    assert_int_equal(quire_view_create(env, &view, &links, &pair->views[r], NULL), QUIRE_OK);
    assert_int_equal(quire_stream_create(env, QUIRE_STREAM_INLINE, NULL, 0, &pair->streams[r], NULL), QUIRE_OK);
    quire_view_start(pair->views[r], pair->streams[r], NULL);
    quire_collective_attach(pair->collective, r, pair->streams[r]);
  }
  pair->plan = calloc(1, (size_t)quire_step_plan_bytes(&limits));
  assert_non_null(pair->plan);
  for (int32_t i = 0; i < TOKENS; i++) {
    pair->tokens[i] = 100 + i;
  }
}

static void close_pair(struct pair *pair) {
  for (int32_t r = 0; r < RANKS; r++) {
    quire_view_destroy(pair->views[r]);
    quire_collective_attach(pair->collective, r, NULL);
    quire_stream_destroy(pair->streams[r]);
  }
  for (int32_t r = 0; r < RANKS; r++) {
    quire_bank_destroy(pair->banks[r]);
  }
  quire_collective_destroy(pair->collective);
  free(pair->plan);
}

/* What element c of a row of a part is. */
static float value_of(int32_t draft, int32_t index_key, int32_t position, int32_t c) {
  return (float)(draft * 1000 + index_key * 2000 + position) + (float)c / 1024.0f;
}

static enum quire_status put(struct quire_view *view, bool draft, struct quire_error *error) {
  const struct quire_view_batch *batch = draft ? quire_view_draft_batch(view) : quire_view_target_batch(view);
  static _Thread_local float latent[ROWS_MAX][QUIRE_KV_DIM], key[ROWS_MAX][QUIRE_INDEX_DIM];
  for (int32_t i = 0; i < batch->m; i++) {
    int32_t position = batch->limits[i] - 1;
    for (int32_t c = 0; c < QUIRE_KV_DIM; c++) {
      latent[i][c] = value_of(draft, 0, position, c);
    }
    for (int32_t c = 0; c < QUIRE_INDEX_DIM; c++) {
      key[i][c] = value_of(draft, 1, position, c);
    }
  }
  struct quire_view_put rows = {
      .model = draft ? QUIRE_PART_DRAFT : QUIRE_PART_TARGET,
      .layer = 0,
      .latent = latent[0],
      .rope = latent[0] + QUIRE_LATENT_DIM,
      .key = key[0],
      .latent_ld = QUIRE_KV_DIM,
      .rope_ld = QUIRE_KV_DIM,
      .key_ld = QUIRE_INDEX_DIM,
  };
  return quire_view_put_rows(view, &rows, error);
}

struct rank_job {
  struct pair *pair;
  int32_t rank;
};

static void *run_rank(void *context) {
  const struct rank_job *job = context;
  struct pair *pair = job->pair;
  struct quire_view *view = pair->views[job->rank];
  struct quire_error *error = &pair->error[job->rank];
  uint32_t control = quire_kernels_enter();
  enum quire_status status = quire_view_begin(view, pair->plan, error);
  if (status == QUIRE_OK) {
    status = put(view, false, error);
  }
  if (status == QUIRE_OK) {
    status = put(view, true, error);
  }
  if (status == QUIRE_OK) {
    status = quire_view_fence(view, error);
  } else {
    quire_collective_abort(pair->collective, job->rank);
  }
  pair->status[job->rank] = status;
  quire_kernels_leave(control);
  return NULL;
}

/* One step of one entry on both ranks. */
static void run_step(struct pair *pair, const struct quire_step_entry *entry) {
  pthread_t threads[RANKS];
  struct rank_job jobs[RANKS];
  int32_t first = entry->begin > 0 ? entry->begin - 1 : 0;
  quire_step_plan_reset(pair->plan, ++pair->epoch, RANKS, QUIRE_SPLIT_ZIGZAG);
  assert_true(quire_step_plan_add(pair->plan, &limits, entry, pair->tokens + first, table + entry->append_begin));
  memset(pair->error, 0, sizeof pair->error);
  for (int32_t r = 0; r < RANKS; r++) {
    jobs[r] = (struct rank_job){pair, r};
    assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &jobs[r]), 0);
  }
  for (int32_t r = 0; r < RANKS; r++) {
    pthread_join(threads[r], NULL);
  }
}

static void run_good_step(struct pair *pair, const struct quire_step_entry *entry) {
  run_step(pair, entry);
  for (int32_t r = 0; r < RANKS; r++) {
    if (pair->status[r] != QUIRE_OK) {
      fail_msg("rank %d: %s", r, pair->error[r].text);
    }
  }
}

static struct quire_step_entry prefill_of(int32_t begin, int32_t end, int32_t carry_rank, int32_t recompute_rank) {
  int32_t announced = (begin + PAGE - 1) / PAGE, pages = (end + PAGE - 1) / PAGE;
  return (struct quire_step_entry){
      .kind = QUIRE_ENTRY_PREFILL,
      .begin = begin,
      .end = end,
      .prefix_end = begin,
      .home = -1,
      .carry_rank = carry_rank,
      .recompute_rank = recompute_rank,
      .commit_rank = -1,
      .append_begin = announced,
      .append_count = pages - announced,
      .next_token = -1,
  };
}

static struct quire_step_entry decode_of(int32_t position, int32_t paged, int32_t home) {
  struct quire_step_entry entry = prefill_of(position, position + 1, home, -1);
  entry.kind = QUIRE_ENTRY_DECODE;
  entry.prefix_end = paged;
  entry.home = home;
  if (paged < position) {
    entry.commit_rank = home;
    entry.commit_begin = paged;
    entry.commit_end = position;
  }
  return entry;
}

/* A row of a part as its owner has it; NULL elements: poison. */
static const float *stored(const struct pair *pair, int32_t part, int32_t position) {
  quire_page page = table[position / PAGE];
  const uint8_t *base = quire_bank_page(pair->banks[quire_page_sender(&pair->geometry, page).v], part,
                                        quire_page_local(&pair->geometry, page));
  const struct quire_part *p = &pair->parts.part[part];
  assert_non_null(base);
  return (const float *)(const void *)(base + p->piece[0].offset + position % PAGE * (int64_t)p->piece[0].row_bytes);
}

static void expect_row(const struct pair *pair, int32_t position) {
  for (int32_t part = 0; part < pair->parts.count; part++) {
    int32_t draft = pair->parts.part[part].model == QUIRE_PART_DRAFT;
    int32_t index_key = pair->parts.part[part].kind == QUIRE_PART_INDEX_KEY;
    const float *row = stored(pair, part, position);
    for (int32_t c = 0; c < pair->parts.part[part].row_bytes / 4; c++) {
      float want = draft && position == 0 ? 0.0f : value_of(draft, index_key, position, c);
      if (row[c] != want) {
        fail_msg("part %d position %d element %d is %g, not %g", part, position, c, (double)row[c], (double)want);
      }
    }
  }
}

static void expect_poison(const struct pair *pair, int32_t position) {
  for (int32_t part = 0; part < pair->parts.count; part++) {
    const uint8_t *row = (const uint8_t *)stored(pair, part, position);
    for (int32_t i = 0; i < pair->parts.part[part].row_bytes; i++) {
      assert_int_equal(row[i], 0xFF);
    }
  }
}

/* Every rank gets its share of the rows, in order, and a draft row for the position behind each. */
static void expect_batches(const struct pair *pair, const struct quire_step_entry *entry) {
  int32_t targets = 0, drafts = 0;
  for (int32_t r = 0; r < RANKS; r++) {
    const struct quire_view_batch *t = quire_view_target_batch(pair->views[r]);
    const struct quire_view_batch *d = quire_view_draft_batch(pair->views[r]);
    bool recomputes = entry->recompute_rank == r;
    assert_int_equal(t->m, t->puts + (recomputes ? 1 : 0));
    assert_int_equal(d->m, d->puts);
    for (int32_t i = 0; i < t->m; i++) {
      assert_int_equal(t->tokens[i], 100 + t->positions[i]);
      assert_int_equal(t->limits[i], t->positions[i] + 1);
      assert_int_equal(t->entries[i], 0);
      assert_true(i >= t->puts || i == 0 || t->positions[i] > t->positions[i - 1]);
      assert_true(i >= t->puts || quire_step_entry_producer(pair->plan, entry, t->positions[i]) == r);
    }
    assert_true(!recomputes || t->positions[t->m - 1] == entry->begin - 1);
    for (int32_t i = 0; i < d->m; i++) {
      int32_t slot = d->limits[i] - 1;
      assert_int_equal(d->tokens[i], 100 + slot);
      assert_int_equal(d->positions[i], slot - 1);
      if (d->hidden[i] >= 0) {
        assert_int_equal(t->positions[d->hidden[i]], slot - 1);
      } else {
        assert_int_equal(d->hidden[i], -1); /* carry of request 0 */
        assert_true(slot == entry->begin && entry->carry_rank == r);
      }
    }
    targets += t->puts;
    drafts += d->puts;
  }
  assert_int_equal(targets, entry->end - entry->begin);
  assert_int_equal(drafts, entry->end - (entry->begin > 0 ? entry->begin : 1));
}

static void prefill_rows_land_with_their_owners(void **unused) {
  (void)unused;
  struct pair pair;
  open_pair(&pair);
  struct quire_step_entry entry = prefill_of(0, 7, -1, -1);
  run_good_step(&pair, &entry);
  expect_batches(&pair, &entry);
  int32_t last = quire_step_entry_producer(pair.plan, &entry, 6);
  for (int32_t i = 0; i < 7; i++) {
    expect_row(&pair, i);
  }
  expect_poison(&pair, 7);
  entry = prefill_of(7, 21, last, -1); /* from the middle of a page, with the carried hidden state */
  run_good_step(&pair, &entry);
  expect_batches(&pair, &entry);
  entry = prefill_of(21, 22, -1, 0); /* one row, and position 20 again for its hidden state */
  run_good_step(&pair, &entry);
  expect_batches(&pair, &entry);
  for (int32_t i = 0; i < 22; i++) {
    expect_row(&pair, i);
  }
  expect_poison(&pair, 22);
  /* a page that was never announced was never touched */
  for (int32_t part = 0; part < pair.parts.count; part++) {
    const uint8_t *page = quire_bank_page(pair.banks[1], part, quire_page_local(&pair.geometry, (quire_page){5}));
    for (int32_t i = 0; i < pair.parts.part[part].page_bytes; i++) {
      assert_int_equal(page[i], 0xFF);
    }
  }
  close_pair(&pair);
}

/* A decoded row stays in the ring of its home, two rows long, until the next step's commit, over page borders. */
static void decode_rows_wait_for_their_commit(void **unused) {
  (void)unused;
  for (int32_t home = 0; home < RANKS; home++) {
    struct pair pair;
    open_pair(&pair);
    int32_t length = home == 0 ? 6 : 5;
    struct quire_step_entry entry = prefill_of(0, length, -1, -1);
    run_good_step(&pair, &entry);
    /* the home of a decode is where the last hidden state is; here the test says so */
    for (int32_t position = length; position < 19; position++) {
      entry = decode_of(position, position > length ? position - 1 : position, home);
      run_good_step(&pair, &entry);
      expect_batches(&pair, &entry);
      for (int32_t i = 0; i < position; i++) {
        expect_row(&pair, i);
      }
      expect_poison(&pair, position);
    }
    entry = decode_of(18, 18, home);
    entry.begin = entry.end = 19;
    entry.carry_rank = -1;
    entry.commit_rank = home;
    entry.commit_begin = 18;
    entry.commit_end = 19;
    entry.append_begin = 5;
    entry.append_count = 0;
    run_good_step(&pair, &entry);
    expect_row(&pair, 18);
    expect_poison(&pair, 19);
    close_pair(&pair);
  }
}

/* A row sees [0, its position], a draft row [1, its slot]; with a top-k that nothing reaches the list is all of it. */
static void lists_end_at_the_row(void **unused) {
  (void)unused;
  struct pair pair;
  open_pair(&pair);
  struct quire_step_entry entry = prefill_of(0, 9, -1, -1);
  run_good_step(&pair, &entry);
  entry = prefill_of(9, 20, -1, 1);
  run_good_step(&pair, &entry);
  uint32_t control = quire_kernels_enter();
  for (int32_t r = 0; r < RANKS; r++) {
    for (int draft = 0; draft < 2; draft++) {
      struct quire_view *view = pair.views[r];
      const struct quire_view_batch *batch = draft ? quire_view_draft_batch(view) : quire_view_target_batch(view);
      static float q[ROWS_MAX][QUIRE_INDEX_DIM], w[ROWS_MAX];
      quire_view_select(view, draft ? QUIRE_PART_DRAFT : QUIRE_PART_TARGET, 0, q[0], w);
      for (int32_t i = 0; i < batch->m; i++) {
        const int32_t *list = quire_view_indices(view) + (int64_t)i * TOPK;
        int32_t count = quire_view_counts(view)[i];
        assert_int_equal(count, batch->limits[i] - draft);
        for (int32_t k = 0; k < TOPK; k++) {
          assert_int_equal(list[k], k < count ? k + draft : -1);
        }
      }
    }
  }
  quire_kernels_leave(control);
  close_pair(&pair);
}

static void expect_refused(struct pair *pair, const char *word) {
  for (int32_t r = 0; r < RANKS; r++) {
    assert_true(pair->status[r] == QUIRE_ERR_RANK || pair->status[r] == QUIRE_ERR_ABORTED);
  }
  int32_t r = pair->status[0] == QUIRE_ERR_RANK ? 0 : 1;
  assert_int_equal(pair->status[r], QUIRE_ERR_RANK);
  if (strstr(pair->error[r].text, word) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", pair->error[r].text, word);
  }
}

/* A prefix that is being written in this epoch, was written in one that never had its fence, or was never written. */
static void pages_without_a_fence_are_not_read(void **unused) {
  (void)unused;
  for (int what = 0; what < 3; what++) {
    struct pair pair;
    open_pair(&pair);
    struct quire_step_entry entry = prefill_of(0, 8, -1, -1);
    if (what < 2) {
      run_good_step(&pair, &entry);
      struct quire_bank *owner = pair.banks[quire_page_sender(&pair.geometry, table[1]).v];
      int64_t epoch = (int64_t)pair.epoch + 1;
      pair.epoch += what == 1 ? 1 : 0; /* an epoch that nobody fenced */
      quire_bank_mark_written(owner, quire_page_local(&pair.geometry, table[1]), epoch, 2);
    }
    entry = prefill_of(8, 12, -1, 0);
    entry.append_begin = what < 2 ? entry.append_begin : 0;
    entry.append_count = what < 2 ? entry.append_count : 3;
    run_step(&pair, &entry);
    expect_refused(&pair, what < 2 ? "page 6 (owner 0), target index key layer 0, row"
                                   : "page 3 (owner 1), target index key layer 0, row");
    close_pair(&pair);
  }
}

/* A chunk may begin in the middle of a page that an earlier step wrote: its own mark does not close the page's head. */
static void a_page_may_be_read_up_to_what_is_being_written(void **unused) {
  (void)unused;
  struct pair pair;
  open_pair(&pair);
  struct quire_step_entry entry = prefill_of(0, 6, -1, -1);
  run_good_step(&pair, &entry);
  quire_bank_mark_written(pair.banks[0], quire_page_local(&pair.geometry, table[1]), (int64_t)pair.epoch + 1, 2);
  entry = prefill_of(6, 10, -1, 0);
  run_good_step(&pair, &entry);
  for (int32_t i = 0; i < 10; i++) {
    expect_row(&pair, i);
  }
  close_pair(&pair);
}

/* The views of a pair again, with other room. */
static void remake_views(struct pair *pair, enum quire_view_mode mode, int32_t rows_max, int32_t gather_pages_max) {
  for (int32_t r = 0; r < RANKS; r++) {
    struct quire_view_config config = view_config(pair, r);
    struct quire_view_links links = {pair->kernels, pair->collective, &pair->peers, pair->views};
    config.mode = mode;
    config.rows_max = rows_max;
    config.gather_pages_max = gather_pages_max;
    quire_view_destroy(pair->views[r]);
    assert_int_equal(quire_view_create(quire_env_default(), &config, &links, &pair->views[r], NULL), QUIRE_OK);
    quire_view_start(pair->views[r], pair->streams[r], mode == QUIRE_VIEW_GATHER ? pair->streams[r] : NULL);
  }
}

/* A plan within its own limits may have more rows of a rank than its view: rows to write, a row to recompute, and draft
 * rows, of which a rank has one more than of the others when it has the carried state. */
static void more_rows_than_a_view_has_room_for_are_refused(void **unused) {
  (void)unused;
  for (int what = 0; what < 3; what++) {
    struct pair pair;
    open_pair(&pair);
    remake_views(&pair, QUIRE_VIEW_PEER, what == 0 ? 3 : 4, 0);
    struct quire_step_entry entry = prefill_of(0, 8, -1, -1); /* four rows each */
    if (what == 0) {
      run_step(&pair, &entry);
      expect_refused(&pair, "its view has room for, 3");
    } else {
      run_good_step(&pair, &entry);
      entry = what == 1 ? prefill_of(8, 16, -1, 0) : prefill_of(8, 16, 1, -1);
      run_step(&pair, &entry);
      expect_refused(&pair, what == 1 ? "more rows of rank 0" : "more rows of rank 1");
    }
    close_pair(&pair);
  }
}

static void more_pages_than_gather_has_room_for_are_refused(void **unused) {
  (void)unused;
  for (int32_t room = 1; room <= 2; room++) {
    struct pair pair;
    open_pair(&pair);
    remake_views(&pair, QUIRE_VIEW_GATHER, ROWS_MAX, room);
    struct quire_step_entry entry = prefill_of(0, 8, -1, -1);
    run_good_step(&pair, &entry);
    entry = prefill_of(8, 12, 0, -1); /* behind two pages */
    if (room == 2) {
      run_good_step(&pair, &entry);
    } else {
      run_step(&pair, &entry);
      expect_refused(&pair, "more pages than gather");
    }
    close_pair(&pair);
  }
}

static void a_plan_that_contradicts_itself_is_refused(void **unused) {
  (void)unused;
  struct pair pair;
  open_pair(&pair);
  struct quire_step_entry entry = prefill_of(0, 4, -1, -1);
  entry.home = 1;
  run_step(&pair, &entry);
  expect_refused(&pair, "prefill");
  close_pair(&pair);
  open_pair(&pair);
  entry = prefill_of(0, 4, -1, -1);
  run_good_step(&pair, &entry);
  entry = decode_of(4, 4, 0);
  entry.commit_rank = 0;
  entry.commit_begin = 4;
  entry.commit_end = 1000000;
  run_step(&pair, &entry);
  expect_refused(&pair, "commit");
  close_pair(&pair);
  open_pair(&pair); /* all of it lies before the row, but the local segment has two rows */
  entry = prefill_of(0, 4, -1, -1);
  run_good_step(&pair, &entry);
  entry = decode_of(4, 4, 0);
  entry.commit_rank = 0;
  entry.commit_begin = 1;
  entry.commit_end = 4;
  run_step(&pair, &entry);
  expect_refused(&pair, "a commit has more rows than the local segment");
  close_pair(&pair);
}

static void modes_and_sharing(void **unused) {
  (void)unused;
  static const struct {
    enum quire_view_mode mode;
    int32_t ranks, storage_ranks;
    bool can;
  } cases[] = {
      {QUIRE_VIEW_LOCAL, 1, 1, true},   {QUIRE_VIEW_LOCAL, 4, 1, true},  {QUIRE_VIEW_LOCAL, 4, 4, false},
      {QUIRE_VIEW_PEER, 4, 4, true},    {QUIRE_VIEW_GATHER, 4, 4, true}, {QUIRE_VIEW_PEER, 4, 1, false},
      {QUIRE_VIEW_GATHER, 4, 1, false}, {QUIRE_VIEW_PEER, 1, 1, true},   {QUIRE_VIEW_GATHER, 1, 1, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct quire_geometry geometry = {PAGE, cases[i].ranks, cases[i].storage_ranks, POOL};
    const char *why = NULL;
    assert_int_equal(quire_view_can(cases[i].mode, &geometry, &why), cases[i].can);
    assert_int_equal(why == NULL, cases[i].can);
    assert_int_equal(quire_view_can(cases[i].mode, &geometry, NULL), cases[i].can);
  }
}

/* Numbers that are none of a view's end its creation with a reason, and not the program. */
static void numbers_that_make_no_view_are_refused(void **unused) {
  (void)unused;
  struct pair pair;
  open_pair(&pair);
  const struct quire_view_config good = view_config(&pair, 0);
  struct quire_view_config bad[14];
  size_t n = 0;
  for (; n < sizeof bad / sizeof bad[0]; n++) {
    bad[n] = good;
  }
  bad[0].geometry.storage_ranks = 3;
  bad[1].geometry.page_tokens = 0;
  bad[2].rank = RANKS;
  bad[3].rank = -1;
  bad[4].rows_max = 0;
  bad[5].fresh_max = -1;
  bad[6].requests_max = 0;
  bad[7].local_rows = 1;
  bad[8].request_pages_max = INT32_MAX / PAGE + 1;
  bad[9].limits.entries_max = INT32_MAX / 10;
  bad[10].topk = QUIRE_TOPK_MAX + 1;
  bad[11].topk = 0;
  bad[12].heads = 0;
  bad[13].index_heads = 0;
  struct quire_view_links links = {pair.kernels, pair.collective, &pair.peers, pair.views};
  for (size_t i = 0; i < n; i++) {
    struct quire_view *view = NULL;
    struct quire_error error = {0};
    assert_int_equal(quire_view_create(quire_env_default(), &bad[i], &links, &view, &error), QUIRE_ERR_UNSUPPORTED);
    assert_true(view == NULL && error.text[0] != '\0');
  }
  close_pair(&pair);
}

static enum quire_status create_one(void *context, const struct quire_env *env) {
  const struct pair *pair = context;
  struct quire_view *view = NULL, *views[RANKS] = {NULL, NULL};
  struct quire_view_config config = view_config(pair, 0);
  struct quire_view_links links = {pair->kernels, pair->collective, &pair->peers, views};
  enum quire_status status = quire_view_create(env, &config, &links, &view, NULL);
  assert_int_equal(view != NULL, status == QUIRE_OK);
  quire_view_destroy(view);
  return status;
}

static void every_allocation_may_fail(void **unused) {
  (void)unused;
  struct pair pair;
  open_pair(&pair);
  assert_true(fail_env_sweep(create_one, &pair) > 15);
  close_pair(&pair);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(modes_and_sharing),
      cmocka_unit_test(prefill_rows_land_with_their_owners),
      cmocka_unit_test(decode_rows_wait_for_their_commit),
      cmocka_unit_test(lists_end_at_the_row),
      cmocka_unit_test(pages_without_a_fence_are_not_read),
      cmocka_unit_test(a_page_may_be_read_up_to_what_is_being_written),
      cmocka_unit_test(a_plan_that_contradicts_itself_is_refused),
      cmocka_unit_test(more_rows_than_a_view_has_room_for_are_refused),
      cmocka_unit_test(more_pages_than_gather_has_room_for_are_refused),
      cmocka_unit_test(numbers_that_make_no_view_are_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
