#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/option.h"
#include "support/fail_env.h"

struct config {
  bool eager;
  bool warm;
  int64_t port;
  int64_t memory;
  double ratio;
  const char *host;
  const char *model;
  int view;
  bool show;
};

static const char *const views[] = {"local", "gather", "peer", NULL};

static const struct quire_option server_rows[] = {
    {.name = "port",
     .short_name = 'p',
     .type = QUIRE_OPTION_INT,
     .offset = offsetof(struct config, port),
     .default_text = "8000",
     .min = 1,
     .max = 65535,
     .help = "TCP port to listen on"},
    {.name = "host",
     .type = QUIRE_OPTION_STRING,
     .offset = offsetof(struct config, host),
     .default_text = "127.0.0.1",
     .help =
         "address to listen on; anything but loopback needs an API key, and this help is long enough to be wrapped"},
    {.name = "model", .type = QUIRE_OPTION_STRING, .offset = offsetof(struct config, model), .help = "folder"},
};

static const struct quire_option cache_rows[] = {
    {.name = "eager",
     .short_name = 'e',
     .type = QUIRE_OPTION_FLAG,
     .offset = offsetof(struct config, eager),
     .help = "load at once"},
    {.name = "warm-up",
     .type = QUIRE_OPTION_FLAG,
     .offset = offsetof(struct config, warm),
     .default_text = "true",
     .help = "run a step before serving"},
    {.name = "host-memory",
     .type = QUIRE_OPTION_BYTES,
     .offset = offsetof(struct config, memory),
     .default_text = "1G",
     .min = 0,
     .max = 1e18,
     .help = "host tier"},
    {.name = "ratio",
     .type = QUIRE_OPTION_FLOAT,
     .offset = offsetof(struct config, ratio),
     .default_text = "0.5",
     .min = 0,
     .max = 1,
     .help = "share"},
    {.name = "kv-view",
     .short_name = 'v',
     .type = QUIRE_OPTION_ENUM,
     .offset = offsetof(struct config, view),
     .default_text = "gather",
     .values = views,
     .help = "how prefill reads others' pages"},
    {.name = "show",
     .type = QUIRE_OPTION_FLAG,
     .offset = offsetof(struct config, show),
     .help = "print and end",
     .deed = true},
};

struct fixture {
  struct fail_env fail;
  struct config config;
  struct quire_option_group groups[2];
  struct quire_options *options;
  struct quire_error error;
};

static int setup(void **state) {
  struct fixture *fixture = calloc(1, sizeof *fixture);
  fail_env_init(&fixture->fail);
  fixture->groups[0] = (struct quire_option_group){"Server", server_rows, 3, &fixture->config};
  fixture->groups[1] = (struct quire_option_group){"Cache", cache_rows, 6, &fixture->config};
  memset(&fixture->config, 0xA5, sizeof fixture->config);
  *state = fixture;
  return quire_options_create(&fixture->fail.env, fixture->groups, 2, &fixture->options, &fixture->error);
}

static int teardown(void **state) {
  struct fixture *fixture = *state;
  quire_options_destroy(fixture->options);
  fail_env_fini(&fixture->fail);
  free(fixture);
  return 0;
}

static enum quire_status arguments(struct fixture *fixture, int operands_max, ...) {
  const char *argv[16];
  int argc = 0;
  va_list list;
  va_start(list, operands_max);
  for (const char *text; (text = va_arg(list, const char *)) != NULL;) {
    argv[argc++] = text;
  }
  va_end(list);
  return quire_options_read_arguments(fixture->options, argc, argv, operands_max, &fixture->error);
}

static void expect_error(struct fixture *fixture, enum quire_status status, const char *where, const char *text) {
  assert_int_equal(status, QUIRE_ERR_ARGUMENT);
  assert_string_equal(fixture->error.where, where);
  assert_string_equal(fixture->error.text, text);
}

