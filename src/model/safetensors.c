/* Reading safetensors. Tensors of all files lie in one array (files by name, in a file by offset) under one hash table.
 *
 * A header is not trusted: it may come from anywhere, and a pointer that is wrong by a byte would be served for ever.
 * The checks are those of the format's own reader, and the index must agree with its shards in both directions. */
#include "model/safetensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define PATH_BYTES 4096
#define INDEX_BYTES_MAX ((size_t)256 << 20)
#define TENSORS_MAX (1 << 22)

struct shard {
  char *name;
  size_t name_bytes;
  struct quire_mapping mapping; /* or the caller's bytes */
  char *names;                  /* of its tensors, each terminated */
  size_t names_bytes;
};

struct quire_safetensors {
  const struct quire_env *env;
  struct shard *shards; /* [shard_capacity] */
  int32_t shard_capacity;
  int32_t shard_count;
  bool adopted;                 /* the mapping of the only shard is the caller's */
  struct quire_tensor *tensors; /* [capacity] */
  int32_t *shard_of;            /* [capacity] */
  int32_t capacity;
  int32_t count;
  int32_t *map; /* [map_slots], -1: free */
  uint32_t map_slots;
  size_t bytes;
};

static const struct {
  const char *name;
  int32_t bytes;
} types[] = {
    [QUIRE_TENSOR_F32] = {"F32", 4}, [QUIRE_TENSOR_BF16] = {"BF16", 2}, [QUIRE_TENSOR_F8_E4M3] = {"F8_E4M3", 1},
    [QUIRE_TENSOR_I64] = {"I64", 8}, [QUIRE_TENSOR_I32] = {"I32", 4},   [QUIRE_TENSOR_I8] = {"I8", 1},
    [QUIRE_TENSOR_U8] = {"U8", 1},
};
#define TYPES ((int)(sizeof types / sizeof types[0]))

void quire_safetensors_sparse(const struct quire_safetensors *tensors, bool sparse) {
  QUIRE_ASSERT(tensors != NULL);
  for (int32_t i = 0; i < tensors->shard_count && !tensors->adopted; i++) {
    quire_file_sparse(&tensors->shards[i].mapping, sparse);
  }
}

void quire_safetensors_done(const struct quire_safetensors *tensors, const struct quire_tensor *tensor) {
  QUIRE_ASSERT(tensors != NULL && tensor != NULL);
  if (!tensors->adopted) {
    quire_file_done(tensor->data, tensor->bytes);
  }
}

int32_t quire_tensor_type_bytes(enum quire_tensor_type type) {
  QUIRE_ASSERT((int)type >= 0 && (int)type < TYPES);
  return types[type].bytes;
}

const char *quire_tensor_type_name(enum quire_tensor_type type) {
  QUIRE_ASSERT((int)type >= 0 && (int)type < TYPES);
  return types[type].name;
}

static enum quire_status no_memory(struct quire_error *error) {
  return quire_error_set(error, QUIRE_ERR_MEMORY, "safetensors", "no memory for the list of tensors");
}

static enum quire_status corrupt(const struct shard *shard, const char *tensor, const char *what,
                                 struct quire_error *error) {
  QUIRE_ASSERT(what != NULL);
  if (!tensor) {
    return quire_error_set(error, QUIRE_ERR_CORRUPT, shard->name, "%s; download the file again", what);
  }
  return quire_error_set(error, QUIRE_ERR_CORRUPT, shard->name, "tensor %.160s: %s; download the file again", tensor,
                         what);
}

/* ---- one tensor ---- */

static enum quire_status read_type(const struct shard *shard, const char *name, const char *type_name,
                                   enum quire_tensor_type *type_out, struct quire_error *error) {
  QUIRE_ASSERT(type_name != NULL && type_out != NULL);
  for (int type = 0; type < TYPES; type++) {
    if (strcmp(type_name, types[type].name) == 0) {
      *type_out = (enum quire_tensor_type)type;
      return QUIRE_OK;
    }
  }
  return quire_error_set(error, QUIRE_ERR_UNSUPPORTED, shard->name,
                         "tensor %.160s has type %.32s, which is not supported; convert it to F32, BF16 or F8_E4M3",
                         name, type_name);
}

