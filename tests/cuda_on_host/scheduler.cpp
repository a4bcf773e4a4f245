/* Runs a launch: blocks one after another, the threads of a block as fibres that switch only where
 * CUDA threads wait for one another.
 *
 * One warp runs until all its threads wait at the block's barrier or have ended, then the next
 * (warp-greedy). This drives warps as far apart as possible, so that a missing barrier shows;
 * lockstep would hide it. Within a warp, a lane runs until it waits for others. The orders of
 * blocks, warps and lanes come from TAPEGRAD_CUDA_SEED: 0 ascending, 1 descending, others shuffled.
 *
 * A thread that never waits needs no stack of its own: a fibre runs unstarted threads one after
 * another until one waits. That thread keeps the fibre, and another fibre runs the next ones. */
#include "emulation.h"
#include "fibre.h"
#include "include/copy_on_host.h"

#include <map>
#include <mutex>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { LANES = 32, MAX_WARPS = 32, MAX_THREADS = LANES * MAX_WARPS };
enum { PLAIN_SHARED_BYTES = 48 << 10, MAX_SHARED_BYTES = 227 << 10 };

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
bool cuda_host_shared_used = true;

struct Place {
    const char *file;
    int line;
};

/* A pending asynchronous copy of `there` bytes into shared memory, padded with zeros to `bytes`. */
struct Copy {
    void *to;
    const void *from;
    size_t bytes, there;
    Place place;
};

struct Thread {
    Fibre *fibre; /* on which it waits; NULL before it first waits, while it runs, after its end */
    uint3 index;
    std::vector<Copy> copies;
    bool waited; /* has called wait_for_previous_kernel */
};

/* A meeting is a warp function, in which the lanes of its mask wait. When the last lane arrives,
 * the values that the lanes have brought are copied, so that a lane may bring its next value while
 * others still read. A meeting of only some lanes needs a copy of its own. The bits of the masks
 * are lanes, but those of `runnable` are positions in lane_order. */
struct Warp {
    unsigned lanes, runnable, meeting, ended;
    unsigned masks[LANES]; /* the lanes that each lane waits for; below, where */
    int lines[LANES];
    const char *files[LANES], *operations[LANES];
    uint64_t brought[LANES], copies[LANES + 1][LANES];
    int reads[LANES]; /* the copy that each lane reads */
    bool split;       /* some lanes read a copy other than the first */
};

struct Barrier {
    int waiting, holding; /* threads that wait; those with a true predicate */
    CudaHostBlockOperation operation;
    Place place; /* of the thread that arrived first */
    int first;
    int result;
};

/* The running launch; `lock` lets only one run. */
static struct {
    std::mutex lock;
    const char *kernel;
    bool dependent;
    const std::function<void()> *thread_body;
    void *dynamic_shared;
    size_t dynamic_bytes;
    int64_t block, blocks;        /* the number of started blocks, of all blocks */
    int64_t block_step, block_at; /* the order of the blocks: at = (at + step) mod blocks */
    int threads, warps, ended;
    int turn, warp, current; /* position in warp_order; the running warp, thread */
    int warp_order[MAX_WARPS], lane_order[LANES];
    int position; /* of the running thread in lane_order */
    int next;     /* the unstarted thread that a fibre runs next */
    Thread thread[MAX_THREADS];
    Warp warp_state[MAX_WARPS];
    Barrier barrier;
} run;

