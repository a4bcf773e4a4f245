# CUDA=yes|no|host: which sources the CUDA backend has, and how they are compiled, by nvcc or for the CPU.
CUDA_HOME := $(firstword $(patsubst %/bin/nvcc,%,$(shell command -v nvcc)) $(wildcard /usr/local/cuda))
NVCC      := $(wildcard $(CUDA_HOME)/bin/nvcc)
# The GPUs here that the kernels run on, by compute capability as nvcc writes it: 90
GPUS      := $(if $(NVCC),$(if $(filter no host,$(CUDA)),,$(filter-out 3% 5% 6% 7%,$(shell \
             nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
             grep -x '[0-9]*[.][0-9]' | tr -d . | sort -nu))))
CUDA      := $(if $(GPUS),yes,no)
$(if $(filter yes no host,$(CUDA)),,$(error CUDA=$(CUDA), expected yes, no or host))
NVCC_ARCHS    := $(or $(GPUS),80 90)
NVCC_WARNINGS  = $(STRICT:%=% all-warnings) -Xcompiler -Wall,-Wextra,-Wshadow
PDL       := no

ifneq ($(CUDA),no)
CUDA_SOURCES := $(shell find $(MODULES) -name '*.cu')
CUDA_DEFINES := -DTAPEGRAD_CUDA $(if $(filter yes,$(PDL)),-DTAPEGRAD_PDL)
endif

ifeq ($(CUDA),yes)
$(if $(NVCC),,$(error CUDA=yes needs nvcc, on PATH or in /usr/local/cuda))
# For these architectures and later ones.
NEWEST_ARCH   = $(lastword $(NVCC_ARCHS))
GENCODE       = $(foreach arch,$(NVCC_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
                -gencode arch=compute_$(NEWEST_ARCH),code=compute_$(NEWEST_ARCH)
COMPILE_CUDA  = $(NVCC) -std=c++17 -O3 $(GENCODE) --threads 2 $(NVCC_WARNINGS) \
                -Xcompiler -fPIC,-fvisibility=hidden -I. $(DEFINES) $(CPPFLAGS:%=-Xcompiler %)
CUDA_INCLUDES = -isystem $(CUDA_HOME)/include
CUDA_LIBS     = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcublas -lcudart -lstdc++
endif

ifeq ($(CUDA),host)
EMULATION     = tests/cuda_on_host
CUDA_SOURCES += $(wildcard $(EMULATION)/*.cpp)
CUDA_DEFINES += -DTAPEGRAD_CUDA_ON_HOST
COMPILE_CUDA  = clang++ -x c++ -std=gnu++17 -march=$(ARCH) $(MATH) -fPIC -fvisibility=hidden -pthread \
                $(CUDA_INCLUDES) -I. $(DEFINES) -Wall -Wextra -Wshadow -Wmissing-prototypes $(STRICT) \
                $(CPPFLAGS) $(CFLAGS) $(SANITIZE) $(FOR_C)
CUDA_INCLUDES = -I$(EMULATION)/include
FOR_C         = $(if $(SANITIZE),-fno-sanitize=vptr -fno-sanitize=function) # these need C++ programs
CUDA_LIBS     = -lstdc++ -lpthread
endif
