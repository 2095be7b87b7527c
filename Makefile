# `make demo` and `make test` set up what they need, once. DEVICE=cuda sets up for GPUs.
DEVICE ?= cpu
export PATH := $(CURDIR)/.venv/bin:$(PATH)

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: system .venv/ready .venv-vllm/ready ## everything that the commands below need

system:
	@scripts/setup.sh system

.venv/ready: requirements/pipeline.txt requirements/dev.txt requirements/model.txt pyproject.toml | system
	@scripts/setup.sh pipeline $(DEVICE)

.venv-vllm/ready: requirements/serving.txt requirements/serving-cuda.txt | system
	@scripts/setup.sh serving $(DEVICE)

demo: setup ## the whole line on two CPU cores: about 13 minutes after set-up
	@dvc repro
	@cat data/demo/report/summary.txt

check: .venv/ready ## ruff, mypy --strict, layout
	@ruff check . && ruff format --check . && mypy && pytest -q tests/test_layout.py

test: setup ## all tests, with one real end-to-end run in miniature
	@pytest -m "not proof"

proofs: setup ## kills and long runs
	@pytest -m proof

bench: setup ## the measured claims, one JSON line each
	@set -e; for file in benchmarks/[a-z]*.py; do name=$$(basename $$file .py); echo "== $$name"; python -m benchmarks.$$name; done

lock: .venv/ready ## compile requirements/*.in again
	@scripts/lock.sh

clean: ## remove work files and outputs, keep environments and the ledger
	@rm -rf data reports && find .work -mindepth 1 -maxdepth 1 ! -name ledger -exec rm -rf {} +

.PHONY: help setup system demo check test proofs bench lock clean
