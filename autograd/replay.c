/* Replaying a step: captured once as a CUDA graph, then launched. */
#include "autograd/internal.h"

#ifndef TAPEGRAD_CUDA /* then no device has captures */
#define tape_capture_step(tape) ((void)0)
#endif

void tape_end_step(Tape *tape)
{
    Replay *replay = &tape->replay;
    if (replay->running && !tape->errors.failed)
        tape_error(tape, "tape_reset: inside a step of tape_replay, which resets before it");
    if (replay->capturing) /* during a capture the generator counts from 0 */
        tape->random = replay->before;
    replay->running = replay->capturing = false;
}

void tape_call_step(Tape *tape)
{
    tape->replay.running = true;
    tape->replay.step(tape->replay.context);
    tape->replay.running = false;
    error_leave(&tape->errors); /* errors after the step are not its own */
}

void tape_replay(Tape *tape, TapeStep *step, void *context)
{
    tape_check(tape, "tape_replay");
    if (!step)
        tape_error(tape, "tape_replay: step is NULL");
    Replay *replay = &tape->replay;
    const bool again = replay->step == step && replay->context == context && !tape->checks_finite &&
                       !tape->observer && !tape->errors.failed;
    if (!again || !replay->capture) {
        tape_reset(tape);
        replay->step = step;
        replay->context = context;
        error_enter(&tape->errors, "tape_replay");
        if (!again || !device_captures(tape->device)) {
            tape_call_step(tape);
            return;
        }
        tape_capture_step(tape);
    }
    device_captures(tape->device)->replay(replay->capture);
    error_leave(&tape->errors);
}

int64_t tape_replay_kernels(const Tape *tape)
{
    return tape->replay.capture ? device_captures(tape->device)->kernels(tape->replay.capture) : 0;
}