static enum quire_status read_shape(const struct shard *shard, const json_t *shape, struct quire_tensor *tensor,
                                    struct quire_error *error) {
  QUIRE_ASSERT(tensor->type >= 0 && (int)tensor->type < TYPES);
  size_t rank = json_array_size(shape);
  size_t bytes = (size_t)types[tensor->type].bytes;
  if (rank > QUIRE_TENSOR_RANK_MAX) {
    return quire_error_set(error, QUIRE_ERR_UNSUPPORTED, shard->name,
                           "tensor %.160s has %zu dimensions; at most %d are supported", tensor->name, rank,
                           QUIRE_TENSOR_RANK_MAX);
  }
  for (size_t i = 0; i < QUIRE_TENSOR_RANK_MAX; i++) {
    const json_t *dim = json_array_get(shape, i);
    json_int_t size = dim ? json_integer_value(dim) : 1;
    if (dim && (!json_is_integer(dim) || size < 0)) {
      return corrupt(shard, tensor->name, "a dimension is not a count", error);
    }
    if (__builtin_mul_overflow(bytes, (size_t)size, &bytes)) {
      return corrupt(shard, tensor->name, "the product of its dimensions overflows", error);
    }
    tensor->shape[i] = size;
  }
  tensor->rank = (int32_t)rank;
  tensor->bytes = bytes;
  return QUIRE_OK;
}

/* Fills a tensor from its entry; its name is set already. data is the shard's first byte after the header. */
static enum quire_status read_tensor(const struct shard *shard, const json_t *entry, const uint8_t *data,
                                     size_t data_bytes, struct quire_tensor *tensor, struct quire_error *error) {
  const char *type = json_string_value(json_object_get(entry, "dtype"));
  const json_t *shape = json_object_get(entry, "shape");
  const json_t *offsets = json_object_get(entry, "data_offsets");
  const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
  if (!type || !json_is_array(shape) || json_array_size(offsets) != 2 || !json_is_integer(first) ||
      !json_is_integer(last) || json_object_size(entry) != 3) {
    return corrupt(shard, tensor->name, "its entry is not {dtype, shape, data_offsets}", error);
  }
  enum quire_status status = read_type(shard, tensor->name, type, &tensor->type, error);
  status = status ? status : read_shape(shard, shape, tensor, error);
  if (status) {
    return status;
  }
  json_int_t begin = json_integer_value(first), end = json_integer_value(last);
  if (begin < 0 || end < begin || (uint64_t)end > data_bytes) {
    return corrupt(shard, tensor->name, "its data_offsets lie outside the file", error);
  }
  if ((uint64_t)(end - begin) != tensor->bytes) {
    return corrupt(shard, tensor->name, "its data_offsets do not hold as many bytes as its shape and type need", error);
  }
  tensor->data = data + begin;
  QUIRE_ASSERT(tensor->bytes <= data_bytes - (size_t)begin);
  return QUIRE_OK;
}

/* ---- one file ---- */

static enum quire_status reserve(struct quire_safetensors *s, int32_t more, struct quire_error *error) {
  QUIRE_ASSERT(more >= 0 && s->count <= s->capacity);
  if (s->count + more <= s->capacity) {
    return QUIRE_OK;
  }
  int32_t capacity = s->count + more;
  struct quire_tensor *tensors = quire_env_zalloc(s->env, (size_t)capacity, sizeof *tensors);
  int32_t *shard_of = quire_env_zalloc(s->env, (size_t)capacity, sizeof *shard_of);
  if (!tensors || !shard_of) {
    quire_env_free(s->env, tensors, (size_t)capacity, sizeof *tensors);
    quire_env_free(s->env, shard_of, (size_t)capacity, sizeof *shard_of);
    return no_memory(error);
  }
  if (s->count > 0) {
    memcpy(tensors, s->tensors, (size_t)s->count * sizeof *tensors);
    memcpy(shard_of, s->shard_of, (size_t)s->count * sizeof *shard_of);
  }
  quire_env_free(s->env, s->tensors, (size_t)s->capacity, sizeof *tensors);
  quire_env_free(s->env, s->shard_of, (size_t)s->capacity, sizeof *shard_of);
  s->tensors = tensors;
  s->shard_of = shard_of;
  s->capacity = capacity;
  return QUIRE_OK;
}

