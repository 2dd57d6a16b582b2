//! Users kept by a directory, asked as RabbitMQ's `rabbitmq_auth_backend_ldap` asks it.
//!
//! Whoever can bind with its password is the user. Its tags and rights are what queries say
//! ([`leveret_config::ldap::Query`]).
//!
//! ```text
//!   authenticate: (look the name up) -> bind as the user -> (look the name up) -> queries of tags
//!   rights:       evaluate (eval) -- a question --> pool: bind, search (link) -- the answer --> evaluate
//! ```

mod ber;
mod eval;
mod link;
mod matching;
mod pattern;
mod pool;
mod shares;

use std::sync::Arc;

use leveret_config::ldap::{Bind, LdapOptions, Query, Text};
use leveret_topology::Password;
use leveret_topology::rights::{Admitted, Deciding, Decision, Question, Rights};

use crate::source::{Candidate, Denied, told};
use eval::{Answers, Evaluation, Lookup, Stop};
pub(crate) use link::Tls;
use link::{Fault, Filter, Scope};
use matching::{Work, must_be_regex};
use pattern::Variables;
use pool::{Bound, Pool};

/// The directory.
#[derive(Debug)]
pub struct Ldap {
    pool: Pool,
    options: LdapOptions,
}

/// What the directory is asked as.
#[derive(Clone, Debug)]
enum Credentials {
    /// A name and its password; both empty: nobody.
    Simple(String, Password),
    /// Whom the certificate of the connection says (SASL `EXTERNAL`).
    Certificate,
}

impl Credentials {
    fn new(name: &str, password: &str) -> Self {
        Self::Simple(name.to_owned(), Password::new(password))
    }

    fn name(&self) -> &str {
        match self {
            Self::Simple(name, _) => name,
            Self::Certificate => "the name in auth_ldap.ssl_options.certfile",
        }
    }

    /// None when it is the user itself.
    fn of(bind: &Bind) -> Option<Self> {
        match bind {
            Bind::User => None,
            Bind::Nobody => Some(Self::new("", "")),
            Bind::Certificate => Some(Self::Certificate),
            Bind::Other(name, password) => Some(Self::new(name, password.reveal())),
        }
    }
}

/// A user who has bound.
#[derive(Debug)]
struct User {
    dn: String,
    /// Its own connection.
    bound: Bound,
    credentials: Credentials,
}

impl Ldap {
    /// `has_certificate`: the broker shows one to the directory.
    pub(crate) fn new(
        options: &LdapOptions,
        tls: Tls,
        has_certificate: bool,
    ) -> anyhow::Result<Self> {
        anyhow::ensure!(
            options.servers.iter().next().is_some(),
            "auth_backends: ldap needs auth_ldap.servers.1"
        );
        anyhow::ensure!(
            options.dn_lookup().is_none_or(|(_, base)| !base.is_empty()),
            "auth_ldap.dn_lookup_attribute needs auth_ldap.dn_lookup_base"
        );
        let by_certificate =
            [options.dn_lookup_as(), options.ask_as()].contains(&Bind::Certificate);
        anyhow::ensure!(
            !by_certificate || has_certificate && !matches!(tls, Tls::None),
            "auth_ldap.dn_lookup_bind and auth_ldap.other_bind: external needs auth_ldap.ssl_options.certfile, and \
             auth_ldap.use_ssl or auth_ldap.use_starttls"
        );
        let queries = [&options.vhost_access, &options.resource_access, &options.topic_access];
        for query in queries.into_iter().chain(options.tags.iter().map(|(_, query)| query)) {
            must_have_regexes(query).map_err(|why| anyhow::anyhow!("auth_ldap.queries: {why}"))?;
        }
        Ok(Self { pool: Pool::new(options, tls), options: options.clone() })
    }

