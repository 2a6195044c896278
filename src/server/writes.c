/* What clients get to read: chunks of a stream and whole answers, in OpenAI's and SGLang's shapes. */
#include <string.h>

#include "base/assert.h"
#include "server/json_write.h"
#include "server/server_private.h"

static const char *finish_name(enum call_finish finish) {
  switch (finish) {
  case FINISH_STOP:
    return "stop";
  case FINISH_LENGTH:
    return "length";
  case FINISH_ABORT:
    return "abort";
  case FINISH_NONE:
  case FINISH_ERROR:
  default:
    return NULL;
  }
}

/* Tokens of prompts count once, whatever n is. */
static void write_usage(struct quire_strbuf *out, const struct call *call) {
  long long prompt = 0, drawn = 0, reasoning = 0, cached = 0;
  for (int32_t i = 0; i < call->choice_count; i++) {
    const struct choice *choice = &call->choices[i];
    drawn += choice->drawn;
    reasoning += choice->reasoning_drawn;
    if (i % call->request.n == 0) {
      prompt += call->request.prompts[choice->prompt].count;
      cached += choice->cached;
    }
  }
  quire_strbuf_addf(out,
                    "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                    "\"prompt_tokens_details\":{\"cached_tokens\":%lld,\"cached_tokens_by_place\":{\"device\":%lld}},"
                    "\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
                    prompt, drawn, prompt + drawn, cached, cached, reasoning);
}

/* The bytes of a token as text, and as numbers. */
static void write_token_text(struct quire_strbuf *out, const struct call *call, int32_t token) {
  size_t bytes = 0;
  const char *text = quire_tokenizer_token(call->server->model->tokenizer, token, &bytes);
  quire_json_write_bytes(out, text != NULL ? text : "", text != NULL ? bytes : 0);
}

static void write_token_bytes(struct quire_strbuf *out, const struct call *call, int32_t token) {
  size_t bytes = 0;
  const char *text = quire_tokenizer_token(call->server->model->tokenizer, token, &bytes);
  quire_strbuf_add_char(out, '[');
  for (size_t i = 0; text != NULL && i < bytes; i++) {
    quire_strbuf_add(out, ",", i > 0 ? 1 : 0);
    quire_json_write_int(out, (unsigned char)text[i]);
  }
  quire_strbuf_add_char(out, ']');
}

static void comma(struct quire_strbuf *list) { quire_strbuf_add(list, ",", list->bytes > 0 ? 1 : 0); }

/* One entry of a chat's list, without its closing brace. */
static void write_chat_entry(struct quire_strbuf *out, const struct call *call, struct quire_top top) {
  quire_strbuf_add_text(out, "{\"token\":");
  write_token_text(out, call, top.token);
  quire_strbuf_add_text(out, ",\"logprob\":");
  quire_json_write_number(out, top.logprob);
  quire_strbuf_add_text(out, ",\"bytes\":");
  write_token_bytes(out, call, top.token);
}

/* [-0.5, 17, null], as /generate has it; known says whether the token has a log-probability. */
static void write_triple(struct quire_strbuf *out, struct quire_top top, bool known) {
  quire_strbuf_add_char(out, '[');
  if (known) {
    quire_json_write_number(out, top.logprob);
  } else {
    quire_strbuf_add_text(out, "null");
  }
  quire_strbuf_addf(out, ",%d,null]", top.token);
}

/* The alternatives of one token. */
struct alternatives {
  const struct quire_top *top;
  int32_t count;
};

static void write_chat_logprob(struct choice *choice, struct quire_top drawn, struct alternatives others) {
  struct quire_strbuf *out = &choice->lp_values;
  comma(out);
  write_chat_entry(out, choice->call, drawn);
  quire_strbuf_add_text(out, ",\"top_logprobs\":[");
  for (int32_t i = 0; i < others.count; i++) {
    quire_strbuf_add(out, ",", i > 0 ? 1 : 0);
    write_chat_entry(out, choice->call, others.top[i]);
    quire_strbuf_add_char(out, '}');
  }
  quire_strbuf_add_text(out, "]}");
}

/* Adds a list of alternatives to a list of such. */
static void write_triples(struct quire_strbuf *list, struct alternatives others) {
  comma(list);
  quire_strbuf_add_char(list, '[');
  for (int32_t i = 0; i < others.count; i++) {
    quire_strbuf_add(list, ",", i > 0 ? 1 : 0);
    write_triple(list, others.top[i], true);
  }
  quire_strbuf_add_char(list, ']');
}

