//! Public keys that tokens are signed with: from files, and from who makes the tokens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hyper::{StatusCode, Uri};
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::Jwk;
use leveret_config::files;
use leveret_config::oauth2::OAuth2Options;
use rustls::ClientConfig;
use serde_json::Value;

use crate::client::{Client, address, form, with_query};

/// Time the issuer has for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Keys are not asked for more often, whatever tokens name.
const PAUSE: Duration = Duration::from_secs(5);

type Named = HashMap<String, Arc<DecodingKey>, RandomState>;

#[derive(Debug)]
pub(crate) struct Keys {
    /// From files.
    fixed: Named,
    /// From the issuer; they go before the others.
    fetched: Mutex<Named>,
    issuer: Option<Issuer>,
}

#[derive(Debug)]
struct Issuer {
    client: Client,
    /// Of the keys.
    jwks: Option<Uri>,
    /// Says where the keys are.
    discovery: Option<Uri>,
    /// When its last answer came, or it was given up. Held while it is asked: others wait for the same answer.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

impl Keys {
    pub(crate) fn new(options: &OAuth2Options, tls: &Arc<ClientConfig>) -> anyhow::Result<Self> {
        let mut fixed = Named::default();
        for (name, path) in options.signing_keys.iter() {
            let option = format!("signing_keys.{name} = {path}");
            let pem = files::read_bytes(path.as_ref(), files::BYTES_MAX)
                .with_context(|| option.clone())?;
            let key =
                from_pem(&pem).with_context(|| format!("{option}: there is no public key"))?;
            fixed.insert(name.to_owned(), Arc::new(key));
        }
        let jwks = options.jwks_uri.as_deref();
        let jwks = jwks.map(|text| address("jwks_uri", text)).transpose()?;
        let discovery = options.issuer.as_deref().map(|issuer| {
            let path = options.discovery_path.trim_start_matches('/');
            let params: Vec<_> = options.discovery_params.iter().collect();
            let text = format!("{}/{path}", issuer.trim_end_matches('/'));
            let uri = address("issuer", &text)?;
            with_query(&uri, &form(&params)).map_err(anyhow::Error::msg)
        });
        let discovery = discovery.transpose()?;
        let issuer = (jwks.is_some() || discovery.is_some()).then(|| Issuer {
            client: Client::new(tls, TIMEOUT, TIMEOUT),
            jwks,
            discovery,
            asked: tokio::sync::Mutex::new(None),
        });
        anyhow::ensure!(
            issuer.is_some() || !fixed.is_empty(),
            "there have to be keys: issuer, jwks_uri or signing_keys"
        );
        Ok(Self { fixed, fetched: Mutex::default(), issuer })
    }

    /// The key of this `kid`. Who makes the tokens is asked when it is not known.
    pub(crate) async fn get(&self, kid: &str) -> Result<Arc<DecodingKey>, String> {
        let missing = || "the key that the token is signed with is not known".to_owned();
        if let Some(key) = self.known(kid) {
            return Ok(key);
        }
        let Some(issuer) = &self.issuer else { return Err(missing()) };
        let mut asked = issuer.asked.lock().await;
        // Somebody else may have asked meanwhile.
        if let Some(key) = self.known(kid) {
            return Ok(key);
        }
        if asked.is_none_or(|at| at.elapsed() >= PAUSE) {
            let fetched = issuer.fetch().await;
            // Counted from the answer: those who waited for it are not to wait for one more each.
            *asked = Some(Instant::now());
            *self.fetched.lock().unwrap_or_else(PoisonError::into_inner) = fetched?;
        }
        self.known(kid).ok_or_else(missing)
    }

    fn known(&self, kid: &str) -> Option<Arc<DecodingKey>> {
        let fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        fetched.get(kid).or_else(|| self.fixed.get(kid)).cloned()
    }
}

impl Issuer {
    async fn fetch(&self) -> Result<Named, String> {
        let jwks = match &self.jwks {
            Some(jwks) => jwks.clone(),
            None => self.discover().await?,
        };
        let answer = self.json(jwks).await.map_err(|why| format!("the issuer's keys: {why}"))?;
        let keys = parse(&answer);
        if keys.is_empty() {
            return Err("the issuer's keys: there is none that is understood".to_owned());
        }
        tracing::debug!(keys = keys.len(), "keys of tokens were fetched");
        Ok(keys)
    }

    async fn discover(&self) -> Result<Uri, String> {
        let discovery = self.discovery.clone().ok_or("there is no issuer")?;
        let answer = self.json(discovery).await.map_err(|why| format!("the issuer: {why}"))?;
        let uri = answer.get("jwks_uri").and_then(Value::as_str);
        let uri = uri.ok_or("the issuer does not say where its keys are")?;
        let uri: Uri = uri.parse().map_err(|_| "the address of the issuer's keys is none")?;
        // A forged key would open every door.
        match uri.scheme_str() {
            Some("https") => Ok(uri),
            _ => Err("the issuer's keys are not at an address of HTTPS".to_owned()),
        }
    }

    async fn json(&self, uri: Uri) -> Result<Value, String> {
        match self.client.ask(uri, None).await? {
            (StatusCode::OK, body) => {
                serde_json::from_slice(&body).map_err(|error| format!("no JSON: {error}"))
            }
            (status, _) => Err(format!("status {}", status.as_u16())),
        }
    }
}

/// The keys of a set that are understood, by `kid`; one without is called "".
fn parse(answer: &Value) -> Named {
    let keys = answer.get("keys").and_then(Value::as_array);
    let keys = keys.into_iter().flatten().filter_map(|key| {
        let name = key.get("kid").and_then(Value::as_str).unwrap_or_default();
        let jwk: Jwk = serde_json::from_value(key.clone()).ok()?;
        Some((name.to_owned(), Arc::new(DecodingKey::from_jwk(&jwk).ok()?)))
    });
    keys.collect()
}

/// A public key, or a certificate's, of any kind.
fn from_pem(pem: &[u8]) -> Option<DecodingKey> {
    let kinds = [DecodingKey::from_rsa_pem, DecodingKey::from_ec_pem, DecodingKey::from_ed_pem];
    kinds.iter().find_map(|read| read(pem).ok())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustls::RootCertStore;
    use rustls::crypto::aws_lc_rs;

    use super::*;

    /// An issuer that says nothing is waited for once by all who wait for it.
    #[test]
    fn a_silent_issuer_is_asked_once() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        silent.set_nonblocking(true).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.unwrap().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let patience = Duration::from_millis(100);
        let issuer = Issuer {
            client: Client::new(&Arc::new(tls), patience, patience),
            jwks: Some(format!("http://{}/keys", silent.local_addr().unwrap()).parse().unwrap()),
            discovery: None,
            asked: tokio::sync::Mutex::new(None),
        };
        let (fixed, fetched) = (Named::default(), Mutex::default());
        let keys = Keys { fixed, fetched, issuer: Some(issuer) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second, third) =
            runtime.block_on(async { tokio::join!(keys.get("a"), keys.get("b"), keys.get("a")) });
        assert_eq!(first.err().unwrap(), "the issuer's keys: it takes too long");
        for later in [second, third] {
            assert_eq!(later.err().unwrap(), "the key that the token is signed with is not known");
        }
        assert!(silent.accept().is_ok() && silent.accept().is_err(), "it was asked once");
    }
}
