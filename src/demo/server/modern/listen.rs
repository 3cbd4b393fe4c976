//! `subscriptions/listen`: a request that is answered by what happens (2026-07-28 "Subscriptions").

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

use crate::jsonrpc::{self, ErrorObject, Id, Object, code, raw_string, string_value};
use crate::mcp::envelope::SUBSCRIPTION_ID;

use super::super::protocol::GREETING;
use super::super::session::Session;
use super::super::stream::Stream;

/// A stream that is open.
struct Listen {
    id: Id,
    session: Arc<Session>,
    stream: Arc<Stream>,
    tools: bool,
    uris: Vec<String>,
}

impl Listen {
    fn meta(&self) -> String {
        format!("{{{}:{}}}", raw_string(SUBSCRIPTION_ID), self.id.as_json())
    }

    fn push(&self, method: &str, params: &mut Object<'_>) {
        params.set("_meta", self.meta());
        self.stream.push(jsonrpc::notification(method, Some(&params.to_json())));
    }

    fn wants(&self, method: &str, params: &Object<'_>) -> bool {
        match method {
            "notifications/tools/list_changed" => self.tools,
            "notifications/resources/updated" => params
                .get("uri")
                .and_then(string_value)
                .is_some_and(|uri| self.uris.iter().any(|wanted| *wanted == uri)),
            _ => false,
        }
    }

    fn end(&self, properly: bool) {
        if properly {
            if Arc::ptr_eq(&self.stream, &self.session.general) {
                // 2026-07-28 cancellation: on stdio the server says so first.
                let params = format!("{{\"requestId\":{}}}", self.id.as_json());
                self.stream.push(jsonrpc::notification("notifications/cancelled", Some(&params)));
            }
            let result = format!("{{\"resultType\":\"complete\",\"_meta\":{}}}", self.meta());
            self.stream.settle(Some(jsonrpc::response(&self.id, &result)));
        }
        self.session.ended.cancel();
    }
}

/// The streams that are open.
#[derive(Default)]
pub(in super::super) struct Listens(Mutex<Vec<Arc<Listen>>>);

impl fmt::Debug for Listens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listens")
    }
}

impl Listens {
    /// Opens one and acknowledges it.
    ///
    /// # Errors
    /// When the request does not say what it wants.
    pub(super) fn open(
        &self,
        session: &Arc<Session>,
        id: &Id,
        params: &Object<'_>,
        stream: &Arc<Stream>,
    ) -> Result<Registration, ErrorObject> {
        let wanted = params.get("notifications").and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        let Some(wanted) = wanted else {
            return Err(ErrorObject::new(code::INVALID_PARAMS, "`notifications` must be an object"));
        };
        let tools = wanted.get("toolsListChanged") == Some(&Value::Bool(true));
        let uris = wanted.get("resourceSubscriptions").and_then(Value::as_array);
        let uris = uris.into_iter().flatten().filter_map(Value::as_str).filter(|uri| *uri == GREETING);
        let uris: Vec<String> = uris.map(str::to_owned).collect();
        let mut honoured = Map::new();
        if tools {
            honoured.insert("toolsListChanged".to_owned(), json!(true));
        }
        if !uris.is_empty() {
            honoured.insert("resourceSubscriptions".to_owned(), json!(uris));
        }
        let listen = Listen { id: id.clone(), session: Arc::clone(session), stream: Arc::clone(stream), tools, uris };
        let mut params = Object::default();
        params.set("notifications", Value::Object(honoured).to_string());
        listen.push("notifications/subscriptions/acknowledged", &mut params);
        let listen = Arc::new(listen);
        self.all().push(Arc::clone(&listen));
        session.shared.note(|stats| {
            stats.listens += 1;
            stats.listens_opened += 1;
        });
        Ok(Registration(listen))
    }

    /// Tells those who want to know.
    pub(in super::super) fn announce(&self, method: &str, params: Option<&str>) {
        for listen in self.all().iter() {
            let mut params = Object::parse(params.unwrap_or("{}")).unwrap_or_default();
            if listen.wants(method, &params) {
                listen.push(method, &mut params);
            }
        }
    }

    /// Ends all: properly, or as a broken connection does.
    pub(in super::super) fn end(&self, properly: bool) {
        for listen in self.all().iter() {
            listen.end(properly);
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Listen>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a stream off the list when it is over.
pub(in super::super) struct Registration(Arc<Listen>);

impl Registration {
    /// Whether the server has ended it.
    pub(in super::super) fn is_over(&self) -> bool {
        self.0.session.ended.is_cancelled()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let shared = &self.0.session.shared;
        shared.listens.all().retain(|listen| !Arc::ptr_eq(listen, &self.0));
        shared.note(|stats| stats.listens = stats.listens.saturating_sub(1));
    }
}
