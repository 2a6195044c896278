/* The three places options come from. All of them end in quire_option_store, which checks and ranks. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "base/assert.h"
#include "base/bitmap.h"
#include "base/file.h"
#include "base/option.h"
#include "base/option_state.h"

#define OPTION_ENVIRONMENT_PREFIX "QUIRE_"
#define OPTION_TEST_PREFIX "QUIRE_TEST_"
#define OPTION_LIBRARY "QUIRE_LIBRARY=" /* where bindings find libquire */

/* ---- command line ---- */

struct arguments {
  struct quire_options *options;
  const char *const *argv;
  int argc;
  int next;
};

static enum quire_status unknown_argument(struct quire_options *options, const char *argument, size_t bytes,
                                          struct quire_error *error_out) {
  char where[QUIRE_WHERE_BYTES], name[QUIRE_OPTION_NAME_BYTES_MAX + 1], suggestion[QUIRE_OPTION_NAME_BYTES_MAX + 32];
  snprintf(where, sizeof where, "%.*s", (int)bytes, argument);
  const char *bare = argument + strspn(argument, "-");
  size_t bare_bytes = (size_t)(argument + bytes - bare);
  snprintf(name, sizeof name, "%.*s", (int)(bare_bytes < sizeof name ? bare_bytes : sizeof name - 1), bare);
  quire_option_suggest(options, name, "--", "; --help lists them", suggestion, sizeof suggestion);
  return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where, "unknown option%s", suggestion);
}

/* inline_value: what stood after '=' or behind a short name; NULL when the value is the next argument. */
static enum quire_status store_argument(struct arguments *arguments, struct quire_option_state *state,
                                        const char *inline_value, struct quire_error *error_out) {
  char where[QUIRE_WHERE_BYTES];
  snprintf(where, sizeof where, "--%s", state->row->name);
  const char *value = inline_value;
  if (!value && state->row->type == QUIRE_OPTION_FLAG) {
    value = "true";
  }
  if (!value) {
    if (arguments->next == arguments->argc) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where, "a value must follow");
    }
    value = arguments->argv[arguments->next];
    if (strncmp(value, "--", 2) == 0) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where,
                             "a value must follow, not %.100s; to mean just that, write %s=%.100s", value, where,
                             value);
    }
    arguments->next++;
  }
  return quire_option_store(arguments->options, state, value, QUIRE_OPTION_FROM_COMMAND_LINE, where, error_out);
}

static enum quire_status read_long(struct arguments *arguments, const char *argument, struct quire_error *error_out) {
  const char *name = argument + 2;
  const char *equals = strchr(name, '=');
  size_t bytes = equals ? (size_t)(equals - name) : strlen(name);
  struct quire_option_state *state = quire_option_lookup(arguments->options, name, bytes);
  if (state) {
    return store_argument(arguments, state, equals ? equals + 1 : NULL, error_out);
  }
  if (bytes > 3 && strncmp(name, "no-", 3) == 0 && !equals) {
    state = quire_option_lookup(arguments->options, name + 3, bytes - 3);
    if (state && state->row->type == QUIRE_OPTION_FLAG) {
      return store_argument(arguments, state, "false", error_out);
    }
  }
  return unknown_argument(arguments->options, argument, bytes + 2, error_out);
}

static enum quire_status read_short(struct arguments *arguments, const char *argument, struct quire_error *error_out) {
  struct quire_option_state *state = quire_option_lookup_short(arguments->options, argument[1]);
  if (!state || (state->row->type == QUIRE_OPTION_FLAG && argument[2] && argument[2] != '=')) {
    return unknown_argument(arguments->options, argument, strlen(argument), error_out);
  }
  const char *value = argument[2] ? argument + 2 + (argument[2] == '=') : NULL;
  return store_argument(arguments, state, value, error_out);
}

