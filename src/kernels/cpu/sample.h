/* Sampling and scoring on the cpu. Launchers of kernels.h; the two of each are equal in bits. Internal to the
 * kernels. */
#ifndef QUIRE_KERNELS_CPU_SAMPLE_H
#define QUIRE_KERNELS_CPU_SAMPLE_H

#include "kernels/kernels.h"

void quire_count_cpu(struct quire_stream *stream, struct quire_count op);
void quire_sample_portable(struct quire_stream *stream, struct quire_sample op);
void quire_sample_avx512(struct quire_stream *stream, struct quire_sample op);
void quire_score_portable(struct quire_stream *stream, struct quire_score op);
void quire_score_avx512(struct quire_stream *stream, struct quire_score op);

#endif
