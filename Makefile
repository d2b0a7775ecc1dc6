# kube-nft. A blank `make` lists the targets.
SHELL := /bin/bash
GO ?= go
BIN := bin/kube-nft
PLUGIN := kubectl-kube_nft
# kubectl runs this one for the shell.
PLUGIN_COMPLETION := kubectl_complete-kube_nft
# Debian packages for tests; kube-nft itself needs none of them.
PACKAGES := nftables iptables ipset iproute2 conntrack strace socat gcc libc6-dev
define PACKAGES_WHY
  nftables           to list and load what kube-nft programs
  iptables, ipset    to make what kube-proxy leaves on a node
  iproute2           to lay out networks in namespaces
  conntrack          to look at connections
  strace, socat      to let system calls fail, and to hold connections
  gcc, libc6-dev     for the race detector
endef
IMAGE_PACKAGES := buildah
define IMAGE_PACKAGES_WHY
  buildah            to build the image
endef
KERNEL_PACKAGES := qemu-system-x86 debootstrap e2fsprogs busybox-static cpio kmod zstd xz-utils
define KERNEL_PACKAGES_WHY
  qemu-system-x86    to boot other kernels
  debootstrap        to make the userland of the guests
  the others         to make file systems, and to unpack kernels
endef
export PACKAGES_WHY IMAGE_PACKAGES_WHY KERNEL_PACKAGES_WHY
# Flags for go test; .ci/run passes -v to see what was skipped.
TESTFLAGS ?=
# go test keeps results, but does not see the kernel, nft and the load of the machine, on which ours depend.
FRESH = $(GO) test -count=1 -timeout 60m
FUZZTIME ?= 60s
# The program that draws charts is a module of its own.
CHARTS := integration/scale/chart
# So is the one that writes bills of materials.
MODULES := . $(CHARTS) integration/release/sbom
# Programs that tests and lint run. Each is built once, into bin, as a file with its version.
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOLANGCI_LINT_BIN := $(CURDIR)/bin/$(notdir $(GOLANGCI_LINT))
HELM := helm.sh/helm/v4/cmd/helm@v4.3.1
HELM_BIN := $(CURDIR)/bin/$(notdir $(HELM))
# Later versions need modules that the module proxy does not serve.
NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
NFPM_BIN := $(CURDIR)/bin/$(notdir $(NFPM))
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.3.0
export CGO_ENABLED := 0
export GOFLAGS := -trimpath

.PHONY: help build install uninstall run check test test-unit test-kernel kernels golden fuzz bench scale compare soak chaos lint gofmt vet vuln helm nfpm release release-test image image-test packages image-packages kernel-packages

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the static binary bin/kube-nft, which is the kubectl plug-in as bin/kubectl-kube_nft
	$(GO) build -o $(BIN) ./cmd/kube-nft
	ln -sf $(notdir $(BIN)) $(dir $(BIN))$(PLUGIN)
	ln -sf $(notdir $(BIN)) $(dir $(BIN))$(PLUGIN_COMPLETION)

# Where make install puts things; DESTDIR is for packagers.
PREFIX ?= /usr/local
MAN := $(DESTDIR)$(PREFIX)/share/man/man8
COMPLETIONS := bash-completion/completions/kube-nft zsh/site-functions/_kube-nft fish/vendor_completions.d/kube-nft.fish

