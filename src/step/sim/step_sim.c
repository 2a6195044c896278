#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/rng.h"
#include "layout/carve.h"
#include "step/sim/sim.h"
#include "step/step_private.h"

/* A row that is kept: of a page, or of a local segment. */
struct row {
  uint64_t state;
  int32_t token;
  int32_t position; /* in its request; -1: never written */
};

/* Who touched a page in a step. */
struct page_mark {
  uint64_t written; /* epoch of the last write */
  uint64_t read;    /* epoch of the last read */
  int32_t rows;     /* rows [0, rows) were read in that epoch */
};

struct open_command {
  struct quire_ack ack;
  uint64_t due; /* step from which on it is answered */
};

struct sim_executor {
  struct quire_step_executor front;
  const struct quire_env *env;
  size_t bytes;
  struct quire_step_config config;
  struct quire_sim_config sim;
  const struct quire_step_plan *plan; /* in flight */
  struct quire_step_ack *ack;
  uint64_t *seeds; /* [requests_max] that a request draws with */
  bool *plain;     /* [requests_max] may it go on drawing so without a record? */
  uint64_t epoch;
  bool failed;
  /* verify */
  struct row *rows;        /* [pages][page_tokens] */
  struct page_mark *marks; /* [pages] */
  struct row *local;       /* [ranks][requests_max][local_rows] */
  quire_page *tables;      /* [requests_max][request_pages_max] */
  /* commands, rings by rank */
  struct open_command *commands; /* [ranks][QUIRE_BANK_QUEUE_MAX] */
  int32_t first[QUIRE_RANKS_MAX], count[QUIRE_RANKS_MAX];
};

uint64_t quire_sim_state(uint64_t before, int32_t token) { return quire_mix64(before * 3 + (uint64_t)token + 1); }

int32_t quire_sim_token(uint64_t state, uint64_t seed, int32_t position, int32_t vocab) {
  uint64_t mixed = quire_mix64(state ^ quire_mix64(seed + (uint64_t)position));
  return (int32_t)((mixed >> 32) * (uint64_t)vocab >> 32);
}

void quire_sim_model(int32_t vocab, int32_t positions, struct quire_model_config *config_out,
                     struct quire_model_weights *weights_out) {
  *config_out = (struct quire_model_config){
      .family = QUIRE_FAMILY_DEEPSEEK_V32,
      .hidden = 64,
      .vocab = vocab,
      .layers = 1,
      .positions = positions,
      .heads = 1,
      .index_heads = 1,
      .index_topk = 64,
      .mtp_layers = 1,
      .bos = -1,
      .pad = -1,
  };
  config_out->owns_indexer[0] = true;
  config_out->owns_indexer[1] = true;
  *weights_out = (struct quire_model_weights){.has_mtp = true, .identity = {1, 2}};
}

/* --- creation --- */

static struct sim_executor *carve_sim(const struct quire_step_config *config, struct quire_carve *carve) {
  bool verify = config->sim != NULL && config->sim->verify;
  int64_t pages = verify ? config->geometry.pages : 0, requests = verify ? config->requests_max : 0;
  int32_t ranks = config->geometry.ranks;
  struct sim_executor *x = quire_carve(carve, 1, sizeof *x);
  struct quire_step_ack *ack = quire_carve(carve, 1, (size_t)quire_step_ack_bytes(&config->limits));
  uint64_t *seeds = quire_carve(carve, config->requests_max, sizeof *seeds);
  bool *plain = quire_carve(carve, config->requests_max, sizeof *plain);
  struct row *rows = quire_carve(carve, pages * config->geometry.page_tokens, sizeof *rows);
  struct page_mark *marks = quire_carve(carve, pages, sizeof *marks);
  struct row *local = quire_carve(carve, ranks * requests * config->local_rows, sizeof *local);
  quire_page *tables = quire_carve(carve, requests * config->request_pages_max, sizeof *tables);
  struct open_command *commands = quire_carve(carve, (int64_t)ranks * QUIRE_BANK_QUEUE_MAX, sizeof *commands);
  if (x != NULL) {
    x->ack = ack;
    x->seeds = seeds;
    x->plain = plain;
    x->rows = rows;
    x->marks = marks;
    x->local = local;
    x->tables = tables;
    x->commands = commands;
  }
  return x;
}

