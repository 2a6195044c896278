/* In the place of src/view/cuda when the build has no CUDA: no device can be opened, so no view asks for it. */
#include "view/view_internal.h"

const struct quire_view_backend quire_view_cuda_backend = {.open = NULL};
