/* Named numbers that a running worker shows: counters that only rise, gauges that are set.
 *
 * The names are one table of constant rows, given at creation; a metric's id is its row. So everything that can be
 * measured is listed in one file, and a name is neither registered twice nor late. Adding is one relaxed atomic
 * operation; nothing is allocated or locked after creation.
 *
 * Names are those of Prometheus: [a-z_][a-z0-9_]*, counters end in _total, units in the name. A row may carry one fixed
 * label set ("view=\"peer\""); rows of one name stand together and share kind and help.
 *
 * Memory: one block of env; the table stays the caller's. Threads: any. */
#ifndef QUIRE_BASE_METRICS_H
#define QUIRE_BASE_METRICS_H

#include <stdint.h>

#include "base/env.h"
#include "base/status.h"
#include "base/strbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

enum quire_metric_kind { QUIRE_METRIC_COUNTER, QUIRE_METRIC_GAUGE };

struct quire_metric {
  const char *name;
  enum quire_metric_kind kind;
  const char *help;
  const char *labels; /* NULL, or what stands between the braces */
};

struct quire_metrics;

/* QUIRE_ERR_ARGUMENT names the row of a table that breaks a rule above. */
enum quire_status quire_metrics_create(const struct quire_env *env, const struct quire_metric *table, int count,
                                       struct quire_metrics **metrics_out, struct quire_error *error_out);
void quire_metrics_destroy(struct quire_metrics *metrics);

/* Counters: amount >= 0. Gauges: either sign. */
void quire_metrics_add(struct quire_metrics *metrics, int id, int64_t amount);
/* Gauges only. */
void quire_metrics_set(struct quire_metrics *metrics, int id, int64_t value);
int64_t quire_metrics_get(const struct quire_metrics *metrics, int id);

int quire_metrics_count(const struct quire_metrics *metrics);
const struct quire_metric *quire_metrics_at(const struct quire_metrics *metrics, int id);
/* Appends all of them in Prometheus' text format 0.0.4. */
void quire_metrics_write(const struct quire_metrics *metrics, struct quire_strbuf *buffer);

#ifdef __cplusplus
}
#endif
#endif
