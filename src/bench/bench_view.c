/* What a view costs: two ranks that share a cache, one layer of DeepSeek-V3.2's stored rows.
 *
 *   gather    the copy of a layer's prefix into scratch, as a step starts it, beside a copy of as many bytes past the
 *             caches; by one rank alone, and by both at a time
 *   peer      select and attend over pages of which every other is the other rank's, beside the same over own pages
 *   overlap   with --model: gather jobs and layers of a prefill by the trace (--trace writes it)
 *
 * What sharing costs a whole prefill or decode is in the benches of those names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bank/bank.h"
#include "base/trace.h"
#include "bench/bench_cache.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_machine.h"
#include "bench/bench_shapes.h"
#include "view/view.h"

#define RANKS 2
#define CHUNK RANKS /* a row a rank */
#define TRACE_EVENTS (1 << 16)

/* Two ranks with their pages filled; every rank's streams are inline, so that a thread measures what it does itself. */
struct rig {
  struct quire_geometry geometry;
  struct quire_parts parts;
  struct quire_model_config model;
  struct quire_bank *bank[RANKS];
  struct quire_peer_map peers;
  struct quire_collective *collective;
  struct quire_view *view[RANKS];
  struct quire_stream *stream[RANKS], *copy[RANKS];
  struct quire_step_limits limits;
  struct quire_step_plan *plan;
  struct quire_team *team; /* members are the ranks that work */
  int32_t prefix;
  float *q, *w;
  uint16_t *q_latent, *q_rope, *out;
  float *lse;
};

static void fill_bank(struct rig *rig, int32_t rank) {
  for (int32_t local = 0; local < quire_bank_local_pages(rig->bank[rank]); local++) {
    for (int32_t part = 0; part < rig->parts.count; part++) {
      uint8_t *page = quire_bank_page(rig->bank[rank], part, (quire_local_page){local});
      bench_cache_fill_page(&rig->parts.part[part], rig->parts.format, page, QUIRE_PAGE_TOKENS, (uint64_t)local);
    }
    quire_bank_mark_written(rig->bank[rank], (quire_local_page){local}, 0, 0);
  }
}

static enum quire_status open_banks(struct rig *rig, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  for (int32_t r = 0; status == QUIRE_OK && r < RANKS; r++) {
    struct quire_bank_config config = {
        .geometry = rig->geometry, .rank = {r}, .parts = &rig->parts, .queue_commands = 1};
    config.stream_mode = QUIRE_STREAM_INLINE;
    status = quire_bank_create(quire_env_default(), &config, &rig->bank[r], error_out);
    if (status == QUIRE_OK) {
      status = quire_bank_allocate(rig->bank[r], error_out);
    }
  }
  if (status == QUIRE_OK) {
    status = quire_bank_connect(rig->bank, RANKS, &rig->peers, error_out);
  }
  for (int32_t r = 0; status == QUIRE_OK && r < RANKS; r++) {
    fill_bank(rig, r);
  }
  return status;
}

static enum quire_status open_views(struct rig *rig, const struct bench *bench, enum quire_view_mode mode,
                                    struct quire_error *error_out) {
  const struct quire_env *env = quire_env_default();
  struct quire_collective_config collective = {.ranks = RANKS};
  enum quire_status status = quire_collective_create(env, "local", &collective, &rig->collective, error_out);
  for (int32_t r = 0; status == QUIRE_OK && r < RANKS; r++) {
    struct quire_view_config config = {
        .geometry = rig->geometry,
        .parts = &rig->parts,
        .mode = mode,
        .rank = r,
        .limits = rig->limits,
        .requests_max = 1,
        .request_pages_max = rig->geometry.pages,
        .rows_max = CHUNK,
        .fresh_max = CHUNK,
        .local_rows = 2,
        .gather_pages_max = mode == QUIRE_VIEW_GATHER ? rig->geometry.pages : 0,
        .topk = rig->model.index_topk,
        .heads = rig->model.heads,
        .index_heads = rig->model.index_heads,
        .threads = 1,
    };
    struct quire_view_links links = {bench->kernels, rig->collective, &rig->peers, rig->view};
    status = quire_view_create(env, &config, &links, &rig->view[r], error_out);
    if (status == QUIRE_OK) {
      status = quire_stream_create(env, QUIRE_STREAM_INLINE, NULL, 0, &rig->stream[r], error_out);
    }
    if (status == QUIRE_OK) {
      status = quire_stream_create(env, QUIRE_STREAM_INLINE, NULL, 0, &rig->copy[r], error_out);
    }
    if (status == QUIRE_OK) {
      quire_view_start(rig->view[r], rig->stream[r], rig->copy[r]);
    }
  }
  return status;
}

