/* HTTP/1.1 requests as bytes (RFC 9112), read strictly: what two readers could frame differently is refused, not
 * guessed.
 *
 *     POST /v1/completions?a=b HTTP/1.1 CRLF      quire_http_head_scan: where does the head end?
 *     Host: localhost:8000 CRLF                   quire_http_head_parse: method, target, fields, framing
 *     Content-Length: 17 CRLF CRLF
 *     {"prompt":"once"}                           content_length bytes, or quire_http_chunked_feed
 *
 * Refused with 400: a line that does not end in CRLF, NUL or another control character, a blank before a colon, folded
 * lines, no or two Host fields, two Content-Length fields (equal ones too), signs or lists in it, Content-Length beside
 * Transfer-Encoding, Transfer-Encoding in HTTP/1.0, bytes after a chunk that are no CRLF. With 501: a coding that is
 * not "chunked". With 415: a Content-Encoding. With 505: another major version. With 431: too many fields.
 *
 * Slices point into the caller's bytes. No memory, no state but the structs here. Threads: any. */
#ifndef QUIRE_NET_HTTP_PARSE_H
#define QUIRE_NET_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_HTTP_FIELDS_MAX 96
#define QUIRE_HTTP_CHUNK_LINE_BYTES_MAX 256
#define QUIRE_HTTP_TRAILER_BYTES_MAX 4096

/* Bytes of the caller, not terminated. */
struct quire_http_slice {
  const char *data;
  size_t bytes;
};

struct quire_http_field {
  struct quire_http_slice name;  /* as sent; compare with quire_http_is */
  struct quire_http_slice value; /* without blanks around it */
};

struct quire_http_head {
  struct quire_http_slice method; /* case counts */
  struct quire_http_slice path;   /* begins with '/'; percent signs as sent */
  struct quire_http_slice query;  /* after '?', empty without one */
  int minor;                      /* of HTTP/1.x */
  int64_t content_length;         /* -1: none */
  bool chunked;
  bool keep_alive;      /* the connection may carry another request */
  bool expect_continue; /* the client waits for "100 Continue" before its body */
  int field_count;
  struct quire_http_field field[QUIRE_HTTP_FIELDS_MAX];
};

/* Where a reader of heads stands; {0} at the start. */
struct quire_http_scan {
  size_t seen;    /* bytes looked at */
  uint8_t state;  /* private */
  bool begun;     /* a byte of the request line was seen */
  size_t skipped; /* empty lines before it, not part of the head */
};

enum quire_http_more { QUIRE_HTTP_MORE, QUIRE_HTTP_DONE, QUIRE_HTTP_BAD };

/* Looks at bytes[scan->seen, count) of a buffer that only grows. DONE: the head is bytes[skipped, seen). BAD: *why_out
 * says what no head may hold. */
enum quire_http_more quire_http_head_scan(struct quire_http_scan *scan, const char *bytes, size_t count,
                                          const char **why_out);
/* A whole head as scan found it. Returns 0, or the status to answer with and *why_out in words for a user. */
int quire_http_head_parse(const char *bytes, size_t count, struct quire_http_head *head_out, const char **why_out);

/* A chunked body; {0} at the start. */
struct quire_http_chunked {
  uint64_t left;          /* bytes of the open chunk */
  uint32_t line_bytes;    /* of the line being read */
  uint32_t trailer_bytes; /* of all trailer lines */
  uint8_t state;          /* private */
  bool digits;
};

/* What one call found. */
struct quire_http_piece {
  size_t used;                  /* bytes of the input that are done with */
  struct quire_http_slice body; /* within them; empty where there is none */
  const char *why;              /* BAD: what is wrong */
};

/* Reads on, up to the end of one run of body bytes: call again while MORE and used > 0. DONE: after the last chunk and
 * its trailer (read and dropped); bytes behind belong to the next request. */
enum quire_http_more quire_http_chunked_feed(struct quire_http_chunked *chunked, const char *bytes, size_t count,
                                             struct quire_http_piece *piece_out);

/* The value of a field by its name in lower case; false where it is absent. The first of several. */
bool quire_http_field(const struct quire_http_head *head, const char *name, struct quire_http_slice *value_out);
/* Equal but for the case of ASCII letters. */
bool quire_http_is(struct quire_http_slice slice, const char *lower_case);
/* Equal bytes. */
bool quire_http_equal(struct quire_http_slice slice, const char *text);
/* Takes the next word of a comma-separated list off its front, without blanks around it; false at the end. */
bool quire_http_next_word(struct quire_http_slice *list, struct quire_http_slice *word_out);
/* Whether a comma-separated list holds a word, whatever its case. */
bool quire_http_lists(struct quire_http_slice list, const char *lower_case_word);
/* The phrase of a status: "Not Found"; "Unknown" for others. */
const char *quire_http_phrase(int status);

#ifdef __cplusplus
}
#endif
#endif