    pub(crate) async fn authenticate(
        self: &Arc<Self>,
        candidate: Candidate<'_>,
    ) -> Result<Admitted, Denied> {
        let name = candidate.user;
        // Without a name, or without a password, a directory takes a client for nobody and says yes
        // (RFC 4513 §5.1.2).
        if name.is_empty() || candidate.password.is_some_and(str::is_empty) {
            let why = format!("user '{name}' - unauthenticated bind not allowed");
            return Err(Denied::Refused(why));
        }
        let failed = |fault: Fault| Denied::Failed(format!("the directory (LDAP): {fault}"));
        let busy = |fault: Fault| Denied::Busy(format!("the directory (LDAP): {fault}"));
        let _share = self.pool.share(candidate.address).await.map_err(busy)?;
        let refused = || Denied::Refused(format!("user '{name}' - the directory refuses it"));
        let found = match candidate.password {
            Some(password) => self.with_password(name, password).await.map_err(failed)?,
            None => self.without_password(name).await?.map_err(failed)?,
        };
        let User { dn, bound, credentials } = found.ok_or_else(refused)?;
        let variables = Variables::of_user(name).with_dn(&dn);
        let asks_as = Credentials::of(&self.options.ask_as());
        // The user's own connection is bound as the user already. Another one is not asked for as long as this
        // one is held: there may be no more than one.
        let mut own = match &asks_as {
            None => Some(bound),
            Some(_) => {
                self.pool.give_back(bound);
                None
            }
        };
        let credentials = asks_as.unwrap_or(credentials);
        let mut answers = Answers::new(Work::of_asking());
        let mut tags = Vec::new();
        for (tag, query) in self.options.tags.iter() {
            let has_it = match &mut own {
                Some(bound) => self.evaluate_on(bound, query, &variables, &mut answers).await,
                None => self.evaluate(query, &variables, &credentials, &mut answers).await,
            };
            let failed = |why| Denied::Failed(format!("the directory (LDAP), tag {tag}: {why}"));
            if has_it.map_err(failed)? {
                tags.push(tag.to_owned());
            }
        }
        if let Some(bound) = own {
            self.pool.give_back(bound);
        }
        let rights = LdapRights { ldap: Arc::clone(self), variables, credentials };
        Ok(Admitted {
            user: name.into(),
            tags,
            rights: Some(Arc::new(rights)),
            expires: None,
            is_operator: false,
        })
    }

    async fn with_password(&self, name: &str, password: &str) -> Result<Option<User>, Fault> {
        let variables = Variables::of_user(name);
        let looks_up_as = Credentials::of(&self.options.dn_lookup_as());
        let mut dn = variables.dn(&self.options.user_dn_pattern);
        let mut binds_as = match &self.options.user_bind_pattern {
            Some(pattern) if pattern != "none" => variables.dn(pattern),
            _ => dn.clone(),
        };
        let looks_up = self.options.dn_lookup().is_some();
        if looks_up && let Some(other) = &looks_up_as {
            let mut bound = self.bound(other).await?;
            let Some(found) = self.look_up(&mut bound, &variables).await? else { return Ok(None) };
            self.pool.give_back(bound);
            (dn, binds_as) = (found.clone(), found);
        }
        if binds_as.is_empty() {
            return Ok(None);
        }
        let credentials = Credentials::new(&binds_as, password);
        let Some(mut bound) = self.pool.bind(&credentials).await? else { return Ok(None) };
        if looks_up && looks_up_as.is_none() {
            let Some(found) = self.look_up(&mut bound, &variables).await? else { return Ok(None) };
            dn = found;
        }
        Ok(Some(User { dn, bound, credentials }))
    }

