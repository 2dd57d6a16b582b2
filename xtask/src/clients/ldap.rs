//! Users kept by OpenLDAP's slapd: three nodes that ask it in three ways.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::tls::certificates;
use super::tools::{Counts, SuitePlace, own_counts};
use crate::install;
use crate::node::Node;

/// Longest time slapd takes to start.
const START: Duration = Duration::from_secs(20);

/// Two people, one of them by way of a group in the group `ops`; who asks; and who may open the vhost.
const ENTRIES: &str = "\
dn: dc=example
objectClass: dcObject
objectClass: organization
o: Example
dc: example

dn: ou=people,dc=example
objectClass: organizationalUnit
ou: people

dn: ou=groups,dc=example
objectClass: organizationalUnit
ou: groups

dn: cn=Alice\\, the first,ou=people,dc=example
objectClass: inetOrgPerson
cn: Alice, the first
sn: Alice
uid: alice
userPassword: alices

dn: cn=bob,ou=people,dc=example
objectClass: inetOrgPerson
cn: bob
sn: Bob
uid: bob
userPassword: bobs

dn: cn=asks,dc=example
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: asks
userPassword: asking

dn: cn=admins,ou=groups,dc=example
objectClass: groupOfNames
cn: admins
member: cn=Alice\\, the first,ou=people,dc=example

dn: cn=ops,ou=groups,dc=example
objectClass: groupOfNames
cn: ops
member: cn=admins,ou=groups,dc=example
";

/// A running slapd; ended when it is dropped.
struct Directory {
    child: Child,
    plain: u16,
    encrypted: u16,
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn users(place: &SuitePlace) -> anyhow::Result<Counts> {
    install::program("slapd", "slapd")?;
    let files = place.dir.join("files");
    if files.exists() {
        std::fs::remove_dir_all(&files)?;
    }
    std::fs::create_dir_all(files.join("entries"))?;
    certificates(&files)?;
    let directory = start(place, &files)?;
    let python = super::python::clients(place)?;
    let authority = format!("auth_ldap.ssl_options.cacertfile={}", files.join("ca.pem").display());
    let (plain, encrypted) = (directory.plain, directory.encrypted);
    let by_pattern = "auth_ldap.user_dn_pattern=cn=${username},ou=people,dc=example";
    let looked_up = [
        "auth_ldap.dn_lookup_attribute=uid",
        "auth_ldap.dn_lookup_base=ou=people,dc=example",
        "auth_ldap.dn_lookup_bind.user_dn=cn=asks,dc=example",
        "auth_ldap.dn_lookup_bind.password=asking",
        "auth_ldap.other_bind.user_dn=cn=asks,dc=example",
        "auth_ldap.other_bind.password=asking",
    ];
    let mut all = Counts::default();
    for (name, alice, port, settings) in [
        ("pattern", "Alice, the first", plain, vec![by_pattern]),
        ("lookup", "alice", encrypted, [&looked_up[..], &["auth_ldap.use_ssl=true"]].concat()),
        ("starttls", "alice", plain, [&looked_up[..], &["auth_ldap.use_starttls=true"]].concat()),
    ] {
        let port = format!("auth_ldap.port={port}");
        let mut words = vec![
            "auth_backends.1=ldap",
            // Wrong passwords are tried on purpose.
            "login_throttle.threshold=0",
            "auth_ldap.servers.1=127.0.0.1",
            "auth_ldap.group_lookup_base=ou=groups,dc=example",
            "auth_ldap.queries.vhost_access={exists, \"${user_dn}\"}",
            "auth_ldap.queries.resource_access={'or', [{match, \"${name}\", \"^${username}-\"}, {in_group, \"cn=admins,ou=groups,dc=example\"}]}",
            "auth_ldap.queries.topic_access={match, \"${routing_key}\", {attribute, \"${user_dn}\", \"sn\"}}",
            "auth_ldap.queries.tags=[{administrator, {in_group_nested, \"cn=ops,ou=groups,dc=example\"}}]",
            &port,
            &authority,
        ];
        words.extend(settings);
        let words: Vec<&str> = words.iter().flat_map(|setting| ["--set", setting]).collect();
        let node = Node::start(&words)?;
        let mut check = Command::new(&python);
        check.arg(place.source("python/ldap.py")).arg(alice);
        check.args([node.address.port().to_string(), node.http.port().to_string()]);
        let (output, _) = place.run(name, 3, &mut check)?;
        all.add_part(name, own_counts(&output)?);
    }
    Ok(all)
}

/// slapd with our entries, on ports of its own.
fn start(place: &SuitePlace, files: &Path) -> anyhow::Result<Directory> {
    let at = files.display();
    let settings = format!(
        "include /etc/ldap/schema/core.schema\n\
         include /etc/ldap/schema/cosine.schema\n\
         include /etc/ldap/schema/inetorgperson.schema\n\
         modulepath /usr/lib/ldap\n\
         moduleload back_mdb\n\
         pidfile {at}/slapd.pid\n\
         TLSCACertificateFile {at}/ca.pem\n\
         TLSCertificateFile {at}/server.pem\n\
         TLSCertificateKeyFile {at}/server.key\n\
         database mdb\n\
         suffix dc=example\n\
         directory {at}/entries\n\
         access to attrs=userPassword by anonymous auth by * none\n\
         access to * by users read by * none\n"
    );
    let (conf, ldif) = (files.join("slapd.conf"), files.join("entries.ldif"));
    std::fs::write(&conf, settings)?;
    std::fs::write(&ldif, ENTRIES)?;
    place.must("slapadd", 1, Command::new("slapadd").arg("-f").arg(&conf).arg("-l").arg(&ldif))?;
    let free = || anyhow::Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port());
    let (plain, encrypted) = (free()?, free()?);
    let log = std::fs::File::create(files.join("slapd.log"))?;
    let mut slapd = Command::new("slapd");
    // A level, even 0, keeps it in the foreground.
    slapd.args(["-d", "0", "-f"]).arg(&conf);
    slapd.arg("-h").arg(format!("ldap://127.0.0.1:{plain}/ ldaps://127.0.0.1:{encrypted}/"));
    let child = slapd.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
    let directory = Directory { child: child.context("slapd")?, plain, encrypted };
    let start = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, encrypted)).is_err() {
        ensure!(start.elapsed() < START, "slapd does not start; see {at}/slapd.log");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(directory)
}
