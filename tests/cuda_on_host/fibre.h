/* Fibres: stacks of their own with cooperative switches, used by one host thread at a time. */
#ifndef CUDA_ON_HOST_FIBRE_H
#define CUDA_ON_HOST_FIBRE_H

struct Fibre;

/* Returns a fibre that runs `body`, which must never return; reuses a released one if possible. */
Fibre *fibre_take(void (*body)(void));
/* Releases a fibre; the running fibre may release itself just before it switches. */
void fibre_give_back(Fibre *fibre);

Fibre *fibre_running(void);

/* Suspends the running fibre and resumes the other. */
void fibre_switch(Fibre *to);

/* The fibre of the host thread's own stack. */
Fibre *fibre_home(void);

#endif
