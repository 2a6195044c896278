#include "support/eval_program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#define MODEL QUIRE_SOURCE_DIR "/models/quire-mini"
#define RECALL_LEAST 90.0
#define CONTROL_BELOW 20.0

struct printed {
  double loss, draft_agreement;
  int groups, controls;
};

static void read_line(const char *line, struct printed *printed) {
  char name[32];
  double percent;
  if (sscanf(line, "held-out loss %lf nats", &printed->loss) == 1) {
    return;
  }
  if (sscanf(line, "draft agreement %lf %%", &percent) == 1) {
    printed->draft_agreement = percent / 100.0;
  } else if (sscanf(line, "recall %31s %lf %%", name, &percent) == 2) {
    printed->groups++;
    if (percent < RECALL_LEAST) {
      fail_msg("recall at %s is %.1f %%, less than %.0f %%", name, percent, RECALL_LEAST);
    }
  } else if (sscanf(line, "control %31s %lf %%", name, &percent) == 2) {
    printed->controls++;
    if (percent >= CONTROL_BELOW) {
      fail_msg("with a broken cache (%s) recall is still %.1f %%", name, percent);
    }
  } else {
    fail_msg("quire eval printed a line this test does not know: %s", line);
  }
}

static double figure(const json_t *of_format, const char *name) {
  const json_t *value = json_object_get(json_object_get(of_format, "heldout"), name);
  assert_true(json_is_real(value));
  return json_real_value(value);
}

void eval_program_check(const struct eval_bounds *bounds) {
  char command[1024], line[256];
  struct printed printed = {0};
  json_error_t fault;
  json_t *root = json_load_file(MODEL "/figures.json", 0, &fault);
  if (root == NULL) {
    fail_msg("figures.json:%d: %s", fault.line, fault.text);
  }
  const json_t *of_format = json_object_get(root, bounds->kv);
  double loss = figure(of_format, "loss"), draft_agreement = figure(of_format, "draft_agreement");
  json_decref(root);
  snprintf(command, sizeof command, "'%s/bin/quire' eval --model '%s' %s 2>/dev/null", QUIRE_BINARY_DIR, MODEL,
           bounds->arguments);
  printf("%s\n", command);
  FILE *output = popen(command, "r");
  assert_non_null(output);
  while (fgets(line, sizeof line, output) != NULL) {
    printf("%s", line);
    read_line(line, &printed);
  }
  int status = pclose(output);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  assert_int_equal(printed.groups, bounds->groups);
  assert_int_equal(printed.controls, 2);
  if (!(fabs(printed.loss - loss) <= bounds->loss)) {
    fail_msg("held-out loss %.4f, the card says %.4f; allowed is %.4f", printed.loss, loss, bounds->loss);
  }
  if (!(fabs(printed.draft_agreement - draft_agreement) <= bounds->draft_agreement)) {
    fail_msg("draft agreement %.3f, the card says %.3f; allowed is %.3f", printed.draft_agreement, draft_agreement,
             bounds->draft_agreement);
  }
}
