/* Options of a program from one table (design D15): command line, environment, YAML file, help, manual pages,
 * completions of a shell, and a dump of who set what, all from the same rows. Modules declare rows; the program puts
 * their tables together.
 *
 *     struct serve_config { int64_t port; const char *host; bool eager; int view; double ratio; };
 *     static const char *const views[] = {"local", "gather", "peer", NULL};
 *     static const struct quire_option rows[] = {
 *         {.name = "port", .short_name = 'p', .type = QUIRE_OPTION_INT, .offset = offsetof(struct serve_config, port),
 *          .default_text = "8000", .min = 1, .max = 65535, .help = "TCP port to listen on"},
 *         ...
 *
 *     name "kv-format":  --kv-format=bf16   --kv-format bf16   QUIRE_KV_FORMAT=bf16   kv-format: bf16  (or kv_format)
 *     a flag "eager":    --eager   --no-eager   --eager=false  QUIRE_EAGER=1          eager: true
 *
 * Later sources win over earlier ones whatever the order of the calls: default < file < environment < command line.
 * Every value is checked against its row, even one that a stronger source hides; the error names the option, where the
 * value came from, the value and the bounds, and for an unknown name the nearest known one. The first fault stops a
 * read; what was set before it stays set. QUIRE_ERR_MEMORY may come from each of them.
 *
 * Memory: quire_options copies every string it keeps; strings it wrote into a target live until
 * quire_options_destroy. Groups, tables and targets are the caller's and outlive it. Threads: one owner. */
#ifndef QUIRE_BASE_OPTION_H
#define QUIRE_BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_OPTION_NAME_BYTES_MAX 48
#define QUIRE_OPTION_VALUE_BYTES_MAX 4096
#define QUIRE_OPTION_FILE_BYTES_MAX (1 << 20)
#define QUIRE_OPTIONS_MAX 512

enum quire_option_type {
  QUIRE_OPTION_FLAG,   /* bool: true, false, yes, no, on, off, 1, 0 */
  QUIRE_OPTION_INT,    /* int64_t, decimal */
  QUIRE_OPTION_BYTES,  /* int64_t, decimal with an optional K, M, G or T (powers of 1,024), "8G", "1.5G" */
  QUIRE_OPTION_FLOAT,  /* double, finite */
  QUIRE_OPTION_STRING, /* const char *, NULL when nothing was given and there is no default */
  QUIRE_OPTION_ENUM,   /* int: index in values */
};

struct quire_option {
  const char *name; /* [a-z][a-z0-9-]*, without "no-" in front */
  char short_name;  /* letter of "-p", or 0 */
  enum quire_option_type type;
  size_t offset;             /* of the field in the group's target */
  const char *default_text;  /* as a user would write it; NULL: false, 0, NULL, values[0] */
  double min, max;           /* INT, BYTES, FLOAT: bounds, both included; both 0: none; max >= 2^53: only min */
  const char *const *values; /* ENUM: names, NULL at the end */
  const char *metavar;       /* placeholder in the help, NULL: by type */
  const char *help;          /* one sentence, no full stop */
  bool deed; /* something to do (help, print, read a file), no setting: not in a file; a comment in a dump */
};

/* The rows of one module and the struct they fill. */
struct quire_option_group {
  const char *title; /* heading in the help */
  const struct quire_option *rows;
  int count;
  void *target;
};

enum quire_option_source {
  QUIRE_OPTION_FROM_DEFAULT,
  QUIRE_OPTION_FROM_FILE,
  QUIRE_OPTION_FROM_ENVIRONMENT,
  QUIRE_OPTION_FROM_COMMAND_LINE,
};

struct quire_options;

/* Puts the tables together and writes every default. A table that breaks a rule above (two rows of one name, a default
 * out of bounds) is QUIRE_ERR_ARGUMENT with the row's name. */
enum quire_status quire_options_create(const struct quire_env *env, const struct quire_option_group *groups, int count,
                                       struct quire_options **options_out, struct quire_error *error_out);
void quire_options_destroy(struct quire_options *options);

/* argv without the program's (and command's) name. What is no option, and everything after "--", is an operand; a
 * program that takes none says operands_max 0, and one too many is an error. Of an option given twice the last counts.
 * argv must outlive the object. */
enum quire_status quire_options_read_arguments(struct quire_options *options, int argc, const char *const *argv,
                                               int operands_max, struct quire_error *error_out);
/* Every QUIRE_NAME of environ (NULL: the process' own, NULL-terminated "NAME=value" otherwise) whose NAME is a row. One
 * that no row has is logged as a warning, since the same shell may hold variables of other commands; QUIRE_TEST_... is
 * the tests' and QUIRE_LIBRARY the bindings', and both are left alone. */
enum quire_status quire_options_read_environment(struct quire_options *options, const char *const *environ_or_null,
                                                 struct quire_error *error_out);
/* A YAML mapping of names to scalars; anything else (nesting, lists, aliases, a name twice, an unknown name, a deed
 * such as another file to read) is QUIRE_ERR_ARGUMENT with "file:line". */
enum quire_status quire_options_read_file(struct quire_options *options, const char *path,
                                          struct quire_error *error_out);
/* As read_file, of text in memory; name stands for the path in messages. */
enum quire_status quire_options_read_yaml(struct quire_options *options, const char *name, const char *text,
                                          size_t bytes, struct quire_error *error_out);
/* Sets one option by name, as the command line would. */
enum quire_status quire_options_set(struct quire_options *options, const char *name, const char *value,
                                    struct quire_error *error_out);

int quire_options_operand_count(const struct quire_options *options);
const char *quire_options_operand(const struct quire_options *options, int index);

/* One row with its present value. */
struct quire_option_setting {
  const struct quire_option *row;
  const char *group;
  const char *value; /* as a user would write it; NULL for a string that is not set */
  enum quire_option_source source;
  const char *where; /* "--port", "QUIRE_PORT", "quire.yaml:3", "default" */
};

int quire_options_count(const struct quire_options *options);
/* index in [0, count), in table order. The pointers live until the option is set again. */
struct quire_option_setting quire_options_at(const struct quire_options *options, int index);
/* The row's setting by name; false when there is none. */
bool quire_options_find(const struct quire_options *options, const char *name,
                        struct quire_option_setting *setting_out);

/* Appends the help: a heading a group, a row an option with its default and bounds, wrapped at 100 columns. */
void quire_options_write_help(const struct quire_options *options, struct quire_strbuf *buffer);
/* Appends the same as a part of a manual page, in roff with the macros of man. */
void quire_options_write_man(const struct quire_options *options, struct quire_strbuf *buffer);
/* Appends text so that roff shows it as it is. */
void quire_option_add_roff(struct quire_strbuf *buffer, const char *text);
/* Appends a line an option, "--name", behind it the names its value may have, and behind a tab its help, for a shell to
 * complete. The lines can stand between single quotes of bash, zsh and fish. */
void quire_options_write_words(const struct quire_options *options, struct quire_strbuf *buffer);
/* Appends "name: value  # where" lines: a YAML file that sets the same values. What a file cannot set is a comment:
 * deeds, and text that is not UTF-8. */
void quire_options_write_dump(const struct quire_options *options, struct quire_strbuf *buffer);

#ifdef __cplusplus
}
#endif
#endif
