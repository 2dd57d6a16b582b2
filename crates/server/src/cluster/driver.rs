//! The cluster's thread: what [`Cluster`] decides, over real disks, sockets and time.
//!
//! One task owns it all. It hears what comes over links, what disks have done, what the rest of the process asks, and the time; then
//! it does what the cluster wants done: letters, turns for logs in use, the identity on the disk.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leveret_cluster::{
    Cluster, ClusterActions, DiskOwner as Owner, FilePlace, ForgetError, Identity, Remembered,
    Setup, Standing,
};
use leveret_config::Config;
use leveret_config::cluster::Formation;
use leveret_config::plugins;
use leveret_link::hello::{ClusterId, RaftId, Secret};
use leveret_link::letters::NodeStatus;
use leveret_replica::{Reopened, Settings};
use leveret_topology::Topology;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::alarms::disk_limit_at_work;
use crate::clock::{boot_ms, keep_among, now};
use crate::disk::RealDisk;
use crate::lease::{ALWAYS, Leading};
use crate::proxy::Ends;
use crate::startup::{Basis, choose_defaults, import_files, node_name, resolve};
use crate::storage::{
    DiskOwner, Waker, disk_of_member, options_of_member, refuse_of_one_alone, tell_of_member,
};
use crate::tls::Tls;
use crate::watchdog::WritersWatch;

use super::arrivals::{Arrival, Bringers, RelayedListener};
use super::bell::{Bell, Rung};
use super::handle::{ClusterThread, Duty, Handle, Order, suspended_before};
use super::heard;
use super::links::{LinkNews, LinkSettings, LinkTls, Links, PeerAddress};
use super::names::CopiedNames;
use super::numbers::{self, DiskAlarm, Numbers, SyncsWatch};
use super::standby::Totals;
use super::view::{ClusterView, Lapses};
use super::whole;
use super::workers::Workers;

/// What is taken of what has come, at most, before it is acted upon.
const ROUND: usize = 64;

/// News that may wait: what does not fit waits in the kernel.
const NEWS: usize = 64;

/// How often the driver looks at the time.
const TICK: Duration = Duration::from_millis(20);

/// How often the state is told anew, though nothing else has happened.
const TELL: Duration = Duration::from_secs(1);

/// Between two lines about leases that were over, in ms.
const LAPSES_MS: u64 = 60_000;

/// Logs that are opened anew at a time.
const OPENINGS: usize = 4;

/// Who this node is: in the data directory.
const IDENTITY: &str = "cluster";

/// Its bytes at most.
const IDENTITY_MAX: u64 = 1 << 20;

/// Who this node is, as the data directory says; none if it was never a node of a cluster.
pub(crate) fn read_identity(dir: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let path = dir.join(IDENTITY);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Ok(found) if found.len() > IDENTITY_MAX => anyhow::bail!("{} is damaged", path.display()),
        _ => {
            let bytes = std::fs::read(&path);
            Ok(Some(bytes.with_context(|| format!("cannot read {}", path.display()))?))
        }
    }
}

/// Refuses to start a node alone over what a member of a cluster has.
pub(crate) fn refuse_of_a_member(dir: &Path) -> anyhow::Result<()> {
    let Some(bytes) = read_identity(dir)? else { return Ok(()) };
    let path = dir.join(IDENTITY);
    let identity =
        Identity::read(&bytes).with_context(|| format!("{} is damaged", path.display()))?;
    let Some(membership) = identity.membership else { return Ok(()) };
    let nodes: Vec<_> = membership.members.iter().map(|it| it.name.as_str()).collect();
    anyhow::bail!(
        "{} is that of {}, a node of the cluster {} of {}, and the configuration lists no nodes: what is stored here is in part \
         not agreed upon. Nothing was changed. List them with cluster_formation.classic_config.nodes; or choose another \
         directory with --data-dir",
        dir.display(),
        identity.name,
        membership.cluster,
        nodes.join(", "),
    )
}

/// A node, its name, and who waits until it is forgotten.
type Forgetting = (RaftId, String, oneshot::Sender<Result<(), ForgetError>>);

