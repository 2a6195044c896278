// ctest: timeout=120 labels=quick
/* The program as a user meets it: exit codes, one line that names the fault and the way out, answers on stdout only. */
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/tiny_model.h"

#define OUTPUT_BYTES (1 << 16)

static char model_dir[256], broken_dir[256];

struct outcome {
  int code;
  char out[OUTPUT_BYTES], err[OUTPUT_BYTES];
};

static void read_all(const char *path, char *text) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  size_t bytes = fread(text, 1, OUTPUT_BYTES - 1, file);
  text[bytes] = '\0';
  fclose(file);
}

static struct outcome *quire(const char *arguments) {
  static struct outcome outcome;
  char command[4096], out[300], err[300];
  snprintf(out, sizeof out, "%s/out", broken_dir);
  snprintf(err, sizeof err, "%s/err", broken_dir);
  snprintf(command, sizeof command, "'%s/bin/quire' %s >'%s' 2>'%s' </dev/null", QUIRE_BINARY_DIR, arguments, out, err);
  int status = system(command);
  assert_true(WIFEXITED(status));
  outcome.code = WEXITSTATUS(status);
  read_all(out, outcome.out);
  read_all(err, outcome.err);
  return &outcome;
}

static int lines(const char *text) {
  int count = 0;
  for (; *text != '\0'; text++) {
    count += *text == '\n' ? 1 : 0;
  }
  return count;
}

/* %M stands for the good model, %B for a folder with a broken one. */
static const struct {
  const char *arguments, *names;
} refusals[] = {
    {"", "usage"},
    {"fly", "unknown command"},
    {"help fly", "unknown command"},
    {"man fly", "name one command"},
    {"man run serve", "name one command"},
    {"completions tcsh", "name one shell"},
    {"completions zsh fish", "name one shell"},
    {"run", "--model"},
    {"run --model %M", "prompt"},
    {"run --model %M -p a --prompts b", "one of"},
    {"run --model /nonexistent -p a", "config.json"},
    {"run --model %M -p a --ranks 0", "ranks"},
    {"run --model %M -p a --ranks 17", "ranks"},
    {"run --model %M -p a --ranks two", "ranks"},
    {"run --model %M -p a --ranks 2 --view local", "view"},
    {"run --model %M -p a --ranks 2 --view gather --kv replicated", "view"},
    {"run --model %M -p a --view sideways", "view"},
    {"run --model %M -p a --chunk-tokens 0", "chunk-tokens"},
    {"run --model %M -p a --isa sse9", "sse9"},
    {"run --model %M -p a --kv-scales odd", "kv-scales"},
    {"run --model %M -p a --rank 2", "ranks"},
    {"run --model %M -p ''", "prompt"},
    {"run --model %M --prompt-file /nonexistent", "/nonexistent"},
    {"run --model %M --prompt-file %M", "%M"},
    {"run --model %M -p abcdefgh --ctx-tokens 4", "ctx-tokens"},
    {"run --model %M -p a -n 4 --ctx-tokens 100 --cache-tokens 10", "cache-tokens"},
    {"run --model %M -p a --config /nonexistent", "/nonexistent"},
    {"run --model %B -p a", "config.json"},
    {"run --model %M -p a --temperature nan", "temperature"},
    {"run --model %M -p a -n -1", "new-tokens"},
    {"run --model %M -p a --top-p 1.5", "top-p"},
    {"run --model %M -p a --min-p 2", "min-p"},
    {"run --model %M -p a --presence-penalty 3", "presence-penalty"},
    {"run --model %M -p a --frequency-penalty -3", "frequency-penalty"},
    {"run --model %M -p a --repetition-penalty 11", "repetition-penalty"},
    {"run --model %M -p a --logprobs 21", "logprobs"},
    {"run --model %M -p a --min-tokens -1", "min-tokens"},
    {"run --model %M -p a --logit-bias 5", "logit-bias"},
    {"run --model %M -p a --logit-bias 5:1,x:2", "logit-bias"},
    {"run --model %M -p a --logit-bias 5:1/6:2", "logit-bias"},
    {"run --model %M -p a --logit-bias 5:101", "logit_bias"},
    {"run --model %M -p a --logit-bias 5:nan", "logit_bias"},
    {"run --model %M -p a --logit-bias 99999999:1", "logit_bias"},
    {"run --model %M -p a --logit-bias -1:1", "logit-bias"},
    {"run --model %M -p a --stop-ids 5,,6", "stop-ids"},
    {"run --model %M -p a --stop-ids 99999999", "stop-ids"},
    {"bench", "name one of"},
    {"bench prefill --model %M --poison", "--poison"},
    {"eval --model %M", "heldout.txt"},
};

