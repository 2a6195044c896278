/* Writing prompts.
 *
 * One writer serves both outputs. It gathers plain text until the next mark, because a pre-tokenizer must see a run as
 * a whole: "Reasoning Effort: Max" of a template and a text that follows without a mark are one text to it.
 *
 * The formats differ in where marks stand and in what becomes of reasoning, not in mechanism; each is one function over
 * the messages. A Jinja interpreter was rejected: DeepSeek ships no template to interpret, and text that has been
 * joined into one string can no longer be told apart by who wrote it. */
#include "text/chat.h"

#include <string.h>

#include "base/assert.h"

enum mark {
  MARK_BEGIN, /* of the text: bos, or [gMASK] */
  MARK_SOP,
  MARK_END, /* of an answer */
  MARK_SYSTEM,
  MARK_USER,
  MARK_ASSISTANT,
  MARK_OBSERVATION,
  MARK_THINK,
  MARK_THINK_END,
  MARKS,
};
_Static_assert(MARKS <= QUIRE_CHAT_MARKS_MAX, "room for every mark");

#define STOP(mark) (1u << (mark))

struct format {
  const char *name;
  const char *spelled[MARKS]; /* NULL: the format has no such mark */
  uint32_t stops;
  bool thinking; /* by default */
};

#define GLM_MARKS                                                                                                      \
  {                                                                                                                    \
    "[gMASK]", "<sop>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>",      \
        "</think>"                                                                                                     \
  }
#define GLM_STOPS (STOP(MARK_END) | STOP(MARK_USER) | STOP(MARK_OBSERVATION))

static const struct format FORMATS[QUIRE_CHAT_FORMATS] = {
    {"deepseek_v32",
     {"<｜begin▁of▁sentence｜>", NULL, "<｜end▁of▁sentence｜>", NULL, "<｜User｜>", "<｜Assistant｜>", NULL, "<think>",
      "</think>"},
     STOP(MARK_END),
     false},
    {"glm5", GLM_MARKS, GLM_STOPS, true},
    {"glm5.1", GLM_MARKS, GLM_STOPS, true},
    {"glm5.2", GLM_MARKS, GLM_STOPS, true},
};

struct quire_chat {
  const struct quire_env *env;
  const struct quire_tokenizer *tokenizer;
  enum quire_chat_format format;
  int32_t ids[MARKS];
  int32_t stops[QUIRE_CHAT_STOPS_MAX];
  size_t stop_count;
};

struct piece {
  const char *text;
  size_t bytes;
};

/* Where a prompt goes: spelled into text, or encoded run by run into tokens. */
struct writer {
  const struct quire_chat *chat;
  struct quire_strbuf *rendered; /* NULL: encode */
  struct quire_strbuf run;       /* plain text since the last mark */
  int32_t *tokens;
  size_t capacity;
  size_t count;
  struct quire_error *error;
  enum quire_status status;
};

/* ---- names ---- */

const char *quire_chat_format_name(enum quire_chat_format format) {
  QUIRE_ASSERT((int)format >= 0 && format < QUIRE_CHAT_FORMATS);
  return FORMATS[format].name;
}

bool quire_chat_format_parse(const char *name, enum quire_chat_format *format_out) {
  QUIRE_ASSERT(name && format_out);
  for (int i = 0; i < QUIRE_CHAT_FORMATS; i++) {
    if (strcmp(name, FORMATS[i].name) == 0) {
      *format_out = (enum quire_chat_format)i;
      return true;
    }
  }
  return false;
}

bool quire_chat_role_parse(const char *name, enum quire_chat_role *role_out) {
  static const struct {
    const char *name;
    enum quire_chat_role role;
  } roles[] = {{"system", QUIRE_CHAT_SYSTEM},
               {"developer", QUIRE_CHAT_SYSTEM},
               {"user", QUIRE_CHAT_USER},
               {"assistant", QUIRE_CHAT_ASSISTANT}};
  QUIRE_ASSERT(name && role_out);
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
    if (strcmp(name, roles[i].name) == 0) {
      *role_out = roles[i].role;
      return true;
    }
  }
  return false;
}

