#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/assert.h"
#include "cli/cli.h"

static const char *const split_names[] = {"zigzag", "interleave", NULL};
static const char *const view_names[] = {"auto", "gather", "peer", "local", NULL};
static const char *const kv_names[] = {"auto", "shared", "replicated", NULL};
static const char *const format_names[] = {"f32", "bf16", "fp8", NULL};
static const char *const scales_names[] = {"pow2", "any", NULL};
static const char *const compute_names[] = {"bf16", "f32", NULL};
static const char *const weights_names[] = {"auto", "packed", "mapped", NULL};
static const char *const mtp_names[] = {"auto", "on", "off", NULL};

static const char *const fault_names[] = {"none", "skip-fence", "foreign-write", "swap-pages", NULL};

#define AT(field) offsetof(struct cli_worker, field)

const struct quire_option cli_worker_rows[] = {
    {.name = "model",
     .short_name = 'm',
     .type = QUIRE_OPTION_STRING,
     .offset = AT(model),
     .metavar = "DIR",
     .help = "Hugging Face folder of a deepseek_v32 or glm_moe_dsa model"},
    {.name = "ranks",
     .short_name = 'r',
     .type = QUIRE_OPTION_INT,
     .offset = AT(ranks),
     .default_text = "1",
     .min = 1,
     .max = QUIRE_RANKS_MAX,
     .help = "context-parallel ranks; each is a thread with memory of its own"},
    {.name = "split",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(split),
     .values = split_names,
     .help = "how the rows of a chunk are spread over the ranks"},
    {.name = "view",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(view),
     .values = view_names,
     .help = "how a rank reads pages of others: peer in place, gather a copy one layer ahead; auto is peer where KV is "
             "shared, else local"},
    {.name = "kv",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(kv),
     .values = kv_names,
     .help = "one cache shared page by page, or a copy on every rank; auto is shared"},
    {.name = "kv-format",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(kv_format),
     .default_text = "bf16",
     .values = format_names,
     .help = "stored form of KV rows"},
    {.name = "kv-scales",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(kv_scales),
     .values = scales_names,
     .help = "scales of stored rows: powers of two, or any float, as some engines have it; part of the numerics id"},
    {.name = "compute",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(compute),
     .values = compute_names,
     .help = "arithmetic of the forward pass; f32 is for comparison with other implementations"},
    {.name = "chunk-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(chunk_tokens),
     .default_text = "512",
     .min = 1,
     .max = 1 << 20,
     .help = "prompt tokens of one prefill step, over all ranks"},
    {.name = "threads-per-rank",
     .type = QUIRE_OPTION_INT,
     .offset = AT(threads_per_rank),
     .default_text = "1",
     .min = 1,
     .max = QUIRE_TEAM_THREADS_MAX,
     .help = "threads that work together in a rank"},
    {.name = "executor",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(executor),
     .default_text = "threads",
     .metavar = "NAME",
     .help = "ranks are threads, or processes over shared memory (proc); the bytes are the same"},
    {.name = "mtp",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(mtp),
     .values = mtp_names,
     .help = "keep draft (MTP) rows in the cache; auto is on when the model has the layer"},
    {.name = "weights",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(weights),
     .values = weights_names,
     .help =
         "packed: matrices are laid out for the kernels while they are loaded, in memory of their own; products are "
         "faster, the results the same. mapped: they are read where the files have them, pages are shared with other "
         "processes and start-up is quick. auto: packed where the kernels have a layout, compute is bf16 and memory "
         "suffices"},
    {.name = "ctx-tokens",
     .short_name = 'c',
     .type = QUIRE_OPTION_INT,
     .offset = AT(ctx_tokens),
     .default_text = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "longest request, prompt and answer; 0 is what the prompts need"},
    {.name = "cache-tokens",
     .type = QUIRE_OPTION_INT,
     .offset = AT(cache_tokens),
     .default_text = "0",
     .min = 0,
     .max = 1 << 28,
     .help = "tokens all pages hold together; 0 is twice --ctx-tokens"},
    {.name = "isa",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(isa),
     .default_text = "auto",
     .metavar = "NAME",
     .help = "kernels to use: auto, portable, avx512; all give the same bytes"},
    {.name = "latent-norm-eps",
     .type = QUIRE_OPTION_FLOAT,
     .offset = AT(latent_norm_eps),
     .default_text = "0",
     .min = 0,
     .max = 1e-2,
     .help = "eps of the latent norms; part of the numerics id. 0 is the model's rms_norm_eps, as vLLM and SGLang have "
             "it (GLM-5: 1e-5); transformers has 1e-6 for every model"},
    {.name = "hadamard",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(hadamard),
     .help = "Hadamard transform of index queries and keys before they are quantised, as some engines do; part of the "
             "numerics id"},
    {.name = "poison",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(poison),
     .help = "overwrite freed pages with NaN before they are used again (debugging)"},
    {.name = "debug-shared-kv",
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(debug_shared_kv),
     .help = "compare every page a rank reads with what its owner wrote, in every layer"},
    {.name = "debug-fault",
     .type = QUIRE_OPTION_ENUM,
     .offset = AT(fault),
     .values = fault_names,
     .help = "a fault to put in, for --debug-shared-kv to find"},
    {.name = "debug-fault-step",
     .type = QUIRE_OPTION_INT,
     .offset = AT(fault_step),
     .default_text = "2",
     .min = 1,
     .max = 1 << 30,
     .help = "step in which the fault is put in"},
    {.name = "config",
     .type = QUIRE_OPTION_STRING,
     .offset = AT(config),
     .metavar = "FILE",
     .help = "YAML file with these options",
     .deed = true},
    {.name = "help",
     .short_name = 'h',
     .type = QUIRE_OPTION_FLAG,
     .offset = AT(help),
     .help = "show this help",
     .deed = true},
};
const int cli_worker_row_count = (int)(sizeof cli_worker_rows / sizeof cli_worker_rows[0]);

