//! How many steps a pattern that tries may take ahead before it takes one back.
//!
//! The library counts steps back, and those alone have a bound. A look-ahead that matches takes none: what is repeated in it is
//! walked through again at each place of the name, and `(?:(?=(?:(?=a)a){80})a){80}` takes 80 times 80 steps. So they are
//! counted as the pattern is read.
//!
//! What a part of a pattern costs is two numbers: steps whatever the name is, and steps for each byte that it goes over. Parts
//! that follow each other share the bytes of the name. A look-around goes back to where it began, so it may go over all of them
//! each time.

use fancy_regex::{Absent, BacktrackingControlVerb, Expr, LookAround};

/// Bytes of a name, at most.
const NAME_LEN: u64 = 255;

/// So many parts are read, those of a group once more for each call. A program has no room for so many, but for what is
/// repeated no time at all, which is no part of it.
const PARTS_MAX: usize = 100_000;

/// What a part costs, at most, between two steps back.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    fixed: u64,
    by_byte: u64,
    /// It goes over a byte at least.
    advances: bool,
    /// It takes a step back whenever it is passed.
    steps_back: bool,
    /// It is not matched in linear time.
    tries: bool,
}

impl Cost {
    const ONE: Self =
        Self { fixed: 1, by_byte: 0, advances: false, steps_back: false, tries: false };
    const BYTE: Self = Self { advances: true, ..Self::ONE };
    const TRY: Self = Self { tries: true, ..Self::ONE };

    /// With the longest name.
    fn most(self) -> u64 {
        self.fixed.saturating_add(self.by_byte.saturating_mul(NAME_LEN))
    }

    /// No bound is known.
    const UNBOUNDED: Self = Self { by_byte: u64::MAX, ..Self::TRY };

    /// One of two ways.
    fn or(self, other: Self) -> Self {
        Self {
            fixed: self.fixed.max(other.fixed),
            by_byte: self.by_byte.max(other.by_byte),
            advances: self.advances && other.advances,
            steps_back: self.steps_back && other.steps_back,
            tries: self.tries || other.tries,
        }
    }

    fn then(self, other: Self) -> Self {
        Self {
            fixed: self.fixed.saturating_add(other.fixed),
            by_byte: self.by_byte.max(other.by_byte),
            advances: self.advances || other.advances,
            steps_back: self.steps_back || other.steps_back,
            tries: self.tries || other.tries,
        }
    }

    /// At one place, whatever the name goes on with.
    fn looked(self) -> Self {
        // What tries nothing is matched by the other engine, whose step over a byte is a small one.
        let fixed = if self.tries { self.most() } else { self.most().min(NAME_LEN) / 16 };
        Self { fixed: fixed.saturating_add(1), steps_back: self.steps_back, ..Self::TRY }
    }

    fn repeated(self, least: usize, most: usize) -> Self {
        let Self { fixed, by_byte, .. } = self;
        let once = fixed.saturating_add(1);
        let is_once = least > 0;
        let all = Self {
            advances: is_once && self.advances,
            steps_back: is_once && self.steps_back,
            ..self
        };
        if self.steps_back {
            // The end of one round and the beginning of the next.
            return Self { fixed: once.saturating_mul(2), ..all };
        }
        let by_count = Self { fixed: once.saturating_mul(most as u64), ..all };
        if most != usize::MAX && !self.advances {
            return by_count;
        }
        // A round that goes over no byte is the last one, once there were enough of them.
        let rounds = if self.advances { 1 } else { (least as u64).saturating_add(1) };
        let fixed = once.saturating_mul(rounds);
        let by_bytes = Self { fixed, by_byte: once.saturating_add(by_byte), ..all };
        if by_count.most() < by_bytes.most() { by_count } else { by_bytes }
    }
}

/// Steps that a pattern may take ahead with a name before it takes one back, roughly. One that cannot be read takes none.
pub(super) fn steps(text: &str) -> u64 {
    read(text).0.most()
}

/// Whether a part of a pattern calls itself, by itself or by others.
pub(super) fn is_recursive(text: &str) -> bool {
    read(text).1
}

/// What a pattern costs, and whether it is recursive.
fn read(text: &str) -> (Cost, bool) {
    let Ok(tree) = Expr::parse_tree(text) else { return (Cost::default(), false) };
    let mut reader = Reader::default();
    reader.find_groups(&tree.expr);
    let cost = reader.cost(&tree.expr);
    (cost, reader.is_recursive)
}

/// Reads a pattern whose program has a bound, which parts that call each other are part of.
#[derive(Debug, Default)]
struct Reader<'a> {
    /// What is in parentheses, in order: other parts may call it.
    groups: Vec<&'a Expr>,
    /// Those that are being called.
    called: Vec<usize>,
    /// Parts that were read.
    parts: usize,
    /// A group is called within itself, or all of the pattern is.
    is_recursive: bool,
}

impl<'a> Reader<'a> {
    fn find_groups(&mut self, expr: &'a Expr) {
        if let Expr::Group(inner) = expr {
            self.groups.push(inner);
        }
        expr.children_iter().for_each(|child| self.find_groups(child));
    }

