//! Traces: copies of a vhost's messages, written to files, as RabbitMQ's tracing plugin writes them.
//!
//! ```text
//!  amq.rabbitmq.trace -> a queue of the trace -> a session inside the node -> batches -> a thread -> NAME.log
//!                        max_waiting             on this crate's thread       ROOM       may block
//! ```
//!
//! Nobody waits for a trace. Its thread may stand still with the disk: then batches are full, the session takes nothing more
//! from its queue, and the queue drops its oldest copies, which are counted and told in the file. A trace ends with the process.

pub(crate) mod files;
mod term;
mod text;
mod writer;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use leveret_amqp::method::{Method, basic, queue};
use leveret_amqp::table::{RawTable, Table, Value};
use leveret_broker::login::Admitted;
use leveret_broker::message::AdminCommand;
use leveret_broker::numbers::QueueNumbers;
use leveret_client::Event;
use leveret_config::options::TracingOptions;
use leveret_server::locks::{Rank, Ranked};
use leveret_server::node::Node;
use leveret_topology::{By, QueueId};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use crate::http::Fault;
use crate::ops::direct::{Closed, Direct, is};
use crate::ops::{ask, facts};
pub(crate) use text::Format;
use writer::{Batch, Progress, Writer};

/// Traces that may be there, those that have ended among them. Each has a thread, a queue and a file.
const TRACES_MAX: usize = 16;

/// KiB of records that may be on their way to a trace's thread. A message that is larger goes alone.
const ROOM_KIB: u32 = 4 << 10;

/// How often it is looked at whether the queue of a trace dropped something.
const LOOK: Duration = Duration::from_secs(1);

/// How long messages that are at hand are still taken when a trace is to end.
const LAST: Duration = Duration::from_millis(500);

/// How long a disk may take for the rest of a trace that is stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// What traces copy from.
const TRACE_EXCHANGE: &str = "amq.rabbitmq.trace";

/// The traces of a node.
#[derive(Debug)]
pub(crate) struct Traces {
    node: Arc<Node>,
    options: TracingOptions,
    dir: PathBuf,
    all: Ranked<BTreeMap<Key, Arc<Trace>>>,
    /// One permit, held by whoever makes a trace, or ends a vhost's last one.
    changing: Semaphore,
    /// Whether vhosts with traces were traced before they had any.
    before: Ranked<BTreeMap<String, bool>>,
    /// Each thread that writes has a part of it.
    threads: Arc<()>,
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
    progress: Arc<Progress>,
    /// It is to end.
    end: Notify,
    /// Nothing more is taken.
    is_over: AtomicBool,
    /// All is done that follows from its end.
    done: watch::Sender<bool>,
}

