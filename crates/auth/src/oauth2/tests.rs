use leveret_topology::rights::{Decision, Question};
use serde_json::json;

use super::*;

const NOW_S: u64 = 1_000_000;

fn rules() -> Rules {
    let options = OAuth2Options { resource_server_id: "rabbit".to_owned(), ..Default::default() };
    Rules::new(&options, 0)
}

fn claims(more: &Value) -> Claims {
    let mut claims = json!({ "aud": "rabbit", "exp": NOW_S + 60, "sub": "bob" });
    let map = claims.as_object_mut().unwrap();
    for (name, value) in more.as_object().unwrap() {
        match value {
            Value::Null => drop(map.remove(name)),
            value => drop(map.insert(name.clone(), value.clone())),
        }
    }
    map.clone()
}

fn admit(rules: &Rules, more: &Value) -> Result<Admitted, String> {
    rules.admit(claims(more), NOW_S)
}

#[test]
fn the_audience_is_ours() {
    let strict = [rules()];
    let chosen = |all: &[Rules], aud: &Value| -> Result<String, String> {
        choose(all, &claims(&json!({ "aud": aud }))).map(|rules| rules.id.clone())
    };
    for good in [json!("rabbit"), json!("a rabbit b"), json!(["a", "rabbit"])] {
        assert!(chosen(&strict, &good).is_ok(), "{good}");
    }
    let lax = [Rules { verify_aud: false, ..rules() }];
    for bad in [json!("hare"), json!(["a", 1]), json!({ "rabbit": 1 }), json!(""), Value::Null] {
        let why = chosen(&strict, &bad).unwrap_err();
        assert!(why.contains("audience"), "{bad}: {why}");
        assert!(chosen(&lax, &bad).is_ok(), "{bad}");
    }
}

#[test]
fn one_of_several_servers_is_meant() {
    let server = |id: &str, verify_aud| Rules { id: id.to_owned(), verify_aud, ..rules() };
    let all = [server("a", true), server("b", true), server("c", false)];
    let chosen = |all: &[Rules], aud: Value| -> Result<String, String> {
        choose(all, &claims(&json!({ "aud": aud }))).map(|rules| rules.id.clone())
    };
    assert_eq!(chosen(&all, json!("b")).unwrap(), "b");
    assert_eq!(chosen(&all, json!(["x", "a"])).unwrap(), "a");
    assert_eq!(chosen(&all, json!("x")).unwrap(), "c", "it does not look at the audience");
    assert_eq!(chosen(&all, Value::Null).unwrap(), "c");
    assert!(chosen(&all, json!("a b")).unwrap_err().contains("several"));
    assert!(chosen(&all[..2], json!("x")).is_err());
    let two = [server("a", false), server("b", false)];
    assert!(chosen(&two, json!("x")).unwrap_err().contains("does not say"));
    assert_eq!(chosen(&two, json!("a")).unwrap(), "a");
}

#[test]
fn a_token_ends() {
    let rules = rules();
    let ends = |exp: Value| admit(&rules, &json!({ "exp": exp }));
    let end = ends(json!(NOW_S + 1)).unwrap().expires.map(Time::ms);
    assert_eq!(end, Some((NOW_S + 1) * 1000));
    assert!(ends(json!(NOW_S as f64 + 1.5)).is_ok());
    for bad in
        [json!(NOW_S), json!(NOW_S as f64 + 0.5), json!(0), json!(-5), json!("soon"), Value::Null]
    {
        assert!(ends(bad.clone()).is_err(), "{bad}");
    }
    let lax = Rules { require_exp: false, ..self::rules() };
    assert_eq!(admit(&lax, &json!({ "exp": null })).unwrap().expires, None);
    assert!(admit(&lax, &json!({ "exp": "soon" })).is_err());
}

