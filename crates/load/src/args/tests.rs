use super::values::{Age, Capacity, Pair, Step, Wait, timestamp};
use super::*;
use leveret_client::amqp::table::Value;

fn words(line: &str) -> Vec<OsString> {
    let word = |word: &str| if word == "''" { OsString::new() } else { word.into() };
    line.split_whitespace().map(word).collect()
}

fn read(line: &str) -> Result<Options, String> {
    Options::read(words(line)).map_err(|error| error.to_string())
}

#[test]
fn perftest_lines_are_read() {
    let options = read(
        "-h amqp://h -x 2 -y 3 -e '' -t topic -k key -s 1500 -r 10 -R 5.5 -c 100 -q 50 -A 10 \
         -f persistent -f mandatory -z 15 -C 7 -D 8 -ad false -qp p%d -qpf 1 -qpt 30 --id run",
    )
    .unwrap();
    assert_eq!((options.publishing.producers, options.consuming.consumers), (2, 3));
    assert_eq!(options.topology.exchange.as_deref(), Some(""));
    assert!(options.has(Flag::Persistent) && options.has(Flag::Mandatory));
    assert!(!options.topology.auto_delete);
    let pattern = (options.topology.queue_pattern_from, options.topology.queue_pattern_to);
    assert_eq!(pattern, (1, Some(30)));
    assert_eq!(options.consuming.consumer_rate, Some(5.5));
    assert_eq!(options.mode, Mode::Throughput);
}

#[test]
fn defaults_are_perftests() {
    let options = read("").unwrap();
    assert_eq!((options.publishing.producers, options.consuming.consumers), (1, 1));
    assert!(options.topology.auto_delete && !options.consuming.autoack);
    assert_eq!(read("latency").unwrap().mode, Mode::Latency);
    // PerfTest's defaults, spelled out.
    read("-c -1 -A 0 -C 0 -m 0 -n 0 -D 0 -X 1 -Y 1 -q 0 -M 0 -L 0 -rkcs 0").unwrap();
}

#[test]
fn every_spelling_of_perftest_is_read() {
    for line in
        ["-qa x-max-length=10", "-queue-args=x-max-length=10", "--queue-args x-max-length=10"]
    {
        let pairs = read(line).unwrap().topology.queue_args;
        assert_eq!(pairs, [Pair("x-max-length".into(), Value::I64(10))], "{line}");
    }
    let options = read("-vr 100:60,0:5 -vr 7:1 -jb -na -re false -ew idle -po -pi 20").unwrap();
    let rates: Vec<u64> = options.publishing.variable_rate.iter().map(|step| step.value).collect();
    assert_eq!(rates, [100, 0, 7]);
    assert!(options.publishing.json_body && options.consuming.nack && !options.consuming.requeue);
    assert_eq!(options.limits.exit_when, Some(ExitWhen::Idle));
}

#[test]
fn what_tunes_a_jvm_is_named() {
    let options = read("-hst 4 -x 3 --nio-threads=2 -udsc -y 2").unwrap();
    assert_eq!(options.without_effect, ["-hst", "--nio-threads", "-udsc"]);
    assert_eq!((options.publishing.producers, options.consuming.consumers), (3, 2));
}

#[test]
fn the_environment_wins() {
    let lookup = |name: &str| match name {
        "PRODUCERS" => Some("7".to_owned()),
        "CONSUMERS" => Some("8".to_owned()),
        "AUTOACK" => Some("true".to_owned()),
        "PREDECLARED" => Some("false".to_owned()),
        "QUEUE_ARGS" => Some("x-max-length=10,x-overflow=reject-publish".to_owned()),
        _ => None,
    };
    let line = "-y 2 -p -x1 --producers 3 --queue-args x-max-age=1h -s 5 -qa a=b";
    let options = Options::read_with(words(line), lookup).unwrap();
    assert_eq!((options.publishing.producers, options.consuming.consumers), (7, 8));
    assert!(options.consuming.autoack && !options.topology.predeclared);
    assert_eq!((options.topology.queue_args.len(), options.publishing.size), (2, Some(5)));
    let prefixed = |name: &str| match name {
        "RABBITMQ_PERF_TEST_ENV_PREFIX" => Some("LOAD".to_owned()),
        "LOAD_SIZE" => Some("99".to_owned()),
        "SIZE" => Some("1".to_owned()),
        _ => None,
    };
    assert_eq!(Options::read_with([], prefixed).unwrap().publishing.size, Some(99));
    let wrong = |name: &str| (name == "AUTOACK").then(|| "perhaps".to_owned());
    assert!(Options::read_with([], wrong).unwrap_err().to_string().contains("AUTOACK"));
    assert!(env::page(&Options::command_for_help(), |_| None).contains("\nQUEUE_PATTERN_FROM "));
}

