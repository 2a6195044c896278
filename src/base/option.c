#include "base/option.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/option_state.h"

#define OPTION_BOUND_NONE 9007199254740992.0 /* 2^53 */
#define OPTION_LIST_BYTES 256

union value {
  bool flag;
  int64_t number;
  double real;
  int index;
};

static bool has_bounds(const struct quire_option *row) { return row->min != 0 || row->max != 0; }

static bool within(const struct quire_option *row, double value) {
  return !has_bounds(row) || (value >= row->min && (row->max >= OPTION_BOUND_NONE || value <= row->max));
}

static bool parse_flag(const char *text, bool *flag_out) {
  static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (strcmp(text, words[i]) == 0) {
      *flag_out = i % 2;
      return true;
    }
  }
  return false;
}

static bool parse_int(const char *text, int64_t *number_out) {
  const char *digits = text + (*text == '-' || *text == '+');
  if (*digits < '0' || *digits > '9') {
    return false; /* strtoll would take spaces */
  }
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno || *end) {
    return false;
  }
  *number_out = number;
  return true;
}

/* "1536", "64K", "1.5G", "8GiB". The fraction is kept in integers: at most six digits of it, rounded down. */
static bool parse_bytes(const char *text, int64_t *number_out) {
  uint64_t whole = 0, part = 0, scale = 1;
  const char *at = text;
  for (; *at >= '0' && *at <= '9'; at++) {
    if (__builtin_mul_overflow(whole, 10, &whole) || __builtin_add_overflow(whole, (uint64_t)(*at - '0'), &whole)) {
      return false;
    }
  }
  if (at == text) {
    return false;
  }
  if (*at == '.') {
    for (at++; *at >= '0' && *at <= '9' && scale < 1000000; at++) {
      part = part * 10 + (uint64_t)(*at - '0');
      scale *= 10;
    }
    if (scale == 1) {
      return false;
    }
  }
  static const char suffixes[] = "KMGT";
  const char *suffix = *at ? strchr(suffixes, *at == 'k' ? 'K' : *at) : NULL;
  int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
  at += suffix ? 1 : 0;
  at += suffix && strcmp(at, "iB") == 0 ? 2 : 0;
  uint64_t bytes;
  if (*at || (scale > 1 && !suffix) || __builtin_mul_overflow(whole, (uint64_t)1 << shift, &bytes) ||
      __builtin_add_overflow(bytes, (part << shift) / scale, &bytes) || bytes > INT64_MAX) {
    return false;
  }
  *number_out = (int64_t)bytes;
  return true;
}

static bool parse_float(const char *text, double *real_out) {
  const char *digits = text + (*text == '-' || *text == '+');
  if (!(*digits >= '0' && *digits <= '9') && *digits != '.') {
    return false; /* spaces, "nan", "inf" */
  }
  /* whatever locale the host program has set, a point is a point */
  locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
  if (!plain) {
    return false;
  }
  char *end;
  double real = strtod_l(text, &end, plain);
  freelocale(plain);
  if (*end || end == text || !__builtin_isfinite(real)) {
    return false;
  }
  *real_out = real;
  return true;
}

static bool parse_enum(const struct quire_option *row, const char *text, int *index_out) {
  for (int i = 0; row->values[i]; i++) {
    if (strcmp(row->values[i], text) == 0) {
      *index_out = i;
      return true;
    }
  }
  return false;
}

static bool parse(const struct quire_option *row, const char *text, union value *value_out) {
  switch (row->type) {
  case QUIRE_OPTION_FLAG:
    return parse_flag(text, &value_out->flag);
  case QUIRE_OPTION_INT:
    return parse_int(text, &value_out->number) && within(row, (double)value_out->number);
  case QUIRE_OPTION_BYTES:
    return parse_bytes(text, &value_out->number) && within(row, (double)value_out->number);
  case QUIRE_OPTION_FLOAT:
    return parse_float(text, &value_out->real) && within(row, value_out->real);
  case QUIRE_OPTION_STRING:
    return true;
  case QUIRE_OPTION_ENUM:
    return parse_enum(row, text, &value_out->index);
  }
  return false;
}

/* Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours count 1. */
static int distance(const char *a, const char *b) {
  int rows[3][QUIRE_OPTION_NAME_BYTES_MAX + 1];
  int a_bytes = (int)strlen(a), b_bytes = (int)strlen(b);
  if (a_bytes > QUIRE_OPTION_NAME_BYTES_MAX || b_bytes > QUIRE_OPTION_NAME_BYTES_MAX) {
    return QUIRE_OPTION_NAME_BYTES_MAX;
  }
  for (int j = 0; j <= b_bytes; j++) {
    rows[0][j] = j;
  }
  for (int i = 1; i <= a_bytes; i++) {
    int *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    now[0] = i;
    for (int j = 1; j <= b_bytes; j++) {
      int best = last[j - 1] + (a[i - 1] != b[j - 1]);
      best = last[j] + 1 < best ? last[j] + 1 : best;
      best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best) {
        best = before[j - 2] + 1;
      }
      now[j] = best;
    }
  }
  return rows[a_bytes % 3][b_bytes];
}

/* A word is near when at most a third of it, and never all of it, differs. */
static bool is_near(const char *word, const char *candidate, int *best) {
  int apart = distance(word, candidate);
  int bytes = (int)strlen(word);
  if (apart < *best && apart <= (bytes + 2) / 3 && apart < bytes) {
    *best = apart;
    return true;
  }
  return false;
}

void quire_option_suggest(const struct quire_options *options, const char *name, const char *prefix, const char *hint,
                          char *text_out, size_t text_bytes) {
  const char *nearest = NULL;
  int best = QUIRE_OPTION_NAME_BYTES_MAX;
  for (int i = 0; i < options->count; i++) {
    nearest = is_near(name, options->state[i].row->name, &best) ? options->state[i].row->name : nearest;
  }
  if (nearest) {
    snprintf(text_out, text_bytes, "; did you mean %s%s?", prefix, nearest);
  } else {
    snprintf(text_out, text_bytes, "%s", hint);
  }
}

/* "a, b, c", cut with "..." where it does not fit. */
static void list_values(const char *const *values, char *text_out, size_t text_bytes) {
  size_t used = 0;
  text_out[0] = 0;
  for (int i = 0; values[i]; i++) {
    size_t need = strlen(values[i]) + (i ? 2 : 0);
    if (used + need + 5 >= text_bytes) {
      snprintf(text_out + used, text_bytes - used, ", ...");
      return;
    }
    used += (size_t)snprintf(text_out + used, text_bytes - used, "%s%s", i ? ", " : "", values[i]);
  }
}

void quire_option_bounds(const struct quire_option *row, char *text_out, size_t text_bytes) {
  text_out[0] = 0;
  if (row->type == QUIRE_OPTION_ENUM) {
    char list[OPTION_LIST_BYTES];
    list_values(row->values, list, sizeof list);
    snprintf(text_out, text_bytes, "one of %s", list);
  } else if (row->type == QUIRE_OPTION_FLAG) {
    snprintf(text_out, text_bytes, "true or false");
  } else if (row->type != QUIRE_OPTION_STRING && has_bounds(row)) {
    if (row->max >= OPTION_BOUND_NONE) {
      snprintf(text_out, text_bytes, "at least %.15g", row->min);
    } else {
      snprintf(text_out, text_bytes, "%.15g to %.15g", row->min, row->max);
    }
  }
}

static enum quire_status refuse(const struct quire_option *row, const char *text, const char *where,
                                struct quire_error *error_out) {
  static const char *const kinds[] = {
      [QUIRE_OPTION_INT] = "a whole number",
      [QUIRE_OPTION_BYTES] = "a size such as 512M or 8G",
      [QUIRE_OPTION_FLOAT] = "a number",
  };
  char bounds[OPTION_LIST_BYTES + 16];
  quire_option_bounds(row, bounds, sizeof bounds);
  if (row->type == QUIRE_OPTION_ENUM) {
    const char *nearest = NULL;
    int best = QUIRE_OPTION_NAME_BYTES_MAX;
    for (int i = 0; row->values[i]; i++) {
      nearest = is_near(text, row->values[i], &best) ? row->values[i] : nearest;
    }
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where, "must be %s, not \"%.100s\"%s%s%s", bounds, text,
                           nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
  }
  if (row->type == QUIRE_OPTION_FLAG) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where, "must be %s, not \"%.100s\"", bounds, text);
  }
  return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where, "must be %s%s%s, not \"%.100s\"", kinds[row->type],
                         *bounds && strncmp(bounds, "at", 2) != 0 ? " from " : (*bounds ? ", " : ""), bounds, text);
}

