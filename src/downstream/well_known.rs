//! The metadata of the routes as protected resources (RFC 9728): open to everybody and every page, since whoever reads them
//! has no credentials yet.
//!
//! A resource's metadata are where its path is inserted. The place without a path has those of the route at `/`, or of the
//! only route: with several it would be wrong for all but one of them.

use std::collections::HashMap;

use ::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    ALLOW, CACHE_CONTROL, HeaderValue,
};
use ::http::{Method, StatusCode};
use bytes::Bytes;

use crate::auth::resource::{Resource, WELL_KNOWN};

/// The methods that are served.
pub const METHODS: &str = "GET, HEAD, OPTIONS";
const ANYBODY: HeaderValue = HeaderValue::from_static("*");
const CACHED: HeaderValue = HeaderValue::from_static("max-age=3600");

/// The documents, by path.
#[derive(Debug, Default)]
pub struct Documents(HashMap<String, Bytes>);

/// What to answer about a document.
#[derive(Debug)]
pub struct Page {
    /// The HTTP status.
    pub status: StatusCode,
    /// The header fields beside the body's own.
    pub headers: Vec<(::http::HeaderName, HeaderValue)>,
    /// The document, where it is asked for.
    pub document: Option<Bytes>,
}

impl Documents {
    /// Those of the resources, each with the path that its route has here. A proxy in front may have taken the start of the
    /// path away.
    #[must_use]
    pub fn new<'a>(resources: impl IntoIterator<Item = (&'a str, &'a Resource)>) -> Self {
        let mut documents = HashMap::new();
        let with_metadata: Vec<_> = resources
            .into_iter()
            .filter_map(|(path, resource)| Some((path.trim_end_matches('/'), resource.metadata()?)))
            .collect();
        for (path, metadata) in &with_metadata {
            documents.entry(format!("{WELL_KNOWN}{path}")).or_insert_with(|| metadata.document.clone());
        }
        // What a URL says outside goes before what another's path happens to be here.
        for (_, metadata) in &with_metadata {
            documents.insert(format!("{WELL_KNOWN}{}", metadata.path), metadata.document.clone());
        }
        if let [(_, only)] = with_metadata.as_slice() {
            documents.insert(WELL_KNOWN.to_owned(), only.document.clone());
        }
        Self(documents)
    }

    /// The answer at a path; `None` where there is no document.
    #[must_use]
    pub fn answer(&self, method: &Method, path: &str) -> Option<Page> {
        let document = self.0.get(path)?;
        let methods = HeaderValue::from_static(METHODS);
        let mut headers = vec![(ACCESS_CONTROL_ALLOW_ORIGIN, ANYBODY)];
        let (status, document) = match *method {
            // Of a HEAD's answer the body is not sent.
            Method::GET | Method::HEAD => {
                headers.push((CACHE_CONTROL, CACHED));
                (StatusCode::OK, Some(document.clone()))
            }
            Method::OPTIONS => {
                headers.push((ACCESS_CONTROL_ALLOW_METHODS, methods));
                // Clients say their version here as well; there is nothing that a field could do.
                headers.push((ACCESS_CONTROL_ALLOW_HEADERS, ANYBODY));
                headers.push((ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200")));
                (StatusCode::NO_CONTENT, None)
            }
            _ => {
                headers.push((ALLOW, methods));
                (StatusCode::METHOD_NOT_ALLOWED, None)
            }
        };
        Some(Page { status, headers, document })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::resource::Config;

    fn resource(url: &str) -> Resource {
        let authorization_servers = vec!["https://login.example.com".to_owned()];
        Resource::new(0, &Config { url: url.to_owned(), authorization_servers, ..Config::default() })
    }

    fn found(routes: &[(&str, &str)], path: &str) -> Option<String> {
        let resources: Vec<_> = routes.iter().map(|(path, url)| (*path, resource(url))).collect();
        let documents = Documents::new(resources.iter().map(|(path, resource)| (*path, resource)));
        let page = documents.answer(&Method::GET, path)?;
        let document: serde_json::Value = serde_json::from_slice(&page.document.unwrap()).unwrap();
        Some(document["resource"].as_str().unwrap().to_owned())
    }

    #[test]
    fn the_root_belongs_to_the_only_route_or_to_the_one_at_the_root() {
        let (one, two, root) = (("/one", "https://a/one"), ("/two", "https://a/two"), ("/", "https://a/"));
        for (routes, path, expected) in [
            (vec![one], WELL_KNOWN, Some("https://a/one")),
            (vec![one], "/.well-known/oauth-protected-resource/one", Some("https://a/one")),
            (vec![one], "/.well-known/oauth-protected-resource/one/", None),
            (vec![one, two], WELL_KNOWN, None),
            (vec![one, two], "/.well-known/oauth-protected-resource/two", Some("https://a/two")),
            (vec![one, root], WELL_KNOWN, Some("https://a")),
            (vec![one, root], "/.well-known/oauth-protected-resource/one", Some("https://a/one")),
            (vec![one], "/.well-known/oauth-authorization-server", None),
        ] {
            assert_eq!(found(&routes, path).as_deref(), expected, "{routes:?} {path}");
        }
    }

    #[test]
    fn a_proxy_in_front_may_take_the_start_of_the_path_away() {
        let routes = [("/mcp", "https://a/base/mcp"), ("/other", "https://a/base/other")];
        for path in ["/.well-known/oauth-protected-resource/base/mcp", "/.well-known/oauth-protected-resource/mcp"] {
            assert_eq!(found(&routes, path).as_deref(), Some("https://a/base/mcp"), "{path}");
        }
    }

    #[test]
    fn pages_of_anybody_may_read_and_nobody_may_write() {
        let resource = resource("https://a/mcp");
        let documents = Documents::new([("/mcp", &resource)]);
        let answer = |method| documents.answer(&method, WELL_KNOWN).unwrap();
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::DELETE] {
            assert!(answer(method.clone()).headers.contains(&(ACCESS_CONTROL_ALLOW_ORIGIN, ANYBODY)), "{method}");
        }
        assert_eq!(answer(Method::OPTIONS).status, StatusCode::NO_CONTENT);
        assert_eq!(
            (answer(Method::POST).status, answer(Method::POST).document),
            (StatusCode::METHOD_NOT_ALLOWED, None)
        );
    }
}
