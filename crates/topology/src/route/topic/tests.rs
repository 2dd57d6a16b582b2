use super::*;
use crate::id::QueueId;

fn queue(number: u64) -> Target {
    Target::Queue(QueueId::new(number))
}

fn found(topics: &Topics, key: &str) -> Vec<u64> {
    let mut found = Vec::new();
    topics.walk(key, |dests| {
        found.extend(dests.iter().map(|target| match target {
            Target::Queue(id) => id.get(),
            Target::Exchange(_) => unreachable!(),
        }));
    });
    found.sort_unstable();
    found
}

#[track_caller]
fn check(binding: &str, routing: &str, want: bool) {
    let mut topics = Topics::default();
    topics.bind(binding, queue(1));
    assert_eq!(!found(&topics, routing).is_empty(), want, "{binding:?} ~ {routing:?}");
    let words = |key| words(key).collect::<Vec<_>>();
    assert_eq!(model(&words(binding), &words(routing)), want, "the model is wrong");
}

#[test]
#[rustfmt::skip] // a table
fn keys() {
    //    binding key      routing key      matches
    check("a.b",           "a.b",           true);
    check("a.b",           "a",             false);
    check("a.b",           "a.b.c",         false);
    check("a.*",           "a.b",           true);
    check("a.*",           "a",             false);
    check("a.*",           "a.b.c",         false);
    check("*.b",           "a.b",           true);
    check("*",             "a",             true);
    check("*",             "",              false); // the empty key has no words at all, as in RabbitMQ
    check("",              "",              true);
    check("",              "a",             false);
    check("#",             "",              true);
    check("#",             "a.b.c",         true);
    check("a.#",           "a",             true); // '#' is zero or more words
    check("a.#",           "a.b.c",         true);
    check("a.#",           "b",             false);
    check("#.a",           "a",             true);
    check("#.a",           "b.a.a",         true);
    check("#.a",           "a.b",           false);
    check("a.#.c",         "a.c",           true);
    check("a.#.c",         "a.b.b.c",       true);
    check("a.#.#",         "a",             true);
    check("#.#",           "",              true);
    check("*.#",           "",              false);
    check("*.#",           "a",             true);
    check("#.*",           "a",             true);
    check("#.*.#.b.#",     "a.b",           true);
    check("#.*.#.b.#",     "b",             false);
    check("a..b",          "a..b",          true); // between two dots there is the empty word
    check("a.*.b",         "a..b",          true);
    check(".",             ".",             true);
    check("*.*",           ".",             true);
    check("a*",            "ab",            false); // only a whole word is a wildcard
    check("a*",            "a*",            true);
    check("*",             "*",             true); // in a routing key they are words like others
    check("a",             "*",             false);
    check("#",             "#",             true);
    check("lazy.#",        "lazy.orange",   true);
}

/// Word by word, by trying all that `#` may stand for.
fn model(binding: &[&[u8]], routing: &[&[u8]]) -> bool {
    match (binding.split_first(), routing.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((&b"#", rest)), _) => (0..=routing.len()).any(|n| model(rest, &routing[n..])),
        (Some(_), None) => false,
        (Some((&word, bindings)), Some((&own, routings))) => {
            (word == b"*" || word == own) && model(bindings, routings)
        }
    }
}

/// All keys over `a . * #` up to a length.
fn all_keys(longest: usize) -> Vec<String> {
    let mut keys = vec![String::new()];
    let mut from = 0;
    for _ in 0..longest {
        let to = keys.len();
        for at in from..to {
            for c in ['a', '.', '*', '#'] {
                keys.push(format!("{}{c}", keys[at]));
            }
        }
        from = to;
    }
    keys
}

