//! Commands of RabbitMQ's tools that make no sense here. Each says why, and what to use instead; the few that can be
//! taken for done are.

use super::{Command, Tools, Word, answers, many};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::Fault;

/// Whatever words it is given, it is not there.
const WORDS: Word = many("words", "Accepted");
const ANY: &[Word] = &[WORDS];

fn refuse(it: &mut Call<'_>, why: &str) -> Result<Answer, Fault> {
    it.say()?;
    Err(Fault::unavailable(why))
}

fn no_erlang(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(
        it,
        "the node is not written in Erlang: it has no version of it, no cookie and no shell. \
         'server_version' and 'leveret --version' tell versions",
    )
}

fn ask_the_system(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(
        it,
        "this is the system's to tell: 'ip address' for interfaces, 'resolvectl' or /etc/resolv.conf for names, \
         'systemctl show leveret' for environment and arguments. 'leveret ctl environment' shows every option of \
         the node with its value",
    )
}

fn disk_is_always_watched(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(
        it,
        "free disk space is always watched: 'leveret ctl set_disk_free_limit 0' blocks nobody",
    )
}

fn sources_are_always_counted(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(it, "logins are always counted by source, in a memory that does not grow")
}

fn no_interceptors(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(it, "there are no channel interceptors: nothing stands between a channel and its queues")
}

fn no_trust_store(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(
        it,
        "there is no trust store: clients are trusted by the authorities of ssl_options.cacertfile",
    )
}

fn in_the_configuration(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(
        it,
        "keys of tokens are set in the configuration: auth_oauth2.signing_keys, or auth_oauth2.jwks_uri",
    )
}

fn no_shovels(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(it, "there are no shovels: messages are moved by 'leveret ctl move_messages'")
}

fn no_federation(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(it, "there are no federation links")
}

fn no_ring(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(
        it,
        "the bindings of an x-consistent-hash exchange and their weights are in 'list_bindings'",
    )
}

fn cached_for_a_while(it: &mut Call<'_>) -> Result<Answer, Fault> {
    refuse(
        it,
        "answers of other sources of users are forgotten after auth_cache.cache_ttl, or when the node restarts",
    )
}

/// Nobody speaks that protocol. The node has to be there for that.
fn nobody(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.get("/api/version")?;
    Ok(Answer::Rows(columns::all(&["connection"]), Vec::new()))
}

const fn absent(name: &'static str, tools: Tools, run: super::command::Run) -> Command {
    Command::new(name, tools, "Not there: says why, and what to use", run).takes(ANY)
}

const fn list(name: &'static str) -> Command {
    Command::new(name, Tools::CTL_AND_DIAGNOSTICS, "Always empty: nobody speaks it", nobody)
        .takes(ANY)
}

const CTL: Tools = Tools::CTL;
const DIAGNOSTICS: Tools = Tools::DIAGNOSTICS;
const BOTH: Tools = Tools::CTL_AND_DIAGNOSTICS;

pub(super) const COMMANDS: &[Command] = &[
    absent("erlang_version", DIAGNOSTICS, no_erlang),
    absent("erlang_cookie_hash", DIAGNOSTICS, no_erlang),
    absent("erlang_cookie_sources", DIAGNOSTICS, no_erlang),
    absent("remote_shell", DIAGNOSTICS, no_erlang),
    absent("exec", CTL, no_erlang),
    absent("eval_file", CTL, no_erlang),
    absent("force_standalone_khepri_boot", CTL, no_erlang),
    absent("list_network_interfaces", DIAGNOSTICS, ask_the_system),
    absent("resolver_info", DIAGNOSTICS, ask_the_system),
    absent("os_env", DIAGNOSTICS, ask_the_system),
    absent("command_line_arguments", DIAGNOSTICS, ask_the_system),
    Command::new(
        "activate_free_disk_space_monitoring",
        BOTH,
        "Accepted: free disk space is always watched",
        answers,
    ),
    absent("deactivate_free_disk_space_monitoring", BOTH, disk_is_always_watched),
    Command::new(
        "enable_auth_attempt_source_tracking",
        DIAGNOSTICS,
        "Accepted: logins are always counted by source",
        answers,
    ),
    absent("disable_auth_attempt_source_tracking", DIAGNOSTICS, sources_are_always_counted),
    absent("list_channel_interceptors", BOTH, no_interceptors),
    absent("set_channel_interceptor_priorities", CTL, no_interceptors),
    absent("list_trust_store_certificates", BOTH, no_trust_store),
    absent("refresh_trust_store", CTL, no_trust_store),
    absent("add_signing_key", CTL, in_the_configuration),
    absent("add_uaa_key", CTL, in_the_configuration),
    absent("restart_shovel", CTL, no_shovels),
    absent("delete_shovel", CTL, no_shovels),
    absent("restart_federation_link", CTL, no_federation),
    absent("clear_auth_backend_cache", CTL, cached_for_a_while),
    absent("consistent_hash_exchange_ring_state", DIAGNOSTICS, no_ring),
    list("list_mqtt_connections"),
    list("list_web_mqtt_connections"),
    list("list_stomp_connections"),
];
