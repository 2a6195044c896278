/* What a run of the load client comes to: percentiles, CSV, and one HTML page with plots that needs nothing else. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "bench/bench_plot.h"
#include "bench/load.h"

#define CURVE_POINTS 201

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Nearest rank. */
static double at_share(const double *sorted, int64_t count, double share) {
  const int64_t rank = (int64_t)(share * (double)count + 0.999999) - 1;
  return sorted[rank < 0 ? 0 : rank >= count ? count - 1 : rank];
}

/* Sorts values. */
static struct load_percentiles percentiles_of(double *values, int64_t count) {
  struct load_percentiles p = {.count = count};
  if (count == 0) {
    return p;
  }
  qsort(values, (size_t)count, sizeof *values, compare_doubles);
  for (int64_t i = 0; i < count; i++) {
    p.mean += values[i] / (double)count;
  }
  p.p50 = at_share(values, count, 0.50);
  p.p90 = at_share(values, count, 0.90);
  p.p95 = at_share(values, count, 0.95);
  p.p99 = at_share(values, count, 0.99);
  p.max = values[count - 1];
  return p;
}

static double ms(uint64_t later, uint64_t earlier) { return (double)(later - earlier) * 1e-6; }

/* One figure of every request that has it, in milliseconds. */
enum figure { TTFT, TPOT, E2E, LATE };

static int64_t collect(const struct load_run *run, enum figure figure, double *values) {
  int64_t count = 0;
  for (int64_t i = 0; i < run->count; i++) {
    const struct load_request *r = &run->requests[i];
    const int32_t tokens = r->completion_tokens > 0 ? r->completion_tokens : r->events;
    if (figure == TTFT && r->events > 0) {
      values[count++] = ms(r->first_ns, r->sent_ns);
    } else if (figure == TPOT && r->outcome == LOAD_OK && tokens > 1) {
      values[count++] = ms(r->last_ns, r->first_ns) / (tokens - 1);
    } else if (figure == E2E && r->outcome == LOAD_OK) {
      values[count++] = ms(r->done_ns, r->sent_ns);
    } else if (figure == LATE && run->options->rate > 0 && r->sent_ns > 0) {
      values[count++] = ms(r->sent_ns, r->at_ns);
    }
  }
  return count;
}

enum quire_status load_summarise(const struct load_run *run, struct load_summary *summary_out,
                                 struct quire_error *error_out) {
  struct load_summary s = {.seconds = (double)run->elapsed_ns * 1e-9};
  const size_t room = (size_t)(run->count > run->itl_count ? run->count : run->itl_count);
  double *values = quire_env_zalloc(run->env, room, sizeof *values);
  if (values == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench serve", "no memory for %zu figures", room);
  }
  s.ttft_ms = percentiles_of(values, collect(run, TTFT, values));
  s.tpot_ms = percentiles_of(values, collect(run, TPOT, values));
  s.e2e_ms = percentiles_of(values, collect(run, E2E, values));
  s.late_ms = percentiles_of(values, collect(run, LATE, values));
  for (int64_t i = 0; i < run->itl_count; i++) {
    values[i] = run->itl_ms[i];
  }
  s.itl_ms = percentiles_of(values, run->itl_count);
  quire_env_free(run->env, values, room, sizeof *values);
  for (int64_t i = 0; i < run->count; i++) {
    const struct load_request *r = &run->requests[i];
    s.outcomes[r->outcome]++;
    if (r->outcome == LOAD_OK) {
      s.input_tokens += r->prompt_tokens > 0 ? r->prompt_tokens : 0;
      s.output_tokens += r->completion_tokens > 0 ? r->completion_tokens : r->events;
      s.cached_tokens += r->cached_tokens > 0 ? r->cached_tokens : 0;
    }
  }
  *summary_out = s;
  return QUIRE_OK;
}

/* --- the terminal --- */

struct named {
  const char *name, *about;
  struct load_percentiles p;
};

#define NAMED 5

static void name_all(const struct load_summary *s, struct named out[NAMED]) {
  out[0] = (struct named){"ttft_ms", "time to first token", s->ttft_ms};
  out[1] = (struct named){"itl_ms", "time between tokens", s->itl_ms};
  out[2] = (struct named){"tpot_ms", "time per output token after the first", s->tpot_ms};
  out[3] = (struct named){"e2e_ms", "whole answer", s->e2e_ms};
  out[4] = (struct named){"late_ms", "sent after its time (the client's delay)", s->late_ms};
}

