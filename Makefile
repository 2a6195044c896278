# A front for CMake and the scripts in tools/; `make help` lists what there is.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CMAKE_ARGS ?=

.PHONY: all help deps configure build demo check test soak bench lint format install clean

all: build

help:
	@echo "make demo      a long text on 2 ranks that share one cache, and questions about it"
	@echo "make test      everything but the long runs"
	@echo "make check     the quick tests, under a minute"
	@echo "make soak      the long runs: hours"
	@echo "make bench     benchmarks with their ceilings"
	@echo "make lint      the rules of the house; make format applies the layout"
	@echo "make install   to PREFIX ($(PREFIX))"
	@echo "make deps      install what is missing from Debian's packages"

deps:
	@tools/setup

# after deps even under make -j, without being made again because of it
$(BUILD)/build.ninja: | deps
	@cmake -S . -B $(BUILD) -G Ninja $(CMAKE_ARGS)

configure: $(BUILD)/build.ninja

build: deps configure
	@cmake --build $(BUILD) -j $(JOBS)

demo: build
	@tools/demo $(BUILD)

check: build
	@tools/run_tests $(BUILD) -L quick -LE 'slow|soak'

test: build
	@tools/run_tests $(BUILD) -LE soak

soak: build
	@tools/soak $(BUILD)

bench: build
	@tools/bench $(BUILD)

lint: build
	@tools/run_tests $(BUILD) -L lint

format:
	@tools/lint --fix

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD)
