//! Files in, mistakes or settings out.

mod authorize;
mod callers;
mod credentials;
mod documents;
mod edge;
mod hostile;
mod meaning;
mod mistakes;
mod stores;
mod weights;

use std::path::Path;

use super::{Errors, Settings, parse};

/// A file with nothing but what a file must have.
const ROUTE: &str = "routes: [{name: a, path: /mcp, upstream: {url: http://u/mcp}}]\n";

fn read_with(text: &str, env: &[(&str, &str)]) -> Result<Settings, Errors> {
    let env = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    parse(text, "taskgate.yaml", Path::new(""), &env)
}

/// The mistakes of a file, as `line:column: key: message`.
fn mistakes(text: &str) -> Vec<String> {
    match read_with(text, &[]) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.problems().iter().map(ToString::to_string).collect(),
    }
}

fn settings(text: &str) -> Settings {
    read_with(text, &[]).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

/// Lines of a route that is otherwise complete.
fn route_with(lines: &str) -> String {
    format!("routes:\n- name: a\n  path: /mcp\n{lines}")
}

/// Lines of a route's upstream.
fn upstream_with(lines: &str) -> String {
    route_with(&format!("  upstream:\n    url: http://u/mcp\n{lines}"))
}

/// Lines of a route's tasks.
fn tasks_with(lines: &str) -> String {
    upstream_with(&format!("  tasks:\n{lines}"))
}
