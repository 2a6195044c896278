/* select on a CUDA device (arithmetic.md 13): index scores in fp8 on tensor cores, streamed into an exact top-k.
 *
 * Rows of one source that stand together share its keys. Where they are many (prefill), tiles of 6 rows of 64 heads, or
 * 12 of 32, are scored; what may still be among the best lies in a bounded list for each row at work. Where they are
 * few (op.source_rows at most 2 with 64 heads, 4 with 32: decode), all keys are read once, split evenly over the
 * multiprocessors, and what each keeps, with room for all it sees, is merged; that takes tensor maps, and where the
 * driver makes none these rows go the way of the many. Scores live in registers. The set does not depend on any of
 * this.
 *
 * All pointers are device memory that stays valid and untouched until the launches have run; nothing is allocated.
 * Threads: any; one at a time on a stream. Formats bf16 and fp8, which store index keys alike. */
#ifndef QUIRE_KERNELS_CUDA_CUDA_SELECT_H
#define QUIRE_KERNELS_CUDA_CUDA_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_CUDA_INDEX_HEADS_MAX 64
#define QUIRE_CUDA_LIMIT_MAX (INT32_MAX - (1 << 15)) /* of a row's limit: pages are looked up ahead of it */

/* Tensor maps of all memory (select_maps.h), made at the first call for all devices and streams; NULL where the driver
 * makes none, and why_out (may be NULL) then gets the reason, a text that stays. Threads: any. */
struct quire_cuda_maps;
const struct quire_cuda_maps *quire_cuda_select_maps(const char **why_out);

struct quire_cuda_select {
  struct quire_select op;             /* pages, rings of keys and q 16-byte aligned */
  const struct quire_cuda_maps *maps; /* quire_cuda_select_maps(); NULL: few rows are scored as many are */
  int32_t multiprocessors;            /* of the device; as given to quire_cuda_select_scratch_bytes */
  float *scores_out; /* not NULL: [m, scores_ld] the scores themselves, of positions [first, limit) of rows that
                               see more than topk, instead of lists, which stay untouched; for tests */
  int64_t scores_ld;
};

/* Can it run? Looks at format, heads, topk, m and limit_max. why_out (may be NULL) gets the reason when not. */
bool quire_cuda_select_can(const struct quire_select *op, const char **why_out);

/* Scratch for up to m rows of `heads` index heads that see up to limit_max positions; 256-byte aligned. */
int64_t quire_cuda_select_scratch_bytes(int32_t heads, int32_t topk, int32_t m, int32_t limit_max,
                                        int32_t multiprocessors);

/* Enqueues on stream, a cudaStream_t. QUIRE_ERR_RANK when the device refuses a launch. */
enum quire_status quire_cuda_select(void *stream, const struct quire_cuda_select *select);

#ifdef __cplusplus
}
#endif
#endif
