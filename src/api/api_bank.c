/* The bank. Beside the bank itself the object keeps whom it is connected with: a bank reads its peers' memory through
 * their records, so when one goes the others must first finish and then refuse. */
#include <assert.h>
#include <string.h>

#include "api/api_private.h"
#include "bank/bank.h"
#include "base/assert.h"

#define QUEUE_DEFAULT 64

static_assert(QUIRE_KV_QUEUE_MAX == QUIRE_BANK_QUEUE_MAX && QUIRE_KV_BIND_ALIGN == QUIRE_BANK_BIND_ALIGN, "limits");
static_assert(sizeof(struct quire_kv_bank_options) == 32 && sizeof(struct quire_kv_fault) == 24, "ABI 1");

struct bank_object {
  struct quire_env env; /* the bank keeps a pointer to it */
  struct quire_geometry geometry;
  int32_t parts;
  int32_t rank;
  struct quire_bank *bank;
  int32_t peer_count; /* 0: not connected, or a peer was destroyed */
  struct bank_object *peers[QUIRE_RANKS_MAX];
};

static struct bank_object *object_of(const struct quire_kv_bank *handle, enum quire_status *status_out,
                                     struct quire_error *error_out) {
  return quire_api_handle_get(handle, QUIRE_API_BANK, status_out, error_out);
}

static enum quire_status argument(struct quire_error *error_out, const char *text) {
  return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "%s", text);
}

/* --- life --- */

