//! Names in pages: the read lock of the names is held to copy a few rows, never to make something of them.
//!
//! A declare that waits for that lock stops every turn of the node that begins after it (see
//! [`leveret_server::locks`]), so what a list holds it for is bounded in rows and in time. Between two pages the thread
//! turns to its other requests: ten lists at once delay a health check by ten pages, not by ten lists.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use leveret_server::node::Node;
use leveret_topology::Topology;
use tokio::task::yield_now;

/// Most names that are copied in one hold of the lock.
pub const ROWS: usize = 256;

/// Longest time that names are copied in one hold of the lock: rows may have large arguments.
const HOLD: Duration = Duration::from_micros(500);

/// Longest time that a request keeps the thread before others have their turn.
const SLICE: Duration = Duration::from_millis(1);

/// What `copy` makes of each key, without those that are gone. The names are held for a page at a time.
pub async fn copied<K: Send, T: Send>(
    node: &Node,
    keys: impl IntoIterator<Item = K, IntoIter: Send> + Send,
    mut copy: impl FnMut(&Topology, K) -> Option<T> + Send,
) -> Vec<T> {
    let mut keys = keys.into_iter();
    let mut found = Vec::with_capacity(keys.size_hint().0);
    loop {
        let one = |topology: &Topology| {
            found.extend(copy(topology, keys.next()?));
            Some(())
        };
        if page(node, one) {
            return found;
        }
        yield_now().await;
    }
}

/// About how many bytes of arguments are copied before rows are made of them.
const BYTES: u64 = 256 << 10;

/// What `copy` makes of the first of these keys, and about how many bytes that takes: of as many as do not take much
/// together, at least one.
pub async fn some<K: Sync, T: Send>(
    node: &Node,
    keys: &[K],
    mut copy: impl FnMut(&Topology, &K) -> (T, u64) + Send,
) -> Vec<T> {
    let (mut found, mut bytes) = (Vec::with_capacity(keys.len()), 0);
    loop {
        let one = |topology: &Topology| {
            let key = keys.get(found.len()).filter(|_| bytes <= BYTES)?;
            let (made, more) = copy(topology, key);
            bytes += more;
            found.push(made);
            Some(())
        };
        if page(node, one) {
            return found;
        }
        yield_now().await;
    }
}

/// How many of these are the first that do not take much together, at least one.
pub fn first<T>(items: &[T], bytes: impl Fn(&T) -> u64) -> usize {
    let mut sum = 0;
    let is_within = |item: &&T| {
        let is_within = sum <= BYTES;
        sum += bytes(item);
        is_within
    };
    items.iter().take_while(is_within).count()
}

/// Calls `one` with the names until the page is full. Whether `one` had no more.
fn page(node: &Node, mut one: impl FnMut(&Topology) -> Option<()>) -> bool {
    let topology = node.topology();
    let since = Instant::now();
    let mut has_more = true;
    for _ in 0..ROWS {
        has_more = one(&topology).is_some();
        if !has_more || since.elapsed() > HOLD {
            break;
        }
    }
    drop(topology);
    node.watched.held_names(since);
    !has_more
}

/// Items that are sorted before others have their turn on the thread.
const RUN: usize = 512;

/// Sorts, and shares the thread: runs first, then two and two are merged. What is equal stays in its order.
pub async fn sort<T: Send>(items: &mut Vec<T>, order: impl Fn(&T, &T) -> Ordering + Send + Sync) {
    if items.len() <= RUN {
        items.sort_by(order);
        return;
    }
    let mut slice = Slice::begin();
    let mut runs = Vec::with_capacity(items.len().div_ceil(RUN));
    let mut rest = std::mem::take(items).into_iter();
    while rest.len() > 0 {
        let mut run: Vec<T> = rest.by_ref().take(RUN).collect();
        run.sort_by(&order);
        runs.push(run);
        slice.share().await;
    }
    while runs.len() > 1 {
        let mut longer = Vec::with_capacity(runs.len().div_ceil(2));
        let mut shorter = runs.into_iter();
        while let Some(first) = shorter.next() {
            longer.push(match shorter.next() {
                Some(second) => merge(first, second, &order, &mut slice).await,
                None => first,
            });
        }
        runs = longer;
    }
    *items = runs.pop().unwrap_or_default();
}

/// Two runs as one.
async fn merge<T: Send>(
    first: Vec<T>,
    second: Vec<T>,
    order: &(impl Fn(&T, &T) -> Ordering + Send + Sync),
    slice: &mut Slice,
) -> Vec<T> {
    let mut merged = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    loop {
        for _ in 0..RUN {
            let next = match (first.peek(), second.peek()) {
                (Some(a), Some(b)) if order(a, b).is_gt() => second.next(),
                (Some(_), _) => first.next(),
                (None, Some(_)) => second.next(),
                (None, None) => return merged,
            };
            merged.extend(next);
        }
        slice.share().await;
    }
}

/// Lets many items go, some at a time.
pub async fn let_go<T: Send>(items: Vec<T>) {
    let mut slice = Slice::begin();
    let mut rest = items.into_iter();
    while rest.by_ref().take(RUN).count() > 0 {
        slice.share().await;
    }
}

/// Shares the thread: for work that takes long and holds nothing.
#[derive(Debug)]
pub struct Slice(Instant);

impl Slice {
    /// Begins now.
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Lets others have their turn on the thread when this one was long enough.
    pub async fn share(&mut self) {
        if self.0.elapsed() > SLICE {
            yield_now().await;
            self.0 = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the standard library sorts, for lengths about whole runs, and without keeping the thread.
    #[test]
    fn sorted_in_runs() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for len in [0, 1, 2, RUN - 1, RUN, RUN + 1, 2 * RUN, 5 * RUN + 3, 8 * RUN] {
            // Few keys, so that many are equal and their order tells.
            let items: Vec<_> = (0..len).map(|at| (at * 7919 % 101, at)).collect();
            let mut wanted = items.clone();
            wanted.sort_by_key(|it| it.0);
            let mut got = items;
            runtime.block_on(sort(&mut got, |a, b| a.0.cmp(&b.0)));
            assert_eq!(got, wanted, "{len}");
        }
    }

    /// A sort of many items that are dear to compare never keeps the thread for long.
    #[test]
    fn a_sort_shares_the_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let compared = std::sync::atomic::AtomicUsize::new(0);
            let mut items: Vec<_> = (0..64 * RUN).map(|at| at * 7919 % 32_771).collect();
            let mut work = std::pin::pin!(sort(&mut items, |a, b| {
                compared.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let since = Instant::now();
                while since.elapsed() < Duration::from_micros(1) {
                    std::hint::spin_loop();
                }
                a.cmp(b)
            }));
            let mut most = 0;
            let taken = || compared.swap(0, std::sync::atomic::Ordering::Relaxed);
            std::future::poll_fn(|cx| {
                let outcome = work.as_mut().poll(cx);
                most = most.max(taken());
                outcome
            })
            .await;
            assert!(most <= 16 * RUN, "{most} comparisons in one go");
        });
    }
}