/* A step that writes a row a rank behind the prefix. */
static bool make_plan(struct rig *rig) {
  int32_t pages = rig->geometry.pages;
  quire_page *table = calloc((size_t)pages, sizeof *table);
  rig->limits = (struct quire_step_limits){.entries_max = 1, .tokens_max = CHUNK + 1, .pages_max = pages};
  rig->plan = calloc(1, (size_t)quire_step_plan_bytes(&rig->limits));
  int32_t tokens[CHUNK + 1] = {0};
  struct quire_step_entry entry = {
      .kind = QUIRE_ENTRY_PREFILL,
      .begin = rig->prefix,
      .end = rig->prefix + CHUNK,
      .prefix_end = rig->prefix,
      .home = -1,
      .carry_rank = -1,
      .recompute_rank = -1,
      .commit_rank = -1,
      .next_token = -1,
      .append_count = pages,
  };
  bool made = table != NULL && rig->plan != NULL;
  for (int32_t p = 0; made && p < pages; p++) {
    table[p].v = p;
  }
  if (made) {
    quire_step_plan_reset(rig->plan, 1, RANKS, QUIRE_SPLIT_ZIGZAG);
    made = quire_step_plan_add(rig->plan, &rig->limits, &entry, tokens, table);
  }
  free(table);
  return made;
}

static bool open_queries(struct rig *rig) {
  size_t heads = (size_t)rig->model.heads, index_heads = (size_t)rig->model.index_heads;
  rig->q = calloc(RANKS * index_heads * QUIRE_INDEX_DIM, sizeof(float));
  rig->w = calloc(RANKS * index_heads, sizeof(float));
  rig->q_latent = calloc(RANKS * heads * QUIRE_LATENT_DIM, sizeof(uint16_t));
  rig->q_rope = calloc(RANKS * heads * QUIRE_ROPE_DIM, sizeof(uint16_t));
  rig->out = calloc(RANKS * heads * QUIRE_LATENT_DIM, sizeof(uint16_t));
  rig->lse = calloc(RANKS * heads, sizeof(float));
  if (rig->q == NULL || rig->w == NULL || rig->q_latent == NULL || rig->q_rope == NULL || rig->out == NULL ||
      rig->lse == NULL) {
    return false;
  }
  bench_fill_f32(rig->q, RANKS * index_heads * QUIRE_INDEX_DIM, 51);
  bench_fill_f32(rig->w, RANKS * index_heads, 52);
  bench_fill_bf16(rig->q_latent, RANKS * heads * QUIRE_LATENT_DIM, 53);
  bench_fill_bf16(rig->q_rope, RANKS * heads * QUIRE_ROPE_DIM, 54);
  return true;
}

static void close_rig(struct rig *rig) {
  for (int32_t r = 0; r < RANKS; r++) {
    if (rig->copy[r] != NULL) {
      quire_stream_destroy(rig->copy[r]);
    }
    if (rig->stream[r] != NULL) {
      quire_stream_destroy(rig->stream[r]);
    }
    quire_view_destroy(rig->view[r]);
  }
  for (int32_t r = 0; r < RANKS; r++) {
    quire_bank_destroy(rig->bank[r]);
  }
  quire_collective_destroy(rig->collective);
  free(rig->plan);
  free(rig->q);
  free(rig->w);
  free(rig->q_latent);
  free(rig->q_rope);
  free(rig->out);
  free(rig->lse);
}

static enum quire_status open_rig(struct rig *rig, const struct bench *bench, enum quire_view_mode mode,
                                  struct quire_error *error_out) {
  bool tiny = bench->options.tiny;
  bench_model_config(BENCH_MODEL_DEEPSEEK_V32, &rig->model);
  if (tiny) {
    rig->model.heads = 16;
    rig->model.index_topk = 256;
  }
  rig->prefix = (int32_t)(tiny ? 1024 : bench->options.context_tokens) / QUIRE_PAGE_TOKENS * QUIRE_PAGE_TOKENS;
  rig->geometry = (struct quire_geometry){
      .page_tokens = QUIRE_PAGE_TOKENS,
      .ranks = RANKS,
      .storage_ranks = mode == QUIRE_VIEW_LOCAL ? 1 : RANKS,
      .pages = rig->prefix / QUIRE_PAGE_TOKENS + 1,
  };
  if (!quire_parts_build(&rig->parts, QUIRE_KV_BF16, QUIRE_PAGE_TOKENS, 1, NULL, 0) || !make_plan(rig) ||
      !open_queries(rig)) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "view", "no memory for a step over %d rows", rig->prefix);
  }
  enum quire_status status = open_banks(rig, error_out);
  return status != QUIRE_OK ? status : open_views(rig, bench, mode, error_out);
}

/* --- gather --- */

