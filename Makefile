# Everything a newcomer needs: `make demo`, `make test`. Each target sets up what it needs first.
SHELL := /bin/bash
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced

.PHONY: setup demo test e2e-nodes check mutants bench bench-kube proto crds docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml uv.lock hack/setup.sh
	@hack/setup.sh
	@touch $@

demo: setup  ## train one job on four simulated units, kill one, finish
	@rm -rf .demo
	@$(BIN)/diloco up examples/quickstart.yaml --fleet examples/fleet.yaml --state-dir .demo --fault unit=h100-1,step=80,signal=KILL

test: setup  ## every test, the same that CI runs
	@hack/test.sh

e2e-nodes: setup  ## training in containers on real kubelets (root, Debian)
	@hack/nodes/e2e.sh

check: setup  ## formatting, lints, types, import rules, generated files
	@hack/check.sh

mutants: setup  ## mutation testing of the pure packages: make mutants [SEED=1] [SAMPLE=60] [JOBS=2]
	@$(BIN)/python hack/mutants.py --seed $(or $(SEED),1) --sample $(or $(SAMPLE),60) --jobs $(or $(JOBS),2)

bench: setup  ## every figure that docs/results quotes, as JSON lines
	@$(BIN)/python -m benchmarks

bench-kube: setup  ## the same for the figures that need a real API server
	@hack/kube/assets.sh etcd kube-apiserver kubectl
	@$(BIN)/python -m benchmarks --kube

proto: setup  ## regenerate the wire's Python from diloco.proto
	@hack/proto.sh

crds: setup  ## regenerate crds/ and the chart's copy from the types
	@$(BIN)/diloco crd > crds/diloco.dev_dilocojobs.yaml
	@cp crds/*.yaml helm/diloco-operator/files/crds/

docs: setup  ## regenerate docs/api.md from the types, and the chart's values
	@$(BIN)/python hack/api_docs.py > docs/api.md
	@$(BIN)/python hack/chart_docs.py

clean:
	rm -rf $(VENV) .tools .demo .diloco .diloco-nodes .mypy_cache .ruff_cache .pytest_cache
