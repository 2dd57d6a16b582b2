//! Definitions, out and in.

use std::io::Read as _;
use std::path::PathBuf;

use serde_json::Value;

use super::{Entry, Tools, flag, maybe, one, value};
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
    let mut text = Vec::new();
    match &file {
        Some(file) => std::fs::read(file).map(|read| text = read),
        None => std::io::stdin().read_to_end(&mut text).map(|_| ()),
    }
    .map_err(|error| Fault::data(format!("Could not read from {shown}: {error}")))?;
    let definitions: Value = serde_json::from_slice(&text).map_err(|error| {
        Fault::data(format!("Failed to deserialise input (format: JSON) (error: {error})"))
    })?;
    it.post("/api/definitions", &definitions)?;
    Ok(Answer::Message("Successfully imported definitions.".to_owned()))
}

fn export(it: &mut Call<'_>) -> Result<Answer, Fault> {
    must_be_json(it)?;
    let file = it.word("file").to_owned();
    let is_stdout = file == "-";
    if !is_stdout {
        it.say_this(&format!("Exporting definitions in JSON to a file at \"{file}\" ..."))?;
    }
    it.say_nothing();
    let definitions = it.get("/api/definitions")?;
    let text = format!("{definitions:#}\n");
    if is_stdout {
        return Ok(Answer::Document(definitions, text));
    }
    std::fs::write(&file, text)
        .map_err(|error| Fault::data(format!("Could not write to file {file}: {error}")))?;
    Ok(Answer::Done)
}

pub(super) const COMMANDS: &[Entry] = &[
    Entry::new("import_definitions", Tools::CTL, "Add what a definitions file holds", import)
        .takes(&[
            value("format", "json", "json"),
            flag("skip-if-unchanged", "Accepted: importing the same again changes nothing"),
            maybe("file", "A JSON file, or - for standard input [default: -]"),
        ]),
    Entry::new(
        "export_definitions",
        Tools::CTL,
        "Write everything that is defined to a file",
        export,
    )
    .takes(&[
        value("format", "json", "json"),
        one("file", "The JSON file to write, or - for standard output"),
    ]),
];
