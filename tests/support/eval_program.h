/* Runs `quire eval` on the model of the tree and holds what it prints against the model card (figures.json).
 *
 * Everything that goes wrong fails the test. Threads: one. */
#ifndef QUIRE_TESTS_EVAL_PROGRAM_H
#define QUIRE_TESTS_EVAL_PROGRAM_H

struct eval_bounds {
  const char *arguments;  /* of quire eval, behind --model */
  const char *kv;         /* which figures of the card: "bf16" or "fp8" */
  double loss;            /* nats a token that the loss may differ by */
  double draft_agreement; /* and the share of agreeing drafts, 0 to 1 */
  int groups;             /* distances in recall.jsonl */
};

/* Recall of every distance at least 90 %, of both controls below 20 %, loss and draft agreement within the bounds. */
void eval_program_check(const struct eval_bounds *bounds);

#endif