    /// A user who has shown otherwise who it is, such as by a certificate.
    async fn without_password(&self, name: &str) -> Result<Result<Option<User>, Fault>, Denied> {
        let Some(credentials) = Credentials::of(&self.options.ask_as()) else {
            return Err(Denied::Refused(format!(
                "user '{name}' has no password, and auth_ldap.other_bind is as_user"
            )));
        };
        let found = async {
            let variables = Variables::of_user(name);
            let mut bound = self.bound(&credentials).await?;
            let dn = match self.options.dn_lookup() {
                Some(_) => self.look_up(&mut bound, &variables).await?,
                None => Some(variables.dn(&self.options.user_dn_pattern)),
            };
            Ok(dn.map(|dn| User { dn, bound, credentials: credentials.clone() }))
        };
        Ok(found.await)
    }

    /// A connection as somebody who is there for this, and whom the directory knows.
    async fn bound(&self, credentials: &Credentials) -> Result<Bound, Fault> {
        let refused = || Fault::Refused(credentials.name().to_owned());
        self.pool.bind(credentials).await?.ok_or_else(refused)
    }

    /// The distinguished name of the one entry that has the user's name in the attribute.
    async fn look_up(
        &self,
        bound: &mut Bound,
        variables: &Variables,
    ) -> Result<Option<String>, Fault> {
        let (attribute, base) = self.options.dn_lookup().unwrap_or_default();
        let value = variables.text(&self.options.user_dn_pattern);
        let filter = Filter::Equal { attribute: attribute.to_owned(), value };
        let found = bound.link.search(base, Scope::Subtree, &filter, None).await?;
        let [entry] = found.as_slice() else {
            let (entries, user) = (found.len(), variables.get("username"));
            tracing::warn!(user, attribute, base, entries, "the directory has not one such user");
            return Ok(None);
        };
        Ok(kept_dn(&entry.dn).map(str::to_owned))
    }

    /// Whether a query is true, asked as somebody.
    async fn evaluate(
        &self,
        query: &Query,
        variables: &Variables,
        credentials: &Credentials,
        answers: &mut Answers,
    ) -> Result<bool, String> {
        match self.known(query, variables, answers) {
            Ok(is_true) => return Ok(is_true),
            Err(Stop::Wrong(why)) => return Err(why),
            Err(Stop::Ask(_)) => {}
        }
        let mut bound = self.bound(credentials).await.map_err(|fault| fault.to_string())?;
        let is_true = self.evaluate_on(&mut bound, query, variables, answers).await?;
        self.pool.give_back(bound);
        Ok(is_true)
    }

    async fn evaluate_on(
        &self,
        bound: &mut Bound,
        query: &Query,
        variables: &Variables,
        answers: &mut Answers,
    ) -> Result<bool, String> {
        loop {
            match self.known(query, variables, answers) {
                Ok(is_true) => return Ok(is_true),
                Err(Stop::Wrong(why)) => return Err(why),
                Err(Stop::Ask(lookup)) => {
                    let answer = look(bound, &lookup).await.map_err(|fault| fault.to_string())?;
                    tracing::debug!(?lookup, ?answer, "the directory was asked");
                    answers.insert(lookup, answer)?;
                }
            }
        }
    }

    fn known(&self, query: &Query, variables: &Variables, answers: &Answers) -> Result<bool, Stop> {
        let group_base = self.options.group_base();
        Evaluation { variables, answers, group_base }.query(query)
    }

    fn query_about(&self, question: &Question) -> &Query {
        match question {
            Question::Vhost(_) => &self.options.vhost_access,
            Question::Resource { .. } => &self.options.resource_access,
            Question::Topic { .. } => &self.options.topic_access,
        }
    }
}

/// Whether what a query has in the place of regular expressions can be some.
fn must_have_regexes(query: &Query) -> Result<(), String> {
    match query {
        Query::Match(_, Text::Pattern(pattern)) => must_be_regex(&Variables::any().regex(pattern)),
        Query::Not(query) => must_have_regexes(query),
        Query::And(queries) | Query::Or(queries) => queries.iter().try_for_each(must_have_regexes),
        Query::For(cases) => cases.iter().try_for_each(|(_, _, query)| must_have_regexes(query)),
        _ => Ok(()),
    }
}