static double per_second(int64_t count, const struct load_summary *s) {
  return s->seconds > 0 ? (double)count / s->seconds : 0;
}

void load_print(const struct load_run *run, const struct load_summary *s) {
  struct named named[NAMED];
  name_all(s, named);
  printf("%lld requests in %.2f s, at most %lld in flight: %.2f requests/s, %.1f input and %.1f output tokens/s\n",
         (long long)run->count, s->seconds, (long long)run->running_max, per_second(s->outcomes[LOAD_OK], s),
         per_second(s->input_tokens, s), per_second(s->output_tokens, s));
  if (s->input_tokens > 0) {
    printf("%.2f %% of input tokens were cached\n", 100.0 * (double)s->cached_tokens / (double)s->input_tokens);
  }
  printf("%-10s %8s %10s %10s %10s %10s %10s %10s\n", "", "count", "mean", "p50", "p90", "p95", "p99", "max");
  for (int i = 0; i < NAMED; i++) {
    const struct load_percentiles *p = &named[i].p;
    if (p->count > 0) {
      printf("%-10s %8lld %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", named[i].name, (long long)p->count, p->mean,
             p->p50, p->p90, p->p95, p->p99, p->max);
    }
  }
  for (int o = LOAD_OK; o < LOAD_OUTCOMES; o++) {
    if (s->outcomes[o] > 0) {
      printf("%-12s %lld%s%s\n", load_outcome_name((enum load_outcome)o), (long long)s->outcomes[o],
             run->notes[o][0] != '\0' ? "  " : "", run->notes[o]);
    }
  }
}

/* --- files --- */

static enum quire_status open_file(const struct load_run *run, const char *name, FILE **file_out,
                                   struct quire_error *error_out) {
  char path[4096];
  const int length = snprintf(path, sizeof path, "%s/%s", run->options->out, name);
  *file_out = length < (int)sizeof path ? fopen(path, "w") : NULL;
  return *file_out ? QUIRE_OK
                   : quire_error_set(error_out, QUIRE_ERR_IO, "--out", "cannot write %s in %s: %s", name,
                                     run->options->out, strerror(errno));
}

static enum quire_status close_file(const struct load_run *run, FILE *file, struct quire_error *error_out) {
  const bool bad = ferror(file) != 0;
  return fclose(file) == 0 && !bad ? QUIRE_OK
                                   : quire_error_set(error_out, QUIRE_ERR_IO, "--out",
                                                     "cannot write all of %s; is the disk full?", run->options->out);
}

static void write_requests(const struct load_run *run, FILE *file) {
  fprintf(file, "request,outcome,status,at_ms,sent_ms,ttft_ms,e2e_ms,input_planned,prefix,output_planned,events,"
                "prompt_tokens,completion_tokens,cached_tokens\n");
  for (int64_t i = 0; i < run->count; i++) {
    const struct load_request *r = &run->requests[i];
    fprintf(file, "%lld,%s,%d,%.3f,%.3f,", (long long)i, load_outcome_name(r->outcome), r->status, ms(r->at_ns, 0),
            ms(r->sent_ns, 0));
    if (r->events > 0) {
      fprintf(file, "%.3f", ms(r->first_ns, r->sent_ns));
    }
    fprintf(file, ",%.3f,%d,%d,%d,%d,%d,%d,%d\n", ms(r->done_ns, r->sent_ns), r->input, r->prefix, r->output, r->events,
            r->prompt_tokens, r->completion_tokens, r->cached_tokens);
  }
}

static void write_summary(const struct load_run *run, const struct load_summary *s, FILE *file) {
  struct named named[NAMED];
  name_all(s, named);
  fprintf(file, "figure,count,mean,p50,p90,p95,p99,max\n");
  for (int i = 0; i < NAMED; i++) {
    const struct load_percentiles *p = &named[i].p;
    fprintf(file, "%s,%lld,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f\n", named[i].name, (long long)p->count, p->mean, p->p50,
            p->p90, p->p95, p->p99, p->max);
  }
  for (int o = 0; o < LOAD_OUTCOMES; o++) {
    fprintf(file, "outcome_%s,%lld,,,,,,\n", load_outcome_name((enum load_outcome)o), (long long)s->outcomes[o]);
  }
  fprintf(file, "seconds,,%.6f,,,,,\ninput_tokens,%lld,,,,,,\noutput_tokens,%lld,,,,,,\ncached_tokens,%lld,,,,,,\n",
          s->seconds, (long long)s->input_tokens, (long long)s->output_tokens, (long long)s->cached_tokens);
  fprintf(file, "running_max,%lld,,,,,,\n", (long long)run->running_max);
}

