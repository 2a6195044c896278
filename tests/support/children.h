/* The child processes of a test, for executors that fork ranks. */
#ifndef QUIRE_TESTS_CHILDREN_H
#define QUIRE_TESTS_CHILDREN_H

#include <sys/types.h>

/* The children of this process that live, in the order they were made; at most max of them. Returns how many. */
int test_children(pid_t *pids_out, int max);

#endif
