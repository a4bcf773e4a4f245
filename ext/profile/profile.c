/* The observer of a tape that adds up times and bytes by operation.
 *
 * Time. A stack has a frame for each operation that has begun, forward or backward, and for each
 * section. An event that changes the stack takes a stamp; the span from one stamp to the next is
 * the top frame's. When an operation ends, its spans, and those of frames above it, which have
 * checked arguments and never recorded, are added to its row. Spans of other frames are the
 * outside's.
 *
 *     event          op_sample: logits   op_cast: x   op_cast records   op_sample records
 *     stamp          |                   |            |                 |
 *     stack          op_sample           op_sample    op_sample         -
 *                                        op_cast
 *     span of        the outside         op_sample    op_cast           op_sample
 *
 * An operation that returns early, or one made of others, leaves a frame behind, until the next
 * check of its first argument. A frame of the backward pass or a section hides those below.
 *
 * Stamps have a meaning only after the device has reached them, so spans wait in lists: of their
 * frame until it ends, then of a row. When there are STAMPS the device has to catch up.
 *
 * Memory. Events compare the device's peak with the highest so far. Where it has grown, the tape's
 * tensors are those of the peak until the next one is freed, so they are counted before that. */
#include "ext/profile/profile.h"

#include "ext/profile/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { STAMPS = 2048, FRAMES = 64, NAMES = 256, LISTED = 128, NONE = -1 };

typedef enum { FORWARD, BACKWARD, SECTION } Pass;

typedef struct Frame {
    int row;
    Pass pass;
    const char *label; /* of a forward pass: its first argument's */
    const Node *node;  /* of a backward pass */
    double ms;         /* of spans whose stamps are used again */
    int last;          /* its last span that waits, or NONE */
} Frame;

/* From stamp i to stamp i + 1. */
typedef struct Span {
    int next; /* an earlier one of the same frame, or NONE */
    int row;  /* NONE: of the outside, or of an open frame */
    bool backward;
} Span;

typedef struct Profiler {
    TapeProfile result; /* what the program has; the first member */
    TapeObserver observer;
    Tape *tape; /* NULL: freed */
    Device *device;
    bool ended;
    double begin;
    void *stamps;
    int stamp_count;
    Span spans[STAMPS];
    Frame frames[FRAMES];
    int depth;
    ProfileOperation rows[NAMES], sorted[NAMES];
    int row_count;
    /* The row of the operation that made each tensor of the step, by its index. */
    int16_t *makers;
    int64_t maker_count, maker_capacity;
    /* The peak: the number of tensors made before, and whether `groups` lacks it. */
    int peak_row;
    int64_t peak_tensors;
    bool changed;
    ProfileTensors groups[LISTED];
} Profiler;

/* ----------------------------------------------------------------------------------------- rows */
static const char program[] = "", others[] = "(others)";

/* The row of the name that begins the label. Of more names than rows the last has the rest. */
static int find_row(Profiler *p, const char *label)
{
    char name[sizeof p->rows->name];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(label, ":"), label);
    for (int row = 0; row < p->row_count; row++)
        if (!strcmp(p->rows[row].name, name))
            return row;
    if (p->row_count == NAMES)
        return NAMES - 1;
    ProfileOperation *row = &p->rows[p->row_count];
    *row = (ProfileOperation){ .section = false };
    strcpy(row->name, p->row_count == NAMES - 1 ? others : name);
    return p->row_count++;
}

/* ----------------------------------------------------------------------------------------- time */
static Frame *top(Profiler *p)
{
    return p->depth > 0 ? &p->frames[p->depth - 1] : NULL;
}

static void add_ms(Profiler *p, int row, bool backward, double ms)
{
    *(backward ? &p->rows[row].backward_ms : &p->rows[row].forward_ms) += ms;
}

/* Waits for the device; then all stamps may be used again. */
static void use_stamps(Profiler *p)
{
    const ProfileClock *clock = profile_clock(p->device);
    for (int f = 0; f < p->depth; f++) {
        Frame *frame = &p->frames[f];
        for (; frame->last != NONE; frame->last = p->spans[frame->last].next)
            frame->ms += clock->elapsed(p->stamps, frame->last);
    }
    for (int i = 0; i + 1 < p->stamp_count; i++)
        if (p->spans[i].row != NONE)
            add_ms(p, p->spans[i].row, p->spans[i].backward, clock->elapsed(p->stamps, i));
    p->stamp_count = 0;
}

