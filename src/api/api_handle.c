/* Handles and sizes. A handle is the address of a cell of a static table, so that any value a caller passes can be
 * judged by comparing numbers: reading through a pointer to find out whether it may be read is what a use after free
 * is. Cells are taken in turn, which makes the time until a stale handle could mean another object as long as it can
 * be. */
#include "quire/kv_status.h" /* before the library's own, so that its definitions are the ones compared below */

#include <stdatomic.h>
#include <string.h>

#include "api/api_private.h"
#include "api/api_values.h"
#include "base/assert.h"

struct cell {
  _Atomic uint32_t kind; /* enum quire_api_kind; whoever makes it BUSY owns the cell */
  _Atomic(void *) object;
};

static struct cell cells[QUIRE_KV_HANDLES_MAX];
static _Atomic uint32_t turn;

static_assert((QUIRE_KV_HANDLES_MAX & (QUIRE_KV_HANDLES_MAX - 1)) == 0, "the turn wraps at a multiple of the cells");

void *quire_api_handle_reserve(void) {
  for (uint32_t tries = 0; tries < QUIRE_KV_HANDLES_MAX; tries++) {
    struct cell *cell = &cells[atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % QUIRE_KV_HANDLES_MAX];
    uint32_t none = QUIRE_API_NONE;
    if (atomic_compare_exchange_strong(&cell->kind, &none, QUIRE_API_BUSY)) {
      return cell;
    }
  }
  return NULL;
}

void quire_api_handle_set(void *handle, enum quire_api_kind kind, void *object) {
  struct cell *cell = handle;
  QUIRE_ASSERT(atomic_load_explicit(&cell->kind, memory_order_relaxed) == QUIRE_API_BUSY && object != NULL);
  atomic_store_explicit(&cell->object, object, memory_order_relaxed);
  atomic_store_explicit(&cell->kind, kind, memory_order_release);
}

/* The cell of a handle of this kind; NULL with a status. */
static struct cell *cell_of(const void *handle, enum quire_api_kind kind, enum quire_status *status_out,
                            struct quire_error *error_out) {
  uintptr_t at = (uintptr_t)handle - (uintptr_t)cells;
  if (handle == NULL || at >= sizeof cells || at % sizeof cells[0] != 0) {
    *status_out = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "handle", "%s",
                                  handle == NULL ? "it is NULL" : "it is not one that this library made");
    return NULL;
  }
  struct cell *cell = &cells[at / sizeof cells[0]];
  uint32_t found = atomic_load_explicit(&cell->kind, memory_order_acquire);
  if (found == QUIRE_API_NONE || found == QUIRE_API_BUSY) {
    *status_out = quire_error_set(error_out, QUIRE_ERR_STATE, "handle", "the object was destroyed");
    return NULL;
  }
  if (found != kind) {
    *status_out = quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "handle", "it is of another kind of object");
    return NULL;
  }
  return cell;
}

void *quire_api_handle_get(const void *handle, enum quire_api_kind kind, enum quire_status *status_out,
                           struct quire_error *error_out) {
  struct cell *cell = cell_of(handle, kind, status_out, error_out);
  return cell == NULL ? NULL : atomic_load_explicit(&cell->object, memory_order_relaxed);
}

void *quire_api_handle_take(void *handle, enum quire_api_kind kind, enum quire_status *status_out) {
  struct cell *cell = cell_of(handle, kind, status_out, NULL);
  uint32_t expected = kind;
  if (cell == NULL) {
    return NULL;
  }
  if (!atomic_compare_exchange_strong(&cell->kind, &expected, QUIRE_API_BUSY)) {
    *status_out = QUIRE_ERR_STATE;
    return NULL;
  }
  return atomic_load_explicit(&cell->object, memory_order_relaxed);
}

void quire_api_handle_free(void *handle) {
  struct cell *cell = handle;
  QUIRE_ASSERT(atomic_load_explicit(&cell->kind, memory_order_relaxed) == QUIRE_API_BUSY);
  atomic_store_explicit(&cell->object, NULL, memory_order_relaxed);
  atomic_store_explicit(&cell->kind, QUIRE_API_NONE, memory_order_release);
}

/* The caller's size; 0 when it cannot be one. Multiples of 8 only: no field lies across one, so that none is cut, and a
 * pointer is there whole or not at all. */
static size_t size_of(const void *given) {
  size_t size = 0;
  if (given != NULL) {
    memcpy(&size, given, sizeof size);
  }
  return size < sizeof size || size > QUIRE_KV_SIZE_MAX || size % 8 != 0 ? 0 : size;
}

enum quire_status quire_api_options_read(void *known_out, size_t known_bytes, const void *given, const char *name,
                                         struct quire_error *error_out) {
  QUIRE_ASSERT(known_bytes % 8 == 0 && known_bytes <= QUIRE_KV_SIZE_MAX);
  size_t size = size_of(given);
  if (size == 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, name,
                           given == NULL ? "it is NULL" : "its size is not set, or not a multiple of 8 up to 4,096");
  }
  for (size_t i = known_bytes; i < size; i++) {
    if (((const uint8_t *)given)[i] != 0) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, name,
                             "it has %zu bytes, this library knows %zu, and what follows is not zero", size,
                             known_bytes);
    }
  }
  memset(known_out, 0, known_bytes);
  memcpy(known_out, given, size < known_bytes ? size : known_bytes);
  return QUIRE_OK;
}

enum quire_status quire_api_result_write(void *given, const void *known, size_t known_bytes) {
  QUIRE_ASSERT(known_bytes % 8 == 0 && known_bytes <= QUIRE_KV_SIZE_MAX);
  size_t size = size_of(given);
  if (size == 0) {
    return QUIRE_ERR_ARGUMENT;
  }
  size_t head = sizeof size;
  size_t copied = size < known_bytes ? size : known_bytes;
  memcpy((uint8_t *)given + head, (const uint8_t *)known + head, copied - head);
  memset((uint8_t *)given + copied, 0, size - copied);
  return QUIRE_OK;
}
