/* The extensions' rows of the table of operations. */
#ifdef TAPEGRAD_NUCLEUS
#define EXTENSION_OPERATIONS(ROW)
#define EXTENSION_RANDOM_ROWS(ROW)
#else
#include "ext/delta/tests/operations.h"
#include "ext/images/tests/operations.h"
#include "ext/losses/tests/operations.h"
#include "ext/lsh/tests/operations.h"
#include "ext/recurrent/tests/operations.h"
#define EXTENSION_OPERATIONS(ROW)                                                                  \
    DELTA_OPERATIONS(ROW)                                                                          \
    IMAGES_OPERATIONS(ROW) LOSSES_OPERATIONS(ROW) LSH_OPERATIONS(ROW) RECURRENT_OPERATIONS(ROW)
#define EXTENSION_RANDOM_ROWS(ROW)                                                                 \
    DELTA_RANDOM_ROWS(ROW)                                                                         \
    IMAGES_RANDOM_ROWS(ROW) LOSSES_RANDOM_ROWS(ROW) LSH_RANDOM_ROWS(ROW) RECURRENT_RANDOM_ROWS(ROW)
#endif
