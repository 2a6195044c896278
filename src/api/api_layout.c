/* The layout: a parts table, a geometry and a fingerprint, made once. */
#include <assert.h>
#include <string.h>

#include "api/api_private.h"
#include "base/assert.h"
#include "layout/bundle.h"
#include "layout/command.h"
#include "layout/fingerprint.h"

static_assert(QUIRE_KV_RANKS_MAX == QUIRE_RANKS_MAX && QUIRE_KV_PARTS_MAX == QUIRE_PARTS_MAX, "limits");
static_assert(QUIRE_KV_PAGE_TOKENS_MAX == QUIRE_PAGE_TOKENS_MAX && QUIRE_KV_PAGE_NONE == QUIRE_PAGE_NONE, "limits");
static_assert(QUIRE_KV_ROW_F32 - 1 == QUIRE_KV_F32 && QUIRE_KV_ROW_BF16 - 1 == QUIRE_KV_BF16 &&
                  QUIRE_KV_ROW_FP8 - 1 == QUIRE_KV_FP8,
              "formats are one more, so that none is 0");
static_assert((int)QUIRE_KV_TARGET == QUIRE_PART_TARGET && (int)QUIRE_KV_DRAFT == QUIRE_PART_DRAFT, "models");
static_assert((int)QUIRE_KV_LATENT == QUIRE_PART_LATENT && (int)QUIRE_KV_INDEX_KEY == QUIRE_PART_INDEX_KEY, "kinds");
static_assert(QUIRE_PART_PIECES_MAX == 2, "pieces in struct quire_kv_part");
static_assert(sizeof(struct quire_kv_layout_options) == 72 && sizeof(struct quire_kv_layout_info) == 72, "ABI 1");
static_assert(sizeof(struct quire_kv_part) == 48 && sizeof(struct quire_kv_place) == 24, "ABI 1");

struct layout_object {
  struct quire_env env;
  struct quire_api_layout layout;
};

static struct layout_object *object_of(const struct quire_kv_layout *handle, enum quire_status *status_out,
                                       struct quire_error *error_out) {
  return quire_api_handle_get(handle, QUIRE_API_LAYOUT, status_out, error_out);
}

const struct quire_api_layout *quire_api_layout_get(const struct quire_kv_layout *handle, enum quire_status *status_out,
                                                    struct quire_error *error_out) {
  const struct layout_object *object = object_of(handle, status_out, error_out);
  return object == NULL ? NULL : &object->layout;
}

/* Which field cannot be; NULL when all can, as far as they can be judged one by one. */
static const char *options_fault(const struct quire_kv_layout_options *o) {
  if (o->format < QUIRE_KV_ROW_F32 || o->format > QUIRE_KV_ROW_FP8) {
    return "format must be one of enum quire_kv_row_format";
  }
  if (o->page_tokens < 0 || o->page_tokens > QUIRE_PAGE_TOKENS_MAX) {
    return "page_tokens must be 1 to 256, or 0 for 64";
  }
  if (o->target_layers < 1 || o->target_layers > QUIRE_PARTS_MAX) {
    return "target_layers must be 1 to 256";
  }
  if (o->draft_layers < 0 || o->draft_layers > 1) {
    return "draft_layers must be 0 or 1";
  }
  if (o->ranks < 0 || o->ranks > QUIRE_RANKS_MAX) {
    return "ranks must be 1 to 16, or 0 for 1";
  }
  if (o->replicated < 0 || o->replicated > 1 || o->reserved != 0) {
    return "replicated must be 0 or 1, and reserved 0";
  }
  if (o->pages < 1 || o->pages > QUIRE_KV_PAGES_MAX) {
    return "pages must be 1 to 16,777,216";
  }
  if (o->numerics_id == NULL || o->numerics_id[0] == 0 ||
      strnlen(o->numerics_id, QUIRE_KV_NUMERICS_BYTES_MAX + 1) > QUIRE_KV_NUMERICS_BYTES_MAX) {
    return "numerics_id must have 1 to 128 bytes";
  }
  return NULL;
}

static enum quire_status build(struct quire_api_layout *layout, const struct quire_kv_layout_options *o,
                               struct quire_error *error_out) {
  const char *fault = options_fault(o);
  if (fault != NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "layout", "%s", fault);
  }
  bool owns[QUIRE_PARTS_MAX];
  for (int32_t i = 0; i < o->target_layers; i++) {
    owns[i] = o->owns_indexer == NULL || o->owns_indexer[i] != 0;
  }
  int32_t page_tokens = o->page_tokens == 0 ? QUIRE_PAGE_TOKENS : o->page_tokens;
  if (!quire_parts_build(&layout->parts, (enum quire_kv_format)(o->format - 1), page_tokens, o->target_layers, owns,
                         o->draft_layers)) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "layout", "%d layers have more than %d parts",
                           (int)o->target_layers, QUIRE_PARTS_MAX);
  }
  int32_t ranks = o->ranks == 0 ? 1 : o->ranks;
  layout->geometry = (struct quire_geometry){
      .page_tokens = page_tokens,
      .ranks = ranks,
      .storage_ranks = o->replicated == 1 ? 1 : ranks,
      .pages = o->pages,
  };
  QUIRE_ASSERT(quire_geometry_valid(&layout->geometry));
  struct quire_bundle_layout bundle;
  quire_bundle_layout_of(&layout->parts, &bundle);
  layout->rest_bytes = bundle.bytes;
  layout->fingerprint = quire_fingerprint(&layout->parts, o->numerics_id, quire_api_hash_in(o->model));
  return QUIRE_OK;
}

