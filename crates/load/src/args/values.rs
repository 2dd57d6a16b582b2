//! Values with a form of their own.

use std::str::FromStr;
use std::time::Duration;

use leveret_client::amqp::table::{Table, Value};

/// A value for a time, as `VALUE:SECONDS`. Several follow each other, and then begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What holds.
    pub value: u64,
    /// For how many seconds.
    pub seconds: u64,
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(value, seconds)| {
            Some(Self { value: value.parse().ok()?, seconds: seconds.parse().ok()? })
        });
        parsed
            .filter(|step| step.seconds > 0)
            .ok_or_else(|| "a number, a colon, and seconds above zero, such as 100:60".into())
    }
}

/// `KEY=VALUE`: numbers, true and false are what they look like, the rest is text.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair(pub String, pub Value);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        if key.is_empty() {
            return Err("KEY=VALUE is expected".into());
        }
        let value = match value {
            // PerfTest's name for the exchange without a name.
            "amq.default" if key == "x-dead-letter-exchange" => "",
            value => value,
        };
        let value = match (value, value.parse()) {
            ("true", _) => Value::Bool(true),
            ("false", _) => Value::Bool(false),
            (_, Ok(number)) => Value::I64(number),
            _ => Value::LongStr(value.as_bytes().to_vec()),
        };
        Ok(Self(key.to_owned(), value))
    }
}

/// A table of pairs; the last of a key wins.
pub(crate) fn table(pairs: &[Pair]) -> Table {
    let mut table = Table::default();
    for Pair(key, value) in pairs {
        table.set(key, value.clone());
    }
    table
}

/// A value as it was written on the command line.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        value => match (value.as_i64(), value.as_str()) {
            (Some(number), _) => number.to_string(),
            (None, text) => text.unwrap_or_default().to_owned(),
        },
    }
}

/// Bytes, with `kb`, `mb`, `gb` or `tb` in thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity(pub u64);

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let (digits, unit) = [("kb", 3), ("mb", 6), ("gb", 9), ("tb", 12)]
            .iter()
            .find_map(|(name, zeros)| Some((lower.strip_suffix(name)?, *zeros)))
            .unwrap_or((&lower, 0));
        let unit = 10_u64.pow(unit);
        let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
        bytes.map(Self).ok_or_else(|| "bytes are expected, such as 500mb or 20gb".into())
    }
}

/// An ISO 8601 duration of days, hours, minutes and seconds, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age(pub u64);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a duration is expected, such as PT10M30S or P5DT8H".to_owned();
        let mut rest = text.strip_prefix('P').ok_or_else(wrong)?;
        let (mut seconds, mut in_time, mut any) = (0_u64, false, false);
        while !rest.is_empty() {
            if let Some(time) = rest.strip_prefix('T').filter(|_| !in_time) {
                (rest, in_time) = (time, true);
                continue;
            }
            let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let number: u64 = rest[..end].parse().map_err(|_| wrong())?;
            let unit = match (&rest[end..end + 1], in_time) {
                ("D", false) => 86_400,
                ("H", true) => 3600,
                ("M", true) => 60,
                ("S", true) => 1,
                _ => return Err(wrong()),
            };
            seconds = number
                .checked_mul(unit)
                .and_then(|it| seconds.checked_add(it))
                .ok_or_else(wrong)?;
            (rest, any) = (&rest[end + 1..], true);
        }
        if any { Ok(Self(seconds)) } else { Err(wrong()) }
    }
}

/// Seconds to wait, or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The shortest wait.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if min <= max => {
                Ok(Self { min: Duration::from_secs(min), max: Duration::from_secs(max) })
            }
            _ => Err("seconds are expected, or a range of them such as 30-60".into()),
        }
    }
}

/// A number from zero on; PerfTest's -1 is zero, too.
pub(super) fn whole(text: &str) -> Result<u64, String> {
    if text == "-1" { Ok(0) } else { text.parse().map_err(|_| "a number is expected".into()) }
}

/// Seconds since 1970 of a time such as `2022-06-03T07:45:54Z`.
pub(crate) fn timestamp(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z').unwrap_or(text).split_once('T')?;
    let numbers = |text: &str, by: char| -> Option<[u64; 3]> {
        let all: Option<Vec<u64>> = text.split(by).map(|part| part.parse().ok()).collect();
        all?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    let is_good = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_good || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days of the Gregorian calendar, years beginning with March.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 1;
    // 719468 days lie between March 1st of the year 0 and 1970.
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}