/* --- the page --- */

/* A distribution as a curve: share of values at or below x. Sorts values. */
static int curve(double *values, int64_t count, double x[CURVE_POINTS], double y[CURVE_POINTS]) {
  if (count == 0) {
    return 0;
  }
  qsort(values, (size_t)count, sizeof *values, compare_doubles);
  for (int i = 0; i < CURVE_POINTS; i++) {
    const double share = (double)i / (CURVE_POINTS - 1);
    x[i] = at_share(values, count, share);
    x[i] = x[i] > 1e-3 ? x[i] : 1e-3;
    y[i] = 100 * share;
  }
  return CURVE_POINTS;
}

static void write_distributions(const struct load_run *run, double *values, FILE *file) {
  static double x[4][CURVE_POINTS], y[4][CURVE_POINTS];
  int counts[4];
  counts[0] = curve(values, collect(run, TTFT, values), x[0], y[0]);
  counts[1] = curve(values, collect(run, TPOT, values), x[1], y[1]);
  counts[2] = curve(values, collect(run, E2E, values), x[2], y[2]);
  for (int64_t i = 0; i < run->itl_count; i++) {
    values[i] = run->itl_ms[i];
  }
  counts[3] = curve(values, run->itl_count, x[3], y[3]);
  static const char *const names[] = {"first token", "per output token", "whole answer", "between tokens"};
  struct bench_series series[4];
  for (int i = 0; i < 4; i++) {
    series[i] = (struct bench_series){.name = names[i], .x = x[i], .y = y[i], .count = counts[i]};
  }
  const struct bench_plot plot = {.title = "How long things took",
                                  .x_label = "milliseconds",
                                  .y_label = "percent that took at most so long",
                                  .log_x = true,
                                  .y_max = 100,
                                  .series = series,
                                  .series_count = 4};
  bench_plot_write(file, &plot);
}

/* Tokens a second and requests in flight over the run, in CURVE_POINTS steps. */
static void write_timeline(const struct load_run *run, FILE *file) {
  static double x[CURVE_POINTS], tokens[CURVE_POINTS], running[CURVE_POINTS];
  const uint64_t slices = run->elapsed_ns / LOAD_SLICE_NS + 1;
  const uint64_t most = slices < LOAD_SLICES_MAX ? slices : LOAD_SLICES_MAX;
  const uint64_t step = (most + CURVE_POINTS - 1) / CURVE_POINTS;
  int points = 0;
  for (uint64_t s = 0; s < most; s += step, points++) {
    uint64_t sum = 0;
    for (uint64_t i = s; i < s + step && i < most; i++) {
      sum += run->slices[i];
    }
    x[points] = (double)(s * LOAD_SLICE_NS) * 1e-9;
    tokens[points] = (double)sum / ((double)(step * LOAD_SLICE_NS) * 1e-9);
    running[points] = 0;
    for (int64_t i = 0; i < run->count; i++) {
      const struct load_request *r = &run->requests[i];
      running[points] += r->sent_ns <= s * LOAD_SLICE_NS && r->done_ns > s * LOAD_SLICE_NS;
    }
  }
  const struct bench_series series[] = {{.name = "tokens/s", .x = x, .y = tokens, .count = points, .steps = true},
                                        {.name = "in flight", .x = x, .y = running, .count = points, .steps = true}};
  struct bench_plot plot = {.title = "Output over the run",
                            .x_label = "seconds",
                            .y_label = "tokens a second",
                            .series = &series[0],
                            .series_count = 1};
  bench_plot_write(file, &plot);
  plot = (struct bench_plot){.title = "Requests in flight",
                             .x_label = "seconds",
                             .y_label = "requests",
                             .series = &series[1],
                             .series_count = 1};
  bench_plot_write(file, &plot);
}

