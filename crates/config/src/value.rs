//! The types an option can have: how each is written, read, shown and compared.

use std::fmt;
use std::time::Duration;

/// A value written in one setting.
pub trait Value: Sized {
    /// How a user writes it, for help and pages.
    const FORM: &'static str;

    /// Reads what a user wrote; the error says what was expected.
    fn read(text: &str) -> Result<Self, String>;

    /// Writes it so that [`read`](Self::read) gives it back (secrets excepted).
    fn show(&self) -> String;
}

macro_rules! whole_number {
    ($($kind:ty),+) => {$(
        impl Value for $kind {
            const FORM: &'static str = "NUMBER";

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("expected a whole number up to {}", Self::MAX))
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )+};
}
whole_number!(u16, u32, u64);

impl Value for bool {
    const FORM: &'static str = "true|false";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "true" | "on" => Ok(true),
            "false" | "off" => Ok(false),
            _ => Err("expected true or false".to_owned()),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    const FORM: &'static str = "TEXT";

    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl<T: Value> Value for Option<T> {
    const FORM: &'static str = T::FORM;

    fn read(text: &str) -> Result<Self, String> {
        T::read(text).map(Some)
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "not set".to_owned(), T::show)
    }
}

/// A number of bytes. `kB`, `MB`, ... are powers of 1000; `KiB`, `MiB`, ... of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// So many KiB.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// So many MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Value for ByteSize {
    const FORM: &'static str = "BYTES";

    fn read(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: u64 = digits.trim_end().parse().map_err(|_| BYTES_EXPECTED.to_owned())?;
        let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_lowercase();
        let mut letters = unit.chars();
        let power = match letters.next() {
            None => return Ok(Self(number)),
            Some('b') if unit == "b" => return Ok(Self(number)),
            Some(letter) => "kmgtp".find(letter).ok_or(BYTES_EXPECTED)? as u32 + 1,
        };
        let base: u64 = match letters.as_str() {
            "" | "b" => 1000,
            "i" | "ib" => 1024,
            _ => return Err(BYTES_EXPECTED.to_owned()),
        };
        number.checked_mul(base.pow(power)).map(Self).ok_or_else(|| "the size is too large".into())
    }

    fn show(&self) -> String {
        let units = [("GiB", 1 << 30), ("GB", 1_000_000_000), ("MiB", 1 << 20), ("MB", 1_000_000)];
        for (unit, size) in units {
            if self.0 >= size && self.0.is_multiple_of(size) {
                return format!("{}{unit}", self.0 / size);
            }
        }
        self.0.to_string()
    }
}

const BYTES_EXPECTED: &str = "expected a number of bytes such as 131072, 512MiB or 2GB";

/// A duration in milliseconds; a bare number is milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// So many seconds.
    pub const fn seconds(count: u64) -> Self {
        Self(count * 1000)
    }

    /// The number of milliseconds.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<Millis> for Duration {
    fn from(it: Millis) -> Self {
        Self::from_millis(it.0)
    }
}

impl Value for Millis {
    const FORM: &'static str = "MILLISECONDS";

    fn read(text: &str) -> Result<Self, String> {
        read_duration(text, 1).map(Self)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// A duration in whole seconds; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u64);

impl Seconds {
    /// The number of seconds.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Value for Seconds {
    const FORM: &'static str = "SECONDS";

    fn read(text: &str) -> Result<Self, String> {
        let millis = read_duration(text, 1000)?;
        match millis % 1000 {
            0 => Ok(Self(millis / 1000)),
            _ => Err("expected whole seconds".to_owned()),
        }
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Milliseconds of `10`, `10s`, `1h30m`; a number without a unit counts in `bare_ms`.
fn read_duration(text: &str, bare_ms: u64) -> Result<u64, String> {
    let expected = || "expected a duration such as 30000, 250ms, 30s, 5m or 1h".to_owned();
    if text.is_empty() {
        return Err(expected());
    }
    let mut total = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| expected())?;
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let ms = match unit.trim() {
            "" => bare_ms,
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            "f" => 1_209_600_000, // a fortnight, as in RabbitMQ
            _ => return Err(expected()),
        };
        total = number
            .checked_mul(ms)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| "the duration is too long".to_owned())?;
        rest = after;
    }
    Ok(total)
}

/// A limit that may be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

impl Limit {
    /// No limit.
    pub const INFINITY: Self = Self(None);

    /// Whether `count` things are allowed.
    pub fn allows(self, count: u64) -> bool {
        self.0.is_none_or(|limit| count <= limit)
    }
}

impl Value for Limit {
    const FORM: &'static str = "NUMBER|infinity";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "infinity" => Ok(Self(None)),
            _ => match text.parse() {
                Ok(limit) => Ok(Self(Some(limit))),
                Err(_) => Err("expected a whole number or infinity".to_owned()),
            },
        }
    }

    fn show(&self) -> String {
        self.0.map_or_else(|| "infinity".to_owned(), |limit| limit.to_string())
    }
}

/// A part of a whole or a multiple of it: `0.6` or `60%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Fraction(pub f64);

impl Value for Fraction {
    const FORM: &'static str = "FRACTION";

