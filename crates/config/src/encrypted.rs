//! Values that are encrypted in a configuration file, as RabbitMQ's tools make them.
//!
//! ```text
//!  encrypted: base64 of   salt (16) | iv (16) | AES-CBC, PKCS #7, of a term of Erlang's external format
//!  key                  = PBKDF2-HMAC(passphrase, salt, iterations)
//! ```
//!
//! Knows nothing of files, and makes no random bytes: they are arguments.

use std::fmt;

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockModeDecrypt as _, BlockModeEncrypt as _, KeyIvInit as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pbkdf2::pbkdf2_hmac;

use crate::option::options;
use crate::value::{Secret, Value as _, words};

words! {
    /// By what values are encrypted.
    Cipher {
        /// With a key of 16 bytes.
        Aes128 = "aes_128_cbc",
        /// With a key of 24 bytes.
        Aes192 = "aes_192_cbc",
        /// With a key of 32 bytes.
        Aes256 = "aes_256_cbc",
    }
}

words! {
    /// What makes a key of a passphrase.
    Hash {
        /// SHA-256.
        Sha256 = "sha256",
        /// SHA-384.
        Sha384 = "sha384",
        /// SHA-512.
        Sha512 = "sha512",
    }
}

options! {
    /// How values of other options are decrypted.
    DecoderOptions, "Encrypted values";

    /// The passphrase of values that begin with `encrypted:`. Options that hold a secret may have such a value.
    ///
    /// `leveret ctl encrypt_conf_value VALUE PASSPHRASE` makes such values, as RabbitMQ's tool does.
    passphrase: Option<Secret> = None, keys = ["config_entry_decoder.passphrase"];

    /// A file whose first line is the passphrase.
    passphrase_file: Option<String> = None, keys = ["config_entry_decoder.passphrase_file"];

    /// Cipher of the encrypted values: the tool's `--cipher`.
    cipher: Cipher = Cipher::Aes128, keys = ["config_entry_decoder.cipher"];

    /// Hash by which their key was made: the tool's `--hash`.
    hash: Hash = Hash::Sha256, keys = ["config_entry_decoder.hash"];

    /// Iterations of the hash: the tool's `--iterations`. The default is RabbitMQ's. 100,000 make a passphrase hard to
    /// guess, and cost some hundredths of a second at the start.
    iterations: u32 = 1, keys = ["config_entry_decoder.iterations"], range = 1..=10_000_000;
}

/// How values are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// By what.
    pub cipher: Cipher,
    /// How the key is made.
    pub hash: Hash,
    /// How often that is repeated; at least once.
    pub iterations: u32,
}

/// What is encrypted: a term of Erlang, as far as a configuration has them. Shown as Erlang writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// `<<"text">>`
    Binary(String),
    /// `"text"`
    Chars(String),
    /// `text`
    Atom(String),
}

/// Why a value cannot be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecryptError {
    /// It is none.
    #[error("expected base64 of at least 48 bytes")]
    Malformed,
    /// It says nothing with this key.
    #[error(
        "it cannot be decrypted. Is the passphrase correct? Are cipher, hash and iterations those \
         that it was encrypted with?"
    )]
    Wrong,
    /// Something else than a text was encrypted.
    #[error("what is encrypted is no text")]
    NoText,
}

/// Bytes of salt, of the initial vector and of a block.
const BLOCK: usize = 16;

impl Scheme {
    fn key(&self, passphrase: &str, salt: &[u8]) -> Vec<u8> {
        let mut key = vec![0; self.key_bytes()];
        let (passphrase, rounds) = (passphrase.as_bytes(), self.iterations.max(1));
        match self.hash {
            Hash::Sha256 => pbkdf2_hmac::<sha2::Sha256>(passphrase, salt, rounds, &mut key),
            Hash::Sha384 => pbkdf2_hmac::<sha2::Sha384>(passphrase, salt, rounds, &mut key),
            Hash::Sha512 => pbkdf2_hmac::<sha2::Sha512>(passphrase, salt, rounds, &mut key),
        }
        key
    }

    const fn key_bytes(&self) -> usize {
        match self.cipher {
            Cipher::Aes128 => 16,
            Cipher::Aes192 => 24,
            Cipher::Aes256 => 32,
        }
    }

