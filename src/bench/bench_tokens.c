/* prefill and decode: tokens a second of the whole engine.
 *
 * The ceiling of prefill is the rate of the matrix products at the model's own shapes, each thread on rows of its own,
 * over the operations a prompt token needs (bench_token_operations); that of decode a cold read of the weights one
 * token touches. With several ranks a replicated cache is measured beside the shared one: the difference is what
 * sharing costs. */
#include <stdio.h>

#include "bench/bench_engine.h"
#include "bench/bench_list.h"
#include "bench/bench_machine.h"

#define PRODUCT_REPEATS 7
#define READ_BYTES ((size_t)256 << 20)
#define READ_PIECE ((size_t)1 << 20)
#define CONFIGS 3
#define PREFILL_BAR 0.5
#define DECODE_BAR 0.6

struct configs {
  struct bench_worker worker[CONFIGS];
  int count;
};

static const struct {
  const char *name;
  enum quire_sharing sharing;
  enum quire_view_mode view;
  double overhead[2]; /* most time against replicated: prefill, decode */
} rows[CONFIGS] = {
    {"replicated", QUIRE_SHARING_REPLICATED, QUIRE_VIEW_LOCAL, {0, 0}},
    {"peer", QUIRE_SHARING_SHARED, QUIRE_VIEW_PEER, {1.03, 1.05}},
    {"gather", QUIRE_SHARING_SHARED, QUIRE_VIEW_GATHER, {1.05, 1.05}},
};

static enum quire_status open_configs(struct bench *bench, struct configs *configs, struct bench_worker_config config,
                                      struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  int wanted = config.ranks == 1 ? 1 : CONFIGS;
  for (; status == QUIRE_OK && configs->count < wanted; configs->count += status == QUIRE_OK ? 1 : 0) {
    config.sharing = rows[configs->count].sharing;
    config.view = rows[configs->count].view;
    status = bench_worker_open(bench, &config, &configs->worker[configs->count], error_out);
  }
  return status;
}

static void close_configs(struct configs *configs) {
  for (int i = 0; i < configs->count; i++) {
    bench_worker_close(&configs->worker[i]);
  }
}

