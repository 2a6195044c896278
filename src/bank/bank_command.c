/* The commands of the brain, executed on one rank's memory.
 *
 * Everything is rows: a part's page is one or two pieces, of each the first valid_tokens rows count, and what lies
 * behind them is not read, not written, not hashed. Copies hash as they go, so a page is read from memory once. */
#include <string.h>

#include "bank/bank_private.h"
#include "base/assert.h"

#define CHUNK_BYTES ((int64_t)32 << 10) /* stays in the first-level cache between copy and hash */

static void fail(struct bank_job *job, enum quire_status status, int32_t part, const char *text) {
  QUIRE_ASSERT(status != QUIRE_OK);
  job->ack.status = status;
  job->fault.part = part;
  (void)quire_error_set(&job->fault.error, status, "bank", "%s of page %d: %s",
                        quire_command_kind_name(job->command.kind), (int)job->command.page.v, text);
}

static bool stored_here(const struct quire_bank *bank, quire_page page) {
  return quire_page_stored_by(&bank->config.geometry, page, bank->config.rank);
}

static uint8_t *own_page(const struct quire_bank *bank, int32_t part, quire_page page) {
  return quire_bank_page(bank, part, quire_page_local(&bank->config.geometry, page));
}

/* Where a page is read: here if it is stored here, since this rank's commands are in order and another's are not. */
static const uint8_t *source_page(const struct quire_bank *bank, int32_t part, quire_page page) {
  if (stored_here(bank, page)) {
    return own_page(bank, part, page);
  }
  quire_rank_id sender = quire_page_sender(&bank->config.geometry, page);
  QUIRE_ASSERT(sender.v >= 0 && sender.v < bank->map.ranks);
  return quire_peer_page(&bank->map.rank[sender.v], part, quire_page_local(&bank->config.geometry, page).v);
}

/* Copies the first rows of each piece and returns their digest, that of quire_bundle_part_digest. */
static struct quire_hash128 copy_rows(const struct quire_part *part, uint8_t *target, const uint8_t *source,
                                      int32_t rows) {
  QUIRE_ASSERT(target != NULL && source != NULL && rows > 0);
  struct quire_hash128_stream hash;
  quire_hash128_begin(&hash, 0);
  for (int32_t p = 0; p < part->pieces; p++) {
    int64_t begin = part->piece[p].offset;
    int64_t end = begin + (int64_t)rows * part->piece[p].row_bytes;
    for (int64_t at = begin; at < end; at += CHUNK_BYTES) {
      size_t bytes = (size_t)(end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES);
      memcpy(target + at, source + at, bytes);
      quire_hash128_add(&hash, source + at, bytes);
    }
  }
  return quire_hash128_end(&hash);
}

/* Zeroes the rows of a part behind the first `rows`. */
static void zero_tail(const struct quire_part *part, uint8_t *page, int32_t rows, int32_t page_tokens) {
  QUIRE_ASSERT(rows >= 0 && rows <= page_tokens);
  for (int32_t p = 0; p < part->pieces; p++) {
    const struct quire_piece *piece = &part->piece[p];
    size_t bytes = (size_t)(page_tokens - rows) * (size_t)piece->row_bytes;
    memset(page + piece->offset + (int64_t)rows * piece->row_bytes, 0, bytes);
  }
}

/* All parts of the page have memory here; a command that passed quire_command_check cannot miss, a page that is outside
 * all the same is an error and not a wild write. */
static bool pages_exist(const struct quire_bank *bank, struct bank_job *job) {
  QUIRE_ASSERT(job->command.page.v >= 0);
  const struct quire_command *command = &job->command;
  bool copies = command->kind == QUIRE_COMMAND_COPY_PAGE;
  for (int32_t i = 0; i < bank->parts.count; i++) {
    const uint8_t *from = copies ? source_page(bank, i, command->page) : own_page(bank, i, command->page);
    if (from == NULL || (copies && own_page(bank, i, command->target) == NULL)) {
      fail(job, QUIRE_ERR_ARGUMENT, i, "the page lies outside of the part's memory");
      return false;
    }
  }
  return true;
}

static int64_t *written_cell(struct quire_bank *bank, quire_page page) {
  quire_local_page local = quire_page_local(&bank->config.geometry, page);
  QUIRE_ASSERT(local.v >= 0 && local.v < bank->local_pages);
  return &bank->written[local.v];
}

static void execute_copy(struct quire_bank *bank, struct bank_job *job, struct quire_hash128 *digests) {
  const struct quire_command *command = &job->command;
  QUIRE_ASSERT(command->page.v != command->target.v);
  for (int32_t i = 0; i < bank->parts.count; i++) {
    digests[i] = copy_rows(&bank->parts.part[i], own_page(bank, i, command->target),
                           source_page(bank, i, command->page), command->valid_tokens);
  }
  quire_written_mark(written_cell(bank, command->target), 0, 0);
}

static void execute_poison(struct quire_bank *bank, struct bank_job *job) {
  QUIRE_ASSERT(stored_here(bank, job->command.page));
  for (int32_t i = 0; i < bank->parts.count; i++) {
    memset(own_page(bank, i, job->command.page), 0xFF, (size_t)bank->parts.part[i].page_bytes);
  }
  __atomic_store_n(written_cell(bank, job->command.page), QUIRE_WRITTEN_NEVER, __ATOMIC_RELEASE);
}

