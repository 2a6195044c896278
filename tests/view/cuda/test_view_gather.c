// ctest: timeout=60
/* The kernel that gathers pages, against copies of rows on the host: pages of two owners in a drawn order, whole and
 * cut, few and so many that warps claim them, at addresses that bulk copies take and at such that they do not. The
 * scratch is poisoned before, and what is not valid in a page must stay so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device/device.h"
#include "device/device_info.h"
#include "layout/parts.h"
#include "support/gpu.h"
#include "support/limit.h"
#include "support/seed.h"
#include "view/cuda/view_cuda_private.h"

enum { OWNERS = 2, KINDS = 2, PAGE = 64, POOL_MAX = 400, POOL_SMALL = 40, POISON = 0xFF, SKEW_MAX = 16 };

static uint64_t random_state;
static int32_t pool; /* pages of an owner */

struct gather_case {
  const char *name;
  enum quire_kv_format format;
  int32_t count;
  int32_t width;
  uint32_t skew; /* of the pages' addresses */
  bool keys;     /* are there index keys in the layer? */
  bool ragged;
  bool claims;
};

/* One kind of part: what its owners store, and the scratch. */
struct kind {
  struct quire_part part;
  struct quire_memory *pages[OWNERS], *target;
  uint8_t *stored[OWNERS], *got; /* in the slab */
};

struct rig {
  struct quire_device *device, *owner;
  struct quire_stream *stream, *owner_stream;
  struct quire_memory *tables, *slab, *owner_slab;
  struct kind kind[KINDS];
  struct quire_view_cuda_gather_page list[OWNERS * POOL_MAX];
};

/* Where in `tables` the list and the counter lie. */
#define LIST_BYTES (sizeof(struct quire_view_cuda_gather_page) * OWNERS * POOL_MAX)

static int32_t draw(int32_t below) { return (int32_t)quire_splitmix64_below(&random_state, (uint64_t)below); }

static void settle(struct quire_stream *stream) {
  quire_event_sync(quire_stream_record(stream));
  assert_int_equal(quire_stream_check(stream, NULL), QUIRE_OK);
}

static struct quire_memory *memory_of(struct quire_device *device, size_t bytes) {
  struct quire_memory *memory = NULL;
  assert_int_equal(quire_device_memory(device, bytes, &memory, NULL), QUIRE_OK);
  return memory;
}

/* Random pages of every owner, on the device as in the slab. */
static void open_kind(struct rig *rig, const struct gather_case *c, int k, uint8_t **slab, uint8_t **owner_slab) {
  struct kind *kind = &rig->kind[k];
  size_t bytes = (size_t)pool * (size_t)kind->part.page_bytes;
  for (int owner = 0; owner < OWNERS; owner++) {
    kind->pages[owner] = memory_of(rig->owner, bytes + SKEW_MAX);
    kind->stored[owner] = *owner_slab;
    *owner_slab += bytes;
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
      ((uint64_t *)(void *)kind->stored[owner])[i] = quire_splitmix64(&random_state);
    }
    quire_stream_copy(rig->owner_stream, (uint8_t *)quire_memory_base(kind->pages[owner]) + c->skew,
                      kind->stored[owner], bytes);
  }
  settle(rig->owner_stream);
  kind->target = memory_of(rig->device, (size_t)c->count * (size_t)kind->part.page_bytes);
  kind->got = *slab;
  *slab += (size_t)c->count * (size_t)kind->part.page_bytes;
}

