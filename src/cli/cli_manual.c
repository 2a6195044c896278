/* What the option tables yield beside help: manual pages and completions. A command's table is put together by the
 * command itself, so each is asked with --help, in another form. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "cli/cli.h"
#include "quire/quire.h"

static const char *const whole[] = {"", NULL};

static const char *const *subjects_of(const struct cli_command *command) {
  return command->subjects != NULL ? command->subjects : whole;
}

static int ask(const struct cli_command *command, const char *subject, enum cli_help form) {
  char first[32], help[] = "--help";
  char *argv[] = {first, help, NULL};
  QUIRE_ASSERT(strlen(subject) < sizeof first);
  snprintf(first, sizeof first, "%s", subject);
  cli_help_as(form);
  int named = subject[0] != '\0';
  int code = command->run(1 + named, argv + 1 - named);
  cli_help_as(CLI_HELP_TEXT);
  return code;
}

static void print_title(const char *command, const char *help) {
  printf(".TH quire%s%s 1 \"\" \"quire %s\" \"quire\"\n.SH NAME\nquire%s%s \\- %s\n", command[0] != '\0' ? "\\-" : "",
         command, quire_version(), command[0] != '\0' ? "\\-" : "", command, help);
}

static int command_page(const struct cli_command *command) {
  int code = CLI_EXIT_OK;
  print_title(command->name, command->help);
  for (int i = 0; code == CLI_EXIT_OK && subjects_of(command)[i] != NULL; i++) {
    code = ask(command, subjects_of(command)[i], CLI_HELP_MAN);
  }
  printf(".SH ENVIRONMENT AND FILES\n"
         "\\fB\\-\\-\\fINAME value\\fR is also \\fBQUIRE_\\fINAME\\fR in the environment (capitals, _ for \\-) and\n"
         "\\fINAME\\fB: \\fIvalue\\fR in the YAML file of \\fB\\-\\-config\\fR; the command line wins over the\n"
         "environment, the environment over the file.\n"
         ".SH EXIT STATUS\n0, 2 for bad input, 1 for every other failure.\n.SH SEE ALSO\n.BR quire (1)\n");
  return code;
}

int cli_man(const struct cli_command *commands, int count, int argc, char **argv) {
  for (int i = 0; argc == 1 && i < count; i++) {
    if (strcmp(argv[0], commands[i].name) == 0) {
      return command_page(&commands[i]);
    }
  }
  if (argc > 0) {
    fprintf(stderr, "quire: man: name one command, or none; quire help lists them\n");
    return CLI_EXIT_USAGE;
  }
  print_title("", "serves sparse\\-attention models from one KV cache that context\\-parallel ranks share");
  printf(".SH SYNOPSIS\nquire \\fICOMMAND\\fR [options]\n.SH COMMANDS\n");
  for (int i = 0; i < count; i++) {
    printf(".TP\n.BR quire\\-%s (1)\n%s\n", commands[i].name, commands[i].help);
  }
  return CLI_EXIT_OK;
}

/* One case of the function below: the words a command takes, as lines of "--name value value ..". */
static int completion_case(const struct cli_command *command) {
  int code = CLI_EXIT_OK;
  printf("  %s)\n    lines='", command->name);
  for (int i = 0; code == CLI_EXIT_OK && subjects_of(command)[i] != NULL; i++) {
    code = ask(command, subjects_of(command)[i], CLI_HELP_WORDS);
  }
  printf("' ;;\n");
  return code;
}

int cli_completions(const struct cli_command *commands, int count, int argc, char **argv) {
  (void)argv;
  if (argc > 0) {
    fprintf(stderr, "quire: completions: takes no argument\n");
    return CLI_EXIT_USAGE;
  }
  int code = CLI_EXIT_OK;
  printf("# quire %s for bash, and for zsh behind `autoload bashcompinit && bashcompinit`\n"
         "_quire() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} lines= line words=\n"
         "  COMPREPLY=()\n"
         "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
         "    COMPREPLY=($(compgen -W '",
         quire_version());
  for (int i = 0; i < count; i++) {
    printf("%s ", commands[i].name);
  }
  printf("help man completions version' -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  case ${COMP_WORDS[1]} in\n");
  for (int i = 0; code == CLI_EXIT_OK && i < count; i++) {
    code = completion_case(&commands[i]);
  }
  printf("  esac\n"
         "  while read -r line; do\n"
         "    case \"$word\" in\n"
         "    -*) words+=\" ${line%%%% *}\" ;;\n"
         "    *) case \"$line\" in \"$before \"*) words=\"${line#* }\" ;; esac ;;\n"
         "    esac\n"
         "  done <<<\"$lines\"\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "}\n"
         "complete -o default -F _quire quire\n");
  return code;
}