static struct quire_step_memory sim_bytes(const struct quire_step_config *config) {
  struct quire_carve carve = {NULL, 0};
  carve_sim(config, &carve);
  return (struct quire_step_memory){.shared = (int64_t)carve.used};
}

static enum quire_status sim_create(const struct quire_env *env, const struct quire_step_config *config,
                                    struct quire_step_executor **executor_out, struct quire_error *error_out) {
  size_t bytes = (size_t)sim_bytes(config).shared;
  struct quire_carve carve = {quire_env_zalloc(env, 1, bytes), 0};
  if (carve.base == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "no memory for %zu bytes of simulated ranks", bytes);
  }
  struct sim_executor *x = carve_sim(config, &carve);
  x->front.ops = &quire_step_sim_ops;
  x->env = env;
  x->bytes = bytes;
  x->config = *config;
  x->sim = config->sim != NULL ? *config->sim : (struct quire_sim_config){0};
  int64_t rows = x->sim.verify ? (int64_t)config->geometry.pages * config->geometry.page_tokens : 0;
  for (int64_t i = 0; i < rows; i++) {
    x->rows[i].position = -1;
  }
  *executor_out = &x->front;
  return QUIRE_OK;
}

static void sim_destroy(struct quire_step_executor *executor) {
  struct sim_executor *x = (struct sim_executor *)executor;
  quire_env_free(x->env, x, 1, x->bytes);
}

/* --- one step --- */

static enum quire_status fault(struct sim_executor *x, const struct quire_step_entry *e, const char *text,
                               int32_t position) {
  return quire_error_set(&x->ack->error, QUIRE_ERR_RANK, "sim",
                         "step %llu, request %d, rows %d to %d: %s (position %d)", (unsigned long long)x->plan->epoch,
                         e->request, e->begin, e->end, text, position);
}

static quire_page *table_of(const struct sim_executor *x, int32_t request) {
  return x->tables + (int64_t)request * x->config.request_pages_max;
}

static struct row *page_row(const struct sim_executor *x, quire_page page, int32_t position) {
  int32_t page_tokens = x->config.geometry.page_tokens;
  return &x->rows[(int64_t)page.v * page_tokens + position % page_tokens];
}

static struct row *local_row(const struct sim_executor *x, int32_t rank, int32_t request, int32_t position) {
  int64_t ring = (int64_t)rank * x->config.requests_max + request;
  return &x->local[ring * x->config.local_rows + position % x->config.local_rows];
}

/* The row of a position that the entry may read: from its page, or from the local segment of its home. */
static const struct row *read_row(const struct sim_executor *x, const struct quire_step_entry *e, int32_t position) {
  return position < e->prefix_end
             ? page_row(x, table_of(x, e->request)[position / x->config.geometry.page_tokens], position)
             : local_row(x, e->home, e->request, position);
}

static enum quire_status append_pages(struct sim_executor *x, const struct quire_step_entry *e) {
  const quire_page *pages = quire_step_plan_pages(x->plan, &x->config.limits);
  if (e->request >= x->config.requests_max || e->append_begin + e->append_count > x->config.request_pages_max) {
    return fault(x, e, "its pages are beyond this worker", e->append_begin);
  }
  for (int32_t i = 0; i < e->append_count; i++) {
    quire_page page = pages[e->append_first + i];
    if (page.v < 0 || page.v >= x->config.geometry.pages) {
      return fault(x, e, "a page is none of the worker's", page.v);
    }
    table_of(x, e->request)[e->append_begin + i] = page;
  }
  return QUIRE_OK;
}

