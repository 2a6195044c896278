/* The option table as a part of a manual page, and as words a shell completes. */
#include <string.h>

#include "base/assert.h"
#include "base/option.h"
#include "base/option_state.h"

#define TEXT_BYTES 1024

/* Text for roff: a backslash begins a request, a minus is not a hyphen, and neither a dot nor a quote may begin a
 * line. */
void quire_option_add_roff(struct quire_strbuf *buffer, const char *text) {
  QUIRE_ASSERT(text != NULL);
  bool begins = true;
  for (; *text != '\0'; text++) {
    if (begins && (*text == '.' || *text == '\'')) {
      quire_strbuf_add_text(buffer, "\\&");
    }
    if (*text == '\\') {
      quire_strbuf_add_text(buffer, "\\e");
    } else if (*text == '-') {
      quire_strbuf_add_text(buffer, "\\-");
    } else {
      quire_strbuf_add_char(buffer, *text);
    }
    begins = *text == '\n';
  }
}

void quire_options_write_man(const struct quire_options *options, struct quire_strbuf *buffer) {
  const struct quire_option_group *group = NULL;
  QUIRE_ASSERT(options != NULL);
  for (int i = 0; i < options->count; i++) {
    const struct quire_option *row = options->state[i].row;
    char text[TEXT_BYTES];
    if (options->state[i].group != group) {
      group = options->state[i].group;
      quire_strbuf_addf(buffer, ".SS \"%.*s\"\n", (int)strcspn(group->title, ":"), group->title);
    }
    bool flag = row->type == QUIRE_OPTION_FLAG;
    quire_strbuf_add_text(buffer, ".TP\n");
    if (row->short_name != '\0') {
      quire_strbuf_addf(buffer, "\\fB\\-%c\\fR, ", row->short_name);
    }
    quire_strbuf_add_text(buffer, flag && !row->deed ? "\\fB\\-\\-\\fR[\\fBno\\-\\fR]\\fB" : "\\fB\\-\\-");
    quire_option_add_roff(buffer, row->name);
    quire_strbuf_addf(buffer, "\\fR%s\\fI%s\\fR\n", flag ? "" : " ", quire_option_metavar(row));
    quire_option_help_text(row, text, sizeof text);
    quire_option_add_roff(buffer, text);
    quire_strbuf_add_char(buffer, '\n');
  }
}

void quire_options_write_words(const struct quire_options *options, struct quire_strbuf *buffer) {
  QUIRE_ASSERT(options != NULL);
  for (int i = 0; i < options->count; i++) {
    const struct quire_option *row = options->state[i].row;
    quire_strbuf_addf(buffer, "--%s", row->name);
    QUIRE_ASSERT(strpbrk(row->help, "\t\n") == NULL && strstr(row->help, "\\'") == NULL);
    for (int v = 0; row->type == QUIRE_OPTION_ENUM && row->values[v] != NULL; v++) {
      quire_strbuf_addf(buffer, " %s", row->values[v]);
    }
    quire_strbuf_add_char(buffer, '\t');
    for (const char *c = row->help; *c != '\0'; c++) {
      if (*c == '\'') {
        quire_strbuf_add_text(buffer, "'\"'\"'"); /* ends the quotes, quotes this one, and goes on */
      } else {
        quire_strbuf_add_char(buffer, *c);
      }
    }
    quire_strbuf_add_char(buffer, '\n');
    if (row->type == QUIRE_OPTION_FLAG && !row->deed) {
      quire_strbuf_addf(buffer, "--no-%s\tnot --%s\n", row->name, row->name);
    }
  }
}
