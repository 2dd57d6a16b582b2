//! From texts, environment and flags to a configuration.
//!
//! Order, later wins: defaults, files in their order, RabbitMQ's environment names, ours, flags.
//! Pure: what is read from disk comes through [`Inputs`]. All faults are found at once.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::auth::{AuthOptions, HttpAuthOptions, HttpAuthTlsOptions, LdapTlsOptions};
use crate::cluster::{ClusterOptions, ClusterTlsOptions};
use crate::encrypted::DecoderOptions;
use crate::error::{ConfigError, ConfigErrors, FAULTS_MAX, Problem, Provenance};
use crate::known::{self, Fate, Known};
use crate::ldap::LdapOptions;
use crate::oauth2::OAuth2Options;
use crate::option::{Group, Spec};
use crate::options::{
    AccessOptions, ConnectionOptions, EventOptions, IdentityOptions, ListenerOptions, LogOptions,
    ManagementOptions, NodeOptions, PrometheusOptions, ResourceOptions, TracingOptions,
};
use crate::parse::{self, SettingLine, Statement};
use crate::seeds::{SeedOptions, Validator};
use crate::setting::{KeyMatch, MECHANISMS_LATER};
use crate::signin::SignInOptions;
use crate::tls::{CertificateOptions, ManagementTlsOptions, PrometheusTlsOptions, TlsOptions};
use crate::value::Value as _;

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name as the user gave it, for messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Answers `include`: the files that a path or pattern, written in the file named first, stands for.
pub type Include<'a> = dyn Fn(&str, &str) -> Result<Vec<File>, String> + 'a;

/// A setting from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagSetting {
    /// The flag as written, with its dashes.
    pub flag: String,
    /// The key it sets.
    pub key: String,
    /// The value.
    pub value: String,
}

/// All that a configuration is made of.
pub struct Inputs<'a> {
    /// Files in the order in which they count.
    pub files: Vec<File>,
    /// Answers `include`.
    pub include: &'a Include<'a>,
    /// The environment's names and values.
    pub env: Vec<(String, String)>,
    /// Flags in the order of the command line.
    pub flags: Vec<FlagSetting>,
}

impl Default for Inputs<'_> {
    fn default() -> Self {
        let include = &|_: &str, _: &str| Err("include is not possible here".to_owned());
        Self { files: Vec::new(), include, env: Vec::new(), flags: Vec::new() }
    }
}

/// Something the user should hear that is not a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether the user asked for something that does not happen.
    pub is_warning: bool,
    /// One line.
    pub text: String,
}

/// A configuration and what is to be said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// In the order of the sources.
    pub notices: Vec<Notice>,
    /// Names of the files that were read, included ones too.
    pub files: Vec<String>,
}

