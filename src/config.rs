//! The configuration: what a file may say, every mistake in one, and what it means.
//!
//! A file goes through four steps. `tree` reads YAML into values that know their place; `shape` checks keys and kinds
//! against the schema of `raw`, filling in the environment; `build` checks what the values mean; `Settings` is what
//! comes out, plain data that the modules' own `Config`s are made from. Each step goes on after a mistake, so that
//! `Errors` has all of them. Nothing else in the program reads the file, and no other module knows this one.

mod build;
mod describe;
mod environment;
mod problem;
mod program;
mod raw;
mod secret;
mod settings;
mod shape;
mod tree;
mod units;
mod values;

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use build::Builder;
use problem::Problems;
use shape::Checker;
use tree::Place;

pub use self::{
    describe::{describe, describe_callers},
    problem::{Errors, Position, Problem},
    secret::{SealKey, Secret},
    settings::{
        AdminSettings, ApiKey, AuthSettings, HttpUrl, IntrospectionSettings, JwtSettings, ListenSettings,
        RedisSettings, ReplicaSettings, RouteSettings, SecretsSettings, SessionSettings, Settings, StoreSettings,
        TenantLimits, TenantSettings, UpstreamCredentials, UpstreamSettings, UpstreamTarget, UpstreamTls,
    },
    units::{ByteSize, Rate, RateLimit},
};

/// Reads a file. `env` answers for `${NAME}`; paths in the file are relative to it.
pub fn load(path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Settings, Errors> {
    let name = path.to_string_lossy();
    let bytes = read(path).map_err(|error| Errors::of_file(&name, format!("cannot read the file: {error}")))?;
    let text = utf8(&bytes).map_err(|problem| Errors::of(&name, problem))?;
    parse(text, &name, path.parent().unwrap_or(Path::new("")), env)
}

/// Reads the text of a file. `file` is its name in messages, `base` what paths in it are relative to.
pub fn parse(text: &str, file: &str, base: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Settings, Errors> {
    let mut problems = Problems::default();
    let tree = tree::read(text, &mut problems);
    let Some(tree) = tree.as_deref() else {
        problems.finish(file)?;
        return Err(Errors::of_file(file, "the file is empty; it needs at least `routes`"));
    };
    let root = Place::root(Some(tree));
    let schema = raw::schema();
    let shape = Checker { root: schema, env, problems: &mut problems }.value(&root, schema);
    let raw = match serde_json::from_value(shape.unwrap_or_default()) {
        Ok(raw) => raw,
        // Only when there is nothing to build from, which has been reported. serde's own words could show a secret.
        Err(_) => {
            problems.error(&root, "cannot be used");
            raw::File::default()
        }
    };
    let settings = Builder { problems: &mut problems, base }.settings(raw, &root);
    finish(settings, problems, file)
}

impl Settings {
    /// One route `default` at `/mcp` in front of a server that speaks streamable HTTP: `serve --upstream URL`.
    pub fn for_upstream_url(url: &str) -> Result<Self, Errors> {
        let upstream = raw::Upstream { url: Some(url.to_owned()), ..raw::Upstream::default() };
        Self::for_upstream(upstream, "--upstream")
    }

    /// One route `default` at `/mcp` in front of a server that speaks stdio: `serve -- COMMAND ARG...`.
    pub fn for_command(argv: Vec<String>) -> Result<Self, Errors> {
        let upstream = raw::Upstream { command: Some(argv), ..raw::Upstream::default() };
        Self::for_upstream(upstream, "the command")
    }

    fn for_upstream(upstream: raw::Upstream, source: &str) -> Result<Self, Errors> {
        let route = raw::Route {
            name: Some("default".to_owned()),
            path: Some("/mcp".to_owned()),
            upstream: Some(upstream),
            ..raw::Route::default()
        };
        let raw = raw::File { routes: vec![route], ..raw::File::default() };
        let mut problems = Problems::default();
        let settings = Builder { problems: &mut problems, base: Path::new("") }.settings(raw, &Place::root(None));
        finish(settings, problems, source).map_err(Errors::without_paths)
    }
}

fn finish(settings: Option<Settings>, problems: Problems, file: &str) -> Result<Settings, Errors> {
    let warnings = problems.finish(file)?;
    match settings {
        Some(settings) => Ok(Settings { warnings, ..settings }),
        None => Err(Errors::of_file(file, "cannot be used")),
    }
}

/// The bytes of a file, and no more than one over the bound.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(tree::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn utf8(bytes: &[u8]) -> Result<&str, Problem> {
    let error = match str::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    let valid = bytes.get(..error.valid_up_to()).and_then(|valid| str::from_utf8(valid).ok()).unwrap_or_default();
    let line = valid.matches('\n').count() + 1;
    let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let message = "the file is not UTF-8".to_owned();
    Err(Problem { position: Some(Position { line, column }), path: String::new(), message })
}
