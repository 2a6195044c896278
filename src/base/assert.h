/* Three levels of assertion, all for our own bugs; bad input gets a status instead.
 *
 *   QUIRE_ASSERT     O(1), always on
 *   QUIRE_DEBUG      on with -DQUIRE_DEBUG_ASSERTS
 *   QUIRE_EXPENSIVE  walks whole structures, on with -DQUIRE_EXPENSIVE_ASSERTS
 *
 * A failed assertion prints the expression and aborts: the state can no longer be trusted. */
#ifndef QUIRE_BASE_ASSERT_H
#define QUIRE_BASE_ASSERT_H

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((noreturn, cold)) void quire_assert_fail(const char *expression, const char *file, int line);

#define QUIRE_ASSERT(expression)                                                                                       \
  (__builtin_expect(!!(expression), 1) ? (void)0 : quire_assert_fail(#expression, __FILE__, __LINE__))

#ifdef QUIRE_DEBUG_ASSERTS
#define QUIRE_DEBUG(expression) QUIRE_ASSERT(expression)
#else
#define QUIRE_DEBUG(expression) ((void)0)
#endif

#ifdef QUIRE_EXPENSIVE_ASSERTS
#define QUIRE_EXPENSIVE(expression) QUIRE_ASSERT(expression)
#else
#define QUIRE_EXPENSIVE(expression) ((void)0)
#endif

#ifdef __cplusplus
}
#endif
#endif
