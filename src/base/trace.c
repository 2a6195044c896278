#include "base/trace.h"

#include "base/assert.h"

struct quire_trace {
  const struct quire_env *env;
  size_t capacity;
  uint64_t written; /* since creation or reset; the next cell is written mod capacity */
  struct quire_trace_event *events;
};

enum quire_status quire_trace_create(const struct quire_env *env, size_t capacity, struct quire_trace **trace_out,
                                     struct quire_error *error_out) {
  QUIRE_ASSERT(capacity > 0);
  struct quire_trace *trace = quire_env_zalloc(env, 1, sizeof *trace);
  if (trace != NULL) {
    trace->env = env;
    trace->capacity = capacity;
    trace->events = quire_env_zalloc(env, capacity, sizeof *trace->events);
  }
  if (trace == NULL || trace->events == NULL) {
    quire_trace_destroy(trace);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "trace", "no memory for %zu intervals", capacity);
  }
  *trace_out = trace;
  return QUIRE_OK;
}

void quire_trace_destroy(struct quire_trace *trace) {
  if (trace != NULL) {
    quire_env_free(trace->env, trace->events, trace->capacity, sizeof *trace->events);
    quire_env_free(trace->env, trace, 1, sizeof *trace);
  }
}

uint64_t quire_trace_now(const struct quire_trace *trace) { return trace->env->now_ns(trace->env->context); }

void quire_trace_keep(struct quire_trace *trace, uint64_t begin_ns, struct quire_trace_span span) {
  uint64_t end_ns = quire_trace_now(trace);
  uint64_t cell = __atomic_fetch_add(&trace->written, 1, __ATOMIC_RELAXED);
  trace->events[cell % trace->capacity] = (struct quire_trace_event){span, begin_ns, end_ns};
}

void quire_trace_reset(struct quire_trace *trace) { __atomic_store_n(&trace->written, 0, __ATOMIC_RELAXED); }

size_t quire_trace_count(const struct quire_trace *trace) {
  uint64_t written = __atomic_load_n(&trace->written, __ATOMIC_RELAXED);
  return written < trace->capacity ? (size_t)written : trace->capacity;
}

struct quire_trace_event quire_trace_at(const struct quire_trace *trace, size_t index) {
  uint64_t written = __atomic_load_n(&trace->written, __ATOMIC_RELAXED);
  QUIRE_ASSERT(index < quire_trace_count(trace));
  uint64_t first = written < trace->capacity ? 0 : written;
  return trace->events[(first + index) % trace->capacity];
}

void quire_trace_write(const struct quire_trace *trace, struct quire_strbuf *buffer) {
  static const char *const names[] = {"layer", "wait", "gather"};
  size_t count = quire_trace_count(trace);
  uint64_t start = UINT64_MAX;
  for (size_t i = 0; i < count; i++) {
    uint64_t begin = quire_trace_at(trace, i).begin_ns;
    start = begin < start ? begin : start;
  }
  quire_strbuf_addf(buffer, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
  for (size_t i = 0; i < count; i++) {
    struct quire_trace_event e = quire_trace_at(trace, i);
    quire_strbuf_addf(buffer,
                      "%s\n{\"name\":\"%s %d\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
                      "\"dur\":%.3f}",
                      i > 0 ? "," : "", names[e.span.kind], e.span.layer, names[e.span.kind], e.span.rank,
                      e.span.kind == QUIRE_TRACE_GATHER ? 1 : 0, (double)(e.begin_ns - start) * 1e-3,
                      (double)(e.end_ns - e.begin_ns) * 1e-3);
  }
  quire_strbuf_addf(buffer, "\n]}\n");
}
