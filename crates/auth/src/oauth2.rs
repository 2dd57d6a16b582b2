//! Tokens that somebody else signs (JWT), by the rules of RabbitMQ's `rabbitmq_auth_backend_oauth2`.
//!
//! A client shows its token as its password. Signature, audience and end are checked, and the user is the one that the
//! token names, whatever the client calls itself. What the token says of the user's rights is in
//! [`scope`](crate::scope).

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use jsonwebtoken::{Algorithm, AlgorithmFamily, Validation};
use leveret_config::oauth2::{OAuth2Options, ScopeSyntax};
use leveret_queue::Time;
use leveret_topology::rights::Admitted;
use serde_json::{Map, Value};

use crate::keys::Keys;
use crate::scope::Scopes;
use crate::source::{Candidate, Denied, TlsMaker};

/// Scopes of one token.
const SCOPES_MAX: usize = 2048;
/// Where tokens of UMA (Keycloak's "requesting party tokens") have more scopes.
const REQUESTING_PARTY: &str = "authorization.permissions.scopes";

type Claims = Map<String, Value>;

/// What the broker is called in tokens, and who makes them.
#[derive(Debug)]
pub struct OAuth2 {
    /// Of each resource server.
    rules: Vec<Rules>,
    providers: Vec<Provider>,
}

/// Who makes tokens.
#[derive(Debug)]
struct Provider {
    keys: Keys,
    /// Empty: all but those with a shared secret.
    algorithms: Vec<Algorithm>,
    default_key: String,
}

/// What is expected of a token that is signed.
#[derive(Debug)]
struct Rules {
    id: String,
    prefix: String,
    additional: Vec<String>,
    aliases: Vec<(String, Vec<String>)>,
    username_claims: Vec<String>,
    verify_aud: bool,
    require_exp: bool,
    syntax: ScopeSyntax,
    /// Of those of its [`details`] that count; empty: none.
    kind: String,
    /// Its place among the providers.
    provider: usize,
}

impl OAuth2 {
    pub(crate) fn new(options: &OAuth2Options, tls: TlsMaker<'_>) -> anyhow::Result<Self> {
        let known = options.providers();
        let mut names: Vec<&str> = Vec::new();
        let (mut rules, mut providers) = (Vec::<Rules>::new(), Vec::new());
        let servers = options.servers();
        anyhow::ensure!(
            !servers.is_empty(),
            "auth_backends: oauth2 needs auth_oauth2.resource_server_id"
        );
        for server in &servers {
            let id = &server.resource_server_id;
            anyhow::ensure!(
                !id.is_empty() && rules.iter().all(|other| other.id != *id),
                "auth_oauth2.resource_servers: there are two with the id '{id}', or one with none"
            );
            let name = server.provider.as_deref().unwrap_or_default();
            let at = match names.iter().position(|own| *own == name) {
                Some(at) => at,
                None => {
                    let (name, options) = known
                        .iter()
                        .find(|(own, _)| *own == name)
                        .with_context(|| format!("auth_oauth2: there is no provider '{name}'"))?;
                    names.push(*name);
                    providers.push(Provider::new(options, tls).with_context(|| match *name {
                        "" => "auth_oauth2".to_owned(),
                        name => format!("auth_oauth2.oauth_providers.{name}"),
                    })?);
                    providers.len() - 1
                }
            };
            rules.push(Rules::new(server, at));
        }
        Ok(Self { rules, providers })
    }

