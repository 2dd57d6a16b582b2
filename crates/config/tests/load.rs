//! Whole configurations, from text to values.

use leveret_config::{ByteSize, Config, File, FlagSetting, Inputs, Level, Loaded, Notice};

#[test]
#[rustfmt::skip] // a table
fn settings() {
    // text                                              key                             shown
    check("",                                            "listeners.tcp.$name",          "default = 5672");
    check("listeners.tcp.default = 5673",                "listeners.tcp.$name",          "default = 5673");
    check("listeners.tcp.1 = 127.0.0.1:1\nlisteners.tcp.2 = [::1]:1",
                                                         "listeners.tcp.$name",          "1 = 127.0.0.1:1, 2 = [::1]:1");
    check("listeners.tcp = none",                        "listeners.tcp.$name",          "none");
    check("heartbeat = 20",                              "heartbeat",                    "20");
    check("heartbeat = 1\nheartbeat = 2",                "heartbeat",                    "2"); // later wins
    check("frame_max = 0",                               "frame_max",                    "0");
    check("max_channels_per_connection = 7",             "channel_max",                  "7");
    check("connection_max = infinity",                   "connection_max",               "infinity");
    check("max_connections = 10",                        "connection_max",               "10");
    check("",                                            "loopback_users.$user",         "guest");
    check("loopback_users = none",                       "loopback_users.$user",         "none");
    check("loopback_users.guest = false",                "loopback_users.$user",         "none");
    check("loopback_users.bob = true",                   "loopback_users.$user",         "bob"); // as in RabbitMQ
    check("auth_mechanisms.2 = PLAIN\nauth_mechanisms.1 = AMQPLAIN",
                                                         "auth_mechanisms.$name",        "AMQPLAIN, PLAIN");
    check("",                                            "auth_backends.$num",           "internal");
    check("auth_backends.10 = internal\nauth_backends.9 = rabbit_auth_backend_http",
                                                         "auth_backends.$num",           "http, internal");
    check("auth_backends.1.authz = internal\nauth_backends.1.authn = http\nauth_backends.2.authn = oauth",
                                                         "auth_backends.$num",           "http and internal, oauth2");
    check("auth_cache.cached_backend.authn = http",      "auth_cache.cached_backend",    "http");
    check("auth_ldap.queries.vhost_access = '''\n {in_group,\"cn=${vhost}\"}.\n'''",
                                                         "auth_ldap.queries.vhost_access", "{in_group, \"cn=${vhost}\", \"member\"}");
    check("auth_ldap.dn_lookup_bind.password = s3cret",  "auth_ldap.dn_lookup_bind.password", "(hidden)");
    check("auth_oauth2.jwks_url = https://h/k",          "auth_oauth2.jwks_uri",         "https://h/k");
    check("auth_oauth2.scope_aliases.a = x y\nauth_oauth2.scope_aliases.1.alias = b.c\nauth_oauth2.scope_aliases.1.scope = z",
                                                         "auth_oauth2.scope_aliases.$alias", "a = x y, b.c = z");
    check("auth_oauth2.resource_servers.a.id = x\nauth_oauth2.resource_servers.b.scope_aliases.q = r",
                                                         "auth_oauth2.resource_servers.$name.id", "a, b");
    check("auth_http.ssl_options.password = s3cret",     "auth_http.ssl_options.password", "(hidden)");
    check("default_queue_type = quorum",                 "default_queue_type",           "quorum");
    check("default_queue_type = rabbit_classic_queue",   "default_queue_type",           "classic");
    check("default_user_tags.monitoring = true",         "default_user_tags.$tag",       "monitoring");
    check("listeners.ssl.default = 5671",                "listeners.ssl.$name",          "default = 5671");
    check("listeners.ssl = none",                        "listeners.ssl.$name",          "none");
    check("ssl_options.certfile = /c.pem",               "ssl_options.certfile",         "/c.pem");
    check("ssl_options.password = s3cret",               "ssl_options.password",         "(hidden)");
    check("",                                            "ssl_options.versions.$version", "tlsv1.3, tlsv1.2");
    check("ssl_options.ciphers.2 = B\nssl_options.ciphers.10 = C\nssl_options.ciphers.1 = A",
                                                         "ssl_options.ciphers.$cipher",  "A, B, C");
    check("default_pass = s3cret",                       "default_pass",                 "(hidden)");
    check("vm_memory_high_watermark.absolute = 2GB",     "vm_memory_high_watermark.relative", "2GB");
    check("vm_memory_high_watermark.relative = 0.3",     "vm_memory_high_watermark.relative", "0.3");
    check("vm_memory_high_watermark = 0.3",              "vm_memory_high_watermark.relative", "0.3");
    check("disk_free_limit = 2GB",                       "disk_free_limit.absolute",     "2GB");
    check("disk_free_limit.relative = 1.5",              "disk_free_limit.absolute",     "1.5");
    check("disk_free_limit.absolute = 1GiB",             "disk_free_limit.absolute",     "1GiB");
    check("log.connection.level = debug\nlog.default.level = warning",
                                                         "log.$category.level",          "connection = debug, default = warning");
    check("tracing.max_waiting = 1GiB\ntracing.max_waiting_total = 1GiB",
                                                         "tracing.max_waiting_total",    "1GiB");
    check("log.file = false",                            "log.file",                     "false");
    check("log.console.formatter = json",                "log.console.formatter",        "json");
    check("management.load_definitions = /d.json",       "load_definitions",             "/d.json");
    check("consumer_timeout = 15m",                      "consumer_timeout",             "900000");
    check("default_user = a\ndefault_vhost = $(default_user)/b",
                                                         "default_vhost",                "a/b");
    check("default_vhost = $(VHOST)",                    "default_vhost",                "from-env");
}