macro_rules! config {
    ($($(#[doc = $doc:literal])* $field:ident: $group:ty),+ $(,)?) => {
        /// Every option of the broker with its value.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Config {
            $($(#[doc = $doc])* pub $field: $group,)+
        }

        impl Config {
            /// The options by section, in the order of the pages.
            pub fn sections() -> Vec<(&'static str, Vec<Spec>)> {
                vec![$((<$group>::TITLE, <$group>::specs())),+]
            }

            /// Each option's first key and its value as shown; secrets are hidden.
            pub fn shown(&self) -> Vec<(&'static str, String)> {
                [$(self.$field.shown()),+].concat()
            }

            fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
                None$(.or_else(|| self.$field.set(key, text)))+
                    .unwrap_or_else(|| Err("the option is not declared".to_owned()))
            }
        }
    };
}
config! {
    /// Where the node lives.
    node: NodeOptions,
    /// The nodes that it forms a cluster with.
    cluster: ClusterOptions,
    /// TLS to them.
    cluster_tls: ClusterTlsOptions,
    /// Where clients connect.
    listeners: ListenerOptions,
    /// TLS of AMQP.
    tls: TlsOptions,
    /// Who a client is by its certificate.
    certificates: CertificateOptions,
    /// Limits of connections and channels.
    connections: ConnectionOptions,
    /// Users and definitions.
    access: AccessOptions,
    /// New virtual hosts and new passwords.
    seeds: SeedOptions,
    /// Who is asked about users.
    auth: AuthOptions,
    /// A web service that keeps users.
    auth_http: HttpAuthOptions,
    /// TLS to it.
    auth_http_tls: HttpAuthTlsOptions,
    /// A directory that keeps users.
    auth_ldap: LdapOptions,
    /// TLS to it.
    auth_ldap_tls: LdapTlsOptions,
    /// Tokens.
    auth_oauth2: OAuth2Options,
    /// Memory and disk.
    resources: ResourceOptions,
    /// Logs and statistics.
    log: LogOptions,
    /// What clients are told.
    identity: IdentityOptions,
    /// What is told of events.
    events: EventOptions,
    /// The management API and its page.
    management: ManagementOptions,
    /// How people sign in to its page.
    signin: SignInOptions,
    /// Traces.
    tracing: TracingOptions,
    /// Metrics.
    prometheus: PrometheusOptions,
    /// TLS of the management API.
    management_tls: ManagementTlsOptions,
    /// TLS of the metrics.
    prometheus_tls: PrometheusTlsOptions,
    /// How values of other options are decrypted.
    decoder: DecoderOptions,
}

impl Config {
    /// Reads the sources. Either every setting is good, or every fault is told.
    pub fn load(sources: &Inputs<'_>) -> Result<Loaded, ConfigErrors> {
        let mut loader = Loader::new(&sources.env);
        for file in &sources.files {
            loader.file(file, sources.include, &mut Vec::new());
        }
        loader.references();
        loader.environment();
        loader.flags(&sources.flags);
        loader.finish(sources.include)
    }
}

/// Include directives within include directives; more is taken for a circle.
const INCLUDE_DEPTH_MAX: usize = 16;

/// Files of a configuration: few may include each other so often that it takes for ever.
const FILES_MAX: usize = 1000;

/// Bytes of all values in which `$(NAME)` stands, once it is exchanged.
const EXPANDED_MAX: usize = 16 << 20;

struct Loader<'a> {
    env: &'a [(String, String)],
    specs: Vec<Spec>,
    /// Built when a key is no option of ours, which most configurations never need.
    known: OnceCell<Vec<Known>>,
    lines: Vec<SettingLine>,
    notices: Vec<Notice>,
    files: Vec<String>,
    errors: Vec<ConfigError>,
}

impl<'a> Loader<'a> {
    fn new(env: &'a [(String, String)]) -> Self {
        let specs = Config::sections().into_iter().flat_map(|(_, specs)| specs).collect();
        Self {
            env,
            specs,
            known: OnceCell::new(),
            lines: Vec::new(),
            notices: Vec::new(),
            files: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// `within` are the files that include it.
    fn file(&mut self, file: &File, include: &Include<'_>, within: &mut Vec<String>) {
        let (items, errors) = parse::parse(&file.name, &file.text);
        self.files.push(file.name.clone());
        self.errors.extend(errors);
        within.push(file.name.clone());
        for item in items {
            match item {
                Statement::Setting(line) => self.lines.push(line),
                Statement::Include { .. } if self.is_hopeless() => break,
                Statement::Include { path, at } => match include(&file.name, &path) {
                    Ok(files) => {
                        for file in files {
                            match self.why_not(&file, within) {
                                None => self.file(&file, include, within),
                                Some(why) => {
                                    let (at, path) = (at.clone(), path.clone());
                                    self.error(at, Problem::Include { path, why });
                                }
                            }
                        }
                    }
                    Err(why) => self.error(at, Problem::Include { path, why }),
                },
            }
        }
        within.pop();
    }

    /// Why a file is not to be read here.
    fn why_not(&self, file: &File, within: &[String]) -> Option<String> {
        if within.contains(&file.name) || within.len() > INCLUDE_DEPTH_MAX {
            return Some("files include each other in a circle".to_owned());
        }
        (self.files.len() >= FILES_MAX).then(|| format!("there are more than {FILES_MAX} files"))
    }

    /// Puts values in the place of `$(NAME)`: a key of the files, else an environment variable.
    fn references(&mut self) {
        let of_files: BTreeMap<String, String> =
            self.lines.iter().map(|it| (it.key.join("."), it.value.clone())).collect();
        let mut lines = std::mem::take(&mut self.lines);
        let mut left = EXPANDED_MAX;
        for line in &mut lines {
            if self.is_hopeless() {
                break;
            }
            let mut done = String::new();
            let mut rest = line.value.as_str();
            while let Some((before, name, after)) = reference(rest) {
                done.push_str(before);
                let own = |(known, _): &&(String, String)| known == name;
                match of_files.get(name).or_else(|| self.env.iter().find(own).map(|(_, it)| it)) {
                    Some(value) if value.len() > left => {
                        let (key, why) = (line.key.join("."), format!("$({name}) is too long"));
                        self.error(line.at.clone(), Problem::Syntax(format!("{key}: {why}")));
                        break;
                    }
                    Some(value) => {
                        left -= value.len();
                        done.push_str(value);
                    }
                    None => {
                        let (key, name) = (line.key.join("."), name.to_owned());
                        self.error(line.at.clone(), Problem::UnknownReference { key, name });
                    }
                }
                rest = after;
            }
            done.push_str(rest);
            line.value = done;
        }
        self.lines = lines;
    }

    fn environment(&mut self) {
        let env = self.env;
        let value_of = |name: &str| {
            let found = env.iter().find(|(known, value)| known == name && !value.is_empty());
            found.map(|(_, value)| value.clone())
        };
        if let Some(host) = value_of("RABBITMQ_NODE_IP_ADDRESS") {
            let port = value_of("RABBITMQ_NODE_PORT").unwrap_or_else(|| "5672".to_owned());
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            self.push(
                "listeners.tcp.default",
                format!("{host}:{port}"),
                "RABBITMQ_NODE_IP_ADDRESS",
            );
        }
        let names: Vec<_> = self.specs.iter().flat_map(Spec::env_names).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) =
            names.iter().partition(|(name, _)| name.starts_with("LEVERET_"));
        for (name, key) in theirs.into_iter().chain(ours) {
            let has_address = value_of("RABBITMQ_NODE_IP_ADDRESS").is_some();
            if name == "RABBITMQ_NODE_PORT" && has_address {
                continue;
            }
            match value_of(name) {
                // `-` means standard output, as in RabbitMQ.
                Some(value) if name == "RABBITMQ_LOGS" && value == "-" => {
                    self.push("log.console", "true".to_owned(), name);
                    self.push("log.file", "false".to_owned(), name);
                }
                Some(value) => self.push(key, value, name),
                None => {}
            }
        }
        for (name, _) in env {
            if let Some(rest) = name.strip_prefix("LEVERET_") {
                let is_ours = names.iter().any(|(known, _)| known == name)
                    || OTHER_ENVIRONMENT.contains(&name.as_str());
                // What Kubernetes and Docker links make for a service called "leveret".
                let is_link = rest.starts_with("SERVICE_") || rest.starts_with("PORT");
                if !is_ours && !is_link {
                    self.warn(format!("environment variable {name} names no option; ignored"));
                }
            } else if UNREAD_ENVIRONMENT.contains(&name.as_str()) {
                let instead = if name.contains("SSL") {
                    "ssl_options and management.ssl"
                } else {
                    "default_user and default_pass, or RABBITMQ_DEFAULT_USER and RABBITMQ_DEFAULT_PASS"
                };
                let why = format!(
                    "it is not read, as by RabbitMQ's image: a configuration file has {instead}"
                );
                self.error(Provenance::Environment(name.clone()), Problem::Syntax(why));
            } else if MEANINGLESS_ENVIRONMENT.contains(&name.as_str()) {
                let text = format!("environment variable {name} has no meaning here");
                self.notices.push(Notice { is_warning: false, text });
            }
        }
    }

    fn push(&mut self, key: &str, value: String, variable: &str) {
        let key = key.split('.').map(str::to_owned).collect();
        self.lines.push(SettingLine {
            key,
            value,
            at: Provenance::Environment(variable.to_owned()),
        });
    }

    fn flags(&mut self, flags: &[FlagSetting]) {
        for FlagSetting { flag, key, value } in flags {
            let at = Provenance::Flag(flag.clone());
            match parse::split_key(key) {
                Ok(key) => self.lines.push(SettingLine { key, value: value.clone(), at }),
                Err(why) => self.error(at, Problem::Syntax(why.to_owned())),
            }
        }
    }

    fn finish(mut self, include: &Include<'_>) -> Result<Loaded, ConfigErrors> {
        let mut config = Config::default();
        let lines = std::mem::take(&mut self.lines);
        let lines = self.tell_repeated(lines);
        let last = |is: &dyn Fn(&str) -> bool| {
            let mut from_the_end = lines.iter().rev().map(|(line, _)| line);
            from_the_end.find(|line| is(&line.key.join("."))).cloned()
        };
        let waiting = last(&|key| WAITING.contains(&key));
        let listed = last(&|key| key.starts_with(LISTED));
        let link_tls = last(&|key| key.starts_with(LINK_TLS));
        // What decrypts has to be known before what is encrypted.
        let is_decoder =
            |(line, _): &(SettingLine, _)| line.key.first().is_some_and(|word| word == DECODER);
        let (first, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_decoder);
        for (line, places) in first.into_iter().chain(others) {
            if self.is_hopeless() {
                break;
            }
            self.apply(&mut config, line, &places, include);
        }
        self.check(&config);
        if let Some(line) = waiting {
            self.check_waiting(&config, line);
        }
        // What follows from a fault that is told is not told too.
        if let (Some(line), true) = (listed, self.errors.is_empty())
            && let Some(why) = config.cluster.fault(config.node.name.as_deref())
        {
            self.bad_value(line, why);
        }
        // Who writes down what is so anyway means nothing by it.
        let means_tls = config.cluster_tls != ClusterTlsOptions::default();
        if let (Some(line), None, true) =
            (link_tls.filter(|_| means_tls), config.cluster_tls.settings(), self.errors.is_empty())
        {
            let why = "links have no TLS without cluster.ssl_options.certfile, .keyfile and .cacertfile, and this would do nothing";
            self.bad_value(line, why.to_owned());
        }
        self.errors.truncate(FAULTS_MAX);
        if self.errors.is_empty() {
            Ok(Loaded { config, notices: self.notices, files: self.files })
        } else {
            Err(ConfigErrors(self.errors))
        }
    }

    /// Tells of keys that files set more than once. Each line comes back with its places, but for those of keys that are no
    /// options: of these only the last does, with the places of all.
    fn tell_repeated(&mut self, lines: Vec<SettingLine>) -> Vec<(SettingLine, String)> {
        let mut of_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, line) in lines.iter().enumerate() {
            of_key.entry(self.meant(&line.key)).or_default().push(index);
        }
        let is_in_file = |line: &SettingLine| matches!(line.at, Provenance::File { .. });
        let mut places: Vec<Option<String>> =
            lines.iter().map(|line| Some(line.at.to_string())).collect();
        let mut told: Vec<(usize, Notice)> = Vec::new();
        for all in of_key.into_values() {
            let of_files = all.iter().filter(|&&index| is_in_file(&lines[index])).count();
            let Some((&last, earlier)) = all.split_last().filter(|_| of_files > 1) else {
                continue;
            };
            match self.find(&lines[last].key) {
                Some((_, spec)) => {
                    let of_key = |index: usize| &lines[index];
                    let notice = repeated(spec, of_key(last), earlier.iter().copied().map(of_key));
                    told.push((last, notice));
                }
                None if self.is_dropped(&lines[last]) => {
                    let all = all.iter().map(|&index| lines[index].at.to_string());
                    places[last] = Some(all.collect::<Vec<_>>().join(", "));
                    earlier.iter().for_each(|&index| places[index] = None);
                }
                None => {}
            }
        }
        told.sort_by_key(|(last, _)| *last);
        self.notices.extend(told.into_iter().map(|(_, notice)| notice));
        lines.into_iter().zip(places).filter_map(|(line, places)| Some((line, places?))).collect()
    }

    /// Whether the key is one of RabbitMQ's that nothing comes of, with this value.
    fn is_dropped(&self, line: &SettingLine) -> bool {
        let known = self.known().iter().find(|it| known::matches(&it.pattern, &line.key).is_some());
        known.is_some_and(|known| known.fate != Fate::Refused || is_off(&line.value))
    }

    /// What two lines have in common that set the same: the key, or the first of the keys that mean the same.
    fn meant(&self, key: &[String]) -> String {
        match self.find(key) {
            Some((_, Spec { keys: [only], .. })) if !only.contains('$') => (*only).to_owned(),
            _ => key.join("\n"),
        }
    }

    fn apply(
        &mut self,
        config: &mut Config,
        line: SettingLine,
        places: &str,
        include: &Include<'_>,
    ) {
        let written = line.key.join(".");
        let Some(found) = self.find(&line.key) else {
            if let Some(known) =
                self.known().iter().find(|it| known::matches(&it.pattern, &line.key).is_some())
            {
                // The one value of these keys that says what is the case anyway.
                let is_internal =
                    matches!(line.value.as_str(), "internal" | "rabbit_auth_backend_internal");
                if written.starts_with("auth_backends.") && is_internal {
                    return;
                }
                let is_off = is_off(&line.value);
                if known.fate == Fate::Refused && !is_off {
                    let (key, why) = (written, known.reason);
                    self.error(line.at, Problem::Refused { key, why });
                    return;
                }
                let (is_warning, what) = match known.fate {
                    Fate::Later | Fate::Refused if is_off => (false, "changes nothing"),
                    Fate::AlwaysOn if !is_off => (false, "changes nothing"),
                    Fate::Later | Fate::Refused | Fate::AlwaysOn => (true, "is ignored"),
                    Fate::Accepted => (false, "has no meaning here"),
                };
                let text = format!("{places}: {written} {what}: {}", known.reason);
                self.notices.push(Notice { is_warning, text });
            } else {
                let nearest = self.nearest(&written);
                self.error(line.at, Problem::UnknownKey { key: written, nearest });
            }
            return;
        };
        let (key, is_secret) = (found.0, found.1.is_secret());
        let encrypted = line.value.strip_prefix(ENCRYPTED).filter(|_| is_secret);
        let value = match encrypted {
            // Whatever was encrypted is taken as it stands.
            Some(value) => {
                let read = |path: &str| first_text(include, &line.at, path);
                config.decoder.decrypt(value, read).map(|text| format!("plain:{text}").into())
            }
            None => Ok(Cow::Borrowed(&*line.value)),
        };
        if let Err(why) = value.and_then(|value| config.set(&key, &value)) {
            let value = if is_secret { "(hidden)".to_owned() } else { line.value.clone() };
            self.error(line.at, Problem::BadValue { key: written, value, why });
        }
    }

    /// The option that a key belongs to. A pattern without `$` is preferred.
    fn find<'k>(&self, key: &'k [String]) -> Option<(KeyMatch<'k>, &Spec)> {
        let mut found = None;
        for spec in &self.specs {
            for pattern in spec.keys.iter().chain(spec.aliases) {
                if let Some((group, name)) = known::matches(pattern, key) {
                    let key = KeyMatch { pattern, name, group };
                    if !pattern.contains('$') {
                        return Some((key, spec));
                    }
                    // `log.$category.level` must not catch `log.syslog.level`.
                    let is_category = crate::setting::LOG_CATEGORIES.contains(&name);
                    if *pattern != "log.$category.level" || is_category {
                        found = Some((key, spec));
                    }
                }
            }
        }
        found
    }

    fn known(&self) -> &[Known] {
        self.known.get_or_init(known::table)
    }

    fn nearest(&self, key: &str) -> Option<String> {
        let ours = self.specs.iter().flat_map(|spec| spec.keys.iter().chain(spec.aliases).copied());
        let theirs = self.known().iter().map(|known| known.pattern.as_str());
        crate::nearest::nearest(key, ours.chain(theirs))
    }

    /// What no single option can know.
    fn check(&mut self, config: &Config) {
        let thresholds = [
            ("vm_memory_high_watermark", config.resources.memory_high_watermark),
            ("disk_free_limit", config.resources.disk_free_limit),
        ];
        for (key, threshold) in thresholds {
            if threshold.absolute.is_some() && threshold.relative.is_some() {
                self.warn(format!(
                    "{key}.absolute and {key}.relative are both set; absolute counts"
                ));
            }
        }
        let mechanisms = &config.access.auth_mechanisms;
        for name in mechanisms.asked().filter(|name| MECHANISMS_LATER.contains(name)) {
            self.warn(format!("auth_mechanisms: {name} is not there yet; it is not offered"));
        }
        if mechanisms.iter().next().is_none() {
            self.warn("auth_mechanisms: none is offered; no client can log in".to_owned());
        }
        let (validator, needed) = (config.seeds.validator, &config.seeds.regexp);
        if validator != Validator::PasswordRegexp && needed.is_some() {
            self.warn(
                "credential_validator.regexp is not looked at by this validation_backend".into(),
            );
        }
        for key in config.auth_ldap.passed_over() {
            self.warn(format!("{key} and {key}.user_dn are both set; {key} counts"));
        }
        if config.listeners.tcp.is_empty() && config.listeners.ssl.is_empty() {
            self.warn("listeners.tcp = none: no client can connect".to_owned());
        }
    }

    /// With less for all traces than for one, none could begin. `line` is the last that sets one of the two.
    fn check_waiting(&mut self, config: &Config, line: SettingLine) {
        let (each, total) = (config.tracing.max_waiting, config.tracing.max_waiting_total);
        if each > total {
            let (each, total) = (each.show(), total.show());
            let why = format!(
                "no trace could begin: each may have tracing.max_waiting, {each}, of tracing.max_waiting_total, {total}"
            );
            self.bad_value(line, why);
        }
    }

    fn bad_value(&mut self, line: SettingLine, why: String) {
        let is_secret = self.find(&line.key).is_some_and(|(_, spec)| spec.is_secret());
        let value = if is_secret { "(hidden)".to_owned() } else { line.value };
        self.error(line.at, Problem::BadValue { key: line.key.join("."), value, why });
    }

    fn warn(&mut self, text: String) {
        self.notices.push(Notice { is_warning: true, text });
    }

    /// There are so many faults that more are not told.
    fn is_hopeless(&self) -> bool {
        self.errors.len() >= FAULTS_MAX
    }

    fn error(&mut self, at: Provenance, problem: Problem) {
        self.errors.push(ConfigError { at, problem });
    }
}

