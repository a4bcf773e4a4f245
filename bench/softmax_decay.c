/* Causal softmax attention with a decay beside the same without: milliseconds of the processor per
 * call, which a busy machine's other programs change less than wall time. The two alternate. */
#include "bench/common.h"

#include <time.h>

enum { HEADS = 4, HEAD_DIM = 64, ROUNDS = 9, WITHOUT = 0, WITH = 1 };

static double processor_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static double time_call(Tape *tape, Tensor *const *x, bool decay, bool backward)
{
    const double start = processor_ms();
    Tensor *out = op_causal_softmax_attention(
        tape, x[0], x[1], x[2], (SoftmaxAttentionOptions){ .log_decay = decay ? x[3] : NULL });
    if (backward)
        tape_backward_from(tape, out, out);
    const double ms = processor_ms() - start;
    tape_reset(tape);
    return ms;
}

static void measure(BenchOptions *options, int64_t N)
{
    Tape *tape = bench_tape(options);
    Tensor *x[4], *normal = tape_persistent_variable(tape, TENSOR_REAL, shape(1, N, HEADS));
    for (int i = 0; i < 3; i++) {
        x[i] = tape_persistent_variable(tape, TENSOR_REAL, shape(1, N, HEADS, HEAD_DIM));
        bench_fill(x[i], (uint64_t)i);
    }
    x[3] = tape_persistent_variable(tape, TENSOR_REAL, normal->shape);
    bench_fill(normal, 3);
    tape_set_recording(tape, false);
    Real host[8192 * HEADS];
    tensor_read(op_scale(tape, op_softplus(tape, normal), -0.1), host);
    tensor_write(x[3], host);
    tape_set_recording(tape, true);
    tape_reset(tape);
    printf("%6lld", (long long)N);
    for (int backward = 0; backward < 2; backward++) {
        double ms[2][ROUNDS];
        for (int round = 0; round < ROUNDS; round++)
            for (int decay = WITHOUT; decay <= WITH; decay++)
                ms[decay][round] = time_call(tape, x, decay, backward);
        const Timing without = bench_timing(ms[WITHOUT], ROUNDS);
        const Timing with = bench_timing(ms[WITH], ROUNDS);
        printf("  %9.2f %9.2f %6.3f", without.median, with.median, with.median / without.median);
        bench_record(options, "\"N\": %lld, \"backward\": %d, \"ms\": %.5g, \"ms_decay\": %.5g",
                     (long long)N, backward, without.median, with.median);
    }
    printf("\n");
    fflush(stdout);
    tape_free(tape);
}

int main(int argc, char **argv)
{
    BenchOptions options = bench_begin(argc, argv, "the cost of a decay in softmax attention");
    if (device_is_cuda(options.device)) {
        fprintf(stderr, "--device is %s, expected plain or cpu: CPU time is measured\n",
                device_name(options.device));
        return 2;
    }
    printf("causal softmax attention, B=1 H=%d D=M=%d, %s; ms of CPU time without and with a "
           "decay, and their ratio\n     N  forward                       forward+backward\n",
           HEADS, HEAD_DIM, bench_where(&options).text);
    for (int64_t N = 1024; N <= 8192; N *= 2)
        measure(&options, N);
    bench_end(&options);
    return 0;
}
