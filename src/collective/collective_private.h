/* The first member of every implementation's group: how the front finds the implementation. Only files of this folder
 * include this. Memory and threads as collective.h says. */
#ifndef QUIRE_COLLECTIVE_COLLECTIVE_PRIVATE_H
#define QUIRE_COLLECTIVE_COLLECTIVE_PRIVATE_H

#include "collective/collective.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_collective {
  const struct quire_collective_ops *ops;
  int32_t ranks;
};

extern const struct quire_collective_ops quire_collective_local_ops;
extern const struct quire_collective_ops quire_collective_peer_ops;
extern const struct quire_collective_ops quire_collective_nccl_ops;

#ifdef __cplusplus
}
#endif
#endif
