#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "net/http_parse.h"
#include "support/seed.h"

struct head_case {
  const char *name;
  const char *text;
  int status; /* 0: parses; -1: the scan refuses it; -2: not complete */
};

#define H "Host: a\r\n"
static const struct head_case cases[] = {
    {"plain", "GET / HTTP/1.1\r\n" H "\r\n", 0},
    {"empty lines before", "\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", 0},
    {"many empty lines", "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", -1},
    {"absolute form", "GET http://h:1/x?y HTTP/1.1\r\n" H "\r\n", 0},
    {"absolute form without a path", "GET http://h HTTP/1.1\r\n" H "\r\n", 400},
    {"HTTP/1.0 without Host", "GET / HTTP/1.0\r\n\r\n", 0},
    {"no Host", "GET / HTTP/1.1\r\nA: b\r\n\r\n", 400},
    {"two Hosts", "GET / HTTP/1.1\r\n" H H "\r\n", 400},
    {"bare LF", "GET / HTTP/1.1\n" H "\n", -1},
    {"bare CR", "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", -1},
    {"control", "GET / HTTP/1.1\r\nHost: a\x01\r\n\r\n", -1},
    {"incomplete", "GET / HTTP/1.1\r\n" H, -2},
    {"two words", "GET /\r\n" H "\r\n", 400},
    {"HTTP/2.0", "GET / HTTP/2.0\r\n" H "\r\n", 505},
    {"lower case version", "GET / http/1.1\r\n" H "\r\n", 400},
    {"blank in the target", "GET /a b HTTP/1.1\r\n" H "\r\n", 400},
    {"relative target", "GET a HTTP/1.1\r\n" H "\r\n", 400},
    {"method with a colon", "G:T / HTTP/1.1\r\n" H "\r\n", 400},
    {"blank before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
    {"folded", "GET / HTTP/1.1\r\n" H "A: b\r\n c\r\n\r\n", 400},
    {"no colon", "GET / HTTP/1.1\r\n" H "Ab\r\n\r\n", 400},
    {"empty name", "GET / HTTP/1.1\r\n" H ": b\r\n\r\n", 400},
    {"length", "POST / HTTP/1.1\r\n" H "Content-Length: 17\r\n\r\n", 0},
    {"two lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 4\r\nContent-Length: 5\r\n\r\n", 400},
    {"two equal lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 4\r\ncontent-length: 4\r\n\r\n", 400},
    {"list of lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 4, 4\r\n\r\n", 400},
    {"signed length", "POST / HTTP/1.1\r\n" H "Content-Length: +4\r\n\r\n", 400},
    {"hexadecimal length", "POST / HTTP/1.1\r\n" H "Content-Length: 0x4\r\n\r\n", 400},
    {"empty length", "POST / HTTP/1.1\r\n" H "Content-Length:\r\n\r\n", 400},
    {"huge length", "POST / HTTP/1.1\r\n" H "Content-Length: 9999999999999999999\r\n\r\n", 400},
    {"chunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\n\r\n", 0},
    {"chunked and length", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", 400},
    {"length and chunked", "POST / HTTP/1.1\r\n" H "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"chunked twice", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"gzip", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"identity", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n", 501},
    {"coded body", "POST / HTTP/1.1\r\n" H "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n", 415},
    {"body as it is", "POST / HTTP/1.1\r\n" H "Content-Encoding: identity\r\nContent-Length: 4\r\n\r\n", 0},
    {"vertical tab before chunked",
     "POST / HTTP/1.1\r\n" H "Transfer-Encoding:\x0b"
     "chunked\r\n\r\n",
     -1},
    {"expectation", "POST / HTTP/1.1\r\n" H "Expect: 200-ok\r\n\r\n", 417},
};

static int outcome(const char *text, size_t bytes, struct quire_http_head *head) {
  struct quire_http_scan scan = {0};
  const char *why = NULL;
  enum quire_http_more more = quire_http_head_scan(&scan, text, bytes, &why);
  if (more != QUIRE_HTTP_DONE) {
    return more == QUIRE_HTTP_BAD ? -1 : -2;
  }
  int status = quire_http_head_parse(text + scan.skipped, scan.seen - scan.skipped, head, &why);
  assert_true(status == 0 || why != NULL);
  return status;
}

static void heads(void **state) {
  (void)state;
  static struct quire_http_head head;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int status = outcome(cases[i].text, strlen(cases[i].text), &head);
    if (status != cases[i].status) {
      fail_msg("%s: %d, not %d", cases[i].name, status, cases[i].status);
    }
  }
  char nul[] = "GET / HTTP/1.1\r\nHost: a?b\r\n\r\n";
  *strchr(nul, '?') = '\0';
  assert_int_equal(outcome(nul, sizeof nul - 1, &head), -1);
}

static void fields(void **state) {
  (void)state;
  static struct quire_http_head head;
  const char *text = "POST http://h/v1/x%20?a=b&c HTTP/1.1\r\nhOSt:  a \t\r\nX-Api-Key:k\r\nConnection: x, Close\r\n"
                     "Content-Length: 0017\r\nExpect: 100-Continue\r\n\r\n";
  assert_int_equal(outcome(text, strlen(text), &head), 0);
  assert_true(quire_http_equal(head.method, "POST"));
  assert_true(quire_http_equal(head.path, "/v1/x%20"));
  assert_true(quire_http_equal(head.query, "a=b&c"));
  assert_int_equal(head.content_length, 17);
  assert_true(head.expect_continue);
  assert_false(head.keep_alive);
  struct quire_http_slice value;
  assert_true(quire_http_field(&head, "host", &value) && quire_http_equal(value, "a"));
  assert_true(quire_http_field(&head, "x-api-key", &value) && quire_http_equal(value, "k"));
  assert_false(quire_http_field(&head, "x-api", &value));
  char many[8192];
  size_t used = (size_t)snprintf(many, sizeof many, "GET / HTTP/1.1\r\nHost: a\r\n");
  for (int i = 0; i < QUIRE_HTTP_FIELDS_MAX; i++) {
    used += (size_t)snprintf(many + used, sizeof many - used, "F%d: v\r\n", i);
  }
  used += (size_t)snprintf(many + used, sizeof many - used, "\r\n");
  assert_int_equal(outcome(many, used, &head), 431);
}

/* Reads a chunked body given in random cuts; body_out holds the joined pieces. */
static enum quire_http_more read_chunks(const char *text, size_t bytes, uint64_t *rng, char *body_out, size_t *size_out,
                                        size_t *used_out) {
  struct quire_http_chunked chunked = {0};
  size_t used = 0, given = 0;
  *size_out = 0;
  for (;;) {
    struct quire_http_piece piece;
    enum quire_http_more more = quire_http_chunked_feed(&chunked, text + used, given - used, &piece);
    memcpy(body_out + *size_out, piece.body.data != NULL ? piece.body.data : "", piece.body.bytes);
    *size_out += piece.body.bytes;
    used += piece.used;
    *used_out = used;
    if (more != QUIRE_HTTP_MORE || (given == bytes && piece.used == 0)) {
      return more;
    }
    if (used == given) {
      given += 1 + quire_splitmix64_below(rng, 20);
      given = given < bytes ? given : bytes;
    }
  }
}

static void chunks(void **state) {
  (void)state;
  uint64_t rng = test_seed("chunks");
  static char text[1 << 16], body[1 << 16], back[1 << 16];
  for (int round = 0; round < 300; round++) {
    size_t used = 0, size = 0, got = 0, taken = 0;
    int count = (int)quire_splitmix64_below(&rng, 8);
    for (int i = 0; i < count; i++) {
      size_t bytes = 1 + quire_splitmix64_below(&rng, 600);
      used += (size_t)sprintf(text + used, quire_splitmix64(&rng) & 1 ? "%zx\r\n" : "%04zX ; a=\"b\"\r\n", bytes);
      for (size_t k = 0; k < bytes; k++) {
        body[size++] = text[used++] = (char)quire_splitmix64(&rng);
      }
      used += (size_t)sprintf(text + used, "\r\n");
    }
    used += (size_t)sprintf(text + used, quire_splitmix64(&rng) & 1 ? "0\r\n\r\n" : "00\r\nA: b\r\nC: d\r\n\r\n");
    size_t end = used;
    used += (size_t)sprintf(text + used, "GET / HTTP/1.1\r\n");
    assert_int_equal(read_chunks(text, used, &rng, back, &got, &taken), QUIRE_HTTP_DONE);
    assert_int_equal(taken, end);
    assert_int_equal(got, size);
    assert_memory_equal(back, body, size);
    /* cut short it is never complete */
    assert_int_equal(read_chunks(text, quire_splitmix64_below(&rng, end), &rng, back, &got, &taken), QUIRE_HTTP_MORE);
  }
}

static void bad_chunks(void **state) {
  (void)state;
  static const char *const bad[] = {
      "g\r\n",
      "\r\n",
      "-1\r\n",
      "0x4\r\n",
      "4\nbody",
      "4\r\nbodyX\r\n",
      "4\r\nbody\n",
      "4\r\nbody\r\rx",
      "4 \x01\r\n",
      "ffffffffffffffffff\r\n",
      ";x\r\n",
      "0\r\nA\x01: b\r\n",
      "0\r\nA: b\rX",
      "4\rX",
      "4\r\nbody\r\n\r\n",
  };
  uint64_t rng = test_seed("bad_chunks");
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char back[256];
    size_t got, used;
    if (read_chunks(bad[i], strlen(bad[i]), &rng, back, &got, &used) != QUIRE_HTTP_BAD) {
      fail_msg("case %zu is taken", i);
    }
  }
  char line[2 * QUIRE_HTTP_CHUNK_LINE_BYTES_MAX], back[8];
  size_t got, used;
  memset(line, 'x', sizeof line);
  memcpy(line, "1;", 2);
  assert_int_equal(read_chunks(line, sizeof line, &rng, back, &got, &used), QUIRE_HTTP_BAD);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(heads),
      cmocka_unit_test(fields),
      cmocka_unit_test(chunks),
      cmocka_unit_test(bad_chunks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