/* ------------------------------------------------------------------------------------- messages */
void emulation_abort(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("cuda_on_host: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

struct Text {
    char text[96];
};

static Text thread_text(int thread)
{
    Text text;
    const uint3 index = run.thread[thread].index;
    snprintf(text.text, sizeof text.text, "thread (%u,%u,%u)", index.x, index.y, index.z);
    return text;
}

/* Aborts with "kernel, block (..), thread (..): ..." for the running thread. */
[[noreturn]] __attribute__((format(printf, 1, 2))) static void misuse(const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    emulation_abort("%s, block (%u,%u,%u), %s: %s", run.kernel, blockIdx.x, blockIdx.y, blockIdx.z,
                    thread_text(run.current).text, what);
}

/* --------------------------------------------------------------------------------------- orders */
static uint64_t seed(void)
{
    static const char *text = getenv("TAPEGRAD_CUDA_SEED");
    static const uint64_t value = text ? strtoull(text, NULL, 10) : 0;
    return value;
}

static unsigned random_below(unsigned n)
{
    static uint64_t state = seed() * 0x9e3779b97f4a7c15u + 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 32) * n >> 32);
}

static void put_in_order(int *order, int n)
{
    for (int i = 0; i < n; i++)
        order[i] = seed() == 1 ? n - 1 - i : i;
    if (seed() > 1)
        for (int i = n - 1; i > 0; i--) {
            const int j = (int)random_below((unsigned)i + 1), kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* A step that is coprime to the number of blocks reaches every block. */
static void put_blocks_in_order(void)
{
    const int64_t blocks = run.blocks;
    run.block_step = seed() == 1 ? blocks - 1 : 1;
    run.block_at = seed() == 1 ? blocks - 1 : 0;
    if (seed() > 1 && blocks > 1) {
        const unsigned below = (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
        run.block_at = random_below(below);
        do
            run.block_step = 1 + random_below(below - 1);
        while (common_divisor(blocks, run.block_step) != 1);
    }
}

/* --------------------------------------------------------------------------------------- blocks */
/* Not memset: the sanitizer's rejects the redzones between variables. */
UNSANITIZED void emulation_fill(void *memory, size_t bytes)
{
#ifdef __x86_64__
    __asm__ volatile("rep stosb" : "+D"(memory), "+c"(bytes) : "a"(0xff) : "memory");
#else
    volatile char *byte = (volatile char *)memory;
    while (bytes--)
        *byte++ = (char)0xff;
#endif
}

UNSANITIZED void emulation_copy(void *to, const void *from, size_t bytes)
{
#ifdef __x86_64__
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
    volatile char *byte = (volatile char *)to;
    for (const volatile char *source = (const volatile char *)from; bytes--;)
        *byte++ = *source++;
#endif
}

static void set_all_runnable(void)
{
    const int last = run.threads - (run.warps - 1) * LANES; /* lanes of the last warp */
    for (int w = 0; w < run.warps; w++)
        run.warp_state[w].runnable = ~0u;
    if (last < LANES) {
        unsigned positions = 0;
        for (int position = 0; position < LANES; position++)
            if (run.lane_order[position] < last)
                positions |= 1u << position;
        run.warp_state[run.warps - 1].runnable = positions;
    }
}

/* Makes all threads runnable, when a block starts or its barrier opens. */
static void start_turn(void)
{
    put_in_order(run.warp_order, run.warps);
    set_all_runnable();
    run.turn = 0;
    run.warp = run.warp_order[0];
}

static void fill_shared(void)
{
    static const Section section = emulation_section("cuda.shared");
    if (cuda_host_shared_used)
        emulation_fill(section.begin, section.size);
    cuda_host_shared_used = false;
}

static void begin_block(void)
{
    if (run.block++ > 0)
        run.block_at = (run.block_at + run.block_step) % run.blocks;
    const int64_t at = run.block_at;
    blockIdx.x = (unsigned)(at % gridDim.x);
    blockIdx.y = (unsigned)(at / gridDim.x % gridDim.y);
    blockIdx.z = (unsigned)(at / gridDim.x / gridDim.y);
    fill_shared();
    emulation_fill(run.dynamic_shared, run.dynamic_bytes);
    put_in_order(run.lane_order, LANES);
    for (int w = 0; w < run.warps; w++)
        run.warp_state[w].meeting = run.warp_state[w].ended = 0;
    run.ended = 0;
    run.barrier.waiting = run.barrier.holding = 0;
    early_block();
    start_turn();
}

/* -------------------------------------------------------------------------------------- threads */
/* The next runnable thread, or -1. */
static int next_thread(void)
{
    for (;;) {
        Warp *warp = &run.warp_state[run.warp];
        if (warp->runnable) {
            run.position = __builtin_ctz(warp->runnable);
            warp->runnable &= warp->runnable - 1;
            return run.warp * LANES + run.lane_order[run.position];
        }
        if (++run.turn >= run.warps)
            return -1;
        run.warp = run.warp_order[run.turn];
    }
}

static void set_current(int thread)
{
    run.current = thread;
    threadIdx = run.thread[thread].index;
}

[[noreturn]] static void stuck(void)
{
    for (int t = 0; t < run.threads; t++) {
        const Warp *warp = &run.warp_state[t / LANES];
        const int lane = t % LANES;
        const unsigned missing = warp->masks[lane] & ~warp->meeting;
        if (!(warp->meeting >> lane & 1) || !missing)
            continue;
        set_current(t);
        misuse("%s at %s:%d waits for lane %d of its warp, which waits elsewhere",
               warp->operations[lane], warp->files[lane], warp->lines[lane],
               __builtin_ctz(missing));
    }
    misuse("no thread of the block can go on");
}

/* The running thread has ended while others wait: an error if they wait for it. */
static void check_ending(void)
{
    const Warp *warp = &run.warp_state[run.current / LANES];
    const unsigned lane = (unsigned)run.current % LANES;
    if (run.barrier.waiting > 0)
        misuse("has left the kernel while %s waits for it in __syncthreads at %s:%d",
               thread_text(run.barrier.first).text, run.barrier.place.file, run.barrier.place.line);
    for (int other = 0; other < LANES; other++)
        if (warp->meeting >> other & 1 && warp->masks[other] >> lane & 1)
            misuse("has left the kernel while lane %d of its warp waits for it in %s at %s:%d",
                   other, warp->operations[other], warp->files[other], warp->lines[other]);
}

static void end_thread(void)
{
    Warp *warp = &run.warp_state[run.current / LANES];
    const std::vector<Copy> &copies = run.thread[run.current].copies;
    if (!copies.empty())
        misuse("has left the kernel without waiting for its copy at %s:%d", copies[0].place.file,
               copies[0].place.line);
    if (run.dependent && !run.thread[run.current].waited)
        misuse("has left the kernel, a dependent launch, without wait_for_previous_kernel");
    run.thread[run.current].waited = false;
    run.thread[run.current].fibre = NULL;
    warp->ended |= 1u << run.current % LANES;
    run.ended++;
    if (warp->meeting || run.barrier.waiting)
        check_ending();
}

/* The body of every fibre: runs unstarted threads. If the next thread waits on a fibre, releases
 * its own fibre and resumes that one. */
static void run_threads(void)
{
    for (;;) {
        set_current(run.next);
        (*run.thread_body)();
        end_thread();
        int thread = next_thread();
        if (thread < 0 && run.ended < run.threads)
            stuck();
        if (thread < 0 && run.block < run.blocks) {
            begin_block();
            thread = next_thread();
        }
        Fibre *fibre = thread < 0 ? fibre_home() : run.thread[thread].fibre;
        run.next = thread;
        if (fibre) {
            fibre_give_back(fibre_running());
            fibre_switch(fibre);
        }
    }
}

/* Suspends the running thread until it is its turn again. */
static void wait_for_others(void)
{
    const int self = run.current, thread = next_thread();
    if (thread < 0)
        stuck();
    if (thread == self)
        return;
    Thread *waiting = &run.thread[self], *other = &run.thread[thread];
    waiting->fibre = fibre_running();
    run.next = thread;
    fibre_switch(other->fibre ? other->fibre : fibre_take(run_threads));
    waiting->fibre = NULL;
    set_current(self);
}

/* ------------------------------------------------------------------------------- block barriers */
static bool same_place(Place a, Place b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

static void check_barrier(Place place)
{
    const Barrier *barrier = &run.barrier;
    if (run.ended > 0)
        misuse("waits in __syncthreads at %s:%d, but %d threads of its block have left the kernel",
               place.file, place.line, run.ended);
    if (barrier->waiting > 0 && !same_place(barrier->place, place))
        misuse("waits in __syncthreads at %s:%d, but %s waits in the one at %s:%d", place.file,
               place.line, thread_text(barrier->first).text, barrier->place.file,
               barrier->place.line);
}

int cuda_host_block_barrier(CudaHostBlockOperation operation, bool predicate, const char *file,
                            int line)
{
    Barrier *barrier = &run.barrier;
    check_barrier({ file, line });
    if (barrier->waiting == 0) {
        barrier->place = { file, line };
        barrier->operation = operation;
        barrier->first = run.current;
    }
    barrier->holding += predicate;
    if (++barrier->waiting == run.threads) {
        barrier->result = barrier->holding;
        barrier->waiting = barrier->holding = 0;
        start_turn();
    }
    wait_for_others();
    return barrier->result;
}

/* ------------------------------------------------------------------------------- warp functions */
static void check_meeting(const char *operation, unsigned mask, Place place)
{
    const Warp *warp = &run.warp_state[run.current / LANES];
    const int lane = run.current % LANES;
    if (!(mask >> lane & 1))
        misuse("%s at %s:%d with mask %08x, which leaves its own lane %d out", operation,
               place.file, place.line, mask, lane);
    if (mask & ~warp->lanes)
        misuse("%s at %s:%d with mask %08x, but its warp has only the lanes %08x", operation,
               place.file, place.line, mask, warp->lanes);
    if (mask & warp->ended)
        misuse("%s at %s:%d with mask %08x, but the lanes %08x of its warp have left the kernel",
               operation, place.file, place.line, mask, mask & warp->ended);
}

[[noreturn]] static void disagree(const Warp *warp, int self, int other)
{
    misuse("%s at %s:%d with mask %08x meets lane %d of its warp in %s at %s:%d with mask %08x",
           warp->operations[self], warp->files[self], warp->lines[self], warp->masks[self], other,
           warp->operations[other], warp->files[other], warp->lines[other], warp->masks[other]);
}

/* All lanes of the mask have arrived: checks that they made the same call, first without
 * branches. */
static void check_agreement(const Warp *warp, unsigned mask)
{
    const int self = run.current % LANES;
    uint64_t differ = 0;
    for (int lane = 0; lane < LANES; lane++)
        differ |= (warp->masks[lane] ^ mask) | (unsigned)(warp->lines[lane] ^ warp->lines[self]);
    for (int lane = 0; lane < LANES; lane++)
        differ |= (uintptr_t)warp->files[lane] ^ (uintptr_t)warp->files[self];
    if (!differ)
        return;
    for (int lane = 0; lane < LANES; lane++)
        if (mask >> lane & 1 &&
            (warp->masks[lane] != mask || !same_place({ warp->files[lane], warp->lines[lane] },
                                                      { warp->files[self], warp->lines[self] })))
            disagree(warp, self, lane);
}

/* A copy that no lane outside the mask reads; with LANES + 1 copies there is one. */
static int free_copy(const Warp *warp, unsigned mask)
{
    uint64_t used = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (!(mask >> lane & 1))
            used |= 1ull << warp->reads[lane];
    return __builtin_ctzll(~used);
}

/* Copies the values for the lanes of the mask and makes these runnable. */
static void end_partial_meeting(Warp *warp, unsigned mask)
{
    const int copy = free_copy(warp, mask);
    memcpy(warp->copies[copy], warp->brought, sizeof warp->brought);
    for (int position = 0; position < LANES; position++) {
        const int lane = run.lane_order[position];
        if (mask >> lane & 1) {
            warp->reads[lane] = copy;
            warp->runnable |= 1u << position;
        }
    }
    warp->split = true;
}

static void end_meeting(Warp *warp, unsigned mask)
{
    warp->meeting &= ~mask;
    if (mask == ~0u) {
        memcpy(warp->copies[0], warp->brought, sizeof warp->brought);
        if (warp->split)
            memset(warp->reads, 0, sizeof warp->reads);
        warp->split = false;
        warp->runnable = mask;
    } else
        end_partial_meeting(warp, mask);
    warp->runnable &= ~(1u << run.position); /* the running lane */
}

/* Suspends the lane until all lanes of the mask are here; the last one then does the work, if there
 * is any, before any lane continues. */
static inline Warp *meet(const char *operation, unsigned mask, uint64_t value,
                         CudaHostWarpWork *work, const char *file, int line)
{
    Warp *warp = &run.warp_state[run.current / LANES];
    const int lane = run.current % LANES;
    check_meeting(operation, mask, { file, line });
    warp->files[lane] = file;
    warp->lines[lane] = line;
    warp->operations[lane] = operation;
    warp->masks[lane] = mask;
    warp->brought[lane] = value;
    warp->meeting |= 1u << lane;
    if ((warp->meeting & mask) == mask) {
        check_agreement(warp, mask);
        if (work)
            work(warp->brought);
        end_meeting(warp, mask);
    } else
        wait_for_others();
    return warp;
}

const uint64_t *cuda_host_warp_meet(const char *operation, unsigned mask, uint64_t value,
                                    const char *file, int line)
{
    const int lane = run.current % LANES;
    const Warp *warp = meet(operation, mask, value, NULL, file, line);
    return warp->copies[warp->reads[lane]];
}

void cuda_host_warp_together(const char *operation, void *operands, CudaHostWarpWork *work,
                             const char *file, int line)
{
    meet(operation, ~0u, (uint64_t)operands, work, file, line);
}

int cuda_host_shuffle_source(unsigned mask, int source, const char *file, int line)
{
    if (source < 0 || source >= LANES || !(mask >> source & 1))
        misuse("a shuffle at %s:%d with mask %08x reads lane %d, which does not take part", file,
               line, mask, source);
    return source;
}

/* -------------------------------------------------------------------------- asynchronous copies */
void cuda_host_copy_async(void *shared, const void *from, int bytes, int there, const char *file,
                          int line)
{
    if ((uintptr_t)shared % (unsigned)bytes != 0 || (uintptr_t)from % (unsigned)bytes != 0)
        misuse("a copy at %s:%d is not aligned to its %d bytes", file, line, bytes);
    if (there < 0 || there > bytes)
        misuse("a copy at %s:%d takes %d of %d bytes", file, line, there, bytes);
    if (!emulation_is_memory(from, there > 0 ? (size_t)there : 1, emulation_device()))
        misuse("a copy at %s:%d of %d bytes has an address outside of the device's memory", file,
               line, there);
    emulation_fill(shared, (size_t)bytes);
    run.thread[run.current].copies.push_back(
        { shared, from, (size_t)bytes, (size_t)there, { file, line } });
}

void cuda_host_wait_for_copies(void)
{
    std::vector<Copy> &copies = run.thread[run.current].copies;
    for (const Copy &copy : copies) {
        for (size_t i = 0; i < copy.bytes; i++)
            if (((const unsigned char *)copy.to)[i] != 0xff)
                misuse("the place of a copy at %s:%d has been written before the copy was there",
                       copy.place.file, copy.place.line);
        memset(copy.to, 0, copy.bytes);
        memcpy(copy.to, copy.from, copy.there);
    }
    copies.clear();
}

/* ------------------------------------------------------------------------------------- launches */
void wait_for_previous_kernel(const char *file, int line)
{
    run.thread[run.current].waited = true;
    if (!early_hides())
        return;
    cuda_host_block_barrier(CUDA_HOST_SYNCTHREADS, true, file, line);
    if (early_hides() && !early_show())
        misuse("its block has written results of earlier kernels before "
               "wait_for_previous_kernel at %s:%d",
               file, line);
}

void *cuda_host_dynamic_shared(void)
{
    return run.dynamic_shared;
}

static void number_threads(void)
{
    run.threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    run.warps = (run.threads + LANES - 1) / LANES;
    for (unsigned t = 0; t < (unsigned)run.threads; t++) {
        run.thread[t].index.x = t % blockDim.x;
        run.thread[t].index.y = t / blockDim.x % blockDim.y;
        run.thread[t].index.z = t / blockDim.x / blockDim.y;
    }
    for (int w = 0; w < run.warps; w++) {
        const int lanes = run.threads - w * LANES;
        run.warp_state[w].lanes = lanes < LANES ? (1u << lanes) - 1 : ~0u;
    }
}

/* Exactly of the requested size, so that the sanitizer detects overruns. */
static void *allocate_shared(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 128, bytes) != 0)
        emulation_abort("no memory for %zu bytes of shared memory", bytes);
    return memory;
}

static void run_grid(const CudaHostLaunch &launch, const std::function<void()> &thread)
{
    std::lock_guard<std::mutex> guard(run.lock);
    gridDim = launch.grid;
    blockDim = launch.block;
    run.kernel = launch.name;
    run.dependent = launch.dependent;
    run.thread_body = &thread;
    run.dynamic_bytes = launch.shared_bytes;
    run.dynamic_shared = allocate_shared(launch.shared_bytes);
    run.blocks = (int64_t)gridDim.x * gridDim.y * gridDim.z;
    run.block = 0;
    number_threads();
    put_blocks_in_order();
    early_launch(launch.kernel, launch.dependent);
    begin_block();
    run.next = next_thread();
    fibre_switch(fibre_take(run_threads));
    free(run.dynamic_shared);
}

/* Bytes of dynamic shared memory per kernel that cudaFuncSetAttribute has allowed. */
static struct {
    std::mutex lock;
    std::map<const void *, size_t> bytes;
} allowed;

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (!kernel || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > MAX_SHARED_BYTES)
        return emulation_fail(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> guard(allowed.lock);
    allowed.bytes[kernel] = (size_t)value;
    return cudaSuccess;
}

static size_t allowed_bytes(const void *kernel)
{
    std::lock_guard<std::mutex> guard(allowed.lock);
    auto found = allowed.bytes.find(kernel);
    const size_t bytes = found == allowed.bytes.end() ? 0 : found->second;
    return bytes < PLAIN_SHARED_BYTES ? size_t(PLAIN_SHARED_BYTES) : bytes;
}

static cudaError_t check_launch(const CudaHostLaunch &launch)
{
    const dim3 grid = launch.grid, block = launch.block;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > 65535 ||
        grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 ||
        block.z > 64 || (uint64_t)block.x * block.y * block.z > MAX_THREADS)
        return cudaErrorInvalidConfiguration;
    if (launch.shared_bytes > allowed_bytes(launch.kernel))
        return cudaErrorInvalidValue;
    return emulation_enqueue_check(launch.stream);
}

void cuda_host_launch(const CudaHostLaunch &launch, const void *const *pointers, int count,
                      std::function<void()> thread)
{
    cudaError_t error = check_launch(launch);
    if (error == cudaSuccess) {
        for (int i = 0; i < count; i++)
            if (pointers[i]) {
                char what[32];
                snprintf(what, sizeof what, "argument %d", i + 1);
                emulation_check_memory(launch.name, what, pointers[i], 0, emulation_device());
            }
        error = emulation_enqueue(launch.stream, [=] { run_grid(launch, thread); });
    }
    if (error != cudaSuccess)
        emulation_fail(error);
}