static bool bar_open; /* a line of stderr holds a bar that has not come to its end */

int cli_fail(const struct quire_error *error) {
  if (bar_open) {
    fputc('\n', stderr);
    bar_open = false;
  }
  if (error->where[0] != '\0') {
    fprintf(stderr, "quire: %s: %s\n", error->where, error->text);
  } else {
    fprintf(stderr, "quire: %s\n", error->text);
  }
  struct rlimit space;
  if (error->status == QUIRE_ERR_MEMORY && getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    fprintf(stderr, "quire: a process may have %.1f MB here; ulimit -v raises that\n", (double)space.rlim_cur * 1e-6);
  }
  enum quire_damage damage = quire_status_damage(error->status);
  bool input = damage == QUIRE_DAMAGE_CALL || damage == QUIRE_DAMAGE_REQUEST || error->status == QUIRE_ERR_CORRUPT ||
               error->status == QUIRE_ERR_IO;
  return input ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE;
}

static enum cli_help help_form;

void cli_help_as(enum cli_help form) { help_form = form; }

static void print_man(const char *usage, const struct quire_options *options) {
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  quire_strbuf_add_text(&text, ".SH SYNOPSIS\n");
  quire_option_add_roff(&text, usage);
  quire_strbuf_add_text(&text, "\n.SH OPTIONS\n");
  quire_options_write_man(options, &text);
  fputs(quire_strbuf_text(&text), stdout);
  quire_strbuf_fini(&text);
}

static void print_words(const char *usage, const struct quire_options *options) {
  (void)usage;
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  quire_options_write_words(options, &text);
  fputs(quire_strbuf_text(&text), stdout);
  quire_strbuf_fini(&text);
}

static void print_text(const char *usage, const struct quire_options *options) {
  struct quire_strbuf text;
  quire_strbuf_init(&text, quire_env_default());
  quire_options_write_help(options, &text);
  printf("usage: %s\n\n%s\n--NAME value is also QUIRE_NAME in the environment (capitals, _ for -) and \"NAME: value\" "
         "in the file of\n"
         "--config; the command line wins over the environment, the environment over the file.\n",
         usage, quire_strbuf_text(&text));
  quire_strbuf_fini(&text);
}

static void (*const print_help[])(const char *usage, const struct quire_options *options) = {
    [CLI_HELP_TEXT] = print_text, [CLI_HELP_MAN] = print_man, [CLI_HELP_WORDS] = print_words};

bool cli_read(struct cli_command_line command, int argc, char **argv, struct cli_worker *worker,
              struct quire_options **options_out, int *exit_out) {
  struct quire_option_group own = {"Options of this command:", command.rows, command.row_count, command.target};
  return cli_read_groups((struct cli_command_groups){command.usage, &own, command.row_count > 0 ? 1 : 0}, argc, argv,
                         worker, options_out, exit_out);
}

bool cli_read_groups(struct cli_command_groups command, int argc, char **argv, struct cli_worker *worker,
                     struct quire_options **options_out, int *exit_out) {
  struct quire_option_group groups[CLI_GROUPS_MAX];
  QUIRE_ASSERT(command.count < CLI_GROUPS_MAX);
  for (int i = 0; i < command.count; i++) {
    groups[i] = command.groups[i];
  }
  groups[command.count] = (struct quire_option_group){"Worker:", cli_worker_rows, cli_worker_row_count, worker};
  struct quire_error error = {0};
  struct quire_options *options = NULL;
  *options_out = NULL;
  enum quire_status status = quire_options_create(quire_env_default(), groups, command.count + 1, &options, &error);
  if (status == QUIRE_OK) {
    status = quire_options_read_arguments(options, argc, (const char *const *)argv, 0, &error);
  }
  if (status == QUIRE_OK && !worker->help) {
    status = quire_options_read_environment(options, NULL, &error);
  }
  if (status == QUIRE_OK && worker->help) {
    print_help[help_form](command.usage, options);
    quire_options_destroy(options);
    *exit_out = CLI_EXIT_OK;
    return false;
  }
  if (status == QUIRE_OK && worker->config != NULL) {
    status = quire_options_read_file(options, worker->config, &error);
  }
  if (status != QUIRE_OK) {
    quire_options_destroy(options);
    *exit_out = cli_fail(&error);
    return false;
  }
  *options_out = options;
  return true;
}

uint64_t cli_now_ns(void) {
  const struct quire_env *env = quire_env_default();
  return env->now_ns(env->context);
}

void cli_progress(const char *what, double done, double total, const char *unit, uint64_t started_ns) {
  if (!isatty(STDERR_FILENO) || total <= 0) {
    return;
  }
  char bar[31];
  int filled = (int)(30 * done / total);
  for (int i = 0; i < 30; i++) {
    bar[i] = i < filled ? '#' : '.';
  }
  bar[30] = '\0';
  double seconds = (double)(cli_now_ns() - started_ns) * 1e-9;
  fprintf(stderr, "\r%-8s [%s] %.0f/%.0f %s, %.0f %s/s ", what, bar, done, total, unit,
          seconds > 0 ? done / seconds : 0, unit);
  bar_open = done < total;
  if (!bar_open) {
    fputc('\n', stderr);
  }
}
