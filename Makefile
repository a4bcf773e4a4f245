# make               the library and the examples, under build/
# make copy-task     the main job: a transformer learns to copy (half a minute), with its curve
# make test          all tests;  make sanitize: again under the sanitizers;  make REAL=double test
# make bench         the benchmarks' tables
# make tune          measures which form of attention is best by sizes on this CPU, prints the table
# make figures       time and memory against length, and learning curves, drawn under build/figures/
#                    (PYTHON=an interpreter with PyTorch: beside PyTorch's; DEVICE=cuda)
# make test-cuda-on-host   all tests on "cuda", its kernels run by the CPU: no GPU, no CUDA toolkit;
# make test-cuda-faults    then: that these tests find faults planted in kernels
# make oracle        500 random shapes of every operation against the plain kernels (COUNT=, SEED=)
# make fuzz          readers of files and options, with libFuzzer (FUZZ_SECONDS= each; needs clang)
# make faults        training runs with failing allocations and file operations, and killed (COUNT=)
# make deps          installs the Debian packages that the build needs (DEV=1: those of CI too;
#                    CROSS=1: compilers for ARM and for musl, and an emulator of ARM)
# make one-file      build/tapegrad.h and build/tapegrad.c, the library in two files that you can copy
# make install       PREFIX=/usr/local DESTDIR=; built for ARCH=x86-64-v3 (armv8-a for ARM) by default
# make uninstall     removes what make install with the same PREFIX and DESTDIR has installed
# make format        formats the sources;  make format-check: checks them and the language
# make compile_commands.json   the compilation database, for clangd and other tools
# make help          prints these lines
#
# CC=gcc|clang   REAL=float|double   ARCH=native|x86-64-v3|armv8-a|...   BUILD=directory
# CUDA=yes|no|host   NVCC_ARCHS="80 90"   by default what this machine can run: yes where there are nvcc
# and a GPU, for that GPU (without one: for both of these); host: the emulation
# DEVICE=cpu|cuda: where tests run
# PDL=yes: programmatic dependent launch, for compute capability 9.0 and later; FAST_EXP=yes: hardware
# exponentials where results are stored in bf16 (both no until measured on a GPU)
# ONEDNN=yes|no: whether oneDNN multiplies large matrices; by default where its header is found

OTHER_GOALS := $(filter-out deps,$(MAKECMDGOALS))
ifneq ($(and $(filter deps,$(MAKECMDGOALS)),$(OTHER_GOALS)),)
$(OTHER_GOALS): deps # first the packages, then the rest in a make that finds them
	@$(MAKE) --no-print-directory -j$(shell getconf _NPROCESSORS_ONLN) $@
else ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN)
endif

CC       := $(if $(filter default,$(origin CC)),gcc,$(CC))
CXX      := $(if $(filter default,$(origin CXX)),$(if $(findstring clang,$(CC)),clang++,g++),$(CXX))
REAL     := float
# The compiler's target: another processor than this one needs ARCH, and binutils of its own.
TARGET   := $(shell $(CC) -dumpmachine 2>/dev/null)
PORTABLE := $(if $(filter aarch64% arm64%,$(TARGET)),armv8-a,x86-64-v3)
ARCH     := $(if $(filter $(shell uname -m)-%,$(TARGET)),native,$(PORTABLE))
tool      = $(shell $(CC) -print-prog-name=$(1))
CUDA_HOME := $(firstword $(patsubst %/bin/nvcc,%,$(shell command -v nvcc)) $(wildcard /usr/local/cuda))
NVCC     := $(wildcard $(CUDA_HOME)/bin/nvcc)
# The GPUs here that the kernels run on, by compute capability as nvcc writes it: 90
GPUS     := $(if $(NVCC),$(if $(filter no host,$(CUDA)),,$(filter-out 3% 5% 6% 7%,$(shell \
            nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
            grep -x '[0-9]*[.][0-9]' | tr -d . | sort -nu))))
CUDA     := $(if $(GPUS),yes,no)
BUILD    := build$(if $(filter host,$(CUDA)),-cuda-on-host)$(if $(filter double,$(REAL)),-double)
PREFIX   := /usr/local
VERSION  := $(shell sed -n 's/.*define TAPEGRAD_VERSION "\(.*\)".*/\1/p' tensor/tensor.h)

PACKAGES := gcc g++ libc6-dev pkg-config libdnnl-dev check gnuplot-nox \
            zlib1g-dev libpng-dev libsndfile1-dev libsamplerate0-dev libfftw3-dev
