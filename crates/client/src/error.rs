//! What can go wrong between a client and its broker.

use std::io;

use leveret_amqp::content::ContentError;
use leveret_amqp::frame::FrameError;
use leveret_amqp::method::MethodError;

use crate::uri::UriError;

/// Why the broker closed a channel or the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// Reply code of AMQP 0-9-1 §1.2, such as 404.
    pub code: u16,
    /// Reply text, such as `NOT_FOUND - no queue 'q' in vhost '/'`.
    pub text: String,
    /// Class and method that caused the close; (0, 0) when none did.
    pub method: (u16, u16),
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

/// Why a call failed. After anything but [`Error::ChannelClosed`] the connection is of no use.
///
/// The text of each has its cause in it, so none has a source: who prints both would say it twice.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is none.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// The socket failed, or the broker went away without a close.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done, such as `connecting to h:5672`.
        doing: String,
        /// The operating system's answer.
        error: io::Error,
    },
    /// The other side speaks something else than AMQP 0-9-1.
    #[error("the peer answered with its protocol header {0:?}: it wants another version of AMQP")]
    OtherProtocol([u8; 8]),
    /// The broker closed the connection during login: user, password or vhost were refused.
    #[error("login refused: {0}")]
    LoginRefused(String),
    /// `connection.close` came.
    #[error("connection closed by the broker: {0}")]
    ConnectionClosed(CloseReason),
    /// `channel.close` came. Other channels go on.
    #[error("channel {channel} closed by the broker: {reason}")]
    ChannelClosed {
        /// Which channel.
        channel: u16,
        /// Why.
        reason: CloseReason,
    },
    /// Bytes that are no frame.
    #[error("bad frame from the broker: {0}")]
    Frame(FrameError),
    /// A frame that holds no method this protocol has.
    #[error("bad method from the broker: {0}")]
    Method(MethodError),
    /// A content header that is none.
    #[error("bad content header from the broker: {0}")]
    Content(ContentError),
    /// A well-formed method that has no place here.
    #[error("{got} from the broker instead of {expected}")]
    Unexpected {
        /// What the protocol allows here.
        expected: &'static str,
        /// What came.
        got: &'static str,
    },
    /// Nothing came for two heartbeat intervals.
    #[error("no heartbeat from the broker for {0} seconds")]
    HeartbeatMissed(u64),
    /// A call had no answer in time.
    #[error("no answer to {0} in time")]
    TimedOut(&'static str),
    /// The broker reads nothing, for longer than the options allow.
    #[error("the broker has taken nothing of what is sent to it for too long")]
    NotTaken,
    /// `channel_max` channels are open.
    #[error("all {0} channels of the connection are in use")]
    NoChannelLeft(u16),
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<MethodError> for Error {
    fn from(error: MethodError) -> Self {
        Self::Method(error)
    }
}

impl From<ContentError> for Error {
    fn from(error: ContentError) -> Self {
        Self::Content(error)
    }
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Io { doing, error }
    }

    /// The reason of a close by the broker, of a channel or the connection.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        match self {
            Self::ConnectionClosed(reason) | Self::ChannelClosed { reason, .. } => Some(reason),
            _ => None,
        }
    }
}
