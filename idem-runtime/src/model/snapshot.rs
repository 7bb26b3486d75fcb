//! What is stored of an answer, and which of its headers are not.

use std::fmt;

use bytes::Bytes;

/// An answer as it is stored and sent again: status, ordered headers, body.
///
/// `Debug` prints sizes only.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The status code, 200 to 999.
    pub(crate) status: u16,
    /// The headers that are stored, in the order in which they were sent.
    pub(crate) headers: Headers,
    /// The body, before any content coding.
    pub(crate) body: Bytes,
}

impl Snapshot {
    /// Reads the columns of a stored record.
    ///
    /// # Errors
    ///
    /// If the status is no final one or the headers are not what [`Headers::push`] writes.
    pub(crate) fn decode(status: i16, headers: &[u8], body: Bytes) -> Result<Self, CorruptRecord> {
        Ok(Self {
            status: validate_status(status)?,
            headers: Headers::decode(headers)?,
            body,
        })
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("status", &self.status)
            .field("headers", &self.headers.iter().count())
            .field("body", &self.body.len())
            .finish()
    }
}

/// Accepts the status codes that a final answer can have.
fn validate_status(status: i16) -> Result<u16, CorruptRecord> {
    match u16::try_from(status) {
        Ok(status @ 200..=999) => Ok(status),
        _ => Err(CorruptRecord::Status),
    }
}

/// Headers in the order in which they were sent; repeated names are kept.
///
/// They are held as they are stored: a line `name: value` with CR LF each, so that psql can show them.
/// `Debug` prints their number only.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<u8>);

impl Headers {
    /// Starts an empty list.
    #[must_use]
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends one header line.
    ///
    /// # Errors
    ///
    /// If `name` is not a lower-case HTTP token or `value` contains CR, LF or NUL; nothing is
    /// appended then. Neither can come out of actix's own header map.
    pub(crate) fn push(&mut self, name: &str, value: &[u8]) -> Result<(), InvalidHeader> {
        if !is_header(name.as_bytes(), value) {
            return Err(InvalidHeader);
        }
        self.0.reserve(name.len() + value.len() + 4);
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Iterates over names and values in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        lines(&self.0).filter_map(split)
    }

    /// The lines, as they are stored.
    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the lines of a stored record.
    ///
    /// # Errors
    ///
    /// If a line does not end in CR LF or holds no header that [`push`](Self::push) accepts.
    pub(crate) fn decode(encoded: &[u8]) -> Result<Self, CorruptRecord> {
        let is_valid =
            |line| split(line).is_some_and(|(name, value)| is_header(name.as_bytes(), value));
        if lines(encoded).all(is_valid) {
            Ok(Self(encoded.to_owned()))
        } else {
            Err(CorruptRecord::Headers)
        }
    }
}

fn lines(encoded: &[u8]) -> impl Iterator<Item = &[u8]> {
    encoded.split_inclusive(|&byte| byte == b'\n')
}

/// Splits a line into name and value.
fn split(line: &[u8]) -> Option<(&str, &[u8])> {
    let line = line.strip_suffix(b"\r\n")?;
    let (name, rest) = line.split_at_checked(line.iter().position(|&byte| byte == b':')?)?;
    Some((str::from_utf8(name).ok()?, rest.strip_prefix(b": ")?))
}

fn is_header(name: &[u8], value: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().copied().all(is_name_byte)
        && !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0))
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Headers")
            .field(&self.iter().count())
            .finish()
    }
}

/// Says that a header cannot be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("header name is not a lower-case token or its value contains CR, LF or NUL")]
pub(crate) struct InvalidHeader;

/// Says which part of a stored record is not what was written there.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum CorruptRecord {
    /// The status is not between 200 and 999.
    #[error("stored status is not that of a final answer")]
    Status,
    /// The headers are not lines of `name: value`.
    #[error("stored headers are malformed")]
    Headers,
}

/// Tells whether the header `name` of an answer is stored with it; case does not matter.
///
/// Left out are credentials, which belong to one exchange, and what every answer gets anew: its
/// date, its framing, its connection. What the answer's `Connection` names is to be left out too,
/// see [`connection_names`].
#[must_use]
pub(crate) fn is_stored(name: &str) -> bool {
    const NEVER: [&str; 15] = [
        "authentication-info",
        "connection",
        "content-length",
        "date",
        "idempotent-replayed",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-connection",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
    ];
    !NEVER.iter().any(|never| never.eq_ignore_ascii_case(name))
}

