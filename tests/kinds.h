/* Kinds of attention by constants, for tests that vary them. */
#ifndef TAPEGRAD_TESTS_KINDS_H
#define TAPEGRAD_TESTS_KINDS_H

#include <tapegrad.h>

typedef enum {
    KIND_CAUSAL_LINEAR,
    KIND_LINEAR,
    KIND_CAUSAL_SOFTMAX,
    KIND_SOFTMAX,
    KIND_DELTA_RULE,
    KIND_GATED_LINEAR,
    KIND_CAUSAL_LSH,
    KIND_LSH,
} TestKind;

/* A TransformerConfig and the options of its kind of attention, as constants that tests vary. */
typedef struct TestConfig {
    int64_t layers, heads, head_dim, feed_forward;
    Activation activation;
    double dropout, initial_std;
    bool pre_norm, no_final_norm, recompute;
    TestKind attention;
    int features; /* a FeatureMap, or Features */
    int64_t projections;
    AttentionForm form;
    bool unnormalized;
    double max_beta;
    CausalSoftmaxConfig softmax;
    int64_t decay_rank; /* of the delta rule */
    int64_t lsh_rounds, lsh_chunk;
    int64_t rotary_dims; /* 0: none; rotary positions around the kind */
    double rotary_base;
    DecayKind decay; /* gates around both */
    int64_t convolution;
    bool output_gate;
    int softmax_layer; /* 0: none; the layer that has softmax attention, without gates */
} TestConfig;
TransformerConfig test_config(Params *params, TestConfig config);
const AttentionKind *test_attention(Params *params, TestKind kind);

#endif
