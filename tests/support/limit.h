/* An end for tests that may hang. */
#ifndef QUIRE_TESTS_LIMIT_H
#define QUIRE_TESTS_LIMIT_H

#include <stdlib.h>
#include <unistd.h>

/* Ends the program after so many seconds; not under a sanitizer (QUIRE_TEST_SMALL), whose caller alone knows how slow
 * it is and sets a limit of its own. */
static inline void test_limit(unsigned seconds) {
  if (getenv("QUIRE_TEST_SMALL") == NULL) {
    alarm(seconds);
  }
}

#endif
