# make deps: installs the Debian packages that are missing. Other goals of the same command follow in a
# make of their own, which finds the packages' headers.
PACKAGES := gcc g++ libc6-dev pkg-config libdnnl-dev check gnuplot-nox \
            zlib1g-dev libpng-dev libsndfile1-dev libsamplerate0-dev libfftw3-dev perl python3
PACKAGES += $(if $(DEV),ccache clang clang-format libomp-dev valgrind gcc-mingw-w64-x86-64 wasi-libc lld \
            libclang-rt-14-dev-wasm32 libc6-dev-i386 lib32gcc-12-dev)
PACKAGES += $(if $(filter yes,$(MPI)),libopenmpi-dev openmpi-bin procps)
PACKAGES += $(if $(CROSS),gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user musl-tools)
# To build the book, and to test its pages: BOOK=yes, BOOK=pages.
PACKAGES += $(if $(BOOK)$(RELEASE),pandoc clang lld wasi-libc libclang-rt-14-dev-wasm32 fonts-texgyre-math \
            python3-fonttools python3-brotli nodejs)
PACKAGES += $(if $(filter pages,$(BOOK)),chromium chromium-driver)
# make dist, the pages for man, the Debian packages, and the tests of what is released.
PACKAGES += $(if $(RELEASE),zip unzip python3-yaml pandoc mandoc cmake debhelper lintian dpkg-dev fakeroot \
            libclang-rt-dev-wasm32)
OTHERS   := $(filter-out deps,$(MAKECMDGOALS))

.PHONY: deps $(OTHERS)
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
	$(if $(OTHERS),@$(MAKE) --no-print-directory $(OTHERS))

$(OTHERS): deps
	@:
