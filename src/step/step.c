/* The front of the executors, and the group of ranks that all of them drive. */
#include "step/step.h"

#include <string.h>

#include "base/assert.h"
#include "step/step_private.h"

static const struct quire_step_ops *const executors[] = {&quire_step_threads_ops, &quire_step_proc_ops,
                                                         &quire_step_sim_ops};

#define EXECUTORS ((int)(sizeof executors / sizeof executors[0]))

const struct quire_step_ops *quire_step_ops_at(int index) {
  return index >= 0 && index < EXECUTORS ? executors[index] : NULL;
}

enum quire_status quire_step_create(const struct quire_env *env, const char *name,
                                    const struct quire_step_config *config, struct quire_step_executor **executor_out,
                                    struct quire_error *error_out) {
  QUIRE_ASSERT(quire_geometry_valid(&config->geometry));
  for (int i = 0; i < EXECUTORS; i++) {
    if (strcmp(executors[i]->name, name) == 0) {
      QUIRE_ASSERT(executors[i]->size == sizeof *executors[i] && executors[i]->version == QUIRE_STEP_OPS_VERSION);
      return executors[i]->create(env, config, executor_out, error_out);
    }
  }
  return quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "--executor",
                         "there is none named %.64s; choose threads or proc", name);
}

struct quire_step_memory quire_step_bytes(const char *name, const struct quire_step_config *config) {
  for (int i = 0; i < EXECUTORS; i++) {
    if (strcmp(executors[i]->name, name) == 0) {
      return executors[i]->bytes(config);
    }
  }
  return (struct quire_step_memory){0};
}

void quire_step_destroy(struct quire_step_executor *executor) {
  if (executor != NULL) {
    executor->ops->destroy(executor);
  }
}

enum quire_status quire_step_post(struct quire_step_executor *executor, const struct quire_step_plan *plan,
                                  struct quire_error *error_out) {
  return executor->ops->post(executor, plan, error_out);
}

struct quire_step_ack *quire_step_wait(struct quire_step_executor *executor) {
  return executor->ops->wait(executor);
}

enum quire_status quire_step_submit(struct quire_step_executor *executor, int32_t rank,
                                    const struct quire_command *command, struct quire_error *error_out) {
  return executor->ops->submit(executor, rank, command, error_out);
}

bool quire_step_alive(struct quire_step_executor *executor, struct quire_error *why_out) {
  return executor->ops->alive(executor, why_out);
}

int32_t quire_step_poll(struct quire_step_executor *executor, int32_t rank, struct quire_ack *acks_out, int32_t max) {
  return executor->ops->poll(executor, rank, acks_out, max);
}

int32_t quire_step_open_commands(struct quire_step_executor *executor, int32_t rank) {
  return executor->ops->open_commands(executor, rank);
}

void quire_step_drain(struct quire_step_executor *executor, int32_t rank) { executor->ops->drain(executor, rank); }

enum quire_status quire_step_bank_submit(struct quire_step_executor *executor, int32_t rank,
                                         const struct quire_command *command, struct quire_error *error_out) {
  return quire_bank_submit(quire_step_bank(executor, rank), command, error_out);
}

int32_t quire_step_bank_poll(struct quire_step_executor *executor, int32_t rank, struct quire_ack *acks_out,
                             int32_t max) {
  return quire_bank_poll(quire_step_bank(executor, rank), acks_out, max);
}

int32_t quire_step_bank_open_commands(struct quire_step_executor *executor, int32_t rank) {
  return quire_bank_open_commands(quire_step_bank(executor, rank));
}

void quire_step_bank_drain(struct quire_step_executor *executor, int32_t rank) {
  quire_bank_drain(quire_step_bank(executor, rank));
}

struct quire_bank *quire_step_bank(struct quire_step_executor *executor, int32_t rank) {
  return executor->ops->bank(executor, rank);
}

bool quire_step_tap(struct quire_step_executor *executor, int32_t rank, const struct quire_tap *tap) {
  return executor->ops->tap(executor, rank, tap);
}

