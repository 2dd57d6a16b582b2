//! Parts of the node that only tools ask for: TLS, threads, sizes of messages.

use std::time::Duration;

use leveret_config::tls::{AlternativeNameKind, CertificateLogin};
use leveret_server::clock::now;
use leveret_server::tls::certificate::LoginFrom;
use leveret_server::tls::{Tls, suites};
use leveret_session::SIZE_BOUNDS;
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::health::protocol_of_options;
use crate::ops::system;

/// Statistics that are older are taken anew.
const FRESH: Duration = Duration::from_secs(1);

/// `GET /api/leveret/tls`: versions and cipher suites, and the certificates of each listener.
pub(super) async fn tls(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let all = call.node().certificates.all();
    let of_amqp = all.iter().find(|tls| protocol_of_options(tls.settings().prefix) == "amqp/ssl");
    let of_amqp = of_amqp.map(|tls| tls.config());
    let enabled = of_amqp.as_ref().map_or_else(
        || suites::names().collect(),
        |config| suites::names_of(&config.crypto_provider().cipher_suites),
    );
    let listeners: Vec<Value> = all.iter().flat_map(|tls| listeners(&call, tls)).collect();
    Ok(Answer::Json(json!({
        "versions": ["tlsv1.3", "tlsv1.2"],
        "cipher_suites": suites::names().collect::<Vec<_>>(),
        "enabled_cipher_suites": enabled,
        "listeners": listeners,
    })))
}

/// The listeners of a group of options, with what its files say.
fn listeners(call: &Call, tls: &Tls) -> Vec<Value> {
    let settings = tls.settings();
    let protocol = protocol_of_options(settings.prefix);
    let certificates = match tls.chain(NO_LOGIN) {
        Ok(chain) => chain
            .into_iter()
            .map(|it| {
                json!({
                    "subject": it.subject,
                    "issuer": it.issuer,
                    "serial_number": it.serial_number,
                    "validity": it.validity,
                })
            })
            .collect(),
        Err(error) => json!({"error": format!("{error:#}")}),
    };
    let own = call.app.ops.about.listeners.iter().filter(|it| it.protocol == protocol);
    own.map(|listener| {
        json!({
            "protocol": protocol,
            "interface": listener.address.ip().to_string(),
            "port": listener.address.port(),
            "certfile": settings.certfile,
            "cacertfile": settings.cacertfile,
            "certificates": certificates,
        })
    })
    .collect()
}

/// A server's certificate is nobody's login.
const NO_LOGIN: LoginFrom = LoginFrom {
    from: CertificateLogin::DistinguishedName,
    kind: AlternativeNameKind::Dns,
    index: 0,
};

/// `GET /api/leveret/threads`: what each thread did so far. Two answers make a share of the time between.
pub(super) async fn threads(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let threads = system::threads().into_iter().map(|it| {
        json!({"id": it.id, "name": it.name, "user_ms": it.user_ms, "system_ms": it.system_ms})
    });
    let threads: Value = threads.collect();
    Ok(Answer::Json(json!({"at_ms": now().ms(), "threads": threads})))
}

/// `GET /api/leveret/message-sizes`: how many messages of which size came since the start.
pub(super) async fn message_sizes(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let snapshot = call.app.ops.stats.fresh(FRESH).await;
    let sizes = &snapshot.overview.sums.session.sizes;
    // The last size has no bound.
    let bounds = SIZE_BOUNDS.into_iter().map(Some).chain([None]);
    let rows = bounds
        .zip(sizes.counts)
        .map(|(at_most, count)| json!({"at_most": at_most, "count": count}));
    Ok(Answer::Json(json!({"bytes": sizes.bytes, "sizes": rows.collect::<Value>()})))
}
