/* The parts of a server, for the files of this folder. */
#ifndef QUIRE_SERVER_SERVER_PRIVATE_H
#define QUIRE_SERVER_SERVER_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "base/list.h"
#include "base/queue.h"
#include "base/strbuf.h"
#include "server/api_request.h"
#include "server/server.h"
#include "text/answer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SERVER_KEYS_MAX 1024
#define SERVER_TEXT_THREADS_MAX 16
#define SERVER_JOBS_MAX 1024
#define SERVER_ID_BYTES (QUIRE_API_ID_BYTES_MAX + 16)
/* Bodies up to this are read on the loop's thread. */
#define SERVER_INLINE_BYTES 4096
#define SERVER_EVENTS 64
/* Unread output of a stream at which its tokens stay where they are. */
#define SERVER_OUT_BYTES ((size_t)256 << 10)
#define SERVER_BUCKETS_MAX 24

/* CUT: everybody has an answer, which goes out. */
enum server_state { SERVER_LOADING, SERVER_READY, SERVER_LEAVING, SERVER_DEAF, SERVER_CUT };

struct server_histogram {
  const double *bounds; /* rising */
  int count;
  int64_t below[SERVER_BUCKETS_MAX + 1]; /* not cumulative; the last is above all bounds */
  double sum;
};

/* Counters of the loop's thread. */
struct server_numbers {
  struct server_histogram ttft, itl, e2e;
  struct server_histogram queue, prefill, decode; /* parts of a sequence's time */
  int64_t answered[6];                            /* by hundreds of the status */
  int64_t finished[4];                            /* stop, length, abort, error */
  int64_t disconnects, prompt_tokens, cached_tokens, drawn_tokens, rejected, streams;
};

/* Failures that the log has not told of: many fail at once when a rank does, and become one line. */
struct server_failures {
  int64_t count;
  uint64_t since_ns; /* of the first, as the rest */
  char id[SERVER_ID_BYTES];
  struct quire_error error;
};

enum call_finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR };

struct call;

/* One sequence of a request: a prompt and one of its n answers. */
struct choice {
  struct call *call;
  int32_t index; /* in the answer */
  int32_t prompt;
  quire_ticket ticket;
  struct quire_answer *answer;
  bool open;    /* has a ticket whose end was not seen */
  bool blocked; /* events wait until its client has read */
  bool begun;   /* something of it was sent */
  bool fresh;   /* generate: there is more than was sent */
  bool reasons; /* inside its reasoning */
  enum call_finish finish;
  int32_t matched_stop;  /* index of a stop string, or QUIRE_STOP_NONE */
  int32_t matched_token; /* stop token, or QUIRE_TOKEN_NONE */
  int32_t drawn, reasoning_drawn, cached;
  size_t held;                                 /* of its call's, for buffers */
  uint64_t first_ns;                           /* when its first token came */
  uint64_t token_ns;                           /* when the last one came */
  size_t text_characters;                      /* of its tokens so far, for offsets */
  int32_t held_token;                          /* a stop token: whether it ended the answer the next event says */
  struct quire_strbuf content, reasoning, ids; /* whole answers and generate */
  /* log-probabilities not sent yet, each a list without its brackets */
  struct quire_strbuf lp_tokens, lp_values, lp_tops, lp_offsets;
  struct quire_strbuf lp_prompt, lp_prompt_tops; /* generate: of the prompt */
};

