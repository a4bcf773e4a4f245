# What is published of a commit, under $(BUILD)/dist: dist.sh. Needs the packages of make RELEASE=yes deps.
.PHONY: dist
dist:
	@./dist.sh $(BUILD)/dist
