//! The network of a cluster of this machine: a namespace for each node, a bridge between them, links that can be cut.
//!
//! ```text
//!   clients: the bridge lvt-br, 10.213.87.1
//!      |-- lvt-0 ---- eth0, 10.213.87.11, in the namespace lvt-0
//!      |-- lvt-1 ---- eth0, 10.213.87.12, in the namespace lvt-1
//! ```
//!
//! A cut is an entry in the sender's table of neighbours: the receiver gets a hardware address that nobody has, so what is sent to it vanishes.
//! That is one way; nothing else has to be there than `ip`.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::install;
use crate::steps::succeed;

/// The name of the bridge.
const BRIDGE: &str = "lvt-br";
/// What addresses begin with. Nobody else is expected to have that one.
const SUBNET: &str = "10.213.87";
/// A hardware address that nobody has.
const NOBODY: &str = "02:00:00:00:00:01";

/// Ends what runs in the namespaces, and removes them, the bridge and small disks, whoever made them.
const REMOVE: &str = r#"
for name in $(ip netns list | sed -n 's/^\(lvt-[0-9]*\).*/\1/p'); do
  pids=$(ip netns pids "$name")
  [ -n "$pids" ] && kill -9 $pids
  ip link del "$name"
  ip netns del "$name"
done
ip link del lvt-br
sed -n 's/^leveret-cluster-disk \([^ ]*\) .*/\1/p' /proc/mounts | while read -r dir; do
  umount -l "$dir"
done
"#;

/// Where somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// The node with this number.
    Node(usize),
    /// On the bridge: clients.
    Clients,
}

impl Endpoint {
    fn address(self) -> String {
        match self {
            Self::Node(number) => address(number),
            Self::Clients => format!("{SUBNET}.1"),
        }
    }
}

/// The address of a node.
pub(super) fn address(number: usize) -> String {
    format!("{SUBNET}.{}", 11 + number)
}

/// The network, while this is there.
pub(super) struct Net {
    nodes: usize,
    cuts: Vec<(Endpoint, Endpoint)>,
    /// Removes everything when its input ends: also when this program is killed.
    caretaker: Child,
}

impl Net {
    /// Whether this user of this machine can make it; why not.
    pub(super) fn is_possible() -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Err("it needs root".to_owned());
        }
        install::program("ip", "iproute2").map_err(|error| format!("{error:#}"))?;
        install::program("setpriv", "util-linux").map_err(|error| format!("{error:#}"))?;
        remove();
        let name = "lvt-0";
        let made = ip(&["netns", "add", name])
            .and_then(|()| ip(&["link", "add", BRIDGE, "type", "bridge"]));
        remove();
        made.map_err(|error| format!("{error:#}"))
    }

    /// Makes it for so many nodes.
    pub(super) fn make(nodes: usize) -> anyhow::Result<Self> {
        remove();
        // First: from here on nothing can stay behind.
        let caretaker = Command::new("sh")
            .args(["-c", &format!("trap '' INT HUP TERM\nread -r _\n{REMOVE}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting sh")?;
        let net = Self { nodes, cuts: Vec::new(), caretaker };
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["address", "add", &format!("{SUBNET}.1/24"), "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        for number in 0..nodes {
            let name = name(number);
            ip(&["netns", "add", &name])?;
            ip(&["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            ip(&["link", "set", &name, "master", BRIDGE, "up"])?;
            let own = format!("{}/24", address(number));
            ip(&["-n", &name, "address", "add", &own, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(net)
    }

    /// What one sends to the other vanishes from now on.
    pub(super) fn cut(&mut self, from: Endpoint, to: Endpoint) -> anyhow::Result<()> {
        let entry = ["neigh", "replace", &to.address(), "lladdr", NOBODY, "dev"];
        at(from, &entry, &["nud", "permanent"])?;
        self.cuts.push((from, to));
        Ok(())
    }

    /// Cuts a node off from the other nodes, both ways.
    pub(super) fn cut_off(&mut self, number: usize) -> anyhow::Result<()> {
        self.cut_speech(number)?;
        self.cut_hearing(number)
    }

    /// The other nodes do not hear it any more; it hears them.
    pub(super) fn cut_speech(&mut self, number: usize) -> anyhow::Result<()> {
        for other in (0..self.nodes).filter(|it| *it != number) {
            self.cut(Endpoint::Node(number), Endpoint::Node(other))?;
        }
        Ok(())
    }

    /// It does not hear the other nodes any more; they hear it.
    pub(super) fn cut_hearing(&mut self, number: usize) -> anyhow::Result<()> {
        for other in (0..self.nodes).filter(|it| *it != number) {
            self.cut(Endpoint::Node(other), Endpoint::Node(number))?;
        }
        Ok(())
    }

    /// Everybody hears everybody again.
    pub(super) fn heal(&mut self) -> anyhow::Result<()> {
        for (from, to) in self.cuts.drain(..) {
            at(from, &["neigh", "del", &to.address(), "dev"], &[])?;
        }
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.caretaker.stdin.take());
        let _ = self.caretaker.wait();
    }
}

/// What runs a program in the namespace of a node. It ends with the thread that starts it.
pub(super) fn in_namespace(number: usize) -> Vec<String> {
    ["ip", "netns", "exec", &name(number)].map(str::to_owned).to_vec()
}

/// The name of a node's namespace, and of its link to the bridge.
fn name(number: usize) -> String {
    format!("lvt-{number}")
}

/// Runs `ip` for a table of this place, with the name of its device in between.
fn at(place: Endpoint, before: &[&str], behind: &[&str]) -> anyhow::Result<()> {
    let (namespace, device) = match place {
        Endpoint::Node(number) => (Some(name(number)), "eth0"),
        Endpoint::Clients => (None, BRIDGE),
    };
    let mut words = Vec::new();
    if let Some(namespace) = &namespace {
        words.extend(["-n", namespace]);
    }
    words.extend(before);
    words.push(device);
    words.extend(behind);
    ip(&words)
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    succeed(Command::new("ip").args(words))
}

/// What a run that was ended in an unusual way has left is removed.
fn remove() {
    let mut command = Command::new("sh");
    command.args(["-c", REMOVE]).stdin(Stdio::null());
    // Mostly there is nothing, and every line of it complains.
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Two such networks cannot be on one machine: waits until nobody else has one.
pub(super) fn alone() -> anyhow::Result<std::fs::File> {
    let path = std::env::temp_dir().join("leveret-cluster.lock");
    let file = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
    if file.try_lock().is_err() {
        println!("another run has the network; waiting for its end");
        std::io::stdout().flush()?;
        file.lock().context("waiting for another run")?;
    }
    ensure!(path.exists(), "{} has vanished", path.display());
    Ok(file)
}