static void expand(const char *text, char *out) {
  for (; *text != '\0'; text++) {
    if (*text == '%' && (text[1] == 'M' || text[1] == 'B')) {
      out += sprintf(out, "%s", text[1] == 'M' ? model_dir : broken_dir);
      text++;
    } else {
      *out++ = *text;
    }
  }
  *out = '\0';
}

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
    char arguments[1024], names[512];
    expand(refusals[i].arguments, arguments);
    expand(refusals[i].names, names);
    struct outcome *outcome = quire(arguments);
    if (outcome->code != 2 || strstr(outcome->err, names) == NULL || outcome->out[0] != '\0' ||
        (strcmp(names, "usage") != 0 && lines(outcome->err) != 1)) {
      fail_msg("quire %s: code %d, stdout \"%s\", stderr \"%s\" (should name %s)", arguments, outcome->code,
               outcome->out, outcome->err, names);
    }
  }
}

static void test_answers(void **state) {
  (void)state;
  char arguments[1024], first[OUTPUT_BYTES];
  expand("run --model %M -p 'a longer prompt' -n 8 -t 0 -q", arguments);
  struct outcome *outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_string_equal(outcome->err, "");
  strcpy(first, outcome->out);
  expand("run --model %M -p 'a longer prompt' -n 8 -t 0 --ranks 3 --view gather --split interleave --verify",
         arguments);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_string_equal(outcome->out, first);
  assert_non_null(strstr(outcome->err, "same tokens and same KV bytes as one rank: yes"));
  expand("run --model %M -p 'a longer prompt' -n 4 --ranks 2 --kv-format fp8 --hadamard --kv-scales any --verify",
         arguments);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_non_null(strstr(outcome->err, "same tokens and same KV bytes as one rank: yes"));
}

/* Two ranks, five chunks and an answer; %s: what goes wrong in it. */
#define FAILING "run --model %%M -q --ranks 2 --chunk-tokens 64 -n 8 -t 0 --ignore-eos --prompt-file '%s' %s"

static const char *failing(const char *fault) {
  static char arguments[1024];
  char line[600], path[300];
  snprintf(path, sizeof path, "%s/long", broken_dir);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  for (int i = 0; i < 300; i++) {
    fputc('a' + i % 7, file);
  }
  assert_int_equal(fclose(file), 0);
  snprintf(line, sizeof line, FAILING, path, fault);
  expand(line, arguments);
  return arguments;
}

/* An answer that breaks off is a whole line all the same, and so is the error behind it. */
static void test_broken_answer(void **state) {
  (void)state;
  char whole[OUTPUT_BYTES];
  struct outcome *outcome = quire(failing(""));
  assert_int_equal(outcome->code, 0);
  strcpy(whole, outcome->out);
  outcome = quire(failing("--debug-fault skip-fence --debug-fault-step 9"));
  size_t bytes = strlen(outcome->out);
  assert_int_equal(outcome->code, 1);
  assert_true(bytes > 1 && bytes < strlen(whole) && memcmp(outcome->out, whole, bytes - 1) == 0);
  assert_int_equal(outcome->out[bytes - 1], '\n');
  assert_int_equal(lines(outcome->err), 1);
  assert_int_equal(strncmp(outcome->err, "quire: ", 7), 0);
  outcome = quire(failing("--debug-fault skip-fence --debug-fault-step 2")); /* before any answer: no empty line */
  assert_int_equal(outcome->code, 1);
  assert_string_equal(outcome->out, "");
}

/* A fault that was not found: whose mistake that is. */
static void test_faults_not_found(void **state) {
  (void)state;
  static const struct {
    const char *arguments, *says;
  } rows[] = {
      {"--debug-shared-kv --debug-fault swap-pages --debug-fault-step 1",
       "quire: --debug-fault: not placed: nothing to act on at step 1; "},
      {"--debug-shared-kv --debug-fault swap-pages --debug-fault-step 99",
       "quire: --debug-fault: not placed: there was no step 99, the last was 13; "},
      {"--debug-fault swap-pages --debug-fault-step 4",
       "quire: --debug-fault: placed at step 4 and not looked for, which takes --debug-shared-kv\n"},
      {"--debug-shared-kv --debug-fault skip-fence --debug-fault-step 13",
       "quire: --debug-fault: placed at step 13, and nobody could find it: "},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct outcome *outcome = quire(failing(rows[i].arguments));
    if (outcome->code != 2 || strncmp(outcome->err, rows[i].says, strlen(rows[i].says)) != 0) {
      fail_msg("%s: %d, %s", rows[i].arguments, outcome->code, outcome->err);
    }
  }
  char arguments[1024];
  expand("check --model %M --debug-shared-kv --debug-fault swap-pages --debug-fault-step 99", arguments);
  struct outcome *outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_non_null(strstr(outcome->out, "\n     --debug-fault not placed: there was no step 99, the last was "));
  expand("check --model %M --debug-shared-kv --debug-fault swap-pages --debug-fault-step 4", arguments);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 1);
  assert_non_null(
      strstr(outcome->out, "BAD  2 ranks, shared, peer, zigzag: same tokens and KV bytes: the view differs"));
}