static enum quire_status config_of(struct quire_bank_config *config_out, struct quire_env *env_out,
                                   const struct quire_api_layout *layout, const struct quire_kv_bank_options *options,
                                   struct quire_error *error_out) {
  struct quire_kv_bank_options o;
  enum quire_status status = quire_api_options_read(&o, sizeof o, options, "struct quire_kv_bank_options", error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  if ((o.execution != QUIRE_KV_BY_THREAD && o.execution != QUIRE_KV_BY_CALLER) || o.reserved != 0) {
    return argument(error_out, "execution must be one of enum quire_kv_execution, reserved 0");
  }
  *config_out = (struct quire_bank_config){
      .geometry = layout->geometry,
      .rank = {o.rank},
      .parts = &layout->parts,
      .fingerprint = layout->fingerprint,
      .queue_commands = o.queue_commands == 0 ? QUEUE_DEFAULT : o.queue_commands,
      .stream_mode = o.execution == QUIRE_KV_BY_CALLER ? QUIRE_STREAM_INLINE : QUIRE_STREAM_THREAD,
  };
  return quire_api_env(env_out, o.allocator, error_out);
}

enum quire_status quire_kv_bank_create(struct quire_kv_layout *layout, const struct quire_kv_bank_options *options,
                                       struct quire_kv_bank **bank_out, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_bank_config config;
  struct quire_env env;
  const struct quire_api_layout *l = quire_api_layout_get(layout, &status, error_out);
  if (l == NULL) {
    return status;
  }
  if (bank_out == NULL) {
    return argument(error_out, "bank_out is NULL");
  }
  status = config_of(&config, &env, l, options, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  struct bank_object *object = quire_env_zalloc(&env, 1, sizeof *object);
  if (object == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bank", "no memory for its record");
  }
  object->env = env;
  object->geometry = l->geometry;
  object->parts = l->parts.count;
  object->rank = config.rank.v;
  status = quire_bank_create(&object->env, &config, &object->bank, error_out);
  void *handle = status == QUIRE_OK ? quire_api_handle_reserve() : NULL;
  if (handle == NULL) {
    quire_bank_destroy(object->bank);
    quire_env_free(&env, object, 1, sizeof *object);
    return status != QUIRE_OK
               ? status
               : quire_error_set(error_out, QUIRE_ERR_AGAIN, "bank", "all %d handles are in use", QUIRE_KV_HANDLES_MAX);
  }
  quire_api_handle_set(handle, QUIRE_API_BANK, object);
  *bank_out = handle;
  return QUIRE_OK;
}

/* All banks of the worker finish what they were given; from then on none has peers. */
static void part_from_peers(struct bank_object *object) {
  struct bank_object *peers[QUIRE_RANKS_MAX];
  int32_t count = object->peer_count;
  memcpy(peers, object->peers, sizeof peers);
  for (int32_t i = 0; i < count; i++) {
    QUIRE_ASSERT(peers[i]->peer_count == count && peers[i]->peers[object->rank] == object);
    quire_bank_drain(peers[i]->bank);
  }
  for (int32_t i = 0; i < count; i++) {
    peers[i]->peer_count = 0;
  }
}

enum quire_status quire_kv_bank_destroy(struct quire_kv_bank *bank) {
  enum quire_status status = QUIRE_OK;
  struct bank_object *object = bank == NULL ? NULL : quire_api_handle_take(bank, QUIRE_API_BANK, &status);
  if (object != NULL) {
    struct quire_env env = object->env;
    part_from_peers(object);
    quire_bank_destroy(object->bank);
    quire_env_free(&env, object, 1, sizeof *object);
    quire_api_handle_free(bank);
  }
  return status;
}

/* --- memory --- */

enum quire_status quire_kv_bank_bind(struct quire_kv_bank *bank, int32_t part, void *base, int64_t page_stride,
                                     int32_t pages, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct bank_object *object = object_of(bank, &status, error_out);
  return object == NULL ? status : quire_bank_bind(object->bank, part, base, page_stride, pages, error_out);
}

enum quire_status quire_kv_bank_allocate(struct quire_kv_bank *bank, struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct bank_object *object = object_of(bank, &status, error_out);
  return object == NULL ? status : quire_bank_allocate(object->bank, error_out);
}

enum quire_status quire_kv_bank_host(struct quire_kv_bank *bank, void *base, int64_t bytes,
                                     struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct bank_object *object = object_of(bank, &status, error_out);
  return object == NULL ? status : quire_bank_host(object->bank, base, bytes, error_out);
}

enum quire_status quire_kv_bank_connect(struct quire_kv_bank *const *banks, int32_t ranks,
                                        struct quire_error *error_out) {
  struct bank_object *objects[QUIRE_RANKS_MAX] = {NULL};
  struct quire_bank *inner[QUIRE_RANKS_MAX];
  enum quire_status status = QUIRE_OK;
  if (banks == NULL || ranks < 1 || ranks > QUIRE_RANKS_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "bank", "ranks must be 1 to %d, not %d", QUIRE_RANKS_MAX,
                           (int)ranks);
  }
  for (int32_t r = 0; r < ranks; r++) {
    objects[r] = object_of(banks[r], &status, error_out);
    if (objects[r] == NULL) {
      return status;
    }
    if (objects[r]->peer_count != 0) {
      return quire_error_set(error_out, QUIRE_ERR_STATE, "bank", "rank %d is connected already", (int)r);
    }
    inner[r] = objects[r]->bank;
  }
  status = quire_bank_connect(inner, ranks, NULL, error_out);
  for (int32_t r = 0; r < ranks && status == QUIRE_OK; r++) {
    memcpy(objects[r]->peers, objects, sizeof objects);
    objects[r]->peer_count = ranks;
  }
  return status;
}

enum quire_status quire_kv_bank_page(struct quire_kv_bank *bank, int32_t part, quire_kv_page page, void **address_out) {
  enum quire_status status = QUIRE_OK;
  struct bank_object *object = object_of(bank, &status, NULL);
  if (object == NULL) {
    return status;
  }
  quire_page inner = {page.v};
  quire_rank_id rank = {object->rank};
  if (address_out == NULL || part < 0 || part >= object->parts || page.v >= object->geometry.pages ||
      !quire_page_stored_by(&object->geometry, inner, rank)) {
    return QUIRE_ERR_ARGUMENT;
  }
  uint8_t *address = quire_bank_page(object->bank, part, quire_page_local(&object->geometry, inner));
  if (address == NULL) {
    return QUIRE_ERR_STATE;
  }
  *address_out = address;
  return QUIRE_OK;
}

/* --- commands --- */

enum quire_status quire_kv_bank_submit(struct quire_kv_bank *bank, const struct quire_kv_command *command,
                                       struct quire_error *error_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_command inner;
  struct bank_object *object = object_of(bank, &status, error_out);
  if (object == NULL) {
    return status;
  }
  if (command == NULL) {
    return argument(error_out, "command is NULL");
  }
  if (object->peer_count == 0) {
    return quire_error_set(error_out, QUIRE_ERR_STATE, "bank",
                           "not connected, or a bank it was connected with is gone: connect first");
  }
  memcpy(&inner, command, sizeof inner);
  return quire_bank_submit(object->bank, &inner, error_out);
}

enum quire_status quire_kv_bank_poll(struct quire_kv_bank *bank, struct quire_kv_ack *acks_out, int32_t acks_max,
                                     int32_t *count_out) {
  enum quire_status status = QUIRE_OK;
  struct bank_object *object = object_of(bank, &status, NULL);
  if (object == NULL) {
    return status;
  }
  if (acks_max < 0 || (acks_out == NULL && acks_max > 0) || count_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  int32_t count = 0;
  struct quire_ack ack;
  while (count < acks_max && quire_bank_poll(object->bank, &ack, 1) == 1) {
    memcpy(&acks_out[count++], &ack, sizeof ack);
  }
  *count_out = count;
  return QUIRE_OK;
}

enum quire_status quire_kv_bank_fault(struct quire_kv_bank *bank, struct quire_kv_fault *fault_out,
                                      struct quire_error *why_out) {
  enum quire_status status = QUIRE_OK;
  struct quire_bank_fault from;
  struct bank_object *object = object_of(bank, &status, NULL);
  if (object == NULL) {
    return status;
  }
  if (!quire_bank_last_fault(object->bank, &from)) {
    return QUIRE_ERR_NOT_FOUND;
  }
  struct quire_kv_fault fault = {.size = sizeof fault, .op = from.op, .part = from.part};
  status = quire_api_result_write(fault_out, &fault, sizeof fault);
  if (status == QUIRE_OK && why_out != NULL) {
    *why_out = from.error;
  }
  return status;
}

enum quire_status quire_kv_bank_drain(struct quire_kv_bank *bank) {
  enum quire_status status = QUIRE_OK;
  struct bank_object *object = object_of(bank, &status, NULL);
  if (object != NULL) {
    quire_bank_drain(object->bank);
  }
  return status;
}