/* ---- the writer ---- */

static void flush(struct writer *w) {
  QUIRE_ASSERT(!w->rendered);
  if (w->status || w->run.bytes == 0) {
    return;
  }
  size_t count = 0;
  const size_t stored = w->count < w->capacity ? w->count : w->capacity;
  struct quire_encode encode = {.text = w->run.data,
                                .bytes = w->run.bytes,
                                .flags = QUIRE_ENCODE_LITERAL,
                                .tokens = w->capacity > stored ? w->tokens + stored : NULL,
                                .capacity = w->capacity - stored};
  w->status = quire_tokenizer_encode(w->chat->tokenizer, encode, &count, w->error);
  if (w->status == QUIRE_ERR_ARGUMENT) { /* a text too long: here it is the request's fault */
    w->status = QUIRE_ERR_REQUEST;
    if (w->error) {
      w->error->status = QUIRE_ERR_REQUEST;
    }
  }
  w->count += count;
  quire_strbuf_clear(&w->run);
}

static void add(struct writer *w, struct piece piece) {
  QUIRE_ASSERT(piece.bytes == 0 || piece.text != NULL);
  if (piece.bytes > 0) {
    quire_strbuf_add(w->rendered ? w->rendered : &w->run, piece.text, piece.bytes);
  }
}

static void add_text(struct writer *w, const char *text) { add(w, (struct piece){text, strlen(text)}); }

static void put(struct writer *w, enum mark mark) {
  const int32_t id = w->chat->ids[mark];
  QUIRE_ASSERT(id != QUIRE_TOKEN_NONE);
  if (w->rendered) {
    size_t bytes = 0;
    const char *text = quire_tokenizer_token(w->chat->tokenizer, id, &bytes);
    add(w, (struct piece){text, bytes});
    return;
  }
  if (quire_strbuf_failed(&w->run) && !w->status) {
    w->status = quire_error_set(w->error, QUIRE_ERR_MEMORY, "chat", "no memory to write a prompt");
  }
  flush(w);
  if (w->count < w->capacity) {
    w->tokens[w->count] = id;
  }
  w->count++;
}

/* ---- text as the templates see it ---- */

/* Bytes of the white space at text, as Python's str.strip() understands it; 0: there is none. */
static size_t space_at(const uint8_t *text, size_t bytes) {
  QUIRE_ASSERT(text != NULL || bytes == 0);
  const uint8_t first = bytes > 0 ? text[0] : 'x';
  if ((first >= 9 && first <= 13) || (first >= 28 && first <= 32)) {
    return 1;
  }
  if (bytes >= 2 && first == 0xc2 && (text[1] == 0x85 || text[1] == 0xa0)) {
    return 2;
  }
  if (bytes < 3 || first < 0xe1 || first > 0xe3) {
    return 0;
  }
  const uint32_t point = (uint32_t)(first & 15) << 12 | (uint32_t)(text[1] & 63) << 6 | (text[2] & 63);
  const bool space = point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
                     point == 0x202f || point == 0x205f || point == 0x3000;
  return space && (text[1] & 0xc0) == 0x80 && (text[2] & 0xc0) == 0x80 ? 3 : 0;
}

static struct piece strip(struct piece piece) {
  QUIRE_ASSERT(piece.text != NULL || piece.bytes == 0);
  for (size_t space; (space = space_at((const uint8_t *)piece.text, piece.bytes)) > 0;) {
    piece.text += space;
    piece.bytes -= space;
  }
  for (size_t width = 1; width <= 3 && width <= piece.bytes; width++) {
    if (space_at((const uint8_t *)piece.text + piece.bytes - width, width) == width) {
      piece.bytes -= width;
      width = 0; /* and again */
    }
  }
  return piece;
}

