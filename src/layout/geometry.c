#include "layout/geometry.h"

#include "base/assert.h"

bool quire_geometry_valid(const struct quire_geometry *geometry) {
  QUIRE_ASSERT(geometry != NULL);
  return geometry->page_tokens >= 1 && geometry->page_tokens <= QUIRE_PAGE_TOKENS_MAX && geometry->ranks >= 1 &&
         geometry->ranks <= QUIRE_RANKS_MAX && geometry->storage_ranks >= 1 &&
         geometry->storage_ranks <= geometry->ranks && geometry->ranks % geometry->storage_ranks == 0 &&
         geometry->pages >= 1;
}

int32_t quire_geometry_local_pages(const struct quire_geometry *geometry, quire_stripe_id stripe) {
  QUIRE_ASSERT(stripe.v >= 0 && stripe.v < geometry->storage_ranks);
  return geometry->pages / geometry->storage_ranks + (stripe.v < geometry->pages % geometry->storage_ranks);
}