static void defaults(void **state) {
  struct fixture *fixture = *state;
  struct config *config = &fixture->config;
  assert_int_equal(config->port, 8000);
  assert_string_equal(config->host, "127.0.0.1");
  assert_null(config->model);
  assert_false(config->eager);
  assert_true(config->warm);
  assert_true(config->memory == (int64_t)1 << 30);
  assert_true(config->ratio == 0.5);
  assert_int_equal(config->view, 1);
  assert_int_equal(quire_options_count(fixture->options), 9);
  struct quire_option_setting setting = quire_options_at(fixture->options, 0);
  assert_string_equal(setting.row->name, "port");
  assert_string_equal(setting.group, "Server");
  assert_string_equal(setting.value, "8000");
  assert_string_equal(setting.where, "default");
  assert_int_equal(setting.source, QUIRE_OPTION_FROM_DEFAULT);
  assert_true(quire_options_find(fixture->options, "model", &setting));
  assert_null(setting.value);
  assert_false(quire_options_find(fixture->options, "mode", &setting));
}

static void command_line_forms(void **state) {
  struct fixture *fixture = *state;
  struct config *config = &fixture->config;
  assert_int_equal(arguments(fixture, 3, "--port", "1", "-p2", "-p", "3", "in", "--host=x=y", "-e", "--no-warm-up",
                             "--kv_view=peer", "-", "--", "--port", NULL),
                   QUIRE_OK);
  assert_int_equal(config->port, 3);
  assert_string_equal(config->host, "x=y");
  assert_true(config->eager);
  assert_false(config->warm);
  assert_int_equal(config->view, 2);
  assert_int_equal(quire_options_operand_count(fixture->options), 3);
  assert_string_equal(quire_options_operand(fixture->options, 0), "in");
  assert_string_equal(quire_options_operand(fixture->options, 1), "-");
  assert_string_equal(quire_options_operand(fixture->options, 2), "--port");
  struct quire_option_setting setting;
  assert_true(quire_options_find(fixture->options, "port", &setting));
  assert_string_equal(setting.where, "--port");
  assert_string_equal(setting.value, "3");
  assert_int_equal(setting.source, QUIRE_OPTION_FROM_COMMAND_LINE);
  assert_int_equal(arguments(fixture, 0, NULL), QUIRE_ERR_STATE);
}