static struct piece strip_newlines(struct piece piece, bool front, bool back) {
  QUIRE_ASSERT(piece.text != NULL || piece.bytes == 0);
  while (front && piece.bytes > 0 && piece.text[0] == '\n') {
    piece.text++;
    piece.bytes--;
  }
  while (back && piece.bytes > 0 && piece.text[piece.bytes - 1] == '\n') {
    piece.bytes--;
  }
  return piece;
}

/* Offset of what in text: the first one, or the last one; text's bytes: none. */
static size_t find(struct piece text, const char *what, bool last) {
  QUIRE_ASSERT(what[0] != 0);
  const size_t length = strlen(what);
  size_t found = text.bytes;
  for (size_t at = 0; at + length <= text.bytes; at++) {
    if (memcmp(text.text + at, what, length) == 0) {
      found = at;
      if (!last) {
        break;
      }
    }
  }
  return found;
}

/* An answer as GLM's templates see it: reasoning beside the content, or else inside it before "</think>". */
struct answer {
  struct piece content;
  struct piece reasoning;
  bool has_reasoning;
};

static struct answer split_answer(const struct quire_chat_message *message, bool trim) {
  struct answer answer = {.content = {message->content, message->content_bytes},
                          .reasoning = {message->reasoning, message->reasoning_bytes},
                          .has_reasoning = message->reasoning != NULL};
  const struct piece text = answer.content;
  const size_t close = find(text, "</think>", false);
  if (answer.has_reasoning || close == text.bytes) {
    return answer;
  }
  const size_t rest = find(text, "</think>", true) + strlen("</think>");
  struct piece before = strip_newlines((struct piece){text.text, close}, false, trim);
  const size_t open = find(before, "<think>", true);
  QUIRE_ASSERT(rest <= text.bytes && open <= before.bytes);
  const size_t from = open < before.bytes ? open + strlen("<think>") : 0;
  answer.reasoning = strip_newlines((struct piece){before.text + from, before.bytes - from}, trim, false);
  answer.content = strip_newlines((struct piece){text.text + rest, text.bytes - rest}, trim, false);
  answer.has_reasoning = true;
  return answer;
}

/* ---- the formats ---- */

/* Index of the last user message, -1: there is none. */
static ptrdiff_t last_user(const struct quire_chat_request *request) {
  QUIRE_ASSERT(request->messages != NULL || request->count == 0);
  for (size_t i = request->count; i-- > 0;) {
    if (request->messages[i].role == QUIRE_CHAT_USER) {
      return (ptrdiff_t)i;
    }
  }
  return -1;
}

/* <bos>system<User>text<Assistant></think>answer<eos><User>... Text in front of the first user's turn has no mark; the
 * opening of an answer belongs to the user's turn before it. Reasoning before the last user's turn has no place,
 * whether or not one wants to keep it. */
static void write_deepseek(struct writer *w, const struct quire_chat_request *request, bool thinking) {
  QUIRE_ASSERT(w->chat->format == QUIRE_CHAT_DEEPSEEK_V32);
  const ptrdiff_t user = last_user(request);
  put(w, MARK_BEGIN);
  for (size_t i = 0; i < request->count; i++) {
    const struct quire_chat_message *message = &request->messages[i];
    const struct piece content = {message->content, message->content_bytes};
    switch (message->role) {
    case QUIRE_CHAT_SYSTEM:
      add(w, content);
      break;
    case QUIRE_CHAT_USER:
      put(w, MARK_USER);
      add(w, content);
      put(w, MARK_ASSISTANT);
      put(w, thinking && (ptrdiff_t)i == user ? MARK_THINK : MARK_THINK_END);
      break;
    case QUIRE_CHAT_ASSISTANT:
      if (thinking && (ptrdiff_t)i > user) {
        add(w, (struct piece){message->reasoning, message->reasoning_bytes});
        put(w, MARK_THINK_END);
      }
      add(w, content);
      if (!request->continue_final || i + 1 < request->count) {
        put(w, MARK_END);
      }
      break;
    }
  }
}

