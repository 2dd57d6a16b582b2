//! Tokens.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use leveret_client::amqp::method::{Method, connection};
use leveret_client::amqp::table::Table;
use leveret_client::{Connection, Consume, Event, QueueDeclare};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};

use super::web::Web;
use super::{api, broker, login, raw_api, request};
use crate::broker::{Broker, PATIENCE, close_reason};

/// Who makes tokens.
#[derive(Debug)]
struct Issuer {
    key: KeyPair,
}

impl Issuer {
    fn new() -> Self {
        Self { key: KeyPair::generate().unwrap() }
    }

    /// Its public key as an entry of a JWKS.
    fn jwk(&self, kid: &str) -> Value {
        let point = self.key.public_key_raw();
        let (x, y) = point[1..].split_at(32);
        let encode = |bytes| URL_SAFE_NO_PAD.encode(bytes);
        json!({ "kty": "EC", "crv": "P-256", "kid": kid, "use": "sig", "x": encode(x), "y": encode(y) })
    }

    /// A token of bob's, with these scopes, that ends in so many seconds.
    fn token(&self, kid: &str, scope: &str, seconds: i64) -> String {
        self.sign(kid, &claims(scope, seconds))
    }

    fn sign(&self, kid: &str, claims: &Value) -> String {
        let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
        let key = EncodingKey::from_ec_pem(self.key.serialize_pem().as_bytes()).unwrap();
        jsonwebtoken::encode(&header, claims, &key).unwrap()
    }
}

fn claims(scope: &str, seconds: i64) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    json!({ "aud": ["rabbit"], "sub": "bob", "scope": scope, "exp": now + seconds })
}

/// Everything, and the management API.
const ALL: &str = "rabbit.configure:*/* rabbit.write:*/* rabbit.read:*/* rabbit.tag:management";

/// A node that takes tokens of whoever has one of `keys`, which it fetches over HTTPS.
fn node(keys: &Arc<Mutex<Vec<Value>>>, dir: &std::path::Path) -> (Broker, Web) {
    let own = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().self_signed(&own).unwrap();
    let file = dir.join("issuer.pem");
    std::fs::write(&file, certificate.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let keys = Arc::clone(keys);
    let address = Arc::new(Mutex::new(String::new()));
    let ours = Arc::clone(&address);
    let web = Web::start(Some(Arc::new(tls)), move |request| match request.target.as_str() {
        "/.well-known/openid-configuration" => {
            let jwks = format!("https://{}/keys", ours.lock().unwrap());
            (200, json!({ "jwks_uri": jwks }).to_string())
        }
        "/keys" => (200, json!({ "keys": *keys.lock().unwrap() }).to_string()),
        _ => (404, String::new()),
    });
    *address.lock().unwrap() = web.address.to_string();
    let broker = broker(&[
        "auth_backends.1=oauth2".to_owned(),
        "auth_backends.2=internal".to_owned(),
        "auth_oauth2.resource_server_id=rabbit".to_owned(),
        format!("auth_oauth2.issuer=https://{}", web.address),
        format!("auth_oauth2.https.cacertfile={}", file.display()),
        "log.level=debug".to_owned(),
        "log.console.level=debug".to_owned(),
    ]);
    (broker, web)
}

fn one_key(issuer: &Issuer) -> Arc<Mutex<Vec<Value>>> {
    Arc::new(Mutex::new(vec![issuer.jwk("one")]))
}

#[test]
fn a_token_is_the_password() {
    let issuer = Issuer::new();
    let dir = tempfile::tempdir().unwrap();
    let (broker, web) = node(&one_key(&issuer), dir.path());
    let scope = "rabbit.configure:*/b* other.configure:*/c* rabbit.read:%2F/b*";
    let mut bob = login(&broker, "whoever", &issuer.token("one", scope, 60)).unwrap();
    let channel = bob.open_channel().unwrap();
    bob.queue_declare(channel, "bq", &QueueDeclare::default()).unwrap();
    let rows = broker.json(&["list_connections", "user"]);
    assert_eq!(rows[0]["user"], "bob");
    let error = bob.queue_declare(channel, "cq", &QueueDeclare::default()).unwrap_err().to_string();
    assert!(
        error.contains("configure access to queue 'cq' in vhost '/' refused for user 'bob'"),
        "{error}"
    );
    // Every source of keys is asked once, whoever comes.
    login(&broker, "", &issuer.token("one", ALL, 60)).unwrap();
    assert_eq!(web.seen("/keys").len(), 1);
    // No scope for the vhost.
    let error = login(&broker, "", &issuer.token("one", "rabbit.read:other/*", 60)).unwrap_err();
    assert!(error.to_string().contains("access to vhost '/' refused for user 'bob'"), "{error}");
    // The broker's own users still come in.
    login(&broker, "guest", "guest").unwrap().close().unwrap();
}

#[test]
fn bad_tokens_are_refused() {
    let issuer = Issuer::new();
    let dir = tempfile::tempdir().unwrap();
    let (broker, _web) = node(&one_key(&issuer), dir.path());
    let good = issuer.token("one", ALL, 60);
    let mut parts: Vec<&str> = good.split('.').collect();
    let other = URL_SAFE_NO_PAD.encode(claims(ALL, 600).to_string());
    parts[1] = &other;
    let changed = parts.join(".");
    let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"one"}"#), parts[1]);
    let public = issuer.key.public_key_pem();
    let header = Header { kid: Some("one".to_owned()), ..Header::new(Algorithm::HS256) };
    let shared = EncodingKey::from_secret(public.as_bytes());
    let confused = jsonwebtoken::encode(&header, &claims(ALL, 60), &shared).unwrap();
    let mut elsewhere = claims(ALL, 60);
    elsewhere["aud"] = json!("hare");
    for (bad, why) in [
        (changed, "InvalidSignature"),
        (none, "no JWT"),
        (confused, "InvalidAlgorithm"),
        (Issuer::new().token("one", ALL, 60), "InvalidSignature"),
        (issuer.token("two", ALL, 60), "the key that the token is signed with is not known"),
        (issuer.token("one", ALL, -1), "the token has expired at"),
        (issuer.sign("one", &elsewhere), "another audience"),
        ("guest".to_owned(), "no JWT"),
    ] {
        let error = login(&broker, "bob", &bad).unwrap_err().to_string();
        assert!(error.contains("ACCESS_REFUSED"), "{bad}: {error}");
        let (status, body) = api(&broker, "/api/whoami", &format!("Bearer {bad}"));
        assert_eq!(status, 401, "{why}: {body}");
    }
    login(&broker, "bob", &good).unwrap();
}

