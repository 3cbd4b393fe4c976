# What a check is, is said here and nowhere else.

CARGO ?= cargo

.PHONY: check test valkey fuzz crash interop bench demo schema

## Format, lints and documentation without a warning.
check:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items --locked

## Every test that needs nothing but Rust.
test:
	$(CARGO) test --locked --no-fail-fast

## The tests that start a Redis, over a Valkey in its place.
valkey:
	mkdir -p target/valkey
	ln -sf "$$(command -v valkey-server)" target/valkey/redis-server
	ln -sf "$$(command -v valkey-cli)" target/valkey/redis-cli
	PATH="$(CURDIR)/target/valkey:$$PATH" sh -ec 'redis-server --version | grep Valkey; \
	  $(CARGO) test --locked --lib -- redis hub; $(CARGO) test --locked --test it -- redis:: replicas::'

## Each fuzz target for FUZZ_SECONDS (60) with cargo-fuzz, which needs a nightly toolchain; `make test` runs them without it.
FUZZ_SECONDS ?= 60
fuzz:
	for target in $$(ls tests/fuzz/corpus); do \
	  mkdir -p fuzz/corpus/$$target && \
	  $(CARGO) +nightly fuzz run $$target fuzz/corpus/$$target tests/fuzz/corpus/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=16384 || exit 1; \
	done

## CRASH_ROUNDS (1,000) rounds of the crash tests, from CRASH_SEED on, shared out among those whose names hold a word of
## CRASH_TESTS; all of them without it.
CRASH_ROUNDS ?= 1000
crash:
	CRASH_ROUNDS=$(CRASH_ROUNDS) $(CARGO) test --locked --test crash -- --nocapture --test-threads 1 $(CRASH_TESTS)

## Real clients, real servers and the official suite through the gateway; installs what they need.
interop:
	$(CARGO) build --locked
	tests/interop/run

## Ratios of one run; no test.
bench:
	$(CARGO) bench --bench gateway --locked

## Writes the files that are generated from the code.
schema:
	UPDATE=1 $(CARGO) test --locked --lib config
