#include "text/think_split.h"

#include <string.h>

#include "base/assert.h"

static void give(struct quire_think_split *split, const char *text, size_t bytes, struct quire_think_text *out) {
  QUIRE_ASSERT(text != NULL);
  const bool content = split->state == QUIRE_THINK_CONTENT;
  size_t *used = content ? &out->content_bytes : &out->reasoning_bytes;
  if (bytes > 0) {
    memcpy((content ? out->content : out->reasoning) + *used, text, bytes);
    *used += bytes;
  }
}

struct quire_think_split quire_think_split_begin(bool inside) {
  return (struct quire_think_split){.state = QUIRE_THINK_START, .inside = inside};
}

/* What has been held turns out to be no "<think>". */
static void leave_start(struct quire_think_split *split, struct quire_think_text *out) {
  QUIRE_ASSERT(split->state == QUIRE_THINK_START);
  const uint32_t held = split->held;
  split->state = split->inside ? QUIRE_THINK_REASONING : QUIRE_THINK_CONTENT;
  split->held = 0;
  /* "<" may begin "</think>" just as well; no longer start of the one is a start of the other */
  if (held == 1 && split->inside) {
    split->held = 1;
  } else {
    give(split, QUIRE_THINK_OPEN, held, out);
  }
}

/* One byte inside reasoning. */
static void reason(struct quire_think_split *split, char byte, struct quire_think_text *out) {
  QUIRE_ASSERT(split->held < strlen(QUIRE_THINK_CLOSE));
  if (byte == QUIRE_THINK_CLOSE[split->held]) {
    split->held++;
    if (split->held == strlen(QUIRE_THINK_CLOSE)) {
      split->held = 0;
      split->state = QUIRE_THINK_CONTENT;
    }
    return;
  }
  give(split, QUIRE_THINK_CLOSE, split->held, out);
  split->held = byte == '<'; /* which no marker has but at its start */
  give(split, &byte, byte != '<', out);
}

void quire_think_split_push(struct quire_think_split *split, const char *text, size_t bytes,
                            struct quire_think_text *out) {
  QUIRE_ASSERT(split && out && out->reasoning && out->content && (text || bytes == 0));
  out->reasoning_bytes = out->content_bytes = 0;
  for (size_t i = 0; i < bytes; i++) {
    if (split->state == QUIRE_THINK_START && text[i] == QUIRE_THINK_OPEN[split->held]) {
      split->held++;
      if (split->held == strlen(QUIRE_THINK_OPEN)) {
        split->held = 0;
        split->state = QUIRE_THINK_REASONING;
      }
      continue;
    }
    if (split->state == QUIRE_THINK_START) {
      leave_start(split, out);
    }
    if (split->state == QUIRE_THINK_CONTENT) {
      give(split, text + i, bytes - i, out);
      return;
    }
    reason(split, text[i], out);
  }
}

void quire_think_split_end(struct quire_think_split *split, struct quire_think_text *out) {
  QUIRE_ASSERT(split && out && out->reasoning && out->content);
  out->reasoning_bytes = out->content_bytes = 0;
  if (split->state == QUIRE_THINK_START) {
    leave_start(split, out);
  }
  give(split, QUIRE_THINK_CLOSE, split->held, out); /* only reasoning holds anything now */
  split->held = 0;
}