/// A value that RabbitMQ's tool encrypted, with its passphrase in each of the places.
#[test]
fn encrypted_values() {
    const VALUE: &str = "37gYgVR5f3by1n8K0688LLJ6n7CDDKHIf9CKRq++vN4FZctkCWUA9LPlS937qK6V";
    let include = |from: &str, path: &str| match (from, path) {
        ("f.conf", "secret") => {
            Ok(vec![File { name: path.to_owned(), text: "pass\nmore\n".to_owned() }])
        }
        _ => Err(format!("{path} is not there")),
    };
    let load = |rest: &str| {
        let text = format!("default_pass = encrypted:{VALUE}\ndefault_vhost = encrypted:x\n{rest}");
        let files = vec![File { name: "f.conf".to_owned(), text }];
        Config::load(&Inputs { files, include: &include, ..Inputs::default() })
    };
    for rest in
        ["config_entry_decoder.passphrase = pass", "config_entry_decoder.passphrase_file = secret"]
    {
        let config = load(rest).unwrap().config;
        assert_eq!(config.access.default_pass.reveal(), "se cret");
        // Only secrets are encrypted.
        assert_eq!(config.access.default_vhost, "encrypted:x");
    }
    let refused = load("config_entry_decoder.passphrase_file = nowhere").unwrap_err().to_string();
    assert!(refused.contains("passphrase_file: nowhere is not there"), "{refused}");
    let refused = load("config_entry_decoder.passphrase = wrong").unwrap_err().to_string();
    assert!(refused.contains("Is the passphrase correct?"), "{refused}");
    assert!(!refused.contains(VALUE), "{refused}");
}

#[track_caller]
fn check(text: &str, key: &str, want: &str) {
    let env = vec![("VHOST".to_owned(), "from-env".to_owned())];
    let loaded = load(text, env, &[]).unwrap();
    let shown = loaded.config.shown();
    let got = shown.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str());
    assert_eq!(got, Some(want), "{text}");
}

