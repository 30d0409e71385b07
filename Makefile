# Everything that people and CI do here. `make help` lists it.
#
# Tests that need a ublk driver run in guests of the rig, test/vm, which builds
# what it needs once and keeps it in ~/.cache/csi-ublk.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# One way of building for everything, so that a package is compiled once and not
# once for each set of flags. The race detector alone needs cgo.
export CGO_ENABLED := 0
# go test has go vet read all that a package is made of, which takes a quarter of a first
# build; make lint calls it.
export GOFLAGS := -trimpath -buildvcs=false -vet=off

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BUILD := go build
LDFLAGS := -s -w -X main.version=$(VERSION:v%=%)

VM := bin/vm
RESULTS := out/test
# The tiers that `make test` runs, in this order. The lts kernel runs under emulation where there is no KVM, which is too slow to be
# among them: make test-kernel-lts.
TIERS := unit kernel-current kernel-fixed soak chart apiserver sanity cluster

# run runs one tier: it shows what `go test -json` says and keeps it for the count.
run = bin/report run -o $(RESULTS) $(1) -- $(2)
# alone is run for a tier that is no part of `make test`: it counts, and names what was skipped, too.
define alone
@$(call run,$(1),$(2)) || true
@bin/report sum -o $(RESULTS) $(1)
endef

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build

.PHONY: build vm report
build: ## Build bin/csi-ublk
	$(BUILD) -ldflags '$(LDFLAGS)' -o bin/csi-ublk ./cmd/csi-ublk
vm:
	@$(BUILD) -o $(VM) ./test/vm
report:
	@$(BUILD) -o bin/report ./test/report

.PHONY: image
image: vm ## Build the driver's image as out/csi-ublk-image.tar, for docker load or kind load image-archive
	$(VM) image --output out/csi-ublk-image.tar

.PHONY: generate
generate: ## Generate deepcopy code, CRDs, the gRPC API and docs/parameters.md
	go generate ./pkg/...
	go run ./test/reference > docs/parameters.md.new && mv docs/parameters.md.new docs/parameters.md

.PHONY: deploy-manifests
deploy-manifests: vm ## Render deploy/ from the chart
	$$($(VM) tool helm) template csi-ublk charts/csi-ublk --namespace csi-ublk --kube-version 1.34.0 > deploy/csi-ublk.yaml

##@ Test

.PHONY: test
test: ## Run all tiers; the last line counts
	@rm -rf $(RESULTS)
	@# The soak is one guest on one processor: another builds meanwhile what the tiers after it need.
	@ahead=; trap 'kill $$ahead 2>/dev/null || true' EXIT; \
	  for tier in $(TIERS); do \
	    if [ $$tier = soak ]; then $(VM) cluster prepare & ahead=$$!; fi; \
	    $(MAKE) test-$$tier || true; \
	  done
	@$(MAKE) report
	@bin/report sum -o $(RESULTS) $(TIERS)

.PHONY: test-unit
test-unit: report ## Unit tests, with the race detector
	$(call run,unit,env CGO_ENABLED=1 go test -race -timeout 5m -json ./...)

# Where the tests find the programs of a control plane.
apiserver = TEST_ASSET_ETCD=$$($(VM) tool etcd) TEST_ASSET_KUBE_APISERVER=$$($(VM) tool kube-apiserver)

.PHONY: test-chart
test-chart: report vm build ## Tests of the chart, with Helm and a real API server
	$(call run,chart,env HELM=$$($(VM) tool helm) DRIVER=$(CURDIR)/bin/csi-ublk $(apiserver) go test -tags helm -timeout 10m -json ./test/chart)

.PHONY: test-apiserver
test-apiserver: report vm ## The controller role against a real API server, with the race detector
	$(call run,apiserver,env CGO_ENABLED=1 $(apiserver) go test -race -tags kube -timeout 10m -json ./test/apiserver)

