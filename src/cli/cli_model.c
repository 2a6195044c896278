#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "device/device_info.h"
#include "layout/fingerprint.h"

#define OPEN_CONTEXT 16384

static void on_weights(void *context, uint64_t done, uint64_t total) {
  const uint64_t *started = context;
  cli_progress("load", (double)done * 1e-6, (double)total * 1e-6, "MB", *started);
}

/* Whether packed matrices find room; they are about as many bytes as the files. */
static bool pack_fits(size_t bytes) {
  return quire_device_check_available(quire_env_default(), bytes, "weights", NULL) == QUIRE_OK;
}

/* The table whose layout the weights get; NULL: none. */
static enum quire_status choose_pack(const struct cli_worker *worker, size_t bytes,
                                     const struct quire_kernels **pack_out, struct quire_error *error_out) {
  const struct quire_kernels *kernels = NULL;
  enum quire_status status = quire_kernels_find(worker->isa, &kernels, error_out);
  *pack_out = NULL;
  if (status != QUIRE_OK || worker->weights == CLI_WEIGHTS_MAPPED) {
    return status;
  }
  const bool bf16 = worker->compute != CLI_COMPUTE_F32, can = kernels->pack_weight != NULL && bf16;
  if (can && pack_fits(bytes)) {
    *pack_out = kernels;
  } else if (worker->weights == CLI_WEIGHTS_PACKED && can) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "--weights",
                           "packed: needs some %.1f GB, which are not available now; use mapped, the results are the "
                           "same",
                           (double)bytes * 1e-9);
  } else if (worker->weights == CLI_WEIGHTS_PACKED) {
    return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "--weights",
                           "packed: %s; use mapped, the results are the same",
                           bf16 ? "the kernels have no such layout" : "compute f32 reads weights as they are stored");
  } else if (can) {
    quire_env_log(quire_env_default(), QUIRE_LOG_WARN,
                  "weights: %.1f GB do not fit into the memory that is available; they stay mapped and are read from "
                  "their files, products are slower",
                  (double)bytes * 1e-9);
  }
  return QUIRE_OK;
}

