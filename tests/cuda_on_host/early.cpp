/* TAPEGRAD_CUDA_EARLY=1: blocks of dependent launches (tensor/cuda/kernel.cuh) start early. Until
 * all threads of a block have called wait_for_previous_kernel, the elements written since the last
 * plain launch are hidden, that is, NaN: a read before the wait gives wrong results, and a write is
 * reported. */
#include "emulation.h"

#include <map>
#include <set>
#include <stdlib.h>
#include <string.h>
#include <vector>

enum { UNIT = 4, PIECE = 4096 }; /* bytes: unit of hiding; of comparison */
enum { EARLY_BLOCKS = 8 };       /* per launch; the others find all results */

typedef std::vector<char> Bytes;

/* A range of device memory, and its contents before it was hidden. */
struct Range {
    char *begin;
    Bytes bytes;
};

static std::map<char *, Bytes> before; /* each allocation before the last plain launch */
static std::vector<Range> written, hidden;
static int blocks;

static bool enabled(void)
{
    static const char *text = getenv("TAPEGRAD_CUDA_EARLY");
    return text && strcmp(text, "1") == 0;
}

/* Copies an allocation to `before`. */
static void save_before(char *memory, size_t size)
{
    before[memory].resize(size);
    emulation_copy(before[memory].data(), memory, size);
}

static void add_written(char *memory, size_t size)
{
    if (!written.empty() && written.back().begin + written.back().bytes.size() == memory)
        written.back().bytes.resize(written.back().bytes.size() + size);
    else
        written.push_back({ memory, Bytes(size) });
}

static void find_written_elements(char *memory, const char *now, const char *old, size_t size)
{
    for (size_t i = 0, length; i < size; i += length) {
        length = size - i < UNIT ? size - i : (size_t)UNIT;
        if (memcmp(now + i, old + i, length) != 0)
            add_written(memory + i, length);
    }
}

/* An allocation made since the last plain launch was filled with bytes 0xff. */
static void find_written(char *memory, size_t size)
{
    Bytes &old = before[memory];
    if (old.size() != size)
        old.assign(size, (char)0xff);
    char now[PIECE];
    for (size_t i = 0, length; i < size; i += length) {
        length = size - i < PIECE ? size - i : (size_t)PIECE;
        emulation_copy(now, memory + i, length);
        if (memcmp(now, &old[i], length) != 0)
            find_written_elements(memory + i, now, &old[i], length);
    }
}

/* Copies memory only before plain launches of kernels that have preceded a dependent launch. */
void early_launch(const void *kernel, bool dependent)
{
    static std::set<const void *> begin_chains;
    static const void *last_plain;
    static bool saved;
    if (!enabled())
        return;
    written.clear();
    blocks = 0;
    if (!dependent) {
        last_plain = kernel;
        saved = begin_chains.count(kernel) > 0;
        if (saved)
            emulation_for_allocations(save_before);
    } else if (saved)
        emulation_for_allocations(find_written);
    else
        begin_chains.insert(last_plain);
}

void early_block(void)
{
    if (written.empty() || ++blocks > EARLY_BLOCKS)
        return;
    hidden = written;
    for (Range &range : hidden) {
        emulation_copy(range.bytes.data(), range.begin, range.bytes.size());
        emulation_fill(range.begin, range.bytes.size());
    }
}

bool early_hides(void)
{
    return !hidden.empty();
}

bool early_show(void)
{
    bool untouched = true;
    for (const Range &range : hidden) {
        Bytes now(range.bytes.size());
        emulation_copy(now.data(), range.begin, now.size());
        for (char byte : now)
            untouched &= byte == (char)0xff;
        emulation_copy(range.begin, range.bytes.data(), range.bytes.size());
    }
    hidden.clear();
    return untouched;
}
