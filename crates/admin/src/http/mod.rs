//! RabbitMQ's management API.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use anyhow::Context as _;
use leveret_config::options::ManagementOptions;

use crate::front::Ended;
use crate::ops::Ops;

/// What the API is started with.
#[derive(Clone, Debug)]
pub(crate) struct Options(pub(crate) ManagementOptions);

impl Options {
    pub(crate) fn new(options: &ManagementOptions) -> Self {
        Self(options.clone())
    }
}

/// Opens the listening socket.
pub(crate) fn bind(options: &Options) -> anyhow::Result<StdListener> {
    let ManagementOptions { ip, port, .. } = &options.0;
    let address = leveret_server::resolve(ip.as_deref(), *port)
        .with_context(|| format!("management.tcp.ip = {}", ip.as_deref().unwrap_or_default()))?;
    leveret_server::listener::bind(address, &leveret_server::listener::SocketOptions::default())
        .with_context(|| {
            format!(
                "cannot listen on {address} for the management API; is another broker running? \
                 choose another port with management.tcp.port, or management.enabled = false"
            )
        })
}

/// Answers until `ended`.
pub(crate) async fn serve(
    _listener: StdListener,
    _options: Options,
    _ops: Arc<Ops>,
    mut ended: Ended,
) {
    ended.comes().await;
}
