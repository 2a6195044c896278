/* A server in this process over the executor "sim": real HTTP, tokenizer (quire-mini's), engine and worker, no model.
 * And a client that asks one question at a time. Everything fails the test on the spot. Threads: one. */
#ifndef QUIRE_TESTS_SERVED_H
#define QUIRE_TESTS_SERVED_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "model/config.h"
#include "model/weights.h"
#include "server/server.h"
#include "step/sim/sim.h"

struct served_config {
  int32_t running_max, queue_max;   /* 0: 16, 64 */
  int32_t ctx_tokens, cache_tokens; /* 0: 4,096, four times as many */
  int32_t ring_events;              /* 0: 64 */
  uint64_t fail_epoch;              /* the step in which a rank fails; 0: none */
  bool loading;                     /* attach later */
  const struct quire_env *env;      /* of the server alone; NULL: the default */
  /* called with the options' defaults before the server is made; NULL: as they are */
  void (*change)(struct quire_server_options *options);
};

struct served {
  struct quire_server_options options;
  struct quire_options *table;
  int hang, dead; /* atomic: steps from this one on do not end, 0: all do; rank 0 has died */
  struct quire_sim_config sim;
  struct quire_model_config config;
  struct quire_model_weights weights;
  struct quire_engine *engine;
  struct quire_worker *worker;
  struct quire_tokenizer *tokenizer;
  struct quire_chat *chat;
  int32_t eos;
  struct quire_server_model model;
  struct quire_server *server;
  pthread_t thread;
  int port;
  bool over; /* run has returned and was joined */
};

void served_open(struct served *served, const struct served_config *config);
/* Two requests run, two wait. */
void served_open_narrow(struct served *served, int32_t ctx_tokens,
                        void (*change)(struct quire_server_options *options));
/* A narrow server and four requests without an end: every place is taken. */
void served_open_full(struct served *served, int32_t ctx_tokens, int fds_out[4]);
void served_attach(struct served *served);
/* Waits until no request is inside, then checks the laws: no pin, no request, free + cached = all pages. */
void served_check_empty(struct served *served);
/* Waits for run to return by itself. */
void served_join(struct served *served);
void served_close(struct served *served);

/* --- a client --- */

struct reply {
  int status;
  char head[4096]; /* with the status line */
  char *body;      /* chunks joined; terminated */
  size_t bytes;
  bool complete; /* ended as its framing says */
};

int client_connect(int port);
/* Sends a request with a body (NULL: none) on a connection; fields are more lines, or NULL. */
void client_send(int fd, const char *method, const char *path, const char *fields, const char *body);
/* Reads one answer; gives up after 20 s. */
void client_receive(int fd, struct reply *reply_out);
/* All of it on a connection of its own. */
void client_ask(int port, const char *method, const char *path, const char *body, struct reply *reply_out);
void reply_free(struct reply *reply);
/* The status of a request without a body; fields as in client_send. */
int served_status(const struct served *served, const char *method, const char *path, const char *fields);
void client_wait_ms(int ms);

/* --- answers that are JSON --- */

json_t *reply_json(const struct reply *reply);
/* The member at "a.0.b" of a value; NULL where there is none. */
const json_t *json_at(const json_t *value, const char *path);
/* These fail the test where there is none. */
const char *json_text_at(const json_t *value, const char *path);
int64_t json_int_at(const json_t *value, const char *path);

#endif
