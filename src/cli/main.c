#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "quire/quire.h"

struct command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
};

static const struct command commands[] = {
    {"run", cli_run, "answer prompts with ranks that share one KV cache"},
    {"serve", cli_serve, "serve a model over HTTP, to clients of OpenAI, SGLang and vLLM"},
    {"info", cli_info, "model, parts table, memory plan, support table, machine"},
    {"check", cli_check, "self-tests of this machine and a model"},
    {"eval", cli_eval, "held-out loss, recall by distance, draft agreement"},
    {"bench", cli_bench, "measure against ceilings of the same run"},
    {"replay", cli_replay, "hit rates of a published trace through pool and tree"},
};

static void usage(FILE *out) {
  fprintf(out, "usage: quire COMMAND [options]\n\n");
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
  }
  fprintf(out, "  %-8s %s\n\nquire COMMAND --help lists the options of a command.\n", "version", "print the version");
}

/* The exit code, or a failure when what was printed did not arrive. */
static int written(int code) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) {
    return code;
  }
  fprintf(stderr, "quire: standard output: cannot be written; is the disk full, or the reader gone?\n");
  return code != CLI_EXIT_OK ? code : CLI_EXIT_USAGE;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    usage(stderr);
    return CLI_EXIT_USAGE;
  }
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    if (strcmp(argv[1], commands[i].name) == 0) {
      return written(commands[i].run(argc - 2, argv + 2));
    }
  }
  if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
    printf("quire %s\n", quire_version());
    return written(CLI_EXIT_OK);
  }
  if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    usage(stdout);
    return written(CLI_EXIT_OK);
  }
  fprintf(stderr, "quire: unknown command \"%s\"; quire help lists them\n", argv[1]);
  return CLI_EXIT_USAGE;
}
