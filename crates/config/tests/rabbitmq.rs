//! Every key of RabbitMQ's schemas works, is told as one without effect, or is refused.

use leveret_config::{Config, File, Inputs};

/// Keys and values that RabbitMQ takes.
fn schema() -> impl Iterator<Item = (String, &'static str)> {
    let lines = include_str!("rabbitmq_keys.txt").lines();
    let lines = lines.filter_map(|line| line.split_once(" = "));
    lines.filter(|(key, _)| !key.starts_with('#')).flat_map(|(key, values)| {
        let words = key.split('.').map(|word| match word {
            "$num" | "$index" | "$number" => "1",
            word if word.starts_with('$') => "x",
            word => word,
        });
        let key = words.collect::<Vec<_>>().join(".");
        values.split(" | ").map(move |value| (key.clone(), value))
    })
}

/// What is told of a setting: notices, or faults.
fn told(key: &str, value: &str) -> Result<Vec<String>, String> {
    let text = format!("{key} = '{value}'");
    let files = vec![File { name: "f.conf".to_owned(), text }];
    match Config::load(&Inputs { files, ..Inputs::default() }) {
        Ok(loaded) => Ok(loaded.notices.into_iter().map(|it| it.text).collect()),
        Err(errors) => Err(errors.to_string()),
    }
}

fn is_option(key: &str) -> bool {
    let words: Vec<&str> = key.split('.').collect();
    let is = |pattern: &&str| {
        let pattern: Vec<&str> = pattern.split('.').collect();
        pattern.len() == words.len()
            && pattern.iter().zip(&words).all(|(want, got)| want.starts_with('$') || want == got)
    };
    let sections = Config::sections();
    let mut specs = sections.iter().flat_map(|(_, specs)| specs);
    specs.any(|spec| spec.keys.iter().chain(spec.aliases).any(is))
}

#[test]
fn no_key_is_taken_in_silence() {
    let mut silent = Vec::new();
    let mut count = 0;
    for (key, value) in schema() {
        count += 1;
        let is_told = match told(&key, value) {
            Ok(notices) if !is_option(&key) => {
                notices.len() == 1 && notices[0].starts_with(&format!("f.conf:1: {key} "))
            }
            Ok(_) => true,
            Err(why) => {
                let place = format!("f.conf:1: {key} ");
                why.lines().count() == 1 && why.starts_with(&place)
            }
        };
        if !is_told {
            silent.push(format!("{key} = {value}: {:?}", told(&key, value)));
        }
    }
    assert!(count > 1_500, "{count}");
    assert!(silent.is_empty(), "{silent:#?}");
}

/// An option takes the values that RabbitMQ's has, but for those that are named here, with the reason.
#[test]
fn options_take_what_rabbitmq_takes() {
    let refused: Vec<String> = schema()
        .filter(|(key, value)| is_option(key) && *value != "text")
        .filter_map(|(key, value)| {
            let why = told(&key, value).err()?;
            Some(why.strip_prefix("f.conf:1: ").unwrap_or(&why).to_owned())
        })
        .collect();
    let duration = "expected a duration such as 30000, 250ms, 30s, 5m or 1h";
    let level = "expected one of debug|info|notice|warning|error|critical|alert|emergency|none";
    let want = [
        // Nobody is waited for without an end.
        format!("auth_ldap.idle_timeout = infinity: {duration}"),
        format!("auth_ldap.timeout = infinity: {duration}"),
        "collect_statistics_interval = 20: expected a value from 100 to 86400000".to_owned(),
        format!("handshake_timeout = infinity: {duration}"),
        "handshake_timeout = 20: expected a value from 100 to 3600000".to_owned(),
        // Of the library that RabbitMQ logged with up to 3.8.
        format!("log.file.level = =debug: {level}"),
        format!("log.file.level = !=info: {level}"),
        format!("log.file.level = <=notice: {level}"),
        format!("log.file.level = <warning: {level}"),
        "ssl_handshake_timeout = 20: expected a value from 100 to 3600000".to_owned(),
    ];
    assert_eq!(refused, want);
}
