/* Time to the first token of a short request that comes while a long prompt is being prefilled, in chunks of that
 * prompt: what the scheduler's budget is for (sched/sched.h). Bar: its time alone plus 1.5 chunks.
 *
 * Each repeat measures the short request alone, then begins the long one, lets it run for a random part of its prefill,
 * asks how long its last chunk took, and submits the short one. All prompts are different, so nothing is found in the
 * cache. Times are from submit to the read of the first token's event, through the worker's thread, as a server sees
 * them. */
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "base/rng.h"
#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "engine/worker.h"

#define SHORT_TOKENS 64
#define BAR 1.5
#define PATIENCE_MS 600000

struct ttft {
  struct bench *bench;
  struct quire_engine *engine;
  struct quire_worker *worker;
  int32_t *tokens; /* [long_tokens] */
  int32_t long_tokens;
  uint64_t rng;
  uint64_t long_ns; /* the long prompt alone, to its first token */
};

static enum quire_status submit(struct ttft *t, int32_t count, quire_ticket *ticket_out,
                                struct quire_error *error_out) {
  const uint64_t vocab = (uint64_t)t->bench->model.config.vocab;
  for (int32_t i = 0; i < count; i++) {
    t->tokens[i] = (int32_t)quire_splitmix64_below(&t->rng, vocab);
  }
  const struct quire_engine_request request = {
      .tokens = t->tokens, .count = count, .new_max = 1, .sampling = {.temperature = 0, .top_p = 1}};
  return quire_worker_submit(t->worker, &request, ticket_out, error_out);
}

/* Waits for the first event of a ticket; events of others stay where they are. */
static enum quire_status wait_for(struct ttft *t, quire_ticket ticket, struct quire_error *error_out) {
  struct quire_engine_event event;
  quire_ticket ready[8];
  while (quire_worker_take(t->worker, ticket, &event, 1) == 0) {
    struct pollfd fd = {.fd = quire_worker_fd(t->worker), .events = POLLIN};
    if (poll(&fd, 1, PATIENCE_MS) <= 0) {
      return quire_error_set(error_out, QUIRE_ERR_STATE, "bench ttft", "no token within %d ms", PATIENCE_MS);
    }
    quire_worker_ready(t->worker, ready, 8);
  }
  if (event.kind == QUIRE_EVENT_FAILED) {
    *error_out = *quire_worker_error(t->worker, ticket);
    return event.status;
  }
  return QUIRE_OK;
}

/* One request from submit to its first token. */
static enum quire_status time_one(struct ttft *t, int32_t count, uint64_t *ns_out, struct quire_error *error_out) {
  quire_ticket ticket;
  const uint64_t started = bench_now_ns();
  enum quire_status status = submit(t, count, &ticket, error_out);
  if (status == QUIRE_OK) {
    status = wait_for(t, ticket, error_out);
    *ns_out = bench_now_ns() - started;
    quire_worker_close(t->worker, ticket);
  }
  return status;
}

static void wait_ns(uint64_t ns) {
  const struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  nanosleep(&time, NULL);
}

static void wait_idle(struct ttft *t) {
  while (!quire_worker_idle(t->worker)) {
    wait_ns(1000000);
  }
}

struct sample {
  double alone_ms, beside_ms, chunk_ms;
};

