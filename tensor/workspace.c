/* Workspaces: the scratch memory of kernels. */
#include "tensor/internal.h"

/* This thread's blocks, the latest first. */
static _Thread_local Block *workspaces;

Real *device_workspace(int64_t n)
{
    Device *device = device_current();
    const size_t bytes = (size_t)n * sizeof(Real);
    Block *block = device_allocate(device, bytes);
    if (!block)
        device_raise_exhausted(device, bytes);
    block->next = workspaces;
    block->owner = device;
    workspaces = block;
    return block->data;
}

void device_workspace_free(const Real *data)
{
    if (!data)
        return;
    Block **link = &workspaces;
    while ((*link)->data != data)
        link = &(*link)->next;
    Block *block = *link;
    *link = block->next;
    device_free(block->owner, block);
}

void device_workspace_free_all(void)
{
    while (workspaces)
        device_workspace_free(workspaces->data);
}
