//! TLS: certificates, cipher suites, versions.

use serde_json::{Value, json};

use super::{Command, Tools, flag, value};
use crate::call::{Answer, Call};
use crate::fault::Fault;
use crate::format::cell;

const PATH: &str = "/api/leveret/tls";

fn lines(items: &Value) -> String {
    items.as_array().into_iter().flatten().map(|item| format!("{}\n", cell(item))).collect()
}

/// The certificates of every listener that speaks TLS.
fn certificates(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let told = it.get(PATH)?["listeners"].clone();
    let mut text = String::new();
    for listener in told.as_array().into_iter().flatten() {
        text += &format!(
            "{} on {}:{}, certfile {}, cacertfile {}\n",
            cell(&listener["protocol"]),
            cell(&listener["interface"]),
            listener["port"],
            cell(&listener["certfile"]),
            cell(&listener["cacertfile"]),
        );
        let chain = &listener["certificates"];
        if let Some(error) = chain["error"].as_str() {
            text += &format!("  {error}\n");
        }
        for one in chain.as_array().into_iter().flatten() {
            text += &format!(
                "  {}\n    issued by {}, serial number {}, valid {}\n",
                cell(&one["subject"]),
                cell(&one["issuer"]),
                cell(&one["serial_number"]),
                cell(&one["validity"]),
            );
        }
    }
    Ok(Answer::Document(told, text))
}

fn cipher_suites(it: &mut Call<'_>) -> Result<Answer, Fault> {
    if it.word("format") != "openssl" {
        return Err(Fault::usage("suites are shown by OpenSSL's names only: --format openssl"));
    }
    let told = it.get(PATH)?;
    let suites =
        if it.flag("all") { &told["cipher_suites"] } else { &told["enabled_cipher_suites"] };
    Ok(Answer::Document(suites.clone(), lines(suites)))
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "certificates",
        Tools::DIAGNOSTICS,
        "Show the certificates of every listener",
        certificates,
    )
    .says("Certificates of node {node} ..."),
    Command::new(
        "cipher_suites",
        Tools::DIAGNOSTICS,
        "List the cipher suites of TLS that clients may choose from",
        cipher_suites,
    )
    .takes(&[
        value("format", "openssl", "Whose names: OpenSSL's"),
        flag("all", "Those that the configuration leaves out, too"),
    ])
    .says("Listing available cipher suites in OpenSSL format"),
    Command::new(
        "tls_versions",
        Tools::DIAGNOSTICS,
        "List the versions of TLS that there are",
        |it| {
            let versions = it.get(PATH)?["versions"].clone();
            let text = lines(&versions);
            Ok(Answer::Document(json!({"versions": versions}), text))
        },
    )
    .says("Listing all TLS versions supported by the runtime..."),
];
