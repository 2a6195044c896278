#include "bench/load_response.h"

#include <string.h>

#include "base/assert.h"
#include "base/utf8.h"
#include "bench/load_event.h"

#define LENGTH_MAX ((int64_t)1 << 48)

void load_response_init(struct load_response *response, const struct quire_env *env) {
  QUIRE_ASSERT(response && env);
  *response = (struct load_response){0};
  quire_strbuf_init(&response->head, env);
  quire_strbuf_init(&response->line, env);
}

void load_response_fini(struct load_response *response) {
  quire_strbuf_fini(&response->head);
  quire_strbuf_fini(&response->line);
}

void load_response_begin(struct load_response *response, load_token_fn *on_token, void *context) {
  const struct quire_strbuf head = response->head, line = response->line;
  QUIRE_ASSERT(on_token);
  *response = (struct load_response){.prompt_tokens = -1,
                                     .completion_tokens = -1,
                                     .cached_tokens = -1,
                                     .on_token = on_token,
                                     .context = context,
                                     .left = -1,
                                     .head = head,
                                     .line = line};
  quire_strbuf_clear(&response->head);
  quire_strbuf_clear(&response->line);
}

/* As much of the text as has room, on one line: whoever wrote it must not move a terminal's cursor. */
static void keep_note(struct load_response *r, const char *text, size_t bytes) {
  const uint8_t *at = (const uint8_t *)text, *end = at + (bytes < LOAD_NOTE_BYTES ? bytes : LOAD_NOTE_BYTES - 1);
  char *to = r->note;
  while (at < end) {
    const size_t valid = quire_utf8_valid(at, end);
    const bool control = *at < ' ' || *at == 127 || (valid == 2 && at[0] == 0xC2 && at[1] < 0xA0);
    if (valid > 0 && !control) {
      memcpy(to, at, valid);
      to += valid;
    } else {
      *to++ = ' ';
    }
    at += valid > 0 ? valid : 1;
  }
  *to = '\0';
}

/* The outcome, and its note. */
static enum load_outcome over(struct load_response *r, enum load_outcome outcome, const char *note, size_t bytes) {
  keep_note(r, note, bytes);
  const bool whole = outcome == LOAD_OK || (outcome >= LOAD_HTTP_4XX && outcome <= LOAD_STREAM_ERROR);
  r->keep = r->keep && whole;
  return outcome;
}

static enum load_outcome fault(struct load_response *r, const char *note) {
  return over(r, LOAD_PROTOCOL, note, strlen(note));
}

/* One line of an event stream without its end. */
static enum load_outcome on_line(struct load_response *r, const char *line, size_t bytes) {
  bytes -= bytes > 0 && line[bytes - 1] == '\r';
  if (bytes < 5 || memcmp(line, "data:", 5) != 0) { /* blank, a comment, or another field */
    return LOAD_WAITING;
  }
  line += 5;
  bytes -= 5;
  for (; bytes > 0 && *line == ' '; bytes--) {
    line++;
  }
  if (bytes == 6 && memcmp(line, "[DONE]", 6) == 0) {
    r->done_seen = true;
    return LOAD_WAITING;
  }
  const struct load_event event = load_event_read(line, bytes);
  if (!event.object) {
    return over(r, LOAD_PROTOCOL, line, bytes);
  }
  if (event.error && !r->failed_event) {
    r->failed_event = true;
    over(r, LOAD_STREAM_ERROR, line, bytes); /* for its note; it ends with the body */
  }
  if (event.usage) {
    r->prompt_tokens = event.prompt_tokens;
    r->completion_tokens = event.completion_tokens;
    r->cached_tokens = event.cached_tokens;
  }
  return !event.text || r->on_token(r->context) ? LOAD_WAITING : over(r, LOAD_CUT, "", 0);
}

