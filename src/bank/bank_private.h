/* What bank.c (memory, queue) and bank_command.c (execution) share. Only files of this folder include this. Memory and
 * threads as bank.h says. */
#ifndef QUIRE_BANK_BANK_PRIVATE_H
#define QUIRE_BANK_BANK_PRIVATE_H

#ifdef __cplusplus
#error "bank_private.h holds C11 atomics: it is for the C files of this folder"
#endif

#include <stdatomic.h>

#include "bank/bank.h"
#include "layout/bundle.h"

/* A command on its way: written by submit, then by the stream, then read by poll. */
struct bank_job {
  struct quire_command command;
  struct quire_ack ack;
  struct quire_bank_fault fault; /* of a failed ack */
};

struct quire_bank {
  const struct quire_env *env;
  struct quire_bank_config config; /* .parts points to the copy below */
  struct quire_parts parts;
  struct quire_bundle_layout bundle;
  int32_t local_pages;
  bool bound[QUIRE_PARTS_MAX]; /* has memory; a stripe without pages has memory of no pages */
  struct quire_peer_part part[QUIRE_PARTS_MAX];
  int64_t *written; /* [local_pages] */
  struct quire_memory *slab;
  uint8_t *host;
  int64_t host_bytes;
  bool connected;
  struct quire_peer_map map;
  struct quire_stream *stream;

  struct bank_job *jobs; /* [config.queue_commands]; job n at n mod queue_commands */
  uint64_t submitted;    /* the owner's */
  uint64_t polled;       /* the owner's */
  _Atomic uint64_t completed;
  bool faulted;
  struct quire_bank_fault last_fault;
};

/* Executes job->command on the bank's memory and fills job->ack and, on failure, job->fault. On the stream's thread. */
void quire_bank_execute(struct quire_bank *bank, struct bank_job *job);

#endif