/// How far a trace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
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
    pub(crate) fn state(&self) -> State {
        let progress = &self.progress;
        State {
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
            all: Ranked::new(Rank::Above, BTreeMap::new()),
            changing: Semaphore::new(1),
            before: Ranked::new(Rank::Above, BTreeMap::new()),
            threads: Arc::default(),
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
        self.all.lock().values().cloned().collect()
    }

    /// One of them.
    pub(crate) fn get(&self, vhost: &str, name: &str) -> Option<Arc<Trace>> {
        self.all.lock().get(&(vhost.to_owned(), name.to_owned())).cloned()
    }

    /// The trace that writes to a file.
    pub(crate) fn writing(&self, file: &str) -> Option<Arc<Trace>> {
        self.all.lock().values().find(|it| it.file == file && it.is_running()).cloned()
    }

    /// Makes a trace, in the name of a user who may open its vhost. From now on all is written that its pattern fits.
    pub(crate) async fn create(
        self: &Arc<Self>,
        by: Box<By>,
        asked: Asked,
        admitted: Admitted,
    ) -> Result<(), Fault> {
        let changing = self.changing.acquire().await;
        let file_name =
            files::of_trace(&asked.name).ok_or_else(|| Fault::bad("invalid trace name"))?;
        self.check_new(&asked, &file_name)?;
        let (dir, name) = (self.dir.clone(), file_name.clone());
        let opened = tokio::task::spawn_blocking(move || files::open_to_append(&dir, &name)).await;
        let file = opened.map_err(|_| Fault::unavailable("the node stops"))?;
        let path = self.dir.join(&file_name);
        let cannot =
            |error| Fault::bad(format!("the file {} cannot be written: {error}", path.display()));
        let file = file.map_err(cannot)?;
        let bytes = file.metadata().map_err(cannot)?.len();
        if bytes >= self.options.max_file_size.get() {
            let max = self.options.max_file_size.get();
            return Err(Fault::bad(format!(
                "the file {file_name} has reached tracing.max_file_size, {max} bytes: delete it, or \
                 name the trace otherwise"
            )));
        }
        let peer = format!("trace {}", asked.name);
        let opened = Direct::open(&self.node, admitted, &asked.vhost, peer).await;
        let mut direct = opened.map_err(refused)?;
        let queue = self.consume(&mut direct, &asked.pattern).await.map_err(refused)?;
        let queue_id = {
            let topology = self.node.topology();
            let vhost = topology.vhost(&asked.vhost).ok_or_else(Fault::not_found)?.id;
            topology.queue(vhost, &queue).ok_or_else(Fault::not_found)?.id
        };
        let progress = Arc::new(Progress::default());
        progress.bytes.store(bytes, Ordering::Relaxed);
        let trace = Arc::new(Trace {
            asked: asked.clone(),
            file: file_name,
            queue,
            queue_id,
            progress,
            end: Notify::new(),
            is_over: AtomicBool::new(false),
            done: watch::Sender::new(false),
        });
        let (batches, written) = self.start_thread(&trace, file)?;
        self.all.lock().insert((asked.vhost.clone(), asked.name.clone()), Arc::clone(&trace));
        let (own, of_task) = (Arc::clone(self), Arc::clone(&trace));
        let by_task = by.clone();
        tokio::spawn(async move { own.run(of_task, direct, batches, written, by_task).await });
        let is_traced = self.node.topology().vhost(&asked.vhost).is_some_and(|it| it.is_traced);
        self.before.lock().entry(asked.vhost.clone()).or_insert(is_traced);
        drop(changing);
        let begun = self.set_traced(by, &asked.vhost, true).await;
        if begun.is_err() {
            self.stop(&trace.asked.vhost, &trace.asked.name).await;
        }
        begun
    }

    fn check_new(&self, asked: &Asked, file: &str) -> Result<(), Fault> {
        let mut all = self.all.lock();
        let key = (asked.vhost.clone(), asked.name.clone());
        match all.get(&key) {
            Some(trace) if trace.is_running() => {
                return Err(Fault::bad("the trace is there already: stop it first"));
            }
            // What is left of one that has ended makes way.
            Some(_) => drop(all.remove(&key)),
            None => {}
        }
        if let Some(other) = all.values().find(|it| it.file == file && it.is_running()) {
            return Err(Fault::bad(format!(
                "the file {file} is written by the trace of this name in vhost '{}'",
                other.asked.vhost
            )));
        }
        let threads = Arc::strong_count(&self.threads) - 1;
        if all.len().max(threads) >= TRACES_MAX {
            return Err(Fault::bad(format!("there are {TRACES_MAX} traces, and no more may be")));
        }
        Ok(())
    }

    /// Declares the queue of a trace, binds it and consumes from it. Its name.
    async fn consume(&self, direct: &mut Direct, pattern: &str) -> Result<String, Closed> {
        let mut arguments = Table::new();
        let most = i64::try_from(self.options.max_waiting.get()).unwrap_or(i64::MAX);
        arguments.push("x-max-length-bytes", Value::I64(most));
        arguments.push("x-overflow", "drop-head");
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
        let consume = basic::Consume { queue: &queue, no_ack: true, ..basic::Consume::default() };
        let begun = |event: &Event<'_>| is(event, |it| matches!(it, Method::BasicConsumeOk(_)));
        direct.call(&consume, begun).await?;
        Ok(queue)
    }

    /// Where a trace's thread gets batches, and what tells that it has ended.
    fn start_thread(
        &self,
        trace: &Trace,
        file: File,
    ) -> Result<(UnboundedSender<Batch>, watch::Receiver<bool>), Fault> {
        let asked = &trace.asked;
        let how = (asked.format, asked.max_payload_bytes, self.options.max_file_size.get());
        let progress = Arc::clone(&trace.progress);
        let writer = Writer::new(Arc::clone(&self.node), self.dir.clone(), file, how, progress);
        let (sender, batches) = mpsc::unbounded_channel();
        let (ends, ended) = watch::channel(false);
        let counted = Arc::clone(&self.threads);
        let work = move || {
            writer.run(batches);
            drop(counted);
            // Nobody may be there to hear it.
            let _ = ends.send(true);
        };
        let thread = std::thread::Builder::new().name("trace".to_owned()).spawn(work);
        thread.map_err(|error| Fault::unavailable(format!("no thread for the trace: {error}")))?;
        Ok((sender, ended))
    }

    /// Takes a trace's messages until it is to end or cannot go on, then does what follows from that.
    async fn run(
        &self,
        trace: Arc<Trace>,
        mut direct: Direct,
        batches: UnboundedSender<Batch>,
        mut written: watch::Receiver<bool>,
        by: Box<By>,
    ) {
        tracing::info!(
            vhost = trace.asked.vhost, file = %self.dir.join(&trace.file).display(),
            format = trace.asked.format.name(), "a trace has begun"
        );
        let mut taking = Taking { traces: self, trace: &trace, batches, told: 0 };
        taking.take(&mut direct, written.clone()).await;
        trace.is_over.store(true, Ordering::Release);
        taking.rest().await;
        drop(direct);
        drop(taking);
        // A thread that its disk does not let go ends later.
        let _ = tokio::time::timeout(PATIENCE, over(&mut written)).await;
        self.say_end(&trace);
        self.leave(&trace.asked.vhost, by).await;
        // Nobody may be there to hear it.
        trace.done.send_replace(true);
    }

    fn say_end(&self, trace: &Trace) {
        let State { stopped, written, not_written, .. } = trace.state();
        let (vhost, file) = (&*trace.asked.vhost, self.dir.join(&trace.file));
        let file = file.display();
        match stopped {
            None => tracing::info!(vhost, %file, written, not_written, "a trace has ended"),
            Some(why) => {
                tracing::error!(vhost, %file, written, not_written, "a trace has stopped: {why}");
            }
        }
    }

    /// Ends a trace and forgets it. False if there is none.
    pub(crate) async fn stop(&self, vhost: &str, name: &str) -> bool {
        let removed = self.all.lock().remove(&(vhost.to_owned(), name.to_owned()));
        let Some(trace) = removed else { return false };
        end(&trace).await;
        true
    }

    /// Ends all of them with the node.
    pub(crate) async fn stop_all(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        all.values().for_each(|trace| trace.end.notify_one());
        for trace in all.values() {
            end(trace).await;
        }
    }

    /// A vhost whose last trace has ended is traced no more, unless it was before.
    async fn leave(&self, vhost: &str, by: Box<By>) {
        let _changing = self.changing.acquire().await;
        let is_left =
            !self.all.lock().values().any(|it| it.asked.vhost == vhost && it.is_running());
        let was_traced = if is_left { self.before.lock().remove(vhost) } else { None };
        if was_traced == Some(false) {
            // The vhost may be gone.
            let _ = self.set_traced(by, vhost, false).await;
        }
    }

    async fn set_traced(&self, by: Box<By>, vhost: &str, is_traced: bool) -> Result<(), Fault> {
        if self.node.topology().vhost(vhost).is_none_or(|it| it.is_traced == is_traced) {
            return Ok(());
        }
        let command = AdminCommand::PutVhost {
            name: vhost.to_owned(),
            description: None,
            tags: None,
            default_queue_type: None,
            tracing: Some(is_traced),
        };
        ask::admin(&self.node, by, command).await?;
        Ok(())
    }
}

