//! How the page lets people sign in: what `GET /api/auth` says, and whom the page may ask besides the broker.

use std::collections::BTreeSet;

use leveret_config::Value as _;
use leveret_config::auth::Named;
use leveret_config::oauth2::OAuth2Options;
use leveret_config::signin::{InitiatedBy, SignInOptions};
use serde_json::{Map, Value, json};

/// What is known of it when the node starts.
#[derive(Clone, Debug)]
pub(crate) struct SignIn {
    /// What `GET /api/auth` says, as RabbitMQ says it.
    pub(crate) answer: Value,
    /// The content security policy.
    pub(crate) csp: String,
    /// Whether a provider may send people here with a token.
    pub(crate) takes_tokens: bool,
}

impl SignIn {
    /// By name and password alone.
    pub(crate) fn by_password() -> Self {
        let csp = crate::page::CSP.to_owned();
        Self { answer: json!({"oauth_enabled": false}), csp, takes_tokens: false }
    }

    pub(crate) fn new(options: &SignInOptions, oauth2: &OAuth2Options) -> Self {
        let servers = if options.enabled { servers(options, oauth2) } else { Map::new() };
        if servers.is_empty() {
            if options.enabled {
                tracing::warn!(
                    "management.oauth_enabled: nobody can sign in by OAuth 2: there is no resource server with \
                     an issuer and a management.oauth_client_id"
                );
            }
            return Self::by_password();
        }
        let addresses = servers.values().flat_map(|server| {
            ["oauth_provider_url", "oauth_metadata_url"].map(|name| server[name].as_str())
        });
        let origins: BTreeSet<_> = addresses.flatten().filter_map(origin).collect();
        let origins = origins.into_iter().collect::<Vec<_>>().join(" ");
        let mut answer = json!({
            "oauth_enabled": true,
            "oauth_disable_basic_auth": options.disable_basic_auth,
            "oauth_resource_servers": servers,
        });
        put(&mut answer, "oauth_client_id", options.client_id.as_deref());
        put(&mut answer, "oauth_scopes", options.scopes.as_deref());
        for (name, params) in [
            ("oauth_authorization_endpoint_params", &options.authorization_params),
            ("oauth_token_endpoint_params", &options.token_params),
        ] {
            if let Some(params) = object(params) {
                answer[name] = params;
            }
        }
        let csp = format!("{}; connect-src 'self' {origins}", crate::page::CSP);
        let mut all = answer["oauth_resource_servers"].as_object().into_iter().flatten();
        let takes_tokens = all.any(|(_, server)| server.get(INITIATED_BY).is_some());
        Self { answer, csp, takes_tokens }
    }
}

/// What a server has for which the page does not begin.
const INITIATED_BY: &str = "oauth_initiated_logon_type";

/// The resource servers that people can sign in for, by id.
fn servers(options: &SignInOptions, oauth2: &OAuth2Options) -> Map<String, Value> {
    let providers = oauth2.providers();
    let mut servers = Map::new();
    for server in oauth2.servers() {
        let id = &server.resource_server_id;
        let own = options.servers.get(id).cloned().unwrap_or_default();
        let name = server.provider.as_deref().unwrap_or_default();
        let provider = providers.iter().find(|(own, _)| *own == name).map(|(_, provider)| provider);
        let issuer = provider.and_then(|provider| provider.issuer.clone());
        let url = own.provider_url.or_else(|| options.provider_url.clone());
        // What is said of the issuer does not hold for another address.
        let metadata = own.metadata_url.or_else(|| options.metadata_url.clone()).or_else(|| {
            let (issuer, provider) = issuer.as_deref().zip(provider).filter(|_| url.is_none())?;
            let path = provider.discovery_path.trim_start_matches('/');
            Some(format!("{}/{path}", issuer.trim_end_matches('/')))
        });
        let by_provider = own.initiated_by.unwrap_or(options.initiated_by) == InitiatedBy::Provider;
        // Who sends people here needs not know the page.
        let is_known = by_provider || own.client_id.is_some() || options.client_id.is_some();
        let Some(url) = url.or(issuer).filter(|_| is_known && !own.disabled) else { continue };
        let mut server = json!({"id": id, "oauth_provider_url": url});
        put(&mut server, "oauth_metadata_url", metadata.as_deref());
        put(&mut server, "label", own.label.as_deref());
        put(&mut server, "oauth_client_id", own.client_id.as_deref());
        put(&mut server, "oauth_scopes", own.scopes.as_deref());
        if by_provider {
            server[INITIATED_BY] = json!(InitiatedBy::Provider.show());
        }
        servers.insert(id.clone(), server);
    }
    servers
}

