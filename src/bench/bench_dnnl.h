/* oneDNN as a yardstick, where its header was there at build time and its library is at run time. Without either the
 * functions say so and nothing else changes: quire never depends on it.
 *
 * Memory: objects own copies of what they pack. Threads: the caller's; oneDNN runs on its own `threads`. */
#ifndef QUIRE_BENCH_BENCH_DNNL_H
#define QUIRE_BENCH_BENCH_DNNL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* why_out (may be NULL): what is missing. */
bool bench_dnnl_available(const char **why_out);
const char *bench_dnnl_version(void);
/* Threads of the products that run next. */
void bench_dnnl_threads(int threads);

/* y[m, n] = x[m, k] W, bf16 operands; y f32. W's element (k, n) lies at k * k_stride + n * n_stride. */
struct bench_dnnl_shape {
  int64_t m, n, k;
  int64_t x_ld, k_stride, n_stride, y_ld;
  bool
      packed; /* weights in the layout oneDNN likes best, packed beforehand (and the strides are those of the source) */
};

struct bench_dnnl_product;

/* Packs `copies` weights that lie `stride` bytes apart, if the shape says packed. NULL when oneDNN refuses. */
struct bench_dnnl_product *bench_dnnl_product_create(const struct bench_dnnl_shape *shape, const void *weights,
                                                     int64_t stride, int64_t copies);
void bench_dnnl_product_destroy(struct bench_dnnl_product *product);
/* With the next packed weights in turn, or with w where nothing was packed. */
void bench_dnnl_product_run(struct bench_dnnl_product *product, const void *x, const void *w, void *y);

/* Rows of a softmax in place, f32 [rows, count] dense. */
struct bench_dnnl_softmax;
struct bench_dnnl_softmax *bench_dnnl_softmax_create(int64_t rows, int64_t count);
void bench_dnnl_softmax_destroy(struct bench_dnnl_softmax *softmax);
void bench_dnnl_softmax_run(struct bench_dnnl_softmax *softmax, float *rows);

#ifdef __cplusplus
}
#endif
#endif
