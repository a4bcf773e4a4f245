/* With TAPEGRAD_CUDA_EARLY=1: dependent launches (tensor/kernel.cuh) whose blocks start early. Until
 * all threads of a block have called wait_for_previous_kernel, the elements that were written since
 * the last plain launch are NaN: a read before the wait gives wrong results, a write is reported. */
#include "emulation.h"

#include <map>
#include <set>
#include <stdlib.h>
#include <string.h>
#include <vector>

enum { UNIT = 4, PIECE = 4096 }; /* bytes: of the smallest element; compared at once */
enum { EARLY_BLOCKS = 8 };       /* per launch */

typedef std::vector<char> Bytes;

/* bytes: of an allocation before the last plain launch; of a range before it was hidden. */
struct Range {
    char *begin;
    Bytes bytes;
};

static std::map<char *, Bytes> before;
static std::vector<Range> written, hidden;
static int blocks;

static bool enabled(void)
{
    static const char *text = getenv("TAPEGRAD_CUDA_EARLY");
    return text && strcmp(text, "1") == 0;
}

static void remember(char *memory, size_t size)
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

/* Memory that was allocated since was all ones. */
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

/* Memory is copied before those plain launches only whose kernel has once preceded a dependent one. */
void early_launch(const void *kernel, bool dependent)
{
    static std::set<const void *> begin_chains;
    static const void *last_plain;
    static bool remembered;
    if (!enabled())
        return;
    written.clear();
    blocks = 0;
    if (!dependent) {
        last_plain = kernel;
        remembered = begin_chains.count(kernel) > 0;
        if (remembered)
            emulation_for_allocations(remember);
    } else if (remembered)
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
