#include "bench/bench_machine.h"

#include <string.h>
#include <sys/mman.h>

#include <immintrin.h>

#include "base/assert.h"
#include "base/rng.h"

#define PIECE 512

/* --- AVX2, the instructions of the portable table --- */

#define DOT_CHAINS 12

/* A pair of bf16 is two fma there: eight lanes of one operation pair each. */
static void dot(int64_t loops) {
  __m256 acc[DOT_CHAINS];
  __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
  for (int i = 0; i < DOT_CHAINS; i++) {
    acc[i] = _mm256_setzero_ps();
  }
  for (int64_t n = 0; n < loops; n++) {
#pragma GCC unroll 12
    for (int i = 0; i < DOT_CHAINS; i++) {
      acc[i] = _mm256_fmadd_ps(x, y, acc[i]);
    }
    __asm__ volatile("" : "+x"(x), "+x"(y));
  }
  for (int i = 0; i < DOT_CHAINS; i++) {
    __asm__ volatile("" : : "x"(acc[i]));
  }
}

static void read_plain(const void *from, size_t bytes) {
  const uint8_t *at = from;
  for (size_t i = 0; i < bytes; i += PIECE) {
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int j = 0; j < PIECE / 32; j++) {
      sum = _mm256_or_si256(sum, _mm256_loadu_si256((const __m256i *)(const void *)(at + i + 32 * j)));
    }
    __asm__ volatile("" : : "x"(sum));
  }
}

static void copy_plain(void *to, const void *from, size_t bytes) {
  const uint8_t *source = from;
  uint8_t *target = to;
  for (size_t i = 0; i < bytes; i += 32) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
    _mm256_stream_si256((__m256i *)(void *)(target + i), v);
  }
  _mm_sfence();
}

static float largest(const float *from, size_t count) {
  __m256 max[8];
  for (int j = 0; j < 8; j++) {
    max[j] = _mm256_set1_ps(-3e38f);
  }
  for (size_t i = 0; i < count; i += 64) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      max[j] = _mm256_max_ps(max[j], _mm256_loadu_ps(from + i + 8 * j));
    }
  }
  for (int j = 1; j < 8; j++) {
    max[0] = _mm256_max_ps(max[0], max[j]);
  }
  float best = max[0][0];
  for (int i = 1; i < 8; i++) {
    best = max[0][i] > best ? max[0][i] : best;
  }
  return best;
}

const struct bench_isa bench_isa_plain = {
    .name = "portable",
    .dot_name = "vfmadd in registers",
    .dot_operations = DOT_CHAINS * 16.0,
    .dot = dot,
    .read = read_plain,
    .copy = copy_plain,
    .largest = largest,
};

const struct bench_isa *bench_isa_of(const char *kernels) {
  return strcmp(kernels, bench_isa_avx512.name) == 0 ? &bench_isa_avx512 : &bench_isa_plain;
}

/* --- sides --- */

#define PEAK_LOOPS 4096
#define PEAK_LOOPS_TEAM (PEAK_LOOPS * 64)

struct bench_peak bench_peak_of(const struct bench_isa *isa, struct quire_team *team) {
  return (struct bench_peak){isa, team, quire_team_threads(team) > 1 ? PEAK_LOOPS_TEAM : PEAK_LOOPS};
}

static void peak_member(void *context, int member, int threads) {
  const struct bench_peak *peak = context;
  (void)member, (void)threads;
  peak->isa->dot(peak->loops);
}

void bench_peak_work(void *peak) { quire_team_run(((struct bench_peak *)peak)->team, peak_member, peak); }

double bench_peak_operations(const struct bench_peak *peak) {
  return peak->isa->dot_operations * (double)peak->loops * quire_team_threads(peak->team);
}

static void read_member(void *context, int member, int threads) {
  const struct bench_read *read = context;
  int64_t begin, end;
  quire_team_share((int64_t)read->piece_bytes, PIECE, member, threads, &begin, &end);
  read->isa->read(read->pool + (size_t)read->next * read->piece_bytes + begin, (size_t)(end - begin));
}

void bench_read_work(void *context) {
  struct bench_read *read = context;
  quire_team_run(read->team, read_member, read);
  read->next = (read->next + 1) % read->pieces;
}

static void copy_member(void *context, int member, int threads) {
  const struct bench_copy *copy = context;
  int64_t begin, end;
  quire_team_share((int64_t)copy->bytes, PIECE, member, threads, &begin, &end);
  copy->isa->copy(copy->to + begin, copy->from + begin, (size_t)(end - begin));
}

void bench_copy_work(void *copy) { quire_team_run(((struct bench_copy *)copy)->team, copy_member, copy); }

/* --- buffers --- */

void *bench_alloc(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return NULL;
  }
  (void)madvise(memory, bytes, MADV_HUGEPAGE); /* as the device's memory is; a wish */
  memset(memory, 0, bytes);
  return memory;
}

void bench_free(void *memory, size_t bytes) {
  if (memory != NULL) {
    munmap(memory, bytes);
  }
}

void *bench_block_take(struct bench_block *block, size_t bytes) {
  void *piece = block->base != NULL ? block->base + block->used : NULL;
  block->used += (bytes + PIECE - 1) / PIECE * PIECE;
  QUIRE_ASSERT(block->base == NULL || block->used <= block->bytes);
  return piece;
}

bool bench_block_open(struct bench_block *block) {
  *block = (struct bench_block){.base = bench_alloc(block->used), .bytes = block->used};
  return block->base != NULL;
}

void bench_block_close(struct bench_block *block) {
  bench_free(block->base, block->bytes);
  *block = (struct bench_block){0};
}

void bench_fill_bf16(uint16_t *to, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i += 4) {
    uint64_t bits = quire_splitmix64(&seed);
    for (size_t j = 0; j < 4 && i + j < count; j++, bits >>= 16) {
      /* sign and mantissa as they come, exponent of [2^-7, 2) */
      to[i + j] = (uint16_t)((bits & 0x807f) | ((0x7f - (bits >> 8 & 7)) << 7));
    }
  }
}

void bench_fill_e4m3(uint8_t *to, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i += 8) {
    uint64_t bits = quire_splitmix64(&seed);
    for (size_t j = 0; j < 8 && i + j < count; j++, bits >>= 8) {
      to[i + j] = (uint8_t)(bits & 0xbf); /* below 2 */
    }
  }
}

void bench_fill_f32(float *to, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) {
    to[i] = (float)(int32_t)(quire_splitmix64(&seed) >> 32) * 0x1p-31f;
  }
}
