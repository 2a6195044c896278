/* The table of what is refused. A rule looks at one combination; the order is that of the questions a user would ask
 * first, since only the first answer is given. */
#include "model/support.h"

#include <stddef.h>

#include "base/assert.h"

static bool bad_ranks(const struct quire_support_query *q) {
  return q->geometry.ranks < 1 || q->geometry.ranks > QUIRE_RANKS_MAX;
}

static bool mixed_storage(const struct quire_support_query *q) {
  return q->geometry.storage_ranks != 1 && q->geometry.storage_ranks != q->geometry.ranks;
}

static bool view_impossible(const struct quire_support_query *q) {
  return !quire_view_can(q->view, &q->geometry, NULL);
}

static bool long_context(const struct quire_support_query *q) { return q->ctx_tokens > q->config->positions; }

static bool no_context(const struct quire_support_query *q) { return q->ctx_tokens < 1; }

static bool bad_chunk(const struct quire_support_query *q) { return q->chunk_tokens < 1; }

static bool bad_threads(const struct quire_support_query *q) {
  return q->threads_per_rank < 1 || q->threads_per_rank > QUIRE_TEAM_THREADS_MAX;
}

static bool small_cache(const struct quire_support_query *q) { return q->cache_tokens < q->ctx_tokens; }

#define TEXT_OF(number) TEXT_OF_VALUE(number)
#define TEXT_OF_VALUE(number) #number

static const struct quire_support_rule rules[] = {
    {"ranks", bad_ranks, QUIRE_ERR_ARGUMENT, "ranks", "must be 1 to " TEXT_OF(QUIRE_RANKS_MAX)},
    {"mixed-storage", mixed_storage, QUIRE_ERR_UNSUPPORTED, "kv",
     "the cache is stored once (by all ranks together) or by each rank; choose shared or replicated"},
    {"view", view_impossible, QUIRE_ERR_UNSUPPORTED, "view",
     "local reads only a rank's own pages: it needs replicated KV (or one rank); gather and peer read other ranks' "
     "pages: they need shared KV"},
    {"no-context", no_context, QUIRE_ERR_ARGUMENT, "ctx-tokens", "must be at least 1"},
    {"long-context", long_context, QUIRE_ERR_ARGUMENT, "ctx-tokens",
     "is more than max_position_embeddings, the positions the model knows; lower it"},
    {"cache", small_cache, QUIRE_ERR_ARGUMENT, "cache-tokens",
     "cannot hold one request of ctx-tokens; raise it or lower ctx-tokens"},
    {"chunk", bad_chunk, QUIRE_ERR_ARGUMENT, "chunk-tokens", "must be at least 1"},
    {"threads", bad_threads, QUIRE_ERR_ARGUMENT, "threads-per-rank", "must be 1 to " TEXT_OF(QUIRE_TEAM_THREADS_MAX)},
};

const struct quire_support_rule *quire_support_rule_at(int index) {
  QUIRE_ASSERT(index >= 0);
  return (size_t)index < sizeof rules / sizeof rules[0] ? &rules[index] : NULL;
}

enum quire_status quire_support_check(const struct quire_support_query *query, struct quire_error *error_out) {
  QUIRE_ASSERT(query && query->config);
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    if (rules[i].refuses(query)) {
      return quire_error_set(error_out, rules[i].status, rules[i].where, "%s", rules[i].text);
    }
  }
  return quire_model_options_check(&query->options, error_out);
}
