// ctest: sources=src/bench/load_response.c,src/bench/load_event.c
/* The answers that test_bench_serve.c cannot have a server send, or tell apart: each whole and a byte at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/env.h"
#include "bench/load_response.h"

#define STREAM "Content-Type: text/event-stream\r\n"
#define TOKEN "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"

static bool count_token(void *context) {
  ++*(int *)context;
  return true;
}

struct answer_case {
  const char *bytes;
  enum load_outcome outcome; /* where the connection ends behind the bytes */
  int status, tokens;
  bool keep;
  const char *note;
};

static void check(const struct answer_case *c, size_t step) {
  const size_t bytes = strlen(c->bytes);
  struct load_response response;
  enum load_outcome outcome = LOAD_WAITING;
  int tokens = 0;
  size_t at = 0;
  load_response_init(&response, quire_env_default());
  load_response_begin(&response, count_token, &tokens);
  for (; at < bytes && outcome == LOAD_WAITING; at += step) {
    outcome = load_response_feed(&response, c->bytes + at, step < bytes - at ? step : bytes - at);
  }
  if (outcome == LOAD_WAITING) {
    outcome = load_response_lost(&response, "gone");
  }
  if (outcome != c->outcome || response.status != c->status || tokens != c->tokens ||
      (response.keep && at >= bytes) != c->keep || strcmp(response.note, c->note) != 0) {
    fail_msg("%s: outcome %d, status %d, %d tokens, keep %d, note %s", c->bytes, (int)outcome, response.status, tokens,
             response.keep, response.note);
  }
  load_response_fini(&response);
}

static void test_answers(void **state) {
  (void)state;
  static const struct answer_case cases[] = {
      {"HTTP/1.1 200 OK\r\n" STREAM "Content-Length: 48\r\n\r\n" TOKEN "data: [DONE]\n\n", LOAD_OK, 200, 1, true, ""},
      {"HTTP/1.1 200 OK\r\n" STREAM "\r\n" TOKEN "data: [DONE]\n\n", LOAD_OK, 200, 1, false, ""},
      {"HTTP/1.1 200 OK\r\n" STREAM "\r\n" TOKEN, LOAD_TRUNCATED, 200, 1, false, "gone"},
      /* an answer of an old server, whose body ends with the connection */
      {"HTTP/1.0 500 No\r\n\r\nsorry", LOAD_HTTP_5XX, 500, 0, false, "sorry"},
      {"HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nfull", LOAD_HTTP_429, 429, 0, true, "full"},
      /* what follows an answer nobody asked for */
      {"HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nfullHTTP/1.1 200 OK\r\n\r\n", LOAD_HTTP_429, 429, 0, false,
       "full"},
      /* three digits, and not those of the body */
      {"HTTP/1.1 \r\n\r\n200", LOAD_PROTOCOL, 0, 0, false, "the answer is no HTTP"},
      {"HTTP/1.1 20\r\nContent-Length: 0\r\n\r\n", LOAD_PROTOCOL, 0, 0, false, "the answer is no HTTP"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n1", LOAD_PROTOCOL, 200, 0, false, "the answer is no HTTP"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n1", LOAD_PROTOCOL, 200, 0, false,
       "the answer is no HTTP"},
      {"HTTP/1.1 200 OK\r\n" STREAM "Transfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n0\r\n\r\n", LOAD_TRUNCATED, 200, 0,
       false, ""},
      {"HTTP/1.1 200 OK\r\n" STREAM "\r\ndata: {\"error\":1}\n\ndata: {\"error\":2}\n\n", LOAD_STREAM_ERROR, 200, 0,
       false, "{\"error\":1}"},
      /* a note goes to a terminal: no control characters of ASCII or beyond, nothing that is no UTF-8 */
      {"HTTP/1.1 500 No\r\nContent-Length: 12\r\n\r\na\n\033[2J\xff\xc2\x9b\xc3\xa9\x7f", LOAD_HTTP_5XX, 500, 0, true,
       "a  [2J  \xc3\xa9 "},
      {"", LOAD_RESET, 0, 0, false, "gone"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    check(&cases[i], strlen(cases[i].bytes) + 1);
    check(&cases[i], 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