static void write_glm_answer(struct writer *w, const struct quire_chat_message *message, bool keep) {
  QUIRE_ASSERT(message->role == QUIRE_CHAT_ASSISTANT);
  const enum quire_chat_format format = w->chat->format;
  struct answer answer = split_answer(message, format == QUIRE_CHAT_GLM5);
  if (format == QUIRE_CHAT_GLM5) { /* the later templates take an empty reasoning for one, and do not strip it */
    answer.has_reasoning = answer.has_reasoning && answer.reasoning.bytes > 0;
    answer.reasoning = strip(answer.reasoning);
  }
  put(w, MARK_ASSISTANT);
  if (keep && answer.has_reasoning) {
    put(w, MARK_THINK);
    add(w, answer.reasoning);
  } else if (format == QUIRE_CHAT_GLM52) {
    put(w, MARK_THINK);
  }
  put(w, MARK_THINK_END);
  add(w, strip(answer.content));
}

/* [gMASK]<sop><|system|>text<|user|>text<|assistant|></think>answer<|user|>...<|assistant|><think> */
static void write_glm(struct writer *w, const struct quire_chat_request *request, bool thinking) {
  QUIRE_ASSERT(w->chat->format != QUIRE_CHAT_DEEPSEEK_V32);
  const ptrdiff_t user = last_user(request);
  put(w, MARK_BEGIN);
  put(w, MARK_SOP);
  if (w->chat->format == QUIRE_CHAT_GLM52 && thinking) {
    put(w, MARK_SYSTEM);
    add_text(w, request->effort == QUIRE_CHAT_EFFORT_HIGH ? "Reasoning Effort: High" : "Reasoning Effort: Max");
  }
  for (size_t i = 0; i < request->count; i++) {
    const struct quire_chat_message *message = &request->messages[i];
    if (message->role == QUIRE_CHAT_ASSISTANT) {
      write_glm_answer(w, message, request->keep_reasoning || (ptrdiff_t)i > user);
      continue;
    }
    put(w, message->role == QUIRE_CHAT_USER ? MARK_USER : MARK_SYSTEM);
    add(w, (struct piece){message->content, message->content_bytes});
  }
  if (request->continue_final) {
    return;
  }
  put(w, MARK_ASSISTANT);
  if (thinking || w->chat->format == QUIRE_CHAT_GLM52) {
    put(w, MARK_THINK);
  }
  if (!thinking) {
    put(w, MARK_THINK_END);
  }
}

static enum quire_status check(const struct quire_chat *chat, const struct quire_chat_request *request,
                               struct quire_error *error_out) {
  QUIRE_ASSERT(request != NULL);
  if (request->count == 0) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "messages", "must hold at least one message");
  }
  const enum quire_chat_role last = request->messages[request->count - 1].role;
  if (request->continue_final && last != QUIRE_CHAT_ASSISTANT) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "messages",
                           "continuing the final message needs an assistant's message at the end");
  }
  if (chat->format == QUIRE_CHAT_DEEPSEEK_V32 && !request->continue_final && last != QUIRE_CHAT_USER) {
    return quire_error_set(error_out, QUIRE_ERR_REQUEST, "messages",
                           "the last message must be a user's; or ask to continue the final message");
  }
  return QUIRE_OK;
}

/* Writes into w, whose outputs are set; result_out->tokens is left to the caller. */
static enum quire_status write_prompt(struct writer *w, const struct quire_chat_request *request, bool *thinking_out) {
  QUIRE_ASSERT((size_t)w->chat->format < sizeof FORMATS / sizeof FORMATS[0]);
  const struct format *format = &FORMATS[w->chat->format];
  const enum quire_status status = check(w->chat, request, w->error);
  if (status) {
    return status;
  }
  const bool thinking = request->thinking == QUIRE_CHAT_DEFAULT ? format->thinking : request->thinking == QUIRE_CHAT_ON;
  quire_strbuf_init(&w->run, w->chat->env);
  if (w->chat->format == QUIRE_CHAT_DEEPSEEK_V32) {
    write_deepseek(w, request, thinking);
  } else {
    write_glm(w, request, thinking);
  }
  if (!w->status && quire_strbuf_failed(w->rendered ? w->rendered : &w->run)) {
    w->status = quire_error_set(w->error, QUIRE_ERR_MEMORY, "chat", "no memory to write a prompt");
  }
  if (!w->rendered) {
    flush(w);
  }
  quire_strbuf_fini(&w->run);
  *thinking_out = thinking && !request->continue_final;
  return w->status;
}

