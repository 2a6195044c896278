#include "base/wall.h"

#include <stdio.h>
#include <time.h>

int64_t quire_wall_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct tm broken_down(int64_t ms) {
  time_t seconds = (time_t)(ms / 1000);
  struct tm tm = {0};
  gmtime_r(&seconds, &tm);
  return tm;
}

void quire_wall_http(int64_t ms, char out[QUIRE_WALL_HTTP_BYTES]) {
  static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
  struct tm tm = broken_down(ms);
  snprintf(out, QUIRE_WALL_HTTP_BYTES, "%.3s, %02u %.3s %04u %02u:%02u:%02u GMT", days + 3 * tm.tm_wday,
           (unsigned)tm.tm_mday % 100, months + 3 * tm.tm_mon, (unsigned)(tm.tm_year + 1900) % 10000,
           (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
}

void quire_wall_iso(int64_t ms, char out[QUIRE_WALL_ISO_BYTES]) {
  struct tm tm = broken_down(ms);
  snprintf(out, QUIRE_WALL_ISO_BYTES, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", (unsigned)(tm.tm_year + 1900) % 10000,
           (unsigned)(tm.tm_mon + 1) % 100, (unsigned)tm.tm_mday % 100, (unsigned)tm.tm_hour % 100,
           (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100, (unsigned)(ms % 1000));
}
