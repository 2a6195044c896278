/* A request for text, from its arrival to its last byte: prepared, submitted, written as its tokens come. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/wall.h"
#include "server/json_write.h"
#include "server/server_private.h"

enum { READY_TICKETS = 256 };
/* The worker ends what is late at its next step; so long after it the server does, lest a step that hangs keeps
 * clients. */
#define LATE_SECONDS 1.0
/* Requests that fail within so long of one another share a line of the log. */
#define FAILURES_SECONDS 0.5

/* What a call counts in. */
static struct server_numbers *numbers_of(const struct call *call) {
  return call->probe ? &call->server->probe_numbers : &call->server->numbers;
}

static void mark(struct call *call) {
  if (quire_list_empty(&call->dirty)) {
    quire_list_push_back(&call->server->dirty, &call->dirty);
  }
}

/* --- begin and end --- */

static void choice_fini(struct choice *choice) {
  struct quire_strbuf *buffers[] = {&choice->content,    &choice->reasoning, &choice->ids,
                                    &choice->lp_tokens,  &choice->lp_values, &choice->lp_tops,
                                    &choice->lp_offsets, &choice->lp_prompt, &choice->lp_prompt_tops};
  QUIRE_ASSERT(!choice->open);
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
    quire_strbuf_fini(buffers[i]);
  }
  quire_answer_destroy(choice->answer);
}

/* Gives its ticket back, which cancels what still runs. */
static void choice_close(struct choice *choice) {
  struct call *call = choice->call;
  if (!choice->open) {
    return;
  }
  if (choice->finish == FINISH_NONE) { /* its client has left, or hears of another's fault */
    choice->finish = call->fault.status != 0 ? FINISH_ERROR : FINISH_ABORT;
    numbers_of(call)->finished[choice->finish - 1]++;
  }
  choice->open = false;
  choice->blocked = false;
  call->open--;
  quire_tickets_remove(call->server, choice->ticket);
  quire_worker_close(call->server->model->worker, choice->ticket);
}

/* A name that a client chose, as one word of a line. */
static const char *one_word(const char *name, char out[SERVER_ID_BYTES]) {
  size_t bytes = 0;
  for (; name[bytes] != '\0' && bytes < SERVER_ID_BYTES - 1; bytes++) {
    char c = name[bytes];
    out[bytes] = c > ' ' && c < 0x7f && c != '"' && c != '\\' ? c : '_';
  }
  out[bytes] = '\0';
  return bytes > 0 ? out : "-";
}

static void log_call(const struct call *call) {
  static const char *const kinds[] = {"chat", "completion", "generate"};
  static const char *const ends[] = {"none", "stop", "length", "abort", "error"};
  const struct quire_server *server = call->server;
  char id[SERVER_ID_BYTES], client_id[SERVER_ID_BYTES];
  long long prompt = 0, drawn = 0, cached = 0;
  for (int32_t i = 0; i < call->choice_count; i++) {
    prompt += call->request.prompts[call->choices[i].prompt].count;
    drawn += call->choices[i].drawn;
    cached += call->choices[i].cached;
  }
  enum call_finish finish = call->choice_count > 0 ? call->choices[0].finish : FINISH_ERROR;
  uint64_t now = quire_server_now(server);
  quire_env_log(server->env, QUIRE_LOG_INFO,
                "request id=%s client_id=%s kind=%s status=%d end=%s prompt=%lld cached=%lld drawn=%lld ttft_ms=%.1f "
                "total_ms=%.1f",
                one_word(call->id, id), one_word(call->request_id, client_id), kinds[call->kind],
                call->fault.status != 0 ? call->fault.status : 200,
                call->exchange == NULL && !call->done ? "gone" : ends[finish], prompt, cached, drawn,
                call->first_ns != 0 ? (double)(call->first_ns - call->begin_ns) * 1e-6 : -1,
                (double)(now - call->begin_ns) * 1e-6);
}

