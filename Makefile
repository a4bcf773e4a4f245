# make               the library and the examples, under build/
# make copy-task     the main job: a transformer learns to copy (a minute or two), with its curve
# make test          all tests;  make sanitize: again under the sanitizers;  make test-double, test-avx2
# make check         before a push: what the change since COMMIT= concerns, in float, in double, under the
#                    sanitizers of gcc and clang, and on the emulated CUDA
# make bench         the benchmarks' tables
# make tune          measures which form of attention is best by sizes on this CPU, prints the table
# make figures       time and memory against length, time against chunk size, and learning curves, drawn
#                    under build/figures/
#                    (PYTHON=an interpreter with PyTorch: beside PyTorch's; DEVICE=cuda)
# make test-cuda-on-host   all tests on "cuda", its kernels run by the CPU: no GPU, no CUDA toolkit;
# make test-cuda-faults    then: that these tests find faults planted in kernels
# make nightly       the long checks, in thirteen parts (PART=0 to 12), of which CI runs one per run:
# make oracle        500 random shapes of every operation against the plain kernels (COUNT=, SEED=)
# make mutants       one change of a definition or kernel at a time, which the tests must find (FILES=)
# make fuzz          readers of files and options, with libFuzzer (FUZZ_SECONDS= each; needs clang)
# make faults        training runs with failing allocations and file operations, and killed (COUNT=)
# make book          the book on gradients, under build/book/; make test-book (PAGES=pages: in Chromium too)
# make man           pages for man, under build/man/: tapegrad(7) and the programs' (needs pandoc)
# make deps          installs the Debian packages that the build needs (DEV=1: those of CI too;
#                    BOOK=yes: what the book needs; BOOK=pages: Chromium too; RELEASE=yes: what make dist and its tests need; MPI=yes: Open MPI; CROSS=1: compilers for ARM and for musl, and an emulator of ARM)
# make one-file      build/tapegrad.h and build/tapegrad.c, the library in two files that you can copy
# make install       PREFIX=/usr/local LIBDIR=PREFIX/lib INCLUDEDIR=PREFIX/include DESTDIR=; built for
#                    ARCH=x86-64-v3 (armv8-a for ARM) by default
# make install-programs   the programs, as PREFIX/bin/tapegrad-copy-task and others
# make uninstall     removes what both with the same variables have installed
# make dist          what is published of a version, under build/dist/: archives and their checksums
# make format        formats the sources;  make format-check: checks them and the language
# make compile_commands.json   the compilation database, for clangd and other tools
# make path          README's reading path, by the lines of today
# make help          prints these lines
#
# CC=gcc|clang   REAL=float|double   ARCH=native|x86-64-v3|armv8-a|...   BUILD=directory
# CFLAGS CPPFLAGS LDFLAGS AR LD NM OBJCOPY INSTALL: as usual; what the library needs is added
# CUDA=yes|no|host   NVCC_ARCHS="80 90"   by default what this machine can run: yes where there are nvcc
# and a GPU, for that GPU (without one: for both of these); host: the emulation
# DEVICE=cpu|cuda: where tests run
# PDL=yes: programmatic dependent launch, for compute capability 9.0 and later (no until measured)
# WERROR=yes, as CI sets it: warnings are errors
# MPI=yes|no: whether programs train in several processes; by default where mpicc is found (MPICC=)
# NCCL=yes|no: whether these exchange between GPUs by NCCL; by default where its header is found
# ONEDNN=yes|no: whether oneDNN multiplies large matrices; by default where its header is found
# LINKAGE=static|shared: whether the programs contain the library, or load it

ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN)
endif
ifneq ($(filter deps,$(MAKECMDGOALS)),)
include deps.mk # the packages; then a make that finds them has the other goals
else

