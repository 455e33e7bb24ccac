# The product builds without cgo; only the race detector needs it.
export CGO_ENABLED ?= 0

GO        ?= go
CACHE     ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mlxvfio
LINT_VER  := v2.15.0
LINT      := $(CACHE)/bin/golangci-lint
FUZZTIME  ?= 20s
NIGHTTIME ?= 10m
PKGS      ?= ./...
SEEDS     ?= 100
BENCHTIME ?= 1s

.PHONY: all build man test race lint generate faults fuzz nightly vm bench clean

all: build

build:                       ## the command, into ./mlxvfio
	$(GO) build -o mlxvfio ./cmd/mlxvfio

man:                         ## manual pages, into out/man/man1
	$(GO) run ./cmd/mlxvfio man --dir out/man/man1

test:                        ## every test that needs no hardware and no VM
	$(GO) vet ./...
	$(GO) test ./...

race:                        ## the same under the race detector (needs gcc)
	CGO_ENABLED=1 $(GO) test -race -timeout 30m ./...

lint: $(LINT)                ## format, vet, golangci-lint with the import rules
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt needed: $$out"; exit 1; }
	$(LINT) run ./...
	$(GO) mod verify

$(LINT):
	GOBIN=$(CACHE)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VER)

generate:                    ## layouts from their tables
	$(GO) generate ./...

fuzz:                        ## every fuzz target of PKGS for FUZZTIME each
	GO="$(GO)" FUZZFLAGS="$(FUZZFLAGS)" test/fuzz $(FUZZTIME) $(PKGS)

nightly:                     ## what takes hours: the race detector with SEEDS seeds of the property tests, and fuzzing for NIGHTTIME a target, whatever the first says
	@bad=; \
	CGO_ENABLED=1 MLXVFIO_SEEDS=$(SEEDS) $(GO) test -race -count=1 -timeout 4h $(PKGS) || bad="$$bad race"; \
	$(MAKE) fuzz FUZZTIME=$(NIGHTTIME) || bad="$$bad fuzz"; \
	test -z "$$bad" || { echo "failed:$$bad"; exit 1; }

faults:                      ## writes the fault tables of docs/testing.md from what the tests observe
	MLXVFIO_UPDATE=1 $(GO) test -p 1 -count=1 -run 'Fault|KernelErrors|ErrorCompletions|Guarantees' $$(grep -rl --include='*_test.go' mlxvfio/internal/faultdoc\" . | xargs -n1 dirname | sort -u)

bench:                       ## benchmarks; compare the ratios, not the times
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

vm:                          ## real kernels on the model, in QEMU (see docs/testing.md)
	test/vm/run

clean:
	rm -rf mlxvfio out
