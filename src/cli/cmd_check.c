/* quire check: does this machine, with this build and this model, keep the laws? Each line is one self-test that
 * recomputes a truth; the exit code is 0 when all of them hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bank/bank.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "layout/bundle.h"
#include "layout/split.h"

#define CHECK_TOKENS 333
#define CHECK_NEW_TOKENS 6

struct check_list {
  int passed, failed;
};

static void report(struct check_list *list, bool good, const char *name, const char *why) {
  printf("%-4s %s%s%s\n", good ? "ok" : "BAD", name, good ? "" : ": ", good ? "" : why);
  list->passed += good ? 1 : 0;
  list->failed += good ? 0 : 1;
}

static bool ownership_holds(void) {
  for (int32_t ranks = 1; ranks <= QUIRE_RANKS_MAX; ranks++) {
    struct quire_geometry g = {QUIRE_PAGE_TOKENS, ranks, ranks, 1001};
    int32_t stored = 0;
    for (int32_t s = 0; s < ranks; s++) {
      stored += quire_geometry_local_pages(&g, (quire_stripe_id){s});
    }
    for (int32_t p = 0; p < g.pages; p++) {
      quire_page page = {p};
      int32_t owners = 0;
      for (int32_t r = 0; r < ranks; r++) {
        owners += quire_page_stored_by(&g, page, (quire_rank_id){r}) ? 1 : 0;
      }
      if (owners != 1 || quire_page_of_local(&g, quire_page_owner(&g, page), quire_page_local(&g, page)).v != p) {
        return false;
      }
    }
    if (stored != g.pages) {
      return false;
    }
  }
  return true;
}

static bool splits_hold(void) {
  for (int32_t split = 0; split < 2; split++) {
    for (int32_t ranks = 1; ranks <= QUIRE_RANKS_MAX; ranks++) {
      struct quire_split_chunk chunk = {(enum quire_split)split, ranks, 70, 70 + 13 * ranks + split};
      for (int32_t position = chunk.begin; position < chunk.end; position++) {
        int32_t rank = quire_split_rank(&chunk, position), index = quire_split_index(&chunk, position);
        if (quire_split_position(&chunk, rank, index) != position || index >= quire_split_count(&chunk, rank)) {
          return false;
        }
      }
    }
  }
  return true;
}

static bool numbers_hold(void) {
  static const struct {
    float value;
    uint8_t code;
  } samples[] = {{1.0f, 0x38}, {1.0625f, 0x38}, {1.1875f, 0x3A}, {17.0f, 0x58}, {19.0f, 0x5A}, {-3.3f, 0xC5}};
  for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
    if (quire_e4m3_of(samples[i].value) != samples[i].code) {
      return false;
    }
  }
  return quire_f32_of_bf16(quire_bf16_of(1.00390625f)) == 1.0f && quire_f32_of_e4m3(0x7E) == 448.0f;
}

/* One product through every table this machine can run: the bytes must be those of the first. */
static bool kernels_agree(void) {
  enum { M = 5, N = 70, K = 200 };
  static float x[M * K], y[2][M * N], scale[4];
  static uint8_t w[N * K];
  for (int i = 0; i < M * K; i++) {
    x[i] = (float)(quire_mix64((uint64_t)i) >> 40) * 0x1p-23f - 1.0f;
  }
  for (int i = 0; i < N * K; i++) {
    uint8_t code = (uint8_t)(quire_mix64((uint64_t)i + 77) >> 56);
    w[i] = (code & 0x7F) == 0x7F ? 0 : code;
  }
  scale[0] = 0.5f, scale[1] = 2.0f, scale[2] = 0.25f, scale[3] = 1.0f;
  struct quire_stream *stream = NULL;
  if (quire_stream_create(quire_env_default(), QUIRE_STREAM_INLINE, NULL, 0, &stream, NULL) != QUIRE_OK) {
    return false;
  }
  bool same = true;
  int tables = 0;
  for (int i = 0; quire_kernels_at(i) != NULL; i++) {
    if (!quire_kernels_can(quire_kernels_at(i), NULL)) {
      continue;
    }
    struct quire_gemm gemm = {.x = x, .y = y[tables > 0], .x_dtype = QUIRE_DTYPE_F32, .y_dtype = QUIRE_DTYPE_F32};
    gemm.w = (struct quire_weight){w, scale, QUIRE_DTYPE_FP8, QUIRE_WEIGHT_ROWS, N, K, K, 2};
    gemm.m = M;
    gemm.x_ld = K;
    gemm.y_ld = N;
    quire_kernels_at(i)->gemm(stream, gemm);
    same = same && (tables == 0 || memcmp(y[0], y[1], sizeof y[0]) == 0);
    tables++;
  }
  quire_stream_destroy(stream);
  return same && tables > 0;
}