/* One request for text, from its arrival to its last byte. */
struct call {
  struct quire_list node;  /* in server->calls */
  struct quire_list dirty; /* in server->dirty */
  struct quire_server *server;
  struct quire_http_exchange *exchange; /* NULL: the client has left */
  char id[SERVER_ID_BYTES];             /* of the answer */
  char request_id[SERVER_ID_BYTES];     /* X-Request-Id: the client's, or id */
  enum quire_api_kind kind;
  bool working;  /* a text thread has it */
  bool prepared; /* request and prompts are good */
  bool streaming, aborted;
  bool begun;                                        /* the head of a stream is out */
  bool done;                                         /* answered to the end */
  bool probe;                                        /* /health_generate's own */
  size_t held;                                       /* of server->held_bytes */
  int32_t stops[QUIRE_ENGINE_STOPS_MAX], stop_count; /* tokens that end an answer */
  struct quire_strbuf body, out, head;               /* head: what every chunk begins with */
  struct quire_api_request request;
  struct quire_api_fault fault;
  bool thinking; /* the prompt opened a reasoning block */
  int32_t max_tokens;
  struct choice *choices;
  int32_t choice_count, open;
  int64_t created; /* seconds since 1970 */
  uint64_t begin_ns, first_ns, sent_ns;
};

/* Work for a text thread, and back. */
struct server_job {
  void (*work)(void *context); /* a text thread */
  void (*done)(void *context); /* the loop's thread */
  void *context;
};

struct ticket_slot {
  uint64_t ticket;
  struct choice *choice;
};

struct quire_server {
  const struct quire_env *env;
  const struct quire_server_options *options;
  struct quire_loop *loop;
  struct quire_http_server *http;
  struct quire_loop_watch *wake_watch, *worker_watch, *tick;
  int wake_fd;
  _Atomic(const struct quire_server_model *) offered; /* by attach */
  atomic_bool drain_asked, stop_asked;
  const struct quire_server_model *model; /* NULL while loading */
  enum server_state state;
  uint64_t state_ns; /* when it began */
  int64_t started_seconds;
  struct quire_queue *jobs, *jobs_done;
  pthread_t threads[SERVER_TEXT_THREADS_MAX];
  int thread_count, jobs_open;
  struct quire_sha256 *keys; /* [key_count] */
  int key_count;
  struct quire_list calls, dirty, text_jobs;
  int32_t call_count;
  size_t held_bytes; /* of open calls: body and JSON, prompts of all choices, answers; and bodies of text jobs */
  struct ticket_slot *slots;
  int32_t slot_count; /* a power of two */
  int32_t tickets;
  struct server_numbers numbers;
  struct server_failures failures;
  struct server_numbers probe_numbers; /* of requests that are the server's own; nobody looks at them */
  struct call *probe;                  /* /health_generate's request, one at a time, or NULL */
  int64_t probe_drawn;                 /* numbers.drawn_tokens when it began */
  double throughput;                   /* tokens a second, of the last second */
  int64_t throughput_tokens;           /* drawn when it was computed */
  uint64_t throughput_ns;
};

/* --- server.c --- */
uint64_t quire_server_now(const struct quire_server *server);
/* Name under which the model is served. */
const char *quire_server_model_name(const struct quire_server *server);
/* False: the queue of jobs is full. */
bool quire_server_post(struct quire_server *server, struct server_job job);
/* The words of a 503 for who asks for health, or NULL: it is well. Asks no thread, takes no lock. */
const char *quire_server_illness(const struct quire_server *server);
/* Counts memory of a request (its body and tree, its copies, its answer) as held, until its holder takes it off
 * held_bytes; false with a fault when they are too many. */
bool quire_server_hold(struct quire_server *server, size_t bytes, struct quire_api_fault *fault);

/* --- tickets.c --- */
bool quire_tickets_create(struct quire_server *server);
/* Room for more tickets; false: no memory. */
bool quire_tickets_reserve(struct quire_server *server, int32_t more);
void quire_tickets_put(struct quire_server *server, quire_ticket ticket, struct choice *choice);
struct choice *quire_tickets_find(const struct quire_server *server, quire_ticket ticket);
void quire_tickets_remove(struct quire_server *server, quire_ticket ticket);

/* --- routes.c --- */
struct quire_http_handler quire_server_handler(struct quire_server *server);
/* Replaces all keys by those of the options and the file; on failure they stay. */
bool quire_server_read_keys(struct quire_server *server, struct quire_error *error_out);
/* Answers with JSON, or with a fault; ends the exchange. */
void quire_server_answer(struct quire_server *server, struct quire_http_exchange *exchange, int status,
                         const char *type, struct quire_strbuf *body);
