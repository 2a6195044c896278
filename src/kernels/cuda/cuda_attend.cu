/* Sparse attention for Hopper: a block of three warp groups works on 64 heads of one query row at a time.
 *
 *   copier      gathers the selected rows, 64 a tile, up to two tiles (a pair) ahead of the products
 *   group 0     scores and probabilities of the even tiles; columns   0..255 of the output
 *   group 1     scores and probabilities of the odd tiles;  columns 256..511 of the output
 *
 * The two groups run half a pair apart, so that one's softmax hides behind the other's products (the "seesaw" that
 * FlashMLA's notes describe): a group multiplies its own probabilities from registers and hands them to the other
 * through shared memory. The running maximum goes back and forth between them. Tiles are loaded and released by halves
 * of their columns, so that a half is on its way while the other is still multiplied; the copier takes the four halves
 * of a pair (quarters) in the order in which they are free again:
 *
 *   shared memory   | queries 72 KiB | even tile 72 KiB | odd tile 72 KiB | odd probabilities 8 KiB | state |
 *   half 0          columns 0..255 of a tile;  half 1: columns 256..511 and the rope's 64
 *   even probabilities take the place of the even tile's rope columns once its scores are done
 *
 * Rows of bf16 are copied asynchronously. Rows of fp8 go through the copier's registers, which widens their codes to
 * bf16 (in four instructions a pair of values); that bounds the kernel, so with 128 heads the two blocks of a row are a
 * cluster, each widens half of the rows, and the copy engine brings them to the other.
 *
 * Blocks stay for many rows (as many as fit the device are started); the copier runs on into the next row while the
 * groups finish one. A row's arithmetic is this order and nothing else: tiles of 64 list entries ascending, so its bits
 * depend neither on the batch nor on where rows lie. A split over the list whose partial outputs are folded would
 * change bits with the batch, or cost every row its folds; few rows are spread over the device in another way, with
 * these bits (attend_few.cu).
 *
 * Tried and slower: queries in registers with groups for scores and for values (64 x 32 products take more than half of
 * the time of 64 x 64); four groups for fp8, two of them copiers (too few registers for their loads); prefetches into
 * the second-level cache; rows by one bulk copy of 128 bytes for each row and 64 columns (26 ns each, one at a
 * time). */
#include "kernels/cuda/cuda_attend.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "base/assert.h"
#include "kernels/cuda/attend_few.cuh"
#include "kernels/cuda/attend_parts.cuh"

#define PAIR_ROWS 128 /* of two */
#define GROUPS 2      /* that multiply */
#define THREADS 384
#define PEER_BYTES (TILE_ROWS / 2 * 256 * 2) /* of half a tile that come from the other block of a pair */

/* Named barriers of the two groups. */
enum { EVEN_MAX = 1, ODD_MAX, EVEN_READY, ODD_READY, EVEN_SUMS, ODD_SUMS };

struct attend_state {
  uint64_t query_full, query_free;
  uint64_t full[2][2], free[2][2]; /* tile, half */
  uint64_t valid_full;
  uint64_t valid[2]; /* bit per entry of a tile */
  float max[HEADS];
  float sum[GROUPS][HEADS];
  struct quire_kv_source source[GROUP / 32]; /* of the row being looked up, one copy for each warp of the copier */
};

#define QUERY_AT 0
#define TILE_AT(tile) ((1 + (tile)) * TILE_BYTES)
#define EVEN_AT (TILE_AT(0) + 8 * BLOCK_BYTES)
#define ODD_AT (3 * TILE_BYTES)
#define STATE_AT (ODD_AT + BLOCK_BYTES)
#define SHARED_BYTES (STATE_AT + (int)sizeof(struct attend_state))

/* A block's way through its items. */
struct cursor {
  int32_t item;
  int32_t row, head; /* first head */
  int32_t count;     /* entries of the row's list */
  int32_t pair;
};

QUIRE_DEVICE void cursor_open(const struct attend_args &a, struct cursor *c) {
  c->row = c->item / a.head_groups;
  c->head = (c->item - c->row * a.head_groups) * HEADS;
  c->count = c->item < a.items ? min(__ldg(a.op.counts + c->row), a.op.topk) : 0;
  c->pair = 0;
}

/* To the next pair, through empty rows; false at the end. */
QUIRE_DEVICE bool cursor_next(const struct attend_args &a, struct cursor *c) {
  c->pair++;
  while (c->pair * PAIR_ROWS >= c->count) {
    c->item += gridDim.x;
    if (c->item >= a.items) {
      c->count = 0;
      return false;
    }
    cursor_open(a, c);
  }
  return true;
}

/* --- copier ------------------------------------------------------------------------------------------------------- */

