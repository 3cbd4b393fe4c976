//! Settings of the server by which tasks could get lost: told once in the log.

use redis::Value;

use super::Hub;

impl Hub {
    /// Warns of what the server says of itself. A server that may not be asked is left alone, and so is a cluster, whose
    /// nodes may differ.
    pub(super) async fn advise(&self) {
        if !self.is_ordered() {
            return;
        }
        let Ok(info) = self.run(redis::cmd("INFO").arg("memory").arg("persistence")).await else { return };
        let text = match &info {
            Value::VerbatimString { text, .. } => text.clone(),
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => return,
        };
        for warning in warnings(&text) {
            tracing::warn!(server = %self.inner.address, "{warning}: see docs/stores.md");
        }
    }
}

/// What is to be said about the answer to `INFO`.
fn warnings(info: &str) -> Vec<String> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let mut warnings = Vec::new();
    if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        warnings.push(format!("the store forgets tasks when its memory is full (`maxmemory-policy {policy}`)"));
    }
    if field("aof_enabled") == Some("0") {
        warnings.push("the store loses what was written last when it stops (`appendonly no`)".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_can_get_lost() {
        let good = "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n";
        assert!(warnings(good).is_empty());
        assert!(warnings("").is_empty());
        let bad = good.replace("noeviction", "allkeys-lru").replace("aof_enabled:1", "aof_enabled:0");
        let warnings = warnings(&bad);
        assert!(warnings[0].contains("allkeys-lru") && warnings[1].contains("appendonly no"), "{warnings:?}");
    }
}
