# The checks beyond `make test`: sanitizers, the emulation of CUDA, random shapes, fuzzing, faults.
.PHONY: sanitize test-cuda-on-host test-cuda-faults oracle fuzz faults
sanitize:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)-sanitize CFLAGS='-O1 -g -fno-omit-frame-pointer' \
	    SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all' test

# On "cuda" without one, each round with the threads in another order: everything shuffled, in double
# in descending order, and in ascending order under the sanitizers (clang's) without the slow ones,
# whose kernels other tests run; then a training run in several orders. Rounds after the first leave
# out runs of programs and tests of the CPU alone.
ON_HOST  := $(MAKE) --no-print-directory CUDA=host DEVICE=cuda
SAME     := test_build.sh test_gpu_script.sh test_language.sh # in every build
RUNS_PROGRAMS := test_copy_task test_images test_language_model test_options test_programs test_speech $(notdir $(wildcard tests/test_*.sh))
CPU_ONLY := test_chunk_plan test_decode test_file test_math test_options test_pictures test_random \
            test_figures.sh test_goals.sh test_instructions.sh test_mpi.sh test_peers.sh test_readme.sh
SLOW     := test_operations test_attention test_attention_options test_lsh_attention test_cuda test_generation \
            test_recovery test_replay test_checkpoint test_optim
test-cuda-on-host:
	+@TAPEGRAD_CUDA_SEED=20 $(ON_HOST) LEAVE_OUT='$(SAME) $(CPU_ONLY)' test
	+@TAPEGRAD_CUDA_SEED=1 $(ON_HOST) LEAVE_OUT='$(RUNS_PROGRAMS) $(CPU_ONLY)' REAL=double test
	+@$(ON_HOST) LEAVE_OUT='$(RUNS_PROGRAMS) $(CPU_ONLY) $(SLOW)' CC=clang BUILD=build-cuda-on-host-sanitize \
	    CFLAGS='-O1 -g -fno-omit-frame-pointer' \
	    SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all' test
	@tests/cuda_on_host/orders.sh build-cuda-on-host

# Random shapes of every operation: each device beside the plain kernels, and the plain kernels beside
# finite differences in double; a tenth of the cases on the emulation.
CASES    := $(or $(COUNT),500)
RANDOM    = @$(MAKE) --no-print-directory CUDA=$(1) $(2) build$(3)/tests/test_operations
SHAPES    = SEED=$(SEED) RANDOM_SHAPES=
AS_PLAIN := TEST=results_equal_those_of_plain_kernels
oracle:
	+$(call RANDOM,no,BUILD=build) && $(AS_PLAIN) $(SHAPES)$(CASES) build/tests/test_operations
	+$(call RANDOM,no,REAL=double,-double) && $(AS_PLAIN) $(SHAPES)$(CASES) build-double/tests/test_operations
	+DEVICE=plain TEST=gradients_equal_finite_differences $(SHAPES)$(CASES) build-double/tests/test_operations
	+$(call RANDOM,host,,-cuda-on-host) && DEVICE=cuda $(AS_PLAIN) \
	    $(SHAPES)$$(($(CASES) / 10)) build-cuda-on-host/tests/test_operations

# Readers of files and options, with clang's libFuzzer; FUZZ_SECONDS= for each of the seven.
FUZZED    = -fsanitize=$(1),address,undefined -fno-sanitize-recover=all
fuzz:
	+@$(MAKE) --no-print-directory CUDA=no CC=clang BUILD=build-fuzz CFLAGS='-O1 -g -fno-omit-frame-pointer' \
	    SANITIZE='$(call FUZZED,fuzzer-no-link)' build-fuzz/tests/fuzz/fuzz
	@tests/fuzz/run.sh build-fuzz $(FUZZ_SECONDS)
$(BUILD)/tests/fuzz/fuzz: $(BUILD)/tests/fuzz/fuzz.o $(LIBRARY) \
    $(addprefix $(BUILD)/parts/,images/idx.o images/cifar10.o copy_task/options.o language_model/vocabulary.o language_model/source.o) \
    $(addprefix $(BUILD)/parts/shared/,options.o program.o gzip/reader.o)
	@clang -fopenmp $(call FUZZED,fuzzer) -Wl,--wrap=exit $^ $(LIBS) -lz -o $@

# Failing allocations and file operations, killed runs; COUNT= of each; by default 60, and 50 of several
# processes.
faults: $(PROGRAMS) $(BUILD)/bench/sequence_parallel $(BUILD)/tests/faults/savers
	@tests/faults/run.sh $(BUILD) $(or $(COUNT),60) $(SEED)
	@TAPEGRAD_BUILD=$(BUILD) KILLS=$(or $(COUNT),50) CC='$(CC)' LIBS='$(LIBS)' REAL=$(REAL) tests/test_mpi.sh

# Faults that must be found, by the emulation and by the tests that test-cuda-on-host has built.
test-cuda-faults:
	@tests/cuda_on_host/planted_faults.sh build-cuda-on-host
	+@tests/cuda_on_host/faulty_kernels.sh build-cuda-on-host