/* Lane l of a warp looks up a row of the even tile (l < 16) or of the odd one; a warp copies the rows it looked up. */
QUIRE_DEVICE int32_t entry_load(const struct attend_args &a, const struct cursor &c) {
  int32_t thread = threadIdx.x % GROUP, lane = thread % 32;
  int32_t entry = c.pair * PAIR_ROWS + (lane / 16) * TILE_ROWS + thread / 32 * 16 + lane % 16;
  return entry < c.count ? __ldg(a.op.indices + (int64_t)c.row * a.op.topk + entry) : -1;
}

/* A look-up on its way: its loads depend on one another, and each is issued long before its value is wanted. */
struct lookup {
  int32_t position;
  const uint8_t *base;
  int64_t behind;
};

/* The entry of this lane in the cursor's pair. With a new row its source is fetched too, to where it is near. */
QUIRE_DEVICE struct lookup lookup_begin(const struct attend_args &a, const struct cursor &c, bool more,
                                        struct quire_kv_source *source) {
  uint32_t lane = threadIdx.x % 32;
  struct lookup l = {-1, NULL, 0};
  if (more && c.pair == 0) {
    const uint32_t *from = (const uint32_t *)(a.op.rows.sources + __ldg(a.op.rows.source_of + c.row));
    __syncwarp();
    if (lane < sizeof *source / 4) {
      ((uint32_t *)source)[lane] = __ldg(from + lane);
    }
    __syncwarp();
  }
  if (more) {
    l.position = entry_load(a, c);
  }
  return l;
}

QUIRE_DEVICE void lookup_go_on(const struct attend_args &a, struct lookup *l, const struct quire_kv_source *source) {
  l->position = hopper_hold(l->position);
  if (l->position >= 0) {
    l->base = quire_kv_source_base(source, &a.op.part, 0, l->position, &l->behind);
  }
}

/* The row's address, or `absent`. */
QUIRE_DEVICE const uint8_t *lookup_end(const struct lookup &l, const uint8_t *absent) {
  return l.position >= 0 ? hopper_hold(l.base) + l.behind : absent;
}

QUIRE_DEVICE const uint8_t *lookup_now(const struct attend_args &a, const struct cursor &c, bool more,
                                       struct quire_kv_source *source, const uint8_t *absent) {
  struct lookup l = lookup_begin(a, c, more, source);
  lookup_go_on(a, &l, source);
  return lookup_end(l, absent);
}

/* A step brings four rows of each warp, eight lanes a row. */
QUIRE_DEVICE uint32_t copy_row(int step) { return threadIdx.x % GROUP / 32 * 16 + step * 4 + threadIdx.x % 32 / 8; }

QUIRE_DEVICE const uint8_t *entry_of(const uint8_t *found, int tile, uint32_t row) {
  return (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)found, tile * 16 + row % 16);
}

QUIRE_DEVICE void queries_copy(const struct attend_args &a, const struct cursor &c, uint32_t to, uint64_t policy) {
  const uint16_t *latent = (const uint16_t *)a.op.q_latent, *rope = (const uint16_t *)a.op.q_rope;
  uint32_t chunk = threadIdx.x % 8;
#pragma unroll
  for (int step = 0; step < 4; step++) {
    uint32_t row = copy_row(step);
    bool real = c.head + (int32_t)row < a.op.heads;
    int64_t head = (int64_t)c.row * a.op.heads + (real ? c.head + row : 0);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      const uint16_t *from = block < 8 ? latent + head * QUIRE_LATENT_DIM + block * 64 : rope + head * QUIRE_ROPE_DIM;
      hopper_copy16_keep(to + block * BLOCK_BYTES + chunk_at(row, chunk), from + chunk * 8, real, policy);
    }
  }
}

/* Half a tile of bf16 rows. */
QUIRE_DEVICE void half_copy(const struct attend_args &a, const uint8_t *found, uint32_t to, int tile, int half,
                            uint64_t policy) {
  uint32_t chunk = threadIdx.x % 8;
#pragma unroll
  for (int step = 0; step < 4; step++) {
    const uint8_t *from = entry_of(found, tile, copy_row(step));
    bool real = from != NULL;
    from = (real ? from : (const uint8_t *)a.op.q_latent) + chunk * 16;
#pragma unroll
    for (int block = half * HALF_BLOCKS; block < (half ? BLOCKS : HALF_BLOCKS); block++) {
      hopper_copy16_keep(to + block * BLOCK_BYTES + chunk_at(copy_row(step), chunk), from + block * 128, real, policy);
    }
  }
}

QUIRE_DEVICE void valid_put(struct attend_state *state, bool valid) {
  uint32_t bits = __ballot_sync(0xffffffffu, valid);
  int warp = threadIdx.x % GROUP / 32;
  if (threadIdx.x % 32 == 0) {
    ((uint16_t *)&state->valid[0])[warp] = (uint16_t)bits;
    ((uint16_t *)&state->valid[1])[warp] = (uint16_t)(bits >> 16);
    hopper_barrier_arrive(&state->valid_full);
  }
}