/* Nor does an error stand behind the bar of what it ended. */
static void test_broken_bar(void **state) {
  (void)state;
  char command[2048], seen[OUTPUT_BYTES];
  const char *arguments = failing("--debug-fault skip-fence --debug-fault-step 2");
  snprintf(command, sizeof command, "'%s/bin/quire' %s", QUIRE_BINARY_DIR, arguments);
  char *quiet = strstr(command, " -q ");
  assert_non_null(quiet);
  memset(quiet, ' ', 4);
  int terminal = -1, status = 0;
  pid_t child = forkpty(&terminal, NULL, NULL, NULL);
  assert_true(child >= 0);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  size_t bytes = 0;
  for (ssize_t got = 1; got > 0 && bytes<sizeof seen - 1; bytes += got> 0 ? (size_t)got : 0) {
    got = read(terminal, seen + bytes, sizeof seen - 1 - bytes);
  }
  seen[bytes] = '\0';
  close(terminal);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  const char *error = strstr(seen, "\r\nquire: ");
  if (strstr(seen, "prefill  [") == NULL || error == NULL || strstr(error, "without a fence") == NULL) {
    fail_msg("%s", seen);
  }
}

/* What is asked of sampling reaches the worker, and does not depend on the ranks. */
static void test_sampling(void **state) {
  (void)state;
  static const char *const rows[] = {
      "-t 0.9 --top-p 0.9 --top-k 40 --min-p 0.01 --seed 3",
      "-t 0 --presence-penalty 1 --frequency-penalty 0.5 --repetition-penalty 1.4 --logprobs 2",
      "-t 0.7 --logit-bias 65:5,66:-100 --min-tokens 4 --stop-ids 7,8 --logprobs 0",
  };
  char arguments[1024], text[512];
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    snprintf(text, sizeof text, "run --model %%M -p 'a longer prompt' -n 8 --ranks 2 --verify %s", rows[i]);
    expand(text, arguments);
    struct outcome *outcome = quire(arguments);
    assert_int_equal(outcome->code, 0);
    assert_non_null(strstr(outcome->err, "same tokens and same KV bytes as one rank: yes"));
    assert_true(i != 1 || strstr(outcome->out, "  |") != NULL);
  }
  /* a bias of 100 is an order: the token comes, each time; as a stop, it ends the answer when it may */
  expand("run --model %M -p 'a longer prompt' -n 5 -t 1 --logit-bias 65:100 --logprobs 0 -q", arguments);
  struct outcome *outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_int_equal(lines(outcome->out), 6);
  for (const char *line = strchr(outcome->out, '\n') + 1; *line != '\0'; line = strchr(line, '\n') + 1) {
    assert_int_equal(atoi(line), 65);
  }
  expand("run --model %M -p 'a longer prompt' -n 5 -t 1 --logit-bias 65:100 --stop-ids 65 --logprobs 0 -q", arguments);
  outcome = quire(arguments);
  assert_int_equal(lines(outcome->out), 2);
  expand(
      "run --model %M -p 'a longer prompt' -n 9 -t 1 --logit-bias 65:100 --stop-ids 65 --min-tokens 3 --logprobs 0 -q",
      arguments);
  outcome = quire(arguments);
  assert_int_equal(lines(outcome->out), 1 + 4); /* three others, then the stop */
}

/* Any bytes are a prompt; a second prompt finds the first one's pages. */
static void test_prompt_files(void **state) {
  (void)state;
  char path[300], arguments[1024];
  snprintf(path, sizeof path, "%s/prompt.bin", broken_dir);
  FILE *file = fopen(path, "wb");
  for (int i = 0; i < 300; i++) {
    fputc((i * 37) & 0xff, file);
  }
  fclose(file);
  snprintf(arguments, sizeof arguments, "run --model '%s' --prompt-file '%s' -n 2 --ranks 2 --verify", model_dir, path);
  struct outcome *outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  snprintf(path, sizeof path, "%s/prompts.jsonl", broken_dir);
  file = fopen(path, "wb");
  for (int i = 0; i < 2; i++) {
    fputs("{\"prompt\": \"", file);
    for (int k = 0; k < 200; k++) {
      fputc('a' + k % 26, file);
    }
    fputs(i == 0 ? "one\"}\n" : "two\"}\n", file);
  }
  fclose(file);
  snprintf(arguments, sizeof arguments, "run --model '%s' --prompts '%s' -n 2 --ranks 2 --verify", model_dir, path);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_null(strstr(outcome->err, "and 0 found"));
}