static enum quire_status add_operand(struct quire_options *options, const char *argument, int operands_max,
                                     struct quire_error *error_out) {
  if (options->operand_count == operands_max) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, argument,
                           operands_max ? "one argument too many: at most %d without -- are accepted"
                                        : "unexpected argument: none is accepted without --",
                           operands_max);
  }
  options->operands[options->operand_count++] = argument;
  return QUIRE_OK;
}

enum quire_status quire_options_read_arguments(struct quire_options *options, int argc, const char *const *argv,
                                               int operands_max, struct quire_error *error_out) {
  QUIRE_ASSERT(argc >= 0 && operands_max >= 0);
  if (options->operands) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "arguments", "were read before");
  }
  int room = operands_max < argc ? operands_max : argc;
  const char **operands = quire_env_zalloc(options->env, (size_t)room, sizeof *operands);
  if (!operands) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "arguments", "no memory for %d operands", room);
  }
  options->operands = operands;
  options->operands_room = room;
  struct arguments arguments = {.options = options, .argv = argv, .argc = argc};
  bool only_operands = false;
  enum quire_status status = QUIRE_OK;
  while (arguments.next < argc && status == QUIRE_OK) {
    const char *argument = argv[arguments.next++];
    if (only_operands || argument[0] != '-' || !argument[1]) {
      status = add_operand(options, argument, operands_max, error_out);
    } else if (strcmp(argument, "--") == 0) {
      only_operands = true;
    } else if (argument[1] == '-') {
      status = read_long(&arguments, argument, error_out);
    } else {
      status = read_short(&arguments, argument, error_out);
    }
  }
  return status;
}

int quire_options_operand_count(const struct quire_options *options) { return options->operand_count; }

const char *quire_options_operand(const struct quire_options *options, int index) {
  QUIRE_ASSERT(index >= 0 && index < options->operand_count);
  return options->operands[index];
}

enum quire_status quire_options_set(struct quire_options *options, const char *name, const char *value,
                                    struct quire_error *error_out) {
  struct quire_option_state *state = quire_option_lookup(options, name, strlen(name));
  if (!state) {
    return unknown_argument(options, name, strlen(name), error_out);
  }
  char where[QUIRE_WHERE_BYTES];
  snprintf(where, sizeof where, "--%s", state->row->name);
  return quire_option_store(options, state, value, QUIRE_OPTION_FROM_COMMAND_LINE, where, error_out);
}

/* ---- environment ---- */

/* "KV_FORMAT" -> "kv-format"; false when it is too long to be a name. */
static bool name_of_variable(const char *variable, size_t bytes, char *name_out) {
  if (bytes == 0 || bytes > QUIRE_OPTION_NAME_BYTES_MAX) {
    return false;
  }
  for (size_t i = 0; i < bytes; i++) {
    char c = variable[i];
    name_out[i] = c == '_' ? '-' : (c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : '?');
    if (c >= '0' && c <= '9') {
      name_out[i] = c;
    }
  }
  name_out[bytes] = 0;
  return true;
}

static enum quire_status read_variable(struct quire_options *options, const char *entry,
                                       struct quire_error *error_out) {
  const char *equals = strchr(entry, '=');
  const char *variable = entry + strlen(OPTION_ENVIRONMENT_PREFIX);
  char name[QUIRE_OPTION_NAME_BYTES_MAX + 1], where[QUIRE_WHERE_BYTES];
  snprintf(where, sizeof where, "%.*s", (int)(equals - entry), entry);
  size_t bytes = (size_t)(equals - variable);
  bool named = name_of_variable(variable, bytes, name);
  struct quire_option_state *state = named ? quire_option_lookup(options, name, bytes) : NULL;
  if (state) {
    return quire_option_store(options, state, equals + 1, QUIRE_OPTION_FROM_ENVIRONMENT, where, error_out);
  }
  char suggestion[QUIRE_OPTION_NAME_BYTES_MAX + 32] = "";
  if (named) {
    quire_option_suggest(options, name, "the variable of --", "", suggestion, sizeof suggestion);
  }
  quire_env_log(options->env, QUIRE_LOG_WARN, "environment variable %s sets no option of this command%s", where,
                suggestion);
  return QUIRE_OK;
}

