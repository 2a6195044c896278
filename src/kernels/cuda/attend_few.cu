/* attend where rows are too few to fill the device: eight blocks, a cluster, work on 64 heads of one row, and give the
 * bits that one block gives (cuda_attend.cu).
 *
 * What ties the tiles of a list are the maxima alone, and a prefix maximum is exact in any order. So the work is cut
 * twice. First by tiles: block b scores tiles b, b + 8, ..., and keeps the scores in registers. The maxima of all tiles
 * are exchanged; from their prefix maxima each block has the probabilities of its tiles, as one block would have, and
 * hands them to all. Then by columns: block b works on columns 64 b to 64 b + 63 of the output, over all tiles in their
 * order, which is that of the half of the columns it is in. Each row is read twice, all of it once and 64 columns once.
 *
 *   shared memory   | queries 72 KiB | half tiles 3 x 40 KiB |     | entries | maxima | state |
 *   then            | 64 columns of 24 tiles, 8 KiB each     |     |   of all tiles   |
 *
 * Exchanged is through memory, that is the second-level cache, which brings a block its 256 KiB of probabilities faster
 * than the network of a cluster; the cluster is there for its barrier, and so that all its blocks run. */
#include "base/assert.h"
#include "kernels/cuda/attend_few.cuh"
#include "kernels/cuda/attend_parts.cuh"

#define CLUSTER 8
#define THREADS (4 * GROUP) /* two groups multiply, two bring rows */
#define MULTIPLIERS (2 * GROUP)
#define COPIERS (2 * GROUP)
#define MULTIPLIER_REGISTERS 160 /* 160 + 96 = twice the 128 that a block of 16 warps starts with */
#define COPIER_REGISTERS 96
#define TILES_MAX (QUIRE_TOPK_MAX / TILE_ROWS)
#define TILES_OWN (TILES_MAX / CLUSTER)
#define COLUMNS (QUIRE_LATENT_DIM / CLUSTER)
#define HALVES 3 /* half tiles in shared memory: one multiplied, two on their way */
#define SLOTS 24 /* tiles of columns in shared memory, and so many at a time from memory: */
#define SLOTS_TURN 8
#define TURNS (TILES_MAX / SLOTS_TURN)
#define FETCHED 4 /* tiles of probabilities on their way */
#define FP8_SCALES QUIRE_LATENT_DIM
#define FP8_ROPE (FP8_SCALES + 16)

static_assert(CLUSTER % 2 == 0 && TILES_OWN * CLUSTER == TILES_MAX, "a block's tiles are all even or all odd");
static_assert(TILES_MAX == SLOTS + SLOTS_TURN && SLOTS % SLOTS_TURN == 0, "the last tiles reuse slots once");
static_assert(THREADS == 512 && MULTIPLIERS == COPIERS, "registers as above");

/* Named barriers. */
enum { PRODUCTS_DONE = 1, MAXIMA_READY, SUMS_READY };

/* What the blocks of an item hand to each other. */
struct exchange {
  float max[TILES_MAX][HEADS];    /* of a tile's scores, times the scale */
  float sum[TILES_MAX][HEADS][4]; /* of probabilities of a tile, in four threads each */
  /* Of a pair of tiles: the even one's under its own maximum and under the odd one's, the odd one's; as a thread of a
   * group has them for an operand. */
  uint4 p[TILES_MAX / 2 * 3][4][GROUP];
};

struct few_state {
  uint64_t half_full[HALVES], half_free[HALVES];
  uint64_t turn_full[TURNS];      /* columns of tiles, so many at a time */
  uint64_t slot_free[SLOTS_TURN]; /* of the first tiles, for the last */
  uint32_t valid[TILES_MAX * 2];  /* bit per entry */
  float sum[HEADS];
  float max[TILES_MAX + 1][HEADS]; /* prefix maxima, of the tiles before */
  const uint8_t *found[TILES_MAX * TILE_ROWS];
};

