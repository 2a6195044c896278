/* Names, digests and the caller's allocator. */
#include "api/api_private.h"
#include "api/api_values.h"

static_assert(sizeof(struct quire_kv_hash) == 16, "a hash of 16 bytes");

static void log_nothing(void *context, enum quire_log_level level, const char *line) {
  (void)context;
  (void)level;
  (void)line;
}

enum quire_status quire_api_env(struct quire_env *env_out, const struct quire_kv_allocator *allocator,
                                struct quire_error *error_out) {
  struct quire_env env = *quire_env_default();
  env.log = log_nothing;
  if (allocator != NULL) {
    struct quire_kv_allocator given;
    enum quire_status status =
        quire_api_options_read(&given, sizeof given, allocator, "struct quire_kv_allocator", error_out);
    if (status != QUIRE_OK) {
      return status;
    }
    if (given.alloc == NULL || given.dealloc == NULL) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "allocator", "alloc and dealloc must both be given");
    }
    env.context = given.context;
    env.alloc = given.alloc;
    env.dealloc = given.dealloc;
  }
  *env_out = env;
  return QUIRE_OK;
}

int32_t quire_kv_abi(void) { return QUIRE_KV_ABI; }

const char *quire_kv_status_name(enum quire_status status) { return quire_status_name(status); }

enum quire_status quire_kv_digest(const void *data, size_t bytes, struct quire_kv_hash *digest_out) {
  if (digest_out == NULL || (data == NULL && bytes != 0) || bytes > PTRDIFF_MAX) {
    return QUIRE_ERR_ARGUMENT;
  }
  *digest_out = quire_api_hash_out(quire_hash128(data, bytes, 0));
  return QUIRE_OK;
}