/// Refuses to begin as a new node over what a member has whose file `cluster` is gone.
fn refuse_without_identity(dir: &Path) -> anyhow::Result<()> {
    let words = dir.join("words");
    anyhow::ensure!(
        !words.exists(),
        "the file {} is missing, and {} is there: this was a member of a cluster, and nothing else says which. Nothing was changed. \
         Restore that file from where it went; or move the whole directory away, `leveret ctl forget_cluster_node` the node on \
         another one, and start this one with an empty directory: it gets all from the others",
        dir.join(IDENTITY).display(),
        words.display()
    );
    Ok(())
}

/// What became of a write of the identity, with its bytes if it failed.
type IdentityWritten = Result<(), (anyhow::Error, Vec<u8>)>;

/// Opens what the node has of its groups, and begins to speak with the other nodes, in a thread of its own.
pub(super) fn start(
    config: &Config,
    formation: Formation,
    basis: &Basis,
    started: Instant,
    waker: &Arc<Waker>,
    bringers: Bringers,
) -> anyhow::Result<(Handle, ClusterThread, Links)> {
    let (dir, own) = (basis.data_dir.clone(), node_name(config));
    let identity = read_identity(&dir)?;
    if identity.is_none() {
        refuse_without_identity(&dir)?;
    }
    let is_member = match &identity {
        Some(bytes) => Identity::read(bytes)
            .with_context(|| format!("{} is damaged", dir.join(IDENTITY).display()))?
            .membership
            .is_some(),
        None => false,
    };
    if !is_member {
        refuse_of_one_alone(&dir)?;
        // The first one that leads imports them, and that may be this one.
        if let Some(path) = &config.access.load_definitions {
            let mut names = Topology::new();
            choose_defaults(config, &mut names)?;
            let skips = config.access.skip_unsupported_definitions;
            import_files(Path::new(path), skips, &mut names)?;
        }
    }
    let bell = Arc::new(Bell::new());
    waker.ring(&bell);
    let (memory, segment_bytes_max) = (basis.memory, config.resources.segment_size.get());
    let shards = basis.shards;
    let open_disk = {
        let (dir, waker) = (dir.clone(), Arc::clone(waker));
        move |owner| disk_of_member(&dir, &waker, local(owner)).map_err(std::io::Error::other)
    };
    let drawn = |_| rand::random::<u64>().max(1);
    let cluster_id = u128::from(drawn(0)) << 64 | u128::from(drawn(1));
    let cluster_id = std::num::NonZero::new(cluster_id).context("drawn")?;
    let status = NodeStatus {
        name: own.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: now().ms(),
        ..NodeStatus::default()
    };
    let (heard, is_copy) = heard::read(&dir)?;
    let setup = Setup {
        name: own,
        listed: formation.nodes.iter().map(|it| it.name.clone()).collect(),
        shards: u32::try_from(shards).unwrap_or(u32::MAX),
        settings: Settings { held_bytes: config.cluster.kept_size.get(), ..Settings::default() },
        seed: rand::random(),
        drawn: (RaftId(drawn(2)), ClusterId(cluster_id)),
        status: status.clone(),
        heard: heard.agreed,
        is_copy,
        open_disk: Box::new(open_disk),
        options: Box::new(move |group, shards| {
            let shards = usize::try_from(shards).unwrap_or(usize::MAX);
            options_of_member(local(Owner::Group(group)), memory, segment_bytes_max, shards)
        }),
    };
    let mut cluster = Cluster::open(identity.as_deref(), setup)?;
    for (group, report) in cluster.take_reports() {
        tell_of_member(&dir, local(Owner::Group(group)), &report);
    }
    let (orders_in, orders) = mpsc::unbounded_channel();
    let (duty, duty_out) = watch::channel(Duty::StandBy);
    let (views, views_out) = watch::channel(Arc::new(ClusterView::of(
        &cluster.status(),
        Lapses::default(),
        &ClusterView::default(),
    )));
    let relayed = Arc::<Totals>::default();
    let leading = Arc::new(Leading::new());
    let sessions_leading = Arc::new(Leading::new());
    sessions_leading.set(ALWAYS);
    numbers::take_told();
    let numbers = Numbers {
        started,
        room: Arc::clone(waker.room()),
        processors: basis.threads as u64,
        plugins: plugins::bits(&plugins::running(config)),
        mem_limit: memory.limit,
        disk_free_limit: config.resources.disk_free_limit.resolve(basis.machine_memory),
        relayed: Arc::clone(&relayed),
        disk: DiskAlarm::default(),
        writers: WritersWatch::default(),
        hangs: false,
        syncs: SyncsWatch::default(),
        is_slow: false,
    };
    waker.room().set_limit(disk_limit_at_work(numbers.disk_free_limit));
    let names = CopiedNames::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let first = begin(&dir, &mut cluster)?;
    let own = {
        let facts = cluster.facts();
        (facts.raft_id.0, facts.start)
    };
    let (news, links) = {
        let _inside = runtime.enter();
        link(formation, link_tls(config, basis.threads)?, &cluster)?
    };
    let mut driver = Driver {
        dir,
        cluster,
        links: links.clone(),
        news,
        bell,
        waker: Arc::clone(waker),
        orders,
        duty,
        views,
        bringers,
        numbers,
        leading: Arc::clone(&leading),
        sessions_leading: Arc::clone(&sessions_leading),
        names: Arc::clone(&names),
        own: status,
        leads: false,
        lapses_told: None,
        leaving: None,
        silent: Vec::new(),
        forgetting: Vec::new(),
        openings: Workers::new("cluster-open", OPENINGS),
        writing: None,
        to_write: None,
        place: heard.place,
        remembering: None,
        reserving: None,
        has_ended: false,
    };
    let thread = std::thread::Builder::new().name("cluster".to_owned());
    let thread = thread.spawn(move || {
        runtime.block_on(async move {
            first.into_iter().for_each(|actions| driver.act(actions));
            driver.run().await;
        });
    })?;
    let handle = Handle {
        own,
        orders: orders_in,
        duty: duty_out,
        views: views_out,
        relayed,
        leading,
        sessions_leading,
        names,
        suspended: suspended_before(),
    };
    Ok((handle, ClusterThread(thread), links))
}

