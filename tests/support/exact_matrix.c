#include "support/exact_matrix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "support/exact_cover.h"
#include "support/seed.h"

#define KV_FORMATS 3
#define COMPUTES 2
#define CELL_NEW 6

enum factor {
  F_LENGTH,
  F_RANKS,
  F_SPLIT,
  F_VIEW,
  F_CHUNK,
  F_KV,
  F_COMPUTE,
  F_THREADS,
  F_EXECUTOR,
  F_ISA,
  F_WEIGHTS,
  F_SOURCE,
  F_MTP,
  F_COPIES,
  F_TEMPERATURE,
  F_SAMPLING,
  F_SCORED,
  F_WARM,
  F_DEBUG,
  F_COMPANY,
  F_MODEL,
  FACTORS,
};

/* Behind the levels of ranks and of threads one more stands for the others: a cell draws which. */
static const int32_t ranks_of[] = {1, 2, 3, 4, 8};
static const int32_t other_ranks[] = {5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16};
#define RANKS (int)(sizeof ranks_of / sizeof ranks_of[0])
#define OTHER_RANKS (sizeof other_ranks / sizeof other_ranks[0])
#define THREADS 2       /* 1, 2 */
#define OTHER_THREADS 2 /* 3, 4 */
static const int32_t chunks_of[] = {1, 64, 100, 512, 0};
/* sharing and view go together */
static const struct {
  enum quire_sharing sharing;
  enum quire_view_mode view;
} views_of[] = {
    {QUIRE_SHARING_REPLICATED, QUIRE_VIEW_LOCAL},
    {QUIRE_SHARING_SHARED, QUIRE_VIEW_GATHER},
    {QUIRE_SHARING_SHARED, QUIRE_VIEW_PEER},
};

/* `allowed` has no context: the matrix that is being run. */
static const struct exact_matrix *current;

/* Chunks of one token are for short prompts, and too slow for a crowd that presses for pages; models behind the first
 * run in three of six arithmetics, which is enough to see every pair. */
static bool allowed(const int *row) {
  if (row[F_CHUNK] == 0 && row[F_LENGTH] >= 0 && current->lengths[row[F_LENGTH]] > 129) {
    return false;
  }
  if (row[F_CHUNK] == 0 && row[F_COMPANY] == EXACT_PREEMPTED) {
    return false;
  }
  if (row[F_SOURCE] > EXACT_COLD && row[F_LENGTH] >= 0 && current->lengths[row[F_LENGTH]] <= QUIRE_PAGE_TOKENS) {
    return false;
  }
  bool few = row[F_MODEL] > 0;
  return !(few && row[F_COMPUTE] == 1 && row[F_KV] > QUIRE_KV_F32) &&
         !(few && row[F_COMPUTE] == 0 && row[F_KV] == QUIRE_KV_F32);
}

static bool has_avx512(void) {
  const struct quire_kernels *kernels = NULL;
  return quire_kernels_find("avx512", &kernels, NULL) == QUIRE_OK;
}

static struct exact_cover make_cover(const struct exact_matrix *matrix) {
  struct exact_cover cover = {.factors = FACTORS, .allowed = allowed};
  cover.levels[F_LENGTH] = matrix->length_count;
  cover.levels[F_RANKS] = RANKS + 1;
  cover.levels[F_SPLIT] = 2;
  cover.levels[F_VIEW] = 3;
  cover.levels[F_CHUNK] = 5;
  cover.levels[F_KV] = KV_FORMATS;
  cover.levels[F_COMPUTE] = COMPUTES;
  cover.levels[F_THREADS] = THREADS + 1;
  cover.levels[F_EXECUTOR] = 2;
  cover.levels[F_ISA] = has_avx512() ? 2 : 1;
  cover.levels[F_WEIGHTS] = 2;
  cover.levels[F_SOURCE] = EXACT_SOURCES;
  cover.levels[F_MTP] = 2;
  cover.levels[F_COPIES] = 2;
  cover.levels[F_TEMPERATURE] = 2;
  cover.levels[F_SAMPLING] = EXACT_SAMPLINGS;
  cover.levels[F_SCORED] = 2;
  cover.levels[F_WARM] = 2;
  cover.levels[F_DEBUG] = 2;
  cover.levels[F_COMPANY] = EXACT_COMPANIES;
  cover.levels[F_MODEL] = matrix->model_count;
  return cover;
}