# ------------------------------------------------------------------------- the machine and the compiler
CC       := $(if $(filter default,$(origin CC)),gcc,$(CC))
CXX      := $(if $(filter default,$(origin CXX)),$(if $(findstring clang,$(CC)),clang++,g++),$(CXX))
REAL     := float
$(if $(filter float double,$(REAL)),,$(error REAL=$(REAL), expected float or double))
# The compiler's target: another processor than this one needs ARCH, and binutils of its own.
TARGET   := $(shell $(CC) -dumpmachine 2>/dev/null)
PORTABLE := $(if $(filter aarch64% arm64%,$(TARGET)),armv8-a,x86-64-v3)
NATIVE   := $(filter $(shell uname -m)-%,$(TARGET))
ARCH     := $(if $(NATIVE),native,$(PORTABLE))
# The compiler's own tools, unless they are chosen.
tool      = $(if $(filter default undefined,$(origin $(2))),$(shell $(CC) -print-prog-name=$(1)),$($(2)))
AR       := $(call tool,ar,AR)
LD       := $(call tool,ld,LD)
NM       := $(call tool,nm,NM)
OBJCOPY  := $(call tool,objcopy,OBJCOPY)
finds     = $(shell $(CC) -E $(addprefix -include ,$(1)) -x c /dev/null >/dev/null 2>&1 && echo yes)
# oneDNN is optional. It has no products in double, and none but loops on other processors.
ONEDNN   := $(or $(call finds,dnnl.h),no)
USES_ONEDNN := $(and $(filter yes,$(ONEDNN)),$(filter float,$(REAL)),$(filter x86_64-%,$(TARGET)))
# MPI is optional. What uses it is compiled and linked by mpicc, which calls our compiler.
MPICC    ?= mpicc
MPI      := $(if $(and $(NATIVE),$(shell command -v $(MPICC))),yes,no)
MPI_CC   := OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC)
# speech needs libraries that machines without `make deps` lack: then it and its test are left out.
SPEECH   := $(if $(and $(NATIVE),$(call finds,sndfile.h samplerate.h fftw3.h)),speech)

# Directories are words of commands, some of which remove files.
SHELL_SIGNS := ' " ` \ & | ; < > ( ) * ? [ ] { } ! \#
plain     = $(and $(filter 1,$(words x$(1)x)),$(if $(strip $(foreach sign,$(SHELL_SIGNS),$(findstring $(sign),$(1)))),,yes))