    /// The value in base64. `salt_and_iv` is random, and used once.
    pub fn encrypt(&self, passphrase: &str, term: &Term, salt_and_iv: [u8; 2 * BLOCK]) -> String {
        let (salt, iv) = salt_and_iv.split_at(BLOCK);
        let key = self.key(passphrase, salt);
        let plain = term.to_bytes();
        // The sizes fit: the keys are made so.
        let sealed = match self.cipher {
            Cipher::Aes128 => cbc::Encryptor::<aes::Aes128>::new_from_slices(&key, iv)
                .map(|it| it.encrypt_padded_vec::<Pkcs7>(&plain)),
            Cipher::Aes192 => cbc::Encryptor::<aes::Aes192>::new_from_slices(&key, iv)
                .map(|it| it.encrypt_padded_vec::<Pkcs7>(&plain)),
            Cipher::Aes256 => cbc::Encryptor::<aes::Aes256>::new_from_slices(&key, iv)
                .map(|it| it.encrypt_padded_vec::<Pkcs7>(&plain)),
        };
        STANDARD.encode([&salt_and_iv, &*sealed.unwrap_or_default()].concat())
    }

    /// What was encrypted.
    pub fn decrypt(&self, passphrase: &str, value: &str) -> Result<Term, DecryptError> {
        let bytes = STANDARD.decode(value.trim()).map_err(|_| DecryptError::Malformed)?;
        let (salt, rest) = bytes.split_at_checked(BLOCK).ok_or(DecryptError::Malformed)?;
        let (iv, sealed) = rest.split_at_checked(BLOCK).ok_or(DecryptError::Malformed)?;
        if sealed.is_empty() {
            return Err(DecryptError::Malformed);
        }
        let key = self.key(passphrase, salt);
        let opened = match self.cipher {
            Cipher::Aes128 => cbc::Decryptor::<aes::Aes128>::new_from_slices(&key, iv)
                .map(|it| it.decrypt_padded_vec::<Pkcs7>(sealed)),
            Cipher::Aes192 => cbc::Decryptor::<aes::Aes192>::new_from_slices(&key, iv)
                .map(|it| it.decrypt_padded_vec::<Pkcs7>(sealed)),
            Cipher::Aes256 => cbc::Decryptor::<aes::Aes256>::new_from_slices(&key, iv)
                .map(|it| it.decrypt_padded_vec::<Pkcs7>(sealed)),
        };
        let plain = opened.ok().and_then(Result::ok).ok_or(DecryptError::Wrong)?;
        Term::from_bytes(&plain)
    }
}

impl Term {
    /// As Erlang's shell reads it; anything else is taken as it stands, and is a binary.
    pub fn read(text: &str) -> Self {
        let quoted = |text: &str| text.strip_prefix('"')?.strip_suffix('"').map(str::to_owned);
        let binary = text.strip_prefix("<<").and_then(|rest| rest.strip_suffix(">>"));
        match (binary.and_then(quoted), quoted(text)) {
            (Some(binary), _) => Self::Binary(binary),
            (None, Some(chars)) => Self::Chars(chars),
            (None, None) => Self::Binary(text.to_owned()),
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        let (Self::Binary(text) | Self::Chars(text) | Self::Atom(text)) = self;
        text
    }

    /// Erlang's external format.
    fn to_bytes(&self) -> Vec<u8> {
        let text = self.text();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes();
        match self {
            Self::Binary(_) | Self::Atom(_) => {
                [&[VERSION, BINARY], &count(text.len())[..], text.as_bytes()].concat()
            }
            Self::Chars(_) => {
                let chars = text.chars().flat_map(|c| {
                    let code = u32::from(c).to_be_bytes();
                    [INTEGER, code[0], code[1], code[2], code[3]]
                });
                let head = [&[VERSION, LIST], &count(text.chars().count())[..]].concat();
                head.into_iter().chain(chars).chain([NIL]).collect()
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, DecryptError> {
        let utf8 =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| DecryptError::NoText);
        match bytes {
            [VERSION, BINARY, _, _, _, _, text @ ..] => utf8(text).map(Self::Binary),
            [VERSION, STRING, _, _, latin1 @ ..] => {
                Ok(Self::Chars(latin1.iter().copied().map(char::from).collect()))
            }
            [VERSION, SMALL_ATOM, _, text @ ..] => utf8(text).map(Self::Atom),
            [VERSION, ATOM, _, _, text @ ..] => utf8(text).map(Self::Atom),
            [VERSION, NIL] => Ok(Self::Chars(String::new())),
            [VERSION, LIST, _, _, _, _, items @ .., NIL] => chars(items).map(Self::Chars),
            [VERSION, ..] => Err(DecryptError::NoText),
            _ => Err(DecryptError::Wrong),
        }
    }
}

/// Of a list of integers.
fn chars(mut items: &[u8]) -> Result<String, DecryptError> {
    let mut text = String::new();
    while !items.is_empty() {
        let (code, rest) = match items {
            [BYTE, code, rest @ ..] => (u32::from(*code), rest),
            [INTEGER, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), rest),
            _ => return Err(DecryptError::NoText),
        };
        text.push(char::from_u32(code).ok_or(DecryptError::NoText)?);
        items = rest;
    }
    Ok(text)
}

const VERSION: u8 = 131;
const BYTE: u8 = 97;
const INTEGER: u8 = 98;
const ATOM: u8 = 118;
const SMALL_ATOM: u8 = 119;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binary(text) => write!(f, "<<\"{text}\">>"),
            Self::Chars(text) => write!(f, "\"{text}\""),
            Self::Atom(text) => f.write_str(text),
        }
    }
}

