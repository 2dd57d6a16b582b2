//! `--verbose`: a line for each message, confirm and ack, in PerfTest's words. For slow rates only.

use std::io::Write as _;

use leveret_client::amqp::content::{Properties, RawProperties};
use leveret_client::amqp::table::Table;

use crate::args::Options;
use crate::args::values::plain;
use crate::stamp;

/// Types of content that are text, by how they begin; PerfTest's choice.
const TEXT: [&str; 6] = [
    "text/",
    "application/javascript",
    "application/xhtml",
    "application/json",
    "application/ld+json",
    "application/xml",
];
/// The time of a message that has none.
const NO_TIME: u64 = i64::MAX as u64;

/// Prints lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verbose {
    /// With properties and body.
    is_full: bool,
    to_stderr: bool,
}

/// Ack or nack, as PerfTest says it.
fn kind(ack: bool) -> &'static str {
    if ack { "ack" } else { "nack" }
}

impl Verbose {
    /// `None` if it is not asked for.
    pub(crate) fn of(options: &Options) -> Option<Self> {
        let output = &options.output;
        let to_stderr = output.json.as_deref() == Some("-".as_ref());
        (output.verbose || output.verbose_full)
            .then_some(Self { is_full: output.verbose_full, to_stderr })
    }

    pub(crate) fn published(self, producer: usize, id: u64, properties: &[u8], body: &[u8]) {
        let properties = RawProperties::new(properties);
        let (time, more) = (time(properties, body), self.details(properties, body));
        self.print(&format!(
            "publisher {producer}: message published, timestamp = {time}, publishing ID = {id}{more}"
        ));
    }

    /// A frame that brought so many confirms, and their messages: tags and when they were published.
    pub(crate) fn confirmed(self, producer: usize, tag: u64, ack: bool, messages: &[(u64, u64)]) {
        let (kind, count) = (kind(ack), messages.len());
        self.print(&format!(
            "publisher {producer}: publish confirm, type = {kind}, publishing ID = {tag}, confirm count = {count}"
        ));
        for (tag, time) in messages {
            self.print(&format!(
                "publisher {producer}: message confirmed, type = {kind}, timestamp = {time}, publishing ID = {tag}"
            ));
        }
    }

    /// Gives the time that the message has.
    pub(crate) fn received(
        self,
        consumer: usize,
        tag: u64,
        properties: RawProperties<'_>,
        body: &[u8],
    ) -> u64 {
        let (time, more) = (time(properties, body), self.details(properties, body));
        self.print(&format!(
            "consumer {consumer}: received message, timestamp = {time}, delivery tag = {tag}{more}"
        ));
        time
    }

    /// An ack for so many messages, and the time that the last of them has.
    pub(crate) fn acknowledged(self, consumer: usize, tag: u64, count: u64, time: u64) {
        self.print(&format!(
            "consumer {consumer}: acknowledged message(s), timestamp = {time}, delivery tag = {tag}, \
             message count = {count}"
        ));
    }

    fn details(self, properties: RawProperties<'_>, body: &[u8]) -> String {
        if !self.is_full {
            return String::new();
        }
        // What cannot be read is shown as nothing: this only looks.
        let properties = properties.to_owned().unwrap_or_default();
        format!(", properties = {{{}}}, body = {}", fields(&properties), text(&properties, body))
    }

    /// A reader that has gone is no reason to stop a measurement.
    fn print(self, line: &str) {
        let _ = if self.to_stderr {
            writeln!(std::io::stderr().lock(), "{line}")
        } else {
            writeln!(std::io::stdout().lock(), "{line}")
        };
    }
}

fn time(properties: RawProperties<'_>, body: &[u8]) -> u64 {
    stamp::read_header(properties).or_else(|| stamp::read(body)).unwrap_or(NO_TIME)
}

/// The properties that a message has, under PerfTest's names.
fn fields(it: &Properties) -> String {
    let word = |text: &Option<String>| text.clone();
    let number = |number: Option<u8>| number.map(|it| it.to_string());
    let all = [
        ("content-type", word(&it.content_type)),
        ("content-encoding", word(&it.content_encoding)),
        ("headers", it.headers.as_ref().map(headers)),
        ("delivery-mode", number(it.delivery_mode)),
        ("priority", number(it.priority)),
        ("correlation-id", word(&it.correlation_id)),
        ("reply-to", word(&it.reply_to)),
        ("expiration", word(&it.expiration)),
        ("message-id", word(&it.message_id)),
        ("timestamp", it.timestamp.map(|it| it.to_string())),
        ("type", word(&it.kind)),
        ("user-id", word(&it.user_id)),
        ("app-id", word(&it.app_id)),
        ("cluster-id", word(&it.cluster_id)),
    ];
    let shown = all.into_iter().filter_map(|(name, value)| Some(format!("{name} = {}", value?)));
    shown.collect::<Vec<_>>().join(", ")
}

fn headers(table: &Table) -> String {
    let all = table.iter().map(|(key, value)| format!("{key} = {}", plain(value)));
    format!("{{{}}}", all.collect::<Vec<_>>().join(", "))
}

/// Text if it is said to be, or if it is no body of the tool's own.
fn text(properties: &Properties, body: &[u8]) -> String {
    let kind = properties.content_type.as_deref().unwrap_or_default().to_ascii_lowercase();
    let is_text = TEXT.iter().any(|it| kind.starts_with(it));
    match (body.first_chunk(), stamp::read(body)) {
        (Some(sequence), Some(time)) if !is_text => {
            format!("[sequence = {}, timestamp = {time}]", u32::from_be_bytes(*sequence))
        }
        _ => String::from_utf8_lossy(body).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_perftests() {
        let full = Verbose { is_full: true, to_stderr: false };
        let mut body = [0; 16];
        stamp::write(&mut body, 7, 99);
        let mut headers = Table::default();
        headers.set("a", "b");
        let properties =
            Properties { headers: Some(headers), delivery_mode: Some(2), ..Properties::default() };
        let bytes = properties.to_bytes();
        let told = full.details(RawProperties::new(&bytes), &body);
        let head = ", properties = {headers = {a = b}, delivery-mode = 2}, ";
        assert_eq!(told, format!("{head}body = [sequence = 7, timestamp = 99]"));
        let json = Properties { content_type: Some("application/json".into()), ..properties };
        let bytes = json.to_bytes();
        let told = full.details(RawProperties::new(&bytes), b"{\"answer\": 42}");
        assert!(told.ends_with("delivery-mode = 2}, body = {\"answer\": 42}"), "{told}");
        let brief = Verbose { is_full: false, ..full };
        assert_eq!(brief.details(RawProperties::new(&bytes), &body), "");
        assert_eq!(time(RawProperties::new(&bytes), b"short"), NO_TIME);
    }
}