/* The same answer from packed and mapped weights; what cannot be packed is refused with the reason. */
static void test_weights(void **state) {
  (void)state;
  char arguments[1024];
  expand("run --model %M --prompt abc -n 8 --ranks 2 --weights mapped", arguments);
  struct outcome *outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  char *mapped = strdup(outcome->out);
  assert_non_null(mapped);
  expand("run --model %M --prompt abc -n 8 --ranks 2", arguments);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_string_equal(outcome->out, mapped);
  free(mapped);
  expand("run --model %M --prompt abc -n 1 --weights packed --compute f32", arguments);
  outcome = quire(arguments);
  assert_true(outcome->code != 0);
  assert_non_null(strstr(outcome->err, "use mapped"));
  expand("run --model %M --prompt abc -n 1 --weights packed --isa portable", arguments);
  outcome = quire(arguments);
  assert_true(outcome->code != 0);
  assert_non_null(strstr(outcome->err, "use mapped"));
}

static void test_insight(void **state) {
  (void)state;
  char arguments[1024];
  expand("info --model %M --ranks 2", arguments);
  struct outcome *outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  static const char *const wanted[] = {"parts table", "fingerprint", "numerics id", "memory plan", "refused together"};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    assert_non_null(strstr(outcome->out, wanted[i]));
  }
  expand("info --model %M --hadamard --kv-scales any", arguments);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_non_null(strstr(outcome->out, "-had-anyscale"));
  expand("info --model %M --ctx-tokens 100 --cache-tokens 640", arguments); /* of short requests, too */
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_non_null(strstr(outcome->out, "memory plan (1 rank, context 100, cache 640 tokens, chunk 512)"));
  expand("check --model %M", arguments);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_non_null(strstr(outcome->out, ", 0 failed"));
  static const char *const helps[] = {"help",         "run --help",  "info --help",
                                      "check --help", "eval --help", "bench --help"};
  for (size_t i = 0; i < sizeof helps / sizeof helps[0]; i++) {
    outcome = quire(helps[i]);
    assert_int_equal(outcome->code, 0);
    assert_non_null(strstr(outcome->out, "usage"));
  }
}

/* --- model folders that are damaged --- */

#define FILE_BYTES_MAX (8 << 20)

/* What is done to one file of a copy of the good model. `from` is replaced by `to`, everywhere in the file; NULL cuts
 * the file to `size` bytes (negative: takes as many from its end; 0 removes it), or puts the 8 bytes of `to` in
 * front. */
struct damage {
  const char *name, *file, *from, *to;
  long size;
  const char *names; /* what the line must say */
};

#define SHARD "model-00001-of-00003.safetensors"
#define INDEX "model.safetensors.index.json"
#define REMOVED 0

