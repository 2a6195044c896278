#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

enum quire_damage quire_status_damage(enum quire_status status) {
  int value = (int)status;
  if (value <= 0) {
    return QUIRE_DAMAGE_NONE;
  }
  static const enum quire_damage groups[] = {QUIRE_DAMAGE_CALL, QUIRE_DAMAGE_REQUEST, QUIRE_DAMAGE_PEER,
                                             QUIRE_DAMAGE_RANK, QUIRE_DAMAGE_NODE};
  int group = value / 16;
  /* an unknown value is taken for the worst */
  return group < 5 ? groups[group] : QUIRE_DAMAGE_NODE;
}

const char *quire_status_name(enum quire_status status) {
  switch (status) {
  case QUIRE_OK:
    return "ok";
  case QUIRE_ERR_ARGUMENT:
    return "argument";
  case QUIRE_ERR_STATE:
    return "state";
  case QUIRE_ERR_UNSUPPORTED:
    return "unsupported";
  case QUIRE_ERR_AGAIN:
    return "again";
  case QUIRE_ERR_NOT_FOUND:
    return "not found";
  case QUIRE_ERR_REQUEST:
    return "request";
  case QUIRE_ERR_NONFINITE:
    return "nonfinite";
  case QUIRE_ERR_CANCELLED:
    return "cancelled";
  case QUIRE_ERR_PEER:
    return "peer";
  case QUIRE_ERR_MISMATCH:
    return "mismatch";
  case QUIRE_ERR_ABORTED:
    return "aborted";
  case QUIRE_ERR_RANK:
    return "rank";
  case QUIRE_ERR_MEMORY:
    return "memory";
  case QUIRE_ERR_IO:
    return "io";
  case QUIRE_ERR_CORRUPT:
    return "corrupt";
  }
  return "unknown";
}

/* One line: whatever a file or a user put into the text, it cannot fake a second log line. */
static void flatten(char *text) {
  for (; *text; text++) {
    if ((unsigned char)*text < ' ' || *text == 127) {
      *text = ' ';
    }
  }
}

/* in parentheses, or the macro would be expanded */
enum quire_status(quire_error_set)(struct quire_error *error_out, enum quire_status status, const char *where,
                                   const char *format, ...) {
  QUIRE_ASSERT(status != QUIRE_OK);
  if (!error_out) {
    return status;
  }
  error_out->status = status;
  snprintf(error_out->where, sizeof error_out->where, "%s", where ? where : "");
  va_list args;
  va_start(args, format);
  vsnprintf(error_out->text, sizeof error_out->text, format, args);
  va_end(args);
  flatten(error_out->where);
  flatten(error_out->text);
  return status;
}
