/* The server's loop against a bare one.
 *
 * livez   requests of /livez a second over 32 connections, each asking again when it is answered; the ceiling is an
 *         epoll loop that reads, looks for the end of the head, and sends the same bytes
 * stream  tokens a second over 256 streams of a server whose model is the executor "sim" (needs --model, of which only
 *         the tokenizer is used); the ceiling is the bare loop sending the same bytes, in pieces as large
 *
 * The client is the same for both: one thread, one epoll, which counts bytes. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/thread.h"
#include "bench/bench_list.h"
#include "engine/worker.h"
#include "server/server.h"
#include "step/sim/sim.h"

enum { ASKERS = 32, STREAMS = 256, BUFFER_BYTES = 64 << 10, PIECE_BYTES = 16 << 10, EVENTS = 64 };

static const char ask_live[] = "GET /livez HTTP/1.1\r\nHost: bench\r\n\r\n";

/* --- the bare loop --- */

/* Answers whatever ends in an empty line with `answer`, `times` times over. */
struct bare {
  int listen_fd, epoll_fd, stop_fd, port;
  const char *answer;
  size_t bytes;
  _Atomic size_t left_each; /* 0: answer once; else stream that many bytes in pieces of the answer */
  pthread_t thread;
  size_t left[4096]; /* by descriptor: what a stream has still to get */
};

static bool set_nonblocking_listener(struct bare *bare) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  socklen_t bytes = sizeof address;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bare->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  bare->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  bare->stop_fd = eventfd(0, EFD_CLOEXEC);
  if (bare->listen_fd < 0 || bare->epoll_fd < 0 || bare->stop_fd < 0 ||
      bind(bare->listen_fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(bare->listen_fd, 1024) != 0 ||
      getsockname(bare->listen_fd, (struct sockaddr *)&address, &bytes) != 0) {
    return false;
  }
  bare->port = ntohs(address.sin_port);
  struct epoll_event listener = {.events = EPOLLIN, .data.fd = bare->listen_fd};
  struct epoll_event stop = {.events = EPOLLIN, .data.fd = bare->stop_fd};
  return epoll_ctl(bare->epoll_fd, EPOLL_CTL_ADD, bare->listen_fd, &listener) == 0 &&
         epoll_ctl(bare->epoll_fd, EPOLL_CTL_ADD, bare->stop_fd, &stop) == 0;
}

static void bare_accept(struct bare *bare) {
  int one = 1;
  for (int fd; (fd = accept4(bare->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fd >= 4096 || epoll_ctl(bare->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
      close(fd);
    } else {
      bare->left[fd] = 0;
    }
  }
}

/* Sends what the socket takes of a stream; asks to be called again for the rest. */
static void bare_stream(struct bare *bare, int fd) {
  while (bare->left[fd] > 0) {
    size_t piece = bare->left[fd] < bare->bytes ? bare->left[fd] : bare->bytes;
    ssize_t sent = send(fd, bare->answer, piece, MSG_NOSIGNAL);
    if (sent <= 0) {
      break;
    }
    bare->left[fd] -= (size_t)sent;
  }
  struct epoll_event event = {.events = bare->left[fd] > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = fd};
  epoll_ctl(bare->epoll_fd, EPOLL_CTL_MOD, fd, &event);
}

static void bare_read(struct bare *bare, int fd) {
  char text[4096];
  ssize_t got = recv(fd, text, sizeof text, 0);
  if (got <= 0) {
    close(fd);
    return;
  }
  bool ends = got >= 4 && memcmp(text + got - 4, "\r\n\r\n", 4) == 0;
  if (ends && bare->left_each > 0) {
    bare->left[fd] = bare->left_each;
    bare_stream(bare, fd);
  } else if (ends) {
    ssize_t sent = send(fd, bare->answer, bare->bytes, MSG_NOSIGNAL);
    QUIRE_ASSERT(sent == (ssize_t)bare->bytes || errno != 0);
  }
}

static void *bare_main(void *context) {
  struct bare *bare = context;
  struct epoll_event events[EVENTS];
  for (;;) {
    int count = epoll_wait(bare->epoll_fd, events, EVENTS, -1);
    for (int i = 0; i < count; i++) {
      int fd = events[i].data.fd;
      if (fd == bare->stop_fd) {
        return NULL;
      }
      if (fd == bare->listen_fd) {
        bare_accept(bare);
      } else if ((events[i].events & EPOLLOUT) != 0) {
        bare_stream(bare, fd);
      } else {
        bare_read(bare, fd);
      }
    }
  }
}

static enum quire_status bare_start(struct bare *bare, struct quire_error *error_out) {
  if (!set_nonblocking_listener(bare) || !quire_thread_start(&bare->thread, bare_main, bare)) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "http", "cannot start the bare loop: %s", strerror(errno));
  }
  return QUIRE_OK;
}