enum quire_status quire_options_read_environment(struct quire_options *options, const char *const *environ_or_null,
                                                 struct quire_error *error_out) {
  const char *const *entries = environ_or_null ? environ_or_null : (const char *const *)environ;
  for (; entries && *entries; entries++) {
    bool ours = strncmp(*entries, OPTION_ENVIRONMENT_PREFIX, strlen(OPTION_ENVIRONMENT_PREFIX)) == 0 &&
                strncmp(*entries, OPTION_TEST_PREFIX, strlen(OPTION_TEST_PREFIX)) != 0 &&
                strncmp(*entries, OPTION_LIBRARY, strlen(OPTION_LIBRARY)) != 0;
    if (ours && strchr(*entries, '=')) {
      enum quire_status status = read_variable(options, *entries, error_out);
      if (status != QUIRE_OK) {
        return status;
      }
    }
  }
  return QUIRE_OK;
}

/* ---- YAML ---- */

struct yaml_read {
  struct quire_options *options;
  const char *name;
  yaml_parser_t parser;
  uint64_t seen[(QUIRE_OPTIONS_MAX + 63) / 64];
};

/* The end of a long path says more than its beginning, and what follows it must fit. */
static const char *short_name(const struct yaml_read *read) {
  const char *slash = strlen(read->name) > 24 ? strrchr(read->name, '/') : NULL;
  return slash ? slash + 1 : read->name;
}

static enum quire_status yaml_fault(const struct yaml_read *read, const yaml_mark_t *mark, const char *what,
                                    struct quire_error *error_out) {
  char where[QUIRE_WHERE_BYTES];
  snprintf(where, sizeof where, "%.40s:%zu", short_name(read), mark->line + 1);
  return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where, "%s", what);
}

static enum quire_status yaml_next(struct yaml_read *read, yaml_event_t *event_out, struct quire_error *error_out) {
  if (yaml_parser_parse(&read->parser, event_out)) {
    return QUIRE_OK;
  }
  if (read->parser.error == YAML_MEMORY_ERROR) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, read->name, "no memory to parse it");
  }
  char text[QUIRE_TEXT_BYTES];
  snprintf(text, sizeof text, "not YAML: %s", read->parser.problem ? read->parser.problem : "bad encoding");
  return yaml_fault(read, &read->parser.problem_mark, text, error_out);
}

/* One plain word: no anchor, no NUL inside. */
static const char *scalar_fault(const yaml_event_t *event) {
  if (event->type != YAML_SCALAR_EVENT) {
    return "only \"name: value\" lines are accepted: no lists, no nesting, no aliases";
  }
  if (event->data.scalar.anchor || event->data.scalar.tag) {
    return "anchors and tags are not accepted";
  }
  if (strlen((const char *)event->data.scalar.value) != event->data.scalar.length) {
    return "there is a NUL in it";
  }
  return NULL;
}

static bool is_null(const yaml_event_t *event) {
  const char *value = (const char *)event->data.scalar.value;
  return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
         (!*value || strcmp(value, "~") == 0 || strcmp(value, "null") == 0);
}

static enum quire_status yaml_key(struct yaml_read *read, const yaml_event_t *key,
                                  struct quire_option_state **state_out, struct quire_error *error_out) {
  const char *fault = scalar_fault(key);
  if (fault) {
    return yaml_fault(read, &key->start_mark, fault, error_out);
  }
  const char *name = (const char *)key->data.scalar.value;
  struct quire_option_state *state = quire_option_lookup(read->options, name, key->data.scalar.length);
  char text[QUIRE_TEXT_BYTES];
  if (!state) {
    char suggestion[QUIRE_OPTION_NAME_BYTES_MAX + 32];
    quire_option_suggest(read->options, name, "", "; --help lists them", suggestion, sizeof suggestion);
    snprintf(text, sizeof text, "unknown option \"%.60s\"%s", name, suggestion);
    return yaml_fault(read, &key->start_mark, text, error_out);
  }
  if (state->row->deed) {
    snprintf(text, sizeof text, "%s is for the command line; a file holds settings only", state->row->name);
    return yaml_fault(read, &key->start_mark, text, error_out);
  }
  if (!quire_bitmap_tick(read->seen, state - read->options->state)) {
    snprintf(text, sizeof text, "%s is set twice", state->row->name);
    return yaml_fault(read, &key->start_mark, text, error_out);
  }
  *state_out = state;
  return QUIRE_OK;
}

