//! Capabilities on each hop: what the client declared, what an upstream may be told of it, and what the gateway adds.

use crate::jsonrpc::{Defect, Object};

use super::version::ProtocolVersion;
use super::{TASKS_EXTENSION, may_hold};

/// What a client declared that it can answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ClientCapabilities {
    /// Elicitation by form.
    pub form: bool,
    /// Elicitation by URL.
    pub url: bool,
    /// Sampling.
    pub sampling: bool,
    /// Sampling with tools.
    pub sampling_tools: bool,
    /// Roots.
    pub roots: bool,
}

/// Why a question may not be put to a client (2025-11-25 lifecycle, "Operation": only negotiated capabilities).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undeclared {
    /// The whole capability is missing: the method does not exist there.
    Method,
    /// The capability is there, but not this mode or feature.
    Feature,
}

impl ClientCapabilities {
    /// Reads the `capabilities` of an `initialize` request. A member of an unexpected type counts as declared, as
    /// presence is what the specification asks for.
    ///
    /// # Errors
    /// When the text is no JSON object.
    pub fn read(capabilities: &str) -> Result<Self, Defect> {
        if capabilities == "{}" {
            return Ok(Self::default());
        }
        let all = Object::parse(capabilities)?;
        let inside = |name: &str| all.get(name).and_then(|inside| Object::parse(inside).ok()).unwrap_or_default();
        let elicitation = inside("elicitation");
        let url = elicitation.get("url").is_some();
        Ok(Self {
            // 2025-11-25 elicitation, "Capabilities": an empty object means form only.
            form: all.get("elicitation").is_some() && (elicitation.get("form").is_some() || !url),
            url,
            sampling: all.get("sampling").is_some(),
            sampling_tools: inside("sampling").get("tools").is_some(),
            roots: all.get("roots").is_some(),
        })
    }

    /// The `capabilities` of an `initialize` request that declares exactly this.
    #[must_use]
    pub fn to_json(self) -> String {
        let feature = |declared: bool, text: &'static str| if declared { text } else { "" };
        let comma = if self.form && self.url { "," } else { "" };
        let elicitation = format!(
            "\"elicitation\":{{{}{comma}{}}}",
            feature(self.form, "\"form\":{}"),
            feature(self.url, "\"url\":{}")
        );
        let sampling = format!("\"sampling\":{{{}}}", feature(self.sampling_tools, "\"tools\":{}"));
        let declared = [
            (self.form || self.url).then_some(elicitation),
            (self.sampling || self.sampling_tools).then_some(sampling),
            self.roots.then(|| "\"roots\":{}".to_owned()),
        ];
        format!("{{{}}}", declared.into_iter().flatten().collect::<Vec<_>>().join(","))
    }

    /// As bits, for a sealed token.
    #[must_use]
    pub fn to_bits(self) -> u8 {
        [self.form, self.url, self.sampling, self.sampling_tools, self.roots]
            .into_iter()
            .enumerate()
            .fold(0, |bits, (place, declared)| bits | (u8::from(declared) << place))
    }

    /// The reverse of [`ClientCapabilities::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        let declared = |place: u8| bits & (1 << place) != 0;
        Self {
            form: declared(0),
            url: declared(1),
            sampling: declared(2),
            sampling_tools: declared(3),
            roots: declared(4),
        }
    }

    /// Whether a client that declared this may get a question.
    ///
    /// # Errors
    /// What is missing. A method that is no question at all is [`Undeclared::Method`].
    pub fn permit(self, method: &str, params: Option<&str>) -> Result<(), Undeclared> {
        let params = Object::parse(params.unwrap_or("{}")).unwrap_or_default();
        let (whole, feature) = match method {
            "elicitation/create" if params.get("mode") == Some("\"url\"") => (self.form || self.url, self.url),
            "elicitation/create" => (self.form || self.url, self.form),
            "sampling/createMessage" => {
                let uses_tools = params.get("tools").is_some() || params.get("toolChoice").is_some();
                (self.sampling, self.sampling_tools || !uses_tools)
            }
            "roots/list" => (self.roots, self.roots),
            _ => (false, false),
        };
        match (whole, feature) {
            (false, _) => Err(Undeclared::Method),
            (true, false) => Err(Undeclared::Feature),
            (true, true) => Ok(()),
        }
    }

    /// What both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::from_bits(self.to_bits() & other.to_bits())
    }
}

/// The client's `capabilities` as an upstream of that version may see them: never tasks in either dialect, and
/// nothing that the version lacks or would misread.
///
/// # Errors
/// When the text is no JSON object.
pub fn for_upstream(capabilities: &str, version: ProtocolVersion) -> Result<String, Defect> {
    let mut all = Object::parse(capabilities)?;
    all.remove("tasks");
    remove_tasks_extension(&mut all);
    narrow(&mut all, version)?;
    Ok(all.to_json())
}