static void values(void **state) {
  struct fixture *fixture = *state;
  static const struct {
    const char *name, *text;
    int64_t answer; /* -1: refused */
  } rows[] = {
      {"host-memory", "0", 0},
      {"host-memory", "1536", 1536},
      {"host-memory", "1k", 1024},
      {"host-memory", "3KiB", 3072},
      {"host-memory", "1.5G", (int64_t)3 << 29},
      {"host-memory", "0.25T", (int64_t)1 << 38},
      {"host-memory", "0.1K", 102},
      {"host-memory", "", -1},
      {"host-memory", "G", -1},
      {"host-memory", "-1", -1},
      {"host-memory", "1.5", -1},
      {"host-memory", "1.G", -1},
      {"host-memory", ".5G", -1},
      {"host-memory", "1.1234567G", -1},
      {"host-memory", "1B", -1},
      {"host-memory", "1KB", -1},
      {"host-memory", " 1K", -1},
      {"host-memory", "1K ", -1},
      {"host-memory", "16777216T", -1},
      {"host-memory", "99999999999999999999", -1},
      {"port", "1", 1},
      {"port", "+65535", 65535},
      {"port", "65536", -1},
      {"port", "0", -1},
      {"port", "-1", -1},
      {"port", " 1", -1},
      {"port", "0x10", -1},
      {"port", "1e3", -1},
      {"port", "1 ", -1},
      {"port", "99999999999999999999", -1},
      {"port", "", -1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    fixture->config.memory = fixture->config.port = -7;
    enum quire_status status = quire_options_set(fixture->options, rows[i].name, rows[i].text, &fixture->error);
    int64_t got = *rows[i].name == 'p' ? fixture->config.port : fixture->config.memory;
    if (rows[i].answer < 0) {
      assert_int_equal(status, QUIRE_ERR_ARGUMENT);
      assert_int_equal(got, -7);
    } else {
      assert_int_equal(status, QUIRE_OK);
      assert_true(got == rows[i].answer);
    }
  }
  static const char *const bad_floats[] = {"", "nan", "inf", "1e999", " 0.5", "0.5 ", "0,5", "-0.1", "1.01", "x"};
  for (size_t i = 0; i < sizeof bad_floats / sizeof *bad_floats; i++) {
    assert_int_equal(quire_options_set(fixture->options, "ratio", bad_floats[i], NULL), QUIRE_ERR_ARGUMENT);
  }
  assert_int_equal(quire_options_set(fixture->options, "ratio", "2.5e-1", NULL), QUIRE_OK);
  assert_true(fixture->config.ratio == 0.25);
  static const char *const flags[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
  for (int i = 0; i < 8; i++) {
    assert_int_equal(quire_options_set(fixture->options, "eager", flags[i], NULL), QUIRE_OK);
    assert_int_equal(fixture->config.eager, i % 2);
  }
}

static void messages(void **state) {
  struct fixture *fixture = *state;
  struct quire_options *options = fixture->options;
  struct quire_error *error = &fixture->error;
  expect_error(fixture, quire_options_set(options, "port", "99999", error), "--port",
               "must be a whole number from 1 to 65535, not \"99999\"");
  expect_error(fixture, quire_options_set(options, "ratio", "2", error), "--ratio",
               "must be a number from 0 to 1, not \"2\"");
  expect_error(fixture, quire_options_set(options, "host-memory", "lots", error), "--host-memory",
               "must be a size such as 512M or 8G, at least 0, not \"lots\"");
  expect_error(fixture, quire_options_set(options, "kv-view", "pere", error), "--kv-view",
               "must be one of local, gather, peer, not \"pere\"; did you mean peer?");
  expect_error(fixture, quire_options_set(options, "kv-view", "nothing", error), "--kv-view",
               "must be one of local, gather, peer, not \"nothing\"");
  expect_error(fixture, quire_options_set(options, "eager", "perhaps", error), "--eager",
               "must be true or false, not \"perhaps\"");
  char *long_text = calloc(1, QUIRE_OPTION_VALUE_BYTES_MAX + 1);
  memset(long_text, 'x', QUIRE_OPTION_VALUE_BYTES_MAX);
  expect_error(fixture, quire_options_set(options, "host", long_text, error), "--host",
               "the value must be shorter than 4096 bytes, not 4096");
  free(long_text);
}

/* Each bad command line with its message. */
static void command_line_errors(void **state) {
  (void)state;
  static const struct {
    const char *argv[4];
    const char *where, *text;
  } rows[] = {
      {{"--prot", "1"}, "--prot", "unknown option; did you mean --port?"},
      {{"--prot=1"}, "--prot", "unknown option; did you mean --port?"},
      {{"--zebra-crossing"}, "--zebra-crossing", "unknown option; --help lists them"},
      {{"-x"}, "-x", "unknown option; --help lists them"},
      {{"-ep"}, "-ep", "unknown option; --help lists them"},
      {{"--no-port"}, "--no-port", "unknown option; did you mean --port?"},
      {{"--no-eager=1"}, "--no-eager", "unknown option; did you mean --eager?"},
      {{"--port"}, "--port", "a value must follow"},
      {{"--host", "--port", "1"}, "--host", "a value must follow, not --port; to mean just that, write --host=--port"},
      {{"stray"}, "stray", "unexpected argument: none is accepted without --"},
      {{"--=1"}, "--", "unknown option; --help lists them"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    void *inner = NULL;
    assert_int_equal(setup(&inner), 0);
    struct fixture *fixture = inner;
    int argc = 0;
    while (argc < 4 && rows[i].argv[argc]) {
      argc++;
    }
    expect_error(fixture, quire_options_read_arguments(fixture->options, argc, rows[i].argv, 0, &fixture->error),
                 rows[i].where, rows[i].text);
    teardown(&inner);
  }
}

static void one_operand_too_many(void **state) {
  struct fixture *fixture = *state;
  expect_error(fixture, arguments(fixture, 1, "a", "b", NULL), "b",
               "one argument too many: at most 1 without -- are accepted");
}

static void sources_rank(void **state) {
  struct fixture *fixture = *state;
  struct quire_options *options = fixture->options;
  static const char *const environment[] = {"HOME=/x", "QUIRE_PORT=2", "QUIRE_KV_VIEW=peer", "QUIRE_HOST=", NULL};
  static const char yaml[] = "port: 1\nkv_view: local\nratio: 0.75 # a comment\nmodel: \"a b\"\n";
  /* the strongest first: the order of the calls does not matter */
  assert_int_equal(arguments(fixture, 0, "--port=3", NULL), QUIRE_OK);
  assert_int_equal(quire_options_read_environment(options, environment, &fixture->error), QUIRE_OK);
  assert_int_equal(quire_options_read_yaml(options, "dir/quire.yaml", yaml, strlen(yaml), &fixture->error), QUIRE_OK);
  struct config *config = &fixture->config;
  assert_int_equal(config->port, 3);
  assert_int_equal(config->view, 2);
  assert_true(config->ratio == 0.75);
  assert_string_equal(config->model, "a b");
  assert_string_equal(config->host, "");
  struct quire_option_setting setting;
  quire_options_find(options, "kv-view", &setting);
  assert_string_equal(setting.where, "QUIRE_KV_VIEW");
  quire_options_find(options, "model", &setting);
  assert_string_equal(setting.where, "dir/quire.yaml:4: model");
  /* a hidden value is checked all the same */
  static const char bad[] = "port: 0\n";
  expect_error(fixture, quire_options_read_yaml(options, "f", bad, strlen(bad), &fixture->error), "f:1: port",
               "must be a whole number from 1 to 65535, not \"0\"");
  assert_int_equal(fixture->fail.log_lines[QUIRE_LOG_WARN], 0);
}

static void environment_of_others(void **state) {
  struct fixture *fixture = *state;
  static const char *const environment[] = {
      "QUIRE_PROT=2", "QUIRE_=1", "QUIRE_TEST_SEED=3", "QUIRE_LIBRARY=x", "QUIRE_PORT", "QUIRE_RATIO=x", NULL};
  expect_error(fixture, quire_options_read_environment(fixture->options, environment, &fixture->error), "QUIRE_RATIO",
               "must be a number from 0 to 1, not \"x\"");
  assert_string_equal(fixture->fail.log,
                      "warn: environment variable QUIRE_PROT sets no option of this command; did you mean the "
                      "variable of --port?\n"
                      "warn: environment variable QUIRE_ sets no option of this command\n");
}

static void own_environment(void **state) {
  struct fixture *fixture = *state;
  setenv("QUIRE_PORT", "77", 1);
  assert_int_equal(quire_options_read_environment(fixture->options, NULL, &fixture->error), QUIRE_OK);
  unsetenv("QUIRE_PORT");
  assert_int_equal(fixture->config.port, 77);
}

static void yaml_errors(void **state) {
  struct fixture *fixture = *state;
  static const struct {
    const char *text, *where, *message;
  } rows[] = {
      {"port: 1\nprot: 2\n", "f:2", "unknown option \"prot\"; did you mean port?"},
      {"port: 1\nport: 2\n", "f:2", "port is set twice"},
      {"port: 1\nshow: true\n", "f:2", "show is for the command line; a file holds settings only"},
      {"show: false\n", "f:1", "show is for the command line; a file holds settings only"},
      {"kv-view: local\nkv_view: peer\n", "f:2", "kv-view is set twice"},
      {"port: [1]\n", "f:1", "only \"name: value\" lines are accepted: no lists, no nesting, no aliases"},
      {"port:\n  min: 1\n", "f:2", "only \"name: value\" lines are accepted: no lists, no nesting, no aliases"},
      {"port: &a 1\n", "f:1", "anchors and tags are not accepted"},
      {"port: !!int 1\n", "f:1", "anchors and tags are not accepted"},
      {"host: a\nport:\n", "f:2", "there is no value; remove the line to keep the default"},
      {"port: ~\n", "f:1", "there is no value; remove the line to keep the default"},
      {"- port\n", "f:1", "the file must be \"name: value\" lines"},
      {"port\n", "f:1", "the file must be \"name: value\" lines"},
      {"port: 1\n---\nport: 2\n", "f:2", "there is a second document; one is accepted"},
      {"host: \"a\\0b\"\n", "f:1", "there is a NUL in it"},
      {"[a]: 1\n", "f:1", "only \"name: value\" lines are accepted: no lists, no nesting, no aliases"},
      {"port: 1\n  host: x\n", "f:1: port", "must be a whole number from 1 to 65535, not \"1 host\""},
      {"host: a: b\n", "f:1", "not YAML: mapping values are not allowed in this context"},
      {"host: \"x\n", "f:2", "not YAML: found unexpected end of stream"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    expect_error(fixture,
                 quire_options_read_yaml(fixture->options, "f", rows[i].text, strlen(rows[i].text), &fixture->error),
                 rows[i].where, rows[i].message);
  }
  assert_int_equal(quire_options_read_yaml(fixture->options, "f", "\xff\xfe\xff", 3, &fixture->error),
                   QUIRE_ERR_ARGUMENT);
  static const char *const fine[] = {"", "# nothing\n", "---\n", "{}", "{port: 5}", "port: \"6\"\n"};
  for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
    assert_int_equal(quire_options_read_yaml(fixture->options, "f", fine[i], strlen(fine[i]), NULL), QUIRE_OK);
  }
  assert_int_equal(fixture->config.port, 6);
  /* a path that is longer than a place in a message keeps its end and the line */
  char name[200];
  memset(name, 'd', sizeof name - 1);
  memcpy(name + 150, "/serve.yaml", 12);
  expect_error(fixture, quire_options_read_yaml(fixture->options, name, "\nx: 1\n", 6, &fixture->error), "serve.yaml:2",
               "unknown option \"x\"; --help lists them");
}

static void files(void **state) {
  struct fixture *fixture = *state;
  char path[] = "/tmp/quire-option-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, "port: 4321\n", 11), 11);
  assert_int_equal(quire_options_read_file(fixture->options, path, &fixture->error), QUIRE_OK);
  assert_int_equal(fixture->config.port, 4321);
  assert_int_equal(ftruncate(fd, QUIRE_OPTION_FILE_BYTES_MAX + 1), 0);
  assert_int_equal(quire_options_read_file(fixture->options, path, &fixture->error), QUIRE_ERR_ARGUMENT);
  close(fd);
  unlink(path);
  assert_int_equal(quire_options_read_file(fixture->options, path, &fixture->error), QUIRE_ERR_NOT_FOUND);
  assert_string_equal(fixture->error.where, path);
}

static void help(void **state) {
  struct fixture *fixture = *state;
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fixture->fail.env);
  quire_options_write_help(fixture->options, &buffer);
  assert_string_equal(
      quire_strbuf_text(&buffer),
      "Server\n"
      "  -p, --port N                TCP port to listen on [8000; 1 to 65535]\n"
      "      --host TEXT             address to listen on; anything but loopback needs an API key, and this\n"
      "                              help is long enough to be wrapped [127.0.0.1]\n"
      "      --model TEXT            folder\n"
      "\n"
      "Cache\n"
      "  -e, --[no-]eager            load at once\n"
      "      --[no-]warm-up          run a step before serving [true]\n"
      "      --host-memory SIZE      host tier [1G; at least 0]\n"
      "      --ratio X               share [0.5; 0 to 1]\n"
      "  -v, --kv-view NAME          how prefill reads others' pages [gather; one of local, gather, peer]\n"
      "      --[no-]show             print and end\n");
  quire_strbuf_fini(&buffer);
}

static void manual(void **state) {
  struct fixture *fixture = *state;
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fixture->fail.env);
  quire_options_write_man(fixture->options, &buffer);
  const char *text = quire_strbuf_text(&buffer);
  assert_non_null(strstr(text, ".SS \"Server\"\n.TP\n\\fB\\-p\\fR, \\fB\\-\\-port\\fR \\fIN\\fR\n"
                               "TCP port to listen on [8000; 1 to 65535]\n"));
  assert_non_null(strstr(text, ".TP\n\\fB\\-\\-\\fR[\\fBno\\-\\fR]\\fBwarm\\-up\\fR\\fI\\fR\nrun a step"));
  assert_non_null(strstr(text, ".TP\n\\fB\\-\\-show\\fR\\fI\\fR\nprint and end\n"));
  quire_strbuf_fini(&buffer);
  quire_strbuf_init(&buffer, &fixture->fail.env);
  quire_option_add_roff(&buffer, ".a\n'b\n\\n c.d -e");
  assert_string_equal(quire_strbuf_text(&buffer), "\\&.a\n\\&'b\n\\en c.d \\-e");
  quire_strbuf_fini(&buffer);
}

static void words(void **state) {
  struct fixture *fixture = *state;
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fixture->fail.env);
  quire_options_write_words(fixture->options, &buffer);
  assert_string_equal(quire_strbuf_text(&buffer),
                      "--port\tTCP port to listen on\n"
                      "--host\taddress to listen on; anything but loopback needs an API key, and this help is long "
                      "enough to be wrapped\n"
                      "--model\tfolder\n"
                      "--eager\tload at once\n--no-eager\tnot --eager\n"
                      "--warm-up\trun a step before serving\n--no-warm-up\tnot --warm-up\n"
                      "--host-memory\thost tier\n--ratio\tshare\n"
                      "--kv-view local gather peer\thow prefill reads others'\"'\"' pages\n"
                      "--show\tprint and end\n");
  quire_strbuf_fini(&buffer);
}