/* The order in which halves are free again: (tile, half) of quarter 0..3. */
QUIRE_DEVICE int quarter_tile(int quarter) { return quarter & 1; }
QUIRE_DEVICE int quarter_half(int quarter) { return quarter == 1 || quarter == 2; }

QUIRE_DEVICE void copier_bf16(const struct attend_args &a, uint32_t shared, struct attend_state *state) {
  uint64_t policy = hopper_policy_keep();
  struct quire_kv_source *source = &state->source[threadIdx.x % GROUP / 32];
  struct cursor c = {.item = (int32_t)blockIdx.x};
  cursor_open(a, &c);
  c.pair = -1;
  bool more = cursor_next(a, &c);
  const uint8_t *found = lookup_now(a, c, more, source, NULL);
  uint32_t pairs = 0, items = 0;
  while (more) {
    struct cursor next = c;
    more = cursor_next(a, &next);
    struct lookup lookup = lookup_begin(a, next, more, source);
    if (c.pair == 0) {
      hopper_barrier_wait(&state->query_free, (items & 1) ^ 1);
      queries_copy(a, c, shared + QUERY_AT, policy);
      hopper_copies_arrive(&state->query_full);
      items++;
    }
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
      int tile = quarter_tile(quarter), half = quarter_half(quarter);
      hopper_barrier_wait(&state->free[tile][half], (pairs & 1) ^ 1);
      half_copy(a, found, shared + TILE_AT(tile), tile, half, policy);
      hopper_copies_arrive(&state->full[tile][half]);
      if (quarter == 1) { /* behind it both groups are done with the bits of the pair before */
        valid_put(state, found != NULL);
      }
    }
    lookup_go_on(a, &lookup, source);
    found = lookup_end(lookup, NULL);
    c = next;
    pairs++;
  }
}

/* A step of half a tile of fp8 rows, on its way: this lane's codes of both 128 columns. */
struct unit {
  uint4 codes[2];
  float2 scales;
};

#define UNITS 4 /* of a quarter; a block of a pair does half the rows: two units */

/* Row and 16 codes of it for this lane. A quarter of a warp stores at once: four lanes of an even row and four of an
 * odd one hit different banks. Of a warp's sixteen rows, a block of a pair does eight. */
template <bool PAIR> QUIRE_DEVICE uint32_t unit_row(int u) {
  uint32_t half = PAIR ? hopper_pair_rank() * 8 : 0;
  return threadIdx.x % GROUP / 32 * 16 + half + u * 4 + threadIdx.x % 32 / 16 * 2 + threadIdx.x / 4 % 2;
}
QUIRE_DEVICE uint32_t unit_lane(void) { return threadIdx.x % 4 + threadIdx.x / 8 % 2 * 4; }

template <bool PAIR> QUIRE_DEVICE void unit_load(struct unit *unit, const uint8_t *found, int u, int quarter) {
  int tile = quarter_tile(quarter), half = quarter_half(quarter);
  const uint8_t *from = entry_of(found, tile, unit_row<PAIR>(u));
  unit->scales = hopper_load8(from + QUIRE_LATENT_DIM + half * 8);
  from += half * 256 + unit_lane() * 16;
  unit->codes[0] = hopper_load16(from);
  unit->codes[1] = hopper_load16(from + 128);
}

/* The rope of a tile's rows needs no conversion. */
QUIRE_DEVICE void rope_copy(const uint8_t *found, uint32_t to, int tile, uint64_t policy) {
  uint32_t chunk = threadIdx.x % 8;
#pragma unroll
  for (int step = 0; step < 4; step++) {
    const uint8_t *from = entry_of(found, tile, copy_row(step)) + QUIRE_LATENT_DIM + 16 + chunk * 16;
    hopper_copy16_keep(to + 8 * BLOCK_BYTES + chunk_at(copy_row(step), chunk), from, true, policy);
  }
}

template <bool PLAIN> QUIRE_DEVICE void unit_put(const struct unit &unit, uint32_t to, uint32_t row) {
  uint32_t lane = unit_lane(), block = to + lane / 4 * BLOCK_BYTES, chunk = lane % 4 * 2;
  codes_store<PLAIN>(unit.codes[0], unit.scales.x, block, row, chunk);
  codes_store<PLAIN>(unit.codes[1], unit.scales.y, block + 2 * BLOCK_BYTES, row, chunk);
}

QUIRE_DEVICE bool unit_plain(const struct unit &unit) {
  return __all_sync(0xffffffffu, scale_plain(unit.scales.x) && scale_plain(unit.scales.y));
}

