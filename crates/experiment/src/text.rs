//! How figures are written.

/// With three digits that count, or whole, and a comma between thousands.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    let decimals = match size {
        _ if size >= 99.95 || size == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = match text.split_once('.') {
        Some((whole, rest)) => (whole, format!(".{rest}")),
        None => (text.as_str(), String::new()),
    };
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    format!("{sign}{out}{rest}")
}

/// A number beside an axis, or one that counts: without zeros that say nothing.
pub(crate) fn tick(value: f64) -> String {
    let text = number(value);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A factor as the article writes gains: `3.08x` from twice on, else a percentage.
pub(crate) fn gain(factor: f64) -> String {
    if !factor.is_finite() {
        "-".to_owned()
    } else if factor >= 2.0 {
        format!("{factor:.2}x")
    } else {
        format!("{:+.1} %", (factor - 1.0) * 100.0)
    }
}

/// A share.
pub(crate) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0} %", share * 100.0) } else { "-".to_owned() }
}

/// Megabytes.
pub(crate) fn megabytes(bytes: f64) -> String {
    number(bytes / 1e6)
}

/// A time that is planned.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 100.0 => format!("{seconds:.0} s"),
        _ if seconds < 100.0 * 60.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn figures() {
        assert_eq!([0.0, 0.456, 12.34, 99.96, 100.4, 44_824.0, 1_234_567.8].map(number),
                   ["0", "0.46", "12.3", "100", "100", "44,824", "1,234,568"]);
        assert_eq!(number(f64::NAN), "-");
        assert_eq!(number(-1234.0), "-1,234");
        assert_eq!([3.08, 2.0, 1.409, 1.0, 0.88].map(gain),
                   ["3.08x", "2.00x", "+40.9 %", "+0.0 %", "-12.0 %"]);
        assert_eq!([0.0, 1.0, 0.5, 20.0, 1500.0].map(tick), ["0", "1", "0.5", "20", "1,500"]);
        assert_eq!(percent(0.825), "82 %");
        assert_eq!(megabytes(2_500_000.0), "2.50");
        assert_eq!([9.6, 300.0, 60_000.0].map(duration), ["10 s", "5 min", "16.7 h"]);
    }
}
