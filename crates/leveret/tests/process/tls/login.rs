//! Certificates of clients, and logging in by them.

use leveret_client::{TlsUri, Uri};
use memchr::memmem;
use rcgen::{DnType, SanType};
use serde_json::json;

use super::{Certificates, broker, open, uri};
use crate::broker::{Broker, leveret};

const EXTERNAL: [&str; 2] = ["auth_mechanisms.1=PLAIN", "auth_mechanisms.2=EXTERNAL"];

fn verifying(certificates: &Certificates, settings: &[&str]) -> Broker {
    let ca = format!("ssl_options.cacertfile={}", certificates.ca());
    let mut all = vec![ca.as_str(), "ssl_options.verify=verify_peer"];
    all.extend(EXTERNAL);
    all.extend(settings);
    broker(certificates, &all)
}

fn external(tls: TlsUri, broker: &Broker) -> Uri {
    uri(broker, TlsUri { is_external: true, ..tls })
}

/// Adds users that may use the vhost `/`.
fn users(broker: &Broker, names: &[&str]) {
    for name in names {
        broker.told(&["add_user", name, "s3cret"]);
        broker.told(&["set_permissions", name, ".*", ".*", ".*"]);
    }
}

#[test]
fn who_shows_none_and_who_shows_a_bad_one() {
    let certificates = Certificates::new();
    let broker = verifying(&certificates, &[]);
    // A certificate is asked for, not demanded.
    open(&uri(&broker, certificates.trust())).unwrap().close().unwrap();
    let error = open(&uri(&broker, certificates.stranger())).unwrap_err().to_string();
    assert!(error.contains("alert"), "{error}");
    broker.log.wait_for("TLS handshake failed: invalid peer certificate: UnknownIssuer");
    // Without one EXTERNAL is refused like any bad login.
    let error = open(&external(certificates.trust(), &broker)).unwrap_err().to_string();
    assert!(error.contains("ACCESS_REFUSED"), "{error}");
    broker.log.wait_for("connection peer presented no TLS (x.509) certificate");
}

#[test]
fn a_certificate_may_be_demanded() {
    let certificates = Certificates::new();
    let broker = verifying(&certificates, &["ssl_options.fail_if_no_peer_cert=true"]);
    assert!(open(&uri(&broker, certificates.trust())).is_err());
    broker.log.wait_for("TLS handshake failed: peer sent no certificates");
    let alice = certificates.client("alice", &[(DnType::CommonName, "alice")], &[]);
    open(&uri(&broker, alice)).unwrap().close().unwrap();
}

#[test]
fn the_subject_is_the_user() {
    let certificates = Certificates::new();
    let broker = verifying(&certificates, &[]);
    let subject = "CN=alice,O=Ümlaut\\, Inc.";
    let subject = subject.replace('Ü', "\\C3\\9C");
    users(&broker, &[&subject]);
    let name = [(DnType::OrganizationName, "Ümlaut, Inc."), (DnType::CommonName, "alice")];
    let alice = certificates.client("alice", &name, &[]);
    let mut client = open(&external(alice, &broker)).unwrap();
    client.open_channel().unwrap();
    let columns =
        ["list_connections", "user", "auth_mechanism", "peer_cert_subject", "peer_cert_issuer"];
    let want = json!([{
        "user": subject, "auth_mechanism": "EXTERNAL", "peer_cert_subject": subject,
        "peer_cert_issuer": "CN=test authority",
    }]);
    assert_eq!(broker.json(&columns), want);
    let rows = broker.json(&["list_connections", "peer_cert_validity"]);
    let validity = rows[0]["peer_cert_validity"].as_str().unwrap();
    assert!(validity.contains("Z - ") && validity.ends_with("00Z"), "{validity}");
    let bob = certificates.client("bob", &[(DnType::CommonName, "bob")], &[]);
    let error = open(&external(bob, &broker)).unwrap_err().to_string();
    assert!(error.contains("ACCESS_REFUSED"), "{error}");
}

#[test]
fn the_common_name_is_the_user() {
    let certificates = Certificates::new();
    let broker = verifying(&certificates, &["ssl_cert_login_from=common_name"]);
    users(&broker, &["alice"]);
    let name = [(DnType::OrganizationName, "x"), (DnType::CommonName, "alice")];
    let alice = certificates.client("alice", &name, &[]);
    open(&external(alice, &broker)).unwrap().close().unwrap();
    let nobody = certificates.client("nobody", &[(DnType::OrganizationName, "x")], &[]);
    assert!(open(&external(nobody, &broker)).is_err());
    broker.log.wait_for("no name found");
}

#[test]
fn an_alternative_name_is_the_user() {
    let certificates = Certificates::new();
    let settings = [
        "ssl_cert_login_from=subject_alternative_name",
        "ssl_cert_login_san_type=email",
        "ssl_cert_login_san_index=1",
    ];
    let broker = verifying(&certificates, &settings);
    users(&broker, &["b@x", "a@x"]);
    let text = |text: &str| text.try_into().unwrap();
    let sans = [
        SanType::DnsName(text("a.x")),
        SanType::Rfc822Name(text("a@x")),
        SanType::Rfc822Name(text("b@x")),
    ];
    let both = certificates.client("both", &[(DnType::CommonName, "x")], &sans);
    let _client = open(&external(both, &broker)).unwrap();
    assert_eq!(broker.json(&["list_connections", "user"]), json!([{ "user": "b@x" }]));
    let one = certificates.client("one", &[(DnType::CommonName, "x")], &sans[..2]);
    assert!(open(&external(one, &broker)).is_err());
}

/// The mechanism is offered over TLS only.
#[test]
fn without_tls_there_is_no_external() {
    let certificates = Certificates::new();
    let broker = verifying(&certificates, &[]);
    let properties = crate::raw::Raw::connect(&broker).mechanisms();
    assert_eq!(properties, "PLAIN");
}

/// Passwords that came over AMQP and HTTP within TLS are in no core file, right ones and wrong ones.
#[test]
fn no_core_file_has_what_came_encrypted() {
    let certificates = Certificates::new();
    let (certificate, key) = certificates.server();
    let core = |dumps: &str| {
        let settings = [
            "management.ssl.port=0".to_owned(),
            "management.ssl.ip=127.0.0.1".to_owned(),
            format!("management.ssl.certfile={certificate}"),
            format!("management.ssl.keyfile={key}"),
            format!("core_dumps={dumps}"),
        ];
        let broker = broker(&certificates, &settings.each_ref().map(String::as_str));
        users(&broker, &["alice"]);
        for password in ["s3cret", "s3cret-wrong"] {
            let login = Uri {
                user: "alice".to_owned(),
                password: password.to_owned(),
                ..uri(&broker, certificates.trust())
            };
            assert_eq!(open(&login).is_ok(), password == "s3cret");
            let mut ctl = leveret(&["ctl", "--cacertfile", &certificates.ca(), "list_queues"]);
            let address = broker.listens("https");
            ctl.env("LEVERET_URI", format!("https://alice:{password}@{address}"));
            // She may not use the management API either way.
            assert_eq!(ctl.output().unwrap().status.code(), Some(77));
        }
        broker.core_file()
    };
    let by_default = core("false");
    assert!(by_default.is_none_or(|core| memmem::find(&core, b"s3cret").is_none()));
    let asked_for = core("true");
    assert!(
        asked_for.is_none_or(|core| memmem::find(&core, b"alice").is_some()),
        "it is looked at"
    );
}
