/* What works together (law 7): one table of combinations that are refused, each with its reason and the way out.
 *
 * A caller fills the query with everything it was told and is refused at start-up, never later and never in silence.
 * `quire info` prints the table. Pure; any thread. */
#ifndef QUIRE_MODEL_SUPPORT_H
#define QUIRE_MODEL_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "layout/geometry.h"
#include "layout/parts.h"
#include "model/config.h"
#include "model/weights.h"
#include "view/view.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quire_support_query {
  const struct quire_model_config *config;
  struct quire_model_options options;
  struct quire_geometry geometry; /* pages may be 0 while unknown */
  enum quire_view_mode view;
  int32_t ctx_tokens;   /* longest request */
  int32_t cache_tokens; /* of all pages */
  int32_t chunk_tokens; /* prompt tokens of a step */
  int threads_per_rank;
};

struct quire_support_rule {
  const char *name;                                         /* "long-context" */
  bool (*refuses)(const struct quire_support_query *query); /* true: the combination does not work */
  enum quire_status status;                                 /* QUIRE_ERR_UNSUPPORTED or _ARGUMENT */
  const char *where;                                        /* the option to change */
  const char *text;                                         /* reason and way out, one line */
};

/* Rules by number; NULL past the end. */
const struct quire_support_rule *quire_support_rule_at(int index);
/* The first rule that refuses; then quire_model_options_check. */
enum quire_status quire_support_check(const struct quire_support_query *query, struct quire_error *error_out);

#ifdef __cplusplus
}
#endif
#endif
