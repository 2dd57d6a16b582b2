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

/// Calls `one` with the names until the page is full. Whether `one` had no more.
fn page(node: &Node, mut one: impl FnMut(&Topology) -> Option<()>) -> bool {
    let topology = node.topology();
    let since = Instant::now();
    for _ in 0..ROWS {
        if one(&topology).is_none() {
            return true;
        }
        if since.elapsed() > HOLD {
            break;
        }
    }
    false
}

/// Items that are sorted before others have their turn on the thread.
const SORTED: usize = 4096;

/// Sorts, and shares the thread: the parts first, which makes the whole cheap.
pub async fn sort<T: Send>(items: &mut [T], order: impl Fn(&T, &T) -> Ordering + Send + Sync) {
    if items.len() > SORTED {
        for some in items.chunks_mut(SORTED) {
            some.sort_by(&order);
            yield_now().await;
        }
    }
    items.sort_by(order);
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