/* The prefix: every page written before this step, its borders following from each other, one row inside at random. */
static enum quire_status check_prefix(struct sim_executor *x, const struct quire_step_entry *e, uint64_t *random) {
  int32_t page_tokens = x->config.geometry.page_tokens;
  const quire_page *table = table_of(x, e->request);
  uint64_t before = QUIRE_SIM_START;
  for (int32_t first = 0; first < e->prefix_end; first += page_tokens) {
    int32_t rows = e->prefix_end - first < page_tokens ? e->prefix_end - first : page_tokens;
    quire_page page = table[first / page_tokens];
    struct page_mark *mark = &x->marks[page.v];
    int32_t inside = (int32_t)quire_splitmix64_below(random, (uint64_t)rows);
    const struct row *begin = page_row(x, page, 0), *last = page_row(x, page, rows - 1);
    const struct row *row = page_row(x, page, inside);
    if (begin->position != first || row->position != first + inside || last->position != first + rows - 1) {
      return fault(x, e, "a page of the prefix was not written for it", first);
    }
    if (begin->state != quire_sim_state(before, begin->token) ||
        (inside > 0 && row->state != quire_sim_state(row[-1].state, row->token))) {
      return fault(x, e, "a page of the prefix does not follow from the one before it", first);
    }
    mark->rows = mark->read == x->plan->epoch && mark->rows > rows ? mark->rows : rows;
    mark->read = x->plan->epoch;
    before = last->state;
  }
  return QUIRE_OK;
}

/* What an entry reads, before anybody writes: prefix, local rows, the row before its first. */
static enum quire_status check_reads(struct sim_executor *x, const struct quire_step_entry *e, uint64_t *random) {
  enum quire_status status = check_prefix(x, e, random);
  if (status != QUIRE_OK || e->begin == 0 || e->end == e->begin) {
    return status;
  }
  const struct row *before = read_row(x, e, e->begin - 1);
  int32_t token = quire_step_entry_token(x->plan, &x->config.limits, e, e->begin - 1);
  if (before->position != e->begin - 1 || before->token != token) {
    return fault(x, e, "the row before it is another's", e->begin - 1);
  }
  if (e->carry_rank < 0 && e->recompute_rank < 0) {
    return fault(x, e, "nobody has the hidden state of the row before it", e->begin - 1);
  }
  return QUIRE_OK;
}

static enum quire_status write_page_row(struct sim_executor *x, const struct quire_step_entry *e, int32_t position,
                                        struct row row) {
  int32_t page_tokens = x->config.geometry.page_tokens;
  quire_page page = table_of(x, e->request)[position / page_tokens];
  struct page_mark *mark = &x->marks[page.v];
  if (mark->read == x->plan->epoch && position % page_tokens < mark->rows) {
    return fault(x, e, "it writes a row that is read in the same step", position);
  }
  *page_row(x, page, position) = row;
  mark->written = x->plan->epoch;
  return QUIRE_OK;
}

static enum quire_status commit_rows(struct sim_executor *x, const struct quire_step_entry *e) {
  for (int32_t position = e->commit_begin; position < e->commit_end; position++) {
    const struct row *row = local_row(x, e->commit_rank, e->request, position);
    if (row->position != position) {
      return fault(x, e, "it commits a row that its home does not have", position);
    }
    enum quire_status status = write_page_row(x, e, position, *row);
    if (status != QUIRE_OK) {
      return status;
    }
  }
  return QUIRE_OK;
}

