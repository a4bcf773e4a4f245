/* Time of causal linear attention by form. */
#ifndef TAPEGRAD_BENCH_FORMS_H
#define TAPEGRAD_BENCH_FORMS_H

#include "bench/common.h"

/* The minimum time of a forward and a backward pass on x [B, N, H, D], in milliseconds. chunk:
 * positions per chunk of FORM_CHUNKED; 0: its default. */
double form_time(const BenchOptions *options, Shape x, AttentionForm form, int64_t chunk);

#endif