    pub(crate) async fn authenticate(&self, candidate: Candidate<'_>) -> Result<Admitted, Denied> {
        let Some(token) = candidate.password else {
            return Err(Denied::Refused("there is no token".to_owned()));
        };
        // What is wrong is told without any part of the token.
        let invalid = || Denied::Refused("the token is no JWT".to_owned());
        // Nothing of it is believed but who has to have signed it.
        let claimed = jsonwebtoken::dangerous::insecure_decode::<Claims>(token);
        let claimed = claimed.map_err(|_| invalid())?;
        let rules = choose(&self.rules, &claimed.claims).map_err(Denied::Refused)?;
        let provider = &self.providers[rules.provider];
        let header = claimed.header;
        let kid = header.kid.as_deref().unwrap_or(&provider.default_key);
        let key = provider.keys.get(kid).await.map_err(Denied::Failed)?;
        let mut validation = Validation::new(header.alg);
        validation.algorithms = provider.algorithms_for(key.family());
        validation.required_spec_claims.clear();
        // RabbitMQ's rules on these differ from the library's.
        (validation.validate_exp, validation.validate_aud) = (false, false);
        let decoded = jsonwebtoken::decode::<Claims>(token, &key, &validation);
        let claims =
            decoded.map_err(|error| Denied::Refused(format!("the token: {error}")))?.claims;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        rules.admit(claims, now.as_secs()).map_err(Denied::Refused)
    }
}

impl Provider {
    fn new(options: &OAuth2Options, tls: TlsMaker<'_>) -> anyhow::Result<Self> {
        let mut algorithms = Vec::new();
        for (_, name) in options.algorithms.iter() {
            let algorithm = Algorithm::from_str(name);
            algorithms.push(algorithm.ok().with_context(|| {
                format!("algorithms: {name} is not known; there are RS256, ES256, ...")
            })?);
        }
        Ok(Self {
            keys: Keys::new(options, &tls(&options.tls())?)?,
            algorithms,
            default_key: options.default_key.clone().unwrap_or_default(),
        })
    }

    /// Never one of another family than the key's: a public key is no shared secret.
    fn algorithms_for(&self, family: AlgorithmFamily) -> Vec<Algorithm> {
        let of_key = family.algorithms().iter().copied();
        of_key
            .filter(|algorithm| match self.algorithms.as_slice() {
                [] => family != AlgorithmFamily::Hmac,
                asked => asked.contains(algorithm),
            })
            .collect()
    }
}

/// The resource server that a token is for; the one that does not look at that, if it is for none.
fn choose<'a>(all: &'a [Rules], claims: &Claims) -> Result<&'a Rules, String> {
    let audience: Vec<&str> = match claims.get("aud") {
        Some(Value::String(all)) => all.split(' ').collect(),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let lax = || all.iter().filter(|rules| !rules.verify_aud).collect::<Vec<_>>();
    let named = all.iter().filter(|rules| audience.contains(&rules.id.as_str()));
    match named.collect::<Vec<_>>().as_slice() {
        [one] => Ok(one),
        [] => match (lax().as_slice(), claims.get("aud")) {
            ([one], _) => Ok(one),
            ([], None) => Err("the token has no audience (aud)".to_owned()),
            ([], Some(_)) => Err("the token is for another audience (aud)".to_owned()),
            _ => Err("the token does not say for which resource server it is (aud)".to_owned()),
        },
        _ => Err("the token is for several resource servers (aud)".to_owned()),
    }
}

impl Rules {
    fn new(options: &OAuth2Options, provider: usize) -> Self {
        let id = options.resource_server_id.clone();
        let additional = options.additional_scopes_key.as_deref().unwrap_or_default();
        let claims = options.username_claims.iter().map(|(_, claim)| claim.to_owned());
        let aliases = options.scope_aliases.iter().map(|(alias, scopes)| {
            (alias.to_owned(), scopes.into_iter().map(str::to_owned).collect())
        });
        Self {
            prefix: options.scope_prefix.clone().unwrap_or_else(|| format!("{id}.")),
            additional: additional.split_whitespace().map(str::to_owned).collect(),
            aliases: aliases.collect(),
            username_claims: claims.chain(["sub".to_owned(), "client_id".to_owned()]).collect(),
            verify_aud: options.verify_aud,
            require_exp: options.require_exp,
            syntax: options.scope_syntax,
            kind: options.resource_server_type.clone().unwrap_or_default(),
            id,
            provider,
        }
    }

