/* NCCL between threads of one process, each a rank with a device of its own. A group of calls runs
 * when all ranks have enqueued theirs; the last rank to arrive moves the data. The program stops
 * with a sentence where the ranks' calls differ, a buffer is not memory of the rank's device,
 * buffers of a group overlap, a rank does not come, or, by emulation_enqueue_collective, a stream
 * does not wait for another. Sums are made in the order of ranks. */
#include "emulation.h"
#include "include/nccl.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <stdio.h>
#include <string.h>
#include <vector>

enum { PATIENCE = 60 }; /* seconds until a rank that does not come is an error */

struct Call {
    const char *name;
    const char *from;
    char *to; /* NULL: ncclReduce, where this rank is not the root */
    size_t count;
    ncclDataType_t type;
    bool sums;
    int root;
    ncclComm_t communicator;
    cudaStream_t stream;
};

typedef std::vector<Call> Group;

/* What the ranks of a communicator share. */
struct World {
    std::mutex lock;
    std::condition_variable changed;
    int ranks;
    std::vector<int> devices;          /* of the ranks; -1: has not joined */
    std::vector<const Group *> groups; /* of the ranks that have arrived */
    std::vector<bool> left;            /* the ranks that have destroyed their communicator */
    int joined, arrived;
    uint64_t round; /* groups that have run */
    bool aborted;
};

struct ncclComm {
    std::shared_ptr<World> world;
    int rank, device;
};

static struct {
    std::mutex lock;
    std::map<uint64_t, std::shared_ptr<World>> worlds; /* by id */
    uint64_t last_id;
} nccl_all;

static thread_local int depth; /* of ncclGroupStart */
static thread_local Group open_group;
static thread_local const char *last_sentence = "";

typedef std::unique_lock<std::mutex> WorldLock;

/* --------------------------------------------------------------------------------------- errors */
const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    }
    return "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_sentence;
}

static ncclResult_t fail(ncclResult_t result, const char *sentence)
{
    last_sentence = sentence;
    return result;
}

static size_t size_of(ncclDataType_t type)
{
    return type == ncclDouble ? 8 : type == ncclFloat ? 4 : 1;
}

struct CallText {
    char text[160];
};

static CallText text_of(const Call &call)
{
    const char *type = call.type == ncclDouble  ? "double"
                       : call.type == ncclFloat ? "float"
                                                : "char";
    CallText text;
    snprintf(text.text, sizeof text.text, "%s of %zu %s, root %d", call.name, call.count, type,
             call.root);
    return text;
}

/* -------------------------------------------------------------------------------- communicators */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    std::lock_guard<std::mutex> guard(nccl_all.lock);
    memset(id, 0, sizeof *id);
    nccl_all.last_id++;
    nccl_all.worlds[nccl_all.last_id] = std::make_shared<World>();
    memcpy(id->internal, &nccl_all.last_id, sizeof nccl_all.last_id);
    return ncclSuccess;
}

static std::shared_ptr<World> find_world(const ncclUniqueId &id)
{
    std::lock_guard<std::mutex> guard(nccl_all.lock);
    uint64_t key;
    memcpy(&key, id.internal, sizeof key);
    auto found = nccl_all.worlds.find(key);
    return found == nccl_all.worlds.end() ? NULL : found->second;
}

/* Waits until the condition holds; stops the program after PATIENCE seconds. */
template <typename Condition>
static void wait_for_ranks(World *world, WorldLock &lock, int rank, const char *what,
                           Condition condition)
{
    if (!world->changed.wait_for(lock, std::chrono::seconds(PATIENCE), condition))
        emulation_abort("%s: rank %d of %d has waited %d seconds for the others", what, rank,
                        world->ranks, PATIENCE);
}

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank)
{
    std::shared_ptr<World> world = find_world(id);
    if (!communicator || !world || ranks < 1 || rank < 0 || rank >= ranks)
        return fail(ncclInvalidArgument, "an unknown id, or a rank outside of 0 to ranks - 1");
    if (depth > 0)
        emulation_abort("ncclCommInitRank: a group is open, which is not emulated");
    WorldLock lock(world->lock);
    if (world->joined == 0) {
        world->ranks = ranks;
        world->devices.assign((size_t)ranks, -1);
        world->groups.assign((size_t)ranks, NULL);
        world->left.assign((size_t)ranks, false);
    }
    if (world->ranks != ranks || world->devices[(size_t)rank] >= 0)
        emulation_abort("ncclCommInitRank: rank %d of %d joins a communicator of %d ranks%s", rank,
                        ranks, world->ranks, world->ranks == ranks ? " again" : "");
    world->devices[(size_t)rank] = emulation_device();
    world->joined++;
    world->changed.notify_all();
    wait_for_ranks(world.get(), lock, rank, "ncclCommInitRank",
                   [&] { return world->joined == ranks; });
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < a; b++)
            if (world->devices[(size_t)a] == world->devices[(size_t)b])
                return fail(ncclInvalidUsage, "Duplicate GPU detected");
    *communicator = new ncclComm{ world, rank, emulation_device() };
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator)
{
    if (!communicator)
        return fail(ncclInvalidArgument, "the communicator is NULL");
    if (depth > 0)
        emulation_abort("ncclCommDestroy: rank %d has not ended a group", communicator->rank);
    World *world = communicator->world.get();
    {
        WorldLock lock(world->lock);
        world->left[(size_t)communicator->rank] = true;
        world->changed.notify_all();
    }
    delete communicator;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator)
{
    World *world = communicator->world.get();
    {
        WorldLock lock(world->lock);
        world->aborted = true;
        world->changed.notify_all();
    }
    depth = 0;
    open_group.clear();
    delete communicator;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error)
{
    WorldLock lock(communicator->world->lock);
    *error = communicator->world->aborted ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

/* --------------------------------------------------------------------------- what NCCL demands */
/* All ranks have made the same calls in the same order. */
static void compare_groups(const World *world)
{
    const Group &first = *world->groups[0];
    for (int r = 1; r < world->ranks; r++) {
        const Group &group = *world->groups[(size_t)r];
        for (size_t i = 0; i < first.size() || i < group.size(); i++) {
            const bool a = i < first.size(), b = i < group.size();
            if (a && b && first[i].name == group[i].name && first[i].count == group[i].count &&
                first[i].type == group[i].type && first[i].root == group[i].root)
                continue;
            emulation_abort("group %llu, call %zu: rank 0 calls %s, rank %d calls %s",
                            (unsigned long long)world->round + 1, i + 1,
                            a ? text_of(first[i]).text : "nothing", r,
                            b ? text_of(group[i]).text : "nothing");
        }
    }
}

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a && b && a < b + b_bytes && b < a + a_bytes;
}

