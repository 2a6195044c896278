#include "net/http_parse.h"

#include <string.h>

#include "base/assert.h"

/* Scanning goes line by line: a CR must be followed by LF, an LF must follow a CR, an empty line ends the head. */
enum { SCAN_LINE_BEGIN, SCAN_LINE, SCAN_CR, SCAN_EMPTY_CR };

enum { EMPTY_LINES_MAX = 4 };

static bool is_control(unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; }

static enum quire_http_more scan_bad(const char **why_out, const char *why) {
  QUIRE_ASSERT(why != NULL);
  *why_out = why;
  return QUIRE_HTTP_BAD;
}

/* One byte. DONE after the empty line's LF. */
static enum quire_http_more scan_byte(struct quire_http_scan *scan, unsigned char c, const char **why_out) {
  QUIRE_DEBUG(scan->state <= SCAN_EMPTY_CR);
  switch (scan->state) {
  case SCAN_CR:
    if (c != '\n') {
      return scan_bad(why_out, "a carriage return stands alone in the head");
    }
    scan->state = SCAN_LINE_BEGIN;
    return QUIRE_HTTP_MORE;
  case SCAN_EMPTY_CR:
    if (c != '\n') {
      return scan_bad(why_out, "a carriage return stands alone in the head");
    }
    scan->state = SCAN_LINE_BEGIN;
    if (scan->begun) {
      return QUIRE_HTTP_DONE;
    }
    scan->skipped = scan->seen + 1;
    return scan->skipped > 2 * EMPTY_LINES_MAX ? scan_bad(why_out, "empty lines stand where a request should begin")
                                               : QUIRE_HTTP_MORE;
  default:
    if (c == '\r') {
      scan->state = scan->state == SCAN_LINE_BEGIN ? SCAN_EMPTY_CR : SCAN_CR;
      return QUIRE_HTTP_MORE;
    }
    if (c == '\n') {
      return scan_bad(why_out, "a line of the head ends without a carriage return");
    }
    if (is_control(c)) {
      return scan_bad(why_out, "the head holds a control character");
    }
    scan->begun = true;
    scan->state = SCAN_LINE;
    return QUIRE_HTTP_MORE;
  }
}

enum quire_http_more quire_http_head_scan(struct quire_http_scan *scan, const char *bytes, size_t count,
                                          const char **why_out) {
  QUIRE_ASSERT(scan->seen <= count);
  while (scan->seen < count) {
    enum quire_http_more more = scan_byte(scan, (unsigned char)bytes[scan->seen], why_out);
    scan->seen++;
    if (more != QUIRE_HTTP_MORE) {
      return more;
    }
  }
  return QUIRE_HTTP_MORE;
}

