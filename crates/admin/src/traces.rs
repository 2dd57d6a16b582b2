//! Traces: copies of a vhost's messages, written to files, as RabbitMQ's tracing plugin writes them.
//!
//! ```text
//!  amq.rabbitmq.trace -> a queue of the trace -> a session inside the node -> batches -> a thread -> NAME.log
//!                        max_waiting             on this crate's thread       ROOM       may block
//! ```
//!
//! Nobody waits for a trace. Its thread may stand still with the disk: then batches are full, the session takes nothing more
//! from its queue, and the queue drops its oldest copies, which are counted and told in the file. A trace ends with the process.
//!
//! From its beginning to its end a trace has its file's name and an [`Ending`]: whoever ends traces sees those, too, that are
//! still to begin, and what their beginning waits for is given up. The task of a trace does all that comes after its file is
//! open, so that no request that is cut off leaves half of it.

mod ending;
pub(crate) mod files;
mod term;
mod text;
mod writer;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use leveret_amqp::method::{Method, basic, queue};
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::message::AdminCommand;
use leveret_broker::numbers::QueueNumbers;
use leveret_client::Event;
use leveret_config::options::TracingOptions;
use leveret_server::locks::{Rank, Ranked};
use leveret_server::node::Node;
use leveret_topology::rights::Admitted;
use leveret_topology::{By, QueueId, TRACE_QUEUES, VhostId};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::http::Fault;
use crate::ops::direct::{Closed, Direct, is};
use crate::ops::{ask, facts};
use ending::{Ending, Living};
pub(crate) use text::Format;
use writer::{Batch, Progress, Writer};

/// Traces that may be there, those that have ended among them. Each has a thread, a queue and a file.
const TRACES_MAX: usize = 16;

/// KiB of records that may be on their way to a trace's thread. A message that is larger goes alone.
const ROOM_KIB: u32 = 4 << 10;

/// How long a disk may take to open a trace's file.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of `tracing.max_waiting` for which one copy may wait, however small it is.
const COPY_BYTES: i64 = 512;

/// How often it is looked at whether the queue of a trace dropped something.
const LOOK: Duration = Duration::from_secs(1);

/// What traces copy from.
const TRACE_EXCHANGE: &str = "amq.rabbitmq.trace";

/// A trace's consumer.
const TAG: &str = "trace";

/// The traces of a node.
#[derive(Debug)]
pub(crate) struct Traces {
    node: Arc<Node>,
    options: TracingOptions,
    dir: PathBuf,
    all: Ranked<All>,
    /// One permit, held by whoever has a vhost traced or not: for its first or last trace, or because the operator wishes so.
    changing: Semaphore,
    /// Whether vhosts with traces are to be traced without them, too.
    wished: Ranked<BTreeMap<VhostId, bool>>,
}

/// What is there.
#[derive(Debug, Default)]
struct All {
    traces: BTreeMap<Key, Arc<Trace>>,
    /// Names of files that are written or deleted. A trace has its file from before it is opened until its thread has ended,
    /// however long the disk takes.
    files: BTreeMap<String, Use>,
    /// The node stops: no more traces begin.
    is_stopping: bool,
}

/// What a file is used for.
#[derive(Debug)]
enum Use {
    Deleted,
    /// A trace of this vhost writes it, or is to.
    Written {
        vhost: String,
        user: String,
        progress: Arc<Progress>,
        ending: Arc<Ending>,
    },
}

/// A file that nobody else writes or deletes.
#[derive(Debug)]
pub(crate) struct Owned {
    traces: Arc<Traces>,
    file: String,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.traces.all.lock().files.remove(&self.file);
    }
}

/// Vhost and name.
type Key = (String, String);

/// What a trace is to be.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) vhost: String,
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) pattern: String,
    pub(crate) max_payload_bytes: Option<u64>,
    /// In whose name; none for the user of the configuration.
    pub(crate) username: Option<String>,
}

/// A trace.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) asked: Asked,
    /// The name of its file.
    pub(crate) file: String,
    /// Its queue.
    pub(crate) queue: String,
    queue_id: QueueId,
    /// What is traced: another vhost may have the name later.
    vhost_id: VhostId,
    progress: Arc<Progress>,
    /// Nothing more is taken.
    is_over: AtomicBool,
    ending: Arc<Ending>,
}

