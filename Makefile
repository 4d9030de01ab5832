.DEFAULT_GOAL := help
BIN := .venv/bin
INSTALLED := .venv/installed
# tests go to whichever core is free, in the order of tests/conftest.py; those of a group, which share something
# expensive, to the same one
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

demo: $(INSTALLED) ## install, run FedAvg and PAGE on Synthetic, print the path of their report
	@rm -rf runs/demo
	@$(BIN)/pagefl run --algorithm fedavg --rounds 300 --out runs/demo/fedavg
	@$(BIN)/pagefl run --algorithm page --rounds 300 --out runs/demo/page
	@$(BIN)/pagefl report runs/demo/fedavg runs/demo/page --out runs/demo/report.html

test: $(INSTALLED) chromium ## install, and run the whole suite
	$(PYTEST)

check: $(INSTALLED) ## format, lint, types and every test that is not slow
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -q -m "not slow"

format: $(INSTALLED) ## write the code as the formatter wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## the engine against a plain loop, on this machine
	$(BIN)/pagefl bench engine

chromium: ## the browser that looks at reports in tests
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no chromium: the tests that look at pages will be skipped"

# torch goes first and alone, or the resolver may fetch its CUDA build
$(INSTALLED): pyproject.toml constraints.txt
	python3 -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[test,dev]'
	@touch $@

.PHONY: help demo test check format bench chromium