static const struct damage damages[] = {
    {"missing tensor", INDEX, "model.layers.0.input_layernorm", "model.layers.0.input_layernerm", 0,
     "model.layers.0.input_layernerm.weight"},
    {"unlisted tensor", SHARD, "model.layers.0.input_layernorm", "model.layers.0.input_layernerm", 0,
     "model.layers.0.input_layernorm.weight"},
    {"misshapen tensor", SHARD, "q_a_proj.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[128,256]",
     "q_a_proj.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[256,128]", 0, "model.layers.0.self_attn.q_a_proj.weight"},
    {"shape that is not its bytes", SHARD, "layers.0.input_layernorm.weight\":{\"dtype\":\"BF16\",\"shape\":[256]",
     "layers.0.input_layernorm.weight\":{\"dtype\":\"BF16\",\"shape\":[255]", 0,
     "model.layers.0.input_layernorm.weight"},
    {"type we cannot use", SHARD, "model.layers.0.input_layernorm.weight\":{\"dtype\":\"BF16\"",
     "model.layers.0.input_layernorm.weight\":{\"dtype\":\"F64_\"", 0, "model.layers.0.input_layernorm.weight"},
    {"truncated data", SHARD, NULL, NULL, -100, SHARD},
    {"truncated header", SHARD, NULL, NULL, 1000, SHARD},
    {"seven bytes", SHARD, NULL, NULL, 7, SHARD},
    {"header longer than the file", SHARD, NULL, "\x00\x00\x00\x01\x00\x00\x00\x00", 8, SHARD},
    {"header of 2^63 bytes", SHARD, NULL, "\x00\x00\x00\x00\x00\x00\x00\x80", 8, SHARD},
    {"header of no bytes", SHARD, NULL, "\x00\x00\x00\x00\x00\x00\x00\x00", 8, SHARD},
    {"missing shard", SHARD, NULL, NULL, REMOVED, SHARD},
    {"index cut off", INDEX, NULL, NULL, -10, INDEX},
    {"index without a map", INDEX, "weight_map", "weight_mop", 0, "weight_map"},
    {"shard outside the folder", INDEX, SHARD, "../other.safetensors", 0, INDEX},
    {"missing index", INDEX, NULL, NULL, REMOVED, INDEX},
    {"tokenizer cut off", "tokenizer.json", NULL, NULL, 2000, "tokenizer.json"},
    {"tokenizer of another kind", "tokenizer.json", "\"BPE\"", "\"Unigram\"", 0, "tokenizer.json"},
    {"missing tokenizer", "tokenizer.json", NULL, NULL, REMOVED, "tokenizer.json"},
    {"config that is no JSON", "config.json", "\"model_type\"", "model_type", 0, "config.json"},
    {"missing config", "config.json", NULL, NULL, REMOVED, "config.json"},
    {"unknown model type", "config.json", "\"deepseek_v32\"", "\"gpt9\"", 0, "gpt9"},
    {"unknown value", "config.json", "\"sigmoid\"", "\"softmax\"", 0, "scoring_func"},
    {"unknown key", "config.json", "\"use_cache\"", "\"sliding_window_size\"", 0, "sliding_window_size"},
    {"value out of range", "config.json", "\"kv_lora_rank\": 512", "\"kv_lora_rank\": 500", 0, "kv_lora_rank"},
    {"value of another type", "config.json", "\"hidden_size\": 256", "\"hidden_size\": \"big\"", 0, "hidden_size"},
    {"key missing", "config.json", "\"hidden_size\": 256,", "", 0, "hidden_size"},
    {"config against tensors", "config.json", "\"q_lora_rank\": 128", "\"q_lora_rank\": 256", 0,
     "model.layers.0.self_attn.q_a_proj.weight"},
};

static size_t replace_all(char *text, size_t bytes, const struct damage *damage) {
  size_t from = strlen(damage->from), to = strlen(damage->to), count = 0;
  for (size_t i = 0; i + from <= bytes; i++) {
    if (memcmp(text + i, damage->from, from) == 0) {
      assert_true(bytes + to - from <= FILE_BYTES_MAX);
      memmove(text + i + to, text + i + from, bytes - i - from);
      memcpy(text + i, damage->to, to);
      bytes = bytes - from + to;
      i += to > 0 ? to - 1 : 0;
      count++;
    }
  }
  if (count == 0) {
    fail_msg("%s: %s has no \"%s\"", damage->name, damage->file, damage->from);
  }
  return bytes;
}

static void break_file(const char *dir, const struct damage *damage) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", dir, damage->file);
  char *text = malloc(FILE_BYTES_MAX);
  assert_non_null(text);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  size_t bytes = fread(text, 1, FILE_BYTES_MAX, file);
  fclose(file);
  assert_int_equal(unlink(path), 0); /* it may be a link to the good one */
  if (damage->from != NULL) {
    bytes = replace_all(text, bytes, damage);
  } else if (damage->to != NULL) {
    memcpy(text, damage->to, 8);
  } else {
    bytes = damage->size < 0 ? bytes - (size_t)-damage->size : (size_t)damage->size;
  }
  if (bytes > 0) {
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
  }
  free(text);
}

static void test_damaged_models(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
    const struct damage *damage = &damages[i];
    char dir[300], command[1500];
    snprintf(dir, sizeof dir, "%s/damaged", broken_dir);
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s' && ln '%s'/* '%s'", dir, dir, model_dir, dir);
    assert_int_equal(system(command), 0);
    break_file(dir, damage);
    static const char *const programs[] = {"run --model '%s' -p a -n 1", "check --model '%s'", "eval --model '%s'",
                                           "info --model '%s'"};
    /* every command reads a model in the same way: run on each, the others in turn */
    for (size_t p = 0; p < 2; p++) {
      char arguments[512];
      snprintf(arguments, sizeof arguments, programs[p == 0 ? 0 : 1 + i % 3], dir);
      struct outcome *outcome = quire(arguments);
      if (outcome->code != 2 || strstr(outcome->err, damage->names) == NULL || lines(outcome->err) != 1 ||
          (p == 0 && outcome->out[0] != '\0')) {
        fail_msg("%s: quire %s: code %d, stdout \"%s\", stderr \"%s\" (should name %s)", damage->name, arguments,
                 outcome->code, outcome->out, outcome->err, damage->names);
      }
    }
  }
}