static void open_rig(struct rig *rig, const struct gather_case *c) {
  const struct quire_env *env = quire_env_default();
  struct quire_cuda_info info;
  struct quire_parts parts;
  memset(rig, 0, sizeof *rig);
  assert_true(quire_cuda_describe(&info));
  assert_true(quire_parts_build(&parts, c->format, PAGE, 1, NULL, 0));
  for (int k = 0; k < KINDS; k++) {
    rig->kind[k].part = parts.part[quire_parts_find(&parts, QUIRE_PART_TARGET, (enum quire_part_kind)k, 0)];
  }
  size_t bundle = (size_t)quire_parts_bundle_bytes(&parts);
  assert_int_equal(quire_device_open(env, QUIRE_DEVICE_CUDA, 0, &rig->device, NULL), QUIRE_OK);
  assert_int_equal(quire_device_open(env, QUIRE_DEVICE_CUDA, info.devices > 1 ? 1 : 0, &rig->owner, NULL), QUIRE_OK);
  assert_int_equal(quire_device_stream(rig->device, QUIRE_STREAM_THREAD, NULL, 0, &rig->stream, NULL), QUIRE_OK);
  assert_int_equal(quire_device_stream(rig->owner, QUIRE_STREAM_THREAD, NULL, 0, &rig->owner_stream, NULL), QUIRE_OK);
  assert_int_equal(
      quire_device_host(rig->device, (size_t)c->count * bundle + LIST_BYTES + sizeof(uint32_t), &rig->slab, NULL),
      QUIRE_OK);
  assert_int_equal(quire_device_host(rig->owner, OWNERS * (size_t)pool * bundle, &rig->owner_slab, NULL), QUIRE_OK);
  rig->tables = memory_of(rig->device, LIST_BYTES + sizeof(uint32_t));
  uint8_t *slab = (uint8_t *)quire_memory_base(rig->slab) + LIST_BYTES + sizeof(uint32_t);
  uint8_t *owner_slab = quire_memory_base(rig->owner_slab);
  for (int k = 0; k < KINDS; k++) {
    open_kind(rig, c, k, &slab, &owner_slab);
  }
}

static void close_rig(struct rig *rig) {
  quire_stream_destroy(rig->stream);
  quire_stream_destroy(rig->owner_stream);
  for (int k = 0; k < KINDS; k++) {
    for (int owner = 0; owner < OWNERS; owner++) {
      quire_memory_destroy(rig->kind[k].pages[owner]);
    }
    quire_memory_destroy(rig->kind[k].target);
  }
  quire_memory_destroy(rig->tables);
  quire_memory_destroy(rig->slab);
  quire_memory_destroy(rig->owner_slab);
  quire_device_close(rig->device);
  quire_device_close(rig->owner);
}

/* Distinct pages in a drawn order; of a ragged list every fifth is cut somewhere. */
static void draw_list(struct rig *rig, const struct gather_case *c) {
  for (int32_t i = 0; i < OWNERS * pool; i++) {
    int32_t j = draw(i + 1);
    rig->list[i] = rig->list[j];
    rig->list[j] = (struct quire_view_cuda_gather_page){i / OWNERS, (int16_t)(i % OWNERS), PAGE};
  }
  for (int32_t i = 0; c->ragged && i < c->count; i += 5) {
    rig->list[i].rows = (int16_t)(1 + draw(PAGE));
  }
  if (c->ragged) {
    rig->list[0].rows = 37; /* its scales are no multiple of 16 bytes */
  }
}

/* Launches, and brings the scratch and the counter of claims to the host; the counter. */
static uint32_t run(struct rig *rig, const struct gather_case *c) {
  uint8_t *tables = quire_memory_base(rig->tables), *slab = quire_memory_base(rig->slab);
  struct quire_view_cuda_gather args = {
      .list = (const struct quire_view_cuda_gather_page *)(const void *)tables,
      .page_tokens = PAGE,
      .count = c->count,
      .width = c->width,
      .ragged = c->ragged,
      .claims = c->claims ? (uint32_t *)(void *)(tables + LIST_BYTES) : NULL,
  };
  memcpy(slab, rig->list, LIST_BYTES);
  memset(slab + LIST_BYTES, 0, sizeof(uint32_t));
  quire_stream_copy(rig->stream, tables, slab, LIST_BYTES + sizeof(uint32_t));
  for (int k = 0; k < (c->keys ? KINDS : 1); k++) {
    const struct kind *kind = &rig->kind[k];
    for (int owner = 0; owner < OWNERS; owner++) {
      args.origin[k][owner] = (struct quire_view_cuda_origin){
          (uint8_t *)quire_memory_base(kind->pages[owner]) + c->skew, kind->part.page_bytes};
    }
    args.target[k] = quire_memory_base(kind->target);
    args.page_bytes[k] = (uint32_t)kind->part.page_bytes;
    for (int32_t i = 0; i < kind->part.pieces; i++) {
      args.row_bytes[k + i] = kind->part.piece[i].row_bytes;
    }
    args.scale_offset = kind->part.pieces > 1 ? kind->part.piece[1].offset : 0;
  }
  for (int k = 0; k < KINDS; k++) {
    quire_stream_fill(rig->stream, quire_memory_base(rig->kind[k].target), POISON,
                      (size_t)c->count * (size_t)rig->kind[k].part.page_bytes);
  }
  assert_int_equal(quire_view_cuda_gather(&args, quire_stream_native(rig->stream)), 0);
  for (int k = 0; k < KINDS; k++) {
    quire_stream_copy(rig->stream, rig->kind[k].got, quire_memory_base(rig->kind[k].target),
                      (size_t)c->count * (size_t)rig->kind[k].part.page_bytes);
  }
  quire_stream_copy(rig->stream, slab, tables, LIST_BYTES + sizeof(uint32_t));
  settle(rig->stream);
  uint32_t claimed;
  memcpy(&claimed, slab + LIST_BYTES, sizeof claimed);
  return claimed;
}

