/* The safetensors reader: what it gives out, and headers that lie in every way the format can be lied in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/env.h"
#include "model/safetensors.h"
#include "support/fail_env.h"

#define FILE_MAX 4096

/* A file in memory: header text, then data_bytes bytes 0, 1, 2, ... Returns its size. */
static size_t make_file(uint8_t *out, const char *header, size_t data_bytes) {
  size_t length = strlen(header);
  assert_true(8 + length + data_bytes <= FILE_MAX);
  for (int i = 0; i < 8; i++) {
    out[i] = (uint8_t)(length >> (8 * i));
  }
  memcpy(out + 8, header, length);
  for (size_t i = 0; i < data_bytes; i++) {
    out[8 + length + i] = (uint8_t)i;
  }
  return 8 + length + data_bytes;
}

static void write_file(const char *dir, const char *name, const void *bytes, size_t count) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

static void write_shard(const char *dir, const char *name, const char *header, size_t data_bytes) {
  uint8_t bytes[FILE_MAX];
  write_file(dir, name, bytes, make_file(bytes, header, data_bytes));
}

static void remove_folder(const char *dir) {
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "a.safetensors",
                                      "b.safetensors"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    unlink(path);
  }
  assert_int_equal(rmdir(dir), 0);
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                           "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[20,20]},"
                           "\"scalar\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[20,21]},"
                           "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,2],\"data_offsets\":[21,23]}}   ";

static void test_good(void **state) {
  (void)state;
  struct fail_env env;
  struct quire_safetensors *tensors = NULL;
  struct quire_error error = {0};
  uint8_t bytes[FILE_MAX];
  fail_env_init(&env);
  size_t count = make_file(bytes, good, 23);
  const uint8_t *data = bytes + 8 + strlen(good);
  assert_int_equal(quire_safetensors_adopt(&env.env, bytes, count, &tensors, &error), QUIRE_OK);
  assert_int_equal(quire_safetensors_count(tensors), 5);
  assert_int_equal(quire_safetensors_bytes(tensors), count);
  const struct quire_tensor *b = quire_safetensors_find(tensors, "b");
  assert_non_null(b);
  assert_string_equal(b->name, "b");
  assert_int_equal(b->type, QUIRE_TENSOR_BF16);
  assert_int_equal(b->rank, 2);
  assert_int_equal(b->shape[0], 2);
  assert_int_equal(b->shape[1], 3);
  assert_int_equal(b->shape[2], 1);
  assert_int_equal(b->bytes, 12);
  assert_ptr_equal(b->data, data + 8);
  assert_ptr_equal(quire_safetensors_at(tensors, 0), quire_safetensors_find(tensors, "a")); /* by offset */
  assert_int_equal(quire_safetensors_find(tensors, "empty")->bytes, 0);
  assert_int_equal(quire_safetensors_find(tensors, "scalar")->rank, 0);
  assert_int_equal(quire_safetensors_find(tensors, "deep")->shape[3], 2);
  assert_null(quire_safetensors_find(tensors, "c"));
  assert_null(quire_safetensors_find(tensors, "__metadata__"));
  assert_null(quire_safetensors_find(tensors, ""));
  quire_safetensors_close(tensors);
  count = make_file(bytes, "{}", 0); /* nothing at all is legal */
  assert_int_equal(quire_safetensors_adopt(&env.env, bytes, count, &tensors, &error), QUIRE_OK);
  assert_int_equal(quire_safetensors_count(tensors), 0);
  assert_null(quire_safetensors_find(tensors, "a"));
  quire_safetensors_close(tensors);
  quire_safetensors_close(NULL);
  assert_string_equal(quire_tensor_type_name(QUIRE_TENSOR_F8_E4M3), "F8_E4M3");
  assert_int_equal(quire_tensor_type_bytes(QUIRE_TENSOR_I64), 8);
  fail_env_fini(&env);
}