fn put(object: &mut Value, name: &str, text: Option<&str>) {
    if let Some(text) = text {
        object[name] = text.into();
    }
}

fn object(named: &Named) -> Option<Value> {
    let map: Map<_, _> = named.iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
    (!map.is_empty()).then_some(Value::Object(map))
}

/// `https://host:port` of an address. One that would not stay one word of the policy is none.
fn origin(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
    let is_sound = ["https", "http"].contains(&scheme) && host.chars().all(is_plain);
    (is_sound && !host.is_empty()).then(|| format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oauth2() -> OAuth2Options {
        OAuth2Options {
            resource_server_id: "rabbit".to_owned(),
            issuer: Some("https://login.example.com/realm/".to_owned()),
            ..Default::default()
        }
    }

    #[test]
    fn it_is_said_as_rabbitmq_says_it() {
        let options = SignInOptions {
            enabled: true,
            client_id: Some("page".to_owned()),
            scopes: Some("openid rabbit.tag:management".to_owned()),
            ..Default::default()
        };
        let made = SignIn::new(&options, &oauth2());
        let want = json!({
            "oauth_enabled": true,
            "oauth_disable_basic_auth": true,
            "oauth_client_id": "page",
            "oauth_scopes": "openid rabbit.tag:management",
            "oauth_resource_servers": {"rabbit": {
                "id": "rabbit",
                "oauth_provider_url": "https://login.example.com/realm/",
                "oauth_metadata_url":
                    "https://login.example.com/realm/.well-known/openid-configuration",
            }},
        });
        assert_eq!(made.answer, want);
        assert!(
            made.csp.ends_with("; connect-src 'self' https://login.example.com"),
            "{}",
            made.csp
        );
    }

    #[test]
    fn without_a_client_or_a_provider_it_is_off() {
        let off = json!({"oauth_enabled": false});
        let on = SignInOptions { enabled: true, ..Default::default() };
        let client = SignInOptions { client_id: Some("c".to_owned()), ..on.clone() };
        let named = SignInOptions { enabled: false, ..client.clone() };
        let nowhere = OAuth2Options { issuer: None, ..oauth2() };
        for (options, oauth2) in [(&on, &oauth2()), (&named, &oauth2()), (&client, &nowhere)] {
            let made = SignIn::new(options, oauth2);
            assert_eq!((made.answer, made.csp.as_str()), (off.clone(), crate::page::CSP));
        }
        let elsewhere = SignInOptions { provider_url: Some("http://h:1/x".to_owned()), ..client };
        let made = SignIn::new(&elsewhere, &nowhere);
        let server = &made.answer["oauth_resource_servers"]["rabbit"];
        assert_eq!(server["oauth_provider_url"], "http://h:1/x");
        assert!(made.csp.ends_with("connect-src 'self' http://h:1"), "{}", made.csp);
    }

    #[test]
    fn a_provider_may_begin() {
        let options = SignInOptions {
            enabled: true,
            initiated_by: InitiatedBy::Provider,
            provider_url: Some("https://portal.example.com/start".to_owned()),
            ..Default::default()
        };
        let made = SignIn::new(&options, &oauth2());
        let want = json!({
            "id": "rabbit",
            "oauth_provider_url": "https://portal.example.com/start",
            "oauth_initiated_logon_type": "idp_initiated",
        });
        assert_eq!(made.answer["oauth_resource_servers"]["rabbit"], want);
        assert!(made.takes_tokens);
        let page = SignInOptions {
            initiated_by: InitiatedBy::Page,
            client_id: Some("c".to_owned()),
            ..options
        };
        assert!(!SignIn::new(&page, &oauth2()).takes_tokens);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn origins() {
        check("https://a.b:1/c?d",     Some("https://a.b:1"));
        check("http://[::1]:8080/x",   Some("http://[::1]:8080"));
        check("https://a; script-src *", None);
        check("https:///x",            None);
        check("ftp://a",               None);
        check("a",                     None);
    }

    #[track_caller]
    fn check(address: &str, want: Option<&str>) {
        assert_eq!(origin(address).as_deref(), want, "{address}");
    }
}