# ------------------------------------------------------------------------------------ sources and flags
MODULES  := tensor autograd ops nn optim distributed $(wildcard ext)
HEADERS  := tapegrad.h tensor/tensor.h autograd/tape.h ops/ops.h nn/nn.h optim/optim.h \
            distributed/distributed.h $(wildcard $(foreach name,$(notdir $(wildcard ext/*)),ext/$(name)/$(name).h))
VERSION  := $(shell sed -n 's/.*define TAPEGRAD_VERSION "\(.*\)".*/\1/p' tensor/tensor.h)
include cuda.mk # CUDA, CUDA_SOURCES, COMPILE_CUDA
BUILD    := build$(if $(filter host,$(CUDA)),-cuda-on-host)$(if $(filter double,$(REAL)),-double)
$(if $(and $(BUILD),$(call plain,$(BUILD))),,$(error BUILD=$(BUILD), expected a path without blanks or signs of the shell))
SOURCES  := $(shell find $(MODULES) -name '*.c' -not -path '*/mpi/*' -not -path '*/tests/*' \
            $(if $(filter no,$(CUDA)),-not -path '*/cuda/*') \
            $(if $(USES_ONEDNN),,-not -name onednn.c))
OBJECTS  := $(SOURCES:%.c=$(BUILD)/%.o) $(CUDA_SOURCES:%=$(BUILD)/%.o)
LIBRARY  := $(BUILD)/libtapegrad.a
MPI_LIBRARY := $(if $(filter yes,$(MPI)),$(BUILD)/libtapegrad_mpi.a)
# NCCL is optional. CUDA=host emulates it for tests, whose ranks are threads.
NCCL     := $(if $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h),yes,no)
USES_NCCL := $(and $(filter yes,$(NCCL)),$(filter yes,$(CUDA)),$(filter yes,$(MPI)))
NCCL_LIBS := $(if $(USES_NCCL),-L$(CUDA_HOME)/lib64 -lnccl)
SHARED   := $(BUILD)/libtapegrad.so.$(VERSION)
LINKAGE  := static
$(if $(filter static shared,$(LINKAGE)),,$(error LINKAGE=$(LINKAGE), expected static or shared))
# Before 1.0 each 0.Y may change functions.
SONAME   := libtapegrad.so.$(if $(filter 0.%,$(VERSION)),$(basename $(VERSION)),$(firstword $(subst ., ,$(VERSION))))

# Newer compilers have new warnings, which should not stop a user's build.
WERROR   ?= no
STRICT   := $(if $(filter yes,$(WERROR)),-Werror)
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
            -Werror=incompatible-pointer-types $(STRICT) $(if $(findstring clang,$(CC)),-Wcomma -Wno-pass-failed -Wno-enum-float-conversion)
CFLAGS   := -O3 -g
SANITIZE :=
# gcc 12.2, which Debian 12 has, stores (Window){ 2, 2, 0, 0 } as { 2, 2, 2, 2 } with AVX-512.
GCC       = $(shell $(CC) -dumpfullversion 2>/dev/null)
MOVES    := $(if $(and $(filter x86_64-%,$(TARGET)),$(filter 12.0.% 12.1.% 12.2.%,$(GCC))),-mmove-max=128 -mstore-max=128)
# No flag changes a value; without errno and traps more loops become vector instructions.
MATH     := -fno-math-errno -fno-trapping-math
DEFINES  := $(if $(filter double,$(REAL)),-DTAPEGRAD_DOUBLE) $(if $(wildcard ops/cpu),-DTAPEGRAD_CPU) \
            $(if $(wildcard ext),,-DTAPEGRAD_NUCLEUS) \
            $(if $(USES_ONEDNN),-DTAPEGRAD_ONEDNN) $(CUDA_DEFINES)
COMPILE   = $(CC) -std=gnu11 -march=$(ARCH) $(MOVES) $(MATH) -fopenmp -fPIC -fvisibility=hidden -I. $(DEFINES) \
            $(CUDA_INCLUDES) $(WARNINGS) $(CPPFLAGS) $(CFLAGS) $(SANITIZE)
# The test that compiles the public headers as C++.
COMPILE_CXX = $(CXX) -std=c++17 -I. $(DEFINES) $(CUDA_INCLUDES) \
            $(filter-out -Wstrict-prototypes -Wmissing-prototypes -Werror=incompatible-pointer-types,$(WARNINGS)) $(CPPFLAGS) $(CFLAGS) $(SANITIZE)
LINK      = $(CC) -fopenmp $(SANITIZE) $(LDFLAGS)
LIBS     := $(if $(USES_ONEDNN),-ldnnl) -lm $(CUDA_LIBS)
# A thread a processor, which waits briefly before it leaves it to others.
THREADS  := OMP_PROC_BIND=true GOMP_SPINCOUNT=1000

# A file of examples/ is a program, build/examples/NAME; larger programs have directories and become
# build/programs/NAME; examples/shared/ is theirs, and shared/gzip/ of two.
PROGRAMS := $(addprefix $(BUILD)/programs/,copy_task images language_model recall $(SPEECH))
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c)) $(PROGRAMS)
EXTENSION_TESTS := $(wildcard ext/*/tests/test_*.c)
TESTS    := $(patsubst %,$(BUILD)/%,$(filter-out $(if $(SPEECH),,tests/test_speech) \
            $(if $(filter host,$(CUDA)),,tests/test_nccl), \
            $(basename $(wildcard tests/test_*.c tests/test_*.cpp)) \
            $(addprefix tests/,$(basename $(notdir $(EXTENSION_TESTS)))))) \
            $(if $(filter yes,$(CUDA)),$(BUILD)/tests/test_curand)
# ONLY="test_rows test_mpi.sh" builds and runs these tests alone; LEAVE_OUT= all but those it names. Programs
# are built where a test runs some.
CHOSEN    = $(filter-out $(LEAVE_OUT:%=$(BUILD)/tests/%),$(if $(ONLY),$(filter $(ONLY:%=$(BUILD)/tests/%),$(1)),$(1)))
TESTS    := $(call CHOSEN,$(TESTS))
TRAINING := $(addprefix test_,conversion copy_task export images language_model options programs speech vocabulary)
RUNS_PROGRAMS := $(TRAINING) $(notdir $(wildcard tests/test_*.sh))
WITH_PROGRAMS := $(call CHOSEN,$(RUNS_PROGRAMS:%=$(BUILD)/tests/%))
# A source of tests/ or bench/ with a header of its own is linked into all programs there.
helpers   = $(patsubst %.h,$(BUILD)/%.o,$(wildcard $(patsubst $(1)/%.c,$(1)/%.h,$(wildcard $(1)/*.c))))
FIGURES  := $(addprefix $(BUILD)/bench/,figure1 training_speed token_speed chunks feature_maps)
# What commands of bench/peers run beside other libraries.
BESIDE   := $(addprefix $(BUILD)/bench/,gpt2_step kann_tasks)
BENCHES  := $(filter-out $(FIGURES) $(BESIDE) $(basename $(call helpers,bench)), \
            $(patsubst %.c,$(BUILD)/%,$(wildcard bench/*.c)))

# -------------------------------------------------------------------------------------------- the rules
.PHONY: ALWAYS all library programs test-programs test bench-programs bench tune copy-task figures help path \
        format format-check clang-format-check language-check clean
.DELETE_ON_ERROR:
.SECONDARY:
.SECONDEXPANSION:

all: library $(EXAMPLES)
library: $(LIBRARY) $(SHARED) $(MPI_LIBRARY)
programs: $(PROGRAMS)

# Everything depends on this file, which is rewritten when one of these settings or the Makefile
# changes. A build that chooses CUDA by itself then says what it has chosen.
SETTINGS := $(BUILD)/settings
FOR_CUDA := CUDA=$(CUDA)$(if $(filter yes,$(CUDA)), NVCC_ARCHS="$(NVCC_ARCHS)")
LACKING  := $(if $(NVCC),GPU of compute capability 8.0 or later,nvcc)
CHOICE   := $(FOR_CUDA)$(if $(GPUS),, since there is no $(LACKING)); to choose: CUDA=yes|no|host NVCC_ARCHS="80 90"
$(SETTINGS): Makefile cuda.mk ALWAYS
	@mkdir -p $(@D)
	@echo '$(FOR_CUDA) REAL=$(REAL) ONEDNN=$(ONEDNN) MPI=$(MPI) NCCL=$(or $(USES_NCCL),no) PDL=$(PDL) LINKAGE=$(LINKAGE)' \
	    'CC="$(CC)" ARCH="$(ARCH)" CPPFLAGS="$(CPPFLAGS)" CFLAGS="$(CFLAGS)" SANITIZE="$(SANITIZE)"' \
	    'LDFLAGS="$(LDFLAGS)"' > $@.new
	@if [ -z '$(filter-out ALWAYS,$?)' ] && cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; \
	$(if $(filter file,$(origin CUDA)),echo '$(CHOICE)';) fi
ALWAYS:

# What is linked depends on the list of the tree's sources, so that it loses what a removed one defined.
TREE_LIST := $(BUILD)/sources
$(TREE_LIST): ALWAYS
	@mkdir -p $(@D)
	@find $(wildcard $(MODULES) examples tests bench) -name '*.c' -o -name '*.cu' -o -name '*.cpp' | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# Of a .d file no line stops make when its source has been removed: -MP does this for headers.
define compile
@mkdir -p $(@D)
@echo "  compile $<"
@$(1) -MMD -MP -c $< -o $@ && echo '$<:' >> $(@:.o=.d)
endef
$(BUILD)/%.o: %.c $(SETTINGS)
	$(call compile,$(COMPILE))
$(BUILD)/%.cu.o: %.cu $(SETTINGS)
	$(call compile,$(COMPILE_CUDA))
$(BUILD)/%.cpp.o: %.cpp $(SETTINGS)
	$(call compile,$(COMPILE_CUDA))
$(BUILD)/tests/%.o: tests/%.cpp $(SETTINGS)
	$(call compile,$(COMPILE_CXX))
# The tests of extensions are built beside the others.
define extension_test
$(BUILD)/tests/$(notdir $(1:.c=.o)): $(1) $(SETTINGS)
	$$(call compile,$$(COMPILE))
endef
$(foreach test,$(EXTENSION_TESTS),$(eval $(call extension_test,$(test))))
# The objects of a program of several files: build/programs/images has them in build/parts/images/.
$(BUILD)/parts/%.o: examples/%.c $(SETTINGS)
	$(call compile,$(COMPILE))

# gcc 12 for ARM crashes where it vectorizes a loop with fmax, which only programs have.
$(BUILD)/tests/%.o $(BUILD)/bench/%.o: MATH += $(if $(filter aarch64%,$(TARGET)),-fno-tree-vectorize)

# A static library has one object. What was hidden becomes local: a program's own `product` then is not ours.
# What was public becomes hidden: a shared object that contains the library does not export it, so that two
# of them in one process do not mix.
define archive
@$(LD) -r $(1) -o $(basename $@).public.o
@$(OBJCOPY) --localize-hidden $(basename $@).public.o
@{ $(NM) -g --defined-only $(basename $@).public.o | sed 's/.* /.hidden /'; \
    echo '.section .note.GNU-stack,"",%progbits'; } >$(basename $@).hidden.s
@$(CC) -c $(basename $@).hidden.s -o $(basename $@).hidden.o
@$(LD) -r $(basename $@).public.o $(basename $@).hidden.o -o $(basename $@).o
@rm -f $@ && $(AR) rcs $@ $(basename $@).o
endef
$(LIBRARY): $(OBJECTS) $(TREE_LIST)
	$(call archive,$(OBJECTS))

$(SHARED): $(OBJECTS) $(TREE_LIST)
	@$(LINK) -shared -Wl,-soname,$(SONAME) $(OBJECTS) $(LIBS) -o $@

# The text of exported models as the lines of an array of strings.
$(BUILD)/parts/language_model/export.o: $(BUILD)/generated/examples/language_model/engine.inc
$(BUILD)/parts/language_model/export.o: DEFINES += -I$(BUILD)/generated
$(BUILD)/generated/%.inc: %.c.in
	@mkdir -p $(@D)
	@sed 's/[\\"]/\\&/g; s/.*/"&\\n",/' $< >$@

$(BUILD)/examples/%: $(BUILD)/examples/%.o $(LIBRARY)
	@$(LINK) $^ $(LIBS) -o $@

# Linked before libtapegrad, it replaces dist_start.
$(MPI_LIBRARY): $(BUILD)/distributed/mpi/mpi.o $(if $(USES_NCCL),$(BUILD)/distributed/mpi/nccl.o)
	$(call archive,$^)

parts     = $(patsubst examples/%.c,$(BUILD)/parts/%.o,$(wildcard examples/$(1)/*.c examples/shared/*.c))
$(BUILD)/programs/%: $$(call parts,%) $(MPI_LIBRARY) $(if $(filter shared,$(LINKAGE)),$(SHARED),$(LIBRARY))
	@mkdir -p $(@D)
	@$(LINK) $^ $(LIBS) -o $@

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(call helpers,bench) $(MPI_LIBRARY) $(LIBRARY)
	@$(LINK) $^ $(LIBS) -o $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(call helpers,tests) $(LIBRARY)
	@$(LINK) $^ $(LIBS) $$(pkg-config --libs check) -o $@

$(BUILD)/tests/test_curand: $(BUILD)/tests/test_curand.cu.o
	@$(NVCC) $< -o $@

# Parts of programs that tests call, and libraries that they need.
PICTURES := $(BUILD)/tests/test_pictures $(BUILD)/tests/test_images
part      = $(patsubst %,$(BUILD)/parts/%.o,$(1))
$(PICTURES): $(call part,images/idx images/cifar10 images/image shared/gzip/reader)
$(BUILD)/tests/test_decode: $(call part,speech/decode shared/program)
$(BUILD)/tests/test_speech: $(call part,$(addprefix speech/,decode features data model stream options)) \
    $(call part,$(addprefix shared/,attention program options))
$(BUILD)/examples/convolution $(BUILD)/bench/kann_tasks: LIBS += -lz
$(BUILD)/programs/images $(PICTURES): LIBS += -lpng -lz
LANGUAGE_TESTS := $(addprefix $(BUILD)/tests/test_,conversion export language_model vocabulary)
$(LANGUAGE_TESTS): $(call part,$(addprefix language_model/,export model options source tokens vocabulary) \
    $(addprefix shared/,attention options program gzip/reader))
$(BUILD)/programs/language_model $(LANGUAGE_TESTS): LIBS += -lz
$(BUILD)/programs/images $(BUILD)/programs/language_model: $(call part,shared/gzip/reader)
$(BUILD)/programs/speech $(BUILD)/tests/test_speech: LIBS += -lsndfile -lsamplerate -lfftw3
$(BUILD)/tests/test_cplusplus: LIBS += -lstdc++
$(BUILD)/tests/test_nccl: $(BUILD)/distributed/mpi/nccl.o
ifneq ($(USES_NCCL),)
$(BUILD)/distributed/mpi/mpi.o: private DEFINES += -DTAPEGRAD_NCCL
$(PROGRAMS) $(BUILD)/bench/copy_step $(BUILD)/bench/sequence_parallel: LIBS += $(NCCL_LIBS)
endif
ifeq ($(MPI),yes)
$(BUILD)/distributed/mpi/mpi.o $(PROGRAMS) $(BUILD)/bench/copy_step \
    $(BUILD)/bench/sequence_parallel: private override CC := $(MPI_CC)
endif

# ------------------------------------------------------------------------------------------------- runs
copy-task: $(BUILD)/programs/copy_task
	$(THREADS) $< --log copy_task.csv --plot copy_task.svg

test-programs: $(TESTS) $(if $(WITH_PROGRAMS),$(EXAMPLES) $(FIGURES) $(BESIDE) \
    $(addprefix $(BUILD)/bench/,attention sequence_parallel) $(SHARED))
test: test-programs
	@CC='$(CC)' REAL=$(REAL) CUDA=$(CUDA) LIBS='$(LIBS)' $(if $(DEVICE),DEVICE=$(DEVICE)) \
	    tests/run $(BUILD) $(LEAVE_OUT)

bench-programs: $(BENCHES) $(FIGURES) $(BESIDE)
bench: bench-programs
	@for program in $(BENCHES); do echo "== $$program"; $(THREADS) $$program || exit 1; done

tune: $(BUILD)/bench/tune
	$(THREADS) $<

FIGURE    = --output $(BUILD)/figures/$(1) $(if $(DEVICE),--device $(DEVICE))
figures: $(FIGURES) $(BUILD)/programs/copy_task
	@mkdir -p $(BUILD)/figures
	$(THREADS) $(BUILD)/bench/figure1 $(call FIGURE,figure1) $(if $(PYTHON),--python $(PYTHON))
	$(THREADS) $(BUILD)/bench/training_speed $(call FIGURE,training_speed)
	$(THREADS) $(BUILD)/bench/token_speed $(call FIGURE,token_speed)
	$(THREADS) $(BUILD)/bench/chunks --output $(BUILD)/figures/chunks
	$(THREADS) $(BUILD)/bench/feature_maps --output $(BUILD)/figures/feature_maps
	$(THREADS) bench/figure2 --build $(BUILD) $(call FIGURE,figure2)

include tests/checks.mk one_file.mk install.mk dist.mk $(wildcard book/book.mk man/man.mk)

# ------------------------------------------------------------------------------------------ for editors
# README's reading path, by the lines of today.
path:
	@tests/path.sh
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

FORMATTED = $$(tests/files.sh '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')
format:
	clang-format -i $(FORMATTED)
format-check: clang-format-check language-check
	tests/path.sh
	tests/check_includes.sh
clang-format-check:
	echo $(FORMATTED) | xargs -n 40 clang-format --dry-run -Werror
language-check:
	tests/check_language.sh

# One entry per source of the library, as this build compiles it, and per program.
DATABASE   = $(SOURCES) $(shell find examples tests bench -name '*.c')
ENTRY      = { "directory": "$(CURDIR)", "file": "$(1)", "command": "$(subst ",\",$(2)) -c $(1)" }
compile_commands.json: ALWAYS
	$(file >$@)$(foreach source,$(DATABASE),$(file >>$@,$(call ENTRY,$(source),$(COMPILE))))
	$(foreach source,$(CUDA_SOURCES),$(file >>$@,$(call ENTRY,$(source),$(COMPILE_CUDA))))
	@sed -i '1s/^/[/; $$!s/$$/,/; $$s/$$/]/' $@

clean:
	rm -rf build build-*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
endif