/// Whose disk it is, in this process's words.
fn local(owner: Owner) -> DiskOwner {
    match owner {
        Owner::Words => DiskOwner::Words,
        Owner::Group(0) => DiskOwner::Names,
        Owner::Group(group) => DiskOwner::Shard(usize::try_from(group - 1).unwrap_or(usize::MAX)),
    }
}

/// The other way round.
fn in_cluster(owner: DiskOwner) -> Owner {
    match owner {
        DiskOwner::Words => Owner::Words,
        DiskOwner::Names => Owner::Group(0),
        DiskOwner::Shard(index) => Owner::Group(index as u64 + 1),
    }
}

/// The identity is on the disk before anybody hears of this start. What else is to be done then.
fn begin(
    dir: &Path,
    cluster: &mut Cluster<RealDisk>,
) -> anyhow::Result<Vec<ClusterActions<RealDisk>>> {
    cluster.tick(boot_ms());
    let mut first = cluster.take_actions();
    if let Some(bytes) = first.write_identity.take() {
        whole::replace(dir, IDENTITY, &bytes)?;
        cluster.identity_written();
    }
    Ok(vec![first, cluster.take_actions()])
}

/// What links are encrypted with, if they are to be.
fn link_tls(config: &Config, threads: usize) -> anyhow::Result<Option<LinkTls>> {
    let accepts_plain = config.cluster_tls.accept_plain;
    let of = |settings| Ok(LinkTls { tls: Tls::load_for_nodes(settings)?, accepts_plain, threads });
    config.cluster_tls.settings().map(of).transpose()
}

/// Listens for the other nodes, and calls them.
fn link(
    formation: Formation,
    tls: Option<LinkTls>,
    cluster: &Cluster<RealDisk>,
) -> anyhow::Result<(mpsc::Receiver<LinkNews>, Links)> {
    let facts = cluster.facts();
    let address = resolve(formation.listen.as_deref(), formation.port)
        .with_context(|| format!("cluster.listen, cluster.port = {}", formation.port))?;
    let secret = Secret::new(formation.secret.reveal().as_bytes())?;
    let settings = LinkSettings { listen: vec![address], secret, tls };
    let others = formation.nodes.into_iter().filter(|it| *it.name != *facts.name);
    let peers: Vec<_> =
        others.map(|it| PeerAddress { name: it.name, address: it.address.to_string() }).collect();
    let (tell, news) = mpsc::channel(NEWS);
    let links = Links::start(settings, facts, peers, tell).with_context(|| {
        format!("cannot listen for other nodes on {address}; choose another port with cluster.port")
    })?;
    Ok((news, links))
}

