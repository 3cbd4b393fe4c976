//! nginx as an operator would put it before an MCP server: keep-alive on both sides, nothing logged.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

/// What an nginx has to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) listen: SocketAddr,
    pub(crate) upstream: SocketAddr,
    /// Whether answers are collected before they leave; off where they are event streams.
    pub(crate) buffering: bool,
    pub(crate) workers: usize,
}

/// The configuration file, all of whose paths are below `dir`.
pub(crate) fn config(setup: Setup, dir: &Path) -> String {
    let Setup { listen, upstream, buffering, workers } = setup;
    let (dir, buffering) = (dir.display(), if buffering { "on" } else { "off" });
    format!(
        "daemon off;
worker_processes {workers};
worker_rlimit_nofile 20000;
pid {dir}/nginx.pid;
error_log {dir}/nginx.error.log error;
events {{ worker_connections 20000; }}
http {{
    access_log off;
    client_body_temp_path {dir}/nginx.body;
    proxy_temp_path {dir}/nginx.proxy;
    fastcgi_temp_path {dir}/nginx.fastcgi;
    uwsgi_temp_path {dir}/nginx.uwsgi;
    scgi_temp_path {dir}/nginx.scgi;
    keepalive_requests 1000000000;
    upstream mcp {{
        server {upstream};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen} backlog=4096;
        location / {{
            proxy_pass http://mcp;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering {buffering};
            proxy_max_temp_file_size 0;
            proxy_read_timeout 1h;
        }}
    }}
}}
"
    )
}

/// Whether the program is there.
pub(crate) fn is_installed() -> bool {
    let quiet = Command::new("nginx").arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}