#define QUERY_AT 0
#define HALF_AT(i) (TILE_BYTES + (i) * (BLOCKS - HALF_BLOCKS) * BLOCK_BYTES)
#define SLOT_AT(slot) ((slot) * BLOCK_BYTES)
#define STATE_AT (HALF_AT(HALVES) > SLOT_AT(SLOTS) ? HALF_AT(HALVES) : SLOT_AT(SLOTS))
#define SHARED_BYTES (STATE_AT + (int)sizeof(struct few_state))

/* What a block works on. */
struct few {
  const struct attend_args *a;
  struct few_state *state;
  struct exchange *exchange;
  uint32_t shared;
  int32_t row, head; /* first head */
  int32_t count, tiles;
  int32_t rank; /* in the cluster */
};

QUIRE_DEVICE void cluster_arrive(void) { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
QUIRE_DEVICE void cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* Where all entries of the list lie; `absent` where one is passed over. All loads of a thread go out together. */
QUIRE_DEVICE void entries_find(const struct few &f, const uint8_t *absent) {
  const struct attend_args &a = *f.a;
  constexpr int EACH = TILES_MAX * TILE_ROWS / THREADS;
  const struct quire_kv_source source = a.op.rows.sources[__ldg(a.op.rows.source_of + f.row)];
  int32_t position[EACH];
  const uint8_t *base[EACH];
  int64_t behind[EACH];
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int32_t entry = i * THREADS + (int32_t)threadIdx.x;
    position[i] = entry < f.count ? __ldg(a.op.indices + (int64_t)f.row * a.op.topk + entry) : -1;
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    base[i] = position[i] >= 0 ? quire_kv_source_base(&source, &a.op.part, 0, position[i], &behind[i]) : absent;
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int32_t entry = i * THREADS + (int32_t)threadIdx.x;
    f.state->found[entry] = position[i] >= 0 ? base[i] + behind[i] : absent;
    uint32_t valid = __ballot_sync(~0u, position[i] >= 0);
    if (threadIdx.x % 32 == 0) {
      f.state->valid[entry / 32] = valid;
    }
  }
}

QUIRE_DEVICE void queries_copy(const struct few &f) {
  const struct attend_args &a = *f.a;
  const uint16_t *latent = (const uint16_t *)a.op.q_latent, *rope = (const uint16_t *)a.op.q_rope;
  uint32_t chunk = threadIdx.x % 8;
#pragma unroll
  for (int step = 0; step < HEADS * 8 / THREADS; step++) {
    uint32_t row = (uint32_t)step * (THREADS / 8) + threadIdx.x / 8;
    bool real = f.head + (int32_t)row < a.op.heads;
    int64_t head = (int64_t)f.row * a.op.heads + (real ? f.head + (int32_t)row : 0);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      const uint16_t *from = block < 8 ? latent + head * QUIRE_LATENT_DIM + block * 64 : rope + head * QUIRE_ROPE_DIM;
      hopper_copy16(f.shared + QUERY_AT + block * BLOCK_BYTES + chunk_at(row, chunk), from + chunk * 8, real);
    }
  }
}

/* --- half tiles, for scores --------------------------------------------------------------------------------------- */

/* A thread's part of half a tile of fp8 rows, on its way: codes of both 128 columns of two rows; of the half that ends
 * with the rope, the rope of two rows. */
struct half_ahead {
  uint4 codes[2][2];
  float2 scales[2];
  uint4 rope[2];
};

/* Rows as the copier of cuda_attend.cu takes them, so that a quarter of a warp stores to different banks. */
QUIRE_DEVICE uint32_t half_row(int u) {
  return threadIdx.x % COPIERS / 32 * 8 + (uint32_t)u * 4 + threadIdx.x % 32 / 16 * 2 + threadIdx.x / 4 % 2;
}
QUIRE_DEVICE uint32_t half_lane(void) { return threadIdx.x % 4 + threadIdx.x / 8 % 2 * 4; }

