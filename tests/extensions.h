/* The extensions' rows of the table of operations, a line each; an empty line ends a list. */
#ifdef TAPEGRAD_NUCLEUS
#define EXTENSION_OPERATIONS(ROW)
#define EXTENSION_RANDOM_ROWS(ROW)
#else
#include "ext/causal_convolution/tests/operations.h"
#include "ext/ctc/tests/operations.h"
#include "ext/delta/tests/operations.h"
#include "ext/features/tests/operations.h"
#include "ext/gated_linear_attention/tests/operations.h"
#include "ext/images/tests/operations.h"
#include "ext/linear_cross_entropy/tests/operations.h"
#include "ext/losses/tests/operations.h"
#include "ext/lsh/tests/operations.h"
#include "ext/mixture/tests/operations.h"
#include "ext/recurrent/tests/operations.h"
#include "ext/rms_norm/tests/operations.h"
#include "ext/rotary/tests/operations.h"
/* clang-format off */
#define EXTENSION_OPERATIONS(ROW)                                                                  \
    CAUSAL_CONVOLUTION_OPERATIONS(ROW)                                                             \
    CTC_OPERATIONS(ROW)                                                                            \
    DELTA_OPERATIONS(ROW)                                                                          \
    FEATURES_OPERATIONS(ROW)                                                                       \
    GATED_LINEAR_ATTENTION_OPERATIONS(ROW)                                                         \
    IMAGES_OPERATIONS(ROW)                                                                         \
    LINEAR_CROSS_ENTROPY_OPERATIONS(ROW)                                                           \
    LOSSES_OPERATIONS(ROW)                                                                         \
    LSH_OPERATIONS(ROW)                                                                            \
    MIXTURE_OPERATIONS(ROW)                                                                        \
    RECURRENT_OPERATIONS(ROW)                                                                      \
    RMS_NORM_OPERATIONS(ROW)                                                                       \
    ROTARY_OPERATIONS(ROW)                                                                         \

#define EXTENSION_RANDOM_ROWS(ROW)                                                                 \
    CAUSAL_CONVOLUTION_RANDOM_ROWS(ROW)                                                            \
    CTC_RANDOM_ROWS(ROW)                                                                           \
    DELTA_RANDOM_ROWS(ROW)                                                                         \
    FEATURES_RANDOM_ROWS(ROW)                                                                      \
    GATED_LINEAR_ATTENTION_RANDOM_ROWS(ROW)                                                        \
    IMAGES_RANDOM_ROWS(ROW)                                                                        \
    LINEAR_CROSS_ENTROPY_RANDOM_ROWS(ROW)                                                          \
    LOSSES_RANDOM_ROWS(ROW)                                                                        \
    LSH_RANDOM_ROWS(ROW)                                                                           \
    MIXTURE_RANDOM_ROWS(ROW)                                                                       \
    RECURRENT_RANDOM_ROWS(ROW)                                                                     \
    RMS_NORM_RANDOM_ROWS(ROW)                                                                      \
    ROTARY_RANDOM_ROWS(ROW)                                                                        \

#endif
/* clang-format on */