/* The span since the last stamp is the top frame's. */
static void stamp(Profiler *p)
{
    const ProfileClock *clock = profile_clock(p->device);
    clock->stamp(p->stamps, p->stamp_count++);
    if (p->stamp_count > 1) {
        const int span = p->stamp_count - 2;
        p->spans[span] = (Span){ .next = NONE, .row = NONE };
        if (top(p)) {
            p->spans[span].next = top(p)->last;
            top(p)->last = span;
        }
    }
    if (p->stamp_count == STAMPS) {
        use_stamps(p);
        clock->stamp(p->stamps, p->stamp_count++);
    }
}

/* Removes the frame f, which did not end: its spans are those of the frame below, in which it
 * began. */
static void remove_frame(Profiler *p, int f)
{
    const Frame removed = p->frames[f];
    if (f > 0) {
        Frame *below = &p->frames[f - 1];
        below->ms += removed.ms;
        for (int s = removed.last, next; s != NONE; s = next) {
            next = p->spans[s].next;
            p->spans[s].next = below->last;
            below->last = s;
        }
    }
    p->depth--;
    memmove(p->frames + f, p->frames + f + 1, (size_t)(p->depth - f) * sizeof *p->frames);
}

/* Of more frames than there are places the oldest is dropped. */
static void push(Profiler *p, Frame frame)
{
    if (p->depth == FRAMES)
        remove_frame(p, 0);
    frame.last = NONE;
    p->frames[p->depth++] = frame;
}

/* Ends the frame f and those above it, whose spans are its own. */
static void end_frame(Profiler *p, int f)
{
    const Frame *ended = &p->frames[f];
    const bool backward = ended->pass == BACKWARD;
    for (int i = f; i < p->depth; i++) {
        add_ms(p, ended->row, backward, p->frames[i].ms);
        for (int s = p->frames[i].last; s != NONE; s = p->spans[s].next) {
            p->spans[s].row = ended->row;
            p->spans[s].backward = backward;
        }
    }
    p->depth = f;
}

/* The frame of the operation's forward pass, or NONE. */
static int find_forward(const Profiler *p, int row)
{
    for (int f = p->depth - 1; f >= 0 && p->frames[f].pass == FORWARD; f--)
        if (p->frames[f].row == row)
            return f;
    return NONE;
}

static int find_pass(const Profiler *p, Pass pass, const Node *node)
{
    int f = p->depth - 1;
    while (f >= 0 && !(p->frames[f].pass == pass && p->frames[f].node == node))
        f--;
    return f;
}

/* --------------------------------------------------------------------------------------- memory */
/* Whether there is memory for the makers of `count` tensors. */
static bool reserve_makers(Profiler *p, int64_t count)
{
    if (count <= p->maker_capacity)
        return true;
    const int64_t capacity = 2 * count + 1024;
    int16_t *makers = memory_allocate((size_t)capacity * sizeof *makers);
    if (!makers)
        return false;
    if (p->maker_count > 0)
        memcpy(makers, p->makers, (size_t)p->maker_count * sizeof *makers);
    free(p->makers);
    p->makers = makers;
    p->maker_capacity = capacity;
    return true;
}

/* The tensors made since the last call are the row's. */
static void set_makers(Profiler *p, int row)
{
    const int64_t count = tape_mark(p->tape).tensors;
    if (!reserve_makers(p, count))
        tape_error(p->tape, "tape_profile: %s",
                   device_exhausted(p->device, (size_t)count * sizeof *p->makers).text);
    while (p->maker_count < count)
        p->makers[p->maker_count++] = (int16_t)row;
}

/* The row of the frame that runs, or NONE. */
static int top_row(Profiler *p)
{
    return top(p) && top(p)->pass != SECTION ? top(p)->row : NONE;
}

/* Adds a tensor of the peak to the group of those alike; of more groups the last has the rest. */
static void add_live_tensor(void *context, const Tensor *tensor, int64_t index, bool gradient)
{
    Profiler *p = context;
    if (index >= p->peak_tensors)
        return;
    const int maker = index < 0 ? NONE : index < p->maker_count ? p->makers[index] : top_row(p);
    const char *name = index < 0       ? "tape_persistent"
                       : maker == NONE ? program
                                       : p->rows[maker].name;
    int g = 0;
    for (; g < p->result.tensor_count && g < LISTED - 1; g++) {
        const ProfileTensors *group = &p->groups[g];
        if (group->operation == name && group->gradient == gradient &&
            group->type == tensor->type && shape_equal(group->shape, tensor->shape))
            break;
    }
    if (g == p->result.tensor_count) {
        p->groups[g] = (ProfileTensors){ name, gradient, tensor->type, tensor->shape, 0, 0 };
        p->result.tensor_count++;
    }
    if (g == LISTED - 1)
        p->groups[g] = (ProfileTensors){ .operation = others,
                                         .count = p->groups[g].count,
                                         .bytes = p->groups[g].bytes };
    p->groups[g].count++;
    p->groups[g].bytes += (int64_t)tensor->block->size;
    p->result.live_bytes += (int64_t)tensor->block->size;
}