/// Whether a value says that something is not to be.
fn is_off(value: &str) -> bool {
    matches!(value, "none" | "false")
}

/// That a key is set more than once, which line counts and which do not.
fn repeated<'l>(
    spec: &Spec,
    last: &SettingLine,
    earlier: impl Iterator<Item = &'l SettingLine>,
) -> Notice {
    let value = |line: &SettingLine| match spec.is_secret() {
        true => line.at.to_string(),
        // It may have several lines.
        false => {
            let words: Vec<&str> = line.value.split_whitespace().collect();
            format!("{} ({})", line.at, words.join(" "))
        }
    };
    let earlier: Vec<&SettingLine> = earlier.collect();
    let others: Vec<String> = earlier.iter().map(|line| value(line)).collect();
    let verb = if others.len() == 1 { "does" } else { "do" };
    let text = format!(
        "{} is set more than once: {} counts, {} {verb} not",
        last.key.join("."),
        value(last),
        others.join(", ")
    );
    Notice { is_warning: earlier.iter().any(|line| line.value != last.value), text }
}

/// The text of the file that a path in the file of `place` stands for.
fn first_text(include: &Include<'_>, place: &Provenance, path: &str) -> Result<String, String> {
    let from = match place {
        Provenance::File { name, .. } => name,
        _ => "",
    };
    let files = include(from, path)?;
    files.into_iter().next().map(|file| file.text).ok_or_else(|| format!("{path} is not there"))
}