    fn cost(&mut self, expr: &'a Expr) -> Cost {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Cost::UNBOUNDED;
        }
        match expr {
            Expr::Repeat { hi: 0, .. } => Cost::ONE,
            Expr::Any { .. }
            | Expr::GeneralNewline { .. }
            | Expr::LiteralBytes { .. }
            | Expr::Delegate { .. } => Cost::BYTE,
            Expr::Literal { val, .. } => Cost { advances: !val.is_empty(), ..Cost::ONE },
            Expr::Empty | Expr::Assertion(_) | Expr::DefineGroup { .. } => Cost::ONE,
            Expr::Concat(all) => {
                all.iter().fold(Cost::default(), |sum, part| sum.then(self.cost(part)))
            }
            Expr::Alt(all) => {
                let ways = all.iter().map(|way| self.cost(way)).reduce(Cost::or);
                Cost::ONE.then(ways.unwrap_or_default())
            }
            Expr::Group(inner) => Cost::ONE.then(self.cost(inner)),
            Expr::AtomicGroup(inner) => Cost::TRY.then(self.cost(inner)),
            Expr::Repeat { child, lo, hi, .. } => self.cost(child).repeated(*lo, *hi),
            Expr::LookAround(inner, LookAround::LookAhead | LookAround::LookBehind) => {
                self.cost(inner).looked()
            }
            Expr::LookAround(inner, LookAround::LookAheadNeg | LookAround::LookBehindNeg) => {
                Cost { steps_back: true, ..self.cost(inner).looked() }
            }
            Expr::Conditional { condition, true_branch, false_branch } => {
                let ways = self.cost(true_branch).or(self.cost(false_branch));
                Cost::TRY.then(self.cost(condition)).then(ways)
            }
            Expr::BacktrackingControlVerb(BacktrackingControlVerb::Fail) => {
                Cost { steps_back: true, ..Cost::TRY }
            }
            Expr::Absent(Absent::Repeater(inner)) => self.cost(inner).looked().repeated(0, 255),
            Expr::SubroutineCall(group) => self.call(*group),
            // The name is compared with what a group has: that is quick.
            Expr::Backref { .. }
            | Expr::BackrefWithRelativeRecursionLevel { .. }
            | Expr::BackrefExistsCondition { .. }
            | Expr::KeepOut
            | Expr::ContinueFromPreviousMatchEnd
            | Expr::BacktrackingControlVerb(_)
            | Expr::Absent(_)
            | Expr::AstNode(..) => Cost::TRY,
        }
    }

    /// A group is part of the program once more. One that calls itself is so many times.
    fn call(&mut self, group: usize) -> Cost {
        let inner = group.checked_sub(1).and_then(|at| self.groups.get(at).copied());
        let Some(inner) = inner.filter(|_| !self.called.contains(&group)) else {
            self.is_recursive = true;
            return Cost::UNBOUNDED;
        };
        self.called.push(group);
        let cost = self.cost(inner);
        self.called.pop();
        Cost::TRY.then(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn counts() {
        check(r"^(?!amq\.).*",                   0, 1_000);
        check(r"^(?!amq\.|tmp\.)[a-z]+\.(in|out)$", 0, 2_000);
        check(r"^(?=.*[a-z])(?=.*[0-9])\w{8,}$", 0, 1_000);
        check(r"^(?:(?!\.\.)[a-z.])+$",          0, 100);
        check(r"^(?:(?:(?!-)[a-z0-9]+)\.?)+$",   0, 1_000);
        check(r"^([a-z]+)(?:\.\1)*$",            0, 2_000);
        check(r"^(?:([a-z])\1?\.?)+$",           0, 2_000);
        check(r"^(?:(?=[a-z]+\.)\w)+$",          0, 6_000);
        check(r"^(?:([a-z]+)(?:-\1)*\.)*$",      0, 3_000);
        // Each look-ahead goes over what the ones around it go over.
        check("(?:(?=a)a){80}",                                    200, 400);
        check("(?:(?=(?:(?=a)a){80})a){80}",                       15_000, 40_000);
        check("(?:(?=(?:(?=(?:(?=a)a){80})a){80})a){80}",          1_000_000, 4_000_000);
        check("(?:(?=(?:(?=(?:(?=a)a)*)a)*)a)*",                   10_000_000, 1_000_000_000);
        check("(?:(?:(?:(?=a)|b){80}){80}){80,}",                  1_000_000, 10_000_000);
        check("(?=(?:(?:(?:(?:a|b)?){80}){80}){80}c\\1?)(d)",      1_000_000, 4_000_000);
        check("((?:(?=a)a){80})(?:(?=\\g<1>)a){80}",               15_000, 40_000);
        check("(a(?=b)\\g<1>?)",                                   u64::MAX, u64::MAX);
        check("(?>(?:(?=(?>(?:(?=a)a)+))a)+)",                     100_000, 1_000_000);
    }

    /// Each group calls the one before twice.
    #[test]
    fn groups_that_call_groups_are_read_in_bounds() {
        let calls = |count: usize| {
            (1..count).map(|group| format!(r"(\g<{group}>\g<{group}>)")).collect::<String>()
        };
        check(&format!("(?:(?=a)a)(a){}(?=x)x", calls(40)), u64::MAX, u64::MAX);
        check(&format!("(?:(a){}){{0}}(?=x)x", calls(40)), 0, 100);
    }

    #[track_caller]
    fn check(pattern: &str, least: u64, most: u64) {
        let steps = steps(pattern);
        assert!((least..=most).contains(&steps), "{pattern}: {steps}");
    }
}