static int compare_places(const void *a, const void *b) {
  QUIRE_ASSERT(a != NULL && b != NULL);
  const struct quire_tensor *x = a, *y = b;
  if (x->data != y->data) {
    return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
  }
  if (x->bytes != y->bytes) {
    return x->bytes < y->bytes ? -1 : 1;
  }
  return strcmp(x->name, y->name);
}

/* The format promises that tensors follow one another without overlap and without holes. */
static enum quire_status check_places(const struct quire_safetensors *s, int32_t from, const uint8_t *data,
                                      size_t data_bytes, struct quire_error *error) {
  QUIRE_ASSERT(from >= 0 && from <= s->count && s->shard_count > 0);
  const struct shard *shard = &s->shards[s->shard_count - 1];
  const uint8_t *expected = data;
  for (int32_t i = from; i < s->count; i++) {
    const struct quire_tensor *tensor = &s->tensors[i];
    if (tensor->data != expected) {
      return corrupt(shard, tensor->name,
                     (const uint8_t *)tensor->data < expected ? "its bytes overlap another tensor's"
                                                              : "bytes in front of it belong to no tensor",
                     error);
    }
    expected += tensor->bytes;
  }
  if (expected != data + data_bytes) {
    return corrupt(shard, NULL, "bytes at its end belong to no tensor", error);
  }
  return QUIRE_OK;
}

static enum quire_status read_entries(struct quire_safetensors *s, json_t *header, const uint8_t *data,
                                      size_t data_bytes, struct quire_error *error) {
  QUIRE_ASSERT(s->shard_count > 0);
  struct shard *shard = &s->shards[s->shard_count - 1];
  const char *key;
  json_t *entry;
  json_object_foreach(header, key, entry) { shard->names_bytes += strlen(key) + 1; }
  shard->names = quire_env_zalloc(s->env, shard->names_bytes + 1, 1);
  if (!shard->names) {
    return no_memory(error);
  }
  const int32_t from = s->count;
  enum quire_status status = reserve(s, (int32_t)json_object_size(header), error);
  char *name = shard->names;
  json_object_foreach(header, key, entry) {
    if (status) {
      return status;
    }
    if (strcmp(key, "__metadata__") == 0) {
      continue;
    }
    struct quire_tensor tensor = {.name = memcpy(name, key, strlen(key) + 1)};
    name += strlen(key) + 1;
    status = read_tensor(shard, entry, data, data_bytes, &tensor, error);
    s->shard_of[s->count] = s->shard_count - 1;
    s->tensors[s->count++] = tensor;
  }
  if (status) {
    return status;
  }
  if (s->count > from) {
    qsort(s->tensors + from, (size_t)(s->count - from), sizeof *s->tensors, compare_places);
  }
  return check_places(s, from, data, data_bytes, error);
}

/* Reads the header of the last shard, whose mapping is set. */
static enum quire_status read_shard(struct quire_safetensors *s, struct quire_error *error) {
  QUIRE_ASSERT(s->shard_count > 0);
  const struct shard *shard = &s->shards[s->shard_count - 1];
  const uint8_t *bytes = shard->mapping.data;
  uint64_t header_bytes = 0;
  if (shard->mapping.bytes < 8) {
    return corrupt(shard, NULL, "is shorter than the 8 bytes a safetensors file begins with", error);
  }
  for (int i = 7; i >= 0; i--) {
    header_bytes = header_bytes << 8 | bytes[i];
  }
  if (header_bytes > shard->mapping.bytes - 8 || header_bytes > QUIRE_SAFETENSORS_HEADER_BYTES_MAX) {
    return corrupt(shard, NULL, "claims a header that is longer than the file or than 100 MB", error);
  }
  json_t *header = NULL;
  enum quire_status status = quire_json_parse(bytes + 8, header_bytes, shard->name, &header, error);
  if (status) {
    return status;
  }
  if (json_object_size(header) > TENSORS_MAX - (size_t)s->count) {
    status = quire_error_set(error, QUIRE_ERR_UNSUPPORTED, shard->name, "more than %d tensors are not supported",
                             TENSORS_MAX);
  } else {
    status = read_entries(s, header, bytes + 8 + header_bytes, shard->mapping.bytes - 8 - header_bytes, error);
  }
  json_decref(header);
  s->bytes += shard->mapping.bytes;
  return status;
}

