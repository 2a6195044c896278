#include <fcntl.h>
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

#include "base/file.h"
#include "support/fail_env.h"

struct place {
  char folder[64];
  char path[96];
};

static int setup(void **state) {
  struct place *place = calloc(1, sizeof *place);
  strcpy(place->folder, "/tmp/quire-file-XXXXXX");
  if (!mkdtemp(place->folder)) {
    return -1;
  }
  snprintf(place->path, sizeof place->path, "%s/a", place->folder);
  *state = place;
  return 0;
}

static int teardown(void **state) {
  struct place *place = *state;
  unlink(place->path);
  int left = rmdir(place->folder); /* a temporary file left behind fails here */
  free(place);
  return left;
}

static void write_read_map(void **state) {
  struct place *place = *state;
  struct fail_env fail;
  fail_env_init(&fail);
  static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    char *data = malloc(sizes[i] + 1);
    memset(data, (int)i + 1, sizes[i]);
    assert_int_equal(quire_file_write(place->path, data, sizes[i], NULL), QUIRE_OK);
    struct quire_file_text text;
    assert_int_equal(quire_file_read(&fail.env, place->path, sizes[i], &text, NULL), QUIRE_OK);
    assert_int_equal(text.bytes, sizes[i]);
    assert_memory_equal(text.data, data, sizes[i]);
    assert_int_equal(text.data[sizes[i]], 0);
    quire_file_text_free(&fail.env, &text);
    quire_file_text_free(&fail.env, &text);
    struct quire_mapping mapping;
    assert_int_equal(quire_file_map(place->path, &mapping, NULL), QUIRE_OK);
    assert_int_equal(mapping.bytes, sizes[i]);
    assert_non_null(mapping.data);
    assert_memory_equal(mapping.data, data, sizes[i]);
    quire_file_unmap(&mapping);
    quire_file_unmap(&mapping);
    free(data);
  }
  fail_env_fini(&fail);
}

static void limit(void **state) {
  struct place *place = *state;
  struct quire_error error;
  struct quire_file_text text = {.bytes = 42};
  assert_int_equal(quire_file_write(place->path, "12345", 5, NULL), QUIRE_OK);
  assert_int_equal(quire_file_read(quire_env_default(), place->path, 4, &text, &error), QUIRE_ERR_ARGUMENT);
  assert_string_equal(error.where, place->path);
  assert_non_null(strstr(error.text, "has 5 bytes; at most 4 are accepted here"));
  assert_int_equal(text.bytes, 42);
}

static void what_is_no_file(void **state) {
  struct place *place = *state;
  struct quire_error error;
  struct quire_mapping mapping;
  struct quire_file_text text;
  assert_int_equal(quire_file_map(place->path, &mapping, &error), QUIRE_ERR_NOT_FOUND);
  assert_non_null(strstr(error.text, "No such file or directory; check the path"));
  assert_non_null(strstr(error.text, place->path));
  assert_int_equal(quire_file_map(place->folder, &mapping, &error), QUIRE_ERR_IO);
  assert_non_null(strstr(error.text, "a folder"));
  assert_int_equal(mkfifo(place->path, 0600), 0);
  assert_int_equal(quire_file_read(quire_env_default(), place->path, 100, &text, &error), QUIRE_ERR_IO);
  assert_non_null(strstr(error.text, "a pipe"));
  char long_path[5000];
  memset(long_path, 'x', sizeof long_path - 1);
  long_path[sizeof long_path - 1] = 0;
  assert_int_equal(quire_file_read(quire_env_default(), long_path, 100, &text, &error), QUIRE_ERR_IO);
  assert_int_equal(quire_file_write(long_path, "", 0, &error), QUIRE_ERR_IO);
  assert_int_equal(quire_file_write("/nowhere/at/all", "", 0, &error), QUIRE_ERR_NOT_FOUND);
}

/* A write that cannot be completed leaves the old file and nothing beside it (teardown looks). */
static void write_is_whole_or_nothing(void **state) {
  struct place *place = *state;
  char inside[128];
  snprintf(inside, sizeof inside, "%s/folder", place->folder);
  assert_int_equal(mkdir(inside, 0700), 0);
  assert_int_equal(quire_file_write(inside, "new", 3, NULL), QUIRE_ERR_IO);
  assert_int_equal(rmdir(inside), 0);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  struct quire_file_text text;
  enum quire_status status = quire_file_read(env, context, 100, &text, NULL);
  if (status == QUIRE_OK) {
    quire_file_text_free(env, &text);
  }
  return status;
}

static void out_of_memory(void **state) {
  struct place *place = *state;
  assert_int_equal(quire_file_write(place->path, "12345", 5, NULL), QUIRE_OK);
  assert_int_equal(fail_env_sweep(life, place->path), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(write_read_map, setup, teardown),
      cmocka_unit_test_setup_teardown(limit, setup, teardown),
      cmocka_unit_test_setup_teardown(what_is_no_file, setup, teardown),
      cmocka_unit_test_setup_teardown(write_is_whole_or_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(out_of_memory, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