/* Computes the rows of an entry and draws. */
static enum quire_status compute_rows(struct sim_executor *x, const struct quire_step_entry *e, uint64_t *state_out) {
  uint64_t state = e->begin > 0 ? read_row(x, e, e->begin - 1)->state : QUIRE_SIM_START;
  for (int32_t position = e->begin; position < e->end; position++) {
    int32_t token = quire_step_entry_token(x->plan, &x->config.limits, e, position);
    state = quire_sim_state(state, token);
    struct row row = {state, token, position};
    if (e->kind == QUIRE_ENTRY_DECODE) {
      *local_row(x, e->home, e->request, position) = row;
      continue;
    }
    enum quire_status status = write_page_row(x, e, position, row);
    if (status != QUIRE_OK) {
      return status;
    }
  }
  *state_out = state;
  return QUIRE_OK;
}

/* A token that a bias forbids gives way to the next one that none does. */
static int32_t allowed_token(const struct sim_executor *x, const struct quire_step_sampling *record, int32_t token) {
  const struct quire_bias *biases = quire_step_sampling_biases(x->plan, &x->config.limits, record);
  for (int32_t i = 0; i < record->bias_count; i++) {
    if (biases[i].token == token && biases[i].value == quire_bias_forbids()) {
      token = (token + 1) % x->config.model->vocab;
      i = -1;
    }
  }
  return token;
}

/* Who draws without a record has drawn before, without lists and places that were that plan's. */
static enum quire_status check_draw(struct sim_executor *x, const struct quire_step_entry *e) {
  const struct quire_step_sampling *record = quire_step_entry_sampling(x->plan, &x->config.limits, e);
  if ((e->flags & QUIRE_ENTRY_SAMPLE) == 0) {
    return QUIRE_OK;
  }
  if (record != NULL) {
    x->plain[e->request] = record->bias_count == 0 && record->top_count == 0 && !quire_step_sampling_penalises(record);
  }
  return record != NULL || x->plain[e->request]
             ? QUIRE_OK
             : fault(x, e, "draws without a record, and its last was of that step alone", e->end);
}

static void draw(struct sim_executor *x, int32_t entry, uint64_t state) {
  const struct quire_step_entry *e = quire_step_plan_entries(x->plan) + entry;
  struct quire_step_result *result = quire_step_ack_results(x->ack) + entry;
  if ((e->flags & QUIRE_ENTRY_SAMPLE) != 0) {
    const struct quire_step_sampling *record = quire_step_entry_sampling(x->plan, &x->config.limits, e);
    x->seeds[e->request] = record != NULL ? record->seed : x->seeds[e->request];
    int32_t token = quire_sim_token(state, x->seeds[e->request], e->end, x->config.model->vocab);
    result->token = record != NULL && record->bias_count > 0 ? allowed_token(x, record, token) : token;
    result->logprob = -1.0f;
  }
  if (x->sim.nonfinite_per_million > 0) {
    uint64_t chance = quire_mix64(x->sim.seed ^ quire_mix64(x->plan->epoch * 65536 + (uint64_t)entry)) % 1000000;
    result->nonfinite = chance < (uint64_t)x->sim.nonfinite_per_million;
  }
}

/* Reads first, then commits, then new rows: as behind a fence. */
static enum quire_status run_verified(struct sim_executor *x) {
  const struct quire_step_entry *entries = quire_step_plan_entries(x->plan);
  uint64_t random = x->sim.seed ^ x->plan->epoch;
  enum quire_status status = QUIRE_OK;
  for (int32_t i = 0; status == QUIRE_OK && i < x->plan->entry_count; i++) {
    status = append_pages(x, &entries[i]);
  }
  for (int32_t i = 0; status == QUIRE_OK && i < x->plan->entry_count; i++) {
    status = check_reads(x, &entries[i], &random);
  }
  for (int32_t i = 0; status == QUIRE_OK && i < x->plan->entry_count; i++) {
    status = commit_rows(x, &entries[i]);
  }
  for (int32_t i = 0; status == QUIRE_OK && i < x->plan->entry_count; i++) {
    uint64_t state = 0;
    status = compute_rows(x, &entries[i], &state);
    status = status != QUIRE_OK ? status : check_draw(x, &entries[i]);
    draw(x, i, state);
  }
  return status;
}