static void write_table(const struct load_run *run, const struct load_summary *s, FILE *file) {
  struct named named[NAMED];
  name_all(s, named);
  fputs("<table><tr><th>milliseconds</th><th>count</th><th>mean</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th>"
        "<th>max</th></tr>\n",
        file);
  for (int i = 0; i < NAMED; i++) {
    const struct load_percentiles *p = &named[i].p;
    if (p->count > 0) {
      fprintf(file,
              "<tr><td>%s</td><td>%lld</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td>"
              "<td>%.3f</td></tr>\n",
              named[i].about, (long long)p->count, p->mean, p->p50, p->p90, p->p95, p->p99, p->max);
    }
  }
  fputs("</table>\n<table><tr><th>outcome</th><th>requests</th><th>first of them said</th></tr>\n", file);
  for (int o = 0; o < LOAD_OUTCOMES; o++) {
    if (s->outcomes[o] > 0) {
      fprintf(file, "<tr><td>%s</td><td>%lld</td><td>", load_outcome_name((enum load_outcome)o),
              (long long)s->outcomes[o]);
      bench_plot_text(file, run->notes[o]);
      fputs("</td></tr>\n", file);
    }
  }
  fputs("</table>\n", file);
}

static void write_page(const struct load_run *run, const struct load_summary *s, double *values, FILE *file) {
  const struct load_options *o = run->options;
  fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>quire bench serve</title>\n<style>"
        "body{font-family:sans-serif;max-width:60em;margin:2em auto;color:#222}table{border-collapse:collapse;"
        "margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}td:first-child,th:first-child"
        "{text-align:left}svg{display:block;margin:1em 0;max-width:100%;height:auto}</style></head><body>\n"
        "<h1>quire bench serve</h1>\n<p>",
        file);
  bench_plot_text(file, o->url);
  fputs(", model ", file);
  bench_plot_text(file, run->model);
  fprintf(file, ": %lld requests in %.2f s, at most %lld in flight. ", (long long)run->count, s->seconds,
          (long long)run->running_max);
  if (o->rate > 0) {
    fprintf(file, "Sent at random times, %.4g a second on average; ", o->rate);
  } else {
    fprintf(file, "%lld at a time; ", (long long)o->concurrency);
  }
  fprintf(file,
          "seed %lld; %lld shared prefixes of %lld tokens.</p>\n<p><b>%.2f</b> requests/s, <b>%.1f</b> input and ",
          (long long)o->seed, (long long)o->prefixes, o->prefixes > 0 ? (long long)o->prefix_tokens : 0,
          per_second(s->outcomes[LOAD_OK], s), per_second(s->input_tokens, s));
  fprintf(file, "<b>%.1f</b> output tokens/s, <b>%.2f %%</b> of input tokens cached.</p>\n",
          per_second(s->output_tokens, s),
          s->input_tokens > 0 ? 100.0 * (double)s->cached_tokens / (double)s->input_tokens : 0.0);
  write_table(run, s, file);
  write_distributions(run, values, file);
  write_timeline(run, file);
  fputs("</body></html>\n", file);
}

enum quire_status load_write(const struct load_run *run, const struct load_summary *summary,
                             struct quire_error *error_out) {
  const size_t room = (size_t)(run->count > run->itl_count ? run->count : run->itl_count);
  FILE *file = NULL;
  QUIRE_ASSERT(run->options->out);
  if (mkdir(run->options->out, 0777) != 0 && errno != EEXIST) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "--out", "cannot make the folder %s: %s", run->options->out,
                           strerror(errno));
  }
  enum quire_status status = open_file(run, "requests.csv", &file, error_out);
  if (status == QUIRE_OK) {
    write_requests(run, file);
    status = close_file(run, file, error_out);
  }
  status = status != QUIRE_OK ? status : open_file(run, "summary.csv", &file, error_out);
  if (status == QUIRE_OK) {
    write_summary(run, summary, file);
    status = close_file(run, file, error_out);
  }
  double *values = quire_env_zalloc(run->env, room, sizeof *values);
  if (status == QUIRE_OK && values == NULL) {
    status = quire_error_set(error_out, QUIRE_ERR_MEMORY, "bench serve", "no memory for %zu figures", room);
  }
  status = status != QUIRE_OK ? status : open_file(run, "report.html", &file, error_out);
  if (status == QUIRE_OK) {
    write_page(run, summary, values, file);
    status = close_file(run, file, error_out);
  }
  quire_env_free(run->env, values, room, sizeof *values);
  return status;
}
