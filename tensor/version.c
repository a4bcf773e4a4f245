#include "tensor/internal.h"

const char *tapegrad_version(void)
{
    return TAPEGRAD_VERSION;
}
