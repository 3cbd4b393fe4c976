# What a check is, is said here and nowhere else.

CARGO ?= cargo

.PHONY: check test interop bench demo schema

## Format, lints and documentation without a warning.
check:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items --locked

## Every test that needs nothing but Rust.
test:
	$(CARGO) test --locked --no-fail-fast

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
