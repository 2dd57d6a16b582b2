//! The description of the API, for tools.

use super::answer::{Answer, Fault};
use super::call::Call;

/// Checked in; a test compares it with the table of routes.
const TEXT: &str = include_str!("openapi.yaml");

/// `GET /api/openapi.yaml`.
pub(super) async fn get(_: Call) -> Result<Answer, Fault> {
    Ok(Answer::File { kind: "application/yaml", name: None, text: TEXT.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes::ROUTES;

    /// Paths and methods, from the two levels of indentation that they have.
    fn described() -> Vec<String> {
        let mut found = Vec::new();
        let mut path = "";
        let paths = TEXT.lines().skip_while(|line| *line != "paths:").skip(1);
        for line in paths.take_while(|line| line.starts_with(' ')) {
            let depth = line.len() - line.trim_start().len();
            let key = line.trim().trim_end_matches(':');
            match depth {
                2 => path = key,
                4 if key != "parameters" => found.push(format!("{} {path}", key.to_uppercase())),
                _ => {}
            }
        }
        found.sort();
        found
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let mut routed = Vec::new();
        for (path, methods) in ROUTES {
            routed.extend(methods.iter().map(|method| format!("{method} {path}")));
        }
        routed.sort();
        assert_eq!(described(), routed);
    }

    /// Whatever has a body may have one that is too long.
    #[test]
    fn every_body_may_be_too_long() {
        let (mut path, mut wants) = ("", false);
        for line in TEXT.lines() {
            if line.starts_with("    ") && !line.starts_with("     ") {
                assert!(!wants, "{path}: no answer 413");
                path = line;
            }
            wants |= line.starts_with("      requestBody:");
            wants &= !line.starts_with("        \"413\": ");
        }
    }

    /// What a path names is told where the path is.
    #[test]
    fn every_part_of_a_path_is_described() {
        for (path, _) in ROUTES {
            let parts = path.split('/').filter_map(|part| part.strip_prefix('{'));
            for name in parts.map(|part| part.trim_end_matches('}')) {
                let wanted = format!("\n    {name}: {{ name: {name}, in: path, required: true");
                assert!(TEXT.contains(&wanted), "{name} of {path}");
            }
        }
    }
}
