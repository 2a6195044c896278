#include "kernels/cpu/sample_passes_body.h"

const struct quire_sample_passes quire_sample_passes_avx2 = QUIRE_SAMPLE_PASSES;