/* A quarter to shared memory, each unit followed by the load of its successor. */
QUIRE_DEVICE void quarter_convert(struct unit *unit, const uint8_t *found_ahead, int quarter, uint32_t to) {
#pragma unroll
  for (int u = 0; u < UNITS; u++) {
    if (unit_plain(unit[u])) {
      unit_put<true>(unit[u], to, unit_row<false>(u));
    } else {
      unit_put<false>(unit[u], to, unit_row<false>(u));
    }
    unit_load<false>(&unit[u], found_ahead, u, (quarter + 1) % 4);
  }
}

template <bool PLAIN>
QUIRE_DEVICE void pair_put(const struct unit *unit, struct unit *ahead, const uint8_t *found_ahead, int quarter,
                           uint32_t to) {
#pragma unroll
  for (int u = 0; u < UNITS / 2; u++) {
    unit_load<true>(&ahead[u], found_ahead, u, (quarter + 1) % 4);
  }
#pragma unroll
  for (int u = 0; u < UNITS / 2; u++) {
    unit_put<PLAIN>(unit[u], to, unit_row<true>(u));
  }
}

/* A block of a pair has registers for two quarters, and takes them in turn. All loads of a thread share one of the
 * hardware's counters: whoever waits for one waits for the newest. Hence the order: wait for this quarter's (the vote
 * does), only then start the next one's, then convert. */
QUIRE_DEVICE void pair_convert(const struct unit *unit, struct unit *ahead, const uint8_t *found_ahead, int quarter,
                               uint32_t to) {
  if (unit_plain(unit[0]) && unit_plain(unit[1])) {
    pair_put<true>(unit, ahead, found_ahead, quarter, to);
  } else {
    pair_put<false>(unit, ahead, found_ahead, quarter, to);
  }
}

/* The warp's eight rows of half a tile, four blocks of columns, to the other block of the pair. */
QUIRE_DEVICE void quarter_share(uint32_t half_tile, uint64_t *full) {
  uint32_t lane = threadIdx.x % 32, other = hopper_pair_rank() ^ 1;
  __syncwarp();
  if (lane < HALF_BLOCKS) {
    uint32_t at = half_tile + lane * BLOCK_BYTES + (threadIdx.x % GROUP / 32 * 16 + hopper_pair_rank() * 8) * 128;
    hopper_copy_peer(hopper_peer(at, other), at, 8 * 128, hopper_peer(hopper_shared(full), other));
  }
}

/* Waits until the quarter may be written, and starts what needs no conversion. */
template <bool PAIR>
QUIRE_DEVICE void quarter_open(struct attend_state *state, const uint8_t *found, uint32_t shared, int quarter,
                               uint32_t pairs, uint64_t policy) {
  int tile = quarter_tile(quarter), half = quarter_half(quarter);
  hopper_barrier_wait(&state->free[tile][half], (pairs & 1) ^ 1);
  if (half) {
    rope_copy(found, shared + TILE_AT(tile), tile, policy);
    hopper_copies_arrive(&state->full[tile][half]);
  }
  if (PAIR && threadIdx.x % GROUP == 0) {
    hopper_barrier_expect(&state->full[tile][half], PEER_BYTES);
  }
}

/* The quarter is written: tells the groups, here and in the other block. */
template <bool PAIR> QUIRE_DEVICE void quarter_close(struct attend_state *state, uint32_t shared, int quarter) {
  int tile = quarter_tile(quarter), half = quarter_half(quarter);
  hopper_proxy_fence();
  if (PAIR) {
    quarter_share(shared + TILE_AT(tile) + half * HALF_BLOCKS * BLOCK_BYTES, &state->full[tile][half]);
  }
  hopper_barrier_arrive(&state->full[tile][half]);
}

