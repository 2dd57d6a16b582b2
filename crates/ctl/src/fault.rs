//! Why a command failed, and the exit status that says so.

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// What kind of failure; decides the exit status.
    pub code: Code,
    /// For the user.
    pub text: String,
}

/// Kinds of failure, after `sysexits.h`, as RabbitMQ's tools use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The command line makes no sense.
    Usage,
    /// It names something that does not exist, or holds bad data.
    Data,
    /// There is no such user.
    NoUser,
    /// The host cannot be found.
    NoHost,
    /// The node does not answer, or cannot do it now, or a check failed.
    Unavailable,
    /// The node does not answer yet, or no more, but its process is there.
    NotReady,
    /// Anything else went wrong.
    Software,
    /// It took too long.
    TempFail,
    /// The user who asks may not.
    NoPermission,
}

impl Code {
    /// The exit status.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Usage => 64,
            Self::Data => 65,
            Self::NoUser => 67,
            Self::NoHost => 68,
            Self::Unavailable | Self::NotReady => 69,
            Self::Software => 70,
            Self::TempFail => 75,
            Self::NoPermission => 77,
        }
    }
}

impl Fault {
    /// One with these words.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Code::Usage, text)
    }

    pub(crate) fn data(text: impl Into<String>) -> Self {
        Self::new(Code::Data, text)
    }

    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, text)
    }

    pub(crate) fn software(text: impl Into<String>) -> Self {
        Self::new(Code::Software, text)
    }
}
