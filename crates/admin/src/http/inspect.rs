//! Parts of the node that only tools ask for: TLS, threads, sizes of messages, what waits for what.

use std::time::Duration;

use leveret_broker::numbers::ShardRest;
use leveret_config::tls::{AlternativeNameKind, CertificateLogin};
use leveret_server::clock::now;
use leveret_server::long::Long;
use leveret_server::tls::certificate::LoginFrom;
use leveret_server::tls::{Tls, suites};
use leveret_session::{CONFIRM_BOUNDS_US, ConfirmTimes, SIZE_BOUNDS};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::health::protocol_of_options;
use crate::ops::system;
use crate::stats::Range;
use crate::stats::names::DISK;

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
    call.app.ops.stats.refresh(FRESH).await;
    let snapshot = call.stats();
    let sizes = &snapshot.overview.sums.session.sizes;
    // The last size has no bound.
    let bounds = SIZE_BOUNDS.into_iter().map(Some).chain([None]);
    let rows = bounds
        .zip(sizes.counts)
        .map(|(at_most, count)| json!({"at_most": at_most, "count": count}));
    Ok(Answer::Json(json!({"bytes": sizes.bytes, "sizes": rows.collect::<Value>()})))
}

/// How far back confirms are shown, and in which steps, in seconds, unless the query says.
const CONFIRMS_S: (u64, u64) = (300, 2);
/// Steps of one answer.
const STEPS_MAX: u64 = 2000;

/// `GET /api/leveret/confirm-latency`: how long confirms took, step by step.
pub(super) async fn confirm_latency(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let age_s = call.number("age")?.unwrap_or(CONFIRMS_S.0);
    let incr_s = call.number("incr")?.unwrap_or(CONFIRMS_S.1);
    if incr_s == 0 || age_s / incr_s > STEPS_MAX {
        let text = format!("'incr' must be 1 or more, and 'age' at most {STEPS_MAX} times as much");
        return Err(Fault::bad(text));
    }
    call.app.ops.stats.refresh(FRESH).await;
    let snapshot = call.stats();
    let history = &snapshot.overview.confirms;
    let range = Range { age_s, incr_s, until: history.looked_at().unwrap_or(0) };
    let samples = (0..ConfirmTimes::PLACES).map(|at| history.known_samples(at, range, STEPS_MAX));
    let samples: Vec<_> = samples.collect();
    // Newest first; what came in a step is what there is more than at its beginning.
    let steps = samples.first().map_or(0, |samples| samples.len().saturating_sub(1));
    let step = |at: usize| {
        let counts =
            samples.iter().map(|of_place| of_place[at].1.saturating_sub(of_place[at + 1].1));
        json!({"timestamp": samples[0][at].0, "counts": counts.collect::<Vec<_>>()})
    };
    let steps: Vec<Value> = (0..steps).rev().map(step).collect();
    // The last place has no bound.
    let below_ms = CONFIRM_BOUNDS_US.into_iter().map(in_ms).chain([Value::Null]);
    Ok(Answer::Json(json!({"below_ms": below_ms.collect::<Vec<_>>(), "steps": steps})))
}

/// Whole milliseconds as a whole number.
fn in_ms(us: u64) -> Value {
    if us.is_multiple_of(1000) { json!(us / 1000) } else { json!(us as f64 / 1000.0) }
}

/// Something that took long lately, and where the time went.
fn long(it: &Long) -> Value {
    let ms = |time: Duration| time.as_micros() as f64 / 1e3;
    let part = |of: fn((Duration, Duration)) -> Duration| it.of_it.map(|all| ms(of(all)));
    json!({
        "began": it.began.ms(),
        "ms": ms(it.took),
        "what": it.what,
        "thread": it.thread,
        "ran_ms": part(|all| all.0),
        "waited_for_processor_ms": part(|all| all.1),
        "waited_for_names_ms": ms(it.names),
    })
}

/// `GET /api/leveret/waits`: what holds messages up in the node as a whole.
pub(super) async fn waits(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.app.ops.stats.refresh(FRESH).await;
    let snapshot = call.stats();
    let overview = &snapshot.overview;
    let connections: Map<String, Value> = overview
        .now
        .waits
        .rows()
        .into_iter()
        .map(|(what, count)| (what.to_owned(), json!(count)))
        .collect();
    let alarms: Vec<&str> = call.node().alarms.raised().into_iter().map(|it| it.name()).collect();
    let sum = |of: fn(&ShardRest) -> u64| overview.shards.iter().map(of).sum::<u64>();
    // Of those between the last two samples; none if there were none.
    let rate = |name: &str| {
        DISK.iter().position(|it| *it == name).map_or(0.0, |at| overview.disk.rate(at))
    };
    let each_ms = |us: &str, count: &str| {
        let (us, count) = (rate(us), rate(count));
        (count > 0.0).then(|| us / count / 1000.0)
    };
    let long: Vec<Value> = call.node().watched.lately().iter().map(long).collect();
    Ok(Answer::Json(json!({
        "alarms": alarms,
        "connections": connections,
        "disk": {
            "unwritten_bytes": sum(|shard| shard.log.unwritten_bytes),
            "writes_per_second": rate("writes"),
            "write_ms": each_ms("write_us", "writes"),
            "syncs_per_second": rate("syncs"),
            "sync_ms": each_ms("sync_us", "syncs"),
        },
        "log": {
            "messages_bytes": sum(|shard| shard.log.live_bytes),
            "memory_bytes": sum(|shard| shard.log.held_bytes),
            "disk_bytes": sum(|shard| shard.log.disk_bytes),
        },
        "long": long,
        "unconfirmed_bytes": sum(|shard| shard.unresolved_bytes),
    })))
}
