/* A bounded first-in first-out ring of fixed-size items between threads, with an end.
 *
 *     capacity slots  | . | item | item | item | . | . |     push copies in at the tail, pop copies out at the head
 *
 * Any number of producers and consumers. Items of one producer keep their order. Full is an answer (try_push:
 * QUIRE_ERR_AGAIN) or a wait (push). quire_queue_close ends the traffic: pushes answer QUIRE_ERR_STATE, pops drain
 * what is left and then answer QUIRE_ERR_STATE; who waits is woken. Nothing is allocated after creation.
 *
 * One mutex and two conditions: at the rates of requests, plans and acknowledgements (thousands a second) that costs
 * nothing one can measure, and it needs no proof. Rows of tensors go through streams, not through here. */
#ifndef QUIRE_BASE_QUEUE_H
#define QUIRE_BASE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_QUEUE_CAPACITY_MAX (1 << 24)

struct quire_queue;

/* item_bytes > 0, capacity 1 to QUIRE_QUEUE_CAPACITY_MAX items. */
enum quire_status quire_queue_create(const struct quire_env *env, size_t item_bytes, int capacity,
                                     struct quire_queue **queue_out, struct quire_error *error_out);
/* No thread may be inside. Items still queued are dropped. */
void quire_queue_destroy(struct quire_queue *queue);

/* QUIRE_OK, QUIRE_ERR_STATE (closed). Waits while full. */
enum quire_status quire_queue_push(struct quire_queue *queue, const void *item);
/* QUIRE_OK, QUIRE_ERR_AGAIN (full), QUIRE_ERR_STATE (closed). */
enum quire_status quire_queue_try_push(struct quire_queue *queue, const void *item);
/* QUIRE_OK, QUIRE_ERR_STATE (closed and empty). Waits while empty. */
enum quire_status quire_queue_pop(struct quire_queue *queue, void *item_out);
/* QUIRE_OK, QUIRE_ERR_AGAIN (empty), QUIRE_ERR_STATE (closed and empty). */
enum quire_status quire_queue_try_pop(struct quire_queue *queue, void *item_out);
/* As pop, but answers QUIRE_ERR_AGAIN when nothing came for timeout_ns of real time. */
enum quire_status quire_queue_pop_within(struct quire_queue *queue, void *item_out, uint64_t timeout_ns);
/* Idempotent. */
void quire_queue_close(struct quire_queue *queue);

/* Items queued at the moment of asking. */
int quire_queue_count(struct quire_queue *queue);
int quire_queue_capacity(const struct quire_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
