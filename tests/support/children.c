#include "support/children.h"

#include <stdio.h>
#include <unistd.h>

int test_children(pid_t *pids_out, int max) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
  FILE *file = fopen(path, "r");
  int count = 0, pid;
  while (file != NULL && count < max && fscanf(file, "%d", &pid) == 1) {
    pids_out[count++] = pid;
  }
  if (file != NULL) {
    fclose(file);
  }
  return count;
}
