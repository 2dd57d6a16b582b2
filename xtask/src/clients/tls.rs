//! Clients over TLS: a node of our own with certificates of our own.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};

use super::tools::{Counts, SuitePlace, own_counts};
use crate::install;
use crate::node::Node;

/// Users of the node: one by password, one by certificate.
const DEFINITIONS: &str = r#"{
    "vhosts": [{"name": "/"}],
    "users": [
        {"name": "guest", "password": "guest", "tags": ["administrator"]},
        {"name": "alice", "password_hash": "", "tags": []}
    ],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "alice", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]
}"#;

/// What OpenSSL's own client says of the port: the words after `s_client`, and a word of what it answers if it is
/// let in.
const OPENSSL: [(&str, &str, Option<&str>); 8] = [
    ("TLS 1.3", "-tls1_3 -CAfile ca.pem", Some("Protocol version: TLSv1.3")),
    ("TLS 1.2", "-tls1_2 -CAfile ca.pem", Some("Protocol version: TLSv1.2")),
    (
        "a certificate of the client",
        "-CAfile ca.pem -cert client.pem -key client.key",
        Some("Verification: OK"),
    ),
    (
        "the server's name",
        "-CAfile ca.pem -verify_hostname localhost",
        Some("Verified peername: localhost"),
    ),
    ("another name", "-CAfile ca.pem -verify_hostname example.com", None),
    ("another authority", "-CAfile other.pem", None),
    ("TLS 1.1", "-tls1_1 -cipher ALL@SECLEVEL=0 -CAfile ca.pem", None),
    ("no forward secrecy", "-tls1_2 -cipher AES128-GCM-SHA256 -CAfile ca.pem", None),
];

/// pika with Python's ssl, the Go and the Java client: by password and by certificate (EXTERNAL); and OpenSSL.
pub(super) fn clients(place: &SuitePlace) -> anyhow::Result<Counts> {
    let files = place.dir.join("files");
    std::fs::create_dir_all(&files)?;
    certificates(&files)?;
    std::fs::write(files.join("definitions.json"), DEFINITIONS)?;
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let settings = [
        format!("listeners.ssl.default=127.0.0.1:{port}"),
        format!("ssl_options.cacertfile={}", files.join("ca.pem").display()),
        format!("ssl_options.certfile={}", files.join("server.pem").display()),
        format!("ssl_options.keyfile={}", files.join("server.key").display()),
        "ssl_options.verify=verify_peer".to_owned(),
        "ssl_cert_login_from=common_name".to_owned(),
        "auth_mechanisms.1=PLAIN".to_owned(),
        "auth_mechanisms.2=EXTERNAL".to_owned(),
        format!("load_definitions={}", files.join("definitions.json").display()),
    ];
    let words: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let _node = Node::start(&words)?;
    let program = place.dir.join("go-tls");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(place.source("go-tls"));
    place.must("build", 5, &mut build)?;
    let mut python = Command::new(super::python::clients(place)?);
    python.arg(place.source("python/tls.py"));
    let mut all = Counts::default();
    openssl(place, &files, port, &mut all)?;
    let java = super::java::program(place, "java/Tls.java")?;
    for (name, mut check) in [("go", Command::new(program)), ("python", python), ("java", java)] {
        let (output, _) = place.run(name, 3, check.arg(port.to_string()).arg(&files))?;
        all.add_part(name, own_counts(&output)?);
    }
    Ok(all)
}

fn openssl(place: &SuitePlace, files: &Path, port: u16, all: &mut Counts) -> anyhow::Result<()> {
    install::program("openssl", "openssl")?;
    for (name, words, want) in OPENSSL {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-brief", "-verify_return_error"]).current_dir(files);
        client.args(["-connect", &format!("127.0.0.1:{port}")]).args(words.split(' '));
        let log = format!("openssl-{}", name.replace([' ', '\''], "-"));
        let (output, is_in) = place.run(&log, 1, &mut client)?;
        let is_good = match want {
            Some(want) => is_in && output.contains(want),
            None => !is_in,
        };
        all.add(&format!("openssl: {name}"), is_good);
    }
    Ok(())
}

/// Two authorities; the first has signed for the server and for the client `alice`.
pub(super) fn certificates(dir: &Path) -> anyhow::Result<()> {
    let authority = |name: &str, file: &str| {
        let mut params = named(name)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let made = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        std::fs::write(dir.join(file), made.pem())?;
        anyhow::Ok(made)
    };
    let ours = authority("ours", "ca.pem")?;
    authority("others", "other.pem")?;
    let signed = |params: CertificateParams, file: &str| {
        let key = KeyPair::generate()?;
        std::fs::write(dir.join(format!("{file}.pem")), params.signed_by(&key, &ours)?.pem())?;
        std::fs::write(dir.join(format!("{file}.key")), key.serialize_pem())?;
        anyhow::Ok(())
    };
    let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    signed(CertificateParams::new(hosts)?, "server")?;
    signed(named("alice")?, "client")
}

fn named(common_name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}