template <bool PAIR>
QUIRE_DEVICE void copier_fp8(const struct attend_args &a, uint32_t shared, struct attend_state *state) {
  constexpr int TURN = PAIR ? 2 : 1; /* quarters until the registers are the same again */
  uint64_t policy = hopper_policy_keep();
  struct quire_kv_source *source = &state->source[threadIdx.x % GROUP / 32];
  struct cursor c = {.item = (int32_t)blockIdx.x};
  cursor_open(a, &c);
  c.pair = -1;
  bool more = cursor_next(a, &c);
  const uint8_t *absent = (const uint8_t *)absent_row, *found = lookup_now(a, c, more, source, absent);
  uint32_t pairs = 0, items = 0;
  struct unit unit[UNITS];
#pragma unroll
  for (int u = 0; u < UNITS / TURN; u++) {
    unit_load<PAIR>(&unit[u], found, u, 0);
  }
  while (more) {
    struct cursor next = c;
    more = cursor_next(a, &next);
    struct lookup lookup = lookup_begin(a, next, more, source);
    const uint8_t *found_next = found;
    if (c.pair == 0) {
      hopper_barrier_wait(&state->query_free, (items & 1) ^ 1);
      queries_copy(a, c, shared + QUERY_AT, policy);
      hopper_copies_arrive(&state->query_full);
      items++;
    }
#pragma unroll 1
    for (int first = 0; first < 4; first += TURN) {
#pragma unroll
      for (int i = 0; i < TURN; i++) {
        int quarter = first + i;
        uint32_t to = shared + TILE_AT(quarter_tile(quarter)) + quarter_half(quarter) * HALF_BLOCKS * BLOCK_BYTES;
        quarter_open<PAIR>(state, found, shared, quarter, pairs, policy);
        if (quarter == 1) { /* behind it both groups are done with the bits of the pair before */
          valid_put(state, found != absent);
          lookup_go_on(a, &lookup, source);
        }
        if (quarter == (PAIR ? 3 : 1)) {
          found_next = lookup_end(lookup, absent);
        }
        if (PAIR) {
          pair_convert(unit + 2 * i, unit + 2 * (1 - i), quarter == 3 ? found_next : found, quarter, to);
        } else {
          quarter_convert(unit, quarter == 3 ? found_next : found, quarter, to);
        }
        quarter_close<PAIR>(state, shared, quarter);
      }
    }
    found = found_next;
    c = next;
    pairs++;
  }
}

/* --- the two groups ----------------------------------------------------------------------------------------------- */

/* What a thread holds of a row of heads: accumulators of two of its 64 rows, row g and g + 8 of its warp's 16. */
struct held {
  float out[128];  /* [64, 256] */
  float score[32]; /* [64, 64], then probabilities */
  uint32_t p[16];  /* probabilities, bf16, as an operand */
  float max[2];    /* of scale * score in powers of two */
  float sum[2];    /* of this thread's columns and this group's tiles */
};

QUIRE_DEVICE void scores_begin(struct held *h, uint32_t queries, uint32_t tile, int first, int last, bool fresh) {
  hopper_hold(h->score);
  hopper_products_begin();
#pragma unroll
  for (int block = first; block < last; block++) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
      hopper_product_64x64(h->score, hopper_operand(queries + block * BLOCK_BYTES) + step * 2,
                           hopper_operand(tile + block * BLOCK_BYTES) + step * 2,
                           !(fresh && block == first && step == 0));
    }
  }
  hopper_products_end();
}

/* out += own probabilities x the group's half of its own tile. */
QUIRE_DEVICE void values_own(struct held *h, uint32_t tile_half) {
  hopper_hold(h->out);
  hopper_products_begin();
#pragma unroll
  for (int step = 0; step < 4; step++) {
    hopper_product_64x256_registers(h->out, h->p + 4 * step,
                                    hopper_operand_across(tile_half, BLOCK_BYTES) + step * 128);
  }
  hopper_products_end();
}

/* out += the other group's probabilities x the group's half of the other's tile. */
QUIRE_DEVICE void values_other(struct held *h, uint32_t probabilities, uint32_t tile_half) {
  hopper_hold(h->out);
  hopper_products_begin();
#pragma unroll
  for (int step = 0; step < 4; step++) {
    hopper_product_64x256(h->out, hopper_operand(probabilities) + step * 2,
                          hopper_operand_across(tile_half, BLOCK_BYTES) + step * 128);
  }
  hopper_products_end();
}

QUIRE_DEVICE void out_scale(struct held *h, const float factor[2]) {
  if (__all_sync(0xffffffffu, factor[0] == 1.0f && factor[1] == 1.0f)) {
    return; /* times one */
  }
#pragma unroll
  for (int i = 0; i < 128; i++) {
    h->out[i] *= factor[i / 2 % 2];
  }
}

/* New maxima, at least `floor`; the sum and the output are brought to them; scores become probabilities. */
QUIRE_DEVICE void softmax(struct held *h, const float floor[2], float scale) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float best = -INFINITY;
#pragma unroll
    for (int i = 2 * r; i < 32; i += 4) {
      best = fmaxf(best, fmaxf(h->score[i], h->score[i + 1]));
    }
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    best = fmaxf(floor[r], best * scale);
    factor[r] = hopper_exp2(h->max[r] - best);
    h->max[r] = best;
    float sum = 0;
#pragma unroll
    for (int i = 2 * r; i < 32; i += 4) {
      h->score[i] = hopper_exp2(fmaf(h->score[i], scale, -best));
      h->score[i + 1] = hopper_exp2(fmaf(h->score[i + 1], scale, -best));
      h->p[i / 2] = hopper_bf16_pair(h->score[i], h->score[i + 1]);
      sum += h->score[i] + h->score[i + 1];
    }
    h->sum[r] = fmaf(h->sum[r], factor[r], sum);
  }
  out_scale(h, factor);
}

