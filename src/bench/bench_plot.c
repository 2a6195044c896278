#include "bench/bench_plot.h"

#include <math.h>

#define WIDTH 760
#define HEIGHT 340
#define LEFT 64
#define RIGHT 150
#define TOP 34
#define BOTTOM 46
#define TICKS 5

static const char *const colours[] = {"#4a7fb0", "#c2593f", "#5a9a5f", "#8a6fb3", "#b08a3a", "#5aa0a8"};

/* Where values lie on paper. */
struct frame {
  double x_low, x_high, y_high;
  bool log_x;
};

void bench_plot_text(FILE *file, const char *text) {
  for (; *text != '\0'; text++) {
    switch (*text) {
    case '&':
      fputs("&amp;", file);
      break;
    case '<':
      fputs("&lt;", file);
      break;
    case '>':
      fputs("&gt;", file);
      break;
    case '"':
      fputs("&quot;", file);
      break;
    default:
      fputc(*text, file);
    }
  }
}

const char *bench_plot_number(double value, char out[16]) {
  static const struct {
    double from;
    const char *unit;
  } units[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "K"}};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (value >= units[i].from * 0.99995) {
      snprintf(out, 16, "%.4g%s", value / units[i].from, units[i].unit);
      return out;
    }
  }
  snprintf(out, 16, "%.4g", value);
  return out;
}

static struct frame frame_of(const struct bench_plot *plot) {
  struct frame frame = {.x_low = INFINITY, .x_high = -INFINITY, .y_high = plot->y_max, .log_x = plot->log_x};
  for (int s = 0; s < plot->series_count; s++) {
    for (int i = 0; i < plot->series[s].count; i++) {
      const double x = plot->series[s].x[i], y = plot->series[s].y[i];
      frame.x_low = x < frame.x_low ? x : frame.x_low;
      frame.x_high = x > frame.x_high ? x : frame.x_high;
      frame.y_high = plot->y_max == 0 && y > frame.y_high ? y : frame.y_high;
    }
  }
  frame.x_low = frame.x_low > frame.x_high ? 0 : frame.x_low; /* nothing to show */
  frame.x_low = frame.log_x && frame.x_low <= 0 ? 1 : frame.x_low;
  frame.x_high = frame.x_high > frame.x_low ? frame.x_high : frame.x_low + 1;
  frame.y_high = frame.y_high > 0 ? frame.y_high : 1;
  return frame;
}

static double place_x(const struct frame *frame, double x) {
  const double share = frame->log_x ? log(x / frame->x_low) / log(frame->x_high / frame->x_low)
                                    : (x - frame->x_low) / (frame->x_high - frame->x_low);
  return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct frame *frame, double y) {
  const double share = y > frame->y_high ? 1 : y / frame->y_high;
  return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

/* The largest of 1, 2, 5 times a power of ten that gives at least TICKS - 1 steps up to range. */
static double nice_step(double range) {
  const double power = pow(10, floor(log10(range / (TICKS - 1))));
  const double rest = range / (TICKS - 1) / power;
  return power * (rest >= 5 ? 5 : rest >= 2 ? 2 : 1);
}

static void tick_x(FILE *file, const struct frame *frame, double x) {
  char text[16];
  if (x < frame->x_low * 0.999 || x > frame->x_high * 1.001) {
    return;
  }
  fprintf(file, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#ddd\"/>", place_x(frame, x), TOP,
          place_x(frame, x), HEIGHT - BOTTOM);
  fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", place_x(frame, x), HEIGHT - BOTTOM + 15,
          bench_plot_number(x, text));
}

static void write_grid(FILE *file, const struct frame *frame) {
  char text[16];
  if (frame->log_x) {
    static const double within[] = {1, 3};
    for (double decade = pow(10, floor(log10(frame->x_low))); decade <= frame->x_high; decade *= 10) {
      tick_x(file, frame, decade * within[0]);
      tick_x(file, frame, decade * within[1]);
    }
  } else {
    const double step = nice_step(frame->x_high - frame->x_low);
    for (double x = ceil(frame->x_low / step) * step; x <= frame->x_high * 1.0001; x += step) {
      tick_x(file, frame, x);
    }
  }
  const double step = nice_step(frame->y_high);
  for (double y = 0; y <= frame->y_high * 1.0001; y += step) {
    fprintf(file, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>", LEFT, place_y(frame, y),
            WIDTH - RIGHT, place_y(frame, y));
    fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, place_y(frame, y) + 4,
            bench_plot_number(y, text));
  }
}

static void write_series(FILE *file, const struct frame *frame, const struct bench_series *series, int index) {
  const char *colour = colours[(size_t)index % (sizeof colours / sizeof *colours)];
  fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\"%s points=\"", colour,
          series->dashed ? " stroke-dasharray=\"5 4\"" : "");
  for (int i = 0; i < series->count; i++) {
    if (series->steps && i > 0) {
      fprintf(file, "%.1f,%.1f ", place_x(frame, series->x[i]), place_y(frame, series->y[i - 1]));
    }
    fprintf(file, "%.1f,%.1f ", place_x(frame, series->x[i]), place_y(frame, series->y[i]));
  }
  const int y = TOP + 12 + index * 17;
  fprintf(file, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">", WIDTH - RIGHT + 10, y, colour);
  bench_plot_text(file, series->name);
  fputs("</text>\n", file);
}

void bench_plot_write(FILE *file, const struct bench_plot *plot) {
  const struct frame frame = frame_of(plot);
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
          "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"20\" "
          "font-size=\"14\">",
          WIDTH, HEIGHT, LEFT);
  bench_plot_text(file, plot->title);
  fputs("</text>\n", file);
  write_grid(file, &frame);
  for (int s = 0; s < plot->series_count; s++) {
    write_series(file, &frame, &plot->series[s], s);
  }
  fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
  bench_plot_text(file, plot->x_label);
  fprintf(file, "</text>\n<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">",
          (TOP + HEIGHT - BOTTOM) / 2);
  bench_plot_text(file, plot->y_label);
  fputs("</text>\n</svg>\n", file);
}