static struct exact_cell make_cell(const struct exact_matrix *matrix, const int *row, uint64_t bits) {
  struct exact_cell cell =
      exact_cell_defaults(matrix->models[row[F_MODEL]], matrix->tokens, matrix->lengths[row[F_LENGTH]]);
  cell.compute = row[F_COMPUTE] == 1 ? QUIRE_DTYPE_F32 : QUIRE_DTYPE_BF16;
  cell.kv = (enum quire_kv_format)row[F_KV];
  cell.mtp = row[F_MTP] == 1;
  cell.ranks = row[F_RANKS] < RANKS ? ranks_of[row[F_RANKS]] : other_ranks[(bits >> 48 & 0xff) % OTHER_RANKS];
  cell.split = row[F_SPLIT] == 0 ? QUIRE_SPLIT_ZIGZAG : QUIRE_SPLIT_INTERLEAVE;
  cell.sharing = views_of[row[F_VIEW]].sharing;
  cell.view = views_of[row[F_VIEW]].view;
  cell.chunk = chunks_of[row[F_CHUNK]];
  cell.threads = 1 + row[F_THREADS] + (row[F_THREADS] < THREADS ? 0 : (int)(bits >> 56) % OTHER_THREADS);
  cell.executor = row[F_EXECUTOR] == 1 ? "proc" : "threads";
  cell.isa = row[F_ISA] == 1 ? "avx512" : "portable";
  cell.mapped = row[F_WEIGHTS] == 1;
  cell.source = (enum exact_source)row[F_SOURCE];
  cell.copy_mode = row[F_COPIES] == 1 ? QUIRE_STREAM_DEFERRED : QUIRE_STREAM_THREAD;
  cell.copy_seed = bits;
  cell.temperature = row[F_TEMPERATURE] == 1 ? 0.8f : 0.0f;
  cell.sampling = (enum exact_sampling)row[F_SAMPLING];
  cell.scored = row[F_SCORED] == 1;
  cell.debug = row[F_DEBUG] == 1;
  cell.company = (enum exact_company)row[F_COMPANY];
  cell.warm = row[F_WARM] == 1;
  cell.slack_pages = (int32_t)(bits >> 32 & 7);
  cell.new_max = 1 + (int32_t)(bits >> 40) % CELL_NEW;
  return cell;
}

/* Workers that hold the longest prompt, by arithmetic. */
struct references {
  const struct exact_matrix *matrix;
  struct quire_engine *engine[EXACT_MODELS_MAX][KV_FORMATS][COMPUTES];
};

static int32_t longest(const struct exact_matrix *matrix) {
  int32_t length = 0;
  for (int i = 0; i < matrix->length_count; i++) {
    length = matrix->lengths[i] > length ? matrix->lengths[i] : length;
  }
  return length;
}

static struct quire_engine *reference_engine(struct references *references, const struct exact_cell *like) {
  const struct exact_matrix *matrix = references->matrix;
  int model = 0;
  while (like->model != matrix->models[model]) {
    model++;
  }
  struct quire_engine **engine = &references->engine[model][like->kv][like->compute == QUIRE_DTYPE_F32];
  if (*engine == NULL) {
    struct exact_cell cell = exact_cell_defaults(like->model, matrix->tokens, longest(matrix));
    cell.compute = like->compute;
    cell.kv = like->kv;
    cell.mtp = true;
    cell.isa = "portable";
    int32_t ctx = cell.length + CELL_NEW;
    *engine = exact_engine_open(&cell, ctx, 2 * ctx);
    struct quire_engine_request request = exact_request(&cell);
    exact_engine_run(*engine, &request, NULL);
  }
  return *engine;
}

