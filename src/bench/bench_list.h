/* The benches; what each measures stands at the head of its file. Errors: memory, and what an engine or step answers.
 */
#ifndef QUIRE_BENCH_BENCH_LIST_H
#define QUIRE_BENCH_BENCH_LIST_H

#include "bench/bench_harness.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_status bench_gemm(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_topk(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_sample(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_attention(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_indexer(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_layer(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_view(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_prefill(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_decode(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_capacity(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_controller(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_tree(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_ttft(struct bench *bench, struct quire_error *error_out);
enum quire_status bench_http(struct bench *bench, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
