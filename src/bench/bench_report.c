/* What a bench leaves behind: every repeat as a line of comma-separated values, and a plot of every bar as an SVG that
 * needs nothing else. In the plot 1 is the bar: a figure to its right is better, whichever way the bar points. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/bench_harness.h"

#define ROW_PX 18
#define LABEL_PX 420
#define PLOT_PX 420
#define RIGHT_PX 130
#define TOP_PX 46
#define PLOT_MAX 2.0 /* ratios to the bar beyond this are cut */

static enum quire_status open_file(const struct bench *bench, const char *ending, FILE **file_out,
                                   struct quire_error *error_out) {
  char path[4096];
  int length = snprintf(path, sizeof path, "%s/%s.%s", bench->options.out, bench->entry->name, ending);
  FILE *file = length < (int)sizeof path ? fopen(path, "w") : NULL;
  if (file == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "--out", "cannot write %s.%s in %s: %s", bench->entry->name, ending,
                           bench->options.out, strerror(errno));
  }
  *file_out = file;
  return QUIRE_OK;
}

enum quire_status bench_report_open(struct bench *bench, struct quire_error *error_out) {
  bench->records = 0;
  bench->csv = NULL;
  if (bench->options.out == NULL) {
    return QUIRE_OK;
  }
  if (mkdir(bench->options.out, 0777) != 0 && errno != EEXIST) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "--out", "cannot make the folder %s: %s", bench->options.out,
                           strerror(errno));
  }
  enum quire_status status = open_file(bench, "csv", &bench->csv, error_out);
  if (status == QUIRE_OK) {
    fprintf(bench->csv, "bench,case,side,repeat,value,unit\n");
  }
  return status;
}

static void write_text(FILE *file, const char *text) {
  for (; *text != '\0'; text++) {
    if (*text == '&') {
      fputs("&amp;", file);
    } else if (*text == '<') {
      fputs("&lt;", file);
    } else {
      fputc(*text, file);
    }
  }
}

static void write_row(FILE *file, const struct bench_record *record, int index) {
  double goal = record->bar == 0  ? record->value
                : record->at_most ? record->bar / record->value
                                  : record->value / record->bar;
  double shown = record->bar == 0 ? 0 : goal > PLOT_MAX ? PLOT_MAX : goal < 0 ? 0 : goal;
  int y = TOP_PX + index * ROW_PX;
  fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LABEL_PX - 8, y + 13);
  write_text(file, record->name);
  fprintf(file, "</text><rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>", LABEL_PX, y + 3,
          shown / PLOT_MAX * PLOT_PX, ROW_PX - 6, goal >= 1 ? "#4a7fb0" : "#c2593f");
  fprintf(file, "<text x=\"%d\" y=\"%d\">%.4g", LABEL_PX + PLOT_PX + 8, y + 13, record->value);
  if (record->bar != 0) {
    fprintf(file, " (%s%.4g)", record->at_most ? "&lt;= " : "&gt;= ", record->bar);
  }
  fprintf(file, "</text>\n");
}

static void write_plot(const struct bench *bench, FILE *file) {
  int width = LABEL_PX + PLOT_PX + RIGHT_PX, height = TOP_PX + bench->records * ROW_PX + 12;
  double one = LABEL_PX + PLOT_PX / PLOT_MAX;
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
          "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
          width, height);
  fprintf(file, "<text x=\"12\" y=\"20\" font-size=\"14\">quire bench %s</text>\n", bench->entry->name);
  fprintf(file, "<text x=\"%.0f\" y=\"36\" text-anchor=\"middle\">the bar</text>\n", one);
  for (int i = 0; i < bench->records; i++) {
    write_row(file, &bench->record[i], i);
  }
  fprintf(file, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"black\"/>\n</svg>\n", one, TOP_PX - 6, one,
          height - 8);
}

enum quire_status bench_report_close(struct bench *bench, struct quire_error *error_out) {
  if (bench->csv == NULL) {
    return QUIRE_OK;
  }
  bool written = fclose(bench->csv) == 0;
  bench->csv = NULL;
  FILE *plot = NULL;
  enum quire_status status = open_file(bench, "svg", &plot, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  write_plot(bench, plot);
  written = fclose(plot) == 0 && written;
  return written ? QUIRE_OK
                 : quire_error_set(error_out, QUIRE_ERR_IO, "--out", "cannot write all of %s; is the disk full?",
                                   bench->options.out);
}