static void check_cell(struct references *references, const struct exact_cell *cell, int number) {
  struct exact_result expected = {0}, got = {0};
  char what[EXACT_TEXT_BYTES], text[EXACT_TEXT_BYTES];
  struct quire_engine *engine = reference_engine(references, cell);
  struct quire_engine_request request = exact_request(cell);
  exact_engine_run(engine, &request, &expected);
  exact_cell_text(cell, what);
  if (getenv("QUIRE_TEST_CELL") != NULL) {
    printf("cell %d: %s\n", number, what);
  }
  exact_cell_run(cell, &got);
  if (!exact_results_equal(&expected, &got, text)) {
    fail_msg("cell %d (%s): %s", number, what, text);
  }
  exact_result_free(&expected);
  exact_result_free(&got);
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void close_references(struct references *references) {
  for (int i = 0; i < EXACT_MODELS_MAX * KV_FORMATS * COMPUTES; i++) {
    quire_engine_destroy(references->engine[i / (KV_FORMATS * COMPUTES)][i / COMPUTES % KV_FORMATS][i % COMPUTES]);
  }
}

void exact_matrix_run(const struct exact_matrix *matrix) {
  uint64_t seed = test_seed(matrix->name);
  const char *only = getenv("QUIRE_TEST_CELL");
  current = matrix;
  struct exact_cover cover = make_cover(matrix);
  int(*rows)[EXACT_FACTORS_MAX] = calloc(EXACT_ROWS_MAX, sizeof *rows), impossible = 0;
  assert_non_null(rows);
  int covering = exact_cover_rows(&cover, seed, rows, EXACT_ROWS_MAX - matrix->random_cells, &impossible);
  int kept = matrix->cover_cells > 0 && matrix->cover_cells < covering ? matrix->cover_cells : covering, count = kept;
  uint64_t state = seed;
  for (int i = 0; i < matrix->random_cells; i++) {
    count += exact_cover_random(&cover, &state, rows[count]);
  }
  printf("%s: %d of %d cells that cover every pair of %d factors (%d pairs are impossible), %d random ones%s\n",
         matrix->name, kept, covering, FACTORS, impossible, count - kept,
         has_avx512() ? "" : "; without avx512, which this machine lacks");
  struct references references = {.matrix = matrix};
  double start = now_s();
  for (int i = 0; i < count; i++) {
    uint64_t bits = exact_random(&state);
    if (only == NULL || atoi(only) == i) {
      struct exact_cell cell = make_cell(matrix, rows[i], bits);
      check_cell(&references, &cell, i);
    }
  }
  printf("%s: %.1f s\n", matrix->name, now_s() - start);
  close_references(&references);
  free(rows);
}

/* --- soak --- */

double exact_soak_seconds(void) {
  const char *text = getenv("QUIRE_TEST_SOAK_SECONDS");
  return text != NULL && *text != '\0' ? atof(text) : 3600.0;
}

static const enum factor crossed[] = {F_LENGTH, F_RANKS,   F_SPLIT,    F_VIEW,  F_CHUNK,
                                      F_KV,     F_COMPUTE, F_EXECUTOR, F_SOURCE};
#define CROSSED (int)(sizeof crossed / sizeof crossed[0])

static int64_t greatest_divisor(int64_t a, int64_t b) { return b == 0 ? a : greatest_divisor(b, a % b); }

/* Cell `number` of the cross: each number below the total names another combination, and neighbours have little in
 * common. False when the combination is not allowed with any choice of the other factors that was tried. */
static bool cross_row(const struct exact_cover *cover, int64_t number, int64_t total, uint64_t *state, int *row_out) {
  int64_t stride = total * 618 / 1000 | 1;
  while (greatest_divisor(stride, total) != 1) {
    stride += 2;
  }
  int64_t place = (int64_t)((uint64_t)(number * stride) % (uint64_t)total);
  int levels[EXACT_FACTORS_MAX];
  for (int i = 0; i < CROSSED; i++) {
    levels[crossed[i]] = (int)(place % cover->levels[crossed[i]]);
    place /= cover->levels[crossed[i]];
  }
  for (int tries = 0; tries < 100; tries++) {
    for (int f = 0; f < FACTORS; f++) {
      row_out[f] = (int)(exact_random(state) % (uint64_t)cover->levels[f]);
    }
    for (int i = 0; i < CROSSED; i++) {
      row_out[crossed[i]] = levels[crossed[i]];
    }
    if (cover->allowed(row_out)) {
      return true;
    }
  }
  return false;
}

void exact_matrix_soak(const struct exact_matrix *matrix, double seconds) {
  uint64_t seed = test_seed(matrix->name);
  const char *only = getenv("QUIRE_TEST_CELL");
  current = matrix;
  struct exact_cover cover = make_cover(matrix);
  int64_t total = 1, ran = 0, refused = 0, number = only != NULL ? atoll(only) : 0;
  for (int i = 0; i < CROSSED; i++) {
    total *= cover.levels[crossed[i]];
  }
  struct references references = {.matrix = matrix};
  for (double start = now_s(); number < total && now_s() - start < seconds; number++) {
    /* a cell follows from its number, so that it can be run alone; another seed begins elsewhere in the cross */
    uint64_t state = seed * 0x9E3779B97F4A7C15u + (uint64_t)number;
    int64_t at = (int64_t)((uint64_t)number + seed % (uint64_t)total * 7919u) % total;
    int row[EXACT_FACTORS_MAX];
    if (cross_row(&cover, at, total, &state, row)) {
      struct exact_cell cell = make_cell(matrix, row, exact_random(&state));
      check_cell(&references, &cell, (int)number);
      ran++;
    } else {
      refused++;
    }
    if (only != NULL) {
      break;
    }
  }
  printf("%s: %" PRId64 " cells of a cross of %" PRId64 " (and %" PRId64 " that are left out)\n", matrix->name, ran,
         total, refused);
  close_references(&references);
  assert_true(ran > 0);
}

/* Around pages (64), pages x ranks (128, 192, 256, 512), chunks (64, 100, 512) and the top-k (128). */
static const int32_t tiny_lengths[] = {1,   2,   63,  64,  65,  99,  100, 101, 127, 128, 129,  191,
                                       192, 193, 255, 256, 257, 384, 511, 512, 513, 640, 1025, 1100};

/* The tiny models, run as `matrix` says or, with seconds, soaked. */
static void run_tiny(struct exact_matrix matrix, double seconds) {
  struct quire_tiny_options options = quire_tiny_defaults();
  options.layers = 3;
  options.heads = 4;
  options.dtype = QUIRE_TINY_BF16;
  struct exact_model bf16, fp8, glm;
  exact_model_tiny(&bf16, &options);
  options.dtype = QUIRE_TINY_FP8;
  exact_model_tiny(&fp8, &options);
  options = quire_tiny_glm();
  options.layers = 4;
  options.heads = 4;
  options.indexers = "FSFS";
  options.dtype = QUIRE_TINY_FP8;
  exact_model_tiny(&glm, &options);
  int32_t tokens[1100];
  quire_tiny_tokens(11, 1100, tokens);
  matrix.models[0] = &bf16;
  matrix.models[1] = &fp8;
  matrix.models[2] = &glm;
  matrix.model_count = 3;
  matrix.lengths = tiny_lengths;
  matrix.length_count = (int)(sizeof tiny_lengths / sizeof tiny_lengths[0]);
  matrix.tokens = tokens;
  if (seconds > 0) {
    exact_matrix_soak(&matrix, seconds);
  } else {
    exact_matrix_run(&matrix);
  }
  exact_model_close(&bf16);
  exact_model_close(&fp8);
  exact_model_close(&glm);
}

void exact_matrix_tiny(const char *name, int random_cells) {
  run_tiny((struct exact_matrix){.name = name, .random_cells = random_cells}, 0);
}

void exact_matrix_tiny_soak(const char *name, double seconds) {
  run_tiny((struct exact_matrix){.name = name}, seconds);
}