    /// Who comes with these claims, which were signed. `now_s` is since 1970.
    fn admit(&self, claims: Claims, now_s: u64) -> Result<Admitted, String> {
        let expires_s = self.check_end(&claims, now_s)?;
        let named = self.username_claims.iter().find_map(|claim| claims.get(claim)?.as_str());
        let user = named.unwrap_or("unknown").into();
        let all = self.scopes(&claims)?;
        let scopes = Scopes { all, claims, syntax: self.syntax };
        Ok(Admitted {
            user,
            tags: scopes.tags(),
            rights: Some(Arc::new(scopes)),
            expires: expires_s.map(|s| Time::from_ms(s.saturating_mul(1000))),
            is_operator: false,
        })
    }

    /// When it ends, in seconds since 1970.
    fn check_end(&self, claims: &Claims, now_s: u64) -> Result<Option<u64>, String> {
        match claims.get("exp") {
            None if self.require_exp => Err("the token does not say when it ends (exp)".to_owned()),
            None => Ok(None),
            Some(end) => {
                let end = end.as_f64().ok_or("the end of the token (exp) is no number")?;
                // Fractions are cut off, as in RabbitMQ.
                let end = end.max(0.0) as u64;
                if end <= now_s {
                    return Err(format!("the token has expired at {end}, now is {now_s}"));
                }
                Ok(Some(end))
            }
        }
    }

    /// The scopes that are about the broker, without their prefix.
    fn scopes(&self, claims: &Claims) -> Result<Vec<String>, String> {
        let mut all = Vec::new();
        let places = self.additional.iter().map(String::as_str);
        for place in std::iter::once("scope").chain([REQUESTING_PARTY]).chain(places) {
            let path: Vec<&str> = place.split('.').filter(|word| !word.is_empty()).collect();
            match (place, claims.get(place)) {
                ("scope", Some(value)) => self.collect(value, &mut all),
                ("scope", None) => {}
                _ => self.walk(&Value::Object(claims.clone()), &path, &mut all),
            }
        }
        if let Some(details) = claims.get("authorization_details") {
            all.extend(details::scopes(details, &self.kind, &self.id));
        }
        for at in 0..all.len() {
            let alias = self.aliases.iter().find(|(alias, _)| *alias == all[at]);
            all.extend(alias.into_iter().flat_map(|(_, scopes)| scopes.iter().cloned()));
        }
        let ours = all.iter().filter_map(|scope| scope.strip_prefix(&*self.prefix));
        let mut ours: Vec<String> = ours.map(str::to_owned).collect();
        ours.sort_unstable();
        ours.dedup();
        if ours.len() > SCOPES_MAX {
            return Err(format!("the token has more than {SCOPES_MAX} scopes"));
        }
        Ok(ours)
    }

    /// Follows a path through objects and lists of them.
    fn walk(&self, value: &Value, path: &[&str], all: &mut Vec<String>) {
        match (value, path) {
            (value, []) => self.collect(value, all),
            (Value::Object(map), [key, rest @ ..]) => {
                if let Some(inner) = map.get(*key) {
                    self.walk(inner, rest, all);
                }
            }
            (Value::Array(list), path) => list.iter().for_each(|one| self.walk(one, path, all)),
            _ => {}
        }
    }

    /// Scopes in a list, in a text divided by spaces, or in an object under our name, where they have no prefix.
    fn collect(&self, value: &Value, all: &mut Vec<String>) {
        match value {
            Value::String(text) => all.extend(text.split_whitespace().map(str::to_owned)),
            Value::Array(list) => {
                all.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            Value::Object(map) => {
                let mut own = Vec::new();
                if let Some(value @ (Value::String(_) | Value::Array(_))) = map.get(&self.id) {
                    self.collect(value, &mut own);
                }
                all.extend(own.into_iter().map(|scope| format!("{}.{scope}", self.id)));
            }
            _ => {}
        }
    }
}

mod details;
#[cfg(test)]
mod tests;
