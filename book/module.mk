# The book's module.js: the copy task in WebAssembly, as base64 of gzip, and the scripts that run it in a
# page; copy.txt: the same program's output, natively. Needs lld, wasi-libc and libclang-rt-14-dev-wasm32.
WASM_CC     ?= clang
# -Os makes the module 0.6 times as large, but leaves short loops over vectors as they are, which makes
# a step take 2.5 times as long; unrolled, it takes as long as with -O2.
WASM_CFLAGS := --target=wasm32-wasi -Os -mllvm -unroll-threshold=300 -msimd128 -ffunction-sections \
               -fdata-sections -I$(BUILD)
# A Transformer is passed by value, and the default stack, 64 KiB, is too small. --stack-first: one that
# overflows traps instead of overwriting data. No -O: clang would call wasm-opt where it is installed,
# which rejects SIMD once --strip-all has removed the list of features.
WASM_LINK   := --target=wasm32-wasi -mexec-model=reactor \
               -Wl,--gc-sections,--strip-all,--stack-first,-z,stack-size=1048576
# Objects have a directory of their own: $(BUILD)/book holds what readers get.
MODULE      := $(BUILD)/book-module

$(MODULE)/tapegrad.wasm.o: $(BUILD)/tapegrad.c book/module.mk
	@mkdir -p $(@D)
	@echo "  compile $< for WebAssembly"
	@$(WASM_CC) $(WASM_CFLAGS) -c $< -o $@
$(MODULE)/copy.wasm.o: book/module/copy.c $(BUILD)/tapegrad.h book/module.mk
	@mkdir -p $(@D)
	@echo "  compile $< for WebAssembly"
	@$(WASM_CC) $(WASM_CFLAGS) -Wall -Wextra -Wconversion $(STRICT) -c $< -o $@
$(MODULE)/copy.wasm: $(MODULE)/copy.wasm.o $(MODULE)/tapegrad.wasm.o
	@$(WASM_CC) $(WASM_LINK) $^ -o $@
$(BUILD)/book/module.js: $(MODULE)/copy.wasm book/page/wasi.js book/page/live.js
	@mkdir -p $(@D)
	@{ printf "const MODULE = '"; gzip -9nc $< | base64 -w 0; printf "';\n"; \
	    cat book/page/wasi.js book/page/live.js; } > $@

$(MODULE)/copy: book/module/copy.c $(BUILD)/tapegrad.c book/module.mk
	@mkdir -p $(@D)
	@echo "  compile $< and $(BUILD)/tapegrad.c"
	@$(CC) -O2 -Wall -Wextra -Wconversion $(STRICT) -I$(BUILD) $< $(BUILD)/tapegrad.c -lm -o $@
$(BUILD)/book/copy.txt: $(MODULE)/copy
	@mkdir -p $(@D)
	@$< 1 0.002 24 800 > $@