static void call_destroy(struct call *call) {
  struct quire_server *server = call->server;
  QUIRE_ASSERT(!call->working);
  server->probe = server->probe == call ? NULL : server->probe;
  if (server->options->log_requests && !call->probe) {
    log_call(call);
  }
  for (int32_t i = 0; i < call->choice_count; i++) {
    choice_close(&call->choices[i]);
    choice_fini(&call->choices[i]);
  }
  quire_env_free(server->env, call->choices, (size_t)call->choice_count, sizeof *call->choices);
  server->held_bytes -= call->held;
  quire_list_remove(&call->node);
  quire_list_remove(&call->dirty);
  server->call_count--;
  quire_strbuf_fini(&call->body);
  quire_strbuf_fini(&call->out);
  quire_strbuf_fini(&call->head);
  quire_api_request_fini(&call->request);
  quire_env_free(server->env, call, 1, sizeof *call);
}

/* Answers with call->out and ends the call. */
static void answer_with(struct call *call, int status) {
  struct quire_http_exchange *exchange = call->exchange;
  call->exchange = NULL;
  call->done = true;
  quire_server_answer(call->server, exchange, status, "application/json", &call->out);
  call_destroy(call);
}

/* The same with its fault, if it has one. A worker too busy to take a probe is well. */
static void answer_whole(struct call *call) {
  int status = call->fault.status != 0 ? call->fault.status : 200;
  if (call->probe && status == 429) {
    status = 200;
    quire_strbuf_add_text(&call->out, "{\"status\":\"ok\"}");
  } else if (call->fault.status != 0) {
    quire_strbuf_clear(&call->out);
    quire_api_fault_write(&call->fault, &call->out);
  }
  answer_with(call, status);
}

/* --- submit --- */

/* Counts memory among the call's until its end; false with its fault. */
static bool hold(struct call *call, size_t bytes) {
  bool good = quire_server_hold(call->server, bytes, &call->fault);
  call->held += good ? bytes : 0;
  return good;
}

/* Prompts are copied for each choice, with rows where their log-probabilities are wanted. */
static bool hold_prompts(struct call *call) {
  const struct quire_sampling *sampling = &call->request.sampling;
  size_t row = sampling->prompt_logprobs
                   ? sizeof(struct quire_step_row) + (size_t)sampling->prompt_top_logprobs * sizeof(struct quire_top)
                   : 0;
  size_t bytes = 0;
  for (int32_t i = 0; i < call->request.prompt_count; i++) {
    bytes += (size_t)call->request.prompts[i].count * (sizeof(int32_t) + row) * (size_t)call->request.n;
  }
  return hold(call, bytes);
}

/* What a choice keeps until its answer is whole (/generate: even in a stream). */
static void hold_answer(struct choice *choice) {
  const struct quire_strbuf *buffers[] = {&choice->content,    &choice->reasoning, &choice->ids,
                                          &choice->lp_tokens,  &choice->lp_values, &choice->lp_tops,
                                          &choice->lp_offsets, &choice->lp_prompt, &choice->lp_prompt_tops};
  size_t bytes = 0;
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
    bytes += buffers[i]->capacity;
  }
  if (bytes > choice->held && hold(choice->call, bytes - choice->held)) {
    choice->held = bytes;
  }
}

static bool create_choice(struct call *call, int32_t index, struct choice *choice, struct quire_error *error_out) {
  const struct quire_env *env = call->server->env;
  const struct quire_api_request *request = &call->request;
  choice->call = call;
  choice->index = index;
  choice->prompt = index / request->n;
  choice->matched_stop = QUIRE_STOP_NONE;
  choice->matched_token = QUIRE_TOKEN_NONE;
  choice->held_token = QUIRE_TOKEN_NONE;
  choice->reasons = call->thinking;
  struct quire_strbuf *buffers[] = {&choice->content,    &choice->reasoning, &choice->ids,
                                    &choice->lp_tokens,  &choice->lp_values, &choice->lp_tops,
                                    &choice->lp_offsets, &choice->lp_prompt, &choice->lp_prompt_tops};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
    quire_strbuf_init(buffers[i], env);
  }
  const struct quire_answer_config config = {
      .tokenizer = call->server->model->tokenizer,
      .stops = request->stops,
      .stop_count = (size_t)request->stop_count,
      .split = call->kind == QUIRE_API_CHAT && request->split_reasoning,
      .thinking = call->thinking,
      .show_special = !request->skip_special,
      .keep_stop = request->keep_stop,
  };
  return quire_answer_create(env, &config, &choice->answer, error_out) == QUIRE_OK;
}

