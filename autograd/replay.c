/* Replaying a step: captured once as a CUDA graph, then launched. */
#include "autograd/internal.h"

/* During a capture the generator counts from 0. */
static void end_capture(Tape *tape)
{
    tape->replay.capturing = false;
    tape->random = tape->replay.before;
}

void tape_end_step(Tape *tape)
{
    Replay *replay = &tape->replay;
    if (replay->running && !tape->errors.failed)
        tape_error(tape, "tape_reset: inside a step of tape_replay, which resets before it");
    replay->running = false;
    if (replay->capturing)
        end_capture(tape);
}

/* Before each replay of a step that draws random numbers: its first counter is the generator's. */
static void upload_counter(void *context)
{
    Tape *tape = context;
    device_copy_in(tape->device, tape->replay.random_start->data, &tape->random.counter,
                   sizeof tape->random.counter);
    tape->random.counter += (uint64_t)tape->replay.draws;
    tape->step_start = tape->random;
}

static void call_step(Tape *tape)
{
    tape->replay.running = true;
    tape->replay.step(tape->replay.context);
    tape->replay.running = false;
    error_leave(&tape->errors); /* errors after the step are not its own */
}

static void capture_step(Tape *tape)
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
    call_step(tape);
    replay->draws = (int64_t)tape->random.counter;
    if (replay->draws > 0)
        captures->before_replay(tape->device, upload_counter, tape);
    end_capture(tape);
    const char *reason = captures->end(tape->device);
    if (reason)
        tape_error(tape, "tape_replay: CUDA could not capture the step: %s", reason);
    replay->capture = capture;
}

void tape_replay(Tape *tape, TapeStep *step, void *context)
{
    tape_check(tape, "tape_replay");
    if (!step)
        tape_error(tape, "tape_replay: step is NULL");
    Replay *replay = &tape->replay;
    const bool again = replay->step == step && replay->context == context && !tape->checks_finite;
    if (!again || !replay->capture) {
        tape_reset(tape);
        replay->step = step;
        replay->context = context;
        error_enter(&tape->errors, "tape_replay");
        if (!again || !device_captures(tape->device)) {
            call_step(tape);
            return;
        }
        capture_step(tape);
    }
    device_captures(tape->device)->replay(replay->capture);
}

int64_t tape_replay_kernels(const Tape *tape)
{
    return tape->replay.capture ? device_captures(tape->device)->kernels(tape->replay.capture) : 0;
}
