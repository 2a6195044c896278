/* Launchers of the experts, one for each set of gemm tiles. Internal to the kernels. */
#ifndef QUIRE_KERNELS_CPU_MOE_H
#define QUIRE_KERNELS_CPU_MOE_H

#include "kernels/kernels.h"

void quire_moe_portable(struct quire_stream *stream, struct quire_moe moe);
void quire_moe_avx512(struct quire_stream *stream, struct quire_moe moe);

#endif
