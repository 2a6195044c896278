#include "net/http_server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/wall.h"
#include "net/http_private.h"

enum { ACCEPTS_PER_TURN = 64, BACKLOG = 1024 };

struct quire_http_limits quire_http_limits_default(void) {
  QUIRE_ASSERT(QUIRE_HTTP_AHEAD_BYTES >= QUIRE_HTTP_READ_BYTES);
  const uint64_t second = 1000000000;
  return (struct quire_http_limits){
      .connections = 4096,
      .head_bytes = (size_t)32 << 10,
      .body_bytes = (size_t)32 << 20,
      .bodies_bytes = (size_t)512 << 20,
      .out_bytes = (size_t)256 << 10,
      .idle_ns = 75 * second,
      .head_ns = 10 * second,
      .body_ns = 60 * second,
      .write_ns = 30 * second,
  };
}

uint64_t quire_http_now(const struct quire_http_server *server) {
  QUIRE_ASSERT(server->env != NULL);
  return server->env->now_ns(server->env->context);
}

void quire_http_make_id(const struct quire_http_server *server, char id_out[QUIRE_HTTP_ID_BYTES_MAX + 1]) {
  const struct quire_env *env = server->env;
  QUIRE_ASSERT(env != NULL);
  unsigned long long high = env->random(env->context), low = env->random(env->context);
  snprintf(id_out, QUIRE_HTTP_ID_BYTES_MAX + 1, "%016llx%016llx", high, low);
}

/* One connection too many: it gets one line and is closed. */
static void turn_away(struct quire_http_server *server, int fd) {
  struct quire_strbuf body, text;
  char id[QUIRE_HTTP_ID_BYTES_MAX + 1];
  QUIRE_ASSERT(fd >= 0);
  quire_http_make_id(server, id);
  quire_strbuf_init(&body, server->env);
  quire_strbuf_init(&text, server->env);
  server->config.handler.refuse(server->config.handler.context, 503, "the server has too many connections", &body);
  quire_strbuf_addf(&text,
                    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                    "X-Request-Id: %s\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s",
                    body.bytes, id, quire_strbuf_text(&body));
  ssize_t sent = send(fd, quire_strbuf_text(&text), text.bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  server->stats.bytes_out += sent > 0 ? sent : 0;
  server->stats.over_limit++;
  quire_strbuf_fini(&text);
  quire_strbuf_fini(&body);
  close(fd);
}

static void on_accept(evutil_socket_t listen_fd, short what, void *context) {
  (void)what;
  struct quire_http_server *server = context;
  QUIRE_ASSERT(listen_fd == server->listen_fd);
  for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
    int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        /* the waiting connection would wake us again at once: the tick tries later */
        event_del(&server->accept);
        server->accepting = false;
      }
      return;
    }
    server->stats.accepted++;
    if (server->stats.connections >= server->config.limits.connections) {
      turn_away(server, fd);
    } else {
      quire_http_connect(server, fd);
    }
  }
}

static void free_dead(struct quire_http_server *server) {
  for (struct quire_list *node; (node = quire_list_pop_front(&server->dead)) != NULL;) {
    struct quire_http_exchange *exchange = QUIRE_LIST_OF(node, struct quire_http_exchange, node);
    QUIRE_ASSERT(exchange->state == QUIRE_HTTP_DEAD && exchange->counted == 0);
    quire_http_free(exchange);
  }
}

/* Connections with input left over, each once, then those that are done with. */
static void on_turn(evutil_socket_t fd, short what, void *context) {
  (void)fd;
  (void)what;
  struct quire_http_server *server = context;
  struct quire_list now;
  quire_list_init(&now);
  quire_list_splice_back(&now, &server->turns);
  for (struct quire_list *node; (node = quire_list_pop_front(&now)) != NULL;) {
    struct quire_http_exchange *exchange = QUIRE_LIST_OF(node, struct quire_http_exchange, turn);
    QUIRE_ASSERT(exchange->server == server);
    if (exchange->state != QUIRE_HTTP_DEAD) {
      quire_http_turn(exchange);
    }
  }
  free_dead(server);
}

static void on_tick(evutil_socket_t fd, short what, void *context) {
  (void)fd;
  (void)what;
  struct quire_http_server *server = context;
  uint64_t now = quire_http_now(server);
  for (struct quire_list *node = server->connections.next, *next; node != &server->connections; node = next) {
    next = node->next;
    struct quire_http_exchange *exchange = QUIRE_LIST_OF(node, struct quire_http_exchange, node);
    QUIRE_ASSERT(exchange->server == server);
    quire_http_check(exchange, now);
  }
  free_dead(server);
  if (!server->accepting && server->listen_fd >= 0) {
    event_add(&server->accept, NULL);
    server->accepting = true;
  }
  struct timeval tick = quire_loop_timeval(QUIRE_HTTP_TICK_NS);
  event_add(&server->tick, &tick);
}

/* An open, listening socket, or -1 with errno. */
static int listen_at(const struct addrinfo *address, int *port_out) {
  int one = 1;
  int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return -1;
  }
  struct sockaddr_storage bound;
  socklen_t bytes = sizeof bound;
  QUIRE_ASSERT(address->ai_addrlen <= sizeof bound);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
      getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0) {
    int fault = errno;
    close(fd);
    errno = fault;
    return -1;
  }
  *port_out = bound.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)(void *)&bound)->sin6_port)
                                          : ntohs(((struct sockaddr_in *)(void *)&bound)->sin_port);
  return fd;
}