static void write_target(struct quire_option_state *state, const union value *value) {
  void *field = (char *)state->group->target + state->row->offset;
  switch (state->row->type) {
  case QUIRE_OPTION_FLAG:
    *(bool *)field = value->flag;
    break;
  case QUIRE_OPTION_INT:
  case QUIRE_OPTION_BYTES:
    *(int64_t *)field = value->number;
    break;
  case QUIRE_OPTION_FLOAT:
    *(double *)field = value->real;
    break;
  case QUIRE_OPTION_STRING:
    *(const char **)field = state->text;
    break;
  case QUIRE_OPTION_ENUM:
    *(int *)field = value->index;
    break;
  }
}

enum quire_status quire_option_store(struct quire_options *options, struct quire_option_state *state, const char *text,
                                     enum quire_option_source source, const char *where,
                                     struct quire_error *error_out) {
  union value value = {0};
  size_t bytes = strlen(text) + 1;
  if (bytes > QUIRE_OPTION_VALUE_BYTES_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, where, "the value must be shorter than %d bytes, not %zu",
                           QUIRE_OPTION_VALUE_BYTES_MAX, bytes - 1);
  }
  if (!parse(state->row, text, &value)) {
    return refuse(state->row, text, where, error_out);
  }
  if (source < state->source) {
    return QUIRE_OK;
  }
  char *copy = quire_env_zalloc(options->env, bytes, 1);
  if (!copy) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, where, "no memory for a value of %zu bytes", bytes);
  }
  memcpy(copy, text, bytes);
  char *old = state->owned;
  size_t old_bytes = state->owned_bytes;
  state->owned = copy;
  state->owned_bytes = bytes;
  state->text = copy;
  state->source = source;
  snprintf(state->where, sizeof state->where, "%s", where);
  write_target(state, &value);
  if (old) {
    quire_env_free(options->env, old, old_bytes, 1);
  }
  return QUIRE_OK;
}

struct quire_option_state *quire_option_lookup(struct quire_options *options, const char *name, size_t bytes) {
  for (int i = 0; i < options->count; i++) {
    const char *known = options->state[i].row->name;
    size_t at = 0;
    while (at < bytes && known[at] && known[at] == (name[at] == '_' ? '-' : name[at])) {
      at++;
    }
    if (at == bytes && !known[at]) {
      return &options->state[i];
    }
  }
  return NULL;
}

struct quire_option_state *quire_option_lookup_short(struct quire_options *options, char short_name) {
  for (int i = 0; i < options->count; i++) {
    if (short_name && options->state[i].row->short_name == short_name) {
      return &options->state[i];
    }
  }
  return NULL;
}

static bool name_valid(const char *name) {
  if (!name || *name < 'a' || *name > 'z' || strncmp(name, "no-", 3) == 0) {
    return false;
  }
  size_t bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
  return !name[bytes] && bytes <= QUIRE_OPTION_NAME_BYTES_MAX;
}

/* What is wrong with a row, given those already in the table; NULL: nothing. Its default is judged elsewhere. */
static const char *fault_of(struct quire_options *options, const struct quire_option *row) {
  if (!name_valid(row->name)) {
    return "the name must be [a-z][a-z0-9-]*, not begin with no-, and be short";
  }
  if (!row->help) {
    return "there is no help";
  }
  if ((unsigned)row->type > QUIRE_OPTION_ENUM) {
    return "the type is unknown";
  }
  if ((row->type == QUIRE_OPTION_ENUM) != (row->values != NULL) || (row->values && !row->values[0])) {
    return "an enum, and only an enum, lists its values";
  }
  if (quire_option_lookup(options, row->name, strlen(row->name))) {
    return "there are two of this name";
  }
  if (row->short_name && quire_option_lookup_short(options, row->short_name)) {
    return "there are two of this short name";
  }
  return NULL;
}

