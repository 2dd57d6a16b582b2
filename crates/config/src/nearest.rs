//! The known key that a mistyped one probably meant.

/// The candidate that differs least from `key`, if it differs by little.
pub(crate) fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let most = (key.len() / 5).clamp(1, 4);
    known
        .map(|pattern| filled_in(pattern, key))
        .map(|candidate| (distance(key, &candidate), candidate))
        .filter(|(distance, _)| (1..=most).contains(distance))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The pattern with its `$` words replaced by the key's words at those places.
fn filled_in(pattern: &str, key: &str) -> String {
    let mut words = key.split('.');
    let filled = pattern.split('.').map(|want| match words.next() {
        Some(word) if want.starts_with('$') => word,
        _ => want,
    });
    filled.collect::<Vec<_>>().join(".")
}

/// Letters to insert, delete, replace or swap with their neighbour to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut older = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(older[j - 2] + 1);
            }
        }
        older = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn suggestions() {
        check("heartbeet",        Some("heartbeat"));
        check("hearbteat",        Some("heartbeat"));
        check("frame-max",        Some("frame_max"));
        check("listener.tcp.one", Some("listeners.tcp.one"));
        check("nonsense",         None);
    }

    #[track_caller]
    fn check(key: &str, want: Option<&str>) {
        let known = ["heartbeat", "frame_max", "listeners.tcp.$name"];
        assert_eq!(nearest(key, known.into_iter()).as_deref(), want);
    }
}