void quire_server_answer_fault(struct quire_server *server, struct quire_http_exchange *exchange,
                               const struct quire_api_fault *fault);

/* Answers those who wait for a text thread: the server ends. */
void quire_text_jobs_cut(struct quire_server *server, const struct quire_api_fault *fault);
/* Drops jobs whose threads have ended. */
void quire_text_jobs_destroy(struct quire_server *server);

/* --- infos.c: bodies of answers that describe the server --- */
void quire_info_version(struct quire_server *server, struct quire_strbuf *out);
void quire_info_model_card(struct quire_server *server, struct quire_strbuf *out);
void quire_info_models(struct quire_server *server, struct quire_strbuf *out);
void quire_info_model(struct quire_server *server, struct quire_strbuf *out);
void quire_info_server(struct quire_server *server, struct quire_strbuf *out);
/* Sections of a list with commas between; an empty one is all of them. False with a fault: there is no such section. */
bool quire_info_loads_sections(const char *include, unsigned *sections_out, struct quire_api_fault *fault);
void quire_info_loads(struct quire_server *server, unsigned sections, struct quire_strbuf *out);
void quire_server_metrics(struct quire_server *server, struct quire_strbuf *out);
void quire_numbers_init(struct server_numbers *numbers);
void quire_histogram_add(struct server_histogram *histogram, double value);

/* --- calls.c --- */
/* Takes the exchange's body and answers in time. */
void quire_call_begin(struct quire_server *server, struct quire_http_exchange *exchange, enum quire_api_kind kind);
/* Answers with what a request of one token comes to, or with the health of a worker that is too busy for it. */
void quire_call_probe(struct quire_server *server, struct quire_http_exchange *exchange);
void quire_call_gone(struct call *call);
/* Its client has read: events that waited are taken. */
void quire_call_room(struct call *call);
/* Ends what it runs; it answers with what there is. */
void quire_call_abort(struct call *call);
/* News of the worker. */
void quire_calls_pump(struct quire_server *server);
/* Sends what was written since the last time. */
void quire_calls_flush(struct quire_server *server);
void quire_calls_tick(struct quire_server *server, uint64_t now);
/* Writes the line of those that have failed since the last one. */
void quire_calls_log_failures(struct quire_server *server);
/* Answers all that are open: the server ends. */
void quire_calls_cut(struct quire_server *server, const struct quire_api_fault *fault);
/* Drops all without answers; after the loop. */
void quire_calls_destroy(struct quire_server *server);

/* --- prepare.c --- */
/* Any thread: reads the body, renders and tokenises. Sets prepared, or fault. */
void quire_call_prepare(struct call *call);
/* Work on text that is answered at once; tokenize and detokenize bodies to their answers. */
bool quire_text_tokenize(struct quire_server *server, struct quire_http_slice body, struct quire_strbuf *out,
                         struct quire_api_fault *fault);
bool quire_text_detokenize(struct quire_server *server, struct quire_http_slice body, struct quire_strbuf *out,
                           struct quire_api_fault *fault);

/* --- writes.c --- */
/* Text that became certain, for the stream or the whole answer. */
void quire_write_delta(struct choice *choice, const struct quire_answer_delta *delta);
void quire_write_prompt(struct choice *choice);
void quire_write_logprob(struct choice *choice, const struct quire_engine_event *event);
/* Counts a token's characters for the offsets of those behind it. */
void quire_write_count(struct choice *choice, int32_t token);
void quire_write_finish(struct choice *choice);
/* generate: everything so far. */
void quire_write_cumulative(struct choice *choice);
void quire_write_stream_end(struct call *call);
void quire_write_stream_fault(struct call *call);
/* The whole answer, into call->out. */
void quire_write_whole(struct call *call);

#ifdef __cplusplus
}
#endif
#endif