#[test]
fn a_new_key_is_fetched() {
    let (old, new) = (Issuer::new(), Issuer::new());
    let dir = tempfile::tempdir().unwrap();
    let keys = one_key(&old);
    let (broker, web) = node(&keys, dir.path());
    login(&broker, "", &old.token("one", ALL, 60)).unwrap();
    *keys.lock().unwrap() = vec![new.jwk("two")];
    // Not more often than every few seconds, whatever tokens name.
    crate::broker::wait_until(Duration::from_secs(30), "the new key is known", || {
        login(&broker, "", &new.token("two", ALL, 60)).is_ok()
    });
    assert_eq!(web.seen("/keys").len(), 2);
    assert!(login(&broker, "", &old.token("one", ALL, 60)).is_err(), "the old one is gone");
}

#[test]
fn a_token_ends_and_is_renewed() {
    let issuer = Issuer::new();
    let dir = tempfile::tempdir().unwrap();
    let (broker, _web) = node(&one_key(&issuer), dir.path());
    let mut ends = login(&broker, "", &issuer.token("one", ALL, 3)).unwrap();
    let mut renewed = login(&broker, "", &issuer.token("one", ALL, 3)).unwrap();
    renew(&mut renewed, &issuer.token("one", "rabbit.read:*/*", 60));
    let reason = close_reason(&mut ends);
    assert_eq!(
        (reason.code, reason.text.as_str()),
        (320, "CONNECTION_FORCED - credential expired")
    );
    // The other one goes on, with what the new token allows.
    let channel = renewed.open_channel().unwrap();
    assert!(renewed.queue_declare(channel, "q", &QueueDeclare::default()).is_err());
    let mut other = claims(ALL, 60);
    other["sub"] = json!("eve");
    renew(&mut renewed, &issuer.sign("one", &other));
    let reason = close_reason(&mut renewed);
    assert_eq!(reason.code, 530, "{reason:?}");
    assert!(reason.text.contains("New secret was refused"), "{reason:?}");
}