/* Nothing is kept: the state is that of the last token alone. */
static void run_fast(struct sim_executor *x) {
  const struct quire_step_entry *entries = quire_step_plan_entries(x->plan);
  const int32_t *tokens = quire_step_plan_tokens(x->plan, &x->config.limits);
  for (int32_t i = 0; i < x->plan->entry_count; i++) {
    const struct quire_step_entry *e = &entries[i];
    if ((e->flags & QUIRE_ENTRY_SAMPLE) != 0) {
      int32_t last = e->token_first + e->end - (e->begin > 0 ? e->begin - 1 : 0) - 1;
      draw(x, i, quire_sim_state(0, tokens[last]));
    } else if (x->sim.nonfinite_per_million > 0) {
      draw(x, i, 0);
    }
  }
}

#define SPENT_STEPS 16

static enum quire_status sim_post(struct quire_step_executor *executor, const struct quire_step_plan *plan,
                                  struct quire_error *error_out) {
  struct sim_executor *x = (struct sim_executor *)executor;
  bool timed = x->sim.spent_ns != NULL && plan->epoch % SPENT_STEPS == 0;
  uint64_t before = timed ? x->sim.spent_clock(x->sim.spent_context) : 0,
           started = timed ? x->sim.spent_clock(x->sim.spent_context) : 0;
  if (x->plan != NULL || x->failed) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "step", "%s",
                           x->failed ? "a step failed; the worker must be created anew" : "a plan is in flight");
  }
  const char *why = NULL;
  if (x->sim.verify && !quire_step_plan_check(plan, &x->config.limits, &why)) {
    return quire_error_set(error_out, QUIRE_ERR_RANK, "step plan", "%s", why);
  }
  QUIRE_ASSERT(plan->epoch > x->epoch);
  x->plan = plan;
  x->epoch = plan->epoch;
  quire_step_ack_reset(x->ack, plan, &x->config.limits, 0);
  enum quire_status status = QUIRE_OK;
  if (x->sim.fail_epoch == plan->epoch) {
    status = quire_error_set(&x->ack->error, QUIRE_ERR_RANK, "sim", "rank 0 fails in step %llu, as it was told to",
                             (unsigned long long)plan->epoch);
  } else if (x->sim.verify) {
    status = run_verified(x);
  } else {
    run_fast(x);
  }
  x->ack->status = status;
  if (x->sim.clock_ns != NULL) {
    *x->sim.clock_ns += x->sim.step_ns + x->sim.row_ns * (uint64_t)plan->token_count;
  }
  if (timed) { /* without what reading the clock takes */
    uint64_t spent = x->sim.spent_clock(x->sim.spent_context) - started, reading = started - before;
    *x->sim.spent_ns += SPENT_STEPS * (spent > reading ? spent - reading : 0);
  }
  return QUIRE_OK;
}

static bool hangs(const struct sim_executor *x) {
  int from = x->sim.hang != NULL ? __atomic_load_n(x->sim.hang, __ATOMIC_ACQUIRE) : 0;
  return from > 0 && x->plan->epoch >= (uint64_t)from;
}

