use leveret_config::Value as _;

use super::*;

/// What a directory of these entries says: name, and attributes with their values.
type Directory = [(&'static str, &'static [(&'static str, &'static str)])];

const DIRECTORY: &Directory = &[
    ("cn=bob,dc=x", &[("mail", "bob@x"), ("mail", "b@x"), ("allowed", "^b")]),
    ("cn=users,dc=x", &[("member", "cn=bob,dc=x")]),
    ("cn=all,dc=x", &[("member", "CN=Users,DC=x"), ("member", "cn=loop,dc=x")]),
    ("cn=loop,dc=x", &[("member", "cn=all,dc=x")]),
];

fn answer(lookup: &Lookup) -> Option<Vec<String>> {
    let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    let fits = |attributes: &[(&str, &str)]| match &lookup.filter {
        Filter::Any => true,
        Filter::Equal { attribute, value } => {
            attributes.iter().any(|(name, own)| same(name, attribute) && same(own, value))
        }
    };
    let below = |dn: &str| match lookup.scope {
        Scope::Base => same(dn, &lookup.base),
        _ => dn.ends_with(&lookup.base),
    };
    let mut found = DIRECTORY.iter().filter(|(dn, attributes)| below(dn) && fits(attributes));
    match &lookup.attribute {
        None => Some(found.map(|(dn, _)| (*dn).to_owned()).collect()),
        Some(wanted) => found.next().map(|(_, attributes)| {
            let values = attributes.iter().filter(|(name, _)| name == wanted);
            values.map(|(_, value)| (*value).to_owned()).collect()
        }),
    }
}

/// The result, and how many questions it took.
fn evaluate(query: &str) -> (Result<bool, String>, usize) {
    let variables = Variables::of_user("bob").with_dn("cn=bob,dc=x");
    let variables = variables.with("permission", "read").with("name", "b.1");
    evaluate_for(&variables, query, answer)
}

/// The same of a user, in a directory that answers so.
fn evaluate_for(
    variables: &Variables,
    query: &str,
    answer: impl Fn(&Lookup) -> Option<Vec<String>>,
) -> (Result<bool, String>, usize) {
    let query = Query::read(query).unwrap();
    let mut answers = Answers::new(Work::patient());
    loop {
        let evaluation = Evaluation { variables, answers: &answers, group_base: "dc=x" };
        match evaluation.query(&query) {
            Ok(is_true) => return (Ok(is_true), answers.len()),
            Err(Stop::Wrong(why)) => return (Err(why), answers.len()),
            Err(Stop::Ask(lookup)) => {
                let answer = answer(&lookup);
                assert!(!answers.of.contains_key(&lookup), "asked twice");
                if let Err(why) = answers.insert(lookup, answer) {
                    return (Err(why), answers.len());
                }
            }
        }
    }
}

