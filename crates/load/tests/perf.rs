//! The tool against a mirror: what it sends, counts and reports.

mod mirror;

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use serde_json::Value;

/// Runs the tool with `flags` and reads its JSON.
fn perf(address: std::net::SocketAddr, flags: &str) -> Value {
    let file = std::env::temp_dir().join(format!("perf-{}-{}", std::process::id(), address.port()));
    let mut words: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    words.extend(["-h".into(), format!("amqp://{address}"), "--json".into()]);
    words.push(file.to_string_lossy().into_owned());
    let raw = words.into_iter().map(Into::into).collect();
    let code = leveret_load::main(leveret_load::PerfArgs { raw });
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS), "{flags}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn every_message_is_counted() {
    let (address, counts) = mirror::start();
    let result = perf(address, "-a -s 16 -C 50000");
    assert_eq!((&result["published"], &result["consumed"]), (&50_000.into(), &50_000.into()));
    assert_eq!(result["latency_us"]["count"], 50_000);
    assert_eq!(counts.published.load(Ordering::Relaxed), 50_000);
    assert_eq!(counts.persistent.load(Ordering::Relaxed), 0);
}

#[test]
fn confirms_and_acks_are_counted() {
    let (address, counts) = mirror::start();
    // One producer: the mirror numbers its deliveries before it lines them up.
    let result = perf(address, "-s 1000 -C 10000 -c 100 -f persistent -A 7 -q 100 -D 10000");
    assert_eq!((&result["confirmed"], &result["consumed"]), (&10_000.into(), &10_000.into()));
    assert_eq!(result["confirm_latency_us"]["count"], 10_000);
    assert_eq!(counts.acked.load(Ordering::Relaxed), 10_000); // the rest of a seventh too
    assert_eq!(counts.persistent.load(Ordering::Relaxed), 10_000);
}

#[test]
fn bodies_larger_than_a_frame_arrive_whole() {
    let (address, counts) = mirror::start();
    let result = perf(address, "-a -s 300000 -C 20");
    assert_eq!((&result["consumed"], &result["latency_us"]["count"]), (&20.into(), &20.into()));
    assert_eq!(counts.published.load(Ordering::Relaxed), 20);
}

#[test]
fn bodies_too_short_for_a_stamp_have_no_latency() {
    let (address, _) = mirror::start();
    let result = perf(address, "-a -s 0 -C 100");
    assert_eq!((&result["consumed"], &result["latency_us"]), (&100.into(), &Value::Null));
}

#[test]
fn rates_are_kept() {
    let (address, _) = mirror::start();
    let result = perf(address, "-a -r 2000 -C 400");
    let rate = result["publish_rate"]["mean"].as_f64().unwrap();
    assert!((1000.0..2100.0).contains(&rate), "{rate}");
}

#[test]
fn a_program_gets_the_intervals_and_what_the_json_holds() {
    let (address, _) = mirror::start();
    let words = ["-a", "-z", "0.35", "-i", "0.1", "-r", "1000", "-h", &format!("amqp://{address}")];
    let options = leveret_load::Options::read(words.map(Into::into)).unwrap();
    let mut seen = 0;
    let mut watch = |interval: &leveret_load::Interval| {
        seen += interval.totals.get(leveret_load::Counter::Published);
    };
    let outcome = leveret_load::measure(&options, Some(&mut watch)).unwrap();
    assert!(seen > 0 && outcome.intervals.len() >= 3, "{seen}");
    let json = serde_json::to_value(&outcome).unwrap();
    assert_eq!(json["published"], outcome.totals.get(leveret_load::Counter::Published));
    assert_eq!(json["intervals"].as_array().unwrap().len(), outcome.intervals.len());
}
