//! Document 000: what confirms cost, and what is gained when the consumer's ack confirms.

use super::{Document, Experiment, Picture, Quoted, View, quoted};
use crate::case::{Case, Length, ORDINARY};

const ARTICLE: Document = Document {
    number: "000",
    title: "Optimization of Tiny Message Acknowledgement in RabbitMQ (Xu, Jiao, 2018)",
    machine: "four cores of 2.66 GHz, 4 GB, Windows 7, RabbitMQ 3.6.6, PerfTest 1.2.0",
};

const PLAIN: &str = "no acks, no confirms";
const ACKS: &str = "and consumers ack";
const CONFIRMED: &str = "and publishers want confirms";
const PERSISTENT: &str = "and messages are persistent";

pub(super) static LADDER: Experiment = Experiment {
    name: "ladder",
    document: &ARTICLE,
    requirements: &["S000-43", "S003-29"],
    title: "what acks, confirms and persistence each cost: four steps",
    about: "One producer, one consumer, and one promise more at each step. The article quotes the first part of \
            RabbitMQ's performance measurements (RabbitMQ 2.8.1, two Xeon E5530, 40 GB); neither says how large \
            the messages were or how many were unconfirmed at a time: here they are 12 bytes, PerfTest's default, and 1000. \
            Leveret runs the last step twice: by its default rule (first: a message is confirmed when it is on the disk or its \
            consumer has acked it, whichever is first) and as RabbitMQ does (enqueue: always on the disk). \
            The goal is that the last step keeps half of the rate of the one before.",
    missing: None,
    repeats: 3,
    settings: &[],
    cases: ladder,
    quoted: &[
        quoted("RabbitMQ 2.8.1", PLAIN, 44_824.0),
        quoted("RabbitMQ 2.8.1", ACKS, 32_005.0),
        quoted("RabbitMQ 2.8.1", CONFIRMED, 26_103.0),
        quoted("RabbitMQ 2.8.1", PERSISTENT, 4_725.0),
    ],
    views: &[View::Figures(Picture::Bars), View::Steps],
};

fn ladder(length: Length) -> Vec<Case> {
    let seconds = length.seconds(30.0, 2.0);
    let step = |row, flags| Case::new(row, format!("-x 1 -y 1 -e article-ladder -s 12{flags}"));
    let mut cases = vec![
        step(PLAIN, " -a"),
        step(ACKS, " -q 1000"),
        step(CONFIRMED, " -q 1000 -c 1000"),
        step(PERSISTENT, " -q 1000 -c 1000 -f persistent").rule(ORDINARY),
        step("the same, by the rule first", " -q 1000 -c 1000 -f persistent").rule("first"),
    ];
    cases = cases.into_iter().map(|case| case.lasts(seconds)).collect();
    cases
}

pub(super) static CONFIRMS: Experiment = Experiment {
    name: "confirms",
    document: &ARTICLE,
    requirements: &["S000-38", "S000-39", "S000-40", "S000-41", "S000-42", "S000-45"],
    title: "confirm when the consumer acks, 1 to 30 queues: figures 5 and 6",
    about: "Persistent messages of 1500 bytes, confirms and acks; for each queue two producers with two channels and three \
            consumers with three channels. Up to 15 queues hang on one direct exchange, more on two. The article's first \
            variant confirms when the consumer has acked: the rule ack. Its second also forgets a message when it is handed \
            out: ack-lean. Its RabbitMQ before the change confirms when the message is stored: enqueue. first is Leveret's \
            default. The article does not say how many messages were unconfirmed or prefetched: here 200 for each channel that \
            publishes, and 100 for each that consumes, with an ack for every ten. A gain is (after - before) / before; \
            the mean is that of the gains above three queues, as in the article.",
    missing: None,
    repeats: 3,
    settings: &[],
    cases: confirms,
    quoted: GAINS,
    views: &[View::Figures(Picture::Lines("queues")), View::Gains],
};

const VARIANT_1: &str = "article, variant 1 (ack)";
const VARIANT_2: &str = "article, variant 2 (ack-lean)";

/// The row of means in a table of gains.
pub(crate) const MEAN: &str = "mean above 3 queues";

/// Of the send rate, over RabbitMQ 3.6.6 as it was.
const GAINS: &[Quoted] = &[
    quoted(VARIANT_1, "1 queue", 3.08),
    quoted(VARIANT_1, "2 queues", 2.01),
    quoted(VARIANT_1, "15 queues", 1.409),
    quoted(VARIANT_1, "30 queues", 1.403),
    quoted(VARIANT_1, MEAN, 1.429),
    quoted(VARIANT_2, "1 queue", 3.48),
    quoted(VARIANT_2, "2 queues", 2.16),
    quoted(VARIANT_2, "15 queues", 1.526),
    quoted(VARIANT_2, "30 queues", 1.534),
    quoted(VARIANT_2, MEAN, 1.565),
];

fn confirms(length: Length) -> Vec<Case> {
    let queues = length.pick(&[1, 2, 3, 5, 10, 15, 20, 30][..], &[1, 2, 15, 30][..]);
    let seconds = length.seconds(600.0, 0.6);
    let mut cases = Vec::new();
    for count in queues {
        let row = format!("{count} queue{}", if *count == 1 { "" } else { "s" });
        for rule in [ORDINARY, "first", "ack", "ack-lean"] {
            let case = if *count <= 15 {
                Case::new(row.clone(), on_exchange(1, 1, *count))
            } else {
                let half = count / 2;
                Case::new(row.clone(), on_exchange(1, 1, half)).beside(on_exchange(
                    2,
                    half + 1,
                    *count,
                ))
            };
            cases.push(case.column_of_rule(rule).lasts(seconds));
        }
    }
    cases
}

/// The load on the queues from `first` to `last`, which hang on this exchange.
fn on_exchange(exchange: u32, first: u32, last: u32) -> String {
    let queues = last - first + 1;
    let (producers, consumers) = (2 * queues, 3 * queues);
    format!(
        "-x {producers} -X 2 -y {consumers} -Y 3 -s 1500 -f persistent -c 200 -q 100 -A 10 -t direct \
         -e article-{exchange} -qp article-%d -qpf {first} -qpt {last} -ad false"
    )
}
