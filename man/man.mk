# Pages for man, by pandoc: tapegrad(7), and one of section 1 for each program. Their sources man/*.md take what stands
# elsewhere from there: options from --help, the rest from README.md, docs/, headers and examples.
MAN       := $(BUILD)/man
# The pages are called as the programs where they are installed.
page_of    = tapegrad-$(subst _,-,$(notdir $(1))).1
PROGRAM_PAGES := $(addprefix $(MAN)/,$(foreach program,$(PROGRAMS),$(call page_of,$(program))))
.PHONY: man
man: $(MAN)/tapegrad.7 $(PROGRAM_PAGES)
$(MAN)/%: man/%.md $(wildcard man/*) README.md CHANGELOG.md examples/two_moons.c $(HEADERS) $(wildcard docs/*.md)
	@mkdir -p $(@D)
	@LD_LIBRARY_PATH=$(BUILD)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} BUILD=$(BUILD) HEADERS='$(HEADERS)' VERSION=$(VERSION) man/page.sh $< >$@
# Programs that load the library find it by this name.
$(BUILD)/$(SONAME): $(SHARED)
	@ln -sf $(<F) $@
$(if $(filter shared,$(LINKAGE)),$(eval $(PROGRAM_PAGES): | $(BUILD)/$(SONAME)))
$(foreach program,$(PROGRAMS),$(eval $(MAN)/$(call page_of,$(program)): $(program)))

# Installed with the library and the programs, where pandoc is found and, for the programs' pages, these run here.
TO_MAN     = $(DESTDIR)$(PREFIX)/share/man
FINDS_PANDOC := $(if $(shell command -v pandoc),yes)
PARTS_OF_INSTALL := install-page install-program-pages uninstall-pages
.PHONY: $(PARTS_OF_INSTALL)
$(if $(filter $(PARTS_OF_INSTALL),$(MAKECMDGOALS)),$(error make install, install-programs and uninstall check PREFIX))
install-files: install-page
install-page: $(if $(FINDS_PANDOC),$(MAN)/tapegrad.7)
	@$(if $^,$(INSTALL) -d $(TO_MAN)/man7 && $(INSTALL) -m 644 $^ $(TO_MAN)/man7)
install-programs-files: install-program-pages
install-program-pages: $(if $(FINDS_PANDOC),$(if $(NATIVE),$(PROGRAM_PAGES)))
	@$(if $^,$(INSTALL) -d $(TO_MAN)/man1 && $(INSTALL) -m 644 $^ $(TO_MAN)/man1)
uninstall: uninstall-pages
uninstall-pages:
	@rm -f $(TO_MAN)/man7/tapegrad.7 $(addprefix $(TO_MAN)/man1/,$(basename $(notdir $(wildcard man/*.1.md))))
