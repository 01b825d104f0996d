# The menu. Every recipe is a script in scripts/, which can also be run by itself.

.DEFAULT_GOAL := menu
.PHONY: menu demo build test check bench docs setup release clean

menu:
	@echo 'make demo           see it work: a week of earthquakes, by mail (DEMO=once: end by itself)'
	@echo 'make build          the server as it ships, optimized: some twenty minutes the first time'
	@echo 'make check          format, clippy and the quick tests (CRATE=delivery: of one crate)'
	@echo 'make test           everything that a change must pass; what .ci/run runs (CRATE=... too)'
	@echo 'make bench          measure, and write bench/results/latest.ndjson (ONLY=name,... for some)'
	@echo 'make docs           write the generated pages of docs/reference anew'
	@echo 'make setup          install the programs of others that tests use; without them check skips these tests'
	@echo 'make release        make a version (VERSION=0.1.0; DRY=1: everything but the tag)'
	@echo 'make clean          remove what was built'

demo:
	@scripts/demo $(if $(filter once,$(DEMO)),--once)

build:
	@scripts/build

test:
	@scripts/test $(if $(CRATE),--crate $(CRATE))

check:
	@scripts/test --without-slow $(if $(CRATE),--crate $(CRATE))

bench:
	@scripts/bench $(if $(ONLY),--only $(ONLY))

docs:
	@scripts/docs

setup:
	@scripts/setup build test

release:
	@scripts/release $(if $(DRY),--dry-run) $(VERSION)

clean:
	@scripts/clean
