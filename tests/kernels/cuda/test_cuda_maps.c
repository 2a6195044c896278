/* The tensor maps of all memory: of which origins they are, and what a driver that has none, or refuses any one of
 * them, comes to. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda_select.h"
#include "kernels/cuda/select_maps.h"

static int asked, refused;
static uintptr_t origins[MEMORY_ORIGINS];

/* Refuses the call numbered `refused`. */
static bool encode(void *context, uintptr_t origin, CUtensorMap *map_out) {
  assert_true(context == &asked && asked < MEMORY_ORIGINS);
  origins[asked] = origin;
  memset(map_out, 0x55, sizeof *map_out);
  return asked++ != refused;
}

static void all_origins_are_made(void **state) {
  (void)state;
  struct quire_cuda_maps maps;
  const char *why = NULL;
  asked = 0;
  refused = -1;
  assert_true(quire_cuda_maps_make(encode, &asked, &maps, &why));
  assert_null(why);
  assert_int_equal(asked, MEMORY_ORIGINS);
  for (uintptr_t i = 0; i < MEMORY_ORIGINS; i++) {
    assert_int_equal(origins[i], i * 16);
  }
}

static void a_refusal_is_said(void **state) {
  (void)state;
  struct quire_cuda_maps maps;
  for (refused = 0; refused < MEMORY_ORIGINS; refused++) {
    const char *why = NULL;
    asked = 0;
    assert_false(quire_cuda_maps_make(encode, &asked, &maps, &why));
    assert_non_null(strstr(why, "refuses"));
    assert_int_equal(asked, refused + 1);
  }
  asked = refused = 0;
  assert_false(quire_cuda_maps_make(encode, &asked, &maps, NULL));
}

static void a_driver_without_them_is_said(void **state) {
  (void)state;
  struct quire_cuda_maps maps;
  const char *why = NULL;
  assert_false(quire_cuda_maps_make(NULL, NULL, &maps, &why));
  assert_non_null(strstr(why, "no tensor maps"));
}

/* Whatever this machine has: the same answer each time, and a reason if it is no. */
static void asked_once(void **state) {
  (void)state;
  const char *why = NULL;
  const struct quire_cuda_maps *maps = quire_cuda_select_maps(&why);
  assert_int_equal(maps == NULL, why != NULL);
  assert_ptr_equal(maps, quire_cuda_select_maps(NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_origins_are_made),
      cmocka_unit_test(a_refusal_is_said),
      cmocka_unit_test(a_driver_without_them_is_said),
      cmocka_unit_test(asked_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