/* The dump is a YAML file that sets the same values. */
static void dump_round_trip(void **state) {
  struct fixture *fixture = *state;
  assert_int_equal(arguments(fixture, 0, "--host=a \"b\"\\\x01: #c", "--port=9", "-e", "--ratio=.125", "--show", NULL),
                   QUIRE_OK);
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fixture->fail.env);
  quire_options_write_dump(fixture->options, &buffer);
  assert_string_equal(quire_strbuf_text(&buffer), "port: 9  # --port\n"
                                                  "host: \"a \\\"b\\\"\\\\\\x01: #c\"  # --host\n"
                                                  "# model: not set\n"
                                                  "eager: true  # --eager\n"
                                                  "warm-up: true  # default\n"
                                                  "host-memory: 1G  # default\n"
                                                  "ratio: .125  # --ratio\n"
                                                  "kv-view: gather  # default\n"
                                                  "# show: true  # --show\n");
  void *inner = NULL;
  assert_int_equal(setup(&inner), 0);
  struct fixture *second = inner;
  assert_int_equal(quire_options_read_yaml(second->options, "dump", buffer.data, buffer.bytes, &second->error),
                   QUIRE_OK);
  for (int i = 0; i < quire_options_count(second->options); i++) {
    const char *a = quire_options_at(fixture->options, i).value, *b = quire_options_at(second->options, i).value;
    assert_true(quire_options_at(second->options, i).row->deed || (!a && !b) || strcmp(a, b) == 0);
  }
  teardown(&inner);
  quire_strbuf_fini(&buffer);
}

