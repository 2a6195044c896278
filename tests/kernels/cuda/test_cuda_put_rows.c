/* put_rows on a GPU: the bytes of the cpu family, in packed arrays and in pages, and nothing beside them.
 * ctest: timeout=120 */
#include "cuda_case.h"
#include "kernels/cuda/cuda_put_rows.h"

#define PAGE_TOKENS 64

static struct test_random rng;
static struct quire_team *team;
static struct quire_stream *stream;

struct shape {
  enum quire_kv_format format;
  bool any_scale;
  bool indexer;
  bool packed;
  bool pages;
  int32_t m;
};

struct rows {
  float *latent, *rope, *key;
  int64_t latent_ld, rope_ld, key_ld;
};

/* Values of many sizes, zeros of both signs, subnormals. */
static float value_make(float size) {
  switch (test_between(&rng, 0, 40)) {
  case 0:
    return 0.0f;
  case 1:
    return -0.0f;
  case 2:
    return quire_float_of((uint32_t)test_next(&rng) & 0x807fffffu);
  case 3:
    return test_normal(&rng) * 1e-3f * size;
  default:
    return test_normal(&rng) * size;
  }
}

static float *array_make(int32_t m, int64_t ld) {
  float *x = test_alloc(m * ld * 4);
  for (int64_t row = 0; row < m; row++) {
    float size = quire_float_of((uint32_t)test_between(&rng, 90, 150) << 23);
    for (int64_t i = 0; i < ld; i++) {
      x[row * ld + i] = value_make(size);
    }
  }
  return x;
}

static struct rows rows_make(int32_t m) {
  struct rows rows = {.latent_ld = 512 + test_between(&rng, 0, 3),
                      .rope_ld = 64 + test_between(&rng, 0, 3),
                      .key_ld = 128 + test_between(&rng, 0, 3)};
  rows.latent = array_make(m, rows.latent_ld);
  rows.rope = array_make(m, rows.rope_ld);
  rows.key = array_make(m, rows.key_ld);
  return rows;
}

static void rows_free(struct rows *rows) {
  free(rows->latent);
  free(rows->rope);
  free(rows->key);
}

/* Every place a launch may write, on the host as it should be; what is not written stays 0xff. */
struct places {
  uint8_t *latent, *keys, *scales, *latent_pages, *key_pages;
  int64_t latent_bytes, keys_bytes, scales_bytes, latent_pages_bytes, key_pages_bytes;
};

static struct places places_make(const struct shape *shape, int64_t row_bytes, int32_t pages) {
  struct places p = {.latent_bytes = shape->m * row_bytes,
                     .keys_bytes = shape->m * 128,
                     .scales_bytes = shape->m * 4,
                     .latent_pages_bytes = pages * PAGE_TOKENS * row_bytes,
                     .key_pages_bytes = (int64_t)pages * PAGE_TOKENS * 132};
  p.latent = test_poisoned(p.latent_bytes);
  p.keys = test_poisoned(p.keys_bytes);
  p.scales = test_poisoned(p.scales_bytes);
  p.latent_pages = test_poisoned(p.latent_pages_bytes);
  p.key_pages = test_poisoned(p.key_pages_bytes);
  return p;
}

static void places_free(struct places *p) {
  free(p->latent);
  free(p->keys);
  free(p->scales);
  free(p->latent_pages);
  free(p->key_pages);
}

/* The cpu family's rows. */
static void oracle_rows(const struct shape *shape, const struct rows *rows, struct places *p) {
  const struct quire_kernels *kernels = quire_kernels_at(0);
  for (int i = 0; !quire_kernels_can(kernels, NULL); i++) {
    kernels = quire_kernels_at(i + 1);
  }
  kernels->quantise_latent(stream, (struct quire_quantise_latent){.latent = rows->latent,
                                                                  .rope = rows->rope,
                                                                  .out = p->latent,
                                                                  .format = shape->format,
                                                                  .any_scale = shape->any_scale,
                                                                  .m = shape->m,
                                                                  .latent_ld = rows->latent_ld,
                                                                  .rope_ld = rows->rope_ld});
  kernels->quantise_index(stream, (struct quire_quantise_index){.key = rows->key,
                                                                .keys_out = p->keys,
                                                                .scales_out = (float *)(void *)p->scales,
                                                                .format = shape->format,
                                                                .any_scale = shape->any_scale,
                                                                .m = shape->m,
                                                                .key_ld = rows->key_ld});
}

static void check_bytes(const char *what, const uint8_t *device, const uint8_t *want, int64_t bytes) {
  uint8_t *got = cuda_host_of(device, bytes);
  for (int64_t i = 0; i < bytes; i++) {
    if (got[i] != want[i]) {
      fail_msg("%s: byte %lld is %02x, of the cpu family %02x", what, (long long)i, got[i], want[i]);
    }
  }
  free(got);
  CHECK(cudaFree((void *)device));
}

/* Spreads the packed rows over pages as the targets say. */
static void oracle_pages(const struct shape *shape, struct places *p, const int32_t *place, int64_t row_bytes) {
  for (int32_t i = 0; i < shape->m && shape->pages; i++) {
    int64_t page = place[i] / PAGE_TOKENS;
    int64_t slot = place[i] % PAGE_TOKENS;
    if (place[i] < 0) {
      continue;
    }
    memcpy(p->latent_pages + place[i] * row_bytes, p->latent + i * row_bytes, (size_t)row_bytes);
    if (shape->indexer) {
      uint8_t *keys = p->key_pages + page * PAGE_TOKENS * 132;
      memcpy(keys + slot * 128, p->keys + (int64_t)i * 128, 128);
      memcpy(keys + PAGE_TOKENS * 128 + slot * 4, p->scales + (int64_t)i * 4, 4);
    }
  }
  if (!shape->packed) {
    memset(p->latent, 0xff, (size_t)p->latent_bytes);
  }
  if (!shape->packed || !shape->indexer) {
    memset(p->keys, 0xff, (size_t)p->keys_bytes);
    memset(p->scales, 0xff, (size_t)p->scales_bytes);
  }
}

