//! How tasks look on the wire, one room for each dialect. Dialects render records; they decide nothing.

pub mod core;
pub mod extension;
