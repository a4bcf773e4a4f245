/* The plain loops of reference.c, on one sequence and head, for tests; W = M + 1. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_REFERENCE_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_REFERENCE_H

#include <stdint.h>

/* out [N, W]: [out_i, den_i]. S [D, W]: the initial state, becomes the final one. */
void linear_attention_forward_reference(double *out, double *S, const double *a, const double *b,
                                        const double *v, double eps, int64_t N, int64_t D,
                                        int64_t W);

/* g [N, W]: dL/dout and a column of any values; becomes dnum~. R [D, W]: dL/dS~_N, becomes dL/dS~_0.
 * S [D, W]: the initial state. */
void linear_attention_backward_reference(double *da, double *db, double *dv, double *R, double *g,
                                         const double *out, const double *a, const double *b,
                                         const double *v, const double *S, int64_t N, int64_t D,
                                         int64_t W);

#endif