    fn read(text: &str) -> Result<Self, String> {
        let (number, whole) = match text.strip_suffix('%') {
            Some(percent) => (percent, 100.0),
            None => (text, 1.0),
        };
        match number.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Self(number / whole)),
            _ => Err("expected a fraction such as 0.6 or 60%".to_owned()),
        }
    }

    fn show(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// A text that is never shown: not in logs, not by `leveret ctl environment`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

impl Value for Secret {
    const FORM: &'static str = "SECRET";

    fn read(text: &str) -> Result<Self, String> {
        // RabbitMQ's `plain:` tag says that what follows is taken as it stands.
        Ok(Self(text.strip_prefix("plain:").unwrap_or(text).to_owned()))
    }

    fn show(&self) -> String {
        "(hidden)".to_owned()
    }
}

/// Declares an enumeration whose variants are written as fixed words. Other words may mean the same, and some may be refused
/// with a text of their own.
macro_rules! words {
    (
        $(#[$meta:meta])* $name:ident {
            $($(#[$of:meta])* $variant:ident = $word:literal $(| $other:literal)*),+ $(,)?
        }
        $(refuses { $($bad:literal)|+ => $why:literal })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$of])* $variant),+ }

        impl $crate::value::Value for $name {
            const FORM: &'static str = $crate::value::words!(@join $($word),+);

            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $($word $(| $other)* => Ok(Self::$variant),)+
                    $($($bad)|+ => Err($why.to_owned()),)?
                    _ => Err(concat!("expected one of ", $crate::value::words!(@join $($word),+)).to_owned()),
                }
            }

            fn show(&self) -> String {
                match self { $(Self::$variant => $word.to_owned(),)+ }
            }
        }
    };
    (@join $first:literal $(, $more:literal)*) => { concat!($first $(, "|", $more)*) };
}
pub(crate) use words;

words! {
    /// How grave a log entry must be to be written.
    Level {
        /// Everything.
        Debug = "debug",
        /// The life of the broker and its connections.
        Info = "info",
        /// Noteworthy but normal.
        Notice = "notice",
        /// Unexpected but served.
        Warning = "warning",
        /// Needs a human.
        Error = "error",
        /// As `error`.
        Critical = "critical",
        /// As `error`.
        Alert = "alert",
        /// As `error`.
        Emergency = "emergency",
        /// Nothing.
        None = "none",
    }
}

words! {
    /// How new passwords are hashed.
    PasswordHashing {
        /// Salted SHA-256, as RabbitMQ does it.
        Sha256 = "rabbit_password_hashing_sha256",
        /// Salted SHA-512, as RabbitMQ does it.
        Sha512 = "rabbit_password_hashing_sha512",
        /// Argon2id, which RabbitMQ does not know.
        Argon2id = "leveret_password_hashing_argon2id",
    }
}

words! {
    /// A type of queue, as RabbitMQ's names and modules have it.
    QueueType {
        /// `classic`.
        Classic = "classic" | "rabbit_classic_queue",
        /// `quorum`.
        Quorum = "quorum" | "rabbit_quorum_queue",
    }
    refuses { "stream" | "rabbit_stream_queue" => "there are no streams" }
}

words! {
    /// The shape of a log entry.
    LogFormat {
        /// One line of text.
        Plaintext = "plaintext",
        /// One JSON object per line.
        Json = "json",
    }
}

words! {
    /// One of the process's two output streams.
    Stream {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
    }
}

words! {
    /// What a start does with a damaged file of messages.
    DamagedFiles {
        /// Goes on with all that is whole.
        Aside = "aside",
        /// Ends there, and changes nothing.
        Refuse = "refuse",
    }
}

words! {
    /// The product that clients read in the server's properties.
    Product {
        /// Our own name. Clients that branch on RabbitMQ's treat the broker as a plain AMQP 0-9-1 one.
        Leveret = "Leveret",
        /// RabbitMQ's name, for clients that enable features only for it.
        RabbitMq = "RabbitMQ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn reading() {
        bytes("131072",      Some(131_072));
        bytes("64kB",        Some(64_000));
        bytes("64KiB",       Some(65_536));
        bytes("2GB",         Some(2_000_000_000));
        bytes("2Gi",         Some(2 << 30));
        bytes("1G",          Some(1_000_000_000)); // as in Kubernetes, and RabbitMQ since 3.13
        bytes("500 MiB",     Some(500 << 20));
        bytes("",            None);
        bytes("MB",          None);
        bytes("1.5GB",       None);
        bytes("-1",          None);
        bytes("1zB",         None);
        bytes("99999999PiB", None);
        millis("30000",      Some(30_000));
        millis("30s",        Some(30_000));
        millis("1h30m",      Some(5_400_000));
        millis("250ms",      Some(250));
        millis("s",          None);
        millis("",           None);
        millis("1y",         None);
        millis("99999999999999w", None);
        assert_eq!(Seconds::read("2m"), Ok(Seconds(120)));
        assert!(Seconds::read("1500ms").is_err());
        assert_eq!(Fraction::read("60%"), Ok(Fraction(0.6)));
        assert!(Fraction::read("nan").is_err());
        assert_eq!(Limit::read("infinity"), Ok(Limit::INFINITY));
        assert_eq!(format!("{:?}", Secret::new("x")), "Secret(...)");
    }

    #[test]
    fn sizes_are_shown_as_they_are_read() {
        for size in [0, 1, 4096, 1 << 20, 50_000_000, 16 << 20, 3 << 30, 1_000_000_001] {
            assert_eq!(ByteSize::read(&ByteSize(size).show()), Ok(ByteSize(size)));
        }
    }

    #[track_caller]
    fn bytes(text: &str, want: Option<u64>) {
        assert_eq!(ByteSize::read(text).ok(), want.map(ByteSize), "{text}");
    }

    #[track_caller]
    fn millis(text: &str, want: Option<u64>) {
        assert_eq!(Millis::read(text).ok(), want.map(Millis), "{text}");
    }
}
