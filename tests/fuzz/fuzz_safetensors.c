// fuzz: runs=300000
/* A safetensors file from anywhere: the tensors of what is accepted lie behind the header one after the other, without
 * a gap, up to the last byte. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/env.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct quire_safetensors *tensors = NULL;
  struct quire_error error = {0};
  static const uint8_t nothing[1];
  const uint8_t *bytes = size ? data : nothing;
  if (quire_safetensors_adopt(quire_env_default(), bytes, size, &tensors, &error)) {
    QUIRE_ASSERT(error.status && error.text[0] && !strchr(error.text, '\n') && !tensors);
    return 0;
  }
  uint64_t header;
  memcpy(&header, bytes, sizeof header);
  const uint8_t *end = bytes + 8 + header;
  for (int32_t i = 0; i < quire_safetensors_count(tensors); i++) {
    const struct quire_tensor *tensor = quire_safetensors_at(tensors, i);
    const uint8_t *first = tensor->data;
    size_t elements = 1;
    QUIRE_ASSERT(quire_safetensors_find(tensors, tensor->name) == tensor);
    QUIRE_ASSERT(first == end && tensor->bytes <= size && first + tensor->bytes <= bytes + size);
    for (int32_t d = 0; d < QUIRE_TENSOR_RANK_MAX; d++) {
      elements *= (size_t)tensor->shape[d];
    }
    QUIRE_ASSERT(elements * (size_t)quire_tensor_type_bytes(tensor->type) == tensor->bytes);
    end = first + tensor->bytes;
  }
  QUIRE_ASSERT(end == bytes + size);
  quire_safetensors_close(tensors);
  return 0;
}