QUIRE_DEVICE void half_load(struct half_ahead *ahead, const uint8_t *const *found, int half) {
#pragma unroll
  for (int u = 0; u < 2; u++) {
    const uint8_t *from = found[half_row(u)];
    ahead->scales[u] = hopper_load8(from + FP8_SCALES + half * 8);
    from += half * 256 + half_lane() * 16;
    ahead->codes[u][0] = hopper_load16(from);
    ahead->codes[u][1] = hopper_load16(from + 128);
    if (half == 1) {
      uint32_t row = (uint32_t)u * (TILE_ROWS / 2) + threadIdx.x % COPIERS / 8;
      ahead->rope[u] = hopper_load16(found[row] + FP8_ROPE + threadIdx.x % 8 * 16);
    }
  }
}

template <bool PLAIN> QUIRE_DEVICE void half_widen(const struct half_ahead &ahead, uint32_t to) {
  uint32_t lane = half_lane(), block = to + lane / 4 * BLOCK_BYTES, chunk = lane % 4 * 2;
#pragma unroll
  for (int u = 0; u < 2; u++) {
    codes_store<PLAIN>(ahead.codes[u][0], ahead.scales[u].x, block, half_row(u), chunk);
    codes_store<PLAIN>(ahead.codes[u][1], ahead.scales[u].y, block + 2 * BLOCK_BYTES, half_row(u), chunk);
  }
}

QUIRE_DEVICE void half_store(const struct half_ahead &ahead, uint32_t to, int half) {
  bool plain = scale_plain(ahead.scales[0].x) && scale_plain(ahead.scales[0].y) && scale_plain(ahead.scales[1].x) &&
               scale_plain(ahead.scales[1].y);
  if (__all_sync(~0u, plain)) {
    half_widen<true>(ahead, to);
  } else {
    half_widen<false>(ahead, to);
  }
  if (half == 1) {
#pragma unroll
    for (int u = 0; u < 2; u++) {
      uint32_t row = (uint32_t)u * (TILE_ROWS / 2) + threadIdx.x % COPIERS / 8;
      hopper_store16(to + HALF_BLOCKS * BLOCK_BYTES + chunk_at(row, threadIdx.x % 8), ahead.rope[u]);
    }
  }
}

/* Half a tile of bf16 rows. */
QUIRE_DEVICE void half_copy(const struct few &f, int32_t tile, int half, uint32_t to) {
  uint32_t chunk = threadIdx.x % 8;
#pragma unroll
  for (int u = 0; u < 2; u++) {
    uint32_t row = (uint32_t)u * (TILE_ROWS / 2) + threadIdx.x % COPIERS / 8;
    const uint8_t *from = f.state->found[tile * TILE_ROWS + row];
#pragma unroll
    for (int block = 0; block < HALF_BLOCKS + 1; block++) {
      if (block < HALF_BLOCKS + half) {
        int at = half * HALF_BLOCKS + block;
        const void *piece = from != NULL ? from + at * 128 + chunk * 16 : f.a->op.q_latent;
        hopper_copy16(to + block * BLOCK_BYTES + chunk_at(row, chunk), piece, from != NULL);
      }
    }
  }
}

/* The copiers' work for the scores: half tiles, in the order in which they are multiplied. */
template <bool FP8> QUIRE_DEVICE void halves_bring(const struct few &f) {
  int odd = f.rank % 2;
  struct half_ahead ahead[2];
#pragma unroll
  for (int s = 0; s < 2; s++) {
    if (FP8 && f.rank < f.tiles) {
      half_load(&ahead[s], f.state->found + f.rank * TILE_ROWS, s ^ odd);
    }
  }
  int at = 0;
  uint32_t parity = 1;
#pragma unroll 1
  for (int32_t tile = f.rank; tile < f.tiles; tile += CLUSTER) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
      hopper_barrier_wait(&f.state->half_free[at], parity);
      if (FP8) {
        half_store(ahead[s], f.shared + HALF_AT(at), s ^ odd);
        hopper_proxy_fence();
        hopper_barrier_arrive(&f.state->half_full[at]);
        if (tile + CLUSTER < f.tiles) {
          half_load(&ahead[s], f.state->found + (tile + CLUSTER) * TILE_ROWS, s ^ odd);
        }
      } else {
        half_copy(f, tile, s ^ odd, f.shared + HALF_AT(at));
        hopper_copies_arrive(&f.state->half_full[at]);
      }
      at = at + 1 < HALVES ? at + 1 : 0;
      parity ^= at == 0;
    }
  }
}

