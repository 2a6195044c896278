// ctest: timeout=120
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/queue.h"
#include "base/rng.h"
#include "support/fail_env.h"
#include "support/seed.h"

#define PRODUCERS 3
#define ITEMS 5000

struct item {
  int producer;
  int number;
  uint8_t filling[13]; /* an odd size */
};

/* Against a flat array, one thread: order, full, empty, closed. */
static void equals_flat(void **state) {
  (void)state;
  uint64_t rng = test_seed("equals_flat");
  struct fail_env fail;
  fail_env_init(&fail);
  for (int capacity = 1; capacity < 10; capacity++) {
    struct quire_queue *queue = NULL;
    assert_int_equal(quire_queue_create(&fail.env, sizeof(int), capacity, &queue, NULL), QUIRE_OK);
    assert_int_equal(quire_queue_capacity(queue), capacity);
    int flat[16], count = 0, next = 0;
    for (int step = 0; step < 2000; step++) {
      int item = -1;
      if (quire_splitmix64(&rng) & 1) {
        enum quire_status status = quire_queue_try_push(queue, &next);
        assert_int_equal(status, count == capacity ? QUIRE_ERR_AGAIN : QUIRE_OK);
        if (status == QUIRE_OK) {
          flat[count++] = next++;
        }
      } else if (count == 0) {
        assert_int_equal(quire_queue_try_pop(queue, &item), QUIRE_ERR_AGAIN);
        assert_int_equal(item, -1);
      } else {
        assert_int_equal(quire_queue_try_pop(queue, &item), QUIRE_OK);
        assert_int_equal(item, flat[0]);
        memmove(flat, flat + 1, (size_t)--count * sizeof(int));
      }
      assert_int_equal(quire_queue_count(queue), count);
    }
    quire_queue_close(queue);
    quire_queue_close(queue);
    assert_int_equal(quire_queue_try_push(queue, &next), QUIRE_ERR_STATE);
    assert_int_equal(quire_queue_push(queue, &next), QUIRE_ERR_STATE);
    for (int i = 0; i < count; i++) {
      int item = -1;
      assert_int_equal(quire_queue_pop(queue, &item), QUIRE_OK);
      assert_int_equal(item, flat[i]);
    }
    int item;
    assert_int_equal(quire_queue_pop(queue, &item), QUIRE_ERR_STATE);
    assert_int_equal(quire_queue_try_pop(queue, &item), QUIRE_ERR_STATE);
    assert_int_equal(quire_queue_pop_within(queue, &item, 1000000000), QUIRE_ERR_STATE);
    quire_queue_destroy(queue);
  }
  fail_env_fini(&fail);
}

struct producer {
  struct quire_queue *queue;
  int index;
  uint64_t rng;
  pthread_t thread;
};

static void *producer_main(void *argument) {
  struct producer *self = argument;
  for (int i = 0; i < ITEMS; i++) {
    struct item item = {.producer = self->index, .number = i};
    memset(item.filling, i, sizeof item.filling);
    if (quire_splitmix64_below(&self->rng, 100) == 0) {
      sched_yield();
    }
    if (quire_splitmix64(&self->rng) & 1) {
      quire_queue_push(self->queue, &item);
    } else {
      while (quire_queue_try_push(self->queue, &item) == QUIRE_ERR_AGAIN) {
        sched_yield();
      }
    }
  }
  return NULL;
}

static void nothing_lost_nor_reordered(struct quire_queue *queue, uint64_t *rng, int count) {
  int next[PRODUCERS] = {0};
  for (int i = 0; i < count; i++) {
    struct item item;
    enum quire_status status = QUIRE_ERR_AGAIN;
    switch (quire_splitmix64_below(rng, 3)) {
    case 0:
      status = quire_queue_pop(queue, &item);
      break;
    case 1:
      while ((status = quire_queue_pop_within(queue, &item, 1000)) == QUIRE_ERR_AGAIN) {
      }
      break;
    default:
      while ((status = quire_queue_try_pop(queue, &item)) == QUIRE_ERR_AGAIN) {
        sched_yield();
      }
    }
    assert_int_equal(status, QUIRE_OK);
    assert_in_range(item.producer, 0, PRODUCERS - 1);
    assert_int_equal(item.number, next[item.producer]++);
    for (size_t j = 0; j < sizeof item.filling; j++) {
      assert_int_equal(item.filling[j], (uint8_t)item.number);
    }
  }
}

