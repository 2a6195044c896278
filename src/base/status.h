/* What a call answers, and the one record of why it failed.
 *
 * QUIRE_OK is 0 everywhere, kernel launchers included. The values are grouped by what is damaged, so that a caller
 * who only wants to know "may I go on with other requests?" can ask quire_status_damage(). The function that detects a
 * fault fills struct quire_error once, with what the user can do about it; functions in between pass it on untouched.
 * On failure outputs are untouched and the object is as before, unless a header says otherwise.
 *
 * Threads: all functions here are pure or write only what they are given. */
#ifndef QUIRE_BASE_STATUS_H
#define QUIRE_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* include/quire/kv_status.h has the same two definitions for callers; src/api compares them */
#ifndef QUIRE_STATUS_DEFINED
#define QUIRE_STATUS_DEFINED

#define QUIRE_WHERE_BYTES 64
#define QUIRE_TEXT_BYTES 512

enum quire_status {
  QUIRE_OK = 0,
  /* the call: nothing is damaged, the caller asked for something that cannot be */
  QUIRE_ERR_ARGUMENT = 1,    /* a value that is out of bounds or contradicts another */
  QUIRE_ERR_STATE = 2,       /* not now: the object is not in a state that allows the call */
  QUIRE_ERR_UNSUPPORTED = 3, /* refused by the support table; the text names the combination */
  QUIRE_ERR_AGAIN = 4,       /* no room at the moment; nothing was changed, try again later */
  QUIRE_ERR_NOT_FOUND = 5,
  /* the request: it fails, the others go on */
  QUIRE_ERR_REQUEST = 16,   /* too long, empty, or otherwise impossible to serve */
  QUIRE_ERR_NONFINITE = 17, /* a NaN or an infinity was about to enter the cache */
  QUIRE_ERR_CANCELLED = 18,
  /* a peer */
  QUIRE_ERR_PEER = 32,
  QUIRE_ERR_MISMATCH = 33, /* fingerprints, versions or digests differ */
  /* a rank: the step is lost, the worker restarts clean */
  QUIRE_ERR_ABORTED = 48, /* the epoch was poisoned by another rank */
  QUIRE_ERR_RANK = 49,
  /* the node */
  QUIRE_ERR_MEMORY = 64,
  QUIRE_ERR_IO = 65,
  QUIRE_ERR_CORRUPT = 66, /* a file or a buffer that does not say what its format demands */
};

enum quire_damage {
  QUIRE_DAMAGE_NONE,
  QUIRE_DAMAGE_CALL,
  QUIRE_DAMAGE_REQUEST,
  QUIRE_DAMAGE_PEER,
  QUIRE_DAMAGE_RANK,
  QUIRE_DAMAGE_NODE,
};

struct quire_error {
  enum quire_status status;
  char where[QUIRE_WHERE_BYTES]; /* object or file, e.g. "config.json: rope_theta" */
  char text[QUIRE_TEXT_BYTES];   /* one line: what is wrong and the way out */
};

#endif /* QUIRE_STATUS_DEFINED */

/* The group a status belongs to. */
enum quire_damage quire_status_damage(enum quire_status status);

/* The status' name, "argument", "memory", ...; "unknown" for a value outside the enum. Never NULL. */
const char *quire_status_name(enum quire_status status);

/* Fills *error_out (which may be NULL) and returns status, so that detectors end with
 * `return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "--ranks", "must be 1 to 16, not %d", n);` */
enum quire_status quire_error_set(struct quire_error *error_out, enum quire_status status, const char *where,
                                  const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The call again as a macro around itself: it hands the compiler the status, so that it knows which paths failed and
 * warns of a variable without a value only where there is one. status is evaluated twice. */
static inline enum quire_status quire_error_known(enum quire_status filled, enum quire_status status) {
  (void)filled;
  return status;
}
#define quire_error_set(error_out, status, ...)                                                                        \
  quire_error_known(quire_error_set(error_out, status, __VA_ARGS__), status)

#ifdef __cplusplus
}
#endif
#endif