static void begin_member(void *context, int member, int threads) {
  struct rig *rig = context;
  struct quire_error error;
  (void)threads;
  if (quire_view_begin(rig->view[member], rig->plan, &error) != QUIRE_OK) {
    fprintf(stderr, "quire: %s: %s\n", error.where, error.text);
    abort();
  }
  quire_view_quiesce(rig->view[member]);
}

static void gather_work(void *context) {
  struct rig *rig = context;
  quire_team_run(rig->team, begin_member, rig);
}

static enum quire_status measure_gather(struct bench *bench, struct rig *rig, int threads,
                                        struct quire_error *error_out) {
  char name[BENCH_NAME_BYTES];
  double bytes = (double)rig->prefix * (rig->parts.part[0].row_bytes + rig->parts.part[1].row_bytes);
  size_t each = ((size_t)bytes + 511) & ~(size_t)511, all = each * (size_t)threads;
  struct bench_copy copy = {bench_isa_of(bench->kernels->name), bench->team[threads], bench_alloc(all),
                            bench_alloc(all), all};
  enum quire_status status = QUIRE_OK;
  if (copy.to == NULL || copy.from == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "view", "no memory for %zu bytes", all);
  } else {
    /* not zeros: they are copied a third faster than anything else */
    bench_fill_bf16((uint16_t *)(uintptr_t)copy.from, all / sizeof(uint16_t), 55);
  }
  rig->team = bench->team[threads];
  snprintf(name, sizeof name, "gather %d rows, %d of 2 ranks", rig->prefix, threads);
  struct bench_case c = {
      .name = name,
      .unit = "GB/s",
      .scale = 1e9,
      .threads = threads,
      .sides = 2,
      .bars = 1,
      .side = {{"gather", gather_work, NULL, rig, bytes * threads},
               {"copy past the caches", bench_copy_work, NULL, &copy, (double)all}},
      .bar = {{1, 0.9, false, 0}},
  };
  if (status == QUIRE_OK) {
    status = bench_measure(bench, &c, NULL, error_out);
  }
  bench_free(copy.to, all);
  bench_free((void *)(uintptr_t)copy.from, all);
  return status;
}

/* --- peer --- */

static void select_member(void *context, int member, int threads) {
  struct rig *rig = context;
  (void)threads;
  quire_view_select(rig->view[member], QUIRE_PART_TARGET, 0,
                    rig->q + (int64_t)member * rig->model.index_heads * QUIRE_INDEX_DIM,
                    rig->w + (int64_t)member * rig->model.index_heads);
}

static void attend_member(void *context, int member, int threads) {
  struct rig *rig = context;
  int64_t row = (int64_t)member * rig->model.heads;
  (void)threads;
  struct quire_view_attend attend = {
      .model = QUIRE_PART_TARGET,
      .q_latent = rig->q_latent + row * QUIRE_LATENT_DIM,
      .q_rope = rig->q_rope + row * QUIRE_ROPE_DIM,
      .out = rig->out + row * QUIRE_LATENT_DIM,
      .lse = rig->lse + row,
      .dtype = QUIRE_DTYPE_BF16,
      .scale = rig->model.softmax_scale / 64,
  };
  quire_view_attend(rig->view[member], &attend);
}

static void select_work(void *context) {
  struct rig *rig = context;
  quire_team_run(rig->team, select_member, rig);
}

static void attend_work(void *context) {
  struct rig *rig = context;
  quire_team_run(rig->team, attend_member, rig);
}

static enum quire_status measure_peer(struct bench *bench, struct rig *peer, struct rig *local, int threads,
                                      struct quire_error *error_out) {
  static const struct {
    const char *name;
    void (*work)(void *context);
  } verbs[] = {{"select", select_work}, {"attend", attend_work}};
  enum quire_status status = QUIRE_OK;
  peer->team = local->team = bench->team[threads];
  /* both ranks begin: begin keeps the batch that the verbs work on */
  for (int r = 0; r < RANKS; r++) {
    begin_member(peer, r, RANKS);
    begin_member(local, r, RANKS);
  }
  for (size_t i = 0; status == QUIRE_OK && i < sizeof verbs / sizeof verbs[0]; i++) {
    char name[BENCH_NAME_BYTES];
    snprintf(name, sizeof name, "peer %s over %d rows, %d of 2 ranks", verbs[i].name, peer->prefix, threads);
    struct bench_case c = {
        .name = name,
        .unit = "rows/s",
        .scale = 1,
        .threads = threads,
        .sides = 2,
        .bars = 1,
        .side = {{"peer", verbs[i].work, NULL, peer, threads}, {"own pages", verbs[i].work, NULL, local, threads}},
        .bar = {{1, 0.9, false, 0}},
    };
    verbs[0].work(peer); /* attend reads the lists of a select */
    verbs[0].work(local);
    status = bench_measure(bench, &c, NULL, error_out);
  }
  return status;
}

