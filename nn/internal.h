/* What optim/ uses of Params and programs do not. */
#ifndef TAPEGRAD_NN_INTERNAL_H
#define TAPEGRAD_NN_INTERNAL_H

#include "nn/nn.h"
#include "tensor/internal.h"

/* All weights and all gradients as flat buffers of params_flat_count numbers (padding between
 * weights is zero in both). Lays storage out first; empty gradients are filled with zeros. */
int64_t params_flat_count(Params *params);
Real *params_flat_values(Params *params);
Real *params_flat_gradients(Params *params);

/* Entries for a file, one a weight, that read from a flat buffer laid out like the values; names
 * get a prefix ("" for the weights themselves). entries holds params_count of them; the names live
 * until params_free. On other devices than the CPU host is a copy of the buffer. */
void params_file_entries(Params *params, const char *prefix, const Real *host, FileEntry *entries);

/* Reads them back into host, a flat buffer. */
bool params_file_read(Params *params, const TensorFile *file, const char *prefix, Real *host);

#endif
