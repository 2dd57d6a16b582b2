//! Users kept by a web service, asked as RabbitMQ's `rabbitmq_auth_backend_http` asks it.
//!
//! | about | parameters | answers |
//! |---|---|---|
//! | user | `username`, `password` | `allow TAG TAG`, `deny` |
//! | vhost | `username`, `vhost`, `ip`, `tags` | `allow`, `deny` |
//! | resource | `username`, `vhost`, `resource`, `name`, `permission`, `tags` | `allow`, `deny` |
//! | topic | these, `routing_key`, `variable_map.username`, `variable_map.vhost` | `allow`, `deny` |
//!
//! An answer has status 200 or 201. `deny REASON` is a refusal with a reason for the log, or for the client.

use std::sync::Arc;

use hyper::{StatusCode, Uri};
use leveret_config::auth::{HttpAuthOptions, HttpMethod};
use leveret_topology::rights::{Admitted, Deciding, Decision, Question, Rights};
use rustls::ClientConfig;

use crate::client::{Client, address, form, with_query};
use crate::source::{Candidate, Denied, told};

/// The service.
#[derive(Debug)]
pub struct Http {
    client: Client,
    method: HttpMethod,
    user: Uri,
    vhost: Uri,
    resource: Uri,
    topic: Uri,
    discloses: bool,
}

/// What the service says.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Allow(Vec<String>),
    /// Why, if it says so.
    Deny(String),
}

impl Http {
    pub(crate) fn new(options: &HttpAuthOptions, tls: &Arc<ClientConfig>) -> anyhow::Result<Self> {
        let (timeout, connecting) = (options.request_timeout, options.connection_timeout);
        Ok(Self {
            client: Client::new(tls, timeout.into(), connecting.into()),
            method: options.method,
            user: address("auth_http.user_path", &options.user_path)?,
            vhost: address("auth_http.vhost_path", &options.vhost_path)?,
            resource: address("auth_http.resource_path", &options.resource_path)?,
            topic: address("auth_http.topic_path", &options.topic_path)?,
            discloses: options.disclosure,
        })
    }

    async fn ask(&self, about: &Uri, pairs: &[(&str, &str)]) -> Result<Answer, String> {
        let text = form(pairs);
        let (uri, form) = match self.method {
            HttpMethod::Get => (with_query(about, &text)?, None),
            HttpMethod::Post => (about.clone(), Some(text)),
        };
        let (status, body) = self.client.ask(uri, form).await?;
        if status != StatusCode::OK && status != StatusCode::CREATED {
            return Err(format!("status {}", status.as_u16()));
        }
        parse(&body)
    }

    pub(crate) async fn authenticate(
        self: &Arc<Self>,
        candidate: Candidate<'_>,
    ) -> Result<Admitted, Denied> {
        let mut pairs = vec![("username", candidate.user)];
        pairs.extend(candidate.password.map(|password| ("password", password)));
        match self.ask(&self.user, &pairs).await {
            Ok(Answer::Allow(tags)) => {
                let rights = HttpRights {
                    service: Arc::clone(self),
                    user: candidate.user.into(),
                    tags: tags.join(" "),
                    address: candidate.address.into(),
                };
                Ok(Admitted {
                    user: candidate.user.into(),
                    tags,
                    rights: Some(Arc::new(rights)),
                    expires: None,
                    is_operator: false,
                })
            }
            Ok(Answer::Deny(why)) if why.is_empty() => {
                Err(Denied::Refused("denied by the backing HTTP service".to_owned()))
            }
            Ok(Answer::Deny(why)) => {
                Err(Denied::Refused(format!("denied by the backing HTTP service: {why}")))
            }
            Err(why) => Err(Denied::Failed(format!("the backing HTTP service: {why}"))),
        }
    }
}

/// What a user of the service may do.
#[derive(Debug)]
struct HttpRights {
    service: Arc<Http>,
    user: Box<str>,
    /// Divided by spaces.
    tags: String,
    address: Box<str>,
}

impl Rights for HttpRights {
    fn decide(&self, _: &Question) -> Option<Decision> {
        None
    }

