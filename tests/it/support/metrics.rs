//! What the admin address says, read back.

use std::net::SocketAddr;

use super::Connection;

/// Prometheus' text format.
#[derive(Debug)]
pub(crate) struct Exposition(pub(crate) String);

impl Exposition {
    /// Asks for `/metrics`.
    pub(super) async fn fetch(admin: SocketAddr, token: Option<&str>) -> Self {
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let mut connection = Connection::open(admin).await;
        connection.send(format!("GET /metrics HTTP/1.1\r\nhost: {admin}\r\n{token}\r\n")).await;
        let answer = connection.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        Self(answer.text())
    }

    /// The value of a series; 0 for one that was never used. The labels are those that matter; the sum of all series
    /// that have them.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let of_line = |line: &str| -> Option<f64> {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{').unwrap_or((series, ""));
            let has = |label: &String| rest.trim_end_matches('}').split(',').any(|found| found == label);
            (found == name && wanted.iter().all(has)).then(|| value.parse().ok()).flatten()
        };
        self.0.lines().filter(|line| !line.starts_with('#')).filter_map(of_line).sum()
    }

    /// Whether there is a family of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.lines().any(|line| line.starts_with(&format!("# TYPE {name} ")))
    }
}
