/* What of a view runs on a GPU: finding rows, gathering pages, placing fresh rows, pulling commits.
 *
 * The gather is the loop of scattered_copy.cuh over the owners' pages in place: it pulls, since a puller knows when its
 * scratch is free, and keeps to few multiprocessors, since it runs beside the layers. */
#include <cuda_runtime.h>

#include "base/assert.h"
#include "device/scattered_copy.cuh"
#include "view/cuda/view_cuda_private.h"

#define THREADS 256
#define WARPS (THREADS / 32)

static __device__ __forceinline__ const uint8_t *page_of(const struct quire_view_cuda_pages &pages, int32_t page) {
  int32_t owner = page % pages.storage_ranks, local = page / pages.storage_ranks;
  int32_t rank = pages.own % pages.storage_ranks == owner ? pages.own : owner;
  return pages.base[rank] + (int64_t)local * pages.stride[rank];
}

static __global__ void __launch_bounds__(THREADS)
    sources_kernel(const __grid_constant__ struct quire_view_cuda_sources args) {
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

/* A page that is valid to its end is two items, latents and index keys with their scales. One that is not has an item
 * of valid rows an array; where there is one, all pages have the third, empty in a whole one. */
struct gather_pieces {
  int32_t each;                        /* pieces of a page */
  struct quire_scatter_split split[2]; /* of a kind's whole page */
  struct quire_view_cuda_gather args;

  struct entry {
    struct quire_view_cuda_gather_page page;
    int32_t index, piece;
  };

  __device__ entry fetch(int32_t u) const {
    int32_t index = u / each;
    return {args.list[index], index, u - index * each};
  }
  __device__ struct quire_copy resolve(const entry &e) const {
    int kind = e.piece < split[0].pieces ? 0 : 1;
    int32_t piece = e.piece - (kind == 0 ? 0 : split[0].pieces);
    bool scales = kind == 1 && piece == split[1].pieces, whole = e.page.rows == args.page_tokens;
    uint32_t page_bytes = args.page_bytes[kind];
    uint32_t row = (uint32_t)args.row_bytes[scales ? 2 : kind];
    uint32_t bytes = !whole ? (uint32_t)e.page.rows * row : scales ? 0 : page_bytes;
    uint32_t from = scales ? 0 : (uint32_t)piece * split[kind].piece_bytes;
    if (from >= bytes) {
      return {NULL, NULL, 0};
    }
    const struct quire_view_cuda_origin &origin = args.origin[kind][e.page.owner];
    int64_t at = (int64_t)from + (scales ? args.scale_offset : 0);
    return {args.target[kind] + (int64_t)e.index * page_bytes + at,
            origin.base + (int64_t)e.page.local * origin.stride + at,
            bytes - from < split[kind].piece_bytes ? bytes - from : split[kind].piece_bytes};
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

static __global__ void __launch_bounds__(THREADS)
    commits_kernel(const __grid_constant__ struct quire_view_cuda_commits args) {
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

/* Asking for a kernel's attributes loads it. */
int quire_view_cuda_load(void) {
  struct cudaFuncAttributes attributes;
  const void *const kernels[] = {(const void *)sources_kernel, (const void *)put_kernel, (const void *)commits_kernel,
                                 (const void *)quire_scatter_large_kernel<struct gather_pieces>};
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && error == cudaSuccess; i++) {
    error = cudaFuncGetAttributes(&attributes, kernels[i]);
  }
  return (int)error;
}

int quire_view_cuda_sources(const struct quire_view_cuda_sources *args, void *stream) {
  QUIRE_ASSERT(args->pointers >= 0 && args->entries >= 0 && args->page_tokens > 0);
  int32_t n = args->pointers > args->entries ? args->pointers : args->entries;
  if (n > 0) {
    sources_kernel<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, (cudaStream_t)stream>>>(*args);
  }
  return (int)cudaGetLastError();
}

int quire_view_cuda_gather(const struct quire_view_cuda_gather *args, void *stream) {
  QUIRE_ASSERT(args->count >= 0 && (args->count == 0 || args->width > 0));
  QUIRE_ASSERT(args->claims == NULL || !args->ragged);
  struct gather_pieces pages = {
      0, {quire_scatter_split(args->page_bytes[0]), quire_scatter_split(args->page_bytes[1])}, *args};
  pages.each = pages.split[0].pieces + pages.split[1].pieces + (args->ragged && args->row_bytes[2] > 0 ? 1 : 0);
  if (args->count == 0) {
    return (int)cudaSuccess;
  }
  return (int)quire_scatter_large_launch(pages, args->count * pages.each, args->width, args->claims,
                                         (cudaStream_t)stream);
}

int quire_view_cuda_put(const struct quire_view_cuda_put *args, void *stream) {
  QUIRE_ASSERT(args->places >= 0 && args->appends >= 0);
  int32_t rows = args->places + args->appends;
  if (rows > 0) {
    put_kernel<<<(unsigned)((rows + WARPS - 1) / WARPS), THREADS, 0, (cudaStream_t)stream>>>(*args);
  }
  return (int)cudaGetLastError();
}

int quire_view_cuda_commits(const struct quire_view_cuda_commits *args, void *stream) {
  QUIRE_ASSERT(args->commits >= 0 && args->parts >= 0);
  if (args->commits > 0 && args->parts > 0) {
    dim3 grid((unsigned)((args->commits + WARPS - 1) / WARPS), (unsigned)args->parts);
    commits_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*args);
  }
  return (int)cudaGetLastError();
}
