//! Definitions, out and in.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, stdin};
use std::path::PathBuf;

use leveret_config::DEFINITIONS_MAX;
use serde_json::Value;

use super::{Command, Tools, flag, maybe, one, value};
use crate::call::{Answer, Call};
use crate::fault::Fault;

fn must_be_json(it: &Call<'_>) -> Result<(), Fault> {
    match it.word("format").eq_ignore_ascii_case("json") {
        true => Ok(()),
        false => Err(Fault::data("Format should be json")),
    }
}

fn import(it: &mut Call<'_>) -> Result<Answer, Fault> {
    must_be_json(it)?;
    let file = it.optional("file").filter(|file| *file != "-").map(PathBuf::from);
    let (banner, shown) = match &file {
        Some(file) => {
            let shown = file.display().to_string();
            (format!("Importing definitions in JSON from a file at \"{shown}\" ..."), shown)
        }
        None => {
            let banner = "Importing definitions in JSON from standard input ...";
            (banner.to_owned(), "standard input".to_owned())
        }
    };
    it.say_this(&banner)?;
    let text = match &file {
        Some(file) => File::open(file).and_then(definitions),
        None => definitions(stdin()),
    }
    .map_err(|error| Fault::data(format!("Could not read from {shown}: {error}")))?;
    let definitions: Value = serde_json::from_slice(&text).map_err(|error| {
        Fault::data(format!("Failed to deserialise input (format: JSON) (error: {error})"))
    })?;
    let skips = it.flag("skip-unsupported");
    let path = if skips { "/api/definitions?skip_unsupported=true" } else { "/api/definitions" };
    tell_left_out(&mut it.post(path, &definitions)?);
    Ok(Answer::Message("Successfully imported definitions.".to_owned()))
}

/// All that there is to read. A node takes no more than [`DEFINITIONS_MAX`], and a device may have no end.
fn definitions(from: impl Read) -> std::io::Result<Vec<u8>> {
    let most = DEFINITIONS_MAX.get();
    let mut text = Vec::new();
    from.take(most + 1).read_to_end(&mut text)?;
    if text.len() as u64 > most {
        let why = format!("it is longer than {} MiB, and a node takes no more", most >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Takes out what an answer tells that is not there, and tells it.
fn tell_left_out(answer: &mut Value) {
    let left_out = answer.as_object_mut().and_then(|all| all.remove("left_out"));
    for told in left_out.iter().flat_map(|told| told.as_array().into_iter().flatten()) {
        eprintln!("left out: {}", told.as_str().unwrap_or_default());
    }
}

fn export(it: &mut Call<'_>) -> Result<Answer, Fault> {
    must_be_json(it)?;
    let file = it.word("file").to_owned();
    let is_stdout = file == "-";
    if !is_stdout {
        it.say_this(&format!("Exporting definitions in JSON to a file at \"{file}\" ..."))?;
    }
    it.say_nothing();
    let path = match it.optional("for") {
        None => "/api/definitions",
        Some("rabbitmq") => "/api/definitions?for=rabbitmq",
        Some("rabbitmq-4") => "/api/definitions?for=rabbitmq-4",
        Some(other) => {
            let why = format!("--for knows rabbitmq and rabbitmq-4, not '{other}'");
            return Err(Fault::usage(why));
        }
    };
    let mut definitions = it.get(path)?;
    tell_left_out(&mut definitions);
    let text = format!("{definitions:#}\n");
    if is_stdout {
        return Ok(Answer::Document(definitions, text));
    }
    std::fs::write(&file, text)
        .map_err(|error| Fault::data(format!("Could not write to file {file}: {error}")))?;
    Ok(Answer::Done)
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("import_definitions", Tools::CTL, "Add what a definitions file holds", import)
        .takes(&[
            value("format", "json", "json"),
            flag("skip-if-unchanged", "Accepted: importing the same again changes nothing"),
            flag(
                "skip-unsupported",
                "Leave out what cannot be here (streams, what belongs to plugins), and tell it",
            ),
            maybe("file", "A JSON file, or - for standard input [default: -]"),
        ]),
    Command::new(
        "export_definitions",
        Tools::CTL,
        "Write everything that is defined to a file",
        export,
    )
    .takes(&[
        value("format", "json", "json"),
        value("for", "", "rabbitmq or rabbitmq-4: leave out what that does not know, and tell it"),
        one("file", "The JSON file to write, or - for standard output"),
    ]),
];