/* --- scores ------------------------------------------------------------------------------------------------------- */

template <int HALF> QUIRE_DEVICE void half_multiply(float (&score)[32], uint32_t queries, uint32_t tile, bool fresh) {
  hopper_hold(score);
  hopper_products_begin();
#pragma unroll
  for (int block = 0; block < HALF_BLOCKS + HALF; block++) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
      hopper_product_64x64(score, hopper_operand(queries + (HALF * HALF_BLOCKS + block) * BLOCK_BYTES) + step * 2,
                           hopper_operand(tile + block * BLOCK_BYTES) + step * 2, !(fresh && block == 0 && step == 0));
    }
  }
  hopper_products_end();
}

/* The k-th tile of the block: its two halves, of an odd tile the upper one first. */
template <bool ODD> QUIRE_DEVICE void tile_score(const struct few &f, float (&score)[32], int32_t k) {
  uint32_t queries = f.shared + QUERY_AT;
  int first = 2 * k % HALVES, second = (2 * k + 1) % HALVES;
  hopper_barrier_wait(&f.state->half_full[first], (uint32_t)(2 * k / HALVES & 1));
  hopper_proxy_fence();
  half_multiply<ODD ? 1 : 0>(score, queries, f.shared + HALF_AT(first), true);
  hopper_barrier_wait(&f.state->half_full[second], (uint32_t)((2 * k + 1) / HALVES & 1));
  hopper_proxy_fence();
  half_multiply<ODD ? 0 : 1>(score, queries, f.shared + HALF_AT(second), false);
  hopper_products_wait<1>();
  hopper_barrier_arrive_warp(&f.state->half_free[first]);
  hopper_products_wait<0>();
  hopper_hold(score);
  hopper_barrier_arrive_warp(&f.state->half_free[second]);
}

/* A group's scores: of its last tile, and, where it has two, of its first. */
struct held {
  float first[32], score[32];
  int32_t tiles, first_tile, last_tile;
};

/* Scores of the group's tiles: the block's first and third by group 0, the others by group 1. */
QUIRE_DEVICE void tiles_score(const struct few &f, struct held *h, int group) {
  h->tiles = 0;
  h->first_tile = f.rank + group * CLUSTER;
  h->last_tile = h->first_tile;
#pragma unroll 1
  for (int32_t k = group; f.rank + k * CLUSTER < f.tiles; k += 2) {
    if (h->tiles > 0) {
#pragma unroll
      for (int i = 0; i < 32; i++) {
        h->first[i] = h->score[i];
      }
    }
    if (f.rank % 2 == 1) {
      tile_score<true>(f, h->score, k);
    } else {
      tile_score<false>(f, h->score, k);
    }
    h->last_tile = f.rank + k * CLUSTER;
    h->tiles++;
  }
}

/* Masks the scores of a tile, and hands out their maxima. */
QUIRE_DEVICE void tile_max_put(const struct few &f, float (&score)[32], int32_t tile) {
  scores_mask(score, (uint64_t)f.state->valid[2 * tile] | (uint64_t)f.state->valid[2 * tile + 1] << 32);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float best = -INFINITY;
#pragma unroll
    for (int i = 2 * r; i < 32; i += 4) {
      best = fmaxf(best, fmaxf(score[i], score[i + 1]));
    }
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    if (threadIdx.x % 4 == 0) {
      f.exchange->max[tile][held_row(r)] = best * f.a->scale;
    }
  }
}

