# `make help` lists the targets. Each target sets up what it needs first. CONTRIBUTING.md says how long each takes.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
comma := ,

# Bytecode is kept, whatever the shell says: without it each process compiles its libraries anew, for 0.5 s, with torch 2 s of a core.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-regions quick test test-core test-versions test-cluster ci-full check mutants hooks bench bench-placement evidence bench-sizes bench-kube bench-quality bench-peers bench-smoke proto crds docs screenshots site wheel images release clean

# Compiled into the checkout by setup; without it nothing of the data plane can be imported.
LOOPS := runtimes/diloco/kernels/libkernels.so
ifeq ($(wildcard $(LOOPS)),)
.PHONY: $(STAMP)
endif

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with everything that the other targets need

$(STAMP): pyproject.toml runtimes/pyproject.toml uv.lock hack/setup.sh runtimes/hatch_build.py $(wildcard runtimes/diloco/kernels/*.c)
	@hack/setup.sh
	@touch $@

demo: setup  ## train one model on four simulated nodes; kill one unit on the way
	@rm -rf .demo
	@$(BIN)/diloco up examples/quickstart.yaml --fleet examples/fleet.yaml --state-dir .demo --fault unit=h100-1,step=80,signal=KILL

demo-regions: setup  ## train one model over three control planes with an operator each, two of them elsewhere
	@rm -rf .demo-regions
	@cd examples/regions && ../../$(BIN)/diloco up job.yaml --fleet home.yaml --cluster tokyo=tokyo.yaml --cluster osaka=osaka.yaml \
	  --bandwidth 100Mbit/s --latency tokyo=20ms --latency osaka=25ms \
	  --state-dir ../../.demo-regions

quick: setup  ## run fast checks and the unit tests, without a cluster
	@hack/quick.sh

test: setup  ## run the tests that need no cluster, but for what only ci-full repeats with real processes
	@hack/test.sh

test-core: setup  ## run the core of the cluster's tests, as CI does: install, quick start, faults, upgrade, hand-over
	@hack/test-cluster.sh --core

test-versions: setup  ## run the core on the oldest Kubernetes that we support, and queued jobs on a newer Kueue
	@KUBERNETES=1.34 hack/test-cluster.sh --core
	@KUEUE=0.19 hack/test-cluster.sh tests/cluster/growth/test_queued_jobs.py

test-cluster: setup  ## run the tests with a real API server, Helm, nodes, Karpenter and Kueue
	@hack/test-cluster.sh

check: setup  ## check formatting, lints, types, import rules and what documents say
	@hack/check.sh

ci-full: setup  ## run everything: checks, all tests with all their examples, and every benchmark in a small size
	@DILOCO_TESTS=all .ci/run check test test-cluster bench-smoke test-versions

hooks: setup  ## install pre-commit's hooks into this checkout: formatting, lints, import rules, generated files
	@$(BIN)/pre-commit install

mutants: setup  ## test the tests of the pure packages by mutants; SEED=1 SAMPLE=60 JOBS=2
	@$(BIN)/python hack/mutants.py --seed $(or $(SEED),1) --sample $(or $(SAMPLE),60) --jobs $(or $(JOBS),2)

bench: setup  ## measure the operator and the exchange, as JSON lines
	@$(BIN)/python -m benchmarks

bench-placement: setup  ## compare the flow that places units with the exact optimum and simpler rules
	@$(BIN)/python -m benchmarks --placement

evidence: setup  ## simulate what was published, as JSON lines, draw docs/results/plots, and run real jobs, also across regions (root)
	@$(BIN)/python -m benchmarks --evidence

bench-sizes: setup  ## measure the exchange on models of 64 MiB and 1 GiB; 16 GiB of memory
	@$(BIN)/python -m benchmarks --sizes

bench-kube: setup  ## measure the operator on a real API server, and with Karpenter and Kueue
	@hack/kube/assets.sh etcd kube-apiserver kube-controller-manager kube-scheduler kubectl karpenter kueue
	@$(BIN)/python -m benchmarks --kube

bench-quality: setup  ## measure what models learn; trains, and goes on where it was stopped
	@$(BIN)/python -m benchmarks --quality

bench-peers: setup  ## measure torchft, GradientMail, JobSet and torch DDP beside ours; root, and downloads of them
	@hack/kube/assets.sh etcd kube-apiserver kube-controller-manager kubectl jobset
	@$(BIN)/python -m benchmarks --peers

bench-smoke: setup  ## run every benchmark in a small size, without limits, and what is for a GPU without one
	@hack/kube/assets.sh etcd kube-apiserver kube-controller-manager kube-scheduler kubectl karpenter kueue
	@$(BIN)/python -m benchmarks --smoke
	@hack/device/run.sh --device cpu --strict --minutes 40

proto: setup  ## regenerate the wire's Python from diloco.proto
	@hack/proto.sh

crds: setup  ## regenerate crds/ and the chart's copy from the types
	@$(BIN)/diloco crd > crds/diloco.dev_dilocojobs.yaml
	@cp crds/*.yaml helm/diloco-operator/files/crds/

docs: setup  ## regenerate docs/api.md, docs/states.md, docs/runbook and docs/sizes.md, the values table of the chart, and the rights for grantors
	@$(BIN)/python hack/api_docs.py > docs/api.md
	@$(BIN)/python hack/chart_docs.py
	@$(BIN)/python hack/grantor_docs.py
	@$(BIN)/python hack/states_docs.py > docs/states.md
	@$(BIN)/python hack/runbook_docs.py
	@$(BIN)/python hack/sizes_docs.py

screenshots: setup  ## take the screenshots of docs/images again, in Chromium
	@PYTHONPATH=tests:hack $(BIN)/python hack/screenshots.py

site: setup  ## build the documents as a site with search, in site/; dead links stop it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "site/index.html is the first page; .venv/bin/mkdocs serve shows them while you write"

wheel: setup  ## build the wheels of diloco (x86_64, aarch64) and diloco-operator: dist/*.whl
	@hack/wheels.sh $(or $(WHEELS),dist)

release: setup  ## build the wheels, the chart and their checksums of VERSION=0.2.0 into dist/; with PUSH=1 the images too, pushed to REGISTRY
	@hack/kube/assets.sh helm
	@PATH="$$PWD/.tools/kube/bin:$$PATH" $(BIN)/python hack/release.py $(VERSION) --require wheels,chart$(if $(PUSH),$(comma)images --push) $(if $(REGISTRY),--registry $(REGISTRY))

images: setup  ## build all images for amd64 and arm64 with docker buildx: REGISTRY=registry.example.com/diloco PUSH=1, or here: LOAD=1
	@mkdir -p dist/images
# An attestation makes an index of an image, which kind cannot load: https://github.com/kubernetes-sigs/kind/issues/3795.
	@$(BIN)/python hack/image_plan.py $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(PUSH),--push) $(if $(LOAD),--load) | \
		$(if $(LOAD),BUILDX_NO_DEFAULT_ATTESTATIONS=1) docker buildx bake --file - $(TARGETS)

clean:  ## remove the environment, caches and what the demo left
	rm -rf $(VENV) .tools .demo .diloco .diloco-nodes .mypy_cache .ruff_cache .pytest_cache
