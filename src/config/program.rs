//! Whether the programs of `command` upstreams can be found. Apart from reading the file, because a file may be checked on
//! another machine than the one that it is for.

use std::{
    env,
    ffi::OsStr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{
    problem::{Errors, Problem, quote},
    settings::{Settings, UpstreamTarget},
};

/// Where programs are looked for without a `PATH`.
const USUAL_PATH: &str = "/bin:/usr/bin";

impl Settings {
    /// What is wrong with the programs that are to be started: each that can't be found or may not be run.
    pub fn missing_programs(&self) -> Vec<Problem> {
        let path = env::var_os("PATH");
        let path = path.as_deref().unwrap_or(OsStr::new(USUAL_PATH));
        let mut problems = Vec::new();
        for (index, route) in self.routes.iter().enumerate() {
            if let UpstreamTarget::Command { argv } = &route.upstream.target
                && let Some(program) = argv.first()
                && let Err(message) = find(program, path)
            {
                let path = format!("routes[{index}].upstream.command");
                problems.push(Problem { position: None, path, message });
            }
        }
        problems
    }

    /// The same settings, when every program that is to be started can be found. `file` is where they are from, if not
    /// from the command line.
    pub fn with_programs(self, file: Option<&Path>) -> Result<Self, Errors> {
        let source = file.map_or("the command".into(), Path::to_string_lossy);
        match Errors::of_all(&source, self.missing_programs()) {
            Some(errors) if file.is_none() => Err(errors.without_paths()),
            Some(errors) => Err(errors),
            None => Ok(self),
        }
    }
}

/// Looks for a program as the system does when it is started.
fn find(program: &str, path: &OsStr) -> Result<(), String> {
    if program.contains('/') {
        return match runnable(Path::new(program)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("the program {} is not executable", quote(program))),
            Err(error) => Err(format!("the program {} can't be used: {error}", quote(program))),
        };
    }
    let mut places = env::split_paths(path).map(|folder| -> PathBuf { folder.join(program) });
    if places.any(|place| runnable(&place).unwrap_or(false)) {
        return Ok(());
    }
    Err(format!("the program {} is not in any folder of `PATH`", quote(program)))
}

/// Whether there is a file that somebody may execute.
fn runnable(path: &Path) -> std::io::Result<bool> {
    let metadata = path.metadata()?;
    Ok(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn programs_are_found_as_the_system_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (good, plain) = (file("good", 0o755), file("plain", 0o644));
        let path = env::join_paths([Path::new("/nonexistent"), folder.path()]).unwrap();
        for program in ["good", &good] {
            assert_eq!(find(program, &path), Ok(()));
        }
        assert_eq!(
            find("good", OsStr::new("/nonexistent")).unwrap_err(),
            "the program `good` is not in any folder of `PATH`"
        );
        for (program, said) in [
            ("plain", "not in any folder"),
            ("no_such_program", "not in any folder"),
            (&plain, "is not executable"),
            (folder.path().to_str().unwrap(), "is not executable"),
            ("/nonexistent/program", "No such file"),
            ("./no\x1bsuch/program", "`./no\\u{1b}such/program` can't be used"),
        ] {
            let error = find(program, &path).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn only_commands_need_programs() {
        let settings = Settings::for_upstream_url("http://127.0.0.1:9000/mcp").unwrap();
        assert_eq!(settings.clone().with_programs(None).unwrap(), settings);
        let settings = Settings::for_command(vec!["/nonexistent/program".to_owned()]).unwrap();
        assert_eq!(settings.missing_programs()[0].path, "routes[0].upstream.command");
        let error = settings.clone().with_programs(None).unwrap_err().to_string();
        assert!(error.starts_with("the command: the program `/nonexistent/program`"), "{error}");
        let error = settings.with_programs(Some(Path::new("file"))).unwrap_err().to_string();
        assert!(error.starts_with("file: routes[0].upstream.command: the program `/nonexistent/program`"), "{error}");
        assert!(error.ends_with("1 mistake"), "{error}");
    }
}