/* ---- all files ---- */

static const char *base_name(const char *path) {
  QUIRE_ASSERT(path != NULL);
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* Adds a shard with a name and nothing else. */
static enum quire_status add_shard(struct quire_safetensors *s, const char *name, struct quire_error *error) {
  QUIRE_ASSERT(s->shard_count < s->shard_capacity);
  struct shard *shard = &s->shards[s->shard_count];
  size_t bytes = strlen(name) + 1;
  shard->name = quire_env_zalloc(s->env, bytes, 1);
  if (!shard->name) {
    return no_memory(error);
  }
  memcpy(shard->name, name, bytes);
  shard->name_bytes = bytes;
  s->shard_count++;
  return QUIRE_OK;
}

static enum quire_status open_shard(struct quire_safetensors *s, const char *path, struct quire_error *error) {
  QUIRE_ASSERT(s->shard_count < s->shard_capacity);
  enum quire_status status = add_shard(s, base_name(path), error);
  status = status ? status : quire_file_map(path, &s->shards[s->shard_count - 1].mapping, error);
  return status ? status : read_shard(s, error);
}

static enum quire_status build_map(struct quire_safetensors *s, struct quire_error *error) {
  QUIRE_ASSERT(s->map == NULL && s->count >= 0);
  s->map_slots = 2;
  while (s->map_slots < 2 * (uint32_t)s->count) {
    s->map_slots *= 2;
  }
  s->map = quire_env_zalloc(s->env, s->map_slots, sizeof *s->map);
  if (!s->map) {
    return no_memory(error);
  }
  memset(s->map, 0xff, s->map_slots * sizeof *s->map);
  for (int32_t i = 0; i < s->count; i++) {
    const char *name = s->tensors[i].name;
    uint32_t slot = (uint32_t)quire_hash128(name, strlen(name), 0).low & (s->map_slots - 1);
    for (; s->map[slot] >= 0; slot = (slot + 1) & (s->map_slots - 1)) {
      if (strcmp(s->tensors[s->map[slot]].name, name) == 0) {
        return corrupt(&s->shards[s->shard_of[i]], name, "another file has a tensor of this name", error);
      }
    }
    s->map[slot] = i;
  }
  return QUIRE_OK;
}

/* Every tensor of the index is in the file it names, and there are no others. */
static enum quire_status check_index(const struct quire_safetensors *s, json_t *weights, struct quire_error *error) {
  QUIRE_ASSERT(s->count >= 0 && json_is_object(weights));
  const char *name;
  json_t *file;
  json_object_foreach(weights, name, file) {
    const struct quire_tensor *tensor = quire_safetensors_find(s, name);
    if (!tensor || strcmp(s->shards[s->shard_of[tensor - s->tensors]].name, json_string_value(file)) != 0) {
      return quire_error_set(error, QUIRE_ERR_CORRUPT, INDEX_NAME,
                             "tensor %.160s is not in %.80s as it says; download both again", name,
                             json_string_value(file));
    }
  }
  for (int32_t i = 0; i < s->count; i++) {
    if (!json_object_get(weights, s->tensors[i].name)) {
      return quire_error_set(error, QUIRE_ERR_CORRUPT, INDEX_NAME,
                             "does not list tensor %.160s, which %.80s has; download both again", s->tensors[i].name,
                             s->shards[s->shard_of[i]].name);
    }
  }
  return QUIRE_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct files of an index, sorted; names belong to the tree. */
static enum quire_status list_files(json_t *weights, const char **names, int32_t *count_out,
                                    struct quire_error *error) {
  QUIRE_ASSERT(names != NULL && count_out != NULL);
  const char *key;
  json_t *file;
  int32_t count = 0;
  json_object_foreach(weights, key, file) {
    const char *name = json_string_value(file);
    if (!name || !*name || *name == '.' || strchr(name, '/')) {
      return quire_error_set(error, QUIRE_ERR_CORRUPT, INDEX_NAME,
                             "tensor %.160s is not in a file of the same folder; restore the file", key);
    }
    if (bsearch(&name, names, (size_t)count, sizeof *names, compare_names)) {
      continue;
    }
    if (count == QUIRE_SAFETENSORS_FILES_MAX) {
      return quire_error_set(error, QUIRE_ERR_UNSUPPORTED, INDEX_NAME, "more than %d files are not supported",
                             QUIRE_SAFETENSORS_FILES_MAX);
    }
    int32_t place = count++; /* insertion keeps the list sorted */
    for (; place > 0 && strcmp(names[place - 1], name) > 0; place--) {
      names[place] = names[place - 1];
    }
    names[place] = name;
  }
  *count_out = count;
  return QUIRE_OK;
}

static enum quire_status reserve_shards(struct quire_safetensors *s, int32_t count, struct quire_error *error) {
  QUIRE_ASSERT(s->shards == NULL && count > 0);
  s->shards = quire_env_zalloc(s->env, (size_t)count, sizeof *s->shards);
  s->shard_capacity = s->shards ? count : 0;
  return s->shards ? QUIRE_OK : no_memory(error);
}

static enum quire_status open_index(struct quire_safetensors *s, const char *dir, const json_t *index,
                                    struct quire_error *error) {
  QUIRE_ASSERT(s->shards == NULL);
  struct quire_json_reader reader = quire_json_reader(index, INDEX_NAME, error);
  json_t *weights = (json_t *)(uintptr_t)quire_json_need_object(&reader, "weight_map");
  if (reader.status) {
    return reader.status;
  }
  int32_t files = 0;
  const char **names = quire_env_zalloc(s->env, QUIRE_SAFETENSORS_FILES_MAX, sizeof *names);
  enum quire_status status = names ? list_files(weights, names, &files, error) : no_memory(error);
  status = status || files == 0 ? status : reserve_shards(s, files, error);
  for (int32_t i = 0; i < files && !status; i++) {
    char path[PATH_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, names[i]) >= sizeof path) {
      status = quire_error_set(error, QUIRE_ERR_ARGUMENT, INDEX_NAME, "a file's path is too long; move the model");
    } else {
      status = open_shard(s, path, error);
    }
  }
  quire_env_free(s->env, names, QUIRE_SAFETENSORS_FILES_MAX, sizeof *names);
  status = status ? status : build_map(s, error);
  return status ? status : check_index(s, weights, error);
}

static enum quire_status open_single(struct quire_safetensors *s, const char *path, struct quire_error *error) {
  QUIRE_ASSERT(s->shards == NULL);
  enum quire_status status = reserve_shards(s, 1, error);
  status = status ? status : open_shard(s, path, error);
  return status ? status : build_map(s, error);
}

static enum quire_status open_path(struct quire_safetensors *s, const char *path, struct quire_error *error) {
  QUIRE_ASSERT(s->shards == NULL && path != NULL);
  char inner[PATH_BYTES];
  struct stat info;
  if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
    return open_single(s, path, error);
  }
  if ((size_t)snprintf(inner, sizeof inner, "%s/" INDEX_NAME, path) >= sizeof inner) {
    return quire_error_set(error, QUIRE_ERR_ARGUMENT, INDEX_NAME, "the folder's path is too long; move the model");
  }
  json_t *index = NULL;
  enum quire_status status = quire_json_load(s->env, inner, INDEX_BYTES_MAX, &index, error);
  if (status == QUIRE_OK) {
    status = open_index(s, path, index, error);
    json_decref(index);
    return status;
  }
  if (status != QUIRE_ERR_NOT_FOUND) {
    return status;
  }
  snprintf(inner, sizeof inner, "%s/" SINGLE_NAME, path);
  status = open_single(s, inner, error);
  if (status == QUIRE_ERR_NOT_FOUND) {
    return quire_error_set(error, status, base_name(path),
                           "has neither " INDEX_NAME " nor " SINGLE_NAME "; name the folder of a model");
  }
  return status;
}

