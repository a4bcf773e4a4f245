/* examples/speech: its features, its data, and the program run as a user runs it, on recordings
 * that the test writes. */
#include "examples/speech/data.h"
#include "tests/programs.h"

#include <math.h>
#include <signal.h>
#include <sndfile.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------- features */

TEST(features_equal_the_reference)
{
    enum { SAMPLES = 4000, FRAMES = 48 };
    TensorFile *file = tensor_file_open("tests/data/log_mel.safetensors");
    ck_assert_msg(file != NULL, "%s", tapegrad_error());
    Real *wave = malloc(SAMPLES * sizeof *wave), expected[FRAMES * FILTERS], out[FRAMES * FILTERS];
    ck_assert(tensor_file_read(file, "wave", shape(SAMPLES), wave));
    ck_assert(tensor_file_read(file, "out", shape(FRAMES, FILTERS), expected));
    ck_assert_int_eq(frame_count(SAMPLES), FRAMES);
    FilterBank *bank = filter_bank_new();
    log_mel(bank, wave, SAMPLES, out);
    assert_close(out, expected, FRAMES * FILTERS, sizeof(Real) == 8 ? 1e-12 : 1e-6);
    filter_bank_free(bank);
    tensor_file_close(file);
    free(wave);
}
int main(void)
{
    return run_program_tests("speech", NULL);
}