static enum quire_status submit_choice(struct choice *choice, uint64_t deadline_ns, struct quire_error *error_out) {
  struct call *call = choice->call;
  struct quire_server *server = call->server;
  const struct quire_api_prompt *prompt = &call->request.prompts[choice->prompt];
  struct quire_engine_request request = {
      .tokens = prompt->tokens,
      .count = prompt->count,
      .new_max = call->max_tokens,
      .new_min = call->request.min_tokens,
      .sampling = call->request.sampling,
      .stops = call->stops,
      .stop_count = call->stop_count,
      .priority = call->request.priority,
      .salt = call->request.salt,
      .salt_bytes = call->request.salt != NULL ? (int32_t)strlen(call->request.salt) : 0,
      .deadline_ns = deadline_ns,
      .tag = (uint64_t)choice->index,
  };
  request.sampling.seed += (uint64_t)(choice->index % call->request.n);
  enum quire_status status = quire_worker_submit(server->model->worker, &request, &choice->ticket, error_out);
  if (status == QUIRE_OK) {
    choice->open = true;
    call->open++;
    quire_tickets_put(server, choice->ticket, choice);
  }
  return status;
}

static void fault_of(struct call *call, enum quire_status status, const struct quire_error *error) {
  struct quire_api_fault *fault = &call->fault;
  switch (status) {
  case QUIRE_ERR_AGAIN:
    numbers_of(call)->rejected++;
    quire_api_fail(fault, 429, "queue_full", NULL, "the server's queue is full; try again later");
    break;
  case QUIRE_ERR_STATE:
    quire_api_fail(fault, 503, "unavailable", NULL, "the %s %s", error->where, error->text);
    break;
  case QUIRE_ERR_ARGUMENT:
  case QUIRE_ERR_UNSUPPORTED:
    quire_api_fail(fault, 400, "invalid_value", error->where, "%s: %s", error->where, error->text);
    break;
  case QUIRE_ERR_REQUEST:
    quire_api_fail(fault, 400, "invalid_request", NULL, "%s: %s", error->where, error->text);
    break;
  case QUIRE_ERR_MEMORY:
    quire_api_fail(fault, 503, "no_memory", NULL, "the server has no memory for this request");
    break;
  default:
    quire_api_fail(fault, 500, "server_error", NULL, "%s: %s", error->where, error->text);
    break;
  }
}

static bool create_choices(struct call *call, struct quire_error *error_out) {
  int32_t count = call->request.prompt_count * call->request.n;
  struct quire_server *server = call->server;
  struct choice *choices = quire_env_zalloc(server->env, (size_t)count, sizeof *choices);
  if (choices == NULL || !quire_tickets_reserve(server, count)) {
    quire_env_free(server->env, choices, (size_t)count, sizeof *choices);
    quire_error_set(error_out, QUIRE_ERR_MEMORY, "request", "no memory for it");
    return false;
  }
  call->choices = choices;
  call->choice_count = count;
  bool good = true;
  for (int32_t i = 0; i < count; i++) {
    good = create_choice(call, i, &choices[i], error_out) && good;
  }
  return good;
}

static void gather_stops(struct call *call) {
  const struct quire_server_model *model = call->server->model;
  for (int32_t i = 0; i < model->eos_count && !call->request.ignore_eos && call->stop_count < QUIRE_ENGINE_STOPS_MAX;
       i++) {
    call->stops[call->stop_count++] = model->eos[i];
  }
  for (int32_t i = 0; i < call->request.stop_id_count && call->stop_count < QUIRE_ENGINE_STOPS_MAX; i++) {
    call->stops[call->stop_count++] = call->request.stop_ids[i];
  }
}

