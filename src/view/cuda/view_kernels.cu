/* What of a view runs on a GPU: finding rows, gathering pages, placing fresh rows, pulling commits.
 *
 * The gather is the loop of scattered_copy.cuh over (page, array, 4 KiB) of the owners' pages in place: it pulls, since a
 * puller knows when its scratch is free, and keeps to few multiprocessors, since it runs beside the layers. */
#include <cuda_runtime.h>

#include "device/scattered_copy.cuh"
#include "view/cuda/view_cuda_private.h"

#define THREADS 256
#define WARPS (THREADS / 32)

static __device__ __forceinline__ const uint8_t *page_of(const struct quire_view_cuda_pages &pages, int32_t page) {
  int32_t owner = page % pages.storage_ranks, local = page / pages.storage_ranks;
  int32_t rank = pages.own % pages.storage_ranks == owner ? pages.own : owner;
  return pages.base[rank] + (int64_t)local * pages.stride[rank];
}

static __global__ void __launch_bounds__(THREADS) sources_kernel(const __grid_constant__ struct quire_view_cuda_sources args) {
  int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
  if (i < args.pointers) {
    struct quire_view_cuda_page page = args.prefix[i];
    args.pointers_out[i] =
        page.gather >= 0 ? args.gather + (int64_t)page.gather * args.gather_bytes : page_of(args.pages, page.page);
  }
  if (i < args.entries) {
    struct quire_view_cuda_entry entry = args.entry[i];
    struct quire_kv_source source = {};
    source.pages = args.pointers_out + entry.pointer_first;
    source.page_tokens = args.page_tokens;
    source.prefix_end = entry.prefix_end;
    source.end = entry.end;
    source.fresh_first = entry.fresh_first;
    source.fresh_capacity = entry.fresh_capacity;
    for (int piece = 0; piece < QUIRE_PART_PIECES_MAX; piece++) {
      source.fresh[piece] =
          args.row_bytes[piece] == 0 ? NULL
          : entry.fresh_row >= 0     ? args.fresh[piece] + (int64_t)entry.fresh_row * args.row_bytes[piece]
                                     : args.local + entry.request * args.request_bytes + args.ring[piece];
    }
    args.sources_out[i] = source;
  }
}

struct gather_batches {
  struct quire_view_cuda_gather args;
  int32_t each; /* batches of a page */

  typedef struct quire_view_cuda_gather_page entry;

  __device__ entry fetch(int32_t u) const { return args.list[u / each]; }
  __device__ void resolve(int32_t u, entry page, struct quire_copy *item_out, uint32_t *from_out) const {
    int32_t index = u / each, left = u - index * each, array = 0;
    if (left >= args.batches[0]) {
      left -= args.batches[0];
      array = 1;
      if (left >= args.batches[1]) {
        left -= args.batches[1];
        array = 2;
      }
    }
    int kind = array == 0 ? 0 : 1;
    int64_t offset = array == 0 ? args.offset[0] : array == 1 ? args.offset[1] : args.offset[2];
    int32_t row = array == 0 ? args.row_bytes[0] : array == 1 ? args.row_bytes[1] : args.row_bytes[2];
    item_out->source = page_of(args.pages[kind], page.page) + offset;
    item_out->target = args.target[kind] + (int64_t)index * args.target_bytes[kind] + offset;
    item_out->bytes = (uint64_t)page.rows * (uint64_t)row;
    *from_out = (uint32_t)left * QUIRE_SCATTER_BYTES;
  }
};

/* One warp copies one row; rows are multiples of 4 bytes and lie at multiples of them. */
static __device__ __forceinline__ void copy_row(uint8_t *target, const uint8_t *source, int32_t bytes, int lane) {
  if ((((uint64_t)target | (uint64_t)source | (uint64_t)bytes) & 15) == 0) {
    for (int32_t i = lane; i < bytes / 16; i += 32) {
      ((uint4 *)target)[i] = source == NULL ? make_uint4(0, 0, 0, 0) : ((const uint4 *)source)[i];
    }
    return;
  }
  for (int32_t i = lane; i < bytes / 4; i += 32) {
    ((uint32_t *)target)[i] = source == NULL ? 0 : ((const uint32_t *)source)[i];
  }
}

