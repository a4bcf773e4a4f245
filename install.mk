# Installing and uninstalling the library: headers, the archive, the shared object, pkg-config.
.PHONY: install install-files uninstall
install:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)-install \
	    ARCH=$(if $(filter file,$(origin ARCH)),$(PORTABLE),$(ARCH)) install-files
install-files: library
	@echo "installing, built for -march=$(ARCH), into $(DESTDIR)$(PREFIX)"
	@install -d $(addprefix $(DESTDIR)$(PREFIX)/,$(sort $(dir $(INSTALLED))))
	@for header in $(HEADERS); do \
	    install -m 644 $$header $(DESTDIR)$(PREFIX)/include/tapegrad/$$header; done
	@install -m 644 $(LIBRARY) $(DESTDIR)$(PREFIX)/lib/libtapegrad.a
	@install -m 755 $(SHARED) $(DESTDIR)$(PREFIX)/lib/libtapegrad.so.$(VERSION)
	@ln -sf libtapegrad.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	@ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libtapegrad.so
	@printf '%s\n' 'prefix=$(PREFIX)' '' 'Name: tapegrad' \
	    'Description: Tape-based training framework in C' 'Version: $(VERSION)' \
	    'Cflags: -I$${prefix}/include/tapegrad $(filter -DTAPEGRAD_DOUBLE,$(DEFINES))' \
    'Libs: -L$${prefix}/lib -ltapegrad' \
	    'Libs.private: -fopenmp $(LIBS)' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/tapegrad.pc
	@$(if $(MPI_LIBRARY),install -m 644 $(MPI_LIBRARY) $(DESTDIR)$(PREFIX)/lib && \
	    printf '%s\n' 'prefix=$(PREFIX)' '' 'Name: tapegrad-mpi' \
	    'Description: tapegrad with dist_start by MPI; compile by mpicc' 'Version: $(VERSION)' \
	    'Requires: tapegrad = $(VERSION)' 'Libs: -L$${prefix}/lib -ltapegrad_mpi $(NCCL_LIBS) -fopenmp' \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/tapegrad-mpi.pc)
	@if [ -z '$(DESTDIR)' ] && [ $$(id -u) = 0 ]; then /sbin/ldconfig; fi # the loader's cache

# Directories that other packages share, as lib/pkgconfig, stay; so does a foreign file.
INSTALLED_HEADERS := $(addprefix include/tapegrad/,$(HEADERS))
INSTALLED := $(INSTALLED_HEADERS) lib/pkgconfig/tapegrad.pc \
             $(if $(MPI_LIBRARY),lib/libtapegrad_mpi.a lib/pkgconfig/tapegrad-mpi.pc) \
             $(addprefix lib/,libtapegrad.a libtapegrad.so $(SONAME) libtapegrad.so.$(VERSION))
uninstall:
	@rm -f $(addprefix $(DESTDIR)$(PREFIX)/,$(INSTALLED))
	@for folder in $(sort $(filter-out %/tapegrad/,$(dir $(INSTALLED_HEADERS)))) include/tapegrad/ext/ include/tapegrad/; do \
	    rmdir $(DESTDIR)$(PREFIX)/$$folder 2>/dev/null || true; done
	@if [ -z '$(DESTDIR)' ] && [ $$(id -u) = 0 ]; then /sbin/ldconfig; fi