/* What was alive at the peak, if it is not known yet: called before the tape frees tensors. */
static void list_live(Profiler *p)
{
    if (!p->changed)
        return;
    p->changed = false;
    p->result.tensor_count = 0;
    p->result.live_bytes = 0;
    tape_each_tensor(p->tape, add_live_tensor, p);
}

/* The operation that runs, or has just recorded, has reached a new peak if there is one. */
static void check_peak(Profiler *p, int row, bool backward)
{
    const int64_t peak = (int64_t)device_memory(p->device).peak;
    if (peak <= p->result.peak_bytes)
        return;
    p->result.peak_bytes = peak;
    p->peak_row = row;
    p->result.peak_backward = backward;
    p->peak_tensors = tape_mark(p->tape).tensors;
    p->changed = true;
}

static void check_top(Profiler *p)
{
    check_peak(p, top_row(p), top(p) && top(p)->pass == BACKWARD);
}

/* --------------------------------------------------------------------------------------- events */
static void begin_forward(Profiler *p, const char *label)
{
    const int row = find_row(p, label), running = find_forward(p, row);
    check_top(p);
    set_makers(p, top_row(p));
    if (running != NONE && strcmp(label, p->frames[running].label))
        return; /* another argument */
    stamp(p);
    if (running != NONE)
        remove_frame(p, running); /* an earlier call, which did not record */
    push(p, (Frame){ .row = row, .pass = FORWARD, .label = label });
}

static bool tensor_requires(const Tensor *tensor)
{
    return tensor && (tensor->base ? tensor->base : tensor)->requires_grad;
}

/* Whether tape_record will keep the node, and its saved tensors. */
static bool is_kept(const Tape *tape, const Node *node)
{
    bool required = false;
    for (int i = 0; i < NODE_INPUTS; i++)
        required |= tensor_requires(node->inputs[i]);
    for (int i = 0; i < node->more_count; i++)
        required |= tensor_requires(node->more_inputs[i]);
    return required && tape_is_recording(tape);
}

static void end_forward(Profiler *p, const Node *node)
{
    stamp(p);
    const int row = find_row(p, node->name), running = find_forward(p, row);
    set_makers(p, row);
    check_peak(p, row, false);
    if (running != NONE)
        end_frame(p, running);
    ProfileOperation *operation = &p->rows[row];
    operation->calls++;
    for (int i = 0; i < NODE_OUTPUTS; i++)
        if (node->outputs[i] && !node->outputs[i]->base)
            operation->result_bytes += (int64_t)tensor_bytes(node->outputs[i]);
    const bool kept = is_kept(p->tape, node);
    for (int i = 0; i < NODE_SAVED; i++)
        if (kept && node->saved[i])
            operation->saved_bytes += (int64_t)tensor_bytes(node->saved[i]);
        else if (node->saved[i])
            list_live(p); /* tape_record frees it */
}

/* As the tape decides whether it calls the backward function. */
static bool is_reached(const Node *node)
{
    bool reached = node->collective;
    for (int i = 0; i < NODE_OUTPUTS; i++)
        reached |= tape_upstream(node, i) != NULL;
    return reached;
}

static void begin_backward(Profiler *p, const Node *node)
{
    if (!is_reached(node))
        return;
    check_top(p);
    set_makers(p, top_row(p));
    stamp(p);
    push(p, (Frame){ .row = find_row(p, node->name), .pass = BACKWARD, .node = node });
}

static void before_free(Profiler *p, const Node *node)
{
    const int running = node ? find_pass(p, BACKWARD, node) : NONE;
    if (running != NONE) {
        stamp(p);
        const int row = p->frames[running].row;
        set_makers(p, row);
        check_peak(p, row, true);
        p->rows[row].backward_calls++;
        end_frame(p, running);
    } else {
        check_top(p);
    }
    list_live(p);
}

/* An error leaves sections by longjmp, too. */
static void end_step(Profiler *p, bool failed)
{
    check_top(p);
    list_live(p);
    int sections = 0;
    while (!failed && sections < p->depth && p->frames[sections].pass == SECTION)
        sections++;
    p->depth = sections;
    p->maker_count = 0;
}

static void observe(void *context, TapeEvent event, const char *label, const Node *node)
{
    Profiler *p = context;
    if (event == TAPE_USES)
        begin_forward(p, label);
    else if (event == TAPE_RECORDS)
        end_forward(p, node);
    else if (event == TAPE_BACKWARD)
        begin_backward(p, node);
    else if (event == TAPE_FREES)
        before_free(p, node);
    else if (event == TAPE_RESETS)
        end_step(p, label != NULL);
    else if (event == TAPE_ENDS)
        p->tape = NULL;
}

