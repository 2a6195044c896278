// ctest: sources=src/bench/trace_file.c
// fuzz: runs=1500000
/* Traces of requests: refused in one line, or every line is the JSON object that a parser sees, and the trace, written
 * down again, reads as itself. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "base/env.h"
#include "base/strbuf.h"
#include "bench/trace_file.h"

#define TOKENS_MAX (1 << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t integer(const json_t *line, const char *key) {
  const json_t *value = json_object_get(line, key);
  QUIRE_ASSERT(json_is_number(value) && json_number_value(value) >= 0);
  return json_is_integer(value) ? json_integer_value(value) : (int64_t)json_real_value(value);
}

static void check_line(const char *text, size_t bytes, const struct trace_file *trace,
                       const struct trace_request *request) {
  json_t *line = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
  QUIRE_ASSERT(line && json_object_size(line) == 4);
  QUIRE_ASSERT(integer(line, "timestamp") == request->at_ms || request->at_ms > (int64_t)1 << 53);
  QUIRE_ASSERT(integer(line, "input_length") == request->input && integer(line, "output_length") == request->output);
  const json_t *ids = json_object_get(line, "hash_ids");
  QUIRE_ASSERT((int64_t)json_array_size(ids) == (request->input + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS);
  for (size_t i = 0; i < json_array_size(ids); i++) {
    QUIRE_ASSERT((int64_t)json_number_value(json_array_get(ids, i)) == trace->ids[request->first + (int64_t)i]);
  }
  json_decref(line);
}

static void check_lines(const char *text, size_t bytes, const struct trace_file *trace) {
  int64_t next = 0, input = 0;
  for (size_t at = 0; at < bytes;) {
    const char *newline = memchr(text + at, '\n', bytes - at);
    const size_t length = newline ? (size_t)(newline - text) - at : bytes - at;
    if (length > 0) {
      QUIRE_ASSERT(next < trace->count);
      check_line(text + at, length, trace, &trace->requests[next]);
      input += trace->requests[next++].input;
    }
    at += length + 1;
  }
  QUIRE_ASSERT(next == trace->count && input == trace->input_tokens);
}

/* Two blocks have the same tokens exactly if they have the same id. */
static void check_tokens(const struct trace_file *trace) {
  const struct trace_request *request = &trace->requests[trace->count - 1];
  if (request->input > TOKENS_MAX) {
    return;
  }
  int32_t *tokens = malloc((size_t)request->input * sizeof *tokens);
  QUIRE_ASSERT(tokens);
  trace_file_tokens(trace, request, tokens);
  for (int32_t i = 0; i < request->input; i++) {
    QUIRE_ASSERT(tokens[i] >= 0);
  }
  for (int32_t i = TRACE_BLOCK_TOKENS; i < request->input; i += TRACE_BLOCK_TOKENS) {
    const int32_t *ids = trace->ids + request->first + i / TRACE_BLOCK_TOKENS;
    const int32_t left = request->input - i, count = left < TRACE_BLOCK_TOKENS ? left : TRACE_BLOCK_TOKENS;
    const bool same = memcmp(tokens + i, tokens + i - TRACE_BLOCK_TOKENS, (size_t)count * sizeof *tokens) == 0;
    QUIRE_ASSERT(same == (ids[0] == ids[-1]));
  }
  free(tokens);
}

static void check_again(const struct trace_file *trace) {
  struct quire_strbuf text;
  struct trace_file again;
  quire_strbuf_init(&text, quire_env_default());
  for (int64_t i = 0; i < trace->count; i++) {
    const struct trace_request *r = &trace->requests[i];
    quire_strbuf_addf(&text, "{\"hash_ids\":[%d", trace->ids[r->first]);
    for (int32_t at = TRACE_BLOCK_TOKENS; at < r->input; at += TRACE_BLOCK_TOKENS) {
      quire_strbuf_addf(&text, ",%d", trace->ids[r->first + at / TRACE_BLOCK_TOKENS]);
    }
    quire_strbuf_addf(&text, "],\"timestamp\":%" PRId64 ",\"output_length\":%d,\"input_length\":%d}\n", r->at_ms,
                      r->output, r->input);
  }
  QUIRE_ASSERT(!quire_strbuf_failed(&text));
  QUIRE_ASSERT(trace_file_parse(quire_env_default(), "again", text.data, text.bytes, &again, NULL) == QUIRE_OK);
  QUIRE_ASSERT(again.count == trace->count && again.id_count == trace->id_count && again.longest == trace->longest &&
               again.distinct == trace->distinct && again.input_tokens == trace->input_tokens);
  QUIRE_ASSERT(memcmp(again.ids, trace->ids, (size_t)trace->id_count * sizeof *trace->ids) == 0);
  QUIRE_ASSERT(memcmp(again.requests, trace->requests, (size_t)trace->count * sizeof *trace->requests) == 0);
  trace_file_close(&again);
  quire_strbuf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct trace_file trace;
  struct quire_error error = {0};
  const char *text = (const char *)data;
  if (trace_file_parse(quire_env_default(), "fuzz", text, size, &trace, &error)) {
    QUIRE_ASSERT(error.status == QUIRE_ERR_CORRUPT && error.text[0] && !strchr(error.text, '\n'));
    return 0;
  }
  QUIRE_ASSERT(trace.count > 0 && trace.distinct > 0 && trace.distinct <= trace.id_count);
  check_lines(text, size, &trace);
  check_tokens(&trace);
  check_again(&trace);
  trace_file_close(&trace);
  return 0;
}
