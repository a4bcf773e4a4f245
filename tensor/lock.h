/* A lock for a few instructions, in plain C11: no library of threads is needed. */
#ifndef TAPEGRAD_TENSOR_LOCK_H
#define TAPEGRAD_TENSOR_LOCK_H

#include <stdatomic.h>

static inline void spin_lock(atomic_flag *lock)
{
    while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire))
        ;
}

static inline void spin_unlock(atomic_flag *lock)
{
    atomic_flag_clear_explicit(lock, memory_order_release);
}

#endif