/* A prepared request goes to the worker; one that could not be prepared is answered. */
static void call_start(struct call *call) {
  struct quire_server *server = call->server;
  struct quire_error error = {0};
  if (call->exchange == NULL) {
    call_destroy(call);
    return;
  }
  if (call->prepared && call->aborted) {
    quire_api_fail(&call->fault, 503, "aborted", NULL, "the request was aborted");
    call->prepared = false;
  }
  call->prepared = call->prepared && hold_prompts(call);
  if (!call->prepared) {
    answer_whole(call);
    return;
  }
  if (call->request.id != NULL && call->kind == QUIRE_API_GENERATE) {
    snprintf(call->id, sizeof call->id, "%s", call->request.id);
  }
  call->streaming = call->request.stream;
  if (!call->request.seed_given) {
    call->request.sampling.seed = server->env->random(server->env->context);
  }
  gather_stops(call);
  double seconds = server->options->request_seconds;
  uint64_t deadline = seconds > 0 ? call->begin_ns + (uint64_t)(seconds * 1e9) : 0;
  bool created = create_choices(call, &error);
  enum quire_status status = created ? QUIRE_OK : error.status;
  for (int32_t i = 0; i < call->choice_count && status == QUIRE_OK; i++) {
    status = submit_choice(&call->choices[i], deadline, &error);
  }
  if (status != QUIRE_OK) {
    fault_of(call, status, &error);
    answer_whole(call);
  }
}

/* --- arrival --- */

static void on_work(void *context) { quire_call_prepare(context); }

static void on_done(void *context) {
  struct call *call = context;
  call->working = false;
  call_start(call);
}

static void make_id(const struct quire_server *server, enum quire_api_kind kind, char *out, size_t size) {
  static const char *const prefixes[] = {"chatcmpl-", "cmpl-", ""};
  unsigned long long a = server->env->random(server->env->context), b = server->env->random(server->env->context);
  snprintf(out, size, "%s%016llx%016llx", prefixes[kind], a, b);
}

static struct call *create_call(struct quire_server *server, struct quire_http_exchange *exchange,
                                enum quire_api_kind kind) {
  struct call *call = quire_env_zalloc(server->env, 1, sizeof *call);
  if (call == NULL) {
    return NULL;
  }
  call->server = server;
  call->exchange = exchange;
  call->kind = kind;
  call->created = quire_wall_ms() / 1000;
  call->begin_ns = quire_server_now(server);
  call->sent_ns = call->begin_ns;
  make_id(server, kind, call->id, sizeof call->id);
  if (quire_http_id(exchange) == NULL) {
    quire_http_set_id(exchange, call->id);
  }
  snprintf(call->request_id, sizeof call->request_id, "%s", quire_http_id(exchange));
  quire_strbuf_init(&call->body, server->env);
  quire_strbuf_init(&call->out, server->env);
  quire_strbuf_init(&call->head, server->env);
  quire_list_init(&call->dirty);
  quire_list_push_back(&server->calls, &call->node);
  server->call_count++;
  return call;
}

void quire_call_begin(struct quire_server *server, struct quire_http_exchange *exchange, enum quire_api_kind kind) {
  struct quire_api_fault fault = {0};
  size_t bytes = quire_api_body_cost(quire_http_body(exchange).data, quire_http_body(exchange).bytes);
  struct call *call = NULL;
  if (quire_server_hold(server, bytes, &fault) && (call = create_call(server, exchange, kind)) == NULL) {
    server->held_bytes -= bytes;
    quire_api_fail(&fault, 503, "no_memory", NULL, "the server has no memory for this request");
  }
  if (call == NULL) {
    quire_server_answer_fault(server, exchange, &fault);
    return;
  }
  quire_http_set_user(exchange, call);
  quire_http_take_body(exchange, &call->body);
  call->held = bytes;
  if (call->body.bytes <= SERVER_INLINE_BYTES || server->thread_count == 0) {
    quire_call_prepare(call);
    call_start(call);
    return;
  }
  call->working = true;
  if (!quire_server_post(server, (struct server_job){on_work, on_done, call})) {
    call->working = false;
    server->numbers.rejected++;
    quire_api_fail(&call->fault, 429, "queue_full", NULL, "the server's queue is full; try again later");
    answer_whole(call);
  }
}

