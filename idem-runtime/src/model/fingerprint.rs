//! The fingerprint: what makes two requests under one key the same request.

mod json;
mod media_type;
mod multipart;

use std::borrow::Cow;
use std::fmt;

use sha2::{Digest, Sha256};

use self::json::CanonicalJson;
use self::media_type::MediaType;
use self::multipart::Part;

/// Separates these digests from every other use of SHA-256.
const DOMAIN: &[u8] = b"idem fingerprint";

/// Stands for one request: a version byte and a SHA-256 digest.
///
/// The version says in which way requests were compared; under one version, requests with the same
/// meaning have the same fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 33]);

impl Fingerprint {
    /// Returns the version byte and the digest, as they are stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 33] {
        &self.0
    }

    /// Tells whether `stored` is the fingerprint of another request for certain.
    ///
    /// A fingerprint of another version cannot be compared, so it never counts as a difference:
    /// records outlive a change of the endpoint's `fingerprint` option.
    #[must_use]
    pub fn differs_from(&self, stored: &[u8]) -> bool {
        stored.len() == self.0.len() && stored.first() == self.0.first() && stored != self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [version, digest @ ..] = &self.0;
        write!(f, "Fingerprint({version}:")?;
        digest
            .iter()
            .take(4)
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("..)")
    }
}

/// The way in which an endpoint compares requests.
///
/// Each way has its own version byte, so that a changed option never makes an old record differ.
#[derive(Clone, Copy, Debug)]
pub enum Fingerprinting {
    /// JSON by meaning, multipart by parts, everything else by bytes. Version 1.
    Meaning,
    /// Every body by its bytes. Version 2.
    Raw,
    /// The bytes that the user's own function returns, and nothing else. Version 3.
    Custom(fn(&FingerprintInput<'_>) -> Vec<u8>),
}

impl Fingerprinting {
    /// Computes the fingerprint of a request.
    #[must_use]
    pub fn of(self, input: &FingerprintInput<'_>) -> Fingerprint {
        match self {
            Self::Meaning => Framed::fingerprint(1, |framed| {
                framed.request(input, &Content::by_meaning(input));
            }),
            Self::Raw => Framed::fingerprint(2, |framed| {
                framed.request(input, &Content::by_bytes(input));
            }),
            Self::Custom(select) => Framed::fingerprint(3, |framed| framed.bytes(&select(input))),
        }
    }
}

/// What a fingerprint can depend on.
#[non_exhaustive]
#[derive(Clone, Copy)]
pub struct FingerprintInput<'a> {
    /// The method, such as `POST`.
    pub method: &'a str,
    /// The operation: its name where the endpoint has one, else method and matched route pattern,
    /// such as `POST /orders/{id}`.
    pub operation: &'a str,
    /// The concrete path, such as `/orders/7`.
    pub path: &'a str,
    /// The query as it was sent, without the question mark; empty where there is none.
    pub query: &'a str,
    /// The `Content-Type` header as it was sent; empty where there is none.
    pub content_type: &'a str,
    /// The body after its content coding was undone.
    pub body: &'a [u8],
}

impl<'a> FingerprintInput<'a> {
    /// Describes a request without query and content type, whose operation is its path.
    ///
    /// Meant for testing a function of one's own; the other fields can be set afterwards.
    #[must_use]
    pub const fn new(method: &'a str, path: &'a str, body: &'a [u8]) -> Self {
        Self {
            method,
            operation: path,
            path,
            query: "",
            content_type: "",
            body,
        }
    }
}

impl fmt::Debug for FingerprintInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Concrete path, query and body may hold what must not be logged.
        f.debug_struct("FingerprintInput")
            .field("method", &self.method)
            .field("operation", &self.operation)
            .field("body", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Media type and body in the form in which they are compared.
struct Content<'a> {
    media_type: Cow<'a, str>,
    body: Body<'a>,
}

enum Body<'a> {
    Bytes(&'a [u8]),
    Json(CanonicalJson),
    Multipart(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// Reads the body by its media type; where its meaning is in doubt, bytes decide.
    fn by_meaning(input: &FingerprintInput<'a>) -> Self {
        Self::read(input).unwrap_or_else(|| Self::by_bytes(input))
    }

    fn read(input: &FingerprintInput<'a>) -> Option<Self> {
        let media_type = MediaType::parse(input.content_type)?;
        let body = if media_type.is_json() {
            Body::Json(CanonicalJson::parse(input.body)?)
        } else {
            Body::Multipart(multipart::parts(input.body, media_type.boundary()?)?)
        };
        Some(Self {
            media_type: media_type.normalised().into(),
            body,
        })
    }

    fn by_bytes(input: &FingerprintInput<'a>) -> Self {
        let media_type = match MediaType::parse(input.content_type) {
            // Without its boundary the same bytes could have another meaning.
            Some(media_type) if !media_type.is_multipart() => media_type.normalised().into(),
            _ => input.content_type.into(),
        };
        Self {
            media_type,
            body: Body::Bytes(input.body),
        }
    }
}

/// Feeds SHA-256 so that no two different inputs give it the same bytes: every field follows its
/// length, every body a tag of its kind.
struct Framed(Sha256);

impl Framed {
    /// Makes the fingerprint of one version of what `content` feeds.
    fn fingerprint(version: u8, content: impl FnOnce(&mut Self)) -> Fingerprint {
        let mut framed = Self(Sha256::new());
        framed.bytes(DOMAIN);
        framed.bytes(&[version]);
        content(&mut framed);
        let mut fingerprint = [version; 33];
        let [_, digest @ ..] = &mut fingerprint;
        digest.copy_from_slice(&framed.0.finalize());
        Fingerprint(fingerprint)
    }

    fn request(&mut self, input: &FingerprintInput<'_>, content: &Content<'_>) {
        self.field(input.method.as_bytes());
        self.field(input.operation.as_bytes());
        self.field(input.path.as_bytes());
        self.field(input.query.as_bytes());
        self.field(content.media_type.as_bytes());
        self.body(&content.body);
    }

    fn body(&mut self, body: &Body<'_>) {
        match body {
            Body::Bytes(bytes) => {
                self.bytes(&[0]);
                self.field(bytes);
            }
            Body::Json(json) => {
                self.bytes(&[1]);
                json.slices().for_each(|slice| self.bytes(slice));
            }
            Body::Multipart(parts) => {
                self.bytes(&[2]);
                self.length(parts.len());
                for part in parts {
                    self.field(part.headers);
                    self.field(part.body);
                }
            }
        }
    }

    fn field(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.bytes(bytes);
    }

    fn length(&mut self, length: usize) {
        self.bytes(&(length as u64).to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests;