/// A consumer that a newer token does not allow is cancelled; others go on.
#[test]
fn consumers_lose_what_a_newer_token_does_not_allow() {
    let issuer = Issuer::new();
    let dir = tempfile::tempdir().unwrap();
    let (broker, _web) = node(&one_key(&issuer), dir.path());
    let mut bob = login(&broker, "", &issuer.token("one", ALL, 60)).unwrap();
    let channel = bob.open_channel().unwrap();
    for queue in ["kept", "lost"] {
        bob.queue_declare(channel, queue, &QueueDeclare::default()).unwrap();
        let how = Consume { consumer_tag: queue, ..Default::default() };
        bob.consume(channel, queue, &how).unwrap();
    }
    let fewer = "rabbit.read:*/kept rabbit.write:*/* rabbit.configure:*/*";
    renew(&mut bob, &issuer.token("one", fewer, 60));
    let mut next = || loop {
        match bob.next_event().unwrap() {
            Some(Event::Method { method: Method::BasicCancel(cancel), .. }) => {
                return format!("cancel {}", cancel.consumer_tag);
            }
            Some(Event::Method { method: Method::ConnectionUpdateSecretOk(_), .. }) => {
                return "updated".to_owned();
            }
            Some(_) => {}
            None => assert!(bob.wait(PATIENCE).unwrap()),
        }
    };
    assert_eq!([next(), next()], ["cancel lost", "updated"]);
    broker.log.wait_for("a consumer is cancelled: its secret was updated");
    // What comes now stays in the one queue, and reaches the consumer of the other.
    for queue in ["lost", "kept"] {
        bob.publish(channel, "", queue, b"\0\0", queue.as_bytes());
    }
    bob.flush().unwrap();
    let body = loop {
        match bob.next_event().unwrap() {
            Some(Event::Content { body, .. }) => break body.to_vec(),
            Some(_) => {}
            None => assert!(bob.wait(PATIENCE).unwrap()),
        }
    };
    assert_eq!(body, b"kept");
    let rows = broker.json(&["list_queues", "name", "messages_ready", "consumers"]);
    let lost = rows.as_array().unwrap().iter().find(|row| row["name"] == "lost").unwrap();
    assert_eq!((&lost["messages_ready"], &lost["consumers"]), (&json!(1), &json!(0)));
}

fn renew(client: &mut Connection, token: &str) {
    let method = connection::UpdateSecret { new_secret: token.as_bytes(), reason: "it ends" };
    client.output().put_method(0, &method);
    client.flush().unwrap();
}

#[test]
fn the_management_api_takes_tokens() {
    let issuer = Issuer::new();
    let dir = tempfile::tempdir().unwrap();
    let (broker, _web) = node(&one_key(&issuer), dir.path());
    broker.told(&["add_vhost", "other"]);
    let scope = "rabbit.tag:management rabbit.read:other/*";
    let bearer = format!("Bearer {}", issuer.token("one", scope, 60));
    let (status, body) = api(&broker, "/api/whoami", &bearer);
    assert_eq!(status, 200, "{body}");
    let whoami: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&whoami["name"], &whoami["tags"]), (&json!("bob"), &json!(["management"])));
    let (_, body) = api(&broker, "/api/vhosts", &bearer);
    let vhosts: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(vhosts.as_array().unwrap().len(), 1, "{vhosts}");
    assert_eq!(vhosts[0]["name"], "other");
    let (status, _) = api(&broker, "/api/queues/%2F", &bearer);
    assert_eq!(status, 401);
    let none = format!("Bearer {}", issuer.token("one", "rabbit.read:*/*", 60));
    assert_eq!(api(&broker, "/api/whoami", &none).0, 401, "no tag");
    // What it changes is told under the name that the token gives.
    let admin = format!("Bearer {}", issuer.token("one", "rabbit.tag:administrator", 60));
    assert_eq!(request(&broker, "DELETE", "/api/vhosts/other", &admin, "").0, 204);
    let told = broker.log.wait_for("method=DELETE");
    assert!(told.contains("user=\"bob\""), "{told}");
    assert_eq!(broker.log.with("method=DELETE").len(), 1);
    // As name and password, too.
    let basic = STANDARD.encode(format!("x:{}", issuer.token("one", scope, 60)));
    assert_eq!(api(&broker, "/api/whoami", &format!("Basic {basic}")).0, 200);
}