void quire_call_gone(struct call *call) {
  call->exchange = NULL;
  numbers_of(call)->disconnects++;
  if (!call->working) {
    call_destroy(call);
  }
}

void quire_call_abort(struct call *call) {
  call->aborted = true;
  for (int32_t i = 0; i < call->choice_count; i++) {
    if (call->choices[i].open) {
      quire_worker_cancel(call->server->model->worker, call->choices[i].ticket);
    }
  }
}

/* --- tokens --- */

static void end_choice(struct choice *choice, enum call_finish finish) {
  struct server_numbers *numbers = numbers_of(choice->call);
  QUIRE_ASSERT(choice->open && finish != FINISH_NONE);
  choice->finish = finish;
  numbers->finished[finish - 1]++;
  if (choice->drawn > 0) {
    quire_histogram_add(&numbers->decode, (double)(choice->token_ns - choice->first_ns) * 1e-9);
  }
  quire_write_finish(choice);
  choice_close(choice);
}

/* A token of the answer's text. */
static void push_token(struct choice *choice, int32_t token) {
  struct quire_answer_delta delta = quire_answer_push(choice->answer, token);
  choice->reasons = choice->reasons && delta.content_bytes == 0;
  choice->reasoning_drawn += choice->reasons ? 1 : 0;
  quire_write_delta(choice, &delta);
  if (delta.stop != QUIRE_STOP_NONE) {
    choice->matched_stop = delta.stop;
    end_choice(choice, FINISH_STOP);
  }
}

static bool is_stop(const struct call *call, int32_t token) {
  for (int32_t i = 0; i < call->stop_count; i++) {
    if (call->stops[i] == token) {
      return true;
    }
  }
  return false;
}

static void measure_token(struct choice *choice, const struct quire_engine_event *event) {
  struct call *call = choice->call;
  struct server_numbers *numbers = numbers_of(call);
  uint64_t now = quire_server_now(call->server);
  if (choice->drawn == 0) {
    choice->cached = event->cached;
    numbers->cached_tokens += event->cached;
    numbers->prompt_tokens += call->request.prompts[choice->prompt].count;
    quire_histogram_add(&numbers->ttft, (double)(now - call->begin_ns) * 1e-9);
    QUIRE_ASSERT(event->admitted_ns >= call->begin_ns && event->admitted_ns <= now);
    quire_histogram_add(&numbers->queue, (double)(event->admitted_ns - call->begin_ns) * 1e-9);
    quire_histogram_add(&numbers->prefill, (double)(now - event->admitted_ns) * 1e-9);
    choice->first_ns = now;
  } else {
    quire_histogram_add(&numbers->itl, (double)(now - choice->token_ns) * 1e-9);
  }
  call->first_ns = call->first_ns == 0 ? now : call->first_ns;
  choice->token_ns = now;
  choice->drawn++;
  numbers->drawn_tokens++;
}

static void take_token(struct choice *choice, const struct quire_engine_event *event) {
  struct call *call = choice->call;
  bool first = choice->drawn == 0;
  measure_token(choice, event);
  if (first) {
    quire_write_prompt(choice);
  }
  if (choice->held_token != QUIRE_TOKEN_NONE) {
    int32_t held = choice->held_token;
    choice->held_token = QUIRE_TOKEN_NONE;
    push_token(choice, held);
    if (!choice->open) {
      return;
    }
  }
  if (call->request.logprobs) {
    quire_write_logprob(choice, event);
    quire_write_count(choice, event->token);
  }
  if (call->kind == QUIRE_API_GENERATE) {
    quire_strbuf_addf(&choice->ids, "%s%d", choice->ids.bytes > 0 ? "," : "", event->token);
    choice->fresh = true;
  }
  if (is_stop(call, event->token)) {
    choice->held_token = event->token; /* text only if the answer goes on */
  } else {
    push_token(choice, event->token);
  }
}