/* Prefix maxima of all tiles, from the exchange, for both groups. */
QUIRE_DEVICE void maxima_get(const struct few &f) {
  if (threadIdx.x < HEADS) {
    float max = MAX_START;
    float own[TILES_MAX];
#pragma unroll
    for (int t = 0; t < TILES_MAX; t++) {
      own[t] = t < f.tiles ? __ldcg(&f.exchange->max[t][threadIdx.x]) : -INFINITY;
    }
#pragma unroll
    for (int t = 0; t < TILES_MAX; t++) {
      f.state->max[t][threadIdx.x] = max;
      max = fmaxf(max, own[t]);
    }
    f.state->max[TILES_MAX][threadIdx.x] = max;
  }
  hopper_threads_sync(MAXIMA_READY, MULTIPLIERS);
}

/* Which of a pair's probabilities: upper is the half of the columns. */
QUIRE_DEVICE int32_t p_index(int32_t tile, bool upper) { return tile / 2 * 3 + (tile % 2 == 1 ? 2 : upper); }

QUIRE_DEVICE void p_put(const struct few &f, const uint32_t (&p)[16], int32_t index) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    f.exchange->p[index][j][threadIdx.x % GROUP] = make_uint4(p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]);
  }
}

/* Probabilities of a tile from its scores, as softmax of cuda_attend.cu. */
QUIRE_DEVICE void tile_probabilities_put(const struct few &f, float (&score)[32], int32_t tile) {
  uint32_t p[16];
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float max = f.state->max[tile + 1][held_row(r)], sum = 0;
#pragma unroll
    for (int i = 2 * r; i < 32; i += 4) {
      score[i] = hopper_exp2(fmaf(score[i], f.a->scale, -max));
      score[i + 1] = hopper_exp2(fmaf(score[i + 1], f.a->scale, -max));
      p[i / 2] = hopper_bf16_pair(score[i], score[i + 1]);
      sum += score[i] + score[i + 1];
    }
    f.exchange->sum[tile][held_row(r)][threadIdx.x % 4] = sum;
    factor[r] = hopper_exp2(max - f.state->max[min(tile + 2, TILES_MAX)][held_row(r)]);
  }
  p_put(f, p, p_index(tile, false));
  if (tile % 2 == 0) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      p[i] = hopper_bf16_pair(score[2 * i] * factor[i % 2], score[2 * i + 1] * factor[i % 2]);
    }
    p_put(f, p, p_index(tile, true));
  }
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* 16 codes of a row's 64 columns, on their way. */
struct codes_ahead {
  uint4 codes;
  float scale;
};

QUIRE_DEVICE void codes_load(const struct few &f, struct codes_ahead *ahead, int32_t tile, int32_t unit) {
  const uint8_t *from = f.state->found[tile * TILE_ROWS + unit / 4];
  ahead->scale = *(const float *)(from + FP8_SCALES + f.rank / 2 * 4);
  ahead->codes = hopper_load16(from + f.rank * COLUMNS + unit % 4 * 16);
}

QUIRE_DEVICE void codes_put(const struct codes_ahead &ahead, uint32_t to, int32_t unit) {
  uint32_t row = (uint32_t)unit / 4, chunk = (uint32_t)unit % 4 * 2;
  if (__all_sync(~0u, scale_plain(ahead.scale))) {
    codes_store<true>(ahead.codes, ahead.scale, to, row, chunk);
  } else {
    codes_store<false>(ahead.codes, ahead.scale, to, row, chunk);
  }
}

/* The columns of a tile of bf16 rows. */
QUIRE_DEVICE void columns_copy(const struct few &f, int32_t tile, uint32_t to) {
#pragma unroll
  for (int u = 0; u < 2; u++) {
    uint32_t row = (uint32_t)u * (TILE_ROWS / 2) + threadIdx.x % COPIERS / 8, chunk = threadIdx.x % 8;
    const uint8_t *at = f.state->found[tile * TILE_ROWS + row];
    const void *from = at != NULL ? at + f.rank * COLUMNS * 2 + chunk * 16 : f.a->op.q_latent;
    hopper_copy16(to + chunk_at(row, chunk), from, at != NULL);
  }
}

