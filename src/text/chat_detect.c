/* Which chat format a model folder asks for.
 *
 * glm_moe_dsa is one architecture with three templates, and nothing but the template tells them apart. They are not
 * interpreted but recognised, each by the one thing that it alone does: GLM-5.2 names an effort, GLM-5 strips
 * reasoning. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/json.h"
#include "text/chat.h"

#define PATH_BYTES 4096
#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)
#define CONFIG_BYTES_MAX ((size_t)16 << 20)

static enum quire_status join(const char *dir, const char *name, char path[PATH_BYTES], struct quire_error *error_out) {
  QUIRE_ASSERT(dir != NULL && name != NULL);
  if ((size_t)snprintf(path, PATH_BYTES, "%s/%s", dir, name) >= PATH_BYTES) {
    return quire_error_set(error_out, QUIRE_ERR_ARGUMENT, name, "the folder's path is too long; move the model");
  }
  return QUIRE_OK;
}

static enum quire_chat_format recognise(const char *text) {
  QUIRE_ASSERT(text != NULL);
  if (strstr(text, "Reasoning Effort")) {
    return QUIRE_CHAT_GLM52;
  }
  return strstr(text, "reasoning_content.strip()") ? QUIRE_CHAT_GLM5 : QUIRE_CHAT_GLM51;
}

/* The template inside tokenizer_config.json: a text, or a list of {name, template} whose first counts. */
static const char *inner_template(const json_t *config) {
  QUIRE_ASSERT(config != NULL);
  const json_t *value = json_object_get(config, "chat_template");
  if (json_is_array(value)) {
    value = json_object_get(json_array_get(value, 0), "template");
  }
  return json_string_value(value);
}

/* *found_out is false when the folder has no template; then *format_out is untouched. */
static enum quire_status read_template(const struct quire_env *env, const char *dir, enum quire_chat_format *format_out,
                                       bool *found_out, struct quire_error *error_out) {
  QUIRE_ASSERT(format_out != NULL && found_out != NULL);
  char path[PATH_BYTES];
  struct quire_file_text text;
  json_t *config = NULL;
  enum quire_status status = join(dir, "chat_template.jinja", path, error_out);
  status = status ? status : quire_file_read(env, path, TEMPLATE_BYTES_MAX, &text, error_out);
  if (!status) {
    *found_out = true;
    *format_out = recognise(text.data);
    quire_file_text_free(env, &text);
  }
  if (status != QUIRE_ERR_NOT_FOUND) {
    return status;
  }
  status = join(dir, "tokenizer_config.json", path, error_out);
  status = status ? status : quire_json_load(env, path, CONFIG_BYTES_MAX, &config, error_out);
  if (!status && inner_template(config)) {
    *found_out = true;
    *format_out = recognise(inner_template(config));
  }
  json_decref(config);
  return status == QUIRE_ERR_NOT_FOUND ? QUIRE_OK : status;
}

static enum quire_chat_format by_indexers(const json_t *config) {
  QUIRE_ASSERT(config != NULL);
  const json_t *types = json_object_get(config, "indexer_types");
  for (size_t i = 0; i < json_array_size(types); i++) {
    const char *type = json_string_value(json_array_get(types, i));
    if (type && strcmp(type, "shared") == 0) {
      return QUIRE_CHAT_GLM52;
    }
  }
  return QUIRE_CHAT_GLM5;
}

enum quire_status quire_chat_detect(const struct quire_env *env, const char *dir, enum quire_chat_format *format_out,
                                    struct quire_error *error_out) {
  char path[PATH_BYTES], type[64];
  json_t *config = NULL;
  bool found = false;
  QUIRE_ASSERT(env && dir && format_out);
  enum quire_status status = join(dir, "config.json", path, error_out);
  status = status ? status : quire_json_load(env, path, CONFIG_BYTES_MAX, &config, error_out);
  if (status) {
    return status;
  }
  struct quire_json_reader r = quire_json_reader(config, "config.json", error_out);
  snprintf(type, sizeof type, "%s", quire_json_string(&r, "model_type", ""));
  enum quire_chat_format format = by_indexers(config);
  status = r.status;
  json_decref(config);
  if (!status && strcmp(type, "deepseek_v32") == 0) {
    format = QUIRE_CHAT_DEEPSEEK_V32;
  } else if (!status && strcmp(type, "glm_moe_dsa") == 0) {
    status = read_template(env, dir, &format, &found, error_out);
  } else if (!status) {
    status = quire_error_set(error_out, QUIRE_ERR_UNSUPPORTED, "config.json: model_type",
                             "\"%s\" has no chat template here; deepseek_v32 and glm_moe_dsa have one", type);
  }
  if (!status) {
    *format_out = format;
  }
  return status;
}