/* Waits for one command; false when it failed. */
static bool command_done(struct quire_bank *bank, const struct quire_command *command,
                         struct quire_hash128 *digest_out) {
  struct quire_ack ack;
  if (quire_bank_submit(bank, command, NULL) != QUIRE_OK) {
    return false;
  }
  quire_bank_drain(bank);
  *digest_out = (quire_bank_poll(bank, &ack, 1) == 1) ? ack.digest : (struct quire_hash128){0};
  return ack.status == QUIRE_OK;
}

/* A page goes to host memory as a bundle and comes back into another page: same digest, and one flipped byte is
 * seen. */
static bool bundles_hold(void) {
  static struct quire_parts parts;
  struct quire_bundle_layout layout;
  struct quire_bank *bank = NULL;
  if (!quire_parts_build(&parts, QUIRE_KV_FP8, QUIRE_PAGE_TOKENS, 2, NULL, 1)) {
    return false;
  }
  quire_bundle_layout_of(&parts, &layout);
  struct quire_bank_config config = {.geometry = {QUIRE_PAGE_TOKENS, 1, 1, 2},
                                     .parts = &parts,
                                     .queue_commands = 4,
                                     .stream_mode = QUIRE_STREAM_INLINE};
  uint8_t *host = aligned_alloc(4096, (size_t)layout.bytes);
  bool good = host != NULL && quire_bank_create(quire_env_default(), &config, &bank, NULL) == QUIRE_OK &&
              quire_bank_allocate(bank, NULL) == QUIRE_OK && quire_bank_connect(&bank, 1, NULL, NULL) == QUIRE_OK &&
              quire_bank_host(bank, host, layout.bytes, NULL) == QUIRE_OK;
  for (int32_t part = 0; good && part < parts.count; part++) {
    memset(quire_bank_page(bank, part, (quire_local_page){0}), part + 1, (size_t)parts.part[part].page_bytes);
  }
  struct quire_command command = {
      .op = 1, .kind = QUIRE_COMMAND_PACK, .ranks = 1, .target = {QUIRE_PAGE_NONE}, .valid_tokens = 50};
  struct quire_hash128 packed = {0}, unpacked = {0}, ignored;
  good = good && command_done(bank, &command, &packed);
  command.kind = QUIRE_COMMAND_UNPACK;
  command.page.v = 1;
  good = good && command_done(bank, &command, &unpacked) && quire_hash128_equal(packed, unpacked);
  if (good) {
    host[layout.part_offset[1]] ^= 1;
    good = !command_done(bank, &command, &ignored);
  }
  quire_bank_destroy(bank);
  free(host);
  return good;
}

struct outcome {
  struct quire_hash128 kv;
  int32_t tokens[CHECK_NEW_TOKENS];
  struct quire_error fault; /* of --debug-fault, where nobody was to find it */
};

