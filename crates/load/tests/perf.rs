//! The tool against a mirror: what it sends, counts and reports.

mod mirror;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use serde_json::Value;

/// A name for a file of this test alone.
fn file(address: SocketAddr, kind: &str) -> PathBuf {
    let name = format!("perf-{}-{}.{kind}", std::process::id(), address.port());
    std::env::temp_dir().join(name)
}

/// Runs the tool with `flags`; gives its exit status and its JSON.
fn ended(address: SocketAddr, flags: &str) -> (ExitCode, Value) {
    let file = file(address, "json");
    let mut words: Vec<String> = flags.split(' ').map(str::to_owned).collect();
    words.extend(["-h".into(), format!("amqp://{address}"), "--json".into()]);
    words.push(file.to_string_lossy().into_owned());
    let raw = words.into_iter().map(Into::into).collect();
    let code = leveret_load::main(leveret_load::PerfArgs { raw });
    let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{code:?}: {flags}"));
    std::fs::remove_file(&file).unwrap();
    (code, serde_json::from_str(&text).unwrap())
}

/// The JSON of a run that is good.
fn perf(address: SocketAddr, flags: &str) -> Value {
    let (code, result) = ended(address, flags);
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS), "{flags}");
    result
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
fn each_message_and_each_ack_can_be_a_write() {
    // What the run is asked for beside 2000 messages, and its writes.
    for (flags, writes) in [
        ("-a", 33), // 61 fit 64 KiB
        ("-a --flush-each", 2000),
        ("-A 1 -c 50 --flush-each", 4000),
        ("-a -r 50000 --flush-each", 2000), // of a pace that lets five go together
    ] {
        let (address, counts) = mirror::start();
        let result = perf(address, &format!("{flags} -s 1000 -C 2000 -D 2000"));
        assert_eq!(
            (&result["writes"], &result["consumed"]),
            (&writes.into(), &2000.into()),
            "{flags}"
        );
        assert_eq!(result["plan"]["flush_each"], flags.contains("--flush-each"));
        assert_eq!(counts.published.load(Ordering::Relaxed), 2000);
    }
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

#[test]
fn given_bodies_arrive_with_their_time() {
    let (address, counts) = mirror::start();
    let result = perf(address, "-a -jb -s 300 -bc 7 -bfc 20 -C 1000 -f persistent");
    assert_eq!((&result["consumed"], &result["latency_us"]["count"]), (&1000.into(), &1000.into()));
    assert_eq!(counts.published.load(Ordering::Relaxed), 1000);
    assert!(result["plan"]["body_bytes"].as_u64().unwrap() >= 300);
}

#[test]
fn packed_and_compressed_bodies_are_taken_apart_again() {
    let (address, _) = mirror::start();
    let result = perf(address, "-a -s 32 --pack 50 -C 200");
    assert_eq!((&result["consumed"], &result["unpacked"]), (&200.into(), &10_000.into()));
    let (address, _) = mirror::start();
    let result = perf(address, "-a -s 3000 --pack 3 --compress -C 200");
    assert_eq!(result["unpacked"], 600);
    assert!(result["plan"]["body_bytes"].as_u64().unwrap() < 1000);
}

#[test]
fn transactions_end_with_what_is_left() {
    let (address, counts) = mirror::start();
    let result = perf(address, "-m 30 -C 1000 -a");
    assert_eq!(result["consumed"], 1000);
    // 33 whole ones and the rest.
    assert_eq!(counts.commits.load(Ordering::Relaxed), 34);
}

#[test]
fn rates_and_sizes_vary() {
    let (address, counts) = mirror::start();
    let result = perf(address, "-vr 100:1,400:1 -vs 50:1,500:1 -a -z 1.9");
    let published = result["published"].as_u64().unwrap();
    // The first second's hundred, and more at the second rate.
    assert!((120..=2000).contains(&published), "{published}");
    assert_eq!(counts.published.load(Ordering::Relaxed), published);
}

#[test]
fn intervals_are_written_as_csv() {
    let (address, _) = mirror::start();
    let csv = file(address, "csv");
    perf(address, &format!("-a -r 500 -z 0.5 -i 0.1 -d mine -o {}", csv.display()));
    let text = std::fs::read_to_string(&csv).unwrap();
    std::fs::remove_file(&csv).unwrap();
    let mut lines = text.lines();
    let header = lines.next().unwrap();
    assert!(header.starts_with("id,time (s),published (msg/s),returned (msg/s),"), "{header}");
    assert!(
        header.contains(",99th p. consumer latency (µs),min confirm latency (µs),"),
        "{header}"
    );
    let columns = header.split(',').count();
    for line in lines.by_ref() {
        assert_eq!(line.split(',').count(), columns, "{line}");
        assert!(line.starts_with("mine,"), "{line}");
    }
}

#[test]
fn a_run_ends_when_consumers_are_idle() {
    let (address, _) = mirror::start();
    let result = perf(address, "-a -C 100 --exit-when idle");
    assert_eq!(result["consumed"], 100);
    assert_eq!(result["reason"], "Consumer is idle for more than 1 second");
}

#[test]
fn a_faultless_path_is_verified() {
    let (address, _) = mirror::start();
    let result = perf(address, "--verify -a -s 200 -C 5000");
    let found = &result["verification"];
    assert_eq!((&found["lost"], &found["corrupt"]), (&0.into(), &0.into()));
}

#[test]
fn every_fault_of_a_path_is_found() {
    use mirror::Fault;
    for (fault, what) in [
        (Fault::Lose, "lost"),
        (Fault::Double, "duplicated"),
        (Fault::Swap, "out_of_order"),
        (Fault::Damage, "corrupt"),
    ] {
        let (address, _) = mirror::start_with(fault);
        let (code, result) = ended(address, "--verify -a -s 200 -C 1010");
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(3)), "{fault:?}");
        let found = &result["verification"];
        assert_eq!(found[what], 10, "{fault:?}: {found}");
        // A damaged message is none of those that were sent.
        let others = ["lost", "duplicated", "out_of_order", "corrupt"].into_iter();
        for other in others.filter(|other| *other != what) {
            let want = if (fault, other) == (Fault::Damage, "lost") { 10 } else { 0 };
            assert_eq!(found[other], want, "{fault:?}: {found}");
        }
    }
}

/// A broker that stands still makes late what was to be published meanwhile, though it was not published.
#[test]
fn what_could_not_be_published_in_time_is_late() {
    let stall = std::time::Duration::from_millis(200);
    let (address, _) = mirror::start_with(mirror::Fault::Stall(stall));
    let result = perf(address, "-a -r 1000 -c 1 -C 500");
    for latency in ["latency_us", "confirm_latency_us"] {
        assert_eq!(result[latency]["count"], 500);
        // Two hundred of them, from no time at all to the whole of it.
        let p75 = result[latency]["p75"].as_f64().unwrap();
        assert!(p75 > 20_000.0, "{latency}: {}", result[latency]);
    }
}
