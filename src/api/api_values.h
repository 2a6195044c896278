/* The numbers of the public status and error, which callers were compiled with and which therefore never change. Two
 * headers define them, base/status.h for the library and quire/kv_status.h for callers, and in one file only the first
 * that is included counts: api_status.c includes this behind the one, api_handle.c behind the other. Compile time only;
 * no memory, any thread. */
#ifndef QUIRE_API_API_VALUES_H
#define QUIRE_API_API_VALUES_H

#include <assert.h>
#include <stddef.h>

#include "base/status.h"

static_assert(QUIRE_OK == 0, "ok");
static_assert(QUIRE_ERR_ARGUMENT == 1, "argument");
static_assert(QUIRE_ERR_STATE == 2, "state");
static_assert(QUIRE_ERR_UNSUPPORTED == 3, "unsupported");
static_assert(QUIRE_ERR_AGAIN == 4, "again");
static_assert(QUIRE_ERR_NOT_FOUND == 5, "not found");
static_assert(QUIRE_ERR_REQUEST == 16, "request");
static_assert(QUIRE_ERR_NONFINITE == 17, "nonfinite");
static_assert(QUIRE_ERR_CANCELLED == 18, "cancelled");
static_assert(QUIRE_ERR_PEER == 32, "peer");
static_assert(QUIRE_ERR_MISMATCH == 33, "mismatch");
static_assert(QUIRE_ERR_ABORTED == 48, "aborted");
static_assert(QUIRE_ERR_RANK == 49, "rank");
static_assert(QUIRE_ERR_MEMORY == 64, "memory");
static_assert(QUIRE_ERR_IO == 65, "io");
static_assert(QUIRE_ERR_CORRUPT == 66, "corrupt");
static_assert(sizeof(enum quire_status) == 4, "a status of 4 bytes");
static_assert(sizeof(struct quire_error) == 580, "an error of 580 bytes");
static_assert(offsetof(struct quire_error, where) == 4, "where at 4");
static_assert(offsetof(struct quire_error, text) == 68, "text at 68");

#endif