/// Whether capabilities speak of tasks in either dialect, declared or not: then not all of them is an upstream's to see.
#[must_use]
pub fn name_tasks(capabilities: &str) -> bool {
    if !may_hold(capabilities, "tasks") {
        return false;
    }
    let Ok(all) = Object::parse(capabilities) else { return false };
    let extensions = all.get("extensions").and_then(|extensions| Object::parse(extensions).ok());
    all.get("tasks").is_some() || extensions.is_some_and(|extensions| extensions.get(TASKS_EXTENSION).is_some())
}

/// The same for an upstream that does tasks itself: only what the version would misread is left out.
///
/// # Errors
/// When the text is no JSON object.
pub fn for_native_upstream(capabilities: &str, version: ProtocolVersion) -> Result<String, Defect> {
    let mut all = Object::parse(capabilities)?;
    narrow(&mut all, version)?;
    Ok(all.to_json())
}

fn narrow(capabilities: &mut Object<'_>, version: ProtocolVersion) -> Result<(), Defect> {
    if version.has_url_elicitation() {
        return Ok(());
    }
    // A client that takes URLs only would look like one that takes forms.
    match ClientCapabilities::read(&capabilities.to_json())?.form && version.has_elicitation() {
        true => capabilities.set("elicitation", "{}"),
        false => capabilities.remove("elicitation"),
    };
    if capabilities.get("sampling").is_some() {
        capabilities.set("sampling", "{}");
    }
    Ok(())
}

/// A legacy client's `capabilities`, as `initialize` said them, for a modern upstream: as [`for_upstream`] has
/// them, and without the roots' change notifications, which are gone from that era.
///
/// # Errors
/// When the text is no JSON object.
pub fn of_legacy_client(capabilities: &str) -> Result<String, Defect> {
    let seen = for_upstream(capabilities, ProtocolVersion::LATEST_MODERN)?;
    let mut all = Object::parse(&seen)?;
    let roots = all.get("roots").unwrap_or("{}").to_owned();
    if let Ok(mut roots) = Object::parse(&roots)
        && roots.get("listChanged").is_some()
    {
        all.set("roots", roots.remove("listChanged").to_json());
    }
    Ok(all.to_json())
}

/// The extension belongs to the other era: on neither hop does it mean anything in this one.
fn remove_tasks_extension(capabilities: &mut Object<'_>) {
    let Some(extensions) = capabilities.get("extensions").map(str::to_owned) else { return };
    let Ok(mut extensions) = Object::parse(&extensions) else { return };
    if extensions.get(TASKS_EXTENSION).is_none() {
        return;
    }
    extensions.remove(TASKS_EXTENSION);
    match extensions.is_empty() {
        true => capabilities.remove("extensions"),
        false => capabilities.set("extensions", extensions.to_json()),
    };
}

/// The server's `capabilities`, of either era, as a client of the core dialect sees them: an upstream's own `tasks`
/// hidden, the gateway's in their place where there are tools (2025-11-25 tasks, "Server Capabilities").
///
/// `list` only where callers can be told apart.
///
/// # Errors
/// When the text is no JSON object.
pub fn for_client(capabilities: &str, tasks: Option<TaskCapability>) -> Result<String, Defect> {
    let mut all = Object::parse(capabilities)?;
    all.remove("tasks");
    remove_tasks_extension(&mut all);
    match tasks {
        Some(TaskCapability { list }) if all.get("tools").is_some() => {
            let list = if list { "\"list\":{}," } else { "" };
            all.set("tasks", format!("{{{list}\"cancel\":{{}},\"requests\":{{\"tools\":{{\"call\":{{}}}}}}}}"));
        }
        Some(_) | None => {}
    }
    Ok(all.to_json())
}

/// The server's `capabilities`, of either era, as a modern client sees them: an upstream's own tasks hidden in either
/// dialect, and the extension in their place where there are tools and the gateway makes tasks (tasks extension,
/// "Capabilities").
///
/// # Errors
/// When the text is no JSON object.
pub fn for_modern_client(capabilities: &str, tasks: bool) -> Result<String, Defect> {
    let mut all = Object::parse(capabilities)?;
    all.remove("tasks");
    remove_tasks_extension(&mut all);
    if tasks && all.get("tools").is_some() {
        let extensions = all.get("extensions").unwrap_or("{}").to_owned();
        let mut extensions = Object::parse(&extensions).unwrap_or_default();
        all.set("extensions", extensions.set(TASKS_EXTENSION, "{}").to_json());
    }
    Ok(all.to_json())
}

