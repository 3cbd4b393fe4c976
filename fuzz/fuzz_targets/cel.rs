//! `cel` of tests/fuzz/targets.rs.
#![no_main]
#![allow(dead_code, reason = "each program has all targets and runs one")]

#[path = "../../tests/fuzz/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::cel(data));