struct Driver {
    dir: PathBuf,
    cluster: Cluster<RealDisk>,
    links: Links,
    news: mpsc::Receiver<LinkNews>,
    bell: Arc<Bell>,
    waker: Arc<Waker>,
    orders: mpsc::UnboundedReceiver<Order>,
    duty: watch::Sender<Duty>,
    views: watch::Sender<Arc<ClusterView>>,
    bringers: Bringers,
    numbers: Numbers,
    leading: Arc<Leading>,
    /// The same for the sessions that are here before this node leads.
    sessions_leading: Arc<Leading>,
    names: Arc<CopiedNames>,
    /// What it says of itself, but for numbers.
    own: NodeStatus,
    /// The broker runs here, or is about to: once it was told to.
    leads: bool,
    /// When it was last told that it had no lease, and how often it had none as of then.
    lapses_told: Option<(u64, u64)>,
    leaving: Option<oneshot::Sender<()>>,
    /// Nodes that were shown as silent.
    silent: Vec<RaftId>,
    /// Nodes that are to be forgotten, and who waits for that.
    forgetting: Vec<Forgetting>,
    /// Logs that are opened anew.
    openings: Workers<(u64, Reopened<RealDisk>)>,
    /// The identity on its way to the disk.
    writing: Option<JoinHandle<IdentityWritten>>,
    /// The one that could not be written.
    to_write: Option<Vec<u8>>,
    /// Where the files were, as far as it is remembered.
    place: Option<FilePlace>,
    /// The file `heard` on its way to the disk.
    remembering: Option<JoinHandle<anyhow::Result<()>>>,
    /// The file `reserve`, too.
    reserving: Option<JoinHandle<std::io::Result<()>>>,
    has_ended: bool,
}