static void execute_digest(struct quire_bank *bank, struct bank_job *job, struct quire_hash128 *digests) {
  QUIRE_ASSERT(stored_here(bank, job->command.page));
  for (int32_t i = 0; i < bank->parts.count; i++) {
    digests[i] =
        quire_bundle_part_digest(&bank->parts.part[i], own_page(bank, i, job->command.page), job->command.valid_tokens);
  }
}

static struct quire_bundle_info info_of(const struct quire_bank *bank, const struct quire_command *command) {
  QUIRE_ASSERT(command->valid_tokens >= 1 && command->valid_tokens <= bank->parts.page_tokens);
  return (struct quire_bundle_info){.fingerprint = bank->config.fingerprint,
                                    .chain = command->chain,
                                    .request_page = command->request_page,
                                    .valid_tokens = command->valid_tokens};
}

/* The old trailer goes first, the new one comes last: a bundle is never sound while its parts are of two pages. */
static void execute_pack(struct quire_bank *bank, struct bank_job *job, struct quire_hash128 *digests) {
  const struct quire_command *command = &job->command;
  const struct quire_bundle_layout *layout = &bank->bundle;
  uint8_t *bundle = bank->host + command->host_offset;
  memset(bundle + layout->trailer_offset, 0, sizeof(struct quire_bundle_head));
  for (int32_t i = 0; i < bank->parts.count; i++) {
    const struct quire_part *part = &bank->parts.part[i];
    uint8_t *target = bundle + layout->part_offset[i];
    int64_t end = layout->part_offset[i] + part->page_bytes;
    int64_t next = i + 1 < bank->parts.count ? layout->part_offset[i + 1] : layout->trailer_offset;
    QUIRE_ASSERT(end <= next);
    digests[i] = copy_rows(part, target, own_page(bank, i, command->page), command->valid_tokens);
    zero_tail(part, target, command->valid_tokens, bank->parts.page_tokens);
    memset(bundle + end, 0, (size_t)(next - end));
  }
  struct quire_bundle_info info = info_of(bank, command);
  quire_bundle_trailer_encode(layout, &info, digests, bundle + layout->trailer_offset);
}

/* The first part whose rows do not have the digest the trailer says; for the report of a bundle that was refused. */
static int32_t bad_part(const struct quire_bank *bank, const uint8_t *bundle) {
  QUIRE_ASSERT(bundle != NULL);
  struct quire_hash128 said[QUIRE_PARTS_MAX];
  struct quire_bundle_info info;
  if (quire_bundle_trailer_decode(&bank->bundle, bundle + bank->bundle.trailer_offset, &info, said, NULL) != QUIRE_OK) {
    return QUIRE_PART_NONE;
  }
  for (int32_t i = 0; i < bank->parts.count; i++) {
    struct quire_hash128 found =
        quire_bundle_part_digest(&bank->parts.part[i], bundle + bank->bundle.part_offset[i], info.valid_tokens);
    if (!quire_hash128_equal(found, said[i])) {
      return i;
    }
  }
  return QUIRE_PART_NONE;
}

static void execute_unpack(struct quire_bank *bank, struct bank_job *job, struct quire_hash128 *digests) {
  QUIRE_ASSERT(bank->host != NULL && stored_here(bank, job->command.page));
  const struct quire_command *command = &job->command;
  const uint8_t *bundle = bank->host + command->host_offset;
  struct quire_bundle_info expected = info_of(bank, command);
  enum quire_status status = quire_bundle_check(&bank->parts, &bank->bundle, &expected, bundle, &job->fault.error);
  if (status != QUIRE_OK) {
    job->ack.status = status;
    job->fault.part = bad_part(bank, bundle);
    return;
  }
  for (int32_t i = 0; i < bank->parts.count; i++) {
    digests[i] = copy_rows(&bank->parts.part[i], own_page(bank, i, command->page), bundle + bank->bundle.part_offset[i],
                           command->valid_tokens);
  }
  quire_written_mark(written_cell(bank, command->page), 0, 0);
}

void quire_bank_execute(struct quire_bank *bank, struct bank_job *job) {
  QUIRE_ASSERT(bank != NULL && job != NULL && bank->connected);
  const struct quire_command *command = &job->command;
  struct quire_hash128 digests[QUIRE_PARTS_MAX];
  job->ack =
      (struct quire_ack){.op = command->op, .epoch = command->epoch, .status = QUIRE_OK, .rank = bank->config.rank};
  job->fault = (struct quire_bank_fault){.op = command->op, .part = QUIRE_PART_NONE};
  if (!pages_exist(bank, job)) {
    return;
  }
  switch ((enum quire_command_kind)command->kind) {
  case QUIRE_COMMAND_COPY_PAGE:
    execute_copy(bank, job, digests);
    break;
  case QUIRE_COMMAND_POISON:
    execute_poison(bank, job);
    return;
  case QUIRE_COMMAND_DIGEST:
    execute_digest(bank, job, digests);
    break;
  case QUIRE_COMMAND_PACK:
    execute_pack(bank, job, digests);
    break;
  case QUIRE_COMMAND_UNPACK:
    execute_unpack(bank, job, digests);
    break;
  }
  if (job->ack.status == QUIRE_OK) {
    job->ack.digest = quire_command_digest(digests, bank->parts.count);
  }
}