# Packages with tests behind the build tag ublk: those that need the driver.
KERNEL_PACKAGES = $(shell git grep --untracked -lE '^//go:build .*\bublk\b' -- '*_test.go' | xargs -r -n1 dirname | sort -u | sed 's|^|./|')
# kernel runs them in guests with the kernel $(1), which deletes devices the way $(2)
# says (docs/kernels.md), two guests at a time; $(3) are more flags, the last of which count, and $(4) packages to leave out.
# The kernel is made first: the time limits of go test are for tests, not for builds.
kernel = $(VM) kernel $(1) && $(call run,kernel-$(1),env UBLK_EXPECT_KIND=$(2) go test -tags ublk -p 2 -timeout 15m -json $(3) -exec '$(CURDIR)/$(VM) exec --kernel $(1) --with csi-ublk=$(CURDIR)/bin/csi-ublk --' $(filter-out $(4),$(KERNEL_PACKAGES)))

# The kernels current and fixed differ in how they delete devices: what has none, or only measures them, runs once.
RUN_ONCE = ./pkg/pool% ./pkg/driver/mount ./pkg/reconciler% ./pkg/bench

.PHONY: test-kernel test-kernel-current test-kernel-fixed test-kernel-lts
test-kernel: test-kernel-current test-kernel-fixed ## Tests against the real driver, on the kernels current and fixed
test-kernel-current: report vm build
	$(call kernel,current,LOCKED)
test-kernel-fixed: report vm build
	$(call kernel,fixed,UNLOCKED,,$(RUN_ONCE))
test-kernel-lts: report vm build ## A short pass on the LTS kernel, emulated where there is no KVM
	$(call kernel,lts,NOWAIT,-short -timeout 60m)

.PHONY: test-sanity
test-sanity: report vm ## The community's csi-sanity against the real driver on a node
	$(call run,sanity,test/sanity/run)

.PHONY: test-cluster
test-cluster: report vm ## Tests in a Kubernetes cluster of guests
	$(call run,cluster,test/e2e/run)

FOCUS ?=
.PHONY: test-external conformance
test-external: report vm ## Kubernetes' own storage tests in a cluster of guests [FOCUS=regexp]
	test/external/run '$(FOCUS)'
conformance: test-external ## The same, whole; writes docs/conformance.md
	test/external/write

.PHONY: e2e
e2e: report vm ## The same tests in any cluster with the driver: KUBECONFIG=FILE, FOCUS=REGEXP and SKIP=REGEXP for some cases
	$(call alone,e2e,test/e2e/any)

.PHONY: e2e-kind
e2e-kind: report vm ## The same in a kind cluster on this machine's kernel; says what the machine lacks (docs/kind.md)
	$(call alone,e2e-kind,test/e2e/kind/run)

.PHONY: vm-kind test-kind
vm-kind: report vm ## The same in a kind cluster in a guest, for machines without ublk or a registry
	$(call alone,vm-kind,test/e2e/kind/vm)
test-kind: report vm ## A claim on each of two kind nodes, and an inline volume, in a guest
	$(call alone,kind,env FOCUS='TestNodesOfOneKernel$$|TestInlineVolume$$/ext4' test/e2e/kind/vm)

MINUTES ?= 5
SOAK_KERNEL ?= current
.PHONY: soak test-soak
soak: vm build ## Churn with faults for MINUTES (5), on SOAK_KERNEL (current, fixed or lts)
	$(VM) kernel $(SOAK_KERNEL)
	$(call soak,$(SOAK_KERNEL),-v)
test-soak: report vm build
	$(VM) kernel current
	$(call run,soak,$(call soak,current,-json))
# soak runs it on the kernel $(1), with the flags $(2) of go test.
soak = go test -tags soak -count=1 -timeout $$(($(MINUTES) + 15))m $(2) -exec '$(CURDIR)/$(VM) exec --kernel $(1) --with csi-ublk=$(CURDIR)/bin/csi-ublk --' ./test/soak -soak $(MINUTES)m

.PHONY: bench
bench: build vm ## Benchmarks in a guest: the data path, and staging with and without templates
	$(VM) kernel current
	go test -tags ublk -run '^$$' -bench . -benchtime 2s -exec '$(CURDIR)/$(VM) exec --with csi-ublk=$(CURDIR)/bin/csi-ublk --' ./pkg/ublk ./pkg/driver/mount ./pkg/driver/node