/* The columns of a turn's tiles to their slots. The last turn's wait until theirs are free. */
template <bool FP8> QUIRE_DEVICE void columns_bring(const struct few &f, int turn) {
  int32_t first = turn * SLOTS_TURN, unit = (int32_t)threadIdx.x % COPIERS;
  bool again = first >= SLOTS;
  struct codes_ahead ahead[SLOTS_TURN];
#pragma unroll
  for (int i = 0; i < SLOTS_TURN; i++) {
    if (FP8 && first + i < f.tiles) {
      codes_load(f, &ahead[i], first + i, unit);
    }
  }
#pragma unroll
  for (int i = 0; i < SLOTS_TURN; i++) {
    uint32_t to = f.shared + SLOT_AT((again ? 0 : first) + i);
    if (first + i < f.tiles) {
      if (again) {
        hopper_barrier_wait(&f.state->slot_free[i], 0);
      }
      if (FP8) {
        codes_put(ahead[i], to, unit);
      } else {
        columns_copy(f, first + i, to);
      }
    }
  }
  if (FP8) {
    hopper_proxy_fence();
    hopper_barrier_arrive(&f.state->turn_full[turn]);
  } else {
    hopper_copies_arrive(&f.state->turn_full[turn]);
  }
}

/* The tile that is the x-th to be multiplied: in the upper half of the columns a pair's odd one comes first. */
QUIRE_DEVICE int32_t tile_at(int32_t x, bool upper) { return x ^ (int32_t)upper; }

QUIRE_DEVICE void p_get(const struct few &f, uint32_t (&p)[16], int32_t x, bool upper) {
  if (x < f.tiles) {
    int32_t index = p_index(tile_at(x, upper), upper);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      uint4 four = __ldcg(&f.exchange->p[index][j][threadIdx.x % GROUP]);
      p[4 * j] = four.x;
      p[4 * j + 1] = four.y;
      p[4 * j + 2] = four.z;
      p[4 * j + 3] = four.w;
    }
  }
}

/* Brings the output to the maximum under which the next probabilities are. */
QUIRE_DEVICE void out_bring(const struct few &f, float (&out)[32], int32_t x, bool upper) {
  if (upper && x % 2 == 1) {
    return;
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    factor[r] = hopper_exp2(f.state->max[x][held_row(r)] - f.state->max[x + (upper ? 2 : 1)][held_row(r)]);
  }
  if (__all_sync(~0u, factor[0] == 1.0f && factor[1] == 1.0f)) {
    return; /* times one */
  }
#pragma unroll
  for (int i = 0; i < 32; i++) {
    out[i] *= factor[i / 2 % 2];
  }
}

QUIRE_DEVICE void tile_multiply(const struct few &f, float (&out)[32], const uint32_t (&p)[16], int32_t tile) {
  uint32_t columns = f.shared + SLOT_AT(tile < SLOTS ? tile : tile - SLOTS);
  hopper_barrier_wait(&f.state->turn_full[tile / SLOTS_TURN], 0);
  hopper_proxy_fence();
  hopper_hold(out);
  hopper_products_begin();
#pragma unroll
  for (int step = 0; step < 4; step++) {
    hopper_product_64x64_registers(out, p + 4 * step, hopper_operand_across(columns, BLOCK_BYTES) + step * 128);
  }
  hopper_products_end();
  hopper_products_wait<0>();
  hopper_hold(out);
  if (tile < SLOTS_TURN) {
    hopper_barrier_arrive_warp(&f.state->slot_free[tile]);
  }
}

/* Group 0: the block's columns of the output, over all tiles. */
QUIRE_DEVICE void values(const struct few &f, float (&out)[32], bool upper) {
  uint32_t p[FETCHED][16];
#pragma unroll
  for (int i = 0; i < 32; i++) {
    out[i] = 0;
  }
#pragma unroll
  for (int i = 0; i < FETCHED; i++) {
    p_get(f, p[i], i, upper);
  }
#pragma unroll 1
  for (int32_t x = 0; x < f.tiles; x += FETCHED) {
#pragma unroll
    for (int i = 0; i < FETCHED; i++) {
      if (x + i < f.tiles) {
        out_bring(f, out, x + i, upper);
        tile_multiply(f, out, p[i], tile_at(x + i, upper));
        p_get(f, p[i], x + i + FETCHED, upper);
      }
    }
  }
}