/* Bytes of a body. */
static enum load_outcome on_body(struct load_response *r, const char *bytes, size_t count) {
  if (!r->event_stream) { /* an error's text, of which the beginning is kept */
    if (r->line.bytes < LOAD_NOTE_BYTES) {
      quire_strbuf_add(&r->line, bytes, count < LOAD_NOTE_BYTES ? count : LOAD_NOTE_BYTES);
    }
    return LOAD_WAITING;
  }
  enum load_outcome outcome = LOAD_WAITING;
  while (count > 0 && outcome == LOAD_WAITING) {
    const char *newline = memchr(bytes, '\n', count);
    const size_t length = newline ? (size_t)(newline - bytes) : count;
    if (!newline || r->line.bytes > 0) {
      quire_strbuf_add(&r->line, bytes, length);
      r->no_memory = r->no_memory || quire_strbuf_failed(&r->line);
    }
    if (!newline) {
      return r->line.bytes > LOAD_LINE_BYTES_MAX ? fault(r, "a line of an event stream is longer than 4 MB")
                                                 : LOAD_WAITING;
    }
    const bool joined = r->line.bytes > 0;
    outcome = on_line(r, joined ? quire_strbuf_text(&r->line) : bytes, joined ? r->line.bytes : length);
    quire_strbuf_clear(&r->line);
    bytes += length + 1;
    count -= length + 1;
  }
  return outcome;
}

/* The body has come to its end. */
static enum load_outcome on_end(struct load_response *r) {
  if (r->status >= 400) {
    return over(r,
                r->status == 429  ? LOAD_HTTP_429
                : r->status < 500 ? LOAD_HTTP_4XX
                                  : LOAD_HTTP_5XX,
                quire_strbuf_text(&r->line), r->line.bytes);
  }
  if (r->failed_event) {
    return LOAD_STREAM_ERROR; /* noted when it came */
  }
  if (r->status != 200 || !r->event_stream) {
    return fault(r, "the answer is no event stream");
  }
  return over(r, r->done_seen ? LOAD_OK : LOAD_TRUNCATED, "", 0);
}

/* False: it is no length. */
static bool read_length(struct quire_http_slice value, int64_t *left_out) {
  int64_t length = 0;
  for (size_t i = 0; i < value.bytes; i++) {
    if (value.data[i] < '0' || value.data[i] > '9' || length > LENGTH_MAX) {
      return false;
    }
    length = 10 * length + (value.data[i] - '0');
  }
  *left_out = length;
  return value.bytes > 0;
}