#[test]
#[rustfmt::skip] // a table
fn faults() {
    fault("heartbeet = 1",            "f.conf:1: unknown key 'heartbeet'; did you mean 'heartbeat'?");
    fault("\n\nlistener.tcp.x = 1",   "f.conf:3: unknown key 'listener.tcp.x'; did you mean 'listeners.tcp.x'?");
    fault("nonsense = 1",             "f.conf:1: unknown key 'nonsense'");
    // More memory than there is: publishers would never be blocked.
    fault("vm_memory_high_watermark.relative = 60", "f.conf:1: vm_memory_high_watermark.relative = 60: expected a fraction from 0.0 to 1.0");
    fault("vm_memory_high_watermark = 1.5", "f.conf:1: vm_memory_high_watermark = 1.5: expected a fraction from 0.0 to 1.0");
    fault("vm_memory_high_watermark = 60", "f.conf:1: vm_memory_high_watermark = 60: say vm_memory_high_watermark.absolute for a number of bytes, vm_memory_high_watermark.relative for a part of the memory");
    fault("disk_free_limit = 2",      "f.conf:1: disk_free_limit = 2: say disk_free_limit.absolute for a number of bytes, disk_free_limit.relative for a part of the memory");
    fault("default_queue_type = stream", "f.conf:1: default_queue_type = stream: there are no streams");
    fault("heartbeat = soon",         "f.conf:1: heartbeat = soon: expected a duration such as 30000, 250ms, 30s, 5m or 1h");
    // One trace would have more than all of them.
    fault("tracing.max_waiting = 1GiB", "f.conf:1: tracing.max_waiting = 1GiB: no trace could begin: each may have tracing.max_waiting, 1GiB, of tracing.max_waiting_total, 512MiB");
    fault("tracing.max_waiting_total = 31MiB", "f.conf:1: tracing.max_waiting_total = 31MiB: no trace could begin: each may have tracing.max_waiting, 32MiB, of tracing.max_waiting_total, 31MiB");
    fault("tracing.max_waiting_total = 1GB\ntracing.max_waiting = 1GiB", "f.conf:2: tracing.max_waiting = 1GiB: no trace could begin: each may have tracing.max_waiting, 1GiB, of tracing.max_waiting_total, 1GB");
    // An empty path would be the directory in which the broker is started.
    fault("data_dir = ''",            "f.conf:1: data_dir = : expected a path; without the key the default counts");
    fault("log.dir = ''",             "f.conf:1: log.dir = : expected a path; without the key the default counts");
    fault("ctl.socket = ''",          "f.conf:1: ctl.socket = : expected a path; without the key the default counts");
    fault("frame_max = 100",          "f.conf:1: frame_max = 100: expected 0 (no limit) or at least 4096");
    fault("initial_frame_max = 1",    "f.conf:1: initial_frame_max = 1: expected a value from 4096 to 4294967295");
    fault("max_message_size = 1GiB",  "f.conf:1: max_message_size = 1GiB: expected a value from 1 to 512MiB");
    fault("listeners.tcp = 5672",     "f.conf:1: listeners.tcp = 5672: expected none; an address has a name: listeners.tcp.default");
    fault("auth_mechanisms.1 = X",    "f.conf:1: auth_mechanisms.1 = X: expected one of PLAIN, AMQPLAIN, ANONYMOUS, EXTERNAL");
    fault("auth_backends.1 = pam",    "f.conf:1: auth_backends.1 = pam: expected one of internal|http|ldap|oauth2|cache");
    fault("auth_backends.x = http",   "f.conf:1: auth_backends.x = http: the place among the sources is a whole number");
    fault("auth_cache.cached_backend = cache", "f.conf:1: auth_cache.cached_backend = cache: the cache cannot keep its own answers");
    fault("auth_oauth2.issuer = http://h", "f.conf:1: auth_oauth2.issuer = http://h: expected an address that begins with https://");
    fault("auth_ldap.queries.tags = x", "f.conf:1: auth_ldap.queries.tags = x: expected [{TAG, QUERY}, ...]");
    fault("auth_ldap.queries.vhost_access = {ask, x}", "f.conf:1: auth_ldap.queries.vhost_access = {ask, x}: there is no query 'ask'");
    fault("auth_ldap.timeout = infinity", "f.conf:1: auth_ldap.timeout = infinity: expected a duration such as 30000, 250ms, 30s, 5m or 1h");
    fault("auth_oauth2.oauth_providers.p.issuer = http://h", "f.conf:1: auth_oauth2.oauth_providers.p.issuer = http://h: expected an address that begins with https://");
    fault("auth_oauth2.resource_servers.a.verify_aud = x", "f.conf:1: auth_oauth2.resource_servers.a.verify_aud = x: expected true or false");
    fault("auth_oauth2.isuer = 1",    "f.conf:1: unknown key 'auth_oauth2.isuer'; did you mean 'auth_oauth2.issuer'?");
    fault("management.path_prefix = a/", "f.conf:1: management.path_prefix = a/: expected a path such as /rabbit, without a slash at its end");
    fault("default_pass = encrypted:x", "f.conf:1: default_pass = (hidden): it is encrypted, but neither config_entry_decoder.passphrase nor config_entry_decoder.passphrase_file is set");
    fault("default_pass = encrypted:x\nconfig_entry_decoder.passphrase = y", "f.conf:1: default_pass = (hidden): expected base64 of at least 48 bytes");
    fault("default_user = $(NOPE)",   "f.conf:1: default_user: $(NOPE) is neither a key that is set nor an environment variable");
    fault("ssl_options.crl_check = peer", "f.conf:1: ssl_options.crl_check cannot be kept: lists of revoked certificates are not looked at");
    fault("ssl_options.verify = yes",  "f.conf:1: ssl_options.verify = yes: expected one of verify_none|verify_peer");
    fault("ssl_options.versions.1 = tls1.3", "f.conf:1: ssl_options.versions.1 = tls1.3: expected tlsv1.3 or tlsv1.2");
    fault("default_limits.vhosts.a.max_queues = 0", "f.conf:1: default_limits.vhosts.a.max_queues = 0: expected a number from 1 on");
    fault("default_policies.operator.a.expires = soon", "f.conf:1: default_policies.operator.a.expires = soon: expected a duration such as 30000, 250ms, 30s, 5m or 1h");
    fault("default_users.a.pasword = x", "f.conf:1: unknown key 'default_users.a.pasword'; did you mean 'default_users.a.password'?");
    fault("default_users.a.password = encrypted:x", "f.conf:1: default_users.a.password = (hidden): it is encrypted, but neither config_entry_decoder.passphrase nor config_entry_decoder.passphrase_file is set");
    fault("credential_validator.validation_backend = x", "f.conf:1: credential_validator.validation_backend = x: expected one of rabbit_credential_validator_accept_everything|rabbit_credential_validator_min_password_length|rabbit_credential_validator_password_regexp");
    fault("include x.conf",           "f.conf:1: cannot include 'x.conf': include is not possible here");
    fault("log.nothing.level = info", "f.conf:1: unknown key 'log.nothing.level'");
    fault("a\nheartbeat = b\nc = 1",
        "f.conf:1: expected 'key = value'\n\
         f.conf:2: heartbeat = b: expected a duration such as 30000, 250ms, 30s, 5m or 1h\n\
         f.conf:3: unknown key 'c'");
}