/* A prompt of random tokens through one configuration. */
static enum quire_status run_config(const struct cli_model *model, const struct quire_engine_config *config,
                                    struct outcome *outcome, struct quire_error *error_out) {
  struct quire_engine *engine = NULL;
  enum quire_status status = quire_engine_create(quire_env_default(), config, &engine, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  int32_t ids[CHECK_TOKENS];
  for (int32_t i = 0; i < CHECK_TOKENS; i++) {
    ids[i] = (int32_t)(quire_mix64((uint64_t)i + 5) % (uint64_t)model->config.vocab);
  }
  struct cli_tokens prompt = {ids, CHECK_TOKENS, 0};
  struct cli_answer answer = {.prompt = &prompt, .new_max = CHECK_NEW_TOKENS, .ignore_eos = true};
  answer.sampling = (struct quire_sampling){.temperature = 0.8f, .top_p = 1, .seed = 11};
  status = cli_answer_run(model, engine, &answer, error_out);
  if (status == QUIRE_OK) {
    status = cli_kv_digest(engine, &outcome->kv, error_out);
    memcpy(outcome->tokens, answer.drawn.id, sizeof outcome->tokens);
  }
  quire_engine_finish(engine);
  if (status == QUIRE_OK && !quire_engine_check_laws(engine, error_out)) {
    status = QUIRE_ERR_STATE;
  }
  struct quire_engine_stats stats;
  quire_engine_stats(engine, &stats);
  if (status == QUIRE_OK && quire_engine_judge_fault(config, &stats, &outcome->fault) == QUIRE_ERR_RANK) {
    *error_out = outcome->fault;
    status = QUIRE_ERR_RANK;
  }
  cli_answer_free(&answer);
  quire_engine_destroy(engine);
  return status;
}

/* The same on other kernels, with weights as the files have them: every table reads those. */
static enum quire_status run_kernels(const struct cli_model *model, const char *name,
                                     struct quire_engine_config *config, struct outcome *outcome,
                                     struct quire_error *error_out) {
  struct quire_weights_args args = {
      .config = &model->config,
      .tensors = model->tensors,
      .compute = model->options.compute,
      .mtp = model->weights->has_mtp ? QUIRE_MTP_ON : QUIRE_MTP_OFF,
  };
  enum quire_status status = quire_kernels_find(name, &config->kernels, error_out);
  if (status == QUIRE_OK) {
    status = quire_model_weights_open(quire_env_default(), &args, &config->weights, error_out);
  }
  if (status == QUIRE_OK) {
    status = run_config(model, config, outcome, error_out);
    quire_model_weights_close(config->weights);
  }
  return status;
}

static void check_model(const struct cli_model *model, const struct quire_engine_config *base,
                        struct check_list *list) {
  static const struct {
    const char *name;
    int32_t ranks;
    enum quire_sharing sharing;
    enum quire_view_mode view;
    enum quire_split split;
    const char *executor, *kernels; /* NULL: as the worker's options say */
  } cells[] = {
      {"one rank keeps the cache's laws", 1, QUIRE_SHARING_SHARED, QUIRE_VIEW_LOCAL, QUIRE_SPLIT_ZIGZAG, NULL, NULL},
      {"2 ranks, shared, peer, zigzag: same tokens and KV bytes", 2, QUIRE_SHARING_SHARED, QUIRE_VIEW_PEER,
       QUIRE_SPLIT_ZIGZAG, NULL, NULL},
      {"3 ranks, shared, gather, interleave: same tokens and KV bytes", 3, QUIRE_SHARING_SHARED, QUIRE_VIEW_GATHER,
       QUIRE_SPLIT_INTERLEAVE, NULL, NULL},
      {"2 ranks as processes: same tokens and KV bytes", 2, QUIRE_SHARING_SHARED, QUIRE_VIEW_PEER, QUIRE_SPLIT_ZIGZAG,
       "proc", NULL},
      {"kernels portable: same tokens and KV bytes", 1, QUIRE_SHARING_SHARED, QUIRE_VIEW_LOCAL, QUIRE_SPLIT_ZIGZAG,
       NULL, "portable"},
      {"2 ranks, replicated: same tokens and KV bytes", 2, QUIRE_SHARING_REPLICATED, QUIRE_VIEW_LOCAL,
       QUIRE_SPLIT_ZIGZAG, NULL, NULL},
  };
  struct outcome first = {0};
  for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
    struct quire_engine_config config = *base;
    config.ranks = cells[i].ranks;
    config.sharing = cells[i].sharing;
    config.view = cells[i].view;
    config.split = cells[i].split;
    config.chunk_tokens = i == 0 ? CHECK_TOKENS : 100;
    config.poison = true;
    config.executor = cells[i].executor != NULL ? cells[i].executor : config.executor;
    struct outcome outcome = {0};
    struct quire_error error = {0};
    enum quire_status status = cells[i].kernels == NULL
                                   ? run_config(model, &config, &outcome, &error)
                                   : run_kernels(model, cells[i].kernels, &config, &outcome, &error);
    bool same = i == 0 || (quire_hash128_equal(outcome.kv, first.kv) &&
                           memcmp(outcome.tokens, first.tokens, sizeof first.tokens) == 0);
    report(list, status == QUIRE_OK && same, cells[i].name, status != QUIRE_OK ? error.text : "the bytes differ");
    if (status == QUIRE_OK && outcome.fault.status != QUIRE_OK) {
      printf("     %s %s\n", outcome.fault.where, outcome.fault.text);
    }
    first = i == 0 ? outcome : first;
  }
}

int cli_check(int argc, char **argv) {
  struct cli_worker worker = {0};
  struct quire_options *options = NULL;
  int exit_code = CLI_EXIT_OK;
  struct cli_command_line line = {"quire check [--model DIR] [worker options]", NULL, 0, NULL};
  if (!cli_read(line, argc, argv, &worker, &options, &exit_code)) {
    return exit_code;
  }
  struct check_list list = {0};
  uint32_t control = quire_kernels_enter();
  report(&list, ownership_holds(), "every page has one owner", "ownership is not a partition");
  report(&list, splits_hold(), "every row has one producer", "a split is not a partition");
  report(&list, numbers_hold(), "rounding to bf16 and e4m3", "a sample rounds wrongly");
  report(&list, kernels_agree(), "all kernels of this machine give the same bytes", "two tables differ");
  report(&list, bundles_hold(), "a page survives its bundle, and a flipped byte does not", "a bundle lies");
  quire_kernels_leave(control);
  if (worker.model != NULL) {
    struct quire_error error = {0};
    struct cli_model model = {0};
    struct quire_engine_config config;
    enum quire_status status = cli_model_open(&worker, &model, &error);
    if (status == QUIRE_OK) {
      status = cli_engine_config(&worker, &model, CHECK_TOKENS + CHECK_NEW_TOKENS, &config, &error);
    }
    if (status == QUIRE_OK) {
      check_model(&model, &config, &list);
    } else {
      exit_code = cli_fail(&error);
    }
    cli_model_close(&model);
  }
  printf("%d passed, %d failed\n", list.passed, list.failed);
  quire_options_destroy(options);
  return exit_code != CLI_EXIT_OK ? exit_code : list.failed > 0 ? CLI_EXIT_FAILURE : CLI_EXIT_OK;
}
