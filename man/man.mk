# Pages for man, by pandoc: tapegrad(7), and one of section 1 for each program. Their sources man/*.md take what stands
# elsewhere from there: options from --help, the rest from README.md, docs/, headers and examples.
MAN       := $(BUILD)/man
# A program's name where it is installed, for others may have a program "images".
installed  = tapegrad-$(subst _,-,$(notdir $(1)))
PROGRAM_PAGES := $(foreach program,$(PROGRAMS),$(MAN)/$(call installed,$(program)).1)
.PHONY: man
man: $(MAN)/tapegrad.7 $(PROGRAM_PAGES)
$(MAN)/%: man/%.md $(wildcard man/*) README.md CHANGELOG.md examples/two_moons.c $(HEADERS) $(wildcard docs/*.md)
	@mkdir -p $(@D)
	@BUILD=$(BUILD) HEADERS='$(HEADERS)' VERSION=$(VERSION) man/page.sh $< >$@
$(foreach program,$(PROGRAMS),$(eval $(MAN)/$(call installed,$(program)).1: $(program)))
