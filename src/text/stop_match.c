/* Knuth-Morris-Pratt, one automaton for each stop, side by side: requests have few stops, and bytes of a token are few.
 * What is held back is always the first bytes of the stop that has matched most, so it is not stored but copied from
 * there. (An Aho-Corasick automaton would do all stops in one step and cost its tables for every request.) */
#include "text/stop_match.h"

#include <stdbool.h>
#include <string.h>

#include "base/assert.h"

struct stop {
  const uint8_t *text;
  uint16_t *border; /* [bytes]: length of the longest proper border of text[0..i] */
  uint32_t bytes;
  uint32_t matched;
};

struct quire_stop_match {
  const struct quire_env *env;
  size_t memory_bytes;
  size_t count;
  uint32_t held; /* the longest `matched` */
  bool done;
  struct stop stops[];
};

static enum quire_status check(const struct quire_stop_text *stops, size_t count, size_t *bytes_out,
                               struct quire_error *error_out) {
  QUIRE_ASSERT(bytes_out != NULL && (stops != NULL || count == 0));
  if (count > QUIRE_STOPS_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "stop", "has %zu strings; %d at most", count, QUIRE_STOPS_MAX);
  }
  *bytes_out = 0;
  for (size_t i = 0; i < count; i++) {
    if (stops[i].bytes == 0 || stops[i].bytes > QUIRE_STOP_BYTES_MAX) {
      return quire_error_set(error_out, QUIRE_ERR_REQUEST, "stop", "string %zu has %zu bytes; 1 to %d are possible", i,
                             stops[i].bytes, QUIRE_STOP_BYTES_MAX);
    }
    *bytes_out += stops[i].bytes;
  }
  return QUIRE_OK;
}

static void set_borders(struct stop *stop) {
  QUIRE_ASSERT(stop->bytes > 0);
  uint32_t length = 0;
  stop->border[0] = 0;
  for (uint32_t i = 1; i < stop->bytes; i++) {
    while (length > 0 && stop->text[i] != stop->text[length]) {
      length = stop->border[length - 1];
    }
    length += stop->text[i] == stop->text[length];
    stop->border[i] = (uint16_t)length;
  }
}

enum quire_status quire_stop_match_create(const struct quire_env *env, const struct quire_stop_text *stops,
                                          size_t count, struct quire_stop_match **match_out,
                                          struct quire_error *error_out) {
  QUIRE_ASSERT(env && match_out && (stops || count == 0));
  size_t bytes = 0;
  const enum quire_status status = check(stops, count, &bytes, error_out);
  if (status) {
    return status;
  }
  /* the struct, its stops, all borders, all texts */
  const size_t memory_bytes =
      sizeof(struct quire_stop_match) + count * sizeof(struct stop) + bytes * (sizeof(uint16_t) + 1);
  struct quire_stop_match *match = quire_env_zalloc(env, 1, memory_bytes);
  if (!match) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "stop", "no memory for %zu stop strings", count);
  }
  match->env = env;
  match->memory_bytes = memory_bytes;
  match->count = count;
  uint16_t *border = (uint16_t *)(void *)&match->stops[count];
  uint8_t *text = (uint8_t *)(border + bytes);
  for (size_t i = 0; i < count; i++) {
    memcpy(text, stops[i].text, stops[i].bytes);
    match->stops[i] = (struct stop){.text = text, .border = border, .bytes = (uint32_t)stops[i].bytes};
    set_borders(&match->stops[i]);
    text += stops[i].bytes;
    border += stops[i].bytes;
  }
  *match_out = match;
  return QUIRE_OK;
}

void quire_stop_match_destroy(struct quire_stop_match *match) {
  if (match) {
    quire_env_free(match->env, match, 1, match->memory_bytes);
  }
}

size_t quire_stop_match_push_bytes_max(const struct quire_stop_match *match, size_t bytes) {
  QUIRE_ASSERT(match);
  return bytes + match->held;
}

static void step(struct stop *stop, uint8_t byte) {
  QUIRE_ASSERT(stop->matched < stop->bytes);
  while (stop->matched > 0 && stop->text[stop->matched] != byte) {
    stop->matched = stop->border[stop->matched - 1];
  }
  stop->matched += stop->text[stop->matched] == byte;
}

size_t quire_stop_match_push(struct quire_stop_match *match, const char *text, size_t bytes, char *text_out,
                             int32_t *stop_out) {
  QUIRE_ASSERT(match && !match->done && stop_out && ((text && text_out) || bytes == 0));
  const uint32_t before = match->held;
  const uint8_t *prefix = NULL; /* text of the stop whose first `before` bytes are held */
  for (size_t i = 0; i < match->count && !prefix && before > 0; i++) {
    prefix = match->stops[i].matched == before ? match->stops[i].text : NULL;
  }
  *stop_out = QUIRE_STOP_NONE;
  size_t taken = 0;
  while (taken < bytes && *stop_out == QUIRE_STOP_NONE) {
    const uint8_t byte = (uint8_t)text[taken++];
    match->held = 0;
    for (size_t i = 0; i < match->count; i++) {
      struct stop *stop = &match->stops[i];
      step(stop, byte);
      match->held = stop->matched > match->held ? stop->matched : match->held;
      const bool complete = stop->matched == stop->bytes;
      if (complete && (*stop_out == QUIRE_STOP_NONE || stop->bytes > match->stops[*stop_out].bytes)) {
        *stop_out = (int32_t)i;
      }
    }
  }
  match->done = *stop_out != QUIRE_STOP_NONE;
  /* seen and not yet passed on: the held bytes of before, then those taken; of which the tail is kept */
  const size_t kept = match->done ? match->stops[*stop_out].bytes : match->held;
  QUIRE_ASSERT(kept <= before + taken);
  const size_t out = before + taken - kept;
  const size_t old = out < before ? out : before;
  if (old > 0) {
    memcpy(text_out, prefix, old);
  }
  if (out > old) {
    memcpy(text_out + old, text, out - old);
  }
  return out;
}

size_t quire_stop_match_end(struct quire_stop_match *match, char *text_out) {
  QUIRE_ASSERT(match && !match->done && (text_out || match->held == 0));
  const uint32_t held = match->held;
  for (size_t i = 0; i < match->count && held > 0; i++) {
    if (match->stops[i].matched == held) {
      memcpy(text_out, match->stops[i].text, held);
      break;
    }
  }
  match->held = 0;
  match->done = true;
  return held;
}
