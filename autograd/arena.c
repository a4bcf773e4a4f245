/* The arena: chunks from which a step's handles, nodes and attributes come. A reset empties the
 * chunks and keeps them. A guarded step does not reuse the chunks of the step before, so that the
 * use of a released handle is recognized. */
#include "autograd/internal.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 1 << 16 };

void *arena_allocate(Tape *tape, size_t bytes)
{
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    Chunk **link = tape->current;
    while (*link && (*link)->used + bytes > (*link)->size)
        link = &(*link)->next;
    tape->current = link;
    if (!*link) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        Chunk *chunk = memory_allocate(sizeof *chunk + size);
        if (!chunk)
            tape_raise_exhausted(tape, sizeof *chunk + size);
        *chunk = (Chunk){ .size = size };
        *link = chunk;
    }
    void *result = (*link)->bytes + (*link)->used;
    UNPOISON(result, bytes);
    (*link)->used += bytes;
    return result;
}

const void *tape_save(Tape *tape, const void *data, size_t size)
{
    return memcpy(arena_allocate(tape, size), data, size);
}

void arena_reset(Tape *tape)
{
    if (tape->guarded > 0 && tape->tensor_count > 0) {
        tape->guarded--;
        Chunk *chunks = tape->chunks;
        tape->chunks = tape->previous_chunks;
        tape->previous_chunks = chunks;
    }
    for (Chunk *chunk = tape->chunks; chunk; chunk = chunk->next) {
        chunk->used = 0;
        POISON(chunk->bytes, chunk->size);
    }
    tape->current = &tape->chunks;
}

static void free_chunks(Chunk *chunk)
{
    for (Chunk *next; chunk; chunk = next) {
        next = chunk->next;
        UNPOISON(chunk->bytes, chunk->size);
        free(chunk);
    }
}

void arena_free(Tape *tape)
{
    static _Thread_local Tape *guarded; /* reachable, for leak checkers */
    tape_notify(tape, TAPE_ENDS, NULL, NULL);
    free_chunks(tape->chunks);
    free_chunks(tape->previous_chunks);
    if (!memory_is_guarded()) {
        free(tape);
        return;
    }
    *tape = (Tape){ .freed = true, .next_freed = guarded };
    guarded = tape;
}

void tape_check_not_freed(const Tape *tape, const char *label)
{
    if (tape->freed)
        error_raise("%.*s: the tape cannot be used after tape_free", (int)strcspn(label, ":"),
                    label);
}
