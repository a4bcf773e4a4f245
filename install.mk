# Installing and uninstalling the library (headers, the archive, the shared object, files for pkg-config and CMake), and
# the programs.
PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
INSTALL    ?= install
.PHONY: install install-files install-programs install-programs-files uninstall
ifneq ($(filter install install-files install-programs install-programs-files uninstall,$(MAKECMDGOALS)),)
$(foreach name,PREFIX LIBDIR INCLUDEDIR,$(if $(and $(filter /%,$($(name))),$(call plain,$($(name)))),, \
    $(error $(name)=$($(name)), expected an absolute path without blanks or signs of the shell)))
$(if $(call plain,$(DESTDIR)),,$(error DESTDIR=$(DESTDIR), expected a path without blanks or signs of the shell))
endif
# Where these files go now.
TO_LIB     := $(DESTDIR)$(LIBDIR)
TO_INCLUDE := $(DESTDIR)$(INCLUDEDIR)/tapegrad
TO_BIN     := $(DESTDIR)$(PREFIX)/bin
TO_CMAKE   := $(TO_LIB)/cmake/tapegrad
install install-programs:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)-install \
	    ARCH=$(if $(filter file,$(origin ARCH)),$(PORTABLE),$(ARCH)) $@-files
# Both make the same build: one after the other.
install-programs: | $(filter install,$(MAKECMDGOALS))
install-files: library
	@echo "installing, built for -march=$(ARCH), into $(DESTDIR)$(PREFIX)"
	@$(INSTALL) -d $(sort $(dir $(INSTALLED)))
	@for header in $(ALL_HEADERS); do $(INSTALL) -m 644 $$header $(TO_INCLUDE)/$$header; done
	@$(INSTALL) -m 644 $(LIBRARY) $(MPI_LIBRARY) $(TO_LIB)
	@$(INSTALL) -m 755 $(SHARED) $(TO_LIB)
	@ln -sf $(notdir $(SHARED)) $(TO_LIB)/$(SONAME)
	@ln -sf $(SONAME) $(TO_LIB)/libtapegrad.so
	@printf '%s\n' $(PC_DIRECTORIES) 'Name: tapegrad' \
	    'Description: Tape-based training framework in C' 'Version: $(VERSION)' \
	    'Cflags: -I$${includedir}/tapegrad $(PUBLIC_DEFINES)' \
	    'Libs: -L$${libdir} -ltapegrad' 'Libs.private: -fopenmp $(LIBS)' > $(TO_LIB)/pkgconfig/tapegrad.pc
	@$(if $(MPI_LIBRARY),printf '%s\n' $(PC_DIRECTORIES) 'Name: tapegrad-mpi' \
	    'Description: tapegrad with dist_start by MPI; compile by mpicc' 'Version: $(VERSION)' \
	    'Requires: tapegrad = $(VERSION)' 'Libs: -L$${libdir} -ltapegrad_mpi $(NCCL_LIBS) -fopenmp' \
	    > $(TO_LIB)/pkgconfig/tapegrad-mpi.pc)
	@for name in Config ConfigVersion; do sed $(CMAKE_VALUES) cmake/tapegrad$$name.cmake.in \
	    > $(TO_CMAKE)/tapegrad$$name.cmake; done
	@$(UPDATE_LOADER)
# Their names in the tree, as images, are too general for a directory of all programs.
install-programs-files: $(PROGRAMS)
	@echo "installing $(words $(PROGRAMS)) programs, built for -march=$(ARCH), into $(TO_BIN)"
	@$(INSTALL) -d $(TO_BIN)
	@$(foreach program,$(PROGRAMS),$(INSTALL) -m 755 $(program) $(call installed,$(program)) &&) true
installed      = $(addprefix $(TO_BIN)/tapegrad-,$(subst _,-,$(notdir $(1))))
# What the headers read, for programs.
PUBLIC_DEFINES = $(filter -DTAPEGRAD_DOUBLE -DTAPEGRAD_NUCLEUS,$(DEFINES))
PC_DIRECTORIES = 'prefix=$(PREFIX)' $(foreach name,libdir=$(LIBDIR) includedir=$(INCLUDEDIR), \
                 '$(subst =$(PREFIX)/,=$${prefix}/,$(name))') ''
# Relative to LIBDIR, so that the files can be moved, where realpath is GNU's.
CMAKE_INCLUDEDIR = $(or $(shell realpath -ms --relative-to=$(LIBDIR) $(INCLUDEDIR) 2>/dev/null),$(INCLUDEDIR))
CMAKE_VALUES   = -e 's|@VERSION@|$(VERSION)|g; s|@SONAME@|$(SONAME)|; s|@INCLUDEDIR@|$(CMAKE_INCLUDEDIR)|' \
                 -e 's|@COMPATIBLE@|$(SONAME:libtapegrad.so.%=%)|; s|@LIBS@|$(call list,-fopenmp $(LIBS))|' \
                 -e 's|@DEFINITIONS@|$(call list,$(PUBLIC_DEFINES:-D%=%))|'
list           = $(subst $(space),;,$(strip $(1)))
space         := $(subst x,,x x)
# The loader's cache, where the library is in its place.
UPDATE_LOADER  = if [ -z '$(DESTDIR)' ] && [ $$(id -u) = 0 ] && [ -x /sbin/ldconfig ]; then /sbin/ldconfig; fi

# For programs, and for extensions: extend.h and the headers behind it.
ALL_HEADERS = $(HEADERS) $(sort $(filter-out $(HEADERS),$(filter %.h,$(shell $(CC) -I. -MM extend.h))))
# Directories that other packages share, as lib/pkgconfig, stay; so does a foreign file.
INSTALLED = $(addprefix $(TO_INCLUDE)/,$(ALL_HEADERS)) $(addprefix $(TO_LIB)/,pkgconfig/tapegrad.pc \
             $(if $(MPI_LIBRARY),libtapegrad_mpi.a pkgconfig/tapegrad-mpi.pc) \
             libtapegrad.a libtapegrad.so $(SONAME) $(notdir $(SHARED))) \
             $(addprefix $(TO_CMAKE)/,tapegradConfig.cmake tapegradConfigVersion.cmake)
# speech is installed where its libraries are, and removed where they are no more, too.
INSTALLED_PROGRAMS = $(sort $(call installed,$(PROGRAMS) speech))
uninstall:
	@rm -f $(INSTALLED) $(INSTALLED_PROGRAMS)
	@(cd $(TO_INCLUDE) && rmdir -p $(sort $(dir $(ALL_HEADERS)))) 2>/dev/null; rmdir $(TO_INCLUDE) $(TO_CMAKE) 2>/dev/null || true
	@$(UPDATE_LOADER)
