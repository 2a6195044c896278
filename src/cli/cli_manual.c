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
  const char *about, *name = command->first_name != NULL ? command->first_name(0, &about) : NULL;
  if (name != NULL) {
    printf(".SH NAMES\n");
  }
  for (int i = 1; name != NULL; name = command->first_name(i++, &about)) {
    printf(".TP\n.B %s\n%s\n", name, about);
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

/* --- completions --- */

/* A shell's function looks through lines of quire_options_write_words: for each command it has a case with those of its
 * options between single quotes, and one, '', with the commands themselves. */
struct shell {
  const char *name;
  const char *begin;
  const char *case_open, *case_lines, *case_close; /* around the name and the lines */
  const char *end;
};

static const struct shell shells[] = {
    {.name = "bash",
     .begin = "_quire() {\n"
              "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= lines= line words=\n"
              "  [ \"$COMP_CWORD\" = 1 ] || command=${COMP_WORDS[1]}\n"
              "  case $command in\n",
     .case_open = "  '",
     .case_lines = "')\n    lines='",
     .case_close = "' ;;\n",
     .end = "  esac\n"
            "  while read -r line; do\n"
            "    line=${line%%$'\\t'*}\n"
            "    case ${command:+option}$word in\n"
            "    option | option[!-]*) case $line in \"$before \"*) words=${line#* } ;; esac ;;\n"
            "    *) words+=\" ${line%% *}\" ;;\n"
            "    esac\n"
            "  done <<<\"$lines\"\n"
            "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
            "}\n"
            "complete -o default -F _quire quire\n"},
    {.name = "zsh",
     .begin = "_quire() {\n"
              "  local command= lines= line\n"
              "  local -a names\n"
              "  local -aU candidates\n"
              "  (( CURRENT > 2 )) && command=$words[2]\n"
              "  case $command in\n",
     .case_open = "  '",
     .case_lines = "')\n    lines='",
     .case_close = "' ;;\n",
     .end = "  esac\n"
            "  for line in ${(f)lines}; do\n"
            "    names=(${=line%%$'\\t'*})\n"
            "    if [[ -z $command || $words[CURRENT] == -* ]]; then\n"
            "      candidates+=(\"$names[1]:${line#*$'\\t'}\")\n"
            "    elif [[ $names[1] == $words[CURRENT-1] ]]; then\n"
            "      candidates=(${names[2,-1]})\n"
            "    fi\n"
            "  done\n"
            "  if (( $#candidates )); then\n"
            "    _describe quire candidates\n"
            "  else\n"
            "    _files\n"
            "  fi\n"
            "}\n"
            "if [[ $funcstack[1] == _quire ]]; then\n"
            "  _quire \"$@\" # from a folder of fpath\n"
            "else\n"
            "  compdef _quire quire\n"
            "fi\n"},
    {.name = "fish",
     .begin = "function __quire_complete\n"
              "  set -l before (commandline -opc)\n"
              "  set -l word (commandline -ct)\n"
              "  set -l command \"$before[2]\"\n"
              "  set -l lines\n"
              "  set -l found\n"
              "  switch $command\n",
     .case_open = "  case '",
     .case_lines = "'\n    set lines (string split -n -- \\n '",
     .case_close = "')\n",
     .end = "  end\n"
            "  for line in $lines\n"
            "    set -l parts (string split -m 1 \\t -- $line)\n"
            "    set -l names (string split ' ' -- $parts[1])\n"
            "    if test -z \"$command\"; or string match -q -- '-*' $word\n"
            "      contains -- $names[1]\\t$parts[2] $found; or set -a found $names[1]\\t$parts[2]\n"
            "    else if test $names[1] = $before[-1]\n"
            "      set found $names\n"
            "      set -e found[1]\n"
            "    end\n"
            "  end\n"
            "  if set -q found[1]\n"
            "    printf '%s\\n' $found\n"
            "  else\n"
            "    __fish_complete_path $word\n"
            "  end\n"
            "end\n"
            "complete -c quire -f -a '(__quire_complete)'\n"},
};
#define SHELLS (int)(sizeof shells / sizeof shells[0])

static void command_case(const struct shell *shell, const struct cli_command *commands, int count) {
  QUIRE_ASSERT(count > 0);
  printf("%s%s", shell->case_open, shell->case_lines);
  for (int i = 0; i < count; i++) {
    printf("%s\t%s\n", commands[i].name, commands[i].help);
  }
  printf("help\tlist the options of a command\nman\tprint a manual page\n"
         "completions\tprint completions for a shell\nversion\tprint the version\n%s",
         shell->case_close);
}

static int option_case(const struct shell *shell, const struct cli_command *command) {
  int code = CLI_EXIT_OK;
  printf("%s%s%s", shell->case_open, command->name, shell->case_lines);
  if (command->first_name != NULL) { /* as if the command were an option that has these values */
    const char *about, *name;
    printf("%s", command->name);
    for (int i = 0; (name = command->first_name(i, &about)) != NULL; i++) {
      printf(" %s", name);
    }
    printf("\t%s\n", command->help);
  }
  for (int i = 0; code == CLI_EXIT_OK && subjects_of(command)[i] != NULL; i++) {
    code = ask(command, subjects_of(command)[i], CLI_HELP_WORDS);
  }
  printf("%s", shell->case_close);
  return code;
}

int cli_completions(const struct cli_command *commands, int count, int argc, char **argv) {
  const struct shell *shell = NULL;
  for (int i = 0; i < SHELLS; i++) {
    if (strcmp(argc == 1 ? argv[0] : argc == 0 ? "bash" : "", shells[i].name) == 0) {
      shell = &shells[i];
    }
  }
  if (shell == NULL) {
    fprintf(stderr, "quire: completions: name one shell: bash (which is meant where none is named), zsh or fish\n");
    return CLI_EXIT_USAGE;
  }
  int code = CLI_EXIT_OK;
  printf("%s# quire %s, for %s\n%s", strcmp(shell->name, "zsh") == 0 ? "#compdef quire\n" : "", quire_version(),
         shell->name, shell->begin);
  command_case(shell, commands, count);
  for (int i = 0; code == CLI_EXIT_OK && i < count; i++) {
    code = option_case(shell, &commands[i]);
  }
  printf("%s", shell->end);
  return code;
}
