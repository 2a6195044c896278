/* quire info: what a model is, what a worker would reserve for it, what works together, what the machine has. */
#include <stdio.h>

#include "cli/cli.h"
#include "collective/collective.h"
#include "device/device_info.h"
#include "kernels/kernels_cuda.h"
#include "layout/fingerprint.h"
#include "quire/quire.h"

static void print_cuda(void) {
  struct quire_cuda_info cuda;
  if (!quire_cuda_describe(&cuda)) {
    printf("  cuda          no: %s\n", cuda.why);
    return;
  }
  printf("  cuda          %d x %s, %d multiprocessors, %.0f GiB; driver %d.%d, runtime %d.%d\n", cuda.devices,
         cuda.name, cuda.processors, (double)cuda.memory_bytes / (1 << 30), cuda.driver / 1000, cuda.driver % 1000 / 10,
         cuda.runtime / 1000, cuda.runtime % 1000 / 10);
  const char *why = NULL;
  if (!quire_cuda_select_streams(&why)) {
    printf("  select        scores decode's rows as prefill's, slower: %s\n", why);
  }
}

static void print_nccl(void) {
  struct quire_nccl_info nccl;
  if (!quire_nccl_describe(&nccl)) {
    printf("  nccl          no: %s\n", nccl.why);
    return;
  }
  printf("  nccl          %d.%d.%d\n", nccl.version / 10000, nccl.version % 10000 / 100, nccl.version % 100);
}

static void print_machine(void) {
  struct quire_device_info info;
  quire_device_describe(&info);
  printf("machine\n");
  printf("  processor     %s\n", info.name);
  printf("  features      %s\n", info.isa);
  printf("  cores         %d of %d\n", info.cores, info.cores_online);
  printf("  memory        %.1f GiB, %.1f GiB available\n", (double)info.memory_bytes / (1 << 30),
         (double)info.available_bytes / (1 << 30));
  for (int i = 0; quire_kernels_at(i) != NULL; i++) {
    const char *why = NULL;
    bool can = quire_kernels_can(quire_kernels_at(i), &why);
    printf("  kernels       %-10s %s\n", quire_kernels_at(i)->name, can ? "yes" : why);
  }
  print_cuda();
  print_nccl();
}

static void print_model(const struct cli_model *model) {
  const struct quire_model_config *c = &model->config;
  int32_t mixtures = 0, indexers = 0;
  for (int32_t i = 0; i < c->layers; i++) {
    mixtures += c->moe[i];
    indexers += c->owns_indexer[i];
  }
  printf("model\n");
  printf("  family        %s, %d layers (%d with a mixture of experts), hidden %d, %d heads\n",
         quire_family_name(c->family), c->layers, mixtures, c->hidden, c->heads);
  printf("  attention     latent %d + rope %d; q rank %d, nope %d, value %d, softmax scale %.7g\n", c->kv_rank,
         c->rope_dim, c->q_rank, c->nope_dim, c->value_dim, (double)c->softmax_scale);
  printf("  indexer       %d heads of %d, top-k %d; %d layers own one, %d share a list\n", c->index_heads, c->index_dim,
         c->index_topk, indexers, c->layers - indexers);
  printf("  latent norms  eps %g\n", (double)model->options.latent_norm_eps);
  printf("  draft layer   %s\n", model->weights->has_mtp ? "yes" : "no");
  printf("  vocabulary    %d, positions %d\n", c->vocab, c->positions);
  printf("  parameters    %.2f M, %.2f M active a token, draft %.2f M\n", (double)c->target_parameters * 1e-6,
         (double)c->active_parameters * 1e-6, (double)c->draft_parameters * 1e-6);
  printf("  weights       %.2f MB mapped in place, %.2f MB packed, %.2f MB copied, one copy for all ranks\n",
         (double)model->weights->mapped_bytes * 1e-6, (double)model->weights->packed_bytes * 1e-6,
         (double)model->weights->copied_bytes * 1e-6);
}

static void print_parts(const struct quire_engine_config *config) {
  struct quire_parts parts;
  if (!quire_engine_parts(config, &parts)) {
    return;
  }
  printf("parts table (format %s, pages of %d tokens)\n", quire_kv_format_name(parts.format), parts.page_tokens);
  printf("  %-8s %-10s %-7s %-10s %s\n", "model", "kind", "layers", "row bytes", "page bytes of each");
  for (int32_t i = 0; i < parts.count;) {
    const struct quire_part *part = &parts.part[i];
    int32_t same = 0;
    bool counted_before = false;
    for (int32_t j = 0; j < parts.count; j++) {
      bool alike = parts.part[j].model == part->model && parts.part[j].kind == part->kind;
      same += alike ? 1 : 0;
      counted_before = counted_before || (alike && j < i);
    }
    if (!counted_before) {
      printf("  %-8s %-10s %-7d %-10d %d\n", part->model == QUIRE_PART_TARGET ? "target" : "draft",
             part->kind == QUIRE_PART_LATENT ? "latent" : "index key", same, part->row_bytes, part->page_bytes);
    }
    i++;
  }
  printf("  bundle        %lld bytes a page, %lld a token\n", (long long)quire_parts_bundle_bytes(&parts),
         (long long)(quire_parts_bundle_bytes(&parts) / parts.page_tokens));
}

