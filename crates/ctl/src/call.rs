//! A command at work: its words, the node it asks, what it says.

use std::io::{BufRead as _, Read as _, Write};
use std::time::Duration;

use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::args::{Common, CtlArgs, Formatter, Words};
use crate::client::{Client, Reply};
use crate::columns::{self, Column, Row};
use crate::commands::{Command, Kind};
use crate::fault::{Code, Fault};
use crate::target::Target;

/// Longest line of standard input, in bytes.
const LINE_MAX: u64 = 1 << 20;

/// Requests whose last name may be empty, to delete what an import brought once.
const MAY_BE_NAMELESS: [&str; 5] = [
    "/api/users/{username}",
    "/api/policies/{vhost}/{name}",
    "/api/operator-policies/{vhost}/{name}",
    "/api/parameters/{component_name}/{vhost}/{name}",
    "/api/global-parameters/{name}",
];

/// What a command has to show.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Nothing: it is done.
    Done,
    /// Nothing more than what was streamed.
    Nothing,
    /// A line for people.
    Message(String),
    /// A value, alone.
    Value(Value),
    /// Rows of a list.
    Rows(Vec<Column>, Vec<Row>),
    /// What machines read, and what people do.
    Document(Value, String),
}

/// A command at work.
pub(crate) struct Call<'a> {
    pub(crate) entry: &'static Command,
    pub(crate) common: &'a Common,
    words: Words,
    target: Target,
    /// What is to be said when nobody is there.
    doubt: Option<String>,
    /// The version of RabbitMQ that the tools stand for.
    pub(crate) rabbitmq_version: &'static str,
    /// Name of the node for messages.
    node: String,
    vhost: String,
    client: Option<Client>,
    out: &'a mut dyn Write,
    has_said: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        args: &'a CtlArgs,
        target: Target,
        doubt: Option<String>,
        node: String,
        rabbitmq_version: &'static str,
        out: &'a mut dyn Write,
    ) -> Self {
        let (entry, common, words) = (args.entry, &args.common, args.words.clone());
        let vhost = common.vhost.clone();
        Self {
            entry,
            common,
            words,
            target,
            doubt,
            rabbitmq_version,
            node,
            vhost,
            client: None,
            out,
            has_said: false,
        }
    }

    /// Runs another command, with its default words but for `columns`: `report` is made of those.
    pub(crate) fn other(
        &mut self,
        entry: &'static Command,
        columns: Option<&str>,
    ) -> Result<Answer, Fault> {
        let defaults = entry.words.iter().filter_map(|word| match word.kind {
            Kind::Value(default) if !default.is_empty() => {
                Some((word.name, vec![default.to_owned()]))
            }
            _ => None,
        });
        let columns = columns.map(|columns| ("columns", vec![columns.to_owned()]));
        let words = defaults.chain(columns).collect();
        let own = (self.entry, std::mem::replace(&mut self.words, words));
        (self.entry, self.has_said) = (entry, false);
        let answer = (entry.run)(self);
        (self.entry, self.words) = own;
        self.has_said = true;
        answer
    }

    /// What was given for a word; empty if nothing was.
    pub(crate) fn word(&self, name: &str) -> &str {
        self.optional(name).unwrap_or_default()
    }

    /// What was given for a word that may be missing.
    pub(crate) fn optional(&self, name: &str) -> Option<&str> {
        self.words(name).first().map(String::as_str)
    }

    /// All that was given for a word that may be repeated.
    pub(crate) fn words(&self, name: &str) -> &[String] {
        self.words.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a flag was given.
    pub(crate) fn flag(&self, name: &str) -> bool {
        !self.words(name).is_empty()
    }

    /// A word that is a whole number.
    pub(crate) fn number(&self, name: &str) -> Result<u64, Fault> {
        let text = self.word(name);
        text.parse()
            .map_err(|_| Fault::usage(format!("{name} must be a whole number, not '{text}'")))
    }

    /// A word that is a whole number, if it was given.
    pub(crate) fn optional_number(&self, name: &str) -> Result<Option<u64>, Fault> {
        self.optional(name).map(|_| self.number(name)).transpose()
    }

    /// A word that is JSON.
    pub(crate) fn json(&self, name: &str) -> Result<Value, Fault> {
        let text = self.word(name);
        serde_json::from_str(text)
            .map_err(|error| Fault::unavailable(format!("Could not parse JSON document: {error}")))
    }

    /// A password: the word, or a line of standard input.
    pub(crate) fn password(&self, name: &str) -> Result<String, Fault> {
        self.line(name, "Password")
    }

    /// A word that is not to be seen, called `title` in messages: as it was given, or a line of standard input.
    pub(crate) fn line(&self, name: &str, title: &str) -> Result<String, Fault> {
        use std::io::IsTerminal as _;
        if let Some(password) = self.optional(name) {
            return Ok(password.to_owned());
        }
        let missing = || Fault::software(format!("{title} is not provided via argument or stdin"));
        // Reading from a terminal would show the password.
        if std::io::stdin().is_terminal() {
            return Err(missing());
        }
        let mut line = String::new();
        std::io::stdin().lock().take(LINE_MAX).read_line(&mut line).map_err(|_| missing())?;
        if line.len() as u64 == LINE_MAX {
            return Err(Fault::data(format!("{title} has more than {} KiB", LINE_MAX >> 10)));
        }
        let password = line.trim_end_matches(['\n', '\r']);
        if password.is_empty() { Err(missing()) } else { Ok(password.to_owned()) }
    }

    /// The node's name, for messages.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Asks the node for its name, for paths that have it in them.
    pub(crate) fn learn_node(&mut self) -> Result<(), Fault> {
        let nodes = self.get("/api/nodes?columns=name,leads")?;
        // Of a cluster the one that leads answers, whichever is asked.
        let leads = nodes.as_array().into_iter().flatten().find(|it| it["leads"] == true);
        if let Some(name) = leads.unwrap_or(&nodes[0])["name"].as_str() {
            name.clone_into(&mut self.node);
        }
        Ok(())
    }

    /// From here on with another vhost.
    pub(crate) fn with_vhost(&mut self, name: &str) -> &mut Self {
        name.clone_into(&mut self.vhost);
        self
    }

    /// The host of a node elsewhere.
    pub(crate) fn host(&self) -> Option<String> {
        match &self.target {
            Target::Network(address) => Some(address.host.clone()),
            Target::Socket(_) => None,
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.common.timeout)
    }

    /// A template with `{vhost}`, `{node}`, `{timeout}` and the words of the command filled in.
    pub(crate) fn fill(&self, template: &str) -> String {
        self.filled(template, str::to_owned)
    }

    /// A template of a request, filled in. An empty name would make it another request, but at the end of one that deletes
    /// what may have no name.
    fn path(&self, method: &Method, template: &str) -> Result<String, Fault> {
        let (mut names, _) = template.split_once('?').unwrap_or((template, ""));
        if *method == Method::DELETE && MAY_BE_NAMELESS.contains(&template) {
            names = names.rsplit_once('/').map_or(names, |(before, _)| before);
        }
        for name in names.split('{').filter_map(|part| Some(part.split_once('}')?.0)) {
            if self.fill(&format!("{{{name}}}")).is_empty() {
                let name = if name == "username" { "user" } else { name };
                return Err(Fault::data(format!("{name} cannot be an empty string")));
            }
        }
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        Ok(self.filled(template, encode))
    }

    fn filled(&self, template: &str, encode: impl Fn(&str) -> String) -> String {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            text += before;
            let Some((name, after)) = after.split_once('}') else { break };
            text += &match name {
                "vhost" => encode(&self.vhost),
                "node" => encode(&self.node),
                "timeout" => self.common.timeout.to_string(),
                name => encode(&self.words(name).join(", ")),
            };
            rest = after;
        }
        text + rest
    }

    /// Says what is being done, once, before anything is asked.
    pub(crate) fn say(&mut self) -> Result<(), Fault> {
        self.say_this(&self.fill(self.entry.banner))
    }

    /// Says something else than the table's banner.
    pub(crate) fn say_this(&mut self, banner: &str) -> Result<(), Fault> {
        if self.has_said {
            return Ok(());
        }
        self.has_said = true;
        let is_for_machines = matches!(self.common.formatter, Formatter::Json | Formatter::Csv);
        if banner.is_empty() || self.common.quiet || self.common.silent || is_for_machines {
            return Ok(());
        }
        self.print(&format!("{banner}\n"))
    }

    /// Says nothing more of what is being done.
    pub(crate) fn say_nothing(&mut self) {
        self.has_said = true;
    }

    /// Writes to the output.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), Fault> {
        self.stream(text).map(drop)
    }

    /// Writes to the output. Whether somebody still reads it: `leveret ctl list_queues | head` has enough one day.
    pub(crate) fn stream(&mut self, text: &str) -> Result<bool, Fault> {
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Fault::software(format!("cannot write the output: {error}"))),
            Ok(()) => Ok(true),
        }
    }

    /// Connects, if that is not done yet. The node's process, if it is of this machine.
    pub(crate) fn connect(&mut self) -> Result<Option<Pid>, Fault> {
        Ok(self.client()?.process)
    }

    fn client(&mut self) -> Result<&mut Client, Fault> {
        self.say()?;
        match &mut self.client {
            Some(client) => Ok(client),
            none => {
                let timeout = Duration::from_secs(self.common.timeout);
                let client = Client::connect(&self.target, timeout);
                Ok(none.insert(client.map_err(|fault| match &self.doubt {
                    Some(doubt) => Fault::new(fault.code, format!("{}\n{doubt}", fault.text)),
                    None => fault,
                })?))
            }
        }
    }

    /// Sends a request; what answers it, whatever it is.
    pub(crate) fn send(
        &mut self,
        method: Method,
        template: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Reply, Fault> {
        let path = self.path(&method, template)?;
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let reply = self.client()?.ask(method, &path, headers, body);
        if reply.is_err() {
            // Of no more use: the next request begins anew.
            self.client = None;
        }
        reply
    }

    /// Sends a request that has to be granted; the document that answers it.
    fn ask(
        &mut self,
        method: Method,
        template: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, Fault> {
        let reply = self.send(method, template, headers, body)?;
        if let Some(text) = &reply.warning {
            eprintln!("Warning: {text}");
        }
        if reply.status.is_success() {
            return reply.document();
        }
        Err(self.refusal(&reply))
    }

    /// An answer that is no success, in words.
    pub(crate) fn refusal(&self, reply: &Reply) -> Fault {
        let fault = reply.fault();
        if reply.status != StatusCode::NOT_FOUND {
            return fault;
        }
        let (code, missing) = self.entry.missing;
        let is_specific =
            !matches!(&*fault.text, "Not Found" | "404 Not Found" | "vhost_not_found");
        Fault::new(code, if is_specific { fault.text } else { self.fill(missing) })
    }

    pub(crate) fn get(&mut self, template: &str) -> Result<Value, Fault> {
        self.ask(Method::GET, template, &[], None)
    }

    pub(crate) fn put(&mut self, template: &str, body: &Value) -> Result<Value, Fault> {
        self.ask(Method::PUT, template, &[], Some(body))
    }

    pub(crate) fn patch(&mut self, template: &str, body: &Value) -> Result<Value, Fault> {
        self.ask(Method::PATCH, template, &[], Some(body))
    }

    pub(crate) fn post(&mut self, template: &str, body: &Value) -> Result<Value, Fault> {
        self.ask(Method::POST, template, &[], Some(body))
    }

    pub(crate) fn delete(&mut self, template: &str) -> Result<Value, Fault> {
        self.ask(Method::DELETE, template, &[], None)
    }

    /// Deletes, and tells why.
    pub(crate) fn delete_because(&mut self, template: &str, reason: &str) -> Result<Value, Fault> {
        self.ask(Method::DELETE, template, &[("x-reason", reason)], None)
    }

    /// Fails unless it is there.
    pub(crate) fn must_find(
        &mut self,
        template: &str,
        code: Code,
        missing: &str,
    ) -> Result<(), Fault> {
        let reply = self.send(Method::GET, template, &[], None)?;
        match reply.status {
            StatusCode::NOT_FOUND => Err(Fault::new(code, self.fill(missing))),
            status if status.is_success() => Ok(()),
            _ => Err(self.refusal(&reply)),
        }
    }

    /// A list whose columns are always the same.
    pub(crate) fn table(
        &mut self,
        template: &str,
        columns: &[&'static str],
    ) -> Result<Answer, Fault> {
        self.rows(template, columns::all(columns))
    }

    /// A list whose columns are chosen by the word `columns`.
    pub(crate) fn list(
        &mut self,
        template: &str,
        default: &[&str],
        known: &[&'static str],
    ) -> Result<Answer, Fault> {
        let chosen = columns::choose(self.words("columns"), default, known)?;
        self.rows(template, chosen)
    }

    fn rows(&mut self, template: &str, columns: Vec<Column>) -> Result<Answer, Fault> {
        // Only what is shown is sent.
        let paths: Vec<_> = columns.iter().filter_map(|column| column.asked()).collect();
        let more = if template.contains('?') { '&' } else { '?' };
        let all = self.get(&format!("{template}{more}columns={}", paths.join(",")))?;
        Ok(Self::rows_of(&all, columns))
    }

    /// The rows of a list that is there already.
    pub(crate) fn rows_of(all: &Value, columns: Vec<Column>) -> Answer {
        let rows = all.as_array().into_iter().flatten();
        let rows = rows.map(|row| columns::row(&columns, row)).collect();
        Answer::Rows(columns, rows)
    }

    /// A health check: true to the words if it passes, else a failure with the reason.
    pub(crate) fn check(&mut self, template: &str, passed: &str) -> Result<Answer, Fault> {
        self.get(template)?;
        Ok(Answer::Message(self.fill(passed)))
    }

    /// A check whose document says more than its reason: `failed` makes the words of it.
    pub(crate) fn check_with(
        &mut self,
        template: &str,
        passed: &str,
        failed: impl FnOnce(&Self, &Value) -> String,
    ) -> Result<Answer, Fault> {
        let reply = self.send(Method::GET, template, &[], None)?;
        if reply.status == StatusCode::SERVICE_UNAVAILABLE {
            let told = serde_json::from_slice(&reply.body).unwrap_or_else(|_| json!({}));
            return Err(Fault::unavailable(failed(self, &told)));
        }
        if !reply.status.is_success() {
            return Err(self.refusal(&reply));
        }
        Ok(Answer::Message(self.fill(passed)))
    }
}