#[track_caller]
fn fault(text: &str, want: &str) {
    let errors = load(text, Vec::new(), &[]).unwrap_err();
    assert_eq!(errors, want);
}

#[test]
#[rustfmt::skip] // a table
fn notices() {
    notice("queue_index_max_journal_entries = 32768", "f.conf:1: queue_index_max_journal_entries has no meaning here: there is no journal: what is acked before its batch is written never gets to the disk");
    notice("credit_flow_default_credit = 400", "f.conf:1: credit_flow_default_credit has no meaning here: parts of the broker give each other no credit: what cannot be taken is not read from the socket");
    notice("num_acceptors.tcp = 10",          "f.conf:1: num_acceptors.tcp has no meaning here: accepting connections is not a pool of processes");
    notice("listeners.ssl.default = 5671",    "");
    notice("listeners.ssl = none",            "");
    notice("ssl_options.reuse_sessions = true", "f.conf:1: ssl_options.reuse_sessions has no meaning here: TLS is spoken without what this option is about");
    notice("ssl_options.crl_check = false",   "f.conf:1: ssl_options.crl_check changes nothing: lists of revoked certificates are not looked at");
    notice("auth_backends.1 = internal",      "");
    notice("auth_cache.cache_module = x",      "f.conf:1: auth_cache.cache_module has no meaning here: the answers are kept in one table in memory");
    notice("log.syslog.level = info",         "W f.conf:1: log.syslog.level is ignored: entries go to the console and a file only");
    notice("auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = RABBIT-CR-DEMO",
        "W auth_mechanisms: RABBIT-CR-DEMO is not there yet; it is not offered");
    notice("listeners.tcp = none\nlisteners.ssl.default = 5671", "");
    notice("default_policies.operator.a.classic_queues.ha_mode = all", "W f.conf:1: default_policies.operator.a.classic_queues.ha_mode is ignored: there are no mirrors: such a policy has no effect on one node");
    notice("credential_validator.regexp = x", "W credential_validator.regexp is not looked at by this validation_backend");
    notice("deprecated_features.permit.transient_nonexcl_queues = true", "f.conf:1: deprecated_features.permit.transient_nonexcl_queues changes nothing: it may be used here, whatever this says");
    notice("deprecated_features.permit.global_qos = false", "W f.conf:1: deprecated_features.permit.global_qos is ignored: it may be used here, whatever this says");
    notice("deprecated_features.permit.classic_queue_mirroring = true", "W f.conf:1: deprecated_features.permit.classic_queue_mirroring is ignored: there are no mirrors, and policies with ha-mode have no effect");
    notice("deprecated_features.permit.classic_queue_mirroring = false", "f.conf:1: deprecated_features.permit.classic_queue_mirroring changes nothing: there are no mirrors, and policies with ha-mode have no effect");
    notice("deprecated_features.permit.ram_node_type = true", "f.conf:1: deprecated_features.permit.ram_node_type has no meaning here: what it is about is not there");
    notice("auth_ldap.other_bind = external\nauth_ldap.other_bind.user_dn = cn=x\nauth_ldap.other_bind.password = x",
        "W auth_ldap.other_bind and auth_ldap.other_bind.user_dn are both set; auth_ldap.other_bind counts");
    notice("auth_ldap.dn_lookup_bind.user_dn = cn=x\nauth_ldap.dn_lookup_bind.password = x", "");
    notice("listeners.tcp = none",            "W listeners.tcp = none: no client can connect");
    notice("vm_memory_high_watermark.relative = 0.4\nvm_memory_high_watermark.absolute = 1GB",
        "W vm_memory_high_watermark.absolute and vm_memory_high_watermark.relative are both set; absolute counts");
}

