/* Fibres: stacks of their own, switched by hand. All of them belong to one thread at a time. */
#ifndef CUDA_ON_HOST_FIBRE_H
#define CUDA_ON_HOST_FIBRE_H

struct Fibre;

/* A fibre that runs `body`, which must never return; taken from those given back, if any. */
Fibre *fibre_take(void (*body)(void));
void fibre_give_back(Fibre *fibre);

Fibre *fibre_running(void);

/* Leaves the running fibre where it is and goes on with the other. */
void fibre_switch(Fibre *to);

/* The fibre that stands for the calling thread's own stack. */
Fibre *fibre_home(void);

#endif