QUIRE_DEVICE void probabilities_put(const struct held &h, uint32_t to) {
  uint32_t row = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 16, half = threadIdx.x % 32 / 16;
#pragma unroll
  for (int step = 0; step < 4; step++) {
    hopper_store_matrices(to + chunk_at(row, 2 * step + half), h.p + 4 * step);
  }
  hopper_proxy_fence();
}

QUIRE_DEVICE void max_get(const struct attend_state *state, float max[2]) {
  max[0] = state->max[held_row(0)];
  max[1] = state->max[held_row(1)];
}

QUIRE_DEVICE void max_put(struct attend_state *state, const float max[2]) {
  if (threadIdx.x % 4 == 0) {
    state->max[held_row(0)] = max[0];
    state->max[held_row(1)] = max[1];
  }
}

/* The sums of both groups' tiles, the division, and the log-sum-exp. */
QUIRE_DEVICE void item_end(const struct attend_args &a, struct attend_state *state, struct held *h,
                           const struct cursor &c, int group) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    h->sum[r] += __shfl_xor_sync(0xffffffffu, h->sum[r], 1);
    h->sum[r] += __shfl_xor_sync(0xffffffffu, h->sum[r], 2);
    if (threadIdx.x % 4 == 0 && c.count > 0) {
      state->sum[group][held_row(r)] = h->sum[r];
    }
  }
  if (group == 0) {
    hopper_threads_tell(EVEN_SUMS, GROUPS * GROUP);
    hopper_threads_sync(ODD_SUMS, GROUPS * GROUP);
  } else {
    hopper_threads_sync(EVEN_SUMS, GROUPS * GROUP);
    hopper_threads_tell(ODD_SUMS, GROUPS * GROUP);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = c.count > 0 ? h->sum[r] + state->sum[1 - group][held_row(r)] : 0;
    int32_t head = c.head + held_row(r);
    factor[r] = sum == 0 ? 0 : 1.0f / sum;
    if (group == 0 && threadIdx.x % 4 == 0 && head < a.op.heads) {
      a.op.lse[(int64_t)c.row * a.op.heads + head] = sum == 0 ? -INFINITY : (h->max[r] + hopper_log2(sum)) * LN2;
    }
  }
  out_store<256>(a, h->out, c.row, c.head, group * 256, factor);
}

QUIRE_DEVICE void item_begin(struct held *h) {
#pragma unroll
  for (int i = 0; i < 128; i++) {
    h->out[i] = 0;
  }
  h->max[0] = h->max[1] = MAX_START;
  h->sum[0] = h->sum[1] = 0;
}

/* Until a half of a tile is there, for wgmma to read. */
QUIRE_DEVICE void half_await(struct attend_state *state, int tile, int half, uint32_t parity) {
  hopper_barrier_wait(&state->full[tile][half], parity);
  hopper_proxy_fence();
}

/* The group has read a half of a tile: its copier, and of a pair both, may overwrite it. */
template <bool PAIR> QUIRE_DEVICE void half_release(struct attend_state *state, int tile, int half) {
  hopper_barrier_arrive_warp(&state->free[tile][half]);
  if (PAIR && threadIdx.x % 32 < HOPPER_WARP_ARRIVALS) {
    hopper_barrier_arrive_peer(hopper_peer(hopper_shared(&state->free[tile][half]), hopper_pair_rank() ^ 1));
  }
}