static void check_shape(const struct shape *shape) {
  int64_t row_bytes = shape->format == QUIRE_KV_BF16 ? 1152 : 656;
  int32_t pages = (shape->m + PAGE_TOKENS - 1) / PAGE_TOKENS + 2;
  struct rows rows = rows_make(shape->m);
  struct places p = places_make(shape, row_bytes, pages);
  struct quire_cuda_row_target *targets = test_alloc((shape->m + 1) * (int64_t)sizeof *targets);
  int32_t *place = test_alloc((shape->m + 1) * 4);
  uint8_t *latent = cuda_poisoned(p.latent_bytes);
  uint8_t *keys = cuda_poisoned(p.keys_bytes);
  uint8_t *scales = cuda_poisoned(p.scales_bytes);
  uint8_t *latent_pages = cuda_poisoned(p.latent_pages_bytes);
  uint8_t *key_pages = cuda_poisoned(p.key_pages_bytes);
  int32_t shift = test_between(&rng, 0, PAGE_TOKENS);
  for (int32_t i = 0; i < shape->m; i++) {
    place[i] = test_between(&rng, 0, 9) == 0 ? -1 : i + shift;
    if (place[i] >= 0) {
      targets[i].latent_page = latent_pages + place[i] / PAGE_TOKENS * PAGE_TOKENS * row_bytes;
      targets[i].key_page = key_pages + (int64_t)(place[i] / PAGE_TOKENS) * PAGE_TOKENS * 132;
      targets[i].slot = place[i] % PAGE_TOKENS;
    }
  }
  oracle_rows(shape, &rows, &p);
  oracle_pages(shape, &p, place, row_bytes);
  struct quire_cuda_put_rows put = {
      .latent = cuda_copy_of(rows.latent, shape->m * rows.latent_ld * 4),
      .rope = cuda_copy_of(rows.rope, shape->m * rows.rope_ld * 4),
      .key = shape->indexer ? cuda_copy_of(rows.key, shape->m * rows.key_ld * 4) : NULL,
      .latent_ld = rows.latent_ld,
      .rope_ld = rows.rope_ld,
      .key_ld = rows.key_ld,
      .latent_out = shape->packed ? latent : NULL,
      .keys_out = shape->packed && shape->indexer ? keys : NULL,
      .scales_out = (float *)(void *)scales,
      .targets = shape->pages ? cuda_copy_of(targets, shape->m * (int64_t)sizeof *targets) : NULL,
      .page_tokens = PAGE_TOKENS,
      .m = shape->m,
      .format = shape->format,
      .any_scale = shape->any_scale,
  };
  assert_int_equal(quire_cuda_put_rows(NULL, &put), QUIRE_OK);
  CHECK(cudaDeviceSynchronize());
  check_bytes("packed latents", latent, p.latent, p.latent_bytes);
  check_bytes("packed keys", keys, p.keys, p.keys_bytes);
  check_bytes("packed scales", scales, p.scales, p.scales_bytes);
  check_bytes("latent pages", latent_pages, p.latent_pages, p.latent_pages_bytes);
  check_bytes("key pages", key_pages, p.key_pages, p.key_pages_bytes);
  CHECK(cudaFree((void *)put.latent));
  CHECK(cudaFree((void *)put.rope));
  CHECK(cudaFree((void *)put.key));
  CHECK(cudaFree((void *)put.targets));
  free(targets);
  free(place);
  rows_free(&rows);
  places_free(&p);
}

static void test_formats(void **state) {
  (void)state;
  for (int i = 0; i < 16; i++) {
    check_shape(&(struct shape){.format = i % 2 == 0 ? QUIRE_KV_FP8 : QUIRE_KV_BF16,
                                .any_scale = i / 2 % 2 == 1,
                                .indexer = i / 4 % 2 == 0,
                                .packed = i / 8 == 0 || i % 3 == 0,
                                .pages = i / 8 == 1 || i % 3 == 1,
                                .m = 333});
  }
}

static void test_sizes(void **state) {
  (void)state;
  static const int32_t sizes[] = {0, 1, 2, 63, 64, 65, 1000, 4096}; /* the last not under a sanitizer, which is slow */
  size_t count = sizeof sizes / sizeof *sizes - (getenv("QUIRE_TEST_SMALL") != NULL);
  for (size_t i = 0; i < count; i++) {
    check_shape(&(struct shape){.format = QUIRE_KV_FP8, .indexer = true, .packed = true, .pages = true, .m = sizes[i]});
  }
}

static int setup(void **state) {
  (void)state;
  struct quire_error error;
  rng.state = test_seed("cuda_put_rows");
  assert_int_equal(quire_team_create(quire_env_default(), 1, &team, &error), QUIRE_OK);
  assert_int_equal(quire_stream_create(quire_env_default(), QUIRE_STREAM_INLINE, team, 0, &stream, &error), QUIRE_OK);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  quire_stream_destroy(stream);
  quire_team_destroy(team);
  return 0;
}

int main(void) {
  cuda_case_device();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats), cmocka_unit_test(test_sizes)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