/// A provider sends somebody to the page with a token in a form, if that is asked for.
#[test]
fn a_provider_may_begin() {
    let issuer = Issuer::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("k.pem");
    std::fs::write(&file, issuer.key.public_key_pem()).unwrap();
    let broker = |more: &[&str]| {
        let mut settings = vec![
            "auth_backends.1=oauth2".to_owned(),
            "auth_oauth2.resource_server_id=rabbit".to_owned(),
            format!("auth_oauth2.signing_keys.one={}", file.display()),
            "management.oauth_enabled=true".to_owned(),
            "management.oauth_provider_url=https://portal.example.com".to_owned(),
        ];
        settings.extend(more.iter().map(|&one| one.to_owned()));
        broker(&settings)
    };
    let post = |broker: &Broker, token: &str| {
        let form = format!("state=x&access_token={token}");
        let kind = "x\r\nContent-Type: application/x-www-form-urlencoded";
        request(broker, "POST", "/api/login", kind, &form)
    };
    let token = issuer.token("one", ALL, 60);
    let asked = broker(&["management.oauth_initiated_logon_type=idp_initiated"]);
    let (status, body) = post(&asked, &token);
    assert_eq!(status, 200, "{body}");
    assert!(body.contains(&format!("content=\"{token}\"")), "{body}");
    let script = body.split("src=\"..").nth(1).unwrap().split('"').next().unwrap();
    assert!(api(&asked, script, "x").1.contains("sessionStorage"), "{script}");
    let wrong = Issuer::new().token("one", ALL, 60);
    for (bad, want) in [(wrong.as_str(), 401), ("", 400), ("%22%3E", 400), ("x", 401)] {
        assert_eq!(post(&asked, bad).0, want, "{bad}");
    }
    let not_asked = broker(&["management.oauth_client_id=page"]);
    assert_eq!(post(&not_asked, &token).0, 401);
    assert_eq!(asked.log.with(&token), Vec::<String>::new());
}

/// What a token may write, down to the routing key, holds for messages that are moved, too.
#[test]
fn scopes_hold_for_moves() {
    let issuer = Issuer::new();
    let dir = tempfile::tempdir().unwrap();
    let (broker, _web) = node(&one_key(&issuer), dir.path());
    let mut guest = login(&broker, "guest", "guest").unwrap();
    let channel = guest.open_channel().unwrap();
    for queue in ["q", "z"] {
        guest.queue_declare(channel, queue, &QueueDeclare::default()).unwrap();
    }
    guest.queue_bind(channel, "z", "amq.topic", "#", &Table::new()).unwrap();
    guest.publish(channel, "", "q", b"\0\0", b"x");
    guest.flush().unwrap();
    let scope = "rabbit.tag:management rabbit.read:*/q rabbit.write:*/amq.topic/good.*";
    let bearer = format!("Bearer {}", issuer.token("one", scope, 60));
    let moved =
        |to: &Value| request(&broker, "POST", "/api/queues/%2F/q/move", &bearer, &to.to_string());
    let to = |key: &str| json!({"to_exchange": "amq.topic", "routing_key": key});
    let told = |answer: (u16, String)| serde_json::from_str::<Value>(&answer.1).unwrap();
    let want = json!({"moved": 0, "refused": 1, "unrouted": 0});
    assert_eq!(told(moved(&to("bad.x"))), want);
    let (status, body) = moved(&json!({"to_queue": "z"}));
    assert_eq!(status, 401, "{body}");
    assert!(
        body.contains("write access to queue 'z' in vhost '/' refused for user 'bob'"),
        "{body}"
    );
    let want = json!({"moved": 1, "refused": 0, "unrouted": 0});
    assert_eq!(told(moved(&to("good.x"))), want);
}