/* Group 1: the sums of even and odd tiles in four threads a row, as the two groups of cuda_attend.cu make them. */
QUIRE_DEVICE void sums(const struct few &f) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int row = held_row(r);
    float even = 0, odd = 0;
#pragma unroll 4
    for (int32_t t = 0; t < f.tiles; t += 2) {
      float before = f.state->max[t][row], between = f.state->max[t + 1][row], after = f.state->max[t + 2][row];
      even = fmaf(even, hopper_exp2(before - between), __ldcg(&f.exchange->sum[t][row][threadIdx.x % 4]));
      even *= hopper_exp2(between - after);
      odd = fmaf(odd, hopper_exp2(before - after), __ldcg(&f.exchange->sum[t + 1][row][threadIdx.x % 4]));
    }
    even += __shfl_xor_sync(~0u, even, 1);
    even += __shfl_xor_sync(~0u, even, 2);
    odd += __shfl_xor_sync(~0u, odd, 1);
    odd += __shfl_xor_sync(~0u, odd, 2);
    if (threadIdx.x % 4 == 0) {
      f.state->sum[row] = even + odd;
    }
  }
}

/* The division, the columns, and from one block the log-sum-exp. */
QUIRE_DEVICE void few_end(const struct few &f, const float (&out)[32]) {
  const struct attend_args &a = *f.a;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = f.tiles > 0 ? f.state->sum[held_row(r)] : 0;
    int32_t head = f.head + held_row(r);
    factor[r] = sum == 0 ? 0 : 1.0f / sum;
    if (f.rank == 0 && threadIdx.x % 4 == 0 && head < a.op.heads) {
      float max = f.state->max[TILES_MAX][held_row(r)];
      a.op.lse[(int64_t)f.row * a.op.heads + head] = sum == 0 ? -INFINITY : (max + hopper_log2(sum)) * LN2;
    }
  }
  out_store<COLUMNS>(a, out, f.row, f.head, f.rank * COLUMNS, factor);
}

QUIRE_DEVICE void multiply(const struct few &f) {
  struct held h;
  float out[32];
  int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP, 0); /* so that the compiler knows it is one for the warp */
  tiles_score(f, &h, group);
  hopper_threads_tell(PRODUCTS_DONE, THREADS);
  if (h.tiles > 1) {
    tile_max_put(f, h.first, h.first_tile);
  }
  if (h.tiles > 0) {
    tile_max_put(f, h.score, h.last_tile);
  }
  cluster_arrive();
  cluster_wait();
  maxima_get(f);
  if (h.tiles > 1) {
    tile_probabilities_put(f, h.first, h.first_tile);
  }
  if (h.tiles > 0) {
    tile_probabilities_put(f, h.score, h.last_tile);
  }
  cluster_arrive();
  cluster_wait();
  if (group == 1) {
    sums(f);
    hopper_threads_tell(SUMS_READY, MULTIPLIERS);
    return;
  }
  values(f, out, f.rank >= CLUSTER / 2);
  hopper_threads_sync(SUMS_READY, MULTIPLIERS);
  few_end(f, out);
}

template <bool FP8> QUIRE_DEVICE void bring(const struct few &f) {
  halves_bring<FP8>(f);
  cluster_arrive();
  hopper_threads_sync(PRODUCTS_DONE, THREADS); /* columns take the place of what was multiplied */
  columns_bring<FP8>(f, 0);
  cluster_wait();
  cluster_arrive();
#pragma unroll 1
  for (int turn = 1; turn < TURNS; turn++) {
    columns_bring<FP8>(f, turn);
    if (turn == 1) {
      cluster_wait();
    }
  }
  hopper_copies_commit();
  hopper_copies_wait<0>(); /* no thread may end while its copies are under way */
}

