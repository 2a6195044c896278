/* The bench that needs a server instead of kernels, with options of its own. */
#ifndef QUIRE_BENCH_BENCH_SERVE_H
#define QUIRE_BENCH_BENCH_SERVE_H

#ifdef __cplusplus
extern "C" {
#endif

/* argv after "serve". Answers the exit code. */
int bench_serve(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
