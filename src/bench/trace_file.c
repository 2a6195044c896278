/* A scanner of its own reads the lines: a trace is megabytes of small integers, of which a tree of JSON objects would
 * take longer to build than the replay takes. It knows the four keys, in any order, and nothing else. */
#include "bench/trace_file.h"

#include <stdbool.h>
#include <string.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/rng.h"

#define FILE_BYTES_MAX ((size_t)1 << 30)
#define ID_MAX (1 << 26)
#define INPUT_MAX (1 << 26)

struct scanner {
  const char *at, *end;
  const char *fault; /* NULL: none so far */
};

static bool fail(struct scanner *s, const char *fault) {
  s->fault = s->fault ? s->fault : fault;
  return false;
}

static void skip_blanks(struct scanner *s) {
  while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r')) {
    s->at++;
  }
}

static bool is(struct scanner *s, char c) {
  skip_blanks(s);
  if (s->at < s->end && *s->at == c) {
    s->at++;
    return true;
  }
  return false;
}

static bool need(struct scanner *s, char c, const char *fault) { return is(s, c) || fail(s, fault); }

static int64_t number(struct scanner *s, int64_t max) {
  int64_t value = 0;
  skip_blanks(s);
  const char *begin = s->at;
  for (; s->at < s->end && *s->at >= '0' && *s->at <= '9' && value <= max; s->at++) {
    value = 10 * value + (*s->at - '0');
  }
  const bool zeros = s->at > begin + 1 && *begin == '0';
  if (s->at == begin || zeros || value > max) {
    fail(s, "a number is missing or out of bounds");
    return 0;
  }
  if (s->at + 1 < s->end && s->at[0] == '.' && s->at[1] == '0') { /* some writers give times as 0.0 */
    s->at += 2;
  }
  return value;
}

/* Room for one more of `size` bytes in *array, which has room for *max. */
static bool room(const struct quire_env *env, void **array, int64_t count, int64_t *max, size_t size) {
  if (count < *max) {
    return true;
  }
  const int64_t wanted = *max > 0 ? 2 * *max : 1024;
  void *larger = quire_env_zalloc(env, (size_t)wanted, size);
  if (!larger) {
    return false;
  }
  if (*max > 0) {
    memcpy(larger, *array, (size_t)count * size);
    quire_env_free(env, *array, (size_t)*max, size);
  }
  *array = larger;
  *max = wanted;
  return true;
}

static bool read_ids(struct trace_file *trace, struct scanner *s, struct trace_request *request) {
  request->first = trace->id_count;
  if (!need(s, '[', "hash_ids is no list")) {
    return false;
  }
  do {
    const int64_t id = number(s, ID_MAX);
    if (s->fault) {
      return false;
    }
    if (!room(trace->env, (void **)&trace->ids, trace->id_count, &trace->id_max, sizeof *trace->ids)) {
      return fail(s, "no memory");
    }
    trace->ids[trace->id_count++] = (int32_t)id;
    trace->distinct = (int32_t)id >= trace->distinct ? (int32_t)id + 1 : trace->distinct; /* the highest, for now */
  } while (is(s, ','));
  return need(s, ']', "hash_ids does not end");
}

enum { TIMESTAMP = 1, INPUT = 2, OUTPUT = 4, IDS = 8 };

/* The value of one key; answers which it was. */
static int read_key(struct trace_file *trace, struct scanner *s, struct trace_request *request) {
  static const char *const keys[] = {"timestamp\"", "input_length\"", "output_length\"", "hash_ids\""};
  int key = 0;
  if (!need(s, '"', "a key is missing")) {
    return 0;
  }
  while (key < 4 &&
         ((size_t)(s->end - s->at) < strlen(keys[key]) || memcmp(s->at, keys[key], strlen(keys[key])) != 0)) {
    key++;
  }
  if (key == 4) {
    fail(s, "a key is none of timestamp, input_length, output_length, hash_ids");
    return 0;
  }
  s->at += strlen(keys[key]);
  if (!need(s, ':', "a key has no value")) {
    return 0;
  }
  switch (1 << key) {
  case TIMESTAMP:
    request->at_ms = number(s, INT64_MAX / 16);
    break;
  case INPUT:
    request->input = (int32_t)number(s, INPUT_MAX);
    break;
  case OUTPUT:
    request->output = (int32_t)number(s, INPUT_MAX);
    break;
  case IDS:
    read_ids(trace, s, request);
  }
  return 1 << key;
}

