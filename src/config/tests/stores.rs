//! What a file may say of the store and of those who share it.

use super::mistakes::beside_route;

#[test]
fn a_store_is_asked_for_what_it_needs() {
    let one_key = format!("secrets: {{key: {}}}\n", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    beside_route("store: {kind: disk}", "1:8: store.path: needed: the folder of the store");
    beside_route("store: {path: tasks}", "1:15: store.path: means something only with `kind: disk`");
    beside_route("store: {url: redis://127.0.0.1/0}", "1:14: store.url: means something only with `kind: redis`");
    beside_route("store: {prefix: other}", "1:17: store.prefix: means something only with `kind: redis`");
    beside_route(
        "replica: {id: a}",
        "1:10: replica: means something only with `store.kind: redis`, which replicas share",
    );
    let shared = |line: &str, expected: &str| beside_route(&format!("{line}\n{}", one_key.trim_end()), expected);
    shared("store: {kind: redis}", "1:8: store.url: needed: the server, such as `redis://127.0.0.1:6379/0`");
    shared(
        "store: {kind: redis, url: http://secret@u/0}",
        "1:27: store.url: a Redis URL must start with `redis://`, or `rediss://` for TLS",
    );
    shared(
        "store: {kind: redis, url: redis://u, prefix: \"a b\"}",
        "1:46: store.prefix: expected 1 to 64 letters, digits, `-`, `_`, `.` and `:`, found `a b`",
    );
    beside_route(
        "store: {kind: redis, url: redis://u}",
        "1:1: secrets.key: needed with `store.kind: redis`, the same on every replica: `openssl rand -base64 32` makes one",
    );
    let replica = |of: &str, expected: &str| {
        shared(&format!("store: {{kind: redis, url: redis://u}}\nreplica: {of}"), expected);
    };
    replica("{id: a b}", "2:15: replica.id: expected `auto` or 1 to 64 letters, digits, `-`, `_` and `.`");
    replica("{lease: 100ms}", "2:18: replica.lease: expected 1s to 5m");
    replica(
        "{address: here}",
        "2:20: replica.address: expected an IP address and a port such as `127.0.0.1:8080` or `[::1]:8080`, found `here`",
    );
    replica(
        "{address: \"0.0.0.0:7070\"}",
        "2:20: replica.address: expected an address at which the others reach this replica alone",
    );
}
