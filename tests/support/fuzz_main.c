/* A main for fuzz targets without libFuzzer: runs the target over files and folders, so that every build replays the
 * corpus. Nested folders are not looked into. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    fprintf(stderr, "fuzz: cannot open %s\n", path);
    return -1;
  }
  /* the exact size, so that a sanitizer sees the first byte past the end */
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
  size_t got = data && size > 0 ? fread(data, 1, (size_t)size, file) : 0;
  fclose(file);
  if (!data || got != (size_t)size) {
    fprintf(stderr, "fuzz: cannot read %s\n", path);
    free(data);
    return -1;
  }
  LLVMFuzzerTestOneInput(data, got);
  free(data);
  return 1;
}

static int run_folder(const char *path) {
  DIR *folder = opendir(path);
  if (!folder) {
    return 0; /* no corpus yet */
  }
  int count = 0;
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    char name[4096];
    struct stat info;
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    if (stat(name, &info) == 0 && S_ISREG(info.st_mode)) {
      int ran = run_file(name);
      count = ran < 0 || count < 0 ? -1 : count + ran;
    }
  }
  closedir(folder);
  return count;
}

int main(int argc, char **argv) {
  uint8_t nothing = 0;
  (void)LLVMFuzzerInitialize(&argc, &argv);
  LLVMFuzzerTestOneInput(&nothing, 0);
  int total = 1;
  for (int i = 1; i < argc; i++) {
    struct stat info;
    int ran = stat(argv[i], &info) == 0 && S_ISREG(info.st_mode) ? run_file(argv[i]) : run_folder(argv[i]);
    if (ran < 0) {
      return 1;
    }
    total += ran;
  }
  printf("fuzz: %d inputs\n", total);
  return 0;
}