/* The calls of a group run in any order: none may write what another accesses. */
static void check_buffers(const Group &group)
{
    for (const Call &call : group) {
        const size_t bytes = call.count * size_of(call.type);
        const int device = call.communicator->device;
        const bool reads = call.sums || call.root == call.communicator->rank;
        if (reads)
            emulation_check_memory(call.name, "the send buffer", call.from, bytes, device);
        if (call.to)
            emulation_check_memory(call.name, "the receive buffer", call.to, bytes, device);
        for (const Call &other : group) {
            const size_t other_bytes = other.count * size_of(other.type);
            if (&other != &call && (overlap(call.to, bytes, other.to, other_bytes) ||
                                    overlap(call.to, bytes, other.from, other_bytes)))
                emulation_abort("%s: it writes memory of another call of its group",
                                text_of(call).text);
        }
    }
}

/* ------------------------------------------------------------------------------------ execution */
template <typename T> static void sum_ranks(const World *world, size_t index)
{
    const Call &root = (*world->groups[(size_t)(*world->groups[0])[index].root])[index];
    std::vector<T> sums((const T *)(*world->groups[0])[index].from,
                        (const T *)(*world->groups[0])[index].from + root.count);
    for (int r = 1; r < world->ranks; r++)
        for (size_t i = 0; i < root.count; i++)
            sums[i] += ((const T *)(*world->groups[(size_t)r])[index].from)[i];
    memcpy(root.to, sums.data(), root.count * sizeof(T));
}

static void broadcast_from_root(const World *world, size_t index)
{
    const Call &root = (*world->groups[(size_t)(*world->groups[0])[index].root])[index];
    for (const Group *group : world->groups)
        if ((*group)[index].to != root.from)
            memcpy((*group)[index].to, root.from, root.count * size_of(root.type));
}

static void run_groups(const World *world)
{
    for (size_t i = 0; i < world->groups[0]->size(); i++) {
        const Call &call = (*world->groups[0])[i];
        if (!call.sums)
            broadcast_from_root(world, i);
        else if (call.type == ncclDouble)
            sum_ranks<double>(world, i);
        else if (call.type == ncclFloat)
            sum_ranks<float>(world, i);
        else
            emulation_abort("%s: sums of this type are not emulated", text_of(call).text);
    }
}

/* The stream has reached the group: waits for the other ranks. The last one runs the calls. */
static void meet(const Group &group)
{
    ncclComm_t own = group[0].communicator;
    World *world = own->world.get();
    WorldLock lock(world->lock);
    const uint64_t round = world->round;
    world->groups[(size_t)own->rank] = &group;
    if (++world->arrived == world->ranks) {
        compare_groups(world);
        run_groups(world);
        world->arrived = 0;
        world->round++;
        world->changed.notify_all();
        return;
    }
    wait_for_ranks(world, lock, own->rank, text_of(group[0]).text, [&] {
        for (int r = 0; r < world->ranks; r++)
            if (world->round == round && world->left[(size_t)r])
                emulation_abort("rank %d waits in %s for rank %d, which has destroyed its "
                                "communicator",
                                own->rank, text_of(group[0]).text, r);
        return world->round != round || world->aborted;
    });
}

static ncclResult_t run_group(Group group)
{
    if (group.empty())
        return ncclSuccess;
    for (const Call &call : group)
        if (call.communicator != group[0].communicator || call.stream != group[0].stream)
            emulation_abort("%s: several communicators or streams in a group are not emulated",
                            text_of(call).text);
    check_buffers(group);
    const cudaError_t error = emulation_enqueue_collective(
        group[0].stream, group[0].communicator->device, group[0].name, [&group] { meet(group); });
    return error == cudaSuccess ? ncclSuccess
                                : fail(ncclUnhandledCudaError, cudaGetErrorString(error));
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    if (--depth > 0)
        return ncclSuccess;
    Group group;
    group.swap(open_group);
    return run_group(group);
}

static ncclResult_t call_or_collect(const Call &call)
{
    if (!call.communicator || call.root < 0 || call.root >= call.communicator->world->ranks)
        return fail(ncclInvalidArgument, "no communicator, or a root outside of 0 to ranks - 1");
    if (depth == 0)
        return run_group({ call });
    open_group.push_back(call);
    return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream)
{
    return call_or_collect({ "ncclBroadcast", (const char *)from, (char *)to, count, type, false,
                             root, communicator, stream });
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t,
                        int root, ncclComm_t communicator, cudaStream_t stream)
{
    char *result = communicator && communicator->rank == root ? (char *)to : NULL;
    return call_or_collect({ "ncclReduce", (const char *)from, result, count, type, true, root,
                             communicator, stream });
}
