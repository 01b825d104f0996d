# The menu. Every recipe is a script in scripts/, which can also be run by itself.

.DEFAULT_GOAL := menu
.PHONY: menu demo test check bench docs setup clean

menu:
	@echo 'make demo           see it work: a week of earthquakes told by mail (DEMO=once: end by itself)'
	@echo 'make test           everything that a change must pass; what .ci/run runs'
	@echo 'make check          the same without the slow tests'
	@echo 'make bench          measure, and write bench/results/latest.ndjson (ONLY=name,... for some)'
	@echo 'make docs           write the generated pages of docs/reference anew'
	@echo 'make setup          install what the tests need; the others do it themselves'
	@echo 'make clean          remove what was built'

demo:
	@scripts/demo $(if $(filter once,$(DEMO)),--once)

test:
	@scripts/test

check:
	@scripts/test --without-slow

bench:
	@scripts/bench $(if $(ONLY),--only $(ONLY))

docs:
	@scripts/docs

setup:
	@scripts/setup build test

clean:
	@scripts/clean