/* NEL, line separator, marks of byte order, characters of each length, a newline in a file's name; and Latin-1. */
static void dump_of_any_text(void **state) {
  struct fixture *fixture = *state;
  const char *text =
      "a\xC2\x85\xC2\x9F\xC2\xA0\xE2\x80\xA8\xEF\xBB\xBF\xEF\xBF\xBF\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80\t\x7F";
  const char *yaml = "model: \"a\\Nb\"\n";
  assert_int_equal(quire_options_read_yaml(fixture->options, "a\nb\xC2\x85: c", yaml, strlen(yaml), &fixture->error),
                   QUIRE_OK);
  assert_int_equal(arguments(fixture, 0, "--host", text, NULL), QUIRE_OK);
  struct quire_strbuf buffer;
  quire_strbuf_init(&buffer, &fixture->fail.env);
  quire_options_write_dump(fixture->options, &buffer);
  const char *dump = quire_strbuf_text(&buffer);
  assert_non_null(strstr(
      dump, "\nhost: \"a\\x85\\x9F\xC2\xA0\\u2028\\uFEFF\\uFFFF\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80\\x09\\x7F\"  #"));
  assert_non_null(strstr(dump, "\nmodel: \"a\\x85b\"  # a\\x0Ab\\x85: c:1: model\n"));
  void *inner = NULL;
  assert_int_equal(setup(&inner), 0);
  struct fixture *second = inner;
  assert_int_equal(quire_options_read_yaml(second->options, "dump", dump, buffer.bytes, &second->error), QUIRE_OK);
  assert_string_equal(second->config.host, text);
  assert_string_equal(second->config.model, "a\xC2\x85"
                                            "b");
  quire_strbuf_clear(&buffer);
  assert_int_equal(quire_options_set(second->options, "host", "gr\xFC\xDF\xE2\x82", &second->error), QUIRE_OK);
  quire_options_write_dump(second->options, &buffer);
  assert_non_null(strstr(quire_strbuf_text(&buffer),
                         "\n# host: \"gr\\xFC\\xDF\\xE2\\x82\"  # --host, not UTF-8, which YAML cannot hold\n"));
  teardown(&inner);
  quire_strbuf_fini(&buffer);
}

