/* The seed of a random test: 1, or what QUIRE_TEST_SEED says ("random" takes the clock). Printed when asked for, so
 * that a failure can be run again. */
#ifndef QUIRE_TESTS_SEED_H
#define QUIRE_TESTS_SEED_H

#include <stdint.h>

uint64_t test_seed(const char *test);

#endif