/* -------------------------------------------------------------------- for programs: begin, end */
TapeProfile *tape_profile_begin(Tape *tape)
{
    static const char name[] = "tape_profile_begin";
    if (tape_is_observed(tape, name))
        error_raise("%s: the tape has a profile already, expected one at a time", name);
    Device *device = tape_device(tape);
    if (device_is_capturing(device))
        error_raise("%s: within a captured step of tape_replay, expected before it", name);
    Profiler *p = memory_allocate(sizeof *p);
    if (!p)
        error_raise("%s: %s", name, device_exhausted(device, sizeof *p).text);
    *p = (Profiler){ .observer = { observe, p },
                     .tape = tape,
                     .device = device,
                     .peak_row = NONE,
                     .changed = true };
    p->stamps = profile_clock(device)->open(STAMPS);
    if (!p->stamps || !reserve_makers(p, tape_mark(tape).tensors)) {
        tape_profile_free(&p->result);
        error_raise("%s: %s", name, device_exhausted(device, STAMPS * sizeof(double)).text);
    }
    device_wait(device);
    device_reset_peak(device);
    p->result.peak_bytes = (int64_t)device_memory(device).peak;
    p->peak_tensors = tape_mark(tape).tensors;
    set_makers(p, NONE);
    tape_observe(tape, &p->observer);
    p->begin = profile_now();
    stamp(p);
    return &p->result;
}

static int by_time(const void *a, const void *b)
{
    const ProfileOperation *x = a, *y = b;
    const double difference = x->forward_ms + x->backward_ms - y->forward_ms - y->backward_ms;
    return difference < 0 ? 1 : difference > 0 ? -1 : strcmp(x->name, y->name);
}

static int by_bytes(const void *a, const void *b)
{
    const ProfileTensors *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->operation, y->operation);
}

static void summarize(Profiler *p)
{
    TapeProfile *result = &p->result;
    result->outside_ms = result->milliseconds;
    for (int row = 0; row < p->row_count; row++) {
        const ProfileOperation *operation = &p->rows[row];
        if (operation->calls + operation->backward_calls == 0)
            continue; /* it only made tensors, or checked arguments of others */
        p->sorted[result->operation_count++] = *operation;
        result->outside_ms -= operation->forward_ms + operation->backward_ms;
    }
    if (result->outside_ms < 0) /* two clocks */
        result->outside_ms = 0;
    qsort(p->sorted, (size_t)result->operation_count, sizeof *p->sorted, by_time);
    qsort(p->groups, (size_t)result->tensor_count, sizeof *p->groups, by_bytes);
    result->operations = p->sorted;
    result->tensors = p->groups;
    result->peak_operation = p->peak_row == NONE ? program : p->rows[p->peak_row].name;
}

void tape_profile_end(TapeProfile *profile)
{
    static const char name[] = "tape_profile_end";
    error_need(name, "the profile", profile);
    Profiler *p = (Profiler *)profile;
    if (p->ended)
        error_raise("%s: the profile has ended already", name);
    if (!p->tape)
        error_raise("%s: the tape was freed before its profile ended", name);
    tape_observe(p->tape, NULL);
    p->ended = true;
    check_top(p);
    list_live(p);
    stamp(p);
    device_wait(p->device);
    profile->milliseconds = profile_now() - p->begin;
    use_stamps(p);
    summarize(p);
}

void tape_profile_free(TapeProfile *profile)
{
    Profiler *p = (Profiler *)profile;
    if (!p)
        return;
    if (p->tape && !p->ended)
        tape_observe(p->tape, NULL);
    if (p->stamps)
        profile_clock(p->device)->close(p->stamps);
    free(p->makers);
    free(p);
}

void tape_profile_enter(TapeProfile *profile, const char *name)
{
    Profiler *p = (Profiler *)profile;
    if (!p || p->ended)
        return;
    error_need("tape_profile_enter", "the name", name);
    const int row = find_row(p, name);
    p->rows[row].section = true;
    stamp(p);
    push(p, (Frame){ .row = row, .pass = SECTION });
}

void tape_profile_leave(TapeProfile *profile)
{
    Profiler *p = (Profiler *)profile;
    if (!p || p->ended)
        return;
    stamp(p);
    const int section = find_pass(p, SECTION, NULL);
    if (section == NONE)
        error_raise("tape_profile_leave: no section was entered; see tape_profile_enter");
    p->rows[p->frames[section].row].calls++;
    end_frame(p, section);
}