/* A checkpoint of 1 TiB, nearly all of it a hole: packed is refused, auto leaves it mapped and says so. */
static void test_more_than_memory(void **state) {
  (void)state;
  static const struct damage more = {"one more shard",
                                     INDEX,
                                     "\"weight_map\": {",
                                     "\"weight_map\": {\"x.rotary_emb.inv_freq\": \"more.safetensors\", ",
                                     0,
                                     ""};
  char dir[300], command[1500], path[400], header[200], arguments[512];
  snprintf(dir, sizeof dir, "%s/damaged", broken_dir);
  snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s' && ln '%s'/* '%s'", dir, dir, model_dir, dir);
  assert_int_equal(system(command), 0);
  break_file(dir, &more);
  const long long elements = 1LL << 38;
  snprintf(header, sizeof header,
           "{\"x.rotary_emb.inv_freq\":{\"dtype\":\"F32\",\"shape\":[%lld],\"data_offsets\":[0,%lld]}}", elements,
           4 * elements);
  const uint64_t length = strlen(header);
  snprintf(path, sizeof path, "%s/more.safetensors", dir);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(&length, sizeof length, 1, file), 1);
  assert_int_equal(fwrite(header, length, 1, file), 1);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(truncate(path, (off_t)(sizeof length + length) + 4 * elements), 0);
  snprintf(arguments, sizeof arguments, "run --model '%s' -p a -n 1 -q --weights packed", dir);
  struct outcome *outcome = quire(arguments);
  assert_true(outcome->code != 0);
  assert_non_null(strstr(outcome->err, "use mapped"));
  bool packs = strstr(outcome->err, "not available") != NULL; /* else the kernels of this machine have no layout */
  snprintf(arguments, sizeof arguments, "run --model '%s' -p a -n 1 -q", dir);
  outcome = quire(arguments);
  assert_int_equal(outcome->code, 0);
  assert_int_equal(strstr(outcome->err, "do not fit") != NULL, packs);
  assert_int_equal(unlink(path), 0);
}

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER true
#elif defined(__has_feature)
#define ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define ADDRESS_SANITIZER false
#endif

/* Too little address space: how much there was, and what raises it, whoever ran out. */
static void test_little_memory(void **state) {
  (void)state;
  if (ADDRESS_SANITIZER) {
    print_message("skipped: an address sanitizer needs terabytes of address space itself\n");
    skip();
  }
  char command[2048], text[OUTPUT_BYTES];
  int failures = 0;
  for (int kilobytes = 25000; kilobytes < 70000; kilobytes += 9000) {
    snprintf(command, sizeof command, "ulimit -v %d; '%s/bin/quire' run --model '%s' -p a -n 1 -q 2>'%s/err' >&2",
             kilobytes, QUIRE_BINARY_DIR, model_dir, broken_dir);
    int status = system(command);
    assert_true(WIFEXITED(status));
    snprintf(command, sizeof command, "%s/err", broken_dir);
    read_all(command, text);
    if (WEXITSTATUS(status) != 0 &&
        WEXITSTATUS(status) != 127) { /* 127: the loader's, before the program's first line */
      failures++;
      assert_non_null(strstr(text, "ulimit -v"));
    }
  }
  assert_true(failures > 0);
}

/* --- what the option tables yield beside options --- */

/* The names that `quire help` lists, with a blank behind each. */
static void command_names(char *names, size_t bytes) {
  const char *at = strchr(quire("help")->out, '\n');
  names[0] = '\0';
  for (int length = 0; at != NULL && (at = strstr(at, "\n  ")) != NULL; at += 3) {
    length += snprintf(names + length, bytes - (size_t)length, "%.*s ", (int)strcspn(at + 3, " "), at + 3);
    assert_true((size_t)length < bytes);
  }
}