/// The work of one trace.
struct Taking<'a> {
    traces: &'a Traces,
    trace: &'a Trace,
    batches: UnboundedSender<Batch>,
    /// Messages that the queue dropped, as far as the file tells of them.
    told: u64,
}

impl Taking<'_> {
    /// Takes messages until the trace is to end, or the queue or the thread that writes is gone.
    async fn take(&mut self, direct: &mut Direct, mut written: watch::Receiver<bool>) {
        let room = Arc::new(Semaphore::new(ROOM_KIB as usize));
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            let records = tokio::select! {
                biased;
                () = over(&mut written) => return,
                () = self.trace.end.notified(), if last.is_none() => {
                    last = Some(Instant::now() + LAST);
                    continue;
                }
                records = direct.deliveries() => records,
                // Nothing more is at hand.
                () = std::future::ready(()), if last.is_some() => return,
                _ = looks.tick() => {
                    self.look().await;
                    continue;
                }
            };
            let records = match records {
                Ok(records) => records,
                Err(why) => {
                    // An earlier reason counts.
                    let _ = self.trace.progress.why.set(format!("no more messages come: {why}"));
                    return;
                }
            };
            let count = records.len() as u64;
            let kib = records.iter().map(Bytes::len).sum::<usize>() >> 10;
            let kib = u32::try_from(kib).unwrap_or(ROOM_KIB).clamp(1, ROOM_KIB);
            let until = last.unwrap_or_else(|| Instant::now() + LAST);
            let room = tokio::select! {
                room = Arc::clone(&room).acquire_many_owned(kib) => room.ok(),
                () = self.trace.end.notified(), if last.is_none() => None,
                () = sleep_until(until), if last.is_some() => None,
                () = over(&mut written) => None,
            };
            let sent = room.map(|room| self.batches.send(Batch::Messages(records, room)).is_ok());
            if sent != Some(true) {
                self.lose(count);
                return;
            }
            // However many come, requests have their turns in between.
            yield_now().await;
        }
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
    }

    /// What the queue still has is not written any more.
    async fn rest(&mut self) {
        if let Some(numbers) = self.numbers().await {
            let left = numbers.counts.ready + numbers.counts.unacked;
            self.lose(dropped(&numbers).saturating_sub(self.told) + left);
        }
    }

    async fn numbers(&self) -> Option<QueueNumbers> {
        let id = self.trace.queue_id;
        let facts = facts::of(&self.traces.node, &[id]).await.ok()?.remove(&id);
        facts.map(|facts| facts.numbers)
    }
}

/// Messages that left a trace's queue otherwise than to it.
fn dropped(numbers: &QueueNumbers) -> u64 {
    let totals = numbers.totals;
    totals.dropped.sum() + totals.dead_lettered.sum() + totals.purged + totals.moved
}

/// A trace that cannot be had is the fault of what was asked for, whoever the user is that it was to have.
fn refused(why: Closed) -> Fault {
    match why {
        Closed::Told { text, .. } => {
            Fault::bad(format!("the trace cannot have its messages: {text}"))
        }
        other => other.into(),
    }
}

async fn end(trace: &Trace) {
    trace.end.notify_one();
    let mut done = trace.done.subscribe();
    let _ = tokio::time::timeout(2 * PATIENCE, over(&mut done)).await;
}

/// Waits for what is told once. Whoever is to tell it may be gone, which is the same.
async fn over(told: &mut watch::Receiver<bool>) {
    let _ = told.wait_for(|it| *it).await;
}