/// Splits `before$(name)after`.
fn reference(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("$(")?;
    let (name, after) = rest.split_once(')')?;
    Some((before, name, after))
}

/// First word of the keys that say how values are decrypted.
const DECODER: &str = "config_entry_decoder";

/// What waits for the file of a trace, and for those of all traces.
const WAITING: [&str; 2] = ["tracing.max_waiting", "tracing.max_waiting_total"];

/// What the keys begin with that list nodes.
const LISTED: &str = "cluster_formation.classic_config.";

/// What the keys begin with of TLS between nodes.
const LINK_TLS: &str = "cluster.ssl_options.";

/// What a value begins with that is encrypted, where a secret is expected.
const ENCRYPTED: &str = "encrypted:";

/// Names of ours that are no options: they choose files, or a node of a cluster that begins anew tells itself by them.
const OTHER_ENVIRONMENT: [&str; 4] = [
    "LEVERET_CONFIG_FILE",
    "LEVERET_DISK_HUNG_MS",
    "LEVERET_DISK_SLOW_MS",
    "LEVERET_CLIENTS_SUSPENDED",
];

/// Variables of RabbitMQ's container image up to 3.8. The later ones refuse to start with them, and so do we: a node would be
/// less safe than it was told to be.
const UNREAD_ENVIRONMENT: [&str; 14] = [
    "RABBITMQ_DEFAULT_PASS_FILE",
    "RABBITMQ_DEFAULT_USER_FILE",
    "RABBITMQ_MANAGEMENT_SSL_CACERTFILE",
    "RABBITMQ_MANAGEMENT_SSL_CERTFILE",
    "RABBITMQ_MANAGEMENT_SSL_DEPTH",
    "RABBITMQ_MANAGEMENT_SSL_FAIL_IF_NO_PEER_CERT",
    "RABBITMQ_MANAGEMENT_SSL_KEYFILE",
    "RABBITMQ_MANAGEMENT_SSL_VERIFY",
    "RABBITMQ_SSL_CACERTFILE",
    "RABBITMQ_SSL_CERTFILE",
    "RABBITMQ_SSL_DEPTH",
    "RABBITMQ_SSL_FAIL_IF_NO_PEER_CERT",
    "RABBITMQ_SSL_KEYFILE",
    "RABBITMQ_SSL_VERIFY",
];