install: build ## put program, kubectl plug-in, man pages, completions and the systemd unit below DESTDIR and PREFIX (/usr/local)
	install -D -m 755 $(BIN) $(DESTDIR)$(PREFIX)/sbin/kube-nft
	install -d $(DESTDIR)$(PREFIX)/bin $(MAN)
	ln -sf ../sbin/kube-nft $(DESTDIR)$(PREFIX)/bin/$(PLUGIN)
	ln -sf ../sbin/kube-nft $(DESTDIR)$(PREFIX)/bin/$(PLUGIN_COMPLETION)
	$(GO) run -tags man ./cmd/kube-nft man --date $$(git log -1 --format=%ct 2>/dev/null || echo 0) $(MAN)
	@for file in $(COMPLETIONS); do shell=$${file%%/*}; \
	  install -d $(DESTDIR)$(PREFIX)/share/$${file%/*} && \
	  $(BIN) completion $${shell%-completion} >$(DESTDIR)$(PREFIX)/share/$$file || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's,/usr/local/sbin,$(PREFIX)/sbin,' deploy/systemd/kube-nft.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/kube-nft.service

uninstall: ## remove what make install has put there; the rules in the kernel stay
	rm -f $(DESTDIR)$(PREFIX)/sbin/kube-nft $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(PLUGIN) $(PLUGIN_COMPLETION)) \
	  $(addprefix $(DESTDIR)$(PREFIX)/share/,$(COMPLETIONS)) $(DESTDIR)$(PREFIX)/lib/systemd/system/kube-nft.service \
	  $(MAN)/kube-nft.8 $(MAN)/kube-nft-*.8 $(MAN)/kubectl-kube-nft.8 $(MAN)/kubectl-kube-nft-*.8

run: build ## show it at work: namespaces, traffic, a change, clean up (root)
	$(GO) run ./integration/demo -binary $(BIN) -manifests deploy/examples

# install NAME: those of the packages in the variable NAME that are not there, after it has said
# which and why.
define install
@for p in $($(1)); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing+=" $$p"; done; \
if [ -n "$$missing" ]; then \
  printf 'make: installs the Debian packages%s; this is what the tests use:\n%s\n' "$$missing" "$$$(1)_WHY"; \
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi
endef

packages:
	$(call install,PACKAGES)

image-packages:
	$(call install,IMAGE_PACKAGES)

kernel-packages:
	$(call install,KERNEL_PACKAGES)

check: gofmt vet test-unit ## gofmt, go vet and unit tests: neither root nor Debian packages nor tools to build

# The second run is what make check has of the tests in namespaces: they are skipped, and must not fail.
test: packages helm ## all tests: unit, golden, kernel and packet tests (root)
	KUBE_NFT_REQUIRE_KERNEL=1 $(FRESH) $(TESTFLAGS) ./...
	KUBE_NFT_REQUIRE_KERNEL=0 $(FRESH) -short ./integration/...
	CGO_ENABLED=1 $(FRESH) -race -short ./tracker/... ./sync/... ./cmd/kube-nft/daemon/...
	for module in $(wordlist 2,9,$(MODULES)); do (cd $$module && $(FRESH) $(TESTFLAGS) ./...) || exit 1; done

test-unit: ## tests without namespaces, nft and long runs
	KUBE_NFT_REQUIRE_KERNEL=0 $(GO) test -short ./...

test-kernel: packages ## kernel and packet tests alone (root)
	KUBE_NFT_REQUIRE_KERNEL=1 $(FRESH) $(TESTFLAGS) -run 'Kernel|Cases|Packets' ./nft/... ./conntrack/... ./integration/...

kernels: kernel-packages ## tests of packets, kernel and migration on Debian's kernels, in QEMU: SUITES (bullseye bookworm trixie trixie-backports); hours without KVM (root, Debian)
	integration/kernels/run $(SUITES)

golden: ## rewrite golden outputs, the generated tables of docs and the schemas of documents; review the difference (root)
	$(GO) test ./integration/golden ./tracker ./cmd/kube-nft/config ./cmd/kube-nft/daemon -run 'Golden|AreDocumented' -update
	$(GO) test ./cmd/kube-nft -run 'TestGet|TestExplain|TestStatus' -update
	$(GO) test ./cmd/kube-nft ./cmd/kube-nft/{inspect,move,cluster} -run 'TestSchemas?$$' -update

fuzz: ## every fuzz target for FUZZTIME (60s)
	@for package in $$($(GO) list ./...); do \
	  list=$$($(GO) test -list '^Fuzz' $$package) || { echo "$$list"; exit 1; }; \
	  for target in $$(grep '^Fuzz' <<<"$$list"); do \
	    echo "$$package $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
	  done; \
	done

bench: ## benchmarks, in the format that benchstat reads (root)
	$(GO) test -run '^$$' -bench . -benchmem ./tracker/... ./nft/... ./conntrack/... ./integration/...

scale: build ## measure clusters of up to 30,000 Services next to the kernel's floor, and worst cases next to friendly twins; writes integration/results (root)
	$(GO) run ./integration/scale -binary $(BIN) -out integration/results
	cd $(CHARTS) && $(GO) run . -results ../../results

# Of compare. They have commas, which end an argument of a function of make.
MODES ?= nftables,iptables
SIZES ?= 100x4,1000x4,5000x4,10000x4,30000x4
compare: build ## kube-nft, PEER=PROGRAM (a kube-proxy) in its MODES (nftables,iptables), and a static map, in clusters of SIZES for TIME each; writes to OUT if set (root, nft)
	PATH="$$PATH:/usr/sbin" $(GO) run ./integration/scale -binary $(BIN) -parts compare -peer "$(PEER)" -modes $(MODES) \
	  -sizes $(SIZES) -churn $(or $(TIME),10s) -patience $(or $(PATIENCE),5m) -out "$(OUT)"
	$(if $(OUT),cd $(CHARTS) && $(GO) run . -compare -results $(abspath $(OUT)))

soak: build ## random churn, drift and API faults for DURATION (10m): no leak, no wrong delivery, no difference at the end (root, nft)
	$(GO) run ./integration/soak -binary $(BIN) -duration $(or $(DURATION),10m)

chaos: build ## churn, API faults, kills of kube-nft and changing addresses for DURATION (15m): no exchange may fail (root, nft)
	$(GO) run ./integration/soak -binary $(BIN) -duration $(or $(DURATION),15m) -chaos

# The first run builds golangci-lint and analyses the dependencies: some minutes on two cores.
lint: $(GOLANGCI_LINT_BIN) ## golangci-lint with the linters of .golangci.yml; modules are tidy and what go.sum says
	@for module in $(MODULES); do \
	  (cd $$module && $(GOLANGCI_LINT_BIN) run ./... && $(GO) mod tidy -diff && $(GO) mod verify) || exit 1; done

gofmt:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"

vet:
	@for module in $(MODULES); do (cd $$module && $(GO) vet ./...) || exit 1; done

nfpm: $(NFPM_BIN) # makes .deb and .rpm
	@ln -sf $(notdir $(NFPM_BIN)) bin/nfpm

helm: $(HELM_BIN) ## build helm into bin, for the tests of the chart
	@ln -sf $(notdir $(HELM_BIN)) bin/helm

# go install makes bin/NAME; the file gets the version that the Makefile names.
$(GOLANGCI_LINT_BIN): PROGRAM := $(GOLANGCI_LINT)
$(HELM_BIN): PROGRAM := $(HELM)
$(NFPM_BIN): PROGRAM := $(NFPM)
$(GOLANGCI_LINT_BIN) $(HELM_BIN) $(NFPM_BIN):
	@work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && mkdir -p $(@D) && \
	echo "$(GO) install $(PROGRAM)" && GOBIN="$$work" $(GO) install $(PROGRAM) && mv "$$work"/* $@

vuln: ## known vulnerabilities that the code can reach, from vuln.go.dev (network)
	$(GO) run $(GOVULNCHECK) ./...

release: helm nfpm ## make everything of the version that the commit is tagged with, in dist (buildah); see docs/release.md
	./deploy/release.sh

release-test: helm nfpm image-packages ## make a release twice, compare byte for byte, and install from it (root, Debian)
	./deploy/release-test.sh

image: ## build the container image; IMAGE, BUILDER, BUILD_IMAGE, FINAL_IMAGE: see docs/install.md
	./deploy/image.sh

image-test: image-packages ## build the image without a registry and run it (root, Debian)
	./deploy/image-test.sh