#[test]
fn a_program_hands_everything_on_unread() {
    #[derive(Parser)]
    enum Program {
        Perf(PerfArgs),
    }
    let line = ["leveret", "perf", "-h", "uri", "-ad", "false", "--help", "-a"];
    let Program::Perf(args) = Program::try_parse_from(line).unwrap();
    assert_eq!(args.raw, ["-h", "uri", "-ad", "false", "--help", "-a"]);
}

#[test]
#[rustfmt::skip] // a table
fn values_have_their_forms() {
    assert_eq!("100:60".parse(), Ok(Step { value: 100, seconds: 60 }));
    assert!("100".parse::<Step>().is_err() && "1:0".parse::<Step>().is_err());
    assert_eq!("20gb".parse(), Ok(Capacity(20_000_000_000)));
    assert_eq!("7".parse(), Ok(Capacity(7)));
    assert!("99999999999tb".parse::<Capacity>().is_err());
    assert_eq!("PT10M30S".parse(), Ok(Age(630)));
    assert_eq!("P5DT8H".parse(), Ok(Age(460_800)));
    assert!("P".parse::<Age>().is_err() && "P8H".parse::<Age>().is_err() && "10".parse::<Age>().is_err());
    assert_eq!("30-60".parse::<Wait>().map(|wait| wait.max.as_secs()), Ok(60));
    assert!("60-30".parse::<Wait>().is_err());
    assert_eq!("a=true".parse(), Ok(Pair("a".into(), Value::Bool(true))));
    assert_eq!("x-dead-letter-exchange=amq.default".parse(),
               Ok(Pair("x-dead-letter-exchange".into(), Value::LongStr(vec![]))));
    assert_eq!(timestamp("1970-01-01T00:00:00Z"), Some(0));
    assert_eq!(timestamp("2022-06-03T07:45:54Z"), Some(1_654_242_354));
    assert_eq!(timestamp("2022-13-03T07:45:54Z"), None);
}

#[test]
fn refused_lines_say_why() {
    for (line, text) in [
        ("-ei 2", "'-ei' is not supported"),
        ("--no-such", "--no-such"),
        ("-a -A 5", "exclude each other"),
        ("-a -na", "exclude each other"),
        ("-q 5 -A 10", "waits for ever"),
        ("-x 0 -y 0", "nothing to do"),
        ("-c 0", "at least one"),
        ("-c 5 -m 5", "not both"),
        ("-p", "--predeclared needs"),
        ("-qp x -qpt 3", "must contain %d"),
        ("-qp x%d", "queue-pattern-to"),
        ("-qp x%d -qpf 4 -qpt 3", "below"),
        ("-u q -qf file", "exclude each other"),
        ("-qq -sq", "exclude each other"),
        ("-r 5 -P 1", "exclude each other"),
        ("-jb -vs 5:1", "--variable-size"),
        ("-vr 5", "seconds above zero"),
        ("--sweep qos=1 -z 1 -o x", "for one run"),
        ("--sweep nothing=1", "no option --nothing"),
        ("--verify -jb", "bodies of its own"),
        ("--verify -s 31", "at least 32"),
        ("--pack 5 -vs 5:1", "--variable-size"),
        ("--idle-queues 5", "--broker-pid"),
        ("-f loud", "loud"),
        ("-r 0", "above zero"),
    ] {
        let error = read(line).unwrap_err();
        assert!(error.contains(text), "{line}: {error}");
    }
}
