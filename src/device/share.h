/* Device memory between processes of one host: the owner sends it through a Unix socket, the peer maps it.
 *
 *     owner     quire_memory_send(memory, socket)     -- message and descriptor -->
 *     peer      quire_memory_receive(device, socket)  -> memory at an address of the peer's own, the same bytes
 *
 * What is sent is a handle, made at allocation: a file descriptor of the driver's where the platform has them (they
 * travel as ancillary data, SCM_RIGHTS), and a fabric handle where the machine is part of one. The peer prefers the
 * descriptor. The bytes live until owner and peers have all destroyed their memory. A message is one record of fixed
 * size and version; one that is anything else is QUIRE_ERR_PEER and maps nothing.
 *
 * Threads: one a socket at a time; both calls block. */
#ifndef QUIRE_DEVICE_SHARE_H
#define QUIRE_DEVICE_SHARE_H

#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_SHARE_FABRIC_BYTES 64

/* A handle on its way. */
struct quire_share {
  uint64_t bytes;        /* as the owner asked for */
  uint64_t mapped_bytes; /* of the handle */
  int descriptor;        /* -1: none; belongs to whoever holds the struct */
  bool has_fabric;
  uint8_t fabric[QUIRE_SHARE_FABRIC_BYTES];
};

/* QUIRE_ERR_UNSUPPORTED: memory of the CPU, adopted memory, or a platform without handles. QUIRE_ERR_PEER: the
 * socket. */
enum quire_status quire_memory_send(const struct quire_memory *memory, int socket, struct quire_error *error_out);
enum quire_status quire_memory_receive(struct quire_device *device, int socket, struct quire_memory **memory_out,
                                       struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
