//! The source `oauth2`: what the broker is called in tokens, and who makes them.
//!
//! The options without a name are those of one resource server and one provider. With names there are more: a
//! resource server takes what it does not say itself from those, a provider does not.

use crate::auth::{ClientTlsSettings, HostnameVerification, Named};
use crate::option::{Group as _, options};
use crate::setting::{KeyMatch, Setting};
use crate::tls::Verify;
use crate::value::words;

words! {
    /// How the patterns in scopes are written.
    ScopeSyntax {
        /// `*` stands for anything.
        Wildcard = "wildcard",
        /// Regular expressions that have to match the whole name.
        Regex = "regex",
    }
}

/// Scopes under other names: `auth_oauth2.scope_aliases.ALIAS = SCOPE SCOPE`, or by a number, with `alias`
/// and `scope`, for aliases that cannot stand in a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScopeAliases {
    direct: Named,
    names: Named,
    scopes: Named,
}

impl ScopeAliases {
    /// Each alias and the scopes it stands for.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        let numbered = self.names.iter().filter_map(|(number, alias)| {
            let (_, scopes) = self.scopes.iter().find(|(other, _)| *other == number)?;
            Some((alias, scopes))
        });
        self.direct.iter().chain(numbered).map(|(alias, scopes)| {
            let scopes = scopes.split([' ', ',']).filter(|scope| !scope.is_empty());
            (alias, scopes.collect())
        })
    }
}

