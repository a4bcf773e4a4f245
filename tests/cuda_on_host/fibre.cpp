/* On x86-64 a switch saves only the callee-saved registers. Elsewhere ucontext switches, which also
 * saves the signal mask and is several times slower. Every switch is announced to the sanitizer,
 * which must know the stack in use. */
#include "fibre.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED
#endif
#endif
#ifdef SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 512 << 10, GUARD_BYTES = 64 << 10, COLORS = 61, COLOR_BYTES = 576 };

struct Fibre {
#ifdef __x86_64__
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    void (*body)(void);
    const void *bottom; /* of the stack, and its size, for the sanitizer */
    size_t size;
    void *fake_stack; /* the sanitizer's, while the fibre is suspended */
    Fibre *next;      /* in the free list */
};

static Fibre home;
static Fibre *running = &home, *left, *free_fibres;
static int fibres_made;

static void say_leaving(Fibre *from, const Fibre *to)
{
    left = from;
#ifdef SANITIZED
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->size);
#else
    (void)to;
#endif
}

static void say_arrived(void)
{
#ifdef SANITIZED
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(running->fake_stack, &bottom, &size);
    if (left == &home) { /* only here are the bounds of the thread's own stack known */
        home.bottom = bottom;
        home.size = size;
    }
#endif
}

static void enter(void)
{
    say_arrived();
    running->body();
    abort();
}

/* ----------------------------------------------------------------------------------- the switch */
#ifdef __x86_64__
extern "C" void cuda_host_swap_stacks(void **save, void *load);
__asm__(".text\n"
        ".type cuda_host_swap_stacks, @function\n"
        ".hidden cuda_host_swap_stacks\n"
        ".globl cuda_host_swap_stacks\n"
        "cuda_host_swap_stacks:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size cuda_host_swap_stacks, . - cuda_host_swap_stacks\n");

/* Prepares a stack from which the first switch pops six registers and returns to `enter`, aligned
 * as after a call. */
static void prepare(Fibre *fibre, char *top)
{
    void **stack = (void **)top;
    *--stack = NULL; /* the return address of `enter` */
    *--stack = (void *)enter;
    for (int i = 0; i < 6; i++)
        *--stack = NULL;
    fibre->stack_pointer = stack;
}

static void swap(Fibre *from, Fibre *to)
{
    cuda_host_swap_stacks(&from->stack_pointer, to->stack_pointer);
}
#else
static void prepare(Fibre *fibre, char *top)
{
    getcontext(&fibre->context);
    fibre->context.uc_stack.ss_sp = (void *)fibre->bottom;
    fibre->context.uc_stack.ss_size = (size_t)(top - (const char *)fibre->bottom);
    fibre->context.uc_link = NULL;
    makecontext(&fibre->context, enter, 0);
}

static void swap(Fibre *from, Fibre *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

void fibre_switch(Fibre *to)
{
    Fibre *from = running;
    say_leaving(from, to);
    running = to;
    swap(from, to);
    say_arrived();
}

/* ------------------------------------------------------------------------------------- the pool */
/* Cache coloring: stacks start at different offsets, because equal ones would all map to the same
 * few cache sets. A guard page below each stack turns an overflow into a fault. */
static Fibre *make_fibre(void)
{
    char *memory = (char *)mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) {
        perror("cuda_on_host: no memory for a thread's stack");
        abort();
    }
    Fibre *fibre = (Fibre *)calloc(1, sizeof *fibre);
    fibre->bottom = memory + GUARD_BYTES;
    fibre->size = STACK_BYTES;
    prepare(fibre, memory + GUARD_BYTES + STACK_BYTES - fibres_made++ % COLORS * COLOR_BYTES);
    return fibre;
}

Fibre *fibre_take(void (*body)(void))
{
    Fibre *fibre = free_fibres;
    if (fibre)
        free_fibres = fibre->next;
    else
        fibre = make_fibre();
    fibre->body = body;
    return fibre;
}

void fibre_give_back(Fibre *fibre)
{
    fibre->next = free_fibres;
    free_fibres = fibre;
}

Fibre *fibre_running(void)
{
    return running;
}

Fibre *fibre_home(void)
{
    return &home;
}