static void write_generate_logprob(struct choice *choice, struct quire_top drawn, struct alternatives others) {
  comma(&choice->lp_values);
  write_triple(&choice->lp_values, drawn, true);
  write_triples(&choice->lp_tops, others);
}

/* "token": logprob, a member of an object. */
static void write_pair(struct quire_strbuf *out, const struct call *call, struct quire_top top, bool behind) {
  quire_strbuf_add(out, ",", behind ? 1 : 0);
  write_token_text(out, call, top.token);
  quire_strbuf_add_char(out, ':');
  quire_json_write_number(out, top.logprob);
}

/* known: the first token of a prompt has no log-probability. */
static void write_completion_logprob(struct choice *choice, struct quire_top drawn, struct alternatives others,
                                     bool known) {
  comma(&choice->lp_tokens);
  write_token_text(&choice->lp_tokens, choice->call, drawn.token);
  comma(&choice->lp_values);
  if (known) {
    quire_json_write_number(&choice->lp_values, drawn.logprob);
  } else {
    quire_strbuf_add_text(&choice->lp_values, "null");
  }
  comma(&choice->lp_offsets);
  quire_json_write_int(&choice->lp_offsets, (long long)choice->text_characters);
  comma(&choice->lp_tops);
  if (!known || choice->call->request.sampling.top_logprobs == 0) {
    quire_strbuf_add_text(&choice->lp_tops, "null");
    return;
  }
  /* with the token itself, also where it is none of the likeliest */
  quire_strbuf_add_char(&choice->lp_tops, '{');
  bool there = false;
  for (int32_t i = 0; i < others.count; i++) {
    write_pair(&choice->lp_tops, choice->call, others.top[i], i > 0);
    there = there || others.top[i].token == drawn.token;
  }
  if (!there) {
    write_pair(&choice->lp_tops, choice->call, drawn, others.count > 0);
  }
  quire_strbuf_add_char(&choice->lp_tops, '}');
}

void quire_write_logprob(struct choice *choice, const struct quire_engine_event *event) {
  struct quire_top drawn = {event->token, event->logprob};
  struct alternatives others = {event->tops, event->top_count};
  QUIRE_ASSERT(choice->call->request.logprobs);
  switch (choice->call->kind) {
  case QUIRE_API_CHAT:
    write_chat_logprob(choice, drawn, others);
    break;
  case QUIRE_API_COMPLETION:
    write_completion_logprob(choice, drawn, others, true);
    break;
  case QUIRE_API_GENERATE:
  default:
    write_generate_logprob(choice, drawn, others);
    break;
  }
}

/* What is known of a choice's log-probabilities and was not sent; "null" when nothing is asked for. */
static void write_logprobs(struct quire_strbuf *out, struct choice *choice) {
  if (!choice->call->request.logprobs) {
    quire_strbuf_add_text(out, "null");
  } else if (choice->call->kind == QUIRE_API_CHAT) {
    quire_strbuf_addf(out, "{\"content\":[%s]}", quire_strbuf_text(&choice->lp_values));
  } else {
    quire_strbuf_addf(out, "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":[%s],\"text_offset\":[%s]}",
                      quire_strbuf_text(&choice->lp_tokens), quire_strbuf_text(&choice->lp_values),
                      quire_strbuf_text(&choice->lp_tops), quire_strbuf_text(&choice->lp_offsets));
  }
  quire_strbuf_clear(&choice->lp_tokens);
  quire_strbuf_clear(&choice->lp_values);
  quire_strbuf_clear(&choice->lp_tops);
  quire_strbuf_clear(&choice->lp_offsets);
}

/* What an answer, or a chunk of one, says of itself in front of its choices. */
static void write_about(struct quire_strbuf *out, const struct call *call, const char *object) {
  quire_strbuf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", call->id, object,
                    (long long)call->created);
  quire_json_write_string(out, quire_server_model_name(call->server));
  quire_strbuf_add_text(out, ",\"system_fingerprint\":");
  quire_json_write_string(out, call->server->model->numerics);
  quire_strbuf_add_text(out, ",\"choices\":");
}

/* --- chunks of a stream --- */

/* What every chunk begins with, up to its choices. */
static void add_head(struct call *call) {
  if (call->head.bytes == 0) {
    quire_strbuf_add_text(&call->head, "data: ");
    write_about(&call->head, call, call->kind == QUIRE_API_CHAT ? "chat.completion.chunk" : "text_completion");
  }
  quire_strbuf_add(&call->out, call->head.data, call->head.bytes);
}