enum quire_status quire_kv_layout_create(const struct quire_kv_layout_options *options,
                                         struct quire_kv_layout **layout_out, struct quire_error *error_out) {
  struct quire_kv_layout_options known;
  struct quire_env env;
  if (layout_out == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "layout", "layout_out is NULL");
  }
  enum quire_status status =
      quire_api_options_read(&known, sizeof known, options, "struct quire_kv_layout_options", error_out);
  if (status == QUIRE_OK) {
    status = quire_api_env(&env, NULL, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  struct layout_object *object = quire_env_zalloc(&env, 1, sizeof *object);
  if (object == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "layout", "no memory for its record");
  }
  object->env = env;
  status = build(&object->layout, &known, error_out);
  void *handle = status == QUIRE_OK ? quire_api_handle_reserve() : NULL;
  if (handle == NULL) {
    quire_env_free(&env, object, 1, sizeof *object);
    return status != QUIRE_OK ? status
                              : quire_error_set(error_out, QUIRE_ERR_AGAIN, "layout", "all %d handles are in use",
                                                QUIRE_KV_HANDLES_MAX);
  }
  quire_api_handle_set(handle, QUIRE_API_LAYOUT, object);
  *layout_out = handle;
  return QUIRE_OK;
}

enum quire_status quire_kv_layout_destroy(struct quire_kv_layout *layout) {
  enum quire_status status = QUIRE_OK;
  struct layout_object *object = layout == NULL ? NULL : quire_api_handle_take(layout, QUIRE_API_LAYOUT, &status);
  if (object != NULL) {
    struct quire_env env = object->env;
    quire_env_free(&env, object, 1, sizeof *object);
    quire_api_handle_free(layout);
  }
  return status;
}

enum quire_status quire_kv_layout_info(struct quire_kv_layout *layout, struct quire_kv_layout_info *info_out) {
  enum quire_status status = QUIRE_OK;
  const struct quire_api_layout *l = quire_api_layout_get(layout, &status, NULL);
  if (l == NULL) {
    return status;
  }
  struct quire_kv_layout_info info = {
      .size = sizeof info,
      .format = (int32_t)l->parts.format + 1,
      .page_tokens = l->geometry.page_tokens,
      .target_layers = l->parts.target_layers,
      .draft_layers = l->parts.draft_layers,
      .ranks = l->geometry.ranks,
      .storage_ranks = l->geometry.storage_ranks,
      .pages = l->geometry.pages,
      .parts = l->parts.count,
      .page_bytes = quire_parts_bundle_bytes(&l->parts),
      .rest_bytes = l->rest_bytes,
      .fingerprint = quire_api_hash_out(l->fingerprint),
  };
  return quire_api_result_write(info_out, &info, sizeof info);
}

enum quire_status quire_kv_layout_part(struct quire_kv_layout *layout, int32_t index, struct quire_kv_part *part_out) {
  enum quire_status status = QUIRE_OK;
  const struct quire_api_layout *l = quire_api_layout_get(layout, &status, NULL);
  if (l == NULL) {
    return status;
  }
  if (index < 0 || index >= l->parts.count) {
    return QUIRE_ERR_ARGUMENT;
  }
  const struct quire_part *from = &l->parts.part[index];
  struct quire_kv_part part = {
      .size = sizeof part,
      .model = from->model,
      .kind = from->kind,
      .layer = from->layer,
      .pieces = from->pieces,
      .row_bytes = from->row_bytes,
      .page_bytes = from->page_bytes,
  };
  for (int32_t i = 0; i < from->pieces; i++) {
    part.piece_offset[i] = from->piece[i].offset;
    part.piece_row_bytes[i] = from->piece[i].row_bytes;
  }
  return quire_api_result_write(part_out, &part, sizeof part);
}

enum quire_status quire_kv_layout_place(struct quire_kv_layout *layout, quire_kv_page page,
                                        struct quire_kv_place *place_out) {
  enum quire_status status = QUIRE_OK;
  const struct quire_api_layout *l = quire_api_layout_get(layout, &status, NULL);
  if (l == NULL) {
    return status;
  }
  if (page.v < 0 || page.v >= l->geometry.pages) {
    return QUIRE_ERR_ARGUMENT;
  }
  quire_page inner = {page.v};
  struct quire_kv_place place = {
      .size = sizeof place,
      .owner = quire_page_owner(&l->geometry, inner).v,
      .local = quire_page_local(&l->geometry, inner).v,
      .sender = quire_page_sender(&l->geometry, inner).v,
      .ranks = quire_command_storing_ranks(&l->geometry, inner),
  };
  return quire_api_result_write(place_out, &place, sizeof place);
}

enum quire_status quire_kv_layout_local_pages(struct quire_kv_layout *layout, int32_t rank, int32_t *pages_out) {
  enum quire_status status = QUIRE_OK;
  const struct quire_api_layout *l = quire_api_layout_get(layout, &status, NULL);
  if (l == NULL) {
    return status;
  }
  if (rank < 0 || rank >= l->geometry.ranks || pages_out == NULL) {
    return QUIRE_ERR_ARGUMENT;
  }
  quire_stripe_id stripe = {rank % l->geometry.storage_ranks};
  *pages_out = quire_geometry_local_pages(&l->geometry, stripe);
  return QUIRE_OK;
}