#define ENTRY(name, dtype, shape, offsets)                                                                             \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_lies(void **state) {
  (void)state;
  static const struct {
    const char *header;
    size_t data_bytes;
    enum quire_status status;
    const char *says;
  } cases[] = {
      {"", 0, QUIRE_ERR_CORRUPT, "JSON"},
      {"[]", 0, QUIRE_ERR_CORRUPT, "object"},
      {"{", 0, QUIRE_ERR_CORRUPT, "JSON"},
      {"{}", 1, QUIRE_ERR_CORRUPT, "at its end"},
      {"{\"a\":3}", 0, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{\"a\":{}}", 0, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("a", "F32", "[1]", "[4,8]") "}", 8, QUIRE_ERR_CORRUPT,
       "uplicate"},
      {"{" ENTRY("a", "F16", "[1]", "[0,2]") "}", 2, QUIRE_ERR_UNSUPPORTED, "F16"},
      {"{" ENTRY("a", "F4", "[1]", "[0,2]") "}", 2, QUIRE_ERR_UNSUPPORTED, "F4"},
      {"{" ENTRY("a", "F32", "[1,1,1,1,1]", "[0,4]") "}", 4, QUIRE_ERR_UNSUPPORTED, "dimensions"},
      {"{" ENTRY("a", "F32", "{}", "[0,4]") "}", 4, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{" ENTRY("a", "F32", "[-1]", "[0,4]") "}", 4, QUIRE_ERR_CORRUPT, "dimension"},
      {"{" ENTRY("a", "F32", "[1.0]", "[0,4]") "}", 4, QUIRE_ERR_CORRUPT, "dimension"},
      {"{" ENTRY("a", "F32", "[4611686018427387904,4]", "[0,0]") "}", 0, QUIRE_ERR_CORRUPT, "overflows"},
      {"{" ENTRY("a", "F32", "[9223372036854775807,2]", "[0,0]") "}", 0, QUIRE_ERR_CORRUPT, "overflows"},
      {"{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, QUIRE_ERR_CORRUPT, "overflows"},
      {"{" ENTRY("a", "F32", "[2]", "[0,4]") "}", 8, QUIRE_ERR_CORRUPT, "shape"},
      {"{" ENTRY("a", "F32", "[1]", "[0,8]") "}", 8, QUIRE_ERR_CORRUPT, "shape"},
      {"{" ENTRY("a", "F32", "[2]", "[0,8]") "}", 4, QUIRE_ERR_CORRUPT, "outside"},
      {"{" ENTRY("a", "F32", "[1]", "[4,0]") "}", 4, QUIRE_ERR_CORRUPT, "outside"},
      {"{" ENTRY("a", "F32", "[1]", "[-4,0]") "}", 4, QUIRE_ERR_CORRUPT, "outside"},
      {"{" ENTRY("a", "F32", "[1]", "[9223372036854775800,9223372036854775804]") "}", 4, QUIRE_ERR_CORRUPT, "outside"},
      {"{" ENTRY("a", "F32", "[1]", "[0]") "}", 4, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{" ENTRY("a", "F32", "[1]", "[0,4,8]") "}", 4, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{" ENTRY("a", "F32", "[1]", "[0.0,4.0]") "}", 4, QUIRE_ERR_CORRUPT, "tensor a"},
      {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[1]", "[4,8]") "}", 8, QUIRE_ERR_CORRUPT,
       "overlap"},
      {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[8,12]") "}", 12, QUIRE_ERR_CORRUPT,
       "no tensor"},
      {"{" ENTRY("a", "F32", "[1]", "[4,8]") "}", 8, QUIRE_ERR_CORRUPT, "no tensor"},
      {"{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 5, QUIRE_ERR_CORRUPT, "no tensor"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct fail_env env;
    struct quire_safetensors *tensors = NULL;
    struct quire_error error = {0};
    uint8_t bytes[FILE_MAX];
    fail_env_init(&env);
    size_t count = make_file(bytes, cases[i].header, cases[i].data_bytes);
    uint8_t *exact = malloc(count); /* so that a sanitizer sees a read beyond the end */
    assert_non_null(exact);
    memcpy(exact, bytes, count);
    enum quire_status status = quire_safetensors_adopt(&env.env, exact, count, &tensors, &error);
    if (status != cases[i].status || error.status != status || !strstr(error.text, cases[i].says)) {
      fail_msg("%s: status %d, %s: %s", cases[i].header, status, error.where, error.text);
    }
    assert_null(tensors);
    assert_null(strchr(error.text, '\n'));
    free(exact);
    fail_env_fini(&env);
  }
}

/* Every truncation of a good file, and every single byte of its length set to 255. */
static void test_truncated(void **state) {
  (void)state;
  uint8_t bytes[FILE_MAX];
  struct quire_error error = {0};
  struct quire_safetensors *tensors = NULL;
  size_t count = make_file(bytes, good, 23);
  for (size_t cut = 0; cut < count; cut++) {
    uint8_t *part = malloc(cut + 1);
    assert_non_null(part);
    memcpy(part, bytes, cut);
    assert_int_equal(quire_safetensors_adopt(quire_env_default(), part, cut, &tensors, &error), QUIRE_ERR_CORRUPT);
    free(part);
  }
  for (int i = 0; i < 8; i++) {
    uint8_t saved = bytes[i];
    bytes[i] = 255;
    assert_int_equal(quire_safetensors_adopt(quire_env_default(), bytes, count, &tensors, &error), QUIRE_ERR_CORRUPT);
    bytes[i] = saved;
  }
}

static void test_folder(void **state) {
  (void)state;
  struct fail_env env;
  struct quire_safetensors *tensors = NULL;
  struct quire_error error = {0};
  char dir[] = "/tmp/quire-safetensors-XXXXXX", path[128];
  assert_non_null(mkdtemp(dir));
  fail_env_init(&env);
  assert_int_equal(quire_safetensors_open(&env.env, dir, &tensors, &error), QUIRE_ERR_NOT_FOUND);
  assert_non_null(strstr(error.text, "model.safetensors.index.json"));
  write_shard(dir, "model.safetensors", "{" ENTRY("single", "F32", "[1]", "[0,4]") "}", 4);
  assert_int_equal(quire_safetensors_open(&env.env, dir, &tensors, &error), QUIRE_OK);
  assert_non_null(quire_safetensors_find(tensors, "single"));
  quire_safetensors_close(tensors);
  snprintf(path, sizeof path, "%s/model.safetensors", dir);
  assert_int_equal(quire_safetensors_open(&env.env, path, &tensors, &error), QUIRE_OK);
  quire_safetensors_close(tensors);
  snprintf(path, sizeof path, "%s/none.safetensors", dir);
  assert_int_equal(quire_safetensors_open(&env.env, path, &tensors, &error), QUIRE_ERR_NOT_FOUND);
  write_file(dir, "model.safetensors", "", 0);
  assert_int_equal(quire_safetensors_open(&env.env, dir, &tensors, &error), QUIRE_ERR_CORRUPT);
  fail_env_fini(&env);
  remove_folder(dir);
}

static void test_index(void **state) {
  (void)state;
  static const struct {
    const char *index;
    enum quire_status status;
    const char *says;
  } cases[] = {
      {"{\"metadata\":{\"total_size\":20},\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"b."
       "safetensors\"}}",
       QUIRE_OK, ""},
      {"{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}", QUIRE_ERR_CORRUPT, "z"},
      {"{\"weight_map\":{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\",\"z\":\"b.safetensors\"}}", QUIRE_ERR_CORRUPT,
       "x"},
      {"{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"b.safetensors\",\"w\":\"a."
       "safetensors\"}}",
       QUIRE_ERR_CORRUPT, "w"},
      {"{\"weight_map\":{\"x\":\"../a.safetensors\"}}", QUIRE_ERR_CORRUPT, "same folder"},
      {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", QUIRE_ERR_CORRUPT, "same folder"},
      {"{\"weight_map\":{\"x\":\"..\"}}", QUIRE_ERR_CORRUPT, "same folder"},
      {"{\"weight_map\":{\"x\":\"\"}}", QUIRE_ERR_CORRUPT, "same folder"},
      {"{\"weight_map\":{\"x\":4}}", QUIRE_ERR_CORRUPT, "same folder"},
      {"{\"weight_map\":{\"x\":\"c.safetensors\"}}", QUIRE_ERR_NOT_FOUND, "c.safetensors"},
      {"{\"weight_map\":[]}", QUIRE_ERR_CORRUPT, "object"},
      {"{}", QUIRE_ERR_CORRUPT, "missing"},
      {"{\"weight_map\":{}}", QUIRE_OK, ""},
      {"{\"weight_map\":", QUIRE_ERR_CORRUPT, "JSON"},
  };
  char dir[] = "/tmp/quire-safetensors-XXXXXX";
  assert_non_null(mkdtemp(dir));
  write_shard(dir, "a.safetensors", "{" ENTRY("x", "F32", "[1]", "[0,4]") "}", 4);
  write_shard(dir, "b.safetensors", "{" ENTRY("z", "U8", "[4]", "[8,12]") "," ENTRY("y", "F32", "[2]", "[0,8]") "}",
              12);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct fail_env env;
    struct quire_safetensors *tensors = NULL;
    struct quire_error error = {0};
    fail_env_init(&env);
    write_file(dir, "model.safetensors.index.json", cases[i].index, strlen(cases[i].index));
    enum quire_status status = quire_safetensors_open(&env.env, dir, &tensors, &error);
    if (status != cases[i].status || (status && !strstr(error.text, cases[i].says))) {
      fail_msg("%s: status %d, %s: %s", cases[i].index, status, error.where, error.text);
    }
    if (i == 0) {
      assert_int_equal(quire_safetensors_count(tensors), 3);
      assert_string_equal(quire_safetensors_at(tensors, 0)->name, "x");
      assert_string_equal(quire_safetensors_at(tensors, 2)->name, "z");
    }
    if (!status) {
      quire_safetensors_close(tensors);
    }
    fail_env_fini(&env);
  }
  /* one name in two shards */
  static const char twice[] =
      "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"b.safetensors\"}}";
  struct quire_safetensors *tensors = NULL;
  struct quire_error error = {0};
  write_file(dir, "model.safetensors.index.json", twice, strlen(twice));
  write_shard(dir, "a.safetensors", "{" ENTRY("x", "F32", "[1]", "[0,4]") "," ENTRY("y", "U8", "[1]", "[4,5]") "}", 5);
  assert_int_equal(quire_safetensors_open(quire_env_default(), dir, &tensors, &error), QUIRE_ERR_CORRUPT);
  assert_non_null(strstr(error.text, "another file"));
  remove_folder(dir);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  struct quire_safetensors *tensors = NULL;
  struct quire_error error = {0};
  enum quire_status status = quire_safetensors_open(env, context, &tensors, &error);
  assert_true(status ? tensors == NULL : tensors != NULL);
  quire_safetensors_close(tensors);
  return status;
}

static void test_every_allocation_refused(void **state) {
  (void)state;
  static const char index[] = "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}";
  char dir[] = "/tmp/quire-safetensors-XXXXXX";
  assert_non_null(mkdtemp(dir));
  write_shard(dir, "a.safetensors", "{" ENTRY("x", "F32", "[1]", "[0,4]") "}", 4);
  write_shard(dir, "b.safetensors", "{" ENTRY("y", "F32", "[1]", "[0,4]") "}", 4);
  write_file(dir, "model.safetensors.index.json", index, strlen(index));
  assert_true(fail_env_sweep(life, dir) > 6);
  remove_folder(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good),   cmocka_unit_test(test_lies),  cmocka_unit_test(test_truncated),
      cmocka_unit_test(test_folder), cmocka_unit_test(test_index), cmocka_unit_test(test_every_allocation_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
