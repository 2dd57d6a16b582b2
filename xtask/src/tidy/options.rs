//! An option that is told of must do something: the program reads it, or it is not an option.
//!
//! Keys of RabbitMQ that have no meaning here are in `crates/config/src/known.txt` and said so at the start.

use crate::root;

use super::files;

/// Options with one value that is served: any other is refused as it is read, so nobody needs to look.
const OF_ONE_VALUE: [&str; 2] = ["hostname_verification", "response_type"];

/// Checks that each option is read by some source other than the one that declares it.
pub(super) fn check(breaches: &mut Vec<String>) -> anyhow::Result<()> {
    let mut options = Vec::new();
    let mut readers = String::new();
    for path in files(&root().join("crates"), "rs")? {
        let source = std::fs::read_to_string(path)?;
        let (declared, rest) = split(&source);
        options.extend(declared.iter().map(|&name| name.to_owned()));
        rest.iter().for_each(|line| readers.extend([line, "\n"]));
    }
    for name in options {
        if !OF_ONE_VALUE.contains(&name.as_str()) && !is_read(&readers, &name) {
            breaches.push(format!(
                "crates/config: nobody reads the option `{name}`: use it, or move its key to known.txt"
            ));
        }
    }
    Ok(())
}

/// The fields declared in the `options!` of a source, and the lines that are in none.
fn split(source: &str) -> (Vec<&str>, Vec<&str>) {
    let mut declared = Vec::new();
    let mut rest = Vec::new();
    let mut is_inside = false;
    for line in source.lines() {
        match line {
            "options! {" => is_inside = true,
            "}" => is_inside = false,
            _ if is_inside => declared.extend(field(line)),
            _ => rest.push(line),
        }
    }
    (declared, rest)
}

/// The name in a line `    name: Type = default`.
fn field(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("    ")?.split_once(": ")?;
    name.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit())
        .then_some(name)
}

/// Whether `.name` is in there as a whole word.
fn is_read(readers: &str, name: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = readers.match_indices(name);
    found.any(|(at, _)| {
        readers[..at].trim_end().ends_with('.') && !readers[at + name.len()..].starts_with(goes_on)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_their_readers() {
        let source = "options! {\n    /// Doc: x\n    a_b: u32 = 1, keys = [\"a.b\"];\n}\nlet it = config\n    .a_b;\n";
        let (declared, rest) = split(source);
        assert_eq!(declared, ["a_b"]);
        assert_eq!(rest, ["let it = config", "    .a_b;"]);
        let rest = rest.join("\n");
        assert!(is_read(&rest, "a_b") && !is_read(&rest, "a") && !is_read(&rest, "config"));
    }
}