static void take_done(struct choice *choice, const struct quire_engine_event *event) {
  struct call *call = choice->call;
  bool stopped = event->finish == QUIRE_FINISH_STOP;
  if (choice->drawn == 0) {
    choice->cached = event->cached;
    quire_write_prompt(choice);
  }
  if (choice->held_token != QUIRE_TOKEN_NONE && stopped) {
    choice->matched_token = choice->held_token;
  }
  if (choice->held_token != QUIRE_TOKEN_NONE && (!stopped || call->request.keep_stop)) {
    push_token(choice, choice->held_token);
  }
  if (!choice->open) {
    return;
  }
  struct quire_answer_delta delta = quire_answer_end(choice->answer);
  if (delta.reasoning_bytes > 0 || delta.content_bytes > 0) {
    quire_write_delta(choice, &delta);
  }
  end_choice(choice, stopped ? FINISH_STOP : FINISH_LENGTH);
}

static void fail_late(struct call *call) {
  quire_api_fail(&call->fault, 408, "deadline", NULL, "the request took longer than %.1f s",
                 call->server->options->request_seconds);
}

/* For the log. */
static void note_failure(const struct call *call, const struct quire_error *error) {
  struct server_failures *failures = &call->server->failures;
  if (failures->count++ == 0) {
    failures->since_ns = quire_server_now(call->server);
    failures->error = *error;
    one_word(call->id, failures->id);
  }
}

void quire_calls_log_failures(struct quire_server *server) {
  struct server_failures *failures = &server->failures;
  if (failures->count > 0) {
    quire_env_log(server->env, QUIRE_LOG_WARN, "requests failed count=%lld first_id=%s status=%s: %s",
                  (long long)failures->count, failures->id, quire_status_name(failures->error.status),
                  failures->error.text);
  }
  *failures = (struct server_failures){0};
}

static void take_failed(struct choice *choice, const struct quire_engine_event *event) {
  struct call *call = choice->call;
  struct quire_server *server = call->server;
  if (event->status == QUIRE_ERR_CANCELLED && call->aborted) {
    struct quire_answer_delta delta = quire_answer_end(choice->answer);
    quire_write_delta(choice, &delta);
    end_choice(choice, FINISH_ABORT);
    return;
  }
  const struct quire_error *error = quire_worker_error(server->model->worker, choice->ticket);
  struct quire_error none = {event->status, "request", "it failed"};
  if (event->status == QUIRE_ERR_REQUEST) {
    fail_late(call);
  } else if (event->status == QUIRE_ERR_CANCELLED) {
    quire_api_fail(&call->fault, 503, "cancelled", NULL, "the server ended the request");
  } else if (event->status == QUIRE_ERR_AGAIN) {
    quire_api_fail(&call->fault, 503, "no_pages", NULL, "%s", error != NULL ? error->text : none.text);
  } else {
    fault_of(call, event->status, error != NULL ? error : &none);
    note_failure(call, error != NULL ? error : &none);
  }
  choice->finish = FINISH_ERROR;
  numbers_of(call)->finished[FINISH_ERROR - 1]++;
  choice_close(choice);
}

static void take_event(struct choice *choice, const struct quire_engine_event *event) {
  switch (event->kind) {
  case QUIRE_EVENT_TOKEN:
    take_token(choice, event);
    break;
  case QUIRE_EVENT_DONE:
    take_done(choice, event);
    break;
  case QUIRE_EVENT_FAILED:
    take_failed(choice, event);
    break;
  case QUIRE_EVENT_PREFILL:
  default:
    break;
  }
}