PACKAGES += $(if $(DEV),clang clang-format libomp-dev valgrind gcc-mingw-w64-x86-64 wasi-libc lld \
            libclang-rt-14-dev-wasm32 libc6-dev-i386 lib32gcc-12-dev)
PACKAGES += $(if $(CROSS),gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user musl-tools)
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
            -Werror $(if $(findstring clang,$(CC)),-Wno-pass-failed -Wno-enum-float-conversion)
CFLAGS   := -O3 -g
SANITIZE :=
# No flag changes a value; without errno and traps more loops become vector instructions.
MATH     := -fno-math-errno -fno-trapping-math
COMPILE   = $(CC) -std=gnu11 -march=$(ARCH) $(MATH) -fopenmp -fPIC -fvisibility=hidden \
            -I$(BUILD)/include -I. $(if $(wildcard ops/cpu),-DTAPEGRAD_CPU) $(WARNINGS) $(CFLAGS) $(SANITIZE)
LINK      = $(CC) -fopenmp $(SANITIZE)
# The test that compiles the public headers as C++.
COMPILE_CXX = $(CXX) -std=c++17 -I$(BUILD)/include -I. $(filter-out -Wstrict-prototypes -Wmissing-prototypes,$(WARNINGS)) \
            $(CFLAGS) $(SANITIZE)
# A thread a processor, which waits briefly before it leaves it to others.
THREADS  := OMP_PROC_BIND=true GOMP_SPINCOUNT=1000
# oneDNN is optional. It has no products in double, and none but loops on other processors.
ONEDNN   := $(shell echo 'int main(void) { return 0; }' | $(CC) -include dnnl.h -x c - -ldnnl \
                -o /dev/null 2>/dev/null && echo yes || echo no)
USES_ONEDNN := $(and $(filter yes,$(ONEDNN)),$(filter float,$(REAL)),$(filter x86_64-%,$(TARGET)))
COMPILE  += $(if $(USES_ONEDNN),-DTAPEGRAD_ONEDNN)
LIBS     := $(if $(USES_ONEDNN),-ldnnl) -lm

