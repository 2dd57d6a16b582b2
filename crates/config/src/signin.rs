//! Signing in to the management page by OAuth 2.

use crate::auth::Named;
use crate::option::options;
use crate::setting::{KeyMatch, Setting};
use crate::value::{Value as _, words};

words! {
    /// Who begins.
    InitiatedBy {
        /// The page.
        Page = "sp_initiated",
        /// The provider: it sends people to the page with a token.
        Provider = "idp_initiated",
    }
}

words! {
    /// What the provider sends the user back with.
    ResponseType {
        /// A code, which the page exchanges for a token.
        Code = "code",
    }
}

/// What is said of one resource server for the page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageServer {
    /// Its id, if that is not its name.
    pub id: Option<String>,
    /// What its button says.
    pub label: Option<String>,
    /// Nobody signs in for it.
    pub disabled: bool,
    /// What the page is called there.
    pub client_id: Option<String>,
    /// Scopes that are asked for.
    pub scopes: Option<String>,
    /// Address of the provider.
    pub provider_url: Option<String>,
    /// Where it says what its addresses are.
    pub metadata_url: Option<String>,
    /// Who begins.
    pub initiated_by: Option<InitiatedBy>,
}

/// The resource servers of which the configuration says something, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageServers(Vec<(String, PageServer)>);

impl PageServers {
    /// What is said of the resource server with this id.
    pub fn get(&self, id: &str) -> Option<&PageServer> {
        let is_it = |(name, server): &&(String, PageServer)| {
            server.id.as_ref().unwrap_or(name).as_str() == id
        };
        self.0.iter().find(is_it).map(|(_, server)| server)
    }
}

impl Setting for PageServers {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        let at = self.0.iter().position(|(name, _)| name == key.name).unwrap_or_else(|| {
            self.0.push((key.name.to_owned(), PageServer::default()));
            self.0.len() - 1
        });
        let server = &mut self.0[at].1;
        let text_at = match key.pattern.rsplit('.').next().unwrap_or_default() {
            "disabled" => {
                server.disabled = bool::read(text)?;
                return Ok(());
            }
            "oauth_initiated_logon_type" => {
                server.initiated_by = Some(InitiatedBy::read(text)?);
                return Ok(());
            }
            "id" => &mut server.id,
            "label" => &mut server.label,
            "oauth_client_id" => &mut server.client_id,
            "oauth_scopes" => &mut server.scopes,
            "oauth_provider_url" => &mut server.provider_url,
            _ => &mut server.metadata_url,
        };
        *text_at = Some(text.to_owned());
        Ok(())
    }

    fn form() -> &'static str {
        "TEXT"
    }

    fn display(&self) -> String {
        let all: Vec<_> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

options! {
    /// How the page lets people sign in.
    SignInOptions, "Signing in to the management page";

    /// Whether the page lets people sign in by OAuth 2, at the providers of `auth_oauth2`.
    enabled: bool = false, keys = ["management.oauth_enabled"];

    /// Name of the page at the provider: a public client, which has no secret.
    client_id: Option<String> = None, keys = ["management.oauth_client_id"];

    /// Scopes that the page asks for, divided by spaces.
    scopes: Option<String> = None, keys = ["management.oauth_scopes"];

    /// Address of the provider for browsers, if it is another one than `auth_oauth2.issuer`.
    provider_url: Option<String> = None, keys = ["management.oauth_provider_url"];

    /// Address at which browsers find the provider's addresses. Not set: that of the issuer.
    metadata_url: Option<String> = None, keys = ["management.oauth_metadata_url"];

    /// Whether the page offers OAuth 2 only, without name and password.
    disable_basic_auth: bool = true, keys = ["management.oauth_disable_basic_auth"];

    /// Further parameters of the address that the page sends the browser to.
    authorization_params: Named = Named::default(),
        keys = ["management.oauth_authorization_endpoint_params.$name"];

    /// Further parameters of the page's request for a token.
    token_params: Named = Named::default(), keys = ["management.oauth_token_endpoint_params.$name"];

    /// These options for each resource server of `auth_oauth2.resource_servers`, by its name or id.
    servers: PageServers = PageServers::default(), keys = [
        "management.oauth_resource_servers.$name.id",
        "management.oauth_resource_servers.$name.label",
        "management.oauth_resource_servers.$name.disabled",
        "management.oauth_resource_servers.$name.oauth_client_id",
        "management.oauth_resource_servers.$name.oauth_scopes",
        "management.oauth_resource_servers.$name.oauth_provider_url",
        "management.oauth_resource_servers.$name.oauth_metadata_url",
        "management.oauth_resource_servers.$name.oauth_initiated_logon_type"
    ];

    /// Where signing in begins. `idp_initiated`: at `management.oauth_provider_url`, which sends people back with a
    /// token, as a form that is posted to `/api/login`.
    initiated_by: InitiatedBy = InitiatedBy::Page, keys = ["management.oauth_initiated_logon_type"];

    /// What the provider sends the user back with.
    response_type: ResponseType = ResponseType::Code, keys = ["management.oauth_response_type"],
        aliases = ["management.oauth_resource_servers.$name.oauth_response_type"];
}