#[test]
#[rustfmt::skip] // a table
fn queries() {
    check("{constant, true}",                                          true,  0);
    check(r#"{exists, "cn=${username},dc=x"}"#,                        true,  1);
    check(r#"{exists, "cn=eve,dc=x"}"#,                                false, 1);
    check(r#"{'not', {exists, "cn=eve,dc=x"}}"#,                       true,  1);
    check(r#"{in_group, "cn=users,dc=x"}"#,                            true,  1);
    check(r#"{in_group, "cn=users,dc=x", "owner"}"#,                   false, 1);
    check(r#"{in_group, "cn=all,dc=x"}"#,                              false, 1);
    check(r#"{in_group_nested, "CN=all,dc=x"}"#,                       true,  2);
    check(r#"{in_group_nested, "cn=none,dc=x"}"#,                      false, 4); // and the circle ends
    check(r#"{'and', [{constant, false}, {exists, "cn=bob,dc=x"}]}"#,  false, 0);
    check(r#"{'or', [{constant, true}, {exists, "cn=bob,dc=x"}]}"#,    true,  0);
    check(r#"{'and', []}"#,                                            true,  0);
    check(r#"{'or', []}"#,                                             false, 0);
    check(r#"{for, [{permission, write, {constant, false}}, {permission, read, {constant, true}}]}"#, true, 0);
    check(r#"{equals, "${name}", "b.1"}"#,                             true,  0);
    check(r#"{equals, "b@x", {attribute, "${user_dn}", "mail"}}"#,     true,  1);
    check(r#"{equals, "c@x", {attribute, "${user_dn}", "mail"}}"#,     false, 1);
    check(r#"{equals, "", {attribute, "${user_dn}", "nothing"}}"#,     false, 1);
    check(r#"{match, "${name}", "^b\\."}"#,                            true,  0);
    check(r#"{match, "bx1", "^${name}$"}"#,                            false, 0); // a text, whatever is in it
    check(r#"{match, "${name}", {attribute, "${user_dn}", "allowed"}}"#, true, 1);
    check(r#"{match, {attribute, "${user_dn}", "mail"}, "^b@"}"#,      true,  1);
}

#[track_caller]
fn check(query: &str, want: bool, asked: usize) {
    assert_eq!(evaluate(query), (Ok(want), asked), "{query}");
}

#[test]
#[rustfmt::skip] // a table
fn what_does_not_work_is_no_answer() {
    wrong(r#"{for, [{permission, write, {constant, true}}]}"#,            "no case of a 'for' fits");
    wrong(r#"{'not', {for, []}}"#,                                        "no case of a 'for' fits");
    wrong(r#"{for, [{routing_key, a, {constant, true}}]}"#,               "there is no 'routing_key' here");
    wrong(r#"{match, "a", "("}"#,                                         "the regular expression '('");
}

#[track_caller]
fn wrong(query: &str, want: &str) {
    let why = evaluate(query).0.unwrap_err();
    assert!(why.starts_with(want), "{query}: {why}");
}

/// What `in_group_nested` comes to, and what was asked, where these groups have a member.
fn nested(groups_of: impl Fn(&str) -> Vec<String>) -> (Result<bool, String>, usize) {
    let variables = Variables::of_user("bob").with_dn("bob");
    evaluate_for(&variables, r#"{in_group_nested, "wanted"}"#, |lookup| {
        let Filter::Equal { value, .. } = &lookup.filter else { panic!("{lookup:?}") };
        Some(groups_of(value))
    })
}

#[test]
fn groups_are_asked_about_once_and_are_not_too_many() {
    let text = |word: &str| word.to_owned();
    let numbers = |count: usize| (0..count).map(|at| format!("g{at}")).collect::<Vec<_>>();
    let same = vec![text("cn=a"), text("CN=a"), text("cn=b")];
    assert_eq!(nested(|_| same.clone()), (Ok(false), 3));
    // How many the user is in does not matter: what counts is how many are asked about.
    let above = |last: &'static str| {
        nested(move |member| match member {
            "bob" => numbers(1001),
            _ if member == last => vec![text("wanted")],
            _ => vec![text("G7"), text("Bob")],
        })
    };
    assert_eq!(above("g1000"), (Ok(true), 2));
    assert_eq!(above("g1"), (Ok(true), 1001));
    let too_many = "more than 1000 groups may be in others".to_owned();
    assert_eq!(above("g0"), (Err(too_many), 1001));
    let long = |_: &str| numbers(100_000).iter().map(|name| name.repeat(10)).collect();
    assert_eq!(nested(long), (Err(text("more than 4194304 bytes of answers to one query")), 0));
}

/// Each answer is looked for once when it is there, and once before; it was once more for each later one.
#[test]
fn groups_are_gone_through_once() {
    let variables = Variables::of_user("bob").with_dn("g0");
    let query =
        r#"{'or', [{in_group_nested, "none"}, {in_group_nested, "g900"}, {exists, "cn=x"}]}"#;
    let query = Query::read(query).unwrap();
    let mut answers = Answers::new(Work::patient());
    let go = |answers: &Answers| {
        Evaluation { variables: &variables, answers, group_base: "dc=x" }.query(&query)
    };
    let mut asked = 0;
    while let Err(Stop::Ask(lookup)) = go(&answers) {
        let Filter::Equal { value, .. } = &lookup.filter else { panic!("{lookup:?}") };
        let number: usize = value[1..].parse().unwrap();
        let groups = if number < 1000 { vec![format!("g{}", number + 1)] } else { Vec::new() };
        answers.insert(lookup, Some(groups)).unwrap();
        asked += 1;
    }
    assert_eq!((go(&answers), asked), (Ok(true), 1001));
    assert_eq!(answers.looked.get(), 2 * 1001 + 900);
    assert!(answers.walks.borrow().is_empty());
}

/// A `match` is not made again with each group that the directory tells.
#[test]
fn what_was_compared_is_not_compared_again() {
    let variables = Variables::of_user("bob").with_dn("cn=bob,dc=x");
    let text = r#"{'and', [{match, {attribute, "${user_dn}", "mail"}, "^b@"}, {match, "a", "a"},
                           {in_group_nested, "cn=none,dc=x"}]}"#;
    let query = Query::read(text).unwrap();
    let mut answers = Answers::new(Work::patient());
    let go = |answers: &Answers| {
        Evaluation { variables: &variables, answers, group_base: "dc=x" }.query(&query)
    };
    let mut asked = Vec::new();
    while let Err(Stop::Ask(lookup)) = go(&answers) {
        let answer = answer(&lookup);
        asked.push(lookup.clone());
        answers.insert(lookup, answer).unwrap();
        if asked.len() == 2 {
            // From here on a `match` would fail.
            answers.work = Work::none();
        }
    }
    assert_eq!((go(&answers), asked.len()), (Ok(false), 5));
    answers.results.take();
    let why = go(&answers).unwrap_err();
    assert!(matches!(&why, Stop::Wrong(why) if why.contains("takes more than 0ns")), "{why:?}");
}
