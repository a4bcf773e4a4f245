/* The arguments of conv2d's kernels. */
#ifndef TAPEGRAD_IMAGES_CONVOLUTION_H
#define TAPEGRAD_IMAGES_CONVOLUTION_H

#include "ext/images/windows.h"

typedef struct Convolution {
    Windows windows;
    int64_t O;           /* filters, the channels of the result */
    int64_t groups;      /* parts of the channels and of the filters */
    Precision precision; /* of products, where a backend computes them by cuBLAS */
} Convolution;

/* Channels and filters of a group. */
SHARED_FUNCTION int64_t group_channels(const Convolution *c)
{
    return c->windows.C / c->groups;
}
SHARED_FUNCTION int64_t group_filters(const Convolution *c)
{
    return c->O / c->groups;
}

/* The first channel that filter o sees. */
SHARED_FUNCTION int64_t first_channel(const Convolution *c, int64_t o)
{
    return o / group_filters(c) * group_channels(c);
}

/* Elements of a filter. */
SHARED_FUNCTION int64_t filter_size(const Convolution *c)
{
    return c->windows.height * c->windows.width * group_channels(c);
}

#endif
