//! The commands.

pub mod call;
pub mod demo;
mod form;
mod screen;
