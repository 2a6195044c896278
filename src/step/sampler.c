#include "step/sampler.h"

#include <string.h>

#include "base/assert.h"

#define LISTED_NOTHING (-1)

struct quire_sampler {
  const struct quire_env *env;
  const struct quire_step_config *config;
  uint16_t *counts;                 /* [requests_max][vocab]; NULL: plans carry no lists */
  int32_t *listed;                  /* [requests_max] position up to which a slot has counted */
  struct quire_step_sampling *kept; /* [requests_max] of a slot's last entry that drew */
  struct quire_count_job *jobs;     /* [entries_max] */
  /* rows whose logits are wanted: [rows_max] */
  int32_t *rows, *tokens, *owners, *nonfinite, *top_counts;
  float *logprobs;
  struct quire_draw *draws;
  struct quire_top **tops;
  uint8_t *scratch;
};

static size_t rows_max(const struct quire_step_config *config) {
  int32_t n = config->limits.entries_max > config->logits_max ? config->limits.entries_max : config->logits_max;
  return (size_t)n;
}

static size_t counts_bytes(const struct quire_step_config *config) {
  return config->limits.lists_max > 0 ? (size_t)config->requests_max * (size_t)config->model->vocab * sizeof(uint16_t)
                                      : 0;
}

static size_t scratch_bytes(const struct quire_step_config *config) {
  return (size_t)quire_sample_scratch_bytes(config->model->vocab, config->threads_per_rank);
}

int64_t quire_sampler_bytes(const struct quire_step_config *config) {
  size_t row = 5 * sizeof(int32_t) + sizeof(float) + sizeof(struct quire_draw) + sizeof(struct quire_top *);
  return (int64_t)(sizeof(struct quire_sampler) + counts_bytes(config) +
                   (size_t)config->requests_max * (sizeof(int32_t) + sizeof(struct quire_step_sampling)) +
                   (size_t)config->limits.entries_max * sizeof(struct quire_count_job) + rows_max(config) * row +
                   scratch_bytes(config));
}

static bool create_arrays(struct quire_sampler *s) {
  const struct quire_step_config *config = s->config;
  size_t n = rows_max(config), counts = counts_bytes(config);
  if (counts > 0) {
    s->counts = quire_env_zalloc(s->env, 1, counts);
  }
  s->listed = quire_env_zalloc(s->env, (size_t)config->requests_max, sizeof *s->listed);
  s->kept = quire_env_zalloc(s->env, (size_t)config->requests_max, sizeof *s->kept);
  s->jobs = quire_env_zalloc(s->env, (size_t)config->limits.entries_max, sizeof *s->jobs);
  s->rows = quire_env_zalloc(s->env, n, sizeof *s->rows);
  s->tokens = quire_env_zalloc(s->env, n, sizeof *s->tokens);
  s->owners = quire_env_zalloc(s->env, n, sizeof *s->owners);
  s->nonfinite = quire_env_zalloc(s->env, n, sizeof *s->nonfinite);
  s->top_counts = quire_env_zalloc(s->env, n, sizeof *s->top_counts);
  s->logprobs = quire_env_zalloc(s->env, n, sizeof *s->logprobs);
  s->draws = quire_env_zalloc(s->env, n, sizeof *s->draws);
  s->tops = quire_env_zalloc(s->env, n, sizeof(struct quire_top *));
  s->scratch = quire_env_zalloc(s->env, 1, scratch_bytes(config));
  return (counts == 0 || s->counts != NULL) && s->listed != NULL && s->kept != NULL && s->jobs != NULL &&
         s->rows != NULL && s->tokens != NULL && s->owners != NULL && s->nonfinite != NULL && s->top_counts != NULL &&
         s->logprobs != NULL && s->draws != NULL && s->tops != NULL && s->scratch != NULL;
}

enum quire_status quire_sampler_create(const struct quire_env *env, const struct quire_step_config *config,
                                       struct quire_sampler **sampler_out, struct quire_error *error_out) {
  struct quire_sampler *s = quire_env_zalloc(env, 1, sizeof *s);
  if (s != NULL) {
    s->env = env;
    s->config = config;
  }
  if (s == NULL || !create_arrays(s)) {
    quire_sampler_destroy(s);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "sampler", "no memory for %lld bytes",
                           (long long)quire_sampler_bytes(config));
  }
  for (int32_t i = 0; i < config->requests_max; i++) {
    s->listed[i] = LISTED_NOTHING;
  }
  *sampler_out = s;
  return QUIRE_OK;
}

