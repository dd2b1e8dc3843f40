//! The token that clients must know: read from a file, or generated.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac_sha256::Hash;
use rustix::fs::OFlags;

use super::ServeError;

/// Lengths of tokens. 16 letters cannot be guessed.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;
/// Random bytes of a generated token.
const RANDOM_BYTES: usize = 24;
/// Permissions that let other users read a file.
const OTHERS: u32 = 0o077;

/// A secret that clients must know. It consists of letters, digits, hyphens and underscores.
pub struct Token {
    text: String,
    is_generated: bool,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(..)")
    }
}

/// Time for the command that writes the token.
const PATIENCE: Duration = Duration::from_secs(10);
/// Length from which a file is not read on, because no token is so long.
const FILE_BYTES_MAX: u64 = 4096;

impl Token {
    /// Generates a token.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn generate() -> Result<Self, ServeError> {
        let mut bytes = [0; RANDOM_BYTES];
        let mut filled = 0;
        while filled < RANDOM_BYTES {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut bytes[filled..], flags).map_err(io::Error::from)?;
        }
        Ok(Self { text: URL_SAFE_NO_PAD.encode(bytes), is_generated: true })
    }

    /// Reads the token from a file of this user or the superuser, which other users must not be able to read.
    ///
    /// # Errors
    /// When the file cannot be read, other users can read it or own it, or it does not have a token.
    pub fn read(path: &Path) -> Result<Self, ServeError> {
        let failed = |why| ServeError::TokenFile { path: path.to_path_buf(), why };
        // Without O_NONBLOCK, opening a FIFO waits for a writer.
        let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
        let file = file.map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != user && owner != 0 {
            return Err(ServeError::TokenOwner { path: path.to_path_buf(), owner });
        }
        if metadata.is_file() && metadata.mode() & OTHERS != 0 {
            return Err(ServeError::TokenMode { path: path.to_path_buf(), mode: metadata.mode() & 0o7777 });
        }
        let text = read_text(file).map_err(failed)?;
        let is_whole = (text.len() as u64) < FILE_BYTES_MAX;
        let text = text.strip_suffix('\n').unwrap_or(&text).trim_end_matches('\r').to_owned();
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match is_whole && LENGTHS.contains(&text.len()) && text.bytes().all(is_safe) {
            true => Ok(Self { text, is_generated: false }),
            false => Err(ServeError::TokenText(path.to_path_buf())),
        }
    }

    /// Returns the text of a generated token. The text of a file is not repeated anywhere.
    pub(crate) fn generated(&self) -> Option<&str> {
        self.is_generated.then_some(&self.text)
    }

    /// Whether `given` is the token. The time that this takes does not depend on where they differ.
    pub(crate) fn is(&self, given: &str) -> bool {
        let [right, given] = [&self.text, given].map(|text| Hash::hash(text.as_bytes()));
        right.iter().zip(&given).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
    }
}

/// Reads at most `FILE_BYTES_MAX` bytes. A pipe, as in `--token-file <(COMMAND)`, may take a while to have them.
fn read_text(file: File) -> io::Result<String> {
    let (mut file, mut text, deadline) = (file.take(FILE_BYTES_MAX), Vec::new(), Instant::now() + PATIENCE);
    loop {
        match file.read_to_end(&mut text) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(error),
            Ok(_) => return String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    fn read(text: &str, mode: u32) -> Result<Token, ServeError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Token::read(&path)
    }

    #[test]
    fn tokens_of_files_are_checked() {
        let token = read("0123456789abcdef-_\n", 0o400).unwrap();
        assert!(token.is("0123456789abcdef-_") && !token.is("0123456789abcdef-") && !token.is(""));
        assert_eq!(token.generated(), None);
        assert_eq!(format!("{token:?}"), "Token(..)");
        for mode in [0o640, 0o604, 0o666] {
            let error = read("0123456789abcdef", mode).unwrap_err().to_string();
            assert!(error.contains(&format!("mode {mode:04o}")) && error.contains("chmod 600"), "{error}");
        }
        for text in [
            "",
            "short",
            "0123456789abcdef 0123456789",
            "0123456789abcde/",
            &"x".repeat(257),
            "0123456789abcdef\n\nsecond",
            &("x".repeat(20) + &"\n".repeat(5000)),
        ] {
            assert!(matches!(read(text, 0o600), Err(ServeError::TokenText(_))), "{text}");
        }
        let missing = Token::read(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(missing.contains("/no/such/file"), "{missing}");
    }

    #[test]
    fn files_of_other_users_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "0123456789abcdef").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if chown(&path, Some(12345), None).is_err() {
            zonal_testing::skipped!("giving files away is not permitted");
            return;
        }
        let error = Token::read(&path).unwrap_err().to_string();
        assert!(error.contains("belongs to user 12345") && error.contains("chown"), "{error}");
    }

    #[test]
    fn generated_tokens_differ() {
        let [a, b] = [Token::generate().unwrap(), Token::generate().unwrap()];
        let text = a.generated().unwrap();
        assert!(text.len() == 32 && a.is(text) && !b.is(text), "{text}");
    }
}