static __global__ void __launch_bounds__(THREADS) put_kernel(const __grid_constant__ struct quire_view_cuda_put args) {
  int lane = (int)threadIdx.x % 32;
  int32_t i = (int32_t)(blockIdx.x * WARPS + threadIdx.x / 32);
  for (int array = 0; array < QUIRE_VIEW_CUDA_ARRAYS; array++) {
    int32_t bytes = args.row_bytes[array];
    if (args.page[array] == NULL) {
      continue;
    }
    if (i < args.places) {
      struct quire_view_cuda_place place = args.place[i];
      const uint8_t *row =
          place.rank < 0 ? NULL : args.block[place.rank] + args.array_offset[array] + (int64_t)place.row * bytes;
      copy_row(args.fresh[array] + (int64_t)i * bytes, row, bytes, lane);
      if (place.local >= 0) {
        copy_row(args.page[array] + place.local * args.page_stride[array] + (int64_t)place.slot * bytes, row, bytes,
                 lane);
      }
    } else if (i < args.places + args.appends) {
      struct quire_view_cuda_append append = args.append[i - args.places];
      copy_row(args.ring[array] + append.request * args.request_bytes + (int64_t)append.ring * bytes,
               args.own + args.array_offset[array] + (int64_t)append.row * bytes, bytes, lane);
    }
  }
}

static __global__ void __launch_bounds__(THREADS) commits_kernel(const __grid_constant__ struct quire_view_cuda_commits args) {
  int lane = (int)threadIdx.x % 32;
  int32_t i = (int32_t)(blockIdx.x * WARPS + threadIdx.x / 32);
  if (i < args.commits) {
    struct quire_view_cuda_commit commit = args.commit[i];
    struct quire_view_cuda_part part = args.part[blockIdx.y];
    for (int piece = 0; piece < QUIRE_PART_PIECES_MAX; piece++) {
      if (piece < part.pieces) {
        int32_t bytes = part.row_bytes[piece];
        copy_row(part.base + commit.local * part.page_stride + part.offset[piece] + (int64_t)commit.slot * bytes,
                 commit.segment + part.segment[piece] + (int64_t)commit.ring * bytes, bytes, lane);
      }
    }
  }
}

int quire_view_cuda_sources(const struct quire_view_cuda_sources *args, void *stream) {
  int32_t n = args->pointers > args->entries ? args->pointers : args->entries;
  if (n > 0) {
    sources_kernel<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, (cudaStream_t)stream>>>(*args);
  }
  return (int)cudaGetLastError();
}

int quire_view_cuda_gather(const struct quire_view_cuda_gather *args, void *stream) {
  struct gather_batches pages = {*args, args->batches[0] + args->batches[1] + args->batches[2]};
  if (args->count == 0) {
    return (int)cudaSuccess;
  }
  return (int)quire_scatter_large_launch(pages, args->count * pages.each, args->width, (cudaStream_t)stream);
}

int quire_view_cuda_put(const struct quire_view_cuda_put *args, void *stream) {
  int32_t rows = args->places + args->appends;
  if (rows > 0) {
    put_kernel<<<(unsigned)((rows + WARPS - 1) / WARPS), THREADS, 0, (cudaStream_t)stream>>>(*args);
  }
  return (int)cudaGetLastError();
}

int quire_view_cuda_commits(const struct quire_view_cuda_commits *args, void *stream) {
  if (args->commits > 0 && args->parts > 0) {
    dim3 grid((unsigned)((args->commits + WARPS - 1) / WARPS), (unsigned)args->parts);
    commits_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*args);
  }
  return (int)cudaGetLastError();
}
