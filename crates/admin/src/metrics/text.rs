//! The text format of Prometheus, as RabbitMQ writes it: TYPE before HELP, labels in their order.

use std::fmt::Write as _;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(u64),
    Float(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

/// What Prometheus may do with a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Untyped,
    Histogram,
    Summary,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Untyped => "untyped",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// The page that is written.
#[derive(Debug, Default)]
pub(crate) struct Text {
    out: String,
}

impl Text {
    /// Begins a metric.
    pub(crate) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# TYPE {name} {}\n# HELP {name} {help}", kind.name());
    }

    /// One value of the metric; `labels` as [`label`] makes them, separated by commas.
    pub(crate) fn sample(&mut self, name: &str, labels: &str, value: impl Into<Number>) {
        self.out.push_str(name);
        if !labels.is_empty() {
            self.out.push('{');
            self.out.push_str(labels);
            self.out.push('}');
        }
        let _ = match value.into() {
            Number::Int(value) => writeln!(self.out, " {value}"),
            Number::Float(value) => writeln!(self.out, " {value:?}"),
        };
    }

    /// A metric with one value.
    pub(crate) fn one(&mut self, name: &str, kind: Kind, help: &str, value: impl Into<Number>) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// A histogram. `places` are bounds as texts and counts, each without those before it; the last
    /// bound is `+Inf`.
    pub(crate) fn histogram<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: &str,
        places: impl Iterator<Item = (&'a str, u64)>,
        sum: impl Into<Number>,
    ) {
        self.family(name, Kind::Histogram, help);
        let bucket = format!("{name}_bucket");
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        for (bound, more) in places {
            count += more;
            self.sample(&bucket, &format!("{labels}{comma}le=\"{bound}\""), count);
        }
        self.sample(&format!("{name}_count"), labels, count);
        self.sample(&format!("{name}_sum"), labels, sum);
    }

    /// How many bytes wait here.
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    /// Takes what is written so far.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// The rest of the page.
    pub(crate) fn finish(mut self) -> String {
        self.out.push('\n');
        self.out
    }
}

/// `name="value"`, with what must be escaped escaped.
pub(crate) fn label(name: &str, value: &str) -> String {
    labels(&[(name, value)])
}

/// Labels in their order.
pub(crate) fn labels(all: &[(&str, &str)]) -> String {
    let len: usize = all.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    let mut text = String::with_capacity(len);
    for (name, value) in all {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        let mut rest = *value;
        while let Some(at) = rest.find(['\\', '"', '\n']) {
            let (plain, more) = rest.split_at(at);
            text.push_str(plain);
            text.push('\\');
            text.push(if more.starts_with('\n') { 'n' } else { char::from(more.as_bytes()[0]) });
            rest = &more[1..];
        }
        text.push_str(rest);
        text.push('"');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_rabbitmq_writes_it() {
        let mut text = Text::default();
        text.family("a_total", Kind::Counter, "Help");
        text.sample("a_total", &labels(&[("vhost", "/"), ("queue", "a\"b\\c\nd")]), 5);
        text.one("b", Kind::Gauge, "More", 1.5);
        text.one("c", Kind::Gauge, "More", 2.0);
        let bounds = [("1.0", 2), ("+Inf", 1)];
        text.histogram("h", "Sizes", "p=\"x\"", bounds.into_iter(), 7);
        let want = "# TYPE a_total counter\n# HELP a_total Help\n\
            a_total{vhost=\"/\",queue=\"a\\\"b\\\\c\\nd\"} 5\n\
            # TYPE b gauge\n# HELP b More\nb 1.5\n\
            # TYPE c gauge\n# HELP c More\nc 2.0\n\
            # TYPE h histogram\n# HELP h Sizes\n\
            h_bucket{p=\"x\",le=\"1.0\"} 2\nh_bucket{p=\"x\",le=\"+Inf\"} 3\nh_count{p=\"x\"} 3\nh_sum{p=\"x\"} 7\n\n";
        assert_eq!(text.finish(), want);
    }
}
