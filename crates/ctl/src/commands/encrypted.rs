//! Values of the configuration are encrypted and decrypted. No node is asked.

use leveret_config::Value as _;
use leveret_config::encrypted::{self, Cipher, Hash, Scheme, Term};
use serde_json::json;

use super::{Command, Tools, Word, maybe, value};
use crate::call::{Answer, Call};
use crate::fault::Fault;

const WORDS: &[Word] = &[
    maybe("value", "The value; without it a line of standard input"),
    maybe("passphrase", "The passphrase; without it a line of standard input"),
    value("cipher", "aes_128_cbc", "Cipher: list_ciphers"),
    value("hash", "sha256", "Hash that makes a key of the passphrase: list_hashes"),
    value("iterations", "1", "How often"),
];

fn scheme(it: &Call<'_>) -> Result<Scheme, Fault> {
    let cipher = Cipher::read(it.word("cipher"))
        .map_err(|why| Fault::usage(format!("The requested cipher is not supported: {why}")))?;
    let hash = Hash::read(it.word("hash"))
        .map_err(|why| Fault::usage(format!("The requested hash is not supported: {why}")))?;
    let iterations = u32::try_from(it.number("iterations")?).ok().filter(|&count| count > 0);
    let iterations = iterations
        .ok_or_else(|| Fault::usage("The requested number of iterations is incorrect"))?;
    Ok(Scheme { cipher, hash, iterations })
}

fn encrypt(it: &mut Call<'_>) -> Result<String, Fault> {
    it.say()?;
    let scheme = scheme(it)?;
    let term = Term::read(&it.line("value", "Value")?);
    Ok(scheme.encrypt(&it.line("passphrase", "Passphrase")?, &term, rand::random()))
}

fn decrypt(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.say()?;
    let scheme = scheme(it)?;
    let text = it.line("value", "Value")?;
    // As `encode` and `encrypt_conf_value` show it, or without what is around it.
    let value = text.trim().trim_start_matches("{encrypted,").trim_start_matches("encrypted:");
    let value = value.trim_matches(|c: char| "<>\"'{} ".contains(c));
    let passphrase = it.line("passphrase", "Passphrase")?;
    let term = scheme.decrypt(&passphrase, value);
    let term = term.map_err(|error| Fault::unavailable(format!("The value: {error}")))?;
    Ok(Answer::Document(json!(term.text()), format!("{term}\n")))
}

fn list(it: &mut Call<'_>, names: &[String]) -> Result<Answer, Fault> {
    it.say()?;
    Ok(Answer::Document(json!(names), format!("[{}]\n", names.join(","))))
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("encode", Tools::CTL, "Encrypt a value for advanced.config", |it| {
        let value = encrypt(it)?;
        Ok(Answer::Document(json!(value), format!("{{encrypted,<<\"{value}\">>}}\n")))
    })
    .takes(WORDS)
    .says("Encrypting value to be used in advanced.config..."),
    Command::new("decode", Tools::CTL, "Decrypt a value of advanced.config", decrypt)
        .takes(WORDS)
        .says("Decrypting an advanced.config (Erlang term) value..."),
    Command::new("encrypt_conf_value", Tools::CTL, "Encrypt a value for the configuration", |it| {
        Ok(Answer::Message(format!("encrypted:{}", encrypt(it)?)))
    })
    .takes(WORDS)
    .says("Encrypting value to be used in rabbitmq.conf..."),
    Command::new("decrypt_conf_value", Tools::CTL, "Decrypt a value of the configuration", decrypt)
        .takes(WORDS)
        .says("Decrypting a rabbitmq.conf string value..."),
    Command::new(
        "list_ciphers",
        Tools::CTL_AND_DIAGNOSTICS,
        "List ciphers for encrypted values",
        |it| list(it, &encrypted::names().0),
    )
    .says("Listing supported ciphers ..."),
    Command::new(
        "list_hashes",
        Tools::CTL_AND_DIAGNOSTICS,
        "List hashes for encrypted values",
        |it| list(it, &encrypted::names().1),
    )
    .says("Listing supported hash algorithms ..."),
];
