/* The numbers of chapter 12 on memory: what a step of four layers allocates and frees, without and
 * with tape_recompute. */
#include "gpt.h"

enum { LAYERS = 4, MAX_POINTS = 16, MAX_WEIGHTS = 20000 };

/* Of the two steps, at each point: the memory now, and its peak since the point before. */
static struct {
    const char *name;
    size_t now[2], peak[2];
} points[MAX_POINTS];
static int point_count, recomputes; /* 1 in the step with tape_recompute */

static void note(const char *name)
{
    const DeviceMemory memory = device_memory(tape_device(tape));
    points[point_count].name = name;
    points[point_count].now[recomputes] = memory.current;
    points[point_count].peak[recomputes] = memory.peak;
    point_count++;
    device_reset_peak(tape_device(tape));
}

/* Notes the memory now, and when the backward pass is at the same place. */
static void note_backward(Node *node)
{
    const char *const *name = node->attributes;
    note(*name);
}

static void note_twice(Tensor *x, const char *name, const char *backward_name)
{
    note(name);
    tape_record(tape, (Node){ .name = "note",
                              .backward = note_backward,
                              .inputs = { x },
                              .attributes = tape_save(tape, &backward_name, sizeof backward_name),
                              .collective = true }); /* visited although it has no output */
}

static Tensor *apply_layer(Tape *t, Tensor *x, const void *layer)
{
    return nn_transformer_layer_forward(t, layer, x, (AttentionOptions){ 0 });
}

/* The step of micro_gpt.c up to the gradients. */
static void compute_gradients(void)
{
    static const char *const names[] = { "layer 1", "layer 2", "layer 3", "layer 4" };
    static int32_t inputs[BATCH * LENGTH]; /* zeros: only the sizes count */
    point_count = 0;
    device_reset_peak(tape_device(tape));
    note("start");
    Tensor *targets = tape_input_i32(tape, inputs, shape(BATCH, LENGTH));
    Tensor *x = nn_embedding_forward(tape, &symbols, targets);
    x = op_add(tape, x, positions.weight);
    note_twice(x, "embeddings", names[0]);
    for (int i = 0; i < LAYERS; i++) {
        const TransformerLayer *layer = &transformer.layer[i];
        x = recomputes ? tape_recompute(tape, apply_layer, x, layer, sizeof *layer)
                       : apply_layer(tape, x, layer);
        note_twice(x, names[i], i + 1 < LAYERS ? names[i + 1] : "loss");
    }
    x = nn_linear_forward(tape, &head, nn_layernorm_forward(tape, &transformer.norm, x));
    Tensor *loss = op_cross_entropy(tape, x, targets, NULL);
    note("loss");
    tape_backward(tape, loss);
    note("backward");
    tape_reset(tape);
    note("reset");
}

static double kib(size_t bytes)
{
    return (double)bytes / 1024;
}

int main(void)
{
    static Real gradients[2][MAX_WEIGHTS];
    begin(LAYERS);
    const size_t count = (size_t)params_elements(params);
    params_flat_values(params); /* allocates the buffers */
    for (recomputes = 0; recomputes < 2; recomputes++) {
        compute_gradients();
        tensor_read(params_flat_gradients(params), gradients[recomputes]);
        params_zero_gradients(params);
    }
    const bool same = memcmp(gradients[0], gradients[1], sizeof gradients[0]) == 0;
    printf("[start]\n%d weights of 16 bytes: %.0f KiB\n", (int)count, kib(16 * count));
    printf("allocated at the start: %.0f KiB\n", kib(points[0].now[0]));
    printf("[memory]\nKiB             kept       recomputed\n");
    printf("              now   peak     now   peak\n");
    size_t peak[2] = { 0, 0 };
    for (int i = 0; i < point_count; i++) {
        printf("%-10s", points[i].name);
        for (int k = 0; k < 2; k++) {
            printf("  %5.0f  %5.0f", kib(points[i].now[k]), kib(points[i].peak[k]));
            peak[k] = points[i].peak[k] > peak[k] ? points[i].peak[k] : peak[k];
        }
        printf("\n");
    }
    printf("[peak]\nlayer outputs kept: %.0f KiB\n", kib(peak[0]));
    printf("recomputed:         %.0f KiB\n", kib(peak[1]));
    printf("gradients bitwise equal: %s\n", same ? "yes" : "no");
    end();
    return !same;
}
