//! That the table holds together, and answers what the documents ask.

use std::collections::HashSet;

use super::*;

/// What the documents ask of experiments, by number: each is answered by an entry.
const ASKED: [&str; 29] = [
    "S000-38", "S000-39", "S000-40", "S000-41", "S000-42", "S000-43",
    "S000-45", // the article
    "S001-9", "S001-10", "S001-11", "S001-13", "S001-14", "S001-15", "S001-16", // paging
    "S002-14", "S002-15", "S002-16", "S002-17", "S002-22", // the scenarios
    "S003-2", "S003-14", "S003-16", "S003-17", "S003-22", "S003-25",
    "S003-29", // the cookbook
    "S004-9", "S004-10", "S004-11", // the columns
];

#[test]
fn every_requirement_has_an_entry() {
    let answered: HashSet<_> = ALL.iter().flat_map(|it| it.requirements).collect();
    let missing: Vec<_> = ASKED.iter().filter(|it| !answered.contains(it)).collect();
    assert_eq!(missing, <[&&str; 0]>::default());
}

#[test]
fn names_are_words_of_their_own() {
    let names: HashSet<_> = ALL.iter().map(|it| it.name).collect();
    assert_eq!(names.len(), ALL.len());
    for it in ALL {
        let is_word =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        assert!(it.name.chars().all(is_word), "{}", it.name);
        assert_eq!(find(it.name).map(|it| it.name), Some(it.name));
    }
    assert!(find("nonsense").is_none());
}

/// A document's figure that has no row would never be seen.
#[test]
fn every_quoted_figure_has_a_row() {
    for it in ALL {
        for length in [Length::default(), Length { quick: true, seconds: None }] {
            let cases = (it.cases)(length);
            let rows: HashSet<&str> = cases
                .iter()
                .flat_map(|case| [Some(case.row.as_str()), case.also.map(|it| it.0)])
                .flatten()
                .chain([MEAN])
                .collect();
            for quoted in it.quoted {
                assert!(rows.contains(quoted.row), "{}: {}", it.name, quoted.row);
            }
        }
    }
}

#[test]
fn quick_is_quick() {
    for it in ALL {
        let length = Length { quick: true, seconds: None };
        let takes_s = it.takes_s(length, it.repeats(length));
        assert!(takes_s < 20.0, "{} takes {takes_s} s", it.name);
    }
}
