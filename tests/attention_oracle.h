/* Shared by the tests of linear attention: cases, their inputs, the operation on them, and a
 * comparison of the device with the plain kernels. */
#ifndef TAPEGRAD_TESTS_ATTENTION_ORACLE_H
#define TAPEGRAD_TESTS_ATTENTION_ORACLE_H

#include "tests/support.h"

/* Relative tolerance between the device and the plain kernels; cancellation costs a few more
 * digits. */
#ifdef TAPEGRAD_DOUBLE
#define ORACLE_TOLERANCE 1e-11
#else
#define ORACLE_TOLERANCE 2e-5
#endif
#define BF16_TOLERANCE 2e-2 /* in bf16, whose rounding errors are up to 4e-3 */

/* True where tensor cores compute a product as three bf16 products: a result's error is then 1e-5
 * of the summed terms, and gradients whose terms mostly cancel keep fewer digits. */
bool in_three_products(bool causal);

/* Of the running test. */
extern Tape *tape;
void make_tape(void);

/* The results that the loss depends on. */
typedef enum { OUT, OUT_OF_BOTH, BOTH, FINAL_STATE } Used;

typedef struct Case {
    int64_t B, N, keys, H, D, M;
    bool causal, lengths; /* lengths: sequence b has 1 + (7 b + 5) mod keys keys */
    double eps;
    FeatureMap features;
    AttentionForm form;
    int64_t chunk;
    bool state; /* with an initial state */
    Used used;  /* final_state is requested unless OUT */
    int64_t sequences;
    const int32_t *offsets; /* [sequences + 1], or NULL */
} Case;

/* The number of keys of sequence b. */
int64_t key_count(const Case *c, int64_t b);

/* state may be NULL; final_state, the destination of the final state, too. */
Tensor *attend_from(const Case *c, Tensor *query, Tensor *key, Tensor *value, Tensor *state,
                    Tensor **final_state);
Tensor *attend(const Case *c, Tensor *query, Tensor *key, Tensor *value);

/* Inputs query [B, N, H, D], key [B, keys, H, D], value [B, keys, H, M], state
 * [sequences, H, D, M + 1], dL/dout [B, N, H, M] and dL/dfinal_state; then the results. */
typedef struct Values {
    Real *query, *key, *value, *state, *dout, *dfinal_state;
    Real *out, *final_state, *dquery, *dkey, *dvalue, *dstate;
} Values;

int64_t queries_of(const Case *c);
int64_t keys_of(const Case *c);
int64_t values_of(const Case *c);
int64_t outs_of(const Case *c);
Shape state_shape(const Case *c);
int64_t states_of(const Case *c);

/* The same inputs for every case; the results are not set. */
Values inputs(const Case *c);

/* The backward pass from the results that the case uses. */
void backward(const Case *c, const Values *v, Tensor *out, Tensor *final_state);

Real *values_or_zeros(const Tensor *x, int64_t count);

/* Computes the operation and its gradients. */
void compute(const Case *c, Values *v);

/* The offset of row n of head h of sequence b in a tensor [B, positions, H, columns]. */
int64_t at(const Case *c, int64_t b, int64_t positions, int64_t n, int64_t h, int64_t columns);

/* The same by the plain kernels, in Real whatever the precision. */
void compute_plain(const Case *c, Values *v);

void assert_same(const Case *c, const Values *actual, const Values *expected);

/* Fails unless the device and the plain kernels agree. */
void assert_plain(Case c);

#endif
