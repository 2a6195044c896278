// ctest: labels=quick,cuda
/* What a peer may send in place of a handle: records that are no record, descriptors that are none, too many, or not of
 * the driver. Each is refused as the peer's fault, maps nothing and leaves no descriptor open. On the CPU and on every
 * GPU. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"
#include "device/share.h"
#include "support/limit.h"

#define DEVICES_MAX 4
#define DESCRIPTORS_MAX 3
#define MAGIC 0x51534831u
#define GRANULE ((uint64_t)2 << 20)

/* As share.c has it on the wire. */
struct message {
  uint32_t magic;
  uint32_t has_descriptor;
  uint64_t bytes;
  uint64_t mapped_bytes;
  uint32_t has_fabric;
  uint32_t zero;
  uint8_t fabric[QUIRE_SHARE_FABRIC_BYTES];
};

/* One thing to be sent: `bytes` of the message and so many descriptors beside them. */
struct hostile_case {
  const char *name;
  struct message message;
  size_t bytes;
  int descriptors;
  int socket_type;
};

static struct quire_device *devices[DEVICES_MAX];
static int device_count;

static int open_descriptors(void) {
  DIR *folder = opendir("/proc/self/fd");
  int count = 0;
  assert_non_null(folder);
  while (readdir(folder) != NULL) {
    count++;
  }
  closedir(folder);
  return count;
}

static void send_raw(int socket, const void *bytes, size_t count, const int *descriptors, int descriptor_count) {
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
  } control;
  struct iovec piece = {(void *)(uintptr_t)bytes, count};
  struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
  if (descriptor_count > 0) {
    size_t payload = (size_t)descriptor_count * sizeof(int);
    memset(&control, 0, sizeof control);
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(payload);
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(payload);
    memcpy(CMSG_DATA(first), descriptors, payload);
  }
  assert_int_equal(sendmsg(socket, &header, MSG_NOSIGNAL), (ssize_t)count);
}

/* The peer sends and is gone. */
static void expect_refused(struct quire_device *device, const struct hostile_case *c, int descriptor) {
  int ends[2], before = open_descriptors(), descriptors[DESCRIPTORS_MAX] = {descriptor, descriptor, descriptor};
  struct quire_memory *memory = NULL;
  struct quire_error error = {0};
  assert_int_equal(socketpair(AF_UNIX, c->socket_type, 0, ends), 0);
  send_raw(ends[0], &c->message, c->bytes, descriptors, c->descriptors);
  close(ends[0]);
  enum quire_status status = quire_memory_receive(device, ends[1], &memory, &error);
  close(ends[1]);
  if (status == QUIRE_OK || memory != NULL || error.text[0] == '\0') {
    fail_msg("%s: was taken", c->name);
  }
  /* the CPU takes no handle at all, and says so of a good record */
  bool cpu = quire_device_kind_of(device) == QUIRE_DEVICE_CPU;
  if (status != QUIRE_ERR_PEER && !(cpu && status == QUIRE_ERR_UNSUPPORTED)) {
    fail_msg("%s: status %d: %s", c->name, (int)status, error.text);
  }
  if (open_descriptors() != before) {
    fail_msg("%s: %d descriptors are left open", c->name, open_descriptors() - before);
  }
}

static struct message good(void) {
  return (struct message){.magic = MAGIC, .has_descriptor = 1, .bytes = 4096, .mapped_bytes = GRANULE};
}

static void records_that_are_none(void **state) {
  (void)state;
  const size_t whole = sizeof(struct message);
  struct message named = good(), bare = good(), large = good(), fabric = good(), later = good(), other = good();
  bare.has_descriptor = 0;
  large.has_descriptor = 2;
  fabric.has_fabric = 2;
  later.zero = 1;
  other.magic++;
  const struct hostile_case cases[] = {
      {"no descriptor", named, whole, 0, SOCK_STREAM},
      {"two descriptors", named, whole, 2, SOCK_STREAM},
      {"three descriptors", named, whole, 3, SOCK_STREAM},
      {"a descriptor that is not announced", bare, whole, 1, SOCK_STREAM},
      {"two that are not announced", bare, whole, 2, SOCK_STREAM},
      {"more than one announced", large, whole, 1, SOCK_STREAM},
      {"neither descriptor nor fabric", bare, whole, 0, SOCK_STREAM},
      {"another flag", fabric, whole, 1, SOCK_STREAM},
      {"a later version", later, whole, 1, SOCK_STREAM},
      {"another magic", other, whole, 1, SOCK_STREAM},
      {"cut behind the descriptor", named, 40, 1, SOCK_STREAM},
      {"cut behind two", named, 40, 2, SOCK_STREAM},
      {"one byte", named, 1, 1, SOCK_STREAM},
      {"a short packet", named, 40, 1, SOCK_SEQPACKET},
      {"an empty packet with a descriptor", named, 0, 1, SOCK_SEQPACKET},
      {"an empty packet with two", named, 0, 2, SOCK_SEQPACKET},
  };
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  assert_true(null >= 0);
  for (int d = 0; d < device_count; d++) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
      expect_refused(devices[d], &cases[i], null);
    }
  }
  close(null);
}

