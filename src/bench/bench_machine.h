/* What the machine can do at best, for ceilings, and what benches fill their buffers with.
 *
 * The loops are the plainest that reach the hardware's limit, in the instructions the kernels of the same table use:
 * dot products from registers alone, reads of memory with wide loads, copies past the caches.
 *
 * Memory: the caller's. Threads: loops run on the caller's thread, the `work` functions on the team they are given. */
#ifndef QUIRE_BENCH_BENCH_MACHINE_H
#define QUIRE_BENCH_BENCH_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bench_isa {
  const char *name;      /* of the kernel table with the same instructions */
  const char *dot_name;  /* "vdpbf16ps in registers" */
  double dot_operations; /* of one loop */
  void (*dot)(int64_t loops);
  void (*read)(const void *from, size_t bytes);           /* multiples of 512 */
  void (*copy)(void *to, const void *from, size_t bytes); /* past the caches; multiples of 512, to aligned to 64 */
  float (*largest)(const float *from, size_t count);      /* multiples of 64 */
};

extern const struct bench_isa bench_isa_plain;
extern const struct bench_isa bench_isa_avx512;
/* That of a kernel table by name. */
const struct bench_isa *bench_isa_of(const char *kernels);

/* Work of a side: dot products from registers on every member; long enough that waking a team does not count. */
struct bench_peak {
  const struct bench_isa *isa;
  struct quire_team *team;
  int64_t loops; /* of every member */
};
struct bench_peak bench_peak_of(const struct bench_isa *isa, struct quire_team *team);
void bench_peak_work(void *peak);
double bench_peak_operations(const struct bench_peak *peak);

/* Work of a side: reads the next piece of a pool, members side by side, and starts over at its end. */
struct bench_read {
  const struct bench_isa *isa;
  struct quire_team *team;
  const uint8_t *pool;
  size_t piece_bytes; /* a multiple of 512 */
  int64_t pieces, next;
};
void bench_read_work(void *read);

/* Work of a side: copies pieces from one pool to another, past the caches. */
struct bench_copy {
  const struct bench_isa *isa;
  struct quire_team *team;
  uint8_t *to;
  const uint8_t *from;
  size_t bytes; /* a multiple of 512 */
};
void bench_copy_work(void *copy);

/* Page-aligned and touched; NULL when there is no memory. Freed with bench_free. */
void *bench_alloc(size_t bytes);
void bench_free(void *memory, size_t bytes);

/* One block of memory cut into pieces, each at a multiple of 512. Who lays out a model takes its pieces twice: first
 * without memory (NULL comes back), which only adds them up, then out of the block that bench_block_open got for
 * them. */
struct bench_block {
  uint8_t *base;
  size_t bytes, used;
};
void *bench_block_take(struct bench_block *block, size_t bytes);
/* False when there is no memory for what was added up. */
bool bench_block_open(struct bench_block *block);
void bench_block_close(struct bench_block *block);

/* Random values of about unit size: bf16 in (-2, 2), e4m3 in (-2, 2), f32 in (-1, 1). */
void bench_fill_bf16(uint16_t *to, size_t count, uint64_t seed);
void bench_fill_e4m3(uint8_t *to, size_t count, uint64_t seed);
void bench_fill_f32(float *to, size_t count, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
