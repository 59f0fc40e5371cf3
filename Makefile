# Everything a newcomer needs: `make demo`, `make test`. Each target sets up what it needs first.
SHELL := /bin/bash
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced

.PHONY: setup demo test check bench proto crds docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml uv.lock hack/setup.sh
	@hack/setup.sh
	@touch $@

demo: setup  ## train one job on four pretend units, kill one, finish
	@rm -rf .demo
	@$(BIN)/diloco up examples/quickstart.yaml --fleet examples/fleet.yaml --state-dir .demo --fault unit=h100-1,step=80,signal=KILL

test: setup  ## every test, the same that CI runs
	@hack/test.sh

check: setup  ## formatting, lints, types, import rules, generated files
	@hack/check.sh

bench: setup  ## every figure that docs/results quotes, as JSON lines
	@$(BIN)/python -m benchmarks

proto: setup  ## regenerate the wire's Python from diloco.proto
	@hack/proto.sh

crds: setup  ## regenerate crds/ from the types
	@$(BIN)/diloco crd > crds/diloco.dev_dilocojobs.yaml

docs: setup  ## regenerate docs/api.md from the types
	@$(BIN)/python hack/api_docs.py > docs/api.md

clean:
	rm -rf $(VENV) .tools .demo .diloco .mypy_cache .ruff_cache .pytest_cache
