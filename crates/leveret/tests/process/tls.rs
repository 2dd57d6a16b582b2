//! TLS: listeners, certificates of clients, certificates that are exchanged, the PROXY protocol.

mod certificates;
mod login;
mod proxy;
mod unfinished;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leveret_client::{Connection, Consume, Event, Options, TlsUri, Uri};
use rustix::process::Signal;
use serde_json::json;

use crate::broker::{Broker, PATIENCE, Publisher, declare, leveret, run, wait_until};
pub(crate) use certificates::Certificates;

/// A node that speaks TLS on a second port, with these settings beside.
fn broker(certificates: &Certificates, settings: &[&str]) -> Broker {
    let mut all = certificates.settings();
    all.extend(settings.iter().map(ToString::to_string));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    Broker::with(&all)
}

/// The URI of the encrypted port.
fn uri(broker: &Broker, tls: TlsUri) -> Uri {
    let address = broker.listens("amqps");
    let host = address.ip().to_string();
    Uri { host, port: address.port(), tls: Some(tls), ..Uri::default() }
}

fn open(uri: &Uri) -> Result<Connection, leveret_client::Error> {
    let options = Options { heartbeat_s: Some(0), ..Options::default() };
    Connection::open(uri, &options)
}

#[test]
fn messages_of_every_size_go_both_ways() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &[]);
    let uri = uri(&broker, certificates.trust());
    let mut client = open(&uri).unwrap();
    let channel = client.open_channel().unwrap();
    declare(&mut client, channel, "q");
    client.consume(channel, "q", &Consume { no_ack: true, ..Consume::default() }).unwrap();
    // Around the sizes of a record and of what is read at once, and far beyond what a socket takes.
    let sizes = [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 200_000, 9_000_000];
    for size in sizes {
        let body: Vec<u8> = (0..size).map(|at: u32| (at.wrapping_mul(31) >> 3) as u8).collect();
        client.publish(channel, "", "q", &[0, 0], &body);
        client.flush().unwrap();
        loop {
            match client.next_event().unwrap() {
                Some(Event::Content { body: got, .. }) => {
                    assert!(got == body, "{size} bytes came back as {}", got.len());
                    break;
                }
                Some(_) => {}
                None => assert!(client.wait(PATIENCE).unwrap()),
            }
        }
    }
    client.close().unwrap();
    broker.assert_quiet();
}

#[test]
fn a_slow_consumer_gets_everything() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &[]);
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(&vec![b'x'; 1 << 20], 40);
    let mut client = open(&uri(&broker, certificates.trust())).unwrap();
    let channel = client.open_channel().unwrap();
    client.consume(channel, "q", &Consume { no_ack: true, ..Consume::default() }).unwrap();
    // The broker writes until the socket takes no more; only then anything is read.
    wait_until(PATIENCE, "the queue has given what the socket takes", || {
        broker.json(&["list_queues", "messages"])[0]["messages"].as_u64().unwrap() < 40
    });
    let mut got = 0;
    while got < 40 {
        match client.next_event().unwrap() {
            Some(Event::Content { body, .. }) => {
                assert_eq!(body.len(), 1 << 20);
                got += 1;
            }
            Some(_) => {}
            None => assert!(client.wait(PATIENCE).unwrap()),
        }
    }
    broker.assert_quiet();
}

