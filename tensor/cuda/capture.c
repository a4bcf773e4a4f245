/* CUDA graph captures of a step's kernel launches, and their replays. */
#include "tensor/cuda/cuda.h"

#include "tensor/device.h"

#include <stdlib.h>

typedef struct Callback {
    BeforeReplay *function;
    void *context;
    struct Callback *next;
} Callback;

typedef struct CudaCapture {
    Capture memory; /* the first member: a Capture * is a CudaCapture * */
    cudaGraphExec_t executable;
    int64_t kernels; /* kernel launches per replay */
    Callback *callbacks;
} CudaCapture;

static _Thread_local Device *capturing;

static cudaStream_t enter_stream(Device *device)
{
    device->functions->enter(device);
    return cuda_stream();
}

static void capture_free(Capture *memory)
{
    CudaCapture *capture = (CudaCapture *)memory;
    if (capture->executable) { /* the next launch's check reports an error of these calls */
        cudaStreamSynchronize(enter_stream(memory->device)); /* the graph may be running */
        cudaGraphExecDestroy(capture->executable);
    }
    for (Callback *callback = capture->callbacks, *next; callback; callback = next) {
        next = callback->next;
        free(callback);
    }
    pool_close(memory);
}

/* The number of kernel nodes; 0 if memory for the list of nodes is exhausted. */
static int64_t count_kernels(cudaGraph_t graph)
{
    size_t count = 0;
    int64_t kernels = 0;
    cudaGraphGetNodes(graph, NULL, &count);
    cudaGraphNode_t *nodes = calloc(count + 1, sizeof(cudaGraphNode_t));
    if (nodes && cudaGraphGetNodes(graph, nodes, &count) == cudaSuccess)
        for (size_t i = 0; i < count; i++) {
            enum cudaGraphNodeType type;
            kernels += cudaGraphNodeGetType(nodes[i], &type) == cudaSuccess &&
                       type == cudaGraphNodeTypeKernel;
        }
    free(nodes);
    return kernels;
}

/* Fails if the step made a call that a capture forbids, or if an error ended it early. */
static const char *capture_end(Device *device)
{
    CudaCapture *capture = (CudaCapture *)device->capture;
    cudaGraph_t graph = NULL;
    cudaError_t result = cudaStreamEndCapture(enter_stream(device), &graph);
    if (result == cudaSuccess) {
        capture->kernels = count_kernels(graph);
        result = cudaGraphInstantiate(&capture->executable, graph, 0);
        cudaGraphDestroy(graph);
    }
    cudaGetLastError(); /* clears it */
    device->capture = NULL;
    capturing = NULL;
    error_cleanup = NULL;
    if (result == cudaSuccess)
        return NULL;
    capture->executable = NULL;
    capture_free(&capture->memory);
    return cudaGetErrorString(result);
}

/* Ends and frees this thread's open capture. */
static void abandon(void)
{
    Capture *capture = capturing->capture;
    if (!capture_end(capturing))
        capture_free(capture);
}

/* A capture allocates its own memory, so the previous step's cached blocks are released first: the
 * peak is one step's memory. Relaxed mode allows cudaMalloc during the capture. */
static Capture *capture_begin(Device *device)
{
    CudaCapture *capture = memory_allocate(sizeof *capture);
    if (!capture)
        return NULL;
    *capture = (CudaCapture){ .memory.device = device };
    device_release_cached(device);
    const cudaError_t result =
        cudaStreamBeginCapture(enter_stream(device), cudaStreamCaptureModeRelaxed);
    if (result != cudaSuccess)
        free(capture);
    cuda_check(result, "cudaStreamBeginCapture");
    device->capture = &capture->memory;
    capturing = device;
    error_cleanup = abandon;
    return device->capture;
}

static int64_t capture_kernels(const Capture *capture)
{
    return ((const CudaCapture *)capture)->kernels;
}

static bool before_replay(Device *device, BeforeReplay *function, void *context)
{
    Callback **link = &((CudaCapture *)device->capture)->callbacks;
    for (; *link; link = &(*link)->next)
        if ((*link)->function == function && (*link)->context == context)
            return false;
    Callback *callback = memory_allocate(sizeof *callback);
    if (!callback)
        device_raise_exhausted(device, sizeof *callback);
    *callback = (Callback){ .function = function, .context = context };
    *link = callback;
    return true;
}

static void replay(Capture *memory)
{
    const CudaCapture *capture = (CudaCapture *)memory;
    for (Callback *callback = capture->callbacks; callback; callback = callback->next)
        callback->function(callback->context);
    cuda_check(cudaGraphLaunch(capture->executable, enter_stream(memory->device)),
               "cudaGraphLaunch");
}

const CaptureFunctions cuda_captures = { .begin = capture_begin,
                                         .end = capture_end,
                                         .kernels = capture_kernels,
                                         .before_replay = before_replay,
                                         .replay = replay,
                                         .free = capture_free };