/* --- overlap --- */

static enum quire_status write_trace(const struct bench *bench, const struct quire_trace *trace,
                                     struct quire_error *error_out) {
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  quire_trace_write(trace, &text);
  FILE *file = fopen(bench->options.trace, "w");
  bool written = file != NULL && !quire_strbuf_failed(&text) && fputs(quire_strbuf_text(&text), file) >= 0;
  written = file != NULL && fclose(file) == 0 && written;
  quire_strbuf_fini(&text);
  return written ? QUIRE_OK
                 : quire_error_set(error_out, QUIRE_ERR_IO, "--trace", "cannot write %s", bench->options.trace);
}

/* Nanoseconds of event `e` during which its rank ran a layer. */
static uint64_t under_layers(const struct quire_trace *trace, const struct quire_trace_event *e) {
  uint64_t under = 0;
  for (size_t i = 0; i < quire_trace_count(trace); i++) {
    struct quire_trace_event l = quire_trace_at(trace, i);
    if (l.span.kind == QUIRE_TRACE_LAYER && l.span.rank == e->span.rank) {
      uint64_t begin = l.begin_ns > e->begin_ns ? l.begin_ns : e->begin_ns;
      uint64_t end = l.end_ns < e->end_ns ? l.end_ns : e->end_ns;
      under += end > begin ? end - begin : 0;
    }
  }
  return under;
}

static void show_overlap(struct bench *bench, const struct quire_trace *trace) {
  double sum[3] = {0}, under = 0;
  for (size_t i = 0; i < quire_trace_count(trace); i++) {
    struct quire_trace_event e = quire_trace_at(trace, i);
    sum[e.span.kind] += (double)(e.end_ns - e.begin_ns);
    under += e.span.kind == QUIRE_TRACE_GATHER ? (double)under_layers(trace, &e) : 0;
  }
  struct bench_figure overlap = {"gather under layers", "of the time of gather jobs",
                                 under / (sum[QUIRE_TRACE_GATHER] > 0 ? sum[QUIRE_TRACE_GATHER] : 1), 0, false};
  struct bench_figure wait = {"waiting for gather", "of the time of layers",
                              sum[QUIRE_TRACE_WAIT] / (sum[QUIRE_TRACE_LAYER] > 0 ? sum[QUIRE_TRACE_LAYER] : 1), 0,
                              true};
  bench_figure(bench, &overlap);
  bench_figure(bench, &wait);
}

static enum quire_status measure_overlap(struct bench *bench, struct quire_error *error_out) {
  struct quire_trace *trace = NULL;
  struct bench_worker worker = {0};
  enum quire_status status = quire_trace_create(quire_env_default(), TRACE_EVENTS, &trace, error_out);
  if (status == QUIRE_OK) {
    struct bench_worker_config config = {
        .ranks = RANKS,
        .sharing = QUIRE_SHARING_SHARED,
        .view = QUIRE_VIEW_GATHER,
        .prompt_tokens = bench->options.tiny ? 256 : (int32_t)bench->options.tokens,
        .new_max = 1,
        .trace = trace,
    };
    status = bench_worker_open(bench, &config, &worker, error_out);
  }
  uint64_t ns;
  if (status == QUIRE_OK) {
    status = bench_worker_run(&worker, &ns, error_out);
  }
  if (status == QUIRE_OK) {
    show_overlap(bench, trace);
    status = bench->options.trace != NULL ? write_trace(bench, trace, error_out) : QUIRE_OK;
  }
  bench_worker_close(&worker);
  quire_trace_destroy(trace);
  return status;
}

enum quire_status bench_view(struct bench *bench, struct quire_error *error_out) {
  static struct rig gather, peer, local;
  enum quire_status status = open_rig(&gather, bench, QUIRE_VIEW_GATHER, error_out);
  for (int threads = 1; status == QUIRE_OK && threads <= bench->threads_max; threads++) {
    status = measure_gather(bench, &gather, threads, error_out);
  }
  close_rig(&gather);
  if (status == QUIRE_OK) {
    status = open_rig(&peer, bench, QUIRE_VIEW_PEER, error_out);
  }
  if (status == QUIRE_OK) {
    status = open_rig(&local, bench, QUIRE_VIEW_LOCAL, error_out);
  }
  for (int threads = 1; status == QUIRE_OK && threads <= bench->threads_max; threads++) {
    status = measure_peer(bench, &peer, &local, threads, error_out);
  }
  close_rig(&peer);
  close_rig(&local);
  if (status == QUIRE_OK && bench->worker.model != NULL) {
    return measure_overlap(bench, error_out);
  }
  printf("no trace of the overlap: give --model\n");
  return status;
}
