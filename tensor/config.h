/* The type Real, for builds by one command line; make generates a file of its own in its place. */
#ifndef TAPEGRAD_TENSOR_CONFIG_H
#define TAPEGRAD_TENSOR_CONFIG_H

#ifdef TAPEGRAD_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#endif