/* Takes a ticket's events, unless its client has too much unread already. */
static void take_events(struct choice *choice) {
  struct call *call = choice->call;
  struct quire_server *server = call->server;
  struct quire_engine_event events[SERVER_EVENTS];
  mark(call);
  while (choice->open && call->fault.status == 0) {
    if (call->streaming && quire_http_pending(call->exchange) + call->out.bytes >= SERVER_OUT_BYTES) {
      choice->blocked = true;
      return;
    }
    int32_t count = quire_worker_take(server->model->worker, choice->ticket, events, SERVER_EVENTS);
    if (count == 0) {
      return;
    }
    for (int32_t i = 0; i < count && choice->open; i++) {
      take_event(choice, &events[i]);
    }
    if (call->fault.status == 0) {
      hold_answer(choice);
    }
  }
}

void quire_calls_pump(struct quire_server *server) {
  quire_ticket tickets[READY_TICKETS];
  int32_t count;
  do {
    count = quire_worker_ready(server->model->worker, tickets, READY_TICKETS);
    for (int32_t i = 0; i < count; i++) {
      struct choice *choice = quire_tickets_find(server, tickets[i]);
      if (choice != NULL && !choice->blocked) {
        take_events(choice);
      }
    }
  } while (count == READY_TICKETS);
  quire_calls_flush(server);
}

void quire_call_room(struct call *call) {
  struct quire_server *server = call->server;
  for (int32_t i = 0; i < call->choice_count; i++) {
    if (call->choices[i].blocked) {
      call->choices[i].blocked = false;
      take_events(&call->choices[i]);
    }
  }
  quire_calls_flush(server);
}

/* --- out --- */

/* Sends what is in call->out; false when the call is gone with it. */
static bool send_out(struct call *call) {
  bool good = !quire_strbuf_failed(&call->out);
  if (good && !call->begun) {
    struct quire_http_answer answer = {
        .status = 200,
        .type = "text/event-stream; charset=utf-8",
        .fields = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
        .body = call->out.data,
        .bytes = call->out.bytes,
    };
    call->begun = true;
    call->server->numbers.answered[2]++;
    call->server->numbers.streams++;
    good = quire_http_stream_begin(call->exchange, &answer);
  } else if (good) {
    good = quire_http_stream_send(call->exchange, call->out.data, call->out.bytes);
  }
  quire_strbuf_clear(&call->out);
  call->sent_ns = quire_server_now(call->server);
  if (!good) {
    struct quire_http_exchange *exchange = call->exchange;
    call->exchange = NULL;
    quire_http_abort(exchange);
    call_destroy(call);
  }
  return good;
}

static void flush_stream(struct call *call) {
  bool failed = call->fault.status != 0;
  for (int32_t i = 0; i < call->choice_count && call->kind == QUIRE_API_GENERATE && !failed; i++) {
    if (call->choices[i].fresh) {
      quire_write_cumulative(&call->choices[i]);
    }
  }
  bool ends = call->open == 0 || failed;
  if (failed) {
    quire_write_stream_fault(call);
  } else if (ends) {
    quire_write_stream_end(call);
  }
  if ((call->out.bytes > 0 || quire_strbuf_failed(&call->out)) && !send_out(call)) {
    return;
  }
  if (ends) {
    struct quire_http_exchange *exchange = call->exchange;
    quire_histogram_add(&call->server->numbers.e2e, (double)(call->sent_ns - call->begin_ns) * 1e-9);
    call->exchange = NULL;
    call->done = true;
    quire_http_stream_end(exchange);
    call_destroy(call);
  }
}

static void flush_call(struct call *call) {
  if (call->streaming && (call->fault.status == 0 || call->begun)) {
    flush_stream(call);
  } else if (call->fault.status != 0) {
    answer_whole(call);
  } else if (call->open == 0) {
    quire_histogram_add(&numbers_of(call)->e2e, (double)(quire_server_now(call->server) - call->begin_ns) * 1e-9);
    quire_write_whole(call);
    answer_whole(call);
  }
}

void quire_calls_flush(struct quire_server *server) {
  for (struct quire_list *node; (node = quire_list_pop_front(&server->dirty)) != NULL;) {
    flush_call(QUIRE_LIST_OF(node, struct call, dirty));
  }
}