void quire_sampler_destroy(struct quire_sampler *s) {
  if (s == NULL) {
    return;
  }
  size_t n = rows_max(s->config);
  quire_env_free(s->env, s->counts, 1, counts_bytes(s->config));
  quire_env_free(s->env, s->listed, (size_t)s->config->requests_max, sizeof *s->listed);
  quire_env_free(s->env, s->kept, (size_t)s->config->requests_max, sizeof *s->kept);
  quire_env_free(s->env, s->jobs, (size_t)s->config->limits.entries_max, sizeof *s->jobs);
  quire_env_free(s->env, s->rows, n, sizeof *s->rows);
  quire_env_free(s->env, s->tokens, n, sizeof *s->tokens);
  quire_env_free(s->env, s->owners, n, sizeof *s->owners);
  quire_env_free(s->env, s->nonfinite, n, sizeof *s->nonfinite);
  quire_env_free(s->env, s->top_counts, n, sizeof *s->top_counts);
  quire_env_free(s->env, s->logprobs, n, sizeof *s->logprobs);
  quire_env_free(s->env, s->draws, n, sizeof *s->draws);
  quire_env_free(s->env, s->tops, n, sizeof(struct quire_top *));
  quire_env_free(s->env, s->scratch, 1, scratch_bytes(s->config));
  quire_env_free(s->env, s, 1, sizeof *s);
}

static uint16_t *counts_of(const struct quire_sampler *s, int32_t request) {
  return s->counts + (int64_t)request * s->config->model->vocab;
}

/* Keeps how requests draw, and appends what the plan brings to their token lists. */
static void take_records(struct quire_sampler *s, const struct quire_sampler_step *step) {
  const struct quire_step_limits *limits = &s->config->limits;
  int32_t count = 0;
  for (int32_t e = 0; e < step->plan->entry_count; e++) {
    const struct quire_step_entry *entry = quire_step_plan_entries(step->plan) + e;
    const struct quire_step_sampling *record = quire_step_entry_sampling(step->plan, limits, entry);
    if (record != NULL && (entry->flags & QUIRE_ENTRY_SAMPLE) != 0) {
      s->kept[entry->request] = *record;
    }
    if (record == NULL || !quire_step_sampling_penalises(record)) {
      continue;
    }
    bool reset = (record->flags & QUIRE_SAMPLING_LIST_RESET) != 0;
    QUIRE_ASSERT(s->counts != NULL && entry->request < s->config->requests_max);
    QUIRE_ASSERT(reset || s->listed[entry->request] == record->list_begin);
    s->listed[entry->request] = record->list_end;
    if (reset || record->list_end > record->list_begin) {
      s->jobs[count++] = (struct quire_count_job){
          .counts = counts_of(s, entry->request),
          .tokens = quire_step_sampling_list(step->plan, limits, record),
          .begin = record->list_begin,
          .end = record->list_end,
          .prompt_end = record->prompt_end,
          .reset = reset,
      };
    }
  }
  struct quire_count op = {s->jobs, count, s->config->model->vocab};
  s->config->kernels->count(step->stream, op);
}

static struct quire_draw draw_of(const struct quire_sampler *s, const struct quire_sampler_step *step,
                                 const struct quire_step_entry *entry) {
  const struct quire_step_limits *limits = &s->config->limits;
  const struct quire_step_sampling *record = &s->kept[entry->request];
  QUIRE_ASSERT(record->repetition_penalty != 0.0f); /* somebody said how */
  QUIRE_ASSERT(entry->sampling >= 0 ||
               (record->bias_count == 0 && record->top_count == 0 && !quire_step_sampling_penalises(record)));
  struct quire_draw draw = {
      .seed = record->seed,
      .position = entry->end,
      .temperature = record->temperature,
      .top_p = record->top_p,
      .min_p = record->min_p,
      .top_k = record->top_k,
      .presence_penalty = record->presence_penalty,
      .frequency_penalty = record->frequency_penalty,
      .repetition_penalty = record->repetition_penalty,
      .bias = quire_step_sampling_biases(step->plan, limits, record),
      .bias_count = record->bias_count,
      .tops_out = quire_step_ack_tops(step->ack, limits) + record->top_first,
      .top_count = record->top_count,
      .logprob = (record->flags & QUIRE_SAMPLING_LOGPROB) != 0,
  };
  if (quire_step_sampling_penalises(record)) {
    draw.counts = counts_of(s, entry->request);
    if (record->list_end < entry->end) {
      int32_t first = entry->begin > 0 ? entry->begin - 1 : 0;
      draw.extra = quire_step_plan_tokens(step->plan, limits) + entry->token_first + (record->list_end - first);
      draw.extra_count = entry->end - record->list_end;
    }
  }
  return draw;
}

static void draw_block(struct quire_sampler *s, const struct quire_sampler_step *step, int32_t count) {
  const float *logits = quire_forward_logits(step->forward, s->rows, count, false);
  int32_t vocab = s->config->model->vocab;
  struct quire_sample sample = {
      .logits = logits,
      .draws = s->draws,
      .tokens_out = s->tokens,
      .logprobs_out = s->logprobs,
      .scratch = s->scratch,
      .m = count,
      .vocab = vocab,
      .logits_ld = vocab,
  };
  struct quire_finite finite = {logits, s->nonfinite, count, vocab, vocab};
  memset(s->nonfinite, 0, (size_t)count * sizeof *s->nonfinite);
  s->config->kernels->finite(step->stream, finite);
  s->config->kernels->sample(step->stream, sample);
  quire_event_sync(quire_stream_record(step->stream));
  for (int32_t i = 0; i < count; i++) {
    struct quire_step_result *result = quire_step_ack_results(step->ack) + s->owners[i];
    result->token = s->tokens[i];
    result->logprob = s->logprobs[i];
    result->nonfinite |= s->nonfinite[i];
  }
}

