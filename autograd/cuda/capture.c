/* Captures the step of tape_replay as a CUDA graph. */
#include "autograd/internal.h"

/* Before each replay of a step that draws random numbers: its first counter is the generator's. */
static void upload_counter(void *context)
{
    Tape *tape = context;
    device_copy_in(tape->device, tape->replay.random_start->data, &tape->random.counter,
                   sizeof tape->random.counter);
    tape->random.counter += (uint64_t)tape->replay.draws;
    tape->step_start = tape->random;
}

void tape_capture_step(Tape *tape)
{
    Replay *replay = &tape->replay;
    const CaptureFunctions *captures = device_captures(tape->device);
    if (!replay->random_start)
        replay->random_start = device_allocate(tape->device, sizeof(uint64_t));
    Capture *capture = replay->random_start ? captures->begin(tape->device) : NULL;
    if (!capture)
        tape_raise_exhausted(tape, sizeof(uint64_t));
    replay->capturing = true;
    replay->before = tape->random;
    tape->random.counter = 0;
    tape_call_step(tape);
    replay->draws = (int64_t)tape->random.counter;
    if (replay->draws > 0)
        captures->before_replay(tape->device, upload_counter, tape);
    tape_end_step(tape);
    const char *reason = captures->end(tape->device);
    if (reason)
        tape_error(tape, "tape_replay: CUDA could not capture the step: %s", reason);
    replay->capture = capture;
}
