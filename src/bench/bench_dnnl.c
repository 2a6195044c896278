/* The types come from oneDNN's header, the functions from its library by dlopen: a program that links it would start
 * its threads in every command. Only the C interface of version 2 is used. */
#include "bench/bench_dnnl.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_machine.h"

#if defined(__has_include)
#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>
#if DNNL_VERSION_MAJOR == 2
#define HAVE_DNNL 1
#endif
#endif
#endif

#ifdef HAVE_DNNL

#define FUNCTIONS(of)                                                                                                  \
  of(dnnl_engine_create) of(dnnl_stream_create) of(dnnl_stream_wait) of(dnnl_memory_desc_init_by_strides)              \
      of(dnnl_memory_desc_init_by_tag) of(dnnl_memory_desc_get_size) of(dnnl_memory_create) of(dnnl_memory_destroy)    \
          of(dnnl_memory_set_data_handle) of(dnnl_matmul_desc_init) of(dnnl_softmax_forward_desc_init)                 \
              of(dnnl_primitive_desc_create) of(dnnl_primitive_desc_query_md) of(dnnl_primitive_desc_destroy)          \
                  of(dnnl_reorder_primitive_desc_create) of(dnnl_primitive_create) of(dnnl_primitive_destroy)          \
                      of(dnnl_primitive_execute) of(dnnl_version)

/* clang-format off */
#define MEMBER(name) __typeof__(&name) name;
/* clang-format on */
static struct {
  FUNCTIONS(MEMBER)
  void (*omp_set_num_threads)(int);
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  char version[32];
  const char *missing;
  bool tried, ready;
} dnnl;

static void *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    dnnl.missing = "libdnnl.so.2 lacks a function of its header";
  }
  return found;
}

#define LOAD(name)                                                                                                     \
  {                                                                                                                    \
    void *found = symbol(library, #name);                                                                              \
    memcpy(&dnnl.name, &found, sizeof found);                                                                          \
  }

/* Between its products the threads of libgomp would spin beside ours, and what is measured next would have a core less.
 * They are told otherwise only as it is loaded, through the environment; what the user says there stays. */
static void load(void) {
  dnnl.tried = true;
  (void)setenv("OMP_WAIT_POLICY", "passive", 0);
  void *library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    dnnl.missing = "libdnnl.so.2 is not installed";
    return;
  }
  FUNCTIONS(LOAD)
  void *omp = dlsym(library, "omp_set_num_threads"); /* absent where oneDNN has another threading */
  memcpy(&dnnl.omp_set_num_threads, &omp, sizeof omp);
  if (dnnl.missing != NULL) {
    return;
  }
  if (dnnl.dnnl_engine_create(&dnnl.engine, dnnl_cpu, 0) != dnnl_success ||
      dnnl.dnnl_stream_create(&dnnl.stream, dnnl.engine, dnnl_stream_default_flags) != dnnl_success) {
    dnnl.missing = "oneDNN cannot make an engine here";
    return;
  }
  const dnnl_version_t *version = dnnl.dnnl_version();
  char *at = dnnl.version;
  const int numbers[3] = {version->major, version->minor, version->patch};
  for (int i = 0; i < 3; i++) {
    *at++ = (char)('0' + numbers[i] % 10);
    *at++ = i < 2 ? '.' : '\0';
  }
  dnnl.ready = true;
}

bool bench_dnnl_available(const char **why_out) {
  if (!dnnl.tried) {
    load();
  }
  if (!dnnl.ready && why_out != NULL) {
    *why_out = dnnl.missing;
  }
  return dnnl.ready;
}

const char *bench_dnnl_version(void) { return dnnl.version; }

void bench_dnnl_threads(int threads) {
  if (dnnl.omp_set_num_threads != NULL) {
    dnnl.omp_set_num_threads(threads);
  }
}

struct bench_dnnl_product {
  dnnl_primitive_t matmul;
  dnnl_memory_t x, w, y;
  uint8_t *packed;
  size_t packed_bytes; /* of one */
  int64_t copies, next;
};

static void describe(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, dnnl_data_type_t type, int64_t row_stride,
                     int64_t column_stride) {
  dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
  dnnl.dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides);
}