/// How far a trace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceState {
    /// Why nothing more is written.
    pub(crate) stopped: Option<String>,
    pub(crate) written: u64,
    pub(crate) not_written: u64,
    pub(crate) file_bytes: u64,
}

impl Trace {
    /// Whether it takes messages.
    pub(crate) fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Acquire) && self.progress.why.get().is_none()
    }

    /// How far it is.
    pub(crate) fn state(&self) -> TraceState {
        let progress = &self.progress;
        TraceState {
            stopped: progress.why.get().cloned(),
            written: progress.written.load(Ordering::Relaxed),
            not_written: progress.lost.load(Ordering::Relaxed),
            file_bytes: progress.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Traces {
    /// None yet.
    pub(crate) fn new(node: Arc<Node>, options: TracingOptions, dir: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            node,
            options,
            dir,
            all: Ranked::new(Rank::Above, All::default()),
            changing: Semaphore::new(1),
            wished: Ranked::new(Rank::Above, BTreeMap::new()),
        })
    }

    /// Where files are.
    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    /// Name and password that are used where a trace is made without.
    pub(crate) fn user(&self) -> (String, String) {
        (self.options.username.clone(), self.options.password.reveal().to_owned())
    }

    /// All of them, by vhost and name.
    pub(crate) fn all(&self) -> Vec<Arc<Trace>> {
        self.all.lock().traces.values().cloned().collect()
    }

    /// One of them.
    pub(crate) fn get(&self, vhost: &str, name: &str) -> Option<Arc<Trace>> {
        self.all.lock().traces.get(&(vhost.to_owned(), name.to_owned())).cloned()
    }

    /// A file to be deleted, unless a trace has it.
    pub(crate) fn own_to_delete(self: &Arc<Self>, file: &str) -> Result<Owned, Fault> {
        let mut all = self.all.lock();
        match all.files.get(file) {
            Some(Use::Written { vhost, .. }) => {
                let name = files::trace_of(file);
                return Err(Fault::bad(format!(
                    "the trace '{name}' of vhost '{vhost}' writes to the file: stop it first"
                )));
            }
            Some(Use::Deleted) => return Err(Fault::bad("the file is being deleted")),
            None => all.files.insert(file.to_owned(), Use::Deleted),
        };
        Ok(Owned { traces: Arc::clone(self), file: file.to_owned() })
    }

    /// The file of a trace that is to be made in a user's name.
    fn own_to_write(
        self: &Arc<Self>,
        asked: &Asked,
        user: String,
        progress: Arc<Progress>,
    ) -> Result<(Owned, Living), Fault> {
        let file = files::of_trace(&asked.name).ok_or_else(|| Fault::bad("invalid trace name"))?;
        let mut all = self.all.lock();
        if all.is_stopping {
            return Err(stopping());
        }
        let key = (asked.vhost.clone(), asked.name.clone());
        if all.traces.get(&key).is_some_and(|trace| trace.is_running()) {
            return Err(Fault::bad("the trace is there already: stop it first"));
        }
        match all.files.get(&file) {
            Some(Use::Written { vhost, .. }) => {
                return Err(Fault::bad(format!(
                    "the file {file} is written by the trace of this name in vhost '{vhost}'"
                )));
            }
            Some(Use::Deleted) => {
                return Err(Fault::bad(format!("the file {file} is being deleted")));
            }
            None => {}
        }
        // What is left of one that has ended makes way.
        let ended = all
            .traces
            .iter()
            .filter(|(of, trace)| **of != key && !all.files.contains_key(&trace.file));
        if ended.count() + all.files.len() >= TRACES_MAX {
            return Err(Fault::bad(format!("there are {TRACES_MAX} traces, and no more may be")));
        }
        let is_written = |it: &&Use| matches!(it, Use::Written { .. });
        let writing = all.files.values().filter(is_written).count() as u64;
        let (each, total) = (self.options.max_waiting.get(), self.options.max_waiting_total.get());
        if each * (writing + 1) > total {
            return Err(Fault::bad(format!(
                "{writing} traces are running, and one more with tracing.max_waiting, {each} bytes, would \
                 exceed tracing.max_waiting_total, {total} bytes: stop one first"
            )));
        }
        let living = Living::default();
        let (vhost, ending) = (asked.vhost.clone(), living.ending());
        all.files.insert(file.clone(), Use::Written { vhost, user, progress, ending });
        drop(all);
        Ok((Owned { traces: Arc::clone(self), file }, living))
    }

    /// Makes a trace, in the name of a user who may open its vhost. From now on all is written that its pattern fits.
    ///
    /// One that somebody else ends before it has begun is refused, and nothing is left of it but its file.
    pub(crate) async fn create(
        self: &Arc<Self>,
        by: Box<By>,
        asked: Asked,
        admitted: Admitted,
    ) -> Result<(), Fault> {
        let (user, is_internal) = (admitted.user.to_string(), admitted.rights.is_none());
        let progress = Arc::new(Progress::default());
        let (owned, living) = self.own_to_write(&asked, user.clone(), Arc::clone(&progress))?;
        // Whoever deletes the user from now on sees the trace.
        if is_internal && self.node.topology().user(&user).is_none() {
            return Err(cannot_have(&deleted(&user)));
        }
        let ending = living.ending();
        let opened = tokio::select! {
            opened = self.open(owned, &asked, admitted) => opened?,
            _ = ending.asked() => return Err(self.ended_early(&ending, &progress)),
        };
        let (direct, (queue, queue_id, vhost_id), file, bytes, owned) = opened;
        progress.bytes.store(bytes, Ordering::Relaxed);
        let key = (asked.vhost.clone(), asked.name.clone());
        let trace = Arc::new(Trace {
            asked,
            file: owned.file.clone(),
            queue,
            queue_id,
            vhost_id,
            progress: Arc::clone(&progress),
            is_over: AtomicBool::new(false),
            ending: Arc::clone(&ending),
        });
        let (batches, written) = self.start_thread(&trace, file, owned)?;
        self.all.lock().traces.insert(key, Arc::clone(&trace));
        let (begins, begun) = oneshot::channel();
        let (own, of_task) = (Arc::clone(self), Arc::clone(&trace));
        tokio::spawn(async move {
            own.run(of_task, direct, batches, written, by, begins).await;
            drop(living);
        });
        let begun = begun.await.unwrap_or_else(|_| Err(stopping()));
        if begun.is_err() {
            ending.end().await;
        }
        begun
    }

    /// Why a trace has not begun that somebody else ended: its user is gone, or the node stops.
    fn ended_early(&self, ending: &Ending, progress: &Progress) -> Fault {
        match progress.why.get() {
            Some(why) if ending.is_by_others() => cannot_have(why),
            _ => stopping(),
        }
    }

    /// What a trace needs before it can begin: the session that gets its messages, its queue, its file and the file's size.
    async fn open(
        &self,
        owned: Owned,
        asked: &Asked,
        admitted: Admitted,
    ) -> Result<(Direct, (String, QueueId, VhostId), File, u64, Owned), Fault> {
        let peer = format!("trace {}", asked.name);
        let opened = Direct::open(&self.node, admitted, &asked.vhost, peer).await;
        let mut direct = opened.map_err(refused)?;
        let queue = self.consume(&mut direct, &asked.pattern).await.map_err(refused)?;
        let (queue_id, vhost_id) = {
            let topology = self.node.topology();
            let vhost = topology.vhost(&asked.vhost).ok_or_else(Fault::not_found)?.id;
            (topology.queue(vhost, &queue).ok_or_else(Fault::not_found)?.id, vhost)
        };
        // After all that may be refused: a file that is made is used.
        let (file, bytes, owned) = self.open_file(owned).await?;
        Ok((direct, (queue, queue_id, vhost_id), file, bytes, owned))
    }

    /// Opens a trace's file. Its size, and the file's name, which a disk that does not answer keeps.
    async fn open_file(&self, owned: Owned) -> Result<(File, u64, Owned), Fault> {
        let (dir, file_name) = (self.dir.clone(), owned.file.clone());
        let path = dir.join(&file_name).display().to_string();
        let opening = tokio::task::spawn_blocking(move || {
            let file = files::open_to_append(&dir, &owned.file)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes, owned))
        });
        let opened = timeout(OPEN_PATIENCE, opening).await.map_err(|_| {
            Fault::unavailable(format!(
                "the file {path} cannot be written: the disk does not answer"
            ))
        })?;
        let opened = opened.map_err(|_| stopping())?;
        let opened = opened.map_err(|error: io::Error| {
            let why = format!("the file {path} cannot be written: {error}");
            match files::is_unfit(&error) {
                true => Fault::bad(why),
                false => Fault::unavailable(why),
            }
        })?;
        let max = self.options.max_file_size.get();
        if opened.1 >= max {
            return Err(Fault::bad(format!(
                "the file {file_name} has reached tracing.max_file_size, {max} bytes: delete it, or \
                 name the trace otherwise"
            )));
        }
        Ok(opened)
    }

    /// Declares the queue of a trace, binds it and consumes from it. Its name.
    async fn consume(&self, direct: &mut Direct, pattern: &str) -> Result<String, Closed> {
        let mut arguments = Table::new();
        let most = i64::try_from(self.options.max_waiting.get()).unwrap_or(i64::MAX);
        arguments.push("x-max-length-bytes", Value::I64(most));
        // A copy takes more than its body, which may be empty.
        arguments.push("x-max-length", Value::I64(most / COPY_BYTES));
        arguments.push("x-overflow", "drop-head");
        arguments.push("x-name-prefix", TRACE_QUEUES);
        let arguments = arguments.to_bytes();
        let declare = queue::Declare {
            queue: "",
            exclusive: true,
            arguments: RawTable::unchecked(&arguments),
            ..queue::Declare::default()
        };
        let name = |event: &Event<'_>| match event {
            Event::Method { method: Method::QueueDeclareOk(ok), .. } => Some(ok.queue.to_owned()),
            _ => None,
        };
        let queue = direct.call(&declare, name).await?;
        let bind = queue::Bind {
            queue: &queue,
            exchange: TRACE_EXCHANGE,
            routing_key: pattern,
            ..queue::Bind::default()
        };
        let bound = |event: &Event<'_>| is(event, |it| matches!(it, Method::QueueBindOk(_)));
        direct.call(&bind, bound).await?;
        let consume = basic::Consume {
            queue: &queue,
            consumer_tag: TAG,
            no_ack: true,
            ..basic::Consume::default()
        };
        let begun = |event: &Event<'_>| is(event, |it| matches!(it, Method::BasicConsumeOk(_)));
        direct.call(&consume, begun).await?;
        Ok(queue)
    }

    /// Where a trace's thread gets batches, and what tells that it has ended.
    fn start_thread(
        &self,
        trace: &Trace,
        file: File,
        owned: Owned,
    ) -> Result<(UnboundedSender<Batch>, watch::Receiver<bool>), Fault> {
        let asked = &trace.asked;
        let how = (asked.format, asked.max_payload_bytes, self.options.max_file_size.get());
        let progress = Arc::clone(&trace.progress);
        let writer = Writer::new(Arc::clone(&self.node), self.dir.clone(), file, how, progress);
        let (sender, batches) = mpsc::unbounded_channel();
        let (ends, ended) = watch::channel(false);
        let work = move || {
            writer.run(batches);
            drop(owned);
            // Nobody may be there to hear it.
            let _ = ends.send(true);
        };
        let thread = std::thread::Builder::new().name("trace".to_owned()).spawn(work);
        thread.map_err(|error| Fault::unavailable(format!("no thread for the trace: {error}")))?;
        Ok((sender, ended))
    }

    /// Has the vhost traced, takes the trace's messages until it is to end or cannot go on, then does what follows from that.
    async fn run(
        &self,
        trace: Arc<Trace>,
        mut direct: Direct,
        batches: UnboundedSender<Batch>,
        mut written: watch::Receiver<bool>,
        by: Box<By>,
        begins: oneshot::Sender<Result<(), Fault>>,
    ) {
        let begun = self.begin(&trace, by.clone()).await;
        let is_begun = begun.is_ok();
        // Whoever asked for the trace may have left.
        let _ = begins.send(begun);
        let room = Arc::new(Semaphore::new(ROOM_KIB as usize));
        let looked = Instant::now();
        let mut taking = Taking { traces: self, trace: &trace, batches, room, told: 0, looked };
        if is_begun {
            tracing::info!(
                vhost = trace.asked.vhost, file = %self.dir.join(&trace.file).display(),
                format = trace.asked.format.name(), "a trace has begun"
            );
            taking.take(&mut direct, written.clone()).await;
        }
        trace.is_over.store(true, Ordering::Release);
        let asked = trace.ending.ask();
        let is_counted = taking.rest(&mut direct, asked).await;
        drop(direct);
        drop(taking);
        // A thread that its disk does not let go ends later.
        let _ = timeout_at(asked + ending::WRITTEN, over(&mut written)).await;
        self.say_end(&trace, is_counted);
        // As long as that takes: a vhost that stays traced would cost what its copies cost.
        self.leave(&trace, by).await;
    }

    /// Has the vhost traced. A trace that cannot begin is not there.
    async fn begin(&self, trace: &Arc<Trace>, by: Box<By>) -> Result<(), Fault> {
        let begun = self.enter(trace, by).await;
        // A trace that its own file or disk has stopped is there, and tells why.
        let ending = &trace.ending;
        let is_ended = ending.is_by_others() || (ending.is_asked() && self.all.lock().is_stopping);
        let begun = if is_ended { Err(self.ended_early(ending, &trace.progress)) } else { begun };
        if begun.is_err() {
            self.forget(trace);
        }
        begun
    }

    /// A vhost with a trace is traced. Nobody changes that otherwise before it is done.
    async fn enter(&self, trace: &Trace, by: Box<By>) -> Result<(), Fault> {
        let _changing = self.changing.acquire().await;
        let (name, id) = (&trace.asked.vhost, trace.vhost_id);
        let is_traced = self.node.topology().vhost_by_id(id).is_some_and(|it| it.is_traced);
        self.wished.lock().entry(id).or_insert(is_traced);
        let done = self.set_traced(by, id, true).await;
        let is_gone = self.node.topology().vhost_by_id(id).is_none();
        match done {
            Err(_) if is_gone => Err(cannot_have(&format!("vhost '{name}' was deleted"))),
            done => done,
        }
    }

    fn say_end(&self, trace: &Trace, is_counted: bool) {
        let TraceState { stopped, written, not_written, .. } = trace.state();
        let (vhost, file) = (&*trace.asked.vhost, self.dir.join(&trace.file));
        let file = file.display();
        if !is_counted {
            tracing::error!(
                vhost, %file, "the queue of a trace that has ended does not answer: messages that waited there are \
                 neither in the file nor counted"
            );
        }
        let under_way = trace.progress.under_way.load(Ordering::Relaxed);
        if under_way > 0 {
            tracing::error!(
                vhost, %file, written, not_written,
                "a trace has ended, and its disk does not answer: {under_way} messages may not be in the file"
            );
            return;
        }
        match stopped {
            None => tracing::info!(vhost, %file, written, not_written, "a trace has ended"),
            // That is what somebody wanted.
            Some(why) if trace.ending.is_by_others() => {
                tracing::info!(vhost, %file, written, not_written, "a trace has stopped: {why}");
            }
            Some(why) => {
                tracing::error!(vhost, %file, written, not_written, "a trace has stopped: {why}");
            }
        }
    }

    /// Ends a trace and forgets it. False if there is none.
    pub(crate) async fn stop(&self, vhost: &str, name: &str) -> bool {
        let removed = self.all.lock().traces.remove(&(vhost.to_owned(), name.to_owned()));
        let Some(trace) = removed else { return false };
        trace.ending.end().await;
        true
    }

    /// Forgets a trace, unless another one has its name by now.
    fn forget(&self, trace: &Arc<Trace>) {
        let key = (trace.asked.vhost.clone(), trace.asked.name.clone());
        let mut all = self.all.lock();
        if all.traces.get(&key).is_some_and(|it| Arc::ptr_eq(it, trace)) {
            all.traces.remove(&key);
        }
    }

    /// Ends all of them with the node, and no more begin: those under way are refused.
    pub(crate) async fn stop_all(&self) {
        let endings: Vec<_> = {
            let mut all = self.all.lock();
            all.is_stopping = true;
            let of_traces = std::mem::take(&mut all.traces);
            let of_traces = of_traces.into_values().map(|trace| Arc::clone(&trace.ending));
            let of_files = all.files.values().filter_map(|it| match it {
                Use::Written { ending, .. } => Some(Arc::clone(ending)),
                Use::Deleted => None,
            });
            of_traces.chain(of_files).collect()
        };
        end_all(&endings).await;
    }

    /// Ends those that get their messages in the name of a user, who is gone.
    pub(crate) async fn stop_of(&self, user: &str) {
        let of_user = |it: &Use| match it {
            Use::Written { user: own, ending, progress, .. } if own == user => {
                // An earlier reason counts.
                if progress.why.set(deleted(user)).is_ok() {
                    ending.is_due_to_others();
                }
                Some(Arc::clone(ending))
            }
            _ => None,
        };
        let endings: Vec<_> = self.all.lock().files.values().filter_map(of_user).collect();
        end_all(&endings).await;
    }

    /// A vhost whose last trace has ended is traced no more, unless that is the operator's wish.
    async fn leave(&self, trace: &Trace, by: Box<By>) {
        let vhost = trace.vhost_id;
        let _changing = self.changing.acquire().await;
        let is_left = !self.has_running(vhost);
        let wished = if is_left { self.wished.lock().remove(&vhost) } else { None };
        if wished == Some(false) {
            // The vhost may be gone.
            let _ = self.set_traced(by, vhost, false).await;
        }
    }

    fn has_running(&self, vhost: VhostId) -> bool {
        let all = self.all.lock();
        all.traces.values().any(|it| it.vhost_id == vhost && it.is_running())
    }

    /// Notes whether the operator wishes a vhost to be traced, before that is done. What is to be done now: a vhost stays
    /// traced as long as it has a trace. The permit is kept until it is done.
    pub(crate) async fn wish(
        &self,
        vhost: &str,
        is_traced: bool,
    ) -> (bool, Option<SemaphorePermit<'_>>) {
        // No permit ends.
        let changing = self.changing.acquire().await.ok();
        let vhost = self.node.topology().vhost(vhost).map(|it| it.id);
        let mut wishes = self.wished.lock();
        match vhost.and_then(|id| wishes.get_mut(&id)) {
            Some(wished) => {
                *wished = is_traced;
                (true, changing)
            }
            None => (is_traced, changing),
        }
    }

    /// It is refused if the vhost is gone by the time that it is done.
    async fn set_traced(&self, by: Box<By>, vhost: VhostId, is_on: bool) -> Result<(), Fault> {
        if self.node.topology().vhost_by_id(vhost).is_some_and(|it| it.is_traced == is_on) {
            return Ok(());
        }
        ask::admin(&self.node, by, AdminCommand::SetTracing { vhost, is_on }).await?;
        Ok(())
    }
}