static void bare_stop(struct bare *bare) {
  uint64_t one = 1;
  ssize_t wrote = write(bare->stop_fd, &one, sizeof one);
  QUIRE_ASSERT(wrote == (ssize_t)sizeof one);
  pthread_join(bare->thread, NULL);
  close(bare->listen_fd);
  close(bare->epoll_fd);
  close(bare->stop_fd);
}

/* --- the client --- */

static int dial(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
    close(fd);
    return -1;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

/* Connections of a client; each gets the same request. */
struct client {
  int epoll_fd, count;
  int fd[STREAMS];
  size_t got[STREAMS];
  char *buffer; /* BUFFER_BYTES */
};

static enum quire_status client_open(struct client *client, int port, int count, struct quire_error *error_out) {
  client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  client->buffer = malloc(BUFFER_BYTES);
  client->count = 0;
  for (int i = 0; i < count; i++) {
    int fd = dial(port);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
    if (fd < 0 || client->buffer == NULL || epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
      return quire_error_set(error_out, QUIRE_ERR_IO, "http", "cannot connect: %s", strerror(errno));
    }
    client->fd[client->count++] = fd;
  }
  return QUIRE_OK;
}

static void client_close(struct client *client) {
  for (int i = 0; i < client->count; i++) {
    close(client->fd[i]);
  }
  close(client->epoll_fd);
  free(client->buffer);
}

static bool client_say(const struct client *client, int i, const char *text, size_t bytes) {
  return send(client->fd[i], text, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static enum quire_status lost(struct quire_error *error_out) {
  return quire_error_set(error_out, QUIRE_ERR_IO, "http", "a connection of the bench broke");
}

/* --- livez --- */

struct live_side {
  int port;
  size_t answer_bytes;
  int64_t requests;
};

/* Every connection has one question open; so many answers in all. */
static enum quire_status run_live(void *context, uint64_t *ns_out, struct quire_error *error_out) {
  const struct live_side *side = context;
  struct client client = {.epoll_fd = -1};
  enum quire_status status = client_open(&client, side->port, ASKERS, error_out);
  uint64_t begin = bench_now_ns();
  int64_t asked = 0, answered = 0;
  for (int i = 0; status == QUIRE_OK && i < ASKERS; i++, asked++) {
    client.got[i] = 0;
    status = client_say(&client, i, ask_live, sizeof ask_live - 1) ? QUIRE_OK : lost(error_out);
  }
  while (status == QUIRE_OK && answered < asked) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(client.epoll_fd, events, EVENTS, -1);
    for (int k = 0; k < count && status == QUIRE_OK; k++) {
      int i = (int)events[k].data.u32;
      ssize_t got = recv(client.fd[i], client.buffer, BUFFER_BYTES, 0);
      client.got[i] += got > 0 ? (size_t)got : 0;
      if (got <= 0) {
        status = lost(error_out);
      } else if (client.got[i] >= side->answer_bytes) {
        client.got[i] = 0;
        answered++;
        if (asked < side->requests) {
          asked++;
          status = client_say(&client, i, ask_live, sizeof ask_live - 1) ? QUIRE_OK : lost(error_out);
        }
      }
    }
  }
  *ns_out = bench_now_ns() - begin;
  client_close(&client);
  return status;
}

/* What the server answers, as bytes. */
static enum quire_status copy_answer(int port, char *out, size_t size, size_t *bytes_out,
                                     struct quire_error *error_out) {
  int fd = dial(port);
  size_t got = 0;
  const char *end = NULL;
  if (fd < 0 || send(fd, ask_live, sizeof ask_live - 1, MSG_NOSIGNAL) < 0) {
    return lost(error_out);
  }
  while (end == NULL || got < (size_t)(end - out) + 4 + strlen("{\"status\":\"ok\"}")) {
    ssize_t bytes = recv(fd, out + got, size - got, 0);
    if (bytes <= 0) {
      close(fd);
      return lost(error_out);
    }
    got += (size_t)bytes;
    end = memmem(out, got, "\r\n\r\n", 4);
  }
  close(fd);
  *bytes_out = got;
  return QUIRE_OK;
}

static void *server_main(void *context) {
  quire_server_run(context, NULL);
  return NULL;
}

/* A server on any port with the table's defaults. */
struct host {
  struct quire_server_options options;
  struct quire_options *table;
  struct quire_server *server;
  pthread_t thread;
  bool running;
};

static enum quire_status host_start(struct host *host, struct quire_error *error_out) {
  struct quire_option_group group = {"server", quire_server_rows, quire_server_row_count, &host->options};
  enum quire_status status = quire_options_create(quire_env_default(), &group, 1, &host->table, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  host->options.port = 0;
  status = quire_server_create(quire_env_default(), &host->options, &host->server, error_out);
  if (status == QUIRE_OK) {
    host->running = quire_thread_start(&host->thread, server_main, host->server);
    status = host->running ? QUIRE_OK : quire_error_set(error_out, QUIRE_ERR_MEMORY, "http", "no thread to give");
  }
  return status;
}

static void host_stop(struct host *host) {
  if (host->running) {
    quire_server_stop(host->server);
    pthread_join(host->thread, NULL);
  }
  quire_server_destroy(host->server);
  quire_options_destroy(host->table);
}

static enum quire_status live(struct bench *bench, struct host *host, struct quire_error *error_out) {
  static struct bare bare;
  char answer[1024];
  memset(&bare, 0, sizeof bare);
  struct live_side sides[2] = {{.port = quire_server_port(host->server)}, {0}};
  enum quire_status status = copy_answer(sides[0].port, answer, sizeof answer, &bare.bytes, error_out);
  if (status == QUIRE_OK) {
    bare.answer = answer;
    status = bare_start(&bare, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  sides[1].port = bare.port;
  sides[0].requests = sides[1].requests = bench->options.tiny ? 500 : 20000;
  sides[0].answer_bytes = sides[1].answer_bytes = bare.bytes;
  const struct bench_case c = {
      .name = "livez over 32 connections",
      .unit = "k requests/s",
      .scale = 1e3,
      .threads = 2,
      .sides = 2,
      .side = {{.name = "server", .run = run_live, .context = &sides[0], .units = (double)sides[0].requests},
               {.name = "bare epoll loop", .run = run_live, .context = &sides[1], .units = (double)sides[1].requests}},
      .bars = 1,
      .bar = {{.against = 1, .ratio = 0.4}},
  };
  status = bench_measure(bench, &c, NULL, error_out);
  bare_stop(&bare);
  return status;
}

/* --- streams --- */

struct stream_side {
  int port;
  const char *request;
  size_t request_bytes;
  size_t expected; /* bytes of one answer; 0: until [DONE] */
  size_t bytes;    /* of all answers of the last run */
};

static bool ends_stream(const struct stream_side *side, const struct client *client, int i, size_t got) {
  static const char end[] = "data: [DONE]\n\n\r\n0\r\n\r\n";
  if (side->expected > 0) {
    return client->got[i] >= side->expected;
  }
  return got >= sizeof end - 1 && memcmp(client->buffer + got - (sizeof end - 1), end, sizeof end - 1) == 0;
}

static enum quire_status run_streams(void *context, uint64_t *ns_out, struct quire_error *error_out) {
  struct stream_side *side = context;
  static struct client client;
  enum quire_status status = client_open(&client, side->port, STREAMS, error_out);
  uint64_t begin = bench_now_ns();
  int open = 0;
  side->bytes = 0;
  for (int i = 0; status == QUIRE_OK && i < STREAMS; i++, open++) {
    client.got[i] = 0;
    status = client_say(&client, i, side->request, side->request_bytes) ? QUIRE_OK : lost(error_out);
  }
  while (status == QUIRE_OK && open > 0) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(client.epoll_fd, events, EVENTS, -1);
    for (int k = 0; k < count && status == QUIRE_OK; k++) {
      int i = (int)events[k].data.u32;
      ssize_t got = recv(client.fd[i], client.buffer, BUFFER_BYTES, 0);
      if (got <= 0) {
        status = lost(error_out);
        break;
      }
      client.got[i] += (size_t)got;
      side->bytes += (size_t)got;
      open -= ends_stream(side, &client, i, (size_t)got) ? 1 : 0;
    }
  }
  *ns_out = bench_now_ns() - begin;
  client_close(&client);
  return status;
}

/* Engine and worker over the executor "sim". */
struct stub {
  struct quire_model_config config;
  struct quire_model_weights weights;
  struct quire_engine *engine;
  struct quire_worker *worker;
  struct quire_tokenizer *tokenizer;
  struct quire_server_model model;
};

static enum quire_status stub_open(struct stub *stub, const char *dir, struct quire_error *error_out) {
  const struct quire_env *env = quire_env_default();
  enum quire_status status = quire_tokenizer_open(env, dir, &stub->tokenizer, error_out);
  if (status != QUIRE_OK) {
    return status;
  }
  int32_t vocab = quire_tokenizer_vocab(stub->tokenizer);
  quire_sim_model(vocab, 1 << 20, &stub->config, &stub->weights);
  struct quire_engine_config config = {
      .model = &stub->config,
      .weights = &stub->weights,
      .options = quire_model_options_default(),
      .executor = "sim",
      .ranks = 1,
      .view = QUIRE_VIEW_LOCAL,
      .kv_format = QUIRE_KV_BF16,
      .chunk_tokens = 4096,
      .threads_per_rank = 1,
      .ctx_tokens = 8192,
      .cache_tokens = (STREAMS + 8) * 4096,
      .running_max = STREAMS,
      .queue_max = STREAMS,
  };
  status = quire_kernels_find("auto", &config.kernels, error_out);
  if (status == QUIRE_OK) {
    status = quire_engine_create(env, &config, &stub->engine, error_out);
  }
  if (status == QUIRE_OK) {
    struct quire_worker_config worker = {.engine = stub->engine, .tickets_max = 4 * STREAMS, .ring_events = 128};
    status = quire_worker_create(env, &worker, &stub->worker, error_out);
  }
  stub->model = (struct quire_server_model){
      .name = "stub",
      .path = dir,
      .family = "deepseek_v32",
      .version = "bench",
      .view = "local",
      .kv_format = "bf16",
      .numerics = "sim",
      .worker = stub->worker,
      .tokenizer = stub->tokenizer,
      .vocab = vocab,
      .ctx_tokens = config.ctx_tokens,
      .cache_tokens = config.cache_tokens,
      .page_tokens = QUIRE_PAGE_TOKENS,
      .ranks = 1,
      .running_max = STREAMS,
      .queue_max = STREAMS,
      .defaults = quire_sampling_default(),
  };
  return status;
}

static void stub_close(struct stub *stub) {
  quire_worker_destroy(stub->worker);
  quire_engine_destroy(stub->engine);
  quire_tokenizer_close(stub->tokenizer);
}

static enum quire_status measure_streams(struct bench *bench, struct host *host, struct quire_error *error_out) {
  static struct bare bare;
  static char piece[PIECE_BYTES];
  char request[512], body[256];
  int tokens = bench->options.tiny ? 20 : 2000;
  int bytes = snprintf(body, sizeof body,
                       "{\"prompt\":[5,6,7,8],\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true}", tokens);
  bytes = snprintf(request, sizeof request,
                   "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%s", bytes, body);
  struct stream_side server = {quire_server_port(host->server), request, (size_t)bytes, 0, 0};
  uint64_t ns;
  enum quire_status status = run_streams(&server, &ns, error_out); /* warm, and how many bytes it is */
  memset(&bare, 0, sizeof bare);
  memset(piece, 'x', sizeof piece);
  bare.answer = piece;
  bare.bytes = sizeof piece;
  bare.left_each = server.bytes / STREAMS;
  if (status == QUIRE_OK) {
    status = bare_start(&bare, error_out);
  }
  if (status != QUIRE_OK) {
    return status;
  }
  if (server.bytes < (size_t)tokens * STREAMS * 64) {
    bare_stop(&bare);
    return quire_error_set(error_out, QUIRE_ERR_STATE, "http", "the streams ended before all their tokens had come");
  }
  struct stream_side loop = {bare.port, ask_live, sizeof ask_live - 1, bare.left_each, 0};
  double units = (double)tokens * STREAMS;
  const struct bench_case c = {
      .name = "tokens over 256 streams",
      .unit = "k tokens/s",
      .scale = 1e3,
      .threads = 2,
      .sides = 2,
      .side = {{.name = "server", .run = run_streams, .context = &server, .units = units},
               {.name = "bare loop sending the bytes", .run = run_streams, .context = &loop, .units = units}},
      .bars = 1,
      .bar = {{.against = 1}},
  };
  struct bench_result result;
  status = bench_measure(bench, &c, &result, error_out);
  bare_stop(&bare);
  if (status == QUIRE_OK) {
    struct bench_figure rate = {"streamed tokens", "of 300,000 tokens/s", result.rate[0] / 300000.0, 1.0, false};
    bench_figure(bench, &rate);
  }
  return status;
}

/* Asks /readyz until it says 200. */
static enum quire_status wait_ready(int port, struct quire_error *error_out) {
  static const char ask[] = "GET /readyz HTTP/1.0\r\n\r\n";
  for (int i = 0; i < 1000; i++) {
    char answer[512] = "";
    int fd = dial(port);
    bool said =
        fd >= 0 && send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) > 0 && recv(fd, answer, sizeof answer - 1, 0) > 0;
    close(fd);
    if (said && strncmp(answer, "HTTP/1.1 200", 12) == 0) {
      return QUIRE_OK;
    }
    usleep(10000);
  }
  return quire_error_set(error_out, QUIRE_ERR_STATE, "http", "the server does not become ready");
}

enum quire_status bench_http(struct bench *bench, struct quire_error *error_out) {
  struct host host = {0};
  enum quire_status status = host_start(&host, error_out);
  if (status == QUIRE_OK && bench_wanted(bench, "livez over 32 connections")) {
    status = live(bench, &host, error_out);
  }
  struct stub stub = {0};
  if (status == QUIRE_OK && bench->worker.model != NULL && bench_wanted(bench, "tokens over 256 streams")) {
    status = stub_open(&stub, bench->worker.model, error_out);
    if (status == QUIRE_OK) {
      quire_server_attach(host.server, &stub.model);
      status = wait_ready(quire_server_port(host.server), error_out);
    }
    if (status == QUIRE_OK) {
      status = measure_streams(bench, &host, error_out);
    }
  } else if (bench->worker.model == NULL) {
    printf("without --model, whose tokenizer it uses, there is no measurement of streams\n");
  }
  host_stop(&host);
  stub_close(&stub);
  return status;
}
