/* The option table's YAML, environment and command line: any bytes, no fault, and what was accepted is within bounds.
 * The first byte chooses the source. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
  bool sane = config->number >= -5 && config->number <= 100 && config->bytes >= 0 && config->real >= -1 &&
              config->real <= 1 && config->choice >= 0 && config->choice < 3;
  if (!sane) {
    abort();
  }
}

static bool is_utf8(const char *text) {
  const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
  while (at < end && quire_utf8_valid(at, end) > 0) {
    at += quire_utf8_valid(at, end);
  }
  return at == end;
}

/* What the dump says sets the same values again, but for text that YAML cannot hold. */
static void round_trip(const struct quire_env *env, struct quire_options *options) {
  struct config config;
  struct quire_option_group group = {"Fuzz", rows, (int)(sizeof rows / sizeof *rows), &config};
  struct quire_options *again = NULL;
  struct quire_strbuf dump;
  quire_strbuf_init(&dump, env);
  quire_options_write_dump(options, &dump);
  if (quire_options_create(env, &group, 1, &again, NULL) == QUIRE_OK) {
    if (quire_options_read_yaml(again, "dump", quire_strbuf_text(&dump), dump.bytes, NULL) != QUIRE_OK) {
      abort();
    }
    for (int i = 0; i < quire_options_count(options); i++) {
      const char *a = quire_options_at(options, i).value, *b = quire_options_at(again, i).value;
      if (a && is_utf8(a) ? !b || strcmp(a, b) != 0 : b != NULL) {
        abort();
      }
    }
    quire_options_destroy(again);
  }
  quire_strbuf_fini(&dump);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct quire_env env = *quire_env_default();
  env.log = quiet;
  struct config config;
  struct quire_option_group group = {"Fuzz", rows, (int)(sizeof rows / sizeof *rows), &config};
  struct quire_options *options = NULL;
  char *text = calloc(1, size + 1);
  if (!text || quire_options_create(&env, &group, 1, &options, NULL) != QUIRE_OK) {
    abort();
  }
  memcpy(text, data, size);
  const char *pieces[ARGUMENTS_MAX + 1];
  struct quire_error error;
  int source = size ? data[0] % 3 : 0;
  const char *rest = size ? text + 1 : text;
  if (source == 0) {
    quire_options_read_yaml(options, "fuzz.yaml", rest, size ? size - 1 : 0, &error);
  } else if (source == 1) {
    split(text + 1, pieces);
    quire_options_read_environment(options, pieces, &error);
  } else {
    int count = split(text + 1, pieces);
    quire_options_read_arguments(options, count, pieces, 2, &error);
  }
  check(&config);
  round_trip(&env, options);
  quire_options_destroy(options);
  free(text);
  return 0;
}
