#include "base/metrics.h"

#include <stdbool.h>
#include <string.h>

#include "base/assert.h"

#define METRICS_ROWS_MAX 4096

struct quire_metrics {
  const struct quire_env *env;
  const struct quire_metric *table;
  int count;
  int64_t values[]; /* by id; accessed with relaxed atomics: each number stands for itself */
};

static size_t metrics_bytes(int count) { return sizeof(struct quire_metrics) + (size_t)count * sizeof(int64_t); }

static bool name_valid(const char *name) {
  if (!name || !(*name == '_' || (*name >= 'a' && *name <= 'z'))) {
    return false;
  }
  for (; *name; name++) {
    if (!(*name == '_' || (*name >= 'a' && *name <= 'z') || (*name >= '0' && *name <= '9'))) {
      return false;
    }
  }
  return true;
}

static bool ends_with(const char *text, const char *end) {
  size_t text_bytes = strlen(text), end_bytes = strlen(end);
  return text_bytes >= end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

static bool same_labels(const struct quire_metric *a, const struct quire_metric *b) {
  return strcmp(a->labels ? a->labels : "", b->labels ? b->labels : "") == 0;
}

/* What is wrong with a row, given those before it; NULL: nothing. */
static const char *fault_of(const struct quire_metric *table, int row) {
  const struct quire_metric *metric = &table[row];
  if (!name_valid(metric->name)) {
    return "the name must be [a-z_][a-z0-9_]*";
  }
  if (!metric->help || strchr(metric->help, '\n')) {
    return "the help must be one line";
  }
  if ((metric->kind == QUIRE_METRIC_COUNTER) != ends_with(metric->name, "_total")) {
    return "a counter, and only a counter, ends in _total";
  }
  for (int i = 0; i < row; i++) {
    if (strcmp(table[i].name, metric->name) != 0) {
      continue;
    }
    if (strcmp(table[row - 1].name, metric->name) != 0) {
      return "rows of one name must stand together";
    }
    if (table[i].kind != metric->kind || strcmp(table[i].help, metric->help) != 0) {
      return "rows of one name must share kind and help";
    }
    if (same_labels(&table[i], metric)) {
      return "it is there twice";
    }
  }
  return NULL;
}

enum quire_status quire_metrics_create(const struct quire_env *env, const struct quire_metric *table, int count,
                                       struct quire_metrics **metrics_out, struct quire_error *error_out) {
  if (count < 0 || count > METRICS_ROWS_MAX) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "metrics", "the table must have 0 to %d rows, not %d",
                           METRICS_ROWS_MAX, count);
  }
  for (int i = 0; i < count; i++) {
    const char *fault = fault_of(table, i);
    if (fault) {
      return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, table[i].name ? table[i].name : "metrics", "row %d: %s", i,
                             fault);
    }
  }
  struct quire_metrics *metrics = quire_env_zalloc(env, 1, metrics_bytes(count));
  if (!metrics) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "metrics", "no memory for %d rows", count);
  }
  metrics->env = env;
  metrics->table = table;
  metrics->count = count;
  *metrics_out = metrics;
  return QUIRE_OK;
}

void quire_metrics_destroy(struct quire_metrics *metrics) {
  if (metrics) {
    quire_env_free(metrics->env, metrics, 1, metrics_bytes(metrics->count));
  }
}

void quire_metrics_add(struct quire_metrics *metrics, int id, int64_t amount) {
  QUIRE_ASSERT(id >= 0 && id < metrics->count);
  QUIRE_ASSERT(amount >= 0 || metrics->table[id].kind == QUIRE_METRIC_GAUGE);
  __atomic_fetch_add(&metrics->values[id], amount, __ATOMIC_RELAXED);
}

void quire_metrics_set(struct quire_metrics *metrics, int id, int64_t value) {
  QUIRE_ASSERT(id >= 0 && id < metrics->count);
  QUIRE_ASSERT(metrics->table[id].kind == QUIRE_METRIC_GAUGE);
  __atomic_store_n(&metrics->values[id], value, __ATOMIC_RELAXED);
}

int64_t quire_metrics_get(const struct quire_metrics *metrics, int id) {
  QUIRE_ASSERT(id >= 0 && id < metrics->count);
  return __atomic_load_n(&metrics->values[id], __ATOMIC_RELAXED);
}

int quire_metrics_count(const struct quire_metrics *metrics) { return metrics->count; }

const struct quire_metric *quire_metrics_at(const struct quire_metrics *metrics, int id) {
  QUIRE_ASSERT(id >= 0 && id < metrics->count);
  return &metrics->table[id];
}

void quire_metrics_write(const struct quire_metrics *metrics, struct quire_strbuf *buffer) {
  for (int i = 0; i < metrics->count; i++) {
    const struct quire_metric *metric = &metrics->table[i];
    if (i == 0 || strcmp(metrics->table[i - 1].name, metric->name) != 0) {
      const char *kind = metric->kind == QUIRE_METRIC_COUNTER ? "counter" : "gauge";
      quire_strbuf_addf(buffer, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name, kind);
    }
    long long value = (long long)quire_metrics_get(metrics, i);
    if (metric->labels) {
      quire_strbuf_addf(buffer, "%s{%s} %lld\n", metric->name, metric->labels, value);
    } else {
      quire_strbuf_addf(buffer, "%s %lld\n", metric->name, value);
    }
  }
}
