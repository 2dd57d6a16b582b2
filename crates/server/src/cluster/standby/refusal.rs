//! Clients of AMQP whom no node serves are told why.
//!
//! Such a client has a session with nothing behind it, which takes it as far as `connection.open`, where clients look for the reason of
//! a connection that is closed. Nobody is asked whether it may come in: it does not.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::message::{NodeId, Outbox};
use leveret_config::Config;
use leveret_session::{Context, Peer, Session, Settings, TlsFacts};
use leveret_topology::Topology;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clock::{now, now_with_us, wall};
use crate::cluster::arrivals::RelayedListener;
use crate::cluster::links::LinkSocket;
use crate::proxy::Ends;
use crate::startup::{amqp_listeners, settings};
use crate::tls::{HandshakeShares, Tls, handshake};

/// How clients of AMQP are told why they are not served.
#[derive(Debug, Default)]
pub struct AmqpRefusal {
    settings: Settings,
    tls: Option<Arc<Tls>>,
    shares: Option<Arc<HandshakeShares>>,
}

impl AmqpRefusal {
    /// As the listeners of the configuration would speak with them.
    ///
    /// # Errors
    ///
    /// Certificates that cannot be read.
    pub fn of(config: &Config) -> anyhow::Result<Self> {
        let tls = amqp_listeners(config, 1)?.into_iter().find_map(|it| it.preface.tls);
        let shares = tls.is_some().then(HandshakeShares::of_one);
        Ok(Self { settings: settings(config), tls, shares })
    }

    /// Tells a client of this listener, if it goes on with its handshake as long as it may take.
    pub(super) async fn tell(
        &self,
        listener: RelayedListener,
        client: TcpStream,
        ends: Ends,
        why: String,
    ) {
        let patience = Duration::from_millis(self.settings.handshake_timeout_ms);
        let talks = async {
            let socket = match (listener, &self.tls, &self.shares) {
                (RelayedListener::Amqp, ..) => client.into(),
                (RelayedListener::Amqps, Some(tls), Some(shares)) => {
                    let address = ends.source.ip();
                    let encrypted = handshake(&client, address, tls.config(), Arc::clone(shares));
                    let encrypted = encrypted.await.map_err(io::Error::other)?;
                    let encrypted = LinkSocket::encrypted(client, encrypted);
                    encrypted.map_err(|(_, error)| io::Error::other(error))?
                }
                _ => return Ok(()),
            };
            self.talk(socket, ends, why).await
        };
        if let Ok(Err(error)) = timeout(patience, talks).await {
            tracing::debug!(peer = %ends.source, %error, "a connection ended before it was told why");
        }
    }

    async fn talk(&self, mut socket: LinkSocket, ends: Ends, why: String) -> io::Result<()> {
        let peer = Peer {
            address: ends.source.to_string(),
            local: ends.destination,
            is_loopback: false,
            // With it a client may show a certificate, at which nobody looks.
            tls: socket.is_encrypted().then(Arc::<TlsFacts>::default),
        };
        let settings = Settings { serves_nobody: Some(why), ..self.settings.clone() };
        let id = NodeId::ALONE.connection(0);
        let mut session = Session::new(id, Arc::new(settings), peer, 0, now());
        let (topology, mut outbox, mut out) = (Topology::new(), Outbox::default(), OutBuf::new());
        let mut input = BytesMut::new();
        // What a frame may have is bounded until a client is let in.
        while session.end().is_none() && socket.read_buf(&mut input).await? > 0 {
            let mut read = input.split().freeze();
            let (now, now_us) = now_with_us();
            let mut cx = Context {
                topology: &topology,
                now,
                now_us,
                wall: wall(now),
                out: &mut out,
                outbox: &mut outbox,
            };
            session.input(&mut read, &mut cx);
            input.extend_from_slice(&read);
            socket.write_all(&out.take_rest()).await?;
            socket.flush().await?;
        }
        socket.shutdown().await
    }
}
