//! `taskgate call --login`: what the user says about it, the file of tokens, and their browser.

use std::fs::File;
use std::io::{Read, stderr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use clap::Args;
use http::header::AUTHORIZATION;

use crate::client::Credentials;
use crate::client::login::{Login, Options};
use crate::oauth::secret::Secret;

use super::call::CallArgs;
use super::screen::{harmless, write};

/// The longest file of a client's password, in bytes.
const LONGEST: u64 = 64 * 1024;

/// How to log in
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LoginArgs {
    /// Log in where the server asks for it, in the browser; what was got is kept for the next call that says --login
    #[arg(long)]
    pub login: bool,
    /// The id of a client that is registered at the authorization server
    #[arg(long, requires = "login", value_name = "ID")]
    pub client_id: Option<String>,
    /// A file with that client's password
    #[arg(long, requires = "client_id", value_name = "FILE")]
    pub client_secret_file: Option<PathBuf>,
    /// The https URL of a client's metadata document, which is its id where the authorization server takes such; the document
    /// has to allow http://127.0.0.1/callback on any port
    #[arg(long, requires = "login", value_name = "URL")]
    pub client_metadata_url: Option<String>,
    /// The scopes to ask for, instead of those that the server asks for
    #[arg(long, requires = "login", value_name = "SCOPES")]
    pub scope: Option<String>,
    /// The file of tokens; without it `taskgate/tokens.json` in $XDG_STATE_HOME or ~/.local/state
    #[arg(long, requires = "login", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Only print the URL, open no browser
    #[arg(long, requires = "login")]
    pub no_browser: bool,
}

/// The source of credentials that the arguments ask for.
///
/// # Errors
/// What is wrong with them.
pub(super) fn credentials(args: &CallArgs) -> Result<Option<Arc<dyn Credentials>>, String> {
    let login = &args.login;
    if !login.login {
        return Ok(None);
    }
    if args.headers.iter().any(|(name, _)| *name == AUTHORIZATION) {
        return Err("--login and an Authorization given by --header exclude each other".to_owned());
    }
    let secret = login.client_secret_file.as_deref().map(secret).transpose()?;
    let tokens = match &login.token_file {
        Some(file) => file.clone(),
        None => usual_file().ok_or("there is no home for the file of tokens: give --token-file")?,
    };
    let options = Options {
        url: args.url.clone(),
        client: login.client_id.clone().map(|id| (id, secret)),
        metadata_url: login.client_metadata_url.clone(),
        scope: login.scope.clone(),
        tokens,
    };
    let opens = !login.no_browser;
    let login = Login::new(options, Box::new(move |url| show(url, opens))).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(login)))
}

fn secret(path: &Path) -> Result<Secret, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(format!("{} is empty", path.display())),
        secret => Ok(secret.into()),
    }
}

/// Where programs keep such (XDG Base Directory Specification).
fn usual_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("taskgate/tokens.json"))
}

/// Prints the URL, and opens it if that can be done: what is printed works in any case.
fn show(url: &str, opens: bool) {
    write(&mut stderr(), &format!("Open this page to log in:\n\n  {}\n\n", harmless(url)));
    if !opens {
        return;
    }
    let chosen = ["TASKGATE_BROWSER", "BROWSER"].into_iter().find_map(std::env::var_os);
    let usual = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let program = chosen.unwrap_or_else(|| usual.into());
    // No shell sees the URL, and it begins with its scheme: it is no option of the program's either.
    let opened = tokio::process::Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opened {
        tracing::debug!(%error, "no browser was opened");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hush\n").unwrap();
        assert_eq!(secret(&path).unwrap(), "hush".into());
        std::fs::write(&path, "\n").unwrap();
        assert!(secret(&path).unwrap_err().contains("empty"));
        assert!(secret(&folder.path().join("none")).is_err());
    }
}
