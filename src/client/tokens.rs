//! Tokens that outlive the program: one file, for its owner alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::oauth::secret::Secret;
use crate::oauth::token::{Client, Method};

/// Far more than all tokens of a person.
const LONGEST: u64 = 1 << 20;
/// So many logins are kept; the oldest go.
const MOST: usize = 256;

/// What is kept of a login: its client and its tokens, which belong to one issuer and one resource and to no other.
#[derive(Debug, Clone)]
pub(super) struct Login {
    /// The URL that is called.
    pub(super) url: String,
    /// Who gave the tokens.
    pub(super) issuer: String,
    /// What they are good for.
    pub(super) resource: String,
    pub(super) client: Client,
    /// The client registered itself, for a redirect to this port.
    pub(super) registered_port: Option<u16>,
    pub(super) access: Secret,
    /// When the access token ends; `None` where nobody says.
    pub(super) expires: Option<Timestamp>,
    pub(super) refresh: Option<Secret>,
    /// The scopes that were asked for or given, separated by spaces.
    pub(super) scope: Option<String>,
}

/// Why tokens can't be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Others could read it.
    #[error("{} can be read by others; `chmod 600` it, and log in again if somebody may have", .0.display())]
    NotPrivate(PathBuf),
    /// It is not what this program writes.
    #[error("{} is not a file of tokens: {why}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system refuses.
    #[error("{}", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// The file.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    path: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct Document {
    version: u32,
    logins: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    url: String,
    issuer: String,
    resource: String,
    client_id: String,
    client_secret: Option<String>,
    #[serde(default)]
    secret_in_form: bool,
    registered_port: Option<u16>,
    access_token: String,
    /// Milliseconds since 1970.
    expires: Option<u64>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

const VERSION: u32 = 1;

impl TokenFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// What is kept; nothing where there is no file.
    ///
    /// # Errors
    /// Any [`Error`].
    pub(super) fn read(&self) -> Result<Vec<Login>, Error> {
        Ok(self.document()?.logins.into_iter().map(Login::from).collect())
    }

    /// Keeps a login in place of the one that it renews.
    ///
    /// # Errors
    /// Any [`Error`]; the file is as it was then.
    pub(super) fn keep(&self, login: &Login) -> Result<(), Error> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let failed = |error| Error::Io(self.path.clone(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        // Two programs that log in at the same time must not lose each other's tokens.
        let lock = private(OpenOptions::new().write(true).create(true).truncate(false))
            .open(self.beside("lock"))
            .map_err(failed)?;
        locked(&lock).map_err(failed)?;
        let mut document = self.document()?;
        document.version = VERSION;
        document.logins.retain(|entry| !login.renews(entry));
        document.logins.push(Entry::from(login));
        let surplus = document.logins.len().saturating_sub(MOST);
        document.logins.drain(..surplus);
        let text = serde_json::to_vec_pretty(&document).map_err(|error| failed(error.into()))?;
        self.replace(&text).map_err(failed)
    }

    fn document(&self) -> Result<Document, Error> {
        let failed = |error| Error::Io(self.path.clone(), error);
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Document::default()),
            opened => opened.map_err(failed)?,
        };
        // Of the file that was opened, not of whatever is at the path by then.
        let is_private = file.metadata().map_err(failed)?.mode() & 0o077 == 0;
        if !is_private {
            return Err(Error::NotPrivate(self.path.clone()));
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map_err(failed)?;
        let unreadable = |why: String| Error::Unreadable { path: self.path.clone(), why };
        let document: Document = serde_json::from_str(&text)
            .map_err(|error| unreadable(format!("line {} column {}", error.line(), error.column())))?;
        match document.version {
            VERSION => Ok(document),
            other => Err(unreadable(format!("it is of version {other}"))),
        }
    }

    /// Writes a new file and puts it in the old one's place: whoever reads meets the one or the other.
    fn replace(&self, text: &[u8]) -> io::Result<()> {
        let new = self.beside("new");
        // One that a crash has left behind.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private(OpenOptions::new().write(true).create_new(true)).open(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{ending}"));
        name.into()
    }
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

