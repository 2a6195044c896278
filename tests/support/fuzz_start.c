/* What every fuzz target does first: jansson's tables are seeded, so that a run with a seed of libFuzzer's can be run
 * again. */
#include <jansson.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  json_object_seed(1);
  return 0;
}
