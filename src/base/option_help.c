#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/option.h"
#include "base/option_state.h"
#include "base/utf8.h"

#define HELP_COLUMN 30
#define HELP_WIDTH 100
#define HELP_BYTES 1024

const char *quire_option_metavar(const struct quire_option *row) {
  static const char *const by_type[] = {
      [QUIRE_OPTION_FLAG] = "",   [QUIRE_OPTION_INT] = "N",       [QUIRE_OPTION_BYTES] = "SIZE",
      [QUIRE_OPTION_FLOAT] = "X", [QUIRE_OPTION_STRING] = "TEXT", [QUIRE_OPTION_ENUM] = "NAME",
  };
  return row->metavar ? row->metavar : by_type[row->type];
}

/* Adds words from column HELP_COLUMN on, breaking lines between them. */
static void add_wrapped(struct quire_strbuf *buffer, const char *text, size_t column) {
  while (*text) {
    size_t word = strcspn(text, " ");
    if (column > HELP_COLUMN && column + 1 + word > HELP_WIDTH) {
      quire_strbuf_addf(buffer, "\n%*s", HELP_COLUMN, "");
      column = HELP_COLUMN;
    } else if (column > HELP_COLUMN) {
      quire_strbuf_add_char(buffer, ' ');
      column++;
    }
    quire_strbuf_add(buffer, text, word);
    column += word;
    text += word;
    text += strspn(text, " ");
  }
  quire_strbuf_add_char(buffer, '\n');
}

void quire_option_help_text(const struct quire_option *row, char *text_out, size_t text_bytes) {
  char bounds[320];
  QUIRE_ASSERT(row->help != NULL);
  quire_option_bounds(row, bounds, sizeof bounds);
  const char *limits = row->type == QUIRE_OPTION_FLAG ? "" : bounds;
  if (row->default_text && *limits) {
    snprintf(text_out, text_bytes, "%s [%s; %s]", row->help, row->default_text, limits);
  } else if (row->default_text || *limits) {
    snprintf(text_out, text_bytes, "%s [%s]", row->help, row->default_text ? row->default_text : limits);
  } else {
    snprintf(text_out, text_bytes, "%s", row->help);
  }
}

static void add_row(struct quire_strbuf *buffer, const struct quire_option *row) {
  char head[128], text[HELP_BYTES], short_name[8] = "    ";
  if (row->short_name) {
    snprintf(short_name, sizeof short_name, "-%c, ", row->short_name);
  }
  bool flag = row->type == QUIRE_OPTION_FLAG;
  int column = snprintf(head, sizeof head, "  %s--%s%s%s%s", short_name, flag ? "[no-]" : "", row->name,
                        flag ? "" : " ", quire_option_metavar(row));
  quire_strbuf_add_text(buffer, head);
  if (column + 2 > HELP_COLUMN) {
    quire_strbuf_add_char(buffer, '\n');
    column = 0;
  }
  quire_strbuf_addf(buffer, "%*s", HELP_COLUMN - column, "");

  quire_option_help_text(row, text, sizeof text);
  add_wrapped(buffer, text, HELP_COLUMN);
}

void quire_options_write_help(const struct quire_options *options, struct quire_strbuf *buffer) {
  const struct quire_option_group *group = NULL;
  for (int i = 0; i < options->count; i++) {
    const struct quire_option_state *state = &options->state[i];
    if (state->group != group) {
      quire_strbuf_addf(buffer, "%s%s\n", group ? "\n" : "", state->group->title);
      group = state->group;
    }
    add_row(buffer, state->row);
  }
}

/* What a YAML reader would not take as it is: control characters, line ends beyond ASCII's, marks of byte order. */
static bool is_special(uint32_t c) {
  return c < ' ' || (c >= 127 && c < 160) || c == 0x2028 || c == 0x2029 || c == 0xFEFF || c == 0xFFFE || c == 0xFFFF;
}

static bool is_utf8(const char *text) {
  const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
  while (at < end && quire_utf8_valid(at, end) > 0) {
    at += quire_utf8_valid(at, end);
  }
  return at == end;
}

/* On one line and printable, with the escapes of YAML's double quotes; a byte that is no UTF-8 as a Latin-1 one. */
static void add_escaped(struct quire_strbuf *buffer, const char *text) {
  const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
  while (at < end) {
    size_t bytes = quire_utf8_valid(at, end);
    uint32_t c = *at;
    if (bytes == 2) {
      c = (c & 31) << 6 | (at[1] & 63);
    } else if (bytes == 3) {
      c = (c & 15) << 12 | (uint32_t)(at[1] & 63) << 6 | (at[2] & 63);
    }
    if (bytes == 0 || (bytes < 4 && is_special(c))) {
      quire_strbuf_addf(buffer, c < 256 ? "\\x%02X" : "\\u%04X", (unsigned)c);
    } else {
      quire_strbuf_add_text(buffer, c == '"' || c == '\\' ? "\\" : "");
      quire_strbuf_add(buffer, at, bytes);
    }
    at += bytes > 0 ? bytes : 1;
  }
}

void quire_options_write_dump(const struct quire_options *options, struct quire_strbuf *buffer) {
  for (int i = 0; i < options->count; i++) {
    const struct quire_option_state *state = &options->state[i];
    if (!state->text) {
      quire_strbuf_addf(buffer, "# %s: not set\n", state->row->name);
      continue;
    }
    bool utf8 = is_utf8(state->text);
    const char *quote = state->row->type == QUIRE_OPTION_STRING ? "\"" : "";
    quire_strbuf_addf(buffer, "%s%s: %s", state->row->deed || !utf8 ? "# " : "", state->row->name, quote);
    add_escaped(buffer, state->text);
    quire_strbuf_addf(buffer, "%s  # ", quote);
    add_escaped(buffer, state->where);
    quire_strbuf_add_text(buffer, utf8 ? "\n" : ", not UTF-8, which YAML cannot hold\n");
  }
}