/* The configurations, then the ceiling, whose side is given in tokens; ratios_out[i]: configuration i over it. */
static enum quire_status measure(struct bench *bench, struct configs *configs, const char *name,
                                 struct bench_side ceiling, double ratios_out[CONFIGS], struct quire_error *error_out) {
  bool decode = configs->worker[0].new_max > 1;
  struct bench_case c = {.name = name, .unit = "tokens/s", .scale = 1, .threads = BENCH_THREADS_MAX};
  struct bench_result result = {{0}, {0}};
  int of_ceiling[CONFIGS];
  uint64_t discarded;
  for (int i = 0; i < configs->count; i++) {
    enum quire_status status = bench_worker_run(&configs->worker[i], &discarded, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    c.side[c.sides++] = (struct bench_side){configs->count == 1 ? "one rank" : rows[i].name, NULL, bench_worker_run,
                                            &configs->worker[i], bench_worker_units(&configs->worker[i])};
  }
  c.side[c.sides++] = ceiling;
  for (int i = 0; i < configs->count; i++) {
    of_ceiling[i] = c.bars;
    c.bar[c.bars++] = (struct bench_bar){configs->count, decode ? DECODE_BAR : PREFILL_BAR, false, i};
    if (i > 0) {
      c.bar[c.bars++] = (struct bench_bar){0, rows[i].overhead[decode], true, i};
    }
  }
  enum quire_status status = bench_measure(bench, &c, &result, error_out);
  for (int i = 0; i < configs->count; i++) {
    ratios_out[i] = result.ratio[of_ceiling[i]];
  }
  return status;
}

/* What a step reads beside weights grows with the context: the same figures with it counted. */
static void print_with_kv(const struct configs *configs, int32_t positions, double bytes, const double *ratios) {
  double kv = bench_token_kv_bytes(&configs->worker[0], positions);
  printf("%.2f MB of KV a token at position %d: a read of both is at most %.3f of the weight read; of a read of both:",
         kv * 1e-6, positions, bytes / (bytes + kv));
  for (int i = 0; i < configs->count && i < CONFIGS; i++) {
    printf("%s %s %.3f", i > 0 ? "," : "", configs->count == 1 ? "one rank" : rows[i].name,
           ratios[i] * (bytes + kv) / bytes);
  }
  printf("\n");
}

/* The rate of the model's own products on these threads, for orientation beside tokens a second. */
static enum quire_status print_product_rate(struct bench *bench, int threads, struct quire_error *error_out) {
  struct bench_products *products = NULL;
  int32_t rows = (int32_t)(bench->worker.chunk_tokens / threads);
  enum quire_status status = bench_products_open(bench, threads, rows, &products, error_out);
  double rates[PRODUCT_REPEATS];
  for (int i = 0; status == QUIRE_OK && i < PRODUCT_REPEATS; i++) {
    uint64_t started = cli_now_ns();
    bench_products_work(products);
    rates[i] = bench_products_operations(products) / (double)(cli_now_ns() - started);
  }
  if (status == QUIRE_OK) {
    printf("%.1f Gop/s in the model's matrix products, %d thread%s\n", bench_median(rates, PRODUCT_REPEATS), threads,
           threads > 1 ? "s" : "");
  }
  bench_products_close(products);
  return status;
}

static enum quire_status prefill(struct bench *bench, int32_t ranks, struct quire_error *error_out) {
  struct bench_worker_config config = {.ranks = ranks, .new_max = 1};
  struct configs configs = {0};
  struct bench_products *products = NULL;
  char name[BENCH_NAME_BYTES];
  config.prompt_tokens = bench->options.tiny ? 256 : (int32_t)bench->options.tokens;
  snprintf(name, sizeof name, "prefill %d tokens, ranks=%d", config.prompt_tokens, ranks);
  enum quire_status status = open_configs(bench, &configs, config, error_out);
  if (status == QUIRE_OK) {
    int threads = ranks * (int)bench->worker.threads_per_rank;
    int32_t rows_each = (int32_t)(bench->worker.chunk_tokens / threads);
    status = bench_products_open(bench, threads, rows_each, &products, error_out);
  }
  if (status == QUIRE_OK) {
    status = print_product_rate(bench, ranks * (int)bench->worker.threads_per_rank, error_out);
  }
  if (status == QUIRE_OK) {
    double operations = bench_token_operations(bench, config.prompt_tokens);
    printf("%.1f M operations a token\n", operations * 1e-6);
    struct bench_side ceiling = {"products", bench_products_work, NULL, products,
                                 bench_products_operations(products) / operations};
    double ratios[CONFIGS];
    status = measure(bench, &configs, name, ceiling, ratios, error_out);
  }
  bench_products_close(products);
  close_configs(&configs);
  return status;
}

static enum quire_status decode(struct bench *bench, int32_t ranks, struct quire_error *error_out) {
  struct bench_worker_config config = {.ranks = ranks, .new_max = (int32_t)bench->options.decode_tokens};
  struct configs configs = {0};
  char name[BENCH_NAME_BYTES];
  config.prompt_tokens = bench->options.tiny ? 256 : (int32_t)bench->options.tokens;
  snprintf(name, sizeof name, "decode after %d tokens, ranks=%d", config.prompt_tokens, ranks);
  uint8_t *pool = bench_alloc(READ_BYTES);
  enum quire_status status =
      pool != NULL ? QUIRE_OK : quire_error_set(error_out, QUIRE_ERR_MEMORY, "decode", "no memory");
  if (status == QUIRE_OK) {
    status = open_configs(bench, &configs, config, error_out);
  }
  if (status == QUIRE_OK) {
    int threads = bench->worker.threads_per_rank > 1 ? bench->threads_max : 1;
    struct bench_read read = {bench_isa_of(bench->kernels->name),
                              bench->team[threads],
                              pool,
                              READ_PIECE,
                              (int64_t)(READ_BYTES / READ_PIECE),
                              0};
    double bytes = bench_token_bytes(bench);
    printf("%.2f MB of weights a token\n", bytes * 1e-6);
    status = print_product_rate(bench, ranks * (int)bench->worker.threads_per_rank, error_out);
    struct bench_side ceiling = {"weight read", bench_read_work, NULL, &read, (double)READ_PIECE / bytes};
    double ratios[CONFIGS];
    status = status != QUIRE_OK ? status : measure(bench, &configs, name, ceiling, ratios, error_out);
    if (status == QUIRE_OK && bench_wanted(bench, name)) {
      print_with_kv(&configs, config.prompt_tokens + config.new_max / 2, bytes, ratios);
    }
  }
  close_configs(&configs);
  bench_free(pool, READ_BYTES);
  return status;
}

/* The ranks asked for; where that is one, two ranks follow, for what sharing costs. */
static enum quire_status each_ranks(struct bench *bench,
                                    enum quire_status (*measure_ranks)(struct bench *, int32_t, struct quire_error *),
                                    struct quire_error *error_out) {
  int32_t ranks = (int32_t)bench->worker.ranks;
  enum quire_status status = measure_ranks(bench, ranks, error_out);
  return status == QUIRE_OK && ranks == 1 && bench->threads_max > 1 ? measure_ranks(bench, 2, error_out) : status;
}

enum quire_status bench_prefill(struct bench *bench, struct quire_error *error_out) {
  return each_ranks(bench, prefill, error_out);
}

enum quire_status bench_decode(struct bench *bench, struct quire_error *error_out) {
  return each_ranks(bench, decode, error_out);
}
