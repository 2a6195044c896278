/* What an event of a stream says, found by looking for keys instead of building a tree: a client that shares two cores
 * with a server of 300,000 tokens a second must not be what is measured.
 *
 * It is safe, since a quote inside a JSON string has a backslash before it: the bytes "text" with both quotes can only
 * be a key or a whole value. Threads: pure. */
#ifndef QUIRE_BENCH_LOAD_EVENT_H
#define QUIRE_BENCH_LOAD_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct load_event {
  bool object; /* it begins like an object */
  bool text;   /* one of content, reasoning_content, reasoning, text is a string that is not empty */
  bool error;  /* it is {"error": ...} */
  bool usage;  /* it names completion_tokens; then: */
  int32_t prompt_tokens, completion_tokens, cached_tokens; /* -1 where one is not named */
};

struct load_event load_event_read(const char *json, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