static void test_manual(void **state) {
  (void)state;
  char names[300], arguments[300], page[64];
  command_names(names, sizeof names);
  assert_string_equal(names, "run serve info check eval bench replay man completions version ");
  struct outcome *outcome = quire("man");
  assert_true(outcome->code == 0 && strncmp(outcome->out, ".TH quire 1 ", 12) == 0);
  for (char *name = strtok(names, " "); strcmp(name, "man") != 0; name = strtok(NULL, " ")) {
    snprintf(page, sizeof page, "quire\\-%s \\- ", name);
    snprintf(arguments, sizeof arguments, "man %s", name);
    outcome = quire(arguments);
    assert_int_equal(outcome->code, 0);
    assert_non_null(strstr(outcome->out, page));
    assert_non_null(strstr(outcome->out, ".SH SYNOPSIS\nquire "));
    assert_non_null(strstr(outcome->out, "\\fB\\-m\\fR, \\fB\\-\\-model\\fR \\fIDIR\\fR\n"));
    snprintf(arguments, sizeof arguments, "help %s", name);
    outcome = quire(arguments);
    assert_int_equal(outcome->code, 0);
    snprintf(page, sizeof page, "usage: quire %s ", name);
    assert_int_equal(strncmp(outcome->out, page, strlen(page)), 0);
  }
  assert_non_null(strstr(quire("help bench topk")->out, "--slice-us"));
  assert_non_null(strstr(quire("man bench")->out, "\n.B controller\na tick "));
}

/* The function of each shell, run with what a line has up to the cursor; what it would complete goes to a file. */
static void check_completions(const char *shell, const char *script) {
  static const struct {
    const char *line, *wanted;
  } cases[] = {
      {"quire e", "eval"},
      {"quire run --sp", "--split"},
      {"quire run --split i", "interleave"},
      {"quire serve --kv-format b", "bf16"},
      {"quire bench contr", "controller"},
      {"quire bench topk --slice", "--slice-us"},
      {"quire bench serve --concurr", "--concurrency"},
      {"quire run --latent-norm", "--latent-norm-eps"}, /* an apostrophe in its help */
      {"quire run --prompt-file nothing", ""},
  };
  char command[2000], path[400], text[OUTPUT_BYTES];
  snprintf(command, sizeof command, "command -v %s >/dev/null", shell);
  if (system(command) != 0) {
    print_message("%s is missing, and is not asked what it would complete (tools/setup --ci installs it)\n", shell);
    skip();
  }
  setenv("QUIRE_TEST_PROGRAM", QUIRE_BINARY_DIR "/bin/quire", 1);
  snprintf(path, sizeof path, "%s/completed", broken_dir);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    setenv("QUIRE_TEST_LINE", cases[i].line, 1);
    snprintf(command, sizeof command, "%s >'%s'", script, path);
    assert_int_equal(system(command), 0);
    read_all(path, text);
    text[strcspn(text, "\n")] = '\0';
    assert_string_equal(text, cases[i].wanted);
  }
}

static void test_completions_bash(void **state) {
  (void)state;
  check_completions("bash", "bash -c 'eval \"$(\"$QUIRE_TEST_PROGRAM\" completions)\"; COMP_WORDS=($QUIRE_TEST_LINE); "
                            "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _quire; echo \"${COMPREPLY[*]-}\"'");
}

/* With stand-ins for what zsh's completion system has: only inside of it they run. */
static void test_completions_zsh(void **state) {
  (void)state;
  check_completions("zsh", "zsh -f -c 'compdef() { :; }; _files() { print; }; "
                           "_describe() { local -a all=(${${(P)2}%%:*}); print -r -- ${(M)all:#$words[CURRENT]*}; }; "
                           "eval \"$(\"$QUIRE_TEST_PROGRAM\" completions zsh)\"; words=(${=QUIRE_TEST_LINE}); "
                           "CURRENT=$#words; _quire'");
}

static void test_completions_fish(void **state) {
  (void)state;
  check_completions("fish", "fish --no-config -c '$QUIRE_TEST_PROGRAM completions fish | source; "
                            "complete -C $QUIRE_TEST_LINE | string replace -r \"\\t.*\" \"\"; true'");
}

/* Where a shell is missing, at least: each has all commands, and their options with values and help. */
static void test_completions_of_all(void **state) {
  (void)state;
  static const char *const shells[] = {"bash", "zsh", "fish"};
  for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++) {
    char names[300], arguments[300], text[100];
    command_names(names, sizeof names);
    snprintf(arguments, sizeof arguments, "completions %s", shells[i]);
    struct outcome *outcome = quire(arguments);
    assert_int_equal(outcome->code, 0);
    for (char *name = strtok(names, " "); name != NULL; name = strtok(NULL, " ")) {
      snprintf(text, sizeof text, "\n%s\t", name);
      assert_true(strstr(outcome->out, text) != NULL || strcmp(name, "run") == 0); /* the first, behind a quote */
    }
    assert_non_null(strstr(outcome->out, "'run\t"));
    assert_non_null(strstr(outcome->out, "\n--kv-format f32 bf16 fp8\tstored form of KV rows\n"));
  }
}

