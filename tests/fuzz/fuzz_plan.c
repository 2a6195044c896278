/* Step plans as another process could hand them over: a plan that passes its check must be safe to walk. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "layout/step_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct quire_step_limits limits = {.entries_max = 3, .tokens_max = 40, .pages_max = 8};

/* Everything a rank asks of an entry. Long ranges would only cost time. */
static void walk(const struct quire_step_plan *plan, const struct quire_step_entry *entry) {
  for (int32_t position = entry->begin; position < entry->end && position < entry->begin + 64; position++) {
    int32_t rank = quire_step_entry_producer(plan, entry, position);
    int32_t draft = quire_step_entry_draft_producer(plan, entry, position);
    QUIRE_ASSERT(rank >= 0 && rank < plan->ranks && draft >= -1 && draft < plan->ranks);
    (void)quire_step_entry_token(plan, &limits, entry, position);
  }
  for (int32_t i = 0; i < entry->append_count; i++) {
    (void)quire_step_plan_pages(plan, &limits)[entry->append_first + i];
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t bytes = (size_t)quire_step_plan_bytes(&limits);
  struct quire_step_plan *plan = calloc(1, bytes);
  QUIRE_ASSERT(plan != NULL);
  memcpy(plan, data, size < bytes ? size : bytes);
  const char *why = NULL;
  if (quire_step_plan_check(plan, &limits, &why)) {
    for (int32_t e = 0; e < plan->entry_count; e++) {
      walk(plan, quire_step_plan_entries(plan) + e);
    }
  } else {
    QUIRE_ASSERT(why != NULL);
  }
  free(plan);
  return 0;
}