static enum quire_status open_weights(const struct cli_worker *worker, struct cli_model *model,
                                      struct quire_error *error_out) {
  uint64_t started = cli_now_ns();
  const struct quire_kernels *pack = NULL;
  enum quire_status status = choose_pack(worker, quire_safetensors_bytes(model->tensors), &pack, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct quire_weights_args args = {
      .config = &model->config,
      .tensors = model->tensors,
      .compute = model->options.compute,
      .pack = pack,
      .mtp = (enum quire_mtp_mode)worker->mtp,
      .progress = on_weights,
      .progress_context = &started,
  };
  return quire_model_weights_open(quire_env_default(), &args, &model->weights, error_out);
}

enum quire_status cli_model_open(const struct cli_worker *worker, struct cli_model *model_out,
                                 struct quire_error *error_out) {
  const struct quire_env *env = quire_env_default();
  if (worker->model == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--model", "is missing: name the folder of a model");
  }
  struct cli_model model = {.options = quire_model_options_default()};
  model.options.compute = worker->compute == CLI_COMPUTE_F32 ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16;
  model.options.hadamard = worker->hadamard;
  model.options.scale_pow2 = worker->kv_scales == CLI_SCALES_POW2;
  enum quire_status status = quire_model_config_load(env, worker->model, &model.config, error_out);
  if (status == QUIRE_OK) {
    model.options.latent_norm_eps =
        worker->latent_norm_eps > 0 ? (float)worker->latent_norm_eps : quire_model_latent_norm_eps(&model.config);
    status = quire_model_options_check(&model.options, error_out);
  }
  if (status == QUIRE_OK) {
    status = quire_generation_config_load(env, worker->model, &model.config, &model.generation, error_out);
  }
  if (status == QUIRE_OK) {
    status = quire_tokenizer_open(env, worker->model, &model.tokenizer, error_out);
  }
  if (status == QUIRE_OK && quire_tokenizer_vocab(model.tokenizer) > model.config.vocab) {
    status = quire_error_set(error_out, QUIRE_ERR_CORRUPT, "tokenizer.json",
                             "has ids up to %d, config.json says vocab_size %d; they belong to different models",
                             quire_tokenizer_vocab(model.tokenizer) - 1, model.config.vocab);
  }
  if (status == QUIRE_OK) {
    status = quire_safetensors_open(env, worker->model, &model.tensors, error_out);
  }
  if (status == QUIRE_OK) {
    status = open_weights(worker, &model, error_out);
  }
  if (status != QUIRE_OK) {
    cli_model_close(&model);
    return status;
  }
  *model_out = model;
  return QUIRE_OK;
}

void cli_model_close(struct cli_model *model) {
  quire_model_weights_close(model->weights);
  quire_safetensors_close(model->tensors);
  quire_tokenizer_close(model->tokenizer);
  memset(model, 0, sizeof *model);
}

static enum quire_view_mode view_mode(const struct cli_worker *worker, bool shared) {
  switch (worker->view) {
  case CLI_VIEW_GATHER:
    return QUIRE_VIEW_GATHER;
  case CLI_VIEW_PEER:
    return QUIRE_VIEW_PEER;
  case CLI_VIEW_LOCAL:
    return QUIRE_VIEW_LOCAL;
  default:
    return shared && worker->ranks > 1 ? QUIRE_VIEW_PEER : QUIRE_VIEW_LOCAL;
  }
}

int64_t cli_open_context(const struct cli_worker *worker, const struct cli_model *model) {
  int64_t usual = model->config.positions < OPEN_CONTEXT ? model->config.positions : OPEN_CONTEXT;
  return worker->ctx_tokens > 0 ? worker->ctx_tokens : usual;
}

enum quire_status cli_engine_config(const struct cli_worker *worker, const struct cli_model *model, int64_t ctx_tokens,
                                    struct quire_engine_config *config_out, struct quire_error *error_out) {
  struct quire_engine_config config = {
      .model = &model->config,
      .weights = model->weights,
      .options = model->options,
      .executor = worker->executor,
      .ranks = (int32_t)worker->ranks,
      .split = (enum quire_split)worker->split,
      .sharing = worker->kv == CLI_KV_REPLICATED ? QUIRE_SHARING_REPLICATED : QUIRE_SHARING_SHARED,
      .kv_format = (enum quire_kv_format)worker->kv_format,
      .chunk_tokens = (int32_t)worker->chunk_tokens,
      .threads_per_rank = (int)worker->threads_per_rank,
      .poison = worker->poison,
      .copy_mode = QUIRE_STREAM_THREAD,
      .debug_shared_kv = worker->debug_shared_kv,
      .fault = (enum quire_view_fault)worker->fault,
      .fault_epoch = (uint64_t)worker->fault_step,
  };
  config.view = view_mode(worker, config.sharing == QUIRE_SHARING_SHARED);
  enum quire_status status = quire_kernels_find(worker->isa, &config.kernels, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  int64_t ctx = worker->ctx_tokens > 0 ? worker->ctx_tokens : ctx_tokens;
  if (ctx < ctx_tokens) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "--ctx-tokens",
                           "%lld do not hold the longest request, which has %lld tokens with its answer",
                           (long long)ctx, (long long)ctx_tokens);
  }
  int64_t cache = worker->cache_tokens > 0 ? worker->cache_tokens : 2 * ctx + QUIRE_PAGE_TOKENS;
  if (ctx > model->config.positions) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, worker->ctx_tokens > 0 ? "--ctx-tokens" : "prompt",
                           "%lld tokens, answer included, are more than the model's %d positions", (long long)ctx,
                           model->config.positions);
  }
  config.ctx_tokens = (int32_t)ctx;
  config.cache_tokens = (int32_t)(cache < INT32_MAX ? cache : INT32_MAX);
  status = quire_engine_check(&config, error_out);
  if (status == QUIRE_OK) {
    *config_out = config;
  }
  return status;
}

