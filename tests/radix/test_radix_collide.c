/* The prefix tree when every page has the same hash: slow, and still right, since parent and tokens decide. The tree is
 * compiled once more here, with its hash replaced and its functions renamed. */
#define quire_radix_bytes collide_radix_bytes
#define quire_radix_create collide_radix_create
#define quire_radix_destroy collide_radix_destroy
#define quire_radix_match collide_radix_match
#define quire_radix_match_below collide_radix_match_below
#define quire_radix_keys collide_radix_keys
#define quire_radix_match_keys collide_radix_match_keys
#define quire_radix_touch collide_radix_touch
#define quire_radix_insert collide_radix_insert
#define quire_radix_insert_chain collide_radix_insert_chain
#define quire_radix_hold collide_radix_hold
#define quire_radix_held collide_radix_held
#define quire_radix_evict collide_radix_evict
#define quire_radix_evict_any collide_radix_evict_any
#define quire_radix_drop collide_radix_drop
#define quire_radix_flush collide_radix_flush
#define quire_radix_contains collide_radix_contains
#define quire_radix_parent collide_radix_parent
#define quire_radix_count collide_radix_count
#define quire_radix_check collide_radix_check
#define quire_radix_digest collide_radix_digest

#include "base/rng.h"
#include "radix_model.h"
#include "support/seed.h"

#define quire_mix64(z) ((void)(z), (uint64_t)3)
#include "../../src/radix/radix.c"
#undef quire_mix64

static void everything_collides(void **state) {
  (void)state;
  uint64_t seed = test_seed("everything_collides");
  random_life(quire_splitmix64(&seed), 1, 4000);
  random_life(quire_splitmix64(&seed), 4, 4000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(everything_collides)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
