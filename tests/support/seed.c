#include "support/seed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t test_seed(const char *test) {
  const char *text = getenv("QUIRE_TEST_SEED");
  uint64_t seed = 1;
  if (text && strcmp(text, "random") == 0) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec;
  } else if (text && *text) {
    seed = strtoull(text, NULL, 0);
  }
  printf("%s: QUIRE_TEST_SEED=%" PRIu64 "\n", test, seed);
  return seed;
}