static enum quire_status add_row(struct quire_options *options, const struct quire_option_group *group,
                                 const struct quire_option *row, struct quire_error *error_out) {
  const char *fault = fault_of(options, row);
  const char *name = row->name ? row->name : "option table";
  if (fault) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, name, "%s", fault);
  }
  struct quire_option_state *state = &options->state[options->count];
  *state = (struct quire_option_state){.row = row, .group = group, .text = row->default_text};
  snprintf(state->where, sizeof state->where, "default");
  union value value = {0};
  if (row->default_text && !parse(row, row->default_text, &value)) {
    return refuse(row, row->default_text, name, error_out);
  }
  if (!row->default_text && row->type == QUIRE_OPTION_FLAG) {
    state->text = "false";
  } else if (!row->default_text && row->type == QUIRE_OPTION_ENUM) {
    state->text = row->values[0];
  } else if (!row->default_text && row->type != QUIRE_OPTION_STRING) {
    state->text = "0";
    if (!parse(row, state->text, &value)) {
      return refuse(row, state->text, name, error_out);
    }
  }
  write_target(state, &value);
  options->count++;
  return QUIRE_OK;
}

static size_t options_bytes(int rows) {
  return sizeof(struct quire_options) + (size_t)rows * sizeof(struct quire_option_state);
}

static int rows_of(const struct quire_option_group *groups, int count) {
  int rows = 0;
  for (int i = 0; i < count; i++) {
    rows += groups[i].count;
  }
  return rows;
}

enum quire_status quire_options_create(const struct quire_env *env, const struct quire_option_group *groups, int count,
                                       struct quire_options **options_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && options_out && count >= 0);
  int rows = rows_of(groups, count);
  if (rows > QUIRE_OPTIONS_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "option table", "there are %d rows; %d are allowed", rows,
                           QUIRE_OPTIONS_MAX);
  }
  /* the room is that of the largest table, so that its size needs no remembering */
  struct quire_options *options = quire_env_zalloc(env, 1, options_bytes(QUIRE_OPTIONS_MAX));
  if (!options) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "option table", "no memory for %d rows", rows);
  }
  options->env = env;
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < groups[i].count; j++) {
      enum quire_status status = add_row(options, &groups[i], &groups[i].rows[j], error_out);
      if (status != QUIRE_OK) {
        quire_options_destroy(options);
        return status;
      }
    }
  }
  *options_out = options;
  return QUIRE_OK;
}

void quire_options_destroy(struct quire_options *options) {
  if (!options) {
    return;
  }
  const struct quire_env *env = options->env;
  for (int i = 0; i < options->count; i++) {
    if (options->state[i].owned) {
      quire_env_free(env, options->state[i].owned, options->state[i].owned_bytes, 1);
    }
  }
  if (options->operands) {
    quire_env_free(env, options->operands, (size_t)options->operands_room, sizeof *options->operands);
  }
  quire_env_free(env, options, 1, options_bytes(QUIRE_OPTIONS_MAX));
}

int quire_options_count(const struct quire_options *options) { return options->count; }

struct quire_option_setting quire_options_at(const struct quire_options *options, int index) {
  QUIRE_ASSERT(index >= 0 && index < options->count);
  const struct quire_option_state *state = &options->state[index];
  return (struct quire_option_setting){
      .row = state->row,
      .group = state->group->title,
      .value = state->text,
      .source = state->source,
      .where = state->where,
  };
}

bool quire_options_find(const struct quire_options *options, const char *name,
                        struct quire_option_setting *setting_out) {
  for (int i = 0; i < options->count; i++) {
    if (strcmp(options->state[i].row->name, name) == 0) {
      *setting_out = quire_options_at(options, i);
      return true;
    }
  }
  return false;
}