/// The work of one trace.
struct Taking<'a> {
    traces: &'a Traces,
    trace: &'a Trace,
    batches: UnboundedSender<Batch>,
    /// For records on their way to the thread.
    room: Arc<Semaphore>,
    /// Messages that the queue dropped, as far as the file tells of them.
    told: u64,
    /// When that was looked at.
    looked: Instant,
}

impl Taking<'_> {
    /// Takes messages until the trace is to end, or the queue or the thread that writes is gone.
    async fn take(&mut self, direct: &mut Direct, mut written: watch::Receiver<bool>) {
        let ending = &self.trace.ending;
        loop {
            let is_asked = ending.is_asked();
            // However many come without a pause.
            if !is_asked && self.looked.elapsed() >= LOOK {
                tokio::select! {
                    () = self.look() => {}
                    // The queue's shard may not answer.
                    _ = ending.asked() => {}
                }
            }
            let records = tokio::select! {
                biased;
                () = over(&mut written) => return,
                _ = ending.asked(), if !is_asked => continue,
                () = ending.reaches(ending::TAKEN) => return,
                records = direct.deliveries() => records,
                // Nothing more is at hand.
                () = std::future::ready(()), if is_asked => return,
                () = sleep_until(self.looked + LOOK) => continue,
            };
            let records = match records {
                Ok(records) => records,
                Err(why) => {
                    // An earlier reason counts.
                    let told = self.trace.progress.why.set(format!("no more messages come: {why}"));
                    if told.is_ok() && why == Closed::QueueGone {
                        ending.is_due_to_others();
                    }
                    return;
                }
            };
            let count = records.len() as u64;
            let room = tokio::select! {
                biased;
                room = Arc::clone(&self.room).acquire_many_owned(kib(&records)) => room.ok(),
                () = ending.reaches(ending::TAKEN) => None,
                () = over(&mut written) => None,
            };
            if !room.is_some_and(|room| self.give(records, room)) {
                self.lose(count);
                return;
            }
            // However many come, requests have their turns in between.
            yield_now().await;
        }
    }

    /// Gives records to the thread. False if that has ended.
    fn give(&self, records: Vec<Bytes>, room: OwnedSemaphorePermit) -> bool {
        let (count, under_way) = (records.len() as u64, &self.trace.progress.under_way);
        under_way.fetch_add(count, Ordering::Relaxed);
        let is_given = self.batches.send(Batch::Messages(records, room)).is_ok();
        if !is_given {
            under_way.fetch_sub(count, Ordering::Relaxed);
        }
        is_given
    }

    /// Has it told in the file that messages are missing.
    fn lose(&self, count: u64) {
        if count > 0 {
            self.trace.progress.lost.fetch_add(count, Ordering::Relaxed);
            // The thread may have ended.
            let _ = self.batches.send(Batch::Lost(count));
        }
    }

    /// Looks at what the queue dropped since the last time.
    async fn look(&mut self) {
        if let Some(numbers) = self.numbers().await {
            self.lose(dropped(&numbers).saturating_sub(self.told));
            self.told = self.told.max(dropped(&numbers));
        }
        self.looked = Instant::now();
    }

    /// Nothing more is to come. What is on its way is written if there is room for it, and what the queue still has is not.
    /// False if the queue does not tell in time how much that is.
    async fn rest(&mut self, direct: &mut Direct, asked: Instant) -> bool {
        let taken = |records: Vec<Bytes>| {
            let (count, room) = (records.len() as u64, Arc::clone(&self.room));
            let room = room.try_acquire_many_owned(kib(&records)).ok();
            if !room.is_some_and(|room| self.give(records, room)) {
                self.lose(count);
            }
        };
        // An error is the end of all messages, too.
        let _ = timeout_at(asked + ending::CANCELLED, direct.cancel(TAG, taken)).await;
        let Ok(numbers) = timeout_at(asked + ending::COUNTED, self.numbers()).await else {
            return false;
        };
        if let Some(numbers) = numbers {
            let left = numbers.counts.ready + numbers.counts.unacked;
            self.lose(dropped(&numbers).saturating_sub(self.told) + left);
        }
        true
    }

    async fn numbers(&self) -> Option<QueueNumbers> {
        let id = self.trace.queue_id;
        let facts = facts::of(&self.traces.node, &[id]).await.ok()?.remove(&id);
        facts.map(|facts| facts.numbers)
    }
}