#[test]
fn all_keys_up_to_length_5_agree_with_the_model() {
    let keys = all_keys(5);
    assert_eq!(keys.len(), 1365);
    let split: Vec<Vec<&[u8]>> = keys.iter().map(|key| words(key).collect()).collect();
    let mut topics = Topics::default();
    for (number, key) in (0..).zip(&keys) {
        topics.bind(key, queue(number));
    }
    let compare = |topics: &Topics, bound: &dyn Fn(u64) -> bool| {
        for (key, routing) in keys.iter().zip(&split) {
            let matching = (0..)
                .zip(&split)
                .filter(|(number, binding)| bound(*number) && model(binding, routing));
            let want: Vec<u64> = matching.map(|(number, _)| number).collect();
            assert_eq!(found(topics, key), want, "{key:?}");
        }
    };
    compare(&topics, &|_| true);

    // With two thirds unbound, what is left is still found; with none left, nothing remains.
    for (number, key) in (0..).zip(&keys).filter(|(number, _)| number % 3 != 0) {
        topics.unbind(key, queue(number));
    }
    compare(&topics, &|number| number % 3 == 0);
    for (number, key) in (0..).zip(&keys) {
        topics.unbind(key, queue(number));
    }
    assert_eq!((topics.nodes.len(), topics.free.len(), topics.edges.len()), (1, 0, 0));
}

/// One binding at a time: other paths through the trie than with all of them.
#[test]
fn single_bindings_agree_with_the_model() {
    let keys = all_keys(4);
    for binding in &keys {
        let mut topics = Topics::default();
        topics.bind(binding, queue(1));
        let binding: Vec<_> = words(binding).collect();
        for key in &keys {
            let routing: Vec<_> = words(key).collect();
            assert_eq!(!found(&topics, key).is_empty(), model(&binding, &routing));
        }
    }
}

/// The promise of topic exchanges, without a clock: a route looks for as many edges among 100,000 bindings as
/// among 100.
#[test]
fn work_does_not_grow_with_bindings() {
    let steps = |bindings: u64| {
        let mut topics = Topics::default();
        for number in 0..bindings {
            let (site, sensor) = (number % 97, number / 97);
            let key = match number % 10 {
                0 => format!("site.{site}.*.{sensor}"),
                1 => format!("site.{site}.{sensor}.#"),
                _ => format!("site.{site}.sensor.{sensor}"),
            };
            topics.bind(&key, queue(number));
        }
        // No wildcard at the beginning: these are reached by all, however few or many there are.
        let keys = ["site.1.sensor.0", "site.1.2.3", "site.20.sensor.1", "other.1", "site.x.y.z"];
        keys.map(|key| topics.walk(key, |_| {}))
    };
    assert_eq!(steps(100_000), steps(10_000));
    for (many, few) in steps(100_000).into_iter().zip(steps(100)) {
        assert!(many <= 2 * few, "{many} steps instead of {few}");
    }
}

/// `#` after `#` would take exponential time if every way to match were tried.
#[test]
fn many_hashes_are_linear() {
    let mut topics = Topics::default();
    let binding = "#.a.".repeat(40) + "#";
    topics.bind(&binding, queue(1));
    let key = vec!["a"; 120].join(".");
    let looked = topics.walk(&key, |_| {});
    assert!(looked <= 120 * 81 * 2, "{looked}");
    assert_eq!(found(&topics, &key), [1]);
    assert_eq!(found(&topics, &"a.".repeat(30)), [0; 0]);
}

#[test]
fn a_destination_stays_until_its_last_binding() {
    let mut topics = Topics::default();
    topics.bind("a.b", queue(1));
    topics.bind("a.b", queue(1)); // other arguments, same key
    topics.bind("a.b", queue(2));
    assert_eq!(found(&topics, "a.b"), [1, 2]);
    topics.unbind("a.b", queue(1));
    assert_eq!(found(&topics, "a.b"), [1, 2]);
    topics.unbind("a.b", queue(1));
    topics.unbind("a.c", queue(2)); // never bound
    assert_eq!(found(&topics, "a.b"), [2]);
}

#[test]
fn a_node_is_one_cache_line() {
    assert_eq!(size_of::<Node>(), 64);
}
