/* Handles over a Unix socket. The message is a fixed record; the descriptor travels beside its first byte. */
#include "device/share.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/device_private.h"

#define MAGIC 0x51534831u /* "QSH1" */
#define NONE (-1)

/* As it lies on the wire, between processes of one host and one program. */
struct message {
  uint32_t magic;
  uint32_t has_descriptor;
  uint64_t bytes;
  uint64_t mapped_bytes;
  uint32_t has_fabric;
  uint32_t zero;
  uint8_t fabric[QUIRE_SHARE_FABRIC_BYTES];
};
_Static_assert(sizeof(struct message) == 96, "a message of 96 bytes");

union control {
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

static enum quire_status send_share(const struct quire_share *share, int socket, struct quire_error *error_out) {
  struct message message = {
      .magic = MAGIC,
      .has_descriptor = share->descriptor != NONE,
      .bytes = share->bytes,
      .mapped_bytes = share->mapped_bytes,
      .has_fabric = share->has_fabric,
  };
  memcpy(message.fabric, share->fabric, sizeof message.fabric);
  union control control;
  struct iovec piece = {&message, sizeof message};
  struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
  if (share->descriptor != NONE) {
    memset(&control, 0, sizeof control);
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    QUIRE_ASSERT(first != NULL);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(first), &share->descriptor, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent != (ssize_t)sizeof message) {
    return quire_error_set(error_out, QUIRE_ERR_PEER, "share", "the message could not be sent: %s",
                           sent < 0 ? strerror(errno) : "it was cut");
  }
  return QUIRE_OK;
}

enum quire_status quire_memory_send(const struct quire_memory *memory, int socket, struct quire_error *error_out) {
  struct quire_share share;
  QUIRE_ASSERT(memory != NULL);
  enum quire_status status = memory->ops->share(memory, &share, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = send_share(&share, socket, error_out);
  if (share.descriptor != NONE) {
    (void)close(share.descriptor); /* the message holds one of its own */
  }
  return status;
}

/* Of the descriptors that came with a message, keeps the first and closes the others: whatever the peer sent is open
 * here. How many there were. */
static int take_descriptors(struct msghdr *header, int *first_out) {
  int count = 0;
  *first_out = NONE;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
    bool rights = c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS;
    size_t bytes = rights ? c->cmsg_len - CMSG_LEN(0) : 0;
    QUIRE_ASSERT(bytes % sizeof(int) == 0);
    for (size_t at = 0; at < bytes; at += sizeof(int)) {
      int descriptor;
      memcpy(&descriptor, CMSG_DATA(c) + at, sizeof descriptor);
      if (count++ == 0) {
        *first_out = descriptor;
      } else {
        (void)close(descriptor);
      }
    }
  }
  return count;
}

/* Why a message is no handle, or NULL. */
static const char *message_fault(const struct message *message, const struct msghdr *header, ssize_t got,
                                 int descriptors) {
  if (got <= 0) {
    return got < 0 ? strerror(errno) : "the peer has gone";
  }
  if (got != (ssize_t)sizeof *message || (header->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return "it is cut";
  }
  if (message->magic != MAGIC || message->has_descriptor > 1 || message->has_fabric > 1 || message->zero != 0) {
    return "its fields are others; both ends must be of one version";
  }
  return (int)message->has_descriptor != descriptors ? "its descriptors are not as many as it says" : NULL;
}

static enum quire_status receive_share(int socket, struct quire_share *share_out, struct quire_error *error_out) {
  QUIRE_ASSERT(socket >= 0 && share_out != NULL);
  struct message message;
  union control control;
  struct iovec piece = {&message, sizeof message};
  struct msghdr header = {
      .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  ssize_t got;
  do {
    got = recvmsg(socket, &header, MSG_WAITALL | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  int descriptor = NONE, descriptors = got >= 0 ? take_descriptors(&header, &descriptor) : 0;
  const char *fault = message_fault(&message, &header, got, descriptors);
  if (fault != NULL) {
    if (descriptor != NONE) {
      (void)close(descriptor);
    }
    return quire_error_set(error_out, QUIRE_ERR_PEER, "share", "what the socket gave is not a handle: %s", fault);
  }
  *share_out = (struct quire_share){
      .bytes = message.bytes,
      .mapped_bytes = message.mapped_bytes,
      .descriptor = descriptor,
      .has_fabric = message.has_fabric != 0,
  };
  memcpy(share_out->fabric, message.fabric, sizeof message.fabric);
  return QUIRE_OK;
}

enum quire_status quire_memory_receive(struct quire_device *device, int socket, struct quire_memory **memory_out,
                                       struct quire_error *error_out) {
  struct quire_share share;
  QUIRE_ASSERT(device != NULL && memory_out != NULL);
  enum quire_status status = receive_share(socket, &share, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  status = device->ops->import(device, &share, memory_out, error_out);
  if (share.descriptor != NONE) {
    (void)close(share.descriptor); /* the mapping holds what it needs */
  }
  return status;
}
