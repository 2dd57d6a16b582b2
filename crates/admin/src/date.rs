//! Dates as they are written.

/// Seconds since the Unix epoch as a date and time of the common calendar.
pub(crate) fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March, so that the day that not every year has is their last; eras have 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The same as RabbitMQ's health check of certificates writes it.
pub(crate) fn plain(seconds: i64) -> String {
    let text = utc(seconds).replace("T0", " ").replace('T', " ");
    text.trim_end_matches('Z').to_owned()
}

/// Milliseconds since the Unix epoch, in RabbitMQ's form.
pub(crate) fn utc_ms(ms: u64) -> String {
    let seconds = utc(i64::try_from(ms / 1000).unwrap_or(i64::MAX));
    format!("{}.{:03}+00:00", seconds.trim_end_matches('Z'), ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_826_496), "2000-02-29T12:14:56Z");
        assert_eq!(utc(4_102_444_799), "2099-12-31T23:59:59Z");
        assert_eq!(utc(-1), "1969-12-31T23:59:59Z");
        assert_eq!(plain(4_102_444_799), "2099-12-31 23:59:59");
        assert_eq!(plain(0), "1970-01-01 0:00:00");
        assert_eq!(utc_ms(1_700_000_000_007), "2023-11-14T22:13:20.007+00:00");
    }
}