# CUDA's own sources, compiled by nvcc for these architectures and later ones, or for the CPU.
CUDA_SOURCES := $(shell find tensor autograd ops nn optim -name '*.cu')
NVCC_ARCHS   := $(or $(GPUS),80 90)
NVCC_WARNINGS := -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wshadow
PDL          := no
FAST_EXP     := no
NEWEST_ARCH   = $(lastword $(NVCC_ARCHS))
GENCODE       = $(foreach arch,$(NVCC_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
                -gencode arch=compute_$(NEWEST_ARCH),code=compute_$(NEWEST_ARCH)
ifeq ($(CUDA),yes)
$(if $(NVCC),,$(error CUDA=yes needs nvcc, on PATH or in /usr/local/cuda))
COMPILE      += -DTAPEGRAD_CUDA -isystem $(CUDA_HOME)/include
COMPILE_CUDA  = $(NVCC) -std=c++17 -O3 $(GENCODE) --threads 2 $(NVCC_WARNINGS) -MMD -MP \
                -Xcompiler -fPIC,-fvisibility=hidden -I$(BUILD)/include -I.
LIBS         += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcublas -lcudart -lstdc++
else ifeq ($(CUDA),host)
EMULATION    := tests/cuda_on_host
COMPILE      += -DTAPEGRAD_CUDA -DTAPEGRAD_CUDA_ON_HOST -I$(EMULATION)/include
COMPILE_CUDA  = clang++ -x c++ -std=gnu++17 -march=$(ARCH) -fPIC -fvisibility=hidden -pthread -Wall -Wextra \
                -Wshadow -Wmissing-prototypes -Werror -DTAPEGRAD_CUDA -DTAPEGRAD_CUDA_ON_HOST -I$(EMULATION)/include -I$(BUILD)/include \
                -I. $(MATH) $(CFLAGS) $(SANITIZE) $(FOR_C) -MMD -MP
FOR_C         = $(if $(SANITIZE),-fno-sanitize=vptr -fno-sanitize=function) # these need C++ programs
LIBS         += -lstdc++ -lpthread
CUDA_SOURCES += $(wildcard $(EMULATION)/*.cpp)
else
CUDA_SOURCES :=
endif

HEADERS  := tapegrad.h tensor/tensor.h autograd/tape.h ops/ops.h nn/nn.h optim/optim.h
CONFIG   := $(BUILD)/include/tensor/config.h
SOURCES  := $(shell find tensor autograd ops nn optim -name '*.c')
SOURCES  := $(if $(USES_ONEDNN),$(SOURCES),$(filter-out ops/cpu/products/onednn.c,$(SOURCES)))
SOURCES  := $(if $(filter no,$(CUDA)),$(foreach source,$(SOURCES),$(if $(findstring /cuda/,$(source)),,$(source))),$(SOURCES))
OBJECTS   = $(SOURCES:%.c=$(BUILD)/%.o) $(CUDA_SOURCES:%=$(BUILD)/%.o)
LIBRARY  := $(BUILD)/libtapegrad.a
SHARED   := $(BUILD)/libtapegrad.so.$(VERSION)
SONAME   := libtapegrad.so.$(firstword $(subst ., ,$(VERSION)))
# A file of examples/ is a program, build/examples/NAME; larger programs have directories and become
# build/programs/NAME; shared/ is theirs.
# speech needs libraries that machines without `make deps` lack: then it and its test are left out.
SPEECH   := $(if $(filter deps,$(MAKECMDGOALS)),speech,$(shell echo 'int main(void) { return 0; }' | \
                $(CC) -include sndfile.h -include samplerate.h -include fftw3.h -x c - \
                -lsndfile -lsamplerate -lfftw3 -o /dev/null 2>/dev/null && \
                echo speech))
PROGRAMS := $(addprefix $(BUILD)/programs/,copy_task mnist text $(SPEECH))
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c)) $(PROGRAMS)
PICTURES := $(BUILD)/tests/test_pictures $(BUILD)/tests/test_mnist
FIGURES  := $(BUILD)/bench/figure1 $(BUILD)/bench/training_speed
BENCHES  := $(filter-out $(FIGURES) $(BUILD)/bench/tune,$(patsubst %.c,$(BUILD)/%,$(filter-out bench/common.c bench/figure.c bench/limits.c,$(wildcard bench/*.c))))
TESTS    := $(patsubst %,$(BUILD)/%,$(filter-out $(if $(SPEECH),,tests/test_speech),$(basename $(wildcard tests/test_*.c tests/test_*.cpp))))

ifeq ($(filter deps,$(MAKECMDGOALS)),)
.PHONY: ALWAYS all library one-file test-one-file test-core-alone test test-programs sanitize oracle fuzz faults test-cuda-on-host test-cuda-faults bench bench-programs tune \
        figures copy-task install format format-check clean help uninstall compile_commands.json
.DELETE_ON_ERROR:
.SECONDARY:

all: library $(EXAMPLES)
library: $(LIBRARY) $(SHARED)

# A program compiled for the other Real asks for names that the library lacks: it fails to link.
# Everything depends on this file, which is rewritten when one of these settings or the Makefile
# changes. A build that chooses CUDA by itself then says what it has chosen.
FOR_CUDA := CUDA=$(CUDA)$(if $(filter yes,$(CUDA)), NVCC_ARCHS="$(NVCC_ARCHS)")
CHOICE   := $(FOR_CUDA)$(if $(GPUS),, since there is no $(if $(NVCC),GPU of compute capability 8.0 or later,nvcc))
$(CONFIG): ALWAYS
	@mkdir -p $(@D)
	@{ echo '/* Generated by the build ($(FOR_CUDA)$(if $(USES_ONEDNN),, ONEDNN=no)); installed with the library. */'; \
	   echo 'typedef $(REAL) Real;'; \
	   $(if $(filter yes,$(PDL)),echo '#define TAPEGRAD_PDL';) \
	   $(if $(filter yes,$(FAST_EXP)),echo '#define TAPEGRAD_FAST_EXP';) \
	   if [ $(REAL) = double ]; then echo '#define TAPEGRAD_DOUBLE'; \
	   for name in tape_new params_new device_open device_best; do \
	   echo "#define $$name $${name}_double"; done; fi; } > $@.new
	@if [ $@ -nt Makefile ] && cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; \
	$(if $(filter file,$(origin CUDA)),echo '$(CHOICE); to choose: CUDA=yes|no|host NVCC_ARCHS="80 90"';) fi
ALWAYS:

define COMPILE_C
@mkdir -p $(@D)
@echo "  compile $<"
@$(COMPILE) -MMD -MP -c $< -o $@
endef
$(BUILD)/%.o: %.c $(CONFIG)
	$(COMPILE_C)

# gcc 12 for ARM crashes where it vectorizes a loop with fmax, which only programs have.
$(BUILD)/tests/%.o $(BUILD)/bench/%.o: MATH += $(if $(filter aarch64%,$(TARGET)),-fno-tree-vectorize)

# The objects of a program of several files: build/programs/mnist has them in build/parts/mnist/.
$(BUILD)/parts/%.o: examples/%.c $(CONFIG)
	$(COMPILE_C)

$(BUILD)/%.cu.o: %.cu $(CONFIG)
	@mkdir -p $(@D)
	@echo "  compile $<"
	@$(COMPILE_CUDA) -c $< -o $@

$(BUILD)/tests/%.o: tests/%.cpp $(CONFIG)
	@mkdir -p $(@D)
	@echo "  compile $<"
	@$(COMPILE_CXX) -MMD -MP -c $< -o $@

$(BUILD)/%.cpp.o: %.cpp $(CONFIG)
	@mkdir -p $(@D)
	@echo "  compile $<"
	@$(COMPILE_CUDA) -c $< -o $@

# One object, in which hidden names are local: a program's own `product` then is not ours.
$(LIBRARY): $(OBJECTS)
	@$(call tool,ld) -r $^ -o $(BUILD)/tapegrad.o && $(call tool,objcopy) --localize-hidden $(BUILD)/tapegrad.o
	@rm -f $@ && $(call tool,ar) rcs $@ $(BUILD)/tapegrad.o

$(SHARED): $(OBJECTS)
	@$(LINK) -shared -Wl,-soname,$(SONAME) $^ $(LIBS) -o $@

$(BUILD)/examples/%: $(BUILD)/examples/%.o $(LIBRARY)
	@$(LINK) $^ $(LIBS) -o $@

.SECONDEXPANSION:
PARTS     = $(patsubst examples/%.c,$(BUILD)/parts/%.o,$(wildcard examples/$(1)/*.c examples/shared/*.c))
$(BUILD)/programs/mnist $(PICTURES): LIBS += -lpng -lz
$(BUILD)/programs/speech $(BUILD)/tests/test_speech: LIBS += -lsndfile -lsamplerate -lfftw3
$(sort $(PROGRAMS) $(BUILD)/programs/speech): $(BUILD)/programs/%: $$(call PARTS,%) $(LIBRARY)
	@mkdir -p $(@D)
	@$(LINK) $(filter %.o,$^) $(LIBRARY) $(LIBS) -o $@

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/bench/common.o $(LIBRARY)
	@$(LINK) $^ $(LIBS) -o $@

$(FIGURES): $(BUILD)/bench/figure.o
$(BUILD)/bench/attention $(BUILD)/bench/operations: $(BUILD)/bench/limits.o

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/tests/support.o $(LIBRARY)
	@$(LINK) $^ $(LIBS) $$(pkg-config --libs check) -o $@

$(addprefix $(BUILD)/tests/test_,copy_task mnist options speech text): $(BUILD)/tests/programs.o
$(PICTURES): $(BUILD)/parts/mnist/idx.o $(BUILD)/parts/mnist/image.o
$(BUILD)/tests/test_decode $(BUILD)/tests/test_speech: $(BUILD)/parts/speech/decode.o $(BUILD)/parts/shared/program.o
$(BUILD)/tests/test_speech: $(addprefix $(BUILD)/parts/,speech/features.o speech/data.o speech/model.o speech/stream.o speech/options.o shared/options.o)

$(addprefix $(BUILD)/tests/,test_attention test_attention_options): $(BUILD)/tests/attention_oracle.o
$(BUILD)/tests/test_file $(BUILD)/tests/test_pictures: $(BUILD)/tests/folder.o
$(BUILD)/tests/test_cplusplus: LIBS += -lstdc++

ifeq ($(CUDA),yes)
TESTS += $(BUILD)/tests/test_curand
$(BUILD)/tests/test_curand: $(BUILD)/tests/test_curand.cu.o
	@$(NVCC) $< -o $@
endif

copy-task: $(BUILD)/programs/copy_task
	$(THREADS) $< --log copy_task.csv --plot copy_task.svg

test-programs: $(TESTS) $(EXAMPLES) $(FIGURES) $(BUILD)/bench/attention $(SHARED)
test: test-programs
	@CC='$(CC)' REAL=$(REAL) CUDA=$(CUDA) LIBS='$(LIBS)' $(if $(DEVICE),DEVICE=$(DEVICE)) tests/run $(BUILD) $(LEAVE_OUT)

include tests/checks.mk

bench-programs: $(BENCHES) $(FIGURES)
bench: bench-programs
	@for program in $(BENCHES); do echo "== $$program"; $(THREADS) $$program || exit 1; done

tune: $(BUILD)/bench/tune
	$(THREADS) $<

FIGURE    = --output $(BUILD)/figures/$(1) $(if $(DEVICE),--device $(DEVICE))
figures: $(FIGURES) $(BUILD)/programs/copy_task
	@mkdir -p $(BUILD)/figures
	$(THREADS) $(BUILD)/bench/figure1 $(call FIGURE,figure1) $(if $(PYTHON),--python $(PYTHON))
	$(THREADS) $(BUILD)/bench/training_speed $(call FIGURE,training_speed)
	$(THREADS) bench/figure2 --build $(BUILD) $(call FIGURE,figure2)

# Two files that users copy, as SQLite ships: the core and, unless -DTAPEGRAD_PLAIN, the CPU backend
# without oneDNN.
TREE      = $(shell find tensor autograd ops nn optim -name '*.c' | grep -v /cuda/ | LC_ALL=C sort)
CORE      = $(foreach source,$(TREE),$(if $(findstring /cpu/,$(source)),,$(source)))
HOST_CPU  = $(filter-out $(CORE) ops/cpu/products/onednn.c,$(TREE))
# POSIX's functions where the system has them. A configuration needs not all functions of a header, and
# clang need not vectorize every loop that gcc does.
ONE_FILE  = '\#ifndef _DEFAULT_SOURCE' '\#define _DEFAULT_SOURCE' '\#endif' \
            '\#pragma GCC diagnostic ignored "-Wunused-function"' \
            '\#ifdef __clang__' '\#pragma clang diagnostic ignored "-Wpass-failed"' '\#endif' \
            '\#ifndef TAPEGRAD_PLAIN' '\#define TAPEGRAD_CPU' '\#endif' '\#include "tapegrad.h"' \
            $(CORE) '\#ifdef TAPEGRAD_CPU' $(HOST_CPU) '\#endif'
one-file: $(BUILD)/tapegrad.h $(BUILD)/tapegrad.c
$(BUILD)/tapegrad.h: one_file.awk $(HEADERS) tensor/config.h
	@mkdir -p $(@D)
	@awk -f one_file.awk tapegrad.h > $@
$(BUILD)/tapegrad.c: Makefile one_file.awk $(BUILD)/tapegrad.h $(TREE) $(shell find tensor autograd ops nn optim -name '*.h')
	@awk -v given='$(HEADERS) tensor/config.h' -f one_file.awk $(ONE_FILE) > $@
test-core-alone:
	@CC='$(CC)' tests/core_alone.sh
test-one-file: one-file
	@tests/one_file.sh $(BUILD)

include install.mk

# One entry per source of the library, as this build compiles it, and per program.
DATABASE   = $(SOURCES) $(shell find examples tests bench -name '*.c')
ENTRY      = { "directory": "$(CURDIR)", "file": "$(1)", "command": "$(subst ",\",$(2)) -c $(1)" }
compile_commands.json: $(CONFIG)
	$(file >$@.lines)$(foreach source,$(DATABASE),$(file >>$@.lines,$(call ENTRY,$(source),$(COMPILE))))
	$(foreach source,$(CUDA_SOURCES),$(file >>$@.lines,$(call ENTRY,$(source),$(COMPILE_CUDA))))
	@{ echo '['; sed '$$!s/$$/,/' $@.lines; echo ']'; } > $@ && rm $@.lines

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# Tracked files, and new ones that git does not ignore.
FORMATTED = $$(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')
format:
	clang-format -i $(FORMATTED)
format-check:
	clang-format --dry-run -Werror $(FORMATTED)
	tests/check_language.sh
	tests/check_budgets.sh

clean:
	rm -rf build build-*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
endif

.PHONY: deps
deps:
	@missing=; for package in $(PACKAGES); do dpkg-query -W -f '$${Status}' $$package 2>/dev/null | \
	    grep -q 'ok installed' || missing="$$missing $$package"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ $$(id -u) = 0 ]; then root=; else root=sudo; fi; \
	if ! command -v apt-get >/dev/null || { [ "$$root" ] && ! command -v sudo >/dev/null; }; then \
	    echo "make deps: cannot install packages here (it takes Debian's apt-get, and root or sudo);" \
	        "please install:$$missing" >&2; exit 1; fi; \
	$$root apt-get update -qq && $$root env DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $$missing