impl Setting for ScopeAliases {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        match key.pattern.rsplit('.').next() {
            Some("alias") => self.names.set(key, text),
            Some("scope") => self.scopes.set(key, text),
            _ => self.direct.set(key, text),
        }
    }

    fn form() -> &'static str {
        "TEXT"
    }

    fn display(&self) -> String {
        let all: Vec<_> =
            self.iter().map(|(alias, scopes)| format!("{alias} = {}", scopes.join(" "))).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// Options of the group under a name each: `auth_oauth2.resource_servers.NAME.scope_prefix`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Several(Vec<(String, Vec<Own>)>);

/// What stands under a name instead of what stands without.
#[derive(Clone, Debug, PartialEq)]
struct Own {
    /// The key without the name.
    pattern: String,
    /// What stands for the pattern's last word with a `$`.
    word: String,
    text: String,
}

impl Own {
    fn apply(&self, options: &mut OAuth2Options) -> Result<(), String> {
        let Self { pattern, word, text } = self;
        let key = KeyMatch { pattern, name: word, group: "" };
        options.set(&key, text).unwrap_or_else(|| Err("the option is not declared".to_owned()))
    }
}

impl Several {
    fn iter(&self) -> impl Iterator<Item = (&str, &[Own])> {
        self.0.iter().map(|(name, own)| (name.as_str(), own.as_slice()))
    }
}

impl Setting for Several {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        let (_, rest) = key.pattern.split_once(".$name.").unwrap_or_default();
        let pattern = match rest {
            "id" => "auth_oauth2.resource_server_id".to_owned(),
            "oauth_provider_id" => "auth_oauth2.default_oauth_provider".to_owned(),
            rest => format!("auth_oauth2.{rest}"),
        };
        let own = Own { pattern, word: key.name.to_owned(), text: text.to_owned() };
        own.apply(&mut OAuth2Options::default())?;
        match self.0.iter_mut().find(|(name, _)| name == key.group) {
            Some((_, all)) => all.push(own),
            None => self.0.push((key.group.to_owned(), vec![own])),
        }
        Ok(())
    }

    fn form() -> &'static str {
        "TEXT"
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.iter().map(|(name, _)| name).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

options! {
    /// The source `oauth2`.
    OAuth2Options, "Tokens of OAuth 2";

    /// Name of the broker in tokens: their `aud` must contain it.
    resource_server_id: String = String::new(), keys = ["auth_oauth2.resource_server_id"];

    /// Type of the rich authorization requests in tokens (`authorization_details`) that are about the broker. Not set:
    /// they are ignored.
    resource_server_type: Option<String> = None, keys = ["auth_oauth2.resource_server_type"];

    /// More resource servers, each with a name. Options that one leaves out are those without a name. Its `id` is its
    /// name by default.
    resource_servers: Several = Several::default(), keys = [
        "auth_oauth2.resource_servers.$name.id",
        "auth_oauth2.resource_servers.$name.scope_prefix",
        "auth_oauth2.resource_servers.$name.resource_server_type",
        "auth_oauth2.resource_servers.$name.additional_scopes_key",
        "auth_oauth2.resource_servers.$name.scope_aliases.$alias",
        "auth_oauth2.resource_servers.$name.scope_aliases.$index.alias",
        "auth_oauth2.resource_servers.$name.scope_aliases.$index.scope",
        "auth_oauth2.resource_servers.$name.scope_pattern_syntax",
        "auth_oauth2.resource_servers.$name.verify_aud",
        "auth_oauth2.resource_servers.$name.require_exp",
        "auth_oauth2.resource_servers.$name.preferred_username_claims.$claim",
        "auth_oauth2.resource_servers.$name.oauth_provider_id"
    ];

    /// More providers of tokens, each with a name. Options of the provider without a name do not hold for them.
    oauth_providers: Several = Several::default(), keys = [
        "auth_oauth2.oauth_providers.$name.issuer",
        "auth_oauth2.oauth_providers.$name.jwks_uri",
        "auth_oauth2.oauth_providers.$name.signing_keys.$name",
        "auth_oauth2.oauth_providers.$name.default_key",
        "auth_oauth2.oauth_providers.$name.algorithms.$algorithm",
        "auth_oauth2.oauth_providers.$name.discovery_endpoint_path",
        "auth_oauth2.oauth_providers.$name.discovery_endpoint_params.$param",
        "auth_oauth2.oauth_providers.$name.https.cacertfile",
        "auth_oauth2.oauth_providers.$name.https.verify",
        "auth_oauth2.oauth_providers.$name.https.hostname_verification"
    ];

    /// Name of the provider of resource servers that name none. Not set: the one without a name.
    provider: Option<String> = None, keys = ["auth_oauth2.default_oauth_provider"];

    /// Beginning of scopes that are about the broker. Not set: `auth_oauth2.resource_server_id` and a dot.
    scope_prefix: Option<String> = None, keys = ["auth_oauth2.scope_prefix"];

    /// Claims besides `scope` that hold scopes, divided by spaces; `a.b` is `b` in `a`.
    additional_scopes_key: Option<String> = None, keys = ["auth_oauth2.additional_scopes_key"];

    /// Other names of scopes, each with the scopes it stands for.
    scope_aliases: ScopeAliases = ScopeAliases::default(),
        keys = ["auth_oauth2.scope_aliases.$alias", "auth_oauth2.scope_aliases.$index.alias", "auth_oauth2.scope_aliases.$index.scope"];

    /// How the patterns in scopes are written.
    scope_syntax: ScopeSyntax = ScopeSyntax::Wildcard, keys = ["auth_oauth2.scope_pattern_syntax"];

    /// Whether a token's `aud` must contain `auth_oauth2.resource_server_id`.
    verify_aud: bool = true, keys = ["auth_oauth2.verify_aud"];

    /// Whether a token must say when it expires (`exp`).
    require_exp: bool = true, keys = ["auth_oauth2.require_exp"];

    /// Claims that hold the user's name, most preferred first; `sub` and `client_id` follow.
    username_claims: Named = Named::default(),
        keys = ["auth_oauth2.preferred_username_claims.$claim"];

    /// Files of public keys (PEM) for the signatures of tokens, under the `kid` of each.
    signing_keys: Named = Named::default(), keys = ["auth_oauth2.signing_keys.$name"];

    /// The `kid` of tokens that have none.
    default_key: Option<String> = None, keys = ["auth_oauth2.default_key"];

    /// Algorithms that tokens may be signed by. Not set: all of RS, PS, ES and EdDSA that fit the key.
    ///
    /// Algorithms with a shared secret (HS256, ...) are used only if they are named here.
    algorithms: Named = Named::default(), keys = ["auth_oauth2.algorithms.$algorithm"];

    /// Address of the provider of tokens. The broker finds the address of the keys there.
    issuer: Option<String> = None, keys = ["auth_oauth2.issuer"], check = https;

    /// Address of the provider's keys (JWKS), in place of the one that `auth_oauth2.issuer` names.
    jwks_uri: Option<String> = None, keys = ["auth_oauth2.jwks_uri"],
        aliases = ["auth_oauth2.jwks_url"], check = https;

    /// Path at which the issuer lists its addresses.
    discovery_path: String = ".well-known/openid-configuration".to_owned(),
        keys = ["auth_oauth2.discovery_endpoint_path"];

    /// Query that is added to that address.
    discovery_params: Named = Named::default(),
        keys = ["auth_oauth2.discovery_endpoint_params.$param"];

    /// File of the authorities that may have signed the issuer's certificate, in PEM. Not set: those of the
    /// machine.
    cacertfile: Option<String> = None, keys = ["auth_oauth2.https.cacertfile"];

    /// Whether the issuer's certificate must be valid. `verify_none` accepts any server.
    verify: Verify = Verify::Peer, keys = ["auth_oauth2.https.peer_verification"],
        aliases = ["auth_oauth2.https.verify"];

    /// How the issuer's name is compared with its certificate. Wildcards match with either value.
    hostname_verification: HostnameVerification = HostnameVerification::Wildcard,
        keys = ["auth_oauth2.https.hostname_verification"];
}

/// As in RabbitMQ: keys come over HTTPS only.
fn https(address: &Option<String>) -> Result<(), String> {
    match address {
        Some(address) if !address.starts_with("https://") => {
            Err("expected an address that begins with https://".to_owned())
        }
        _ => Ok(()),
    }
}

impl OAuth2Options {
    /// What each resource server is: the one without a name, if it has an id, and those with names.
    pub fn servers(&self) -> Vec<Self> {
        let root = (!self.resource_server_id.is_empty()).then(|| self.clone());
        let named = self.resource_servers.iter().map(|(name, own)| {
            let mut server = Self { resource_server_id: name.to_owned(), ..self.clone() };
            // A list that is said anew is another one.
            let says = |list: &str| own.iter().any(|own| own.pattern.starts_with(list));
            if says("auth_oauth2.scope_aliases.") {
                server.scope_aliases = ScopeAliases::default();
            }
            if says("auth_oauth2.preferred_username_claims.") {
                server.username_claims = Named::default();
            }
            server.take(own)
        });
        root.into_iter().chain(named).collect()
    }

    /// Who makes tokens, under the names they have; the one without is called "".
    pub fn providers(&self) -> Vec<(&str, Self)> {
        let named =
            self.oauth_providers.iter().map(|(name, own)| (name, Self::default().take(own)));
        std::iter::once(("", self.clone())).chain(named).collect()
    }

    fn take(mut self, own: &[Own]) -> Self {
        for own in own {
            // Each was tried when it was read.
            let _ = own.apply(&mut self);
        }
        self
    }

    /// How the issuer is spoken to by TLS.
    pub fn tls(&self) -> ClientTlsSettings {
        ClientTlsSettings {
            prefix: "auth_oauth2.https",
            cacertfile: self.cacertfile.clone(),
            certfile: None,
            keyfile: None,
            password: None,
            verify: self.verify,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(options: &mut OAuth2Options, pattern: &str, group: &str, name: &str, text: &str) {
        options.set(&KeyMatch { pattern, name, group }, text).unwrap().unwrap();
    }

    #[test]
    fn what_has_a_name_is_there_without() {
        for spec in OAuth2Options::specs() {
            for pattern in spec.keys.iter().filter(|key| key.contains(".$name.")) {
                let key = KeyMatch { pattern, name: "n", group: "g" };
                let why = Several::default().set(&key, "https://h").err().unwrap_or_default();
                assert!(!why.contains("not declared"), "{pattern}: {why}");
            }
        }
    }

    #[test]
    fn what_a_server_does_not_say_is_as_it_is_without_a_name() {
        let mut options = OAuth2Options::default();
        let all = &mut options;
        set(all, "auth_oauth2.resource_servers.$name.scope_aliases.$alias", "a", "x", "y");
        set(all, "auth_oauth2.resource_servers.$name.id", "b", "b", "bee");
        set(all, "auth_oauth2.resource_servers.$name.require_exp", "b", "b", "false");
        set(all, "auth_oauth2.scope_aliases.$alias", "z", "z", "w");
        set(all, "auth_oauth2.scope_pattern_syntax", "", "", "regex");
        let servers = options.servers();
        let [a, b] = servers.as_slice() else { panic!("two have names, and there is no other") };
        assert_eq!((a.resource_server_id.as_str(), b.resource_server_id.as_str()), ("a", "bee"));
        assert_eq!((a.require_exp, b.require_exp), (true, false));
        assert_eq!(a.scope_syntax, ScopeSyntax::Regex);
        assert_eq!(a.scope_aliases.iter().collect::<Vec<_>>(), [("x", vec!["y"])]);
        assert_eq!(b.scope_aliases.iter().collect::<Vec<_>>(), [("z", vec!["w"])]);
    }

    #[test]
    fn a_provider_is_all_that_it_says() {
        let mut options = OAuth2Options::default();
        let all = &mut options;
        set(all, "auth_oauth2.issuer", "", "", "https://one");
        set(all, "auth_oauth2.oauth_providers.$name.default_key", "p", "p", "k");
        set(all, "auth_oauth2.oauth_providers.$name.https.verify", "p", "p", "verify_none");
        let providers = options.providers();
        let [("", one), ("p", other)] = providers.as_slice() else { panic!("{providers:?}") };
        assert_eq!(one.issuer.as_deref(), Some("https://one"));
        assert_eq!((&other.issuer, other.default_key.as_deref()), (&None, Some("k")));
        assert_eq!((one.verify, other.verify), (Verify::Peer, Verify::None));
    }
}