static void print_memory(const struct quire_engine_config *config, const struct quire_engine_memory *memory) {
  const struct quire_step_memory *rank = &memory->rank;
  printf("memory plan (%d rank%s, context %d, cache %d tokens, chunk %d)\n", config->ranks,
         config->ranks > 1 ? "s" : "", config->ctx_tokens, config->cache_tokens, config->chunk_tokens);
  printf("  pages         %d in all, %d on the rank with most\n", memory->pages, memory->local_pages);
  printf("  each rank     %12lld bytes of KV pages\n", (long long)rank->pages);
  printf("                %12lld exchange and fresh rows\n", (long long)rank->view.exchange);
  printf("                %12lld local segment\n", (long long)rank->view.local);
  printf("                %12lld gather scratch\n", (long long)rank->view.gather);
  printf("                %12lld selection lists and scratch\n", (long long)rank->view.scratch);
  printf("                %12lld activations and logits\n", (long long)rank->forward);
  printf("                %12lld sampling\n", (long long)rank->sampling);
  printf("  the worker    %12lld RoPE table\n", (long long)memory->rope);
  printf("                %12lld page states, prefix tree, page tables\n", (long long)memory->brain);
  printf("                %12lld requests: tokens, queues, events\n", (long long)memory->controller);
  struct quire_device_info info;
  quire_device_describe(&info);
  int64_t total = quire_engine_memory_total(config, memory);
  printf("  in all        %12lld%s\n", (long long)total,
         total > info.available_bytes ? "   MORE THAN THIS MACHINE HAS AVAILABLE" : "");
}

static void print_support(void) {
  printf("refused together\n");
  for (int i = 0; quire_support_rule_at(i) != NULL; i++) {
    const struct quire_support_rule *rule = quire_support_rule_at(i);
    printf("  %-28s %s: %s\n", rule->name, rule->where, rule->text);
  }
  static const enum quire_view_mode modes[] = {QUIRE_VIEW_LOCAL, QUIRE_VIEW_GATHER, QUIRE_VIEW_PEER};
  static const char *const names[] = {"local", "gather", "peer"};
  printf("views               one rank     shared       replicated\n");
  for (int i = 0; i < 3; i++) {
    printf("  %-17s", names[i]);
    for (int column = 0; column < 3; column++) {
      struct quire_geometry g = {QUIRE_PAGE_TOKENS, column == 0 ? 1 : 2, column == 1 ? 2 : 1, 1};
      printf(" %-12s", quire_view_can(modes[i], &g, NULL) ? "yes" : "refused");
    }
    printf("\n");
  }
}

static int info_model(const struct cli_worker *worker) {
  struct quire_error error = {0};
  struct cli_model model = {0};
  struct quire_engine_config config;
  struct quire_engine_memory memory;
  enum quire_status status = cli_model_open(worker, &model, &error);
  if (status == QUIRE_OK) {
    status = cli_engine_config(worker, &model, cli_open_context(worker, &model), &config, &error);
  }
  if (status == QUIRE_OK) {
    status = quire_engine_plan(&config, &memory, &error);
  }
  if (status == QUIRE_OK) {
    char numerics[QUIRE_NUMERICS_BYTES], fingerprint[QUIRE_FINGERPRINT_TEXT_BYTES];
    quire_fingerprint_text(quire_engine_fingerprint(&config), fingerprint);
    print_model(&model);
    print_parts(&config);
    printf("numerics id     %s\n", quire_model_numerics(&model.options, "cpu", numerics));
    printf("fingerprint     %s\n", fingerprint);
    print_memory(&config, &memory);
  }
  cli_model_close(&model);
  return status == QUIRE_OK ? CLI_EXIT_OK : cli_fail(&error);
}

int cli_info(int argc, char **argv) {
  struct cli_worker worker = {0};
  struct quire_options *options = NULL;
  int exit_code = CLI_EXIT_OK;
  struct cli_command_line line = {"quire info [--model DIR] [worker options]", NULL, 0, NULL};
  if (!cli_read(line, argc, argv, &worker, &options, &exit_code)) {
    return exit_code;
  }
  printf("quire %s\n", quire_version());
  if (worker.model != NULL) {
    exit_code = info_model(&worker);
  }
  if (exit_code == CLI_EXIT_OK) {
    print_support();
    print_machine();
  }
  quire_options_destroy(options);
  return exit_code;
}