static struct quire_step_ack *sim_wait(struct quire_step_executor *executor) {
  struct sim_executor *x = (struct sim_executor *)executor;
  QUIRE_ASSERT(x->plan != NULL);
  while (hangs(x)) {
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  x->failed = x->ack->status != QUIRE_OK;
  x->plan = NULL;
  return x->ack;
}

static bool sim_alive(struct quire_step_executor *executor, struct quire_error *why_out) {
  struct sim_executor *x = (struct sim_executor *)executor;
  x->failed = x->failed || (x->sim.dead != NULL && __atomic_load_n(x->sim.dead, __ATOMIC_ACQUIRE) != 0);
  if (x->failed) {
    quire_error_set(why_out, QUIRE_ERR_RANK, "sim", "rank 0 has died, as it was told to");
  }
  return !x->failed;
}

/* --- commands --- */

static enum quire_status sim_submit(struct quire_step_executor *executor, int32_t rank,
                                    const struct quire_command *command, struct quire_error *error_out) {
  struct sim_executor *x = (struct sim_executor *)executor;
  const char *why = NULL;
  if (!quire_command_check(&x->config.geometry, command, &why) || command->kind != QUIRE_COMMAND_POISON) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "sim", "%s", why != NULL ? why : "it only poisons pages");
  }
  if (x->count[rank] == QUIRE_BANK_QUEUE_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_AGAIN, "sim", "the queue of rank %d is full", rank);
  }
  uint64_t random = quire_mix64(x->sim.seed ^ quire_mix64(command->op * QUIRE_RANKS_MAX + (uint64_t)rank));
  uint64_t late = x->sim.command_steps_max > 0 ? random % ((uint64_t)x->sim.command_steps_max + 1) : 0;
  bool fails = quire_mix64(random) % 1000000 < (uint64_t)x->sim.command_failures_per_million;
  int32_t at = (x->first[rank] + x->count[rank]++) % QUIRE_BANK_QUEUE_MAX;
  x->commands[(int64_t)rank * QUIRE_BANK_QUEUE_MAX + at] = (struct open_command){
      .ack = {.op = command->op, .epoch = command->epoch, .status = fails ? QUIRE_ERR_IO : QUIRE_OK, .rank = {rank}},
      .due = x->epoch + late,
  };
  if (x->sim.verify) {
    int32_t page_tokens = x->config.geometry.page_tokens;
    for (int32_t i = 0; i < page_tokens; i++) {
      page_row(x, command->page, i)->position = -1;
    }
  }
  return QUIRE_OK;
}

static int32_t sim_poll(struct quire_step_executor *executor, int32_t rank, struct quire_ack *acks_out, int32_t max) {
  struct sim_executor *x = (struct sim_executor *)executor;
  int32_t taken = 0;
  while (taken < max && x->count[rank] > 0) {
    const struct open_command *open = &x->commands[(int64_t)rank * QUIRE_BANK_QUEUE_MAX + x->first[rank]];
    if (open->due > x->epoch) {
      break;
    }
    acks_out[taken++] = open->ack;
    x->first[rank] = (x->first[rank] + 1) % QUIRE_BANK_QUEUE_MAX;
    x->count[rank]--;
  }
  return taken;
}

static int32_t sim_open_commands(struct quire_step_executor *executor, int32_t rank) {
  return ((struct sim_executor *)executor)->count[rank];
}

static void sim_drain(struct quire_step_executor *executor, int32_t rank) {
  struct sim_executor *x = (struct sim_executor *)executor;
  for (int32_t i = 0; i < x->count[rank]; i++) {
    x->commands[(int64_t)rank * QUIRE_BANK_QUEUE_MAX + (x->first[rank] + i) % QUIRE_BANK_QUEUE_MAX].due = 0;
  }
}

/* There is no memory behind these ranks, and no forward pass. */
static struct quire_bank *sim_bank(struct quire_step_executor *executor, int32_t rank) {
  (void)executor;
  (void)rank;
  return NULL;
}

static bool sim_tap(struct quire_step_executor *executor, int32_t rank, const struct quire_tap *tap) {
  (void)executor;
  (void)rank;
  (void)tap;
  return false;
}

const struct quire_step_ops quire_step_sim_ops = {
    .size = sizeof(struct quire_step_ops),
    .version = QUIRE_STEP_OPS_VERSION,
    .name = "sim",
    .bytes = sim_bytes,
    .create = sim_create,
    .destroy = sim_destroy,
    .post = sim_post,
    .wait = sim_wait,
    .alive = sim_alive,
    .submit = sim_submit,
    .poll = sim_poll,
    .open_commands = sim_open_commands,
    .drain = sim_drain,
    .bank = sim_bank,
    .tap = sim_tap,
};
