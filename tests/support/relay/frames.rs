//! Cuts PostgreSQL's byte stream into messages, as far as the relay has to understand it.

use std::io;

use bytes::{Buf, Bytes, BytesMut};

/// No message of a test is longer; whatever claims to be is not PostgreSQL's protocol.
const LONGEST: usize = 64 << 20;

/// How much is read at once.
const ROOM: usize = 256 << 10;

/// Collects bytes of one direction and gives back whole messages.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Whether messages start with a byte that tells their type. A client's first one does not.
    typed: bool,
}

impl Frames {
    /// Expects the client's side of a conversation, from its beginning.
    #[must_use]
    pub fn of_client() -> Self {
        Self {
            buffer: BytesMut::new(),
            typed: false,
        }
    }

    /// Expects the server's side of a conversation.
    #[must_use]
    pub fn of_server() -> Self {
        Self {
            buffer: BytesMut::new(),
            typed: true,
        }
    }

    /// Returns where the next bytes that arrive belong, with room for all that can arrive at once.
    pub fn buffer(&mut self) -> &mut BytesMut {
        // Left to itself it grows by 64 bytes, so that a burst would be read, and held back, in many pieces.
        self.buffer.reserve(ROOM);
        &mut self.buffer
    }

    /// Takes the next whole message, if it is there.
    ///
    /// # Errors
    /// When what arrives is not PostgreSQL's protocol.
    pub fn take(&mut self) -> io::Result<Option<Frame>> {
        let lead = usize::from(self.typed);
        let Some(mut length) = self.buffer.get(lead..lead + 4) else {
            return Ok(None);
        };
        // The length counts itself, but not the type.
        let length = length.get_u32() as usize;
        if !(4..=LONGEST).contains(&length) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not PostgreSQL's protocol",
            ));
        }
        if self.buffer.len() < lead + length {
            return Ok(None);
        }
        let frame = Frame {
            typed: self.typed,
            bytes: self.buffer.split_to(lead + length).freeze(),
        };
        self.typed |= frame.is_start();
        Ok(Some(frame))
    }
}

/// Holds one message, type and length included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    typed: bool,
    bytes: Bytes,
}

impl Frame {
    /// Returns it as it came.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Tells whether this opens a session, which the server answers with a `ReadyForQuery` of its own accord.
    #[must_use]
    pub fn is_start(&self) -> bool {
        let version_3 = 0x0003_0000_u32.to_be_bytes();
        !self.typed && self.bytes.get(4..8) == Some(&version_3)
    }

    /// Tells whether the server will answer this client's message with a `ReadyForQuery`: a query or a `Sync`.
    #[must_use]
    pub fn asks_for_ready(&self) -> bool {
        self.is_start() || matches!(self.kind(), Some(b'Q' | b'S'))
    }

    /// Tells whether this server's message is a `ReadyForQuery`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.kind() == Some(b'Z')
    }

    /// Tells whether this client's message is the simple query `COMMIT` and nothing else.
    #[must_use]
    pub fn is_commit(&self) -> bool {
        self.query()
            .is_some_and(|text| text.eq_ignore_ascii_case(b"COMMIT"))
    }

    /// Returns the text of a client's simple query, without the semicolon and the white space around it.
    #[must_use]
    pub fn query(&self) -> Option<&[u8]> {
        let text = self.bytes.get(5..).filter(|_| self.kind() == Some(b'Q'))?;
        let text = text.strip_suffix(b"\0").unwrap_or(text).trim_ascii();
        Some(text.strip_suffix(b";").unwrap_or(text).trim_ascii())
    }

    fn kind(&self) -> Option<u8> {
        self.bytes.first().copied().filter(|_| self.typed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &[u8] = b"\0\0\0\x09\0\x03\0\0\0";

    #[test]
    fn messages_come_out_whole_however_their_bytes_arrive() {
        let stream = [START, &query("BEGIN"), b"S\0\0\0\x04", &query("commit;")].concat();
        for step in 1..=stream.len() {
            let mut frames = Frames::of_client();
            let mut found = Vec::new();
            for chunk in stream.chunks(step) {
                frames.buffer().extend_from_slice(chunk);
                while let Some(frame) = frames.take().unwrap() {
                    found.push(frame);
                }
            }
            let told: Vec<_> = found
                .iter()
                .map(|frame| (frame.asks_for_ready(), frame.is_commit()))
                .collect();
            let expected = [(true, false), (true, false), (true, false), (true, true)];
            assert_eq!(told, expected, "in steps of {step}");
            let bytes: Vec<u8> = found
                .iter()
                .flat_map(|frame| frame.bytes().to_vec())
                .collect();
            assert_eq!(bytes, stream);
        }
    }

    #[test]
    fn only_a_commit_on_its_own_is_one() {
        for (text, expected) in [
            ("COMMIT", true),
            (" Commit ; ", true),
            ("COMMIT; BEGIN", false),
            ("COMMIT PREPARED 'x'", false),
            ("", false),
        ] {
            let mut frames = Frames::of_server();
            frames.buffer().extend_from_slice(&query(text));
            assert_eq!(
                frames.take().unwrap().unwrap().is_commit(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn nonsense_is_an_error_and_not_an_endless_wait() {
        for stream in [&b"GET / HTTP/1.1\r\n"[..], b"\0\0\0\x03"] {
            let mut frames = Frames::of_client();
            frames.buffer().extend_from_slice(stream);
            assert!(frames.take().is_err());
        }
    }

    fn query(text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len() + 5).unwrap().to_be_bytes();
        [b"Q", &length[..], text.as_bytes(), b"\0"].concat()
    }
}