static enum quire_status create_rope(struct quire_step_group *group, struct quire_error *error_out) {
  size_t positions = (size_t)group->config.request_pages_max * (size_t)group->config.geometry.page_tokens;
  group->rope_count = positions * QUIRE_ROPE_DIM;
  group->rope = quire_env_zalloc(group->env, group->rope_count, sizeof *group->rope);
  if (group->rope == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "no memory for the RoPE table of %zu positions",
                           positions);
  }
  uint32_t control = quire_kernels_enter();
  quire_rope_table(&group->config.model->rope, (int32_t)positions, group->rope);
  quire_kernels_leave(control);
  return QUIRE_OK;
}

static enum quire_status create_common(struct quire_step_group *group, struct quire_error *error_out) {
  const struct quire_env *env = group->env;
  size_t ranks = (size_t)group->config.geometry.ranks;
  group->merged = quire_env_zalloc(env, 1, (size_t)quire_step_ack_bytes(&group->config.limits));
  group->peers = quire_env_zalloc(env, 1, sizeof *group->peers);
  group->views = quire_env_zalloc(env, ranks, sizeof(struct quire_view *));
  if (group->merged == NULL || group->peers == NULL || group->views == NULL) {
    return quire_error_set(error_out, QUIRE_ERR_MEMORY, "step", "no memory for the ranks' tables");
  }
  enum quire_status status = create_rope(group, error_out);
  struct quire_collective_config collective = {.ranks = (int32_t)ranks};
  return status != QUIRE_OK ? status
                            : quire_collective_create(env, "local", &collective, &group->collective, error_out);
}

enum quire_status quire_step_group_init(struct quire_step_group *group, const struct quire_env *env,
                                        const struct quire_step_config *config, struct quire_error *error_out) {
  group->env = env;
  group->config = *config;
  int32_t ranks = config->geometry.ranks;
  enum quire_status status = create_common(group, error_out);
  for (int32_t r = 0; status == QUIRE_OK && r < ranks; r++) {
    status = quire_rank_bank_create(env, config, r, &group->banks[r], error_out);
  }
  if (status == QUIRE_OK) {
    status = quire_bank_connect(group->banks, ranks, group->peers, error_out);
  }
  struct quire_rank_shared shared = {group->collective, group->peers, group->views, group->rope};
  for (int32_t r = 0; status == QUIRE_OK && r < ranks; r++) {
    status = quire_rank_create(env, config, r, &shared, &group->ranks[r], error_out);
    group->views[r] = status == QUIRE_OK ? group->ranks[r]->view : NULL;
  }
  return status;
}

int32_t quire_step_group_threads(const struct quire_step_group *group) {
  QUIRE_ASSERT(group->config.threads_per_rank >= 1);
  return group->config.geometry.ranks * group->config.threads_per_rank;
}

void quire_step_group_fini(struct quire_step_group *group) {
  if (group->env == NULL) {
    return;
  }
  int32_t ranks = group->config.geometry.ranks;
  for (int32_t r = 0; r < ranks; r++) {
    quire_rank_destroy(group->ranks[r]);
  }
  for (int32_t r = 0; r < ranks; r++) {
    if (group->banks[r] != NULL) {
      quire_bank_drain(group->banks[r]);
    }
  }
  for (int32_t r = 0; r < ranks; r++) {
    quire_bank_destroy(group->banks[r]);
  }
  quire_collective_destroy(group->collective);
  quire_env_free(group->env, group->rope, group->rope_count, sizeof *group->rope);
  quire_env_free(group->env, group->views, (size_t)ranks, sizeof(struct quire_view *));
  quire_env_free(group->env, group->peers, 1, sizeof *group->peers);
  quire_env_free(group->env, group->merged, 1, (size_t)quire_step_ack_bytes(&group->config.limits));
}

struct quire_step_ack *quire_step_group_merge(struct quire_step_group *group, const struct quire_step_plan *plan) {
  quire_step_ack_reset(group->merged, plan, &group->config.limits, 0);
  for (int32_t r = 0; r < group->config.geometry.ranks; r++) {
    quire_step_ack_merge(group->merged, group->ranks[r]->ack, plan, &group->config.limits);
  }
  return group->merged;
}