#[test]
fn the_token_names_the_user() {
    let mut rules = rules();
    assert_eq!(&*admit(&rules, &json!({})).unwrap().user, "bob");
    assert_eq!(&*admit(&rules, &json!({ "sub": null, "client_id": "c" })).unwrap().user, "c");
    assert_eq!(&*admit(&rules, &json!({ "sub": 5 })).unwrap().user, "unknown");
    rules.username_claims.insert(0, "name".to_owned());
    assert_eq!(&*admit(&rules, &json!({ "name": "b" })).unwrap().user, "b");
    assert_eq!(&*admit(&rules, &json!({ "name": ["b"] })).unwrap().user, "bob");
}

#[test]
fn scopes_come_from_many_places() {
    let rules = Rules {
        additional: vec!["roles".to_owned(), "realm.access".to_owned()],
        aliases: vec![("boss".to_owned(), vec!["rabbit.tag:administrator".to_owned()])],
        ..rules()
    };
    let all = |more: Value| rules.scopes(&claims(&more)).unwrap();
    assert_eq!(
        all(json!({ "scope": "rabbit.read:a/b other.write:a/b  rabbit.x" })),
        ["read:a/b", "x"]
    );
    assert_eq!(all(json!({ "scope": ["rabbit.x", "rabbit.x", 5, "rabbit."] })), ["", "x"]);
    assert_eq!(all(json!({ "roles": ["rabbit.r"], "scope": "rabbit.s" })), ["r", "s"]);
    assert_eq!(all(json!({ "roles": { "rabbit": ["r", "s"], "hare": ["t"] } })), ["r", "s"]);
    assert_eq!(all(json!({ "realm": { "access": "rabbit.r rabbit.s" } })), ["r", "s"]);
    assert_eq!(
        all(json!({ "realm": [{ "access": ["rabbit.r"] }, { "access": "rabbit.s" }] })),
        ["r", "s"]
    );
    assert_eq!(all(json!({ "scope": "boss" })), ["tag:administrator"]);
    let party = json!({ "authorization": { "permissions": [{ "scopes": ["rabbit.p"] }, { "rsid": "x" }] } });
    assert_eq!(all(party), ["p"]);
    let many: Vec<_> = (0..=SCOPES_MAX).map(|n| format!("rabbit.{n}")).collect();
    assert!(rules.scopes(&claims(&json!({ "scope": many }))).is_err());
    let none = Rules { prefix: String::new(), ..self::rules() };
    assert_eq!(none.scopes(&claims(&json!({ "scope": "read:a/b" }))).unwrap(), ["read:a/b"]);
}

#[test]
fn rights_and_tags_are_the_scopes() {
    let scope = "rabbit.tag:monitoring rabbit.read:%2F/*";
    let admitted = admit(&rules(), &json!({ "scope": scope })).unwrap();
    assert_eq!(admitted.tags, ["monitoring"]);
    let rights = admitted.rights.unwrap();
    assert_eq!(rights.decide(&Question::Vhost("/".into())), Some(Decision::Allowed));
    assert_eq!(rights.decide(&Question::Vhost("v".into())), Some(Decision::Refused(None)));
}

#[test]
fn authorization_details_count_as_scopes() {
    let options = OAuth2Options {
        resource_server_id: "rabbit".to_owned(),
        resource_server_type: Some("broker".to_owned()),
        ..Default::default()
    };
    let token = json!({ "scope": "rabbit.read:v/a other.write:*/*", "authorization_details": [
        { "type": "broker", "actions": ["write", "management"], "locations": ["cluster:rabbit/vhost:v/queue:b"] },
        { "type": "bank", "actions": ["configure"], "locations": ["cluster:rabbit"] },
    ] });
    let scopes = |rules: &Rules| rules.scopes(&claims(&token)).unwrap();
    assert_eq!(scopes(&Rules::new(&options, 0)), ["read:v/a", "tag:management", "write:v/b/*"]);
    assert_eq!(scopes(&rules()), ["read:v/a"]);
}
