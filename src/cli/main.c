#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "quire/quire.h"

static const char *const bench_subjects[] = {"all", "serve", NULL};

static const struct cli_command commands[] = {
    {"run", cli_run, "answer prompts with ranks that share one KV cache", NULL, NULL},
    {"serve", cli_serve, "serve a model over HTTP, to clients of OpenAI, SGLang and vLLM", NULL, NULL},
    {"info", cli_info, "model, parts table, memory plan, support table, machine", NULL, NULL},
    {"check", cli_check, "self-tests of this machine and a model", NULL, NULL},
    {"eval", cli_eval, "held-out loss, recall by distance, draft agreement", NULL, NULL},
    {"bench", cli_bench, "measure against ceilings of the same run", bench_subjects, cli_bench_name},
    {"replay", cli_replay, "hit rates of a published trace through pool and tree", NULL, NULL},
};

#define COMMANDS (int)(sizeof commands / sizeof commands[0])

static void usage(FILE *out) {
  fprintf(out, "usage: quire COMMAND [options]\n\n");
  for (int i = 0; i < COMMANDS; i++) {
    fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].help);
  }
  fprintf(out,
          "  %-11s %s\n  %-11s %s\n  %-11s %s\n\n"
          "quire COMMAND --help, or quire help COMMAND, lists the options of a command.\n",
          "man", "print a manual page: quire man, quire man COMMAND", "completions",
          "print completions for a shell: bash, zsh or fish", "version", "print the version");
}

/* quire help A B is quire A B --help. */
static int help(int argc, char **argv) {
  char option[] = "--help", *arguments[] = {argc > 1 ? argv[1] : option, option};
  for (int i = 0; argc > 0 && i < COMMANDS; i++) {
    if (strcmp(argv[0], commands[i].name) == 0) {
      return commands[i].run(argc > 1 ? 2 : 1, arguments);
    }
  }
  if (argc > 0) {
    fprintf(stderr, "quire: unknown command \"%s\"; quire help lists them\n", argv[0]);
    return CLI_EXIT_USAGE;
  }
  usage(stdout);
  return CLI_EXIT_OK;
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
  for (int i = 0; i < COMMANDS; i++) {
    if (strcmp(argv[1], commands[i].name) == 0) {
      return written(commands[i].run(argc - 2, argv + 2));
    }
  }
  if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
    printf("quire %s\n", quire_version());
    return written(CLI_EXIT_OK);
  }
  if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    return written(help(argc - 2, argv + 2));
  }
  if (strcmp(argv[1], "man") == 0) {
    return written(cli_man(commands, COMMANDS, argc - 2, argv + 2));
  }
  if (strcmp(argv[1], "completions") == 0) {
    return written(cli_completions(commands, COMMANDS, argc - 2, argv + 2));
  }
  fprintf(stderr, "quire: unknown command \"%s\"; quire help lists them\n", argv[1]);
  return CLI_EXIT_USAGE;
}