enum quire_status cli_encode(const struct cli_model *model, const char *text, size_t bytes,
                             struct cli_tokens *tokens_out, struct quire_error *error_out) {
  struct cli_tokens tokens = {.capacity = bytes + 2 * QUIRE_TOKENIZER_ADDED_MAX};
  tokens.id = malloc(tokens.capacity * sizeof *tokens.id);
  if (tokens.id == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "prompt", "no memory for its %zu bytes", bytes);
  }
  struct quire_encode encode = {text, bytes, QUIRE_ENCODE_ADD_SPECIAL, tokens.id, tokens.capacity};
  size_t count = 0;
  enum quire_status status = quire_tokenizer_encode(model->tokenizer, encode, &count, error_out);
  if (status == QUIRE_OK && count > INT32_MAX) {
    status = quire_error_set(error_out, QUIRE_ERR_REQUEST, "prompt", "has %zu tokens", count);
  }
  if (status != QUIRE_OK) {
    cli_tokens_free(&tokens);
    return status;
  }
  tokens.count = (int32_t)count;
  *tokens_out = tokens;
  return QUIRE_OK;
}

void cli_tokens_free(struct cli_tokens *tokens) {
  free(tokens->id);
  *tokens = (struct cli_tokens){0};
}

/* Hands out the answer's text up to `bytes`. */
static void show_text(struct cli_answer *answer, size_t bytes) {
  if (answer->on_text != NULL && bytes > answer->shown) {
    answer->on_text(answer->context, answer->text + answer->shown, bytes - answer->shown);
  }
  answer->shown = bytes > answer->shown ? bytes : answer->shown;
}

/* The answer has `added` more bytes. True when the stop text has appeared: it is cut off. What could be the beginning
 * of a stop is held back. */
static bool take_text(struct cli_answer *answer, size_t added) {
  size_t before = answer->text_bytes, stop = answer->stop != NULL ? strlen(answer->stop) : 0;
  answer->text_bytes += added;
  answer->text[answer->text_bytes] = '\0';
  if (stop == 0) {
    show_text(answer, answer->text_bytes);
    return false;
  }
  size_t from = before > stop - 1 ? before - (stop - 1) : 0;
  char *found = memmem(answer->text + from, answer->text_bytes - from, answer->stop, stop);
  if (found != NULL) {
    answer->text_bytes = (size_t)(found - answer->text);
    *found = '\0';
    show_text(answer, answer->text_bytes);
    return true;
  }
  size_t held = answer->text_bytes < stop - 1 ? answer->text_bytes : stop - 1;
  show_text(answer, answer->text_bytes - held);
  return false;
}

/* At the end: bytes of a character that never became complete, and what was held back for the stop. */
static void end_text(struct cli_answer *answer, struct quire_text_stream *stream) {
  answer->text_bytes += quire_text_stream_end(stream, answer->text + answer->text_bytes);
  answer->text[answer->text_bytes] = '\0';
  show_text(answer, answer->text_bytes);
}

static enum quire_status prepare(const struct cli_model *model, struct cli_answer *answer,
                                 struct quire_error *error_out) {
  size_t room = (size_t)answer->new_max + 1;
  answer->drawn = (struct cli_tokens){malloc(room * sizeof(int32_t)), 0, room};
  answer->text = malloc(room * quire_tokenizer_push_bytes_max(model->tokenizer) + 16);
  answer->text_bytes = 0;
  answer->shown = 0;
  if (answer->drawn.id == NULL || answer->text == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "answer", "no memory for %d tokens", answer->new_max);
  }
  answer->text[0] = '\0';
  return QUIRE_OK;
}

