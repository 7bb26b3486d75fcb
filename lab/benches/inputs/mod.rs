//! What the benchmarks of single functions work on.

use std::fmt::Write;

use idem_runtime::{__bench::Answer, __private::Fingerprinting, FingerprintInput, Key};

/// The sizes of the bodies.
pub(crate) const SIZES: [(&str, usize); 3] =
    [("1 KB", 1 << 10), ("64 KB", 1 << 16), ("1 MB", 1 << 20)];

/// Keys as they come in a header: bare, and in quotes.
pub(crate) const KEYS: [(&str, &[u8]); 2] = [
    ("bare", b"8e03978e-40d5-43e8-bc93-6894a57f9324"),
    ("quoted", b"\"8e03978e-40d5-43e8-bc93-6894a57f9324\""),
];

/// Reads a key.
pub(crate) fn key(header: &[u8]) -> Option<Key> {
    Key::from_header(header).ok()
}

/// A body with its type, and the way in which it is compared.
pub(crate) struct Body {
    how: Fingerprinting,
    content_type: &'static str,
    bytes: Vec<u8>,
}

impl Body {
    /// A body that is compared by its bytes.
    pub(crate) fn raw(size: usize) -> Self {
        Self {
            how: Fingerprinting::Raw,
            content_type: "application/octet-stream",
            bytes: items(size).into_bytes(),
        }
    }

    /// A list of small objects, compared by meaning.
    pub(crate) fn json(size: usize) -> Self {
        Self {
            how: Fingerprinting::Meaning,
            content_type: "application/json",
            bytes: items(size).into_bytes(),
        }
    }

    /// A form with a field and a file, compared by meaning.
    pub(crate) fn multipart(size: usize) -> Self {
        let head = "--frontier\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\na file\r\n\
                    --frontier\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
        Self {
            how: Fingerprinting::Meaning,
            content_type: "multipart/form-data; boundary=frontier",
            bytes: format!("{head}{}\r\n--frontier--\r\n", items(size)).into_bytes(),
        }
    }

    /// Computes the fingerprint of a request with this body, and returns its first byte.
    pub(crate) fn fingerprint(&self) -> Option<u8> {
        let mut input = FingerprintInput::new("POST", "/orders", &self.bytes);
        input.content_type = self.content_type;
        self.how.of(&input).as_bytes().first().copied()
    }
}

/// An answer with the headers that most have.
pub(crate) fn answer(size: usize) -> Option<Answer> {
    let headers = [
        ("content-type", "application/json"),
        ("location", "/orders/8e03978e-40d5-43e8-bc93-6894a57f9324"),
        ("etag", "\"33a64df551425fcc55e4d42a148795d9f25f89d4\""),
    ];
    Answer::new(&headers, items(size).into_bytes().into())
}

/// A JSON text of about this size.
fn items(size: usize) -> String {
    let mut text = "[".to_owned();
    for number in 0.. {
        let item = format!(
            "{{\"name\": \"article {number}\", \"price\": {number}.90, \"tags\": [\"new\", \"r\\u00e9d\"], \"sold\": false}}"
        );
        if number > 0 && text.len() + item.len() > size {
            break;
        }
        let comma = if number == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{item}");
    }
    text.push(']');
    text
}
