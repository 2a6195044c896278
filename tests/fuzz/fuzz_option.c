// fuzz: runs=150000
/* The option table's YAML, environment and command line: any bytes are refused in one line or accepted, what was
 * accepted is within bounds, and the dump of it sets the same. The first byte chooses the source. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/option.h"
#include "base/utf8.h"

#define ARGUMENTS_MAX 16

struct config {
  bool flag;
  int64_t number;
  int64_t bytes;
  double real;
  const char *text;
  int choice;
};

static const char *const choices[] = {"local", "gather", "peer", NULL};

static const struct quire_option rows[] = {
    {.name = "flag", .short_name = 'f', .offset = offsetof(struct config, flag), .help = ""},
    {.name = "number",
     .short_name = 'n',
     .type = QUIRE_OPTION_INT,
     .offset = offsetof(struct config, number),
     .min = -5,
     .max = 100,
     .help = ""},
    {.name = "bytes", .type = QUIRE_OPTION_BYTES, .offset = offsetof(struct config, bytes), .help = ""},
    {.name = "real-one",
     .type = QUIRE_OPTION_FLOAT,
     .offset = offsetof(struct config, real),
     .min = -1,
     .max = 1,
     .help = ""},
    {.name = "text", .type = QUIRE_OPTION_STRING, .offset = offsetof(struct config, text), .help = ""},
    {.name = "choice",
     .type = QUIRE_OPTION_ENUM,
     .offset = offsetof(struct config, choice),
     .values = choices,
     .help = ""},
};

static void quiet(void *context, enum quire_log_level level, const char *line) {
  (void)context;
  (void)level;
  (void)line;
}

/* Cuts the text at newlines, in place; answers the number of pieces, which end with a NULL. */
static int split(char *text, const char **pieces) {
  int count = 0;
  for (char *at = text; at && count < ARGUMENTS_MAX; count++) {
    pieces[count] = at;
    at = strchr(at, '\n');
    if (at) {
      *at++ = 0;
    }
  }
  pieces[count] = NULL;
  return count;
}

static void check(const struct config *config) {
  QUIRE_ASSERT(config->number >= -5 && config->number <= 100 && config->bytes >= 0 && config->real >= -1 &&
               config->real <= 1 && config->choice >= 0 && config->choice < 3);
  QUIRE_ASSERT(!config->text || strlen(config->text) < QUIRE_OPTION_VALUE_BYTES_MAX);
}

static bool is_utf8(const char *text) {
  const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
  while (at < end && quire_utf8_valid(at, end) > 0) {
    at += quire_utf8_valid(at, end);
  }
  return at == end;
}

/* What the dump says sets the same values again, but for text that YAML cannot hold. */
static void round_trip(const struct quire_env *env, struct quire_options *options, const struct config *before) {
  struct config config;
  struct quire_option_group group = {"Fuzz", rows, (int)(sizeof rows / sizeof *rows), &config};
  struct quire_options *again = NULL;
  struct quire_strbuf dump;
  quire_strbuf_init(&dump, env);
  quire_options_write_dump(options, &dump);
  QUIRE_ASSERT(is_utf8(quire_strbuf_text(&dump)) && strlen(quire_strbuf_text(&dump)) == dump.bytes);
  QUIRE_ASSERT(quire_options_create(env, &group, 1, &again, NULL) == QUIRE_OK);
  QUIRE_ASSERT(quire_options_read_yaml(again, "dump", quire_strbuf_text(&dump), dump.bytes, NULL) == QUIRE_OK);
  int lines = 0;
  for (size_t i = 0; i < dump.bytes; i++) {
    lines += dump.data[i] == '\n';
  }
  QUIRE_ASSERT(lines == quire_options_count(options));
  for (int i = 0; i < quire_options_count(options); i++) {
    const char *a = quire_options_at(options, i).value, *b = quire_options_at(again, i).value;
    QUIRE_ASSERT(a && is_utf8(a) ? b && strcmp(a, b) == 0 : b == NULL);
  }
  QUIRE_ASSERT(config.flag == before->flag && config.number == before->number && config.bytes == before->bytes &&
               memcmp(&config.real, &before->real, sizeof config.real) == 0 && config.choice == before->choice);
  quire_options_destroy(again);
  quire_strbuf_fini(&dump);
}

/* A read ends well or says why, in one line. */
static void check_read(enum quire_status status, const struct quire_error *error) {
  QUIRE_ASSERT(status == QUIRE_OK || status == QUIRE_ERR_ARGUMENT);
  QUIRE_ASSERT(status == QUIRE_OK || (error->text[0] && !strchr(error->text, '\n') && !strchr(error->where, '\n')));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct quire_env env = *quire_env_default();
  env.log = quiet;
  struct config config;
  struct quire_option_group group = {"Fuzz", rows, (int)(sizeof rows / sizeof *rows), &config};
  struct quire_options *options = NULL;
  char *text = calloc(1, size + 1);
  QUIRE_ASSERT(text && quire_options_create(&env, &group, 1, &options, NULL) == QUIRE_OK);
  if (size > 0) {
    memcpy(text, data, size);
  }
  const char *pieces[ARGUMENTS_MAX + 1];
  struct quire_error error = {0};
  enum quire_status status;
  int source = size ? data[0] % 3 : 0;
  const char *rest = size ? text + 1 : text;
  if (source == 0) {
    status = quire_options_read_yaml(options, "fuzz.yaml", rest, size ? size - 1 : 0, &error);
  } else if (source == 1) {
    split(text + 1, pieces);
    status = quire_options_read_environment(options, pieces, &error);
  } else {
    int count = split(text + 1, pieces);
    status = quire_options_read_arguments(options, count, pieces, 2, &error);
    QUIRE_ASSERT(quire_options_operand_count(options) <= 2);
  }
  check_read(status, &error);
  check(&config);
  round_trip(&env, options, &config);
  quire_options_destroy(options);
  free(text);
  return 0;
}