static void a_point_is_a_point(void **state) {
  struct fixture *fixture = *state;
  /* where the locale is not installed the check is the same without it */
  setlocale(LC_ALL, "de_DE.UTF-8");
  assert_int_equal(quire_options_set(fixture->options, "ratio", "0.25", NULL), QUIRE_OK);
  setlocale(LC_ALL, "C");
  assert_true(fixture->config.ratio == 0.25);
}

static void expect_bad_table(struct quire_option row, const char *text) {
  struct config config;
  struct quire_option rows[] = {server_rows[0], row};
  struct quire_option_group group = {"x", rows, 2, &config};
  struct quire_options *options = NULL;
  struct quire_error error;
  struct fail_env fail;
  fail_env_init(&fail);
  assert_int_equal(quire_options_create(&fail.env, &group, 1, &options, &error), QUIRE_ERR_ARGUMENT);
  assert_string_equal(error.text, text);
  assert_null(options);
  fail_env_fini(&fail);
}

static void bad_tables(void **state) {
  (void)state;
  static const char *const none[] = {NULL};
  static const char name_rule[] = "the name must be [a-z][a-z0-9-]*, not begin with no-, and be short";
  static const char enum_rule[] = "an enum, and only an enum, lists its values";
  expect_bad_table((struct quire_option){.name = "Port", .help = ""}, name_rule);
  expect_bad_table((struct quire_option){.name = "no-port", .help = ""}, name_rule);
  expect_bad_table((struct quire_option){.name = "po_rt", .help = ""}, name_rule);
  expect_bad_table((struct quire_option){.name = NULL, .help = ""}, name_rule);
  expect_bad_table((struct quire_option){.name = "a"}, "there is no help");
  expect_bad_table((struct quire_option){.name = "a", .help = "", .type = (enum quire_option_type)99},
                   "the type is unknown");
  expect_bad_table((struct quire_option){.name = "a", .help = "", .type = QUIRE_OPTION_ENUM}, enum_rule);
  expect_bad_table((struct quire_option){.name = "a", .help = "", .type = QUIRE_OPTION_ENUM, .values = none},
                   enum_rule);
  expect_bad_table((struct quire_option){.name = "a", .help = "", .values = views}, enum_rule);
  expect_bad_table((struct quire_option){.name = "port", .help = ""}, "there are two of this name");
  expect_bad_table((struct quire_option){.name = "a", .help = "", .short_name = 'p'},
                   "there are two of this short name");
  expect_bad_table((struct quire_option){.name = "a", .help = "", .type = QUIRE_OPTION_INT, .min = 1, .max = 3},
                   "must be a whole number from 1 to 3, not \"0\"");
  expect_bad_table((struct quire_option){.name = "a", .help = "", .type = QUIRE_OPTION_INT, .default_text = "x"},
                   "must be a whole number, not \"x\"");
}