static enum quire_status yaml_value(struct yaml_read *read, struct quire_option_state *state, const yaml_event_t *value,
                                    struct quire_error *error_out) {
  const char *fault = scalar_fault(value);
  if (!fault && is_null(value)) {
    fault = "there is no value; remove the line to keep the default";
  }
  if (fault) {
    return yaml_fault(read, &value->start_mark, fault, error_out);
  }
  char where[QUIRE_WHERE_BYTES];
  snprintf(where, sizeof where, "%s:%zu: %s", short_name(read), value->start_mark.line + 1, state->row->name);
  return quire_option_store(read->options, state, (const char *)value->data.scalar.value, QUIRE_OPTION_FROM_FILE, where,
                            error_out);
}

/* Inside the mapping: pairs up to its end. */
static enum quire_status yaml_pairs(struct yaml_read *read, struct quire_error *error_out) {
  for (;;) {
    yaml_event_t event;
    struct quire_option_state *state = NULL;
    enum quire_status status = yaml_next(read, &event, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    bool over = event.type == YAML_MAPPING_END_EVENT;
    status = over ? QUIRE_OK : yaml_key(read, &event, &state, error_out);
    yaml_event_delete(&event);
    if (over || status != QUIRE_OK) {
      return status;
    }
    status = yaml_next(read, &event, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    status = yaml_value(read, state, &event, error_out);
    yaml_event_delete(&event);
    if (status != QUIRE_OK) {
      return status;
    }
  }
}

static enum quire_status yaml_stream(struct yaml_read *read, struct quire_error *error_out) {
  int documents = 0;
  for (;;) {
    yaml_event_t event;
    enum quire_status status = yaml_next(read, &event, error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    bool over = event.type == YAML_STREAM_END_EVENT;
    documents += event.type == YAML_DOCUMENT_START_EVENT;
    if (documents > 1) {
      status = yaml_fault(read, &event.start_mark, "there is a second document; one is accepted", error_out);
    } else if (event.type == YAML_MAPPING_START_EVENT) {
      status = yaml_pairs(read, error_out);
    } else if (event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_ALIAS_EVENT ||
               (event.type == YAML_SCALAR_EVENT && !is_null(&event))) {
      status = yaml_fault(read, &event.start_mark, "the file must be \"name: value\" lines", error_out);
    }
    yaml_event_delete(&event);
    if (over || status != QUIRE_OK) {
      return status;
    }
  }
}

enum quire_status quire_options_read_yaml(struct quire_options *options, const char *name, const char *text,
                                          size_t bytes, struct quire_error *error_out) {
  if (bytes > QUIRE_OPTION_FILE_BYTES_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, name, "it has %zu bytes; at most %d are accepted", bytes,
                           QUIRE_OPTION_FILE_BYTES_MAX);
  }
  struct yaml_read read = {.options = options, .name = name};
  if (!yaml_parser_initialize(&read.parser)) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, name, "no memory to parse it");
  }
  yaml_parser_set_input_string(&read.parser, (const unsigned char *)text, bytes);
  enum quire_status status = yaml_stream(&read, error_out);
  yaml_parser_delete(&read.parser);
  return status;
}

enum quire_status quire_options_read_file(struct quire_options *options, const char *path,
                                          struct quire_error *error_out) {
  struct quire_file_text text;
  enum quire_status status = quire_file_read(options->env, path, QUIRE_OPTION_FILE_BYTES_MAX, &text, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = quire_options_read_yaml(options, path, text.data, text.bytes, error_out);
  quire_file_text_free(options->env, &text);
  return status;
}
