/* What the tests of linear attention share: cases, their inputs, the operation on them, and a plain
 * quadratic oracle in double. */
#ifndef TAPEGRAD_TESTS_ATTENTION_ORACLE_H
#define TAPEGRAD_TESTS_ATTENTION_ORACLE_H

#include "tests/support.h"

/* What relates the oracle to the operation; cancellation costs a few more digits. */
#ifdef TAPEGRAD_DOUBLE
#define ORACLE_TOLERANCE 1e-11
#else
#define ORACLE_TOLERANCE 2e-5
#endif

/* Where products are taken in three of bf16, on tensor cores, a result's error is 1e-5 of the numbers
 * that are added; gradients in which much of them cancels have fewer digits left. */
bool in_three_products(bool causal);

/* Of the test at hand. */
extern Tape *tape;
void make_tape(void);

/* What of the results a loss uses. */
typedef enum { OUT, OUT_OF_BOTH, BOTH, FINAL_STATE } Used;

typedef struct Case {
    int64_t B, N, keys, H, D, M;
    bool causal, lengths; /* lengths: sequence b has 1 + (7 b + 5) mod keys keys */
    double eps;
    FeatureMap features;
    AttentionForm form;
    int64_t chunk;
    bool state; /* one is given */
    Used used;  /* and the final one asked for, unless OUT */
    int64_t sequences;
    const int32_t *offsets; /* [sequences + 1], or NULL */
} Case;

/* How many keys sequence b has. */
int64_t key_count(const Case *c, int64_t b);

/* With a state and where to put the final one, or NULL. */
Tensor *attend_from(const Case *c, Tensor *query, Tensor *key, Tensor *value, Tensor *state,
                    Tensor **final_state);
Tensor *attend(const Case *c, Tensor *query, Tensor *key, Tensor *value);

/* Values of [B, N, H, D], [B, keys, H, D], [B, keys, H, M], a state [sequences, H, D, M + 1], dL/dout
 * [B, N, H, M] and dL/dfinal_state, and results. */
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

/* The same inputs for every case; results are still wanting. */
Values inputs(const Case *c);

/* From those results that are used. */
void backward(const Case *c, const Values *v, Tensor *out, Tensor *final_state);

Real *values_or_zeros(const Tensor *x, int64_t count);

/* The operation and its gradients. */
void compute(const Case *c, Values *v);

/* Element c of row n of head h of sequence b, of [B, positions, H, columns]. */
int64_t at(const Case *c, int64_t b, int64_t positions, int64_t n, int64_t h, int64_t columns);

/* The map in double. */
double oracle_phi(FeatureMap features, double x);

/* The same results by the oracle, in memory that release gives back. */
void oracle(const Case *c, Values *v);
void release(Values *v);

void assert_same(const Case *c, const Values *actual, const Values *expected);

/* That the operation and the oracle agree. */
void assert_oracle(Case c);

#endif