/// Tokens of each resource server are signed by its own provider, and by no other.
#[test]
fn there_are_several_servers_and_providers() {
    let (one, other) = (Issuer::new(), Issuer::new());
    let dir = tempfile::tempdir().unwrap();
    let key = |issuer: &Issuer, name: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, issuer.key.public_key_pem()).unwrap();
        file.display().to_string()
    };
    let server = "auth_oauth2.resource_servers";
    let provider = "auth_oauth2.oauth_providers";
    let broker = broker(&[
        "auth_backends.1=oauth2".to_owned(),
        "auth_oauth2.default_oauth_provider=one".to_owned(),
        "auth_oauth2.preferred_username_claims.1=name".to_owned(),
        format!("{server}.rabbit.verify_aud=true"),
        format!("{server}.b.id=hare"),
        format!("{server}.b.scope_prefix=api:"),
        format!("{server}.b.oauth_provider_id=other"),
        format!("{server}.b.preferred_username_claims.1=sub"),
        format!("{provider}.one.signing_keys.k={}", key(&one, "one.pem")),
        format!("{provider}.other.signing_keys.k={}", key(&other, "other.pem")),
        format!("{provider}.other.algorithms.1=ES256"),
    ]);
    let token = |issuer: &Issuer, aud: &str, prefix: &str| {
        let scope = format!("{prefix}read:*/* {prefix}tag:management");
        let mut claims = claims(&scope, 60);
        claims["aud"] = json!(aud);
        claims["name"] = json!("robert");
        issuer.sign("k", &claims)
    };
    let name = |token: &str| {
        let (status, body) = api(&broker, "/api/whoami", &format!("Bearer {token}"));
        let name = || serde_json::from_str::<Value>(&body).unwrap()["name"].clone();
        (status == 200).then(name)
    };
    assert_eq!(name(&token(&one, "rabbit", "rabbit.")), Some(json!("robert")));
    assert_eq!(name(&token(&other, "hare", "api:")), Some(json!("bob")));
    assert_eq!(name(&token(&one, "hare", "api:")), None, "signed by another provider");
    assert_eq!(name(&token(&other, "rabbit", "rabbit.")), None, "signed by another provider");
    assert_eq!(name(&token(&other, "hare", "hare.")), None, "scopes of nobody");
    assert_eq!(name(&token(&one, "rabbit hare", "rabbit.")), None, "for both");
    assert_eq!(name(&token(&one, "b", "api:")), None, "the name is not the id");
}

/// A node that takes tokens of this issuer, whose key it has in a file, with these settings.
fn with_key_file(issuer: &Issuer, more: &[&str]) -> Broker {
    // It is read as the node starts.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key.pem");
    std::fs::write(&file, issuer.key.public_key_pem()).unwrap();
    let mut settings = vec![
        "auth_backends.1=oauth2".to_owned(),
        "auth_oauth2.resource_server_id=rabbit".to_owned(),
        format!("auth_oauth2.signing_keys.one={}", file.display()),
    ];
    settings.extend(more.iter().map(ToString::to_string));
    broker(&settings)
}

/// The page is told how to sign in before anybody has, and may ask the provider.
#[test]
fn the_page_is_told_where_to_sign_in() {
    let issuer = Issuer::new();
    let broker = with_key_file(
        &issuer,
        &[
            "management.oauth_enabled=true",
            "management.oauth_client_id=page",
            "management.oauth_provider_url=https://login.example.com",
        ],
    );
    let whole = raw_api(&broker, "GET", "/api/auth", "", "");
    let (head, body) = whole.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("connect-src 'self' https://login.example.com"), "{head}");
    let told: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&told["oauth_enabled"], &told["oauth_client_id"]), (&json!(true), &json!("page")));
    let page = raw_api(&broker, "GET", "/js/oidc-oauth/login-callback.html", "", "");
    assert!(page.contains("<base href=\"/\""), "{page}");
}

#[test]
fn keys_may_be_files_and_tokens_are_in_no_log() {
    let issuer = Issuer::new();
    let broker = with_key_file(
        &issuer,
        &["auth_oauth2.algorithms.1=ES256", "log.level=debug", "log.console.level=debug"],
    );
    let token = issuer.token("one", ALL, 60);
    let mut bob = login(&broker, "bob", &token).unwrap();
    renew(&mut bob, &issuer.token("one", ALL, 120));
    bob.open_channel().unwrap();
    let expired = issuer.token("one", ALL, -5);
    assert!(login(&broker, "bob", &expired).is_err());
    let bearer = format!("Bearer {token}");
    let mut answers = String::new();
    for path in ["whoami", "connections", "overview", "auth/attempts/x/source", "definitions"] {
        answers += &api(&broker, &format!("/api/{path}"), &bearer).1;
    }
    answers += &broker.told(&["environment"]);
    let log = broker.stop_with_log().join("\n");
    // The part that all tokens of a key have in common is the header.
    let secret = |token: &str| token.split('.').skip(1).map(str::to_owned).collect::<Vec<_>>();
    for part in secret(&token).iter().chain(&secret(&expired)) {
        assert!(!log.contains(part) && !answers.contains(part), "{part}");
    }
}