void quire_call_probe(struct quire_server *server, struct quire_http_exchange *exchange) {
  static const char body[] = "{\"input_ids\":[0],\"sampling_params\":{\"max_new_tokens\":1,\"temperature\":0}}";
  struct call *call = create_call(server, exchange, QUIRE_API_GENERATE);
  if (call == NULL) {
    struct quire_api_fault fault = {0};
    quire_api_fail(&fault, 503, "no_memory", NULL, "the server has no memory for this request");
    quire_server_answer_fault(server, exchange, &fault);
    return;
  }
  call->probe = true;
  server->probe = call;
  server->probe_drawn = server->numbers.drawn_tokens;
  quire_http_set_user(exchange, call);
  quire_strbuf_add_text(&call->body, body);
  quire_call_prepare(call);
  call_start(call);
}

static void answer_probe(struct call *call, int status, const char *json) {
  quire_strbuf_clear(&call->out);
  quire_strbuf_add_text(&call->out, json);
  call->fault.status = 0;
  answer_with(call, status);
}

/* A probe ends early when the worker falls ill, and when tokens of others show that it is well. */
static void tick_probe(struct quire_server *server) {
  const char *illness = quire_server_illness(server);
  if (illness != NULL) {
    answer_probe(server->probe, 503, illness);
  } else if (server->numbers.drawn_tokens > server->probe_drawn) {
    answer_probe(server->probe, 200, "{\"status\":\"ok\"}");
  }
}

/* Ends requests whose deadline the worker has let pass. */
static void end_late(struct quire_server *server, uint64_t now) {
  double seconds = server->options->request_seconds;
  for (struct quire_list *node = server->calls.next; seconds > 0 && node != &server->calls; node = node->next) {
    struct call *call = QUIRE_LIST_OF(node, struct call, node);
    if (call->open > 0 && call->fault.status == 0 && now > call->begin_ns &&
        (double)(now - call->begin_ns) * 1e-9 > seconds + LATE_SECONDS) {
      fail_late(call);
      mark(call);
    }
  }
  quire_calls_flush(server);
}

/* Comments that keep a silent stream open, for who asks for them. */
void quire_calls_tick(struct quire_server *server, uint64_t now) {
  if (server->probe != NULL) {
    tick_probe(server);
  }
  end_late(server, now);
  if (server->failures.count > 0 && (double)(now - server->failures.since_ns) * 1e-9 >= FAILURES_SECONDS) {
    quire_calls_log_failures(server);
  }
  double seconds = server->options->keepalive_seconds;
  for (struct quire_list *node = server->calls.next, *next; seconds > 0 && node != &server->calls; node = next) {
    next = node->next;
    struct call *call = QUIRE_LIST_OF(node, struct call, node);
    if (call->streaming && call->open > 0 && call->exchange != NULL && now > call->sent_ns &&
        (double)(now - call->sent_ns) * 1e-9 > seconds) {
      quire_strbuf_add_text(&call->out, ": keep-alive\n\n");
      send_out(call);
    }
  }
}

void quire_calls_cut(struct quire_server *server, const struct quire_api_fault *fault) {
  for (struct quire_list *node = server->calls.next; node != &server->calls; node = node->next) {
    struct call *call = QUIRE_LIST_OF(node, struct call, node);
    struct quire_http_exchange *exchange = call->exchange;
    if (exchange != NULL && call->working) {
      call->exchange = NULL; /* the rest is still a text thread's */
      quire_server_answer_fault(server, exchange, fault);
    } else if (exchange != NULL && call->fault.status == 0) {
      call->fault = *fault;
      mark(call);
    }
  }
  quire_calls_flush(server);
}

void quire_calls_destroy(struct quire_server *server) {
  quire_calls_log_failures(server);
  while (!quire_list_empty(&server->calls)) {
    struct call *call = QUIRE_LIST_OF(server->calls.next, struct call, node);
    call->working = false; /* the text threads have ended */
    call_destroy(call);
  }
}