QUIRE_DEVICE void few_begin(const struct few &f) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < HALVES; i++) {
      hopper_barrier_init(&f.state->half_full[i], COPIERS);
      hopper_barrier_init(&f.state->half_free[i], GROUP / 32 * HOPPER_WARP_ARRIVALS);
    }
    for (int i = 0; i < TURNS; i++) {
      hopper_barrier_init(&f.state->turn_full[i], COPIERS);
    }
    for (int i = 0; i < SLOTS_TURN; i++) {
      hopper_barrier_init(&f.state->slot_free[i], GROUP / 32 * HOPPER_WARP_ARRIVALS);
    }
    hopper_barrier_init_fence();
  }
}

/* A row without entries. */
QUIRE_DEVICE void nothing(const struct few &f) {
  const float out[32] = {};
  if (threadIdx.x < GROUP) {
    few_end(f, out);
  }
}

template <bool FP8>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_few_kernel(const __grid_constant__ struct attend_args a, struct exchange *exchange) {
  extern __shared__ __align__(1024) uint8_t memory[];
  struct few f = {};
  int32_t item = (int32_t)blockIdx.x / CLUSTER;
  f.a = &a;
  f.state = (struct few_state *)(memory + STATE_AT);
  f.exchange = exchange + item;
  f.shared = hopper_shared(memory);
  f.row = item / a.head_groups;
  f.head = (item - f.row * a.head_groups) * HEADS;
  f.count = max(min(__ldg(a.op.counts + f.row), a.op.topk), 0);
  f.tiles = (f.count + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS) * 2;
  f.rank = (int32_t)blockIdx.x % CLUSTER;
  if (f.tiles == 0) {
    nothing(f);
    return;
  }
  few_begin(f);
  queries_copy(f);
  hopper_copies_commit();
  entries_find(f, FP8 ? (const uint8_t *)absent_row : NULL);
  hopper_copies_wait<0>();
  hopper_proxy_fence();
  __syncthreads();
  if (threadIdx.x < MULTIPLIERS) {
    hopper_registers_up<MULTIPLIER_REGISTERS>();
    multiply(f);
  } else {
    hopper_registers_down<COPIER_REGISTERS>();
    bring<FP8>(f);
  }
}

bool attend_few_can(const struct attend_args *a, int processors) {
  return a->op.scratch != NULL && a->op.topk <= QUIRE_TOPK_MAX && a->items <= ATTEND_FEW_ITEMS &&
         a->items <= processors / CLUSTER;
}

int64_t attend_few_scratch_bytes(int32_t items) {
  QUIRE_ASSERT(items >= 0);
  return (items < ATTEND_FEW_ITEMS ? items : ATTEND_FEW_ITEMS) * (int64_t)sizeof(struct exchange);
}

enum quire_status attend_few(cudaStream_t stream, const struct attend_args *a) {
  QUIRE_ASSERT(a->items > 0 && a->items <= ATTEND_FEW_ITEMS);
  void (*kernel)(struct attend_args, struct exchange *) =
      a->op.format == QUIRE_KV_FP8 ? attend_few_kernel<true> : attend_few_kernel<false>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) != cudaSuccess) {
    return QUIRE_ERR_RANK;
  }
  cudaLaunchAttribute cluster = {.id = cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {CLUSTER, 1, 1};
  cudaLaunchConfig_t config = {.gridDim = dim3((uint32_t)a->items * CLUSTER),
                               .blockDim = dim3(THREADS),
                               .dynamicSmemBytes = SHARED_BYTES,
                               .stream = stream,
                               .attrs = &cluster,
                               .numAttrs = 1};
  struct exchange *exchange = (struct exchange *)a->op.scratch;
  return cudaLaunchKernelEx(&config, kernel, *a, exchange) == cudaSuccess ? QUIRE_OK : QUIRE_ERR_RANK;
}