static void many_producers(void **state) {
  (void)state;
  uint64_t rng = test_seed("many_producers");
  for (int capacity = 1; capacity <= 64; capacity *= 8) {
    struct quire_queue *queue = NULL;
    assert_int_equal(quire_queue_create(quire_env_default(), sizeof(struct item), capacity, &queue, NULL), QUIRE_OK);
    struct producer producers[PRODUCERS];
    for (int i = 0; i < PRODUCERS; i++) {
      producers[i] = (struct producer){.queue = queue, .index = i, .rng = quire_splitmix64(&rng)};
      assert_int_equal(pthread_create(&producers[i].thread, NULL, producer_main, &producers[i]), 0);
    }
    nothing_lost_nor_reordered(queue, &rng, PRODUCERS * ITEMS);
    for (int i = 0; i < PRODUCERS; i++) {
      pthread_join(producers[i].thread, NULL);
    }
    assert_int_equal(quire_queue_count(queue), 0);
    quire_queue_destroy(queue);
  }
}

struct waiter {
  struct quire_queue *queue;
  enum quire_status answer;
  bool pushes;
};

static void *waiter_main(void *argument) {
  struct waiter *self = argument;
  int item = 5;
  self->answer = self->pushes ? quire_queue_push(self->queue, &item) : quire_queue_pop(self->queue, &item);
  return NULL;
}

static void close_wakes_who_waits(void **state) {
  (void)state;
  for (int round = 0; round < 50; round++) {
    bool pushes = round & 1;
    struct quire_queue *queue = NULL;
    assert_int_equal(quire_queue_create(quire_env_default(), sizeof(int), 1, &queue, NULL), QUIRE_OK);
    int item = 1;
    if (pushes) {
      assert_int_equal(quire_queue_push(queue, &item), QUIRE_OK);
    }
    struct waiter waiters[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
      waiters[i] = (struct waiter){.queue = queue, .pushes = pushes};
      assert_int_equal(pthread_create(&threads[i], NULL, waiter_main, &waiters[i]), 0);
    }
    usleep(round % 10 * 50);
    quire_queue_close(queue);
    for (int i = 0; i < 3; i++) {
      pthread_join(threads[i], NULL);
      assert_int_equal(waiters[i].answer, QUIRE_ERR_STATE);
    }
    quire_queue_destroy(queue);
  }
}

static void pop_within_gives_up(void **state) {
  (void)state;
  const struct quire_env *env = quire_env_default();
  struct quire_queue *queue = NULL;
  assert_int_equal(quire_queue_create(env, sizeof(int), 1, &queue, NULL), QUIRE_OK);
  int item = 0;
  uint64_t begin = env->now_ns(env->context);
  assert_int_equal(quire_queue_pop_within(queue, &item, 2000000), QUIRE_ERR_AGAIN);
  assert_true(env->now_ns(env->context) - begin >= 2000000);
  assert_int_equal(quire_queue_pop_within(queue, &item, 0), QUIRE_ERR_AGAIN);
  quire_queue_destroy(queue);
  quire_queue_destroy(NULL);
}

static void bounds(void **state) {
  (void)state;
  struct quire_queue *queue = NULL;
  struct quire_error error;
  assert_int_equal(quire_queue_create(quire_env_default(), 0, 1, &queue, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_queue_create(quire_env_default(), 1, 0, &queue, &error), QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_queue_create(quire_env_default(), 1, QUIRE_QUEUE_CAPACITY_MAX + 1, &queue, &error),
                   QUIRE_ERR_ARGUMENT);
  assert_int_equal(quire_queue_create(quire_env_default(), SIZE_MAX / 2, 4, &queue, &error), QUIRE_ERR_MEMORY);
  assert_null(queue);
}

static enum quire_status life(void *context, const struct quire_env *env) {
  (void)context;
  struct quire_queue *queue = NULL;
  enum quire_status status = quire_queue_create(env, 7, 9, &queue, NULL);
  quire_queue_destroy(queue);
  return status;
}

static void out_of_memory(void **state) {
  (void)state;
  assert_int_equal(fail_env_sweep(life, NULL), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equals_flat),         cmocka_unit_test(many_producers), cmocka_unit_test(close_wakes_who_waits),
      cmocka_unit_test(pop_within_gives_up), cmocka_unit_test(bounds),         cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
