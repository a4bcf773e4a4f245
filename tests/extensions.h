/* The extensions' rows of the table of operations. */
#ifdef TAPEGRAD_NUCLEUS
#define EXTENSION_OPERATIONS(ROW)
#define EXTENSION_RANDOM_ROWS(ROW)
#else
#include "ext/delta/tests/operations.h"
#include "ext/losses/tests/operations.h"
#include "ext/recurrent/tests/operations.h"
#include "ext/rotary/tests/operations.h"
#define EXTENSION_OPERATIONS(ROW)                                                                  \
    DELTA_OPERATIONS(ROW) LOSSES_OPERATIONS(ROW) RECURRENT_OPERATIONS(ROW) ROTARY_OPERATIONS(ROW)
#define EXTENSION_RANDOM_ROWS(ROW)                                                                 \
    DELTA_RANDOM_ROWS(ROW)                                                                         \
    LOSSES_RANDOM_ROWS(ROW) RECURRENT_RANDOM_ROWS(ROW) ROTARY_RANDOM_ROWS(ROW)
#endif