#[track_caller]
fn notice(text: &str, want: &str) {
    assert_eq!(told(&load(text, Vec::new(), &[]).unwrap()), want);
}

/// The notices, those with a W that are warnings.
fn told(loaded: &Loaded) -> String {
    let line = |it: &Notice| format!("{}{}", if it.is_warning { "W " } else { "" }, it.text);
    loaded.notices.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A key that is set more than once is told once: where, and which line counts.
#[test]
#[rustfmt::skip] // a table
fn repeated_keys() {
    repeated("heartbeat = 1\n", "heartbeat = 2\n", &[], "W heartbeat is set more than once: b.conf:1 (2) counts, a.conf:1 (1) does not");
    repeated("heartbeat = 1\n", "# x\nheartbeat = 1\n", &[], "heartbeat is set more than once: b.conf:2 (1) counts, a.conf:1 (1) does not");
    repeated("heartbeat = 1\nheartbeat = 2\nheartbeat = 3\n", "", &[], "W heartbeat is set more than once: a.conf:3 (3) counts, a.conf:1 (1), a.conf:2 (2) do not");
    // What flags set counts more than any file, which is no news.
    repeated("heartbeat = 1\n", "", &[("heartbeat", "3")], "");
    repeated("heartbeat = 1\n", "heartbeat = 2\n", &[("heartbeat", "3")], "W heartbeat is set more than once: flag --heartbeat (3) counts, a.conf:1 (1), b.conf:1 (2) do not");
    // Another name of the same.
    repeated("max_connections = 1\n", "connection_max = 2\n", &[], "W connection_max is set more than once: b.conf:1 (2) counts, a.conf:1 (1) does not");
    // Those of a list are different keys; the same word of it is not.
    repeated("listeners.tcp.a = 1\n", "listeners.tcp.b = 2\n", &[], "");
    repeated("listeners.tcp.a = 1\n", "listeners.tcp.a = 2\n", &[], "W listeners.tcp.a is set more than once: b.conf:1 (2) counts, a.conf:1 (1) does not");
    repeated("default_pass = x1\n", "default_pass = x2\n", &[], "W default_pass is set more than once: b.conf:1 counts, a.conf:1 does not");
    // What has no effect is told once.
    repeated("num_acceptors.tcp = 10\n", "num_acceptors.tcp = 20\n", &[], "a.conf:1, b.conf:1: num_acceptors.tcp has no meaning here: accepting connections is not a pool of processes");
}

/// Each place of a key that keeps the broker from starting is told.
#[test]
fn repeated_faults() {
    let twice = |line: &str| format!("{line}\n{line}\n");
    let unknown = "f.conf:1: unknown key 'x'\nf.conf:2: unknown key 'x'";
    fault(&twice("x = 1"), unknown);
    let why =
        "ssl_options.crl_check cannot be kept: lists of revoked certificates are not looked at";
    fault(&twice("ssl_options.crl_check = peer"), &format!("f.conf:1: {why}\nf.conf:2: {why}"));
    notice(
        "ssl_options.crl_check = peer\nssl_options.crl_check = false",
        "f.conf:1, f.conf:2: ssl_options.crl_check changes nothing: lists of revoked certificates are not looked at",
    );
}

#[track_caller]
fn repeated(a: &str, b: &str, flags: &[(&str, &str)], want: &str) {
    let file = |name: &str, text: &str| File { name: name.to_owned(), text: text.to_owned() };
    let files = vec![file("a.conf", a), file("b.conf", b)];
    let sources = Inputs { files, flags: flags_of(flags), ..Inputs::default() };
    assert_eq!(told(&Config::load(&sources).unwrap()), want);
}

/// What an operator of RabbitMQ on Kubernetes typically has; it must start a node. But for the way in which nodes find each other:
/// a node that stays alone would be a surprise.
#[test]
fn a_rabbitmq_conf_of_today() {
    let text = "\
        cluster_partition_handling = pause_minority\n\
        queue_master_locator = min-masters\n\
        disk_free_limit.absolute = 2GB\n\
        cluster_formation.k8s.host = kubernetes.default\n\
        cluster_formation.k8s.address_type = hostname\n\
        cluster_formation.target_cluster_size_hint = 3\n\
        cluster_name = orders\n\
        total_memory_available_override_value = 1717986919\n\
        vm_memory_high_watermark.relative = 0.7\n\
        log.console = true\n\
        log.console.level = info\n\
        log.console.formatter = json\n\
        default_user = app\n\
        default_pass = 'x#y'\n\
        auth_backends.1 = internal\n\
        loopback_users.guest = true\n\
        listeners.tcp.default = 5672\n\
        listeners.ssl = none\n\
        num_acceptors.tcp = 20\n\
        management.tcp.port = 15672\n\
        prometheus.tcp.port = 15692\n\
        collect_statistics_interval = 10000\n\
        raft.wal_max_size_bytes = 64000000\n\
        default_policies.operator.1.queue_pattern = .*\n\
        mqtt.allow_anonymous = false\n\
        net_ticktime = 60\n\
        heartbeat = 30\n";
    let Loaded { config, notices, .. } = load(text, Vec::new(), &[]).unwrap();
    assert_eq!(config.access.default_pass.reveal(), "x#y");
    assert_eq!(config.node.cluster_name.as_deref(), Some("orders"));
    let warnings = notices.iter().filter(|it| it.is_warning).count();
    assert_eq!((warnings, notices.len()), (3, 9), "{notices:#?}");
}

#[test]
fn later_sources_win() {
    let env = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let heartbeat = |text: &str, env, flags: &[(&str, &str)]| {
        load(text, env, flags).unwrap().config.connections.heartbeat.get()
    };
    let both = vec![env("RABBITMQ_HEARTBEAT", "3"), env("LEVERET_HEARTBEAT", "4")];
    assert_eq!(heartbeat("", Vec::new(), &[]), 60);
    assert_eq!(heartbeat("heartbeat = 2", Vec::new(), &[]), 2);
    assert_eq!(heartbeat("heartbeat = 2", both[..1].to_vec(), &[]), 3);
    assert_eq!(heartbeat("heartbeat = 2", both.clone(), &[]), 4);
    assert_eq!(heartbeat("heartbeat = 2", both.clone(), &[("heartbeat", "5")]), 5);
    assert_eq!(heartbeat("", both, &[("heartbeat", "5"), ("heartbeat", "6")]), 6);
}

#[test]
fn rabbitmq_environment() {
    let env: Vec<_> = [
        ("RABBITMQ_NODE_PORT", "5700"),
        ("RABBITMQ_NODE_IP_ADDRESS", "::1"),
        ("RABBITMQ_DEFAULT_USER", "bob"),
        ("RABBITMQ_LOGS", "-"),
        ("RABBITMQ_ERLANG_COOKIE", "x"),
        ("LEVERET_SERVICE_HOST", "10.0.0.1"),
        ("LEVERET_HEARTBAET", "1"),
        ("LEVERET_LOG_LEVEL", "debug"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    let Loaded { config, notices, .. } = load("", env, &[]).unwrap();
    let listeners: Vec<_> = config.listeners.tcp.iter().map(|(_, it)| it.to_string()).collect();
    assert_eq!(listeners, ["[::1]:5700"]);
    assert_eq!(config.access.default_user, "bob");
    assert_eq!(config.log.levels.get("connection"), Level::Debug);
    let warnings: Vec<_> = notices.iter().filter(|it| it.is_warning).map(|it| &it.text).collect();
    assert_eq!(warnings, ["environment variable LEVERET_HEARTBAET names no option; ignored"]);

    // A node of a cluster that begins anew tells itself by them.
    for name in ["LEVERET_DISK_HUNG_MS", "LEVERET_DISK_SLOW_MS", "LEVERET_CLIENTS_SUSPENDED"] {
        let loaded = load("", vec![(name.to_owned(), "1".to_owned())], &[]).unwrap();
        assert!(!loaded.notices.iter().any(|it| it.is_warning), "{name}");
    }

    // What RabbitMQ would heed is told.
    for name in ["RABBITMQ_LOG", "RABBITMQ_ENABLED_PLUGINS", "RABBITMQ_QUORUM_DIR"] {
        let loaded = load("", vec![(name.to_owned(), "x".to_owned())], &[]).unwrap();
        assert_eq!(told(&loaded), format!("environment variable {name} has no meaning here"));
    }

    // What would make the node less safe than it was told to be is refused.
    for (name, instead) in [
        ("RABBITMQ_DEFAULT_PASS_FILE", "or RABBITMQ_DEFAULT_USER and RABBITMQ_DEFAULT_PASS"),
        ("RABBITMQ_SSL_CERTFILE", "a configuration file has ssl_options and management.ssl"),
    ] {
        let errors = load("", vec![(name.to_owned(), "x".to_owned())], &[]).unwrap_err();
        assert!(
            errors.starts_with(&format!("environment variable {name}: it is not read")),
            "{errors}"
        );
        assert!(errors.ends_with(instead), "{errors}");
    }

    let errors = load("", vec![("LEVERET_HEARTBEAT".to_owned(), "x".to_owned())], &[]).unwrap_err();
    assert!(
        errors.starts_with("environment variable LEVERET_HEARTBEAT: heartbeat = x:"),
        "{errors}"
    );
}

/// What says who may use the management API holds, or the node does not start.
#[test]
fn the_api_is_no_more_open_than_the_file_says() {
    for key in ["http_dispatch.auth_backends.1", "http_dispatch.auth_backends.2.authn"] {
        let errors = load(&format!("{key} = ldap"), Vec::new(), &[]).unwrap_err();
        assert!(errors.contains("auth_backends"), "{errors}");
    }
    let loaded = load("management.disable_basic_auth = true", Vec::new(), &[]).unwrap();
    assert!(loaded.config.management.disable_basic_auth && loaded.notices.is_empty());
}

#[test]
fn thresholds_resolve() {
    let watermark = |text: &str| load(text, Vec::new(), &[]).unwrap().config.resources;
    assert_eq!(watermark("").memory_high_watermark.resolve(1000), 600);
    let set = watermark("vm_memory_high_watermark.absolute = 1MiB");
    assert_eq!(set.memory_high_watermark.resolve(1000), ByteSize::mib(1).get());
}

/// What a key of every option does must be known from the declarations alone.
#[test]
fn declarations_are_sound() {
    let mut seen = std::collections::BTreeSet::new();
    for (_, specs) in Config::sections() {
        for spec in specs {
            for key in spec.keys.iter().chain(spec.aliases) {
                assert!(seen.insert((*key).to_owned()), "{key} is declared twice");
            }
            assert!(spec.doc.ends_with('.'), "{:?} needs a description", spec.keys);
            for (name, _) in spec.env_names() {
                assert!(seen.insert(name.clone()), "{name} is declared twice");
            }
            for (name, _) in spec.flag_names() {
                assert!(seen.insert(format!("--{name}")), "--{name} is declared twice");
            }
        }
    }
    // Every default is written so that it can be read again.
    for (key, value) in Config::default().shown() {
        if key.contains('$') || ["not set", "(hidden)"].contains(&value.as_str()) {
            continue;
        }
        load(&format!("{key} = '{value}'"), Vec::new(), &[]).unwrap();
    }
}

/// The page of options is the one the declarations make. Refresh it with `cargo xtask codegen`.
#[test]
fn page_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == leveret_config::page::markdown(), "docs/configuration.md is out of date");
}

fn load(text: &str, env: Vec<(String, String)>, flags: &[(&str, &str)]) -> Result<Loaded, String> {
    let files = vec![File { name: "f.conf".to_owned(), text: text.to_owned() }];
    Config::load(&Inputs { files, env, flags: flags_of(flags), ..Inputs::default() })
        .map_err(|errors| errors.to_string())
}

fn flags_of(flags: &[(&str, &str)]) -> Vec<FlagSetting> {
    let flags = flags.iter().map(|(key, value)| FlagSetting {
        flag: format!("--{key}"),
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    });
    flags.collect()
}