static enum quire_status sample_once(struct ttft *t, struct sample *sample_out, struct quire_error *error_out) {
  struct quire_worker_stats stats;
  quire_ticket ticket;
  uint64_t alone = 0, beside = 0;
  enum quire_status status = time_one(t, SHORT_TOKENS, &alone, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = submit(t, t->long_tokens, &ticket, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  wait_ns(t->long_ns / 8 + quire_splitmix64_below(&t->rng, t->long_ns * 5 / 8 + 1));
  quire_worker_stats(t->worker, &stats);
  status = time_one(t, SHORT_TOKENS, &beside, error_out);
  quire_worker_close(t->worker, ticket);
  wait_idle(t);
  *sample_out = (struct sample){(double)alone * 1e-6, (double)beside * 1e-6, (double)stats.tick_ns * 1e-6};
  return status;
}

static enum quire_status measure(struct bench *bench, struct ttft *t, struct quire_error *error_out) {
  double alone[BENCH_REPEATS_MAX], beside[BENCH_REPEATS_MAX], chunk[BENCH_REPEATS_MAX], chunks[BENCH_REPEATS_MAX];
  const int repeats = (int)bench->options.repeats;
  double worst = 0;
  uint64_t short_ns;
  enum quire_status status = time_one(t, SHORT_TOKENS, &short_ns, error_out); /* warms up */
  status = status != QUIRE_OK ? status : time_one(t, t->long_tokens, &t->long_ns, error_out);
  for (int r = 0; status == QUIRE_OK && r < repeats; r++) {
    struct sample s;
    status = sample_once(t, &s, error_out);
    if (status == QUIRE_OK) {
      alone[r] = s.alone_ms;
      beside[r] = s.beside_ms;
      chunk[r] = s.chunk_ms;
      chunks[r] = s.chunk_ms > 0 ? (s.beside_ms - s.alone_ms) / s.chunk_ms : 0;
      worst = chunks[r] > worst ? chunks[r] : worst;
      if (bench->csv != NULL) {
        fprintf(bench->csv,
                "ttft,\"alone\",ms,%d,%.6g,ms\nttft,\"beside\",ms,%d,%.6g,ms\nttft,\"chunk\",ms,%d,%.6g,ms\n", r,
                s.alone_ms, r, s.beside_ms, r, s.chunk_ms);
      }
    }
  }
  if (status != QUIRE_OK) {
    return status;
  }
  printf("%d tokens beside a prefill of %d in chunks of %d, which alone takes %.0f ms\n", SHORT_TOKENS, t->long_tokens,
         (int)bench->worker.chunk_tokens, (double)t->long_ns * 1e-6);
  const struct bench_figure figures[] = {
      {"first token alone", "ms", bench_median(alone, repeats), 0, true},
      {"first token beside a long prefill", "ms", bench_median(beside, repeats), 0, true},
      {"a chunk of the long prefill", "ms", bench_median(chunk, repeats), 0, true},
      {"waited beside a long prefill, median", "chunks more than alone", bench_median(chunks, repeats), BAR, true},
      {"waited beside a long prefill, worst", "chunks more than alone", worst, BAR, true},
  };
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
    bench_figure(bench, &figures[i]);
  }
  return QUIRE_OK;
}

static enum quire_status open_worker(struct bench *bench, struct ttft *t, struct quire_error *error_out) {
  struct quire_engine_config config;
  enum quire_status status = bench_model_open(bench, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  t->bench = bench;
  t->rng = 11;
  t->long_tokens = bench->options.tiny ? 512 : (int32_t)bench->options.tokens;
  status = cli_engine_config(&bench->worker, &bench->model, t->long_tokens + 1, &config, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  config.running_max = 8;
  config.cache_tokens = config.cache_tokens > 2 * t->long_tokens ? config.cache_tokens : 2 * t->long_tokens + 1024;
  t->tokens = quire_env_zalloc(quire_env_default(), (size_t)t->long_tokens, sizeof *t->tokens);
  if (t->tokens == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench ttft", "no memory for a prompt");
  }
  status = quire_engine_create(quire_env_default(), &config, &t->engine, error_out);
  const struct quire_worker_config worker = {.engine = t->engine, .tickets_max = 8, .ring_events = 4};
  return status != QUIRE_OK ? status : quire_worker_create(quire_env_default(), &worker, &t->worker, error_out);
}

enum quire_status bench_ttft(struct bench *bench, struct quire_error *error_out) {
  struct ttft t = {0};
  enum quire_status status = open_worker(bench, &t, error_out);
  status = status != QUIRE_OK ? status : measure(bench, &t, error_out);
  quire_worker_destroy(t.worker);
  quire_engine_destroy(t.engine);
  quire_env_free(quire_env_default(), t.tokens, (size_t)t.long_tokens, sizeof *t.tokens);
  return status;
}