#[test]
fn listings_show_what_was_agreed_on() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &[]);
    let _plain = broker.connect();
    let _client = open(&uri(&broker, certificates.trust())).unwrap();
    let columns = [
        "list_connections",
        "ssl",
        "ssl_protocol",
        "ssl_key_exchange",
        "ssl_cipher",
        "ssl_hash",
        "peer_cert_subject",
    ];
    let plain = json!({
        "ssl": false, "ssl_protocol": "", "ssl_key_exchange": "", "ssl_cipher": "", "ssl_hash": "",
        "peer_cert_subject": "",
    });
    let encrypted = json!({
        "ssl": true, "ssl_protocol": "tlsv1.3", "ssl_key_exchange": "any",
        "ssl_cipher": "aes_256_gcm", "ssl_hash": "aead", "peer_cert_subject": "",
    });
    assert_eq!(broker.json(&columns), json!([plain, encrypted]));
    let status = broker.json(&["status"]);
    assert_eq!(status["listeners"][1]["protocol"], "amqp/ssl");
    let shown = broker.json(&["certificates"]);
    assert_eq!(shown[0]["port"], status["listeners"][1]["port"]);
    assert_eq!(shown[0]["certificates"][0]["issuer"], "CN=test authority");
    let shown = broker.told(&["certificates"]);
    assert!(shown.contains("issued by CN=test authority"), "{shown}");
}

#[test]
fn an_older_version_with_one_cipher_suite() {
    let certificates = Certificates::new();
    let only = [
        "ssl_options.versions.1=tlsv1.2",
        "ssl_options.ciphers.1=ECDHE-ECDSA-AES128-GCM-SHA256",
        "ssl_options.ciphers.2=AES256-SHA",
    ];
    let broker = broker(&certificates, &only);
    let _client = open(&uri(&broker, certificates.trust())).unwrap();
    let got = broker.json(&["list_connections", "ssl_protocol", "ssl_key_exchange", "ssl_cipher"]);
    let want = json!([{
        "ssl_protocol": "tlsv1.2", "ssl_key_exchange": "ecdhe_ecdsa", "ssl_cipher": "aes_128_gcm"
    }]);
    assert_eq!(got, want);
    broker.log.wait_for("AES256-SHA is not spoken");
    assert_eq!(broker.told(&["cipher_suites"]), "ECDHE-ECDSA-AES128-GCM-SHA256\n");
    assert!(broker.told(&["cipher_suites", "--all"]).contains("TLS_AES_256_GCM_SHA384\n"));
}

#[test]
fn what_is_no_handshake_is_told_and_closed() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &["ssl_handshake_timeout=300"]);
    let address = broker.listens("amqps");
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"AMQP\0\0\x09\x01").unwrap();
    assert_ended(plain);
    broker.log.wait_for("the client does not speak TLS");
    // Nobody waits for one that says nothing, and it holds nobody up.
    let silent = TcpStream::connect(address).unwrap();
    open(&uri(&broker, certificates.trust())).unwrap().close().unwrap();
    assert_ended(silent);
    broker.log.wait_for("TLS handshake took too long");
    // One that trusts nobody we know.
    let untrusting = TlsUri { cacertfile: Some(certificates.other_ca()), ..TlsUri::default() };
    let error = open(&uri(&broker, untrusting)).unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
    broker.log.wait_for("TLS handshake failed: received fatal alert");
}

/// The other side closes without another word than an alert.
#[track_caller]
fn assert_ended(mut socket: TcpStream) {
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = socket.read_to_end(&mut rest);
    assert!(rest.len() <= 7, "{rest:?}");
}

#[test]
fn certificates_are_exchanged_while_it_runs() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &[]);
    let uri_of = |tls| uri(&broker, tls);
    let mut first = open(&uri_of(certificates.trust())).unwrap();
    // Bad files: the old certificate stays.
    let good = certificates.read_server();
    certificates.write_server("no certificate", "no key");
    broker.signal(Signal::HUP);
    broker.log.wait_for("new certificate files are refused, the old ones stay");
    open(&uri_of(certificates.trust())).unwrap().close().unwrap();
    let told = broker.ctl(&["reload_certificates"]);
    assert!(!told.status.success());
    let errors = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(errors.contains("there is no certificate in the file"), "{errors}");
    // Another's key.
    certificates.write_server(&good.0, &certificates.client_key());
    let told = broker.ctl(&["reload_certificates"]);
    let errors = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(errors.contains("is not that of the certificate"), "{errors}");
    // Good ones of another authority.
    certificates.renew_server();
    broker.told(&["reload_certificates"]);
    let new = TlsUri { cacertfile: Some(certificates.other_ca()), ..TlsUri::default() };
    open(&uri_of(new)).unwrap().close().unwrap();
    assert!(open(&uri_of(certificates.trust())).is_err());
    // Back again, and nobody says so.
    certificates.write_server(&good.0, &good.1);
    wait_until(PATIENCE, "the files were looked at", || {
        open(&uri_of(certificates.trust())).is_ok()
    });
    // Who was there noticed nothing.
    let channel = first.open_channel().unwrap();
    declare(&mut first, channel, "q");
    first.close().unwrap();
}

