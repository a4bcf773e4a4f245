# Two files that users copy, as SQLite ships: the nucleus, unless -DTAPEGRAD_NUCLEUS the extensions,
# and unless -DTAPEGRAD_PLAIN the CPU backend without oneDNN. extend.h is a third one, for extensions
# of one's own.
.PHONY: one-file test-one-file test-nucleus-alone
TREE      = $(shell find $(MODULES) -name '*.c' -not -path '*/cuda/*' -not -path '*/mpi/*' -not -path '*/tests/*' \
            -not -name onednn.c | LC_ALL=C sort)
# In this order: the nucleus, its CPU backend, the extensions, theirs.
CPU_FILES = $(foreach source,$(TREE),$(if $(findstring /cpu/,$(source)),$(source)))
PARTS     = $(filter-out $(CPU_FILES) ext/%,$(TREE)) '\#ifdef TAPEGRAD_CPU' $(filter-out ext/%,$(CPU_FILES)) '\#endif' \
            '\#ifndef TAPEGRAD_NUCLEUS' $(filter-out $(CPU_FILES),$(filter ext/%,$(TREE))) \
            '\#ifdef TAPEGRAD_CPU' $(filter ext/%,$(CPU_FILES)) '\#endif' '\#endif'
# POSIX's functions where the system has them. A configuration needs not all functions of a header, and
# clang need not vectorize every loop that gcc does.
ONE_FILE  = '\#ifndef _DEFAULT_SOURCE' '\#define _DEFAULT_SOURCE' '\#endif' \
            '\#pragma GCC diagnostic ignored "-Wunused-function"' \
            '\#ifdef __clang__' '\#pragma clang diagnostic ignored "-Wpass-failed"' '\#endif' \
            '\#ifndef TAPEGRAD_PLAIN' '\#define TAPEGRAD_CPU' '\#endif' '\#include "tapegrad.h"' \
            '\#if __STDC_VERSION__ < 201112L || !defined __GNUC__' \
            '\#error "tapegrad.c is C11 for gcc or clang: compile it as C, for example with -std=gnu11"' '\#endif' \
            '\#pragma GCC visibility push(hidden)' $(PARTS) '\#pragma GCC visibility pop'
one-file: $(BUILD)/tapegrad.h $(BUILD)/tapegrad.c $(BUILD)/extend.h
$(BUILD)/tapegrad.h: one_file.awk $(HEADERS)
	@mkdir -p $(@D)
	@awk -f one_file.awk tapegrad.h > $@
$(BUILD)/extend.h: one_file.mk one_file.awk extend.h $(shell find $(MODULES) -name '*.h')
	@mkdir -p $(@D)
	@awk -v given='$(HEADERS)' -f one_file.awk '#include "tapegrad.h"' extend.h > $@
$(BUILD)/tapegrad.c: one_file.mk one_file.awk $(BUILD)/tapegrad.h $(TREE) $(shell find $(MODULES) -name '*.h')
	@awk -v given='$(HEADERS)' -f one_file.awk $(ONE_FILE) > $@
test-one-file: one-file
	@tests/one_file.sh $(BUILD)
# The tree without any directory named cpu/ or cuda/.
test-nucleus-alone:
	@CC='$(CC)' tests/nucleus_alone.sh