template <bool PAIR>
QUIRE_DEVICE void group_even(const struct attend_args &a, uint32_t shared, struct attend_state *state) {
  struct held h;
  struct cursor c = {.item = (int32_t)blockIdx.x};
  uint32_t queries = shared + QUERY_AT, even = shared + TILE_AT(0), odd = shared + TILE_AT(1);
  uint32_t n = 0, items = 0; /* pairs and rows behind */
  for (; c.item < a.items; c.item += gridDim.x) {
    cursor_open(a, &c);
    item_begin(&h);
    int32_t pairs = (c.count + PAIR_ROWS - 1) / PAIR_ROWS;
    for (int32_t pair = 0; pair < pairs; pair++, n++) {
      if (pair == 0) {
        hopper_barrier_wait(&state->query_full, items++ & 1);
        half_await(state, 0, 0, n & 1);
        half_await(state, 0, 1, n & 1);
        scores_begin(&h, queries, even, 0, BLOCKS, true);
        hopper_products_wait<0>();
        hopper_hold(h.score);
      }
      if (pair == pairs - 1) {
        hopper_barrier_arrive(&state->query_free);
      }
      hopper_barrier_wait(&state->valid_full, n & 1);
      scores_mask(h.score, state->valid[0]);
      float max[2] = {h.max[0], h.max[1]}, factor[2];
      softmax(&h, max, a.scale);
      max_put(state, h.max);
      hopper_threads_tell(EVEN_MAX, GROUPS * GROUP);
      values_own(&h, even);
      hopper_products_wait<0>();
      hopper_hold(h.out);
      half_release<PAIR>(state, 0, 0);
      hopper_threads_sync(ODD_MAX, GROUPS * GROUP);
      max_get(state, max);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        factor[r] = hopper_exp2(h.max[r] - max[r]);
        h.max[r] = max[r];
        h.sum[r] *= factor[r];
      }
#pragma unroll
      for (int i = 0; i < 16; i++) {
        h.p[i] = hopper_bf16_pair(h.score[2 * i] * factor[i % 2], h.score[2 * i + 1] * factor[i % 2]);
      }
      probabilities_put(h, shared + EVEN_AT);
      hopper_threads_arrive(EVEN_READY, GROUPS * GROUP);
      hopper_threads_sync(ODD_READY, GROUPS * GROUP);
      out_scale(&h, factor);
      values_other(&h, shared + ODD_AT, odd);
      if (pair + 1 < pairs) {
        half_await(state, 0, 0, (n + 1) & 1);
        scores_begin(&h, queries, even, 0, HALF_BLOCKS, true);
        hopper_products_wait<1>();
        half_release<PAIR>(state, 1, 0);
        half_await(state, 0, 1, (n + 1) & 1);
        scores_begin(&h, queries, even, HALF_BLOCKS, BLOCKS, false);
        hopper_products_wait<0>();
        hopper_hold(h.score);
        hopper_hold(h.out);
      } else {
        hopper_products_wait<0>();
        hopper_hold(h.out);
        half_release<PAIR>(state, 1, 0);
      }
    }
    item_end(a, state, &h, c, 0);
  }
}