static dnnl_memory_t memory(const dnnl_memory_desc_t *desc) {
  dnnl_memory_t made = NULL;
  dnnl.dnnl_memory_create(&made, desc, dnnl.engine, DNNL_MEMORY_NONE);
  return made;
}

/* Weights into oneDNN's own layout. */
static bool pack(struct bench_dnnl_product *p, const dnnl_memory_desc_t *from_desc, const dnnl_memory_desc_t *to_desc,
                 const uint8_t *weights, int64_t stride) {
  dnnl_primitive_desc_t desc = NULL;
  dnnl_primitive_t reorder = NULL;
  p->packed_bytes = dnnl.dnnl_memory_desc_get_size(to_desc);
  p->packed = bench_alloc(p->packed_bytes * (size_t)p->copies);
  bool ok = p->packed != NULL && dnnl.dnnl_reorder_primitive_desc_create(&desc, from_desc, dnnl.engine, to_desc,
                                                                         dnnl.engine, NULL) == dnnl_success;
  ok = ok && dnnl.dnnl_primitive_create(&reorder, desc) == dnnl_success;
  dnnl_memory_t from = memory(from_desc);
  for (int64_t i = 0; ok && i < p->copies; i++) {
    dnnl.dnnl_memory_set_data_handle(from, (void *)(uintptr_t)(weights + i * stride));
    dnnl.dnnl_memory_set_data_handle(p->w, p->packed + (size_t)i * p->packed_bytes);
    dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, p->w}};
    ok = dnnl.dnnl_primitive_execute(reorder, dnnl.stream, 2, args) == dnnl_success;
  }
  dnnl.dnnl_stream_wait(dnnl.stream);
  dnnl.dnnl_memory_destroy(from);
  if (reorder != NULL) {
    dnnl.dnnl_primitive_destroy(reorder);
  }
  if (desc != NULL) {
    dnnl.dnnl_primitive_desc_destroy(desc);
  }
  return ok;
}

struct bench_dnnl_product *bench_dnnl_product_create(const struct bench_dnnl_shape *s, const void *weights,
                                                     int64_t stride, int64_t copies) {
  struct bench_dnnl_product *p = calloc(1, sizeof *p);
  dnnl_memory_desc_t x, w, wanted, y;
  dnnl_matmul_desc_t matmul;
  dnnl_primitive_desc_t desc = NULL;
  if (p == NULL) {
    return NULL;
  }
  p->copies = copies;
  describe(&x, s->m, s->k, dnnl_bf16, s->x_ld, 1);
  describe(&w, s->k, s->n, dnnl_bf16, s->k_stride, s->n_stride);
  describe(&y, s->m, s->n, dnnl_f32, s->y_ld, 1);
  wanted = w;
  if (s->packed) {
    dnnl_dims_t dims = {s->k, s->n};
    dnnl.dnnl_memory_desc_init_by_tag(&wanted, 2, dims, dnnl_bf16, dnnl_format_tag_any);
  }
  bool ok = dnnl.dnnl_matmul_desc_init(&matmul, &x, &wanted, NULL, &y) == dnnl_success &&
            dnnl.dnnl_primitive_desc_create(&desc, &matmul, NULL, dnnl.engine, NULL) == dnnl_success &&
            dnnl.dnnl_primitive_create(&p->matmul, desc) == dnnl_success;
  if (ok) {
    const dnnl_memory_desc_t *best = dnnl.dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    p->x = memory(&x);
    p->w = memory(best);
    p->y = memory(&y);
    ok = !s->packed || pack(p, &w, best, weights, stride);
  }
  if (desc != NULL) {
    dnnl.dnnl_primitive_desc_destroy(desc);
  }
  if (!ok) {
    bench_dnnl_product_destroy(p);
    return NULL;
  }
  return p;
}

void bench_dnnl_product_destroy(struct bench_dnnl_product *p) {
  if (p == NULL) {
    return;
  }
  if (p->x != NULL) {
    dnnl.dnnl_memory_destroy(p->x);
    dnnl.dnnl_memory_destroy(p->w);
    dnnl.dnnl_memory_destroy(p->y);
  }
  if (p->matmul != NULL) {
    dnnl.dnnl_primitive_destroy(p->matmul);
  }
  bench_free(p->packed, p->packed_bytes * (size_t)p->copies);
  free(p);
}

