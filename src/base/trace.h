/* A ring of intervals for looking at what overlaps with what: gather jobs and layers of each rank, shown by any viewer
 * of the Chrome trace format. Off is a NULL pointer, and costs one test of it.
 *
 *     uint64_t begin = quire_trace_begin(trace);
 *     ... work ...
 *     quire_trace_end(trace, begin, (struct quire_trace_span){QUIRE_TRACE_LAYER, rank, layer});
 *
 * When the ring is full the oldest intervals are overwritten. Memory: allocated at creation, `capacity` intervals.
 * Threads: begin and end from any (each takes a cell of its own by one atomic addition); reading while nobody writes.
 * Ranks that are processes of their own write into copies that nobody reads. */
#ifndef QUIRE_BASE_TRACE_H
#define QUIRE_BASE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_trace;

enum quire_trace_kind {
  QUIRE_TRACE_LAYER,  /* a rank's compute thread runs a layer */
  QUIRE_TRACE_WAIT,   /* of which it waits for a gather */
  QUIRE_TRACE_GATHER, /* its copy stream gathers the pages of a layer */
};

struct quire_trace_span {
  enum quire_trace_kind kind;
  int32_t rank;
  int32_t layer; /* target layers, then draft layers */
};

struct quire_trace_event {
  struct quire_trace_span span;
  uint64_t begin_ns, end_ns; /* of env's clock */
};

/* QUIRE_ERR_MEMORY. capacity > 0. */
enum quire_status quire_trace_create(const struct quire_env *env, size_t capacity, struct quire_trace **trace_out,
                                     struct quire_error *error_out);
/* NULL is allowed. */
void quire_trace_destroy(struct quire_trace *trace);

/* The clock, and the interval from begin to now; out of line, for a trace that is on. */
uint64_t quire_trace_now(const struct quire_trace *trace);
void quire_trace_keep(struct quire_trace *trace, uint64_t begin_ns, struct quire_trace_span span);

static inline uint64_t quire_trace_begin(const struct quire_trace *trace) {
  return trace != NULL ? quire_trace_now(trace) : 0;
}

static inline void quire_trace_end(struct quire_trace *trace, uint64_t begin_ns, struct quire_trace_span span) {
  if (trace != NULL) {
    quire_trace_keep(trace, begin_ns, span);
  }
}

/* Forgets everything. */
void quire_trace_reset(struct quire_trace *trace);
/* Intervals kept, and one of them by number, in the order in which they ended. */
size_t quire_trace_count(const struct quire_trace *trace);
struct quire_trace_event quire_trace_at(const struct quire_trace *trace, size_t index);

/* Appends all of it as JSON in the Chrome trace format: a process a rank, its thread 0 for compute
 * and 1 for copies. */
void quire_trace_write(const struct quire_trace *trace, struct quire_strbuf *buffer);

#ifdef __cplusplus
}
#endif
#endif