/// The tasks that a session gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskCapability {
    /// `tasks/list` is served.
    pub list: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_named_in_either_dialect_and_however_they_are_escaped() {
        for text in [
            r#"{"tasks":{}}"#,
            r#"{"t\u0061sks":{}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":true}}"#,
            r#"{"extensions":{"io.m\u006fdelcontextprotocol/tasks":{}}}"#,
        ] {
            assert!(name_tasks(text), "{text}");
        }
        for text in ["{}", "[]", r#"{"extensions":{"x":{"tasks":{}}}}"#, r#"{"roots":{"\u0061":"tasks"}}"#] {
            assert!(!name_tasks(text), "{text}");
        }
    }

    #[test]
    fn reads_what_is_declared() {
        let read = |text: &str| ClientCapabilities::read(text).unwrap();
        assert_eq!(read("{}"), ClientCapabilities::default());
        assert!(read(r#"{"elicitation":{}}"#).form && !read(r#"{"elicitation":{}}"#).url);
        let url_only = read(r#"{"elicitation":{"url":{}}}"#);
        assert!(!url_only.form && url_only.url);
        let all = read(r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{"listChanged":true}}"#);
        assert_eq!(ClientCapabilities::from_bits(all.to_bits()), all);
        assert_eq!(all.to_bits(), 0b11111);
        for bits in 0..32 {
            let declared = ClientCapabilities::from_bits(bits);
            assert_eq!(declared.to_bits(), bits);
            // Whoever samples with tools samples.
            let declared = ClientCapabilities { sampling: declared.sampling || declared.sampling_tools, ..declared };
            assert_eq!(read(&declared.to_json()), declared);
        }
    }

    #[test]
    fn older_upstreams_see_only_what_they_understand() {
        let client = r#"{"tasks":{},"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"extensions":{"io.modelcontextprotocol/tasks":{},"x/y":{}}}"#;
        let seen = |version| for_upstream(client, version).unwrap();
        assert_eq!(
            seen(ProtocolVersion::V2025_11_25),
            r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"extensions":{"x/y":{}}}"#
        );
        assert_eq!(seen(ProtocolVersion::V2025_06_18), r#"{"elicitation":{},"sampling":{},"extensions":{"x/y":{}}}"#);
        assert_eq!(seen(ProtocolVersion::V2025_03_26), r#"{"sampling":{},"extensions":{"x/y":{}}}"#);
        let url_only = r#"{"elicitation":{"url":{}}}"#;
        assert_eq!(for_upstream(url_only, ProtocolVersion::V2025_06_18).unwrap(), "{}");
    }

    #[test]
    fn clients_see_the_gateways_tasks_and_never_the_upstreams() {
        let with = |list| Some(TaskCapability { list });
        let upstream = r#"{"tools":{"listChanged":true},"tasks":{"list":{}}}"#;
        assert_eq!(for_client(upstream, None).unwrap(), r#"{"tools":{"listChanged":true}}"#);
        assert_eq!(
            for_client(upstream, with(true)).unwrap(),
            r#"{"tools":{"listChanged":true},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}"#
        );
        assert_eq!(
            for_client(upstream, with(false)).unwrap(),
            r#"{"tools":{"listChanged":true},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}"#
        );
        assert_eq!(for_client(r#"{"prompts":{}}"#, with(true)).unwrap(), r#"{"prompts":{}}"#);
    }

    #[test]
    fn modern_upstreams_see_all_but_tasks() {
        let client = r#"{"tasks":{},"roots":{"listChanged":true,"x":1.0},"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{},"x/y":{}}}"#;
        assert_eq!(
            for_upstream(client, ProtocolVersion::V2026_07_28).unwrap(),
            r#"{"roots":{"listChanged":true,"x":1.0},"elicitation":{},"extensions":{"x/y":{}}}"#
        );
        assert_eq!(
            of_legacy_client(client).unwrap(),
            r#"{"roots":{"x":1.0},"elicitation":{},"extensions":{"x/y":{}}}"#
        );
        assert_eq!(of_legacy_client(r#"{"sampling":{}}"#).unwrap(), r#"{"sampling":{}}"#);
        assert!(of_legacy_client("[]").is_err());
    }

    #[test]
    fn modern_clients_see_the_extension_where_there_are_tools() {
        let legacy = r#"{"tools":{},"tasks":{"list":{}}}"#;
        assert_eq!(
            for_modern_client(legacy, true).unwrap(),
            r#"{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#
        );
        assert_eq!(for_modern_client(legacy, false).unwrap(), r#"{"tools":{}}"#);
        assert_eq!(for_modern_client(r#"{"prompts":{}}"#, true).unwrap(), r#"{"prompts":{}}"#);
        let own = r#"{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{"a":1},"x/y":{}}}"#;
        assert_eq!(
            for_modern_client(own, true).unwrap(),
            r#"{"tools":{},"extensions":{"x/y":{},"io.modelcontextprotocol/tasks":{}}}"#
        );
        assert_eq!(for_modern_client(own, false).unwrap(), r#"{"tools":{},"extensions":{"x/y":{}}}"#);
    }

    #[test]
    fn questions_need_their_capability() {
        let form = ClientCapabilities { form: true, ..ClientCapabilities::default() };
        assert_eq!(form.permit("elicitation/create", Some(r#"{"message":"?"}"#)), Ok(()));
        assert_eq!(form.permit("elicitation/create", Some(r#"{"mode":"url"}"#)), Err(Undeclared::Feature));
        assert_eq!(form.permit("sampling/createMessage", None), Err(Undeclared::Method));
        assert_eq!(form.permit("vendor/ask", None), Err(Undeclared::Method));
        let sampling = ClientCapabilities { sampling: true, ..ClientCapabilities::default() };
        assert_eq!(sampling.permit("sampling/createMessage", Some("{}")), Ok(()));
        assert_eq!(sampling.permit("sampling/createMessage", Some(r#"{"tools":[]}"#)), Err(Undeclared::Feature));
    }
}