void bench_dnnl_product_run(struct bench_dnnl_product *p, const void *x, const void *w, void *y) {
  if (p->packed != NULL) {
    w = p->packed + (size_t)p->next * p->packed_bytes;
    p->next = (p->next + 1) % p->copies;
  }
  dnnl.dnnl_memory_set_data_handle(p->x, (void *)(uintptr_t)x);
  dnnl.dnnl_memory_set_data_handle(p->w, (void *)(uintptr_t)w);
  dnnl.dnnl_memory_set_data_handle(p->y, y);
  dnnl_exec_arg_t args[3] = {{DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w}, {DNNL_ARG_DST, p->y}};
  dnnl.dnnl_primitive_execute(p->matmul, dnnl.stream, 3, args);
  dnnl.dnnl_stream_wait(dnnl.stream);
}

struct bench_dnnl_softmax {
  dnnl_primitive_t primitive;
  dnnl_memory_t rows;
};

struct bench_dnnl_softmax *bench_dnnl_softmax_create(int64_t rows, int64_t count) {
  struct bench_dnnl_softmax *s = calloc(1, sizeof *s);
  dnnl_memory_desc_t data;
  dnnl_softmax_desc_t softmax;
  dnnl_primitive_desc_t desc = NULL;
  if (s == NULL) {
    return NULL;
  }
  describe(&data, rows, count, dnnl_f32, count, 1);
  bool ok = dnnl.dnnl_softmax_forward_desc_init(&softmax, dnnl_forward_inference, &data, 1) == dnnl_success &&
            dnnl.dnnl_primitive_desc_create(&desc, &softmax, NULL, dnnl.engine, NULL) == dnnl_success &&
            dnnl.dnnl_primitive_create(&s->primitive, desc) == dnnl_success;
  if (desc != NULL) {
    dnnl.dnnl_primitive_desc_destroy(desc);
  }
  if (!ok) {
    bench_dnnl_softmax_destroy(s);
    return NULL;
  }
  s->rows = memory(&data);
  return s;
}

void bench_dnnl_softmax_destroy(struct bench_dnnl_softmax *s) {
  if (s == NULL) {
    return;
  }
  if (s->rows != NULL) {
    dnnl.dnnl_memory_destroy(s->rows);
  }
  if (s->primitive != NULL) {
    dnnl.dnnl_primitive_destroy(s->primitive);
  }
  free(s);
}

void bench_dnnl_softmax_run(struct bench_dnnl_softmax *s, float *rows) {
  dnnl.dnnl_memory_set_data_handle(s->rows, rows);
  dnnl_exec_arg_t args[2] = {{DNNL_ARG_SRC, s->rows}, {DNNL_ARG_DST, s->rows}};
  dnnl.dnnl_primitive_execute(s->primitive, dnnl.stream, 2, args);
  dnnl.dnnl_stream_wait(dnnl.stream);
}

#else

bool bench_dnnl_available(const char **why_out) {
  if (why_out != NULL) {
    *why_out = "the header of oneDNN 2 was not there at build time (Debian: libdnnl-dev)";
  }
  return false;
}

const char *bench_dnnl_version(void) { return ""; }

void bench_dnnl_threads(int threads) { (void)threads; }

struct bench_dnnl_product *bench_dnnl_product_create(const struct bench_dnnl_shape *shape, const void *weights,
                                                     int64_t stride, int64_t copies) {
  (void)shape, (void)weights, (void)stride, (void)copies;
  return NULL;
}

void bench_dnnl_product_destroy(struct bench_dnnl_product *product) { (void)product; }

void bench_dnnl_product_run(struct bench_dnnl_product *product, const void *x, const void *w, void *y) {
  (void)product, (void)x, (void)w, (void)y;
}

struct bench_dnnl_softmax *bench_dnnl_softmax_create(int64_t rows, int64_t count) {
  (void)rows, (void)count;
  return NULL;
}

void bench_dnnl_softmax_destroy(struct bench_dnnl_softmax *softmax) { (void)softmax; }

void bench_dnnl_softmax_run(struct bench_dnnl_softmax *softmax, float *rows) { (void)softmax, (void)rows; }

#endif