enum quire_status quire_safetensors_open(const struct quire_env *env, const char *path,
                                         struct quire_safetensors **tensors_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && path && tensors_out);
  struct quire_safetensors *s = quire_env_zalloc(env, 1, sizeof *s);
  if (!s) {
    return no_memory(error_out);
  }
  s->env = env;
  enum quire_status status = open_path(s, path, error_out);
  if (status) {
    quire_safetensors_close(s);
    return status;
  }
  *tensors_out = s;
  return QUIRE_OK;
}

enum quire_status quire_safetensors_adopt(const struct quire_env *env, const void *bytes, size_t count,
                                          struct quire_safetensors **tensors_out, struct quire_error *error_out) {
  QUIRE_ASSERT(env && bytes && tensors_out);
  struct quire_safetensors *s = quire_env_zalloc(env, 1, sizeof *s);
  if (!s) {
    return no_memory(error_out);
  }
  s->env = env;
  s->adopted = true;
  enum quire_status status = reserve_shards(s, 1, error_out);
  status = status ? status : add_shard(s, "safetensors", error_out);
  if (!status) {
    s->shards[0].mapping = (struct quire_mapping){bytes, count};
    status = read_shard(s, error_out);
  }
  status = status ? status : build_map(s, error_out);
  if (status) {
    quire_safetensors_close(s);
    return status;
  }
  *tensors_out = s;
  return QUIRE_OK;
}