#[test]
fn a_certificate_that_is_out_of_date_is_no_exchange() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &[]);
    let uri = uri(&broker, certificates.trust());
    let (file, key_file) = certificates.server();
    let refused = |why: &str| {
        let told = broker.ctl(&["reload_certificates"]);
        let errors = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(65), "{errors}");
        let want = format!("listeners.ssl: the old certificate stays: {why}");
        assert!(errors.contains(&want), "{want}: {errors}");
        open(&uri).unwrap().close().unwrap();
    };
    let expired = certificates.server_of(2001, 2002);
    let whose = "CN=rcgen self signed cert";
    certificates.write_server(&expired.0, &expired.1);
    refused(&format!(
        "ssl_options.certfile = {file}: the certificate '{whose}' has expired: it was valid until 2002-01-01T00:00:00Z"
    ));
    // By a signal there is nobody to tell, but who reads the log.
    broker.log.wait_for("new certificate files are refused");
    let lines = broker.log.with("new certificate files are refused").len();
    broker.signal(Signal::HUP);
    wait_until(PATIENCE, "it is logged again", || {
        broker.log.with("new certificate files are refused").len() > lines
    });
    open(&uri).unwrap().close().unwrap();
    let early = certificates.server_of(2901, 2902);
    certificates.write_server(&early.0, &early.1);
    refused(&format!(
        "ssl_options.certfile = {file}: the certificate '{whose}' is not valid yet: it will be from 2901-01-01T00:00:00Z on"
    ));
    std::fs::remove_file(&key_file).unwrap();
    refused(&format!("ssl_options.keyfile = {key_file}: No such file"));
}

/// There is no better one, as in RabbitMQ; but it is told, also by `--check`.
#[test]
fn a_start_with_a_certificate_that_is_out_of_date() {
    let certificates = Certificates::new();
    let (certificate, key) = certificates.server_of(2001, 2002);
    certificates.write_server(&certificate, &key);
    let why = "has expired: it was valid until 2002-01-01T00:00:00Z; clients of listeners.ssl will not take it";
    let broker = broker(&certificates, &[]);
    broker.log.wait_for(why);
    let mut check = leveret(&["serve", "--check", "--listen", "127.0.0.1:0"]);
    for setting in certificates.settings() {
        check.args(["--set", &setting]);
    }
    let dir = tempfile::tempdir().unwrap();
    let (_, errors) = run(check, dir.path(), 0);
    assert!(errors.contains(why), "{errors}");
}