impl DecoderOptions {
    /// What was encrypted. `file` reads the file of the passphrase.
    pub(crate) fn decrypt(
        &self,
        value: &str,
        file: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<String, String> {
        let passphrase = match (&self.passphrase, &self.passphrase_file) {
            (Some(passphrase), _) => passphrase.reveal().to_owned(),
            (None, Some(path)) => {
                let text = file(path).map_err(|why| format!("passphrase_file: {why}"))?;
                text.lines().next().unwrap_or_default().to_owned()
            }
            (None, None) => {
                return Err("it is encrypted, but neither config_entry_decoder.passphrase nor \
                            config_entry_decoder.passphrase_file is set"
                    .to_owned());
            }
        };
        let scheme = Scheme { cipher: self.cipher, hash: self.hash, iterations: self.iterations };
        let term = scheme.decrypt(&passphrase, value).map_err(|error| error.to_string())?;
        Ok(term.text().to_owned())
    }
}

/// Names of ciphers and of hashes, for tools.
pub fn names() -> ([String; 3], [String; 3]) {
    let ciphers = [Cipher::Aes128, Cipher::Aes192, Cipher::Aes256].map(|it| it.show());
    (ciphers, [Hash::Sha256, Hash::Sha384, Hash::Sha512].map(|it| it.show()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Scheme = Scheme { cipher: Cipher::Aes128, hash: Hash::Sha256, iterations: 1 };

    #[test]
    fn what_rabbitmqctl_encrypted_is_read() {
        let binary = "37gYgVR5f3by1n8K0688LLJ6n7CDDKHIf9CKRq++vN4FZctkCWUA9LPlS937qK6V";
        let chars = "lrEpdWHa7LNhdLmN123O0TZDvCntD/axbMZEVBL0Xj+oJ3dZ6ERgsDiasPSD6qH6";
        let atom = "rt8XWrGOb53fDtR5GFubIUeav7mVv42fn+kz4OnYOlZ5Z+goRgej3t3z8/3mrq2t";
        for (value, want) in [(binary, "<<\"se cret\">>"), (chars, "\"se cret\""), (atom, "atom")] {
            let got = DEFAULT.decrypt("pass", value).map(|term| term.to_string());
            assert_eq!(got.as_deref(), Ok(want));
        }
        let other = Scheme { cipher: Cipher::Aes256, ..DEFAULT };
        assert_eq!(other.decrypt("pass", binary), Err(DecryptError::Wrong));
        assert_eq!(
            DEFAULT.decrypt("pass", "37gYgVR5f3by1n8K0688LA=="),
            Err(DecryptError::Malformed)
        );
        assert_eq!(DEFAULT.decrypt("pass", "se cret"), Err(DecryptError::Malformed));
    }

    #[test]
    fn what_is_encrypted_is_read_again() {
        for cipher in [Cipher::Aes128, Cipher::Aes192, Cipher::Aes256] {
            for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
                for text in ["", "\"p\u{e4}ss\u{20ac}\"", "<<\"a\">>", "plain text of some length"]
                {
                    let scheme = Scheme { cipher, hash, iterations: 3 };
                    let term = Term::read(text);
                    let value = scheme.encrypt("p", &term, [7; 32]);
                    assert_eq!(scheme.decrypt("p", &value), Ok(term));
                    assert!(scheme.decrypt("q", &value).is_err(), "{text}");
                }
            }
        }
    }
}