/// Longest distinguished name of a user, in bytes. Each connection of the user keeps it.
const DN_MAX: usize = 4 << 10;

/// The distinguished name that a directory gives, unless that is too long.
fn kept_dn(dn: &str) -> Option<&str> {
    if dn.len() > DN_MAX {
        let (bytes, dn) = (dn.len(), told(dn));
        tracing::warn!(bytes, %dn, "the directory gives a user a name of more than {DN_MAX} bytes, who is refused");
        return None;
    }
    Some(dn)
}

async fn look(bound: &mut Bound, lookup: &Lookup) -> Result<Option<Vec<String>>, Fault> {
    let Lookup { base, scope, filter, attribute } = lookup;
    let entries = bound.link.search(base, *scope, filter, attribute.as_deref()).await?;
    Ok(match attribute {
        Some(_) => entries.into_iter().next().map(|entry| entry.values),
        None => Some(entries.into_iter().map(|entry| entry.dn).collect()),
    })
}

/// What a user of the directory may do.
#[derive(Debug)]
struct LdapRights {
    ldap: Arc<Ldap>,
    variables: Variables,
    credentials: Credentials,
}

impl LdapRights {
    fn variables(&self, question: &Question) -> Variables {
        let user = self.variables.clone();
        match question {
            Question::Vhost(vhost) => user.with("vhost", vhost),
            Question::Resource { vhost, kind, name, permission } => user
                .with("vhost", vhost)
                .with("resource", kind.name())
                .with("name", name)
                .with("permission", permission.name()),
            Question::Topic { vhost, exchange, permission, key } => {
                let name = user.get("username").unwrap_or_default().to_owned();
                user.with("vhost", vhost)
                    .with("resource", "topic")
                    .with("name", exchange)
                    .with("permission", permission.name())
                    .with("routing_key", key)
                    .with("variable_map.username", &name)
                    .with("variable_map.vhost", vhost)
            }
        }
    }
}

impl Rights for LdapRights {
    fn decide(&self, question: &Question) -> Option<Decision> {
        let (query, variables) = (self.ldap.query_about(question), self.variables(question));
        let answers = Answers::new(Work::at_once());
        self.ldap.known(query, &variables, &answers).ok().map(Decision::of)
    }

    fn ask<'a>(&'a self, question: &'a Question) -> Deciding<'a> {
        Box::pin(async move {
            let (query, variables) = (self.ldap.query_about(question), self.variables(question));
            let mut answers = Answers::new(Work::of_asking());
            let asked = self.ldap.evaluate(query, &variables, &self.credentials, &mut answers);
            match asked.await {
                Ok(is_true) => Decision::of(is_true),
                Err(why) => {
                    let user = self.variables.get("username");
                    tracing::error!(user, ?question, why, "the directory (LDAP) gives no answer");
                    let told =
                        format!(", backend rabbit_auth_backend_ldap returned an error: {why}");
                    Decision::Failed(told.into())
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use leveret_config::Value as _;

    use super::*;

    #[test]
    fn a_regular_expression_that_cannot_be_is_told_at_the_start() {
        let check = |query: &str| must_have_regexes(&Query::read(query).unwrap());
        assert_eq!(check(r#"{for, [{permission, read, {match, "a", "^${name}$"}}]}"#), Ok(()));
        for wrong in ["^(?!amq)", "("] {
            let query = format!(r#"{{'or', [{{'not', {{match, "${{name}}", "{wrong}"}}}}]}}"#);
            let why = check(&query).unwrap_err();
            assert!(why.starts_with(&format!("the regular expression '{wrong}': ")), "{why}");
        }
    }

    #[test]
    fn a_long_name_of_the_directory_is_nobody() {
        let dn = "x".repeat(DN_MAX);
        assert_eq!(kept_dn(&dn), Some(dn.as_str()));
        assert_eq!(kept_dn(&(dn + "x")), None);
    }
}