/// Takes the lock, which others hold for the time of one write.
fn locked(lock: &File) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    for _ in 0..500 {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::WouldBlock) => std::thread::park_timeout(PAUSE),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "another program does not let go of its lock"))
}

impl Login {
    fn renews(&self, entry: &Entry) -> bool {
        let is_own = self.registered_port.is_some() && entry.registered_port.is_some();
        entry.issuer == self.issuer && entry.resource == self.resource && (is_own || entry.client_id == self.client.id)
    }
}

impl From<Entry> for Login {
    fn from(entry: Entry) -> Self {
        let method = if entry.secret_in_form { Method::Post } else { Method::Basic };
        Self {
            url: entry.url,
            issuer: entry.issuer,
            resource: entry.resource,
            client: Client { id: entry.client_id, secret: entry.client_secret.map(Secret::from), method },
            registered_port: entry.registered_port,
            access: entry.access_token.into(),
            expires: entry.expires.map(Timestamp::from_millis),
            refresh: entry.refresh_token.map(Secret::from),
            scope: entry.scope,
        }
    }
}

impl From<&Login> for Entry {
    fn from(login: &Login) -> Self {
        // What the user gives with each login is not kept a second time.
        let secret = login.client.secret.as_ref().filter(|_| login.registered_port.is_some());
        Self {
            url: login.url.clone(),
            issuer: login.issuer.clone(),
            resource: login.resource.clone(),
            client_id: login.client.id.clone(),
            client_secret: secret.map(|secret| secret.reveal().to_owned()),
            secret_in_form: login.client.method == Method::Post,
            registered_port: login.registered_port,
            access_token: login.access.reveal().to_owned(),
            expires: login.expires.map(Timestamp::as_millis),
            refresh_token: login.refresh.as_ref().map(|token| token.reveal().to_owned()),
            scope: login.scope.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn login(issuer: &str, access: &str) -> Login {
        Login {
            url: "https://r.example/mcp".to_owned(),
            issuer: issuer.to_owned(),
            resource: "https://r.example/mcp".to_owned(),
            client: Client { id: "c".to_owned(), secret: Some("hush".into()), method: Method::Post },
            registered_port: None,
            access: access.into(),
            expires: Some(Timestamp::from_millis(5)),
            refresh: Some("r".into()),
            scope: None,
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn the_file_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/tokens.json");
        let file = TokenFile::new(path.clone());
        assert!(file.read().unwrap().is_empty());
        file.keep(&login("https://a.example", "one")).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap()), mode(&folder.path().join("a"))), (0o600, 0o700, 0o700));
        assert!(!fs::read_to_string(&path).unwrap().contains("hush"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(file.read(), Err(Error::NotPrivate(_))));
        assert!(matches!(file.keep(&login("https://a.example", "two")), Err(Error::NotPrivate(_))));
    }

    #[test]
    fn a_login_takes_the_place_of_the_one_it_renews() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::new(folder.path().join("tokens.json"));
        for (issuer, access) in
            [("https://a.example", "one"), ("https://b.example", "two"), ("https://a.example", "three")]
        {
            file.keep(&login(issuer, access)).unwrap();
        }
        let kept: Vec<_> = file.read().unwrap().iter().map(|login| login.access.reveal().to_owned()).collect();
        assert_eq!(kept, ["two", "three"]);
        // A client that registers itself has a new id each time.
        for id in ["x", "y"] {
            let client = Client { id: id.to_owned(), secret: Some("hush".into()), method: Method::Basic };
            file.keep(&Login { client, registered_port: Some(1), ..login("https://a.example", id) }).unwrap();
        }
        let kept = file.read().unwrap();
        let ids: Vec<_> = kept.iter().map(|login| &*login.client.id).collect();
        assert_eq!(ids, ["c", "c", "y"]);
        assert_eq!(kept[2].client.secret, Some("hush".into()));
    }

    #[test]
    fn anything_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        let file = TokenFile::new(path.clone());
        for text in ["", "{", "{\"version\":2,\"logins\":[]}", "[\"secret\"]"] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = file.keep(&login("https://a.example", "one")).unwrap_err();
            assert!(matches!(&error, Error::Unreadable { .. }) && !error.to_string().contains("secret"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
