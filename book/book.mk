# The book: a folder of pages that opens by a double click. book/README.md says what stands where.
CHAPTERS   := tape checking elementwise products softmax norms optimizers tiles linear_attention forgetting time \
              model
APPENDIX   := museum teaching
BOOK       := $(BUILD)/book
BOOK_PAGES := $(patsubst %,$(BOOK)/%.html,index $(CHAPTERS) $(APPENDIX))
BOOK_FILES := $(BOOK_PAGES) $(CHAPTERS:%=$(BOOK)/%.js) $(BOOK)/book.js $(BOOK)/module.js $(BOOK)/book.css
EXERCISES  := $(patsubst book/exercises/%/exercise.c,%,$(wildcard book/exercises/*/exercise.c))
.PHONY: book test-book
include book/module.mk

# The library that programs of the book use: plain kernels, without flags of this processor, so that
# numbers are the same everywhere. A chapter's text file has the output of all its programs.
$(MODULE)/plain.o: $(BUILD)/tapegrad.c
	@mkdir -p $(@D)
	@echo "  compile $< with plain kernels"
	@$(CC) -O1 -DTAPEGRAD_PLAIN -I$(BUILD) -c $< -o $@
$(patsubst %,$(MODULE)/%.txt,$(CHAPTERS) $(APPENDIX)): $(MODULE)/%.txt: $(MODULE)/plain.o book/book.mk
	@for source in $(sort $(wildcard book/$*/*.c)); do program=$(MODULE)/$*-$$(basename $$source .c); \
	    $(CC) -O1 -Wall -Wextra -Wconversion $(STRICT) -I$(BUILD) $$source $< -lm -o $$program && $$program || exit 1; \
	done >$@.new 2>$@.errors || { cat $@.new $@.errors >&2; exit 1; }
	@mv $@.new $@
$(MODULE)/model.txt: examples/micro_gpt.c examples/names.txt
$(foreach chapter,$(CHAPTERS) $(APPENDIX),$(eval $(MODULE)/$(chapter).txt: $(wildcard book/$(chapter)/*.[ch])))

PANDOC = pandoc --mathml --no-highlight --fail-if-warnings -t html5 --template book/page/chapter.html \
         --lua-filter book/page/book.lua -M chapters="$(CHAPTERS)" -M copy=$(BOOK)/copy.txt
PAGE   := book/page/chapter.html book/page/links.html book/page/book.lua
$(patsubst %,$(BOOK)/%.html,$(CHAPTERS) $(APPENDIX)): $(BOOK)/%.html: book/%/page.md $(MODULE)/%.txt $(PAGE) $(TREE)
	@mkdir -p $(@D)
	@echo "  page $<"
	@$(PANDOC) -M name=$* -M output=$(MODULE)/$*.txt $< -o $@
$(BOOK)/linear_attention.html: book/page/copy.html $(BOOK)/copy.txt
$(BOOK)/index.html: book/index.md book/page/copy.html $(BOOK)/copy.txt $(PAGE)
	@echo "  page $<"
	@$(PANDOC) -M name=index -M output=$(BOOK)/copy.txt $< -o $@
$(BOOK)/book.js: book/page/page.js book/page/try.js
	@mkdir -p $(@D)
	@cat $^ >$@
$(CHAPTERS:%=$(BOOK)/%.js): $(BOOK)/%.js: book/%/picture.js
	@mkdir -p $(@D)
	@cp $< $@

# A subset of a font for mathematics, within the style sheet.
MATH_FONT  := /usr/share/texmf/fonts/opentype/public/tex-gyre-math/texgyrepagella-math.otf
MATH_SIGNS := U+0020-007E,U+00AC,U+00AF,U+00B1,U+00B7,U+00D7,U+02C6,U+02DC,U+0302-0304,U+0391-03C9,U+03D5,$\
              U+03F5,U+2016,U+2026,U+2032,U+2033,U+203E,U+2061,U+210E,U+2113,U+211D,U+2190-2193,U+21A6,$\
              U+21D2,U+2200,U+2202,U+2207,U+2208,U+220F,U+2211,U+2212,U+221A,U+221E,U+2225,U+222B,U+223C,$\
              U+2248,U+2260,U+2264,U+2265,U+2297,U+2299,U+22A4,U+22C5,U+22EE,U+22EF,U+23DE,U+23DF,U+27E8,$\
              U+27E9,U+1D434-1D467,U+1D6FC-1D71B
$(MODULE)/math.woff2: book/book.mk
	@mkdir -p $(@D)
	@/usr/bin/python3 -m fontTools.subset $(MATH_FONT) --unicodes=$(MATH_SIGNS) \
	    --layout-features=ssty,ccmp,kern --no-hinting --flavor=woff2 --output-file=$@
$(BOOK)/book.css: $(MODULE)/math.woff2 book/page/book.css
	@{ printf '@font-face { font-family: "Book Math"; src: url(data:font/woff2;base64,'; \
	    base64 -w 0 $<; printf ') format("woff2"); }\n'; cat book/page/book.css; } >$@

# Exercises, as a reader gets them: without the answers. A student.c that is already there is a reader's work.
$(MODULE)/exercises: $(wildcard book/exercises/*.[ch] book/exercises/*/*) $(BUILD)/tapegrad.c
	@mkdir -p $(@D)
	@for e in $(EXERCISES); do mkdir -p $(BOOK)/exercises/$$e && \
	    cp book/exercises/$$e/exercise.[ch] $(BOOK)/exercises/$$e && { [ -e $(BOOK)/exercises/$$e/student.c ] || \
	    cp book/exercises/$$e/student.c $(BOOK)/exercises/$$e; } || exit 1; done
	@cp book/exercises/grade.[chs]* $(BUILD)/tapegrad.[ch] $(BOOK)/exercises
	@touch $@
book: $(BOOK_FILES) $(MODULE)/exercises
	@echo "the book: $(BOOK)/index.html"
test-book: book
	@CC='$(CC)' tests/book.sh $(BUILD) $(PAGES)
