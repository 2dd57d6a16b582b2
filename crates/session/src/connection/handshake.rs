//! Protocol header, `connection.start`, `tune` and `open`.

use bytes::Bytes;
use leveret_amqp::frame::{FRAME_MIN_SIZE, HeaderMatch, ProtocolHeader};
use leveret_amqp::method::connection;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{RawTable, RawValue, Table, Value};

use crate::connection::Stage;
use crate::core::{Capabilities, Context, Core};
use crate::reply::{self, Fault};
use crate::session::Session;
use crate::settings::{Mechanism, Settings};

/// What RabbitMQ says it can do, and we do.
const CAPABILITIES: [&str; 9] = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
];

/// By this a client knows Leveret, whatever product it is told.
const LEVERET_VERSION: &str = "leveret_version";

fn server_properties(settings: &Settings) -> Table {
    let mut capabilities = Table::default();
    for name in CAPABILITIES {
        capabilities.push(name, Value::Bool(true));
    }
    let mut properties = Table::default();
    properties.push("capabilities", Value::Table(capabilities));
    for (name, text) in [
        ("cluster_name", &settings.cluster_name),
        ("copyright", &settings.copyright),
        ("information", &settings.information),
        (LEVERET_VERSION, &env!("CARGO_PKG_VERSION").to_owned()),
        ("platform", &settings.platform),
        ("product", &settings.product),
        ("version", &settings.version),
    ] {
        properties.push(name, Value::LongStr(text.clone().into_bytes()));
    }
    properties
}

/// Reads the capabilities that the server acts on.
fn capabilities(properties: RawTable<'_>) -> Capabilities {
    let Ok(Some(RawValue::Table(table))) = properties.get("capabilities") else {
        return Capabilities::default();
    };
    let has = |name| matches!(table.get(name), Ok(Some(RawValue::Bool(true))));
    Capabilities {
        consumer_cancel_notify: has("consumer_cancel_notify"),
        connection_blocked: has("connection.blocked"),
        authentication_failure_close: has("authentication_failure_close"),
    }
}

impl Core {
    /// The first eight bytes. Anything but AMQP 0-9-1 is answered with what we speak.
    pub(crate) fn protocol_header(&mut self, input: &mut Bytes, cx: &mut Context<'_>) -> bool {
        match ProtocolHeader::check(input) {
            HeaderMatch::Partial => false,
            HeaderMatch::Match => {
                drop(input.split_to(ProtocolHeader::LEN));
                self.stage = Stage::Starting;
                let names: Vec<&str> = self.mechanisms().map(Mechanism::name).collect();
                let names = names.join(" ");
                let properties = server_properties(&self.settings).to_bytes();
                let start = connection::Start {
                    version_major: 0,
                    version_minor: 9,
                    server_properties: RawTable::unchecked(&properties),
                    mechanisms: names.as_bytes(),
                    locales: b"en_US",
                };
                cx.out.put_method(0, &start);
                true
            }
            HeaderMatch::Mismatch => {
                self.say_no_amqp(input, cx.now);
                cx.out.put_bytes(&ProtocolHeader::BYTES);
                self.end_after_flush();
                false
            }
        }
    }
}

impl Core {
    /// The client was let in: `connection.tune`.
    pub(crate) fn tune(&mut self, cx: &mut Context<'_>) {
        self.stage = Stage::Tuning;
        let tune = connection::Tune {
            channel_max: self.settings.channel_max,
            frame_max: self.settings.frame_max,
            heartbeat: self.settings.heartbeat_s,
        };
        cx.out.put_method(0, &tune);
    }
}

/// Bounds a value of `tune-ok`; 0 stands for no limit.
fn negotiated(field: &str, value: u64, min: u64, server: u64) -> Result<(), Fault> {
    if value != 0 && value < min {
        return Err(reply::too_low(field, value, min));
    }
    if server != 0 && (value == 0 || value > server) {
        return Err(reply::too_high(field, value, server));
    }
    Ok(())
}

impl Session {
    /// `connection.start-ok`.
    pub(crate) fn start_ok(
        &mut self,
        method: &connection::StartOk<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let core = &mut self.core;
        core.capabilities = capabilities(method.client_properties);
        core.identity.client_properties = method.client_properties.as_bytes().into();
        if core.settings.serves_nobody.is_some() {
            // There is nobody to ask who may come in, and nothing to come in to.
            core.tune(cx);
            return Ok(());
        }
        match core.ask_to_log_in(method.mechanism, method.response, cx) {
            Ok(()) => Ok(()),
            Err(refusal) => {
                core.totals.auth_failed += 1;
                self.refuse(refusal, cx)
            }
        }
    }

    /// `connection.tune-ok`. Its values hold if they are not above ours; the heartbeat always does.
    pub(crate) fn tune_ok(
        &mut self,
        method: &connection::TuneOk,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let core = &mut self.core;
        let settings = &core.settings;
        let (frame_max, ours) = (method.frame_max.into(), settings.frame_max.into());
        negotiated("frame_max", frame_max, FRAME_MIN_SIZE.into(), ours)?;
        negotiated("channel_max", method.channel_max.into(), 1, settings.channel_max.into())?;
        core.frame_max = method.frame_max;
        core.channel_max = method.channel_max;
        core.timers.start_heartbeat(method.heartbeat, cx.now);
        core.stage = Stage::Opening;
        Ok(())
    }

    /// `connection.open`.
    pub(crate) fn open(
        &mut self,
        method: &connection::Open<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let core = &mut self.core;
        if let Some(why) = &core.settings.serves_nobody {
            return Err(Fault::new(ReplyCode::ConnectionForced, why.clone()));
        }
        let name = method.virtual_host;
        if cx.topology.vhost(name).is_none() {
            return Err(reply::no_vhost(name));
        }
        let counted = cx.topology.count_connection(&core.identity.user, name)?;
        core.identity.vhost = core.check_vhost(name, cx)?;
        core.identity.vhost_name = name.into();
        core.counted = counted;
        core.stage = Stage::Running;
        // Not with `tune-ok`: until then nothing bounds how many there are, and no method is long.
        core.decoder.set_frame_max(core.frame_max);
        core.totals.connections_opened = 1;
        core.timers.end_handshake();
        core.tell_opened(cx);
        cx.out.put_method(0, &connection::OpenOk { known_hosts: "" });
        core.say_opened();
        Ok(())
    }
}