enum quire_status cli_answer_run(const struct cli_model *model, struct quire_engine *engine, struct cli_answer *answer,
                                 struct quire_error *error_out) {
  enum quire_status status = prepare(model, answer, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct quire_engine_request request = {
      .tokens = answer->prompt->id,
      .count = answer->prompt->count,
      .new_max = answer->new_max,
      .sampling = answer->sampling,
      .new_min = answer->new_min,
      .stops = answer->stops != NULL ? answer->stops : model->generation.eos,
      .stop_count = answer->stops != NULL ? answer->stop_count
                    : answer->ignore_eos  ? 0
                                          : model->generation.eos_count,
      .no_match = answer->no_match,
  };
  uint64_t started = cli_now_ns(), prefilled = 0;
  status = quire_engine_start(engine, &request, &answer->hit, error_out);
  struct quire_text_stream stream = quire_text_stream_begin(QUIRE_DECODE_SKIP_SPECIAL);
  struct quire_engine_event event = {0};
  bool stopped = false;
  while (status == QUIRE_OK && event.kind != QUIRE_EVENT_DONE) {
    status = quire_engine_step(engine, &event, error_out);
    if (status != QUIRE_OK) {
      break;
    }
    if (prefilled == 0 && answer->progress) {
      cli_progress("prefill", event.prefilled, answer->prompt->count, "tokens", started);
    }
    if (prefilled == 0 && event.prefilled == answer->prompt->count) {
      prefilled = cli_now_ns();
    }
    if (event.kind == QUIRE_EVENT_TOKEN) {
      answer->decode_steps += answer->drawn.count > 0 ? 1 : 0;
      answer->drawn.id[answer->drawn.count++] = event.token;
      if (answer->on_token != NULL) {
        answer->on_token(answer->context, &event);
      }
      char *end = answer->text + answer->text_bytes;
      if (!stopped && take_text(answer, quire_text_stream_push(model->tokenizer, &stream, event.token, end))) {
        stopped = true;
        quire_engine_stop(engine);
      }
    }
  }
  if (status == QUIRE_OK && !stopped) {
    end_text(answer, &stream);
  }
  answer->prefill_ns = prefilled - started;
  answer->decode_ns = cli_now_ns() - prefilled;
  return status;
}

void cli_answer_free(struct cli_answer *answer) {
  cli_tokens_free(&answer->drawn);
  free(answer->text);
  answer->text = NULL;
}

enum quire_status cli_kv_digest(const struct quire_engine *engine, struct quire_hash128 *digest_out,
                                struct quire_error *error_out) {
  const struct quire_parts *parts = quire_engine_parts_of(engine);
  int32_t tokens = quire_engine_tokens(engine);
  struct quire_hash128_stream stream;
  quire_hash128_begin(&stream, 0);
  int32_t row_bytes = 0;
  for (int32_t part = 0; part < parts->count; part++) {
    row_bytes = parts->part[part].row_bytes > row_bytes ? parts->part[part].row_bytes : row_bytes;
  }
  uint8_t *rows = malloc((size_t)QUIRE_PAGE_TOKENS * (size_t)row_bytes);
  enum quire_status status = QUIRE_OK;
  if (rows == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "digest", "no memory for a page of rows");
  }
  for (int32_t part = 0; status == QUIRE_OK && part < parts->count; part++) {
    for (int32_t begin = 0; status == QUIRE_OK && begin < tokens; begin += QUIRE_PAGE_TOKENS) {
      int32_t end = begin + QUIRE_PAGE_TOKENS < tokens ? begin + QUIRE_PAGE_TOKENS : tokens;
      status = quire_engine_read(engine, part, begin, end, rows, error_out);
      quire_hash128_add(&stream, rows, (size_t)(end - begin) * (size_t)parts->part[part].row_bytes);
    }
  }
  free(rows);
  if (status == QUIRE_OK) {
    *digest_out = quire_hash128_end(&stream);
  }
  return status;
}
