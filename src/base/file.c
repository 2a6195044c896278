#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"

#define FILE_PATH_BYTES 4096

static const char *way_out(int code) {
  switch (code) {
  case ENOENT:
  case ENOTDIR:
    return "; check the path, or restore the file";
  case EACCES:
  case EPERM:
    return "; change its permissions, or run as a user who has them";
  case ENOSPC:
  case EDQUOT:
    return "; make room on the disk";
  case ENOMEM:
    return "; raise the limit of address space (ulimit -v)";
  case EMFILE:
    return "; raise the limit of open files (ulimit -n)";
  default:
    return "";
  }
}

static enum quire_status system_fault(struct quire_error *error_out, const char *path, const char *what, int code) {
  enum quire_status status = code == ENOENT || code == ENOTDIR ? QUIRE_ERR_NOT_FOUND
                             : code == ENOMEM                  ? QUIRE_ERR_MEMORY
                                                               : QUIRE_ERR_IO;
  return quire_error_set(error_out, status, path, "cannot %s %s: %s%s", what, path, strerror(code), way_out(code));
}

/* Opens a regular file and tells its size; a pipe or a device has none and could block for ever. */
static enum quire_status open_regular(const char *path, int *fd_out, size_t *bytes_out, struct quire_error *error_out) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return system_fault(error_out, path, "open", errno);
  }
  struct stat info;
  int failed = fstat(fd, &info) != 0 ? errno : 0;
  if (!failed && S_ISREG(info.st_mode)) {
    *fd_out = fd;
    *bytes_out = (size_t)info.st_size;
    return QUIRE_OK;
  }
  close(fd);
  if (failed) {
    return system_fault(error_out, path, "look at", failed);
  }
  return quire_error_set(error_out, QUIRE_ERR_IO, path, "%s is %s, not a regular file", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "a pipe, a socket or a device");
}

enum quire_status quire_file_map(const char *path, struct quire_mapping *mapping_out, struct quire_error *error_out) {
  QUIRE_ASSERT(path && mapping_out);
  int fd = -1;
  size_t bytes = 0;
  enum quire_status status = open_regular(path, &fd, &bytes, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  /* an empty file cannot be mapped; it still has an address */
  const void *data = bytes ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : "";
  int failed = data == MAP_FAILED ? errno : 0;
  close(fd);
  if (failed) {
    return system_fault(error_out, path, "map", failed);
  }
  *mapping_out = (struct quire_mapping){.data = data, .bytes = bytes};
  return QUIRE_OK;
}

void quire_file_sparse(const struct quire_mapping *mapping, bool sparse) {
  if (mapping->bytes > 0) {
    (void)madvise((void *)(uintptr_t)mapping->data, mapping->bytes, sparse ? MADV_RANDOM : MADV_NORMAL);
  }
}

void quire_file_done(const void *data, size_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const uintptr_t begin = ((uintptr_t)data + page - 1) / page * page, end = ((uintptr_t)data + bytes) / page * page;
  if (begin < end) {
    (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* of a file, read only: read again where it is needed */
  }
}

void quire_file_unmap(struct quire_mapping *mapping) {
  if (mapping->bytes) {
    munmap((void *)(uintptr_t)mapping->data, mapping->bytes);
  }
  *mapping = (struct quire_mapping){0};
}

/* Reads exactly bytes bytes; answers 0, an errno, or -1 when the file ended early. */
static int read_fully(int fd, char *data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t got = read(fd, data + done, bytes - done);
    if (got < 0 && errno != EINTR) {
      return errno;
    }
    if (got == 0) {
      return -1;
    }
    done += got > 0 ? (size_t)got : 0;
  }
  return 0;
}

enum quire_status quire_file_read(const struct quire_env *env, const char *path, size_t limit,
                                  struct quire_file_text *text_out, struct quire_error *error_out) {
  QUIRE_ASSERT(path && text_out);
  int fd = -1;
  size_t bytes = 0;
  enum quire_status status = open_regular(path, &fd, &bytes, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  char probe;
  if (bytes == 0 && read(fd, &probe, 1) > 0) {
    status =
        quire_error_set(error_out, QUIRE_ERR_IO, path, "%s does not say its length; copy it to a plain file", path);
    goto close_file;
  }
  if (bytes > limit) {
    status = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, path, "%s has %zu bytes; at most %zu are accepted here",
                             path, bytes, limit);
    goto close_file;
  }
  char *data = quire_env_zalloc(env, bytes + 1, 1);
  if (!data) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, path, "no memory for the %zu bytes of %s", bytes, path);
    goto close_file;
  }
  int failed = read_fully(fd, data, bytes);
  if (failed) {
    quire_env_free(env, data, bytes + 1, 1);
    status = failed > 0 ? system_fault(error_out, path, "read", failed)
                        : quire_error_set(error_out, QUIRE_ERR_IO, path, "%s became shorter while it was read", path);
    goto close_file;
  }
  *text_out = (struct quire_file_text){.data = data, .bytes = bytes};
close_file:
  close(fd);
  return status;
}

void quire_file_text_free(const struct quire_env *env, struct quire_file_text *text) {
  if (text->data) {
    quire_env_free(env, text->data, text->bytes + 1, 1);
  }
  *text = (struct quire_file_text){0};
}

static int write_fully(int fd, const char *data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t put = write(fd, data + done, bytes - done);
    if (put < 0 && errno != EINTR) {
      return errno;
    }
    done += put > 0 ? (size_t)put : 0;
  }
  return fsync(fd) != 0 ? errno : 0;
}

/* The rename itself is on disk only once the folder is synced. */
static int sync_folder_of(const char *path) {
  char folder[FILE_PATH_BYTES];
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  if (slash) {
    slash[slash == folder ? 1 : 0] = 0;
  }
  int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return errno;
  }
  int failed = fsync(fd) != 0 ? errno : 0;
  close(fd);
  return failed;
}

enum quire_status quire_file_write(const char *path, const void *data, size_t bytes, struct quire_error *error_out) {
  QUIRE_ASSERT(path && (data || bytes == 0));
  char beside[FILE_PATH_BYTES];
  int length = snprintf(beside, sizeof beside, "%s.XXXXXX", path);
  if (length < 0 || (size_t)length >= sizeof beside) {
    return system_fault(error_out, path, "write", ENAMETOOLONG);
  }
  int fd = mkostemp(beside, O_CLOEXEC);
  if (fd < 0) {
    return system_fault(error_out, path, "write", errno);
  }
  int failed = fchmod(fd, 0644) != 0 ? errno : write_fully(fd, data, bytes);
  if (close(fd) != 0 && !failed) {
    failed = errno;
  }
  if (!failed && rename(beside, path) != 0) {
    failed = errno;
  }
  if (failed) {
    unlink(beside);
    return system_fault(error_out, path, "write", failed);
  }
  failed = sync_folder_of(path);
  return failed ? system_fault(error_out, path, "sync the folder of", failed) : QUIRE_OK;
}