static void draw(struct quire_sampler *s, const struct quire_sampler_step *step) {
  const struct quire_view_batch *batch = quire_view_target_batch(step->view);
  int32_t count = 0;
  for (int32_t i = 0; i < batch->puts; i++) {
    const struct quire_step_entry *entry = quire_step_plan_entries(step->plan) + batch->entries[i];
    if ((entry->flags & QUIRE_ENTRY_SAMPLE) == 0 || batch->positions[i] != entry->end - 1) {
      continue;
    }
    s->rows[count] = i;
    s->owners[count] = batch->entries[i];
    s->draws[count] = draw_of(s, step, entry);
    count++;
    if (count == s->config->logits_max) {
      draw_block(s, step, count);
      count = 0;
    }
  }
  if (count > 0) {
    draw_block(s, step, count);
  }
}

static void score_block(struct quire_sampler *s, const struct quire_sampler_step *step, int32_t count, bool draft) {
  int32_t vocab = s->config->model->vocab;
  struct quire_score score = {
      .logits = quire_forward_logits(step->forward, s->rows, count, draft),
      .targets = s->tokens,
      .logprobs_out = s->logprobs,
      .argmax_out = s->nonfinite,
      .top_counts = s->top_counts,
      .tops_out = s->tops,
      .m = count,
      .vocab = vocab,
      .logits_ld = vocab,
  };
  s->config->kernels->score(step->stream, score);
  quire_event_sync(quire_stream_record(step->stream));
  for (int32_t i = 0; i < count; i++) {
    struct quire_step_row *row = quire_step_ack_rows(step->ack, &s->config->limits) + s->owners[i];
    if (draft) {
      row->draft_argmax = s->nonfinite[i];
    } else {
      row->argmax = s->nonfinite[i];
      row->logprob = s->logprobs[i];
    }
  }
}

/* Index of a position's token in the plan. */
static int32_t token_index(const struct quire_step_entry *entry, int32_t position) {
  return entry->token_first + position - (entry->begin > 0 ? entry->begin - 1 : 0);
}

/* Row i of the batch becomes row `at` of the block that is scored next. */
static void score_row(struct quire_sampler *s, const struct quire_sampler_step *step, bool draft, int32_t i,
                      int32_t at) {
  const struct quire_view_batch *batch =
      draft ? quire_view_draft_batch(step->view) : quire_view_target_batch(step->view);
  const struct quire_step_limits *limits = &s->config->limits;
  const struct quire_step_entry *entry = quire_step_plan_entries(step->plan) + batch->entries[i];
  const struct quire_step_sampling *record = quire_step_entry_sampling(step->plan, limits, entry);
  int32_t slot = batch->limits[i] - 1;
  s->rows[at] = i;
  s->owners[at] = token_index(entry, slot);
  s->tokens[at] =
      slot + 1 < entry->end ? quire_step_entry_token(step->plan, limits, entry, slot + 1) : entry->next_token;
  s->top_counts[at] = draft || record == NULL ? 0 : record->row_top_count;
  if (s->top_counts[at] > 0) {
    s->tops[at] = quire_step_ack_tops(step->ack, limits) + record->row_top_first +
                  (int64_t)(slot - entry->begin) * record->row_top_count;
  }
}

/* Log-probability of the next token and argmax of every row of the entries with this flag. Draft rows are filed under
 * their slot: both predict the token behind it. */
static void score(struct quire_sampler *s, const struct quire_sampler_step *step, bool draft) {
  const struct quire_view_batch *batch =
      draft ? quire_view_draft_batch(step->view) : quire_view_target_batch(step->view);
  int32_t flag = draft ? QUIRE_ENTRY_DRAFT_FULL : QUIRE_ENTRY_SCORE, count = 0;
  for (int32_t i = 0; i < batch->puts; i++) {
    if ((quire_step_plan_entries(step->plan)[batch->entries[i]].flags & flag) == 0) {
      continue;
    }
    score_row(s, step, draft, i, count++);
    if (count == s->config->logits_max) {
      score_block(s, step, count, draft);
      count = 0;
    }
  }
  if (count > 0) {
    score_block(s, step, count, draft);
  }
}

void quire_sampler_run(struct quire_sampler *s, const struct quire_sampler_step *step, bool draft_full) {
  take_records(s, step);
  draw(s, step);
  score(s, step, false);
  if (draft_full) {
    score(s, step, true);
  }
}
