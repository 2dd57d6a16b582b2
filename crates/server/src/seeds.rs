//! From options to what new vhosts have and what new passwords have to be like.

use anyhow::Context as _;
use leveret_config::seeds::{Seed, SeedOptions, Validator};
use leveret_topology::{
    ApplyTo, DefaultLimits, DefaultPolicy, DefaultUser, Defaults, Hashing, Named, PasswordHash,
    PasswordRule, Pattern, Permissions, Policy, PolicyError, PolicySpec,
};
use serde_json::Map;

/// The error names the keys that are wrong.
pub(crate) fn defaults(options: &SeedOptions, hashing: Hashing) -> anyhow::Result<Defaults> {
    let passwords = passwords(options)?;
    let limits = options.vhost_limits.iter().map(|seed| {
        let limits = seed.numbers().map(|(key, number)| (dashed(key), number));
        let key = format!("default_limits.vhosts.{}", seed.name);
        Ok(DefaultLimits { vhosts: pattern(seed, &key, "pattern")?, limits: limits.collect() })
    });
    let policies = options.operator_policies.iter().map(policy);
    let users = options.all_users();
    let users = users.iter().map(|seed| user(options, seed, &passwords, hashing));
    let (limits, policies) =
        (limits.collect::<anyhow::Result<_>>()?, policies.collect::<anyhow::Result<_>>()?);
    let users = users.collect::<anyhow::Result<_>>()?;
    let (vhosts_max, queues_max) = (options.vhosts_max.0, options.queues_max.0);
    Ok(Defaults { limits, policies, users, passwords, vhosts_max, queues_max })
}

fn dashed(key: &str) -> String {
    key.replace('_', "-")
}

/// The pattern under a key of `seed`; without one every name is meant.
fn pattern(seed: &Seed, prefix: &str, key: &str) -> anyhow::Result<Pattern> {
    Pattern::new(seed.text(key).unwrap_or(".*")).with_context(|| format!("{prefix}.{key}"))
}

fn policy(seed: &Seed) -> anyhow::Result<DefaultPolicy> {
    let prefix = format!("default_policies.operator.{}", seed.name);
    let numbers = seed.numbers().map(|(key, number)| (dashed(key), number.into()));
    let spec = PolicySpec {
        name: &seed.name,
        pattern: seed.text("queue_pattern").unwrap_or(".*"),
        apply_to: ApplyTo::parse(seed.text("apply_to").unwrap_or("all"))
            .map_err(|error| invalid(&format!("{prefix}.apply_to"), error))?,
        priority: 0,
        definition: numbers.collect::<Map<_, _>>(),
    };
    Named::OperatorPolicy.check(&seed.name).with_context(|| prefix.clone())?;
    let policy = Policy::new(spec, true).map_err(|error| invalid(&prefix, error))?;
    if let Some(told) = policy.without_effect() {
        tracing::warn!("{prefix}: {told}");
    }
    Ok(DefaultPolicy { vhosts: pattern(seed, &prefix, "vhost_pattern")?, policy })
}

/// What is wrong with a policy, in one line.
fn invalid(key: &str, error: PolicyError) -> anyhow::Error {
    match error {
        PolicyError::Validation(text) => anyhow::anyhow!("{key}: {text}"),
        error => anyhow::anyhow!("{key}: {error}"),
    }
}

fn user(
    options: &SeedOptions,
    seed: &Seed,
    rule: &PasswordRule,
    hashing: Hashing,
) -> anyhow::Result<DefaultUser> {
    let prefix = format!("default_users.{}", seed.name);
    let words = ["configure", "write", "read"].map(|key| seed.text(key).unwrap_or(".*"));
    let [configure, write, read] = words;
    Permissions::new(configure, write, read).with_context(|| prefix.clone())?;
    Named::User.check(&seed.name).with_context(|| prefix.clone())?;
    let password = match options.passwords.get(&seed.name) {
        Some(password) => {
            rule.check(password.reveal()).with_context(|| format!("{prefix}.password"))?;
            PasswordHash::with(hashing, password.reveal(), rand::random())
        }
        None => PasswordHash::from_base64(&seed.name, "", hashing)?,
    };
    let tags = seed.text("tags").unwrap_or_default().split(',').map(str::trim);
    Ok(DefaultUser {
        vhosts: pattern(seed, &prefix, "vhost_pattern")?,
        name: seed.name.clone(),
        password,
        tags: tags.filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
        permissions: words.map(str::to_owned),
    })
}

fn passwords(options: &SeedOptions) -> anyhow::Result<PasswordRule> {
    Ok(match (options.validator, &options.regexp) {
        (Validator::AcceptEverything, _) => PasswordRule::Anything,
        (Validator::MinPasswordLength, _) => PasswordRule::MinLength(options.min_length as usize),
        (Validator::PasswordRegexp, Some(text)) => {
            PasswordRule::Matches(Pattern::new(text).context("credential_validator.regexp")?)
        }
        (Validator::PasswordRegexp, None) => anyhow::bail!(
            "credential_validator.validation_backend = rabbit_credential_validator_password_regexp needs \
             credential_validator.regexp"
        ),
    })
}
