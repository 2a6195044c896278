/* The operations whose plain C serves every instruction set: memory bound or small. Launchers of kernels.h. Internal to
 * the kernels. */
#ifndef QUIRE_KERNELS_CPU_OPERATIONS_H
#define QUIRE_KERNELS_CPU_OPERATIONS_H

#include "kernels/kernels.h"

void quire_rmsnorm_cpu(struct quire_stream *stream, struct quire_rmsnorm op);
void quire_layernorm_cpu(struct quire_stream *stream, struct quire_layernorm op);
void quire_rope_cpu(struct quire_stream *stream, struct quire_rope op);
void quire_hadamard_cpu(struct quire_stream *stream, struct quire_hadamard op);
void quire_convert_cpu(struct quire_stream *stream, struct quire_convert op);
void quire_add_cpu(struct quire_stream *stream, struct quire_add op);
void quire_embed_cpu(struct quire_stream *stream, struct quire_embed op);
void quire_silu_mul_cpu(struct quire_stream *stream, struct quire_silu_mul op);
void quire_quantise_latent_cpu(struct quire_stream *stream, struct quire_quantise_latent op);
void quire_quantise_index_cpu(struct quire_stream *stream, struct quire_quantise_index op);
void quire_route_cpu(struct quire_stream *stream, struct quire_route op);
void quire_finite_cpu(struct quire_stream *stream, struct quire_finite op);

/* A block of 128 values (an index key, a head of an index query, a quarter of a latent): its codes, and its scale by
 * either rule of arithmetic.md 2. */
float quire_quantise_block(const float *x, bool any_scale, uint8_t *codes_out);

/* y[i] = silu(gate[i]) * up[i], as f32 or bf16 (arithmetic.md 7). */
void quire_silu_mul_row(const float *gate, const float *up, void *y, enum quire_dtype y_dtype, int64_t n);

#endif
