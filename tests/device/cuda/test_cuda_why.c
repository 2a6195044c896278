/* Why CUDA is off, in each way a driver can be missing: the program runs itself with a library in the driver's place
 * that is no library, too old, does not start, or shows no device. What it says names the reason and what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"
#include "device/device_info.h"

#define SKIPPED 77
#define FAKE QUIRE_BINARY_DIR "/tests/fake"

static const char *self;

/* Of a process with that environment. */
static void expect_why(const char *environment, const char *want) {
  char command[1024], line[400] = "";
  (void)snprintf(command, sizeof command, "%s %s say 2>&1", environment, self);
  FILE *out = popen(command, "r"); /* the paths are the build's own */
  assert_non_null(out);
  bool read = fgets(line, sizeof line, out) != NULL;
  int status = pclose(out);
  if (!read || status != 0 || strstr(line, want) == NULL) {
    fail_msg("%s: \"%s\" (%d) has no \"%s\"", environment, line, status, want);
  }
}

static void says_why(void **state) {
  (void)state;
  const char *with = "LD_LIBRARY_PATH=" FAKE;
  char environment[600];
  const struct {
    const char *fake, *want;
  } cases[] = {
      {"FAKE_VERSION=11080", "the driver is of CUDA 11.8, this build needs "},
      {"FAKE_VERSION=99000 FAKE_INIT=100",
       "the driver shows no device; look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"},
      {"FAKE_VERSION=99000 FAKE_INIT=3", "the driver does not start: initialization error (3); look at nvidia-smi"},
      {"FAKE_VERSION=99000 FAKE_INIT=802", "the driver does not start: system not yet initialized"},
      {"FAKE_VERSION=99000 FAKE_INIT=999", "the driver does not start: unknown error"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    (void)snprintf(environment, sizeof environment, "%s %s", with, cases[i].fake);
    expect_why(environment, cases[i].want);
  }
}

static void a_file_that_is_no_library(void **state) {
  (void)state;
  char folder[] = "/tmp/quire-driver-XXXXXX", path[64], environment[100];
  assert_non_null(mkdtemp(folder));
  (void)snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
  (void)snprintf(environment, sizeof environment, "LD_LIBRARY_PATH=%s", folder);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs("no library\n", file) >= 0 && fclose(file) == 0);
  expect_why(environment, "there is no driver: ");
  expect_why(environment, "libcuda.so.1: ");
  assert_true(unlink(path) == 0 && rmdir(folder) == 0);
}

int main(int argc, char **argv) {
  self = argv[0];
  if (argc > 1) {
    struct quire_cuda_info info;
    struct quire_device *device = NULL;
    struct quire_error error = {0};
    bool usable = quire_cuda_describe(&info);
    printf("%s\n", info.why);
    /* opening one says the same */
    return usable ||
           quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, 0, &device, &error) != QUIRE_ERR_UNSUPPORTED ||
           strstr(error.text, info.why) == NULL;
  }
  if (access(FAKE "/libcuda.so.1", R_OK) != 0) {
    puts("skipped: the driver that fakes these is in the build folder alone");
    return SKIPPED;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(says_why), cmocka_unit_test(a_file_that_is_no_library)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