static void begin_chunk(struct choice *choice) {
  struct call *call = choice->call;
  add_head(call);
  quire_strbuf_add_text(&call->out, "[{\"index\":");
  quire_json_write_int(&call->out, choice->index);
}

/* From the logprobs on; finish is a JSON value. */
static void end_chunk(struct choice *choice, bool logprobs, const char *finish) {
  struct call *call = choice->call;
  quire_strbuf_add_text(&call->out, ",\"logprobs\":");
  if (logprobs) {
    write_logprobs(&call->out, choice);
  } else {
    quire_strbuf_add_text(&call->out, "null");
  }
  quire_strbuf_add_text(&call->out, ",\"finish_reason\":");
  quire_strbuf_add_text(&call->out, finish);
  if (call->request.usage_always) {
    quire_strbuf_add_text(&call->out, "}],\"usage\":");
    write_usage(&call->out, call);
    quire_strbuf_add_text(&call->out, "}\n\n");
  } else {
    quire_strbuf_add_text(&call->out, call->request.include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
  }
}

static void role_chunk(struct choice *choice) {
  choice->begun = true;
  begin_chunk(choice);
  quire_strbuf_add_text(&choice->call->out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
  end_chunk(choice, false, "null");
}

/* field: "content" or "reasoning_content" of a chat's delta. */
static void text_chunk(struct choice *choice, const char *field, const char *text, size_t bytes) {
  struct call *call = choice->call;
  begin_chunk(choice);
  if (call->kind == QUIRE_API_CHAT) {
    quire_strbuf_add_text(&call->out, ",\"delta\":{\"");
    quire_strbuf_add_text(&call->out, field);
    quire_strbuf_add_text(&call->out, "\":\"");
    quire_json_write_escaped(&call->out, text, bytes);
    quire_strbuf_add_text(&call->out, "\"}");
  } else {
    quire_strbuf_add_text(&call->out, ",\"text\":\"");
    quire_json_write_escaped(&call->out, text, bytes);
    quire_strbuf_add_char(&call->out, '"');
  }
  end_chunk(choice, true, "null");
}

void quire_write_delta(struct choice *choice, const struct quire_answer_delta *delta) {
  struct call *call = choice->call;
  if (!call->streaming || call->kind == QUIRE_API_GENERATE) {
    quire_strbuf_add(&choice->reasoning, delta->reasoning, delta->reasoning_bytes);
    quire_strbuf_add(&choice->content, delta->content, delta->content_bytes);
    choice->fresh = true;
    return;
  }
  if (call->kind == QUIRE_API_CHAT && !choice->begun) {
    role_chunk(choice);
  }
  if (delta->reasoning_bytes > 0) {
    text_chunk(choice, "reasoning_content", delta->reasoning, delta->reasoning_bytes);
  }
  /* a token whose text is still held back shows its log-probability at once */
  if (delta->content_bytes > 0 || choice->lp_values.bytes > 0) {
    text_chunk(choice, "content", delta->content != NULL ? delta->content : "", delta->content_bytes);
  }
}

static void write_matched(struct quire_strbuf *out, const struct choice *choice) {
  if (choice->matched_stop != QUIRE_STOP_NONE) {
    const struct quire_stop_text *stop = &choice->call->request.stops[choice->matched_stop];
    quire_json_write_bytes(out, stop->text, stop->bytes);
  } else if (choice->matched_token != QUIRE_TOKEN_NONE) {
    quire_json_write_int(out, choice->matched_token);
  } else {
    quire_strbuf_add_text(out, "null");
  }
}

void quire_write_finish(struct choice *choice) {
  struct call *call = choice->call;
  choice->fresh = true;
  if (!call->streaming || call->kind == QUIRE_API_GENERATE) {
    return;
  }
  if (call->kind == QUIRE_API_CHAT && !choice->begun) {
    role_chunk(choice);
  }
  struct quire_strbuf finish;
  quire_strbuf_init(&finish, call->server->env);
  quire_json_write_string(&finish, finish_name(choice->finish));
  quire_strbuf_add_text(&finish, ",\"matched_stop\":");
  write_matched(&finish, choice);
  begin_chunk(choice);
  quire_strbuf_add_text(&call->out, call->kind == QUIRE_API_CHAT ? ",\"delta\":{}" : ",\"text\":\"\"");
  end_chunk(choice, choice->lp_values.bytes > 0, quire_strbuf_text(&finish));
  quire_strbuf_fini(&finish);
}

void quire_write_stream_end(struct call *call) {
  if (call->request.include_usage && call->kind != QUIRE_API_GENERATE) {
    add_head(call);
    quire_strbuf_add_text(&call->out, "[],\"usage\":");
    write_usage(&call->out, call);
    quire_strbuf_add_text(&call->out, "}\n\n");
  }
  quire_strbuf_add_text(&call->out, "data: [DONE]\n\n");
}

void quire_write_stream_fault(struct call *call) {
  quire_strbuf_add_text(&call->out, "data: ");
  quire_api_fault_write(&call->fault, &call->out);
  quire_strbuf_add_text(&call->out, "\n\ndata: [DONE]\n\n");
}

/* --- the prompt --- */

static size_t characters(const char *text, size_t bytes) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    count += ((unsigned char)text[i] & 0xC0) != 0x80 ? 1 : 0;
  }
  return count;
}