enum quire_status quire_chat_encode(const struct quire_chat *chat, const struct quire_chat_request *request,
                                    int32_t *tokens_out, size_t capacity, struct quire_chat_result *result_out,
                                    struct quire_error *error_out) {
  QUIRE_ASSERT(chat && request && result_out && (tokens_out || capacity == 0) &&
               (request->messages || request->count == 0));
  struct writer w = {.chat = chat, .tokens = tokens_out, .capacity = capacity, .error = error_out};
  bool thinking = false;
  const enum quire_status status = write_prompt(&w, request, &thinking);
  if (!status) {
    *result_out = (struct quire_chat_result){.tokens = w.count, .thinking = thinking};
  }
  return status;
}

enum quire_status quire_chat_render(const struct quire_chat *chat, const struct quire_chat_request *request,
                                    struct quire_strbuf *text_out, struct quire_error *error_out) {
  QUIRE_ASSERT(chat && request && text_out && (request->messages || request->count == 0));
  struct writer w = {.chat = chat, .rendered = text_out, .error = error_out};
  bool thinking = false;
  return write_prompt(&w, request, &thinking);
}

/* ---- opening ---- */

enum quire_status quire_chat_create(const struct quire_env *env, enum quire_chat_format format,
                                    const struct quire_tokenizer *tokenizer, struct quire_chat **chat_out,
                                    struct quire_error *error_out) {
  QUIRE_ASSERT(env && tokenizer && chat_out && (int)format >= 0 && format < QUIRE_CHAT_FORMATS);
  struct quire_chat *chat = quire_env_zalloc(env, 1, sizeof *chat);
  if (!chat) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "chat", "no memory for a chat template");
  }
  chat->env = env;
  chat->tokenizer = tokenizer;
  chat->format = format;
  for (int mark = 0; mark < MARKS; mark++) {
    const char *text = FORMATS[format].spelled[mark];
    chat->ids[mark] = text ? quire_tokenizer_find(tokenizer, text, strlen(text)) : QUIRE_TOKEN_NONE;
    if (text && chat->ids[mark] == QUIRE_TOKEN_NONE) {
      quire_chat_close(chat);
      return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "chat",
                             "format %s needs the token %s, which the tokenizer does not have; use plain completions",
                             FORMATS[format].name, text);
    }
    if (FORMATS[format].stops & STOP(mark)) {
      QUIRE_ASSERT(chat->stop_count < QUIRE_CHAT_STOPS_MAX);
      chat->stops[chat->stop_count++] = chat->ids[mark];
    }
  }
  *chat_out = chat;
  return QUIRE_OK;
}

enum quire_status quire_chat_open(const struct quire_env *env, const char *dir, const struct quire_tokenizer *tokenizer,
                                  struct quire_chat **chat_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && dir && tokenizer && chat_out);
  enum quire_chat_format format = QUIRE_CHAT_DEEPSEEK_V32;
  const enum quire_status status = quire_chat_detect(env, dir, &format, error_out);
  return status ? status : quire_chat_create(env, format, tokenizer, chat_out, error_out);
}

void quire_chat_close(struct quire_chat *chat) {
  if (chat) {
    quire_env_free(chat->env, chat, 1, sizeof *chat);
  }
}

enum quire_chat_format quire_chat_format_of(const struct quire_chat *chat) {
  QUIRE_ASSERT(chat);
  return chat->format;
}

const int32_t *quire_chat_stops(const struct quire_chat *chat, size_t *count_out) {
  QUIRE_ASSERT(chat && count_out);
  *count_out = chat->stop_count;
  return chat->stops;
}