static bool on_field(struct load_response *r, struct quire_http_slice name, struct quire_http_slice value) {
  static const char stream[] = "text/event-stream";
  if (quire_http_is(name, "content-length")) {
    return read_length(value, &r->left);
  }
  if (quire_http_is(name, "transfer-encoding")) {
    r->chunked = quire_http_lists(value, "chunked");
  } else if (quire_http_is(name, "content-type")) {
    r->event_stream = memmem(value.data, value.bytes, stream, sizeof stream - 1) != NULL;
  } else if (quire_http_is(name, "connection") && quire_http_lists(value, "close")) {
    r->keep = false;
  }
  return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* "HTTP/1.1 200 OK" and its fields, up to the empty line. False: it is none. */
static bool read_head(struct load_response *r, const char *head, size_t bytes) {
  if (bytes < 16 || memcmp(head, "HTTP/1.", 7) != 0 || head[8] != ' ' || !is_digit(head[9]) || head[9] == '0' ||
      !is_digit(head[10]) || !is_digit(head[11]) || (head[12] != ' ' && head[12] != '\r')) {
    return false;
  }
  r->status = 100 * (head[9] - '0') + 10 * (head[10] - '0') + (head[11] - '0');
  r->keep = head[7] == '1';
  const char *end = head + bytes, *line = (const char *)memchr(head, '\n', bytes) + 1;
  while (line < end) { /* every line ends with CRLF, as the scan has seen */
    const char *stop = (const char *)memchr(line, '\n', (size_t)(end - line)) - 1;
    const char *colon = memchr(line, ':', (size_t)(stop - line));
    if (colon != NULL) {
      struct quire_http_slice value = {colon + 1, (size_t)(stop - colon - 1)};
      for (; value.bytes > 0 && (*value.data == ' ' || *value.data == '\t'); value.bytes--) {
        value.data++;
      }
      for (; value.bytes > 0 && (value.data[value.bytes - 1] == ' ' || value.data[value.bytes - 1] == '\t');) {
        value.bytes--;
      }
      if (!on_field(r, (struct quire_http_slice){line, (size_t)(colon - line)}, value)) {
        return false;
      }
    }
    line = stop + 2;
  }
  r->left = r->chunked ? -1 : r->left;
  r->keep = r->keep && (r->chunked || r->left >= 0);
  return true;
}

/* Bytes behind the head; *left_out of them are behind the answer. */
static enum load_outcome read_body(struct load_response *r, const char *bytes, size_t count, size_t *left_out) {
  enum load_outcome outcome = LOAD_WAITING;
  while (r->chunked && count > 0 && outcome == LOAD_WAITING) {
    struct quire_http_piece piece = {0};
    const enum quire_http_more more = quire_http_chunked_feed(&r->chunks, bytes, count, &piece);
    if (more == QUIRE_HTTP_BAD) {
      return fault(r, piece.why);
    }
    outcome = piece.body.bytes > 0 ? on_body(r, piece.body.data, piece.body.bytes) : LOAD_WAITING;
    bytes += piece.used;
    count -= piece.used;
    if (more == QUIRE_HTTP_DONE && outcome == LOAD_WAITING) {
      *left_out = count;
      return on_end(r);
    }
  }
  if (r->chunked) {
    return outcome;
  }
  const size_t taken = r->left >= 0 && (int64_t)count > r->left ? (size_t)r->left : count;
  r->left -= r->left >= 0 ? (int64_t)taken : 0;
  outcome = on_body(r, bytes, taken);
  *left_out = count - taken;
  return outcome == LOAD_WAITING && r->left == 0 ? on_end(r) : outcome;
}

enum load_outcome load_response_feed(struct load_response *response, const char *bytes, size_t count) {
  QUIRE_ASSERT(response && response->on_token && (bytes || count == 0));
  const char *why = NULL;
  size_t left = 0;
  response->begun = response->begun || count > 0;
  if (!response->in_body) {
    const size_t before = response->head.bytes;
    quire_strbuf_add(&response->head, bytes, count);
    response->no_memory = response->no_memory || quire_strbuf_failed(&response->head);
    const char *head = quire_strbuf_text(&response->head);
    const enum quire_http_more more = quire_http_head_scan(&response->scan, head, response->head.bytes, &why);
    if (response->no_memory || (more == QUIRE_HTTP_MORE && response->head.bytes < LOAD_HEAD_BYTES_MAX)) {
      return LOAD_WAITING;
    }
    const size_t skipped = response->scan.skipped;
    if (more != QUIRE_HTTP_DONE || response->scan.seen > LOAD_HEAD_BYTES_MAX ||
        !read_head(response, head + skipped, response->scan.seen - skipped)) {
      return fault(response, why ? why : "the answer is no HTTP");
    }
    response->in_body = true;
    const size_t taken = response->scan.seen - before; /* of these bytes, what belongs to the head */
    bytes += taken;
    count -= taken;
  }
  const enum load_outcome outcome = read_body(response, bytes, count, &left);
  response->keep = response->keep && left == 0;
  return outcome;
}

enum load_outcome load_response_lost(struct load_response *response, const char *why) {
  QUIRE_ASSERT(response && why);
  response->keep = false;
  if (!response->in_body || response->left >= 0 || response->chunked) {
    return over(response, LOAD_RESET, why, strlen(why));
  }
  const enum load_outcome outcome = on_end(response);
  return outcome == LOAD_TRUNCATED ? over(response, outcome, why, strlen(why)) : outcome;
}
