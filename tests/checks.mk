# The checks beyond `make test`: other builds, the emulation of CUDA, random shapes, fuzzing, faults.
.PHONY: check nightly sanitize test-double test-avx2 test-cuda-on-host test-cuda-on-host-double \
        sanitize-cuda-on-host test-cuda-faults oracle oracle-float oracle-double oracle-differences \
        oracle-emulation mutants mutants-sample fuzz faults

# Before a push: what the change since COMMIT concerns, at most about LIMIT=300 seconds.
check:
	+@tests/check_change.sh $(COMMIT)
# The long checks, PART=0 to 12 of them or all.
nightly:
	@tests/nightly.sh $(PART)

# Each other build leaves out what it would only repeat. No build changes these scripts:
SAME      := test_build.sh test_ci.sh test_exported.sh test_results.sh test_version.sh test_gpu_script.sh \
             test_language.sh test_run.sh test_nightly.sh
# Nor do sanitizers or Real change figures, or Real programs; the choice of instructions, installed files,
# pages and processes have nightly parts.
FIGURE_TESTS := test_figures.sh test_goals.sh test_peers.sh
NIGHTLY   := test_install.sh test_instructions.sh test_mpi.sh
# The programs whose tests run kernels: what other vectors, another Real or another compiler can change.
KERNELS := $(addprefix test_,operations vectors elementwise math rows products products_bf16 layout \
           attention attention_options gates decay_gradient softmax_attention visible_pairs random threads layers optim) \
           $(basename $(notdir $(wildcard ext/*/tests/test_*.c)))
SANITIZERS = CFLAGS='-O1 -g -fno-omit-frame-pointer' \
             SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all'
AGAIN    = +@$(MAKE) --no-print-directory ONLY='$(or $(ONLY),$(2))' LEAVE_OUT='$(1)' $(3) test

sanitize:
	$(call AGAIN,$(if $(ONLY),,$(SAME) $(NIGHTLY) $(FIGURE_TESTS)),,BUILD=$(BUILD)-sanitize $(SANITIZERS))
test-double:
	$(call AGAIN,$(SAME) $(NIGHTLY) test_readme.sh $(FIGURE_TESTS) $(TRAINING) test_chunk_plan,,REAL=double)
test-avx2:
	$(call AGAIN,,$(KERNELS),ARCH=x86-64-v3 BUILD=build-x86-64-v3)

# On "cuda" without one, each build with the threads in another order: everything shuffled, in double in
# descending order (nightly), and under clang's sanitizers in ascending order; and a training run in several
# orders. The first leaves out tests of the CPU alone, the others all but kernels'; the sanitizers make the
# slow ones last minutes, and other tests run their kernels.
CPU_ONLY := test_chunk_plan test_decode test_file test_math test_options test_pictures test_random \
            test_instructions.sh test_mpi.sh test_readme.sh $(FIGURE_TESTS)
SLOW     := test_operations test_attention test_attention_options test_lsh_attention test_generation \
            test_generation_state test_optim
HOST      = CUDA=host DEVICE=cuda TAPEGRAD_CUDA_SEED=$(1)
test-cuda-on-host:
	$(call AGAIN,$(SAME) $(CPU_ONLY),,$(call HOST,20))
	+@$(MAKE) --no-print-directory sanitize-cuda-on-host
	@tests/cuda_on_host/orders.sh build-cuda-on-host
test-cuda-on-host-double:
	$(call AGAIN,$(CPU_ONLY),$(KERNELS),$(call HOST,1) REAL=double)
sanitize-cuda-on-host:
	$(call AGAIN,$(CPU_ONLY) $(if $(ONLY),,$(SLOW)),$(KERNELS) test_nccl,$(call HOST,0) CC=clang \
	    BUILD=build-cuda-on-host-sanitize $(SANITIZERS))

# Random shapes of every operation: each device beside the plain kernels, and the plain kernels beside
# finite differences in double; a tenth of the cases on the emulation.
CASES    := $(or $(COUNT),500)
RANDOM    = +@$(MAKE) --no-print-directory CUDA=$(1) $(2) build$(3)/tests/test_operations && \
            SEED=$(SEED) RANDOM_SHAPES=$(or $(5),$(CASES)) TEST=$(4),random_shapes_cover_every_operation build$(3)/tests/test_operations
AS_PLAIN := results_equal_those_of_plain_kernels,gradients_of_one_input_alone
oracle: oracle-float oracle-double oracle-differences oracle-emulation
oracle-float:
	$(call RANDOM,no,BUILD=build,,$(AS_PLAIN))
oracle-double:
	$(call RANDOM,no,REAL=double,-double,$(AS_PLAIN))
oracle-differences: export DEVICE := plain
oracle-differences:
	$(call RANDOM,no,REAL=double,-double,gradients_equal_finite_differences)
oracle-emulation: export DEVICE := cuda
oracle-emulation:
	$(call RANDOM,host,,-cuda-on-host,$(AS_PLAIN),$(shell expr $(CASES) / 10))

# One change of a source at a time, which tests must find: FILES="ops/rows/*" of these, JOBS= at a time; and a
# sample of those that were found before, others for every commit.
mutants:
	@tests/mutants.py $(FILES)
mutants-sample:
	@tests/mutants.py --sample $(or $(COUNT),20)

# Readers of files and options, with clang's libFuzzer; FUZZ_SECONDS= for each of the seven.
FUZZED    = -fsanitize=$(1),address,undefined -fno-sanitize-recover=all
fuzz:
	+@$(MAKE) --no-print-directory CUDA=no CC=clang BUILD=build-fuzz CFLAGS='-O1 -g -fno-omit-frame-pointer' \
	    SANITIZE='$(call FUZZED,fuzzer-no-link)' build-fuzz/tests/fuzz/fuzz
	@tests/fuzz/run.sh build-fuzz $(FUZZ_SECONDS)
$(BUILD)/tests/fuzz/fuzz: $(BUILD)/tests/fuzz/fuzz.o $(LIBRARY) \
    $(addprefix $(BUILD)/parts/,images/idx.o images/cifar10.o copy_task/options.o language_model/vocabulary.o language_model/source.o) \
    $(addprefix $(BUILD)/parts/shared/,options.o program.o gzip/reader.o)
	@clang -fopenmp $(LDFLAGS) $(call FUZZED,fuzzer) -Wl,--wrap=exit $^ $(LIBS) -lz -o $@

# Failing allocations and file operations, killed runs; COUNT= of each; by default 60, and 50 of several
# processes.
faults: $(PROGRAMS) $(BUILD)/bench/sequence_parallel $(BUILD)/tests/faults/savers
	@tests/faults/run.sh $(BUILD) $(or $(COUNT),60) $(SEED)
	@TAPEGRAD_BUILD=$(BUILD) KILLS=$(or $(COUNT),50) CC='$(CC)' LIBS='$(LIBS)' REAL=$(REAL) tests/test_mpi.sh

# Faults that must be found, by the emulation and by tests.
test-cuda-faults:
	+@$(MAKE) --no-print-directory $(call HOST,0) \
	    ONLY='test_rows test_products test_attention test_generation' test-programs
	+@$(MAKE) --no-print-directory $(call HOST,0) CC=clang BUILD=build-cuda-on-host-sanitize $(SANITIZERS) \
	    ONLY=test_layout test-programs
	@tests/cuda_on_host/planted_faults.sh build-cuda-on-host
	+@tests/cuda_on_host/faulty_kernels.sh build-cuda-on-host