/// Tells whether the value of a `Connection` header names the header `name`; case does not matter.
#[must_use]
pub(crate) fn connection_names(connection: &[u8], name: &str) -> bool {
    connection
        .split(|&byte| byte == b',')
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

/// Tells whether `byte` can stand in a token of RFC 9110 without an upper-case letter.
const fn is_name_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9'
        | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn headers(lines: &[(&str, &[u8])]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in lines {
            headers.push(name, value).unwrap();
        }
        headers
    }

    #[test]
    fn encoded_headers_are_readable_lines_in_order() {
        let links = headers(&[
            ("link", b"<a>"),
            ("vary", b""),
            ("link", b" <b> "),
            ("x-raw", b"\xff: \t"),
        ]);
        let encoded = b"link: <a>\r\nvary: \r\nlink:  <b> \r\nx-raw: \xff: \t\r\n";
        assert_eq!(links.as_bytes(), encoded);
        assert_eq!(Headers::decode(encoded), Ok(links));
        assert_eq!(Headers::decode(b""), Ok(Headers::new()));
    }

    #[test]
    fn headers_that_would_be_ambiguous_are_refused() {
        let mut headers = Headers::new();
        for (name, value) in [
            ("", "a"),
            ("A", "a"),
            ("a b", "a"),
            ("a:", "a"),
            ("ä", "a"),
            ("a", "a\r"),
            ("a", "a\nb: c"),
            ("a", "\0"),
        ] {
            assert_eq!(
                headers.push(name, value.as_bytes()),
                Err(InvalidHeader),
                "{name:?} {value:?}"
            );
        }
        assert_eq!(headers, Headers::new());
    }

    #[test]
    fn malformed_records_are_reported_as_corrupt() {
        for encoded in [
            "a",
            "a: b",
            "a: b\n",
            "a:b\r\n",
            ": b\r\n",
            "a: b\r\n\r\n",
            "A: b\r\n",
            "a: b\r\r\n",
            "a: b\r\nc",
            "a: \0\r\n",
            "\r\n",
        ] {
            assert_eq!(
                Headers::decode(encoded.as_bytes()),
                Err(CorruptRecord::Headers),
                "{encoded:?}"
            );
        }
    }

    #[test]
    fn only_final_statuses_are_accepted() {
        for status in [200, 404, 999] {
            let snapshot = Snapshot::decode(status, b"a: b\r\n", Bytes::new()).unwrap();
            assert_eq!(i32::from(snapshot.status), i32::from(status));
        }
        for status in [-200, 0, 100, 199, 1000, i16::MAX] {
            assert_eq!(
                Snapshot::decode(status, b"", Bytes::new()),
                Err(CorruptRecord::Status),
                "{status}"
            );
        }
    }

    #[test]
    fn credentials_framing_and_connection_headers_are_not_stored() {
        for name in [
            "set-cookie",
            "Set-Cookie",
            "www-authenticate",
            "date",
            "content-length",
            "te",
            "upgrade",
            "idempotent-replayed",
        ] {
            assert!(!is_stored(name), "{name}");
        }
        for name in [
            "content-type",
            "content-encoding",
            "location",
            "link",
            "vary",
            "etag",
            "retry-after",
            "x-date",
            "cookie",
        ] {
            assert!(is_stored(name), "{name}");
        }
    }

    #[test]
    fn headers_named_by_connection_are_recognised() {
        for name in ["close", "x-hop", "x-other"] {
            assert!(connection_names(b"close, X-Hop ,\tx-other", name), "{name}");
        }
        for name in ["", "x", "hop", "x-hop, x-other"] {
            assert!(!connection_names(b"close, X-Hop, x-other", name), "{name}");
        }
    }

    #[test]
    fn debug_output_contains_sizes_only() {
        let snapshot = Snapshot {
            status: 201,
            headers: headers(&[("x-token", b"s3cret")]),
            body: Bytes::from_static(b"s3cret"),
        };
        assert_eq!(
            format!("{snapshot:?}"),
            "Snapshot { status: 201, headers: 1, body: 6 }"
        );
        assert_eq!(format!("{:?}", snapshot.headers), "Headers(1)");
    }

    proptest! {
        #[test]
        fn headers_survive_the_round_trip(
            lines in vec(("[ab]|[!#-'*+.0-9^-z|~-]{1,8}", vec(any::<u8>(), 0..12)), 0..6),
        ) {
            let mut headers = Headers::new();
            let mut accepted = Vec::new();
            for (name, value) in &lines {
                let is_valid = !value.iter().any(|byte| b"\r\n\0".contains(byte));
                prop_assert_eq!(headers.push(name, value).is_ok(), is_valid);
                if is_valid {
                    accepted.push((name.as_str(), value.as_slice()));
                }
            }
            let decoded = Headers::decode(headers.as_bytes()).unwrap();
            prop_assert_eq!(decoded.iter().collect::<Vec<_>>(), accepted);
        }

        #[test]
        fn decoding_accepts_exactly_what_encoding_writes(
            bytes in prop_oneof![
                vec(any::<u8>(), 0..40),
                vec(select(vec!["a", ": ", "\r\n", "\n", "\0", "A"]), 0..12)
                    .prop_map(|pieces| pieces.concat().into_bytes()),
            ],
        ) {
            if let Ok(headers) = Headers::decode(&bytes) {
                prop_assert_eq!(headers.as_bytes(), bytes);
            }
        }
    }
}