void quire_write_count(struct choice *choice, int32_t token) {
  size_t bytes = 0;
  const char *text = quire_tokenizer_token(choice->call->server->model->tokenizer, token, &bytes);
  choice->text_characters += text != NULL ? characters(text, bytes) : 0;
}

static void write_prompt_logprobs(struct choice *choice, const struct quire_api_prompt *prompt) {
  const struct quire_sampling *sampling = &choice->call->request.sampling;
  int32_t most = sampling->prompt_top_logprobs;
  const struct quire_top *tops;
  const struct quire_step_row *rows = quire_worker_rows(choice->call->server->model->worker, choice->ticket, &tops);
  for (int32_t i = 0; i < prompt->count; i++) {
    struct quire_top top = {prompt->tokens[i], i > 0 ? rows[i - 1].logprob : 0};
    struct alternatives others = {i > 0 && most > 0 ? tops + (size_t)(i - 1) * (size_t)most : NULL, i > 0 ? most : 0};
    while (others.count > 0 && others.top[others.count - 1].token < 0) {
      others.count--;
    }
    if (choice->call->kind == QUIRE_API_COMPLETION) {
      write_completion_logprob(choice, top, others, i > 0);
      quire_write_count(choice, prompt->tokens[i]);
    } else if (i >= sampling->prompt_logprobs_start) {
      comma(&choice->lp_prompt);
      write_triple(&choice->lp_prompt, top, i > 0);
      write_triples(&choice->lp_prompt_tops, others);
    }
  }
}

void quire_write_prompt(struct choice *choice) {
  struct call *call = choice->call;
  const struct quire_api_prompt *prompt = &call->request.prompts[choice->prompt];
  if (call->request.sampling.prompt_logprobs) {
    write_prompt_logprobs(choice, prompt);
  }
  if (!call->request.echo) {
    return;
  }
  struct quire_strbuf decoded;
  quire_strbuf_init(&decoded, call->server->env);
  if (prompt->text == NULL) {
    const struct quire_tokenizer *tokenizer = call->server->model->tokenizer;
    size_t bytes =
        quire_tokenizer_decode(tokenizer, prompt->tokens, (size_t)prompt->count, QUIRE_DECODE_REPLACE, NULL, 0);
    char *text = quire_env_zalloc(call->server->env, 1, bytes + 1);
    if (text != NULL) {
      quire_tokenizer_decode(tokenizer, prompt->tokens, (size_t)prompt->count, QUIRE_DECODE_REPLACE, text, bytes);
      quire_strbuf_add(&decoded, text, bytes);
    }
    quire_env_free(call->server->env, text, 1, bytes + 1);
  } else {
    quire_strbuf_add(&decoded, prompt->text, prompt->bytes);
  }
  struct quire_answer_delta delta = {.content = quire_strbuf_text(&decoded), .content_bytes = decoded.bytes};
  quire_write_delta(choice, &delta);
  quire_strbuf_fini(&decoded);
}

/* --- whole answers --- */

static void write_reason(struct quire_strbuf *out, const struct choice *choice) {
  const char *name = finish_name(choice->finish);
  if (name == NULL) {
    quire_strbuf_add_text(out, "null");
    return;
  }
  quire_strbuf_addf(out, "{\"type\":\"%s\"", name);
  if (choice->finish == FINISH_LENGTH) {
    quire_strbuf_addf(out, ",\"length\":%d", choice->drawn);
  } else if (choice->finish == FINISH_STOP) {
    quire_strbuf_add_text(out, ",\"matched\":");
    write_matched(out, choice);
  } else {
    quire_strbuf_add_text(out, ",\"message\":\"aborted\"");
  }
  quire_strbuf_add_char(out, '}');
}

