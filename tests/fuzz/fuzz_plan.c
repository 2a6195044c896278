// fuzz: runs=4000000
/* Step plans as another process could hand them over: a plan that passes its check must be safe to walk. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "layout/step_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct quire_step_limits limits = {
    .entries_max = 3, .tokens_max = 40, .pages_max = 8, .lists_max = 20, .biases_max = 8, .tops_max = 12};

static volatile int64_t read_sum; /* so that nothing that is read is optimised away */

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
  const struct quire_step_sampling *s = quire_step_entry_sampling(plan, &limits, entry);
  if (s == NULL) {
    return;
  }
  int64_t sum = 0;
  for (int32_t i = 0; i < s->list_end - s->list_begin; i++) {
    sum += quire_step_sampling_list(plan, &limits, s)[i];
  }
  for (int32_t i = 0; i < s->bias_count; i++) {
    sum += quire_step_sampling_biases(plan, &limits, s)[i].token;
  }
  for (int32_t p = s->list_end; (entry->flags & QUIRE_ENTRY_SAMPLE) != 0 && quire_step_sampling_penalises(s) &&
                                p < entry->end && p < s->list_end + 64;
       p++) {
    sum += quire_step_entry_token(plan, &limits, entry, p);
  }
  read_sum = sum;
  QUIRE_ASSERT(s->top_first + s->top_count <= limits.tops_max && s->row_top_first + s->row_top_count >= 0);
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
