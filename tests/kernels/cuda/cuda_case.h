/* What the tests and timings of CUDA kernels share: device arrays, and index keys of a source spread over pages in no
 * order, with NaN wherever nothing may be read. Single thread. */
#ifndef QUIRE_TESTS_CUDA_CASE_H
#define QUIRE_TESTS_CUDA_CASE_H

#include "cuda_check.h"
#include "kernels/cuda/cuda_select.h"
#include "kernels/kernel_oracle.h"
#include "support/gpu.h"

/* Ends the program as skipped, with the reason, where no Hopper GPU is. Returns its multiprocessors. */
static inline int cuda_case_device(void) {
  struct cudaDeviceProp properties;
  test_needs_gpus(1);
  CHECK(cudaGetDeviceProperties(&properties, 0));
  return properties.multiProcessorCount;
}

/* Device memory of `bytes`, every byte 0xff: NaN in every format. */
static inline void *cuda_poisoned(int64_t bytes) {
  void *memory = NULL;
  CHECK(cudaMalloc(&memory, (size_t)(bytes > 0 ? bytes : 1)));
  CHECK(cudaMemset(memory, 0xff, (size_t)bytes));
  return memory;
}

static inline void *cuda_copy_of(const void *host, int64_t bytes) {
  void *memory = cuda_poisoned(bytes);
  CHECK(cudaMemcpy(memory, host, (size_t)bytes, cudaMemcpyHostToDevice));
  return memory;
}

static inline void *cuda_host_of(const void *device, int64_t bytes) {
  void *memory = test_alloc(bytes);
  CHECK(cudaMemcpy(memory, device, (size_t)bytes, cudaMemcpyDeviceToHost));
  return memory;
}

/* Index keys of one source, on the host in order and on the device in pages and a ring. */
struct cuda_keys {
  uint8_t *codes; /* host [length][128] */
  float *scales;  /* host [length] */
  int32_t length;
  struct quire_kv_source source; /* pointers are the device's */
  uint8_t *pool, *ring_keys, *ring_scales;
  const uint8_t **pages;
};

/* Spreads host keys: the first `prefix` in pages of the part, the rest in a ring; positions below first are not
 * there. */
static inline void cuda_keys_spread(struct test_random *r, struct cuda_keys *k, const struct quire_part *part,
                                    int32_t page_tokens, int32_t prefix, int32_t first) {
  int32_t count = (prefix + page_tokens - 1) / page_tokens;
  int32_t fresh = k->length - prefix;
  int32_t capacity = fresh > 0 ? fresh + test_between(r, 0, 5) : 0;
  int64_t stride = (part->page_bytes + 15) / 16 * 16 + 16;
  int32_t *order = test_alloc((count + 1) * 4);
  uint8_t *pool = test_poisoned(stride * (count + 1));
  uint8_t *keys = test_poisoned((int64_t)capacity * 128);
  uint8_t *scales = test_poisoned((int64_t)capacity * 4);
  const uint8_t **pages = test_alloc((count + 1) * (int64_t)sizeof *pages);
  k->pool = cuda_poisoned(stride * (count + 1));
  for (int32_t i = 0; i < count; i++) {
    int32_t j = test_between(r, 0, i);
    order[i] = order[j];
    order[j] = i;
  }
  k->source = (struct quire_kv_source){.page_tokens = page_tokens, .prefix_end = prefix, .end = k->length};
  k->source.fresh_capacity = capacity;
  k->source.fresh_first = capacity > 0 ? test_between(r, 0, capacity - 1) : 0;
  for (int32_t position = first; position < k->length; position++) {
    int64_t ring = capacity > 0 ? (k->source.fresh_first + position - prefix) % capacity : 0;
    uint8_t *key = keys + ring * 128;
    uint8_t *scale = scales + ring * 4;
    if (position < prefix) {
      uint8_t *page = pool + order[position / page_tokens] * stride;
      key = page + position % page_tokens * 128;
      scale = page + part->piece[1].offset + position % page_tokens * 4;
    }
    memcpy(key, k->codes + (int64_t)position * 128, 128);
    memcpy(scale, &k->scales[position], 4);
  }
  for (int32_t i = 0; i < count; i++) {
    pages[i] = k->pool + order[i] * stride;
  }
  CHECK(cudaMemcpy(k->pool, pool, (size_t)(stride * (count + 1)), cudaMemcpyHostToDevice));
  k->ring_keys = cuda_copy_of(keys, (int64_t)capacity * 128);
  k->ring_scales = cuda_copy_of(scales, (int64_t)capacity * 4);
  k->pages = cuda_copy_of(pages, count * (int64_t)sizeof *pages);
  k->source.pages = k->pages;
  k->source.fresh[0] = k->ring_keys;
  k->source.fresh[1] = k->ring_scales;
  free(order);
  free(pool);
  free(keys);
  free(scales);
  free(pages);
}

static inline void cuda_keys_free(struct cuda_keys *k) {
  CHECK(cudaFree(k->pool));
  CHECK(cudaFree(k->ring_keys));
  CHECK(cudaFree(k->ring_scales));
  CHECK(cudaFree(k->pages));
  free(k->codes);
  free(k->scales);
}

#endif