static bool read_line(struct trace_file *trace, struct scanner *s) {
  struct trace_request request = {0};
  int seen = 0;
  if (!need(s, '{', "a line is no JSON object")) {
    return false;
  }
  do {
    const int key = read_key(trace, s, &request);
    if (s->fault || (seen & key)) {
      return fail(s, "a key is there twice");
    }
    seen |= key;
  } while (is(s, ','));
  if (!need(s, '}', "a line does not end") || seen != (TIMESTAMP | INPUT | OUTPUT | IDS)) {
    return fail(s, "a line lacks one of timestamp, input_length, output_length, hash_ids");
  }
  skip_blanks(s);
  const int64_t blocks = ((int64_t)request.input + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
  if (s->at < s->end || request.input < 1 || trace->id_count - request.first != blocks) {
    return fail(s, "hash_ids does not have one id for each 512 tokens of input_length");
  }
  if (!room(trace->env, (void **)&trace->requests, trace->count, &trace->count_max, sizeof *trace->requests)) {
    return fail(s, "no memory");
  }
  trace->requests[trace->count++] = request;
  trace->input_tokens += request.input;
  trace->longest = request.input > trace->longest ? request.input : trace->longest;
  return true;
}

/* Counts ids that occur; trace->distinct is the highest + 1 before. */
static bool count_distinct(struct trace_file *trace) {
  const size_t bytes = (size_t)trace->distinct;
  uint8_t *seen = quire_env_zalloc(trace->env, bytes, 1);
  if (!seen) {
    return false;
  }
  int32_t distinct = 0;
  for (int64_t i = 0; i < trace->id_count; i++) {
    distinct += !seen[trace->ids[i]];
    seen[trace->ids[i]] = 1;
  }
  quire_env_free(trace->env, seen, bytes, 1);
  trace->distinct = distinct;
  return true;
}

enum quire_status trace_file_parse(const struct quire_env *env, const char *name, const char *text, size_t bytes,
                                   struct trace_file *trace_out, struct quire_error *error_out) {
  struct trace_file trace = {.env = env};
  QUIRE_ASSERT(env && name && (text || bytes == 0) && trace_out);
  const char *end = text + bytes;
  int64_t line = 0;
  struct scanner s = {0};
  for (const char *at = text; at < end && !s.fault; line++) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    s = (struct scanner){.at = at, .end = newline ? newline : end};
    at = newline ? newline + 1 : end;
    if (s.at < s.end) {
      read_line(&trace, &s);
    }
  }
  if (!s.fault && trace.count == 0) {
    s.fault = "it holds no request";
  } else if (!s.fault && !count_distinct(&trace)) {
    s.fault = "no memory";
  }
  if (s.fault) {
    trace_file_close(&trace);
    const bool memory = strcmp(s.fault, "no memory") == 0;
    return quire_error_set(error_out, memory ? QUIRE_ERR_MEMORY : QUIRE_ERR_CORRUPT, "trace", "%.256s, line %lld: %s",
                           name, (long long)line, s.fault);
  }
  *trace_out = trace;
  return QUIRE_OK;
}

enum quire_status trace_file_open(const struct quire_env *env, const char *path, struct trace_file *trace_out,
                                  struct quire_error *error_out) {
  struct quire_file_text text;
  QUIRE_ASSERT(env && path && trace_out);
  enum quire_status status = quire_file_read(env, path, FILE_BYTES_MAX, &text, error_out);
  if (status == QUIRE_OK) {
    status = trace_file_parse(env, path, text.data, text.bytes, trace_out, error_out);
    quire_file_text_free(env, &text);
  }
  return status;
}

void trace_file_close(struct trace_file *trace) {
  quire_env_free(trace->env, trace->requests, (size_t)trace->count_max, sizeof *trace->requests);
  quire_env_free(trace->env, trace->ids, (size_t)trace->id_max, sizeof *trace->ids);
  *trace = (struct trace_file){0};
}

/* Every other token is the id itself, so that blocks of two ids differ in every page; the rest only looks like text. */
void trace_file_tokens(const struct trace_file *trace, const struct trace_request *request, int32_t *tokens_out) {
  for (int32_t at = 0; at < request->input; at += TRACE_BLOCK_TOKENS) {
    const int32_t id = trace->ids[request->first + at / TRACE_BLOCK_TOKENS];
    const int32_t left = request->input - at;
    const int32_t count = left < TRACE_BLOCK_TOKENS ? left : TRACE_BLOCK_TOKENS;
    uint32_t other = (uint32_t)quire_mix64((uint64_t)id);
    for (int32_t i = 0; i < count; i++, other += 0x9e3779b9u) {
      tokens_out[at + i] = i % 2 == 0 ? id : (int32_t)(other >> 1);
    }
  }
}
