//! Bytes written by hand in a script, for frames that no client would send.
//!
//! ```text
//! 0a0b "text" u8:1 u16:60 u32:0 u64:5     hex pairs, text, big-endian numbers
//! s:"short" S:"long"                      strings behind their length
//! len(...)                                whatever is inside, behind a four-byte length
//! (...)*1000  00*20                       repeated
//! tables:15000 arrays:20000               a table holding a table holding ..., without its length
//! ```

use crate::value::{put_long_str, put_number, put_short_str};

/// Reads a whole line of bytes.
pub fn parse(text: &str) -> Result<Vec<u8>, String> {
    let mut rest = text.trim();
    let out = sequence(&mut rest)?;
    if rest.is_empty() { Ok(out) } else { Err(format!("bytes end at {rest:?}")) }
}

fn sequence(rest: &mut &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    loop {
        *rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with(')') {
            return Ok(out);
        }
        let mut part = part(rest)?;
        if let Some(after) = rest.strip_prefix('*') {
            let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let count: usize = after[..end].parse().map_err(|e| format!("{e}"))?;
            part = part.repeat(count);
            *rest = &after[end..];
        }
        out.extend(part);
    }
}

fn part(rest: &mut &str) -> Result<Vec<u8>, String> {
    for (prefix, has_length) in [("len(", true), ("(", false)] {
        if let Some(inner) = rest.strip_prefix(prefix) {
            *rest = inner;
            let bytes = sequence(rest)?;
            *rest = rest.strip_prefix(')').ok_or("a bracket is open")?;
            let mut out = Vec::new();
            if has_length {
                put_long_str(&mut out, &bytes);
            } else {
                out = bytes;
            }
            return Ok(out);
        }
    }
    let mut out = Vec::new();
    for (prefix, put) in [
        ("s:\"", put_short_str as fn(&mut Vec<u8>, &[u8])),
        ("S:\"", put_long_str),
        ("\"", |out: &mut Vec<u8>, text: &[u8]| out.extend_from_slice(text)),
    ] {
        if let Some(inner) = rest.strip_prefix(prefix) {
            let end = inner.find('"').ok_or("a quote is open")?;
            put(&mut out, &unescape(&inner[..end])?);
            *rest = &inner[end + 1..];
            return Ok(out);
        }
    }
    let end = rest.find(|c: char| c.is_whitespace() || "*()\"".contains(c)).unwrap_or(rest.len());
    let word = &rest[..end];
    *rest = &rest[end..];
    if let Some((kind, number)) = word.split_once(':') {
        let number: u64 = number.parse().map_err(|e| format!("{word}: {e}"))?;
        match kind {
            "u8" => put_number(&mut out, number, 1),
            "u16" => put_number(&mut out, number, 2),
            "u32" => put_number(&mut out, number, 4),
            "u64" => put_number(&mut out, number, 8),
            "tables" => out = nested(number, &[1, b'k', b'F']),
            "arrays" => out = nested(number, b"A"),
            _ => return Err(format!("unknown kind of bytes {word}")),
        }
        return Ok(out);
    }
    if word.is_empty() || !word.len().is_multiple_of(2) {
        return Err(format!("hex comes in pairs: {word:?}"));
    }
    (0..word.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&word[i..i + 2], 16).map_err(|e| format!("{word}: {e}")))
        .collect()
}

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("\\x") {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let hex = rest.get(at + 2..at + 4).ok_or("\\x wants two digits")?;
        out.push(u8::from_str_radix(hex, 16).map_err(|e| e.to_string())?);
        rest = &rest[at + 4..];
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// `depth` values of `head` and a length around nothing, from the outside in.
fn nested(depth: u64, head: &[u8]) -> Vec<u8> {
    let step = head.len() as u64 + 4;
    let mut out = Vec::new();
    for level in 0..depth {
        out.extend_from_slice(head);
        put_number(&mut out, (depth - level - 1) * step, 4);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        for (text, expected) in [
            ("0a0B", b"\x0a\x0b".to_vec()),
            ("u16:258 u8:3", b"\x01\x02\x03".to_vec()),
            ("s:\"ab\" S:\"c\"", b"\x02ab\0\0\0\x01c".to_vec()),
            ("len(00*3)", b"\0\0\0\x03\0\0\0".to_vec()),
            ("(\"ab\" 00)*2", b"ab\0ab\0".to_vec()),
            ("tables:2", b"\x01kF\0\0\0\x07\x01kF\0\0\0\0".to_vec()),
            ("\"a\\x00\"", b"a\0".to_vec()),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        assert!(parse("abc").is_err());
        assert!(parse("len(00").is_err());
    }
}