/// The room that records take on their way.
fn kib(records: &[Bytes]) -> u32 {
    let kib = records.iter().map(Bytes::len).sum::<usize>() >> 10;
    u32::try_from(kib).unwrap_or(ROOM_KIB).clamp(1, ROOM_KIB)
}

/// Messages that left a trace's queue otherwise than to it.
fn dropped(numbers: &QueueNumbers) -> u64 {
    let totals = numbers.totals;
    totals.dropped.sum() + totals.dead_lettered.sum() + totals.purged + totals.moved
}

/// A trace that cannot be had is the fault of what was asked for, whoever the user is that it was to have.
fn refused(why: Closed) -> Fault {
    match why {
        Closed::Told { text, .. } => cannot_have(&text),
        other => other.into(),
    }
}

fn cannot_have(why: &str) -> Fault {
    Fault::bad(format!("the trace cannot have its messages: {why}"))
}

fn deleted(user: &str) -> String {
    format!("user '{user}' was deleted")
}

fn stopping() -> Fault {
    Fault::unavailable("the node is stopping")
}

/// Ends traces, all in the time of one.
async fn end_all(endings: &[Arc<Ending>]) {
    for ending in endings {
        ending.ask();
    }
    for ending in endings {
        ending.end().await;
    }
}

/// Waits for what is told once. Whoever is to tell it may be gone, which is the same.
async fn over(told: &mut watch::Receiver<bool>) {
    let _ = told.wait_for(|it| *it).await;
}