# How much is measured in a guest, which has little of everything. A machine of one's
# own gets the defaults of csi-ublk bench churn, and so does a guest that is given a day:
#   make bench-churn BENCH_DEVICES=4000 BENCH_VOLUMES=200 BENCH_OTHERS=0,1000,4000 \
#     BENCH_IDLE=1000,4000 BENCH_PODS=1,16,64,200 BENCH_KERNELS='current fixed lts'
BENCH_ROUNDS ?= 5
BENCH_DEVICES ?= 200
BENCH_VOLUMES ?= 64
BENCH_OTHERS ?= 0,250,1000
BENCH_IDLE ?= 250,1000
BENCH_PODS ?= 1,16,64
BENCH_KERNELS ?= current fixed
BENCH_REST = --volumes $(BENCH_VOLUMES) --others $(BENCH_OTHERS) --idle $(BENCH_IDLE) --pods $(BENCH_PODS)
BENCH_FLAGS ?= --devices $(BENCH_DEVICES) $(BENCH_REST)

# NAME=KERNEL=BINARY, as test/bench/run takes them.
BENCH_ALL = $(foreach kernel,$(BENCH_KERNELS),$(kernel)=$(kernel)=bin/csi-ublk)

.PHONY: bench-churn bench-compare
bench-churn: build vm ## Measure pod churn on BENCH_KERNELS (current fixed), and in a cluster; writes docs/performance.md
	test/bench/run out/bench-kernel $(BENCH_ROUNDS) $(BENCH_ALL) -- --tables kernel --devices $(BENCH_DEVICES)
	test/bench/run out/bench-rest 2 $(BENCH_ALL) -- --tables lifecycle,growth,idle,node $(BENCH_REST)
	$(MAKE) bench-cluster
	test/bench/write out/bench-kernel out/bench-rest

PODS ?= 100
.PHONY: bench-cluster
bench-cluster: build vm ## Measure PODS (100) pods that come and go at once in a cluster of guests
	@mkdir -p out && rm -f out/bench-cluster.md
	E2E_CHURN=$(PODS) E2E_CHURN_REPORT=$(CURDIR)/out/bench-cluster.md test/e2e/run -test.run '^TestChurn$$' > out/bench-cluster.json
	@cat out/bench-cluster.md

bench-compare: build vm ## Measure pod churn of the revision BASE beside this one
	@test -n "$(BASE)" || { echo "say with what to compare: make bench-compare BASE=REVISION" >&2; exit 2; }
	test/bench/compare $(BASE) $(BENCH_ROUNDS) $(BENCH_FLAGS)

include test/vm/vm.mk

##@ Check

.PHONY: lint
lint: ## go vet, staticcheck, and the repository's own rules
	go vet ./...
	go vet -tags ublk,helm,kube,e2e,sanity,soak,rig ./...
	go tool staticcheck -tags ublk,helm,kube,e2e,sanity,soak,rig ./...
	go run ./test/lint

GENERATED = $(shell git ls-files 'pkg/**/*.pb.go' 'pkg/**/zz_generated*.go' 'charts/csi-ublk/files/crds/*.yaml' docs/parameters.md)

.PHONY: verify
verify: lint ## What CI demands: lint, formatted code, current generated files, a sound chart
	@bad=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	  if [ -n "$$bad" ]; then echo "not formatted; run gofmt -w on:"; echo "$$bad"; exit 1; fi
	@before=$$(sha256sum $(GENERATED)); $(MAKE) generate; \
	  if [ "$$before" != "$$(sha256sum $(GENERATED))" ]; then \
	    echo "generated files were not current; commit what make generate has made of them:"; git status --short $(GENERATED); exit 1; fi
	@$(MAKE) test-chart

##@ Try

.PHONY: demo
demo: vm ## A volume's life on a real ublk device, in a Kubernetes cluster of guests
	$(VM) demo

.PHONY: demo-down
demo-down: vm ## Remove the demo's cluster
	$(VM) demo-down

.PHONY: kind-up kind-down
kind-up: vm ## A kind cluster with the driver, on this machine's kernel, to try it (docs/kind.md)
	test/e2e/kind/up
kind-down: vm ## Delete it, with its volumes
	test/e2e/kind/down

.PHONY: clean
clean: ## Remove what was built here; the rig's cache stays (bin/vm clean --all)
	rm -rf bin out
