/* What programs that test operations of the CPU share beside the oracles: a source of randomness whose seed is printed
 * and can be given, the world, and the fixtures of their group. One copy in each program. */
#ifndef QUIRE_TESTS_KERNEL_MAIN_H
#define QUIRE_TESTS_KERNEL_MAIN_H

#include <errno.h>

#include "kernel_oracle.h"

static struct test_world world;
static struct test_random rng;

static int set_up(void **state) {
  (void)state;
  rng.state = test_seed(program_invocation_short_name);
  test_world_open(&world);
  quire_kernels_enter();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  test_world_close(&world);
  return 0;
}

#endif