void quire_safetensors_close(struct quire_safetensors *s) {
  if (!s) {
    return;
  }
  for (int32_t i = 0; i < s->shard_count; i++) {
    struct shard *shard = &s->shards[i];
    QUIRE_ASSERT(s->shard_count <= s->shard_capacity);
    if (!s->adopted && shard->mapping.data) {
      quire_file_unmap(&shard->mapping);
    }
    quire_env_free(s->env, shard->names, shard->names_bytes + 1, 1);
    quire_env_free(s->env, shard->name, shard->name_bytes, 1);
  }
  quire_env_free(s->env, s->shards, (size_t)s->shard_capacity, sizeof *s->shards);
  quire_env_free(s->env, s->tensors, (size_t)s->capacity, sizeof *s->tensors);
  quire_env_free(s->env, s->shard_of, (size_t)s->capacity, sizeof *s->shard_of);
  quire_env_free(s->env, s->map, s->map_slots, sizeof *s->map);
  quire_env_free(s->env, s, 1, sizeof *s);
}

/* ---- questions ---- */

const struct quire_tensor *quire_safetensors_find(const struct quire_safetensors *s, const char *name) {
  QUIRE_ASSERT(s && name);
  uint32_t slot = (uint32_t)quire_hash128(name, strlen(name), 0).low & (s->map_slots - 1);
  for (; s->map[slot] >= 0; slot = (slot + 1) & (s->map_slots - 1)) {
    if (strcmp(s->tensors[s->map[slot]].name, name) == 0) {
      return &s->tensors[s->map[slot]];
    }
  }
  return NULL;
}

int32_t quire_safetensors_count(const struct quire_safetensors *s) {
  QUIRE_ASSERT(s);
  return s->count;
}

const struct quire_tensor *quire_safetensors_at(const struct quire_safetensors *s, int32_t index) {
  QUIRE_ASSERT(s && index >= 0 && index < s->count);
  return &s->tensors[index];
}

size_t quire_safetensors_bytes(const struct quire_safetensors *s) {
  QUIRE_ASSERT(s);
  return s->bytes;
}
