/* What the option_*.c share; for no one else. */
#ifndef QUIRE_BASE_OPTION_STATE_H
#define QUIRE_BASE_OPTION_STATE_H

#include "base/option.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_option_state {
  const struct quire_option *row;
  const struct quire_option_group *group;
  const char *text; /* as given; the default's own text or a copy in `owned` */
  char *owned;
  size_t owned_bytes;
  enum quire_option_source source;
  char where[QUIRE_WHERE_BYTES];
};

struct quire_options {
  const struct quire_env *env;
  const char **operands; /* [operands_room], pointers into argv */
  int operands_room;
  int operand_count;
  int count;
  struct quire_option_state state[];
};

/* The row with this name, written with '-' or '_'; NULL. */
struct quire_option_state *quire_option_lookup(struct quire_options *options, const char *name, size_t bytes);
struct quire_option_state *quire_option_lookup_short(struct quire_options *options, char short_name);

/* Checks text against the row and stores it unless a stronger source has spoken. where names the origin in messages
 * and in the dump. */
enum quire_status quire_option_store(struct quire_options *options, struct quire_option_state *state, const char *text,
                                     enum quire_option_source source, const char *where, struct quire_error *error_out);

/* Writes "; did you mean PREFIXname?", or hint where nothing is near, into text_out. */
void quire_option_suggest(const struct quire_options *options, const char *name, const char *prefix, const char *hint,
                          char *text_out, size_t text_bytes);

/* The placeholder of a row's value in help and manual; "" for a flag. */
const char *quire_option_metavar(const struct quire_option *row);
/* Its help, with default and bounds in brackets. */
void quire_option_help_text(const struct quire_option *row, char *text_out, size_t text_bytes);

/* Writes the row's bounds: "1 to 65535", "at least 0", "one of a, b"; "" when it has none. */
void quire_option_bounds(const struct quire_option *row, char *text_out, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