    fn ask<'a>(&'a self, question: &'a Question) -> Deciding<'a> {
        Box::pin(async move {
            let service = &self.service;
            let about = match question {
                Question::Vhost(_) => &service.vhost,
                Question::Resource { .. } => &service.resource,
                Question::Topic { .. } => &service.topic,
            };
            let answer = service.ask(about, &self.pairs(question)).await;
            let user = &*self.user;
            match answer {
                Ok(Answer::Allow(_)) => Decision::Allowed,
                Ok(Answer::Deny(why)) => {
                    tracing::debug!(user, ?question, why, "the HTTP service denies");
                    let told = (service.discloses && !why.is_empty())
                        .then(|| format!(" by backend rabbit_auth_backend_http: {why}").into());
                    Decision::Refused(told)
                }
                Err(why) => {
                    tracing::error!(user, ?question, why, "the HTTP service cannot be asked");
                    let told =
                        format!(", backend rabbit_auth_backend_http returned an error: {why}");
                    Decision::Failed(told.into())
                }
            }
        })
    }
}

impl HttpRights {
    fn pairs<'a>(&'a self, question: &'a Question) -> Vec<(&'a str, &'a str)> {
        let (user, tags) = ("username", ("tags", self.tags.as_str()));
        match question {
            Question::Vhost(vhost) => {
                vec![(user, &self.user), ("vhost", vhost), ("ip", &self.address), tags]
            }
            Question::Resource { vhost, kind, name, permission } => vec![
                (user, &self.user),
                ("vhost", vhost),
                ("resource", kind.name()),
                ("name", name),
                ("permission", permission.name()),
                tags,
            ],
            Question::Topic { vhost, exchange, permission, key } => vec![
                (user, &self.user),
                ("vhost", vhost),
                ("resource", "topic"),
                ("name", exchange),
                ("permission", permission.name()),
                tags,
                ("routing_key", key),
                ("variable_map.username", &self.user),
                ("variable_map.vhost", vhost),
            ],
        }
    }
}

/// Longest list of tags, in bytes. Each connection of the user keeps it.
const TAGS_BYTES_MAX: usize = 8 << 10;
/// Most tags: each takes memory besides its bytes.
const TAGS_MAX: usize = 256;

fn parse(body: &[u8]) -> Result<Answer, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the answer is not UTF-8")?.trim();
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or_default();
    match first.to_ascii_lowercase().as_str() {
        "allow" if text.len() > TAGS_BYTES_MAX => {
            Err(format!("the answer has more than {TAGS_BYTES_MAX} bytes of tags"))
        }
        "allow" if words.clone().nth(TAGS_MAX).is_some() => {
            Err(format!("the answer has more than {TAGS_MAX} tags"))
        }
        "allow" => Ok(Answer::Allow(words.map(str::to_owned).collect())),
        "deny" => Ok(Answer::Deny(told(text[first.len()..].trim()).into_owned())),
        _ => Err("the answer is neither allow nor deny".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn answers() {
        check("allow",                     Some(Answer::Allow(vec![])));
        check("Allow administrator x\n",   Some(Answer::Allow(vec!["administrator".to_owned(), "x".to_owned()])));
        check("DENY",                      Some(Answer::Deny(String::new())));
        check(" deny not today ",          Some(Answer::Deny("not today".to_owned())));
        check("allowed",                   None);
        check("",                          None);
        check("<html>",                    None);
    }

    #[test]
    fn tags_are_few() {
        let allow = |count, tag: &str| parse(format!("allow {}", tag.repeat(count)).as_bytes());
        assert!(matches!(allow(256, "t "), Ok(Answer::Allow(tags)) if tags.len() == 256));
        assert_eq!(allow(257, "t ").unwrap_err(), "the answer has more than 256 tags");
        let long = allow(100, &format!("{} ", "t".repeat(100)));
        assert_eq!(long.unwrap_err(), "the answer has more than 8192 bytes of tags");
    }

    #[test]
    fn a_long_reason_is_told_in_short() {
        let Ok(Answer::Deny(why)) = parse(format!("deny {}", "x".repeat(1 << 20)).as_bytes())
        else {
            panic!("it denies");
        };
        assert!(why.ends_with("...") && why.len() < 1100, "{why}");
    }

    #[track_caller]
    fn check(text: &str, want: Option<Answer>) {
        assert_eq!(parse(text.as_bytes()).ok(), want, "{text:?}");
    }
}
