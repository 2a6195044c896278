/* Tensors in safetensors files, mapped read-only: one file, or a folder with model.safetensors or an index of shards.
 *
 *   u64 header bytes (little endian) | JSON {name: {dtype, shape, data_offsets [begin, end)}, ...} | data
 *
 * Everything the format promises is checked before a pointer is given out: the header lies inside the file, offsets
 * are in range, do not overlap and leave no holes, a tensor's bytes are its shape times its type, names are unique over
 * all shards, and the index and the shards list the same tensors. A type we cannot use is refused by name.
 *
 * Data is where the file has it: it may be misaligned for its type, since the format does not promise more than bytes.
 *
 * Memory: mappings and tables belong to the object; names and data live until close. Threads: constant after open.
 * The files must not be truncated while they are mapped (a read would fault). */
#ifndef QUIRE_MODEL_SAFETENSORS_H
#define QUIRE_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_TENSOR_RANK_MAX 4
#define QUIRE_SAFETENSORS_HEADER_BYTES_MAX ((size_t)100 << 20)
#define QUIRE_SAFETENSORS_FILES_MAX 1024

enum quire_tensor_type {
  QUIRE_TENSOR_F32,
  QUIRE_TENSOR_BF16,
  QUIRE_TENSOR_F8_E4M3,
  QUIRE_TENSOR_I64,
  QUIRE_TENSOR_I32,
  QUIRE_TENSOR_I8,
  QUIRE_TENSOR_U8,
};

struct quire_tensor {
  const char *name;
  const void *data; /* in the mapping; element alignment is not promised */
  size_t bytes;
  enum quire_tensor_type type;
  int32_t rank;                         /* 0: a scalar */
  int64_t shape[QUIRE_TENSOR_RANK_MAX]; /* 1 beyond rank */
};

struct quire_safetensors;

/* path is a file, or a folder with model.safetensors.index.json or else model.safetensors. QUIRE_ERR_NOT_FOUND, _IO,
 * _CORRUPT, _UNSUPPORTED (a type, rank or number of files), _MEMORY; the text names file and tensor. */
enum quire_status quire_safetensors_open(const struct quire_env *env, const char *path,
                                         struct quire_safetensors **tensors_out, struct quire_error *error_out);
/* One file's bytes in memory (which stay the caller's and outlive the object). */
enum quire_status quire_safetensors_adopt(const struct quire_env *env, const void *bytes, size_t count,
                                          struct quire_safetensors **tensors_out, struct quire_error *error_out);
/* NULL is allowed. */
void quire_safetensors_close(struct quire_safetensors *tensors);

/* NULL: no tensor of that name. */
const struct quire_tensor *quire_safetensors_find(const struct quire_safetensors *tensors, const char *name);
int32_t quire_safetensors_count(const struct quire_safetensors *tensors);
/* By number, 0 to count - 1: files by name, within a file by offset (the order does not depend on the header's). */
const struct quire_tensor *quire_safetensors_at(const struct quire_safetensors *tensors, int32_t index);
/* What follows reads little here and there (true), so that the system does not read ahead; false is as after open. */
void quire_safetensors_sparse(const struct quire_safetensors *tensors, bool sparse);
/* A tensor has been copied or looked at: its pages need not stay resident. It may still be read. */
void quire_safetensors_done(const struct quire_safetensors *tensors, const struct quire_tensor *tensor);
/* Bytes of all files. */
size_t quire_safetensors_bytes(const struct quire_safetensors *tensors);

int32_t quire_tensor_type_bytes(enum quire_tensor_type type);
/* The format's own name, "F8_E4M3". */
const char *quire_tensor_type_name(enum quire_tensor_type type);

#ifdef __cplusplus
}
#endif
#endif