static void expect_page(const struct rig *rig, const struct gather_case *c, int k, int32_t i) {
  const struct kind *kind = &rig->kind[k];
  size_t bytes = (size_t)kind->part.page_bytes;
  const struct quire_view_cuda_gather_page *page = &rig->list[i];
  const uint8_t *stored = kind->stored[page->owner] + (size_t)page->local * bytes;
  uint8_t *want = malloc(bytes);
  assert_non_null(want);
  memset(want, POISON, bytes);
  for (int32_t p = 0; p < kind->part.pieces && (k == 0 || c->keys); p++) {
    const struct quire_piece *piece = &kind->part.piece[p];
    memcpy(want + piece->offset, stored + piece->offset, (size_t)page->rows * (size_t)piece->row_bytes);
  }
  if (memcmp(want, kind->got + (size_t)i * bytes, bytes) != 0) {
    fail_msg("%s: kind %d of page %d (%d of owner %d, %d rows) differs", c->name, k, i, page->local, page->owner,
             page->rows);
  }
  free(want);
}

static void pages_are_gathered_as_they_lie(void **state) {
  (void)state;
  static struct rig rig;
  const int32_t all = OWNERS * pool;
  const struct gather_case cases[] = {
      {"one page", QUIRE_KV_FP8, 1, 16, 0, true, false, true},
      {"few pages", QUIRE_KV_FP8, 7, 3, 0, true, false, true},
      {"all, claimed", QUIRE_KV_FP8, all, 16, 0, true, false, true},
      {"all, claimed by one multiprocessor", QUIRE_KV_BF16, all, 1, 0, true, false, true},
      {"all, in turn", QUIRE_KV_BF16, all, 16, 0, true, false, false},
      {"cut pages", QUIRE_KV_FP8, all, 16, 0, true, true, false},
      {"cut pages, bf16", QUIRE_KV_BF16, all / 2, 5, 0, true, true, false},
      {"without keys", QUIRE_KV_FP8, all / 2, 4, 0, false, false, true},
      {"cut pages without keys", QUIRE_KV_FP8, all / 2, 4, 0, false, true, false},
      {"words", QUIRE_KV_FP8, 31, 16, 4, true, true, false},
      {"bytes", QUIRE_KV_FP8, 31, 16, 3, true, false, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct gather_case *c = &cases[i];
    open_rig(&rig, c);
    draw_list(&rig, c);
    uint32_t claimed = run(&rig, c);
    assert_true(!c->claims == (claimed == 0));
    for (int32_t page = 0; page < c->count; page++) {
      for (int k = 0; k < KINDS; k++) {
        expect_page(&rig, c, k, page);
      }
    }
    close_rig(&rig);
  }
}

int main(void) {
  test_needs_gpus(1);
  random_state = test_seed("test_view_gather");
  pool = getenv("QUIRE_TEST_SMALL") != NULL ? POOL_SMALL : POOL_MAX; /* under a sanitizer, which is slow */
  test_limit(50);
  const struct CMUnitTest tests[] = {cmocka_unit_test(pages_are_gathered_as_they_lie)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