/* Everything once, with each allocation refused. libyaml's memory is its own and not refused here. */
static enum quire_status life(void *context, const struct quire_env *env) {
  (void)context;
  static const char *const argv[] = {"--port=3", "operand", "--host", "there"};
  static const char *const environment[] = {"QUIRE_HOST=here", NULL};
  static const char yaml[] = "host: yaml\nmodel: m\n";
  struct config config;
  struct quire_option_group groups[] = {{"Server", server_rows, 3, &config}, {"Cache", cache_rows, 6, &config}};
  struct quire_options *options = NULL;
  struct quire_strbuf buffer;
  enum quire_status status = quire_options_create(env, groups, 2, &options, NULL);
  if (status != QUIRE_OK) {
    return status;
  }
  status = quire_options_read_yaml(options, "y", yaml, strlen(yaml), NULL);
  if (status == QUIRE_OK) {
    status = quire_options_read_environment(options, environment, NULL);
  }
  if (status == QUIRE_OK) {
    status = quire_options_read_arguments(options, 4, argv, 1, NULL);
  }
  assert_non_null(config.host); /* one of the three, whole, whatever was refused */
  quire_strbuf_init(&buffer, env);
  quire_options_write_dump(options, &buffer);
  if (status == QUIRE_OK && quire_strbuf_failed(&buffer)) {
    status = QUIRE_ERR_MEMORY;
  }
  quire_strbuf_fini(&buffer);
  quire_options_destroy(options);
  return status;
}