template <bool PAIR>
QUIRE_DEVICE void group_odd(const struct attend_args &a, uint32_t shared, struct attend_state *state) {
  struct held h;
  struct cursor c = {.item = (int32_t)blockIdx.x};
  uint32_t queries = shared + QUERY_AT, even = shared + TILE_AT(0), odd = shared + TILE_AT(1);
  uint32_t n = 0, items = 0;
  for (; c.item < a.items; c.item += gridDim.x) {
    cursor_open(a, &c);
    item_begin(&h);
    int32_t pairs = (c.count + PAIR_ROWS - 1) / PAIR_ROWS;
    for (int32_t pair = 0; pair < pairs; pair++, n++) {
      if (pair == 0) {
        hopper_barrier_wait(&state->query_full, items++ & 1);
      }
      half_await(state, 1, 1, n & 1);
      scores_begin(&h, queries, odd, HALF_BLOCKS, BLOCKS, true);
      half_await(state, 1, 0, n & 1);
      scores_begin(&h, queries, odd, 0, HALF_BLOCKS, false);
      hopper_products_wait<0>();
      hopper_hold(h.score);
      if (pair == pairs - 1) {
        hopper_barrier_arrive(&state->query_free);
      }
      hopper_barrier_wait(&state->valid_full, n & 1);
      scores_mask(h.score, state->valid[1]);
      float max[2];
      hopper_threads_sync(EVEN_MAX, GROUPS * GROUP);
      max_get(state, max);
      softmax(&h, max, a.scale);
      __syncwarp();
      max_put(state, h.max);
      hopper_threads_tell(ODD_MAX, GROUPS * GROUP);
      values_own(&h, odd + HALF_BLOCKS * BLOCK_BYTES);
      probabilities_put(h, shared + ODD_AT);
      hopper_threads_arrive(ODD_READY, GROUPS * GROUP);
      hopper_threads_sync(EVEN_READY, GROUPS * GROUP);
      values_other(&h, shared + EVEN_AT, even + HALF_BLOCKS * BLOCK_BYTES);
      hopper_products_wait<1>();
      half_release<PAIR>(state, 1, 1);
      hopper_products_wait<0>();
      hopper_hold(h.out);
      half_release<PAIR>(state, 0, 1);
    }
    item_end(a, state, &h, c, 1);
  }
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

QUIRE_DEVICE void state_init(struct attend_state *state, bool fp8, bool pair) {
  hopper_barrier_init(&state->query_full, GROUP);
  hopper_barrier_init(&state->query_free, GROUPS * GROUP);
  hopper_barrier_init(&state->valid_full, GROUP / 32);
  for (int i = 0; i < 4; i++) {
    int arrivals = GROUP + (fp8 && i % 2 ? GROUP : 0) + pair; /* codes or rows, the rope, the other block's bytes */
    hopper_barrier_init(&state->full[i / 2][i % 2], arrivals);
    hopper_barrier_init(&state->free[i / 2][i % 2], GROUP / 32 * HOPPER_WARP_ARRIVALS * (1 + pair));
  }
  hopper_barrier_init_fence();
}

/* Registers of a thread: copier, groups. Three times 128 threads have 504 among them. */
template <bool FP8> struct roles { static constexpr int COPIER = FP8 ? 88 : 72, GROUP_ = FP8 ? 208 : 216; };

template <bool FP8, bool PAIR>
__global__ void __launch_bounds__(THREADS, 1) attend_kernel(const __grid_constant__ struct attend_args a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  uint32_t shared = hopper_shared(memory);
  struct attend_state *state = (struct attend_state *)(memory + STATE_AT);
  if (threadIdx.x == 0) {
    state_init(state, FP8, PAIR);
  }
  if (PAIR) {
    hopper_pair_sync();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < GROUP) {
    hopper_registers_up<roles<FP8>::GROUP_>();
    group_even<PAIR>(a, shared, state);
  } else if (threadIdx.x < 2 * GROUP) {
    hopper_registers_up<roles<FP8>::GROUP_>();
    group_odd<PAIR>(a, shared, state);
  } else {
    hopper_registers_down<roles<FP8>::COPIER>();
    if (FP8) {
      copier_fp8<PAIR>(a, shared, state);
    } else {
      copier_bf16(a, shared, state);
    }
  }
  if (PAIR) { /* the other block may still write here */
    hopper_pair_sync();
  }
}

static int32_t head_groups(int32_t heads) { return (heads + HEADS - 1) / HEADS; }

bool quire_cuda_attend_can(const struct quire_attend *attend, const char **why_out) {
  const char *why = NULL;
  if (attend->format != QUIRE_KV_BF16 && attend->format != QUIRE_KV_FP8) {
    why = "attend on CUDA reads rows of format bf16 or fp8";
  } else if (attend->q_dtype != QUIRE_DTYPE_BF16) {
    why = "attend on CUDA takes queries in bf16";
  } else if (attend->out_dtype != QUIRE_DTYPE_BF16 && attend->out_dtype != QUIRE_DTYPE_F32) {
    why = "attend on CUDA gives bf16 or f32";
  } else if (attend->part.row_bytes % 16 != 0 || attend->part.piece[0].offset % 16 != 0) {
    why = "attend on CUDA reads rows that start at multiples of 16 bytes";
  } else if (attend->heads < 1 || attend->heads > INT32_MAX - HEADS) {
    why = "attend on CUDA takes a head at least";
  } else if (attend->rows.m > INT32_MAX / head_groups(attend->heads)) {
    why = "attend on CUDA takes fewer than 2^31 rows times groups of 64 heads";
  }
  if (why_out != NULL) {
    *why_out = why;
  }
  return why == NULL;
}

int64_t quire_cuda_attend_scratch_bytes(int32_t heads, int32_t m) {
  QUIRE_ASSERT(heads > 0 && m >= 0);
  return attend_few_scratch_bytes(m < ATTEND_FEW_ITEMS ? m * head_groups(heads) : ATTEND_FEW_ITEMS);
}

enum quire_status quire_cuda_attend(void *stream, const struct quire_attend *attend) {
  QUIRE_ASSERT(quire_cuda_attend_can(attend, NULL));
  if (attend->rows.m == 0) {
    return QUIRE_OK;
  }
  struct attend_args a = {.op = *attend};
  a.head_groups = head_groups(attend->heads);
  a.items = attend->rows.m * a.head_groups;
  a.scale = attend->scale * LOG2E;
  bool fp8 = attend->format == QUIRE_KV_FP8, pair = fp8 && a.head_groups == 2;
  void (*kernel)(struct attend_args) = pair  ? attend_kernel<true, true>
                                       : fp8 ? attend_kernel<true, false>
                                             : attend_kernel<false, false>;
  int device = 0, processors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return QUIRE_ERR_RANK;
  }
  if (attend_few_can(&a, processors)) {
    return attend_few((cudaStream_t)stream, &a);
  }
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) != cudaSuccess) {
    return QUIRE_ERR_RANK;
  }
  int blocks = a.items < processors ? a.items : processors;
  cudaLaunchAttribute cluster = {.id = cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {.gridDim = dim3(pair ? blocks / 2 * 2 : blocks),
                               .blockDim = dim3(THREADS),
                               .dynamicSmemBytes = SHARED_BYTES,
                               .stream = (cudaStream_t)stream,
                               .attrs = &cluster,
                               .numAttrs = pair ? 1u : 0u};
  return cudaLaunchKernelEx(&config, kernel, a) == cudaSuccess ? QUIRE_OK : QUIRE_ERR_RANK;
}