/* --- lists of prompts and cases --- */

static const struct {
  const char *name, *text, *names;
} line_files[] = {
    {"prompts.jsonl", "{\"prompt\": \"one\"}\n{\"prompt\": \n", "line 2"},
    {"prompts.jsonl", "{\"prompt\": 7}\n", "line 1"},
    {"prompts.jsonl", "[\"one\"]\n", "line 1"},
    {"prompts.jsonl", "\xff\xfe\n", "line 1"},
    {"prompts.jsonl", "{\"prompt\": \"\"}\n", "empty"},
    {"prompts.jsonl", "\n\n", "no prompt"},
    {"prompts.txt", "", "no prompt"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\", \"prompt\": [\"b\"]}\nnot json\n", "line 2"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\"}\n", "line 1"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\", \"prompt\": []}\n", "line 1"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\", \"prompt\": [[0, 99]]}\n", "line 1"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\", \"prompt\": [[-1, 2]]}\n", "line 1"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\", \"prompt\": [[1, -2]]}\n", "line 1"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\", \"prompt\": [[9223372036854775807, 1]]}\n", "line 1"},
    {"recall.jsonl", "{\"id\": \"1k-0\", \"answer\": \"a\", \"prompt\": [[0, 9223372036854775807]]}\n", "line 1"},
};

static void write_text(const char *name, const char *text) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", broken_dir, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void test_damaged_lists(void **state) {
  (void)state;
  write_text("filler.txt", "ten bytes.");
  write_text("heldout.txt", "unseen");
  for (size_t i = 0; i < sizeof line_files / sizeof line_files[0]; i++) {
    char arguments[1024];
    bool prompts = line_files[i].name[0] == 'p';
    write_text(line_files[i].name, line_files[i].text);
    snprintf(arguments, sizeof arguments,
             prompts ? "run --model '%s' -n 1 --prompts '%s/%s'" : "eval --model '%s' --no-loss --eval-folder '%s'",
             model_dir, broken_dir, line_files[i].name);
    struct outcome *outcome = quire(arguments);
    if (outcome->code != 2 || strstr(outcome->err, line_files[i].names) == NULL || lines(outcome->err) != 1) {
      fail_msg("%s \"%s\": code %d, stdout \"%s\", stderr \"%s\" (should name %s)", line_files[i].name,
               line_files[i].text, outcome->code, outcome->out, outcome->err, line_files[i].names);
    }
  }
}

static int setup(void **state) {
  (void)state;
  snprintf(model_dir, sizeof model_dir, "/tmp/quire-cli-XXXXXX");
  snprintf(broken_dir, sizeof broken_dir, "/tmp/quire-cli-XXXXXX");
  if (mkdtemp(model_dir) == NULL || mkdtemp(broken_dir) == NULL) {
    return 1;
  }
  struct quire_tiny_options options = quire_tiny_defaults();
  options.dtype = QUIRE_TINY_FP8;
  options.layers = 2;
  char error[QUIRE_TINY_ERROR_BYTES];
  if (!quire_tiny_write(model_dir, &options, error)) {
    print_error("%s\n", error);
    return 1;
  }
  char path[300];
  snprintf(path, sizeof path, "%s/config.json", broken_dir);
  FILE *file = fopen(path, "wb");
  fputs("{\"model_type\": \"deepseek_v32\", \"hidden_size\": ", file);
  return fclose(file);
}

static int teardown(void **state) {
  (void)state;
  char command[700];
  snprintf(command, sizeof command, "rm -rf '%s' '%s'", model_dir, broken_dir);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refusals),         cmocka_unit_test(test_answers),
      cmocka_unit_test(test_broken_answer),    cmocka_unit_test(test_broken_bar),
      cmocka_unit_test(test_faults_not_found), cmocka_unit_test(test_sampling),
      cmocka_unit_test(test_prompt_files),     cmocka_unit_test(test_weights),
      cmocka_unit_test(test_insight),          cmocka_unit_test(test_damaged_models),
      cmocka_unit_test(test_damaged_lists),    cmocka_unit_test(test_more_than_memory),
      cmocka_unit_test(test_little_memory),    cmocka_unit_test(test_manual),
      cmocka_unit_test(test_completions_bash), cmocka_unit_test(test_completions_zsh),
      cmocka_unit_test(test_completions_fish), cmocka_unit_test(test_completions_of_all),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