/* token of RFC 9110 5.6.2 */
static bool is_token_char(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(struct quire_http_slice slice) {
  QUIRE_ASSERT(slice.data != NULL || slice.bytes == 0);
  for (size_t i = 0; i < slice.bytes; i++) {
    if (!is_token_char((unsigned char)slice.data[i])) {
      return false;
    }
  }
  return slice.bytes > 0;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

bool quire_http_is(struct quire_http_slice slice, const char *lower_case) {
  QUIRE_ASSERT(lower_case != NULL);
  size_t i = 0;
  for (; i < slice.bytes && lower_case[i] != '\0'; i++) {
    if (lower(slice.data[i]) != lower_case[i]) {
      return false;
    }
  }
  return i == slice.bytes && lower_case[i] == '\0';
}

bool quire_http_equal(struct quire_http_slice slice, const char *text) {
  QUIRE_ASSERT(text != NULL);
  return slice.bytes == strlen(text) && (slice.bytes == 0 || memcmp(slice.data, text, slice.bytes) == 0);
}

static struct quire_http_slice trim(const char *data, size_t bytes) {
  QUIRE_ASSERT(data != NULL || bytes == 0);
  while (bytes > 0 && (*data == ' ' || *data == '\t')) {
    data++;
    bytes--;
  }
  while (bytes > 0 && (data[bytes - 1] == ' ' || data[bytes - 1] == '\t')) {
    bytes--;
  }
  return (struct quire_http_slice){data, bytes};
}

bool quire_http_next_word(struct quire_http_slice *list, struct quire_http_slice *word_out) {
  QUIRE_ASSERT(list->data != NULL || list->bytes == 0);
  if (list->bytes == 0) {
    return false;
  }
  const char *comma = memchr(list->data, ',', list->bytes);
  size_t bytes = comma != NULL ? (size_t)(comma - list->data) : list->bytes;
  *word_out = trim(list->data, bytes);
  size_t used = comma != NULL ? bytes + 1 : bytes;
  list->data += used;
  list->bytes -= used;
  return true;
}

bool quire_http_lists(struct quire_http_slice list, const char *lower_case_word) {
  QUIRE_ASSERT(lower_case_word != NULL);
  struct quire_http_slice word;
  while (quire_http_next_word(&list, &word)) {
    if (quire_http_is(word, lower_case_word)) {
      return true;
    }
  }
  return false;
}

bool quire_http_field(const struct quire_http_head *head, const char *name, struct quire_http_slice *value_out) {
  QUIRE_ASSERT(head->field_count <= QUIRE_HTTP_FIELDS_MAX);
  for (int i = 0; i < head->field_count; i++) {
    if (quire_http_is(head->field[i].name, name)) {
      *value_out = head->field[i].value;
      return true;
    }
  }
  return false;
}

static int refuse(const char **why_out, int status, const char *why) {
  QUIRE_ASSERT(status >= 400 && why != NULL);
  *why_out = why;
  return status;
}

/* The request's target: "/path?query", or "http://authority/path?query" as a proxy would get it. */
static int parse_target(struct quire_http_slice target, struct quire_http_head *head, const char **why_out) {
  QUIRE_ASSERT(target.data != NULL);
  for (size_t i = 0; i < target.bytes; i++) {
    unsigned char c = (unsigned char)target.data[i];
    if (c <= 0x20 || c >= 0x7f || c == '#') {
      return refuse(why_out, 400, "the target of the request holds a character that belongs percent-encoded");
    }
  }
  if (target.bytes > 7 && memcmp(target.data, "http://", 7) == 0) {
    const char *slash = memchr(target.data + 7, '/', target.bytes - 7);
    if (slash == NULL) {
      return refuse(why_out, 400, "the target of the request has no path");
    }
    target.bytes -= (size_t)(slash - target.data);
    target.data = slash;
  }
  if (target.bytes == 0 || (target.data[0] != '/' && !quire_http_equal(target, "*"))) {
    return refuse(why_out, 400, "the target of the request must begin with a slash");
  }
  const char *mark = memchr(target.data, '?', target.bytes);
  size_t path = mark != NULL ? (size_t)(mark - target.data) : target.bytes;
  head->path = (struct quire_http_slice){target.data, path};
  head->query = mark != NULL ? (struct quire_http_slice){mark + 1, target.bytes - path - 1}
                             : (struct quire_http_slice){target.data + path, 0};
  return 0;
}

static int parse_request_line(struct quire_http_slice line, struct quire_http_head *head, const char **why_out) {
  QUIRE_ASSERT(line.bytes > 0);
  const char *first = memchr(line.data, ' ', line.bytes);
  const char *last = first != NULL ? memrchr(line.data, ' ', line.bytes) : NULL;
  if (first == NULL || last == first) {
    return refuse(why_out, 400, "the request line is not METHOD TARGET HTTP/1.1");
  }
  head->method = (struct quire_http_slice){line.data, (size_t)(first - line.data)};
  struct quire_http_slice version = {last + 1, (size_t)(line.data + line.bytes - last - 1)};
  if (!is_token(head->method)) {
    return refuse(why_out, 400, "the method is not a word");
  }
  if (version.bytes != 8 || memcmp(version.data, "HTTP/", 5) != 0 || version.data[6] != '.' || version.data[5] < '0' ||
      version.data[5] > '9' || version.data[7] < '0' || version.data[7] > '9') {
    return refuse(why_out, 400, "the request line is not METHOD TARGET HTTP/1.1");
  }
  if (version.data[5] != '1') {
    return refuse(why_out, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  }
  head->minor = version.data[7] - '0';
  return parse_target((struct quire_http_slice){first + 1, (size_t)(last - first - 1)}, head, why_out);
}

static int parse_field(struct quire_http_slice line, struct quire_http_head *head, const char **why_out) {
  QUIRE_ASSERT(line.bytes > 0);
  if (head->field_count == QUIRE_HTTP_FIELDS_MAX) {
    return refuse(why_out, 431, "the head has too many fields");
  }
  if (line.data[0] == ' ' || line.data[0] == '\t') {
    return refuse(why_out, 400, "a field of the head goes on in a second line, which is no longer allowed");
  }
  const char *colon = memchr(line.data, ':', line.bytes);
  struct quire_http_slice name = {line.data, colon != NULL ? (size_t)(colon - line.data) : 0};
  if (colon == NULL || !is_token(name)) {
    return refuse(why_out, 400, "a line of the head is not NAME: VALUE");
  }
  head->field[head->field_count++] = (struct quire_http_field){name, trim(colon + 1, line.bytes - name.bytes - 1)};
  return 0;
}

/* Digits only, below 2^63 by far. */
static bool parse_length(struct quire_http_slice value, int64_t *length_out) {
  QUIRE_ASSERT(length_out != NULL);
  int64_t length = 0;
  for (size_t i = 0; i < value.bytes; i++) {
    if (value.data[i] < '0' || value.data[i] > '9' || i >= 18) {
      return false;
    }
    length = length * 10 + (value.data[i] - '0');
  }
  *length_out = length;
  return value.bytes > 0;
}

/* What the fields say about where the body ends and whether the connection lives on. */
static int parse_framing(struct quire_http_head *head, const char **why_out) {
  QUIRE_ASSERT(head->field_count >= 0 && head->field_count <= QUIRE_HTTP_FIELDS_MAX);
  int hosts = 0, lengths = 0, codings = 0;
  head->keep_alive = head->minor >= 1;
  for (int i = 0; i < head->field_count; i++) {
    struct quire_http_slice name = head->field[i].name, value = head->field[i].value;
    if (quire_http_is(name, "host")) {
      hosts++;
    } else if (quire_http_is(name, "content-length")) {
      if (lengths++ > 0 || !parse_length(value, &head->content_length)) {
        return refuse(why_out, 400, "Content-Length must stand once and be a number");
      }
    } else if (quire_http_is(name, "transfer-encoding")) {
      if (codings++ > 0 || head->minor == 0) {
        return refuse(why_out, 400, "Transfer-Encoding must stand once, in a request of HTTP/1.1");
      }
      if (!quire_http_is(value, "chunked")) {
        return refuse(why_out, 501, "chunked is the only transfer coding known here");
      }
      head->chunked = true;
    } else if (quire_http_is(name, "content-encoding")) {
      if (!quire_http_is(value, "identity")) {
        return refuse(why_out, 415, "bodies are taken as they are, without Content-Encoding");
      }
    } else if (quire_http_is(name, "connection")) {
      if (quire_http_lists(value, "close")) {
        head->keep_alive = false;
      } else if (head->minor == 0 && quire_http_lists(value, "keep-alive")) {
        head->keep_alive = true;
      }
    } else if (quire_http_is(name, "expect")) {
      if (!quire_http_is(value, "100-continue")) {
        return refuse(why_out, 417, "100-continue is the only expectation known here");
      }
      head->expect_continue = head->minor >= 1;
    }
  }
  if (lengths > 0 && codings > 0) {
    return refuse(why_out, 400, "Content-Length and Transfer-Encoding contradict each other");
  }
  if (hosts > 1 || (hosts == 0 && head->minor >= 1)) {
    return refuse(why_out, 400, "Host must stand once");
  }
  return 0;
}

int quire_http_head_parse(const char *bytes, size_t count, struct quire_http_head *head_out, const char **why_out) {
  QUIRE_ASSERT(count >= 4 && memcmp(bytes + count - 4, "\r\n\r\n", 4) == 0);
  head_out->content_length = -1;
  head_out->chunked = false;
  head_out->expect_continue = false;
  head_out->field_count = 0;
  const char *end = bytes + count - 2;
  bool first = true;
  for (const char *at = bytes; at < end;) {
    const char *cr = memchr(at, '\r', (size_t)(end - at));
    QUIRE_ASSERT(cr != NULL && cr > at);
    struct quire_http_slice line = {at, (size_t)(cr - at)};
    int status = first ? parse_request_line(line, head_out, why_out) : parse_field(line, head_out, why_out);
    if (status != 0) {
      return status;
    }
    first = false;
    at = cr + 2;
  }
  return parse_framing(head_out, why_out);
}

enum {
  CHUNK_SIZE,
  CHUNK_EXTENSION,
  CHUNK_SIZE_LF,
  CHUNK_DATA,
  CHUNK_DATA_CR,
  CHUNK_DATA_LF,
  CHUNK_TRAILER,
  CHUNK_TRAILER_LF,
  CHUNK_END
};

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The line of a chunk's size: hexadecimal digits, then an extension that is skipped. */
static const char *chunk_size_byte(struct quire_http_chunked *chunked, char c) {
  QUIRE_ASSERT(chunked->state <= CHUNK_EXTENSION);
  int digit = hex_digit(c);
  if (++chunked->line_bytes > QUIRE_HTTP_CHUNK_LINE_BYTES_MAX) {
    return "the line of a chunk's size is too long";
  }
  if (chunked->state == CHUNK_SIZE && digit >= 0) {
    if (chunked->left >> 48 != 0) {
      return "a chunk is too large";
    }
    chunked->left = chunked->left << 4 | (uint64_t)digit;
    chunked->digits = true;
    return NULL;
  }
  if (!chunked->digits) {
    return "a chunk does not begin with its size in hexadecimal digits";
  }
  if (c == '\r') {
    chunked->state = CHUNK_SIZE_LF;
    return NULL;
  }
  bool begins = c == ';' || c == ' ' || c == '\t';
  if (is_control((unsigned char)c) || (chunked->state == CHUNK_SIZE && !begins)) {
    return "the size of a chunk is not a hexadecimal number";
  }
  chunked->state = CHUNK_EXTENSION;
  return NULL;
}

static const char *chunk_trailer_byte(struct quire_http_chunked *chunked, char c) {
  QUIRE_ASSERT(chunked->state == CHUNK_TRAILER);
  if (++chunked->trailer_bytes > QUIRE_HTTP_TRAILER_BYTES_MAX) {
    return "the trailer of the body is too long";
  }
  if (c == '\r') {
    chunked->state = CHUNK_TRAILER_LF;
    return NULL;
  }
  chunked->line_bytes++;
  return is_control((unsigned char)c) ? "the trailer of the body holds a control character" : NULL;
}

/* One byte of framing; NULL, or what is wrong with it. */
static const char *chunk_byte(struct quire_http_chunked *chunked, char c) {
  switch (chunked->state) {
  case CHUNK_SIZE:
  case CHUNK_EXTENSION:
    return chunk_size_byte(chunked, c);
  case CHUNK_SIZE_LF:
    chunked->state = chunked->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
    chunked->line_bytes = 0;
    chunked->digits = false;
    return c == '\n' ? NULL : "the size of a chunk does not end in CRLF";
  case CHUNK_DATA_CR:
    chunked->state = CHUNK_DATA_LF;
    return c == '\r' ? NULL : "a chunk is longer than its size";
  case CHUNK_DATA_LF:
    chunked->state = CHUNK_SIZE;
    return c == '\n' ? NULL : "a chunk is longer than its size";
  case CHUNK_TRAILER:
    return chunk_trailer_byte(chunked, c);
  default:
    QUIRE_ASSERT(chunked->state == CHUNK_TRAILER_LF);
    chunked->state = chunked->line_bytes > 0 ? CHUNK_TRAILER : CHUNK_END;
    chunked->line_bytes = 0;
    return c == '\n' ? NULL : "a line of the body's trailer does not end in CRLF";
  }
}

enum quire_http_more quire_http_chunked_feed(struct quire_http_chunked *chunked, const char *bytes, size_t count,
                                             struct quire_http_piece *piece_out) {
  QUIRE_ASSERT(chunked->state <= CHUNK_END);
  *piece_out = (struct quire_http_piece){0};
  while (piece_out->used < count && chunked->state != CHUNK_END) {
    if (chunked->state == CHUNK_DATA) {
      size_t rest = count - piece_out->used;
      size_t take = chunked->left < rest ? (size_t)chunked->left : rest;
      piece_out->body = (struct quire_http_slice){bytes + piece_out->used, take};
      piece_out->used += take;
      chunked->left -= take;
      chunked->state = chunked->left > 0 ? CHUNK_DATA : CHUNK_DATA_CR;
      return QUIRE_HTTP_MORE;
    }
    piece_out->why = chunk_byte(chunked, bytes[piece_out->used++]);
    if (piece_out->why != NULL) {
      return QUIRE_HTTP_BAD;
    }
  }
  return chunked->state == CHUNK_END ? QUIRE_HTTP_DONE : QUIRE_HTTP_MORE;
}

const char *quire_http_phrase(int status) {
  static const struct {
    int status;
    const char *phrase;
  } known[] = {
      {100, "Continue"},
      {200, "OK"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    QUIRE_ASSERT(known[i].phrase != NULL);
    if (known[i].status == status) {
      return known[i].phrase;
    }
  }
  return "Unknown";
}