#[test]
#[rustfmt::skip] // a table
fn what_cannot_be_kept_stops_the_start() {
    let certificates = Certificates::new();
    let check = |settings: &[&str], want: &str| {
        let dir = tempfile::tempdir().unwrap();
        let mut command = leveret(&["serve", "--listen", "127.0.0.1:0"]);
        command.args(["--set", "listeners.ssl.default=127.0.0.1:0"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let (_, errors) = run(command, dir.path(), 70);
        assert!(errors.contains(want), "{settings:?}: {errors}");
    };
    let all = certificates.settings();
    let [cert, key] = [all[1].as_str(), all[2].as_str()];
    let with = |more: &'static str| [cert, key, more];
    check(&[],                                              "ssl_options.certfile and ssl_options.keyfile are needed for TLS");
    check(&[cert, "ssl_options.keyfile=/nowhere"],          "ssl_options.keyfile = /nowhere: No such file");
    check(&with("ssl_options.verify=verify_peer"),          "ssl_options.verify = verify_peer needs ssl_options.cacertfile");
    check(&with("ssl_options.fail_if_no_peer_cert=true"),   "needs ssl_options.verify = verify_peer");
    check(&with("ssl_options.versions.1=tlsv1.1"),          "ssl_options.versions: none of them is spoken");
    check(&with("ssl_options.ciphers.1=RC4-MD5"),           "ssl_options.ciphers: none of them is spoken");
    let encrypted = certificates.encrypted_key("s3cret");
    check(&[cert, &encrypted],                              "the key is encrypted; give its password");
    check(&[cert, &encrypted, "ssl_options.password=s4cret"], "the password is wrong");
}

#[test]
fn a_key_that_is_encrypted() {
    let certificates = Certificates::new();
    let encrypted = certificates.encrypted_key("s3cret");
    let broker = broker(&certificates, &[&encrypted, "ssl_options.password=s3cret"]);
    open(&uri(&broker, certificates.trust())).unwrap().close().unwrap();
    assert_eq!(broker.log.with("s3cret"), Vec::<String>::new());
}

/// OpenSSL's own client, where it is installed.
#[test]
fn openssl_speaks_with_it() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &[]);
    let address: SocketAddr = broker.listens("amqps");
    for version in ["-tls1_3", "-tls1_2"] {
        let mut command = std::process::Command::new("openssl");
        command.args(["s_client", "-brief", "-verify_return_error", version, "-quiet", "-ign_eof"]);
        command.args(["-CAfile", &certificates.ca(), "-connect", &address.to_string()]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let Ok(mut child) = command.stderr(std::process::Stdio::piped()).spawn() else {
            eprintln!("openssl is not installed");
            return;
        };
        // A wrong header is answered with the right one, and the connection closed.
        child.stdin.take().unwrap().write_all(b"AMQP\x01\x01\x08\0").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.stdout, b"AMQP\0\0\x09\x01", "{output:?}");
    }
}

/// The management API and the metrics over TLS, asked by OpenSSL's client.
#[test]
fn http_over_tls() {
    let certificates = Certificates::new();
    let (certificate, key) = certificates.server();
    let mut settings = Vec::new();
    for prefix in ["management.ssl", "prometheus.ssl"] {
        settings.push(format!("{prefix}.port=0"));
        settings.push(format!("{prefix}.ip=127.0.0.1"));
        settings.push(format!("{prefix}.certfile={certificate}"));
        settings.push(format!("{prefix}.keyfile={key}"));
    }
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let broker = Broker::with(&settings);
    // A handshake that never comes holds nobody up.
    let _silent = TcpStream::connect(broker.listens("https")).unwrap();
    let ask = |on: &str, path: &str| {
        let mut command = std::process::Command::new("openssl");
        command.args(["s_client", "-verify_return_error", "-quiet", "-ign_eof"]);
        let address = broker.listens(on).to_string();
        command.args(["-CAfile", &certificates.ca(), "-connect", &address]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().ok()?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\
             Connection: close\r\n\r\n"
        );
        child.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for (on, path, want) in [
        ("https", "/api/whoami", r#""name":"guest""#),
        ("metrics_tls", "/metrics", "rabbitmq_connections"),
    ] {
        let Some(answer) = ask(on, path) else {
            eprintln!("openssl is not installed");
            return;
        };
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(want), "{on}: {answer}");
    }
    // The control tool asks that way too; it trusts whom it is told to trust, and nobody else.
    let uri = format!("https://guest:guest@{}", broker.listens("https"));
    assert_eq!(
        broker.told(&["--uri", &uri, "--cacertfile", &certificates.ca(), "list_vhosts"]),
        "name\n/\n"
    );
    let told = broker.refused(&["--uri", &uri, "list_vhosts"], 69);
    assert!(told.contains("no TLS: "), "{told}");
    broker.told(&["reload_certificates"]);
    wait_until(PATIENCE, "both listeners have read theirs", || {
        broker.log.with("certificate and key were read again").len() == 2
    });
}