static void sizes_that_cannot_be(void **state) {
  (void)state;
  const uint64_t sizes[][2] = {
      {0, GRANULE},          {4096, 0},          {4096, 4096},        {GRANULE + 1, GRANULE},
      {UINT64_MAX, GRANULE}, {4096, UINT64_MAX}, {4096, 0 - GRANULE}, {0 - GRANULE, 0 - GRANULE},
      {4096, GRANULE + 1},
  };
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  assert_true(null >= 0);
  for (int d = 0; d < device_count; d++) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      struct hostile_case c = {"sizes that cannot be", good(), sizeof(struct message), 1, SOCK_STREAM};
      c.message.bytes = sizes[i][0];
      c.message.mapped_bytes = sizes[i][1];
      expect_refused(devices[d], &c, null);
    }
  }
  close(null);
}

/* Records as they should be, with descriptors of something else. */
static void descriptors_of_other_things(void **state) {
  (void)state;
  int pipe_ends[2], pair[2];
  assert_int_equal(pipe(pipe_ends), 0);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  int file = memfd_create("quire", MFD_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
  assert_true(file >= 0 && null >= 0 && ftruncate(file, (off_t)GRANULE) == 0);
  const int things[] = {pipe_ends[0], pipe_ends[1], pair[0], file, null};
  struct hostile_case c = {"a descriptor of something else", good(), sizeof(struct message), 1, SOCK_STREAM};
  for (int d = 0; d < device_count; d++) {
    for (size_t i = 0; i < sizeof things / sizeof things[0]; i++) {
      expect_refused(devices[d], &c, things[i]);
    }
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  close(pair[0]);
  close(pair[1]);
  close(file);
  close(null);
}

/* A handle of the driver's whose record lies about its size: smaller and larger are refused. */
static void handles_of_another_size(void **state) {
  (void)state;
  for (int d = 1; d < device_count; d++) {
    struct quire_memory *memory = NULL, *received = NULL;
    struct quire_error error = {0};
    const uint64_t mapped[] = {GRANULE, 3 * GRANULE, 512 * GRANULE};
    assert_int_equal(quire_device_memory(devices[d], 2 * GRANULE, &memory, NULL), QUIRE_OK);
    for (size_t i = 0; i < sizeof mapped / sizeof mapped[0]; i++) {
      union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
      } control;
      struct message message;
      struct iovec piece = {&message, sizeof message};
      struct msghdr header = {
          .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
      int ends[2], descriptor = -1;
      assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      assert_int_equal(quire_memory_send(memory, ends[0], &error), QUIRE_OK);
      assert_int_equal(recvmsg(ends[1], &header, MSG_WAITALL), (ssize_t)sizeof message);
      if (message.has_descriptor != 0) {
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof descriptor);
        message.mapped_bytes = mapped[i];
        message.bytes = 4096;
        send_raw(ends[0], &message, sizeof message, &descriptor, 1);
        close(descriptor);
        assert_int_equal(quire_memory_receive(devices[d], ends[1], &received, &error), QUIRE_ERR_PEER);
        assert_null(received);
      }
      close(ends[0]);
      close(ends[1]);
    }
    quire_memory_destroy(memory);
  }
}

int main(void) {
  test_limit(50);
  assert_int_equal(quire_device_open(quire_env_default(), QUIRE_DEVICE_CPU, 0, &devices[device_count++], NULL),
                   QUIRE_OK);
  while (device_count < DEVICES_MAX && quire_device_open(quire_env_default(), QUIRE_DEVICE_CUDA, device_count - 1,
                                                         &devices[device_count], NULL) == QUIRE_OK) {
    device_count++;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(records_that_are_none),
      cmocka_unit_test(sizes_that_cannot_be),
      cmocka_unit_test(descriptors_of_other_things),
      cmocka_unit_test(handles_of_another_size),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  for (int d = 0; d < device_count; d++) {
    quire_device_close(devices[d]);
  }
  return failed;
}