static enum quire_status open_listener(struct quire_http_server *server, struct quire_error *error_out) {
  const char *host = server->config.host != NULL ? server->config.host : "127.0.0.1";
  char port[16];
  snprintf(port, sizeof port, "%d", server->config.port);
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
  int fault = getaddrinfo(host, port, &hints, &found);
  if (fault != 0) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "host", "\"%s\" is no address of this machine: %s", host,
                           gai_strerror(fault));
  }
  QUIRE_ASSERT(found != NULL);
  server->listen_fd = listen_at(found, &server->port);
  int why = errno;
  freeaddrinfo(found);
  if (server->listen_fd < 0) {
    return quire_error_set(error_out, QUIRE_ERR_IO, "port", "cannot listen on %s:%s: %s", host, port, strerror(why));
  }
  return QUIRE_OK;
}

static bool limits_valid(const struct quire_http_limits *limits) {
  QUIRE_ASSERT(limits != NULL);
  return limits->connections > 0 && limits->head_bytes > 0 && limits->body_bytes > 0 && limits->bodies_bytes > 0 &&
         limits->out_bytes > 0 && limits->idle_ns > 0 && limits->head_ns > 0 && limits->body_ns > 0 &&
         limits->write_ns > 0;
}

static void add_events(struct quire_http_server *server) {
  struct event_base *base = quire_loop_base(server->loop);
  QUIRE_ASSERT(server->listen_fd >= 0);
  event_assign(&server->accept, base, server->listen_fd, EV_READ | EV_PERSIST, on_accept, server);
  event_assign(&server->tick, base, -1, 0, on_tick, server);
  event_assign(&server->turn, base, -1, 0, on_turn, server);
  event_add(&server->accept, NULL);
  server->accepting = true;
  struct timeval tick = quire_loop_timeval(QUIRE_HTTP_TICK_NS);
  event_add(&server->tick, &tick);
}

enum quire_status quire_http_server_create(const struct quire_env *env, struct quire_loop *loop,
                                           const struct quire_http_config *config,
                                           struct quire_http_server **server_out, struct quire_error *error_out) {
  QUIRE_ASSERT(config->handler.begin != NULL && config->handler.request != NULL && config->handler.gone != NULL &&
               config->handler.room != NULL && config->handler.refuse != NULL);
  if (!limits_valid(&config->limits) || config->port < 0 || config->port > 65535) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, "http", "every limit must be above 0, the port 0 to 65535");
  }
  struct quire_http_server *server = quire_env_zalloc(env, 1, sizeof *server);
  char *scratch = quire_env_zalloc(env, 1, QUIRE_HTTP_READ_BYTES);
  if (server == NULL || scratch == NULL) {
    quire_env_free(env, scratch, 1, QUIRE_HTTP_READ_BYTES);
    quire_env_free(env, server, 1, sizeof *server);
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "http", "no memory for the server");
  }
  server->env = env;
  server->loop = loop;
  server->config = *config;
  server->scratch = scratch;
  server->date_second = -1;
  quire_list_init(&server->connections);
  quire_list_init(&server->turns);
  quire_list_init(&server->dead);
  enum quire_status status = open_listener(server, error_out);
  if (status != QUIRE_OK) {
    quire_env_free(env, scratch, 1, QUIRE_HTTP_READ_BYTES);
    quire_env_free(env, server, 1, sizeof *server);
    return status;
  }
  add_events(server);
  *server_out = server;
  return QUIRE_OK;
}

static void stop_listening(struct quire_http_server *server) {
  if (server->listen_fd >= 0) {
    QUIRE_ASSERT(server->port > 0);
    event_del(&server->accept);
    close(server->listen_fd);
    server->listen_fd = -1;
    server->accepting = false;
  }
}

void quire_http_server_destroy(struct quire_http_server *server) {
  if (server == NULL) {
    return;
  }
  QUIRE_ASSERT(server->scratch != NULL);
  stop_listening(server);
  for (struct quire_list *node = server->connections.next, *next; node != &server->connections; node = next) {
    next = node->next;
    quire_http_lose(QUIRE_LIST_OF(node, struct quire_http_exchange, node), false);
  }
  free_dead(server);
  event_del(&server->tick);
  event_del(&server->turn);
  quire_env_free(server->env, server->scratch, 1, QUIRE_HTTP_READ_BYTES);
  quire_env_free(server->env, server, 1, sizeof *server);
}

int quire_http_server_port(const struct quire_http_server *server) {
  QUIRE_ASSERT(server->port > 0);
  return server->port;
}

void quire_http_server_stats(const struct quire_http_server *server, struct quire_http_stats *stats_out) {
  QUIRE_ASSERT(server->stats.exchanges >= 0 && server->stats.exchanges <= server->stats.connections);
  *stats_out = server->stats;
  stats_out->unread = (int64_t)server->waiting;
}

void quire_http_server_drain(struct quire_http_server *server, bool listening) {
  QUIRE_ASSERT(server->scratch != NULL);
  server->draining = true;
  if (!listening) {
    stop_listening(server);
    for (struct quire_list *node = server->connections.next, *next; node != &server->connections; node = next) {
      next = node->next;
      quire_http_end_idle(QUIRE_LIST_OF(node, struct quire_http_exchange, node));
    }
  }
}