/// RabbitMQ's variables that users set and that change nothing here.
const MEANINGLESS_ENVIRONMENT: [&str; 31] = [
    "RABBITMQ_CONF_ENV_FILE",
    "RABBITMQ_CTL_DIST_PORT_MAX",
    "RABBITMQ_CTL_DIST_PORT_MIN",
    "RABBITMQ_CTL_ERL_ARGS",
    "RABBITMQ_DEFAULT_ALLOC_ARGS",
    "RABBITMQ_DISTRIBUTION_BUFFER_SIZE",
    "RABBITMQ_ENABLED_PLUGINS",
    "RABBITMQ_ENABLED_PLUGINS_FILE",
    "RABBITMQ_ERLANG_COOKIE",
    "RABBITMQ_FEATURE_FLAGS",
    "RABBITMQ_FEATURE_FLAGS_FILE",
    "RABBITMQ_IO_THREAD_POOL_SIZE",
    "RABBITMQ_KEEP_PID_FILE_ON_EXIT",
    "RABBITMQ_LOG",
    "RABBITMQ_MAX_NUMBER_OF_ATOMS",
    "RABBITMQ_MAX_NUMBER_OF_PROCESSES",
    "RABBITMQ_MAX_OPEN_FILES",
    "RABBITMQ_MOTD_FILE",
    "RABBITMQ_NODE_ONLY",
    "RABBITMQ_PID_FILE",
    "RABBITMQ_PLUGINS_DIR",
    "RABBITMQ_PLUGINS_EXPAND_DIR",
    "RABBITMQ_QUORUM_DIR",
    "RABBITMQ_SCHEDULER_BIND_TYPE",
    "RABBITMQ_SCHEDULER_BUSY_WAIT_THRESHOLD",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
    "RABBITMQ_SERVER_CODE_PATH",
    "RABBITMQ_SERVER_ERL_ARGS",
    "RABBITMQ_SERVER_START_ARGS",
    "RABBITMQ_STREAM_DIR",
    "RABBITMQ_USE_LONGNAME",
];