impl Driver {
    async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut tell = tokio::time::interval(TELL);
        tell.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let bell = Arc::clone(&self.bell);
        let mut came = Vec::new();
        while !self.has_ended {
            tokio::select! {
                Some(news) = self.news.recv() => came.push(news),
                () = bell.heard() => self.answer_the_bell(),
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order),
                    // Nobody needs it any more.
                    None => break,
                },
                _ = tick.tick() => {}
                opened = self.openings.next() => match opened {
                    Ok((group, log)) => self.cluster.reopened(group, log),
                    Err(why) => self.fail(&format!("logs cannot be opened anew: {why}")),
                },
                written = written(&mut self.writing) => self.has_written(written),
                written = written(&mut self.remembering) => self.has_remembered(written),
                written = written(&mut self.reserving) => has_reserved(written),
                _ = tell.tick() => {
                    self.numbers.look_at_writes();
                    self.tell();
                    self.keep_reserve();
                    if let Some(bytes) = self.to_write.take() {
                        self.write(bytes);
                    }
                }
            }
            if self.numbers.has_disk_news() {
                self.tell();
            }
            // What has come is heard before a time-out is over that it puts off.
            let more = std::iter::from_fn(|| self.news.try_recv().ok()).take(ROUND);
            came.extend(more);
            // The clock is looked at when all of it is there, as it was sent before.
            let now_ms = boot_ms();
            self.cluster.tell_time(now_ms);
            came.drain(..).for_each(|news| self.hear(news));
            self.cluster.tick(now_ms);
            if !self.cluster.silent().eq(self.silent.iter().copied()) {
                self.silent = self.cluster.silent().collect();
                self.tell();
            }
            let actions = self.cluster.take_actions();
            // Before it is said that another one may lead.
            let lease = self.cluster.lease();
            self.sessions_leading.set(if self.leads { lease } else { ALWAYS });
            if let Some(lapsed_ms) = self.leading.set(lease) {
                self.tell_of_lapse(lapsed_ms, now_ms);
            }
            self.act(actions);
            self.answer_who_forgets();
        }
        self.links.close().await;
    }

    fn hear(&mut self, news: LinkNews) {
        match news {
            LinkNews::Linked(peer) => {
                self.cluster.linked(&peer);
                self.tell();
            }
            LinkNews::Unlinked(id) => {
                self.cluster.unlinked(id);
                self.tell();
            }
            LinkNews::Letter(from, letter) => self.cluster.letter(from, letter),
            LinkNews::Relayed(listener, ends, socket) => self.let_in(listener, ends, socket),
        }
    }

    fn answer_the_bell(&mut self) {
        for who in self.bell.take() {
            match who {
                Rung::Disk(owner) => self.cluster.disk_woke(in_cluster(owner)),
                Rung::Log(group) => self.cluster.log_woke(group),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Lend(reply) => {
                if *self.cluster.standing() == Standing::Leads {
                    let bell = Arc::clone(&self.bell);
                    let logs = self.cluster.lend_logs(|group| {
                        let bell = Arc::clone(&bell);
                        Arc::new(move || bell.ring(Rung::Log(group)))
                    });
                    if let Some(logs) = logs {
                        drop(reply.send(logs));
                    }
                }
            }
            Order::Leave(reply) => {
                self.cluster.stop();
                self.leaving = Some(reply);
            }
            Order::HandOver => {
                tracing::info!("another node is to lead in place of this one");
                self.cluster.hand_over();
            }
            Order::Forget(name, reply) => match self.cluster.forget(&name) {
                Ok(id) => {
                    tracing::info!(node = name, %id, "the cluster is to forget a node");
                    self.forgetting.push((id, name, reply));
                }
                Err(why) => _ = reply.send(Err(why)),
            },
        }
    }

    /// Those who asked for a node to be forgotten, once it is, or is not to be.
    fn answer_who_forgets(&mut self) {
        let Self { cluster, forgetting, .. } = self;
        let mut is_told = false;
        for (id, name, reply) in std::mem::take(forgetting) {
            let done = match cluster.has_forgotten(id) {
                // Who asked may be gone: it is done all the same.
                Ok(false) if !reply.is_closed() => {
                    forgetting.push((id, name, reply));
                    continue;
                }
                Ok(false) => continue,
                Ok(true) => {
                    tracing::info!(node = name, %id, "the cluster has forgotten a node");
                    Ok(())
                }
                Err(why) => Err(why),
            };
            _ = reply.send(done);
            is_told = true;
        }
        if is_told {
            self.tell();
        }
    }

    fn act(&mut self, actions: ClusterActions<RealDisk>) {
        let ClusterActions {
            names,
            send,
            wakes,
            reopen,
            write_identity: identity,
            write_heard,
            links,
            standing,
            must_restart,
            left,
            room,
            clocks,
            failed,
            told,
            noted,
        } = actions;
        if let Some(room) = room {
            self.waker.room().set_of_majority(room);
        }
        if let Some(ahead_ms) = clocks {
            keep_among(ahead_ms);
        }
        for text in told {
            // What another node causes again and again is limited as what a client causes.
            tracing::warn!(from = "other nodes", "{text}");
        }
        if let (Some(shards), false) = (self.cluster.shards(), names.is_empty()) {
            self.names.tell(shards, names);
        }
        for text in noted {
            tracing::info!("{text}");
        }
        for (group, log) in reopen {
            // As long as a start: the beats of all groups are not to wait for it.
            if let Err(why) = self.openings.begin(move || (group, log.open())) {
                self.fail(&format!("the log of group {group} cannot be opened anew: {why}"));
            }
        }
        if let Some((facts, members)) = links {
            self.links.set_members(facts, members);
        }
        if let Some(bytes) = identity {
            self.write(bytes);
        }
        if let Some(remembered) = write_heard {
            self.remember(remembered);
        }
        for (to, letter) in send {
            self.links.send(to, letter);
        }
        if let Some(standing) = standing {
            tracing::info!(standing = standing.name(), "what this node is to its cluster");
            self.take_place(&standing);
            self.tell();
        }
        for group in wakes {
            self.waker.wake_owner(local(Owner::Group(group)));
        }
        if must_restart {
            self.begin_anew();
        }
        if let Some(why) = failed {
            self.fail(&why);
        }
        if left && let Some(reply) = self.leaving.take() {
            let _ = reply.send(());
            self.has_ended = true;
        }
    }

    /// Off this thread: a slow disk is not to keep the other nodes from hearing of this one.
    fn write(&mut self, bytes: Vec<u8>) {
        let dir = self.dir.clone();
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let written = whole::replace(&dir, IDENTITY, &bytes);
            written.map_err(|error| (error, bytes))
        }));
    }

    /// Off this thread, too, one at a time: a disk may stand still. If it fails it is tried again.
    fn keep_reserve(&mut self) {
        let room = Arc::clone(self.waker.room());
        if self.reserving.is_none() && room.wants_reserve() {
            self.reserving = Some(tokio::task::spawn_blocking(move || room.fill_reserve()));
        }
    }

    fn has_written(&mut self, written: IdentityWritten) {
        match written {
            Ok(()) => self.cluster.identity_written(),
            Err((error, bytes)) => {
                // What needs it waits for it. Nothing that is served does.
                tracing::warn!(from = IDENTITY, "{error:#}; it is tried again");
                self.to_write = Some(bytes);
            }
        }
    }

    /// Once a second at most, and nothing waits for it.
    fn remember(&mut self, remembered: Remembered) {
        let (dir, Remembered { agreed, is_sure }) = (self.dir.clone(), remembered);
        if is_sure {
            self.place = heard::place(&dir);
        }
        let place = self.place;
        self.remembering =
            Some(tokio::task::spawn_blocking(move || heard::write(&dir, place, agreed)));
    }

    fn has_remembered(&mut self, written: anyhow::Result<()>) {
        if let Err(error) = &written {
            tracing::warn!(from = heard::HEARD, "{error:#}; it is tried again");
        }
        self.cluster.heard_written(written.is_ok());
    }

    /// Who led once begins anew before it leads again: its logs were lent, and never come back.
    fn take_place(&mut self, standing: &Standing) {
        match standing {
            Standing::Leads if !self.leads => {
                self.leads = true;
                self.duty.send_replace(Duty::Lead);
            }
            Standing::Leads => {}
            _ if self.leads => self.begin_anew(),
            _ => {}
        }
    }

    fn begin_anew(&mut self) {
        // A stop that was begun goes on to its end.
        if self.leaving.is_none() {
            self.duty.send_replace(Duty::BeginAnew);
        }
    }

    fn fail(&mut self, why: &str) {
        tracing::error!("this node cannot be a part of its cluster any more: {why}");
        self.duty.send_replace(Duty::End(why.to_owned()));
        self.has_ended = true;
    }

    /// Once a minute at most: it may be that of a machine which is always late.
    fn tell_of_lapse(&mut self, lapsed_ms: u64, now_ms: u64) {
        let count = self.leading.lapses().count;
        let (told_ms, before) = self.lapses_told.unwrap_or_default();
        if self.lapses_told.is_some() && now_ms < told_ms.saturating_add(LAPSES_MS) {
            return;
        }
        self.lapses_told = Some((now_ms, count));
        tracing::warn!(
            lapsed_ms,
            times = count - before,
            "a majority of the nodes answered late: meanwhile this one, which leads, gave out, took and answered nothing. Machines or \
             the network between them may be too slow or too busy"
        );
    }

    /// Tells the process and, by its status, the other nodes.
    fn tell(&mut self) {
        if matches!(self.cluster.standing(), Standing::Follows(_)) {
            self.names.heard(Duration::ZERO);
        }
        let numbers = self.numbers.now();
        self.cluster.set_status(NodeStatus { numbers, ..self.own.clone() }, boot_ms());
        let (status, lapses) = (self.cluster.status(), self.leading.lapses());
        let mut view = ClusterView::of(&status, lapses, &self.views.borrow());
        view.explain(self.links.peers());
        self.views.send_replace(Arc::new(view));
    }

    /// A client of another node, which takes this one for the one that leads.
    fn let_in(&self, listener: RelayedListener, ends: Ends, socket: TcpStream) {
        if *self.cluster.standing() != Standing::Leads {
            return;
        }
        self.bringers.bring(listener, Arrival { socket, ends });
    }
}

/// Where there is no room there will be some, or another try tells the same.
fn has_reserved(written: std::io::Result<()>) {
    if let Err(error) = written {
        tracing::debug!(from = "reserve", "the file 'reserve' cannot be made whole: {error}");
    }
}

/// Waits until something is written; for ever if nothing is.
async fn written<T>(writing: &mut Option<JoinHandle<T>>) -> T {
    let Some(task) = writing else { return std::future::pending().await };
    let written = task.await;
    *writing = None;
    written.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_its_identity_is_told_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        refuse_without_identity(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("words")).unwrap();
        let why = refuse_without_identity(dir.path()).unwrap_err().to_string();
        assert!(why.contains("forget_cluster_node"), "{why}");
    }
}