static void out_of_memory(void **state) {
  (void)state;
  assert_in_range(fail_env_sweep(life, NULL), 8, 12);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(defaults, setup, teardown),
      cmocka_unit_test_setup_teardown(command_line_forms, setup, teardown),
      cmocka_unit_test_setup_teardown(values, setup, teardown),
      cmocka_unit_test_setup_teardown(messages, setup, teardown),
      cmocka_unit_test(command_line_errors),
      cmocka_unit_test_setup_teardown(one_operand_too_many, setup, teardown),
      cmocka_unit_test_setup_teardown(sources_rank, setup, teardown),
      cmocka_unit_test_setup_teardown(environment_of_others, setup, teardown),
      cmocka_unit_test_setup_teardown(own_environment, setup, teardown),
      cmocka_unit_test_setup_teardown(yaml_errors, setup, teardown),
      cmocka_unit_test_setup_teardown(files, setup, teardown),
      cmocka_unit_test_setup_teardown(help, setup, teardown),
      cmocka_unit_test_setup_teardown(manual, setup, teardown),
      cmocka_unit_test_setup_teardown(words, setup, teardown),
      cmocka_unit_test_setup_teardown(dump_round_trip, setup, teardown),
      cmocka_unit_test_setup_teardown(dump_of_any_text, setup, teardown),
      cmocka_unit_test_setup_teardown(a_point_is_a_point, setup, teardown),
      cmocka_unit_test(bad_tables),
      cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
