//! One connection to the server, of whichever kind.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, RedisError, RedisFuture, RedisResult, ServerErrorKind, TlsMode, Value,
};

use super::address::{Address, Kind};

/// What is called with each push of the server. It must not block.
pub(super) type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// Carries commands of many at once, and pushes. A cheap handle.
#[derive(Clone)]
pub(super) enum Connection {
    /// To one server.
    One(MultiplexedConnection),
    /// To the nodes of a cluster; it follows their changes by itself.
    Many(ClusterConnection),
}

impl Connection {
    /// Connects, and asks the Sentinels first where there are some. Ends within a few times `limit`.
    pub(super) async fn open(address: &Address, on_push: OnPush, limit: Duration) -> RedisResult<Self> {
        let push = move |info: PushInfo| -> Result<(), ()> {
            on_push(info);
            Ok(())
        };
        let nodes = address.nodes.iter().map(|node| place(node, address.tls));
        // The caller's own limit ends a command; here it would be told as any other error.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        match &address.kind {
            Kind::Server { db } => {
                let node = nodes.into_iter().next().ok_or((ErrorKind::InvalidClientConfig, "no host"))?;
                let info = node.into_connection_info()?.set_redis_settings(settings(address, *db));
                let client = Client::open(info)?;
                let config = config.set_push_sender(push);
                Ok(Self::One(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Kind::Sentinel { primary, db } => {
                let mut builder = SentinelClientBuilder::new(nodes, primary, SentinelServerType::Master)?
                    .set_client_to_redis_db((*db).into())
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3);
                if address.tls {
                    builder = builder
                        .set_client_to_redis_tls_mode(TlsMode::Secure)
                        .set_client_to_sentinel_tls_mode(TlsMode::Secure);
                }
                if let Some(user) = &address.user {
                    builder = builder.set_client_to_redis_username(user);
                }
                if let Some(password) = &address.password {
                    builder = builder.set_client_to_redis_password(password);
                }
                let config = config.set_push_sender(push);
                Ok(Self::One(builder.build()?.get_async_connection_with_config(&config).await?))
            }
            Kind::Cluster => {
                let infos = nodes.map(|node| Ok(node.into_connection_info()?.set_redis_settings(settings(address, 0))));
                let builder = ClusterClientBuilder::new(infos.collect::<RedisResult<Vec<_>>>()?)
                    .use_protocol(ProtocolVersion::RESP3)
                    .connection_timeout(limit)
                    .response_timeout(limit)
                    .retries(3)
                    .push_sender(push);
                let builder = if address.tls { builder.tls(TlsMode::Secure) } else { builder };
                Ok(Self::Many(builder.build()?.get_async_connection().await?))
            }
        }
    }

    /// Whether the server carries commands out in the order in which they were begun.
    pub(super) const fn is_ordered(&self) -> bool {
        matches!(self, Self::One(_))
    }

    pub(super) fn run<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(command),
            Self::Many(connection) => connection.req_packed_command(command),
        }
    }

    pub(super) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::One(connection) => connection.subscribe(channel).await,
            Self::Many(connection) => connection.subscribe(channel).await,
        }
    }
}

fn place((host, port): &(String, u16), tls: bool) -> ConnectionAddr {
    match tls {
        true => ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None },
        false => ConnectionAddr::Tcp(host.clone(), *port),
    }
}

fn settings(address: &Address, db: u16) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(db.into());
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password);
    }
    settings
}

/// Whether the error means that the connection leads nowhere: it broke, or to a server that is no primary any more.
pub(super) fn is_broken(error: &RedisError) -> bool {
    let by_server = matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly)
    );
    by_server || error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}