/* The object of one sequence, as /generate has it. */
static void write_sequence(struct quire_strbuf *out, const struct choice *choice) {
  const struct call *call = choice->call;
  quire_strbuf_add_text(out, "{\"text\":\"");
  quire_json_write_escaped(out, quire_strbuf_text(&choice->content), choice->content.bytes);
  quire_strbuf_addf(out, "\",\"output_ids\":[%s],\"meta_info\":{\"id\":", quire_strbuf_text(&choice->ids));
  quire_json_write_string(out, call->id);
  quire_strbuf_add_text(out, ",\"finish_reason\":");
  write_reason(out, choice);
  quire_strbuf_addf(out, ",\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":%d,\"e2e_latency\":%.6f",
                    call->request.prompts[choice->prompt].count, choice->drawn, choice->cached,
                    (double)(quire_server_now(call->server) - call->begin_ns) * 1e-9);
  if (call->request.logprobs) {
    quire_strbuf_addf(out, ",\"input_token_logprobs\":[%s],\"output_token_logprobs\":[%s]",
                      quire_strbuf_text(&choice->lp_prompt), quire_strbuf_text(&choice->lp_values));
    if (call->request.sampling.top_logprobs > 0) {
      quire_strbuf_addf(out, ",\"input_top_logprobs\":[%s],\"output_top_logprobs\":[%s]",
                        quire_strbuf_text(&choice->lp_prompt_tops), quire_strbuf_text(&choice->lp_tops));
    }
  }
  quire_strbuf_add_text(out, "}");
  if (call->streaming && call->choice_count > 1) {
    quire_strbuf_addf(out, ",\"index\":%d", choice->index);
  }
  quire_strbuf_add_char(out, '}');
}

void quire_write_cumulative(struct choice *choice) {
  struct quire_strbuf *out = &choice->call->out;
  choice->fresh = false;
  quire_strbuf_add_text(out, "data: ");
  write_sequence(out, choice);
  quire_strbuf_add_text(out, "\n\n");
}

static void write_choice(struct quire_strbuf *out, struct choice *choice) {
  const struct call *call = choice->call;
  quire_strbuf_addf(out, "{\"index\":%d,", choice->index);
  if (call->kind == QUIRE_API_CHAT) {
    quire_strbuf_add_text(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    quire_json_write_bytes(out, quire_strbuf_text(&choice->content), choice->content.bytes);
    quire_strbuf_add_text(out, ",\"reasoning_content\":");
    if (choice->reasoning.bytes > 0) {
      quire_json_write_bytes(out, choice->reasoning.data, choice->reasoning.bytes);
    } else {
      quire_strbuf_add_text(out, "null");
    }
    quire_strbuf_add_char(out, '}');
  } else {
    quire_strbuf_add_text(out, "\"text\":");
    quire_json_write_bytes(out, quire_strbuf_text(&choice->content), choice->content.bytes);
  }
  quire_strbuf_add_text(out, ",\"logprobs\":");
  write_logprobs(out, choice);
  quire_strbuf_add_text(out, ",\"finish_reason\":");
  quire_json_write_string(out, finish_name(choice->finish));
  quire_strbuf_add_text(out, ",\"matched_stop\":");
  write_matched(out, choice);
  quire_strbuf_add_char(out, '}');
}

void quire_write_whole(struct call *call) {
  struct quire_strbuf *out = &call->out;
  bool list = call->kind != QUIRE_API_GENERATE || call->request.batch || call->request.n > 1;
  if (call->kind != QUIRE_API_GENERATE) {
    write_about(out, call, call->kind == QUIRE_API_CHAT ? "chat.completion" : "text_completion");
  }
  quire_strbuf_add(out, "[", list ? 1 : 0);
  for (int32_t i = 0; i < call->choice_count; i++) {
    quire_strbuf_add(out, ",", i > 0 ? 1 : 0);
    if (call->kind == QUIRE_API_GENERATE) {
      write_sequence(out, &call->choices[i]);
    } else {
      write_choice(out, &call->choices[i]);
    }
  }
  quire_strbuf_add(out, "]", list ? 1 : 0);
  if (call->kind != QUIRE_API_GENERATE) {
    quire_strbuf_add_text(out, ",\"usage\":");
    write_usage(out, call);
    quire_strbuf_add_char(out, '}');
  }
}
