/* The files of distributed/ among themselves. */
#ifndef TAPEGRAD_DISTRIBUTED_INTERNAL_H
#define TAPEGRAD_DISTRIBUTED_INTERNAL_H

#include "distributed/distributed.h"

#include "optim/internal.h"

enum { DIST_MAX_RANKS = 4096 };

/* The transport's collective functions, of this thread's ranks. Without ranks they do nothing.
 * offsets as in DistTransport. */
void dist_all_gather(void *buffer, const int64_t *offsets);
void dist_gather(void *buffer, const int64_t *offsets);
void dist_reduce_scatter(Real *buffer, const int64_t *offsets);

/* The same for memory of the device, by its stream. False: the device is on the host, or the
 * transport moves host memory only. */
bool dist_all_gather_on(Device *device, void *buffer, const int64_t *offsets);
bool dist_reduce_scatter_on(Device *device, Real *buffer, const int64_t *offsets);

/* all [ranks][bytes]: each rank's own row becomes everyone's. */
void dist_all_gather_rows(void *all, size_t bytes);

/* The transport of all ranks; and dist_all_gather_rows of any transport's ranks. */
const DistTransport *dist_transport(void);
void dist_all_gather_rows_of(const DistTransport *among, void *all, size_t bytes);

#endif
